//! The cost of a program that does nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use remora::connect::{ConnectOptions, Nodes, Place};
use remora::node::{MemoryNode, ServerOptions};
use remora::{Cluster, WorkerOptions};

const THREADS: usize = 8;

/// Runs a test in its own process, because other tests in this process are not at rest.
fn alone(test: &str, body: impl FnOnce()) {
    const ALONE: &str = "REMORA_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let ran = again.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said} {}", String::from_utf8_lossy(&ran.stderr));
}

/// How often each thread of a pool has woken up so far, by the system's count. The names are those
/// of the threads of a [`Db`](remora::Db).
fn wake_ups() -> BTreeMap<PathBuf, u64> {
    let of_task = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let is_worker = field("Name:")?.starts_with("remora-");
        is_worker.then_some((task.path(), field("voluntary_ctxt_switches:")?.parse().ok()?))
    };
    fs::read_dir("/proc/self/task").unwrap().filter_map(|task| of_task(task.ok()?)).collect()
}

/// A pool without work wakes up for its leases, and for nothing else.
fn assert_rests(cluster: &Cluster) {
    let _db = cluster.db(THREADS, WorkerOptions::default()).unwrap();
    thread::sleep(Duration::from_millis(300));
    let (before, began) = (wake_ups(), Instant::now());
    assert!(before.len() >= THREADS, "{before:?}");
    thread::sleep(Duration::from_millis(1_500));
    let (after, took) = (wake_ups(), began.elapsed());
    let most = before.iter().filter_map(|(task, before)| Some(after.get(task)? - before)).max().unwrap();
    // A lease of two seconds is renewed three times, and so often the others' are looked at.
    let a_second = most as f64 / took.as_secs_f64();
    assert!(a_second < 15.0, "a thread wakes up {a_second:.0} times a second");
}

#[test]
fn a_pool_at_rest_sleeps() {
    alone("at_rest::a_pool_at_rest_sleeps", || {
        let nodes = [(); 3].map(|()| MemoryNode::listen("127.0.0.1:0", 16 << 20, ServerOptions::default()).unwrap());
        let addresses = nodes.iter().map(|node| node.address().unwrap().to_string()).collect();
        let folder = std::env::temp_dir().join(format!("remora-at-rest-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let configuration = Some(Place::File(folder.join("configuration")));
        let options = ConnectOptions::default().configuration(configuration);
        assert_rests(&options.clone().nodes(Nodes::Tcp(addresses)).open().unwrap());
        fs::remove_dir_all(&folder).unwrap();
    });
}

#[test]
fn a_pool_of_embedded_servers_sleeps() {
    alone("at_rest::a_pool_of_embedded_servers_sleeps", || {
        let options = Cluster::embedded().node_bytes(16 << 20);
        assert_rests(&options.open_servers(None).unwrap());
    });
}
