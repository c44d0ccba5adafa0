//! Tests of the catalog, the superblock and the slots of clients: what is refused, and with which
//! errors.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use remora_fabric::seeded::Seeded;
use remora_fabric::shm::Shm;
use remora_fabric::{ClientId, Fabric, Lane, NodeId, NodeSet, Worker, block_on};
use remora_node::limits::{CLIENTS_MAX, INCARNATIONS_MAX, KEY_BYTES_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX};
use remora_node::metadata::{Places, Wanted};
use remora_node::node::{self, FORMAT, Place, REGION};
use remora_node::{
    Cells, Discipline, Fingerprint, GivenUp, Grows, Growth, Layout, MemoryError, Metadata, ReadScheme, Registration,
    Replica, ShardId, ShardPlacement, Stage, TableEntry, TableId, TableSpec, Tombstone, follow_leader, identity,
    metadata,
};

const NODE: NodeId = NodeId(0);

fn cluster(nodes: u16, bytes: usize) -> Shm {
    formatted(Shm::new(&vec![vec![bytes]; nodes.into()]).unwrap())
}

fn formatted<F: Fabric>(fabric: F) -> F {
    for at in (0..fabric.nodes()).map(NodeId) {
        node::format(&fabric.region(at, REGION).unwrap(), Place::default()).unwrap();
    }
    fabric
}

fn spec(name: &str, replicas: u8) -> TableSpec {
    TableSpec {
        name: name.to_owned(),
        schema: "balance: i64".to_owned(),
        fingerprint: Fingerprint(0x0123_4567_89ab_cdef),
        layout: Layout {
            key_bytes: 8,
            value_at: 32,
            line_header: 0,
            value_max: 24,
            slot_bytes: 64,
            scheme: ReadScheme::SingleLine,
            cells: None,
            timed: false,
        },
        index: remora_node::IndexKind::ClusterHash,
        discipline: Discipline::OCC_ONE_SIDED,
        shards: 2,
        replicas,
        buckets: 3,
        indirect: 4,
        slots: 5,
        indirect_slots: 0,
        shard_bytes: 8192,
        grows: Grows::WhenTold,
    }
}

fn create(fabric: &dyn Fabric, spec: TableSpec) -> Result<(TableId, Metadata), MemoryError> {
    let nodes = NodeSet::first(fabric.nodes());
    block_on(fabric, ClientId(1), async |lane: &Lane| {
        metadata::create_table(lane, nodes, nodes, 1, spec, NodeId(0)).await
    })
    .unwrap()
}

fn read(fabric: &dyn Fabric, at: NodeId) -> Result<Metadata, MemoryError> {
    block_on(fabric, ClientId(1), async |lane: &Lane| metadata::read(lane, at).await).unwrap()
}

fn store(fabric: &dyn Fabric, at: NodeId, offset: u64, word: u64) {
    fabric.region(at, REGION).unwrap().words()[offset as usize / 8].store(word, Ordering::SeqCst);
}

fn load(fabric: &dyn Fabric, at: NodeId, offset: u64) -> u64 {
    fabric.region(at, REGION).unwrap().words()[offset as usize / 8].load(Ordering::SeqCst)
}

// --- Formats.

/// Memory outlives programs, so these bytes may change only together with `FORMAT`.
#[test]
fn golden_superblock() {
    let fabric = Shm::new(&[vec![1 << 20]]).unwrap();
    let region = fabric.region(NODE, REGION).unwrap();
    node::format(&region, Place { numa: Some(1), nic: 2 }).unwrap();
    let line: Vec<u64> = region.words()[..8].iter().map(|word| word.load(Ordering::SeqCst)).collect();
    assert_eq!(line[0].to_le_bytes(), *b"REMORA\x01\x02");
    assert_eq!(line[1], 0x0201_0000_0000_0011, "NIC 2, NUMA node 1, format 17");
    assert_eq!(line[2..], [0, 1 << 20, 420 << 10, 0, 0, 0]);
    let superblock = node::Superblock::parse(NODE, &line.try_into().unwrap()).unwrap();
    assert_eq!((superblock.bytes, superblock.allocated), (1 << 20, 420 << 10));
    assert_eq!(superblock.place, Place { numa: Some(1), nic: 2 });
}

#[test]
fn golden_metadata() {
    let fabric = cluster(2, 1 << 20);
    let (id, metadata) = create(&fabric, spec("accounts", 2)).unwrap();
    assert_eq!(id, TableId(0));
    let words: Vec<u64> =
        metadata.encode().chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words.len(), (64 + 320 + 2 * 128) / 8);
    let (header, rest) = words.split_at(8);
    assert_eq!(header[0].to_le_bytes(), *b"REMORAcd");
    assert_eq!(header[1], u64::from(GOLDEN_CHECKSUM) << 32 | 17, "format 17");
    assert_eq!(header[2..], [0, 1, 1, 2 << 32 | 1, 0, 0], "features, generation, epoch, two shards and one table");
    let (table, shards) = rest.split_at(40);
    assert_eq!(table[0].to_le_bytes(), *b"accounts");
    assert_eq!(table[1..8], [0; 7]);
    assert_eq!(table[8..12], [0x0123_4567_89ab_cdef, 3, 4, 5]);
    assert_eq!(table[12], 64 << 32 | 24, "slot and value bytes");
    assert_eq!(table[13], 32 << 48 | 8 << 32 | 2 << 16, "value at, key bytes, shards, first shard");
    assert_eq!(table[14], 1 << 32 | 1 << 24 | 2 << 16, "read scheme, index, replicas");
    assert_eq!(table[15], 0x0201_0101, "discipline");
    let grows_when_told = 1 << 56;
    assert_eq!(table[16..20], [1, 0, 0, 1], "born by the first change, not dropped, and its own origin");
    assert_eq!(table[20..24], [grows_when_told, 0, 0, 0]);
    let schema: Vec<u8> = table[24..].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(schema.starts_with(b"balance: i64\0") && schema[12..].iter().all(|byte| *byte == 0));
    let space = 420 << 10;
    assert_eq!(shards[..6], [2 << 16, 8192, 0, space, 1, space]);
    assert_eq!(shards[16..22], [2 << 16, 8192, 1, space + 8192, 0, space + 8192]);
    assert_eq!(Metadata::decode(NODE, &metadata.encode()).as_ref(), Ok(&Some(metadata.clone())));
    let whole = metadata.clone();
    let (_, mut growing) = create(&fabric, spec("larger", 2)).unwrap();
    growing.tables[1].spec.grows = Grows::ByItself;
    (growing.tables[1].growths, growing.tables[1].origin) = (3, 1);
    growing.tables[1].growth = Some(Growth { from: TableId(0), stage: Stage::Filling, by: 6 });
    let words = growing.encode();
    let larger = &words[64 + 320..];
    assert_eq!(larger[144..][..8], (3u64 << 32).to_le_bytes(), "it has grown three times");
    assert_eq!(larger[152..][..8], 1u64.to_le_bytes(), "the first change entered the first of them");
    assert_eq!(larger[160..][..8], (2u64 << 56 | 2 << 48 | 6).to_le_bytes(), "client 6 fills it, from table 0");
    assert_eq!(Metadata::decode(NODE, &words), Ok(Some(growing.clone())));
    let layout = &mut growing.tables[1].spec.layout;
    (layout.scheme, layout.cells) = (ReadScheme::Checksum, Some(Cells { head_bytes: 8, cell_bytes: 16 }));
    growing.tables[1].spec.indirect_slots = 2;
    let words = growing.encode();
    assert_eq!(words[64 + 320 + 116..][..4], [2, 2, 0, 0], "a checksum, two slots of an indirect bucket");
    assert_eq!(words[64 + 320 + 168..][..8], (16u64 << 32 | 8).to_le_bytes(), "a head of a word, cells of two");
    assert_eq!(Metadata::decode(NODE, &words), Ok(Some(growing.clone())));
    // Cells that do not divide the value, are not whole words, or are under another scheme.
    for (scheme, head_bytes, cell_bytes) in [
        (ReadScheme::Checksum, 0, 16),
        (ReadScheme::Checksum, 32, 8),
        (ReadScheme::Checksum, 8, 4),
        (ReadScheme::SingleLine, 8, 16),
    ] {
        let mut damaged = growing.clone();
        let layout = &mut damaged.tables[1].spec.layout;
        (layout.scheme, layout.cells) = (scheme, Some(Cells { head_bytes, cell_bytes }));
        assert!(Metadata::decode(NODE, &damaged.encode()).is_err(), "{scheme:?} {head_bytes} {cell_bytes}");
    }
    let mut joining = metadata;
    joining.shards[0].replicas[1].joining = true;
    let words = joining.encode();
    assert_eq!(words[64 + 320..][4 * 8..5 * 8], (1u64 << 32 | 1).to_le_bytes(), "node 1 joins");
    assert_eq!(Metadata::decode(NODE, &words), Ok(Some(joining.clone())));
    let mut unfinished = joining;
    unfinished.tables[0].creator = Some(7);
    let words = unfinished.encode();
    assert_eq!(words[64 + 120..][..8], (7u64 << 32 | 0x0201_0101).to_le_bytes(), "client 7 creates it");
    assert_eq!(Metadata::decode(NODE, &words), Ok(Some(unfinished.clone())));
    // The entry of a discarded table has no name, and its shards have no replicas. One without the
    // other is damage.
    let mut vacant = unfinished;
    vacant.tables[0].spec.name.clear();
    assert_eq!(Metadata::decode(NODE, &vacant.encode()), Err(MemoryError::Damaged(NODE)));
    vacant.shards.iter_mut().for_each(|shard| shard.replicas.clear());
    assert_eq!(Metadata::decode(NODE, &vacant.encode()), Ok(Some(vacant)));
    let mut dropped = whole;
    dropped.tables[0].dropped = Some(Tombstone { generation: 5, last_client: None });
    let words = dropped.encode();
    assert_eq!(words[64 + 136..][..8], 5u64.to_le_bytes(), "the fifth change dropped it");
    assert_eq!(Metadata::decode(NODE, &words), Ok(Some(dropped.clone())));
    // The table's space is free, so its shards have no replicas.
    dropped.tables[0].dropped = Some(Tombstone { generation: 5, last_client: Some(9) });
    assert_eq!(Metadata::decode(NODE, &dropped.encode()), Err(MemoryError::Damaged(NODE)));
    dropped.tables[0].spec.shard_bytes = 0;
    dropped.shards.iter_mut().for_each(|shard| (shard.bytes, shard.replicas) = (0, Vec::new()));
    let words = dropped.encode();
    assert_eq!(words[64 + 144..][..4], 9u32.to_le_bytes(), "the last client that its ids wait for");
    assert_eq!(Metadata::decode(NODE, &words), Ok(Some(dropped)));
}

const GOLDEN_CHECKSUM: u32 = 1569822628;

#[test]
fn what_another_program_wrote_is_refused_untouched() {
    let name_both = |error: MemoryError, names: [&str; 2]| {
        let told = error.to_string();
        assert!(names.iter().all(|name| told.contains(name)) && !told.contains('\n'), "{told}");
        error
    };
    type Case = (u64, u64, fn(MemoryError) -> bool, [&'static str; 2]);
    let cases: [Case; 6] = [
        (0, 0, |error| error == MemoryError::Foreign(NodeId(1)), ["node 1", "Remora"]),
        (
            0,
            u64::from_be_bytes(*b"REMORA\x01\x02"),
            |error| error == MemoryError::Foreign(NodeId(1)),
            ["node 1", "Remora"],
        ),
        (
            8,
            2,
            |error| error == MemoryError::Format { node: NodeId(1), found: 2, known: FORMAT },
            ["format 2;", "format 17:"],
        ),
        // The version before this one, and a newer one.
        (
            8,
            16,
            |error| error == MemoryError::Format { node: NodeId(1), found: 16, known: FORMAT },
            ["format 16;", "format 17:"],
        ),
        (
            8,
            18,
            |error| error == MemoryError::Format { node: NodeId(1), found: 18, known: FORMAT },
            ["format 18;", "format 17:"],
        ),
        (
            16,
            1 << 40,
            |error| error == MemoryError::Features { node: NodeId(1), unknown: 1 << 40 },
            ["node 1", "0x10000000000"],
        ),
    ];
    for (offset, word, expected, names) in cases {
        let fabric = cluster(2, 1 << 20);
        store(&fabric, NodeId(1), offset, word);
        let before: Vec<u64> = (0..1 << 17).map(|at| load(&fabric, NodeId(1), at * 8)).collect();
        let connect = async |lane: &Lane| Registration::connect(lane, NodeSet::first(2), 1).await;
        assert!(expected(name_both(block_on(&fabric, ClientId(0), connect).unwrap().unwrap_err(), names)));
        assert!(expected(read(&fabric, NodeId(1)).unwrap_err()));
        let after: Vec<u64> = (0..1 << 17).map(|at| load(&fabric, NodeId(1), at * 8)).collect();
        assert_eq!(before, after);
    }
    // The catalog's own header is checked likewise.
    let bytes = Metadata::default().encode();
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        Metadata::decode(NODE, &bytes)
    };
    assert_eq!(with(8, 16), Err(MemoryError::Format { node: NODE, found: 16, known: FORMAT }));
    assert_eq!(with(8, 18), Err(MemoryError::Format { node: NODE, found: 18, known: FORMAT }));
    assert_eq!(with(16, 4), Err(MemoryError::Features { node: NODE, unknown: 4 }));
    assert_eq!(with(0, b'X'), Ok(None));
}

/// Encodes a value that claims `tables` tables and `shards` shards, with a right checksum.
fn sealed(tables: u32, shards: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Metadata::default().encode();
    bytes[40..44].copy_from_slice(&tables.to_le_bytes());
    bytes[44..48].copy_from_slice(&shards.to_le_bytes());
    bytes.extend(body.iter().copied().cycle().take(tables as usize * 320 + shards as usize * 128));
    bytes[12..16].fill(0);
    let checksum = crc32c::crc32c(&bytes);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), known in 0usize..100) {
        // The bytes begin as real ones do, for a while.
        let known = known.min(bytes.len());
        bytes[..known].copy_from_slice(&a_table()[..known]);
        prop_assert!(!matches!(Metadata::decode(NODE, &bytes), Ok(Some(_))));
    }

    #[test]
    fn arbitrary_tables_and_shards_never_panic(
        tables in 0u32..4, shards in 0u32..4, body in proptest::collection::vec(prop_oneof![Just(0), Just(1), any::<u8>()], 1..300),
    ) {
        if let Ok(Some(metadata)) = Metadata::decode(NODE, &sealed(tables, shards, &body)) {
            prop_assert_eq!((metadata.tables.len(), metadata.shards.len()), (tables as usize, shards as usize));
        }
    }

    #[test]
    fn a_flipped_bit_is_refused(bit in 0usize..(64 + 128 + 256) * 8) {
        let bytes = a_table();
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!matches!(Metadata::decode(NODE, &flipped), Ok(Some(_))));
        flipped[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(matches!(Metadata::decode(NODE, &flipped), Ok(Some(_))));
    }

    #[test]
    fn half_of_it_is_refused(length in 0usize..64 + 128 + 256) {
        prop_assert_eq!(Metadata::decode(NODE, &a_table()[..length]), Ok(None));
    }
}

fn a_table() -> Vec<u8> {
    use std::sync::OnceLock;
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| create(&cluster(2, 1 << 20), spec("rows", 2)).unwrap().1.encode()).clone()
}

/// Each node has two copies, of which the newer whole one counts.
#[test]
fn a_damaged_copy_leaves_the_other() {
    const FIRST: u64 = 68 << 10;
    const SECOND: u64 = 244 << 10;
    let fabric = cluster(1, 4 << 20);
    let (_, first) = create(&fabric, spec("one", 1)).unwrap();
    let (_, second) = create(&fabric, spec("two", 1)).unwrap();
    assert_eq!(read(&fabric, NODE), Ok(second.clone()));
    let damage = |copy: u64| store(&fabric, NODE, copy + 200, load(&fabric, NODE, copy + 200) ^ 1);
    damage(SECOND);
    assert_eq!(read(&fabric, NODE), Ok(first.clone()));
    assert_eq!(metadata::read_local(NODE, fabric.region(NODE, REGION).unwrap().words()), Ok(first));
    damage(FIRST);
    assert_eq!(read(&fabric, NODE), Err(MemoryError::Damaged(NODE)));
    damage(SECOND);
    assert_eq!(read(&fabric, NODE), Ok(second));
}

// --- Tables.

/// While nodes are lost, a table gets as many copies as there are places. The others join later. A
/// table that wants more copies than the cluster has nodes is refused.
#[test]
fn a_table_that_wants_more_copies_than_there_are_places_gets_the_others_later() {
    let fabric = cluster(3, 1 << 20);
    let (all, live) = (NodeSet::first(3), NodeSet::first(3).without(NodeSet::first(1)));
    let make = |wanted, places, first| {
        block_on(&fabric, ClientId(1), async |lane: &Lane| {
            let name = format!("{wanted} copies from {first}");
            metadata::create_table(lane, live, places, 1, spec(&name, wanted), NodeId(first)).await
        })
        .unwrap()
    };
    let places = Places { nodes: live, members: 3 };
    assert!(matches!(make(4, places, 1), Err(MemoryError::TooManyReplicas { replicas: 4, nodes: 3, .. })));
    assert!(matches!(make(3, live.into(), 1), Err(MemoryError::TooManyReplicas { replicas: 3, nodes: 2, .. })));
    assert!(matches!(make(2, places, 3), Err(MemoryError::Limit { max: 2, .. })));
    let nowhere = Places { nodes: NodeSet::default(), members: 3 };
    assert!(matches!(make(1, nowhere, 0), Err(MemoryError::NoNode)));
    // The wanted first node is lost, so the next one is the first.
    let (_, found) = make(3, places, 0).unwrap();
    let at = |found: &Metadata| -> Vec<Vec<(u16, bool)>> {
        let of_shard = |shard: &ShardPlacement| shard.replicas.iter().map(|one| (one.node.0, one.joining)).collect();
        found.shards.iter().map(of_shard).collect()
    };
    assert_eq!(at(&found), [[(1, false), (2, false)], [(2, false), (1, false)]]);
    assert_eq!(found.tables[0].spec.replicas, 3);
    let room = all.iter().map(|node| (node, 1 << 20)).collect();
    let back = metadata::arrangement(&found, &Wanted { nodes: all, ..Wanted::default() }, &room);
    assert_eq!(at(&back), [[(1, false), (2, false), (0, true)], [(2, false), (1, false), (0, true)]]);
}

#[test]
fn tables_that_cannot_be_made() {
    let fabric = cluster(2, 1 << 20);
    let refused = |change: &dyn Fn(&mut TableSpec)| {
        let mut spec = spec("rows", 2);
        change(&mut spec);
        create(&fabric, spec).unwrap_err()
    };
    let too_many = MemoryError::too_many_replicas(3, 2).of_table("rows");
    assert_eq!(refused(&|spec| spec.replicas = 3), too_many);
    assert!(matches!(refused(&|spec| spec.replicas = 0), MemoryError::Empty { .. }));
    assert!(matches!(refused(&|spec| spec.shards = 0), MemoryError::Empty { .. }));
    assert!(matches!(refused(&|spec| spec.buckets = 0), MemoryError::Empty { .. }));
    assert!(matches!(refused(&|spec| spec.name.clear()), MemoryError::Empty { .. }));
    for name in ["two\nlines", "\u{1b}[2J", "a\0b", "c\u{9b}"] {
        let error = refused(&|spec| name.clone_into(&mut spec.name));
        assert!(matches!(&error, MemoryError::Name(refused) if refused == name), "{error}");
        assert!(!error.to_string().contains(char::is_control), "{error}");
    }
    let limit = |error| matches!(error, MemoryError::Limit { value, max, .. } if value == max + 1);
    assert!(limit(refused(&|spec| spec.name = "n".repeat(NAME_BYTES_MAX + 1))));
    assert!(limit(refused(&|spec| spec.schema = "s".repeat(129))));
    assert!(limit(refused(&|spec| spec.layout.key_bytes = KEY_BYTES_MAX as u16 + 1)));
    assert!(limit(refused(&|spec| spec.layout.value_max = VALUE_BYTES_MAX as u32 + 1)));
    assert!(matches!(refused(&|spec| spec.shards = 1025), MemoryError::Limit { what: "shards", value: 1025, .. }));
    let MemoryError::OutOfMemory { node, wanted, free, of } = refused(&|spec| spec.shard_bytes = 10 << 20) else {
        panic!()
    };
    assert_eq!((node, wanted, free), (NodeId(0), 20 << 20, (1 << 20) - (420 << 10)), "both shards");
    assert_eq!(of.name(), Some("rows"));
    // None of this has left the catalog locked, or has left anything in it.
    assert_eq!(read(&fabric, NODE), Ok(Metadata::default()));
    create(&fabric, spec(&"n".repeat(NAME_BYTES_MAX), 2)).unwrap();
    create(&fabric, spec("rows", 1)).unwrap();
    assert_eq!(refused(&|_| ()), MemoryError::TableExists("rows".to_owned()));
    let metadata = read(&fabric, NodeId(1)).unwrap();
    assert_eq!(metadata.table("rows").unwrap().0, TableId(1));
    assert_eq!(metadata.table("row").unwrap_err(), MemoryError::UnknownTable("row".to_owned()));
    let region = fabric.region(NODE, REGION).unwrap();
    let small = Shm::new(&[vec![64 << 10]]).unwrap();
    let small = small.region(NODE, REGION).unwrap();
    assert!(matches!(node::format(&small, Place::default()), Err(MemoryError::TooSmall { .. })));
    assert!(region.bytes() > node::BYTES_MIN);
}

#[test]
fn as_many_tables_as_fit() {
    use remora_node::limits::TABLES_MAX;
    let fabric = cluster(1, 8 << 20);
    let make =
        |number: usize| create(&fabric, TableSpec { shards: 1, shard_bytes: 4096, ..spec(&number.to_string(), 1) });
    for number in 0..TABLES_MAX {
        assert_eq!(make(number).unwrap().0, TableId(number as u16));
    }
    assert!(matches!(make(TABLES_MAX), Err(MemoryError::Limit { what: "tables", .. })));
    assert_eq!(read(&fabric, NODE).unwrap().tables.len(), TABLES_MAX);
}

/// Several clients create tables at the same time. Each table is made once, and none is lost.
#[test]
fn tables_created_at_the_same_time() {
    for seed in 0..10 {
        let fabric = formatted(Seeded::new(&[vec![1 << 20], vec![1 << 20]], seed).unwrap());
        let worker = Worker::new();
        let lanes: Vec<Lane> = (1..4)
            .map(|client| worker.lane(&worker.connect(&fabric, ClientId(client)).unwrap(), client.into()).unwrap())
            .collect();
        let tasks = lanes.iter().enumerate().map(|(client, lane)| {
            let create = async move {
                let own = metadata::create_table(
                    lane,
                    NodeSet::first(2),
                    NodeSet::first(2),
                    client as u32 + 1,
                    spec(&format!("own {client}"), 2),
                    NodeId(0),
                )
                .await;
                let shared = metadata::create_table(
                    lane,
                    NodeSet::first(2),
                    NodeSet::first(2),
                    client as u32 + 1,
                    spec("shared", 2),
                    NodeId(0),
                )
                .await;
                (own.is_ok(), shared.is_ok())
            };
            (lane.id(), create)
        });
        let done = worker.run(tasks);
        assert!(done.iter().all(|(own, _)| *own), "seed {seed}");
        assert_eq!(done.iter().filter(|(_, shared)| *shared).count(), 1, "seed {seed}");
        let metadata = read(&fabric, NodeId(1)).unwrap();
        assert_eq!((metadata.tables.len(), metadata.shards.len(), metadata.generation), (4, 8, 4));
        let mut places: Vec<_> = metadata.shards.iter().flat_map(|shard| &shard.replicas).collect();
        places.sort_by_key(|replica| (replica.node, replica.base));
        assert!(places.windows(2).all(|two| two[0].node != two[1].node || two[0].base + 8192 <= two[1].base));
    }
}

/// Several clients take space at the same time.
#[test]
fn space_is_given_once() {
    for seed in 0..10 {
        let fabric = formatted(Seeded::new(&[vec![2 << 20]], seed).unwrap());
        let worker = Worker::new();
        let lanes: Vec<Lane> = (1..5)
            .map(|client| worker.lane(&worker.connect(&fabric, ClientId(client)).unwrap(), client.into()).unwrap())
            .collect();
        let taken = worker.run(lanes.iter().map(|lane| {
            (lane.id(), async move {
                let mut taken = Vec::new();
                for bytes in [1, 4096, 4097, 10_000] {
                    taken.push((node::allocate(lane, NODE, bytes).await.unwrap(), bytes));
                }
                taken
            })
        }));
        let mut taken: Vec<(u64, u64)> = taken.into_iter().flatten().collect();
        taken.sort_unstable();
        assert!(taken.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "seed {seed}: {taken:?}");
        assert!(taken.iter().all(|(at, _)| at.is_multiple_of(4096)));
    }
}

#[test]
fn a_catalog_that_a_dead_client_has_locked_is_named() {
    let fabric = formatted(Seeded::new(&[vec![1 << 20]], 1).unwrap());
    store(&fabric, NODE, 48, 77);
    assert_eq!(
        create(&fabric, TableSpec { shards: 1, ..spec("rows", 1) }).unwrap_err(),
        MemoryError::CatalogLocked(77)
    );
}

/// A client dies after it has published a change at the leader, and before the other node has it.
#[test]
fn what_a_dead_client_has_published_reaches_all_nodes() {
    let fabric = cluster(2, 1 << 20);
    let (_, before) = create(&fabric, spec("rows", 2)).unwrap();
    let end = |dead: u32| {
        let nodes = NodeSet::first(2);
        block_on(&fabric, ClientId(1), async |lane: &Lane| metadata::end_change_of(lane, nodes, 1, dead).await).unwrap()
    };
    let half_publish = |metadata: &Metadata| {
        let publish = async |lane: &Lane| metadata::publish(lane, NodeSet::first(1), metadata).await;
        block_on(&fabric, ClientId(1), publish).unwrap().unwrap();
    };
    let mut after = before.clone();
    (after.generation, after.tables[0].creator) = (before.generation + 1, Some(7));
    half_publish(&after);
    // Another client holds the lock: that change goes on.
    store(&fabric, NODE, 48, 9);
    end(7).unwrap();
    assert_eq!((read(&fabric, NodeId(1)), load(&fabric, NODE, 48)), (Ok(before), 9));
    store(&fabric, NODE, 48, 7);
    end(7).unwrap();
    assert_eq!((read(&fabric, NODE), read(&fabric, NodeId(1))), (Ok(after.clone()), Ok(after)));
    assert_eq!(load(&fabric, NODE, 48), 0, "the lock is free");
}

// --- Clients.

#[test]
fn slots_are_reused_and_incarnations_are_not() {
    // Their rings fill the memory.
    let fabric = cluster(2, 80 << 20);
    let connect = |lanes: usize| {
        block_on(&fabric, ClientId(0), async |lane: &Lane| Registration::connect(lane, NodeSet::first(2), lanes).await)
            .unwrap()
    };
    let mut all: Vec<Registration> = (0..CLIENTS_MAX).map(|_| connect(1).unwrap()).collect();
    assert_eq!(
        all.iter().map(|client| client.incarnation).collect::<Vec<_>>(),
        (1..=CLIENTS_MAX as u32).collect::<Vec<_>>()
    );
    for at in [NODE, NodeId(1)] {
        let region = fabric.region(at, REGION).unwrap();
        assert_eq!(remora_node::clients(region.words()).count(), CLIENTS_MAX);
    }
    let changes = remora_node::changes(fabric.region(NodeId(1), REGION).unwrap().words());
    assert!(matches!(connect(1), Err(MemoryError::Limit { what: "connected clients", .. })));
    let allocated = load(&fabric, NODE, 32);
    for round in 0..5 {
        let gone = all.remove(round * 40);
        let rings = gone.ring(NODE, 0).applied_at();
        block_on(&fabric, ClientId(gone.incarnation), async |lane: &Lane| gone.disconnect(lane).await)
            .unwrap()
            .unwrap();
        store(&fabric, NODE, rings.offset, 4711); // what the client has left behind
        let new = connect(1).unwrap();
        assert!(all.iter().all(|other| other.incarnation < new.incarnation));
        assert_eq!(new.ring(NODE, 0).applied_at(), rings, "its space is used again");
        assert_eq!(load(&fabric, NODE, rings.offset), 0, "and starts anew");
        all.push(new);
    }
    assert_eq!(load(&fabric, NODE, 32), allocated);
    assert!(remora_node::changes(fabric.region(NodeId(1), REGION).unwrap().words()) > changes, "appliers are told");
    // One more client gets the last incarnation, and the next one gets none.
    let gone = all.remove(0);
    block_on(&fabric, ClientId(1), async |lane: &Lane| gone.disconnect(lane).await).unwrap().unwrap();
    store(&fabric, NODE, 40, INCARNATIONS_MAX - 1);
    let last = connect(1).unwrap();
    assert_eq!(u64::from(last.incarnation), INCARNATIONS_MAX);
    block_on(&fabric, ClientId(1), async |lane: &Lane| last.disconnect(lane).await).unwrap().unwrap();
    assert!(matches!(connect(1), Err(MemoryError::Limit { what: "client incarnations", .. })));
}

/// A new leader gives no incarnation again, even if a lost leader, or one before it, had given it.
#[test]
fn a_new_leader_gives_no_incarnation_again() {
    let fabric = cluster(3, 4 << 20);
    let left = NodeSet::first(3).without(NodeSet::first(1));
    let given = |incarnations: u32| {
        block_on(&fabric, ClientId(0), async |lane: &Lane| {
            follow_leader(lane, left, left.leader(), incarnations).await?;
            Registration::connect(lane, left, 0).await
        })
        .unwrap()
        .unwrap()
        .incarnation
    };
    store(&fabric, NodeId(2), 40, 7_000); // it has been the leader
    let first = given(0);
    assert!(first > 7_000);
    assert!(given(first + 9_000) > first + 9_000, "as the configuration knows");
}

/// The client that admitted a node may have named the nodes in another order.
#[test]
fn a_node_is_remembered_by_its_number() {
    let fabric = cluster(2, 4 << 20);
    let remembered = || {
        let look = async |lane: &Lane| identity::remembered(lane, NodeSet::first(2)).await;
        block_on(&fabric, ClientId(0), look).unwrap()
    };
    block_on(&fabric, ClientId(0), async |lane: &Lane| identity::found(lane, 2).await).unwrap().unwrap();
    assert_eq!(remembered(), Ok(()));
    let [first, second] = [NODE, NodeId(1)].map(|node| load(&fabric, node, 64));
    store(&fabric, NODE, 64, second);
    store(&fabric, NodeId(1), 64, first);
    assert_eq!(remembered(), Err(MemoryError::OtherNumber { node: NODE, number: NodeId(1) }));
    store(&fabric, NODE, 64, 0);
    assert_eq!(remembered(), Err(MemoryError::LostMemory(NODE)));
}

/// A client that founds a cluster is killed after each of its steps. The next client finishes what
/// it has begun: every node has one number, and all nodes belong to one cluster.
#[test]
fn a_founding_that_was_cut_short_is_finished() {
    const NODES: u16 = 3;
    let (mut halves, mut steps) = (0, 0);
    loop {
        let fabric = formatted(Seeded::new(&vec![vec![1 << 20]; NODES.into()], steps).unwrap());
        let found = |client: u32| {
            let found = async |lane: &Lane| identity::found(lane, NODES).await;
            block_on(&fabric, ClientId(client), found).unwrap()
        };
        fabric.revoke_after(ClientId(1), steps);
        let of_the_dead = found(1);
        let given = (0..NODES).filter(|node| load(&fabric, NodeId(*node), 64) != 0).count();
        halves += u32::from(given > 0 && given < NODES.into());
        let all = found(2).unwrap_or_else(|error| panic!("{steps} steps, {given} nodes: {error}"));
        let numbers: Vec<NodeId> = all.iter().map(|node| node.number).collect();
        assert_eq!(numbers, [NodeId(0), NodeId(1), NodeId(2)], "{steps} steps, {given} nodes");
        assert!(all.iter().all(|node| (node.cluster, node.founders) == (all[0].cluster, NODES)), "{all:?}");
        assert_eq!(found(3), Ok(all.clone()), "a cluster is founded once");
        if let Ok(founded) = of_the_dead {
            assert_eq!(founded, all);
            break;
        }
        steps += 1;
    }
    assert!(halves > 0, "no client has died with a part of the nodes founded");
}

/// A controller that is late tells a node something that was true earlier.
#[test]
fn a_node_gives_up_what_it_has_only_if_it_missed_an_epoch() {
    let fabric = cluster(2, 4 << 20);
    let region = fabric.region(NodeId(1), node::REGION).unwrap();
    let is_given_up = |cluster: u64, since: u64| GivenUp { cluster, since }.is_of(region.words());
    assert!(!is_given_up(0, 9), "it is nobody's");
    let all = block_on(&fabric, ClientId(0), async |lane: &Lane| identity::found(lane, 2).await).unwrap().unwrap();
    let cluster = all[1].cluster;
    assert!(!is_given_up(cluster, 9), "it has nothing");
    let published = Metadata { generation: 1, epoch: 3, ..Metadata::default() };
    block_on(&fabric, ClientId(0), async |lane: &Lane| {
        metadata::publish(lane, NodeSet::default().with(NodeId(1)), &published).await
    })
    .unwrap()
    .unwrap();
    let told = [(cluster, 3), (cluster, 2), (cluster + 1, 3)].map(|(cluster, since)| is_given_up(cluster, since));
    assert_eq!(told, [true, false, false]);

    store(&fabric, NodeId(1), node::BYTES_MIN, 7);
    let changes = load(&fabric, NodeId(1), 56);
    node::renew(&region).unwrap();
    assert_eq!((load(&fabric, NodeId(1), node::BYTES_MIN), load(&fabric, NodeId(1), 64)), (0, 0));
    assert_ne!(load(&fabric, NodeId(1), 56), changes, "an applier would not look");
    assert!(!is_given_up(cluster, 9));
    let taken_in = async |lane: &Lane| identity::rejoin(lane, NodeId(1), NODE, 4).await;
    assert_eq!(block_on(&fabric, ClientId(0), taken_in).unwrap(), Ok(true));
}

/// Returns a catalog of these tables (shards, replicas, bytes of a shard), all at the first
/// `founders` nodes.
fn laid_out(tables: &[(u16, u8, u64)], founders: u16) -> Metadata {
    let mut metadata = Metadata { generation: 1, ..Metadata::default() };
    for (id, (shards, replicas, bytes)) in (0..).map(TableId).zip(tables.iter().copied()) {
        let replicas = replicas.min(founders as u8);
        let spec = TableSpec { shards, shard_bytes: bytes, ..spec(&format!("table {}", id.0), replicas) };
        metadata.tables.push(TableEntry {
            spec,
            shard_first: ShardId(metadata.shards.len() as u16),
            creator: None,
            born: 1,
            origin: 1,
            growths: 0,
            growth: None,
            dropped: None,
        });
        for shard in 0..shards {
            let node = |replica| NodeId((shard + u16::from(replica)) % founders);
            let replica = |number| Replica { node: node(number), region: REGION, base: 0, joining: false };
            let replicas = (0..replicas).map(replica).collect();
            metadata.shards.push(ShardPlacement { table: id, bytes, replicas });
        }
    }
    metadata
}

proptest! {
    /// Nodes are added, filled and drained one after the other. Of the joining replicas, some have
    /// been copied when the next epoch begins. The steps come to an end, there are never too few
    /// copies, and at the end no copy can move to a node with fewer bytes. No node leaves as long
    /// as the others are too few.
    #[test]
    fn nodes_that_are_filled_get_their_share(
        founders in 1u16..6,
        added in prop::collection::vec(0u8..4, 1..5),
        tables in prop::collection::vec((1u16..7, 1u8..4, 1u64..40), 1..6),
        parts in 1usize..4,
    ) {
        let tables: Vec<_> = tables.into_iter().map(|(shards, replicas, lines)| (shards, replicas, lines * 1024)).collect();
        let mut now = laid_out(&tables, founders);
        let (mut nodes, mut filling) = (NodeSet::first(founders), NodeSet::default());
        let room = (0..64).map(|node| (NodeId(node), 1 << 20)).collect();
        let extent = |bytes: u64| bytes.next_multiple_of(node::ALIGNMENT);
        for (number, what) in (founders..).map(NodeId).zip(added) {
            nodes = nodes.with(number);
            // One or two earlier nodes leave, as soon as enough are left for all copies.
            for _ in 0..[1, 0, 0, 2][usize::from(what)] {
                let leaver = NodeSet::default().with(nodes.leader());
                nodes = if nodes.count() > 1 { nodes.without(leaver) } else { nodes };
            }
            filling = if what == 1 { filling } else { filling.with(number) };
            let mut copied = Vec::new();
            for epoch in 0.. {
                prop_assert!(epoch < 200, "it does not come to an end");
                let wanted = Wanted { nodes, filling, copied: &copied, ..Wanted::default() };
                let next = metadata::arrangement(&now, &wanted, &room);
                for (before, shard) in now.shards.iter().zip(&next.shards) {
                    let primary = before.replicas[0].node;
                    let is_backup = shard.copies().skip(1).any(|replica| replica.node == primary);
                    prop_assert!(!is_backup, "a primary that has become a backup: {:?}", shard);
                    let table = &next.tables[usize::from(shard.table.0)];
                    prop_assert!(shard.copies().count() >= usize::from(table.spec.replicas), "{:?}", shard);
                    let at: NodeSet = shard.replicas.iter().map(|replica| replica.node).collect();
                    prop_assert_eq!(usize::from(at.count()), shard.replicas.len(), "two at one node: {:?}", shard);
                }
                let joining: Vec<_> = (0..).map(ShardId).zip(&next.shards).flat_map(|(id, shard)| {
                    let new = shard.replicas.iter().filter(|replica| replica.joining);
                    new.map(move |replica| (id, replica.node))
                }).collect();
                if joining.is_empty() && next == now {
                    break;
                }
                copied = joining.into_iter().skip(epoch % parts).step_by(parts).collect();
                now = next;
            }
            let bytes = |node: NodeId| -> u64 {
                let here = now.shards.iter().filter(|shard| shard.replicas.iter().any(|replica| replica.node == node));
                here.map(|shard| extent(shard.bytes)).sum()
            };
            for shard in &now.shards {
                let table = &now.tables[usize::from(shard.table.0)];
                prop_assert_eq!(shard.replicas.len(), usize::from(table.spec.replicas));
                let at: NodeSet = shard.replicas.iter().map(|replica| replica.node).collect();
                let needed = u16::from(table.spec.replicas).saturating_sub(nodes.count());
                prop_assert_eq!(at.without(nodes).count(), needed, "who leaves is there as long as need be: {:?}", shard);
                let fullest = NodeSet::from_bits(at.to_bits() & nodes.to_bits()).iter().map(bytes).max().unwrap_or(0);
                for filled in NodeSet::from_bits(filling.to_bits() & nodes.to_bits()).without(at).iter() {
                    prop_assert!(fullest <= bytes(filled) + extent(shard.bytes), "{:?} could be at {}", shard, filled);
                }
            }
        }
    }
}

/// Two nodes have a table. One of them should leave, the other dies, and the only other node has
/// nothing yet.
#[test]
fn what_a_node_has_that_leaves_is_given_up_only_if_that_was_said() {
    let [leaver, dead, other] = [0, 1, 2].map(|number| NodeSet::default().with(NodeId(number)));
    let room = (0..3).map(|node| (NodeId(node), 1 << 20)).collect();
    let left = metadata::without(&laid_out(&[(1, 2, 4096)], 2), dead, 2).unwrap();
    let places = |metadata: &Metadata| -> Vec<(u16, bool)> {
        metadata.shards[0].replicas.iter().map(|replica| (replica.node.0, replica.joining)).collect()
    };
    for expendable in [NodeSet::default(), leaver] {
        let arranged = |before: &Metadata, nodes, copied: &[(ShardId, NodeId)]| {
            metadata::arrangement(before, &Wanted { nodes, expendable, filling: NodeSet::default(), copied }, &room)
        };
        let joins = arranged(&left, other, &[]);
        assert_eq!(places(&joins), [(0, false), (2, true)]);
        let copied = arranged(&joins, other, &[(ShardId(0), NodeId(2))]);
        if expendable == leaver {
            assert_eq!(places(&copied), [(2, false)]);
            continue;
        }
        assert_eq!(places(&copied), [(0, false), (2, false)], "two copies, though one leaves");
        assert_eq!(arranged(&copied, other, &[]), copied, "and it waits");
        let both = NodeSet::from_bits(other.to_bits() | dead.to_bits());
        let back = arranged(&copied, both, &[]);
        assert_eq!(places(&back), [(0, false), (2, false), (1, true)]);
        assert_eq!(places(&arranged(&back, both, &[(ShardId(0), NodeId(1))])), [(2, false), (1, false)]);
    }
}

/// Clients of protocol `rtx` write one copy of a shard, and no joining one.
#[test]
fn a_shard_that_cannot_move_stays() {
    let mut before = laid_out(&[(2, 1, 4096)], 2);
    before.tables[0].spec.discipline = Discipline::COPY_ON_WRITE;
    let room = (0..3).map(|node| (NodeId(node), 1 << 20)).collect();
    let [first, last] = [0, 2].map(|number| NodeSet::default().with(NodeId(number)));
    for nodes in [NodeSet::first(3), NodeSet::first(3).without(first)] {
        for expendable in [NodeSet::default(), first] {
            let wanted = Wanted { nodes, expendable, filling: last, copied: &[] };
            assert_eq!(metadata::arrangement(&before, &wanted, &room), before);
        }
    }
    before.tables[0].spec.discipline = Discipline::IN_PLACE;
    let wanted = Wanted { nodes: NodeSet::first(3).without(first), filling: last, ..Wanted::default() };
    assert_ne!(metadata::arrangement(&before, &wanted, &room), before, "others move");
}

/// A small node gets only as many shards as leave room for the rings of clients. It keeps room for
/// the present clients, and again for their successors, which connect before the former rings are
/// free.
#[test]
fn clients_find_room_where_shards_go() {
    const SMALL: usize = 6 << 20;
    let fabric = formatted(Shm::new(&[vec![16 << 20], vec![SMALL]]).unwrap());
    let nodes = NodeSet::first(2);
    let (founder, small) = (NodeSet::first(1), NodeId(1));
    let shards = 5;
    block_on(&fabric, ClientId(1), async |lane: &Lane| {
        let table = TableSpec { shards, shard_bytes: 1 << 20, ..spec("rows", 1) };
        let (_, mut before) = metadata::create_table(lane, founder, founder, 1, table, NODE).await.unwrap();
        let clients = [4, 5].map(async |lanes| Registration::connect(lane, founder, lanes).await.unwrap());
        for client in clients {
            client.await;
        }
        // There should be two copies, and all shards but one have room for them.
        before.tables[0].spec.replicas = 2;
        let wanted = Wanted { nodes, ..Wanted::default() };
        let after = metadata::rearrange(lane, &before, &wanted).await.unwrap();
        let joined = after.shards.iter().filter(|shard| shard.replicas.iter().any(|replica| replica.node == small));
        assert_eq!(joined.count(), 4);
        metadata::publish(lane, nodes, &after).await.unwrap();
        for lanes in [4, 5, 4, 5] {
            Registration::connect(lane, nodes, lanes).await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn rings_of_clients_never_overlap() {
    for seed in 0..20 {
        let fabric = formatted(Seeded::new(&[vec![8 << 20], vec![8 << 20]], seed).unwrap());
        let worker = Worker::new();
        let lanes: Vec<Lane> = (1..5)
            .map(|client| worker.lane(&worker.connect(&fabric, ClientId(client)).unwrap(), client.into()).unwrap())
            .collect();
        let connected = worker.run(lanes.iter().enumerate().map(|(client, lane)| {
            (lane.id(), async move {
                // The client connects, leaves, and connects again with more lanes.
                let first = Registration::connect(lane, NodeSet::first(2), 1 + client % 2).await.unwrap();
                first.disconnect(lane).await.unwrap();
                Registration::connect(lane, NodeSet::first(2), 2 + client).await.unwrap()
            })
        }));
        for at in [NODE, NodeId(1)] {
            let rings = connected.iter().enumerate().flat_map(|(client, registration)| {
                (0..2 + client).map(|lane| registration.ring(at, lane).applied_at().offset)
            });
            let mut rings: Vec<u64> = rings.collect();
            rings.sort_unstable();
            assert!(rings.windows(2).all(|two| two[0] + remora_node::ring::RING_EXTENT_BYTES <= two[1]), "seed {seed}");
        }
        let mut incarnations: Vec<u32> = connected.iter().map(|client| client.incarnation).collect();
        incarnations.sort_unstable();
        incarnations.dedup();
        assert_eq!(incarnations.len(), 4);
    }
}
