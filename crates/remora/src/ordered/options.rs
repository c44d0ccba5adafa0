//! How to create an ordered table.

use std::any::{TypeId, type_name};

use super::parts::Form;
use crate::dynamic::DynSchema;
use crate::key::Key;
use crate::record::Record;
use remora_fabric::setters;
use remora_index::IndexError;

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
    /// and sends it; for a lookup, only the key's value. [Partitions](OrderedOptions::split_at)
    /// spread the load.
    Coarse(u16),
}

/// How to create an ordered table.
#[derive(Clone, Debug)]
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
    /// Keys at which it is split into partitions, as bytes: see [`OrderedOptions::split_at`].
    pub split_at: Vec<Vec<u8>>,
    /// The type of the keys at which it is split, if they have one.
    pub(super) split_type: Option<(TypeId, &'static str)>,
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
            split_at: Vec::new(),
            split_type: None,
            grows: true,
        }
    }

    /// Splits the table into partitions: one of the keys before the first of these, and one from
    /// each of them on. The keys must ascend, and be of the table's type. Partitions stay as they
    /// are, however rows come and go.
    ///
    /// Each partition is a tree of its own. Partition `p` lies at the memory node `p` places behind
    /// the one that the [design](OrderedOptions::design) names, round about: its inner nodes, and
    /// with [`Design::Coarse`] its leaves as well. That is XStore's scale-out (Wei thesis, section
    /// 3.4.5), and the coarse-grained partitions of Ziegler et al. A table of [`Design::Fine`],
    /// whose nodes are spread anyway, is refused. Values that are [out of
    /// line](crate::Cluster::create_ordered) are spread by their keys' hashes.
    ///
    /// The room for [`rows`](OrderedOptions::rows) is divided into equal shares. A load fails with
    /// [`OpenErrorKind::Full`](crate::OpenErrorKind::Full) if a partition has many more rows than
    /// its share. Later it grows, if the table does.
    ///
    /// ```
    /// use remora::{Cluster, Design, OrderedOptions};
    /// # let cluster = Cluster::embedded().nodes(3).open()?;
    /// let options = OrderedOptions::for_rows(3000).design(Design::Coarse(0));
    /// let options = options.split_at([1000_u64, 2000]);
    /// let orders = cluster.create_ordered::<u64, u64>("orders", options)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn split_at<K: Key>(self, keys: impl IntoIterator<Item = K>) -> OrderedOptions {
        let split = self.split_at_bytes(keys.into_iter().map(|key| {
            let mut bytes = vec![0; K::BYTES];
            key.encode(&mut bytes);
            bytes
        }));
        OrderedOptions { split_type: Some((TypeId::of::<K>(), type_name::<K>())), ..split }
    }

    /// Splits a table of bytes ([`DynOrdered`](crate::DynOrdered)) into partitions: see
    /// [`OrderedOptions::split_at`].
    #[must_use]
    pub fn split_at_bytes(self, keys: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> OrderedOptions {
        OrderedOptions { split_at: keys.into_iter().map(Into::into).collect(), split_type: None, ..self }
    }

    /// Fails if the table is to be split at keys of another type: their encoding may have another
    /// order.
    pub(super) fn check_split_type<K: Key>(&self, table: &str) -> Result<(), IndexError> {
        match self.split_type {
            Some((id, found)) if id != TypeId::of::<K>() => {
                Err(IndexError::SplitType { table: table.to_owned(), found, expected: type_name::<K>() })
            }
            _ => Ok(()),
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
        // Some that come while others go, and what each partition has that is not full.
        let more = 16 + 4 * self.split_at.len() as u64;
        [inner, leaves].map(|rows| rows.saturating_add(more))
    }
}
