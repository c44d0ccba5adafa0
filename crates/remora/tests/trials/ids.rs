//! A client incarnation runs out of transaction ids, and its transactions go on.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::protocol::Protocol;
use remora::{Cluster, Error, Limit, TableOptions};

use super::support::{self, Words, look, table};

every_protocol!(a_client_goes_on_as_another_one);

const KEYS: u64 = 16;

/// The incarnations whose ids were used, and the outcomes of attempts that neither committed nor
/// aborted.
#[derive(Default)]
struct Told {
    owners: BTreeSet<u32>,
    strange: Vec<Outcome>,
}

struct Listener(Rc<RefCell<Told>>);

impl Observer for Listener {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        let Told { owners, strange } = &mut *self.0.borrow_mut();
        owners.insert(event.id.owner());
        if !matches!(event.outcome, Outcome::Committed | Outcome::Aborted(_)) {
            strange.push(event.outcome);
        }
    }
}

fn a_client_goes_on_as_another_one(protocol: Protocol) {
    goes_on(&support::embedded(protocol, 3));
}

/// The memory has room for a few incarnations. The client has to recover its former ones, or there
/// is none for the next one.
#[test]
fn a_client_makes_room_for_itself() {
    for protocol in [Protocol::FORD, Protocol::DRTM_R, Protocol::NO_WAIT] {
        goes_on(&support::options(protocol, 3).node_bytes(1 << 20).open().unwrap());
    }
}

fn goes_on(cluster: &Cluster) {
    const IDS: u64 = 100;
    const LEASE_MS: u64 = 200;
    const TURNS: u64 = 400;
    let cluster = cluster.with_lease(Some(Duration::from_millis(LEASE_MS))).with_transaction_ids(IDS);
    let rows = table(&cluster, "rows", TableOptions::for_rows(KEYS), Words([0u64]));
    let mut worker = support::worker(&cluster, 4, 1);
    let told = Rc::new(RefCell::new(Told::default()));
    worker.sessions().iter_mut().for_each(|session| _ = session.observe(Some(Box::new(Listener(told.clone())))));
    let outcomes = worker.run(async |client, session| {
        for turn in 0..TURNS {
            let first = (turn + client as u64) % (KEYS - 1);
            session.transact(async |tx| support::add(tx, &rows, first..first + 2, 1).await).await?;
        }
        Ok::<_, Error>(())
    });
    outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    drop(worker);
    let Told { owners, strange } = &*told.borrow();
    assert!(owners.len() as u64 >= 4 * TURNS / IDS, "incarnations: {owners:?}");
    assert!(strange.is_empty(), "{strange:?}");
    // A former incarnation may still be installing its last commits. It has been given up, and the
    // worker does not wait for it.
    let ended = Instant::now();
    let (found, at_rest) = loop {
        let (found, seen) = look(&cluster, &rows);
        if (seen.locked, seen.torn, seen.differing_lines) == (0, 0, 0) || ended.elapsed() > Duration::from_secs(10) {
            break (found, seen);
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(found.iter().map(|row| row.0[0]).sum::<u64>(), 4 * TURNS);
    assert_eq!((at_rest.locked, at_rest.torn, at_rest.differing_lines), (0, 0, 0));
}

/// A client that has no lease does not become another incarnation: its transactions fail with the
/// limit.
#[test]
fn without_a_lease_the_end_is_told() {
    let cluster = support::embedded(Protocol::default(), 1).with_lease(None).with_transaction_ids(10);
    let rows = table(&cluster, "rows", TableOptions::for_rows(1), Words([0u64]));
    let mut worker = support::worker(&cluster, 1, 1);
    let ended = worker.block_on(async |session| {
        for _ in 0..20 {
            session.transact(async |tx| rows.get(tx, 0).await).await?;
        }
        Ok::<_, Error>(())
    });
    assert!(matches!(ended, Err(Error::Limit(ref reason)) if reason.cause == Limit::TransactionIds), "{ended:?}");
}
