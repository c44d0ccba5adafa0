//! The bed of a backend that has a scheduler: it interleaves the clients of one worker, and does
//! everything that the contract allows.

use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::{ClientId, Host};

pub(crate) struct Interleaved<F> {
    pub(crate) fabric: fn(&[Vec<usize>], u64) -> F,
    pub(crate) revoke_after: fn(&F, ClientId, u64),
    pub(crate) runs: u64,
}

impl<F: Host + 'static> Bed for Interleaved<F> {
    fn fabric(&self, nodes: &[Vec<usize>], seed: u64) -> Box<dyn Host> {
        Box::new((self.fabric)(nodes, seed))
    }

    fn clients(&self) -> Clients {
        Clients::Interleaved
    }

    fn runs(&self) -> u64 {
        self.runs
    }

    fn turns(&self) -> u64 {
        20
    }

    fn reorders(&self) -> bool {
        true
    }

    fn fabric_that_revokes(
        &self,
        nodes: &[Vec<usize>],
        seed: u64,
        client: ClientId,
        steps: u64,
    ) -> Option<Box<dyn Host>> {
        let fabric = (self.fabric)(nodes, seed);
        (self.revoke_after)(&fabric, client, steps);
        Some(Box::new(fabric))
    }
}
