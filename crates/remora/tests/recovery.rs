//! Recovery: clients die at every step of a transaction, and so do their recoverers. Other clients
//! wait only on the records concerned, no answer is contradicted, and nothing of the dead clients
//! is left. Every test was seen to fail without the rule that it is about.

#[macro_use]
mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use remora::admin::{Reclaimed, Standing};
use remora::floors::fabric::seeded::Seeded;
use remora::floors::fabric::{ClientId, Fabric, Lane, NodeId, block_on};
use remora::floors::node::{connected, node};
use remora::observe::{Observer, Rollback, TransactionEvent};
use remora::protocol::Protocol;
use remora::{Cluster, Error, Intent, Session, Table, TableOptions, TransactionId, Verdict, Worker, WorkerOptions};

use support::{Words, cut_off, embedded, look, options, seeds, table, worker};

every_protocol! {
    clients_that_die_are_found_by_their_leases,
}

most_protocols! {
    a_client_dies_at_every_step,
    a_recoverer_dies_at_every_step,
    an_inserter_dies_at_every_step,
}

type Rows = Table<u64, Words<1>>;
const ROWS: u64 = 40;
const MONEY: u64 = 100;

fn cluster(protocol: Protocol, replicas: u8, seed: u64) -> (Cluster, Seeded, Rows) {
    let options = options(protocol, replicas).node_bytes(16 << 20);
    let (cluster, fabric) = options.open_seeded(seed).unwrap();
    let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([MONEY]));
    (cluster, fabric, rows)
}

/// Moves one from a row to another; `last` is the id of the last attempt.
async fn transfer(
    session: &mut Session,
    rows: &Rows,
    (from, to): (u64, u64),
    last: &Cell<Option<TransactionId>>,
) -> Result<(), Error> {
    let transfer = session.transact(async |tx| {
        last.set(Some(tx.id()));
        let [from, to] = [from, to].map(|key| tx.want_for(rows, key, Intent::Update));
        tx.fetch().await?;
        from.get_mut(tx)?.0[0] -= 1;
        to.get_mut(tx)?.0[0] += 1;
        Ok(())
    });
    transfer.await
}

async fn read(session: &mut Session, rows: &Rows, key: u64) -> Option<u64> {
    session.transact(async |tx| Ok(rows.get(tx, key).await?.map(|row| row.0[0]))).await.unwrap()
}

fn standing(cluster: &Cluster, client: u32) -> Option<Standing> {
    cluster.configuration().unwrap().change(|membership| membership.standing(client)).unwrap()
}

/// Asserts that nothing is locked, torn or different at a backup, and that no money was lost.
fn assert_whole(cluster: &Cluster, fabric: &Seeded, rows: &Rows, what: &str) {
    fabric.settle_services();
    let (values, found) = look(cluster, rows);
    assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0), "{what}: {found:?}");
    assert_eq!(values.iter().map(|row| row.0[0]).sum::<u64>(), ROWS * MONEY, "{what}: money");
}

/// A client that is taken for dead while it registers takes nothing from then on. Its slot and its
/// rings may soon belong to another client.
#[test]
fn who_is_revoked_while_it_registers_goes_no_further() {
    let (mut ends, mut registers) = (0, 0);
    for steps in (0..3_000).step_by(50) {
        let (cluster, fabric, _) = cluster(Protocol::DRTM_R, 3, steps);
        let before = worker(&cluster, 1, steps).incarnations().next().unwrap();
        fabric.revoke_after(ClientId(before + 1), steps);
        if cluster.worker(WorkerOptions::default()).is_ok() {
            registers += 1;
            continue;
        }
        ends += 1;
        let registered = |node| {
            let slots = block_on(&fabric, ClientId(0), async |lane: &Lane| connected(lane, NodeId(node)).await);
            slots.unwrap().unwrap().iter().any(|slot| slot.incarnation == before + 1)
        };
        assert!(!(0..3).all(registered), "{steps}");
    }
    assert!(ends > 0 && registers > 0, "{ends}, {registers}");
}

/// A victim that loses its access after `step` steps, in the middle of a transfer between two
/// shards. Returns the client, the id of its last transaction, and the result.
fn victim(
    cluster: &Cluster,
    fabric: &Seeded,
    rows: &Rows,
    keys: (u64, u64),
    step: u64,
) -> (u32, TransactionId, Result<(), Error>) {
    let mut worker = worker(cluster, 1, step);
    let client = worker.incarnations().next().unwrap();
    let last = Cell::new(None);
    worker.block_on(async |session| {
        // The client's rings have an older entry, which was installed long ago, and whose records
        // other clients have changed since.
        transfer(session, rows, (keys.0, 5), &last).await.unwrap();
        support::rest(session).await;
    });
    support::worker(cluster, 1, step).block_on(async |session| {
        transfer(session, rows, (5, keys.0), &last).await.unwrap();
    });
    fabric.revoke_after(ClientId(client), step);
    let result = worker.block_on(async |session| transfer(session, rows, keys, &last).await);
    worker.abandon();
    (client, last.get().unwrap(), result)
}

/// Scheduler's steps of a transaction: calls are one, and verbs many.
fn steps_of_death(protocol: Protocol) -> impl Iterator<Item = u64> + Clone {
    let by_calls = protocol == Protocol::FASST || matches!(protocol, Protocol::Dst(_));
    (0..120).map(move |step| if by_calls { step / 4 } else { step })
}

fn verdict(worker: &mut Worker, id: TransactionId) -> Verdict {
    worker.block_on(async |session| session.resolve(id, Duration::from_micros(10)).await.unwrap())
}

/// Asserts that the verdict agrees with what was reported.
fn assert_answer(protocol: Protocol, result: &Result<(), Error>, verdict: Verdict, what: &str) {
    match result {
        // No log says that there was an attempt.
        Err(Error::Fenced) if protocol == Protocol::RTX && verdict == Verdict::Forgotten => {}
        Ok(()) => assert_eq!(verdict, Verdict::Committed, "{what}: it was reported"),
        Err(Error::Unknown(_)) => assert!(matches!(verdict, Verdict::Committed | Verdict::Aborted), "{what}"),
        Err(Error::Fenced) => assert_eq!(verdict, Verdict::Aborted, "{what}: it was told so"),
        Err(error) => panic!("{what}: {error}"),
    }
}

fn a_client_dies_at_every_step(protocol: Protocol) {
    let (mut committed, mut back, mut forward) = (0, 0, 0);
    for seed in seeds(0..1) {
        // Where every replica is written by the client, few steps lie between the last of them and
        // the answer. Its release is over then only by chance, and sooner where there is one copy.
        let (often, one_copy) = match protocol {
            Protocol::Ford(_) => (1, 1),
            // There is one copy in any case.
            Protocol::Rtx(_) => (1, 60),
            // Two round trips: few steps lie between the log and its answer.
            _ if protocol.spec().locks_reads => (1, 4),
            // With draws, few of the steps that are tried lie there.
            _ if protocol.has_clocks() => (2, 6),
            _ => (4, 12),
        };
        for (replicas, every) in [(3, often), (1, one_copy)] {
            let (cluster, fabric, rows) = cluster(protocol, replicas, seed);
            let mut survivor = worker(&cluster, 1, seed);
            let mut money = [MONEY; ROWS as usize];
            for step in steps_of_death(protocol).step_by(every) {
                let what = format!("{protocol:?}, seed {seed}, {replicas} replicas, step {step}");
                let keys = (10 + step % 10, 20 + step % 20);
                let (dead, id, result) = victim(&cluster, &fabric, &rows, keys, step);
                survivor.recover(dead).unwrap();
                let verdict = verdict(&mut survivor, id);
                assert_answer(protocol, &result, verdict, &what);
                if verdict == Verdict::Committed {
                    money[keys.0 as usize] -= 1;
                    money[keys.1 as usize] += 1;
                }
                // Of FORD's and rTX's, many are reported, and die before their release: rolled
                // forward all the same.
                let releases_later = matches!(protocol, Protocol::Ford(_) | Protocol::Rtx(_));
                let is_forward = verdict == Verdict::Committed && (result.is_err() || releases_later);
                committed += u32::from(result.is_ok());
                forward += u32::from(is_forward);
                back += u32::from(verdict != Verdict::Committed);
                for key in [keys.0, keys.1] {
                    let found = survivor.block_on(async |session| read(session, &rows, key).await);
                    assert_eq!(found, Some(money[key as usize]), "{what}: {result:?}, {verdict:?}");
                }
                assert_whole(&cluster, &fabric, &rows, &what);
                survivor.recover(dead).unwrap();
            }
        }
    }
    assert!(committed > 0 && back > 0 && forward > 0, "{committed} reported, {back} back, {forward} forward");
}

/// Each recoverer dies one step later than the one before it, until one finishes.
fn a_recoverer_dies_at_every_step(protocol: Protocol) {
    let mut deaths = 0;
    for seed in seeds(0..1) {
        for step in [30, 55, 80] {
            let what = format!("{protocol:?}, seed {seed}, step {step}");
            let (cluster, fabric, rows) = cluster(protocol, 3, seed);
            let (dead, id, result) = victim(&cluster, &fabric, &rows, (3, 4), step);
            let mut first = None;
            let mut last_dead = dead;
            for steps in (0..).map(|turn| turn * 150) {
                let mut recoverer = worker(&cluster, 1, seed);
                let own = recoverer.incarnations().next().unwrap();
                if steps < 2_500 {
                    fabric.revoke_after(ClientId(own), steps);
                }
                // As the death of the earlier one is found: it, and all that it was to recover.
                let outcome = recoverer.recover(last_dead);
                if let Some(Standing::Recovered { .. } | Standing::Forgotten) = standing(&cluster, dead) {
                    let mut other = worker(&cluster, 1, seed);
                    let now = verdict(&mut other, id);
                    assert_answer(protocol, &result, now, &what);
                    assert_eq!(*first.get_or_insert(now), now, "{what}: a decision was changed");
                }
                if outcome.is_ok() {
                    fabric.revoke(ClientId(own)).unwrap();
                    recoverer.abandon();
                    break;
                }
                deaths += 1;
                recoverer.abandon();
                last_dead = own;
            }
            assert_whole(&cluster, &fabric, &rows, &what);
        }
    }
    assert!(deaths > 20, "{deaths}");
}

fn an_inserter_dies_at_every_step(protocol: Protocol) {
    let (mut there, mut gone) = (0, 0);
    for seed in seeds(0..1) {
        let options = options(protocol, 3).node_bytes(16 << 20);
        let (cluster, fabric) = options.open_seeded(seed).unwrap();
        let rows: Rows = cluster.create_table("rows", TableOptions::for_rows(400)).unwrap();
        cluster.load(&rows, (0..200).map(|key| (key, Words([key])))).unwrap();
        let mut survivor = worker(&cluster, 1, seed);
        // A bucket is many lines.
        let stretch = if matches!(protocol, Protocol::Ford(_)) { 8 } else { 1 };
        for step in steps_of_death(protocol).step_by(4).map(|step| step * stretch) {
            let what = format!("{protocol:?}, seed {seed}, step {step}");
            let (old, new) = (step / stretch, 1000 + step);
            let mut worker = worker(&cluster, 1, step);
            let dead = worker.incarnations().next().unwrap();
            fabric.revoke_after(ClientId(dead), step);
            let last = Cell::new(None);
            let result = worker.block_on(async |session| {
                let moved = session.transact(async |tx| {
                    last.set(Some(tx.id()));
                    let from = tx.want_for(&rows, old, Intent::Delete);
                    let to = tx.want_for(&rows, new, Intent::Insert);
                    tx.fetch().await?;
                    let row = *from.require(tx)?;
                    from.remove(tx)?;
                    to.insert(tx, row)
                });
                moved.await
            });
            worker.abandon();
            survivor.recover(dead).unwrap();
            let verdict = verdict(&mut survivor, last.get().unwrap());
            assert_answer(protocol, &result, verdict, &what);
            let committed = verdict == Verdict::Committed;
            let found =
                survivor.block_on(async |session| [read(session, &rows, old).await, read(session, &rows, new).await]);
            assert_eq!(found, if committed { [None, Some(old)] } else { [Some(old), None] }, "{what}");
            if committed {
                there += 1
            } else {
                gone += 1
            }
            fabric.settle_services();
            let (values, inspection) = look(&cluster, &rows);
            assert_eq!((inspection.locked, inspection.torn), (0, 0), "{what}: {inspection:?}");
            assert_eq!(inspection.differing_lines, 0, "{what}: {inspection:?}");
            assert_eq!(values.len(), 200, "{what}");
        }
    }
    assert!(there > 2 && gone > 2, "{there} {gone}");
}

/// On shared memory, with leases, clients find dead clients by their leases alone.
fn clients_that_die_are_found_by_their_leases(protocol: Protocol) {
    const LEASE: Duration = Duration::from_millis(300);
    let cluster = embedded(protocol, 3).with_lease(Some(LEASE));
    let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([MONEY]));
    for polls in [2, 4, 5, 6] {
        let mut victim = worker(&cluster, 1, 1);
        let dead = victim.incarnations().next().unwrap();
        let last = Cell::new(None);
        // The client stands still in the middle of its transaction, without end.
        let body = async |_: usize, session: &mut Session| {
            let stuck = async {
                let mut transfer = std::pin::pin!(transfer(session, &rows, (1, 2), &last));
                cut_off(&mut transfer, polls).await;
                std::future::pending::<()>().await;
            };
            stuck.await;
        };
        let mut run = victim.start(&body);
        for _ in 0..100 {
            remora::floors::fabric::Turn::turn(&mut run);
        }
        let mut survivor = worker(&cluster, 1, 2);
        survivor.block_on(async |session| {
            while !matches!(standing(&cluster, dead), Some(Standing::Forgotten)) {
                session.lane().sleep(1_000_000).await;
            }
            transfer(session, &rows, (1, 2), &last).await.unwrap();
        });
        drop(run);
        drop(victim);
        assert!(survivor.drain().unwrap());
        let (values, found) = look(&cluster, &rows);
        assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0), "{polls} polls");
        assert_eq!(values.iter().map(|row| row.0[0]).sum::<u64>(), ROWS * MONEY);
    }
}

/// A client that stood still goes on. It learns that it was taken for dead, nothing that it sends
/// takes effect, and it can connect again.
#[test]
fn a_client_that_was_only_slow_is_told_so_and_connects_again() {
    let (cluster, fabric, rows) = cluster(Protocol::DRTM_R, 3, 3);
    let mut slow = worker(&cluster, 1, 1);
    let old = slow.incarnations().next().unwrap();
    let last = Cell::new(None);
    let (before, after) = slow.block_on(async |session| {
        let unsure = {
            let mut stuck = std::pin::pin!(transfer(session, &rows, (1, 2), &last));
            // It holds its locks, and stands still.
            let mut polls = 0;
            while look(&cluster, &rows).1.holder.is_none_or(|holder| holder.owner() != old) {
                assert!(cut_off(&mut stuck, 1).await.is_none());
                polls += 1;
                assert!(polls < 10_000);
            }
            worker(&cluster, 1, 2).recover(old).unwrap();
            let whole = look(&cluster, &rows);
            assert_eq!(whole.1.locked, 0);
            let outcome = stuck.await;
            // Nothing of what it went on with has landed.
            fabric.settle_services();
            assert_eq!(look(&cluster, &rows), whole);
            outcome
        };
        (unsure, transfer(session, &rows, (1, 2), &last).await)
    });
    assert!(matches!(before, Err(Error::Fenced | Error::Unknown(_))), "{before:?}");
    assert!(matches!(after, Err(Error::Fenced)), "{after:?}");
    assert!(after.unwrap_err().to_string().contains("connect again"));
    drop(slow);
    let mut again = worker(&cluster, 1, 1);
    assert_ne!(again.incarnations().next(), Some(old));
    again.block_on(async |session| transfer(session, &rows, (1, 2), &last).await).unwrap();
    assert!(again.drain().unwrap());
    assert_whole(&cluster, &fabric, &rows, "connected again");
}

/// A key and its version.
type Seen = (Vec<u8>, u64);

/// What a session reads.
struct Versions(Rc<RefCell<Vec<Seen>>>);

impl Observer for Versions {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        let reads = event.accesses().filter_map(|access| Some((access.key.to_vec(), access.read?.to_bits())));
        self.0.borrow_mut().extend(reads);
    }
}

/// No transaction has written the version that a rollback installs. The recorder of a history must
/// know what it is.
#[test]
fn what_is_put_back_is_told() {
    let mut put_back = 0;
    for seed in seeds(0..1) {
        let (cluster, fabric, rows) = cluster(Protocol::FORD, 3, seed);
        let told = Arc::new(Mutex::new(BTreeMap::new()));
        let notes = told.clone();
        let cluster = cluster.with_rollbacks_told(Arc::new(move |rollback: &Rollback<'_>| {
            assert_eq!(rollback.table, "rows");
            let versions = (rollback.installed.to_bits(), rollback.restored.to_bits());
            notes.lock().unwrap().insert((rollback.key.to_vec(), versions.0), versions.1);
        }));
        let mut survivor = worker(&cluster, 1, seed);
        let seen = Rc::new(RefCell::new(Vec::new()));
        survivor.sessions()[0].observe(Some(Box::new(Versions(seen.clone()))));
        let mut versions = BTreeMap::new();
        for step in steps_of_death(Protocol::FORD) {
            let keys = (10 + step % 10, 20 + step % 20);
            let (dead, ..) = victim(&cluster, &fabric, &rows, keys, step);
            survivor.recover(dead).unwrap();
            for key in [keys.0, keys.1] {
                survivor.block_on(async |session| read(session, &rows, key).await);
            }
            for (key, version) in seen.borrow_mut().drain(..) {
                let before = versions.insert(key.clone(), version).unwrap_or(2);
                if version % 2 == 1 && version != before {
                    // The first one was changed twice before: see `victim`.
                    let before = if key == keys.0.to_be_bytes() { (before & !1) + 4 } else { before };
                    assert_eq!(told.lock().unwrap().get(&(key, version)), Some(&before), "seed {seed}, step {step}");
                    put_back += 1;
                }
            }
        }
    }
    assert!(put_back > 2, "{put_back}");
}

/// Locks without a log stay as long as their client is only suspected. After that, the first client
/// that meets them frees them.
#[test]
fn locks_without_a_log_are_freed_by_who_meets_them_once_all_is_decided() {
    for protocol in [Protocol::DRTM_R, Protocol::FARM] {
        let (cluster, fabric, rows) = cluster(protocol, 3, 5);
        let mut victim = worker(&cluster, 1, 1);
        let dead = victim.incarnations().next().unwrap();
        let last = Cell::new(None);
        victim.block_on(async |session| {
            let mut stuck = std::pin::pin!(transfer(session, &rows, (1, 2), &last));
            while look(&cluster, &rows).1.locked < 2 {
                assert!(cut_off(&mut stuck, 1).await.is_none());
            }
            fabric.revoke(ClientId(dead)).unwrap();
        });
        victim.abandon();
        let mut survivor = worker(&cluster, 1, 2);
        let own = survivor.incarnations().next().unwrap();
        let configuration = cluster.configuration().unwrap().clone();
        configuration.change(|membership| membership.suspect(dead, own)).unwrap().unwrap();
        survivor.block_on(async |session| {
            let met = transfer(session, &rows, (1, 3), &last).await;
            assert!(matches!(met, Err(Error::Aborted(_))), "suspected is not decided: {met:?}");
            transfer(session, &rows, (3, 4), &last).await.expect("others wait only on the records concerned");
        });
        let decided = remora::floors::fabric::block_on(&fabric, ClientId(own), async |lane| {
            remora::floors::txn::recovery::repair(&fabric, lane, cluster.live_nodes(), &[dead], &|_| ()).await
        });
        for (client, verdicts) in decided.unwrap().unwrap() {
            configuration.change(|membership| membership.recovered(client, own, verdicts.clone())).unwrap().unwrap();
        }
        assert_eq!(look(&cluster, &rows).1.locked, 2, "nobody has met them");
        survivor.block_on(async |session| transfer(session, &rows, (1, 3), &last).await).unwrap();
        support::quiet(&mut survivor);
        assert_eq!(look(&cluster, &rows).1.locked, 1, "the other one is still there");
        survivor.recover(dead).unwrap();
        assert!(survivor.drain().unwrap());
        assert_whole(&cluster, &fabric, &rows, "swept");
    }
}

/// A client asks for the outcomes of its own transactions, and of transactions of other clients.
#[test]
fn answers_that_were_lost_are_found() {
    for protocol in [Protocol::DRTM_R, Protocol::FASST, Protocol::FORD, Protocol::FORD_LEAN, Protocol::FORD_LOCAL] {
        let (cluster, fabric, rows) = cluster(protocol, 3, 9);
        let mut one = worker(&cluster, 1, 1);
        let last = Cell::new(None);
        let (mut committed, mut aborted) = (0, 0);
        // The longest first, so that locations are known.
        for polls in (0..120).rev() {
            let keys = if polls % 2 == 0 { (1, 2) } else { (2, 1) };
            let id = one.block_on(async |session| {
                let given_up = cut_off(transfer(session, &rows, keys, &last), polls).await;
                let id = last.take()?;
                match (given_up, session.resolve(id, Duration::from_millis(1)).await.unwrap()) {
                    (Some(outcome), _) => outcome.unwrap(),
                    (None, Verdict::Committed) => committed += 1,
                    (None, Verdict::Aborted) => aborted += 1,
                    (None, verdict) => panic!("{polls} polls: {verdict:?}"),
                }
                Some(id)
            });
            let mut other = worker(&cluster, 1, 2);
            if let Some(id) = id {
                assert_ne!(verdict(&mut other, id), Verdict::Forgotten);
            }
        }
        assert!(committed > 0 && aborted > 0, "{committed} {aborted}");
        assert!(one.drain().unwrap());
        assert_whole(&cluster, &fabric, &rows, "resolved");
    }
}

/// The outcome of a transaction that is too old is forgotten, and never reported as aborted.
#[test]
fn old_answers_are_forgotten() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD, Protocol::FORD_LEAN, Protocol::FORD_LOCAL] {
        let (cluster, _, rows) = cluster(protocol, 3, 10);
        let mut one = worker(&cluster, 1, 1);
        let (last, mut committed) = (Cell::new(None), Vec::new());
        // Not a whole number of laps, and one that is.
        for transactions in [5, 75, 64] {
            one.block_on(async |session| {
                for number in 0..transactions {
                    transfer(session, &rows, if number % 2 == 0 { (1, 2) } else { (2, 1) }, &last).await.unwrap();
                    committed.push(last.take().unwrap());
                }
            });
            support::quiet(&mut one);
            let mut other = worker(&cluster, 1, 2);
            let verdicts: Vec<Verdict> = committed.iter().map(|id| verdict(&mut other, *id)).collect();
            let known = verdicts.iter().rev().take_while(|verdict| **verdict == Verdict::Committed).count();
            assert!(known >= 5, "{protocol:?}: {verdicts:?}");
            assert!(verdicts[..verdicts.len() - known].iter().all(|verdict| *verdict == Verdict::Forgotten));
        }
        assert!(
            verdict(&mut worker(&cluster, 1, 3), committed[0]) == Verdict::Forgotten || protocol == Protocol::DRTM_R
        );
    }
}

/// A client dies at every step of a transfer, and another one recovers it. Then snapshots soon have
/// the newest values, although the oracle has not heard of the end of the dead client's commit.
#[test]
fn a_client_that_died_holds_no_snapshot_back() {
    for protocol in [Protocol::GTS, Protocol::VTS] {
        let (cluster, fabric, rows) = cluster(protocol, 3, 6);
        let mut survivor = worker(&cluster, 1, 2);
        let mut held_back = 0;
        for step in steps_of_death(protocol) {
            let keys = (10 + step % 10, 20 + step % 20);
            let (dead, ..) = victim(&cluster, &fabric, &rows, keys, step);
            survivor.recover(dead).unwrap();
            let looks = survivor.block_on(async |session| {
                let newest = (read(session, &rows, keys.0).await, read(session, &rows, keys.1).await);
                for looks in 0..8 {
                    let value = |row: Option<Words<1>>| row.map(|row| row.0[0]);
                    let seen = session.snapshot(async |tx| tx.get_many(((&rows, keys.0), (&rows, keys.1))).await).await;
                    if seen.is_ok_and(|(from, to)| (value(from), value(to)) == newest) {
                        return Some(looks);
                    }
                    support::rest(session).await;
                }
                None
            });
            held_back += looks.unwrap_or_else(|| panic!("{protocol}, step {step}: snapshots stay old"));
        }
        assert!(held_back > 0, "{protocol}: no commit was under way at the oracle");
    }
}

/// Under `dst-2pl` a client dies at any step of a transaction that reads one row and writes another
/// one. Its times are far ahead of those of all others. If it has committed, and its lock of what
/// it has read is freed without it, the next writer of that row has a later time all the same. So a
/// snapshot that has the next writer has the dead client's commit.
#[test]
fn what_a_dead_client_has_read_is_written_at_later_times() {
    const AHEAD: u64 = 1 << 50;
    let mut left = 0;
    for step in 0..40 {
        let (cluster, fabric, rows) = cluster(Protocol::DST_2PL, 1, 6);
        let (mut writer, mut reader) = (worker(&cluster, 1, 2), worker(&cluster, 1, 3));
        let node_of = |key| {
            let table = rows.untyped();
            table.shard_replicas(table.home(support::rig::key(key).hash()).shard)[0].node
        };
        let written = 0;
        let read_only = (1..ROWS).find(|key| node_of(*key) != node_of(written)).unwrap();
        // Only the client that dies hears of a time that is far ahead.
        let clock = |node| {
            let region = fabric.region(node, node::REGION).unwrap();
            move |time| region.words()[node::clock_at(node).offset as usize / 8].swap(time, Ordering::AcqRel)
        };
        let clock = clock(node_of(written));
        let before = clock(AHEAD);
        let mut victim = worker(&cluster, 1, 4);
        clock(before);
        let dead = victim.incarnations().next().unwrap();
        let last = Cell::new(None);
        fabric.revoke_after(ClientId(dead), step);
        let _ = victim.block_on(async |session| {
            let run = session.transact(async |tx| {
                last.set(Some(tx.id()));
                let (read, write) = (tx.want(&rows, read_only), tx.want(&rows, written));
                tx.fetch().await?;
                let value = read.require(tx)?.0[0];
                write.get_mut(tx)?.0[0] += value;
                Ok(())
            });
            run.await
        });
        victim.abandon();
        let locked = look(&cluster, &rows).1.locked;
        writer.recover(dead).unwrap();
        let has_committed = last.get().is_some_and(|id: TransactionId| verdict(&mut writer, id) == Verdict::Committed);
        left += u32::from(has_committed && locked > 0);
        writer.block_on(async |session| {
            let add = session.transact(async |tx| {
                rows.get_mut(tx, read_only).await?.0[0] += 1;
                Ok(())
            });
            add.await.unwrap();
        });
        let seen = reader.block_on(async |session| {
            session.lane().sleep(10_000).await;
            session.snapshot(async |tx| tx.get_many(((&rows, read_only), (&rows, written))).await).await
        });
        let (Some(first), Some(second)) = seen.unwrap() else { panic!("step {step}: rows are gone") };
        let (has_next, has_dead) = (first.0[0] > MONEY, second.0[0] > MONEY);
        assert!(has_dead || !has_next || !has_committed, "step {step}: {first:?} {second:?}, {locked} locked");
    }
    assert!(left > 0, "no lock of a committed reader was left");
}

/// Moves the row of a key to the key `AWAY` further on, or back, and writes another row.
async fn move_or_back(session: &mut Session, rows: &Rows, key: u64) -> Result<(), Error> {
    let moved = session.transact(async |tx| {
        let is_there = rows.get(tx, key).await?.is_some();
        let (from, to) = if is_there { (key, key + AWAY) } else { (key + AWAY, key) };
        let from = tx.want_for(rows, from, Intent::Delete);
        let to = tx.want_for(rows, to, Intent::Insert);
        let other = tx.want_for(rows, ROWS + key % 7, Intent::Update);
        tx.fetch().await?;
        let row = *from.require(tx)?;
        from.remove(tx)?;
        to.insert(tx, row)?;
        other.get_mut(tx)?.0[0] += 1;
        Ok(())
    });
    moved.await
}

const AWAY: u64 = 1000;

/// Changes one row, in a transaction without a log.
async fn add(session: &mut Session, rows: &Rows, key: u64) -> Result<(), Error> {
    let add = session.transact(async |tx| {
        rows.get_mut(tx, key).await?.0[0] += 1;
        Ok(())
    });
    add.await
}

/// Names many rows that it would insert, and gives up. Their chains would grow, and the session
/// keeps the buckets for the next time.
async fn give_up_inserts(session: &mut Session, rows: &Rows) -> Result<(), Error> {
    let gave_up = session.transact(async |tx| {
        let _named: Vec<_> = (0..40).map(|key| tx.want_for(rows, 2 * AWAY + key, Intent::Insert)).collect();
        tx.fetch().await?;
        Err::<(), _>(Error::user(std::fmt::Error))
    });
    gave_up.await
}

/// Clients die with memory in hand, again and again. While no client is connected, all of it is
/// reclaimed, and no block that a record names.
#[test]
fn what_dead_clients_had_in_hand_is_reclaimed() {
    const DEATHS: u64 = 100;
    let (cluster, fabric) = options(Protocol::RTX, 1).node_bytes(16 << 20).open_seeded(1).unwrap();
    let rows: Rows = cluster.create_table("rows", TableOptions::for_rows(2 * ROWS).shards(1).grows(false)).unwrap();
    cluster.load(&rows, (0..ROWS + 7).map(|key| (key, Words([key])))).unwrap();
    let (mut all, mut moved) = (Reclaimed::default(), 0);
    for death in 0..DEATHS {
        let mut victim = worker(&cluster, 2, death);
        let dead: Vec<u32> = victim.incarnations().collect();
        dead.iter().for_each(|client| fabric.revoke_after(ClientId(*client), 20 + 5 * death));
        let done = victim.run(async |coroutine, session| {
            let _gave_up = give_up_inserts(session, &rows).await;
            let (mut done, mut is_alive) = (0, true);
            while is_alive {
                let key = (7 * death + done + 20 * coroutine as u64) % ROWS;
                // The recoverer frees locks that have a log, and no others.
                is_alive = if death % 2 == 0 {
                    move_or_back(session, &rows, key).await.is_ok()
                } else {
                    add(session, &rows, ROWS + coroutine as u64).await.is_ok()
                };
                done += 1;
            }
            done
        });
        moved += done.into_iter().sum::<u64>();
        victim.abandon();

        let mut survivor = worker(&cluster, 1, death);
        let refused = cluster.reclaim().unwrap_err().to_string();
        assert!(refused.contains("are connected"), "{refused}");
        dead.iter().for_each(|client| survivor.recover(*client).unwrap());
        // The survivor works with what was reclaimed before. It meets what it looks at.
        let met = if death % 2 == 0 { ROWS } else { 0 };
        let found = survivor.block_on(async |session| {
            let mut found = Vec::new();
            for key in 0..met {
                move_or_back(session, &rows, key).await.unwrap();
                let [here, away] = [read(session, &rows, key).await, read(session, &rows, key + AWAY).await];
                found.push((here.xor(away), here.is_some() && away.is_some()));
            }
            found
        });
        assert!(found.into_iter().eq((0..met).map(|key| (Some(key), false))), "after {death} deaths");
        moved += met;
        drop(survivor);
        fabric.settle_services();

        let (before, ..) = look(&cluster, &rows);
        all += cluster.reclaim().unwrap();
        assert_eq!(cluster.reclaim().unwrap(), Reclaimed::default(), "nothing is left, after {death} deaths");
        let (after, found) = look(&cluster, &rows);
        assert!(before == after && after.len() as u64 == ROWS + 7, "after {death} deaths");
        assert_eq!((found.locked, found.abandoned, found.torn), (0, 0, 0), "{found:?}");
    }
    assert!(all.blocks > 2 * DEATHS && all.buckets > 0 && all.locks > 0, "{all:?}, {moved} rows were moved");
    assert!(moved > 5 * DEATHS, "{moved}");
}
