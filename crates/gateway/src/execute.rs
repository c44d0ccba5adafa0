//! Runs plans: each as one transaction where that is possible, and in parts where it is not.
//!
//! # Why this is strictly serializable
//!
//! 1. All commands of a part were received before its transaction begins, and none is answered
//!    before it commits. So they may stand next to each other in one serial order, in the order in
//!    which the connection has sent them.
//! 2. Parts run one after the other.
//! 3. A key that has expired is deleted by the transaction that finds it so. So a client that was
//!    told that a key is gone will not see it again, whatever the clocks of other gateways say.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::ops::Range;
use std::time::Duration;

use remora::{Abort, Error, Intent, Limit, Session, TransactionId, TransactionOptions, Verdict};
use remora_redis::{Command, Context, Error as Told, Keyspace, Limits, run, table};
use remora_resp::{ReplyWriter, Version};
use rustc_hash::FxBuildHasher;

use crate::clock::Clock;
use crate::once::Token;
use crate::plan::{Plan, Queued, Step, Watched, borrowed};
use crate::record::{Answered, Recorder};
use crate::server::Local;
use crate::server::counters::{Event, unknown_command};
use crate::store::{Name, Row, Store, Uploads, Wanted};

/// How long a transaction is tried while it aborts, and how long an unknown outcome is asked for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a step is tried at least, whatever the steps before it have taken.
const PATIENCE_MIN: Duration = Duration::from_millis(100);

/// After this many runs of commands that have missed pages, spread collections are loaded whole.
const RUNS_MAX: usize = 8;

/// What the commands of a plan run with.
#[derive(Debug)]
pub(crate) struct Executor<'e> {
    pub(crate) store: &'e Store,
    pub(crate) limits: Limits,
    pub(crate) local: &'e Local,
    pub(crate) clock: &'e Clock,
    pub(crate) recorder: Option<&'e Recorder>,
    /// Whether the last `EXEC` has applied its commands: no key that was watched had changed, and
    /// in rollback mode no command has failed.
    pub(crate) was_performed: bool,
}

impl Executor<'_> {
    /// Runs a plan, and writes the replies of all its steps.
    pub(crate) async fn run(&mut self, session: &mut Session, plan: &Plan<'_>, out: &mut Vec<u8>) {
        let begun = session.lane().now();
        let mut parts = VecDeque::new();
        if mutant!(SplitPipeline) {
            parts.extend((0..plan.steps.len()).map(|step| step..step + 1));
        } else {
            parts.push_back(0..plan.steps.len());
        }
        while let Some(part) = parts.pop_front() {
            let start = out.len();
            // Several steps leave time for their halves.
            let left = PATIENCE.saturating_sub(Duration::from_nanos(session.lane().now() - begun))
                / if part.len() > 1 { 2 } else { 1 };
            let options = TransactionOptions::default().patience(left.max(PATIENCE_MIN));
            let Err(error) = self.run_part(session, plan, (part.clone(), options), out).await else { continue };
            out.truncate(start);
            if part.len() > 1 && is_too_much(&error) {
                let middle = part.start + part.len() / 2;
                parts.push_front(middle..part.end);
                parts.push_front(part.start..middle);
                continue;
            }
            let text = text_of(&error);
            self.was_performed = false;
            self.local.counters.error(text.as_bytes());
            for step in &plan.steps[part] {
                match step {
                    Step::Ready(place) => out.extend_from_slice(&plan.replies[place.clone()]),
                    Step::Keys { version, .. } | Step::Exec { version, .. } => {
                        ReplyWriter::new(out, *version).error(&text);
                    }
                }
            }
        }
    }

    /// Runs steps as one transaction.
    async fn run_part(
        &mut self,
        session: &mut Session,
        plan: &Plan<'_>,
        (part, options): (Range<usize>, TransactionOptions),
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let steps = &plan.steps[part];
        let wanted = wanted_of(plan, steps);
        let start = out.len();
        let mut failures = Vec::new();
        let counters = &self.local.counters;
        let is_single = matches!(steps, [Step::Keys { .. }]);
        let mut token = None;
        // All attempts have the same time and draw the same numbers. So an attempt finds the values
        // that the last one wanted to be uploaded, unless a key has changed meanwhile.
        let context = Context { now: self.clock.now(), database: 0, limits: self.limits, random: self.random() };
        let mut uploads = Uploads::at(context.now);
        let mut recording = self.recorder.map(|recorder| recorder.begin(self.store, &context, plan, steps));
        let mut early: Option<Vec<u8>> = None;
        let deadline = session.lane().now() + PATIENCE.as_nanos() as u64;
        let mut result = loop {
            let mut is_saved = true;
            let done = session
                .transact_with(options, async |tx| {
                    out.truncate(start);
                    failures.clear();
                    token = None;
                    let mut unused = None;
                    if let Some(claim) = &plan.claim {
                        match self.store.tokens.find(tx, claim, context.now, out).await? {
                            Token::Unused(slot) => unused = Some((claim, slot)),
                            Token::Used { is_ours } => {
                                uploads.begin();
                                (is_saved, self.was_performed) = (true, is_ours);
                                token = Some(if is_ours { Event::OnceReplayed } else { Event::OnceMismatch });
                                return Ok(());
                            }
                        }
                    }
                    let mut keys = Keyspace::with_capacity(wanted.len());
                    let mut loaded = self.store.load(tx, &wanted, &mut keys, &uploads).await?;
                    let mut runs = 0;
                    let mut rolled_back = loop {
                        let mut running = Running {
                            plan,
                            wanted: &wanted,
                            rows: loaded.rows(),
                            keys: &mut keys,
                            context: context.clone(),
                            was_performed: true,
                            rolled_back: None,
                            failures: &mut failures,
                        };
                        #[cfg(feature = "mutants")]
                        crate::mutant::hide_expired(running.keys, running.context.now);
                        running.keys.expire(running.context.now);
                        steps.iter().for_each(|step| running.step(step, out));
                        self.was_performed = running.was_performed;
                        let rolled_back = running.rolled_back.take();
                        if mutant!(AnswerShort) || !keys.is_short() {
                            break rolled_back;
                        }
                        // The commands need pages that are not loaded. They run again with these.
                        out.truncate(start);
                        failures.clear();
                        runs += 1;
                        if runs == RUNS_MAX {
                            loaded.want_all();
                        }
                        is_saved = self.store.supply(tx, &wanted, &mut loaded, &mut keys, &mut uploads).await?;
                        if !is_saved {
                            return Ok(());
                        }
                    };
                    if mutant!(AnswerBeforeCommit) {
                        early.get_or_insert_with(|| out[start..].to_vec());
                    }
                    // The error makes sure that nothing is written.
                    if let Some(rolled_back) = rolled_back.take() {
                        return Err(Error::user(rolled_back));
                    }
                    if let Some(recording) = &mut recording {
                        recording.read(&wanted, loaded.rows());
                    }
                    is_saved = self.store.save(tx, &keys, loaded, &mut uploads, steps.len() > 1).await?;
                    let has_failed = !self.was_performed || is_single && !failures.is_empty();
                    if let Some((claim, slot)) = unused.filter(|_| is_saved && !has_failed) {
                        self.store.tokens.insert(tx, claim, slot, context.now, &out[start..]).await?;
                        token = Some(Event::OnceFirst);
                    }
                    if let Some(recording) = recording.as_mut().filter(|_| is_saved) {
                        recording.attempt(tx.stamp(), &keys, &out[start..]);
                    }
                    Ok(())
                })
                .await;
            match done {
                Ok(()) if is_saved => break Ok(()),
                Ok(()) if session.lane().now() >= deadline => break Err(Abort::Changed.into()),
                Ok(()) => match self.store.upload(session, &mut uploads).await {
                    Ok(()) => {}
                    Err(error) => break Err(error),
                },
                Err(Error::Unknown(_)) if mutant!(RepeatUnknown) => {}
                Err(Error::Unknown(id)) => match session.resolve(id, PATIENCE).await {
                    Ok(Verdict::Committed) => {
                        counters.happened(Event::UnknownCommitted);
                        break Ok(());
                    }
                    Ok(Verdict::Aborted) => counters.happened(Event::UnknownAborted),
                    _ => {
                        counters.happened(Event::UnknownUndecided);
                        break Err(Error::Unknown(id));
                    }
                },
                Err(error) => break Err(error),
            }
        };
        if let Some(early) = early {
            out.truncate(start);
            out.extend_from_slice(&early);
            result = Ok(());
        }
        if let Some(recording) = recording {
            let answered = match &result {
                // Another call has applied the commands.
                Ok(()) if matches!(token, Some(Event::OnceReplayed | Event::OnceMismatch)) => Answered::Failed,
                Ok(()) => Answered::Done(&out[start..]),
                Err(Error::Unknown(_)) => Answered::Unknown,
                Err(_) => Answered::Failed,
            };
            recording.answer(session.lane().now(), answered);
        }
        for (command, place) in failures {
            let number = table::number_of(command).unwrap_or_else(unknown_command);
            counters.failed(number, out.get(place + 1..).unwrap_or_default());
        }
        match token {
            _ if result.is_err() => {}
            None if !self.was_performed => counters.happened(Event::WatchFailure),
            None => {}
            Some(event) => {
                counters.happened(event);
                if let Some(text) = out[start..].strip_prefix(b"-").filter(|_| event != Event::OnceFirst) {
                    counters.error(text);
                }
            }
        }
        // If the outcome is unknown, the values may be linked.
        if !matches!(result, Err(Error::Unknown(_))) {
            self.store.finish(session, &mut uploads, result.is_ok()).await;
        }
        result
    }

    /// Answers what became of a transaction: `REMORA.RESOLVE`.
    pub(crate) async fn resolve(
        &mut self,
        session: &mut Session,
        id: TransactionId,
        version: Version,
        out: &mut Vec<u8>,
    ) {
        let mut reply = ReplyWriter::new(out, version);
        match session.resolve(id, PATIENCE).await {
            Ok(Verdict::Committed) => reply.simple("COMMITTED"),
            Ok(Verdict::Aborted) => reply.simple("ABORTED"),
            Ok(Verdict::Undecided) => reply.simple("UNDECIDED"),
            Ok(Verdict::Forgotten) => reply.simple("FORGOTTEN"),
            Err(error) => reply.error(text_of(&error)),
        }
    }

    /// Returns a random number.
    pub(crate) fn random(&self) -> u64 {
        let mut context = Context { random: self.local.random.get(), ..Context::default() };
        let random = context.random();
        self.local.random.set(context.random);
        random
    }

    /// Reads the stamps of keys, to watch them.
    pub(crate) async fn watch(&mut self, session: &mut Session, names: &[Name<'_>]) -> Result<Watched, String> {
        let options = TransactionOptions::default().patience(PATIENCE);
        let mut wants = Wants::default();
        names.iter().for_each(|name| wants.add(*name, Intent::Read));
        let wanted = wants.wanted;
        let watched = session
            .transact_with(options, async |tx| {
                let mut keys = Keyspace::default();
                let loaded = self.store.load(tx, &wanted, &mut keys, &Uploads::default()).await?;
                let now = self.clock.now();
                let watched = |((name, _), row): (&Wanted<'_>, &Row)| {
                    let stamp = row.stamp_at(now);
                    #[cfg(feature = "mutants")]
                    crate::mutant::watch_value(&keys, *name, stamp);
                    ((name.0, name.1.to_vec()), stamp)
                };
                Ok(wanted.iter().zip(loaded.rows()).map(watched).collect())
            })
            .await;
        watched.map_err(|error| text_of(&error))
    }
}

/// The steps of a part, while they run.
struct Running<'r> {
    plan: &'r Plan<'r>,
    wanted: &'r [Wanted<'r>],
    rows: &'r [Row],
    keys: &'r mut Keyspace,
    context: Context,
    was_performed: bool,
    /// Why an `EXEC` in rollback mode applies nothing.
    rolled_back: Option<Told>,
    /// The commands that have failed, and where their replies begin.
    failures: &'r mut Vec<(&'static Command, usize)>,
}

impl Running<'_> {
    fn step(&mut self, step: &Step, out: &mut Vec<u8>) {
        match step {
            Step::Ready(place) => out.extend_from_slice(&self.plan.replies[place.clone()]),
            Step::Keys { command, args, database, version } => {
                self.command(command, &self.plan.args[args.clone()], *database, *version, out);
            }
            Step::Exec { watched, version, .. } if !self.are_unchanged(watched) => {
                self.was_performed = false;
                ReplyWriter::new(out, *version).null_array();
            }
            Step::Exec { queue, version, rolls_back, .. } => {
                self.was_performed = true;
                ReplyWriter::new(out, *version).array(queue.len());
                for (place, queued) in queue.iter().enumerate() {
                    let start = out.len();
                    match queued {
                        Queued::Ready(reply) => out.extend_from_slice(reply),
                        Queued::Keys { command, args, database } => {
                            self.command(command, &borrowed(args), *database, *version, out);
                        }
                    }
                    if let [b'-', text @ ..] = &out[start..]
                        && *rolls_back
                    {
                        let head = format!("EXECABORT Transaction rolled back: command {}: ", place + 1);
                        self.rolled_back = Some(Told::of([head.as_bytes(), text.trim_ascii_end()].concat()));
                        self.was_performed = false;
                        return;
                    }
                }
            }
        }
    }

    fn command(
        &mut self,
        command: &'static Command,
        args: &[&[u8]],
        database: u8,
        version: Version,
        out: &mut Vec<u8>,
    ) {
        self.context.database = database;
        let start = out.len();
        if !run(command, args, self.keys, &mut self.context, version, out) {
            self.failures.push((command, start));
        }
    }

    /// Whether each key has the version that `WATCH` has seen, and no step before has written it.
    fn are_unchanged(&self, watched: &Watched) -> bool {
        watched.iter().all(|((database, key), stamp)| {
            let name = (*database, key.as_slice());
            #[cfg(feature = "mutants")]
            if mutant!(WatchByValue) {
                return crate::mutant::has_value(self.keys, name, *stamp);
            }
            let Some(place) = self.wanted.iter().position(|(wanted, _)| *wanted == name) else { return false };
            let (found, slot) = (self.rows[place].stamp_at(self.context.now), &self.keys.slots()[place]);
            let is_written = if found.is_some() { slot.is_changed } else { slot.object.is_some() };
            found == *stamp && !is_written
        })
    }
}

/// Returns the keys of steps, each once, in the order in which they come, and what each is wanted
/// for.
fn wanted_of<'p>(plan: &'p Plan<'_>, steps: &'p [Step]) -> Vec<Wanted<'p>> {
    let mut wants = Wants::with_capacity(steps.len());
    for step in steps {
        let mut add = |command: &Command, args: &[&'p [u8]], database| {
            for name in command.keys_of(args, database) {
                wants.add(name, intent_of(command));
            }
        };
        match step {
            Step::Ready(_) => {}
            Step::Keys { command, args, database, .. } => add(command, &plan.args[args.clone()], *database),
            Step::Exec { queue, watched, .. } => {
                for queued in queue {
                    if let Queued::Keys { command, args, database } = queued {
                        add(command, &borrowed(args), *database);
                    }
                }
                for (database, key) in watched.keys() {
                    wants.add((*database, key), Intent::Read);
                }
            }
        }
    }
    wants.wanted
}

/// Returns what a command may do with its keys.
fn intent_of(command: &Command) -> Intent {
    match (command.has("write"), command.has("denyoom")) {
        (false, _) => Intent::Read,
        (true, false) => Intent::Update,
        (true, true) => Intent::Insert,
    }
}

/// Keys that are wanted, each once.
#[derive(Default)]
struct Wants<'p> {
    wanted: Vec<Wanted<'p>>,
    /// The hashes of the keys.
    hashes: Vec<u64>,
    /// The places of the keys, if there are many.
    places: HashMap<Name<'p>, usize>,
}

/// This many keys are searched one after the other, by their hashes.
const FEW: usize = 64;

impl<'p> Wants<'p> {
    fn with_capacity(keys: usize) -> Wants<'p> {
        Wants { wanted: Vec::with_capacity(keys), hashes: Vec::with_capacity(keys), ..Wants::default() }
    }

    /// Adds a key, if it is not there, or notes what else it is wanted for.
    fn add(&mut self, name: Name<'p>, intent: Intent) {
        let hash = FxBuildHasher.hash_one(name);
        match self.find(name, hash) {
            Some(place) => {
                let known = &mut self.wanted[place].1;
                if intent != Intent::Read && *known != Intent::Insert {
                    *known = intent;
                }
            }
            None => {
                self.wanted.push((name, intent));
                self.hashes.push(hash);
                if self.wanted.len() == FEW {
                    self.places.extend(self.wanted.iter().enumerate().map(|(place, (name, _))| (*name, place)));
                } else if self.wanted.len() > FEW {
                    self.places.insert(name, self.wanted.len() - 1);
                }
            }
        }
    }

    fn find(&self, name: Name<'_>, hash: u64) -> Option<usize> {
        if self.wanted.len() >= FEW {
            return self.places.get(&name).copied();
        }
        (0..self.hashes.len()).find(|place| self.hashes[*place] == hash && self.wanted[*place].0 == name)
    }
}

/// Whether fewer commands may succeed where several have failed like this.
fn is_too_much(error: &Error) -> bool {
    matches!(error, Error::Limit(_) | Error::Aborted(_))
}

/// Returns the answer for a transaction that has failed.
pub(crate) fn text_of(error: &Error) -> String {
    if let Some(told) = error.downcast_user::<Told>() {
        return told.to_string();
    }
    match error {
        Error::Limit(reason) => match &reason.cause {
            Limit::Set => "ERR transaction would touch more records than fit one: send it in parts".to_owned(),
            Limit::LogEntry { bytes, max } => {
                format!("ERR transaction would write {bytes} bytes (limit {max}): send it in parts")
            }
            Limit::TableFull { .. } | Limit::NodesFull { .. } => {
                "OOM command not allowed when used memory > 'maxmemory'.".to_owned()
            }
            cause => format!("ERR {cause}"),
        },
        Error::Aborted(reason) => format!("TRYAGAIN gave up after {} ms: {}", PATIENCE.as_millis(), reason.cause),
        Error::Unknown(id) => unknown(*id),
        Error::Unavailable(_) | Error::Fenced => format!("TRYAGAIN {error}"),
        error => format!("ERR {error}"),
    }
}

fn unknown(id: TransactionId) -> String {
    let id = id.to_bits();
    format!("UNKNOWN transaction {id} may have been applied: ask REMORA.RESOLVE {id}")
}
