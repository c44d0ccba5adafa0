//! The locks of the write set. The calls that take them also bring the times above which the
//! commit's has to be.

use remora_fabric::probes;

use crate::error::Stop;
use crate::protocol::refused::Refused;
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
        let mut refused = Refused::default();
        let Sets { tables, items, .. } = &mut tx.state.sets;
        for (index, item) in (first..).zip(&mut items[first..next]).filter(|(_, item)| item.lock == Lock::Maybe) {
            let reply = done.reply(item.call);
            let (Some(header), Some(&ts)) = (shape(tables, item).validated(reply), reply.get(2)) else {
                refused.is_gone();
                continue;
            };
            if !header.lock.is_free() {
                refused.is_locked(index, item, header.lock);
                continue;
            }
            item.lock = Lock::Held;
            if !mutant!(StampBeforeLock) {
                item.time = item.time.max(ts);
            }
            if !header.still_shows(item.version) && !mutant!(LockWithoutValidation) {
                refused.has_changed(index, item, header.version.is_rolled_back());
            }
        }
        drop(done);
        refused.outcome(tx)?;
    }
    Ok(())
}
