//! Latches, and reads without latches, measured on a real fabric: time, round trips that are
//! awaited, and values that are wrong. [`crate::latches`] has the rounds.
//!
//! Each client is a thread with a connection and one operation at a time. There are two loads:
//!
//! - *own*: each client has an item of its own, so that no client waits for another.
//! - *one*: all clients have one item. Where reads are measured, one client updates the item all
//!   the time, and the others read it.
//!
//! An update adds one to every word of an item. So a read whose words differ is torn, and an item
//! that counts fewer updates than there were has lost some. Schemes that are correct do neither.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use remora::floors::record::{RecordShape, TransactionId, layout};
use remora_fabric::limits::ROUND_BYTES_MAX;
use remora_fabric::{Address, ClientId, Fabric, FabricError, LINE_BYTES, Lane, Nanos, RegionId, WORD_BYTES};
use serde::Serialize;

use super::{MicroError, NODE, Unfit};
use crate::latches::{Item, Latching, RETRY_NS, Reading, Unlatch, change};

/// The least number of clients: two can contend.
pub const CLIENTS_MIN: usize = 2;
/// The greatest number of clients.
pub const CLIENTS_MAX: usize = 64;

/// The way in which items are guarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// By a latch: updates, and reads that share the latch.
    Latch(Latching),
    /// Without a latch: reads of records.
    Read(Reading),
}

/// Whether a scheme is correct.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// The contract of rounds, and the capabilities of this fabric, make the scheme correct.
    Correct,
    /// The scheme is correct if the fabric does more than it promises.
    Assuming,
    /// The scheme was published, and is wrong.
    Wrong,
}

impl Scheme {
    /// All schemes with their names: latches, each step with one optimization more, then reads
    /// without latches, of which the last four are wrong.
    pub const ALL: [(&'static str, Scheme); 12] = [
        ("basic", Scheme::Latch(Latching::LADDER[0].1)),
        ("speculative-read", Scheme::Latch(Latching::LADDER[1].1)),
        ("write-combining", Scheme::Latch(Latching::LADDER[2].1)),
        ("asynchronous-unlatch", Scheme::Latch(Latching::LADDER[3].1)),
        ("write-unlatch", Scheme::Latch(Latching::LADDER[4].1)),
        ("versioning", Scheme::Read(Reading::Versioning)),
        ("checksum", Scheme::Read(Reading::Checksum)),
        ("line-versions", Scheme::Read(Reading::Lines)),
        ("at-once", Scheme::Read(Reading::AtOnce)),
        ("bookends", Scheme::Read(Reading::Bookends)),
        ("two-reads", Scheme::Read(Reading::TwoReads)),
        ("marking", Scheme::Read(Reading::Marking)),
    ];

    /// Returns the scheme of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Scheme> {
        Scheme::ALL.into_iter().find(|(named, _)| *named == name).map(|(_, scheme)| scheme)
    }

    /// Returns the name of the scheme.
    #[must_use]
    pub fn name(self) -> &'static str {
        Scheme::ALL.into_iter().find(|(_, scheme)| *scheme == self).map_or("", |(name, _)| name)
    }

    /// Returns whether the scheme is correct on a fabric that keeps lines of records whole, or does
    /// not.
    #[must_use]
    pub fn standing(self, atomic_line: bool) -> Standing {
        match self {
            // The latch is a word that clients CAS, and rule 3 of the contract forbids to WRITE it.
            Scheme::Latch(how) if how.unlatch == Unlatch::Write => Standing::Assuming,
            Scheme::Latch(_) => Standing::Correct,
            Scheme::Read(how) if Reading::INCORRECT.contains(&how) => Standing::Wrong,
            Scheme::Read(Reading::Lines) if !atomic_line => Standing::Assuming,
            Scheme::Read(_) => Standing::Correct,
        }
    }

    /// Returns the operations that the scheme has. Where the unlatch is a WRITE, readers cannot
    /// share the latch. Write combining changes nothing for readers.
    fn operations(self) -> &'static [Operation] {
        match self {
            Scheme::Latch(how) if how.unlatch == Unlatch::Write => &[Operation::Update],
            Scheme::Latch(how) if how.combined && !how.asynchronous => &[Operation::Update],
            Scheme::Latch(_) => &[Operation::Update, Operation::Read],
            Scheme::Read(_) => &[Operation::Read],
        }
    }
}

/// The operation that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Changes an item.
    Update,
    /// Reads an item.
    Read,
}

/// Options of the measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LatchOptions {
    /// The schemes to measure. If there are none, all that are not wrong, and line versions only
    /// where the fabric keeps lines whole.
    pub schemes: Vec<Scheme>,
    /// Bytes of an item's data: a positive multiple of 8.
    pub size: usize,
    /// The number of clients, from [`CLIENTS_MIN`] to [`CLIENTS_MAX`].
    pub clients: usize,
    /// The duration of the whole measurement.
    pub time: Duration,
}

impl LatchOptions {
    /// Returns the bytes of the memory that the measurement needs.
    ///
    /// # Errors
    ///
    /// Fails if items of this size do not exist, or do not fit into a round.
    pub fn memory_bytes(&self) -> Result<usize, Unfit> {
        let cells = 4 * Scheme::ALL.len().max(self.schemes.len());
        Ok(cells * self.clients * self.stride()?)
    }

    /// Returns the distance of two items in bytes. Items share no pair of lines.
    fn stride(&self) -> Result<usize, Unfit> {
        let unfit = Unfit::Round { accesses: 1, bytes: self.size };
        if self.size == 0 || !self.size.is_multiple_of(WORD_BYTES) {
            return Err(Unfit::Size);
        }
        if self.size > ROUND_BYTES_MAX {
            return Err(unfit);
        }
        let mut bytes = self.size + WORD_BYTES;
        for how in [Reading::Checksum, Reading::Lines] {
            bytes = bytes.max(self.shape(how)?.record_bytes());
        }
        // A round of two READs also has the header of a record.
        if bytes + LINE_BYTES > ROUND_BYTES_MAX {
            return Err(unfit);
        }
        Ok(bytes.next_multiple_of(2 * LINE_BYTES))
    }

    fn shape(&self, how: Reading) -> Result<RecordShape, Unfit> {
        let layout = layout(0, self.size, how.scheme());
        layout.map(|layout| RecordShape::of(&layout)).map_err(|_| Unfit::Round { accesses: 1, bytes: self.size })
    }
}

/// The results of the measurement.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LatchReport {
    /// Bytes of an item's data.
    pub size: usize,
    /// The number of clients.
    pub clients: usize,
    /// One row for each scheme and operation.
    pub rows: Vec<LatchRow>,
}

impl LatchReport {
    /// Whether a scheme that is correct has lost an update or read a torn value.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        let wrong = |row: &LatchRow| row.own.wrong + row.one.wrong;
        self.rows.iter().any(|row| row.standing == Standing::Correct && wrong(row) > 0)
    }
}

/// The figures of one operation by one scheme.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LatchRow {
    /// The operation.
    pub operation: Operation,
    /// The name of the scheme.
    pub scheme: &'static str,
    /// Whether the scheme is correct on this fabric.
    pub standing: Standing,
    /// Each client has an item of its own.
    pub own: LatchFigures,
    /// All clients have one item.
    pub one: LatchFigures,
}

/// The figures of one operation by one scheme under one load.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct LatchFigures {
    /// The number of clients that were measured.
    pub clients: usize,
    /// The number of operations of these clients.
    pub operations: u64,
    /// The mean time of an operation, in nanoseconds. `None` if there was no operation.
    pub mean_ns: Option<f64>,
    /// Round trips that were awaited, for each operation. Attempts that failed are included. `None`
    /// if there was no operation.
    pub round_trips: Option<f64>,
    /// Reads that were torn, or updates that were lost.
    pub wrong: u64,
}

/// What one client has done under one load.
#[derive(Clone, Copy, Default)]
struct Part {
    operations: u64,
    ns: Nanos,
    round_trips: u64,
    wrong: u64,
}

/// One measurement: an operation by a scheme under a load.
#[derive(Clone, Copy)]
struct Cell {
    scheme: Scheme,
    operation: Operation,
    is_one: bool,
}

/// The place at which all clients wait for each other.
#[derive(Default)]
struct Meeting {
    arrived: AtomicU64,
    /// Updates of the measurement under way.
    updates: AtomicU64,
    /// Whether a client has failed.
    over: AtomicBool,
}

impl Meeting {
    /// Waits until all clients have arrived `times` times. Returns whether they have.
    async fn wait(&self, lane: &Lane, clients: usize, times: u64) -> bool {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < times * clients as u64 {
            if self.over.load(Ordering::Acquire) {
                return false;
            }
            lane.sleep(RETRY_NS).await;
        }
        true
    }
}

/// Measures the schemes on a fabric. The first region of node 0, of
/// [`memory_bytes`](LatchOptions::memory_bytes), is the measurement's, and is zero.
///
/// # Errors
///
/// Fails if items of this size do not exist, or if a round fails.
pub fn measure(fabric: &dyn Fabric, options: &LatchOptions) -> Result<LatchReport, MicroError> {
    let stride = options.stride()?;
    let atomic_line = fabric.capabilities().atomic_line;
    let schemes: Vec<Scheme> = match &options.schemes[..] {
        [] => {
            let is_default = |scheme: &Scheme| match scheme.standing(atomic_line) {
                Standing::Correct => true,
                Standing::Assuming => matches!(scheme, Scheme::Latch(_)),
                Standing::Wrong => false,
            };
            Scheme::ALL.map(|(_, scheme)| scheme).into_iter().filter(is_default).collect()
        }
        named => named.to_vec(),
    };
    let operations = schemes.iter().flat_map(|scheme| scheme.operations().iter().map(|does| (*scheme, *does)));
    let operations: Vec<(Scheme, Operation)> = operations.collect();
    let cells = operations.iter().flat_map(|(scheme, operation)| {
        [false, true].map(|is_one| Cell { scheme: *scheme, operation: *operation, is_one })
    });
    let cells: Vec<Cell> = cells.collect();
    let time = options.time.as_nanos() as Nanos / cells.len().max(1) as Nanos;
    let meeting = Meeting::default();
    let parts = thread::scope(|scope| {
        let threads: Vec<_> = (0..options.clients)
            .map(|number| {
                let (cells, meeting) = (&cells[..], &meeting);
                scope.spawn(move || {
                    let id = ClientId(number as u32 + 1);
                    let run = remora_fabric::block_on(fabric, id, async |lane: &Lane| {
                        let client = Client { lane, number, options, stride, meeting };
                        client.run(cells, time).await
                    });
                    let run = run.map_err(MicroError::from).and_then(|run| run);
                    run.inspect_err(|_| meeting.over.store(true, Ordering::Release))
                })
            })
            .collect();
        let panicked = |panic| std::panic::resume_unwind(panic);
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect::<Result<Vec<_>, _>>()
    })?;
    let figures = |cell: usize| {
        let is_measured = |number: &usize| !cells[cell].is_writer(*number);
        let measured: Vec<usize> = (0..options.clients).filter(is_measured).collect();
        let sum = |of: fn(&Part) -> u64| measured.iter().map(|number| of(&parts[*number][cell])).sum::<u64>();
        let operations = sum(|part| part.operations);
        let each = |total: u64| (operations > 0).then(|| total as f64 / operations as f64);
        LatchFigures {
            clients: measured.len(),
            operations,
            mean_ns: each(sum(|part| part.ns)),
            round_trips: each(sum(|part| part.round_trips)),
            wrong: sum(|part| part.wrong),
        }
    };
    let row = |(at, (scheme, operation)): (usize, &(Scheme, Operation))| LatchRow {
        operation: *operation,
        scheme: scheme.name(),
        standing: scheme.standing(atomic_line),
        own: figures(2 * at),
        one: figures(2 * at + 1),
    };
    Ok(LatchReport {
        size: options.size,
        clients: options.clients,
        rows: operations.iter().enumerate().map(row).collect(),
    })
}

impl Cell {
    /// Whether a client only updates what the others read.
    fn is_writer(self, number: usize) -> bool {
        self.is_one && self.operation == Operation::Read && number == 0
    }
}

/// One client of the measurement.
struct Client<'a> {
    lane: &'a Lane,
    number: usize,
    options: &'a LatchOptions,
    stride: usize,
    meeting: &'a Meeting,
}

/// Adds one to every word.
fn add_one(words: &mut [u64]) {
    let next = words.first().map_or(0, |word| word + 1);
    words.fill(next);
}

impl Client<'_> {
    /// Runs all measurements, together with the other clients. Returns this client's part of each.
    async fn run(&self, cells: &[Cell], time: Nanos) -> Result<Vec<Part>, MicroError> {
        let mut parts = vec![Part::default(); cells.len()];
        let mut meetings = 0;
        for (index, cell) in cells.iter().enumerate() {
            // Each measurement has memory of its own, which is zero: a latch word is never reset.
            let slot = index * self.options.clients + if cell.is_one { 0 } else { self.number };
            let at = Address { node: NODE, region: RegionId(0), offset: (slot * self.stride) as u64 };
            if let (Scheme::Read(how), true) = (cell.scheme, !cell.is_one || self.number == 0) {
                // The first change makes a record of the empty memory.
                self.change(at, how).await?;
                self.settle().await;
            }
            meetings += 1;
            if !self.meeting.wait(self.lane, self.options.clients, meetings).await {
                break;
            }
            let mut part = self.work(*cell, at, time).await?;
            self.settle().await;
            let is_update = cell.operation == Operation::Update;
            if cell.is_one && is_update {
                self.meeting.updates.fetch_add(part.operations, Ordering::AcqRel);
            }
            meetings += 1;
            if !self.meeting.wait(self.lane, self.options.clients, meetings).await {
                break;
            }
            if is_update && (!cell.is_one || self.number == 0) {
                let updates = match cell.is_one {
                    true => self.meeting.updates.swap(0, Ordering::AcqRel),
                    false => part.operations,
                };
                part.wrong = updates.saturating_sub(self.count(*cell, at).await?);
            }
            parts[index] = part;
        }
        Ok(parts)
    }

    /// Repeats one operation for `time`.
    async fn work(&self, cell: Cell, at: Address, time: Nanos) -> Result<Part, MicroError> {
        let lane = self.lane;
        let (begun, before) = (lane.now(), lane.cost());
        let mut part = Part::default();
        let shape = match cell.scheme {
            Scheme::Read(how) => Some(self.options.shape(how)?),
            Scheme::Latch(_) => None,
        };
        while lane.now() < begun + time {
            let item = self.item(cell, at);
            let is_done = match (cell.scheme, &shape) {
                (Scheme::Latch(how), _) if cell.operation == Operation::Update || cell.is_writer(self.number) => {
                    how.try_update(lane, item, add_one).await?
                }
                (Scheme::Read(how), _) if cell.is_writer(self.number) => {
                    self.change(at, how).await?;
                    true
                }
                (Scheme::Latch(how), _) => part.judge(how.try_read(lane, item).await?),
                (Scheme::Read(how), Some(shape)) => part.judge(how.attempt(lane, at, shape).await?),
                (Scheme::Read(_), None) => false,
            };
            if is_done {
                part.operations += 1;
                lane.yield_now().await;
            } else {
                lane.sleep(RETRY_NS).await;
            }
        }
        part.ns = lane.now() - begun;
        part.round_trips = lane.cost().since(&before).round_trips;
        Ok(part)
    }

    /// Returns where latch and data are. If the unlatch is a WRITE, the latch is behind the data.
    fn item(&self, cell: Cell, at: Address) -> Item {
        let words = self.options.size / WORD_BYTES;
        match cell.scheme {
            Scheme::Latch(how) if how.unlatch == Unlatch::Write => {
                Item { latch: at.plus(self.options.size as u64), data: at, words }
            }
            _ => Item { latch: at, data: at.plus(WORD_BYTES as u64), words },
        }
    }

    /// Updates a record under its lock.
    async fn change(&self, at: Address, how: Reading) -> Result<(), MicroError> {
        let shape = self.options.shape(how)?;
        if let Some(owner) = TransactionId::new(self.number as u32 + 1, 1) {
            change(self.lane, at, &shape, owner, add_one).await?;
        }
        Ok(())
    }

    /// Returns how many updates an item counts.
    async fn count(&self, cell: Cell, at: Address) -> Result<u64, FabricError> {
        let mut round = self.lane.round();
        let word = round.read(self.item(cell, at).data, WORD_BYTES);
        Ok(self.lane.execute(round).await?.words(word)[0])
    }

    /// Waits until no round is under way.
    async fn settle(&self) {
        while self.lane.background() > 0 && !self.meeting.over.load(Ordering::Acquire) {
            self.lane.sleep(RETRY_NS).await;
        }
    }
}

impl Part {
    /// Looks at what a read has returned. Returns whether it has returned anything.
    fn judge(&mut self, value: Option<Vec<u64>>) -> bool {
        let Some(value) = value else { return false };
        let first = value.first();
        self.wrong += u64::from(value.iter().any(|word| Some(word) != first));
        true
    }
}
