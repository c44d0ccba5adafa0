//! The recorder: writes which commands ran as one transaction, which versions of keys they read and
//! wrote, and what was answered. `remora check` judges what it writes.
//!
//! # What is written
//!
//! Lines of JSON, between the lines of the same transactions in a history of `remora check`:
//!
//! ```text
//! {"redis":"attempt","id":T,"call":C,"table":NAME,"now":MS,"random":R,"spread":B,
//!  "steps":[STEP,...],"reads":[[DATABASE,KEY,STAMP or null],...],
//!  "writes":[[DATABASE,KEY,"set" or "delete"],...],"reply":BYTES}
//! {"redis":"answer","call":C,"end_ns":N,"outcome":"done","reply":BYTES}
//! {"redis":"answer","call":C,"end_ns":N,"outcome":"failed" or "unknown"}
//!
//! STEP    ["ready",BYTES]    ["keys",DATABASE,PROTOCOL,[BYTES,...]]
//!         ["exec",PROTOCOL,[[DATABASE,KEY,STAMP or null],...],[STEP,...]]
//! ```
//!
//! B is the number of bytes above which packed collections are spread, which decides the order of
//! hashes and sets. Keys and bytes are hexadecimal. A stamp is the id of the attempt that has
//! written a key.
//!
//! # Rules
//!
//! 1. **An attempt is written before its transaction can commit.** So a key never has a stamp that
//!    no line names, even if the gateway is killed.
//! 2. **An answer is written behind the commit, and before it is sent.** It has the bytes that
//!    leave. A call that has no answer may have been applied or not.
//! 3. **Stamps come from the records, and replies from the output.** The recorder computes neither.
//! 4. All attempts of a call have the id of its first one as their call.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use remora::Session;
use remora::observe::Observer;
use remora_redis::{Context, Keyspace};
use remora_resp::Version;

use crate::plan::{Plan, Queued, Step, Watched};
use crate::store::{Row, Store, Wanted};

/// What takes the lines of all threads of a gateway. Clones write to the same place.
#[derive(Clone)]
pub struct Recorder {
    write: Arc<Write>,
    observers: Option<Arc<Observers>>,
}

/// Takes whole lines.
type Write = dyn Fn(&[u8]) + Send + Sync;
/// Makes an observer for a session.
type Observers = dyn Fn() -> Box<dyn Observer> + Send + Sync;

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

/// How a call was answered.
pub(crate) enum Answered<'o> {
    /// With these bytes: it was applied.
    Done(&'o [u8]),
    /// With an error: nothing was applied.
    Failed,
    /// With an error that says that the outcome is unknown.
    Unknown,
}

/// The record of a call: of steps that run as one transaction.
pub(crate) struct Recording<'r> {
    recorder: &'r Recorder,
    /// What all attempts have in common.
    head: String,
    /// The id of the first attempt.
    call: Option<u64>,
    reads: String,
}

impl Recorder {
    /// Makes a recorder. `write` takes whole lines, from all threads.
    pub fn new(write: impl Fn(&[u8]) + Send + Sync + 'static) -> Recorder {
        Recorder { write: Arc::new(write), observers: None }
    }

    /// Makes an observer for each session of the gateway's threads. It records the transactions.
    #[must_use]
    pub fn observed_by(self, observers: impl Fn() -> Box<dyn Observer> + Send + Sync + 'static) -> Recorder {
        Recorder { observers: Some(Arc::new(observers)), ..self }
    }

    /// Makes a session record its transactions.
    pub(crate) fn observe(&self, session: &mut Session) {
        if let Some(observers) = &self.observers {
            session.observe(Some(observers()));
        }
    }

    /// Begins the record of a call.
    pub(crate) fn begin(&self, store: &Store, context: &Context, plan: &Plan<'_>, steps: &[Step]) -> Recording<'_> {
        let (table, Context { now, random, .. }) = (store.name(), context);
        let spread = store.spread_bytes();
        let mut head = format!("\"table\":{table:?},\"now\":{now},\"random\":{random},\"spread\":{spread},\"steps\":[");
        list(&mut head, steps, |head, step| write_step(head, plan, step));
        head.push(']');
        Recording { recorder: self, head, call: None, reads: String::new() }
    }
}

impl Recording<'_> {
    /// Notes which versions an attempt has read.
    pub(crate) fn read(&mut self, wanted: &[Wanted<'_>], rows: &[Row]) {
        self.reads.clear();
        list(&mut self.reads, wanted.iter().zip(rows), |out, (((database, key), _), row)| {
            write_version(out, *database, key, row.stamp());
        });
    }

    /// Writes an attempt that may commit from now on, and what it would answer.
    pub(crate) fn attempt(&mut self, id: u64, keys: &Keyspace, reply: &[u8]) {
        let call = *self.call.get_or_insert(id);
        let Recording { head, reads, .. } = self;
        let mut line =
            format!("{{\"redis\":\"attempt\",\"id\":{id},\"call\":{call},{head},\"reads\":[{reads}],\"writes\":[");
        list(&mut line, keys.slots().iter().filter(|slot| slot.is_changed), |line, slot| {
            let kind = if slot.object.is_some() { "set" } else { "delete" };
            let _ = write!(line, "[{},{},\"{kind}\"]", slot.database, Hex(&slot.key));
        });
        let _ = writeln!(line, "],\"reply\":{}}}", Hex(reply));
        (self.recorder.write)(line.as_bytes());
    }

    /// Writes the answer, if there was an attempt that could have committed.
    pub(crate) fn answer(self, end_ns: u64, answered: Answered<'_>) {
        let Some(call) = self.call else { return };
        let mut line = format!("{{\"redis\":\"answer\",\"call\":{call},\"end_ns\":{end_ns},\"outcome\":");
        let _ = match answered {
            Answered::Done(reply) => writeln!(line, "\"done\",\"reply\":{}}}", Hex(reply)),
            Answered::Failed => writeln!(line, "\"failed\"}}"),
            Answered::Unknown => writeln!(line, "\"unknown\"}}"),
        };
        (self.recorder.write)(line.as_bytes());
    }
}

/// Bytes as a string of hexadecimal digits.
struct Hex<'b>(&'b [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_char('"')
    }
}

/// Appends elements with commas between them.
fn list<T>(out: &mut String, elements: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut String, T)) {
    for (place, element) in elements.into_iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        write(out, element);
    }
}

fn write_version(out: &mut String, database: u8, key: &[u8], stamp: Option<u64>) {
    let _ = match stamp {
        Some(stamp) => write!(out, "[{database},{},{stamp}]", Hex(key)),
        None => write!(out, "[{database},{},null]", Hex(key)),
    };
}

fn write_args<A: AsRef<[u8]>>(out: &mut String, args: &[A]) {
    out.push('[');
    list(out, args, |out, argument| _ = write!(out, "{}", Hex(argument.as_ref())));
    out.push(']');
}

fn write_step(out: &mut String, plan: &Plan<'_>, step: &Step) {
    match step {
        Step::Ready(place) => _ = write!(out, "[\"ready\",{}]", Hex(&plan.replies[place.clone()])),
        Step::Keys { args, database, version, .. } => {
            let _ = write!(out, "[\"keys\",{database},{},", number_of(*version));
            write_args(out, &plan.args[args.clone()]);
            out.push(']');
        }
        Step::Exec { queue, watched, version, .. } => {
            let _ = write!(out, "[\"exec\",{},[", number_of(*version));
            write_watched(out, watched);
            out.push_str("],[");
            list(out, queue, |out, queued| match queued {
                Queued::Ready(reply) => _ = write!(out, "[\"ready\",{}]", Hex(reply)),
                Queued::Keys { args, database, .. } => {
                    let _ = write!(out, "[\"keys\",{database},{},", number_of(*version));
                    write_args(out, args);
                    out.push(']');
                }
            });
            out.push_str("]]");
        }
    }
}

fn write_watched(out: &mut String, watched: &Watched) {
    list(out, watched, |out, ((database, key), stamp)| write_version(out, *database, key, *stamp));
}

/// Returns the number of a version of the protocol.
fn number_of(version: Version) -> u8 {
    match version {
        Version::Resp2 => 2,
        Version::Resp3 => 3,
    }
}
