//! Looks at a table from outside, when nothing runs: is it left as it should be?

use remora_fabric::{LINE_BYTES, Lane};
use remora_index::Table;
use remora_index::cluster_hash::{
    BUCKET_BYTES, BUCKET_SLOTS, BUCKET_WORDS, HEADER_BYTES, LINK_WORD, is_entry, linked_bucket,
};
use remora_memory::Replica;
use remora_sync::{FetchedRecord, LockWord, StableRecord, TransactionId};

use crate::error::Stop;

/// What [`inspect`] found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inspection {
    /// Records present.
    pub records: u64,
    /// Records whose lock is held, and by whom for the first of them.
    pub locked: u64,
    /// Holder of the first locked record.
    pub holder: Option<TransactionId>,
    /// Records that are not whole.
    pub torn: u64,
    /// Lines in which a backup differs from its primary. The header of a shard, which is its primary's own to allocate by,
    /// is not compared, nor a link to a bucket that nobody has inserted into (an insert that aborted leaves it).
    pub differing_lines: u64,
}

/// Bytes compared in one go, if a slot is not larger.
const CHUNK_BYTES: u64 = 4096;

/// Reads a whole table: every record of its primaries is given to `visit`, every line of its backups is compared.
pub async fn inspect(lane: &Lane, table: &Table, mut visit: impl FnMut(&StableRecord<'_>)) -> Result<Inspection, Stop> {
    let mut found = Inspection::default();
    let (geometry, shape) = (table.geometry(), table.shape());
    for shard in 0..table.shards() {
        let replicas = table.shard_replicas(shard);
        let slots_at = geometry.slot_at(0);
        // Chunks of whole slots, or of whole lines before the slots: no record is cut.
        let slots_in_chunk = (CHUNK_BYTES / geometry.slot_bytes).max(1);
        let mut offset = HEADER_BYTES;
        while offset < geometry.bytes() {
            let bytes = if offset < slots_at {
                CHUNK_BYTES.min(slots_at - offset)
            } else {
                (slots_in_chunk * geometry.slot_bytes).min(geometry.bytes() - offset)
            };
            // A round for each: the largest record times its replicas is more than one round holds.
            let read = async |replica: &Replica| {
                let mut round = lane.round();
                let read = round.read(replica.address(offset), bytes as usize);
                lane.execute(round).await.map(|done| (done, read))
            };
            let (done, of_primary) = read(&replicas[0]).await?;
            let primary = done.words(of_primary);
            for backup in &replicas[1..] {
                let (done, of_backup) = read(backup).await?;
                let lines = primary.chunks(8).zip(done.words(of_backup).chunks(8));
                for (at, (ours, theirs)) in (offset..).step_by(LINE_BYTES).zip(lines) {
                    if ours != theirs && !only_an_unused_link(lane, table, shard, at, (ours, theirs)).await? {
                        found.differing_lines += 1;
                    }
                }
            }
            if offset >= slots_at {
                for slot in primary.chunks_exact(geometry.slot_bytes as usize / 8) {
                    let lock = LockWord::from_bits(slot[0]);
                    if !lock.is_free() {
                        found.locked += 1;
                        found.holder = found.holder.or(lock.holder());
                    }
                    match FetchedRecord::new(&slot[..shape.record_bytes() / 8], shape).check() {
                        Ok(record) if record.is_present() => {
                            found.records += 1;
                            visit(&record);
                        }
                        Ok(_) => {}
                        Err(_) => found.torn += 1,
                    }
                }
            }
            offset += bytes;
        }
    }
    Ok(found)
}

/// Whether a line of the index differs only in a link that the backup has not, to a bucket without entries.
async fn only_an_unused_link(
    lane: &Lane,
    table: &Table,
    shard: u16,
    at: u64,
    (ours, theirs): (&[u64], &[u64]),
) -> Result<bool, Stop> {
    let link = LINK_WORD % 8;
    let second_half = (at - HEADER_BYTES) % BUCKET_BYTES as u64 == (BUCKET_BYTES - LINE_BYTES) as u64;
    let others = |line: &[u64]| {
        line.iter().enumerate().filter(|(word, _)| *word != link).map(|(_, word)| *word).collect::<Vec<_>>()
    };
    let in_index = at < table.geometry().slot_at(0) && second_half;
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
