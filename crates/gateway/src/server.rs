//! What all connections of a gateway share, and the commands about it.
//!
//! | module | what |
//! | --- | --- |
//! | `clients` | the connections as others see them: `CLIENT` |
//! | `command` | what is known of commands: `COMMAND` |
//! | `config` | what can be set: `CONFIG` |
//! | `counters` | what each thread counts |
//! | `help` | `HELP` of all |
//! | `info` | `INFO`, and the metrics |
//! | `login` | passwords: `AUTH`, `HELLO` |
//! | `peer` | a connection as the commands about it see it |
//! | `slowlog` | what has taken long: `SLOWLOG` |
//!
//! Threads ask a server for every batch. What they ask then are atomics, never locks.

pub(crate) mod clients;
mod command;
mod config;
pub(crate) mod counters;
mod help;
mod info;
mod login;
mod peer;
mod slowlog;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use remora::{Cluster, Session};
use remora_redis::call::integer;
use remora_redis::command::DATABASES;
use remora_redis::{Command, Error, Limits};
use remora_resp::{ReplyWriter, number};

use self::clients::{Client, Kill, Pauses, Registry};
use self::config::Settings;
use self::counters::{Counters, Totals};
use self::info::Census;
use self::login::Logins;
pub(crate) use self::login::no_auth;
pub use self::login::{PasswordError, PasswordSource};
pub use self::peer::Local;
pub(crate) use self::peer::{Peer, Replies, State};
use self::slowlog::SlowLog;
use crate::clock::{self, Clock};
use crate::net::{Control, Origin};
use crate::plan::Plan;
use crate::record::Recorder;
use crate::store::Store;

/// The version of Redis whose commands a gateway has.
const REDIS_VERSION: &str = "7.2.4";
/// The largest number of connections whose clients have not authenticated and have to.
const UNAUTHENTICATED_MAX: usize = 128;
/// After which time a client that has to authenticate must have done so.
const LOGIN_TIME: Duration = Duration::from_secs(30);
/// The number of connections that a gateway without threads of its own says it serves.
const CONNECTIONS: usize = 10_000;

/// How a gateway is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The password of clients.
    pub password: PasswordSource,
    /// Whether a gateway without a password refuses clients that are not on this machine.
    pub protected_mode: bool,
    /// Whether `SLOWLOG` hides keys.
    pub redact_keys: bool,
    /// The number of copies of each record, for `INFO`, `WAIT` and the metrics.
    pub copies: u8,
    /// The port at which clients reach the gateway, for `INFO`.
    pub port: u16,
    /// The cluster, for the epoch that `INFO` answers.
    pub cluster: Option<Cluster>,
    /// The clock by which keys expire.
    pub clock: Clock,
    /// What records the commands, their answers, and the versions that they saw.
    pub recorder: Option<Recorder>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            password: PasswordSource::None,
            protected_mode: true,
            redact_keys: false,
            copies: 1,
            port: 0,
            cluster: None,
            clock: Clock::System,
            recorder: None,
        }
    }
}

/// What all connections of a gateway share.
#[derive(Debug)]
pub struct Server {
    pub(crate) store: Store,
    options: ServerOptions,
    logins: Logins,
    settings: Settings,
    pub(crate) clients: Arc<Registry>,
    pub(crate) pauses: Pauses,
    slow_log: SlowLog,
    census: Census,
    /// The counters of all threads, also of threads that have ended.
    counters: Mutex<Vec<Arc<Counters>>>,
    /// What was counted before `CONFIG RESETSTAT`.
    base: Mutex<Totals>,
    control: OnceLock<Control>,
    begun: Instant,
    run_id: String,
}

/// How a connection goes on after a command about it or the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum After {
    /// With the next command.
    Next,
    /// With the next command, but not in the same batch.
    EndBatch,
    /// The answer is held back for this time.
    Delay(Duration),
    /// The answer is sent, and the connection is closed.
    Close,
}

impl Server {
    /// Makes the server of a store. Fails if the password cannot be used.
    pub fn new(store: Store, options: ServerOptions) -> Result<Server, PasswordError> {
        let logins = Logins::new(options.password.clone())?;
        Ok(Server {
            store,
            options,
            logins,
            settings: Settings::default(),
            clients: Arc::default(),
            pauses: Pauses::default(),
            slow_log: SlowLog::default(),
            census: Census::default(),
            counters: Mutex::default(),
            base: Mutex::default(),
            control: OnceLock::new(),
            begun: clock::instant(),
            run_id: info::run_id(),
        })
    }

    /// Gives the server the handle of the gateway whose connections it has. With it, `CLIENT KILL`
    /// ends connections that are silent, and `CLIENT UNPAUSE` ends pauses at once. Only the first
    /// handle counts.
    pub fn set_control(&self, control: Control) {
        let _ = self.control.set(control);
    }

    /// Reads the password file again. If that fails, the former password stays.
    pub fn reload_password(&self) -> Result<(), PasswordError> {
        self.logins.reload()
    }

    /// Returns the metrics as Prometheus reads them.
    pub fn metrics(&self) -> String {
        info::metrics(self)
    }

    /// Returns whether clients have to authenticate.
    pub(crate) fn needs_password(&self) -> bool {
        self.logins.is_needed()
    }

    /// Returns the sizes of compact encodings.
    pub(crate) fn limits(&self) -> Limits {
        self.settings.limits()
    }

    /// Returns the clock by which keys expire.
    pub(crate) fn clock(&self) -> &Clock {
        &self.options.clock
    }

    /// Returns what records the commands, if there is a recorder.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.options.recorder.as_ref()
    }

    /// Whether new connections roll a failed `EXEC` back.
    pub(crate) fn rolls_back(&self) -> bool {
        self.settings.rolls_back()
    }

    /// Makes the counters of a thread.
    pub(crate) fn new_counters(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        locked(&self.counters).push(counters.clone());
        counters
    }

    /// Fails with the answer if a connection from there is refused.
    pub(crate) fn admit(&self, origin: &Origin) -> Result<(), Vec<u8>> {
        if !self.needs_password() {
            if self.options.protected_mode && !clients::canonical(&origin.peer).is_loopback() {
                return Err(b"-DENIED This gateway has no password and serves only clients on its own machine. Give \
                    it a password file, or turn protected mode off.\r\n"
                    .to_vec());
            }
        } else if self.clients.unauthenticated() >= UNAUTHENTICATED_MAX {
            return Err(b"-ERR max number of clients that have not authenticated reached\r\n".to_vec());
        }
        Ok(())
    }

    /// Returns whether to close a connection that has sent nothing for this time.
    pub(crate) fn is_overdue(&self, client: &Client, quiet: Duration) -> bool {
        !client.is_authenticated() && client.since.elapsed() >= LOGIN_TIME
            || self.settings.timeout().is_some_and(|timeout| quiet >= timeout)
    }

    /// Notes that a batch has taken this time.
    pub(crate) fn note(&self, local: &Local, peer: &Peer, plan: &Plan<'_>, took: Duration) {
        local.counters.ran(&plan.commands, plan.has_exec(), took);
        if self.settings.is_slow(took) {
            let name = peer.state.names.as_ref().map_or_else(Vec::new, |names| names.name.clone());
            let address = peer.client.peer.to_string();
            self.slow_log.add(&self.settings, plan, took, self.options.redact_keys, address, name);
        }
    }

    /// Counts keys on, if the arguments of `INFO` ask for them and the last count is old.
    pub(crate) async fn count_keys(&self, session: &mut Session) {
        self.census.take(&self.store, session).await;
    }

    fn connections_max(&self) -> usize {
        self.control.get().map_or(CONNECTIONS, Control::connections_max)
    }

    fn epoch(&self) -> u64 {
        self.options.cluster.as_ref().map_or(0, |cluster| cluster.catalog().epoch)
    }

    fn totals(&self) -> Totals {
        Totals::of(locked(&self.counters).iter().map(|counters| &**counters))
    }

    /// Returns what was counted since `CONFIG RESETSTAT`.
    fn totals_since_reset(&self) -> Totals {
        self.totals().since(&locked(&self.base))
    }

    fn kill(&self, kill: &Kill, me: u64) -> Vec<u64> {
        let killed = self.clients.kill(|client| kill.matches(client, me));
        if let Some(control) = self.control.get() {
            // A connection that kills itself still gets the answer.
            killed.iter().filter(|id| **id != me).for_each(|id| control.kill(*id));
        }
        killed
    }
}

/// Locks a mutex. A thread that has panicked has left a value that is still whole: all changes
/// under these locks are single steps.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether `INFO` has to count keys before it answers.
pub(crate) fn counts_keys(args: &[&[u8]]) -> bool {
    info::shows_keys(&args[1..])
}

/// Returns which replies `CLIENT REPLY` asks for.
pub(crate) fn replies_of(args: &[&[u8]]) -> Result<Replies, Error> {
    match args[2].to_ascii_lowercase().as_slice() {
        b"on" => Ok(Replies::On),
        b"off" => Ok(Replies::Off),
        b"skip" => Ok(Replies::Skip),
        _ => Err(Error::SYNTAX),
    }
}

const NO_CLUSTER: Error = Error::new("ERR This instance has cluster support disabled");

/// Runs a command about the connection or the server. Appends its reply to `out`.
pub(crate) fn run(
    server: &Server,
    peer: &mut Peer,
    local: &Local,
    command: &Command,
    args: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<After, Error> {
    let mut reply = ReplyWriter::new(out, peer.state.version);
    match command.name {
        "ping" if args.len() > 2 => return Err(Error::arity("ping")),
        "ping" => match args.get(1) {
            Some(text) => reply.bulk(text),
            None => reply.simple("PONG"),
        },
        "echo" => reply.bulk(args[1]),
        "select" => {
            let number = integer(args[1])?;
            if !(0..i64::from(DATABASES)).contains(&number) {
                return Err(Error::NO_SUCH_DATABASE);
            }
            peer.state.database = number as u8;
            reply.simple("OK");
        }
        "hello" => return login::hello(server, peer, local, args, out),
        "auth" => return login::auth(server, peer, local, args, out),
        "readonly" | "readwrite" | "asking" => return Err(NO_CLUSTER),
        "time" => {
            let time = clock::since_1970();
            reply.array(2);
            reply.bulk(time.as_secs().to_string());
            reply.bulk(time.subsec_micros().to_string());
        }
        "wait" => {
            integer(args[1])?;
            timeout_of(args[2])?;
            reply.integer(i64::from(server.options.copies.saturating_sub(1)));
        }
        "role" => {
            reply.array(3);
            reply.bulk("master");
            reply.integer(0);
            reply.array(0);
        }
        // Nothing is saved: as with Redis, it is then the time at which the server has started.
        "lastsave" => reply.integer(clock::since_1970().saturating_sub(server.begun.elapsed()).as_secs() as i64),
        "lolwut" => reply.verbatim(b"txt", format!("Redis ver. {REDIS_VERSION}\n")),
        "info" => reply.verbatim(b"txt", info::text(server, &args[1..])),
        "remora.rollback" => {
            peer.state.rolls_back = on_or_off(args[1])?;
            reply.simple("OK");
        }
        "command" => command::info(&[], &mut reply),
        name => return run_subcommand(server, peer, name, args, out),
    }
    Ok(After::Next)
}

fn run_subcommand(
    server: &Server,
    peer: &mut Peer,
    name: &str,
    args: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<After, Error> {
    let mut reply = ReplyWriter::new(out, peer.state.version);
    let Some((container, subcommand)) = name.split_once('|') else { return Err(cannot(name)) };
    match (container, subcommand) {
        ("cluster", _) => return Err(NO_CLUSTER),
        (_, "help") => help::write(container, &mut reply),
        ("client", subcommand) => return run_client(server, peer, subcommand, args, out),
        ("command", "count") => reply.integer(command::count()),
        ("command", "info") => command::info(&args[2..], &mut reply),
        ("command", "list") => command::list(&args[2..], &mut reply)?,
        ("command", "getkeys") => command::get_keys(&args[2..], false, &mut reply)?,
        ("command", "getkeysandflags") => command::get_keys(&args[2..], true, &mut reply)?,
        // Clients take an answer with some of the commands for one with all of them.
        ("command", "docs") => {
            return Err(Error::of([b"ERR unknown subcommand '", args[1], b"'. Try COMMAND HELP."].concat()));
        }
        ("config", "get") => config::get(server, &args[2..], &mut reply),
        ("config", "set") => {
            config::set(server, &args[2..])?;
            reply.simple("OK");
        }
        ("config", "resetstat") => {
            *locked(&server.base) = server.totals();
            reply.simple("OK");
        }
        ("config", "rewrite") => return Err(Error::new("ERR The server is running without a config file")),
        ("memory", "stats") => memory_stats(server, &mut reply),
        ("memory", "malloc-stats") => reply.bulk("Stats not supported for the current allocator"),
        ("memory", "doctor") => reply.verbatim(
            b"txt",
            "The values are in the memory nodes of the cluster. This process has connections and buffers only.\n",
        ),
        ("slowlog", "get") => {
            at_most(3, args)?;
            server.slow_log.get(slowlog::count_of(args.get(2))?, &mut reply);
        }
        ("slowlog", "len") => reply.integer(server.slow_log.len() as i64),
        ("slowlog", "reset") => {
            server.slow_log.clear();
            reply.simple("OK");
        }
        ("latency", "latest" | "history") | ("module", "list") => reply.array(0),
        ("latency", "reset") => reply.integer(0),
        ("latency", "graph") => {
            return Err(Error::of([b"ERR No samples available for event '", args[2], b"'"].concat()));
        }
        ("latency", "doctor") => {
            reply.verbatim(b"txt", "Latencies are in the metrics of the gateway, and in SLOWLOG.\n");
        }
        ("latency", "histogram") => reply.map(0),
        ("acl", "whoami") => reply.bulk("default"),
        ("acl", "users") => {
            reply.array(1);
            reply.bulk("default");
        }
        ("acl", "list") => {
            reply.array(1);
            reply.bulk(format!("user default on {}sanitize-payload ~* &* +@all", user_flag(server)));
        }
        ("acl", "getuser") => acl_user(server, args[2], &mut reply),
        ("acl", "cat") => {
            at_most(3, args)?;
            acl_categories(args.get(2).copied(), &mut reply)?;
        }
        ("script", "flush") => {
            let is_option = |word: &&[u8]| word.eq_ignore_ascii_case(b"sync") || word.eq_ignore_ascii_case(b"async");
            if args.len() > 3 || !args[2..].iter().all(is_option) {
                return Err(Error::new("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
            }
            reply.simple("OK");
        }
        ("function", "flush") => {
            at_most(3, args)?;
            let is_option = |word: &&[u8]| word.eq_ignore_ascii_case(b"sync") || word.eq_ignore_ascii_case(b"async");
            if !args[2..].iter().all(is_option) {
                return Err(Error::new("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"));
            }
            reply.simple("OK");
        }
        _ => return Err(cannot(name)),
    }
    Ok(After::Next)
}

fn run_client(
    server: &Server,
    peer: &mut Peer,
    subcommand: &str,
    args: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<After, Error> {
    let mut reply = ReplyWriter::new(out, peer.state.version);
    let client = &peer.client;
    match subcommand {
        "id" => reply.integer(client.id as i64),
        "info" => {
            let mut line = Vec::new();
            client.describe(&mut line);
            reply.verbatim(b"txt", line);
        }
        "list" => reply.verbatim(b"txt", client_list(server, &args[2..])?),
        "getname" => match peer.state.names.as_ref().filter(|names| !names.name.is_empty()) {
            Some(names) => reply.bulk(&names.name),
            None => reply.null(),
        },
        "setname" => {
            clients::check_name(b"Client names", args[2])?;
            reply.simple("OK");
            peer.set_names(|names| names.name = args[2].to_vec());
        }
        "setinfo" => {
            let what = args[2].to_ascii_lowercase();
            if !matches!(what.as_slice(), b"lib-name" | b"lib-ver") {
                return Err(Error::of([b"ERR Unrecognized option '", args[2], b"'"].concat()));
            }
            clients::check_name(args[2], args[3])?;
            reply.simple("OK");
            peer.set_names(|names| match what.as_slice() {
                b"lib-name" => names.library = args[3].to_vec(),
                _ => names.library_version = args[3].to_vec(),
            });
        }
        "kill" => {
            let kill = Kill::parse(&args[2..])?;
            let me = client.id;
            let killed = server.kill(&kill, me);
            match (kill.is_old, killed.len()) {
                (true, 0) => return Err(Error::new("ERR No such client")),
                (true, _) => reply.simple("OK"),
                (false, count) => reply.integer(count as i64),
            }
            return Ok(if killed.contains(&me) { After::Close } else { After::Next });
        }
        "no-evict" => {
            client.set_kept(on_or_off(args[2])?);
            reply.simple("OK");
        }
        "no-touch" => {
            client.set_untouching(on_or_off(args[2])?);
            reply.simple("OK");
        }
        "pause" => {
            at_most(4, args)?;
            let is_all = match args.get(3).map(|mode| mode.to_ascii_lowercase()).as_deref() {
                None | Some(b"all") => true,
                Some(b"write") => false,
                Some(_) => return Err(Error::new("ERR CLIENT PAUSE mode must be WRITE or ALL")),
            };
            server.pauses.begin(timeout_of(args[2])?, is_all);
            reply.simple("OK");
            return Ok(After::EndBatch);
        }
        "unpause" => {
            server.pauses.end();
            if let Some(control) = server.control.get() {
                control.wake_all();
            }
            reply.simple("OK");
        }
        "unblock" => {
            at_most(4, args)?;
            let is_reason = |word: &&[u8]| word.eq_ignore_ascii_case(b"timeout") || word.eq_ignore_ascii_case(b"error");
            if !args[3..].iter().all(is_reason) {
                return Err(Error::new("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
            }
            // No command blocks.
            integer(args[2])?;
            reply.integer(0);
        }
        "getredir" => reply.integer(-1),
        "trackinginfo" => {
            reply.map(3);
            reply.bulk("flags");
            reply.set(1);
            reply.bulk("off");
            reply.bulk("redirect");
            reply.integer(-1);
            reply.bulk("prefixes");
            reply.array(0);
        }
        other => return Err(cannot(other)),
    }
    Ok(After::Next)
}

fn client_list(server: &Server, args: &[&[u8]]) -> Result<Vec<u8>, Error> {
    match args {
        [] => Ok(server.clients.list(|_| true)),
        [option, kind] if option.eq_ignore_ascii_case(b"type") => {
            let is_normal = clients::is_normal(kind)?;
            Ok(server.clients.list(|_| is_normal))
        }
        [option, ids @ ..] if option.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
            let id_of = |text: &&[u8]| number::parse_integer(text).ok_or(Error::new("ERR Invalid client ID"));
            let ids = ids.iter().map(id_of).collect::<Result<Vec<_>, _>>()?;
            let line = |id: &i64| server.clients.list(|client| client.id as i64 == *id);
            Ok(ids.iter().flat_map(line).collect())
        }
        _ => Err(Error::SYNTAX),
    }
}

fn memory_stats(server: &Server, reply: &mut ReplyWriter<'_>) {
    let (used, peak) = info::memory();
    let keys = server.census.len();
    let numbers = [
        ("peak.allocated", peak),
        ("total.allocated", used),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", (server.clients.len() * size_of::<Client>()) as u64),
        ("cluster.links", 0),
        ("aof.buffer", 0),
        ("lua.caches", 0),
        ("functions.caches", 0),
        ("keys.count", keys),
    ];
    reply.map(numbers.len() + 1);
    for (name, number) in numbers {
        reply.bulk(name);
        reply.integer(i64::try_from(number).unwrap_or(i64::MAX));
    }
    reply.bulk("peak.percentage");
    reply.double(if peak == 0 { 0.0 } else { used as f64 * 100.0 / peak as f64 });
}

/// The categories of access control, in Redis' order.
const CATEGORIES: &[&str] = &[
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

fn acl_categories(category: Option<&[u8]>, reply: &mut ReplyWriter<'_>) -> Result<(), Error> {
    let names = match category {
        None => CATEGORIES.to_vec(),
        Some(category) if CATEGORIES.iter().any(|name| name.as_bytes().eq_ignore_ascii_case(category)) => {
            command::in_category(category)
        }
        Some(category) => return Err(Error::of([b"ERR Unknown category '", category, b"'"].concat())),
    };
    reply.array(names.len());
    names.iter().for_each(|name| reply.bulk(name));
    Ok(())
}

/// Returns what `ACL LIST` says of the user's password. The hash of a password is not shown.
fn user_flag(server: &Server) -> &'static str {
    if server.needs_password() { "" } else { "nopass " }
}

fn acl_user(server: &Server, name: &[u8], reply: &mut ReplyWriter<'_>) {
    if name != b"default" {
        return reply.null();
    }
    let flags: &[&str] =
        if server.needs_password() { &["on", "sanitize-payload"] } else { &["on", "nopass", "sanitize-payload"] };
    reply.map(6);
    reply.bulk("flags");
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag));
    reply.bulk("passwords");
    reply.array(0);
    for (name, value) in [("commands", "+@all"), ("keys", "~*"), ("channels", "&*")] {
        reply.bulk(name);
        reply.bulk(value);
    }
    reply.bulk("selectors");
    reply.array(0);
}

fn on_or_off(word: &[u8]) -> Result<bool, Error> {
    match word.to_ascii_lowercase().as_slice() {
        b"on" => Ok(true),
        b"off" => Ok(false),
        _ => Err(Error::SYNTAX),
    }
}

/// Returns a number of milliseconds.
fn timeout_of(argument: &[u8]) -> Result<u64, Error> {
    let millis = number::parse_integer(argument);
    let millis = millis.ok_or(Error::new("ERR timeout is not an integer or out of range"))?;
    u64::try_from(millis).map_err(|_| Error::new("ERR timeout is negative"))
}

/// Fails if a subcommand has more arguments than this.
fn at_most(count: usize, args: &[&[u8]]) -> Result<(), Error> {
    if args.len() <= count {
        return Ok(());
    }
    let container = String::from_utf8_lossy(args[0]).to_ascii_uppercase();
    let subcommand = String::from_utf8_lossy(args[1]);
    Err(Error::of(format!(
        "ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try {container} HELP."
    )))
}

/// Returns the error of a command that does not run here: it runs alone, so not behind `MULTI`.
fn cannot(name: &str) -> Error {
    let name = name.to_ascii_uppercase();
    Error::of(format!("ERR {name} cannot run in MULTI"))
}
