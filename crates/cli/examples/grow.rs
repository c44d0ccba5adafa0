//! SmallBank runs on tables made for 1,000 accounts, while accounts are opened until there are
//! 1,000,000. Measures the longest time in which no transaction ends, while the tables grow.
//!
//! `cargo run --release -p remora-cli --example grow [ACCOUNTS] [PROTOCOL]`
//!
//! With `--history FILE`, all transactions are recorded, with the ones that move rows; check them
//! with `remora check FILE`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora::protocol::Protocol;
use remora::{Cluster, Error, Table, Worker, WorkerOptions};
use remora_check::HistoryFile;
use remora_workload::Prng;
use remora_workload::smallbank::{Account, Customers, Kind, SmallBank};

const FIRST: u64 = 1_000;
/// Coroutines of the thread that opens accounts.
const OPENERS: u64 = 4;
/// The balance of an account when it is opened, in cents.
const BALANCE: i64 = 10_000;

/// The observations of one thread.
#[derive(Default)]
struct Seen {
    transactions: u64,
    /// The longest time in which none of the thread's transactions ended.
    longest_stop: Duration,
    last: Option<Instant>,
}

impl Seen {
    fn note(&mut self) {
        let now = Instant::now();
        self.longest_stop = self.longest_stop.max(self.last.map_or(Duration::ZERO, |last| now - last));
        self.last = Some(now);
        self.transactions += 1;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let history = match arguments.iter().position(|argument| argument == "--history") {
        Some(at) => {
            let path = arguments.get(at + 1).ok_or("--history needs a file")?.clone();
            arguments.drain(at..at + 2);
            Some(HistoryFile::in_file(std::fs::File::create(path)?, false)?)
        }
        None => None,
    };
    let accounts = arguments.first().map_or(Ok(1_000_000), |accounts| accounts.parse::<u64>())?;
    let protocol = match arguments.get(1) {
        Some(name) => Protocol::ALL.into_iter().find(|one| one.name() == *name).ok_or("no such protocol")?,
        None => Protocol::default(),
    };
    let cluster = Cluster::embedded().node_bytes(2 << 30).protocol(protocol).open()?;
    let cluster = match history.clone() {
        Some(file) => cluster.with_movers_observed(Arc::new(move || Box::new(file.recorder()))),
        None => cluster,
    };
    let bank = SmallBank::load(&cluster, Customers::new(FIRST, 0.04, 0.9))?;
    let savings = cluster.open_table::<u64, Account>("savings")?;
    let checking = cluster.open_table::<u64, Account>("checking")?;

    let done = AtomicBool::new(false);
    let alone = run(&cluster, &bank, history.as_ref(), &|began| began.elapsed() > Duration::from_secs(2))?;
    let began = Instant::now();
    let (opened, during) = thread::scope(|scope| {
        let opener = scope.spawn(|| {
            let opened = open(&cluster, [&savings, &checking], accounts, history.as_ref());
            done.store(true, Ordering::Relaxed);
            opened
        });
        let during = run(&cluster, &bank, history.as_ref(), &|_| done.load(Ordering::Relaxed));
        (opener.join().expect("a thread that does not panic"), during)
    });
    let (opened, during, seconds) = (opened?, during?, began.elapsed().as_secs_f64());
    let catalog = cluster.catalog();
    for table in [&savings, &checking] {
        let found = cluster.inspect(table, |_| {})?;
        let (_, entry) = catalog.table(table.name())?;
        println!("{}: {} rows, grown {} times, {found:?}", table.name(), found.records, entry.growths);
        assert_eq!((found.records, found.locked, found.differing_lines), (accounts, 0, 0));
    }
    let after = run(&cluster, &bank, history.as_ref(), &|began| began.elapsed() > Duration::from_secs(2))?;
    println!(
        "{protocol:?}, {accounts} accounts opened in {seconds:.1} s: {:.0}/s",
        opened.transactions as f64 / seconds
    );
    println!(
        "SmallBank, transactions a second: {:.0} alone, {:.0} meanwhile, {:.0} after it",
        alone.transactions as f64 / 2.0,
        during.transactions as f64 / seconds,
        after.transactions as f64 / 2.0
    );
    println!(
        "longest stop: SmallBank {:?} (alone {:?}), opening {:?}",
        during.longest_stop, alone.longest_stop, opened.longest_stop
    );
    if let Some(history) = history {
        history.finish()?;
    }
    Ok(())
}

/// Records the transactions of a worker, if there is a history.
fn record(worker: &mut Worker, history: Option<&Arc<HistoryFile>>) {
    for session in worker.sessions() {
        session.observe(history.map(|file| Box::new(file.recorder()) as Box<_>));
    }
}

/// Runs SmallBank on a thread until it is over.
fn run(
    cluster: &Cluster,
    bank: &SmallBank,
    history: Option<&Arc<HistoryFile>>,
    is_over: &dyn Fn(Instant) -> bool,
) -> Result<Seen, Error> {
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(1).seed(7))?;
    record(&mut worker, history);
    worker.block_on(async |session| {
        let (mut random, mut seen, began) = (Prng::derive(1, 0), Seen::default(), Instant::now());
        while !is_over(began) {
            match bank.run(session, Kind::draw(&mut random), &mut random).await {
                Ok(_) | Err(Error::User(_)) => seen.note(),
                Err(error) => return Err(error),
            }
        }
        Ok(seen)
    })
}

/// Opens accounts until there are the number that is wanted.
fn open(
    cluster: &Cluster,
    [savings, checking]: [&Table<u64, Account>; 2],
    accounts: u64,
    history: Option<&Arc<HistoryFile>>,
) -> Result<Seen, Error> {
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(OPENERS as usize))?;
    record(&mut worker, history);
    let seen = std::cell::RefCell::new(Seen::default());
    let ended = worker.run(async |opener, session| {
        for account in (FIRST..accounts).filter(|account| account % OPENERS == opener as u64) {
            let opened = session.transact(async |tx| {
                tx.prefetch(remora::Intent::Insert, ((savings, account), (checking, account))).await?;
                savings.insert(tx, account, Account { balance: BALANCE }).await?;
                checking.insert(tx, account, Account { balance: BALANCE }).await
            });
            opened.await?;
            seen.borrow_mut().note();
        }
        Ok(())
    });
    ended.into_iter().collect::<Result<(), Error>>()?;
    Ok(seen.into_inner())
}
