//! Connections: what a client has sent becomes plans, and plans become replies.

use std::cell::Cell;

use remora::Session;
use remora_redis::{Command, Error, Run, find};
use remora_resp::{ParseError, Parser, ReplyWriter, Version};

use crate::execute::Executor;
use crate::net::{Next, UNSENT_MAX};
use crate::plan::{Plan, Queued, Step, Watched};
use crate::server::{self, Server};
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
    /// The number that `CLIENT ID` answers.
    pub(crate) id: u64,
    parser: Parser,
    pub(crate) state: State,
    queue: Option<Queue>,
    watched: Vec<Watched>,
}

/// What commands change of a connection, and an `EXEC` that fails does not.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// The database that is selected.
    pub(crate) database: u8,
    /// The version of the protocol.
    pub(crate) version: Version,
    /// The name of the connection.
    pub(crate) name: Vec<u8>,
    /// The name and the version of the client's library.
    pub(crate) library: [Vec<u8>; 2],
    /// Whether the client has authenticated, or does not have to.
    pub(crate) is_authenticated: bool,
    /// Which replies are sent.
    pub(crate) replies: Replies,
}

/// Which replies a client wants: `CLIENT REPLY`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Replies {
    /// All.
    #[default]
    On,
    /// None.
    Off,
    /// All but the next one.
    Skip,
}

/// The commands between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
struct Queue {
    commands: Vec<(&'static Command, Vec<Vec<u8>>)>,
    bytes: usize,
    /// Whether a command was refused. Then `EXEC` runs none.
    is_broken: bool,
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
    /// `CLIENT REPLY`.
    Reply(Replies),
    /// The connection is closed.
    Close,
}

impl Connection {
    /// Begins a connection.
    pub fn new(id: u64, server: &Server) -> Connection {
        let mut parser = Parser::new();
        let is_authenticated = !server.needs_password();
        parser.set_authenticated(is_authenticated);
        let state = State { is_authenticated, ..State::default() };
        Connection { id, parser, state, queue: None, watched: Vec::new() }
    }

    /// Runs the complete commands at the front of `input`, and takes them from there. Appends their
    /// replies to `output`.
    pub async fn serve(
        &mut self,
        server: &Server,
        session: &mut Session,
        random: &Cell<u64>,
        input: &mut &mut [u8],
        output: &mut Vec<u8>,
    ) -> Next {
        loop {
            let mut plan = Plan::default();
            let former = self.state.clone();
            let planned = self.plan_many(server, input, &mut plan);
            let is_done = matches!(planned, Ok(None));
            let start = output.len();
            let mut executor = Executor { store: &server.store, limits: server.limits(), random, was_performed: true };
            if !plan.is_empty() {
                executor.run(session, &plan, output).await;
            }
            if !executor.was_performed {
                // An `EXEC` that has found a watched key changed was the last step.
                self.state = State { replies: self.state.replies, ..former.clone() };
            }
            match former.replies {
                Replies::Off => output.truncate(start),
                Replies::Skip if !plan.is_empty() => {
                    output.truncate(start);
                    self.state.replies = Replies::On;
                }
                _ => {}
            }
            let start = output.len();
            match planned {
                Err(error) => {
                    error.write_reply(output);
                    return Next::Close;
                }
                Ok(Some(Alone::Close)) => return Next::Close,
                Ok(Some(alone)) => self.run_alone(alone, &mut executor, server, session, output).await,
                Ok(None) => {}
            }
            if self.state.replies == Replies::Off {
                output.truncate(start);
            }
            if is_done {
                return Next::More;
            }
            if output.len() > UNSENT_MAX {
                return Next::Again;
            }
        }
    }

    /// Plans commands until the plan has to end, or there is no complete one. Returns what comes
    /// behind the plan: `None` if there is no complete command.
    fn plan_many<'b>(
        &mut self,
        server: &Server,
        rest: &mut &'b mut [u8],
        plan: &mut Plan<'b>,
    ) -> Result<Option<Alone>, ParseError> {
        // The reply of the next command alone is skipped.
        let steps_max = if self.state.replies == Replies::Skip { 1 } else { STEPS_MAX };
        let mut steps = 0;
        loop {
            let Some(command) = self.parser.next(rest)? else { return Ok(None) };
            let start = plan.args.len();
            plan.args.extend(command.arguments());
            if let Flow::Then(alone) = self.plan(server, start, plan) {
                return Ok(Some(alone));
            }
            steps += 1;
            if steps == steps_max {
                return Ok(Some(Alone::Nothing));
            }
        }
    }

    /// Plans a command, whose arguments are the plan's from `start` on.
    fn plan(&mut self, server: &Server, start: usize, plan: &mut Plan<'_>) -> Flow {
        let args = plan.args[start..].to_vec();
        server.count(&args);
        match self.plan_or_fail(server, &args, start, plan) {
            Ok(flow) => flow,
            Err(error) => {
                if let Some(queue) = &mut self.queue {
                    queue.is_broken |= !is_about_the_queue(&args);
                }
                let version = self.state.version;
                plan.ready(|out| ReplyWriter::new(out, version).error(error.text()));
                Flow::Next
            }
        }
    }

    fn plan_or_fail(
        &mut self,
        server: &Server,
        args: &[&[u8]],
        start: usize,
        plan: &mut Plan<'_>,
    ) -> Result<Flow, Error> {
        let command = find(args)?;
        command.check(args)?;
        if !self.state.is_authenticated && !command.has("no_auth") {
            return Err(server::no_auth(command));
        }
        for (_, key) in command.keys_of(args, self.state.database) {
            if key.len() > KEY_BYTES_MAX {
                return Err(Error::of(format!("ERR key of {} bytes (limit {KEY_BYTES_MAX})", key.len())));
            }
        }
        if let Some(queue) = &mut self.queue
            && !is_about_the_queue(args)
        {
            queue.push(command, args)?;
            let version = self.state.version;
            plan.ready(|out| ReplyWriter::new(out, version).simple("QUEUED"));
            return Ok(Flow::Next);
        }
        match command.run {
            Run::Keys(_) => {
                let (database, version) = (self.state.database, self.state.version);
                plan.steps.push(Step::Keys { command, args: start..plan.args.len(), database, version });
                Ok(Flow::Next)
            }
            Run::Elsewhere => self.plan_elsewhere(server, command, args, plan),
        }
    }

    fn plan_elsewhere(
        &mut self,
        server: &Server,
        command: &'static Command,
        args: &[&[u8]],
        plan: &mut Plan<'_>,
    ) -> Result<Flow, Error> {
        let version = self.state.version;
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
                self.plan_exec(server, queue, watched, plan)
            }
            "watch" if self.queue.is_some() => Err(Error::new("ERR WATCH inside MULTI is not allowed")),
            "watch" => Ok(Flow::Then(Alone::Watch(args[1..].iter().map(|key| key.to_vec()).collect()))),
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
                (self.queue, self.watched) = (None, Vec::new());
                let is_authenticated = !server.needs_password();
                self.state = State { is_authenticated, ..State::default() };
                self.parser.set_authenticated(is_authenticated);
                plan.ready(|out| ReplyWriter::new(out, Version::Resp2).simple("RESET"));
                Ok(Flow::Next)
            }
            "client|reply" => Ok(Flow::Then(Alone::Reply(server::replies_of(args)?))),
            name if walk::is_walk(name) => Ok(Flow::Then(Alone::Walk(Walk::parse(command, args)?))),
            _ => {
                let mut reply = Vec::new();
                server::run(server, self, command, args, &mut reply)?;
                self.parser.set_authenticated(self.state.is_authenticated);
                plan.ready(|out| out.extend_from_slice(&reply));
                Ok(Flow::Next)
            }
        }
    }

    fn plan_exec(
        &mut self,
        server: &Server,
        queue: Queue,
        watched: Vec<Watched>,
        plan: &mut Plan<'_>,
    ) -> Result<Flow, Error> {
        if queue.is_broken {
            return Err(Error::new("EXECABORT Transaction discarded because of previous errors."));
        }
        let (version, is_watching) = (self.state.version, !watched.is_empty());
        let mut changes_state = false;
        let mut planned = Vec::with_capacity(queue.commands.len());
        for (command, args) in queue.commands {
            if let Run::Keys(_) = command.run {
                planned.push(Queued::Keys { command, args, database: self.state.database });
                continue;
            }
            changes_state = true;
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            let mut reply = Vec::new();
            let version = self.state.version;
            if let Err(error) = server::run(server, self, command, &args, &mut reply) {
                reply.clear();
                ReplyWriter::new(&mut reply, version).error(error.text());
            }
            planned.push(Queued::Ready(reply));
        }
        plan.steps.push(Step::Exec { queue: planned, watched, version });
        // If a key has changed, the state becomes again what it was.
        Ok(if is_watching && changes_state { Flow::Then(Alone::Nothing) } else { Flow::Next })
    }

    async fn run_alone(
        &mut self,
        alone: Alone,
        executor: &mut Executor<'_>,
        server: &Server,
        session: &mut Session,
        output: &mut Vec<u8>,
    ) {
        let version = self.state.version;
        match alone {
            Alone::Nothing | Alone::Close => {}
            Alone::Reply(replies) => {
                self.state.replies = replies;
                if replies == Replies::On {
                    ReplyWriter::new(output, version).simple("OK");
                }
            }
            Alone::Watch(keys) => {
                let names: Vec<Name<'_>> = keys.iter().map(|key| (self.state.database, key.as_slice())).collect();
                match executor.watch(session, &names).await {
                    Ok(watched) => {
                        // The first stamp of a key that is watched twice is the one that counts.
                        let is_new = |one: &Watched| {
                            !self.watched.iter().any(|other| (other.database, &other.key) == (one.database, &one.key))
                        };
                        let new: Vec<_> = watched.into_iter().filter(is_new).collect();
                        self.watched.extend(new);
                        ReplyWriter::new(output, version).simple("OK");
                    }
                    Err(text) => ReplyWriter::new(output, version).error(text),
                }
            }
            Alone::Walk(walk) => walk.run(&server.store, session, executor, &self.state, output).await,
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
        self.commands.push((command, args.iter().map(|argument| argument.to_vec()).collect()));
        Ok(())
    }
}

/// Whether a command is not queued behind `MULTI`.
fn is_about_the_queue(args: &[&[u8]]) -> bool {
    [&b"multi"[..], b"exec", b"discard", b"watch", b"quit", b"reset"]
        .iter()
        .any(|name| args[0].eq_ignore_ascii_case(name))
}
