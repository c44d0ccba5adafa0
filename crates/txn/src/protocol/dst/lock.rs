//! The locks of the write set. The calls that take them also bring the times above which the
//! commit's has to be.

use remora_fabric::probes;

use super::{Dst, vector};
use crate::error::Stop;
use crate::protocol::refused::Refused;
use crate::rpc::{Code, LOCK_REPLY_WORDS, READERS_TOLD};
use crate::sets::{Lock, Sets, shape};
use crate::state::State;
use crate::tx::Tx;

/// Takes the lock of every record to be written, and sees in the same round trip whether the record
/// is still as it was read. Notes each record's ts, or under vector timestamps its readers
/// (invariant 1).
pub(super) async fn lock(tx: &mut Tx<'_>, dst: Dst) -> Result<(), Stop> {
    let reply_words = LOCK_REPLY_WORDS + if dst == Dst::Vector { READERS_TOLD } else { 0 };
    let mut more = Vec::new();
    let me = tx.id.lock();
    tx.locking = true;
    tx.lane.probe(probes::LOCKS);
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let first = next;
        let mut round = tx.lane.round();
        for item in &mut tx.state.sets.items[first..] {
            if item.is_written() {
                if !round.has_room(1, (3 + 1 + reply_words) * 8) {
                    break;
                }
                let request = [Code::Lock.word(0), item.location.pointer.to_bits(), me.to_bits()];
                item.call = round.call(item.address.node, &request, None, reply_words);
                item.lock = Lock::Maybe;
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        let mut refused = Refused::default();
        let State { sets: Sets { tables, items, .. }, behind, .. } = &mut *tx.state;
        for (index, item) in (first..).zip(&mut items[first..next]).filter(|(_, item)| item.lock == Lock::Maybe) {
            let reply = done.reply(item.call);
            let (Some(header), Some(&ts)) = (shape(tables, item).validated(reply), reply.get(LOCK_REPLY_WORDS - 1))
            else {
                refused.is_gone();
                continue;
            };
            if !header.lock.is_free() {
                refused.is_locked(index, item, header.lock);
                continue;
            }
            item.lock = Lock::Held;
            if dst == Dst::Vector {
                if vector::readers_of_lock(behind, reply) {
                    more.push((index, ts as usize + 1));
                }
            } else if !mutant!(StampBeforeLock) {
                item.time = item.time.max(ts);
            }
            if !header.still_shows(item.version) && !mutant!(LockWithoutValidation) {
                refused.has_changed(index, item, header.version.is_rolled_back());
            }
        }
        drop(done);
        refused.outcome(tx)?;
    }
    if more.is_empty() { Ok(()) } else { vector::ask_for_readers(tx, &more).await }
}
