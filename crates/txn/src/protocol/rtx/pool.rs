//! Blocks that clients have returned when they left: a list in each shard, whose head is a word
//! that clients CAS. The word names the first block of the list. A returned block has the word that
//! names the next one in its own first word.

use remora_fabric::{Lane, WORD_BYTES};
use remora_index::Table;
use remora_index::objects::AT_RETURNED;
use remora_node::ShardId;
use remora_record::{KeyHash, Place};

use super::execute::block_address;
use crate::error::Stop;
use crate::state::State;
use crate::tx::Tx;

/// Takes a block that a client has returned to the shard of an item. Returns false if there is
/// none.
pub(super) async fn take_returned(tx: &mut Tx<'_>, index: usize) -> Result<bool, Stop> {
    let item = tx.state.sets.items[index];
    let lane = tx.lane;
    loop {
        let table = tx.state.sets.table(item.table);
        let head_at = table.primary_at(item.location.pointer, AT_RETURNED);
        let mut round = lane.round();
        let read = round.read(head_at, WORD_BYTES);
        let head = Place::from_bits(lane.execute(round).await?.words(read)[0]);
        let Some(block) = block_address(table, item.location.pointer, head) else { return Ok(false) };
        let mut round = lane.round();
        let read = round.read(block, WORD_BYTES);
        let next = lane.execute(round).await?.words(read)[0];
        let mut round = lane.round();
        let swap = round.compare_swap(head_at, head.to_bits(), next);
        if lane.execute(round).await?.swapped(swap) {
            tx.state.repairs.add_free(item.location.pointer.shard(), head);
            return Ok(true);
        }
    }
}

/// Returns the blocks of a shard that a session owns and no object has.
pub(super) async fn give_back(lane: &Lane, table: &Table, shard: ShardId, places: Vec<Place>) -> Result<(), Stop> {
    let pointer = remora_node::Pointer::new(shard, 0);
    let head_at = table.primary_at(pointer, AT_RETURNED);
    // The head of the list must not recur, either. So a block is returned with its next use.
    for place in places.into_iter().filter_map(|place| place.next_use(KeyHash::default())) {
        let Some(block) = block_address(table, pointer, place) else { continue };
        let mut round = lane.round();
        let read = round.read(head_at, WORD_BYTES);
        let mut head = lane.execute(round).await?.words(read)[0];
        loop {
            let mut round = lane.round();
            round.write_words(block, &[head]);
            let swap = round.compare_swap(head_at, head, place.to_bits());
            let done = lane.execute(round).await?;
            if done.swapped(swap) {
                break;
            }
            head = done.previous(swap);
        }
    }
    Ok(())
}

/// Returns all blocks that a session owns, before it rests or ends.
pub(crate) async fn give_back_all(lane: &Lane, state: &mut State) -> Result<(), Stop> {
    for (shard, places) in state.repairs.drain() {
        let table = state.sets.tables.iter().flatten().find(|table| {
            let first = table.shard_id(0).0;
            (first..first + table.shards()).contains(&shard.0)
        });
        if let Some(table) = table.cloned() {
            give_back(lane, &table, shard, places).await?;
        }
    }
    Ok(())
}
