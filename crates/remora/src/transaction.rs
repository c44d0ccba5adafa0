//! The handle that a transaction's closure works on.

use std::marker::PhantomData;
use std::pin::pin;

use remora_fabric::Lane;
use remora_record::TransactionId;
use remora_txn::{Intent, Limit, Located, Stop, Tx};

use crate::cluster::Cluster;
use crate::error::{Error, Misuse, Named, Reason};
use crate::table::{ClusterNumber, Key, Record, Table};
use crate::usage::InUse;

/// A record of a transaction, named by [`Transaction::want`]. Good for the run of the closure that
/// made it; every other run and every other transaction refuses it ([`Misuse::OtherRun`]).
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
    /// Whether both name the same record.
    pub(crate) fn is(self, other: Slot<V>) -> bool {
        self.slot == other.slot
    }
}

impl<V> std::fmt::Debug for Slot<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.slot.fmt(f)
    }
}

/// A transaction under way, as its closure sees it: name records, fetch them, look at them, change
/// them. See the crate's first page for what a closure must know.
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

    /// Makes a table known to the session, if it is not yet.
    #[inline]
    fn register<K, V>(&mut self, table: &Table<K, V>) -> Result<(), Error> {
        if table.cluster == self.number && self.tx.knows(&table.inner) {
            return Ok(());
        }
        self.introduce(table)
    }

    #[cold]
    fn introduce<K, V>(&mut self, table: &Table<K, V>) -> Result<(), Error> {
        let own = self.cluster.own(table.handle())?;
        self.cluster.accept(&own)?;
        self.tx.register(&own);
        Ok(())
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

    /// Names a record for more than to be looked at: to be changed ([`Intent::Update`]: protocols
    /// that lock early lock it when it is fetched, which saves a round trip), inserted
    /// ([`Transaction::put`]) or deleted ([`Transaction::remove`]). For an insert a slot is found
    /// that nobody sees before the commit, by the key's memory node or, where clients work alone,
    /// by this one.
    pub fn want_for<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: K, intent: Intent) -> Slot<V> {
        self.want_borrowed(table, &key, intent)
    }

    pub(crate) fn want_borrowed<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: &K, intent: Intent) -> Slot<V> {
        let key = Table::<K, V>::key(key);
        let named = self.register(table).and_then(|()| {
            let named = self.tx.want_for(table.inner.id(), &key, intent);
            named.map_err(|stop| Error::of(stop, Named::new(table.name(), key.bytes())))
        });
        let slot = match named {
            Ok(slot) => Some(slot),
            Err(error) => {
                self.refused.get_or_insert(error);
                None
            }
        };
        Slot { slot, types: PhantomData }
    }

    /// Asks the memory node that has the inner nodes of an ordered table, if there is one, for the
    /// leaf of a key.
    pub(crate) async fn locate_in_tree<V: Record>(
        &mut self,
        inner: &Table<u64, V>,
        leaves: &Table<u64, V>,
        key: &[u8],
        parent: bool,
        intent: Intent,
    ) -> Result<Option<Located>, Error> {
        self.register(inner)?;
        self.register(leaves)?;
        Ok(self.tx.locate_in_tree(inner.inner.id(), leaves.inner.id(), key, parent, intent).await?)
    }

    /// Notes that all keys of a table up to one, and of none behind it, have been looked for.
    pub(crate) fn note_scan<K: Key, V: Record>(
        &mut self,
        table: &Table<K, V>,
        first: &K,
        last: &K,
    ) -> Result<(), Error> {
        // Nothing may have been found.
        self.register(table)?;
        let mut behind = Table::<K, V>::key(last).bytes().to_vec();
        behind.push(0);
        self.tx.note_scan(table.inner.id(), Table::<K, V>::key(first).bytes(), behind);
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

    /// A record that has been fetched; `None` if its key is not there. Own writes are seen.
    /// [`Misuse::NotFetched`] before it has been.
    #[inline]
    pub fn find<V: Record>(&self, slot: Slot<V>) -> Result<Option<&V>, Error> {
        let slot = of_this(slot)?;
        match self.tx.value(slot) {
            Ok(Some(bytes)) => V::ref_from_bytes(bytes).map(Some).map_err(|_| wrong_size::<V>(bytes.len())),
            Ok(None) => Ok(None),
            Err(stop) => Err(self.stopped(stop, slot)),
        }
    }

    /// A record that has been fetched, or [`Error::NotFound`].
    #[inline]
    pub fn get<V: Record>(&self, slot: Slot<V>) -> Result<&V, Error> {
        self.find(slot)?.ok_or_else(|| self.absent(slot))
    }

    #[cold]
    fn absent<V: Record>(&self, slot: Slot<V>) -> Error {
        slot.slot.map_or(Error::NotFound(Named::default()), |slot| self.stopped(Stop::Absent, slot))
    }

    /// A record that has been fetched, to be changed: it will be written by the commit. Or
    /// [`Error::NotFound`].
    #[inline]
    pub fn get_mut<V: Record>(&mut self, slot: Slot<V>) -> Result<&mut V, Error> {
        let slot = of_this(slot)?;
        match self.tx.value(slot) {
            Ok(Some(_)) => {}
            Ok(None) => return Err(self.stopped(Stop::Absent, slot)),
            Err(stop) => return Err(self.stopped(stop, slot)),
        }
        let bytes = self.tx.value_mut(slot)?.unwrap_or_default();
        let found = bytes.len();
        V::mut_from_bytes(bytes).map_err(|_| wrong_size::<V>(found))
    }

    /// Inserts a record that was named with [`Intent::Insert`] and has been fetched, or
    /// [`Error::Exists`].
    pub fn put<V: Record>(&mut self, slot: Slot<V>, value: V) -> Result<(), Error> {
        let slot = of_this(slot)?;
        self.tx.insert(slot, value.as_bytes()).map_err(|stop| self.stopped(stop, slot))
    }

    /// Deletes a record that was named with [`Intent::Delete`] or [`Intent::Insert`] and has been
    /// fetched, or [`Error::NotFound`].
    pub fn remove<V: Record>(&mut self, slot: Slot<V>) -> Result<(), Error> {
        let slot = of_this(slot)?;
        self.tx.delete(slot).map_err(|stop| self.stopped(stop, slot))
    }

    /// Inserts a record, or [`Error::Exists`].
    pub async fn insert<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: K, value: V) -> Result<(), Error> {
        let slot = self.want_for(table, key, Intent::Insert);
        self.fetch().await?;
        self.put(slot, value)
    }

    /// Deletes a record, or [`Error::NotFound`].
    pub async fn delete<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: K) -> Result<(), Error> {
        let slot = self.want_for(table, key, Intent::Delete);
        self.fetch().await?;
        self.remove(slot)
    }

    /// Names, fetches and copies one record. For several records, [`Transaction::want`] them all
    /// and fetch once.
    pub async fn read<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: K) -> Result<Option<V>, Error> {
        let slot = self.want(table, key);
        self.fetch().await?;
        Ok(self.find(slot)?.copied())
    }

    /// Reads a record that will be written, to be changed in place, or returns [`Error::NotFound`].
    pub async fn read_for_update<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: K) -> Result<&mut V, Error> {
        let slot = self.want_for(table, key, Intent::Update);
        self.fetch().await?;
        self.get_mut(slot)
    }

    /// Replaces a record, whose key must be there.
    pub async fn write<K: Key, V: Record>(&mut self, table: &Table<K, V>, key: K, value: V) -> Result<(), Error> {
        *self.read_for_update(table, key).await? = value;
        Ok(())
    }
}

/// A transaction without a closure: made by [`Session::begin`](crate::Session::begin), ended by
/// [`Begun::commit`] or [`Begun::abort`]. For programs whose transactions span what no closure can;
/// it is not tried again when it aborts, nor when its epoch ends: with [`Error::Fenced`] or
/// [`Error::Unavailable`], and without effect. The session goes on in the next epoch as soon as
/// that has begun, for which [`Session::transact`](crate::Session::transact) waits. Dropping it
/// gives it up.
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

/// The slot of a record, if it could be named. If not, the next fetch says why.
#[inline]
fn of_this<V>(slot: Slot<V>) -> Result<remora_txn::Slot, Error> {
    slot.slot.ok_or(Error::Misuse(Misuse::NotFetched(Named::default())))
}

#[cold]
fn wrong_size<V>(found: usize) -> Error {
    Error::Limit(Reason::new(Limit::Value { found, max: size_of::<V>() }))
}
