//! Blocks and overflow buckets that clients have returned when they came to rest: two lists in each
//! shard. The head of a list is a word that clients CAS. It names the first member, as a place
//! names a block. A member has the word that names the next one in its own first word.

use remora_fabric::{Address, Lane, WORD_BYTES};
use remora_index::Table;
use remora_index::objects::{AT_RETURNED, AT_RETURNED_BUCKETS};
use remora_node::Pointer;
use remora_record::{KeyHash, Place};

use crate::error::Stop;

/// Returns the address of a block in the shard of an object, if there is such a block.
pub(super) fn block_address(table: &Table, object: Pointer, place: Place) -> Option<Address> {
    let at = table.objects()?.block_at(place.block()?)?;
    Some(table.primary_at(object, at))
}

/// A list of what clients have returned to a shard.
#[derive(Clone, Copy, Debug)]
pub(super) enum List {
    Blocks,
    /// Overflow buckets, whose numbers count from the first one.
    Buckets,
}

impl List {
    fn head_at(self, table: &Table, shard: Pointer) -> Address {
        table.primary_at(
            shard,
            match self {
                List::Blocks => AT_RETURNED,
                List::Buckets => AT_RETURNED_BUCKETS,
            },
        )
    }

    fn member_at(self, table: &Table, shard: Pointer, place: Place) -> Option<Address> {
        match self {
            List::Blocks => block_address(table, shard, place),
            List::Buckets => {
                let buckets = table.objects()?.buckets;
                let number = place.block().filter(|number| *number < buckets.overflow)?;
                Some(table.primary_at(shard, buckets.at(buckets.main + number)))
            }
        }
    }

    /// Takes a member out of the list of the shard of an object. Returns its last place, or `None`
    /// if the list is empty.
    pub(super) async fn take(self, lane: &Lane, table: &Table, object: Pointer) -> Result<Option<Place>, Stop> {
        let head_at = self.head_at(table, object);
        loop {
            let mut round = lane.round();
            let read = round.read(head_at, WORD_BYTES);
            let head = Place::from_bits(lane.execute(round).await?.words(read)[0]);
            let Some(member) = self.member_at(table, object, head) else { return Ok(None) };
            let mut round = lane.round();
            let read = round.read(member, WORD_BYTES);
            let next = lane.execute(round).await?.words(read)[0];
            let mut round = lane.round();
            let swap = round.compare_swap(head_at, head.to_bits(), next);
            if lane.execute(round).await?.swapped(swap) {
                return Ok(Some(head));
            }
        }
    }

    /// Returns the numbers of the members of the list of the shard of an object, but not more than
    /// `limit`: if the list was damaged, it could be a ring. Nobody may change the list meanwhile.
    pub(super) async fn members(
        self,
        lane: &Lane,
        table: &Table,
        object: Pointer,
        limit: usize,
    ) -> Result<Vec<u64>, Stop> {
        let mut members = Vec::new();
        let mut at = self.head_at(table, object);
        while members.len() < limit {
            let mut round = lane.round();
            let read = round.read(at, WORD_BYTES);
            let next = Place::from_bits(lane.execute(round).await?.words(read)[0]);
            let Some(member) = self.member_at(table, object, next) else { break };
            members.extend(next.block());
            at = member;
        }
        Ok(members)
    }

    /// Puts a member into the list of the shard of an object. No chain and no object has it.
    pub(super) async fn put(self, lane: &Lane, table: &Table, object: Pointer, last: Place) -> Result<(), Stop> {
        // The head of the list must not recur, either. So the member is returned with its next use.
        let Some(place) = last.next_use(KeyHash::default()) else { return Ok(()) };
        let Some(member) = self.member_at(table, object, place) else { return Ok(()) };
        let head_at = self.head_at(table, object);
        let mut round = lane.round();
        let read = round.read(head_at, WORD_BYTES);
        let mut head = lane.execute(round).await?.words(read)[0];
        loop {
            let mut round = lane.round();
            round.write_words(member, &[head]);
            let swap = round.compare_swap(head_at, head, place.to_bits());
            let done = lane.execute(round).await?;
            if done.swapped(swap) {
                return Ok(());
            }
            head = done.previous(swap);
        }
    }
}
