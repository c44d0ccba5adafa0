//! Reading whole tables while nothing runs.

use remora_fabric::Lane;
use remora_record::StableRecord;
use remora_txn::{Inspection, inspect};
use zerocopy::IntoBytes;

use super::handle::Cluster;
use crate::key::Key;
use crate::record::Record;
use crate::table::{Handle, Table};

impl Cluster {
    /// Reads a whole table while nothing runs: gives every record to `visit`, and says whether all
    /// is as it should be. Waits first until the table does not grow any more.
    pub fn inspect<K: Key, V: Record>(
        &self,
        table: &Table<K, V>,
        mut visit: impl FnMut(&V),
    ) -> Result<Inspection, crate::Error> {
        self.inspect_keyed(table, |_, row| visit(row))
    }

    /// Inspects a table as [`inspect`](Cluster::inspect) does. `visit` also gets the bytes of each
    /// record's key, zero-padded to whole words.
    pub(crate) fn inspect_keyed<K: Key, V: Record>(
        &self,
        table: &Table<K, V>,
        mut visit: impl FnMut(&[u8], &V),
    ) -> Result<Inspection, crate::Error> {
        self.inspect_bytes(table.handle(), &mut |key, value| {
            if let Some(value) = value.get(..V::BYTES) {
                visit(key, &V::decode(value));
            }
        })
    }

    /// Inspects a table without types.
    pub(crate) fn inspect_bytes(
        &self,
        table: Handle<'_>,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<Inspection, crate::Error> {
        self.until_grown(table.inner);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        self.administer(async |lane: &Lane| {
            let own = self.own(table)?;
            let mut each = |record: &StableRecord<'_>| {
                key.clear();
                key.extend(record.key());
                value.clear();
                record.copy_value(&mut value);
                visit(key.as_bytes(), value.as_bytes());
            };
            // One that grows may have stopped on the way.
            let mut all = Inspection::default();
            for one in own.and_larger() {
                all += inspect(lane, one, &mut each).await?;
            }
            Ok(all)
        })
    }
}
