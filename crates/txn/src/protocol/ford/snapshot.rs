//! The execution of a transaction that reads a snapshot: one round trip claims the clocks of the
//! nodes and reads the records, each at some replica (`landing.rs`).

use super::Ford;
use super::execute::{arrived, ask};
use super::former::find_archives;
use crate::error::{Abort, Stop};
use crate::limits::{READ_PAUSE_NS, SNAPSHOT_READS};
use crate::state::State;
use crate::tx::Tx;

/// Brings every record that was named and has not been fetched yet, in the state of the snapshot.
pub(super) async fn execute(tx: &mut Tx<'_>, ford: Ford) -> Result<(), Stop> {
    // The answers of a fetch that was dropped never come.
    tx.state.clocks.forget_unheard();
    let (mut reads, mut raises) = (0, 0);
    tx.state.archives.begin_fetch();
    while tx.state.sets.fetched < tx.state.sets.items.len() {
        find_archives(tx).await?;
        let mut round = tx.lane.round();
        ask(tx, &mut round, ford);
        let done = tx.lane.execute(round).await?;
        tx.state.clocks.claimed(&done);
        // A clock has run on since it was known, and is still behind the snapshot. So it is raised
        // from there, and what was read there is read again.
        let least = tx.snapshot.unwrap_or(tx.state.clocks.wanted());
        if tx.state.clocks.has_below(least) {
            raises += 1;
            if raises < SNAPSHOT_READS {
                tx.state.clocks.drop_below(least);
                continue;
            }
            if tx.snapshot.is_some() || !tx.state.seen.is_empty() {
                return Err(Abort::Later.into());
            }
            // Records are taken under these claims, so none of them may be dropped any more.
            tx.snapshot = tx.state.clocks.snapshot();
        }
        if tx.attempt.number > 1 && !tx.state.seen.is_empty() {
            // Records that an earlier attempt has read are taken as they were now (`former.rs`).
            tx.snapshot = tx.snapshot.or(tx.state.clocks.snapshot());
        }
        let unstable = arrived(tx, &done, ford)?;
        drop(done);
        tx.skip_what_is_here();
        // The claims stay valid while a record that is being installed is read again.
        if let Some(why) = unstable {
            reads += 1;
            if reads == SNAPSHOT_READS {
                return Err(why.into());
            }
            tx.lane.sleep(READ_PAUSE_NS << (reads - 1)).await;
        }
    }
    settle(tx)
}

/// Chooses the time of the snapshot, if it is not known yet, and sees that no record which was
/// fetched is later. It looks at all of them, because a closure may go on after an error.
fn settle(tx: &mut Tx<'_>) -> Result<(), Stop> {
    if tx.attempt.reads_past() {
        return Ok(());
    }
    tx.snapshot = tx.snapshot.or(tx.state.clocks.snapshot());
    let Some(snapshot) = tx.snapshot else { return Ok(()) };
    let items = tx.state.sets.items.iter().enumerate();
    let Some((at, latest)) = items.map(|(at, item)| (at, item.time)).max_by_key(|(_, time)| *time) else {
        return Ok(());
    };
    if latest <= snapshot || mutant!(TakeLater) {
        return Ok(());
    }
    let State { sets, seen, seen_time, clocks, .. } = &mut *tx.state;
    let read = sets.items.iter().filter(|item| item.existed && !item.structural);
    seen.extend(read.map(|item| item.location.pointer));
    seen.sort_unstable();
    seen.dedup();
    *seen_time = latest.max(*seen_time);
    clocks.fell_behind(latest, tx.trusts_known);
    tx.state.sets.note(at, Abort::Later.into());
    Err(Abort::Later.into())
}
