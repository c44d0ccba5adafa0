//! Tests of clients that share a workload, and of what dead clients have left.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remora::Cluster;
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
