//! Absent reads without a version, and the keys that scans did not return: which edges they imply.
//!
//! Such a read fits wherever the key may have been absent. The *positions* of a key are the states
//! between its versions: position 0 is what the loader left, and position p is what the p-th
//! version left. Real time and the reader's own writes leave a window of positions. The first and
//! the last position in the window at which the key may be absent give two edges, which every
//! choice implies. Prefix and suffix extremes over a key's versions make each window two binary
//! searches.
//!
//! A scan would have to look at every key of its range. Most of these may have been deleted long
//! ago, or be inserted long after. Real time alone says that they were absent. So a sweep over time
//! keeps only the keys that may have been present at about the time of a scan.

use super::graph::{Edge, EdgeKind};
use super::versions::{Chains, Inclusion, Version};
use super::{Loaded, NONE, end_of, start_of};
use crate::history::{History, Level, NO_END, ReadState, ScanRow, TransactionRow};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// An absent read that cannot have happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Misfit {
    pub(super) reader: u32,
    pub(super) key: u32,
    pub(super) by_scan: bool,
    /// The version at which the reader itself read the key as present. `None` if no absent interval
    /// of the key fits.
    pub(super) read_present: Option<u64>,
}

/// A read that found a key absent, without a version that tells since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AbsentRead {
    key: u32,
    reader: u32,
    by_scan: bool,
}

/// What the absent reads of a history imply.
#[derive(Debug, Default)]
pub(super) struct Absences {
    pub(super) edges: Vec<Edge>,
    pub(super) misfits: Vec<Misfit>,
    /// Unknown transactions whose delete alone explains an absent read.
    pub(super) forced: Vec<u32>,
}

impl Absences {
    pub(super) fn fit(history: &History, included: &Inclusion, chains: &Chains, loaded: &[Loaded]) -> Self {
        let mut reads = point_reads(history, included);
        if !history.scans.is_empty() {
            Sweep::new(history, included, chains, loaded).collect(&mut reads);
        }
        reads.sort_unstable();
        reads.dedup_by_key(|read| (read.key, read.reader));
        let mut absences = Self::default();
        for of_key in reads.chunk_by(|a, b| a.key == b.key) {
            let positions = Positions::of(history, chains, of_key[0].key, loaded);
            for read in of_key {
                absences.fit_one(history, &positions, read);
            }
        }
        absences
    }

    fn fit_one(&mut self, history: &History, positions: &Positions<'_>, read: &AbsentRead) {
        let row = &history.transactions[read.reader as usize];
        let misfit = Misfit { reader: read.reader, key: read.key, by_scan: read.by_scan, read_present: None };
        match versioned_read(history, row, read.key) {
            // The read names a version, which says everything.
            Some((_, ReadState::Absent)) => return,
            Some((version, _)) => {
                self.misfits.push(Misfit { read_present: Some(version), ..misfit });
                return;
            }
            None => {}
        }
        let Some((first, last)) = positions.window(read.reader, row) else {
            self.misfits.push(misfit);
            return;
        };
        if first == last && first > 0 && positions.versions[first - 1].maybe {
            self.forced.push(positions.versions[first - 1].writer);
            return;
        }
        let (after, before) = if read.by_scan {
            (EdgeKind::WriteScan, EdgeKind::ScanWrite)
        } else {
            (EdgeKind::WriteAbsent, EdgeKind::AbsentWrite)
        };
        // If the first position comes from an unobserved delete, the reader comes at least after
        // what that delete would have deleted.
        let settled = |version: &&Version| !version.maybe;
        if let Some(version) = positions.versions[..first].iter().rev().find(settled)
            && version.writer != read.reader
        {
            self.edges.push(Edge::new(version.writer, read.reader, after, read.key));
        }
        if let Some(version) = positions.versions[last..].iter().find(settled)
            && version.writer != read.reader
        {
            self.edges.push(Edge::new(read.reader, version.writer, before, read.key));
        }
    }
}

fn point_reads(history: &History, included: &Inclusion) -> Vec<AbsentRead> {
    let mut reads = Vec::new();
    for (number, row) in history.transactions.iter().enumerate() {
        let reader = number as u32;
        if included.contains(reader) {
            let absent = row.reads.of(&history.reads).iter().filter(|read| read.state == ReadState::AbsentUnknown);
            reads.extend(absent.map(|read| AbsentRead { key: read.key, reader, by_scan: false }));
        }
    }
    reads
}

/// Returns the transaction's read of this key that names a version.
fn versioned_read(history: &History, row: &TransactionRow, key: u32) -> Option<(u64, ReadState)> {
    let scanned = row.scans.of(&history.scans).iter().flat_map(|scan| scan.entries.of(&history.scan_entries));
    let mut reads = row.reads.of(&history.reads).iter().chain(scanned);
    let read = reads.find(|read| read.key == key && read.state != ReadState::AbsentUnknown)?;
    Some((read.version, read.state))
}

/// The states of one key, and what real time says about them.
struct Positions<'c> {
    history: &'c History,
    versions: &'c [Version],
    /// Whether the key may be absent before its first version.
    absent_at_first: bool,
    /// For each version: the earliest end of its writer or of a later version's writer, and the
    /// latest start of its writer or of an earlier version's writer.
    earliest_end: Vec<u64>,
    latest_start: Vec<u64>,
    /// For each position: the next and the previous position at which the key may be absent, where
    /// a position may be its own next or previous; or [`NONE`].
    next_absent: Vec<u32>,
    previous_absent: Vec<u32>,
}

impl<'c> Positions<'c> {
    fn of(history: &'c History, chains: &'c Chains, key: u32, loaded: &[Loaded]) -> Self {
        let versions = chains.of(key);
        let loaded = loaded[key as usize];
        let mut positions = Self {
            history,
            versions,
            absent_at_first: loaded.reader == NONE || loaded.state != ReadState::Present,
            earliest_end: vec![NO_END; versions.len()],
            latest_start: vec![0; versions.len()],
            next_absent: vec![NONE; versions.len() + 1],
            previous_absent: vec![NONE; versions.len() + 1],
        };
        let mut earliest_end = NO_END;
        for (number, version) in versions.iter().enumerate().rev() {
            if !version.maybe {
                earliest_end = earliest_end.min(end_of(history, version.writer));
            }
            positions.earliest_end[number] = earliest_end;
        }
        let mut latest_start = 0;
        for (number, version) in versions.iter().enumerate() {
            if !version.maybe {
                latest_start = latest_start.max(start_of(history, version.writer));
            }
            positions.latest_start[number] = latest_start;
        }
        let mut previous = NONE;
        for position in 0..=versions.len() {
            if positions.may_be_absent(position) {
                previous = position as u32;
            }
            positions.previous_absent[position] = previous;
        }
        let mut next = NONE;
        for position in (0..=versions.len()).rev() {
            if positions.may_be_absent(position) {
                next = position as u32;
            }
            positions.next_absent[position] = next;
        }
        positions
    }

    fn may_be_absent(&self, position: usize) -> bool {
        if position == 0 { self.absent_at_first } else { self.versions[position - 1].may_be_absent }
    }

    /// Whether the reader can have seen this position. An unobserved delete that started after the
    /// reader ended is too late.
    fn is_in_time(&self, position: usize, reader: &TransactionRow) -> bool {
        position == 0
            || !self.versions[position - 1].maybe
            || start_of(self.history, self.versions[position - 1].writer) <= reader.end_ns
    }

    /// Returns the first and the last position at which the reader may have found the key absent.
    fn window(&self, reader: u32, row: &TransactionRow) -> Option<(usize, usize)> {
        // The position is after every version whose writer ended before the reader started, and
        // before every version whose writer started after the reader ended.
        // A read at a past time may be before any version.
        let earliest = if row.level == Level::Serializable { 0 } else { row.start_ns };
        let mut low = self.earliest_end.partition_point(|end_ns| *end_ns < earliest);
        let mut high = self.latest_start.partition_point(|start_ns| *start_ns <= row.end_ns);
        if !row.writes.of(&self.history.writes).is_empty()
            && let Some(own) = self.own_version(reader, row)
        {
            // The position is directly below the reader's own write: a version in between would be
            // a lost update.
            let below = self.versions[..own].iter().rposition(|version| !version.maybe);
            low = low.max(below.map_or(0, |number| number + 1));
            high = high.min(own);
        }
        let mut first = low;
        loop {
            first = self.absent_from(&self.next_absent, first)?;
            if first > high {
                return None;
            }
            if self.is_in_time(first, row) {
                break;
            }
            first += 1;
        }
        let mut last = high;
        loop {
            last = self.absent_from(&self.previous_absent, last)?;
            if self.is_in_time(last, row) {
                return Some((first, last));
            }
            last = last.checked_sub(1)?;
        }
    }

    fn absent_from(&self, neighbours: &[u32], position: usize) -> Option<usize> {
        neighbours.get(position).filter(|neighbour| **neighbour != NONE).map(|neighbour| *neighbour as usize)
    }

    /// Returns the number of the reader's own first version of this key.
    fn own_version(&self, reader: u32, row: &TransactionRow) -> Option<usize> {
        let own = row.writes.of(&self.history.writes).iter().filter_map(|write| {
            let at = self.versions.partition_point(|version| version.version < write.version);
            self.versions.get(at).filter(|version| version.writer == reader).map(|_| at)
        });
        own.min()
    }
}

/// A scan that has to be checked.
struct Query<'h> {
    reader: u32,
    row: &'h TransactionRow,
    scan: &'h ScanRow,
    /// The ranks of the keys in its range.
    first: u32,
    end: u32,
}

/// A time in which a key may have been present. Outside of it, real time alone says that the key
/// was absent.
#[derive(Clone, Copy, Debug)]
struct Presence {
    first_ns: u64,
    last_ns: u64,
    rank: u32,
}

/// The keys in key order, with the times in which they may have been present. It is swept from the
/// first scan to the last.
struct Sweep<'h> {
    history: &'h History,
    included: &'h Inclusion,
    /// The keys that were ever present, by table and bytes. The rank of a key is its place here.
    keys: Vec<u32>,
    /// For each table, where its keys begin, and one more place for the end.
    tables: Vec<usize>,
    presences: Vec<Presence>,
}

impl<'h> Sweep<'h> {
    fn new(history: &'h History, included: &'h Inclusion, chains: &Chains, loaded: &[Loaded]) -> Self {
        let interner = &history.keys;
        let mut scanned = vec![false; interner.table_count()];
        for scan in &history.scans {
            scanned[scan.table as usize] = true;
        }
        let presence = |key: u32| {
            let versions = chains.of(key).iter().filter(|version| !version.maybe);
            let loaded = loaded[key as usize];
            let first_ns = if loaded.reader != NONE && loaded.state == ReadState::Present {
                Some(0)
            } else {
                versions.clone().map(|version| start_of(history, version.writer)).min()
            };
            let last_ns = match versions.clone().next_back() {
                Some(last) if !last.may_be_present => versions.map(|version| end_of(history, version.writer)).max(),
                _ => None,
            };
            Some((first_ns?, last_ns.unwrap_or(NO_END)))
        };
        let mut known: Vec<(u32, (u64, u64))> = (0..interner.len() as u32)
            .filter(|key| scanned[interner.table_of(*key) as usize])
            .filter_map(|key| Some((key, presence(key)?)))
            .collect();
        known.sort_unstable_by_key(|(key, _)| (interner.table_of(*key), interner.bytes(*key)));
        let mut presences: Vec<Presence> = (0..)
            .zip(&known)
            .map(|(rank, (_, (first_ns, last_ns)))| Presence { first_ns: *first_ns, last_ns: *last_ns, rank })
            .collect();
        presences.sort_unstable_by_key(|presence| presence.first_ns);
        let keys: Vec<u32> = known.into_iter().map(|(key, _)| key).collect();
        let table_start = |table: usize| keys.partition_point(|key| (interner.table_of(*key) as usize) < table);
        let tables = (0..=interner.table_count()).map(table_start).collect();
        Self { history, included, keys, tables, presences }
    }

    fn query(&self, reader: u32, row: &'h TransactionRow, scan: &'h ScanRow) -> Query<'h> {
        let (from, to) = self.history.scan_bounds(scan);
        let first_of_table = self.tables[scan.table as usize];
        let keys = &self.keys[first_of_table..self.tables[scan.table as usize + 1]];
        let rank =
            |bound: &[u8]| (first_of_table + keys.partition_point(|key| self.history.keys.bytes(*key) < bound)) as u32;
        let first = rank(from);
        Query { reader, row, scan, first, end: rank(to).max(first) }
    }

    /// Adds the keys that scans did not return although the keys may have been there.
    fn collect(&self, reads: &mut Vec<AbsentRead>) {
        let rows = self.history.transactions.iter().enumerate();
        let mut queries: Vec<Query<'_>> = rows
            .filter(|(number, _)| self.included.contains(*number as u32))
            .flat_map(|(number, row)| {
                let scans = row.scans.of(&self.history.scans).iter();
                scans.map(move |scan| self.query(number as u32, row, scan))
            })
            .collect();
        queries.sort_unstable_by_key(|query| query.row.start_ns);
        // For each key, the number of the scan that last returned it, counted from 1.
        let mut returned = vec![0_u32; self.history.key_count()];
        // The keys that may be present now, by rank, with the times in which they may be; and the
        // times at which they cease to be.
        let mut present: BTreeMap<u32, Presence> = BTreeMap::new();
        let mut ceasing: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
        let mut coming = self.presences.iter().peekable();
        for (query, number) in queries.iter().zip(1_u32..) {
            let (start_ns, end_ns) = (query.row.start_ns, query.row.end_ns);
            for read in query.scan.entries.of(&self.history.scan_entries) {
                returned[read.key as usize] = number;
            }
            let mut look = |rank: u32| {
                let key = self.keys[rank as usize];
                let is_own = query.row.writes.of(&self.history.writes).iter().any(|write| write.key == key);
                if returned[key as usize] != number && !is_own {
                    reads.push(AbsentRead { key, reader: query.reader, by_scan: true });
                }
            };
            if end_ns == NO_END || query.row.level == Level::Serializable {
                // The scan of an unknown transaction may have been at any time after its start, and
                // one at a past time at any time before its end. Such scans are few.
                (query.first..query.end).for_each(&mut look);
                continue;
            }
            while let Some(presence) = coming.next_if(|presence| presence.first_ns <= end_ns) {
                present.insert(presence.rank, *presence);
                ceasing.push(Reverse((presence.last_ns, presence.rank)));
            }
            while let Some(Reverse((last_ns, rank))) = ceasing.peek()
                && *last_ns < start_ns
            {
                present.remove(rank);
                ceasing.pop();
            }
            for (rank, presence) in present.range(query.first..query.end) {
                if presence.first_ns <= end_ns && presence.last_ns >= start_ns {
                    look(*rank);
                }
            }
        }
    }
}
