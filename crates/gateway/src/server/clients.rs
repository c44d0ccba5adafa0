//! The connections of a gateway, as all of them see each other: `CLIENT`.
//!
//! Each connection has a [`Client`], which its own thread writes and others read. The numbers are
//! atomics and are written once for each batch.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use remora_redis::{Command, Error, table};
use remora_resp::{Version, number};

use super::locked;
use crate::clock;
use crate::net::Origin;

/// What others see of a connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    local: SocketAddr,
    pub(crate) since: Instant,
    registry: Arc<Registry>,
    /// When the connection was served last, in milliseconds after `since`.
    active: AtomicU64,
    database: AtomicU8,
    version: AtomicU8,
    /// The number of commands that `MULTI` has queued, or -1.
    queued: AtomicI64,
    /// The number of the last command.
    command: AtomicU32,
    is_killed: AtomicBool,
    is_waiting: AtomicBool,
    is_kept: AtomicBool,
    is_untouching: AtomicBool,
    is_authenticated: AtomicBool,
    names: Mutex<Option<Arc<Names>>>,
}

/// How a client has named itself, and the library that it uses.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Names {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    clients: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Connections whose clients have not authenticated and have to.
    unauthenticated: AtomicUsize,
}

/// The place of a connection in the registry. The connection has it, and leaves with it.
#[derive(Debug)]
pub(crate) struct Entry(Arc<Client>);

impl std::ops::Deref for Entry {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.set_authenticated(true);
        locked(&self.registry.clients).remove(&self.id);
    }
}

impl Registry {
    pub(crate) fn enter(self: &Arc<Registry>, origin: &Origin, is_authenticated: bool) -> Entry {
        let client = Arc::new(Client {
            id: origin.id,
            peer: origin.peer,
            local: origin.local,
            since: clock::instant(),
            registry: self.clone(),
            active: AtomicU64::new(0),
            database: AtomicU8::new(0),
            version: AtomicU8::new(2),
            queued: AtomicI64::new(-1),
            command: AtomicU32::new(u32::MAX),
            is_killed: AtomicBool::new(false),
            is_waiting: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            is_untouching: AtomicBool::new(false),
            is_authenticated: AtomicBool::new(true),
            names: Mutex::new(None),
        });
        client.set_authenticated(is_authenticated);
        locked(&self.clients).insert(origin.id, client.clone());
        Entry(client)
    }

    /// Returns the number of connections whose clients have not authenticated and have to.
    pub(crate) fn unauthenticated(&self) -> usize {
        self.unauthenticated.load(Ordering::Relaxed)
    }

    pub(super) fn len(&self) -> usize {
        locked(&self.clients).len()
    }

    /// Returns the number of connections that wait for the end of a pause.
    pub(super) fn waiting(&self) -> usize {
        locked(&self.clients).values().filter(|client| client.is_waiting.load(Ordering::Relaxed)).count()
    }

    /// Marks the connections that `matches` as killed. Returns their numbers.
    pub(super) fn kill(&self, matches: impl Fn(&Client) -> bool) -> Vec<u64> {
        let clients = locked(&self.clients);
        let killed = clients.values().filter(|client| matches(client) && !client.is_killed());
        killed.inspect(|client| client.is_killed.store(true, Ordering::Release)).map(|client| client.id).collect()
    }

    /// Returns the lines of `CLIENT LIST`.
    pub(super) fn list(&self, takes: impl Fn(&Client) -> bool) -> Vec<u8> {
        let mut lines = Vec::new();
        locked(&self.clients).values().filter(|client| takes(client)).for_each(|client| client.describe(&mut lines));
        lines
    }
}

impl Client {
    /// Says how the connection stands. Its own thread calls this, once for each batch.
    pub(crate) fn publish(&self, now: Instant, database: u8, version: Version, queued: Option<usize>) {
        let active = now.saturating_duration_since(self.since).as_millis() as u64;
        self.active.store(active, Ordering::Relaxed);
        self.database.store(database, Ordering::Relaxed);
        self.version.store(if version == Version::Resp3 { 3 } else { 2 }, Ordering::Relaxed);
        self.queued.store(queued.map_or(-1, |queued| queued as i64), Ordering::Relaxed);
    }

    /// Says which command the connection has sent last.
    pub(crate) fn set_command(&self, number: usize) {
        self.command.store(number as u32, Ordering::Relaxed);
    }

    /// Says whether the connection waits for the end of a pause.
    pub(crate) fn set_waiting(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::Relaxed);
    }

    /// Says whether the client has authenticated, or does not have to.
    pub(crate) fn set_authenticated(&self, is_authenticated: bool) {
        // Only the connection's own thread calls this, so the number follows the changes.
        if self.is_authenticated.swap(is_authenticated, Ordering::Relaxed) != is_authenticated {
            let count = &self.registry.unauthenticated;
            if is_authenticated {
                count.fetch_sub(1, Ordering::Relaxed);
            } else {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether the client has authenticated, or does not have to.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Whether `CLIENT KILL` has named the connection.
    pub(crate) fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Acquire)
    }

    /// Sets the names that others see.
    pub(crate) fn set_names(&self, names: Option<Arc<Names>>) {
        *locked(&self.names) = names;
    }

    pub(super) fn set_kept(&self, is_kept: bool) {
        self.is_kept.store(is_kept, Ordering::Relaxed);
    }

    pub(super) fn set_untouching(&self, is_untouching: bool) {
        self.is_untouching.store(is_untouching, Ordering::Relaxed);
    }

    /// Forgets what `RESET` forgets.
    pub(crate) fn reset(&self) {
        self.set_kept(false);
        self.set_untouching(false);
    }

    /// Appends the line of the connection in `CLIENT LIST`.
    pub(super) fn describe(&self, out: &mut Vec<u8>) {
        let names = locked(&self.names).clone().unwrap_or_default();
        let age = self.since.elapsed();
        let idle = age.saturating_sub(Duration::from_millis(self.active.load(Ordering::Relaxed)));
        let queued = self.queued.load(Ordering::Relaxed);
        let mut flags = String::new();
        for (letter, is_set) in [
            ('x', queued >= 0),
            ('b', self.is_waiting.load(Ordering::Relaxed)),
            ('A', self.is_killed()),
            ('e', self.is_kept.load(Ordering::Relaxed)),
            ('T', self.is_untouching.load(Ordering::Relaxed)),
        ] {
            flags.extend(is_set.then_some(letter));
        }
        if flags.is_empty() {
            flags.push('N');
        }
        let command = table::all().as_slice().get(self.command.load(Ordering::Relaxed) as usize);
        let mut line = String::new();
        let Client { id, peer, local, .. } = self;
        let _ = write!(line, "id={id} addr={peer} laddr={local} fd=-1 name=");
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(&names.name);
        line.clear();
        let (database, version) = (self.database.load(Ordering::Relaxed), self.version.load(Ordering::Relaxed));
        let (age, idle) = (age.as_secs(), idle.as_secs());
        let command = command.map_or("NULL", |command| command.name);
        let _ = write!(
            line,
            " age={age} idle={idle} flags={flags} db={database} sub=0 psub=0 ssub=0 multi={queued} qbuf=0 qbuf-free=0 \
             argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem={} events=r cmd={command} user=default \
             redir=-1 resp={version} lib-name=",
            size_of::<Client>(),
        );
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(&names.library);
        out.extend_from_slice(b" lib-ver=");
        out.extend_from_slice(&names.library_version);
        out.push(b'\n');
    }
}

/// Which connections `CLIENT KILL` ends.
#[derive(Debug, Default)]
pub(super) struct Kill {
    id: Option<u64>,
    peer: Option<Vec<u8>>,
    local: Option<Vec<u8>>,
    /// Whether the type is one that no connection has.
    is_other_type: bool,
    /// Whether the connection that asks is spared.
    skips_me: bool,
    /// Whether the command has the old form, with one address.
    pub(super) is_old: bool,
}

impl Kill {
    /// Reads the arguments of `CLIENT KILL`.
    pub(super) fn parse(args: &[&[u8]]) -> Result<Kill, Error> {
        if let [address] = args {
            return Ok(Kill { peer: Some(address.to_vec()), is_old: true, ..Kill::default() });
        }
        let mut kill = Kill { skips_me: true, ..Kill::default() };
        for option in args.chunks(2) {
            let [name, value] = option else { return Err(Error::SYNTAX) };
            match name.to_ascii_lowercase().as_slice() {
                b"id" => {
                    let id = number::parse_integer(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
                    kill.id = Some(id.ok_or(Error::new("ERR client-id should be greater than 0"))?);
                }
                b"type" => kill.is_other_type = !is_normal(value)?,
                b"addr" => kill.peer = Some(value.to_vec()),
                b"laddr" => kill.local = Some(value.to_vec()),
                b"user" if *value == b"default" => {}
                b"user" => return Err(Error::of([b"ERR No such user '", *value, b"'"].concat())),
                b"skipme" => {
                    kill.skips_me = match value.to_ascii_lowercase().as_slice() {
                        b"yes" => true,
                        b"no" => false,
                        _ => return Err(Error::SYNTAX),
                    }
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(kill)
    }

    pub(super) fn matches(&self, client: &Client, me: u64) -> bool {
        let is = |wanted: &Option<Vec<u8>>, address: SocketAddr| {
            wanted.as_ref().is_none_or(|wanted| *wanted == address.to_string().as_bytes())
        };
        self.id.is_none_or(|id| id == client.id)
            && !self.is_other_type
            && !(self.skips_me && client.id == me)
            && is(&self.peer, client.peer)
            && is(&self.local, client.local)
    }
}

/// Returns whether a type of connections is the one that all have. Fails if there is no such type.
pub(super) fn is_normal(kind: &[u8]) -> Result<bool, Error> {
    match kind.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(true),
        b"slave" | b"replica" | b"pubsub" | b"master" => Ok(false),
        _ => Err(Error::of([b"ERR Unknown client type '", kind, b"'"].concat())),
    }
}

/// Fails if a name has a blank or another character that cannot stand in `CLIENT LIST`.
pub(super) fn check_name(what: &[u8], name: &[u8]) -> Result<(), Error> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(());
    }
    Err(Error::of([b"ERR ", what, b" cannot contain spaces, newlines or special characters."].concat()))
}

/// `CLIENT PAUSE`: until when which commands wait.
#[derive(Debug)]
pub(crate) struct Pauses {
    begun: Instant,
    /// Milliseconds after `begun`, and whether all commands wait, in the last bit. 0: none.
    until: AtomicU64,
}

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses { begun: clock::instant(), until: AtomicU64::new(0) }
    }
}

impl Pauses {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// Begins a pause. If there is one, the longer end and the wider kind count.
    pub(super) fn begin(&self, millis: u64, is_all: bool) {
        let now = self.now();
        let until = now.saturating_add(millis).min(u64::MAX >> 1);
        let update = |former: u64| {
            let former = if former >> 1 > now { former } else { 0 };
            Some(until.max(former >> 1) << 1 | former & 1 | u64::from(is_all))
        };
        let _ = self.until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
    }

    pub(super) fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Returns for how long all commands wait, or the ones that write.
    pub(crate) fn left(&self, is_write: bool) -> Option<Duration> {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 || until & 1 == 0 && !is_write {
            return None;
        }
        let left = (until >> 1).saturating_sub(self.now());
        (left > 0).then(|| Duration::from_millis(left))
    }

    /// Returns for how long a command waits. `queues_write` says whether it is an `EXEC` behind
    /// which a command writes.
    pub(crate) fn left_for(&self, command: &Command, queues_write: bool) -> Option<Duration> {
        if self.until.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.left(command.has("write") || command.name == "exec" && queues_write)
    }
}

/// Returns the address that counts as one client: IPv4 in IPv6 is IPv4.
pub(super) fn canonical(address: &SocketAddr) -> IpAddr {
    address.ip().to_canonical()
}
