//! Measures the time for reading and checking a history of a million SmallBank-like transactions,
//! and the memory that it takes.
//!
//! `cargo run --release -p remora-check --example check_million [-- ARGUMENTS]`, where the
//! arguments are `[transactions] [clean|skew|stale|both]`.
//!
//! The history is made deterministically and is clean. `skew` plants two transactions, each of
//! which overwrites what the other read. `stale` plants a read of a value that was overwritten long
//! before.

use remora_check::{HistoryReader, LineBuffer, LineHeader, Outcome, ReadOptions, WriteKind, check};
use std::fs::File;
use std::io::{BufReader, Write};
use std::time::Instant;

const ACCOUNTS: u64 = 100_000;
const HOT_ACCOUNTS: u64 = 4_000;
const WORKERS: u64 = 16;
const STEP_NS: u64 = 700;
const LATENCY_NS_MAX: u64 = 20_000;
/// The version that the loader installed.
const LOADED: u64 = 2;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let transactions: u64 = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let planted = arguments.next().unwrap_or_else(|| "clean".to_owned());
    let path = std::env::temp_dir().join(format!("remora-check-million-{}.jsonl", std::process::id()));

    let started = Instant::now();
    let mut maker = Maker::new(File::create(&path)?);
    for number in 0..transactions {
        maker.transaction(number)?;
        if number == transactions / 2 && ["skew", "both"].contains(&planted.as_str()) {
            maker.write_skew(number);
        }
        if number == transactions * 3 / 4 && ["stale", "both"].contains(&planted.as_str()) {
            maker.stale_read(number);
        }
    }
    let bytes = maker.finish()?;
    println!("made     {transactions} transactions, {} MB, in {:.2} s", bytes >> 20, started.elapsed().as_secs_f64());

    let started = Instant::now();
    let mut reader = HistoryReader::new(ReadOptions::default());
    let outcome = reader.read("history.jsonl", BufReader::with_capacity(1 << 20, File::open(&path)?));
    std::fs::remove_file(&path)?;
    outcome?;
    let history = reader.finish().history;
    let read_seconds = started.elapsed().as_secs_f64();
    println!("read     {read_seconds:.2} s, peak {} MB", peak_megabytes());

    let started = Instant::now();
    let report = check(&history);
    let check_seconds = started.elapsed().as_secs_f64();
    println!("checked  {check_seconds:.2} s, peak {} MB", peak_megabytes());
    println!("together {:.2} s\n\n{report}", read_seconds + check_seconds);
    Ok(())
}

/// Returns the most memory that this process ever had, by the kernel's account. Returns 0 where the
/// kernel does not tell.
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse().ok());
    kilobytes.unwrap_or(0_u64) >> 10
}

/// Makes transactions one after the other. Each has an interval around its turn.
struct Maker {
    file: File,
    lines: LineBuffer,
    bytes: u64,
    random: u64,
    savings: Vec<u64>,
    checking: Vec<u64>,
    next_id: u64,
}

impl Maker {
    fn new(file: File) -> Self {
        Self {
            file,
            lines: LineBuffer::new(),
            bytes: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            savings: vec![LOADED; ACCOUNTS as usize],
            checking: vec![LOADED; ACCOUNTS as usize],
            next_id: 1,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        // xorshift64* is good enough to spread accounts.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn account(&mut self) -> u64 {
        if self.below(100) < 90 { self.below(HOT_ACCOUNTS) } else { self.below(ACCOUNTS) }
    }

    fn header(&mut self, number: u64, committed: bool) -> LineHeader {
        let turn_ns = 1_000_000_000 + number * STEP_NS;
        let start_ns = turn_ns - self.below(LATENCY_NS_MAX);
        let end_ns = turn_ns + self.below(LATENCY_NS_MAX);
        let outcome = if committed { Outcome::Committed { end_ns } } else { Outcome::Aborted { end_ns } };
        let id = self.next_id;
        self.next_id += 1;
        LineHeader { id, worker: id % WORKERS, start_ns, outcome, snapshot: false, stale: false }
    }

    fn transaction(&mut self, number: u64) -> std::io::Result<()> {
        let (from, mut to) = (self.account(), self.account());
        if from == to {
            to = (to + 1) % ACCOUNTS;
        }
        // The accesses of SmallBank's six transactions: (table, account, whether it is written).
        const SAVINGS: usize = 0;
        const CHECKING: usize = 1;
        let rows: &[(usize, u64, bool)] = match self.below(100) {
            0..15 => &[(SAVINGS, from, true), (CHECKING, from, true), (CHECKING, to, true)],
            15..30 => &[(SAVINGS, from, false), (CHECKING, from, false)],
            30..45 => &[(CHECKING, from, true)],
            45..70 => &[(CHECKING, from, true), (CHECKING, to, true)],
            70..85 => &[(SAVINGS, from, true)],
            _ => &[(SAVINGS, from, false), (CHECKING, from, true)],
        };
        let committed = self.below(100) < 95;
        let header = self.header(number, committed);
        let mut line = self.lines.begin(header);
        for (table, account, written) in rows {
            let (name, versions) =
                if *table == SAVINGS { ("savings", &mut self.savings) } else { ("checking", &mut self.checking) };
            let version = &mut versions[*account as usize];
            line.read(name, &account.to_be_bytes(), *version);
            if *written {
                line.write(name, &account.to_be_bytes(), *version + 2, WriteKind::Update);
                *version += if committed { 2 } else { 0 };
            }
        }
        line.end();
        if self.lines.bytes().len() > 1 << 20 {
            self.flush()?;
        }
        Ok(())
    }

    /// Plants a write skew on two accounts of its own: two transactions read both, and each writes
    /// one.
    fn write_skew(&mut self, number: u64) {
        let accounts = [ACCOUNTS + 1, ACCOUNTS + 2];
        for own in accounts {
            let header = self.header(number, true);
            let mut line = self.lines.begin(header);
            for account in accounts {
                line.read("checking", &account.to_be_bytes(), LOADED);
            }
            line.write("checking", &own.to_be_bytes(), LOADED + 2, WriteKind::Update);
            line.end();
        }
    }

    /// Plants a stale read: an account that was written long ago is read as the loader left it.
    fn stale_read(&mut self, number: u64) {
        let overwritten = self.checking.iter().position(|version| *version > LOADED + 200).unwrap_or(0) as u64;
        let header = self.header(number, true);
        let mut line = self.lines.begin(header);
        line.read("checking", &overwritten.to_be_bytes(), LOADED);
        line.end();
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.write_all(self.lines.bytes())?;
        self.bytes += self.lines.bytes().len() as u64;
        self.lines.clear();
        Ok(())
    }

    fn finish(mut self) -> std::io::Result<u64> {
        self.flush()?;
        Ok(self.bytes)
    }
}
