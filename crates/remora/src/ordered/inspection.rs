//! Reading whole ordered tables while nothing runs.

use std::collections::BTreeMap;

use remora_txn::Inspection;

use super::load::{self, Nodes, TreeInspection};
use super::parts::NodeRecord;
use super::tree::Ordered;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::key::Key;
use crate::record::Record;

impl Cluster {
    /// Reads a whole ordered table while nothing runs, and shows each of its rows, in any order:
    /// whether its records are as they should be (of inner nodes, of leaves, and of values that are
    /// out of line), and a tree. (Nodes that make no sense at all are not in the tree.)
    pub fn inspect_ordered<K: Key, V: Record>(
        &self,
        ordered: &Ordered<K, V>,
        mut visit: impl FnMut(&K, &V),
    ) -> Result<(Vec<Inspection>, TreeInspection), Error> {
        let mut nodes = Nodes { inner: BTreeMap::new(), leaves: BTreeMap::new() };
        let look = |table, nodes: &mut BTreeMap<_, _>| {
            self.inspect_keyed(table, |id, node: &NodeRecord| _ = nodes.insert(<u64 as Key>::decode(id), node.0))
        };
        let mut records = vec![look(&ordered.inner, &mut nodes.inner)?, look(&ordered.leaves, &mut nodes.leaves)?];
        if ordered.values.is_none() {
            for leaf in nodes.leaves.values().filter_map(|image| ordered.node(image).ok()) {
                let row = |at| Some((K::decode(leaf.key(at)), V::decode(leaf.value(at).get(..V::BYTES)?)));
                (0..leaf.count()).filter_map(row).for_each(|(key, value)| visit(&key, &value));
            }
        }
        let mut tree = load::inspect(ordered.shape, nodes);
        if let Some(values) = &ordered.values {
            let values = self.inspect_keyed(values, |key, value| visit(&K::decode(&key[..K::BYTES]), value))?;
            if values.records != tree.rows {
                let (there, keys) = (values.records, tree.rows);
                tree.fault.get_or_insert(format!("there are {there} values, and {keys} keys in leaves"));
            }
            records.push(values);
        }
        Ok((records, tree))
    }
}
