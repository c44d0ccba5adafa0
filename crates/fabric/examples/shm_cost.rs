//! Measures two costs of the shared-memory backend: a round, in nanoseconds, and an idle memory
//! node.

use std::hint::black_box;
use std::time::Instant;

use remora_fabric::shm::Shm;
use remora_fabric::shm::file::{ShmFiles, ShmNode};
use remora_fabric::{Address, ClientId, Fabric, Handler, Host, Lane, NodeId, RegionId, Round, Worker};

fn word(index: u64) -> Address {
    Address { node: NodeId(0), region: RegionId(0), offset: 8 * index }
}

/// Prints the fastest of several runs. Other load on the machine can only add to the time.
async fn rounds(lane: &Lane, what: &str, turns: u64, fill: impl Fn(&mut Round<'_>, u64)) {
    let mut fastest = f64::MAX;
    for _ in 0..10 {
        let began = Instant::now();
        for turn in 0..turns {
            let mut round = lane.round();
            fill(&mut round, black_box(turn) % 512);
            black_box(&lane.execute(round).await.expect("a healthy node"));
        }
        fastest = fastest.min(began.elapsed().as_nanos() as f64 / turns as f64);
    }
    println!("{what:<28} {fastest:8.1} ns");
}

struct Adder;

impl Handler for Adder {
    fn call(&self, _: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        reply.extend(request.iter().map(|word| word + 1));
    }
}

async fn calls(lane: &Lane) {
    rounds(lane, "call, 2 words each way", 20_000, |round, at| _ = round.call(NodeId(0), &[at, 1], None, 2)).await;
    rounds(lane, "4 calls in a round", 20_000, |round, at| {
        (0..4).for_each(|_| _ = round.call(NodeId(0), &[at, 1], None, 2));
    })
    .await;
    let mut slept = Vec::new();
    for _ in 0..200 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        let began = Instant::now();
        let mut round = lane.round();
        round.call(NodeId(0), &[1, 1], None, 2);
        lane.execute(round).await.expect("a healthy node");
        slept.push(began.elapsed().as_nanos());
    }
    slept.sort_unstable();
    println!("{:<28} {:8.1} ns (median)", "call to a parked server", slept[100] as f64);
}

async fn one_sided(lane: &Lane) {
    rounds(lane, "READ 64 B", 1_000_000, |round, at| _ = round.read(word(8 * at), 64)).await;
    rounds(lane, "WRITE 64 B", 1_000_000, |round, at| round.write_words(word(8 * at), &[at; 8])).await;
    rounds(lane, "CAS", 1_000_000, |round, at| _ = round.compare_swap(word(8 * at), 0, 0)).await;
    rounds(lane, "CAS + READ 64 B", 1_000_000, |round, at| {
        round.compare_swap(word(8 * at), 0, 0);
        round.read(word(8 * at), 64);
    })
    .await;
    rounds(lane, "8 x READ 64 B", 300_000, |round, at| {
        (0..8).for_each(|number| _ = round.read(word(8 * (at + number)), 64));
    })
    .await;
}

fn measure(fabric: &dyn Fabric) {
    let worker = Worker::new();
    let endpoint = worker.connect(fabric, ClientId(1)).expect("a connection");
    let lane = worker.lane(&endpoint, 1).expect("a lane");
    worker.run([(lane.id(), async {
        one_sided(&lane).await;
        calls(&lane).await;
    })]);
}

fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// With a path as its argument, measures a node in that file, with two processes. Without one,
/// measures a node in this process.
fn main() {
    if let Some(path) = std::env::args().nth(1) {
        if std::env::args().nth(2).is_some() {
            return measure(&ShmFiles::new(&[path], Vec::new()).expect("the server's file"));
        }
        let node = ShmNode::open(&path, Some(1 << 20)).expect("a file");
        node.answer(Box::new(Adder));
        let myself = std::env::current_exe().expect("this program");
        let done = std::process::Command::new(myself).args([&*path, "client"]).status();
        assert!(done.is_ok_and(|status| status.success()));
        let before = cpu_ns();
        std::thread::sleep(std::time::Duration::from_secs(1));
        println!("{:<28} {:8.3} % of a CPU", "idle memory node", (cpu_ns() - before) as f64 / 1e7);
        return;
    }
    let fabric = Shm::new(&[vec![1 << 20]]).expect("memory");
    fabric.answer(NodeId(0), Box::new(Adder));
    measure(&fabric);
}
