//! The read and write set of a transaction: one item for each record, in one reusable arena.

use std::sync::Arc;

use remora_fabric::{Address, ReadHandle, SwapHandle};
use remora_index::{BucketRef, Location, Table};
use remora_memory::TableId;
use remora_sync::{Key, KeyHash, Life, StableRecord, Version, value_words};
use zerocopy::IntoBytes;

use crate::error::{Limit, Stop};
use crate::event::Access;
use crate::limits::SET_MAX;

/// A record of a transaction: what [`Tx::want`](crate::Tx::want) returns. Good for the attempt that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(u32);

/// A piece of the arena, in words.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    at: u32,
    words: u32,
}

impl Span {
    #[inline]
    fn of(self, words: &[u64]) -> &[u64] {
        &words[self.at as usize..][..self.words as usize]
    }
}

/// How far a record has been fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fetch {
    /// A bucket of the index is to be read, and searched from this slot on.
    Probe(BucketRef, usize),
    /// The record is to be read. If it is another key's: from the cache, so look it up; or else search on in this bucket.
    Record(Found),
    /// It was read: version and value are there.
    Here,
    /// The index does not have the key.
    Absent,
}

/// Where a location comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    Cached,
    Probed(BucketRef, usize),
}

/// Whether a record's lock is this transaction's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lock {
    No,
    /// The CAS was sent, its answer has not come.
    Maybe,
    Held,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) table: TableId,
    pub(crate) hash: KeyHash,
    key: Span,
    pub(crate) home: BucketRef,
    pub(crate) fetch: Fetch,
    pub(crate) location: Location,
    /// Of the slot at its primary.
    pub(crate) address: Address,
    pub(crate) version: Version,
    pub(crate) present: bool,
    value: Span,
    value_bytes: u32,
    pub(crate) written: bool,
    image: Span,
    pub(crate) lock: Lock,
    /// The verbs of the round that is under way.
    pub(crate) read: ReadHandle,
    pub(crate) swap: SwapHandle,
    pub(crate) lookups: u32,
    /// Whether the round that is under way reads it.
    pub(crate) asked: bool,
}

impl Item {
    #[inline]
    pub(crate) fn key_words<'a>(&self, arena: &'a [u64]) -> &'a [u64] {
        self.key.of(arena)
    }

    /// Keeps a record that was read.
    #[inline]
    pub(crate) fn keep(&mut self, arena: &mut Vec<u64>, record: &StableRecord<'_>) {
        self.fetch = Fetch::Here;
        self.version = record.version();
        self.present = record.is_present();
        if self.present {
            let at = arena.len() as u32;
            record.copy_value(arena);
            self.value = Span { at, words: arena.len() as u32 - at };
            self.value_bytes = record.value_bytes() as u32;
        }
    }
}

/// A table that a session knows.
#[inline]
pub(crate) fn registered(tables: &[Option<Arc<Table>>], id: TableId) -> &Table {
    tables[usize::from(id.0)].as_ref().expect("items are made for registered tables only")
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Sets {
    pub(crate) tables: Vec<Option<Arc<Table>>>,
    pub(crate) items: Vec<Item>,
    /// Keys and values.
    pub(crate) arena: Vec<u64>,
    /// What is to be installed, once it has been encoded.
    images: Vec<u64>,
    /// Items before this one need no fetching.
    pub(crate) fetched: usize,
    pub(crate) written: usize,
}

impl Sets {
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.arena.clear();
        self.fetched = 0;
        self.written = 0;
    }

    pub(crate) fn register(&mut self, table: Arc<Table>) {
        let index = usize::from(table.id().0);
        if self.tables.len() <= index {
            self.tables.resize(index + 1, None);
        }
        self.tables[index] = Some(table);
    }

    #[inline]
    pub(crate) fn knows(&self, id: TableId) -> bool {
        self.tables.get(usize::from(id.0)).is_some_and(Option::is_some)
    }

    #[inline]
    pub(crate) fn table(&self, id: TableId) -> &Table {
        registered(&self.tables, id)
    }

    /// The item of a key, made if there is none yet.
    #[inline]
    pub(crate) fn want(&mut self, table: TableId, key: &Key) -> Result<Slot, Stop> {
        let Some(Some(opened)) = self.tables.get(usize::from(table.0)) else {
            panic!("table {} is not registered with this session", table.0)
        };
        let expected = usize::from(opened.entry().spec.layout.key_bytes);
        if key.bytes().len() != expected {
            return Err(Limit::Key { found: key.bytes().len(), expected }.into());
        }
        let hash = key.hash();
        let known = self.items.iter().position(|item| {
            item.hash.word == hash.word && item.table == table && item.key.of(&self.arena) == key.words()
        });
        if let Some(index) = known {
            return Ok(Slot(index as u32));
        }
        if self.items.len() == SET_MAX {
            return Err(Limit::Set.into());
        }
        let home = opened.home(hash);
        let (fetch, location) = match opened.cached(home, hash) {
            Some(location) => (Fetch::Record(Found::Cached), location),
            None => (Fetch::Probe(home, 0), Location { pointer: Default::default(), incarnation: 0 }),
        };
        let address = match fetch {
            Fetch::Record(_) => opened.primary(location.pointer),
            _ => opened.bucket_address(home),
        };
        let at = self.arena.len() as u32;
        self.arena.extend_from_slice(key.words());
        self.items.push(Item {
            table,
            hash,
            key: Span { at, words: key.words().len() as u32 },
            home,
            fetch,
            location,
            address,
            version: Version::default(),
            present: false,
            value: Span::default(),
            value_bytes: 0,
            written: false,
            image: Span::default(),
            lock: Lock::No,
            read: ReadHandle::default(),
            swap: SwapHandle::default(),
            lookups: 0,
            asked: false,
        });
        Ok(Slot(self.items.len() as u32 - 1))
    }

    #[inline]
    pub(crate) fn item(&self, slot: Slot) -> &Item {
        &self.items[slot.0 as usize]
    }

    #[inline]
    pub(crate) fn value(&self, slot: Slot) -> Option<&[u8]> {
        let item = self.item(slot);
        item.present.then(|| &item.value.of(&self.arena).as_bytes()[..item.value_bytes as usize])
    }

    #[inline]
    pub(crate) fn value_mut(&mut self, slot: Slot) -> Option<&mut [u8]> {
        let item = &mut self.items[slot.0 as usize];
        if !item.present {
            return None;
        }
        self.written += usize::from(!item.written);
        item.written = true;
        let words = &mut self.arena[item.value.at as usize..][..item.value.words as usize];
        Some(&mut words.as_mut_bytes()[..item.value_bytes as usize])
    }

    /// Replaces a value.
    pub(crate) fn write(&mut self, slot: Slot, value: &[u8]) -> Result<(), Stop> {
        let max = self.table(self.item(slot).table).shape().value_max();
        if value.len() > max {
            return Err(Limit::Value { found: value.len(), max }.into());
        }
        let words = value_words(value.len());
        let mut span = self.item(slot).value;
        if words > span.words as usize {
            span.at = self.arena.len() as u32;
            self.arena.resize(self.arena.len() + words, 0);
        }
        span.words = words as u32;
        self.arena[span.at as usize..][..words].as_mut_bytes()[..value.len()].copy_from_slice(value);
        let item = &mut self.items[slot.0 as usize];
        item.value = span;
        item.value_bytes = value.len() as u32;
        self.written += usize::from(!item.written);
        item.written = true;
        Ok(())
    }

    /// Encodes what is to be installed; returns the words of all images.
    #[inline]
    pub(crate) fn encode_images(&mut self) -> usize {
        self.images.clear();
        let Sets { tables, items, arena, images, .. } = self;
        for item in items.iter_mut().filter(|item| item.written) {
            let at = images.len() as u32;
            let key = &arena[item.key.at as usize..][..item.key.words as usize];
            let value =
                &arena[item.value.at as usize..][..item.value.words as usize].as_bytes()[..item.value_bytes as usize];
            let life = Life::Present { incarnation: item.location.incarnation };
            registered(tables, item.table).shape().encode(item.version.committed_over(), life, key, value, images);
            item.image = Span { at, words: images.len() as u32 - at };
        }
        images.len()
    }

    /// What is to be installed for a written item, from [`IMAGE_AT`](remora_sync::IMAGE_AT) on.
    #[inline]
    pub(crate) fn image(&self, item: &Item) -> &[u64] {
        item.image.of(&self.images)
    }

    pub(crate) fn accesses(&self) -> impl Iterator<Item = Access<'_>> {
        self.items.iter().filter(|item| matches!(item.fetch, Fetch::Here | Fetch::Absent)).map(|item| {
            let table = self.table(item.table);
            let here = matches!(item.fetch, Fetch::Here);
            Access {
                table,
                key: &item.key.of(&self.arena).as_bytes()[..usize::from(table.entry().spec.layout.key_bytes)],
                read: here.then_some(item.version),
                present: item.present,
                written: item.written.then(|| item.version.committed_over()),
            }
        })
    }
}
