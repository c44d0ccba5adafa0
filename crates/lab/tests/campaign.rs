//! Tests of fault campaigns: they are deterministic, reach what they should reach, find no error in
//! the protocols, and find published errors that are put back.

use remora::floors::txn::mutant::{self, Mutant};
use remora::protocol::Protocol;
use remora_lab::campaign::{Case, FAULTS, Load, campaign, mutation_score, run, shrink};

fn faults(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn the_same_case_is_the_same_history_byte_for_byte() {
    for (load, protocol) in [(Load::Registers, Protocol::DRTM_R), (Load::Tatp, Protocol::FASST)] {
        let case = Case::new(11, load, protocol, &faults(&["pause", "delay", "partition"]));
        let (one, two) = (run(&case).unwrap(), run(&case).unwrap());
        assert_eq!((one.digest, one.events, one.committed), (two.digest, two.events, two.committed));
        let other = run(&Case { seed: 12, ..case }).unwrap();
        assert_ne!(one.digest, other.digest);
    }
}

#[test]
fn each_seed_draws_some_of_the_faults() {
    let case = Case::new(0, Load::Registers, Protocol::DRTM_R, &faults(&FAULTS));
    let drawn: Vec<Vec<String>> = (0..200).map(|seed| case.of(seed).faults).collect();
    assert!(drawn.iter().all(|some| !some.is_empty()));
    for fault in FAULTS {
        let with = drawn.iter().filter(|some| some.iter().any(|one| one == fault)).count();
        assert!((60..140).contains(&with), "{fault} in {with} of 200 runs");
    }
    let crash = Case { faults: faults(&["crash"]), ..case };
    assert!((0..200).all(|seed| crash.of(seed).faults == crash.faults), "one that is alone is always there");
    assert!(Case { faults: Vec::new(), ..crash }.command().contains("--faults none"));
}

/// Returns the smallest case in which a protocol makes progress. Scans under locks keep writers
/// out, so fewer clients scan then.
fn case(load: Load, protocol: Protocol, names: &[&str]) -> Case {
    let case = Case::new(0, load, protocol, &faults(names));
    match load {
        Load::Ranges if protocol.spec().locks_reads => Case { clients: 3, coroutines: 1, ..case },
        _ => case,
    }
}

#[test]
fn protocols_survive_what_they_are_to_survive() {
    survive(0);
}

/// Runs the other half of the pairs of a protocol and a workload.
#[test]
#[ignore = "long: a part of .ci/long"]
fn protocols_survive_what_else_they_are_to_survive() {
    survive(1);
}

/// Runs every second pair of a protocol and a workload, from the `first` one on.
fn survive(first: usize) {
    for (row, protocol) in Protocol::ALL.into_iter().filter(|protocol| protocol.is_serializable()).enumerate() {
        let loads = Load::ALL.into_iter().filter(|load| load.runs_under(protocol));
        for load in loads.skip((row + first) % 2).step_by(2) {
            let case = Case { transactions: 250, ..case(load, protocol, &["pause", "delay", "partition"]) };
            let seeds = if Protocol::DISTINCT.contains(&protocol) { 2 } else { 1 };
            let summary = campaign(&case, 0..seeds, 2, &|| {});
            assert_eq!(summary.violating, 0, "{protocol:?} {load:?}: {:?}", summary.violations);
            assert!(summary.total.committed >= 250 * seeds);
            // Of operations on RACE hash tables, only few take a lock.
            let locks = load != Load::Race;
            for fault in ["pause", "delay", "partition"].into_iter().filter(|_| locks) {
                assert!(summary.total.faults[fault].1 >= 1, "{fault} must have met a transaction that held locks");
            }
        }
    }
}

/// An epoch ends a controller that repairs a dead client. If it did not come back, no controller
/// would declare the next node lost, and this run would not end.
#[test]
fn a_controller_that_an_epoch_ends_comes_back() {
    let names = ["fail", "isolate", "crash", "pause", "delay", "partition", "drain"];
    let case = Case { transactions: 300, ..case(Load::Registers, Protocol::FORD_LOCAL, &names) };
    let summary = campaign(&case, 79..80, 1, &|| {});
    assert_eq!(summary.violating, 0, "{:?}", summary.violations);
    assert!(summary.total.faults["fail"].0 >= 2, "{:?}", summary.total.faults);
}

#[test]
fn a_client_that_dies_blocks_only_what_it_held() {
    let case = Case::new(0, Load::Registers, Protocol::DRTM_R, &faults(&["crash"]));
    let summary = campaign(&case, 0..3, 2, &|| {});
    assert!(summary.is_clean(), "{summary:?}");
}

#[test]
fn calls_are_served_once_though_they_are_lost_and_doubled() {
    let case = Case::new(0, Load::Registers, Protocol::FASST, &faults(&["lose", "duplicate"]));
    let summary = campaign(&case, 0..4, 2, &|| {});
    assert!(summary.is_clean(), "{summary:?}");
}

/// Clients that die, pause and have stale memory split and merge leaves of all designs all the
/// time.
#[test]
fn ordered_tables_stay_ordered() {
    for protocol in [Protocol::DRTM_R, Protocol::FARM, Protocol::FORD, Protocol::FORD_LOCAL, Protocol::NO_WAIT] {
        let case = Case { transactions: 400, ..case(Load::Ranges, protocol, &["crash", "pause", "delay"]) };
        let summary = campaign(&case, 0..2, 2, &|| {});
        assert!(summary.violations.is_empty(), "{protocol:?}: {summary:?}");
        assert!(summary.total.recovered > 0, "{protocol:?}: {summary:?}");
    }
}

#[test]
fn rings_fill_when_a_node_does_not_apply_them() {
    let case = Case::new(0, Load::Registers, Protocol::DRTM_R, &faults(&["stall"]));
    let summary = campaign(&case, 0..4, 2, &|| {});
    assert!(summary.is_clean(), "{summary:?}");
}

/// A few seeds show most published errors. Two errors are left out because they need a hundred
/// seeds, and one because the simulator cannot show it yet (`docs/simulator.md`). `remora-lab
/// campaign --mutants` shows all results.
#[test]
#[ignore = "long: a part of .ci/long"]
fn published_errors_are_found_within_few_seeds() {
    let rare = [Mutant::ValidateReadOnlyVersionOnly, Mutant::CellOfAnyState, Mutant::CpuLocksForNics];
    let concerns = |mutant: &Mutant| mutant.concerns(Protocol::DRTM_R) && !rare.contains(mutant);
    let mutants: Vec<Mutant> = Mutant::ALL.into_iter().filter(concerns).collect();
    // If a live node is lost or leaves, clients may end before their log entries are looked for.
    let all: Vec<&str> = FAULTS.into_iter().filter(|fault| !["isolate", "drain"].contains(fault)).collect();
    let case = Case::new(0, Load::Registers, Protocol::DRTM_R, &faults(&all));
    let score = mutation_score(&mutants, &case, 0..40, 2, &|_, _| {});
    let survivors: Vec<Mutant> = score.iter().filter(|one| one.seed.is_none()).map(|one| one.mutant).collect();
    assert!(survivors.is_empty(), "{survivors:?} survive");
    for caught in score {
        // Commits before the log also show as lost updates, whichever a seed has first.
        let unlogged = caught.mutant == Mutant::LogAtBackupsOnly;
        assert!(!unlogged || caught.what.contains("has no log entry"), "{:?}: {}", caught.mutant, caught.what);
    }
}

/// Coroutines of a client commit together on few accounts, while clients die. Each error that could
/// be made there is found.
#[test]
fn coroutines_commit_together() {
    let case = |protocol| {
        let case = case(Load::SmallBank, protocol, &["crash", "pause", "cancel"]);
        Case { keys: 4, clients: 3, coroutines: 8, transactions: 300, ..case }
    };
    for protocol in [Protocol::DRTM_R, Protocol::FASST, Protocol::FORD] {
        let summary = campaign(&case(protocol), 0..2, 2, &|| {});
        assert!(summary.violations.is_empty(), "{protocol:?}: {summary:?}");
        assert!(summary.total.joined > 100, "{protocol:?}: {summary:?}");
    }
    let errors = [Mutant::OneVersionForAll, Mutant::MembersReportEarly];
    let score = mutation_score(&errors, &case(Protocol::DRTM_R), 0..20, 2, &|_, _| {});
    let survivors: Vec<Mutant> = score.iter().filter(|one| one.seed.is_none()).map(|one| one.mutant).collect();
    assert!(survivors.is_empty(), "{survivors:?} survive");
}

/// Clients are threads of one process, and share a version cache, which is large or too small.
#[test]
#[ignore = "long: a part of .ci/long"]
fn errors_of_localized_validation_are_found_within_few_seeds() {
    let all = [
        Mutant::PublishBehindValidation,
        Mutant::PublishBehindCommit,
        Mutant::ForgetEvicted,
        Mutant::RefuseOtherVersions,
    ];
    // The cluster's cache is never too small in a campaign.
    for (protocol, mutants) in [(Protocol::FORD_LOCAL, &all[..]), (Protocol::FORD_GLOBAL, &all[..2])] {
        let case = Case::new(0, Load::Registers, protocol, &faults(&FAULTS));
        let score = mutation_score(mutants, &case, 0..40, 2, &|_, _| {});
        let survivors: Vec<Mutant> = score.iter().filter(|one| one.seed.is_none()).map(|one| one.mutant).collect();
        assert!(survivors.is_empty(), "{protocol:?}: {survivors:?} survive");
    }
}

/// A table has grown and is gone, and a client that has died holds back the time of snapshots. No
/// snapshot has a time at which the rows had not moved yet.
#[test]
fn a_snapshot_is_not_before_rows_have_moved() {
    let case = Case { transactions: 150, ..case(Load::Registers, Protocol::VTS, &["grow", "crash", "pause"]) };
    let score = mutation_score(&[Mutant::SnapshotBeforeMove], &case, 0..200, 1, &|_, _| {});
    assert!(score[0].seed.is_some(), "{score:?}");
}

/// While a table grows, no row is hidden and none appears twice, because of what is validated and
/// looked at. Of few keys, many are locked when their rows are to move.
#[test]
#[ignore = "long: a part of .ci/long"]
fn errors_of_growing_tables_are_found_within_few_seeds() {
    let all = [Mutant::GrowPastLocks, Mutant::AbsentWithoutValidation];
    let faults = faults(&["grow", "pause", "delay"]);
    let case = Case { keys: 8, transactions: 300, ..Case::new(0, Load::Registers, Protocol::DRTM_R, &faults) };
    let score = mutation_score(&all, &case, 0..200, 2, &|_, _| {});
    let survivors: Vec<Mutant> = score.iter().filter(|one| one.seed.is_none()).map(|one| one.mutant).collect();
    assert!(survivors.is_empty(), "{survivors:?} survive");
}

/// Any node is lost, even the one that has the cluster's version cache, and starts again without
/// the cache. Every client continues in the next epoch.
#[test]
fn version_caches_outlive_memory_nodes() {
    for protocol in [Protocol::FORD_LOCAL, Protocol::FORD_GLOBAL] {
        for load in [Load::Registers, Load::SmallBank] {
            let case = Case::new(0, load, protocol, &faults(&["fail", "drain", "pause", "crash"]));
            let summary = campaign(&case, 0..4, 2, &|| {});
            assert!(summary.violations.is_empty(), "{protocol:?}: {summary:?}");
        }
    }
}

#[test]
fn a_failing_run_is_shrunk() {
    let case = Case::new(0, Load::Registers, Protocol::DRTM_R, &faults(&["delay"]));
    let mutant = Mutant::LockWithoutValidation;
    let caught = mutation_score(&[mutant], &case, 0..40, 1, &|_, _| {}).remove(0);
    let (load, seed) = caught.seed.expect("a seed that shows it");
    let found = Case { load, ..case.of(seed) };
    mutant::set(Some(mutant));
    let smaller = shrink(&found);
    assert!(run(&smaller).is_err() && smaller != found, "{}", smaller.command());
    mutant::set(None);
}

/// A client dies between unlinking a record that it deletes and freeing the record's lock. Another
/// client inserts the key again, with the same pair of the index, before the dead client is
/// recovered.
#[test]
#[ignore = "long: a part of .ci/long"]
fn a_deleted_record_is_unlinked_once() {
    let faults = faults(&["crash", "delay", "stall", "clock-step", "lose"]);
    let shows = |seed| {
        let case = Case::new(seed, Load::Tatp, Protocol::DRTM_R, &faults);
        mutant::set(Some(Mutant::UnlinkTwice));
        let with = run(&case);
        mutant::set(None);
        with.is_err() && run(&case).is_ok()
    };
    // About one seed in a hundred shows it.
    assert!((0..300).any(shows), "no seed shows it any more");
}

/// A transaction had read a key, and another one deleted it. The first transaction prepared a slot
/// for the key, and its fetch was dropped before the answer came. It asked again and aborted, and
/// left the slot prepared.
#[test]
fn a_slot_for_a_key_that_was_read_is_taken_back() {
    let case = Case { transactions: 300, ..Case::new(117, Load::Ranges, Protocol::FARM, &faults(&["cancel"])) };
    run(&case).unwrap_or_else(|what| panic!("{what}\n{}", case.command()));
}

/// Operations on a key of a RACE hash table are linearizable, whatever becomes of clients while
/// subtables are split.
#[test]
fn operations_on_race_hash_tables_are_linearizable() {
    let names = ["crash", "pause", "delay", "partition", "cancel"];
    let case = Case { transactions: 300, ..case(Load::Race, Protocol::RTX, &names) };
    let summary = campaign(&case, 0..20, 2, &|| {});
    assert!(summary.is_clean(), "{summary:?}");
    assert!(summary.total.probes["installed"] > 20, "subtables are split: {:?}", summary.total.probes);
    let (one, two) = (run(&case).unwrap(), run(&case).unwrap());
    assert_eq!((one.digest, one.events, one.committed), (two.digest, two.events, two.committed));
}

/// A client paused in the middle of a split, and lost its lock. The array was split by another
/// client. Then the first client marked a tombstone that a late delete had written to the dead
/// array. So the delete took itself for done, and used the block of the value again, which was
/// still live.
#[test]
fn a_split_that_has_lost_its_lock_marks_nothing() {
    // About one seed in a thousand shows it.
    let case = Case { transactions: 300, ..case(Load::Race, Protocol::RTX, &["pause"]) };
    let caught = mutation_score(&[Mutant::RaceMarkUnlocked], &case, 634..635, 1, &|_, _| {});
    assert!(caught[0].seed.is_some(), "look for another seed");
}

/// No litmus program finds these errors of RACE hash tables.
#[test]
fn errors_of_race_hash_tables_are_found_within_few_seeds() {
    let mutants = [Mutant::RaceFencedUnknown, Mutant::RaceMarkPending];
    let case = case(Load::Race, Protocol::RTX, &["crash", "pause", "delay", "partition", "cancel"]);
    let case = Case { transactions: 500, ..case };
    for caught in mutation_score(&mutants, &case, 0..60, 2, &|_, _| {}) {
        assert!(caught.seed.is_some(), "{:?} survives", caught.mutant);
    }
}
