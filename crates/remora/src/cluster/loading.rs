//! Loading rows into empty tables, without transactions.

use std::sync::Arc;

use remora_fabric::{ClientId, Lane};
use remora_index::{IndexError, Loader, MakePart, Parts, TakeRow};
use remora_node::{Grows, MemoryError, metadata};

use super::handle::Cluster;
use crate::error::{OpenError, OpenErrorKind};
use crate::key::Key;
use crate::mutex::lock;
use crate::record::Record;
use crate::table::{Handle, Table};

/// Whether a client loads rows into a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Load {
    /// No client does.
    None,
    /// This client does.
    UnderWay(u32),
    /// This client has begun to, and will not finish: it has died, or its load has failed.
    Abandoned(u32),
}

impl Cluster {
    /// Loads rows into an empty table, and returns their number. This is much faster than
    /// transactions, but it is no transaction: no other client may use the table meanwhile. If the
    /// load fails, or this client dies, the next load finds the table as if it were empty.
    ///
    /// If the iterator says ([`size_hint`](Iterator::size_hint)) that there are more rows than fit,
    /// a table that [grows](crate::TableOptions::grows) does so first. If the iterator gives more
    /// rows than it says, and more than fit, the load fails with
    /// [`OpenErrorKind::Full`](crate::OpenErrorKind::Full), and no row is loaded. The load fails
    /// with [`OpenErrorKind::Rows`](crate::OpenErrorKind::Rows) if a key occurs twice or the table
    /// is not empty, and with [`OpenErrorKind::Loading`](crate::OpenErrorKind::Loading) while a
    /// client is loading rows into it.
    pub fn load<K: Key, V: Record>(
        &self,
        table: &Table<K, V>,
        rows: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64, OpenError> {
        let mut rows = rows.into_iter();
        let mut bytes = vec![0; V::BYTES];
        self.make_room_to_load(table.handle(), rows.size_hint().0 as u64)?;
        self.load_rows(table.handle(), &mut |take| {
            rows.try_for_each(|(key, value)| {
                value.encode(&mut bytes);
                take(&Table::<K, V>::key(&key), &bytes)
            })
        })
    }

    /// Loads rows without their types.
    pub(crate) fn load_rows(
        &self,
        table: Handle<'_>,
        rows: &mut dyn FnMut(TakeRow<'_>) -> Result<(), IndexError>,
    ) -> Result<u64, OpenError> {
        let table = self.own_now(table)?;
        let (_loading, _presence) = (self.begin_loading(&table)?, self.stay_connected(self.admin())?);
        self.name_as_loader(&table)?;
        self.administer(async |lane: &Lane| {
            let goes_on = || self.unless_interrupted();
            Ok(remora_index::bulk_load(lane, &table, self.loader(&goes_on), rows).await?)
        })
    }

    /// Loads rows in parts, which `part` makes, into an empty table, as [`load`](Cluster::load)
    /// does. The parts are made and laid out on several threads, one for each core of the machine.
    /// The load calls `loaded` now and then with the number of rows that it has loaded since the
    /// last call. Returns the number of rows.
    ///
    /// If there are more rows than fit, a table that [grows](crate::TableOptions::grows) becomes
    /// larger, and `part` is called once more for all parts.
    pub fn load_parts<K: Key, V: Record + Send + Sync>(
        &self,
        table: &Table<K, V>,
        parts: u64,
        part: impl Fn(u64) -> Vec<(K, V)> + Sync,
        mut loaded: impl FnMut(u64),
    ) -> Result<u64, OpenError> {
        let make = |number, take: TakeRow<'_>| {
            let mut bytes = vec![0; V::BYTES];
            part(number).iter().try_for_each(|(key, value)| {
                value.encode(&mut bytes);
                take(&Table::<K, V>::key(key), &bytes)
            })
        };
        loop {
            let full = match self.load_made(table.handle(), parts, &make, &mut loaded) {
                Err(error) if error.kind() == OpenErrorKind::Full => error,
                loaded => return loaded,
            };
            let own = self.own(table.handle())?;
            // No row was loaded.
            if !self.make_room_to_load(table.handle(), 2 * own.room())? {
                return Err(full);
            }
        }
    }

    /// Makes an empty table grow if it does not have room for `rows` rows, and if it grows at all.
    /// Returns whether it has grown.
    fn make_room_to_load(&self, table: Handle<'_>, rows: u64) -> Result<bool, OpenError> {
        let own = self.own_now(table)?;
        let entry = own.entry();
        let may_grow = entry.spec.grows == Grows::ByItself && entry.creator.is_none() && self.growths.is_some();
        let grows = may_grow && rows > own.room();
        if grows {
            self.grow_table(own.name(), rows)?;
        }
        Ok(grows)
    }

    /// Returns the table as it is placed in the last epoch, which this process enters first.
    fn own_now(&self, table: Handle<'_>) -> Result<Arc<remora_index::Table>, OpenError> {
        self.administrator().map_err(MemoryError::from)?;
        self.own(table)
    }

    /// Loads rows without their types, in parts.
    fn load_made(
        &self,
        table: Handle<'_>,
        parts: u64,
        make: MakePart<'_>,
        loaded: &mut dyn FnMut(u64),
    ) -> Result<u64, OpenError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let parts = Parts { count: parts, make, threads };
        let table = self.own_now(table)?;
        let (_loading, _presence) = (self.begin_loading(&table)?, self.stay_connected(self.admin())?);
        self.name_as_loader(&table)?;
        self.administer(async |lane: &Lane| {
            let goes_on = || self.unless_interrupted();
            Ok(remora_index::bulk_load_parts(lane, &table, self.loader(&goes_on), parts, loaded).await?)
        })
    }

    /// Names this client in an empty table as the one that loads rows. Empties the table first if
    /// it has rows of a load that was not finished, because its client has died, or because a load
    /// of this client has failed.
    fn name_as_loader(&self, table: &remora_index::Table) -> Result<(), OpenError> {
        let name = || {
            let mut is_half_loaded = false;
            self.administer(async |lane: &Lane| {
                let (nodes, admin) = (self.live_nodes(), self.admin());
                let name = async || match self.find_load(lane, table).await? {
                    // This client's own loads are under way one at a time. So if the table names
                    // this client, an earlier load has failed.
                    Load::UnderWay(client) if client != admin => {
                        Err(OpenError::from(IndexError::Loading { table: table.name().to_owned(), client }))
                    }
                    Load::UnderWay(client) | Load::Abandoned(client) => {
                        is_half_loaded = true;
                        tracing::warn!(client, table = table.name(), "a client was loading rows into a table");
                        Ok(remora_index::take_over(lane, table, admin).await?)
                    }
                    Load::None => Ok(remora_index::begin(lane, table, admin).await?),
                };
                metadata::while_there(lane, nodes, admin, (table.id(), table.born(), table.name()), name).await
            })?;
            Ok(is_half_loaded)
        };
        if self.with_lock_freed(name)? {
            let admin = self.admin();
            let clear = async |lane: &Lane| Ok::<_, OpenError>(remora_index::clear(lane, table, admin).await?);
            self.administer(clear)?;
        }
        Ok(())
    }

    /// Makes the loader of this client.
    fn loader<'l>(&self, goes_on: &'l dyn Fn() -> Result<(), MemoryError>) -> Loader<'l> {
        Loader { client: self.admin(), goes_on }
    }

    /// Fails while a client loads rows into a table. A dead client loads nothing any more.
    pub(super) async fn unless_loading(&self, lane: &Lane, table: &remora_index::Table) -> Result<(), OpenError> {
        match self.find_load(lane, table).await? {
            Load::UnderWay(client) => Err(IndexError::Loading { table: table.name().to_owned(), client }.into()),
            Load::None | Load::Abandoned(_) => Ok(()),
        }
    }

    /// Finds whether a client loads rows into a table. Revokes a client that has died while it did,
    /// which then cannot write to the table any more.
    pub(super) async fn find_load(&self, lane: &Lane, table: &remora_index::Table) -> Result<Load, OpenError> {
        let mut named = remora_index::loader(lane, table).await?;
        loop {
            let Some(client) = named else { return Ok(Load::None) };
            if client == self.admin() {
                let is_loading = lock(&self.inner.loading).contains(&table.born());
                return Ok(if is_loading { Load::UnderWay(client) } else { Load::Abandoned(client) });
            }
            if !self.is_dead(client) {
                return Ok(Load::UnderWay(client));
            }
            // A client that has finished meanwhile is not connected any more, and is not dead.
            named = remora_index::loader(lane, table).await?;
            if named == Some(client) {
                self.fabric().revoke(ClientId(client)).map_err(MemoryError::from)?;
                return Ok(Load::Abandoned(client));
            }
        }
    }

    /// Notes that this process begins to load rows into a table. Fails if it is loading rows into
    /// the table already.
    fn begin_loading(&self, table: &remora_index::Table) -> Result<Loading<'_>, OpenError> {
        if !lock(&self.inner.loading).insert(table.born()) {
            return Err(IndexError::Loading { table: table.name().to_owned(), client: self.admin() }.into());
        }
        Ok(Loading { cluster: self, born: table.born() })
    }
}

/// A guard: this process loads rows into a table until the guard is dropped.
#[derive(Debug)]
struct Loading<'c> {
    cluster: &'c Cluster,
    born: u64,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        lock(&self.cluster.inner.loading).remove(&self.born);
    }
}
