//! Judges what gateways have answered: replays every command on the versions that its transaction
//! has read.
//!
//! A gateway's recorder writes, for each transaction that may commit, its commands, the versions of
//! keys that it read and wrote, and what it would answer; and for each call, what was answered
//! (`remora_gateway`, module `record`). The history of the same transactions is judged by
//! [`check`](crate::check). This module judges what lies between that history and the clients.
//!
//! # Rules
//!
//! 1. **What was answered has happened once.** Of the attempts of a call that was answered, one has
//!    committed, and at most one that writes. If the answer is an error by which nothing is
//!    applied, none that writes has committed.
//! 2. **The answer is that of the attempt that has committed**, byte by byte.
//! 3. **What a command saw is what its transaction has read.** For each key, the version that the
//!    history says its transaction has read was written by the transaction whose id the key had.
//!    The transaction has written exactly the keys that the commands have changed.
//! 4. **The replies are right.** The commands, run again on the values of these versions, give the
//!    same replies, and change the same keys. An `EXEC` is performed if and only if each key that
//!    it watched has the version that `WATCH` has seen.
//! 5. **What was answered has committed by then.** An answer ends its transaction in the history,
//!    if the history has a later end or none ([`Commands::bound`]). So a transaction that begins
//!    later must see it.
//!
//! So if the history is strictly serializable, all commands and their replies are.
//!
//! # Open questions are decided in favour of the gateway
//!
//! - A transaction of unknown outcome has committed if one that has committed has read what it
//!   wrote, or if its call was answered and none of the call's other attempts has committed.
//! - A key that was written before the recording has a value that is not known. What depends on it
//!   is not replayed, and counts as not judged.

mod lines;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use remora_redis::keyspace::Slot;
use remora_redis::{Context, Keyspace, Limits, Object, find, run};
use remora_resp::{ReplyWriter, Version as Protocol};
use sha2::{Digest, Sha256};

use crate::history::{History, Observed, Status, Transaction};
pub use lines::Commands;
use lines::{Answer, Answered, Attempt, Name, Step, Version};

/// This many violations are described.
const DESCRIBED: usize = 20;

/// What was found out about the commands of a history.
#[derive(Debug, Default)]
pub struct CommandReport {
    /// Calls: commands that ran as one transaction.
    pub calls: u64,
    /// Calls whose commands were run again, with the same replies.
    pub replayed: u64,
    /// Calls that have committed, and depend on values from before the recording.
    pub not_judged: u64,
    /// The first violations of the rules.
    pub violations: Vec<String>,
    /// The number of violations.
    pub violated: u64,
}

impl CommandReport {
    /// Whether no rule is violated.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violated == 0
    }

    fn violation(&mut self, what: impl FnOnce() -> String) {
        self.violated += 1;
        if self.violations.len() < DESCRIBED {
            self.violations.push(what());
        }
    }
}

impl fmt::Display for CommandReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CommandReport { calls, replayed, not_judged, violations, violated } = self;
        violations.iter().try_for_each(|violation| writeln!(f, "commands: {violation}"))?;
        let more = violated - violations.len() as u64;
        if more > 0 {
            writeln!(f, "commands: {more} more violations")?;
        }
        write!(f, "commands: {calls} calls, {replayed} replayed, {not_judged} on values from before the recording")
    }
}

impl Commands {
    /// Ends each transaction that was answered when it was answered, if the history has a later end
    /// or none (rule 5).
    pub(crate) fn bound(&self, history: &mut History) {
        if self.is_empty() {
            return;
        }
        let judge = Judge::new(self, history);
        let ends: HashMap<u64, u64> = judge
            .effective()
            .into_iter()
            .filter_map(|place| {
                let attempt = &self.attempts[place];
                let answer = judge.answers.get(&attempt.call).filter(|answer| answer.outcome == Answered::Done)?;
                Some((attempt.id, answer.end_ns))
            })
            .collect();
        for row in &mut history.transactions {
            if let Some(end_ns) = ends.get(&row.id) {
                row.end_ns = if row.status == Status::Unknown { *end_ns } else { row.end_ns.min(*end_ns) };
                row.status = Status::Committed;
            }
        }
    }
}

/// Judges the commands of a history. Returns the report of what was found.
#[must_use]
pub fn check_commands(history: &History, commands: &Commands) -> CommandReport {
    let judge = Judge::new(commands, history);
    let effective = judge.effective();
    let mut report = CommandReport { calls: judge.calls.len() as u64, ..CommandReport::default() };
    judge.check_answers(&effective, &mut report);
    judge.check_versions(&effective, &mut report);
    judge.replay(&effective, &mut report);
    report
}

struct Judge<'h> {
    commands: &'h Commands,
    transactions: HashMap<u64, Transaction<'h>>,
    /// The places of the attempts, by the ids of their transactions.
    by_id: HashMap<u64, usize>,
    /// The places of the attempts of each call.
    calls: BTreeMap<u64, Vec<usize>>,
    answers: HashMap<u64, &'h Answer>,
    /// Who has written a version of a record.
    writers: HashMap<(&'h str, &'h [u8], u64), u64>,
}

impl<'h> Judge<'h> {
    fn new(commands: &'h Commands, history: &'h History) -> Judge<'h> {
        let mut calls: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (place, attempt) in commands.attempts.iter().enumerate() {
            calls.entry(attempt.call).or_default().push(place);
        }
        let tables: HashSet<&str> = commands.attempts.iter().map(|attempt| attempt.table.as_str()).collect();
        let mut writers = HashMap::new();
        for transaction in history.transactions().filter(|transaction| transaction.status() != Status::Aborted) {
            for write in transaction.writes().filter(|write| tables.contains(write.table)) {
                writers.extend(write.version.map(|version| ((write.table, write.key, version), transaction.id())));
            }
        }
        Judge {
            commands,
            transactions: history.transactions().map(|transaction| (transaction.id(), transaction)).collect(),
            by_id: commands.attempts.iter().enumerate().map(|(place, attempt)| (attempt.id, place)).collect(),
            calls,
            answers: commands.answers.iter().map(|answer| (answer.call, answer)).collect(),
            writers,
        }
    }

    fn status(&self, attempt: &Attempt) -> Status {
        self.transactions.get(&attempt.id).map_or(Status::Unknown, Transaction::status)
    }

    /// Returns the places of the attempts that have committed, in their order.
    fn effective(&self) -> Vec<usize> {
        let attempts = &self.commands.attempts;
        let mut is_effective: Vec<bool> =
            attempts.iter().map(|attempt| self.status(attempt) == Status::Committed).collect();
        for (call, places) in &self.calls {
            let is_done = self.answers.get(call).is_some_and(|answer| answer.outcome == Answered::Done);
            let is_open = |place: &usize| self.status(&attempts[*place]) == Status::Unknown;
            let open = places.iter().copied().rfind(is_open);
            if let Some(open) = open.filter(|_| is_done && !places.iter().any(|place| is_effective[*place])) {
                is_effective[open] = true;
            }
        }
        // What a committed transaction has read is committed.
        let mut new: Vec<usize> = (0..attempts.len()).filter(|place| is_effective[*place]).collect();
        while let Some(place) = new.pop() {
            for stamp in attempts[place].reads.iter().filter_map(|(_, stamp)| *stamp) {
                let Some(&writer) = self.by_id.get(&stamp) else { continue };
                if !is_effective[writer] && self.status(&attempts[writer]) == Status::Unknown {
                    is_effective[writer] = true;
                    new.push(writer);
                }
            }
        }
        (0..attempts.len()).filter(|place| is_effective[*place]).collect()
    }

    /// Checks rules 1 and 2.
    fn check_answers(&self, effective: &[usize], report: &mut CommandReport) {
        let mut of_call: HashMap<u64, Vec<&Attempt>> = HashMap::new();
        for place in effective {
            let attempt = &self.commands.attempts[*place];
            of_call.entry(attempt.call).or_default().push(attempt);
        }
        for (call, places) in &self.calls {
            let committed = of_call.get(call).map_or(&[][..], Vec::as_slice);
            let answer = self.answers.get(call);
            let describe = |what: &str| {
                let ids: Vec<u64> = committed.iter().map(|attempt| attempt.id).collect();
                format!(
                    "call {call} {what} (committed: {ids:?}): {}",
                    describe_steps(&self.commands.attempts[places[0]])
                )
            };
            // To have read twice does no harm.
            let written = committed.iter().filter(|attempt| !attempt.writes.is_empty()).count();
            if written > 1 {
                report.violation(|| describe("was applied more than once"));
            }
            match (answer.map(|answer| answer.outcome), committed) {
                (Some(Answered::Done), []) => report.violation(|| describe("was answered, and was not applied")),
                (Some(Answered::Failed), [_, ..]) => {
                    report.violation(|| describe("was answered as failed, and was applied"))
                }
                (Some(Answered::Done), [.., attempt]) => {
                    let answered = answer.map_or(&[][..], |answer| &answer.reply);
                    if committed.iter().all(|attempt| attempt.reply != answered) {
                        report.violation(|| {
                            let (reply, answered) = (attempt.reply.escape_ascii(), answered.escape_ascii());
                            describe(&format!("was answered {answered}, and what has committed says {reply}"))
                        });
                    }
                }
                _ => {}
            }
        }
    }

    /// Checks rule 3.
    fn check_versions(&self, effective: &[usize], report: &mut CommandReport) {
        for attempt in effective.iter().map(|place| &self.commands.attempts[*place]) {
            let Some(transaction) = self.transactions.get(&attempt.id) else { continue };
            let reads: HashMap<&[u8], Observed> = transaction
                .reads()
                .filter(|read| read.table == attempt.table)
                .map(|read| (read.key, read.observed))
                .collect();
            for (name, stamp) in &attempt.reads {
                let record = record_of(name);
                let seen = match reads.get(&record[..]) {
                    None => Some("nothing".to_owned()),
                    Some(Observed::Present(version)) => {
                        let writer = self.writers.get(&(attempt.table.as_str(), &record[..], *version));
                        // Rows that are moved keep their stamps.
                        let writer = writer.filter(|writer| self.by_id.contains_key(writer));
                        writer.filter(|writer| Some(**writer) != *stamp).map(|writer| format!("what {writer} wrote"))
                    }
                    Some(_) => stamp.map(|_| "an absent key".to_owned()),
                };
                if let Some(seen) = seen {
                    report.violation(|| {
                        let (id, key) = (attempt.id, name.1.escape_ascii());
                        format!("transaction {id} used version {stamp:?} of key {key}, and has read {seen}")
                    });
                }
            }
            let written: HashSet<&[u8]> =
                transaction.writes().filter(|write| write.table == attempt.table).map(|write| write.key).collect();
            // A key that comes and goes within a transaction is not written.
            let is_absent = |name: &Name| attempt.reads.iter().any(|(read, stamp)| read == name && stamp.is_none());
            let claimed: HashSet<_> = attempt
                .writes
                .iter()
                .filter(|(name, is_there)| *is_there || !is_absent(name))
                .map(|(name, _)| record_of(name))
                .collect();
            if written.len() != claimed.len() || !claimed.iter().all(|record| written.contains(&record[..])) {
                report.violation(|| {
                    let (id, steps) = (attempt.id, describe_steps(attempt));
                    format!("transaction {id} has not written the keys that its commands have changed: {steps}")
                });
            }
        }
    }

    /// Checks rule 4.
    fn replay(&self, effective: &[usize], report: &mut CommandReport) {
        let is_effective: HashSet<usize> = effective.iter().copied().collect();
        // What each transaction has left of each key. `None` if that is not known.
        let mut left: HashMap<usize, Option<HashMap<Name, Object>>> = HashMap::new();
        let mut under_way = HashSet::new();
        for first in effective {
            let mut stack = vec![*first];
            while let Some(&place) = stack.last() {
                if left.contains_key(&place) {
                    stack.pop();
                    continue;
                }
                let attempt = &self.commands.attempts[place];
                let writers = || attempt.reads.iter().filter_map(|(_, stamp)| self.by_id.get(&(*stamp)?).copied());
                let missing: Vec<usize> = writers().filter(|writer| !left.contains_key(writer)).collect();
                if let Some(lost) = missing.iter().find(|writer| !is_effective.contains(writer)) {
                    let lost = self.commands.attempts[*lost].id;
                    report.violation(|| {
                        format!("transaction {} has read what {lost} wrote, which has aborted", attempt.id)
                    });
                    left.insert(place, None);
                    continue;
                }
                if !missing.is_empty() && under_way.insert(place) {
                    stack.extend(missing);
                    continue;
                }
                // Transactions that read from each other in a circle are an anomaly of the history.
                let after = self.replay_one(attempt, &left, report);
                report.replayed += u64::from(after.is_some());
                report.not_judged += u64::from(after.is_none());
                left.insert(place, after);
            }
        }
    }

    /// Runs the commands of an attempt again. Returns what they leave, or `None` if a value that
    /// they need is not known.
    fn replay_one(
        &self,
        attempt: &Attempt,
        left: &HashMap<usize, Option<HashMap<Name, Object>>>,
        report: &mut CommandReport,
    ) -> Option<HashMap<Name, Object>> {
        let mut keys = Keyspace::default();
        for (name, stamp) in &attempt.reads {
            let object = match stamp {
                None => None,
                Some(stamp) => {
                    let after = left.get(self.by_id.get(stamp)?)?.as_ref()?;
                    let Some(object) = after.get(name) else {
                        report.violation(|| {
                            let (id, key) = (attempt.id, name.1.escape_ascii());
                            format!("transaction {id} has read key {key} of {stamp}, which has not written it")
                        });
                        return None;
                    };
                    Some(object.clone())
                }
            };
            keys.load(name.0, &name.1, |_, _| object);
        }
        let Attempt { now, random, .. } = *attempt;
        let mut context = Context { now, database: 0, limits: Limits::default(), random };
        keys.expire(now);
        // The versions at which `EXEC` finds the keys.
        let stamps: HashMap<&Name, Option<u64>> = attempt
            .reads
            .iter()
            .map(|(name, stamp)| (name, stamp.filter(|_| keys.get_in(name.0, &name.1).is_some())))
            .collect();
        let mut reply = Vec::new();
        for step in &attempt.steps {
            run_step(step, &stamps, &mut keys, &mut context, &mut reply);
        }
        if reply != attempt.reply {
            report.violation(|| {
                let (id, steps, was) = (attempt.id, describe_steps(attempt), attempt.reply.escape_ascii());
                format!("transaction {id} must answer {}, and answers {was}: {steps}", reply.escape_ascii())
            });
        }
        let mut changed: Vec<(Name, bool)> = Vec::new();
        let mut after = HashMap::new();
        for slot in keys.take() {
            let name = (slot.database, slot.key.to_vec());
            if slot.is_changed {
                changed.push((name.clone(), slot.object.is_some()));
            }
            after.extend(slot.object.filter(|_| slot.is_changed).map(|mut object| {
                object.settle_form(attempt.spread_bytes);
                (name, object)
            }));
        }
        changed.sort();
        let mut writes = attempt.writes.clone();
        writes.sort();
        if changed != writes {
            report.violation(|| {
                let (id, steps) = (attempt.id, describe_steps(attempt));
                format!("transaction {id} must write {changed:?}, and has written {writes:?}: {steps}")
            });
        }
        Some(after)
    }
}

/// Runs a step, and writes its reply.
fn run_step(
    step: &Step,
    stamps: &HashMap<&Name, Option<u64>>,
    keys: &mut Keyspace,
    context: &mut Context,
    reply: &mut Vec<u8>,
) {
    match step {
        Step::Ready(bytes) => reply.extend_from_slice(bytes),
        Step::Keys { database, version, args } => {
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            context.database = *database;
            match find(&args) {
                Ok(command) => _ = run(command, &args, keys, context, protocol(*version), reply),
                Err(error) => ReplyWriter::new(reply, protocol(*version)).error(error.text()),
            }
        }
        Step::Exec { version, watched, queue } => {
            let is_same = |(name, stamp): &Version| {
                let found = stamps.get(name).copied().flatten();
                let slot = keys.slots().iter().find(|slot| slot.database == name.0 && *slot.key == *name.1);
                // A command before it, in the same transaction, may have written the key.
                let is_written = |slot: &Slot| if found.is_some() { slot.is_changed } else { slot.object.is_some() };
                found == *stamp && !slot.is_some_and(is_written)
            };
            let mut writer = ReplyWriter::new(reply, protocol(*version));
            if !watched.iter().all(is_same) {
                writer.null_array();
                return;
            }
            writer.array(queue.len());
            queue.iter().for_each(|queued| run_step(queued, stamps, keys, context, reply));
        }
    }
}

fn protocol(number: u64) -> Protocol {
    if number == 3 { Protocol::Resp3 } else { Protocol::Resp2 }
}

/// Returns the key of the record that has a key of Redis: see `remora_gateway`'s module `store` and
/// `remora::DynTable`.
fn record_of((database, key): &Name) -> [u8; 16] {
    /// Bytes of the longest key that is in the name of its record.
    const NAME_BYTES_MAX: usize = 511;
    let is_long = key.len() > NAME_BYTES_MAX;
    let mut name = vec![database << 1 | u8::from(is_long)];
    if is_long {
        name.extend_from_slice(&Sha256::digest(key));
    } else {
        name.extend_from_slice(key);
    }
    let mut record = [0; 16];
    if name.len() < record.len() {
        record[..name.len()].copy_from_slice(&name);
        record[15] = name.len() as u8;
    } else {
        record.copy_from_slice(&Sha256::digest(&name)[..16]);
        record[15] = u8::MAX;
    }
    record
}

/// Returns the commands of an attempt, as a person reads them.
fn describe_steps(attempt: &Attempt) -> String {
    fn describe(step: &Step) -> Option<String> {
        match step {
            Step::Ready(_) => None,
            Step::Keys { args, .. } => {
                let args: Vec<String> = args.iter().map(|argument| argument.escape_ascii().to_string()).collect();
                Some(args.join(" "))
            }
            Step::Exec { queue, watched, .. } => {
                let queue: Vec<String> = queue.iter().filter_map(describe).collect();
                let watched = watched.iter().map(|((_, key), stamp)| format!("{}@{stamp:?}", key.escape_ascii()));
                Some(format!("EXEC watching [{}] of [{}]", watched.collect::<Vec<_>>().join(", "), queue.join("; ")))
            }
        }
    }
    attempt.steps.iter().filter_map(describe).collect::<Vec<_>>().join("; ")
}
