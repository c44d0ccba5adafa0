//! Optimistic concurrency control with primary-backup replication: the OCC family of Wei's thesis,
//! chapter 4.
//!
//! ```text
//!           coordinator                              to                        round trips
//! execute   READ every record                     -> their primaries
//! lock      CAS lock; READ version                -> write set's primaries     1
//! validate  READ lock, version, if only read      -> their primaries           1, if there are any
//! log       WRITE entry                           -> all participants' rings   1
//!                                                    (every replica)
//!           ---- committed: every ring has acknowledged the entry ----
//! commit    WRITE record; CAS unlock              -> write set's primaries     in the background
//! ```
//!
//! With locations cached and keys known up front, a transaction takes:
//!
//! - 3 round trips if it writes what it reads,
//! - 4 if it also only reads records,
//! - 2 if it reads several,
//! - 1 if it reads one.
//!
//! # The presets
//!
//! | preset          | execute                          | lock + validate | validate  | log   | commit            |
//! | --------------- | -------------------------------- | --------------- | --------- | ----- | ----------------- |
//! | `farm`          | READ bucket, READ record         | call            | READ      | WRITE | call              |
//! | `fasst`         | call                             | call            | call      | call  | call              |
//! | `drtm-r`        | READ record; uncached: as `farm` | CAS, READ       | READ      | WRITE | WRITE, CAS unlock |
//! | `drtm-h`        | READ record; uncached: call      | CAS, READ       | READ      | WRITE | WRITE, CAS unlock |
//! | `drtm-r-clocks` | as `drtm-r`                      | CAS, READ, draw | CAS, READ | WRITE | WRITE, CAS unlock |
//!
//! A call has the primary's CPU do what the verbs of the other presets do (`rpc.rs`), on the same
//! words. So presets can run together on a table if they agree on what changes lock words, which
//! the table's discipline says. `drtm-h` locks and commits by calls on tables whose locks the CPU
//! changes. The presets differ in round trips only in execution: `farm` takes one more, and `fasst`
//! and `drtm-h` take one even for a location that is not cached. All presets have outstanding
//! requests (one round for everything that does not depend on an answer), one doorbell for each
//! node, coroutines, and commit by passive ACK.
//!
//! [`Primitives`](super::Primitives) is this table as a type, and measurements can use any other
//! combination. Two combinations have names because FORD was compared with them (FORD, section 6).
//! They wait for every phase. `drtm-h-one-sided` takes four round trips. `farm-one-sided` takes
//! five, because it validates what it writes in a round trip of its own. Both flush their logs.
//!
//! `drtm-r-clocks` has landing clocks (`landing.rs`), so that a transaction that only reads can
//! read a snapshot: one round trip, no validation, no lock. A FETCH_ADD behind the CASs of a node
//! draws the time of the commit, which log entry and record then have. Validation raises the clock
//! of a primary to that time before it looks there, unless the clock is known to have it. Neither
//! takes a round trip more, but for a clock that has run on meanwhile and is still behind. If a
//! transaction that deletes a record has unlocked it, the primary's CPU unlinks it, and remembers
//! the time. If an index bucket shows that a key is absent, one more round trip READs that time.
//!
//! For a key that is inserted, execution has a slot linked (`protocol/lookup.rs`). The slot is then
//! locked, validated, logged and installed like any record. The log entry also has what changed in
//! the index. An absent key is validated by another look into the same buckets. An insert has its
//! slot linked before it locks the slot, so a reader that validates before the link comes before
//! the insert.
//!
//! # Invariants
//!
//! 1. **Validation is under the locks.** A record that is only read is validated after every lock
//!    of the write set is held, and fails if it has changed *or is locked* by another (else: write
//!    skew). A record that is written is validated by the READ that rides behind its CAS.
//! 2. **A lock is released by the transaction that took it**, by CAS(me -> free), and only if the
//!    lock may have been taken.
//! 3. **Ring space before locks**: no transaction waits for the appliers while others wait for its
//!    locks. There is one exception: a leaf that its CPU has locked for a change (`edit.rs`) is
//!    locked in execution. Appliers wait for no lock, so this costs time, and nothing else.
//! 4. **Log before answer and install.** The client sends the entry after validation and never
//!    withdraws it. A transaction has committed when *every* participant has acknowledged the
//!    entry. Only then does the client install anything. The primary is a participant too, although
//!    it will get the record itself: with f + 1 copies, the log must be in f + 1 places. Otherwise
//!    a transaction that was reported is lost if its client dies before it has installed, together
//!    with f backups. The texts log only at the backups.
//! 5. **Data before unlock**, in one chain to the primary: WRITE then CAS is an ordered pair.
//! 6. **A lock held can mean a commit not yet written back**. So a read that is not validated later
//!    accepts a record only when its lock is free. The validation of a read-only transaction fails
//!    on a lock as well: the holder may have committed and been reported, and this transaction may
//!    have seen a transaction that came after the holder.
//!
//! The client asserts rules 1, 3 and 4 in the code that acts by them. Rules 2, 5 and 6 need the
//! words of a memory node, and litmus tests check them: rule 2 `complicit-abort`, rule 5
//! `unlock-before-data`, rule 6 `stale-read` and `reported-before`.

mod execute;
mod install;
mod validate;

use std::fmt;

use remora_fabric::{Execute, probes};
use remora_node::Discipline;

pub(super) use execute::execute;
use execute::execute_snapshot;
use install::install;
pub(super) use validate::validate_absent;
use validate::{lock_and_validate, validate, validate_read_only};

use crate::error::Stop;
use crate::protocol::clocks::fix_time;
use crate::protocol::redo::{self, make_room, prepare_log, write_log};
use crate::protocol::spec::{FirstRead, Primitive, ProtocolSpec};
use crate::protocol::{Protocol, Steps};
use crate::tx::Tx;

impl Protocol {
    /// FaRM (`farm`), as Wei's thesis emulates it: one-sided reads without a location cache, locks
    /// and commit by calls.
    pub const FARM: Protocol = Protocol::Occ(Primitives::FARM);
    /// The OCC of FaSST (`fasst`): every phase by calls.
    pub const FASST: Protocol = Protocol::Occ(Primitives::FASST);
    /// DrTM+R (`drtm-r`): every phase by one-sided verbs, with cached locations.
    pub const DRTM_R: Protocol = Protocol::Occ(Primitives::DRTM_R);
    /// DrTM+H (`drtm-h`): the better primitive for each phase. Reads are one-sided if the location
    /// is cached; otherwise a call brings record and location at once. Logs are one-sided. Locks
    /// are taken as the table's discipline says.
    pub const DRTM_H: Protocol = Protocol::Occ(Primitives::DRTM_H);
    /// DrTM+R with landing clocks, so that transactions can read snapshots (`drtm-r-clocks`).
    pub const DRTM_R_CLOCKS: Protocol = Protocol::Occ(Primitives::DRTM_R_CLOCKS);
}

/// The primitive that does each phase of optimistic concurrency control. The presets are constants
/// of this type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Primitives {
    /// How a record is read the first time.
    pub execute: FirstRead,
    /// What takes and frees the locks of the records to be written, on tables that the protocol
    /// creates. On other tables, the discipline of the table decides.
    pub locks: Locks,
    /// How validation looks again at the records that were only read.
    pub validate: Primitive,
    /// How log entries get to the rings of the participants.
    pub log: Primitive,
    /// Passive ACK: whether the client does not wait for the acknowledgement of the installation,
    /// which is then off the critical path.
    pub passive: bool,
    /// Whether a record that is written is validated in the round trip that locks it, after its
    /// lock. Otherwise it is validated in the next round trip, with the records that are only read.
    pub merged: bool,
    /// Whether one-sided log entries are flushed. This makes them durable on machines where a NIC
    /// acknowledges writes before they are durable.
    pub flush: bool,
}

/// The device that changes lock words: NICs, or the CPUs of the primaries. Where NICs change them,
/// no CPU may. So the way of locking decides how a commit is installed. A lock that the CPU takes
/// can be freed in two ways ([`Locks::Cpu`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Locks {
    /// NICs change lock words, by CAS. The client writes the record and frees its lock by verbs.
    Nic,
    /// As `Nic`, and a draw from the node's landing clock follows the CASs to each node. So each
    /// commit has a time, and transactions can read snapshots. Records are then read and validated
    /// by READs, whatever the other primitives say.
    NicTimed {
        /// Whether snapshots may claim what is known of clocks, without verbs.
        known_clocks: bool,
    },
    /// The CPU of the record's primary changes lock words, when a client calls it.
    Cpu {
        /// How records are installed and their locks freed. With [`Primitive::OneSided`], the
        /// client WRITEs the record and then the lock word. Only the holder of a lock does so, and
        /// only when it knows that it is the holder. A CPU's CAS is atomic against a store that
        /// comes over PCIe, while a NIC's CAS is not atomic against a CPU's. The contract of a
        /// round does not promise that much (rule 3), so no preset does it. Inserts and deletes are
        /// installed by calls in any case.
        install: Primitive,
    },
}

impl Primitives {
    /// The primitives of [`Protocol::FARM`].
    pub const FARM: Primitives = Primitives {
        execute: FirstRead::OneSided { cached: false },
        locks: Locks::Cpu { install: Primitive::Call },
        validate: Primitive::OneSided,
        log: Primitive::OneSided,
        passive: true,
        merged: true,
        flush: false,
    };
    /// The primitives of [`Protocol::FASST`].
    pub const FASST: Primitives = Primitives {
        execute: FirstRead::Call,
        locks: Locks::Cpu { install: Primitive::Call },
        validate: Primitive::Call,
        log: Primitive::Call,
        passive: true,
        merged: true,
        flush: false,
    };
    /// The primitives of [`Protocol::DRTM_R`].
    pub const DRTM_R: Primitives = Primitives {
        execute: FirstRead::OneSided { cached: true },
        locks: Locks::Nic,
        validate: Primitive::OneSided,
        log: Primitive::OneSided,
        passive: true,
        merged: true,
        flush: false,
    };
    /// The primitives of [`Protocol::DRTM_H`].
    pub const DRTM_H: Primitives = Primitives { execute: FirstRead::Hybrid, ..Primitives::DRTM_R };
    /// The primitives of [`Protocol::DRTM_R_CLOCKS`].
    pub const DRTM_R_CLOCKS: Primitives =
        Primitives { locks: Locks::NicTimed { known_clocks: true }, ..Primitives::DRTM_R };
    /// DrTM+H by one-sided verbs alone, as FORD is compared with it (FORD, section 6): four round
    /// trips, each awaited.
    pub const DRTM_H_ONE_SIDED: Primitives = Primitives { passive: false, flush: true, ..Primitives::DRTM_R };
    /// FaRM by one-sided verbs alone, as FORD is compared with it (FORD, section 6): five round
    /// trips, each awaited.
    pub const FARM_ONE_SIDED: Primitives = Primitives { merged: false, ..Primitives::DRTM_H_ONE_SIDED };

    /// Returns whether commits draw their times from landing clocks.
    pub(crate) const fn has_clocks(self) -> bool {
        matches!(self.locks, Locks::NicTimed { .. })
    }

    /// Returns these primitives without a cache of locations.
    #[must_use]
    pub const fn uncached(self) -> Primitives {
        Primitives { execute: FirstRead::OneSided { cached: false }, ..self }
    }
}

impl fmt::Display for Primitives {
    /// Writes the primitives in the form `e=read,v=cas,l=write,c=write,pa`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let execute = match self.execute {
            FirstRead::OneSided { cached: true } => "read",
            FirstRead::OneSided { cached: false } => "uncached",
            FirstRead::Call => "call",
            FirstRead::Hybrid => "hybrid",
        };
        let (lock, install) = match self.locks {
            Locks::Nic => ("cas", "write"),
            Locks::NicTimed { .. } => ("cas+draw", "write"),
            Locks::Cpu { install: Primitive::OneSided } => ("call", "write"),
            Locks::Cpu { install: Primitive::Call } => ("call", "call"),
        };
        let validate = if self.validate == Primitive::OneSided { "read" } else { "call" };
        let log = if self.log == Primitive::OneSided { "write" } else { "call" };
        let then = if self.merged { "+" } else { "," };
        let flush = if self.flush { "+flush" } else { "" };
        let passive = if self.passive { ",pa" } else { "" };
        write!(f, "e={execute},v={lock}{then}{validate},l={log}{flush},c={install}{passive}")
    }
}

impl Steps for Primitives {
    const STUDIES: &'static [Primitives] = &[
        Primitives::FARM_ONE_SIDED,
        Primitives::FARM_ONE_SIDED.uncached(),
        Primitives::DRTM_H_ONE_SIDED,
        Primitives::DRTM_H_ONE_SIDED.uncached(),
    ];

    fn spec(self) -> ProtocolSpec {
        const NAMES: [(Primitives, &str); 9] = [
            (Primitives::FARM, "farm"),
            (Primitives::FASST, "fasst"),
            (Primitives::DRTM_R, "drtm-r"),
            (Primitives::DRTM_H, "drtm-h"),
            (Primitives::DRTM_R_CLOCKS, "drtm-r-clocks"),
            (Primitives::FARM_ONE_SIDED, "farm-one-sided"),
            (Primitives::FARM_ONE_SIDED.uncached(), "farm-one-sided-uncached"),
            (Primitives::DRTM_H_ONE_SIDED, "drtm-h-one-sided"),
            (Primitives::DRTM_H_ONE_SIDED.uncached(), "drtm-h-one-sided-uncached"),
        ];
        let name = NAMES.iter().find(|(member, _)| *member == self).map_or("study", |(_, name)| name);
        let discipline = match self.locks {
            Locks::Nic => Discipline::OCC_ONE_SIDED,
            Locks::NicTimed { .. } => Discipline::OCC_TIMED,
            Locks::Cpu { .. } => Discipline::OCC_CALLS,
        };
        // DrTM+H runs on both disciplines: the table decides what changes lock words.
        let accepts: &[_] = if self == Primitives::DRTM_H { &[Discipline::OCC_CALLS] } else { &[] };
        let execute = match self.execute {
            FirstRead::Call | FirstRead::Hybrid if self.has_clocks() => FirstRead::OneSided { cached: true },
            execute => execute,
        };
        ProtocolSpec { accepts, execute, ..ProtocolSpec::new(name, discipline) }
    }

    async fn execute(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        if tx.attempt.snapshot.is_some() {
            return execute_snapshot(tx).await;
        }
        execute(tx).await
    }

    async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        if tx.state.sets.written == 0 {
            return validate_read_only(tx, self).await;
        }
        let edited = tx.state.sets.lone_edit();
        let entry = match edited {
            // The leaf is locked already (invariant 3), and its value is at its replicas.
            Some(leaf) => {
                let image_words = tx.state.sets.shape(&tx.state.sets.items[leaf]).image_words();
                make_room(tx, image_words).await?
            }
            None => prepare_log(tx).await?,
        };
        if edited.is_none() {
            if mutant!(ValidateWithLocks) {
                validate(tx, self, true).await?;
            }
            lock_and_validate(tx, self).await?;
            if self.has_clocks() {
                fix_time(tx);
            }
        }
        if edited.is_some() || !mutant!(ValidateWithLocks) {
            validate(tx, self, true).await?;
        }
        tx.hear_of_growth().await?;
        tx.validated();
        tx.lane.probe(probes::VALIDATED);
        tx.committing();
        write_log(tx, entry, self.log, self.flush).await?;
        tx.logged();
        install(tx, self).await;
        tx.installed();
        Ok(())
    }

    async fn validate(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        validate_read_only(tx, self).await
    }

    fn leave<'s>(self, tx: &mut Tx<'s>, log: Execute<'s>) {
        redo::leave(tx, log);
    }
}
