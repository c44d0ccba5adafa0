//! FORD: one-sided transactions that update every replica in place (Zhang et al., TOS 2023, section
//! 4). This is the text's protocol with corrections, which this page lists.
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
//! A record whose location is unknown costs one more round trip before, for the READ of its bucket.
//! A record that was named to be read, and is then written, is locked by a round of its own. A key
//! named to be inserted ([`Intent::Insert`]) is looked for where the cache says that it was. If it
//! is there, it costs what a change costs. Otherwise the client locks and reads its chain. No CPU
//! of a memory node takes part.
//!
//! # Where this differs from the text
//!
//! - The text puts the invisible bit into the lock word and sets it by a CAS before the data. Here
//!   the bit is in the version word and **is part of the WRITE of the data**: mark and data land
//!   together. So a commit needs no atomics, nothing depends on a NIC's order of WRITE after CAS,
//!   and only CAS changes the lock word.
//! - The undo entry goes out **in the commit's own chain**, before the data on each connection, and
//!   not in a round during execution. So a transaction takes two round trips even if its logic is
//!   short, and an abort has no log entry to free.
//! - Validation looks **at the primary**, and **at the lock** as well as the version.
//! - The client makes replicas visible and frees log entries first. It frees locks only **after the
//!   memory nodes have acknowledged both**.
//! - Only recovery rolls back. A rollback installs a new odd version, and never the old version
//!   again.
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
//! may overtake the release. The release must not make visible what that writer has half written.
//! So a backup is made visible by a CAS from this transaction's version, which the next writer's
//! WRITE has replaced. WRITE and CAS of the version word must therefore be atomic to each other.
//! Undo entries are not freed. Recovery sees by the versions that a transaction has ended, and
//! makes replicas visible by CAS as well.
//!
//! # Hand-over
//!
//! The unlocks of a release wait for the answer to its first round, and the lane's next transaction
//! (the heir) may want the same record at once. The heir **takes the lock over**, by CAS(former ->
//! me) in place of CAS(free -> me), which saves it a round trip and an attempt. Its READ follows
//! the former transaction's WRITE of the version on the same connection.
//!
//! But the release of the former transaction may still be on its way to other replicas. Until that
//! release is acknowledged, the heir neither writes anything nor frees the lock. The commit of the
//! heir waits, and its release is posted after the former transaction's unlocks (invariant 5 holds
//! for both). If the former transaction's release fails, the heir fails too, and the lock stays for
//! recovery. After a crash, no log names the heir's lock. The former transaction is complete on
//! every replica, and is rolled forward.
//!
//! # Localized validation
//!
//! All clients that write a table may publish in one version cache ([`Ford::validation`]). Then a
//! transaction looks up in the cache whether the records that it only read are current. That saves
//! a round trip if the cache is in this process (preset `ford-local`), and makes it shorter if the
//! cache is near (`ford-global`). [`vcache`](crate::vcache) has the argument. Between its last lock
//! and that look, a transaction publishes the versions that it is about to write. Records that the
//! cache does not vouch for are validated at the primary, as above.
//!
//! # Invariants
//!
//! 1. **A written record is locked by its writer**, at its primary, from before the record was last
//!    read until every replica is visible again. Locks are taken by CAS(free -> me), or by
//!    CAS(former -> me) from the lane's last transaction, which has committed. They are released by
//!    CAS(me -> free), and only if they may have been taken.
//! 2. **Validation comes after the last lock and before the commit round. It looks at the primary,
//!    and fails if another transaction has the lock**, also in a transaction that only reads.
//!    Otherwise there is write skew between transactions that write. A transaction that only reads
//!    needs this, too. The holder of the lock may have validated a record that it only read, before
//!    a third transaction overwrote that record. Then the holder comes before the third
//!    transaction. If the third one has been answered since, a reader that began after the answer
//!    comes after both, and must not miss what the holder writes (litmus `ford-read-behind-lock`).
//!    The text validates versions only, and the model that this protocol was first checked with had
//!    no such three transactions. With localized validation, a transaction **publishes before it
//!    validates**, and validation fails if another transaction has published.
//! 3. **Undo entry before data, on every node**, on one connection; the entry has the whole write
//!    set. Once the commit round has been posted, only recovery may undo the transaction, and not
//!    this client.
//! 4. **Acknowledged means complete on every replica.** So no read of any replica that began later
//!    sees an older version.
//! 5. **Visible before log free** on each node, **all of that before unlock**. With the lean
//!    release, a replica is made visible only if it still has this transaction's version.
//! 6. **A record is read only while it is visible and whole**; a lock alone does not make it
//!    unreadable. A record needs no validation only if it is the transaction's only one, was read
//!    at the primary, and was not locked there (as in 2). Backups have no locks, so every record
//!    that was read there is validated.
//!
//! The client asserts rules 1 to 4 where it acts. The others depend on when verbs land at the
//! replicas, and litmus tests check them: rule 5 `ford-visible-after-free`, `ford-late-release` and
//! `ford-lean-late-release`, rule 6 `ford-visible-at-once` and `ford-read-only-without-validation`.

mod again;
mod chain;
mod commit;
mod early;
mod execute;
mod former;
mod keep;
mod release;
mod snapshot;
mod validate;
mod words;

use remora_fabric::{Execute, probes};
use remora_node::{Discipline, IndexKind};

pub(super) use commit::touch_chains;
use commit::{prepare_entry, write_entry, write_replicas};
use execute::name_headers;
pub(super) use execute::{execute, lock_rest};
use release::{Release, release};
use validate::consult;
pub(super) use validate::{validate, validate_read_only};

use crate::error::{Limit, Stop};
use crate::limits::LOG_PAUSE_NS;
use crate::protocol::spec::{FirstRead, ProtocolSpec, Validation};
use crate::protocol::{Protocol, Steps};
use crate::sets::Item;
use crate::state::Needed;
use crate::tx::Tx;

impl Protocol {
    /// FORD with every mechanism except the lean release and localized validation (`ford`).
    pub const FORD: Protocol = Protocol::Ford(Ford::WHOLE);
    /// FORD with the lean release (`ford-lean`).
    pub const FORD_LEAN: Protocol = Protocol::Ford(Ford::LEAN);
    /// FORD with localized validation, by a version cache in each process (`ford-local`). It is for
    /// tables that only this process writes.
    pub const FORD_LOCAL: Protocol = Protocol::Ford(Ford::LOCAL);
    /// FORD with localized validation, by one version cache that all clients of the cluster ask
    /// (`ford-global`).
    pub const FORD_GLOBAL: Protocol = Protocol::Ford(Ford::GLOBAL);
    /// FORD with landing clocks, so that transactions can read snapshots (`remora`).
    pub const REMORA: Protocol = Protocol::Ford(Ford::TIMED);
}

/// The mechanisms of FORD, each of which can be on or off. By default ([`Ford::WHOLE`]) all are on
/// except the lean release and localized validation. An ablation turns one off ([`Ford::disable`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ford {
    /// Whether the round that reads a record also takes its lock. If not, a round of its own takes
    /// the locks before the commit.
    pub hitchhike: bool,
    /// Whether the client caches the locations of records.
    pub address_cache: bool,
    /// Whether one round writes the undo entry, the backups and the primaries. If not, three rounds
    /// do, one after the other.
    pub coalesce: bool,
    /// Whether the release is in the background, so that the client does not wait for it.
    pub background_release: bool,
    /// Whether a record that is only read may be read from a backup. If not, all records are read
    /// from primaries.
    pub backup_reads: bool,
    /// Whether there is one flush for each backup, after its last WRITE. If not, there is one after
    /// every WRITE, at every replica.
    pub selective_flush: bool,
    /// Whether the release is one round in the background instead of two, and undo entries are not
    /// freed. It is for fabrics on which WRITE and CAS of one word are atomic to each other.
    pub lean: bool,
    /// How records that are only read are validated.
    pub validation: Validation,
    /// Whether commits draw their times from landing clocks (`landing.rs`), so that transactions
    /// can read snapshots.
    pub timed: bool,
    /// In timed tables: the largest number of records that a transaction which writes only reads,
    /// and locks for that. If there are more, it validates them, and its time is fixed early
    /// (`early.rs`).
    pub guards_max: u8,
    /// In timed tables: whether snapshots may claim what is known of clocks, without verbs.
    pub known_clocks: bool,
    /// Whether the commit and the release are the corrected ones of this module. If not, these are
    /// **no transactions**, but the verbs of the text's protocol, to measure what the corrections
    /// cost. An atomic before the data makes each replica invisible. One WRITE makes the replica
    /// visible and unlocks it, with no barrier.
    pub corrections: bool,
}

impl Ford {
    /// FORD with every mechanism except the lean release and localized validation.
    pub const WHOLE: Ford = Ford {
        hitchhike: true,
        address_cache: true,
        coalesce: true,
        background_release: true,
        backup_reads: true,
        selective_flush: true,
        lean: false,
        validation: Validation::Remote,
        timed: false,
        guards_max: 2,
        known_clocks: true,
        corrections: true,
    };
    /// FORD with the lean release.
    pub const LEAN: Ford = Ford { lean: true, ..Ford::WHOLE };
    /// FORD with localized validation, by the version cache of this process.
    pub const LOCAL: Ford = Ford { validation: Validation::Local, ..Ford::WHOLE };
    /// FORD with localized validation, by the version cache of the cluster.
    pub const GLOBAL: Ford = Ford { validation: Validation::Global, ..Ford::WHOLE };
    /// FORD with landing clocks.
    pub const TIMED: Ford = Ford { timed: true, ..Ford::WHOLE };
    /// The names of the mechanisms that [`Ford::disable`] can turn off.
    pub const MECHANISMS: [&'static str; 9] = [
        "hitchhike",
        "address-cache",
        "coalesce",
        "background-release",
        "backup-reads",
        "selective-flush",
        "corrections",
        "known-clocks",
        "guards",
    ];

    /// Turns the mechanism with this name off. Returns false if there is none of that name.
    #[must_use]
    pub fn disable(&mut self, mechanism: &str) -> bool {
        let known = Ford::MECHANISMS.iter().position(|name| *name == mechanism);
        let Some(index) = known else { return false };
        if mechanism == "guards" {
            self.guards_max = 0;
            return true;
        }
        *match index {
            0 => &mut self.hitchhike,
            1 => &mut self.address_cache,
            2 => &mut self.coalesce,
            3 => &mut self.background_release,
            4 => &mut self.backup_reads,
            5 => &mut self.selective_flush,
            6 => &mut self.corrections,
            _ => &mut self.known_clocks,
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
            (Validation::Remote, false) if self.timed => ("remora", Discipline::IN_PLACE_TIMED),
            (Validation::Remote, false) => ("ford", Discipline::IN_PLACE),
        };
        ProtocolSpec {
            // Records that no version cache vouches for are validated at their primaries.
            accepts: if self.timed { &[] } else { &[Discipline::IN_PLACE] },
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
        if tx.attempt.snapshot.is_some() {
            return snapshot::execute(tx, self).await;
        }
        execute(tx, self).await
    }

    async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        if tx.state.sets.written == 0 {
            return validate_read_only(tx, self).await;
        }
        if !mutant!(InsertLeavesHeader) {
            touch_chains(tx);
        }
        let mut entry = prepare_entry(tx, self)?;
        let guards = self.timed && !tx.is_early && !mutant!(GuardByValidation);
        if guards {
            name_headers(&mut tx.state.sets);
        }
        let released = &tx.state.released;
        let inherits = |item: &Item| (item.is_written() || guards) && released.holds_back(tx.lane, item.address);
        tx.heir |= tx.state.sets.items.iter().any(inherits);
        if !mutant!(HeirWritesEarly) {
            tx.inherit().await?;
        }
        while !tx.state.has_room_for_undo(tx.lane, entry.words) {
            if tx.lane.background() == 0 {
                return Err(Limit::LogInDoubt.into());
            }
            tx.lane.hurry();
            tx.lane.sleep(LOG_PAUSE_NS).await;
        }
        if mutant!(LogWithoutLocks) {
            let mut round = tx.lane.round();
            write_entry(tx, &mut round, &entry, self.lean);
            tx.lane.execute(round).await?;
        }
        if mutant!(ValidateWithLocks) {
            validate(tx, true).await?;
            lock_rest(tx, guards).await?;
        } else {
            lock_rest(tx, guards).await?;
            if tx.is_early {
                early::fix_time(tx, &mut entry);
            }
            let publish = !mutant!(PublishBehindValidation) && !mutant!(PublishBehindCommit);
            consult(tx, self.validation, publish, true).await?;
            if !mutant!(ValidateAfterCommit) {
                validate(tx, true).await?;
            }
        }
        if mutant!(PublishBehindValidation) {
            consult(tx, self.validation, true, false).await?;
        }
        tx.hear_of_growth().await?;
        tx.validated();
        tx.lane.probe(probes::VALIDATED);
        tx.committing();
        write_replicas(tx, &mut entry, self).await?;
        if mutant!(ValidateAfterCommit) {
            validate(tx, true).await?;
        }
        if mutant!(PublishBehindCommit) {
            consult(tx, self.validation, true, false).await?;
        }
        tx.logged();
        release(tx, self).await;
        tx.installed();
        Ok(())
    }

    async fn validate(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        validate_read_only(tx, self).await
    }

    fn leave<'s>(self, tx: &mut Tx<'s>, log: Execute<'s>) {
        if self.timed {
            tx.state.clocks.misses_own();
        }
        let mut rounds = std::mem::take(&mut tx.unsent);
        rounds.extend(Release::left(tx, self).rounds());
        tx.state.undo_written(tx.undo_words, Needed::Meanwhile);
        log.then_post_all(rounds);
    }
}
