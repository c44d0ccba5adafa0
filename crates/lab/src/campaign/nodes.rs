//! The memory nodes of a run: which of them are lost or leave, and how they come back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use remora::Cluster;
use remora::admin::{Configuration, ConfigurationError};
use remora::floors::node::{ShardPlacement, metadata, node};
use remora_fabric::sim::{FaultKind, Sim};
use remora_fabric::{Fabric, Nanos, NodeId, NodeSet};
use remora_workload::Prng;

use super::case::{Case, DRAIN};

/// The number of controllers, which look after the memory nodes where nodes can fail.
pub(super) const CONTROLLERS: usize = 2;

/// The number of memory nodes of every cluster, without spares.
pub(super) const NODES: u16 = 3;
/// The longest time until a failed node comes back. It may come back before the others have
/// noticed, or long after.
const ABSENCE: Nanos = 4_000_000;

/// The memory nodes of a run.
#[derive(Clone, Copy)]
pub(super) struct Nodes {
    /// The number of memory nodes, including spares.
    pub(super) count: u16,
    pub(super) replicas: u8,
    /// The number of nodes that fail.
    pub(super) failures: u64,
    /// The number of nodes that are partitioned for so long that they are declared lost.
    pub(super) isolations: u64,
    /// The number of nodes that are drained.
    pub(super) drains: u64,
    /// The time for which each failed or drained node is away. `None` means for ever.
    pub(super) absence: Option<Nanos>,
}

impl Nodes {
    pub(super) fn of(case: &Case, replicas: u8) -> Nodes {
        if !case.loses_nodes() {
            return Nodes { count: NODES, replicas, failures: 0, isolations: 0, drains: 0, absence: None };
        }
        let mut random = Prng::derive(case.seed, 0xfa11);
        let count = NODES + random.below(2) as u16;
        // Together these are at most as many as there are copies to spare.
        let losses = 1 + random.below(replicas.saturating_sub(1).into());
        let absence = (random.below(2) == 0).then(|| random.below(ABSENCE));
        let isolations = match (case.has("fail"), case.has("isolate")) {
            (_, false) => 0,
            (false, true) => losses,
            (true, true) => random.below(losses + 1),
        };
        let failures = if case.has("fail") { losses - isolations } else { 0 };
        let drains = match (case.has(DRAIN), isolations + failures) {
            (false, _) => 0,
            (true, 0) => losses,
            // A drain takes the place of a failure or of an isolation.
            (true, _) => random.below(losses + 1),
        };
        let isolations = isolations.saturating_sub(drains);
        Nodes { count, replicas, failures: losses - isolations - drains, isolations, drains, absence }
    }

    /// Whether any node can be lost, if only for a while.
    pub(super) fn can_be_lost(&self) -> bool {
        self.failures + self.isolations + self.drains > 0
    }

    /// Whether there is a node that can get copies of what a failed node had.
    pub(super) fn copies_again(&self) -> bool {
        self.isolations > 0 || self.can_be_lost() && (self.absence.is_some() || self.count > self.replicas.into())
    }
}

/// The memory nodes of a run, while it runs.
pub(super) struct Memory<'c> {
    pub(super) sim: &'c Sim,
    pub(super) cluster: &'c Cluster,
    pub(super) nodes: Nodes,
    /// The failed nodes that will come back, each with the time since which it has been down.
    pub(super) failed: RefCell<BTreeMap<NodeId, Nanos>>,
    /// The nodes that are leaving (`None`), or have left, with the time since when.
    pub(super) drained: RefCell<BTreeMap<NodeId, Option<Nanos>>>,
    /// The number of nodes that were told to leave so far.
    pub(super) told: Cell<usize>,
    pub(super) random: RefCell<Prng>,
}

impl<'c> Memory<'c> {
    pub(super) fn new(case: &Case, sim: &'c Sim, cluster: &'c Cluster, nodes: Nodes) -> Memory<'c> {
        let random = RefCell::new(Prng::derive(case.seed, 0xd4a1));
        Memory {
            sim,
            cluster,
            nodes,
            failed: RefCell::default(),
            drained: RefCell::default(),
            told: Cell::new(0),
            random,
        }
    }

    /// Restarts the failed nodes that have been away long enough, empty, and drains nodes.
    pub(super) fn tend(&self) {
        let now = self.sim.now();
        if self.nodes.drains > 0
            && let Some(configuration) = self.cluster.configuration()
        {
            let drained = self.drain(configuration, now);
            debug_assert!(drained.is_ok(), "the configuration is in this process");
        }
        let Nodes { count, absence: Some(absence), .. } = self.nodes else { return };
        let mut failed = self.failed.borrow_mut();
        for node in (0..count).map(NodeId).filter(|node| !self.sim.answers(*node)) {
            let since = *failed.entry(node).or_insert(now);
            if now - since >= absence {
                failed.remove(&node);
                self.restart(node);
            }
        }
    }

    fn restart(&self, node: NodeId) {
        self.sim.restart(node);
        if let Some(memory) = self.sim.region(node, node::REGION) {
            let formatted = node::format(&memory, node::Place::default());
            debug_assert!(formatted.is_ok(), "a node's own size is enough");
        }
    }

    /// Drains a node and fills all others, as an operator does. When the node has left, restarts
    /// and fills it.
    fn drain(&self, configuration: &Arc<dyn Configuration>, now: Nanos) -> Result<(), ConfigurationError> {
        let all = NodeSet::first(self.nodes.count);
        let mut drained = self.drained.borrow_mut();
        let told = self.sim.injected().iter().filter(|fault| fault.kind == FaultKind::Told(DRAIN)).count();
        while self.told.get() < told {
            self.told.set(self.told.get() + 1);
            let number = self.random.borrow_mut().next_u64() as usize;
            let leaves = configuration.change(|membership| {
                let live: Vec<NodeId> = all.without(membership.lost()).without(membership.leaving()).iter().collect();
                let node = live[number % live.len()];
                let leaver = NodeSet::default().with(node);
                // If nodes never come back, too few may be left for the same number of copies.
                if self.nodes.absence.is_some() && live.len() > usize::from(self.nodes.replicas) {
                    membership.drain(leaver);
                } else {
                    membership.drain_to_fewer(leaver);
                }
                membership.fill(all);
                node
            })?;
            drained.insert(leaves, None);
        }
        let (leaving, lost) = configuration.look(|membership| (membership.leaving(), membership.lost()))?;
        // A node that dies or is lost before it has left is treated like other failed nodes.
        drained.retain(|node, _| self.sim.answers(*node) && (leaving.has(*node) || lost.has(*node)));
        let mut started = NodeSet::default();
        drained.retain(|node, left| {
            let left = lost.has(*node).then(|| *left.get_or_insert(now));
            let is_over = left.is_some_and(|left| self.nodes.absence.is_some_and(|absence| now - left >= absence));
            if is_over {
                self.sim.fail(*node);
                self.restart(*node);
                started = started.with(*node);
            }
            !is_over
        });
        if !started.is_empty() {
            configuration.change(|membership| membership.fill(started))?;
        }
        Ok(())
    }

    /// Whether the cluster is whole: it goes on without the failed nodes, has the nodes that are
    /// back, and has as many copies as it can have.
    pub(super) fn is_whole(&self) -> bool {
        self.lack().is_none()
    }

    /// Returns what the cluster lacks until it is whole.
    pub(super) fn lack(&self) -> Option<&'static str> {
        let configuration = self.cluster.configuration().filter(|_| self.nodes.can_be_lost())?;
        if !self.failed.borrow().is_empty() {
            return Some("a node that failed is not back");
        }
        let looked =
            configuration.look(|membership| (membership.has_controller(), membership.is_changing(), membership.lost()));
        let lost = match looked {
            Ok((true, false, lost)) => lost,
            Ok((true, true, _)) => return Some("the change of the epoch has not ended"),
            Ok((false, ..)) => return Some("no controller is left"),
            Err(_) => return Some("the configuration cannot be read"),
        };
        let all = NodeSet::first(self.nodes.count);
        // A node that has come back holds nothing until it is readmitted, even if no client had
        // noticed that it was away.
        let has_catalog = |node| {
            self.sim.region(node, node::REGION).is_some_and(|memory| metadata::generation_local(memory.words()) > 0)
        };
        let drained = self.drained.borrow();
        let is_away = |left: &Option<Nanos>| left.is_some() && self.nodes.absence.is_none();
        if !drained.values().all(is_away) {
            return Some("a drained node has not left, or is not back");
        }
        let settled = |node| match self.sim.answers(node) {
            true if drained.contains_key(&node) => lost.has(node),
            true => has_catalog(node) && !lost.has(node),
            false => lost.has(node),
        };
        if !all.iter().all(settled) {
            return Some("a node that answers was not admitted, or one that does not answer still counts");
        }
        let copies = usize::from(self.nodes.replicas).min(all.without(lost).count().into());
        let shards = self.cluster.catalog().shards;
        let enough = |shard: &ShardPlacement| shard.copies().count() == copies && shard.replicas.len() == copies;
        (!shards.iter().all(enough)).then_some("a shard has fewer or more copies than it should have")
    }
}
