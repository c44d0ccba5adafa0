//! Growth: a table becomes larger while transactions go on. The client that makes it larger is the
//! grower.
//!
//! ```text
//! 1  announce   one change of the catalog: a larger table is there. Clients look for keys in both,
//!               and insert into the smaller one
//! 2  wait       until every client has heard of it
//! 3  fill       another change: clients insert into the larger one
//! 4  wait       until every client has heard of it
//! 5  move       transactions move the rows to the larger one, until the smaller one is empty
//! 6  finish     a last change: the smaller one is dropped, and the larger one has its name
//! ```
//!
//! A client hears of a change as it hears of a drop. It uses the new catalog when no attempt that
//! began before is under way, and then acknowledges the change (`dropping`, rules 1 to 4). So at
//! any time, two clients are at most one change apart.
//!
//! The protocols do not know of growth. To them, a key of a table that grows is two records, one in
//! each table, of which at most one is present (`Sets::want`).
//!
//! # Why no key is in both tables, and none is missed
//!
//! 1. *A client that inserts a key validates that the other table does not have it.* It names the
//!    key in both, and its commit validates what it has read in both. So of two clients that insert
//!    one key, before and after change 3, at most one commits: each makes its record before it
//!    validates.
//! 2. *A client that looks for a key looks in each table that may have it.* Before change 1 that is
//!    the smaller table. No client inserts into the larger one until every client looks there, too.
//!    After change 6 it is the larger table. No client has inserted into the smaller one since wait
//!    4.
//! 3. *A row moves in one transaction*, which deletes it here and inserts it there. A client that
//!    has read the row before fails its validation. A client that remembers where the row was finds
//!    a deleted record, and looks the key up again.
//! 4. *The smaller table stays empty once it was found empty.* After wait 4 no transaction inserts
//!    into it, not even one of a dead client: the transactions of a dead client are decided before
//!    it counts as having heard. A record that is locked counts as present. The scan of the table
//!    begins and ends in the same epoch.
//! 5. *Versions of a key grow when its row moves.* The versions of the larger table begin above all
//!    versions that the smaller one can have given (`Table::version_floor`).
//! 6. *No key returns to the smaller table.* Otherwise it would have a smaller version than before.
//!    During wait 4, a client that knows of change 3 may insert a key into the larger table and
//!    delete it again. A client that does not know could then insert it into the smaller one. So a
//!    transaction that inserts into the smaller table looks at the catalog when it has all its
//!    locks, and aborts if change 3 was made (`Tx::hear_of_growth`). If the change is made after
//!    that, a client that inserts the key into the larger table finds those locks.
//!
//! # When the grower dies
//!
//! The catalog says how far the growth has come. The next client that wants the table to grow goes
//! on from there. Several growers at once do no harm: each change is made once, and a row that has
//! moved is not moved again. If the grower dies while it changes the catalog, its recovery ends the
//! change (`end_change_of`), so that the nodes' CPUs know what clients know.
//!
//! # A larger table that is full before the smaller one is empty
//!
//! The larger table grows, too. Then a client looks for a key in three tables. Each of the two
//! growths ends by itself.

use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use remora_fabric::{ClientId, Lane, Nanos, NodeId};
use remora_index::Sizes;
use remora_node::{Grows, IndexKind, MemoryError, Metadata, TableSpec, metadata, registered};
use remora_txn::{Intent, KeyScan, Limit};

use super::freeing::Users;
use super::growths::Growing;
use super::handle::Cluster;
use super::opened::{Wanted, announce_lines};
use super::tables::rows_of_a_shard;
use crate::error::{Error, OpenError, OpenErrorKind};
use crate::observe::WAITS;
use crate::table::Handle;
use crate::worker::{Session, WorkerOptions};

/// Largest number of rows that move in one transaction. [`BYTES_MOVED`] limits the bytes of their
/// records, because a transaction logs at most 32 KiB.
const ROWS_MOVED: usize = 16;
const BYTES_MOVED: usize = 12 << 10;
/// Pause between two looks for clients that have not heard of a change, or for the lock of the
/// catalog, in nanoseconds.
const PAUSE_NS: Nanos = 200_000;
/// How often a grower looks before it logs what it waits for, and before a client without a lease
/// counts as one that will never have one. This takes at least a second.
const LOOKS_MAX: u32 = 5_000;
/// Smallest number of rows by which each shard of the larger table is larger, if a table grows by
/// itself.
const ROWS_MIN: u64 = 64;
/// Bytes of a table above which it grows by itself to twice its size, and not to four times.
const LARGE_BYTES: u64 = 64 << 20;
/// Pause before a table that could not grow tries again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two checks whether a growth has ended.
const PAUSE: Duration = Duration::from_millis(1);

impl Cluster {
    /// Makes a table larger, for at least `rows` rows, while transactions go on. Does nothing if
    /// the table has room for this number of rows.
    ///
    /// A table that [grows](crate::TableOptions::grows) does this by itself. The call blocks the
    /// thread until all rows have moved to the larger table. If the call fails, or this program
    /// ends, the table can be used as before, and the next call goes on where this one has stopped.
    ///
    /// Do not call it on a thread that runs a worker. The call waits until every client has heard
    /// of the growth. A client takes up to 0.2 s for that, and up to its lease if its program
    /// stands still.
    ///
    /// A [`DynTable`](crate::DynTable), a [`Large`](crate::Large) and an ordered table consist of
    /// several tables, and the call makes only the one with this name larger. Of a
    /// [`DynTable`](crate::DynTable) or a [`Large`](crate::Large), `name` has the keys, and
    /// `name/rest` or `name/chunks` has the parts of long values. Of an ordered table,
    /// `name/leaves` has the leaves, and `rows` is the number of leaves.
    ///
    /// Fails, and has changed nothing:
    ///
    /// - with [`OpenErrorKind::Full`](crate::OpenErrorKind::Full) if a memory node has no room for
    ///   the larger table beside the smaller one,
    /// - with [`OpenErrorKind::Configuration`](crate::OpenErrorKind::Configuration) if a client is
    ///   connected that has no lease, because such a client never acknowledges a change, or if the
    ///   cluster has no configuration,
    /// - with [`OpenErrorKind::NoTable`](crate::OpenErrorKind::NoTable) if no table has the name.
    ///   An ordered table has no part with its own name alone, and the extents of a
    ///   [`Race`](crate::Race) cannot grow.
    ///
    /// ```
    /// # use remora::{Cluster, TableOptions};
    /// # let cluster = Cluster::embedded().open()?;
    /// let options = TableOptions::for_rows(100);
    /// let numbers = cluster.create_table::<u64, u64>("numbers", options)?;
    /// cluster.grow_table("numbers", 10_000)?;
    /// # let mut worker = cluster.worker(Default::default())?;
    /// # worker.block_on(async |session| session.transact(async |tx| {
    /// numbers.insert(tx, 1, 1).await?; // the handle is good as before
    /// # Ok(())
    /// # }).await)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn grow_table(&self, name: &str, rows: u64) -> Result<(), OpenError> {
        self.lacks_nothing()?;
        if self.open_by_name(name)?.entry().spec.index == IndexKind::Race {
            // It is an extent of a RACE hash table, which has no rows that could move.
            return Err(MemoryError::UnknownTable(name.to_owned()).into());
        }
        self.with_grower(async |session| session.grow_table(name, rows).await)?;
        // If clients take longer, the next who needs the space frees it.
        let _freed = self.free_dropped()?;
        Ok(())
    }

    /// Makes a client that makes a table larger. If there is no room, frees the memory that dropped
    /// tables still have, and tries again.
    fn with_grower<E: From<OpenError>>(
        &self,
        mut grow: impl AsyncFnMut(&mut Session) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut grower = self.worker(WorkerOptions { coroutines: 1, ..WorkerOptions::default() })?;
        for session in grower.sessions() {
            session.observe(self.movers.as_ref().map(|observer| observer()));
        }
        let has_room = grower.block_on(async |session| grow(session).await);
        if has_room.is_ok() || self.read_catalog()?.kept().next().is_none() {
            return has_room;
        }
        drop(grower);
        let _freed = self.free_dropped()?;
        let mut grower = self.worker(WorkerOptions { coroutines: 1, ..WorkerOptions::default() })?;
        grower.block_on(async |session| grow(session).await)
    }

    /// Makes a table grow on its own thread, unless it grows already. This happens before the table
    /// is full or, at the latest, when an insert has found no room. Returns the state of the
    /// growth, or `None` if the table does not grow by itself.
    #[cold]
    pub(crate) fn ask_to_grow(&self, table: &Arc<remora_index::Table>) -> Option<Growing> {
        let growths = self.growths.as_ref().filter(|_| table.entry().spec.grows == Grows::ByItself)?;
        let begin = || {
            let (cluster, growths, growing) = (self.clone(), growths.clone(), table.clone());
            let grow = move || {
                let grown = cluster.with_grower(async |session| session.grow_by_itself(&growing).await);
                match grown.map_err(|halt| (halt.is_full(), halt)) {
                    Ok(()) => {
                        // If that fails, or clients take longer, the next who needs the space frees
                        // it.
                        if let Err(error) = cluster.free_dropped() {
                            tracing::debug!(table = growing.name(), %error, "what a table had before is freed later");
                        }
                    }
                    Err((is_full, error)) => {
                        tracing::warn!(table = growing.name(), %error, "a table cannot grow yet");
                        growths.fail(&growing, is_full);
                        thread::sleep(RETRY_PAUSE);
                    }
                }
                growths.end(&growing);
            };
            let begun = thread::Builder::new().name("remora-growth".to_owned()).spawn(grow);
            if let Err(error) = &begun {
                tracing::warn!(table = table.name(), %error, "there is no thread that makes a table larger");
            }
            begun.is_ok()
        };
        Some(growths.state_or_begin(table, begin))
    }

    /// Waits until the growth of a table has ended, if this process has begun one.
    pub(super) fn until_grown(&self, table: &remora_index::Table) {
        let Some(growths) = &self.growths else { return };
        while !self.is_interrupted() && growths.is_under_way(table) {
            thread::sleep(PAUSE);
        }
    }

    /// Opens the table that has this name, by the catalog as it is now.
    fn open_by_name(&self, name: &str) -> Result<Arc<remora_index::Table>, OpenError> {
        loop {
            let catalog = self.read_catalog()?;
            if let Some(table) = self.inner.opened.open(&catalog, Wanted::Name(name))? {
                return Ok(table);
            }
        }
    }
}

/// A growth that a coroutine makes. Its result is `None` if there is nothing for the coroutine to
/// do.
type Turning<'s> = Pin<Box<dyn Future<Output = Option<Result<(), Growing>>> + 's>>;

/// Why a growth has stopped.
#[derive(Debug, thiserror::Error)]
enum Halt {
    /// The catalog could not be changed, or clients have not heard of a change.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A transaction that moves rows failed.
    #[error(transparent)]
    Move(#[from] Error),
}

impl From<MemoryError> for Halt {
    fn from(error: MemoryError) -> Halt {
        Halt::Open(error.into())
    }
}

impl Halt {
    /// Returns whether the memory nodes have no room for a larger table.
    fn is_full(&self) -> bool {
        match self {
            Halt::Open(error) => error.kind() == OpenErrorKind::Full,
            Halt::Move(error) => is_nodes_full(error),
        }
    }

    /// Returns whether the growth has stopped because the epoch has ended. Then it can go on in the
    /// next epoch.
    fn is_of_epoch(&self) -> bool {
        match self {
            Halt::Open(error) => {
                matches!(error.memory(), Some(MemoryError::EpochChanging | MemoryError::Fabric(_)))
            }
            Halt::Move(error) => matches!(error, Error::Fenced | Error::Unavailable(_)),
        }
    }

    fn of_table(self, table: &str) -> OpenError {
        match self {
            Halt::Open(error) => error,
            Halt::Move(error) if is_nodes_full(&error) => MemoryError::NodesFull { table: table.to_owned() }.into(),
            Halt::Move(error) => MemoryError::NotMoved { table: table.to_owned(), why: error.to_string() }.into(),
        }
    }
}

fn is_nodes_full(error: &Error) -> bool {
    matches!(error.limit(), Some(Limit::NodesFull { .. }))
}

impl Session {
    /// Makes a table larger as [`Cluster::grow_table`] does, by transactions of this session. The
    /// process must have the table open. Fails as [`Cluster::grow_table`] does.
    #[doc(hidden)]
    pub async fn grow_table(&mut self, name: &str, rows: u64) -> Result<(), OpenError> {
        loop {
            let own = self.cluster().tables().into_iter().find(|table| table.name() == name);
            let own = own.ok_or_else(|| MemoryError::UnknownTable(name.to_owned()))?;
            let wanted = rows_of_a_shard(rows, own.shards());
            if own.growth().is_none() && own.rows_of_shard() >= wanted {
                return Ok(());
            }
            self.grow(&own, wanted).await.map_err(|halt| halt.of_table(name))?;
        }
    }

    /// Makes a table larger that is full, and that grows by itself, if the coroutines of this
    /// process do that ([`Cluster::with_growth_in_turn`]) and no other one is at it. Otherwise
    /// returns `None`. Rows move by transactions, which may find another table full in turn: so
    /// the future is boxed.
    pub(crate) fn grow_in_turn<'s>(&'s mut self, table: &'s Arc<remora_index::Table>) -> Turning<'s> {
        Box::pin(async move {
            let growths = self.cluster().growths.clone();
            let growths = growths.filter(|_| table.entry().spec.grows == Grows::ByItself)?;
            let _turn = growths.turn(table)?;
            Some(self.grow_by_itself(table).await.map_err(|halt| {
                tracing::debug!(table = table.name(), error = %halt, "a table cannot grow yet");
                Growing::Failed { nodes_full: halt.is_full() }
            }))
        })
    }

    /// Makes a table grow to several times its size, or to less if the memory nodes have no room
    /// for that.
    async fn grow_by_itself(&mut self, table: &Arc<remora_index::Table>) -> Result<(), Halt> {
        let rows = table.rows_of_shard();
        let bytes = table.entry().spec.shard_bytes.saturating_mul(table.shards().into());
        let wanted = if bytes < LARGE_BYTES { 4 } else { 2 };
        let sizes = [rows.saturating_mul(wanted), rows.saturating_mul(2), rows + rows / 2, rows + rows / 4];
        let mut grown = Ok(());
        for rows in sizes.into_iter().map(|size| size.max(rows + ROWS_MIN)) {
            grown = self.grow(table, rows).await;
            if !grown.as_ref().is_err_and(Halt::is_full) {
                break;
            }
        }
        grown
    }

    /// Makes a table grow into one with room for `rows_of_shard` rows in each shard, or finishes
    /// the growth that is under way.
    async fn grow(&mut self, table: &Arc<remora_index::Table>, rows_of_shard: u64) -> Result<(), Halt> {
        loop {
            let halted = match self.grow_in_epoch(table, rows_of_shard).await {
                Err(Halt::Open(error)) if matches!(error.memory(), Some(MemoryError::Dropped { .. })) => {
                    // Another client has finished the growth, unless the table was dropped.
                    self.cluster().follow_drops(self.lane()).await?;
                    let has_grown = self.cluster().tables().iter().any(|own| own.origin() == table.origin());
                    return if has_grown { Ok(()) } else { Err(error.into()) };
                }
                Err(halt) if halt.is_of_epoch() => halt,
                grown => return grown,
            };
            tracing::debug!(table = table.name(), error = %halted, "a growth waits for the next epoch");
            self.cluster().unless_interrupted()?;
            if !self.next_epoch(None).await {
                return Err(halted);
            }
        }
    }

    async fn grow_in_epoch(&mut self, table: &Arc<remora_index::Table>, rows_of_shard: u64) -> Result<(), Halt> {
        let (name, smaller) = (table.name(), (table.id(), table.born()));
        self.unless_some_never_hear(name).await?;
        let spec = larger_spec(&table.entry().spec, rows_of_shard);
        let begin = async |lane: &Lane, cluster: &Cluster, client: u32| {
            let (nodes, places) = (cluster.live_nodes(), cluster.places(spec.replicas));
            let first = table.shard_replicas(0).first().map_or(NodeId(0), |primary| primary.node);
            let begun = metadata::begin_growth(lane, nodes, places, client, smaller, (spec.clone(), first)).await;
            begun.map(|(_, catalog)| catalog)
        };
        let catalog = self.change_catalog(begin).await?;
        if self.cluster().capabilities().atomic_line
            && let Some((larger, _)) = catalog.larger(table.id())
            && let Some(larger) = remora_index::Table::open_by_id(&catalog, larger)
        {
            announce_lines(self.cluster().fabric(), &larger, |_| true);
        }
        tracing::info!(table = name, rows_of_shard, "a table grows");
        self.until_all_follow(name, catalog).await?;
        let fill = async |lane: &Lane, cluster: &Cluster, client: u32| {
            metadata::fill_larger(lane, cluster.live_nodes(), client, smaller, name).await
        };
        let catalog = self.change_catalog(fill).await?;
        self.until_all_follow(name, catalog).await?;
        self.move_rows(table).await?;
        if self.cluster().protocol().has_clocks() {
            self.snapshot(async |tx| tx.outdate_snapshots().await).await?;
        }
        let finish = async |lane: &Lane, cluster: &Cluster, client: u32| {
            metadata::finish_growth(lane, cluster.live_nodes(), client, smaller, name).await
        };
        let catalog = self.change_catalog(finish).await?;
        self.cluster().follow_catalog(catalog)?;
        tracing::info!(table = name, "a table has grown");
        Ok(())
    }

    /// Makes a change of the catalog as this session's client. Waits while another client changes
    /// the catalog, and frees the catalog's lock if its holder has died.
    async fn change_catalog(
        &mut self,
        change: impl AsyncFn(&Lane, &Cluster, u32) -> Result<Metadata, MemoryError>,
    ) -> Result<Metadata, Halt> {
        loop {
            self.follow();
            let (lane, cluster) = (self.lane(), self.cluster());
            let holder = match change(lane, cluster, self.incarnation()).await {
                Err(MemoryError::CatalogLocked(holder)) => holder as u32,
                changed => return Ok(changed?),
            };
            if cluster.has_died_changing(lane, holder).await? {
                cluster.fabric().revoke(ClientId(holder)).map_err(MemoryError::from)?;
                metadata::end_change_of(lane, cluster.live_nodes(), self.incarnation(), holder).await?;
            }
            cluster.unless_interrupted()?;
            lane.sleep(PAUSE_NS).await;
        }
    }

    /// Makes this process use a catalog, and waits until every client uses this catalog or a newer
    /// one.
    async fn until_all_follow(&mut self, table: &str, catalog: Metadata) -> Result<(), Halt> {
        let generation = catalog.generation;
        self.cluster().follow_catalog(catalog)?;
        if mutant!(GrowUnheard) {
            return Ok(());
        }
        for look in 0u32.. {
            self.cluster().tell_of_change(generation)?;
            let users = self.unaware_of(table, generation, look).await?;
            if users.is_empty() {
                return Ok(());
            }
            if look == LOOKS_MAX {
                let clients = &users.waited_for;
                tracing::warn!(target: WAITS, table, ?clients, "waiting for clients to hear that a table grows");
            }
            self.lane().sleep(PAUSE_NS).await;
        }
        Ok(())
    }

    /// Fails if some client has no lease, because it would never acknowledge a change.
    async fn unless_some_never_hear(&mut self, table: &str) -> Result<(), Halt> {
        for look in 0u32.. {
            let generation = self.cluster().followed();
            if self.unaware_of(table, generation, look).await?.unknown.is_empty() {
                return Ok(());
            }
            self.lane().sleep(PAUSE_NS).await;
        }
        Ok(())
    }

    /// Returns the clients that have not acknowledged a catalog of this generation. Fails at the
    /// last look if one of them has no lease. Before that, the client may still be connecting.
    async fn unaware_of(&mut self, table: &str, generation: u64, look: u32) -> Result<Users, Halt> {
        self.follow();
        let cluster = self.cluster();
        // Everything that is read from here on is at least as new as this.
        let clients = registered(self.lane(), cluster.live_nodes().leader()).await?;
        let users = cluster.unaware(&clients, generation)?;
        cluster.unless_interrupted()?;
        if !users.unknown.is_empty() && (look >= LOOKS_MAX || cluster.configuration().is_none()) {
            return Err(MemoryError::Unheard { table: table.to_owned(), clients: users.unknown }.into());
        }
        Ok(users)
    }

    /// Moves all rows of a table that grows to the larger one.
    async fn move_rows(&mut self, table: &Arc<remora_index::Table>) -> Result<(), Halt> {
        loop {
            self.cluster().unless_interrupted()?;
            let epoch = self.cluster().epoch();
            match self.move_what_is_there(table).await {
                // Other clients have filled the larger table meanwhile.
                Err(error) if matches!(error.limit(), Some(Limit::TableFull { .. })) => {
                    let now = self.cluster().now(table);
                    let larger = now.as_ref().and_then(|table| table.growth()).map(|larger| larger.table.clone());
                    if let Some(larger) = larger {
                        Box::pin(self.grow_by_itself(&larger)).await?;
                    }
                }
                Err(error) => return Err(error.into()),
                Ok(0) if self.cluster().epoch() == epoch => return Ok(()),
                Ok(_) => {}
            }
        }
    }

    /// Scans a table once, and moves the rows that it finds. Returns how many rows it has found,
    /// including the rows that it could not move.
    async fn move_what_is_there(&mut self, table: &Arc<remora_index::Table>) -> Result<u64, Error> {
        let mut scan = KeyScan::default();
        let mut rows = 0;
        let at_once = (BYTES_MOVED / table.shape().record_bytes()).clamp(1, ROWS_MOVED);
        loop {
            self.follow();
            // This is the table as it is placed in this epoch. If it is gone, another client has
            // finished the growth.
            let Some(now) = self.cluster().now(table) else { return Ok(rows) };
            let Some(found) = scan.next(self.lane(), &now, at_once).await? else { return Ok(rows) };
            rows += found.keys.len() as u64;
            if !mutant!(GrowPastLocks) {
                rows += found.unsettled;
            }
            if found.keys.is_empty() {
                continue;
            }
            let handle = Handle { inner: table, cluster: self.cluster().number() };
            let together = self.transact(async |tx| relocate(tx, handle, &found.keys).await).await;
            // If one of the rows is in use, the others move without it.
            let each = if let Err(Error::Aborted { .. }) = together { &found.keys[..] } else { &[] };
            for key in each.chunks(1) {
                match self.transact(async |tx| relocate(tx, handle, key).await).await {
                    Err(Error::Aborted { .. }) => {}
                    moved => moved?,
                }
            }
            if each.is_empty() {
                together?;
            }
        }
    }
}

/// Moves the rows of some keys in this transaction.
async fn relocate(
    tx: &mut crate::Transaction<'_, '_>,
    table: Handle<'_>,
    keys: &[remora_record::Key],
) -> Result<(), Error> {
    let mut slots = [None; ROWS_MOVED];
    for (slot, key) in slots.iter_mut().zip(keys) {
        *slot = tx.name_raw(table, key, Intent::Insert);
    }
    tx.fetch().await?;
    for slot in &slots[..keys.len().min(ROWS_MOVED)] {
        tx.relocate_raw(*slot)?;
    }
    Ok(())
}

/// Returns the specification of the larger table. It is dense if the smaller one is.
fn larger_spec(spec: &TableSpec, rows_of_shard: u64) -> TableSpec {
    let size = if spec.indirect_slots > 0 { Sizes::dense_for_rows } else { Sizes::for_rows };
    let sizes = size(spec.index, rows_of_shard, spec.layout.slot_bytes);
    TableSpec {
        buckets: sizes.buckets,
        indirect: sizes.indirect,
        slots: sizes.slots,
        indirect_slots: sizes.indirect_slots,
        shard_bytes: sizes.shard_bytes,
        ..spec.clone()
    }
}
