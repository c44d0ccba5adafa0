//! The commands of all keys. They are not atomic: they read or delete the keys step by step, each
//! step in a transaction of its own. A key that is there from the first step to the last is seen.

use std::collections::BTreeSet;

use remora::{Error as Failed, Session};
use remora_redis::call::check_reply;
use remora_redis::commands::scan::{self, Options};
use remora_redis::{Command, Error};
use remora_resp::{ReplyWriter, Version, glob};

use crate::execute::{Executor, text_of};
use crate::server::State;
use crate::store::{Found, Store};

/// The number of places of records that a step reads, which is what one round can.
const SLOTS: usize = 128;
/// The largest number of steps that one `SCAN` takes to find as many keys as are wanted.
const SCAN_STEPS: usize = 512;

/// A command of all keys.
#[derive(Debug)]
pub(crate) enum Walk {
    Scan { cursor: u64, count: usize, pattern: Option<Vec<u8>>, kind: Option<Vec<u8>> },
    Keys(Vec<u8>),
    RandomKey,
    DbSize,
    Flush { is_all: bool },
}

/// Returns whether a command walks over all keys.
pub(crate) fn is_walk(name: &str) -> bool {
    matches!(name, "scan" | "keys" | "randomkey" | "dbsize" | "flushdb" | "flushall")
}

impl Walk {
    /// Reads the arguments of a command that walks.
    pub(crate) fn parse(command: &Command, args: &[&[u8]]) -> Result<Walk, Error> {
        match command.name {
            "scan" => Walk::parse_scan(args),
            "keys" => Ok(Walk::Keys(args[1].to_vec())),
            "randomkey" => Ok(Walk::RandomKey),
            "dbsize" => Ok(Walk::DbSize),
            name => {
                let is_option =
                    |word: &&[u8]| word.eq_ignore_ascii_case(b"sync") || word.eq_ignore_ascii_case(b"async");
                if args.len() > 2 || !args[1..].iter().all(is_option) {
                    return Err(Error::SYNTAX);
                }
                Ok(Walk::Flush { is_all: name == "flushall" })
            }
        }
    }

    fn parse_scan(args: &[&[u8]]) -> Result<Walk, Error> {
        let cursor = scan::cursor(args[1])?;
        let (mut kind, mut others) = (None, Vec::new());
        for option in args[2..].chunks(2) {
            match option {
                [name, value] if name.eq_ignore_ascii_case(b"type") => kind = Some(value.to_ascii_lowercase()),
                option => others.extend_from_slice(option),
            }
        }
        let options = Options::parse(&others)?;
        let pattern = options.pattern.map(<[u8]>::to_vec);
        Ok(Walk::Scan { cursor, count: usize::try_from(options.count).unwrap_or(usize::MAX), pattern, kind })
    }

    /// Runs the command, and writes its reply.
    pub(crate) async fn run(
        self,
        store: &Store,
        session: &mut Session,
        executor: &mut Executor<'_>,
        state: &State,
        output: &mut Vec<u8>,
    ) {
        let start = output.len();
        let mut steps = Steps { store, session, database: Some(state.database), now: executor.clock.now() };
        let done = match self {
            Walk::Scan { cursor, count, pattern, kind } => {
                let mut reply = ReplyWriter::new(output, state.version);
                steps
                    .scan(cursor, count, &mut reply, |found| {
                        pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, &found.key))
                            && kind.as_ref().is_none_or(|kind| found.kind.as_bytes() == kind)
                    })
                    .await
            }
            Walk::Keys(pattern) => steps.keys(&pattern, state.version, output).await,
            Walk::RandomKey => steps.random_key(executor.random(), state.version, output).await,
            Walk::DbSize => steps.count(state.version, output).await,
            Walk::Flush { is_all } => {
                steps.database = steps.database.filter(|_| !is_all);
                steps.flush(state.version, output).await
            }
        };
        if let Err(error) = done {
            output.truncate(start);
            ReplyWriter::new(output, state.version).error(text_of(&error));
        }
    }
}

/// The steps of a walk over one database, or over all.
struct Steps<'w> {
    store: &'w Store,
    session: &'w mut Session,
    database: Option<u8>,
    now: u64,
}

impl Steps<'_> {
    /// Returns the keys of the next step that have not expired, and the next cursor.
    async fn step(&mut self, cursor: u64, slots: usize) -> Result<(Vec<Found>, u64), Failed> {
        let (mut found, cursor) = self.store.walk(self.session, cursor, slots).await?;
        found.retain(|found| {
            self.database.is_none_or(|database| found.database == database)
                && found.expiry.is_none_or(|expiry| expiry > self.now)
        });
        Ok((found, cursor))
    }

    async fn scan(
        &mut self,
        mut cursor: u64,
        count: usize,
        reply: &mut ReplyWriter<'_>,
        takes: impl Fn(&Found) -> bool,
    ) -> Result<(), Failed> {
        let (mut keys, mut steps) = (Vec::new(), 0);
        loop {
            let (found, next) = self.step(cursor, SLOTS).await?;
            keys.extend(found.into_iter().filter(&takes).map(|found| found.key));
            (cursor, steps) = (next, steps + 1);
            if cursor == 0 || keys.len() >= count || steps == SCAN_STEPS {
                break;
            }
        }
        reply.array(2);
        reply.bulk(cursor.to_string());
        reply.array(keys.len());
        keys.iter().for_each(|key| reply.bulk(key));
        Ok(())
    }

    /// Calls `visit` with all keys.
    async fn all(&mut self, mut visit: impl FnMut(Found) -> Result<(), Failed>) -> Result<(), Failed> {
        let mut cursor = 0;
        loop {
            let (found, next) = self.step(cursor, SLOTS).await?;
            found.into_iter().try_for_each(&mut visit)?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    async fn keys(&mut self, pattern: &[u8], version: Version, output: &mut Vec<u8>) -> Result<(), Failed> {
        // A key that moves to a larger table meanwhile may be read twice.
        let (mut keys, mut bytes) = (BTreeSet::new(), 0);
        self.all(|found| {
            if glob::matches(pattern, &found.key) {
                bytes += found.key.len();
                keys.insert(found.key);
            }
            check_reply(bytes).map_err(Failed::user)
        })
        .await?;
        let mut reply = ReplyWriter::new(output, version);
        reply.array(keys.len());
        keys.iter().for_each(|key| reply.bulk(key));
        Ok(())
    }

    async fn count(&mut self, version: Version, output: &mut Vec<u8>) -> Result<(), Failed> {
        let mut count = 0;
        self.all(|_| {
            count += 1;
            Ok(())
        })
        .await?;
        ReplyWriter::new(output, version).integer(count);
        Ok(())
    }

    /// Draws a place, and answers a key that lies behind it.
    async fn random_key(&mut self, random: u64, version: Version, output: &mut Vec<u8>) -> Result<(), Failed> {
        let start = self.store.cursor_at(self.session, random)?;
        let mut reply = ReplyWriter::new(output, version);
        // From there to the end, and then from the beginning.
        for begin in [start, 0] {
            let mut cursor = begin;
            loop {
                let (found, next) = self.step(cursor, SLOTS).await?;
                if !found.is_empty() {
                    let place = (random >> 32) as usize % found.len();
                    reply.bulk(&found[place].key);
                    return Ok(());
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        reply.null();
        Ok(())
    }

    async fn flush(&mut self, version: Version, output: &mut Vec<u8>) -> Result<(), Failed> {
        self.now = 0; // keys that have expired, too
        let mut cursor = 0;
        loop {
            let (found, next) = self.step(cursor, SLOTS).await?;
            let names: Vec<_> = found.iter().map(|found| (found.database, found.key.as_slice())).collect();
            self.store.delete(self.session, &names, None).await?;
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        ReplyWriter::new(output, version).simple("OK");
        Ok(())
    }
}
