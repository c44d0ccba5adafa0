//! The contract of a round, over RDMA: memory nodes are servers on threads of this process, clients are threads, and the
//! device that they use is the first there is. Needs one: `.ci/softroce` has one where there is none.

use std::sync::LazyLock;
use std::time::Duration;

use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::tcp::{Key, Loopback, TcpOptions};
use remora_fabric::verbs::{Device, DeviceOptions};

static DEVICE: LazyLock<Device> =
    LazyLock::new(|| Device::open(&DeviceOptions::default()).unwrap_or_else(|error| panic!("{error}")));

struct VerbsBed;

impl Bed for VerbsBed {
    type Fabric = Loopback;

    fn fabric(&self, nodes: &[Vec<usize>], seed: u64) -> Loopback {
        // With and without a key.
        let key = (seed % 2 == 1).then(|| Key::generate().expect("random bytes"));
        // A busy machine is not a dead node.
        let (rdma, patience) = (Some(DEVICE.clone()), Duration::from_secs(30));
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
        100
    }

    fn reorders(&self) -> bool {
        false
    }
}

remora_fabric::conformance_suite!(VerbsBed);
