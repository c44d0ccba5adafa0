//! Litmus tests: published errors, each with a small program that shows it. The program is explored
//! in every order of its steps.
//!
//! A litmus test is a program of a few clients, an invariant, and a [`Mutant`], which is the error
//! put back. Remora's protocol is correct if no order breaks the invariant. That means something
//! only if some order breaks the invariant with the mutant.
//! [`explore`](remora::floors::fabric::seeded::explore) says what a step is, and which orders are
//! left out and why.

mod programs;
mod races;
mod recovery;
mod repairs;
mod snapshots;
mod stage;
mod stamps;
mod together;

use std::time::{Duration, Instant};

use remora::floors::fabric::seeded::explore::{Counts, Exploration};
use remora::floors::txn::mutant::{self, Mutant};
use remora::protocol::Protocol;
use serde::Serialize;

/// A litmus test: a program, its invariant, and the error that the test must catch.
#[derive(Clone, Copy, Debug)]
pub struct Litmus {
    /// The name of the test. `docs/litmus.md` says what the test is about.
    pub name: &'static str,
    /// Where the error was published, or where it may hide.
    pub source: &'static str,
    /// The error that is put back.
    pub mutant: Mutant,
    /// The protocol under test.
    pub protocol: Protocol,
    program: fn(Protocol, u64) -> Exploration<String>,
}

/// The bound at which an exploration gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The number of runs of the program.
    pub runs: u64,
}

impl Default for Bound {
    fn default() -> Bound {
        Bound { runs: 1_000_000 }
    }
}

/// The findings for a program as it is, or with its mutant.
#[derive(Clone, Debug)]
pub struct Side {
    /// What was explored.
    pub counts: Counts,
    /// Whether the bound was hit.
    pub bounded: bool,
    /// A description of the error, and the steps that lead to it.
    pub violation: Option<(String, Vec<String>)>,
    /// The real time that it took.
    pub took: Duration,
}

/// What [`run`] found.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The test that was run.
    pub litmus: Litmus,
    /// The findings for the program as it is.
    pub ours: Side,
    /// The findings with the error put back, until it was caught.
    pub mutated: Side,
}

/// A line of the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Entry {
    /// The test's name.
    pub name: &'static str,
    /// Where the error was published.
    pub source: &'static str,
    /// The number of orders explored of the program as it is. No two of them differ only in
    /// commuting steps.
    pub interleavings: u64,
    /// Whether no order breaks the invariant.
    pub correct: bool,
    /// Whether some order breaks the invariant when the error is put back.
    pub mutant_caught: bool,
    /// The error that is put back.
    pub mutant: String,
    /// The number of orders explored until the error was caught.
    pub mutant_interleavings: u64,
    /// Whether the bound was hit, so that not every order was explored.
    pub bounded: bool,
    /// The number of different states with a choice.
    pub states: u64,
    /// The number of steps taken.
    pub steps: u64,
    /// The number of verbs of these steps.
    pub verbs: u64,
    /// The number of lines that these verbs read or wrote.
    pub lines: u64,
    /// The number of crashes and drops among the steps.
    pub crashes: u64,
    /// A description of what is wrong, and the steps that lead to it.
    pub violation: Option<Vec<String>>,
}

/// All litmus tests.
pub const ALL: &[Litmus] = &[
    Litmus {
        name: "write-skew",
        source: "L3 covert lock: FORD a7d942e dtx_issue.cc:259, dtx_check.cc:134; Motor 94d9051 validate.cc:37",
        mutant: Mutant::ValidateVersionOnly,
        protocol: Protocol::DRTM_R,
        program: programs::write_skew,
    },
    Litmus {
        name: "write-skew-relaxed-locks",
        source: "L4 relaxed lock: FORD a7d942e dtx_issue.cc:240",
        mutant: Mutant::ValidateWithLocks,
        protocol: Protocol::DRTM_R,
        program: programs::write_skew,
    },
    Litmus {
        name: "lost-update",
        source: "a lock without validation of what was read before it",
        mutant: Mutant::LockWithoutValidation,
        protocol: Protocol::DRTM_R,
        program: programs::lost_update,
    },
    Litmus {
        name: "torn-read-lines",
        source: "L8: FORD a7d942e and HDTX 0461ac9, dtx_exe_commit.cc:53: no line versions",
        mutant: Mutant::AcceptTorn,
        protocol: Protocol::DRTM_R,
        program: programs::torn_lines,
    },
    Litmus {
        name: "torn-read-checksum",
        source: "L8: FORD a7d942e and HDTX 0461ac9, dtx_exe_commit.cc:53: no checksum",
        mutant: Mutant::AcceptTorn,
        protocol: Protocol::DRTM_R,
        program: programs::torn_checksum,
    },
    Litmus {
        name: "complicit-abort",
        source: "L1, L12: FORD a7d942e dtx_issue.cc:116, dtx.cc:217; Motor 94d9051 read_cvt.cc:104",
        mutant: Mutant::ReleaseAll,
        protocol: Protocol::DRTM_R,
        program: programs::complicit_abort,
    },
    Litmus {
        name: "unlock-before-data",
        source: "commit order: the unlock in front of the write it protects",
        mutant: Mutant::UnlockFirst,
        protocol: Protocol::DRTM_R,
        program: programs::lost_update,
    },
    Litmus {
        name: "commit-before-log",
        source: "L14: Motor 94d9051 framework.cc Commit: true without replica ACKs",
        mutant: Mutant::CommitBeforeLog,
        protocol: Protocol::DRTM_R,
        program: programs::logged,
    },
    Litmus {
        name: "log-at-backups-only",
        source: "DrTM+R, DrTM+H: f places log; a client may die with all of them before it installs",
        mutant: Mutant::LogAtBackupsOnly,
        protocol: Protocol::DRTM_R,
        program: programs::logged,
    },
    Litmus {
        name: "ring-overwrite",
        source: "L11: FORD a7d942e allocator/log_allocator.h: wraps without a look",
        mutant: Mutant::OverwriteLog,
        protocol: Protocol::DRTM_R,
        program: programs::ring_overwrite,
    },
    Litmus {
        name: "backup-order",
        source: "rings of different clients applied in the order found",
        mutant: Mutant::ApplyOlderVersions,
        protocol: Protocol::DRTM_R,
        program: programs::backup_order,
    },
    Litmus {
        name: "insert-insert",
        source: "L10: FORD a7d942e dtx_check_rw.cc:193: a locked slot is skipped",
        mutant: Mutant::InsertBesideLocked,
        protocol: Protocol::DRTM_R,
        program: programs::insert_insert,
    },
    Litmus {
        name: "reused-slot",
        source: "found here: a slot is locked for the record that lay there, while an insert into it is given up",
        mutant: Mutant::LeavePrepared,
        protocol: Protocol::DRTM_R,
        program: programs::reused_slot,
    },
    Litmus {
        name: "stale-place",
        source: "found here, by a campaign: a place in the index that a delete has found is kept for an insert",
        mutant: Mutant::KeepPlace,
        protocol: Protocol::DRTM_R,
        program: programs::stale_place,
    },
    Litmus {
        name: "absent-read",
        source: "a phantom of one key: that it was absent is not validated",
        mutant: Mutant::AbsentWithoutValidation,
        protocol: Protocol::DRTM_R,
        program: programs::absent_read,
    },
    Litmus {
        name: "stale-read",
        source: "one-record read of a locked record whose commit was already reported",
        mutant: Mutant::AcceptLocked,
        protocol: Protocol::DRTM_R,
        program: programs::stale_read,
    },
    Litmus {
        name: "reported-before",
        source: "FORD's rule that read-only validation ignores locks, where redo logs install late",
        mutant: Mutant::ValidateReadOnlyVersionOnly,
        protocol: Protocol::DRTM_R,
        program: programs::reported_before,
    },
    Litmus {
        name: "mixed-atomics",
        source: "CPU and NIC change one lock word, without atomicity between them",
        mutant: Mutant::CpuLocksForNics,
        protocol: Protocol::DRTM_R,
        program: programs::mixed_atomics,
    },
    Litmus {
        name: "shared-ids",
        source: "L9: FORD a7d942e worker.cc:144; Motor 94d9051 gen_output.cc:20: ids of one process",
        mutant: Mutant::LocalIds,
        protocol: Protocol::DRTM_R,
        program: programs::shared_ids,
    },
    Litmus {
        name: "ford-write-skew",
        source: "R1, R2, T1, L3: validation of versions only; locks are no part of it",
        mutant: Mutant::ValidateVersionOnly,
        protocol: Protocol::FORD,
        program: programs::write_skew_named,
    },
    Litmus {
        name: "ford-write-skew-relaxed-locks",
        source: "L4: a record named late is locked after the read set was validated",
        mutant: Mutant::ValidateWithLocks,
        protocol: Protocol::FORD,
        program: programs::write_skew,
    },
    Litmus {
        name: "ford-validate-at-backup",
        source: "R3, T1: read-write validation at the replica that was read, where no locks are",
        mutant: Mutant::ValidateAtBackup,
        protocol: Protocol::FORD,
        program: programs::write_skew_backup,
    },
    Litmus {
        name: "ford-lost-update",
        source: "a record named late is locked without validation",
        mutant: Mutant::LockWithoutValidation,
        protocol: Protocol::FORD,
        program: programs::lost_update,
    },
    Litmus {
        name: "ford-torn-read-lines",
        source: "R8, T3, L8: no line versions",
        mutant: Mutant::AcceptTorn,
        protocol: Protocol::FORD,
        program: programs::torn_lines,
    },
    Litmus {
        name: "ford-torn-read-checksum",
        source: "R8, T3, L8: no checksum",
        mutant: Mutant::AcceptTorn,
        protocol: Protocol::FORD,
        program: programs::torn_checksum,
    },
    Litmus {
        name: "ford-complicit-abort",
        source: "R17, L1, T5: an abort frees what others hold",
        mutant: Mutant::ReleaseAll,
        protocol: Protocol::FORD,
        program: programs::complicit_abort,
    },
    Litmus {
        name: "ford-read-only-without-validation",
        source: "R4: several records are read, and not looked at again",
        mutant: Mutant::ReadOnlyWithoutValidation,
        protocol: Protocol::FORD,
        program: programs::half_visible,
    },
    Litmus {
        name: "ford-read-behind-lock",
        source: "found here: FORD's rule that who only reads may ignore locks is not strict",
        mutant: Mutant::ValidateReadOnlyVersionOnly,
        protocol: Protocol::FORD,
        program: programs::read_behind_lock,
    },
    Litmus {
        name: "ford-answer-before-backups",
        source: "R5, L14: acknowledged before every replica has it",
        mutant: Mutant::CommitBeforeLog,
        protocol: Protocol::FORD,
        program: programs::complete_everywhere,
    },
    Litmus {
        name: "ford-late-release",
        source: "R11, T7, L7: locks freed before backups have confirmed that they are visible",
        mutant: Mutant::UnlockFirst,
        protocol: Protocol::FORD,
        program: programs::late_release,
    },
    Litmus {
        name: "ford-heir-frees",
        source: "found here: a lock that was taken over is freed while its former holder's release is on its way",
        mutant: Mutant::HeirFreesEarly,
        protocol: Protocol::FORD,
        program: programs::heir_aborts,
    },
    Litmus {
        name: "ford-heir-writes",
        source: "found here: a record is written under a lock that was taken over before its former holder's release is done",
        mutant: Mutant::HeirWritesEarly,
        protocol: Protocol::FORD,
        program: recovery::heir,
    },
    Litmus {
        name: "ford-dropped-fetch",
        source: "found here: a lock whose answer was not heard, because its future was dropped, is taken for held",
        mutant: Mutant::BelieveUnheard,
        protocol: Protocol::FORD,
        program: programs::dropped_fetch,
    },
    Litmus {
        name: "ford-lean-late-release",
        source: "R11b: a lean release that makes backups visible whatever they hold by then",
        mutant: Mutant::ShowByWrite,
        protocol: Protocol::FORD_LEAN,
        program: programs::late_release,
    },
    Litmus {
        name: "ford-insert-insert",
        source: "T17, L10: nothing excludes two inserters of one key",
        mutant: Mutant::InsertBesideLocked,
        protocol: Protocol::FORD,
        program: programs::insert_insert,
    },
    Litmus {
        name: "ford-absent-read",
        source: "T17: that a key was absent is not validated",
        mutant: Mutant::AbsentWithoutValidation,
        protocol: Protocol::FORD,
        program: programs::absent_read,
    },
    Litmus {
        name: "ford-insert-behind-header",
        source: "found here: an insert that leaves its chain's header as it was, and a bucket READ that is not atomic",
        mutant: Mutant::InsertLeavesHeader,
        protocol: Protocol::FORD,
        program: programs::absent_read,
    },
    Litmus {
        name: "ford-always-undo",
        source: "R21, T8, L6: recovery undoes whatever has an entry",
        mutant: Mutant::AlwaysUndo,
        protocol: Protocol::FORD,
        program: recovery::one_line,
    },
    Litmus {
        name: "ford-visible-after-free",
        source: "R13: a release frees entries before records are visible",
        mutant: Mutant::FreeBeforeVisible,
        protocol: Protocol::FORD,
        program: recovery::one_line,
    },
    Litmus {
        name: "ford-data-before-log",
        source: "R14, T8: data before its undo entry",
        mutant: Mutant::DataBeforeLog,
        protocol: Protocol::FORD,
        program: recovery::one_line,
    },
    Litmus {
        name: "ford-log-at-primary",
        source: "R14: an undo entry at the primary only",
        mutant: Mutant::LogAtPrimary,
        protocol: Protocol::FORD,
        program: recovery::one_line,
    },
    Litmus {
        name: "ford-torn-entry",
        source: "R16, L11: an undo entry is believed without its checksum",
        mutant: Mutant::TrustTornEntry,
        protocol: Protocol::FORD,
        program: recovery::one_line,
    },
    Litmus {
        name: "ford-orphan-lock",
        source: "R26, T10: only locks that a log names are freed",
        mutant: Mutant::NoSweep,
        protocol: Protocol::FORD,
        program: recovery::one_line,
    },
    Litmus {
        name: "ford-lock-copied",
        source: "R10, T4: the WRITE of the data covers the lock word",
        mutant: Mutant::WriteCoversLock,
        protocol: Protocol::FORD,
        program: recovery::one_line,
    },
    Litmus {
        name: "ford-forward-by-primary",
        source: "R21: forward if the primary is complete",
        mutant: Mutant::ForwardIfPrimary,
        protocol: Protocol::FORD,
        program: recovery::two_lines,
    },
    Litmus {
        name: "ford-forward-by-any",
        source: "R21: forward if any replica is complete",
        mutant: Mutant::ForwardIfAny,
        protocol: Protocol::FORD,
        program: recovery::two_lines_checksum,
    },
    Litmus {
        name: "ford-forward-by-header",
        source: "R21: a record is complete if its header is",
        mutant: Mutant::ForwardByHeader,
        protocol: Protocol::FORD,
        program: recovery::two_lines,
    },
    Litmus {
        name: "ford-forward-by-header-checksum",
        source: "R21: a record is complete if its header is",
        mutant: Mutant::ForwardByHeader,
        protocol: Protocol::FORD,
        program: recovery::two_lines_checksum,
    },
    Litmus {
        name: "ford-cut-line",
        source: "found here: a line whose WRITE a revocation has cut short has its new version, and old words",
        mutant: Mutant::ForwardByHeader,
        protocol: Protocol::FORD,
        program: recovery::words_of_a_line,
    },
    Litmus {
        name: "ford-cold-orphan-lock",
        source: "R26: a lock that no log names, behind a location that was looked up",
        mutant: Mutant::NoSweep,
        protocol: Protocol::FORD,
        program: recovery::cold,
    },
    Litmus {
        name: "ford-late-zombie",
        source: "R19, T11: recovery revokes nobody",
        mutant: Mutant::RevokeNobody,
        protocol: Protocol::FORD,
        program: recovery::two_writers,
    },
    Litmus {
        name: "ford-unlock-before-repair",
        source: "R22: locks are freed before records are repaired",
        mutant: Mutant::UnlockBeforeRepair,
        protocol: Protocol::FORD,
        program: recovery::two_writers,
    },
    Litmus {
        name: "ford-log-without-lock",
        source: "L5: undo entries of what is not locked",
        mutant: Mutant::LogWithoutLocks,
        protocol: Protocol::FORD,
        program: recovery::two_late_writers,
    },
    Litmus {
        name: "ford-foreign-unlock",
        source: "R22, R26: locks of suspects are freed by whoever meets them",
        mutant: Mutant::FreeForeignLocks,
        protocol: Protocol::FORD,
        program: recovery::no_lazy_unlock,
    },
    Litmus {
        name: "ford-lazy-unlock",
        source: "R17, R26: a lock that was met is freed by a WRITE, whoever has it then",
        mutant: Mutant::ReleaseAll,
        protocol: Protocol::FORD,
        program: recovery::lazy_unlock,
    },
    Litmus {
        name: "ford-two-reads",
        source: "R21: what was reported, and read once, is undone",
        mutant: Mutant::AlwaysUndo,
        protocol: Protocol::FORD,
        program: recovery::two_reads,
    },
    Litmus {
        name: "ford-late-recoverer",
        source: "R20: earlier recoverers are not revoked",
        mutant: Mutant::SpareRecoverers,
        protocol: Protocol::FORD,
        program: recovery::successor,
    },
    Litmus {
        name: "ford-free-before-repair",
        source: "R24: entries are freed before the repair",
        mutant: Mutant::FreeBeforeRepair,
        protocol: Protocol::FORD,
        program: recovery::successor,
    },
    Litmus {
        name: "ford-free-after-unlock",
        source: "R23: entries are freed after the unlock",
        mutant: Mutant::FreeAfterUnlock,
        protocol: Protocol::FORD,
        program: recovery::successor_and_writer,
    },
    Litmus {
        name: "ford-repair-without-log",
        source: "R25: recovery writes what no entry at that node names",
        mutant: Mutant::RepairWithoutLog,
        protocol: Protocol::FORD,
        program: recovery::half_recovered,
    },
    Litmus {
        name: "ford-opposite-primaries",
        source: "R21: a transaction of two primaries is undone that was reported",
        mutant: Mutant::AlwaysUndo,
        protocol: Protocol::FORD,
        program: recovery::opposite_primaries,
    },
    Litmus {
        name: "ford-own-records-logged",
        source: "R15: each node's entry names its own records",
        mutant: Mutant::LogOwnRecords,
        protocol: Protocol::FORD,
        program: recovery::no_common_node,
    },
    Litmus {
        name: "ford-visible-at-once",
        source: "R7: data without the mark",
        mutant: Mutant::VisibleAtOnce,
        protocol: Protocol::FORD,
        program: recovery::reader,
    },
    Litmus {
        name: "ford-rollback-to-old-version",
        source: "R9, T6: a rollback installs the old version",
        mutant: Mutant::RollbackOldVersion,
        protocol: Protocol::FORD,
        program: recovery::reader_of_lines,
    },
    Litmus {
        name: "ford-validate-after-commit",
        source: "R18: validation behind the commit round",
        mutant: Mutant::ValidateAfterCommit,
        protocol: Protocol::FORD,
        program: recovery::skew,
    },
    Litmus {
        name: "ford-two-in-a-row",
        source: "R21: the first of two transactions is undone, after its answer",
        mutant: Mutant::AlwaysUndo,
        protocol: Protocol::FORD,
        program: recovery::two_in_a_row,
    },
    Litmus {
        name: "ford-stale-entry",
        source: "R12, T9, L6: entries stay, and there is no guard",
        mutant: Mutant::KeepEntries,
        protocol: Protocol::FORD,
        program: recovery::again,
    },
    Litmus {
        name: "ford-lean-always-undo",
        source: "R21 of the lean release: recovery undoes whatever has an entry",
        mutant: Mutant::AlwaysUndo,
        protocol: Protocol::FORD_LEAN,
        program: recovery::one_line,
    },
    Litmus {
        name: "ford-lean-stale-entry",
        source: "R12, T9, L6 of the lean release, which leaves its entries: no guard",
        mutant: Mutant::KeepEntries,
        protocol: Protocol::FORD_LEAN,
        program: recovery::again,
    },
    Litmus {
        name: "ford-lean-recovered-by-write",
        source: "R11c: recovery makes visible whatever replicas hold by then",
        mutant: Mutant::RecoveredByWrite,
        protocol: Protocol::FORD_LEAN,
        program: recovery::again,
    },
    Litmus {
        name: "ford-lean-look-once",
        source: "R12b: the guard and what it guards are not read at one time",
        mutant: Mutant::LookOnce,
        protocol: Protocol::FORD_LEAN,
        program: recovery::again_two_lines,
    },
    Litmus {
        name: "ford-write-skew-recovered",
        source: "R1, R2: write skew, and one of the two is taken for dead",
        mutant: Mutant::ValidateVersionOnly,
        protocol: Protocol::FORD,
        program: recovery::skew_of_two,
    },
    Litmus {
        name: "ford-one-of-two",
        source: "R19, T11: recovery revokes nobody",
        mutant: Mutant::RevokeNobody,
        protocol: Protocol::FORD,
        program: recovery::one_of_two,
    },
    Litmus {
        name: "ford-two-victims",
        source: "R22: locks are freed before records are repaired",
        mutant: Mutant::UnlockBeforeRepair,
        protocol: Protocol::FORD,
        program: recovery::two_victims,
    },
    Litmus {
        name: "ford-insert-not-logged",
        source: "L2: the undo entry does not name what is inserted",
        mutant: Mutant::InsertsNotLogged,
        protocol: Protocol::FORD,
        program: recovery::inserter,
    },
    Litmus {
        name: "ford-insert-unlocked",
        source: "R22, T17: a chain is unlocked before it is repaired",
        mutant: Mutant::UnlockBeforeRepair,
        protocol: Protocol::FORD,
        program: recovery::two_inserters,
    },
    Litmus {
        name: "ford-delete-undone",
        source: "R21, T17: a delete is undone that was reported",
        mutant: Mutant::AlwaysUndo,
        protocol: Protocol::FORD,
        program: recovery::deleter,
    },
    Litmus {
        name: "ford-local-write-skew",
        source: "T2: versions are published behind the commit round",
        mutant: Mutant::PublishBehindCommit,
        protocol: Protocol::FORD_LOCAL,
        program: programs::write_skew_named,
    },
    Litmus {
        name: "ford-local-check-first",
        source: "T2: what was only read is looked at before versions are published",
        mutant: Mutant::PublishBehindValidation,
        protocol: Protocol::FORD_LOCAL,
        program: programs::write_skew_beside_a_miss,
    },
    Litmus {
        name: "ford-local-read-behind-lock",
        source: "T2, for who only reads: versions are published behind the commit round",
        mutant: Mutant::PublishBehindCommit,
        protocol: Protocol::FORD_LOCAL,
        program: programs::read_behind_lock,
    },
    Litmus {
        name: "ford-local-read-only-without-validation",
        source: "R4: several records are read, and not looked at again",
        mutant: Mutant::ReadOnlyWithoutValidation,
        protocol: Protocol::FORD_LOCAL,
        program: programs::half_visible,
    },
    Litmus {
        name: "ford-local-absent-read",
        source: "T17, T2: what is inserted is published behind the commit round",
        mutant: Mutant::PublishBehindCommit,
        protocol: Protocol::FORD_LOCAL,
        program: programs::absent_read,
    },
    Litmus {
        name: "ford-local-forgotten",
        source: "T19: a version cache that has no room forgets what was published",
        mutant: Mutant::ForgetEvicted,
        protocol: Protocol::FORD_LOCAL,
        program: programs::write_skew_without_room,
    },
    Litmus {
        name: "ford-local-read-behind-abort",
        source: "T6: what an abort has published is refused for ever",
        mutant: Mutant::RefuseOtherVersions,
        protocol: Protocol::FORD_LOCAL,
        program: programs::read_behind_an_abort,
    },
    Litmus {
        name: "ford-local-write-skew-recovered",
        source: "T2: write skew, and one of the two is taken for dead",
        mutant: Mutant::PublishBehindCommit,
        protocol: Protocol::FORD_LOCAL,
        program: recovery::skew_of_two,
    },
    Litmus {
        name: "ford-local-visible-at-once",
        source: "R7: data without the mark, and nobody looks at locks",
        mutant: Mutant::VisibleAtOnce,
        protocol: Protocol::FORD_LOCAL,
        program: recovery::reader,
    },
    Litmus {
        name: "ford-local-read-behind-recovery",
        source: "T6: what a dead client has published is refused for ever",
        mutant: Mutant::RefuseOtherVersions,
        protocol: Protocol::FORD_LOCAL,
        program: recovery::read_behind_recovery,
    },
    Litmus {
        name: "ford-global-write-skew",
        source: "T2: versions are published behind the commit round, by a call",
        mutant: Mutant::PublishBehindCommit,
        protocol: Protocol::FORD_GLOBAL,
        program: programs::write_skew_named,
    },
    Litmus {
        name: "ford-global-check-first",
        source: "T2: the host is asked first, and told by another call",
        mutant: Mutant::PublishBehindValidation,
        protocol: Protocol::FORD_GLOBAL,
        program: programs::write_skew_named,
    },
    Litmus {
        name: "ford-global-read-behind-lock",
        source: "T2, for who only reads: the host is told behind the commit round",
        mutant: Mutant::PublishBehindCommit,
        protocol: Protocol::FORD_GLOBAL,
        program: programs::read_behind_lock,
    },
    Litmus {
        name: "ford-global-forgotten",
        source: "T19: the host has no room, and forgets what was published",
        mutant: Mutant::ForgetEvicted,
        protocol: Protocol::FORD_GLOBAL,
        program: programs::write_skew_without_room,
    },
    Litmus {
        name: "ford-global-write-skew-recovered",
        source: "T2: write skew, and one of the two is taken for dead",
        mutant: Mutant::PublishBehindCommit,
        protocol: Protocol::FORD_GLOBAL,
        program: recovery::skew_of_two,
    },
    Litmus {
        name: "ford-global-read-behind-recovery",
        source: "T6: what a dead client has published is refused for ever",
        mutant: Mutant::RefuseOtherVersions,
        protocol: Protocol::FORD_GLOBAL,
        program: recovery::read_behind_recovery,
    },
    Litmus {
        name: "redo-rolled-back",
        source: "recovery rolls back although there is an entry",
        mutant: Mutant::UndoLogged,
        protocol: Protocol::DRTM_R,
        program: recovery::two_backups,
    },
    Litmus {
        name: "redo-one-copy",
        source: "the same of the only copy",
        mutant: Mutant::UndoLogged,
        protocol: Protocol::DRTM_R,
        program: recovery::one_copy,
    },
    Litmus {
        name: "redo-incomplete",
        source: "recovery installs what other participants have not logged",
        mutant: Mutant::InstallIncomplete,
        protocol: Protocol::DRTM_R,
        program: recovery::two_backups,
    },
    Litmus {
        name: "redo-orphan-lock",
        source: "T10: only locks that a log names are freed",
        mutant: Mutant::NoSweep,
        protocol: Protocol::DRTM_R,
        program: recovery::one_line,
    },
    Litmus {
        name: "redo-zombie",
        source: "T11: recovery revokes nobody",
        mutant: Mutant::RevokeNobody,
        protocol: Protocol::DRTM_R,
        program: recovery::two_writers,
    },
    Litmus {
        name: "redo-unlock-first",
        source: "recovery frees locks before it installs",
        mutant: Mutant::UnlockBeforeRepair,
        protocol: Protocol::DRTM_R,
        program: recovery::two_writers,
    },
    Litmus {
        name: "redo-late-recoverer",
        source: "earlier recoverers are not revoked",
        mutant: Mutant::SpareRecoverers,
        protocol: Protocol::DRTM_R,
        program: recovery::successor_and_writer,
    },
    Litmus {
        name: "redo-installed",
        source: "recovery installs what its client has unlocked",
        mutant: Mutant::InstallUnlocked,
        protocol: Protocol::DRTM_R,
        program: recovery::two_writers,
    },
    Litmus {
        name: "no-wait-write-skew",
        source: "a record that others share is locked exclusively: write skew",
        mutant: Mutant::WriteOverShared,
        protocol: Protocol::NO_WAIT,
        program: programs::write_skew,
    },
    Litmus {
        name: "no-wait-write-skew-named",
        source: "a record that others share is locked exclusively in execution: write skew",
        mutant: Mutant::WriteOverShared,
        protocol: Protocol::NO_WAIT,
        program: programs::write_skew_named,
    },
    Litmus {
        name: "no-wait-lost-update",
        source: "a record that others share is locked exclusively: a lost update",
        mutant: Mutant::WriteOverShared,
        protocol: Protocol::NO_WAIT,
        program: programs::lost_update,
    },
    Litmus {
        name: "no-wait-unlock-early",
        source: "a lock is released before the transaction has all of its locks: it is not two-phase",
        mutant: Mutant::UnlockReadsEarly,
        protocol: Protocol::NO_WAIT,
        program: programs::write_skew_in_turn,
    },
    Litmus {
        name: "no-wait-unlock-before-data",
        source: "commit order: the unlock in front of the write that it protects",
        mutant: Mutant::UnlockFirst,
        protocol: Protocol::NO_WAIT,
        program: programs::lost_update,
    },
    Litmus {
        name: "no-wait-commit-before-log",
        source: "L14: reported before every replica has the log entry",
        mutant: Mutant::CommitBeforeLog,
        protocol: Protocol::NO_WAIT,
        program: programs::logged,
    },
    Litmus {
        name: "no-wait-insert-insert",
        source: "L10: a locked slot is skipped",
        mutant: Mutant::InsertBesideLocked,
        protocol: Protocol::NO_WAIT,
        program: programs::insert_insert,
    },
    Litmus {
        name: "no-wait-absent-read",
        source: "a phantom of one key: there is no record to lock",
        mutant: Mutant::AbsentWithoutValidation,
        protocol: Protocol::NO_WAIT,
        // A client that finds a lock tries other ways, so there is no end of orders.
        program: |protocol, runs_max| programs::absent_read(protocol, runs_max.min(10_000)),
    },
    Litmus {
        name: "no-wait-orphan-lock",
        source: "T10: locks of the dead that no log names are not freed",
        mutant: Mutant::NoSweep,
        protocol: Protocol::NO_WAIT,
        program: recovery::one_line,
    },
    Litmus {
        name: "no-wait-zombie",
        source: "T11: recovery revokes nobody",
        mutant: Mutant::RevokeNobody,
        protocol: Protocol::NO_WAIT,
        program: recovery::two_writers,
    },
    Litmus {
        name: "batch-stale-join",
        source: "invariant 1: a member joins although another one has changed the record since",
        mutant: Mutant::JoinUnchecked,
        protocol: Protocol::DRTM_R,
        program: together::stale_members,
    },
    Litmus {
        name: "batch-closed-join",
        source: "invariant 5: a member joins when the leader has closed the batch",
        mutant: Mutant::JoinClosed,
        protocol: Protocol::DRTM_R,
        program: together::late_members,
    },
    Litmus {
        name: "batch-unlocked-change",
        source: "invariant 2: a member changes what the leader has only read",
        mutant: Mutant::JoinUnlocked,
        protocol: Protocol::DRTM_R,
        program: together::members_of_a_reader,
    },
    Litmus {
        name: "batch-brought",
        source: "invariant 2: a leader does not lock what a member has brought along",
        mutant: Mutant::TrustBrought,
        protocol: Protocol::DRTM_R,
        program: together::members_that_bring,
    },
    Litmus {
        name: "batch-brought-recovered",
        source: "invariant 4: recovery rolls back a leader with what a member has brought along",
        mutant: Mutant::UndoLogged,
        protocol: Protocol::DRTM_R,
        program: together::members_that_bring_recovered,
    },
    Litmus {
        name: "batch-one-version",
        source: "invariant 3: a batch installs one version for all its changes",
        mutant: Mutant::OneVersionForAll,
        protocol: Protocol::DRTM_R,
        program: together::members,
    },
    Litmus {
        name: "batch-reported-early",
        source: "invariant 2: members report before the leader's outcome is known",
        mutant: Mutant::MembersReportEarly,
        protocol: Protocol::DRTM_R,
        program: together::members,
    },
    Litmus {
        name: "batch-dropped-leader",
        source: "invariant 6: a leader that is dropped when its log is on its way counts as aborted",
        mutant: Mutant::DroppedLeaderAborts,
        protocol: Protocol::DRTM_R,
        program: together::dropped_leader,
    },
    Litmus {
        name: "batch-dropped-member",
        source: "invariant 2: a member that is dropped when it has joined counts as aborted",
        mutant: Mutant::DroppedMemberAborts,
        protocol: Protocol::DRTM_R,
        program: together::dropped_member,
    },
    Litmus {
        name: "batch-recovered",
        source: "invariant 4: recovery rolls back a leader that has a log entry",
        mutant: Mutant::UndoLogged,
        protocol: Protocol::DRTM_R,
        program: together::members_recovered,
    },
    Litmus {
        name: "batch-zombie",
        source: "T11: recovery revokes nobody, and a coroutine in line goes on",
        mutant: Mutant::RevokeNobody,
        protocol: Protocol::DRTM_R,
        program: together::zombie_in_line,
    },
    Litmus {
        name: "turn-lapse",
        source: "invariant 4 of turns: a turn that is not given back stays",
        mutant: Mutant::TurnsNeverLapse,
        protocol: Protocol::DRTM_R,
        program: together::turn_that_stays,
    },
    Litmus {
        name: "ford-batch-one-version",
        source: "invariant 3: a batch installs one version for all its changes",
        mutant: Mutant::OneVersionForAll,
        protocol: Protocol::FORD,
        program: together::members,
    },
    Litmus {
        name: "ford-batch-reported-early",
        source: "invariant 2: members report before the leader's outcome is known",
        mutant: Mutant::MembersReportEarly,
        protocol: Protocol::FORD,
        program: together::members_recovered,
    },
    Litmus {
        name: "ford-batch-dropped-leader",
        source: "invariant 6: a leader that is dropped when its log is on its way counts as aborted",
        mutant: Mutant::DroppedLeaderAborts,
        protocol: Protocol::FORD,
        program: together::dropped_leader,
    },
    Litmus {
        name: "ford-batch-dropped-member",
        source: "invariant 2: a member that is dropped when it has joined counts as aborted",
        mutant: Mutant::DroppedMemberAborts,
        protocol: Protocol::FORD,
        program: together::dropped_member,
    },
    Litmus {
        name: "ford-batch-recovered",
        source: "R21, invariant 4: recovery undoes a leader that was reported",
        mutant: Mutant::AlwaysUndo,
        protocol: Protocol::FORD,
        program: together::members_recovered,
    },
    Litmus {
        name: "ford-batch-zombie",
        source: "R19, T11: recovery revokes nobody, and a coroutine in line goes on",
        mutant: Mutant::RevokeNobody,
        protocol: Protocol::FORD,
        program: together::zombie_in_line,
    },
    Litmus {
        name: "snapshot-claim",
        source: "landing clocks, rule 2: a clock is claimed behind the READs",
        mutant: Mutant::ClaimBehindRead,
        protocol: snapshots::ASKING,
        program: snapshots::snapshot_whole,
    },
    Litmus {
        name: "snapshot-largest",
        source: "landing clocks, rule 3: a snapshot at its largest claim",
        mutant: Mutant::LargestClaim,
        protocol: snapshots::ASKING,
        program: snapshots::snapshot_whole_ahead,
    },
    Litmus {
        name: "past-current",
        source: "landing clocks: an open snapshot that has records as they are, and not as they were",
        mutant: Mutant::PastTakesCurrent,
        protocol: snapshots::ASKING,
        program: snapshots::past_whole,
    },
    Litmus {
        name: "past-unraised",
        source: "landing clocks, rule 1: a snapshot that is opened before all clocks have reached its time",
        mutant: Mutant::PastUnraised,
        protocol: snapshots::ASKING,
        program: snapshots::past_whole_ahead,
    },
    Litmus {
        name: "snapshot-later",
        source: "landing clocks, rule 11: a record that is later than the snapshot",
        mutant: Mutant::TakeLater,
        protocol: snapshots::ASKING,
        program: snapshots::snapshot_whole,
    },
    Litmus {
        name: "snapshot-known",
        source: "ours: a record that is later than what was known of a clock",
        mutant: Mutant::TakeLater,
        protocol: Protocol::REMORA,
        program: snapshots::snapshot_whole,
    },
    Litmus {
        name: "snapshot-draw",
        source: "landing clocks, rule 6: a draw before the data",
        mutant: Mutant::DrawBeforeData,
        protocol: snapshots::ASKING,
        program: snapshots::snapshot_whole,
    },
    Litmus {
        name: "snapshot-pending",
        source: "landing clocks, rule 4: a record that is being installed",
        mutant: Mutant::AcceptTorn,
        protocol: snapshots::ASKING,
        program: snapshots::snapshot_whole,
    },
    Litmus {
        name: "snapshot-guard",
        source: "landing clocks, rule 7: a time that is drawn after the validation",
        mutant: Mutant::GuardByValidation,
        protocol: snapshots::ASKING,
        program: snapshots::snapshot_guard,
    },
    Litmus {
        name: "snapshot-guard-raised",
        source: "landing clocks, rule 8: a guard is unlocked before its clock has the time",
        mutant: Mutant::GuardUnraised,
        protocol: snapshots::ASKING,
        program: snapshots::snapshot_guard_ahead,
    },
    Litmus {
        name: "snapshot-order",
        source: "landing clocks, rule 9: a time below that of what the commit replaces",
        mutant: Mutant::TimeOfDraws,
        protocol: snapshots::ASKING,
        program: snapshots::snapshot_order,
    },
    Litmus {
        name: "one-clock-strict",
        source: "ours: a snapshot that is said to be strict, with a clock for each node",
        mutant: Mutant::ClockOfEachNode,
        protocol: Protocol::REMORA,
        program: snapshots::strict_order,
    },
    Litmus {
        name: "one-clock-order",
        source: "ours: one clock for all nodes, where rounds do not take effect in order",
        mutant: Mutant::OneClockUnordered,
        protocol: snapshots::ASKING,
        program: snapshots::snapshot_whole,
    },
    Litmus {
        name: "one-clock-primaries",
        source: "ours: a snapshot at backups, where early locks are at primaries only",
        mutant: Mutant::OneClockAtBackups,
        protocol: snapshots::EARLY,
        program: snapshots::early_whole_in_order,
    },
    Litmus {
        name: "early-behind-lock",
        source: "landing clocks, rule 21: a snapshot reads what is locked at an early time",
        mutant: Mutant::ReadBehindEarlyLock,
        protocol: snapshots::EARLY,
        program: snapshots::early_whole,
    },
    Litmus {
        name: "early-draw",
        source: "landing clocks, rule 19: an early draw before the locks",
        mutant: Mutant::DrawBeforeLocks,
        protocol: snapshots::EARLY,
        program: snapshots::early_whole,
    },
    Litmus {
        name: "early-backup",
        source: "landing clocks, rule 18: an early time with locks at primaries only",
        mutant: Mutant::EarlyAtPrimary,
        protocol: snapshots::EARLY,
        program: snapshots::early_whole_at_backups,
    },
    Litmus {
        name: "early-insert",
        source: "ours: a bucket's slot is read before an early insert, and its chain after it",
        mutant: Mutant::PassEarlySlots,
        protocol: snapshots::EARLY,
        program: snapshots::early_insert,
    },
    Litmus {
        name: "early-raised",
        source: "landing clocks, rule 20: a validation before the clock has the early time",
        mutant: Mutant::EarlyUnraised,
        protocol: snapshots::EARLY,
        program: snapshots::snapshot_guard_ahead,
    },
    Litmus {
        name: "clocks-claim",
        source: "landing clocks, rule 2: a clock is claimed behind the READs",
        mutant: Mutant::ClaimBehindRead,
        protocol: snapshots::OCC_ASKING,
        program: snapshots::snapshot_whole,
    },
    Litmus {
        name: "clocks-largest",
        source: "landing clocks, rule 3: a snapshot at its largest claim",
        mutant: Mutant::LargestClaim,
        protocol: snapshots::OCC_ASKING,
        program: snapshots::snapshot_whole_ahead,
    },
    Litmus {
        name: "clocks-later",
        source: "landing clocks, rule 11: a record that is later than the snapshot",
        mutant: Mutant::TakeLater,
        protocol: snapshots::OCC_ASKING,
        program: snapshots::snapshot_whole,
    },
    Litmus {
        name: "clocks-locked",
        source: "landing clocks, rule 21: a snapshot reads what is locked",
        mutant: Mutant::AcceptLocked,
        protocol: snapshots::OCC_ASKING,
        program: snapshots::snapshot_whole_checksum,
    },
    Litmus {
        name: "clocks-draw",
        source: "landing clocks, rule 19: a draw before the locks",
        mutant: Mutant::DrawBeforeLocks,
        protocol: snapshots::OCC_ASKING,
        program: snapshots::snapshot_whole,
    },
    Litmus {
        name: "clocks-raised",
        source: "landing clocks, rule 20: a validation before the clock has the time",
        mutant: Mutant::EarlyUnraised,
        protocol: snapshots::OCC_ASKING,
        program: snapshots::snapshot_guard_ahead,
    },
    Litmus {
        name: "clocks-order",
        source: "landing clocks, rule 9: a time below that of what the commit replaces",
        mutant: Mutant::TimeOfDraws,
        protocol: snapshots::OCC_ASKING,
        program: snapshots::snapshot_order,
    },
    Litmus {
        name: "clocks-installed",
        source: "landing clocks, rule 17: recovery installs what its client has unlocked",
        mutant: Mutant::InstallUnlocked,
        protocol: Protocol::DRTM_R_CLOCKS,
        program: recovery::two_writers,
    },
    Litmus {
        name: "dst-whole",
        source: "DST, thesis 5.2.2: a snapshot looks at the lock before it claims",
        mutant: Mutant::LookBeforeClaim,
        protocol: Protocol::DST,
        program: stamps::whole,
    },
    Litmus {
        name: "dst-whole-behind-claim",
        source: "DST, thesis 5.3: the ts of what is written is taken in execution, and not under the lock",
        mutant: Mutant::StampBeforeLock,
        protocol: Protocol::DST,
        program: stamps::whole,
    },
    Litmus {
        name: "dst-whole-beside-claim",
        source: "DST, thesis figure 5-9: another snapshot's claim is taken for the order of a writer",
        mutant: Mutant::SkipWait,
        protocol: Protocol::DST,
        program: stamps::whole_beside_a_claim,
    },
    Litmus {
        name: "dst-whole-twice",
        source: "DST, thesis figure 5-7: a commit lowers the ts of a record below a claim",
        mutant: Mutant::CommitLowersStamp,
        protocol: Protocol::DST,
        program: stamps::whole_twice,
    },
    Litmus {
        name: "dst-stamp",
        source: "DST, thesis 5.3.2: what is only read is validated, and its ts is raised later",
        mutant: Mutant::StampApart,
        protocol: Protocol::DST,
        program: stamps::stamped,
    },
    Litmus {
        name: "dst-2pl-whole",
        source: "DST, thesis 5.2.2, on two-phase locking: a snapshot looks at the lock before it claims",
        mutant: Mutant::LookBeforeClaim,
        protocol: Protocol::DST_2PL,
        program: stamps::whole,
    },
    Litmus {
        name: "dst-2pl-whole-behind-claim",
        source: "DST, thesis figure 5-7: the ts of a record is not taken under its lock",
        mutant: Mutant::StampBeforeLock,
        protocol: Protocol::DST_2PL,
        program: stamps::whole,
    },
    Litmus {
        name: "dst-2pl-whole-beside-claim",
        source: "DST, thesis figure 5-9, on two-phase locking: a claim is taken for the order of a writer",
        mutant: Mutant::SkipWait,
        protocol: Protocol::DST_2PL,
        program: stamps::whole_beside_a_claim,
    },
    Litmus {
        name: "dst-2pl-release",
        source: "DST, thesis figure 5-7: the lock of what was only read is released, and its ts is not raised",
        mutant: Mutant::ReleaseUnstamped,
        protocol: Protocol::DST_2PL,
        program: stamps::stamped,
    },
    Litmus {
        name: "dst-2pl-absent-read",
        source: "a phantom of one key: there is no record to lock",
        mutant: Mutant::AbsentWithoutValidation,
        protocol: Protocol::DST_2PL,
        program: programs::absent_read_each,
    },
    Litmus {
        name: "gts-whole",
        source: "GTS, thesis figure 5-2: a time counts as stable before its commit is installed",
        mutant: Mutant::StableIsLatest,
        protocol: Protocol::GTS,
        program: stamps::whole,
    },
    Litmus {
        name: "gts-shared",
        source: "GTS with batches, thesis 5.5: a coroutine takes the time of a request that was sent before it asked",
        mutant: Mutant::TakeAnswerUnderWay,
        protocol: Protocol::GTS,
        program: stamps::whole_beside_a_coroutine,
    },
    Litmus {
        name: "vts-behind",
        source: "VTS, thesis figure 5-4: a commit does not wait for those whose versions it has read",
        mutant: Mutant::DependOnNothing,
        protocol: Protocol::VTS,
        program: stamps::behind,
    },
    Litmus {
        name: "vts-reader",
        source: "VTS, thesis figure 5-4: a commit names the versions that it has met, and not their readers",
        mutant: Mutant::OmitReaders,
        protocol: Protocol::VTS,
        program: stamps::behind_a_reader,
    },
    Litmus {
        name: "rtx-write-skew",
        source: "L3: a validation that ignores locks",
        mutant: Mutant::ReadBehindLock,
        protocol: Protocol::RTX,
        program: programs::write_skew,
    },
    Litmus {
        name: "rtx-free-suspect",
        source: "rTX rule 5: a suspect's lock is freed, and its log not read",
        mutant: Mutant::FreeSuspects,
        protocol: Protocol::RTX,
        program: repairs::two_beside_one,
    },
    Litmus {
        name: "rtx-free-lone-suspect",
        source: "rTX rule 16: a suspect's lock is freed, and its place not changed",
        mutant: Mutant::FreeSuspects,
        protocol: Protocol::RTX,
        program: repairs::one_beside_two,
    },
    Litmus {
        name: "rtx-install-untested",
        source: "rTX rule 20, section 4.5: the owner does not look whether its swap has succeeded",
        mutant: Mutant::InstallUntested,
        protocol: Protocol::RTX,
        program: repairs::one_beside_one,
    },
    Litmus {
        name: "rtx-late-untested",
        source: "rTX rule 20, section 4.5: the same, with a lock that was taken by the commit",
        mutant: Mutant::InstallUntested,
        protocol: Protocol::RTX,
        program: repairs::late_beside_one,
    },
    Litmus {
        name: "rtx-keep-early-lock",
        source: "rTX rule 25: a logged holder keeps the lock word that names no log",
        mutant: Mutant::KeepEarlyLock,
        protocol: Protocol::RTX,
        program: repairs::early_beside_one,
    },
    Litmus {
        name: "rtx-locks-before-log",
        source: "rTX rule 6: locks that name a log which is not there",
        mutant: Mutant::LocksBeforeLog,
        protocol: Protocol::RTX,
        program: repairs::dead_beside_one,
    },
    Litmus {
        name: "rtx-end-before-unlock",
        source: "rTX rule 8: the log ends before the locks are free",
        mutant: Mutant::EndBeforeUnlock,
        protocol: Protocol::RTX,
        program: repairs::dead_beside_one,
    },
    Litmus {
        name: "rtx-unlock-before-install",
        source: "rTX rule 7: locks are freed before places are swapped",
        mutant: Mutant::UnlockBeforeInstall,
        protocol: Protocol::RTX,
        program: repairs::read_what_was_reported,
    },
    Litmus {
        name: "rtx-read-behind-lock",
        source: "rTX rule 14: a reader ignores locks",
        mutant: Mutant::ReadBehindLock,
        protocol: Protocol::RTX,
        program: repairs::read_what_was_reported,
    },
    Litmus {
        name: "rtx-dead-inserter",
        source: "an insert whose bucket was repaired, and whose object was not",
        mutant: Mutant::PassLockedVacant,
        protocol: Protocol::RTX,
        program: repairs::dead_inserter,
    },
    Litmus {
        name: "rtx-absent-read",
        source: "L10: absence is not validated",
        mutant: Mutant::AbsentWithoutValidation,
        protocol: Protocol::RTX,
        program: programs::absent_read,
    },
    Litmus {
        name: "race-unchecked",
        source: "RACE rule 3: no look at the lock behind the swap of a slot",
        mutant: Mutant::RaceUnchecked,
        protocol: Protocol::RTX,
        program: races::update,
    },
    Litmus {
        name: "race-copy-unlocked",
        source: "RACE rule 1, rTX section 5: a rehash copies before it has the lock",
        mutant: Mutant::RaceCopyUnlocked,
        protocol: Protocol::RTX,
        program: races::update,
    },
    Litmus {
        name: "race-unchecked-no-marks",
        source: "RACE rule 3, in a table without marks",
        mutant: Mutant::RaceUnchecked,
        protocol: Protocol::RTX,
        program: races::update_without_marks,
    },
    Litmus {
        name: "race-free-suspect",
        source: "RACE rule 7: a suspect's lock is freed, and its node not changed",
        mutant: Mutant::FreeSuspects,
        protocol: Protocol::RTX,
        program: races::suspicious_update,
    },
    Litmus {
        name: "race-pair-once",
        source: "RACE rule 6: a lock and an array of different times",
        mutant: Mutant::RacePairOnce,
        protocol: Protocol::RTX,
        program: races::first_update,
    },
    Litmus {
        name: "race-redo",
        source: "RACE rule 4: what is absent from the live array is done again",
        mutant: Mutant::RaceRedoAbsent,
        protocol: Protocol::RTX,
        program: races::replaced_update,
    },
    Litmus {
        name: "race-redo-no-marks",
        source: "RACE rule 4, in a table without marks",
        mutant: Mutant::RaceRedoAbsent,
        protocol: Protocol::RTX,
        program: races::replaced_update_without_marks,
    },
    Litmus {
        name: "race-read-behind-lock",
        source: "RACE rule 5: a reader does not look at the lock",
        mutant: Mutant::RaceReadBehindLock,
        protocol: Protocol::RTX,
        program: races::read_what_was_reported,
    },
    Litmus {
        name: "race-two-inserts",
        source: "RACE hashing: two inserts of a key take different slots",
        mutant: Mutant::RaceInsertAtOnce,
        protocol: Protocol::RTX,
        program: races::two_inserts,
    },
    Litmus {
        name: "race-dead-splitter",
        source: "RACE rule 7, and a client that is kept from its key",
        mutant: Mutant::FreeSuspects,
        protocol: Protocol::RTX,
        program: races::dead_splitter,
    },
];

/// Explores a litmus test: its program as it is, and with the error put back until it is caught.
#[must_use]
pub fn run(litmus: &Litmus, bound: Bound) -> Comparison {
    // The library logs the consequences of the error that was put back, as expected.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || Comparison {
        litmus: *litmus,
        ours: side(litmus, bound, None),
        mutated: side(litmus, bound, Some(litmus.mutant)),
    })
}

fn side(litmus: &Litmus, bound: Bound, put_back: Option<Mutant>) -> Side {
    /// A guard that restores the correct protocol when it is dropped, even if a program panics.
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            mutant::set(None);
        }
    }
    let began = Instant::now();
    mutant::set(put_back);
    let _restore = Restore;
    let Exploration { counts, bounded, violation } = (litmus.program)(litmus.protocol, bound.runs);
    let violation = violation.map(|(why, steps)| (why, steps.iter().map(ToString::to_string).collect()));
    Side { counts, bounded, violation, took: began.elapsed() }
}

impl Comparison {
    /// Whether Remora's protocol is correct and the mutant is caught.
    #[must_use]
    pub fn is_as_it_should_be(&self) -> bool {
        self.ours.violation.is_none() && self.mutated.violation.is_some()
    }

    /// Makes a line of the report.
    #[must_use]
    pub fn entry(&self) -> Entry {
        let Comparison { litmus, ours, mutated } = self;
        let why = |(why, steps): &(String, Vec<String>)| std::iter::once(why).chain(steps).cloned().collect();
        Entry {
            name: litmus.name,
            source: litmus.source,
            interleavings: ours.counts.interleavings,
            correct: ours.violation.is_none(),
            mutant_caught: mutated.violation.is_some(),
            mutant: format!("{:?}", litmus.mutant),
            mutant_interleavings: mutated.counts.interleavings,
            bounded: ours.bounded,
            states: ours.counts.states,
            steps: ours.counts.steps,
            verbs: ours.counts.verbs,
            lines: ours.counts.lines,
            crashes: ours.counts.crashes,
            violation: ours.violation.as_ref().map(why),
        }
    }
}
