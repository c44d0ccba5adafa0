//! Records that were read under a shared lock and then written: their locks become exclusive.

use crate::error::{Abort, Stop};
use crate::limits::READ_ATTEMPTS;
use crate::sets::Lock;
use crate::swap::swap_lock;
use crate::tx::Tx;
use remora_record::LockWord;

/// Makes the shared lock of every record that is written exclusive. Aborts if another transaction
/// shares one of them.
pub(super) async fn lock_written(tx: &mut Tx<'_>) -> Result<(), Stop> {
    for _ in 0..READ_ATTEMPTS {
        if tx.state.sets.items.iter().all(|item| !item.is_written() || item.lock == Lock::Held) {
            return Ok(());
        }
        upgrade(tx).await?;
    }
    Err(Abort::Changed.into())
}

/// Asks once for every exclusive lock that is missing.
async fn upgrade(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let me = tx.id.lock();
    let mut round = tx.lane.round();
    let state = &mut *tx.state;
    let mut conflict = None;
    for (index, item) in state.sets.items.iter_mut().enumerate() {
        if !item.is_written() || item.lock == Lock::Held || !round.has_room(1, 2 * 8) {
            continue;
        }
        debug_assert!(
            item.lock == Lock::Shared || mutant!(UnlockReadsEarly),
            "no_wait 1: a record is read under a lock, which the transaction keeps"
        );
        let Some(swap) = state.shared.upgrade(item.address, me) else {
            conflict = Some((index, state.shared.word(item.address)));
            break;
        };
        item.swap = swap_lock(&mut round, item.address, swap);
        item.asks = Some(swap);
    }
    if let Some((index, word)) = conflict {
        state.sets.items.iter_mut().for_each(|item| item.asks = None);
        tx.met(index, word);
        return Err(Abort::Locked(word).into());
    }
    for item in state.sets.items.iter_mut().filter(|item| item.asks.is_some()) {
        item.lock = Lock::Upgrading;
    }
    let done = tx.lane.execute(round).await?;
    for item in tx.state.sets.items.iter_mut().filter(|item| item.lock == Lock::Upgrading) {
        item.asks = None;
        if done.swapped(item.swap) {
            item.lock = Lock::Held;
            tx.state.shared.upgraded(item.address);
        } else {
            // Other holders have come or gone, but this client's bit is still set.
            item.lock = Lock::Shared;
            tx.state.shared.set(item.address, LockWord::from_bits(done.previous(item.swap)));
        }
    }
    Ok(())
}
