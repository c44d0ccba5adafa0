//! How to create an ordered table.

use super::parts::Form;
use crate::dynamic::DynSchema;
use crate::key::Key;
use crate::record::Record;
use remora_fabric::setters;

/// Where the nodes of an ordered table lie, and so how a client finds a leaf that it remembers
/// nothing of. The three designs are those of Ziegler et al., SIGMOD 2019. Whatever finds a leaf,
/// it is read, locked and validated as a record like any other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Design {
    /// Fine-grained, one-sided: all nodes are spread over the memory nodes, and clients READ their
    /// way from the root.
    #[default]
    Fine,
    /// Inner nodes lie at one memory node (counted from 0), whose CPU says which leaf it is; leaves
    /// are spread, and READ.
    Hybrid(u16),
    /// Coarse-grained, two-sided: the whole table lies at one memory node, whose CPU finds the leaf
    /// and sends it; for a lookup, only the key's value. Use several such tables, one for each
    /// range of keys, to spread the load.
    Coarse(u16),
}

/// How to create an ordered table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OrderedOptions {
    /// Keys that it has room for at first, also if leaves are half full. After many deletes, leaves
    /// can have fewer keys.
    pub rows: u64,
    /// Copies of each record; the cluster's default if `None`.
    pub replicas: Option<u8>,
    /// Where its nodes lie. Under FORD, whose memory nodes' CPUs do nothing, clients READ their way
    /// in any case.
    pub design: Design,
    /// Loaded rows share no leaf if their keys differ in their first `apart` bytes. Use it if new
    /// rows come last among the rows with an equal prefix. Each such group then grows at an end of
    /// its own, and leaves become full.
    pub apart: usize,
    /// Entries of a leaf whose keys come first; fewer than 4 count as 4. A lookup then READs the
    /// keys of a leaf and one value, in two round trips, instead of the whole leaf in one: fewer
    /// bytes, if values are large or leaves have many. Such a leaf has at most 3,040 bytes. `None`:
    /// leaves of 1 KiB, which a lookup READs whole, as it does in tables without values.
    pub keys_first: Option<u16>,
    /// Bytes of all values together that it has room for at first, if they have different lengths;
    /// `rows` of the longest ones if `None`. Values that lie in leaves, and those of typed tables,
    /// have one length.
    pub bytes: Option<u64>,
    /// Whether each of its tables grows before it is full, while transactions go on. In a table
    /// that does not, inserts that find no room fail with
    /// [`Limit::TableFull`](crate::Limit::TableFull), until
    /// [`Cluster::grow_table`](crate::Cluster::grow_table) is called.
    pub grows: bool,
}

setters!(OrderedOptions { replicas: u8, design: Design, apart: usize, keys_first: u16, bytes: u64, grows: bool });

impl OrderedOptions {
    /// A table of `rows` keys, which grows when it needs more, otherwise with the cluster's
    /// defaults.
    #[must_use]
    pub fn for_rows(rows: u64) -> OrderedOptions {
        OrderedOptions {
            rows,
            replicas: None,
            design: Design::Fine,
            apart: 0,
            keys_first: None,
            bytes: None,
            grows: true,
        }
    }

    /// The tables that it will consist of, for keys and values of these types: rows, bytes of a
    /// key, and bytes of a value of each. From that follows how much memory it needs.
    #[must_use]
    pub fn tables<K: Key, V: Record>(&self) -> Vec<(u64, usize, usize)> {
        let Ok(form) = Form::of(&DynSchema::of::<K, V>(), self.keys_first) else { return Vec::new() };
        let [inner, leaves] = self.nodes(&form);
        let [inner, leaves] =
            [(inner, 1), (leaves, 0)].map(|(rows, level)| (rows, size_of::<u64>(), form.shape.record_bytes(level)));
        let values = form.values.map(|_| (self.rows, K::BYTES, V::BYTES));
        [inner, leaves].into_iter().chain(values).collect()
    }

    /// Rows of the tables of inner nodes and of leaves.
    pub(super) fn nodes(&self, form: &Form) -> [u64; 2] {
        let (leaves, inner) = form.shape.nodes_for(self.rows);
        // Some that come while others go.
        [inner, leaves].map(|rows| rows.saturating_add(16))
    }
}
