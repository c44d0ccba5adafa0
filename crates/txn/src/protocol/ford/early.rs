//! Commits whose time is fixed early: before their data lands, and before the client validates what
//! they have only read (`landing.rs`, invariants 9 and 10).
//!
//! A transaction that writes locks the records that it only reads, if they are few
//! ([`Ford::guards_max`]). If they are more, it would exclude too many other transactions. Then its
//! time is fixed early. Where one clock counts for all nodes, so is that of a transaction that
//! writes all records it has named first, because this saves WRITEs: the data lands with its time.
//!
//! ```text
//! execute    CAS lock; READ                                        primaries of records to write
//!            CAS lock                                              their backups
//!            FETCH_ADD clock + 1 -> draw                           all of these nodes
//!            READ                                                  records only read
//!            the time is the largest draw, and above the times of all that it has read
//! validate   CAS clock, up to the time; READ lock, version         primaries of records only read
//! commit     WRITE undo entry; WRITE record, its time, invisible   all replicas
//! release    WRITE version, visible; WRITE undo entry free         in the background
//!            CAS unlock                                            all replicas
//! ```
//!
//! Where one clock counts for all nodes, snapshots are read at primaries. So no backup is locked,
//! and there is one draw.

use remora_fabric::{Completed, Round};
use remora_node::Replica;
use remora_record::{LockWord, Swap, TransactionId};

use super::Ford;
use super::commit::UndoEntry;
use crate::error::Stop;
use crate::landing::BackupLock;
use crate::protocol::clocks;
use crate::sets::{Intent, Item, Lock};
use crate::swap::swap_lock;
use crate::tx::Tx;

/// Decides, before a transaction takes its first lock, whether its time is fixed early.
pub(super) fn decide(tx: &mut Tx<'_>, ford: Ford) {
    let is_open = ford.timed && !tx.is_early && !tx.locking && tx.attempt.snapshot.is_none() && !tx.is_id_told();
    // A reader of a snapshot must not see a record as it was before its lock was taken, and the
    // lock word as it is afterwards.
    if !is_open || !tx.lane.capabilities().atomic_line || mutant!(GuardByValidation) {
        return;
    }
    let is_changed = |item: &Item| item.intent != Intent::Read || item.is_written();
    let (mut only_read, mut changed) = (0, 0);
    for item in tx.state.sets.items.iter().filter(|item| !item.structural) {
        *(if is_changed(item) { &mut changed } else { &mut only_read }) += 1;
    }
    let is_worth_it = only_read > usize::from(ford.guards_max) || only_read == 0 && tx.state.clocks.is_one();
    if is_worth_it && changed > 0 {
        tx.id = tx.id.fixing_time_early();
        tx.is_early = true;
        tx.state.clocks.begin_draws();
        tx.state.backup_locks.clear();
    }
}

/// Returns whether a reader of a snapshot has to wait, because this lock's holder may have fixed
/// its time, and its data has not landed.
pub(super) fn is_pending(lock: LockWord) -> bool {
    lock.holder().is_some_and(TransactionId::fixes_time_early) && !mutant!(ReadBehindEarlyLock)
}

/// Returns at how many of a record's replicas a transaction locks it.
pub(super) fn locked_replicas(tx: &Tx<'_>, replicas: &[Replica]) -> usize {
    if tx.locks_backups() { replicas.len() } else { 1 }
}

/// Adds the draws behind the locks that a round asks for, as far as it has room.
pub(super) fn draw(tx: &mut Tx<'_>, round: &mut Round<'_>) {
    if tx.is_early {
        tx.state.clocks.draw_behind_locks(round);
    }
}

/// Makes the draws for which the rounds that asked for the locks had no room.
pub(super) async fn draw_rest(tx: &mut Tx<'_>) -> Result<(), Stop> {
    while tx.is_early && tx.state.clocks.owed_draws() > 0 {
        let mut round = tx.lane.round();
        draw(tx, &mut round);
        tx.unheard = true;
        let done = tx.lane.execute(round).await?;
        tx.unheard = false;
        tx.state.clocks.note_draws(&done);
    }
    Ok(())
}

/// Waits until the locks of the lane's last transaction can be taken, if this one wants any of
/// them: it takes no lock over.
pub(super) async fn await_unlocks(tx: &Tx<'_>) {
    let released = &tx.state.released;
    let sets = &tx.state.sets;
    let is_held_back = |item: &Item| {
        let chain = || sets.table(item.table).bucket_address(item.home);
        item.lock == Lock::No && released.holds_back(tx.lane, item.address)
            || item.intent == Intent::Insert && released.holds_back(tx.lane, chain())
    };
    if tx.is_early && released.is_held_back(tx.lane) && sets.items.iter().any(is_held_back) {
        released.until_freed(tx.lane).await;
    }
}

/// Adds the CASs that lock an item's record at its backups, and the draws behind all its locks.
pub(super) fn lock_backups(tx: &mut Tx<'_>, round: &mut Round<'_>, index: usize) {
    let draws = !mutant!(DrawBeforeLocks);
    if draws {
        tx.state.clocks.wants_draw(tx.state.sets.items[index].address.node);
    }
    if !tx.locks_backups() {
        return;
    }
    let item = tx.state.sets.items[index];
    for at in tx.state.sets.lock_addresses(&item, true).skip(1) {
        let swap = swap_lock(round, at, Swap::lock(tx.id.lock()));
        tx.state.backup_locks.push(BackupLock { item: index, swap });
        if draws {
            tx.state.clocks.wants_draw(at.node);
        }
    }
}

/// Sees which locks at backups have been taken, and notes the draws behind them. If another
/// transaction has one, gives back the other locks of that record. Returns the item, and the lock
/// that another transaction has.
pub(super) fn locked(tx: &mut Tx<'_>, done: &Completed<'_>) -> Option<(usize, LockWord)> {
    tx.state.clocks.note_draws(done);
    if tx.state.backup_locks.is_empty() {
        return None;
    }
    let (me, mut conflict) = (tx.id, None);
    let asked = std::mem::take(&mut tx.state.backup_locks);
    for BackupLock { item, swap } in &asked {
        let previous = LockWord::from_bits(done.previous(*swap));
        if !done.swapped(*swap) && !previous.is_held_by(me) {
            tx.state.sets.items[*item].lock = Lock::No;
            conflict = Some((*item, previous));
        }
    }
    let mut round = tx.lane.round();
    for (number, BackupLock { item, .. }) in asked.iter().enumerate() {
        let is_first = number == 0 || asked[number - 1].item != *item;
        let item = tx.state.sets.items[*item];
        // A stale location can lead two items to one record. Then one of them may have the lock.
        let has_it = |other: &Item| other.lock == Lock::Held && other.address == item.address;
        if is_first && item.lock == Lock::No && !tx.state.sets.items.iter().any(has_it) {
            let places = asked.len() + 1;
            if !round.has_room(places, 32 * places) {
                tx.post_release(std::mem::replace(&mut round, tx.lane.round()));
            }
            for at in tx.state.sets.lock_addresses(&item, true) {
                swap_lock(&mut round, at, Swap::unlock(me.lock()));
            }
        }
    }
    if !round.is_empty() {
        tx.post_release(round);
    }
    tx.state.backup_locks = asked;
    tx.state.backup_locks.clear();
    conflict
}

/// Fixes the time of the commit, once the transaction has all its locks.
pub(super) fn fix_time(tx: &mut Tx<'_>, entry: &mut UndoEntry) {
    clocks::fix_time(tx);
    entry.bound = Some(tx.time);
    entry.is_early = true;
}
