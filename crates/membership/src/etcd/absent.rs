//! A program without etcd: no configuration in it can exist, and the compiler knows it.

use super::fault::EtcdFault;
use super::options::EtcdOptions;
use crate::configuration::{Configuration, ConfigurationError};
use crate::membership::Membership;

pub(crate) const BUILT: bool = false;

/// A configuration in etcd. Needs the cargo feature `etcd`.
#[derive(Debug)]
pub enum Etcd {}

impl Etcd {
    /// Always [`EtcdFault::NotBuilt`].
    pub fn open(options: &EtcdOptions, _cluster: u64) -> Result<Etcd, ConfigurationError> {
        Err(ConfigurationError::Etcd { endpoints: options.endpoints.join(","), cause: EtcdFault::NotBuilt })
    }
}

impl Configuration for Etcd {
    fn generation(&self) -> u64 {
        match *self {}
    }

    fn update(&self, _: &mut dyn FnMut(&mut Membership)) -> Result<(), ConfigurationError> {
        match *self {}
    }
}
