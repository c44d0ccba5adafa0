//! What the clients' transactions do at hot records, and what must hold afterwards.

use std::time::Duration;

use remora::{
    Cluster, Error, Intent, Ordered, OrderedOptions, Session, Table, TableOptions, TransactionOptions, WorkerOptions,
};
use remora_workload::Prng;

/// How long a transaction is tried before it is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
const COLD_RECORDS: u64 = 100_000;
/// Number of cold records that a payment changes.
const COLD_OF_PAYMENT: u64 = 4;
/// One of this number of transactions of [`Mix::Catalog`] changes the hot record.
const CATALOG_WRITE: u64 = 256;
const QUEUE_ROWS: u64 = 1_000;
/// Room for appended rows. Tables over TCP do not grow here, because there is no configuration.
const APPENDED_ROWS: u64 = 500_000;
/// Room for the rows of [`Mix::Toggle`]. A slot that a removed row has left is used again a little
/// later.
const ROOM_OF_TOGGLE: u64 = 1_000;

/// What each transaction does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mix {
    /// It adds 1 to a hot record.
    Counter,
    /// It moves 1 from a hot record to another one. With one hot record, it changes that one.
    Transfer,
    /// It adds 1 to a hot record and to four cold ones.
    Payment,
    /// It reads a hot record, and adds 1 to a cold one. One of 256 adds 1 to the hot record.
    Catalog,
    /// It appends a row to an ordered table: its key is the last one and 1.
    Append,
    /// It appends a row to an ordered table of 1,000 rows, and removes the first one.
    Queue,
    /// It inserts a row into a hash table, or removes it if it is there. There are as many keys as
    /// hot records.
    Toggle,
}

impl Mix {
    const ALL: [(&'static str, Mix); 7] = [
        ("counter", Mix::Counter),
        ("transfer", Mix::Transfer),
        ("payment", Mix::Payment),
        ("catalog", Mix::Catalog),
        ("append", Mix::Append),
        ("queue", Mix::Queue),
        ("toggle", Mix::Toggle),
    ];

    pub(crate) fn named(name: &str) -> Option<Mix> {
        Mix::ALL.iter().find(|(known, _)| *known == name).map(|(_, mix)| *mix)
    }

    pub(crate) fn name(self) -> &'static str {
        Mix::ALL.iter().find(|(_, mix)| *mix == self).map_or("", |(name, _)| name)
    }
}

/// The tables of all mixes.
pub(crate) struct Tables {
    hot: Table<u64, u64>,
    cold: Table<u64, u64>,
    toggled: Table<u64, u64>,
    queue: Ordered<u64, u64>,
}

impl Tables {
    pub(crate) fn create(cluster: &Cluster, mix: Mix, records: u64) {
        let zeros = |table, rows| {
            let table = cluster.create_table::<u64, u64>(table, TableOptions::for_rows(rows)).expect("room");
            cluster.load(&table, (0..rows).map(|row| (row, 0))).expect("room");
        };
        zeros("hot", records);
        zeros("cold", COLD_RECORDS);
        cluster.create_table::<u64, u64>("toggled", TableOptions::for_rows(ROOM_OF_TOGGLE.max(records))).expect("room");
        let rows = if mix == Mix::Queue { QUEUE_ROWS } else { 0 };
        let options = OrderedOptions::for_rows(if mix == Mix::Append { APPENDED_ROWS } else { 10 * QUEUE_ROWS });
        let _: Ordered<u64, u64> = cluster.load_ordered("queue", options, (0..rows).map(|row| (row, 0))).expect("room");
    }

    pub(crate) fn open(cluster: &Cluster) -> Tables {
        let table = |name| cluster.open_table(name).expect("a table that was created");
        let queue = cluster.open_ordered("queue").expect("a table that was created");
        Tables { hot: table("hot"), cold: table("cold"), toggled: table("toggled"), queue }
    }

    /// Reads every record that a mix will want, so that a client knows where they are.
    pub(crate) async fn look_up(&self, session: &mut Session, mix: Mix, records: u64) {
        let cold = if matches!(mix, Mix::Payment | Mix::Catalog) { COLD_RECORDS } else { 0 };
        for (table, rows) in [(&self.hot, records), (&self.cold, cold)] {
            for row in 0..rows {
                session.transact(async |tx| table.get(tx, row).await).await.expect("a record");
            }
        }
        session.transact(async |tx| self.queue.last(tx, ..).await).await.expect("a queue");
    }

    /// Runs one transaction of a mix.
    pub(crate) async fn run(
        &self,
        session: &mut Session,
        mix: Mix,
        records: u64,
        random: &mut Prng,
    ) -> Result<(), Error> {
        let options = TransactionOptions::default().patience(PATIENCE);
        let Tables { hot, cold, toggled, queue } = self;
        let record = random.below(records);
        match mix {
            Mix::Counter => self.add(session, &[(hot, record)]).await,
            Mix::Transfer => {
                let to = (record + 1 + random.below((records - 1).max(1))) % records;
                let transfer = session.transact_with(options, async |tx| {
                    let slots = [record, to].map(|row| tx.want_for(hot, row, Intent::Update));
                    tx.fetch().await?;
                    let from = slots[0].get_mut(tx)?;
                    *from = from.wrapping_sub(1);
                    let to = slots[1].get_mut(tx)?;
                    *to = to.wrapping_add(1);
                    Ok(())
                });
                transfer.await
            }
            Mix::Payment => {
                // Different rows, each from a part of the table.
                let part = COLD_RECORDS / COLD_OF_PAYMENT;
                let [a, b, c, d] = [0, 1, 2, 3].map(|at| (cold, at * part + random.below(part)));
                self.add(session, &[a, b, c, d, (hot, record)]).await
            }
            Mix::Catalog if random.below(CATALOG_WRITE) == 0 => self.add(session, &[(hot, record)]).await,
            Mix::Catalog => {
                let row = random.below(COLD_RECORDS);
                let read = session.transact_with(options, async |tx| {
                    let (price, slot) = (tx.want(hot, record), tx.want_for(cold, row, Intent::Update));
                    tx.fetch().await?;
                    std::hint::black_box(price.get(tx)?);
                    *slot.get_mut(tx)? += 1;
                    Ok(())
                });
                read.await
            }
            Mix::Append => {
                let append = session.transact_with(options, async |tx| {
                    let last = queue.last(tx, ..).await?;
                    queue.insert(tx, last.map_or(0, |(number, _)| number + 1), 0).await
                });
                append.await
            }
            Mix::Queue => {
                let rotate = session.transact_with(options, async |tx| {
                    let (first, last) = (queue.first(tx, ..).await?, queue.last(tx, ..).await?);
                    let (Some((first, _)), Some((last, _))) = (first, last) else { panic!("the queue is empty") };
                    queue.remove(tx, first).await?;
                    queue.insert(tx, last + 1, 0).await
                });
                rotate.await
            }
            Mix::Toggle => {
                let toggle = session.transact_with(options, async |tx| match toggled.remove(tx, record).await? {
                    None => toggled.insert(tx, record, 0).await,
                    Some(_) => Ok(()),
                });
                toggle.await
            }
        }
    }

    /// Adds 1 to each of these records.
    async fn add(&self, session: &mut Session, rows: &[(&Table<u64, u64>, u64)]) -> Result<(), Error> {
        let options = TransactionOptions::default().patience(PATIENCE);
        let add = session.transact_with(options, async |tx| {
            for (table, row) in rows {
                tx.want_for(*table, *row, Intent::Update);
            }
            tx.fetch().await?;
            for (table, row) in rows {
                *tx.want_for(*table, *row, Intent::Update).get_mut(tx)? += 1;
            }
            Ok(())
        });
        add.await
    }

    /// Asserts that no transaction of these was lost, or made twice.
    pub(crate) fn check(&self, cluster: &Cluster, mix: Mix, committed: u64) {
        let mut worker = cluster.worker(WorkerOptions::default()).expect("a worker");
        let [hot, cold] = [&self.hot, &self.cold].map(|table| {
            let records = cluster.inspect(table, |_| ()).expect("an idle table").records;
            worker.block_on(async |session| {
                let mut sum = 0_u64;
                for record in 0..records {
                    let value = session.transact(async |tx| table.require(tx, record).await).await.expect("a counter");
                    sum = sum.wrapping_add(value);
                }
                sum
            })
        });
        let toggled = cluster.inspect(&self.toggled, |_| ()).expect("an idle table").records;
        let [first, last] = worker.block_on(async |session| {
            let ends =
                session.transact(async |tx| Ok([self.queue.first(tx, ..).await?, self.queue.last(tx, ..).await?]));
            ends.await.expect("a queue").map(|row| row.map(|(number, _)| number))
        });
        let (found, expected) = match mix {
            Mix::Counter => (hot, committed),
            Mix::Transfer => (hot, 0),
            Mix::Payment => (hot + cold, (1 + COLD_OF_PAYMENT) * committed),
            Mix::Catalog => (hot + cold, committed),
            Mix::Append => (last.map_or(0, |last: u64| last + 1), committed),
            Mix::Queue => (first.unwrap_or(0), committed),
            Mix::Toggle => (toggled % 2, committed % 2),
        };
        assert_eq!(found, expected, "updates are lost, or made twice ({mix:?})");
    }
}
