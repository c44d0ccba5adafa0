//! Runs every litmus test: Remora's protocol keeps its invariant in every order, and the mutant
//! does not.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use remora::protocol::Protocol;
use remora_lab::litmus::{ALL, Bound, Comparison, Litmus, run};

/// The tests that are too large to be explored to the end, each with its runs. The further an
/// exploration goes, the longer a run takes.
const LARGE: [(&str, u64); 5] = [
    ("early-insert", 200_000),
    ("ford-rollback-to-old-version", 200_000),
    ("gts-shared", 50_000),
    ("no-wait-absent-read", 200_000),
    ("race-two-inserts", 50_000),
];

/// The runs of a program in the gate. Within them, most programs are explored to the end, or their
/// mutants are caught.
const SHORT: Bound = Bound { runs: 300 };

#[test]
fn ours_is_correct_and_mutants_are_caught_within_some_runs() {
    explore_all(
        |_| SHORT,
        |litmus, found| {
            let caught = found.mutated.violation.is_some();
            assert!(caught || found.mutated.bounded, "{}: {:?} is not caught", litmus.name, litmus.mutant);
        },
    );
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn ours_is_correct_in_every_order_and_every_mutant_is_caught() {
    let large = |litmus: &Litmus| LARGE.into_iter().find(|(name, _)| *name == litmus.name);
    let bound = |litmus: &Litmus| large(litmus).map_or_else(Bound::default, |(_, runs)| Bound { runs });
    explore_all(bound, |litmus, found| {
        let is_bounded = large(litmus).is_some();
        assert_eq!(found.ours.bounded, is_bounded, "{} is not explored to the end", litmus.name);
        assert!(found.mutated.violation.is_some(), "{}: {:?} is not caught", litmus.name, litmus.mutant);
        assert!(found.is_as_it_should_be());
    });
}

/// Explores all tests, with one thread for each core.
fn explore_all(bound: impl Fn(&Litmus) -> Bound + Sync, check: impl Fn(&Litmus, &Comparison) + Sync) {
    let next = AtomicUsize::new(0);
    let explore_some = || {
        while let Some(litmus) = ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
            check(litmus, &explored(litmus, bound(litmus)));
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(explore_some);
        }
    });
}

fn explored(litmus: &Litmus, bound: Bound) -> Comparison {
    let found = run(litmus, bound);
    let (ours, mutated) = (&found.ours, &found.mutated);
    println!(
        "{}: {:?} bounded {} in {:?}; mutant {:?} in {:?}: {:?}",
        litmus.name, ours.counts, ours.bounded, ours.took, mutated.counts, mutated.took, mutated.violation
    );
    assert!(ours.violation.is_none(), "{}: {:#?}", litmus.name, ours.violation);
    assert!(ours.counts.interleavings > 1 && ours.counts.complete > 0, "{}: {:?}", litmus.name, ours.counts);
    found
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
    assert!(LARGE.iter().all(|(name, _)| names.contains(name)), "a name has changed");
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
