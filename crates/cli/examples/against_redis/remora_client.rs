//! The keys of the comparison in a cluster of memory nodes, and transactions on them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora::connect::Nodes;
use remora::{Cluster, Error, Intent, Session, Table, TableOptions, WorkerOptions};
use remora_workload::Prng;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::processes::{MemoryNodeProcess, own_cpu_seconds};
use crate::{IN_FLIGHT, KEYS, Sample, VALUE_BYTES};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "value: 64 bytes")]
#[repr(C)]
struct Value([u64; VALUE_BYTES / 8]);

/// How long a memory node may leave a client without an answer. With fifty threads on few
/// processors, a node that waits long for its turn is not dead.
const PATIENCE: Duration = Duration::from_secs(10);

/// A table on some memory nodes, with a copy at each of them.
pub(crate) struct Store<'a> {
    nodes: &'a [MemoryNodeProcess],
    cluster: Cluster,
    table: Table<u64, Value>,
}

/// The load of a measurement: its threads, and its kind of transactions.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// Number of threads. Each has a connection to each memory node.
    pub(crate) threads: usize,
    /// Number of transactions in flight on each thread.
    pub(crate) coroutines: usize,
    pub(crate) kind: Kind,
}

/// The kind of a transaction.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// It reads a record.
    Get,
    /// It reads and writes two records.
    Change,
    /// It adds one to the first word of the first record.
    Count,
}

impl<'a> Store<'a> {
    /// Loads all keys, and reads each once, so that its location is cached.
    pub(crate) fn load(nodes: &'a [MemoryNodeProcess]) -> Store<'a> {
        let addresses = nodes.iter().map(|node| node.address.clone()).collect();
        let options = Cluster::connect(Nodes::Tcp(addresses)).replicas(nodes.len() as u8).patience(PATIENCE);
        let cluster = options.open().expect("memory nodes that were just started");
        let table = cluster.create_table("values", TableOptions::for_rows(KEYS)).expect("room for a table");
        let rows = (0..KEYS).map(|key| (key, Value([key; VALUE_BYTES / 8])));
        cluster.load(&table, rows).expect("room for all rows");
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(IN_FLIGHT));
        let read = worker.as_mut().expect("a worker").run(async |coroutine, session: &mut Session| {
            for key in (coroutine as u64..KEYS).step_by(IN_FLIGHT) {
                session.transact(async |tx| table.get(tx, key).await).await?;
            }
            Ok::<_, Error>(())
        });
        read.into_iter().collect::<Result<(), _>>().expect("records that were just loaded");
        drop(worker);
        Store { nodes, cluster, table }
    }

    pub(crate) fn measure(&self, load: Load, time: Duration) -> Sample {
        let (barrier, stop) = (Barrier::new(load.threads + 1), AtomicBool::new(false));
        thread::scope(|scope| {
            let (barrier, stop) = (&barrier, &stop);
            let threads: Vec<_> =
                (0..load.threads).map(|number| scope.spawn(move || self.work(load, number, barrier, stop))).collect();
            barrier.wait();
            let (before, started) = ((own_cpu_seconds(), self.server_cpu_seconds()), Instant::now());
            thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
            let seconds = started.elapsed().as_secs_f64();
            let client_cpu = own_cpu_seconds() - before.0;
            let server_cpu = self.server_cpu_seconds() - before.1;
            let (mut operations, mut round_trips) = (0, 0);
            for thread in threads {
                let (done, trips) = thread.join().expect("a worker without failures");
                operations += done;
                round_trips += trips;
            }
            let (operations, round_trips) = (operations as f64, Some(round_trips as f64));
            Sample { operations, seconds, round_trips, client_cpu, server_cpu }
        })
    }

    fn server_cpu_seconds(&self) -> f64 {
        self.nodes.iter().map(MemoryNodeProcess::cpu_seconds).sum()
    }

    /// Runs one thread's transactions until it is stopped. Returns their number, and their round
    /// trips.
    fn work(&self, load: Load, number: usize, barrier: &Barrier, stop: &AtomicBool) -> (u64, u64) {
        let worker = self.cluster.worker(WorkerOptions::default().coroutines(load.coroutines));
        // Every thread must come here, even one that has no worker. Otherwise the other threads
        // would wait without end.
        barrier.wait();
        let run = worker.expect("room for a worker").run(async |coroutine, session: &mut Session| {
            let mut random = Prng::derive(number as u64, coroutine as u64);
            let (mut done, before) = (0, session.lane().cost().round_trips);
            while !stop.load(Ordering::Relaxed) {
                let (one, other) = (random.below(KEYS), random.below(KEYS));
                match load.kind {
                    Kind::Get => self.get(session, one).await?,
                    Kind::Change => self.change(session, one, other).await?,
                    Kind::Count => self.count(session).await?,
                }
                done += 1;
            }
            Ok::<_, Error>((done, session.lane().cost().round_trips - before))
        });
        let run: Vec<_> = run.into_iter().collect::<Result<_, _>>().expect("memory nodes that answer");
        run.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    async fn get(&self, session: &mut Session, key: u64) -> Result<(), Error> {
        let value = session.transact(async |tx| self.table.get(tx, key).await).await?;
        assert!(value.is_some(), "every key was loaded");
        Ok(())
    }

    async fn count(&self, session: &mut Session) -> Result<(), Error> {
        let counted = session.transact(async |tx| {
            let counter = tx.want_for(&self.table, 0, Intent::Update);
            tx.fetch().await?;
            counter.get_mut(tx)?.0[0] += 1;
            Ok(())
        });
        counted.await
    }

    async fn change(&self, session: &mut Session, one: u64, other: u64) -> Result<(), Error> {
        let changed = session.transact(async |tx| {
            let [one, other] = [one, other].map(|key| tx.want_for(&self.table, key, Intent::Update));
            tx.fetch().await?;
            one.get_mut(tx)?.0[0] += 1;
            other.get_mut(tx)?.0[0] += 1;
            Ok(())
        });
        changed.await
    }
}
