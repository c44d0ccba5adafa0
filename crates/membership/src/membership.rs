//! The membership: a plain value, and the changes that it may undergo. A
//! [`Configuration`](crate::Configuration) decides where it is kept.
//!
//! This file has the value, and the changes by which clients join, renew their leases and leave.
//! `recovery` has the changes for clients that are taken for dead. `epoch` has the changes of
//! memory nodes.

use std::collections::BTreeMap;

use remora_fabric::{Nanos, NodeId, NodeSet};
use remora_node::ShardId;
use remora_txn::recovery::Verdicts;
use serde::{Deserialize, Serialize};

mod epoch;
mod recovery;

/// The divisor for the margin of a lease: a lease lasts its length plus its length divided by this.
/// The judge's clock may run that much faster than the holder's, and a renewal takes a while to be
/// seen.
pub(crate) const MARGIN: Nanos = 8;

/// The length of a lease that never expires.
const NEVER: Nanos = Nanos::MAX / 2;

/// How a client incarnation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Standing {
    /// The client runs, as far as is known.
    Alive,
    /// The client was taken for dead. Its locks still count.
    Suspected {
        /// The client that recovers it; 0 if that client has left.
        by: u32,
    },
    /// All that the client had logged is decided and repaired. Its locks are void.
    Recovered {
        /// The client that looks for what else it has left; 0 if no client does so now.
        by: u32,
    },
    /// Nothing of the client is left in memory.
    Forgotten,
}

/// The error for a client that was taken for dead. It may come back as a new incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("client {0} was taken for dead, and what it had begun was ended by another: connect again")]
pub struct Fenced(pub u32);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Member {
    standing: Standing,
    /// The number of its renewals, which grows as long as it lives.
    renewals: u64,
    lease_ns: Nanos,
    /// Whether it runs nothing and holds nothing. Its lease does not run then.
    resting: bool,
    /// The client's process, where others can tell whether it has ended.
    #[serde(default)]
    process: Option<u64>,
    /// Whether it looks after the memory nodes, and runs no transactions.
    #[serde(default)]
    is_controller: bool,
    /// Whether it has stopped and said so. Then a change of the epoch need not wait until its lease
    /// has expired.
    #[serde(default)]
    has_stopped: bool,
    /// The version cache in which it publishes, if it does.
    #[serde(default)]
    vcache: Option<u32>,
    /// The generation of the catalog up to which the client uses no dropped table.
    #[serde(default)]
    acknowledged: u64,
    verdicts: Verdicts,
}

/// A change of the epoch that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Change {
    conductor: u32,
    /// Nodes that the next epoch loses, beyond the nodes that this epoch is without.
    losing: u64,
    /// Nodes that this epoch is without, and that the next epoch admits.
    admitting: u64,
}

/// The error for a client that joins while the epoch changes. The client should try again soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("memory nodes have been lost or taken in, and the epoch is changing: try again")]
pub struct EpochChanging;

/// The error for a table whose version cache cannot change yet: this client uses another one, and
/// has neither left nor been recovered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("client {0} validates by another version cache, and has neither left nor been recovered")]
pub struct OtherCache(pub u32);

/// The work of a conductor, which changes the epoch; see `remora_txn::recovery::fail_over`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conducting {
    /// The number of the epoch that begins.
    pub epoch: u64,
    /// Nodes that the new epoch is without.
    pub lost: NodeSet,
    /// Nodes that the new epoch has and the old one had not. They hold nothing yet.
    pub admitted: NodeSet,
    /// Nodes that are being drained: they should hold nothing any more.
    pub leaving: NodeSet,
    /// The leaving nodes whose copies need not be made elsewhere first.
    pub expendable: NodeSet,
    /// Nodes that should get their share of the shards.
    pub filling: NodeSet,
    /// Joining replicas that have been given all data.
    pub copied: Vec<(ShardId, NodeId)>,
    /// All clients that may have had transactions under way.
    pub clients: Vec<u32>,
    /// The highest incarnation that has ever joined.
    pub incarnations: u32,
    /// The time, from the beginning of the change, for which some of these clients may not know of
    /// it.
    pub wait: Nanos,
}

/// All client incarnations that any client still has to know of, and the memory nodes that the
/// cluster goes on without.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Membership {
    /// The number of this membership, which no other has. It is 0 until a client asks for it.
    #[serde(default)]
    identity: u64,
    generation: u64,
    epoch: u64,
    lost: u64,
    /// For each lost node that was not drained, the first epoch without it. If such a node lives,
    /// it is told to erase what it has.
    #[serde(default)]
    given_up: BTreeMap<u16, u64>,
    /// Nodes whose shards are moved elsewhere.
    leaving: u64,
    /// The leaving nodes whose copies need not be made elsewhere first, where too few other nodes
    /// are left. It may also name some nodes that have left already.
    #[serde(default)]
    expendable: u64,
    /// Nodes that get shards of other nodes.
    #[serde(default)]
    filling: u64,
    /// Nodes that were added after the cluster was founded, with their addresses.
    #[serde(default)]
    added: BTreeMap<u16, String>,
    /// Joining replicas that have been given all data, as shards and nodes.
    copied: Vec<(u16, u16)>,
    change: Option<Change>,
    members: BTreeMap<u32, Member>,
    /// The highest incarnation that has ever joined or was reserved.
    #[serde(default)]
    incarnations: u32,
    /// The highest incarnation that this membership has given itself. A client may have drawn the
    /// same incarnation, or a lower one, at a memory node, and may not have joined yet.
    #[serde(default)]
    given: u32,
    /// For each table that is validated locally, the version cache that validates it, or was the
    /// last to do so.
    #[serde(default)]
    vcaches: BTreeMap<u16, u32>,
    /// The generation of the last change of the catalog that dropped tables, as far as the
    /// membership was told.
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
            given: 0,
            vcaches: BTreeMap::new(),
            dropped: 0,
        }
    }
}

impl Membership {
    /// Returns the number of this membership, which no other has. It is the proposed number, unless
    /// the membership has one already.
    pub fn identify(&mut self, proposed: u64) -> u64 {
        if self.identity == 0 {
            self.identity = proposed;
        }
        self.identity
    }

    /// Returns the generation, which grows whenever the standing of some client changes.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Adds a client to this epoch, and returns its incarnation. That is the one which the client
    /// has `drawn` at a memory node, unless another client may have it already. The client is at
    /// rest: its lease begins to run with its first renewal. `process` is the configuration's name
    /// for its process ([`Configuration::process`](crate::Configuration::process)).
    pub fn join(
        &mut self,
        drawn: u32,
        epoch: u64,
        lease_ns: Nanos,
        process: Option<u64>,
    ) -> Result<u32, EpochChanging> {
        if self.change.is_some() || epoch != self.epoch {
            return Err(EpochChanging);
        }
        let client = self.unique(Ok(drawn));
        self.enter(client, lease_ns, process, false);
        Ok(client)
    }

    /// Adds a controller, and returns its incarnation. A controller is a client that looks after
    /// the memory nodes. The end of an epoch does not end it. It may join while the epoch changes,
    /// because the controllers that were changing it may be gone. `drawn` is as in
    /// [`Membership::reserve`].
    pub fn join_controller(&mut self, drawn: Result<u32, u32>, lease_ns: Nanos, process: Option<u64>) -> u32 {
        let client = self.unique(drawn);
        self.enter(client, lease_ns, process, true);
        client
    }

    /// Gives an incarnation to a client that does not join, and that nobody has to recover. Clients
    /// draw incarnations from a counter at the leading memory node. `drawn` is an error if the
    /// client cannot reach that node, with the highest incarnation of which other nodes know, or 0.
    /// Then the membership gives an incarnation, above that one and all that it knows itself. It
    /// also does so if it may have given `drawn` to another client.
    pub fn reserve(&mut self, drawn: Result<u32, u32>) -> u32 {
        let client = self.unique(drawn);
        self.incarnations = self.incarnations.max(client);
        self.generation += 1;
        client
    }

    /// Returns `drawn`, or the next incarnation if another client may have that one.
    fn unique(&mut self, drawn: Result<u32, u32>) -> u32 {
        match drawn {
            Ok(drawn) if drawn > self.given => drawn,
            Ok(known) | Err(known) => {
                self.given = self.incarnations.max(known) + 1;
                self.given
            }
        }
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
        let former = self.members.insert(client, member);
        debug_assert!(former.is_none(), "no two clients have the same incarnation");
        self.incarnations = self.incarnations.max(client);
        self.generation += 1;
    }

    /// Makes one version cache validate these tables from now on, and no other. The number of a
    /// version cache is that of some client of its process. Fails if a client of the tables' former
    /// cache may still write them.
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

    /// Records that a client that has just joined validates by a version cache.
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

    /// Returns the generation of the last change of the catalog that dropped tables; 0 if there was
    /// none.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Records that the client uses no table any more that the catalog had dropped by this
    /// generation, and that none of its work on such a table is under way.
    pub fn acknowledge_drop(&mut self, client: u32, generation: u64) -> Result<(), Fenced> {
        let member = self.alive(client)?;
        member.acknowledged = member.acknowledged.max(generation);
        Ok(())
    }

    /// Whether a client uses no table that the catalog had dropped by this generation. That is so
    /// if the client has said so, or if it rests. A client that rests has nothing under way, and
    /// learns of the drop with the renewal by which it begins to run. Returns `None` if the client
    /// will never say: it has no lease, or this membership does not know it.
    #[must_use]
    pub fn has_acknowledged_drop(&self, client: u32, generation: u64) -> Option<bool> {
        let member = self.members.get(&client)?;
        let is_leased = member.lease_ns < NEVER;
        match member.standing {
            _ if member.acknowledged >= generation && member.standing == Standing::Alive => Some(true),
            Standing::Alive if !is_leased => None,
            Standing::Alive => Some(member.resting),
            // The client is finished with the table when its slot has been given back.
            Standing::Suspected { .. } | Standing::Recovered { .. } | Standing::Forgotten => Some(false),
        }
    }

    /// Renews the lease of a client.
    pub fn renew(&mut self, client: u32) -> Result<(), Fenced> {
        let member = self.alive(client)?;
        member.renewals += 1;
        member.resting = false;
        Ok(())
    }

    /// Records that the client runs nothing and holds no lock until its next renewal. Until then no
    /// judge suspects it. Does nothing for a client that is repairing what another has left.
    pub fn rest(&mut self, client: u32) -> Result<(), Fenced> {
        if self.charges(client).any(|charge| matches!(self.standing(charge), Some(Standing::Suspected { .. }))) {
            return Ok(());
        }
        self.hand_back(client);
        self.alive(client)?.resting = true;
        Ok(())
    }

    /// Records that the client has left in good order: it has no transaction under way, and its
    /// slot is given back.
    pub fn leave(&mut self, client: u32) -> Result<(), Fenced> {
        self.resign(client)?;
        self.members.remove(&client);
        Ok(())
    }

    /// Records that the client has stopped and cannot end the transactions that it had under way.
    /// Any live client may recover it.
    pub fn give_up(&mut self, client: u32) -> Result<(), Fenced> {
        self.resign(client)?;
        let member = self.alive(client)?;
        (member.standing, member.has_stopped) = (Standing::Suspected { by: 0 }, true);
        Ok(())
    }

    /// Makes the client leave its duties for the cluster to others.
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

    /// Returns how a client stands. `None` if it has left, was never known, or was forgotten long
    /// ago.
    #[must_use]
    pub fn standing(&self, client: u32) -> Option<Standing> {
        self.members.get(&client).map(|member| member.standing)
    }

    /// Returns all clients, with how they stand.
    pub fn clients(&self) -> impl Iterator<Item = (u32, Standing)> + '_ {
        self.members.iter().map(|(client, member)| (*client, member.standing))
    }

    /// Returns the clients whose leases run: how often each has renewed its lease, and the lease's
    /// length.
    pub(crate) fn leases(&self) -> impl Iterator<Item = (u32, u64, Nanos)> + '_ {
        let running = self.members.iter().filter(|(_, member)| member.standing == Standing::Alive && !member.resting);
        running.map(|(client, member)| (*client, member.renewals, member.lease_ns))
    }

    /// Returns the clients that are taken for alive, with their processes where these are known.
    pub fn processes(&self) -> impl Iterator<Item = (u32, Option<u64>)> + '_ {
        let alive = self.members.iter().filter(|(_, member)| member.standing == Standing::Alive);
        alive.map(|(client, member)| (*client, member.process))
    }

    /// Returns the longest lease of all known clients, including clients that are being recovered.
    /// Returns 0 if there is none. Clients whose leases never expire do not count.
    #[must_use]
    pub fn longest_lease(&self) -> Nanos {
        self.members.values().map(|member| member.lease_ns).filter(|lease| *lease < NEVER).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
