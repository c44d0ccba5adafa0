//! What a gateway counts about commands. Each thread counts for itself, without locks and without
//! atomic additions: only the thread itself writes its numbers, and anyone may read them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use remora_redis::table;

use crate::plan::Planned;

/// The first words of errors that are counted one by one. The last one stands for all others.
pub(super) const PREFIXES: [&str; 12] = [
    "ERR",
    "WRONGTYPE",
    "NOAUTH",
    "WRONGPASS",
    "NOPROTO",
    "EXECABORT",
    "TRYAGAIN",
    "UNKNOWN",
    "OOM",
    "DENIED",
    "ONCEDONE",
    "other",
];

/// The kinds of batches: one command, several, or several with an `EXEC` among them.
pub(super) const KINDS: [&str; 3] = ["single", "pipeline", "multi"];

/// What is counted of a thread, beside its commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A client has given a wrong password.
    AuthFailure,
    /// A watched key had changed.
    WatchFailure,
    /// A connection has broken the protocol.
    ProtocolError,
    /// The outcome of a transaction was unknown at first, and it had committed.
    UnknownCommitted,
    /// The outcome of a transaction was unknown at first, and it had aborted.
    UnknownAborted,
    /// The outcome of a transaction stayed unknown.
    UnknownUndecided,
    /// Commands with a token were applied.
    OnceFirst,
    /// Commands with a token had been applied before.
    OnceReplayed,
    /// A token belonged to other commands.
    OnceMismatch,
}

const EVENTS: usize = Event::OnceMismatch as usize + 1;

/// The numbers of a command.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Calls {
    /// Calls that were run.
    pub(super) calls: u64,
    /// Calls that have failed.
    pub(super) failed: u64,
    /// Calls that were refused before they were run.
    pub(super) rejected: u64,
    /// The time that calls have taken. A batch's time is shared equally by its commands.
    pub(super) nanos: u64,
}

#[derive(Debug, Default)]
struct Tally {
    calls: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
    nanos: AtomicU64,
}

/// The numbers of one thread.
#[derive(Debug)]
pub(crate) struct Counters {
    /// By the number of the command. The last one stands for names that are no command.
    commands: Box<[Tally]>,
    errors: [AtomicU64; PREFIXES.len()],
    batches: [AtomicU64; KINDS.len()],
    events: [AtomicU64; EVENTS],
}

/// The sum of the numbers of all threads.
#[derive(Clone, Default, Debug)]
pub(super) struct Totals {
    pub(super) commands: Vec<Calls>,
    pub(super) errors: [u64; PREFIXES.len()],
    pub(super) batches: [u64; KINDS.len()],
    events: [u64; EVENTS],
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            commands: (0..=unknown_command()).map(|_| Tally::default()).collect(),
            errors: Default::default(),
            batches: Default::default(),
            events: Default::default(),
        }
    }
}

/// Returns the number that stands for names that are no command.
pub(crate) fn unknown_command() -> usize {
    table::all().len()
}

/// Adds to a number that only the calling thread writes.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Counters {
    /// Counts the commands of a batch that were run in this time.
    pub(crate) fn ran(&self, commands: &[Planned], has_exec: bool, took: Duration) {
        let Some(count) = u64::try_from(commands.len()).ok().filter(|count| *count > 0) else { return };
        let share = took.as_nanos() as u64 / count;
        for command in commands.iter().filter(|command| !command.is_rejected) {
            let tally = &self.commands[command.number];
            add(&tally.calls, 1);
            add(&tally.nanos, share);
        }
        let kind = if has_exec { 2 } else { usize::from(count > 1) };
        add(&self.batches[kind], 1);
    }

    /// Counts a call that was refused before it was run.
    pub(crate) fn rejected(&self, command: usize, text: &[u8]) {
        add(&self.commands[command].rejected, 1);
        self.error(text);
    }

    /// Counts a call that has failed.
    pub(crate) fn failed(&self, command: usize, text: &[u8]) {
        add(&self.commands[command].failed, 1);
        self.error(text);
    }

    /// Counts an error that is answered.
    pub(crate) fn error(&self, text: &[u8]) {
        let word = text.split(|byte| *byte == b' ').next().unwrap_or_default();
        let place = PREFIXES.iter().position(|prefix| prefix.as_bytes() == word);
        add(&self.errors[place.unwrap_or(PREFIXES.len() - 1)], 1);
    }

    /// Counts an event.
    pub(crate) fn happened(&self, event: Event) {
        add(&self.events[event as usize], 1);
    }
}

impl Totals {
    /// Returns the sum of what threads have counted.
    pub(super) fn of<'c>(threads: impl Iterator<Item = &'c Counters>) -> Totals {
        let mut totals = Totals { commands: vec![Calls::default(); unknown_command() + 1], ..Totals::default() };
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        for thread in threads {
            for (sum, tally) in totals.commands.iter_mut().zip(&thread.commands) {
                sum.calls += read(&tally.calls);
                sum.failed += read(&tally.failed);
                sum.rejected += read(&tally.rejected);
                sum.nanos += read(&tally.nanos);
            }
            let pairs = totals.errors.iter_mut().zip(&thread.errors);
            let pairs = pairs.chain(totals.batches.iter_mut().zip(&thread.batches));
            pairs.chain(totals.events.iter_mut().zip(&thread.events)).for_each(|(sum, count)| *sum += read(count));
        }
        totals
    }

    /// Returns what was counted since `base`.
    pub(super) fn since(mut self, base: &Totals) -> Totals {
        for (count, base) in self.commands.iter_mut().zip(&base.commands) {
            count.calls = count.calls.saturating_sub(base.calls);
            count.failed = count.failed.saturating_sub(base.failed);
            count.rejected = count.rejected.saturating_sub(base.rejected);
            count.nanos = count.nanos.saturating_sub(base.nanos);
        }
        self.errors.iter_mut().zip(&base.errors).for_each(|(count, base)| *count = count.saturating_sub(*base));
        self
    }

    /// Returns how many commands were run.
    pub(super) fn calls(&self) -> u64 {
        self.commands.iter().map(|command| command.calls).sum()
    }

    /// Returns how often an event has happened.
    pub(super) fn count(&self, event: Event) -> u64 {
        self.events[event as usize]
    }

    /// Returns the commands that were called, with their names.
    pub(super) fn called(&self) -> impl Iterator<Item = (&'static str, &Calls)> {
        let names = table::all().map(|command| command.name).chain(["other"]);
        names.zip(&self.commands).filter(|(_, calls)| **calls != Calls::default())
    }
}
