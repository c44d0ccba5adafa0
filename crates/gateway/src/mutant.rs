//! Mutants: errors that a gateway could have, which a campaign puts back one at a time. A test must
//! find each of them, or the tests prove nothing.
//!
//! A mutant is on for the calling thread only. The module is compiled with the feature `mutants`,
//! which only tests and `remora-lab` turn on.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use remora_redis::{Keyspace, Object};

use crate::store::Name;

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
    /// A command is answered, although it has missed pages of a spread collection.
    AnswerShort,
    /// Pages of a collection that no key has any more have no tombstone.
    NoTombstone,
}

impl Mutant {
    /// All mutants.
    pub const ALL: [Mutant; 7] = [
        Mutant::RepeatUnknown,
        Mutant::AnswerBeforeCommit,
        Mutant::SplitPipeline,
        Mutant::NilBeforeDeletion,
        Mutant::WatchByValue,
        Mutant::AnswerShort,
        Mutant::NoTombstone,
    ];
}

thread_local! {
    static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    static VALUES: RefCell<HashMap<Watched, Option<Object>>> = RefCell::default();
}

/// A key that is watched, with the version that `WATCH` has seen.
type Watched = ((u8, Vec<u8>), Option<u64>);

/// Turns one error on for this thread, or all of them off (`None`).
pub fn set(mutant: Option<Mutant>) {
    ON.set(mutant);
    VALUES.take();
}

/// Returns whether this error is on for this thread.
pub fn is_on(mutant: Mutant) -> bool {
    ON.get() == Some(mutant)
}

/// Makes keys that have expired look absent without deleting them, with
/// [`Mutant::NilBeforeDeletion`].
pub(crate) fn hide_expired(keys: &mut Keyspace, now: u64) {
    if !is_on(Mutant::NilBeforeDeletion) {
        return;
    }
    for slot in keys.take() {
        let object = slot.object.filter(|object| !object.has_expired(now));
        keys.load(slot.database, &slot.key, |_, _| object);
    }
}

/// Notes what a watched key holds, with [`Mutant::WatchByValue`].
pub(crate) fn watch_value(keys: &Keyspace, (database, key): Name<'_>, stamp: Option<u64>) {
    if is_on(Mutant::WatchByValue) {
        let object = keys.get_in(database, key).cloned();
        VALUES.with_borrow_mut(|values| values.insert(((database, key.to_vec()), stamp), object));
    }
}

/// Whether a key holds what it held when `WATCH` has seen this version.
pub(crate) fn has_value(keys: &Keyspace, (database, key): Name<'_>, stamp: Option<u64>) -> bool {
    let seen = VALUES.with_borrow(|values| values.get(&((database, key.to_vec()), stamp)).cloned());
    seen.flatten().as_ref() == keys.get_in(database, key)
}
