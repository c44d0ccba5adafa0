//! Where litmus programs play: small memory nodes, tables of a few rows, and clients that are made anew for every run.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use remora::Protocol;
use remora::floors::fabric::seeded::Seeded;
use remora::floors::fabric::seeded::explore::{Exploration, ExploreOptions, Player, Private, Reduction, explore};
use remora::floors::fabric::{ClientId, Fabric, Host, Lane, NodeId, WORD_BYTES, Worker, block_on};
use remora::floors::index::cluster_hash::Geometry;
use remora::floors::index::{Sizes, Table, bulk_load, fstore};
use remora::floors::memory::ring::{RING_EXTENT_BYTES, RingReader};
use remora::floors::memory::{
    Discipline, Fingerprint, IndexKind, Metadata, ReadScheme, Registration, TableId, TableSpec, clients, identity,
    metadata, node,
};
use remora::floors::sync::{Key, layout};
use remora::floors::txn::{
    Applier, Inspection, Intent, RpcHandler, Session, SessionConfig, Slot, Stop, TransactOptions, Tx, inspect,
};
use zerocopy::IntoBytes;

/// Bytes of a memory node: its metadata, the rings of a few clients, a few rows.
const NODE_BYTES: usize = 1 << 20;

/// What a client says in the end: what its transaction returned, if it has committed.
pub(super) type Said = Option<Vec<u64>>;

/// What is wrong with a run.
pub(super) type Broken = String;

/// A row: a key of a table whose values are so many equal words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) table: TableId,
    pub(super) key: u64,
    pub(super) words: usize,
}

/// Memory nodes with tables, as every run finds them.
pub(super) struct Stage {
    fabric: Seeded,
    nodes: u16,
    admin: Registration,
    metadata: Metadata,
    names: Vec<String>,
    clients: Vec<(Registration, Protocol)>,
}

/// How a program is explored.
#[derive(Clone, Debug, Default)]
pub(super) struct Explored {
    /// Runs after which to give up.
    pub(super) runs_max: u64,
    /// The number of a client that crashes at any time.
    pub(super) crash: Option<usize>,
    /// The number of a client whose future is dropped at any time.
    pub(super) cancel: Option<usize>,
    /// Whether the memory nodes apply their rings, at any time; else they do in the end.
    pub(super) appliers: bool,
}

impl Stage {
    /// Memory nodes and one client for each protocol.
    pub(super) fn new(nodes: u16, protocols: &[Protocol]) -> Stage {
        Stage::on(Seeded::new(&vec![vec![NODE_BYTES]; nodes.into()], 1).expect("a megabyte a node"), protocols)
    }

    /// The same on memory whose NICs' atomics do not exclude the CPU.
    pub(super) fn with_split_atomics(protocols: &[Protocol]) -> Stage {
        let fabric = Seeded::new(&[vec![NODE_BYTES]], 1).expect("a megabyte");
        Stage::on(fabric.with_split_atomics(), protocols)
    }

    fn on(fabric: Seeded, protocols: &[Protocol]) -> Stage {
        let nodes = fabric.nodes();
        for at in (0..nodes).map(NodeId) {
            let region = fabric.region(at, node::REGION).expect("a node's memory");
            node::format(&region, node::Place::default()).expect("memory that is large enough");
        }
        let connect = async |lane: &Lane, lanes| Registration::connect(lane, nodes, lanes).await;
        let admin = async |lane: &Lane| {
            identity::found(lane, nodes).await?;
            connect(lane, 0).await
        };
        let admin = block_on(&fabric, ClientId(0), admin).expect("a connection").expect("a registration");
        let client = |protocol: &Protocol| {
            let client = block_on(&fabric, ClientId(0), async |lane: &Lane| connect(lane, 1).await);
            (client.expect("a connection").expect("a registration"), *protocol)
        };
        let clients = protocols.iter().map(client).collect();
        Stage { fabric, nodes, admin, metadata: Metadata::default(), names: Vec::new(), clients }
    }

    fn administer<T>(&self, body: impl AsyncFnOnce(&Lane) -> T) -> T {
        block_on(&self.fabric, ClientId(self.admin.incarnation), body).expect("a connection")
    }

    /// A table at node 0 with backups at all others, of values of so many words, that holds the keys 0, 1, 2 ...
    pub(super) fn table(&mut self, scheme: ReadScheme, words: usize, values: &[u64]) -> impl Fn(u64) -> Row + use<> {
        let name = format!("table {}", self.names.len());
        let layout = layout(8, 8 * words, scheme).expect("small values");
        let index = self.clients[0].1.index();
        let sizes = if index == IndexKind::ClusterHash {
            let mut geometry = Geometry::for_rows(1, layout.slot_bytes);
            geometry.slots = values.len() as u64 + 2;
            Sizes::of(&geometry)
        } else {
            // One chain, with room for what is inserted.
            Sizes::of(&fstore::Geometry::new(1, 1, values.len() as u64 + 2, layout.slot_bytes.into()))
        };
        let spec = TableSpec {
            name: name.clone(),
            fingerprint: Fingerprint(0),
            layout,
            index,
            discipline: self.clients[0].1.discipline(),
            shards: 1,
            replicas: self.nodes as u8,
            buckets: sizes.buckets,
            indirect: sizes.indirect,
            slots: sizes.slots,
            shard_bytes: sizes.shard_bytes,
        };
        let (nodes, admin) = (self.nodes, self.admin.incarnation.into());
        let create = async |lane: &Lane| metadata::create_table(lane, nodes, admin, spec).await;
        self.metadata = self.administer(create).expect("room for a table").1;
        let table = Table::open(&self.metadata, &name).expect("the table that was created");
        let rows = values.iter().zip(0..).map(|(value, number)| (key(number), vec![*value; words].as_bytes().to_vec()));
        let load = async |lane: &Lane| bulk_load(lane, &table, rows).await;
        self.administer(load).expect("room for the rows");
        self.names.push(name);
        let id = table.id();
        move |key| Row { table: id, key, words }
    }

    /// Explores a program: every client plays `part`, after `before` has been played at once by one after the other, and
    /// in the end `judge` is told what they said.
    pub(super) fn explore(
        &self,
        explored: &Explored,
        before: impl AsyncFn(usize, &mut Actor),
        part: impl AsyncFn(usize, &mut Actor) -> Said,
        judge: impl Fn(&Scene<'_>) -> Result<(), Broken>,
    ) -> Exploration<Broken> {
        let client = |number: usize| ClientId(self.clients[number].0.incarnation);
        let rings = self.clients.iter().filter(|_| !explored.appliers).flat_map(|(registration, _)| {
            let at = move |node| Private {
                client: ClientId(registration.incarnation),
                at: registration.ring(NodeId(node), 0).applied_at(),
                bytes: RING_EXTENT_BYTES,
            };
            (0..self.nodes).map(at)
        });
        // Nobody else looks at the primaries of one that is alone, and has backups.
        let alone = self.clients.len() == 1 && self.nodes > 1;
        let primaries =
            alone.then(|| Private { client: client(0), at: node::at(NodeId(0), 0), bytes: NODE_BYTES as u64 });
        let options = ExploreOptions {
            runs_max: explored.runs_max,
            crash: explored.crash.map(client),
            cancel: explored.cancel.map(client),
            private: rings.chain(primaries).collect(),
            // Every order is run to its end: these programs are small enough.
            reduction: Reduction::Commuting,
        };
        explore(&self.fabric, &options, |play| {
            let mut appliers = Vec::new();
            for at in (0..self.nodes).map(NodeId) {
                let region = self.fabric.region(at, node::REGION).expect("a node's memory");
                self.fabric.answer(at, Box::new(RpcHandler::new(region.clone())));
                // Node 0 has primaries only, where there are backups at all.
                if explored.appliers && at.0 > 0 {
                    appliers.push(self.fabric.serve(at, "applier", Box::new(Applier::new(region))));
                }
            }
            let worker = Worker::new();
            let reported = Rc::new(Cell::new(0));
            let mut actors: Vec<Actor> =
                (0..self.clients.len()).map(|number| self.actor(&worker, number, &reported)).collect();
            for (number, actor) in actors.iter_mut().enumerate() {
                worker.run([(actor.session.lane().id(), before(number, actor))]);
            }
            let players: Vec<_> = actors
                .iter_mut()
                .enumerate()
                .map(|(number, actor)| Player {
                    client: client(number),
                    endpoint: actor.session.lane().endpoint().clone(),
                    future: part(number, actor),
                })
                .collect();
            let Some(said) = play.run(&worker, players) else { return Ok(()) };
            let said = said.into_iter().map(Option::flatten).collect();
            judge(&Scene { stage: self, said })
        })
    }

    fn actor(&self, worker: &Worker, number: usize, reported: &Rc<Cell<usize>>) -> Actor {
        let (registration, protocol) = &self.clients[number];
        let endpoint = worker.connect(&self.fabric, ClientId(registration.incarnation)).expect("a connection");
        let lane = worker.lane(&endpoint, number as u64).expect("few lanes");
        let config =
            SessionConfig { protocol: *protocol, epoch: 1, nodes: self.nodes, sequence: Rc::new(Cell::new(1)) };
        let mut session = Session::new(lane, registration, 0, config);
        // A client that takes the table's locks for the CPU's own has been told so by a catalog of its own.
        let mut metadata = self.metadata.clone();
        for table in &mut metadata.tables {
            if !protocol.accepts(table.spec.discipline) {
                table.spec.discipline = Discipline::OCC_CALLS;
            }
        }
        for name in &self.names {
            let table = Table::open_with_cache(&metadata, name, usize::MAX).expect("a table of the stage");
            session.register(Arc::new(table));
        }
        Actor { session, reported: reported.clone() }
    }
}

/// A client of a run.
pub(super) struct Actor {
    pub(super) session: Session,
    reported: Rc<Cell<usize>>,
}

impl Actor {
    /// Runs a transaction once: what it returned, if it has committed.
    pub(super) async fn once(&mut self, body: impl AsyncFnMut(&mut Tx<'_>) -> Result<Vec<u64>, Stop>) -> Said {
        self.attempt(1, body).await
    }

    /// The same, tried so often while it aborts.
    pub(super) async fn attempt(
        &mut self,
        attempts: u32,
        mut body: impl AsyncFnMut(&mut Tx<'_>) -> Result<Vec<u64>, Stop>,
    ) -> Said {
        let options = TransactOptions { attempts, ..TransactOptions::default() };
        let result = self.session.transact(options, async |tx| body(tx).await.map(Ok::<_, ()>)).await;
        match result {
            Ok(Ok(values)) => Some(values),
            Ok(Err(())) | Err(Stop::Abort(_) | Stop::Exists | Stop::Absent) => None,
            Err(stop) => panic!("a litmus program meets contention only, not: {stop}"),
        }
    }

    /// Brings the locations of rows into the client's cache.
    pub(super) async fn look_up(&mut self, rows: &[Row]) {
        self.once(async |tx| {
            rows.iter().try_for_each(|row| want(tx, *row).map(drop))?;
            tx.fetch().await?;
            Ok(Vec::new())
        })
        .await;
    }

    /// Tells the others that a commit has been reported.
    pub(super) fn report(&self) {
        self.reported.set(self.reported.get() + 1);
    }

    /// Waits until so many commits have been reported. Only before the client's first round.
    pub(super) async fn reported(&self, count: usize) {
        poll_fn(|_| if self.reported.get() >= count { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// The end of a run.
pub(super) struct Scene<'s> {
    stage: &'s Stage,
    /// What each client said.
    pub(super) said: Vec<Said>,
}

impl Scene<'_> {
    /// How many have committed.
    pub(super) fn committed(&self) -> u64 {
        self.said.iter().flatten().count() as u64
    }

    /// The values of the records with these keys, one for each record, and what else is to be said of their table.
    pub(super) fn look(&self, rows: &[Row]) -> (Vec<u64>, Inspection) {
        let name = &self.stage.names[usize::from(rows[0].table.0)];
        let table = Table::open_with_cache(&self.stage.metadata, name, 0).expect("a table of the stage");
        let mut values = Vec::new();
        let found = self.stage.administer(async |lane: &Lane| {
            inspect(lane, &table, |record| {
                if rows.iter().any(|row| record.has_key(key(row.key).words())) {
                    let mut value = Vec::new();
                    record.copy_value(&mut value);
                    values.extend(value.first());
                }
            })
            .await
        });
        (values, found.expect("memory that can be read"))
    }

    /// Lets the memory nodes apply their rings to the end.
    pub(super) fn apply(&self) {
        self.stage.fabric.settle_services();
    }

    /// The version word and the first word of a row's value at a node.
    pub(super) fn replica(&self, at: u16, row: Row) -> (u64, u64) {
        let name = &self.stage.names[usize::from(row.table.0)];
        let table = Table::open_with_cache(&self.stage.metadata, name, 0).expect("a table of the stage");
        let region = self.stage.fabric.region(NodeId(at), node::REGION).expect("a node's memory");
        let replica = table.shard_replicas(0).iter().find(|replica| replica.node == NodeId(at)).expect("a replica");
        let (mut slot, mut found) = (0, None);
        while let Some(next) = table.index().slot_behind(slot) {
            let at = replica.address(next).offset as usize / WORD_BYTES;
            let word = |index: usize| region.words()[at + index].load(Ordering::Acquire);
            // Lock, version, meta, key, value.
            if key(row.key).words() == [word(3)] && word(1) != 0 {
                found = Some((word(1), word(4)));
            }
            slot = next + WORD_BYTES as u64;
        }
        found.expect("a row of the table")
    }

    /// Whether a node's redo rings hold the entry of the transaction with this id.
    pub(super) fn is_logged(&self, at: u16, id: u64) -> bool {
        let region = self.stage.fabric.region(NodeId(at), node::REGION).expect("a node's memory");
        let mut found = false;
        for client in clients(region.words()) {
            for lane in 0..client.lanes {
                if let Some(ring) = RingReader::resume(region.words(), client.ring(lane), client.incarnation) {
                    ring.scan(region.words(), |entry, _| found |= entry == id);
                }
            }
        }
        found
    }
}

fn key(number: u64) -> Key {
    Key::new(&number.to_be_bytes()).expect("a key of eight bytes")
}

/// Names a row to be read or changed.
pub(super) fn want(tx: &mut Tx<'_>, row: Row) -> Result<Slot, Stop> {
    tx.want(row.table, &key(row.key))
}

/// Names a row to be changed: where a protocol locks early, it is locked when it is fetched.
pub(super) fn want_to_change(tx: &mut Tx<'_>, row: Row) -> Result<Slot, Stop> {
    tx.want_for(row.table, &key(row.key), Intent::Update)
}

/// Names a row to be inserted.
pub(super) fn want_to_insert(tx: &mut Tx<'_>, row: Row) -> Result<Slot, Stop> {
    tx.want_for(row.table, &key(row.key), Intent::Insert)
}

/// The words of a row that was fetched.
pub(super) fn words(tx: &Tx<'_>, slot: Slot) -> Result<Vec<u64>, Stop> {
    let value = tx.value(slot).ok_or(Stop::Absent)?;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok(value.chunks(8).map(word).collect())
}

/// The first word of a row that was fetched.
pub(super) fn get(tx: &Tx<'_>, slot: Slot) -> Result<u64, Stop> {
    words(tx, slot)?.first().copied().ok_or(Stop::Absent)
}

/// Writes the same word all over a row.
pub(super) fn put(tx: &mut Tx<'_>, row: Row, slot: Slot, value: u64) -> Result<(), Stop> {
    tx.write(slot, vec![value; row.words].as_bytes())
}

/// Inserts a row of equal words.
pub(super) fn insert(tx: &mut Tx<'_>, row: Row, slot: Slot, value: u64) -> Result<(), Stop> {
    tx.insert(slot, vec![value; row.words].as_bytes())
}
