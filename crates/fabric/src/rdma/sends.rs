//! The work requests of a queue pair that are under way: which of them report their completion, and
//! what a report tells. This file has no device and no clock; `present.rs` has them.
//!
//! Verbs are posted in *lists*, one for each round and node. A reliable connection completes work
//! requests in order, so a report also tells that everything before it has completed. An error is
//! always reported.
//!
//! # Rules
//!
//! 1. The last work request of a list reports. The others do not.
//! 2. A *quiet* list does not report at all. A list may be quiet if no coroutine awaits its round
//!    and no round waits behind it. Nobody knows that it has completed before something behind it
//!    reports.
//! 3. At most [`QUIET_LISTS_MAX`] quiet lists, and a quarter of the room, are without a report
//!    behind them. The list that would exceed this reports.
//! 4. Quiet lists are asked for, by a work request that does nothing but report, if nothing has
//!    reported behind the oldest of them for [`QUIET_NS`], or at once if a coroutine waits for
//!    them.
//! 5. The other end's time to answer begins when the request that reports is posted. A quiet list
//!    alone never makes the other end late.

use std::collections::VecDeque;

use crate::ids::Nanos;
use crate::limits::LAZY_NS;

/// Quiet lists that may be under way without a report behind them.
pub(crate) const QUIET_LISTS_MAX: usize = 15;
/// The time after which quiet lists are asked for. It is dozens of transactions of a card, so a
/// worker that has work to do posts something that reports before. Otherwise asking would cost more
/// than quiet lists save. Over TCP, a node holds back answers for as long.
pub(crate) const QUIET_NS: Nanos = LAZY_NS;

/// A work request that reports.
#[derive(Clone, Copy, Debug)]
struct Report {
    /// The work requests that its completion completes, itself included.
    requests: usize,
    /// The lists that its completion completes.
    lists: usize,
    posted: Nanos,
}

/// The work requests under way, with the lists `L` that they belong to.
#[derive(Debug)]
pub(crate) struct Sends<L> {
    room: usize,
    quiet_requests_max: usize,
    /// The lists that have been posted as a whole, oldest first.
    lists: VecDeque<L>,
    reports: VecDeque<Report>,
    /// Work requests behind the last report, and the quiet lists among them. `quiet_since` is when
    /// the oldest of these was posted.
    unreported: usize,
    quiet: usize,
    quiet_since: Nanos,
}

impl<L> Sends<L> {
    /// Makes the state of a queue pair that has room for `room` work requests.
    pub(crate) fn new(room: usize) -> Sends<L> {
        Sends {
            room,
            quiet_requests_max: room / 4,
            lists: VecDeque::new(),
            reports: VecDeque::new(),
            unreported: 0,
            quiet: 0,
            quiet_since: 0,
        }
    }

    /// Returns the number of work requests that there is room for.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Whether nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.reports.is_empty() && self.unreported == 0
    }

    /// Whether a list of this many work requests, which could be quiet, may be quiet now.
    pub(crate) fn may_be_quiet(&self, requests: usize) -> bool {
        self.quiet < QUIET_LISTS_MAX && self.unreported + requests <= self.quiet_requests_max
    }

    /// Notes that work requests are posted. If one of them ends a list or reports, it is the last.
    pub(crate) fn post(&mut self, requests: usize) {
        debug_assert!(requests <= self.room, "there is no room");
        self.room -= requests;
        self.unreported += requests;
    }

    /// Notes that the last work request ends a quiet list, which began at `posted`.
    pub(crate) fn end_quietly(&mut self, list: L, posted: Nanos) {
        if self.quiet == 0 {
            self.quiet_since = posted;
        }
        self.quiet += 1;
        self.lists.push_back(list);
    }

    /// Notes that the last work request reports, and which list it ends, if any. The other end's
    /// time to answer begins at `posted`.
    pub(crate) fn report(&mut self, list: Option<L>, posted: Nanos) {
        let lists = std::mem::take(&mut self.quiet) + usize::from(list.is_some());
        self.lists.extend(list);
        let requests = std::mem::take(&mut self.unreported);
        self.reports.push_back(Report { requests, lists, posted });
    }

    /// Takes the oldest report. Returns the lists that have completed, or `None` if nothing was to
    /// report.
    pub(crate) fn reported(&mut self) -> Option<impl Iterator<Item = L> + '_> {
        let report = self.reports.pop_front()?;
        self.room += report.requests;
        Some(self.lists.drain(..report.lists))
    }

    /// Whether there are quiet lists with no report behind them.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet > 0
    }

    /// Returns when to ask for the quiet lists that have no report behind them.
    pub(crate) fn ask_at(&self) -> Option<Nanos> {
        (self.quiet > 0 && self.room > 0).then(|| self.quiet_since.saturating_add(QUIET_NS))
    }

    /// Returns when the other end's time to answer began, if a report of any list is awaited.
    pub(crate) fn oldest(&self) -> Option<Nanos> {
        self.reports.iter().find(|report| report.lists > 0).map(|report| report.posted)
    }

    /// Returns the lists that have been posted as a whole, oldest first.
    pub(crate) fn lists(&self) -> impl Iterator<Item = &L> {
        self.lists.iter()
    }

    /// Returns the number of work requests under way that report.
    pub(crate) fn reports(&self) -> usize {
        self.reports.len()
    }
}

#[cfg(test)]
mod tests;
