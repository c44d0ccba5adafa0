//! Optimistic concurrency control with primary-backup replication: the OCC family of Wei's thesis, chapter 4.
//!
//! ```text
//!            coordinator             primaries of the         all participants' rings       primaries
//!                                    write set                (every backup; the primary
//!                                                             where there is one copy)
//! execute    READ every record  ->
//! lock       CAS lock; READ version ->                                                      1 round trip
//! validate   READ lock, version of the records only read ->                                 1, if there are any
//! log                                                         WRITE entry ->                1
//!            ---- committed: every ring has acknowledged the entry ----
//! commit                                                                 WRITE record; CAS unlock    in the background
//! ```
//!
//! With locations cached and keys known up front: 3 round trips for a transaction that writes what it reads, 4 if it also
//! only reads records, 2 for one that reads several, 1 for one that reads one. The preset `drtm-r` does every phase by
//! one-sided verbs; what the other presets of the family change is the primitive of a phase, a function here.
//!
//! # Invariants
//!
//! 1. **Validation is under the locks.** A record that is only read is validated after every lock of the write set is
//!    held, and fails if it has changed *or is locked* by another (else: write skew). A record that is written is
//!    validated by the READ that rides behind its CAS.
//! 2. **A lock is released by who took it**: by CAS(me -> free), and only if it may have been taken.
//! 3. **Ring space before locks**: nobody waits for the appliers while others wait for its locks.
//! 4. **Log before answer and install.** The entry goes out after validation and is never withdrawn; committed means that
//!    *every* participant has acknowledged it. Only then is anything installed.
//! 5. **Data before unlock**, in one chain to the primary: WRITE then CAS is an ordered pair.
//! 6. **A lock held can mean a commit not yet written back**, so a read that nobody validates later accepts a record only
//!    when it is free, and a read-only transaction's validation fails on a lock as well: its holder may have committed,
//!    been reported, and been followed by a transaction that this one has seen.

use remora_fabric::NodeId;
use remora_memory::limits::FRAME_BYTES_MAX;
use remora_memory::ring::{self, FRAME_OVERHEAD_WORDS, RingWriter};
use remora_sync::{LockWord, RecordHeader, VALIDATED_BYTES};

use crate::error::{Abort, Limit, Stop};
use crate::limits::{LOG_ATTEMPTS, LOG_NODES_MAX, LOG_PAUSE_NS};
use crate::log::{self, LoggedRecord};
use crate::sets::{Fetch, Item, Lock};
use crate::tx::Tx;

pub(super) async fn commit(tx: &mut Tx<'_>) -> Result<(), Stop> {
    if tx.state.sets.written == 0 {
        return validate_read_only(tx).await;
    }
    let entry = prepare_log(tx).await?;
    if mutant!(ValidateWithLocks) {
        validate(tx, true).await?;
        lock_and_validate(tx).await?;
    } else {
        lock_and_validate(tx).await?;
        validate(tx, true).await?;
    }
    tx.mark(|phases, now| phases.validated = now);
    write_log(tx, entry).await?;
    tx.mark(|phases, now| phases.logged = now);
    install(tx);
    Ok(())
}

/// A transaction that writes nothing: one record was accepted free and whole, so it was current when it was read; several
/// must be looked at again together.
pub(super) async fn validate_read_only(tx: &mut Tx<'_>) -> Result<(), Stop> {
    if tx.state.sets.items.len() > 1 {
        validate(tx, false).await?;
        tx.mark(|phases, now| phases.validated = now);
    }
    Ok(())
}

/// Where the log entry will go and how long it is.
struct LogEntry {
    participants: u64,
    words: usize,
}

/// Encodes what will be installed, and reserves its room in every ring (invariant 3).
async fn prepare_log(tx: &mut Tx<'_>) -> Result<LogEntry, Stop> {
    let state = &mut *tx.state;
    let image_words = state.sets.encode_images();
    let mut participants = 0u64;
    for item in state.sets.items.iter().filter(|item| item.written) {
        let replicas = state.sets.table(item.table).replicas(item.location.pointer);
        let one_copy = replicas.len() == 1 && !mutant!(NoLogForOneCopy);
        let logged = if one_copy { replicas } else { &replicas[1..] };
        participants |= logged.iter().fold(0, |nodes, replica| nodes | 1 << replica.node.0);
    }
    let words = FRAME_OVERHEAD_WORDS + log::HEADER_WORDS + log::RECORD_WORDS * state.sets.written + image_words;
    if words > FRAME_BYTES_MAX / 8 {
        return Err(Limit::LogEntry.into());
    }
    if participants.count_ones() as usize > LOG_NODES_MAX {
        return Err(Limit::LogNodes.into());
    }
    let mut attempts = 0;
    while let Err(full) = reserve(tx, participants, words) {
        attempts += 1;
        if attempts == LOG_ATTEMPTS {
            return Err(Abort::LogFull(full).into());
        }
        if attempts > 1 {
            tx.lane.sleep(LOG_PAUSE_NS).await;
        }
        let mut round = tx.lane.round();
        let applied = round.read(tx.state.rings[usize::from(full.0)].applied_at(), 8);
        let done = tx.lane.execute(round).await?;
        tx.state.rings[usize::from(full.0)].learn(done.words(applied)[0]);
    }
    Ok(LogEntry { participants, words })
}

/// Room in every participant's ring, or the first one that has none.
#[inline]
fn reserve(tx: &mut Tx<'_>, participants: u64, words: usize) -> Result<(), NodeId> {
    let state = &mut *tx.state;
    if tx.lane.background() == 0 {
        // Every install that this lane has posted has completed.
        state.rings.iter_mut().for_each(RingWriter::settle);
    }
    state.reservations.clear();
    for node in nodes(participants) {
        let room = state.rings[usize::from(node.0)].reserve(words, mutant!(OverwriteLog)).ok_or(node)?;
        state.reservations.push((node, room));
    }
    Ok(())
}

fn nodes(mut set: u64) -> impl Iterator<Item = NodeId> {
    std::iter::from_fn(move || {
        let node = (set != 0).then(|| NodeId(set.trailing_zeros() as u16));
        set &= set.wrapping_sub(1);
        node
    })
}

/// Takes the lock of every record to be written, and sees in the same round trip whether it is still what was read: CAS
/// then READ is an ordered pair, so the READ is of the locked record if the CAS has won.
async fn lock_and_validate(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let me = tx.id.lock().to_bits();
    tx.locking = true;
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let first = next;
        let mut round = tx.lane.round();
        for item in &mut tx.state.sets.items[first..] {
            if item.written {
                if !round.has_room(2, 8 + VALIDATED_BYTES) {
                    break;
                }
                item.swap = round.compare_swap(item.address, LockWord::FREE.to_bits(), me);
                item.read = round.read(item.address, VALIDATED_BYTES);
                item.lock = Lock::Maybe;
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        let mut conflict = None;
        for item in tx.state.sets.items[first..next].iter_mut().filter(|item| item.written) {
            if !done.swapped(item.swap) {
                item.lock = Lock::No;
                conflict = Some(Abort::Locked(LockWord::from_bits(done.previous(item.swap))));
                continue;
            }
            item.lock = Lock::Held;
            if !unchanged(item, done.words(item.read)) && !mutant!(LockWithoutValidation) {
                conflict = conflict.or(Some(Abort::Changed));
            }
        }
        drop(done);
        if let Some(abort) = conflict {
            return Err(abort.into());
        }
    }
    Ok(())
}

#[inline]
fn unchanged(item: &Item, words: &[u64]) -> bool {
    RecordHeader::parse(words).is_some_and(|header| header.version == item.version && !header.invisible)
}

/// Looks again at the records that were only read (invariants 1 and 6): all of them, if the transaction `writes` nothing,
/// or gives up what it meant to write.
async fn validate(tx: &mut Tx<'_>, writes: bool) -> Result<(), Stop> {
    let only_read = |item: &Item| !(writes && item.written) && matches!(item.fetch, Fetch::Here);
    let ignore_locks = mutant!(ValidateVersionOnly) && writes || mutant!(ValidateReadOnlyVersionOnly) && !writes;
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let first = next;
        let mut round = tx.lane.round();
        for item in &mut tx.state.sets.items[first..] {
            if only_read(item) {
                if !round.has_room(1, VALIDATED_BYTES) {
                    break;
                }
                item.read = round.read(item.address, VALIDATED_BYTES);
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        for item in tx.state.sets.items[first..next].iter().filter(|item| only_read(item)) {
            let words = done.words(item.read);
            let lock = LockWord::from_bits(words[0]);
            if !lock.is_free() && !ignore_locks {
                return Err(Abort::Locked(lock).into());
            }
            if !unchanged(item, words) {
                return Err(Abort::Changed.into());
            }
        }
    }
    Ok(())
}

/// Sends the entry to every participant's ring and waits for all of them (invariant 4). From here on the transaction is
/// not aborted any more: if the answer is lost, its outcome is unknown, and its locks stay for recovery.
async fn write_log(tx: &mut Tx<'_>, entry: LogEntry) -> Result<(), Stop> {
    let id = tx.id.to_bits();
    let mut round = tx.lane.round();
    let staged = round.stage_words(entry.words);
    let sets = &tx.state.sets;
    let frame = round.staged_mut(staged);
    let records = sets.items.iter().filter(|item| item.written).map(|item| LoggedRecord {
        pointer: item.location.pointer,
        old_version: item.version.to_bits(),
        image: sets.image(item),
    });
    log::encode(&mut frame[2..entry.words - 1], tx.state.epoch, entry.participants, records);
    ring::seal(frame, id);
    let state = &mut *tx.state;
    let mut asked = [(NodeId(0), Default::default()); LOG_NODES_MAX];
    let mut asked_count = 0;
    for (node, reservation) in state.reservations.drain(..) {
        let ring = &mut state.rings[usize::from(node.0)];
        ring.append(&mut round, staged, reservation, id);
        if ring.half_full() {
            // Costs no round trip here, and saves one later.
            asked[asked_count] = (node, round.read(ring.applied_at(), 8));
            asked_count += 1;
        }
    }
    if mutant!(CommitBeforeLog) {
        tx.lane.post(round);
        return Ok(());
    }
    // The locks are the log's now: neither an error nor a drop may release them.
    tx.locking = false;
    let log = tx.logging.insert(tx.lane.execute(round));
    let done = log.await;
    tx.logging = None;
    let done = done.map_err(|error| {
        tracing::warn!(id = %tx.id, %error, "the answer to a log was lost: the outcome is unknown");
        Stop::Unknown(tx.id)
    })?;
    for (node, applied) in &asked[..asked_count] {
        tx.state.rings[usize::from(node.0)].learn(done.words(*applied)[0]);
    }
    Ok(())
}

/// Installs the write set at the primaries and frees their locks, in the background: the transaction has committed.
/// Nothing is awaited between the log's answer and this (invariants 4 and 5).
fn install(tx: &mut Tx<'_>) {
    let lane = tx.lane;
    tx.install_rounds(|round| lane.post(round));
}
