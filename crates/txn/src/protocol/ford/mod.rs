//! FORD: one-sided transactions that update every replica in place (Zhang et al., TOS 2023, section
//! 4), corrected.
//!
//! ```text
//!            coordinator -> primaries                 -> all replicas of     round trips
//!                                                     the write set,
//!                                                     one chain a node
//! execute    CAS lock; READ of records to write                               1
//!            READ of records only read,                                       (in the same one)
//!            at the primary or a backup
//! validate   READ lock, version of records only read                          1, if there are any
//! commit                                              WRITE undo entry;       1
//!                                                     WRITE record,
//!                                                     marked invisible;
//!                                                     flush (backups)
//!            ---- committed: every replica has acknowledged its chain ----
//! release                                             WRITE version,          in the background
//!                                                     visible;
//!                                                     WRITE undo entry free
//!            CAS unlock                                                       and only then this
//! ```
//!
//! With locations cached and records named for what is done to them ([`Intent::Update`]), a
//! transaction takes:
//!
//! - 2 round trips if it writes what it reads,
//! - 3 if it also only reads records,
//! - 1 if it reads one record,
//! - 2 if it reads several.
//!
//! A record whose location is unknown costs the READ of its bucket before. A record that was named
//! to be read, and is then written, is locked by a round of its own. No CPU of a memory node takes
//! part in anything.
//!
//! # Where this is not the text's protocol
//!
//! - The text puts the invisible bit into the lock word and sets it by a CAS before the data. Here
//!   the bit is in the version word and **rides in the WRITE of the data**: mark and data land
//!   together. So a commit needs no atomics, nothing depends on a NIC's order of WRITE after CAS,
//!   and the lock word is only ever CASed.
//! - The undo entry goes out **in the commit's own chain**, before the data on each connection, and
//!   not in a round during execution. So two round trips are two also for short logic, and an abort
//!   has no log to neutralize.
//! - Validation looks **at the primary, and at the lock** as well as the version.
//! - Replicas are made visible, and logs freed, **and acknowledged, before any lock is freed**.
//! - A rollback, which only recovery does, installs a new odd version, and never the old one again.
//!
//! # The lean release
//!
//! ```text
//! release    WRITE version, visible;
//!            CAS unlock                 primaries
//!            CAS version, to visible    backups      -> in the background
//! ```
//!
//! The lean release takes one round instead of two ([`Ford::lean`]). The next writer of the record
//! may overtake it, and it must not show what that writer has half written. So it is a CAS from
//! this transaction's version, which the next writer's WRITE has replaced. WRITE and CAS of the
//! version word must therefore be atomic to each other. Undo entries are not freed: recovery tells
//! by the versions that a transaction has ended, and makes replicas visible by CAS as well.
//!
//! # Hand-over
//!
//! The unlocks of a release wait for the answer to its first round, and the lane's next transaction
//! may want the same record at once. It **takes the lock over**, by CAS(former -> me) in place of
//! CAS(free -> me), which saves it a round trip and an attempt. What it reads comes behind the
//! former transaction's WRITE of the version, on the same connection.
//!
//! But the former's release may still be on its way to other replicas. Until that release is
//! acknowledged, the heir neither writes anything nor frees the lock. Its commit waits, and its own
//! release is posted behind the former's unlocks (invariant 5 holds for both). If the former's
//! release fails, the heir fails too, and the lock stays for recovery, as the former's would. After
//! a crash, no log names the heir's lock. The former's transaction is complete on every replica,
//! and is rolled forward.
//!
//! # Localized validation
//!
//! All clients that write a table may publish in one version cache ([`Ford::validation`]). Then a
//! transaction looks up there what it only read. That is one round trip less if the cache is in
//! this process (preset `ford-local`), and a shorter one if it is near (`ford-global`).
//! [`vcache`](crate::vcache) has the argument. Between its last lock and that look, a transaction
//! publishes what it is about to write. What the cache does not vouch for is validated at the
//! primary as above.
//!
//! # Invariants
//!
//! 1. **A written record is locked by its writer**, at its primary, from before it was last read
//!    until every replica is visible again. Locks are taken by CAS(free -> me), or by CAS(former ->
//!    me) from the lane's last transaction, which has committed. They are released by CAS(me ->
//!    free), only if they may have been taken.
//! 2. **Validation after the last lock, before the commit round, at the primary, and it fails on
//!    the lock of another**, also in a transaction that only reads. Otherwise there is write skew
//!    between transactions that write. For one that only reads: the holder of the lock may have
//!    validated what it only read, before a third transaction overwrote that. Then the holder comes
//!    before the third. If the third has been answered since, a reader that began after the answer
//!    comes after both, and must not miss what the holder writes (litmus `ford-read-behind-lock`).
//!    The text validates versions only, and the model that this protocol was first checked with had
//!    no such three transactions. Locally: **published before that**, and validation fails if
//!    another transaction has published.
//! 3. **Undo entry before data, on every node**, on one connection; the entry is the whole write
//!    set. From the moment that the commit round is posted, this client never undoes; only recovery
//!    may.
//! 4. **Acknowledged means complete on every replica.** So no read of any replica that began later
//!    sees an older version.
//! 5. **Visible before log free** on each node, **all of that before unlock**. (Lean: a replica is
//!    made visible from this transaction's version only.)
//! 6. **A record is read only while visible and whole**; a lock alone does not make it unreadable.
//!    A record needs no validation only if it is the transaction's only one, was read at the
//!    primary, and was not locked there (as in 2). Backups have no locks: whatever is read there is
//!    validated.
//!
//! The client asserts rules 1 to 4 where it acts. The others depend on when verbs land at the
//! replicas, and litmus tests check them: rule 5 `ford-visible-after-free`, `ford-late-release` and
//! `ford-lean-late-release`, rule 6 `ford-visible-at-once` and
//! `ford-read-only-without-validation`.

mod chain;
mod commit;
mod execute;
mod release;
mod validate;
mod words;

use remora_fabric::{Execute, probes};
use remora_node::{Discipline, IndexKind};

use commit::{prepare_entry, touch_chains, write_entry, write_replicas};
use execute::{execute, lock_rest};
use release::{Release, release};
use validate::{consult, validate, validate_read_only};

use crate::error::{Limit, Stop};
use crate::limits::LOG_PAUSE_NS;
use crate::protocol::spec::{FirstRead, ProtocolSpec, Validation};
use crate::protocol::{Protocol, Steps};
use crate::sets::Item;
use crate::state::Needed;
use crate::tx::Tx;

impl Protocol {
    /// FORD with every mechanism, but not the lean release or localized validation.
    pub const FORD: Protocol = Protocol::Ford(Ford::WHOLE);
    /// FORD with its lean release.
    pub const FORD_LEAN: Protocol = Protocol::Ford(Ford::LEAN);
    /// FORD with localized validation, by a cache of each compute node. It is for tables that only
    /// this compute node writes.
    pub const FORD_LOCAL: Protocol = Protocol::Ford(Ford::LOCAL);
    /// FORD with localized validation, by one cache that all compute nodes ask.
    pub const FORD_GLOBAL: Protocol = Protocol::Ford(Ford::GLOBAL);
}

/// The mechanisms of FORD. All but the lean release and localized validation are on by default; an
/// ablation turns one off.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ford {
    /// Locks are taken by the round that reads the record. Without: by a round of their own before
    /// the commit.
    pub hitchhike: bool,
    /// Locations are cached.
    pub address_cache: bool,
    /// Undo entry, backups and primaries in one round. Without: in three, one after the other.
    pub coalesce: bool,
    /// The client does not wait for the release.
    pub background_release: bool,
    /// What is only read may be read from a backup. Without: from primaries.
    pub backup_reads: bool,
    /// One flush for each backup, behind its last WRITE. Without: one behind every WRITE, at every
    /// replica.
    pub selective_flush: bool,
    /// The release is one round in the background instead of two, and undo entries are not freed.
    /// For fabrics on which WRITE and CAS of one word are atomic to each other.
    pub lean: bool,
    /// How what is only read is validated.
    pub validation: Validation,
    /// The commit and release of this page. Without: **no transactions**, but the verbs of the
    /// text's, for measurements of what its corrections cost. An atomic before the data on every
    /// replica makes it invisible, and one WRITE on each makes it visible and unlocks it, with no
    /// barrier.
    pub corrections: bool,
}

impl Ford {
    /// Every mechanism, but not the lean release or localized validation.
    pub const WHOLE: Ford = Ford {
        hitchhike: true,
        address_cache: true,
        coalesce: true,
        background_release: true,
        backup_reads: true,
        selective_flush: true,
        lean: false,
        validation: Validation::Remote,
        corrections: true,
    };
    /// FORD with the lean release.
    pub const LEAN: Ford = Ford { lean: true, ..Ford::WHOLE };
    /// FORD with localized validation, by the version cache of this process.
    pub const LOCAL: Ford = Ford { validation: Validation::Local, ..Ford::WHOLE };
    /// FORD with localized validation, by the version cache of the cluster.
    pub const GLOBAL: Ford = Ford { validation: Validation::Global, ..Ford::WHOLE };
    /// The mechanisms that can be turned off, by name.
    pub const MECHANISMS: [&'static str; 7] = [
        "hitchhike",
        "address-cache",
        "coalesce",
        "background-release",
        "backup-reads",
        "selective-flush",
        "corrections",
    ];

    /// Turns a mechanism off; false if there is none of that name.
    #[must_use]
    pub fn disable(&mut self, mechanism: &str) -> bool {
        let known = Ford::MECHANISMS.iter().position(|name| *name == mechanism);
        let Some(index) = known else { return false };
        *match index {
            0 => &mut self.hitchhike,
            1 => &mut self.address_cache,
            2 => &mut self.coalesce,
            3 => &mut self.background_release,
            4 => &mut self.backup_reads,
            5 => &mut self.selective_flush,
            _ => &mut self.corrections,
        } = false;
        true
    }
}

impl Steps for Ford {
    fn spec(self) -> ProtocolSpec {
        let (name, discipline) = match (self.validation, self.lean) {
            (Validation::Local, _) => ("ford-local", Discipline::IN_PLACE_LOCAL),
            (Validation::Global, _) => ("ford-global", Discipline::IN_PLACE_GLOBAL),
            (Validation::Remote, true) => ("ford-lean", Discipline::IN_PLACE),
            (Validation::Remote, false) => ("ford", Discipline::IN_PLACE),
        };
        ProtocolSpec {
            // What no version cache vouches for is validated at its primary.
            accepts: &[Discipline::IN_PLACE],
            index: IndexKind::FStore,
            execute: FirstRead::OneSided { cached: self.address_cache },
            validation: self.validation,
            needs_atomic_writes: self.lean,
            is_serializable: self.corrections,
            ..ProtocolSpec::new(name, discipline)
        }
    }

    async fn execute(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        tx.skip_what_is_here();
        execute(tx, self).await
    }

    async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        if tx.state.sets.written == 0 {
            return validate_read_only(tx, self).await;
        }
        if !mutant!(InsertLeavesHeader) {
            touch_chains(tx);
        }
        let entry = prepare_entry(tx)?;
        let released = &tx.state.released;
        let inherits = |item: &Item| item.is_written() && released.holds_back(tx.lane, item.address);
        tx.heir |= tx.state.sets.items.iter().any(inherits);
        if !mutant!(HeirWritesEarly) {
            tx.inherit().await?;
        }
        while !tx.state.has_room_for_undo(tx.lane, entry.words) {
            if tx.lane.background() == 0 {
                return Err(Limit::LogInDoubt.into());
            }
            tx.lane.sleep(LOG_PAUSE_NS).await;
        }
        if mutant!(LogWithoutLocks) {
            let mut round = tx.lane.round();
            write_entry(tx, &mut round, &entry, self.lean);
            tx.lane.execute(round).await?;
        }
        if mutant!(ValidateWithLocks) {
            validate(tx, true).await?;
            lock_rest(tx).await?;
        } else {
            lock_rest(tx).await?;
            let publish = !mutant!(PublishBehindValidation) && !mutant!(PublishBehindCommit);
            consult(tx, self.validation, publish, true).await?;
            if !mutant!(ValidateAfterCommit) {
                validate(tx, true).await?;
            }
        }
        if mutant!(PublishBehindValidation) {
            consult(tx, self.validation, true, false).await?;
        }
        tx.mark(|phases, now| phases.validated = now);
        tx.lane.probe(probes::VALIDATED);
        tx.committing();
        write_replicas(tx, &entry, self).await?;
        if mutant!(ValidateAfterCommit) {
            validate(tx, true).await?;
        }
        if mutant!(PublishBehindCommit) {
            consult(tx, self.validation, true, false).await?;
        }
        tx.mark(|phases, now| phases.logged = now);
        tx.lane.probe(probes::LOGGED);
        release(tx, self).await;
        tx.lane.probe(probes::INSTALLED);
        Ok(())
    }

    async fn validate(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        validate_read_only(tx, self).await
    }

    fn leave<'s>(self, tx: &mut Tx<'s>, log: Execute<'s>) {
        let mut rounds = std::mem::take(&mut tx.unsent);
        rounds.extend(Release::of(tx, self).rounds());
        tx.state.undo_written(tx.undo_words, Needed::Meanwhile);
        log.then_post_all(rounds);
    }
}
