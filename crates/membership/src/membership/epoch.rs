//! Memory nodes and epochs: which nodes the cluster is without, which leave or are filled, and how
//! an epoch ends and the next one begins.

use std::collections::{BTreeMap, BTreeSet};

use remora_fabric::limits::NODES_MAX;
use remora_fabric::{NodeId, NodeSet};
use remora_node::ShardId;
use remora_txn::recovery::Verdicts;

use super::{Change, Conducting, Fenced, MARGIN, Membership, Standing};

impl Membership {
    /// Grows when memory nodes are lost or come.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Memory nodes that this epoch is without.
    #[must_use]
    pub fn lost(&self) -> NodeSet {
        NodeSet::from_bits(self.lost)
    }

    /// The first epoch without a node that was lost. `None` of one that is there, or was drained:
    /// nobody else has to do with what that one holds.
    #[must_use]
    pub fn given_up(&self, node: NodeId) -> Option<u64> {
        self.given_up.get(&node.0).copied()
    }

    /// Memory nodes that the next epoch is without and this one is not, if it is about to begin.
    #[must_use]
    pub fn losing(&self) -> NodeSet {
        NodeSet::from_bits(self.change.map_or(0, |change| change.losing))
    }

    /// Whether nobody goes by it.
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        self.change.is_none() && !self.members.values().any(|member| member.standing == Standing::Alive)
    }

    /// Adopts the epoch of the memory nodes, which is later than the epoch of this membership: the
    /// former membership was lost, and this one is new. The `lost` nodes have not come to that
    /// epoch. The `added` nodes were added to the cluster. Does nothing if a client is alive
    /// already.
    pub fn catch_up(&mut self, epoch: u64, lost: NodeSet, added: &BTreeMap<u16, String>) {
        if self.is_deserted() && self.epoch < epoch {
            self.added.clone_from(added);
            (self.epoch, self.lost) = (epoch, lost.to_bits());
            self.given_up = lost.iter().map(|node| (node.0, epoch)).collect();
            self.copied.clear();
            self.generation += 1;
        }
    }

    /// Whether the epoch is about to end.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// Whether the epoch is about to end, and nobody sees to that: see [`Membership::adopt`].
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.change.is_some_and(|change| change.conductor == 0)
    }

    /// Whether a controller is alive, as far as this membership knows.
    #[must_use]
    pub fn has_controller(&self) -> bool {
        self.controllers().next().is_some()
    }

    /// The controllers that are taken for alive, the oldest first.
    pub fn controllers(&self) -> impl Iterator<Item = u32> + '_ {
        let alive =
            self.members.iter().filter(|(_, member)| member.is_controller && member.standing == Standing::Alive);
        alive.map(|(client, _)| *client)
    }

    /// `by` has found that memory nodes do not answer: the epoch ends, and with it every client but
    /// the controllers; `by` conducts that, if nobody does already. The epoch also ends another
    /// controller that has a dead client to decide and repair: the conductor does that now, and two
    /// must not do it at once. Fails if `by` is no controller, or not alive any more.
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

    /// `by` has found that nodes which this epoch is without answer and have nothing: the next one
    /// has them.
    pub fn admit(&mut self, nodes: NodeSet, by: u32) -> Result<(), Fenced> {
        let new = nodes.to_bits() & self.lost;
        if self.is_changing() || new == 0 {
            return Ok(());
        }
        self.begin_change(by, |change| change.admitting |= new)
    }

    /// `by` has found that shards are to be elsewhere than they are: they are in the next epoch.
    pub fn rearrange(&mut self, by: u32) -> Result<(), Fenced> {
        if self.is_changing() {
            return Ok(());
        }
        self.begin_change(by, |_| {})
    }

    /// Shards of these nodes are to go elsewhere, and the cluster is to go on without the nodes
    /// when they have none. Where too few others are left for as many copies, they keep theirs
    /// until there are enough again.
    pub fn drain(&mut self, nodes: NodeSet) {
        self.expendable &= self.leaving;
        self.leaving |= nodes.without(self.lost()).to_bits();
        self.filling &= !nodes.to_bits();
    }

    /// Drains nodes like [`Membership::drain`]. Where too few other nodes are left, there are fewer
    /// copies from then on.
    pub fn drain_to_fewer(&mut self, nodes: NodeSet) {
        self.drain(nodes);
        self.expendable |= nodes.to_bits() & self.leaving;
    }

    /// Nodes stay that were to have nothing any more: with what they have still.
    pub fn stay(&mut self, nodes: NodeSet) {
        self.leaving &= !nodes.to_bits();
    }

    /// Nodes are to have as much as the others: shards go there, also when they come back with
    /// nothing. Not those whose shards are just going elsewhere.
    pub fn fill(&mut self, nodes: NodeSet) {
        self.filling |= nodes.without(self.leaving()).to_bits();
    }

    /// Nodes that others' shards are to go to.
    #[must_use]
    pub fn filling(&self) -> NodeSet {
        NodeSet::from_bits(self.filling)
    }

    /// Adds a node to the cluster, which was founded with `founders` nodes. The node has nothing
    /// yet and is taken in when it answers. Returns its number, also if it was added before; `None`
    /// if there are as many nodes as there can be.
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

    /// Nodes that the cluster was not founded with, and where they are.
    #[must_use]
    pub fn added(&self) -> &BTreeMap<u16, String> {
        &self.added
    }

    /// Nodes whose shards are to go elsewhere.
    #[must_use]
    pub fn leaving(&self) -> NodeSet {
        NodeSet::from_bits(self.leaving)
    }

    /// Those of them whose copies need not be made elsewhere first where too few others are left.
    #[must_use]
    pub fn expendable(&self) -> NodeSet {
        NodeSet::from_bits(self.expendable & self.leaving)
    }

    /// `by` has given a joining replica everything. Fails if that client is not alive: then its
    /// work is not known to have been done in this epoch.
    pub fn has_copied(&mut self, shard: ShardId, node: NodeId, by: u32) -> Result<(), Fenced> {
        self.alive(by)?;
        if !self.copied.contains(&(shard.0, node.0)) {
            self.copied.push((shard.0, node.0));
        }
        Ok(())
    }

    /// Joining replicas that have everything.
    #[must_use]
    pub fn copied(&self) -> Vec<(ShardId, NodeId)> {
        self.copied.iter().map(|(shard, node)| (ShardId(*shard), NodeId(*node))).collect()
    }

    /// Whether this is the one of those who look after the memory nodes that sees to what has time.
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
        // Their repairs may be under way, and nothing but a revocation ends them.
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

    /// A client of the epoch that ends runs no transaction any more, and reports none.
    pub fn stopped(&mut self, client: u32) {
        if let Some(member) = self.members.get_mut(&client) {
            member.has_stopped = true;
        }
    }

    /// What `by` has to conduct, if it has.
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

    /// What became of the transactions of those whom `by` has to recover.
    pub fn decided(&mut self, by: u32, verdicts: &[(u32, Verdicts)]) -> Result<(), Fenced> {
        verdicts.iter().try_for_each(|(client, verdicts)| self.recovered(*client, by, verdicts.clone()))
    }

    /// The next epoch begins: `by` has done what it had to conduct, which was this, and of the
    /// nodes that were leaving these are `emptied`. False if there is more to do by now. Fails if
    /// it conducts it no more.
    pub fn begin_epoch(&mut self, by: u32, conducted: &Conducting, emptied: NodeSet) -> Result<bool, Fenced> {
        self.alive(by)?;
        let Some(now) = self.conducting(by) else { return Err(Fenced(by)) };
        let undecided = |client: &u32| matches!(self.standing(*client), Some(Standing::Suspected { .. }));
        if (Conducting { wait: conducted.wait, ..now }) != *conducted || conducted.clients.iter().any(undecided) {
            return Ok(false);
        }
        assert!(conducted.epoch > self.epoch, "fail_over 5: the epoch only grows");
        self.hand_back(by);
        // Also the nodes that this change was to admit and has lost again: a conductor that has
        // died may have given them something.
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
