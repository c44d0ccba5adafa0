//! Inspecting whole tables while no transaction runs.

use remora_fabric::Lane;
use remora_record::StableRecord;
use remora_txn::{Inspection, inspect};
use zerocopy::IntoBytes;

use super::handle::Cluster;
use crate::key::Key;
use crate::record::Record;
use crate::table::{Handle, Table};

impl Cluster {
    /// Reads a whole table, while no transaction runs. Gives every record to `visit`, and returns
    /// what it has found: locks, torn records, and differences between copies. Waits first until
    /// the table does not grow any more. Fails if a memory node is unreachable.
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

    /// Inspects a table without its types.
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
            // The growth of a table may have stopped on the way. Then the larger table has rows,
            // too.
            let mut all = Inspection::default();
            for one in own.and_larger() {
                all += inspect(lane, one, &mut each).await?;
            }
            Ok(all)
        })
    }
}
