//! Tests of durable histories: what a client has written down when it dies is enough to check the
//! other clients.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use remora::floors::fabric::catch_panic;
use remora::protocol::Protocol;
use remora::{Cluster, Error, Session, WorkerOptions};
use remora_check::{Counts, HistoryFile, HistoryReader, ReadOptions, Status, check};
use remora_workload::smallbank::{Customers, SmallBank};
use remora_workload::{Prng, Workload};

const ACCOUNTS: u64 = 6;

/// The first line of a durable history.
const BEGUN: &[u8] = b"{\"history\":\"durable\"}\n";

/// A file in memory that keeps its writes apart. Its writer dies instead of making more than the
/// given number of writes.
#[derive(Clone)]
struct Writes(Arc<Mutex<Vec<Vec<u8>>>>, usize);

impl Writes {
    fn until(death: usize) -> Writes {
        Writes(Arc::default(), death)
    }

    fn lines(&self) -> Vec<Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Write for Writes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut writes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if writes.len() < self.1 {
            writes.push(bytes.to_vec());
        } else if !thread::panicking() {
            panic!("killed");
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn cluster(protocol: Protocol, seed: u64) -> Cluster {
    let options = Cluster::embedded().node_bytes(8 << 20).protocol(protocol);
    options.open_seeded(seed).unwrap().0
}

async fn transactions(bank: &SmallBank, session: &mut Session, mut random: Prng, count: usize) -> Result<(), Error> {
    for _ in 0..count {
        match bank.transact(session, &mut random, &mut Default::default()).await {
            Ok(()) | Err(Error::User(_) | Error::Aborted(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Each line is a write of its own. If a transaction writes something, an unknown line comes before
/// its final line and has the same contents.
#[test]
fn what_is_about_to_commit_is_written_down_first() {
    for protocol in Protocol::ALL {
        let cluster = cluster(protocol, 1);
        let bank = SmallBank::load(&cluster, Customers::new(ACCOUNTS, 0.5, 0.5)).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
        let writes = Writes::until(usize::MAX);
        let file = HistoryFile::durable(writes.clone());
        worker.block_on(async |session| {
            session.observe(Some(Box::new(file.recorder())));
            transactions(&bank, session, Prng::derive(1, 1), 100).await.unwrap();
        });
        file.finish().unwrap();
        let mut announced = None;
        let mut kinds = [0; 2];
        let lines = writes.lines();
        let [begun, lines @ .., ended] = lines.as_slice() else { panic!("it begins and ends") };
        assert_eq!((begun.as_slice(), ended.as_slice()), (BEGUN, &b"{\"history\":\"ended\"  }\n"[..]));
        for line in lines {
            assert!(line.ends_with(b"\n") && line.iter().filter(|byte| **byte == b'\n').count() == 1);
            let mut reader = HistoryReader::new(ReadOptions::default());
            reader.read("line", line.as_slice()).unwrap();
            let history = reader.finish().history;
            let one = history.transactions().next().unwrap();
            let (reads, writes): (Vec<_>, Vec<_>) = (one.reads().collect(), one.writes().collect());
            let said = (one.id(), one.start_ns(), format!("{reads:?}, {writes:?}"));
            let wrote = !writes.is_empty();
            match one.status() {
                Status::Unknown => assert!(wrote && announced.replace(said).is_none()),
                Status::Committed if wrote => assert_eq!(announced.take(), Some(said)),
                _ => assert_eq!(announced, None),
            }
            kinds[usize::from(wrote)] += 1;
        }
        assert!(announced.is_none() && kinds.iter().all(|count| *count > 10), "{protocol:?}: {kinds:?}");
    }
}

/// Runs four clients, one of which dies instead of writing the `death`th line after the first.
/// Returns the result of checking all four.
fn with_a_death(protocol: Protocol, seed: u64, death: usize) -> (Counts, bool) {
    let cluster = cluster(protocol, seed);
    let bank = SmallBank::load(&cluster, Customers::new(ACCOUNTS, 0.5, 0.5)).unwrap();
    let options = WorkerOptions::default().coroutines(4).clients(4).seed(seed).yield_after_rounds(true);
    let mut worker = cluster.worker(options).unwrap();
    let writes: Vec<Writes> = [1 + death, usize::MAX, usize::MAX, usize::MAX].map(Writes::until).to_vec();
    for (session, writes) in worker.sessions().iter_mut().zip(&writes) {
        session.observe(Some(Box::new(HistoryFile::durable(writes.clone()).recorder())));
    }
    let ran = worker.run(async |coroutine, session| {
        let random = Prng::derive(seed, coroutine as u64);
        let ended = catch_panic(transactions(&bank, session, random, 30)).await;
        ended.map_or(coroutine == 0, |result| result.is_ok())
    });
    assert_eq!(ran, [true; 4]);
    let mut reader = HistoryReader::new(ReadOptions { crashed: true });
    for (client, writes) in writes.iter().enumerate() {
        reader.read(&format!("client {client}"), writes.lines().concat().as_slice()).unwrap();
    }
    let history = reader.finish().history;
    let report = check(&history);
    assert!(report.is_clean(), "{protocol:?}, seed {seed}, death at line {death}: {report}");
    (report.counts, writes[0].lines().len() == 1 + death)
}

#[test]
fn a_client_may_die_at_every_line() {
    let (mut died, mut unknown, mut observed) = (0, 0, 0);
    for death in 0..60 {
        let (counts, dead) = with_a_death(Protocol::default(), death as u64, death);
        died += u64::from(dead);
        unknown += counts.unknown;
        observed += counts.unknown_observed;
    }
    assert!(died > 40 && unknown > 10 && observed > 5, "{died} died, {unknown} unknown, {observed} of them observed");
}
