//! Tests of clients that share a workload, and of what dead clients have left.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use remora::Cluster;
use remora::connect::{ConnectOptions, Nodes, Place};
use remora::node::{MemoryNode, ServerOptions};
use remora_workload::guestbook::GuestBook;
use remora_workload::smallbank::{Customers, SmallBank};

/// A client is dead, and the client that should recover it has stopped. A check waits for the
/// recovery, but not for long once the program should end.
#[test]
fn a_check_does_not_wait_long_once_the_program_is_to_end() {
    let interrupt = Arc::new(AtomicBool::new(false));
    let options = Cluster::embedded().node_bytes(32 << 20);
    let cluster = options.open().unwrap().with_interrupt(interrupt.clone());
    let load = |cluster: &Cluster| SmallBank::load(cluster, Customers::standard(100));
    let go_on = |_| ControlFlow::Continue(());
    let (book, bank) = GuestBook::open(cluster.clone(), &cluster, load, go_on).unwrap();
    book.arrive(&cluster).unwrap();
    let (dead, recoverer) = (9_001, 9_002);
    let suspected = cluster.configuration().unwrap().change(|now| {
        let epoch = now.epoch();
        for client in [dead, recoverer] {
            now.join(client, epoch, u64::MAX / 2, None).unwrap();
        }
        now.suspect(dead, recoverer)
    });
    suspected.unwrap().unwrap();
    interrupt.store(true, Ordering::Relaxed);
    let began = Instant::now();
    let invariants = book.check(&cluster, &bank).unwrap();
    let waited = began.elapsed();
    assert!(invariants.iter().all(|invariant| invariant.holds.is_none()), "{invariants:?}");
    assert!(waited > Duration::from_secs(2), "recovery may take as long as a lease: {waited:?}");
    assert!(waited < Duration::from_secs(20), "{waited:?}");
}

/// A memory node comes back with nothing, and its copies are made again. A check that begins
/// meanwhile waits for them, and for the epoch in which they count.
#[test]
fn a_check_waits_for_copies_that_are_made() {
    const BYTES: u64 = 16 << 20;
    const RATE: u64 = 60_000;
    let configuration = std::env::temp_dir().join(format!("remora-guests-{}", std::process::id()));
    let listen = |address: &str| MemoryNode::listen(address, BYTES, ServerOptions::default()).unwrap();
    let nodes = [listen("127.0.0.1:0"), listen("127.0.0.1:0")];
    let names = nodes.each_ref().map(|node| node.address().unwrap().to_string());
    let options = ConnectOptions::default()
        .configuration(Some(Place::File(configuration.clone())))
        .patience(Duration::from_millis(300))
        .nodes(Nodes::Tcp(names.to_vec()));
    let cluster = options.open().unwrap();
    let load = |cluster: &Cluster| SmallBank::load(cluster, Customers::standard(100));
    let (book, bank) = GuestBook::open(cluster.clone(), &cluster, load, |_| ControlFlow::Continue(())).unwrap();
    let controls = options.clone().controls(true).open().unwrap().with_lease(Some(Duration::from_millis(300)));
    let (over, (tell, told)) = (AtomicBool::new(false), mpsc::channel());
    let lost = || cluster.configuration().unwrap().look(|now| (now.lost().count(), now.is_changing())).unwrap();
    let is_joining =
        || cluster.in_one_epoch(|| cluster.refresh()).is_ok() && cluster.catalog().joining().next().is_some();
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut controller = controls.controller().unwrap().with_copy_rate(Some(RATE));
            tell.send(()).unwrap();
            controller.run(|| over.load(Ordering::Relaxed));
        });
        told.recv().unwrap();
        let [_first, second] = nodes;
        drop(second);
        until("the node is lost", &|| lost() == (1, false));
        let _back = listen(&names[1]);
        until("copies are made", &is_joining);
        let invariants = book.check(&cluster, &bank);
        let is_copied = !is_joining();
        over.store(true, Ordering::Relaxed);
        let invariants = invariants.unwrap();
        assert!(invariants.iter().all(|invariant| invariant.holds == Some(true)), "{invariants:?}");
        assert!(is_copied, "it has waited");
    });
    std::fs::remove_file(configuration).unwrap();
}
