//! The client slots of memory nodes: which clients are connected, as which incarnations, and where
//! their redo rings lie.
//!
//! A client takes one of 1024 slots, with the same number at every node, and an incarnation that is
//! never given again. The leader, which is the live node with the lowest number, decides which
//! client has a slot. At the other nodes, the slot follows the leader's.
//!
//! ```text
//! slot, 64 bytes
//! +0   incarnation  u64   0 = free; bit 63 = being taken or given back     CASed
//! +8   lanes        u64   rings in use
//! +16  rings        u64   offset of the first ring; the others follow      0 = no space taken yet
//! +24  extent       u64   bytes taken for rings; kept when the slot is free, for the next client
//! +32  archive      u64   offset of the archive
//! +40  length       u64   bytes of the archive                             0 = there is none
//! +48  ring         u64   bytes of the data of each ring
//! ```
//!
//! Behind the last ring there is room for the client's list of hot records (`hot`), and then for
//! its archive (`archive`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::limits::ROUND_BYTES_MAX;
use remora_fabric::{LINE_BYTES, Lane, NodeId, NodeSet, WORD_BYTES};

use crate::archive::Archive;
use crate::error::MemoryError;
use crate::limits::{ARCHIVE_BYTES_MAX, CLIENTS_MAX, HOT_LIST_BYTES, INCARNATIONS_MAX, RING_BYTES, RING_BYTES_MAX};
use crate::node::{self, AT_CHANGES, AT_CLIENTS, AT_INCARNATION, CLIENT_SLOT_BYTES, Superblock};
use crate::ring::{ATTEMPTS_WORD, RingSpan, RingWriter, attempt_log_at, extent_bytes};

const CHANGING: u64 = 1 << 63;
const SLOT_WORDS: usize = CLIENT_SLOT_BYTES as usize / WORD_BYTES;
const SLOTS_BYTES: usize = CLIENTS_MAX * CLIENT_SLOT_BYTES as usize;

// One round reads all slots.
const _: () = assert!(SLOTS_BYTES <= ROUND_BYTES_MAX);

/// The room that a client takes at each memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// The number of the client's lanes. Each has a ring. A client without lanes takes no room.
    pub lanes: usize,
    /// The bytes of the client's archive: at most [`ARCHIVE_BYTES_MAX`], and rounded up to whole
    /// lines.
    pub archive: u64,
    /// The bytes of each ring: from [`RING_BYTES`] to [`RING_BYTES_MAX`], and rounded up to a power
    /// of two. At small nodes, the client gets less: see [`Registration::ring_bytes`].
    pub ring: u64,
}

impl Room {
    /// Returns the room of a client without an archive.
    #[must_use]
    pub const fn without_archive(lanes: usize) -> Room {
        Room { lanes, archive: 0, ring: RING_BYTES }
    }

    /// Returns the number of bytes of it: of the rings, of the list of hot records, and of the
    /// archive.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        if self.lanes == 0 { 0 } else { self.archive_from() + self.archive_bytes() }
    }

    const fn ring_bytes(self) -> u64 {
        let bytes = if self.ring < RING_BYTES_MAX { self.ring } else { RING_BYTES_MAX };
        if bytes < RING_BYTES { RING_BYTES } else { bytes.next_power_of_two() }
    }

    /// Returns this room with rings so small that they take at most a sixteenth of a node's memory,
    /// and half of what is free there; but not smaller than [`RING_BYTES`].
    const fn at(mut self, node: &Superblock) -> Room {
        self.ring = self.ring_bytes();
        while self.ring > RING_BYTES && (self.rings_bytes() > node.bytes / 16 || self.bytes() > node.free() / 2) {
            self.ring /= 2;
        }
        self
    }

    const fn rings_bytes(self) -> u64 {
        self.lanes as u64 * extent_bytes(self.ring_bytes())
    }

    const fn archive_from(self) -> u64 {
        (self.rings_bytes() + HOT_LIST_BYTES).next_multiple_of(LINE_BYTES as u64)
    }

    const fn archive_bytes(self) -> u64 {
        let bytes = if self.archive < ARCHIVE_BYTES_MAX { self.archive } else { ARCHIVE_BYTES_MAX };
        bytes.next_multiple_of(LINE_BYTES as u64)
    }
}

impl From<usize> for Room {
    /// Returns the room of a client with these lanes, and without an archive.
    fn from(lanes: usize) -> Room {
        Room::without_archive(lanes)
    }
}

/// A connected client: its incarnation, its slot, its rings, and its archive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The incarnation of this client. It is never 0, and never given again.
    pub incarnation: u32,
    slot: u64,
    room: Room,
    nodes: NodeSet,
    /// The offset of the client's first ring at each node.
    rings: BTreeMap<NodeId, u64>,
    /// The words of the logs of attempts of the client's lanes at each node, as the last client of
    /// the slot has left them.
    attempts: BTreeMap<NodeId, Vec<u64>>,
}

impl Registration {
    /// Connects a client that takes this room, which may be only a number of lanes. Gives it an
    /// incarnation, a slot, and the room at every node.
    pub async fn connect(lane: &Lane, nodes: NodeSet, room: impl Into<Room>) -> Result<Registration, MemoryError> {
        let incarnation = come(lane, nodes).await?;
        Registration::connect_as(lane, nodes, incarnation, room).await
    }

    /// Connects a client that already has an incarnation, and that has announced it. So a recoverer
    /// knows of the client wherever in this function it dies.
    ///
    /// `lane` must belong to this client. Then the client, once it is revoked, can neither take a
    /// slot nor empty rings that another client may have by then.
    pub async fn connect_as(
        lane: &Lane,
        nodes: NodeSet,
        incarnation: u32,
        room: impl Into<Room>,
    ) -> Result<Registration, MemoryError> {
        let (leader, mut room) = (nodes.leader(), room.into());
        if room.ring_bytes() > RING_BYTES {
            for node in nodes.iter() {
                room = room.at(&node::superblock(lane, node).await?);
            }
        }
        let slot = take_slot(lane, leader, u64::from(incarnation), room.bytes()).await?;
        let (mut rings, mut attempts) = (BTreeMap::new(), BTreeMap::new());
        for node in nodes.iter() {
            let (first, words) = prepare_rings(lane, node, slot, room).await?;
            rings.insert(node, first);
            attempts.insert(node, words);
        }
        // The leader's slot is published last, so a client that is seen at the leader is seen at
        // every node.
        for node in nodes.iter().rev() {
            let expected = if node == leader { u64::from(incarnation) | CHANGING } else { 0 };
            change_slot(lane, node, slot, expected, incarnation.into()).await?;
        }
        Ok(Registration { incarnation, slot, room, nodes, rings, attempts })
    }

    /// Returns the nodes that the client is connected to.
    #[must_use]
    pub fn nodes(&self) -> NodeSet {
        self.nodes
    }

    /// Returns the number of the slot that the client has at every node.
    #[must_use]
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// Returns the number of the client's lanes.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.room.lanes
    }

    /// Returns the bytes of each ring: as many as the client has asked for, if at every node its
    /// rings take at most a sixteenth of the memory, and half of what is free. Otherwise they are
    /// smaller, but have at least [`RING_BYTES`].
    #[must_use]
    pub fn ring_bytes(&self) -> u64 {
        self.room.ring_bytes()
    }

    /// Returns the word of the log of attempts of a lane at a node, as it was when the client
    /// registered.
    #[must_use]
    pub fn attempt_word(&self, node: NodeId, lane: usize) -> Option<u64> {
        self.attempts.get(&node)?.get(lane).copied()
    }

    /// Returns the ring of a lane at a node.
    #[must_use]
    pub fn ring(&self, node: NodeId, lane: usize) -> RingWriter {
        assert!(lane < self.room.lanes, "a client's lanes are those that it registered");
        RingWriter::new(node, RingSpan::nth(self.rings[&node], lane, self.room.ring_bytes()))
    }

    /// Returns the client's archive at a node, if it has one.
    #[must_use]
    pub fn archive(&self, node: NodeId) -> Option<Archive> {
        let bytes = self.room.archive_bytes();
        let has_one = self.room.lanes > 0 && bytes > 0;
        has_one.then(|| Archive::new(node, self.rings[&node] + self.room.archive_from(), bytes))
    }

    /// Returns the leader, and the offset of the client's list of hot records there.
    pub(crate) fn hot_list_at(&self) -> (NodeId, u64) {
        assert!(self.room.lanes > 0, "a client without lanes has no room for a list");
        let leader = self.nodes.leader();
        (leader, self.rings[&leader] + self.room.rings_bytes())
    }

    /// Gives the slot back. Call it only when every ring has been applied to its end, because the
    /// next client empties the rings.
    pub async fn disconnect(self, lane: &Lane) -> Result<(), MemoryError> {
        for node in self.nodes.iter().rev() {
            change_slot(lane, node, self.slot, self.incarnation.into(), 0).await?;
        }
        Ok(())
    }
}

/// Gives a client an incarnation, after checking that it can work with these nodes.
pub async fn come(lane: &Lane, nodes: NodeSet) -> Result<u32, MemoryError> {
    for node in nodes.iter() {
        node::superblock(lane, node).await?;
    }
    next_incarnation(lane, nodes.leader()).await
}

/// Gives an incarnation that no client has had.
pub async fn next_incarnation(lane: &Lane, leader: NodeId) -> Result<u32, MemoryError> {
    let mut round = lane.round();
    let add = round.fetch_add(node::at(leader, AT_INCARNATION), 1);
    let incarnation = lane.execute(round).await?.added(add) + 1;
    if incarnation > INCARNATIONS_MAX {
        return Err(MemoryError::limit("client incarnations", incarnation, INCARNATIONS_MAX));
    }
    Ok(incarnation as u32)
}

/// Takes a free slot at the leader. It prefers a slot whose rings are large enough to one that
/// needs space.
async fn take_slot(lane: &Lane, leader: NodeId, incarnation: u64, bytes: u64) -> Result<u64, MemoryError> {
    loop {
        let mut round = lane.round();
        let read = round.read(node::client_slot_at(leader, 0), SLOTS_BYTES);
        let done = lane.execute(round).await?;
        let slots = done.words(read).chunks_exact(SLOT_WORDS);
        let free = slots.enumerate().filter(|(_, slot)| slot[0] == 0);
        // Prefer the smallest extent that is enough, then a slot without any, then one that is too
        // small.
        let best = free.min_by_key(|(_, slot)| if slot[3] >= bytes { (0, slot[3]) } else { (1, slot[3]) });
        let Some((index, _)) = best else {
            let max = CLIENTS_MAX as u64;
            return Err(MemoryError::limit("connected clients", max + 1, max));
        };
        drop(done);
        let mut round = lane.round();
        let swap = round.compare_swap(node::client_slot_at(leader, index as u64), 0, incarnation | CHANGING);
        if lane.execute(round).await?.swapped(swap) {
            return Ok(index as u64);
        }
    }
}

/// Makes room for a slot's rings at a node, and empties the rings. Returns the offset of the first
/// one, and the word of each ring's log of attempts.
async fn prepare_rings(lane: &Lane, node: NodeId, slot: u64, room: Room) -> Result<(u64, Vec<u64>), MemoryError> {
    let mut round = lane.round();
    let read = round.read(node::client_slot_at(node, slot), CLIENT_SLOT_BYTES as usize);
    let done = lane.execute(round).await?;
    let slot_words = done.words(read);
    let [mut rings, mut extent] = [slot_words[2], slot_words[3]];
    let mut is_laid_anew = slot_words[6] != room.ring_bytes();
    drop(done);
    let wanted = room.bytes();
    if extent < wanted {
        rings = node::allocate(lane, node, wanted).await?;
        (extent, is_laid_anew) = (wanted, false);
        // This is written at once. If this client dies before its rings are ready, the next client
        // in its slot has the space.
        let mut round = lane.round();
        round.write_words(node::client_slot_at(node, slot).plus(WORD_BYTES as u64), &[0, rings, extent, 0, 0, 0]);
        lane.execute(round).await?;
    }
    let mut attempts = Vec::with_capacity(room.lanes);
    for index in 0..room.lanes {
        let mut round = lane.round();
        let ring = RingSpan::nth(rings, index, room.ring_bytes());
        // The words of the logs of attempts stay, because only CAS changes them. Where rings of
        // another size lay, their place had data, except in the first ring.
        let is_data = index > 0 && is_laid_anew;
        round.write_words(ring.header_at(node), &[0; ATTEMPTS_WORD + 1][..ATTEMPTS_WORD + usize::from(is_data)]);
        let read = round.read(attempt_log_at(node, ring).0, WORD_BYTES);
        attempts.push(lane.execute(round).await?.words(read)[0]);
    }
    let archive = if room.lanes == 0 { [0, 0] } else { [rings + room.archive_from(), room.archive_bytes()] };
    let mut round = lane.round();
    let words = [room.lanes as u64, rings, extent, archive[0], archive[1], room.ring_bytes()];
    round.write_words(node::client_slot_at(node, slot).plus(WORD_BYTES as u64), &words);
    lane.execute(round).await?;
    Ok((rings, attempts))
}

async fn change_slot(lane: &Lane, node: NodeId, slot: u64, expected: u64, new: u64) -> Result<(), MemoryError> {
    let mut round = lane.round();
    let swap = round.compare_swap(node::client_slot_at(node, slot), expected, new);
    round.fetch_add(node::at(node, AT_CHANGES), 1);
    let done = lane.execute(round).await?;
    if !done.swapped(swap) {
        tracing::error!(%node, slot, expected, found = done.previous(swap), "a client slot was changed by somebody else");
    }
    Ok(())
}

/// What a client that has died has left at every node: its slot and its rings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remains {
    incarnation: u32,
    slot: u64,
    /// The number of lanes and the first ring, at each node. A client that was connecting or
    /// leaving may have no rings at some nodes.
    rings: BTreeMap<NodeId, (usize, RingSpan)>,
}

impl Remains {
    /// Returns the number of the slot that the client had at every node.
    #[must_use]
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// Looks for the slot of a dead client. Returns `None` if it has none, or no longer. A client
    /// that died while it connected or left has rings at some nodes only, or at none. It had no
    /// transaction then.
    pub async fn find(lane: &Lane, nodes: NodeSet, incarnation: u32) -> Result<Option<Remains>, MemoryError> {
        let mut round = lane.round();
        let read = round.read(node::client_slot_at(nodes.leader(), 0), SLOTS_BYTES);
        let done = lane.execute(round).await?;
        let mut slots = done.words(read).chunks_exact(SLOT_WORDS);
        let Some(slot) = slots.position(|slot| slot[0] & !CHANGING == u64::from(incarnation)) else { return Ok(None) };
        drop(done);
        let mut rings = BTreeMap::new();
        for node in nodes.iter() {
            let mut round = lane.round();
            let read = round.read(node::client_slot_at(node, slot as u64), CLIENT_SLOT_BYTES as usize);
            let done = lane.execute(round).await?;
            let client = ClientSlot::of(|word| done.words(read)[word]);
            let client = client.filter(|client| client.incarnation == incarnation);
            rings.insert(node, client.map_or((0, RingSpan::from(0)), |client| (client.lanes, client.ring(0))));
        }
        Ok(Some(Remains { incarnation, slot: slot as u64, rings }))
    }

    /// Returns every ring, as node, lane and place.
    pub fn rings(&self) -> impl Iterator<Item = (NodeId, usize, RingSpan)> + '_ {
        let of_node = |(node, (lanes, first)): (&NodeId, &(usize, RingSpan))| {
            let (node, first) = (*node, *first);
            (0..*lanes).map(move |lane| (node, lane, RingSpan::nth(first.base, lane, first.bytes)))
        };
        self.rings.iter().flat_map(of_node)
    }

    /// Gives the slot back. Call it only when every ring has been applied to its end and no
    /// recovery needs its entries any more. A second call does nothing.
    pub async fn give_back(self, lane: &Lane) -> Result<(), MemoryError> {
        for node in self.rings.keys().rev().copied() {
            let mut round = lane.round();
            for word in [u64::from(self.incarnation), u64::from(self.incarnation) | CHANGING] {
                round.compare_swap(node::client_slot_at(node, self.slot), word, 0);
            }
            round.fetch_add(node::at(node, AT_CHANGES), 1);
            lane.execute(round).await?;
        }
        Ok(())
    }
}

/// Returns the bytes that each slot has for rings at a node, whether a client has the slot or not.
pub(crate) async fn ring_bytes(lane: &Lane, node: NodeId) -> Result<Vec<u64>, MemoryError> {
    let mut round = lane.round();
    let read = round.read(node::client_slot_at(node, 0), SLOTS_BYTES);
    let done = lane.execute(round).await?;
    Ok(done.words(read).chunks_exact(SLOT_WORDS).map(|slot| slot[3]).collect())
}

/// Returns where the slots of a node have space for rings, as beginnings and ends, whether clients
/// have the slots or not. Returns `None` while a client is connecting, because it may have taken
/// space that its slot does not name yet. Such a client is seen at the leader, from before it takes
/// space until all its slots name it.
pub(crate) async fn ring_space(
    lane: &Lane,
    leader: NodeId,
    node: NodeId,
) -> Result<Option<Vec<(u64, u64)>>, MemoryError> {
    let mut round = lane.round();
    let read = round.read(node::client_slot_at(leader, 0), SLOTS_BYTES);
    if lane.execute(round).await?.words(read).iter().step_by(SLOT_WORDS).any(|word| word & CHANGING != 0) {
        return Ok(None);
    }
    let mut round = lane.round();
    let read = round.read(node::client_slot_at(node, 0), SLOTS_BYTES);
    let done = lane.execute(round).await?;
    let slots = done.words(read).chunks_exact(SLOT_WORDS).filter(|slot| slot[3] > 0);
    Ok(Some(slots.map(|slot| (slot[2], slot[2].saturating_add(node::extent(slot[3])))).collect()))
}

/// Returns the lowest incarnation of all clients that have a slot at the leader, or are taking or
/// giving back one. Returns [`u32::MAX`] if there is none.
pub(crate) async fn first_registered(lane: &Lane, leader: NodeId) -> Result<u32, MemoryError> {
    Ok(registered(lane, leader).await?.into_iter().min().unwrap_or(u32::MAX))
}

/// Returns the incarnations of all clients that have a slot at the leader, or are taking or giving
/// back one. A client has its slot for as long as it has rings at any node.
pub async fn registered(lane: &Lane, leader: NodeId) -> Result<Vec<u32>, MemoryError> {
    let mut round = lane.round();
    let read = round.read(node::client_slot_at(leader, 0), SLOTS_BYTES);
    let done = lane.execute(round).await?;
    let words = done.words(read).iter().step_by(SLOT_WORDS).map(|word| word & !CHANGING);
    Ok(words.filter(|word| *word != 0).map(|word| word as u32).collect())
}

/// Returns the last incarnation that the leader has given.
pub(crate) async fn last_incarnation(lane: &Lane, leader: NodeId) -> Result<u32, MemoryError> {
    let mut round = lane.round();
    let read = round.read(node::at(leader, AT_INCARNATION), WORD_BYTES);
    let last = lane.execute(round).await?.words(read)[0];
    Ok(u32::try_from(last).unwrap_or(u32::MAX))
}

/// Returns the offset at which each client that is connected to a node has room for its list of hot
/// records, after the client's incarnation. Leaves out clients without such room.
pub(crate) async fn hot_list_places(lane: &Lane, node: NodeId) -> Result<Vec<(u32, u64)>, MemoryError> {
    let bytes = node::superblock(lane, node).await?.bytes;
    let mut round = lane.round();
    let read = round.read(node::client_slot_at(node, 0), SLOTS_BYTES);
    let done = lane.execute(round).await?;
    let place = |slot: &[u64]| {
        let client = ClientSlot::of(|word| slot[word]).filter(|client| client.lanes > 0)?;
        let rings = (client.lanes as u64).checked_mul(extent_bytes(client.ring_bytes))?;
        let offset = client.rings.checked_add(rings)?;
        let has_room = rings.checked_add(HOT_LIST_BYTES)? <= slot[3] && offset.checked_add(HOT_LIST_BYTES)? <= bytes;
        (has_room && offset.is_multiple_of(WORD_BYTES as u64)).then_some((client.incarnation, offset))
    };
    Ok(done.words(read).chunks_exact(SLOT_WORDS).filter_map(place).collect())
}

/// Makes the slots of these nodes agree with the slots of `leader`, which may be a new leader. Also
/// raises the leader's incarnation counter above every incarnation that was given. No client may
/// have access meanwhile. If a client died while it connected or left, it had no transaction, and
/// its slot is freed.
pub async fn follow_leader(lane: &Lane, nodes: NodeSet, leader: NodeId, incarnations: u32) -> Result<(), MemoryError> {
    let holders = async |node| {
        let mut round = lane.round();
        let read = round.read(node::client_slot_at(node, 0), SLOTS_BYTES);
        let done = lane.execute(round).await?;
        Ok::<Vec<u64>, MemoryError>(done.words(read).iter().step_by(SLOT_WORDS).copied().collect())
    };
    let given = async |node| {
        let mut round = lane.round();
        let read = round.read(node::at(node, AT_INCARNATION), WORD_BYTES);
        Ok::<u64, MemoryError>(lane.execute(round).await?.words(read)[0])
    };
    let leading: Vec<u64> = holders(leader).await?.into_iter().map(|word| word & !CHANGING).collect();
    let mut highest = leading.iter().copied().max().unwrap_or(0).max(incarnations.into());
    for node in nodes.without(NodeSet::default().with(leader)).iter() {
        let following = holders(node).await?;
        // A node that has been the leader says which incarnations it has given.
        highest = following.iter().map(|word| word & !CHANGING).max().unwrap_or(0).max(highest).max(given(node).await?);
        for (slot, (word, leads)) in (0..).zip(following.into_iter().zip(&leading)) {
            if word != 0 && word & !CHANGING != *leads {
                change_slot(lane, node, slot, word, 0).await?;
            }
        }
    }
    // The counter must also be above incarnations of clients that were about to connect.
    let highest = highest + CLIENTS_MAX as u64;
    let last = given(leader).await?;
    if last < highest {
        let mut round = lane.round();
        round.fetch_add(node::at(leader, AT_INCARNATION), highest - last);
        lane.execute(round).await?;
    }
    Ok(())
}

/// A connected client, as a node's slot describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientSlot {
    /// The incarnation of the client.
    pub incarnation: u32,
    /// The number of the client's lanes. Each has one ring at the node.
    pub lanes: usize,
    /// The offset of the first ring.
    pub rings: u64,
    /// The bytes of the data of each ring.
    pub ring_bytes: u64,
}

impl ClientSlot {
    /// Decodes the words of a slot. Returns `None` if no client is connected by it.
    fn of(word: impl Fn(usize) -> u64) -> Option<ClientSlot> {
        let incarnation = word(0);
        let connected = incarnation != 0 && incarnation & CHANGING == 0;
        connected.then(|| ClientSlot {
            incarnation: incarnation as u32,
            lanes: word(1) as usize,
            rings: word(2),
            ring_bytes: word(6),
        })
    }

    /// Returns where the ring of a lane lies. A slot that was damaged may name any place.
    #[must_use]
    pub fn ring(&self, lane: usize) -> RingSpan {
        RingSpan::nth(self.rings, lane, self.ring_bytes)
    }
}

/// Returns a counter that changes whenever a client connects or leaves. The node's own CPU calls
/// this.
#[must_use]
pub fn changes(region: &[AtomicU64]) -> u64 {
    region[AT_CHANGES as usize / WORD_BYTES].load(Ordering::Acquire)
}

/// Returns the clients that are connected to a node. The node's own CPU calls this.
pub fn clients(region: &[AtomicU64]) -> impl Iterator<Item = ClientSlot> + '_ {
    let first = AT_CLIENTS as usize / WORD_BYTES;
    region[first..first + CLIENTS_MAX * SLOT_WORDS]
        .chunks_exact(SLOT_WORDS)
        .filter_map(|slot| ClientSlot::of(|word| slot[word].load(Ordering::Acquire)))
}

/// Reads the clients that are connected to a node, from another machine.
pub async fn connected(lane: &Lane, node: NodeId) -> Result<Vec<ClientSlot>, MemoryError> {
    let mut round = lane.round();
    let read = round.read(node::client_slot_at(node, 0), SLOTS_BYTES);
    let done = lane.execute(round).await?;
    Ok(done.words(read).chunks_exact(SLOT_WORDS).filter_map(|slot| ClientSlot::of(|word| slot[word])).collect())
}
