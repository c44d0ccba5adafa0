//! The execution of a transaction that reads a snapshot: one round trip claims the clocks of the
//! nodes and reads the records, each at some replica (`landing.rs`).

use super::Ford;
use super::execute::{arrived, ask};
use super::former::find_archives;
use crate::error::Stop;
use crate::protocol::clocks::{SnapshotFetch, settle_snapshot};
use crate::tx::Tx;

/// Brings every record that was named and has not been fetched yet, in the state of the snapshot.
pub(super) async fn execute(tx: &mut Tx<'_>, ford: Ford) -> Result<(), Stop> {
    let mut fetch = SnapshotFetch::begin(tx);
    tx.state.archives.begin_fetch();
    while tx.state.sets.fetched < tx.state.sets.items.len() {
        find_archives(tx).await?;
        let mut round = tx.lane.round();
        ask(tx, &mut round, ford);
        let done = tx.lane.execute(round).await?;
        if !fetch.claimed(tx, &done)? {
            continue;
        }
        if tx.attempt.number > 1 && !tx.state.seen.is_empty() {
            // Records that an earlier attempt has read are taken as they were now (`former.rs`).
            tx.snapshot = tx.snapshot.or(tx.state.clocks.snapshot());
        }
        let unstable = arrived(tx, &done, ford)?;
        drop(done);
        tx.skip_what_is_here();
        fetch.pause(tx, unstable).await?;
    }
    settle_snapshot(tx)
}
