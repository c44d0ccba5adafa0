//! Transactions whose clients keep their leases in a real etcd. The etcd stops for a while, or
//! controllers use it when a memory node dies.

#[path = "../../membership/tests/etcd_support/server.rs"]
mod server;
#[path = "../../membership/tests/etcd_support/wire.rs"]
mod wire;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora::admin::{Configuration, NodeId, Standing};
use remora::connect::{EtcdOptions, Place};
use remora::floors::fabric::NodeSet;
use remora::floors::fabric::tcp::{Loopback, TcpOptions};
use remora::{Abort, Cluster, Error, Reason, Session, Table, TableOptions, TransactionOptions, Worker, WorkerOptions};
use server::Server;
use wire::Wire;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "account")]
#[repr(transparent)]
struct Account(i64);

const ROWS: u64 = 16;
const MONEY: i64 = 1_000;
const NODES: u16 = 3;

/// Makes three memory nodes with their own servers, and a table with money at each of them.
fn cluster() -> (Arc<Loopback>, Cluster, Table<u64, Account>) {
    let options = Cluster::embedded().nodes(NODES).replicas(2).node_bytes(8 << 20);
    let patient = TcpOptions { patience: Duration::from_secs(5), ..TcpOptions::default() };
    let servers = Arc::new(Loopback::new(&vec![vec![options.node_bytes]; NODES.into()], patient).unwrap());
    let cluster = options.open_on(servers.clone()).unwrap();
    let accounts = cluster.create_table("accounts", TableOptions::for_rows(2 * ROWS)).unwrap();
    cluster.load(&accounts, (0..ROWS).map(|key| (key, Account(MONEY)))).unwrap();
    (servers, cluster, accounts)
}

/// Returns the cluster as another process would have it, as far as etcd can tell.
fn as_another_process(cluster: &Cluster, server: &Server, lease: Duration) -> Cluster {
    over_etcd(cluster, server.address(), lease)
}

fn over_etcd(cluster: &Cluster, etcd: String, lease: Duration) -> Cluster {
    let etcd = Place::Etcd(EtcdOptions::of(vec![etcd])).open(cluster.id()).unwrap();
    cluster.with_configuration(etcd).unwrap().with_lease(Some(lease))
}

fn worker(cluster: &Cluster) -> Worker {
    cluster.worker(WorkerOptions::default().coroutines(2)).unwrap()
}

async fn transfer(session: &mut Session, accounts: &Table<u64, Account>) -> Result<(), Error> {
    let (from, to) = (session.lane().random() % ROWS, session.lane().random() % ROWS);
    let moved = session.transact(async |tx| {
        let from = tx.want(accounts, from);
        tx.fetch().await?;
        from.get_mut(tx)?.0 -= 1;
        accounts.get_mut(tx, to).await?.0 += 1;
        Ok(())
    });
    moved.await
}

/// Adds up, once.
async fn total(session: &mut Session, accounts: &Table<u64, Account>) -> Result<i64, Error> {
    let once = TransactionOptions::default().attempts(1);
    let sum = session.transact_with(once, async |tx| {
        let all: Vec<_> = (0..ROWS).map(|key| tx.want(accounts, key)).collect();
        tx.fetch().await?;
        all.into_iter().map(|row| Ok(row.require(tx)?.0)).sum()
    });
    sum.await
}

/// The record of one transaction.
struct Ran {
    began: Instant,
    took: Duration,
    outcome: What,
}

#[derive(PartialEq, Eq)]
enum What {
    Wrote,
    Read,
    Conflict,
    Late,
}

/// Writes and reads in turn, until `over` is set.
fn run(cluster: &Cluster, accounts: &Table<u64, Account>, over: &AtomicBool) -> Vec<Ran> {
    let mut worker = worker(cluster);
    let ran = worker.run(async |_, session: &mut Session| {
        let mut ran = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let began = Instant::now();
            transfer(session, accounts).await.expect("what it writes, all of its nodes have");
            ran.push(Ran { began, took: began.elapsed(), outcome: What::Wrote });
            let began = Instant::now();
            let outcome = match total(session, accounts).await {
                Ok(sum) => {
                    assert_eq!(sum, MONEY * ROWS as i64);
                    What::Read
                }
                Err(Error::Aborted(Reason { cause: Abort::Late, .. })) => What::Late,
                Err(Error::Aborted(_)) => What::Conflict,
                Err(error) => panic!("{error}"),
            };
            ran.push(Ran { began, took: began.elapsed(), outcome });
            session.lane().sleep(1_000_000).await;
        }
        ran
    });
    ran.into_iter().flatten().collect()
}

/// Two clients of different processes run while etcd is stopped. As long as their leases hold,
/// neither notices. Then their reads may be stale, and their transactions fail. When etcd is back,
/// they go on, and no client was taken for dead.
#[test]
fn transactions_go_on_without_etcd_as_long_as_leases_hold() {
    const LEASE: Duration = Duration::from_secs(3);
    // The last renewal that was answered is at most a third of a lease old, and a busy machine is
    // slow.
    const HOLDS: Duration = Duration::from_millis(1_000);
    const AWAY: Duration = Duration::from_secs(7);
    // Less time than any client waits for an answer of etcd.
    const STALL: Duration = Duration::from_millis(1_000);
    let server = Server::start();
    let (_servers, cluster, accounts) = cluster();
    let clusters = [(); 2].map(|()| as_another_process(&cluster, &server, LEASE));
    let over = AtomicBool::new(false);
    let (stopped, back, ran) = thread::scope(|scope| {
        let clients: Vec<_> = clusters.iter().map(|cluster| scope.spawn(|| run(cluster, &accounts, &over))).collect();
        thread::sleep(LEASE / 2);
        server.signal("-STOP");
        let stopped = Instant::now();
        thread::sleep(AWAY);
        server.signal("-CONT");
        let back = Instant::now();
        thread::sleep(3 * LEASE);
        over.store(true, Ordering::Relaxed);
        let ran: Vec<Vec<Ran>> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        (stopped, back, ran)
    });
    for ran in &ran {
        let slowest = ran.iter().max_by_key(|one| one.took).unwrap();
        assert!(slowest.took < STALL, "one took {:?}, {:?} after etcd stopped", slowest.took, slowest.began - stopped);
        let between = |from: Instant, to: Instant, what: What| {
            ran.iter().filter(|one| one.began >= from && one.began + one.took < to && one.outcome == what).count()
        };
        let out = stopped + LEASE;
        assert!(
            between(stopped, stopped + HOLDS, What::Read) > 0 && between(stopped, stopped + HOLDS, What::Late) == 0
        );
        assert!(between(out, back, What::Late) > 0 && between(out, back, What::Read) == 0);
        assert!(between(out, back, What::Wrote) > 0, "what is written needs no lease: its nodes know their clients");
        assert!(between(back + LEASE, back + 3 * LEASE, What::Read) > 0);
    }
    let standings = |configuration: &Arc<dyn Configuration>| {
        configuration.refresh().unwrap();
        configuration.look(|all| all.clients().map(|(_, standing)| standing).collect::<Vec<_>>()).unwrap()
    };
    assert!(standings(clusters[0].configuration().unwrap()).iter().all(|standing| *standing == Standing::Alive));
}

/// A client is partitioned from etcd, and reaches all memory nodes. The other clients find that one
/// of these is lost, and wait as long as they have to. When they may go on without the node, the
/// client does not accept reads from the node any more.
#[test]
fn who_is_cut_off_reads_nothing_of_the_epoch_that_has_ended() {
    const LEASE: Duration = Duration::from_secs(2);
    let server = Server::start();
    let (_servers, cluster, accounts) = cluster();
    let wire = Wire::to(server.address());
    let client = over_etcd(&cluster, wire.address(), LEASE);
    let others = as_another_process(&cluster, &server, LEASE);
    let others = others.configuration().unwrap();
    let controller = 1_000;
    let came = others.change(|all| all.join_controller(Ok(controller), LEASE.as_nanos() as u64, others.process()));
    came.unwrap();
    let finished = AtomicBool::new(false);
    let (may_go_on, ran) = thread::scope(|scope| {
        let ran = scope.spawn(|| run(&client, &accounts, &finished));
        thread::sleep(LEASE);
        wire.cut();
        let node = NodeSet::default().with(NodeId(0));
        others.change(|all| all.lose(node, controller)).unwrap().unwrap();
        let conducting = others.look(|all| all.conducting(controller)).unwrap().unwrap();
        assert!(u128::from(conducting.wait) >= LEASE.as_nanos(), "nobody has heard of the client");
        thread::sleep(Duration::from_nanos(conducting.wait));
        let may_go_on = Instant::now();
        thread::sleep(LEASE);
        finished.store(true, Ordering::Relaxed);
        // The client tells etcd that it ends, but etcd is unreachable for it.
        (may_go_on, ran.join().unwrap())
    });
    let read = |ran: &&Ran| ran.outcome == What::Read;
    assert!(ran.iter().filter(read).count() > 0);
    assert!(ran.iter().filter(read).all(|one| one.began + one.took < may_go_on), "it read what may be no longer so");
    assert!(ran.iter().any(|one| one.outcome == What::Late && one.began > may_go_on));
}

/// An epoch does not wait for the lease of a client that rests, or has never run. So such a client
/// holds no lease, whatever it renewed before.
#[test]
fn who_begins_to_run_without_etcd_reads_nothing() {
    let server = Server::start();
    let (_servers, cluster, accounts) = cluster();
    let wire = Wire::to(server.address());
    let client = over_etcd(&cluster, wire.address(), Duration::from_secs(1_000));
    let (mut rested, mut new) = (worker(&client), worker(&client));
    let read = |worker: &mut Worker| worker.block_on(async |session: &mut Session| total(session, &accounts).await);
    assert_eq!(read(&mut rested).unwrap(), MONEY * ROWS as i64);
    wire.cut();
    for worker in [&mut rested, &mut new] {
        assert!(matches!(read(worker), Err(Error::Aborted(Reason { cause: Abort::Late, .. }))));
    }
    wire.mend();
    let began = Instant::now();
    while read(&mut rested).is_err() || read(&mut new).is_err() {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}

/// There are two controllers of different processes. One is partitioned from etcd when the memory
/// node dies, and the other one conducts. The first one decides nothing meanwhile, and goes on as
/// another incarnation when it hears that it was taken for dead.
#[test]
fn a_memory_node_dies_and_controllers_agree_by_etcd() {
    const LEASE: Duration = Duration::from_secs(1);
    const WITHIN: Duration = Duration::from_secs(60);
    let server = Server::start();
    let (servers, cluster, accounts) = cluster();
    let (own, wire) = (as_another_process(&cluster, &server, LEASE), Wire::to(server.address()));
    let made = [const { AtomicU32::new(0) }; 2];
    let configuration = own.configuration().unwrap().clone();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (address, made) in [wire.address(), server.address()].into_iter().zip(&made) {
            let (cluster, over) = (over_etcd(&cluster, address, LEASE), &over);
            scope.spawn(move || {
                let mut controller = cluster.controller().unwrap();
                made.store(controller.incarnation(), Ordering::Relaxed);
                controller.run(|| over.load(Ordering::Relaxed));
            });
        }
        let began = Instant::now();
        let until = |what: &str, is_so: &dyn Fn() -> bool| {
            while !is_so() {
                assert!(began.elapsed() < WITHIN, "{what}");
                thread::sleep(Duration::from_millis(10));
            }
        };
        until("two controllers", &|| made.iter().all(|made| made.load(Ordering::Relaxed) > 0));
        let first = made[0].load(Ordering::Relaxed);
        wire.cut();
        let lost = NodeId(NODES - 1);
        let (mut worker, stopped) = (worker(&own), Cell::new(false));
        let sums = worker.run(async |number, session: &mut Session| {
            let mut after = 0;
            while after < 20 {
                let epoch = configuration.look(|all| all.epoch()).unwrap();
                match transfer(session, &accounts).await {
                    Ok(()) => after += u64::from(epoch > 1),
                    // The log tells the outcome of a transaction that was under way later.
                    Err(Error::Unknown(_)) => {}
                    Err(error) => panic!("coroutine {number}, epoch {epoch}: {error}"),
                }
                if number == 0 && !stopped.replace(true) {
                    servers.stop(lost);
                }
                assert!(began.elapsed() < WITHIN, "the next epoch does not begin");
            }
            // The sum is taken while the other client does not transfer.
            loop {
                match total(session, &accounts).await {
                    Err(Error::Aborted(_)) => session.lane().sleep(100_000).await,
                    sum => return sum.unwrap(),
                }
            }
        });
        drop(worker);
        until("that it is taken for dead", &|| {
            configuration.look(|all| all.standing(first)).unwrap() != Some(Standing::Alive)
        });
        let controllers = || configuration.look(|all| all.controllers().collect::<Vec<_>>()).unwrap();
        let second = made[1].load(Ordering::Relaxed);
        assert_eq!(controllers(), [second], "the first has not heard of it");
        wire.mend();
        until("the first controller again, as another", &|| matches!(controllers()[..], [.., last] if last > second));
        over.store(true, Ordering::Relaxed);
        assert_eq!(sums, [MONEY * ROWS as i64; 2]);
        let agreed = configuration.look(|all| (all.epoch() > 1, all.lost().has(lost), all.lost().count())).unwrap();
        // There is more than one copy if copies have been made again.
        assert_eq!(agreed, (true, true, 1));
    });
    let left = configuration.refresh().and_then(|()| configuration.look(|all| all.has_controller()));
    assert!(!left.unwrap(), "who leaves says so, and who was taken for dead is none");
}
