//! The lines of a gateway's recorder, read.

use remora_redis::tree::SPREAD_BYTES;

use crate::history::LineError;
use crate::history::json::Scanner;

/// A key, with its database.
pub(super) type Name = (u8, Vec<u8>);
/// A key with the id of the transaction that has written it. `None` if the key was absent.
pub(super) type Version = (Name, Option<u64>);

/// The attempts and answers of all gateways.
#[derive(Debug, Default)]
pub struct Commands {
    pub(super) attempts: Vec<Attempt>,
    pub(super) answers: Vec<Answer>,
}

/// Commands that ran as one transaction, which may have committed.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    /// The id of the transaction.
    pub(super) id: u64,
    /// The id of the first attempt of the same commands.
    pub(super) call: u64,
    /// The table that has the keys.
    pub(super) table: String,
    /// The time that the commands had, in milliseconds since 1970.
    pub(super) now: u64,
    /// The state of their random numbers.
    pub(super) random: u64,
    /// Packed collections of more bytes are spread.
    pub(super) spread_bytes: usize,
    pub(super) steps: Vec<Step>,
    pub(super) reads: Vec<Version>,
    /// The keys that it wrote, and whether each is there afterwards.
    pub(super) writes: Vec<(Name, bool)>,
    pub(super) reply: Vec<u8>,
}

#[derive(Debug)]
pub(super) enum Step {
    /// A reply that did not depend on keys.
    Ready(Vec<u8>),
    /// A command of keys.
    Keys { database: u8, version: u64, args: Vec<Vec<u8>> },
    /// An `EXEC`.
    Exec { version: u64, watched: Vec<Version>, queue: Vec<Step> },
}

/// What was answered to a call.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) call: u64,
    /// When it was answered, in nanoseconds.
    pub(super) end_ns: u64,
    pub(super) outcome: Answered,
    pub(super) reply: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Answered {
    Done,
    Failed,
    #[default]
    Unknown,
}

impl Commands {
    /// Whether there is no command.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Reads a line, of which the name of its first field has been read.
    pub(crate) fn parse(&mut self, scanner: &mut Scanner<'_>) -> Result<(), LineError> {
        let column = scanner.next_column();
        match scanner.string("a kind of line")? {
            "attempt" => {
                let attempt = parse_attempt(scanner)?;
                self.attempts.push(attempt);
            }
            "answer" => {
                let answer = parse_answer(scanner)?;
                self.answers.push(answer);
            }
            _ => return Err(LineError::Unexpected { column, expected: "\"attempt\" or \"answer\"" }),
        }
        Ok(())
    }
}

fn parse_attempt(scanner: &mut Scanner<'_>) -> Result<Attempt, LineError> {
    let mut attempt = Attempt { spread_bytes: SPREAD_BYTES, ..Attempt::default() };
    let mut first = false;
    let mut seen = 0;
    while let Some(name) = scanner.next_member(&mut first)? {
        let bit = match name {
            "id" => {
                attempt.id = scanner.unsigned("a transaction id")?;
                1
            }
            "call" => {
                attempt.call = scanner.unsigned("a transaction id")?;
                2
            }
            "table" => {
                attempt.table = scanner.string("a table")?.to_owned();
                4
            }
            "now" => {
                attempt.now = scanner.unsigned("a time")?;
                8
            }
            "random" => {
                attempt.random = scanner.unsigned("a number")?;
                16
            }
            "spread" => {
                attempt.spread_bytes = usize::try_from(scanner.unsigned("a number of bytes")?).unwrap_or(usize::MAX);
                0
            }
            "steps" => {
                attempt.steps = parse_list(scanner, parse_step)?;
                32
            }
            "reads" => {
                attempt.reads = parse_list(scanner, parse_version)?;
                64
            }
            "writes" => {
                attempt.writes = parse_list(scanner, parse_write)?;
                128
            }
            "reply" => {
                attempt.reply = parse_hex(scanner)?;
                256
            }
            _ => {
                scanner.skip_value()?;
                0
            }
        };
        seen |= bit;
    }
    scanner.finish()?;
    const FIELDS: [&str; 9] = ["id", "call", "table", "now", "random", "steps", "reads", "writes", "reply"];
    match FIELDS.iter().enumerate().find(|(bit, _)| seen & 1 << bit == 0) {
        Some((_, field)) => Err(LineError::MissingField(field)),
        None => Ok(attempt),
    }
}

fn parse_answer(scanner: &mut Scanner<'_>) -> Result<Answer, LineError> {
    let mut answer = Answer::default();
    let (mut has_call, mut has_end, mut outcome) = (false, false, None);
    let mut first = false;
    while let Some(name) = scanner.next_member(&mut first)? {
        match name {
            "call" => (answer.call, has_call) = (scanner.unsigned("a transaction id")?, true),
            "end_ns" => (answer.end_ns, has_end) = (scanner.unsigned("a time")?, true),
            "reply" => answer.reply = parse_hex(scanner)?,
            "outcome" => {
                let column = scanner.next_column();
                outcome = Some(match scanner.string("an outcome")? {
                    "done" => Answered::Done,
                    "failed" => Answered::Failed,
                    "unknown" => Answered::Unknown,
                    _ => {
                        return Err(LineError::Unexpected { column, expected: "\"done\", \"failed\" or \"unknown\"" });
                    }
                });
            }
            _ => scanner.skip_value()?,
        }
    }
    scanner.finish()?;
    match (has_call, has_end, outcome) {
        (true, true, Some(outcome)) => Ok(Answer { outcome, ..answer }),
        (false, ..) => Err(LineError::MissingField("call")),
        (_, false, _) => Err(LineError::MissingField("end_ns")),
        (_, _, None) => Err(LineError::MissingField("outcome")),
    }
}

fn parse_list<T>(
    scanner: &mut Scanner<'_>,
    parse: fn(&mut Scanner<'_>) -> Result<T, LineError>,
) -> Result<Vec<T>, LineError> {
    scanner.open_array()?;
    let (mut first, mut all) = (true, Vec::new());
    while scanner.next_element(&mut first)? {
        all.push(parse(scanner)?);
    }
    Ok(all)
}

fn parse_hex(scanner: &mut Scanner<'_>) -> Result<Vec<u8>, LineError> {
    let column = scanner.next_column();
    let text = scanner.string("hexadecimal digits")?.as_bytes();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8);
    let bytes: Option<Vec<u8>> = text.chunks(2).map(byte).collect();
    bytes.ok_or(LineError::Unexpected { column, expected: "pairs of hexadecimal digits" })
}

fn parse_database(scanner: &mut Scanner<'_>) -> Result<u8, LineError> {
    let column = scanner.next_column();
    let number = scanner.unsigned("the number of a database")?;
    u8::try_from(number).map_err(|_| LineError::Unexpected { column, expected: "the number of a database" })
}

fn parse_name(scanner: &mut Scanner<'_>) -> Result<Name, LineError> {
    scanner.open_array()?;
    let database = parse_database(scanner)?;
    scanner.comma()?;
    let key = parse_hex(scanner)?;
    scanner.comma()?;
    Ok((database, key))
}

fn parse_version(scanner: &mut Scanner<'_>) -> Result<Version, LineError> {
    let name = parse_name(scanner)?;
    let stamp = scanner.unsigned_or_null("a transaction id or null")?;
    scanner.close_array()?;
    Ok((name, stamp))
}

fn parse_write(scanner: &mut Scanner<'_>) -> Result<(Name, bool), LineError> {
    let name = parse_name(scanner)?;
    let column = scanner.next_column();
    let is_there = match scanner.string("a kind of write")? {
        "set" => true,
        "delete" => false,
        _ => return Err(LineError::Unexpected { column, expected: "\"set\" or \"delete\"" }),
    };
    scanner.close_array()?;
    Ok((name, is_there))
}

fn parse_step(scanner: &mut Scanner<'_>) -> Result<Step, LineError> {
    scanner.open_array()?;
    let column = scanner.next_column();
    let kind = scanner.string("a kind of step")?.to_owned();
    scanner.comma()?;
    let step = match kind.as_str() {
        "ready" => Step::Ready(parse_hex(scanner)?),
        "keys" => {
            let database = parse_database(scanner)?;
            scanner.comma()?;
            let version = scanner.unsigned("a version of the protocol")?;
            scanner.comma()?;
            Step::Keys { database, version, args: parse_list(scanner, parse_hex)? }
        }
        "exec" => {
            let version = scanner.unsigned("a version of the protocol")?;
            scanner.comma()?;
            let watched = parse_list(scanner, parse_version)?;
            scanner.comma()?;
            Step::Exec { version, watched, queue: parse_list(scanner, parse_step)? }
        }
        _ => return Err(LineError::Unexpected { column, expected: "\"ready\", \"keys\" or \"exec\"" }),
    };
    scanner.close_array()?;
    Ok(step)
}
