//! Observers that get an event before a transaction commits: what the event says, and that no
//! client sees anything of the transaction yet.

mod support;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::protocol::Protocol;
use remora::{TableOptions, TransactionId};

use support::{Words, look, on_every_fabric, quiet, table, worker};

/// The versions that were read, and the versions that will be, or were, installed.
type Versions = Vec<(Option<u64>, Option<u64>)>;

/// The events of an observer: the transaction, its outcome (none if it was about to commit), and
/// its records.
type Told = Vec<(TransactionId, Option<Outcome>, Versions)>;

#[derive(Clone, Default)]
struct Hears {
    told: Rc<RefCell<Told>>,
    wants_committing: bool,
    dies: bool,
}

fn versions(event: &TransactionEvent<'_>) -> Versions {
    let bits = |access: remora::observe::Access<'_>| {
        (access.read.map(|read| read.to_bits()), access.written.map(|(_, installed)| installed.to_bits()))
    };
    event.accesses().map(bits).collect()
}

impl Observer for Hears {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        self.told.borrow_mut().push((event.id, Some(event.outcome), versions(event)));
    }

    fn wants_committing(&self) -> bool {
        self.wants_committing
    }

    fn committing(&mut self, event: &TransactionEvent<'_>) {
        assert!(!self.dies, "killed");
        assert_eq!(event.outcome, Outcome::Unknown);
        self.told.borrow_mut().push((event.id, None, versions(event)));
    }
}

/// Returns the protocols that run on every backend.
fn possible() -> impl Iterator<Item = Protocol> {
    let atomic_writes = on_every_fabric(Protocol::default(), 1).iter().all(|one| one.capabilities().atomic_writes);
    Protocol::ALL.into_iter().filter(move |protocol| atomic_writes || !protocol.needs_atomic_writes())
}

#[test]
fn who_wants_to_is_told_once_before_a_commit_that_writes() {
    for (protocol, wants_committing) in possible().flat_map(|one| [(one, true), (one, false)]) {
        for cluster in on_every_fabric(protocol, 3) {
            let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
            let mut worker = worker(&cluster, 1, 1);
            let hears = Hears { wants_committing, ..Hears::default() };
            worker.block_on(async |session| {
                session.observe(Some(Box::new(hears.clone())));
                session.transact(async |tx| Ok(rows.get(tx, 1).await?.map(drop))).await.unwrap();
                let read_and_write = session.transact(async |tx| {
                    rows.get(tx, 1).await?;
                    rows.update(tx, 2, Words([7])).await
                });
                read_and_write.await.unwrap();
                let given_up = session.transact(async |tx| {
                    rows.update(tx, 3, Words([7])).await?;
                    Err::<(), _>(remora::Error::User("no".into()))
                });
                given_up.await.unwrap_err();
            });
            let told = hears.told.take();
            let kinds: Vec<_> = told.iter().map(|(_, outcome, _)| *outcome).collect();
            let [committed, given_up] = [Some(Outcome::Committed), Some(Outcome::UserAbort)];
            if !wants_committing {
                assert_eq!(kinds, [committed, committed, given_up]);
                continue;
            }
            assert_eq!(kinds, [committed, None, committed, given_up], "{protocol:?}");
            let (before, after) = (&told[1], &told[2]);
            assert_eq!((before.0, &before.2), (after.0, &after.2));
            let [(read, None), (Some(replaced), Some(installed))] = before.2[..] else { panic!("{before:?}") };
            assert!(read.is_some() && installed > replaced);
        }
    }
}

/// A client that dies while its observer is told of a commit has not committed, and no client sees
/// anything of it.
#[test]
fn nothing_can_be_seen_while_it_is_told() {
    for protocol in possible() {
        for cluster in on_every_fabric(protocol, 3) {
            let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
            let mut worker = worker(&cluster, 1, 1);
            let died = catch_unwind(AssertUnwindSafe(|| {
                worker.block_on(async |session| {
                    let dies = Hears { wants_committing: true, dies: true, ..Hears::default() };
                    session.observe(Some(Box::new(dies)));
                    session.transact(async |tx| rows.update(tx, 2, Words([7])).await).await
                })
            }));
            assert!(died.is_err());
            quiet(&mut worker);
            let (values, found) = look(&cluster, &rows);
            assert_eq!(values, [Words([0]); 4], "{protocol:?}");
            assert_eq!((found.locked, found.differing_lines), (0, 0));
        }
    }
}
