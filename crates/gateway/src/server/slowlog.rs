//! `SLOWLOG`: the commands and batches that have taken long.
//!
//! Commands that a connection has sent together run as one transaction, and have one duration. An
//! entry then has the first command and says how many others there were. `AUTH` and `HELLO` are
//! never logged.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use remora_redis::{Error, table};
use remora_resp::ReplyWriter;

use super::config::Settings;
use super::locked;
use crate::clock;
use crate::plan::Plan;

/// The largest number of arguments of an entry.
const ARGUMENTS_MAX: usize = 32;
/// Bytes of an argument that an entry has.
const ARGUMENT_BYTES_MAX: usize = 128;

#[derive(Debug, Default)]
pub(super) struct SlowLog {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    next: i64,
    /// The newest is the first.
    entries: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: i64,
    at: u64,
    micros: i64,
    args: Vec<Vec<u8>>,
    peer: String,
    name: Vec<u8>,
}

impl SlowLog {
    /// Logs a plan that has taken this time. Call it only if that is long enough:
    /// [`Settings::is_slow`].
    pub(super) fn add(
        &self,
        settings: &Settings,
        plan: &Plan<'_>,
        took: Duration,
        hides_keys: bool,
        peer: String,
        name: Vec<u8>,
    ) {
        let Some(args) = args_of(plan, hides_keys) else { return };
        let micros = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        let length = settings.slow_length();
        let mut log = locked(&self.entries);
        let id = log.next;
        log.next += 1;
        log.entries.push_front(Entry { id, at: clock::since_1970().as_secs(), micros, args, peer, name });
        log.entries.truncate(length);
    }

    /// Writes the newest entries: `SLOWLOG GET`.
    pub(super) fn get(&self, count: usize, reply: &mut ReplyWriter<'_>) {
        let log = locked(&self.entries);
        let count = count.min(log.entries.len());
        reply.array(count);
        for entry in log.entries.iter().take(count) {
            reply.array(6);
            reply.integer(entry.id);
            reply.integer(entry.at as i64);
            reply.integer(entry.micros);
            reply.array(entry.args.len());
            entry.args.iter().for_each(|argument| reply.bulk(argument));
            reply.bulk(&entry.peer);
            reply.bulk(&entry.name);
        }
    }

    pub(super) fn len(&self) -> usize {
        locked(&self.entries).entries.len()
    }

    pub(super) fn clear(&self) {
        locked(&self.entries).entries.clear();
    }
}

/// Returns the number of entries that `SLOWLOG GET` asks for.
pub(super) fn count_of(argument: Option<&&[u8]>) -> Result<usize, Error> {
    let Some(argument) = argument else { return Ok(10) };
    match remora_resp::number::parse_integer(argument) {
        Some(-1) => Ok(usize::MAX),
        Some(count) if count >= 0 => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
        _ => Err(Error::new("ERR count should be greater than or equal to -1")),
    }
}

/// Returns the arguments of the entry of a plan: those of its first command that may be logged.
fn args_of(plan: &Plan<'_>, hides_keys: bool) -> Option<Vec<Vec<u8>>> {
    let ends = plan.commands.iter().skip(1).map(|command| command.start).chain([plan.args.len()]);
    let mut logged = plan.commands.iter().zip(ends).filter(|(command, _)| {
        let found = table::all().as_slice().get(command.number);
        !command.is_rejected && found.is_some_and(|found| !matches!(found.name, "auth" | "hello"))
    });
    let (first, end) = logged.next()?;
    let (args, others) = (&plan.args[first.start..end], logged.count());
    let keys = match table::all().as_slice().get(first.number) {
        Some(command) if hides_keys => command.places(args),
        _ => Default::default(),
    };
    let shown = if args.len() > ARGUMENTS_MAX { ARGUMENTS_MAX - 1 } else { args.len() };
    let show = |(place, argument): (usize, &&[u8])| {
        if keys.contains(&place) {
            b"(redacted)".to_vec()
        } else if argument.len() > ARGUMENT_BYTES_MAX {
            let more = format!("... ({} more bytes)", argument.len() - ARGUMENT_BYTES_MAX);
            [&argument[..ARGUMENT_BYTES_MAX], more.as_bytes()].concat()
        } else {
            argument.to_vec()
        }
    };
    let mut entry: Vec<Vec<u8>> = args.iter().enumerate().take(shown).map(show).collect();
    if shown < args.len() {
        entry.push(format!("... ({} more arguments)", args.len() - shown).into_bytes());
    }
    if others > 0 {
        entry.push(format!("... ({others} more commands of the batch)").into_bytes());
    }
    Some(entry)
}
