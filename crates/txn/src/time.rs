//! The client's time: the largest time of a transaction that a client knows of, where commits have
//! times that transactions derive, or that an oracle gives (`protocol/dst`). Under vector
//! timestamps it is the number of the client's next commit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use remora_fabric::{FabricError, Lane, NodeId, NodeSet, WORD_BYTES};
use remora_node::Discipline;
use remora_node::node::clock_at;

use crate::oracle::requests::OracleRequests;
use crate::oracle::{Question, oracle_of};
use crate::rpc::Code;
use crate::vector::Commits;

/// The largest time of a transaction that a client knows of, for all of its sessions. It lives as
/// long as the client's incarnation.
#[derive(Clone, Debug, Default)]
pub struct ClientTime(Rc<Known>);

#[derive(Debug, Default)]
struct Known {
    time: Cell<u64>,
    /// Under vector timestamps: a commit that a snapshot of the client has met and had not, or 0.
    missed: Cell<u64>,
    /// Whether a table has gone since the client has last asked the memory nodes. Its rows may have
    /// moved to another table. In that table, they are absent at times before they came.
    is_behind: Cell<bool>,
    /// The time that snapshots must have reached, because rows may have moved until then.
    least: Cell<u64>,
    /// Under vector timestamps: commits that the next snapshot must have, because rows may have
    /// moved by them.
    needed: RefCell<Commits>,
    /// Under `gts`: what the client's coroutines ask the oracle for, and tell it.
    requests: OracleRequests,
}

impl ClientTime {
    /// Returns the time. It is 0 until the client has asked the memory nodes.
    pub(crate) fn get(&self) -> u64 {
        self.0.time.get()
    }

    /// Notes a time that the client has met.
    pub(crate) fn raise(&self, time: u64) {
        // Without what the memory nodes have heard of, no time is large enough.
        if self.get() > 0 {
            self.0.time.set(self.get().max(time));
        }
    }

    /// Returns what the client's coroutines ask the oracle of `gts` for, and tell it.
    pub(crate) fn requests(&self) -> &OracleRequests {
        &self.0.requests
    }

    /// Returns the number of the client's next commit, and counts it.
    pub(crate) fn count(&self) -> u64 {
        self.0.time.replace(self.get() + 1)
    }

    /// Returns a commit that a snapshot has met and had not, or 0.
    pub(crate) fn missed(&self) -> u64 {
        self.0.missed.get()
    }

    /// Notes a commit that a snapshot has met and has not.
    pub(crate) fn miss(&self, commit: u64) {
        self.0.missed.set(commit);
    }

    /// Notes that a table has gone.
    pub(crate) fn fall_behind(&self) {
        self.0.is_behind.set(!mutant!(SnapshotBeforeMove));
    }

    /// Returns whether the client must ask the memory nodes before its next snapshot.
    pub(crate) fn is_unknown(&self) -> bool {
        self.get() == 0 || self.0.is_behind.get()
    }

    /// Returns whether a table has gone since this was last asked.
    pub(crate) fn was_behind(&self) -> bool {
        self.0.is_behind.take()
    }

    /// Returns the time that snapshots must have reached.
    pub(crate) fn least(&self) -> u64 {
        self.0.least.get()
    }

    /// Notes which commits the next snapshot must have.
    pub(crate) fn need(&self, commits: Commits) {
        self.0.needed.replace(commits);
    }

    /// Returns whether this is true for all commits that the next snapshot must have.
    pub(crate) fn needs_only(&self, has: impl Fn(u64) -> bool) -> bool {
        self.0.needed.borrow().names().iter().all(|name| has(*name))
    }

    /// Makes a client ready to commit on tables of a discipline. The client has registered by then.
    pub async fn begin(
        &self,
        lane: &Lane,
        nodes: NodeSet,
        (discipline, epoch, client): (Discipline, u64, u32),
    ) -> Result<(), FabricError> {
        if discipline.has_vectors() {
            return self.join(lane, oracle_of(nodes), epoch, client).await.map(drop);
        }
        if discipline.is_stamped() { self.learn(lane, nodes).await } else { Ok(()) }
    }

    /// Tells the oracle of vector timestamps that a client will commit. Returns whether the oracle
    /// knows it now.
    pub(crate) async fn join(&self, lane: &Lane, at: NodeId, epoch: u64, client: u32) -> Result<bool, FabricError> {
        let mut round = lane.round();
        let call = round.call(at, &[Code::Oracle.word(Question::Join as usize), epoch, client.into()], None, 1);
        let is_known = lane.execute(round).await?.reply(call) == [1];
        if is_known {
            self.0.time.set(self.get().max(1));
        }
        Ok(is_known)
    }

    /// Asks all memory nodes for the largest time that they have heard of. The client has
    /// registered by then (`protocol/dst`, invariant 6).
    pub(crate) async fn learn(&self, lane: &Lane, nodes: NodeSet) -> Result<(), FabricError> {
        // Another table may go meanwhile.
        let was_behind = self.was_behind();
        let heard = times_heard(lane, nodes).await.inspect_err(|_| self.0.is_behind.set(was_behind))?;
        let heard = heard.into_iter().map(|(_, time)| time).max().unwrap_or(0);
        self.0.time.set(self.get().max(heard).max(1));
        if was_behind {
            self.0.least.set(self.get());
        }
        Ok(())
    }
}

/// Asks memory nodes for the largest time that each of them has heard of.
pub(crate) async fn times_heard(lane: &Lane, nodes: NodeSet) -> Result<Vec<(NodeId, u64)>, FabricError> {
    let mut round = lane.round();
    let reads: Vec<_> = nodes.iter().map(|node| (node, round.read(clock_at(node), WORD_BYTES))).collect();
    let done = lane.execute(round).await?;
    Ok(reads.into_iter().map(|(node, read)| (node, done.words(read)[0])).collect())
}
