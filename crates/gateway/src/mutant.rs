//! Mutants: errors that a gateway could have, which a campaign puts back one at a time. A test must
//! find each of them, or the tests prove nothing.
//!
//! A mutant is on for the calling thread only. The module is compiled with the feature `mutants`,
//! which only tests and `remora-lab` turn on.

use std::cell::Cell;

/// An error that a gateway could have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Commands run again after a transaction whose outcome is unknown, which may have committed.
    RepeatUnknown,
    /// A batch is answered before its commit: with what its first attempt has computed, whatever
    /// becomes of that attempt.
    AnswerBeforeCommit,
    /// Each command of a pipeline runs as a transaction of its own.
    SplitPipeline,
    /// A key that has expired is answered as absent, and is not deleted.
    NilBeforeDeletion,
    /// `WATCH` compares what a key holds, and not who has written it.
    WatchByValue,
}

impl Mutant {
    /// All mutants.
    pub const ALL: [Mutant; 5] = [
        Mutant::RepeatUnknown,
        Mutant::AnswerBeforeCommit,
        Mutant::SplitPipeline,
        Mutant::NilBeforeDeletion,
        Mutant::WatchByValue,
    ];
}

thread_local! {
    static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Turns one error on for this thread, or all of them off (`None`).
pub fn set(mutant: Option<Mutant>) {
    ON.set(mutant);
}

/// Returns whether this error is on for this thread.
pub fn is_on(mutant: Mutant) -> bool {
    ON.get() == Some(mutant)
}
