//! Tests of fail-over on simulated clusters: memory nodes die, or become unreachable, while
//! transactions run.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remora::admin::Standing;
use remora::floors::index::cluster_hash::Geometry;
use remora::floors::node::{MemoryError, Metadata, node};
use remora::floors::txn::mutant::Mutant;
use remora::floors::txn::recovery::{Loss, Tell, fail_over};
use remora::protocol::Protocol;
use remora::{Cluster, Error, Session, Table, TableOptions, WorkerOptions};
use remora_fabric::sim::{Driven, Ended, FaultKind, Planned, Profile, Sim, SimOptions};
use remora_fabric::{Assumed, ClientId, Fabric, Lane, NodeId, NodeSet, block_on, probes};
use remora_lab::campaign::{Case, Load, mutation_score, run};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "account")]
#[repr(transparent)]
struct Account(i64);

const ROWS: u64 = 64;
const MONEY: i64 = 1_000;
const LEASE: Duration = Duration::from_millis(1);
/// The time at which the node is lost, in nanoseconds of a run.
const LOSS_AT: u64 = 300_000;
const BACK_AT: u64 = 6_000_000;
const END_AT: u64 = 36_000_000;

/// The memory nodes, and what happens to them.
#[derive(Clone, Copy)]
struct Shape {
    nodes: u16,
    spares: u16,
    replicas: u8,
    lost: NodeId,
    /// Whether the node is drained and not lost. It leaves when it holds nothing any more.
    is_drained: bool,
    /// Whether the node rejoins after the loss, empty.
    comes_back: bool,
    /// Whether all nodes are filled, so that they hold as much as the others.
    fills: bool,
}

const SHAPE: Shape =
    Shape { nodes: 3, spares: 0, replicas: 3, lost: NodeId(1), is_drained: false, comes_back: false, fills: false };

fn cluster(protocol: Protocol, shape: Shape, seed: u64) -> (Cluster, Sim, Table<u64, Account>) {
    cluster_with(protocol, shape, seed, TableOptions::for_rows(2 * ROWS))
}

fn cluster_with(
    protocol: Protocol,
    shape: Shape,
    seed: u64,
    table: TableOptions,
) -> (Cluster, Sim, Table<u64, Account>) {
    let Shape { nodes: memory_nodes, spares, replicas, .. } = shape;
    let options = Cluster::embedded()
        .nodes(memory_nodes)
        .spares(spares)
        .replicas(replicas)
        .node_bytes(16 << 20)
        .protocol(protocol);
    let profile = Profile::named("connectx4").expect("a profile");
    // Some protocols need what no card promises.
    let hardware = SimOptions { assume: Assumed::AS_THE_TEXTS, ..SimOptions::new(profile, seed) };
    let (cluster, sim) = options.open_simulated(&hardware).expect("a cluster");
    let cluster = cluster.with_lease(Some(LEASE));
    let accounts = cluster.create_table("accounts", table).expect("a table");
    cluster.load(&accounts, (0..ROWS).map(|key| (key, Account(MONEY)))).expect("rows");
    (cluster, sim, accounts)
}

async fn transfer(session: &mut Session, accounts: &Table<u64, Account>, from: u64, to: u64) -> Result<(), Error> {
    let moved = session.transact(async |tx| {
        let (from, to) = (tx.want(accounts, from), tx.want(accounts, to));
        tx.fetch().await?;
        from.get_mut(tx)?.0 -= 1;
        to.get_mut(tx)?.0 += 1;
        Ok(())
    });
    moved.await
}

async fn total(session: &mut Session, accounts: &Table<u64, Account>) -> Result<i64, Error> {
    let sum = session.transact(async |tx| {
        let all: Vec<_> = (0..ROWS).map(|key| tx.want(accounts, key)).collect();
        tx.fetch().await?;
        all.into_iter().map(|row| Ok(row.require(tx)?.0)).sum()
    });
    sum.await
}

/// Runs two clients that transfer, one that adds up, and two controllers. A node fails in the
/// middle. Returns the numbers of commits before and after.
fn lose(protocol: Protocol, shape: Shape, seed: u64) -> (u64, u64) {
    let lost = shape.lost;
    let (cluster, sim, accounts) = cluster(protocol, shape, seed);
    let (before, after, sums, back) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(false));
    let errors = RefCell::new(Vec::new());
    let mut workers: Vec<_> = (0..3)
        .map(|client| {
            sim.place(client);
            let options = WorkerOptions::default().coroutines(4).seed(client as u64);
            cluster.worker(options).expect("a worker")
        })
        .collect();
    let mut controllers: Vec<_> = (3..5)
        .map(|machine| {
            sim.place(machine);
            cluster.controller().expect("a controller")
        })
        .collect();
    let configuration = cluster.configuration().expect("one");
    if shape.fills {
        configuration.change(|membership| membership.fill(NodeSet::first(shape.nodes))).expect("a change");
    }
    sim.instant(false);
    let began = sim.now();
    let over = || sim.now() - began > END_AT;
    let bodies: Vec<_> = (0..3u64)
        .map(|client| {
            let (sim, accounts, before, after, sums, errors) = (&sim, &accounts, &before, &after, &sums, &errors);
            let (back, configuration, lives) = (&back, configuration.clone(), workers[client as usize].lives());
            async move |coroutine: usize, session: &mut Session| {
                let mut last = Vec::new();
                for step in 0.. {
                    let incarnations = lives();
                    assert!(incarnations >= last, "{incarnations:?} may have been given before {last:?}");
                    last = incarnations;
                    let now = sim.now() - began;
                    if now > END_AT {
                        return;
                    }
                    if now > LOSS_AT && (client, coroutine) == (0, 0) && !back.get() {
                        if shape.is_drained {
                            let lost = NodeSet::default().with(lost);
                            configuration.change(|membership| membership.drain(lost)).expect("a change");
                        } else {
                            sim.fail(lost);
                        }
                    }
                    if shape.comes_back && now > BACK_AT && (client, coroutine) == (0, 0) && !back.replace(true) {
                        sim.restart(lost);
                        let memory = sim.region(lost, node::REGION).expect("a node's memory");
                        node::format(&memory, node::Place::default()).expect("room");
                    }
                    let count = if now > END_AT / 2 { after } else { before };
                    let (from, to) = (session.lane().random() % ROWS, session.lane().random() % ROWS);
                    let outcome = if client == 2 {
                        total(session, accounts).await.map(|sum| {
                            assert_eq!(sum, ROWS as i64 * MONEY, "step {step}");
                            sums.set(sums.get() + 1);
                        })
                    } else if from == to {
                        Ok(())
                    } else {
                        transfer(session, accounts, from, to).await.map(|()| count.set(count.get() + 1))
                    };
                    match outcome {
                        Ok(()) | Err(Error::Aborted(_) | Error::Unknown(_)) => {}
                        Err(error) => errors.borrow_mut().push(format!("client {client} at {now} ns: {error}")),
                    }
                    session.lane().yield_now().await;
                    if client == 2 && protocol.spec().locks_reads {
                        // What this client reads, it keeps others from writing.
                        session.lane().sleep(session.lane().random() % 400_000).await;
                    }
                }
            }
        })
        .collect();
    let clients: Vec<Vec<ClientId>> =
        workers.iter().map(|worker| worker.incarnations().map(ClientId).collect()).collect();
    let mut runs: Vec<_> = workers.iter_mut().zip(&bodies).map(|(worker, body)| worker.start(body)).collect();
    let ids: Vec<ClientId> = controllers.iter().map(|controller| ClientId(controller.incarnation())).collect();
    let mut watching: Vec<_> = controllers.iter_mut().map(|controller| controller.start(over)).collect();
    let ended = {
        let mut driven: Vec<Driven<'_>> =
            runs.iter_mut().zip(clients).map(|(run, clients)| Driven { clients, run }).collect();
        driven.extend(watching.iter_mut().zip(ids).map(|(run, id)| Driven { clients: vec![id], run }));
        sim.run(&mut driven, Some(began + 4 * END_AT))
    };
    assert_eq!(ended, Ended::Finished);
    drop((runs, watching));
    sim.instant(true);
    assert_eq!(errors.take(), Vec::<String>::new());
    assert!(sums.get() > 0);
    let mut janitor = cluster.worker(WorkerOptions::default()).expect("a worker of the new epoch");
    for mut worker in workers {
        assert!(worker.drain().expect("a worker that goes on"));
    }
    sim.settle_services();
    let sum = janitor.block_on(async |session| total(session, &accounts).await).expect("all rows");
    assert_eq!(sum, ROWS as i64 * MONEY);
    assert_eq!(cluster.live_nodes().has(lost), shape.comes_back);
    let live = shape.nodes - u16::from(!shape.comes_back);
    for shard in &cluster.catalog().shards {
        let copies = shard.copies().count();
        assert_eq!((copies, shard.replicas.len()), (usize::from(shape.replicas).min(live.into()), copies), "{shard:?}");
    }
    if shape.fills {
        let at = |node: NodeId| {
            cluster
                .catalog()
                .shards
                .iter()
                .flat_map(|shard| &shard.replicas)
                .filter(|replica| replica.node == node)
                .count()
        };
        let shards: Vec<usize> = cluster.live_nodes().iter().map(at).collect();
        assert!(shards.iter().max().unwrap() - shards.iter().min().unwrap() <= 1, "shards of each node: {shards:?}");
    }
    let inspection = cluster.inspect(&accounts, |_| ()).expect("what is left");
    assert_eq!((inspection.records, inspection.torn, inspection.differing_lines), (ROWS, 0, 0), "{inspection:?}");
    (before.get(), after.get())
}

/// The protocols that promise transactions and keep copies of records.
fn with_copies() -> impl Iterator<Item = Protocol> {
    let has_copies = |one: &Protocol| one.is_serializable() && one.discipline().copies_max() > 1;
    Protocol::ALL.into_iter().filter(has_copies)
}

/// Every protocol survives the loss, every second one with two copies and the others with three.
/// `.ci/long` runs each of them with both, and all protocols.
fn goes_on(shape: Shape) {
    let kinds = [Protocol::DRTM_R, Protocol::FASST, Protocol::FARM, Protocol::FORD, Protocol::NO_WAIT];
    let protocols = with_copies().filter(|one| is_long() || kinds.contains(one));
    for (number, protocol) in protocols.enumerate() {
        let replicas = if is_long() { vec![3, 2] } else { vec![3 - number as u8 % 2] };
        for replicas in replicas {
            let (before, after) = lose(protocol, Shape { replicas, ..shape }, 7);
            assert!(before > 100 && after > 100, "{protocol:?}, {replicas} replicas: {before} and {after} transfers");
        }
    }
}

fn goes_on_without(lost: u16) {
    goes_on(Shape { lost: NodeId(lost), ..SHAPE });
}

#[test]
fn a_spare_gets_copies_of_what_was_lost() {
    goes_on(Shape { nodes: 4, spares: 1, ..SHAPE });
}

#[test]
fn a_node_that_comes_back_with_nothing_gets_copies() {
    for lost in [1, 0] {
        goes_on(Shape { lost: NodeId(lost), comes_back: true, ..SHAPE });
    }
}

/// While shards move to a node that is filled, another node dies, rejoins, and is filled too.
#[test]
fn shards_move_to_nodes_that_are_filled() {
    goes_on(Shape { nodes: 4, spares: 1, comes_back: true, fills: true, ..SHAPE });
}

#[test]
fn a_leader_may_be_drained() {
    goes_on(Shape { nodes: 4, lost: NodeId(0), is_drained: true, ..SHAPE });
}

#[test]
fn a_cluster_goes_on_without_a_node() {
    goes_on_without(1);
}

#[test]
fn a_cluster_goes_on_without_its_leader() {
    goes_on_without(0);
}

/// A node of an idle cluster is lost, and a spare node gets copies of what it had, at most `rate`
/// bytes per second. Returns the time that this takes, from the loss. Calls `look` with the spare
/// node's memory meanwhile.
fn copied_within(protocol: Protocol, rate: Option<u64>, look: impl Fn(&Metadata, &[AtomicU64])) -> u64 {
    let shape = Shape { nodes: 4, spares: 1, ..SHAPE };
    // The table is full, so that chains of the index have grown.
    let table = TableOptions::for_rows(ROWS).shards(1);
    let (cluster, sim, accounts) = cluster_with(protocol, shape, 7, table);
    sim.place(1);
    let mut controller = cluster.controller().expect("a controller").with_copy_rate(rate);
    let spare = sim.region(NodeId(3), node::REGION).expect("a node's memory");
    sim.instant(false);
    let began = sim.now();
    sim.fail(shape.lost);
    let is_whole = || {
        let shards = cluster.catalog().shards;
        !cluster.live_nodes().has(shape.lost) && shards.iter().all(|shard| shard.copies().count() == 3)
    };
    let id = ClientId(controller.incarnation());
    let mut watching = controller.start(|| {
        look(&cluster.catalog(), spare.words());
        is_whole()
    });
    let ended = sim.run(&mut [Driven { clients: vec![id], run: &mut watching }], Some(began + 1_000 * END_AT));
    assert_eq!(ended, Ended::Finished, "{protocol:?}");
    drop(watching);
    let took = sim.now() - began;
    sim.instant(true);
    let inspection = cluster.inspect(&accounts, |_| ()).expect("what is left");
    assert_eq!((inspection.records, inspection.torn, inspection.differing_lines), (ROWS, 0, 0), "{inspection:?}");
    took
}

#[test]
fn copies_are_made_as_fast_as_they_may_be() {
    const RATE: u64 = 1_000_000;
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let (slow, fast) = (copied_within(protocol, Some(RATE), |_, _| ()), copied_within(protocol, None, |_, _| ()));
        // Each record is one line. It is read once to be copied, and at both nodes to be compared.
        let bytes = ROWS * 64 * 3;
        assert!(slow - fast > bytes * 1_000_000_000 / RATE * 9 / 10, "{protocol:?}: {slow} and {fast} ns");
    }
}

/// A function that returns a wrong word for an offset of a shard, if the word there should be
/// damaged.
type Spoil = fn(&Geometry, u64, u64) -> Option<u64>;

const VALUE: Spoil = |_, _, word| (word == MONEY as u64).then_some(MONEY as u64 + 1);
/// Damages the link of a bucket that has an indirect bucket.
const LINK: Spoil = |geometry, at, word| (geometry.is_link(at) && word != 0).then_some(0);
/// Damages the second word of a pair.
const KEY: Spoil = |geometry, at, word| (geometry.is_pair(at.wrapping_sub(8)) && word != 0).then_some(u64::MAX);

/// The copy at the joining node is compared with the original. Differences are found even if the
/// versions are equal.
#[test]
fn a_copy_that_differs_is_made_again() {
    let cases = [(Protocol::FORD, VALUE), (Protocol::DRTM_R, VALUE), (Protocol::DRTM_R, LINK), (Protocol::DRTM_R, KEY)];
    for (number, (protocol, spoil)) in cases.into_iter().enumerate() {
        let is_spoilt = Cell::new(false);
        let took = copied_within(protocol, Some(1_000_000), |metadata, spare| {
            let (shard, geometry) = (&metadata.shards[0], Geometry::of(&metadata.tables[0].spec));
            let joining = shard.replicas.iter().find(|replica| replica.joining);
            let Some(base) = joining.map(|replica| replica.base as usize / 8).filter(|_| !is_spoilt.get()) else {
                return;
            };
            for (at, word) in (0..shard.bytes).step_by(8).zip(&spare[base..]) {
                if let Some(wrong) = spoil(&geometry, at, word.load(Ordering::Relaxed)) {
                    word.store(wrong, Ordering::Relaxed);
                    return is_spoilt.set(true);
                }
            }
        });
        // The controller compares again for two seconds, in case a client writes the record.
        assert!(is_spoilt.get() && took > 2_000_000_000, "case {number}: {took} ns");
    }
}

/// A session cannot retry a transaction that its caller has begun and will end. Here such a
/// transaction ends with its epoch, without effect, and the session continues.
#[test]
fn a_begun_transaction_ends_with_its_epoch() {
    for protocol in protocols() {
        let shape = SHAPE;
        let (cluster, sim, accounts) = cluster(protocol, shape, 7);
        sim.place(0);
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).expect("a worker");
        sim.place(1);
        let mut controller = cluster.controller().expect("a controller");
        sim.instant(false);
        let done = Cell::new(false);
        let clients: Vec<ClientId> = worker.incarnations().map(ClientId).collect();
        let id = ClientId(controller.incarnation());
        let move_one = async |session: &mut Session, loss: bool| {
            let mut begun = session.begin()?;
            let mut tx = begun.transaction();
            let (from, to) = (tx.want(&accounts, 0), tx.want(&accounts, 1));
            tx.fetch().await?;
            from.get_mut(&mut tx)?.0 -= 1;
            to.get_mut(&mut tx)?.0 += 1;
            if loss {
                sim.fail(shape.lost);
                tx.lane().sleep(END_AT / 2).await;
            }
            begun.commit().await
        };
        let body = async |_: usize, session: &mut Session| {
            move_one(session, false).await.expect("a healthy cluster");
            let ended = move_one(session, true).await;
            // A commit that has all locks sends its log entry first, and cannot know what became of
            // it.
            let is_unknown = protocol == Protocol::DST_2PL && matches!(ended, Err(Error::Unknown(_)));
            let is_known = matches!(ended, Err(Error::Fenced | Error::Unavailable(_)));
            assert!(is_known || is_unknown, "{protocol:?}: {ended:?}");
            move_one(session, false).await.expect("the next epoch");
            let moved = session.transact(async |tx| accounts.get(tx, 1).await).await;
            assert_eq!(moved.expect("the next epoch").map(|account| account.0), Some(MONEY + 2), "{protocol:?}");
            assert_eq!(total(session, &accounts).await.expect("all rows"), ROWS as i64 * MONEY);
            done.set(true);
        };
        let mut run = worker.start(&body);
        let mut watching = controller.start(|| done.get());
        let mut driven = [Driven { clients, run: &mut run }, Driven { clients: vec![id], run: &mut watching }];
        assert_eq!(sim.run(&mut driven, Some(sim.now() + 4 * END_AT)), Ended::Finished);
        drop((run, watching));
        sim.instant(true);
        assert!(done.get() && !cluster.live_nodes().has(shape.lost));
    }
}

/// A node may answer and apply nothing, because a part of it has stopped. A controller would wait
/// for it for ever. Instead it names the node, so that the next epoch can begin without it.
#[test]
fn a_node_that_does_not_apply_what_was_logged_is_named() {
    let (cluster, sim, accounts) = cluster(Protocol::DRTM_R, SHAPE, 7);
    let mut worker = cluster.worker(WorkerOptions::default()).expect("a worker");
    let kind = FaultKind::Stall(60_000_000_000);
    sim.plan(Planned { probe: probes::LOCKS, nth: 1, after: 0, kind, holding: true });
    sim.instant(false);
    worker.block_on(async |session| transfer(session, &accounts, 1, 2).await).expect("a commit");
    assert_eq!(sim.injected().len(), 1);
    let clients: Vec<u32> = worker.incarnations().collect();
    worker.abandon();
    let none = NodeSet::default();
    let loss = Loss {
        survivors: NodeSet::first(SHAPE.nodes),
        lost: none,
        epoch: 2,
        admitted: none,
        leaving: none,
        expendable: none,
        filling: none,
        copied: &[],
        clients: &clients,
        incarnations: 1_000,
    };
    let tell = Tell { rollback: &|_| {}, decided: &|_| panic!("it does not get so far") };
    let began = sim.now();
    let ended = block_on(&sim, ClientId(1_000), async |lane: &Lane| fail_over(&sim, lane, &loss, &tell).await);
    assert!(matches!(ended, Ok(Err(MemoryError::NotApplied(_)))), "{ended:?}");
    assert!(sim.now() - began > 10_000_000_000, "{} ns", sim.now() - began);
}

/// One client is partitioned from a memory node, and all other clients still reach that node. Other
/// clients finish what the client had under way. It continues as a new client, in the same epoch.
#[test]
fn a_client_that_alone_has_lost_a_node_connects_again() {
    for protocol in protocols() {
        let shape = Shape { lost: NodeId(0), ..SHAPE };
        let (cluster, sim, accounts) = cluster(protocol, shape, 7);
        let mut workers: Vec<_> = (0..2)
            .map(|client| {
                sim.place(client);
                cluster.worker(WorkerOptions::default().coroutines(2)).expect("a worker")
            })
            .collect();
        sim.place(2);
        let mut controller = cluster.controller().expect("a controller");
        let kind = FaultKind::Isolate(END_AT / 4, 0b01);
        sim.plan(Planned { probe: probes::LOCKS, nth: 40, after: 0, kind, holding: true });
        sim.instant(false);
        let began = sim.now();
        let over = || sim.now() - began > 2 * END_AT;
        let late = [Cell::new(0), Cell::new(0)];
        let bodies: Vec<_> = (0..2)
            .map(|client| {
                let (sim, accounts, late) = (&sim, &accounts, &late[client]);
                async move |_: usize, session: &mut Session| {
                    while sim.now() - began <= 2 * END_AT {
                        let (from, to) = (session.lane().random() % ROWS, session.lane().random() % ROWS);
                        match transfer(session, accounts, from, (to + u64::from(from == to)) % ROWS).await {
                            Ok(()) if sim.now() - began > END_AT * 3 / 2 => late.set(late.get() + 1),
                            Ok(()) | Err(Error::Aborted(_) | Error::Unknown(_)) => {}
                            Err(error) => panic!("{protocol:?}: client {client}: {error}"),
                        }
                        session.lane().yield_now().await;
                    }
                }
            })
            .collect();
        let before: Vec<Vec<u32>> = workers.iter().map(|worker| worker.incarnations().collect()).collect();
        let ids = before.iter().map(|clients| clients.iter().copied().map(ClientId).collect::<Vec<_>>());
        let mut runs: Vec<_> = workers.iter_mut().zip(&bodies).map(|(worker, body)| worker.start(body)).collect();
        let id = ClientId(controller.incarnation());
        let mut watching = controller.start(over);
        let mut driven: Vec<Driven<'_>> =
            runs.iter_mut().zip(ids).map(|(run, clients)| Driven { clients, run }).collect();
        driven.push(Driven { clients: vec![id], run: &mut watching });
        assert_eq!(sim.run(&mut driven, Some(began + 8 * END_AT)), Ended::Finished);
        drop(driven);
        drop((runs, watching));
        sim.instant(true);
        assert_eq!(sim.injected().len(), 1, "{protocol:?}");
        assert!(late.iter().all(|late| late.get() > 100), "{protocol:?}: {late:?}");
        let configuration = cluster.configuration().expect("a configuration");
        let looked = configuration.look(|membership| (membership.epoch(), membership.standing(before[0][0])));
        assert_eq!(looked.expect("a configuration"), (1, Some(Standing::Forgotten)), "{protocol:?}");
        for worker in &mut workers {
            assert!(worker.drain().expect("a worker that goes on"));
        }
        sim.settle_services();
        let inspection = cluster.inspect(&accounts, |_| ()).expect("what is left");
        assert_eq!((inspection.records, inspection.torn, inspection.differing_lines), (ROWS, 0, 0), "{inspection:?}");
        let sum = workers[0].block_on(async |session| total(session, &accounts).await).expect("all rows");
        assert_eq!(sum, ROWS as i64 * MONEY, "{protocol:?}");
    }
}

/// A client loses a memory node in the middle of a commit, and after that uses none of the node's
/// records. The locks of this transaction stay until the client makes room for another incarnation.
/// It must do so by itself, because other clients wait for these locks.
#[test]
fn a_client_in_doubt_connects_again_even_if_it_is_idle() {
    for protocol in protocols() {
        let mut in_doubt = 0;
        for seed in 0..8 {
            let (cluster, sim, accounts) = cluster(protocol, SHAPE, seed);
            let mut workers = [0, 1].map(|client| {
                sim.place(client);
                cluster.worker(WorkerOptions::default().coroutines(1)).expect("a worker")
            });
            sim.place(2);
            let mut controller = cluster.controller().expect("a controller");
            let kind = FaultKind::Isolate(2 * END_AT, 0b01);
            sim.plan(Planned { probe: probes::LOCKS, nth: 1, after: 500 * seed, kind, holding: false });
            sim.instant(false);
            let began = sim.now();
            let (is_lost, committed) = (Cell::new(None), Cell::new(false));
            let bodies: Vec<_> = (0..2)
                .map(|client| {
                    let (sim, accounts, is_lost, committed) = (&sim, &accounts, &is_lost, &committed);
                    async move |_: usize, session: &mut Session| {
                        if client == 0 {
                            let moved = transfer(session, accounts, 1, 2).await;
                            is_lost.set(Some(matches!(moved, Err(Error::Unknown(_)))));
                        }
                        while is_lost.get().is_none() || !committed.get() {
                            session.lane().sleep(100_000).await;
                            if client == 1 && is_lost.get().is_some() {
                                committed.set(transfer(session, accounts, 2, 1).await.is_ok());
                            }
                            assert!(sim.now() - began < 4 * END_AT, "{protocol:?}, seed {seed}: a lock stays");
                        }
                    }
                })
                .collect();
            let ids: Vec<Vec<ClientId>> =
                workers.iter().map(|worker| worker.incarnations().map(ClientId).collect()).collect();
            let mut runs: Vec<_> = workers.iter_mut().zip(&bodies).map(|(worker, body)| worker.start(body)).collect();
            let id = ClientId(controller.incarnation());
            let mut watching = controller.start(|| committed.get());
            let mut driven: Vec<Driven<'_>> =
                runs.iter_mut().zip(ids).map(|(run, clients)| Driven { clients, run }).collect();
            driven.push(Driven { clients: vec![id], run: &mut watching });
            assert_eq!(sim.run(&mut driven, Some(began + 8 * END_AT)), Ended::Finished, "{protocol:?}, seed {seed}");
            in_doubt += u32::from(is_lost.get() == Some(true));
        }
        assert!(in_doubt > 0, "{protocol:?}: no commit was in doubt");
    }
}

/// If it were let in, the client would find nothing at that node, and take that for the truth.
#[test]
fn who_comes_to_a_node_that_has_lost_its_memory_unnoticed_is_refused() {
    let shape = Shape { comes_back: true, ..SHAPE };
    let (cluster, sim, _) = cluster(Protocol::DRTM_R, shape, 7);
    sim.fail(shape.lost);
    sim.restart(shape.lost);
    let memory = sim.region(shape.lost, node::REGION).expect("a node's memory");
    node::format(&memory, node::Place::default()).expect("room");
    let refused = cluster.worker(WorkerOptions::default()).map(|_| ()).expect_err("it has nothing");
    assert!(refused.to_string().contains("node 1"), "{refused}");
}

/// Clients draw incarnations from a counter at the leading node. If that node has failed, or has
/// lost its memory and counts from 1 again, a controller must still come, and be nobody else.
#[test]
fn a_controller_comes_without_the_leader_and_is_nobody_else() {
    for has_restarted in [false, true] {
        let (cluster, sim, _) = cluster(Protocol::DRTM_R, Shape { lost: NodeId(0), comes_back: true, ..SHAPE }, 7);
        let first = cluster.controller().expect("a controller");
        let worker = cluster.worker(WorkerOptions::default()).expect("a worker");
        let mut others: Vec<u32> = worker.incarnations().collect();
        others.push(first.incarnation());
        sim.fail(NodeId(0));
        if has_restarted {
            sim.restart(NodeId(0));
            let memory = sim.region(NodeId(0), node::REGION).expect("a node's memory");
            node::format(&memory, node::Place::default()).expect("room");
        }
        for _ in 0..4 {
            let next = cluster.controller().expect("a controller").incarnation();
            // The incarnation 1 is that of the cluster's founder.
            assert!(next > 1 && !others.contains(&next), "{next} of {others:?}, {has_restarted}");
            others.push(next);
        }
        worker.abandon();
    }
}

/// Returns the protocols that keep copies of records, or the most different ones of them if there
/// is no time for all.
fn protocols() -> impl Iterator<Item = Protocol> {
    with_copies().filter(|one| is_long() || Protocol::DISTINCT.contains(one))
}

/// Whether a test may take long and try everything, as `.ci/long` demands.
fn is_long() -> bool {
    std::env::var_os("REMORA_LONG").is_some()
}

/// Runs all faults together. Meanwhile a node of three or four fails, or is declared lost.
fn survives(load: Load) {
    let faults = ["fail", "isolate", "crash", "pause", "delay", "partition"].map(String::from);
    let seeds = std::env::var("REMORA_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2);
    for protocol in protocols() {
        let case = Case { transactions: 200, ..Case::new(0, load, protocol, &faults) };
        for seed in 0..seeds {
            // Whatever else the seed draws, a node is lost.
            let mut case = case.of(seed);
            let loss = &faults[seed as usize % 2];
            if !case.faults.contains(loss) {
                case.faults.push(loss.clone());
            }
            if let Err(what) = run(&case) {
                panic!("{what}\n{}", case.command());
            }
        }
    }
}

fn replay(seed: u64, protocol: &str, faults: &[&str]) {
    replay_of(Load::SmallBank, seed, protocol, faults);
}

fn replay_of(load: Load, seed: u64, protocol: &str, faults: &[&str]) {
    let faults: Vec<String> = faults.iter().copied().map(String::from).collect();
    let protocol = Protocol::named(protocol).expect("a preset");
    let case = Case { transactions: 300, ..Case::new(seed, load, protocol, &faults) };
    if let Err(what) = run(&case) {
        panic!("{what}\n{}", case.command());
    }
}

/// A client connected to the nodes of one epoch. Meanwhile another client had entered the next
/// epoch, and the first client was told that it belongs to that epoch.
#[test]
fn who_enters_an_epoch_has_its_nodes() {
    replay(59, "farm", &["fail", "crash", "delay"]);
}

/// A node was readmitted and had been told of the epoch to come. Then its conductor had to begin
/// that epoch anew.
#[test]
fn a_node_that_is_taken_in_may_have_been_told_so_before() {
    replay(10417, "drtm-r", &["fail", "partition"]);
}

/// A node's CPU looked at its catalog in the middle of a change.
#[test]
fn a_node_that_takes_copies_knows_it() {
    replay(10179, "drtm-r", &["fail", "partition"]);
}

/// A client was drained before it had rejoined after the last epoch.
#[test]
fn who_is_drained_may_have_to_come_back_first() {
    replay(10396, "drtm-r", &["fail", "crash"]);
}

/// A transaction of unknown outcome had its undo entry beyond the window, and the survivors took no
/// part in the transaction before it.
#[test]
fn an_undo_entry_behind_a_gap_is_found() {
    replay_of(Load::Registers, 794, "ford-global", &["fail", "crash", "delay"]);
}

/// A client was about to take a bucket for a chain, and had locked a slot of it. Then its access
/// was revoked.
#[test]
fn locks_in_a_bucket_that_was_never_taken_are_freed() {
    replay_of(Load::Registers, 15, "ford-global", &["fail", "crash", "partition"]);
}

/// A client lost its access between a skip and the entry behind it. The conductor waited until the
/// node had applied the skip, and a node applies entries only.
#[test]
fn a_conductor_waits_for_entries_only() {
    replay_of(Load::Registers, 24, "fasst", &["isolate", "pause", "delay", "partition"]);
}

/// Rule 5 of fail-over (`remora_txn::recovery::fail_over`), where a node takes its time to apply
/// its rings.
#[test]
fn a_configuration_that_is_published_too_early_loses_what_was_logged() {
    let faults = ["fail", "stall"].map(String::from);
    let case = Case { transactions: 300, ..Case::new(0, Load::SmallBank, Protocol::DRTM_R, &faults) };
    let caught = mutation_score(&[Mutant::PublishBeforeApply], &case, 0..40, 1, &|_, _| {}).remove(0);
    assert!(caught.seed.is_some(), "{caught:?}");
}

#[test]
fn money_survives() {
    survives(Load::SmallBank);
}

#[test]
fn records_survive() {
    survives(Load::Registers);
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn trees_survive() {
    survives(Load::Ranges);
}
