//! TPC-C on real and on seeded clusters, by every protocol: each transaction does what the specification says, what must
//! hold does, and what does not is found.

mod support;

use remora::{
    Cluster, ClusterOptions, Error, Key, Limit, Protocol, Record, Session, Table, Transaction, Worker, WorkerOptions,
};
use remora_workload::driver::{self, Length, RunOptions};
use remora_workload::tpcc::schema::{self, OrderLine, Tables};
use remora_workload::tpcc::{
    DeliveryInput, Done, Kind, NewOrderInput, NewOrders, OrderStatusInput, PaymentInput, Room, Scale, StockLevelInput,
    Tpcc, UnusedItem, Wanted, Who,
};
use remora_workload::{After, Invariant, Prng, Setting, Statistics, Workload};

use support::{assert_sound, serializable};

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

/// Two warehouses of three districts.
fn scale() -> Scale {
    Scale::small(2, 3, 40, 300)
}

fn setting(replicas: u8) -> Setting {
    Setting { memory_nodes: 3, replicas, workers: 16, coroutines: 8 }
}

fn options(protocol: Protocol, replicas: u8, room: Room) -> ClusterOptions {
    let node_bytes = Tpcc::node_bytes(&scale(), room, &setting(replicas), protocol) as usize;
    ClusterOptions { memory_nodes: 3, replicas, node_bytes, protocol }
}

fn by_user(statistics: &Statistics) -> u64 {
    statistics.types.iter().map(|one| one.by_user).sum()
}

#[test]
fn a_run_on_shared_memory_keeps_the_invariants() {
    const TRANSACTIONS: u64 = 6_001;
    for protocol in serializable() {
        for replicas in [1, 3] {
            let room = Room::for_transactions(TRANSACTIONS);
            let cluster = Cluster::embedded(options(protocol, replicas, room)).unwrap();
            let tpcc = Tpcc::load(&cluster, scale(), room, 1, |_| ()).unwrap();
            let length = Length::Transactions(TRANSACTIONS);
            let run = RunOptions { threads: 3, coroutines: 4, length, seed: 7, yield_after_rounds: true, rate: None };
            let measured = driver::run(&cluster, &tpcc, &run, &|| None, |_| ()).unwrap();
            assert_sound(&measured.invariants, &NAMES);
            let statistics = &measured.statistics;
            assert_eq!(statistics.committed() + by_user(statistics) + measured.given_up, TRANSACTIONS, "{protocol:?}");
            assert!(!measured.table_full);
            let report = measured.report::<Tpcc>(&cluster, "shm", serde_json::Value::Null);
            assert_eq!(report.by_type["new_order"].user, report.aborted["user"], "one order in a hundred");
            assert!(report.by_type.values().all(|one| one.committed > 100 && one.throughput_tps > 0.0), "{report:?}");
        }
    }
}

#[test]
fn a_run_on_a_seeded_cluster_keeps_the_invariants() {
    for protocol in serializable() {
        let (mut conflicts, mut delivered) = (0, 0);
        for seed in 0..4 {
            let room = Room::for_orders(400);
            let (cluster, _seeded) = Cluster::seeded(options(protocol, 3, room), seed).unwrap();
            let tpcc = Tpcc::load(&cluster, scale(), room, seed, |_| ()).unwrap();
            let worker = WorkerOptions { coroutines: 6, clients: 3, seed, yield_after_rounds: false };
            let mut worker = cluster.worker(worker).unwrap();
            let (statistics, invariants) = driver::run_here(&cluster, &tpcc, &mut worker, 40, seed).unwrap();
            assert_sound(&invariants, &NAMES);
            let user = by_user(&statistics);
            assert_eq!(statistics.committed() + user, 6 * 40, "{protocol:?}, seed {seed}");
            conflicts += statistics.types.iter().map(|one| one.aborted).sum::<u64>() - user;
            delivered += statistics.types[Kind::Delivery as usize].committed;
        }
        assert!(conflicts > 20, "{protocol:?}: {conflicts} conflicts: six coroutines and two warehouses must meet");
        assert!(delivered > 10, "{protocol:?}: {delivered} deliveries");
    }
}

#[test]
fn new_orders_alone_are_all_distributed() {
    let room = Room::for_orders(600);
    let cluster = Cluster::embedded(options(Protocol::DrtmR, 3, room)).unwrap();
    let tpcc = NewOrders::of(Tpcc::load(&cluster, scale(), room, 1, |_| ()).unwrap());
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    let (statistics, invariants) = driver::run_here(&cluster, &tpcc, &mut worker, 50, 1).unwrap();
    assert_sound(&invariants, &NAMES);
    assert_eq!(statistics.types.len(), 1);
    let orders = rows(&cluster, &Tables::open(&cluster).unwrap().order);
    let loaded = orders.iter().filter(|order| order.o_id <= 40);
    assert!(loaded.clone().all(|order| order.all_local == 1) && loaded.count() == 6 * 40);
    let made: Vec<_> = orders.iter().filter(|order| order.o_id > 40).collect();
    assert_eq!(made.len() as u64, statistics.committed());
    assert!(made.iter().all(|order| order.all_local == 0), "each has a line of another warehouse");
}

/// A run that makes more orders than there is room for ends early, and what it has done is whole.
#[test]
fn a_full_table_ends_a_run_and_nothing_else() {
    for protocol in [Protocol::DrtmR, Protocol::default(), Protocol::FORD] {
        let room = Room::for_orders(100);
        let cluster = Cluster::embedded(options(protocol, 3, room)).unwrap();
        let tpcc = Tpcc::load(&cluster, scale(), room, 1, |_| ()).unwrap();
        let length = Length::Transactions(1_000_000);
        let run = RunOptions { threads: 2, coroutines: 4, length, seed: 7, yield_after_rounds: false, rate: None };
        let measured = driver::run(&cluster, &tpcc, &run, &|| None, |_| ()).unwrap();
        assert!(measured.table_full, "{protocol:?}");
        assert_sound(&measured.invariants, &NAMES);
        let made = measured.statistics.types[Kind::NewOrder as usize].committed;
        assert!(made >= 100, "{protocol:?}: {made} orders, and room for more");
        // Who goes on is told the same.
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
        assert!(matches!(ended, Error::Limit(Limit::TableFull)), "{protocol:?}: {ended}");
    }
}

/// What each type costs. Nobody else is there.
#[test]
fn every_type_costs_its_round_trips() {
    let costs = |protocol| {
        let room = Room::for_orders(2_000);
        let cluster = Cluster::embedded(options(protocol, 3, room)).unwrap();
        let tpcc = Tpcc::load(&cluster, scale(), room, 1, |_| ()).unwrap();
        let mut worker = cluster.worker(WorkerOptions { coroutines: 1, ..WorkerOptions::default() }).unwrap();
        worker.block_on(async |session| tpcc.warm(session, 0, 1).await).unwrap();
        let mut costs = [(u64::MAX, 0); 5];
        for number in 0..400 {
            // Each ends with drained rings: a transaction that finds its ring full needs a round trip more.
            let (statistics, _) = driver::run_here(&cluster, &tpcc, &mut worker, 1, number).unwrap();
            for ((least, most), one) in costs.iter_mut().zip(&statistics.types) {
                assert_eq!(one.aborted, one.by_user, "there is nobody to meet");
                if one.committed == 1 {
                    (*least, *most) = ((*least).min(one.cost.round_trips), (*most).max(one.cost.round_trips));
                }
            }
        }
        costs
    };
    for (protocol, new_order, payment, least) in
        [(Protocol::DrtmR, (5, 5), (3, 5), [3, 5, 8]), (Protocol::FORD, (5, 6), (3, 5), [3, 4, 8])]
    {
        let found = costs(protocol);
        // Who pays by name is read, and validated: two round trips more. FORD's inserts read chains to their ends.
        assert_eq!((found[0], found[1]), (new_order, payment), "{protocol:?}");
        // Of the others, so many if all locations are known.
        assert_eq!([2, 3, 4].map(|kind: usize| found[kind].0), least, "{protocol:?}: {found:?}");
    }
}

#[test]
fn without_transactions_nothing_is_claimed() {
    let room = Room::for_orders(2_000);
    let cluster = Cluster::embedded(options(Protocol::Unsynchronized, 3, room)).unwrap();
    let tpcc = Tpcc::load(&cluster, scale(), room, 1, |_| ()).unwrap();
    let mut worker = cluster.worker(WorkerOptions { coroutines: 1, ..WorkerOptions::default() }).unwrap();
    let (_, invariants) = driver::run_here(&cluster, &tpcc, &mut worker, 200, 1).unwrap();
    assert_eq!(invariants.len(), NAMES.len());
    let unclaimed = |one: &Invariant| one.holds.is_none() && one.detail.contains("no transactions");
    assert!(invariants.iter().all(unclaimed), "{invariants:?}");
}

/// As much memory as is said to be needed is enough.
#[test]
fn nodes_are_sized_for_the_population() {
    for protocol in [Protocol::DrtmR, Protocol::FORD] {
        for (memory_nodes, replicas, scale) in
            [(1, 1, Scale::small(1, 1, 1, 1)), (4, 2, Scale::small(1, 10, 300, 5_000))]
        {
            let setting = Setting { memory_nodes, replicas, workers: 1, coroutines: 2 };
            let room = Room::for_transactions(400);
            let node_bytes = Tpcc::node_bytes(&scale, room, &setting, protocol) as usize;
            let cluster = Cluster::embedded(ClusterOptions { memory_nodes, replicas, node_bytes, protocol }).unwrap();
            let mut loaded = 0;
            let tpcc = Tpcc::load(&cluster, scale, room, 1, |rows| loaded += rows).unwrap();
            let expected = scale.rows() as f64;
            assert!(scale.customers == 1 || (loaded as f64 / expected - 1.0).abs() < 0.02, "{loaded} of {expected}");
            let mut worker = cluster.worker(WorkerOptions { coroutines: 2, ..WorkerOptions::default() }).unwrap();
            let (_, invariants) = driver::run_here(&cluster, &tpcc, &mut worker, 200, 1).unwrap();
            assert_sound(&invariants, &NAMES);
        }
    }
}

/// A cluster, what is loaded, and one worker.
struct Bed {
    cluster: Cluster,
    tpcc: Tpcc,
    tables: Tables,
    worker: Worker,
}

impl Bed {
    fn new(protocol: Protocol) -> Bed {
        let room = Room::for_orders(200);
        let cluster = Cluster::embedded(options(protocol, 3, room)).unwrap();
        let tpcc = Tpcc::load(&cluster, scale(), room, 3, |_| ()).unwrap();
        let tables = Tables::open(&cluster).unwrap();
        let worker = cluster.worker(WorkerOptions::default()).unwrap();
        Bed { cluster, tpcc, tables, worker }
    }

    /// A row, or nothing.
    fn find<K: Key + Copy, V: Record>(&mut self, table: &Table<K, V>, key: K) -> Option<V> {
        self.change(async |tx| tx.read(table, key).await)
    }

    #[track_caller]
    fn row<K: Key + Copy, V: Record>(&mut self, table: &Table<K, V>, key: K) -> V {
        self.find(table, key).expect("the row is there")
    }

    /// Runs a transaction of the test's own, and waits until the backups have it.
    fn change<T>(&mut self, body: impl AsyncFnMut(&mut Transaction<'_, '_>) -> Result<T, Error>) -> T {
        let result = self.worker.block_on(async |session| session.transact(body).await).unwrap();
        assert!(self.worker.drain().unwrap());
        result
    }

    /// Changes a row, and gives it as it was.
    fn alter<K: Key + Copy, V: Record>(&mut self, table: &Table<K, V>, key: K, alter: impl Fn(&mut V)) -> V {
        self.change(async |tx| {
            let row = tx.read_for_update(table, key).await?;
            let before = *row;
            alter(row);
            Ok(before)
        })
    }

    /// Runs one of TPC-C's.
    fn run<T>(&mut self, body: impl AsyncFnOnce(&Tpcc, &mut Session) -> T) -> T {
        let tpcc = &self.tpcc;
        let result = self.worker.block_on(async |session| body(tpcc, session).await);
        assert!(self.worker.drain().unwrap());
        result
    }

    /// The places of the invariants that do not hold, after transactions that have done so much.
    fn broken(&self, done: Done, settled: bool) -> Vec<usize> {
        let after = After { ledgers: &[done], settled, unknown: 0 };
        let invariants = self.tpcc.invariants(&self.cluster, after).unwrap();
        (0..NAMES.len()).filter(|index| invariants[*index].holds == Some(false)).collect()
    }
}

/// All rows of a table.
fn rows<K: Key, V: Record>(cluster: &Cluster, table: &Table<K, V>) -> Vec<V> {
    let mut rows = Vec::new();
    cluster.inspect(table, |row| rows.push(*row)).unwrap();
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
    for protocol in [Protocol::DrtmR, Protocol::FORD] {
        let mut bed = Bed::new(protocol);
        let tables = bed.tables.clone();
        // One item has many left, one few, one is another warehouse's, and one is ordered twice.
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
        let found = (order.o_id, order.w_id, order.d_id, order.c_id, order.entry_d, order.carrier_id);
        assert_eq!((found, order.ol_cnt, order.all_local), ((41, 1, 2, 7, 99, 0), 5, 0));
        assert!(bed.find(&tables.new_order, (1, 2, 41)).is_some());
        let latest = bed.row(&tables.latest, (1, 2, 7));
        assert_eq!((latest.o_id, latest.ol_cnt), (41, 5));
        let mut sum = 0;
        for (line, number) in lines.iter().zip(1..) {
            let (item, row) = (bed.row(&tables.item, line.i_id), bed.row(&tables.order_line, (1, 2, 41, number)));
            let stock = bed.row(&tables.stock, (line.supply_w_id, line.i_id));
            assert_eq!((row.i_id, row.supply_w_id, row.quantity), (line.i_id, line.supply_w_id, line.quantity));
            assert_eq!((row.o_id, row.w_id, row.d_id, row.number, row.delivery_d), (41, 1, 2, number, 0));
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

        // An order of an item that nobody has leaves nothing.
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
    let mut bed = Bed::new(Protocol::DrtmR);
    let tables = bed.tables.clone();
    // The customers of a name, by first name.
    let mut customers = rows(&bed.cluster, &tables.customer);
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
            rows(&bed.cluster, &tables.history).len(),
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
        let history = rows(&bed.cluster, &tables.history);
        assert_eq!(history.len(), before.3 + 1);
        let noted: Vec<_> = history.iter().filter(|row| row.date == 77 && row.c_id == c_id).collect();
        let &[row] = &noted[..] else { panic!("{noted:?}") };
        assert_eq!((row.amount, row.w_id, row.d_id, row.c_w_id, row.c_d_id), (12_345, 1, 2, 2, 3));
        assert_eq!((&row.data[..10], &row.data[14..]), (&before.0.name[..], &before.1.name[..]));
    }
    assert!(bed.broken(Done { payments: 3, paid: 3 * 12_345, ..Done::default() }, true).is_empty());
}

#[test]
fn an_order_status_is_that_of_the_latest_order() {
    let mut bed = Bed::new(Protocol::DrtmR);
    let tables = bed.tables.clone();
    let status = OrderStatusInput { w_id: 1, d_id: 2, who: Who::Id(7) };
    let look = |bed: &mut Bed| bed.run(async |tpcc, session| tpcc.order_status(session, &status).await).unwrap();
    let amount = |bed: &mut Bed, o_id| {
        let lines = rows(&bed.cluster, &tables.order_line);
        let of_order = |line: &&OrderLine| (line.w_id, line.d_id, line.o_id) == (1, 2, o_id);
        lines.iter().filter(of_order).map(|line| i64::from(line.amount)).sum::<i64>()
    };
    let orders = rows(&bed.cluster, &tables.order);
    let loaded = orders.iter().find(|order| (order.w_id, order.d_id, order.c_id) == (1, 2, 7)).unwrap();
    let found = look(&mut bed);
    assert_eq!((found.c_id, found.o_id, found.lines), (7, loaded.o_id, loaded.ol_cnt));
    assert_eq!(found.amount, amount(&mut bed, loaded.o_id));
    let lines = [1, 2, 3, 4, 5, 6].map(|i_id| Wanted { i_id, supply_w_id: 1, quantity: 3 });
    bed.run(async |tpcc, session| tpcc.new_order(session, &order_of(&lines)).await).unwrap();
    let found = look(&mut bed);
    assert_eq!((found.o_id, found.lines), (41, 6));
    assert_eq!(found.amount, amount(&mut bed, 41));
}

#[test]
fn deliveries_are_the_specifications() {
    for protocol in [Protocol::DrtmR, Protocol::FORD] {
        let mut bed = Bed::new(protocol);
        let tables = bed.tables.clone();
        // Of 40 orders, the last 12 are to be delivered.
        let input = DeliveryInput { w_id: 2, carrier_id: 6, date: 1_234 };
        let deliver = |bed: &mut Bed| bed.run(async |tpcc, session| tpcc.delivery(session, &input).await).unwrap();
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
        // What comes then is delivered next, and the other districts are skipped.
        let lines = [1, 2, 3, 4, 5].map(|i_id| Wanted { i_id, supply_w_id: 2, quantity: 3 });
        let ordered = NewOrderInput { w_id: 2, ..order_of(&lines) };
        bed.run(async |tpcc, session| tpcc.new_order(session, &ordered).await).unwrap();
        assert_eq!((deliver(&mut bed), deliver(&mut bed)), (1, 0));
        assert_eq!(bed.row(&tables.order, (2, 2, 41)).carrier_id, 6);
        assert!(bed.broken(Done { orders: 1, delivered: 37, ..Done::default() }, true).is_empty());
    }
}

/// Ten orders of fifteen lines: no transaction of TPC-C writes more at once.
#[test]
fn the_largest_delivery_fits_a_log_entry() {
    for protocol in [Protocol::DrtmR, Protocol::FORD] {
        let (scale, room) = (Scale { undelivered: 0, ..Scale::small(1, 10, 10, 100) }, Room::for_orders(10));
        let node_bytes = Tpcc::node_bytes(&scale, room, &setting(3), protocol) as usize;
        let options = ClusterOptions { node_bytes, protocol, ..ClusterOptions::default() };
        let cluster = Cluster::embedded(options).unwrap();
        let tpcc = Tpcc::load(&cluster, scale, room, 1, |_| ()).unwrap();
        let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
        let delivered = worker.block_on(async |session| {
            let lines: [Wanted; 15] =
                std::array::from_fn(|at| Wanted { i_id: at as u32 + 1, supply_w_id: 1, quantity: 1 });
            for d_id in 1..=10 {
                tpcc.new_order(session, &NewOrderInput { d_id, ..order_of(&lines) }).await?;
            }
            tpcc.delivery(session, &DeliveryInput { w_id: 1, carrier_id: 1, date: 1 }).await
        });
        assert_eq!(delivered.unwrap(), 10, "{protocol:?}");
        let settled = worker.drain().unwrap();
        let ledgers = [Done { orders: 10, delivered: 10, ..Done::default() }];
        assert_sound(&tpcc.invariants(&cluster, After { ledgers: &ledgers, settled, unknown: 0 }).unwrap(), &NAMES);
    }
}

#[test]
fn a_stock_level_counts_different_items_of_twenty_orders() {
    let mut bed = Bed::new(Protocol::DrtmR);
    let tables = bed.tables.clone();
    for threshold in [10, 15, 60, 200] {
        let lines = rows(&bed.cluster, &tables.order_line);
        let recent = lines.iter().filter(|line| (line.w_id, line.d_id) == (2, 1) && line.o_id > 20);
        let mut items: Vec<u32> = recent.map(|line| line.i_id).collect();
        items.sort_unstable();
        items.dedup();
        let low = items.iter().filter(|i_id| bed.row(&tables.stock, (2, **i_id)).quantity < threshold).count();
        let input = StockLevelInput { w_id: 2, d_id: 1, threshold };
        let found = bed.run(async |tpcc, session| tpcc.stock_level(session, &input).await).unwrap();
        assert_eq!(found as usize, low, "below {threshold}");
        assert_eq!(threshold == 200, low == items.len());
    }
}

/// What is broken behind everyone's back must be found, and named: otherwise the checks above say nothing.
#[test]
fn invariants_that_do_not_hold_are_found() {
    const NOTHING: Done = Done { orders: 0, payments: 0, paid: 0, delivered: 0 };
    let mut bed = Bed::new(Protocol::DrtmR);
    let tables = bed.tables.clone();
    assert!(bed.broken(NOTHING, true).is_empty());
    // The ledgers.
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

    // Rows that are changed, by transactions that are none of TPC-C's, and then changed back.
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
    broken!(district[(1, 1)], |row| row.next_o_id += 1, [1]);
    broken!(order[(2, 2, 5)], |row| row.carrier_id = 0, [4, 6]);
    broken!(order[(2, 2, 35)], |row| row.carrier_id = 1, [4, 6]);
    broken!(order[(2, 2, 5)], |row| row.ol_cnt += 1, [3, 5, 12]);
    broken!(order_line[(2, 2, 5, 1)], |row| row.o_id = 6, [5]);
    broken!(order_line[(2, 2, 5, 1)], |row| row.d_id = 1, [3, 5]);
    broken!(order_line[(2, 2, 5, 1)], |row| row.delivery_d = 0, [6]);
    broken!(order_line[(2, 2, 5, 1)], |row| row.amount = 1, [9, 11]);
    broken!(order_line[(2, 2, 5, 1)], |row| row.w_id = 9, [3, 5, 12]);
    broken!(history[1], |row| row.amount += 1, [7, 8, 9, 13]);
    broken!(history[1], |row| row.d_id = 2, [8]);
    broken!(history[1], |row| row.c_id = 2, [9]);
    broken!(customer[(2, 2, 5)], |row| row.balance += 1, [9, 11]);
    broken!(customer[(2, 2, 5)], |row| (row.balance, row.ytd_payment) = (row.balance + 1, row.ytd_payment - 1), [9]);
    broken!(customer[(2, 2, 5)], |row| row.ytd_payment += 1, [11]);
    broken!(customer[(2, 2, 5)], |row| row.delivery_cnt += 1, [10, 13]);
    broken!(undelivered[(2, 2)], |row| row.o_id += 1, [12]);
    broken!(latest[(2, 2, 5)], |row| row.o_id ^= 1, [12]);
    broken!(latest[(2, 2, 5)], |row| row.ol_cnt ^= 1, [12]);
    broken!(namesakes[(2, 2, 5, 0)], |row| row.c_ids[0] = 7, [12]);

    // Rows that are not there.
    macro_rules! missing {
        ($table:ident[$key:expr], $expected:expr) => {
            let (key, expected): (_, &[usize]) = ($key, &$expected);
            let before = bed.row(&tables.$table, key);
            bed.change(async |tx| tx.delete(&tables.$table, key).await);
            assert_eq!(bed.broken(NOTHING, true), expected, "{} {key:?}", stringify!($table));
            bed.change(async |tx| tx.insert(&tables.$table, key, before).await);
            assert!(bed.broken(NOTHING, true).is_empty());
        };
    }
    missing!(new_order[(1, 1, 35)], [2, 4, 10]);
    missing!(new_order[(1, 1, 40)], [1, 4, 10]);
    missing!(order_line[(1, 1, 3, 2)], [3, 5]);
    missing!(history[1], [7, 8, 9, 13]);
    missing!(namesakes[(2, 1, 5, 0)], [12]);
    missing!(latest[(2, 1, 5)], [12]);
    missing!(warehouse[1], [0, 7]);
}
