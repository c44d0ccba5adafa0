//! Creating, loading, opening and dropping ordered tables.

use remora_index::IndexError;
use remora_node::{MemoryError, ReadScheme};

use super::keys::encoded;
use super::load::Builder;
use super::options::{Design, OrderedOptions};
use super::parts::{INNER, LEAVES, NodeRecord, VALUES, is_inline, part, schema, shape};
use super::tree::Ordered;
use crate::cluster::{Cluster, Freed, TableOptions};
use crate::error::OpenError;
use crate::key::Key;
use crate::record::Record;
use crate::table::Table;

impl Cluster {
    /// Creates an ordered table, empty: tables `name/inner` and `name/leaves`, and `name/values` if
    /// a leaf has no room for four values: if they have more than 232 bytes, beside keys of 8.
    pub fn create_ordered<K: Key, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
    ) -> Result<Ordered<K, V>, OpenError> {
        self.load_ordered(name, options, std::iter::empty())
    }

    /// Creates an ordered table with rows, which must ascend. Much faster than transactions, and
    /// none. If it fails, or this client dies, nothing of it is left, as in
    /// [`create_together`](Cluster::create_together).
    pub fn load_ordered<K: Key, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
        rows: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Ordered<K, V>, OpenError> {
        self.load_ordered_rows(name, options, &mut rows.into_iter())
    }

    /// Creates an ordered table, whatever its rows come from.
    fn load_ordered_rows<K: Key, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
        rows: &mut dyn Iterator<Item = (K, V)>,
    ) -> Result<Ordered<K, V>, OpenError> {
        if options.rows == 0 {
            return Err(MemoryError::empty("the number of rows of a table").of_table(name).into());
        }
        self.create_together(|cluster| cluster.load_ordered_unfinished(name, options, rows))
    }

    fn load_ordered_unfinished<K: Key, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
        rows: &mut dyn Iterator<Item = (K, V)>,
    ) -> Result<Ordered<K, V>, OpenError> {
        let shape = shape::<K, V>().map_err(|error| error.of_table(name))?;
        let node = |node: Option<u16>| TableOptions {
            replicas: options.replicas,
            shards: node.map(|_| 1),
            first_node: node.unwrap_or(0),
            grows: false,
            ..TableOptions::for_rows(options.rows)
        };
        let (of_leaves, of_inner) = match options.design {
            Design::Fine => (None, None),
            Design::Hybrid(node) => (None, Some(node)),
            Design::Coarse(node) => (Some(node), Some(node)),
        };
        let sizes = options.tables::<K, V>();
        let create = |what, size: usize, at: Option<u16>| {
            let options = TableOptions { rows: sizes[size].0, read_scheme: Some(ReadScheme::Checksum), ..node(at) };
            self.create_table_as(&part(name, what), schema::<K, V>(), options)
        };
        let values =
            if is_inline::<K, V>() { None } else { Some(self.create_table(&part(name, VALUES), node(of_leaves))?) };
        let (leaves, inner) = (create(LEAVES, 1, of_leaves)?, create(INNER, 0, of_inner)?);
        let ordered = Ordered::new(inner, leaves, values, shape);
        let row = |(key, value): (K, V)| (encoded(&key).bytes().to_vec(), ordered.inline(&value));
        let (leaves, inner) = (&ordered.leaves, &ordered.inner);
        let unsorted = match &ordered.values {
            None => self.load_tree(leaves, inner, Builder::new(shape, options.apart, &mut rows.map(row)))?,
            Some(values) => {
                // Rows come once: values are loaded first, and their keys kept.
                let mut keys = Vec::new();
                let note = |(key, value)| {
                    keys.push(key);
                    (key, value)
                };
                self.load(values, rows.map(note))?;
                let mut rows = keys.into_iter().map(|key| (encoded(&key).bytes().to_vec(), Vec::new()));
                self.load_tree(leaves, inner, Builder::new(shape, options.apart, &mut rows))?
            }
        };
        match unsorted {
            None => Ok(ordered),
            Some(key) => {
                let key = key.iter().map(|byte| format!("{byte:02x}")).collect();
                Err(IndexError::Unsorted { table: name.to_owned(), key }.into())
            }
        }
    }

    /// Builds the nodes; the key that is not behind the one before it, if there is one.
    fn load_tree(
        &self,
        leaves: &Table<u64, NodeRecord>,
        inner: &Table<u64, NodeRecord>,
        mut builder: Builder<'_>,
    ) -> Result<Option<Vec<u8>>, OpenError> {
        let record = |(id, image)| (id, NodeRecord(image));
        self.load(leaves, builder.by_ref().map(record))?;
        if builder.unsorted.is_some() {
            return Ok(builder.unsorted);
        }
        self.load(inner, builder.inner().into_iter().map(record))?;
        Ok(None)
    }

    /// Opens an ordered table that exists. What is remembered of where its keys are is this
    /// handle's and its clones' own.
    pub fn open_ordered<K: Key, V: Record>(&self, name: &str) -> Result<Ordered<K, V>, OpenError> {
        let shape = shape::<K, V>().map_err(|error| error.of_table(name))?;
        let open = |what| self.open_table_as(&part(name, what), schema::<K, V>());
        let values = if is_inline::<K, V>() { None } else { Some(self.open_table(&part(name, VALUES))?) };
        Ok(Ordered::new(open(INNER)?, open(LEAVES)?, values, shape))
    }

    /// Opens an ordered table, or creates it, empty: see
    /// [`open_or_create_table`](Cluster::open_or_create_table).
    pub fn open_or_create_ordered<K: Key, V: Record>(
        &self,
        name: &str,
        options: OrderedOptions,
    ) -> Result<Ordered<K, V>, OpenError> {
        self.open_or_create(|| self.open_ordered(name), || self.create_ordered(name, options))
    }

    /// Drops an ordered table, with all the tables that it consists of, in one change of the
    /// catalog. Otherwise like [`drop_table`](Cluster::drop_table); errors name the part that is
    /// missing.
    pub fn drop_ordered(&self, name: &str) -> Result<Freed, OpenError> {
        let [inner, leaves, values] = [INNER, LEAVES, VALUES].map(|what| part(name, what));
        let mut names = vec![leaves, inner];
        names.extend(Some(values).filter(|values| self.has_table(values)));
        self.drop_together(&names)
    }

    /// Gives an ordered table another name, with all the tables that it consists of, in one change
    /// of the catalog. Otherwise like [`rename_table`](Cluster::rename_table); errors name the part
    /// that is missing.
    pub fn rename_ordered(&self, from: &str, to: &str) -> Result<(), OpenError> {
        let parts = [INNER, LEAVES, VALUES].map(|what| (part(from, what), part(to, what)));
        let is_wanted = |(from, _): &(String, String)| *from != part(from, VALUES) || self.has_table(from);
        self.rename_together(parts.into_iter().filter(is_wanted).collect())
    }
}
