//! The contract of a round, over RDMA: memory nodes are servers on threads of this process, clients are threads, and the
//! device that they use is the first there is. Needs one: `.ci/softroce` has one where there is none.

use std::ptr;
use std::sync::LazyLock;
use std::time::Duration;

use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::tcp::{Key, Loopback, TcpOptions};
use remora_fabric::verbs::{Device, DeviceOptions};

fn open(messages_only: bool) -> Device {
    let options = DeviceOptions { messages_only, ..DeviceOptions::default() };
    Device::open(&options).unwrap_or_else(|error| panic!("{error}"))
}

/// NICs execute the verbs.
static ONE_SIDED: LazyLock<Device> = LazyLock::new(|| open(false));
/// Verbs travel in messages, as where a device has no atomics.
static MESSAGES: LazyLock<Device> = LazyLock::new(|| open(true));

struct VerbsBed(&'static LazyLock<Device>);

impl Bed for VerbsBed {
    type Fabric = Loopback;

    fn fabric(&self, nodes: &[Vec<usize>], seed: u64) -> Loopback {
        // With and without a key.
        let key = (seed % 2 == 1).then(|| Key::generate().expect("random bytes"));
        // A busy machine is not a dead node.
        let (rdma, patience) = (Some(Device::clone(self.0)), Duration::from_secs(30));
        let options = TcpOptions { key, rdma, patience, ..TcpOptions::default() };
        Loopback::new(nodes, options).expect("a test's servers")
    }

    fn clients(&self) -> Clients {
        Clients::Threads
    }

    fn runs(&self) -> u64 {
        2
    }

    fn turns(&self) -> u64 {
        // A message that wakes a server takes an emulated processor milliseconds.
        if ptr::eq(self.0, &MESSAGES) { 10 } else { 100 }
    }

    fn reorders(&self) -> bool {
        false
    }
}

mod one_sided {
    remora_fabric::conformance_suite!(super::VerbsBed(&super::ONE_SIDED));
}

mod messages {
    remora_fabric::conformance_suite!(super::VerbsBed(&super::MESSAGES));
}
