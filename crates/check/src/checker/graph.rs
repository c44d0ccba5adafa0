//! The graph of which transaction must come before which. Its nodes are transactions. Real time
//! needs no edge for each pair.
//!
//! Real time is a chain of auxiliary nodes, one for each run of ends that no start interrupts. A
//! transaction that ended points to the node of its run. A run points to the next run, and to the
//! transactions that started before the next run. These edges are computed, not stored.

use super::NONE;
use crate::history::NO_END;

/// The reason why one transaction (the first) must come before another (the second).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EdgeKind {
    /// The second wrote the next version.
    WriteWrite,
    /// The second read what the first wrote.
    WriteRead,
    /// The second overwrote what the first read.
    ReadWrite,
    /// The second found the key absent, as the first left it or later.
    WriteAbsent,
    /// The first found the key absent, and the second wrote it again.
    AbsentWrite,
    /// The second's scan did not return the key, which the first left absent, or which was absent
    /// later.
    WriteScan,
    /// The first's scan did not return the key, and the second wrote it again.
    ScanWrite,
    /// The first ended before the second started.
    RealTime,
}

impl EdgeKind {
    const STORED: [Self; 7] = [
        Self::WriteWrite,
        Self::WriteRead,
        Self::ReadWrite,
        Self::WriteAbsent,
        Self::AbsentWrite,
        Self::WriteScan,
        Self::ScanWrite,
    ];
}

const KEY_BITS: u32 = 28;
const _: () = assert!(crate::history::KEYS_MAX <= 1 << KEY_BITS, "a key and an edge's kind share 32 bits");

/// The kind and the key of an edge in 32 bits, because there may be ten edges for each transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(u32);

impl Label {
    const REAL_TIME: Self = Self(u32::MAX);

    fn new(kind: EdgeKind, key: u32) -> Self {
        Self((kind as u32) << KEY_BITS | key)
    }

    pub(super) fn kind(self) -> EdgeKind {
        EdgeKind::STORED.get((self.0 >> KEY_BITS) as usize).copied().unwrap_or(EdgeKind::RealTime)
    }

    /// Returns the key of the edge. It has no meaning for real time.
    pub(super) fn key(self) -> u32 {
        self.0 & ((1 << KEY_BITS) - 1)
    }
}

/// An edge: one transaction must come before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) label: Label,
}

impl Edge {
    pub(super) fn new(from: u32, to: u32, kind: EdgeKind, key: u32) -> Self {
        Self { from, to, label: Label::new(kind, key) }
    }

    pub(super) fn real_time(from: u32, to: u32) -> Self {
        Self { from, to, label: Label::REAL_TIME }
    }
}

/// The times at which a node started and ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

impl Timing {
    /// The timing of a node that real time says nothing about.
    pub(super) const NEVER: Self = Self { start_ns: 0, end_ns: NO_END };
}

/// Which edges a search follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follow {
    /// The edges from reads and writes.
    Data,
    /// The edges from reads and writes, and from real time.
    All,
}

/// The graph. Nodes 0..n are transactions and stand-ins; from n on they are the auxiliary nodes of
/// real time.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) timings: Vec<Timing>,
    /// For each node, where its edges begin, and one more place for the end.
    offsets: Vec<usize>,
    targets: Vec<u32>,
    labels: Vec<Label>,
    /// For each node, the auxiliary node that it points to, or [`NONE`].
    run_of: Vec<u32>,
    /// Nodes in the order in which they started; and for each run, where the nodes begin that
    /// started after it.
    by_start: Vec<u32>,
    run_offsets: Vec<usize>,
}

impl Graph {
    pub(super) fn build(timings: Vec<Timing>, edges: Vec<Edge>) -> Self {
        let count = timings.len();
        let mut offsets = vec![0_usize; count + 1];
        for edge in &edges {
            offsets[edge.from as usize + 1] += 1;
        }
        for node in 1..offsets.len() {
            offsets[node] += offsets[node - 1];
        }
        let mut next = offsets.clone();
        let mut targets = vec![0; edges.len()];
        let mut labels = vec![Label::REAL_TIME; edges.len()];
        for edge in edges {
            let at = &mut next[edge.from as usize];
            targets[*at] = edge.to;
            labels[*at] = edge.label;
            *at += 1;
        }
        let mut graph = Self {
            timings,
            offsets,
            targets,
            labels,
            run_of: vec![NONE; count],
            by_start: Vec::new(),
            run_offsets: Vec::new(),
        };
        graph.chain_real_time();
        graph
    }

    fn chain_real_time(&mut self) {
        let timings = &self.timings;
        let nodes = 0..timings.len() as u32;
        let mut by_end: Vec<u32> = nodes.clone().filter(|node| timings[*node as usize].end_ns != NO_END).collect();
        by_end.sort_unstable_by_key(|node| timings[*node as usize].end_ns);
        // A node that starts at 0 cannot have any node before it. So stand-ins, whose start is not
        // known, are left out.
        let mut by_start: Vec<u32> = nodes.filter(|node| timings[*node as usize].start_ns != 0).collect();
        by_start.sort_unstable_by_key(|node| timings[*node as usize].start_ns);
        let mut ended = by_end.into_iter().peekable();
        for (number, node) in by_start.iter().enumerate() {
            let start_ns = timings[*node as usize].start_ns;
            let run = (timings.len() + self.run_offsets.len()) as u32;
            let mut began = false;
            // The comparison is strict: a transaction that ends at the instant at which another
            // starts may be concurrent with it.
            while let Some(earlier) = ended.next_if(|earlier| timings[*earlier as usize].end_ns < start_ns) {
                self.run_of[earlier as usize] = run;
                began = true;
            }
            if began {
                self.run_offsets.push(number);
            }
        }
        self.run_offsets.push(by_start.len());
        self.by_start = by_start;
    }

    /// Returns the number of transactions and stand-ins.
    pub(super) fn transaction_count(&self) -> usize {
        self.timings.len()
    }

    pub(super) fn node_count(&self) -> usize {
        self.timings.len() + self.run_offsets.len() - 1
    }

    pub(super) fn is_transaction(&self, node: u32) -> bool {
        (node as usize) < self.timings.len()
    }

    /// Returns the stored edges out of a node.
    pub(super) fn data_edges(&self, from: u32) -> impl Iterator<Item = Edge> + '_ {
        let range = self.offsets[from as usize]..self.offsets[from as usize + 1];
        range.map(move |at| Edge { from, to: self.targets[at], label: self.labels[at] })
    }

    /// Returns the edge out of a node that has this number. Numbers count from 0 without gaps.
    pub(super) fn successor(&self, node: u32, number: usize, follow: Follow) -> Option<(u32, Label)> {
        let count = self.timings.len();
        if (node as usize) < count {
            let at = self.offsets[node as usize] + number;
            let end = self.offsets[node as usize + 1];
            if at < end {
                return Some((self.targets[at], self.labels[at]));
            }
            let run = self.run_of[node as usize];
            return (at == end && follow == Follow::All && run != NONE).then_some((run, Label::REAL_TIME));
        }
        let run = node as usize - count;
        let is_last = run + 2 == self.run_offsets.len();
        if number == 0 && !is_last {
            return Some((node + 1, Label::REAL_TIME));
        }
        let at = self.run_offsets[run] + number - usize::from(!is_last);
        (at < self.run_offsets[run + 1]).then(|| (self.by_start[at], Label::REAL_TIME))
    }
}
