//! Runs the contract of a round on the seeded backend. Everything that the contract allows must be
//! seen, and nothing else.

mod interleaved;

use interleaved::Interleaved;
use remora_fabric::seeded::Seeded;

const BED: Interleaved<Seeded> = Interleaved {
    fabric: |nodes, seed| Seeded::new(nodes, seed).expect("a test's memory"),
    revoke_after: Seeded::revoke_after,
    runs: 200,
};

remora_fabric::conformance_suite!(BED);
