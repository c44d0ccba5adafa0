//! Runs the contract of a round over TCP. Memory nodes are servers on threads of this process, and
//! clients are threads.

use std::time::Duration;

use remora_fabric::Host;
use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::tcp::{Key, Loopback, ServerOptions, TcpOptions};

struct TcpBed;

impl Bed for TcpBed {
    fn fabric(&self, nodes: &[Vec<usize>], seed: u64) -> Box<dyn Host> {
        // Half of the runs have a key.
        let keys = (seed % 2 == 1).then(|| Key::generate().expect("random bytes").into());
        // A busy machine must not be taken for a dead node.
        let options = TcpOptions { keys, patience: Duration::from_secs(30), ..TcpOptions::default() };
        // Some runs have several threads a node.
        let servers = ServerOptions::default().keys(options.keys.clone()).threads(1 + seed as usize % 3);
        Box::new(Loopback::with_servers(nodes, &servers, options).expect("a test's servers"))
    }

    fn clients(&self) -> Clients {
        Clients::Threads
    }

    fn runs(&self) -> u64 {
        3
    }

    fn turns(&self) -> u64 {
        1_000
    }

    fn reorders(&self) -> bool {
        false
    }
}

remora_fabric::conformance_suite!(TcpBed);
