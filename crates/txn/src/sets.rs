//! The read and write set of a transaction: one item for each record, in one reusable arena.

use std::num::NonZeroU32;
use std::sync::Arc;

use remora_fabric::{Address, CallHandle, NodeId, ReadHandle, SwapHandle};
use remora_index::cluster_hash::{BUCKET_BYTES, unlinked};
use remora_index::{BucketRef, Location, Table};
use remora_node::{Pointer, Stage, TableId};
use remora_record::{Key, KeyHash, Life, RecordShape, StableRecord, Swap, TransactionId, Version, value_words};
use zerocopy::IntoBytes;

use crate::access::{Access, Scan, WriteKind};
use crate::error::{Limit, Misuse, Stop};
use crate::limits::SET_MAX;
use crate::log::PATCH_WORDS;
use crate::protocol::spec::{FirstRead, Primitive};

/// A record of a transaction, as [`Tx::want`](crate::Tx::want) returns it. A slot is valid for the
/// attempt that made it; other attempts refuse it ([`Misuse::OtherRun`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    index: u32,
    run: Run,
}

/// Tells the attempts of transactions apart. Attempts of one client have different runs until 2^32
/// attempts later. Attempts of two clients have the same run as rarely as chance has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run(NonZeroU32);

const _: () = assert!(size_of::<Option<Slot>>() == 8);

impl Run {
    #[inline]
    fn of(id: TransactionId) -> Run {
        let number = id.owner().wrapping_mul(0x9e37_79b9).wrapping_add(id.sequence() as u32);
        Run(NonZeroU32::new(number).unwrap_or(NonZeroU32::MAX))
    }
}

impl Default for Run {
    fn default() -> Run {
        Run(NonZeroU32::MIN)
    }
}

/// A piece of the arena, in words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) at: u32,
    pub(crate) words: u32,
}

impl Span {
    #[inline]
    pub(crate) fn of(self, words: &[u64]) -> &[u64] {
        &words[self.at as usize..][..self.words as usize]
    }
}

/// How far a record has been fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fetch {
    /// A bucket of the index is to be read, and searched from this slot on.
    Probe(BucketRef, usize),
    /// The record is to be read. If it is another key's: from the cache, so look it up; or else
    /// search on in this bucket.
    Record(LocationSource),
    /// The primary's CPU is to be asked where the key is, and for its record.
    Ask,
    /// The primary's CPU is to be asked where the key is, for its record, and for its place in the
    /// index. The key is to be deleted, or inserted.
    Place(Intent),
    /// The record was read: version and value are there.
    Here,
    /// The index does not have the key.
    Absent,
    /// The key's chain in FStore is to grow by a bucket, behind this one.
    Grow(BucketRef),
}

/// What a transaction names a record for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// To be looked at, and changed if it is there.
    Read,
    /// To be changed, if it is there. Protocols that lock in execution lock it then; for other
    /// protocols this is the same as `Read`.
    Update,
    /// To be inserted, if it is not there.
    Insert,
    /// To be deleted, if it is there.
    Delete,
}

impl Intent {
    /// Whether a record that was named for the other intent has to be named for this one now, which
    /// is more.
    #[inline]
    fn exceeds(self, other: Intent) -> bool {
        match (other, self) {
            (Intent::Insert, _) | (_, Intent::Read) | (Intent::Delete, Intent::Update) => false,
            (before, now) => before != now,
        }
    }
}

/// What a transaction does to a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    No,
    Update,
    Insert,
    Delete,
}

impl Change {
    fn kind(self) -> Option<WriteKind> {
        match self {
            Change::No => None,
            Change::Update => Some(WriteKind::Update),
            Change::Insert => Some(WriteKind::Insert),
            Change::Delete => Some(WriteKind::Delete),
        }
    }
}

/// Where a key stands in its shard's index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Offset of its pair.
    pub(crate) bucket_slot: u64,
    /// The pair's first word.
    pub(crate) entry: u64,
    /// The links of its chain, two words each, in the arena.
    pub(crate) links: Span,
}

/// A bucket in which a key was looked for in vain, in the arena: the one before it + 1, shard,
/// bucket, then its words.
pub(crate) const CHAIN_WORDS: usize = 3 + BUCKET_BYTES / 8;

/// Where a location comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LocationSource {
    Cached,
    Probed(BucketRef, usize),
}

/// Whether a record's lock is this transaction's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lock {
    No,
    /// The CAS was sent, its answer has not come; or it never will, because the future of its round
    /// was dropped or the round has failed ([`Tx::forget_unheard`](crate::Tx)).
    Maybe,
    /// The lock is this transaction's, which has seen nothing of the record since.
    Unseen,
    Held,
    /// The client's shared lock was asked for, and may have been given.
    MaybeShared,
    /// The transaction relies on the client's shared lock.
    Shared,
    /// The CAS that makes that lock the transaction's own was sent, and its answer has not come.
    Upgrading,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) table: TableId,
    /// The strongest intent that the record was named for.
    pub(crate) intent: Intent,
    /// Whether it was named for more after it had been fetched, and has not been fetched since.
    pub(crate) renamed: bool,
    /// Whether it is a structural record of an index, which has no key.
    pub(crate) structural: bool,
    pub(crate) hash: KeyHash,
    key: Span,
    pub(crate) home: BucketRef,
    pub(crate) fetch: Fetch,
    pub(crate) location: Location,
    /// Address of the slot at its primary.
    pub(crate) address: Address,
    pub(crate) version: Version,
    /// Whether it has been read, or looked for in vain, in this transaction.
    pub(crate) seen: bool,
    /// Where records are installed in place: whether the READ under way is at the primary.
    pub(crate) at_primary: bool,
    /// Whether no other transaction had it locked when it was read there, so that it was current
    /// then.
    pub(crate) current: bool,
    /// Whether a version cache says that the record is still current.
    pub(crate) vouched: bool,
    /// Whether the key was there when it was read.
    pub(crate) existed: bool,
    /// Whether it is there as this transaction sees it.
    pub(crate) present: bool,
    value: Span,
    value_bytes: u32,
    pub(crate) change: Change,
    pub(crate) place: Option<Place>,
    /// Whether the slot at the location may have been linked for a key without being its record
    /// yet: to be taken back if the transaction does not insert it.
    pub(crate) prepared: bool,
    /// The last bucket in which the key was looked for in vain: its place in the arena + 1.
    pub(crate) chain: u32,
    /// Whether the index has another key of the same hash. Then its buckets can be the same again
    /// although they have changed in between. So the primary's CPU, which compares whole keys, is
    /// asked whether the key is absent.
    pub(crate) collided: bool,
    image: Span,
    patches: Span,
    /// Where records are installed in place: what the slot held under the lock, from its version
    /// on.
    before: Span,
    pub(crate) lock: Lock,
    /// The CAS that the lock is asked for by: from the word that was found last. `None` if the word
    /// is only to be read.
    pub(crate) asks: Option<Swap>,
    /// The verbs of the round that is under way.
    pub(crate) read: ReadHandle,
    pub(crate) swap: SwapHandle,
    pub(crate) call: CallHandle,
    pub(crate) lookups: u32,
    pub(crate) hops: u32,
    /// Whether the round that is under way reads it.
    pub(crate) asked: bool,
    /// Whether a slot may have been linked for its key by a call whose answer this transaction has
    /// not heard.
    pub(crate) loose: bool,
    /// Where its table grows: the number of the key's item in the larger table, + 1. Otherwise 0.
    twin: u32,
    /// If the transaction moves the record to a larger table: the number of its item there, + 1.
    /// Otherwise 0.
    moved_to: u32,
}

impl Item {
    fn new(table: TableId, intent: Intent, hash: KeyHash, home: BucketRef, address: Address) -> Item {
        Item {
            table,
            intent,
            renamed: false,
            structural: false,
            hash,
            key: Span::default(),
            home,
            fetch: Fetch::Absent,
            location: Location::default(),
            address,
            version: Version::default(),
            seen: false,
            at_primary: false,
            current: false,
            vouched: false,
            existed: false,
            present: false,
            value: Span::default(),
            value_bytes: 0,
            change: Change::No,
            place: None,
            prepared: false,
            chain: 0,
            collided: false,
            image: Span::default(),
            patches: Span::default(),
            before: Span::default(),
            lock: Lock::No,
            asks: None,
            read: ReadHandle::default(),
            swap: SwapHandle::default(),
            call: CallHandle::default(),
            lookups: 0,
            hops: 0,
            asked: false,
            loose: false,
            twin: 0,
            moved_to: 0,
        }
    }

    #[inline]
    pub(crate) fn key_words<'a>(&self, arena: &'a [u64]) -> &'a [u64] {
        self.key.of(arena)
    }

    /// Whether it is known whether the key is there.
    #[inline]
    fn was_fetched(&self) -> bool {
        self.seen || matches!(self.fetch, Fetch::Here | Fetch::Absent)
    }

    /// Whether the key was there when the transaction saw it, if it has.
    #[inline]
    pub(crate) fn fetched_before(&self) -> Option<bool> {
        self.seen.then_some(self.existed)
    }

    /// Why it can be neither inserted nor deleted now.
    #[cold]
    fn unprepared(&self) -> Misuse {
        let is_under_way = self.renamed || !matches!(self.fetch, Fetch::Here | Fetch::Absent);
        if is_under_way { Misuse::NotFetched } else { Misuse::NotNamed }
    }

    /// Whether the pair at this offset of the index is its key's.
    pub(crate) fn is_place(&self, at: u64) -> bool {
        self.place.is_some_and(|place| place.bucket_slot == at)
    }

    /// Whether the commit writes it.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.change != Change::No
    }

    /// Keeps a record that was read.
    #[inline]
    pub(crate) fn keep(&mut self, arena: &mut Vec<u64>, record: &StableRecord<'_>) {
        self.fetch = Fetch::Here;
        self.seen = true;
        self.version = record.version();
        self.existed = record.is_present();
        self.present = self.existed;
        if self.present {
            let at = arena.len() as u32;
            record.copy_value(arena);
            self.value = Span { at, words: arena.len() as u32 - at };
            self.value_bytes = record.value_bytes() as u32;
        }
    }

    /// Keeps what its slot holds, to be put back if its transaction is undone.
    #[inline]
    pub(crate) fn keep_before(&mut self, arena: &mut Vec<u64>, record: &StableRecord<'_>) {
        let at = arena.len() as u32;
        arena.extend_from_slice(record.image());
        self.before = Span { at, words: arena.len() as u32 - at };
    }

    #[inline]
    pub(crate) fn before<'a>(&self, arena: &'a [u64]) -> &'a [u64] {
        self.before.of(arena)
    }
}

/// A table that a session knows.
#[inline]
pub(crate) fn registered(tables: &[Option<Arc<Table>>], id: TableId) -> &Table {
    tables[usize::from(id.0)].as_ref().expect("items are made for registered tables only")
}

/// Which side changes the lock of a record: its table's discipline says so.
#[inline]
pub(crate) fn locks(tables: &[Option<Arc<Table>>], item: &Item) -> Primitive {
    registered(tables, item.table).entry().spec.discipline.into()
}

/// How an item's record lies in its slot.
#[inline]
pub(crate) fn shape<'t>(tables: &'t [Option<Arc<Table>>], item: &Item) -> &'t RecordShape {
    let table = registered(tables, item.table);
    if item.structural { table.structural() } else { table.shape() }
}

/// Up to this many items, a key's item is found by looking at all of them. So there is nothing to
/// set up for a transaction that names few records.
const LINEAR_MAX: usize = 16;

/// The slots of an index in which a key's item is looked for, one after the other.
#[inline]
fn index_slots(index: &[u32], table: TableId, hash: KeyHash) -> impl Iterator<Item = usize> + use<> {
    let mask = index.len() - 1; // of a power of two
    // The same key in several tables is common.
    let home = (hash.scatter ^ u64::from(table.0) << 4) as usize & mask;
    (home..).map(move |slot| slot & mask)
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Sets {
    pub(crate) tables: Vec<Option<Arc<Table>>>,
    pub(crate) items: Vec<Item>,
    /// Beyond [`LINEAR_MAX`] items: hash table of them, open addressing with linear probing. An
    /// item's number + 1; 0 = free.
    index: Vec<u32>,
    /// Keys and values.
    pub(crate) arena: Vec<u64>,
    /// What is to be installed, once it has been encoded.
    images: Vec<u64>,
    /// Ranges that were looked at: table, first key, end.
    pub(crate) scans: Vec<(TableId, Vec<u8>, Vec<u8>)>,
    /// Items beside another one of the same key, in a larger table.
    twins: usize,
    /// Items before this one need no fetching.
    pub(crate) fetched: usize,
    pub(crate) written: usize,
    /// Tells the attempt under way from others: its slots have it.
    run: Run,
    /// The record that was in the way last, and how.
    noted: Option<(usize, Stop)>,
    /// A table that has little room left, as an insert has found since this was last looked at.
    pub(crate) crowded: Option<TableId>,
}

impl Sets {
    /// Begins an attempt, with nothing in the sets.
    #[inline]
    pub(crate) fn begin(&mut self, id: TransactionId) {
        self.clear();
        self.run = Run::of(id);
    }

    fn clear(&mut self) {
        self.noted = None;
        self.items.clear();
        self.index.clear();
        self.arena.clear();
        self.scans.clear();
        self.twins = 0;
        self.fetched = 0;
        self.written = 0;
    }

    /// Makes a table known, and the larger one that it grows into.
    pub(crate) fn register(&mut self, table: Arc<Table>) {
        if let Some(larger) = table.growth() {
            self.register(larger.table.clone());
        }
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

    /// Whether this table is registered, and not another one that had its id before.
    #[inline]
    pub(crate) fn knows_this(&self, table: &Table) -> bool {
        let known = self.tables.get(usize::from(table.id().0)).and_then(Option::as_ref);
        known.is_some_and(|known| known.born() == table.born())
    }

    /// The id of the registered table that a handle is of, which may be of a table that this one
    /// has grown from.
    #[inline]
    pub(crate) fn known(&self, handle: &Table) -> Option<TableId> {
        let id = handle.newest_id();
        let known = self.tables.get(usize::from(id.0)).and_then(Option::as_ref);
        known.filter(|known| known.origin() == handle.origin()).map(|_| id)
    }

    /// Replaces each registered table by what it is `now`, and forgets it if that is nothing. Only
    /// while nothing is named.
    pub(crate) fn replace(&mut self, now: impl Fn(&Table) -> Option<Arc<Table>>) {
        self.clear();
        for index in 0..self.tables.len() {
            let Some(table) = self.tables[index].take() else { continue };
            now(&table).into_iter().for_each(|table| self.register(table));
        }
    }

    #[inline]
    pub(crate) fn table(&self, id: TableId) -> &Table {
        registered(&self.tables, id)
    }

    /// The number of a key's item, if it has one.
    #[inline]
    fn find(&self, table: TableId, key: &Key, hash: KeyHash) -> Option<usize> {
        let matches =
            |item: &Item| item.hash.word == hash.word && item.table == table && item.key.of(&self.arena) == key.words();
        if self.items.len() <= LINEAR_MAX {
            return self.items.iter().position(matches);
        }
        // A free slot ends the search, and at least half of them are.
        let taken = index_slots(&self.index, table, hash).map_while(|slot| self.index[slot].checked_sub(1));
        taken.map(|number| number as usize).find(|number| matches(&self.items[*number]))
    }

    /// Adds the newest item to the index, which is made anew for the first of them, and when half
    /// of it is taken.
    fn add_to_index(&mut self) {
        let count = self.items.len();
        let mut first = count - 1;
        if self.index.len() < 2 * count {
            self.index.clear();
            self.index.resize(4 * count.next_power_of_two(), 0);
            first = 0;
        }
        for (number, item) in self.items.iter().enumerate().skip(first) {
            let mut slots = index_slots(&self.index, item.table, item.hash);
            if let Some(free) = slots.find(|slot| self.index[*slot] == 0) {
                self.index[free] = number as u32 + 1;
            }
        }
    }

    /// The item of a key, made if there is none yet. Where the table grows, there is another one in
    /// the larger table.
    #[inline]
    pub(crate) fn want(&mut self, table: TableId, key: &Key, intent: Intent, execute: FirstRead) -> Result<Slot, Stop> {
        match self.tables.get(usize::from(table.0)).and_then(Option::as_ref).and_then(|table| table.growth()) {
            None => self.want_here(table, key, intent, execute),
            Some(larger) => {
                let (stage, larger) = (larger.stage, larger.table.id());
                self.want_in_both([table, larger], stage, key, intent, execute)
            }
        }
    }

    /// Names a key in a table that grows, and in the larger one, which may itself grow. A key is
    /// inserted into one of them. The others are looked at, so that the commit validates that the
    /// key is not there.
    #[cold]
    fn want_in_both(
        &mut self,
        [smaller, larger]: [TableId; 2],
        stage: Stage,
        key: &Key,
        intent: Intent,
        execute: FirstRead,
    ) -> Result<Slot, Stop> {
        // What is there can be deleted, or changed.
        let elsewhere = if intent == Intent::Insert { Intent::Delete } else { intent };
        let [in_smaller, in_larger] = match stage {
            Stage::Announced => [intent, elsewhere],
            Stage::Filling => [elsewhere, intent],
        };
        let slot = self.want_here(smaller, key, in_smaller, execute)?;
        // A record in two tables counts once.
        self.twins += usize::from(self.items[slot.index as usize].twin == 0);
        let twin = self.want(larger, key, in_larger, execute)?;
        self.items[slot.index as usize].twin = twin.index + 1;
        Ok(slot)
    }

    /// The item of a key's next larger table, if the item's own table grows.
    #[inline]
    fn twin(&self, number: usize) -> Option<usize> {
        self.items[number].twin.checked_sub(1).map(|twin| twin as usize)
    }

    /// Whether keys are inserted into the larger table, where the table of an item grows.
    fn is_filling(&self, number: usize) -> bool {
        self.table(self.items[number].table).stage() != Some(Stage::Announced)
    }

    /// The number of the item that has a slot's record, or will have it.
    #[inline]
    fn holder(&self, slot: Slot) -> Result<usize, Stop> {
        let number = self.number(slot)?;
        Ok(if self.items[number].twin == 0 { number } else { self.holder_of(number) })
    }

    #[cold]
    fn holder_of(&self, number: usize) -> usize {
        let Some(twin) = self.twin(number) else { return number };
        let larger = self.holder_of(twin);
        let both = [number, larger];
        let has_key = both.into_iter().find(|item| self.items[*item].existed);
        let is_unknown = || both.into_iter().find(|item| !self.items[*item].was_fetched());
        has_key.or_else(is_unknown).unwrap_or(if self.is_filling(number) { larger } else { number })
    }

    /// Moves a record to the table that its own table grows into. It was named to be inserted, and
    /// fetched. Returns false if there is nothing to move.
    pub(crate) fn relocate(&mut self, slot: Slot) -> Result<bool, Stop> {
        let (mut to, from) = (self.number(slot)?, self.holder(slot)?);
        while let Some(larger) = self.twin(to).filter(|_| self.is_filling(to)) {
            to = larger;
        }
        let Item { present, value, value_bytes, .. } = self.items[from];
        if !present || to == from {
            return if self.items[from].was_fetched() { Ok(false) } else { Err(Misuse::NotFetched.into()) };
        }
        self.insert_here(to, value_bytes as usize)?;
        let at = self.items[to].value.at as usize;
        self.arena.copy_within(value.at as usize..(value.at + value.words) as usize, at);
        self.delete_here(from)?;
        self.items[from].moved_to = to as u32 + 1;
        Ok(true)
    }

    /// The item of a key in this very table, made if there is none yet.
    #[inline]
    pub(crate) fn want_here(
        &mut self,
        table: TableId,
        key: &Key,
        intent: Intent,
        execute: FirstRead,
    ) -> Result<Slot, Stop> {
        let Some(Some(opened)) = self.tables.get(usize::from(table.0)) else {
            panic!("table {} is not registered with this session", table.0)
        };
        let expected = usize::from(opened.entry().spec.layout.key_bytes);
        if key.bytes().len() != expected {
            return Err(Limit::Key { found: key.bytes().len(), expected }.into());
        }
        let hash = key.hash();
        let in_place = opened.fstore().is_some();
        if let Some(index) = self.find(table, key, hash) {
            let item = &mut self.items[index];
            if in_place {
                // Whatever is there is locked at the latest before the commit; a vacant slot has to
                // be found before.
                if intent == Intent::Insert && matches!(item.fetch, Fetch::Absent | Fetch::Record(_) | Fetch::Probe(..))
                {
                    item.fetch = Fetch::Probe(item.home, 0);
                    item.chain = 0;
                    self.fetched = self.fetched.min(index);
                }
                if intent.exceeds(item.intent) {
                    item.intent = intent;
                    if intent != Intent::Update && matches!(item.fetch, Fetch::Here) {
                        item.renamed = true;
                        self.fetched = self.fetched.min(index);
                    }
                }
            } else {
                if intent.exceeds(item.intent) {
                    item.intent = intent;
                }
                let is_asked = matches!(item.fetch, Fetch::Place(asked) if !intent.exceeds(asked));
                if let (Intent::Insert | Intent::Delete, None) = (intent, item.place)
                    && !is_asked
                {
                    item.fetch = Fetch::Place(intent);
                    self.fetched = self.fetched.min(index);
                }
            }
            return Ok(self.slot(index));
        }
        if self.items.len() == SET_MAX + self.twins {
            return Err(Limit::Set.into());
        }
        let home = opened.home(hash);
        let by_cpu = !in_place && matches!(intent, Intent::Insert | Intent::Delete);
        // An insert looks into the index.
        let by_index = by_cpu || in_place && intent == Intent::Insert;
        let uncached = by_index || matches!(execute, FirstRead::OneSided { cached: false } | FirstRead::Call);
        let cached = if uncached { None } else { opened.cached(home, hash) };
        let (fetch, location, address) = match (cached, execute) {
            (Some(location), _) => (Fetch::Record(LocationSource::Cached), location, opened.primary(location.pointer)),
            (None, _) if by_cpu => (Fetch::Place(intent), Location::default(), opened.bucket_address(home)),
            (None, FirstRead::OneSided { .. }) => {
                (Fetch::Probe(home, 0), Location::default(), opened.bucket_address(home))
            }
            (None, _) => (Fetch::Ask, Location::default(), opened.bucket_address(home)),
        };
        let at = self.arena.len() as u32;
        self.arena.extend_from_slice(key.words());
        let key = Span { at, words: key.words().len() as u32 };
        self.items.push(Item { key, fetch, location, ..Item::new(table, intent, hash, home, address) });
        if self.items.len() > LINEAR_MAX {
            self.add_to_index();
        }
        Ok(self.slot(self.items.len() - 1))
    }

    #[inline]
    fn slot(&self, index: usize) -> Slot {
        Slot { index: index as u32, run: self.run }
    }

    /// The number of a slot's item, if the slot is of this attempt.
    #[inline]
    pub(crate) fn number(&self, slot: Slot) -> Result<usize, Stop> {
        let index = slot.index as usize;
        if slot.run == self.run && index < self.items.len() { Ok(index) } else { Err(Misuse::OtherRun.into()) }
    }

    /// Notes which record is in the way, for the error that may come of it.
    #[cold]
    pub(crate) fn note(&mut self, index: usize, stop: Stop) {
        self.noted = Some((index, stop));
    }

    /// Says that the record which was noted with one stop is the reason of another one.
    pub(crate) fn restate(&mut self, stop: Stop) {
        self.noted.iter_mut().for_each(|(_, noted)| *noted = stop);
    }

    /// The table and key of the record that was the reason of a stop, as far as that was noted.
    pub(crate) fn culprit(&self, stop: Stop) -> Option<(&Table, Key)> {
        let (index, _) = self.noted.filter(|(_, noted)| *noted == stop)?;
        self.name(index)
    }

    /// The table and key of an item.
    pub(crate) fn name(&self, index: usize) -> Option<(&Table, Key)> {
        let item = self.items.get(index)?;
        let table = self.table(item.table);
        let bytes = if item.structural { 0 } else { usize::from(table.entry().spec.layout.key_bytes) };
        Some((table, Key::new(item.key.of(&self.arena).as_bytes().get(..bytes)?)?))
    }

    /// Returns the item of a structural record of FStore, at this offset of a shard. If there is
    /// none yet, makes one, to be locked and read. No slot names the item; it is found by its
    /// place.
    pub(crate) fn structural(&mut self, table: TableId, shard: u16, offset: u64) -> usize {
        let opened = registered(&self.tables, table);
        let pointer = Pointer::new(opened.shard_id(shard), offset);
        let known = self.items.iter().position(|item| item.structural && item.location.pointer == pointer);
        if let Some(known) = known {
            return known;
        }
        let home = BucketRef { shard, bucket: 0 };
        let mut item = Item::new(table, Intent::Update, KeyHash::default(), home, opened.primary(pointer));
        item.structural = true;
        item.location = Location { pointer, incarnation: 0 };
        item.fetch = Fetch::Record(LocationSource::Cached);
        self.items.push(item);
        if self.items.len() > LINEAR_MAX {
            self.add_to_index();
        }
        self.items.len() - 1
    }

    /// How an item's record lies in its slot.
    #[inline]
    pub(crate) fn shape(&self, item: &Item) -> &RecordShape {
        shape(&self.tables, item)
    }

    /// The value of a structural record that was read, as this transaction will leave it.
    pub(crate) fn structural_value(&self, item: &Item) -> u64 {
        if item.present { item.value.of(&self.arena).first().copied().unwrap_or(0) } else { 0 }
    }

    /// Changes the value of a structural record.
    pub(crate) fn set_structural(&mut self, index: usize, value: u64) {
        let at = self.arena.len() as u32;
        self.arena.push(value);
        let item = &mut self.items[index];
        (item.value, item.value_bytes) = (Span { at, words: 1 }, 8);
        self.change(index, Change::Update);
    }

    #[inline]
    pub(crate) fn value(&self, slot: Slot) -> Result<Option<&[u8]>, Stop> {
        let item = &self.items[self.holder(slot)?];
        if item.present {
            return Ok(Some(&item.value.of(&self.arena).as_bytes()[..item.value_bytes as usize]));
        }
        if item.was_fetched() { Ok(None) } else { Err(Misuse::NotFetched.into()) }
    }

    #[inline]
    pub(crate) fn value_mut(&mut self, slot: Slot) -> Result<Option<&mut [u8]>, Stop> {
        let index = self.holder(slot)?;
        let item = &mut self.items[index];
        if !item.present {
            return if item.was_fetched() { Ok(None) } else { Err(Misuse::NotFetched.into()) };
        }
        if item.change == Change::No {
            self.written += 1;
            item.change = Change::Update;
        }
        let words = &mut self.arena[item.value.at as usize..][..item.value.words as usize];
        Ok(Some(&mut words.as_mut_bytes()[..item.value_bytes as usize]))
    }

    /// The values of several records, to be changed in place.
    pub(crate) fn values_mut<const N: usize>(&mut self, slots: [Slot; N]) -> Result<[Option<&mut [u8]>; N], Stop> {
        let mut bytes = [None; N];
        let mut words = [const { 0..0 }; N];
        for (at, slot) in slots.into_iter().enumerate() {
            if slots[..at].contains(&slot) {
                return Err(Misuse::Twice.into());
            }
            bytes[at] = self.value_mut(slot)?.map(|value| value.len());
            let Span { at: begin, words: count } = self.items[self.holder(slot)?].value;
            // Records that are not there have no words, and disturb no others.
            words[at] = if bytes[at].is_some() { begin as usize..(begin + count) as usize } else { 0..0 };
        }
        let words = self.arena.get_disjoint_mut(words).expect("each record's value has words of its own");
        let mut bytes = bytes.into_iter();
        Ok(words.map(|words| bytes.next().flatten().map(|length| &mut words.as_mut_bytes()[..length])))
    }

    /// Replaces the value of a record that is there.
    pub(crate) fn write(&mut self, slot: Slot, value: &[u8]) -> Result<(), Stop> {
        if self.value(slot)?.is_none() {
            return Err(Stop::Absent);
        }
        let index = self.holder(slot)?;
        self.resize_value(index, value.len())?;
        self.value_of(index).copy_from_slice(value);
        Ok(())
    }

    /// The bytes of an item's value.
    fn value_of(&mut self, index: usize) -> &mut [u8] {
        let Item { value, value_bytes, .. } = self.items[index];
        &mut self.arena[value.at as usize..][..value.words as usize].as_mut_bytes()[..value_bytes as usize]
    }

    /// Gives an item's value this many bytes, which are to be written. Notes an update.
    fn resize_value(&mut self, index: usize, length: usize) -> Result<(), Stop> {
        let item = &self.items[index];
        let max = self.table(item.table).shape().value_max();
        if length > max {
            return Err(Limit::Value { found: length, max }.into());
        }
        let words = value_words(length);
        let mut span = item.value;
        if words > span.words as usize {
            span.at = self.arena.len() as u32;
            self.arena.resize(self.arena.len() + words, 0);
        }
        span.words = words as u32;
        let item = &mut self.items[index];
        item.value = span;
        item.value_bytes = length as u32;
        self.change(index, Change::Update);
        Ok(())
    }

    /// Notes what is done to a record beside what was done to it before.
    fn change(&mut self, index: usize, change: Change) {
        let item = &mut self.items[index];
        let before = item.change;
        item.change = match (before, change) {
            (Change::Insert, Change::Update) => Change::Insert,
            (Change::Insert, Change::Delete) => Change::No,
            (Change::Delete, Change::Insert) => Change::Update,
            (_, change) => change,
        };
        item.present =
            item.change != Change::Delete && item.change != Change::No || item.change == Change::No && item.existed;
        self.written = self.written + usize::from(item.change != Change::No) - usize::from(before != Change::No);
    }

    /// Inserts a record whose key is not there; it was named to be inserted, and fetched. Returns
    /// the bytes of its value, to be written.
    pub(crate) fn insert(&mut self, slot: Slot, length: usize) -> Result<&mut [u8], Stop> {
        self.insert_here(self.holder(slot)?, length)
    }

    fn insert_here(&mut self, index: usize, length: usize) -> Result<&mut [u8], Stop> {
        let item = &self.items[index];
        if item.present {
            return Err(Stop::Exists);
        }
        // A slot has been found for it, or is its own from before a delete.
        let in_place = self.table(item.table).fstore().is_some();
        if !item.existed && if in_place { item.lock != Lock::Held } else { item.place.is_none() } {
            return Err(item.unprepared().into());
        }
        debug_assert!(
            item.existed || item.prepared || item.place.is_none() || mutant!(KeepPlace),
            "an insert has a slot that is linked for it"
        );
        self.resize_value(index, length)?;
        let item = &mut self.items[index];
        // That has noted an update; what it means depends on what was there.
        if !item.existed {
            item.change = Change::Insert;
        }
        Ok(self.value_of(index))
    }

    /// Deletes a record whose key is there; it was named to be deleted, and fetched.
    pub(crate) fn delete(&mut self, slot: Slot) -> Result<(), Stop> {
        self.delete_here(self.holder(slot)?)
    }

    fn delete_here(&mut self, index: usize) -> Result<(), Stop> {
        let item = &self.items[index];
        if !item.present {
            return Err(if item.was_fetched() { Stop::Absent } else { Misuse::NotFetched.into() });
        }
        let in_place = self.table(item.table).fstore().is_some();
        let is_named = matches!(item.intent, Intent::Insert | Intent::Delete) && !item.renamed;
        if !(if in_place { is_named } else { item.place.is_some() }) {
            return Err(item.unprepared().into());
        }
        self.change(index, Change::Delete);
        Ok(())
    }

    /// Whether this transaction has the lock of every record that it writes.
    pub(crate) fn write_set_is_locked(&self) -> bool {
        let is_locked = |item: &Item| matches!(item.lock, Lock::Held | Lock::Unseen);
        self.items.iter().filter(|item| item.is_written()).all(is_locked)
    }

    /// Which side changes the lock of a record.
    #[inline]
    pub(crate) fn locks(&self, item: &Item) -> Primitive {
        locks(&self.tables, item)
    }

    /// The memory node of a key's primary.
    #[inline]
    pub(crate) fn primary_node(&self, item: &Item) -> NodeId {
        self.table(item.table).shard_replicas(item.home.shard)[0].node
    }

    /// Encodes what is to be installed; returns the words of all images.
    #[inline]
    pub(crate) fn encode_images(&mut self) -> usize {
        self.images.clear();
        let Sets { tables, items, arena, images, .. } = self;
        for item in items.iter_mut().filter(|item| item.is_written()) {
            let at = images.len() as u32;
            let key = item.key.of(arena);
            let incarnation = item.location.incarnation;
            let (life, value) = match item.change {
                Change::Delete => (Life::Deleted { incarnation }, &[][..]),
                _ => (Life::Present { incarnation }, &item.value.of(arena).as_bytes()[..item.value_bytes as usize]),
            };
            shape(tables, item).encode(item.version.committed_over(), life, key, value, images);
            let end = images.len() as u32;
            item.image = Span { at, words: end - at };
            let (Change::Insert | Change::Delete, Some(place)) = (item.change, item.place) else {
                item.patches = Span::default();
                continue;
            };
            // A link is set once and for all, so saying it again does no harm. The transaction that
            // linked it first may have aborted.
            for link in place.links.of(arena).chunks_exact(2).filter(|_| item.change == Change::Insert) {
                images.extend([link[0], link[1], 0]);
            }
            let entry = if item.change == Change::Delete { unlinked(place.entry) } else { place.entry };
            images.extend([place.bucket_slot, entry, item.hash.word]);
            item.patches = Span { at: end, words: images.len() as u32 - end };
        }
        images.len()
    }

    /// What changes in the index when a written item is installed, [`PATCH_WORDS`] each.
    #[inline]
    pub(crate) fn patches(&self, item: &Item) -> &[u64] {
        debug_assert!((item.patches.words as usize).is_multiple_of(PATCH_WORDS));
        item.patches.of(&self.images)
    }

    /// What is to be installed for a written item, from
    /// [`RecordShape::image_at`] on.
    #[inline]
    pub(crate) fn image(&self, item: &Item) -> &[u64] {
        item.image.of(&self.images)
    }

    pub(crate) fn scans(&self) -> impl Iterator<Item = Scan<'_>> {
        self.scans.iter().map(|(table, from, to)| Scan { table: self.table(*table), from, to })
    }

    pub(crate) fn accesses(&self) -> impl Iterator<Item = Access<'_>> {
        let is_told = |item: &Item| !item.structural && matches!(item.fetch, Fetch::Here | Fetch::Absent);
        let others = self.others();
        let told = move |(number, item): &(usize, &Item)| is_told(item) && !others.contains(number);
        self.items.iter().enumerate().filter(told).map(|(_, item)| {
            let table = self.table(item.table);
            let here = matches!(item.fetch, Fetch::Here) && item.existed;
            let installed = |item: &Item| item.change.kind().map(|kind| (kind, item.version.committed_over()));
            let written = match item.moved_to.checked_sub(1) {
                // To a program, a record that moves is one that gets another version.
                Some(to) => installed(&self.items[to as usize]).map(|(_, version)| (WriteKind::Update, version)),
                None => installed(item),
            };
            Access {
                table,
                key: &item.key.of(&self.arena).as_bytes()[..usize::from(table.entry().spec.layout.key_bytes)],
                read: here.then_some(item.version),
                written,
            }
        })
    }

    /// Of keys that were named in several tables, because their table grows: the numbers of the
    /// items that do not have the record.
    fn others(&self) -> Vec<usize> {
        let mut others = Vec::new();
        for number in (0..self.items.len()).filter(|number| self.items[*number].twin > 0) {
            let (mut each, holder) = (Some(number), self.holder_of(number));
            while let Some(item) = each {
                others.extend((item != holder).then_some(item));
                each = self.twin(item);
            }
        }
        others
    }
}
