//! Connections on an embedded cluster, without sockets: bytes in, bytes out.

use std::thread;
use std::time::{Duration, Instant};

use remora::floors::index::fstore::Geometry;
use remora::{Cluster, ClusterOptions, Worker, WorkerOptions};
use remora_gateway::net::Next;
use remora_gateway::{Connection, Local, Server, ServerOptions, Store, StoreOptions, Sweeper};
use remora_redis::footprint;

/// A gateway on a cluster in this process.
struct Gateway {
    cluster: Cluster,
    store: Store,
    worker: Worker,
    server: Server,
    local: Local,
    connections: u64,
}

impl Gateway {
    fn new() -> Gateway {
        Gateway::with(Cluster::embedded(), WorkerOptions::default())
    }

    fn with(cluster: ClusterOptions, worker: WorkerOptions) -> Gateway {
        let cluster = cluster.open().unwrap();
        let store = Store::open_or_create(&cluster, "redis", StoreOptions::default()).unwrap();
        let worker = cluster.worker(worker).unwrap();
        let server = Server::new(store.clone(), ServerOptions::default()).unwrap();
        let local = Local::new(&server, 1);
        Gateway { cluster, store, worker, server, local, connections: 0 }
    }

    fn connect(&mut self) -> Connection {
        self.connections += 1;
        Connection::new(self.connections, &self.server)
    }

    /// Sends lines, each of them an inline command, at once. Returns the answers as text.
    fn send(&mut self, connection: &mut Connection, lines: &[&str]) -> String {
        self.send_bytes(connection, lines.iter().flat_map(|line| [line.as_bytes(), b"\r\n"].concat()).collect())
    }

    /// Sends one command with these arguments.
    fn call(&mut self, connection: &mut Connection, words: &[String]) -> String {
        let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let count = words.matches('$').count();
        self.send_bytes(connection, format!("*{count}\r\n{words}").into_bytes())
    }

    fn send_bytes(&mut self, connection: &mut Connection, mut input: Vec<u8>) -> String {
        let mut input = &mut input[..];
        let (mut output, Gateway { worker, server, local, .. }) = (Vec::new(), self);
        let next =
            worker.block_on(async |session| connection.serve(server, session, local, &mut input, &mut output).await);
        assert_eq!((next, input.len()), (Next::More, 0));
        String::from_utf8(output).unwrap().replace("\r\n", " ").trim_end().to_owned()
    }
}

#[test]
fn commands_run_in_order() {
    let mut gateway = Gateway::new();
    let mut one = gateway.connect();
    assert_eq!(gateway.send(&mut one, &["INCR n", "PING", "INCRBY n 41", "GET n"]), ":1 +PONG :42 $2 42");
    assert_eq!(gateway.send(&mut one, &["SELECT 1", "GET n", "SELECT 0", "GET n"]), "+OK $-1 +OK $2 42");
}

/// What `MEMORY USAGE` answers is what the tables take for a record of each kind.
#[test]
fn memory_usage_is_the_share_of_a_table() {
    let mut gateway = Gateway::new();
    let mut one = gateway.connect();
    let value = "x".repeat(64);
    let answers = gateway.send(&mut one, &[&format!("SET key:000000000001 {value}"), "MEMORY USAGE key:000000000001"]);
    assert_eq!(answers, format!("+OK :{}", footprint::HEAD_BYTES));
    let catalog = gateway.cluster.catalog();
    // Overflow buckets for each main bucket of a table that is as full as its size says: `fstore`.
    for (name, overflow, share) in [
        ("redis", 0.53, footprint::HEAD_BYTES),
        ("redis/rest", 0.48, footprint::PART_BYTES),
        ("redis/large/chunks", 0.13, footprint::CHUNK_BYTES),
    ] {
        let shard = Geometry::of(&catalog.table(name).unwrap().1.spec);
        let bytes = shard.buckets.bytes as f64 + overflow * shard.buckets.overflow_bytes as f64;
        let rows = shard.rows() as f64 / shard.buckets.main as f64;
        assert!((bytes / rows / share as f64 - 1.0).abs() < 0.02, "{name}: {} and {share}", bytes / rows);
    }
}

#[test]
fn a_watched_key_that_the_same_pipeline_has_written_ends_exec() {
    let mut gateway = Gateway::new();
    let mut one = gateway.connect();
    let (exec, nil) = (["MULTI", "GET n", "EXEC"], "+OK +QUEUED *-1");
    for (before, write, answer) in [
        ("DEL n", "SET n 1", "+OK"),
        ("SET n 1", "SET n 1", "+OK"),
        ("SET n 1", "DEL n", ":1"),
        ("SET n 1", "EXPIRE n 100", ":1"),
    ] {
        gateway.send(&mut one, &[before, "WATCH n"]);
        let answers = gateway.send(&mut one, &[&[write], &exec[..]].concat());
        assert_eq!(answers, format!("{answer} {nil}"), "{before}, {write}");
    }
    gateway.send(&mut one, &["DEL n", "WATCH n"]);
    let answers = gateway.send(&mut one, &["GET n", "SET n 1", "DEL n", "MULTI", "SET n 2", "EXEC"]);
    assert_eq!(answers, "$-1 +OK :1 +OK +QUEUED *1 +OK", "created and deleted again counts as unchanged");
    gateway.send(&mut one, &["WATCH n"]);
    assert_eq!(gateway.send(&mut one, &["GET n", "MULTI", "SET n 3", "EXEC"]), "$1 2 +OK +QUEUED *1 +OK");
}

#[test]
fn a_watched_key_that_has_changed_ends_exec() {
    let mut gateway = Gateway::new();
    let (mut one, mut other) = (gateway.connect(), gateway.connect());
    assert_eq!(
        gateway.send(&mut one, &["WATCH n", "MULTI", "INCR n", "SELECT 3", "EXEC"]),
        "+OK +OK +QUEUED +QUEUED *2 :1 +OK"
    );
    assert_eq!(
        gateway.send(&mut one, &["GET n", "SELECT 0", "WATCH n", "MULTI", "INCR n", "SELECT 3"]),
        "$-1 +OK +OK +OK +QUEUED +QUEUED"
    );
    assert_eq!(gateway.send(&mut other, &["INCR n"]), ":2");
    assert_eq!(gateway.send(&mut one, &["EXEC", "GET n"]), "*-1 $1 2");
}

#[test]
fn what_has_expired_is_swept() {
    let mut gateway = Gateway::new();
    let mut one = gateway.connect();
    assert_eq!(gateway.send(&mut one, &["SET a 1 PX 30", "SET b 1 PX 60000", "SET c 1"]), "+OK +OK +OK");
    let rows = |gateway: &Gateway| gateway.cluster.count_rows("redis").unwrap();
    assert_eq!(rows(&gateway), 3);
    let _sweeper = Sweeper::start(&gateway.cluster, &gateway.store, None).unwrap();
    let began = Instant::now();
    while rows(&gateway) != 2 {
        assert!(began.elapsed() < Duration::from_secs(60), "the key that has expired is still there");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(gateway.send(&mut one, &["GET a", "GET b", "GET c"]), "$-1 $1 1 $1 1");
}

#[test]
fn a_client_says_which_replies_it_wants() {
    let mut gateway = Gateway::new();
    let mut one = gateway.connect();
    let skipped = ["CLIENT REPLY SKIP", "PING", "ECHO a", "CLIENT REPLY SKIP", "WATCH x", "ECHO b"];
    assert_eq!(gateway.send(&mut one, &skipped), "$1 a $1 b");
    let off = ["CLIENT REPLY OFF", "INCR n", "WATCH x", "DBSIZE", "FOO", "CLIENT REPLY ON", "GET n"];
    assert_eq!(gateway.send(&mut one, &off), "+OK $1 1");
    assert_eq!(gateway.send(&mut one, &["CLIENT REPLY SKIP", "CLIENT REPLY ON", "PING"]), "+OK +PONG");
}

#[test]
fn unwatch_may_be_queued() {
    let mut gateway = Gateway::new();
    let mut one = gateway.connect();
    assert_eq!(gateway.send(&mut one, &["MULTI", "UNWATCH", "EXEC"]), "+OK +QUEUED *1 +OK");
}

/// A value that is large is uploaded between two attempts, which must agree on it.
#[test]
fn commands_that_draw_or_tell_the_time_change_large_values() {
    let mut gateway = Gateway::new();
    let mut one = gateway.connect();
    let member = |number: usize| format!("{number:0>100}");
    let members: Vec<String> = (0..200).map(member).collect();
    let add = format!("SADD s {}", members.join(" "));
    assert_eq!(gateway.send(&mut one, &[&add]), ":200");
    for left in (190..200).rev() {
        assert!(gateway.send(&mut one, &["SPOP s"]).starts_with("$100 "));
        assert_eq!(gateway.send(&mut one, &["EXPIRE s 100", "SCARD s"]), format!(":1 :{left}"));
    }
    assert_eq!(gateway.send(&mut one, &["DEL s"]), ":1");
    assert_eq!(gateway.cluster.count_rows("redis/large/chunks").unwrap(), 0);
}

#[test]
fn an_exec_with_arguments_ends_the_transaction() {
    let mut gateway = Gateway::new();
    let mut one = gateway.connect();
    let text = "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";
    assert_eq!(gateway.send(&mut one, &["MULTI", "INCR n", "EXEC x", "GET n"]), format!("+OK +QUEUED {text} $-1"));
}

/// Values become large and small again, and keys are in the names of records or in the records.
#[test]
fn keys_and_values_have_any_length() {
    let mut gateway = Gateway::new();
    let mut one = gateway.connect();
    for key in [1, 14, 15, 100, 511, 512, 5_000, 15_000].map(|length| "k".repeat(length)) {
        for length in [0, 1, 100, 1_000, 8_000, 9_000, 40_000, 1_000, 45_000, 48_000, 3] {
            let value = "v".repeat(length);
            let sent = gateway.send(&mut one, &[&format!("SET {key} \"{value}\""), &format!("GET {key}")]);
            assert!(sent == format!("+OK ${length} {value}").trim_end(), "{} {length}", key.len());
        }
        let all = gateway
            .send(&mut one, &["SCAN 0 COUNT 1000", &format!("APPEND {key} abc"), &format!("DEL {key}"), "KEYS *"]);
        assert!(all == format!("*2 $1 0 *1 ${} {key} :6 :1 *0", key.len()), "{}", key.len());
    }
    let long = "k".repeat(15_001);
    assert_eq!(gateway.send(&mut one, &[&format!("GET {long}")]), "-ERR key of 15001 bytes (limit 15000)");
}

/// A transaction may write a thousand new keys, if the log has room for that. Otherwise nothing is
/// written, and the error names the limit.
#[test]
fn a_transaction_writes_a_thousand_keys() {
    let keys = |from: usize, to: usize| (from..to).map(|key| format!("key:{key}"));
    let pairs = |from, to| keys(from, to).flat_map(|key| [key.clone(), format!("{key:v<64}")]);
    let command = |name: &str, words: &mut dyn Iterator<Item = String>| -> Vec<String> {
        std::iter::once(name.to_owned()).chain(words).collect()
    };
    for copies in [1, 3] {
        let cluster = || Cluster::embedded().replicas(copies).node_bytes(64 << 20);
        let mut gateway = Gateway::with(cluster(), WorkerOptions::default().coroutines(1).log_bytes(1 << 20));
        let mut one = gateway.connect();
        assert_eq!(gateway.call(&mut one, &command("MSET", &mut pairs(0, 1_000))), "+OK");
        let exists = command("EXISTS", &mut keys(0, 1_000));
        assert_eq!(gateway.call(&mut one, &exists), ":1000");
        assert!(gateway.call(&mut one, &command("GET", &mut keys(999, 1_000))).contains("key:999vvv"));
        // The same keys again: their values are replaced.
        assert_eq!(gateway.call(&mut one, &command("MSET", &mut pairs(0, 1_000))), "+OK");
        gateway.send(&mut one, &["MULTI"]);
        for key in 2_000..3_000 {
            gateway.send(&mut one, &[&format!("SET key:{key} {key}")]);
        }
        assert_eq!(gateway.send(&mut one, &["EXEC"]).matches("+OK").count(), 1_000);
        assert_eq!(gateway.call(&mut one, &command("DEL", &mut keys(0, 1_000))), ":1000");
        assert_eq!(gateway.call(&mut one, &exists), ":0");
        let refused = gateway.call(&mut one, &command("MSET", &mut pairs(4_000, 8_000)));
        assert!(refused.starts_with("-ERR transaction would"), "{refused}");
        assert_eq!(gateway.call(&mut one, &command("EXISTS", &mut keys(4_000, 8_000))), ":0", "nothing is applied");

        let mut gateway = Gateway::with(cluster(), WorkerOptions::default().coroutines(1));
        let mut one = gateway.connect();
        let refused = gateway.call(&mut one, &command("MSET", &mut pairs(0, 1_000)));
        assert!(refused.contains(" bytes (limit 32768): send it in parts"), "{refused}");
        assert_eq!(gateway.call(&mut one, &exists), ":0", "nothing is applied");
        assert_eq!(gateway.call(&mut one, &command("MSET", &mut pairs(0, 100))), "+OK");
    }
}
