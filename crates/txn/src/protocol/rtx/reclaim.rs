//! Reclaims what clients that are gone have left in a table: their locks, and the blocks and
//! overflow buckets that they had in hand. No other client can tell these from what a living client
//! has in hand, so this needs a moment without clients.
//!
//! ```text
//! for each shard  1  READ how much was given out; READ the lists of what was returned
//!                 2  READ all chains
//!                 3  lost is what was given out, and is in no list and in no chain
//!                 4  READ the clients: there must be no other one; then
//!                    READ the words of step 1 again: they must be the same
//!                 5  CAS unlock; put what is lost into the lists
//! ```
//!
//! *Why this is safe.* A client that comes and goes during steps 1 to 3 may have displaced a block
//! before its object was read. If it is still there, step 4 sees it. If it has left in good order
//! by then, it has returned the block before, and the head of the list is another word, which the
//! last READs of step 4 find. If it has died, it is connected until it is recovered. A client that
//! comes later finds only what is in the chains, in the lists or not given out yet. So no client
//! ever has in hand what step 5 returns. The client that reclaims is connected itself from before
//! step 1 until after step 5. So of two that reclaim at the same time, at most one gets to step 5.
//! The logs of clients that are gone were ended when these were recovered, so their locks protect
//! nothing.
//!
//! The uses of a block that is returned begin anew. So a place may recur. But no client that has
//! seen it before is connected any more, and none of its verbs is on its way. Therefore blocks come
//! back, too, whose uses were used up.

use remora_fabric::{Lane, NodeId, WORD_BYTES};
use remora_index::Table;
use remora_index::objects::{AT_BLOCKS, AT_OVERFLOW, AT_RETURNED, AT_RETURNED_BUCKETS, Geometry};
use remora_node::{Pointer, registered};
use remora_record::{KeyHash, Place};

use super::pool::List;
use crate::error::{Abort, Stop};
use crate::inspect::objects::{read_chains, steps};

/// What [`reclaim`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Reclaimed {
    /// Locks that were freed.
    pub locks: u64,
    /// Blocks, each with room for a value, that can be used again.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Buckets that can be used again.
    pub buckets: u64,
    /// Bytes of RACE hash tables that can be used again.
    pub race_bytes: u64,
}

impl std::ops::AddAssign for Reclaimed {
    fn add_assign(&mut self, other: Reclaimed) {
        self.locks += other.locks;
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.buckets += other.buckets;
        self.race_bytes += other.race_bytes;
    }
}

/// Reclaims what clients that are gone have left in a table. Does nothing to a table of another
/// protocol. The `own` client, which has nothing in hand, stays connected until this returns. Fails
/// with [`Abort::Changed`] if another client is connected, or has come and gone meanwhile. `leader`
/// is the node that says which clients are connected. A dead client counts as connected until it is
/// recovered.
pub async fn reclaim(lane: &Lane, leader: NodeId, own: u32, table: &Table) -> Result<Reclaimed, Stop> {
    let mut all = Reclaimed::default();
    let Some(geometry) = table.objects() else { return Ok(all) };
    for shard in 0..table.shards() {
        all += of_shard(lane, (leader, own), table, geometry, shard).await?;
    }
    Ok(all)
}

async fn of_shard(
    lane: &Lane,
    (leader, own): (NodeId, u32),
    table: &Table,
    geometry: &Geometry,
    shard: u16,
) -> Result<Reclaimed, Stop> {
    let pointer = Pointer::new(table.shard_id(shard), 0);
    let before = Given::read(lane, table, pointer).await?;
    let mut blocks = vec![true; before.blocks.min(geometry.blocks) as usize];
    let mut buckets = vec![true; before.buckets.min(geometry.buckets.overflow) as usize];
    for (list, are_lost) in [(List::Blocks, &mut blocks), (List::Buckets, &mut buckets)] {
        for member in list.members(lane, table, pointer, are_lost.len()).await? {
            find(are_lost, member);
        }
    }
    let mut locks = Vec::new();
    for main in steps(table) {
        let (objects, chained) = read_chains(lane, table, shard, main).await?;
        for object in &objects {
            object.place.block().inspect(|block| find(&mut blocks, *block));
        }
        for bucket in &chained {
            bucket.number.checked_sub(geometry.buckets.main).inspect(|number| find(&mut buckets, *number));
        }
        let of_buckets = chained.iter().map(|bucket| (geometry.buckets.at(bucket.number), bucket.lock));
        let of_objects = objects.iter().map(|object| (object.at, object.lock));
        locks.extend(of_buckets.chain(of_objects).filter(|(_, lock)| !lock.is_free()));
    }
    // In this order: a client that leaves between the two looks would be missed otherwise.
    if registered(lane, leader).await? != [own] || Given::read(lane, table, pointer).await? != before {
        return Err(Abort::Changed.into());
    }
    let mut reclaimed = Reclaimed::default();
    for (at, lock) in locks {
        let mut round = lane.round();
        let swap = round.compare_swap(table.primary_at(pointer, at), lock.to_bits(), lock.freed().to_bits());
        reclaimed.locks += u64::from(lane.execute(round).await?.swapped(swap));
    }
    let first_use = |member| Place::first_use(member, KeyHash::default());
    for block in lost(&blocks) {
        List::Blocks.put(lane, table, pointer, first_use(block)).await?;
        reclaimed.blocks += 1;
        reclaimed.bytes += geometry.block_bytes;
    }
    for bucket in lost(&buckets) {
        List::Buckets.put(lane, table, pointer, first_use(bucket)).await?;
        reclaimed.buckets += 1;
    }
    Ok(reclaimed)
}

/// Notes that a member was found.
fn find(are_lost: &mut [bool], number: u64) {
    if let Some(is_lost) = are_lost.get_mut(number as usize) {
        *is_lost = false;
    }
}

/// Returns the numbers of the members that were found nowhere.
fn lost(are_lost: &[bool]) -> impl Iterator<Item = u64> + '_ {
    (0..).zip(are_lost).filter_map(|(number, is_lost)| is_lost.then_some(number))
}

/// What a shard has given out, and what was returned to it.
#[derive(PartialEq, Eq)]
struct Given {
    buckets: u64,
    blocks: u64,
    /// The heads of the lists.
    returned: [u64; 2],
}

impl Given {
    async fn read(lane: &Lane, table: &Table, shard: Pointer) -> Result<Given, Stop> {
        let mut round = lane.round();
        let reads = [AT_OVERFLOW, AT_BLOCKS, AT_RETURNED, AT_RETURNED_BUCKETS]
            .map(|at| round.read(table.primary_at(shard, at), WORD_BYTES));
        let done = lane.execute(round).await?;
        let [buckets, blocks, returned @ ..] = reads.map(|read| done.words(read)[0]);
        Ok(Given { buckets, blocks, returned })
    }
}
