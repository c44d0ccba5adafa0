//! What all connections of a gateway share, and the commands about it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_redis::call::integer;
use remora_redis::command::DATABASES;
use remora_redis::{Command, Error, Limits};
use remora_resp::{ReplyWriter, Version};

use crate::connection::{Connection, Replies};
use crate::store::Store;

/// What all connections of a gateway share.
#[derive(Debug)]
pub struct Server {
    pub(crate) store: Store,
    password: Option<Vec<u8>>,
    limits: Mutex<Limits>,
    commands: AtomicU64,
}

impl Server {
    /// Makes the server of a store.
    pub fn new(store: Store, password: Option<Vec<u8>>) -> Server {
        Server { store, password, limits: Mutex::new(Limits::default()), commands: AtomicU64::new(0) }
    }

    /// Returns whether clients have to authenticate.
    pub(crate) fn needs_password(&self) -> bool {
        self.password.is_some()
    }

    /// Returns the sizes of compact encodings.
    pub(crate) fn limits(&self) -> Limits {
        *self.limits.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Counts a command.
    pub(crate) fn count(&self, _args: &[&[u8]]) {
        self.commands.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the error of a command before the client has authenticated.
pub(crate) fn no_auth(_command: &Command) -> Error {
    Error::new("NOAUTH Authentication required.")
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

/// Runs a command about the connection or the server. Appends its reply to `out`.
pub(crate) fn run(
    server: &Server,
    connection: &mut Connection,
    command: &Command,
    args: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let state = &mut connection.state;
    let mut reply = ReplyWriter::new(out, state.version);
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
            state.database = number as u8;
            reply.simple("OK");
        }
        "hello" => return hello(server, connection, args, out),
        name => return Err(Error::of(format!("ERR {name} is not built"))),
    }
    Ok(())
}

fn hello(_server: &Server, connection: &mut Connection, args: &[&[u8]], out: &mut Vec<u8>) -> Result<(), Error> {
    if let Some(version) = args.get(1) {
        connection.state.version = match *version {
            b"2" => Version::Resp2,
            b"3" => Version::Resp3,
            _ => return Err(Error::new("NOPROTO unsupported protocol version")),
        };
    }
    let version = connection.state.version;
    let mut reply = ReplyWriter::new(out, version);
    reply.map(7);
    for (name, value) in [("server", "redis"), ("version", "7.2.4")] {
        reply.bulk(name);
        reply.bulk(value);
    }
    reply.bulk("proto");
    reply.integer(if version == Version::Resp3 { 3 } else { 2 });
    reply.bulk("id");
    reply.integer(connection.id as i64);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(name);
        reply.bulk(value);
    }
    reply.bulk("modules");
    reply.array(0);
    Ok(())
}
