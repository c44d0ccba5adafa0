//! The handle that a transaction's closure works on ([`Transaction`]), its slots ([`Slot`]), and
//! transactions without a closure ([`Begun`]).

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::pin::pin;

use remora_fabric::Lane;
use remora_index::btree::Shape;
use remora_node::TableId;
use remora_record::TransactionId;
use remora_txn::{EditKind, Intent, Limit, Located, Part, PastTime, Question, Start, Stop, Taken, Tx};

use crate::cluster::Cluster;
use crate::error::{Error, Misuse, Named, Reason};
use crate::key::Key;
use crate::record::{Plain, Record};
use crate::table::{ClusterNumber, Handle, RawTable, Table};
use crate::usage::InUse;

/// A record of a transaction, which was named by its key. Slots are the way to records that costs
/// the processor least.
///
/// [`Transaction::want`] names a record and returns its slot, [`Transaction::fetch`] brings all
/// records that were named, and a slot's methods read and change its record. A slot is valid in the
/// run of the closure that made it. Every other run and every other transaction refuses it
/// ([`Misuse::OtherRun`]).
///
/// ```
/// # use remora::{Cluster, TableOptions};
/// # let cluster = Cluster::embedded().open()?;
/// # let accounts = cluster.create_table::<u64, i64>("accounts", TableOptions::for_rows(10))?;
/// # cluster.load(&accounts, [(1, 100), (2, 0)])?;
/// # let mut worker = cluster.worker(Default::default())?;
/// # worker.block_on(async |session| session.transact(async |tx| {
/// let (from, to) = (tx.want(&accounts, 1), tx.want(&accounts, 2));
/// tx.fetch().await?; // one round trip for both
/// *from.get_mut(tx)? -= 10;
/// *to.get_mut(tx)? += 10;
/// # Ok(())
/// # }).await)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Slot<V> {
    slot: Option<remora_txn::Slot>,
    types: PhantomData<fn() -> V>,
}

impl<V> Clone for Slot<V> {
    fn clone(&self) -> Slot<V> {
        *self
    }
}

impl<V> Copy for Slot<V> {}

impl<V> Slot<V> {
    /// Returns the slot without its type, or `None` if the record could not be named.
    pub(crate) fn untyped(self) -> RawSlot {
        self.slot
    }
}

impl<V> std::fmt::Debug for Slot<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.slot.fmt(f)
    }
}

/// A transaction while it runs, as its closure sees it. Tables read and change records through it.
/// The [crate's documentation](crate) says what a closure must know.
#[derive(Debug)]
pub struct Transaction<'t, 's> {
    tx: &'t mut Tx<'s>,
    /// The first error of [`Transaction::want`]. The next [`Transaction::fetch`] returns it, or
    /// else the commit.
    refused: &'t mut Option<Error>,
    /// The number of the session's cluster.
    cluster: &'t Cluster,
    number: ClusterNumber,
}

impl<'t, 's> Transaction<'t, 's> {
    pub(crate) fn new(tx: &'t mut Tx<'s>, refused: &'t mut Option<Error>, cluster: &'t Cluster) -> Transaction<'t, 's> {
        Transaction { tx, refused, cluster, number: cluster.number() }
    }

    /// Makes a table known to the session, if the session does not know it yet. Returns the id that
    /// the table has in the session.
    #[inline]
    fn register(&mut self, table: Handle<'_>) -> Result<TableId, Error> {
        match self.tx.known(table.inner) {
            Some(id) if table.cluster == self.number => Ok(id),
            _ => self.introduce(table),
        }
    }

    #[cold]
    fn introduce(&mut self, table: Handle<'_>) -> Result<TableId, Error> {
        let own = self.cluster.own(table)?;
        for one in own.and_larger() {
            self.cluster.accept(one)?;
        }
        self.tx.register(&own);
        Ok(own.id())
    }

    /// Makes the error of a stop that is about a record.
    #[cold]
    fn stopped(&self, stop: Stop, slot: remora_txn::Slot) -> Error {
        Error::of(stop, Named::of(self.tx.name(slot)))
    }

    /// Returns the id of this attempt, which no other attempt of any client of the cluster has. An
    /// attempt whose id is known commits by itself, and not together with others at a hot record.
    /// In protocol `remora`, it locks all that it only reads. To learn who runs the transaction,
    /// ask for the [client](Transaction::client).
    #[must_use]
    pub fn id(&self) -> TransactionId {
        self.tx.id()
    }

    /// Returns a number that no other attempt of any client of the cluster has. Unlike an attempt
    /// whose [id](Transaction::id) is known, this one may commit together with others at a hot
    /// record. So its outcome cannot be asked for by the number, unless it fails with
    /// [`Error::Unknown`](crate::Error::Unknown), which says by what to ask.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.tx.stamp()
    }

    /// Returns the bytes that the changes of the transaction can take in the log
    /// ([`Session::log_entry_max`](crate::Session::log_entry_max)).
    #[must_use]
    pub fn log_entry_max(&self) -> usize {
        self.tx.log_entry_max()
    }

    /// Returns the incarnation of the client that runs the transaction, which no other client of
    /// the cluster has.
    #[must_use]
    pub fn client(&self) -> u32 {
        self.tx.client()
    }

    /// Returns the transaction's lane, which has the time, random numbers and pauses. While a
    /// transaction pauses, other transactions wait for the records that it has locked.
    #[must_use]
    pub fn lane(&self) -> &'s Lane {
        self.tx.lane()
    }

    /// Returns how many records the transaction has named so far.
    pub(crate) fn named(&self) -> usize {
        self.tx.named()
    }

    /// Names a record, to be read or changed. The next [`Transaction::fetch`] brings it, together
    /// with all others that were named. That takes one round trip if their locations are cached. To
    /// name a record again returns an equal slot. An error of this call comes with the next
    /// [`Transaction::fetch`], or else with the commit.
    #[inline]
    pub fn want<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: K) -> Slot<V> {
        self.want_for(table, key, Intent::Read)
    }

    /// Names a record, as [`Transaction::want`] does, and says whether it is to be read, changed,
    /// inserted or deleted.
    ///
    /// Protocols that lock early lock a record when they fetch it, if it is named to be changed.
    /// That saves a round trip. For an insert, the key's memory node finds a place that no other
    /// transaction sees before the commit. With protocols that do not use the CPUs of memory nodes,
    /// the client finds the place.
    pub fn want_for<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: K, intent: Intent) -> Slot<V> {
        self.name(table, &key, intent)
    }

    pub(crate) fn name<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: &K, intent: Intent) -> Slot<V> {
        let key = Table::<K, V>::key(key);
        Slot { slot: self.name_raw(table.handle(), &key, intent), types: PhantomData }
    }

    /// Names a record of a table without types.
    #[inline]
    pub(crate) fn name_raw(&mut self, table: Handle<'_>, key: &remora_record::Key, intent: Intent) -> RawSlot {
        self.name_part(table, key, (intent, Part::Whole))
    }

    /// Prefetches into the processor's cache what [`Transaction::name_raw`] looks at.
    pub(crate) fn prefetch_raw(&mut self, table: Handle<'_>, key: &remora_record::Key) {
        if let Ok(id) = self.register(table) {
            self.tx.prefetch(id, key);
        }
    }

    /// Names a record, as [`Transaction::name_raw`] does, and says how much of it is needed.
    pub(crate) fn name_part(
        &mut self,
        table: Handle<'_>,
        key: &remora_record::Key,
        purpose: (Intent, Part),
    ) -> RawSlot {
        let named = self.register(table).and_then(|id| {
            let named = self.tx.want_part(id, key, purpose);
            named.map_err(|stop| Error::of(stop, Named::new(table.inner.name(), key.bytes())))
        });
        match named {
            Ok(slot) => Some(slot),
            Err(error) => {
                self.refused.get_or_insert(error);
                None
            }
        }
    }

    /// The bytes of a record that has been fetched.
    #[inline]
    pub(crate) fn raw(&self, slot: RawSlot) -> Result<Option<&[u8]>, Error> {
        let slot = named(slot)?;
        self.tx.value(slot).map_err(|stop| self.stopped(stop, slot))
    }

    /// Brings a cell of a record whose head has been fetched and is present. Returns `None` if
    /// there is no such cell.
    pub(crate) async fn fetch_cell(&mut self, slot: RawSlot, cell: usize) -> Result<Option<&[u8]>, Error> {
        let slot = named(slot)?;
        match self.tx.fetch_cell(slot, cell).await {
            Ok(found) => Ok(found.map(|cell| self.tx.cell(cell))),
            Err(stop) => Err(self.stopped(stop, slot)),
        }
    }

    /// Returns the bytes of a record that has been fetched and is present, to be changed.
    pub(crate) fn raw_mut(&mut self, slot: RawSlot) -> Result<&mut [u8], Error> {
        Ok(self.tx.value_mut(named(slot)?)?.unwrap_or_default())
    }

    /// Replaces the bytes of a record that has been fetched, or inserts the record if it is absent.
    pub(crate) fn put_raw(&mut self, slot: RawSlot, bytes: &[u8], is_there: bool) -> Result<(), Error> {
        let slot = named(slot)?;
        let put = if is_there { self.tx.write(slot, bytes) } else { self.tx.insert(slot, bytes) };
        put.map_err(|stop| self.stopped(stop, slot))
    }

    /// Moves a record that has been fetched to the larger table that its own table grows into.
    /// Returns false if there is nothing to move.
    pub(crate) fn relocate_raw(&mut self, slot: RawSlot) -> Result<bool, Error> {
        let slot = named(slot)?;
        self.tx.relocate(slot).map_err(|stop| self.stopped(stop, slot))
    }

    /// Deletes a record that has been fetched and is present.
    pub(crate) fn delete_raw(&mut self, slot: RawSlot) -> Result<(), Error> {
        let slot = named(slot)?;
        self.tx.delete(slot).map_err(|stop| self.stopped(stop, slot))
    }

    /// Asks the memory node that has the inner nodes of an ordered table, if there is one, for the
    /// leaf of a key.
    pub(crate) async fn locate_in_tree(
        &mut self,
        inner: &RawTable,
        leaves: &RawTable,
        question: Question<'_>,
    ) -> Result<Option<Located>, Error> {
        let (inner, leaves) = (self.register(inner.handle())?, self.register(leaves.handle())?);
        Ok(self.tx.locate_in_tree(inner, leaves, question).await?)
    }

    /// Asks the CPU of a memory node to lock the leaf of a key for a change of one entry.
    pub(crate) async fn take_leaf(
        &mut self,
        (inner, leaves): (&RawTable, &RawTable),
        known: (Option<Start>, Option<u64>),
        change: (Shape, EditKind),
        row: (&[u8], &[u8]),
    ) -> Result<Option<Taken>, Error> {
        let tables = (self.register(inner.handle())?, self.register(leaves.handle())?);
        Ok(self.tx.take_leaf(tables, known, change, row).await?)
    }

    /// Notes, for observers, that the transaction has looked for all keys of a table from `first`
    /// to `last`, both included, and for no keys after them.
    pub(crate) fn note_scan(&mut self, table: Handle<'_>, first: &[u8], last: &[u8]) -> Result<(), Error> {
        // The scan may have found no record, so the table may not be known to the session yet.
        let id = self.register(table)?;
        self.tx.note_scan(id, first, [last, &[0]].concat());
        Ok(())
    }

    /// Brings every record that was named and has not been fetched yet, in one round trip if their
    /// locations are cached. Fails with the first error of [`Transaction::want`], if there is one.
    /// The future may be dropped at any time: the next fetch, or the commit, then brings what is
    /// missing.
    #[inline]
    pub async fn fetch(&mut self) -> Result<(), Error> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        let fetched = pin!(self.tx.fetch()).await;
        match fetched {
            Ok(()) => Ok(()),
            // The record that was in the way is looked up only once, when the transaction is given
            // up, and not for each attempt.
            Err(stop @ Stop::Abort(_)) => Err(stop.into()),
            Err(stop) => Err(Error::of(stop, Named::of(self.tx.culprit(stop)))),
        }
    }

    /// Raises all clocks, because a table has grown.
    pub(crate) async fn outdate_snapshots(&mut self) -> Result<(), Error> {
        Ok(pin!(self.tx.outdate_snapshots()).await?)
    }

    /// Returns whether the transaction reads records as they were at a past time.
    pub(crate) fn reads_past(&self) -> bool {
        self.tx.reads_past()
    }

    /// Returns a time at which all records can be read from now on.
    pub(crate) async fn open_snapshot(&mut self) -> Result<PastTime, Error> {
        Ok(pin!(self.tx.open_snapshot()).await?)
    }
}

impl<V: Record> Slot<V> {
    /// Returns a copy of the record, which has been fetched, or `None` if its key is absent. The
    /// transaction sees its own writes.
    ///
    /// Fails with [`Misuse::NotFetched`] before [`Transaction::fetch`].
    #[inline]
    pub fn value(self, tx: &Transaction<'_, '_>) -> Result<Option<V>, Error> {
        Ok(tx.bytes(self)?.map(V::decode))
    }

    /// Returns the record, which has been fetched, to be changed in place. The commit then writes
    /// it. Fails with [`Error::NotFound`] if its key is absent.
    #[inline]
    pub fn value_mut<'t>(self, tx: &'t mut Transaction<'_, '_>) -> Result<ValueMut<'t, V>, Error> {
        Ok(ValueMut::new(tx.bytes_mut(self)?))
    }

    /// Inserts the record, which was named with [`Intent::Insert`] and has been fetched. Fails with
    /// [`Error::Exists`] if its key is present.
    pub fn insert(self, tx: &mut Transaction<'_, '_>, value: V) -> Result<(), Error> {
        let slot = named(self.slot)?;
        match tx.tx.insert_sized(slot, V::BYTES) {
            Ok(bytes) => value.encode(bytes),
            Err(stop) => return Err(tx.stopped(stop, slot)),
        }
        Ok(())
    }

    /// Inserts the record, which was named with [`Intent::Insert`] and has been fetched, or
    /// replaces it. Returns the value that the record had, or `None` if its key was absent.
    pub fn put(self, tx: &mut Transaction<'_, '_>, value: V) -> Result<Option<V>, Error> {
        let before = self.value(tx)?;
        match before {
            Some(_) => self.update(tx, value)?,
            None => self.insert(tx, value)?,
        }
        Ok(before)
    }

    /// Replaces the record, which has been fetched. Fails with [`Error::NotFound`] if its key is
    /// absent.
    #[inline]
    pub fn update(self, tx: &mut Transaction<'_, '_>, value: V) -> Result<(), Error> {
        value.encode(tx.bytes_mut(self)?);
        Ok(())
    }

    /// Deletes the record, which was named with [`Intent::Delete`] or [`Intent::Insert`] and has
    /// been fetched. Returns the value that the record had, or `None` if its key was absent.
    pub fn remove(self, tx: &mut Transaction<'_, '_>) -> Result<Option<V>, Error> {
        let before = self.value(tx)?;
        if before.is_some() {
            let slot = named(self.slot)?;
            tx.tx.delete(slot).map_err(|stop| tx.stopped(stop, slot))?;
        }
        Ok(before)
    }
}

impl<V: Plain> Slot<V> {
    /// Returns the record, which has been fetched, without a copy, or `None` if its key is absent.
    /// The transaction sees its own writes.
    ///
    /// Fails with [`Misuse::NotFetched`] before [`Transaction::fetch`].
    #[inline]
    pub fn get<'t>(self, tx: &'t Transaction<'_, '_>) -> Result<Option<&'t V>, Error> {
        let bytes = tx.bytes(self)?;
        bytes.map(|bytes| V::ref_from_bytes(bytes).map_err(|_| wrong_size::<V>(bytes.len()))).transpose()
    }

    /// Returns the record, which has been fetched, without a copy. Fails with [`Error::NotFound`]
    /// if its key is absent.
    #[inline]
    pub fn require<'t>(self, tx: &'t Transaction<'_, '_>) -> Result<&'t V, Error> {
        self.get(tx)?.ok_or_else(|| tx.absent(self))
    }

    /// Returns the record, which has been fetched, to be changed in place without a copy. The
    /// commit then writes it. Fails with [`Error::NotFound`] if its key is absent.
    #[inline]
    pub fn get_mut<'t>(self, tx: &'t mut Transaction<'_, '_>) -> Result<&'t mut V, Error> {
        let bytes = tx.bytes_mut(self)?;
        let found = bytes.len();
        V::mut_from_bytes(bytes).map_err(|_| wrong_size::<V>(found))
    }
}

impl Transaction<'_, '_> {
    /// The bytes of a record that has been fetched.
    #[inline]
    fn bytes<V: Record>(&self, slot: Slot<V>) -> Result<Option<&[u8]>, Error> {
        match self.raw(slot.slot)? {
            Some(bytes) if bytes.len() != V::BYTES => Err(wrong_size::<V>(bytes.len())),
            bytes => Ok(bytes),
        }
    }

    /// Returns the bytes of a record that has been fetched, to be changed.
    #[inline]
    fn bytes_mut<V: Record>(&mut self, slot: Slot<V>) -> Result<&mut [u8], Error> {
        if self.bytes(slot)?.is_none() {
            return Err(self.absent(slot));
        }
        Ok(self.tx.value_mut(named(slot.slot)?)?.unwrap_or_default())
    }

    /// Returns the bytes of several records that have been fetched, to be changed.
    pub(crate) fn all_bytes_mut<const N: usize>(&mut self, slots: [RawSlot; N]) -> Result<[&mut [u8]; N], Error> {
        let mut there = [None; N];
        for (there, slot) in there.iter_mut().zip(slots) {
            let slot = named(slot)?;
            match self.tx.value(slot) {
                Ok(Some(_)) => *there = Some(slot),
                Ok(None) => return Err(self.stopped(Stop::Absent, slot)),
                Err(stop) => return Err(self.stopped(stop, slot)),
            }
        }
        let all = self.tx.values_mut(there.map(|slot| slot.expect("every slot was looked at")))?;
        Ok(all.map(Option::unwrap_or_default))
    }

    #[cold]
    fn absent<V>(&self, slot: Slot<V>) -> Error {
        slot.slot.map_or(Error::NotFound(Named::default()), |slot| self.stopped(Stop::Absent, slot))
    }
}

/// A value of a transaction, to be changed in place through [`DerefMut`]. When this guard is
/// dropped, the transaction has the new value.
#[derive(Debug)]
pub struct ValueMut<'t, V: Record> {
    value: V,
    bytes: &'t mut [u8],
}

impl<'t, V: Record> ValueMut<'t, V> {
    /// Makes the guard of the value that these [`Record::BYTES`] bytes encode.
    #[inline]
    pub(crate) fn new(bytes: &'t mut [u8]) -> ValueMut<'t, V> {
        ValueMut { value: V::decode(bytes), bytes }
    }
}

impl<V: Record> Deref for ValueMut<'_, V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        &self.value
    }
}

impl<V: Record> DerefMut for ValueMut<'_, V> {
    #[inline]
    fn deref_mut(&mut self) -> &mut V {
        &mut self.value
    }
}

impl<V: Record> Drop for ValueMut<'_, V> {
    #[inline]
    fn drop(&mut self) {
        self.value.encode(self.bytes);
    }
}

/// A transaction without a closure. [`Session::begin`](crate::Session::begin) begins it, and
/// [`Begun::commit`] or [`Begun::abort`] ends it. It is for programs whose transactions cannot be
/// written as one closure. Dropping it gives the transaction up.
///
/// The transaction is tried once. If its epoch ends, it fails with [`Error::Fenced`] or
/// [`Error::Unavailable`], and has no effect. The session goes on as soon as the next epoch has
/// begun. [`Session::transact`](crate::Session::transact) waits for that.
#[derive(Debug)]
pub struct Begun<'s> {
    tx: Tx<'s>,
    refused: Option<Error>,
    cluster: &'s Cluster,
    /// This field comes after the transaction, which must be dropped first.
    _in_use: InUse,
}

impl<'s> Begun<'s> {
    pub(crate) fn new(tx: Tx<'s>, cluster: &'s Cluster, in_use: InUse) -> Begun<'s> {
        Begun { tx, refused: None, cluster, _in_use: in_use }
    }

    /// Returns the handle that a closure would get, for the verbs of tables.
    pub fn transaction(&mut self) -> Transaction<'_, 's> {
        Transaction::new(&mut self.tx, &mut self.refused, self.cluster)
    }

    /// Commits the transaction. If it fails with [`Error::Unknown`], the transaction may or may not
    /// have committed ([`Session::resolve`](crate::Session::resolve)). With every other error it
    /// has not committed, and has left no trace. It is not tried again.
    pub async fn commit(self) -> Result<(), Error> {
        match self.refused {
            Some(refused) => {
                self.tx.abort().await;
                Err(refused)
            }
            None => Ok(self.tx.commit().await?),
        }
    }

    /// Gives the transaction up, and returns when its locks are gone.
    pub async fn abort(self) {
        self.tx.abort().await;
    }
}

/// A record of a transaction without its type, or `None` if the record could not be named.
pub(crate) type RawSlot = Option<remora_txn::Slot>;

/// Returns the slot of a record, and fails if the record could not be named. The next fetch says
/// why it could not.
#[inline]
fn named(slot: RawSlot) -> Result<remora_txn::Slot, Error> {
    slot.ok_or(Error::Misuse(Misuse::NotFetched(Named::default())))
}

#[cold]
fn wrong_size<V: Record>(found: usize) -> Error {
    Error::Limit(Reason::new(Limit::Value { found, max: V::BYTES }))
}
