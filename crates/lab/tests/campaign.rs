//! Fault campaigns: they are deterministic, meet what they are to meet, find nothing in the protocols, and find published
//! errors that are put back.

use remora::Protocol;
use remora::floors::txn::mutant::Mutant;
use remora_lab::campaign::{Case, Load, campaign, mutation_score, run, shrink};

fn faults(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn the_same_case_is_the_same_history_byte_for_byte() {
    for (load, protocol) in [(Load::Registers, Protocol::DrtmR), (Load::Tatp, Protocol::Fasst)] {
        let case = Case::new(11, load, protocol, &faults(&["pause", "delay", "partition"]));
        let (one, two) = (run(&case).unwrap(), run(&case).unwrap());
        assert_eq!((one.digest, one.events, one.committed), (two.digest, two.events, two.committed));
        let other = run(&Case { seed: 12, ..case }).unwrap();
        assert_ne!(one.digest, other.digest);
    }
}

#[test]
fn protocols_survive_what_they_are_to_survive() {
    for protocol in [Protocol::DrtmR, Protocol::DrtmH, Protocol::Farm, Protocol::Fasst] {
        for load in Load::ALL {
            let case = Case::new(0, load, protocol, &faults(&["pause", "delay", "partition"]));
            let summary = campaign(&case, 0..4, 2, &|| {});
            assert_eq!(summary.violating, 0, "{protocol:?} {load:?}: {:?}", summary.violations);
            assert!(summary.total.committed >= 4_000);
            for fault in ["pause", "delay", "partition"] {
                assert!(summary.total.faults[fault].1 >= 4, "{fault} must have met a transaction that held locks");
            }
        }
    }
}

#[test]
fn a_client_that_dies_blocks_only_what_it_held() {
    let case = Case::new(0, Load::Registers, Protocol::DrtmR, &faults(&["crash"]));
    let summary = campaign(&case, 0..3, 2, &|| {});
    assert!(summary.is_clean(), "{summary:?}");
}

#[test]
fn calls_are_served_once_though_they_are_lost_and_doubled() {
    let case = Case::new(0, Load::Registers, Protocol::Fasst, &faults(&["lose", "duplicate"]));
    let summary = campaign(&case, 0..4, 2, &|| {});
    assert!(summary.is_clean(), "{summary:?}");
}

#[test]
fn rings_fill_when_a_node_does_not_apply_them() {
    let case = Case::new(0, Load::Registers, Protocol::DrtmR, &faults(&["stall"]));
    let summary = campaign(&case, 0..4, 2, &|| {});
    assert!(summary.is_clean(), "{summary:?}");
}

#[test]
fn published_errors_are_found_and_shrunk() {
    let case = Case::new(0, Load::Registers, Protocol::DrtmR, &faults(&["delay"]));
    let mutants = [Mutant::ValidateVersionOnly, Mutant::LockWithoutValidation, Mutant::ReleaseAll];
    for caught in mutation_score(&mutants, &case, 0..40, 2, &|_, _| {}) {
        let (load, seed) = caught.seed.unwrap_or_else(|| panic!("{:?} survives", caught.mutant));
        if caught.mutant == Mutant::LockWithoutValidation {
            remora::floors::txn::mutant::set(Some(caught.mutant));
            let found = Case { seed, load, ..case.clone() };
            let smaller = shrink(&found);
            assert!(run(&smaller).is_err() && smaller != found, "{}", smaller.command());
            remora::floors::txn::mutant::set(None);
        }
    }
}
