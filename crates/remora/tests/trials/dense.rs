//! Dense tables: what a lookup costs there.

use remora::{Cluster, Table, TableOptions, WorkerOptions};

use super::support::Words;

/// A key whose place is known costs a READ of its slot, in a dense table as in every other one. All
/// other lookups READ the chain as far as the key, one bucket in a round trip.
#[test]
fn a_known_row_of_a_dense_table_is_one_slot() {
    const ROWS: u64 = 4_000;
    let cluster = Cluster::embedded().nodes(1).node_bytes(64 << 20).open().unwrap();
    let options = TableOptions::for_rows(ROWS).dense(true).grows(false);
    let rows: Table<u64, Words<18>> = cluster.create_table("rows", options).unwrap();
    cluster.load(&rows, (0..ROWS).map(|key| (key, Words::all(key)))).unwrap();
    let geometry = *rows.untyped().fstore().unwrap();
    assert_eq!((geometry.slots, geometry.overflow_slots, geometry.slot_bytes), (7, 2, 192));
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let cold = worker.block_on(async |session| {
        let mut cold = 0;
        for key in 0..ROWS {
            for is_known in [false, true] {
                let before = session.lane().cost();
                let found = session.transact(async |tx| rows.get(tx, key).await).await.unwrap();
                assert!(found.is_some_and(|found| found.is_whole() && found.0[0] == key));
                let now = session.lane().cost();
                let (trips, reads) = (now.round_trips - before.round_trips, now.reads - before.reads);
                let bytes = now.bytes_in - before.bytes_in;
                if is_known {
                    assert_eq!((trips, reads, bytes), (1, 1, rows.untyped().shape().record_bytes() as u64), "{key}");
                } else {
                    assert_eq!((reads, bytes), (trips, 1408 + (trips - 1) * 448), "{key}");
                    cold += trips;
                }
            }
        }
        cold
    });
    let trips = cold as f64 / ROWS as f64;
    assert!((1.05..1.2).contains(&trips), "{trips} round trips for a lookup");
    drop(worker);
    let all = cluster.inspect(&rows, |_| {}).unwrap();
    assert_eq!((all.records, all.locked, all.torn), (ROWS, 0, 0));
}
