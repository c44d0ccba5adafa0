//! On fabrics that do not read lines whole, such as Soft-RoCE, no table may detect torn records by
//! their lines: neither a new table, nor one that was made by a client of another fabric.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remora::floors::fabric::shm::Shm;
use remora::floors::fabric::{
    Capabilities, ClientId, Fabric, FabricError, Handler, Host, NodeId, Region, RegionId, Service, ServiceHandle,
    Transport,
};
use remora::floors::node::MemoryError;
use remora::protocol::{Protocol, ReadScheme};
use remora::{Cluster, OpenError, Table, TableOptions};

use support::Words;

/// Shared memory that promises whole lines, or does not.
struct Lines {
    shm: Shm,
    atomic: AtomicBool,
}

impl Lines {
    fn cluster(protocol: Protocol, atomic: bool) -> (Arc<Lines>, Cluster) {
        let shm = Shm::new(&[vec![1 << 20], vec![1 << 20]]).unwrap();
        let lines = Arc::new(Lines { shm, atomic: atomic.into() });
        let copies = protocol.discipline().copies_max().min(2) as u8;
        let options = Cluster::embedded().nodes(2).replicas(copies).protocol(protocol);
        let cluster = options.open_on(lines.clone()).unwrap();
        (lines, cluster)
    }
}

impl Fabric for Lines {
    fn nodes(&self) -> u16 {
        self.shm.nodes()
    }

    fn connect(&self, client: ClientId) -> Result<Box<dyn Transport>, FabricError> {
        self.shm.connect(client)
    }

    fn region(&self, node: NodeId, region: RegionId) -> Option<Arc<Region>> {
        self.shm.region(node, region)
    }

    fn revoke(&self, client: ClientId) -> Result<(), FabricError> {
        self.shm.revoke(client)
    }

    fn fail(&self, node: NodeId) {
        self.shm.fail(node);
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { atomic_line: self.atomic.load(Ordering::Relaxed), ..self.shm.capabilities() }
    }
}

impl Host for Lines {
    fn serve(&self, node: NodeId, name: &str, service: Box<dyn Service>) -> ServiceHandle {
        self.shm.serve(node, name, service)
    }

    fn answer(&self, node: NodeId, handler: Box<dyn Handler>) {
        self.shm.answer(node, handler);
    }
}

/// The ways to make tables, and whether each needs whole lines.
const SCHEMES: [(Option<ReadScheme>, bool); 4] = [
    (Some(ReadScheme::SingleLine), true),
    (Some(ReadScheme::LineVersions), true),
    (Some(ReadScheme::Checksum), false),
    (None, false),
];

type Rows = Table<u64, Words<2>>;

fn create(cluster: &Cluster, name: &str, read_scheme: Option<ReadScheme>) -> Result<Rows, OpenError> {
    cluster.create_table(name, TableOptions::for_rows(8).read_scheme(read_scheme))
}

/// Returns whether a table was refused because of its lines, and for no other reason.
#[track_caller]
fn is_refused(table: Result<Rows, OpenError>) -> bool {
    match table {
        Ok(_) => false,
        Err(error) => {
            let expected = OpenError::from(MemoryError::NeedsAtomicLines);
            assert_eq!(error.to_string(), expected.to_string());
            true
        }
    }
}

#[test]
fn tables_that_need_lines_are_not_made_where_there_are_none() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let (_, cluster) = Lines::cluster(protocol, false);
        for (scheme, needs_lines) in SCHEMES {
            let name = format!("{scheme:?}");
            assert_eq!(is_refused(create(&cluster, &name, scheme)), needs_lines, "{protocol:?}: {name}");
            let made = cluster.catalog().tables.iter().any(|table| table.spec.name == name);
            assert_eq!(made, !needs_lines, "{protocol:?}: {name}");
        }
    }
}

#[test]
fn tables_that_need_lines_are_not_opened_where_there_are_none() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let (lines, cluster) = Lines::cluster(protocol, true);
        for (scheme, _) in SCHEMES {
            create(&cluster, &format!("{scheme:?}"), scheme).unwrap();
        }
        lines.atomic.store(false, Ordering::Relaxed);
        for (scheme, needs_lines) in SCHEMES {
            let name = format!("{scheme:?}");
            // On a fabric with whole lines, the default is one of the schemes that need them.
            let needs_lines = needs_lines || scheme.is_none();
            assert_eq!(is_refused(cluster.open_table(&name)), needs_lines, "{protocol:?}: {name}");
        }
        lines.atomic.store(true, Ordering::Relaxed);
        for (scheme, _) in SCHEMES {
            assert!(!is_refused(cluster.open_table(&format!("{scheme:?}"))), "{protocol:?}: {scheme:?}");
        }
    }
}
