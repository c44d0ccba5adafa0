//! The execution of optimistic concurrency control: READs or calls bring the records that a
//! transaction has named.

use remora_fabric::{Completed, Round};
use remora_index::cluster_hash::BUCKET_BYTES;

use crate::error::{Abort, Stop};
use crate::protocol::lookup::{Examined, ask_host, hear};
use crate::sets::{Fetch, Intent};
use crate::tx::{Tx, Waiting};

/// Brings every record that was named and has not been fetched yet.
///
/// The caller may drop the future at any time. The next call then asks again for every record whose
/// answer was not heard.
pub(in crate::protocol) async fn execute(tx: &mut Tx<'_>) -> Result<(), Stop> {
    if tx.unheard {
        Box::pin(tx.forget_unheard()).await?;
    }
    let mut waiting = Waiting::default();
    while tx.state.sets.fetched < tx.state.sets.items.len() {
        let mut round = tx.lane.round();
        ask(tx, &mut round);
        tx.unheard = true;
        let done = tx.lane.execute(round).await?;
        tx.unheard = false;
        let unstable = hear(tx, &done, arrived)?;
        drop(done);
        tx.skip_what_is_here();
        tx.wait(unstable, &mut waiting).await?;
    }
    Ok(())
}

/// Takes the answer to what an item has asked for.
#[inline]
fn arrived(tx: &mut Tx<'_>, index: usize, done: &Completed<'_>) -> Result<Examined, Stop> {
    let item = tx.state.sets.items[index];
    match item.fetch {
        Fetch::Probe(bucket, from_slot) => {
            tx.found_bucket(index, bucket, from_slot, done.words(item.read)).map(|()| Examined::Kept)
        }
        Fetch::Record(found) => match tx.examine(index, done.words(item.read)) {
            Examined::Another => tx.look_up_again(index, found).map(|()| Examined::Another),
            Examined::Kept if !tx.state.sets.items[index].is_as(&item) => Err(Abort::Changed.into()),
            seen => Ok(seen),
        },
        Fetch::Ask | Fetch::Place(_) => tx.host_answered(index, done.reply(item.call)),
        Fetch::Here | Fetch::Absent | Fetch::Former(_) | Fetch::Grow(_) | Fetch::Shared => Ok(Examined::Kept),
    }
}

/// Adds the next step of every item to the round, as far as the round has room.
#[inline]
fn ask(tx: &mut Tx<'_>, round: &mut Round<'_>) {
    let sets = &mut tx.state.sets;
    for index in sets.fetched..sets.items.len() {
        let item = sets.items[index];
        let bytes = match item.fetch {
            Fetch::Probe(..) => BUCKET_BYTES,
            Fetch::Record(_) => sets.read_bytes(&item),
            Fetch::Ask | Fetch::Place(_) => {
                tx.preparing |= matches!(item.fetch, Fetch::Place(Intent::Insert));
                ask_host(sets, index, round);
                continue;
            }
            Fetch::Here | Fetch::Absent | Fetch::Former(_) | Fetch::Grow(_) | Fetch::Shared => {
                sets.items[index].asked = false;
                continue;
            }
        };
        let item = &mut sets.items[index];
        item.asked = round.has_room(1, bytes);
        if item.asked {
            item.read = round.read(item.address, bytes);
        }
    }
}
