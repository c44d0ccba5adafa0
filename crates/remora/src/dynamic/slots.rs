//! Keys that a transaction has fetched, to be read and changed without another fetch.

use std::borrow::Cow;

use remora_txn::Intent;

use super::{Access, DynTable, Fetched};
use crate::error::Error;
use crate::transaction::Transaction;

/// A key that a transaction has fetched ([`DynTable::fetch_for`]). Only that transaction can use
/// it.
pub struct DynSlot {
    found: Fetched,
    intent: Intent,
}

impl DynTable {
    /// Fetches keys, each for what the transaction is about to do with it. It is one round trip,
    /// and another one if some values are longer than 132 bytes.
    ///
    /// With the right intents, protocols that lock records when they are first used lock them in
    /// this round trip. An insert is prepared in it, too. A key that is not changed in the end
    /// costs a little more with an intent than without.
    pub async fn fetch_for<'k>(
        &self,
        tx: &mut Transaction<'_, '_>,
        keys: impl IntoIterator<Item = (&'k [u8], Intent)>,
    ) -> Result<Vec<DynSlot>, Error> {
        let keys = keys.into_iter();
        let mut slots = Vec::with_capacity(keys.size_hint().0);
        for (key, intent) in keys {
            let record = self.record_key(key)?;
            tx.prefetch_raw(self.heads.handle(), &record.record());
            slots.push(DynSlot { found: Fetched::of(record), intent });
        }
        for DynSlot { found, intent } in &mut slots {
            found.head = tx.name_raw(self.heads.handle(), &found.record.record(), *intent);
        }
        self.fetch_named(tx, slots.iter_mut().map(|slot| &mut slot.found)).await?;
        Ok(slots)
    }

    /// Returns the value of a key that was fetched, as it was then; `None` if the key was not
    /// there.
    pub fn value_of<'t>(
        &self,
        tx: &'t Transaction<'_, '_>,
        key: &[u8],
        slot: &DynSlot,
    ) -> Result<Option<Cow<'t, [u8]>>, Error> {
        if slot.found.is_there() { self.value(tx, key, &slot.found).map(Some) } else { Ok(None) }
    }

    /// Inserts a key that was fetched, or replaces its value. It takes a round trip if the old or
    /// the new value is longer than 132 bytes, or if the key was not fetched for that.
    pub async fn put_at(
        &self,
        tx: &mut Transaction<'_, '_>,
        key: &[u8],
        slot: DynSlot,
        value: &[u8],
    ) -> Result<(), Error> {
        self.schema.check_value(self.name(), key, value)?;
        let DynSlot { mut found, intent } = slot;
        let is_for_this = intent == Intent::Insert || intent == Intent::Update && found.is_there();
        if !is_for_this {
            return self.put(tx, key, value).await.map(drop);
        }
        found.parts.clear();
        if self.name_rest(tx, &mut found, Access::Put(value.len()))? {
            tx.fetch().await?;
        }
        self.write(tx, key, value, &found)
    }
}
