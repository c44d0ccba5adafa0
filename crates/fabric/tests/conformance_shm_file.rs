//! Runs the contract of a round on shared memory in files. Clients are threads. Servers and clients
//! map the files separately. Passive files have no server.

use std::sync::atomic::{AtomicU64, Ordering};

use remora_fabric::Host;
use remora_fabric::conformance::{Bed, Clients};
use remora_fabric::shm::file::{PassiveFile, ShmFiles, ShmNode};

enum FileBed {
    Served,
    Passive,
}

impl Bed for FileBed {
    fn fabric(&self, nodes: &[Vec<usize>], _: u64) -> Box<dyn Host> {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let path = |_| {
            let number = FILES.fetch_add(1, Ordering::Relaxed);
            std::env::temp_dir().join(format!("remora-conformance-{}-{number}", std::process::id()))
        };
        let paths: Vec<_> = nodes.iter().map(path).collect();
        let mut served = Vec::new();
        for (regions, path) in nodes.iter().zip(&paths) {
            let [bytes] = regions[..] else { panic!("a file has one region") };
            match self {
                FileBed::Served => served.push(ShmNode::open(path, Some(bytes as u64)).expect("a test's file")),
                FileBed::Passive => {
                    PassiveFile::open(path, Some(bytes as u64)).expect("a test's file").publish();
                }
            }
        }
        let fabric = ShmFiles::new(&paths, served).expect("a test's files");
        // The files are mapped now, so their names are not needed any more.
        paths.iter().for_each(|path| std::fs::remove_file(path).expect("a test's file"));
        Box::new(fabric)
    }

    fn clients(&self) -> Clients {
        Clients::Threads
    }

    fn runs(&self) -> u64 {
        3
    }

    fn turns(&self) -> u64 {
        match self {
            FileBed::Served => 40_000,
            // The verbs are those of served files. What differs is how clients come and go.
            FileBed::Passive => 2_000,
        }
    }

    fn reorders(&self) -> bool {
        false
    }
}

remora_fabric::conformance_suite!(FileBed::Served);

mod passive {
    use super::FileBed;

    remora_fabric::conformance_suite!(without_node_cpus FileBed::Passive);
}
