//! The type [`Etcd`] for a program that was built without etcd. No value of it can exist, and the
//! compiler knows that.

use super::fault::EtcdFault;
use super::options::EtcdOptions;
use crate::configuration::{Configuration, ConfigurationError};
use crate::membership::Membership;

pub(crate) const BUILT: bool = false;

/// A configuration in etcd. It needs the cargo feature `etcd`.
#[derive(Debug)]
pub enum Etcd {}

impl Etcd {
    /// Fails always, with [`EtcdFault::NotBuilt`].
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
