//! `CONFIG`: what can be set while the gateway runs, and what clients ask for.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use remora_redis::{Error, Limits};
use remora_resp::{ReplyWriter, glob, number};

use super::Server;

/// What can be set. Each number is an atomic, because threads read them for every batch.
#[derive(Debug)]
pub(super) struct Settings([AtomicI64; SETTINGS]);

/// The numbers of the settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Setting {
    HashEntries,
    HashValue,
    ListSize,
    IntsetEntries,
    SetEntries,
    SetValue,
    SortedSetEntries,
    SortedSetValue,
    SlowerThan,
    SlowLength,
    MaxMemory,
    Timeout,
    Rollback,
}

const SETTINGS: usize = Setting::Rollback as usize + 1;

impl Default for Settings {
    fn default() -> Settings {
        let settings = Settings(Default::default());
        let limits = Limits::default();
        let size = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        for (setting, value) in [
            (Setting::HashEntries, size(limits.hash_entries)),
            (Setting::HashValue, size(limits.hash_value)),
            (Setting::ListSize, limits.list_size),
            (Setting::IntsetEntries, size(limits.intset_entries)),
            (Setting::SetEntries, size(limits.set_entries)),
            (Setting::SetValue, size(limits.set_value)),
            (Setting::SortedSetEntries, size(limits.sorted_set_entries)),
            (Setting::SortedSetValue, size(limits.sorted_set_value)),
            (Setting::SlowerThan, 10_000),
            (Setting::SlowLength, 128),
        ] {
            settings.set(setting, value);
        }
        settings
    }
}

impl Settings {
    fn get(&self, setting: Setting) -> i64 {
        self.0[setting as usize].load(Ordering::Relaxed)
    }

    fn set(&self, setting: Setting, value: i64) {
        self.0[setting as usize].store(value, Ordering::Relaxed);
    }

    fn size(&self, setting: Setting) -> usize {
        usize::try_from(self.get(setting)).unwrap_or(0)
    }

    /// Returns the sizes of compact encodings.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            hash_entries: self.size(Setting::HashEntries),
            hash_value: self.size(Setting::HashValue),
            list_size: self.get(Setting::ListSize),
            intset_entries: self.size(Setting::IntsetEntries),
            set_entries: self.size(Setting::SetEntries),
            set_value: self.size(Setting::SetValue),
            sorted_set_entries: self.size(Setting::SortedSetEntries),
            sorted_set_value: self.size(Setting::SortedSetValue),
        }
    }

    /// Whether what has taken this time belongs into the slow log.
    pub(super) fn is_slow(&self, took: Duration) -> bool {
        let limit = self.get(Setting::SlowerThan);
        u64::try_from(limit).is_ok_and(|limit| took.as_micros() >= u128::from(limit))
    }

    /// Returns the largest number of entries of the slow log.
    pub(super) fn slow_length(&self) -> usize {
        self.size(Setting::SlowLength)
    }

    /// Returns `maxmemory`.
    pub(super) fn max_memory(&self) -> u64 {
        self.get(Setting::MaxMemory) as u64
    }

    /// Returns after which silence a connection is closed, if ever.
    pub(super) fn timeout(&self) -> Option<Duration> {
        u64::try_from(self.get(Setting::Timeout)).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }

    /// Whether new connections roll a failed `EXEC` back.
    pub(super) fn rolls_back(&self) -> bool {
        self.get(Setting::Rollback) != 0
    }
}

/// What kind of value a parameter has.
#[derive(Clone, Copy)]
enum Kind {
    /// An integer, with its bounds.
    Integer(Setting, i64, i64),
    /// A number of bytes, with a unit behind it perhaps.
    Memory(Setting),
    /// `yes` or `no`.
    YesNo(Setting),
    /// It has always this value.
    Fixed(&'static str),
    /// It has a value that does not change while the gateway runs.
    Told(fn(&Server) -> String),
}

use Kind::{Fixed, Integer, Memory, Told, YesNo};

/// All parameters. A name that is not here is unknown: a gateway has no files whose names could be
/// set, and its password and port are not for clients to change.
const PARAMETERS: &[(&str, Kind)] = &[
    ("hash-max-listpack-entries", Integer(Setting::HashEntries, 0, i64::MAX)),
    ("hash-max-ziplist-entries", Integer(Setting::HashEntries, 0, i64::MAX)),
    ("hash-max-listpack-value", Integer(Setting::HashValue, 0, i64::MAX)),
    ("hash-max-ziplist-value", Integer(Setting::HashValue, 0, i64::MAX)),
    ("list-max-listpack-size", Integer(Setting::ListSize, i32::MIN as i64, i32::MAX as i64)),
    ("list-max-ziplist-size", Integer(Setting::ListSize, i32::MIN as i64, i32::MAX as i64)),
    ("set-max-intset-entries", Integer(Setting::IntsetEntries, 0, i64::MAX)),
    ("set-max-listpack-entries", Integer(Setting::SetEntries, 0, i64::MAX)),
    ("set-max-listpack-value", Integer(Setting::SetValue, 0, i64::MAX)),
    ("zset-max-listpack-entries", Integer(Setting::SortedSetEntries, 0, i64::MAX)),
    ("zset-max-ziplist-entries", Integer(Setting::SortedSetEntries, 0, i64::MAX)),
    ("zset-max-listpack-value", Integer(Setting::SortedSetValue, 0, i64::MAX)),
    ("zset-max-ziplist-value", Integer(Setting::SortedSetValue, 0, i64::MAX)),
    ("slowlog-log-slower-than", Integer(Setting::SlowerThan, -1, i64::MAX)),
    ("slowlog-max-len", Integer(Setting::SlowLength, 0, i64::MAX)),
    ("timeout", Integer(Setting::Timeout, 0, i32::MAX as i64)),
    ("maxmemory", Memory(Setting::MaxMemory)),
    ("remora-rollback", YesNo(Setting::Rollback)),
    ("maxclients", Told(|server| server.connections_max().to_string())),
    ("protected-mode", Told(|server| if server.options.protected_mode { "yes" } else { "no" }.to_owned())),
    ("databases", Fixed("16")),
    ("proto-max-bulk-len", Fixed("30000000")),
    ("maxmemory-policy", Fixed("noeviction")),
    ("appendonly", Fixed("no")),
    ("save", Fixed("")),
    ("cluster-enabled", Fixed("no")),
    ("notify-keyspace-events", Fixed("")),
    ("latency-monitor-threshold", Fixed("0")),
    ("latency-tracking", Fixed("no")),
    ("list-compress-depth", Fixed("0")),
    ("lazyfree-lazy-user-del", Fixed("yes")),
    ("lazyfree-lazy-user-flush", Fixed("no")),
    ("io-threads", Fixed("1")),
    ("min-replicas-to-write", Fixed("0")),
    ("replica-read-only", Fixed("yes")),
];

fn find(name: &str) -> Option<Kind> {
    PARAMETERS.iter().find(|(other, _)| *other == name).map(|(_, kind)| *kind)
}

fn text_of(server: &Server, kind: Kind) -> String {
    let settings = &server.settings;
    match kind {
        Integer(setting, ..) | Memory(setting) => settings.get(setting).to_string(),
        YesNo(setting) => if settings.get(setting) == 0 { "no" } else { "yes" }.to_owned(),
        Fixed(text) => text.to_owned(),
        Told(tell) => tell(server),
    }
}

/// Answers `CONFIG GET`.
pub(super) fn get(server: &Server, patterns: &[&[u8]], reply: &mut ReplyWriter<'_>) {
    // By the name in small letters. A name without wildcards is answered as it was asked.
    let mut found: BTreeMap<&str, (Vec<u8>, String)> = BTreeMap::new();
    for pattern in patterns {
        let small = pattern.to_ascii_lowercase();
        let is_glob = pattern.iter().any(|byte| b"*?[".contains(byte));
        for (name, kind) in PARAMETERS {
            let shown = match is_glob {
                true if glob::matches(&small, name.as_bytes()) => name.as_bytes(),
                false if small == name.as_bytes() => pattern,
                _ => continue,
            };
            found.entry(name).or_insert_with(|| (shown.to_vec(), text_of(server, *kind)));
        }
    }
    reply.map(found.len());
    for (name, value) in found.values() {
        reply.bulk(name);
        reply.bulk(value);
    }
}

/// Runs `CONFIG SET`. Sets all parameters, or none.
pub(super) fn set(server: &Server, pairs: &[&[u8]]) -> Result<(), Error> {
    let (pairs, []) = pairs.as_chunks::<2>() else { return Err(Error::SYNTAX) };
    let mut parsed: Vec<(&[u8], Kind)> = Vec::new();
    for [name, _] in pairs {
        let known = std::str::from_utf8(name).ok().and_then(|name| find(&name.to_ascii_lowercase()));
        let Some(kind) = known else {
            let text = [b"ERR Unknown option or number of arguments for CONFIG SET - '", *name, b"'"];
            return Err(Error::of(text.concat()));
        };
        if parsed.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            return Err(failed(name, "duplicate parameter"));
        }
        parsed.push((name, kind));
    }
    let mut changes = Vec::new();
    for ((name, kind), [_, value]) in parsed.into_iter().zip(pairs) {
        changes.extend(parse(server, kind, value).map_err(|why| failed(name, &why))?);
    }
    changes.into_iter().for_each(|(setting, value)| server.settings.set(setting, value));
    Ok(())
}

fn failed(name: &[u8], why: &str) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::of(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
}

fn parse(server: &Server, kind: Kind, value: &[u8]) -> Result<Option<(Setting, i64)>, String> {
    match kind {
        Integer(setting, least, most) => {
            let parsed = number::parse_integer(value).ok_or("argument couldn't be parsed into an integer")?;
            if !(least..=most).contains(&parsed) {
                return Err(format!("argument must be between {least} and {most} inclusive"));
            }
            Ok(Some((setting, parsed)))
        }
        Memory(setting) => Ok(Some((setting, parse_memory(value).ok_or("argument must be a memory value")?))),
        YesNo(setting) => match value.to_ascii_lowercase().as_slice() {
            b"yes" => Ok(Some((setting, 1))),
            b"no" => Ok(Some((setting, 0))),
            _ => Err("argument must be 'yes' or 'no'".to_owned()),
        },
        // Programs set what they need, and find that it is so.
        Fixed(_) | Told(_) if text_of(server, kind).as_bytes().eq_ignore_ascii_case(value) => Ok(None),
        Fixed(_) | Told(_) => Err("can't set immutable config".to_owned()),
    }
}

/// Returns a number of bytes: digits, and perhaps a unit. `k` is 1,000 and `kb` is 1,024.
fn parse_memory(value: &[u8]) -> Option<i64> {
    let digits = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (count, unit) = value.split_at(digits);
    let factor = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    std::str::from_utf8(count).ok()?.parse::<i64>().ok()?.checked_mul(factor)
}
