//! Every litmus test: ours keeps its invariant in every order, its mutant does not.

use std::collections::BTreeSet;

use remora_lab::litmus::{ALL, Bound, run};

#[test]
fn ours_is_correct_and_every_mutant_is_caught() {
    for litmus in ALL {
        let found = run(litmus, Bound::default());
        let (ours, mutated) = (&found.ours, &found.mutated);
        println!(
            "{}: {:?} bounded {} in {:?}; mutant {:?} in {:?}: {:?}",
            litmus.name, ours.counts, ours.bounded, ours.took, mutated.counts, mutated.took, mutated.violation
        );
        assert!(ours.violation.is_none(), "{}: {:#?}", litmus.name, ours.violation);
        assert!(!ours.bounded, "{} is not explored to the end", litmus.name);
        assert!(ours.counts.interleavings > 1 && ours.counts.complete > 0, "{}: {:?}", litmus.name, ours.counts);
        assert!(mutated.violation.is_some(), "{}: {:?} is not caught", litmus.name, litmus.mutant);
        assert!(found.is_as_it_should_be());
    }
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
    assert_eq!(run(&ALL[0], Bound::default()).entry(), run(&ALL[0], Bound::default()).entry());
}
