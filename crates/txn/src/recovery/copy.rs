//! Re-replication: the copier gives a joining replica of a shard the records that were written
//! before it joined, while transactions go on.
//!
//! The joining replica has received every write since the beginning of the epoch in which it
//! joined. It gets entries of redo logs or, where replicas are written in place, the writes
//! themselves. It lacks only the records that no transaction has written since. The copier is a
//! client like any other: the next epoch ends it, and other clients find out if it dies. Then
//! another copier makes the whole copy again.
//!
//! ```text
//! redo logs   READ records, buckets, at a copy
//!             -> WRITE entries of them to the copier's own ring at the joining node
//! in place    CAS lock; READ, at the primary
//!             -> WRITE to the joining replica
//!             -> CAS unlock
//! compare     READ at both, until they agree
//! ```
//!
//! 1. *One writer, newest wins.* Where there are redo logs, the joining node's applier stays the
//!    only writer of the replica. A copied record arrives as a log entry, before or after an entry
//!    of a transaction, and the newer version wins.
//! 2. *Nothing that is not committed.* The copier looks at a prepared slot again until it is no
//!    longer prepared. A bucket of the index counts if two things hold. The slots that it links are
//!    there, each in the incarnation that it is linked in. And the bucket is the same before and
//!    after the copier has looked at these slots: an entry that was taken back and linked again,
//!    for another key, has the same incarnation. A link counts when the bucket behind it has had a
//!    committed entry: an insert that was taken back leaves a link that its primary alone has.
//! 3. *Under the lock*, where clients write in place. So while the copier copies a record, no
//!    commit has written some of its replicas and not yet the others.
//! 4. *Equal once*. The comparison ends when each pair of the index, with both words, each link,
//!    and each record has been equal once. A record may also be newer and whole. Later writes reach
//!    the joining replica like any other. The header is not compared, for the next epoch brings it
//!    (`copy_header`).
//!
//! The copier asserts rule 3. Rules 1, 2 and 4 are about what transactions write meanwhile: the
//! campaigns in `crates/lab/tests/fail_over.rs` check them.

use std::collections::VecDeque;

use remora_fabric::limits::{ROUND_BYTES_MAX, ROUND_VERBS_MAX};
use remora_fabric::{LINE_BYTES, Lane, Nanos, NodeId, WORD_BYTES, probes};
use remora_index::cluster_hash::{
    BUCKET_BYTES, BUCKET_SLOTS, BUCKET_WORDS, HEADER_INDIRECT_WORD, HEADER_SLOTS_WORD, LINK_WORD,
    incarnation as index_incarnation, is_entry, linked_bucket, offset,
};
use remora_node::limits::FRAME_BYTES_MAX;
use remora_node::ring::{self, FRAME_OVERHEAD_WORDS, RingWriter};
use remora_node::{MemoryError, Metadata, Pointer, Replica, ShardId};
use remora_record::{FetchedRecord, Life, LockWord, RecordShape, Swap, TransactionId, Version};

use super::{Departed, Shard};
use crate::log::{self, LoggedRecord, PATCH_WORDS, RECORD_WORDS};
use crate::swap::swap_lock;

/// Pause before the copier looks again at a record or bucket that was not ready, in nanoseconds.
const AGAIN_PAUSE: Nanos = 20_000;
/// Shortest time for which the copier looks at a difference again before it gives up, in
/// nanoseconds. It also looks at least [`COMPARISONS`] times.
const COMPARED_FOR: Nanos = 2_000_000_000;
const COMPARISONS: usize = 1_000;

/// Number of buckets in a round. They have seven pairs each, and one round looks at the slots of
/// all of them.
const BUCKETS: usize = ROUND_VERBS_MAX / BUCKET_SLOTS;

/// Returns the version of a record that was read, and version 0 if there are too few words.
fn version_in(shape: &RecordShape, words: &[u64]) -> Version {
    shape.validated(words).map_or(Version::default(), |header| header.version)
}

fn pairs(bucket: &[u64]) -> impl Iterator<Item = &[u64]> {
    bucket.chunks(2).take(BUCKET_SLOTS)
}

/// Counts how often something has been looked at again, and since when.
struct Looks {
    since: Nanos,
    count: usize,
}

impl Looks {
    fn begin(lane: &Lane) -> Looks {
        Looks { since: lane.now(), count: 0 }
    }

    /// Counts one more look, and returns whether the copier is to give up.
    fn enough(&mut self, lane: &Lane) -> bool {
        self.count += 1;
        self.count > COMPARISONS && lane.now() - self.since > COMPARED_FOR
    }
}

/// The client that copies joining replicas, and what it needs for that.
pub struct Copier<'c> {
    /// A lane of the copier, which is registered at all nodes.
    pub lane: &'c Lane,
    /// The copier's ring at the joining node, for all shards that it copies there.
    pub ring: &'c mut RingWriter,
    /// Gives transaction ids of the copier.
    pub ids: &'c dyn Fn() -> Option<TransactionId>,
    /// Tells which clients are recovered: the copier may free their locks.
    pub departed: &'c dyn Departed,
    /// Bytes that the copier may copy in a second; unlimited if `None`.
    pub rate: Option<u64>,
}

/// Gives the joining replica of a shard at a node all records that it lacks, and then compares it
/// with another copy of the shard.
pub async fn copy(mut copier: Copier<'_>, metadata: &Metadata, id: ShardId, to: NodeId) -> Result<(), MemoryError> {
    let Some(shard) = Shard::of(metadata, id) else { return Ok(()) };
    let Some(joining) = shard.placement.replicas.iter().find(|replica| replica.node == to) else { return Ok(()) };
    copier.lane.probe(probes::COPIES);
    if shard.discipline.is_in_place() {
        let places = shard.lockable(copier.lane).await?;
        copier.copy_in_place(&shard, &places, joining).await?;
        return copier.compare(&shard, id, shard.primary(), joining, &places).await;
    }
    // The copier reads the last copy, to spare the primary.
    let from = shard.placement.copies().last().unwrap_or(shard.primary());
    let used = copier.words(shard.primary(), 0, LINE_BYTES).await?;
    let slots = used[HEADER_SLOTS_WORD].min(shard.geometry.slots);
    let places: Vec<u64> = (0..slots).map(|number| shard.geometry.slot_at(number)).collect();
    copier.copy_records(&shard, id, from, &places).await?;
    let buckets = shard.geometry.buckets + used[HEADER_INDIRECT_WORD].min(shard.geometry.indirect);
    copier.copy_buckets(&shard, id, from, buckets).await?;
    copier.until_applied().await?;
    copier.compare(&shard, id, from, joining, &places).await?;
    copier.compare_buckets(&shard, id, from, joining, buckets).await
}

/// Copies the part of the primary's header that no transaction writes to a replica that has
/// everything else. The replica will allocate by it if it becomes the primary. Call it only while
/// no transaction runs.
pub(super) async fn copy_header(lane: &Lane, metadata: &Metadata, id: ShardId, to: NodeId) -> Result<(), MemoryError> {
    let Some(shard) = Shard::of(metadata, id) else { return Ok(()) };
    let Some(joined) = shard.placement.replicas.iter().find(|replica| replica.node == to) else { return Ok(()) };
    // In FStore, this part of the header has what was loaded; the rest of it are records.
    let part = if shard.fstore.is_some() { LINE_BYTES as u64 } else { 0 };
    let mut round = lane.round();
    let read = round.read(shard.at_primary(part), LINE_BYTES);
    let header = lane.execute(round).await?.words(read).to_vec();
    let mut round = lane.round();
    round.write_words(joined.address(part), &header);
    lane.execute(round).await?;
    Ok(())
}

impl Shard<'_> {
    fn primary(&self) -> &Replica {
        &self.placement.replicas[0]
    }

    /// Returns the shape of the record at an offset, which may be a structural record of the index.
    fn shape_at(&self, offset: u64) -> RecordShape {
        let is_structural = self.fstore.as_ref().is_some_and(|fstore| fstore.is_structural(offset));
        if is_structural { remora_record::structural(self.scheme) } else { self.shape }
    }
}

impl Copier<'_> {
    async fn words(&self, replica: &Replica, offset: u64, bytes: usize) -> Result<Vec<u64>, MemoryError> {
        let mut round = self.lane.round();
        let read = round.read(replica.address(offset), bytes);
        Ok(self.lane.execute(round).await?.words(read).to_vec())
    }

    /// Reads records in one round, and returns the place and the words of each.
    async fn records(
        &self,
        shard: &Shard<'_>,
        from: &Replica,
        places: &[u64],
    ) -> Result<Vec<(u64, Vec<u64>)>, MemoryError> {
        let mut round = self.lane.round();
        let reads: Vec<_> =
            places.iter().map(|at| round.read(from.address(*at), shard.shape_at(*at).record_bytes())).collect();
        let done = self.lane.execute(round).await?;
        Ok(places.iter().zip(reads).map(|(at, read)| (*at, done.words(read).to_vec())).collect())
    }

    /// Pauses to keep to the rate.
    async fn pace(&self, bytes: usize) {
        match self.rate {
            Some(rate) => self.lane.sleep(bytes as u64 * 1_000_000_000 / rate.max(1)).await,
            None => self.lane.yield_now().await,
        }
    }

    async fn copy_records(
        &mut self,
        shard: &Shard<'_>,
        id: ShardId,
        from: &Replica,
        places: &[u64],
    ) -> Result<(), MemoryError> {
        let bytes = shard.shape.record_bytes();
        let entry_of = RECORD_WORDS + shard.shape.image_words();
        let fit =
            (FRAME_BYTES_MAX / 2 / WORD_BYTES / entry_of).min(ROUND_BYTES_MAX / 2 / bytes).clamp(1, ROUND_VERBS_MAX);
        let mut left: VecDeque<u64> = places.iter().copied().collect();
        while !left.is_empty() {
            let batch: Vec<u64> = left.drain(..fit.min(left.len())).collect();
            let found = self.records(shard, from, &batch).await?;
            let (mut ready, mut not_yet) = (Vec::new(), 0);
            for (at, words) in &found {
                let image = shard.shape.image_of(words);
                if image.iter().all(|word| *word == 0) {
                    continue;
                }
                let prepared = matches!(shard.shape.life_of_image(image), Some(Life::Prepared { .. }));
                if prepared || FetchedRecord::new(words, &shard.shape).check().is_err() {
                    left.push_back(*at);
                    not_yet += 1;
                    continue;
                }
                let pointer = Pointer::new(id, *at);
                ready.push(LoggedRecord { pointer, old_version: image[0], image, patches: &[] });
            }
            self.log(&ready).await?;
            if not_yet > 0 && not_yet == batch.len() {
                self.lane.sleep(AGAIN_PAUSE).await;
            }
            self.pace(batch.len() * bytes).await;
        }
        Ok(())
    }

    async fn copy_buckets(
        &mut self,
        shard: &Shard<'_>,
        id: ShardId,
        from: &Replica,
        buckets: u64,
    ) -> Result<(), MemoryError> {
        let geometry = &shard.geometry;
        let mut left: VecDeque<u64> = (0..buckets).collect();
        while !left.is_empty() {
            let batch: Vec<u64> = left.drain(..BUCKETS.min(left.len())).collect();
            let found = self.committed(shard, from, &batch).await?;
            let mut patches = Vec::new();
            let mut not_yet = 0;
            for (number, bucket) in batch.iter().zip(found) {
                let Some(bucket) = bucket else {
                    left.push_back(*number);
                    not_yet += 1;
                    continue;
                };
                for (slot, pair) in pairs(&bucket).enumerate().filter(|(_, pair)| pair[0] != 0) {
                    patches.extend([geometry.pair_at(*number, slot), pair[0], pair[1]]);
                }
                if bucket[LINK_WORD] != 0 {
                    patches.extend([geometry.link_at(*number), bucket[LINK_WORD], 0]);
                }
            }
            if !patches.is_empty() {
                let pointer = Pointer::new(id, geometry.slot_at(0));
                self.log(&[LoggedRecord { pointer, old_version: 0, image: &[], patches: &patches }]).await?;
            }
            if not_yet > 0 && not_yet == batch.len() {
                self.lane.sleep(AGAIN_PAUSE).await;
            }
            self.pace(batch.len() * BUCKET_BYTES).await;
        }
        Ok(())
    }

    /// Compares every bucket of both replicas, until each of its pairs, and its link, has been
    /// equal to what was committed in the copy. Where one replica is ahead, the bucket is looked at
    /// again as for any other difference: that replica may be wrong.
    async fn compare_buckets(
        &mut self,
        shard: &Shard<'_>,
        id: ShardId,
        from: &Replica,
        joining: &Replica,
        buckets: u64,
    ) -> Result<(), MemoryError> {
        // The buckets that are left. A flag is true for each pair, or link, of a bucket that has
        // not been equal yet.
        let mut left: VecDeque<(u64, [bool; BUCKET_WORDS / 2])> =
            (0..buckets).map(|number| (number, [true; BUCKET_WORDS / 2])).collect();
        let mut looks = Looks::begin(self.lane);
        while !left.is_empty() {
            let batch: Vec<_> = left.drain(..BUCKETS.min(left.len())).collect();
            let numbers: Vec<u64> = batch.iter().map(|(number, _)| *number).collect();
            let wanted = self.committed(shard, from, &numbers).await?;
            let joined = self.buckets(shard, joining, &numbers).await?;
            let mut agree = 0;
            for ((number, mut open), (wanted, joined)) in batch.into_iter().zip(wanted.iter().zip(&joined)) {
                let both = wanted.iter().flat_map(|wanted| wanted.chunks(2)).zip(joined.chunks(2));
                open.iter_mut().zip(both).for_each(|(open, (wanted, joined))| *open &= wanted != joined);
                if open.contains(&true) {
                    left.push_back((number, open));
                } else {
                    agree += 1;
                }
            }
            if agree > 0 {
                looks = Looks::begin(self.lane);
            } else if looks.enough(self.lane) {
                tracing::error!(?id, node = %joining.node, ?numbers, "a joining replica's index is not what it is a copy of");
                return Err(MemoryError::Differs { shard: id, node: joining.node });
            } else {
                self.lane.sleep(AGAIN_PAUSE).await;
            }
            self.pace(2 * numbers.len() * BUCKET_BYTES).await;
        }
        Ok(())
    }

    async fn buckets(&self, shard: &Shard<'_>, from: &Replica, numbers: &[u64]) -> Result<Vec<Vec<u64>>, MemoryError> {
        let mut round = self.lane.round();
        let address = |number: &u64| from.address(shard.geometry.bucket_at(*number));
        let reads: Vec<_> = numbers.iter().map(|number| round.read(address(number), BUCKET_BYTES)).collect();
        let done = self.lane.execute(round).await?;
        Ok(reads.into_iter().map(|read| done.words(read).to_vec()).collect())
    }

    /// Reads buckets as committed transactions have left them. Returns `None` for a bucket that has
    /// an entry of an insert or a delete under way, or a link to such a bucket.
    async fn committed(
        &self,
        shard: &Shard<'_>,
        from: &Replica,
        numbers: &[u64],
    ) -> Result<Vec<Option<Vec<u64>>>, MemoryError> {
        let mut buckets = self.settled(shard, from, numbers).await?;
        let linked = |bucket: &Vec<u64>| shard.geometry.bucket_number(linked_bucket(bucket[LINK_WORD])?);
        let behind: Vec<u64> = buckets.iter().flatten().filter_map(linked).collect();
        if behind.is_empty() {
            return Ok(buckets);
        }
        let mut behind = self.settled(shard, from, &behind).await?.into_iter();
        for bucket in buckets.iter_mut().filter(|bucket| bucket.as_ref().and_then(linked).is_some()) {
            match (bucket.as_mut(), behind.next().flatten()) {
                (Some(words), Some(next)) if pairs(&next).all(|pair| pair[0] == 0) => words[LINK_WORD] = 0,
                (_, Some(_)) => {}
                (_, None) => *bucket = None,
            }
        }
        Ok(buckets)
    }

    /// Reads buckets, and returns `None` for one that has an entry of an insert or a delete under
    /// way. Links are returned as they are, also a link to a bucket without a committed entry.
    async fn settled(
        &self,
        shard: &Shard<'_>,
        from: &Replica,
        numbers: &[u64],
    ) -> Result<Vec<Option<Vec<u64>>>, MemoryError> {
        debug_assert!(shard.fstore.is_none());
        let buckets = self.buckets(shard, from, numbers).await?;
        let mut round = self.lane.round();
        let mut header = |entry: u64| round.read(from.address(offset(entry)), shard.shape.life_bytes());
        let entries = |bucket| pairs(bucket).map(|pair| pair[0]).filter(|entry| is_entry(*entry));
        let reads: Vec<Vec<_>> =
            buckets.iter().map(|bucket| entries(bucket).map(|entry| (entry, header(entry))).collect()).collect();
        let done = self.lane.execute(round).await?;
        let is_there = |(entry, read): &(u64, _)| {
            let life = shard.shape.life(done.words(*read));
            matches!(life, Some(Life::Present { incarnation }) if incarnation == index_incarnation(*entry))
        };
        let there: Vec<bool> = reads.iter().map(|reads| reads.iter().all(is_there)).collect();
        let after = self.buckets(shard, from, numbers).await?;
        let settled = buckets.into_iter().zip(after).zip(there);
        Ok(settled.map(|((bucket, after), there)| (there && bucket == after).then_some(bucket)).collect())
    }

    /// Sends a log entry with these records to the joining node.
    async fn log(&mut self, records: &[LoggedRecord<'_>]) -> Result<(), MemoryError> {
        let Some(id) = (self.ids)().filter(|_| !records.is_empty()) else { return Ok(()) };
        let id = id.to_bits();
        let of_records: usize = records.iter().map(|one| RECORD_WORDS + one.image.len() + one.patches.len()).sum();
        debug_assert!(records.iter().all(|one| one.patches.len().is_multiple_of(PATCH_WORDS)));
        let words = FRAME_OVERHEAD_WORDS + log::HEADER_WORDS + of_records;
        self.ring.settle();
        let reservation = loop {
            if let Some(reservation) = self.ring.reserve(words) {
                break reservation;
            }
            if !self.learn().await? {
                self.lane.sleep(AGAIN_PAUSE).await;
            }
        };
        let mut round = self.lane.round();
        let staged = round.stage_words(words);
        let frame = round.staged_mut(staged);
        let at = 1 << self.ring.node().0;
        log::encode(&mut frame[2..words - 1], 0, at, records.iter().copied());
        ring::seal(frame, id);
        self.ring.append(&mut round, staged, reservation, id);
        self.lane.execute(round).await?;
        Ok(())
    }

    /// Asks how far the joining node has applied the ring. Returns whether the node has applied
    /// anything since the copier last asked.
    async fn learn(&mut self) -> Result<bool, MemoryError> {
        let mut round = self.lane.round();
        let read = round.read(self.ring.applied_at(), WORD_BYTES);
        let applied = self.lane.execute(round).await?.words(read)[0];
        let before = self.ring.applied();
        self.ring.learn(applied);
        Ok(self.ring.applied() > before)
    }

    async fn until_applied(&mut self) -> Result<(), MemoryError> {
        while !self.ring.drained() {
            if !self.learn().await? {
                self.lane.sleep(AGAIN_PAUSE).await;
            }
        }
        Ok(())
    }

    async fn copy_in_place(&mut self, shard: &Shard<'_>, places: &[u64], joining: &Replica) -> Result<(), MemoryError> {
        let bytes = shard.shape.record_bytes().max(LINE_BYTES);
        let fit = (ROUND_BYTES_MAX / 4 / bytes).clamp(1, ROUND_VERBS_MAX / 2);
        let mut left: VecDeque<u64> = places.iter().copied().collect();
        while !left.is_empty() {
            let batch: Vec<u64> = left.drain(..fit.min(left.len())).collect();
            let found = self.records(shard, shard.primary(), &batch).await?;
            // A transaction that writes to an empty place for the first time writes to the joining
            // replica too.
            let is_there =
                |(at, words): &&(u64, Vec<u64>)| shard.shape_at(*at).image_of(words).iter().any(|word| *word != 0);
            let there: Vec<u64> = found.iter().filter(is_there).map(|(at, _)| *at).collect();
            let locked = self.copy_locked(shard, &there, joining).await?;
            if !locked.is_empty() {
                left.extend(&locked);
                self.lane.sleep(AGAIN_PAUSE).await;
            }
            self.pace(batch.len() * bytes).await;
        }
        Ok(())
    }

    /// Copies records, each under its lock. Returns the places that other transactions have locked.
    async fn copy_locked(
        &mut self,
        shard: &Shard<'_>,
        places: &[u64],
        joining: &Replica,
    ) -> Result<Vec<u64>, MemoryError> {
        let Some(me) = (self.ids)().filter(|_| !places.is_empty()) else { return Ok(Vec::new()) };
        let (lock, unlock) = (Swap::lock(me.lock()), Swap::unlock(me.lock()));
        let mut round = self.lane.round();
        let asked: Vec<_> = places
            .iter()
            .map(|at| {
                let address = shard.at_primary(*at);
                (swap_lock(&mut round, address, lock), round.read(address, shard.shape_at(*at).record_bytes()))
            })
            .collect();
        let done = self.lane.execute(round).await?;
        let (mut others, mut ours) = (Vec::new(), Vec::new());
        for (at, (swap, read)) in places.iter().zip(asked) {
            if done.swapped(swap) {
                ours.push((*at, shard.shape_at(*at).image_of(done.words(read)).to_vec()));
            } else {
                others.push((*at, LockWord::from_bits(done.previous(swap))));
            }
        }
        drop(done);
        let mut round = self.lane.round();
        for (at, image) in &ours {
            round.write_words(joining.address(at + shard.shape_at(*at).image_at()), image);
        }
        for (at, lock) in &others {
            if lock.holder().is_some_and(|holder| self.departed.is_recovered(holder.owner())) {
                swap_lock(&mut round, shard.at_primary(*at), Swap::unlock(*lock));
            }
        }
        self.lane.execute(round).await?;
        let mut round = self.lane.round();
        let freed: Vec<_> = ours.iter().map(|(at, _)| swap_lock(&mut round, shard.at_primary(*at), unlock)).collect();
        let done = self.lane.execute(round).await?;
        debug_assert!(
            freed.into_iter().all(|freed| done.swapped(freed)) || mutant!(),
            "copy 3: the copier has a record locked until it has written the copy"
        );
        drop(done);
        Ok(others.into_iter().map(|(at, _)| at).collect())
    }

    /// Compares every record of both replicas until the two agree. They agree if they are equal.
    /// They also agree if a transaction is writing the record and the joining replica has it whole,
    /// and not older than the copy had it before.
    async fn compare(
        &mut self,
        shard: &Shard<'_>,
        id: ShardId,
        from: &Replica,
        joining: &Replica,
        places: &[u64],
    ) -> Result<(), MemoryError> {
        let bytes = shard.shape.record_bytes().max(LINE_BYTES);
        let fit = (ROUND_BYTES_MAX / 4 / bytes).clamp(1, ROUND_VERBS_MAX / 2);
        for batch in places.chunks(fit) {
            let first: Vec<Version> = self
                .records(shard, from, batch)
                .await?
                .iter()
                .map(|(at, words)| version_in(&shard.shape_at(*at), words))
                .collect();
            let mut left: Vec<(u64, Version)> = batch.iter().copied().zip(first).collect();
            let mut looks = Looks::begin(self.lane);
            loop {
                let places: Vec<u64> = left.iter().map(|(at, _)| *at).collect();
                self.pace(2 * places.len() * bytes).await;
                let ours = self.records(shard, joining, &places).await?;
                let theirs = self.records(shard, from, &places).await?;
                let mut again = Vec::new();
                for (((at, version), (_, ours)), (_, theirs)) in left.iter().zip(ours).zip(theirs) {
                    let shape = shard.shape_at(*at);
                    let newer = version_in(&shape, &ours) >= *version
                        && *version > Version::default()
                        && shape.image_of(&ours).first() != shape.image_of(&theirs).first()
                        && FetchedRecord::new(&ours, &shape).check().is_ok();
                    if shape.image_of(&ours) != shape.image_of(&theirs) && !newer {
                        again.push((*at, *version));
                    }
                }
                left = again;
                let Some((at, _)) = left.first() else { break };
                if looks.enough(self.lane) {
                    tracing::error!(?id, node = %joining.node, at, "a joining replica is not what it is a copy of");
                    return Err(MemoryError::Differs { shard: id, node: joining.node });
                }
                self.lane.sleep(AGAIN_PAUSE).await;
            }
        }
        Ok(())
    }
}
