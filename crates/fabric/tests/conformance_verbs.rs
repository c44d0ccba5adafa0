//! Runs the contract of a round over RDMA. Memory nodes are servers on threads of this process, and
//! clients are threads. They use the first RDMA device of the machine. The test needs a device;
//! `.ci/softroce` makes one where there is none.

use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::rdma::{Calls, Device, DeviceCounts, DeviceOptions};
use remora_fabric::tcp::{Key, Loopback, LoopbackError, ServerError, ServerOptions, TcpOptions};
use remora_fabric::{ClientId, Handler, Host, NodeId, block_on};

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

/// Returns what was posted from one count to the next.
fn posted(before: DeviceCounts, after: DeviceCounts) -> [u64; 2] {
    [after.send_lists - before.send_lists, after.sends - before.sends]
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
        // The bytes of a call to each node, the number of rounds, and the lists and datagrams of all.
        for (bytes, rounds, lists, datagrams) in [(8, 1, 1, 3), (8, 4, 1, 3), (3_000, 1, 1, 12), (12_000, 1, 2, 39)] {
            // Where it takes milliseconds to send, a datagram may be acknowledged or repeated
            // meanwhile. So the least counts.
            let mut least = sent(bytes, rounds).await;
            for _ in 0..10 {
                least = least.min(sent(bytes, rounds).await);
            }
            assert_eq!(least, [lists, datagrams], "{rounds} rounds of calls with {bytes} bytes");
        }
    })
    .expect("a worker");
}

mod lossy {
    remora_fabric::conformance_suite!(super::VerbsBed { device: &super::LOSSY, turns: 10 });
}
