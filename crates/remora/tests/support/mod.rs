//! Code that the tests of this crate share: records, seeded clusters, futures that are cut off, and
//! looks into raw memory.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "every test target uses a part of it")]

pub mod rig;

use std::future::poll_fn;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use remora::admin::Inspection;
use remora::connect::{Device, DeviceOptions};
use remora::floors::fabric::seeded::Seeded;
use remora::floors::fabric::shm::file::{ShmFiles, ShmNode};
use remora::floors::fabric::tcp::{Loopback, TcpOptions};
use remora::floors::fabric::{ClientId, Fabric, NodeId};
use remora::floors::node::ring::RingReader;
use remora::floors::node::{Pointer, clients, node};
use remora::protocol::Protocol;
use remora::{
    Cluster, ClusterOptions, Error, Intent, Key, Record, Session, Table, TableOptions, Transaction, TransactionId,
};
use remora::{Worker, WorkerOptions};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Runs each of these functions as a test of every protocol that promises serializable
/// transactions.
#[allow(unused_macros, reason = "every test target uses a part of it")]
macro_rules! every_protocol {
    ($($test:ident),* $(,)?) => { $(
        mod $test { remora::floors::txn::each_protocol!(test_of_each $test); }
    )* };
}

/// Runs each of these functions as a test of every protocol, too. Those of protocols that share
/// most of their code with another one are left to `.ci/long`.
#[allow(unused_macros, reason = "every test target uses a part of it")]
macro_rules! most_protocols {
    ($($test:ident),* $(,)?) => { $(
        mod $test { remora::floors::txn::each_protocol!(test_of_most $test); }
    )* };
}

/// Declares a test of each protocol, with the name of its constant, and leaves some to `.ci/long`.
#[allow(unused_macros, reason = "every test target uses a part of it")]
macro_rules! test_of_most {
    ([$($PROTOCOL:ident)*] $test:ident) => { $( test_of_most!($PROTOCOL $test); )* };
    (DRTM_H $test:ident) => { test_of_most!(@long DRTM_H $test); };
    (DST_2PL $test:ident) => { test_of_most!(@long DST_2PL $test); };
    (FARM $test:ident) => { test_of_most!(@long FARM $test); };
    (FORD_GLOBAL $test:ident) => { test_of_most!(@long FORD_GLOBAL $test); };
    (FORD_LEAN $test:ident) => { test_of_most!(@long FORD_LEAN $test); };
    (FORD_LOCAL $test:ident) => { test_of_most!(@long FORD_LOCAL $test); };
    (GTS $test:ident) => { test_of_most!(@long GTS $test); };
    (VTS $test:ident) => { test_of_most!(@long VTS $test); };
    ($PROTOCOL:ident $test:ident) => { test_of_each!([$PROTOCOL] $test); };
    (@long $PROTOCOL:ident $test:ident) => {
        #[test]
        #[ignore = "long: a part of .ci/long"]
        #[allow(non_snake_case, reason = "a constant's name")]
        fn $PROTOCOL() { super::$test(remora::protocol::Protocol::$PROTOCOL); }
    };
}

/// Declares a test of each protocol, with the name of its constant.
#[allow(unused_macros, reason = "every test target uses a part of it")]
macro_rules! test_of_each {
    ([$($PROTOCOL:ident)*] $test:ident) => { $(
        #[test]
        #[allow(non_snake_case, reason = "a constant's name")]
        fn $PROTOCOL() { super::$test(remora::protocol::Protocol::$PROTOCOL); }
    )* };
}

/// A record of `N` words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "words")]
#[repr(transparent)]
pub struct Words<const N: usize>(pub [u64; N]);

impl<const N: usize> Words<N> {
    /// All words the same, so that a torn one shows.
    pub fn all(word: u64) -> Words<N> {
        Words([word; N])
    }

    pub fn is_whole(&self) -> bool {
        self.0.iter().all(|word| *word == self.0[0])
    }
}

/// Number of memory nodes of every cluster here.
pub const NODES: u16 = 3;

/// The seeds of a test, or the one of the environment variable `REMORA_SEED`, to replay it.
pub fn seeds(all: Range<u64>) -> Range<u64> {
    match std::env::var("REMORA_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => all,
    }
}

/// Whether a test may take long and try everything, as `.ci/long` wants it: the environment
/// variable `REMORA_LONG` is set.
pub fn is_long() -> bool {
    std::env::var_os("REMORA_LONG").is_some()
}

pub fn options(protocol: Protocol, replicas: u8) -> ClusterOptions {
    // A protocol that keeps one copy has no others.
    let replicas = replicas.min(protocol.discipline().copies_max() as u8);
    Cluster::embedded().nodes(NODES).replicas(replicas).node_bytes(4 << 20).protocol(protocol)
}

pub fn seeded(protocol: Protocol, replicas: u8, seed: u64) -> (Cluster, Seeded) {
    options(protocol, replicas).open_seeded(seed).unwrap()
}

/// A seeded cluster. With every other seed, rounds take effect in order, over all nodes.
pub fn seeded_of_either_kind(protocol: Protocol, replicas: u8, seed: u64) -> (Cluster, Seeded) {
    let options = options(protocol, replicas);
    if seed % 2 == 1 { options.open_seeded_in_order(seed) } else { options.open_seeded(seed) }.unwrap()
}

/// A cluster of servers in this process, over TCP, or by the RDMA device that tests are to use.
pub fn over_a_network(protocol: Protocol, replicas: u8) -> Cluster {
    over_servers(device(), options(protocol, replicas).node_bytes(32 << 20))
}

pub fn embedded(protocol: Protocol, replicas: u8) -> Cluster {
    let options = options(protocol, replicas).node_bytes(32 << 20);
    match device() {
        None => options.open().unwrap(),
        rdma => over_servers(rdma, options),
    }
}

/// The RDMA device that tests are to use instead of everything else, if the environment variable
/// `REMORA_FABRIC` says `verbs`.
fn device() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    let wanted = || std::env::var("REMORA_FABRIC").is_ok_and(|fabric| fabric == "verbs");
    let open = || Device::open(&DeviceOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    DEVICE.get_or_init(|| wanted().then(open)).clone()
}

/// Returns `many`, or a tenth of it if the device is software on an emulated processor.
pub fn turns(many: u64) -> u64 {
    if device().is_some() { many / 10 } else { many }
}

/// A cluster of servers in this process.
fn over_servers(rdma: Option<Device>, options: ClusterOptions) -> Cluster {
    let regions = vec![vec![options.node_bytes]; NODES.into()];
    // A node on a busy machine must not count as dead.
    let patient = TcpOptions { rdma, patience: Duration::from_secs(30), ..TcpOptions::default() };
    options.open_on(Arc::new(Loopback::new(&regions, patient).unwrap())).unwrap()
}

/// Clusters of three nodes on every backend: shared memory, the seeded scheduler, TCP, files shared
/// between processes. Or on RDMA alone.
pub fn on_every_fabric(protocol: Protocol, replicas: u8) -> Vec<Cluster> {
    if device().is_some() {
        return vec![embedded(protocol, replicas)];
    }
    let options = options(protocol, replicas).node_bytes(32 << 20);
    vec![
        embedded(protocol, replicas),
        seeded(protocol, replicas, 7).0,
        over_servers(None, options),
        options.open_on(Arc::new(files(options.node_bytes))).unwrap(),
    ]
}

/// Makes memory nodes in files whose names are removed, so that no other process finds them.
fn files(bytes: usize) -> ShmFiles {
    static CLUSTERS: AtomicU64 = AtomicU64::new(0);
    let cluster = format!("remora-test-{}-{}", std::process::id(), CLUSTERS.fetch_add(1, Ordering::Relaxed));
    let paths: Vec<_> = (0..NODES).map(|node| std::env::temp_dir().join(format!("{cluster}-{node}"))).collect();
    let nodes = paths.iter().map(|path| ShmNode::open(path, Some(bytes as u64)).unwrap()).collect();
    let files = ShmFiles::new(&paths, nodes).unwrap();
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    files
}

/// Fetches rows in one round, and returns the sum of their values.
pub async fn read(tx: &mut Transaction<'_, '_>, rows: &Table<u64, Words<1>>, keys: Range<u64>) -> Result<u64, Error> {
    let slots: Vec<_> = keys.map(|key| tx.want(rows, key)).collect();
    tx.fetch().await?;
    slots.into_iter().try_fold(0, |sum, slot| Ok(sum + slot.require(tx)?.0[0]))
}

/// A worker that plays `clients` clients, one coroutine each.
pub fn worker(cluster: &Cluster, clients: usize, seed: u64) -> Worker {
    cluster
        .worker(
            WorkerOptions::default()
                .coroutines(clients)
                .clients(clients)
                .archive(16 << 10)
                .seed(seed)
                .yield_after_rounds(true),
        )
        .unwrap()
}

/// A table whose keys are 0, 1, 2 ...
pub fn table<V: Record>(cluster: &Cluster, name: &str, options: TableOptions, value: V) -> Table<u64, V> {
    let table = cluster.create_table(name, options).unwrap();
    cluster.load(&table, (0..options.rows).map(|key| (key, value))).unwrap();
    table
}

/// Fetches keys in one round, and adds 1 to the first `written` of them.
pub async fn add(
    tx: &mut Transaction<'_, '_>,
    rows: &Table<u64, Words<1>>,
    keys: Range<u64>,
    written: usize,
) -> Result<(), Error> {
    let intents = (0..).map(|index| if index < written { Intent::Update } else { Intent::Read });
    let slots: Vec<_> = keys.zip(intents).map(|(key, intent)| tx.want_for(rows, key, intent)).collect();
    tx.fetch().await?;
    slots.into_iter().take(written).try_for_each(|slot| {
        slot.get_mut(tx)?.0[0] += 1;
        Ok(())
    })
}

/// Everything at node 0, one copy.
pub fn at_one_node(rows: u64) -> TableOptions {
    TableOptions::for_rows(rows).shards(1).replicas(1).grows(false)
}

/// Waits until nothing of this session is under way in the background: its locks are gone then.
pub async fn rest(session: &mut Session) {
    while session.lane().background() > 0 {
        session.lane().sleep(1_000).await;
    }
}

/// Waits until no background round is under way. (`Worker::drain` also waits for the appliers.)
pub fn quiet(worker: &mut Worker) {
    worker.run(async |_, session| rest(session).await);
}

/// Ends a worker as a crash does, without waiting for anything of it.
pub fn crash(worker: Worker, fabric: &dyn Fabric) {
    worker.incarnations().for_each(|client| fabric.revoke(ClientId(client)).unwrap());
    drop(worker);
}

/// Returns the table's rows, in the order in which they were loaded, after everything has come to
/// rest. Also returns what the inspection has found.
pub fn look<K: Key, V: Record>(cluster: &Cluster, table: &Table<K, V>) -> (Vec<V>, Inspection) {
    let mut rows = Vec::new();
    let found = cluster.inspect(table, |row| rows.push(*row)).unwrap();
    (rows, found)
}

/// Polls a future at every turn of its worker, `polls` times, and drops it then: `None` if it was
/// not ready by then.
pub async fn cut_off<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        context.waker().wake_by_ref();
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Lets the other coroutines and the scheduler have a turn.
pub async fn others_run() {
    let mut turn = false;
    poll_fn(|context| {
        if std::mem::replace(&mut turn, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

fn hash(key: u64) -> remora::floors::record::KeyHash {
    rig::key(key).hash()
}

/// The shard of a key, by its place within the table.
pub fn shard_of<V>(table: &Table<u64, V>, key: u64) -> u16 {
    table.untyped().home(hash(key)).shard
}

/// The nodes whose rings get the log entry of a transaction that writes this key.
pub fn participants<V>(table: &Table<u64, V>, key: u64) -> Vec<NodeId> {
    table.untyped().shard_replicas(shard_of(table, key)).iter().map(|replica| replica.node).collect()
}

/// Whether a node's rings hold the entry of a transaction, applied or not.
pub fn is_logged(fabric: &dyn Fabric, at: NodeId, id: TransactionId) -> bool {
    let region = fabric.region(at, node::REGION).unwrap();
    let mut found = false;
    for client in clients(region.words()) {
        for lane in 0..client.lanes {
            let ring = RingReader::resume(region.words(), client.ring(lane), client.incarnation).unwrap();
            ring.scan(region.words(), |entry, _| found |= entry == id.to_bits());
            ring.scan_undo(region.words(), |entry, _| found |= entry == id.to_bits());
        }
    }
    found
}

/// Where a record is. Its location must be cached.
pub fn pointer_of<V: Record>(table: &Table<u64, V>, key: u64) -> Pointer {
    let (table, hash) = (table.untyped(), hash(key));
    table.cached(table.home(hash), hash).expect("a transaction has looked it up").pointer
}

/// The words of a record at every replica, the primary first, from lock and version on. The
/// location must be cached.
pub fn replicas_of<V: Record>(fabric: &dyn Fabric, table: &Table<u64, V>, key: u64) -> Vec<(NodeId, Vec<u64>)> {
    let (pointer, table) = (pointer_of(table, key), table.untyped());
    let words = table.shape().record_bytes() / 8;
    let read = |replica: &remora::floors::node::Replica| {
        let region = fabric.region(replica.node, replica.region).unwrap();
        let start = replica.address(pointer.offset()).offset as usize / 8;
        let words = region.words()[start..start + words].iter();
        (replica.node, words.map(|word| word.load(std::sync::atomic::Ordering::Acquire)).collect())
    };
    table.replicas(pointer).iter().map(read).collect()
}
