//! What a memory node's CPU remembers of the times of records whose primary it has: up to which
//! times they were read, and their older versions. This is the memory node's end of the protocols
//! in `protocol/dst`.
//!
//! ```text
//! of a record   ts        the largest time of a transaction that wrote it, read it and wrote
//!                         elsewhere, or read it in a snapshot
//!               lock_ts   ts when the lock was taken
//!               older     versions before the one in the record: from when, until when, image
//! of a key      ts        as of a record, while the index does not have the key
//!               gone      the time of the last commit that deleted the key
//!               last      the version that it deleted
//! of a shard    floor     all that is not remembered may have a ts, or be gone, up to this time
//! ```
//!
//! `stamps/vector.rs` says what it remembers under vector timestamps.
//!
//! All of it is in the memory of the node's process, and none in the node's region. A record has
//! the time of its last commit in its image, so backups and recovery have that. Nothing else has to
//! outlive the process:
//!
//! - **What is forgotten only makes transactions wait or try again.** A forgotten ts counts as the
//!   floor. A forgotten lock_ts counts as 0, so readers wait for the lock. A reader that needs a
//!   forgotten version, or the absence of a key before the floor, is told a later time to read at.
//! - **An interval is a fact.** An older version says from when and until when it was the newest.
//!   If anything else has changed the record meanwhile, the intervals have a gap, and a reader
//!   whose time is in the gap is told a later time.
//! - **The node's clock word bounds all times that the node has heard of** ([`clock_at`]). It is in
//!   the region, and so outlives the process. A process that starts takes it as its floor.
//! - **Each epoch begins with nothing.** A client's first time is not below the clock word of any
//!   node of its epoch (`protocol/dst/mod.rs`). So a new primary has nothing to take over, and a
//!   node that was the primary before has nothing that is out of date.
//!
//! [`clock_at`]: remora_node::node::clock_at

mod vector;

use std::collections::{HashMap, VecDeque};

use remora_node::ShardId;

use crate::vector::{Commits, UNKNOWN, Vector};

/// Largest number of words of older versions that the CPU keeps for a shard.
const OLDER_WORDS_MAX: usize = 1 << 19;
/// Largest number of records, and of absent keys, whose times the CPU remembers for a shard.
const REMEMBERED_MAX: usize = 1 << 16;

/// The times of one shard's records.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    life: ShardLife,
    floor: u64,
    /// By the offset of the record's slot.
    records: HashMap<u64, Stamp>,
    /// By the word of the key's hash.
    keys: HashMap<u64, Absence>,
    /// The slots whose older versions are kept, in the order in which they became old.
    order: VecDeque<u64>,
    /// The words of keys whose last versions are kept, in the order in which they were deleted.
    deleted: VecDeque<u64>,
    /// Words of all older versions.
    older_words: usize,
    // The rest is for vector timestamps.
    heard: Commits,
    /// The vector with the largest number that a snapshot has brought.
    stable: Vec<u64>,
    /// Whether something was forgotten that matters to snapshots.
    forgot: bool,
}

/// The commits that a snapshot has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut<'v> {
    /// Those with a time up to this one.
    UpTo(u64),
    /// Those of a vector.
    Vector(Vector<'v>),
}

impl Cut<'_> {
    /// Whether a commit with this time is in the snapshot.
    pub(crate) fn has(&self, time: u64) -> bool {
        match self {
            Cut::UpTo(last) => time <= *last,
            Cut::Vector(vector) => vector.has(time),
        }
    }
}

/// The time during which a node's CPU remembers times of a shard: an epoch, in which the shard's id
/// belongs to one table. The table has the generation of the catalog with which it was born. The
/// floor is what the node's clock word was when the epoch began, or the process.
///
/// Under vector timestamps, what matters is whether the process began within the epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ShardLife {
    pub(crate) born: u64,
    pub(crate) epoch: u64,
    pub(crate) floor: u64,
    pub(crate) is_vector: bool,
    pub(crate) began_late: bool,
}

#[derive(Debug, Default)]
struct Stamp {
    ts: u64,
    lock_ts: u64,
    readers: Commits,
    older: VecDeque<Older>,
}

#[derive(Debug, Default)]
struct Absence {
    ts: u64,
    gone: u64,
    readers: Commits,
    /// The version that the last commit deleted, and the entry of the index that linked it.
    last: Option<(u64, Older)>,
}

/// A version of a record before the newest one.
#[derive(Debug)]
struct Older {
    /// The time of the commit that installed it.
    from: u64,
    /// The time of the commit that replaced it.
    until: u64,
    /// `None` if the key was absent.
    image: Option<Box<[u64]>>,
}

impl Older {
    /// Whether this was the newest version that a snapshot has.
    fn was_newest(&self, cut: Cut<'_>) -> bool {
        cut.has(self.from) && !cut.has(self.until)
    }
}

/// What a record was at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then<'s> {
    /// The record had this image.
    Had(&'s [u64]),
    /// The record's key was absent.
    Absent,
    /// What was then is not known any more.
    Forgotten,
}

impl Stamps {
    /// Returns the times of a shard. In a new life of the shard, nothing is remembered.
    pub(crate) fn of(shards: &mut HashMap<ShardId, Stamps>, id: ShardId, life: ShardLife) -> &mut Stamps {
        let stamps = shards.entry(id).or_insert_with(|| Stamps::new(life));
        if stamps.life != life {
            // The commits are still those of the epoch, if only the table is another one.
            let heard = std::mem::take(&mut stamps.heard);
            let heard = if stamps.life.epoch == life.epoch { heard } else { Commits::default() };
            *stamps = Stamps { heard, ..Stamps::new(life) };
        }
        stamps
    }

    fn new(life: ShardLife) -> Stamps {
        let floor = if life.is_vector { 0 } else { life.floor };
        Stamps { life, floor, forgot: life.is_vector && life.began_late, ..Stamps::default() }
    }

    /// Returns the largest time at which a record was read or written. `time` is that of its newest
    /// version.
    pub(crate) fn ts(&self, slot: u64, time: u64) -> u64 {
        self.records.get(&slot).map_or(0, |stamp| stamp.ts).max(self.floor).max(time)
    }

    /// Notes that a record was read or written at a time.
    pub(crate) fn raise(&mut self, slot: u64, time: u64) {
        let stamp = self.records.entry(slot).or_default();
        stamp.ts = stamp.ts.max(time);
        self.forget_stamps();
    }

    /// Notes that a record was locked, and returns the time above which the holder's has to be.
    pub(crate) fn locked(&mut self, slot: u64, time: u64) -> u64 {
        let ts = self.ts(slot, time);
        self.records.entry(slot).or_default().lock_ts = ts;
        ts
    }

    /// Returns a bound of the time of the transaction that has a record locked: its time is above
    /// this.
    pub(crate) fn lock_ts(&self, slot: u64) -> u64 {
        self.records.get(&slot).map_or(0, |stamp| stamp.lock_ts)
    }

    /// Returns the largest time at which the absence of a key was read, or the key was deleted.
    pub(crate) fn ts_of_key(&self, word: u64) -> u64 {
        self.keys.get(&word).map_or(0, |key| key.ts.max(key.gone)).max(self.floor)
    }

    /// Returns a time from which on a key has been absent, if it is absent now.
    pub(crate) fn gone(&self, word: u64) -> u64 {
        let gone = self.keys.get(&word).map_or(0, |key| key.gone);
        match gone {
            0 if self.forgot => UNKNOWN,
            _ if self.life.is_vector => gone,
            _ => gone.max(self.floor),
        }
    }

    /// Returns a commit that may have deleted a key which is absent now, and that a snapshot lacks,
    /// if there may be one.
    pub(crate) fn lacks_delete(&self, word: u64, cut: Cut<'_>) -> Option<u64> {
        let gone = self.gone(word);
        let is_forgotten = matches!(cut, Cut::Vector(vector) if gone == 0 && vector.number < self.floor);
        (is_forgotten || !cut.has(gone)).then_some(gone)
    }

    /// Notes that the absence of a key was read at a time.
    pub(crate) fn raise_key(&mut self, word: u64, time: u64) {
        let key = self.keys.entry(word).or_default();
        key.ts = key.ts.max(time);
        self.forget_keys();
    }

    /// Begins the life of a key in a slot, which was prepared for it.
    pub(crate) fn prepared(&mut self, slot: u64, word: u64) {
        if self.life.is_vector {
            let mut readers = self.keys.get(&word).map(|key| key.readers.clone()).unwrap_or_default();
            readers.add(self.gone(word));
            self.records.entry(slot).or_default().readers = readers;
        } else {
            let ts = self.ts_of_key(word);
            self.raise(slot, ts);
        }
        self.forget_older(slot);
    }

    /// Ends the life of a key in a slot. If a commit has deleted it, `gone` is the commit's time,
    /// and `entry` has linked the record before. Otherwise `gone` is 0.
    pub(crate) fn unlinked(&mut self, slot: u64, word: u64, gone: u64, entry: Option<u64>) {
        if self.life.is_vector {
            let readers = self.records.get_mut(&slot).map(|stamp| std::mem::take(&mut stamp.readers));
            let key = self.keys.entry(word).or_default();
            readers.unwrap_or_default().names().iter().for_each(|commit| key.readers.add(*commit));
            self.forget_deletes();
        } else {
            self.raise_key(word, self.records.get(&slot).map_or(0, |stamp| stamp.ts));
        }
        let is_last = |older: &mut Older| older.until == gone && entry.is_some();
        let older = self.records.get_mut(&slot).and_then(|stamp| stamp.older.pop_back_if(is_last));
        let last = entry.zip(older);
        let key = self.keys.entry(word).or_default();
        key.gone = if self.life.is_vector && gone > 0 { gone } else { key.gone.max(gone) };
        let forgotten = std::mem::replace(&mut key.last, last);
        self.older_words -= forgotten.and_then(|(_, older)| older.image).map_or(0, |image| image.len());
        self.deleted.push_back(word);
        self.forget_older(slot);
    }

    /// Returns the last version of a key that is absent now, and the entry that linked it, if it
    /// was the newest one for a snapshot.
    pub(crate) fn deleted(&self, word: u64, cut: Cut<'_>) -> Option<(u64, &[u64])> {
        let (entry, older) = self.keys.get(&word)?.last.as_ref()?;
        let image = older.image.as_ref().filter(|_| older.was_newest(cut))?;
        Some((*entry, image))
    }

    /// Notes that a commit has replaced a version of a record: the version was the newest one from
    /// a time on, until the time of the commit. Without an image, the key was absent.
    pub(crate) fn replaced(&mut self, slot: u64, from: u64, until: u64, image: Option<Box<[u64]>>) {
        let stamp = self.records.entry(slot).or_default();
        if mutant!(CommitLowersStamp) {
            stamp.ts = until;
        }
        if self.life.is_vector {
            self.heard.add(until);
            stamp.readers.clear();
        } else {
            stamp.ts = stamp.ts.max(until);
        }
        self.older_words += image.as_ref().map_or(0, |image| image.len());
        stamp.older.push_back(Older { from, until, image });
        self.order.push_back(slot);
        while self.older_words > OLDER_WORDS_MAX || self.order.len() + self.deleted.len() > REMEMBERED_MAX {
            let oldest = if self.deleted.len() > self.order.len() {
                let key = self.deleted.pop_front().and_then(|word| self.keys.get_mut(&word));
                key.and_then(|key| key.last.take()).map(|(_, older)| older)
            } else {
                let stamp = self.order.pop_front().and_then(|slot| self.records.get_mut(&slot));
                stamp.and_then(|stamp| stamp.older.pop_front())
            };
            self.older_words -= oldest.and_then(|older| older.image).map_or(0, |image| image.len());
            if self.order.is_empty() && self.deleted.is_empty() {
                break;
            }
        }
        self.forget_stamps();
    }

    /// Returns what a record was for a snapshot, before the newest version.
    pub(crate) fn at(&self, slot: u64, cut: Cut<'_>) -> Then<'_> {
        let older = self.records.get(&slot);
        let older = older.and_then(|stamp| stamp.older.iter().rev().find(|older| older.was_newest(cut)));
        match older {
            None => Then::Forgotten,
            Some(Older { image: None, .. }) => Then::Absent,
            Some(Older { image: Some(image), .. }) => Then::Had(image),
        }
    }

    /// Forgets the older versions of a record.
    fn forget_older(&mut self, slot: u64) {
        let Some(stamp) = self.records.get_mut(&slot) else { return };
        for older in stamp.older.drain(..) {
            self.older_words -= older.image.map_or(0, |image| image.len());
        }
    }

    /// If the times of too many records are remembered, forgets the smaller half of them, which is
    /// below the floor from then on.
    fn forget_stamps(&mut self) {
        if self.records.len() > 2 * REMEMBERED_MAX && !self.life.is_vector {
            let mut times: Vec<u64> = self.records.values().map(|stamp| stamp.ts).collect();
            self.floor = self.floor.max(median(&mut times));
            let floor = self.floor;
            self.records.retain(|_, stamp| stamp.ts > floor || !stamp.older.is_empty());
        }
    }

    fn forget_keys(&mut self) {
        if self.keys.len() > REMEMBERED_MAX {
            let mut times: Vec<u64> = self.keys.values().map(|key| key.ts.max(key.gone)).collect();
            self.floor = self.floor.max(median(&mut times));
            let floor = self.floor;
            let older_words = &mut self.older_words;
            self.keys.retain(|_, key| {
                let stays = key.ts.max(key.gone) > floor;
                let last = key.last.as_ref().filter(|_| !stays).and_then(|(_, older)| older.image.as_ref());
                *older_words -= last.map_or(0, |image| image.len());
                stays
            });
        }
    }
}

/// Returns the middle one of some times.
fn median(times: &mut [u64]) -> u64 {
    let middle = times.len() / 2;
    *times.select_nth_unstable(middle).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(word: u64) -> Option<Box<[u64]>> {
        Some(Box::new([word]))
    }

    #[test]
    fn a_version_is_found_by_every_time_at_which_it_was_the_newest() {
        let mut stamps = Stamps::default();
        stamps.replaced(64, 2, 5, image(1));
        stamps.replaced(64, 5, 6, image(2));
        let at = |time| stamps.at(64, Cut::UpTo(time));
        assert_eq!([at(1), at(2), at(4)], [Then::Forgotten, Then::Had(&[1]), Then::Had(&[1])]);
        assert_eq!([at(5), at(6)], [Then::Had(&[2]), Then::Forgotten]);
        assert_eq!(stamps.ts(64, 0), 6);
    }

    #[test]
    fn no_version_is_found_in_a_gap() {
        let mut stamps = Stamps::default();
        stamps.replaced(64, 2, 5, image(1));
        // Between 5 and 8, something else has changed the record.
        stamps.replaced(64, 8, 9, image(2));
        assert_eq!([5, 7].map(|time| stamps.at(64, Cut::UpTo(time))), [Then::Forgotten; 2]);
        assert_eq!(stamps.at(64, Cut::UpTo(8)), Then::Had(&[2]));
    }

    #[test]
    fn what_was_read_of_an_absent_key_holds_for_its_insert() {
        let mut stamps = Stamps::default();
        stamps.raise_key(7, 30);
        stamps.prepared(64, 7);
        assert_eq!(stamps.locked(64, 0), 30);
        stamps.raise(64, 40);
        assert_eq!(stamps.lock_ts(64), 30, "the holder may have asked already");
        stamps.replaced(64, 31, 45, image(9));
        stamps.unlinked(64, 7, 45, Some(3));
        assert_eq!((stamps.ts_of_key(7), stamps.gone(7)), (45, 45));
        assert_eq!(
            [30, 31, 44, 45].map(|time| stamps.deleted(7, Cut::UpTo(time)).is_some()),
            [false, true, true, false]
        );
        assert_eq!(stamps.at(64, Cut::UpTo(31)), Then::Forgotten, "the slot may have another key from now on");
    }

    #[test]
    fn what_is_forgotten_is_below_the_floor() {
        let mut stamps = Stamps::default();
        let count = 2 * REMEMBERED_MAX as u64 + 1;
        for slot in 0..count {
            stamps.raise(slot, slot + 1);
        }
        assert!(stamps.records.len() < count as usize);
        assert!((0..count).all(|slot| stamps.ts(slot, 0) > slot));
    }

    #[test]
    fn older_versions_take_bounded_room() {
        let slot = |time: u64| time % 3 * 64;
        let mut stamps = Stamps::default();
        for time in 0..2_000 {
            let image = vec![time; OLDER_WORDS_MAX / 1_000].into_boxed_slice();
            stamps.replaced(slot(time), time, time + 3, Some(image));
        }
        assert!(stamps.older_words <= OLDER_WORDS_MAX);
        assert_eq!(stamps.at(slot(100), Cut::UpTo(100)), Then::Forgotten);
        assert!(matches!(stamps.at(slot(1_999), Cut::UpTo(2_001)), Then::Had(_)));
    }
}
