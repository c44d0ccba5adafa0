//! Code that the tests of workloads share.
#![allow(dead_code, unreachable_pub, reason = "every test target uses a part of it")]

use remora::protocol::Protocol;
use remora_workload::Invariant;

/// Returns the protocols that promise serializable transactions. If there is no time for all of
/// them, returns those whose steps differ most. The protocol suite of `remora` has all of them.
pub fn serializable() -> impl Iterator<Item = Protocol> {
    let is_chosen = |protocol: &Protocol| is_long() || Protocol::DISTINCT.contains(protocol);
    Protocol::ALL.into_iter().filter(|protocol| protocol.is_serializable()).filter(is_chosen)
}

/// Whether there is time for everything, as in `.ci/long`: whether the environment variable
/// `REMORA_LONG` is set.
pub fn is_long() -> bool {
    std::env::var_os("REMORA_LONG").is_some()
}

/// Asserts that these invariants were checked, and hold.
#[track_caller]
pub fn assert_sound(invariants: &[Invariant], names: &[&str]) {
    assert_eq!(invariants.iter().map(|one| one.name).collect::<Vec<_>>(), names);
    assert!(invariants.iter().all(|one| one.holds == Some(true)), "{invariants:#?}");
}
