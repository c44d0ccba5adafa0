//! Changes of the catalog under its lock: tables are created, made ready, discarded, dropped and
//! freed, and their space is taken and returned.

use remora_fabric::{Lane, NodeId, NodeSet, WORD_BYTES};

use super::format::{publish, read};
use super::tables::{Growth, Metadata, Replica, ShardPlacement, TableEntry, TableSpec, Tombstone, UNPLACED};
use crate::bytes::{give_back, zero};
use crate::client;
use crate::error::{MemoryError, OfTable};
use crate::id::{ShardId, TableId};
use crate::limits::{
    KEY_BYTES_MAX, NAME_BYTES_MAX, REPLICAS_MAX, SCHEMA_BYTES_MAX, SHARDS_MAX, SLOT_BYTES_MAX, TABLES_MAX,
    VALUE_BYTES_MAX,
};
use crate::node::{self, AT_LOCK, AT_SPACE};

/// Where a new table may lie.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The memory nodes that may have its shards.
    pub nodes: NodeSet,
    /// The number of memory nodes that the cluster has, lost ones included. A table may want as
    /// many copies as that.
    pub members: u16,
}

impl From<NodeSet> for Places {
    /// Makes the places of a table in a cluster that has just these nodes.
    fn from(nodes: NodeSet) -> Places {
        Places { nodes, members: nodes.count() }
    }
}

/// Creates a table: takes space for every replica of every shard, and publishes the table. The
/// space is zero, and an index crate gives it meaning. `client` is the incarnation that does this.
/// The table lies at the nodes `places`: the primary of the first shard is at `first`, and the
/// primaries of the others are at the places behind it. If `first` is not one of the places, the
/// next place behind it is the first. If the call fails, nothing has been taken.
///
/// If the table wants more copies than there are places, each shard gets one at each place. The
/// catalog says how many the table wants. So a controller makes the other copies when there are
/// nodes for them ([`arrangement`](super::arrangement)), as if a node had been lost later.
pub async fn create_table(
    lane: &Lane,
    nodes: NodeSet,
    places: impl Into<Places>,
    client: u32,
    spec: TableSpec,
    first: NodeId,
) -> Result<(TableId, Metadata), MemoryError> {
    create(lane, nodes, places.into(), client, (spec, None), first).await
}

/// Creates a table that is not ready before [`finish_tables`]; otherwise as [`create_table`].
pub async fn begin_table(
    lane: &Lane,
    nodes: NodeSet,
    places: impl Into<Places>,
    client: u32,
    spec: TableSpec,
    first: NodeId,
) -> Result<(TableId, Metadata), MemoryError> {
    create(lane, nodes, places.into(), client, (spec, Some(client)), first).await
}

async fn create(
    lane: &Lane,
    nodes: NodeSet,
    places: Places,
    client: u32,
    (spec, creator): (TableSpec, Option<u32>),
    first: NodeId,
) -> Result<(TableId, Metadata), MemoryError> {
    let places = places_from(places, first, &spec)?;
    let create = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        let table = enter(lane, nodes, &places, &mut metadata, Newcomer { spec, creator, growth: None }).await?;
        Ok((table, metadata))
    };
    with_catalog_locked(lane, nodes.leader(), client, create).await
}

/// Returns the places of a table's shards, in order. The primary of the first one is at `first`, or
/// at the next place behind it.
pub(super) fn places_from(places: Places, first: NodeId, spec: &TableSpec) -> Result<Vec<NodeId>, MemoryError> {
    check_spec(places.members, spec)?;
    let Places { nodes, members } = places;
    let highest = nodes.iter().next_back().ok_or(MemoryError::NoNode)?;
    if first.0 >= members && !nodes.has(first) {
        let (what, value, max) = ("the number of a table's first node", first.0.into(), highest.0.into());
        return Err(MemoryError::limit(what, value, max).of_table(&spec.name));
    }
    let mut places: Vec<NodeId> = nodes.iter().collect();
    places.rotate_left(nodes.iter().position(|node| node >= first).unwrap_or(0));
    Ok(places)
}

/// A table that is about to be entered.
pub(super) struct Newcomer {
    pub(super) spec: TableSpec,
    pub(super) creator: Option<u32>,
    /// The table that grows into the new one, if it is a larger table.
    pub(super) growth: Option<Growth>,
}

/// Enters a table into the catalog, takes its space, and publishes the catalog. The caller must
/// hold the catalog's lock.
pub(super) async fn enter(
    lane: &Lane,
    nodes: NodeSet,
    places: &[NodeId],
    metadata: &mut Metadata,
    newcomer: Newcomer,
) -> Result<TableId, MemoryError> {
    let first_client = client::first_registered(lane, nodes.leader()).await?;
    let table = enter_table(metadata, newcomer, first_client)?;
    place_shards(lane, nodes.leader(), metadata, table, places).await?;
    metadata.generation += 1;
    publish(lane, nodes, metadata).await?;
    Ok(table)
}

/// Makes tables ready that `client` has begun, all of them at once. Fails, and changes nothing, if
/// one of them has been discarded.
pub async fn finish_tables(
    lane: &Lane,
    nodes: NodeSet,
    client: u32,
    tables: &[TableId],
) -> Result<Metadata, MemoryError> {
    let finish = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        for table in tables {
            let entry = metadata.tables.get_mut(usize::from(table.0));
            let entry = entry.filter(|entry| entry.creator == Some(client)).ok_or(MemoryError::Discarded)?;
            entry.creator = None;
        }
        metadata.generation += 1;
        publish(lane, nodes, &metadata).await?;
        Ok(metadata)
    };
    with_catalog_locked(lane, nodes.leader(), client, finish).await
}

/// Discards the `wanted` ones among the tables that client `creator` has begun and not finished. No
/// verb of the creator that writes to them may take effect any more. Returns the names of the
/// discarded tables, which are free again, and the catalog.
///
/// The space of the tables becomes free. With `returns`, nodes give its memory back to their
/// systems if they can, and space at the end of a node's memory is zeroed and becomes untouched
/// space. That takes as long as writing it does.
pub async fn discard_tables(
    lane: &Lane,
    nodes: NodeSet,
    client: u32,
    creator: u32,
    wanted: impl Fn(TableId) -> bool,
    returns: bool,
) -> Result<(Vec<String>, Metadata), MemoryError> {
    let discard = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        let space = metadata.clone();
        let names = vacate(&mut metadata, |id, table| table.creator == Some(creator) && wanted(id));
        if !names.is_empty() {
            metadata.generation += 1;
            publish(lane, nodes, &metadata).await?;
            if returns {
                give_back_freed(lane, nodes, &space, &metadata)?;
                for node in nodes.iter() {
                    return_space(lane, nodes.leader(), node, &metadata).await?;
                }
            }
        }
        Ok((names, metadata))
    };
    with_catalog_locked(lane, nodes.leader(), client, discard).await
}

/// Drops tables: the first of the two steps on the module's page. No client opens the tables from
/// then on, their names are free, and their space is kept until [`free_dropped`]. All of them are
/// dropped in one change. If that fails, none is dropped, and the error says why.
pub async fn drop_tables(lane: &Lane, nodes: NodeSet, client: u32, names: &[String]) -> Result<Metadata, MemoryError> {
    let drop = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        metadata.generation += 1;
        for name in names {
            let (id, table) = metadata.table(name)?;
            if let Some(client) = table.creator {
                return Err(MemoryError::Unfinished { table: name.clone(), client });
            }
            let tombstone = Tombstone { generation: metadata.generation, last_client: None };
            for id in metadata.and_larger(id).collect::<Vec<_>>() {
                metadata.tables[usize::from(id.0)].dropped = Some(tombstone);
            }
        }
        publish(lane, nodes, &metadata).await?;
        Ok(metadata)
    };
    with_catalog_locked(lane, nodes.leader(), client, drop).await
}

/// Changes nothing in the catalog but its generation. So clients can be told to acknowledge it.
/// Returns the catalog.
pub async fn touch(lane: &Lane, nodes: NodeSet, client: u32) -> Result<Metadata, MemoryError> {
    let touch = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        metadata.generation += 1;
        publish(lane, nodes, &metadata).await?;
        Ok(metadata)
    };
    with_catalog_locked(lane, nodes.leader(), client, touch).await
}

/// Renames tables, from each pair's first name to its second. All of them are renamed in one
/// change. If that fails, none is renamed, and the error says why. Returns the catalog.
///
/// Fails with [`MemoryError::TableExists`] if a table has one of the new names, even if a client is
/// creating it at the moment. Fails with [`MemoryError::UnknownTable`] or [`MemoryError::Dropped`]
/// if no table has an old name, and with [`MemoryError::Unfinished`] while a client creates it.
pub async fn rename_tables(
    lane: &Lane,
    nodes: NodeSet,
    client: u32,
    names: &[(String, String)],
) -> Result<Metadata, MemoryError> {
    let rename = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        metadata.generation += 1;
        for (from, to) in names {
            let (id, table) = metadata.table(from)?;
            if let Some(client) = table.creator {
                return Err(MemoryError::Unfinished { table: from.clone(), client });
            }
            let renamed = TableSpec { name: to.clone(), ..table.spec.clone() };
            // It has its copies already, or as many as there are nodes for.
            check_spec(u16::from(renamed.replicas), &renamed)?;
            if metadata.table(to).is_ok() {
                return Err(MemoryError::TableExists(to.clone()));
            }
            for id in metadata.and_larger(id).collect::<Vec<_>>() {
                metadata.tables[usize::from(id.0)].spec.name.clone_from(to);
            }
        }
        publish(lane, nodes, &metadata).await?;
        Ok(metadata)
    };
    with_catalog_locked(lane, nodes.leader(), client, rename).await
}

/// Runs `what` on a table while no client can drop it. Fails with [`MemoryError::Dropped`] if the
/// table with this id is not the one that was `born` with this generation, or was dropped.
pub async fn while_there<E: From<MemoryError>>(
    lane: &Lane,
    nodes: NodeSet,
    client: u32,
    (id, born, name): (TableId, u64, &str),
    what: impl AsyncFnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let look = async || {
        let metadata = read(lane, nodes.leader()).await?;
        let is_there = |table: &TableEntry| table.is_there() && table.born == born;
        if metadata.tables.get(usize::from(id.0)).is_some_and(is_there) {
            return Ok(what().await);
        }
        Err(MemoryError::Dropped { table: name.to_owned() })
    };
    with_catalog_locked(lane, nodes.leader(), client, look).await?
}

/// Frees the space of all tables that were dropped by the change of this `generation` or before:
/// the second of the two steps on the module's page. No client may use any of them. A table that is
/// being copied to another node keeps its space. Nodes give the memory of the space back to their
/// systems if they can. Space at the end of a node's memory is zeroed and becomes untouched space,
/// which takes as long as writing it does. Returns the catalog.
pub async fn free_dropped(lane: &Lane, nodes: NodeSet, client: u32, generation: u64) -> Result<Metadata, MemoryError> {
    let free = async || {
        let mut metadata = read(lane, nodes.leader()).await?;
        let is_wanted = |table: &TableEntry| table.dropped.is_some_and(|dropped| dropped.generation <= generation);
        let is_still = |table: &TableEntry| {
            metadata.shards_of(table).flat_map(|shard| &shard.replicas).all(|replica| !replica.joining)
        };
        let freed: Vec<TableId> =
            metadata.kept().filter(|(_, table)| is_wanted(table) && is_still(table)).map(|(id, _)| id).collect();
        if !freed.is_empty() {
            let last_client = client::last_incarnation(lane, nodes.leader()).await?;
            let space = metadata.clone();
            for id in freed {
                metadata.bury(id, last_client);
                let table = &metadata.tables[usize::from(id.0)];
                assert!(
                    table.is_vacant() && metadata.shards_of(table).all(|shard| shard.replicas.is_empty()),
                    "dropping 8: the shards of a table whose space is free have no replicas"
                );
            }
            metadata.generation += 1;
            publish(lane, nodes, &metadata).await?;
            give_back_freed(lane, nodes, &space, &metadata)?;
            // Clients take their rings from untouched space.
            for node in nodes.iter() {
                return_space(lane, nodes.leader(), node, &metadata).await?;
            }
        }
        Ok(metadata)
    };
    with_catalog_locked(lane, nodes.leader(), client, free).await
}

/// Removes tables from a catalog. Returns their names.
fn vacate(metadata: &mut Metadata, wanted: impl Fn(TableId, &TableEntry) -> bool) -> Vec<String> {
    let mut names = Vec::new();
    for (id, table) in (0..).map(TableId).zip(&mut metadata.tables) {
        if !table.is_there() || !wanted(id, table) {
            continue;
        }
        names.push(std::mem::take(&mut table.spec.name));
        (table.creator, table.spec.replicas, table.spec.shard_bytes) = (None, 0, 0);
        for shard in metadata.shards.iter_mut().filter(|shard| shard.table == id) {
            (shard.bytes, shard.replicas) = (0, Vec::new());
        }
    }
    trim(metadata, |table| table.spec.name.is_empty());
    names
}

/// Removes vacant entries at the end of the list whose ids may be used again.
fn trim(metadata: &mut Metadata, is_free: impl Fn(&TableEntry) -> bool) {
    while let Some(last) = metadata.tables.pop_if(|table| is_free(table)) {
        metadata.shards.truncate(last.shard_first.0.into());
    }
}

/// Gives a table its entry, and ids for its shards, without replicas. `first_client` is the lowest
/// incarnation of all clients that have rings.
fn enter_table(metadata: &mut Metadata, newcomer: Newcomer, first_client: u32) -> Result<TableId, MemoryError> {
    let Newcomer { spec, creator, growth } = newcomer;
    let born = metadata.generation + 1;
    let (origin, growths) = match growth.and_then(|growth| metadata.tables.get(usize::from(growth.from.0))) {
        Some(from) => (from.origin, from.growths + 1),
        None => match metadata.table(&spec.name) {
            Ok((_, TableEntry { creator: Some(client), .. })) => {
                return Err(MemoryError::Unfinished { table: spec.name, client: *client });
            }
            Ok(_) => return Err(MemoryError::TableExists(spec.name)),
            Err(_) => (born, 0),
        },
    };
    let is_free = |table: &TableEntry| {
        let last = table.dropped.and_then(|dropped| dropped.last_client);
        table.is_vacant() && last.is_none_or(|last| last < first_client)
    };
    let is_fitting = |table: &TableEntry| is_free(table) && table.spec.shards == spec.shards;
    if let Some(at) = metadata.tables.iter().position(is_fitting) {
        let entry = &mut metadata.tables[at];
        let shard_first = entry.shard_first;
        *entry = TableEntry { spec, shard_first, creator, born, origin, growths, growth, dropped: None };
        return Ok(TableId(at as u16));
    }
    if metadata.tables.len() == TABLES_MAX || metadata.shards.len() + usize::from(spec.shards) > SHARDS_MAX {
        trim(metadata, is_free);
    }
    let room = |what, value: usize, max: usize| {
        if value > max { Err(MemoryError::limit(what, value as u64, max as u64).of_table(&spec.name)) } else { Ok(()) }
    };
    room("tables", metadata.tables.len() + 1, TABLES_MAX)?;
    room("shards", metadata.shards.len() + usize::from(spec.shards), SHARDS_MAX)?;
    let table = TableId(metadata.tables.len() as u16);
    let shard_first = ShardId(metadata.shards.len() as u16);
    let nowhere = ShardPlacement { table, bytes: spec.shard_bytes, replicas: Vec::new() };
    metadata.shards.resize(metadata.shards.len() + usize::from(spec.shards), nowhere);
    metadata.tables.push(TableEntry { spec, shard_first, creator, born, origin, growths, growth, dropped: None });
    Ok(table)
}

/// Finds places for the shards of a table that has just been entered, and takes the space, at every
/// node or at none.
async fn place_shards(
    lane: &Lane,
    leader: NodeId,
    metadata: &mut Metadata,
    table: TableId,
    places: &[NodeId],
) -> Result<(), MemoryError> {
    let TableEntry { spec, shard_first, .. } = metadata.tables[usize::from(table.0)].clone();
    let count = usize::from(spec.replicas).min(places.len());
    if count < usize::from(spec.replicas) {
        tracing::warn!(
            table = spec.name,
            copies = count,
            wanted = spec.replicas,
            "too few memory nodes are there: a table gets its other copies when they are back"
        );
    }
    let copies = |shard: u16| (0..count).map(move |copy| (usize::from(shard) + copy) % places.len());
    let mut wanted = vec![0u64; places.len()];
    for place in (0..spec.shards).flat_map(copies) {
        wanted[place] += 1;
    }
    let extent = node::extent(spec.shard_bytes.max(1));
    // All nodes are asked before any space is taken.
    let mut space = Vec::with_capacity(places.len());
    for (node, extents) in places.iter().zip(wanted) {
        let found = find_space(lane, leader, *node, metadata, extents, extent).await;
        space.push(found.map_err(|error| error.of_table(&spec.name))?);
    }
    let mut bases = Vec::with_capacity(places.len());
    for (node, FreeSpace { mut reused, untouched }) in places.iter().zip(space) {
        for base in &reused {
            zero(lane, node::at(*node, *base), extent).await?;
        }
        if untouched > 0 {
            // A client may take the space for its rings meanwhile. Then what has been taken at
            // other nodes is still free.
            let first = node::allocate(lane, *node, untouched * extent).await?;
            reused.extend((0..untouched).map(|at| first + at * extent));
        }
        bases.push(reused.into_iter());
    }
    for shard in 0..spec.shards {
        let mut replica = |place: usize| {
            let base = bases[place].next().unwrap_or(UNPLACED);
            Replica { node: places[place], region: node::REGION, base, joining: false }
        };
        let replicas = copies(shard).map(&mut replica).collect();
        metadata.shards[usize::from(shard_first.0 + shard)] =
            ShardPlacement { table, bytes: spec.shard_bytes, replicas };
    }
    Ok(())
}

/// Where extents are available at a node.
struct FreeSpace {
    /// The beginnings of extents that something else had before.
    reused: Vec<u64>,
    /// The number of extents that come from untouched space.
    untouched: u64,
}

/// How often to look whether connecting clients have taken their rings, and the pause between two
/// looks.
const RINGS_LOOKS: usize = 100;
const RINGS_PAUSE_NS: u64 = 1_000_000;

/// Looks for `extents` extents of a node, of `extent` bytes each. The caller must hold the catalog
/// lock.
async fn find_space(
    lane: &Lane,
    leader: NodeId,
    node: NodeId,
    metadata: &Metadata,
    extents: u64,
    extent: u64,
) -> Result<FreeSpace, MemoryError> {
    let mut looks = 0;
    loop {
        let superblock = node::superblock(lane, node).await?;
        let untouched = superblock.free() / extent;
        let free = free_space(lane, leader, node, metadata, superblock.allocated).await?;
        let is_known = free.is_some();
        if !is_known && extents <= untouched {
            return Ok(FreeSpace { reused: Vec::new(), untouched: extents });
        }
        let free = free.unwrap_or_default();
        let starts =
            free.iter().flat_map(|(start, end)| (0..(end - start) / extent).map(move |at| start + at * extent));
        // Clients take space for their rings from untouched space only.
        let reused: Vec<u64> = starts.take(extents as usize).collect();
        let lacking = extents - reused.len() as u64;
        if lacking <= untouched {
            return Ok(FreeSpace { reused, untouched: lacking });
        }
        looks += 1;
        if is_known || looks == RINGS_LOOKS {
            let reusable: u64 = free.iter().map(|(start, end)| end - start).sum();
            let wanted = extents.saturating_mul(extent);
            return Err(MemoryError::OutOfMemory {
                node,
                wanted,
                free: superblock.free() + reusable,
                of: OfTable::default(),
            });
        }
        lane.sleep(RINGS_PAUSE_NS).await;
    }
}

/// Returns the space of a node below `allocated` that is free, in ascending order. Returns `None`
/// if that cannot be determined, because a client is about to take space for its rings. `allocated`
/// must have been read before.
async fn free_space(
    lane: &Lane,
    leader: NodeId,
    node: NodeId,
    metadata: &Metadata,
    allocated: u64,
) -> Result<Option<Vec<(u64, u64)>>, MemoryError> {
    let Some(mut used) = client::ring_space(lane, leader, node).await? else { return Ok(None) };
    for shard in &metadata.shards {
        let here = shard.replicas.iter().filter(|replica| replica.node == node);
        used.extend(here.map(|replica| (replica.base, replica.base.saturating_add(node::extent(shard.bytes)))));
    }
    used.sort_unstable();
    let (mut free, mut from) = (Vec::new(), AT_SPACE);
    for (start, end) in used.into_iter().chain([(allocated, allocated)]) {
        if from < start.min(allocated) {
            free.push((from, start.min(allocated)));
        }
        from = from.max(end);
    }
    Ok(Some(free))
}

/// Gives the memory of the space that a change of the catalog has freed back to the systems of the
/// nodes, as far as these can. The caller must hold the catalog lock, so that no table has the
/// space by now. If a client dies before this, the next table that gets the space zeroes it first.
fn give_back_freed(lane: &Lane, nodes: NodeSet, before: &Metadata, after: &Metadata) -> Result<(), MemoryError> {
    for (id, shard) in before.shards.iter().enumerate() {
        let is_freed = after.shards.get(id).is_none_or(|shard| shard.replicas.is_empty());
        let here = |replica: &&Replica| nodes.has(replica.node) && replica.base != UNPLACED;
        for replica in shard.replicas.iter().filter(|_| is_freed).filter(here) {
            give_back(lane, replica.address(0), node::extent(shard.bytes))?;
        }
    }
    Ok(())
}

/// Zeroes the free space at the end of a node's memory, and makes it untouched space again. The
/// caller must hold the catalog lock.
async fn return_space(lane: &Lane, leader: NodeId, node: NodeId, metadata: &Metadata) -> Result<(), MemoryError> {
    let allocated = node::superblock(lane, node).await?.allocated;
    let free = free_space(lane, leader, node, metadata, allocated).await?.unwrap_or_default();
    let Some((start, end)) = free.last().copied().filter(|(_, end)| *end == allocated) else { return Ok(()) };
    zero(lane, node::at(node, start), end - start).await?;
    node::give_back(lane, node, start, end).await
}

/// Runs `what` while only this client may change the catalog.
pub(super) async fn with_catalog_locked<T>(
    lane: &Lane,
    leader: NodeId,
    client: u32,
    what: impl AsyncFnOnce() -> Result<T, MemoryError>,
) -> Result<T, MemoryError> {
    lock_catalog(lane, leader, client.into()).await?;
    let result = what().await;
    free_catalog_lock(lane, leader, client).await?;
    result
}

/// Releases the catalog lock of a leader that client `from` holds.
async fn free_catalog_lock(lane: &Lane, leader: NodeId, from: u32) -> Result<(), MemoryError> {
    let mut round = lane.round();
    round.compare_swap(node::at(leader, AT_LOCK), from.into(), 0);
    lane.execute(round).await?;
    Ok(())
}

/// Ends the change of the catalog that a dead client has begun, if it has begun one. The dead
/// client's access has been revoked. What it has published at the leader is published at all nodes,
/// because clients read the leader's catalog, and the nodes' CPUs read their own. What it has not
/// published there is not done.
///
/// `me` takes over the lock meanwhile. So if this client dies too, its change is ended in turn.
pub async fn end_change_of(lane: &Lane, nodes: NodeSet, me: u32, dead: u32) -> Result<(), MemoryError> {
    let leader = nodes.leader();
    let mut round = lane.round();
    let read_lock = round.read(node::at(leader, AT_LOCK), WORD_BYTES);
    if lane.execute(round).await?.words(read_lock)[0] != u64::from(dead) {
        return Ok(());
    }
    let mut round = lane.round();
    let swap = round.compare_swap(node::at(leader, AT_LOCK), dead.into(), me.into());
    if !lane.execute(round).await?.swapped(swap) {
        return Ok(());
    }
    tracing::warn!(client = dead, "a client has died while it changed the catalog");
    let published = async { publish(lane, nodes, &read(lane, leader).await?).await }.await;
    free_catalog_lock(lane, leader, me).await?;
    published
}

/// Returns the client that changes the catalog, if one does.
pub async fn who_changes(lane: &Lane, leader: NodeId) -> Result<Option<u32>, MemoryError> {
    let mut round = lane.round();
    let lock = round.read(node::at(leader, AT_LOCK), WORD_BYTES);
    let holder = lane.execute(round).await?.words(lock)[0] as u32;
    Ok((holder != 0).then_some(holder))
}

/// Releases the catalog lock of a leader, whichever client holds it. The access of every client
/// must have been revoked.
pub async fn unlock_catalog(lane: &Lane, leader: NodeId) -> Result<(), MemoryError> {
    let mut round = lane.round();
    let read = round.read(node::at(leader, AT_LOCK), WORD_BYTES);
    let holder = lane.execute(round).await?.words(read)[0];
    let mut round = lane.round();
    round.compare_swap(node::at(leader, AT_LOCK), holder, 0);
    lane.execute(round).await?;
    Ok(())
}

fn check_spec(nodes: u16, spec: &TableSpec) -> Result<(), MemoryError> {
    let limit = |what, value: u64, max: u64| {
        if value > max { Err(MemoryError::limit(what, value, max).of_table(&spec.name)) } else { Ok(()) }
    };
    if spec.name.is_empty() {
        return Err(MemoryError::empty("a table's name"));
    }
    if spec.name.contains(char::is_control) {
        return Err(MemoryError::Name(spec.name.clone()));
    }
    if spec.shards == 0 || spec.replicas == 0 || spec.buckets == 0 {
        return Err(MemoryError::empty("the number of shards, replicas or buckets").of_table(&spec.name));
    }
    limit("bytes of a table's name", spec.name.len() as u64, NAME_BYTES_MAX as u64)?;
    limit("bytes of a schema's text", spec.schema.len() as u64, SCHEMA_BYTES_MAX as u64)?;
    limit("bytes of a key", u64::from(spec.layout.key_bytes), KEY_BYTES_MAX as u64)?;
    limit("bytes of a value", u64::from(spec.layout.value_max), VALUE_BYTES_MAX as u64)?;
    limit("bytes of a record's slot", u64::from(spec.layout.slot_bytes), SLOT_BYTES_MAX as u64)?;
    limit("bytes of a shard", spec.shard_bytes, 1 << 48)?;
    let replicas = usize::from(spec.replicas);
    if replicas > usize::from(nodes) || replicas > REPLICAS_MAX {
        return Err(MemoryError::too_many_replicas(replicas, nodes.into()).of_table(&spec.name));
    }
    Ok(())
}

async fn lock_catalog(lane: &Lane, leader: NodeId, client: u64) -> Result<(), MemoryError> {
    let mut holder = 0;
    for _ in 0..1000 {
        let mut round = lane.round();
        let swap = round.compare_swap(node::at(leader, AT_LOCK), 0, client);
        let done = lane.execute(round).await?;
        if done.swapped(swap) {
            return Ok(());
        }
        holder = done.previous(swap);
        lane.sleep(1_000_000).await;
    }
    Err(MemoryError::CatalogLocked(holder))
}
