//! The timeline of a drill: what its clients committed, and when. It is made from their histories,
//! which have one clock.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use remora::observe::Nanos;
use remora_check::{History, Status};
use remora_command::plot::{self, Labels, Series};
use serde::Serialize;

use super::Ran;

const MS: Nanos = 1_000_000;
const BIN: Nanos = 20 * MS;
/// Number of bins whose mean must be back. A rate is back in a bin if the bin is, and if the mean
/// of this bin and the ones after it is, too.
const BINS_BACK: usize = 5;
const SHARE_BACK: f64 = 0.9;

/// The timeline of one client.
#[derive(Debug)]
struct Line {
    /// The client's first bin, and the bin after its last one.
    alive: (usize, usize),
    /// When the client was killed, if it was.
    killed: Option<Nanos>,
    /// Number of committed transactions in each bin.
    committed: Vec<u32>,
}

/// Committed transactions of each client, by bin.
#[derive(Debug)]
pub(super) struct Timeline {
    bins: usize,
    length: Nanos,
    /// Seconds between kills, in bins.
    every: usize,
    clients: Vec<Line>,
    /// Memory nodes that were killed, and when.
    nodes: Vec<(usize, Nanos)>,
    /// What happened to the killed memory nodes later, and when.
    restored: Vec<(usize, &'static str, Nanos)>,
    /// How long each committed transaction took, from its first attempt on, in ascending order.
    took: Vec<Nanos>,
}

/// How long committed transactions took, from their first attempts on, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(super) struct TookMs {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

/// Time from a kill until the survivors commit 90 % of what they did before, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct RecoveryMs {
    pub(super) median: Option<u64>,
    pub(super) max: Option<u64>,
    /// Number of kills after which the survivors did not get there before the next kill.
    pub(super) not_before_the_next: usize,
}

impl Timeline {
    pub(super) fn new(history: &History, ran: &Ran, every: Duration) -> Timeline {
        let length = ran.ended_ns.saturating_sub(ran.began_ns).max(1);
        let bins = length.div_ceil(BIN) as usize;
        let since = |at: Nanos| at.saturating_sub(ran.began_ns);
        let bin = |at: Nanos| (since(at) / BIN) as usize;
        let mut clients: Vec<Line> = ran
            .clients
            .iter()
            .map(|client| Line {
                alive: (bin(client.began_ns).min(bins), client.ended_ns.map_or(bins, |at| (bin(at) + 1).min(bins))),
                killed: client.ended_ns.filter(|_| client.killed).map(since),
                committed: vec![0; bins],
            })
            .collect();
        let files = ran.clients.iter().map(|client| client.history.display().to_string());
        let by_file: HashMap<String, usize> = files.zip(0..).collect();
        let mut took = Vec::new();
        for transaction in history.transactions().filter(|transaction| transaction.status() == Status::Committed) {
            let end = transaction.end_ns().filter(|end| (ran.began_ns..ran.ended_ns).contains(end));
            if let (Some(end), Some(client)) = (end, by_file.get(transaction.file())) {
                clients[*client].committed[bin(end)] += 1;
                took.push(end.saturating_sub(transaction.start_ns()));
            }
        }
        let nodes = ran.lost.iter().map(|lost| (lost.node, since(lost.at_ns))).collect();
        let restored = ran.lost.iter().flat_map(|lost| {
            let events = [("restarted", lost.back_ns), ("copied", lost.copied_ns)];
            events.into_iter().filter_map(|(what, at)| Some((lost.node, what, since(at?))))
        });
        let restored = restored.collect();
        took.sort_unstable();
        let every = (every.as_nanos() as u64 / BIN) as usize;
        Timeline { bins, length, every, clients, nodes, restored, took }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.length as f64 / 1e9
    }

    pub(super) fn committed(&self) -> u64 {
        self.clients.iter().flat_map(|client| &client.committed).map(|count| u64::from(*count)).sum()
    }

    /// Returns how long committed transactions took. A transaction that waits for a dead client
    /// until the dead client's lock is repaired is one of the slowest.
    pub(super) fn took_ms(&self) -> TookMs {
        let at = |share: f64| {
            let number = (self.took.len() as f64 * share) as usize;
            self.took.get(number.min(self.took.len().saturating_sub(1))).map_or(0.0, |took| *took as f64 / MS as f64)
        };
        TookMs { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) }
    }

    /// Returns the timeline as CSV. It has a row for each client and each bin in which the client
    /// was alive. It has three rows for each killed memory node: for the kill, for the new start,
    /// and for the time when all shards had their copies again. The last one may be after the last
    /// bin.
    pub(super) fn csv(&self) -> String {
        let mut text = "bin_ms,client,committed,killed\n".to_owned();
        for bin in 0..self.bins {
            for (number, client) in self.clients.iter().enumerate() {
                if (client.alive.0..client.alive.1).contains(&bin) {
                    let killed = u8::from(client.killed.is_some_and(|at| (at / BIN) as usize == bin));
                    let from = bin as u64 * BIN / MS;
                    let _ = writeln!(text, "{from},{number},{},{killed}", client.committed[bin]);
                }
            }
            for (node, _) in self.nodes.iter().filter(|(_, at)| (at / BIN) as usize == bin) {
                let _ = writeln!(text, "{},node-{node},0,1", bin as u64 * BIN / MS);
            }
        }
        for (node, what, at) in &self.restored {
            let _ = writeln!(text, "{},node-{node}-{what},0,0", at / BIN * BIN / MS);
        }
        text
    }

    /// Returns a chart of the committed transactions of all clients together.
    pub(super) fn svg(&self, title: &str, marked: &str) -> Result<String, std::fmt::Error> {
        let seconds = |at: Nanos| at as f64 / 1e9;
        let rate = |bin: usize| {
            let committed: u64 = self.clients.iter().map(|client| u64::from(client.committed[bin])).sum();
            committed as f64 / seconds(BIN)
        };
        // The last bin is not complete.
        let points = (0..self.bins.saturating_sub(1)).map(|bin| (seconds(bin as u64 * BIN), rate(bin)));
        let line = Series { name: "committed, bins of 20 ms".to_owned(), points: points.collect() };
        let kills: Vec<f64> = self.kills().map(|(at, _)| seconds(at)).collect();
        let labels = Labels { title, x: "seconds", y: "transactions/s" };
        plot::timeline(&labels, &line, (marked, &kills))
    }

    /// Returns when each kill happened, and the victim if it was a client.
    fn kills(&self) -> impl Iterator<Item = (Nanos, Option<&Line>)> {
        let clients = self.clients.iter().filter_map(|client| Some((client.killed?, Some(client))));
        clients.chain(self.nodes.iter().map(|(_, at)| (*at, None)))
    }

    pub(super) fn recovery(&self) -> RecoveryMs {
        let mut times = Vec::new();
        let mut not_before_the_next = 0;
        for (at, victim) in self.kills() {
            match self.back_after(at, victim) {
                Some(bins) => times.push(bins as u64 * BIN / MS),
                None => not_before_the_next += 1,
            }
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied();
        RecoveryMs { median, max: times.last().copied(), not_before_the_next }
    }

    /// Returns the number of bins from a kill until the survivors commit as much as before.
    fn back_after(&self, at: Nanos, victim: Option<&Line>) -> Option<usize> {
        let kill = (at / BIN) as usize;
        // The time just after the kill before this one does not count as "before".
        let from = kill.saturating_sub((self.every / 2).clamp(1, 50));
        let survivors: Vec<&Line> = self
            .clients
            .iter()
            .filter(|client| {
                !victim.is_some_and(|victim| std::ptr::eq(*client, victim))
                    && client.alive.0 <= from
                    && client.alive.1 > kill
            })
            .collect();
        let mean = |from: usize, to: usize| {
            let sum: u64 =
                survivors.iter().flat_map(|client| &client.committed[from..to]).map(|count| u64::from(*count)).sum();
            sum as f64 / (to - from).max(1) as f64
        };
        let wanted = SHARE_BACK * mean(from, kill);
        let behind = (self.every / 2).clamp(1, BINS_BACK);
        let until = (kill + self.every).min(self.bins.saturating_sub(1)).saturating_sub(behind);
        let back = |bin: &usize| mean(*bin, bin + 1) >= wanted && mean(*bin, bin + behind) >= wanted;
        Some((kill..until).find(back)? - kill + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two survivors and a victim, killed in bin 100; the survivors stand still for some bins.
    fn timeline(still: usize) -> Timeline {
        let survivor = || {
            let mut committed = vec![10; 300];
            committed[100..100 + still].fill(0);
            Line { alive: (0, 300), killed: None, committed }
        };
        let mut committed = vec![10; 300];
        committed[100..].fill(0);
        let victim = Line { alive: (0, 101), killed: Some(100 * BIN + 5), committed };
        Timeline {
            bins: 300,
            length: 300 * BIN,
            every: 100,
            clients: vec![survivor(), victim, survivor()],
            nodes: vec![],
            restored: vec![],
            took: vec![],
        }
    }

    #[test]
    fn the_slowest_transactions_are_known() {
        assert_eq!(timeline(0).took_ms(), TookMs::default());
        let took = (1..=2_000).map(|ms| ms * MS).collect();
        let of_2000 = Timeline { took, ..timeline(0) }.took_ms();
        assert_eq!(of_2000, TookMs { p50: 1_001.0, p99: 1_981.0, p999: 1_999.0, max: 2_000.0 });
    }

    #[test]
    fn recovery_is_timed_by_those_who_survive() {
        let recovery = |still| {
            let RecoveryMs { median, max, not_before_the_next } = timeline(still).recovery();
            assert_eq!(median, max);
            (max, not_before_the_next)
        };
        assert_eq!(recovery(0), (Some(20), 0));
        assert_eq!(recovery(7), (Some(160), 0));
        assert_eq!(recovery(100), (None, 1));
    }

    #[test]
    fn rows_are_of_the_living() {
        let csv = timeline(2).csv();
        assert_eq!(csv.lines().count(), 1 + 300 + 300 + 101);
        assert!(csv.contains("\n2000,1,0,1\n") && csv.matches(",1\n").count() == 1);
        assert_eq!(timeline(2).committed(), 298 * 20 + 1_000);
        let restored = vec![(2, "restarted", 120 * BIN), (2, "copied", 310 * BIN + 7)];
        let csv = Timeline { nodes: vec![(2, 110 * BIN)], restored, ..timeline(2) }.csv();
        for row in ["2200,node-2,0,1", "2400,node-2-restarted,0,0", "6200,node-2-copied,0,0"] {
            assert!(csv.lines().any(|line| line == row), "{row}");
        }
        assert!(timeline(2).svg("drill", "a client is killed").unwrap().contains("killed"));
    }
}
