//! Lists of hot records: where a client's transactions get in each other's way.
//!
//! Each client counts the conflicts of its own transactions. A client that has hot records writes a
//! short list of them into the leader's memory, behind its last ring there. Any program can read
//! the lists of all clients, and add them up.
//!
//! ```text
//! list, 40 bytes and the records                record, 112 bytes
//! +0   kind      u32   1 = this drawing         +0   table      u16
//! +4   records   u32   at most 8                +2   key_bytes  u16
//! +8   client    u64   incarnation              +8   locked     u64   counts of this window, see
//! +16  sequence  u64   grows with every list    +16  changed    u64   `Conflicts`
//! +24  window    u64   nanoseconds in which     +24  otherwise  u64
//!                      the conflicts happened   +32  stood      u64
//! +32  checksum  u32   of all else, crc32c      +40  stood_ns   u64
//! +40  records                                  +48  key        64 bytes, zero-padded
//! ```
//!
//! A list is a hint for people: no transaction and no recovery reads it. So it has a version of its
//! own (`kind`), beside the memory format. A program that does not know the lists is not disturbed
//! by them: the space behind a client's rings belongs to that client.
//!
//! A list is overwritten in place, and nothing erases it when its client ends. So a reader refuses
//! a list that is torn (by the checksum), or of a former client of the slot (by the incarnation). A
//! list does not say when it was written, because no two clocks are compared. A reader that wants
//! to know whether a list is fresh reads it again ([`fresh_hot_lists`]): a client that still has
//! hot records writes a list with the next sequence number every [`HOT_WINDOW_NS`].

use remora_fabric::limits::{ROUND_BYTES_MAX, ROUND_VERBS_MAX};
use remora_fabric::{Execute, Lane, Nanos, NodeId, WORD_BYTES};
use zerocopy::IntoBytes;

use crate::client::{self, Registration};
use crate::error::MemoryError;
use crate::id::TableId;
use crate::limits::{HOT_LIST_BYTES, HOT_RECORDS_MAX, KEY_BYTES_MAX};
use crate::node;

/// How often a client writes its list while it has hot records, in nanoseconds.
pub const HOT_WINDOW_NS: Nanos = 1_000_000_000;

/// Pause between two looks at the lists, in nanoseconds.
const LOOK_PAUSE_NS: Nanos = 50_000_000;

const KIND: u32 = 1;
const HEADER_WORDS: usize = 5;
const CHECKSUM_WORD: usize = 4;
const KEY_WORD: usize = 6;
const KEY_WORDS: usize = KEY_BYTES_MAX / WORD_BYTES;
const RECORD_WORDS: usize = KEY_WORD + KEY_WORDS;
const LIST_WORDS: usize = HEADER_WORDS + HOT_RECORDS_MAX * RECORD_WORDS;

const _: () = assert!(RECORD_WORDS * WORD_BYTES == 112 && LIST_WORDS * WORD_BYTES == HOT_LIST_BYTES as usize);

/// How often transactions got in each other's way at a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Conflicts {
    /// Attempts that aborted because the record was locked.
    pub locked: u64,
    /// Attempts that aborted because the record had changed since they read it.
    pub changed: u64,
    /// Attempts that aborted at the record for another reason.
    pub otherwise: u64,
    /// Attempts before which a coroutine stood in line for the record.
    pub stood: u64,
    /// How long these coroutines stood in line together.
    pub stood_ns: Nanos,
}

impl Conflicts {
    /// Returns the number of attempts that were hindered. An attempt that stood in line and then
    /// aborted counts twice.
    #[must_use]
    pub fn count(&self) -> u64 {
        [self.changed, self.otherwise, self.stood].into_iter().fold(self.locked, u64::saturating_add)
    }

    /// Adds other conflicts.
    pub fn add(&mut self, other: &Conflicts) {
        self.locked = self.locked.saturating_add(other.locked);
        self.changed = self.changed.saturating_add(other.changed);
        self.otherwise = self.otherwise.saturating_add(other.otherwise);
        self.stood = self.stood.saturating_add(other.stood);
        self.stood_ns = self.stood_ns.saturating_add(other.stood_ns);
    }

    fn to_words(self) -> [u64; 5] {
        [self.locked, self.changed, self.otherwise, self.stood, self.stood_ns]
    }

    fn from_words([locked, changed, otherwise, stood, stood_ns]: [u64; 5]) -> Conflicts {
        Conflicts { locked, changed, otherwise, stood, stood_ns }
    }
}

/// A record of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotEntry {
    /// The record's table.
    pub table: TableId,
    /// The conflicts at the record.
    pub conflicts: Conflicts,
    key: [u64; KEY_WORDS],
    key_bytes: u16,
}

impl HotEntry {
    /// Makes the entry of a record. Returns `None` if the key has more than [`KEY_BYTES_MAX`]
    /// bytes.
    #[must_use]
    pub fn new(table: TableId, key: &[u8], conflicts: Conflicts) -> Option<HotEntry> {
        let mut entry = HotEntry { table, conflicts, key: [0; KEY_WORDS], key_bytes: key.len() as u16 };
        entry.key.as_mut_bytes().get_mut(..key.len())?.copy_from_slice(key);
        Some(entry)
    }

    /// Returns the bytes of the record's key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key.as_bytes()[..usize::from(self.key_bytes)]
    }

    fn decode(words: &[u64]) -> Option<HotEntry> {
        let (&[head, locked, changed, otherwise, stood, stood_ns], key) = words.split_first_chunk()?;
        let conflicts = Conflicts::from_words([locked, changed, otherwise, stood, stood_ns]);
        let key = key.as_bytes().get(..usize::from((head >> 16) as u16))?;
        HotEntry::new(TableId(head as u16), key, conflicts)
    }
}

/// The list of a client's hot records.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HotList {
    /// The number of the list. It grows with every list that the client writes.
    pub sequence: u64,
    /// The time in which the conflicts happened, by the client's clock.
    pub window_ns: Nanos,
    /// The records, the hottest first. The list has the first [`HOT_RECORDS_MAX`] of them.
    pub records: Vec<HotEntry>,
}

impl HotList {
    /// Encodes the list of a client. Returns its words, and how many of them are used.
    fn encode(&self, client: u32) -> ([u64; LIST_WORDS], usize) {
        let mut words = [0; LIST_WORDS];
        let records = &self.records[..self.records.len().min(HOT_RECORDS_MAX)];
        words[0] = u64::from(KIND) | (records.len() as u64) << 32;
        words[1..CHECKSUM_WORD].copy_from_slice(&[client.into(), self.sequence, self.window_ns]);
        for (record, into) in records.iter().zip(words[HEADER_WORDS..].chunks_exact_mut(RECORD_WORDS)) {
            into[0] = u64::from(record.table.0) | u64::from(record.key_bytes) << 16;
            into[1..KEY_WORD].copy_from_slice(&record.conflicts.to_words());
            into[KEY_WORD..].copy_from_slice(&record.key);
        }
        let used = HEADER_WORDS + records.len() * RECORD_WORDS;
        words[CHECKSUM_WORD] = checksum(&words[..used]);
        (words, used)
    }

    /// Decodes the words behind a client's rings. Returns `None` if they are no list of this
    /// client, or a torn one.
    #[must_use]
    pub fn decode(words: &[u64], client: u32) -> Option<HotList> {
        let (&[kind, of, sequence, window_ns, sum], _) = words.split_first_chunk::<HEADER_WORDS>()?;
        let records = (kind >> 32) as usize;
        if kind as u32 != KIND || of != u64::from(client) || records > HOT_RECORDS_MAX {
            return None;
        }
        let used = words.get(..HEADER_WORDS + records * RECORD_WORDS)?;
        if sum != checksum(used) {
            return None;
        }
        let records = used[HEADER_WORDS..].chunks_exact(RECORD_WORDS).map(HotEntry::decode).collect::<Option<_>>()?;
        Some(HotList { sequence, window_ns, records })
    }
}

/// Returns the checksum of a list, whose own word does not count.
fn checksum(words: &[u64]) -> u64 {
    let sum = crc32c::crc32c(words[..CHECKSUM_WORD].as_bytes());
    crc32c::crc32c_append(sum, words[HEADER_WORDS..].as_bytes()).into()
}

impl Registration {
    /// Writes the list of the client's hot records, in place of the one before. The client must
    /// have lanes, and `lane` must belong to it.
    pub fn write_hot_list<'l>(&self, lane: &'l Lane, list: &HotList) -> Execute<'l> {
        let (words, used) = list.encode(self.incarnation);
        let (leader, offset) = self.hot_list_at();
        let mut round = lane.round();
        round.write_words(node::at(leader, offset), &words[..used]);
        lane.execute(round)
    }
}

/// Reads the lists of all clients that are connected to a node. Each list comes with its client's
/// incarnation. A client without a list, or with a torn one, is left out.
pub async fn hot_lists(lane: &Lane, node: NodeId) -> Result<Vec<(u32, HotList)>, MemoryError> {
    read_lists(lane, node, &client::hot_list_places(lane, node).await?).await
}

/// Reads the lists of hot records at a node that are fresh: their clients have written them while
/// this call has looked. If there are lists, the call takes until each client has written its next
/// one, but at most twice as long as a client that is not late needs for that.
pub async fn fresh_hot_lists(lane: &Lane, node: NodeId) -> Result<Vec<HotList>, MemoryError> {
    let mut places = client::hot_list_places(lane, node).await?;
    let mut seen = read_lists(lane, node, &places).await?;
    seen.retain(|(_, list)| !list.records.is_empty());
    let (mut fresh, until) = (Vec::new(), lane.now().saturating_add(2 * HOT_WINDOW_NS));
    while !seen.is_empty() && lane.now() < until {
        lane.sleep(LOOK_PAUSE_NS).await;
        places.retain(|(client, _)| seen.iter().any(|(awaited, _)| awaited == client));
        for (client, list) in read_lists(lane, node, &places).await? {
            let is_older = |(awaited, before): &(u32, HotList)| *awaited == client && before.sequence < list.sequence;
            if let Some(at) = seen.iter().position(is_older) {
                seen.swap_remove(at);
                fresh.push(list);
            }
        }
    }
    Ok(fresh)
}

/// Reads the lists of clients, of which each comes with the offset of its list.
async fn read_lists(lane: &Lane, node: NodeId, places: &[(u32, u64)]) -> Result<Vec<(u32, HotList)>, MemoryError> {
    const LISTS: usize = ROUND_BYTES_MAX / HOT_LIST_BYTES as usize;
    const _: () = assert!(LISTS > 0 && LISTS <= ROUND_VERBS_MAX);
    let mut lists = Vec::new();
    for places in places.chunks(LISTS) {
        let mut round = lane.round();
        let read =
            |(client, offset): &(u32, u64)| (*client, round.read(node::at(node, *offset), HOT_LIST_BYTES as usize));
        let reads: Vec<_> = places.iter().map(read).collect();
        let done = lane.execute(round).await?;
        let decoded = reads.into_iter().map(|(client, read)| (client, HotList::decode(done.words(read), client)));
        lists.extend(decoded.filter_map(|(client, list)| Some((client, list?))));
    }
    Ok(lists)
}
