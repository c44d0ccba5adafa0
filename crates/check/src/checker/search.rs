//! The search for cycles: it finds strongly connected components without recursion, and a short
//! cycle in each.
//!
//! A component may be large. One backward edge ties together everything that real time puts between
//! its ends. But a person needs only the two or three transactions that cannot be put in order. So
//! the search looks for the shortest cycle within a bounded effort, and first for cycles that need
//! no real time.

use super::NONE;
use super::graph::{Edge, EdgeKind, Follow, Graph, Label};
use std::collections::VecDeque;

/// The number of knots that a report explains. A person repairs the first, and runs the check
/// again.
const KNOTS_MAX: usize = 20;

/// The number of edges that the search for a shorter cycle looks at in one knot.
const EFFORT_MAX: u64 = 20_000_000;

/// A knot of transactions that cannot be put in order.
#[derive(Debug)]
pub(super) struct Knot {
    /// A short cycle in the knot.
    pub(super) cycle: Vec<Edge>,
    /// The number of transactions that are on cycles with these.
    pub(super) size: usize,
}

/// Returns the knots up to a limit, the smallest first, and the number of further ones.
pub(super) fn knots(graph: &Graph) -> (Vec<Knot>, usize) {
    let mut all = components(graph, Follow::All);
    if all.is_empty() {
        return (Vec::new(), 0);
    }
    let mut data = components(graph, Follow::Data);
    let mut explained = vec![false; graph.node_count()];
    for node in data.iter().flatten() {
        explained[*node as usize] = true;
    }
    data.sort_by_key(Vec::len);
    all.sort_by_key(Vec::len);
    // A knot that exists without real time needs no second explanation with it. But a stale read
    // over a long time ties everything that happened meanwhile into its knot. It must not be hidden
    // by what the knot contains.
    let mut search = Search::new(graph);
    let mut found: Vec<Knot> = Vec::new();
    let mut omitted = data.len().saturating_sub(KNOTS_MAX);
    let size = |members: &[u32]| members.iter().filter(|node| graph.is_transaction(**node)).count();
    for members in data.iter().take(KNOTS_MAX) {
        found.push(Knot { cycle: search.shortest(members, Follow::Data), size: size(members) });
    }
    for members in &all {
        let cycle = if members.iter().any(|node| explained[*node as usize]) {
            search.backward_edge(members, &explained)
        } else if found.len() < KNOTS_MAX {
            Some(search.shortest(members, Follow::All))
        } else {
            omitted += 1;
            None
        };
        found.extend(cycle.map(|cycle| Knot { cycle, size: size(members) }));
    }
    (found, omitted)
}

/// Returns the strongly connected components of more than one node (Tarjan's algorithm with its own
/// stack).
fn components(graph: &Graph, follow: Follow) -> Vec<Vec<u32>> {
    let count = if follow == Follow::All { graph.node_count() } else { graph.transaction_count() };
    // 0 means "not visited". The nodes of a component get `DONE` when it is complete.
    const DONE: u32 = u32::MAX;
    let mut order = vec![0_u32; count];
    let mut lowest = vec![0_u32; count];
    let mut open: Vec<u32> = Vec::new();
    let mut path: Vec<(u32, usize)> = Vec::new();
    let mut visited = 0_u32;
    let mut found = Vec::new();
    for root in 0..count as u32 {
        if order[root as usize] != 0 {
            continue;
        }
        path.push((root, 0));
        while let Some((node, number)) = path.last_mut() {
            let at = *node as usize;
            if *number == 0 {
                visited += 1;
                order[at] = visited;
                lowest[at] = visited;
                open.push(*node);
            }
            if let Some((next, _)) = graph.successor(*node, *number, follow) {
                *number += 1;
                match order[next as usize] {
                    0 => path.push((next, 0)),
                    DONE => {}
                    seen => lowest[at] = lowest[at].min(seen),
                }
                continue;
            }
            let node = *node;
            path.pop();
            if let Some((parent, _)) = path.last() {
                lowest[*parent as usize] = lowest[*parent as usize].min(lowest[at]);
            }
            if lowest[at] == order[at] {
                let first = open.iter().rposition(|member| *member == node).unwrap_or(0);
                for member in &open[first..] {
                    order[*member as usize] = DONE;
                }
                if open.len() - first > 1 {
                    found.push(open[first..].to_vec());
                }
                open.truncate(first);
            }
        }
    }
    found
}

/// A search inside one component, with marks that are used again in the next search.
struct Search<'g> {
    graph: &'g Graph,
    /// For each node: the component that is being searched, or another one.
    knot_of: Vec<u32>,
    knot: u32,
    /// For each node: the search in which it was last reached, the distance, and the node before
    /// it.
    reached: Vec<u32>,
    distance: Vec<u32>,
    parent: Vec<(u32, Label)>,
    round: u32,
    queue: VecDeque<u32>,
    effort: u64,
}

impl<'g> Search<'g> {
    fn new(graph: &'g Graph) -> Self {
        let count = graph.node_count();
        Self {
            graph,
            knot_of: vec![0; count],
            knot: 0,
            reached: vec![0; count],
            distance: vec![0; count],
            parent: vec![(NONE, Edge::real_time(0, 0).label); count],
            round: 0,
            queue: VecDeque::new(),
            effort: 0,
        }
    }

    /// Returns a cycle inside the component, the shortest that the effort allows.
    fn shortest(&mut self, knot: &[u32], follow: Follow) -> Vec<Edge> {
        self.knot += 1;
        for node in knot {
            self.knot_of[*node as usize] = self.knot;
        }
        if follow == Follow::All
            && let Some(cycle) = self.backward_edge(knot, &[])
        {
            return cycle;
        }
        self.effort = 0;
        let transactions = || knot.iter().copied().filter(|node| self.graph.is_transaction(*node));
        let sources: Vec<u32> = transactions().collect();
        for limit in [2, 3, 4, 8] {
            for source in &sources {
                if let Some(cycle) = self.cycle_through(*source, follow, limit) {
                    return cycle;
                }
                if self.effort > EFFORT_MAX {
                    break;
                }
            }
        }
        // Without a limit every node of a component is on a cycle.
        sources.first().and_then(|source| self.cycle_through(*source, follow, u32::MAX)).unwrap_or_default()
    }

    /// Returns a cycle of two edges: one edge leads to a transaction that ended before the edge's
    /// own transaction started. In a large knot this finds at once a cycle for which a search would
    /// go through all of real time. Edges between two nodes that are explained already do not
    /// count.
    fn backward_edge(&self, knot: &[u32], explained: &[bool]) -> Option<Vec<Edge>> {
        let timings = &self.graph.timings;
        let members = knot.iter().filter(|node| self.graph.is_transaction(**node));
        let edges = members.flat_map(|node| self.graph.data_edges(*node));
        let is_explained = |node: u32| explained.get(node as usize).copied().unwrap_or(false);
        let backward = edges
            .filter(|edge| timings[edge.to as usize].end_ns < timings[edge.from as usize].start_ns)
            .filter(|edge| !is_explained(edge.from) || !is_explained(edge.to));
        // A stale read explains more than the write order that follows from it.
        let edge = backward.min_by_key(|edge| match edge.label.kind() {
            EdgeKind::ReadWrite | EdgeKind::AbsentWrite | EdgeKind::ScanWrite => 0,
            EdgeKind::WriteRead | EdgeKind::WriteAbsent | EdgeKind::WriteScan => 1,
            EdgeKind::WriteWrite | EdgeKind::RealTime => 2,
        })?;
        Some(vec![edge, Edge::real_time(edge.to, edge.from)])
    }

    /// Returns a shortest cycle through `source` of at most `limit` edges. Auxiliary edges are not
    /// counted.
    fn cycle_through(&mut self, source: u32, follow: Follow, limit: u32) -> Option<Vec<Edge>> {
        self.round += 1;
        self.queue.clear();
        self.reach(source, 0, (NONE, Edge::real_time(0, 0).label));
        self.queue.push_back(source);
        // The length, the last node and the last edge of the best cycle so far.
        let mut best: Option<(u32, u32, Label)> = None;
        while let Some(node) = self.queue.pop_front() {
            let distance = self.distance[node as usize];
            if best.is_some_and(|best| distance >= best.0) {
                break;
            }
            // At the limit, only auxiliary nodes go on, because their edges cost nothing.
            if distance >= limit && self.graph.is_transaction(node) {
                continue;
            }
            // An edge out of a transaction costs one, whether it leads directly to another
            // transaction or into real time.
            let cost = u32::from(self.graph.is_transaction(node));
            let mut number = 0;
            while let Some((next, label)) = self.graph.successor(node, number, follow) {
                number += 1;
                self.effort += 1;
                if self.knot_of[next as usize] != self.knot {
                    continue;
                }
                let length = distance + cost;
                if next == source {
                    if best.is_none_or(|best| length < best.0) {
                        best = Some((length, node, label));
                    }
                } else if self.reached[next as usize] != self.round || length < self.distance[next as usize] {
                    self.reach(next, length, (node, label));
                    if cost == 0 {
                        self.queue.push_front(next);
                    } else {
                        self.queue.push_back(next);
                    }
                }
            }
        }
        let (_, last, label) = best?;
        Some(self.path_back(source, last, label))
    }

    fn reach(&mut self, node: u32, distance: u32, parent: (u32, Label)) {
        self.reached[node as usize] = self.round;
        self.distance[node as usize] = distance;
        self.parent[node as usize] = parent;
    }

    /// Returns the edges from `source` over `last` back to `source`. Paths over auxiliary nodes
    /// become real-time edges.
    fn path_back(&self, source: u32, last: u32, label: Label) -> Vec<Edge> {
        let mut edges = Vec::new();
        let (mut to, mut from, mut label) = (source, last, label);
        loop {
            if self.graph.is_transaction(from) {
                edges.push(Edge { from, to, label });
                to = from;
                if from == source {
                    break;
                }
            }
            (from, label) = self.parent[from as usize];
        }
        edges.reverse();
        edges
    }
}
