//! `remora add`: adds a memory node to a cluster that runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::Args;

use crate::connected::stop_on_signals;
use crate::drain::{LOOKED_AFTER, PAUSE, shards_at};
use crate::meet::MeetArgs;
use crate::{Failure, Verdict, output};

#[derive(Debug, Args)]
#[command(after_help = "Example:
  remora memnode --listen 10.0.0.10:7000 --size 16GiB --key-file cluster.key     # on its machine
  remora add --connect 10.0.0.7:7000,10.0.0.8:7000,10.0.0.9:7000 --configuration /var/lib/remora/bank 10.0.0.10:7000

The node has nothing yet. A controller takes it in and copies shards there, while transactions go on, until it has as much as
the others. Ends when that is so; if it is ended before, the work goes on. Clients that run find the node by the configuration,
and so do those that come: --connect goes on naming the nodes that the cluster was founded with. A node that was drained, and
started again, is given its share again by the same command.

Exit status: 0 the node has its share, 2 it cannot be added.")]
pub(crate) struct AddOptions {
    #[command(flatten)]
    meet: MeetArgs,
    /// The memory node, as all machines are to reach it: host:port.
    #[arg(value_name = "ADDR")]
    node: String,
}

pub(crate) fn add(options: &AddOptions) -> Result<Verdict, Failure> {
    let stop = stop_on_signals()?;
    let cluster = options.meet.connect()?;
    let configuration = cluster.configuration().ok_or_else(|| Failure::new("--configuration", "is needed"))?;
    let failure = |error: remora::ConfigurationError| Failure::new("--configuration", error);
    if !configuration.look(|membership| membership.has_controller()).map_err(failure)? {
        return Err(Failure::new(&options.node, LOOKED_AFTER));
    }
    let node = cluster.add_node(&options.node).map_err(|error| Failure::new("remora add", error))?;
    while configuration.look(|membership| membership.lost().has(node)).map_err(failure)? {
        wait(&stop, options)?;
    }
    output::show(&format!("{} is memory node {} of the cluster\n", options.node, node.0));
    let mut said = 0;
    loop {
        // Not while an epoch begins.
        let is_arranged = cluster.is_arranged().unwrap_or(false);
        if let Some(replicas) = shards_at(&cluster, node) {
            let joining = replicas.iter().filter(|replica| replica.joining).count();
            if joining > 0 && joining != said {
                output::show(&format!("{joining} shards are being copied to {}\n", options.node));
                said = joining;
            }
            if is_arranged {
                output::show(&format!("{} has copies of {} shards\n", options.node, replicas.len()));
                return Ok(Verdict::Sound);
            }
        }
        wait(&stop, options)?;
    }
}

fn wait(stop: &AtomicBool, options: &AddOptions) -> Result<(), Failure> {
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::new(&options.node, "has not got its share yet: the cluster sees to it"));
    }
    thread::sleep(PAUSE);
    Ok(())
}
