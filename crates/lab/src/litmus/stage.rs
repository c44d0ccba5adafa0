//! The stage of litmus programs: small memory nodes, tables of a few rows, and clients that are
//! made anew for every run.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use remora::floors::fabric::seeded::Seeded;
use remora::floors::fabric::seeded::explore::{
    Exploration, ExploreOptions, Player, Private, Reduction, Suspicion, explore,
};
use remora::floors::fabric::{
    ClientId, Fabric, Fault, Host, Lane, Nanos, NodeId, NodeSet, Progress, Service, ServiceHandle, Turn as _, Turned,
    WORD_BYTES, Worker, block_on,
};
use remora::floors::index::cluster_hash::Geometry;
use remora::floors::index::{Loader, Sizes, Table, TakeRow, bulk_load, fstore, objects, race};
use remora::floors::node::ring::{HEADER_BYTES, RING_EXTENT_BYTES, RingReader, UNDO_STRIDE};
use remora::floors::node::{
    Discipline, Fingerprint, Grows, IndexKind, MemoryError, Metadata, Pointer, ReadScheme, Registration, Room, ShardId,
    TableId, TableSpec, clients, identity, metadata, node,
};
use remora::floors::record::{Key, KeyHash, StableRecord, TransactionId, Version, layout_of_block, layout_with_time};
use remora::floors::txn::recovery::{self, Departed, Verdict, Verdicts};
use remora::floors::txn::{
    Applier, ClientTime, Inspection, Intent, Limit, Observer, Outcome, Outcomes, PastTime, Race, RaceShape, RpcHandler,
    Session, SessionConfig, SharedLocks, Slot, Snapshot, Stop, TransactOptions, TransactionEvent, Turns, Tx,
    Validation, VersionCache, inspect,
};
use remora::protocol::Protocol;
use zerocopy::IntoBytes;

/// The bytes of a memory node: its metadata, the rings of a few clients, and a few rows.
const NODE_BYTES: usize = 768 << 10;
/// The bytes of a client's archive, if its protocol has snapshots: several images of a small
/// record.
const ARCHIVE_BYTES: u64 = 1024;

/// The result of a client at the end: what its transaction returned, if it has committed.
pub(super) type Said = Option<Vec<u64>>;

/// A description of what is wrong with a run.
pub(super) type Broken = String;

/// Fails with a description if this does not hold.
pub(super) fn check(holds: bool, broken: impl FnOnce() -> Broken) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(broken()) }
}

/// A row: a key of a table, whose value is `words` equal words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Row {
    pub(super) table: TableId,
    pub(super) key: u64,
    pub(super) words: usize,
}

/// A RACE hash table of a stage.
pub(super) struct RaceName {
    metadata: Metadata,
    name: String,
    extent: TableId,
}

/// The units of a RACE hash table, and how often an operation on it tries.
const RACE_UNITS: u64 = 160;
/// The groups of a subtable.
pub(super) const RACE_GROUPS: u64 = 2;
const RACE_TRIES: u32 = 1000;

/// Memory nodes with tables, as every run finds them.
pub(super) struct Stage {
    fabric: Seeded,
    nodes: u16,
    admin: Registration,
    metadata: Metadata,
    names: Vec<String>,
    clients: Vec<(Registration, Protocol)>,
    /// The number of coroutines of client 0. Every other client has one.
    coroutines: usize,
    /// The versions of records that have been published when a run begins. The version cache of a
    /// run has one bucket.
    published: Vec<(Pointer, Version)>,
    /// The number of rows that tables have room for, beside the rows that they begin with.
    spare: u64,
    /// Whether there are RACE hash tables, whose programs have many orders.
    has_races: bool,
}

/// Bytes at the start of a ring that programs write to: the header, and the entries of two
/// transactions.
const RING_USED_BYTES: u64 = HEADER_BYTES + 2 * UNDO_STRIDE;

/// How a program is explored.
#[derive(Clone, Debug, Default)]
pub(super) struct Explored {
    /// The number of runs after which to give up.
    pub(super) runs_max: u64,
    /// The number of a client that crashes at any time.
    pub(super) crash: Option<usize>,
    /// The numbers of a client and of its coroutine whose future is dropped at any time.
    pub(super) cancel: Option<(usize, usize)>,
    /// Whether WRITEs land word by word, and not line by line.
    pub(super) words: bool,
    /// Numbers of clients that are taken for dead at any time, each with the number of its
    /// recoverer. A recoverer does nothing else.
    pub(super) suspicions: Vec<(usize, usize)>,
    /// Whether the memory nodes apply their rings at any time. If not, they do so at the end.
    pub(super) appliers: bool,
}

impl Stage {
    /// Makes memory nodes, and one client for each of the protocols.
    pub(super) fn new(nodes: u16, protocols: &[Protocol]) -> Stage {
        Stage::with_coroutines(1, nodes, protocols)
    }

    /// Makes memory nodes, and one client for each of the protocols. Client 0 has this many
    /// coroutines.
    pub(super) fn with_coroutines(coroutines: usize, nodes: u16, protocols: &[Protocol]) -> Stage {
        let fabric = Seeded::new(&vec![vec![NODE_BYTES]; nodes.into()], 1).expect("so little a node");
        Stage::on(fabric, coroutines, ARCHIVE_BYTES, protocols)
    }

    /// Makes one memory node whose NIC's atomics do not exclude the CPU, and one client for each of
    /// the protocols.
    pub(super) fn with_split_atomics(protocols: &[Protocol]) -> Stage {
        let fabric = Seeded::new(&[vec![NODE_BYTES]], 1).expect("so little");
        Stage::on(fabric.with_split_atomics(), 1, 0, protocols)
    }

    /// Makes memory nodes on a fabric whose rounds take effect in order, over all nodes, and one
    /// client for each of the protocols.
    pub(super) fn in_order(nodes: u16, protocols: &[Protocol]) -> Stage {
        let fabric = Seeded::new(&vec![vec![NODE_BYTES]; nodes.into()], 1).expect("so little a node");
        Stage::on(fabric.in_order(), 1, ARCHIVE_BYTES, protocols)
    }

    fn on(fabric: Seeded, coroutines: usize, archive: u64, protocols: &[Protocol]) -> Stage {
        let nodes = fabric.nodes();
        for at in (0..nodes).map(NodeId) {
            let region = fabric.region(at, node::REGION).expect("a node's memory");
            node::format(&region, node::Place::default()).expect("memory that is large enough");
        }
        let connect = async |lane: &Lane, room: Room| Registration::connect(lane, NodeSet::first(nodes), room).await;
        let admin = async |lane: &Lane| {
            identity::found(lane, nodes).await?;
            connect(lane, Room::without_archive(0)).await
        };
        let admin = block_on(&fabric, ClientId(0), admin).expect("a connection").expect("a registration");
        let client = |(number, protocol): (usize, &Protocol)| {
            let lanes = if number == 0 { coroutines } else { 1 };
            let archive = if protocol.has_open_snapshots() { archive } else { 0 };
            let room = Room { archive, ..Room::without_archive(lanes) };
            let client = block_on(&fabric, ClientId(0), async |lane: &Lane| connect(lane, room).await);
            (client.expect("a connection").expect("a registration"), *protocol)
        };
        let clients = protocols.iter().enumerate().map(client).collect();
        Stage {
            fabric,
            nodes,
            admin,
            metadata: Metadata::default(),
            names: Vec::new(),
            clients,
            coroutines,
            published: Vec::new(),
            spare: 2,
            has_races: false,
        }
    }

    /// Leaves tables no room for further rows, so that there is less memory to read.
    pub(super) fn tight(self) -> Stage {
        Stage { spare: 0, ..self }
    }

    /// Publishes a version of a row, as a transaction does that aborts afterwards.
    pub(super) fn publish(&mut self, row: Row) {
        let (table, offset) = self.slot_of(row);
        let pointer = Pointer::new(table.shard_id(table.home(KeyHash::of(key(row.key).words())).shard), offset);
        self.published.push((pointer, Version::LOADED.committed_over()));
    }

    /// Fills the version cache with records that have been written more often than any row.
    pub(super) fn fill_version_cache(&mut self) {
        let version = Version::from_bits(1_000).0;
        self.published.extend((0..7).map(|number| (Pointer::new(ShardId(u16::MAX), number), version)));
    }

    /// Finds the table of a row, and the offset of its slot in its shard.
    fn slot_of(&self, row: Row) -> (Table, u64) {
        let name = &self.names[usize::from(row.table.0)];
        let table = Table::open_with_cache(&self.metadata, name, 0).expect("a table of the stage");
        let primary = table.shard_replicas(table.home(KeyHash::of(key(row.key).words())).shard)[0];
        let region = self.fabric.region(primary.node, node::REGION).expect("a node's memory");
        let (mut slot, mut found) = (0, None);
        while let Some(next) = table.index().slot_behind(slot) {
            let at = primary.address(next).offset as usize / WORD_BYTES;
            let word = |index: usize| region.words()[at + index].load(Ordering::Acquire);
            // The words are lock, version, meta, perhaps a time, key, value.
            if key(row.key).words() == [word(table.shape().header_bytes() / WORD_BYTES)] && word(1) != 0 {
                found = Some(next);
            }
            slot = next + WORD_BYTES as u64;
        }
        (table, found.expect("a row of the table"))
    }

    fn administer<T>(&self, body: impl AsyncFnOnce(&Lane) -> T) -> T {
        block_on(&self.fabric, ClientId(self.admin.incarnation), body).expect("a connection")
    }

    /// Creates a table at node 0 with backups at all other nodes. It holds the keys 0, 1, 2 ...
    /// with `values`, each of `words` equal words.
    pub(super) fn table(&mut self, scheme: ReadScheme, words: usize, values: &[u64]) -> impl Fn(u64) -> Row + use<> {
        self.table_at(0, self.nodes, scheme, words, values)
    }

    /// Creates a table with its primary at the node `primary`. Its `replicas` replicas are at this
    /// node and the following ones.
    pub(super) fn table_at(
        &mut self,
        primary: u16,
        replicas: u16,
        scheme: ReadScheme,
        words: usize,
        values: &[u64],
    ) -> impl Fn(u64) -> Row + use<> {
        let name = format!("table {}", self.names.len());
        let timed = self.clients[0].1.discipline().has_times();
        let index = self.clients[0].1.index();
        let layout = if index == IndexKind::Objects {
            layout_of_block(8, 8 * words, None).expect("small values")
        } else {
            layout_with_time(timed, 8, 8 * words, scheme).expect("small values")
        };
        let slots = values.len() as u64 + self.spare;
        let sizes = match index {
            IndexKind::ClusterHash => {
                let mut geometry = Geometry::for_rows(1, layout.slot_bytes);
                geometry.slots = slots;
                Sizes::of(&geometry)
            }
            // One chain that never grows, with room for inserted rows.
            IndexKind::FStore => Sizes::of(&fstore::Geometry::new(1, 0, slots, layout.slot_bytes.into())),
            // Each client takes some blocks.
            IndexKind::Objects => Sizes::of(&objects::Geometry::new(1, 0, slots + 64, layout.slot_bytes.into())),
            IndexKind::Race => unreachable!("no protocol has its tables in extents"),
        };
        let spec = TableSpec {
            name: name.clone(),
            schema: String::new(),
            fingerprint: Fingerprint(0),
            layout,
            index,
            discipline: self.clients[0].1.discipline(),
            // All shards but the last one are empty. Shard by shard, primaries are at one node
            // after the other.
            shards: primary + 1,
            replicas: replicas as u8,
            buckets: sizes.buckets,
            indirect: sizes.indirect,
            slots: sizes.slots,
            indirect_slots: sizes.indirect_slots,
            shard_bytes: sizes.shard_bytes,
            grows: Grows::WhenTold,
        };
        let (nodes, admin) = (self.nodes, self.admin.incarnation);
        let create = async |lane: &Lane| {
            metadata::create_table(lane, NodeSet::first(nodes), NodeSet::first(nodes), admin, spec, NodeId(0)).await
        };
        self.metadata = self.administer(create).expect("room for a table").1;
        let table = Table::open(&self.metadata, &name).expect("the table that was created");
        let in_shard = |number: &u64| table.home(KeyHash::of(key(*number).words())).shard == primary;
        let keys: Vec<u64> = (0..).filter(in_shard).take(values.len() + self.spare as usize + 8).collect();
        let mut rows = |take: TakeRow<'_>| {
            let mut rows = values.iter().zip(&keys);
            rows.try_for_each(|(value, number)| take(&key(*number), vec![*value; words].as_bytes()))
        };
        let load = async |lane: &Lane| bulk_load(lane, &table, Loader::steady(admin), &mut rows).await;
        self.administer(load).expect("room for the rows");
        self.names.push(name);
        let id = table.id();
        move |number| Row { table: id, key: keys[number as usize], words }
    }

    /// Creates a RACE hash table whose subtables are as small as they can be.
    pub(super) fn race(&mut self, marks: bool) -> RaceName {
        let name = format!("race {}", self.names.len());
        let geometry = race::Geometry { groups: RACE_GROUPS, roots: 1, marks, units: RACE_UNITS };
        let shape = RaceShape { geometry, shards: 1, is_native: false };
        let spec = shape.spec(&name, 0, RACE_UNITS).expect("a small extent");
        self.names.push(spec.name.clone());
        let (nodes, admin) = (NodeSet::first(self.nodes), self.admin.incarnation);
        let create = async |lane: &Lane| metadata::create_table(lane, nodes, nodes, admin, spec, NodeId(0)).await;
        let (extent, metadata) = self.administer(create).expect("room for an extent");
        self.metadata = metadata;
        self.has_races = true;
        RaceName { metadata: self.metadata.clone(), name, extent }
    }

    /// Explores a program. First each client runs `before`, one after the other, which is not
    /// explored. Then every client runs `part`. At the end `judge` checks their results. If a
    /// client has several coroutines, each of them runs both.
    pub(super) fn explore(
        &self,
        explored: &Explored,
        before: impl AsyncFn(usize, &mut Actor),
        part: impl AsyncFn(usize, &mut Actor) -> Said,
        judge: impl Fn(&Scene<'_>) -> Result<(), Broken>,
    ) -> Exploration<Broken> {
        self.explore_parts(explored, &before, &part, &judge)
    }

    fn explore_parts(
        &self,
        explored: &Explored,
        before: &dyn Part<()>,
        part: &dyn Part<Said>,
        judge: &dyn Fn(&Scene<'_>) -> Result<(), Broken>,
    ) -> Exploration<Broken> {
        let client = |number: usize| ClientId(self.clients[number].0.incarnation);
        let suspicions: Vec<_> =
            explored.suspicions.iter().map(|(of, by)| Suspicion { of: client(*of), by: client(*by) }).collect();
        let shared = self.clients.iter().any(|(_, protocol)| protocol.validation() == Validation::Local);
        let options = ExploreOptions {
            runs_max: explored.runs_max,
            crash: explored.crash.map(client),
            cancel: explored.cancel.map(|(number, _)| client(number)),
            words: explored.words,
            // Small programs are run to the end in every order.
            reduction: if suspicions.is_empty()
                && self.coroutines == 1
                && !self.has_races
                && !(self.repairs() && explored.crash.is_some())
            {
                Reduction::Commuting
            } else {
                Reduction::States
            },
            shared,
            private: self.private(explored, &suspicions),
            patient: if self.coroutines > 1 { vec![client(0)] } else { Vec::new() },
            suspicions,
        };
        explore(&self.fabric, &options, |play| {
            for at in (0..self.nodes).map(NodeId) {
                let region = self.fabric.region(at, node::REGION).expect("a node's memory");
                let hosted = VersionCache::new(0);
                hosted.publish(self.published.iter().copied());
                self.fabric.answer(at, Box::new(RpcHandler::new(region).with_version_cache(hosted)));
            }
            let _appliers = if explored.appliers { self.appliers() } else { Vec::new() };
            let worker = Worker::new();
            let ledger = Rc::new(Ledger::default());
            let vcache = Arc::new(VersionCache::new(0));
            vcache.publish(self.published.iter().copied());
            let shared = vcache.clone();
            play.share(move || shared.digest());
            let mut clients: Vec<Vec<Actor>> =
                (0..self.clients.len()).map(|number| self.actors(&worker, number, &ledger, &vcache)).collect();
            for (number, actors) in clients.iter_mut().enumerate() {
                let endpoint = actors[0].session.lane().endpoint().clone();
                endpoint.yield_after_rounds(actors.len() > 1);
                let worker = actors[0].worker.clone();
                worker.run(actors.iter_mut().map(|actor| (actor.session.lane().id(), before.play(number, actor))));
                endpoint.yield_after_rounds(false);
            }
            if explored.appliers {
                self.apply_at_primaries();
            }
            ledger.told.take();
            let cut = Rc::new(Cut::default());
            let players: Vec<_> = clients
                .iter_mut()
                .enumerate()
                .map(|(number, actors)| {
                    let endpoint = actors[0].session.lane().endpoint().clone();
                    if actors.len() > 1 {
                        let of_client = explored.cancel.filter(|(of, _)| *of == number);
                        let cut_off = of_client.map(|(_, coroutine)| (coroutine, cut.clone()));
                        let (together, cut) = (together(number, actors, part, cut_off), cut.clone());
                        return Player::new(client(number), &endpoint, together).dropping(move || cut.cut());
                    }
                    let actor = &mut actors[0];
                    let dead: Vec<u32> =
                        dead_of(number, &explored.suspicions).into_iter().map(|dead| client(dead).0).collect();
                    let future = async move {
                        if dead.is_empty() { part.play(number, actor).await } else { actor.recover(&dead).await }
                    };
                    Player::new(client(number), &endpoint, future)
                })
                .collect();
            let Some(said) = play.run(players) else { return Ok(()) };
            let said = said.into_iter().map(Option::flatten).collect();
            let (told, seen, verdicts) = (ledger.told.take(), ledger.seen.take(), ledger.verdicts.take());
            judge(&Scene { stage: self, applies: explored.appliers, said, told, seen, verdicts })
        })
    }

    /// Applies the logs at node 0, which makes room in them. It has no other effect there, so it is
    /// not explored.
    fn apply_at_primaries(&self) {
        let region = self.fabric.region(NodeId(0), node::REGION).expect("a node's memory");
        let mut applier = Applier::new(region);
        while applier.step() != Progress::Idle {}
    }

    /// Starts the appliers of backups. If there are backups, node 0 has primaries only.
    fn appliers(&self) -> Vec<ServiceHandle> {
        let applier = |at| {
            let region = self.fabric.region(at, node::REGION).expect("a node's memory");
            self.fabric.serve(at, "applier", Box::new(Applier::new(region)))
        };
        (1..self.nodes).map(NodeId).map(applier).collect()
    }

    /// Whether clients repair what others have left.
    fn repairs(&self) -> bool {
        self.clients.iter().any(|(_, protocol)| protocol.discipline().is_repairable())
    }

    /// Lists the memory that only some clients use, or that no client changes.
    fn private(&self, explored: &Explored, suspicions: &[Suspicion]) -> Vec<Private> {
        let mut private = Vec::new();
        for at in (0..self.nodes).map(NodeId) {
            let ring = |(registration, lane): (&Registration, usize)| {
                let heirs = suspicions.iter().filter(|one| self.is_heir(one.by, registration.incarnation, suspicions));
                let clients = std::iter::once(ClientId(registration.incarnation)).chain(heirs.map(|one| one.by));
                let ring = registration.ring(at, lane).applied_at();
                Private { clients: clients.collect(), at: ring, bytes: RING_EXTENT_BYTES }
            };
            let mut rings: Vec<Private> = self.lanes().map(ring).collect();
            let repairs = self.repairs();
            // Recoverers, members of a batch that look for its outcome, and clients that repair
            // what others have left, read all of a node.
            if !suspicions.is_empty() || self.coroutines > 1 || repairs {
                // Clients write only tables, landing clocks, and the beginnings of rings.
                rings.iter_mut().for_each(|ring| ring.bytes = RING_USED_BYTES);
                let shards = &self.metadata.shards;
                let is_last = |next: usize, table| shards.get(next).is_none_or(|next| next.table != table);
                let used = shards.iter().zip(1..).filter(|(shard, next)| is_last(*next, shard.table));
                let of_tables = used.flat_map(|(shard, _)| {
                    let replicas = shard.replicas.iter().filter(|replica| replica.node == at);
                    // Without inserts, headers do not change.
                    let name = &self.names[usize::from(shard.table.0)];
                    let table = Table::open_with_cache(&self.metadata, name, 0).expect("a table of the stage");
                    let from = if self.spare > 0 { 0 } else { table.index().slot_behind(0).unwrap_or(0) };
                    replicas.map(move |replica| (replica.base + from, shard.bytes - from))
                });
                let mut used: Vec<_> = rings.iter().map(|ring| (ring.at.offset, ring.bytes)).chain(of_tables).collect();
                used.push((node::clock_at(at).offset, WORD_BYTES as u64));
                used.push((NODE_BYTES as u64, 0));
                used.sort_unstable();
                let mut from = 0;
                for (start, bytes) in used {
                    private.push(Private { clients: Vec::new(), at: node::at(at, from), bytes: start - from });
                    from = start + bytes;
                }
            }
            if !explored.appliers && !repairs {
                private.extend(rings);
            }
        }
        // A single client shares the primaries with no other, if there are backups.
        if self.clients.len() == 1 && self.nodes > 1 {
            let clients = vec![ClientId(self.clients[0].0.incarnation)];
            private.push(Private { clients, at: node::at(NodeId(0), 0), bytes: NODE_BYTES as u64 });
        }
        private
    }

    /// Whether a client may recover another one.
    fn is_heir(&self, heir: ClientId, of: u32, suspicions: &[Suspicion]) -> bool {
        let of_heir = |heir: &ClientId| suspicions.iter().find(|one| one.by == *heir).map(|one| one.of);
        std::iter::successors(of_heir(&heir), of_heir).any(|dead| dead.0 == of)
    }

    /// Lists the lanes of all clients.
    fn lanes<'s>(&'s self) -> impl Iterator<Item = (&'s Registration, usize)> {
        let of_client = |(number, (registration, _)): (usize, &'s (Registration, Protocol))| {
            let lanes = if number == 0 { self.coroutines } else { 1 };
            (0..lanes).map(move |lane| (registration, lane))
        };
        self.clients.iter().enumerate().flat_map(of_client)
    }

    /// Makes the coroutines of a client. If there are several, they have a worker of their own.
    fn actors(&self, worker: &Worker, number: usize, ledger: &Rc<Ledger>, vcache: &Arc<VersionCache>) -> Vec<Actor> {
        let (registration, protocol) = &self.clients[number];
        let coroutines = if number == 0 { self.coroutines } else { 1 };
        let worker = if coroutines > 1 { Worker::new() } else { worker.clone() };
        let endpoint = worker.connect(&self.fabric, ClientId(registration.incarnation)).expect("a connection");
        let (sequence, archive_place) = (Rc::new(Cell::new(1)), Rc::default());
        let vcache = Some(vcache.clone());
        let shared = SharedLocks::new(registration, 1);
        let config = SessionConfig {
            protocol: *protocol,
            epoch: 1,
            sequence: sequence.clone(),
            archive_place: Rc::clone(&archive_place),
            vcache,
            shared,
            turns: Turns::default(),
            time: ClientTime::default(),
            outcomes: Outcomes::new(registration),
        };
        // A client that has the CPU take locks has a catalog of its own, which says that the table
        // is of that discipline.
        let mut metadata = self.metadata.clone();
        for table in &mut metadata.tables {
            if !protocol.accepts(table.spec.discipline) {
                table.spec.discipline = Discipline::OCC_CALLS;
            }
        }
        let open = |name: &String| Table::open_with_cache(&metadata, name, usize::MAX).expect("a table of the stage");
        let tables: Vec<_> = self.names.iter().map(|name| Arc::new(open(name))).collect();
        let incarnations: Rc<[u32]> = self.clients.iter().map(|(registration, _)| registration.incarnation).collect();
        let actor = |coroutine| {
            let lane = worker.lane(&endpoint, (number + coroutine) as u64).expect("few lanes");
            let mut session = Session::new(lane, registration, coroutine, config.clone());
            tables.iter().for_each(|table| session.register(table.clone()));
            if coroutines > 1 {
                session.observe(Some(Box::new(Watch { client: number, coroutine, ledger: ledger.clone() })));
            }
            Actor {
                session,
                worker: worker.clone(),
                number,
                coroutine,
                incarnations: incarnations.clone(),
                sequence: sequence.clone(),
                fabric: self.fabric.clone(),
                ledger: ledger.clone(),
            }
        };
        (0..coroutines).map(actor).collect()
    }
}

/// Runs the coroutines of a client as its worker does, one after the other, until each waits. One
/// of them may be dropped meanwhile.
async fn together(number: usize, actors: &mut [Actor], part: &dyn Part<Said>, cut: Option<(usize, Rc<Cut>)>) -> Said {
    let worker = actors[0].worker.clone();
    let cut = &cut;
    let tasks = actors.iter_mut().map(|actor| {
        let (lane, coroutine) = (actor.session.lane().id(), actor.coroutine);
        let playing = part.play(number, actor);
        (lane, async move {
            match cut.as_ref().filter(|(cut_off, _)| *cut_off == coroutine) {
                Some((_, cut)) => cut.before(playing).await,
                None => drop(playing.await),
            }
        })
    });
    let mut run = worker.start(tasks);
    poll_fn(|_| {
        loop {
            match run.turn() {
                Turned::Finished => return Poll::Ready(()),
                Turned::Ready => {}
                Turned::Waiting(_) => return Poll::Pending,
            }
        }
    })
    .await;
    None
}

/// The end of a coroutine whose future is dropped.
#[derive(Default)]
struct Cut {
    is_cut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Cut {
    /// Drops the coroutine's future when it is next polled, which is at once.
    fn cut(&self) {
        self.is_cut.set(true);
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Runs a future to its end or to the cut.
    async fn before<T>(&self, future: impl Future<Output = T>) {
        let mut future = pin!(future);
        poll_fn(|context| {
            if self.is_cut.get() {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(context.waker().clone());
            future.as_mut().poll(context).map(drop)
        })
        .await;
    }
}

/// Notes what observers hear of a coroutine's transaction. A later attempt replaces an earlier one.
struct Watch {
    client: usize,
    coroutine: usize,
    ledger: Rc<Ledger>,
}

impl Observer for Watch {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        let answer = match event.outcome {
            Outcome::Committed => Answer::Committed,
            Outcome::Unknown => Answer::Unknown,
            Outcome::UserAbort | Outcome::Aborted(_) | Outcome::Failed(_) => Answer::Aborted,
        };
        let told = Told { client: self.client, nth: self.coroutine, id: event.decided_by, answer };
        let mut all = self.ledger.told.borrow_mut();
        all.retain(|one| (one.client, one.nth) != (told.client, told.nth));
        all.push(told);
    }
}

/// Lists the clients that a recoverer recovers: the one that it takes for dead, and the clients
/// that this one was to recover.
fn dead_of(recoverer: usize, suspicions: &[(usize, usize)]) -> Vec<usize> {
    let of = |by: &usize| suspicions.iter().find(|(_, other)| other == by).map(|(of, _)| *of);
    std::iter::successors(of(&recoverer), of).collect()
}

/// The outcome of a transaction, as its client was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Committed,
    Aborted,
    Unknown,
}

/// What the judge must know at the end of a run, beside memory.
#[derive(Default)]
struct Ledger {
    /// The number of commits that were reported.
    reported: Cell<usize>,
    /// The number of recoveries that have decided.
    recovered: Cell<usize>,
    told: RefCell<Vec<Told>>,
    /// What clients have read, whether they have committed or not.
    seen: RefCell<Vec<Vec<u64>>>,
    verdicts: RefCell<Vec<(u32, Verdicts)>>,
}

/// A transaction, with the outcome that its client was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) client: usize,
    /// The number of the transaction among the client's transactions. If the client has several
    /// coroutines, it is the number of the coroutine, each of which runs one transaction.
    pub(super) nth: usize,
    /// The attempt that decides the transaction.
    pub(super) id: TransactionId,
    pub(super) answer: Answer,
}

/// Returns what the `nth` transaction of a client adds to records.
pub(super) fn amount(client: usize, nth: usize) -> u64 {
    1 << (16 * client + 4 * nth)
}

/// Clients that are recovered, so that their locks are void.
struct Gone(Vec<u32>);

impl Departed for Gone {
    fn is_recovered(&self, client: u32) -> bool {
        self.0.contains(&client)
    }
}

/// A client of a run.
pub(super) struct Actor {
    pub(super) session: Session,
    worker: Worker,
    /// The client's number in the program.
    number: usize,
    /// The coroutine's number among the client's coroutines.
    pub(super) coroutine: usize,
    /// The incarnations of all clients, by number.
    incarnations: Rc<[u32]>,
    sequence: Rc<Cell<u64>>,
    fabric: Seeded,
    ledger: Rc<Ledger>,
}

/// The part of each client in a program, given the client's number.
trait Part<T> {
    fn play<'a>(&'a self, number: usize, actor: &'a mut Actor) -> Pin<Box<dyn Future<Output = T> + 'a>>;
}

impl<T, F: AsyncFn(usize, &mut Actor) -> T> Part<T> for F {
    fn play<'a>(&'a self, number: usize, actor: &'a mut Actor) -> Pin<Box<dyn Future<Output = T> + 'a>> {
        Box::pin(self(number, actor))
    }
}

impl Actor {
    /// Runs a transaction once. Returns what it returned, if it has committed.
    pub(super) async fn once(&mut self, body: impl AsyncFnMut(&mut Tx<'_>) -> Result<Vec<u64>, Stop>) -> Said {
        self.attempt(1, body).await
    }

    /// Runs a transaction, with at most `attempts` attempts as long as it aborts. Returns what the
    /// transaction returned, if it has committed.
    pub(super) async fn attempt(
        &mut self,
        attempts: u32,
        mut body: impl AsyncFnMut(&mut Tx<'_>) -> Result<Vec<u64>, Stop>,
    ) -> Said {
        let options = TransactOptions { attempts, ..TransactOptions::default() };
        let mut id = None;
        let attempt = self.session.transact(options, async |tx| {
            let result = body(tx).await;
            // Only now: if the id is known from the beginning, a time is never fixed early.
            id = Some(tx.id());
            result.map(Ok::<_, ()>)
        });
        let (answer, said) = answered(attempt.await);
        let mut all = self.ledger.told.borrow_mut();
        let nth = all.iter().filter(|told| told.client == self.number).count();
        all.extend(id.map(|id| Told { client: self.number, nth, id, answer }));
        said
    }

    /// Opens a RACE hash table.
    pub(super) fn race(&self, table: &RaceName) -> Arc<Race> {
        let extent = self.session.table(table.extent).expect("a table of the stage").clone();
        let race = Race::open(&table.metadata, &table.name, extent).expect("a table of the stage");
        Arc::new(race.with_tries(RACE_TRIES))
    }

    /// Opens a snapshot. Returns its time, if that has worked.
    pub(super) async fn open_snapshot(&mut self) -> Option<PastTime> {
        let options = TransactOptions { attempts: 2, snapshot: Some(Snapshot::Fresh), ..TransactOptions::default() };
        let opened = self.session.transact(options, async |tx| tx.open_snapshot().await.map(Ok::<_, ()>));
        opened.await.ok()?.ok()
    }

    /// Reads a row at a past time. Returns its first word, and 0 if it was absent.
    pub(super) async fn read_at(&mut self, past: PastTime, row: Row) -> Said {
        let options = TransactOptions { attempts: 2, snapshot: Some(Snapshot::At(past)), ..TransactOptions::default() };
        self.read(options, &[row]).await
    }

    /// Reads rows in a snapshot, with at most `attempts` attempts. Returns the first word of each,
    /// and 0 for an absent row.
    pub(super) async fn snapshot(&mut self, attempts: u32, rows: &[Row]) -> Said {
        let options = TransactOptions { attempts, snapshot: Some(Snapshot::Fresh), ..TransactOptions::default() };
        self.read(options, rows).await
    }

    async fn read(&mut self, options: TransactOptions, rows: &[Row]) -> Said {
        let read = self.session.transact(options, async |tx| {
            let slots = rows.iter().map(|row| want(tx, *row)).collect::<Result<Vec<_>, _>>()?;
            tx.fetch().await?;
            let value = |slot| match get(tx, slot) {
                Err(Stop::Absent) => Ok(0),
                value => value,
            };
            slots.into_iter().map(value).collect::<Result<Vec<_>, _>>().map(Ok::<_, ()>)
        });
        answered(read.await).1
    }

    /// Reads rows in a snapshot, each when the one before it has come; otherwise as
    /// [`Actor::snapshot`].
    pub(super) async fn snapshot_of_each(&mut self, attempts: u32, rows: &[Row]) -> Said {
        let options = TransactOptions { attempts, snapshot: Some(Snapshot::Fresh), ..TransactOptions::default() };
        let read = self.session.transact(options, async |tx| {
            let mut values = Vec::new();
            for row in rows {
                let slot = want(tx, *row)?;
                tx.fetch().await?;
                values.push(get(tx, slot)?);
            }
            Ok(Ok::<_, ()>(values))
        });
        answered(read.await).1
    }

    /// Runs a transaction, which may commit together with those of the client's other coroutines.
    /// Notes what it returns beside what observers hear, because both must be true. It ends after
    /// `patience` nanoseconds at the latest.
    pub(super) async fn together(
        &mut self,
        patience: Nanos,
        mut body: impl AsyncFnMut(&mut Tx<'_>) -> Result<(), Stop>,
    ) -> Answer {
        let deadline = Some(self.session.lane().now() + patience);
        let options = TransactOptions { deadline, patience, ..TransactOptions::default() };
        let result = self.session.transact(options, async |tx| body(tx).await.map(Ok::<_, ()>)).await;
        let (answer, _) = answered(result.map(|returned| returned.map(|()| Vec::new())));
        let mut all = self.ledger.told.borrow_mut();
        let heard = all.iter().rfind(|told| (told.client, told.nth) == (self.number, self.coroutine)).copied();
        all.extend(heard.map(|heard| Told { answer, ..heard }));
        answer
    }

    /// Recovers clients. Returns `None` if this client is revoked meanwhile.
    async fn recover(&mut self, dead: &[u32]) -> Said {
        let (lane, nodes) = (self.session.lane(), NodeSet::first(self.fabric.nodes()));
        let verdicts = unless_revoked(recovery::repair(&self.fabric, lane, nodes, dead, &|_| ()).await)?;
        let mut decided = DefaultHasher::new();
        format!("{verdicts:?}").hash(&mut decided);
        self.fabric.tells(ClientId(self.incarnations[self.number]), decided.finish());
        self.ledger.verdicts.borrow_mut().extend(verdicts);
        self.ledger.recovered.set(self.ledger.recovered.get() + 1);
        let me = || {
            self.sequence.set(self.sequence.get() + 1);
            TransactionId::new(self.incarnations[self.number], self.sequence.get())
        };
        unless_revoked(recovery::sweep(lane, nodes, dead, 0, me, || ()).await)?;
        Some(Vec::new())
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

    /// Returns what the client's next transaction adds to records. No other transaction adds the
    /// same amount.
    pub(super) fn amount(&self) -> u64 {
        let own = self.ledger.told.borrow().iter().filter(|told| told.client == self.number).count();
        amount(self.number, own)
    }

    /// Tells the other clients that a commit has been reported.
    pub(super) fn report(&self) {
        self.ledger.reported.set(self.ledger.reported.get() + 1);
    }

    /// Waits until `count` commits have been reported. Call it only before the client's first
    /// round.
    pub(super) async fn reported(&self, count: usize) {
        poll_fn(|_| if self.ledger.reported.get() >= count { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Waits until `count` commits have been reported, as [`Actor::reported`] does. Returns false
    /// when nothing else can happen before that, because the client that was to commit has died.
    /// The client must have posted no round before, because it would wake when others change what
    /// it has read.
    pub(super) async fn reported_or_never(&self, count: usize) -> bool {
        let mut sleep = pin!(self.session.lane().sleep(1));
        poll_fn(|context| {
            if self.ledger.reported.get() >= count {
                return Poll::Ready(true);
            }
            sleep.as_mut().poll(context).map(|()| false)
        })
        .await
    }

    /// Returns a function that notes what the client reads, whether it commits or not.
    pub(super) fn seen(&self) -> impl Fn(Vec<u64>) + use<> {
        let ledger = self.ledger.clone();
        move |words| ledger.seen.borrow_mut().push(words)
    }

    /// Makes the client free each lock of these clients that it meets, from now on.
    pub(super) fn watch_for(&mut self, dead: &[usize]) {
        let dead = dead.iter().map(|number| self.incarnations[*number]).collect();
        self.session.watch_for(Rc::new(Gone(dead)), Rc::default());
    }

    /// Waits until a recoverer has decided. From then on, the client frees each lock of these
    /// clients that it meets. Call it only before the client's first round.
    pub(super) async fn recovered(&mut self, dead: &[usize]) {
        let is_recovered = || self.ledger.recovered.get() > 0;
        poll_fn(|_| if is_recovered() { Poll::Ready(()) } else { Poll::Pending }).await;
        self.watch_for(dead);
    }
}

/// Returns what a client is told of a transaction, and what the transaction has returned if it has
/// committed.
fn answered(result: Result<Result<Vec<u64>, ()>, Stop>) -> (Answer, Said) {
    match result {
        Ok(Ok(values)) => (Answer::Committed, Some(values)),
        Ok(Err(())) | Err(Stop::Abort(_) | Stop::Exists | Stop::Absent | Stop::Fenced) => (Answer::Aborted, None),
        Err(Stop::Limit(Limit::Deadline)) => (Answer::Aborted, None),
        Err(Stop::Unknown(_)) => (Answer::Unknown, None),
        Err(stop) => panic!("a litmus program meets contention only, not: {stop}"),
    }
}

/// Returns `None` if the client was revoked meanwhile.
fn unless_revoked<T>(result: Result<T, MemoryError>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(MemoryError::Fabric(error)) if error.fault == Fault::Revoked => None,
        Err(error) => panic!("recovery fails where it is taken for dead only, not: {error}"),
    }
}

/// The end of a run.
pub(super) struct Scene<'s> {
    stage: &'s Stage,
    /// Whether the memory nodes have applied their rings during the run.
    applies: bool,
    /// The result of each client, or `None` for a client of several coroutines.
    pub(super) said: Vec<Said>,
    /// The outcome that each transaction's client was told, in the order of their ends.
    pub(super) told: Vec<Told>,
    /// What clients have read, whether they have committed or not.
    pub(super) seen: Vec<Vec<u64>>,
    /// What recoverers have found.
    pub(super) verdicts: Vec<(u32, Verdicts)>,
}

impl Scene<'_> {
    /// Runs something as the last client of the stage, which has done nothing before.
    pub(super) fn run_as_last<T>(&self, body: impl AsyncFnOnce(&mut Actor) -> T) -> T {
        let number = self.stage.clients.len() - 1;
        let (worker, ledger) = (Worker::new(), Rc::new(Ledger::default()));
        let mut actors = self.stage.actors(&worker, number, &ledger, &Arc::new(VersionCache::new(0)));
        let actor = &mut actors[0];
        let lane = actor.session.lane().id();
        let worker = actor.worker.clone();
        worker.run([(lane, body(actor))]).pop().expect("a task that has run has a result")
    }

    /// Counts the clients that have committed.
    pub(super) fn committed(&self) -> u64 {
        self.said.iter().flatten().count() as u64
    }

    /// Reads the values of the records with these keys, one for each record, and inspects their
    /// table.
    pub(super) fn look(&self, rows: &[Row]) -> (Vec<u64>, Inspection) {
        let name = &self.stage.names[usize::from(rows[0].table.0)];
        let table = Table::open_with_cache(&self.stage.metadata, name, 0).expect("a table of the stage");
        let mut values = Vec::new();
        let found = self.stage.administer(async |lane: &Lane| {
            let mut each = |record: &StableRecord<'_>| {
                if rows.iter().any(|row| record.has_key(key(row.key).words())) {
                    let mut value = Vec::new();
                    record.copy_value(&mut value);
                    values.extend(value.first());
                }
            };
            inspect(lane, &table, &mut each).await
        });
        (values, found.expect("memory that can be read"))
    }

    /// Lets the memory nodes apply their rings to the end.
    pub(super) fn apply(&self) {
        if self.stage.clients[0].1.discipline().is_in_place() {
            return; // there are no logs to be applied
        }
        let _appliers = if self.applies { Vec::new() } else { self.stage.appliers() };
        self.stage.fabric.settle_services();
    }

    /// Reads the version word and the first word of a row's value at a node.
    pub(super) fn replica(&self, at: u16, row: Row) -> (u64, u64) {
        let (table, offset) = self.stage.slot_of(row);
        let region = self.stage.fabric.region(NodeId(at), node::REGION).expect("a node's memory");
        let shard = table.home(KeyHash::of(key(row.key).words())).shard;
        let replica = table.shard_replicas(shard).iter().find(|replica| replica.node == NodeId(at)).expect("a replica");
        let at = replica.address(offset).offset as usize / WORD_BYTES;
        let word = |index: usize| region.words()[at + index].load(Ordering::Acquire);
        (word(1), word(table.shape().header_bytes() / WORD_BYTES + 1))
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

    /// Counts the undo entries at a node that are not free.
    pub(super) fn undo_entries_at(&self, at: u16) -> usize {
        let region = self.stage.fabric.region(NodeId(at), node::REGION).expect("a node's memory");
        let of_lane = |(registration, lane): (&Registration, usize)| {
            let (mut count, ring) = (0, registration.ring(NodeId(at), lane).applied_at().offset);
            if let Some(ring) = RingReader::resume(region.words(), ring, registration.incarnation) {
                ring.scan_undo(region.words(), |_, _| count += 1);
            }
            count
        };
        self.stage.lanes().map(of_lane).sum()
    }

    /// Counts the undo entries at all nodes that are not free.
    pub(super) fn undo_entries(&self) -> usize {
        (0..self.stage.nodes).map(|at| self.undo_entries_at(at)).sum()
    }

    /// Returns what each recoverer has found out about a transaction.
    pub(super) fn verdicts_of(&self, told: Told) -> impl Iterator<Item = Verdict> {
        let of_client = self.verdicts.iter().filter(move |(client, _)| *client == told.id.owner());
        of_client.map(move |(_, verdicts)| verdicts.of(told.id))
    }
}

fn key(number: u64) -> Key {
    Key::new(&number.to_be_bytes()).expect("a key of eight bytes")
}

/// Names a row to be read or changed.
pub(super) fn want(tx: &mut Tx<'_>, row: Row) -> Result<Slot, Stop> {
    tx.want(row.table, &key(row.key))
}

/// Names a row to be changed. A protocol that locks early locks it when it is fetched.
pub(super) fn want_to_change(tx: &mut Tx<'_>, row: Row) -> Result<Slot, Stop> {
    tx.want_for(row.table, &key(row.key), Intent::Update)
}

/// Names a row to be deleted.
pub(super) fn want_to_delete(tx: &mut Tx<'_>, row: Row) -> Result<Slot, Stop> {
    tx.want_for(row.table, &key(row.key), Intent::Delete)
}

/// Names a row to be inserted.
pub(super) fn want_to_insert(tx: &mut Tx<'_>, row: Row) -> Result<Slot, Stop> {
    tx.want_for(row.table, &key(row.key), Intent::Insert)
}

/// Returns the words of a row that was fetched.
pub(super) fn words(tx: &Tx<'_>, slot: Slot) -> Result<Vec<u64>, Stop> {
    let value = tx.value(slot)?.ok_or(Stop::Absent)?;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok(value.chunks(8).map(word).collect())
}

/// Returns the first word of a row that was fetched.
pub(super) fn get(tx: &Tx<'_>, slot: Slot) -> Result<u64, Stop> {
    words(tx, slot)?.first().copied().ok_or(Stop::Absent)
}

/// Writes one word over all words of a row.
pub(super) fn put(tx: &mut Tx<'_>, row: Row, slot: Slot, value: u64) -> Result<(), Stop> {
    tx.write(slot, vec![value; row.words].as_bytes())
}

/// Inserts a row of equal words.
pub(super) fn insert(tx: &mut Tx<'_>, row: Row, slot: Slot, value: u64) -> Result<(), Stop> {
    tx.insert(slot, vec![value; row.words].as_bytes())
}
