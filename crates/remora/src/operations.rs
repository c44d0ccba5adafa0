//! What a transaction does with one key of a [`Table`].

use remora_txn::Intent;

use crate::error::Error;
use crate::key::Key;
use crate::record::Record;
use crate::table::Table;
use crate::transaction::{Transaction, ValueMut};

impl<K: Key, V: Record> Table<K, V> {
    /// Names a key, for what the transaction is about to do with it. The next round trip brings its
    /// record, together with all others that were named by then.
    ///
    /// Name keys that way before you use them one by one: the first operation then fetches all of
    /// them, and the others take no round trip. [`Transaction::prefetch`] names several.
    pub fn prefetch(&self, tx: &mut Transaction<'_, '_>, key: K, intent: Intent) {
        tx.want_for(self, key, intent);
    }

    /// Returns the value of a key; `None` if the key is not there.
    pub async fn get(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
        let slot = tx.want(self, key);
        tx.fetch().await?;
        slot.value(tx)
    }

    /// Returns the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn require(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<V, Error> {
        self.get(tx, key).await?.ok_or_else(|| self.missing(key))
    }

    /// Returns the value of a key, to be changed in place. Fails with [`Error::NotFound`] if the
    /// key is not there.
    pub async fn get_mut<'t>(&self, tx: &'t mut Transaction<'_, '_>, key: K) -> Result<ValueMut<'t, V>, Error> {
        let slot = tx.want_for(self, key, Intent::Update);
        tx.fetch().await?;
        slot.value_mut(tx)
    }

    /// Inserts a key. Fails with [`Error::Exists`] if the key is there.
    pub async fn insert(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<(), Error> {
        let slot = tx.want_for(self, key, Intent::Insert);
        tx.fetch().await?;
        slot.insert(tx, value)
    }

    /// Inserts a key, or replaces its value. Returns the value that it had.
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<Option<V>, Error> {
        let slot = tx.want_for(self, key, Intent::Insert);
        tx.fetch().await?;
        slot.put(tx, value)
    }

    /// Replaces the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn update(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<(), Error> {
        let slot = tx.want_for(self, key, Intent::Update);
        tx.fetch().await?;
        slot.update(tx, value)
    }

    /// Deletes a key. Returns the value that it had; `None` if the key was not there.
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
        let slot = tx.want_for(self, key, Intent::Delete);
        tx.fetch().await?;
        slot.remove(tx)
    }
}
