//! Optimistic concurrency control with a time for each commit and with older versions of the
//! records, so that a transaction that only reads neither validates nor aborts: DST (Wei's thesis,
//! chapter 5), and what it is compared with there.
//!
//! ```text
//! writes           coordinator                       to                        round trips
//! execute          call READ                      -> primaries of all records  1
//! lock             call LOCK -> ts                -> write set's primaries     1
//! time             see the presets                                             0 or 1
//! validate         call STAMP, time               -> primaries of what is      1, if there are any
//!                                                    only read
//! log              call LOG; images with the time -> all participants' rings   1
//!                  ---- committed: every ring has acknowledged the entry ----
//! commit           call COMMIT                    -> write set's primaries     in the background
//!
//! reads a snapshot
//! time             see the presets                                             0 or 1
//! execute          call CLAIM, time, records      -> primaries of all records  1
//! ```
//!
//! Locks, log and installation are those of preset `fasst` of [`occ`](super::occ), in all their
//! parts by calls. `stamps.rs` has what the primary's CPU remembers.
//!
//! # The presets
//!
//! One module a preset has how times are made, or what else is different.
//!
//! | preset    | module      | time of a commit               | of a snapshot           | a snapshot |
//! | --------- | ----------- | ------------------------------ | ----------------------- | ---------- |
//! | `dst`     | `derived`   | above the client's time, and the ts and versions that it has met | the client's time | claims, and waits for one holder of a lock |
//! | `dst-2pl` | `two_phase` | as `dst`                       | as `dst`                | as `dst`   |
//! | `gts`     | `oracle`    | the oracle's next one: 1 round trip more | up to which all commits are installed: 1 round trip | neither |
//! | `vts`     | `vector`    | the client, and its next number | the vector of stable commits: 1 round trip | neither |
//! | `rc`      | `unordered` | as `dst`                       | none: the newest version | neither    |
//!
//! `dst-2pl` is two-phase locking:
//!
//! ```text
//! execute          call LOCK_KEY -> ts            -> primaries of all records  1
//! validate         call STAMP_ABSENT, time        -> primaries of absent keys  1, if there are any
//! log              as above                       -> all participants' rings   1
//! commit           call COMMIT                    -> write set's primaries     in the background
//!                  call RELEASE, time             -> primaries of what is      in the background
//!                                                    only read
//! ```
//!
//! The *client's time* is the largest one of: its clock, the commits of its sessions, the times of
//! the versions that they have read, and, when the client begins, the clock words of all memory
//! nodes.
//!
//! `rc` is read committed: it does not validate what is only read, and its snapshots are none. Its
//! transactions are **not serializable**. It shows what times cost at most.
//!
//! # Why this is a snapshot
//!
//! `dst`: transactions are serializable in the order of their times. Say B overwrites what A has
//! read or written. If A wrote it, B locks the record after A has installed it there, and the
//! lock's reply is at least A's time. If A only read it, A has raised the record's ts in the step
//! in which the CPU saw the record unlocked and unchanged. B locks it later, and the reply is at
//! least A's time. If B reads what A wrote, the version's time is A's. In each case the time of B
//! is above A's.
//!
//! If A is a snapshot, it raises ts before it looks at the lock. A transaction that locks the
//! record behind that has a later time, and the snapshot takes an older version. A holder whose
//! lock is older may get a time that is not above the snapshot's, so the reader waits for it.
//!
//! `dst-2pl`: this also holds, because the locks of what was only read are released later than the
//! transaction has its time, and each release raises ts to that time.
//!
//! `gts`: a transaction asks the oracle under all its locks, and before it validates. So the order
//! of the oracle's answers is that of dependent commits. All commits up to the snapshot's time are
//! installed, and no later one gets such a time.
//!
//! `vts`: times have no order, and a snapshot has the commits of a vector. With each commit it has
//! all that come before it: the commits whose versions it has read or overwritten, and the commits
//! that have read what it has overwritten. The commit names them to the oracle, which publishes it
//! after them. A transaction gets its name when it has all its locks, and before it validates. So
//! all that it comes behind was named before it, and does not wait for it.
//!
//! # Where this differs from the text
//!
//! - `lock_ts`: a reader waits unless the lock was taken after the record's ts had reached the
//!   reader's time. The text's reader does not wait if the record's ts is above its time. But that
//!   may be the claim of a third transaction, and the holder's time may be smaller.
//! - No store lowers a ts. In the text a commit stores its time, which may be smaller than a claim.
//! - OCC: validation looks at the record and raises its ts in one step. In the text these are two.
//! - The memory node's CPU does not wait for a lock. It replies so, and the client asks again.
//! - `dst-2pl`: a transaction that meets a lock aborts, and does not wait.
//! - Times of an epoch are above those of former ones, for what lost claims had protected.
//! - `vts`: the text's commits do not name the readers of what they overwrite. Then a snapshot may
//!   have a writer, and not a reader that comes before it and writes elsewhere.
//!
//! # Invariants
//!
//! 1. **ts is read under the lock**, and never before.
//! 2. **The time of a commit is above the ts of all that it writes, and above the times of all
//!    versions that it has read.** An absent key has the time of its last delete.
//! 3. **A record that is only read is stamped in the step that validates it**, after all locks of
//!    the write set are held. If its newest version, or its delete, is not before the commit's
//!    time, validation fails.
//! 4. **A claim comes before the look at the lock**, in one step of the primary's CPU.
//! 5. **No ts falls**, but when an epoch ends.
//! 6. **The first time of a client is not below the clock word of any memory node of its epoch.**
//!    So no transaction of an epoch has a time below one that a surviving node has heard of in a
//!    former epoch. What other nodes had heard of has left no older version.
//! 7. `gts`: **a commit is outstanding at the oracle until its installation is acknowledged**, or
//!    until it is known to abort. If its outcome is unknown, until its client is recovered.
//!    Coroutines of a client that share requests keep the rules of `oracle/requests.rs`.
//! 8. `vts`: **a commit is stable after all that come before it**: the commits whose versions it
//!    has met, the readers of what it overwrites, and all with smaller numbers of its client. A
//!    transaction that reads several records without a snapshot has a name, too. If a client dies,
//!    its commits are stable after all commits of which memory nodes have heard when it is
//!    recovered.
//!
//! 9. `dst-2pl`: **a record that was found is read under a lock, and unlocked at the time of the
//!    transaction**, which ts has in the step that unlocks. An absent key, and a slot that is
//!    prepared for another transaction's insert, have no such lock: rule 3 is for them.
//! 10. `dst-2pl`: **a lock of a dead client is freed at a time that is not below the times of its
//!     commits, and of all versions that it has read.** COMMIT tells a primary of the commit's
//!     time, whether the client or its recoverer sends it. Then, and before any lock of the client
//!     may be freed, recovery tells all nodes of the largest time of which one of them has heard.
//!
//! The client asserts rule 2 for the times that it has met, the order of rule 3, and the locks of
//! rule 9. Litmus tests check the others: rule 1 `dst-whole-behind-claim`, rule 3 `dst-stamp`, rule
//! 4 `dst-whole` and `dst-whole-beside-claim`, rule 5 `dst-whole-twice`, rule 7 `gts-whole` and
//! `gts-shared`, rule 8 `vts-behind` and `vts-reader`, rule 9 `dst-2pl-release`. Rules 1, 3 and 4
//! have litmus tests `dst-2pl-*`, too. Campaigns in which clients and nodes die check rule 6, and
//! the end of rule 8.
//! `what_a_dead_client_has_read_is_written_at_later_times` (`crates/remora/tests/recovery.rs`)
//! checks rule 10.

mod derived;
mod lock;
mod oracle;
mod snapshot;
mod time;
mod two_phase;
mod unordered;
mod validate;
mod vector;

use remora_fabric::{Execute, Round, probes};
use remora_node::Discipline;

use lock::lock;
use validate::validate;

use crate::error::Stop;
use crate::protocol::redo::{install_rounds, keep_read_locks, prepare_log, write_log};
use crate::protocol::spec::{FirstRead, Primitive, ProtocolSpec};
use crate::protocol::{Protocol, Steps, occ};
use crate::rpc::{CLAIMS, HAS_VECTOR, WAITS};
use crate::tx::Tx;
use crate::vector::Vector;

impl Protocol {
    /// Decentralized scalar timestamps (`dst`): transactions derive their times from the records.
    pub const DST: Protocol = Protocol::Dst(Dst::Derived);
    /// Decentralized scalar timestamps on two-phase locking (`dst-2pl`): as `dst`, and a
    /// transaction locks each record when it first reads it.
    pub const DST_2PL: Protocol = Protocol::Dst(Dst::TwoPhase);
    /// Global timestamps (`gts`): an oracle gives all times.
    pub const GTS: Protocol = Protocol::Dst(Dst::Oracle);
    /// Vector timestamps (`vts`): each client numbers its commits, and an oracle knows which are
    /// stable.
    pub const VTS: Protocol = Protocol::Dst(Dst::Vector);
    /// Read committed (`rc`): **not serializable**. It is the bound that `dst` is measured against.
    pub const RC: Protocol = Protocol::Dst(Dst::Unordered);
}

/// How the times of commits and snapshots are made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dst {
    /// From the records, by the transactions themselves.
    Derived,
    /// As `Derived`. Each record is locked when it is first read.
    TwoPhase,
    /// By an oracle, the CPU of one memory node.
    Oracle,
    /// By each client for itself. An oracle knows of which of them a snapshot is made.
    Vector,
    /// As `Derived`, but nothing that is only read is ordered by times.
    Unordered,
}

impl Dst {
    /// Returns the time of the snapshot that a transaction is about to read. A vector is in the
    /// session's state.
    async fn snapshot_time(self, tx: &mut Tx<'_>) -> Result<u64, Stop> {
        match self {
            Dst::Derived | Dst::TwoPhase => derived::snapshot_time(tx).await,
            Dst::Oracle => oracle::snapshot_time(tx).await,
            Dst::Vector => vector::fetch_vector(tx).await.map(|()| 0),
            Dst::Unordered => unordered::snapshot_time(),
        }
    }

    /// Notes the time of a commit that a transaction has met, so that later snapshots are not
    /// before it.
    fn has_met(self, tx: &Tx<'_>, time: u64) {
        if self != Dst::Vector {
            tx.state.time.raise(time);
        } else if Vector::from_words(&tx.state.vector).is_none_or(|vector| !vector.has(time)) {
            tx.state.time.miss(time);
        }
    }

    /// Returns what a CLAIM is to do.
    fn claims(self) -> usize {
        match self {
            Dst::Derived | Dst::TwoPhase => CLAIMS | WAITS,
            Dst::Vector => HAS_VECTOR,
            Dst::Oracle | Dst::Unordered => 0,
        }
    }

    /// Returns the time of the commit of a transaction that has all its locks. It is above the
    /// times of all that the transaction has met.
    async fn commit_time(self, tx: &mut Tx<'_>) -> Result<u64, Stop> {
        if self == Dst::Vector {
            return vector::commit_name(tx).await;
        }
        let bound = tx.state.sets.time_bound() - 1;
        let time = match self {
            Dst::Oracle => oracle::commit_time(tx, bound).await?,
            _ => derived::commit_time(tx, bound).await?,
        };
        debug_assert!(
            tx.state.sets.items.iter().all(|item| item.time < time),
            "dst 2: the time of a commit is above all times that it has met"
        );
        Ok(time)
    }

    /// Returns the time with which what is only read is validated, of a transaction with this time.
    /// With 0, validation stamps nothing. Returns `None` if nothing is validated.
    fn stamp(self, time: u64) -> Option<u64> {
        match self {
            Dst::Derived | Dst::TwoPhase | Dst::Vector => Some(time),
            Dst::Oracle => Some(0),
            Dst::Unordered => None,
        }
    }

    /// Asserts, under `dst-2pl`, that what the transaction has found is still under its locks.
    fn asserts_locks(self, tx: &Tx<'_>) {
        debug_assert!(
            self != Dst::TwoPhase || two_phase::has_all_locks(&tx.state.sets) || mutant!(),
            "dst 9: a record that was found is locked until the commit"
        );
    }

    /// Keeps the locks of what is only read, which there are under `dst-2pl` alone.
    fn keep_locks(self, tx: &mut Tx<'_>) {
        if self == Dst::TwoPhase {
            keep_read_locks(tx);
        }
    }

    /// Notes the time of a commit of this client.
    fn has_committed(self, tx: &Tx<'_>) {
        if self != Dst::Vector {
            tx.state.time.raise(tx.time);
        }
    }

    /// Posts the rounds that install a commit.
    fn install(self, tx: &mut Tx<'_>) {
        let lane = tx.lane;
        if let Some(commit) = self.shares_end(tx) {
            let mut rounds = Vec::new();
            install_rounds(tx, |round| rounds.push(round));
            tx.state.owed = None;
            tx.state.time.requests().install(lane, rounds, commit);
        } else if self.tells_oracle() {
            lane.post_all(self.installation(tx));
        } else {
            install_rounds(tx, |round| lane.post(round));
        }
    }

    /// Returns the id of a commit if the oracle is to hear in a shared request that the commit is
    /// over (`oracle/requests.rs`, 5).
    fn shares_end(self, tx: &Tx<'_>) -> Option<u64> {
        let (_, commit) = tx.state.owed.filter(|_| self == Dst::Oracle)?;
        tx.state.time.requests().is_asked_for_times().then_some(commit)
    }

    /// Whether the oracle is told that a commit is over.
    fn tells_oracle(self) -> bool {
        matches!(self, Dst::Oracle | Dst::Vector)
    }

    /// Returns the rounds that install a commit, to be posted one after the other has completed.
    fn installation<'s>(self, tx: &mut Tx<'s>) -> Vec<Round<'s>> {
        let mut rounds = Vec::new();
        install_rounds(tx, |round| rounds.push(round));
        if self.tells_oracle() {
            rounds.extend(tx.over_at_oracle());
        }
        rounds
    }
}

impl Steps for Dst {
    fn spec(self) -> ProtocolSpec {
        let (name, discipline) = match self {
            Dst::Derived => ("dst", Discipline::OCC_STAMPED),
            Dst::TwoPhase => ("dst-2pl", Discipline::TWO_PHASE_STAMPED),
            Dst::Oracle => ("gts", Discipline::OCC_ORDERED),
            Dst::Vector => ("vts", Discipline::OCC_VECTOR),
            Dst::Unordered => ("rc", Discipline::OCC_STAMPED),
        };
        let spec = ProtocolSpec::new(name, discipline);
        let is_serializable = self != Dst::Unordered;
        let locks_reads = self == Dst::TwoPhase;
        ProtocolSpec { execute: FirstRead::Call, is_serializable, stale_snapshots: true, locks_reads, ..spec }
    }

    async fn execute(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        tx.skip_what_is_here();
        if tx.attempt.snapshot.is_some() {
            return snapshot::execute(tx, self).await;
        }
        let first = tx.state.sets.fetched;
        match self {
            Dst::TwoPhase => two_phase::execute(tx).await?,
            _ => occ::execute(tx).await?,
        }
        if self != Dst::Vector {
            let fetched = &tx.state.sets.items[first.min(tx.state.sets.items.len())..];
            tx.state.time.raise(fetched.iter().map(|item| item.time).max().unwrap_or(0));
        }
        Ok(())
    }

    async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        if tx.attempt.snapshot.is_some() {
            return Ok(());
        }
        if tx.state.sets.written == 0 {
            return self.validate(tx).await;
        }
        let entry = prepare_log(tx).await?;
        if mutant!(ValidateWithLocks) {
            validate(tx, true, 0).await?;
        }
        tx.state.behind.clear();
        if self != Dst::TwoPhase {
            lock(tx, self).await?;
        }
        self.asserts_locks(tx);
        let time = self.commit_time(tx).await?;
        tx.time = time;
        tx.state.sets.settle(time);
        if let Some(stamp) = self.stamp(time).filter(|_| !mutant!(ValidateWithLocks)) {
            validate(tx, true, stamp).await?;
        }
        tx.hear_of_growth().await?;
        tx.validated();
        tx.lane.probe(probes::VALIDATED);
        tx.committing();
        let logged = write_log(tx, entry, Primitive::Call, false).await;
        if let Err(Stop::Unknown(_)) = logged {
            // The oracle waits for the commit until this client is recovered (invariant 7).
            tx.state.owed = None;
        }
        if logged.is_err() {
            self.keep_locks(tx);
        }
        logged?;
        tx.logged();
        self.has_committed(tx);
        self.install(tx);
        self.keep_locks(tx);
        tx.installed();
        Ok(())
    }

    async fn validate(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        // A single record was current when it was read.
        if tx.attempt.snapshot.is_some() || tx.state.sets.items.len() <= 1 {
            return Ok(());
        }
        tx.state.behind.clear();
        self.asserts_locks(tx);
        let time = match self {
            Dst::Derived | Dst::TwoPhase | Dst::Vector => self.commit_time(tx).await?,
            Dst::Oracle | Dst::Unordered => 0,
        };
        if self == Dst::TwoPhase {
            tx.time = time; // the releases of the locks note it
        }
        if let Some(stamp) = self.stamp(time) {
            validate(tx, false, stamp).await?;
        }
        tx.validated();
        Ok(())
    }

    fn leave<'s>(self, tx: &mut Tx<'s>, log: Execute<'s>) {
        let mut rounds = std::mem::take(&mut tx.unsent);
        // The program does not hear of the commit, but the client's later snapshots are to have it.
        self.has_committed(tx);
        rounds.extend(self.installation(tx));
        log.then_post_all(rounds);
        self.keep_locks(tx);
    }
}
