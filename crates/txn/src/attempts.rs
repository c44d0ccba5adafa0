//! The log of an attempt under protocol `rtx`: by it, any client finishes or undoes the attempt
//! (`protocol/rtx`).
//!
//! ```text
//! word in the ring's header, CASed only
//! | 0 : 2 | stage : 3 | owner : 24 | sequence : 35 |
//!
//! entries, in the ring's data
//! +0   count   u64
//! +8   word    u64   that the commit swaps: the pointer of the object's lock, and in the lowest
//!                    bits how many words behind the lock it is, 1 or 2
//!      old     u64
//!      new     u64   and so on for each swap
//! ```
//!
//! ```text
//! (un)done(p) -> begun(s)    owner            begun(s) -> decided(s)     owner: the commit point
//! begun(s) -> aborted(s)     anyone           aborted(s) -> undone(s)    owner
//!                                             decided(s) -> done(s)      owner
//! ```

use remora_fabric::{Address, Lane, NodeSet, WORD_BYTES};
use remora_node::ring::ATTEMPT_ENTRIES_BYTES;
use remora_node::{Metadata, Pointer, metadata};
use remora_record::{LockWord, RepairableLock, TransactionId};

use crate::error::Stop;

/// How far the attempt has come whose log it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The attempt has committed, and has left nothing to do.
    Done,
    /// The attempt may have locks, and has not committed.
    Begun,
    /// The attempt has committed. What it swaps may not be swapped yet.
    Decided,
    /// The attempt will not commit. It may have locks.
    Aborted,
    /// The attempt has not committed, and has left nothing to do.
    Undone,
}

impl Stage {
    const ALL: [Stage; 5] = [Stage::Done, Stage::Begun, Stage::Decided, Stage::Aborted, Stage::Undone];
}

const STAGE_SHIFT: u32 = 59;
const OWNER_SHIFT: u32 = 35;

/// Returns the word of a log for an attempt in this stage.
pub(crate) fn word(stage: Stage, id: TransactionId) -> u64 {
    debug_assert!(id.sequence() <= RepairableLock::SEQUENCE_MAX);
    (stage as u64) << STAGE_SHIFT | u64::from(id.owner()) << OWNER_SHIFT | id.sequence()
}

/// Returns the stage of the log's attempt, and the attempt. `None` if the log was never used.
pub(crate) fn parse(word: u64) -> Option<(Stage, TransactionId)> {
    let stage = *Stage::ALL.get((word >> STAGE_SHIFT) as usize)?;
    let owner = word >> OWNER_SHIFT & ((1 << 24) - 1);
    Some((stage, TransactionId::new(owner as u32, word & RepairableLock::SEQUENCE_MAX)?))
}

/// Returns whether the log with this word was never used, or its attempt has left nothing to do.
pub(crate) fn is_ended(word: u64) -> bool {
    parse(word).is_none_or(|(stage, _)| matches!(stage, Stage::Done | Stage::Undone))
}

/// Returns the number of the ring that has the log of the attempt with this sequence number, of a
/// client with this number of lanes.
pub(crate) fn ring_of(sequence: u64, lanes: usize) -> usize {
    (sequence % lanes.max(1) as u64) as usize
}

/// The largest number of swaps that a log has room for.
pub(crate) const SWAPS_MAX: usize = (ATTEMPT_ENTRIES_BYTES / WORD_BYTES - 1) / ENTRY_WORDS;
const ENTRY_WORDS: usize = 3;
/// The bits of an entry's first word that a pointer of a lock, which is a multiple of 8, leaves
/// free.
const WORD_MASK: u64 = WORD_BYTES as u64 - 1;

/// A word that a commit swaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Swapped {
    /// The pointer of the object's lock.
    pub(crate) lock: Pointer,
    /// How many words behind the lock the word is: 1 or 2.
    pub(crate) word: u64,
    /// The word before the commit.
    pub(crate) old: u64,
    /// The word after the commit.
    pub(crate) new: u64,
}

/// Returns the words of the entries of these swaps.
pub(crate) fn encode(swaps: &[Swapped], words: &mut Vec<u64>) {
    words.clear();
    words.push(swaps.len() as u64);
    words.extend(swaps.iter().flat_map(|swap| [swap.lock.to_bits() | swap.word, swap.old, swap.new]));
}

/// Returns the swaps of entries that were read. The words may be any.
pub(crate) fn decode(words: &[u64]) -> impl Iterator<Item = Swapped> {
    let (count, entries) = words.split_first().map_or((0, &[][..]), |(count, entries)| (*count, entries));
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let swap = |entry: &[u64]| Swapped {
        lock: Pointer::from_bits(entry[0] & !WORD_MASK),
        word: entry[0] & WORD_MASK,
        old: entry[1],
        new: entry[2],
    };
    entries.chunks_exact(ENTRY_WORDS).take(count).map(swap)
}

/// Bytes of the entries that a repairer reads at first: more than most attempts have.
const FIRST_ENTRIES_BYTES: usize = 256;

/// Reads the entries of a log. They may be torn: the caller looks at the log's word again.
pub(crate) async fn entries(lane: &Lane, at: Address) -> Result<Vec<Swapped>, Stop> {
    let mut bytes = FIRST_ENTRIES_BYTES;
    loop {
        let mut round = lane.round();
        let read = round.read(at, bytes);
        let done = lane.execute(round).await?;
        let words = done.words(read);
        let wanted = (words[0] as usize).saturating_mul(3 * WORD_BYTES).saturating_add(WORD_BYTES);
        if wanted <= bytes || bytes == ATTEMPT_ENTRIES_BYTES {
            return Ok(decode(words).collect());
        }
        bytes = wanted.min(ATTEMPT_ENTRIES_BYTES);
    }
}

/// Ends the attempt whose log this is, in the name of its client, which does nothing any more:
/// swaps what it has decided, or undoes what it has begun, and frees its locks. Returns the log's
/// word then, and the attempt, if there was one, and whether it has committed.
pub(crate) async fn settle(
    lane: &Lane,
    nodes: NodeSet,
    (word_at, entries_at): (Address, Address),
) -> Result<(u64, Option<(TransactionId, bool)>), Stop> {
    loop {
        let mut round = lane.round();
        let read = round.read(word_at, WORD_BYTES);
        let found = lane.execute(round).await?.words(read)[0];
        let Some((stage, id)) = parse(found) else { return Ok((found, None)) };
        match stage {
            Stage::Done | Stage::Undone => return Ok((found, Some((id, stage == Stage::Done)))),
            Stage::Begun => {
                let mut round = lane.round();
                round.compare_swap(word_at, found, word(Stage::Aborted, id));
                lane.execute(round).await?;
            }
            Stage::Aborted | Stage::Decided => {
                let ended = if stage == Stage::Decided { Stage::Done } else { Stage::Undone };
                // The attempt may have written tables that this client does not know.
                let metadata = metadata::read(lane, nodes.leader()).await?;
                let swaps = entries(lane, entries_at).await?;
                for of_object in swaps.chunk_by(|one, other| one.lock == other.lock) {
                    if let Some(at) = address_of(&metadata, of_object[0].lock) {
                        end(lane, (id, stage), at, of_object).await?;
                    }
                }
                let mut round = lane.round();
                round.compare_swap(word_at, found, word(ended, id));
                lane.execute(round).await?;
            }
        }
    }
}

/// Returns the address of an object's lock, or `None` if the object's table was dropped.
fn address_of(metadata: &Metadata, lock: Pointer) -> Option<Address> {
    let shard = metadata.shards.get(usize::from(lock.shard().0))?;
    let table = metadata.tables.get(usize::from(shard.table.0))?;
    let replica = shard.replicas.first().filter(|_| table.spec.discipline.is_repairable())?;
    Some(replica.address(lock.offset()))
}

/// Swaps what an attempt has decided at one object, and frees its lock. If the object has another
/// lock, nothing is left to do. Its table may even be another one, in which the old words of the
/// swaps recur.
async fn end(lane: &Lane, (id, stage): (TransactionId, Stage), at: Address, swaps: &[Swapped]) -> Result<(), Stop> {
    let mut round = lane.round();
    let read = round.read(at, WORD_BYTES);
    let lock = LockWord::from_bits(lane.execute(round).await?.words(read)[0]);
    if lock.repairable().and_then(RepairableLock::holder) != Some(id) {
        return Ok(());
    }
    let mut round = lane.round();
    for swap in swaps.iter().filter(|_| stage == Stage::Decided) {
        round.compare_swap(at.plus(swap.word * WORD_BYTES as u64), swap.old, swap.new);
    }
    round.compare_swap(at, lock.to_bits(), lock.freed().to_bits());
    lane.execute(round).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use remora_fabric::shm::Shm;
    use remora_fabric::{ClientId, Fabric, NodeId, block_on};
    use remora_node::{Discipline, Fingerprint, Grows, IndexKind, Registration, ShardId, TableSpec, node};
    use remora_record::{LogPlace, layout_of_block};

    use super::*;

    proptest! {
        #[test]
        fn a_word_names_a_stage_and_an_attempt(owner in 1u32..1 << 24, sequence in 0u64..1 << 35) {
            let id = TransactionId::new(owner, sequence).unwrap();
            for stage in Stage::ALL {
                prop_assert_eq!(parse(word(stage, id)), Some((stage, id)));
            }
            prop_assert_eq!(parse(0), None);
        }

        #[test]
        fn what_is_encoded_is_decoded(
            swaps in prop::collection::vec((any::<[u64; 3]>(), 1u64..3), 0..20), rest in 0usize..9,
        ) {
            let swap = |([lock, old, new], word): ([u64; 3], u64)| Swapped { lock: Pointer::from_bits(lock & !7), word, old, new };
            let swaps: Vec<Swapped> = swaps.into_iter().map(swap).collect();
            let mut words = Vec::new();
            encode(&swaps, &mut words);
            words.resize(words.len() + rest, 7);
            prop_assert!(decode(&words).eq(swaps.iter().copied()));
        }

        /// Whatever lies in a log, nothing panics.
        #[test]
        fn any_words_are_entries(words in prop::collection::vec(any::<u64>(), 0..40), log in any::<u64>()) {
            prop_assert!(decode(&words).count() <= words.len() / 3);
            let _any = parse(log);
        }
    }

    /// A client ends the logs of another one without knowing the tables. What is locked by another
    /// attempt, or lies in a table that was dropped, stays as it is.
    #[test]
    fn a_log_is_settled_without_its_tables() {
        for (stage, ended) in
            [(Stage::Decided, Stage::Done), (Stage::Aborted, Stage::Undone), (Stage::Begun, Stage::Undone)]
        {
            let fabric = Shm::new(&[vec![1 << 20]]).unwrap();
            node::format(&fabric.region(NodeId(0), node::REGION).unwrap(), node::Place::default()).unwrap();
            let settled = block_on(&fabric, ClientId(1), async |lane: &Lane| {
                let nodes = NodeSet::first(1);
                let (table, metadata) = metadata::create_table(lane, nodes, nodes, 1, spec(), NodeId(0)).await.unwrap();
                let client = Registration::connect(lane, nodes, 1).await.unwrap();
                let (id, other) = (TransactionId::new(9, 70).unwrap(), TransactionId::new(9, 71).unwrap());
                let shard = metadata.tables[usize::from(table.0)].shard_first;
                let held = |id| RepairableLock::held_by(id, LogPlace::Here).unwrap();
                // Objects of a record, of a bucket, and of a record that has another lock.
                let objects = [(0, 1), (64, 1), (64, 2), (128, 1)];
                let swap = |(at, word)| Swapped { lock: Pointer::new(shard, at), word, old: 10 + word, new: 20 + word };
                let mut swaps: Vec<Swapped> = objects.into_iter().map(swap).collect();
                swaps.push(Swapped { lock: Pointer::new(ShardId(shard.0 + 1), 0), ..swaps[0] });
                let (word_at, entries_at) = client.ring(NodeId(0), 0).attempt_log_at();
                let at = |offset| metadata.shards[usize::from(shard.0)].replicas[0].address(offset);
                let mut words = Vec::new();
                encode(&swaps, &mut words);
                let mut round = lane.round();
                round.write_words(entries_at, &words);
                round.write_words(word_at, &[word(stage, id)]);
                for (offset, id) in [(0, id), (64, id), (128, other)] {
                    round.write_words(at(offset), &[held(id).word().to_bits(), 11, 12]);
                }
                lane.execute(round).await.unwrap();

                let settled = settle(lane, nodes, (word_at, entries_at)).await.unwrap();
                assert_eq!(settled, (word(ended, id), Some((id, stage == Stage::Decided))));
                assert_eq!(settle(lane, nodes, (word_at, entries_at)).await.unwrap(), settled);
                let mut round = lane.round();
                let reads = [0, 64, 128].map(|offset| round.read(at(offset), 24));
                let done = lane.execute(round).await.unwrap();
                let freed = held(id).freed().to_bits();
                let [record, bucket] = if stage == Stage::Decided { [[21, 12], [21, 22]] } else { [[11, 12]; 2] };
                assert_eq!(done.words(reads[0]), [freed, record[0], record[1]], "{stage:?}");
                assert_eq!(done.words(reads[1]), [freed, bucket[0], bucket[1]], "{stage:?}");
                assert_eq!(done.words(reads[2]), [held(other).word().to_bits(), 11, 12], "{stage:?}");
            });
            settled.unwrap();
        }
    }

    fn spec() -> TableSpec {
        TableSpec {
            name: "objects".to_owned(),
            schema: String::new(),
            fingerprint: Fingerprint(0),
            layout: layout_of_block(8, 8, None).unwrap(),
            index: IndexKind::Objects,
            discipline: Discipline::COPY_ON_WRITE,
            shards: 1,
            replicas: 1,
            buckets: 1,
            indirect: 0,
            slots: 2,
            indirect_slots: 0,
            shard_bytes: 4096,
            grows: Grows::WhenTold,
        }
    }
}
