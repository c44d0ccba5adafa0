//! The membership: a plain value and the changes it may undergo. Where it is kept is the business
//! of a [`Configuration`](crate::Configuration).

use std::collections::BTreeMap;

use remora_fabric::limits::NODES_MAX;
use remora_fabric::{Nanos, NodeId, NodeSet};
use remora_memory::ShardId;
use remora_txn::recovery::Verdicts;
use serde::{Deserialize, Serialize};

/// Forgotten clients whose verdicts are kept: who asks what became of a transaction does so soon.
const FORGOTTEN_MAX: usize = 256;

/// A lease's length divided by this is added to it: the judge's clock may run that much faster than
/// its holder's, and a renewal takes a while to be seen.
pub(crate) const MARGIN: Nanos = 8;

/// The lease of a client that has none: it never expires.
const NEVER: Nanos = Nanos::MAX / 2;

/// How a client incarnation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Standing {
    /// It runs, as far as anybody knows.
    Alive,
    /// It was taken for dead. Its locks still mean something.
    Suspected {
        /// The client that recovers it; 0 if that client has left.
        by: u32,
    },
    /// What it had logged is decided and repaired. Its locks mean nothing any more.
    Recovered {
        /// The client that looks for what else it has left; 0 if no client does now.
        by: u32,
    },
    /// Nothing of it is left.
    Forgotten,
}

/// This client was taken for dead. It may come back as a new incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("client {0} was taken for dead, and what it had begun was ended by another: connect again")]
pub struct Fenced(pub u32);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Member {
    standing: Standing,
    /// Grows as long as it lives.
    renewals: u64,
    lease_ns: Nanos,
    /// It runs nothing and holds nothing, so that its lease does not run either.
    resting: bool,
    /// The client's process, where others can tell whether it has ended.
    #[serde(default)]
    process: Option<u64>,
    /// It looks after the memory nodes, and runs no transactions.
    #[serde(default)]
    is_controller: bool,
    /// It has stopped, and says so: nobody need wait until its lease has run out.
    #[serde(default)]
    has_stopped: bool,
    /// The version cache that it publishes in, if it does.
    #[serde(default)]
    vcache: Option<u32>,
    /// The client uses no table that the catalog had dropped by this generation.
    #[serde(default)]
    acknowledged: u64,
    verdicts: Verdicts,
}

/// A change of the epoch that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Change {
    conductor: u32,
    /// Nodes that the next epoch loses, beside the nodes that this epoch is without.
    losing: u64,
    /// Nodes that this epoch is without, and that the next epoch admits.
    admitting: u64,
}

/// A client cannot join while the epoch changes: it is to try again soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("memory nodes have been lost or taken in, and the epoch is changing: try again")]
pub struct EpochChanging;

/// A table has one version cache: this client, of another one, has neither left nor been recovered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("client {0} validates by another version cache, and has neither left nor been recovered")]
pub struct OtherCache(pub u32);

/// What a conductor has to do, see `remora_txn::recovery::fail_over`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conducting {
    /// The epoch that begins.
    pub epoch: u64,
    /// Nodes that it is without.
    pub lost: NodeSet,
    /// Nodes that it has, and the one before it had not. They have nothing yet.
    pub admitted: NodeSet,
    /// Nodes that are to have nothing any more.
    pub leaving: NodeSet,
    /// Those of them whose copies need not be made elsewhere first.
    pub expendable: NodeSet,
    /// Nodes that are to have their share.
    pub filling: NodeSet,
    /// Joining replicas that have everything.
    pub copied: Vec<(ShardId, NodeId)>,
    /// Every client that may have had anything under way.
    pub clients: Vec<u32>,
    /// The highest incarnation that has ever joined.
    pub incarnations: u32,
    /// For so long, from when the change began, some of them may not know of it.
    pub wait: Nanos,
}

/// Every client incarnation that anybody still has to know of, and the memory nodes that the
/// cluster goes on without.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Membership {
    /// The number of this membership, which no other has; 0 until a client asks for it.
    #[serde(default)]
    identity: u64,
    generation: u64,
    epoch: u64,
    lost: u64,
    /// The first epoch without each of them that was not drained. One that lives after all is told
    /// to give up what it has.
    #[serde(default)]
    given_up: BTreeMap<u16, u64>,
    /// Nodes whose shards are to go elsewhere.
    leaving: u64,
    /// Those of them whose copies need not be made elsewhere first where too few others are left,
    /// and perhaps some that have left.
    #[serde(default)]
    expendable: u64,
    /// Nodes that others' shards are to go to.
    #[serde(default)]
    filling: u64,
    /// Nodes that the cluster was not founded with, and where they are.
    #[serde(default)]
    added: BTreeMap<u16, String>,
    /// Shards and nodes of joining replicas that have everything.
    copied: Vec<(u16, u16)>,
    change: Option<Change>,
    members: BTreeMap<u32, Member>,
    /// The highest incarnation that has ever joined.
    #[serde(default)]
    incarnations: u32,
    /// The version cache by which each table that is validated locally is validated, or was last.
    #[serde(default)]
    vcaches: BTreeMap<u16, u32>,
    /// Generation of the last change of the catalog that dropped tables, as far as it was told.
    #[serde(default)]
    dropped: u64,
}

impl Default for Membership {
    fn default() -> Membership {
        Membership {
            identity: 0,
            generation: 0,
            epoch: 1,
            lost: 0,
            given_up: BTreeMap::new(),
            leaving: 0,
            expendable: 0,
            filling: 0,
            added: BTreeMap::new(),
            copied: Vec::new(),
            change: None,
            members: BTreeMap::new(),
            incarnations: 0,
            vcaches: BTreeMap::new(),
            dropped: 0,
        }
    }
}

impl Membership {
    /// The number of this membership, which no other has: the proposed one, unless it has one
    /// already.
    pub fn identify(&mut self, proposed: u64) -> u64 {
        if self.identity == 0 {
            self.identity = proposed;
        }
        self.identity
    }

    /// Grows whenever some client's standing changes.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// A new incarnation of this epoch, at rest: its lease begins to run with its first renewal.
    /// `process` is the configuration's name for its process
    /// ([`Configuration::process`](crate::Configuration::process)).
    pub fn join(
        &mut self,
        client: u32,
        epoch: u64,
        lease_ns: Nanos,
        process: Option<u64>,
    ) -> Result<(), EpochChanging> {
        if self.change.is_some() || epoch != self.epoch {
            return Err(EpochChanging);
        }
        self.enter(client, lease_ns, process, false);
        Ok(())
    }

    /// Adds a controller, a client that looks after the memory nodes. Epochs do not end it. It may
    /// join while the epoch changes, for the controllers that were changing it may be gone.
    pub fn join_controller(&mut self, client: u32, lease_ns: Nanos, process: Option<u64>) {
        self.enter(client, lease_ns, process, true);
    }

    fn enter(&mut self, client: u32, lease_ns: Nanos, process: Option<u64>, is_controller: bool) {
        let member = Member {
            standing: Standing::Alive,
            renewals: 0,
            lease_ns,
            resting: true,
            process,
            is_controller,
            has_stopped: false,
            vcache: None,
            acknowledged: 0,
            verdicts: Verdicts::default(),
        };
        self.members.entry(client).or_insert(member);
        self.incarnations = self.incarnations.max(client);
        self.generation += 1;
    }

    /// Tables are to be validated by a version cache, which has the number of some client of its
    /// process, and by no other one from now on. Fails if a client of another one that they had may
    /// still write them.
    pub fn claim(&mut self, vcache: u32, tables: &[u16]) -> Result<(), OtherCache> {
        for other in tables.iter().filter_map(|table| self.vcaches.get(table)).filter(|other| **other != vcache) {
            let may_write = |member: &Member| matches!(member.standing, Standing::Alive | Standing::Suspected { .. });
            let mut members = self.members.iter();
            if let Some((other, _)) = members.find(|(_, one)| one.vcache == Some(*other) && may_write(one)) {
                return Err(OtherCache(*other));
            }
        }
        self.vcaches.extend(tables.iter().map(|table| (*table, vcache)));
        Ok(())
    }

    /// A client that has just joined validates by a version cache.
    pub fn validates_by(&mut self, client: u32, vcache: u32) {
        self.members.entry(client).and_modify(|member| member.vcache = Some(vcache));
    }

    /// Tells all clients that the catalog has dropped tables, by the change of this generation.
    pub fn drop_tables(&mut self, generation: u64) {
        if self.dropped < generation {
            self.dropped = generation;
            self.generation += 1;
        }
    }

    /// Generation of the last change of the catalog that dropped tables; 0 if it never has.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The client uses no table any more that the catalog had dropped by this generation, and
    /// nothing is under way that it did to one.
    pub fn acknowledge_drop(&mut self, client: u32, generation: u64) -> Result<(), Fenced> {
        let member = self.alive(client)?;
        member.acknowledged = member.acknowledged.max(generation);
        Ok(())
    }

    /// Whether a client uses no table that the catalog had dropped by this generation: it has said
    /// so, or it rests. A client that rests has nothing under way, and hears of the drop with the
    /// renewal by which it begins to run. `None` if the client will never say, because it has no
    /// lease, or because this membership does not know it.
    #[must_use]
    pub fn has_acknowledged_drop(&self, client: u32, generation: u64) -> Option<bool> {
        let member = self.members.get(&client)?;
        let is_leased = member.lease_ns < NEVER;
        match member.standing {
            _ if member.acknowledged >= generation && member.standing == Standing::Alive => Some(true),
            Standing::Alive if !is_leased => None,
            Standing::Alive => Some(member.resting),
            // It is over when its slot has been given back.
            Standing::Suspected { .. } | Standing::Recovered { .. } | Standing::Forgotten => Some(false),
        }
    }

    /// Clients that are being recovered, or wait for that.
    pub fn recovering(&self) -> impl Iterator<Item = u32> + '_ {
        let is_dead = |standing| matches!(standing, Standing::Suspected { .. } | Standing::Recovered { .. });
        self.clients().filter(move |(_, standing)| is_dead(*standing)).map(|(client, _)| client)
    }

    /// A sign of life.
    pub fn renew(&mut self, client: u32) -> Result<(), Fenced> {
        let member = self.alive(client)?;
        member.renewals += 1;
        member.resting = false;
        Ok(())
    }

    /// The client runs nothing and holds no lock until its next renewal: until then nobody suspects
    /// it. Who is repairing what another has left does not rest.
    pub fn rest(&mut self, client: u32) -> Result<(), Fenced> {
        if self.charges(client).any(|charge| matches!(self.standing(charge), Some(Standing::Suspected { .. }))) {
            return Ok(());
        }
        self.hand_back(client);
        self.alive(client)?.resting = true;
        Ok(())
    }

    /// The client has gone, in good order: it has no transaction under way and its slot is given
    /// back.
    pub fn leave(&mut self, client: u32) -> Result<(), Fenced> {
        self.resign(client)?;
        self.members.remove(&client);
        Ok(())
    }

    /// Records that the client has stopped and cannot end what it had under way. Any client that is
    /// alive may recover it.
    pub fn give_up(&mut self, client: u32) -> Result<(), Fenced> {
        self.resign(client)?;
        let member = self.alive(client)?;
        (member.standing, member.has_stopped) = (Standing::Suspected { by: 0 }, true);
        Ok(())
    }

    /// The client leaves to others what it was to do for the cluster.
    pub fn resign(&mut self, client: u32) -> Result<(), Fenced> {
        self.alive(client)?;
        self.hand_back(client);
        for member in self.members.values_mut().filter(|member| member.standing == (Standing::Suspected { by: client }))
        {
            member.standing = Standing::Suspected { by: 0 };
        }
        if let Some(change) = self.change.as_mut().filter(|change| change.conductor == client) {
            change.conductor = 0;
        }
        self.generation += 1;
        Ok(())
    }

    fn alive(&mut self, client: u32) -> Result<&mut Member, Fenced> {
        self.members.get_mut(&client).filter(|member| member.standing == Standing::Alive).ok_or(Fenced(client))
    }

    /// What is left of its work may be taken up by anybody: searching for locks, which does no harm
    /// done twice.
    fn hand_back(&mut self, recoverer: u32) {
        for member in self.members.values_mut() {
            if member.standing == (Standing::Recovered { by: recoverer }) {
                member.standing = Standing::Recovered { by: 0 };
                self.generation += 1;
            }
        }
    }

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

    /// Has the next client recover these clients, which the memory nodes know and this new
    /// membership does not. Nothing tells whether they live. Does nothing if this membership has
    /// ever had a client.
    pub fn inherit(&mut self, clients: impl Iterator<Item = u32>) {
        if self.incarnations > 0 || !self.is_deserted() {
            return;
        }
        for client in clients {
            self.enter(client, 0, None, false);
            self.members.entry(client).and_modify(|member| member.standing = Standing::Suspected { by: 0 });
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
        self.members.values().any(|member| member.is_controller && member.standing == Standing::Alive)
    }

    /// `by` has found that memory nodes do not answer: the epoch ends, and with it every client but
    /// the controllers; `by` conducts that, if nobody does already. Fails if `by` is no controller,
    /// or not alive any more.
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
        let mut controllers =
            self.members.iter().filter(|(_, member)| member.is_controller && member.standing == Standing::Alive);
        controllers.next().is_some_and(|(first, _)| *first == client)
    }

    fn begin_change(&mut self, by: u32, what: impl FnOnce(&mut Change)) -> Result<(), Fenced> {
        if !self.alive(by)?.is_controller {
            return Err(Fenced(by));
        }
        let change = self.change.get_or_insert(Change { conductor: by, losing: 0, admitting: 0 });
        what(change);
        let conductor = change.conductor;
        for member in self.members.values_mut() {
            member.standing = match member.standing {
                Standing::Alive if member.is_controller => Standing::Alive,
                Standing::Alive | Standing::Suspected { .. } => Standing::Suspected { by: conductor },
                Standing::Recovered { .. } => Standing::Recovered { by: conductor },
                Standing::Forgotten => Standing::Forgotten,
            };
        }
        self.generation += 1;
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
        Ok(true)
    }

    /// How a client stands; `None` if it has left, or was never heard of, or was forgotten long
    /// ago.
    #[must_use]
    pub fn standing(&self, client: u32) -> Option<Standing> {
        self.members.get(&client).map(|member| member.standing)
    }

    /// All of them.
    pub fn clients(&self) -> impl Iterator<Item = (u32, Standing)> + '_ {
        self.members.iter().map(|(client, member)| (*client, member.standing))
    }

    /// Clients whose leases run: how often each has renewed its own, and its length.
    pub(crate) fn leases(&self) -> impl Iterator<Item = (u32, u64, Nanos)> + '_ {
        let running = self.members.iter().filter(|(_, member)| member.standing == Standing::Alive && !member.resting);
        running.map(|(client, member)| (*client, member.renewals, member.lease_ns))
    }

    /// Clients that are taken for alive, and their processes where these are known.
    pub fn processes(&self) -> impl Iterator<Item = (u32, Option<u64>)> + '_ {
        let alive = self.members.iter().filter(|(_, member)| member.standing == Standing::Alive);
        alive.map(|(client, member)| (*client, member.process))
    }

    /// The clients that client `by` has to recover.
    pub fn charges(&self, by: u32) -> impl Iterator<Item = u32> + '_ {
        self.clients().filter(move |(_, standing)| is_charge(*standing, by)).map(|(client, _)| client)
    }

    /// The longest lease of a client that is known here, also of one that is being recovered; 0 if
    /// there is none. Clients that never expire do not count.
    #[must_use]
    pub fn longest_lease(&self) -> Nanos {
        self.members.values().map(|member| member.lease_ns).filter(|lease| *lease < NEVER).max().unwrap_or(0)
    }

    /// Makes `by` the recoverer of a client whose lease has expired, and of all clients that this
    /// client was to recover. Does nothing if another client was first. Fails if `by` itself is not
    /// alive any more.
    pub fn suspect(&mut self, client: u32, by: u32) -> Result<(), Fenced> {
        self.alive(by)?;
        let is_nobodys = self.standing(client) == Some(Standing::Suspected { by: 0 });
        if client == by || self.alive(client).is_err() && !is_nobodys {
            return Ok(());
        }
        if let Some(change) = self.change.as_mut().filter(|change| change.conductor == client) {
            change.conductor = by;
        }
        for (other, member) in &mut self.members {
            if *other == client {
                member.standing = Standing::Suspected { by };
            } else if is_charge(member.standing, client) {
                member.standing = match member.standing {
                    Standing::Suspected { .. } => Standing::Suspected { by },
                    _ => Standing::Recovered { by },
                };
            }
        }
        self.generation += 1;
        Ok(())
    }

    /// Suspects a client that has renewed its lease `renewals` times and no more: see
    /// [`Membership::suspect`]. Does nothing if the client rests, or has renewed its lease since
    /// `by` judged it.
    pub fn suspect_silent(&mut self, client: u32, renewals: u64, by: u32) -> Result<(), Fenced> {
        if self.leases().any(|(silent, counted, _)| (silent, counted) == (client, renewals)) {
            return self.suspect(client, by);
        }
        self.alive(by).map(|_| ())
    }

    /// `by` takes up what recoverers that have left did not finish, and conductors, if it is a
    /// controller.
    pub fn adopt(&mut self, by: u32) {
        let Ok(adopter) = self.alive(by) else { return };
        let is_controller = adopter.is_controller;
        if let Some(change) = self.change.as_mut().filter(|change| change.conductor == 0 && is_controller) {
            change.conductor = by;
            self.generation += 1;
        }
        for member in self.members.values_mut() {
            member.standing = match member.standing {
                Standing::Recovered { by: 0 } => Standing::Recovered { by },
                Standing::Suspected { by: 0 } => Standing::Suspected { by },
                _ => continue,
            };
            self.generation += 1;
        }
    }

    /// Every transaction that a client had logged is decided and repaired. Fails if `by` is not its
    /// recoverer any more.
    pub fn recovered(&mut self, client: u32, by: u32, verdicts: Verdicts) -> Result<(), Fenced> {
        self.alive(by)?;
        let member = self.members.get_mut(&client).filter(|member| is_charge(member.standing, by)).ok_or(Fenced(by))?;
        // When a successor does it again, the first verdicts count: the rings may have been given
        // back since.
        if matches!(member.standing, Standing::Suspected { .. }) {
            member.standing = Standing::Recovered { by };
            member.verdicts = verdicts;
            self.generation += 1;
        }
        Ok(())
    }

    /// Nothing is left of a client. Fails if `by` is not its recoverer any more.
    pub fn forget(&mut self, client: u32, by: u32) -> Result<(), Fenced> {
        let member = self.members.get_mut(&client).filter(|member| member.standing == Standing::Recovered { by });
        member.ok_or(Fenced(by))?.standing = Standing::Forgotten;
        self.generation += 1;
        let forgotten = |member: &Member| member.standing == Standing::Forgotten;
        if self.members.values().filter(|member| forgotten(member)).count() > FORGOTTEN_MAX {
            let oldest = self.members.iter().find(|(_, member)| forgotten(member)).map(|(client, _)| *client);
            oldest.and_then(|oldest| self.members.remove(&oldest));
        }
        Ok(())
    }

    /// What became of a dead client's transactions, once that is decided.
    #[must_use]
    pub fn verdicts(&self, client: u32) -> Option<&Verdicts> {
        let member = self.members.get(&client)?;
        matches!(member.standing, Standing::Recovered { .. } | Standing::Forgotten).then_some(&member.verdicts)
    }
}

fn is_charge(standing: Standing, recoverer: u32) -> bool {
    matches!(standing, Standing::Suspected { by } | Standing::Recovered { by } if by == recoverer)
}

#[cfg(test)]
mod tests {
    use remora_fabric::NodeId;

    use super::*;

    const LEASE: Nanos = 5_000_000;

    fn alive(clients: &[u32]) -> Membership {
        let mut membership = Membership::default();
        for client in clients {
            membership.join(*client, 1, LEASE, None).unwrap();
            membership.renew(*client).unwrap();
        }
        membership
    }

    #[test]
    fn who_suspects_first_recovers() {
        let mut all = alive(&[1, 2, 3]);
        all.suspect(1, 2).unwrap();
        all.suspect(1, 3).unwrap();
        assert_eq!(all.standing(1), Some(Standing::Suspected { by: 2 }));
        assert_eq!(all.renew(1), Err(Fenced(1)));
        assert_eq!(all.recovered(1, 3, Verdicts::default()), Err(Fenced(3)), "not its charge");
        assert_eq!(all.recovered(1, 2, Verdicts::default()), Ok(()));
        assert_eq!(all.forget(1, 2), Ok(()));
        assert_eq!(all.standing(1), Some(Standing::Forgotten));
    }

    #[test]
    fn who_renews_while_it_is_judged_is_not_suspected() {
        let mut all = alive(&[1, 2]);
        all.renew(1).unwrap();
        all.suspect_silent(1, 1, 2).unwrap();
        assert_eq!(all.standing(1), Some(Standing::Alive), "it was seen before it renewed");
        all.rest(1).unwrap();
        all.suspect_silent(1, 2, 2).unwrap();
        assert_eq!(all.standing(1), Some(Standing::Alive), "no lease of it runs");
        all.renew(1).unwrap();
        all.suspect_silent(1, 3, 2).unwrap();
        assert_eq!(all.standing(1), Some(Standing::Suspected { by: 2 }));
        assert_eq!(all.suspect_silent(2, 1, 1), Err(Fenced(1)), "the dead judge nobody");
    }

    #[test]
    fn the_longest_lease_is_that_of_any_client_that_can_expire() {
        let mut all = Membership::default();
        assert_eq!(all.longest_lease(), 0);
        for (client, lease) in [(1, 100), (2, 5_000), (3, Nanos::MAX / 2)] {
            all.join(client, all.epoch(), lease, None).unwrap();
        }
        assert_eq!(all.longest_lease(), 5_000, "at rest as well");
        all.suspect(2, 1).unwrap();
        assert_eq!(all.longest_lease(), 5_000, "its locks are not free yet");
    }

    #[test]
    fn charges_pass_to_who_suspects_the_recoverer() {
        let mut all = alive(&[1, 2, 3, 4]);
        all.suspect(1, 2).unwrap();
        all.suspect(4, 2).unwrap();
        all.recovered(4, 2, Verdicts::default()).unwrap();
        all.suspect(2, 3).unwrap();
        assert_eq!(all.suspect(3, 2), Err(Fenced(2)), "the dead suspect nobody");
        assert_eq!(all.charges(3).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(all.recovered(1, 2, Verdicts::default()), Err(Fenced(2)), "the earlier recoverer decides nothing");
        assert_eq!(all.standing(4), Some(Standing::Recovered { by: 3 }), "what was decided stays decided");
    }

    #[test]
    fn who_leaves_hands_over_what_it_has_not_repaired() {
        let mut all = alive(&[1, 2, 3]);
        all.suspect(1, 2).unwrap();
        all.leave(2).unwrap();
        assert_eq!(all.standing(1), Some(Standing::Suspected { by: 0 }));
        all.adopt(3);
        assert_eq!(all.charges(3).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn an_epoch_ends_everybody_but_those_who_look_after_the_nodes() {
        let node = |number| NodeSet::default().with(NodeId(number));
        let mut all = alive(&[1, 2]);
        for controller in [3, 4] {
            all.join_controller(controller, LEASE, None);
            all.renew(controller).unwrap();
        }
        assert_eq!(all.lose(node(0), 1), Err(Fenced(1)), "no controller");
        all.lose(node(0), 3).unwrap();
        all.lose(node(1), 4).unwrap();
        assert_eq!((all.renew(1), all.renew(4)), (Err(Fenced(1)), Ok(())));
        assert_eq!(all.join(5, 1, LEASE, None), Err(EpochChanging));
        let conducting = all.conducting(3).unwrap();
        assert_eq!(
            (conducting.epoch, conducting.lost, &*conducting.clients),
            (2, node(0).with(NodeId(1)), &[1, 2][..])
        );
        assert!(conducting.wait > LEASE && all.conducting(4).is_none());
        all.stopped(1);
        all.stopped(2);
        assert_eq!(all.conducting(3).unwrap().wait, 0);
        // The conductor dies: the controller that suspects it goes on with the change.
        all.suspect(3, 4).unwrap();
        assert_eq!(all.begin_epoch(3, &conducting, NodeSet::default()), Err(Fenced(3)));
        let taken_over = all.conducting(4).unwrap();
        assert_eq!(taken_over.clients, [1, 2, 3]);
        assert_eq!(all.begin_epoch(4, &conducting, NodeSet::default()), Ok(false), "there is one more to recover");
        let verdicts: Vec<_> = taken_over.clients.iter().map(|client| (*client, Verdicts::default())).collect();
        assert_eq!(all.decided(3, &verdicts), Err(Fenced(3)));
        assert_eq!(all.decided(4, &verdicts), Ok(()));
        assert_eq!(all.begin_epoch(4, &taken_over, NodeSet::default()), Ok(true));
        assert_eq!((all.epoch(), all.lost(), all.is_changing()), (2, node(0).with(NodeId(1)), false));
        assert_eq!(all.join(5, 1, LEASE, None), Err(EpochChanging), "of the former epoch");
        assert_eq!(all.join(6, 2, LEASE, None), Ok(()));
        assert_eq!(all.standing(2), Some(Standing::Recovered { by: 0 }));
    }

    #[test]
    fn a_node_that_was_lost_is_told_so_and_one_that_was_drained_is_not() {
        let node = |number| NodeSet::default().with(NodeId(number));
        let mut all = Membership::default();
        all.join_controller(1, LEASE, None);
        all.renew(1).unwrap();
        let begin = |all: &mut Membership, emptied: NodeSet| {
            let conducting = all.conducting(1).unwrap();
            assert_eq!(all.begin_epoch(1, &conducting, emptied), Ok(true));
        };
        all.drain(node(2));
        all.lose(node(0), 1).unwrap();
        assert_eq!(all.given_up(NodeId(0)), None, "it is not lost yet");
        begin(&mut all, NodeSet::default());
        all.rearrange(1).unwrap();
        begin(&mut all, node(2));
        assert_eq!(all.lost(), node(0).with(NodeId(2)));
        assert_eq!([0, 1, 2].map(|number| all.given_up(NodeId(number))), [Some(2), None, None]);
        all.admit(node(0).with(NodeId(2)), 1).unwrap();
        begin(&mut all, NodeSet::default());
        assert_eq!((all.lost(), all.given_up(NodeId(0))), (NodeSet::default(), None));
        // One that dies while it is taken in, or whose conductor does, may have been given
        // something.
        all.lose(node(1), 1).unwrap();
        begin(&mut all, NodeSet::default());
        all.admit(node(1), 1).unwrap();
        all.lose(node(1), 1).unwrap();
        begin(&mut all, NodeSet::default());
        assert_eq!((all.lost(), all.given_up(NodeId(1))), (node(1), Some(all.epoch())));
    }

    #[test]
    fn a_node_that_is_added_is_one_that_was_lost_and_comes_back() {
        let node = |number| NodeSet::default().with(NodeId(number));
        let mut all = Membership::default();
        all.join_controller(1, LEASE, None);
        all.renew(1).unwrap();
        assert_eq!(["c:1", "d:1", "c:1"].map(|place| all.add(3, place)), [3, 4, 3].map(|number| Some(NodeId(number))));
        assert_eq!(
            (all.lost(), all.given_up(NodeId(3))),
            (node(3).with(NodeId(4)), None),
            "nobody has to give up anything"
        );
        all.fill(node(3));
        all.admit(node(3), 1).unwrap();
        let conducting = all.conducting(1).unwrap();
        assert_eq!((conducting.admitted, conducting.lost, conducting.filling), (node(3), node(4), node(3)));
        all.begin_epoch(1, &conducting, NodeSet::default()).unwrap();
        assert_eq!((all.lost(), all.add(3, "c:1")), (node(4), Some(NodeId(3))));
        assert_eq!(all.lost(), node(4), "it is there, and is not lost by being added again");
        all.drain(node(3));
        all.fill(node(3));
        assert!(all.filling().is_empty(), "it is to have nothing");
        for number in 5..64 {
            assert_eq!(all.add(3, &format!("e:{number}")), Some(NodeId(number)));
        }
        assert_eq!(all.add(3, "f:1"), None);
        let mut new = Membership::default();
        new.catch_up(2, node(4), all.added());
        assert_eq!(new.added(), all.added());
    }

    #[test]
    fn a_node_that_leaves_keeps_its_copies_unless_fewer_will_do() {
        let node = |number| NodeSet::default().with(NodeId(number));
        let mut all = Membership::default();
        all.join_controller(1, LEASE, None);
        all.renew(1).unwrap();
        all.drain_to_fewer(node(0));
        all.drain(node(1));
        assert_eq!((all.leaving(), all.expendable()), (node(0).with(NodeId(1)), node(0)));
        all.drain(node(0));
        assert_eq!(all.expendable(), node(0), "once is enough");
        all.rearrange(1).unwrap();
        let conducting = all.conducting(1).unwrap();
        assert_eq!((conducting.leaving, conducting.expendable), (all.leaving(), node(0)));
        all.stay(node(0));
        assert_eq!((all.leaving(), all.expendable()), (node(1), NodeSet::default()));
        assert_eq!(all.begin_epoch(1, &conducting, NodeSet::default()), Ok(false), "one of them stays");
        all.drain(node(0));
        assert!(all.expendable().is_empty(), "that was another time");
    }

    #[test]
    fn a_change_that_nobody_conducts_is_taken_up() {
        let lost = NodeSet::default().with(NodeId(2));
        let mut all = alive(&[1, 2]);
        all.join_controller(3, LEASE, None);
        all.lose(lost, 3).unwrap();
        all.resign(3).unwrap();
        all.join_controller(4, LEASE, None);
        all.renew(4).unwrap();
        assert!(all.is_abandoned() && all.conducting(4).is_none());
        all.adopt(4);
        let conducting = all.conducting(4).unwrap();
        assert_eq!((conducting.lost, &*conducting.clients), (lost, &[1, 2][..]));
        assert_eq!(all.join(5, 1, LEASE, None), Err(EpochChanging), "no client comes meanwhile");
    }

    #[test]
    fn a_table_has_one_version_cache_at_a_time() {
        let mut all = alive(&[1, 2, 3, 9]);
        for (client, vcache) in [(2, 1), (3, 1), (9, 9)] {
            all.validates_by(client, vcache);
        }
        all.claim(1, &[5, 6]).unwrap();
        assert_eq!(all.claim(9, &[7]), Ok(()), "each has tables of its own");
        assert_eq!(all.claim(1, &[6, 7]), Err(OtherCache(9)));
        assert_eq!(all.claim(9, &[6]), Err(OtherCache(2)));
        all.leave(2).unwrap();
        assert_eq!(all.claim(9, &[6]), Err(OtherCache(3)));
        all.suspect(3, 9).unwrap();
        assert_eq!(all.claim(9, &[6]), Err(OtherCache(3)), "what it had begun may still commit");
        all.recovered(3, 9, Verdicts::default()).unwrap();
        assert_eq!(all.claim(9, &[6]), Ok(()));
        assert_eq!(all.claim(1, &[5, 6]), Err(OtherCache(9)), "nor does the old one come back");
        assert_eq!(all.claim(1, &[5]), Ok(()));
    }

    #[test]
    fn who_gives_up_is_recovered_by_others_with_all_that_it_had_to_do() {
        let mut all = alive(&[1, 2, 3]);
        all.suspect(1, 2).unwrap();
        all.give_up(2).unwrap();
        assert_eq!((all.renew(2), all.give_up(2)), (Err(Fenced(2)), Err(Fenced(2))));
        all.adopt(3);
        assert_eq!(all.charges(3).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn who_repairs_neither_rests_nor_is_out_of_the_judges_sight() {
        let mut all = alive(&[1, 2]);
        all.suspect(1, 2).unwrap();
        all.rest(2).unwrap();
        assert_eq!(all.leases().count(), 1);
        all.recovered(1, 2, Verdicts::default()).unwrap();
        all.rest(2).unwrap();
        assert_eq!((all.leases().count(), all.standing(1)), (0, Some(Standing::Recovered { by: 0 })));
        all.adopt(2);
        assert_eq!(all.charges(2).collect::<Vec<_>>(), [1]);
    }
}
