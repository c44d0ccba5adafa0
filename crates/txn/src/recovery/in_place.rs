//! Recovery for transactions that install in place and log old values (`protocol/ford/mod.rs`): it
//! decides each transaction of a dead client, and rolls it forward or back.
//!
//! ```text
//! read        undo entries of the dead client at all nodes; union by transaction
//! look        every replica of every record that an entry names
//! decide      a version beyond this transaction's anywhere: it has ended long ago,
//!             no data is touched
//!             every replica of every record complete in the new version: forward
//!             else: undo
//! undo        WRITE a copy of the entry at every participant,
//!             then WRITE the old value under a new, odd version, invisible,
//!             at every replica, also those which were never touched
//! show        WRITE version, visible, at every replica
//! free        WRITE into the entries that their transaction was undone, if it was,
//!             then CAS them free
//! unlock      CAS of the dead client's locks
//! ```
//!
//! Each line is awaited before the next one begins. A line does many records and copies in one
//! round, as many as fit (`batches.rs`, rule 9).
//!
//! # Why this never contradicts an answer
//!
//! 1. *Acknowledged means complete at every replica* (invariant 4 of `ford/mod.rs`). So a
//!    transaction that is incomplete anywhere was never acknowledged, and one that was acknowledged
//!    is found complete. A record is complete by the entry's checksum of what is installed, not by
//!    the header, nor by line versions: a client that dies in the middle of a WRITE may have
//!    written half a line.
//! 2. *An entry lists the whole write set,* so one copy is enough, whichever replicas of it are
//!    left.
//! 3. *Entries that are whole come before data* on every node, so a node without one is untouched.
//! 4. *Log before data binds recovery too*. The recoverer writes at replicas which the dead client
//!    may not have reached, and whose nodes then have no entry. If the recoverer died and the other
//!    nodes were lost, nothing would name what it has half written.
//! 5. *Free before unlock, unlock last.* If a successor found the entry after the unlock, it would
//!    undo the transaction again, over what the next writer has installed. Until the unlock, the
//!    dead client holds the lock of every record that the entry names. So a successor may do all of
//!    this again, with the same result.
//! 6. *Free entries still tell the outcome.* The ring says how the last transactions of a lane
//!    ended. A transaction that has no entry, and is not older than these, was never logged.
//! 7. *A rollback installs a version of its own,* one above what the commit would have installed.
//!    So a reader whose READ spans the half-written record and the rollback never sees one version
//!    with two values.
//! 8. *An entry is freed only if it is still the transaction's.* The entry of a later transaction
//!    may go to the same place. On each connection it follows the WRITE that frees the former
//!    entry. So one node may have the new entry while another still has the old one. If a recoverer
//!    freed whatever entry is at the place, a successor would miss the new entry.
//!
//! 9. *Only the lines have an order.* A successor starts with the first line, whichever verbs of a
//!    line have taken effect. So a line may do all records in any order. Where order matters within
//!    a line, it is between two verbs at one node, and a node runs the verbs of a round in their
//!    order: the time of a record comes before its version, and the outcome of a transaction before
//!    its entry is free. A second look at a replica is a round of its own, after the first look.
//!
//! The recoverer asserts rules 2 and 4 to 8. The dead client had to keep rules 1 and 3, and litmus
//! tests check them: rule 1 `ford-forward-by-any`, `ford-forward-by-header` and `ford-cut-line`,
//! rule 3 `ford-data-before-log` and `ford-torn-entry`. Rule 9 is tested by recoverers that die
//! within a line (`crates/remora/tests/long_logs.rs`).

use std::collections::{BTreeMap, BTreeSet};

use remora_fabric::{Address, LINE_BYTES, Lane, NodeId, WORD_BYTES};
use remora_index::fstore::Geometry;
use remora_node::node::clock_at;
use remora_node::ring::{self, FRAME_OVERHEAD_WORDS, PIECE_BYTES_MAX, UNDO_WINDOW, UndoEntry};
use remora_node::{IndexKind, MemoryError, Metadata, Replica, TableSpec};
use remora_record::{FetchedRecord, LockWord, RecordShape, Swap, TransactionId, Version, structural};
use zerocopy::IntoBytes;

use super::batches::{SWAP_BYTES, batches, flush_all};
use super::{Ring, Verdict};
use crate::event::Rollback;
use crate::log::{self, UndoRecord};
use crate::swap::swap_lock;

/// A transaction of which some node has an undo entry.
struct Undo {
    lane: usize,
    /// Offset of the entry in the rings, equal at every node.
    place: u64,
    entry: Vec<u64>,
}

/// The outcome that recovery has decided for a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decision {
    Ended,
    Forward,
    Undo,
}

/// The undo entries in a client's rings, and what they say of its last transactions.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) committed: Vec<u64>,
    pub(super) undone: Vec<u64>,
    /// A transaction with this id or a higher one was never logged, unless it is committed, undone
    /// or open.
    pub(super) from: u64,
    /// Transactions that have not ended.
    open: BTreeMap<u64, Undo>,
}

impl Entries {
    /// Returns the outcome of a transaction of a client that may still run. `ended` says whether
    /// the transaction is known to have ended.
    pub(super) fn verdict(&self, id: u64, ended: bool) -> Verdict {
        if self.committed.contains(&id) {
            Verdict::Committed
        } else if self.undone.contains(&id) {
            Verdict::Aborted
        } else if self.open.contains_key(&id) {
            Verdict::Undecided
        } else if id < self.from {
            Verdict::Forgotten
        } else if ended {
            Verdict::Aborted
        } else {
            Verdict::Undecided
        }
    }
}

/// Ends every transaction of a dead client that has an undo entry. The client's access has been
/// revoked everywhere. Calls `told` for each record that is put back, before the record is written.
pub(super) async fn repair(
    lane: &Lane,
    metadata: &Metadata,
    rings: &mut [Ring],
    told: &dyn Fn(&Rollback<'_>),
) -> Result<Entries, MemoryError> {
    let mut entries = read(lane, rings).await?;
    let rings = &*rings;
    for (id, undo) in std::mem::take(&mut entries.open) {
        let Some(records) = records(metadata, &undo.entry) else {
            tracing::error!(id, "an undo entry names records that no table has: it is left as it is");
            continue;
        };
        let decision = decide(lane, &undo, &records).await?;
        tracing::info!(id, ?decision, "a dead client's transaction");
        let contradicts = if decision == Decision::Undo { &entries.committed } else { &entries.undone };
        debug_assert!(
            !contradicts.contains(&id) || mutant!(),
            "in_place 6: an entry that is free at one node tells how its transaction ended"
        );
        if mutant!(FreeBeforeRepair) {
            free(lane, id, &undo, decision, rings).await?;
        }
        if mutant!(UnlockBeforeRepair) {
            unlock(lane, id, &undo, &records, decision).await?;
        }
        if decision == Decision::Undo {
            records.iter().for_each(|record| record.tell(told));
            put_back(lane, id, &undo, &records, rings).await?;
        }
        // A transaction that ended with a lean release may have backups that are not visible yet.
        let lean = log::undo_kind(&undo.entry).lean;
        if decision == Decision::Forward && records.iter().any(|record| record.shape.is_timed()) {
            let time = time_of(lane, &undo, &records, rings).await?;
            settle(lane, &records, time).await?;
        } else if decision != Decision::Ended || lean {
            show(lane, &records, decision, lean).await?;
        }
        if !mutant!(FreeAfterUnlock) {
            free(lane, id, &undo, decision, rings).await?;
        }
        unlock(lane, id, &undo, &records, decision).await?;
        if mutant!(FreeAfterUnlock) {
            free(lane, id, &undo, decision, rings).await?;
        }
        (if decision == Decision::Undo { &mut entries.undone } else { &mut entries.committed }).push(id);
    }
    Ok(entries)
}

/// Reads the entries of all nodes, and unites them.
pub(super) async fn read(lane: &Lane, rings: &mut [Ring]) -> Result<Entries, MemoryError> {
    let mut entries = Entries::default();
    // The last transaction of each place of each lane. If nodes differ, the later transaction
    // counts: the other nodes have not had its entry.
    let mut last = BTreeMap::<(usize, u64), Last>::new();
    for Ring { node: at, lane: number, place: ring, copy } in rings {
        for UndoEntry { place, id, ended, entry } in copy.undo_entries(lane).await? {
            let newest = last.entry((*number, place)).or_default();
            *newest = Last { id, lap: log::undo_kind(&entry).lap }.max(*newest);
            match ended {
                None => {
                    let is_equal = |known: &Undo| known.entry == entry && known.place == place;
                    debug_assert!(
                        entries.open.get(&id).is_none_or(is_equal) || mutant!(),
                        "in_place 2: any one copy of an undo entry is enough"
                    );
                    entries.open.entry(id).or_insert(Undo { lane: *number, place, entry });
                }
                Some(true) => entries.committed.push(id),
                Some(false) => entries.undone.push(id),
            }
        }
        if mutant!(TrustTornEntry) {
            let mut round = lane.round();
            let read = round.read(ring.data_at(*at), LINE_BYTES * 4);
            let done = lane.execute(round).await?;
            let data = done.words(read);
            if let Some(entry) = data.get(2..((data[1] >> 32) as usize).wrapping_sub(1)) {
                entries.open.entry(data[0]).or_insert(Undo { lane: *number, place: 0, entry: entry.to_vec() });
            }
        }
    }
    entries.from = last.keys().map(|(lane, _)| known_from(&last, *lane)).max().unwrap_or(0);
    Ok(entries)
}

/// The last transaction that had an entry at a place of the rings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Last {
    id: u64,
    lap: u32,
}

/// Returns the id from which on a lane's transactions are known. It is the id of the oldest
/// transaction whose entry has not been overwritten. The entries of the lane's last lap are known.
/// From the lap before, the entries are known that lie at places after the newest entry.
fn known_from(last: &BTreeMap<(usize, u64), Last>, lane: usize) -> u64 {
    let all = || last.range((lane, 0)..(lane + 1, 0)).map(|((_, place), last)| (*place, *last));
    let Some((newest_at, newest)) = all().max_by_key(|(_, last)| last.id).filter(|(_, newest)| newest.lap > 0) else {
        return 0;
    };
    let is_known = |place, lap| lap == newest.lap || lap + 1 == newest.lap && place > newest_at;
    all().filter(|(place, last)| is_known(*place, last.lap)).map(|(_, last)| last.id).min().unwrap_or(0)
}

/// Returns the ring of every participant, and the address at which the transaction's entry is
/// there, or would be.
fn places<'r>(undo: &Undo, rings: &'r [Ring]) -> impl Iterator<Item = (&'r Ring, Address)> {
    let (lane, place) = (undo.lane, undo.place);
    let participants = undo.entry.get(1).copied().unwrap_or(0);
    let theirs = rings.iter().filter(move |ring| ring.lane == lane && participants >> ring.node.0 & 1 == 1);
    theirs.map(move |ring| (ring, ring.place.data_at(ring.node).plus(place)))
}

/// A record of an entry.
struct Record<'e> {
    table: &'e TableSpec,
    replicas: &'e [Replica],
    offset: u64,
    is_header: bool,
    shape: RecordShape,
    /// The version that the commit installs.
    version: Version,
    /// Checksum of the image that the commit installs.
    checksum: u32,
    /// What the slot held before, from the version on.
    before: &'e [u64],
}

impl Record<'_> {
    /// Returns where the image of the record is at a replica.
    fn image(&self, replica: &Replica) -> Address {
        replica.address(self.offset + self.shape.image_at())
    }

    fn image_bytes(&self) -> usize {
        self.before.len() * WORD_BYTES
    }

    /// Calls `told` for the record that is about to be put back, if it is a row that was present
    /// before.
    fn tell(&self, told: &dyn Fn(&Rollback<'_>)) {
        let words: Vec<u64> = std::iter::once(LockWord::FREE.to_bits()).chain(self.before.iter().copied()).collect();
        let before = FetchedRecord::new(&words, &self.shape).check_in_place();
        let Some(before) = before.ok().filter(|before| before.is_present() && !self.is_header) else { return };
        let key: Vec<u64> = self.shape.key_places().map(|place| words[place]).collect();
        if let Some(key) = key.as_bytes().get(..self.table.layout.key_bytes.into()) {
            let (installed, restored) = (self.version.rolled_back(), before.version());
            told(&Rollback { table: &self.table.name, key, installed, restored });
        }
    }
}

/// Returns the records of an entry, or `None` if one of them cannot be a record of its table.
/// Leaves out records of tables that were dropped since. The entry's transaction had ended before
/// their space was freed.
fn records<'e>(metadata: &'e Metadata, entry: &'e [u64]) -> Option<Vec<Record<'e>>> {
    let record = |logged: UndoRecord<'e>| {
        let placement = metadata.shards.get(usize::from(logged.pointer.shard().0))?;
        let spec = &metadata.tables.get(usize::from(placement.table.0))?.spec;
        let (geometry, offset) = (Geometry::of(spec), logged.pointer.offset());
        let is_header = geometry.is_structural(offset);
        let shape = if is_header { structural(spec.layout.scheme) } else { RecordShape::of(&spec.layout) };
        let fits = spec.index == IndexKind::FStore
            && offset.is_multiple_of(WORD_BYTES as u64)
            && offset.checked_add(shape.record_bytes() as u64)? <= placement.bytes
            && logged.before.len() == shape.image_words();
        let (version, _) = Version::from_bits(logged.version);
        let replicas = &placement.replicas;
        let UndoRecord { checksum, before, .. } = logged;
        fits.then_some(Record { table: spec, replicas, offset, is_header, shape, version, checksum, before })
    };
    let shard = |logged: &UndoRecord<'_>| metadata.shards.get(usize::from(logged.pointer.shard().0));
    let is_there = |logged: &UndoRecord<'_>| shard(logged).is_none_or(|shard| !shard.replicas.is_empty());
    log::undo_records(entry).filter(is_there).map(record).collect()
}

/// Returns each of these records with each of its replicas.
fn copies<'r>(records: &'r [Record<'r>]) -> impl Iterator<Item = (&'r Record<'r>, &'r Replica)> {
    records.iter().flat_map(|record| record.replicas.iter().map(move |replica| (record, replica)))
}

async fn decide(lane: &Lane, undo: &Undo, records: &[Record<'_>]) -> Result<Decision, MemoryError> {
    let (mut complete, mut any) = (true, false);
    let lean = log::undo_kind(&undo.entry).lean;
    let is_looked_at = |(record, replica): &(&Record<'_>, &Replica)| {
        !mutant!(ForwardIfPrimary) || record.replicas.first().is_some_and(|primary| primary.node == replica.node)
    };
    let copies: Vec<_> = copies(records).filter(is_looked_at).collect();
    for batch in batches(&copies, |(record, _)| (1, record.image_bytes())) {
        let first = look(lane, batch).await?;
        // After a lean release, entries are not freed, and the next writer may be writing the
        // record now. The READ may have seen the first line before that writer wrote it. A second
        // look at the version, which a writer writes first, shows this.
        let is_unclear = |look: &Look| lean && !look.is_new && !mutant!(LookOnce);
        let unclear: Vec<_> = batch.iter().zip(&first).filter(|(_, look)| is_unclear(look)).collect();
        let second = versions_of(lane, unclear.iter().map(|((record, replica), _)| record.image(replica))).await?;
        let second = unclear.iter().zip(second).map(|(((record, _), _), version)| (*record, version));
        let seen = batch.iter().zip(&first).map(|((record, _), look)| (*record, look.version)).chain(second);
        let is_later = |(record, version): (&Record<'_>, Version)| version > record.version.rolled_back();
        if seen.into_iter().any(is_later) && !mutant!(KeepEntries) {
            return Ok(Decision::Ended);
        }
        complete &= first.iter().all(|look| look.is_new);
        any |= batch.iter().zip(&first).any(|((record, _), look)| look.version == record.version);
    }
    if mutant!(AlwaysUndo) {
        complete = false;
    }
    if mutant!(ForwardIfAny) {
        complete = any;
    }
    Ok(if complete { Decision::Forward } else { Decision::Undo })
}

/// What a replica of a record holds.
struct Look {
    version: Version,
    /// Whether the replica is complete in the version that the commit installs.
    is_new: bool,
}

/// Reads copies of records in one round.
async fn look(lane: &Lane, copies: &[(&Record<'_>, &Replica)]) -> Result<Vec<Look>, MemoryError> {
    let mut round = lane.round();
    let read = |(record, replica): &(&Record<'_>, &Replica)| round.read(record.image(replica), record.image_bytes());
    let reads: Vec<_> = copies.iter().map(read).collect();
    let done = lane.execute(round).await?;
    let look = |((record, _), read): (&(&Record<'_>, &Replica), _)| {
        let mut image = done.words(read).to_vec();
        let (version, _) = Version::from_bits(image[0]);
        image[0] = version.to_bits();
        let whole = record.shape.content_checksum(&image) == record.checksum || mutant!(ForwardByHeader);
        Look { version, is_new: version == record.version && whole }
    };
    Ok(copies.iter().zip(reads).map(look).collect())
}

/// Reads the versions of images in one round, or in none if there are no images.
async fn versions_of(lane: &Lane, images: impl Iterator<Item = Address>) -> Result<Vec<Version>, MemoryError> {
    let mut round = lane.round();
    let reads: Vec<_> = images.map(|image| round.read(image, WORD_BYTES)).collect();
    if reads.is_empty() {
        return Ok(Vec::new());
    }
    let done = lane.execute(round).await?;
    Ok(reads.into_iter().map(|read| Version::from_bits(done.words(read)[0]).0).collect())
}

/// Returns whether the transaction of a lean entry has committed. The transaction's client is not
/// dead. A transaction that has ended has committed.
pub(super) async fn has_committed(
    lane: &Lane,
    metadata: &Metadata,
    entries: &Entries,
    id: u64,
) -> Result<bool, MemoryError> {
    let Some(undo) = entries.open.get(&id).filter(|undo| log::undo_kind(&undo.entry).lean) else { return Ok(false) };
    let Some(records) = records(metadata, &undo.entry) else { return Ok(false) };
    Ok(decide(lane, undo, &records).await? != Decision::Undo)
}

/// Puts the old values back on every replica, invisible, after it has written a copy of the entry
/// at every participant.
async fn put_back(
    lane: &Lane,
    id: u64,
    undo: &Undo,
    records: &[Record<'_>],
    rings: &[Ring],
) -> Result<(), MemoryError> {
    let has_entry = |replica: &Replica| places(undo, rings).any(|(ring, _)| ring.node == replica.node);
    debug_assert!(
        records.iter().flat_map(|record| record.replicas).all(has_entry) || mutant!(),
        "in_place 4: the recoverer writes only at nodes where it has put the entry"
    );
    if !mutant!(RepairWithoutLog) {
        copy_entry(lane, id, undo, rings).await?;
    }
    for batch in batches(records, |record| (record.replicas.len(), record.image_bytes())) {
        let mut round = lane.round();
        for record in batch {
            let staged = round.stage_words(record.before.len());
            let image = round.staged_mut(staged);
            image.copy_from_slice(record.before);
            record.shape.stamp(image, rolled_back(record));
            image[0] |= Version::INVISIBLE;
            record.replicas.iter().for_each(|replica| round.write_staged(record.image(replica), staged));
        }
        flush_all(&mut round, copies(batch).map(|(_, replica)| replica.node));
        lane.execute(round).await?;
    }
    Ok(())
}

/// Writes a copy of the entry at every participant, and awaits it. A long entry goes in pieces, in
/// ascending order, as its client has written it (`protocol/long_frame.rs`).
async fn copy_entry(lane: &Lane, id: u64, undo: &Undo, rings: &[Ring]) -> Result<(), MemoryError> {
    const VERBS: usize = 3;
    let words = undo.entry.len() + FRAME_OVERHEAD_WORDS;
    let reach = undo.place + (words * WORD_BYTES) as u64;
    let mut frame = vec![0; words];
    frame[2..words - 1].copy_from_slice(&undo.entry);
    ring::seal_undo(&mut frame, id);
    let places: Vec<_> = places(undo, rings).collect();
    for (number, piece) in frame.chunks(PIECE_BYTES_MAX / WORD_BYTES).enumerate() {
        let is_last = number == ring::front_words(words) / (PIECE_BYTES_MAX / WORD_BYTES);
        for batch in batches(&places, |_| (VERBS, WORD_BYTES)) {
            let mut round = lane.round();
            let staged = round.stage_words(piece.len());
            round.staged_mut(staged).copy_from_slice(piece);
            for (ring, at) in batch {
                if is_last && reach > ring.copy.reach().max(UNDO_WINDOW) {
                    round.write_words(ring::reach_at(ring.node, ring.place), &[reach]);
                }
                round.write_staged(at.plus((number * PIECE_BYTES_MAX) as u64), staged);
                if is_last {
                    round.flush(at.node);
                }
            }
            lane.execute(round).await?;
        }
    }
    Ok(())
}

/// The version that a rollback installs.
fn rolled_back(record: &Record<'_>) -> Version {
    if mutant!(RollbackOldVersion) {
        return Version::from_bits(record.version.to_bits() - 2).0;
    }
    let version = record.version.rolled_back();
    debug_assert!(
        version.is_rolled_back() && record.before.first().is_none_or(|held| Version::from_bits(*held).0 < version)
            || mutant!(),
        "in_place 7: a rollback installs a version of its own, above all that the record has had"
    );
    version
}

/// Frees the entry of a transaction at every participant.
async fn free(lane: &Lane, id: u64, undo: &Undo, decision: Decision, rings: &[Ring]) -> Result<(), MemoryError> {
    let places: Vec<_> = places(undo, rings).map(|(_, at)| at).collect();
    for batch in batches(&places, |_| (2, SWAP_BYTES + WORD_BYTES)) {
        let mut round = lane.round();
        let mut freed = Vec::with_capacity(batch.len());
        for at in batch {
            if decision == Decision::Undo {
                // Every participant has this transaction's entry at the place, because a copy was
                // written there.
                let undone = ring::undone(undo.entry.len() + FRAME_OVERHEAD_WORDS);
                round.write_words(at.plus(WORD_BYTES as u64), &[undone]);
            }
            // A later transaction's entry may lie there already (8). No other client writes the
            // word: all of them are revoked.
            freed.push(round.compare_swap(*at, id, ring::freed(id)));
        }
        let done = lane.execute(round).await?;
        debug_assert!(
            decision != Decision::Undo || freed.into_iter().all(|freed| done.swapped(freed)) || mutant!(),
            "in_place 8: the entry of a transaction that is undone is its own at every participant"
        );
    }
    Ok(())
}

async fn unlock(
    lane: &Lane,
    id: u64,
    undo: &Undo,
    records: &[Record<'_>],
    decision: Decision,
) -> Result<(), MemoryError> {
    let is_early = log::undo_kind(&undo.entry).is_early;
    let unlock = Swap::unlock(LockWord::from_bits(id));
    let locked = |record: &Record<'_>| if is_early { record.replicas.len() } else { 1 };
    for batch in batches(records, |record| (locked(record), locked(record) * SWAP_BYTES)) {
        let mut round = lane.round();
        let mut freed = Vec::with_capacity(batch.len());
        for record in batch {
            freed.push(swap_lock(&mut round, record.replicas[0].address(record.offset), unlock));
            for backup in &record.replicas[1..locked(record)] {
                swap_lock(&mut round, backup.address(record.offset), unlock);
            }
        }
        let done = lane.execute(round).await?;
        for (record, freed) in batch.iter().zip(freed) {
            // A backup that was promoted has no lock, or one of a transaction that has not got the
            // lock of the primary before.
            let previous = LockWord::from_bits(done.previous(freed));
            let is_early = previous.holder().is_some_and(TransactionId::fixes_time_early) && record.shape.is_timed();
            debug_assert!(
                decision != Decision::Undo || done.swapped(freed) || previous.is_free() || is_early || mutant!(),
                "in_place 5: the dead client has every record locked until the recoverer unlocks"
            );
        }
    }
    Ok(())
}

/// Returns the time of a commit that is rolled forward. Raises the clocks of all nodes to it,
/// before anything is freed (`landing.rs`, invariant 7).
async fn time_of(lane: &Lane, undo: &Undo, records: &[Record<'_>], rings: &[Ring]) -> Result<u64, MemoryError> {
    let mut time = 0;
    let copies: Vec<_> = copies(records).filter(|(record, _)| record.shape.is_timed()).collect();
    for batch in batches(&copies, |(record, _)| (1, record.shape.record_bytes())) {
        let mut round = lane.round();
        let read = |(record, replica): &(&Record<'_>, &Replica)| {
            round.read(replica.address(record.offset), record.shape.record_bytes())
        };
        let reads: Vec<_> = batch.iter().map(read).collect();
        let done = lane.execute(round).await?;
        for ((record, _), read) in batch.iter().zip(reads) {
            let found = FetchedRecord::new(done.words(read), &record.shape).check_in_place();
            if let Some(found) = found.ok().filter(|found| found.version() == record.version) {
                debug_assert!(
                    time == 0 || time == found.time() || mutant!(),
                    "landing 6: a commit has one time at all replicas"
                );
                time = found.time();
            }
        }
    }
    let nodes: BTreeSet<NodeId> = rings.iter().map(|ring| ring.node).collect();
    let mut round = lane.round();
    let draws: Vec<_> = nodes.into_iter().map(|node| (node, round.fetch_add(clock_at(node), 1))).collect();
    let done = lane.execute(round).await?;
    let mut drawn: Vec<_> = draws.into_iter().map(|(node, draw)| (node, done.added(draw) + 1)).collect();
    drop(done);
    let kind = log::undo_kind(&undo.entry);
    let bound = kind.bound.unwrap_or(1);
    if kind.is_early {
        debug_assert!(time == 0 || time == bound || mutant!(), "landing 6: a commit has one time at all replicas");
        time = bound;
    }
    if time == 0 {
        let draws = drawn.iter().map(|(_, value)| *value).filter(|_| !mutant!(RecoverUndrawn));
        time = draws.max().unwrap_or(0).max(bound);
    }
    loop {
        drawn.retain(|(_, value)| *value < time);
        if drawn.is_empty() {
            break;
        }
        let mut round = lane.round();
        let raise = |(node, value): &(NodeId, u64)| round.compare_swap(clock_at(*node), *value, time);
        let raises: Vec<_> = drawn.iter().map(raise).collect();
        let done = lane.execute(round).await?;
        for ((_, value), raise) in drawn.iter_mut().zip(raises) {
            *value = if done.swapped(raise) { time } else { done.previous(raise) };
        }
    }
    Ok(time)
}

/// Makes every replica of a commit visible, with the commit's time.
async fn settle(lane: &Lane, records: &[Record<'_>], time: u64) -> Result<(), MemoryError> {
    let mut images = Vec::with_capacity(records.len());
    for batch in batches(records, |record| (1, record.image_bytes())) {
        let mut round = lane.round();
        let read = |record: &Record<'_>| round.read(record.image(&record.replicas[0]), record.image_bytes());
        let reads: Vec<_> = batch.iter().map(read).collect();
        let done = lane.execute(round).await?;
        for (record, read) in batch.iter().zip(reads) {
            let mut image = done.words(read).to_vec();
            image[0] = record.version.to_bits();
            if record.shape.is_timed() {
                record.shape.settle(&mut image, time);
            }
            images.push((record, image));
        }
    }
    let cost = |(record, _): &(&Record<'_>, Vec<u64>)| {
        let copies = record.replicas.len();
        (2 * copies, copies * record.shape.settled_bytes())
    };
    for batch in batches(&images, cost) {
        let mut round = lane.round();
        for (record, image) in batch {
            for replica in record.replicas {
                if record.shape.is_timed() {
                    for (at, words) in record.shape.settled(image) {
                        round.write_words(replica.address(record.offset + at), words);
                    }
                } else {
                    round.write_words(record.image(replica), &image[..1]);
                }
            }
        }
        lane.execute(round).await?;
    }
    Ok(())
}

/// Makes every replica visible. After a lean release, only those replicas that are still this
/// transaction's: other transactions may have locked the record since.
async fn show(lane: &Lane, records: &[Record<'_>], decision: Decision, lean: bool) -> Result<(), MemoryError> {
    let copies: Vec<_> = copies(records).collect();
    for batch in batches(&copies, |_| (1, SWAP_BYTES)) {
        let mut round = lane.round();
        for (record, replica) in batch {
            let version = if decision == Decision::Undo { rolled_back(record) } else { record.version };
            let (at, version) = (record.image(replica), version.to_bits());
            if lean && !mutant!(RecoveredByWrite) {
                round.compare_swap(at, version | Version::INVISIBLE, version);
            } else {
                round.write_words(at, &[version]);
            }
        }
        lane.execute(round).await?;
    }
    Ok(())
}
