//! Published errors, put back one at a time. A test must catch each of them, or the tests prove
//! nothing.
//!
//! A mutant is on for the calling thread only. This is compiled with the feature `mutants`, which
//! nothing but tests turns on.

use std::cell::Cell;

use crate::protocol::Protocol;

use crate::protocol::spec::Validation;

/// An error that a published system or text has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Validation looks at versions only: two transactions that each lock what the other read both
    /// commit (write skew). Litmus L3; FORD's and Motor's public code.
    ValidateVersionOnly,
    /// Read-only records are validated in the same round as the locks are taken. Litmus L4.
    ValidateWithLocks,
    /// An abort releases every lock of the write set by a WRITE of 0, taken or not. Litmus L1
    /// ("complicit abort").
    ReleaseAll,
    /// Records are handed to the application without a look at whether they are torn. Litmus L8.
    AcceptTorn,
    /// A read that is not validated accepts a locked record: it misses a committed value whose
    /// write-back is in flight.
    AcceptLocked,
    /// Transactions that only read ignore locks in validation: see `protocol/occ/validate.rs`,
    /// `validate`.
    ValidateReadOnlyVersionOnly,
    /// The lock is freed before the data is written.
    UnlockFirst,
    /// Commit is reported, and installed, before the log is acknowledged. Litmus L14.
    CommitBeforeLog,
    /// Transaction ids are unique within a worker only. Litmus L9.
    LocalIds,
    /// The log ring wraps without a look at what has been applied. Litmus L11.
    OverwriteLog,
    /// Backups apply entries in the order they are found, whatever their versions.
    ApplyOlderVersions,
    /// The write set is not validated against what was read: a lost update.
    LockWithoutValidation,
    /// That a key was absent is not validated: its inserter and its reader both commit (a phantom
    /// of one key).
    AbsentWithoutValidation,
    /// Backups log and the primary does not, as in the texts: a client takes an answer with it that
    /// backups which die with it had logged. With one copy, nothing is logged.
    LogAtBackupsOnly,
    /// A slot that an insert under way has locked is passed over, so that a second insert of the
    /// key takes the next one. Litmus L10; in `remora_index::host`.
    InsertBesideLocked,
    /// A node's CPU locks and unlocks words that NICs CAS, which do not exclude it.
    CpuLocksForNics,
    /// Ordered tables: the leaf that is remembered, or that a memory node's CPU has named, is taken
    /// for the key's without a look at its fences. Then a key which a split has moved seems not to
    /// be there. In `remora`'s `ordered` folder.
    LeafByHint,
    /// FORD: a transaction that writes validates what it only read at a backup, where no lock is.
    /// Rule R3.
    ValidateAtBackup,
    /// FORD: what a transaction only reads is not validated if it writes nothing. Rule R4.
    ReadOnlyWithoutValidation,
    /// FORD: an insert does not change the version of its chain's first header.
    InsertLeavesHeader,
    /// FORD's lean release makes backups visible by WRITE. Rule R11b.
    ShowByWrite,
    /// Localized validation: versions are published behind the validation of what was only read.
    /// Trap T2.
    PublishBehindValidation,
    /// Localized validation: versions are published behind the commit round. Trap T2.
    PublishBehindCommit,
    /// Localized validation: the version cache forgets what was published of a record that it
    /// drops. Trap T19.
    ForgetEvicted,
    /// Localized validation: a record of which something else was published than was read is
    /// refused without a look at its primary. Trap T6.
    RefuseOtherVersions,
    /// FORD: a lock whose answer was never heard, because the future of its fetch was dropped, is
    /// taken for held by the fetch that follows. (Not of a text: an error that this code once had.)
    BelieveUnheard,
    /// Two-phase locking: a record is locked exclusively although other transactions share it.
    WriteOverShared,
    /// Two-phase locking: a shared lock is released as soon as its record has been read, before the
    /// transaction has all its locks.
    UnlockReadsEarly,
    // From here on: of recovery, or nothing without it, or too rare for a campaign.
    /// A slot that was prepared for an insert is taken back by the transaction that had it
    /// prepared. A transaction that has the slot locked at that time, for the record that lay there
    /// before, does not take it back.
    LeavePrepared,
    /// The place in the index that a delete has found is kept although the key was gone when its
    /// record was read: an insert of the same transaction then writes a record that no index names.
    KeepPlace,
    /// A transaction that meets a lock frees it, also the lock of a client that is only suspected,
    /// or not even that.
    FreeForeignLocks,
    /// FORD: data is written without the mark that it is not to be read yet. Rule R7.
    VisibleAtOnce,
    /// FORD: the WRITE of a record covers its lock word, on every replica. Rule R10.
    WriteCoversLock,
    /// FORD: undo entries stay when their transactions end, and recovery does not see that what
    /// they name has changed since. Rule R12.
    KeepEntries,
    /// FORD: a release frees a node's undo entry before it makes its records visible. Rule R13.
    FreeBeforeVisible,
    /// FORD: on each connection the undo entry is written behind the data. Rule R14.
    DataBeforeLog,
    /// FORD: the undo entry is written at a primary's node only. Rule R14.
    LogAtPrimary,
    /// FORD: each node's undo entry names the records only that are there. Rule R15.
    LogOwnRecords,
    /// FORD: what was read, and is not written, is validated after the commit round. Rule R18.
    ValidateAfterCommit,
    /// FORD: the undo entry does not name the records that are inserted. Litmus L2.
    InsertsNotLogged,
    /// FORD: undo entries are written before the locks are taken, and stay if the transaction does
    /// not get the locks. Litmus L5.
    LogWithoutLocks,
    /// Recovery revokes no client. Rule R19.
    RevokeNobody,
    /// Recovery revokes the client that had the transactions, and none of its former recoverers.
    /// Rule R20.
    SpareRecoverers,
    /// Recovery frees locks before it repairs the records. Rule R22.
    UnlockBeforeRepair,
    /// Recovery does not look for locks that no log names. Rule R26.
    NoSweep,
    /// FORD: recovery undoes every transaction that has an undo entry. Rule R21.
    AlwaysUndo,
    /// FORD: recovery rolls forward if the primaries are complete. Rule R21.
    ForwardIfPrimary,
    /// FORD: recovery rolls forward if any replica is complete. Rule R21.
    ForwardIfAny,
    /// FORD: recovery takes a record for complete whose header is. Rule R21.
    ForwardByHeader,
    /// FORD: a rollback installs the old version again. Rule R9.
    RollbackOldVersion,
    /// FORD: recovery believes an undo entry without a look at its checksum. Rule R16.
    TrustTornEntry,
    /// FORD: recovery frees undo entries after the locks. Rule R23.
    FreeAfterUnlock,
    /// FORD: recovery frees undo entries before it repairs. Rule R24.
    FreeBeforeRepair,
    /// FORD: recovery repairs replicas without an undo entry at their node. Rule R25.
    RepairWithoutLog,
    /// FORD, lean: recovery makes replicas visible by WRITE, whatever they hold by then. Rule R11c.
    RecoveredByWrite,
    /// FORD, lean: recovery looks once at what may be overwritten meanwhile. Rule R12b.
    LookOnce,
    /// Redo: recovery rolls back transactions that have an entry.
    UndoLogged,
    /// Redo: recovery unlinks the record of a delete whatever its pair links by then.
    UnlinkTwice,
    /// Redo: recovery installs transactions without completing their entries at the other
    /// participants.
    InstallIncomplete,
    /// Fail-over: the configuration to come is published before the survivors have applied their
    /// rings. Rule 5 of [`fail_over`](crate::recovery::fail_over).
    PublishBeforeApply,
    /// FORD: a lock that was taken over is freed while its former holder's release is on its way.
    /// (Not of a text.)
    HeirFreesEarly,
    /// FORD: a record is written under a lock that was taken over while its former holder's release
    /// is on its way. (Not of a text.)
    HeirWritesEarly,
    /// A table that grows is filled, and ends, before every client has heard of it. In `remora`'s
    /// `cluster/growth.rs`. (Not of a text.)
    GrowUnheard,
    /// A table that grows counts as empty although a record in it is locked, which a transaction
    /// may be inserting. In `remora`'s `cluster/growth.rs`. (Not of a text.)
    GrowPastLocks,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 64] = [
        Mutant::ValidateVersionOnly,
        Mutant::ValidateWithLocks,
        Mutant::ReleaseAll,
        Mutant::AcceptTorn,
        Mutant::AcceptLocked,
        Mutant::ValidateReadOnlyVersionOnly,
        Mutant::UnlockFirst,
        Mutant::CommitBeforeLog,
        Mutant::LocalIds,
        Mutant::OverwriteLog,
        Mutant::ApplyOlderVersions,
        Mutant::LockWithoutValidation,
        Mutant::AbsentWithoutValidation,
        Mutant::LogAtBackupsOnly,
        Mutant::InsertBesideLocked,
        Mutant::CpuLocksForNics,
        Mutant::LeafByHint,
        Mutant::ValidateAtBackup,
        Mutant::ReadOnlyWithoutValidation,
        Mutant::InsertLeavesHeader,
        Mutant::ShowByWrite,
        Mutant::PublishBehindValidation,
        Mutant::PublishBehindCommit,
        Mutant::ForgetEvicted,
        Mutant::RefuseOtherVersions,
        Mutant::BelieveUnheard,
        Mutant::WriteOverShared,
        Mutant::UnlockReadsEarly,
        Mutant::LeavePrepared,
        Mutant::KeepPlace,
        Mutant::FreeForeignLocks,
        Mutant::VisibleAtOnce,
        Mutant::WriteCoversLock,
        Mutant::KeepEntries,
        Mutant::FreeBeforeVisible,
        Mutant::DataBeforeLog,
        Mutant::LogAtPrimary,
        Mutant::LogOwnRecords,
        Mutant::ValidateAfterCommit,
        Mutant::InsertsNotLogged,
        Mutant::LogWithoutLocks,
        Mutant::RevokeNobody,
        Mutant::SpareRecoverers,
        Mutant::UnlockBeforeRepair,
        Mutant::NoSweep,
        Mutant::AlwaysUndo,
        Mutant::ForwardIfPrimary,
        Mutant::ForwardIfAny,
        Mutant::ForwardByHeader,
        Mutant::RollbackOldVersion,
        Mutant::TrustTornEntry,
        Mutant::FreeAfterUnlock,
        Mutant::FreeBeforeRepair,
        Mutant::RepairWithoutLog,
        Mutant::RecoveredByWrite,
        Mutant::LookOnce,
        Mutant::UndoLogged,
        Mutant::UnlinkTwice,
        Mutant::InstallIncomplete,
        Mutant::PublishBeforeApply,
        Mutant::HeirFreesEarly,
        Mutant::HeirWritesEarly,
        Mutant::GrowUnheard,
        Mutant::GrowPastLocks,
    ];
}

impl Mutant {
    /// Whether a protocol has the place where the error would be, and shows the error where no
    /// client is recovered.
    #[must_use]
    pub fn concerns(self, protocol: Protocol) -> bool {
        use Mutant::{
            AcceptLocked, ApplyOlderVersions, CpuLocksForNics, InsertLeavesHeader, LeavePrepared, LogAtBackupsOnly,
            OverwriteLog, ReadOnlyWithoutValidation, ValidateAtBackup,
        };
        match self {
            Mutant::ShowByWrite => protocol.needs_atomic_writes(),
            Mutant::PublishBehindValidation
            | Mutant::PublishBehindCommit
            | Mutant::ForgetEvicted
            | Mutant::RefuseOtherVersions => protocol.validation() != Validation::Remote,
            _ if self as usize >= LeavePrepared as usize => false,
            Mutant::WriteOverShared | Mutant::UnlockReadsEarly => protocol.spec().locks_reads,
            // It validates absent keys alone, and reads nothing that another transaction has
            // locked.
            Mutant::ValidateVersionOnly
            | Mutant::ValidateWithLocks
            | Mutant::ValidateReadOnlyVersionOnly
            | Mutant::LockWithoutValidation
            | AcceptLocked
            | CpuLocksForNics
            | Mutant::AcceptTorn
                if protocol.spec().locks_reads =>
            {
                false
            }
            ValidateAtBackup | ReadOnlyWithoutValidation | InsertLeavesHeader | Mutant::BelieveUnheard => {
                protocol.discipline().is_in_place()
            }
            AcceptLocked | OverwriteLog | ApplyOlderVersions | LogAtBackupsOnly | CpuLocksForNics => {
                !protocol.discipline().is_in_place()
            }
            _ => true,
        }
    }
}

thread_local! {
    static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// Turns an error on for this thread, or all off.
pub fn set(mutant: Option<Mutant>) {
    ON.set(mutant);
    remora_index::mutant::insert_beside_locked(mutant == Some(Mutant::InsertBesideLocked));
}

/// Whether an error is on for this thread.
pub fn is_on(mutant: Mutant) -> bool {
    ON.get() == Some(mutant)
}

/// Whether any error is on for this thread.
pub fn is_any_on() -> bool {
    ON.get().is_some()
}
