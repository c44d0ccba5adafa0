//! Judges the words of a record that was read: whether they can be used, and whether another
//! transaction may be changing them.

use remora_record::{FetchedRecord, LockWord, StableRecord, Unstable};

use crate::error::Abort;

/// The result of a look at the words of a record.
pub(super) enum Outcome {
    /// The step that asked for these words is done.
    Done,
    /// The words cannot be used now.
    Unstable(Abort),
}

pub(super) fn unstable(why: Unstable) -> Outcome {
    Outcome::Unstable(match why {
        Unstable::Locked(lock) | Unstable::Invisible(lock) => Abort::Locked(lock),
        Unstable::Torn => Abort::Torn,
    })
}

/// Returns whether a lock does not make its record uncertain. Such a lock is free, or held by the
/// lane's last transaction, which has committed, and whose data is on every replica. In both cases
/// no other transaction can be changing the record.
#[inline]
pub(super) fn is_nobodys(lock: LockWord, released: LockWord) -> bool {
    lock.is_free() || lock == released
}

#[inline]
pub(super) fn check(fetched: FetchedRecord<'_>) -> Result<StableRecord<'_>, Unstable> {
    if mutant!(AcceptTorn) { fetched.unchecked().ok_or(Unstable::Torn) } else { fetched.check_in_place() }
}
