//! Lookups and changes of one key of a tree.

use std::borrow::Cow;

use super::finding::Found;
use super::tree::{CHANGED, Tree};
use crate::dynamic::Access;
use crate::error::Error;
use crate::transaction::Transaction;
use remora_txn::{EditKind, Intent, Part};

impl Tree {
    /// Names a key, for what the transaction is about to do with it, as far as this handle
    /// remembers where it is.
    pub(super) fn prefetch(&self, tx: &mut Transaction<'_, '_>, key: &[u8], intent: Intent) -> Result<(), Error> {
        if let Some(values) = &self.values {
            values.prefetch(tx, key, intent)?;
        }
        if self.values.is_none() || matches!(intent, Intent::Insert | Intent::Delete) {
            let purpose = match intent {
                Intent::Read => (Intent::Read, self.looked_at()),
                _ => (Intent::Update, Part::Whole),
            };
            self.directory.find(key).map(|id| self.name_leaf(tx, id, purpose));
        }
        Ok(())
    }

    /// Names a value that is out of line.
    fn name_value(&self, tx: &mut Transaction<'_, '_>, key: &[u8], access: Access) -> Result<(), Error> {
        self.values.as_ref().map_or(Ok(()), |values| values.name_key(tx, key, access).map(drop))
    }

    /// Returns the value of a key; `None` if the key is not there.
    pub(super) async fn get<'t>(
        &self,
        tx: &'t mut Transaction<'_, '_>,
        key: &[u8],
    ) -> Result<Option<Cow<'t, [u8]>>, Error> {
        if let Some(values) = &self.values {
            return values.read(tx, key).await;
        }
        let slot = match self.look_for(tx, &self.directory, key, (Intent::Read, Part::Answer)).await? {
            Found::Leaf(slot) => slot,
            Found::Answer(value) => {
                let owned = |bytes: &[u8]| Ok(Cow::Owned(bytes.to_vec()));
                return value.map(|words| self.of_words(&words, owned)).transpose();
            }
        };
        let Ok(at) = self.seen(tx, slot)?.find(key) else { return Ok(None) };
        if self.shape.leaf_parts().is_none() {
            return Ok(Some(Cow::Borrowed(self.seen(tx, slot)?.into_value(at))));
        }
        let cell = tx.fetch_cell(slot, at).await?.and_then(|cell| cell.get(..self.shape.value_bytes()));
        Ok(Some(Cow::Borrowed(cell.ok_or(CHANGED)?)))
    }

    /// Returns the value of a key, all of whose values have one length, to be changed in place;
    /// `None` if the key is not there.
    pub(super) async fn get_mut<'t>(
        &self,
        tx: &'t mut Transaction<'_, '_>,
        key: &[u8],
    ) -> Result<Option<&'t mut [u8]>, Error> {
        if let Some(values) = &self.values {
            return values.read_mut(tx, key).await;
        }
        let leaf = self.leaf(tx, &self.directory, key, Intent::Update).await?;
        let Ok(at) = self.seen(tx, leaf)?.find(key) else { return Ok(None) };
        Ok(Some(self.changed(tx, leaf)?.into_value(at)))
    }

    /// Inserts a key. Returns false if the key is there.
    pub(super) async fn insert(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        if let Some(before) = self.change_by_call(tx, EditKind::Insert, key, value).await? {
            return Ok(before.is_none());
        }
        self.name_value(tx, key, Access::Insert(value.len()))?;
        let leaf = self.leaf(tx, &self.directory, key, Intent::Update).await?;
        if self.seen(tx, leaf)?.find(key).is_ok() {
            return Ok(false);
        }
        self.add(tx, leaf, key, value).await.map(|()| true)
    }

    /// Inserts a key, or replaces its value. Returns what `before` makes of the value that it had.
    pub(super) async fn put<B>(
        &self,
        tx: &mut Transaction<'_, '_>,
        key: &[u8],
        value: &[u8],
        before: impl FnOnce(&[u8]) -> Result<B, Error>,
    ) -> Result<Option<B>, Error> {
        if let Some(had) = self.change_by_call(tx, EditKind::Put, key, value).await? {
            return had.map(|words| self.of_words(&words, before)).transpose();
        }
        self.name_value(tx, key, Access::Put(value.len()))?;
        let leaf = self.leaf(tx, &self.directory, key, Intent::Update).await?;
        let Ok(at) = self.seen(tx, leaf)?.find(key) else {
            return self.add(tx, leaf, key, value).await.map(|()| None);
        };
        let Some(values) = &self.values else {
            let bytes = self.changed(tx, leaf)?.into_value(at);
            let had = before(bytes)?;
            bytes.copy_from_slice(value);
            return Ok(Some(had));
        };
        let found = values.fetch(tx, key, Access::Put(value.len())).await?;
        let had = before(&values.value(tx, key, &found)?)?;
        values.write(tx, key, value, &found)?;
        Ok(Some(had))
    }

    /// Replaces the value of a key. Returns false if the key is not there.
    pub(super) async fn update(&self, tx: &mut Transaction<'_, '_>, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        if let Some(before) = self.change_by_call(tx, EditKind::Update, key, value).await? {
            return Ok(before.is_some());
        }
        let Some(values) = &self.values else {
            let there = self.get_mut(tx, key).await?;
            return Ok(there.map(|bytes| bytes.copy_from_slice(value)).is_some());
        };
        let found = values.fetch(tx, key, Access::Update(value.len())).await?;
        if found.is_there() {
            values.value(tx, key, &found)?; // all of it is there
            values.write(tx, key, value, &found)?;
        }
        Ok(found.is_there())
    }

    /// Deletes a key. Returns what `before` makes of the value that it had; `None` if the key was
    /// not there.
    pub(super) async fn remove<B>(
        &self,
        tx: &mut Transaction<'_, '_>,
        key: &[u8],
        before: impl FnOnce(&[u8]) -> Result<B, Error>,
    ) -> Result<Option<B>, Error> {
        if let Some(had) = self.change_by_call(tx, EditKind::Remove, key, &[]).await? {
            return had.map(|words| self.of_words(&words, before)).transpose();
        }
        self.name_value(tx, key, Access::Remove)?;
        let leaf = self.leaf(tx, &self.directory, key, Intent::Update).await?;
        let node = self.seen(tx, leaf)?;
        let Ok(at) = node.find(key) else { return Ok(None) };
        let is_last = node.count() == 1;
        let apart = match &self.values {
            Some(values) => Some((values, values.fetch(tx, key, Access::Remove).await?)),
            None => None,
        };
        let merge = if is_last { self.plan_merge(tx, leaf, key).await? } else { None };
        let had = match &apart {
            Some((values, found)) => {
                // Leaf and value are changed together; if not, one of them was read before.
                let had = before(&values.value(tx, key, found)?)?;
                values.delete(tx, found)?;
                had
            }
            None => before(self.seen(tx, leaf)?.value(at))?,
        };
        self.changed(tx, leaf)?.remove(at);
        merge.map_or(Ok(()), |merge| self.merge(tx, &merge))?;
        Ok(Some(had))
    }
}
