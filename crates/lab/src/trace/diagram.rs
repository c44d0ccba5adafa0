//! A trace as a sequence diagram: a column for the client, and one for each memory node.

use std::collections::BTreeSet;
use std::fmt;

use remora::floors::node::node::AT_SPACE;
use remora::floors::record::LockWord;
use remora::floors::txn::request_name;
use remora::observe::{Cost, Nanos};
use remora_command::output::grouped;
use remora_fabric::sim::Recorded;
use remora_fabric::{Address, NodeId, Verb, WORD_BYTES};

use super::Trace;

pub(super) const COLUMNS: usize = 100;
/// Where the line of node 0 is. The client's line is in the first column.
const FIRST_NODE: usize = 16;
const NODE_COLUMNS_MAX: usize = 26;

/// A verb as a diagram shows it.
struct Shown {
    /// What the verb does for its transaction; empty if it only serves other verbs.
    step: &'static str,
    text: String,
}

impl Trace {
    /// What lies at an address: the account, with a mark if it is a backup's copy, and which part.
    fn place(&self, at: Address, bytes: usize) -> (String, &'static str) {
        let record = self.shape.record_bytes();
        for ((_, slots), letter) in self.accounts.iter().zip('A'..) {
            for (slot, mark) in slots.iter().zip([" ", "' ", "' "]).filter(|(slot, _)| slot.node == at.node) {
                let part = match at.offset.checked_sub(slot.offset) {
                    Some(0) if bytes == WORD_BYTES => "lock",
                    Some(0) if bytes < record => "header",
                    Some(8) if bytes == WORD_BYTES => "version",
                    Some(within) if (within as usize) < record => "record",
                    _ => continue,
                };
                return (format!("{letter}{mark}"), part);
            }
        }
        let is_index = self.shards.iter().any(|(node, bytes)| *node == at.node && bytes.contains(&at.offset));
        let part = if at.offset >= AT_SPACE { "log" } else { "metadata" };
        (String::new(), if is_index { "index" } else { part })
    }

    fn show(&self, verb: &Verb, request: Option<u64>) -> Shown {
        let (at, bytes) = match *verb {
            Verb::Read { at, words, .. } | Verb::Write { at, words, .. } => (at, words as usize * WORD_BYTES),
            Verb::CompareSwap { at, .. } | Verb::FetchAdd { at, .. } => (at, WORD_BYTES),
            Verb::Flush { .. } => return Shown { step: "", text: "FLUSH".to_owned() },
            Verb::AfterCompletion => return Shown { step: "", text: "then".to_owned() },
            Verb::Call { head_words, body_words, .. } => {
                let step = request.and_then(request_name).unwrap_or("call");
                let bytes = (head_words + body_words) as usize * WORD_BYTES;
                return Shown { step, text: format!("call {step} {bytes}") };
            }
        };
        let (account, part) = self.place(at, bytes);
        let (kind, step) = match (verb, part) {
            (Verb::Read { .. }, "record") => ("READ", "read"),
            (Verb::Read { .. }, "header") => ("READ", "validate"),
            (Verb::Read { .. }, _) => ("READ", "look up"),
            (Verb::Write { .. }, "record") => ("WRITE", "install"),
            (Verb::Write { .. }, "version") => ("WRITE", "show"),
            (Verb::Write { .. }, "log") if bytes == WORD_BYTES => ("WRITE", "free the log"),
            (Verb::Write { .. }, "log") => ("WRITE", "log"),
            (Verb::Write { .. }, _) => ("WRITE", "index"),
            (Verb::CompareSwap { .. }, "version") => ("CAS", "show"),
            (Verb::CompareSwap { new, .. }, _) if LockWord::from_bits(*new).is_free() => ("CAS", "unlock"),
            (Verb::CompareSwap { .. }, _) => ("CAS", "lock"),
            _ => ("FETCH_ADD", "unlock"),
        };
        Shown { step, text: format!("{kind} {account}{part} {bytes}") }
    }

    fn column(&self, node: NodeId) -> usize {
        let columns = (COLUMNS - FIRST_NODE) / usize::from(self.nodes);
        FIRST_NODE + usize::from(node.0) * columns.min(NODE_COLUMNS_MAX)
    }

    /// A line with these texts in the columns of memory nodes, each in place of the node's line.
    fn line(&self, client: &str, cells: impl Fn(NodeId) -> Option<String>) -> String {
        let mut line = client.to_owned();
        for node in (0..self.nodes).map(NodeId) {
            let cell = cells(node).unwrap_or_else(|| "|".to_owned());
            line = format!("{line:<width$}{cell}", width = self.column(node));
        }
        line
    }

    /// An arrow from the client to the nodes of a round, or back.
    fn arrow(&self, round: &Recorded, back: bool) -> String {
        let nodes: BTreeSet<NodeId> = round.verbs.iter().filter_map(|(verb, _)| verb.node()).collect();
        let last = nodes.last().map_or(0, |node| self.column(*node));
        let mut line: Vec<char> = self.line("|", |_| None).chars().collect();
        let shaft = if round.background { '.' } else { '-' };
        line[1..last].iter_mut().filter(|at| **at == ' ').for_each(|at| *at = shaft);
        if back {
            line[1] = '<';
        } else {
            nodes.iter().for_each(|node| line[self.column(*node) - 1] = '>');
        }
        line.into_iter().collect()
    }

    fn posted(&self, round: &Recorded, name: &str) -> Vec<String> {
        let mut steps: Vec<&str> = Vec::new();
        let mut columns = vec![Vec::new(); self.nodes.into()];
        for (verb, request) in &round.verbs {
            let Shown { step, text } = self.show(verb, *request);
            if !step.is_empty() && !steps.contains(&step) {
                steps.push(step);
            }
            let acts_on = |node: usize| verb.node().is_none_or(|one| usize::from(one.0) == node);
            (0..columns.len()).filter(|node| acts_on(*node)).for_each(|node| columns[node].push(text.clone()));
        }
        let at = grouped(round.posted - self.time.start);
        let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
        let rows = (0..rows).map(|row| self.line("|", |node| columns[usize::from(node.0)].get(row).cloned()));
        let title = format!("|  {name}: {}; posted at {at} ns", steps.join(", "));
        [title, self.arrow(round, false)].into_iter().chain(rows).collect()
    }

    /// How many round trips the rounds have that the client awaited, and how many rounds it did not
    /// await.
    pub(super) fn rounds(&self) -> (u64, usize) {
        let is_fence = |verb: &Verb| matches!(verb, Verb::AfterCompletion);
        let awaited = self.recording.rounds.iter().filter(|round| !round.background);
        let trips = awaited.map(|round| 1 + round.verbs.iter().filter(|(verb, _)| is_fence(verb)).count() as u64);
        (trips.sum(), self.recording.rounds.iter().filter(|round| round.background).count())
    }

    /// What has happened and when, in lines, and in the order of time.
    fn events(&self) -> Vec<(Nanos, Vec<String>)> {
        let mut events = Vec::new();
        let (mut awaited, mut behind) = (0, 0);
        let blank = || self.line("|", |_| None);
        for round in &self.recording.rounds {
            let (kind, number) =
                if round.background { ("background round", &mut behind) } else { ("round trip", &mut awaited) };
            *number += 1;
            let name = format!("{kind} {number}");
            events.push((round.posted, self.posted(round, &name)));
            if let Some(completed) = round.completed {
                let done = format!("|  {name} done at {} ns", grouped(completed - self.time.start));
                events.push((completed, vec![self.arrow(round, true), done, blank()]));
            }
        }
        let (trips, _) = self.rounds();
        let answered = format!("|  the caller has its answer at {} ns", grouped(self.time.end - self.time.start));
        events.push((self.time.end, vec![format!("{answered}; round trips: {trips}"), blank()]));
        for at in self.recording.served.iter().map(|(_, at)| *at).collect::<BTreeSet<_>>() {
            let works = |node| self.recording.served.contains(&(node, at)).then(|| "applies the log".to_owned());
            let title = format!("|  CPUs of memory nodes, at {} ns", grouped(at - self.time.start));
            events.push((at, vec![title, self.line("|", works)]));
        }
        events.sort_by_key(|(at, _)| *at);
        events
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} under {}", self.does.name(), self.protocol)?;
        for ((key, slots), letter) in self.accounts.iter().zip('A'..) {
            if let [primary, backups @ ..] = &slots[..] {
                let backups = backups.iter().map(|at| at.node.0.to_string()).collect::<Vec<_>>().join(" and ");
                write!(f, "{letter}: account {key}, primary at node {}; ", primary.node.0)?;
                writeln!(f, "{letter}': its backups, at nodes {backups}")?;
            }
        }
        writeln!(f, "\n{}", self.line("client", |node| Some(format!("node {}", node.0))))?;
        writeln!(f, "{}", self.line("|", |_| None))?;
        for line in self.events().iter().flat_map(|(_, lines)| lines) {
            writeln!(f, "{line}")?;
        }
        let (trips, behind) = self.rounds();
        let Cost { reads, writes, atomics, flushes, rpcs, bytes_out, bytes_in, .. } = self.cost;
        writeln!(f, "\nround trips: {trips}; rounds in the background: {behind}")?;
        writeln!(f, "READ {reads}, WRITE {writes}, atomic {atomics}, FLUSH {flushes}, call {rpcs}")?;
        writeln!(f, "bytes to memory nodes: {bytes_out}; from memory nodes: {bytes_in}")
    }
}
