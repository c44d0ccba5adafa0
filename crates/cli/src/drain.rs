//! `remora drain`: moves the shards of a memory node to other nodes, so that the node can be
//! stopped.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use remora::Cluster;
use remora::admin::{Configuration, ConfigurationError, NodeId};
use remora::floors::fabric::{ClientId, Lane, NodeSet, block_on};
use remora::floors::membership::Membership;
use remora::floors::node::{Metadata, ShardId, ShardPlacement, metadata, node};

use crate::meet::MeetArgs;
use crate::signals::stop_on_signals;
use crate::{Failure, Verdict, output, value};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  remora drain --connect 10.0.0.7:7000,10.0.0.8:7000,10.0.0.9:7000 --configuration /var/lib/remora/bank 10.0.0.8:7000
  remora drain --connect 10.0.0.7:7000,10.0.0.8:7000,10.0.0.9:7000 --configuration /var/lib/remora/bank --cancel 10.0.0.8:7000

A controller makes copies of it at the other memory nodes while transactions go on; when they have everything, the cluster
goes on without the node. Ends when that is so; if it is ended before, the work goes on, unless it is cancelled. If another
memory node is lost meanwhile, the node keeps its copies until there are enough others again. Stopped and started again, a
memory node has nothing, and is taken in again.

Exit status: 0 the node may be stopped, or stays, 2 it cannot be.")]
pub(crate) struct DrainOptions {
    #[command(flatten)]
    meet: MeetArgs,
    /// Drain the node even if too few other nodes are left for the number of copies.
    #[arg(long)]
    fewer_copies: bool,
    /// Let the node stay, with the shards that it still has.
    #[arg(long, conflicts_with = "fewer_copies")]
    cancel: bool,
    /// The memory node, as it is named by --connect.
    #[arg(value_name = "ADDR")]
    node: OsString,
}

/// Pause between two looks at the progress.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// The reason why a command that waits for a controller would never end.
pub(crate) const LOOKED_AFTER: &str = "nobody looks after the memory nodes: start remora controller";

pub(crate) fn drain(options: &DrainOptions) -> Result<Verdict, Failure> {
    let stop = stop_on_signals()?;
    let cluster = options.meet.connect(&stop)?;
    let name = options.node.display().to_string();
    let name = output::printable(&name);
    let named = |node: &NodeId| cluster.nodes().is_some_and(|nodes| nodes.is_named(*node, &options.node));
    let node = (0..cluster.memory_nodes()).map(NodeId).find(named);
    let node = node
        .ok_or_else(|| Failure::new(&name, "is none of the memory nodes that --connect names, or that were added"))?;
    let configuration = cluster.configuration().ok_or_else(|| Failure::new("--configuration", "is needed"))?;
    if options.cancel {
        let stays = configuration.change(|membership| cancel(membership, node)).map_err(failure)?;
        stays.map_err(|why| Failure::new(&name, why))?;
        output::show(&format!("{name} stays, with what it has still\n"))?;
        return Ok(Verdict::Sound);
    }
    if !configuration.look(Membership::has_controller).map_err(failure)? {
        return Err(Failure::new(&name, LOOKED_AFTER));
    }
    cluster.in_one_epoch(|| cluster.refresh()).map_err(|error| Failure::new("--connect", error))?;
    let (all, catalog) = (NodeSet::first(cluster.memory_nodes()), cluster.catalog());
    let begins = |membership: &mut Membership| begin(membership, node, all, &catalog, options.fewer_copies);
    let begun = configuration.change(begins).map_err(failure)?;
    begun.map_err(|why| Failure::new(&name, why))?;
    let mut stall = Stall::new();
    let mut said = 0;
    loop {
        let now = |membership: &Membership| (membership.lost().has(node), membership.leaving().has(node));
        match configuration.look(now).map_err(failure)? {
            (true, _) => break,
            (_, false) => return Err(Failure::new(&name, "stays: somebody has cancelled that it leaves")),
            (_, true) if stop.load(Ordering::Relaxed) => {
                return Err(Failure::new(&name, "its shards go elsewhere still: the cluster sees to it"));
            }
            (_, true) => {}
        }
        let progress = Progress::of(&cluster, configuration);
        let left = progress.as_ref().map_or(said, |progress| progress.left_at(node));
        if left != said && left > 0 {
            output::show(&format!("{left} shards are left at {name}\n"))?;
        }
        said = left;
        stall.look(left, || why_nothing_moves(&cluster, configuration, progress.as_ref(), node));
        thread::sleep(PAUSE);
    }
    output::show(&format!("nothing is left at {name}: it may be stopped\n"))?;
    Ok(Verdict::Sound)
}

pub(crate) fn failure(error: ConfigurationError) -> Failure {
    Failure::new("--configuration", error)
}

/// Marks one of `all` nodes as leaving, if enough others are left, or if fewer copies are accepted.
/// This is a part of the configuration's change, because other commands may drain other nodes at
/// the same time.
fn begin(
    membership: &mut Membership,
    node: NodeId,
    all: NodeSet,
    catalog: &Metadata,
    fewer_copies: bool,
) -> Result<(), String> {
    let wanted = NodeSet::default().with(node);
    let away = [membership.lost(), membership.losing(), membership.leaving(), wanted];
    let rest = away.into_iter().fold(all, NodeSet::without).count();
    if rest == 0 {
        return Err("is the last memory node".to_owned());
    }
    let stays = |shard: &&ShardPlacement| {
        let table = catalog.tables.get(usize::from(shard.table.0));
        is_at(shard, node) && table.is_some_and(|table| table.is_there() && !table.spec.discipline.can_move())
    };
    if let Some(shard) = catalog.shards.iter().find(stays) {
        let name = &catalog.tables[usize::from(shard.table.0)].spec.name;
        return Err(format!("has a part of table {name:?}, whose protocol keeps one copy: it cannot move"));
    }
    let too_few = catalog.tables.iter().find(|table| u16::from(table.spec.replicas) > rest);
    match too_few.filter(|_| !fewer_copies && !membership.leaving().has(node)) {
        Some(table) => {
            let (copies, name) = (table.spec.replicas, &table.spec.name);
            return Err(format!(
                "table {name:?} has {copies} copies, and {rest} other memory nodes are left: --fewer-copies accepts that"
            ));
        }
        None if fewer_copies => membership.drain_to_fewer(wanted),
        None => membership.drain(wanted),
    }
    Ok(())
}

/// Makes a node stay that is leaving.
fn cancel(membership: &mut Membership, node: NodeId) -> Result<(), &'static str> {
    if membership.lost().has(node) {
        return Err("has left already, or was lost: started again, it is taken in again");
    }
    if !membership.leaving().has(node) {
        return Err("is not being drained");
    }
    membership.stay(NodeSet::default().with(node));
    Ok(())
}

/// The progress of moving shards: where they are, and which joining replicas are complete.
pub(crate) struct Progress {
    pub(crate) catalog: Metadata,
    copied: Vec<(ShardId, NodeId)>,
}

impl Progress {
    /// Returns the progress, or `None` while an epoch begins, because it is not known then.
    pub(crate) fn of(cluster: &Cluster, configuration: &Arc<dyn Configuration>) -> Option<Progress> {
        cluster.refresh().ok()?;
        let catalog = cluster.catalog();
        let copied =
            configuration.look(|now| (!now.is_changing() && now.epoch() == catalog.epoch).then(|| now.copied()));
        Some(Progress { copied: copied.ok()??, catalog })
    }

    /// Returns the number of shards with a replica at a node.
    pub(crate) fn shards_at(&self, node: NodeId) -> usize {
        self.catalog.shards.iter().filter(|shard| is_at(shard, node)).count()
    }

    /// Returns the joining replicas that are not complete yet.
    fn lacking(&self) -> impl Iterator<Item = (ShardId, NodeId)> {
        self.catalog.joining().filter(|one| !self.copied.contains(one))
    }

    /// Returns the number of shards that still have to be copied to a node.
    pub(crate) fn joining_at(&self, node: NodeId) -> usize {
        self.lacking().filter(|(_, at)| *at == node).count()
    }

    /// Returns the number of shards at a node that have not been copied to other nodes yet.
    fn left_at(&self, node: NodeId) -> usize {
        let lacking: Vec<_> = self.lacking().map(|(id, _)| id).collect();
        let is_left = |(id, shard): &(ShardId, &ShardPlacement)| {
            let joins = shard.replicas.iter().any(|replica| replica.joining && replica.node != node);
            is_at(shard, node) && (!joins || lacking.contains(id))
        };
        (0..).map(ShardId).zip(&self.catalog.shards).filter(is_left).count()
    }
}

fn is_at(shard: &ShardPlacement, node: NodeId) -> bool {
    shard.replicas.iter().any(|replica| replica.node == node)
}

/// Notices that no shard moves, and reports the reason once.
pub(crate) struct Stall {
    seen: usize,
    since: Instant,
    has_said: bool,
}

impl Stall {
    /// Time without progress after which the reason is reported. It is longer than an epoch takes
    /// to begin.
    const PATIENCE: Duration = Duration::from_secs(5);

    pub(crate) fn new() -> Stall {
        Stall { seen: usize::MAX, since: Instant::now(), has_said: false }
    }

    /// Notes how much is left now. If this has not changed for a while, reports the reason, if
    /// `why` returns one.
    pub(crate) fn look(&mut self, left: usize, why: impl FnOnce() -> Option<String>) {
        if left != self.seen {
            *self = Stall { seen: left, ..Stall::new() };
        }
        if !self.has_said
            && self.since.elapsed() > Stall::PATIENCE
            && let Some(why) = why()
        {
            output::note(&why);
            self.has_said = true;
        }
    }
}

/// Returns the reason why no shard of a leaving node moves, if there is one.
fn why_nothing_moves(
    cluster: &Cluster,
    configuration: &Arc<dyn Configuration>,
    progress: Option<&Progress>,
    node: NodeId,
) -> Option<String> {
    let (is_looked_after, leaving) = configuration.look(|now| (now.has_controller(), now.leaving())).ok()?;
    if !is_looked_after {
        return Some(LOOKED_AFTER.to_owned());
    }
    let progress = progress.filter(|progress| progress.lacking().next().is_none())?;
    let room = room(cluster, cluster.live_nodes().without(leaving))?;
    let nodes = cluster.nodes();
    let name = |node: NodeId| nodes.as_ref().and_then(|nodes| nodes.name(node)).unwrap_or_else(|| node.to_string());
    stuck(&progress.catalog, node, &room, name)
}

/// Returns the bytes that shards may still take at each node.
pub(crate) fn room(cluster: &Cluster, nodes: NodeSet) -> Option<BTreeMap<NodeId, u64>> {
    let look = async |lane: &Lane| metadata::room(lane, nodes).await;
    block_on(cluster.fabric(), ClientId(0), look).ok()?.ok()
}

/// Returns the bytes that a shard takes at a node.
pub(crate) fn extent(shard: &ShardPlacement) -> u64 {
    node::extent(shard.bytes)
}

/// Says which shards of a node fit none of the other nodes, how much room these have, and what to
/// do.
fn stuck(
    catalog: &Metadata,
    node: NodeId,
    room: &BTreeMap<NodeId, u64>,
    name: impl Fn(NodeId) -> String,
) -> Option<String> {
    let is_taken = |shard: &&ShardPlacement| {
        let mut fits = room.iter().filter(|(_, room)| **room >= extent(shard));
        fits.any(|(other, _)| !is_at(shard, *other))
    };
    let mut tables: BTreeMap<u16, (usize, u64)> = BTreeMap::new();
    let mut lack_room = false;
    for shard in catalog.shards.iter().filter(|shard| is_at(shard, node) && !is_taken(shard)) {
        let (count, bytes) = tables.entry(shard.table.0).or_default();
        (*count, *bytes) = (*count + 1, extent(shard));
        lack_room |= room.keys().any(|other| !is_at(shard, *other));
    }
    if tables.is_empty() {
        return None;
    }
    let tables = tables.into_iter().filter_map(|(table, (count, bytes))| {
        let name = &catalog.tables.get(usize::from(table))?.spec.name;
        Some(format!("{count} shards of {} of table {name:?}", value::show_bytes(bytes)))
    });
    let tables = tables.collect::<Vec<_>>().join(", ");
    let has = |(other, room): (&NodeId, &u64)| format!("{} has room for {}", name(*other), value::show_bytes(*room));
    let why = match lack_room {
        true => room.iter().map(has).collect::<Vec<_>>().join(", "),
        false => "all others have a copy already".to_owned(),
    };
    Some(format!(
        "{} keeps {tables}: {why}; remora add another memory node, or remora drain --cancel, or --fewer-copies",
        name(node)
    ))
}

#[cfg(test)]
mod tests {
    use remora::floors::node::{
        Discipline, Fingerprint, Grows, IndexKind, Layout, ReadScheme, Replica, TableEntry, TableId, TableSpec,
    };

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A table of two shards of a megabyte, with copies at these nodes.
    fn catalog(nodes: &[u16]) -> Metadata {
        let layout = Layout {
            key_bytes: 8,
            value_at: 32,
            line_header: 0,
            value_max: 24,
            slot_bytes: 64,
            scheme: ReadScheme::SingleLine,
            cells: None,
            timed: false,
        };
        let spec = TableSpec {
            name: "accounts".to_owned(),
            schema: String::new(),
            fingerprint: Fingerprint(0),
            layout,
            index: IndexKind::ClusterHash,
            discipline: Discipline::OCC_ONE_SIDED,
            shards: 2,
            replicas: nodes.len() as u8,
            buckets: 1,
            indirect: 1,
            slots: 1,
            indirect_slots: 0,
            shard_bytes: MIB,
            grows: Grows::WhenTold,
        };
        let replica = |node: &u16| Replica { node: NodeId(*node), region: node::REGION, base: 0, joining: false };
        let replicas: Vec<_> = nodes.iter().map(replica).collect();
        let shard = ShardPlacement { table: TableId(0), bytes: MIB, replicas };
        let tables = vec![TableEntry {
            spec,
            shard_first: ShardId(0),
            creator: None,
            born: 1,
            origin: 1,
            growths: 0,
            growth: None,
            dropped: None,
        }];
        Metadata { tables, shards: vec![shard.clone(), shard], ..Metadata::default() }
    }

    #[test]
    fn of_two_that_leave_at_once_the_second_sees_the_first() {
        let (all, tables, none) = (NodeSet::first(4), catalog(&[0, 1, 2]), Metadata::default());
        let mut now = Membership::default();
        let mut leaves = |catalog: &Metadata, node, fewer| begin(&mut now, NodeId(node), all, catalog, fewer);
        assert_eq!(leaves(&tables, 0, false), Ok(()));
        let refused = leaves(&tables, 1, false).unwrap_err();
        assert!(refused.contains("\"accounts\" has 3 copies, and 2 other") && refused.contains("--fewer-copies"));
        assert_eq!(leaves(&tables, 0, false), Ok(()), "it is leaving already");
        assert_eq!(leaves(&tables, 1, true), Ok(()));
        assert_eq!(leaves(&none, 2, false), Ok(()), "there is no table that it could have");
        assert_eq!(leaves(&none, 3, true), Err("is the last memory node".to_owned()));
        assert_eq!(now.expendable(), NodeSet::default().with(NodeId(1)));
    }

    #[test]
    fn a_node_stays_whose_shards_cannot_move() {
        let mut tables = catalog(&[0]);
        tables.tables[0].spec.discipline = Discipline::COPY_ON_WRITE;
        let mut now = Membership::default();
        let mut leaves = |node, fewer| begin(&mut now, NodeId(node), NodeSet::first(3), &tables, fewer);
        for fewer in [false, true] {
            let refused = leaves(0, fewer).unwrap_err();
            assert!(refused.contains("\"accounts\"") && refused.contains("one copy"), "{refused}");
            assert_eq!(leaves(1, fewer), Ok(()), "it has nothing of the table");
        }
    }

    #[test]
    fn who_stays_was_leaving() {
        let mut now = Membership::default();
        assert_eq!(cancel(&mut now, NodeId(1)), Err("is not being drained"));
        now.drain(NodeSet::default().with(NodeId(1)));
        assert_eq!(cancel(&mut now, NodeId(1)), Ok(()));
        assert!(now.leaving().is_empty());
        let added = now.add(3, "c:1").unwrap();
        assert!(cancel(&mut now, added).is_err(), "it is not there");
    }

    #[test]
    fn what_nobody_takes_is_named_with_the_room_there_is() {
        let says = |room: &[(u16, u64)]| {
            let room = room.iter().map(|(node, room)| (NodeId(*node), *room)).collect();
            stuck(&catalog(&[0, 1]), NodeId(0), &room, |node| format!("host{}", node.0))
        };
        assert_eq!(says(&[(1, 0), (2, MIB)]), None, "one after the other");
        let lacks = says(&[(1, 2 * MIB), (2, MIB / 2)]).unwrap();
        for part in ["host0 keeps 2 shards of 1.0 MiB of table \"accounts\"", "host2 has room for 512", "--cancel"] {
            assert!(lacks.contains(part), "{lacks}");
        }
        assert!(says(&[(1, 2 * MIB)]).unwrap().contains("all others have a copy already"));
    }

    #[test]
    fn what_has_been_copied_is_not_left() {
        let mut catalog = catalog(&[0, 1]);
        for shard in &mut catalog.shards {
            shard.replicas.push(Replica { node: NodeId(2), joining: true, ..shard.replicas[0] });
        }
        let left = |copied: &[(ShardId, NodeId)]| {
            let progress = Progress { catalog: catalog.clone(), copied: copied.to_vec() };
            (progress.left_at(NodeId(0)), progress.joining_at(NodeId(2)), progress.shards_at(NodeId(2)))
        };
        assert_eq!(left(&[]), (2, 2, 2));
        assert_eq!(left(&[(ShardId(1), NodeId(2))]), (1, 1, 2));
        assert_eq!(left(&[(ShardId(1), NodeId(2)), (ShardId(0), NodeId(2))]), (0, 0, 2));
    }
}
