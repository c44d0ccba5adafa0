//! Looks up a key in the index again.

use remora_index::Location;
use remora_record::Swap;

use super::words::Outcome;
use crate::error::{Abort, Stop};
use crate::limits::LOOKUP_ATTEMPTS;
use crate::sets::{Fetch, Lock};
use crate::swap::swap_lock;
use crate::tx::Tx;

/// Looks up a key in the index, because the record at the location that the cache gave is another
/// key's, or deleted. If the transaction has locked that record, it releases the lock at once.
#[cold]
pub(super) fn look_up_again(tx: &mut Tx<'_>, index: usize) -> Result<Outcome, Stop> {
    let item = tx.state.sets.items[index];
    if item.lock == Lock::Held {
        let mut round = tx.lane.round();
        for at in tx.state.sets.lock_addresses(&item, tx.locks_backups()) {
            swap_lock(&mut round, at, Swap::unlock(tx.id.lock()));
        }
        tx.post_release(round);
    }
    // A reader of a past time may have found that the key has come since.
    if !tx.attempt.reads_past() {
        tx.state.sets.table(item.table).forget(item.home, item.hash, item.location);
    }
    let item = &mut tx.state.sets.items[index];
    item.lock = Lock::No;
    item.location = Location::default();
    item.fetch = Fetch::Probe(item.home, 0);
    item.chain = 0;
    item.lookups += 1;
    if item.lookups > LOOKUP_ATTEMPTS { Err(Abort::Changed.into()) } else { Ok(Outcome::Done) }
}
