//! The redo log: a commit sends the write set to the log ring of every participant, and then
//! installs it.
//!
//! Protocols that log new values share these steps. The transaction has committed when every
//! participant has acknowledged its log entry. Appliers then bring the write set to the backups,
//! and the client brings it to the primaries.

use remora_fabric::{Address, Execute, FabricError, Fault, NodeId, Round, WORD_BYTES, probes};
use remora_index::cluster_hash::unlinked;
use remora_node::ring::{self, FRAME_OVERHEAD_WORDS, Placement};
use remora_record::Swap;
use zerocopy::IntoBytes;

use crate::edit::EDIT_WORDS;
use crate::error::{Limit, Stop};
use crate::limits::{LOG_NODES_MAX, LOG_PATIENCE_NS, LOG_PAUSE_NS};
use crate::log::{self, LoggedRecord, PATCH_WORDS};
use crate::protocol::long_frame::LongFrame;
use crate::protocol::nodes;
use crate::protocol::spec::Primitive;
use crate::rpc::Code;
use crate::sets::{Change, Lock};
use crate::swap::swap_lock;
use crate::tx::Tx;
use crate::words::push_bytes;

/// Where the log entry will go and how long it is.
pub(super) struct LogEntry {
    participants: u64,
    words: usize,
}

/// Encodes the records that will be installed, and reserves room for their log entry in every
/// participant's ring (invariant 3). Waits while a ring is full. Fails if the entry exceeds a
/// limit, or if a node does not apply its ring in time ([`LOG_PATIENCE_NS`]).
pub(super) async fn prepare_log(tx: &mut Tx<'_>) -> Result<LogEntry, Stop> {
    debug_assert!(
        !tx.locking || tx.state.spec.locks_reads || tx.took_leaf,
        "occ 3: ring space is reserved before any lock is taken"
    );
    let image_words = tx.state.sets.encode_images();
    make_room(tx, image_words).await
}

/// Reserves room for a log entry of this many words of images.
pub(super) async fn make_room(tx: &mut Tx<'_>, image_words: usize) -> Result<LogEntry, Stop> {
    let state = &mut *tx.state;
    let mut participants = 0u64;
    for item in state.sets.items.iter().filter(|item| item.is_written()) {
        let replicas = state.sets.table(item.table).replicas(item.location.pointer);
        let logged = if mutant!(LogAtBackupsOnly) { &replicas[1..] } else { replicas };
        participants |= logged.iter().fold(0, |nodes, replica| nodes | 1 << replica.node.0);
    }
    let words = FRAME_OVERHEAD_WORDS + log::HEADER_WORDS + log::RECORD_WORDS * state.sets.written + image_words;
    state.fits_log(words)?;
    if participants.count_ones() as usize > LOG_NODES_MAX {
        return Err(Limit::LogNodes { nodes: participants.count_ones() }.into());
    }
    let mut waiting_since = None;
    while let Err(full) = reserve(tx, participants, words) {
        if tx.lane.background() == 0 && tx.state.is_in_doubt(tx.lane) {
            return Err(Limit::LogInDoubt.into());
        }
        // The first question comes without a pause: the node may have applied more of its ring
        // since it was last asked.
        let now = tx.lane.now();
        if now - *waiting_since.get_or_insert(now) > LOG_PATIENCE_NS {
            return Err(Stop::Unavailable(FabricError { node: full, fault: Fault::Behind }));
        }
        if waiting_since != Some(now) {
            tx.lane.probe(probes::RING_FULL);
            tx.lane.hurry();
            tx.lane.sleep(LOG_PAUSE_NS).await;
        }
        let mut round = tx.lane.round();
        let applied = round.read(tx.state.rings[usize::from(full.0)].applied_at(), 8);
        let done = tx.lane.execute(round).await?;
        tx.state.rings[usize::from(full.0)].learn(done.words(applied)[0]);
    }
    Ok(LogEntry { participants, words })
}

/// Reserves room in every participant's ring. Fails with the first node whose ring has none.
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

/// Sends the entry to every participant's ring and waits for all of them (invariant 4). From here
/// on the transaction does not abort. If the answer is lost, its outcome is unknown, and its locks
/// stay for recovery.
pub(super) async fn write_log(tx: &mut Tx<'_>, entry: LogEntry, by: Primitive, flush: bool) -> Result<(), Stop> {
    debug_assert!(tx.state.sets.write_set_is_locked(), "occ 1: all written records are locked before the log is sent");
    debug_assert!(
        tx.state.reservations.iter().map(|(node, _)| *node).eq(nodes(entry.participants)),
        "occ 3: the client has reserved room in the ring of every participant"
    );
    let id = tx.id.to_bits();
    // The replicas make the entry themselves, if they can.
    let mut edit = edit_request(tx, &entry);
    let mut edited = [None; LOG_NODES_MAX];
    let long = if edit.is_none() { write_front(tx, &entry, by, flush).await? } else { LongFrame::default() };
    // The last round has what the rounds before have not sent.
    let sent = long.sent;
    let mut round = tx.lane.round();
    let staged = round.stage_words(if edit.is_some() { 0 } else { entry.words - sent });
    if edit.is_none() {
        let frame = round.staged_mut(staged);
        if sent > 0 { frame.copy_from_slice(long.rest()) } else { encode(tx, &entry, frame) }
    }
    let state = &mut *tx.state;
    let by_call = by == Primitive::Call || edit.is_some();
    let mut asked = [(NodeId(0), Default::default()); LOG_NODES_MAX];
    let mut asked_count = 0;
    for &(node, reservation) in &state.reservations {
        let ring = &mut state.rings[usize::from(node.0)];
        if by_call {
            let Placement { at, reach, skip } = ring.take(reservation, id);
            if let Some((to, reach)) = reach {
                round.call(node, &[Code::Log.word(0), to.offset, reach], None, 0);
            }
            if let Some((from, skip)) = skip {
                let staged = round.stage(skip.as_bytes());
                round.call(node, &[Code::Log.word(0), from.offset], Some(staged), 0);
            }
            let at = at.plus((sent * WORD_BYTES) as u64);
            if let Some((primary, request)) = &mut edit {
                request[1] = at.offset;
                if let Some(call) = edited.iter_mut().find(|call| call.is_none()) {
                    *call = Some(round.call(node, request, None, 1));
                }
                if let (true, [edit, ..]) = (node == *primary, &mut state.sets.edits[..]) {
                    edit.frame_at = at.offset;
                }
            } else {
                round.call(node, &[Code::Log.word(0), at.offset], Some(staged), 0);
            }
        } else {
            ring.append_from(&mut round, staged, sent, reservation, id);
            if flush {
                round.flush(node);
            }
        }
        if ring.half_full() {
            // This READ costs no round trip here, and saves one later.
            asked[asked_count] = (node, round.read(ring.applied_at(), 8));
            asked_count += 1;
        }
    }
    if mutant!(CommitBeforeLog) {
        tx.lane.post(round);
        return Ok(());
    }
    // The round is executed in the place where it is kept. A copy would have to wait until its
    // parts have been stored.
    tx.logging = Some(tx.lane.execute(round));
    if let Some(log) = tx.logging.take_if(|log| !log.was_sent()) {
        // No memory node will ever have any of the entry. So the transaction has aborted, and
        // releases its locks.
        let state = &mut *tx.state;
        for (node, reservation) in state.reservations.drain(..) {
            state.rings[usize::from(node.0)].give_back(reservation);
        }
        return log.await.map(|_| ()).map_err(Stop::from);
    }
    // From here on, neither an error nor a drop may release the locks.
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
    if edited.iter().flatten().any(|call| done.reply(*call) != [1]) {
        tracing::error!(id = %tx.id, "a replica has not made a log entry: the outcome is unknown");
        tx.state.doubt();
        return Err(Stop::Unknown(tx.id));
    }
    Ok(())
}

/// Encodes the log entry into its frame.
fn encode(tx: &Tx<'_>, entry: &LogEntry, frame: &mut [u64]) {
    let sets = &tx.state.sets;
    let records = sets.items.iter().filter(|item| item.is_written()).map(|item| LoggedRecord {
        pointer: item.location.pointer,
        old_version: item.version.to_bits(),
        image: sets.image(item),
        patches: sets.patches(item),
    });
    let entry_words = 2..frame.len() - 1;
    log::encode(&mut frame[entry_words], tx.state.epoch, entry.participants, records);
    ring::seal(frame, tx.id.to_bits());
}

/// Writes a log entry of several pieces to the room that is reserved in every participant's ring,
/// except its last piece. As long as that piece is missing, the transaction may abort.
async fn write_front(tx: &Tx<'_>, entry: &LogEntry, by: Primitive, flush: bool) -> Result<LongFrame, Stop> {
    if !LongFrame::is_long(entry.words) {
        return Ok(LongFrame::default());
    }
    let mut words = vec![0; entry.words];
    encode(tx, entry, &mut words);
    let state = &tx.state;
    let places = state.reservations.iter().map(|(node, room)| state.rings[usize::from(node.0)].reserved_at(room));
    let places: Vec<Address> = places.collect();
    LongFrame::write_front(tx.lane, words, &places, by, flush).await
}

/// Returns the call that has a replica make the log entry of the one change of a leaf that the
/// transaction writes, without the place of the entry; and the leaf's primary.
fn edit_request(tx: &Tx<'_>, entry: &LogEntry) -> Option<(NodeId, Vec<u64>)> {
    let sets = &tx.state.sets;
    let item = &sets.items[sets.lone_edit()?];
    let edit = sets.edits.first()?;
    let mut request = vec![
        Code::Edit.word(edit.kind.count(edit.key.len())),
        0,
        tx.id.to_bits(),
        tx.state.epoch,
        entry.participants,
        item.location.pointer.to_bits(),
        item.version.to_bits(),
        edit.shape.to_word(),
    ];
    debug_assert_eq!(request.len(), EDIT_WORDS);
    push_bytes(&mut request, &edit.key);
    push_bytes(&mut request, &edit.value);
    Some((item.address.node, request))
}

/// Returns whether every ring has acknowledged the log, or whether the rounds that follow are left
/// to be posted after the acknowledgement.
pub(super) fn is_logged(tx: &Tx<'_>) -> bool {
    // Without a participant there is no log to send.
    let was_sent = !tx.locking || mutant!(LogAtBackupsOnly);
    was_sent && tx.logging.is_none() || mutant!(CommitBeforeLog)
}

/// Sends the rounds that install the write set at the primaries, and then free the locks. WRITE
/// then CAS is an ordered pair, and a call does one after the other. The slots of deleted records
/// go back to their shards last.
pub(super) fn install_rounds<'s>(tx: &mut Tx<'s>, mut send: impl FnMut(Round<'s>)) {
    debug_assert!(is_logged(tx), "occ 4: every ring has acknowledged the log before anything is installed");
    let me = tx.id.lock();
    let mut round = tx.lane.round();
    let mut deleted = false;
    let sets = &mut tx.state.sets;
    for index in 0..sets.items.len() {
        if !sets.items[index].is_written() {
            continue;
        }
        let item = sets.items[index];
        if item.change == Change::Delete {
            sets.table(item.table).forget(item.home, item.hash, item.location);
        }
        if let Some(edit) = sets.edits.iter().find(|edit| edit.item == index) {
            let install = [Code::Install.word(0), edit.frame_at, item.location.pointer.to_bits(), me.to_bits()];
            round.call(item.address.node, &install, None, 0);
            continue;
        }
        let (image, patches) = (sets.image(&item), sets.patches(&item));
        if !round.has_room(3, size_of_val(image) + size_of_val(patches) + 6 * 8) {
            send(std::mem::replace(&mut round, tx.lane.round()));
        }
        if sets.locks(&item) == Primitive::Call {
            let staged = round.stage_words(patches.len() + image.len());
            if let Some((to_patches, to_image)) = round.staged_mut(staged).split_at_mut_checked(patches.len()) {
                to_patches.copy_from_slice(patches);
                to_image.copy_from_slice(image);
            }
            let commit =
                [Code::Commit.word(patches.len() / PATCH_WORDS), item.location.pointer.to_bits(), me.to_bits()];
            round.call(item.address.node, &commit, Some(staged), 0);
            continue;
        }
        if mutant!(UnlockFirst) {
            swap_lock(&mut round, item.address, Swap::unlock(me));
        }
        round.write_words(item.address.plus(sets.shape(&item).image_at()), image);
        if let (Change::Delete, Some(place)) = (item.change, item.place) {
            let table = sets.table(item.table);
            if !table.entry().spec.discipline.unlinks_by_cpu() {
                // The index has the pair of an inserted key already.
                let pair = table.primary_at(item.location.pointer, place.bucket_slot);
                round.write_words(pair, &[unlinked(place.entry)]);
            }
            deleted = true;
        }
        if !mutant!(UnlockFirst) {
            swap_lock(&mut round, item.address, Swap::unlock(me));
        }
    }
    tx.locking = false;
    if !round.is_empty() {
        send(round);
    }
    if deleted {
        free_rounds(tx, send);
    }
}

/// Sends the rounds that give the slots of deleted records back, after their locks have been freed.
#[cold]
fn free_rounds<'s>(tx: &Tx<'s>, mut send: impl FnMut(Round<'s>)) {
    for item in tx.state.sets.items.iter().filter(|item| item.change == Change::Delete) {
        if tx.state.sets.locks(item) == Primitive::OneSided {
            let free = [Code::Free.word(0), item.location.pointer.to_bits(), item.version.committed_over().to_bits()];
            let mut round = tx.lane.round();
            // The call must come after the unlock, which is in an earlier round. This READ is
            // ordered after the unlock, and the call after the READ.
            round.read(item.address, 8);
            round.after_completion();
            round.call(item.address.node, &free, None, 0);
            send(round);
        }
    }
}

/// Keeps the locks of records that are only read, for the transaction to release when it ends. The
/// locks of the write set are the log's by now, or are being released.
pub(super) fn keep_read_locks(tx: &mut Tx<'_>) {
    if tx.locking {
        return; // the log was never sent, so the transaction still has all its locks
    }
    for item in &mut tx.state.sets.items {
        if item.is_written() {
            debug_assert_eq!(item.lock, Lock::Held, "no_wait 4, dst 9: the log has exclusive locks alone");
            item.lock = Lock::No;
        }
        tx.locking |= item.lock != Lock::No;
    }
}

/// Leaves the installation to the background: it is posted when the log round has been
/// acknowledged.
pub(super) fn leave<'s>(tx: &mut Tx<'s>, log: Execute<'s>) {
    let mut rounds = std::mem::take(&mut tx.unsent);
    install_rounds(tx, |round| rounds.push(round));
    log.then_post_all(rounds);
}
