//! `remora add`: adds a memory node to a cluster that runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use remora::Cluster;
use remora::admin::{Configuration, NodeId};
use remora::floors::membership::Membership;
use remora::floors::node::Metadata;

use crate::drain::{LOOKED_AFTER, PAUSE, Progress, Stall, extent, failure, room};
use crate::meet::MeetArgs;
use crate::signals::stop_on_signals;
use crate::{Failure, Verdict, output, value};

#[derive(Debug, Args)]
#[command(after_help = "Example:
  remora memnode --listen 10.0.0.10:7000 --size 16GiB --key-file cluster.key     # on its machine
  remora add --connect 10.0.0.7:7000,10.0.0.8:7000,10.0.0.9:7000 --configuration /var/lib/remora/bank 10.0.0.10:7000

The node has nothing yet. A controller takes it in and copies shards there, while transactions go on, until it has as much as
the others. Ends when that is so; if it is ended before, the work goes on. Clients that run find the node by the configuration,
and so do those that come: --connect goes on naming the nodes that the cluster was founded with. A node that was drained, and
started again, is given its share again by the same command.

Exit status: 0 the node has its share, which may be nothing, 2 it cannot be added, or was lost again.")]
pub(crate) struct AddOptions {
    #[command(flatten)]
    meet: MeetArgs,
    /// The memory node, as all machines are to reach it: host:port.
    #[arg(value_name = "ADDR")]
    node: String,
}

/// Time that a controller may take until it has reached the node. After that, the command says that
/// something is wrong.
const UNREACHED: Duration = Duration::from_secs(10);

pub(crate) fn add(options: &AddOptions) -> Result<Verdict, Failure> {
    let stop = stop_on_signals()?;
    let cluster = options.meet.connect(&stop)?;
    let configuration = cluster.configuration().ok_or_else(|| Failure::new("--configuration", "is needed"))?;
    if !configuration.look(Membership::has_controller).map_err(failure)? {
        return Err(Failure::new(&options.node, LOOKED_AFTER));
    }
    let node = cluster.add_node(&options.node).map_err(|error| Failure::new("remora add", error))?;
    let is_lost = || configuration.look(|membership| membership.lost().has(node)).map_err(failure);
    let (began, mut has_said) = (Instant::now(), false);
    while is_lost()? {
        if !has_said && began.elapsed() > UNREACHED {
            output::note(&format!(
                "no controller has reached {} yet: see that one runs, that its machine reaches the node by this name, and that \
                 both have the same key",
                options.node
            ));
            has_said = true;
        }
        wait(&stop, options)?;
    }
    output::show(&format!("{} is memory node {} of the cluster\n", options.node, node.0))?;
    let (mut stall, mut said) = (Stall::new(), 0);
    loop {
        if is_lost()? {
            let why =
                "was lost again before it had its share: see that it runs; started again, empty, it is taken in again";
            return Err(Failure::new(&options.node, why));
        }
        // While an epoch begins, this is not known.
        let is_arranged = cluster.is_arranged().unwrap_or(false);
        if let Some(progress) = Progress::of(&cluster, configuration) {
            let joining = progress.joining_at(node);
            if joining > 0 && joining != said {
                output::show(&format!("{joining} shards are being copied to {}\n", options.node))?;
                said = joining;
            }
            if is_arranged {
                let share = match progress.shards_at(node) {
                    0 => nothing(&progress.catalog, room_at(&cluster, node)),
                    count => format!("has copies of {count} shards"),
                };
                output::show(&format!("{} {share}\n", options.node))?;
                return Ok(Verdict::Sound);
            }
        }
        stall.look(said, || nobody_looks(configuration));
        wait(&stop, options)?;
    }
}

fn nobody_looks(configuration: &Arc<dyn Configuration>) -> Option<String> {
    let is_looked_after = configuration.look(Membership::has_controller).ok()?;
    (!is_looked_after).then(|| LOOKED_AFTER.to_owned())
}

fn room_at(cluster: &Cluster, node: NodeId) -> Option<u64> {
    // The room is computed with the other nodes, because clients have rings at these that the new
    // node is to have, too.
    room(cluster, cluster.live_nodes().with(node))?.remove(&node)
}

/// Says why a node with this much room has no shards.
fn nothing(catalog: &Metadata, room: Option<u64>) -> String {
    let Some(smallest) = catalog.shards.iter().filter(|shard| !shard.replicas.is_empty()).map(extent).min() else {
        return "has nothing yet: there are no tables, and it gets its part of those that are created".to_owned();
    };
    match room.filter(|room| *room < smallest) {
        Some(room) => {
            let [room, smallest] = [room, smallest].map(value::show_bytes);
            format!("has no shards: none fits, since the smallest takes {smallest}, and there is room for {room}")
        }
        None => "has no shards: none needs to be there, since that would spread them no more evenly".to_owned(),
    }
}

fn wait(stop: &AtomicBool, options: &AddOptions) -> Result<(), Failure> {
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::new(&options.node, "has not got its share yet: the cluster sees to it"));
    }
    thread::sleep(PAUSE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use remora::floors::node::{Replica, ShardPlacement, TableId, node};

    use super::*;

    #[test]
    fn who_gets_nothing_is_told_why() {
        let there = Replica { node: NodeId(0), region: node::REGION, base: 0, joining: false };
        let shard = |bytes, replicas| ShardPlacement { table: TableId(0), bytes, replicas };
        // A shard that was discarded has no replicas, and needs no room.
        let shards = vec![shard(3 << 20, vec![there]), shard((2 << 20) - 1, vec![there]), shard(1 << 10, Vec::new())];
        let catalog = Metadata { shards, ..Metadata::default() };
        let none = Metadata::default();
        for (catalog, room, why) in [
            (&none, None, "there are no tables"),
            (&catalog, Some(1 << 20), "none fits, since the smallest takes 2.0 MiB, and there is room for 1.0 MiB"),
            (&catalog, Some(2 << 20), "none needs to be there"),
        ] {
            let said = nothing(catalog, room);
            assert!(said.contains(why), "{said}");
        }
    }
}
