//! What a session knows of archives, in which clients keep the former images of records
//! ([`remora_node::Archive`]): its own client's, and those of others in which it has looked.

use std::cell::Cell;
use std::rc::Rc;

use remora_fabric::{Address, NodeId};
use remora_node::{Archive, Registration};

/// The archives of a session's client, and those of other clients that it has found.
#[derive(Debug)]
pub(crate) struct Archives {
    /// The slot of the session's client.
    slot: u64,
    /// The client's archive at each node, by the node's number.
    own: Vec<Option<Archive>>,
    /// The number of words of the client's archives, which are equally long.
    words: u64,
    /// The place that the client writes next.
    next: Rc<Cell<u64>>,
    found: Vec<Found>,
}

/// An archive of a client slot that was found at a node.
#[derive(Clone, Copy, Debug)]
struct Found {
    node: NodeId,
    slot: u64,
    /// `None` if the slot has no archive.
    archive: Option<Archive>,
    /// Whether it was found in this fetch.
    is_fresh: bool,
}

impl Archives {
    pub(crate) fn new(client: &Registration, next: Rc<Cell<u64>>) -> Archives {
        let end = client.nodes().iter().next_back().map_or(0, |last| last.0 + 1);
        let at = |node| if client.nodes().has(node) { client.archive(node) } else { None };
        let own: Vec<Option<Archive>> = (0..end).map(NodeId).map(at).collect();
        let words = own.iter().flatten().map(Archive::words).min().unwrap_or(0);
        Archives { slot: client.slot(), own, words, next, found: Vec::new() }
    }

    /// Returns the slot of the session's client.
    pub(crate) fn slot(&self) -> u64 {
        self.slot
    }

    /// Takes `words` words one behind the other. Returns their place, or `None` if the archives are
    /// too short. From now on, what has lain there is lost.
    pub(crate) fn take(&self, words: usize) -> Option<u64> {
        let words = words as u64;
        if words > self.words {
            return None;
        }
        let next = self.next.get();
        let place = if next + words > self.words { 0 } else { next };
        self.next.set(place + words);
        Some(place)
    }

    /// Returns where the client writes `words` words at a place of its archive at a node.
    pub(crate) fn own_at(&self, node: NodeId, place: u64, words: usize) -> Option<Address> {
        self.own.get(usize::from(node.0)).copied().flatten()?.image_at(place, words)
    }

    /// Begins a fetch: what was found before may have changed.
    pub(crate) fn begin_fetch(&mut self) {
        self.found.iter_mut().for_each(|found| found.is_fresh = false);
    }

    /// Notes what was found of the archive of a client slot.
    pub(crate) fn note(&mut self, node: NodeId, slot: u64, archive: Option<Archive>) {
        self.found.retain(|found| (found.node, found.slot) != (node, slot));
        self.found.push(Found { node, slot, archive, is_fresh: true });
    }

    /// Returns the archive of a client slot, if it was found. The inner `None` says that there is
    /// none.
    pub(crate) fn of(&self, node: NodeId, slot: u64) -> Option<Option<Archive>> {
        self.found.iter().find(|found| (found.node, found.slot) == (node, slot)).map(|found| found.archive)
    }

    /// Notes that an archive did not have what was looked for. Returns whether it is to be found
    /// anew, because another client may have got the slot since it was found.
    pub(crate) fn missed(&mut self, node: NodeId, slot: u64) -> bool {
        let was = self.found.len();
        self.found.retain(|found| found.is_fresh || (found.node, found.slot) != (node, slot));
        self.found.len() < was
    }
}
