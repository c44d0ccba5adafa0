//! Runs the contract of a round over TCP with TLS. No test sees a difference.

#[path = "tcp_support/certificates.rs"]
mod certificates;

use std::time::Duration;

use certificates::Issued;
use remora_fabric::Host;
use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::tcp::{Key, Keys, Loopback, ServerOptions, TcpOptions};

struct TlsBed;

impl Bed for TlsBed {
    fn fabric(&self, nodes: &[Vec<usize>], seed: u64) -> Box<dyn Host> {
        let issued = Issued::self_signed("127.0.0.1");
        let keys = (seed % 2 == 1).then(|| Keys::from(Key::generate().expect("random bytes")));
        let servers = ServerOptions::default().keys(keys.clone()).tls(issued.server());
        let options =
            TcpOptions { keys, tls: Some(issued.client()), patience: Duration::from_secs(30), ..TcpOptions::default() };
        Box::new(Loopback::with_servers(nodes, &servers, options).expect("a test's servers"))
    }

    fn clients(&self) -> Clients {
        Clients::Threads
    }

    fn runs(&self) -> u64 {
        2
    }

    fn turns(&self) -> u64 {
        1_000
    }

    fn reorders(&self) -> bool {
        false
    }
}

remora_fabric::conformance_suite!(TlsBed);
