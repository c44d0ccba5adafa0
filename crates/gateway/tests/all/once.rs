//! `REMORA.ONCE`: commands that are sent again after a lost connection, on an embedded cluster and
//! without sockets.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use remora::{Cluster, Worker, WorkerOptions};
use remora_gateway::net::Next;
use remora_gateway::{Connection, Local, Server, ServerOptions, Store, StoreOptions, Sweeper};

const FOREIGN: &str = "-ERR REMORA.ONCE token belongs to other commands";
const MISPLACED: &str = "-ERR REMORA.ONCE is only for a command that writes keys, or for MULTI";

/// A gateway of a cluster that may have others.
struct Gateway {
    worker: Worker,
    server: Arc<Server>,
    local: Local,
}

/// A connection to a gateway.
struct Client(Connection);

impl Gateway {
    fn new(cluster: &Cluster) -> Gateway {
        let store = Store::open_or_create(cluster, "redis", StoreOptions::default()).unwrap();
        let worker = cluster.worker(WorkerOptions::default()).unwrap();
        let server = Arc::new(Server::new(store, ServerOptions::default()).unwrap());
        let local = Local::new(&server, 1);
        Gateway { worker, server, local }
    }

    fn connect(&self) -> Client {
        Client(Connection::new(1, &self.server))
    }

    /// Sends lines, each of them an inline command, at once. Returns the answers as text.
    fn send(&mut self, client: &mut Client, lines: &[&str]) -> String {
        let mut input: Vec<u8> = lines.iter().flat_map(|line| [line.as_bytes(), b"\r\n"].concat()).collect();
        let (mut input, mut output, Gateway { worker, server, local }) = (&mut input[..], Vec::new(), self);
        let next =
            worker.block_on(async |session| client.0.serve(server, session, local, &mut input, &mut output).await);
        assert_eq!((next, input.len()), (Next::More, 0));
        String::from_utf8(output).unwrap().replace("\r\n", " ").trim_end().to_owned()
    }

    /// Sends lines on a connection of their own.
    fn once(&mut self, lines: &[&str]) -> String {
        let mut client = self.connect();
        self.send(&mut client, lines)
    }

    /// Returns how often a token was used first, again, and for other commands.
    fn counts(&self) -> [u64; 3] {
        ["first", "replayed", "mismatch"].map(|result| {
            let metrics = self.server.metrics();
            let row = format!("remora_gateway_once_total{{result=\"{result}\"}} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&row)).unwrap();
            line.parse().unwrap()
        })
    }
}

#[test]
fn a_command_that_is_sent_again_is_not_applied_again() {
    let cluster = Cluster::embedded().open().unwrap();
    let (mut one, mut other) = (Gateway::new(&cluster), Gateway::new(&cluster));
    assert_eq!(one.once(&["REMORA.ONCE t", "INCR n"]), "+OK :1");
    for gateway in [&mut one, &mut other] {
        assert_eq!(gateway.once(&["REMORA.ONCE t", "INCR n", "INCR other", "GET n"]).split(' ').nth(1), Some(":1"));
        assert_eq!(gateway.once(&["GET n"]), "$1 1");
    }
    // The same bytes in another database, and other ones.
    assert_eq!(other.once(&["SELECT 1", "REMORA.ONCE t", "INCR n", "GET n"]), format!("+OK +OK {FOREIGN} $-1"));
    assert_eq!(other.once(&["REMORA.ONCE t", "INCRBY n 1", "GET n"]), format!("+OK {FOREIGN} $1 1"));
    // Names of commands have no case, and a command that changes nothing has a reply, too.
    assert_eq!(one.once(&["remora.once t PX 1000", "incr n", "REMORA.ONCE u", "SETNX n 5"]), "+OK :1 +OK :0");
    assert_eq!(one.once(&["DEL n", "REMORA.ONCE u", "SETNX n 5", "GET n"]), ":1 +OK :0 $-1");
    assert_eq!((one.counts(), other.counts()), ([2, 3, 0], [0, 1, 2]));
    // All keys may go, but a token is no key.
    assert_eq!(one.once(&["FLUSHALL", "DBSIZE", "REMORA.ONCE t", "INCR n", "DBSIZE"]), "+OK :0 +OK :1 :0");
}

#[test]
fn a_transaction_is_applied_once() {
    let cluster = Cluster::embedded().open().unwrap();
    let (mut one, mut other) = (Gateway::new(&cluster), Gateway::new(&cluster));
    let lines = ["REMORA.ONCE t", "MULTI", "INCR n", "LPUSH n x", "SELECT 3", "RPUSH l a", "EXEC", "LLEN l"];
    let reply = "+OK +OK +QUEUED +QUEUED +QUEUED +QUEUED *4 :1 -WRONGTYPE Operation against a key holding the wrong \
                 kind of value +OK :1 :1";
    for gateway in [&mut one, &mut other] {
        assert_eq!(gateway.once(&lines), reply);
    }
    assert_eq!(other.once(&["REMORA.ONCE t", "MULTI", "INCR n", "EXEC"]), format!("+OK +OK +QUEUED {FOREIGN}"));
    // An EXEC that does not run leaves the connection as it was.
    let moved = ["REMORA.ONCE t", "MULTI", "SELECT 3", "EXEC", "LLEN l"];
    assert_eq!(other.once(&moved), format!("+OK +OK +QUEUED {FOREIGN} :0"));
    // A command is not a transaction of one command.
    assert_eq!(one.once(&["REMORA.ONCE u", "INCR m"]), "+OK :1");
    assert_eq!(one.once(&["REMORA.ONCE u", "MULTI", "INCR m", "EXEC"]), format!("+OK +OK +QUEUED {FOREIGN}"));
}

#[test]
fn what_applies_nothing_may_be_sent_again() {
    let cluster = Cluster::embedded().open().unwrap();
    let mut gateway = Gateway::new(&cluster);
    let (mut client, lines) = (gateway.connect(), ["REMORA.ONCE t", "MULTI", "INCR n", "SELECT 3", "EXEC"]);
    assert_eq!(gateway.send(&mut client, &["WATCH n"]), "+OK");
    assert_eq!(gateway.once(&["INCR n"]), ":1");
    // A key that was watched has changed.
    assert_eq!(gateway.send(&mut client, &lines), "+OK +OK +QUEUED +QUEUED *-1");
    assert_eq!(gateway.send(&mut client, &lines), "+OK +OK +QUEUED +QUEUED *2 :2 +OK");
    // Once applied, the state of watched keys does not matter.
    let mut again = gateway.connect();
    assert_eq!(gateway.send(&mut again, &["WATCH n"]), "+OK");
    assert_eq!(gateway.once(&["INCR n"]), ":3");
    assert_eq!(gateway.send(&mut again, &lines), "+OK +OK +QUEUED +QUEUED *2 :2 +OK");

    // A command has failed.
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    assert_eq!(gateway.once(&["SET k x", "REMORA.ONCE u", "RPUSH k a"]), format!("+OK +OK {wrong}"));
    assert_eq!(gateway.once(&["DEL k", "REMORA.ONCE u", "RPUSH k a"]), ":1 +OK :1");
    assert_eq!(gateway.once(&["REMORA.ONCE u", "RPUSH k a", "LLEN k"]), "+OK :1 :1");

    // A transaction was rolled back.
    let roll = ["REMORA.ROLLBACK ON", "REMORA.ONCE v", "MULTI", "RPUSH m a", "INCR k", "EXEC"];
    assert!(gateway.once(&roll).ends_with(
        "-EXECABORT Transaction rolled back: command 2: WRONGTYPE Operation against \
        a key holding the wrong kind of value"
    ));
    assert_eq!(
        gateway.once(&["DEL k", roll[0], roll[1], roll[2], roll[3], roll[4], roll[5]]),
        ":1 +OK +OK +OK +QUEUED +QUEUED *2 :1 :1"
    );
    assert_eq!(
        gateway.once(&[roll[0], roll[1], roll[2], roll[3], roll[4], roll[5], "LLEN m"]),
        "+OK +OK +OK +QUEUED +QUEUED *2 :1 :1 :1"
    );
}

#[test]
fn a_token_is_for_the_next_command_only() {
    let cluster = Cluster::embedded().open().unwrap();
    let mut gateway = Gateway::new(&cluster);
    assert_eq!(gateway.once(&["INCR n"]), ":1");
    let mut client = gateway.connect();
    for (lines, answers) in [
        (&["REMORA.ONCE t", "GET n", "INCR n"][..], format!("+OK {MISPLACED} :2")),
        (&["REMORA.ONCE t", "WATCH n", "PING"], format!("+OK {MISPLACED} +PONG")),
        (&["REMORA.ONCE t", "FLUSHALL", "INCR n"], format!("+OK {MISPLACED} :3")),
        (&["REMORA.ONCE t", "INCR", "INCR n"], "+OK -ERR wrong number of arguments for 'incr' command :4".to_owned()),
        (&["REMORA.ONCE t", "RESET", "INCR n"], "+OK +RESET :5".to_owned()),
        (&["REMORA.ONCE t", "DISCARD", "INCR n"], "+OK -ERR DISCARD without MULTI :6".to_owned()),
        (&["REMORA.ONCE t", "MULTI", "INCR n", "DISCARD", "INCR n"], "+OK +OK +QUEUED +OK :7".to_owned()),
        (&["REMORA.ONCE t", "REMORA.ONCE u", "INCR n"], "+OK +OK :8".to_owned()),
        (
            &["MULTI", "REMORA.ONCE t", "INCR n", "EXEC"],
            "+OK -ERR REMORA.ONCE inside MULTI is not allowed +QUEUED *1 :9".to_owned(),
        ),
        (&["REMORA.ONCE t", "INCR n", "INCR n"], "+OK :10 :11".to_owned()),
        (&["REMORA.ONCE"], "-ERR wrong number of arguments for 'remora.once' command".to_owned()),
        (&["REMORA.ONCE t PX"], "-ERR syntax error".to_owned()),
        (&["REMORA.ONCE t EX 1"], "-ERR syntax error".to_owned()),
        (&["REMORA.ONCE t PX 0"], "-ERR invalid expire time in 'remora.once' command".to_owned()),
        (&["REMORA.ONCE t PX x"], "-ERR value is not an integer or out of range".to_owned()),
        (&["REMORA.ONCE \"\""], "-ERR token of 0 bytes (limit 1 to 128)".to_owned()),
    ] {
        assert_eq!(gateway.send(&mut client, lines), answers, "{lines:?}");
    }
    let long = format!("REMORA.ONCE {}", "t".repeat(129));
    assert_eq!(gateway.send(&mut client, &[&long]), "-ERR token of 129 bytes (limit 1 to 128)");
    assert_eq!(gateway.counts(), [2, 0, 0]);
}

#[test]
fn a_token_expires_and_is_swept() {
    let cluster = Cluster::embedded().open().unwrap();
    let mut gateway = Gateway::new(&cluster);
    assert_eq!(gateway.once(&["REMORA.ONCE t PX 30", "INCR n", "REMORA.ONCE u PX 60000", "INCR n"]), "+OK :1 +OK :2");
    thread::sleep(Duration::from_millis(40));
    // The token is free again, also for other commands.
    assert_eq!(gateway.once(&["REMORA.ONCE t PX 30", "INCRBY n 5"]), "+OK :7");
    assert_eq!(cluster.count_rows("redis/once").unwrap(), 2);
    let store = Store::open_or_create(&cluster, "redis", StoreOptions::default()).unwrap();
    let _sweeper = Sweeper::start(&cluster, &store, None).unwrap();
    let began = Instant::now();
    while cluster.count_rows("redis/once").unwrap() != 1 {
        assert!(began.elapsed() < Duration::from_secs(60), "the token that has expired is still there");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(gateway.once(&["REMORA.ONCE u", "INCR n", "GET n"]), "+OK :2 $1 7");
}

#[test]
fn replies_that_are_not_kept_are_errors() {
    let cluster = Cluster::embedded().open().unwrap();
    let mut gateway = Gateway::new(&cluster);
    for (length, is_kept) in [(8_000, true), (8_192, false)] {
        let (token, value) = (format!("REMORA.ONCE {length}"), "v".repeat(length));
        assert_eq!(gateway.once(&[&format!("SET k {value}")]), "+OK");
        let reply = format!("+OK ${length} {value}");
        assert!(gateway.once(&[&token, "GETSET k w"]) == reply);
        let again = gateway.once(&[&token, "GETSET k w"]);
        let told = "+OK -ONCEDONE applied before; its reply was too long to keep";
        assert!(again == if is_kept { reply.as_str() } else { told }, "{length}: {again}");
    }
    let told = "-ONCEDONE applied before; its reply is of the other version of the protocol";
    assert!(gateway.once(&["HELLO 3", "REMORA.ONCE 8000", "GETSET k w"]).ends_with(told));
    assert_eq!(gateway.counts(), [2, 3, 0]);
}

/// Threads send the same command with the same token at once, as a client that has given up and a
/// gateway that has not. The values are large, so attempts wait for uploads.
#[test]
fn of_two_at_once_one_is_applied() {
    const ROUNDS: usize = 60;
    let cluster = Cluster::embedded().open().unwrap();
    let barrier = Arc::new(Barrier::new(3));
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let (cluster, barrier) = (cluster.clone(), barrier.clone());
            thread::spawn(move || {
                let mut gateway = Gateway::new(&cluster);
                let mut answers = Vec::new();
                for round in 0..ROUNDS {
                    let (token, large) = (format!("REMORA.ONCE {round}"), "x".repeat(9_000));
                    let append = format!("APPEND large{} {large}", round / 2);
                    barrier.wait();
                    answers.push(gateway.once(&[&token, "MULTI", "INCR n", &append, "RPUSH l x", "EXEC"]));
                }
                answers
            })
        })
        .collect();
    let answers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for round in 0..ROUNDS {
        let (count, length) = (round + 1, (round % 2 + 1) * 9_000);
        let wanted = format!("+OK +OK +QUEUED +QUEUED +QUEUED *3 :{count} :{length} :{count}");
        answers.iter().for_each(|answers| assert_eq!(answers[round], wanted));
    }
    let mut gateway = Gateway::new(&cluster);
    assert_eq!(gateway.once(&["GET n", "LLEN l"]), format!("$2 {ROUNDS} :{ROUNDS}"));
    let keys: Vec<String> = (0..ROUNDS / 2).map(|key| format!("large{key}")).collect();
    assert_eq!(gateway.once(&[&format!("DEL {}", keys.join(" "))]), format!(":{}", keys.len()));
    assert_eq!(cluster.count_rows("redis/large/chunks").unwrap(), 0, "each upload is linked once, or discarded");
}
