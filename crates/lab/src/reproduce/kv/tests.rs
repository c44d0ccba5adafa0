//! Tests of the tables: every key is found with the READs that its place says, and no other key is.

use super::*;

const PAIRS: Pairs = Pairs { count: 900, value_bytes: 24 };

/// Looks all keys up, and one that no table has. Returns how many lookups took one READ, two, and
/// so on, without the READ of the value.
fn reads_of(system: System, occupancy: u64) -> Vec<u64> {
    let sim = options(&Scale::quick(1)).unwrap();
    let table = Table::new(system, &PAIRS, occupancy, &sim).unwrap();
    let cluster = holding(table.words(), 1, &sim).unwrap();
    cluster.instant(true);
    let looked_up = block_on(&cluster, ClientId(1), async |lane: &Lane| {
        let mut counts = Vec::new();
        for key in (0..PAIRS.count).map(|number| PAIRS.key(number)) {
            let before = lane.cost().reads;
            assert!(table.finds(lane, 0, key).await.unwrap(), "{key:#x}");
            let reads = (lane.cost().reads - before - system.reads_of_value()) as usize;
            counts.resize(counts.len().max(reads + 1), 0);
            counts[reads] += 1;
        }
        assert!(!table.finds(lane, 0, PAIRS.key(PAIRS.count)).await.unwrap(), "a key of no pair");
        counts
    });
    looked_up.unwrap()
}

#[test]
fn every_key_is_found_and_no_other() {
    for occupancy in OCCUPANCIES {
        let cuckoo = reads_of(System::Pilaf, occupancy);
        assert_eq!((cuckoo[0], cuckoo.len()), (0, 4), "a key is where one of three functions says");
        let [outside, inside] =
            [Values::Outside, Values::Inside].map(|values| reads_of(System::Farm(values), occupancy));
        assert_eq!(outside, inside, "the value's place changes nothing else");
        assert_eq!(outside[0], 0);
        assert_eq!(reads_of(System::DrTm(None), occupancy)[0], 0);
    }
}

#[test]
fn a_key_that_no_neighborhood_has_is_in_an_overflow_block() {
    for occupancy in OCCUPANCIES {
        let homes = (100 * PAIRS.count).div_ceil(occupancy);
        let table = Hopscotch::build(&PAIRS, homes, Values::Outside).unwrap();
        let reads = reads_of(System::Farm(Values::Outside), occupancy);
        assert_eq!(reads[1], PAIRS.count - table.overflown());
    }
}

#[test]
fn a_table_that_is_too_small_is_refused() {
    assert!(Cuckoo::build(&PAIRS, PAIRS.count - 1, 1).is_none());
    assert!(Hopscotch::build(&PAIRS, PAIRS.count - 1, Values::Outside).is_none());
    assert!(Cuckoo::build(&PAIRS, PAIRS.count, 1).is_none(), "three functions fill nine tenths");
}

#[test]
fn a_cache_of_the_whole_index_saves_all_reads_of_buckets() {
    let sim = options(&Scale::quick(1)).unwrap();
    let cluster = Cluster::load(&PAIRS, 90, &sim).unwrap();
    let store = cluster.open(Some(1.0)).unwrap();
    let keys = || (0..PAIRS.count).map(|number| PAIRS.key(number));
    cluster.warm(&store, keys());
    let memory = holding(cluster.words(), 1, &sim).unwrap();
    memory.instant(true);
    let reads = block_on(&memory, ClientId(1), async |lane: &Lane| {
        for key in keys() {
            assert_eq!(store.get(lane, key).await.unwrap(), Some(value_of(key)));
        }
        lane.cost().reads
    });
    assert_eq!(reads.unwrap(), PAIRS.count);
}

/// A checksum that does not fit, in a slot or a pair, is a value that was torn.
#[test]
fn a_torn_pair_is_no_value() {
    let sim = options(&Scale::quick(1)).unwrap();
    let pairs = Pairs { count: 1, value_bytes: 8 };
    let table = Cuckoo::build(&pairs, 2, 1).unwrap();
    let found = |words: &[u64]| {
        let memory = holding(words, 1, &sim).unwrap();
        memory.instant(true);
        block_on(&memory, ClientId(1), async |lane: &Lane| table.get(lane, pairs.key(0)).await.unwrap()).unwrap()
    };
    assert_eq!(found(table.words()), Some(value_of(pairs.key(0))));
    for at in (0..table.words().len()).filter(|at| table.words()[*at] != 0) {
        let mut words = table.words().to_vec();
        words[at] ^= 1;
        assert_eq!(found(&words), None, "word {at}");
    }
}
