//! What a memory node's CPU remembers under vector timestamps, where times are names of commits,
//! which have no order (`vector.rs`).
//!
//! ```text
//! of a record   readers   commits that have read the newest version, and write elsewhere. The next
//!                         writer comes behind them
//! of a key      readers   as of a record, while the index does not have the key
//!               gone      the last commit that deleted the key
//! of a shard    heard     all commits of which it has heard
//!               floor     the number of a vector. It has all deletes that are not remembered
//! ```
//!
//! What all snapshots have from now on may be forgotten. Each snapshot brings a vector, which says
//! that. If that is not enough, the CPU forgets more, and says from then on that a commit has come
//! before which no vector has. So no snapshot gets any newer until the next epoch. A process that
//! starts within an epoch begins like that.

use super::{REMEMBERED_MAX, Stamps};
use crate::vector::{UNKNOWN, Vector};

impl Stamps {
    /// Notes that a record was read by a commit that writes elsewhere.
    pub(crate) fn was_read(&mut self, slot: u64, commit: u64) {
        self.heard.add(commit);
        self.records.entry(slot).or_default().readers.add(commit);
        if self.records.len() > 2 * REMEMBERED_MAX {
            self.forget_readers();
        }
    }

    /// Notes that the absence of a key was read by a commit that writes elsewhere.
    pub(crate) fn absence_was_read(&mut self, word: u64, commit: u64) {
        self.heard.add(commit);
        self.keys.entry(word).or_default().readers.add(commit);
        self.forget_deletes();
    }

    /// Returns the commits behind which the next writer of a record comes, beside the one whose
    /// version it overwrites.
    pub(crate) fn readers(&self, slot: u64) -> Vec<u64> {
        let readers = self.records.get(&slot).map_or(&[][..], |stamp| stamp.readers.names());
        readers.iter().copied().chain(self.forgot.then_some(UNKNOWN)).collect()
    }

    /// Returns the epoch whose times are remembered.
    pub(crate) fn epoch(&self) -> u64 {
        self.life.epoch
    }

    /// Returns the commits that the shard has heard of.
    pub(crate) fn heard(&self) -> impl Iterator<Item = u64> {
        self.heard.names().iter().copied().chain(self.forgot.then_some(UNKNOWN))
    }

    /// Returns from which commit on a key has been absent, if it is absent now. A reader that lacks
    /// this commit cannot tell whether the key was there.
    pub(crate) fn absent_since(&self, word: u64) -> u64 {
        match self.gone(word) {
            0 if self.floor > 0 => UNKNOWN,
            gone => gone,
        }
    }

    /// Notes which commits all snapshots have from now on. The readers of a record among them need
    /// not be named to its next writer any more.
    pub(crate) fn learn(&mut self, slot: Option<u64>, vector: &Vector<'_>) {
        let stable = Vector::from_words(&self.stable);
        if stable.is_none_or(|stable| stable.number < vector.number) {
            self.stable = vector.to_words();
        }
        if let Some(stamp) = slot.and_then(|slot| self.records.get_mut(&slot)) {
            stamp.readers.remove_if(|commit| vector.has(commit));
        }
    }

    fn forget_readers(&mut self) {
        let stable = Vector::from_words(&self.stable);
        self.records.retain(|_, stamp| {
            stamp.readers.remove_if(|commit| stable.is_some_and(|stable| stable.has(commit)));
            !stamp.readers.names().is_empty() || !stamp.older.is_empty()
        });
        if self.records.len() > 2 * REMEMBERED_MAX {
            self.records.retain(|_, stamp| !stamp.older.is_empty());
            self.forgot = true;
        }
    }

    /// If too many absent keys are remembered, forgets what matters to no snapshot any more.
    pub(super) fn forget_deletes(&mut self) {
        if self.keys.len() <= REMEMBERED_MAX {
            return;
        }
        let stable = Vector::from_words(&self.stable);
        let is_stable = |commit: u64| stable.is_some_and(|stable| stable.has(commit));
        self.floor = self.floor.max(stable.map_or(0, |stable| stable.number));
        self.keys.retain(|_, key| {
            key.readers.remove_if(is_stable);
            !key.readers.names().is_empty() || !is_stable(key.gone)
        });
        if self.keys.len() > REMEMBERED_MAX / 2 {
            self.keys.clear();
            self.forgot = true;
        }
        let last = self.keys.values().filter_map(|key| key.last.as_ref()).map(|(_, older)| older);
        let kept = last.chain(self.records.values().flat_map(|stamp| &stamp.older));
        self.older_words = kept.filter_map(|older| older.image.as_ref()).map(|image| image.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cut, ShardLife, Then};
    use super::*;
    use crate::vector::name;

    fn stamps() -> Stamps {
        Stamps::new(ShardLife { is_vector: true, ..ShardLife::default() })
    }

    #[test]
    fn the_next_writer_comes_behind_the_readers() {
        let mut stamps = stamps();
        stamps.was_read(64, name(1, 1));
        stamps.was_read(64, name(2, 4));
        stamps.was_read(64, name(1, 3));
        assert_eq!(stamps.readers(64), [name(1, 3), name(2, 4)]);
        let vector = [1, 0, name(1, 3)];
        stamps.learn(Some(64), &Vector::from_words(&vector).expect("a vector"));
        assert_eq!(stamps.readers(64), [name(2, 4)]);
        stamps.replaced(64, 0, name(3, 1), None);
        assert_eq!(stamps.readers(64), []);
        assert_eq!(stamps.heard().collect::<Vec<_>>(), [name(1, 3), name(2, 4), name(3, 1)]);
    }

    #[test]
    fn a_version_is_found_by_each_vector_that_has_it_and_not_the_next_one() {
        let mut stamps = stamps();
        stamps.replaced(64, 0, name(9, 1), Some(Box::new([1])));
        stamps.replaced(64, name(9, 1), name(2, 1), Some(Box::new([2])));
        let at = |words: &[u64]| {
            let cut = Cut::Vector(Vector::from_words(words).expect("a vector"));
            match stamps.at(64, cut) {
                Then::Had(image) => image[0],
                _ => 0,
            }
        };
        assert_eq!(at(&[1, 0]), 1);
        assert_eq!(at(&[1, 0, name(2, 0), name(9, 1)]), 2);
        assert_eq!(at(&[1, 0, name(2, 1), name(9, 1)]), 0, "the newest version is in the record");
    }

    #[test]
    fn what_was_read_of_an_absent_key_holds_for_its_insert() {
        let mut stamps = stamps();
        stamps.absence_was_read(7, name(1, 1));
        stamps.prepared(64, 7);
        stamps.was_read(64, name(1, 2));
        assert_eq!(stamps.readers(64), [name(1, 2)]);
        stamps.unlinked(64, 7, 0, None);
        stamps.prepared(128, 7);
        assert_eq!(stamps.readers(128), [name(1, 2)]);
        stamps.replaced(128, 0, name(2, 1), None);
        stamps.replaced(128, name(2, 1), name(1, 3), Some(Box::new([9])));
        stamps.unlinked(128, 7, name(1, 3), Some(5));
        assert_eq!(stamps.gone(7), name(1, 3));
        stamps.prepared(64, 7);
        assert_eq!(stamps.readers(64), [name(1, 3)]);
    }

    #[test]
    fn what_no_vector_has_is_said_when_too_much_is_forgotten() {
        let mut stamps = stamps();
        let all = 2 * REMEMBERED_MAX as u64 + 1;
        (0..all).for_each(|slot| stamps.was_read(slot, name(1, slot + 1)));
        assert_eq!(stamps.readers(0), [UNKNOWN]);
        let mut stamps = self::stamps();
        let vector = [1, 0, name(1, all)];
        stamps.learn(None, &Vector::from_words(&vector).expect("a vector"));
        (0..all).for_each(|slot| stamps.was_read(slot, name(1, slot + 1)));
        assert_eq!(stamps.readers(0), []);
        (0..all).for_each(|word| stamps.absence_was_read(word, name(1, word + 1)));
        let cut = |number| [number, 0];
        let lacks = |number| {
            let words = cut(number);
            stamps.lacks_delete(3, Cut::Vector(Vector::from_words(&words).expect("a vector")))
        };
        assert_eq!([lacks(0), lacks(1)], [Some(0), None]);
    }
}
