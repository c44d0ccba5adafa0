//! Memory that no table uses is given back to the system, if the memory nodes are in this process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use remora::admin::Freed;
use remora::floors::fabric::{Lane, NodeId, Region, RegionId};
use remora::floors::node::Pointer;
use remora::floors::record::FetchedRecord;
use remora::{Cluster, Table, TableOptions, WorkerOptions};

use super::support::Words;

const ROWS: u64 = 20_000;
/// Bytes of the values of [`ROWS`] rows.
const BYTES: u64 = ROWS * 8 * WORDS as u64;
const WORDS: usize = 125;

fn resident(region: &Region) -> u64 {
    region.resident_bytes().unwrap()
}

fn cluster() -> (Cluster, Arc<Region>) {
    let cluster = Cluster::embedded().nodes(1).node_bytes(256 << 20).open().unwrap();
    let region = cluster.fabric().region(NodeId(0), RegionId(0)).unwrap();
    (cluster, region)
}

fn load(cluster: &Cluster, name: &str) -> Table<u64, Words<WORDS>> {
    let table = cluster.create_table(name, TableOptions::for_rows(ROWS)).unwrap();
    cluster.load(&table, (0..ROWS).map(|key| (key, Words([key + 1; WORDS])))).unwrap();
    table
}

/// Counts the records at some offsets of a table's first shard, which need not be the table's any
/// more.
async fn count(lane: &Lane, table: &remora::floors::index::Table, records: &[u64]) -> u64 {
    let mut found = 0;
    for at in records {
        let mut round = lane.round();
        let at = table.primary(Pointer::new(table.shard_id(0), *at));
        let read = round.read(at, table.shape().record_bytes());
        let done = lane.execute(round).await.unwrap();
        let record = FetchedRecord::new(done.words(read), table.shape()).check_in_place();
        found += u64::from(record.unwrap().is_present());
    }
    found
}

/// What a dropped table had is given back, and is zero. What lies beside it stays. A client that
/// reads a record at its old place finds no record there. The next table at this place works.
#[test]
fn a_dropped_table_takes_no_memory() {
    let (cluster, region) = cluster();
    let before = resident(&region);
    let dropped = load(&cluster, "dropped");
    let beside = load(&cluster, "beside");
    let both = resident(&region) - before;
    assert!(both > 2 * BYTES, "{both}");
    let old = dropped.untyped().clone();
    let shard = old.shard_replicas(0)[0];
    let words = |bytes: u64| {
        let start = shard.base as usize / 8;
        region.words()[start..][..bytes as usize / 8].iter().map(|word| word.load(Ordering::Relaxed))
    };
    let bytes = old.entry().spec.shard_bytes;
    let records: Vec<u64> = std::iter::successors(old.index().slot_behind(0), |at| old.index().slot_behind(at + 1))
        .take_while(|at| *at < bytes)
        .collect();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    assert_eq!(worker.block_on(async |session| count(session.lane(), &old, &records).await), ROWS);
    drop(worker);

    assert_eq!(cluster.drop_table("dropped").unwrap(), Freed::Now);
    let one = resident(&region) - before;
    assert!(one < both / 2 + (1 << 20) && one > BYTES, "{one} of {both}");
    assert!(words(bytes).all(|word| word == 0));
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    assert_eq!(worker.block_on(async |session| count(session.lane(), &old, &records).await), 0);

    // To give a new table its place does not take the memory either.
    let again: Table<u64, Words<WORDS>> = cluster.create_table("again", TableOptions::for_rows(ROWS)).unwrap();
    assert_eq!(again.untyped().shard_replicas(0)[0].base, shard.base);
    assert!(resident(&region) - before < one + (1 << 20));
    cluster.load(&again, (0..ROWS).map(|key| (key, Words([key + 2; WORDS])))).unwrap();
    for (table, more) in [(&beside, 1), (&again, 2)] {
        let mut sum = 0;
        let all = cluster.inspect(table, |row| {
            assert!(row.is_whole());
            sum += row.0[0];
        });
        assert_eq!((all.unwrap().records, sum), (ROWS, (0..ROWS).map(|key| key + more).sum()));
    }
}

/// A table that has grown takes the memory of its last size only.
#[test]
fn a_table_that_has_grown_takes_no_memory_for_what_it_was() {
    let (cluster, region) = cluster();
    let before = resident(&region);
    let table = load(&cluster, "rows");
    let small = resident(&region) - before;
    cluster.grow_table("rows", 2 * ROWS).unwrap();
    let grown = resident(&region) - before;
    // The main buckets of a table for twice the rows are twice as many.
    assert!(grown < 2 * small + (1 << 20), "{grown} after {small}");
    assert_eq!(cluster.inspect(&table, |_| {}).unwrap().records, ROWS);
}
