//! The membership: a plain value and the changes it may undergo. Where it is kept is the business
//! of a [`Configuration`](crate::Configuration).
//!
//! This file has the value, and how clients join, renew their leases and leave. `recovery` has what
//! happens to clients that are taken for dead; `epoch` has the memory nodes.

use std::collections::BTreeMap;

use remora_fabric::{Nanos, NodeId, NodeSet};
use remora_node::ShardId;
use remora_txn::recovery::Verdicts;
use serde::{Deserialize, Serialize};

mod epoch;
mod recovery;

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
        debug_assert!(self.charges(client).next().is_none(), "recovery 1: a recoverer leaves what it has not finished");
        self.assert_recoverers_are_alive();
        Ok(())
    }

    fn alive(&mut self, client: u32) -> Result<&mut Member, Fenced> {
        self.members.get_mut(&client).filter(|member| member.standing == Standing::Alive).ok_or(Fenced(client))
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

    /// The longest lease of a client that is known here, also of one that is being recovered; 0 if
    /// there is none. Clients that never expire do not count.
    #[must_use]
    pub fn longest_lease(&self) -> Nanos {
        self.members.values().map(|member| member.lease_ns).filter(|lease| *lease < NEVER).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
