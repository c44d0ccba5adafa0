//! Lookups and changes of one key of an ordered table.

use remora_txn::Intent;

use super::keys::encoded;
use super::tree::{CHANGED, Ordered};
use crate::error::{Error, Named};
use crate::table::{OrderedKey, Record};
use crate::transaction::Transaction;

impl<K: OrderedKey, V: Record> Ordered<K, V> {
    /// Names a key, for what is to be done with it. The next [`Transaction::fetch`] brings what
    /// that needs, together with all else that was named, as far as this handle remembers where it
    /// is; the operation itself then takes no round trip.
    pub fn want(&self, tx: &mut Transaction<'_, '_>, key: &K, intent: Intent) {
        self.want_value(tx, key, intent);
        if self.values.is_none() || matches!(intent, Intent::Insert | Intent::Delete) {
            let intent = if intent == Intent::Read { Intent::Read } else { Intent::Update };
            self.directory.find(key).map(|id| tx.want_for(&self.leaves, id, intent));
        }
    }

    /// Names a value that is out of line.
    fn want_value(&self, tx: &mut Transaction<'_, '_>, key: &K, intent: Intent) {
        if let Some(values) = &self.values {
            tx.want_borrowed(values, key, intent);
        }
    }

    /// The value of a key.
    pub async fn get(&self, tx: &mut Transaction<'_, '_>, key: &K) -> Result<Option<V>, Error> {
        if let Some(values) = &self.values {
            return tx.read(values, *key).await;
        }
        let leaf = self.leaf(tx, &self.directory, key, Intent::Read).await?;
        let leaf = self.seen(tx, leaf)?;
        leaf.find(encoded(key).bytes()).ok().map(|at| self.value(&leaf, at)).transpose()
    }

    /// Inserts a key, or [`Error::Exists`].
    pub async fn insert(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<(), Error> {
        self.want_value(tx, &key, Intent::Insert);
        let leaf = self.leaf(tx, &self.directory, &key, Intent::Update).await?;
        match self.seen(tx, leaf)?.find(encoded(&key).bytes()) {
            Ok(_) => Err(Error::Exists(Named::new(self.name(), encoded(&key).bytes()))),
            Err(_) => self.add(tx, leaf, key, value).await,
        }
    }

    /// Replaces the value of a key, or [`Error::NotFound`].
    pub async fn update(&self, tx: &mut Transaction<'_, '_>, key: &K, value: V) -> Result<(), Error> {
        if let Some(values) = &self.values {
            return tx.write(values, *key, value).await;
        }
        let leaf = self.leaf(tx, &self.directory, key, Intent::Update).await?;
        let at = self.seen(tx, leaf)?.find(encoded(key).bytes()).map_err(|_| self.missing(key))?;
        self.changed(tx, leaf)?.set_value(at, value.as_bytes());
        Ok(())
    }

    /// Inserts a key or replaces its value; the one that it had.
    pub async fn put(&self, tx: &mut Transaction<'_, '_>, key: K, value: V) -> Result<Option<V>, Error> {
        self.want_value(tx, &key, Intent::Insert);
        let leaf = self.leaf(tx, &self.directory, &key, Intent::Update).await?;
        let node = self.seen(tx, leaf)?;
        let Ok(at) = node.find(encoded(&key).bytes()) else {
            return self.add(tx, leaf, key, value).await.map(|()| None);
        };
        let before = match &self.values {
            Some(values) => std::mem::replace(tx.read_for_update(values, key).await?, value),
            None => {
                let before = self.value(&node, at)?;
                self.changed(tx, leaf)?.set_value(at, value.as_bytes());
                before
            }
        };
        Ok(Some(before))
    }

    /// Deletes a key; the value that it had, if it was there.
    pub async fn remove(&self, tx: &mut Transaction<'_, '_>, key: &K) -> Result<Option<V>, Error> {
        self.want_value(tx, key, Intent::Delete);
        let leaf = self.leaf(tx, &self.directory, key, Intent::Update).await?;
        let node = self.seen(tx, leaf)?;
        let Ok(at) = node.find(encoded(key).bytes()) else { return Ok(None) };
        let (inline, is_last) = (self.value(&node, at), node.count() == 1);
        let apart = self.values.as_ref().map(|values| tx.want_for(values, *key, Intent::Delete));
        if apart.is_some() {
            tx.fetch().await?;
        }
        let merge = if is_last { self.plan_merge(tx, leaf, key).await? } else { None };
        let before = match apart {
            Some(apart) => {
                // Leaf and value are changed together; if not, one of them was read before.
                let before = *tx.find(apart)?.ok_or(CHANGED)?;
                tx.remove(apart)?;
                before
            }
            None => inline?,
        };
        self.changed(tx, leaf)?.remove(at);
        merge.map_or(Ok(()), |merge| self.merge(tx, &merge))?;
        Ok(Some(before))
    }
}
