//! Transactions whose log entries do not fit one round: they commit, or abort, as any others do.
//! Clients with small logs beside them refuse such transactions, and nothing of these is applied.

#[macro_use]
mod support;

/// Declares a test of each kind of protocol that installs in place and logs old values.
macro_rules! in_place {
    ($($test:ident),* $(,)?) => { $( mod $test { test_of_each!([FORD FORD_LEAN REMORA] $test); } )* };
}

use std::cell::Cell;
use std::time::Duration;

use remora::floors::fabric::seeded::Seeded;
use remora::floors::fabric::{ClientId, block_on};
use remora::floors::txn::recovery;
use remora::protocol::Protocol;
use remora::{
    Cluster, Error, Intent, Limit, Reason, Session, Table, TableOptions, TransactionId, Verdict, Worker, WorkerOptions,
};

use support::{Words, look, options, quiet, rest, table};

every_protocol! {
    large_and_small_transactions_take_turns,
}

most_protocols! {
    a_client_dies_at_every_step,
}

in_place! {
    recovery_takes_few_rounds,
    recoverers_die_between_and_within_rounds,
}

/// A record of 1 KiB. Thirty of them do not fit a frame of a log of the usual size.
type Rows = Table<u64, Words<128>>;
const ROWS: u64 = 90;
/// The records of a large transaction: three pieces of a log entry.
const MANY: u64 = 75;
const LOG_BYTES: u64 = 256 << 10;

fn cluster(protocol: Protocol, seed: u64) -> (Cluster, Seeded, Rows) {
    let (cluster, fabric) = options(protocol, 3).node_bytes(8 << 20).open_seeded(seed).unwrap();
    let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words::all(0));
    (cluster, fabric, rows)
}

fn worker(cluster: &Cluster, log_bytes: u64, seed: u64) -> Worker {
    cluster.worker(WorkerOptions::default().coroutines(1).seed(seed).log_bytes(log_bytes)).unwrap()
}

/// Adds one to each of these rows, and notes the id of the last attempt.
async fn add(
    session: &mut Session,
    rows: &Rows,
    keys: std::ops::Range<u64>,
    last: &Cell<Option<TransactionId>>,
) -> Result<(), Error> {
    let added = session.transact(async |tx| {
        last.set(Some(tx.id()));
        let slots: Vec<_> = keys.clone().map(|key| tx.want_for(rows, key, Intent::Update)).collect();
        tx.fetch().await?;
        slots.into_iter().try_for_each(|slot| {
            let row = slot.get_mut(tx)?;
            *row = Words::all(row.0[0] + 1);
            Ok(())
        })
    });
    added.await
}

/// Returns how often each row was added to, and asserts that nothing is locked, torn or different
/// at a backup.
fn counts(cluster: &Cluster, fabric: &Seeded, rows: &Rows, what: &str) -> Vec<u64> {
    fabric.settle_services();
    let (values, found) = look(cluster, rows);
    assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0), "{what}: {found:?}");
    assert!(values.iter().all(Words::is_whole), "{what}");
    let read = async |session: &mut Session| {
        let all = session.transact(async |tx| {
            let slots: Vec<_> = (0..ROWS).map(|key| tx.want(rows, key)).collect();
            tx.fetch().await?;
            slots.into_iter().map(|slot| Ok(slot.require(tx)?.0[0])).collect()
        });
        all.await.unwrap()
    };
    worker(cluster, 0, 3).block_on(read)
}

fn is_refused(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::Limit(Reason { cause: Limit::LogEntry { max: 32_768, .. }, .. })))
}

/// Each log goes round several times, with entries of all sizes.
fn large_and_small_transactions_take_turns(protocol: Protocol) {
    let (cluster, fabric, rows) = cluster(protocol, 1);
    let (mut large, mut small) = (worker(&cluster, LOG_BYTES, 1), worker(&cluster, 0, 2));
    let last = Cell::default();
    let mut expected = vec![0; ROWS as usize];
    for turn in 0..24 {
        let many = [MANY, 2, 40, 9][turn as usize % 4];
        let keys = turn % 7..turn % 7 + many;
        large.block_on(async |session| add(session, &rows, keys.clone(), &last).await.unwrap());
        keys.for_each(|key| expected[key as usize] += 1);
        small.block_on(async |session| {
            let all = add(session, &rows, 0..MANY, &last).await;
            // The log of `rtx` has no values.
            if protocol == Protocol::RTX {
                all.unwrap();
                expected[..MANY as usize].iter_mut().for_each(|count| *count += 1);
            } else {
                assert!(is_refused(&all), "{all:?}");
            }
            add(session, &rows, 0..3, &last).await.unwrap();
        });
        expected[..3].iter_mut().for_each(|count| *count += 1);
    }
    quiet(&mut large);
    quiet(&mut small);
    assert_eq!(counts(&cluster, &fabric, &rows, "in turn"), expected);
}

/// A client dies within a large transaction. All of it is applied or nothing, and the verdict says
/// which.
fn a_client_dies_at_every_step(protocol: Protocol) {
    let (mut committed, mut aborted) = (0, 0);
    // A large transaction has some thousand steps.
    let mut step = 0;
    loop {
        let (cluster, fabric, rows) = cluster(protocol, step);
        let mut victim = worker(&cluster, LOG_BYTES, step);
        let client = victim.incarnations().next().unwrap();
        let last = Cell::default();
        victim.block_on(async |session| {
            // A small entry lies before it, and is over.
            add(session, &rows, 0..2, &last).await.unwrap();
            rest(session).await;
        });
        fabric.revoke_after(ClientId(client), step);
        let result = victim.block_on(async |session| add(session, &rows, 0..MANY, &last).await);
        victim.abandon();
        let what = format!("{}, step {step}", protocol.name());
        let mut other = worker(&cluster, 0, step);
        let id = last.get().unwrap();
        other.recover(client).unwrap();
        let verdict = other.block_on(async |session| session.resolve(id, Duration::from_micros(10)).await.unwrap());
        other.block_on(async |session| add(session, &rows, 80..82, &last).await.unwrap());
        quiet(&mut other);
        let counts = counts(&cluster, &fabric, &rows, &what);
        assert!(counts[2..MANY as usize].iter().all(|count| *count == counts[2]), "{what}: {counts:?}");
        assert_eq!(counts[0], counts[2] + 1, "{what}");
        assert!(result.is_err() || counts[2] == 1, "{what}: {result:?}");
        assert_eq!(verdict == Verdict::Committed, counts[2] == 1, "{what}: {verdict:?}");
        *(if counts[2] == 1 { &mut committed } else { &mut aborted }) += 1;
        if result.is_ok() && counts[2] == 1 && committed > 2 {
            break;
        }
        step += 1 + step / 6;
        assert!(step < 1_000_000);
    }
    assert!(aborted > 3, "{}: {aborted}, {committed}", protocol.name());
}

/// A record of one line, for transactions of many records.
type Lines = Table<u64, Words<1>>;

/// A client that has died within a transaction of many records, at all of which it has added one.
struct Dead {
    cluster: Cluster,
    fabric: Seeded,
    lines: Lines,
    client: u32,
    last: TransactionId,
    is_reported: bool,
}

impl Dead {
    fn new(protocol: Protocol, records: u64, step: u64) -> Dead {
        let (cluster, fabric) = options(protocol, 3).node_bytes(16 << 20).open_seeded(step).unwrap();
        let lines = table(&cluster, "lines", TableOptions::for_rows(records), Words::all(0));
        let mut victim = worker(&cluster, LOG_BYTES, step);
        let client = victim.incarnations().next().unwrap();
        let last = Cell::new(None);
        fabric.revoke_after(ClientId(client), step);
        let result = victim.block_on(async |session| {
            let added = session.transact(async |tx| {
                last.set(Some(tx.id()));
                let slots: Vec<_> = (0..records).map(|key| tx.want_for(&lines, key, Intent::Update)).collect();
                tx.fetch().await?;
                slots.into_iter().try_for_each(|slot| {
                    slot.get_mut(tx)?.0[0] += 1;
                    Ok(())
                })
            });
            added.await
        });
        victim.abandon();
        Dead { cluster, fabric, lines, client, last: last.get().unwrap(), is_reported: result.is_ok() }
    }

    /// Repairs what the client had logged. Returns the number of round trips, and of records that
    /// were put back.
    fn repair(&self) -> (u64, u64) {
        let put_back = Cell::new(0);
        let round_trips = block_on(&self.fabric, ClientId(100_000), async |lane| {
            let nodes = self.cluster.live_nodes();
            let told = |_: &recovery::Rollback<'_>| put_back.set(put_back.get() + 1);
            recovery::repair(&self.fabric, lane, nodes, &[self.client], &told).await.unwrap();
            lane.cost().round_trips
        });
        (round_trips.unwrap(), put_back.get())
    }

    /// Asserts that the transaction is whole, and is there if `committed`.
    fn assert_is(&self, committed: bool, what: &str) {
        self.fabric.settle_services();
        let (values, found) = look(&self.cluster, &self.lines);
        assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0), "{what}: {found:?}");
        assert!(values.iter().all(|value| value.0[0] == u64::from(committed)), "{what}");
        assert!(committed || !self.is_reported, "{what}");
    }
}

/// Recovery of a large transaction takes a round trip for many records, not several for each.
fn recovery_takes_few_rounds(protocol: Protocol) {
    const RECORDS: u64 = 500;
    // Round trips that put back, and that roll forward.
    let (mut back, mut forward) = ([0; 2], [0; 2]);
    for (number, records) in [1, RECORDS].into_iter().enumerate() {
        // The large transaction commits after some thousand steps.
        let (first, stride) = if records == 1 { (0, 1) } else { (6_000, 150) };
        for step in (0..200).map(|turn| first + turn * stride) {
            let dead = Dead::new(protocol, records, step);
            let (round_trips, put_back) = dead.repair();
            let what = format!("{protocol:?}, {records} records, step {step}: {round_trips}, {put_back}");
            assert!(put_back == 0 || put_back == records, "{what}");
            worker(&dead.cluster, 0, step).recover(dead.client).unwrap();
            let is_there = look(&dead.cluster, &dead.lines).0[0].0[0] == 1;
            dead.assert_is(is_there, &what);
            if put_back > 0 {
                back[number] = round_trips.max(back[number]);
            } else if is_there {
                forward[number] = round_trips.max(forward[number]);
            }
            if forward[number] > 0 && back[number] > 0 && dead.is_reported {
                break;
            }
        }
    }
    let more = |[one, many]: [u64; 2]| many - one;
    let found = (more(back), more(forward));
    // A round does 96 copies of records. There are 1,500 copies and 500 locks.
    let (copies, locks) = (1500_u64.div_ceil(96) - 1, 500_u64.div_ceil(96) - 1);
    let name = protocol.name();
    if protocol == Protocol::FORD {
        assert_eq!(found, (3 * copies + locks, 2 * copies + locks), "{name}: look, undo, show, unlock");
    }
    // After a lean release, there are second looks. A record with a time is settled by two WRITEs,
    // and its entry has more than one piece.
    assert!(found.0 <= 4 * copies + 2 * locks && found.1 <= 4 * copies + 3 * locks, "{name}: {back:?}, {forward:?}");
}

/// Each recoverer dies later than the one before it, until one finishes. All of them decide the
/// same.
fn recoverers_die_between_and_within_rounds(protocol: Protocol) {
    const RECORDS: u64 = 130;
    const STRIDE: usize = 31;
    let (mut deaths, mut committed, mut aborted) = (0, 0, 0);
    // At least one transaction is undone, and one is rolled forward.
    for step in [1_800, 2_200, 2_850] {
        let dead = Dead::new(protocol, RECORDS, step);
        let what = format!("{}, step {step}", protocol.name());
        let mut put_back = 0;
        let verdicts = (step % 7..100_000).step_by(STRIDE).find_map(|steps| {
            let recoverer = 100_000 + steps as u32;
            dead.fabric.revoke_after(ClientId(recoverer), steps);
            let told = Cell::new(0);
            let verdicts = block_on(&dead.fabric, ClientId(recoverer), async |lane| {
                let tell = |_: &recovery::Rollback<'_>| told.set(told.get() + 1);
                recovery::repair(&dead.fabric, lane, dead.cluster.live_nodes(), &[dead.client], &tell).await
            });
            put_back = put_back.max(told.get());
            deaths += u64::from(told.get() > 0 && !matches!(verdicts, Ok(Ok(_))));
            verdicts.ok().and_then(Result::ok)
        });
        let verdict = verdicts.unwrap()[0].1.of(dead.last);
        assert!(put_back == 0 || verdict == Verdict::Aborted, "{what}: a decision was changed");
        worker(&dead.cluster, 0, step).recover(dead.client).unwrap();
        dead.assert_is(verdict == Verdict::Committed, &what);
        *(if verdict == Verdict::Committed { &mut committed } else { &mut aborted }) += 1;
    }
    assert!(deaths > 30 && committed > 0 && aborted > 0, "{deaths}, {committed}, {aborted}");
}
