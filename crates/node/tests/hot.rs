//! Lists of hot records: what one client writes, any other reads; what is no list is refused.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use remora_fabric::shm::Shm;
use remora_fabric::{ClientId, Fabric, Lane, NodeId, NodeSet, block_on};
use remora_node::hot::{Conflicts, HotEntry, HotList, hot_lists};
use remora_node::limits::{HOT_LIST_BYTES, HOT_RECORDS_MAX, KEY_BYTES_MAX};
use remora_node::node::{self, REGION};
use remora_node::ring::RING_EXTENT_BYTES;
use remora_node::{Registration, TableId};

fn nodes() -> NodeSet {
    NodeSet::first(2)
}

fn cluster() -> Shm {
    let shm = Shm::new(&[vec![2 << 20], vec![2 << 20]]).unwrap();
    for at in nodes().iter() {
        node::format(&shm.region(at, REGION).unwrap(), node::Place::default()).unwrap();
    }
    shm
}

fn entry(table: u16, key: &[u8], first: u64) -> HotEntry {
    let conflicts =
        Conflicts { locked: first, changed: first + 1, otherwise: first + 2, stood: first + 3, stood_ns: first + 4 };
    HotEntry::new(TableId(table), key, conflicts).unwrap()
}

fn list(sequence: u64, records: usize) -> HotList {
    let records = (0..records).map(|number| entry(number as u16, &[7; KEY_BYTES_MAX][..number], sequence)).collect();
    HotList { sequence, window_ns: 1_000, records }
}

/// Connects a client, and returns it.
fn connect(shm: &Shm, lanes: usize) -> Registration {
    block_on(shm, ClientId(0), async |lane: &Lane| Registration::connect(lane, nodes(), lanes).await).unwrap().unwrap()
}

fn write(shm: &Shm, client: &Registration, list: &HotList) {
    let write = async |lane: &Lane| client.write_hot_list(lane, list).await.map(drop);
    block_on(shm, ClientId(client.incarnation), write).unwrap().unwrap();
}

fn read(shm: &Shm, node: u16) -> Vec<(u32, HotList)> {
    block_on(shm, ClientId(0), async |lane: &Lane| hot_lists(lane, NodeId(node)).await).unwrap().unwrap()
}

/// The words of the list that a client of one lane has at node 0.
fn words_of(shm: &Shm, client: &Registration) -> Vec<u64> {
    let region = shm.region(NodeId(0), REGION).unwrap();
    let at = (client.ring(NodeId(0), 0).applied_at().offset + RING_EXTENT_BYTES) as usize / 8;
    let words = region.words()[at..][..HOT_LIST_BYTES as usize / 8].iter();
    words.map(|word| word.load(Ordering::Acquire)).collect()
}

#[test]
fn golden_list() {
    let shm = cluster();
    let client = connect(&shm, 1);
    assert_eq!(client.incarnation, 1);
    write(&shm, &client, &HotList { sequence: 9, window_ns: 77, records: vec![entry(5, b"abcdefghi", 100)] });
    let words = words_of(&shm, &client);
    assert_eq!(words[..4], [1 | 1 << 32, 1, 9, 77]);
    assert_eq!(words[4] >> 32, 0, "the checksum has 32 bits");
    let key = [u64::from_le_bytes(*b"abcdefgh"), u64::from(b'i'), 0, 0, 0, 0, 0, 0];
    assert_eq!(words[5..11], [5 | 9 << 16, 100, 101, 102, 103, 104]);
    assert_eq!(words[11..19], key);
    assert!(words[19..].iter().all(|word| *word == 0), "nothing behind the last record is written");
}

#[test]
fn lists_are_those_of_connected_clients_at_the_leader() {
    let shm = cluster();
    let [one, two, cold] = [1, 3, 2].map(|lanes| connect(&shm, lanes));
    let catalog = connect(&shm, 0);
    write(&shm, &one, &list(1, 1));
    write(&shm, &two, &list(1, HOT_RECORDS_MAX));
    let lists = || (read(&shm, 0), read(&shm, 1));
    let (at_leader, elsewhere) = lists();
    assert_eq!(at_leader, [(one.incarnation, list(1, 1)), (two.incarnation, list(1, HOT_RECORDS_MAX))]);
    assert!(elsewhere.is_empty());
    // A list replaces the one before, whether it is shorter or longer.
    write(&shm, &two, &list(2, 2));
    write(&shm, &one, &list(2, 0));
    assert_eq!(lists().0, [(one.incarnation, list(2, 0)), (two.incarnation, list(2, 2))]);
    // The list of a client that has left does not count, and is not taken for that of the next
    // client in the slot.
    let (slot, lanes) = (two.slot(), 3);
    block_on(&shm, ClientId(two.incarnation), async |lane: &Lane| two.disconnect(lane).await).unwrap().unwrap();
    assert_eq!(lists().0, [(one.incarnation, list(2, 0))]);
    let next = connect(&shm, lanes);
    assert_eq!(next.slot(), slot);
    assert_eq!(lists().0, [(one.incarnation, list(2, 0))]);
    write(&shm, &next, &list(1, 3));
    assert_eq!(lists().0, [(one.incarnation, list(2, 0)), (next.incarnation, list(1, 3))]);
    drop((cold, catalog));
}

/// A client whose slot has no room for a list has none, whatever lies behind its rings. Nothing is
/// read outside of the memory.
#[test]
fn a_client_without_room_has_no_list() {
    let shm = cluster();
    let client = connect(&shm, 1);
    write(&shm, &client, &list(1, 1));
    assert_eq!(read(&shm, 0).len(), 1);
    let region = shm.region(NodeId(0), REGION).unwrap();
    let [lanes, rings, extent] = [1, 2, 3].map(|word| &region.words()[512 + client.slot() as usize * 8 + word]);
    for (word, value) in
        [(extent, RING_EXTENT_BYTES), (rings, u64::MAX), (rings, 1 << 40), (lanes, u64::MAX), (lanes, 0)]
    {
        let before = word.swap(value, Ordering::AcqRel);
        assert!(read(&shm, 0).is_empty(), "{value:x}");
        word.store(before, Ordering::Release);
    }
    assert_eq!(read(&shm, 0).len(), 1);
}

/// Encodes records as a list of client 7, with a checksum that is right.
fn sealed(records: &[u64], count: u64) -> Vec<u64> {
    let head = [1 | count << 32, 7, 1, 1];
    let bytes: Vec<u8> = head.iter().chain(records).flat_map(|word| word.to_le_bytes()).collect();
    [&head[..], &[crc32c::crc32c(&bytes).into()], records].concat()
}

#[test]
fn a_list_of_more_records_than_there_can_be_is_refused() {
    let records = |count: usize| HotList::decode(&sealed(&vec![0; count * 14], count as u64), 7);
    assert_eq!(records(HOT_RECORDS_MAX).unwrap().records.len(), HOT_RECORDS_MAX);
    assert_eq!(records(HOT_RECORDS_MAX + 1), None);
}

proptest! {
    #[test]
    fn a_list_is_read_whole_or_not(
        old in 0..=HOT_RECORDS_MAX, new in 0..=HOT_RECORDS_MAX, arrived in any::<prop::sample::Index>(),
        flip in (any::<prop::sample::Index>(), 0u32..64),
    ) {
        let shm = cluster();
        let client = connect(&shm, 1);
        write(&shm, &client, &list(1, old));
        let before = words_of(&shm, &client);
        write(&shm, &client, &list(2, new));
        let after = words_of(&shm, &client);
        prop_assert_eq!(HotList::decode(&after, client.incarnation), Some(list(2, new)));
        prop_assert_eq!(HotList::decode(&after, client.incarnation + 1), None);
        // The list has arrived up to some word.
        let used = 5 + 14 * new;
        let arrived = arrived.index(used);
        let torn = [&after[..arrived], &before[arrived..]].concat();
        let decoded = HotList::decode(&torn, client.incarnation);
        prop_assert!(decoded.is_none() || decoded == Some(list(1, old)) || decoded == Some(list(2, new)), "{:?}", decoded);
        let mut flipped = after.clone();
        flipped[flip.0.index(used)] ^= 1 << flip.1;
        prop_assert_eq!(HotList::decode(&flipped, client.incarnation), None);
        // A list that is cut is none.
        prop_assert_eq!(HotList::decode(&after[..arrived], client.incarnation), None);
    }

    /// Words that begin like a list of the client, and any others.
    #[test]
    fn arbitrary_words_never_panic(
        mut words in proptest::collection::vec(any::<u64>(), 0..130), records in 0u64..12, like in any::<bool>(),
    ) {
        if let (true, [kind, client, ..]) = (like, &mut words[..]) {
            (*kind, *client) = (1 | records << 32, 7);
        }
        prop_assert_eq!(HotList::decode(&words, 7), None);
    }

    /// The words of a record may be any, with a checksum that is right.
    #[test]
    fn records_with_a_right_checksum_never_panic(head in any::<u64>(), counts in any::<[u64; 5]>(), key in any::<[u64; 8]>()) {
        let words = sealed(&[&[head], &counts[..], &key[..]].concat(), 1);
        let decoded = HotList::decode(&words, 7);
        prop_assert_eq!(decoded.is_some(), usize::from((head >> 16) as u16) <= KEY_BYTES_MAX);
        let total: Option<u64> = decoded.map(|list| list.records.iter().map(|one| one.conflicts.count()).sum());
        prop_assert_eq!(total.unwrap_or(0) > 0, total.is_some() && counts[..4].iter().any(|count| *count > 0));
    }
}
