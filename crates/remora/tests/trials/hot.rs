//! What clients write about their hot records, and what others read of it. The time is virtual: it
//! goes on when all coroutines sleep.

use remora::floors::fabric::{ClientId, Lane, NodeId, block_on};
use remora::floors::node::hot::{HOT_WINDOW_NS, HotList, fresh_hot_lists, hot_lists};
use remora::protocol::Protocol;
use remora::{Abort, Cluster, Error, Session, Table, TransactionOptions, WorkerOptions};

use crate::support::{Words, at_one_node, seeded, table, worker};

type Rows = Table<u64, Words<1>>;

/// A key whose bytes are not all zeros.
const HOT: u64 = 0x0102;

fn cluster(seed: u64) -> (Cluster, Rows) {
    let (cluster, _) = seeded(Protocol::FORD, 1, seed);
    let rows = table(&cluster, "rows", at_one_node(512), Words([0]));
    (cluster, rows)
}

async fn pause(session: &Session, ms: u64) {
    session.lane().sleep(ms * 1_000_000).await;
}

/// Adds 1 to a row. The transaction takes 100 us.
async fn add(session: &mut Session, rows: &Rows, key: u64) {
    let add = session.transact(async |tx| {
        rows.get_mut(tx, key).await?.0[0] += 1;
        tx.lane().sleep(100_000).await;
        Ok(())
    });
    add.await.unwrap();
}

fn lists(cluster: &Cluster) -> Vec<(u32, HotList)> {
    let read = async |lane: &Lane| hot_lists(lane, NodeId(0)).await;
    block_on(cluster.fabric(), ClientId(0), read).unwrap().unwrap()
}

#[test]
fn a_client_without_hot_records_sends_nothing_more() {
    let (cluster, rows) = cluster(1);
    let mut worker = worker(&cluster, 2, 1);
    let mut rounds_with = |pause_ms| {
        worker.run(async |number, session| {
            let before = session.lane().endpoint().rounds();
            for _ in 0..100 {
                add(session, &rows, number as u64).await;
                pause(session, pause_ms).await;
            }
            session.lane().endpoint().rounds() - before
        })
    };
    rounds_with(0);
    let (at_once, in_ten_seconds) = (rounds_with(0), rounds_with(100));
    assert_eq!(at_once, in_ten_seconds);
    assert!(lists(&cluster).is_empty());
}

#[test]
fn hot_records_are_listed_once_a_second_and_no_longer_than_they_are_hot() {
    const SECONDS: u64 = 5;
    let (cluster, rows) = cluster(2);
    let mut worker = worker(&cluster, 3, 2);
    let clients: Vec<u32> = worker.incarnations().collect();
    let seen = worker.run(async |number, session| {
        if number == 2 {
            // This client has no hot records. It looks at the lists of the others.
            pause(session, 2_500).await;
            let began = session.lane().now();
            let fresh = fresh_hot_lists(session.lane(), NodeId(0)).await.unwrap();
            assert!(session.lane().now() - began < 2 * HOT_WINDOW_NS);
            pause(session, SECONDS * 1_000).await;
            // All lists have been erased by now, so there is nothing to wait for.
            let began = session.lane().now();
            assert!(fresh_hot_lists(session.lane(), NodeId(0)).await.unwrap().is_empty());
            assert!(session.lane().now() - began < HOT_WINDOW_NS / 10);
            return fresh;
        }
        let until = session.lane().now() + SECONDS * HOT_WINDOW_NS;
        while session.lane().now() < until {
            add(session, &rows, HOT).await;
            add(session, &rows, number as u64).await;
        }
        pause(session, 3_000).await;
        Vec::new()
    });
    let fresh = &seen[2];
    assert_eq!(fresh.len(), 2, "{fresh:?}");
    for list in fresh {
        assert!((HOT_WINDOW_NS..HOT_WINDOW_NS * 11 / 10).contains(&list.window_ns), "{list:?}");
        assert_eq!((list.records.len(), list.records[0].key()), (1, &HOT.to_be_bytes()[..]), "{list:?}");
        // A transaction takes 100 us, so that is what there can be in a second.
        let conflicts = list.records[0].conflicts;
        assert!((100..=10_000).contains(&conflicts.count()) && conflicts.changed == 0, "{list:?}");
    }
    let left = lists(&cluster);
    assert_eq!(left.iter().map(|(client, _)| *client).collect::<Vec<_>>(), clients[..2]);
    for (_, list) in left {
        assert!(list.records.is_empty() && (SECONDS..=SECONDS + 2).contains(&list.sequence), "{list:?}");
    }
    drop(worker);
    assert!(lists(&cluster).is_empty(), "a client that has left has no list");
}

/// A program may run each transaction by itself, so that nothing runs for as long as a second.
#[test]
fn a_client_that_runs_in_short_pieces_has_a_list() {
    let (cluster, rows) = cluster(3);
    let mut holder = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
    let mut other = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
    let mut held = |body: &mut dyn FnMut()| {
        holder.block_on(async |session| {
            let mut begun = session.begin().unwrap();
            rows.get_mut(&mut begun.transaction(), HOT).await.unwrap();
            body();
            begun.abort().await;
        });
    };
    held(&mut || {
        for _ in 0..30 {
            let once = TransactionOptions::default().attempts(1);
            let refused = other.block_on(async |session| {
                pause(session, 100).await;
                session.transact_with(once, async |tx| rows.update(tx, HOT, Words([1])).await).await
            });
            assert!(matches!(refused, Err(Error::Aborted(why)) if matches!(why.cause, Abort::Locked(_))));
        }
    });
    let lists = lists(&cluster);
    let (client, list) = lists.first().expect("a list");
    assert!(lists.len() == 1 && other.incarnations().eq([*client]), "{lists:?}");
    assert_eq!(list.records[0].key(), HOT.to_be_bytes());
    assert!((8..=12).contains(&list.records[0].conflicts.locked) && list.sequence == 2, "{list:?}");
}
