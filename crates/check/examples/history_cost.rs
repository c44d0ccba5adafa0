//! Measures what recording costs the worker that records. Each line is one transaction of two reads
//! and two writes.
//!
//! `cargo run --release -p remora-check --example history_cost`

use remora_check::{LineBuffer, LineHeader, Outcome, WriteKind};
use std::hint::black_box;
use std::time::Instant;

const TRANSACTIONS: u64 = 4_000_000;
const ROUNDS: u32 = 5;
/// The length of the buffer at which a recorder writes it to the file.
const FLUSH_BYTES: usize = 1 << 20;

fn main() {
    let mut buffer = LineBuffer::new();
    for round in 1..=ROUNDS {
        let mut bytes_total = 0;
        let started = Instant::now();
        for number in 0..TRANSACTIONS {
            let start_ns = 1_000_000_000_000 + number * 1_000;
            let outcome = Outcome::Committed { end_ns: start_ns + 9_000 };
            let (from, to) = (number.wrapping_mul(0x9e37_79b9) % 100_000, number % 99_991);
            let version = number / 50_000;
            let mut line =
                buffer.begin(LineHeader { id: number, worker: 3, start_ns, outcome, snapshot: false, stale: false });
            line.read("checking", &from.to_be_bytes(), version);
            line.read("checking", &to.to_be_bytes(), version);
            line.write("checking", &from.to_be_bytes(), version + 2, WriteKind::Update);
            line.write("checking", &to.to_be_bytes(), version + 2, WriteKind::Update);
            line.end();
            if buffer.bytes().len() > FLUSH_BYTES {
                bytes_total += black_box(buffer.bytes()).len();
                buffer.clear();
            }
        }
        bytes_total += buffer.bytes().len();
        buffer.clear();
        let nanoseconds = started.elapsed().as_nanos() as f64 / TRANSACTIONS as f64;
        let bytes = bytes_total as f64 / TRANSACTIONS as f64;
        println!("round {round}: {nanoseconds:.0} ns and {bytes:.0} bytes per transaction");
    }
}
