//! The contract of a round, on the seeded backend: everything that the contract allows is seen, and nothing else.

use remora_fabric::ClientId;
use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::seeded::Seeded;

struct SeededBed;

impl Bed for SeededBed {
    type Fabric = Seeded;

    fn fabric(&self, nodes: &[Vec<usize>], seed: u64) -> Seeded {
        Seeded::new(nodes, seed).expect("a test's memory")
    }

    fn clients(&self) -> Clients {
        Clients::Interleaved
    }

    fn runs(&self) -> u64 {
        200
    }

    fn turns(&self) -> u64 {
        20
    }

    fn reorders(&self) -> bool {
        true
    }

    fn revoke_after(&self, fabric: &Seeded, client: ClientId, steps: u64) -> bool {
        fabric.revoke_after(client, steps);
        true
    }
}

remora_fabric::conformance_suite!(SeededBed);
