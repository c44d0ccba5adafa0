//! Connections: what a client has sent becomes plans, and plans become replies.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use remora::{Session, TransactionId};
use remora_redis::{Command, Error, Run, find, table};
use remora_resp::{ParseError, ReplyWriter, Version};

use crate::clock;
use crate::execute::Executor;
use crate::net::{Next, Origin, UNSENT_MAX};
use crate::once::{Claim, Once};
use crate::plan::{Plan, Planned, Queued, Step, Watched, borrowed, owned};
use crate::server::clients::Client;
use crate::server::counters::{Event, unknown_command};
use crate::server::{self, After, Local, Peer, Replies, Server, State};
use crate::store::{KEY_BYTES_MAX, Name};
use crate::walk::{self, Walk};

/// The largest number of steps of a plan.
const STEPS_MAX: usize = 64;
/// The largest number of commands that `MULTI` queues, and of their bytes.
const QUEUE_MAX: usize = 65_536;
const QUEUE_BYTES_MAX: usize = 16 << 20;

/// A connection of a client.
#[derive(Debug)]
pub struct Connection {
    peer: Peer,
    queue: Option<Queue>,
    watched: Watched,
    /// The token of the next command.
    once: Option<Once>,
    /// An answer that is held back, and until when.
    delayed: Option<(Instant, Vec<u8>)>,
    /// A command that waits for the end of a pause.
    postponed: Option<Vec<Vec<u8>>>,
}

/// The commands between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
struct Queue {
    commands: Vec<(&'static Command, Vec<Vec<u8>>)>,
    bytes: usize,
    /// Whether a command writes.
    has_write: bool,
    /// Whether a command was refused. Then `EXEC` runs none.
    is_broken: bool,
    /// The token of the transaction.
    once: Option<Once>,
}

/// What comes behind a command that was planned.
enum Flow {
    /// The next command may be part of the same plan.
    Next,
    /// The plan runs first, and then this.
    Then(Alone),
}

/// What does not run as a step of a plan.
enum Alone {
    /// Nothing: the plan only had to end.
    Nothing,
    /// `WATCH`, with its keys.
    Watch(Vec<Vec<u8>>),
    /// A command of all keys.
    Walk(Walk),
    /// An `EXEC` in rollback mode or with a token, and the state if it applies nothing.
    Exec(Step, Option<Claim>, Box<State>),
    /// A command with a token, and its arguments.
    Once(Step, Vec<Vec<u8>>, Claim),
    /// Nothing, but if the `EXEC` in the plan has applied nothing, the state becomes this again.
    Restore(Box<State>),
    /// `INFO` with the number of keys, with its arguments.
    Info(&'static Command, Vec<Vec<u8>>),
    /// `REMORA.RESOLVE`, with the id of a transaction.
    Resolve(TransactionId),
    /// `CLIENT REPLY`.
    Reply(Replies),
    /// The connection is closed.
    Close,
}

impl Connection {
    /// Begins a connection that comes from nowhere: a test has it.
    pub fn new(id: u64, server: &Server) -> Connection {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Connection::open(&Origin { id, peer: nowhere, local: nowhere }, server)
    }

    /// Begins a connection.
    pub fn open(origin: &Origin, server: &Server) -> Connection {
        let peer = Peer::new(server, origin);
        Connection { peer, queue: None, watched: Watched::new(), once: None, delayed: None, postponed: None }
    }

    /// Returns what others see of the connection.
    pub(crate) fn client(&self) -> &Client {
        &self.peer.client
    }

    /// Runs the complete commands at the front of `input`, and takes them from there. Appends their
    /// replies to `output`.
    pub async fn serve(
        &mut self,
        server: &Server,
        session: &mut Session,
        local: &Local,
        input: &mut &mut [u8],
        output: &mut Vec<u8>,
    ) -> Next {
        loop {
            if let Some(next) = self.wait(server, output) {
                return next;
            }
            let begun = clock::instant();
            let postponed = self.postponed.take();
            let mut plan = Plan::new();
            let replies = self.peer.state.replies;
            let planned = self.plan_many(server, local, postponed.as_deref(), input, &mut plan);
            let start = output.len();
            let mut executor = Executor {
                store: &server.store,
                limits: server.limits(),
                local,
                clock: server.clock(),
                recorder: server.recorder(),
                was_performed: true,
            };
            if !plan.is_empty() {
                executor.run(session, &plan, output).await;
            }
            if replies == Replies::Off || replies == Replies::Skip && !plan.commands.is_empty() {
                output.truncate(start);
            }
            if replies == Replies::Skip && !plan.commands.is_empty() && self.peer.state.replies == Replies::Skip {
                self.peer.state.replies = Replies::On;
            }
            let start = output.len();
            let next = match planned {
                Err(error) => {
                    local.counters.happened(Event::ProtocolError);
                    error.write_reply(output);
                    Some(Next::Close)
                }
                Ok(Some(Alone::Close)) => Some(Next::Close),
                Ok(Some(alone)) => {
                    let is_about_replies = matches!(alone, Alone::Reply(_));
                    self.run_alone(alone, &mut executor, server, session, output).await;
                    if replies != Replies::On && !is_about_replies {
                        output.truncate(start);
                    }
                    (output.len() > UNSENT_MAX).then_some(Next::Again)
                }
                Ok(None) => Some(Next::More),
            };
            if !plan.commands.is_empty() {
                server.note(local, &self.peer, &plan, begun.elapsed());
                self.publish(begun);
            }
            if let Some(next) = next {
                return next;
            }
        }
    }

    /// Says how the connection goes on if it has to wait or to end. Writes the answer that was held
    /// back, when its time has come.
    fn wait(&mut self, server: &Server, output: &mut Vec<u8>) -> Option<Next> {
        if self.peer.client.is_killed() {
            return Some(Next::Close);
        }
        if let Some((until, reply)) = &self.delayed {
            let left = until.saturating_duration_since(clock::instant());
            if !left.is_zero() {
                return Some(Next::Pause(left));
            }
            if self.peer.state.replies == Replies::On {
                output.extend_from_slice(reply);
            }
            self.delayed = None;
        }
        let left = server.pauses.left(self.postponed.is_some());
        self.peer.client.set_waiting(left.is_some());
        left.map(Next::Pause)
    }

    /// Shows others how the connection stands.
    fn publish(&self, now: Instant) {
        let queued = self.queue.as_ref().map(|queue| queue.commands.len());
        self.peer.client.publish(now, self.peer.state.database, self.peer.state.version, queued);
    }

    /// Plans commands until the plan has to end, or there is no complete one. Returns what comes
    /// behind the plan: `None` if there is no complete command.
    fn plan_many<'p, 'b: 'p>(
        &mut self,
        server: &Server,
        local: &Local,
        mut postponed: Option<&'p [Vec<u8>]>,
        rest: &mut &'b mut [u8],
        plan: &mut Plan<'p>,
    ) -> Result<Option<Alone>, ParseError> {
        // The reply of the next command alone is skipped.
        let steps_max = if self.peer.state.replies == Replies::Skip { 1 } else { STEPS_MAX };
        let mut steps = 0;
        loop {
            let start = plan.args.len();
            if let Some(args) = postponed.take() {
                plan.args.extend(args.iter().map(Vec::as_slice));
            } else {
                let Some(command) = self.peer.parser.next(rest)? else { return Ok(None) };
                plan.args.extend(command.arguments());
            }
            if let Flow::Then(alone) = self.plan(server, local, start, plan) {
                return Ok(Some(alone));
            }
            steps += 1;
            if steps == steps_max {
                return Ok(Some(Alone::Nothing));
            }
        }
    }

    /// Plans a command, whose arguments are the plan's from `start` on.
    fn plan(&mut self, server: &Server, local: &Local, start: usize, plan: &mut Plan<'_>) -> Flow {
        let mut all = std::mem::take(&mut plan.args);
        let flow = self.plan_args(server, local, (start, &all[start..]), plan);
        if self.postponed.is_some() {
            all.truncate(start);
        }
        plan.args = all;
        flow
    }

    fn plan_args(
        &mut self,
        server: &Server,
        local: &Local,
        (start, args): (usize, &[&[u8]]),
        plan: &mut Plan<'_>,
    ) -> Flow {
        let found = find(args);
        let number = found.as_ref().ok().and_then(|command| table::number_of(command));
        let number = number.unwrap_or_else(unknown_command);
        let admitted = found.and_then(|command| self.admit(command, args).map(|()| command));
        if let Ok(command) = admitted {
            let has_write = self.queue.as_ref().is_some_and(|queue| queue.has_write);
            if server.pauses.left_for(command, has_write).is_some() {
                self.postponed = Some(owned(args));
                return Flow::Then(Alone::Nothing);
            }
        }
        let is_rejected = admitted.is_err();
        let once = self.once.take();
        plan.commands.push(Planned { number, start, is_rejected });
        self.peer.client.set_command(number);
        match admitted.and_then(|command| match once {
            Some(once) if !is_unnamed(command) => self.plan_once(once, command, args, plan),
            _ => self.plan_admitted(server, local, command, args, start, plan),
        }) {
            Ok(flow) => flow,
            Err(error) => {
                if is_rejected {
                    local.counters.rejected(number, error.text());
                } else {
                    local.counters.failed(number, error.text());
                }
                let error = self.note_error(args, is_rejected, error);
                let version = self.peer.state.version;
                plan.ready(|out| ReplyWriter::new(out, version).error(error.text()));
                Flow::Next
            }
        }
    }

    /// Notes in the queue that a command was refused. Returns the error that is answered.
    fn note_error(&mut self, args: &[&[u8]], is_rejected: bool, error: Error) -> Error {
        let Some(queue) = &mut self.queue else { return error };
        if is_rejected && args[0].eq_ignore_ascii_case(b"exec") {
            (self.queue, self.watched) = (None, Watched::new());
            let text = error.text().strip_prefix(b"ERR ").unwrap_or(error.text());
            return Error::of([b"EXECABORT Transaction discarded because of: ", text].concat());
        }
        queue.is_broken |= !is_about_the_queue(args);
        error
    }

    /// Fails if a call is refused before it is looked at.
    fn admit(&self, command: &Command, args: &[&[u8]]) -> Result<(), Error> {
        command.check(args)?;
        if !self.peer.state.is_authenticated && !command.has("no_auth") {
            return Err(server::no_auth(command.name));
        }
        if args.iter().all(|argument| argument.len() <= KEY_BYTES_MAX) {
            return Ok(());
        }
        for (_, key) in command.keys_of(args, self.peer.state.database) {
            if key.len() > KEY_BYTES_MAX {
                return Err(Error::of(format!("ERR key of {} bytes (limit {KEY_BYTES_MAX})", key.len())));
            }
        }
        Ok(())
    }

    fn plan_admitted(
        &mut self,
        server: &Server,
        local: &Local,
        command: &'static Command,
        args: &[&[u8]],
        start: usize,
        plan: &mut Plan<'_>,
    ) -> Result<Flow, Error> {
        if let Some(queue) = &mut self.queue
            && !is_about_the_queue(args)
        {
            queue.push(command, args)?;
            let version = self.peer.state.version;
            plan.ready(|out| ReplyWriter::new(out, version).simple("QUEUED"));
            return Ok(Flow::Next);
        }
        match command.run {
            Run::Keys(_) => {
                let (database, version) = (self.peer.state.database, self.peer.state.version);
                plan.steps.push(Step::Keys { command, args: start..start + args.len(), database, version });
                Ok(Flow::Next)
            }
            Run::Elsewhere => self.plan_elsewhere(server, local, command, args, plan),
        }
    }

    /// Plans a command behind `REMORA.ONCE`.
    fn plan_once(
        &mut self,
        once: Once,
        command: &'static Command,
        args: &[&[u8]],
        plan: &mut Plan<'_>,
    ) -> Result<Flow, Error> {
        let (database, version) = (self.peer.state.database, self.peer.state.version);
        match command.run {
            Run::Keys(_) if command.has("write") => {
                let mut claim = Claim::new(once, false, version);
                claim.add(command, database, args);
                let step = Step::Keys { command, args: 0..args.len(), database, version };
                Ok(Flow::Then(Alone::Once(step, owned(args), claim)))
            }
            _ if command.name == "multi" => {
                self.queue = Some(Queue { once: Some(once), ..Queue::default() });
                plan.ready(|out| ReplyWriter::new(out, version).simple("OK"));
                Ok(Flow::Next)
            }
            _ => Err(Error::new("ERR REMORA.ONCE is only for a command that writes keys, or for MULTI")),
        }
    }

    fn plan_elsewhere(
        &mut self,
        server: &Server,
        local: &Local,
        command: &'static Command,
        args: &[&[u8]],
        plan: &mut Plan<'_>,
    ) -> Result<Flow, Error> {
        let version = self.peer.state.version;
        let mut ok = |text| plan.ready(|out| ReplyWriter::new(out, version).simple(text));
        match command.name {
            "multi" if self.queue.is_some() => Err(Error::new("ERR MULTI calls can not be nested")),
            "multi" => {
                self.queue = Some(Queue::default());
                ok("OK");
                Ok(Flow::Next)
            }
            "discard" => {
                self.queue.take().ok_or(Error::new("ERR DISCARD without MULTI"))?;
                self.watched.clear();
                ok("OK");
                Ok(Flow::Next)
            }
            "exec" => {
                let queue = self.queue.take().ok_or(Error::new("ERR EXEC without MULTI"))?;
                let watched = std::mem::take(&mut self.watched);
                self.plan_exec(server, local, queue, watched, plan)
            }
            "remora.once" if self.queue.is_some() => Err(Error::new("ERR REMORA.ONCE inside MULTI is not allowed")),
            "remora.once" => {
                self.once = Some(Once::parse(args)?);
                ok("OK");
                Ok(Flow::Next)
            }
            "watch" if self.queue.is_some() => Err(Error::new("ERR WATCH inside MULTI is not allowed")),
            "watch" => Ok(Flow::Then(Alone::Watch(owned(&args[1..])))),
            "unwatch" => {
                self.watched.clear();
                ok("OK");
                Ok(Flow::Next)
            }
            "quit" => {
                ok("OK");
                Ok(Flow::Then(Alone::Close))
            }
            "reset" => {
                (self.queue, self.watched) = (None, Watched::new());
                let names = self.peer.state.names.take();
                self.peer.state = State { names, rolls_back: server.rolls_back(), ..State::default() };
                self.peer.set_names(|names| names.name.clear());
                self.peer.set_authenticated(!server.needs_password());
                self.peer.client.reset();
                plan.ready(|out| ReplyWriter::new(out, Version::Resp2).simple("RESET"));
                Ok(Flow::Next)
            }
            "client|reply" => Ok(Flow::Then(Alone::Reply(server::replies_of(args)?))),
            name if walk::is_walk(name) => Ok(Flow::Then(Alone::Walk(Walk::parse(command, args)?))),
            "info" if server::counts_keys(args) => Ok(Flow::Then(Alone::Info(command, owned(args)))),
            "remora.resolve" => {
                let id = std::str::from_utf8(args[1]).ok().and_then(|text| text.parse().ok());
                let id = id.and_then(TransactionId::from_bits);
                Ok(Flow::Then(Alone::Resolve(id.ok_or(Error::new("ERR invalid transaction id"))?)))
            }
            _ => {
                self.publish(clock::instant());
                let mut reply = Vec::new();
                let after = server::run(server, &mut self.peer, local, command, args, &mut reply)?;
                if let After::Delay(delay) = after {
                    let number = table::number_of(command).unwrap_or_else(unknown_command);
                    local.counters.failed(number, &reply[1..]);
                    self.delayed = Some((clock::instant() + delay, reply));
                    return Ok(Flow::Then(Alone::Nothing));
                }
                plan.ready(|out| out.extend_from_slice(&reply));
                Ok(match after {
                    After::Close => Flow::Then(Alone::Close),
                    After::EndBatch => Flow::Then(Alone::Nothing),
                    After::Next | After::Delay(_) => Flow::Next,
                })
            }
        }
    }

    fn plan_exec(
        &mut self,
        server: &Server,
        local: &Local,
        queue: Queue,
        watched: Watched,
        plan: &mut Plan<'_>,
    ) -> Result<Flow, Error> {
        if queue.is_broken {
            return Err(Error::new("EXECABORT Transaction discarded because of previous errors."));
        }
        let (version, rolls_back) = (self.peer.state.version, self.peer.state.rolls_back);
        let may_fail = rolls_back || !watched.is_empty() || queue.once.is_some();
        let former = may_fail.then(|| Box::new(self.peer.state.clone()));
        let (mut changes_state, mut is_closed) = (false, false);
        let mut planned = Vec::with_capacity(queue.commands.len());
        let mut claim = queue.once.map(|once| Claim::new(once, true, version));
        for (command, args) in queue.commands {
            if let Some(claim) = &mut claim {
                claim.add(command, self.peer.state.database, &args);
            }
            if let Run::Keys(_) = command.run {
                planned.push(Queued::Keys { command, args, database: self.peer.state.database });
                continue;
            }
            let mut reply = Vec::new();
            let version = self.peer.state.version;
            if command.name == "unwatch" {
                // EXEC itself watches no key any more.
                ReplyWriter::new(&mut reply, version).simple("OK");
                planned.push(Queued::Ready(reply));
                continue;
            }
            changes_state = true;
            let args = borrowed(&args);
            match server::run(server, &mut self.peer, local, command, &args, &mut reply) {
                Ok(After::Close) => is_closed = true,
                // The answer leaves with the others, but the next command waits.
                Ok(After::Delay(delay)) => self.delayed = Some((clock::instant() + delay, Vec::new())),
                Ok(_) => {}
                Err(error) => {
                    let number = table::number_of(command).unwrap_or_else(unknown_command);
                    local.counters.failed(number, error.text());
                    reply.clear();
                    ReplyWriter::new(&mut reply, version).error(error.text());
                }
            }
            planned.push(Queued::Ready(reply));
        }
        let step = Step::Exec { queue: planned, watched, version, rolls_back };
        match former {
            // Its failure must not take other commands with it. Nor may others be under its token.
            Some(former) if rolls_back || claim.is_some() => {
                return Ok(Flow::Then(Alone::Exec(step, claim, former)));
            }
            // If a key has changed, the state becomes again what it was.
            Some(former) if changes_state && !is_closed => {
                plan.steps.push(step);
                return Ok(Flow::Then(Alone::Restore(former)));
            }
            _ => plan.steps.push(step),
        }
        Ok(if is_closed || self.delayed.is_some() {
            Flow::Then(if is_closed { Alone::Close } else { Alone::Nothing })
        } else {
            Flow::Next
        })
    }

    /// Makes the state again what it was before an `EXEC` that has applied nothing.
    fn restore(&mut self, former: State) {
        self.peer.state = State { replies: self.peer.state.replies, ..former };
        self.peer.client.set_names(self.peer.state.names.clone());
        self.peer.set_authenticated(self.peer.state.is_authenticated);
    }

    async fn run_alone(
        &mut self,
        alone: Alone,
        executor: &mut Executor<'_>,
        server: &Server,
        session: &mut Session,
        output: &mut Vec<u8>,
    ) {
        let version = self.peer.state.version;
        match alone {
            Alone::Nothing | Alone::Close => {}
            Alone::Reply(replies) => {
                self.peer.state.replies = replies;
                if replies == Replies::On {
                    ReplyWriter::new(output, version).simple("OK");
                }
            }
            Alone::Watch(keys) => {
                let names: Vec<Name<'_>> = keys.iter().map(|key| (self.peer.state.database, key.as_slice())).collect();
                match executor.watch(session, &names).await {
                    Ok(watched) => {
                        // The first stamp of a key that is watched twice is the one that counts.
                        for (key, stamp) in watched {
                            self.watched.entry(key).or_insert(stamp);
                        }
                        ReplyWriter::new(output, version).simple("OK");
                    }
                    Err(text) => ReplyWriter::new(output, version).error(text),
                }
            }
            Alone::Exec(step, claim, former) => {
                let plan = Plan { steps: vec![step], claim, ..Plan::default() };
                executor.run(session, &plan, output).await;
                if !executor.was_performed {
                    self.restore(*former);
                }
            }
            Alone::Once(step, args, claim) => {
                let plan = Plan { args: borrowed(&args), steps: vec![step], claim: Some(claim), ..Plan::default() };
                executor.run(session, &plan, output).await;
            }
            Alone::Restore(former) => {
                if !executor.was_performed {
                    self.restore(*former);
                }
            }
            Alone::Info(command, args) => {
                server.count_keys(session).await;
                let args = borrowed(&args);
                let start = output.len();
                if let Err(error) = server::run(server, &mut self.peer, executor.local, command, &args, output) {
                    output.truncate(start);
                    ReplyWriter::new(output, version).error(error.text());
                }
            }
            Alone::Resolve(id) => executor.resolve(session, id, version, output).await,
            Alone::Walk(walk) => walk.run(&server.store, session, executor, &self.peer.state, output).await,
        }
    }
}

impl Queue {
    fn push(&mut self, command: &'static Command, args: &[&[u8]]) -> Result<(), Error> {
        if walk::is_walk(command.name) {
            let name = command.name.to_ascii_uppercase();
            return Err(Error::of(format!("ERR {name} is not atomic here and is refused in MULTI")));
        }
        self.bytes += args.iter().map(|argument| argument.len()).sum::<usize>();
        if self.commands.len() == QUEUE_MAX || self.bytes > QUEUE_BYTES_MAX {
            return Err(Error::new("ERR MULTI queue is full (limit 65536 commands, 16 MiB)"));
        }
        self.has_write |= command.has("write");
        self.commands.push((command, owned(args)));
        Ok(())
    }
}

/// Whether a command behind `REMORA.ONCE` only makes the gateway forget the token.
fn is_unnamed(command: &Command) -> bool {
    matches!(command.name, "remora.once" | "discard" | "reset" | "quit")
}

/// Whether a command is not queued behind `MULTI`.
fn is_about_the_queue(args: &[&[u8]]) -> bool {
    [&b"multi"[..], b"exec", b"discard", b"watch", b"quit", b"reset", b"remora.once"]
        .iter()
        .any(|name| args[0].eq_ignore_ascii_case(name))
}
