//! Tests of the part of TPC-E on real and on seeded clusters, with every protocol: each transaction
//! does what it should, its invariants hold, and broken ones are found.

mod support;

use std::collections::BTreeSet;

use remora::protocol::Protocol;
use remora::{
    Cluster, ClusterOptions, Error, Key, Ordered, Record, Session, Table, Transaction, Worker, WorkerOptions,
};
use remora_workload::driver::{self, Length, RunOptions};
use remora_workload::tpce::rows::{
    Account, Customer, HistoryEntry, Holding, LastTrade, STATES, Trade, account_id, customer_of,
};
use remora_workload::tpce::{
    Done, FeedInput, Kind, Position, PositionInput, Room, Scale, TICKERS, Tables, Ticker, Tpce, TradeInput,
};
use remora_workload::{After, Invariant, Prng, Setting, Statistics, Workload};

use support::{assert_sound, is_long, serializable};

const NAMES: [&str; 10] = [
    "a balance is its trades'",
    "holdings are bought less sold",
    "trades and histories have no gaps",
    "last trades are the feed's",
    "every row is in its place",
    "readers have seen one state",
    "what was committed is there",
    "replicas are identical",
    "no lock is held",
    "every log entry is settled",
];

const SCALE: Scale = Scale { customers: 12, securities: 60 };

fn options(protocol: Protocol, replicas: u8, room: Room) -> ClusterOptions {
    let replicas = replicas.min(protocol.discipline().copies_max() as u8);
    let setting = Setting { memory_nodes: 3, replicas, workers: 16, coroutines: 8, archive: None };
    let node_bytes = Tpce::node_bytes(&SCALE, room, &setting, protocol) as usize;
    Cluster::embedded().nodes(3).replicas(replicas).node_bytes(node_bytes).protocol(protocol)
}

#[test]
fn a_run_on_shared_memory_keeps_the_invariants() {
    const TRANSACTIONS: u64 = 6_001;
    for protocol in serializable() {
        let without_backups = is_long() || protocol == Protocol::FORD;
        for replicas in if without_backups { 1..=3 } else { 3..=3 }.step_by(2) {
            let room = Room::for_transactions(TRANSACTIONS);
            let cluster = options(protocol, replicas, room).open().unwrap();
            let tpce = Tpce::load(&cluster, SCALE, room, 1).unwrap();
            // Protocols that have snapshots read them in the runs with backups.
            let tpce = tpce.with_snapshots(replicas > 1 && protocol.has_snapshots());
            let length = Length::Transactions(TRANSACTIONS);
            let run = RunOptions {
                threads: 3,
                coroutines: 4,
                length,
                seed: 7,
                yield_after_rounds: true,
                rate: None,
                archive: None,
            };
            let measured = driver::run(&cluster, &tpce, &run, &|| None, |_| ()).unwrap();
            assert_sound(&measured.invariants, &NAMES);
            assert_eq!(measured.statistics.committed() + measured.given_up, TRANSACTIONS, "{protocol:?}");
            assert!(!measured.table_full);
            let report = measured.report::<Tpce>(&cluster, "shm", serde_json::Value::Null);
            assert_eq!(report.aborted["user"], 0, "no transaction gives up");
            let reads = report.by_type["customer_position"].committed as f64 / TRANSACTIONS as f64;
            assert!((0.77..0.81).contains(&reads), "{protocol:?}: {reads} only read");
            assert!(report.by_type["market_feed"].committed > 20, "{protocol:?}");
        }
    }
}

#[test]
fn a_run_on_a_seeded_cluster_keeps_the_invariants() {
    for protocol in serializable() {
        let (mut conflicts, mut changed) = (0, 0);
        for seed in 0..4 {
            let room = Room { trades: 400 };
            let (cluster, _seeded) = options(protocol, 3, room).open_seeded(seed).unwrap();
            let scale = Scale { customers: 2, securities: 25 };
            let tpce = Tpce::load(&cluster, scale, room, seed).unwrap();
            let tpce = tpce.with_snapshots(seed % 2 == 0 && protocol.has_snapshots());
            let worker = WorkerOptions::default().coroutines(6).clients(3).seed(seed).yield_after_rounds(false);
            let mut worker = cluster.worker(worker).unwrap();
            let (statistics, invariants) = driver::run_here(&cluster, &tpce, &mut worker, 40, seed).unwrap();
            assert_sound(&invariants, &NAMES);
            assert_eq!(statistics.committed(), 6 * 40, "{protocol:?}, seed {seed}");
            conflicts += statistics.types.iter().map(|one| one.aborted).sum::<u64>();
            changed += statistics.types[Kind::Trade as usize].committed;
        }
        assert!(conflicts > 10, "{protocol:?}: {conflicts} conflicts: six coroutines and two customers must meet");
        assert!(changed > 100, "{protocol:?}: {changed} trades");
    }
}

/// A run that makes more trades than there is room for ends early, and what it has done is
/// complete.
#[test]
fn a_full_table_ends_a_run_and_nothing_else() {
    let room = Room { trades: 100 };
    let cluster = options(Protocol::DRTM_R, 3, room).open().unwrap();
    let tpce = Tpce::load(&cluster, SCALE, room, 1).unwrap();
    let length = Length::Transactions(1_000_000);
    let run =
        RunOptions { threads: 2, coroutines: 4, length, seed: 7, yield_after_rounds: false, rate: None, archive: None };
    let measured = driver::run(&cluster, &tpce, &run, &|| None, |_| ()).unwrap();
    assert!(measured.table_full);
    assert_sound(&measured.invariants, &NAMES);
    let made = measured.statistics.types[Kind::Trade as usize].committed;
    assert!(made >= 100, "{made} trades, and room for more");
}

/// Every type has the expected round trips, while no other client runs.
#[test]
fn every_type_costs_its_round_trips() {
    let costs = |protocol: Protocol| {
        let room = Room { trades: 1_000 };
        let cluster = options(protocol, 3, room).open().unwrap();
        let tpce = Tpce::load(&cluster, SCALE, room, 1).unwrap().with_snapshots(protocol.has_snapshots());
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
        worker.block_on(async |session| tpce.warm(session, 0, 1).await).unwrap();
        let mut costs = [(u64::MAX, 0, 0); 3];
        for (kind, _) in Kind::MIX {
            let tpce = tpce.clone().with_only(Some(kind));
            for number in 0..if is_long() { 100 } else { 30 } {
                // Each transaction ends with drained rings, because one that finds its ring full
                // needs one more round trip.
                let (statistics, _) = driver::run_here(&cluster, &tpce, &mut worker, 1, number).unwrap();
                let one = &statistics.types[kind as usize];
                assert_eq!((one.committed, one.aborted), (1, 0), "there is nobody to meet");
                let (least, all, count) = &mut costs[kind as usize];
                let cost = one.cost.round_trips;
                (*least, *all, *count) = ((*least).min(cost), *all + cost, *count + 1);
            }
        }
        costs
    };
    // A Customer-Position costs this with the second frame and without it. Protocol remora reads it
    // as a snapshot.
    for (protocol, expected) in
        [(Protocol::DRTM_R, [4, 3, 4]), (Protocol::FORD, [4, 2, 3]), (Protocol::REMORA, [3, 2, 2])]
    {
        let found = costs(protocol);
        assert_eq!(found.map(|(least, ..)| least), expected, "{protocol:?}: {found:?}");
        // Only a trade that splits a leaf costs more. Few do: the leaves of trades are half full.
        let more = found.map(|(least, all, count)| all - least * count);
        assert!(more[..2] == [0, 0] && 5 * more[2] < found[2].2, "{protocol:?}: {found:?}");
    }
}

#[test]
fn without_transactions_nothing_is_claimed() {
    let room = Room { trades: 2_000 };
    let cluster = options(Protocol::UNSYNCHRONIZED, 3, room).open().unwrap();
    let tpce = Tpce::load(&cluster, SCALE, room, 1).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let (_, invariants) = driver::run_here(&cluster, &tpce, &mut worker, 200, 1).unwrap();
    assert_eq!(invariants.len(), NAMES.len());
    let unclaimed = |one: &Invariant| one.holds.is_none() && one.detail.contains("no transactions");
    assert!(invariants.iter().all(unclaimed), "{invariants:?}");
}

/// The memory that the sizing asks for is enough.
#[test]
fn nodes_are_sized_for_the_population() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        for (memory_nodes, replicas, scale) in [
            (1, 1, Scale { customers: 1, securities: 1 }),
            (3, 3, Scale::of_customers(40)),
            (4, 2, Scale::of_customers(1_000)),
        ] {
            let setting = Setting { memory_nodes, replicas, workers: 1, coroutines: 2, archive: None };
            let room = Room::for_transactions(4_000);
            let node_bytes = Tpce::node_bytes(&scale, room, &setting, protocol) as usize;
            let sized = options(protocol, replicas, room).nodes(memory_nodes).node_bytes(node_bytes);
            let cluster = sized.open().unwrap();
            let tpce = Tpce::load(&cluster, scale, room, 1).unwrap();
            let mut worker = cluster.worker(WorkerOptions::default().coroutines(2)).unwrap();
            let (_, invariants) = driver::run_here(&cluster, &tpce, &mut worker, 2_000, 1).unwrap();
            assert_sound(&invariants, &NAMES);
        }
    }
}

/// A table of either kind.
trait Rows<K: Copy, V: Record> {
    async fn read(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error>;
    async fn write(&self, tx: &mut Transaction<'_, '_>, key: K, row: V) -> Result<(), Error>;
    async fn insert(&self, tx: &mut Transaction<'_, '_>, key: K, row: V) -> Result<(), Error>;
    async fn delete(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<(), Error>;
}

macro_rules! rows_of {
    ($table:ident) => {
        impl<K: Key + Copy, V: Record> Rows<K, V> for $table<K, V> {
            async fn read(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
                self.get(tx, key).await
            }

            async fn write(&self, tx: &mut Transaction<'_, '_>, key: K, row: V) -> Result<(), Error> {
                self.update(tx, key, row).await
            }

            async fn insert(&self, tx: &mut Transaction<'_, '_>, key: K, row: V) -> Result<(), Error> {
                $table::insert(self, tx, key, row).await
            }

            async fn delete(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<(), Error> {
                self.remove(tx, key).await?.map(|_| ()).ok_or_else(|| self.missing(key))
            }
        }
    };
}
rows_of!(Table);
rows_of!(Ordered);

/// A cluster, what is loaded in it, and one worker.
struct Bed {
    cluster: Cluster,
    tpce: Tpce,
    tables: Tables,
    worker: Worker,
}

impl Bed {
    fn new(protocol: Protocol) -> Bed {
        let room = Room { trades: 200 };
        let cluster = options(protocol, 3, room).open().unwrap();
        let tpce = Tpce::load(&cluster, SCALE, room, 3).unwrap();
        let tables = Tables::open(&cluster).unwrap();
        let worker = cluster.worker(WorkerOptions::default()).unwrap();
        Bed { cluster, tpce, tables, worker }
    }

    /// Returns a row, or `None` if there is none.
    fn find<K: Copy, V: Record>(&mut self, table: &impl Rows<K, V>, key: K) -> Option<V> {
        self.change(async |tx| table.read(tx, key).await)
    }

    #[track_caller]
    fn row<K: Copy, V: Record>(&mut self, table: &impl Rows<K, V>, key: K) -> V {
        self.find(table, key).expect("the row is there")
    }

    /// Runs a transaction of the test's own, and waits until the backups have applied it.
    fn change<T>(&mut self, body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>) -> T {
        let result = self.worker.block_on(async |session| session.transact(body).await).unwrap();
        assert!(self.worker.drain().unwrap());
        result
    }

    /// Changes a row. Returns the former row.
    fn alter<K: Copy, V: Record>(&mut self, table: &impl Rows<K, V>, key: K, alter: impl Fn(&mut V)) -> V {
        self.change(async |tx| {
            let before = table.read(tx, key).await?.ok_or_else(|| Error::NotFound(Default::default()))?;
            let mut row = before;
            alter(&mut row);
            table.write(tx, key, row).await?;
            Ok(before)
        })
    }

    /// Runs one of the workload's transactions.
    fn run<T>(&mut self, body: impl AsyncFnOnce(&Tpce, &mut Session) -> Result<T, Error>) -> T {
        let tpce = &self.tpce;
        let result = self.worker.block_on(async |session| body(tpce, session).await).unwrap();
        assert!(self.worker.drain().unwrap());
        result
    }

    fn position(&mut self, c_id: u32, history_of: Option<u8>) -> Position {
        let input = PositionInput { c_id, history_of };
        self.run(async |tpce, session| tpce.customer_position(session, &input).await)
    }

    fn trade(&mut self, ca_id: u32, symbol: u32, quantity: i32) -> (u32, i64) {
        let input = TradeInput { ca_id, symbol, quantity, date: 77 };
        let traded = self.run(async |tpce, session| tpce.trade(session, &input).await);
        (traded.number, traded.settlement)
    }

    /// Returns the indices of the invariants that do not hold, after transactions that have done
    /// `done`.
    fn broken(&self, done: Done, settled: bool) -> Vec<usize> {
        let after = After { ledgers: &[done], settled, unknown: 0 };
        let invariants = self.tpce.invariants(&self.cluster, after).unwrap();
        (0..NAMES.len()).filter(|index| invariants[*index].holds == Some(false)).collect()
    }
}

fn rows<K: Key, V: Record>(cluster: &Cluster, table: &Ordered<K, V>) -> Vec<(K, V)> {
    let mut rows = Vec::new();
    cluster.inspect_ordered(table, |key, row| rows.push((*key, *row))).unwrap();
    rows
}

/// What a Customer-Position returns is what the tables have.
#[test]
fn a_position_is_what_all_accounts_hold() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let mut bed = Bed::new(protocol);
        let tables = bed.tables.clone();
        let (mut several, mut shared) = (0, 0);
        for c_id in 1..=SCALE.customers {
            let customer = bed.row(&tables.customer, c_id);
            let accounts: Vec<u32> = (0..customer.accounts).map(|number| account_id(c_id, number)).collect();
            let cash: i64 = accounts.iter().map(|ca_id| bed.row(&tables.account, *ca_id).balance).sum();
            let mut holdings = rows(&bed.cluster, &tables.holding_summary);
            holdings.retain(|((ca_id, _), _)| customer_of(*ca_id) == c_id);
            let price = |((_, symbol), holding): &((u32, u32), Holding)| {
                bed.row(&tables.last_trade, *symbol).price * holding.quantity
            };
            let assets: i64 = holdings.iter().map(price).sum();
            let symbols: BTreeSet<u32> = holdings.iter().map(|((_, symbol), _)| *symbol).collect();
            several += u32::from(accounts.len() > 1);
            shared += u32::from(symbols.len() < holdings.len());
            let (count, holdings) = (customer.accounts, holdings.len() as u32);
            let first = Position { accounts: count, holdings, cash, assets, trades: 0, is_torn: false };
            assert_eq!(bed.position(c_id, None), first, "{protocol:?}");
            assert_eq!(bed.position(c_id, Some(count + 1)), Position { trades: 10, ..first }, "{protocol:?}");
        }
        assert!(several > 5 && shared > 5, "customers have several accounts, which hold equal securities");
        // A loaded account has ten trades, and a position looks at ten of eleven.
        let holding = rows(&bed.cluster, &tables.holding_summary)[0].0;
        bed.trade(holding.0, holding.1, 100);
        let found = bed.position(customer_of(holding.0), Some((holding.0 % 10) as u8));
        assert_eq!((found.trades, found.is_torn), (10, false));
    }
}

#[test]
fn a_trade_changes_the_account_and_what_it_holds() {
    for protocol in serializable() {
        let mut bed = Bed::new(protocol);
        let tables = bed.tables.clone();
        let ((ca_id, symbol), held) = rows(&bed.cluster, &tables.holding_summary)[3];
        let price = bed.row(&tables.last_trade, symbol).price;
        let commission = [1_500, 1_000, 500][usize::from(bed.row(&tables.customer, customer_of(ca_id)).tier) - 1];
        let before = bed.row(&tables.account, ca_id);
        // The account buys, sells all that it has, sells what it does not have, and buys that back.
        let bought = held.quantity as i32 + 100;
        let (mut balance, mut number) = (before.balance, before.trades);
        for (quantity, left) in [(100, Some(bought)), (-bought, None), (-400, Some(-400)), (400, None)] {
            let settlement = -price * i64::from(quantity) - commission;
            number += 1;
            assert_eq!(bed.trade(ca_id, symbol, quantity), (number, settlement), "{protocol:?}");
            balance += settlement;
            let account = bed.row(&tables.account, ca_id);
            assert_eq!((account.balance, account.trades), (balance, number));
            let holding = left.map(|left| Holding { quantity: left.into() });
            assert_eq!(bed.find(&tables.holding_summary, (ca_id, symbol)), holding);
            let trade = Trade { date: 77, settlement, price, symbol, quantity };
            assert_eq!(bed.row(&tables.trade, (ca_id, number)), trade);
            for state in STATES {
                assert_eq!(bed.row(&tables.trade_history, (ca_id, number, state)), HistoryEntry { date: 77 });
            }
            let position = bed.position(customer_of(ca_id), Some((ca_id % 10) as u8));
            assert!(!position.is_torn, "{protocol:?}: {position:?}");
        }
        assert!(bed.broken(Done { trades: 4, ..Done::default() }, true).is_empty());
    }
}

#[test]
fn a_feed_changes_the_last_trades_of_its_securities() {
    let mut bed = Bed::new(Protocol::DRTM_R);
    let tables = bed.tables.clone();
    let before: Vec<LastTrade> = (1..=60).map(|symbol| bed.row(&tables.last_trade, symbol)).collect();
    let mut tickers = [Ticker::default(); TICKERS];
    tickers.iter_mut().zip(5..).for_each(|(ticker, symbol)| {
        *ticker = Ticker { symbol, price: 2_500 + i64::from(symbol), quantity: 100 };
    });
    let input = FeedInput { tickers, count: 3, date: 99 };
    (0..2).for_each(|_| bed.run(async |tpce, session| tpce.market_feed(session, &input).await));
    for (before, symbol) in before.into_iter().zip(1..) {
        let now = bed.row(&tables.last_trade, symbol);
        let expected = if (5..8).contains(&symbol) {
            LastTrade { date: 99, price: 2_500 + i64::from(symbol), volume: 200, changes: 2, ..before }
        } else {
            before
        };
        assert_eq!(now, expected);
    }
    assert!(bed.broken(Done { tickers: 6, volume: 600, ..Done::default() }, true).is_empty());
}

/// A reader finds rows that contradict each other. Otherwise its checks prove nothing.
#[test]
fn a_torn_position_is_noticed() {
    let mut bed = Bed::new(Protocol::DRTM_R);
    let tables = bed.tables.clone();
    let ((ca_id, symbol), _) = rows(&bed.cluster, &tables.holding_summary)[0];
    let (c_id, number) = (customer_of(ca_id), Some((ca_id % 10) as u8));
    let check = |bed: &mut Bed, first, second| {
        assert_eq!(bed.position(c_id, None).is_torn, first);
        assert_eq!(bed.position(c_id, number).is_torn, second);
    };
    check(&mut bed, false, false);
    let before = bed.alter(&tables.holding_summary, (ca_id, symbol), |row| row.quantity += 1);
    check(&mut bed, true, true);
    bed.alter(&tables.holding_summary, (ca_id, symbol), |row| *row = before);
    let before = bed.alter(&tables.account, ca_id, |row| row.trades += 1);
    check(&mut bed, false, true);
    bed.alter(&tables.account, ca_id, |row| *row = before);
    let before = bed.row(&tables.trade_history, (ca_id, 9, 1));
    bed.change(async |tx| tables.trade_history.remove(tx, (ca_id, 9, 1)).await);
    check(&mut bed, false, true);
    bed.change(async |tx| tables.trade_history.insert(tx, (ca_id, 9, 1), before).await);
    check(&mut bed, false, false);
    // All trades of the account are gone.
    for number in 1..=10 {
        bed.change(async |tx| tables.trade.remove(tx, (ca_id, number)).await);
    }
    check(&mut bed, false, true);
}

/// Damage that no client knows of must be found and named. Otherwise the checks above prove
/// nothing.
#[test]
fn invariants_that_do_not_hold_are_found() {
    const NOTHING: Done = Done { trades: 0, tickers: 0, volume: 0, torn: 0 };
    let mut bed = Bed::new(Protocol::DRTM_R);
    let tables = bed.tables.clone();
    assert!(bed.broken(NOTHING, true).is_empty());
    // Damage the ledgers.
    for (done, expected) in [
        (Done { trades: 1, ..NOTHING }, 6),
        (Done { tickers: 1, ..NOTHING }, 3),
        (Done { volume: 1, ..NOTHING }, 3),
        (Done { torn: 1, ..NOTHING }, 5),
    ] {
        assert_eq!(bed.broken(done, true), [expected], "{done:?}");
    }
    assert_eq!(bed.broken(NOTHING, false), [9]);
    let after = After { ledgers: &[], settled: true, unknown: 1 };
    let invariants = bed.tpce.invariants(&bed.cluster, after).unwrap();
    let unknown: Vec<usize> = (0..NAMES.len()).filter(|index| invariants[*index].holds.is_none()).collect();
    assert_eq!(unknown, [3, 6], "nobody knows");

    // Change rows by transactions that are not the workload's, and then change them back.
    let ((ca_id, symbol), _) = rows(&bed.cluster, &tables.holding_summary)[0];
    bed.trade(ca_id, symbol, 100);
    let done = Done { trades: 1, ..NOTHING };
    assert!(bed.broken(done, true).is_empty());
    macro_rules! broken {
        ($table:ident[$key:expr], $alter:expr, $expected:expr) => {
            let (key, expected): (_, &[usize]) = ($key, &$expected);
            let before = bed.alter(&tables.$table, key, $alter);
            assert_eq!(bed.broken(done, true), expected, "{} {key:?}", stringify!($table));
            bed.alter(&tables.$table, key, |row| *row = before);
            assert!(bed.broken(done, true).is_empty());
        };
    }
    broken!(customer[2], |row: &mut Customer| row.tier ^= 1, [4]);
    broken!(account[ca_id], |row: &mut Account| row.balance += 1, [0]);
    broken!(account[ca_id], |row: &mut Account| row.shares += 1, [1]);
    broken!(account[ca_id], |row: &mut Account| row.trades += 1, [2]);
    broken!(last_trade[5], |row: &mut LastTrade| row.volume += 1, [3]);
    broken!(last_trade[5], |row: &mut LastTrade| row.changes += 1, [3]);
    broken!(last_trade[5], |row: &mut LastTrade| row.symbol = 61, [4]);
    broken!(holding_summary[(ca_id, symbol)], |row: &mut Holding| row.quantity += 1, [1]);
    broken!(holding_summary[(ca_id, symbol)], |row: &mut Holding| row.quantity = 0, [1, 4]);
    broken!(trade[(ca_id, 11)], |row: &mut Trade| row.settlement += 1, [0, 4]);
    broken!(trade[(ca_id, 11)], |row: &mut Trade| row.price += 1, [4]);
    broken!(trade[(ca_id, 11)], |row: &mut Trade| row.symbol = 61, [1, 4]);

    // Remove rows, or move them to another key.
    macro_rules! missing {
        ($table:ident[$key:expr], $other:expr, $expected:expr) => {
            let (key, other, expected): (_, Option<_>, &[usize]) = ($key, $other, &$expected);
            let before = bed.row(&tables.$table, key);
            let shift = |bed: &mut Bed, from, to| {
                bed.change(async |tx| {
                    if let Some(from) = from {
                        Rows::delete(&tables.$table, tx, from).await?;
                    }
                    if let Some(to) = to {
                        Rows::insert(&tables.$table, tx, to, before).await?;
                    }
                    Ok(())
                });
            };
            shift(&mut bed, Some(key), other);
            assert_eq!(bed.broken(done, true), expected, "{} {key:?}", stringify!($table));
            shift(&mut bed, other, Some(key));
            assert!(bed.broken(done, true).is_empty());
        };
    }
    missing!(customer[2], None, [4]);
    missing!(account[ca_id], None, [4]);
    missing!(last_trade[5], None, [4]);
    missing!(holding_summary[(ca_id, symbol)], None, [1]);
    missing!(holding_summary[(ca_id, symbol)], Some((ca_id, 61)), [1, 4]);
    missing!(trade[(ca_id, 11)], None, [0, 1, 2, 6]);
    missing!(trade[(ca_id, 11)], Some((ca_id, 12)), [2]);
    missing!(trade[(ca_id, 11)], Some((5, 11)), [0, 1, 2, 4, 6]);
    missing!(trade_history[(ca_id, 11, 1)], None, [2]);
    missing!(trade_history[(ca_id, 11, 1)], Some((ca_id, 11, 3)), [4]);

    // A trade is gone with its history, and is not the last one of its account.
    let (key, before) = ((ca_id, 5), bed.row(&tables.trade, (ca_id, 5)));
    let states = STATES.map(|state| (ca_id, 5, state));
    let history = states.map(|key| bed.row(&tables.trade_history, key));
    bed.change(async |tx| {
        for state in states {
            tables.trade_history.remove(tx, state).await?;
        }
        tables.trade.remove(tx, key).await
    });
    assert_eq!(bed.broken(done, true), [2, 6]);
    bed.change(async |tx| {
        for (state, row) in states.into_iter().zip(history) {
            tables.trade_history.insert(tx, state, row).await?;
        }
        tables.trade.insert(tx, key, before).await
    });
    // Two rows are of one account.
    let (spare, row) = (account_id(SCALE.customers + 1, 0), bed.row(&tables.account, ca_id));
    bed.change(async |tx| tables.account.insert(tx, spare, row).await);
    assert_eq!(bed.broken(done, true), [4]);
    bed.change(async |tx| tables.account.remove(tx, spare).await);
    assert!(bed.broken(done, true).is_empty());
}

/// Transactions of the mix change what the readers of the mix check.
#[test]
fn ledgers_add_up() {
    let mut bed = Bed::new(Protocol::DRTM_R);
    let (mut random, mut ledger) = (Prng::new(5), Done::default());
    let mut statistics = Statistics::new(Tpce::TYPES.len());
    for (kind, _) in Kind::MIX.into_iter().cycle().take(90) {
        bed.run(async |tpce, session| tpce.run(session, kind, &mut random, &mut ledger).await);
        statistics.types[kind as usize].committed += 1;
    }
    assert_eq!((ledger.trades, ledger.tickers, ledger.torn), (30, 30 * 20, 0));
    assert!(ledger.volume > 30 * 20 * 100);
    let trades = rows(&bed.cluster, &bed.tables.trade);
    let sold = trades.iter().filter(|((_, number), trade)| *number > 10 && trade.quantity < 0).count();
    assert!((5..=25).contains(&sold), "{sold} of 30 trades sell");
    assert!(bed.broken(ledger, true).is_empty());
}
