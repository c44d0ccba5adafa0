//! Measures the CPU time of a [`Db`](remora::Db) of eight threads that has nothing to do, over TCP.
//!
//! ```sh
//! for port in 7000 7001 7002; do remora memnode --listen 127.0.0.1:$port --size 64MiB & done
//! nodes="127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002"
//! cargo run --release -p remora --example at_rest -- $nodes
//! ```
//!
//! Prints the share of one core that all threads of this process take together, in ten seconds at
//! rest. The memory nodes are other processes, and are not counted.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use remora::connect::{Nodes, Place};
use remora::{Cluster, WorkerOptions};

const THREADS: usize = 8;
const REST: Duration = Duration::from_secs(10);

/// Returns the nanoseconds that the threads of this process have run, by the system's count.
fn ran_ns() -> Result<u64, std::io::Error> {
    let mut total = 0;
    for task in fs::read_dir("/proc/self/task")? {
        let ran = fs::read_to_string(task?.path().join("schedstat"))?;
        total += ran.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(total)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nodes: Vec<String> = std::env::args().skip(1).collect();
    if nodes.is_empty() {
        return Err("name the memory nodes: at_rest HOST:PORT ...".into());
    }
    let folder = std::env::temp_dir().join(format!("remora-at-rest-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let configuration = Some(Place::File(folder.join("configuration")));
    let cluster = Cluster::connect(Nodes::Tcp(nodes)).configuration(configuration).open()?;
    let db = cluster.db(THREADS, WorkerOptions::default())?;
    thread::sleep(Duration::from_secs(1));
    let (before, began) = (ran_ns()?, Instant::now());
    thread::sleep(REST);
    let share = (ran_ns()? - before) as f64 / began.elapsed().as_nanos() as f64;
    println!("{THREADS} threads at rest take {:.2} % of a core", share * 100.0);
    drop(db);
    fs::remove_dir_all(&folder)?;
    Ok(())
}
