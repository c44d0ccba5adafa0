//! Transactions whose log entries do not fit one round: they commit, or abort, as any others do.
//! Clients with small logs beside them refuse such transactions, and nothing of these is applied.

#[macro_use]
mod support;

use std::cell::Cell;
use std::time::Duration;

use remora::floors::fabric::ClientId;
use remora::floors::fabric::seeded::Seeded;
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
