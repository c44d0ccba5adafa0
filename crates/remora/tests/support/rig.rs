//! A cluster that tests put together from the crates below, for situations that `Cluster` does not
//! allow: appliers that stand still until the test steps them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use remora::Error;
use remora::floors::fabric::{ClientId, Host, Lane, NodeId, NodeSet, Progress, Service, Worker, block_on};
use remora::floors::index::cluster_hash::Geometry;
use remora::floors::index::{IndexError, Loader, Sizes, Table, TakeRow, bulk_load};
use remora::floors::node::{
    Fingerprint, Grows, IndexKind, Metadata, ReadScheme, Registration, TableSpec, identity, metadata, node,
};
use remora::floors::record::{Key, layout, layout_of_block};
use remora::floors::txn::{
    Applier, ClientTime, Inspection, Outcomes, RpcHandler, Session, SessionConfig, SharedLocks, Turns, VersionCache,
    inspect,
};
use remora::protocol::Protocol;

/// A cluster whose appliers stand still until the test steps them.
pub struct Rig<F: Host> {
    pub fabric: F,
    admin: Registration,
    metadata: RefCell<Metadata>,
    /// The protocol for which the tables are made.
    protocol: Protocol,
    appliers: RefCell<Vec<Applier>>,
    vcache: Arc<VersionCache>,
}

impl<F: Host> Rig<F> {
    pub fn new(fabric: F) -> Rig<F> {
        Rig::for_protocol(fabric, Protocol::DRTM_R)
    }

    pub fn for_protocol(fabric: F, protocol: Protocol) -> Rig<F> {
        let mut appliers = Vec::new();
        for at in (0..fabric.nodes()).map(NodeId) {
            let region = fabric.region(at, node::REGION).unwrap();
            node::format(&region, node::Place::default()).unwrap();
            fabric.answer(at, Box::new(RpcHandler::new(region.clone())));
            appliers.push(Applier::new(region));
        }
        let nodes = fabric.nodes();
        let connect = async |lane: &Lane| {
            identity::found(lane, nodes).await?;
            Registration::connect(lane, NodeSet::first(nodes), 0).await
        };
        let admin = block_on(&fabric, ClientId(0), connect).unwrap().unwrap();
        let (metadata, appliers) = (RefCell::default(), RefCell::new(appliers));
        let vcache = Arc::new(VersionCache::new(VersionCache::BYTES));
        Rig { fabric, admin, metadata, protocol, appliers, vcache }
    }

    fn administer<T>(&self, body: impl AsyncFnOnce(&Lane) -> T) -> T {
        block_on(&self.fabric, ClientId(self.admin.incarnation), body).unwrap()
    }

    /// A table with keys 0, 1, 2 ... of 8 bytes, with these values, in one shard for each node.
    pub fn table(
        &self,
        name: &str,
        scheme: ReadScheme,
        replicas: u8,
        value_max: usize,
        rows: &[Vec<u8>],
    ) -> Arc<Table> {
        self.table_with(name, scheme, replicas, value_max, rows, |_| ())
    }

    /// Makes and loads a table whose sizes `resize` changes.
    pub fn table_with(
        &self,
        name: &str,
        scheme: ReadScheme,
        replicas: u8,
        value_max: usize,
        rows: &[Vec<u8>],
        resize: impl Fn(&mut Geometry),
    ) -> Arc<Table> {
        self.try_table(name, scheme, replicas, value_max, rows, resize).unwrap()
    }

    pub fn try_table(
        &self,
        name: &str,
        scheme: ReadScheme,
        replicas: u8,
        value_max: usize,
        rows: &[Vec<u8>],
        resize: impl Fn(&mut Geometry),
    ) -> Result<Arc<Table>, IndexError> {
        let is_of_objects = self.protocol.index() == IndexKind::Objects;
        let layout = if is_of_objects { layout_of_block(8, value_max, None) } else { layout(8, value_max, scheme) }?;
        let nodes = self.fabric.nodes();
        // Room for an uneven share of the rows; buckets for an even one.
        let shares = rows.len().max(1) as u64;
        let index = self.protocol.index();
        let sizes = if index == IndexKind::ClusterHash {
            let mut geometry = Geometry::for_rows(shares.div_ceil(nodes.into()), layout.slot_bytes);
            geometry.slots = shares;
            resize(&mut geometry);
            Sizes::of(&geometry)
        } else {
            Sizes::for_rows(index, shares, layout.slot_bytes)
        };
        let spec = TableSpec {
            name: name.to_owned(),
            schema: String::new(),
            fingerprint: Fingerprint(0),
            layout,
            index,
            discipline: self.protocol.discipline(),
            shards: nodes,
            replicas,
            buckets: sizes.buckets,
            indirect: sizes.indirect,
            slots: sizes.slots,
            indirect_slots: sizes.indirect_slots,
            shard_bytes: sizes.shard_bytes,
            grows: Grows::WhenTold,
        };
        let client = self.admin.incarnation;
        let create = async |lane: &Lane| {
            metadata::create_table(lane, NodeSet::first(nodes), NodeSet::first(nodes), client, spec, NodeId(0)).await
        };
        *self.metadata.borrow_mut() = self.administer(create)?.1;
        let table = self.open(name, usize::MAX);
        self.load(&table, rows.iter().enumerate().map(|(number, value)| (key(number as u64), value.clone())))?;
        Ok(table)
    }

    /// Opens a table that exists, with a location cache of its own of at most `cache_bytes` bytes.
    pub fn open(&self, name: &str, cache_bytes: usize) -> Arc<Table> {
        Arc::new(Table::open_with_cache(&self.metadata.borrow(), name, cache_bytes).unwrap())
    }

    pub fn load(&self, table: &Table, rows: impl IntoIterator<Item = (Key, Vec<u8>)>) -> Result<u64, IndexError> {
        let loader = Loader::steady(self.admin.incarnation);
        let mut rows = rows.into_iter();
        let mut each = |take: TakeRow<'_>| rows.try_for_each(|(key, value)| take(&key, &value));
        self.administer(async |lane: &Lane| bulk_load(lane, table, loader, &mut each).await)
    }

    /// `count` clients with one session each, on one worker.
    pub fn sessions(&self, worker: &Worker, protocol: Protocol, count: usize) -> Vec<Session> {
        let nodes = self.fabric.nodes();
        let session = |index| {
            let connect = async |lane: &Lane| Registration::connect(lane, NodeSet::first(nodes), 1).await;
            let client = block_on(&self.fabric, ClientId(0), connect).unwrap().unwrap();
            let endpoint = worker.connect(&self.fabric, ClientId(client.incarnation)).unwrap();
            let lane = worker.lane(&endpoint, index as u64).unwrap();
            let sequence = Rc::new(Cell::new(1));
            let vcache = Some(self.vcache.clone());
            let shared = SharedLocks::new(&client, 1);
            Session::new(
                lane,
                &client,
                0,
                SessionConfig {
                    protocol,
                    epoch: 1,
                    sequence,
                    archive_place: Rc::default(),
                    vcache,
                    shared,
                    turns: Turns::default(),
                    time: ClientTime::default(),
                    outcomes: Outcomes::new(&client),
                },
            )
        };
        (0..count).map(session).collect()
    }

    /// Steps every applier until none finds work.
    pub fn apply(&self) {
        for applier in &mut *self.appliers.borrow_mut() {
            while applier.step() != Progress::Idle {}
        }
    }

    /// Returns what an inspection of a table finds.
    pub fn inspect(&self, table: &Table) -> Inspection {
        let found = self.administer(async |lane: &Lane| inspect(lane, table, &mut |_| ()).await);
        found.map_err(Error::from).unwrap()
    }
}

/// A key of 8 bytes.
pub fn key(number: u64) -> Key {
    Key::new(&number.to_be_bytes()).unwrap()
}

/// Runs one coroutine for each session.
pub fn run<T>(worker: &Worker, sessions: &mut [Session], body: impl AsyncFn(usize, &mut Session) -> T) -> Vec<T> {
    let lanes: Vec<_> = sessions.iter().map(|session| session.lane().id()).collect();
    let bodies = sessions.iter_mut().enumerate().map(|(index, session)| body(index, session));
    worker.run(lanes.into_iter().zip(bodies))
}
