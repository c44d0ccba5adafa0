//! Changes of memory nodes and epochs: which nodes the cluster is without, which nodes leave or are
//! filled, and how an epoch ends and the next one begins.

use std::collections::{BTreeMap, BTreeSet};

use remora_fabric::limits::NODES_MAX;
use remora_fabric::{NodeId, NodeSet};
use remora_node::ShardId;
use remora_txn::recovery::Verdicts;

use super::{Change, Conducting, Fenced, MARGIN, Membership, Standing};

impl Membership {
    /// Returns the epoch, which grows when memory nodes are lost or admitted.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the memory nodes that this epoch is without.
    #[must_use]
    pub fn lost(&self) -> NodeSet {
        NodeSet::from_bits(self.lost)
    }

    /// Returns the first epoch without a node that was lost. Returns `None` for a node that the
    /// cluster has, and for one that was drained. The data that a drained node still holds concerns
    /// no client.
    #[must_use]
    pub fn given_up(&self, node: NodeId) -> Option<u64> {
        self.given_up.get(&node.0).copied()
    }

    /// Returns the memory nodes that the next epoch loses and this one still has, if a change is
    /// under way.
    #[must_use]
    pub fn losing(&self) -> NodeSet {
        NodeSet::from_bits(self.change.map_or(0, |change| change.losing))
    }

    /// Whether no client uses this membership.
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        self.change.is_none() && !self.members.values().any(|member| member.standing == Standing::Alive)
    }

    /// Adopts the epoch of the memory nodes, which is later than the epoch of this membership. That
    /// happens when the former membership was lost and this one is new. The `lost` nodes have not
    /// come to that epoch. The `added` nodes were added to the cluster. Does nothing if a client is
    /// alive already.
    pub fn catch_up(&mut self, epoch: u64, lost: NodeSet, added: &BTreeMap<u16, String>) {
        if self.is_deserted() && self.epoch < epoch {
            self.added.clone_from(added);
            (self.epoch, self.lost) = (epoch, lost.to_bits());
            self.given_up = lost.iter().map(|node| (node.0, epoch)).collect();
            self.copied.clear();
            self.generation += 1;
        }
    }

    /// Whether a change of the epoch is under way.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// Whether a change of the epoch is under way and has no conductor: see [`Membership::adopt`].
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.change.is_some_and(|change| change.conductor == 0)
    }

    /// Whether a controller is alive, as far as this membership knows.
    #[must_use]
    pub fn has_controller(&self) -> bool {
        self.controllers().next().is_some()
    }

    /// Returns the controllers that are taken for alive, the oldest first.
    pub fn controllers(&self) -> impl Iterator<Item = u32> + '_ {
        let alive =
            self.members.iter().filter(|(_, member)| member.is_controller && member.standing == Standing::Alive);
        alive.map(|(client, _)| *client)
    }

    /// Records that controller `by` has found memory nodes unreachable. The epoch ends, and with it
    /// every client but the controllers. `by` conducts the change if it has no conductor yet. The
    /// epoch also ends another controller that has a dead client to decide and repair. The
    /// conductor does that work now, and two controllers must not do it at once. Fails if `by` is
    /// not a controller, or not alive any more.
    pub fn lose(&mut self, nodes: NodeSet, by: u32) -> Result<(), Fenced> {
        let (losing, admitting) = self.change.map_or((0, 0), |change| (change.losing, change.admitting));
        let new = nodes.to_bits() & (!self.lost | admitting);
        if losing | new == losing {
            return Ok(());
        }
        self.begin_change(by, |change| {
            change.losing |= new;
            change.admitting &= !new;
        })
    }

    /// Records that controller `by` has found that nodes which this epoch is without answer and
    /// hold nothing. The next epoch admits them.
    pub fn admit(&mut self, nodes: NodeSet, by: u32) -> Result<(), Fenced> {
        let new = nodes.to_bits() & self.lost;
        if self.is_changing() || new == 0 {
            return Ok(());
        }
        self.begin_change(by, |change| change.admitting |= new)
    }

    /// Records that controller `by` has found that shards should be on other nodes than they are.
    /// They are there in the next epoch.
    pub fn rearrange(&mut self, by: u32) -> Result<(), Fenced> {
        if self.is_changing() {
            return Ok(());
        }
        self.begin_change(by, |_| {})
    }

    /// Drains these nodes: their shards are moved elsewhere, and the cluster goes on without the
    /// nodes when they hold none. If too few other nodes are left for the same number of copies,
    /// the nodes keep their shards until there are enough again.
    pub fn drain(&mut self, nodes: NodeSet) {
        self.expendable &= self.leaving;
        self.leaving |= nodes.without(self.lost()).to_bits();
        self.filling &= !nodes.to_bits();
    }

    /// Drains nodes as [`Membership::drain`] does. If too few other nodes are left, there are fewer
    /// copies from then on.
    pub fn drain_to_fewer(&mut self, nodes: NodeSet) {
        self.drain(nodes);
        self.expendable |= nodes.to_bits() & self.leaving;
    }

    /// Stops draining these nodes. They keep what they still hold.
    pub fn stay(&mut self, nodes: NodeSet) {
        self.leaving &= !nodes.to_bits();
    }

    /// Fills these nodes until they hold as much as the others: shards move there, even if the
    /// nodes come back empty. Nodes that are being drained are left out.
    pub fn fill(&mut self, nodes: NodeSet) {
        self.filling |= nodes.without(self.leaving()).to_bits();
    }

    /// Returns the nodes that get shards of other nodes.
    #[must_use]
    pub fn filling(&self) -> NodeSet {
        NodeSet::from_bits(self.filling)
    }

    /// Adds a node to the cluster, which was founded with `founders` nodes. The node holds nothing
    /// yet, and is admitted when it answers. Returns its number, also if it was added before.
    /// Returns `None` if the cluster has as many nodes as it can have.
    pub fn add(&mut self, founders: u16, place: &str) -> Option<NodeId> {
        let known = self.added.iter().find(|(_, known)| *known == place);
        let number = known.map_or(founders + self.added.len() as u16, |(number, _)| *number);
        if usize::from(number) >= NODES_MAX {
            return None;
        }
        if self.added.insert(number, place.to_owned()).is_none() {
            self.lost |= NodeSet::default().with(NodeId(number)).to_bits();
            self.generation += 1;
        }
        Some(NodeId(number))
    }

    /// Returns the nodes that were added after the cluster was founded, with their addresses.
    #[must_use]
    pub fn added(&self) -> &BTreeMap<u16, String> {
        &self.added
    }

    /// Returns the nodes whose shards are moved elsewhere.
    #[must_use]
    pub fn leaving(&self) -> NodeSet {
        NodeSet::from_bits(self.leaving)
    }

    /// Returns the leaving nodes whose copies need not be made elsewhere first, where too few other
    /// nodes are left.
    #[must_use]
    pub fn expendable(&self) -> NodeSet {
        NodeSet::from_bits(self.expendable & self.leaving)
    }

    /// Records that client `by` has given a joining replica all data. Fails if `by` is not alive:
    /// it is then not known whether its work was done in this epoch.
    pub fn has_copied(&mut self, shard: ShardId, node: NodeId, by: u32) -> Result<(), Fenced> {
        self.alive(by)?;
        if !self.copied.contains(&(shard.0, node.0)) {
            self.copied.push((shard.0, node.0));
        }
        Ok(())
    }

    /// Returns the joining replicas that have been given all data.
    #[must_use]
    pub fn copied(&self) -> Vec<(ShardId, NodeId)> {
        self.copied.iter().map(|(shard, node)| (ShardId(*shard), NodeId(*node))).collect()
    }

    /// Whether this controller is the leader: the one that does the work which is not urgent.
    #[must_use]
    pub fn leads(&self, client: u32) -> bool {
        self.controllers().next() == Some(client)
    }

    fn begin_change(&mut self, by: u32, what: impl FnOnce(&mut Change)) -> Result<(), Fenced> {
        if !self.alive(by)?.is_controller {
            return Err(Fenced(by));
        }
        let change = self.change.get_or_insert(Change { conductor: by, losing: 0, admitting: 0 });
        what(change);
        let conductor = change.conductor;
        // The repairs of these controllers may be under way, and only a revocation ends them.
        let repairing: BTreeSet<u32> = (self.members.values())
            .filter_map(|member| if let Standing::Suspected { by } = member.standing { Some(by) } else { None })
            .collect();
        for (client, member) in &mut self.members {
            let goes_on = member.is_controller && (*client == conductor || !repairing.contains(client));
            member.standing = match member.standing {
                Standing::Alive if goes_on => Standing::Alive,
                Standing::Alive | Standing::Suspected { .. } => Standing::Suspected { by: conductor },
                Standing::Recovered { .. } => Standing::Recovered { by: conductor },
                Standing::Forgotten => Standing::Forgotten,
            };
        }
        self.generation += 1;
        self.assert_recoverers_are_alive();
        Ok(())
    }

    /// Records that a client of the ending epoch runs no transaction any more, and reports none as
    /// committed.
    pub fn stopped(&mut self, client: u32) {
        if let Some(member) = self.members.get_mut(&client) {
            member.has_stopped = true;
        }
    }

    /// Returns the work of conductor `by`, or `None` if `by` does not conduct a change.
    #[must_use]
    pub fn conducting(&self, by: u32) -> Option<Conducting> {
        let change = self.change.filter(|change| change.conductor == by)?;
        let unaware = self.members.values().filter(|member| {
            matches!(member.standing, Standing::Suspected { .. }) && !member.has_stopped && !member.resting
        });
        Some(Conducting {
            epoch: self.epoch + 1,
            lost: NodeSet::from_bits((self.lost & !change.admitting) | change.losing),
            admitted: NodeSet::from_bits(change.admitting),
            leaving: self.leaving(),
            expendable: self.expendable(),
            filling: self.filling(),
            copied: self.copied(),
            clients: self.charges(by).filter(|client| self.standing(*client) != Some(Standing::Forgotten)).collect(),
            incarnations: self.incarnations,
            wait: unaware.map(|member| member.lease_ns.saturating_add(member.lease_ns / MARGIN)).max().unwrap_or(0),
        })
    }

    /// Records the outcomes of the transactions of the clients that `by` has to recover.
    pub fn decided(&mut self, by: u32, verdicts: &[(u32, Verdicts)]) -> Result<(), Fenced> {
        verdicts.iter().try_for_each(|(client, verdicts)| self.recovered(*client, by, verdicts.clone()))
    }

    /// Begins the next epoch, after `by` has done the work `conducted`. `emptied` are the leaving
    /// nodes that hold nothing any more. Returns false if there is more to do by now. Fails if `by`
    /// does not conduct the change any more.
    pub fn begin_epoch(&mut self, by: u32, conducted: &Conducting, emptied: NodeSet) -> Result<bool, Fenced> {
        self.alive(by)?;
        let Some(now) = self.conducting(by) else { return Err(Fenced(by)) };
        let undecided = |client: &u32| matches!(self.standing(*client), Some(Standing::Suspected { .. }));
        if (Conducting { wait: conducted.wait, ..now }) != *conducted || conducted.clients.iter().any(undecided) {
            return Ok(false);
        }
        assert!(conducted.epoch > self.epoch, "fail_over 5: the epoch only grows");
        self.hand_back(by);
        // This includes nodes that this change was to admit and has lost again. A conductor that
        // has died may have given them something.
        let stayed = self.lost().without(self.losing());
        for node in conducted.lost.without(stayed).iter() {
            self.given_up.insert(node.0, conducted.epoch);
        }
        self.given_up.retain(|node, _| conducted.lost.has(NodeId(*node)));
        (self.epoch, self.change) = (conducted.epoch, None);
        self.lost = conducted.lost.to_bits() | emptied.to_bits();
        self.leaving &= !self.lost;
        self.copied.clear();
        self.generation += 1;
        self.assert_recoverers_are_alive();
        Ok(true)
    }
}
