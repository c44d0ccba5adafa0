//! `remora drain`: has what a memory node holds go elsewhere, so that it can be stopped.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use clap::Args;
use remora::floors::fabric::NodeSet;
use remora::floors::memory::Replica;
use remora::{Cluster, NodeId};

use crate::connected::stop_on_signals;
use crate::meet::MeetArgs;
use crate::{Failure, Verdict, output};

#[derive(Debug, Args)]
#[command(after_help = "Example:
  remora drain --connect 10.0.0.7:7000,10.0.0.8:7000,10.0.0.9:7000 --configuration /var/lib/remora/bank 10.0.0.8:7000

A controller makes copies of it at the other memory nodes while transactions go on; when they have everything, the cluster
goes on without the node. Ends when that is so; if it is ended before, the work goes on. Stopped and started again, a memory
node has nothing, and is taken in again.

Exit status: 0 the node may be stopped, 2 it cannot be.")]
pub(crate) struct DrainOptions {
    #[command(flatten)]
    meet: MeetArgs,
    /// Also if there are too few other nodes for as many copies as there are now.
    #[arg(long)]
    fewer_copies: bool,
    /// The memory node, as it is named by --connect.
    #[arg(value_name = "ADDR")]
    node: String,
}

/// Between two looks.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// Who says so would wait for ever.
pub(crate) const LOOKED_AFTER: &str = "nobody looks after the memory nodes: start remora controller";

pub(crate) fn drain(options: &DrainOptions) -> Result<Verdict, Failure> {
    let stop = stop_on_signals()?;
    let cluster = options.meet.connect()?;
    let named = |node: &NodeId| cluster.nodes().and_then(|nodes| nodes.name(*node)).as_ref() == Some(&options.node);
    let node = (0..cluster.memory_nodes()).map(NodeId).find(named);
    let node = node.ok_or_else(|| {
        Failure::new(&options.node, "is none of the memory nodes that --connect names, or that were added")
    })?;
    let configuration = cluster.configuration().ok_or_else(|| Failure::new("--configuration", "is needed"))?;
    let failure = |error: remora::ConfigurationError| Failure::new("--configuration", error);
    if !configuration.look(|membership| membership.has_controller()).map_err(failure)? {
        return Err(Failure::new(&options.node, LOOKED_AFTER));
    }
    let wanted = NodeSet::default().with(node);
    let leaving = configuration.look(|membership| membership.leaving()).map_err(failure)?;
    let rest = cluster.live_nodes().without(leaving).without(wanted).count();
    if rest == 0 {
        return Err(Failure::new(&options.node, "is the last memory node"));
    }
    let catalog = cluster.catalog();
    if let Some(table) =
        catalog.tables.iter().find(|table| u16::from(table.spec.replicas) > rest && !options.fewer_copies)
    {
        let (copies, name) = (table.spec.replicas, &table.spec.name);
        let why = format!(
            "table {name:?} has {copies} copies, and {rest} other memory nodes are left: --fewer-copies accepts that"
        );
        return Err(Failure::new(&options.node, why));
    }
    configuration.change(|membership| membership.drain(wanted)).map_err(failure)?;
    let mut said = 0;
    while !configuration.look(|membership| membership.lost().has(node)).map_err(failure)? {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::new(&options.node, "its shards go elsewhere still: the cluster sees to it"));
        }
        let left = shards_at(&cluster, node).map_or(said, |replicas| replicas.len());
        if left != said {
            output::show(&format!("{left} shards are left at {}\n", options.node));
            said = left;
        }
        thread::sleep(PAUSE);
    }
    output::show(&format!("nothing is left at {}: it may be stopped\n", options.node));
    Ok(Verdict::Sound)
}

/// Replicas at a node; nobody can say just while an epoch begins.
pub(crate) fn shards_at(cluster: &Cluster, node: NodeId) -> Option<Vec<Replica>> {
    cluster.refresh().ok()?;
    let shards = cluster.catalog().shards;
    Some(shards.into_iter().flat_map(|shard| shard.replicas).filter(|replica| replica.node == node).collect())
}
