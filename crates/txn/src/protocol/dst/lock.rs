//! The locks of the write set. The calls that take them also bring the times above which the
//! commit's has to be.

use remora_fabric::probes;

use crate::error::{Abort, Stop};
use crate::rpc::Code;
use crate::sets::{Lock, Sets, shape};
use crate::tx::Tx;

/// Words of a reply to LOCK: the lock word before, the version, and ts.
const REPLY_WORDS: usize = 3;

/// Takes the lock of every record to be written, and sees in the same round trip whether the record
/// is still as it was read. Notes each record's ts (invariant 1).
pub(super) async fn lock(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let me = tx.id.lock();
    tx.locking = true;
    tx.lane.probe(probes::LOCKS);
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let first = next;
        let mut round = tx.lane.round();
        for item in &mut tx.state.sets.items[first..] {
            if item.is_written() {
                if !round.has_room(1, (3 + 1 + REPLY_WORDS) * 8) {
                    break;
                }
                let request = [Code::Lock.word(0), item.location.pointer.to_bits(), me.to_bits()];
                item.call = round.call(item.address.node, &request, None, REPLY_WORDS);
                item.lock = Lock::Maybe;
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        let (mut conflict, mut met, mut changed) = (None, None, None);
        let Sets { tables, items, .. } = &mut tx.state.sets;
        for (index, item) in (first..).zip(&mut items[first..next]).filter(|(_, item)| item.lock == Lock::Maybe) {
            let reply = done.reply(item.call);
            let (Some(header), Some(&ts)) = (shape(tables, item).validated(reply), reply.get(2)) else {
                // It was refused: there is no such record, and no lock was taken.
                conflict = conflict.or(Some(Abort::Changed));
                continue;
            };
            if !header.lock.is_free() {
                item.lock = Lock::No;
                conflict = Some(Abort::Locked(header.lock));
                met = Some((index, header.lock));
                continue;
            }
            item.lock = Lock::Held;
            if !mutant!(StampBeforeLock) {
                item.time = item.time.max(ts);
            }
            if !header.still_shows(item.version) && !mutant!(LockWithoutValidation) {
                conflict = conflict.or(Some(Abort::Changed));
                changed = changed.or(item.brought.then_some(index));
                // The slot may be prepared for another transaction's insert, which may be given up
                // while this transaction has the slot locked.
                item.prepared |= header.version.is_rolled_back() && !mutant!(LeavePrepared);
                tx.preparing |= item.prepared;
            }
        }
        drop(done);
        if let Some((index, holder)) = met {
            tx.met(index, holder);
        }
        if let Some(abort) = conflict {
            if let (Abort::Changed, Some(brought)) = (abort, changed) {
                tx.state.sets.note(brought, abort.into());
            }
            return Err(abort.into());
        }
    }
    Ok(())
}
