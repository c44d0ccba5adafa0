//! Lookups and changes of one key of an ordered table.

use remora_txn::Intent;

use super::keys::encoded;
use super::tree::{CHANGED, Ordered};
use crate::error::{Error, Named};
use crate::key::Key;
use crate::record::Record;
use crate::transaction::{Transaction, ValueMut};

impl<K: Key, V: Record> Ordered<K, V> {
    /// Names a key, for what the transaction is about to do with it. The next round trip brings
    /// what that needs, together with all else that was named by then, as far as this handle
    /// remembers where it is. The operation itself then takes no round trip.
    pub fn prefetch(&self, tx: &mut Transaction<'_, '_>, key: K, intent: Intent) {
        self.want_value(tx, &key, intent);
        if self.values.is_none() || matches!(intent, Intent::Insert | Intent::Delete) {
            let intent = if intent == Intent::Read { Intent::Read } else { Intent::Update };
            self.directory.find(&key).map(|id| tx.want_for(&self.leaves, id, intent));
        }
    }

    /// Names a value that is out of line.
    fn want_value(&self, tx: &mut Transaction<'_, '_>, key: &K, intent: Intent) {
        if let Some(values) = &self.values {
            tx.name(values, key, intent);
        }
    }

    /// Returns the value of a key; `None` if the key is not there.
    pub async fn get(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
        if let Some(values) = &self.values {
            return values.get(tx, key).await;
        }
        let leaf = self.leaf(tx, &self.directory, &key, Intent::Read).await?;
        let leaf = self.seen(tx, leaf)?;
        leaf.find(encoded(&key).bytes()).ok().map(|at| self.value(&leaf, at)).transpose()
    }

    /// Returns the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn require(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<V, Error> {
        self.get(tx, key).await?.ok_or_else(|| self.missing(key))
    }

    /// Returns the value of a key, to be changed in place. Fails with [`Error::NotFound`] if the
    /// key is not there.
    pub async fn get_mut<'t>(&self, tx: &'t mut Transaction<'_, '_>, key: K) -> Result<ValueMut<'t, V>, Error> {
        if let Some(values) = &self.values {
            return values.get_mut(tx, key).await;
        }
        let leaf = self.leaf(tx, &self.directory, &key, Intent::Update).await?;
        let at = self.seen(tx, leaf)?.find(encoded(&key).bytes()).map_err(|_| self.missing(key))?;
        Ok(ValueMut::new(self.changed(tx, leaf)?.into_value(at)))
    }

    /// Inserts a key. Fails with [`Error::Exists`] if the key is there.
    pub async fn insert(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<(), Error> {
        self.want_value(tx, &key, Intent::Insert);
        let leaf = self.leaf(tx, &self.directory, &key, Intent::Update).await?;
        match self.seen(tx, leaf)?.find(encoded(&key).bytes()) {
            Ok(_) => Err(Error::Exists(Named::new(self.name(), encoded(&key).bytes()))),
            Err(_) => self.add(tx, leaf, key, value).await,
        }
    }

    /// Replaces the value of a key. Fails with [`Error::NotFound`] if the key is not there.
    pub async fn update(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<(), Error> {
        *self.get_mut(tx, key).await? = value;
        Ok(())
    }

    /// Inserts a key, or replaces its value. Returns the value that it had.
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<Option<V>, Error> {
        self.want_value(tx, &key, Intent::Insert);
        let leaf = self.leaf(tx, &self.directory, &key, Intent::Update).await?;
        let node = self.seen(tx, leaf)?;
        let Ok(at) = node.find(encoded(&key).bytes()) else {
            return self.add(tx, leaf, key, value).await.map(|()| None);
        };
        let before = match &self.values {
            Some(values) => std::mem::replace(&mut *values.get_mut(tx, key).await?, value),
            None => {
                let before = self.value(&node, at)?;
                value.encode(self.changed(tx, leaf)?.into_value(at));
                before
            }
        };
        Ok(Some(before))
    }

    /// Deletes a key. Returns the value that it had; `None` if the key was not there.
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
        self.want_value(tx, &key, Intent::Delete);
        let leaf = self.leaf(tx, &self.directory, &key, Intent::Update).await?;
        let node = self.seen(tx, leaf)?;
        let Ok(at) = node.find(encoded(&key).bytes()) else { return Ok(None) };
        let (inline, is_last) = (self.value(&node, at), node.count() == 1);
        let apart = self.values.as_ref().map(|values| tx.want_for(values, key, Intent::Delete));
        if apart.is_some() {
            tx.fetch().await?;
        }
        let merge = if is_last { self.plan_merge(tx, leaf, &key).await? } else { None };
        let before = match apart {
            Some(apart) => {
                // Leaf and value are changed together; if not, one of them was read before.
                apart.remove(tx)?.ok_or(CHANGED)?
            }
            None => inline?,
        };
        self.changed(tx, leaf)?.remove(at);
        merge.map_or(Ok(()), |merge| self.merge(tx, &merge))?;
        Ok(Some(before))
    }
}
