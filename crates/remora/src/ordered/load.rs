//! Builds a tree from rows in order, and looks whether one is as it should be.

use std::collections::BTreeMap;
use std::ops::Deref;

use remora_index::btree::{Damaged, Image, Node, ROOT, Shape};

/// The bytes of a key, and of the value that lies in the leaf.
pub(super) type Row = (Vec<u8>, Vec<u8>);

/// A tree that is built from the bottom: an iterator of its leaves, each with its id, and then
/// [`Builder::inner`].
pub(super) struct Builder<'r> {
    shape: Shape,
    /// Keys that differ in their first `apart` bytes share no leaf.
    apart: usize,
    rows: &'r mut dyn Iterator<Item = Row>,
    /// The next row, which says where a leaf ends.
    ahead: Option<Row>,
    /// Low fences and ids of the leaves so far.
    leaves: Vec<(Vec<u8>, u64)>,
    pub(super) loaded: u64,
    /// The key that is not behind the one before it: nothing comes after that.
    pub(super) unsorted: Option<Vec<u8>>,
}

impl<'r> Builder<'r> {
    pub(super) fn new(shape: Shape, apart: usize, rows: &'r mut dyn Iterator<Item = Row>) -> Builder<'r> {
        let (ahead, apart) = (rows.next(), apart.min(shape.key_bytes()));
        Builder { shape, apart, rows, ahead, leaves: Vec::new(), loaded: 0, unsorted: None }
    }

    /// Entries that a node is given: nobody wants to split all of them soon.
    fn fill(&self, level: u16) -> usize {
        (self.shape.capacity(level) * 7 / 10).max(1)
    }

    fn leaf(&mut self) -> (u64, Image) {
        let first = self.leaves.is_empty();
        let mut low = self.shape.least();
        if let (false, Some((key, _))) = (first, &self.ahead) {
            low.clone_from(key);
        }
        let mut image = Image::new();
        let mut leaf = Node::create(self.shape, &mut image, 0, &low);
        for at in 0..self.fill(0) {
            let Some((key, value)) = self.ahead.take() else { break };
            leaf.insert(at, &key, &value);
            self.loaded += 1;
            self.ahead = self.rows.next();
            if let Some((next, _)) = self.ahead.take_if(|(next, _)| *next <= key) {
                self.unsorted = Some(next);
            }
            if self.ahead.as_ref().is_some_and(|(next, _)| next[..self.apart] != key[..self.apart]) {
                break;
            }
        }
        // No node has id 0 to its right: that says that there is none.
        let id = self.leaves.len() as u64 + 1;
        if let Some((high, _)) = &self.ahead {
            leaf.end(Some(high), id + 1);
        }
        self.leaves.push((low, id));
        (id, image)
    }

    /// The inner nodes, once all leaves are there.
    pub(super) fn inner(self) -> Vec<(u64, Image)> {
        let (mut nodes, mut last_id) = (Vec::new(), ROOT);
        let fill = |level| self.fill(level);
        let mut below = self.leaves.clone();
        for level in 1.. {
            let mut here = Vec::new();
            let mut groups = below.chunks(fill(level)).peekable();
            while let Some(group) = groups.next() {
                let next = groups.peek();
                let id = if here.is_empty() && next.is_none() { ROOT } else { last_id + 1 };
                last_id = id;
                let mut image = Image::new();
                let mut node = Node::create(self.shape, &mut image, level, &group[0].0);
                group.iter().for_each(|(low, child)| node.insert_child(low, *child));
                if let Some(next) = next {
                    node.end(Some(&next[0].0), id + 1);
                }
                here.push((group[0].0.clone(), id));
                nodes.push((id, image));
            }
            below = here;
            if below.len() == 1 {
                break;
            }
        }
        nodes
    }
}

impl Iterator for Builder<'_> {
    type Item = (u64, Image);

    fn next(&mut self) -> Option<(u64, Image)> {
        let more = self.unsorted.is_none() && (self.ahead.is_some() || self.leaves.is_empty());
        more.then(|| self.leaf())
    }
}

/// What there is in a tree.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeInspection {
    /// Keys.
    pub rows: u64,
    /// Leaves.
    pub leaves: u64,
    /// Leaves without entries.
    pub empty_leaves: u64,
    /// Nodes that are no leaves.
    pub inner_nodes: u64,
    /// Levels: what a lookup reads that knows nothing.
    pub levels: u16,
    /// The first thing that is not as it should be.
    pub fault: Option<String>,
}

/// Looks at all nodes of a tree: whether they are reached from the root, each once; whether the
/// fences of each level follow one upon the other from the least key on, without end, and links
/// lead along them; and what [`Node::check`] says of each.
pub(super) fn inspect(shape: Shape, mut nodes: Nodes) -> TreeInspection {
    let mut found = TreeInspection::default();
    let unreached = |nodes: Nodes| nodes.leaves.into_keys().chain(nodes.inner.into_keys()).collect::<Vec<_>>();
    if let Err(fault) = found.walk(shape, &mut nodes) {
        found.fault = Some(fault);
    } else if let unreached = unreached(nodes)
        && let Some(id) = unreached.first()
    {
        found.fault = Some(format!("{} nodes are not reached, {id:#x} is one", unreached.len()));
    }
    found
}

/// All nodes of a tree by their ids.
pub(super) struct Nodes {
    pub(super) inner: BTreeMap<u64, Image>,
    pub(super) leaves: BTreeMap<u64, Image>,
}

impl TreeInspection {
    fn walk(&mut self, shape: Shape, nodes: &mut Nodes) -> Result<(), String> {
        let mut level = vec![(ROOT, shape.least())];
        let mut of_level: Option<u16> = None;
        while !level.is_empty() {
            let nodes = if of_level == Some(0) { &mut nodes.leaves } else { &mut nodes.inner };
            self.levels += 1;
            let mut below = Vec::new();
            for (index, (id, low)) in level.iter().enumerate() {
                let image = nodes.remove(id).ok_or_else(|| format!("node {id:#x} is not there"))?;
                let fault = |what: String| format!("node {id:#x}: {what}");
                let node = Node::new(shape, &image[..]).map_err(|damaged: Damaged| fault(damaged.to_string()))?;
                node.check().map_err(|damaged| fault(damaged.to_string()))?;
                if of_level.map_or(node.level() == 0, |expected| expected != node.level()) {
                    return Err(fault(format!("its level is {}", node.level())));
                }
                of_level = Some(node.level());
                let (next, high) = level.get(index + 1).map_or((0, None), |(id, low)| (*id, Some(&low[..])));
                if *node.low() != low[..] || node.high().as_deref() != high {
                    return Err(fault("its place".to_owned()));
                }
                if node.next() != next {
                    return Err(fault(format!("it is linked to {:#x}", node.next())));
                }
                self.count(&node);
                if node.level() > 0 {
                    below.extend((0..node.count()).map(|at| (node.child(at), node.key(at).into_owned())));
                }
            }
            (level, of_level) = (below, of_level.and_then(|level| level.checked_sub(1)));
        }
        Ok(())
    }

    fn count<B: Deref<Target = [u8]>>(&mut self, node: &Node<B>) {
        if node.level() > 0 {
            self.inner_nodes += 1;
            return;
        }
        self.leaves += 1;
        self.empty_leaves += u64::from(node.count() == 0);
        self.rows += node.count() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(rows: u64) -> Nodes {
        let mut rows = (0..rows).map(|key| ((3 * key).to_be_bytes().to_vec(), key.to_le_bytes().to_vec()));
        let mut builder = Builder::new(shape(), 0, &mut rows);
        Nodes { leaves: builder.by_ref().collect(), inner: builder.inner().into_iter().collect() }
    }

    fn shape() -> Shape {
        Shape::new(8, 8).unwrap()
    }

    #[test]
    fn what_is_built_is_as_it_should_be() {
        // 42 entries a node.
        for (rows, leaves, inner_nodes, levels) in [
            (0, 1, 1, 2),
            (1, 1, 1, 2),
            (42, 1, 1, 2),
            (43, 2, 1, 2),
            (42 * 42 + 1, 43, 2 + 1, 3),
            (90_000, 2143, 52 + 2 + 1, 4),
        ] {
            let found = inspect(shape(), built(rows));
            let empty_leaves = u64::from(rows == 0);
            assert_eq!(found, TreeInspection { rows, leaves, empty_leaves, inner_nodes, levels, fault: None });
        }
        // Three groups of 100, by their first seven bytes: each begins a leaf.
        let mut rows = (0..300_u64).map(|key| ((key / 100 * 256 + key % 100).to_be_bytes().to_vec(), vec![0; 8]));
        let mut builder = Builder::new(shape(), 7, &mut rows);
        let leaves: BTreeMap<_, _> = builder.by_ref().collect();
        let low = |image: &Image| Node::new(shape(), &image[..]).unwrap().low()[6..].to_vec();
        let lows: Vec<_> = leaves.values().map(low).collect();
        assert_eq!(lows, [[0, 0], [0, 42], [0, 84], [1, 0], [1, 42], [1, 84], [2, 0], [2, 42], [2, 84]]);
        assert_eq!(inspect(shape(), Nodes { leaves, inner: builder.inner().into_iter().collect() }).fault, None);
        let mut rows = [3, 4, 4].map(|key| (vec![key; 8], vec![0; 8])).into_iter();
        let mut unsorted = Builder::new(shape(), 0, &mut rows);
        assert!(unsorted.by_ref().count() <= 1);
        assert_eq!(unsorted.unsorted, Some(vec![4; 8]));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let fault = |change: &dyn Fn(&mut Nodes)| {
            let mut nodes = built(42 * 42 + 1);
            change(&mut nodes);
            inspect(shape(), nodes).fault.unwrap()
        };
        let change = |image: Option<&mut Image>, change: &dyn Fn(&mut Node<&mut [u8]>)| {
            change(&mut Node::new(shape(), &mut image.unwrap()[..]).unwrap());
        };
        assert!(fault(&|nodes| nodes.inner.retain(|id, _| *id != ROOT)).contains("is not there"));
        assert!(fault(&|nodes| nodes.leaves.retain(|id, _| *id != 7)).contains("is not there"));
        assert!(fault(&|nodes| nodes.leaves.extend([(77, vec![0; shape().bytes_of(0)])])).contains("not reached"));
        assert!(fault(&|nodes| nodes.inner.extend([(77, vec![0; shape().bytes_of(1)])])).contains("not reached"));
        assert!(
            fault(&|nodes| change(nodes.leaves.get_mut(&3), &|leaf| leaf.end(Some(&[9; 8]), 4))).contains("its place")
        );
        assert!(
            fault(&|nodes| change(nodes.leaves.get_mut(&3), &|leaf| {
                let high = leaf.high().unwrap().to_vec();
                leaf.end(Some(&high), 5);
            }))
            .contains("linked")
        );
        assert!(fault(&|nodes| change(nodes.inner.get_mut(&1), &|inner| inner.remove(1))).contains("its place"));
    }
}
