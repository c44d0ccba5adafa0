//! Reading whole ordered tables while nothing runs.

use std::collections::BTreeMap;

use remora_index::btree::Image;
use remora_txn::Inspection;

use super::load::{self, Nodes, TreeInspection};
use super::tree::Tree;
use crate::cluster::Cluster;
use crate::error::Error;
use crate::table::RawTable;

impl Cluster {
    /// Reads a whole tree while nothing runs, and shows each key and its value, in any order: that
    /// of its leaf, or the bytes of its record. Keys may have zeros behind them.
    pub(super) fn inspect_tree(
        &self,
        tree: &Tree,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(Vec<Inspection>, TreeInspection), Error> {
        let mut nodes = Nodes { inner: BTreeMap::new(), leaves: BTreeMap::new() };
        let look = |table: &RawTable, nodes: &mut BTreeMap<u64, Image>| {
            self.inspect_bytes(table.handle(), &mut |id, node| {
                if let Some(id) = id.first_chunk() {
                    nodes.insert(u64::from_be_bytes(*id), node.to_vec());
                }
            })
        };
        let mut records = vec![look(&tree.inner, &mut nodes.inner)?, look(&tree.leaves, &mut nodes.leaves)?];
        if tree.values.is_none() {
            for leaf in nodes.leaves.values().filter_map(|image| tree.node(image).ok()) {
                (0..leaf.count()).for_each(|at| visit(&leaf.key(at), leaf.value(at)));
            }
        }
        let mut found = load::inspect(tree.shape, nodes);
        if let Some(values) = &tree.values {
            let (heads, parts) = self.inspect_dyn_parts(values, visit)?;
            let there = heads.records;
            if there != found.rows {
                let keys = found.rows;
                found.fault.get_or_insert(format!("there are {there} values, and {keys} keys in leaves"));
            }
            records.push(heads);
            records.extend(parts);
        }
        Ok((records, found))
    }
}
