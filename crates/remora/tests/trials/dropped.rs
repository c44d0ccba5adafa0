//! Futures that are dropped inside a transaction, which then goes on.
//!
//! A program may drop any future that it awaits, for example because it takes the first of two that
//! is ready, or sets a time limit. Then it is unknown what the dropped round did. The transaction
//! goes on, commits, aborts or is dropped itself. Each of these must have the same effect as
//! without a drop: no lost update, no lock, no prepared slot, equal replicas.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use remora::admin::Inspection;
use remora::floors::txn::mutant::{self, Mutant};
use remora::protocol::Protocol;
use remora::{
    Cluster, Error, Intent, Large, LargeOptions, Limit, Ordered, OrderedOptions, Session, Stored, Table, TableOptions,
    Transaction, TransactionOptions, Verdict,
};

use super::support::{self, Words, cut_off, is_long, look, on_every_fabric, rest, table};

most_protocols!(
    updates_are_not_lost,
    an_answer_that_comes_late_is_no_lock,
    every_await_of_every_operation,
    a_merge_that_was_dropped_leaves_no_empty_leaf,
    a_session_whose_cleaning_was_dropped,
    a_commit_or_an_abort_that_was_dropped,
    a_question_for_a_verdict_that_was_dropped,
    a_chain_whose_growth_was_dropped,
    a_large_value_whose_upload_was_dropped,
    a_large_value_whose_write_was_dropped,
    a_large_value_whose_discard_was_dropped
);

fn assert_clean(what: &str, found: &Inspection) {
    let wrong = (found.locked, found.torn, found.differing_lines, found.prepared);
    assert_eq!(wrong, (0, 0, 0, 0), "{what}: locked, torn, differing, prepared");
}

/// Coroutines that meet at few records, and give up each fetch after some polls; then they fetch
/// again.
fn lost_updates(cluster: &Cluster) -> (u64, u64, Inspection) {
    const KEYS: u64 = 3;
    let rows = table(cluster, "rows", TableOptions::for_rows(KEYS), Words([0u64]));
    let mut worker = support::worker(cluster, 4, 1);
    let committed = worker.run(async |client, session| {
        let mut committed = 0;
        for turn in 0..40u64 {
            let options = TransactionOptions::default().attempts(50);
            let done = session.transact_with(options, async |tx| {
                let slot = tx.want_for(&rows, (turn + client as u64) % KEYS, Intent::Update);
                let polls = tx.lane().random() as usize % 6;
                let _ = cut_off(tx.fetch(), polls).await;
                tx.fetch().await?;
                slot.get_mut(tx)?.0[0] += 1;
                Ok(())
            });
            match done.await {
                Ok(()) => committed += 1,
                Err(Error::Aborted(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        committed
    });
    drop(worker);
    let (rows, found) = look(cluster, &rows);
    (committed.iter().sum(), rows.iter().map(|row| row.0[0]).sum(), found)
}

fn updates_are_not_lost(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 3) {
        let (committed, sum, found) = lost_updates(&cluster);
        assert_eq!(committed, sum, "updates that committed, and what is there");
        assert!(committed > 40, "only {committed} of 160 updates have committed");
        assert_clean("rows", &found);
    }
}

/// With the error put back that this code once had, updates are lost or locks stay.
#[test]
fn updates_are_lost_if_a_lock_that_was_not_heard_of_is_believed() {
    let cluster = support::seeded(Protocol::FORD, 3, 7).0;
    mutant::set(Some(Mutant::BelieveUnheard));
    let (committed, sum, found) = lost_updates(&cluster);
    mutant::set(None);
    assert!(committed != sum || found.locked > 0, "{committed} committed, {sum} are there, {found:?}");
}

/// A client is told that a record is locked, by an answer that it does not wait for. The holder
/// commits meanwhile; then the client fetches again.
fn an_answer_that_comes_late_is_no_lock(protocol: Protocol) {
    const MS: u64 = 1_000_000;
    for cluster in on_every_fabric(protocol, 3) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(3), Words([0u64]));
        let mut worker = support::worker(&cluster, 3, 1);
        worker
            .run(async |_, session| session.transact(async |tx| rows.get(tx, 1).await).await.map(drop))
            .remove(0)
            .unwrap();
        let outcomes = worker.run(async |client, session| {
            session.lane().sleep([0, 2, 30][client] * MS).await;
            let mut begun = session.begin()?;
            let mut tx = begun.transaction();
            let slot = tx.want_for(&rows, 1, Intent::Update);
            if client == 1 {
                let _ = cut_off(tx.fetch(), 1).await;
                tx.lane().sleep(20 * MS).await;
            }
            tx.fetch().await?;
            slot.get_mut(&mut tx)?.0[0] += 1;
            tx.lane().sleep([10, 20, 30][client] * MS).await;
            begun.commit().await
        });
        drop(worker);
        let committed = outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
        let (found_rows, found) = look(&cluster, &rows);
        assert_eq!(found_rows[1].0[0], committed, "{outcomes:?}");
        assert_clean("rows", &found);
    }
}

/// What is done in a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Update,
    ReadThenWrite,
    Insert,
    Delete,
    /// Inserts into an ordered table: more than one of its leaves can hold.
    Split,
    /// Removes from it: all that a leaf has.
    Merge,
    /// Inserts into an ordered table whose values are out of line.
    InsertApart,
    RemoveApart,
    Scan,
    PutLarge,
    RemoveLarge,
}

impl Act {
    const ALL: [Act; 11] = [
        Act::Update,
        Act::ReadThenWrite,
        Act::Insert,
        Act::Delete,
        Act::Split,
        Act::Merge,
        Act::InsertApart,
        Act::RemoveApart,
        Act::Scan,
        Act::PutLarge,
        Act::RemoveLarge,
    ];

    fn removes(self) -> bool {
        matches!(self, Act::Delete | Act::Merge | Act::RemoveApart | Act::RemoveLarge)
    }

    /// Whether its keys are there before.
    fn finds(self) -> bool {
        self.removes() || matches!(self, Act::Update | Act::ReadThenWrite | Act::Scan)
    }
}

/// How a transaction ends in which an operation was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    /// The operation is done again, and committed.
    Again,
    Commit,
    Abort,
    Drop,
}

struct World {
    rows: Table<u64, Words<1>>,
    /// Eight entries fill a leaf.
    ordered: Ordered<u64, Words<14>>,
    apart: Ordered<u64, Words<200>>,
    large: Large<u64>,
    uploaded: RefCell<Vec<Stored>>,
}

/// Keys that an operation takes: so few that a transaction of the whole table fits a round.
const KEYS: [u64; 5] = [256, 257, 258, 259, 260];

impl World {
    fn new(cluster: &Cluster) -> World {
        let rows = cluster.create_table("rows", TableOptions::for_rows(200)).unwrap();
        cluster.load(&rows, (0..8).map(|key| (key, Words([0])))).unwrap();
        let apart = (5..200).step_by(10).map(|key| (key, Words::all(0)));
        World {
            rows,
            ordered: World::ordered(cluster, "ordered"),
            apart: cluster.load_ordered("apart", OrderedOptions::for_rows(200), apart).unwrap(),
            large: cluster.create_large("large", LargeOptions::for_values(8, 1 << 16)).unwrap(),
            uploaded: RefCell::default(),
        }
    }

    /// A table in which the keys of an operation have a leaf of their own.
    fn ordered(cluster: &Cluster, name: &str) -> Ordered<u64, Words<14>> {
        let rows = (5..200).step_by(10).chain(KEYS).map(|key| (key, Words::all(0)));
        cluster.load_ordered(name, OrderedOptions::for_rows(200).apart(7), rows).unwrap()
    }

    async fn act(&self, tx: &mut Transaction<'_, '_>, act: Act, number: u64, stored: &[Stored]) -> Result<(), Error> {
        match act {
            Act::Update | Act::ReadThenWrite => {
                let intent = if act == Act::Update { Intent::Update } else { Intent::Read };
                let slots: Vec<_> = KEYS.iter().map(|key| tx.want_for(&self.rows, *key, intent)).collect();
                tx.fetch().await?;
                slots.into_iter().try_for_each(|slot| slot.get_mut(tx).map(|row| row.0[0] = number))
            }
            Act::Insert => {
                let slots: Vec<_> = KEYS.iter().map(|key| tx.want_for(&self.rows, *key, Intent::Insert)).collect();
                tx.fetch().await?;
                slots.into_iter().try_for_each(|slot| match slot.get(tx)? {
                    Some(_) => slot.get_mut(tx).map(|row| row.0[0] = number),
                    None => slot.insert(tx, Words([number])),
                })
            }
            Act::Delete => {
                for key in KEYS {
                    let slot = tx.want_for(&self.rows, key, Intent::Delete);
                    tx.fetch().await?;
                    if slot.get(tx)?.is_some() {
                        slot.remove(tx)?;
                    }
                }
                Ok(())
            }
            Act::Split => {
                for key in KEYS {
                    self.ordered.put(tx, key, Words::all(number)).await?;
                }
                Ok(())
            }
            Act::Merge => {
                for key in KEYS {
                    self.ordered.remove(tx, key).await?;
                }
                Ok(())
            }
            Act::InsertApart => {
                for key in KEYS {
                    self.apart.put(tx, key, Words::all(number)).await?;
                }
                Ok(())
            }
            Act::RemoveApart => {
                for key in KEYS {
                    self.apart.remove(tx, key).await?;
                }
                Ok(())
            }
            Act::Scan => {
                let mut found = self.ordered.scan(tx, KEYS[0]..=KEYS[4], 10).await?;
                found.extend(self.ordered.scan_back(tx, KEYS[0]..=KEYS[4], 10).await?);
                assert_eq!(found.len(), 2 * KEYS.len());
                for (key, _) in found {
                    self.ordered.update(tx, key, Words::all(number)).await?;
                }
                Ok(())
            }
            Act::PutLarge => {
                for (key, stored) in KEYS.iter().zip(stored) {
                    self.large.put(tx, *key, stored).await?;
                }
                Ok(())
            }
            Act::RemoveLarge => {
                for key in KEYS {
                    self.large.remove(tx, key).await?;
                }
                Ok(())
            }
        }
    }

    /// What an operation's keys have.
    async fn see(&self, session: &mut Session, act: Act) -> Vec<Option<u64>> {
        let seen = session.transact(async |tx| {
            let mut seen = Vec::new();
            for key in KEYS {
                seen.push(match act {
                    Act::Update | Act::ReadThenWrite | Act::Insert | Act::Delete => {
                        self.rows.get(tx, key).await?.map(|row| row.0[0])
                    }
                    Act::Split | Act::Merge | Act::Scan => self.ordered.get(tx, key).await?.map(|row| row.0[0]),
                    Act::InsertApart | Act::RemoveApart => {
                        let found: Vec<_> = self.apart.scan(tx, key..=key, 1).await?;
                        found.first().map(|(_, row)| row.0[0])
                    }
                    Act::PutLarge | Act::RemoveLarge => {
                        self.large.get(tx, key).await?.map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()))
                    }
                });
            }
            Ok(seen)
        });
        seen.await.unwrap()
    }

    /// Has an operation's keys there, or not.
    async fn prepare(&self, session: &mut Session, act: Act, number: u64) {
        let opposite = match act {
            Act::Update | Act::ReadThenWrite | Act::Delete => Act::Insert,
            Act::Insert => Act::Delete,
            Act::Split => Act::Merge,
            Act::Merge | Act::Scan => Act::Split,
            Act::InsertApart => Act::RemoveApart,
            Act::RemoveApart => Act::InsertApart,
            Act::PutLarge => Act::RemoveLarge,
            Act::RemoveLarge => Act::PutLarge,
        };
        // The part of an operation that was done before it was dropped may have been committed.
        let seen = self.see(session, act).await;
        if seen.iter().any(|key| key.is_some() != act.finds()) {
            let stored = self.upload(session, opposite, number).await;
            session.transact(async |tx| self.act(tx, opposite, number, &stored).await).await.unwrap();
        }
    }

    async fn upload(&self, session: &mut Session, act: Act, number: u64) -> Vec<Stored> {
        let mut stored = Vec::new();
        for _ in 0..if act == Act::PutLarge { KEYS.len() } else { 0 } {
            stored.push(self.large.upload(session, &number.to_ne_bytes()).await.unwrap());
        }
        self.uploaded.borrow_mut().extend(&stored);
        stored
    }

    /// Discards what was uploaded and no key has.
    async fn discard(&self, session: &mut Session) {
        let linked = session.transact(async |tx| {
            let mut linked = Vec::new();
            for key in KEYS {
                linked.extend(self.large.find(tx, key).await?);
            }
            Ok(linked)
        });
        let linked = linked.await.unwrap();
        let (kept, gone): (Vec<_>, Vec<_>) = self.uploaded.take().into_iter().partition(|one| linked.contains(one));
        self.uploaded.replace(kept);
        for stored in gone {
            self.large.discard(session, &stored).await.unwrap();
        }
    }

    fn inspect(&self, cluster: &Cluster) {
        let (_, rows) = look(cluster, &self.rows);
        assert_clean("rows", &rows);
        for (name, (tables, tree)) in [
            ("ordered", cluster.inspect_ordered(&self.ordered, |_, _| ()).unwrap()),
            ("apart", cluster.inspect_ordered(&self.apart, |_, _| ()).unwrap()),
        ] {
            tables.iter().for_each(|table| assert_clean(name, table));
            assert_eq!(tree.fault, None, "{name}");
        }
        cluster.inspect_large(&self.large).unwrap().iter().for_each(|table| assert_clean("large", table));
    }
}

/// After how many polls an operation is dropped next. A poll is a step on the seeded fabric; on the
/// others there are thousands while a call is served. `.ci/long` leaves fewer of them out.
fn next(fabric: usize, polls: usize) -> usize {
    const SEEDED: usize = 1;
    let part = match (fabric == SEEDED, support::is_long()) {
        (true, true) => 32,
        (true, false) => 3,
        (false, true) => 4,
        (false, false) => 1,
    };
    polls + 1 + polls / part
}

/// Each operation is dropped at each of its polls, and the transaction ends in each way. The gate
/// has one way for each operation, another one on each fabric.
fn every_await_of_every_operation(protocol: Protocol) {
    for (fabric, cluster) in on_every_fabric(protocol, 2).into_iter().enumerate() {
        let world = World::new(&cluster);
        let number = Cell::new(0);
        let mut worker = support::worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            for (place, act) in Act::ALL.into_iter().enumerate() {
                let endings = [Ending::Again, Ending::Commit, Ending::Abort, Ending::Drop];
                let ways = if is_long() { endings.len() } else { 1 };
                for ending in endings.into_iter().cycle().skip(place + fabric).take(ways) {
                    let mut polls = 0;
                    while !drop_at(&world, session, act, ending, polls, &number).await {
                        polls = next(fabric, polls);
                    }
                }
            }
            // What was prepared and not heard of is taken back before the next transaction.
            session.transact(async |_| Ok(())).await.unwrap();
            rest(session).await;
        });
        drop(worker);
        world.inspect(&cluster);
    }
}

fn a_merge_that_was_dropped_leaves_no_empty_leaf(protocol: Protocol) {
    let cluster = support::embedded(protocol, 2);
    let mut world = World::new(&cluster);
    let leaves = |world: &World| {
        let (_, tree) = cluster.inspect_ordered(&world.ordered, |_, _| ()).unwrap();
        assert_eq!((tree.empty_leaves, tree.fault), (0, None));
        tree.leaves
    };
    let mut worker = support::worker(&cluster, 1, 1);
    let mut polls = 0;
    loop {
        world.ordered = World::ordered(&cluster, &format!("ordered {polls}"));
        let before = leaves(&world);
        let done = worker
            .block_on(async |session| drop_at(&world, session, Act::Merge, Ending::Commit, polls, &Cell::new(0)).await);
        assert!(worker.drain().unwrap());
        let after = leaves(&world);
        if done {
            assert_eq!(after, before - 1, "a leaf is merged");
            break;
        }
        polls = next(0, polls);
    }
}

/// Brings the rows to where an operation can be done, and uploads the large value that it needs.
/// Returns the operation's number, that value, and what the rows are before it. Nothing of the
/// session is under way then: a begun transaction is tried once, and would meet its own locks.
async fn set_up(
    world: &World,
    session: &mut Session,
    act: Act,
    number: &Cell<u64>,
) -> (u64, Vec<Stored>, Vec<Option<u64>>) {
    let next = || number.replace(number.get() + 1) + 1;
    world.prepare(session, act, next()).await;
    let number = next();
    let stored = world.upload(session, act, number).await;
    rest(session).await;
    let before = world.see(session, act).await;
    rest(session).await;
    (number, stored, before)
}

/// Drops an operation after `polls` polls. Returns whether it was done by then.
async fn drop_at(
    world: &World,
    session: &mut Session,
    act: Act,
    ending: Ending,
    polls: usize,
    number: &Cell<u64>,
) -> bool {
    let what = format!("{act:?} dropped after {polls} polls, then {ending:?}");
    let (number, stored, before) = set_up(world, session, act, number).await;
    let mut begun = session.begin().unwrap();
    let mut tx = begun.transaction();
    let done = cut_off(world.act(&mut tx, act, number, &stored), polls).await;
    if let Some(done) = &done {
        done.as_ref().unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    let outcome = match ending {
        Ending::Again if done.is_none() => {
            let again = world.act(&mut tx, act, number, &stored).await;
            again.unwrap_or_else(|error| panic!("{what}: {error}"));
            begun.commit().await
        }
        Ending::Again | Ending::Commit => begun.commit().await,
        Ending::Abort => {
            begun.abort().await;
            Ok(())
        }
        Ending::Drop => {
            drop(begun);
            Ok(())
        }
    };
    outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
    rest(session).await;
    let after = world.see(session, act).await;
    let wanted = vec![if act.removes() { None } else { Some(number) }; KEYS.len()];
    let is_right = match ending {
        Ending::Abort | Ending::Drop => after == before,
        Ending::Commit if done.is_none() => {
            // The part that was done.
            after.iter().zip(&before).zip(&wanted).all(|((after, before), wanted)| after == before || after == wanted)
        }
        Ending::Again | Ending::Commit => after == wanted,
    };
    assert!(is_right, "{what}: {before:?} became {after:?}");
    world.discard(session).await;
    done.is_some()
}

/// A transaction is dropped while slots are being prepared for it, and then what takes them back is
/// dropped, too.
fn a_session_whose_cleaning_was_dropped(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 2) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(200), Words([0u64]));
        let mut worker = support::worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            for polls in 0..6 {
                let insert = session.transact(async |tx| {
                    let slots: Vec<_> = (0..60).map(|key| tx.want_for(&rows, 300 + key, Intent::Insert)).collect();
                    tx.fetch().await?;
                    slots.into_iter().try_for_each(|slot| slot.insert(tx, Words([1])))?;
                    Err::<(), _>(Error::User("no".into()))
                });
                let _ = cut_off(insert, 2).await;
                let _ = cut_off(session.transact(async |_| Ok(())), polls).await;
            }
            session.transact(async |_| Ok(())).await.unwrap();
            rest(session).await;
        });
        drop(worker);
        assert_clean("rows", &look(&cluster, &rows).1);
    }
}

/// Clusters in shared memory and under the seeded scheduler, with their numbers for [`next`].
fn on_two_fabrics(protocol: Protocol) -> impl Iterator<Item = (usize, Cluster)> {
    on_every_fabric(protocol, 2).into_iter().take(2).enumerate()
}

/// The future that ends a transaction is dropped at each of its polls. Then either all of the
/// transaction has happened or nothing has, the session says which, and goes on.
fn a_commit_or_an_abort_that_was_dropped(protocol: Protocol) {
    let (mut committed, mut aborted) = (0, 0);
    for (fabric, cluster) in on_two_fabrics(protocol) {
        let world = World::new(&cluster);
        let number = Cell::new(0);
        let mut worker = support::worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            for act in [Act::Update, Act::Insert, Act::Delete, Act::Split, Act::PutLarge] {
                for ending in [Ending::Commit, Ending::Abort] {
                    let mut polls = 0;
                    while let Some(has_happened) = end_at(&world, session, act, ending, polls, &number).await {
                        *(if has_happened { &mut committed } else { &mut aborted }) += 1;
                        polls = next(fabric, polls);
                    }
                }
            }
            session.transact(async |_| Ok(())).await.unwrap();
            rest(session).await;
        });
        drop(worker);
        world.inspect(&cluster);
    }
    assert!(committed > 0 && aborted > 0, "{committed} had happened, {aborted} had not");
}

/// Drops the commit or the abort of a transaction after `polls` polls. Returns whether the
/// transaction has happened all the same; `None` if it had ended by then.
async fn end_at(
    world: &World,
    session: &mut Session,
    act: Act,
    ending: Ending,
    polls: usize,
    number: &Cell<u64>,
) -> Option<bool> {
    let what = format!("{act:?}, whose {ending:?} was dropped after {polls} polls");
    let (number, stored, before) = set_up(world, session, act, number).await;
    let mut begun = session.begin().unwrap();
    let mut tx = begun.transaction();
    let id = tx.id();
    world.act(&mut tx, act, number, &stored).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let ended = match ending {
        Ending::Commit => cut_off(begun.commit(), polls).await,
        _ => cut_off(begun.abort(), polls).await.map(Ok),
    };
    rest(session).await;
    let verdict = session.resolve(id, Duration::from_secs(10)).await.unwrap();
    let after = world.see(session, act).await;
    let wanted = vec![if act.removes() { None } else { Some(number) }; KEYS.len()];
    let has_happened = after == wanted;
    assert!(has_happened || after == before, "{what}: {before:?} became {after:?}");
    match &ended {
        Some(ended) => {
            ended.as_ref().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(has_happened, ending == Ending::Commit, "{what}");
        }
        None => assert_eq!(verdict, if has_happened { Verdict::Committed } else { Verdict::Aborted }, "{what}"),
    }
    assert!(ending == Ending::Commit || !has_happened, "{what}: it was given up");
    world.discard(session).await;
    ended.is_none().then_some(has_happened)
}

/// [`Session::resolve`] is dropped at each of its polls, and then asked again.
fn a_question_for_a_verdict_that_was_dropped(protocol: Protocol) {
    for (fabric, cluster) in on_two_fabrics(protocol) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0u64]));
        let mut worker = support::worker(&cluster, 2, 1);
        let asked = Cell::new(false);
        worker.run(async |client, session| {
            let update = async |tx: &mut Transaction<'_, '_>| {
                let slot = tx.want_for(&rows, client as u64, Intent::Update);
                tx.fetch().await?;
                slot.get_mut(tx)?.0[0] += 1;
                Ok::<_, Error>(tx.id())
            };
            if client == 1 {
                // The other client's verdict is asked for while this client lives.
                while !asked.get() {
                    session.lane().sleep(1_000).await;
                }
                return;
            }
            let committed = session.transact(update).await.unwrap();
            // A begun transaction is tried once, and would meet this one's locks.
            rest(session).await;
            let mut begun = session.begin().unwrap();
            let given_up = update(&mut begun.transaction()).await.unwrap();
            drop(begun);
            rest(session).await;
            for (id, wanted) in [(committed, Verdict::Committed), (given_up, Verdict::Aborted)] {
                let mut polls = 0;
                loop {
                    let verdict = cut_off(session.resolve(id, Duration::from_secs(10)), polls).await;
                    let row = session.transact(async |tx| rows.get(tx, 0).await).await.unwrap();
                    assert_eq!(row, Some(Words([1])), "after {polls} polls");
                    if let Some(verdict) = verdict {
                        assert_eq!(verdict.unwrap(), wanted, "after {polls} polls");
                        break;
                    }
                    polls = next(fabric, polls);
                }
            }
            asked.set(true);
            session.transact(update).await.unwrap();
        });
        drop(worker);
        let (found, inspection) = look(&cluster, &rows);
        assert_eq!(found.iter().map(|row| row.0[0]).sum::<u64>(), 2);
        assert_clean("rows", &inspection);
    }
}

/// Inserts some keys in one transaction.
async fn insert(session: &mut Session, rows: &Table<u64, Words<1>>, keys: Range<u64>) -> Result<(), Error> {
    let inserted = session.transact(async |tx| {
        let slots: Vec<_> = keys.clone().map(|key| tx.want_for(rows, key, Intent::Insert)).collect();
        tx.fetch().await?;
        slots.into_iter().zip(keys.clone()).try_for_each(|(slot, key)| slot.insert(tx, Words([key])))
    });
    inserted.await
}

/// Inserts the keys from `first` on until the table is full, in transactions of ten keys, and then
/// one by one. Returns the first key for which there was no room.
async fn fill(session: &mut Session, rows: &Table<u64, Words<1>>, first: u64) -> u64 {
    let mut from = first;
    for count in [10, 1] {
        loop {
            match insert(session, rows, from..from + count).await {
                Ok(()) => from += count,
                Err(error) if matches!(error.limit(), Some(Limit::TableFull { .. })) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    from
}

/// Under FORD, an insert for which a chain of FStore grows by a bucket is dropped at each of its
/// polls, and the transaction ends in each way. No bucket of the reserved space is lost.
fn a_chain_whose_growth_was_dropped(protocol: Protocol) {
    if !matches!(protocol, Protocol::Ford(_)) {
        return;
    }
    for dense in [false, true] {
        grow_chain_at_each_poll(protocol, dense);
    }
}

fn grow_chain_at_each_poll(protocol: Protocol, dense: bool) {
    let room = grow_at(&support::embedded(protocol, 2), dense, None, 0).0;
    let makes: [fn(Protocol) -> Cluster; 2] =
        [|protocol| support::embedded(protocol, 2), |protocol| support::seeded(protocol, 2, 7).0];
    for (fabric, make) in makes.into_iter().enumerate() {
        for ending in [Ending::Again, Ending::Commit, Ending::Abort, Ending::Drop] {
            let mut polls = 0;
            loop {
                let (found, is_done) = grow_at(&make(protocol), dense, Some(ending), polls);
                assert_eq!(found, room, "{polls} polls, then {ending:?}, dense: {dense}");
                if is_done {
                    break;
                }
                polls = next(fabric, polls);
            }
        }
    }
}

/// Fills the main bucket of a table that has one, and drops an insert of three more keys after
/// `polls` polls. Returns how many rows the table has in the end, and whether the insert was done
/// by then. Without an ending, nothing is dropped.
fn grow_at(cluster: &Cluster, dense: bool, ending: Option<Ending>, polls: usize) -> (u64, bool) {
    let options = TableOptions::for_rows(4).shards(1).grows(false).dense(dense);
    let rows: Table<u64, Words<1>> = cluster.create_table("rows", options).unwrap();
    let geometry = *rows.untyped().fstore().unwrap();
    assert_eq!(geometry.buckets.main, 1);
    let mut worker = support::worker(cluster, 1, 1);
    let (room, is_done) = worker.block_on(async |session| {
        insert(session, &rows, 0..geometry.slots).await.unwrap();
        rest(session).await;
        let keys = geometry.slots..geometry.slots + 3;
        let Some(ending) = ending else { return (fill(session, &rows, keys.start).await, true) };
        let mut begun = session.begin().unwrap();
        let mut tx = begun.transaction();
        let slots: Vec<_> = keys.clone().map(|key| tx.want_for(&rows, key, Intent::Insert)).collect();
        let is_done = cut_off(tx.fetch(), polls).await.map(Result::unwrap).is_some();
        if ending == Ending::Again {
            tx.fetch().await.unwrap();
        }
        let is_fetched = is_done || ending == Ending::Again;
        if is_fetched {
            slots.into_iter().zip(keys.clone()).for_each(|(slot, key)| slot.insert(&mut tx, Words([key])).unwrap());
        }
        match ending {
            Ending::Again | Ending::Commit => begun.commit().await.unwrap(),
            Ending::Abort => begun.abort().await,
            Ending::Drop => drop(begun),
        }
        rest(session).await;
        let has_inserted = is_fetched && matches!(ending, Ending::Again | Ending::Commit);
        let room = fill(session, &rows, if has_inserted { keys.end } else { keys.start }).await;
        rest(session).await;
        (room, is_done)
    });
    drop(worker);
    let (found, inspection) = look(cluster, &rows);
    assert_clean("rows", &inspection);
    assert_eq!(found.len() as u64, room);
    (room, is_done)
}

/// Chunks of a large value, and of a shorter one: one transaction inserts at most four.
const CHUNK: usize = 7704;
const LONG: usize = 5 * CHUNK;
const SHORT: usize = CHUNK / 2;

/// Does something with the only key of a table of large values by a client of its own, which drops
/// that after more and more polls and then goes on. When the client has gone, another client
/// collects what no key has. Each `what` gets the bytes that the key has and may get, and returns
/// whether it was done.
fn a_large_value(
    protocol: Protocol,
    what: impl AsyncFn(&mut Session, &Large<u64>, &[u8], usize) -> bool,
    finds: impl Fn(u64, bool) -> bool,
) {
    for (fabric, cluster) in on_two_fabrics(protocol) {
        let large = cluster.create_large::<u64>("large", LargeOptions::for_values(1, 16 * CHUNK as u64)).unwrap();
        let mut others = support::worker(&cluster, 1, 2);
        let mut polls = 0;
        let mut had = vec![0; SHORT];
        let mut founder = support::worker(&cluster, 1, 3);
        founder.block_on(async |session| large.write(session, 1, &had).await.unwrap());
        // What it has uploaded can be collected when it has gone.
        drop(founder);
        for number in 1.. {
            // Every second value is long.
            let bytes = vec![number as u8; if number % 2 == 1 { LONG } else { SHORT }];
            let mut client = support::worker(&cluster, 1, 1);
            let done = client.block_on(async |session| {
                let done = what(session, &large, &bytes, polls).await;
                // The session goes on.
                let found = large.read(session, 1).await.unwrap().unwrap();
                assert!(found == had || found == bytes, "{polls} polls: {} bytes", found.len());
                rest(session).await;
                done
            });
            drop(client);
            let (collected, found) = others.block_on(async |session| {
                let collected = large.collect(session).await.unwrap();
                (collected, large.read(session, 1).await.unwrap().unwrap())
            });
            assert!(others.drain().unwrap());
            assert!(found == had || found == bytes, "{polls} polls: {} bytes", found.len());
            assert!(finds(collected, done), "{polls} polls: {collected} values were collected");
            let tables = cluster.inspect_large(&large).unwrap();
            tables.iter().for_each(|table| assert_clean(&format!("{polls} polls"), table));
            let records = tables.map(|table| table.records);
            assert_eq!(
                records,
                [1, found.len().div_ceil(CHUNK) as u64],
                "{polls} polls: keys and chunks; done {done}, {collected} collected, {} bytes were to replace {}, {} are there",
                bytes.len(),
                had.len(),
                found.len()
            );
            had = found;
            if done && bytes.len() == LONG {
                break;
            }
            polls = next(fabric, polls);
        }
    }
}

/// A long value is being uploaded when the future is dropped. What was uploaded is linked by none.
fn a_large_value_whose_upload_was_dropped(protocol: Protocol) {
    let upload = async |session: &mut Session, large: &Large<u64>, bytes: &[u8], polls: usize| {
        cut_off(large.upload(session, bytes), polls).await.map(Result::unwrap).is_some()
    };
    // At most this upload's chunks, and all of them if it was done.
    a_large_value(protocol, upload, |collected, done| if done { collected == 1 } else { collected <= 1 });
}

/// The key has the new value or the old one. The other value is collected, if its chunks are still
/// there.
fn a_large_value_whose_write_was_dropped(protocol: Protocol) {
    let write = async |session: &mut Session, large: &Large<u64>, bytes: &[u8], polls: usize| {
        cut_off(large.write(session, 1, bytes), polls).await.map(Result::unwrap).is_some()
    };
    a_large_value(protocol, write, |collected, done| collected <= u64::from(!done));
}

/// A value that no key has is being discarded when the future is dropped. It can be discarded again
/// then.
fn a_large_value_whose_discard_was_dropped(protocol: Protocol) {
    let discard = async |session: &mut Session, large: &Large<u64>, bytes: &[u8], polls: usize| {
        let stored = large.upload(session, bytes).await.unwrap();
        rest(session).await;
        let done = cut_off(large.discard(session, &stored), polls).await.map(Result::unwrap).is_some();
        large.discard(session, &stored).await.unwrap();
        done
    };
    a_large_value(protocol, discard, |collected, _| collected == 0);
}
