//! Builds a tree from rows in order, and looks whether one is as it should be.

use std::collections::BTreeMap;
use std::ops::Deref;

use remora_index::btree::{Damaged, Image, MAP_LEVEL, Node, ROOT, Shape};

use super::partitions::Partitions;

/// The bytes of a key, and of the value that lies in the leaf.
pub(super) type Row = (Vec<u8>, Vec<u8>);

/// How a tree is built.
pub(super) struct Plan<'p> {
    pub(super) shape: Shape,
    /// Keys that differ in their first `apart` bytes share no leaf.
    pub(super) apart: usize,
    /// The least keys of all partitions but the first, in order.
    pub(super) cuts: &'p [Vec<u8>],
    /// Whether leaves lie by ranges, too.
    pub(super) with_leaves: bool,
    /// Whether a node of a level with this id can belong to a partition.
    pub(super) belongs: &'p dyn Fn(u16, u64, usize) -> bool,
}

impl Plan<'_> {
    /// The next id of a node of a level that belongs to a partition.
    fn id_behind(&self, id: u64, level: u16, partition: usize) -> u64 {
        (id + 1..).find(|id| (self.belongs)(level, *id, partition)).unwrap_or(u64::MAX)
    }
}

/// A tree that is built from the bottom: an iterator of its leaves, each with its id, and then
/// [`Builder::inner`].
pub(super) struct Builder<'r> {
    plan: Plan<'r>,
    rows: &'r mut dyn Iterator<Item = Row>,
    /// The next row, which says where a leaf ends.
    ahead: Option<Row>,
    /// Low fences and ids of the leaves so far, of each partition.
    leaves: Vec<Vec<(Vec<u8>, u64)>>,
    /// The low fence and the id of the next leaf, if there is one.
    next: Option<(Vec<u8>, u64)>,
    pub(super) loaded: u64,
    /// The key that is not behind the one before it: nothing comes after that.
    pub(super) unsorted: Option<Vec<u8>>,
}

impl<'r> Builder<'r> {
    pub(super) fn new(plan: Plan<'r>, rows: &'r mut dyn Iterator<Item = Row>) -> Builder<'r> {
        let plan = Plan { apart: plan.apart.min(plan.shape.key_bytes()), ..plan };
        let (ahead, leaves) = (rows.next(), vec![Vec::new()]);
        // No node has id 0 to its right: that says that there is none.
        let next = Some((plan.shape.least(), plan.id_behind(0, 0, 0)));
        Builder { plan, rows, ahead, leaves, next, loaded: 0, unsorted: None }
    }

    pub(super) fn shape(&self) -> Shape {
        self.plan.shape
    }

    /// Entries that a node is given: nobody wants to split all of them soon.
    fn fill(&self, level: u16) -> usize {
        (self.plan.shape.capacity(level) * 7 / 10).max(1)
    }

    fn leaf(&mut self, low: Vec<u8>, id: u64) -> (u64, Image) {
        let (apart, partition) = (self.plan.apart, self.leaves.len() - 1);
        let end = self.plan.cuts.get(partition);
        let mut image = Image::new();
        let mut leaf = Node::create(self.plan.shape, &mut image, 0, &low);
        for at in 0..self.fill(0) {
            let Some((key, value)) = self.ahead.take_if(|(key, _)| end.is_none_or(|end| &*key < end)) else { break };
            leaf.insert(at, &key, &value);
            self.loaded += 1;
            self.ahead = self.rows.next();
            if let Some((next, _)) = self.ahead.take_if(|(next, _)| *next <= key) {
                self.unsorted = Some(next);
            }
            if self.ahead.as_ref().is_some_and(|(next, _)| next[..apart] != key[..apart]) {
                break;
            }
        }
        self.leaves[partition].push((low, id));
        match (&self.ahead, end) {
            (Some((high, _)), _) if end.is_none_or(|end| high < end) => {
                let next = self.plan.id_behind(id, 0, partition);
                leaf.end(Some(high), next);
                self.next = Some((high.clone(), next));
            }
            (_, Some(end)) => {
                leaf.end(Some(end), 0);
                self.leaves.push(Vec::new());
                self.next = Some((end.clone(), self.plan.id_behind(id, 0, partition + 1)));
            }
            _ => {}
        }
        (id, image)
    }

    /// The inner nodes, once all leaves are there, and where the trees begin.
    pub(super) fn inner(self) -> (Vec<(u64, Image)>, Partitions) {
        let (mut nodes, mut last_id) = (Vec::new(), ROOT);
        let mut starts = Vec::new();
        for (partition, leaves) in self.leaves.iter().enumerate() {
            let (mut below, end) = (leaves.clone(), self.plan.cuts.get(partition));
            for level in 1.. {
                below = self.level(level, (partition, end), &below, &mut last_id, &mut nodes);
                if below.len() == 1 {
                    break;
                }
            }
            starts.extend(below);
        }
        let with_leaves = self.plan.with_leaves;
        let is_one = self.plan.cuts.is_empty();
        (nodes, if is_one { Partitions::One } else { Partitions::Several { starts, with_leaves } })
    }

    /// Builds the nodes of a level of a partition above others. Returns their low fences and ids.
    fn level(
        &self,
        level: u16,
        (partition, end): (usize, Option<&Vec<u8>>),
        below: &[(Vec<u8>, u64)],
        last_id: &mut u64,
        nodes: &mut Vec<(u64, Image)>,
    ) -> Vec<(Vec<u8>, u64)> {
        let mut here = Vec::new();
        let mut groups = below.chunks(self.fill(level)).peekable();
        while let Some(group) = groups.next() {
            let next = groups.peek();
            let is_only_root = here.is_empty() && next.is_none() && self.plan.cuts.is_empty();
            let id = if is_only_root { ROOT } else { self.plan.id_behind(*last_id, level, partition) };
            *last_id = id;
            let mut image = Image::new();
            let mut node = Node::create(self.plan.shape, &mut image, level, &group[0].0);
            group.iter().for_each(|(low, child)| node.insert_child(low, *child));
            match (next, end) {
                (Some(next), _) => node.end(Some(&next[0].0), self.plan.id_behind(id, level, partition)),
                (None, Some(end)) => node.end(Some(end), 0),
                (None, None) => {}
            }
            here.push((group[0].0.clone(), id));
            nodes.push((id, image));
        }
        here
    }
}

impl Iterator for Builder<'_> {
    type Item = (u64, Image);

    fn next(&mut self) -> Option<(u64, Image)> {
        let (low, id) = self.next.take().filter(|_| self.unsorted.is_none())?;
        Some(self.leaf(low, id))
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
    /// Partitions; 1 if the table is not split.
    pub partitions: u64,
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
        let map = nodes.inner.get(&ROOT).and_then(|image| Node::new(shape, image.clone()).ok());
        let Some(map) = map.filter(|node| node.level() == MAP_LEVEL) else {
            self.partitions = 1;
            self.levels = self.walk_tree(shape, nodes, (ROOT, shape.least(), None))?;
            return Ok(());
        };
        map.check().map_err(|damaged| format!("the map of the partitions: {damaged}"))?;
        nodes.inner.remove(&ROOT);
        self.inner_nodes += 1;
        self.partitions = map.count() as u64;
        for at in 0..map.count() {
            let high = (at + 1 < map.count()).then(|| map.key(at + 1));
            let levels = self.walk_tree(shape, nodes, (map.child(at), map.key(at).into_owned(), high.as_deref()))?;
            self.levels = self.levels.max(1 + levels);
        }
        Ok(())
    }

    /// Looks at a tree from its root, which is of the keys between two fences. Returns its levels.
    fn walk_tree(
        &mut self,
        shape: Shape,
        nodes: &mut Nodes,
        (root, low, end): (u64, Vec<u8>, Option<&[u8]>),
    ) -> Result<u16, String> {
        let mut level = vec![(root, low)];
        let mut of_level: Option<u16> = None;
        let mut levels = 0;
        while !level.is_empty() {
            let nodes = if of_level == Some(0) { &mut nodes.leaves } else { &mut nodes.inner };
            levels += 1;
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
                let (next, high) = level.get(index + 1).map_or((0, end), |(id, low)| (*id, Some(&low[..])));
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
        Ok(levels)
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
        let mut builder = Builder::new(whole(0), &mut rows);
        Nodes { leaves: builder.by_ref().collect(), inner: builder.inner().0.into_iter().collect() }
    }

    fn shape() -> Shape {
        Shape::new(8, 8).unwrap()
    }

    /// One tree.
    fn whole(apart: usize) -> Plan<'static> {
        Plan { shape: shape(), apart, cuts: &[], with_leaves: false, belongs: &|_, _, _| true }
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
            assert_eq!(
                found,
                TreeInspection { rows, leaves, empty_leaves, inner_nodes, partitions: 1, levels, fault: None }
            );
        }
        // Three groups of 100, by their first seven bytes: each begins a leaf.
        let mut rows = (0..300_u64).map(|key| ((key / 100 * 256 + key % 100).to_be_bytes().to_vec(), vec![0; 8]));
        let mut builder = Builder::new(whole(7), &mut rows);
        let leaves: BTreeMap<_, _> = builder.by_ref().collect();
        let low = |image: &Image| Node::new(shape(), &image[..]).unwrap().low()[6..].to_vec();
        let lows: Vec<_> = leaves.values().map(low).collect();
        assert_eq!(lows, [[0, 0], [0, 42], [0, 84], [1, 0], [1, 42], [1, 84], [2, 0], [2, 42], [2, 84]]);
        assert_eq!(inspect(shape(), Nodes { leaves, inner: builder.inner().0.into_iter().collect() }).fault, None);
        let mut rows = [3, 4, 4].map(|key| (vec![key; 8], vec![0; 8])).into_iter();
        let mut unsorted = Builder::new(whole(0), &mut rows);
        assert!(unsorted.by_ref().count() <= 1);
        assert_eq!(unsorted.unsorted, Some(vec![4; 8]));
    }

    #[test]
    fn each_partition_is_a_tree_of_its_own() {
        let cuts = [10_u64, 3000, 3001, 90_000].map(|key| key.to_be_bytes().to_vec());
        // Nodes with these ids belong to these partitions, at level 0 and above.
        let belongs = |level: u16, id: u64, partition: usize| (id + u64::from(level.min(1))) % 5 == partition as u64;
        for rows in [0, 1, 3, 1000, 20_000_u64] {
            let mut rows_of = (0..rows).map(|key| ((3 * key).to_be_bytes().to_vec(), key.to_le_bytes().to_vec()));
            let plan = Plan { cuts: &cuts, with_leaves: true, belongs: &belongs, ..whole(0) };
            let mut builder = Builder::new(plan, &mut rows_of);
            let leaves: BTreeMap<_, _> = builder.by_ref().collect();
            let (inner, partitions) = builder.inner();
            let Partitions::Several { starts, with_leaves: true } = &partitions else { panic!("{partitions:?}") };
            assert!(starts.iter().map(|(low, _)| low).skip(1).eq(&cuts));
            let of_key = |low: &[u8]| cuts.iter().filter(|cut| &cut[..] <= low).count();
            for (level, id, image) in
                leaves.iter().map(|(id, image)| (0, *id, image)).chain(inner.iter().map(|(id, image)| (1, *id, image)))
            {
                let node = Node::new(shape(), &image[..]).unwrap();
                assert!(belongs(level, id, of_key(&node.low())), "{id}");
            }
            let map = partitions.map(shape()).unwrap().unwrap();
            let all = |inner: Vec<(u64, Image)>| inner.into_iter().chain([(ROOT, map.clone())]).collect();
            let found = inspect(shape(), Nodes { leaves: leaves.clone(), inner: all(inner.clone()) });
            assert_eq!((found.fault, found.rows, found.partitions), (None, rows, 5));
            // A partition that is not in the map, and one that ends too early.
            let mut less = Nodes { leaves: leaves.clone(), inner: all(inner.clone()) };
            Node::new(shape(), &mut less.inner.get_mut(&ROOT).unwrap()[..]).unwrap().remove(2);
            assert!(inspect(shape(), less).fault.is_some());
        }
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
