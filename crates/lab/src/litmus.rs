//! Litmus tests: published errors, each with a small program that shows it, explored in every order of its steps.
//!
//! A litmus test is a program of one to three clients, an invariant, and a [`Mutant`]: the error put back. Ours is correct
//! if no order breaks the invariant; the test is worth something if an order does with the mutant. See
//! [`explore`](remora::floors::fabric::seeded::explore) for what a step is, and what is left out and why.

mod programs;
mod stage;

use std::time::{Duration, Instant};

use remora::Protocol;
use remora::floors::fabric::seeded::explore::{Counts, Exploration};
use remora::floors::txn::mutant::{self, Mutant};
use serde::Serialize;

/// A litmus test.
#[derive(Clone, Copy, Debug)]
pub struct Litmus {
    /// Its name.
    pub name: &'static str,
    /// Where the error was published, or lurks.
    pub source: &'static str,
    /// The error, put back.
    pub mutant: Mutant,
    /// Which protocol plays.
    pub protocol: Protocol,
    program: fn(Protocol, u64) -> Exploration<String>,
}

/// When an exploration gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// Runs of the program.
    pub runs: u64,
}

impl Default for Bound {
    fn default() -> Bound {
        Bound { runs: 1_000_000 }
    }
}

/// What was found with a program as it is, or with its mutant.
#[derive(Clone, Debug)]
pub struct Side {
    /// What was explored.
    pub counts: Counts,
    /// Whether the bound was hit.
    pub bounded: bool,
    /// What is wrong, and the steps that lead there.
    pub violation: Option<(String, Vec<String>)>,
    /// How long it took.
    pub took: Duration,
}

/// What [`run`] found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Of which test.
    pub litmus: Litmus,
    /// The program as it is.
    pub ours: Side,
    /// With the error put back, until it was caught.
    pub mutated: Side,
}

/// A line of the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Entry {
    /// The test's name.
    pub name: &'static str,
    /// Where the error was published.
    pub source: &'static str,
    /// Orders explored of the program as it is; no two differ in commuting steps only.
    pub interleavings: u64,
    /// Whether none of them breaks the invariant.
    pub correct: bool,
    /// Whether some order breaks it when the error is put back.
    pub mutant_caught: bool,
    /// The error put back.
    pub mutant: String,
    /// Orders explored until it was caught.
    pub mutant_interleavings: u64,
    /// Whether the bound was hit, so that not every order was explored.
    pub bounded: bool,
    /// Different states with a choice.
    pub states: u64,
    /// Steps taken.
    pub steps: u64,
    /// Verbs of those steps.
    pub verbs: u64,
    /// Lines read or written by them.
    pub lines: u64,
    /// Crashes and drops among them.
    pub crashes: u64,
    /// What is not as it should be, and the steps that lead there.
    pub violation: Option<Vec<String>>,
}

/// All litmus tests.
pub const ALL: &[Litmus] = &[
    Litmus {
        name: "write-skew",
        source: "L3 covert lock: FORD a7d942e dtx_issue.cc:259, dtx_check.cc:134; Motor 94d9051 validate.cc:37",
        mutant: Mutant::ValidateVersionOnly,
        protocol: Protocol::DrtmR,
        program: programs::write_skew,
    },
    Litmus {
        name: "write-skew-relaxed-locks",
        source: "L4 relaxed lock: FORD a7d942e dtx_issue.cc:240",
        mutant: Mutant::ValidateWithLocks,
        protocol: Protocol::DrtmR,
        program: programs::write_skew,
    },
    Litmus {
        name: "lost-update",
        source: "a lock without validation of what was read before it",
        mutant: Mutant::LockWithoutValidation,
        protocol: Protocol::DrtmR,
        program: programs::lost_update,
    },
    Litmus {
        name: "torn-read-lines",
        source: "L8: FORD a7d942e and HDTX 0461ac9, dtx_exe_commit.cc:53: no line versions",
        mutant: Mutant::AcceptTorn,
        protocol: Protocol::DrtmR,
        program: programs::torn_lines,
    },
    Litmus {
        name: "torn-read-checksum",
        source: "L8: FORD a7d942e and HDTX 0461ac9, dtx_exe_commit.cc:53: no checksum",
        mutant: Mutant::AcceptTorn,
        protocol: Protocol::DrtmR,
        program: programs::torn_checksum,
    },
    Litmus {
        name: "complicit-abort",
        source: "L1, L12: FORD a7d942e dtx_issue.cc:116, dtx.cc:217; Motor 94d9051 read_cvt.cc:104",
        mutant: Mutant::ReleaseAll,
        protocol: Protocol::DrtmR,
        program: programs::complicit_abort,
    },
    Litmus {
        name: "unlock-before-data",
        source: "commit order: the unlock in front of the write it protects",
        mutant: Mutant::UnlockFirst,
        protocol: Protocol::DrtmR,
        program: programs::lost_update,
    },
    Litmus {
        name: "commit-before-log",
        source: "L14: Motor 94d9051 framework.cc Commit: true without replica ACKs",
        mutant: Mutant::CommitBeforeLog,
        protocol: Protocol::DrtmR,
        program: programs::commit_before_log,
    },
    Litmus {
        name: "one-copy-without-log",
        source: "a crash in the middle of installing what no log has",
        mutant: Mutant::NoLogForOneCopy,
        protocol: Protocol::DrtmR,
        program: programs::one_copy_without_log,
    },
    Litmus {
        name: "ring-overwrite",
        source: "L11: FORD a7d942e allocator/log_allocator.h: wraps without a look",
        mutant: Mutant::OverwriteLog,
        protocol: Protocol::DrtmR,
        program: programs::ring_overwrite,
    },
    Litmus {
        name: "backup-order",
        source: "rings of different clients applied in the order found",
        mutant: Mutant::ApplyOlderVersions,
        protocol: Protocol::DrtmR,
        program: programs::backup_order,
    },
    Litmus {
        name: "insert-insert",
        source: "L10: FORD a7d942e dtx_check_rw.cc:193: a locked slot is skipped",
        mutant: Mutant::InsertBesideLocked,
        protocol: Protocol::DrtmR,
        program: programs::insert_insert,
    },
    Litmus {
        name: "absent-read",
        source: "a phantom of one key: that it was absent is not validated",
        mutant: Mutant::AbsentWithoutValidation,
        protocol: Protocol::DrtmR,
        program: programs::absent_read,
    },
    Litmus {
        name: "stale-read",
        source: "one-record read of a locked record whose commit was already reported",
        mutant: Mutant::AcceptLocked,
        protocol: Protocol::DrtmR,
        program: programs::stale_read,
    },
    Litmus {
        name: "reported-before",
        source: "FORD's rule that read-only validation ignores locks, where redo logs install late",
        mutant: Mutant::ValidateReadOnlyVersionOnly,
        protocol: Protocol::DrtmR,
        program: programs::reported_before,
    },
    Litmus {
        name: "mixed-atomics",
        source: "CPU and NIC change one lock word, without atomicity between them",
        mutant: Mutant::CpuLocksForNics,
        protocol: Protocol::DrtmR,
        program: programs::mixed_atomics,
    },
    Litmus {
        name: "shared-ids",
        source: "L9: FORD a7d942e worker.cc:144; Motor 94d9051 gen_output.cc:20: ids of one process",
        mutant: Mutant::LocalIds,
        protocol: Protocol::DrtmR,
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
];

/// Explores a litmus test: its program as it is, and with the error put back until it is caught.
#[must_use]
pub fn run(litmus: &Litmus, bound: Bound) -> Found {
    // What the errors make the library log is no news.
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::default(), || Found {
        litmus: *litmus,
        ours: side(litmus, bound, None),
        mutated: side(litmus, bound, Some(litmus.mutant)),
    })
}

fn side(litmus: &Litmus, bound: Bound, put_back: Option<Mutant>) -> Side {
    /// Also if a program panics.
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

impl Found {
    /// Whether ours is correct and the mutant caught.
    #[must_use]
    pub fn is_as_it_should_be(&self) -> bool {
        self.ours.violation.is_none() && self.mutated.violation.is_some()
    }

    /// For the report.
    #[must_use]
    pub fn entry(&self) -> Entry {
        let Found { litmus, ours, mutated } = self;
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
