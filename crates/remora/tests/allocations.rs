//! In steady state a transaction on a worker allocates nothing: latency has no room for an
//! allocator.

#[path = "../../fabric/tests/counting_allocator/mod.rs"]
mod counting_allocator;
mod support;

use counting_allocator::allocations;
use remora::floors::fabric::{ClientId, Lane, NodeId, block_on};
use remora::floors::node::hot::{HOT_WINDOW_NS, hot_lists};
use remora::protocol::Protocol;
use remora::{Ordered, OrderedOptions, TableOptions, WorkerOptions};

use support::{Words, embedded, table};

#[test]
fn none_in_a_committed_transaction() {
    /// Number of buffers that may still be made after the first half. A buffer is two allocations.
    const BUFFERS: u64 = 8;
    /// Number of lists that may still grow. How many transactions commit together, and how many
    /// records are hot at a time, is a matter of chance.
    const GROWN: u64 = 4;
    const ROWS: u64 = 64;
    const TRANSACTIONS: u64 = 2_000;
    // Where commits have times, the memory nodes' CPUs keep older versions, on the same thread.
    let protocols = Protocol::ALL.into_iter().filter(|protocol| !protocol.discipline().is_stamped());
    for (protocol, replicas) in protocols.flat_map(|protocol| [(protocol, 1), (protocol, 3)]) {
        let cluster = embedded(protocol, replicas);
        let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words::<3>::all(1));
        let options = WorkerOptions::default().coroutines(4).yield_after_rounds(true);
        let mut worker = cluster.worker(options).unwrap();
        let allocated = worker.run(async |_, session| {
            let mut before = 0;
            // The first half warms up: location cache, sets, buffers, redo rings.
            for number in 0..2 * TRANSACTIONS {
                if number == TRANSACTIONS {
                    before = allocations();
                }
                if number % 64 == 0 {
                    // This transaction names many records, and is given up so that it does not
                    // compete for them.
                    let mut large = session.begin().unwrap();
                    (0..ROWS).for_each(|row| _ = large.transaction().want(&rows, row));
                    large.abort().await;
                }
                let random = session.lane().random();
                let (one, two) = (random % ROWS, (random >> 8) % ROWS);
                let run = session.transact(async |tx| {
                    let both = [tx.want(&rows, one), tx.want(&rows, two)];
                    tx.fetch().await?;
                    both.into_iter().try_for_each(|slot| slot.get_mut(tx).map(|row| row.0[0] += 1))
                });
                run.await.unwrap();
            }
            allocations() - before
        });
        // All coroutines share the thread. When the last one begins its second half, all others
        // have warmed up.
        let fewest = allocated.iter().min();
        // If the memory node's CPU installs, more rounds than ever before may be under way, and
        // each has a buffer. Under `rtx` a session has lists of blocks for each shard, which grow
        // with the number of rounds under way.
        let by_chance = matches!(protocol, Protocol::FARM | Protocol::FASST | Protocol::RTX);
        let most = GROWN + if by_chance { 2 * BUFFERS } else { 0 };
        assert!(
            fewest <= Some(&most),
            "{protocol:?}, {replicas} replicas: {allocated:?} in {TRANSACTIONS} transactions"
        );
    }
}

/// A client that counts conflicts at a hot record, and writes a list of them every second,
/// allocates nothing for that.
#[test]
fn none_for_a_list_of_hot_records() {
    let cluster = embedded(Protocol::FORD, 1);
    let rows = table(&cluster, "rows", TableOptions::for_rows(1), Words::<3>::all(1));
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(4).yield_after_rounds(true)).unwrap();
    let allocated = worker.run(async |_, session| {
        let began = session.lane().now();
        let (warm, end) = (began + HOT_WINDOW_NS * 5 / 4, began + HOT_WINDOW_NS * 9 / 2);
        let mut before = None;
        while session.lane().now() < end {
            if before.is_none() && session.lane().now() >= warm {
                before = Some(allocations());
            }
            let run = session.transact(async |tx| rows.get_mut(tx, 0).await.map(|mut row| row.0[0] += 1));
            run.await.unwrap();
        }
        allocations() - before.expect("the first list was written long ago")
    });
    let read = async |lane: &Lane| hot_lists(lane, NodeId(0)).await;
    let lists = block_on(cluster.fabric(), ClientId(0), read).unwrap().unwrap();
    assert!(matches!(&lists[..], [(_, list)] if list.sequence >= 3 && list.records.len() == 1), "{lists:?}");
    // The list of timers may grow if more coroutines than ever stand in line.
    assert!(allocated.iter().all(|allocated| *allocated < 3), "{allocated:?} while three lists were written");
}

/// Lookups and changes of one key of an ordered table allocate nothing either, with values in
/// leaves or out of line.
#[test]
fn none_in_a_change_of_an_ordered_table() {
    none_of::<8>();
    none_of::<50>();
}

fn none_of<const WORDS: usize>() {
    const ROWS: u64 = 500;
    const TRANSACTIONS: u64 = 2_000;
    for protocol in [Protocol::DRTM_R, Protocol::DRTM_H, Protocol::FORD] {
        let cluster = embedded(protocol, 3);
        let rows = (0..ROWS).map(|number| ((number, 7), Words::<WORDS>::all(number)));
        let ordered: Ordered<(u64, u32), _> =
            cluster.load_ordered("ordered", OrderedOptions::for_rows(ROWS), rows).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
        let allocated = worker.block_on(async |session| {
            let mut before = 0;
            // The first half warms up.
            for number in 0..2 * TRANSACTIONS {
                if number == TRANSACTIONS {
                    before = allocations();
                }
                let random = session.lane().random();
                let (one, two) = ((random % ROWS, 7), ((random >> 16) % ROWS, 7));
                let run = session.transact(async |tx| {
                    let value = ordered.require(tx, one).await?;
                    ordered.get_mut(tx, two).await?.0[0] += value.0[0];
                    ordered.update(tx, one, value).await
                });
                run.await.unwrap();
            }
            allocations() - before
        });
        // A buffer, which is two allocations, may be made when more rounds are under way than ever.
        assert!(allocated <= 8, "{protocol:?}, {WORDS} words: {allocated} in {TRANSACTIONS} transactions");
    }
}
