//! `INFO`, and the metrics of a gateway.

use std::fmt::Write;
use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use remora::Session;
use remora_redis::command::DATABASES;

use super::counters::{Event, KINDS, PREFIXES};
use super::{REDIS_VERSION, Server, locked};
use crate::clock;
use crate::store::Store;

/// How old a count of keys may be before `INFO` counts again.
const COUNT_AGE: Duration = Duration::from_secs(5);
/// For how long one `INFO` counts keys. The next one goes on where it has stopped.
const COUNT_TIME: Duration = Duration::from_millis(50);
/// For how long one `INFO` counts keys while there is no complete count: until then it answers how
/// many were counted so far.
const FIRST_COUNT_TIME: Duration = Duration::from_millis(500);
/// The largest number of places of records that a step of the count reads.
const COUNT_SLOTS: usize = 128;

/// The sections that `INFO` answers if it is not asked for others.
const DEFAULT: &[&str] = &[
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cpu",
    "modules",
    "errorstats",
    "cluster",
    "keyspace",
    "remora",
];

/// The keys of a database.
#[derive(Clone, Copy, Default, Debug)]
struct Keys {
    keys: u64,
    expiring: u64,
    /// The sum of the times until keys expire, in milliseconds.
    left: u128,
}

type AllKeys = [Keys; DATABASES as usize];

/// A count of all keys, which `INFO` takes in pieces.
#[derive(Debug, Default)]
pub(super) struct Census(Mutex<Count>);

#[derive(Debug, Default)]
struct Count {
    /// The last complete count, and its time.
    complete: Option<(Instant, AllKeys)>,
    /// The count that has begun, and where it goes on.
    partial: AllKeys,
    cursor: u64,
    /// Until when a connection counts. It may end before.
    busy: Option<Instant>,
}

impl Census {
    /// Counts on, unless the last count is young or another connection counts. An error ends this
    /// piece of the count.
    pub(super) async fn take(&self, store: &Store, session: &mut Session) {
        let begun = clock::instant();
        let (mut keys, mut cursor, time) = {
            let mut count = locked(&self.0);
            let is_young = count.complete.is_some_and(|(at, _)| begun.saturating_duration_since(at) < COUNT_AGE);
            if is_young || count.busy.is_some_and(|until| begun < until) {
                return;
            }
            count.busy = Some(begun + FIRST_COUNT_TIME * 4);
            (count.partial, count.cursor, if count.complete.is_some() { COUNT_TIME } else { FIRST_COUNT_TIME })
        };
        let now = clock::now();
        let is_complete = loop {
            let Ok((found, next)) = store.walk(session, cursor, COUNT_SLOTS).await else { break false };
            for found in found.iter().filter(|found| found.expiry.is_none_or(|expiry| expiry > now)) {
                let Some(keys) = keys.get_mut(usize::from(found.database)) else { continue };
                keys.keys += 1;
                if let Some(expiry) = found.expiry {
                    keys.expiring += 1;
                    keys.left += u128::from(expiry - now);
                }
            }
            cursor = next;
            if cursor == 0 {
                break true;
            }
            if begun.elapsed() >= time {
                break false;
            }
        };
        let mut count = locked(&self.0);
        count.busy = None;
        (count.partial, count.cursor) = (keys, cursor);
        if is_complete {
            count.complete = Some((clock::instant(), keys));
            count.partial = AllKeys::default();
        }
    }

    /// Returns the last complete count, or what was counted so far.
    fn keys(&self) -> AllKeys {
        let count = locked(&self.0);
        count.complete.map_or(count.partial, |(_, keys)| keys)
    }

    /// Returns the number of keys by the last count.
    pub(super) fn len(&self) -> u64 {
        self.keys().iter().map(|keys| keys.keys).sum()
    }
}

/// Returns the sections that the arguments of `INFO` name.
fn sections(args: &[&[u8]]) -> Vec<String> {
    let mut sections: Vec<String> = Vec::new();
    let all = ["commandstats"];
    for argument in args {
        let name = String::from_utf8_lossy(argument).to_ascii_lowercase();
        match name.as_str() {
            "default" => sections.extend(DEFAULT.iter().map(|name| (*name).to_owned())),
            "all" | "everything" => sections.extend(DEFAULT.iter().chain(&all).map(|name| (*name).to_owned())),
            _ => sections.push(name),
        }
    }
    if args.is_empty() {
        sections.extend(DEFAULT.iter().map(|name| (*name).to_owned()));
    }
    sections
}

/// Whether `INFO` answers how many keys there are.
pub(super) fn shows_keys(args: &[&[u8]]) -> bool {
    sections(args).iter().any(|section| section == "keyspace")
}

/// Returns the text of `INFO`.
pub(super) fn text(server: &Server, args: &[&[u8]]) -> String {
    let mut text = String::new();
    let wanted = sections(args);
    for section in DEFAULT.iter().chain(&["commandstats"]) {
        if !wanted.iter().any(|name| name == section) {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let title = section[..1].to_ascii_uppercase() + &section[1..];
        let title = if *section == "cpu" { "CPU".to_owned() } else { title };
        let _ = write!(text, "# {title}\r\n");
        let mut line = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(text, "{name}:{value}\r\n");
        };
        write_section(server, section, &mut line);
    }
    text
}

type Line<'l> = &'l mut dyn FnMut(&str, &dyn std::fmt::Display);

fn write_section(server: &Server, section: &str, line: Line<'_>) {
    match section {
        "server" => about_the_process(server, line),
        "clients" => {
            line("connected_clients", &server.clients.len());
            line("cluster_connections", &0);
            line("maxclients", &server.connections_max());
            line("blocked_clients", &server.clients.waiting());
            line("tracking_clients", &0);
        }
        "memory" => {
            let (used, peak) = memory();
            line("used_memory", &used);
            line("used_memory_human", &human(used));
            line("used_memory_rss", &used);
            line("used_memory_rss_human", &human(used));
            line("used_memory_peak", &peak);
            line("used_memory_peak_human", &human(peak));
            line("maxmemory", &server.settings.max_memory());
            line("maxmemory_human", &human(server.settings.max_memory()));
            line("maxmemory_policy", &"noeviction");
        }
        "persistence" => {
            for name in ["loading", "async_loading", "rdb_bgsave_in_progress", "aof_enabled", "aof_rewrite_in_progress"]
            {
                line(name, &0);
            }
        }
        "stats" => about_the_past(server, line),
        "replication" => {
            // Copies are not replicas that clients could read from.
            line("role", &"master");
            line("connected_slaves", &0);
            line("master_failover_state", &"no-failover");
            line("master_replid", &server.run_id);
            line("master_repl_offset", &0);
        }
        "cpu" => {
            let [user, system] = cpu_seconds();
            line("used_cpu_sys", &format!("{system:.6}"));
            line("used_cpu_user", &format!("{user:.6}"));
        }
        "commandstats" => {
            for (name, calls) in server.totals_since_reset().called() {
                let micros = calls.nanos / 1000;
                let each = if calls.calls == 0 { 0.0 } else { calls.nanos as f64 / 1000.0 / calls.calls as f64 };
                let numbers = format!(
                    "calls={},usec={micros},usec_per_call={each:.2},rejected_calls={},failed_calls={}",
                    calls.calls, calls.rejected, calls.failed
                );
                line(&format!("cmdstat_{name}"), &numbers);
            }
        }
        "errorstats" => {
            let totals = server.totals_since_reset();
            for (prefix, count) in PREFIXES.iter().zip(totals.errors).filter(|(_, count)| *count > 0) {
                line(&format!("errorstat_{prefix}"), &format!("count={count}"));
            }
        }
        "cluster" => line("cluster_enabled", &0),
        "keyspace" => {
            for (database, keys) in server.census.keys().iter().enumerate().filter(|(_, keys)| keys.keys > 0) {
                let average = keys.left.checked_div(u128::from(keys.expiring)).unwrap_or(0);
                let numbers = format!("keys={},expires={},avg_ttl={average}", keys.keys, keys.expiring);
                line(&format!("db{database}"), &numbers);
            }
        }
        "remora" => {
            line("remora_version", &env!("CARGO_PKG_VERSION"));
            line("remora_copies", &server.options.copies);
            line("remora_epoch", &server.epoch());
        }
        _ => {}
    }
}

fn about_the_process(server: &Server, line: Line<'_>) {
    let uptime = server.begun.elapsed().as_secs();
    line("redis_version", &REDIS_VERSION);
    line("redis_git_sha1", &"00000000");
    line("redis_git_dirty", &0);
    line("redis_build_id", &"0");
    line("redis_mode", &"standalone");
    line("os", &std::env::consts::OS);
    line("arch_bits", &usize::BITS);
    line("multiplexing_api", &"epoll");
    line("process_id", &std::process::id());
    line("run_id", &server.run_id);
    line("tcp_port", &server.options.port);
    line("server_time_usec", &clock::since_1970().as_micros());
    line("uptime_in_seconds", &uptime);
    line("uptime_in_days", &(uptime / 86_400));
    line("hz", &10);
    line("executable", &"");
    line("config_file", &"");
    line("io_threads_active", &0);
}

fn about_the_past(server: &Server, line: Line<'_>) {
    let counts = server.control.get().map(|control| control.counts()).unwrap_or_default();
    let totals = server.totals_since_reset();
    line("total_connections_received", &counts.accepted);
    line("total_commands_processed", &totals.calls());
    line("total_net_input_bytes", &counts.bytes_in);
    line("total_net_output_bytes", &counts.bytes_out);
    line("rejected_connections", &counts.refused);
    line("total_error_replies", &totals.errors.iter().sum::<u64>());
    for name in ["evicted_keys", "pubsub_channels", "pubsub_patterns", "tracking_total_keys"] {
        line(name, &0);
    }
}

/// Returns a number of bytes with a unit.
fn human(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..0x10_0000 => format!("{:.2}K", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.2}M", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2}G", bytes as f64 / 1_073_741_824.0),
    }
}

/// Returns the bytes of memory that the process has, and the most that it had.
pub(super) fn memory() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_matches([':', ' ', '\t']).split(' ').next()?.parse::<u64>().ok()
    };
    let bytes = |name| field(name).unwrap_or(0) * 1024;
    (bytes("VmRSS"), bytes("VmHWM"))
}

/// Returns the seconds that the process has run, in its own code and in the kernel.
fn cpu_seconds() -> [f64; 2] {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program is in brackets and may have blanks. The times are in hundredths.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let seconds = |place: usize| fields.get(place).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0) / 100.0;
    [seconds(11), seconds(12)]
}

/// Returns the metrics of a gateway as Prometheus reads them.
pub(super) fn metrics(server: &Server) -> String {
    let counts = server.control.get().map(|control| control.counts()).unwrap_or_default();
    let totals = server.totals();
    let mut page = Page(String::new());
    page.begin("info", "gauge", "What the gateway is. The value is 1.");
    let copies = server.options.copies.to_string();
    let version = env!("CARGO_PKG_VERSION");
    page.row("info", &[("version", version), ("redis_version", REDIS_VERSION), ("copies", &copies)], 1);
    page.begin("connections", "gauge", "Connections that are open.");
    let unauthenticated = server.clients.unauthenticated();
    let open = server.clients.len();
    page.row("connections", &[("state", "authenticated")], open.saturating_sub(unauthenticated));
    page.row("connections", &[("state", "unauthenticated")], unauthenticated);
    page.begin("connections_total", "counter", "Connections that were accepted or refused.");
    page.row("connections_total", &[("result", "accepted")], counts.accepted);
    page.row("connections_total", &[("result", "refused")], counts.refused);
    page.begin("commands_total", "counter", "Commands that were run.");
    for (name, calls) in totals.called() {
        page.row("commands_total", &[("command", name)], calls.calls);
    }
    page.begin("command_seconds", "summary", "Time of commands. Commands of a batch share its time equally.");
    for (name, calls) in totals.called() {
        page.row("command_seconds_sum", &[("command", name)], calls.nanos as f64 / 1e9);
        page.row("command_seconds_count", &[("command", name)], calls.calls);
    }
    page.begin("commands_rejected_total", "counter", "Commands that were refused before they were run.");
    for (name, calls) in totals.called().filter(|(_, calls)| calls.rejected > 0) {
        page.row("commands_rejected_total", &[("command", name)], calls.rejected);
    }
    page.begin("command_errors_total", "counter", "Errors that were answered, by their first word.");
    for (prefix, count) in PREFIXES.iter().zip(totals.errors) {
        page.row("command_errors_total", &[("prefix", prefix)], count);
    }
    page.begin("batches_total", "counter", "Batches of commands of one connection.");
    for (kind, count) in KINDS.iter().zip(totals.batches) {
        page.row("batches_total", &[("kind", kind)], count);
    }
    page.begin("auth_failures_total", "counter", "Wrong passwords.");
    page.row("auth_failures_total", &[], totals.count(Event::AuthFailure));
    page.begin("watch_failures_total", "counter", "Transactions that ended because a watched key had changed.");
    page.row("watch_failures_total", &[], totals.count(Event::WatchFailure));
    page.begin("protocol_errors_total", "counter", "Connections that were closed because they broke the protocol.");
    page.row("protocol_errors_total", &[], totals.count(Event::ProtocolError));
    page.begin("unknown_total", "counter", "Transactions whose outcome was unknown at first, and what it was.");
    for (verdict, event) in [
        ("committed", Event::UnknownCommitted),
        ("aborted", Event::UnknownAborted),
        ("undecided", Event::UnknownUndecided),
    ] {
        page.row("unknown_total", &[("verdict", verdict)], totals.count(event));
    }
    page.begin("once_total", "counter", "Commands with a token of REMORA.ONCE, and what became of them.");
    for (result, event) in
        [("first", Event::OnceFirst), ("replayed", Event::OnceReplayed), ("mismatch", Event::OnceMismatch)]
    {
        page.row("once_total", &[("result", result)], totals.count(event));
    }
    page.begin("bytes_total", "counter", "Bytes that were read from clients and sent to them.");
    page.row("bytes_total", &[("direction", "in")], counts.bytes_in);
    page.row("bytes_total", &[("direction", "out")], counts.bytes_out);
    page.begin("lanes", "gauge", "Lanes that have a batch.");
    page.row("lanes", &[("state", "busy")], counts.lanes_busy);
    page.begin("held_bytes", "gauge", "Bytes of unfinished input.");
    page.row("held_bytes", &[], counts.held);
    page.begin("stalled_connections", "gauge", "Connections that wait.");
    for (reason, count) in
        [("output", counts.stalled_by_output), ("memory", counts.stalled_by_memory), ("lanes", counts.stalled_by_lanes)]
    {
        page.row("stalled_connections", &[("reason", reason)], count);
    }
    page.begin("reads_total", "counter", "Times that lanes have taken input of a connection.");
    page.row("reads_total", &[], counts.batches);
    page.0
}

/// A page of metrics.
struct Page(String);

impl Page {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP remora_gateway_{name} {help}\n# TYPE remora_gateway_{name} {kind}");
    }

    /// Adds a row. Labels are words of this program, and need no escapes.
    fn row(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "remora_gateway_{name}{labels} {value}");
    }
}

/// Returns a name that no other process has, as 40 hexadecimal digits.
pub(super) fn run_id() -> String {
    let mut bytes = [0; 20];
    // Without random numbers, the time and the process make the name.
    if getrandom::fill(&mut bytes).is_err() {
        bytes[..16].copy_from_slice(&clock::since_1970().as_nanos().to_le_bytes());
        bytes[16..].copy_from_slice(&std::process::id().to_le_bytes());
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
