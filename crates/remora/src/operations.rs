//! The verbs of [`Table`]: what a transaction does with one key.

use remora_txn::Intent;

use crate::error::Error;
use crate::key::Key;
use crate::record::Record;
use crate::table::Table;
use crate::transaction::{Transaction, ValueMut};

impl<K: Key, V: Record> Table<K, V> {
    /// Names a key, and says what the transaction is about to do with it. The next round trip
    /// brings the key's record, together with all other records that were named by then.
    ///
    /// Name keys this way before you use them one by one. The first operation then fetches all of
    /// them, and the other operations take no round trip. An error of this call comes with the next
    /// operation that fetches, or with the commit. [`Transaction::prefetch`] names several keys.
    pub fn prefetch(&self, tx: &mut Transaction<'_, '_>, key: K, intent: Intent) {
        tx.want_for(self, key, intent);
    }

    /// Returns the value of a key, or `None` if the key is absent.
    pub async fn get(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
        let slot = tx.want(self, key);
        tx.fetch().await?;
        slot.value(tx)
    }

    /// Returns the value of a key. Fails with [`Error::NotFound`] if the key is absent.
    pub async fn require(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<V, Error> {
        self.get(tx, key).await?.ok_or_else(|| self.missing(key))
    }

    /// Returns the value of a key, to be changed in place. The transaction has the new value when
    /// the returned guard is dropped, and the commit then writes it. Fails with [`Error::NotFound`]
    /// if the key is absent.
    pub async fn get_mut<'t>(&self, tx: &'t mut Transaction<'_, '_>, key: K) -> Result<ValueMut<'t, V>, Error> {
        let slot = tx.want_for(self, key, Intent::Update);
        tx.fetch().await?;
        slot.value_mut(tx)
    }

    /// Inserts a key with a value. Fails with [`Error::Exists`] if the key is present.
    pub async fn insert(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<(), Error> {
        let slot = tx.want_for(self, key, Intent::Insert);
        tx.fetch().await?;
        slot.insert(tx, value)
    }

    /// Inserts a key with a value, or replaces the key's value. Returns the value that the key had,
    /// or `None` if the key was absent.
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<Option<V>, Error> {
        let slot = tx.want_for(self, key, Intent::Insert);
        tx.fetch().await?;
        slot.put(tx, value)
    }

    /// Replaces the value of a key. Fails with [`Error::NotFound`] if the key is absent.
    pub async fn update(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<(), Error> {
        let slot = tx.want_for(self, key, Intent::Update);
        tx.fetch().await?;
        slot.update(tx, value)
    }

    /// Deletes a key. Returns the value that the key had, or `None` if the key was absent.
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
        let slot = tx.want_for(self, key, Intent::Delete);
        tx.fetch().await?;
        slot.remove(tx)
    }
}
