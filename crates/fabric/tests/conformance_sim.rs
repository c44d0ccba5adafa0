//! Runs the contract of a round on the simulator with all profiles. Everything that the contract
//! allows must be seen, and nothing else.

mod interleaved;

use interleaved::Interleaved;
use remora_fabric::sim::{Profile, Sim, SimOptions};

const BED: Interleaved<Sim> = Interleaved {
    fabric: |nodes, seed| {
        let name = Profile::NAMES[seed as usize % Profile::NAMES.len()];
        let profile = Profile::named(name).expect("a profile of its own list");
        let options = SimOptions { stretch: 0.1, ..SimOptions::new(profile, seed) };
        Sim::new(nodes, &options).expect("a test's memory")
    },
    revoke_after: Sim::revoke_after,
    runs: 210,
};

remora_fabric::conformance_suite!(BED);
