//! Mutants: errors of published systems and texts, which a test puts back into the code one at a
//! time. A test must catch each of them, or the tests prove nothing.
//!
//! A mutant is on for the calling thread only. The module is compiled with the feature `mutants`,
//! which only tests turn on.

use std::cell::Cell;

use crate::protocol::Protocol;

use crate::protocol::spec::Validation;

/// An error that a published system or text has, or that this code once had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// Validation looks at versions only, and not at locks. Then two transactions that each lock
    /// what the other read both commit (write skew). Litmus L3; FORD's and Motor's public code.
    ValidateVersionOnly,
    /// Read-only records are validated in the same round as the locks are taken. Litmus L4.
    ValidateWithLocks,
    /// An abort releases every lock of the write set by a WRITE of 0, taken or not. Litmus L1
    /// ("complicit abort").
    ReleaseAll,
    /// Records are handed to the application without a check whether they are torn. Litmus L8.
    AcceptTorn,
    /// A read that is not validated later accepts a locked record. So it misses a committed value
    /// that is still on its way to the record.
    AcceptLocked,
    /// Transactions that only read ignore locks in validation: see `protocol/occ/validate.rs`,
    /// `validate`.
    ValidateReadOnlyVersionOnly,
    /// A commit frees the lock before it writes the data.
    UnlockFirst,
    /// A commit is reported, and installed, before the log is acknowledged. Litmus L14.
    CommitBeforeLog,
    /// Transaction ids are unique within a worker only. Litmus L9.
    LocalIds,
    /// A client wraps around in its log ring without a check of how far the ring has been applied.
    /// Litmus L11.
    OverwriteLog,
    /// Backups apply entries in the order they are found, whatever their versions.
    ApplyOlderVersions,
    /// The write set is not validated against what was read, which loses an update.
    LockWithoutValidation,
    /// The absence of a key is not validated. Then the transaction that inserts the key and the one
    /// that found it absent both commit (a phantom of one key).
    AbsentWithoutValidation,
    /// Backups log and the primary does not, as in the texts. A transaction that was reported as
    /// committed is lost if its client dies together with the backups that had logged it. With one
    /// copy, nothing is logged.
    LogAtBackupsOnly,
    /// A search passes over a slot that an insert under way has locked, so that a second insert of
    /// the same key takes the next slot. Litmus L10; in `remora_index::host`.
    InsertBesideLocked,
    /// A node's CPU locks and unlocks words that NICs change by CAS, although a NIC's CAS is not
    /// atomic against the CPU's.
    CpuLocksForNics,
    /// Ordered tables: a transaction uses the leaf that the client remembers, or that a memory
    /// node's CPU has named, without a check of its fences. Then a key which a split has moved
    /// seems to be absent. In `remora`'s `ordered` folder.
    LeafByHint,
    /// A cell of a record is used without a check that it is of the state of the record's head.
    /// Learned caches, trap 2.
    CellOfAnyState,
    /// FORD: a transaction that writes validates what it only read at a backup, which has no locks.
    /// Rule R3.
    ValidateAtBackup,
    /// FORD: a transaction that writes nothing does not validate its reads. Rule R4.
    ReadOnlyWithoutValidation,
    /// FORD: an insert does not change the version of its chain's first header.
    InsertLeavesHeader,
    /// FORD: the lean release makes backups visible by WRITE instead of by CAS. Rule R11b.
    ShowByWrite,
    /// Localized validation: a transaction publishes its versions after it has validated what it
    /// only read. Trap T2.
    PublishBehindValidation,
    /// Localized validation: a transaction publishes its versions after its commit round. Trap T2.
    PublishBehindCommit,
    /// Localized validation: the version cache forgets what was published of a record that it
    /// drops. Trap T19.
    ForgetEvicted,
    /// Localized validation: a transaction aborts if the published version of a record is not the
    /// one that it has read, without a look at the record's primary. Trap T6.
    RefuseOtherVersions,
    /// FORD: after the future of a fetch was dropped, the next fetch takes its lock for held,
    /// although the answer to the CAS was never heard. This is not an error of a text, but one that
    /// this code once had.
    BelieveUnheard,
    /// Two-phase locking: a record is locked exclusively although other transactions share it.
    WriteOverShared,
    /// Two-phase locking: a shared lock is released as soon as its record has been read, before the
    /// transaction has all its locks.
    UnlockReadsEarly,
    // From here on, mutants are errors of recovery, or have no effect without recovery, or are too
    // rare for a campaign.
    /// Only the transaction that had a slot prepared for an insert takes the slot back. Another
    /// transaction that has the slot locked at that time, for the record that lay there before,
    /// does not take it back.
    LeavePrepared,
    /// A transaction keeps the place in the index that a delete has found, although the key was
    /// gone when its record was read. An insert of the same transaction then writes a record that
    /// no index names.
    KeepPlace,
    /// A transaction frees every lock that it meets, even if the lock's client is only suspected,
    /// or is alive.
    FreeForeignLocks,
    /// FORD: a commit writes data without the mark that makes it invisible to readers. Rule R7.
    VisibleAtOnce,
    /// FORD: the WRITE of a record covers its lock word, on every replica. Rule R10.
    WriteCoversLock,
    /// FORD: undo entries stay when their transactions end, and recovery does not check whether the
    /// records that they name have changed since. Rule R12.
    KeepEntries,
    /// FORD: a release frees a node's undo entry before it makes its records visible. Rule R13.
    FreeBeforeVisible,
    /// FORD: on each connection the undo entry is written after the data. Rule R14.
    DataBeforeLog,
    /// FORD: the undo entry is written at a primary's node only. Rule R14.
    LogAtPrimary,
    /// FORD: each node's undo entry names only the records that are at this node. Rule R15.
    LogOwnRecords,
    /// FORD: records that are only read are validated after the commit round. Rule R18.
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
    /// Recovery does not look for locks of the dead client that no log names. Rule R26.
    NoSweep,
    /// FORD: recovery undoes every transaction that has an undo entry. Rule R21.
    AlwaysUndo,
    /// FORD: recovery rolls forward if the primaries are complete. Rule R21.
    ForwardIfPrimary,
    /// FORD: recovery rolls forward if any replica is complete. Rule R21.
    ForwardIfAny,
    /// FORD: recovery takes a record for complete if its header is. Rule R21.
    ForwardByHeader,
    /// FORD: a rollback installs the old version again. Rule R9.
    RollbackOldVersion,
    /// FORD: recovery trusts an undo entry without a check of its checksum. Rule R16.
    TrustTornEntry,
    /// FORD: recovery frees undo entries after the locks. Rule R23.
    FreeAfterUnlock,
    /// FORD: recovery frees undo entries before it repairs. Rule R24.
    FreeBeforeRepair,
    /// FORD: recovery repairs replicas without an undo entry at their node. Rule R25.
    RepairWithoutLog,
    /// FORD, lean release: recovery makes replicas visible by WRITE, whatever they hold by then.
    /// Rule R11c.
    RecoveredByWrite,
    /// FORD, lean release: recovery looks only once at a record that another transaction may
    /// overwrite meanwhile. Rule R12b.
    LookOnce,
    /// Redo: recovery rolls back transactions that have a log entry.
    UndoLogged,
    /// Redo: recovery unlinks the record of a delete, whichever record the pair of the index links
    /// by then.
    UnlinkTwice,
    /// Redo: recovery installs transactions without completing their entries at the other
    /// participants.
    InstallIncomplete,
    /// Fail-over: the conductor publishes the next configuration before the survivors have applied
    /// their rings. Rule 5 of [`fail_over`](crate::recovery::fail_over).
    PublishBeforeApply,
    /// FORD: a transaction that took a lock over frees it while the former holder's release is on
    /// its way. This is not an error of a text.
    HeirFreesEarly,
    /// FORD: a transaction that took a lock over writes the record while the former holder's
    /// release is on its way. This is not an error of a text.
    HeirWritesEarly,
    /// Growth: rows are moved to the larger table, and the smaller one ends, before every client
    /// has heard of the growth. In `remora`'s `cluster/growth.rs`. This is not an error of a text.
    GrowUnheard,
    /// Growth: a table counts as empty although a record in it is locked, which a transaction may
    /// be inserting. In `remora`'s `cluster/growth.rs`. This is not an error of a text.
    GrowPastLocks,
    /// Growth: a client that does not know that others insert into the larger table inserts into
    /// the smaller one. A key can have a smaller version than before. This is not an error of a
    /// text.
    InsertUnheard,
    /// Combining: a member of a batch joins although another one has changed a record since. This
    /// is not an error of a text.
    JoinUnchecked,
    /// Combining: the commit of a batch installs one version for all its changes. This is not an
    /// error of a text.
    OneVersionForAll,
    /// Combining: a member of a batch reports its commit before the leader has committed. This is
    /// not an error of a text.
    MembersReportEarly,
    /// Combining: a member joins a batch that its leader has closed. This is not an error of a
    /// text.
    JoinClosed,
    /// Combining: a member changes a record that the leader has only read. This is not an error of
    /// a text.
    JoinUnlocked,
    /// Combining: a leader neither locks nor validates the records that members have brought along.
    /// This is not an error of a text.
    TrustBrought,
    /// Combining: a member that gives up leaves what it has changed for the members behind it. This
    /// is not an error of a text.
    BringUncommitted,
    /// Combining: if the future of a leader is dropped when its log is on its way, members take the
    /// leader for aborted. This is not an error of a text.
    DroppedLeaderAborts,
    /// Combining: if the future of a member is dropped when it has joined, observers hear that the
    /// member has aborted. This is not an error of a text.
    DroppedMemberAborts,
    /// Turns: a turn that is not given back never lapses. This is not an error of a text.
    TurnsNeverLapse,
    /// Turns: a streak of commits has no largest number. This is not an error of a text.
    EndlessStreaks,
    /// Snapshots: a node's clock is claimed behind the READs there. `docs/litmus.md`, "Snapshots",
    /// has the rules of this and the next ones. They are not errors of a text.
    ClaimBehindRead,
    /// Snapshots: the time of a snapshot is its largest claim, and not its smallest.
    LargestClaim,
    /// Snapshots: a reader of a past time takes records as they are, and not as they were.
    PastTakesCurrent,
    /// Snapshots: a fresh snapshot goes back in records that it has not read before.
    FormerOfUnseen,
    /// Snapshots: a reader of a past time takes what lies in an archive for the image that it looks
    /// for, without a look at its checksum.
    TrustArchive,
    /// Snapshots: a reader of a past time takes a key for absent if the key's slot of today had no
    /// record of it then.
    PastOwnSlot,
    /// Snapshots: a snapshot is opened although some node's clock has not reached its time.
    PastUnraised,
    /// Snapshots: a record is taken although it is later than the snapshot.
    TakeLater,
    /// Snapshots: a writer draws before its data, in the same round.
    DrawBeforeData,
    /// Snapshots: what a writer only reads is validated, and not locked.
    GuardByValidation,
    /// Snapshots: the clock of a node is not raised before what a writer has only read there is
    /// unlocked.
    GuardUnraised,
    /// Snapshots: the time of a commit is the largest draw, whatever it has read or replaces.
    TimeOfDraws,
    /// Snapshots: recovery rolls a commit forward at the smallest time that it may have, without
    /// draws.
    RecoverUndrawn,
    /// Snapshots: a claim of a later fetch may be below the time of the snapshot.
    KeepLowClaims,
    /// Snapshots: a transaction that writes nothing validates without raising any clock.
    ReaderUnraised,
    /// Snapshots: each node has a clock of its own, although snapshots are said to be strict,
    /// because rounds take effect in order.
    ClockOfEachNode,
    /// Snapshots: one clock counts for all nodes, although rounds do not take effect in order.
    OneClockUnordered,
    /// Snapshots: where one clock counts for all nodes, a snapshot reads at backups, which are not
    /// locked.
    OneClockAtBackups,
    /// Early times: what is written is locked at its primary only.
    EarlyAtPrimary,
    /// Early times: a commit draws before it has the locks.
    DrawBeforeLocks,
    /// Early times: what is only read is validated before its clock has the time.
    EarlyUnraised,
    /// Early times: a snapshot reads what such a commit has locked.
    ReadBehindEarlyLock,
    /// Early times: recovery sweeps the locks of primaries only.
    SweepPrimaries,
    /// Early times: a snapshot looks for the lock of an insert at its chain only.
    PassEarlySlots,
    /// OCC with clocks: a key that the index does not have counts as absent at any time.
    AbsentAtNoTime,
    /// Redo: recovery installs the records of logged transactions whatever their locks say.
    InstallUnlocked,
    /// DST: a snapshot does not wait for the holder of a lock if the record's ts is above its time.
    /// That may be the claim of another snapshot. As in the text. Notes on DST, trap 3.1.
    SkipWait,
    /// DST: a commit sets the ts of a record to its time, though a snapshot has claimed a later one
    /// and waits, without a claim of its own when it looks again. As in the text. Trap 3.2.
    CommitLowersStamp,
    /// DST: a transaction validates what it only read, and raises the ts of these records later. As
    /// in the text. Trap 3.3.
    StampApart,
    /// DST: the time of a commit follows from what execution has read, and not from the ts of a
    /// record that is locked. Trap 3.4.
    StampBeforeLock,
    /// DST: a snapshot looks at the lock of a record before it claims the record. Trap 3.5.
    LookBeforeClaim,
    /// GTS: the oracle counts a time as stable when it has given it.
    StableIsLatest,
    /// GTS: a coroutine takes the answer to a request that was under way when it asked, as its own.
    TakeAnswerUnderWay,
    /// VTS: a commit comes behind no other one.
    DependOnNothing,
    /// VTS: a commit comes behind the commits whose versions it has read or overwritten, and not
    /// behind the readers of what it has overwritten. As in the text, figure 5-4.
    OmitReaders,
    /// DST on two-phase locking: the release of a lock does not raise the ts of what was read under
    /// it.
    ReleaseUnstamped,
    /// rTX: a lock that was taken in execution keeps the word that names no log, although its
    /// holder logs. Rule 25.
    KeepEarlyLock,
    /// rTX: a reader ignores locks, and misses what their holders have decided. Rule 14.
    ReadBehindLock,
    /// rTX: a reader takes a vacant object that is locked for one that stays vacant.
    PassLockedVacant,
    /// rTX: locks are taken before the log is begun that they name. Rule 6.
    LocksBeforeLog,
    /// rTX: a suspect's lock is freed, whatever its attempt has decided. Rules 5 and 16.
    FreeSuspects,
    /// rTX: an attempt without a log does not look whether its swap has succeeded. Rule 20.
    InstallUntested,
    /// rTX: locks are freed before places are swapped. Rule 7.
    UnlockBeforeInstall,
    /// rTX: the log ends before the locks are free. Rule 8.
    EndBeforeUnlock,
    /// Growth: a snapshot may have a time at which the rows of a table that is gone had not moved
    /// yet. Protocols `gts` and `vts`. This is not an error of a text.
    SnapshotBeforeMove,
    /// RACE: an operation does not look at the lock after its swap of a slot. Rule 3.
    RaceUnchecked,
    /// RACE: what an operation has installed, and is not in the live array, is done again. Rule 4.
    RaceRedoAbsent,
    /// RACE: a search does not look at the lock after it has read slots. Rule 5.
    RaceReadBehindLock,
    /// RACE: a client reads the lock and the array of a leaf once. Rule 6.
    RacePairOnce,
    /// RACE: a rehash reads the array before it takes the lock. Rule 1.
    RaceCopyUnlocked,
    /// RACE: an insert makes its slot live at once, without a look for other inserts of the key.
    RaceInsertAtOnce,
    /// RACE: reclaiming does not look whether other clients are connected. Rules 1 and 5 of
    /// `race/reclaim.rs`.
    RaceReclaimBeside,
    /// RACE: reclaiming does not look at the lock of an array whose slots it has emptied. Rule 3 of
    /// `race/reclaim.rs`.
    RaceReclaimDeadArray,
    /// RACE: reclaiming leaves pending slots and tombstones, whose blocks it gives away. Rule 5 of
    /// `race/reclaim.rs`.
    RaceReclaimFilled,
    /// RACE: reclaiming does not write zeros to what it gives away. Rule 6 of `race/reclaim.rs`.
    RaceReclaimDirty,
    /// RACE: dead arrays are reclaimed beside operations that began before they were split. Rule 3
    /// of `race/beside.rs`.
    RaceReclaimUnheard,
    /// RACE: an insert marks the pending slots that it withdraws, which were never live. Rule 5.
    RaceMarkPending,
    /// RACE: a rehash marks the tombstones of an array though it has lost the lock. Rule 5. This is
    /// an error that this code had, and no error of the text.
    RaceMarkUnlocked,
    /// RACE: an operation that may have taken effect answers that its client was taken for dead.
    /// Rule 8.
    RaceFencedUnknown,
}

impl Mutant {
    /// All mutants.
    pub const ALL: [Mutant; 136] = [
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
        Mutant::CellOfAnyState,
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
        Mutant::InsertUnheard,
        Mutant::JoinUnchecked,
        Mutant::OneVersionForAll,
        Mutant::MembersReportEarly,
        Mutant::JoinClosed,
        Mutant::JoinUnlocked,
        Mutant::TrustBrought,
        Mutant::BringUncommitted,
        Mutant::DroppedLeaderAborts,
        Mutant::DroppedMemberAborts,
        Mutant::TurnsNeverLapse,
        Mutant::EndlessStreaks,
        Mutant::ClaimBehindRead,
        Mutant::LargestClaim,
        Mutant::PastTakesCurrent,
        Mutant::FormerOfUnseen,
        Mutant::TrustArchive,
        Mutant::PastOwnSlot,
        Mutant::PastUnraised,
        Mutant::TakeLater,
        Mutant::DrawBeforeData,
        Mutant::GuardByValidation,
        Mutant::GuardUnraised,
        Mutant::TimeOfDraws,
        Mutant::RecoverUndrawn,
        Mutant::KeepLowClaims,
        Mutant::ReaderUnraised,
        Mutant::ClockOfEachNode,
        Mutant::OneClockUnordered,
        Mutant::OneClockAtBackups,
        Mutant::EarlyAtPrimary,
        Mutant::DrawBeforeLocks,
        Mutant::EarlyUnraised,
        Mutant::ReadBehindEarlyLock,
        Mutant::SweepPrimaries,
        Mutant::PassEarlySlots,
        Mutant::AbsentAtNoTime,
        Mutant::InstallUnlocked,
        Mutant::SkipWait,
        Mutant::CommitLowersStamp,
        Mutant::StampApart,
        Mutant::StampBeforeLock,
        Mutant::LookBeforeClaim,
        Mutant::StableIsLatest,
        Mutant::TakeAnswerUnderWay,
        Mutant::DependOnNothing,
        Mutant::OmitReaders,
        Mutant::ReleaseUnstamped,
        Mutant::KeepEarlyLock,
        Mutant::ReadBehindLock,
        Mutant::PassLockedVacant,
        Mutant::LocksBeforeLog,
        Mutant::FreeSuspects,
        Mutant::InstallUntested,
        Mutant::UnlockBeforeInstall,
        Mutant::EndBeforeUnlock,
        Mutant::SnapshotBeforeMove,
        Mutant::RaceUnchecked,
        Mutant::RaceRedoAbsent,
        Mutant::RaceReadBehindLock,
        Mutant::RacePairOnce,
        Mutant::RaceCopyUnlocked,
        Mutant::RaceInsertAtOnce,
        Mutant::RaceReclaimBeside,
        Mutant::RaceReclaimDeadArray,
        Mutant::RaceReclaimFilled,
        Mutant::RaceReclaimDirty,
        Mutant::RaceReclaimUnheard,
        Mutant::RaceMarkPending,
        Mutant::RaceMarkUnlocked,
        Mutant::RaceFencedUnknown,
    ];
}

impl Mutant {
    /// Returns whether the error is one of the operations on RACE hash tables. Errors of reclaiming
    /// are not among these.
    #[must_use]
    pub fn is_of_race(self) -> bool {
        matches!(
            self,
            Mutant::RaceUnchecked
                | Mutant::RaceRedoAbsent
                | Mutant::RaceReadBehindLock
                | Mutant::RacePairOnce
                | Mutant::RaceCopyUnlocked
                | Mutant::RaceInsertAtOnce
                | Mutant::RaceMarkPending
                | Mutant::RaceMarkUnlocked
                | Mutant::RaceFencedUnknown
        )
    }

    /// Returns whether a protocol has the code that the error changes, and shows the error in runs
    /// in which no client is recovered.
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
            Mutant::WriteOverShared | Mutant::UnlockReadsEarly => protocol == Protocol::NO_WAIT,
            // Two-phase locking validates only absent keys, and reads no record that another
            // transaction has locked.
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

/// Turns one error on for this thread, or all of them off (`None`).
pub fn set(mutant: Option<Mutant>) {
    ON.set(mutant);
    remora_index::mutant::insert_beside_locked(mutant == Some(Mutant::InsertBesideLocked));
}

/// Returns whether this error is on for this thread.
pub fn is_on(mutant: Mutant) -> bool {
    ON.get() == Some(mutant)
}

/// Returns whether any error is on for this thread.
pub fn is_any_on() -> bool {
    ON.get().is_some()
}
