//! Latches in remote memory, and reads without latches, as rounds. These are what the guidelines
//! for one-sided synchronization compare (Ziegler thesis, sections 5 and 11). Each optimization can
//! be switched on, and published errors can be put back.
//!
//! Remora's transactions have no latches. The locks of records name their owners, so that dead
//! clients can be recovered, and readers validate. `remora-lab reproduce latches` shows what the
//! alternatives would cost on simulated machines, and `remora bench micro --latches` what they cost
//! on a real fabric.
//!
//! | | blocking round trips of an update | of a read under a shared latch |
//! | --- | --- | --- |
//! | each verb awaited | CAS, READ, WRITE, FETCH_ADD: 4 | FETCH_ADD, READ, FETCH_ADD: 3 |
//! | + speculative read: the READ rides behind the atomic | 3 | 2 |
//! | + write combining: the unlatch rides behind the WRITE | 2 | 2 |
//! | + asynchronous unlatch: it is not awaited | 1 | 1 |
//! | + write unlatch: it is the last word of the WRITE | 1, of three verbs | impossible |
//!
//! The transport owns the buffers of a round that is not awaited until the round has completed
//! (rule 5 of the contract). So an asynchronous unlatch cannot write what the next operation has
//! put into a buffer.

use remora::floors::node::ReadScheme;
use remora::floors::record::latch::{ENTER_SHARED, LEAVE_EXCLUSIVE, LEAVE_SHARED, LatchWord};
use remora::floors::record::{FetchedRecord, Life, RecordHeader, RecordShape, Swap, TransactionId};
use remora_fabric::{Address, FabricError, LINE_WORDS, Lane, Nanos, Round, WORD_BYTES};
use zerocopy::IntoBytes;

/// The pause between two attempts, in nanoseconds.
pub const RETRY_NS: Nanos = 100;
/// The number of unlatches of a client that may be under way.
const UNLATCHES_MAX: u32 = 2;

/// Data, with the latch that guards it.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// The address of the latch word.
    pub latch: Address,
    /// The address of the first byte of the data.
    pub data: Address,
    /// The length of the data in words.
    pub words: usize,
}

/// The way in which latches are taken and left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latching {
    /// Whether the data is read in the round that takes the latch.
    pub speculative: bool,
    /// Whether the unlatch is in the round that writes the data.
    pub combined: bool,
    /// Whether the unlatch is not awaited.
    pub asynchronous: bool,
    /// The way in which a writer leaves the latch.
    pub unlatch: Unlatch,
    /// Whether a reader that was not admitted subtracts itself again. If it does not, the count of
    /// readers leaks.
    pub takes_back: bool,
}

/// The way in which a writer leaves a latch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unlatch {
    /// By FETCH_ADD, because readers may have added themselves meanwhile.
    Add,
    /// By CAS, whose answer is not looked at. This is wrong where there are readers: the CAS fails
    /// if a reader that was not admitted has added itself.
    Cas,
    /// By the WRITE of the data, which ends with the latch, behind the data. This is right only
    /// where all clients take the latch by CAS, because a CAS that fails leaves memory alone. It is
    /// wrong beside FETCH_ADD: a NIC may store the result of a FETCH_ADD over a word that the WRITE
    /// has changed since. It is also wrong where the latch is in front of the data: a client may
    /// see the latch free before the data is there.
    Write,
}

impl Latching {
    /// The steps of the ablation. Each step adds one optimization to the steps before it.
    pub const LADDER: [(&'static str, Latching); 5] = {
        let basic = Latching {
            speculative: false,
            combined: false,
            asynchronous: false,
            unlatch: Unlatch::Add,
            takes_back: true,
        };
        let speculative = Latching { speculative: true, ..basic };
        let combined = Latching { combined: true, ..speculative };
        let asynchronous = Latching { asynchronous: true, ..combined };
        [
            ("basic", basic),
            ("+ speculative read", speculative),
            ("+ write combining", combined),
            ("+ asynchronous unlatch", asynchronous),
            ("+ write unlatch", Latching { unlatch: Unlatch::Write, ..asynchronous }),
        ]
    };
    /// The way without any optimization.
    pub const BASIC: Latching = Latching::LADDER[0].1;
    /// The way with all optimizations that shared latches allow.
    pub const BEST: Latching = Latching::LADDER[3].1;

    /// Changes an item under its latch.
    pub async fn update(self, lane: &Lane, item: Item, change: impl Fn(&mut [u64])) -> Result<(), FabricError> {
        while !self.try_update(lane, item, &change).await? {
            lane.sleep(RETRY_NS).await;
        }
        Ok(())
    }

    /// Changes an item under its latch if the latch is free. Returns whether it was free.
    pub async fn try_update(
        self,
        lane: &Lane,
        item: Item,
        change: impl FnOnce(&mut [u64]),
    ) -> Result<bool, FabricError> {
        let bytes = item.words * WORD_BYTES;
        let mut round = lane.round();
        let (free, exclusive) = (LatchWord::FREE.to_bits(), LatchWord::EXCLUSIVE.to_bits());
        let taken = round.compare_swap(item.latch, free, exclusive);
        let read = self.speculative.then(|| round.read(item.data, bytes));
        let done = lane.execute(round).await?;
        if !done.swapped(taken) {
            return Ok(false);
        }
        let mut data = match read {
            Some(read) => done.words(read).to_vec(),
            None => read_words(lane, item.data, bytes).await?,
        };
        drop(done);
        change(&mut data);
        let mut round = lane.round();
        match self.unlatch {
            Unlatch::Write if item.latch.offset < item.data.offset => {
                data.insert(0, LatchWord::FREE.to_bits());
                round.write_words(item.latch, &data);
            }
            Unlatch::Write => {
                data.push(LatchWord::FREE.to_bits());
                round.write_words(item.data, &data);
            }
            Unlatch::Add | Unlatch::Cas => {
                round.write_words(item.data, &data);
                if !self.combined {
                    lane.execute(round).await?;
                    round = lane.round();
                }
                if self.unlatch == Unlatch::Add {
                    round.fetch_add(item.latch, LEAVE_EXCLUSIVE);
                } else {
                    round.compare_swap(item.latch, LatchWord::EXCLUSIVE.to_bits(), LatchWord::FREE.to_bits());
                }
            }
        }
        self.finish(lane, round).await.map(|()| true)
    }

    /// Reads an item under its latch, shared.
    pub async fn read(self, lane: &Lane, item: Item) -> Result<Vec<u64>, FabricError> {
        loop {
            if let Some(data) = self.try_read(lane, item).await? {
                return Ok(data);
            }
            lane.sleep(RETRY_NS).await;
        }
    }

    /// Reads an item under its latch, shared, if no writer has the latch. Otherwise returns `None`.
    pub async fn try_read(self, lane: &Lane, item: Item) -> Result<Option<Vec<u64>>, FabricError> {
        let bytes = item.words * WORD_BYTES;
        let mut round = lane.round();
        let entered = round.fetch_add(item.latch, ENTER_SHARED);
        let read = self.speculative.then(|| round.read(item.data, bytes));
        let done = lane.execute(round).await?;
        let data = match read {
            _ if !LatchWord::from_bits(done.added(entered)).admits_reader() => None,
            Some(read) => Some(done.words(read).to_vec()),
            None => Some(read_words(lane, item.data, bytes).await?),
        };
        drop(done);
        if data.is_some() || self.takes_back {
            let mut round = lane.round();
            round.fetch_add(item.latch, LEAVE_SHARED);
            self.finish(lane, round).await?;
        }
        Ok(data)
    }

    /// Posts the last round, and awaits it unless the unlatch is asynchronous.
    pub async fn finish(self, lane: &Lane, round: Round<'_>) -> Result<(), FabricError> {
        if !self.asynchronous {
            return lane.execute(round).await.map(drop);
        }
        lane.post(round);
        while lane.background() > UNLATCHES_MAX {
            lane.hurry();
            lane.sleep(RETRY_NS).await;
        }
        Ok(())
    }
}

async fn read_words(lane: &Lane, at: Address, bytes: usize) -> Result<Vec<u64>, FabricError> {
    let mut round = lane.round();
    let read = round.read(at, bytes);
    Ok(lane.execute(round).await?.words(read).to_vec())
}

/// The way in which a reader without a latch knows that it has read one state of a record.
///
/// A writer holds the lock, WRITEs version and value in one WRITE, and unlocks after it. READs take
/// lines in any order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reading {
    /// Versioning: READ lock and version. When they have arrived, READ the record, and then lock
    /// and version again. It takes three round trips.
    Versioning,
    /// READ the record, whose checksum covers version and value, and then the version again. It
    /// takes two round trips.
    Checksum,
    /// READ the record, each of whose lines has the version, and then the version again. It takes
    /// two round trips, and needs lines that are read whole.
    Lines,
    /// Wrong: versioning with lock, version and record in one READ, as if a READ went from its
    /// first byte to its last.
    AtOnce,
    /// Wrong: compare the versions of the first and the last line, with the same assumption.
    Bookends,
    /// Wrong: two READs that are posted together, as if the first were over before the second
    /// began.
    TwoReads,
    /// Wrong: look at the lock alone, as a mark that no client changes the record.
    Marking,
}

impl Reading {
    /// The correct ways of reading.
    pub const CORRECT: [Reading; 3] = [Reading::Versioning, Reading::Checksum, Reading::Lines];
    /// The ways of reading that have been published and are wrong.
    pub const INCORRECT: [Reading; 4] = [Reading::AtOnce, Reading::Bookends, Reading::TwoReads, Reading::Marking];

    /// Returns the name, as reports print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Reading::Versioning => "versioning",
            Reading::Checksum => "checksum",
            Reading::Lines => "line versions",
            Reading::AtOnce => "version and value in one READ",
            Reading::Bookends => "version at both ends",
            Reading::TwoReads => "two READs at once",
            Reading::Marking => "a mark",
        }
    }

    /// Returns the read scheme of the records that this way of reading needs.
    #[must_use]
    pub fn scheme(self) -> ReadScheme {
        match self {
            Reading::Lines | Reading::Bookends => ReadScheme::LineVersions,
            _ => ReadScheme::Checksum,
        }
    }

    /// Reads a record's value.
    pub async fn read(self, lane: &Lane, at: Address, shape: &RecordShape) -> Result<Vec<u64>, FabricError> {
        loop {
            if let Some(value) = self.attempt(lane, at, shape).await? {
                return Ok(value);
            }
            lane.sleep(RETRY_NS).await;
        }
    }

    /// Tries once to read a record's value. Returns `None` if a client was in the middle of
    /// changing it.
    pub async fn attempt(self, lane: &Lane, at: Address, shape: &RecordShape) -> Result<Option<Vec<u64>>, FabricError> {
        let validated_bytes = shape.validated_bytes();
        let first = match self {
            Reading::Versioning => Some(read_words(lane, at, validated_bytes).await?),
            _ => None,
        };
        let mut round = lane.round();
        let header = (self == Reading::TwoReads).then(|| round.read(at, validated_bytes));
        let record = round.read(at, shape.record_bytes());
        let done = lane.execute(round).await?;
        let words = done.words(record);
        let first = match header {
            Some(header) => done.words(header).to_vec(),
            None => first.unwrap_or_else(|| words[..validated_bytes / WORD_BYTES].to_vec()),
        };
        let fetched = FetchedRecord::new(words, shape);
        let is_checked = matches!(self, Reading::Checksum | Reading::Lines);
        let found = if is_checked { fetched.check().ok() } else { fetched.unchecked() };
        let Some(found) = found else { return Ok(None) };
        let Some(before) = shape.validated(&first) else { return Ok(None) };
        let last_line = (words.len() - 1) / LINE_WORDS * LINE_WORDS;
        if self == Reading::Bookends && last_line > 0 && words[last_line] != before.version.to_bits() {
            return Ok(None);
        }
        if !is_checked && !before.lock.is_free() {
            return Ok(None);
        }
        let mut value = Vec::with_capacity(words.len());
        found.copy_value(&mut value);
        drop(done);
        if self == Reading::Marking {
            return Ok(Some(value));
        }
        // The record was read whole, but that proves nothing about the present. With versioning,
        // only this second READ proves that the record was read whole.
        let again = read_words(lane, at, validated_bytes).await?;
        let is_same = |now: RecordHeader| now.still_shows(before.version) && (is_checked || now.lock.is_free());
        Ok(shape.validated(&again).is_some_and(is_same).then_some(value))
    }
}

/// Changes a record under its lock, with all optimizations.
pub async fn change(
    lane: &Lane,
    at: Address,
    shape: &RecordShape,
    owner: TransactionId,
    change: impl FnOnce(&mut [u64]),
) -> Result<(), FabricError> {
    let swap = |round: &mut Round<'_>, Swap { from, to }| round.compare_swap(at, from.to_bits(), to.to_bits());
    loop {
        let mut round = lane.round();
        let taken = swap(&mut round, Swap::lock(owner.lock()));
        let read = round.read(at, shape.record_bytes());
        let done = lane.execute(round).await?;
        if !done.swapped(taken) {
            drop(done);
            lane.sleep(RETRY_NS).await;
            continue;
        }
        let found = FetchedRecord::new(done.words(read), shape).unchecked();
        let (mut image, mut value) = (Vec::new(), Vec::new());
        if let Some(found) = found {
            found.copy_value(&mut value);
            value.resize(shape.value_max() / WORD_BYTES, 0); // the first time the value is empty
            change(&mut value);
            let life = found.life().unwrap_or(Life::Present { incarnation: 0 });
            shape.encode(found.version().committed_over(), life, &[], value.as_bytes(), &mut image);
        }
        drop(done);
        let mut round = lane.round();
        round.write_words(at.plus(shape.image_at()), &image);
        swap(&mut round, Swap::unlock(owner.lock()));
        return Latching::BEST.finish(lane, round).await;
    }
}
