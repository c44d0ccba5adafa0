//! A workload of Redis' clients: each has a gateway of its own, and all use the same few keys.
//!
//! A coroutine of a client is a RESP client together with its gateway: it writes commands, and a
//! [`Connection`] serves them. Gateways have clocks that differ by milliseconds and jump, so a key
//! that has expired for one is still there for another. When the fault `cancel` drops a batch, or a
//! machine dies, no client hears the answer: the commands may have been applied or not.
//!
//! The gateways record what they do, as `remora gateway --record` does, and the end of a run judges
//! that. What this module checks needs no versions; it looks at the bytes of answers alone:
//!
//! 1. **No increment is lost or applied twice.** The answers to `INCR` and `HINCRBY` of a key are
//!    all different. At the end the key has the number of acknowledged increments, or at most as
//!    many more as there are increments whose outcome no client was told. An increment that begins
//!    after another one's answer has a larger answer.
//! 2. **An element of a list is popped at most once, and is not lost.** Every element is pushed
//!    once. If its push was acknowledged, it was popped, or it is in the list at the end, or a pop
//!    has taken it whose outcome no client was told.
//! 3. **A pipeline that fits is one transaction.** Two keys that are only written together are
//!    equal in every pipeline that reads both.
//! 4. **A key that is gone stays gone**, whatever the clocks of other gateways say, until it is set
//!    again.
//! 5. **No page stays without a key.** At the end all keys are deleted, and what gateways have left
//!    that died on the way is collected. This is checked under protocols that write in place: no
//!    memory node applies logs any more by then.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora::floors::node::IndexKind;
use remora::{Cluster, Error, OpenError, Session};
use remora_check::HistoryFile;
use remora_fabric::Nanos;
use remora_gateway::net::Next;
use remora_gateway::{Clock, Connection, Local, Recorder, Server, ServerOptions, Store, StoreOptions};
use remora_workload::{Invariant, Prng};

/// What the clocks of gateways show when a run begins, in milliseconds since 1970.
const BEGUN_MS: u64 = 1_000_000;
/// The largest difference of a gateway's clock from the true time, in milliseconds.
const SKEW_MS: u64 = 4;
/// A pipeline that aborts for longer may be split.
const WHOLE_NS: Nanos = 2_000_000_000;
/// The name of the tables.
const TABLES: &str = "redis";

/// The keys of a run, and what the clients were answered.
pub(super) struct Gateways {
    store: Store,
    file: Arc<HistoryFile>,
    /// Whether all keys and pages are deleted at the end.
    collects: bool,
    keys: u64,
    next: Cell<u64>,
    log: RefCell<Log>,
}

/// A RESP client with its gateway.
pub(super) struct Client {
    server: Server,
    local: Local,
    connection: Connection,
    clock: Arc<AtomicU64>,
    skew_ms: u64,
}

/// What a command does, as far as it is checked.
#[derive(Clone)]
enum Effect {
    None,
    /// Adds one to a counter.
    Increment(String),
    /// Pushes an element.
    Push(String),
    /// Pops an element of a list.
    Pop,
    /// Reads one of two keys that are equal.
    Pair,
    /// Sets a key that expires to a value.
    Set(String, String),
    /// Reads a key that expires.
    Get(String),
}

/// Commands that are sent together, each with its effect.
#[derive(Default)]
struct Batch {
    commands: Vec<(Vec<String>, Effect)>,
    /// Whether they stand between `MULTI` and `EXEC`.
    is_multi: bool,
    /// A key that is watched, and is set before `MULTI`: `EXEC` must apply nothing.
    spoiled: Option<String>,
}

/// What the clients were answered.
#[derive(Default)]
struct Log {
    counters: BTreeMap<String, Counter>,
    /// Elements that were pushed, and whether that was acknowledged.
    pushed: BTreeMap<String, bool>,
    popped: BTreeMap<String, u64>,
    /// Pops whose outcome no client was told.
    open_pops: i64,
    /// When a value of a key that expires was acknowledged.
    set: BTreeMap<(String, String), Nanos>,
    /// The first answer that such a key is gone, from when the value was acknowledged on.
    gone: BTreeMap<String, Vec<(Nanos, Nanos)>>,
    /// Counters and lists at the end.
    last_counters: BTreeMap<String, i64>,
    last_elements: Vec<String>,
    /// Whether these were read.
    is_read: bool,
    /// Pages that stay when there are no keys, and their tombstones.
    last_pages: u64,
    wrong: Option<String>,
}

#[derive(Default)]
struct Counter {
    /// Answers, with the times at which each increment began and was answered.
    answers: Vec<(i64, Nanos, Nanos)>,
    /// Increments whose outcome no client was told.
    open: i64,
}

/// An answer of the protocol.
#[derive(Clone, PartialEq, Debug)]
enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Option<String>),
    Array(Option<Vec<Reply>>),
}

impl Gateways {
    pub(super) fn load(cluster: &Cluster, keys: u64, file: Arc<HistoryFile>) -> Result<Gateways, OpenError> {
        // Few elements are enough to spread a collection over pages, and few pages to make a tree.
        // The tables are small, so that they grow, also while a node is lost.
        let first = StoreOptions { keys: 16, pages: 32, tokens: 16, ..StoreOptions::default() };
        let options = StoreOptions { spread_bytes: 64, page_bytes: 72, ..first };
        let store = Store::open_or_create(cluster, TABLES, options)?;
        let collects = cluster.protocol().index() == IndexKind::FStore;
        Ok(Gateways { store, file, collects, keys: (keys / 8).max(1), next: Cell::new(0), log: RefCell::default() })
    }

    /// Whether an answer was wrong, so that nothing that comes later matters.
    pub(super) fn wrong(&self) -> Option<String> {
        self.log.borrow().wrong.clone()
    }

    fn client(&self, random: &mut Prng) -> Client {
        let clock = Arc::new(AtomicU64::new(0));
        let file = self.file.clone();
        let recorder = Recorder::new(move |lines| file.note(lines));
        let options =
            ServerOptions { clock: Clock::Set(clock.clone()), recorder: Some(recorder), ..ServerOptions::default() };
        let server = Server::new(self.store.clone(), options).expect("there is no password that could be wrong");
        let number = self.number();
        let (local, connection) = (Local::new(&server, random.next_u64()), Connection::new(number, &server));
        Client { server, local, connection, clock, skew_ms: random.below(2 * SKEW_MS) }
    }

    fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    fn key(&self, kind: &str, random: &mut Prng) -> String {
        format!("{kind}{}", random.below(self.keys))
    }

    /// Sends commands, and hears the answers.
    pub(super) async fn transact(
        &self,
        session: &mut Session,
        random: &mut Prng,
        client: &mut Option<Box<Client>>,
    ) -> Result<(), Error> {
        // A batch that is dropped takes its connection with it.
        let mut own = client.take().unwrap_or_else(|| Box::new(self.client(random)));
        if random.below(50) == 0 {
            own.skew_ms = random.below(2 * SKEW_MS);
        }
        let done = match random.below(100) {
            0..10 => self.watch(session, random, &mut own).await,
            _ => {
                let batch = self.batch(random);
                self.send(session, &mut own, &batch).await.map(drop)
            }
        };
        *client = Some(own);
        done
    }

    /// Draws commands that are sent together.
    fn batch(&self, random: &mut Prng) -> Batch {
        let mut batch = Batch::default();
        match random.below(10) {
            0..2 => {
                let value = self.value();
                batch.is_multi = true;
                batch.add(["SET", "pair{a}", &value], Effect::None);
                batch.add(["SET", "pair{b}", &value], Effect::None);
            }
            2..4 => {
                batch.add(["GET", "pair{a}"], Effect::Pair);
                batch.add(["GET", "pair{b}"], Effect::Pair);
            }
            _ => {
                batch.is_multi = random.below(3) == 0;
                for _ in 0..=random.below(4) {
                    self.add_command(&mut batch, random);
                }
            }
        }
        batch
    }

    fn value(&self) -> String {
        format!("v{}", self.number())
    }

    fn add_command(&self, batch: &mut Batch, random: &mut Prng) {
        match random.below(100) {
            0..20 => {
                let key = self.key("counter", random);
                batch.add(["INCR", &key], Effect::Increment(key.clone()));
            }
            20..28 => {
                let key = self.key("hash", random);
                batch.add(["HINCRBY", &key, "count", "1"], Effect::Increment(key.clone()));
            }
            28..36 => {
                let (key, field, value) = (self.key("hash", random), self.key("field", random), self.value());
                batch.add(["HSET", &key, &field, &value], Effect::None);
            }
            36..40 => batch.add(["HGETALL", &self.key("hash", random)], Effect::None),
            40..52 => {
                let (key, element) = (self.key("list", random), self.value());
                let push = ["LPUSH", "RPUSH"][random.below(2) as usize];
                batch.add([push, &key, &element], Effect::Push(element.clone()));
            }
            52..64 => {
                let pop = ["LPOP", "RPOP"][random.below(2) as usize];
                batch.add([pop, &self.key("list", random)], Effect::Pop);
            }
            64..72 => {
                let (key, value, time) = (self.key("expires", random), self.value(), 1 + random.below(2 * SKEW_MS));
                batch.add(["SET", &key, &value, "PX", &time.to_string()], Effect::Set(key.clone(), value.clone()));
            }
            72..82 => {
                let key = self.key("expires", random);
                batch.add(["GET", &key], Effect::Get(key.clone()));
            }
            82..84 => batch.add(["SET", &self.key("string", random), &self.value()], Effect::None),
            84..86 => batch.add(["APPEND", &self.key("string", random), "+"], Effect::None),
            86..87 => batch.add(["GETDEL", &self.key("string", random)], Effect::None),
            87..92 => self.add_spread(batch, random),
            92..96 => batch.add(["SET", &self.key("watched", random), "same"], Effect::None),
            _ => batch.add(["GET", &self.key("string", random)], Effect::None),
        }
    }

    /// Adds a command of a set or a sorted set that may be spread over pages: one that makes it so,
    /// that uses a few of its elements or all, or that deletes it.
    fn add_spread(&self, batch: &mut Batch, random: &mut Prng) {
        let (set, board) = (self.key("set", random), self.key("board", random));
        let (member, score) = (format!("member{}", random.below(200)), random.below(50).to_string());
        let command = match random.below(12) {
            0 => {
                // Too much for one transaction: it is built before.
                let first = random.below(50);
                let members = (first..first + 150).map(|member| format!("member{member}"));
                let command = ["SADD".to_owned(), set].into_iter().chain(members).collect();
                batch.commands.push((command, Effect::None));
                return;
            }
            1 => vec!["SADD", &set, &member],
            2 => vec!["SREM", &set, &member],
            3 => vec!["SISMEMBER", &set, &member],
            4 => vec!["SPOP", &set],
            5 => vec!["ZADD", &board, &score, &member],
            6 => vec!["ZINCRBY", &board, "1", &member],
            7 => vec!["ZRANGE", &board, "0", "-1", "WITHSCORES"],
            8 => vec!["ZPOPMIN", &board],
            9 => vec!["ZUNIONSTORE", &board, "2", &board, &set],
            10 => vec!["SCARD", &set],
            _ => vec!["DEL", &set],
        };
        batch.commands.push((command.into_iter().map(str::to_owned).collect(), Effect::None));
    }

    /// Watches a key, and then writes it with a counter, unless it has changed meanwhile.
    async fn watch(&self, session: &mut Session, random: &mut Prng, client: &mut Client) -> Result<(), Error> {
        let (key, counter) = (self.key("watched", random), self.key("counter", random));
        let mut batch = Batch::default();
        batch.add(["WATCH", &key], Effect::None);
        batch.add(["GET", &key], Effect::None);
        self.send(session, client, &batch).await?;
        let spoiled = (random.below(4) == 0).then(|| key.clone());
        let mut batch = Batch { is_multi: true, spoiled, ..Batch::default() };
        batch.add(["INCR", &counter], Effect::Increment(counter.clone()));
        batch.add(["SET", &key, "same"], Effect::None);
        self.send(session, client, &batch).await.map(drop)
    }

    /// Sends commands to the client's gateway. Returns the answers.
    async fn send(&self, session: &mut Session, client: &mut Client, batch: &Batch) -> Result<Vec<Reply>, Error> {
        let start = session.lane().now();
        client.clock.store(BEGUN_MS + start / 1_000_000 + client.skew_ms, Ordering::Relaxed);
        self.log.borrow_mut().begin(batch);
        let (mut wire, mut output) = (batch.wire(), Vec::new());
        let mut input = &mut wire[..];
        let Client { server, local, connection, .. } = client;
        let next = connection.serve(server, session, local, &mut input, &mut output).await;
        let replies = parse(&output);
        let end = session.lane().now();
        let mut log = self.log.borrow_mut();
        let Some(replies) = replies.filter(|_| next == Next::More) else {
            log.wrong = Some(format!("a gateway answered {}", output.escape_ascii()));
            return Ok(Vec::new());
        };
        let around = usize::from(batch.is_multi) * 2 + usize::from(batch.spoiled.is_some());
        let expected = batch.commands.len() + around;
        if replies.len() != expected {
            log.wrong = Some(format!("{} commands have {} answers", expected, replies.len()));
            return Ok(Vec::new());
        }
        log.end(batch, &replies, (start, end));
        let fenced = format!("TRYAGAIN {}", Error::Fenced);
        if replies.iter().any(|reply| matches!(reply, Reply::Error(text) if *text == fenced)) {
            return Err(Error::Fenced);
        }
        Ok(replies)
    }

    /// Reads every key, and keeps what counters and lists have.
    pub(super) async fn read_all(&self, session: &mut Session) -> Result<(), Error> {
        if !self.log.borrow().is_read {
            self.read_keys(session).await?;
        }
        if !self.collects {
            return Ok(());
        }
        // Without keys there are no pages.
        let mut client = self.client(&mut Prng::new(2));
        let mut batch = Batch::default();
        batch.add(["FLUSHALL"], Effect::None);
        self.send(session, &mut client, &batch).await?;
        self.log.borrow_mut().last_pages = self.store.collect(session).await?;
        Ok(())
    }

    async fn read_keys(&self, session: &mut Session) -> Result<(), Error> {
        let mut client = self.client(&mut Prng::new(1));
        client.skew_ms = 0;
        let (mut counters, mut elements) = (BTreeMap::new(), Vec::new());
        for number in 0..self.keys {
            let key = |kind: &str| format!("{kind}{number}");
            let mut batch = Batch::default();
            batch.add(["GET", &key("counter")], Effect::None);
            batch.add(["HGET", &key("hash"), "count"], Effect::None);
            batch.add(["LRANGE", &key("list"), "0", "-1"], Effect::None);
            for kind in ["expires", "string", "watched"] {
                batch.add(["GET", &key(kind)], Effect::None);
            }
            let replies = self.send(session, &mut client, &batch).await?;
            let [Reply::Bulk(counter), Reply::Bulk(count), Reply::Array(Some(list)), ..] = &replies[..] else {
                return Err(Error::user(Unread(format!("{replies:?}"))));
            };
            for (kind, value) in [("counter", counter), ("hash", count)] {
                let value = value.as_ref().map_or(Some(0), |digits| digits.parse().ok());
                counters.insert(key(kind), value.unwrap_or(-1));
            }
            elements.extend(list.iter().filter_map(|element| match element {
                Reply::Bulk(element) => element.clone(),
                _ => None,
            }));
        }
        let mut log = self.log.borrow_mut();
        (log.last_counters, log.last_elements, log.is_read) = (counters, elements, true);
        Ok(())
    }

    /// Checks what the clients were answered, after everything was read once more.
    pub(super) fn invariants(&self) -> Vec<Invariant> {
        let log = self.log.borrow();
        let of = |name, found: Result<String, String>| Invariant {
            name,
            holds: Some(found.is_ok()),
            detail: found.unwrap_or_else(|wrong| wrong),
        };
        vec![
            of("no increment is lost or applied twice", log.check_counters()),
            of("no element of a list is lost or popped twice", log.check_lists()),
            of(
                "no page stays without a key",
                match log.last_pages {
                    0 => Ok("no pages".to_owned()),
                    pages => Err(format!("{pages} pages and tombstones stay")),
                },
            ),
        ]
    }
}

/// An answer to the last reads that is none.
#[derive(Debug, thiserror::Error)]
#[error("a key cannot be read: {0}")]
struct Unread(String);

impl Batch {
    fn add<const N: usize>(&mut self, command: [&str; N], effect: Effect) {
        self.commands.push((command.map(str::to_owned).to_vec(), effect));
    }

    /// Returns the bytes that the client sends.
    fn wire(&self) -> Vec<u8> {
        let mut wire = String::new();
        let mut write = |command: &[String]| {
            wire += &format!("*{}\r\n", command.len());
            command.iter().for_each(|argument| wire += &format!("${}\r\n{argument}\r\n", argument.len()));
        };
        if let Some(key) = &self.spoiled {
            write(&["SET", key, "same"].map(str::to_owned));
        }
        if self.is_multi {
            write(&["MULTI".to_owned()]);
        }
        self.commands.iter().for_each(|(command, _)| write(command));
        if self.is_multi {
            write(&["EXEC".to_owned()]);
        }
        wire.into_bytes()
    }
}

impl Log {
    /// Notes that commands are sent: without an answer, a client does not know their outcome.
    fn begin(&mut self, batch: &Batch) {
        for (_, effect) in &batch.commands {
            match effect {
                Effect::Increment(key) => self.counters.entry(key.clone()).or_default().open += 1,
                Effect::Push(element) => _ = self.pushed.insert(element.clone(), false),
                Effect::Pop => self.open_pops += 1,
                _ => {}
            }
        }
    }

    /// Notes the answers.
    fn end(&mut self, batch: &Batch, replies: &[Reply], times: (Nanos, Nanos)) {
        let mut of_commands: Vec<Option<&Reply>> = replies.iter().map(Some).collect();
        if batch.is_multi {
            if let (Some(key), Reply::Simple(_), Some(Reply::Array(Some(_)))) =
                (&batch.spoiled, &replies[0], replies.last())
            {
                self.wrong = Some(format!("{key} was watched and set, and EXEC was performed"));
            }
            of_commands = match replies.last() {
                Some(Reply::Array(Some(all))) if all.len() == batch.commands.len() => all.iter().map(Some).collect(),
                // EXEC has applied nothing.
                Some(Reply::Array(None)) => vec![None; batch.commands.len()],
                Some(error @ Reply::Error(_)) => vec![Some(error); batch.commands.len()],
                other => {
                    self.wrong = Some(format!("EXEC answered {other:?}"));
                    return;
                }
            };
        }
        let mut pair: Vec<&Reply> = Vec::new();
        for ((command, effect), reply) in batch.commands.iter().zip(of_commands) {
            match reply {
                Some(Reply::Error(text)) if text.starts_with("UNKNOWN ") => continue,
                Some(Reply::Error(text)) if !text.starts_with("TRYAGAIN ") => {
                    self.wrong = Some(format!("{command:?} answered {text}"));
                    return;
                }
                None | Some(Reply::Error(_)) => self.note_not_applied(effect),
                Some(reply) => {
                    if let Effect::Pair = effect {
                        pair.push(reply);
                    }
                    self.note(effect, reply, times);
                }
            }
        }
        if let [first, second] = &pair[..]
            && first != second
            && times.1 - times.0 < WHOLE_NS
        {
            self.wrong =
                Some(format!("a pipeline of two keys that are written together read {first:?} and {second:?}"));
        }
    }

    fn note_not_applied(&mut self, effect: &Effect) {
        match effect {
            Effect::Increment(key) => self.counters.entry(key.clone()).or_default().open -= 1,
            Effect::Push(element) => _ = self.pushed.remove(element),
            Effect::Pop => self.open_pops -= 1,
            _ => {}
        }
    }

    fn note(&mut self, effect: &Effect, reply: &Reply, (start, end): (Nanos, Nanos)) {
        match (effect, reply) {
            (Effect::None | Effect::Pair, _) => {}
            (Effect::Increment(key), Reply::Integer(value)) => {
                let counter = self.counters.entry(key.clone()).or_default();
                counter.open -= 1;
                counter.answers.push((*value, start, end));
            }
            (Effect::Push(element), Reply::Integer(_)) => _ = self.pushed.insert(element.clone(), true),
            (Effect::Pop, Reply::Bulk(element)) => {
                self.open_pops -= 1;
                if let Some(element) = element {
                    *self.popped.entry(element.clone()).or_default() += 1;
                }
            }
            (Effect::Set(key, value), Reply::Simple(_)) => {
                self.set.insert((key.clone(), value.clone()), end);
            }
            (Effect::Get(key), Reply::Bulk(None)) => self.gone.entry(key.clone()).or_default().push((start, end)),
            (Effect::Get(key), Reply::Bulk(Some(value))) => {
                let Some(set) = self.set.get(&(key.clone(), value.clone())) else { return };
                let gone = self.gone.get(key).into_iter().flatten();
                if let Some((from, to)) = gone.into_iter().find(|(from, to)| from > set && *to < start) {
                    self.wrong = Some(format!(
                        "{key} was set to {value} by {set}, was gone between {from} and {to}, and was there after {start}"
                    ));
                }
            }
            (_, reply) => self.wrong = Some(format!("a command answered {reply:?}")),
        }
    }

    fn check_counters(&self) -> Result<String, String> {
        for (key, counter) in &self.counters {
            let mut answers = counter.answers.clone();
            answers.sort();
            if let Some(twice) = answers.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(format!("two increments of {key} were answered {}", twice[0].0));
            }
            // The latest beginning of all increments with a smaller answer.
            let mut begun = 0;
            for (value, start, end) in &answers {
                if *end < begun {
                    return Err(format!(
                        "an increment of {key} was answered {value}, before one with a smaller answer began"
                    ));
                }
                begun = begun.max(*start);
            }
            let last = self.last_counters.get(key).copied().unwrap_or(0);
            let told = answers.len() as i64;
            let is_counted = told <= last && last <= told + counter.open;
            if !is_counted || answers.last().is_some_and(|(value, ..)| *value > last) {
                return Err(format!(
                    "{key} is {last}, after {told} increments that were acknowledged and {} of unknown outcome",
                    counter.open
                ));
            }
        }
        Ok(format!("{} counters", self.counters.len()))
    }

    fn check_lists(&self) -> Result<String, String> {
        if let Some((element, count)) = self.popped.iter().find(|(_, count)| **count > 1) {
            return Err(format!("{element} was popped {count} times"));
        }
        let left: BTreeSet<&String> = self.last_elements.iter().collect();
        if left.len() != self.last_elements.len() {
            return Err("an element is in lists twice".to_owned());
        }
        let taken = self.popped.keys().chain(left.iter().copied());
        if let Some(foreign) = taken.into_iter().find(|element| !self.pushed.contains_key(*element)) {
            return Err(format!("{foreign} was never pushed"));
        }
        if let Some(both) = left.iter().find(|element| self.popped.contains_key(**element)) {
            return Err(format!("{both} was popped, and is in a list"));
        }
        let is_missing = |element: &String| !self.popped.contains_key(element) && !left.contains(element);
        let missing: Vec<&String> = self.pushed.iter().filter(|(_, told)| **told).map(|(element, _)| element).collect();
        let missing: Vec<&String> = missing.into_iter().filter(|element| is_missing(element)).collect();
        if missing.len() as i64 > self.open_pops {
            return Err(format!("{missing:?} are lost, and {} pops have an unknown outcome", self.open_pops));
        }
        Ok(format!("{} elements were pushed, {} popped", self.pushed.len(), self.popped.len()))
    }
}

/// Reads all answers. Returns `None` if they are no answers.
fn parse(mut bytes: &[u8]) -> Option<Vec<Reply>> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        replies.push(parse_one(&mut bytes)?);
    }
    Some(replies)
}

fn parse_one(bytes: &mut &[u8]) -> Option<Reply> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = std::str::from_utf8(&bytes[..end]).ok()?;
    *bytes = &bytes[end + 2..];
    let (kind, rest) = line.split_at_checked(1)?;
    Some(match kind {
        "+" => Reply::Simple(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Integer(rest.parse().ok()?),
        "$" if rest == "-1" => Reply::Bulk(None),
        "$" => {
            let (text, behind) = bytes.split_at_checked(rest.parse().ok()?)?;
            *bytes = behind.strip_prefix(b"\r\n")?;
            Reply::Bulk(Some(String::from_utf8(text.to_vec()).ok()?))
        }
        "*" if rest == "-1" => Reply::Array(None),
        "*" => {
            let count: usize = rest.parse().ok()?;
            Reply::Array(Some((0..count).map(|_| parse_one(bytes)).collect::<Option<_>>()?))
        }
        _ => return None,
    })
}
