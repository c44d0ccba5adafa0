//! Inserts and deletes as the host of a primary and the appliers of a backup see them, on plain
//! memory.

mod lives;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;
use remora_fabric::{NodeId, copy};
use remora_index::cluster_hash::{
    BUCKET_SLOTS, Geometry, HEADER_BYTES, HEADER_SLOTS_WORD, entry_word, is_entry, link_word, linked_bucket, offset,
    unlinked,
};
use remora_index::host::LINKS_MAX;
use remora_index::{Host, HostShard, Location, Patch, Prepared, Presence, Refused, apply_patch};
use remora_node::{
    Discipline, Fingerprint, Grows, Metadata, ReadScheme, Replica, ShardId, ShardPlacement, TableEntry, TableId,
    TableSpec, node,
};
use remora_record::{Key, KeyHash, Life, LockWord, RecordShape, TransactionId, Version, layout, layout_with_time};

const BASE: u64 = 4096;
const SCHEMES: [ReadScheme; 3] = [ReadScheme::SingleLine, ReadScheme::Checksum, ReadScheme::LineVersions];
const VALUE_BYTES: usize = 16;
/// Few buckets, so that chains grow; fewer slots than keys, so that slots pass from key to key.
const SMALL: Geometry = Geometry { buckets: 2, indirect: 4, slots: 20, slot_bytes: 64 };
const KEYS: u8 = 28;

fn metadata(geometry: Geometry, scheme: ReadScheme) -> Metadata {
    let layout = layout(16, VALUE_BYTES, scheme).unwrap();
    assert_eq!(u64::from(layout.slot_bytes), geometry.slot_bytes);
    let Geometry { buckets, indirect, slots, .. } = geometry;
    let spec = TableSpec {
        name: "keys".to_owned(),
        schema: String::new(),
        fingerprint: Fingerprint(0),
        layout,
        index: remora_node::IndexKind::ClusterHash,
        discipline: Discipline::OCC_ONE_SIDED,
        shards: 1,
        replicas: 2,
        buckets,
        indirect,
        slots,
        indirect_slots: 0,
        shard_bytes: geometry.bytes(),
        grows: Grows::WhenTold,
    };
    let replica = |node| Replica { node: NodeId(node), region: node::REGION, base: BASE, joining: false };
    Metadata {
        tables: vec![TableEntry {
            spec,
            shard_first: ShardId(0),
            creator: None,
            born: 1,
            origin: 1,
            growths: 0,
            growth: None,
            dropped: None,
        }],
        shards: vec![ShardPlacement {
            table: TableId(0),
            bytes: geometry.bytes(),
            replicas: vec![replica(1), replica(2)],
        }],
        ..Metadata::default()
    }
}

/// Keys of 16 bytes, so that the index knows only hashes. Neighbours (2n, 2n + 1) share theirs.
fn key(number: u8) -> Key {
    let scattered = |word: u64| KeyHash::of(&[word]).scatter;
    let first = u64::from(number);
    let partner = u64::from(number & !1);
    // The hash of two words is f(f(2 ^ first) ^ second), with f the scattering of one word.
    let second = scattered(2 ^ first) ^ scattered(2 ^ partner) ^ (1000 + partner);
    let key = Key::new(&[first.to_le_bytes(), second.to_le_bytes()].concat()).unwrap();
    assert_eq!(key.hash().word, scattered(scattered(2 ^ partner) ^ (1000 + partner)));
    key
}

fn transaction(sequence: u64) -> LockWord {
    TransactionId::new(7, sequence).unwrap().lock()
}

/// What a client logs for a backup.
struct Logged {
    /// Where the image goes, from the beginning of the shard.
    image_at: u64,
    image: Vec<u64>,
    patches: Vec<Patch>,
}

/// A primary and its host. Clients change the primary by [`Primary::commit`] and the other methods.
struct Primary {
    region: Vec<AtomicU64>,
    shard: HostShard,
    host: Host,
}

impl Primary {
    fn new(geometry: Geometry, scheme: ReadScheme) -> Primary {
        let region = blank(geometry);
        let shard = HostShard::of(&metadata(geometry, scheme), ShardId(0), NodeId(1), &region).unwrap();
        Primary { region, shard, host: Host::new() }
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        &self.region[((BASE + offset) / 8) as usize]
    }

    fn load(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    fn version(&self, slot: u64) -> Version {
        Version::from_bits(self.load(slot + self.shard.shape.image_at())).0
    }

    fn life(&self, slot: u64) -> Option<Life> {
        let shape = &self.shard.shape;
        let words = (slot..).step_by(8).take(shape.life_bytes() / 8).map(|at| self.load(at));
        shape.life(&words.collect::<Vec<_>>())
    }

    fn prepare(&mut self, key: &Key) -> Result<Insert, Refused> {
        let (bucket_slot, location, links, new) = match self.host.prepare(&self.region, &self.shard, key)? {
            Prepared::Linked { bucket_slot, entry, location, links } => {
                assert_eq!(entry, entry_word(location));
                (bucket_slot, location, links, false)
            }
            Prepared::New { bucket_slot, entry, key_word, location, version, links, .. } => {
                assert_eq!((entry, key_word), (entry_word(location), key.hash().word));
                let slot = location.pointer.offset();
                assert_eq!(self.version(slot), version);
                assert_eq!(self.life(slot), Some(Life::Prepared { incarnation: location.incarnation }));
                (bucket_slot, location, links, true)
            }
        };
        assert_eq!(location.incarnation % 2, 1);
        let found = Presence::Linked { bucket_slot, entry: entry_word(location), location };
        assert_eq!(self.shard.find(&self.region, key), found);
        Ok(Insert { key: *key, bucket_slot, location, links, new })
    }

    /// Installs an image, and returns what was logged.
    fn install(&self, insert: &Insert, life: Life, value: &[u8]) -> Logged {
        let slot = insert.location.pointer.offset();
        let version = self.version(slot).committed_over();
        let mut image = Vec::new();
        self.shard.shape.encode(version, life, insert.key.words(), value, &mut image);
        let image_at = slot + self.shard.shape.image_at();
        copy::write(&self.region, ((BASE + image_at) / 8) as usize, &image);
        Logged { image_at, image, patches: Vec::new() }
    }

    fn commit(&self, insert: &Insert, value: u8) -> Logged {
        let life = Life::Present { incarnation: insert.location.incarnation };
        let mut logged = self.install(insert, life, &[value; VALUE_BYTES]);
        logged.patches = insert.links.iter().map(|&(at, word)| Patch::Link { at, word }).collect();
        let (at, entry, key) = (insert.bucket_slot, entry_word(insert.location), insert.key.hash().word);
        logged.patches.push(Patch::Entry { at, entry, key });
        logged
    }

    fn delete(&self, insert: &Insert) -> Logged {
        let mut logged = self.install(insert, Life::Deleted { incarnation: insert.location.incarnation }, &[]);
        let entry = unlinked(entry_word(insert.location));
        self.word(insert.bucket_slot).store(entry, Ordering::Relaxed);
        logged.patches.push(Patch::Entry { at: insert.bucket_slot, entry, key: insert.key.hash().word });
        logged
    }

    fn undo(&mut self, insert: &Insert, me: LockWord) -> bool {
        let slot = insert.location.pointer.offset();
        self.word(slot).store(me.to_bits(), Ordering::Relaxed);
        let undone = self.host.undo(&self.region, &self.shard, slot, me);
        self.word(slot).store(me.freed().to_bits(), Ordering::Relaxed);
        undone
    }

    fn free(&mut self, insert: &Insert) -> bool {
        let slot = insert.location.pointer.offset();
        self.host.free(&self.region, &self.shard, slot, self.version(slot))
    }

    /// Returns how often each key is linked.
    fn entries(&self) -> BTreeMap<Vec<u64>, usize> {
        let geometry = &self.shard.geometry;
        let mut entries = BTreeMap::new();
        for bucket in 0..geometry.buckets + geometry.indirect {
            for at in (0..BUCKET_SLOTS).map(|slot| geometry.pair_at(bucket, slot)) {
                if is_entry(self.load(at)) {
                    let slot = offset(self.load(at));
                    let words = self.shard.shape.key_places().map(|place| self.load(slot + place as u64 * 8));
                    *entries.entry(words.collect()).or_default() += 1;
                }
            }
        }
        entries
    }
}

/// An insert under way, or the life of a key that it has begun.
#[derive(Clone, Debug)]
struct Insert {
    key: Key,
    bucket_slot: u64,
    location: Location,
    links: Vec<(u64, u64)>,
    new: bool,
}

fn blank(geometry: Geometry) -> Vec<AtomicU64> {
    (0..(BASE + geometry.bytes()) / 8).map(|_| AtomicU64::new(0)).collect()
}

fn words(region: &[AtomicU64]) -> Vec<u64> {
    region[((BASE + HEADER_BYTES) / 8) as usize..].iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

fn apply(region: &[AtomicU64], geometry: &Geometry, logged: &Logged) {
    let start = ((BASE + logged.image_at) / 8) as usize;
    if logged.image[0] >= region[start].load(Ordering::Relaxed) {
        copy::write(region, start, &logged.image);
    }
    for patch in &logged.patches {
        assert!(apply_patch(region, BASE, geometry, patch), "{patch:?}");
    }
}

#[test]
fn undoing_an_insert_restores_every_byte() {
    for scheme in SCHEMES {
        let mut primary = Primary::new(SMALL, scheme);
        // Over nothing, and over a tombstone, of another key and of its own.
        for round in 0..3 {
            let before = words(&primary.region);
            let insert = primary.prepare(&key(1)).unwrap();
            assert!(insert.new && before != words(&primary.region));
            assert!(primary.undo(&insert, transaction(round)));
            assert_eq!(words(&primary.region), before);
            assert!(!primary.undo(&insert, transaction(round)), "once");
            let life = primary.prepare(&key(round as u8)).unwrap();
            assert_eq!(life.location.pointer, insert.location.pointer, "the slot is free again");
            primary.commit(&life, 1);
            primary.delete(&life);
            assert!(primary.free(&life) && !primary.free(&life));
        }
    }
}

#[test]
fn what_is_not_ones_own_is_not_undone_or_freed() {
    let mut primary = Primary::new(SMALL, ReadScheme::SingleLine);
    let insert = primary.prepare(&key(1)).unwrap();
    let (slot, me) = (insert.location.pointer.offset(), transaction(1));
    let version = primary.version(slot);
    let Primary { region, shard, host } = &mut primary;
    let lock = |word: LockWord| region[((BASE + slot) / 8) as usize].store(word.to_bits(), Ordering::Relaxed);
    assert!(!host.undo(region, shard, slot, me), "not locked");
    assert!(!host.undo(region, shard, slot, LockWord::FREE), "nobody's");
    lock(transaction(2));
    assert!(!host.undo(region, shard, slot, me), "locked by another");
    lock(me);
    assert!(!Host::new().undo(region, shard, slot, me), "of a host that has forgotten");
    assert!(!host.free(region, shard, slot, version), "no tombstone");
    lock(LockWord::FREE);
    primary.commit(&insert, 1);
    assert!(!primary.undo(&insert, me), "committed");
    assert!(!primary.free(&insert), "present");
    primary.install(&insert, Life::Deleted { incarnation: 1 }, &[]);
    assert!(!primary.free(&insert), "still linked");
    primary.delete(&insert);
    primary.word(slot).store(me.to_bits(), Ordering::Relaxed);
    assert!(!primary.free(&insert), "still locked");
    primary.word(slot).store(0, Ordering::Relaxed);
    assert!(primary.free(&insert));
}

#[test]
fn a_chain_grows_at_its_end_and_nothing_moves() {
    let geometry = Geometry { buckets: 1, indirect: 2, slots: 100, slot_bytes: 64 };
    let mut primary = Primary::new(geometry, ReadScheme::SingleLine);
    let mut lives = Vec::new();
    for number in 0..3 * BUCKET_SLOTS {
        let insert = primary.prepare(&key(number as u8)).unwrap();
        assert_eq!(insert.links.len(), number / BUCKET_SLOTS);
        for (at, word) in &insert.links {
            assert_eq!((primary.load(*at), geometry.is_link(*at)), (*word, true));
        }
        assert_eq!(linked_bucket(primary.load(geometry.link_at(0))).is_some(), number >= BUCKET_SLOTS);
        lives.push(insert);
        for insert in &lives {
            let location = insert.location;
            let found = Presence::Linked { bucket_slot: insert.bucket_slot, entry: entry_word(location), location };
            assert_eq!(primary.shard.find(&primary.region, &insert.key), found);
        }
    }
    let before = words(&primary.region);
    assert_eq!(primary.prepare(&key(90)).err(), Some(Refused::BucketsFull));
    assert_eq!(words(&primary.region), before);
    // The links are those to the pair, not those to the end.
    assert_eq!(primary.prepare(&key(8)).unwrap().links.len(), 1);
    primary.delete(&lives[2]);
    assert!(primary.prepare(&key(90)).unwrap().links.is_empty());
}

/// An answer to a client, and its log entry, have room for at most `LINKS_MAX` links.
#[test]
fn a_chain_that_is_long_enough_grows_no_more() {
    let geometry = Geometry { buckets: 1, indirect: 20, slots: 200, slot_bytes: 64 };
    let mut primary = Primary::new(geometry, ReadScheme::SingleLine);
    let full = (LINKS_MAX + 1) * BUCKET_SLOTS;
    let lives: Vec<Insert> = (0..full).map(|number| primary.prepare(&key(number as u8)).unwrap()).collect();
    assert_eq!(lives[full - 1].links.len(), LINKS_MAX);
    let before = words(&primary.region);
    assert_eq!(primary.prepare(&key(200)).err(), Some(Refused::ChainFull));
    assert_eq!(words(&primary.region), before);

    // A bulk load has no such limit. What it has linked further down is found, and when it goes its
    // pair is not taken.
    let (near, last) = (&lives[0], full as u64 / BUCKET_SLOTS as u64);
    primary.word(geometry.link_at(last - 1)).store(link_word(geometry.bucket_at(last)), Ordering::Relaxed);
    let far = Insert { bucket_slot: geometry.pair_at(last, 3), ..near.clone() };
    for word in [0, 8] {
        primary.word(far.bucket_slot + word).store(primary.load(near.bucket_slot + word), Ordering::Relaxed);
    }
    primary.word(near.bucket_slot).store(unlinked(primary.load(near.bucket_slot)), Ordering::Relaxed);
    let found = primary.prepare(&near.key).unwrap();
    assert_eq!((found.bucket_slot, found.new, found.links.len()), (far.bucket_slot, false, 0));
    let taken = primary.prepare(&key(200)).unwrap();
    assert_eq!((taken.bucket_slot, taken.new), (near.bucket_slot, true));
    primary.delete(&far);
    assert_eq!(primary.prepare(&far.key).err(), Some(Refused::ChainFull));
}

#[test]
fn a_full_shard_refuses_until_a_tombstone_is_found() {
    let geometry = Geometry { buckets: 4, indirect: 4, slots: 9, slot_bytes: 64 };
    let mut primary = Primary::new(geometry, ReadScheme::Checksum);
    let lives: Vec<Insert> = (0..9).map(|number| primary.prepare(&key(number)).unwrap()).collect();
    for insert in &lives {
        primary.commit(insert, 1);
    }
    let before = words(&primary.region);
    assert_eq!(primary.prepare(&key(20)).err(), Some(Refused::SlotsFull));
    assert_eq!(words(&primary.region), before);
    // No client frees the slot of this delete, and the host has been started anew.
    primary.delete(&lives[4]);
    primary.host = Host::new();
    let insert = primary.prepare(&key(20)).unwrap();
    assert_eq!(insert.location.pointer, lives[4].location.pointer);
    assert_eq!(primary.prepare(&key(21)).err(), Some(Refused::SlotsFull), "the tombstone has been taken");
    assert!(primary.undo(&insert, transaction(1)));
    primary.host = Host::new();
    assert!(primary.prepare(&key(21)).is_ok(), "and given back");
}

/// Where the host unlinks, a tombstone stays linked until a client asks to free it. From then on,
/// the time of the delete bounds since when absent keys are absent.
#[test]
fn a_host_that_unlinks_keeps_the_time() {
    let mut metadata = metadata(SMALL, ReadScheme::Checksum);
    let spec = &mut metadata.tables[0].spec;
    spec.discipline = Discipline::OCC_TIMED;
    spec.layout = layout_with_time(true, 16, 8, ReadScheme::Checksum).unwrap();
    let region = blank(SMALL);
    let shard = HostShard::of(&metadata, ShardId(0), NodeId(1), &region).unwrap();
    let mut primary = Primary { region, shard, host: Host::new() };
    let delete = |primary: &mut Primary, number, time| {
        let insert = primary.prepare(&key(number)).unwrap();
        let life = Life::Deleted { incarnation: insert.location.incarnation };
        let Logged { image_at, mut image, .. } = primary.install(&insert, life, &[]);
        shard.shape.settle(&mut image, time);
        copy::write(&primary.region, ((BASE + image_at) / 8) as usize, &image);
        insert
    };
    let first = delete(&mut primary, 1, 30);
    assert!(matches!(shard.find(&primary.region, &key(1)), Presence::Linked { .. }));
    assert_eq!(shard.gone(&primary.region), 0);
    let stale = primary.version(first.location.pointer.offset()).rolled_back_over();
    assert!(!primary.host.free(&primary.region, &shard, first.location.pointer.offset(), stale));
    assert_eq!(shard.gone(&primary.region), 0, "the slot has another version");
    assert!(primary.free(&first));
    assert_eq!((shard.find(&primary.region, &key(1)), shard.gone(&primary.region)), (Presence::Absent, 30));
    let second = delete(&mut primary, 2, 20);
    assert!(primary.free(&second));
    assert_eq!(shard.gone(&primary.region), 30, "it never falls");
    let third = primary.prepare(&key(3)).unwrap();
    assert_eq!(primary.load(third.location.pointer.offset() + shard.shape.time_at()), 30);
}

/// The primary was at another node meanwhile: the slot that this host knew to be free has a record
/// of the other primary, or its tombstone.
#[test]
fn a_slot_that_another_primary_has_used_is_not_free() {
    for is_deleted in [false, true] {
        let mut primary = Primary::new(SMALL, ReadScheme::SingleLine);
        let old = primary.prepare(&key(1)).unwrap();
        let slot = old.location.pointer.offset();
        primary.commit(&old, 1);
        primary.delete(&old);
        assert!(primary.free(&old));
        let first = std::mem::take(&mut primary.host);
        assert!(primary.free(&old), "the other one knows it too");
        let used = primary.prepare(&key(3)).unwrap();
        assert_eq!(used.location.pointer, old.location.pointer);
        for value in 0..10 {
            primary.commit(&used, value);
        }
        if is_deleted {
            primary.delete(&used);
        }
        let (life, version) = (primary.life(slot), primary.version(slot));

        primary.host = first;
        let new = primary.prepare(&key(5)).unwrap();
        if is_deleted {
            assert_eq!(new.location.pointer, used.location.pointer, "vacant again");
            assert!(primary.version(slot) > version);
        } else {
            assert_ne!(new.location.pointer, used.location.pointer);
            assert_eq!((primary.life(slot), primary.version(slot)), (life, version));
        }
    }
}

/// An insert that was undone has left no trace at another node: the slot has never been used there,
/// and counts as unused.
#[test]
fn a_slot_that_another_primary_has_never_used_is_not_free() {
    let mut primary = Primary::new(SMALL, ReadScheme::SingleLine);
    let kept = primary.prepare(&key(1)).unwrap();
    primary.commit(&kept, 1);
    let undone = primary.prepare(&key(3)).unwrap();
    assert!(primary.undo(&undone, transaction(1)));
    primary.word(8 * HEADER_SLOTS_WORD as u64).store(1, Ordering::Relaxed);
    let [one, two] = [5, 7].map(|number| primary.prepare(&key(number)).unwrap().location.pointer);
    assert_ne!(one, two);
    assert_eq!(one, undone.location.pointer, "the next that was never used");
}

/// A free slot may be locked when the host looks at the free ones, and be unlocked before the host
/// finds it as a tombstone.
#[test]
fn a_slot_that_is_let_go_meanwhile_is_taken_once() {
    let geometry = Geometry { buckets: 4, indirect: 4, slots: 1, slot_bytes: 64 };
    let mut primary = Primary::new(geometry, ReadScheme::SingleLine);
    let insert = primary.prepare(&key(1)).unwrap();
    let slot = insert.location.pointer.offset();
    assert!(primary.undo(&insert, transaction(1)));
    let Primary { region, shard, host } = &mut primary;
    let (region, over) = (&region[..], AtomicBool::new(false));
    let lock = &region[((BASE + slot) / 8) as usize];
    let (stranger, me) = (transaction(2).to_bits(), transaction(1));
    let cas = |from: u64, to: u64| lock.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    let mut taken_twice = false;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if cas(0, stranger).is_ok() {
                    cas(stranger, 0).expect("its own lock");
                }
            }
        });
        for _ in 0..20_000 {
            if host.prepare(region, shard, &key(1)).is_err() {
                continue;
            }
            taken_twice |= host.prepare(region, shard, &key(2)).is_ok();
            while cas(0, me.to_bits()).is_err() {}
            host.undo(region, shard, slot, me);
            cas(me.to_bits(), 0).expect("its own lock");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(!taken_twice, "the only slot was taken for two keys");
}

/// A tombstone that a pair retains counts, also after the record's slot has gone to another key.
#[test]
fn a_key_that_returns_has_a_greater_version() {
    let mut primary = Primary::new(SMALL, ReadScheme::SingleLine);
    let old = primary.prepare(&key(1)).unwrap();
    primary.commit(&old, 1);
    let slot = old.location.pointer.offset();
    for value in 0..10 {
        primary.commit(&old, value);
    }
    primary.delete(&old);
    let tombstone = primary.version(slot);
    // The slot is not freed, so that only the pair knows.
    let new = primary.prepare(&key(1)).unwrap();
    assert_eq!(new.bucket_slot, old.bucket_slot, "the pair that retains the key");
    assert_ne!(new.location.pointer, old.location.pointer);
    assert!(primary.version(new.location.pointer.offset()) > tombstone);
}

/// Another key takes the pair, and with it what the pair retained.
#[test]
fn what_a_pair_forgets_the_floor_knows() {
    let geometry = Geometry { buckets: 1, ..SMALL };
    let mut primary = Primary::new(geometry, ReadScheme::SingleLine);
    let old = primary.prepare(&key(2)).unwrap();
    for value in 0..10 {
        primary.commit(&old, value);
    }
    primary.delete(&old);
    let tombstone = primary.version(old.location.pointer.offset());
    assert_eq!(primary.prepare(&key(4)).unwrap().bucket_slot, old.bucket_slot);
    let new = primary.prepare(&key(2)).unwrap();
    assert_ne!(new.bucket_slot, old.bucket_slot);
    assert!(primary.version(new.location.pointer.offset()) > tombstone);
}

/// Two keys of one hash: the pair that is taken retained the other's tombstone.
#[test]
fn all_pairs_that_may_retain_a_key_count() {
    let mut primary = Primary::new(SMALL, ReadScheme::SingleLine);
    let lives = [2, 3].map(|number| primary.prepare(&key(number)).unwrap());
    for value in 0..10 {
        primary.commit(&lives[1], value);
    }
    let tombstones = lives.each_ref().map(|insert| {
        primary.delete(insert);
        primary.version(insert.location.pointer.offset())
    });
    let new = primary.prepare(&key(3)).unwrap();
    assert_eq!(new.bucket_slot, lives[0].bucket_slot);
    assert!(primary.version(new.location.pointer.offset()) > tombstones[1]);
}

/// A slot that is found again passes to a key of another chain, which retains nothing of it.
#[test]
fn a_slot_that_is_found_again_has_a_greater_version() {
    let mut primary = Primary::new(Geometry { slots: 1, ..SMALL }, ReadScheme::SingleLine);
    let home = |number| SMALL.main_bucket(key(number).hash().scatter);
    let old = primary.prepare(&key(0)).unwrap();
    for value in 0..10 {
        primary.commit(&old, value);
    }
    primary.delete(&old);
    let tombstone = primary.version(old.location.pointer.offset());
    let other = (1..KEYS).find(|number| home(*number) != home(0)).unwrap();
    let new = primary.prepare(&key(other)).unwrap();
    assert_eq!(new.location.pointer, old.location.pointer);
    assert!(primary.version(new.location.pointer.offset()) > tombstone);
}

#[test]
fn only_the_primary_of_a_shard_that_fits_is_a_host() {
    let metadata = metadata(SMALL, ReadScheme::SingleLine);
    let region = blank(SMALL);
    let of = |metadata: &Metadata, shard, node| HostShard::of(metadata, ShardId(shard), NodeId(node), &region);
    assert!(of(&metadata, 0, 1).is_some());
    assert!(of(&metadata, 0, 2).is_none(), "a backup");
    assert!(of(&metadata, 1, 1).is_none(), "no such shard");
    assert!(HostShard::of(&metadata, ShardId(0), NodeId(1), &region[..region.len() - 1]).is_none());
    type Spoil = fn(&mut TableSpec);
    let spoils: [Spoil; 5] = [
        |spec| spec.buckets = 0,
        |spec| spec.buckets = u64::MAX,
        |spec| spec.slots += 1,
        |spec| spec.layout.slot_bytes = 60,
        |spec| spec.layout.value_max = 4000,
    ];
    for spoil in spoils {
        let mut spoilt = metadata.clone();
        spoil(&mut spoilt.tables[0].spec);
        assert_eq!(of(&spoilt, 0, 1), None);
    }
}

proptest! {
    /// Clients may name anything, and memory may hold anything.
    #[test]
    fn absurd_requests_are_refused(
        slot in prop_oneof![any::<u64>(), 0u64..3000], version in any::<u64>(), lock in any::<u64>(),
        noise in proptest::collection::vec((0usize..300, any::<u64>()), 0..40), number in 0..KEYS,
    ) {
        let mut primary = Primary::new(SMALL, ReadScheme::SingleLine);
        let insert = primary.prepare(&key(1)).unwrap();
        let (version, _) = Version::from_bits(version);
        let Primary { region, shard, host } = &mut primary;
        let before = words(region);
        prop_assert!(!host.undo(region, shard, slot, LockWord::from_bits(lock)));
        prop_assert!(!host.free(region, shard, slot, version));
        let short = Key::new(b"short").unwrap();
        prop_assert_eq!(host.prepare(region, shard, &short), Err(Refused::KeySize));
        prop_assert_eq!(shard.find(region, &short), Presence::Absent);
        prop_assert_eq!(before, words(region));

        for (index, word) in noise {
            let index = BASE as usize / 8 + index;
            region[index % region.len()].store(word, Ordering::Relaxed);
        }
        for number in number..number + 10 {
            let _ = shard.find(region, &key(number));
            let _ = host.prepare(region, shard, &key(number));
        }
        for slot in [slot, insert.location.pointer.offset()] {
            host.undo(region, shard, slot, LockWord::from_bits(lock));
            host.free(region, shard, slot, version);
        }
    }
}

#[test]
fn prepared_records_are_stable_and_absent_under_every_scheme() {
    for scheme in SCHEMES {
        let mut primary = Primary::new(SMALL, scheme);
        let insert = primary.prepare(&key(3)).unwrap();
        let shape: &RecordShape = &primary.shard.shape;
        let mut record = vec![0; shape.record_bytes() / 8];
        let start = ((BASE + insert.location.pointer.offset()) / 8) as usize;
        copy::read(&primary.region, start, &mut record);
        let record = remora_record::FetchedRecord::new(&record, shape).check().unwrap();
        assert!(!record.is_present() && !record.is_deleted() && record.has_key(insert.key.words()));
        assert_eq!((record.incarnation(), record.value_bytes()), (insert.location.incarnation, 0));
        assert_eq!(record.version().to_bits() % 2, 1);
    }
}
