//! What protocols with landing clocks share (`landing.rs`): the loop of a snapshot, the draws of a
//! commit whose time is fixed before it lands, and the raising of clocks in validation.

use remora_fabric::{Completed, NodeId, Round};

use crate::error::{Abort, Stop};
use crate::limits::{READ_ATTEMPTS, SNAPSHOT_READS};
use crate::protocol::Rereads;
use crate::state::State;
use crate::tx::Tx;

/// How often a fetch of a snapshot has asked again.
#[derive(Default)]
pub(super) struct SnapshotFetch {
    raises: u32,
    reads: Rereads,
}

impl SnapshotFetch {
    /// Begins a fetch. The answers of a fetch that was dropped never come.
    pub(super) fn begin(tx: &mut Tx<'_>) -> SnapshotFetch {
        tx.state.clocks.forget_unheard();
        SnapshotFetch::default()
    }

    /// Notes the claims that a round has brought. Returns false if the round has to be made again:
    /// a clock has run on since it was known, and is still behind the snapshot. So it is raised
    /// from there, and what was read there is read again.
    pub(super) fn claimed(&mut self, tx: &mut Tx<'_>, done: &Completed<'_>) -> Result<bool, Stop> {
        tx.state.clocks.claimed(done);
        let least = tx.snapshot.unwrap_or(tx.state.clocks.wanted());
        if tx.state.clocks.has_below(least) {
            self.raises += 1;
            if self.raises < SNAPSHOT_READS {
                tx.state.clocks.drop_below(least);
                return Ok(false);
            }
            if tx.snapshot.is_some() || !tx.state.seen.is_empty() {
                return Err(Abort::Later.into());
            }
            // Records are taken under these claims, so none of them may be dropped any more.
            tx.snapshot = tx.state.clocks.snapshot();
        }
        Ok(true)
    }

    /// Pauses if a record that the round has brought cannot be used now, and is to be read again.
    /// The claims stay valid meanwhile.
    pub(super) async fn pause(&mut self, tx: &Tx<'_>, unstable: Option<Abort>) -> Result<(), Stop> {
        self.reads.pause(tx, unstable).await
    }
}

/// Adds the claim of a node's clock, for a transaction that reads a snapshot, before its first READ
/// there.
pub(super) fn claim(tx: &mut Tx<'_>, round: &mut Round<'_>, node: NodeId) {
    match tx.snapshot {
        Some(time) => tx.state.clocks.claim(round, node, time, tx.trusts_known),
        None => tx.state.clocks.claim_first(round, node, tx.trusts_known),
    }
}

/// Chooses the time of the snapshot, if it is not known yet, and sees that no record which was
/// fetched is later. It looks at all of them, because a closure may go on after an error.
pub(super) fn settle_snapshot(tx: &mut Tx<'_>) -> Result<(), Stop> {
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
    let State { sets, seen, seen_time, clocks, protocol, .. } = &mut *tx.state;
    if protocol.has_open_snapshots() {
        let read = sets.items.iter().filter(|item| item.existed && !item.structural);
        seen.extend(read.map(|item| item.location.pointer));
        seen.sort_unstable();
        seen.dedup();
        *seen_time = latest.max(*seen_time);
    }
    clocks.fell_behind(latest, tx.trusts_known);
    tx.state.sets.note(at, Abort::Later.into());
    Err(Abort::Later.into())
}

/// Notes that a transaction that only reads has read a fresh snapshot as a whole.
pub(super) fn end_snapshot(tx: &mut Tx<'_>) {
    if !tx.attempt.reads_past() {
        tx.state.clocks.kept_up(tx.trusts_known);
    }
}

/// Notes what the session has seen, so that it opens no snapshot that is earlier.
pub(super) fn note_times(tx: &mut Tx<'_>) {
    let latest = latest_read(tx);
    tx.state.clocks.has_read(latest);
}

/// Returns the largest time of everything that a transaction has read.
pub(super) fn latest_read(tx: &Tx<'_>) -> u64 {
    tx.state.sets.items.iter().map(|item| item.time).max().unwrap_or(0)
}

/// Fixes the time of a commit that has all its locks, and gives it to all images.
pub(super) fn fix_time(tx: &mut Tx<'_>) {
    debug_assert!(
        tx.state.sets.write_set_is_locked() && tx.state.clocks.has_all_draws(),
        "landing 9: the draws are behind all locks"
    );
    tx.time = tx.state.clocks.time(tx.state.sets.time_bound());
    debug_assert!(
        tx.state.sets.items.iter().all(|item| item.time < tx.time) || mutant!(),
        "landing 3: the time of a commit is above the times of all that it has read or replaces"
    );
    tx.state.sets.settle(tx.time);
}

/// Returns the time to which a transaction raises the clocks where it validates, or 0: its own
/// time if it `writes` and its time is fixed, and if it writes nothing, the largest time that it
/// has read (`landing.rs`, invariants 10 and 5).
pub(super) fn raised_to(tx: &Tx<'_>, writes: bool) -> u64 {
    if !tx.state.spec.discipline.has_clocks() {
        return 0;
    }
    if writes {
        return if mutant!(EarlyUnraised) { 0 } else { tx.time };
    }
    if tx.state.clocks.is_one() || mutant!(ReaderUnraised) { 0 } else { latest_read(tx) }
}

/// Notes the answers of a validation round that was to raise clocks to a time. Returns false if the
/// round has to be made again, because a clock has run on meanwhile and is still behind.
pub(super) fn has_raised(tx: &mut Tx<'_>, done: &Completed<'_>, to: u64, raises: &mut u32) -> Result<bool, Stop> {
    tx.state.clocks.claimed(done);
    if !tx.state.clocks.has_below(to) {
        return Ok(true);
    }
    tx.state.clocks.drop_below(to);
    *raises += 1;
    if *raises == READ_ATTEMPTS { Err(Abort::Later.into()) } else { Ok(false) }
}
