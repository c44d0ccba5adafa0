//! The commit of FORD: the undo entry and the write set go to every replica, in one chain of verbs
//! for each node.

use remora_fabric::{Address, NodeId, NodeSet, Round};
use remora_node::Pointer;
use remora_node::ring::{self, FRAME_OVERHEAD_WORDS, RingWriter, UNDO_WINDOW};
use remora_record::{LockWord, Version};

use super::Ford;
use super::keep::{Kept, name_formers, write_formers};
use crate::error::{Limit, Stop};
use crate::limits::LOG_NODES_MAX;
use crate::log::{self, UndoKind, UndoRecord};
use crate::protocol::long_frame::LongFrame;
use crate::protocol::nodes;
use crate::protocol::spec::Primitive;
use crate::sets::{Change, Item, Lock, Sets};
use crate::state::Needed;
use crate::tx::Tx;

/// Changes the version of the first header of every chain that gets an insert. So a transaction
/// that has found the key absent sees the insert in any case, even if it reads the slots before
/// this commit and the header after this transaction's unlock.
pub(in crate::protocol) fn touch_chains(tx: &mut Tx<'_>) {
    for index in 0..tx.state.sets.items.len() {
        let sets = &mut tx.state.sets;
        let item = sets.items[index];
        let Some(fstore) = sets.table(item.table).fstore().filter(|_| item.change == Change::Insert) else { continue };
        let header =
            Pointer::new(sets.table(item.table).shard_id(item.home.shard), fstore.buckets.at(item.home.bucket));
        if let Some(header) =
            sets.find_structural(item.table, header).filter(|header| !sets.items[*header].is_written())
        {
            let next = sets.structural_value(&sets.items[header]);
            sets.set_structural(header, next);
        }
    }
}

/// The undo entry of a transaction: which nodes get it, and how long it is.
pub(super) struct UndoEntry {
    participants: u64,
    primaries: u64,
    backups: u64,
    pub(super) words: usize,
    /// In timed tables: the smallest time that the commit may have.
    pub(super) bound: Option<u64>,
    /// Whether the bound is the time of the commit.
    pub(super) is_early: bool,
    /// What the commit overwrites, in the client's archives.
    formers: Option<Kept>,
}

pub(super) fn prepare_entry(tx: &mut Tx<'_>, ford: Ford) -> Result<UndoEntry, Stop> {
    let sets = &mut tx.state.sets;
    sets.encode_images();
    let (mut primaries, mut backups) = (0u64, 0u64);
    for item in sets.items.iter().filter(|item| item.is_written()) {
        for (number, replica) in sets.table(item.table).replicas(item.location.pointer).iter().enumerate() {
            let of_its_kind = if number == 0 { &mut primaries } else { &mut backups };
            *of_its_kind |= 1 << replica.node.0;
        }
    }
    let participants = primaries | backups;
    if participants.count_ones() as usize > LOG_NODES_MAX {
        return Err(Limit::LogNodes { nodes: participants.count_ones() }.into());
    }
    let bound = ford.timed.then(|| sets.time_bound());
    let words = entry_words(sets, bound, is_logged);
    tx.state.fits_log(words)?;
    tx.undo_words = words;
    Ok(UndoEntry { participants, primaries, backups, words, bound, is_early: false, formers: None })
}

/// Returns whether this transaction has kept, for every written slot, what the slot held under its
/// lock, and whether the commit installs a higher version than that.
fn undo_is_whole(tx: &Tx<'_>) -> bool {
    let sets = &tx.state.sets;
    sets.items.iter().filter(|item| item.is_written()).all(|item| {
        let before = item.before(&sets.arena);
        let held = before.first().map_or(Version::default(), |word| Version::from_bits(*word).0);
        before.len() == sets.shape(item).image_words() && (held < item.installs() || mutant!(LockWithoutValidation))
    })
}

/// Returns whether the main header of each chain that gets an insert is locked and written, too.
fn inserts_change_headers(sets: &Sets) -> bool {
    sets.items.iter().filter(|item| item.change == Change::Insert).all(|item| {
        let table = sets.table(item.table);
        let Some(fstore) = table.fstore() else { return true };
        let header = Pointer::new(table.shard_id(item.home.shard), fstore.buckets.at(item.home.bucket));
        sets.find_structural(item.table, header).is_some_and(|header| sets.items[header].is_written())
    }) || mutant!(InsertLeavesHeader)
        || mutant!(InsertBesideLocked)
}

/// Returns whether a record belongs in the undo entry, which has all records that are written.
fn is_logged(item: &Item) -> bool {
    item.is_written() && !(mutant!(InsertsNotLogged) && item.change == Change::Insert)
}

/// Returns the length of the frame of an undo entry of some records, in words.
fn entry_words(sets: &Sets, bound: Option<u64>, logged: impl Fn(&Item) -> bool) -> usize {
    let logged = sets.items.iter().filter(|item| logged(item));
    let records: usize = logged.map(|item| log::RECORD_WORDS + sets.shape(item).image_words()).sum();
    FRAME_OVERHEAD_WORDS + log::undo_header_words(bound) + records
}

/// Returns this lane's ring at a node.
fn ring_of<'t>(tx: &'t Tx<'_>, node: NodeId) -> &'t RingWriter {
    &tx.state.rings[usize::from(node.0)]
}

/// Returns the address of this lane's next undo entry at a node.
pub(super) fn undo_at(tx: &Tx<'_>, node: NodeId) -> Address {
    ring_of(tx, node).undo_at(tx.state.undo.at)
}

/// Installs the write set on every replica, invisible. At each node, the undo entry comes first
/// (invariants 3 and 4).
pub(super) async fn write_replicas(tx: &mut Tx<'_>, entry: &mut UndoEntry, ford: Ford) -> Result<(), Stop> {
    debug_assert!(tx.unsent.is_empty());
    if ford.timed {
        entry.formers = name_formers(tx);
    }
    debug_assert!(tx.state.sets.write_set_is_locked(), "ford 1: a written record is locked by its writer");
    debug_assert!(
        !tx.heir || mutant!(HeirWritesEarly),
        "ford 1: an heir writes when the former holder's release is acknowledged"
    );
    debug_assert!(undo_is_whole(tx), "ford 3: the undo entry has what every written slot held under its lock");
    debug_assert!(
        entry.bound.is_none_or(|bound| bound >= tx.state.sets.time_bound()) || mutant!(),
        "landing 3: the time of a commit is above the times of all that it has read or replaces"
    );
    debug_assert!(
        inserts_change_headers(&tx.state.sets),
        "fstore 1: an insert locks the header of its chain, and changes the header's version"
    );
    let long = write_front(tx, entry, ford).await?;
    let first = commit_rounds(tx, entry, &long, ford);
    if mutant!(CommitBeforeLog) {
        tx.locking = false;
        tx.lane.post(first);
        return Ok(());
    }
    let posted = tx.lane.execute(first);
    if !posted.was_sent() {
        // No memory node will ever have any of the commit. So the transaction has aborted, and
        // releases its locks.
        tx.unsent.clear();
        return posted.await.map(|_| ()).map_err(Stop::from);
    }
    // From here on only recovery may undo the transaction: neither an error nor a drop releases its
    // locks.
    tx.locking = false;
    tx.logging = Some(posted);
    while let Some(posted) = &mut tx.logging {
        let outcome = posted.await;
        tx.logging = None;
        let outcome = outcome.map(|done| {
            // The draws are in the last round.
            match entry.bound.filter(|_| tx.unsent.is_empty() && !entry.is_early) {
                Some(bound) if tx.time == 0 => {
                    tx.state.clocks.note_draws(&done);
                    debug_assert!(
                        tx.state.clocks.have_drawn(bound) || mutant!(),
                        "landing, one clock: no record is visible with a time that is above the clock"
                    );
                    tx.time = tx.state.clocks.time(bound);
                }
                Some(_) => tx.state.clocks.raised(&done, tx.time),
                None => {}
            }
        });
        if let Err(error) = outcome {
            tracing::warn!(id = %tx.id, %error, "the answer to a commit was lost: the outcome is unknown");
            tx.unsent.clear();
            tx.state.doubt();
            tx.state.undo_written(entry.words, Needed::Ever);
            return Err(Stop::Unknown(tx.id));
        }
        if !tx.unsent.is_empty() {
            let next = tx.unsent.remove(0);
            tx.logging = Some(tx.lane.execute(next));
        } else if ford.timed && !entry.is_early && !mutant!(GuardUnraised) {
            // Almost always a guard's clock is there already, or one round brings it there.
            let mut round = tx.lane.round();
            if tx.state.clocks.raise_guards(&mut round, tx.time) {
                tx.logging = Some(tx.lane.execute(round));
            }
        }
    }
    Ok(())
}

/// Returns the first round of the commit. If the commit does not fit one round, the other rounds go
/// to [`Tx::unsent`], to be sent one after the other.
fn commit_rounds<'s>(tx: &mut Tx<'s>, entry: &UndoEntry, long: &LongFrame, ford: Ford) -> Round<'s> {
    let lane = tx.lane;
    let mut round = lane.round();
    write_formers(tx, &mut round, entry.formers, entry.primaries);
    if long.sent > 0 {
        write_rest(tx, &mut round, entry, long);
    } else if !mutant!(DataBeforeLog) {
        write_entry(tx, &mut round, entry, ford.lean);
    }
    let draws = ford.timed && !entry.is_early;
    if draws && mutant!(DrawBeforeData) {
        draw(tx, &mut round, entry);
    }
    let sets = &tx.state.sets;
    let written = || sets.items.iter().filter(|item| item.is_written());
    let mut rounds: Vec<Round<'s>> = Vec::new();
    // The replicas that are written together, by their number: all of them, or backups before
    // primaries.
    let kinds: &[fn(usize) -> bool] =
        if ford.coalesce { &[|_| true] } else { &[|number| number > 0, |number| number == 0] };
    for kind in kinds {
        if !ford.coalesce {
            rounds.push(std::mem::replace(&mut round, lane.round()));
        }
        for item in written() {
            let image = sets.image(item);
            let replicas = sets.table(item.table).replicas(item.location.pointer);
            let verbs = 3 * replicas.len() + entry.backups.count_ones() as usize;
            if !round.has_room(verbs, size_of_val(image)) {
                flush_backups(&mut round, entry, ford);
                rounds.push(std::mem::replace(&mut round, lane.round()));
            }
            let image_at = sets.shape(item).image_at();
            let from = if mutant!(WriteCoversLock) { 0 } else { image_at };
            let lock = (image_at - from) as usize / 8;
            let staged = round.stage_words(lock + image.len());
            let (before, copy) = round.staged_mut(staged).split_at_mut(lock);
            before.fill(tx.id.lock().to_bits());
            copy.copy_from_slice(image);
            if let Some(version) = copy.first_mut().filter(|_| ford.corrections && !mutant!(VisibleAtOnce)) {
                *version |= Version::INVISIBLE;
            }
            for (number, replica) in replicas.iter().enumerate().filter(|(number, _)| kind(*number)) {
                if !ford.corrections {
                    let lock = if number == 0 { tx.id.lock() } else { LockWord::FREE }.to_bits();
                    round.compare_swap(replica.address(item.location.pointer.offset()), lock, lock);
                }
                round.write_staged(replica.address(item.location.pointer.offset() + from), staged);
                if !ford.selective_flush {
                    round.flush(replica.node);
                }
            }
        }
        if kind(1) {
            flush_backups(&mut round, entry, ford);
        }
    }
    if mutant!(DataBeforeLog) && long.sent == 0 {
        write_entry(tx, &mut round, entry, ford.lean);
    }
    if draws && !mutant!(DrawBeforeData) {
        let written_or_guarded = NodeSet::from_bits(entry.participants | guard_nodes(&tx.state.sets));
        let draws = usize::from(tx.state.clocks.nodes_of(written_or_guarded).count());
        if !round.has_room(draws, 8 * draws) {
            rounds.push(std::mem::replace(&mut round, lane.round()));
        }
        draw(tx, &mut round, entry);
    }
    if rounds.is_empty() {
        return round;
    }
    rounds.push(round);
    let first = rounds.remove(0);
    tx.unsent = rounds;
    first
}

/// Returns the nodes that have locks of records which the transaction has only read, a bit each.
fn guard_nodes(sets: &Sets) -> u64 {
    let is_guarded = |item: &&Item| item.lock == Lock::Held && !item.is_written();
    sets.items.iter().filter(is_guarded).fold(0, |at, item| at | 1 << item.address.node.0)
}

/// Draws at each node that the commit writes, behind its data there, and at each node that has the
/// lock of a record which the transaction has only read.
fn draw(tx: &mut Tx<'_>, round: &mut Round<'_>, entry: &UndoEntry) {
    let guards = guard_nodes(&tx.state.sets);
    tx.state.clocks.draw_all(round, NodeSet::from_bits(entry.participants), NodeSet::from_bits(guards));
}

/// Adds the WRITE of the undo entry to every participant.
pub(super) fn write_entry(tx: &Tx<'_>, round: &mut Round<'_>, entry: &UndoEntry, lean: bool) {
    let sets = &tx.state.sets;
    if mutant!(LogOwnRecords) {
        for node in nodes(entry.participants) {
            let is_there = |item: &Item| {
                sets.table(item.table).replicas(item.location.pointer).iter().any(|replica| replica.node == node)
            };
            let logged = |item: &Item| is_logged(item) && is_there(item);
            let own = UndoEntry { words: entry_words(sets, entry.bound, logged), ..*entry };
            write_entry_of(tx, round, &own, lean, 1 << node.0, logged);
        }
        return;
    }
    let to = if mutant!(LogAtPrimary) {
        sets.items.iter().find(|item| item.is_written()).map_or(0, |item| 1 << item.address.node.0)
    } else {
        entry.participants
    };
    write_entry_of(tx, round, entry, lean, to, is_logged);
}

/// Adds the WRITE of an undo entry of some records to these nodes.
fn write_entry_of(
    tx: &Tx<'_>,
    round: &mut Round<'_>,
    entry: &UndoEntry,
    lean: bool,
    to: u64,
    logged: impl Fn(&Item) -> bool,
) {
    let staged = round.stage_words(entry.words);
    encode(tx, entry, lean, round.staged_mut(staged), logged);
    write_reach(tx, round, entry.words, to);
    for node in nodes(to) {
        round.write_staged(undo_at(tx, node), staged);
    }
}

/// Encodes an undo entry of some records into its frame.
fn encode(tx: &Tx<'_>, entry: &UndoEntry, lean: bool, frame: &mut [u64], logged: impl Fn(&Item) -> bool) {
    let sets = &tx.state.sets;
    let records = sets.items.iter().filter(|item| logged(item)).map(|item| UndoRecord {
        pointer: item.location.pointer,
        version: item.installs().to_bits(),
        checksum: sets.shape(item).content_checksum(sets.image(item)),
        before: item.before(&sets.arena),
    });
    let kind = UndoKind { lap: tx.state.undo.lap, lean, bound: entry.bound, is_early: entry.is_early };
    let entry_words = 2..entry.words - 1;
    log::encode_undo(&mut frame[entry_words], [tx.state.epoch, entry.participants], kind, records);
    ring::seal_undo(frame, tx.id.to_bits());
}

/// Adds the WRITE of the word that says how far undo entries reach, if they reach beyond their
/// window.
fn write_reach(tx: &Tx<'_>, round: &mut Round<'_>, words: usize, to: u64) {
    let reach = tx.state.undo.reach_with(words);
    if reach > UNDO_WINDOW {
        let word = round.stage_words(1);
        round.staged_mut(word)[0] = reach;
        nodes(to).for_each(|node| round.write_staged(ring_of(tx, node).reach_at(), word));
    }
}

/// Writes an undo entry of several pieces at every participant, except its last piece. As long as
/// that piece is missing, nothing of the transaction is installed, and it may abort.
async fn write_front(tx: &Tx<'_>, entry: &UndoEntry, ford: Ford) -> Result<LongFrame, Stop> {
    if !LongFrame::is_long(entry.words) {
        return Ok(LongFrame::default());
    }
    let mut words = vec![0; entry.words];
    encode(tx, entry, ford.lean, &mut words, is_logged);
    let places: Vec<Address> = nodes(entry.participants).map(|node| undo_at(tx, node)).collect();
    LongFrame::write_front(tx.lane, words, &places, Primitive::OneSided, ford.selective_flush).await
}

/// Adds the WRITE of the last piece of an undo entry to every participant.
fn write_rest(tx: &Tx<'_>, round: &mut Round<'_>, entry: &UndoEntry, long: &LongFrame) {
    write_reach(tx, round, entry.words, entry.participants);
    let staged = round.stage_words(long.rest().len());
    round.staged_mut(staged).copy_from_slice(long.rest());
    for node in nodes(entry.participants) {
        round.write_staged(undo_at(tx, node).plus(long.sent_bytes()), staged);
    }
}

/// Adds one flush after the last WRITE to each backup. A primary needs none: if it fails, a backup
/// has its content.
fn flush_backups(round: &mut Round<'_>, entry: &UndoEntry, ford: Ford) {
    if ford.selective_flush {
        nodes(entry.backups).for_each(|node| round.flush(node));
    }
}
