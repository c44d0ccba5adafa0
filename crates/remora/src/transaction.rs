//! The handle that a transaction's closure works on.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::pin::pin;

use remora_fabric::Lane;
use remora_node::TableId;
use remora_record::TransactionId;
use remora_txn::{Intent, Limit, Located, Stop, Tx};

use crate::cluster::Cluster;
use crate::error::{Error, Misuse, Named, Reason};
use crate::key::Key;
use crate::record::{Plain, Record};
use crate::table::{ClusterNumber, Handle, RawTable, Table};
use crate::usage::InUse;

/// A record of a transaction: the way to records that costs the processor least.
///
/// [`Transaction::want`] names a record, [`Transaction::fetch`] brings all that were named, and a
/// slot's methods read and change its record. A slot is good for the run of the closure that made
/// it. Every other run and every other transaction refuses it ([`Misuse::OtherRun`]).
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
    /// The slot without its type; `None` if the record could not be named.
    pub(crate) fn untyped(self) -> RawSlot {
        self.slot
    }
}

impl<V> std::fmt::Debug for Slot<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.slot.fmt(f)
    }
}

/// A transaction under way, as its closure sees it. Tables read and change records through it; see
/// the crate's first page for what a closure must know.
#[derive(Debug)]
pub struct Transaction<'t, 's> {
    tx: &'t mut Tx<'s>,
    /// The first error of [`Transaction::want`], told by the next [`Transaction::fetch`], or else
    /// by the commit.
    refused: &'t mut Option<Error>,
    /// The session's.
    cluster: &'t Cluster,
    number: ClusterNumber,
}

impl<'t, 's> Transaction<'t, 's> {
    pub(crate) fn new(tx: &'t mut Tx<'s>, refused: &'t mut Option<Error>, cluster: &'t Cluster) -> Transaction<'t, 's> {
        Transaction { tx, refused, cluster, number: cluster.number() }
    }

    /// Makes a table known to the session, if it is not yet. Returns the id that it has there.
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

    /// Why the floor below has stopped at a record.
    #[cold]
    fn stopped(&self, stop: Stop, slot: remora_txn::Slot) -> Error {
        Error::of(stop, Named::of(self.tx.name(slot)))
    }

    /// The id of this attempt.
    #[must_use]
    pub fn id(&self) -> TransactionId {
        self.tx.id()
    }

    /// The lane: time, random numbers, pauses. Others wait for what a transaction has locked while
    /// it pauses.
    #[must_use]
    pub fn lane(&self) -> &'s Lane {
        self.tx.lane()
    }

    /// How many records it has named so far.
    pub(crate) fn named(&self) -> usize {
        self.tx.named()
    }

    /// Names a record. The next [`Transaction::fetch`] brings it, together with all others that
    /// were named: one round trip, if their locations are cached. Naming a record again gives the
    /// same one.
    #[inline]
    pub fn want<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: K) -> Slot<V> {
        self.want_for(table, key, Intent::Read)
    }

    /// Names a record, and says what it is wanted for: to be read, changed, inserted or deleted.
    ///
    /// Protocols that lock early lock a record when they fetch it, if it is named to be changed.
    /// That saves a round trip. For an insert, the key's memory node finds a place that no other
    /// transaction sees before the commit. Where clients work without memory nodes' CPUs, this
    /// client finds it.
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
        let named = self.register(table).and_then(|id| {
            let named = self.tx.want_for(id, key, intent);
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

    /// The bytes of a record that has been fetched and is there, to be changed.
    pub(crate) fn raw_mut(&mut self, slot: RawSlot) -> Result<&mut [u8], Error> {
        Ok(self.tx.value_mut(named(slot)?)?.unwrap_or_default())
    }

    /// Replaces the bytes of a record that has been fetched and is there, or inserts it.
    pub(crate) fn put_raw(&mut self, slot: RawSlot, bytes: &[u8], is_there: bool) -> Result<(), Error> {
        let slot = named(slot)?;
        let put = if is_there { self.tx.write(slot, bytes) } else { self.tx.insert(slot, bytes) };
        put.map_err(|stop| self.stopped(stop, slot))
    }

    /// Moves a record that has been fetched to the larger table that its own one grows into.
    /// Returns false if there is nothing to move.
    pub(crate) fn relocate_raw(&mut self, slot: RawSlot) -> Result<bool, Error> {
        let slot = named(slot)?;
        self.tx.relocate(slot).map_err(|stop| self.stopped(stop, slot))
    }

    /// Deletes a record that has been fetched and is there.
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
        key: (&[u8], bool),
        parent: bool,
        intent: Intent,
    ) -> Result<Option<Located>, Error> {
        let (inner, leaves) = (self.register(inner.handle())?, self.register(leaves.handle())?);
        Ok(self.tx.locate_in_tree(inner, leaves, key, parent, intent).await?)
    }

    /// Notes that all keys of a table from one to another, and of none behind it, have been looked
    /// for.
    pub(crate) fn note_scan(&mut self, table: Handle<'_>, first: &[u8], last: &[u8]) -> Result<(), Error> {
        // Nothing may have been found.
        let id = self.register(table)?;
        self.tx.note_scan(id, first, [last, &[0]].concat());
        Ok(())
    }

    /// Brings every record that was named and is not here yet.
    #[inline]
    pub async fn fetch(&mut self) -> Result<(), Error> {
        if let Some(error) = self.refused.take() {
            return Err(error);
        }
        let fetched = pin!(self.tx.fetch()).await;
        match fetched {
            Ok(()) => Ok(()),
            // A transaction that is tried again asks only once for what was in its way: when it is
            // given up.
            Err(stop @ Stop::Abort(_)) => Err(stop.into()),
            Err(stop) => Err(Error::of(stop, Named::of(self.tx.culprit(stop)))),
        }
    }
}

impl<V: Record> Slot<V> {
    /// Returns a copy of the record, which has been fetched; `None` if its key is not there. The
    /// transaction sees its own writes.
    ///
    /// Fails with [`Misuse::NotFetched`] before [`Transaction::fetch`].
    #[inline]
    pub fn value(self, tx: &Transaction<'_, '_>) -> Result<Option<V>, Error> {
        Ok(tx.bytes(self)?.map(V::decode))
    }

    /// Returns the record, to be changed in place. The commit then writes it. Fails with
    /// [`Error::NotFound`] if its key is not there.
    #[inline]
    pub fn value_mut<'t>(self, tx: &'t mut Transaction<'_, '_>) -> Result<ValueMut<'t, V>, Error> {
        Ok(ValueMut::new(tx.bytes_mut(self)?))
    }

    /// Inserts the record, which was named with [`Intent::Insert`] and has been fetched. Fails with
    /// [`Error::Exists`] if its key is there.
    pub fn insert(self, tx: &mut Transaction<'_, '_>, value: V) -> Result<(), Error> {
        let slot = named(self.slot)?;
        match tx.tx.insert_sized(slot, V::BYTES) {
            Ok(bytes) => value.encode(bytes),
            Err(stop) => return Err(tx.stopped(stop, slot)),
        }
        Ok(())
    }

    /// Inserts the record, which was named with [`Intent::Insert`] and has been fetched, or
    /// replaces it. Returns the value that it had.
    pub fn put(self, tx: &mut Transaction<'_, '_>, value: V) -> Result<Option<V>, Error> {
        let before = self.value(tx)?;
        match before {
            Some(_) => self.update(tx, value)?,
            None => self.insert(tx, value)?,
        }
        Ok(before)
    }

    /// Replaces the record, which has been fetched. Fails with [`Error::NotFound`] if its key is
    /// not there.
    #[inline]
    pub fn update(self, tx: &mut Transaction<'_, '_>, value: V) -> Result<(), Error> {
        value.encode(tx.bytes_mut(self)?);
        Ok(())
    }

    /// Deletes the record, which was named with [`Intent::Delete`] or [`Intent::Insert`] and has
    /// been fetched. Returns the value that it had; `None` if its key was not there.
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
    /// Returns the record, which has been fetched, without a copy; `None` if its key is not there.
    /// The transaction sees its own writes.
    ///
    /// Fails with [`Misuse::NotFetched`] before [`Transaction::fetch`].
    #[inline]
    pub fn get<'t>(self, tx: &'t Transaction<'_, '_>) -> Result<Option<&'t V>, Error> {
        let bytes = tx.bytes(self)?;
        bytes.map(|bytes| V::ref_from_bytes(bytes).map_err(|_| wrong_size::<V>(bytes.len()))).transpose()
    }

    /// Returns the record, which has been fetched, without a copy. Fails with [`Error::NotFound`]
    /// if its key is not there.
    #[inline]
    pub fn require<'t>(self, tx: &'t Transaction<'_, '_>) -> Result<&'t V, Error> {
        self.get(tx)?.ok_or_else(|| tx.absent(self))
    }

    /// Returns the record, to be changed in place, without a copy. The commit then writes it. Fails
    /// with [`Error::NotFound`] if its key is not there.
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

    /// The bytes of a record that has been fetched, to be changed.
    #[inline]
    fn bytes_mut<V: Record>(&mut self, slot: Slot<V>) -> Result<&mut [u8], Error> {
        if self.bytes(slot)?.is_none() {
            return Err(self.absent(slot));
        }
        Ok(self.tx.value_mut(named(slot.slot)?)?.unwrap_or_default())
    }

    /// The bytes of several records that have been fetched, to be changed.
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
    /// The value that these bytes, [`Record::BYTES`] of them, encode.
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

/// A transaction without a closure: made by [`Session::begin`](crate::Session::begin), ended by
/// [`Begun::commit`] or [`Begun::abort`]. For programs whose transactions span what no closure can.
/// Dropping it gives it up.
///
/// It is tried once. If its epoch ends, it fails with [`Error::Fenced`] or [`Error::Unavailable`],
/// and has no effect. The session goes on in the next epoch as soon as that has begun, for which
/// [`Session::transact`](crate::Session::transact) waits.
#[derive(Debug)]
pub struct Begun<'s> {
    tx: Tx<'s>,
    refused: Option<Error>,
    cluster: &'s Cluster,
    /// Behind the transaction, which is dropped before.
    _in_use: InUse,
}

impl<'s> Begun<'s> {
    pub(crate) fn new(tx: Tx<'s>, cluster: &'s Cluster, in_use: InUse) -> Begun<'s> {
        Begun { tx, refused: None, cluster, _in_use: in_use }
    }

    /// What a closure would be given.
    pub fn transaction(&mut self) -> Transaction<'_, 's> {
        Transaction::new(&mut self.tx, &mut self.refused, self.cluster)
    }

    /// Commits. An [`Error::Aborted`] has left no trace; an [`Error::Unknown`] may have committed.
    pub async fn commit(self) -> Result<(), Error> {
        match self.refused {
            Some(refused) => {
                self.tx.abort().await;
                Err(refused)
            }
            None => Ok(self.tx.commit().await?),
        }
    }

    /// Gives it up; returns when its locks are gone.
    pub async fn abort(self) {
        self.tx.abort().await;
    }
}

/// A record of a transaction, without a type; `None` if it could not be named.
pub(crate) type RawSlot = Option<remora_txn::Slot>;

/// The slot of a record, if it could be named. If not, the next fetch says why.
#[inline]
fn named(slot: RawSlot) -> Result<remora_txn::Slot, Error> {
    slot.ok_or(Error::Misuse(Misuse::NotFetched(Named::default())))
}

#[cold]
fn wrong_size<V: Record>(found: usize) -> Error {
    Error::Limit(Reason::new(Limit::Value { found, max: V::BYTES }))
}
