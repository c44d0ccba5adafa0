//! Runs the contract of a round on shared memory. Clients are threads.

use remora_fabric::Host;
use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::shm::Shm;

struct ShmBed;

impl Bed for ShmBed {
    fn fabric(&self, nodes: &[Vec<usize>], _: u64) -> Box<dyn Host> {
        Box::new(Shm::new(nodes).expect("a test's memory"))
    }

    fn clients(&self) -> Clients {
        Clients::Threads
    }

    fn runs(&self) -> u64 {
        3
    }

    fn turns(&self) -> u64 {
        120_000
    }

    fn reorders(&self) -> bool {
        false
    }
}

remora_fabric::conformance_suite!(ShmBed);
