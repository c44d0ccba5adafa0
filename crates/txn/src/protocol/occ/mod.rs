//! Optimistic concurrency control with primary-backup replication: the OCC family of Wei's thesis, chapter 4.
//!
//! ```text
//!            coordinator             primaries of the         all participants' rings       primaries
//!                                    write set                (every replica)
//! execute    READ every record  ->
//! lock       CAS lock; READ version ->                                                      1 round trip
//! validate   READ lock, version of the records only read ->                                 1, if there are any
//! log                                                         WRITE entry ->                1
//!            ---- committed: every ring has acknowledged the entry ----
//! commit                                                                 WRITE record; CAS unlock    in the background
//! ```
//!
//! With locations cached and keys known up front: 3 round trips for a transaction that writes what it reads, 4 if it also
//! only reads records, 2 for one that reads several, 1 for one that reads one.
//!
//! # The presets
//!
//! | preset   | execute                          | lock + validate | validate | log   | commit            |
//! | -------- | -------------------------------- | --------------- | -------- | ----- | ----------------- |
//! | `farm`   | READ bucket, READ record         | call            | READ     | WRITE | call              |
//! | `fasst`  | call                             | call            | call     | call  | call              |
//! | `drtm-r` | READ record; uncached: as `farm` | CAS, READ       | READ     | WRITE | WRITE, CAS unlock |
//! | `drtm-h` | READ record; uncached: call      | CAS, READ       | READ     | WRITE | WRITE, CAS unlock |
//!
//! A call does at the primary's CPU what the verbs beside it do (`rpc.rs`), with the same words, so presets that agree on
//! who changes lock words (the table's discipline) run together. `drtm-h` locks and commits by calls on tables whose
//! locks are the CPU's. Round trips are the same but in execution: `farm` takes one more, `fasst` and `drtm-h` one also
//! for a location that is not cached. All have outstanding requests (one round for everything that does not depend on an
//! answer), one doorbell a node, coroutines, and commit by passive ACK.
//!
//! [`Primitives`](super::Primitives) is this table as a type; any other combination can be had for a measurement. Two that
//! FORD was compared with have names (section 6 of that text), and wait for every phase: `drtm-h-one-sided` takes four
//! round trips, `farm-one-sided` validates what it writes in one of its own, which makes five. Both flush their logs.
//!
//! Keys that are inserted have a slot linked for them in execution (`fetch.rs`), which is then locked, validated, logged
//! and installed like any record; the log entry carries what changed in the index. An absent key is validated by looking
//! into the same buckets again: an inserter links before it locks, so whoever validates before that link comes before it.
//!
//! # Invariants
//!
//! 1. **Validation is under the locks.** A record that is only read is validated after every lock of the write set is
//!    held, and fails if it has changed *or is locked* by another (else: write skew). A record that is written is
//!    validated by the READ that rides behind its CAS.
//! 2. **A lock is released by who took it**: by CAS(me -> free), and only if it may have been taken.
//! 3. **Ring space before locks**: nobody waits for the appliers while others wait for its locks.
//! 4. **Log before answer and install.** The entry goes out after validation and is never withdrawn; committed means that
//!    *every* participant has acknowledged it. Only then is anything installed. The primary is a participant too, though
//!    it will have the record itself: of f + 1 copies the log must be in f + 1 places, or a client that dies before it
//!    has installed, and f backups that die with it, take an answer with them. The texts log at the backups alone.
//! 5. **Data before unlock**, in one chain to the primary: WRITE then CAS is an ordered pair.
//! 6. **A lock held can mean a commit not yet written back**, so a read that nobody validates later accepts a record only
//!    when it is free, and a read-only transaction's validation fails on a lock as well: its holder may have committed,
//!    been reported, and been followed by a transaction that this one has seen.

use remora_fabric::{CallHandle, Completed, FabricError, Fault, NodeId, ReadHandle, Round, WORD_BYTES, probes};
use remora_index::BucketRef;
use remora_index::cluster_hash::{BUCKET_BYTES, still_absent};
use remora_memory::limits::FRAME_BYTES_MAX;
use remora_memory::ring::{self, FRAME_OVERHEAD_WORDS, Placement};
use remora_sync::{IMAGE_AT, LockWord, RecordHeader, VALIDATED_BYTES, Version};

use crate::error::{Abort, Limit, Stop};
use crate::limits::{LOG_NODES_MAX, LOG_PATIENCE_NS, LOG_PAUSE_NS};
use crate::log::{self, LoggedRecord};
use crate::protocol::{Acknowledged, Locks, Primitive, Primitives, nodes};
use crate::rpc::{self, Code};
use crate::sets::{CHAIN_WORDS, Change, Fetch, Item, Lock, Sets, locks};
use crate::tx::Tx;
use zerocopy::IntoBytes;

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
    tx.lane.probe(probes::VALIDATED);
    tx.committing();
    write_log(tx, entry).await?;
    tx.mark(|phases, now| phases.logged = now);
    tx.lane.probe(probes::LOGGED);
    install(tx).await;
    tx.lane.probe(probes::INSTALLED);
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
    for item in state.sets.items.iter().filter(|item| item.is_written()) {
        let replicas = state.sets.table(item.table).replicas(item.location.pointer);
        let logged = if mutant!(LogAtBackupsOnly) { &replicas[1..] } else { replicas };
        participants |= logged.iter().fold(0, |nodes, replica| nodes | 1 << replica.node.0);
    }
    let words = FRAME_OVERHEAD_WORDS + log::HEADER_WORDS + log::RECORD_WORDS * state.sets.written + image_words;
    if words > FRAME_BYTES_MAX / 8 {
        return Err(Limit::LogEntry { bytes: words * WORD_BYTES }.into());
    }
    if participants.count_ones() as usize > LOG_NODES_MAX {
        return Err(Limit::LogNodes { nodes: participants.count_ones() }.into());
    }
    let mut waiting_since = None;
    while let Err(full) = reserve(tx, participants, words) {
        if tx.lane.background() == 0 && tx.state.is_in_doubt(tx.lane) {
            return Err(Limit::LogInDoubt.into());
        }
        // The first time it is asked at once: it may have gone on since we last looked.
        let now = tx.lane.now();
        if now - *waiting_since.get_or_insert(now) > LOG_PATIENCE_NS {
            return Err(Stop::Unavailable(FabricError { node: full, fault: Fault::Behind }));
        }
        if waiting_since != Some(now) {
            tx.lane.probe(probes::RING_FULL);
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
    state.settle(tx.lane);
    state.reservations.clear();
    for node in nodes(participants) {
        let ring = &mut state.rings[usize::from(node.0)];
        if mutant!(OverwriteLog) {
            ring.settle();
            ring.learn(ring.written());
        }
        let room = ring.reserve(words).ok_or(node)?;
        state.reservations.push((node, room));
    }
    Ok(())
}

/// Takes the lock of every record to be written, and sees in the same round trip whether it is still what was read: CAS
/// then READ is an ordered pair, so the READ is of the locked record if the CAS has won; a call looks after it has locked.
/// Where the two are not [`merged`](Primitives::merged), `validate` looks.
async fn lock_and_validate(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let me = tx.id.lock().to_bits();
    let merged = tx.state.protocol.primitives().merged;
    tx.locking = true;
    tx.lane.probe(probes::LOCKS);
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let first = next;
        let mut round = tx.lane.round();
        let Sets { tables, items, .. } = &mut tx.state.sets;
        for item in &mut items[first..] {
            if item.is_written() {
                if !round.has_room(2, 6 * 8 + VALIDATED_BYTES) {
                    break;
                }
                if locks(tables, item) == Primitive::Call {
                    let request = [Code::Lock.word(0), item.location.pointer.to_bits(), me];
                    item.call = round.call(item.address.node, &request, None, 2);
                } else {
                    item.swap = round.compare_swap(item.address, LockWord::FREE.to_bits(), me);
                    if merged {
                        item.read = round.read(item.address, VALIDATED_BYTES);
                    }
                }
                item.lock = Lock::Maybe;
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        let (mut conflict, mut met) = (None, None);
        let Sets { tables, items, .. } = &mut tx.state.sets;
        for (index, item) in (first..).zip(&mut items[first..next]).filter(|(_, item)| item.is_written()) {
            let (previous, header) = if locks(tables, item) == Primitive::Call {
                let &[previous, version] = done.reply(item.call) else {
                    conflict = conflict.or(Some(Abort::Changed)); // refused: no such record there, and no lock taken
                    continue;
                };
                (previous, [previous, version])
            } else {
                let header = if merged { done.words(item.read) } else { &[] };
                (done.previous(item.swap), header.try_into().unwrap_or_default())
            };
            if previous != LockWord::FREE.to_bits() {
                item.lock = Lock::No;
                let holder = LockWord::from_bits(previous);
                conflict = Some(Abort::Locked(holder));
                met = Some((index, holder));
                continue;
            }
            item.lock = if merged { Lock::Held } else { Lock::Unseen };
            if !merged {
                continue;
            }
            if !unchanged(item, &header) && !mutant!(LockWithoutValidation) {
                conflict = conflict.or(Some(Abort::Changed));
                // Another's insert may have been prepared there, and be given up while the slot is locked by this one.
                item.prepared |= Version::from_bits(header[1]).0.is_rolled_back() && !mutant!(LeavePrepared);
                tx.preparing |= item.prepared;
            }
        }
        drop(done);
        if let Some((index, holder)) = met {
            tx.met(index, holder);
        }
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

/// How the validation round under way looks again at something that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Check {
    /// At a record's lock and version.
    Read { item: usize, read: ReadHandle },
    /// The same, by a call.
    Call { item: usize, call: CallHandle },
    /// At a bucket in which a key was not found, and whose words then lie in the arena.
    Bucket { item: usize, chain: usize, read: ReadHandle },
    /// For a key that the primary's CPU did not find.
    Find { call: CallHandle },
}

/// Looks again at what was only read (invariants 1 and 6), and at what is written if its lock has not: all of it, if the transaction `writes` nothing, or gives up
/// what it meant to write.
async fn validate(tx: &mut Tx<'_>, writes: bool) -> Result<(), Stop> {
    let Primitives { validate: primitive, merged, .. } = tx.state.protocol.primitives();
    let due = |item: &Item| !(writes && merged && item.is_written());
    let ignore_locks = if writes { mutant!(ValidateVersionOnly) } else { mutant!(ValidateReadOnlyVersionOnly) };
    let me = tx.id.lock();
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let mut round = tx.lane.round();
        let state = &mut *tx.state;
        state.checks.clear();
        while let Some(item) = state.sets.items.get(next) {
            if due(item) && !look_again(&state.sets, next, primitive, &mut round, &mut state.checks) {
                break;
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        for number in 0..tx.state.checks.len() {
            let check = tx.state.checks[number];
            if let Err(abort) = passes(&tx.state.sets, &done, check, me, ignore_locks) {
                match (abort, check) {
                    (Abort::Locked(lock), Check::Read { item, .. } | Check::Call { item, .. }) => tx.met(item, lock),
                    (_, Check::Read { item, .. } | Check::Call { item, .. } | Check::Bucket { item, .. }) => {
                        tx.state.sets.note(item, abort.into());
                    }
                    (_, Check::Find { .. }) => {}
                }
                return Err(abort.into());
            }
        }
    }
    Ok(())
}

/// Adds to a validation round what is to be looked at for an item. False if it does not fit any more.
#[inline]
fn look_again(sets: &Sets, item: usize, primitive: Primitive, round: &mut Round<'_>, checks: &mut Vec<Check>) -> bool {
    let one = &sets.items[item];
    if matches!(one.fetch, Fetch::Here) {
        if !round.has_room(1, 3 * 8 + VALIDATED_BYTES) {
            return false;
        }
        checks.push(if primitive == Primitive::Call {
            let request = [Code::Validate.word(0), one.location.pointer.to_bits()];
            Check::Call { item, call: round.call(one.address.node, &request, None, 2) }
        } else {
            Check::Read { item, read: round.read(one.address, VALIDATED_BYTES) }
        });
        return true;
    }
    if mutant!(AbsentWithoutValidation) {
        return true;
    }
    let table = sets.table(one.table);
    if one.chain == 0 || one.collided {
        let (request, words) = rpc::key_request(Code::Find, table.shard_id(one.home.shard), one.key_words(&sets.arena));
        if !round.has_room(1, (words + 2) * 8) {
            return false;
        }
        checks.push(Check::Find { call: round.call(sets.primary_node(one), &request[..words], None, 1) });
        return true;
    }
    // Each piece names the one before it.
    let before = |at: &usize| (sets.arena[*at] as usize).checked_sub(1);
    let chain = std::iter::successors((one.chain as usize).checked_sub(1), before);
    let buckets = chain.clone().count();
    if !round.has_room(buckets, buckets * BUCKET_BYTES) && !round.is_empty() {
        return false;
    }
    checks.extend(chain.map(|chain| {
        let bucket = BucketRef { shard: sets.arena[chain + 1] as u16, bucket: sets.arena[chain + 2] };
        Check::Bucket { item, chain, read: round.read(table.bucket_address(bucket), BUCKET_BYTES) }
    }));
    true
}

/// Whether what was looked at again is still what was read, and no other's lock says that it is about to change.
#[inline]
fn passes(sets: &Sets, done: &Completed<'_>, check: Check, me: LockWord, ignore_locks: bool) -> Result<(), Abort> {
    let (item, words) = match check {
        Check::Read { item, read } => (&sets.items[item], done.words(read)),
        Check::Call { item, call } => (&sets.items[item], done.reply(call)),
        Check::Bucket { item, chain, read } => {
            let before = &sets.arena[chain..][..CHAIN_WORDS][3..];
            let absent = still_absent(before, done.words(read), sets.items[item].hash.word);
            return if absent { Ok(()) } else { Err(Abort::Changed) };
        }
        Check::Find { call } => {
            return if done.reply(call) == [0] { Ok(()) } else { Err(Abort::Changed) };
        }
    };
    let lock = words.first().map_or(LockWord::FREE, |lock| LockWord::from_bits(*lock));
    if !lock.is_free() && lock != me && !ignore_locks {
        return Err(Abort::Locked(lock));
    }
    if unchanged(item, words) { Ok(()) } else { Err(Abort::Changed) }
}

/// Sends the entry to every participant's ring and waits for all of them (invariant 4). From here on the transaction is
/// not aborted any more: if the answer is lost, its outcome is unknown, and its locks stay for recovery.
async fn write_log(tx: &mut Tx<'_>, entry: LogEntry) -> Result<(), Stop> {
    let id = tx.id.to_bits();
    let mut round = tx.lane.round();
    let staged = round.stage_words(entry.words);
    let sets = &tx.state.sets;
    let frame = round.staged_mut(staged);
    let records = sets.items.iter().filter(|item| item.is_written()).map(|item| LoggedRecord {
        pointer: item.location.pointer,
        old_version: item.version.to_bits(),
        image: sets.image(item),
        patches: sets.patches(item),
    });
    log::encode(&mut frame[2..entry.words - 1], tx.state.epoch, entry.participants, records);
    ring::seal(frame, id);
    let state = &mut *tx.state;
    let Primitives { log, flush, .. } = state.protocol.primitives();
    let by_call = log == Primitive::Call;
    let mut asked = [(NodeId(0), Default::default()); LOG_NODES_MAX];
    let mut asked_count = 0;
    for &(node, reservation) in &state.reservations {
        let ring = &mut state.rings[usize::from(node.0)];
        if by_call {
            let Placement { at, skip } = ring.take(reservation, id);
            if let Some((from, skip)) = skip {
                let staged = round.stage(skip.as_bytes());
                round.call(node, &[Code::Log.word(0), from.offset], Some(staged), 0);
            }
            round.call(node, &[Code::Log.word(0), at.offset], Some(staged), 0);
        } else {
            ring.append(&mut round, staged, reservation, id);
            if flush {
                round.flush(node);
            }
        }
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
    // It is executed where it is kept: no copy of it is made, which would wait for its parts to be stored.
    tx.logging = Some(tx.lane.execute(round));
    if let Some(log) = tx.logging.take_if(|log| !log.was_sent()) {
        // Nothing of it will ever be anywhere: it has aborted, and its locks are released.
        let state = &mut *tx.state;
        for (node, reservation) in state.reservations.drain(..) {
            state.rings[usize::from(node.0)].give_back(reservation);
        }
        return log.await.map(|_| ()).map_err(Stop::from);
    }
    // The locks are the log's now: neither an error nor a drop may release them.
    tx.locking = false;
    tx.state.sets.items.iter_mut().filter(|item| item.is_written()).for_each(|item| item.prepared = false);
    let done = match &mut tx.logging {
        Some(log) => log.await,
        None => unreachable!("the log was sent"),
    };
    tx.logging = None;
    let done = done.map_err(|error| {
        tracing::warn!(id = %tx.id, %error, "the answer to a log was lost: the outcome is unknown");
        tx.state.doubt();
        Stop::Unknown(tx.id)
    })?;
    for (node, applied) in &asked[..asked_count] {
        tx.state.rings[usize::from(node.0)].learn(done.words(*applied)[0]);
    }
    Ok(())
}

/// Installs the write set at the primaries and frees their locks: the transaction has committed. Nothing is awaited between
/// the log's answer and posting this (invariants 4 and 5), and, with passive ACK, nothing after it.
async fn install(tx: &mut Tx<'_>) {
    let (lane, primitives) = (tx.lane, tx.state.protocol.primitives());
    let by_writes = primitives.locks == Locks::Cpu { install: Primitive::OneSided }
        && tx.state.sets.items.iter().all(|item| matches!(item.change, Change::No | Change::Update));
    if primitives.passive && !by_writes {
        return tx.install_rounds(|round| lane.post(round));
    }
    let mut under_way = Vec::new();
    let send = |round| if primitives.passive { lane.post(round) } else { under_way.push(lane.execute(round)) };
    if by_writes {
        install_by_writes(tx, send)
    } else {
        tx.install_rounds(send)
    }
    let mut waiting = Acknowledged::of(tx);
    for round in under_way {
        if let Err(error) = round.await {
            tracing::warn!(id = %waiting.tx().id, %error, "a commit was not acknowledged: it is in the log");
            waiting.tx().state.doubt();
        }
    }
    waiting.done();
}

/// The rounds that install updates of records whose locks the primary's CPU has taken: see [`Locks::Cpu`].
fn install_by_writes<'s>(tx: &mut Tx<'s>, mut send: impl FnMut(Round<'s>)) {
    let mut round = tx.lane.round();
    let sets = &tx.state.sets;
    for item in sets.items.iter().filter(|item| item.is_written()) {
        let image = sets.image(item);
        if !round.has_room(2, size_of_val(image) + 8) {
            send(std::mem::replace(&mut round, tx.lane.round()));
        }
        round.write_words(item.address.plus(IMAGE_AT), image);
        round.write_words(item.address, &[LockWord::FREE.to_bits()]);
    }
    tx.locking = false;
    send(round);
}
