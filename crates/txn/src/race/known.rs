//! What a process and a session know of a RACE hash table: its extents, the leaves of its tree, and
//! the units that a session has in hand.

use std::ops::Range;
use std::sync::{Arc, RwLock};

use remora_fabric::{Address, Nanos, WORD_BYTES};
use remora_index::race::{CLASSES, Class, Directory, GROUPS_MAX, Geometry, NodeWord, ROOTS_MAX, Slot, UNIT_BYTES};
use remora_index::{Index as _, Table};
use remora_node::{Discipline, Fingerprint, Grows, IndexKind, MemoryError, Metadata, TableSpec};
use remora_record::{LockWord, layout_of_block};

/// An open RACE hash table. The sessions of a process share it.
#[derive(Debug)]
pub struct Race {
    /// The table's name. Its extents are `name/0`, `name/1` and so on.
    pub(super) name: String,
    /// The generation of the catalog that entered extent 0.
    pub(super) born: u64,
    pub(super) shape: RaceShape,
    /// Extent 0. A session that knows it has not heard that the table was dropped.
    pub(super) table: Arc<Table>,
    /// The extents that this process knows.
    pub(super) extents: RwLock<Arc<[Extent]>>,
    /// How often an operation tries before it gives up.
    pub(super) tries: u32,
}

impl Race {
    /// Opens the table with this name by the catalog, whose extent 0 is `table`. `None` if the
    /// catalog has another table of this name, or none.
    #[must_use]
    pub fn open(metadata: &Metadata, name: &str, table: Arc<Table>) -> Option<Race> {
        let (born, shape, extents) = read(metadata, name).filter(|(born, ..)| *born == table.born())?;
        let extents = RwLock::new(extents.into());
        Some(Race { name: name.to_owned(), born, shape, table, extents, tries: u32::MAX })
    }

    /// Returns the table, whose operations give up after this number of tries. Programs that are
    /// explored in all orders must end.
    #[must_use]
    pub fn with_tries(self, tries: u32) -> Race {
        Race { tries, ..self }
    }

    /// Returns the table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the extents that this process knows.
    pub(super) fn known_extents(&self) -> Arc<[Extent]> {
        self.extents.read().map_or_else(|poisoned| poisoned.into_inner().clone(), |all| all.clone())
    }
}

/// A leaf of the tree, as a session knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    /// The address of the leaf's object.
    pub(super) object: Address,
    /// The lock, which was free when the leaf was the one that the session knows.
    pub(super) lock: LockWord,
    pub(super) node: NodeWord,
    /// The address of the array. `None` if the session has not read the object yet.
    pub(super) array: Option<Address>,
}

impl Leaf {
    pub(super) fn unknown(object: Address) -> Leaf {
        Leaf { object, lock: LockWord::FREE, node: NodeWord::BARE, array: None }
    }
}

/// What a session knows of a shard of a table, and what it has in hand there.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) directory: Directory<Leaf>,
    pub(super) pool: Pool,
}

/// What a session keeps of a RACE hash table that it uses.
#[derive(Debug)]
pub(crate) struct RaceState {
    pub(super) race: Arc<Race>,
    pub(super) shape: RaceShape,
    pub(super) extents: Arc<[Extent]>,
    pub(super) parts: Vec<Part>,
    /// The lock that the session has met last, and since when it was the same.
    pub(super) met: Option<(Address, LockWord, Nanos)>,
    /// Words that are being encoded or copied.
    pub(super) words: Vec<u64>,
}

impl RaceState {
    pub(super) fn new(race: &Arc<Race>) -> RaceState {
        let extents = race.known_extents();
        let shape = race.shape;
        let part = |shard: usize| {
            let roots = (0..shape.geometry.roots).map(|root| Leaf::unknown(extents[0].root(&shape, shard, root)));
            Part { directory: Directory::new(roots.collect()), pool: Pool::default() }
        };
        let parts = (0..shape.shards).map(part).collect();
        RaceState { race: race.clone(), shape, extents, parts, met: None, words: Vec::new() }
    }

    /// Whether a table is there, by the tables that the session knows.
    pub(crate) fn is_there(&self, knows: impl Fn(&Table) -> bool) -> bool {
        knows(&self.race.table)
    }

    /// Whether this is the state of a table.
    pub(crate) fn is_of(&self, race: &Arc<Race>) -> bool {
        Arc::ptr_eq(&self.race, race) || self.race.born == race.born && self.race.name == race.name
    }
}

/// The shape of a RACE hash table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RaceShape {
    /// The sizes of extent 0.
    pub geometry: Geometry,
    /// The number of shards.
    pub shards: usize,
    /// Whether the table is a native one (`race/native.rs`), in which nothing is repaired.
    pub is_native: bool,
}

impl RaceShape {
    /// Returns the description by which the catalog enters an extent. Only extent 0 has roots.
    pub fn spec(&self, name: &str, extent: usize, units: u64) -> Result<TableSpec, MemoryError> {
        let schema = "extent of a RACE hash table".to_owned();
        let roots = if extent == 0 { self.geometry.roots } else { 0 };
        let geometry = Geometry { units, roots, ..self.geometry };
        if !(2..=GROUPS_MAX).contains(&geometry.groups) {
            return Err(MemoryError::limit("groups of a subtable", geometry.groups, GROUPS_MAX));
        }
        if roots > ROOTS_MAX || extent == 0 && !roots.is_power_of_two() {
            return Err(MemoryError::limit("roots, which are a power of two", roots, ROOTS_MAX));
        }
        Ok(TableSpec {
            name: extent_name(name, extent),
            fingerprint: Fingerprint::of(&schema, 0, 0),
            schema,
            layout: layout_of_block(WORD_BYTES, WORD_BYTES, None)?,
            index: IndexKind::Race,
            discipline: if self.is_native { Discipline::COPY_UNLOGGED } else { Discipline::COPY_ON_WRITE },
            shards: self.shards as u16,
            replicas: 1,
            buckets: geometry.groups,
            indirect: geometry.indirect(),
            slots: units,
            indirect_slots: 0,
            shard_bytes: geometry.bytes(),
            grows: Grows::WhenTold,
        })
    }
}

/// Returns the name of an extent in the catalog.
pub(super) fn extent_name(name: &str, extent: usize) -> String {
    format!("{name}/{extent}")
}

/// An extent, as a process knows it. The places of extents never change.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    /// The number of its first unit in the table's shards. It follows the last one of the extent
    /// before.
    pub(super) first: u64,
    pub(super) units: u64,
    pub(super) units_at: u64,
    /// Where each shard begins.
    pub(super) shards: Vec<Address>,
}

impl Extent {
    /// Returns the address of the object of a root.
    pub(super) fn root(&self, shape: &RaceShape, shard: usize, root: u64) -> Address {
        self.shards[shard].plus(shape.geometry.root_at(root))
    }
}

/// Returns the address of a unit of a shard, if it is in one of these extents.
#[inline]
pub(super) fn address_of(extents: &[Extent], shard: usize, unit: u32) -> Option<Address> {
    let extent = extents.iter().rev().find(|extent| extent.first <= unit.into())?;
    let within = u64::from(unit) - extent.first;
    (within < extent.units).then(|| extent.shards[shard].plus(extent.units_at + within * UNIT_BYTES))
}

/// Reads a table from the catalog: the generation that entered it, its shape and its extents.
/// `None` if there is no such table.
pub(super) fn read(metadata: &Metadata, name: &str) -> Option<(u64, RaceShape, Vec<Extent>)> {
    let mut found: Option<(u64, RaceShape, Vec<Extent>)> = None;
    let mut first = 0;
    for number in 0.. {
        let entry = metadata.table(&extent_name(name, number)).ok().map(|(_, entry)| entry);
        let Some(entry) = entry.filter(|entry| entry.spec.index == IndexKind::Race && entry.creator.is_none()) else {
            break;
        };
        let geometry = Geometry::of(&entry.spec);
        let placed = metadata.shards_of(entry).map(|shard| Some(shard.replicas.first()?.address(0)));
        let shards: Vec<Address> = placed.collect::<Option<_>>()?;
        let (_, shape, extents) = found.get_or_insert_with(|| {
            let is_native = entry.spec.discipline == Discipline::COPY_UNLOGGED;
            (entry.born, RaceShape { geometry, shards: shards.len(), is_native }, Vec::new())
        });
        if shards.len() != shape.shards {
            break;
        }
        extents.push(Extent { first, units: geometry.units, units_at: geometry.units_at(), shards });
        first += geometry.units;
    }
    found
}

/// What a session has in hand of a shard.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// Units that no connected client has seen in use. Their first words are 0.
    pub(super) fresh: Range<u64>,
    /// Units for arrays that no other client has seen: the first one, and how many they are.
    pub(super) spare: Vec<(u32, u64)>,
    /// Blocks of each class.
    pub(super) free: [Vec<Block>; CLASSES],
    /// A small block for a tombstone. With it, the session can delete when all memory is used, and
    /// so make room.
    pub(super) reserve: Option<Block>,
}

impl Pool {
    /// Gives the reserve up.
    pub(super) fn release(&mut self) {
        if let Some(block) = self.reserve.take() {
            self.put(block);
        }
    }

    /// Takes a block that the session owns now.
    pub(super) fn put(&mut self, block: Block) {
        self.free[block.slot.class().number()].push(block);
    }

    /// Makes blocks of the units that are left, which are too few for what is wanted.
    pub(super) fn cut(&mut self) {
        while self.fresh.start < self.fresh.end {
            let Some(class) = Class::largest_within(self.fresh.end - self.fresh.start) else { return };
            let slot = Slot::unused(self.fresh.start as u32, class);
            self.put(Block { slot, mark: 0 });
            self.fresh.start += class.units();
        }
    }
}

impl Race {
    /// Returns the names that the extents of a table have in the catalog.
    #[must_use]
    pub fn extents_in(metadata: &Metadata, name: &str) -> Vec<String> {
        let found = read(metadata, name).map_or(0, |(_, _, extents)| extents.len());
        (0..found).map(|number| extent_name(name, number)).collect()
    }
}

/// A block that a session has in hand: the slot of its last use, and its mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) slot: Slot,
    pub(super) mark: u64,
}
