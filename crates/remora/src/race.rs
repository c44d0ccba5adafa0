//! RACE hash tables: keys and values of any length, in a table that grows as it needs.

use std::fmt;
use std::sync::Arc;

use remora_fabric::{Lane, NodeId, setters};
use remora_index::race::{Class, GROUP_SLOTS, GROUPS_MAX, Geometry, ROOTS_MAX};
use remora_node::{Discipline, MemoryError};
use remora_txn::{Put, RaceInspection, RaceShape, inspect_race};

use crate::cluster::{Cluster, Freed};
use crate::error::{Error, OpenError};
use crate::protocol::Protocol;
use crate::table::{Handle, RawTable};
use crate::worker::Session;

/// The number of groups of a subtable. A split holds up the writers of a subtable for as long as it
/// reads the hashes of the subtable's keys.
const GROUPS: u64 = 64;
/// The share of a subtable's slots that are used when a table has the number of rows for which it
/// was created.
const OCCUPANCY: f64 = 0.6;
/// The smallest first extent, in units.
const UNITS_MIN: u64 = 16 << 10;

/// How to create a [`Race`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RaceOptions {
    /// Number of keys for which the table has room at first.
    pub rows: u64,
    /// Bytes of a key and its value together, on average. They only matter for the size of the
    /// first part of the table.
    pub bytes: usize,
    /// Number of parts (shards) over which the table is spread. If `None`, one for each memory node
    /// that is not a spare.
    pub shards: Option<u16>,
    /// The memory node that has the first part, counted from 0.
    pub first_node: u16,
    /// Number of copies of each record. A RACE hash table keeps one, and refuses more.
    pub replicas: Option<u8>,
    /// Whether an operation that meets a split of its subtable always learns how it has ended. If
    /// not, it may end with [`Error::Unknown`], and operations that change something take fewer
    /// compare-and-swaps.
    pub marks: bool,
    /// Number of groups of a subtable, from 2 to 128. Tests choose few of them, so that subtables
    /// are soon full.
    #[doc(hidden)]
    pub groups: u64,
}

setters!(RaceOptions { rows: u64, bytes: usize, shards: u16, first_node: u16, replicas: u8, marks: bool, groups: u64 });

impl Default for RaceOptions {
    /// Returns the options for a table of one part for each memory node, which begins small.
    fn default() -> RaceOptions {
        RaceOptions { rows: 1000, bytes: 72, shards: None, first_node: 0, replicas: None, marks: true, groups: GROUPS }
    }
}

impl RaceOptions {
    /// Returns the shape of a table that is spread over this number of shards, and the units of a
    /// shard's first extent.
    fn shape(&self, shards: u16, is_native: bool) -> (RaceShape, u64) {
        let rows = self.rows.div_ceil(shards.max(1).into());
        let groups = self.groups.clamp(2, GROUPS_MAX);
        let of_subtable = (groups * GROUP_SLOTS as u64) as f64 * OCCUPANCY;
        let roots = ((rows as f64 / of_subtable).ceil() as u64).clamp(1, ROOTS_MAX).next_power_of_two();
        let geometry = Geometry { groups, roots, marks: self.marks && !is_native, units: 0 };
        let block = Class::for_content(0, self.bytes).map_or(1, Class::units);
        let units = rows.saturating_mul(block).saturating_add(roots * geometry.array_units());
        let units = units.saturating_add(units / 4).max(UNITS_MIN);
        (RaceShape { geometry: Geometry { units, ..geometry }, shards: shards.into(), is_native }, units)
    }
}

/// An open RACE hash table: keys and values are bytes of any length, and the table grows as it
/// needs. Clones are cheap.
///
/// An operation works on one key, and takes effect at one moment between its call and its answer
/// (it is linearizable). It is no part of a transaction: it neither waits for transactions nor
/// commits with them. The table is lock-free but for splits. When a part of the table is full, a
/// client splits it, and the other clients that use that part wait meanwhile, for less than a
/// millisecond. If the client dies in between, the next client that meets the split undoes it.
///
/// What a client has in hand that dies is lost until [`Cluster::reclaim`] finds it, while no other
/// client is connected. Parts that were split are lost until then, or until
/// [`Cluster::reclaim_arrays`] finds them.
///
/// A table has one copy of each record: a memory node that is lost takes its records with it. The
/// cluster's protocol must be [`Protocol::RTX`](crate::protocol::Protocol::RTX). The memory may be
/// passive.
///
/// ```
/// use remora::protocol::Protocol;
/// use remora::{Cluster, RaceOptions};
///
/// let cluster = Cluster::embedded().protocol(Protocol::RTX).open()?;
/// let words = cluster.create_race("words", RaceOptions::default())?;
/// let mut worker = cluster.worker(Default::default())?;
/// worker.block_on(async |session| {
///     assert!(words.insert(session, b"lake", b"a body of water").await?);
///     assert!(!words.insert(session, b"lake", b"a color").await?, "the key is there");
///     words.upsert(session, b"lake", b"a large body of water, surrounded by land").await?;
///     let found = words.get(session, b"lake").await?;
///     assert_eq!(found.as_deref(), Some(&b"a large body of water, surrounded by land"[..]));
///     assert!(words.delete(session, b"lake").await?);
///     assert!(!words.update(session, b"lake", b"gone").await?, "the key is absent");
///     Ok::<_, remora::Error>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Race {
    race: Arc<remora_txn::Race>,
    table: RawTable,
}

impl Cluster {
    /// Creates an empty RACE hash table, and returns its handle. In the catalog it is the tables
    /// `name/0`, `name/1` and so on, its extents. Each extent is as large as all before it
    /// together.
    ///
    /// Fails with [`OpenErrorKind::TableExists`](crate::OpenErrorKind::TableExists) if there is
    /// such a table, with [`OpenErrorKind::OtherProtocol`](crate::OpenErrorKind::OtherProtocol) if
    /// the cluster's protocol is not `rtx`, and with
    /// [`OpenErrorKind::Argument`](crate::OpenErrorKind::Argument) if more than one copy is asked
    /// for, or a size is not allowed.
    ///
    /// If the cluster's protocol is the study [`Protocol::NATIVE`], the table is a native one. **It
    /// is not safe if a client dies**: such a client leaves locks for ever, and half of a split.
    pub fn create_race(&self, name: &str, options: RaceOptions) -> Result<Race, OpenError> {
        let copies = usize::from(options.replicas.unwrap_or(1));
        let created = if copies > Discipline::COPY_ON_WRITE.copies_max() {
            Err(MemoryError::OneCopy { protocol: "rtx", copies }.into())
        } else if options.rows == 0 || options.replicas == Some(0) {
            Err(MemoryError::empty("the number of rows or copies of a table").into())
        } else {
            let shards = options.shards.unwrap_or_else(|| self.shards_by_default());
            let (shape, units) = options.shape(shards, self.protocol() == Protocol::NATIVE);
            let spec = shape.spec(name, 0, units).map_err(OpenError::from);
            spec.and_then(|spec| self.create_extent(spec, NodeId(options.first_node)))
        };
        created.map_err(|error| error.of_table(name))?;
        self.open_race(name)
    }

    /// Opens a RACE hash table that exists, and returns its handle. Fails with
    /// [`OpenErrorKind::NoTable`](crate::OpenErrorKind::NoTable) or
    /// [`OpenErrorKind::Dropped`](crate::OpenErrorKind::Dropped) if there is none of this name.
    pub fn open_race(&self, name: &str) -> Result<Race, OpenError> {
        let (table, catalog) = self.open_extent(&format!("{name}/0"))?;
        let race = remora_txn::Race::open(&catalog, name, table.clone());
        let race = race.ok_or_else(|| MemoryError::UnknownTable(name.to_owned()))?;
        Ok(Race { race: Arc::new(race), table: RawTable::new(table, self.number()) })
    }

    /// Opens a RACE hash table, or creates an empty one if there is none of this name.
    pub fn open_or_create_race(&self, name: &str, options: RaceOptions) -> Result<Race, OpenError> {
        self.open_or_create(|| self.open_race(name), || self.create_race(name, options))
    }

    /// Reads a whole RACE hash table, while no client changes it. Gives each key and its value to
    /// `visit`, and returns what it has found: locks, slots, and where the units of the table's
    /// memory are. What living clients have in hand counts as lost. Fails if a memory node is
    /// unreachable.
    pub fn inspect_race(
        &self,
        race: &Race,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<RaceInspection, crate::Error> {
        // The catalog has all extents.
        let race = self.open_race(race.name())?.race;
        Ok(self.administer(async |lane: &Lane| inspect_race(lane, &race, &mut visit).await)?)
    }

    /// Drops a RACE hash table with all its extents, in one change of the catalog. Otherwise like
    /// [`drop_table`](Cluster::drop_table).
    pub fn drop_race(&self, name: &str) -> Result<Freed, OpenError> {
        let extents = remora_txn::Race::extents_in(&self.read_catalog()?, name);
        if extents.is_empty() {
            return Err(MemoryError::UnknownTable(name.to_owned()).into());
        }
        self.drop_together(&extents)
    }
}

impl Race {
    /// Returns the table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.race.name()
    }

    /// Makes sure that the session may use the table.
    #[cold]
    fn admit(&self, session: &mut Session) -> Result<(), Error> {
        let handle: Handle<'_> = self.table.handle();
        session.cluster().own(handle)?;
        session.cluster().accept(handle.inner)?;
        Ok(())
    }

    /// Returns the value of a key, or `None` if the key is absent.
    pub async fn get(&self, session: &mut Session, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get_with(session, key, |value| value.to_vec()).await
    }

    /// Shows the value of a key to a closure, and returns what the closure returns, or `None` if
    /// the key is absent. It copies nothing.
    pub async fn get_with<T>(
        &self,
        session: &mut Session,
        key: &[u8],
        show: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Error> {
        let _in_use = session.begin_operation().await?;
        if !session.inner().knows_race(&self.race) {
            self.admit(session)?;
        }
        let (mut show, mut shown) = (Some(show), None);
        let mut visit = |value: &[u8]| shown = show.take().map(|show| show(value));
        session.inner().race_get(&self.race, key, &mut visit).await?;
        Ok(shown)
    }

    async fn put(&self, session: &mut Session, key: &[u8], value: &[u8], how: Put) -> Result<bool, Error> {
        let _in_use = session.begin_operation().await?;
        if !session.inner().knows_race(&self.race) {
            self.admit(session)?;
        }
        Ok(session.inner().race_put(&self.race, key, value, how).await?)
    }

    /// Inserts a key with a value. Returns false, and changes nothing, if the key is there.
    ///
    /// Fails with [`Limit::NodesFull`](crate::Limit::NodesFull) if the memory nodes have no room
    /// for a larger table, and with [`Limit::Value`](crate::Limit::Value) if key and value have
    /// more than about 16 KiB together.
    pub async fn insert(&self, session: &mut Session, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        Ok(!self.put(session, key, value, Put::Insert).await?)
    }

    /// Replaces the value of a key. Returns false, and changes nothing, if the key is absent. Fails
    /// as [`Race::insert`] does.
    pub async fn update(&self, session: &mut Session, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.put(session, key, value, Put::Update).await
    }

    /// Inserts a key with a value, or replaces the key's value. Returns whether the key was there.
    /// Fails as [`Race::insert`] does.
    pub async fn upsert(&self, session: &mut Session, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.put(session, key, value, Put::Upsert).await
    }

    /// Deletes a key. Returns whether the key was there.
    pub async fn delete(&self, session: &mut Session, key: &[u8]) -> Result<bool, Error> {
        let _in_use = session.begin_operation().await?;
        if !session.inner().knows_race(&self.race) {
            self.admit(session)?;
        }
        Ok(session.inner().race_delete(&self.race, key).await?)
    }

    /// Splits the subtable that has a key, as an insert does that finds it full. Returns false if
    /// another client has been faster. For tests.
    #[doc(hidden)]
    pub async fn split(&self, session: &mut Session, key: &[u8]) -> Result<bool, Error> {
        let _in_use = session.begin_operation().await?;
        if !session.inner().knows_race(&self.race) {
            self.admit(session)?;
        }
        Ok(session.inner().race_split(&self.race, key).await?)
    }
}

impl fmt::Debug for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Race").field("name", &self.name()).finish_non_exhaustive()
    }
}
