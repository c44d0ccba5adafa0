//! The execution of optimistic concurrency control: READs or calls bring the records that a
//! transaction has named.

use remora_fabric::{Completed, Round, WORD_BYTES};
use remora_index::cluster_hash::BUCKET_BYTES;

use crate::error::{Abort, Stop};
use crate::protocol::clocks::{SnapshotFetch, claim, settle_snapshot};
use crate::protocol::lookup::{Examined, ask_host, bring, hear};
use crate::sets::{Fetch, Intent, Sets, registered};
use crate::tx::Tx;

/// Brings every record that was named and has not been fetched yet.
///
/// The caller may drop the future at any time. The next call then asks again for every record whose
/// answer was not heard.
pub(in crate::protocol) fn execute(tx: &mut Tx<'_>) -> impl Future<Output = Result<(), Stop>> {
    bring(tx, ask, arrived)
}

/// Brings every record that was named and has not been fetched yet, in the state of a snapshot: one
/// round trip claims the clocks of the primaries and reads the records (`landing.rs`). A record
/// that is locked may be about to get a time that is not above the claim. So it is read again until
/// it is unlocked.
pub(super) async fn execute_snapshot(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let mut fetch = SnapshotFetch::begin(tx);
    while tx.state.sets.fetched < tx.state.sets.items.len() {
        let mut round = tx.lane.round();
        ask(tx, &mut round);
        let done = tx.lane.execute(round).await?;
        if !fetch.claimed(tx, &done)? {
            continue;
        }
        let unstable = hear(tx, &done, arrived)?;
        drop(done);
        tx.skip_what_is_here();
        fetch.pause(tx, unstable).await?;
    }
    settle_snapshot(tx)
}

/// Takes the answer to what an item has asked for.
#[inline]
fn arrived(tx: &mut Tx<'_>, index: usize, done: &Completed<'_>) -> Result<Examined, Stop> {
    let item = tx.state.sets.items[index];
    match item.fetch {
        Fetch::Probe(bucket, from_slot) => {
            tx.found_bucket(index, bucket, from_slot, done.words(item.read))?;
            let Sets { tables, items, .. } = &mut tx.state.sets;
            let is_timed = || registered(tables, item.table).entry().spec.discipline.unlinks_by_cpu();
            if matches!(items[index].fetch, Fetch::Absent) && is_timed() {
                // READs of one round have no order.
                items[index].fetch = Fetch::Since;
            }
            Ok(Examined::Kept)
        }
        Fetch::Record(found) => match tx.examine(index, done.words(item.read)) {
            Examined::Another => tx.look_up_again(index, found).map(|()| Examined::Another),
            Examined::Kept if !tx.state.sets.items[index].is_as(&item) => Err(Abort::Changed.into()),
            seen => Ok(seen),
        },
        Fetch::Since => {
            let item = &mut tx.state.sets.items[index];
            item.fetch = Fetch::Absent;
            if !mutant!(AbsentAtNoTime) {
                item.time = item.time.max(done.words(item.read)[0]);
            }
            Ok(Examined::Kept)
        }
        Fetch::Ask | Fetch::Place(_) => tx.host_answered(index, done.reply(item.call)),
        Fetch::Here | Fetch::Absent | Fetch::Former(_) | Fetch::Grow(_) | Fetch::Block(_) | Fetch::Shared => {
            Ok(Examined::Kept)
        }
    }
}

/// Adds the next step of every item to the round, as far as the round has room. A snapshot claims a
/// node's clock before it reads anything there.
#[inline]
fn ask(tx: &mut Tx<'_>, round: &mut Round<'_>) {
    let in_snapshot = tx.attempt.snapshot.is_some();
    for index in tx.state.sets.fetched..tx.state.sets.items.len() {
        let sets = &mut tx.state.sets;
        let item = sets.items[index];
        let (at, bytes) = match item.fetch {
            Fetch::Probe(..) => (item.address, BUCKET_BYTES),
            Fetch::Record(_) => (item.address, sets.read_bytes(&item)),
            Fetch::Since => (sets.table(item.table).gone_address(item.home.shard), WORD_BYTES),
            Fetch::Ask | Fetch::Place(_) => {
                tx.preparing |= matches!(item.fetch, Fetch::Place(Intent::Insert));
                ask_host(sets, index, round);
                continue;
            }
            Fetch::Here | Fetch::Absent | Fetch::Former(_) | Fetch::Grow(_) | Fetch::Block(_) | Fetch::Shared => {
                sets.items[index].asked = false;
                continue;
            }
        };
        let claims = usize::from(in_snapshot);
        sets.items[index].asked = round.has_room(1 + claims, bytes + 16 * claims);
        if !sets.items[index].asked {
            continue;
        }
        if in_snapshot && !mutant!(ClaimBehindRead) {
            claim(tx, round, at.node);
        }
        tx.state.sets.items[index].read = round.read(at, bytes);
        if in_snapshot && mutant!(ClaimBehindRead) {
            claim(tx, round, at.node);
        }
    }
}
