//! How to create an ordered table.

use remora_index::btree::NODE_BYTES;

use super::parts::{is_inline, shape};
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
    /// and sends it. For one that owns a range: a table for each range.
    Coarse(u16),
}

/// How to create an ordered table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OrderedOptions {
    /// Keys that it can hold. It has room for nodes that are half full; after many deletes they can
    /// be less.
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
}

setters!(OrderedOptions { replicas: u8, design: Design, apart: usize });

impl OrderedOptions {
    /// A table of at most `rows` keys, otherwise with the cluster's defaults.
    #[must_use]
    pub fn for_rows(rows: u64) -> OrderedOptions {
        OrderedOptions { rows, replicas: None, design: Design::Fine, apart: 0 }
    }

    /// The tables that it will consist of, for keys and values of these types: rows, bytes of a
    /// key, and bytes of a value of each. From that follows how much memory it needs.
    #[must_use]
    pub fn tables<K: Key, V: Record>(&self) -> Vec<(u64, usize, usize)> {
        let Ok(shape) = shape::<K, V>() else { return Vec::new() };
        // Some that come while others go.
        let node = |rows: u64| (rows.saturating_add(16), size_of::<u64>(), NODE_BYTES);
        let (leaves, inner) = shape.nodes_for(self.rows);
        let values = (!is_inline::<K, V>()).then_some((self.rows, K::BYTES, V::BYTES));
        [node(inner), node(leaves)].into_iter().chain(values).collect()
    }
}
