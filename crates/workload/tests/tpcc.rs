//! Tests of TPC-C on real and on seeded clusters, with every protocol: each transaction does what
//! the specification says, its invariants hold, and broken ones are found.

mod support;

use remora::protocol::Protocol;
use remora::{
    Cluster, ClusterOptions, Error, Key, Limit, Ordered, Reason, Record, Session, Table, Transaction, Worker,
    WorkerOptions,
};
use remora_workload::driver::{self, Length, RunOptions};
use remora_workload::tpcc::schema::{self, Tables};
use remora_workload::tpcc::{
    DeliveryInput, Done, Kind, NewOrderInput, NewOrders, OrderStatusInput, PaymentInput, Room, Scale, StockLevelInput,
    Tpcc, UnusedItem, Wanted, Who,
};
use remora_workload::{After, Invariant, Prng, Setting, Statistics, Workload};

use support::{assert_sound, is_long, serializable};

const NAMES: [&str; 17] = [
    "1: a warehouse's ytd is its districts'",
    "2: the next order follows the last one",
    "3: new orders have no gaps",
    "4: a district has its order lines",
    "5: only new orders have no carrier",
    "6: an order has its lines",
    "7: lines are delivered with orders",
    "8: a warehouse's ytd is its payments'",
    "9: a district's ytd is its payments'",
    "10: a balance is delivered less paid",
    "11: what is delivered is no new order",
    "12: balance and paid are delivered",
    "access paths lead to their rows",
    "what was committed is there",
    "replicas are identical",
    "no lock is held",
    "every log entry is settled",
];

/// Returns a scale of two warehouses with three districts each.
fn scale() -> Scale {
    Scale::small(2, 3, 40, 300)
}

fn setting(replicas: u8) -> Setting {
    Setting { memory_nodes: 3, replicas, workers: 16, coroutines: 8, archive: None }
}

fn options(protocol: Protocol, replicas: u8, room: Room) -> ClusterOptions {
    let replicas = replicas.min(protocol.discipline().copies_max() as u8);
    let node_bytes = Tpcc::node_bytes(&scale(), room, &setting(replicas), protocol) as usize;
    Cluster::embedded().nodes(3).replicas(replicas).node_bytes(node_bytes).protocol(protocol)
}

/// Returns the number of transactions of the mix that have ended. A Delivery is one transaction for
/// each of three districts.
fn ended(statistics: &Statistics) -> u64 {
    let deliveries = statistics.types[Kind::Delivery as usize].committed;
    assert!(deliveries.is_multiple_of(3));
    statistics.committed() + by_user(statistics) - deliveries / 3 * 2
}

fn by_user(statistics: &Statistics) -> u64 {
    statistics.types.iter().map(|one| one.by_user).sum()
}

#[test]
fn a_run_on_shared_memory_keeps_the_invariants() {
    const TRANSACTIONS: u64 = 4_001;
    // One of each kind, if there is not time for all.
    let kinds = [Protocol::DRTM_R, Protocol::FASST, Protocol::FORD, Protocol::NO_WAIT];
    for protocol in serializable().filter(|protocol| is_long() || kinds.contains(protocol)) {
        // Without backups, these two protocols differ only in where they write.
        let without_backups = [Protocol::DRTM_R, Protocol::FORD].contains(&protocol);
        for replicas in if without_backups { 1..=3 } else { 3..=3 }.step_by(2) {
            let room = Room::for_transactions(TRANSACTIONS);
            let cluster = options(protocol, replicas, room).open().unwrap();
            // The runs with backups split totals from the rows that New-Orders read.
            let tpcc = Tpcc::load(&cluster, scale(), room, 1, |_| ()).unwrap().with_split_totals(replicas > 1);
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
            let measured = driver::run(&cluster, &tpcc, &run, &|| None, |_| ()).unwrap();
            assert_sound(&measured.invariants, &NAMES);
            let statistics = &measured.statistics;
            assert_eq!(ended(statistics) + measured.given_up, TRANSACTIONS, "{protocol:?}");
            assert!(!measured.table_full);
            let report = measured.report::<Tpcc>(&cluster, "shm", serde_json::Value::Null);
            assert_eq!(report.by_type["new_order"].user, report.aborted["user"], "one order in a hundred");
            assert!(report.by_type.values().all(|one| one.committed > 100 && one.throughput_tps > 0.0), "{report:?}");
        }
    }
}

#[test]
fn a_run_on_a_seeded_cluster_keeps_the_invariants() {
    let seeds = std::env::var("REMORA_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1);
    for protocol in serializable() {
        let (mut conflicts, mut delivered) = (0, 0);
        for seed in 0..seeds {
            let room = Room::for_orders(400);
            let (cluster, _seeded) = options(protocol, 3, room).open_seeded(seed).unwrap();
            let tpcc = Tpcc::load(&cluster, scale(), room, seed, |_| ()).unwrap();
            let worker = WorkerOptions::default().coroutines(6).clients(3).seed(seed).yield_after_rounds(false);
            let mut worker = cluster.worker(worker).unwrap();
            let (statistics, invariants) = driver::run_here(&cluster, &tpcc, &mut worker, 40, seed).unwrap();
            assert_sound(&invariants, &NAMES);
            assert_eq!(ended(&statistics), 6 * 40, "{protocol:?}, seed {seed}");
            conflicts += statistics.types.iter().map(|one| one.aborted).sum::<u64>() - by_user(&statistics);
            delivered += statistics.types[Kind::Delivery as usize].committed / 3;
        }
        assert!(
            conflicts > 5 * seeds,
            "{protocol:?}: {conflicts} conflicts: six coroutines and two warehouses must meet"
        );
        assert!(delivered > 2 * seeds, "{protocol:?}: {delivered} deliveries");
    }
}

#[test]
fn new_orders_alone_are_all_distributed() {
    let room = Room::for_orders(600);
    let cluster = options(Protocol::DRTM_R, 3, room).open().unwrap();
    let tpcc = NewOrders::of(Tpcc::load(&cluster, scale(), room, 1, |_| ()).unwrap());
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let (statistics, invariants) = driver::run_here(&cluster, &tpcc, &mut worker, 50, 1).unwrap();
    assert_sound(&invariants, &NAMES);
    assert_eq!(statistics.types.len(), 1);
    let orders = rows(&cluster, &Tables::open(&cluster).unwrap().order);
    let (loaded, made): (Vec<_>, Vec<_>) = orders.into_iter().partition(|((.., o_id), _)| *o_id <= 40);
    assert!(loaded.iter().all(|(_, order)| order.all_local == 1) && loaded.len() == 6 * 40);
    assert_eq!(made.len() as u64, statistics.committed());
    assert!(made.iter().all(|(_, order)| order.all_local == 0), "each has a line of another warehouse");
}

/// A run that makes more orders than there is room for ends early, and what it has done is
/// complete.
#[test]
fn a_full_table_ends_a_run_and_nothing_else() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let room = Room::for_orders(100);
        let cluster = options(protocol, 3, room).open().unwrap();
        let tpcc = Tpcc::load(&cluster, scale(), room, 1, |_| ()).unwrap();
        let length = Length::Transactions(1_000_000);
        let run = RunOptions {
            threads: 2,
            coroutines: 4,
            length,
            seed: 7,
            yield_after_rounds: false,
            rate: None,
            archive: None,
        };
        let measured = driver::run(&cluster, &tpcc, &run, &|| None, |_| ()).unwrap();
        assert!(measured.table_full, "{protocol:?}");
        assert_sound(&measured.invariants, &NAMES);
        let made = measured.statistics.types[Kind::NewOrder as usize].committed;
        assert!(made >= 100, "{protocol:?}: {made} orders, and room for more");
        // A worker that continues gets the same error.
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        let ended = worker.block_on(async |session| {
            let (mut random, mut ledger) = (Prng::new(1), Done::default());
            loop {
                match tpcc.run(session, Kind::NewOrder, &mut random, &mut ledger).await {
                    Ok(()) | Err(Error::User(_)) => {}
                    Err(error) => return error,
                }
            }
        });
        assert!(matches!(ended, Error::Limit(Reason { cause: Limit::TableFull { .. }, .. })), "{protocol:?}: {ended}");
    }
}

/// Every type has the expected round trips, while no other client runs.
#[test]
fn every_type_costs_its_round_trips() {
    let costs = |protocol| {
        let room = Room::for_orders(2_000);
        let cluster = options(protocol, 3, room).open().unwrap();
        let tpcc = Tpcc::load(&cluster, scale(), room, 1, |_| ()).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
        worker.block_on(async |session| tpcc.warm(session, 0, 1).await).unwrap();
        let mut costs = [(u64::MAX, 0, 0, 0); 5];
        for number in 0..if is_long() { 400 } else { 200 } {
            // Each transaction ends with drained rings, because one that finds its ring full needs
            // one more round trip.
            let (statistics, _) = driver::run_here(&cluster, &tpcc, &mut worker, 1, number).unwrap();
            for ((least, most, all, count), one) in costs.iter_mut().zip(&statistics.types) {
                assert_eq!(one.aborted, one.by_user, "there is nobody to meet");
                if one.committed > 0 {
                    let cost = one.cost.round_trips;
                    (*least, *most, *all, *count) = ((*least).min(cost), (*most).max(cost), *all + cost, *count + 1);
                }
            }
        }
        costs
    };
    for (protocol, least) in [(Protocol::DRTM_R, [4, 3, 3, 3 * 5, 5]), (Protocol::FORD, [3, 3, 3, 3 * 4, 5])] {
        let found = costs(protocol);
        // This is the number of round trips of a transaction for which all locations are known,
        // without splits and merges of leaves. A Delivery is three transactions.
        assert_eq!(found.map(|(least, ..)| least), least, "{protocol:?}: {found:?}");
        // A customer who pays by name is read, and validated: two more round trips.
        assert_eq!(found[1].1, 5, "{protocol:?}");
        // Most New-Orders split a leaf, whose parent is known: one more round trip. Few parents are
        // full.
        let (.., all, count) = found[0];
        assert!(2 * all < (2 * least[0] + 3) * count, "{protocol:?}: {found:?}");
    }
}

#[test]
fn without_transactions_nothing_is_claimed() {
    let room = Room::for_orders(2_000);
    let cluster = options(Protocol::UNSYNCHRONIZED, 3, room).open().unwrap();
    let tpcc = Tpcc::load(&cluster, scale(), room, 1, |_| ()).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).unwrap();
    let (_, invariants) = driver::run_here(&cluster, &tpcc, &mut worker, 200, 1).unwrap();
    assert_eq!(invariants.len(), NAMES.len());
    let unclaimed = |one: &Invariant| one.holds.is_none() && one.detail.contains("no transactions");
    assert!(invariants.iter().all(unclaimed), "{invariants:?}");
}

/// The memory that the sizing asks for is enough.
#[test]
fn nodes_are_sized_for_the_population() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        for (memory_nodes, replicas, scale) in
            [(1, 1, Scale::small(1, 1, 1, 1)), (4, 2, Scale::small(1, 10, 300, 5_000))]
        {
            let setting = Setting { memory_nodes, replicas, workers: 1, coroutines: 2, archive: None };
            let room = Room::for_transactions(400);
            let node_bytes = Tpcc::node_bytes(&scale, room, &setting, protocol) as usize;
            let sized = options(protocol, replicas, room).nodes(memory_nodes).node_bytes(node_bytes);
            let cluster = sized.open().unwrap();
            let mut loaded = 0;
            let tpcc = Tpcc::load(&cluster, scale, room, 1, |rows| loaded += rows).unwrap();
            let expected = scale.rows() as f64;
            assert!(scale.customers == 1 || (loaded as f64 / expected - 1.0).abs() < 0.02, "{loaded} of {expected}");
            let mut worker = cluster.worker(WorkerOptions::default().coroutines(2)).unwrap();
            let (_, invariants) = driver::run_here(&cluster, &tpcc, &mut worker, 200, 1).unwrap();
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

impl<K: Key + Copy, V: Record> Rows<K, V> for Table<K, V> {
    async fn read(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
        self.get(tx, key).await
    }

    async fn write(&self, tx: &mut Transaction<'_, '_>, key: K, row: V) -> Result<(), Error> {
        self.update(tx, key, row).await
    }

    async fn insert(&self, tx: &mut Transaction<'_, '_>, key: K, row: V) -> Result<(), Error> {
        self.insert(tx, key, row).await
    }

    async fn delete(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<(), Error> {
        self.remove(tx, key).await?.map(|_| ()).ok_or_else(|| self.missing(key))
    }
}

impl<K: Key, V: Record> Rows<K, V> for Ordered<K, V> {
    async fn read(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<Option<V>, Error> {
        self.get(tx, key).await
    }

    async fn write(&self, tx: &mut Transaction<'_, '_>, key: K, row: V) -> Result<(), Error> {
        self.update(tx, key, row).await
    }

    async fn insert(&self, tx: &mut Transaction<'_, '_>, key: K, row: V) -> Result<(), Error> {
        Ordered::insert(self, tx, key, row).await
    }

    async fn delete(&self, tx: &mut Transaction<'_, '_>, key: K) -> Result<(), Error> {
        self.remove(tx, key).await?.map(|_| ()).ok_or_else(|| self.missing(key))
    }
}

/// A cluster, what is loaded in it, and one worker.
struct Bed {
    cluster: Cluster,
    tpcc: Tpcc,
    tables: Tables,
    worker: Worker,
}

impl Bed {
    fn new(protocol: Protocol) -> Bed {
        let room = Room::for_orders(200);
        let cluster = options(protocol, 3, room).open().unwrap();
        let tpcc = Tpcc::load(&cluster, scale(), room, 3, |_| ()).unwrap();
        let tables = Tables::open(&cluster).unwrap();
        let worker = cluster.worker(WorkerOptions::default()).unwrap();
        Bed { cluster, tpcc, tables, worker }
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

    /// Runs one of TPC-C's transactions.
    fn run<T>(&mut self, body: impl AsyncFnOnce(&Tpcc, &mut Session) -> T) -> T {
        let tpcc = &self.tpcc;
        let result = self.worker.block_on(async |session| body(tpcc, session).await);
        assert!(self.worker.drain().unwrap());
        result
    }

    /// Returns the indices of the invariants that do not hold, after transactions that have done
    /// `done`.
    fn broken(&self, done: Done, settled: bool) -> Vec<usize> {
        let after = After { ledgers: &[done], settled, unknown: 0 };
        let invariants = self.tpcc.invariants(&self.cluster, after).unwrap();
        (0..NAMES.len()).filter(|index| invariants[*index].holds == Some(false)).collect()
    }
}

/// Returns all rows of a table.
fn unordered<V: Record>(cluster: &Cluster, table: &Table<impl Key, V>) -> Vec<V> {
    let mut rows = Vec::new();
    cluster.inspect(table, |row| rows.push(*row)).unwrap();
    rows
}

fn rows<K: Key, V: Record>(cluster: &Cluster, table: &Ordered<K, V>) -> Vec<(K, V)> {
    let mut rows = Vec::new();
    cluster.inspect_ordered(table, |key, row| rows.push((*key, *row))).unwrap();
    rows
}

fn order_of(lines: &[Wanted]) -> NewOrderInput {
    let mut input = NewOrderInput {
        w_id: 1,
        d_id: 2,
        c_id: 7,
        entry_d: 99,
        ol_cnt: lines.len() as u8,
        lines: [Wanted::default(); 15],
    };
    input.lines[..lines.len()].copy_from_slice(lines);
    input
}

#[test]
fn a_new_order_is_the_specifications() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let mut bed = Bed::new(protocol);
        let tables = bed.tables.clone();
        // One item has a large stock, one a small one, one comes from another warehouse, and one is
        // ordered twice.
        let wanted = [(11, 1, 4), (12, 1, 10), (13, 2, 7), (14, 1, 5), (14, 1, 6)];
        let lines = wanted.map(|(i_id, supply_w_id, quantity)| Wanted { i_id, supply_w_id, quantity });
        for (i_id, w_id, quantity) in [(11, 1, 14), (12, 1, 19), (13, 2, 50), (14, 1, 60)] {
            bed.alter(&tables.stock, (w_id, i_id), |stock| stock.quantity = quantity);
        }
        let input = order_of(&lines);
        let done = bed.run(async |tpcc, session| tpcc.new_order(session, &input).await).unwrap();
        assert_eq!(done.o_id, 41);
        assert_eq!(bed.row(&tables.district, (1, 2)).next_o_id, 42);
        let order = bed.row(&tables.order, (1, 2, 41));
        let found = (order.c_id, order.entry_d, order.carrier_id, order.ol_cnt, order.all_local);
        assert_eq!(found, (7, 99, 0, 5, 0));
        assert!(bed.find(&tables.new_order, (1, 2, 41)).is_some());
        assert!(bed.find(&tables.by_customer, (1, 2, 7, 41)).is_some());
        let mut sum = 0;
        for (line, number) in lines.iter().zip(1..) {
            let (item, row) = (bed.row(&tables.item, line.i_id), bed.row(&tables.order_line, (1, 2, 41, number)));
            let stock = bed.row(&tables.stock, (line.supply_w_id, line.i_id));
            assert_eq!((row.i_id, row.supply_w_id, row.quantity), (line.i_id, line.supply_w_id, line.quantity));
            assert_eq!(row.delivery_d, 0);
            assert_eq!(row.amount, item.price * u32::from(line.quantity));
            assert_eq!(row.dist_info, stock.dist[1], "of the order's district");
            sum += i64::from(row.amount);
        }
        assert!(bed.find(&tables.order_line, (1, 2, 41, 6)).is_none());
        let stock = |bed: &mut Bed, w_id, i_id| {
            let stock = bed.row(&tables.stock, (w_id, i_id));
            (stock.quantity, stock.ytd, stock.order_cnt, stock.remote_cnt)
        };
        assert_eq!(stock(&mut bed, 1, 11), (10, 4, 1, 0), "just enough is left");
        assert_eq!(stock(&mut bed, 1, 12), (19 - 10 + 91, 10, 1, 0), "too few would be left");
        assert_eq!(stock(&mut bed, 2, 13), (43, 7, 1, 1), "for another warehouse");
        assert_eq!(stock(&mut bed, 1, 14), (49, 11, 2, 0), "twice");
        let (warehouse, district) = (bed.row(&tables.warehouse, 1), bed.row(&tables.district, (1, 2)));
        let discount = bed.row(&tables.customer, (1, 2, 7)).discount;
        let taxes = f64::from(warehouse.tax) + f64::from(district.tax);
        let total = sum as f64 * (1.0 - f64::from(discount) / 1e4) * (1.0 + taxes / 1e4);
        assert!((done.total as f64 - total).abs() < 1.0, "{} is not {total}", done.total);

        // An order of an item that does not exist leaves nothing.
        let unused =
            order_of(&[lines[0], lines[1], lines[2], lines[3], Wanted { i_id: 301, supply_w_id: 1, quantity: 1 }]);
        let refused = bed.run(async |tpcc, session| tpcc.new_order(session, &unused).await).unwrap_err();
        assert_eq!(refused.downcast_user(), Some(&UnusedItem));
        assert_eq!(bed.row(&tables.district, (1, 2)).next_o_id, 42);
        assert_eq!(stock(&mut bed, 1, 11), (10, 4, 1, 0));
        assert!(bed.broken(Done { orders: 1, ..Done::default() }, true).is_empty());
    }
}

#[test]
fn a_payment_is_the_specifications() {
    let mut bed = Bed::new(Protocol::DRTM_R);
    let tables = bed.tables.clone();
    // The customers of a name, by first name.
    let mut customers = unordered(&bed.cluster, &tables.customer);
    customers.retain(|row| (row.w_id, row.d_id) == (2, 3));
    customers.sort_unstable_by_key(|row| row.first);
    let name = 12;
    let same: Vec<u16> =
        customers.iter().filter(|row| row.last == schema::last_name(name)).map(|row| row.c_id).collect();
    let middle = same[(same.len() - 1) / 2];
    for (who, c_id, credit) in [(Who::Id(9), 9, *b"GC"), (Who::Id(10), 10, *b"BC"), (Who::Name(name), middle, *b"GC")] {
        bed.alter(&tables.customer, (2, 3, c_id), |row| row.credit = credit);
        let before = (
            bed.row(&tables.warehouse, 1),
            bed.row(&tables.district, (1, 2)),
            bed.row(&tables.customer, (2, 3, c_id)),
            unordered(&bed.cluster, &tables.history).len(),
        );
        let input = PaymentInput { w_id: 1, d_id: 2, c_w_id: 2, c_d_id: 3, who, amount: 12_345, date: 77 };
        let paid = bed.run(async |tpcc, session| tpcc.payment(session, &input).await).unwrap();
        assert_eq!(paid.c_id, c_id, "{who:?}");
        assert_eq!(bed.row(&tables.warehouse, 1).ytd, before.0.ytd + 12_345);
        assert_eq!(bed.row(&tables.district, (1, 2)).ytd, before.1.ytd + 12_345);
        let customer = bed.row(&tables.customer, (2, 3, c_id));
        assert_eq!(customer.balance, before.2.balance - 12_345);
        assert_eq!(paid.balance, customer.balance);
        assert_eq!(customer.ytd_payment, before.2.ytd_payment + 12_345);
        assert_eq!(customer.payment_cnt, before.2.payment_cnt + 1);
        if credit == *b"BC" {
            let noted = b"10 3 2 2 1 12345|";
            assert_eq!(&customer.data[..noted.len()], noted);
            assert_eq!(customer.data[noted.len()..], before.2.data[..500 - noted.len()], "what was noted before");
        } else {
            assert_eq!(customer.data, before.2.data);
        }
        let history = unordered(&bed.cluster, &tables.history);
        assert_eq!(history.len(), before.3 + 1);
        let noted: Vec<_> = history.iter().filter(|row| row.date == 77 && row.c_id == c_id).collect();
        let &[row] = &noted[..] else { panic!("{noted:?}") };
        assert_eq!((row.amount, row.w_id, row.d_id, row.c_w_id, row.c_d_id), (12_345, 1, 2, 2, 3));
        assert_eq!((&row.data[..10], &row.data[14..]), (&before.0.name[..], &before.1.name[..]));
    }
    assert!(bed.broken(Done { payments: 3, paid: 3 * 12_345, ..Done::default() }, true).is_empty());
}

#[test]
fn a_payment_with_split_totals_leaves_alone_what_new_orders_read() {
    let mut bed = Bed::new(Protocol::DRTM_R);
    let tables = bed.tables.clone();
    let before = (bed.row(&tables.warehouse, 1), bed.row(&tables.district, (1, 2)));
    let input = PaymentInput { w_id: 1, d_id: 2, c_w_id: 2, c_d_id: 3, who: Who::Id(9), amount: 12_345, date: 77 };
    // Whether totals are split; what the rows and the takings have counted of these payments then.
    for (split, in_rows, in_takings) in [(true, 0, 12_345), (false, 12_345, 12_345), (true, 12_345, 24_690)] {
        bed.tpcc = bed.tpcc.with_split_totals(split);
        bed.run(async |tpcc, session| tpcc.payment(session, &input).await).unwrap();
        assert_eq!(bed.row(&tables.warehouse, 1).ytd, before.0.ytd + in_rows);
        assert_eq!(bed.row(&tables.district, (1, 2)).ytd, before.1.ytd + in_rows);
        for d_id in [0, 2] {
            assert_eq!(bed.row(&tables.takings, (1, d_id)).ytd, in_takings);
        }
    }
    for row in unordered(&bed.cluster, &tables.history).iter().filter(|row| row.date == 77) {
        assert_eq!((&row.data[..10], &row.data[14..]), (&before.0.name[..], &before.1.name[..]));
    }
    // Both kinds of payments may run beside each other: the invariants count them all.
    assert!(bed.broken(Done { payments: 3, paid: 3 * 12_345, ..Done::default() }, true).is_empty());
}

#[test]
fn an_order_status_is_that_of_the_latest_order() {
    let mut bed = Bed::new(Protocol::DRTM_R);
    let tables = bed.tables.clone();
    let status = OrderStatusInput { w_id: 1, d_id: 2, who: Who::Id(7) };
    let look = |bed: &mut Bed| bed.run(async |tpcc, session| tpcc.order_status(session, &status).await).unwrap();
    let amount = |bed: &mut Bed, o_id| {
        let lines = rows(&bed.cluster, &tables.order_line);
        let of_order = lines.iter().filter(|((w_id, d_id, other, _), _)| (*w_id, *d_id, *other) == (1, 2, o_id));
        of_order.map(|(_, line)| i64::from(line.amount)).sum::<i64>()
    };
    let orders = rows(&bed.cluster, &tables.order);
    let ((.., o_id), loaded) =
        orders.iter().find(|((w_id, d_id, _), order)| (*w_id, *d_id, order.c_id) == (1, 2, 7)).unwrap();
    let found = look(&mut bed);
    assert_eq!((found.c_id, found.o_id, found.lines), (7, *o_id, loaded.ol_cnt));
    assert_eq!(found.amount, amount(&mut bed, *o_id));
    let lines = [1, 2, 3, 4, 5, 6].map(|i_id| Wanted { i_id, supply_w_id: 1, quantity: 3 });
    bed.run(async |tpcc, session| tpcc.new_order(session, &order_of(&lines)).await).unwrap();
    let found = look(&mut bed);
    assert_eq!((found.o_id, found.lines), (41, 6));
    assert_eq!(found.amount, amount(&mut bed, 41));
}

#[test]
fn deliveries_are_the_specifications() {
    for protocol in [Protocol::DRTM_R, Protocol::FORD] {
        let mut bed = Bed::new(protocol);
        let tables = bed.tables.clone();
        // Of 40 orders, the last 12 are not yet delivered.
        let input = DeliveryInput { w_id: 2, carrier_id: 6, date: 1_234 };
        let deliver = |bed: &mut Bed| {
            let deliver = |d_id| bed.run(async |tpcc, session| tpcc.delivery(session, &input, d_id).await).unwrap();
            [1, 2, 3].map(deliver).into_iter().filter(|delivered| *delivered).count()
        };
        let order = bed.row(&tables.order, (2, 3, 29));
        assert_eq!(order.carrier_id, 0);
        let before = bed.row(&tables.customer, (2, 3, order.c_id));
        assert_eq!(deliver(&mut bed), 3, "one in each district");
        assert!(bed.find(&tables.new_order, (2, 3, 29)).is_none() && bed.find(&tables.new_order, (2, 3, 30)).is_some());
        assert_eq!(bed.row(&tables.order, (2, 3, 29)).carrier_id, 6);
        assert_eq!(bed.row(&tables.order, (2, 3, 30)).carrier_id, 0);
        let mut amount = 0;
        for number in 1..=order.ol_cnt {
            let line = bed.row(&tables.order_line, (2, 3, 29, number));
            assert_eq!(line.delivery_d, 1_234);
            amount += i64::from(line.amount);
        }
        let customer = bed.row(&tables.customer, (2, 3, order.c_id));
        assert_eq!((customer.balance, customer.delivery_cnt), (before.balance + amount, before.delivery_cnt + 1));
        assert!(bed.find(&tables.new_order, (1, 3, 29)).is_some(), "nothing of another warehouse");
        (0..11).for_each(|_| assert_eq!(deliver(&mut bed), 3));
        assert_eq!(deliver(&mut bed), 0, "nothing is left");
        // An order that comes then is delivered next, and the other districts are skipped.
        let lines = [1, 2, 3, 4, 5].map(|i_id| Wanted { i_id, supply_w_id: 2, quantity: 3 });
        let ordered = NewOrderInput { w_id: 2, ..order_of(&lines) };
        bed.run(async |tpcc, session| tpcc.new_order(session, &ordered).await).unwrap();
        assert_eq!((deliver(&mut bed), deliver(&mut bed)), (1, 0));
        assert_eq!(bed.row(&tables.order, (2, 2, 41)).carrier_id, 6);
        assert!(bed.broken(Done { orders: 1, delivered: 37, ..Done::default() }, true).is_empty());
    }
}

#[test]
fn a_stock_level_counts_different_items_of_twenty_orders() {
    let mut bed = Bed::new(Protocol::DRTM_R);
    let tables = bed.tables.clone();
    for threshold in [10, 15, 60, 200] {
        let lines = rows(&bed.cluster, &tables.order_line);
        let recent = lines.iter().filter(|((w_id, d_id, o_id, _), _)| (*w_id, *d_id) == (2, 1) && *o_id > 20);
        let mut items: Vec<u32> = recent.map(|(_, line)| line.i_id).collect();
        items.sort_unstable();
        items.dedup();
        let low = items.iter().filter(|i_id| bed.row(&tables.stock, (2, **i_id)).quantity < threshold).count();
        let input = StockLevelInput { w_id: 2, d_id: 1, threshold };
        let found = bed.run(async |tpcc, session| tpcc.stock_level(session, &input).await).unwrap();
        assert_eq!(found as usize, low, "below {threshold}");
        assert_eq!(threshold == 200, low == items.len());
    }
}

/// Damage that no client knows of must be found and named. Otherwise the checks above prove
/// nothing.
#[test]
fn invariants_that_do_not_hold_are_found() {
    const NOTHING: Done = Done { orders: 0, payments: 0, paid: 0, delivered: 0 };
    let mut bed = Bed::new(Protocol::DRTM_R);
    let tables = bed.tables.clone();
    assert!(bed.broken(NOTHING, true).is_empty());
    // Damage the ledgers.
    for done in [
        Done { orders: 1, ..NOTHING },
        Done { payments: 1, ..NOTHING },
        Done { paid: 1, ..NOTHING },
        Done { delivered: 1, ..NOTHING },
    ] {
        assert_eq!(bed.broken(done, true), [13], "{done:?}");
    }
    assert_eq!(bed.broken(NOTHING, false), [16]);
    let after = After { ledgers: &[], settled: true, unknown: 1 };
    assert_eq!(bed.tpcc.invariants(&bed.cluster, after).unwrap()[13].holds, None, "nobody knows");

    // Change rows by transactions that are not TPC-C's, and then change them back.
    macro_rules! broken {
        ($table:ident[$key:expr], $alter:expr, $expected:expr) => {
            let (key, expected): (_, &[usize]) = ($key, &$expected);
            let before = bed.alter(&tables.$table, key, $alter);
            assert_eq!(bed.broken(NOTHING, true), expected, "{} {key:?}", stringify!($table));
            bed.alter(&tables.$table, key, |row| *row = before);
            assert!(bed.broken(NOTHING, true).is_empty());
        };
    }
    broken!(warehouse[1], |row| row.ytd += 1, [0, 7]);
    broken!(district[(1, 1)], |row| row.ytd += 1, [0, 8]);
    broken!(takings[(1, 0)], |row| row.ytd += 1, [0, 7]);
    broken!(takings[(1, 1)], |row| row.ytd += 1, [0, 8]);
    broken!(district[(1, 1)], |row| row.next_o_id += 1, [1]);
    broken!(order[(2, 2, 5)], |row| row.carrier_id = 0, [4, 6]);
    broken!(order[(2, 2, 35)], |row| row.carrier_id = 1, [4, 6]);
    broken!(order[(2, 2, 5)], |row| row.ol_cnt += 1, [3, 5]);
    broken!(order[(2, 2, 5)], |row| row.c_id ^= 1, [12]);
    broken!(order_line[(2, 2, 5, 1)], |row| row.delivery_d = 0, [6]);
    broken!(order_line[(2, 2, 5, 1)], |row| row.amount = 1, [9, 11]);
    broken!(history[1], |row| row.amount += 1, [7, 8, 9, 13]);
    broken!(history[1], |row| row.d_id = 2, [8]);
    broken!(history[1], |row| row.c_id = 2, [9]);
    broken!(customer[(2, 2, 5)], |row| row.balance += 1, [9, 11]);
    broken!(customer[(2, 2, 5)], |row| (row.balance, row.ytd_payment) = (row.balance + 1, row.ytd_payment - 1), [9]);
    broken!(customer[(2, 2, 5)], |row| row.ytd_payment += 1, [11]);
    broken!(customer[(2, 2, 5)], |row| row.delivery_cnt += 1, [10, 13]);
    broken!(customer[(2, 2, 5)], |row| row.last = schema::last_name(7), [12]);
    broken!(customer[(2, 2, 5)], |row| row.first[0] ^= 1, [12]);

    // Remove rows, or move them to a key that does not exist.
    macro_rules! missing {
        ($table:ident[$key:expr], $expected:expr) => {
            missing!($table[$key], None, $expected)
        };
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
            assert_eq!(bed.broken(NOTHING, true), expected, "{} {key:?}", stringify!($table));
            shift(&mut bed, other, Some(key));
            assert!(bed.broken(NOTHING, true).is_empty());
        };
    }
    missing!(new_order[(1, 1, 35)], [2, 4, 10]);
    missing!(new_order[(1, 1, 40)], [1, 4, 10]);
    missing!(order_line[(1, 1, 3, 2)], [3, 5]);
    missing!(order_line[(1, 1, 3, 2)], Some((1, 1, 4, 99)), [5]);
    missing!(order_line[(1, 1, 3, 2)], Some((1, 2, 3, 99)), [3, 5]);
    missing!(order_line[(1, 1, 3, 2)], Some((9, 1, 3, 2)), [3, 5, 12]);
    missing!(history[1], [7, 8, 9, 13]);
    missing!(warehouse[1], [0, 7]);
    let orders = rows(&bed.cluster, &tables.order);
    let ((w_id, d_id, o_id), order) = orders[7];
    missing!(by_customer[(w_id, d_id, order.c_id, o_id)], [12]);
    missing!(by_customer[(w_id, d_id, order.c_id, o_id)], Some((w_id, d_id, order.c_id, o_id + 1)), [12]);
    missing!(by_customer[(w_id, d_id, order.c_id, o_id)], Some((w_id, d_id, order.c_id % 40 + 1, o_id)), [12]);
    let name = rows(&bed.cluster, &tables.by_name)[11].0;
    missing!(by_name[name], [12]);
    missing!(by_name[name], Some((name.0, name.1 + 1, name.2, name.3)), [12]);
    missing!(by_name[name], Some((name.0, name.1, name.2, 41)), [12]);
}
