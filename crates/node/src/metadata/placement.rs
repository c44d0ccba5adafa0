//! The placement of replicas: what is left of a configuration without some nodes, and the steps
//! that bring shards to the nodes where they should be.

use std::collections::{BTreeMap, BTreeSet};

use remora_fabric::limits::NODES_MAX;
use remora_fabric::{Lane, NodeId, NodeSet};

use super::tables::{Metadata, Replica, ShardPlacement, UNPLACED};
use crate::client;
use crate::error::MemoryError;
use crate::id::ShardId;
use crate::limits::{INCARNATIONS_MAX, REPLICAS_MAX, RINGS_SPARE};
use crate::node;
use crate::ring::RING_EXTENT_BYTES;

/// An upper bound for the number of changes of the catalog that are under way at one time.
const CHANGES_UNDER_WAY: u64 = 1 << 20;

/// Returns what is left of a configuration without the `lost` nodes, in this epoch. Backups of
/// shards whose primary is lost are promoted. Fails, with the name of a table, if one of its shards
/// has no replica left.
pub fn without(before: &Metadata, lost: NodeSet, epoch: u64) -> Result<Metadata, MemoryError> {
    let mut after = before.clone();
    let mut gone = BTreeSet::new();
    for shard in after.shards.iter_mut().filter(|shard| !shard.replicas.is_empty()) {
        shard.replicas.retain(|replica| !lost.has(replica.node));
        if shard.copies().next().is_none() {
            let table = before.tables.get(usize::from(shard.table.0));
            if table.is_none_or(|table| table.is_there()) {
                return Err(MemoryError::NoReplica(table.map(|table| table.spec.name.clone()).unwrap_or_default()));
            }
            gone.insert(shard.table);
        }
    }
    let promoted = |shard: &ShardPlacement| shard.replicas.first().is_none_or(|replica| !replica.joining);
    debug_assert!(
        after.shards.iter().filter(|shard| !gone.contains(&shard.table)).all(promoted),
        "fail_over 3: the replica that is promoted has been copied"
    );
    // What is left of a dropped table is not needed. Its ids are not used again before every client
    // that has rings now has given them back.
    gone.into_iter().for_each(|table| after.bury(table, INCARNATIONS_MAX as u32));
    after.epoch = epoch;
    if after != *before {
        // This is far above any generation that a client whose access was just revoked may be about
        // to write.
        after.generation += CHANGES_UNDER_WAY;
    }
    Ok(after)
}

/// The wanted state of memory nodes and shards.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'w> {
    /// The nodes that should have shards.
    pub nodes: NodeSet,
    /// The nodes that should have none, even if that leaves fewer copies than a table should have.
    /// All other nodes keep their shards until there are enough copies elsewhere.
    pub expendable: NodeSet,
    /// The nodes, out of `nodes`, that should have as much as the others. Until they do, shards
    /// move there.
    pub filling: NodeSet,
    /// The joining replicas that have been given all data by now.
    pub copied: &'w [(ShardId, NodeId)],
}

/// Computes the next step from a configuration to the wanted state:
///
/// 1. Joining replicas that have been copied become copies.
/// 2. Nodes that should have nothing lose their copies where the other nodes have enough.
/// 3. Replicas join where copies are missing, at the nodes with the most `room`, in bytes.
/// 4. The fullest node of a shard loses its copy where a filling node has got one.
/// 5. Replicas join at filling nodes as long as that spreads bytes more evenly.
///
/// Shards that cannot move stay where they are ([`can_move`](super::Discipline::can_move)).
///
/// New replicas have no place yet. Repeated steps come to an end. When all joining replicas are
/// copied and nothing else has changed, the bytes are spread more evenly than before.
#[must_use]
pub fn arrangement(before: &Metadata, wanted: &Wanted<'_>, room: &BTreeMap<NodeId, u64>) -> Metadata {
    let mut after = before.clone();
    let mut room: Vec<(u64, NodeId)> =
        wanted.nodes.iter().map(|node| (room.get(&node).copied().unwrap_or(0), node)).collect();
    for (number, shard) in (0..).zip(&mut after.shards) {
        let table = before.tables.get(usize::from(shard.table.0));
        let Some(table) = table.filter(|table| table.spec.discipline.can_move()) else { continue };
        let copies = usize::from(table.spec.replicas);
        for replica in &mut shard.replicas {
            replica.joining &= !wanted.copied.contains(&(ShardId(number), replica.node));
        }
        let here = |replica: &Replica| wanted.nodes.has(replica.node);
        let kept = |replica: &Replica| !wanted.expendable.has(replica.node);
        // The primary stays primary until it leaves. No other node would free the locks that are
        // held there, or undo an insert there.
        shard.replicas.sort_by_key(|replica| replica.joining);
        let staying = shard.copies().filter(|replica| here(replica)).count();
        let keeping = shard.copies().filter(|replica| kept(replica)).count();
        let most = usize::from(wanted.nodes.count()) + keeping - staying;
        if staying >= copies {
            shard.replicas.retain(here);
        } else if keeping >= copies.min(most) && keeping > 0 {
            shard.replicas.retain(kept);
        }
        let needed = node::extent(shard.bytes);
        let missing = copies.saturating_sub(shard.replicas.iter().filter(|replica| here(replica)).count());
        for _ in 0..missing.min(REPLICAS_MAX.saturating_sub(shard.replicas.len())) {
            let fits = room
                .iter_mut()
                .filter(|(room, node)| *room >= needed && !shard.replicas.iter().any(|replica| replica.node == *node));
            // Of several nodes with the same room, take the first.
            let Some((room, node)) = fits.max_by_key(|(room, node)| (*room, std::cmp::Reverse(*node))) else { break };
            *room -= needed;
            shard.replicas.push(Replica { node: *node, region: node::REGION, base: UNPLACED, joining: true });
        }
    }
    leave_fullest(&mut after, wanted.nodes);
    fill(&mut after, wanted, &mut room);
    if after != *before {
        after.generation += CHANGES_UNDER_WAY;
    }
    after
}

/// For each node: the bytes of its replicas, and the number of shards whose primary it is.
#[derive(Clone, Copy)]
struct Load([(u64, u32); NODES_MAX]);

impl Load {
    fn of(metadata: &Metadata) -> Load {
        let mut load = Load([(0, 0); NODES_MAX]);
        for shard in &metadata.shards {
            for (at, replica) in shard.replicas.iter().enumerate() {
                if let Some((bytes, primaries)) = load.0.get_mut(usize::from(replica.node.0)) {
                    *bytes += node::extent(shard.bytes);
                    *primaries += u32::from(at == 0);
                }
            }
        }
        load
    }

    fn bytes(&self, node: NodeId) -> u64 {
        self.0.get(usize::from(node.0)).map_or(0, |(bytes, _)| *bytes)
    }

    fn primaries(&self, node: NodeId) -> u32 {
        self.0.get(usize::from(node.0)).map_or(0, |(_, primaries)| *primaries)
    }

    /// Returns a measure of how unevenly the bytes are spread. Less is more even.
    fn unevenness(&self) -> u128 {
        self.0.iter().map(|(bytes, _)| u128::from(*bytes).pow(2)).sum()
    }
}

/// Removes the copies that a shard has beyond its number, after a filling node, or a node that a
/// copy moves to, has got one. A copy outside `nodes` goes first, then the copy at the node with
/// the most bytes. The last copy takes the place of the removed one, also as the primary.
fn leave_fullest(metadata: &mut Metadata, nodes: NodeSet) {
    let mut load = Load::of(metadata);
    for shard in &mut metadata.shards {
        let Some(table) = metadata.tables.get(usize::from(shard.table.0)) else { continue };
        while shard.copies().count() > usize::from(table.spec.replicas) {
            let last = shard.copies().count() - 1;
            let most = |at: &usize| {
                let node = shard.replicas[*at].node;
                (!nodes.has(node), load.bytes(node), std::cmp::Reverse(*at))
            };
            let Some(fullest) = (0..last).max_by_key(most) else { break };
            let came = shard.replicas.remove(last);
            let left = std::mem::replace(&mut shard.replicas[fullest], came);
            if let Some((bytes, _)) = load.0.get_mut(usize::from(left.node.0)) {
                *bytes -= node::extent(shard.bytes);
            }
        }
    }
}

/// Makes replicas join at the nodes that should be filled, as long as that spreads the bytes more
/// evenly.
fn fill(after: &mut Metadata, wanted: &Wanted<'_>, room: &mut [(u64, NodeId)]) {
    // This is the state when everything has been copied.
    let settled = |metadata: &Metadata| {
        let mut settled = metadata.clone();
        settled.shards.iter_mut().flat_map(|shard| &mut shard.replicas).for_each(|replica| replica.joining = false);
        leave_fullest(&mut settled, wanted.nodes);
        settled
    };
    let mut load = Load::of(&settled(after));
    while let Some((at, to)) = next_to_move(after, wanted, room, &load) {
        after.shards[at].replicas.push(Replica { node: to, region: node::REGION, base: UNPLACED, joining: true });
        let moved = Load::of(&settled(after));
        if moved.unevenness() >= load.unevenness() {
            after.shards[at].replicas.pop();
            break;
        }
        let needed = node::extent(after.shards[at].bytes);
        room.iter_mut().filter(|(_, node)| *node == to).for_each(|(room, _)| *room -= needed);
        load = moved;
    }
}

/// Finds the next shard to move, by its index, and the filling node that should get a replica of
/// it. After that, the replica at the shard's fullest node is one too many.
fn next_to_move(
    metadata: &Metadata,
    wanted: &Wanted<'_>,
    room: &[(u64, NodeId)],
    load: &Load,
) -> Option<(usize, NodeId)> {
    let mut filling: Vec<_> = room.iter().filter(|(_, node)| wanted.filling.has(*node)).collect();
    filling.sort_by_key(|(_, node)| load.bytes(*node));
    filling.into_iter().find_map(|(room, to)| {
        let gain = |shard: &ShardPlacement| {
            let table = metadata.tables.get(usize::from(shard.table.0))?;
            let is_whole = table.spec.discipline.can_move()
                && shard.replicas.len() == usize::from(table.spec.replicas)
                && shard.replicas.iter().all(|replica| !replica.joining && replica.node != *to);
            let needed = node::extent(shard.bytes);
            let from = shard.replicas.iter().map(|replica| replica.node).max_by_key(|node| load.bytes(*node))?;
            let gain = load.bytes(from).checked_sub(load.bytes(*to) + needed).filter(|gain| *gain > 0)?;
            let fits = is_whole && shard.replicas.len() < REPLICAS_MAX && *room >= needed;
            // Primaries have more work.
            let has_too_many = load.primaries(from) > load.primaries(*to) + 1;
            fits.then_some(((shard.replicas[0].node == from) == has_too_many, gain))
        };
        let gains = metadata.shards.iter().enumerate().filter_map(|(at, shard)| Some((gain(shard)?, at)));
        gains.max_by_key(|(gain, at)| (*gain, std::cmp::Reverse(*at))).map(|(_, at)| (at, *to))
    })
}

/// Returns the bytes of these nodes that shards may take. The rest is for the redo rings of
/// clients: as many bytes as these have at any other node, and [`RINGS_SPARE`] rings, or what the
/// client with the largest rings needs.
pub async fn room(lane: &Lane, nodes: NodeSet) -> Result<BTreeMap<NodeId, u64>, MemoryError> {
    let mut rings = BTreeMap::new();
    for node in nodes.iter() {
        rings.insert(node, client::ring_bytes(lane, node).await?);
    }
    let most = |slot: usize| rings.values().map(|bytes| bytes[slot]).max().unwrap_or(0);
    let largest = rings.values().flatten().copied().max().unwrap_or(0);
    let mut room = BTreeMap::new();
    for (node, bytes) in &rings {
        let superblock = node::superblock(lane, *node).await?;
        // Rings that are too small are not made larger; other rings are taken in their place.
        let lacking = bytes.iter().enumerate().map(|(slot, here)| Some(most(slot)).filter(|most| most > here));
        let spare = (superblock.bytes / 8).min(largest.max(RINGS_SPARE * RING_EXTENT_BYTES));
        room.insert(*node, lacking.flatten().fold(superblock.free().saturating_sub(spare), u64::saturating_sub));
    }
    Ok(room)
}

/// Computes the [`arrangement`] with the [`room`] that the nodes have.
pub async fn arranged(lane: &Lane, before: &Metadata, wanted: &Wanted<'_>) -> Result<Metadata, MemoryError> {
    let mut free = BTreeMap::new();
    for node in wanted.nodes.iter() {
        free.insert(node, node::superblock(lane, node).await?.free());
    }
    let after = arrangement(before, wanted, &free);
    // Callers may ask often. So the slots of clients are read only if a replica is about to join.
    let is_new = |replica: &Replica| replica.base == UNPLACED;
    if !after.shards.iter().flat_map(|shard| &shard.replicas).any(is_new) {
        return Ok(after);
    }
    Ok(arrangement(before, wanted, &room(lane, wanted.nodes).await?))
}

/// Computes the next step as [`arranged`] does, and allocates zeroed memory for new replicas. The
/// caller must have stopped the whole cluster. If the result is not published, the memory is lost.
pub async fn rearrange(lane: &Lane, before: &Metadata, wanted: &Wanted<'_>) -> Result<Metadata, MemoryError> {
    let mut after = arranged(lane, before, wanted).await?;
    for shard in &mut after.shards {
        let bytes = shard.bytes;
        for replica in shard.replicas.iter_mut().filter(|replica| replica.base == UNPLACED) {
            replica.base = node::allocate(lane, replica.node, bytes).await?;
        }
    }
    Ok(after)
}
