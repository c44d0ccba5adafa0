//! Litmus tests: errors that published systems have, each put back and caught.
//!
//! A scenario runs a cluster from a seed and checks a direct invariant. For each mutant a test runs
//! one scenario over seeds twice: without the mutant every seed must keep the invariant, and with
//! it some seed must break it, or the test would prove nothing.
//! `REMORA_SEED=17 cargo test -p remora --test litmus name` runs one seed.

mod support;

use std::cell::{Cell, RefCell};
use std::ops::Range;

use remora::floors::fabric::seeded::Seeded;
use remora::floors::fabric::{ClientId, FabricError, Fault};
use remora::floors::txn::mutant::{self, Mutant};
use remora::floors::txn::{Stop, TransactOptions};
use remora::protocol::{Protocol, ReadScheme};
use remora::{Cluster, Error, TableOptions, TransactionOptions};

use support::rig::{self, Rig};
use support::{Words, at_one_node, crash, cut_off, is_logged, look, others_run, quiet, seeds, table, worker};

/// The protocol whose errors these are.
const PROTOCOL: Protocol = Protocol::DRTM_R;

/// What a scenario found: the invariant holds, or how it is broken.
type Verdict = Result<(), String>;

/// Runs a scenario without and with a mutant. Asserts that no seed breaks it without the mutant,
/// and that some seed breaks it with the mutant.
fn caught(mutant: Mutant, all: Range<u64>, scenario: impl Fn(u64) -> Verdict) {
    for seed in seeds(all.clone()) {
        if let Err(broken) = scenario(seed) {
            panic!("{broken} (seed {seed}, without any mutant: replay with REMORA_SEED={seed})");
        }
    }
    let breaks = |seed: &u64| {
        mutant::set(Some(mutant));
        let verdict = scenario(*seed);
        mutant::set(None);
        verdict.is_err()
    };
    let first = seeds(all.clone()).find(breaks);
    assert!(first.is_some(), "{mutant:?} is not caught by any seed of {all:?}: this test proves nothing");
    eprintln!("{mutant:?}: caught first by seed {}", first.unwrap_or_default());
}

fn seeded(seed: u64, replicas: u8) -> (Cluster, Seeded) {
    support::seeded(PROTOCOL, replicas, seed)
}

fn check(holds: bool, broken: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(broken()) }
}

/// Returns the result of a transaction, if it committed. Aborts are expected, and any other error
/// panics.
fn committed<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::Aborted(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

// --- Write skew: each transaction reads both halves of a pair and takes from one, if there is
// anything to take.

fn write_skew(seed: u64) -> Verdict {
    const PAIRS: u64 = 2;
    let (cluster, fabric) = seeded(seed, 1);
    let halves = table(&cluster, "halves", TableOptions::for_rows(2 * PAIRS), Words([1]));
    let mut worker = worker(&cluster, 4, seed);
    let lowest = worker.run(async |_, session| {
        let mut lowest = i64::MAX;
        for _ in 0..8 {
            let random = session.lane().random();
            let (pair, half) = (random % PAIRS, random as usize >> 8 & 1);
            let sum = session.transact(async |tx| {
                let both = [tx.want(&halves, pair * 2), tx.want(&halves, pair * 2 + 1)];
                tx.fetch().await?;
                let sum = (both[0].require(tx)?.0[0] as i64).wrapping_add(both[1].require(tx)?.0[0] as i64);
                let change = if sum > 0 { -1i64 } else { 1 };
                let mine = both[half].get_mut(tx)?;
                mine.0[0] = mine.0[0].wrapping_add_signed(change);
                Ok(sum)
            });
            lowest = lowest.min(committed(sum.await).unwrap_or(i64::MAX));
        }
        lowest
    });
    crash(worker, &fabric);
    let lowest = lowest.into_iter().min().unwrap_or(0);
    check(lowest >= 0, || format!("a committed transaction saw a pair whose sum is {lowest}"))
}

#[test]
fn write_skew_by_validation_that_ignores_locks() {
    caught(Mutant::ValidateVersionOnly, 0..100, write_skew);
}

#[test]
fn write_skew_by_validation_before_the_locks() {
    caught(Mutant::ValidateWithLocks, 0..100, write_skew);
}

// --- Lost updates: what was committed is counted, and must be there.

fn lost_update(seed: u64) -> Verdict {
    const COUNTERS: u64 = 3;
    let (cluster, fabric) = seeded(seed, 1);
    let counters = table(&cluster, "counters", TableOptions::for_rows(COUNTERS), Words([0]));
    let mut worker = worker(&cluster, 4, seed);
    let counts = worker.run(async |_, session| {
        let mut count = 0;
        for _ in 0..16 {
            let first = session.lane().random() % COUNTERS;
            let done = session.transact(async |tx| {
                let two = [tx.want(&counters, first), tx.want(&counters, (first + 1) % COUNTERS)];
                tx.fetch().await?;
                for counter in two {
                    counter.get_mut(tx)?.0[0] += 1;
                }
                Ok(())
            });
            count += committed(done.await).map_or(0, |()| 2);
        }
        count
    });
    quiet(&mut worker);
    let (rows, found) = look(&cluster, &counters);
    crash(worker, &fabric);
    let (sum, count) = (rows.iter().map(|row| row.0[0]).sum::<u64>(), counts.iter().sum::<u64>());
    check(sum == count, || format!("{count} increments were committed, the counters say {sum}"))?;
    check(found.locked == 0, || format!("{found:?}"))
}

#[test]
fn lost_update_without_validation_of_the_write_set() {
    caught(Mutant::LockWithoutValidation, 0..100, lost_update);
}

#[test]
fn lost_update_by_an_abort_that_releases_the_locks_of_others() {
    caught(Mutant::ReleaseAll, 0..100, lost_update);
}

// --- Torn records: every word of a record is the same, whatever the application sees.

fn torn<const N: usize>(seed: u64, scheme: ReadScheme) -> Verdict {
    let (cluster, fabric) = seeded(seed, 1);
    let options = TableOptions::for_rows(2).read_scheme(scheme);
    let records = table(&cluster, "records", options, Words::<N>::all(0));
    let mut worker = worker(&cluster, 4, seed);
    let torn = RefCell::new(None);
    worker.run(async |client, session| {
        for turn in 1..=8 {
            let key = session.lane().random() % 2;
            let done = session.transact(async |tx| {
                let record = tx.want(&records, key);
                tx.fetch().await?;
                // Records must be whole even if the transaction will not commit.
                if !record.require(tx)?.is_whole() {
                    torn.replace(Some(*record.require(tx)?));
                }
                if client % 2 == 0 {
                    *record.get_mut(tx)? = Words::all(client as u64 * 100 + turn);
                }
                Ok(())
            });
            committed(done.await);
        }
    });
    crash(worker, &fabric);
    let torn = torn.take();
    check(torn.is_none(), || format!("torn: {torn:?}"))
}

#[test]
fn torn_read_of_a_single_line() {
    caught(Mutant::AcceptTorn, 0..100, |seed| torn::<4>(seed, ReadScheme::SingleLine));
}

#[test]
fn torn_read_of_several_lines() {
    caught(Mutant::AcceptTorn, 0..100, |seed| torn::<25>(seed, ReadScheme::LineVersions));
}

#[test]
fn torn_read_of_a_record_with_a_checksum() {
    caught(Mutant::AcceptTorn, 0..100, |seed| torn::<25>(seed, ReadScheme::Checksum));
}

#[test]
fn torn_read_after_an_unlock_before_the_data() {
    caught(Mutant::UnlockFirst, 0..100, |seed| torn::<25>(seed, ReadScheme::LineVersions));
}

// --- Commits whose write-back is in flight. The write-back of a small record waits for that of a
// large one at the same --- node, so that there is time to look in between.

/// Words of a record that takes long to write back.
const LARGE: usize = 300;

/// A transaction that begins after another has been reported sees it.
fn recency(seed: u64) -> Verdict {
    const TURNS: u64 = 6;
    let (cluster, fabric) = seeded(seed, 1);
    let checksum = at_one_node(1).read_scheme(ReadScheme::Checksum);
    let small = table(&cluster, "small", checksum, Words([0]));
    let large = table(&cluster, "large", at_one_node(1), Words::<LARGE>::all(0));
    let mut worker = worker(&cluster, 3, seed);
    let (reported, stale) = (Cell::new(0), Cell::new(None));
    worker.run(async |client, session| {
        if client == 0 {
            for turn in 1..=TURNS {
                let write = session.transact(async |tx| {
                    let both = (tx.want(&large, 0), tx.want(&small, 0));
                    tx.fetch().await?;
                    *both.0.get_mut(tx)? = Words::all(turn);
                    *both.1.get_mut(tx)? = Words([turn]);
                    Ok(())
                });
                write.await.unwrap();
                reported.set(turn);
            }
            return;
        }
        while reported.get() < TURNS {
            let floor = reported.get();
            let seen = session.transact(async |tx| small.get(tx, 0).await);
            if let Some(Some(seen)) = committed(seen.await)
                && seen.0[0] < floor
            {
                stale.set(Some((seen, floor)));
            }
            session.lane().sleep(200).await;
        }
    });
    crash(worker, &fabric);
    check(stale.get().is_none(), || format!("(seen, reported before): {:?}", stale.get()))
}

#[test]
fn stale_read_of_a_record_whose_holder_has_committed() {
    caught(Mutant::AcceptLocked, 0..100, recency);
}

/// Client 1 writes y and is reported. Then client 2 begins and writes x. A transaction that sees x
/// must see y. One that only reads, y before and x after, finds y unchanged and locked, because its
/// write-back is in flight: only the lock tells.
fn reported_before(seed: u64) -> Verdict {
    const TURNS: u64 = 6;
    let (cluster, fabric) = seeded(seed, 1);
    let small = table(&cluster, "small", at_one_node(2), Words([0]));
    let large = table(&cluster, "large", at_one_node(1), Words::<LARGE>::all(0));
    let (x, y) = (0, 1);
    let mut worker = worker(&cluster, 4, seed);
    let (first, second, broken) = (Cell::new(0), Cell::new(0), Cell::new(None));
    worker.run(async |client, session| {
        for turn in 1..=TURNS {
            match client {
                0 => {
                    let write = session.transact(async |tx| {
                        let both = (tx.want(&large, 0), tx.want(&small, y));
                        tx.fetch().await?;
                        *both.0.get_mut(tx)? = Words::all(turn);
                        *both.1.get_mut(tx)? = Words([turn]);
                        Ok(())
                    });
                    write.await.unwrap();
                    first.set(turn);
                    while second.get() < turn {
                        session.lane().sleep(10).await;
                    }
                }
                1 => {
                    while first.get() < turn {
                        session.lane().sleep(10).await;
                    }
                    session.transact(async |tx| small.update(tx, x, Words([turn])).await).await.unwrap();
                    second.set(turn);
                }
                _ => {
                    while second.get() < TURNS {
                        let before = second.get();
                        let seen = session.transact(async |tx| {
                            let y = small.get(tx, y).await?;
                            for _ in 0..1000 {
                                if second.get() == before {
                                    others_run().await;
                                }
                            }
                            Ok((small.get(tx, x).await?, y))
                        });
                        if let Some((Some(x), Some(y))) = committed(seen.await)
                            && x.0 > y.0
                        {
                            broken.set(Some((x, y)));
                        }
                        session.lane().sleep(100).await;
                    }
                }
            }
        }
    });
    crash(worker, &fabric);
    check(broken.get().is_none(), || format!("x was seen without y, reported before it began: {:?}", broken.get()))
}

#[test]
fn read_only_transaction_that_ignores_a_lock() {
    caught(Mutant::ValidateReadOnlyVersionOnly, 0..100, reported_before);
}

// --- Logs: a client loses its access at every step of a transaction that writes two records.

fn commit_is_logged(seed: u64, replicas: u8) -> Verdict {
    const ROWS: u64 = 500;
    let options = support::options(PROTOCOL, replicas).node_bytes(16 << 20);
    let (cluster, fabric) = options.open_seeded(seed).unwrap();
    let records = table(&cluster, "records", TableOptions::for_rows(ROWS), Words([0]));
    // Two records of different shards, so that several nodes take part; others for every step.
    let table = &records;
    let of_shard = |shard| (0..ROWS).filter(move |key| support::shard_of(table, *key) == shard);
    let (mut answers, mut losses) = (0, 0);
    for (step, (one, two)) in of_shard(0).zip(of_shard(1)).enumerate() {
        let mut worker = worker(&cluster, 1, seed + step as u64);
        let client = worker.incarnations().next().unwrap_or_default();
        fabric.revoke_after(ClientId(client), step as u64);
        let result = worker.block_on(async |session| {
            let write = session.transact(async |tx| {
                let both = [tx.want(&records, one), tx.want(&records, two)];
                tx.fetch().await?;
                for record in both {
                    *record.get_mut(tx)? = Words([1]);
                }
                Ok(tx.id())
            });
            write.await
        });
        crash(worker, &fabric);
        let Ok(id) = result else {
            losses += 1;
            continue;
        };
        answers += 1;
        for node in [one, two].into_iter().flat_map(|key| support::participants(&records, key)) {
            check(is_logged(&fabric, node, id), || {
                format!("revoked after {step} steps: {id} has committed and is not logged at {node}")
            })?;
        }
    }
    assert!(answers > 0 && losses > 0, "the steps must reach from the first round to after the last");
    Ok(())
}

#[test]
fn commit_reported_before_the_log_has_arrived() {
    caught(Mutant::CommitBeforeLog, 0..4, |seed| commit_is_logged(seed, 3));
}

#[test]
fn a_log_at_the_backups_only() {
    for replicas in [2, 1] {
        caught(Mutant::LogAtBackupsOnly, 0..4, |seed| commit_is_logged(seed, replicas));
    }
}

// --- Ids: futures are dropped anywhere, which releases what they may have locked.

fn transfers_cut_off(seed: u64) -> Verdict {
    const ACCOUNTS: u64 = 3;
    const CLIENTS: usize = 4;
    let (cluster, fabric) = seeded(seed, 1);
    let accounts = table(&cluster, "accounts", TableOptions::for_rows(ACCOUNTS), Words([100]));
    let mut worker = worker(&cluster, CLIENTS, seed);
    let begun = Cell::new(0);
    worker.run(async |_, session| {
        // All begin each turn together and try once, so that their sequence numbers are the same.
        for turn in 1..=20 {
            begun.set(begun.get() + 1);
            while begun.get() < turn * CLIENTS {
                others_run().await;
            }
            let random = session.lane().random();
            let (from, to) = (random % ACCOUNTS, (random + 1) % ACCOUNTS);
            let once = TransactionOptions::default().attempts(1);
            let transfer = session.transact_with(once, async |tx| {
                let both = [tx.want(&accounts, from), tx.want(&accounts, to)];
                tx.fetch().await?;
                both[0].get_mut(tx)?.0[0] -= 1;
                both[1].get_mut(tx)?.0[0] += 1;
                Ok(())
            });
            cut_off(transfer, (random >> 16) as usize % 100).await.map(committed);
        }
    });
    quiet(&mut worker);
    let (rows, found) = look(&cluster, &accounts);
    crash(worker, &fabric);
    let sum: u64 = rows.iter().map(|row| row.0[0]).sum();
    check(sum == ACCOUNTS * 100, || format!("{sum} of {} are left", ACCOUNTS * 100))?;
    check(found.locked == 0 && found.torn == 0, || format!("{found:?}"))
}

#[test]
fn ids_that_two_workers_share() {
    caught(Mutant::LocalIds, 0..100, transfers_cut_off);
}

// --- Backups: after everything has been applied they are byte-identical with their primaries.

fn backups_follow(seed: u64) -> Verdict {
    let (cluster, fabric) = seeded(seed, 3);
    let records = table(&cluster, "records", TableOptions::for_rows(2), Words([0]));
    let mut worker = worker(&cluster, 4, seed);
    worker.run(async |client, session| {
        for turn in 0..8 {
            let value = Words([client as u64 * 100 + turn]);
            committed(session.transact(async |tx| records.update(tx, turn % 2, value).await).await);
        }
    });
    quiet(&mut worker);
    fabric.settle_services();
    let (_, found) = look(&cluster, &records);
    crash(worker, &fabric);
    check(found.differing_lines == 0 && found.locked == 0, || format!("{found:?}"))
}

#[test]
fn backups_that_apply_older_versions() {
    caught(Mutant::ApplyOlderVersions, 0..100, backups_follow);
}

/// The appliers stand still while a client writes on, until its ring is full. What has committed
/// must reach the backups when they run again.
fn full_ring(seed: u64) -> Verdict {
    const ROWS: u64 = 60;
    let rig = Rig::new(Seeded::new(&[vec![8 << 20], vec![8 << 20]], seed).unwrap());
    let records = rig.table("records", ReadScheme::LineVersions, 2, 3000, &vec![vec![0; 3000]; ROWS as usize]);
    let worker = remora::floors::fabric::Worker::new();
    let mut sessions = rig.sessions(&worker, PROTOCOL, 1);
    let committed = rig::run(&worker, &mut sessions, async |_, session| {
        let mut committed = 0;
        for number in 0..ROWS {
            let length = session.lane().random() as usize % 3000;
            let options = TransactOptions { attempts: 1, ..TransactOptions::default() };
            let write = session.transact(options, async |tx| {
                tx.register(&records);
                let record = tx.want(records.id(), &rig::key(number))?;
                tx.fetch().await?;
                tx.write(record, &vec![number as u8; length])?;
                Ok(Ok::<_, ()>(()))
            });
            match write.await {
                Ok(_) => committed += 1,
                Err(Stop::Unavailable(FabricError { fault: Fault::Behind, .. })) => break,
                Err(stop) => panic!("{stop}"),
            }
        }
        while session.lane().background() > 0 {
            session.lane().sleep(1_000).await;
        }
        committed
    });
    rig.apply();
    let found = rig.inspect(&records);
    check(found.differing_lines == 0 && found.locked == 0, || format!("{committed:?} committed; {found:?}"))
}

#[test]
fn log_that_overwrites_what_has_not_been_applied() {
    caught(Mutant::OverwriteLog, 0..8, full_ring);
}
