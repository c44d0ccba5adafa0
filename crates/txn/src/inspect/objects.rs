//! Reads tables of objects, whose records are in blocks: a bucket says which blocks count.

use std::ops::Range;

use remora_fabric::limits::{ROUND_BYTES_MAX, ROUND_VERBS_MAX};
use remora_fabric::{Lane, WORD_BYTES};
use remora_index::objects::{BUCKET_BYTES, LINK_WORD, OBJECT_BYTES, objects};
use remora_index::{BucketRef, Table};
use remora_node::connected;
use remora_record::{FetchedRecord, Key, LockWord, Place, StableRecord, TransactionId};
use zerocopy::IntoBytes;

use super::{FoundKeys, Inspection};
use crate::error::{Abort, Stop};
use crate::limits::{LOG_PAUSE_NS, SCAN_ATTEMPTS};

/// An object, as a READ of its bucket has found it.
#[derive(Clone, Copy)]
pub(crate) struct Object {
    /// Offset in the shard.
    pub(crate) at: u64,
    pub(crate) lock: LockWord,
    pub(crate) place: Place,
}

/// A bucket of a chain, as a READ has found it.
#[derive(Clone, Copy)]
pub(crate) struct Bucket {
    pub(crate) number: u64,
    pub(crate) lock: LockWord,
}

/// Number of main buckets that a step reads.
const BUCKETS: u64 = 32;

/// Reads the chains of some main buckets of a shard. Returns their objects, and their buckets.
///
/// An overflow bucket counts only if a chain has it. A client writes the bucket before it decides
/// to link it, so a bucket in no chain may name blocks of an attempt that has aborted.
pub(crate) async fn read_chains(
    lane: &Lane,
    table: &Table,
    shard: u16,
    main: Range<u64>,
) -> Result<(Vec<Object>, Vec<Bucket>), Stop> {
    let Some(geometry) = table.objects() else { return Ok((Vec::new(), Vec::new())) };
    let (mut found, mut buckets, mut linked) = (Vec::new(), Vec::new(), Vec::new());
    let mut take = |bucket: u64, words: &[u64], linked: &mut Vec<u64>| {
        buckets.push(Bucket { number: bucket, lock: LockWord::from_bits(words[0]) });
        linked.extend(geometry.linked(words[LINK_WORD]).filter(|next| *next >= geometry.buckets.main));
        found.extend(objects(words).enumerate().map(|(number, (lock, place))| Object {
            at: geometry.object_at(bucket, number),
            lock: LockWord::from_bits(lock),
            place,
        }));
    };
    let mut round = lane.round();
    let at = table.bucket_address(BucketRef { shard, bucket: main.start });
    let read = round.read(at, BUCKET_BYTES * (main.end - main.start) as usize);
    let done = lane.execute(round).await?;
    for (bucket, words) in main.zip(done.words(read).chunks_exact(BUCKET_BYTES / WORD_BYTES)) {
        take(bucket, words, &mut linked);
    }
    drop(done);
    // Chains never shrink, so a link stays. If links were damaged, they could form a ring.
    for _ in 0..geometry.buckets.overflow {
        if linked.is_empty() {
            break;
        }
        let mut next = Vec::new();
        for some in linked.chunks(ROUND_VERBS_MAX.min(ROUND_BYTES_MAX / BUCKET_BYTES)) {
            let mut round = lane.round();
            let mut read =
                |bucket: u64| (bucket, round.read(table.bucket_address(BucketRef { shard, bucket }), BUCKET_BYTES));
            let reads: Vec<_> = some.iter().map(|bucket| read(*bucket)).collect();
            let done = lane.execute(round).await?;
            reads.into_iter().for_each(|(bucket, read)| take(bucket, done.words(read), &mut next));
        }
        linked = next;
    }
    Ok((found, buckets))
}

/// What is done with an object, the words of its block, and the object as it is behind the READ of
/// the block.
type Visit<'v> = dyn FnMut(Object, &[u64], [u64; 2]) -> Result<(), Stop> + 'v;

/// Reads the blocks of objects, as many as one round has room for, and visits each.
async fn read_blocks(
    lane: &Lane,
    (table, shard): (&Table, u16),
    objects: &[Object],
    visit: &mut Visit<'_>,
) -> Result<(), Stop> {
    let Some(geometry) = table.objects() else { return Ok(()) };
    let bytes = table.shape().record_bytes();
    let batch = (ROUND_BYTES_MAX / (bytes + OBJECT_BYTES)).clamp(1, ROUND_VERBS_MAX / 2);
    let primary = &table.shard_replicas(shard)[0];
    for objects in objects.chunks(batch) {
        let mut round = lane.round();
        let reads: Vec<_> = objects
            .iter()
            .filter_map(|object| {
                let block = geometry.block_at(object.place.block()?)?;
                let read = round.read(primary.address(block), bytes);
                Some((*object, read, round.read(primary.address(object.at), OBJECT_BYTES)))
            })
            .collect();
        let done = lane.execute(round).await?;
        for (object, read, again) in reads {
            let again = done.words(again);
            visit(object, done.words(read), [again[0], again[1]])?;
        }
    }
    Ok(())
}

/// Returns a record, if the words are those of a block that an object names.
fn record_of<'w>(table: &'w Table, object: Object, words: &'w [u64]) -> Option<StableRecord<'w>> {
    let record = FetchedRecord::new(words, table.shape()).check_in_place().ok()?;
    (record.extra().first() == Some(&object.place.unmarked())).then_some(record)
}

/// Returns the numbers of the main buckets of a shard, some at a time.
pub(crate) fn steps(table: &Table) -> impl Iterator<Item = Range<u64>> + use<> {
    let count = table.index().buckets().main;
    (0..count).step_by(BUCKETS as usize).map(move |first| first..(first + BUCKETS).min(count))
}

/// Reads a whole table, while no transaction runs.
pub(super) async fn inspect(
    lane: &Lane,
    table: &Table,
    found: &mut Inspection,
    visit: &mut dyn FnMut(&StableRecord<'_>),
) -> Result<(), Stop> {
    let mut clients = Vec::new();
    for (shard, buckets) in (0..table.shards()).flat_map(|shard| steps(table).map(move |step| (shard, step))) {
        if buckets.start == 0 {
            clients = connected(lane, table.shard_replicas(shard)[0].node).await?;
        }
        let (objects, buckets) = read_chains(lane, table, shard, buckets).await?;
        let of_objects = objects.iter().map(|object| object.lock);
        for lock in buckets.into_iter().map(|bucket| bucket.lock).chain(of_objects) {
            let is_held_by = |holder: TransactionId| clients.iter().any(|client| client.incarnation == holder.owner());
            if lock.holder().is_none_or(is_held_by) {
                found.lock(lock);
            } else {
                found.abandoned += 1;
            }
        }
        read_blocks(lane, (table, shard), &objects, &mut |object, words, _| {
            match record_of(table, object, words) {
                Some(record) => {
                    found.records += 1;
                    visit(&record);
                }
                None => found.torn += 1,
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Reads the first `bytes` bytes of every record of a shard, while transactions run. What a lock's
/// holder has decided may not be there yet, so an object that is locked is read again later.
pub(super) async fn scan(
    lane: &Lane,
    table: &Table,
    shard: u16,
    bytes: usize,
    visit: &mut dyn FnMut(&[u64]) -> Result<(), Abort>,
) -> Result<(), Stop> {
    for step in steps(table) {
        for bucket in step {
            for attempt in 1.. {
                let (objects, _) = read_chains(lane, table, shard, bucket..bucket + 1).await?;
                let locked = objects.iter().find(|object| !object.lock.is_free());
                let mut reason = locked.map(|object| Abort::Locked(object.lock));
                let mut records = Vec::new();
                read_blocks(lane, (table, shard), &objects, &mut |object, words, again| {
                    if record_of(table, object, words).is_none()
                        || again != [object.lock.to_bits(), object.place.to_bits()]
                    {
                        reason = Some(Abort::Torn);
                    } else {
                        records.push(words.to_vec());
                    }
                    Ok(())
                })
                .await?;
                // A chain's records are shown when all of them can be.
                if reason.is_none() {
                    reason =
                        records.iter().find_map(|words| visit(words.get(..bytes / WORD_BYTES).unwrap_or(&[])).err());
                }
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

/// Reads the keys of the chains of some main buckets of a shard, while transactions run.
pub(super) async fn keys(lane: &Lane, table: &Table, shard: u16, buckets: Range<u64>) -> Result<FoundKeys, Stop> {
    let mut found = FoundKeys { keys: Vec::new(), unsettled: 0 };
    let key_bytes = usize::from(table.entry().spec.layout.key_bytes);
    let (objects, _) = read_chains(lane, table, shard, buckets).await?;
    found.unsettled += objects.iter().filter(|object| !object.lock.is_free()).count() as u64;
    let free: Vec<Object> = objects.into_iter().filter(|object| object.lock.is_free()).collect();
    read_blocks(lane, (table, shard), &free, &mut |object, words, again| {
        match record_of(table, object, words) {
            Some(record) if again == [object.lock.to_bits(), object.place.to_bits()] => {
                let words: Vec<u64> = record.key().collect();
                found.keys.extend(words.as_bytes().get(..key_bytes).and_then(Key::new));
            }
            _ => found.unsettled += 1,
        }
        Ok(())
    })
    .await?;
    Ok(found)
}
