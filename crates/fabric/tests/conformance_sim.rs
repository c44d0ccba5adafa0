//! The contract of a round, on the simulator: everything that the contract allows is seen, and nothing else.

use remora_fabric::ClientId;
use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::sim::{Profile, Sim, SimOptions};

struct SimBed;

impl Bed for SimBed {
    type Fabric = Sim;

    fn fabric(&self, nodes: &[Vec<usize>], seed: u64) -> Sim {
        let name = Profile::NAMES[seed as usize % Profile::NAMES.len()];
        let profile = Profile::named(name).expect("a profile of its own list");
        let options = SimOptions { stretch: 0.1, ..SimOptions::new(profile, seed) };
        Sim::new(nodes, &options).expect("a test's memory")
    }

    fn clients(&self) -> Clients {
        Clients::Interleaved
    }

    fn runs(&self) -> u64 {
        210
    }

    fn turns(&self) -> u64 {
        20
    }

    fn reorders(&self) -> bool {
        true
    }

    fn revoke_after(&self, fabric: &Sim, client: ClientId, steps: u64) -> bool {
        fabric.revoke_after(client, steps);
        true
    }
}

remora_fabric::conformance_suite!(SimBed);
