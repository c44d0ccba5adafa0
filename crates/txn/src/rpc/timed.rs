//! Calls about the times of commits: what the primary's CPU notes of reads, and how it answers
//! readers of snapshots. `stamps.rs` has what it remembers.

use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::limits::ROUND_WORDS_MAX;
use remora_fabric::{NodeId, WORD_BYTES, copy};
use remora_index::{Patch, Presence};
use remora_node::{Pointer, ShardId, node};
use remora_record::{Key, Life, LockWord, Swap};
use zerocopy::IntoBytes;

use super::{Asked, Code, PREPARES, RpcHandler, swap};
use crate::log::{PATCH_WORDS, patch};
use crate::stamps::{Cut, Stamps, Then};
use crate::vector::{Commits, UNKNOWN, Vector};

/// First word of an answer to CLAIM which says that the record's image at that time follows.
pub(crate) const FOUND: u64 = 1;
/// First word of an answer to CLAIM which says that the record is locked, and that the holder's
/// time may not be above the reader's.
pub(crate) const BUSY: u64 = 2;
/// First word of an answer to CLAIM which says that what was at that time is not known any more.
pub(crate) const LATER: u64 = 3;
/// First word of an answer to CLAIM which says that the key was absent at that time.
pub(crate) const ABSENT: u64 = 4;
/// Set in the upper half of the first word of a CLAIM: the CPU notes the time of the read.
pub(crate) const CLAIMS: usize = 1;
/// Set in the upper half of the first word of a CLAIM: the CPU looks at the lock.
pub(crate) const WAITS: usize = 2;
/// Bits of the upper half of the first word of a CLAIM below the number of records.
const FLAG_BITS: u32 = 8;
/// Set in the upper half of the first word of a CLAIM: the vector of the snapshot follows behind
/// the records, and there is no time.
pub(crate) const HAS_VECTOR: usize = 4;
/// Words of a reply to LOCK: the lock word before, the version, and ts. Under vector timestamps,
/// the last one is the number of readers, and their names follow.
pub(crate) const LOCK_REPLY_WORDS: usize = 3;
/// Words of a reply to LOCK_KEY before what READ or PREPARE would reply: whether the caller has the
/// lock, and ts.
pub(crate) const LOCKED_KEY_WORDS: usize = 2;
/// Readers that a reply to LOCK names at most.
pub(crate) const READERS_TOLD: usize = 4;

/// Returns the first word of a CLAIM of this number of records.
pub(crate) fn claim_word(flags: usize, records: usize) -> u64 {
    Code::Claim.word(flags | records << FLAG_BITS)
}

/// Returns the number of records of a CLAIM, from the upper half of its first word.
pub(super) fn claimed(count: usize) -> usize {
    count >> FLAG_BITS
}

/// Adds a record to a CLAIM, whose answer gets `room` words of the reply.
pub(crate) fn push_claimed(request: &mut Vec<u64>, shard: ShardId, room: usize, key: &[u64]) {
    request.push(u64::from(shard.0) | (key.len() as u64) << 16 | (room as u64) << 32);
    request.extend_from_slice(key);
}

/// Takes the first record off the records of a CLAIM. Returns its shard, the room of its answer,
/// its key, and the rest.
fn split_claimed(records: &[u64]) -> Option<(ShardId, usize, &[u64], &[u64])> {
    let (&head, rest) = records.split_first()?;
    let (key, rest) = rest.split_at_checked(usize::from((head >> 16) as u16))?;
    Some((ShardId(head as u16), (head >> 32) as usize, key, rest))
}

/// The words of an image up to the time of its commit: version, meta, time.
const TIMED_WORDS: usize = 3;

/// Returns the word that bounds all times of which the node has heard (`stamps.rs`).
pub(super) fn clock(words: &[AtomicU64]) -> &AtomicU64 {
    &words[node::clock_at(NodeId(0)).offset as usize / WORD_BYTES]
}

impl RpcHandler {
    pub(super) fn claim(&self, count: usize, arguments: &[u64], reply: &mut Vec<u64>) -> Option<()> {
        let (flags, number) = (count & ((1 << FLAG_BITS) - 1), claimed(count));
        let (&time, mut records) = arguments.split_first()?;
        let known = self.known()?;
        let cut = match flags & HAS_VECTOR {
            0 => Cut::UpTo(time),
            _ => {
                let behind = (0..number).try_fold(records, |rest, _| Some(split_claimed(rest)?.3))?;
                Cut::Vector(Vector::from_words(behind)?)
            }
        };
        for _ in 0..number {
            let (shard, room, key, rest) = split_claimed(records)?;
            let end = reply.len().checked_add(room).filter(|end| *end <= ROUND_WORDS_MAX)?;
            // An answer without words says that the question makes no sense.
            known.shard(self.region.words(), shard).and_then(|mut asked| asked.claim(flags, cut, key, reply));
            if reply.len() > end {
                return None;
            }
            reply.resize(end, 0);
            records = rest;
        }
        Some(())
    }

    /// Notes a time of which the node has heard.
    pub(super) fn hear(&self, arguments: &[u64]) -> Option<()> {
        let &[time] = arguments else { return None };
        clock(self.region.words()).fetch_max(time, Ordering::AcqRel);
        Some(())
    }

    /// Replies all commits that this CPU has heard of, under vector timestamps, if they fit.
    pub(super) fn heard(&self, arguments: &[u64], reply: &mut Vec<u64>) -> Option<()> {
        let &[room] = arguments else { return None };
        let (known, mut heard) = (self.known()?, Commits::default());
        for stripe in &known.stripes {
            let stripe = stripe.lock().ok()?;
            let stamps = stripe.stamps.values().filter(|stamps| known.epoch == Some(stamps.epoch()));
            stamps.flat_map(Stamps::heard).for_each(|commit| heard.add(commit));
        }
        if known.began_late() {
            heard.add(UNKNOWN);
        }
        reply.push(heard.names().len() as u64);
        if heard.names().len() as u64 <= room {
            reply.extend_from_slice(heard.names());
        }
        Some(())
    }
}

impl Asked<'_> {
    /// Returns what this CPU remembers of the times of the shard's records.
    pub(super) fn stamps(&mut self) -> &mut Stamps {
        Stamps::of(&mut self.stripe.stamps, self.shard.id, self.life)
    }

    /// Whether times are names of commits.
    fn has_vectors(&self) -> bool {
        self.discipline.has_vectors()
    }

    /// Adds to the reply to a LOCK what the holder of the lock has to know of others.
    pub(super) fn locked(&mut self, slot: u64, time: u64, is_taken: bool, reply: &mut Vec<u64>) {
        let has_vectors = self.has_vectors();
        let stamps = self.stamps();
        match is_taken {
            true if has_vectors => {
                let readers = stamps.readers(slot);
                reply.push(readers.len() as u64);
                reply.extend(readers.iter().take(READERS_TOLD));
            }
            true => reply.push(stamps.locked(slot, time)),
            false => reply.push(if has_vectors { 0 } else { stamps.ts(slot, time) }),
        }
    }

    /// Answers READ, or PREPARE if the key is to be inserted, and locks the record that this is
    /// about. An absent key has no record to lock, even if a slot is prepared for it, unless the
    /// caller is to insert it. Nothing happens in between, because calls about a shard run one
    /// after the other.
    pub(super) fn lock_key(&mut self, flags: usize, me: u64, key: &[u64], reply: &mut Vec<u64>) -> Option<()> {
        if !self.discipline.stamps_at_release() {
            return None;
        }
        let (prepares, start) = (flags & PREPARES != 0, reply.len());
        reply.extend([0; LOCKED_KEY_WORDS]);
        self.about_key(if prepares { Code::Prepare } else { Code::Read }, key, reply)?;
        let Some((at, slot, life)) = self.record_of(key) else { return Some(()) };
        if !prepares && !matches!(life, Some(Life::Present { .. })) {
            return Some(());
        }
        let [lock, _] = self.cpu_lock(at)?;
        let before = swap(lock, Swap::lock(LockWord::from_bits(me)));
        if before.is_free() || before.to_bits() == me {
            let time = self.time_of(at);
            let ts = self.stamps().locked(slot, time);
            reply[start..start + LOCKED_KEY_WORDS].copy_from_slice(&[1, ts]);
        }
        Some(())
    }

    /// Frees the lock of a key's record, if the caller has it.
    pub(super) fn free_key(&mut self, me: u64, key: &[u64]) -> Option<()> {
        if !self.discipline.stamps_at_release() {
            return None;
        }
        match self.record_of(key) {
            Some((at, ..)) => self.unlock(at, me),
            None => Some(()),
        }
    }

    /// Returns the record that the index has for a key: the index of its first word, its slot, and
    /// whether the key is present.
    fn record_of(&self, key: &[u64]) -> Option<(usize, u64, Option<Life>)> {
        let key = self.stamped_key(key)?;
        let Presence::Linked { location, .. } = self.shard.find(self.words, &key) else { return None };
        let slot = location.pointer.offset();
        let at = self.shard.slot_word(slot)?;
        let mut head = [0; TIMED_WORDS];
        copy::read(self.words, at + 1, &mut head);
        Some((at, slot, self.shard.shape.life_of_image(&head)))
    }

    /// Frees a lock. If it may have protected a read, first notes the time of the read, in the same
    /// step. Without a time, the holder's client is dead, and recovered: it may have read the
    /// record at any time of which this node has heard.
    pub(super) fn release(&mut self, at: usize, pointer: Pointer, me: u64, time: Option<u64>) -> Option<()> {
        let stamps = self.discipline.stamps_at_release();
        if stamps && !(time.is_some() && mutant!(ReleaseUnstamped)) {
            let time = time.unwrap_or_else(|| clock(self.words).load(Ordering::Acquire));
            self.stamp_locked(at, pointer, me, time);
        }
        self.unlock(at, me)
    }

    /// Notes that the holder of a lock has read the record at a time, if `me` is the holder.
    pub(super) fn stamp_locked(&mut self, at: usize, pointer: Pointer, me: u64, time: u64) {
        let is_held = self.words[at].load(Ordering::Acquire) == me;
        if is_held && time > 0 && self.discipline.stamps_at_release() {
            self.stamps().raise(pointer.offset(), time);
            self.heard_of(time);
        }
    }

    /// Notes in the node's memory that the node has heard of a time.
    fn heard_of(&self, time: u64) {
        if self.has_vectors() {
            return;
        }
        clock(self.words).fetch_max(time, Ordering::AcqRel);
    }

    /// Returns the time of the commit that has installed a record.
    pub(super) fn time_of(&self, at: usize) -> u64 {
        let mut head = [0; TIMED_WORDS];
        copy::read(self.words, at + 1, &mut head);
        self.shard.shape.time_of_image(&head)
    }

    /// Returns the word of the hash of the key that a slot's record has.
    fn key_word(&self, at: usize) -> Option<u64> {
        let key: Vec<u64> =
            self.shard.shape.key_places().map(|place| self.words[at + place].load(Ordering::Acquire)).collect();
        Some(Key::new(key.as_bytes().get(..self.key_bytes.into())?)?.hash().word)
    }

    /// Keeps the version of a record that a commit is about to replace.
    pub(super) fn keep_older(&mut self, at: usize, slot: u64, image: &[u64]) {
        let time = self.shard.shape.time_of_image(image);
        if !self.discipline.is_stamped() || time == 0 {
            return;
        }
        self.heard_of(time);
        let mut record = vec![0; self.shard.shape.record_bytes() / WORD_BYTES];
        copy::read(self.words, at, &mut record);
        let before = self.shard.shape.image_of(&record);
        let is_present = matches!(self.shard.shape.life_of_image(before), Some(Life::Present { .. }));
        let from = match self.key_word(at).filter(|_| !is_present) {
            Some(word) if self.has_vectors() => self.stamps().absent_since(word),
            Some(word) => self.stamps().gone(word),
            None => self.shard.shape.time_of_image(before),
        };
        debug_assert!(
            from < time || !is_present || self.has_vectors() || mutant!(),
            "dst 2: a commit's time is above the time of what it replaces"
        );
        let before = is_present.then(|| before.into());
        self.stamps().replaced(slot, from, time, before);
    }

    /// Returns the entry of the index that patches are to change, as it is before.
    pub(super) fn linking_entry(&self, patches: &[u64]) -> Option<u64> {
        let patches = patches.chunks_exact(PATCH_WORDS).filter_map(patch);
        let mut pairs = patches.filter_map(|patch| match patch {
            Patch::Entry { at, .. } if self.shard.geometry.is_pair(at) => Some(at),
            _ => None,
        });
        let bucket_slot = pairs.next()?;
        let word = self.words.get((self.shard.base + bucket_slot) as usize / WORD_BYTES)?;
        Some(word.load(Ordering::Acquire))
    }

    /// Keeps the times of a key whose record a commit has unlinked from an entry of the index, or
    /// whose insert is about to be taken back.
    pub(super) fn note_unlinked(&mut self, at: usize, slot: u64, entry: Option<u64>) {
        if !self.discipline.is_stamped() {
            return;
        }
        let mut head = [0; TIMED_WORDS];
        copy::read(self.words, at + 1, &mut head);
        let life = self.shard.shape.life_of_image(&head);
        let gone = match life {
            Some(Life::Deleted { .. }) if entry.is_some() => self.shard.shape.time_of_image(&head),
            Some(Life::Prepared { .. }) if entry.is_none() => 0,
            _ => return,
        };
        if let Some(word) = self.key_word(at) {
            self.stamps().unlinked(slot, word, gone, entry);
        }
    }

    /// Notes that the absence of a key was read at a time, if the key is absent.
    pub(super) fn stamp_absent(&mut self, time: u64, key: &[u64], reply: &mut Vec<u64>) -> Option<()> {
        let key = self.stamped_key(key)?;
        let word = key.hash().word;
        let is_absent = self.shard.find(self.words, &key) == Presence::Absent;
        let has_vectors = self.has_vectors();
        let gone = self.stamps().gone(word);
        let is_late = time > 0 && gone >= time && !has_vectors;
        if is_absent && !is_late && time > 0 {
            match has_vectors {
                true => self.stamps().absence_was_read(word, time),
                false => self.stamps().raise_key(word, time),
            }
            self.heard_of(time);
        }
        reply.extend([u64::from(!is_absent), if is_late { gone } else { 0 }]);
        Some(())
    }

    /// Returns a key of a shard whose records have times.
    fn stamped_key(&self, key: &[u64]) -> Option<Key> {
        let bytes = key.as_bytes().get(..self.key_bytes.into())?;
        if self.discipline.is_stamped() { Key::new(bytes) } else { None }
    }

    /// Answers what a record was for a snapshot. With [`CLAIMS`], notes that it was read at the
    /// snapshot's time.
    fn claim(&mut self, flags: usize, cut: Cut<'_>, key: &[u64], reply: &mut Vec<u64>) -> Option<()> {
        let key = self.stamped_key(key)?;
        if matches!(cut, Cut::Vector(_)) != self.has_vectors() {
            return None;
        }
        let word = key.hash().word;
        let claimed = match cut {
            Cut::UpTo(time) if flags & CLAIMS != 0 => Some(time),
            _ => None,
        };
        if let Some(time) = claimed {
            self.heard_of(time);
        }
        let found = self.shard.find(self.words, &key);
        if let Cut::Vector(vector) = cut {
            let slot = match found {
                Presence::Linked { location, .. } => Some(location.pointer.offset()),
                Presence::Absent => None,
            };
            self.stamps().learn(slot, &vector);
        }
        let Presence::Linked { entry, location, .. } = found else {
            if let Some(time) = claimed {
                self.stamps().raise_key(word, time);
            }
            self.absent_at(&key, cut, reply);
            return Some(());
        };
        let slot = location.pointer.offset();
        let at = self.shard.slot_word(slot)?;
        let mut record = vec![0; self.shard.shape.record_bytes() / WORD_BYTES];
        copy::read(self.words, at, &mut record);
        let newest = self.shard.shape.image_of(&record);
        let newest_time = self.shard.shape.time_of_image(newest);
        let life = self.shard.shape.life_of_image(newest);
        let (lock, stamps) = (record[0], self.stamps());
        let before = stamps.ts(slot, newest_time);
        if let Some(time) = claimed {
            stamps.raise(slot, time);
        }
        // Later holders of the lock have times above the claim. So a reader waits for one holder
        // at most.
        let is_later = |time: u64| stamps.lock_ts(slot) >= time || mutant!(SkipWait) && before > time;
        let waits = matches!(cut, Cut::UpTo(time) if flags & WAITS != 0 && !is_later(time));
        if waits && lock != LockWord::FREE.to_bits() {
            reply.extend([BUSY, lock, entry]);
            return Some(());
        }
        let image = match life {
            Some(Life::Present { .. }) if cut.has(newest_time) => Then::Had(newest),
            Some(Life::Present { .. }) => stamps.at(slot, cut),
            _ => {
                self.absent_at(&key, cut, reply);
                return Some(());
            }
        };
        match image {
            Then::Had(image) => {
                reply.extend([FOUND, newest_time, entry, LockWord::FREE.to_bits()]);
                reply.extend_from_slice(image);
            }
            Then::Absent => reply.push(ABSENT),
            Then::Forgotten => reply.extend([LATER, newest_time]),
        }
        Some(())
    }

    /// Replies what a key which is absent now was for a snapshot.
    fn absent_at(&mut self, key: &Key, cut: Cut<'_>, reply: &mut Vec<u64>) {
        let shape = self.shard.shape;
        let stamps = self.stamps();
        let Some(gone) = stamps.lacks_delete(key.hash().word, cut) else {
            return reply.push(ABSENT);
        };
        match stamps.deleted(key.hash().word, cut) {
            Some((entry, image))
                if shape.key_places().map(|place| image[place - 1]).eq(key.words().iter().copied()) =>
            {
                reply.extend([FOUND, gone, entry, LockWord::FREE.to_bits()]);
                reply.extend_from_slice(image);
            }
            _ => reply.extend([LATER, gone]),
        }
    }

    /// Notes that a version of a record was read at a time, if the record has the version and is
    /// not locked. In the same step, so that no transaction locks the record in between with a
    /// lower time.
    pub(super) fn stamp(
        &mut self,
        at: usize,
        pointer: Pointer,
        version: u64,
        time: u64,
        reply: &mut Vec<u64>,
    ) -> Option<()> {
        if !self.discipline.is_stamped() {
            return None;
        }
        let mut head = [0; 1 + TIMED_WORDS];
        copy::read(self.words, at, &mut head);
        let life = self.shard.shape.life_of_image(&head[1..]);
        let mut bound = self.shard.shape.time_of_image(&head[1..]);
        if let (Some(Life::Prepared { .. }), Some(word)) = (life, self.key_word(at)) {
            bound = self.stamps().gone(word);
        }
        let is_late = time > 0 && bound >= time && !self.has_vectors();
        if head[0] == LockWord::FREE.to_bits() && head[1] == version && !is_late {
            match time {
                0 => {}
                _ if self.has_vectors() => self.stamps().was_read(pointer.offset(), time),
                _ => self.stamps().raise(pointer.offset(), time),
            }
            self.heard_of(time);
        }
        reply.extend([head[0], head[1], if is_late { bound } else { 0 }]);
        Some(())
    }
}
