//! Reads whole tables without a transaction. [`inspect`] checks a table while no transaction runs:
//! its records, its locks, and its backups. [`scan`], [`KeyScan`] and [`count_rows`] read a table
//! while transactions run.

pub(crate) mod objects;

use std::iter::successors;
use std::ops::AddAssign;

use remora_fabric::limits::{ROUND_BYTES_MAX, ROUND_VERBS_MAX};
use remora_fabric::{LINE_BYTES, Lane, Outlined, WORD_BYTES, outline};
use remora_index::Table;
use remora_index::cluster_hash::{
    BUCKET_BYTES, BUCKET_SLOTS, BUCKET_WORDS, HEADER_BYTES, LINK_WORD, is_entry, linked_bucket,
};
use remora_node::Replica;
use remora_record::{FetchedRecord, Key, Life, LockWord, StableRecord, TransactionId};
use zerocopy::IntoBytes;

use crate::error::{Abort, Stop};
use crate::limits::{LOG_PAUSE_NS, SCAN_ATTEMPTS};

/// What [`inspect`] found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inspection {
    /// Records whose keys are present.
    pub records: u64,
    /// Slots that are prepared for an insert which has neither committed nor been taken back.
    pub prepared: u64,
    /// Records whose lock is held.
    pub locked: u64,
    /// Holder of the first locked record.
    pub holder: Option<TransactionId>,
    /// Locks of clients that are gone, where any client repairs the locks that it meets (protocol
    /// `rtx`). The next client that meets such a lock frees it. They do not count as locked.
    pub abandoned: u64,
    /// Records that are torn.
    pub torn: u64,
    /// Lines of 64 bytes in which a backup differs from its primary. Two things are not compared.
    /// The header of a shard is not, because only the primary allocates by it. A link to a bucket
    /// without entries is not, because an aborted insert leaves it at the primary alone.
    pub differing_lines: u64,
}

impl AddAssign for Inspection {
    fn add_assign(&mut self, other: Inspection) {
        self.records += other.records;
        self.prepared += other.prepared;
        self.locked += other.locked;
        self.holder = self.holder.or(other.holder);
        self.abandoned += other.abandoned;
        self.torn += other.torn;
        self.differing_lines += other.differing_lines;
    }
}

/// Bytes that one step compares, if a slot is not larger.
const CHUNK_BYTES: u64 = 4096;

/// Reads a whole table, while no transaction runs. Gives every record of its primaries to `visit`,
/// and compares every line of its backups with the primary's. Fails if a node is unreachable.
#[inline(never)]
pub fn inspect(
    lane: &Lane,
    table: &Table,
    visit: &mut dyn FnMut(&StableRecord<'_>),
) -> Outlined<impl Future<Output = Result<Inspection, Stop>>> {
    outline(inspect_all(lane, table, visit))
}

async fn inspect_all(lane: &Lane, table: &Table, visit: &mut dyn FnMut(&StableRecord<'_>)) -> Result<Inspection, Stop> {
    let mut found = Inspection::default();
    if table.objects().is_some() {
        objects::inspect(lane, table, &mut found, visit).await?;
        return Ok(found);
    }
    let (index, shape) = (table.index(), table.shape());
    let slot_bytes = u64::from(table.entry().spec.layout.slot_bytes);
    for shard in 0..table.shards() {
        let replicas = table.shard_replicas(shard);
        // The header of a cluster hash is used by its primary alone, but that of FStore is a
        // record.
        let mut offset = if table.fstore().is_some() { 0 } else { HEADER_BYTES };
        let mut slots = Vec::new();
        while offset < index.bytes() {
            slots.clear();
            let mut end = (offset + CHUNK_BYTES.max(slot_bytes + LINE_BYTES as u64)).min(index.bytes());
            let mut behind = offset;
            // Each chunk ends at the end of a record.
            while let Some(slot) = index.slot_behind(behind).filter(|slot| *slot < end) {
                behind = slot + slot_bytes;
                if behind > end {
                    end = slot;
                } else {
                    slots.push(slot);
                }
            }
            // One round for each replica: a round has no room for the largest record from all
            // replicas.
            let read = async |replica: &Replica| {
                let mut round = lane.round();
                let read = round.read(replica.address(offset), (end - offset) as usize);
                lane.execute(round).await.map(|done| (done, read))
            };
            let (done, of_primary) = read(&replicas[0]).await?;
            let primary = done.words(of_primary);
            for backup in replicas[1..].iter().filter(|replica| !replica.joining) {
                let (done, of_backup) = read(backup).await?;
                let lines = primary.chunks(8).zip(done.words(of_backup).chunks(8));
                for (at, (ours, theirs)) in (offset..).step_by(LINE_BYTES).zip(lines) {
                    if ours != theirs && !only_an_unused_link(lane, table, shard, at, (ours, theirs)).await? {
                        tracing::debug!(shard, at, primary = ?ours, ?backup, holds = ?theirs, "a line differs");
                        found.differing_lines += 1;
                    }
                }
            }
            let mut checked = offset;
            for slot in &slots {
                found.structure(table, &primary[words(checked - offset)..words(slot - offset)]);
                checked = slot + slot_bytes;
                let record = &primary[words(slot - offset)..][..shape.record_bytes() / WORD_BYTES];
                if let Some(header) = shape.validated(record).filter(|header| !header.lock.is_free()) {
                    tracing::debug!(table = table.name(), shard, slot, lock = ?header.lock, "a record is locked");
                    found.lock(header.lock);
                }
                found.prepared += u64::from(matches!(shape.life(record), Some(Life::Prepared { .. })));
                match FetchedRecord::new(record, shape).check() {
                    Ok(record) if record.is_present() => {
                        found.records += 1;
                        visit(&record);
                    }
                    Ok(_) => {}
                    Err(_) => found.torn += 1,
                }
            }
            found.structure(table, &primary[words(checked - offset)..]);
            offset = end;
        }
    }
    Ok(found)
}

/// Reads the first `bytes` bytes of every slot of a table's primaries, while transactions run, and
/// then of the larger tables that it grows into. So a row that moves meanwhile is seen at least
/// once, because rows move to larger tables only. This holds as long as the caller has not heard of
/// a newer catalog than the one by which it has opened `table`.
///
/// The slots are read at different times, in no particular order. The scan calls `visit` with the
/// words of each slot. If `visit` cannot use them it returns a reason, and the scan reads the slot
/// again a little later ([`LOG_PAUSE_NS`]). After [`SCAN_ATTEMPTS`] attempts the scan fails with
/// the last reason. This happens, for example, if a dead client has the slot locked.
pub async fn scan(
    lane: &Lane,
    table: &Table,
    bytes: usize,
    visit: &mut dyn FnMut(&[u64]) -> Result<(), Abort>,
) -> Result<(), Stop> {
    let batch = (ROUND_BYTES_MAX / bytes.max(1)).clamp(1, ROUND_VERBS_MAX);
    for (table, shard) in table.and_larger().flat_map(|table| (0..table.shards()).map(move |shard| (table, shard))) {
        if table.objects().is_some() {
            objects::scan(lane, table, shard, bytes, visit).await?;
            continue;
        }
        let (index, slot_bytes) = (table.index(), u64::from(table.entry().spec.layout.slot_bytes));
        let primary = &table.shard_replicas(shard)[0];
        let mut slots = successors(index.slot_behind(0), |slot| index.slot_behind(slot + slot_bytes)).peekable();
        while slots.peek().is_some() {
            let mut unread: Vec<u64> = slots.by_ref().take(batch).collect();
            for attempt in 1.. {
                let mut round = lane.round();
                let reads: Vec<_> = unread.iter().map(|slot| round.read(primary.address(*slot), bytes)).collect();
                let done = lane.execute(round).await?;
                let (mut reads, mut reason) = (reads.into_iter(), None);
                unread.retain(|_| {
                    let refused = reads.next().and_then(|read| visit(done.words(read)).err());
                    reason = refused.or(reason);
                    refused.is_some()
                });
                drop(done);
                match reason {
                    None => break,
                    Some(why) if attempt == SCAN_ATTEMPTS => return Err(why.into()),
                    Some(_) => lane.sleep(LOG_PAUSE_NS).await,
                }
            }
        }
    }
    Ok(())
}

/// Reads the keys of a table step by step, while transactions run. The keys come at different
/// times, in no particular order.
#[derive(Debug, Default)]
pub struct KeyScan {
    shard: u16,
    /// Offset in the shard from which on the next slot is looked for; or if the table has objects,
    /// the number of the next bucket.
    at: u64,
}

/// Keys that [`KeyScan::next`] has found.
#[derive(Debug)]
pub struct FoundKeys {
    /// Keys of records that are present.
    pub keys: Vec<Key>,
    /// Number of slots that are locked exclusively, or could not be read whole. Their keys are not
    /// known.
    pub unsettled: u64,
}

impl KeyScan {
    /// Returns a scan that goes on where another one was ([`KeyScan::place`]).
    #[must_use]
    pub fn from(shard: u16, at: u64) -> KeyScan {
        KeyScan { shard, at }
    }

    /// Returns the shard, and the place in it, from which on the scan looks for the next slot.
    #[must_use]
    pub fn place(&self) -> (u16, u64) {
        (self.shard, self.at)
    }

    /// Reads the next slots, at most `count`. Returns `None` once all slots have been read. Fails
    /// if a node is unreachable.
    pub async fn next(&mut self, lane: &Lane, table: &Table, count: usize) -> Result<Option<FoundKeys>, Stop> {
        if let Some(geometry) = table.objects() {
            // `at` counts main buckets.
            while self.shard < table.shards() && self.at >= geometry.buckets.main {
                (self.shard, self.at) = (self.shard + 1, 0);
            }
            if self.shard >= table.shards() {
                return Ok(None);
            }
            let end = (self.at + (count as u64 / 4).max(1)).min(geometry.buckets.main);
            let buckets = std::mem::replace(&mut self.at, end)..end;
            return objects::keys(lane, table, self.shard, buckets).await.map(Some);
        }
        let (index, shape) = (table.index(), table.shape());
        let slot_bytes = u64::from(table.entry().spec.layout.slot_bytes);
        let count = count.min(ROUND_BYTES_MAX / shape.record_bytes().max(1)).clamp(1, ROUND_VERBS_MAX);
        let mut slots = Vec::with_capacity(count);
        while self.shard < table.shards() && slots.len() < count {
            let Some(slot) = index.slot_behind(self.at) else {
                if !slots.is_empty() {
                    break; // a round reads one shard
                }
                (self.shard, self.at) = (self.shard + 1, 0);
                continue;
            };
            self.at = slot + slot_bytes;
            slots.push(slot);
        }
        if slots.is_empty() {
            return Ok(None);
        }
        let primary = &table.shard_replicas(self.shard)[0];
        let mut round = lane.round();
        let reads: Vec<_> = slots.iter().map(|at| round.read(primary.address(*at), shape.record_bytes())).collect();
        let done = lane.execute(round).await?;
        let mut found = FoundKeys { keys: Vec::new(), unsettled: 0 };
        for read in reads {
            let words = done.words(read);
            let is_locked = shape.validated(words).is_some_and(|header| header.lock.is_exclusive());
            match FetchedRecord::new(words, shape).check() {
                _ if is_locked => found.unsettled += 1,
                Err(_) => found.unsettled += 1,
                Ok(record) if record.is_present() => {
                    let words: Vec<u64> = record.key().collect();
                    let bytes = usize::from(table.entry().spec.layout.key_bytes);
                    found.keys.extend(words.as_bytes().get(..bytes).and_then(Key::new));
                }
                Ok(_) => {}
            }
        }
        Ok(Some(found))
    }
}

/// Counts the rows of a table, and of the larger tables that it grows into, while transactions run.
/// It reads each slot once. A row that is inserted, removed or moved meanwhile may be counted or
/// not. A slot that is locked exclusively or torn counts as one row. Fails if a node is
/// unreachable.
pub async fn count_rows(lane: &Lane, table: &Table) -> Result<u64, Stop> {
    let mut rows = 0;
    for table in table.and_larger() {
        let mut scan = KeyScan::default();
        while let Some(found) = scan.next(lane, table, ROUND_VERBS_MAX).await? {
            rows += found.keys.len() as u64 + found.unsettled;
        }
    }
    Ok(rows)
}

fn words(bytes: u64) -> usize {
    bytes as usize / WORD_BYTES
}

impl Inspection {
    fn lock(&mut self, lock: LockWord) {
        if !lock.is_free() {
            self.locked += 1;
            self.holder = self.holder.or(lock.holder());
        }
    }

    /// Checks the words that lie between the records. In FStore these are structural records.
    fn structure(&mut self, table: &Table, words: &[u64]) {
        if table.fstore().is_none() {
            return;
        }
        let shape = table.structural();
        for header in words.chunks(LINE_BYTES / WORD_BYTES).filter_map(|line| shape.validated(line)) {
            self.lock(header.lock);
            self.torn += u64::from(header.invisible);
        }
    }
}

/// Returns whether a line of the index differs only in a link which the backup lacks, and which
/// leads to a bucket without entries.
async fn only_an_unused_link(
    lane: &Lane,
    table: &Table,
    shard: u16,
    at: u64,
    (ours, theirs): (&[u64], &[u64]),
) -> Result<bool, Stop> {
    let link = LINK_WORD % 8;
    let others = |line: &[u64]| {
        line.iter().enumerate().filter(|(word, _)| *word != link).map(|(_, word)| *word).collect::<Vec<_>>()
    };
    let Some(geometry) = table.cluster_hash() else { return Ok(false) };
    let second_half = (at - HEADER_BYTES) % BUCKET_BYTES as u64 == (BUCKET_BYTES - LINE_BYTES) as u64;
    let in_index = at < geometry.slot_at(0) && second_half;
    if !in_index || theirs.get(link) != Some(&0) || others(ours) != others(theirs) {
        return Ok(false);
    }
    let Some(bucket) = ours.get(link).and_then(|word| linked_bucket(*word)) else { return Ok(false) };
    let mut round = lane.round();
    let read = round.read(table.shard_replicas(shard)[0].address(bucket), BUCKET_BYTES);
    let done = lane.execute(round).await?;
    debug_assert_eq!(done.words(read).len(), BUCKET_WORDS);
    Ok(!done.words(read).chunks_exact(2).take(BUCKET_SLOTS).any(|pair| is_entry(pair[0])))
}
