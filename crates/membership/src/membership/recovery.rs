//! Changes for clients that are taken for dead: which client recovers them, and how their
//! transactions ended.

use remora_txn::recovery::Verdicts;

use super::{Fenced, Member, Membership, Standing};

/// The number of forgotten clients whose verdicts are kept. A client that asks for the outcome of a
/// transaction does so soon.
const FORGOTTEN_MAX: usize = 256;

impl Membership {
    /// Returns the clients that are being recovered, or wait for that.
    pub fn recovering(&self) -> impl Iterator<Item = u32> + '_ {
        let is_dead = |standing| matches!(standing, Standing::Suspected { .. } | Standing::Recovered { .. });
        self.clients().filter(move |(_, standing)| is_dead(*standing)).map(|(client, _)| client)
    }

    /// Returns the clients that client `by` has to recover.
    pub fn charges(&self, by: u32) -> impl Iterator<Item = u32> + '_ {
        self.clients().filter(move |(_, standing)| is_charge(*standing, by)).map(|(client, _)| client)
    }

    /// Lets the next client recover these clients, which the memory nodes know and this new
    /// membership does not. It is not known whether they live. Does nothing if this membership has
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
        self.assert_recoverers_are_alive();
        Ok(())
    }

    /// Suspects a client whose lease `by` judged expired after `renewals` renewals: see
    /// [`Membership::suspect`]. Does nothing if the client rests, or has renewed its lease since
    /// `by` judged it.
    pub fn suspect_silent(&mut self, client: u32, renewals: u64, by: u32) -> Result<(), Fenced> {
        if self.leases().any(|(silent, counted, _)| (silent, counted) == (client, renewals)) {
            return self.suspect(client, by);
        }
        self.alive(by).map(|_| ())
    }

    /// Makes `by` take over the work that recoverers have left unfinished. If `by` is a controller,
    /// it also takes over the work of conductors.
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

    /// Records that every transaction that a client had logged is decided and repaired. Fails if
    /// `by` is not its recoverer any more.
    pub fn recovered(&mut self, client: u32, by: u32, verdicts: Verdicts) -> Result<(), Fenced> {
        self.alive(by)?;
        let member = self.members.get_mut(&client).filter(|member| is_charge(member.standing, by)).ok_or(Fenced(by))?;
        // If a successor repeats the recovery, the first verdicts count, because the rings may have
        // been given back since.
        if matches!(member.standing, Standing::Suspected { .. }) {
            member.standing = Standing::Recovered { by };
            member.verdicts = verdicts;
            self.generation += 1;
        }
        Ok(())
    }

    /// Records that nothing of a client is left. Fails if `by` is not its recoverer any more.
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

    /// Returns the outcomes of a dead client's transactions, once they are decided.
    #[must_use]
    pub fn verdicts(&self, client: u32) -> Option<&Verdicts> {
        let member = self.members.get(&client)?;
        matches!(member.standing, Standing::Recovered { .. } | Standing::Forgotten).then_some(&member.verdicts)
    }

    /// Gives back the rest of a recoverer's work, which any client may take over. That work is the
    /// search for locks, which does no harm if it is done twice.
    pub(super) fn hand_back(&mut self, recoverer: u32) {
        for member in self.members.values_mut() {
            if member.standing == (Standing::Recovered { by: recoverer }) {
                member.standing = Standing::Recovered { by: 0 };
                self.generation += 1;
            }
        }
    }
}

impl Membership {
    /// Asserts that every client that recovers another one, or conducts a change of the epoch, is
    /// alive. When such a client is suspected, all its work passes to a successor, which revokes it
    /// together with the clients that it was to recover.
    pub(super) fn assert_recoverers_are_alive(&self) {
        let recoverers = self.members.values().filter_map(|member| match member.standing {
            Standing::Suspected { by } | Standing::Recovered { by } => Some(by),
            Standing::Alive | Standing::Forgotten => None,
        });
        let conductor = self.change.map(|change| change.conductor);
        let is_alive = |by| by == 0 || self.standing(by) == Some(Standing::Alive);
        debug_assert!(
            recoverers.chain(conductor).all(is_alive),
            "recovery 1: a recoverer is alive, or others recover it too"
        );
    }
}

fn is_charge(standing: Standing, recoverer: u32) -> bool {
    matches!(standing, Standing::Suspected { by } | Standing::Recovered { by } if by == recoverer)
}
