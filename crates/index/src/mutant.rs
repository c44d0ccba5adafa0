//! The published errors that can be put back into this crate. `remora_txn::mutant` has the list,
//! and turns them on and off.

use std::cell::Cell;

thread_local! {
    static INSERT_BESIDE_LOCKED: Cell<bool> = const { Cell::new(false) };
}

/// Turns an error on or off for the calling thread: an insert passes over a slot of its key that is
/// locked.
pub fn insert_beside_locked(on: bool) {
    INSERT_BESIDE_LOCKED.set(on);
}

pub(crate) fn is_insert_beside_locked() -> bool {
    INSERT_BESIDE_LOCKED.get()
}
