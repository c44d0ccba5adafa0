//! The table of all commands, and what finds them by name.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use crate::command::{Command, Keys, Run};
use crate::commands;
use crate::error::Error;

/// A command that only has subcommands.
#[derive(Clone, Copy, Debug)]
pub struct Container {
    /// The name in small letters.
    pub name: &'static str,
    /// As of a command.
    pub arity: i64,
    /// As of a command.
    pub flags: &'static [&'static str],
    /// As of a command.
    pub categories: &'static [&'static str],
}

/// The commands that have subcommands.
pub const CONTAINERS: &[Container] = &[
    Container { name: "client", arity: -2, flags: &[], categories: &["slow"] },
    Container { name: "command", arity: -1, flags: &["loading", "stale"], categories: &["slow", "connection"] },
    Container { name: "config", arity: -2, flags: &[], categories: &["slow"] },
    Container { name: "memory", arity: -2, flags: &[], categories: &["slow"] },
    Container { name: "object", arity: -2, flags: &[], categories: &["slow"] },
    Container { name: "slowlog", arity: -2, flags: &[], categories: &["slow"] },
    Container { name: "latency", arity: -2, flags: &[], categories: &["slow"] },
    Container { name: "acl", arity: -2, flags: &[], categories: &["slow"] },
    Container { name: "module", arity: -2, flags: &[], categories: &["slow"] },
    Container { name: "script", arity: -2, flags: &[], categories: &["slow"] },
    Container { name: "function", arity: -2, flags: &[], categories: &["slow"] },
    Container { name: "cluster", arity: -2, flags: &[], categories: &["slow"] },
];

/// The commands that the gateway runs.
const ELSEWHERE: &[Command] = &[
    Command {
        name: "command",
        arity: -1,
        flags: &["loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "hello",
        arity: -1,
        flags: &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"],
        categories: &["fast", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "auth",
        arity: -2,
        flags: &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"],
        categories: &["fast", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "select",
        arity: 2,
        flags: &["loading", "stale", "fast"],
        categories: &["fast", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "ping",
        arity: -1,
        flags: &["fast"],
        categories: &["fast", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "echo",
        arity: 2,
        flags: &["loading", "stale", "fast"],
        categories: &["fast", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "quit",
        arity: -1,
        flags: &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"],
        categories: &["fast", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "reset",
        arity: 1,
        flags: &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"],
        categories: &["fast", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "dbsize",
        arity: 1,
        flags: &["readonly", "fast"],
        categories: &["keyspace", "read", "fast"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "flushdb",
        arity: -1,
        flags: &["write"],
        categories: &["keyspace", "write", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "flushall",
        arity: -1,
        flags: &["write"],
        categories: &["keyspace", "write", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "time",
        arity: 1,
        flags: &["loading", "stale", "fast"],
        categories: &["fast"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "wait",
        arity: 3,
        flags: &["noscript"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "role",
        arity: 1,
        flags: &["noscript", "loading", "stale", "fast"],
        categories: &["admin", "fast", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "lastsave",
        arity: 1,
        flags: &["loading", "stale", "fast"],
        categories: &["admin", "fast", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "lolwut",
        arity: -1,
        flags: &["readonly", "fast"],
        categories: &["read", "fast"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "multi",
        arity: 1,
        flags: &["noscript", "loading", "stale", "fast", "allow_busy"],
        categories: &["fast", "transaction"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "exec",
        arity: 1,
        flags: &["noscript", "loading", "stale", "skip_slowlog"],
        categories: &["slow", "transaction"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "discard",
        arity: 1,
        flags: &["noscript", "loading", "stale", "fast", "allow_busy"],
        categories: &["fast", "transaction"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "watch",
        arity: -2,
        flags: &["noscript", "loading", "stale", "fast", "allow_busy"],
        categories: &["fast", "transaction"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Elsewhere,
    },
    Command {
        name: "unwatch",
        arity: 1,
        flags: &["noscript", "loading", "stale", "fast", "allow_busy"],
        categories: &["fast", "transaction"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "scan",
        arity: -2,
        flags: &["readonly"],
        categories: &["keyspace", "read", "slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "keys",
        arity: 2,
        flags: &["readonly"],
        categories: &["keyspace", "read", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "randomkey",
        arity: 1,
        flags: &["readonly"],
        categories: &["keyspace", "read", "slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "info",
        arity: -1,
        flags: &["loading", "stale"],
        categories: &["slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "readonly",
        arity: 1,
        flags: &["loading", "stale", "fast"],
        categories: &["fast", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "readwrite",
        arity: 1,
        flags: &["loading", "stale", "fast"],
        categories: &["fast", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "asking",
        arity: 1,
        flags: &["fast"],
        categories: &["fast", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|id",
        arity: 2,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|setname",
        arity: 3,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|getname",
        arity: 2,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|info",
        arity: 2,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|list",
        arity: -2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|kill",
        arity: -3,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|reply",
        arity: 3,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|no-evict",
        arity: 3,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|pause",
        arity: -3,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|unpause",
        arity: 2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|unblock",
        arity: -3,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|getredir",
        arity: 2,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|trackinginfo",
        arity: 2,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "command|count",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "command|info",
        arity: -2,
        flags: &["loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "command|list",
        arity: -2,
        flags: &["loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "command|docs",
        arity: -2,
        flags: &["loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "command|getkeys",
        arity: -4,
        flags: &["loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "command|getkeysandflags",
        arity: -4,
        flags: &["loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "command|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "config|get",
        arity: -3,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "config|set",
        arity: -4,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "config|resetstat",
        arity: 2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "config|rewrite",
        arity: 2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "config|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "memory|stats",
        arity: 2,
        flags: &[],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "memory|malloc-stats",
        arity: 2,
        flags: &[],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "memory|doctor",
        arity: 2,
        flags: &[],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "memory|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "object|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["keyspace", "slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "slowlog|get",
        arity: -2,
        flags: &["admin", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "slowlog|len",
        arity: 2,
        flags: &["admin", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "slowlog|reset",
        arity: 2,
        flags: &["admin", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "slowlog|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "latency|latest",
        arity: 2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "latency|history",
        arity: 3,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "latency|reset",
        arity: -2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "latency|doctor",
        arity: 2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "latency|graph",
        arity: 3,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "latency|histogram",
        arity: -2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "latency|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "acl|whoami",
        arity: 2,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "acl|list",
        arity: 2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "acl|getuser",
        arity: 3,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "acl|cat",
        arity: -2,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "acl|users",
        arity: 2,
        flags: &["admin", "noscript", "loading", "stale"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "acl|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "module|list",
        arity: 2,
        flags: &["admin", "noscript"],
        categories: &["admin", "slow", "dangerous"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "module|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "script|flush",
        arity: -2,
        flags: &["noscript"],
        categories: &["slow", "scripting"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "script|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow", "scripting"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "function|flush",
        arity: -2,
        flags: &["write", "noscript"],
        categories: &["write", "slow", "scripting"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "function|help",
        arity: 2,
        flags: &["loading", "stale"],
        categories: &["slow", "scripting"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|setinfo",
        arity: 4,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "client|no-touch",
        arity: 3,
        flags: &["noscript", "loading", "stale"],
        categories: &["slow", "connection"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
];

/// The subcommands of `CLUSTER`. All are refused.
const CLUSTER: &[Command] = &[
    subcommand_of_cluster("cluster|addslots", -3),
    subcommand_of_cluster("cluster|addslotsrange", -4),
    subcommand_of_cluster("cluster|bumpepoch", 2),
    subcommand_of_cluster("cluster|count-failure-reports", 3),
    subcommand_of_cluster("cluster|countkeysinslot", 3),
    subcommand_of_cluster("cluster|delslots", -3),
    subcommand_of_cluster("cluster|delslotsrange", -4),
    subcommand_of_cluster("cluster|failover", -2),
    subcommand_of_cluster("cluster|flushslots", 2),
    subcommand_of_cluster("cluster|forget", 3),
    subcommand_of_cluster("cluster|getkeysinslot", 4),
    subcommand_of_cluster("cluster|help", 2),
    subcommand_of_cluster("cluster|info", 2),
    subcommand_of_cluster("cluster|keyslot", 3),
    subcommand_of_cluster("cluster|links", 2),
    subcommand_of_cluster("cluster|meet", -4),
    subcommand_of_cluster("cluster|myid", 2),
    subcommand_of_cluster("cluster|nodes", 2),
    subcommand_of_cluster("cluster|replicas", 3),
    subcommand_of_cluster("cluster|replicate", 3),
    subcommand_of_cluster("cluster|reset", -2),
    subcommand_of_cluster("cluster|saveconfig", 2),
    subcommand_of_cluster("cluster|set-config-epoch", 3),
    subcommand_of_cluster("cluster|setslot", -4),
    subcommand_of_cluster("cluster|shards", 2),
    subcommand_of_cluster("cluster|slaves", 3),
    subcommand_of_cluster("cluster|slots", 2),
    subcommand_of_cluster("cluster|myshardid", 2),
];

const fn subcommand_of_cluster(name: &'static str, arity: i64) -> Command {
    Command { name, arity, flags: &["stale"], categories: &["slow"], keys: Keys::None, run: Run::Elsewhere }
}

/// The commands that Redis does not have.
const OWN: &[Command] = &[
    Command {
        name: "remora.once",
        arity: -2,
        flags: &["noscript", "loading", "stale", "fast"],
        categories: &["fast", "transaction"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "remora.resolve",
        arity: 2,
        flags: &["noscript"],
        categories: &["slow", "transaction"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
    Command {
        name: "remora.rollback",
        arity: 2,
        flags: &["noscript", "loading", "stale", "fast"],
        categories: &["fast", "transaction"],
        keys: Keys::None,
        run: Run::Elsewhere,
    },
];

/// All commands and subcommands. A command's place here is its number.
static ALL: LazyLock<Vec<Command>> = LazyLock::new(|| {
    let groups = [
        ELSEWHERE,
        CLUSTER,
        OWN,
        commands::keys::COMMANDS,
        commands::strings::COMMANDS,
        commands::hashes::COMMANDS,
        commands::lists::COMMANDS,
        commands::sets::COMMANDS,
        commands::sorted_sets::COMMANDS,
    ];
    groups.into_iter().flatten().copied().collect()
});

/// Returns all commands and subcommands, in the order of their numbers.
pub fn all() -> std::slice::Iter<'static, Command> {
    ALL.iter()
}

/// Returns the number of a command that [`find`] or [`all`] has returned: its place in [`all`].
/// Returns `None` for any other.
pub fn number_of(command: &'static Command) -> Option<usize> {
    // The address says it, so that counting a call costs no look-up.
    let offset = (std::ptr::from_ref(command) as usize).checked_sub(ALL.as_ptr() as usize)?;
    Some(offset / size_of::<Command>()).filter(|number| *number < ALL.len())
}

static BY_NAME: LazyLock<FxHashMap<&[u8], &Command>> =
    LazyLock::new(|| all().map(|command| (command.name.as_bytes(), command)).collect());

/// Bytes of the longest name of a command, at least.
const NAME_BYTES: usize = 32;

/// Returns the command of a call. Fails, in Redis' words, if there is no such command or
/// subcommand. Does not look at the number of arguments, but that a command has the subcommand that
/// it needs.
pub fn find(args: &[&[u8]]) -> Result<&'static Command, Error> {
    let by_name = &*BY_NAME;
    let mut small = [0; NAME_BYTES];
    let Some(name) = small.get_mut(..args[0].len()) else { return Err(unknown(args)) };
    name.copy_from_slice(args[0]);
    name.make_ascii_lowercase();
    let name = &*name;
    let is_whole = name != b"command" && !name.contains(&b'|');
    if let Some(command) = by_name.get(name).filter(|_| is_whole) {
        return Ok(command);
    }
    if let Some(container) = CONTAINERS.iter().find(|container| container.name.as_bytes() == name) {
        if let Some(subcommand) = args.get(1) {
            let full = [name, b"|", &subcommand.to_ascii_lowercase()].concat();
            return by_name.get(full.as_slice()).copied().ok_or_else(|| unknown_subcommand(container, subcommand));
        }
        return by_name.get(name).copied().ok_or_else(|| Error::arity(container.name));
    }
    Err(unknown(args))
}

/// Bytes of a name, and of all quoted arguments together, that an error quotes.
const QUOTED_BYTES: usize = 128;

fn unknown(args: &[&[u8]]) -> Error {
    let cut = |text: &[u8]| text[..text.len().min(QUOTED_BYTES)].to_vec();
    let mut quoted = Vec::new();
    for argument in &args[1..] {
        if quoted.len() >= QUOTED_BYTES {
            break;
        }
        let left = QUOTED_BYTES - quoted.len();
        quoted.extend([b"'", &argument[..argument.len().min(left)], b"' "].concat());
    }
    Error::of([b"ERR unknown command '", &*cut(args[0]), b"', with args beginning with: ", &quoted].concat())
}

fn unknown_subcommand(container: &Container, subcommand: &[u8]) -> Error {
    let cut = &subcommand[..subcommand.len().min(QUOTED_BYTES)];
    let help = format!("'. Try {} HELP.", container.name.to_ascii_uppercase());
    Error::of([b"ERR unknown subcommand '", cut, help.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_command_is_its_place() {
        for (place, command) in all().enumerate() {
            assert_eq!(number_of(command), Some(place), "{}", command.name);
            let found = match command.name.split_once('|') {
                Some((container, subcommand)) => find(&[container.as_bytes(), subcommand.as_bytes()]),
                None => find(&[command.name.as_bytes()]),
            };
            assert_eq!(found.ok().and_then(number_of), Some(place), "{}", command.name);
        }
        static OTHER: Command = OWN[0];
        assert_eq!(number_of(&OTHER), None);
    }
}
