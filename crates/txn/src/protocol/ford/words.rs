//! What the words of a record say that was read: whether they can be used, and whether another
//! transaction may be changing them.

use remora_record::{FetchedRecord, LockWord, StableRecord, Unstable};

use crate::error::Abort;

/// What a record's words turned out to be.
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

/// Whether a lock says nothing of what its record holds: it is free, or held by the lane's last
/// transaction, which has committed, and whose data is on every replica. No other transaction can
/// have locked the record since.
#[inline]
pub(super) fn is_nobodys(lock: LockWord, released: LockWord) -> bool {
    lock.is_free() || lock == released
}

#[inline]
pub(super) fn check(fetched: FetchedRecord<'_>) -> Result<StableRecord<'_>, Unstable> {
    if mutant!(AcceptTorn) { fetched.unchecked().ok_or(Unstable::Torn) } else { fetched.check_in_place() }
}
