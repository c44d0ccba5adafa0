//! Landing clocks: times of commits, by which a transaction that only reads needs one round trip
//! and no validation, at any replica.
//!
//! Each memory node has a counter, its *landing clock* ([`clock_at`]). Clients only raise it.
//!
//! ```text
//! writer     WRITE data, invisible; FETCH_ADD clock + 1 -> draw    at every node that it writes,
//!                                                                  one chain a node
//!            time = the largest draw, and above the times of all that it has read
//!            CAS clock, up to the time                             at nodes of what it only reads
//!            WRITE time; WRITE version, visible                    in the background
//! reader     CAS clock, up -> claim; READ records                  any replica, one chain a node
//!            snapshot = the smallest claim
//!            every time that it has read <= snapshot: done
//!            else: again, with claims above the largest time
//! validates  CAS clock, up to the largest time that it has read;   a transaction without snapshot
//!            READ lock, version                                    that writes nothing
//!
//! writer,    CAS lock; FETCH_ADD clock + 1 -> draw                 every replica of what it writes
//! early      time = the largest draw, and above the times of all that it has read
//!            CAS clock, up to the time; READ lock, version         at nodes of what it only reads
//!            WRITE data and time, invisible                        every replica
//!            WRITE version, visible; CAS unlock                    in the background
//! ```
//!
//! A writer whose time is *early* fixes it before its data lands. A writer that only reads many
//! records does so, and validates these records: if it locked them instead, it would exclude too
//! many other transactions.
//!
//! # With redo logs
//!
//! The OCC family has landing clocks, too (`drtm-r-clocks`). There every time is early, and only
//! primaries have locks, clocks that count, and readers:
//!
//! ```text
//! writer     CAS lock; READ version; FETCH_ADD clock + 1 -> draw   primaries of what it writes
//!            time = the largest draw, and above the times of all that it has read
//!            CAS clock, up to the time; READ lock, version         primaries of what it only reads
//!            WRITE log entry, with the time                        every replica's ring
//!            WRITE data and time; CAS unlock                       primaries, in the background
//! reader     CAS clock, up -> claim; READ records                  primaries
//! ```
//!
//! A reader waits at every lock, because the holder's time may be below the reader's claim. Backups
//! serve no snapshot: they may not have applied their logs yet. Keys that the index does not have
//! have a time, too (`remora_index::cluster_hash`).
//!
//! # Why this is a snapshot
//!
//! The reader has all commits whose time is not above the snapshot, and no other. Take a commit
//! that writes a record which the reader reads at a node. Either its data lands there before the
//! reader's claim, and the reader finds it, or waits while it is invisible. Or the data lands
//! behind the claim. Then the draw, which follows the data, is above the claim, and so is the time.
//! So the reader may miss the commit, and if it does not, it sees that the time is above the
//! snapshot, and reads again.
//!
//! If the writer's time is early, the draw follows the writer's lock at that node. Either the lock
//! is there before the reader's claim, and the reader finds it, and waits until the record is
//! visible. Or the lock comes behind the claim, and then the draw and the time are above the claim.
//!
//! No clock of a machine takes part. A reader sees everything that was acknowledged before it
//! began, of the records that it reads. Two writers that share no record may be ordered otherwise
//! than in real time: a reader may see the later one, and not the earlier one
//! (`docs/protocols/remora.md`).
//!
//! # One clock
//!
//! On a fabric whose rounds take effect in order, over all nodes ([`Capabilities::in_order`]), one
//! clock is enough: that of the first node. A commit draws once, behind its data at all nodes, and
//! a reader looks at the clock once, ahead of all its reads. Everything above holds, as if all
//! records were at one node. More holds, too:
//!
//! - *No record is visible with a time that is above the clock.* The clock reaches a commit's time
//!   between its begin and its answer: by its draw; or, if an early time is above its draws,
//!   because of what it read later, before its validation (10); or by recovery. So guards need not
//!   be raised (4), nor clocks where a transaction validates that writes nothing (5).
//! - *Snapshots are read at primaries*, because no copy is further away than another. So a writer
//!   whose time is early locks primaries only (9).
//! - *Snapshots are strictly serializable.* Order all commits by their times. Since the clock
//!   reaches each time between the commit's begin and its answer, a commit that begins behind the
//!   answer of another one has a later time. A snapshot stands at the moment when it looks at the
//!   clock. A commit that was answered before that has no later time. A commit that begins after it
//!   has a later one. If the claim is what was known of the clock, the snapshot stands at its
//!   begin: it has read the newest versions, so no later commit has changed what it has read. A
//!   snapshot that goes back to former images is only fresh, because recovery may have given a
//!   commit a later time than it was answered with.
//!
//! # Invariants
//!
//! 1. **A reader claims before it reads**, at each node, on the connection that brings the record.
//!    What it knows a clock to have had before it posts the READ is a claim, too, without a verb.
//!    If records change all the time, that is too early most of the time, so it rarely tries it
//!    then.
//! 2. **A writer draws behind its data**, at every node that it writes, before it is acknowledged;
//!    or, if its time is early, behind its locks (9).
//! 3. **The time of a commit is above its draws' values before them, and above the times of all
//!    records that it has read or replaces.** So times follow the order of dependent commits.
//! 4. **What a writer has only read is locked**, at its primary, until that node's clock has
//!    reached the writer's time. So a later writer of that record has a later time. Validation is
//!    not enough, because the time is drawn after it. If the time is early, validation is enough
//!    (10).
//! 5. **A transaction that writes nothing, and reads no snapshot, raises the clocks** of the nodes
//!    where it validates to the largest time that it has read, before it looks there again. So who
//!    writes later what it has read has a later time. Without this, it could have seen one of two
//!    writers that a snapshot sees in the other order. (If it reads one record, there is no other.)
//! 6. **A record is visible only with its time**, which is the same at all replicas.
//! 7. **Recovery draws anew**, at every node, and raises all clocks to the new time before it frees
//!    anything. If a replica is visible already, its time is the commit's. An early time is in the
//!    undo entry, and stays. With redo logs, the time is in the entry. Recovery installs a record
//!    only under the dead client's lock, and raises no clock: the client had raised the clocks of
//!    what it only read before it sent the entry, and who reads or replaces a written record finds
//!    the time in the record.
//! 8. **No claim outlives its epoch.** An epoch ends all clients, and everything of the old one has
//!    landed or is decided before the next one begins. So the clock of a new replica, or of a
//!    primary that was a backup, may be behind the claims and raises of an earlier epoch. Who opens
//!    a snapshot raises all clocks above the times of earlier epochs ([`EPOCH_BITS`]).
//! 9. **A writer whose time is early has locks at every replica of what it writes**, from before
//!    its last draw there until the record is visible there. With redo logs, it has them at the
//!    primaries, which alone serve snapshots. The lock word says that its holder's
//!    time is early ([`TransactionId::fixes_time_early`]). Readers of snapshots wait at such a
//!    lock, at any replica. They ignore all others, but for tables with redo logs, where every
//!    time is early, and no lock word says so.
//! 10. **A writer whose time is early validates what it has only read, and raises the clock of each
//!     primary to its time before it looks there.** So who locks one of these records later draws a
//!     later time. It raises the clocks of records that it has locked and does not write, too.
//!     (Here and in 5, a clock that is known to have reached the time needs no verb.)
//!
//! # Raising a clock
//!
//! A clock is raised to a time by a CAS from the value that it is known to have had. If the CAS
//! fails, the clock has run on meanwhile, and what the CAS has found is a claim as well. A
//! FETCH_ADD of what a clock lacks would overshoot if several clients did so at once. Then the
//! other nodes' clocks would lack as much, and so on: clocks would double all the time.
//!
//! [`Capabilities::in_order`]: remora_fabric::Capabilities::in_order
//! [`clock_at`]: remora_node::node::clock_at
//! [`TransactionId::fixes_time_early`]: remora_record::TransactionId::fixes_time_early

use std::rc::Rc;

use remora_fabric::{
    AddHandle, Completed, FabricError, Lane, NodeId, NodeSet, ReadHandle, Round, SwapHandle, WORD_BYTES,
};
use remora_node::node::clock_at;

/// A past time at which records can be read, as [`Tx::open_snapshot`](crate::Tx::open_snapshot)
/// returns it. All sessions of all clients can read at that time, in the same epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PastTime {
    /// The time, as landing clocks count it.
    pub(crate) time: u64,
    /// The epoch of the configuration.
    pub(crate) epoch: u64,
}

/// What a transaction that only reads, in a snapshot, sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Snapshot {
    /// Everything that was acknowledged before it began, of the records that it reads.
    Fresh,
    /// A snapshot that is ordered by real time with all other transactions. Ask for it only if the
    /// session has them ([`Session::has_strict_snapshots`](crate::Session::has_strict_snapshots)).
    Strict,
    /// All records as they were at a past time.
    At(PastTime),
}

/// What a session knows of landing clocks.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    /// The nodes whose clocks count.
    nodes: NodeSet,
    /// Whether one clock counts for all nodes.
    is_one: bool,
    /// For each node, a value that its clock is known to have had.
    known: Vec<u64>,
    /// The time from which on the next snapshot has to be.
    pub(crate) from: u64,
    /// The draws of the commit that is under way.
    pub(crate) draws: Vec<Draw>,
    /// The nodes where a commit that fixes its time early has to draw.
    draws_at: NodeSet,
    /// The CASs that raise clocks for the commit that is under way, with the numbers of the draws.
    raises: Vec<(usize, SwapHandle)>,
    /// The claims of the snapshot that is being read.
    claims: Vec<Claim>,
    /// The largest time of all commits of this session, and of all that its transactions have read
    /// and validated.
    own: u64,
    /// Whether this session has committed something whose time it does not know.
    misses_own: bool,
    /// How many times in a row a snapshot was earlier than a record that it read.
    behind: u32,
    /// Whether the next claims must not be below `from`.
    reaches_from: bool,
    /// How many snapshots are still to ask for clocks, because claims that were known were too
    /// early the last time.
    asks: u32,
    /// What `asks` was set to then.
    asked: u32,
}

/// The largest number of snapshots that ask for clocks before one is tried with what is known.
const ASKS_MAX: u32 = 64;

/// How far the time of a commit may be above the clocks of the nodes that it writes, when its
/// release has arrived. If it is further, the release raises the clock there, unless the clock runs
/// on meanwhile. A snapshot is opened at a time that is above all clocks by as much.
pub(crate) const LAG_MAX: u64 = 64;

/// How far all clocks are raised when a table has grown. So snapshots that are opened later are
/// later than all that has happened in the smaller table, which is gone.
const GROWN: u64 = 1 << 32;

/// Snapshots that are opened in epoch `e` have times from `e << EPOCH_BITS` on. So they are later
/// than all commits of earlier epochs, as long as no epoch has more than fit: of commits and
/// aborted attempts that have drawn, of tables that grow ([`GROWN`]), and of what clocks are raised
/// ahead.
const EPOCH_BITS: u32 = 46;

/// Returns the time that is later than all commits of earlier epochs.
fn first_time(epoch: u64) -> u64 {
    epoch << EPOCH_BITS
}

/// Raises the clock above all times of earlier epochs, where one clock counts for all nodes. The
/// first node may be another one than in earlier epochs. A client calls this before its first
/// transaction.
pub async fn enter_epoch(lane: &Lane, nodes: NodeSet, epoch: u64) -> Result<(), FabricError> {
    if !lane.capabilities().in_order {
        return Ok(());
    }
    let (clock, least) = (clock_at(nodes.leader()), first_time(epoch));
    let mut known = 0;
    while known < least {
        let mut round = lane.round();
        let raise = round.compare_swap(clock, known, least);
        let done = lane.execute(round).await?;
        known = if done.swapped(raise) { least } else { done.previous(raise) };
    }
    Ok(())
}

/// Why all clocks are raised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Raise {
    /// A snapshot is opened. If clocks that are far behind run on all the time, it gets a time that
    /// all of them have reached already.
    Opened,
    /// A table has grown.
    Grown,
}

impl Raise {
    /// Returns how far above all clocks the time is to which they are raised.
    pub(crate) fn ahead(self) -> u64 {
        match self {
            Raise::Opened => LAG_MAX,
            Raise::Grown => GROWN,
        }
    }
}

/// A lock at a backup that a round has asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackupLock {
    /// The number of the record's item.
    pub(crate) item: usize,
    pub(crate) swap: SwapHandle,
}

/// A draw of a commit at a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    pub(crate) node: NodeId,
    handle: AddHandle,
    /// The value of the clock behind the draw, once it is known.
    at: u64,
    /// Whether the node has the lock of a record that the commit only reads.
    pub(crate) guards: bool,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    node: NodeId,
    /// How the clock was asked for, until its answer has come.
    asked: Option<Asked>,
    at: u64,
}

/// How a claim asks for a clock.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// By a CAS that raises the clock to this value.
    Raise(SwapHandle, u64),
    /// By a look at it.
    Look(ReadHandle),
}

impl Clocks {
    /// The clocks of these nodes. `in_order` says whether the rounds of the fabric take effect in
    /// order, over all nodes. Then one clock counts for all of them.
    pub(crate) fn new(nodes: NodeSet, in_order: bool) -> Clocks {
        let is_one = in_order && !mutant!(ClockOfEachNode) || mutant!(OneClockUnordered);
        let nodes = if is_one { NodeSet::default().with(nodes.leader()) } else { nodes };
        Clocks { nodes, is_one, ..Clocks::default() }
    }

    /// Returns the nodes whose clocks count.
    pub(crate) fn nodes(&self) -> NodeSet {
        self.nodes
    }

    /// Returns whether one clock counts for all nodes.
    pub(crate) fn is_one(&self) -> bool {
        self.is_one
    }

    /// Returns the node whose clock counts for a node.
    fn node_of(&self, node: NodeId) -> NodeId {
        if self.is_one { self.nodes.leader() } else { node }
    }

    fn known(&mut self, node: NodeId) -> &mut u64 {
        let at = usize::from(node.0);
        if self.known.len() <= at {
            self.known.resize(at + 1, 0);
        }
        &mut self.known[at]
    }

    /// Returns the nodes whose clocks count for these nodes.
    pub(crate) fn nodes_of(&self, nodes: NodeSet) -> NodeSet {
        if self.is_one { self.nodes } else { nodes }
    }

    /// Adds the draws of a commit to its last round: at the nodes that it writes, and at the nodes
    /// that have locks of what it only reads.
    pub(crate) fn draw_all(&mut self, round: &mut Round<'_>, writes: NodeSet, guards: NodeSet) {
        self.begin_draws();
        for node in self.nodes_of(writes.union(guards)).iter() {
            // One clock that counts for all nodes has reached what it guards.
            self.draw(round, node, !self.is_one && guards.has(node));
        }
    }

    fn draw(&mut self, round: &mut Round<'_>, node: NodeId, guards: bool) {
        let handle = round.fetch_add(clock_at(node), 1);
        self.draws.push(Draw { node, handle, at: 0, guards });
    }

    /// Begins the draws of a commit.
    pub(crate) fn begin_draws(&mut self) {
        self.draws.clear();
        self.draws_at = NodeSet::default();
    }

    /// Notes that a commit which fixes its time early has asked for a lock at a node.
    pub(crate) fn wants_draw(&mut self, node: NodeId) {
        self.draws_at = self.draws_at.with(self.node_of(node));
    }

    /// Adds to a round the draws behind the locks for which it asks, and for which earlier rounds
    /// have asked (invariant 9). If they do not fit, they are left to a later round.
    pub(crate) fn draw_behind_locks(&mut self, round: &mut Round<'_>) {
        let draws = self.owed_draws();
        if round.has_room(draws, 8 * draws) {
            for node in std::mem::take(&mut self.draws_at).iter() {
                self.draw(round, node, false);
            }
        }
    }

    /// Returns the number of draws that have not been added to a round.
    pub(crate) fn owed_draws(&self) -> usize {
        usize::from(self.draws_at.count())
    }

    /// Notes the draws that the round `done` has brought.
    pub(crate) fn note_draws(&mut self, done: &Completed<'_>) {
        for at in 0..self.draws.len() {
            if self.draws[at].at == 0 {
                let value = done.added(self.draws[at].handle) + 1;
                self.draws[at].at = value;
                let known = self.known(self.draws[at].node);
                *known = (*known).max(value);
            }
        }
    }

    /// Has the draws whose answers have not come made again. The locks that they follow may be
    /// held.
    pub(crate) fn repeat_unheard_draws(&mut self) {
        for draw in self.draws.extract_if(.., |draw| draw.at == 0) {
            self.draws_at = self.draws_at.with(draw.node);
        }
    }

    /// Returns whether no draw is left to be made, or to be noted.
    pub(crate) fn has_all_draws(&self) -> bool {
        self.owed_draws() == 0 && self.draws.iter().all(|draw| draw.at > 0)
    }

    /// Returns whether the draws of a commit, which are behind its data, have reached the times of
    /// all that it has read or replaces. Where one clock counts for all nodes, they have.
    pub(crate) fn have_drawn(&self, bound: u64) -> bool {
        !self.is_one || self.draws.iter().any(|draw| draw.at >= bound)
    }

    /// Returns the time of a commit, whose draws are noted. It is not below `bound` (invariant 3).
    pub(crate) fn time(&mut self, bound: u64) -> u64 {
        let bound = if mutant!(TimeOfDraws) { 0 } else { bound };
        let time = self.draws.iter().map(|draw| draw.at).max().unwrap_or(0).max(bound);
        self.from = self.from.max(time);
        self.own = self.own.max(time);
        time
    }

    /// Adds to a round the CASs that raise the clocks of nodes that guard what a commit has only
    /// read to the commit's time. Returns false if all of them have reached it.
    pub(crate) fn raise_guards(&mut self, round: &mut Round<'_>, time: u64) -> bool {
        self.raises.clear();
        for (number, draw) in self.draws.iter().enumerate().filter(|(_, draw)| draw.guards && draw.at < time) {
            self.raises.push((number, round.compare_swap(clock_at(draw.node), draw.at, time)));
        }
        !self.raises.is_empty()
    }

    /// Notes how far the clocks are that were to be raised.
    pub(crate) fn raised(&mut self, done: &Completed<'_>, time: u64) {
        for (number, swap) in &self.raises {
            let at = if done.swapped(*swap) { time } else { done.previous(*swap) };
            self.draws[*number].at = at;
        }
    }

    /// Begins to read a snapshot, without claims.
    pub(crate) fn begin_snapshot(&mut self) {
        self.claims.clear();
    }

    /// Returns whether the next snapshot takes what is known of clocks as its claims. If records
    /// change all the time, that is too early most of the time, and then it is rarely tried.
    pub(crate) fn trusts_known(&mut self) -> bool {
        let trusts = self.behind == 0 && self.asks == 0;
        self.asks = self.asks.saturating_sub(u32::from(self.behind == 0));
        trusts
    }

    /// Claims a node's clock, unless there is a claim of it. The claim is not below `from`. If
    /// `trusts_known`, and what the clock is known to have had is not below that, it is the claim,
    /// without a verb.
    pub(crate) fn claim(&mut self, round: &mut Round<'_>, node: NodeId, from: u64, trusts_known: bool) {
        let node = self.node_of(node);
        if self.claims.iter().any(|claim| claim.node == node) {
            return;
        }
        let known = *self.known(node);
        if trusts_known && known >= from {
            self.claims.push(Claim { node, asked: None, at: known });
            return;
        }
        let raises_to = from.max(known);
        let asked = if self.is_one && known >= from {
            Asked::Look(round.read(clock_at(node), WORD_BYTES))
        } else {
            Asked::Raise(round.compare_swap(clock_at(node), known, raises_to), raises_to)
        };
        self.claims.push(Claim { node, asked: Some(asked), at: 0 });
    }

    /// Claims a node's clock for a snapshot whose time is not known yet. Where one clock counts for
    /// all nodes, it has reached the times of all records, so a look at it is enough. If records
    /// change all the time, it is raised ahead of them.
    pub(crate) fn claim_first(&mut self, round: &mut Round<'_>, node: NodeId, trusts_known: bool) {
        let has_reached_all = self.is_one && self.behind == 0 && !trusts_known;
        let from = if has_reached_all { 0 } else { self.from };
        self.claim(round, node, from, trusts_known);
    }

    /// Notes the answers of the claims of a round.
    pub(crate) fn claimed(&mut self, done: &Completed<'_>) {
        for at in 0..self.claims.len() {
            let value = match self.claims[at].asked.take() {
                None => continue,
                Some(Asked::Raise(swap, raises_to)) if done.swapped(swap) => raises_to,
                Some(Asked::Raise(swap, _)) => done.previous(swap),
                Some(Asked::Look(read)) => done.words(read)[0],
            };
            self.claims[at].at = value;
            *self.known(self.claims[at].node) = value;
        }
    }

    /// Returns the largest value that any clock is known to have had.
    fn latest_known(&mut self) -> u64 {
        self.nodes.iter().map(|node| *self.known(node)).max().unwrap_or(0)
    }

    /// Returns the time that is above what all clocks are known to have had, and not below anything
    /// that the session has seen, nor any commit of an earlier epoch.
    pub(crate) fn time_above(&mut self, epoch: u64, why: Raise) -> u64 {
        self.latest_known().saturating_add(why.ahead()).max(self.least(epoch))
    }

    /// Returns the time that all clocks are known to have reached, if it is not below anything that
    /// the session has seen, nor any commit of an earlier epoch.
    pub(crate) fn time_reached(&mut self, epoch: u64) -> Option<u64> {
        let reached = self.nodes.iter().map(|node| *self.known(node)).min().unwrap_or(0);
        Some(reached).filter(|reached| *reached >= self.least(epoch))
    }

    fn least(&self, epoch: u64) -> u64 {
        self.own.max(first_time(epoch))
    }

    /// Returns whether a clock is known to have run beyond a time.
    pub(crate) fn have_passed(&mut self, time: u64) -> bool {
        self.latest_known() > time
    }

    /// Notes that this session has committed something whose time it does not know.
    pub(crate) fn misses_own(&mut self) {
        self.misses_own = true;
    }

    /// Notes that all clocks have reached a time.
    pub(crate) fn have_reached(&mut self, time: u64) {
        for node in self.nodes.iter() {
            let known = self.known(node);
            *known = (*known).max(time);
        }
    }

    /// Notes that the session has read, in a transaction without a snapshot, what a commit of this
    /// time has installed.
    pub(crate) fn has_read(&mut self, time: u64) {
        self.own = self.own.max(time);
    }

    /// Notes that a snapshot was opened. If one clock counts for all nodes, it has all commits of
    /// this session.
    pub(crate) fn has_opened(&mut self) {
        self.misses_own &= !self.is_one;
    }

    /// Returns whether the session has committed nothing later than this time, and has read nothing
    /// later.
    pub(crate) fn has_seen_nothing_later(&self, time: u64) -> bool {
        time >= self.own && !self.misses_own
    }

    /// Returns the time from which on claims are to be, once a snapshot was too early.
    pub(crate) fn wanted(&self) -> u64 {
        if self.behind > 0 || self.reaches_from { self.from } else { 0 }
    }

    /// Returns whether a claim is below a time.
    pub(crate) fn has_below(&self, time: u64) -> bool {
        self.claims.iter().any(|claim| claim.at < time) && !mutant!(KeepLowClaims)
    }

    /// Drops the claims that are below a time.
    pub(crate) fn drop_below(&mut self, time: u64) {
        self.claims.retain(|claim| claim.at >= time);
    }

    /// Returns the number of nodes that are claimed.
    pub(crate) fn claims(&self) -> usize {
        self.claims.len()
    }

    /// Forgets the claims whose answers have not come.
    pub(crate) fn forget_unheard(&mut self) {
        self.claims.retain(|claim| claim.asked.is_none());
    }

    /// Notes that a snapshot has all records that it has read.
    pub(crate) fn kept_up(&mut self, trusted_known: bool) {
        self.behind = 0;
        self.reaches_from = false;
        if trusted_known {
            self.asked = self.asked.saturating_sub(1);
        }
    }

    /// Makes the next claims be above this time, of a record that the snapshot was too early for.
    /// Each time in a row they are further ahead, because the record may change all the time. If
    /// the claims were what was known, the next snapshots ask instead.
    pub(crate) fn fell_behind(&mut self, latest: u64, trusted_known: bool) {
        if trusted_known {
            self.asked = (2 * self.asked).clamp(1, ASKS_MAX);
            self.asks = self.asked;
            self.from = self.from.max(latest);
            self.reaches_from = true;
            return;
        }
        self.behind = (self.behind + 1).min(20);
        self.from = self.from.max(latest + (1 << self.behind));
    }

    /// The smallest claim, if there is any.
    pub(crate) fn snapshot(&self) -> Option<u64> {
        let claims = self.claims.iter().map(|claim| claim.at);
        if mutant!(LargestClaim) { claims.max() } else { claims.min() }
    }
}

impl Draw {
    /// Returns the value of the clock behind the draw.
    pub(crate) fn value(&self) -> u64 {
        self.at
    }

    /// How much the node's clock is behind a commit's time at most.
    pub(crate) fn lacks(&self, time: u64) -> u64 {
        time.saturating_sub(self.at)
    }

    /// Returns the draw with its value, from the answers of a round that has completed in the
    /// background.
    pub(crate) fn answered(self, answers: &remora_fabric::Answers<'_>) -> Draw {
        Draw { at: answers.added(self.handle).map_or(0, |before| before + 1), ..self }
    }
}

/// The time of a commit.
#[derive(Clone, Debug)]
pub(crate) enum CommitTime {
    Known(u64),
    /// It will follow from these draws, whose answers the program does not await any more.
    Drawn(Rc<Drawn>),
}

impl CommitTime {
    /// Returns the time, if it is known by now.
    pub(crate) fn get(&self) -> Option<u64> {
        match self {
            CommitTime::Known(time) => Some(*time),
            CommitTime::Drawn(drawn) => drawn.known.get().map(|(time, _)| *time),
        }
    }
}

/// The draws of a commit that the program does not await any more.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) draws: Vec<Draw>,
    pub(crate) bound: u64,
    /// The draws with their values, once they are known.
    pub(crate) known: std::cell::OnceCell<(u64, Vec<Draw>)>,
}

impl Drawn {
    /// Returns the time, and the draws with their values. `answers` are those of the round before,
    /// which is the commit's last one when this is called first.
    pub(crate) fn time(&self, answers: &remora_fabric::Answers<'_>) -> &(u64, Vec<Draw>) {
        self.known.get_or_init(|| {
            let draws: Vec<Draw> = self.draws.iter().map(|draw| draw.answered(answers)).collect();
            (draws.iter().map(|draw| draw.at).max().unwrap_or(0).max(self.bound), draws)
        })
    }
}
