//! Three memory nodes in processes of their own. One of them is killed while a client counts, and
//! the client goes on without a restart.
//!
//! `cargo run --release -p remora --example fail_over`: the program starts itself three times more,
//! as the memory nodes.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora::connect::{ConnectOptions, Nodes, Place};
use remora::node::{MemoryNode, ServerOptions};
use remora::{Cluster, Error, TableOptions, Verdict};

/// Serves 64 MiB of this process until the process is killed, or its parent has ended. Prints the
/// address first.
fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let node = MemoryNode::listen("127.0.0.1:0", 64 << 20, ServerOptions::default())?;
    println!("{}", node.address().ok_or("no address")?);
    std::io::stdin().read_to_string(&mut String::new())?;
    Ok(())
}

/// Starts a memory node, and returns its address.
fn start() -> Result<(Child, String), Box<dyn std::error::Error>> {
    let mut process =
        Command::new(std::env::current_exe()?).arg("serve").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut address = String::new();
    BufReader::new(process.stdout.take().ok_or("no output")?).read_line(&mut address)?;
    Ok((process, address.trim().to_owned()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return serve();
    }
    let (mut processes, addresses): (Vec<_>, Vec<_>) =
        (0..3).map(|_| start()).collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    // The clients of one host share their configuration in a file.
    let configuration = std::env::temp_dir().join(format!("fail_over-{}", std::process::id()));
    let options: ConnectOptions = Cluster::connect(addresses.join(",").parse::<Nodes>()?)
        .configuration(Place::File(configuration.clone()))
        .patience(Duration::from_millis(500));
    let cluster = options.open()?;
    let counters = cluster.create_table::<u64, u64>("counters", TableOptions::for_rows(10))?;
    cluster.load(&counters, [(1, 0)])?;

    let ends = AtomicBool::new(false);
    thread::scope(|scope| -> Result<(), Box<dyn std::error::Error>> {
        // The controller finds out that a node is lost. Most often it is a process of its own,
        // `remora controller`.
        scope.spawn(|| {
            let controller = options.clone().controls(true).open().expect("the nodes answer");
            controller.controller().expect("a controller").run(|| ends.load(Ordering::Relaxed));
        });
        let mut worker = cluster.worker(Default::default())?;
        let counted = worker.block_on(async |session| {
            let (began, mut longest, mut last) = (Instant::now(), Duration::ZERO, Instant::now());
            let mut counted = 0;
            while began.elapsed() < Duration::from_secs(3) {
                if counted == 1_000 {
                    processes[0].kill().expect("a process can be killed");
                    println!("memory node 0 is killed");
                }
                let done = session.transact(async |tx| counters.get_mut(tx, 1).await.map(|mut count| *count += 1));
                counted += match done.await {
                    Ok(()) => 1,
                    // The answer was lost with the node. Recovery has decided the transaction.
                    Err(Error::Unknown(id)) => match session.resolve(id, Duration::from_secs(10)).await? {
                        Verdict::Committed => 1,
                        Verdict::Aborted => 0,
                        Verdict::Undecided | Verdict::Forgotten => return Err(Error::Unknown(id)),
                    },
                    Err(error) => return Err(error),
                };
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
            println!("the longest transaction took {longest:.1?}");
            let found = session.transact(async |tx| counters.require(tx, 1).await).await?;
            Ok::<_, Error>((counted, found))
        });
        ends.store(true, Ordering::Relaxed);
        let (counted, found) = counted?;
        println!("{counted} increments are committed, and {found} are there");
        assert_eq!(counted, found);
        Ok(())
    })?;
    for process in &mut processes {
        _ = process.kill();
        _ = process.wait();
    }
    Ok(std::fs::remove_file(configuration)?)
}
