//! The types of RDMA for a program that was built without it. No value of them can exist, and the
//! compiler knows that.

use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;

use super::{DeviceCounts, DeviceOptions, VerbsError};
use crate::address::NodeId;
use crate::error::Fault;
use crate::ids::Nanos;
use crate::round::buffer::Verb;
use crate::round::part::Part;
use crate::shm::Memory;
use crate::transport::Capabilities;

/// An open RDMA device. It needs the cargo feature `verbs`.
#[derive(Clone, Debug)]
pub enum Device {}

impl Device {
    /// Fails always, with [`VerbsError::NotBuilt`].
    pub fn open(_: &DeviceOptions) -> Result<Device, VerbsError> {
        Err(VerbsError::NotBuilt)
    }

    /// Returns what memory nodes over this device promise.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        match *self {}
    }

    /// Returns what the open endpoints and the servers of this device have posted.
    #[must_use]
    pub fn counts(&self) -> DeviceCounts {
        match *self {}
    }

    /// Returns the bytes that a WRITE may carry in its work request.
    pub fn inline_bytes(&self) -> Result<u32, VerbsError> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Domain {}

impl Domain {
    pub(crate) fn of(device: &Device) -> Result<Domain, VerbsError> {
        match *device {}
    }

    pub(crate) fn queue(&mut self) -> Result<Queue, VerbsError> {
        match *self {}
    }

    pub(crate) fn watch(&self, _: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Exports {}

impl Exports {
    pub(crate) fn new(device: &Device, _: &Memory) -> Result<Exports, VerbsError> {
        match *device {}
    }

    pub(crate) fn one_sided(&self) -> bool {
        match *self {}
    }

    pub(crate) fn accept(&mut self, _: &[u64], _: &mut Vec<u64>) -> Result<Queue, VerbsError> {
        match *self {}
    }

    pub(crate) fn watch(&self, _: impl FnMut(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn poll(&self, _: bool) {
        match *self {}
    }

    pub(crate) fn due(&self) -> Option<Nanos> {
        match *self {}
    }

    pub(crate) fn has_ready(&self) -> bool {
        match *self {}
    }

    pub(crate) fn ready(&self, _: &mut Vec<usize>) {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) part: Part,
    _never: Infallible,
}

#[derive(Debug)]
pub(crate) enum Queue {}

impl Queue {
    pub(crate) fn introduction(&self) -> Vec<u64> {
        match *self {}
    }

    pub(crate) fn connect(&mut self, _: &[u64]) -> Result<(), VerbsError> {
        match *self {}
    }

    pub(crate) fn takes(&self, _: &Verb) -> bool {
        match *self {}
    }

    pub(crate) fn refusal(&self, _: &Verb) -> Option<Fault> {
        match *self {}
    }

    pub(crate) fn post(&mut self, _: Part, _: bool, _: &[Verb], _: NodeId, _: &[u64]) -> bool {
        match *self {}
    }

    pub(crate) fn ask_at(&self) -> Option<Nanos> {
        match *self {}
    }

    pub(crate) fn ask(&mut self, _: Nanos) {
        match *self {}
    }

    pub(crate) fn fetched(&mut self) -> Option<Fetched> {
        match *self {}
    }

    pub(crate) fn deliver(&mut self, _: Fetched, _: &[Verb], _: NodeId, _: &mut [u64]) {
        match *self {}
    }

    pub(crate) fn oldest(&self) -> Option<Nanos> {
        match *self {}
    }

    pub(crate) fn is_awaited(&self) -> bool {
        match *self {}
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        std::iter::empty()
    }

    pub(crate) fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn ring(&mut self) {
        match *self {}
    }

    pub(crate) fn channel(&self) -> BorrowedFd<'_> {
        match *self {}
    }

    pub(crate) fn arm_for_room(&mut self) -> bool {
        match *self {}
    }

    pub(crate) fn arm(&mut self) -> bool {
        match *self {}
    }

    pub(crate) fn has_news(&self) -> bool {
        match *self {}
    }

    pub(crate) fn own(&self, _: usize) {
        match *self {}
    }

    pub(crate) fn resend_due(&self) -> Option<Nanos> {
        match *self {}
    }
}
