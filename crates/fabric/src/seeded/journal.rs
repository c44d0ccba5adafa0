//! The journal of a run's changes in memory. It restores memory before the next run, and tells
//! states apart without reading all memory.

use std::sync::atomic::Ordering;

use crate::address::{NodeId, RegionId};
use crate::limits::REGIONS_PER_NODE_MAX;
use crate::prng::splitmix;
use crate::shm::Memory;

/// Words that are compared at a time.
const STRIDE: usize = 64;

/// Adds a word to a fingerprint. The result depends on the order.
pub(super) fn fold(fingerprint: u64, word: u64) -> u64 {
    splitmix(fingerprint ^ splitmix(word))
}

/// The record of all changes since a beginning; see the [module](self).
pub(super) struct Journal {
    copies: Vec<Copy>,
    /// The changes as (copy, word, former value), in the order in which they were made.
    changes: Vec<(usize, usize, u64)>,
    nodes: Vec<NodeState>,
}

/// A copy of a region as it is now, word by word.
struct Copy {
    node: NodeId,
    region: RegionId,
    words: Vec<u64>,
}

/// The state of a node's memory, in two words.
#[derive(Clone, Copy, Default)]
pub(super) struct NodeState {
    /// Fingerprint of the node's words. It does not depend on the order of changes: equal memory
    /// has an equal fingerprint, however it came about.
    pub(super) fingerprint: u64,
    /// The number of words that have been changed so far.
    pub(super) changes: u64,
}

impl Journal {
    /// Begins a journal of memory as it is now. [`Journal::rewind`] restores this state.
    pub(super) fn begin(memory: &Memory) -> Journal {
        let regions = (0..memory.nodes())
            .flat_map(|node| (0..REGIONS_PER_NODE_MAX as u16).map(move |region| (NodeId(node), RegionId(region))));
        let copies = regions.filter_map(|(node, region)| {
            let words = memory.region(node, region)?.words().iter().map(|word| word.load(Ordering::Relaxed)).collect();
            Some(Copy { node, region, words })
        });
        let copies = copies.collect();
        Journal { copies, changes: Vec::new(), nodes: vec![NodeState::default(); memory.nodes().into()] }
    }

    pub(super) fn node(&self, node: NodeId) -> NodeState {
        self.nodes.get(usize::from(node.0)).copied().unwrap_or_default()
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.nodes.iter().fold(0, |all, node| fold(all, node.fingerprint))
    }

    /// Records what words of a region hold now.
    pub(super) fn note(&mut self, memory: &Memory, node: NodeId, region: RegionId, start: usize, count: usize) {
        let Some(of) = self.copies.iter().position(|copy| (copy.node, copy.region) == (node, region)) else { return };
        let Some(all) = memory.region(node, region) else { return };
        for (word, now) in all.words().iter().enumerate().skip(start).take(count) {
            self.set(of, word, now.load(Ordering::Relaxed));
        }
    }

    /// Records whatever has changed at a node. Returns the changed words as (region, word).
    pub(super) fn scan(&mut self, memory: &Memory, node: NodeId) -> Vec<(RegionId, usize)> {
        let before = self.changes.len();
        for of in (0..self.copies.len()).filter(|of| self.copies[*of].node == node).collect::<Vec<_>>() {
            let Some(all) = memory.region(node, self.copies[of].region) else { continue };
            for (number, now) in all.words().chunks(STRIDE).enumerate() {
                // Explorations spend nearly all their time here. So there is no branch for each of
                // the many words that are unchanged.
                let known = &self.copies[of].words[number * STRIDE..][..now.len()];
                let changed =
                    now.iter().zip(known).fold(0, |all, (now, known)| all | now.load(Ordering::Relaxed) ^ known);
                if changed != 0 {
                    for (word, now) in (number * STRIDE..).zip(now) {
                        self.set(of, word, now.load(Ordering::Relaxed));
                    }
                }
            }
        }
        self.changes[before..].iter().map(|(of, word, _)| (self.copies[*of].region, *word)).collect()
    }

    fn set(&mut self, of: usize, word: usize, now: u64) {
        let copy = &mut self.copies[of];
        let before = std::mem::replace(&mut copy.words[word], now);
        if before == now {
            return;
        }
        let of_word = |value| fold(splitmix((of as u64) << 48 | word as u64), value);
        let node = &mut self.nodes[usize::from(copy.node.0)];
        node.fingerprint ^= of_word(before) ^ of_word(now);
        node.changes += 1;
        self.changes.push((of, word, before));
    }

    /// Restores memory to its state at the beginning.
    pub(super) fn rewind(&mut self, memory: &Memory) {
        while let Some((of, word, before)) = self.changes.pop() {
            let copy = &mut self.copies[of];
            copy.words[word] = before;
            if let Some(region) = memory.region(copy.node, copy.region) {
                region.words()[word].store(before, Ordering::Relaxed);
            }
        }
        self.nodes.fill(NodeState::default());
    }
}
