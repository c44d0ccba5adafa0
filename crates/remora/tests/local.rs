//! Localized validation (`ford-local`, `ford-global`): its costs, the changes that it must not
//! miss, and the clients that are refused.

mod support;

use std::cell::Cell;
use std::path::PathBuf;
use std::thread;

use remora::connect::Nodes;
use remora::floors::record::Version;
use remora::node::{MemoryNode, ServerOptions};
use remora::observe::{Cost, Observer, Outcome, TransactionEvent};
use remora::protocol::{Protocol, VersionCache};
use remora::{Cluster, Error, Intent, Table, TableOptions, Transaction, TransactionOptions, WorkerOptions};

use support::{
    Words, add, embedded, look, on_every_fabric, pointer_of, quiet, rest, seeded, seeds, table, turns, worker,
};

const LOCAL: Protocol = Protocol::FORD_LOCAL;
const GLOBAL: Protocol = Protocol::FORD_GLOBAL;

type Rows = Table<u64, Words<1>>;

/// Publishes a later version of a record, as a transaction does that aborts afterwards.
fn publish(cluster: &Cluster, rows: &Rows, key: u64, version: Version) {
    cluster.version_cache(VersionCache::BYTES).publish(std::iter::once((pointer_of(rows, key), version)));
}

/// Memory nodes in files, served by this process.
struct Files {
    paths: Vec<PathBuf>,
    served: Vec<Option<MemoryNode>>,
}

impl Files {
    fn new(name: &str, nodes: u16) -> Files {
        let path = |node| std::env::temp_dir().join(format!("remora-local-{name}-{}-{node}", std::process::id()));
        let paths: Vec<_> = (0..nodes).map(path).collect();
        let served = paths.iter().map(|path| Some(MemoryNode::map(path, Some(8 << 20)).unwrap())).collect();
        Files { paths, served }
    }

    /// Connects as a process of its own would.
    fn connect(&self, protocol: Protocol) -> Cluster {
        let nodes = Nodes::Shm(self.paths.clone());
        Cluster::connect(nodes).protocol(protocol).open().unwrap()
    }

    /// Makes another server, as another process would, of a node's memory.
    fn restart(&mut self, node: usize) {
        self.served[node] = None;
        self.served[node] = Some(MemoryNode::map(&self.paths[node], None).unwrap());
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let configuration = PathBuf::from(format!("{}.configuration", self.paths[0].display()));
        self.paths.iter().chain([&configuration]).for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// The cost of the last attempt.
#[derive(Clone, Default)]
struct Observed(std::rc::Rc<Cell<Option<(Outcome, Cost)>>>);

impl Observer for Observed {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        self.0.set(Some((event.outcome, event.cost)));
    }
}

impl Observed {
    fn committed(&self) -> Cost {
        let Some((Outcome::Committed, cost)) = self.0.take() else { panic!("it has not committed") };
        cost
    }
}

#[test]
fn what_the_cache_vouches_for_is_not_looked_at() {
    const RECORD: u64 = 40;
    const VALIDATED: u64 = 16;
    for cluster in on_every_fabric(LOCAL, 3) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(8), Words([1]));
        worker(&cluster, 1, 1).block_on(async |session| {
            session.transact(async |tx| add(tx, &rows, 0..8, 0).await).await.unwrap();
            let seen = Observed::default();
            session.observe(Some(Box::new(seen.clone())));
            // At first none of the records was written. Then one was written. Then one was
            // published, and not written.
            for (missed, written) in [(0, 2), (0, 2), (1, 2), (2, 2)] {
                if missed > 0 {
                    let key = 4 + missed;
                    publish(&cluster, &rows, key, Version::LOADED.committed_over());
                }
                session.transact(async |tx| add(tx, &rows, 0..8, 0).await).await.unwrap();
                let Cost { round_trips, reads, bytes_in, .. } = seen.committed();
                assert_eq!((round_trips, reads), (1 + missed.min(1), 8 + missed));
                assert_eq!(bytes_in, 8 * RECORD + missed * VALIDATED);
                session.transact(async |tx| add(tx, &rows, 0..8, written).await).await.unwrap();
                rest(session).await;
                let Cost { round_trips, reads, .. } = seen.committed();
                assert_eq!((round_trips, reads), (2 + missed.min(1), 8 + missed));
            }
            // The next transaction that writes the record gives it the version that was published.
            for key in [5, 6] {
                session.transact(async |tx| add(tx, &rows, key..key + 1, 1).await).await.unwrap();
                rest(session).await;
            }
            session.transact(async |tx| add(tx, &rows, 0..8, 0).await).await.unwrap();
            assert_eq!(seen.committed().round_trips, 1);
        });
    }
}

/// The cluster's cache costs one call, and saves all other validation.
#[test]
fn one_call_asks_for_all_records() {
    for cluster in on_every_fabric(GLOBAL, 3) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(8), Words([1]));
        worker(&cluster, 1, 1).block_on(async |session| {
            session.transact(async |tx| add(tx, &rows, 0..8, 0).await).await.unwrap();
            let seen = Observed::default();
            session.observe(Some(Box::new(seen.clone())));
            for (keys, written, expected) in [(0..1, 0, (1, 1, 0)), (0..8, 0, (2, 8, 1)), (0..8, 2, (3, 8, 1))] {
                session.transact(async |tx| add(tx, &rows, keys.clone(), written).await).await.unwrap();
                rest(session).await;
                let Cost { round_trips, reads, rpcs, .. } = seen.committed();
                assert_eq!((round_trips, reads, rpcs), expected);
            }
            // More than one call has room for.
            let many = table(&cluster, "many", TableOptions::for_rows(200), Words([1]));
            for _ in 0..2 {
                session.transact(async |tx| add(tx, &many, 0..200, 0).await).await.unwrap();
            }
            assert_eq!(seen.committed().rpcs, 2);
        });
    }
}

/// A change by another transaction, between a transaction's reads and its commit.
enum Change {
    Update,
    Insert,
    Delete,
}

/// Returns whether a transaction commits after such a change. It has read one key, present or
/// absent, and writes another key.
fn commits_after(protocol: Protocol, seed: u64, change: &Change) -> bool {
    const READ: u64 = 3;
    let (cluster, _fabric) = seeded(protocol, 2, seed);
    let rows = table(&cluster, "rows", TableOptions::for_rows(8), Words([1]));
    let key = if let Change::Insert = change { 100 } else { READ };
    let mut worker = worker(&cluster, 2, seed);
    let step = Cell::new(0);
    let committed = worker.run(async |client, session| {
        let until = async |wanted| {
            while step.get() < wanted {
                support::others_run().await;
            }
        };
        if client == 1 {
            until(1).await;
            let changed = session.transact(async |tx| match change {
                Change::Update => rows.update(tx, key, Words([2])).await,
                Change::Insert => rows.insert(tx, key, Words([2])).await,
                Change::Delete => rows.remove(tx, key).await.map(|_| ()),
            });
            changed.await.unwrap();
            step.set(2);
            return false;
        }
        let mut begun = session.begin().unwrap();
        let read = rows.get(&mut begun.transaction(), key).await.unwrap();
        assert_eq!(read.is_some(), key == READ);
        rows.update(&mut begun.transaction(), 0, Words([2])).await.unwrap();
        step.set(1);
        until(2).await;
        begun.commit().await.is_ok()
    });
    committed[0]
}

#[test]
fn what_has_changed_since_is_noticed() {
    for seed in seeds(0..20) {
        for change in [Change::Update, Change::Insert, Change::Delete] {
            for protocol in [LOCAL, GLOBAL] {
                assert!(!commits_after(protocol, seed, &change), "seed {seed}");
            }
        }
    }
}

/// Threads each take a half of a pair if both halves are there, so one half must stay. The
/// primaries of what they read are never looked at again.
fn do_not_skew(clusters: [&Cluster; 2]) {
    const PAIRS: u64 = 4;
    let (cluster, protocol) = (clusters[0], clusters[0].protocol());
    let rows = table(cluster, "rows", TableOptions::for_rows(2 * PAIRS), Words([1]));
    let take = |thread: u64| {
        let options = WorkerOptions::default().coroutines(2).seed(thread);
        let cluster = clusters[thread as usize % 2];
        let rows: Rows = cluster.open_table("rows").unwrap();
        cluster.worker(options).unwrap().run(async |_, session| {
            let mut taken = 0;
            for _ in 0..turns(4_000) {
                let random = session.lane().random();
                let (pair, half) = (random % PAIRS, random >> 8 & 1);
                let one = session.transact_with(TransactionOptions::default().attempts(1), async |tx| {
                    let own = tx.want_for(&rows, 2 * pair + half, Intent::Update);
                    let other = tx.want(&rows, 2 * pair + 1 - half);
                    tx.fetch().await?;
                    let (mine, others) = (own.require(tx)?.0[0], other.require(tx)?.0[0]);
                    assert!(mine <= 1 && others <= 1);
                    // Taken if both are there, given back if it is not.
                    let now = if mine == 0 { 1 } else { 1 - others };
                    *own.get_mut(tx)? = Words([now]);
                    Ok((mine + others, now == 0))
                });
                match one.await {
                    Ok((sum, took)) => {
                        assert!(sum > 0, "both halves of a pair are gone");
                        taken += u64::from(took);
                    }
                    Err(error) => assert!(matches!(error, Error::Aborted(_)), "{error}"),
                }
            }
            taken
        })
    };
    let taken: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || take(thread).into_iter().sum::<u64>())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(taken > turns(100), "{protocol:?}: {taken}");
    let (values, found) = look(cluster, &rows);
    assert_eq!((found.locked, found.torn, found.differing_lines, values.len() as u64), (0, 0, 0, 2 * PAIRS));
}

#[test]
fn threads_do_not_skew() {
    for protocol in [LOCAL, GLOBAL] {
        let cluster = embedded(protocol, 2);
        do_not_skew([&cluster; 2]);
    }
}

/// Two processes ask the same host.
#[test]
fn processes_do_not_skew() {
    let files = Files::new("skew", 2);
    let clusters = [files.connect(GLOBAL), files.connect(GLOBAL)];
    do_not_skew([&clusters[0], &clusters[1]]);
}

// --- What is lost.

/// Another process takes the place of the one that has the cluster's cache, and the memory stays.
/// Publications of transactions under way are lost.
#[test]
fn a_host_that_has_lost_the_cache_vouches_for_nothing_in_this_epoch() {
    let mut files = Files::new("lost", 2);
    let cluster = files.connect(GLOBAL);
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([1]));
    let mut before = worker(&cluster, 1, 1);
    before.block_on(async |session| {
        session.transact(async |tx| add(tx, &rows, 0..4, 1).await).await.unwrap();
        let mut begun = session.begin().unwrap();
        rows.get(&mut begun.transaction(), 3).await.unwrap();
        rows.update(&mut begun.transaction(), 0, Words([2])).await.unwrap();
        files.restart(1);
        assert!(begun.commit().await.is_err(), "it could not publish");
    });
    before.abandon();
    worker(&cluster, 1, 2).block_on(async |session| {
        let seen = Observed::default();
        session.observe(Some(Box::new(seen.clone())));
        session.transact(async |tx| add(tx, &rows, 1..4, 0).await).await.unwrap();
        let Cost { round_trips, reads, rpcs, .. } = seen.committed();
        assert_eq!((round_trips, reads, rpcs), (3, 2 * 3, 1));
    });
}

// --- Who is refused.

#[test]
fn who_does_not_publish_is_refused() {
    let cluster = embedded(LOCAL, 2);
    let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([1]));
    for protocol in Protocol::ALL.into_iter().filter(|protocol| *protocol != LOCAL) {
        let error = cluster.with_protocol(protocol).open_table::<u64, Words<1>>("rows").unwrap_err().to_string();
        let both = [protocol.name(), "versions published in one process"];
        assert!(both.iter().all(|word| error.contains(word)), "{error}");
    }
    cluster.open_table::<u64, Words<1>>("rows").unwrap();
    let ford = cluster.with_protocol(Protocol::FORD);
    table(&ford, "remote", TableOptions::for_rows(4), Words([1]));
    cluster.open_table::<u64, Words<1>>("remote").unwrap();
    quiet(&mut worker(&cluster, 1, 1));
    drop(rows);
}

/// Each process has tables of its own, and all processes share some.
#[test]
fn tables_are_parted_between_compute_nodes() {
    let files = Files::new("parted", 2);
    let (one, other) = (files.connect(LOCAL), files.connect(LOCAL));
    table(&one, "ones", TableOptions::for_rows(4), Words([1]));
    table(&files.connect(Protocol::FORD), "shared", TableOptions::for_rows(4), Words([1]));
    let seen = Observed::default();
    // Reads all, and writes one of each table.
    let add = |cluster: &Cluster, own: &str| {
        let own: Rows = cluster.open_table(own)?;
        let shared: Rows = cluster.open_table("shared")?;
        let mut worker = cluster.worker(WorkerOptions::default())?;
        worker.block_on(async |session| {
            let both = async |tx: &mut Transaction<'_, '_>| {
                let intents = [Intent::Update, Intent::Read, Intent::Read];
                let tables = [&own, &shared].into_iter().flat_map(|rows| intents.map(|intent| (rows, intent)));
                let slots: Vec<_> =
                    tables.zip(0..).map(|((rows, intent), n)| tx.want_for(rows, n % 3, intent)).collect();
                tx.fetch().await?;
                for slot in [slots[0], slots[3]] {
                    slot.get_mut(tx)?.0[0] += 1;
                }
                Ok(())
            };
            session.transact(both).await.unwrap();
            rest(session).await;
            session.observe(Some(Box::new(seen.clone())));
            session.transact(both).await.unwrap();
            rest(session).await;
        });
        let Cost { round_trips, reads, .. } = seen.committed();
        assert_eq!((round_trips, reads), (3, 6 + 2), "what is shared is looked at again, and nothing else");
        Ok::<_, remora::OpenError>(worker)
    };
    let first = add(&one, "ones").unwrap();
    let dead = first.incarnations().next().unwrap();
    let refused = other.open_table::<u64, Words<1>>("ones").unwrap_err().to_string();
    assert!(refused.contains(&format!("client {dead} uses another")), "{refused}");
    table(&other, "others", TableOptions::for_rows(4), Words([1]));
    drop(add(&other, "others").unwrap());
    // Clients of other protocols may connect, and recover a dead client.
    let mut janitor = files.connect(Protocol::FORD).worker(WorkerOptions::default()).unwrap();
    first.abandon();
    assert!(add(&other, "ones").is_err(), "what it had begun may still land");
    janitor.recover(dead).unwrap();
    let second = add(&other, "ones").unwrap();
    assert!(one.worker(WorkerOptions::default()).is_err(), "it has a handle to a table that is another's now");
    drop(second);
    drop(add(&one, "ones").unwrap());
}

#[test]
fn where_nobody_says_who_is_there_it_is_refused() {
    let node = MemoryNode::listen("127.0.0.1:0", 8 << 20, ServerOptions::default()).unwrap();
    let nodes = Nodes::Tcp(vec![node.address().unwrap().to_string()]);
    let cluster = Cluster::connect(nodes).protocol(LOCAL).open().unwrap();
    table(&cluster, "rows", TableOptions::for_rows(4), Words([1]));
    let error = cluster.worker(WorkerOptions::default()).unwrap_err().to_string();
    assert!(error.contains("ford-local") && error.contains("configuration"), "{error}");
}
