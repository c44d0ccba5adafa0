//! Connections of several threads at once, as those of several gateways: what they do to the same
//! keys must be as if they had done it one after the other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::{Cluster, WorkerOptions};
use remora_gateway::net::Next;
use remora_gateway::{Connection, Local, Server, ServerOptions, Store, StoreOptions};

const THREADS: u64 = 3;

/// Runs a body on each of several threads, each with a connection and a worker of its own. The body
/// gets the thread's number, and what sends lines and returns the answers, one a line. Returns what
/// the bodies have returned.
fn on_threads<T: Send + 'static>(
    server: &Arc<Server>,
    cluster: &Cluster,
    body: impl Fn(u64, &mut dyn FnMut(&[&str]) -> Vec<String>) -> T + Send + Sync + Clone + 'static,
) -> Vec<T> {
    let threads = (0..THREADS).map(|number| {
        let (server, cluster, body) = (server.clone(), cluster.clone(), body.clone());
        thread::spawn(move || {
            let mut worker = cluster.worker(WorkerOptions::default().seed(number + 1)).unwrap();
            let (local, mut connection) = (Local::new(&server, number), Connection::new(number + 1, &server));
            let mut send = |lines: &[&str]| {
                let mut input: Vec<u8> = lines.iter().flat_map(|line| [line.as_bytes(), b"\r\n"].concat()).collect();
                let (mut input, mut output) = (&mut input[..], Vec::new());
                let next = worker.block_on(async |session| {
                    connection.serve(&server, session, &local, &mut input, &mut output).await
                });
                assert_eq!((next, input.len()), (Next::More, 0));
                String::from_utf8(output).unwrap().lines().map(str::to_owned).collect()
            };
            body(number, &mut send)
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn gateway() -> (Arc<Server>, Cluster) {
    let cluster = Cluster::embedded().open().unwrap();
    let store = Store::open_or_create(&cluster, "redis", StoreOptions::default()).unwrap();
    (Arc::new(Server::new(store, ServerOptions::default()).unwrap()), cluster)
}

/// Returns the integer of an answer.
fn integer(line: &str) -> u64 {
    line.strip_prefix(':').and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no integer: {line}"))
}

#[test]
fn each_increment_has_its_own_answer() {
    const ROUNDS: u64 = 200;
    let (server, cluster) = gateway();
    let answers = on_threads(&server, &cluster, |_, send| {
        let mut seen = Vec::new();
        for _ in 0..ROUNDS {
            let answers = send(&["INCR n", "INCR n", "SET other x", "INCR n"]);
            let [first, second, _, third] = &answers[..] else { panic!("{answers:?}") };
            let now = [first, second, third].map(|line| integer(line));
            assert_eq!(now, [now[0], now[0] + 1, now[0] + 2], "a pipeline that fits is one transaction");
            seen.extend(now);
        }
        assert!(seen.is_sorted(), "a connection sees its commands in order");
        seen
    });
    let all: BTreeSet<u64> = answers.concat().into_iter().collect();
    assert_eq!(all, (1..=3 * THREADS * ROUNDS).collect());
}

#[test]
fn exec_is_atomic() {
    const ROUNDS: usize = 200;
    let (server, cluster) = gateway();
    on_threads(&server, &cluster, |number, send| {
        for round in 0..ROUNDS {
            if number == 0 {
                let answers = send(&["MGET a b c", "GET a"]);
                let values = answers[1..].iter().filter(|line| !line.starts_with('$') && !line.starts_with('*'));
                let values: Vec<i64> = values.map(|line| line.parse().unwrap()).collect();
                if let [.., _] = &values[..]
                    && values.len() == 4
                {
                    assert_eq!(values[..3].iter().sum::<i64>(), 0, "{answers:?}");
                    assert_eq!(values[0], values[3], "{answers:?}");
                }
                continue;
            }
            let amount = format!("{}", round % 7 + 1);
            let lines = ["MULTI", &format!("DECRBY a {amount}"), &format!("INCRBY b {amount}"), "INCRBY c 0", "EXEC"];
            let answers = send(&lines);
            assert_eq!(answers.len(), 8, "{answers:?}");
        }
    });
}

#[test]
fn of_two_that_have_watched_one_writes() {
    const ROUNDS: usize = 150;
    let (server, cluster) = gateway();
    let written = on_threads(&server, &cluster, |_, send| {
        let mut written = 0;
        for _ in 0..ROUNDS {
            let answers = send(&["WATCH n", "GET n"]);
            let before: u64 = answers.get(2).map_or(0, |digits| digits.parse().unwrap());
            let answers = send(&["MULTI", &format!("SET n {}", before + 1), "EXEC"]);
            match answers.last().map(String::as_str) {
                Some("+OK") => written += 1,
                Some("*-1") => {}
                other => panic!("{other:?}"),
            }
        }
        written
    });
    let total = written.iter().sum::<u64>().to_string();
    let last = on_threads(&server, &cluster, |_, send| send(&["GET n"])[1].clone());
    assert_eq!(last, vec![total; THREADS as usize]);
}

#[test]
fn what_is_pushed_is_popped_once() {
    const ROUNDS: u64 = 150;
    let (server, cluster) = gateway();
    let popped = on_threads(&server, &cluster, |number, send| {
        let mut popped = Vec::new();
        for round in 0..ROUNDS {
            let name = number * ROUNDS + round;
            let answers =
                send(&[&format!("RPUSH queue {name}"), "LPOP queue", &format!("SADD set {name}"), "SPOP set"]);
            let found = answers.iter().filter(|line| line.bytes().all(|byte| byte.is_ascii_digit()));
            let found: Vec<u64> = found.map(|digits| digits.parse().unwrap()).collect();
            assert_eq!(found.len(), 2, "a pipeline that fits is one transaction: {answers:?}");
            popped.push((found[0], found[1]));
        }
        popped
    });
    let (queue, set): (BTreeSet<u64>, BTreeSet<u64>) = popped.concat().into_iter().unzip();
    let all: BTreeSet<u64> = (0..THREADS * ROUNDS).collect();
    assert_eq!((queue, set), (all.clone(), all));
}

/// Counts the attempts that have committed, and those of them that another one's commit decided.
#[derive(Clone, Default)]
struct Commits(Arc<[AtomicU64; 2]>);

impl Observer for Commits {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if matches!(event.outcome, Outcome::Committed) {
            self.0[0].fetch_add(1, Ordering::Relaxed);
            self.0[1].fetch_add(u64::from(event.decided_by != event.id), Ordering::Relaxed);
        }
    }
}

/// Connections of one gateway that change one key commit together, and each has its own answer.
#[test]
fn increments_of_connections_of_one_thread_commit_together() {
    const LANES: usize = 8;
    const ROUNDS: usize = 100;
    let (server, cluster) = gateway();
    let options = WorkerOptions::default().coroutines(LANES).yield_after_rounds(true);
    let (mut worker, commits) = (cluster.worker(options).unwrap(), Commits::default());
    worker.sessions().iter_mut().for_each(|session| _ = session.observe(Some(Box::new(commits.clone()))));
    let local = Local::new(&server, 1);
    let answers = worker.run(async |lane, session| {
        let mut connection = Connection::new(lane as u64 + 1, &server);
        let mut seen = Vec::new();
        for _ in 0..ROUNDS {
            let (mut input, mut output) = (b"INCR n\r\nINCR n\r\n".to_vec(), Vec::new());
            connection.serve(&server, session, &local, &mut &mut input[..], &mut output).await;
            seen.extend(String::from_utf8(output).unwrap().lines().map(integer));
        }
        assert!(seen.is_sorted());
        seen
    });
    let all: BTreeSet<u64> = answers.concat().into_iter().collect();
    assert_eq!(all, (1..=2 * (LANES * ROUNDS) as u64).collect());
    let [all, members] = [0, 1].map(|kind| commits.0[kind].load(Ordering::Relaxed));
    assert!(all >= (LANES * ROUNDS) as u64 && 2 * members > all, "{members} of {all} have joined others");
}
