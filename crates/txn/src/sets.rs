//! The read and write sets of a transaction. They have one item for each record, and an arena for
//! keys and values, which one transaction after the other reuses.

mod batch;
mod chains;

pub(crate) use batch::Adopted;

use std::num::NonZeroU32;
use std::sync::Arc;

use remora_fabric::{AddHandle, Address, CallHandle, NodeId, ReadHandle, SwapHandle};
use remora_index::btree::Shape;
use remora_index::cluster_hash::{BUCKET_BYTES, unlinked};
use remora_index::{BucketRef, Location, Table};
use remora_node::{Pointer, Stage, TableId};
use remora_record::{Former, Key, KeyHash, Life, RecordShape, StableRecord, Swap, TransactionId, Version, value_words};
use zerocopy::IntoBytes;

use crate::access::{Access, Scan, WriteKind};
use crate::edit::{Edit, EditKind};
use crate::error::{Abort, Limit, Misuse, Stop};
use crate::limits::{MEMBER_RECORDS_MAX, SET_MAX};
use crate::log::PATCH_WORDS;
use crate::protocol::spec::{FirstRead, Primitive};
use crate::words::{Name, Span};
use chains::Chains;

/// A record of a transaction, as [`Tx::want`](crate::Tx::want) returns it. A slot is valid for the
/// attempt that made it; other attempts refuse it ([`Misuse::OtherRun`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    index: u32,
    run: Run,
}

/// A number that tells attempts of transactions apart. Within 2^31 attempts of one client, no two
/// have the same run. Attempts of two clients have the same run only by chance.
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

/// How far a record has been fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fetch {
    /// A bucket of the index is to be read, and searched from this slot on.
    Probe(BucketRef, usize),
    /// The record is to be read. If it turns out to be another key's, the source of the location
    /// says what follows: a look-up in the index, or a search on in this bucket.
    Record(LocationSource),
    /// A former image of the record is to be read, because the record is later than the snapshot.
    /// The source says how the record was found.
    Former(LocationSource),
    /// The primary's CPU is to be asked where the key is, and for its record.
    Ask,
    /// The primary's CPU is to be asked where the key is, for its record, and for its place in the
    /// index. The key is to be deleted or inserted.
    Place(Intent),
    /// The record was read: the item has its version and its value.
    Here,
    /// The index does not have the key.
    Absent,
    /// The index does not have the key. Since when at the latest the key is absent is to be read.
    Since,
    /// The key's chain is to grow by a bucket, behind this one.
    Grow(BucketRef),
    /// The block is to be read that the record's object names. The source says how the object was
    /// found.
    Block(LocationSource),
    /// The batch whose member the transaction is has the record (`combine.rs`).
    Shared,
}

/// How much of a record's value a transaction asks for, or has. More is greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// Nothing: a memory node's CPU has said what the program asked of the value.
    Answer,
    /// The head of the value, if the table's records have cells
    /// ([`RecordShape::head`](remora_record::RecordShape::head)). Otherwise the whole value.
    Head,
    /// The whole value.
    Whole,
}

/// The purpose for which a transaction names a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// The record is read, and may be changed if its key is present.
    Read,
    /// The record is changed, if its key is present. Protocols that lock in execution lock the
    /// record then. For other protocols this is the same as `Read`.
    Update,
    /// The record is inserted, if its key is absent.
    Insert,
    /// The record is deleted, if its key is present.
    Delete,
}

impl Intent {
    /// Returns whether this intent needs more than the other one. Then a record that was named for
    /// the other intent has to be named again for this one.
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

/// The place of a key in its shard's index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Offset of the key's pair.
    pub(crate) bucket_slot: u64,
    /// The pair's first word.
    pub(crate) entry: u64,
    /// The links of the key's chain, two words each, in the arena.
    pub(crate) links: Span,
}

/// Words in the arena for a bucket in which a key was not found. They are the place of the bucket
/// before it in the arena + 1, the shard, the bucket's number, and then the bucket's words.
pub(crate) const CHAIN_WORDS: usize = 3 + BUCKET_BYTES / 8;

/// The source of a location: the location cache, or a bucket that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LocationSource {
    Cached,
    Probed(BucketRef, usize),
}

/// The state of a record's lock, as this transaction knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lock {
    No,
    /// The CAS was sent, and its answer has not come. The answer never comes if the future of the
    /// round was dropped, or if the round has failed (`Tx::forget_unheard`).
    Maybe,
    /// The primary's CPU was asked to find the key's record and to lock it, and has not said where
    /// the record is.
    MaybeByKey,
    /// This transaction has the lock, but has not read the record since it took the lock.
    Unseen,
    Held,
    /// This transaction has asked for the client's shared lock, and may have it.
    MaybeShared,
    /// The transaction relies on the client's shared lock.
    Shared,
    /// The CAS that makes the shared lock an exclusive one of the transaction was sent, and its
    /// answer has not come.
    Upgrading,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) table: TableId,
    /// The strongest intent that the record was named for.
    pub(crate) intent: Intent,
    /// How much of the value is asked for.
    pub(crate) part: Part,
    /// How much of the value the item has, once the record was read.
    pub(crate) has: Part,
    /// Whether the record was named for a stronger intent after it had been fetched, and has not
    /// been fetched since.
    pub(crate) renamed: bool,
    /// Whether the item is a structural record of an index, which has no key.
    pub(crate) structural: bool,
    pub(crate) hash: KeyHash,
    key: Span,
    pub(crate) home: BucketRef,
    pub(crate) fetch: Fetch,
    pub(crate) location: Location,
    /// Address of the slot at its primary.
    pub(crate) address: Address,
    pub(crate) version: Version,
    /// In timed tables: the time of the commit that has installed what was read. If the key is
    /// absent, no commit that has changed its chain is later.
    pub(crate) time: u64,
    /// In timed tables: where the image lies that is read next, among the images that the record
    /// had before.
    pub(crate) former: Former,
    /// Whether this transaction has read the record, or has found its key absent.
    pub(crate) seen: bool,
    /// Where records are installed in place: whether the READ under way is at the primary.
    pub(crate) at_primary: bool,
    /// Whether the record was read at the primary while no other transaction had it locked, so that
    /// it was current then.
    pub(crate) current: bool,
    /// Whether a version cache says that the record is still current.
    pub(crate) vouched: bool,
    /// Whether the key was present when the record was read.
    pub(crate) existed: bool,
    /// Whether the key is present as this transaction sees it, with its own writes.
    pub(crate) present: bool,
    value: Span,
    value_bytes: u32,
    pub(crate) change: Change,
    /// Whether the record is of the batch whose member this transaction is.
    of_batch: bool,
    /// Whether a member of this transaction's batch has brought the record along.
    pub(crate) brought: bool,
    /// How many members of a batch have changed the record behind this transaction (`combine.rs`).
    pub(crate) further_changes: u32,
    pub(crate) place: Option<Place>,
    /// Whether the slot at the location may have been linked for a key without being the key's
    /// record yet. Then the transaction takes the slot back if it does not insert the key.
    pub(crate) prepared: bool,
    /// Place in the arena, + 1, of the last bucket that was searched for the key without finding
    /// it.
    pub(crate) chain: u32,
    /// Whether the index has another key of the same hash. Then the buckets can look the same again
    /// although they have changed in between. So the primary's CPU, which compares whole keys, is
    /// asked whether the key is absent.
    pub(crate) collided: bool,
    image: Span,
    patches: Span,
    /// Where records are installed in place: what the slot held under the lock, from its version
    /// on.
    before: Span,
    pub(crate) lock: Lock,
    /// The CAS that asks for the lock, from the word that was found last. `None` if the word is
    /// only to be read.
    pub(crate) asks: Option<Swap>,
    /// The READ of this item in the round that is under way.
    pub(crate) read: ReadHandle,
    /// A READ beside it, which looks at the item's object once more.
    pub(crate) again: ReadHandle,
    /// A FETCH_ADD beside it, which takes blocks or a bucket of the shard.
    pub(crate) add: AddHandle,
    /// Whether it takes blocks.
    pub(crate) takes_blocks: bool,
    /// Whether a vacant object was found for the key, which is absent.
    pub(crate) vacant: bool,
    pub(crate) swap: SwapHandle,
    pub(crate) call: CallHandle,
    /// The word of the call's reply at which the answer about this item begins, if the call is
    /// about several items.
    pub(crate) answer_at: u32,
    pub(crate) lookups: u32,
    pub(crate) hops: u32,
    /// Whether the round that is under way asks for this item.
    pub(crate) asked: bool,
    /// Whether a call may have linked a slot for the key, and this transaction has not heard the
    /// answer.
    pub(crate) loose: bool,
    /// If the item's table grows: the number of the key's item in the larger table, + 1. Otherwise
    /// 0.
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
            part: Part::Whole,
            has: Part::Whole,
            renamed: false,
            structural: false,
            hash,
            key: Span::default(),
            home,
            fetch: Fetch::Absent,
            location: Location::default(),
            address,
            version: Version::default(),
            time: 0,
            former: Former::UNKNOWN,
            seen: false,
            at_primary: false,
            current: false,
            vouched: false,
            existed: false,
            present: false,
            value: Span::default(),
            value_bytes: 0,
            change: Change::No,
            of_batch: false,
            brought: false,
            further_changes: 0,
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
            again: ReadHandle::default(),
            add: AddHandle::default(),
            takes_blocks: false,
            vacant: false,
            swap: SwapHandle::default(),
            call: CallHandle::default(),
            answer_at: 0,
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

    /// Returns whether the transaction knows whether the key is present.
    #[inline]
    fn was_fetched(&self) -> bool {
        self.seen || matches!(self.fetch, Fetch::Here | Fetch::Absent)
    }

    /// Returns whether the key was present when the transaction saw it, or `None` if it has not
    /// seen it.
    #[inline]
    pub(crate) fn fetched_before(&self) -> Option<bool> {
        self.seen.then_some(self.existed)
    }

    /// Returns whether the item, which has just been fetched, has the same state of its record as
    /// before. It has if it had not been fetched before.
    #[inline]
    pub(crate) fn is_as(&self, before: &Item) -> bool {
        match before.fetched_before() {
            None => true,
            Some(true) => self.existed && self.version == before.version,
            Some(false) => !self.existed,
        }
    }

    /// Returns whether the item has the record's whole value, or its key is absent.
    #[inline]
    fn is_whole(&self) -> bool {
        self.has == Part::Whole || !self.existed
    }

    /// Returns whether the record is present, was read as a whole, and stays where it is. A batch
    /// can have only such records.
    fn is_plain(&self) -> bool {
        let stays = !self.structural && self.twin == 0 && self.moved_to == 0 && !self.renamed;
        let is_here = matches!(self.fetch, Fetch::Here) && self.existed && self.present && self.is_whole();
        stays && is_here && matches!(self.change, Change::No | Change::Update)
    }

    /// Returns why the record can be neither inserted nor deleted now: it is of a batch, whose
    /// members do neither, or the program has made a mistake.
    #[cold]
    fn unprepared(&self) -> Stop {
        if self.of_batch {
            return Abort::Changed.into();
        }
        let is_under_way = self.renamed || !matches!(self.fetch, Fetch::Here | Fetch::Absent);
        if is_under_way { Misuse::NotFetched.into() } else { Misuse::NotNamed.into() }
    }

    /// Returns the name of the record.
    pub(crate) fn name(&self) -> Name {
        if self.structural {
            Name::of_structural(self.table, self.location.pointer)
        } else {
            Name::of(self.table, self.hash)
        }
    }

    /// Returns the version that the commit installs. It is beyond the one that this transaction
    /// writes if others have changed the record in the same commit.
    #[inline]
    pub(crate) fn installs(&self) -> Version {
        (0..self.further_changes).fold(self.version.committed_over(), |version, _| version.committed_over())
    }

    /// Returns whether the pair at this offset of the index is the one of the item's key.
    pub(crate) fn is_place(&self, at: u64) -> bool {
        self.place.is_some_and(|place| place.bucket_slot == at)
    }

    /// Returns whether the commit writes the record.
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
        self.time = self.time.max(record.time());
        self.existed = record.is_present();
        self.present = self.existed;
        if self.present {
            let at = arena.len() as u32;
            record.copy_value(arena);
            self.value = Span { at, words: arena.len() as u32 - at };
            self.value_bytes = record.value_bytes() as u32;
        }
    }

    /// Notes that a memory node's CPU has said something of the record, which is present and had
    /// this version.
    pub(crate) fn answered(&mut self, version: Version) {
        (self.fetch, self.has) = (Fetch::Here, Part::Answer);
        (self.seen, self.existed, self.present) = (true, true, true);
        self.version = version;
    }

    /// Keeps what the record's slot holds, for the undo entry.
    #[inline]
    pub(crate) fn keep_before(&mut self, arena: &mut Vec<u64>, record: &StableRecord<'_>) {
        let at = arena.len() as u32;
        self.time = self.time.max(record.time());
        arena.extend_from_slice(record.image());
        self.before = Span { at, words: arena.len() as u32 - at };
    }

    #[inline]
    pub(crate) fn before<'a>(&self, arena: &'a [u64]) -> &'a [u64] {
        self.before.of(arena)
    }
}

/// Returns a table that the session knows.
#[inline]
pub(crate) fn registered(tables: &[Option<Arc<Table>>], id: TableId) -> &Table {
    tables[usize::from(id.0)].as_ref().expect("items are made for registered tables only")
}

/// Returns the side that changes the lock of a record, as the discipline of its table says.
#[inline]
pub(crate) fn locks(tables: &[Option<Arc<Table>>], item: &Item) -> Primitive {
    registered(tables, item.table).entry().spec.discipline.into()
}

/// Returns where a transaction locks an item's record ([`Sets::lock_addresses`]).
pub(crate) fn lock_addresses<'t>(
    tables: &'t [Option<Arc<Table>>],
    item: &Item,
    everywhere: bool,
) -> impl Iterator<Item = Address> + use<'t> {
    let (pointer, primary) = (item.location.pointer, item.address);
    let everywhere = everywhere && !mutant!(EarlyAtPrimary);
    let replicas = if everywhere { registered(tables, item.table).replicas(pointer) } else { &[] };
    let backups = replicas.iter().skip(1).map(move |replica| replica.address(pointer.offset()));
    std::iter::once(primary).chain(backups)
}

/// How an item's record lies in its slot.
#[inline]
pub(crate) fn shape<'t>(tables: &'t [Option<Arc<Table>>], item: &Item) -> &'t RecordShape {
    let table = registered(tables, item.table);
    if item.structural { table.structural() } else { table.shape() }
}

/// Returns the shape of the head of an item's record, if the item asks for no more than that.
#[inline]
pub(crate) fn head(tables: &[Option<Arc<Table>>], item: &Item) -> Option<RecordShape> {
    if item.part == Part::Whole { None } else { shape(tables, item).head() }
}

/// Up to this many items, the sets find a key's item by a look at all of them. So a transaction
/// that names few records needs no index.
const LINEAR_MAX: usize = 16;

/// Returns the slots of the index in which a key's item may be, in the order of the search.
#[inline]
fn index_slots(index: &[u32], table: TableId, hash: KeyHash) -> impl Iterator<Item = usize> + use<> {
    let mask = index.len() - 1; // the length is a power of two
    // One key in several tables is common, so the table's id moves the search apart.
    let home = (hash.scatter ^ u64::from(table.0) << 4) as usize & mask;
    (home..).map(move |slot| slot & mask)
}

/// Returns the hash of the place of a structural record, which the index has instead of a key's.
fn structural_hash(pointer: Pointer) -> KeyHash {
    KeyHash::of(&[pointer.to_bits()])
}

/// A change of an entry of a leaf whose value the transaction does not have: the CPU of the leaf's
/// memory node has locked the leaf for it (`edit.rs`).
#[derive(Debug)]
pub(crate) struct PendingEdit {
    /// The number of the leaf's item.
    pub(crate) item: usize,
    pub(crate) kind: EditKind,
    pub(crate) shape: Shape,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// Offset of the log entry's frame at the leaf's primary, once it has been sent.
    pub(crate) frame_at: u64,
}

/// The read and write sets of one transaction after the other. The head of this module says more.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    pub(crate) tables: Vec<Option<Arc<Table>>>,
    pub(crate) items: Vec<Item>,
    /// Hash table of the items, once there are more than [`LINEAR_MAX`]: open addressing with
    /// linear probing. It has an item's number + 1, or 0 in a free slot.
    index: Vec<u32>,
    /// The items by their chains, for inserts into FStore.
    chains: Chains,
    /// Keys and values.
    pub(crate) arena: Vec<u64>,
    /// What is to be installed, once it has been encoded.
    images: Vec<u64>,
    /// Changes of entries of leaves that the transaction has locked, and whose values it does not
    /// have.
    pub(crate) edits: Vec<PendingEdit>,
    /// Ranges that the transaction has looked at: table, first key, end.
    pub(crate) scans: Vec<(TableId, Vec<u8>, Vec<u8>)>,
    /// Number of items whose key has another item, in a larger table.
    twins: usize,
    /// Number of the first item that may need fetching.
    pub(crate) fetched: usize,
    pub(crate) written: usize,
    /// The run of the current attempt, which all its slots have.
    run: Run,
    /// The number of the record that was last in the way, and the stop that it caused.
    noted: Option<(usize, Stop)>,
    /// A table that has little room left, if an insert has found one since this was last taken.
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
        self.chains.clear();
        self.arena.clear();
        self.scans.clear();
        self.edits.clear();
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

    /// Returns whether this table is registered, and not an earlier table with the same id.
    #[inline]
    pub(crate) fn knows_this(&self, table: &Table) -> bool {
        let known = self.tables.get(usize::from(table.id().0)).and_then(Option::as_ref);
        known.is_some_and(|known| known.born() == table.born())
    }

    /// Returns the id of the registered table that a handle stands for. The handle may be the one
    /// of a table from which the registered table has grown.
    #[inline]
    pub(crate) fn known(&self, handle: &Table) -> Option<TableId> {
        let id = handle.newest_id();
        let known = self.tables.get(usize::from(id.0)).and_then(Option::as_ref);
        known.filter(|known| known.origin() == handle.origin()).map(|_| id)
    }

    /// Replaces each registered table by the one that `now` returns for it, and forgets the table
    /// if that is `None`. Call it only while no record is named.
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

    /// Returns the number of a key's item, if the key has one.
    #[inline]
    fn find(&self, table: TableId, key: &Key, hash: KeyHash) -> Option<usize> {
        let matches =
            |item: &Item| item.hash.word == hash.word && item.table == table && item.key.of(&self.arena) == key.words();
        self.find_item(table, hash, matches)
    }

    /// Returns the number of the item of a structural record, if it has one.
    pub(crate) fn find_structural(&self, table: TableId, pointer: Pointer) -> Option<usize> {
        let matches = |item: &Item| item.structural && item.location.pointer == pointer;
        self.find_item(table, structural_hash(pointer), matches)
    }

    #[inline]
    fn find_item(&self, table: TableId, hash: KeyHash, matches: impl Fn(&Item) -> bool) -> Option<usize> {
        if self.items.len() <= LINEAR_MAX {
            return self.items.iter().position(matches);
        }
        // A free slot ends the search, and at least half of the slots are free.
        let taken = index_slots(&self.index, table, hash).map_while(|slot| self.index[slot].checked_sub(1));
        taken.map(|number| number as usize).find(|number| matches(&self.items[*number]))
    }

    /// Returns whether the transaction has named a record.
    pub(crate) fn has(&self, table: TableId, key: &Key) -> bool {
        self.find(table, key, key.hash()).is_some()
    }

    /// Adds the newest item to the index. Makes the index anew for its first item, and whenever
    /// half of its slots are taken.
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

    /// Returns the slot of a key's item, and makes the item if there is none yet. If the table
    /// grows, the key gets another item in the larger table.
    #[inline]
    pub(crate) fn want(
        &mut self,
        table: TableId,
        key: &Key,
        purpose: (Intent, Part),
        execute: FirstRead,
    ) -> Result<Slot, Stop> {
        match self.tables.get(usize::from(table.0)).and_then(Option::as_ref).and_then(|table| table.growth()) {
            None => self.want_here(table, key, purpose, execute),
            Some(larger) => {
                let (stage, larger) = (larger.stage, larger.table.id());
                self.want_in_both([table, larger], stage, key, purpose, execute)
            }
        }
    }

    /// Prefetches into the processor's cache what [`Sets::want`] looks at for a key.
    #[inline]
    pub(crate) fn prefetch(&self, table: TableId, key: &Key) {
        if let Some(Some(table)) = self.tables.get(usize::from(table.0)) {
            table.prefetch_cached(table.home(key.hash()));
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
        (intent, part): (Intent, Part),
        execute: FirstRead,
    ) -> Result<Slot, Stop> {
        // In the other table, a record of the key can be deleted or changed.
        let elsewhere = if intent == Intent::Insert { Intent::Delete } else { intent };
        let [in_smaller, in_larger] = match stage {
            Stage::Announced => [intent, elsewhere],
            Stage::Filling => [elsewhere, intent],
        };
        let slot = self.want_here(smaller, key, (in_smaller, part), execute)?;
        // A key with items in two tables counts once against the limit.
        self.twins += usize::from(self.items[slot.index as usize].twin == 0);
        let twin = self.want(larger, key, (in_larger, part), execute)?;
        self.items[slot.index as usize].twin = twin.index + 1;
        Ok(slot)
    }

    /// Returns the number of the key's item in the next larger table, if the item's own table
    /// grows.
    #[inline]
    fn twin(&self, number: usize) -> Option<usize> {
        self.items[number].twin.checked_sub(1).map(|twin| twin as usize)
    }

    /// Returns whether keys are inserted into the larger table, for an item whose table grows.
    fn is_filling(&self, number: usize) -> bool {
        self.table(self.items[number].table).stage() != Some(Stage::Announced)
    }

    /// Returns the number of the item that has a slot's record, or will have it.
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

    /// Moves a record to the table that its own table grows into. The record must have been named
    /// to be inserted, and fetched. Returns false if there is nothing to move.
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

    /// Returns the slot of a key's item in this table alone, and makes the item if there is none
    /// yet.
    #[inline]
    pub(crate) fn want_here(
        &mut self,
        table: TableId,
        key: &Key,
        (intent, part): (Intent, Part),
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
        let in_place = opened.is_changed_by_clients();
        // In other tables, an insert first looks where the cache says that the key was.
        let inserts_by_index = opened.objects().is_some();
        if let Some(index) = self.find(table, key, hash) {
            // A pending change needs the whole value.
            let is_edited = self.edits.iter().any(|edit| edit.item == index);
            let item = &mut self.items[index];
            if part > item.part {
                item.part = if is_edited { Part::Whole } else { part };
                if matches!(item.fetch, Fetch::Here) && item.existed && part > item.has {
                    // What is read now must be of the same state of the record.
                    item.fetch = Fetch::Record(LocationSource::Cached);
                    self.fetched = self.fetched.min(index);
                }
            }
            if item.of_batch {
                // It is present, and members neither insert nor delete.
                if intent.exceeds(item.intent) {
                    item.intent = intent;
                }
            } else if in_place {
                // A record that is there is locked before the commit at the latest. For an absent
                // key, a vacant slot has to be found first.
                let begins_again = match item.fetch {
                    Fetch::Absent | Fetch::Probe(..) | Fetch::Block(_) => true,
                    Fetch::Record(_) => inserts_by_index,
                    _ => false,
                };
                if intent == Intent::Insert && begins_again {
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
        let by_index = by_cpu || intent == Intent::Insert && inserts_by_index;
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
        self.items.push(Item { key, fetch, location, part, ..Item::new(table, intent, hash, home, address) });
        if self.items.len() > LINEAR_MAX {
            self.add_to_index();
        }
        Ok(self.slot(self.items.len() - 1))
    }

    #[inline]
    fn slot(&self, index: usize) -> Slot {
        Slot { index: index as u32, run: self.run }
    }

    /// Returns the number of a slot's item. Fails with [`Misuse::OtherRun`] if another attempt made
    /// the slot.
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

    /// Replaces the stop with which a record was noted by another one.
    pub(crate) fn restate(&mut self, stop: Stop) {
        self.noted.iter_mut().for_each(|(_, noted)| *noted = stop);
    }

    /// Returns the table and the key of the record that was the reason of a stop, if it was noted.
    pub(crate) fn culprit(&self, stop: Stop) -> Option<(&Table, Key)> {
        let (index, _) = self.noted.filter(|(_, noted)| *noted == stop)?;
        // What a member has brought along, the program of this transaction does not know.
        let is_own = self.items.get(index).is_some_and(|item| !item.brought);
        if is_own { self.name(index) } else { None }
    }

    /// Returns the record that was the reason of a stop, if the transaction was about to change it,
    /// or to lock it for reading.
    pub(crate) fn contested(&self, stop: Stop, locks_reads: bool) -> Option<Name> {
        let (index, _) = self.noted.filter(|(_, noted)| *noted == stop)?;
        let item = self.items.get(index).filter(|item| !item.brought)?;
        let is_wanted = locks_reads || item.change != Change::No || item.intent != Intent::Read;
        is_wanted.then(|| item.name())
    }

    /// Lists the records that are named for a change or that the session `reads_first`, or all if
    /// reads take locks. Lists none if the transaction has fetched a record already.
    pub(crate) fn contests(&self, locks_reads: bool, reads_first: Option<Name>, names: &mut Vec<Name>) {
        names.clear();
        if self.items.iter().any(|item| item.was_fetched() || item.lock != Lock::No) {
            return;
        }
        let changes = |item: &&Item| item.intent != Intent::Read || reads_first == Some(item.name());
        for item in self.items.iter().filter(|item| locks_reads || changes(item)) {
            names.push(item.name());
            // An insert also changes the header of its chain.
            let table = self.table(item.table);
            if item.intent == Intent::Insert && table.is_changed_by_clients() {
                let at = table.index().buckets().at(item.home.bucket);
                let header = Pointer::new(table.shard_id(item.home.shard), at);
                names.push(Name::of_structural(item.table, header));
            }
        }
    }

    /// Lists the names of all records that the transaction has named. Lists none if they are too
    /// many for a member of a batch. Returns whether the transaction only reads and updates.
    pub(crate) fn names(&self, names: &mut Vec<Name>) -> bool {
        names.clear();
        let own = || self.items.iter().filter(|item| !item.brought);
        if own().count() <= MEMBER_RECORDS_MAX {
            names.extend(own().map(Item::name));
        }
        self.items.iter().all(|item| matches!(item.intent, Intent::Read | Intent::Update))
    }

    /// Returns the name of the record that was the reason of a stop, if it was noted.
    pub(crate) fn noted(&self, stop: Stop) -> Option<Name> {
        let (index, _) = self.noted.filter(|(_, noted)| *noted == stop)?;
        self.items.get(index).map(Item::name)
    }

    /// Returns the table and the key of the record of this name, if the transaction has named it.
    pub(crate) fn named(&self, name: Name) -> Option<(&Table, Key)> {
        self.name(self.items.iter().position(|item| item.name() == name)?)
    }

    /// Returns whether this transaction, a member of a batch, has brought a record along.
    pub(crate) fn has_brought(&self, name: Name) -> bool {
        self.items.iter().any(|item| item.name() == name && !item.of_batch)
    }

    /// Notes the record of this name as the one that is in the way.
    pub(crate) fn note_named(&mut self, name: Name, stop: Stop) {
        let item = self.items.iter().position(|item| item.name() == name);
        self.noted = item.map(|index| (index, stop)).or(self.noted);
    }

    /// Returns the table and the key of an item.
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
        if let Some(known) = self.find_structural(table, pointer) {
            return known;
        }
        let home = BucketRef { shard, bucket: 0 };
        let mut item = Item::new(table, Intent::Update, structural_hash(pointer), home, opened.primary(pointer));
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

    /// Returns the number of bytes to READ for what an item asks for.
    #[inline]
    pub(crate) fn read_bytes(&self, item: &Item) -> usize {
        head(&self.tables, item).as_ref().unwrap_or(self.shape(item)).record_bytes()
    }

    /// Returns the item of a slot, if it has a record that is present, and the place of one of the
    /// record's cells in the item's value, if the item has the whole value.
    pub(crate) fn cell(&self, slot: Slot, cell: usize) -> Result<Option<(&Item, Option<Span>)>, Stop> {
        let item = &self.items[self.holder(slot)?];
        if !item.was_fetched() {
            return Err(Misuse::NotFetched.into());
        }
        let of_value = self.shape(item).cell_in_value(cell).filter(|_| item.is_whole());
        let span = of_value.map(|(at, words)| Span { at: item.value.at + at as u32, words: words as u32 });
        Ok(item.present.then_some((item, span)))
    }

    /// Returns the value of a structural record that was read, as this transaction will leave it.
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

    /// Notes that the commit writes a structural record, whose words the protocol knows.
    pub(crate) fn touch_structural(&mut self, index: usize) {
        if !self.items[index].is_written() {
            self.change(index, Change::Update);
        }
    }

    /// Appends to `out` the image of an item's record as the commit writes it, with these extra
    /// words.
    pub(crate) fn encode_image(&self, index: usize, extra: &[u64], out: &mut Vec<u64>) {
        let item = &self.items[index];
        let value = &item.value.of(&self.arena).as_bytes()[..item.value_bytes as usize];
        let life = Life::Present { incarnation: 0 };
        self.shape(item).encode_with_extra(item.installs(), life, extra, item.key.of(&self.arena), value, out);
    }

    #[inline]
    pub(crate) fn value(&self, slot: Slot) -> Result<Option<&[u8]>, Stop> {
        let item = &self.items[self.holder(slot)?];
        if item.present && item.has == Part::Answer {
            return Err(Misuse::NotFetched.into());
        }
        if item.present {
            return Ok(Some(&item.value.of(&self.arena).as_bytes()[..item.value_bytes as usize]));
        }
        if item.was_fetched() { Ok(None) } else { Err(Misuse::NotFetched.into()) }
    }

    #[inline]
    pub(crate) fn value_mut(&mut self, slot: Slot) -> Result<Option<&mut [u8]>, Stop> {
        let index = self.holder(slot)?;
        let item = &mut self.items[index];
        if !item.is_whole() {
            return Err(Misuse::NotFetched.into());
        }
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

    /// Returns the values of several records, to be changed in place.
    pub(crate) fn values_mut<const N: usize>(&mut self, slots: [Slot; N]) -> Result<[Option<&mut [u8]>; N], Stop> {
        let mut bytes = [None; N];
        let mut words = [const { 0..0 }; N];
        for (at, slot) in slots.into_iter().enumerate() {
            if slots[..at].contains(&slot) {
                return Err(Misuse::Twice.into());
            }
            bytes[at] = self.value_mut(slot)?.map(|value| value.len());
            let Span { at: begin, words: count } = self.items[self.holder(slot)?].value;
            // Absent records have no words, so they overlap with no other record.
            words[at] = if bytes[at].is_some() { begin as usize..(begin + count) as usize } else { 0..0 };
        }
        let words = self.arena.get_disjoint_mut(words).expect("each record's value has words of its own");
        let mut bytes = bytes.into_iter();
        Ok(words.map(|words| bytes.next().flatten().map(|length| &mut words.as_mut_bytes()[..length])))
    }

    /// Replaces the value of a record whose key is present.
    pub(crate) fn write(&mut self, slot: Slot, value: &[u8]) -> Result<(), Stop> {
        if self.value(slot)?.is_none() {
            return Err(Stop::Absent);
        }
        let index = self.holder(slot)?;
        self.resize_value(index, value.len())?;
        self.value_of(index).copy_from_slice(value);
        Ok(())
    }

    /// Returns the bytes of an item's value.
    fn value_of(&mut self, index: usize) -> &mut [u8] {
        let Item { value, value_bytes, .. } = self.items[index];
        &mut self.arena[value.at as usize..][..value.words as usize].as_mut_bytes()[..value_bytes as usize]
    }

    /// Gives an item's value this many bytes, which the caller then writes. Notes an update.
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

    /// Returns the number of the leaf whose change is all that the transaction writes, if all its
    /// replicas have what they need to make the log entry by themselves.
    pub(crate) fn lone_edit(&self) -> Option<usize> {
        let ([edit], 1) = (&self.edits[..], self.written) else { return None };
        let item = &self.items[edit.item];
        let replicas = self.table(item.table).replicas(item.location.pointer);
        let all_have_it = !replicas.iter().any(|replica| replica.joining) && !mutant!(LogAtBackupsOnly);
        all_have_it.then_some(edit.item)
    }

    /// Asks for the leaves of all pending changes, which the transaction then makes itself.
    pub(crate) fn fetch_edited(&mut self) {
        for edit in &self.edits {
            let item = &mut self.items[edit.item];
            (item.part, item.fetch) = (Part::Whole, Fetch::Record(LocationSource::Cached));
            self.fetched = self.fetched.min(edit.item);
        }
    }

    /// Makes the pending change of a record, whose whole value has been fetched.
    #[cold]
    pub(crate) fn make_edit(&mut self, index: usize) -> Result<(), Stop> {
        let Some(at) = self.edits.iter().position(|edit| edit.item == index) else { return Ok(()) };
        let PendingEdit { kind, shape, key, value, .. } = self.edits.swap_remove(at);
        let edit = Edit { kind, shape, key: &key, value: &value };
        edit.apply(self.value_of(index)).ok_or(Abort::Changed)?;
        Ok(())
    }

    /// Notes that a leaf is locked for a change, and will have it.
    pub(crate) fn taken(&mut self, edit: PendingEdit) {
        let index = edit.item;
        self.items[index].lock = Lock::Held;
        self.change(index, Change::Update);
        self.edits.push(edit);
    }

    /// Notes a change of a record, and combines it with the changes that this transaction has made
    /// before.
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

    /// Inserts a record whose key is absent. The record must have been named to be inserted, and
    /// fetched. Returns the bytes of its value, which the caller then writes.
    pub(crate) fn insert(&mut self, slot: Slot, length: usize) -> Result<&mut [u8], Stop> {
        self.insert_here(self.holder(slot)?, length)
    }

    fn insert_here(&mut self, index: usize, length: usize) -> Result<&mut [u8], Stop> {
        let item = &self.items[index];
        if item.present {
            return Err(Stop::Exists);
        }
        // A slot has been found for the record, or the record has kept its own slot after a delete.
        let table = self.table(item.table);
        let has_slot = match () {
            () if table.objects().is_some() => item.vacant,
            () if table.fstore().is_some() => item.lock == Lock::Held,
            () => item.place.is_some(),
        };
        if !item.existed && !has_slot {
            return Err(item.unprepared());
        }
        debug_assert!(
            item.existed || item.prepared || item.place.is_none() || mutant!(KeepPlace),
            "an insert has a slot that is linked for it"
        );
        self.resize_value(index, length)?;
        let item = &mut self.items[index];
        // `resize_value` has noted an update. Whether it is an insert depends on whether the key
        // was present.
        if !item.existed {
            item.change = Change::Insert;
        }
        Ok(self.value_of(index))
    }

    /// Deletes a record whose key is present. The record must have been named to be deleted, and
    /// fetched.
    pub(crate) fn delete(&mut self, slot: Slot) -> Result<(), Stop> {
        self.delete_here(self.holder(slot)?)
    }

    fn delete_here(&mut self, index: usize) -> Result<(), Stop> {
        let item = &self.items[index];
        if !item.present {
            return Err(if item.was_fetched() { Stop::Absent } else { Misuse::NotFetched.into() });
        }
        let in_place = self.table(item.table).is_changed_by_clients();
        let is_named = matches!(item.intent, Intent::Insert | Intent::Delete) && !item.renamed;
        if !(if in_place { is_named } else { item.place.is_some() }) {
            return Err(item.unprepared());
        }
        self.change(index, Change::Delete);
        Ok(())
    }

    /// Returns whether this transaction has the lock of every record that it writes.
    pub(crate) fn write_set_is_locked(&self) -> bool {
        let is_locked = |item: &Item| matches!(item.lock, Lock::Held | Lock::Unseen);
        self.items.iter().filter(|item| item.is_written()).all(is_locked)
    }

    /// Returns the side that changes the lock of a record.
    #[inline]
    pub(crate) fn locks(&self, item: &Item) -> Primitive {
        locks(&self.tables, item)
    }

    /// Returns the memory node of the primary of a key's shard.
    #[inline]
    pub(crate) fn primary_node(&self, item: &Item) -> NodeId {
        self.table(item.table).shard_replicas(item.home.shard)[0].node
    }

    /// Encodes the images that are to be installed. Returns the number of words of all images.
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
            shape(tables, item).encode(item.installs(), life, key, value, images);
            let end = images.len() as u32;
            item.image = Span { at, words: end - at };
            let (Change::Insert | Change::Delete, Some(place)) = (item.change, item.place) else {
                item.patches = Span::default();
                continue;
            };
            // A link is set once and never changes, so a second patch with it does no harm. It is
            // needed because the transaction for which it was set may have aborted.
            for link in place.links.of(arena).chunks_exact(2).filter(|_| item.change == Change::Insert) {
                images.extend([link[0], link[1], 0]);
            }
            let entry = if item.change == Change::Delete { unlinked(place.entry) } else { place.entry };
            images.extend([place.bucket_slot, entry, item.hash.word]);
            item.patches = Span { at: end, words: images.len() as u32 - end };
        }
        images.len()
    }

    /// Keeps the place of a written item's record in the location cache if the transaction has
    /// inserted the record, and drops it if the transaction has deleted the record.
    pub(crate) fn note_place(&self, item: &Item) {
        let table = self.table(item.table);
        match item.change {
            Change::Insert => table.learn(item.home, item.hash, item.location),
            Change::Delete => table.forget(item.home, item.hash, item.location),
            Change::No | Change::Update => {}
        }
    }

    /// Returns the changes of the index when a written item is installed, [`PATCH_WORDS`] words
    /// each.
    #[inline]
    pub(crate) fn patches(&self, item: &Item) -> &[u64] {
        debug_assert!((item.patches.words as usize).is_multiple_of(PATCH_WORDS));
        item.patches.of(&self.images)
    }

    /// Returns the words that are to be installed for a written item, from
    /// [`RecordShape::image_at`] on.
    #[inline]
    pub(crate) fn image(&self, item: &Item) -> &[u64] {
        item.image.of(&self.images)
    }

    /// Returns the smallest time that the commit of this transaction may have: it is above the
    /// times of all that it has read or replaces.
    pub(crate) fn time_bound(&self) -> u64 {
        self.items.iter().map(|item| item.time + 1).max().unwrap_or(1)
    }

    /// Returns where a transaction locks an item's record: at its primary, and if it locks
    /// `everywhere`, at every other replica, too.
    pub(crate) fn lock_addresses(&self, item: &Item, everywhere: bool) -> impl Iterator<Item = Address> + use<'_> {
        lock_addresses(&self.tables, item, everywhere)
    }

    /// Gives all images of timed tables the time of the commit.
    pub(crate) fn settle(&mut self, time: u64) {
        let Sets { tables, items, images, .. } = self;
        for item in items.iter().filter(|item| item.is_written()) {
            let shape = shape(tables, item);
            if shape.is_timed() {
                shape.settle(&mut images[item.image.at as usize..][..item.image.words as usize], time);
            }
        }
    }

    /// Returns the number of the item to which the transaction moves a record, if it does.
    pub(crate) fn moved_to(&self, at: usize) -> Option<usize> {
        self.items[at].moved_to.checked_sub(1).map(|to| to as usize)
    }

    /// Returns the items that the transaction inserts into tables of which it knows that they grow,
    /// and not that clients insert into the larger ones already.
    #[inline]
    pub(crate) fn inserts_into_smaller(&self) -> impl Iterator<Item = (usize, TableId, TableId)> {
        let smaller = move |item: &Item| {
            let larger = self.table(item.table).growth().filter(|_| item.change == Change::Insert)?;
            (larger.stage == Stage::Announced).then(|| (item.table, larger.table.id()))
        };
        let items = if self.twins > 0 { &self.items[..] } else { &[] };
        items
            .iter()
            .enumerate()
            .filter_map(move |(number, item)| smaller(item).map(|(smaller, larger)| (number, smaller, larger)))
    }

    /// Returns whether the transaction moves another item's record to this one.
    pub(crate) fn has_moved_here(&self, at: usize) -> bool {
        self.twins > 0 && self.items.iter().any(|item| item.moved_to == at as u32 + 1)
    }

    /// Says in an item's image where the image lies that it replaces.
    pub(crate) fn set_former(&mut self, at: usize, former: Former) {
        let Sets { tables, items, images, .. } = self;
        let image = items[at].image;
        shape(tables, &items[at]).set_former(&mut images[image.at as usize..][..image.words as usize], former);
    }

    pub(crate) fn scans(&self) -> impl Iterator<Item = Scan<'_>> {
        self.scans.iter().map(|(table, from, to)| Scan { table: self.table(*table), from, to })
    }

    pub(crate) fn accesses(&self) -> impl Iterator<Item = Access<'_>> {
        let is_told =
            |item: &Item| !item.structural && !item.brought && matches!(item.fetch, Fetch::Here | Fetch::Absent);
        let others = self.others();
        let told = move |(number, item): &(usize, &Item)| is_told(item) && !others.contains(number);
        self.items.iter().enumerate().filter(told).map(|(_, item)| {
            let table = self.table(item.table);
            let here = matches!(item.fetch, Fetch::Here) && item.existed;
            let installed = |item: &Item| item.change.kind().map(|kind| (kind, item.version.committed_over()));
            let written = match item.moved_to.checked_sub(1) {
                // For an observer, a record that moves to a larger table is updated: it gets
                // another version.
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

    /// Returns the numbers of the items that observers do not see. If a table grows, a key has
    /// items in several tables, and only one of them has the record.
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
