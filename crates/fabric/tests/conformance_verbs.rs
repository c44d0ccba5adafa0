//! The contract of a round, over RDMA: memory nodes are servers on threads of this process, clients
//! are threads, and the device that they use is the first there is. Needs one: `.ci/softroce` has
//! one where there is none.

use std::num::NonZeroU32;
use std::sync::LazyLock;
use std::time::Duration;

use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::rdma::{Calls, Device, DeviceOptions};
use remora_fabric::tcp::{Key, Loopback, TcpOptions};
use remora_fabric::{ClientId, Handler, Host, NodeId, block_on};

fn open(options: DeviceOptions) -> Device {
    Device::open(&options).unwrap_or_else(|error| panic!("{error}"))
}

/// NICs execute the verbs.
static ONE_SIDED: LazyLock<Device> = LazyLock::new(|| open(DeviceOptions::default()));
/// Verbs travel in messages, as where a device has no atomics.
static MESSAGES: LazyLock<Device> = LazyLock::new(|| open(DeviceOptions::default().messages_only(true)));
/// Calls travel in datagrams.
static DATAGRAMS: LazyLock<Device> = LazyLock::new(|| open(DeviceOptions::default().calls(Calls::Datagrams)));
/// All verbs travel in datagrams, of which some are lost.
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
        // With and without a key.
        let keys = (seed % 2 == 1).then(|| Key::generate().expect("random bytes").into());
        // A busy machine is not a dead node.
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

// A message that wakes a server takes an emulated processor milliseconds: fewer turns.

mod messages {
    remora_fabric::conformance_suite!(super::VerbsBed { device: &super::MESSAGES, turns: 10 });
}

mod datagrams {
    remora_fabric::conformance_suite!(super::VerbsBed { device: &super::DATAGRAMS, turns: 10 });
}

/// Clients share a node's queue pair for datagrams, one after the other and at the same time; when
/// there are more than it takes, there is another one. They are told apart.
#[test]
fn datagrams_of_many_clients_meet_in_one_queue_pair() {
    struct Counts(u64);
    impl Handler for Counts {
        fn call(&mut self, from: ClientId, request: &[u64], reply: &mut Vec<u64>) {
            self.0 += 1;
            reply.extend([u64::from(from.0), self.0, request[0]]);
        }
    }
    let fabric = VerbsBed { device: &DATAGRAMS, turns: 1 }.fabric(&[vec![4096]], 1);
    fabric.answer(NodeId(0), Box::new(Counts(0)));
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

mod lossy {
    remora_fabric::conformance_suite!(super::VerbsBed { device: &super::LOSSY, turns: 10 });
}
