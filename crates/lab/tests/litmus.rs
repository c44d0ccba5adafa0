//! Runs every litmus test: Remora's protocol keeps its invariant in every order, and the mutant
//! does not.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use remora::protocol::Protocol;
use remora_lab::litmus::{ALL, Bound, Litmus, run};

/// The tests that are too large to be explored to the end.
const BOUNDED: [&str; 3] = ["early-insert", "ford-rollback-to-old-version", "no-wait-absent-read"];

/// The tests that take most of the time.
const LONG: [&str; 30] = [
    "snapshot-guard",
    "snapshot-guard-raised",
    "clocks-order",
    "dst-stamp",
    "dst-2pl-release",
    "dst-2pl-whole",
    "dst-2pl-whole-behind-claim",
    "dst-2pl-whole-beside-claim",
    "early-insert",
    "early-raised",
    "redo-late-recoverer",
    "ford-delete-undone",
    "ford-stale-entry",
    "ford-two-victims",
    "ford-local-read-behind-abort",
    "ford-two-in-a-row",
    "ford-lean-look-once",
    "ford-late-recoverer",
    "ford-local-visible-at-once",
    "reused-slot",
    "ford-opposite-primaries",
    "ford-visible-at-once",
    "ford-lean-stale-entry",
    "ford-rollback-to-old-version",
    "ford-lean-recovered-by-write",
    "ford-lazy-unlock",
    "ford-insert-unlocked",
    "ford-foreign-unlock",
    "shared-ids",
    "vts-behind",
];

#[test]
fn ours_is_correct_and_every_mutant_is_caught() {
    explore_chosen(|litmus| !LONG.contains(&litmus.name));
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn ours_is_correct_where_that_takes_long() {
    explore_chosen(|litmus| LONG.contains(&litmus.name));
}

/// Explores the chosen tests, with one thread for each core.
fn explore_chosen(chosen: impl Fn(&Litmus) -> bool + Sync) {
    let next = AtomicUsize::new(0);
    let explore_some = || {
        while let Some(litmus) = ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            if chosen(litmus) {
                explored(litmus);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(explore_some);
        }
    });
}

fn explored(litmus: &Litmus) {
    let found = run(litmus, Bound::default());
    let (ours, mutated) = (&found.ours, &found.mutated);
    println!(
        "{}: {:?} bounded {} in {:?}; mutant {:?} in {:?}: {:?}",
        litmus.name, ours.counts, ours.bounded, ours.took, mutated.counts, mutated.took, mutated.violation
    );
    assert!(ours.violation.is_none(), "{}: {:#?}", litmus.name, ours.violation);
    assert_eq!(ours.bounded, BOUNDED.contains(&litmus.name), "{} is not explored to the end", litmus.name);
    assert!(ours.counts.interleavings > 1 && ours.counts.complete > 0, "{}: {:?}", litmus.name, ours.counts);
    assert!(mutated.violation.is_some(), "{}: {:?} is not caught", litmus.name, litmus.mutant);
    assert!(found.is_as_it_should_be());
}

#[test]
fn a_bound_is_said() {
    let found = run(&ALL[0], Bound { runs: 3 });
    assert!(found.ours.bounded && found.entry().bounded);
    assert_eq!(found.ours.counts.runs, 3);
}

#[test]
fn names_are_unique_and_an_exploration_repeats() {
    let names: BTreeSet<_> = ALL.iter().map(|litmus| litmus.name).collect();
    assert_eq!(names.len(), ALL.len());
    assert!(BOUNDED.iter().chain(&LONG).all(|name| names.contains(name)), "a name has changed");
    assert_eq!(run(&ALL[0], Bound::default()).entry(), run(&ALL[0], Bound::default()).entry());
}

/// The tables of `docs/litmus.md` name every test, and no test that does not exist.
#[test]
fn the_table_of_litmus_tests_is_complete() {
    let book = include_str!("../../../docs/litmus.md");
    let code = book.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('`').skip(1).step_by(2));
    let in_names = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = |word: &&str| word.contains('-') && word.chars().all(in_names) && Protocol::named(word).is_none();
    let table: BTreeSet<_> = code.filter(is_name).collect();
    let names: BTreeSet<_> = ALL.iter().map(|litmus| litmus.name).collect();
    assert_eq!(table, names);
    for (letter, last) in [('R', 27), ('T', 20), ('L', 16)] {
        for number in 1..=last {
            assert!(book.contains(&format!("\n| {letter}{number} | ")), "{letter}{number} has no row");
        }
    }
}
