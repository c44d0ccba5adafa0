//! Coroutines of one worker that change the same records: they commit together, and each of them
//! gets its own answer.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use remora::floors::record::Version;
use remora::floors::txn::mutant::{self, Mutant};
use remora::floors::txn::{Ford, Primitives};
use remora::observe::{Cost, Observer, Outcome, TransactionEvent};
use remora::protocol::Protocol;
use remora::{
    Cluster, DynOptions, DynSchema, Error, Intent, Lengths, Limit, OrderedOptions, Session, Table, TableOptions,
    TransactionId, Verdict, Worker, WorkerOptions,
};

use crate::support::{Words, cut_off, look, others_run, seeded, table};

const COROUTINES: usize = 8;

type Row = Words<1>;

/// A committed attempt.
#[derive(Clone, Copy, Debug)]
struct Commit {
    id: TransactionId,
    decided_by: TransactionId,
    attempt: u32,
    /// The version that was read, and the one that was written.
    versions: Option<(Version, Version)>,
    cost: Cost,
}

#[derive(Clone, Default)]
struct Commits(Rc<RefCell<Vec<Commit>>>);

impl Observer for Commits {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if event.outcome == Outcome::Committed {
            let versions = event.accesses().next().and_then(|access| Some((access.read?, access.written?.1)));
            let TransactionEvent { id, decided_by, attempt, cost, .. } = *event;
            self.0.borrow_mut().push(Commit { id, decided_by, attempt, versions, cost });
        }
    }
}

impl Commits {
    fn of(worker: &mut Worker) -> Commits {
        let commits = Commits::default();
        for session in worker.sessions() {
            session.observe(Some(Box::new(commits.clone())));
        }
        commits
    }

    fn joined(&self) -> usize {
        self.0.borrow().iter().filter(|commit| commit.decided_by != commit.id).count()
    }
}

fn protocols() -> impl Iterator<Item = Protocol> {
    // Where a commit is awaited to its end, a leader may be dropped behind its commit point.
    let awaited = [
        Protocol::Occ(Primitives::DRTM_H_ONE_SIDED),
        Protocol::Ford(Ford { background_release: false, ..Ford::WHOLE }),
    ];
    Protocol::ALL.into_iter().filter(|protocol| protocol.is_serializable()).chain(awaited)
}

fn counter(protocol: Protocol, seed: u64) -> (Cluster, Table<u64, Row>, Worker) {
    let (cluster, _) = seeded(protocol, 3, seed);
    let rows = table(&cluster, "rows", TableOptions::for_rows(16), Words([0]));
    let options = WorkerOptions::default().coroutines(COROUTINES).seed(seed).yield_after_rounds(true);
    let worker = cluster.worker(options).unwrap();
    (cluster, rows, worker)
}

async fn count(session: &mut Session, rows: &Table<u64, Row>) -> Result<(), Error> {
    session
        .transact(async |tx| {
            let slot = tx.want_for(rows, 0, Intent::Update);
            tx.fetch().await?;
            slot.get_mut(tx)?.0[0] += 1;
            Ok(())
        })
        .await
}

/// Reads the counters, once everything is at rest.
fn counts(cluster: &Cluster, rows: &Table<u64, Row>) -> Vec<u64> {
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let read = worker.block_on(async |session| {
        let found = session.transact(async |tx| {
            let slots: Vec<_> = (0..16).map(|key| tx.want(rows, key)).collect();
            tx.fetch().await?;
            slots.into_iter().map(|slot| Ok(slot.get(tx)?.expect("loaded").0[0])).collect::<Result<Vec<u64>, Error>>()
        });
        found.await.unwrap()
    });
    drop(worker);
    let found = look(cluster, rows).1;
    assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0), "{found:?}");
    read
}

fn assert_counted(cluster: &Cluster, rows: &Table<u64, Row>, expected: u64) {
    assert_eq!(counts(cluster, rows)[0], expected);
}

/// Every update is there once, each of them is a version of its own, and members cost nothing.
#[test]
fn coroutines_at_a_hot_record_commit_together() {
    for (protocol, seed) in protocols().flat_map(|protocol| (0..2).map(move |seed| (protocol, seed))) {
        let (cluster, rows, mut worker) = counter(protocol, seed);
        let commits = Commits::of(&mut worker);
        worker.run(async |_, session| {
            for _ in 0..30 {
                count(session, &rows).await.unwrap();
            }
        });
        drop(worker);
        assert_counted(&cluster, &rows, 30 * COROUTINES as u64);
        let mut commits = commits.0.take();
        commits.sort_by_key(|commit| commit.versions.map(|(_, written)| written));
        for pair in commits.windows(2) {
            let [before, after] = pair else { unreachable!() };
            assert_eq!(after.versions.unwrap().0, before.versions.unwrap().1, "{protocol:?}: {before:?} {after:?}");
        }
        let (members, leading): (Vec<&Commit>, Vec<&Commit>) =
            commits.iter().partition(|commit| commit.decided_by != commit.id);
        assert!(members.len() > 2 * leading.len(), "{protocol:?}: {} of {}", members.len(), commits.len());
        let is_led = |member: &&Commit| leading.iter().any(|leader| leader.id == member.decided_by);
        assert!(members.iter().all(is_led), "{protocol:?}: a leader has committed, too");
        let cost: u64 = members.iter().map(|member| member.cost.round_trips).sum();
        assert_eq!(cost, 0, "{protocol:?}: who joins sends nothing, after its first attempt");
    }
}

/// A transaction that reads a record before it wants to change it stands in line, too. Otherwise it
/// would always win, since it reads later than one that waits for its turn.
#[test]
fn who_reads_first_takes_turns_too() {
    for protocol in protocols() {
        let (cluster, rows, mut worker) = counter(protocol, 1);
        let commits = Commits::of(&mut worker);
        worker.run(async |_, session| {
            for _ in 0..50 {
                let counted = session.transact(async |tx| {
                    let Words([count]) = rows.require(tx, 0).await?;
                    rows.update(tx, 0, Words([count + 1])).await
                });
                counted.await.unwrap();
            }
        });
        drop(worker);
        assert_counted(&cluster, &rows, 50 * COROUTINES as u64);
        let attempts = commits.0.borrow().iter().map(|commit| commit.attempt).max();
        assert!(attempts < Some(8), "{protocol:?}: a transaction took {attempts:?} attempts");
        assert!(commits.joined() > 25 * COROUTINES, "{protocol:?}: {} have joined", commits.joined());
    }
}

/// A transaction that has asked for its id can be asked for by that id.
#[test]
fn a_transaction_whose_id_is_known_commits_by_itself() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let (cluster, rows, mut worker) = counter(protocol, 1);
        let commits = Commits::of(&mut worker);
        let verdicts = worker.run(async |number, session| {
            let mut verdicts = Vec::new();
            for _ in 0..10 {
                if number > 0 {
                    count(session, &rows).await.unwrap();
                    continue;
                }
                let id = Cell::new(None);
                let counted = session.transact(async |tx| {
                    id.set(Some(tx.id()));
                    *rows.get_mut(tx, 0).await? = Words([rows.require(tx, 0).await?.0[0] + 1]);
                    Ok(())
                });
                counted.await.unwrap();
                verdicts.push(session.resolve(id.get().unwrap(), Duration::ZERO).await.unwrap());
            }
            verdicts
        });
        assert_eq!(verdicts.concat(), [Verdict::Committed; 10]);
        assert!(commits.joined() > 0, "the others have joined");
        drop(worker);
        assert_counted(&cluster, &rows, 10 * COROUTINES as u64);
    }
}

/// A transaction that names another record after the hot one brings it along, or commits by itself.
#[test]
fn one_that_needs_more_commits_all_the_same() {
    for protocol in protocols() {
        let (cluster, rows, mut worker) = counter(protocol, 2);
        let commits = Commits::of(&mut worker);
        worker.run(async |number, session| {
            for _ in 0..10 {
                if number % 2 == 0 {
                    count(session, &rows).await.unwrap();
                    continue;
                }
                let counted = session.transact(async |tx| {
                    rows.get_mut(tx, 0).await?.0[0] += 1;
                    rows.get_mut(tx, number as u64).await?.0[0] += 1;
                    Ok(())
                });
                counted.await.unwrap();
            }
        });
        assert!(commits.joined() > 0, "{protocol:?}");
        drop(worker);
        assert_counted(&cluster, &rows, 10 * COROUTINES as u64);
        let others = &counts(&cluster, &rows)[1..8];
        assert_eq!(others, [10, 0, 10, 0, 10, 0, 10], "{protocol:?}");
    }
}

/// What an attempt did to a record: its number, the version that it read, and the one that it
/// wrote.
type Touched = (u8, Version, Option<Version>);

/// What each committed attempt did.
#[derive(Clone, Default)]
struct Accesses(Rc<RefCell<Vec<Vec<Touched>>>>);

impl Observer for Accesses {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if event.outcome == Outcome::Committed {
            let of = |key: &[u8]| *key.last().expect("a key of some bytes");
            let accesses =
                event.accesses().filter_map(|one| Some((of(one.key), one.read?, one.written.map(|two| two.1))));
            self.0.borrow_mut().push(accesses.collect());
        }
    }
}

/// Coroutines that change a hot record and a cold one, which two of them share, and read a third
/// one.
#[test]
fn members_bring_records_along() {
    for protocol in protocols() {
        let (cluster, rows, mut worker) = counter(protocol, 3);
        let commits = Commits::of(&mut worker);
        let run = async |number: usize, session: &mut Session| {
            let (cold, read) = (1 + number as u64 / 2, 8 + number as u64);
            for _ in 0..20 {
                let counted = session.transact(async |tx| {
                    let slots = [0, cold].map(|row| tx.want_for(&rows, row, Intent::Update));
                    let read = tx.want(&rows, read);
                    tx.fetch().await?;
                    assert_eq!(read.get(tx)?, Some(&Words([0])));
                    for slot in slots {
                        slot.get_mut(tx)?.0[0] += 1;
                    }
                    Ok(())
                });
                counted.await.unwrap();
            }
        };
        worker.run(run);
        let locks_early = matches!(protocol, Protocol::Ford(_)) || protocol.spec().locks_reads;
        // There, only the session that has read a record knows the word that its lock must have.
        let locks_alone = locks_early || protocol.discipline().is_repairable();
        let (joined, all) = (commits.joined(), commits.0.borrow().len());
        assert!(
            if locks_alone { joined == 0 } else { 2 * joined > all },
            "{protocol:?}: {joined} of {all} have joined"
        );
        let told = Accesses::default();
        for session in worker.sessions() {
            session.observe(Some(Box::new(told.clone())));
        }
        worker.run(run);
        drop(worker);
        assert_eq!(counts(&cluster, &rows)[..5], [320, 80, 80, 80, 80], "{protocol:?}");
        let mut written: Vec<_> = told
            .0
            .take()
            .into_iter()
            .flat_map(|accesses| {
                assert_eq!(accesses.len(), 3, "{protocol:?}: a leader does not tell what its members have done");
                accesses
            })
            .filter_map(|(key, read, written)| Some((key, written?, read)))
            .collect();
        written.sort_unstable();
        let broken = written.windows(2).find(|two| two[0].0 == two[1].0 && two[0].1 != two[1].2);
        assert_eq!(broken, None, "{protocol:?}: each change is of the version before it");
    }
}

/// Eight coroutines change a hot record and one of their own, each of this number of words. Returns
/// how many of 160 transactions have joined another one.
fn bring_large<const WORDS: usize>(protocol: Protocol) -> usize {
    let (cluster, _) = seeded(protocol, 2, 1);
    let rows = table(&cluster, "rows", TableOptions::for_rows(16), Words([0; WORDS]));
    let options = WorkerOptions::default().coroutines(COROUTINES).seed(1).yield_after_rounds(true);
    let mut worker = cluster.worker(options).unwrap();
    let commits = Commits::of(&mut worker);
    worker.run(async |number, session| {
        for _ in 0..20 {
            let counted = session.transact(async |tx| {
                let slots = [0, 1 + number as u64].map(|row| tx.want_for(&rows, row, Intent::Update));
                tx.fetch().await?;
                for slot in slots {
                    slot.get_mut(tx)?.0[WORDS - 1] += 1;
                }
                Ok(())
            });
            counted.await.unwrap();
        }
    });
    drop(worker);
    let found = look(&cluster, &rows).1;
    assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0), "{found:?}");
    commits.joined()
}

/// A leader takes no more along than its log entry has room for.
#[test]
fn members_bring_what_fits() {
    for protocol in [Protocol::DRTM_R, Protocol::FASST] {
        let [small, large, too_large] =
            [bring_large::<1>(protocol), bring_large::<300>(protocol), bring_large::<900>(protocol)];
        assert!(small > large && large > 0 && too_large == 0, "{protocol:?}: {small} {large} {too_large}");
    }
}

/// Closures that let others run between a read and a write. Returns the counter, which should be
/// 80.
fn count_slowly(protocol: Protocol, seed: u64) -> u64 {
    let (cluster, rows, mut worker) = counter(protocol, seed);
    let commits = Commits::of(&mut worker);
    worker.run(async |_, session| {
        for _ in 0..10 {
            let counted = session.transact(async |tx| {
                let before = rows.require(tx, 0).await?.0[0];
                others_run().await;
                rows.update(tx, 0, Words([before + 1])).await
            });
            counted.await.unwrap();
        }
    });
    assert!(commits.joined() > 0, "{protocol:?}");
    drop(worker);
    counts(&cluster, &rows)[0]
}

#[test]
fn members_that_let_others_run_lose_no_update() {
    for (protocol, seed) in protocols().flat_map(|protocol| (0..2).map(move |seed| (protocol, seed))) {
        assert_eq!(count_slowly(protocol, seed), 80, "{protocol:?}");
    }
    mutant::set(Some(Mutant::JoinUnchecked));
    let lost = (0..10).any(|seed| count_slowly(Protocol::DRTM_R, seed) < 80);
    mutant::set(None);
    assert!(lost, "without a check, updates are lost");
}

/// An application's own error is an answer like the others, and its change is not made.
#[test]
fn one_that_gives_up_has_changed_nothing() {
    for protocol in protocols() {
        let (cluster, rows, mut worker) = counter(protocol, 3);
        worker.run(async |number, session| {
            for _ in 0..10 {
                let counted = session.transact(async |tx| {
                    rows.get_mut(tx, 0).await?.0[0] += 1;
                    if number % 2 == 0 { Ok(()) } else { Err(rows.missing(0)) }
                });
                let counted = counted.await;
                assert_eq!(counted.is_ok(), number % 2 == 0, "{protocol:?}: {counted:?}");
            }
        });
        drop(worker);
        assert_counted(&cluster, &rows, 10 * COROUTINES as u64 / 2);
    }
}

/// Of three coroutines one counts, one changes the counter and another record and gives up, and one
/// counts and reads the other record. Returns whether one that has committed has read what the
/// other one gave up.
fn reads_what_was_given_up(seed: u64) -> bool {
    let (cluster, rows, mut worker) = counter(Protocol::DRTM_R, seed);
    let (has_read, given_up) = (Cell::new(false), Cell::new(0));
    worker.run(async |number, session| {
        for _ in 0..20 {
            let ran = session.transact(async |tx| {
                let counter = tx.want_for(&rows, 0, Intent::Update);
                if number % 3 == 1 {
                    let other = tx.want_for(&rows, 1, Intent::Update);
                    tx.fetch().await?;
                    other.get_mut(tx)?.0[0] += 1;
                    given_up.set(given_up.get() + 1);
                    return Err(rows.missing(0));
                }
                tx.fetch().await?;
                let mut has_read = false;
                if number % 3 == 2 {
                    // Meanwhile, another member fetches the record and gives up, mostly.
                    let before = given_up.get();
                    for _ in 0..100 {
                        if given_up.get() == before {
                            others_run().await;
                        }
                    }
                    has_read = rows.require(tx, 1).await? != Words([0]);
                }
                counter.get_mut(tx)?.0[0] += 1;
                Ok(has_read)
            });
            let ran = ran.await;
            assert_eq!(ran.is_ok(), number % 3 != 1, "{ran:?}");
            has_read.set(has_read.get() || ran.unwrap_or(false));
        }
    });
    drop(worker);
    assert_counted(&cluster, &rows, 20 * (COROUTINES as u64 - 3));
    has_read.get()
}

#[test]
fn nobody_reads_what_a_member_gives_up() {
    assert!(!(0..10).any(reads_what_was_given_up));
    mutant::set(Some(Mutant::BringUncommitted));
    let has_read = (0..10).any(reads_what_was_given_up);
    mutant::set(None);
    assert!(has_read, "the test finds its mutant");
}

/// A leader fetches what its closure has named and not fetched, also if others have joined it.
#[test]
fn a_leader_may_leave_a_fetch_to_its_commit() {
    for protocol in protocols() {
        let (cluster, rows, mut worker) = counter(protocol, 4);
        let commits = Commits::of(&mut worker);
        worker.run(async |number, session| {
            for _ in 0..20 {
                let counted = session.transact(async |tx| {
                    let slot = tx.want_for(&rows, 0, Intent::Update);
                    tx.fetch().await?;
                    tx.want(&rows, 8 + number as u64);
                    slot.get_mut(tx)?.0[0] += 1;
                    Ok(())
                });
                counted.await.unwrap();
            }
        });
        drop(worker);
        assert_counted(&cluster, &rows, 20 * COROUTINES as u64);
        let attempts = commits.0.borrow().iter().map(|commit| commit.attempt).max();
        assert!(attempts < Some(16), "{protocol:?}: {attempts:?}");
    }
}

/// Futures are dropped at any await, of one that leads and of members. Each update is there once or
/// not at all, and nobody waits for one that is gone.
#[test]
fn who_leads_or_joins_may_be_dropped() {
    for (protocol, seed) in protocols().flat_map(|protocol| (0..6).map(move |seed| (protocol, seed))) {
        let (cluster, rows, mut worker) = counter(protocol, seed);
        let done = worker.run(async |number, session| {
            let (mut told, mut dropped) = (0, 0);
            for turn in 0..30 {
                let polls = if (turn + number) % 3 == 0 { (turn + seed as usize) % 17 } else { usize::MAX };
                match cut_off(count(session, &rows), polls).await {
                    Some(counted) => told += counted.map(|()| 1).unwrap(),
                    None => dropped += 1,
                }
            }
            (told, dropped)
        });
        drop(worker);
        let (told, dropped) = done.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
        let found = counts(&cluster, &rows)[0];
        assert!((told..=told + dropped).contains(&found), "{protocol:?}: {found} of {told} and {dropped}");
        assert!(dropped > 0);
    }
}

/// A leader that fails for a reason of its own fails alone.
#[test]
fn the_limit_of_one_is_not_that_of_others() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let (cluster, rows, mut worker) = counter(protocol, 4);
        let large = table(&cluster, "large", TableOptions::for_rows(12), Words::<400>::all(1));
        let commits = Commits::of(&mut worker);
        worker.run(async |number, session| {
            for _ in 0..20 {
                if number > 0 {
                    count(session, &rows).await.unwrap();
                    continue;
                }
                let changed = session.transact(async |tx| {
                    let counter = tx.want_for(&rows, 0, Intent::Update);
                    let many: Vec<_> = (0..12).map(|key| tx.want_for(&large, key, Intent::Update)).collect();
                    tx.fetch().await?;
                    counter.get_mut(tx)?.0[0] += 1;
                    many.into_iter().try_for_each(|slot| slot.get_mut(tx).map(|row| row.0[0] += 1))
                });
                assert!(matches!(changed.await.unwrap_err().limit(), Some(Limit::LogEntry { .. })));
            }
        });
        assert!(commits.joined() > 0);
        drop(worker);
        assert_counted(&cluster, &rows, 20 * (COROUTINES as u64 - 1));
    }
}

/// A coroutine begins to count, is not polled any more, and waits until all others have counted.
/// They may be members of its batch, or stand behind it.
#[test]
fn members_outlive_a_leader_that_is_not_polled() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        for polls in 0..30 {
            let (cluster, rows, mut worker) = counter(protocol, 6);
            let left = Cell::new(COROUTINES - 1);
            let counted = worker.run(async |number, session| {
                let mut counted = 0;
                if number > 0 {
                    for _ in 0..3 {
                        match count(session, &rows).await {
                            Ok(()) => counted += 1,
                            Err(Error::Unknown(_) | Error::Aborted(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    left.set(left.get() - 1);
                    return (counted, 3);
                }
                let mut counting = pin!(count(session, &rows));
                if cut_off(counting.as_mut(), polls).await.is_none() {
                    while left.get() > 0 {
                        others_run().await;
                    }
                    counting.await.unwrap();
                }
                (1, 1)
            });
            drop(worker);
            let (least, most) = counted.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let found = counts(&cluster, &rows)[0];
            assert!((least..=most).contains(&found), "{protocol:?}, {polls} polls: {found} of {least} to {most}");
        }
    }
}

/// Members change the length of a value.
#[test]
fn members_change_lengths() {
    for protocol in [Protocol::DRTM_R, Protocol::FASST, Protocol::FORD] {
        let (cluster, _) = seeded(protocol, 3, 5);
        let rows = cluster
            .create_dyn_table(
                "texts",
                &DynSchema::new("texts", Lengths::UpTo(16), Lengths::UpTo(64)),
                DynOptions::for_rows(16),
            )
            .unwrap();
        let options = WorkerOptions::default().coroutines(COROUTINES).yield_after_rounds(true);
        let mut worker = cluster.worker(options).unwrap();
        worker.block_on(async |session| session.transact(async |tx| rows.put(tx, b"hot", b"").await).await.unwrap());
        let commits = Commits::of(&mut worker);
        worker.run(async |number, session| {
            for _ in 0..5 {
                let appended = session.transact(async |tx| {
                    let mut text = rows.get(tx, b"hot").await?.unwrap_or_default().to_vec();
                    text.push(b'a' + number as u8);
                    rows.put(tx, b"hot", &text).await
                });
                appended.await.unwrap();
            }
        });
        let text = worker.block_on(async |session| {
            session.transact(async |tx| Ok(rows.get(tx, b"hot").await?.unwrap_or_default().to_vec())).await.unwrap()
        });
        let mut letters = text.clone();
        letters.sort_unstable();
        assert_eq!(String::from_utf8(letters).unwrap(), "aaaaabbbbbcccccdddddeeeeefffffggggghhhhh");
        assert!(commits.joined() > 0, "{protocol:?}");
    }
}

/// Coroutines that insert at the end of an ordered table meet in its last leaf.
#[test]
fn inserts_into_a_leaf_commit_together() {
    for protocol in [Protocol::DRTM_R, Protocol::FASST, Protocol::FORD] {
        let (cluster, _) = seeded(protocol, 3, 5);
        let rows = cluster.create_ordered::<u64, u64>("log", OrderedOptions::for_rows(1_000)).unwrap();
        let options = WorkerOptions::default().coroutines(COROUTINES).yield_after_rounds(true);
        let mut worker = cluster.worker(options).unwrap();
        let commits = Commits::of(&mut worker);
        let next = Cell::new(0);
        worker.run(async |_, session| {
            for _ in 0..20 {
                let key = next.replace(next.get() + 1);
                session.transact(async |tx| rows.insert(tx, key, key).await).await.unwrap();
            }
        });
        let all = worker.block_on(async |session| {
            session.transact(async |tx| Ok(rows.scan(tx, .., 1_000).await?.len())).await.unwrap()
        });
        assert_eq!(all, 20 * COROUTINES);
        assert!(commits.joined() > all / 2, "{protocol:?}");
    }
}
