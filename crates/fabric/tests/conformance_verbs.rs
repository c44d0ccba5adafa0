//! Runs the contract of a round over RDMA. Memory nodes are servers on threads of this process, and
//! clients are threads. They use the first RDMA device of the machine. The test needs a device;
//! `.ci/softroce` makes one where there is none.

use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::rdma::{Calls, Device, DeviceCounts, DeviceOptions};
use remora_fabric::tcp::{Key, Loopback, LoopbackError, ServerError, ServerOptions, TcpOptions};
use remora_fabric::{Address, ClientId, Fabric, Handler, Host, Lane, NodeId, RegionId, Round, Worker, block_on};

fn open(options: DeviceOptions) -> Device {
    Device::open(&options).unwrap_or_else(|error| panic!("{error}"))
}

/// A device whose NICs execute the verbs.
static ONE_SIDED: LazyLock<Device> = LazyLock::new(|| open(DeviceOptions::default()));
/// A device over which verbs travel in messages, as where a device has no atomics.
static MESSAGES: LazyLock<Device> = LazyLock::new(|| open(DeviceOptions::default().messages_only(true)));
/// A device over which calls travel in datagrams.
static DATAGRAMS: LazyLock<Device> = LazyLock::new(|| open(DeviceOptions::default().calls(Calls::Datagrams)));
/// A device over which all verbs travel in datagrams, and some datagrams are lost.
static LOSSY: LazyLock<Device> = LazyLock::new(|| {
    const LOSE_EVERY: NonZeroU32 = NonZeroU32::new(7).unwrap();
    open(DeviceOptions::default().messages_only(true).calls(Calls::Datagrams).lose_every(LOSE_EVERY))
});

struct VerbsBed {
    device: &'static LazyLock<Device>,
    turns: u64,
}

impl Bed for VerbsBed {
    fn fabric(&self, nodes: &[Vec<usize>], seed: u64) -> Box<dyn Host> {
        // Half of the runs have a key.
        let keys = (seed % 2 == 1).then(|| Key::generate().expect("random bytes").into());
        // A busy machine must not be taken for a dead node.
        let (rdma, patience) = (Some(Device::clone(self.device)), Duration::from_secs(30));
        let options = TcpOptions { keys, rdma, patience, ..TcpOptions::default() };
        Box::new(Loopback::new(nodes, options).expect("a test's servers"))
    }

    fn clients(&self) -> Clients {
        Clients::Threads
    }

    fn runs(&self) -> u64 {
        2
    }

    fn turns(&self) -> u64 {
        self.turns
    }

    fn reorders(&self) -> bool {
        false
    }
}

mod one_sided {
    remora_fabric::conformance_suite!(super::VerbsBed { device: &super::ONE_SIDED, turns: 100 });
}

// These tests take fewer turns, because an emulated processor needs milliseconds for a message that
// wakes a server.

mod messages {
    remora_fabric::conformance_suite!(super::VerbsBed { device: &super::MESSAGES, turns: 10 });
}

mod datagrams {
    remora_fabric::conformance_suite!(super::VerbsBed { device: &super::DATAGRAMS, turns: 10 });
}

/// Queue pairs belong to a thread of the node, and a node with RDMA has one.
#[test]
fn a_node_with_rdma_has_one_thread() {
    let servers = ServerOptions::default().rdma(Device::clone(&ONE_SIDED)).threads(2);
    let refused = Loopback::with_servers(&[vec![4096]], &servers, TcpOptions::default()).map(drop);
    assert_eq!(refused, Err(LoopbackError::Server(ServerError::RdmaThreads(2))));
}

/// Several clients share a node's queue pair for datagrams, one after the other and at the same
/// time. When there are more than it can take, the node makes another one. It tells the clients
/// apart.
#[test]
fn datagrams_of_many_clients_meet_in_one_queue_pair() {
    struct Counts(AtomicU64);
    impl Handler for Counts {
        fn call(&self, from: ClientId, request: &[u64], reply: &mut Vec<u64>) {
            let served = 1 + self.0.fetch_add(1, Ordering::Relaxed);
            reply.extend([u64::from(from.0), served, request[0]]);
        }
    }
    let fabric = VerbsBed { device: &DATAGRAMS, turns: 1 }.fabric(&[vec![4096]], 1);
    fabric.answer(NodeId(0), Box::new(Counts(0.into())));
    let mut others = Vec::new();
    let mut served = 0;
    for client in 1..50 {
        let calls = u64::from(client) % 5 + 1;
        block_on(&*fabric, ClientId(client), async |lane| {
            for number in 0..calls {
                let mut round = lane.round();
                let call = round.call(NodeId(0), &[number], None, 3);
                let done = lane.execute(round).await.expect("a healthy node");
                served += 1;
                assert_eq!(done.reply(call), [u64::from(client), served, number]);
            }
        })
        .expect("a worker");
        if client > 10 {
            others.push(fabric.connect(ClientId(1000 + client)).expect("one more client"));
        }
    }
}

/// A fabric whose clients have a device of their own, so that the device's counts are those of the
/// clients alone.
fn counted(calls: Calls, nodes: &[Vec<usize>]) -> (Loopback, Device) {
    let device = open(DeviceOptions::default().calls(calls));
    let servers = ServerOptions::default().rdma(Device::clone(&ONE_SIDED));
    let (rdma, patience) = (Some(device.clone()), Duration::from_secs(30));
    let options = TcpOptions { rdma, patience, ..TcpOptions::default() };
    (Loopback::with_servers(nodes, &servers, options).expect("a test's servers"), device)
}

/// Returns what was posted from one count to the next: lists, the work requests in them, and those
/// that are signalled.
fn posted(before: DeviceCounts, after: DeviceCounts) -> [u64; 3] {
    [after.send_lists - before.send_lists, after.sends - before.sends, after.signaled - before.signaled]
}

/// Returns the least of several results: where an emulated processor is slow, something may be sent
/// again, acknowledged or asked for meanwhile, and is counted, too.
async fn least<T: Ord>(mut count: impl AsyncFnMut() -> T) -> T {
    let mut least = count().await;
    for _ in 0..10 {
        least = least.min(count().await);
    }
    least
}

async fn settle(lane: &Lane) {
    while lane.background() > 0 {
        lane.sleep(1_000).await;
    }
}

/// A handler that answers with nothing.
struct Silent;

impl Handler for Silent {
    fn call(&self, _: ClientId, _: &[u64], _: &mut Vec<u64>) {}
}

/// The calls of a round leave as one list of datagrams, whichever nodes they are made to, and so do
/// those of several rounds. A list has 32 datagrams.
#[test]
fn calls_in_datagrams_share_a_doorbell() {
    const NODES: u16 = 3;
    let (fabric, device) = counted(Calls::Datagrams, &vec![vec![4096]; usize::from(NODES)]);
    (0..NODES).for_each(|node| fabric.answer(NodeId(node), Box::new(Silent)));
    block_on(&fabric, ClientId(1), async |lane| {
        // 64 receives for the datagrams of each node, and one of each connection.
        let DeviceCounts { receive_lists, receives, .. } = device.counts();
        assert_eq!([receive_lists, receives], [u64::from(NODES) * 3, u64::from(NODES) * 65]);
        let sent = async |bytes: usize, rounds: usize| {
            // Everything before is acknowledged meanwhile.
            lane.sleep(20_000_000).await;
            let mut under_way = Vec::new();
            for _ in 0..rounds {
                let mut round = lane.round();
                let body = round.stage(&vec![0; bytes]);
                (0..NODES).for_each(|node| _ = round.call(NodeId(node), &[], Some(body), 1));
                under_way.push(lane.execute(round));
            }
            let before = device.counts();
            // The worker sends when its coroutines have had their turn.
            lane.yield_now().await;
            let sent = posted(before, device.counts());
            for round in under_way {
                round.await.expect("a healthy node");
            }
            sent
        };
        // The bytes of a call to each node, the number of rounds, and the lists and datagrams of
        // all.
        for (bytes, rounds, lists, datagrams) in [(8, 1, 1, 3), (8, 4, 1, 3), (3_000, 1, 1, 12), (12_000, 1, 2, 39)] {
            let [sent_lists, sent, _] = least(async || sent(bytes, rounds).await).await;
            assert_eq!([sent_lists, sent], [lists, datagrams], "{rounds} rounds of calls with {bytes} bytes");
        }
    })
    .expect("a worker");
}

const WORD: Address = Address { node: NodeId(0), region: RegionId(0), offset: 0 };

fn write(lane: &Lane, value: u64) -> Round<'_> {
    let mut round = lane.round();
    round.write_words(WORD, &[value]);
    round
}

/// Of rounds that nobody awaits, one in sixteen is signalled. A signalled round that follows tells
/// of them, too. If none follows, one more work request asks for all of them.
#[test]
fn background_rounds_are_unsignaled() {
    let (fabric, device) = counted(Calls::Connection, &[vec![4096]]);
    block_on(&fabric, ClientId(1), async |lane| {
        for rounds in [0, 1, 15, 16, 17, 40] {
            let asks = u64::from(rounds % 16 != 0);
            // With a round behind them that is awaited. Each round takes a doorbell.
            let followed = least(async || {
                let before = device.counts();
                (0..rounds).for_each(|value| lane.post(write(lane, value)));
                let mut round = lane.round();
                let read = round.read(WORD, 8);
                let round = lane.execute(round);
                let sent = posted(before, device.counts());
                let done = round.await.expect("a healthy node");
                assert_eq!(done.words(read), [rounds.saturating_sub(1)]);
                assert_eq!(lane.background(), 0, "the awaited round tells of those before it");
                sent
            });
            assert_eq!(followed.await, [rounds + 1, rounds + 1, rounds / 16 + 1], "{rounds} rounds, and one awaited");
            let alone = least(async || {
                let before = device.counts();
                (0..rounds).for_each(|value| lane.post(write(lane, value)));
                settle(lane).await;
                posted(before, device.counts())
            });
            assert_eq!(alone.await, [rounds + asks, rounds + asks, rounds / 16 + asks], "{rounds} rounds alone");
        }
        // A coroutine that waits for a round has it asked for at once, and once.
        let hurried = least(async || {
            let before = device.counts();
            lane.post(write(lane, 1));
            lane.hurry();
            lane.hurry();
            let sent = posted(before, device.counts());
            settle(lane).await;
            sent
        });
        assert_eq!(hurried.await, [2, 2, 1]);
        // While the worker's thread does something else, another thread asks in its place.
        let before = device.counts();
        lane.post(write(lane, 1));
        let deadline = Instant::now() + Duration::from_secs(30);
        while posted(before, device.counts())[2] == 0 && Instant::now() < deadline {
            thread::yield_now();
        }
        assert_eq!(posted(before, device.counts()), [2, 2, 1]);
        settle(lane).await;
        // A round is signalled if another one waits behind it.
        let chained = least(async || {
            let before = device.counts();
            let last = lane.post_all([1, 2, 3].map(|value| write(lane, value))).expect("a round");
            lane.until_posted(last).await;
            settle(lane).await;
            posted(before, device.counts())
        });
        assert_eq!(chained.await, [4, 4, 3]);
    })
    .expect("a worker");
}

/// A round that nobody awaits and that is not signalled fails once, and only if its node is lost.
#[test]
fn unsignaled_rounds_fail_once() {
    const ROUNDS: u32 = 5;
    let (fabric, _) = counted(Calls::Connection, &[vec![4096], vec![4096]]);
    block_on(&fabric, ClientId(1), async |lane| {
        let other = Address { node: NodeId(1), ..WORD };
        lane.execute(write(lane, 1)).await.expect("a healthy node");
        fabric.stop(NodeId(0));
        for value in 0..u64::from(ROUNDS) {
            let mut both = write(lane, value);
            both.write_words(other, &[value]);
            lane.post(both);
            let mut healthy = lane.round();
            healthy.write_words(other, &[value]);
            lane.post(healthy);
        }
        settle(lane).await;
        let failures = lane.endpoint().failures();
        assert_eq!((lane.background_failures(), failures.len()), (ROUNDS, ROUNDS as usize));
        assert!(failures.iter().all(|failure| failure.error.node == NodeId(0)));
        lane.execute(write(lane, 1)).await.expect_err("the node is lost");
        let mut round = lane.round();
        let read = round.read(other, 8);
        let done = lane.execute(round).await.expect("a healthy node");
        assert_eq!(done.words(read), [u64::from(ROUNDS) - 1]);
    })
    .expect("a worker");
}

/// An endpoint that is dropped still waits for rounds that are not signalled, but not longer than
/// these take.
#[test]
fn unsignaled_rounds_run_though_their_endpoint_is_dropped() {
    let (fabric, _) = counted(Calls::Connection, &[vec![4096]]);
    let region = fabric.region(NodeId(0), RegionId(0)).expect("a region");
    let mut shortest = Duration::MAX;
    for value in 1..8 {
        let worker = Worker::new();
        let endpoint = worker.connect(&fabric, ClientId(1)).expect("a healthy node");
        let lane = worker.lane(&endpoint, 1).expect("the first lane");
        let since = Instant::now();
        lane.post(write(&lane, value));
        drop((lane, endpoint, worker));
        shortest = shortest.min(since.elapsed());
        assert_eq!(region.words()[0].load(Ordering::Acquire), value);
    }
    assert!(shortest < Duration::from_millis(300), "{shortest:?}");
}

mod lossy {
    remora_fabric::conformance_suite!(super::VerbsBed { device: &super::LOSSY, turns: 10 });
}
