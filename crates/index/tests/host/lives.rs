//! Random lives of keys, checked against a model after every step. A backup that applies the
//! changes in another order must end with the same bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use remora_index::cluster_hash::{BUCKET_SLOTS, Geometry, entry_word, linked_bucket};
use remora_index::{Host, Presence, Refused};
use remora_record::Version;

use super::{BASE, Insert, KEYS, Logged, Primary, SCHEMES, SMALL, apply, blank, key, transaction, words};

/// The lives of keys in a shard, as they should be.
#[derive(Default)]
struct Model {
    live: BTreeMap<u8, Insert>,
    /// Inserts that were prepared and left.
    left: BTreeMap<u8, Insert>,
    /// The last version of each key that was committed or prepared.
    versions: BTreeMap<u8, Version>,
    /// Deleted records whose slots were not freed.
    deleted: Vec<Insert>,
    rings: [VecDeque<Logged>; 3],
}

impl Model {
    fn log(&mut self, ring: u8, number: u8, logged: Logged) {
        let (version, _) = Version::from_bits(logged.image[0]);
        assert_eq!(version.to_bits() % 2, 0);
        let before = self.versions.insert(number, version);
        assert!(before < Some(version), "key {number}: {before:?}, then {version}");
        self.rings[usize::from(ring)].push_back(logged);
    }

    fn prepare(&mut self, primary: &mut Primary, number: u8) -> Option<Insert> {
        let linked = self.live.contains_key(&number) || self.left.contains_key(&number);
        let insert = match primary.prepare(&key(number)) {
            Ok(insert) => insert,
            Err(Refused::KeySize) => panic!("all keys have the same size"),
            Err(_) => {
                assert!(!linked);
                return None;
            }
        };
        assert_eq!(insert.new, !linked);
        if insert.new {
            let version = primary.version(insert.location.pointer.offset());
            assert!(self.versions.insert(number, version) < Some(version));
        }
        Some(insert)
    }

    fn step(&mut self, primary: &mut Primary, backup: &[AtomicU64], op: u8, number: u8, ring: u8) {
        match op {
            // Insert the key, or update its record.
            0..4 => {
                let Some(insert) = self.prepare(primary, number) else { return };
                self.left.remove(&number);
                self.log(ring, number, primary.commit(&insert, op));
                self.live.insert(number, insert);
            }
            // Prepare, and leave.
            4 => {
                let insert = self.prepare(primary, number);
                if let Some(insert) = insert.filter(|_| !self.live.contains_key(&number)) {
                    self.left.insert(number, insert);
                }
            }
            // Prepare, and undo. If the key was prepared before, this undoes the earlier insert.
            5 => {
                let Some(insert) = self.prepare(primary, number) else { return };
                let committed = self.live.contains_key(&number);
                assert_eq!(primary.undo(&insert, transaction(1)), !committed);
                self.left.remove(&number);
            }
            6 | 7 => {
                let Some(insert) = self.live.remove(&number) else { return };
                self.log(ring, number, primary.delete(&insert));
                if op == 6 {
                    assert!(primary.free(&insert));
                } else {
                    self.deleted.push(insert);
                }
            }
            // A late free: the slot may have been found meanwhile, and may be in use.
            8 => {
                if let Some(insert) = self.deleted.pop() {
                    let used = primary.entries().len();
                    let _ = primary.free(&insert);
                    assert_eq!(primary.entries().len(), used);
                }
            }
            _ => self.apply(backup, &primary.shard.geometry, ring),
        }
    }

    fn apply(&mut self, backup: &[AtomicU64], geometry: &Geometry, ring: u8) {
        if let Some(logged) = self.rings[usize::from(ring)].pop_front() {
            apply(backup, geometry, &logged);
        }
    }

    fn check(&self, primary: &Primary) {
        let entries = primary.entries();
        assert!(entries.values().all(|count| *count == 1), "two entries for one key");
        assert_eq!(entries.len(), self.live.len() + self.left.len());
        for (number, insert) in self.live.iter().chain(&self.left) {
            let (bucket_slot, location) = (insert.bucket_slot, insert.location);
            let found = Presence::Linked { bucket_slot, entry: entry_word(location), location };
            assert_eq!(primary.shard.find(&primary.region, &key(*number)), found);
        }
        let mut slots: Vec<_> =
            self.live.values().chain(self.left.values()).map(|life| life.location.pointer).collect();
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len(), entries.len(), "two keys in one slot");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// The invariants of the index through all lives of its keys, and at the end a backup that is
    /// byte-identical.
    #[test]
    fn lives_of_keys(
        scheme in 0usize..3, restart in 0usize..400,
        steps in proptest::collection::vec((0u8..11, 0..KEYS, 0u8..3), 0..400),
        order in proptest::collection::vec(0u8..3, 0..400),
    ) {
        let mut primary = Primary::new(SMALL, SCHEMES[scheme]);
        let backup = blank(SMALL);
        let mut model = Model::default();
        for (step, (op, number, ring)) in steps.into_iter().enumerate() {
            // A host that is started anew cannot undo what was left before.
            if step == restart && model.left.is_empty() {
                primary.host = Host::new();
            }
            model.step(&mut primary, &backup, op, number, ring);
            model.check(&primary);
        }
        for insert in std::mem::take(&mut model.left).values() {
            prop_assert!(primary.undo(insert, transaction(2)));
        }
        for ring in order.into_iter().chain([0, 1, 2].into_iter().flat_map(|ring| std::iter::repeat_n(ring, 400))) {
            model.apply(&backup, &SMALL, ring);
        }
        prop_assert!(model.rings.iter().all(VecDeque::is_empty));
        for bucket in 0..SMALL.buckets + SMALL.indirect {
            forget_unused_link(&primary, &backup, bucket);
        }
        prop_assert_eq!(words(&primary.region), words(&backup));
    }
}

/// An undone insert may leave a chain with a bucket that was never used. The backup has no link to
/// it.
fn forget_unused_link(primary: &Primary, backup: &[AtomicU64], bucket: u64) {
    let geometry = &primary.shard.geometry;
    let link = primary.word(geometry.link_at(bucket));
    let missing = backup[((BASE + geometry.link_at(bucket)) / 8) as usize].load(Ordering::Relaxed) == 0;
    if let Some(next) = linked_bucket(link.load(Ordering::Relaxed)).filter(|_| missing) {
        assert!((0..BUCKET_SLOTS as u64 * 2).all(|word| primary.load(next + word * 8) == 0), "in use");
        link.store(0, Ordering::Relaxed);
    }
}
