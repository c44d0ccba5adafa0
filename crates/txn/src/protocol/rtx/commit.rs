//! The commit of `rtx`: locks, validation, the decision, and the swaps.

use std::cell::Cell;
use std::rc::Rc;

use remora_fabric::{Address, Execute, NodeId, Round, WORD_BYTES, probes};
use remora_index::objects::{AT_BLOCKS, BUCKET_BYTES};
use remora_record::{LogPlace, Place, RepairableLock, Version};

use super::execute::{BLOCKS_TAKEN, blocks_arrived, bucket_item, early_lock};
use super::pool::{List, block_address};
use super::repair::{self, address_of, log_of};
use super::state::{Grown, Heard, Look, Plan, Repairs, Site};
use super::validate::{behind_lock, look_at, look_for, make_room, send};
use crate::attempts::{self, SWAPS_MAX, Stage};
use crate::error::{Abort, Limit, Stop};
use crate::limits::READ_PAUSE_NS;
use crate::sets::{Change, Item, Lock, Sets};
use crate::state::State;
use crate::tx::Tx;

/// Returns the numbers of the items that the commit writes.
fn written(sets: &Sets) -> impl Iterator<Item = usize> + '_ {
    (0..sets.items.len()).filter(|index| sets.items[*index].is_written())
}

/// Decides what the commit swaps, and where its log goes.
pub(super) async fn prepare(tx: &mut Tx<'_>, logs_always: bool) -> Result<Plan, Stop> {
    raise_floors(tx);
    take_blocks(tx).await?;
    let State { sets, repairs, .. } = &mut *tx.state;
    repairs.swaps.clear();
    let mut nodes = 0u64;
    for index in written(sets) {
        let item = &sets.items[index];
        let object = *repairs.object(index);
        repairs.swaps.extend(object.swaps(item.location.pointer));
        nodes |= 1 << item.address.node.0;
    }
    if repairs.swaps.len() > SWAPS_MAX {
        return Err(Limit::Set.into());
    }
    let is_spread = nodes.count_ones() > 1;
    let is_place = |index: usize| !sets.items[index].structural;
    let lone = !logs_always && repairs.swaps.len() == 1 && written(sets).all(is_place);
    let here = NodeId(nodes.trailing_zeros() as u16);
    let (place, log) = match (lone, is_spread) {
        (true, _) => (LogPlace::Nowhere, None),
        (false, false) => (LogPlace::Here, Some(here)),
        (false, true) => (LogPlace::Leader, Some(tx.state.nodes.leader())),
    };
    let Some(lock) = RepairableLock::held_by(tx.id, place) else { return Err(Limit::TransactionIds.into()) };
    if let Some(node) = log {
        repair::make_ready(tx.lane, tx.state, node).await?;
    }
    tx.state.repairs.held = Some(lock);
    Ok(Plan { log, lock, is_spread })
}

/// Raises the floor of each chain into which the transaction inserts, or from which it deletes.
fn raise_floors(tx: &mut Tx<'_>) {
    for index in 0..tx.state.sets.items.len() {
        let item = tx.state.sets.items[index];
        if item.structural || !matches!(item.change, Change::Insert | Change::Delete) {
            continue;
        }
        let State { sets, repairs, .. } = &mut *tx.state;
        let main = bucket_item(sets, item.table, item.home);
        debug_assert!(sets.items[main].seen, "rtx: who inserts or deletes has seen the main bucket");
        let object = repairs.object(main);
        let (floor, _) = Version::from_bits(object.new_floor);
        let raised = if item.installs() > floor { item.installs() } else { floor.committed_over() };
        object.new_floor = raised.to_bits();
        sets.touch_structural(main);
    }
}

/// Takes a block for each value that the transaction writes, and says which places it swaps.
async fn take_blocks(tx: &mut Tx<'_>) -> Result<(), Stop> {
    for index in 0..tx.state.sets.items.len() {
        let item = tx.state.sets.items[index];
        if item.structural || !item.is_written() {
            continue;
        }
        let site = Site::of(tx.state.sets.table(item.table), item.location.pointer);
        let place = match item.change {
            Change::Delete => Place::vacated_by(tx.id),
            _ => loop {
                if let Some(place) = tx.state.repairs.take_block(tx.lane, site, item.hash) {
                    break place;
                }
                ask_for_blocks(tx, index, site).await?;
            },
        };
        tx.state.repairs.object(index).new_word = place.to_bits();
    }
    Ok(())
}

/// Asks a shard for blocks: for new ones, and if there are none left, for one that was returned.
async fn ask_for_blocks(tx: &mut Tx<'_>, index: usize, site: Site) -> Result<(), Stop> {
    let item = tx.state.sets.items[index];
    let table = tx.state.sets.table(item.table);
    let mut round = tx.lane.round();
    let add = round.fetch_add(table.primary_at(item.location.pointer, AT_BLOCKS), BLOCKS_TAKEN);
    let done = tx.lane.execute(round).await?;
    let first = done.added(add);
    drop(done);
    let State { sets, repairs, .. } = &mut *tx.state;
    let table = sets.table(item.table);
    let is_left = first < table.objects().map_or(0, |objects| objects.blocks);
    if blocks_arrived(repairs, table, site, first) {
        sets.crowded = Some(item.table);
    }
    if is_left {
        return Ok(());
    }
    if tx.lane.background() > 0 {
        // Blocks that this session has displaced will be free.
        tx.lane.hurry();
        tx.lane.sleep(READ_PAUSE_NS).await;
        return Ok(());
    }
    let table = tx.state.sets.table(item.table);
    if let Some(returned) = List::Blocks.take(tx.lane, table, item.location.pointer).await? {
        tx.state.repairs.add_free(site, returned);
        return Ok(());
    }
    let full = Limit::TableFull { slots: tx.state.sets.table(item.table).rows_of_shard() };
    tx.state.sets.note(index, full.into());
    Err(full.into())
}

/// Writes the values and the log, takes all locks, and validates what was read: one round trip, if
/// all of it is at one node. Returns a round that nothing has to be heard of before the decision,
/// which may be a part of it.
pub(super) async fn lock_and_validate<'s>(tx: &mut Tx<'s>, plan: Plan) -> Result<Round<'s>, Stop> {
    let mut round = tx.lane.round();
    tx.state.repairs.looks.clear();
    if mutant!(LocksBeforeLog) {
        take_locks(tx, &mut round, plan).await?;
        send(tx, &mut round).await?;
    }
    write_values(tx, &mut round).await?;
    if let Some(node) = plan.log {
        begin_log(tx, &mut round, node).await?;
    }
    if plan.is_spread {
        // At the nodes without the log, nothing orders the log before the locks.
        send(tx, &mut round).await?;
    }
    if !mutant!(LocksBeforeLog) {
        take_locks(tx, &mut round, plan).await?;
    }
    let lock_node = tx.state.sets.items.iter().find(|item| item.is_written()).map(|item| item.address.node);
    let only_read = |item: &Item| !item.is_written() && !item.structural;
    let comes_later = |item: &Item| only_read(item) && (plan.is_spread || Some(item.address.node) != lock_node);
    if tx.state.sets.items.iter().any(comes_later) && !mutant!(ValidateWithLocks) {
        send(tx, &mut round).await?;
    }
    look_at(tx, &mut round, true).await?;
    // If the only lock was taken in execution, a value is all that the round has.
    let has_looks = !tx.state.repairs.looks.is_empty() || plan.log.is_some();
    if has_looks || !round.has_room(2, 4 * WORD_BYTES) {
        send(tx, &mut round).await?;
    }
    Ok(round)
}

/// Adds the WRITEs of the values to blocks that only this session uses.
async fn write_values<'s>(tx: &mut Tx<'s>, round: &mut Round<'s>) -> Result<(), Stop> {
    for index in 0..tx.state.sets.items.len() {
        let item = tx.state.sets.items[index];
        if item.structural || !matches!(item.change, Change::Update | Change::Insert) {
            continue;
        }
        let bytes = tx.state.sets.shape(&item).image_words() * WORD_BYTES;
        make_room(tx, round, (1, bytes)).await?;
        let State { sets, repairs, .. } = &mut *tx.state;
        let place = Place::from_bits(repairs.object(index).new_word);
        let Some(block) = block_address(sets.table(item.table), item.location.pointer, place) else {
            return Err(Abort::Changed.into());
        };
        repairs.words.clear();
        sets.encode_image(index, &[place.unmarked()], &mut repairs.words);
        round.write_words(block.plus(sets.shape(&item).image_at()), &repairs.words);
    }
    write_grown(tx, round).await
}

/// Adds the WRITEs of the buckets that the transaction adds to chains, with the objects in them.
async fn write_grown<'s>(tx: &mut Tx<'s>, round: &mut Round<'s>) -> Result<(), Stop> {
    for number in 0..tx.state.repairs.grown.len() {
        make_room(tx, round, (1, BUCKET_BYTES)).await?;
        let State { sets, repairs, .. } = &mut *tx.state;
        let Grown { site, bucket, mut words, .. } = repairs.grown[number];
        let mut at = None;
        for index in written(sets).collect::<Vec<_>>() {
            let (pointer, table) = (sets.items[index].location.pointer, sets.table(sets.items[index].table));
            let Some(geometry) = table.objects().filter(|_| Site::of(table, pointer) == site) else { continue };
            let offset = geometry.buckets.at(bucket);
            at = Some(table.primary_at(pointer, offset));
            let within = pointer.offset().checked_sub(offset).map(|within| within as usize / WORD_BYTES);
            let object = *repairs.object(index);
            if let Some(place) = within.and_then(|within| words.get_mut(within + 1)).filter(|_| object.is_private) {
                *place = object.new_word;
            }
        }
        if let Some(at) = at {
            round.write_words(at, &words);
        }
    }
    Ok(())
}

/// Adds the WRITE of the log's entries, and the CAS that begins the log.
async fn begin_log<'s>(tx: &mut Tx<'s>, round: &mut Round<'s>, node: NodeId) -> Result<(), Stop> {
    let (word_at, entries_at) = log_of(tx, node);
    let repairs = &mut tx.state.repairs;
    let mut words = std::mem::take(&mut repairs.words);
    attempts::encode(&repairs.swaps, &mut words);
    make_room(tx, round, (2, words.len() * WORD_BYTES + 2 * WORD_BYTES)).await?;
    round.write_words(entries_at, &words);
    let repairs = &mut tx.state.repairs;
    repairs.words = words;
    let before = repairs.log_word(node).unwrap_or_default();
    repairs.log_at = Some(node);
    let swap = round.compare_swap(word_at, before, attempts::word(Stage::Begun, tx.id));
    repairs.looks.push(Look::Log { swap });
    tx.locking = true;
    Ok(())
}

/// Adds the CASes that take the locks of all that the transaction writes. READs behind them show
/// whether the words that the commit swaps are still what it has seen.
async fn take_locks<'s>(tx: &mut Tx<'s>, round: &mut Round<'s>, plan: Plan) -> Result<(), Stop> {
    let mut locks = false;
    for index in 0..tx.state.sets.items.len() {
        if !tx.state.sets.items[index].is_written() {
            continue;
        }
        if tx.state.repairs.object(index).is_private {
            tx.state.sets.items[index].lock = Lock::Held;
            continue;
        }
        let early = early_lock(tx.id).filter(|_| tx.state.repairs.object(index).is_locked_early);
        if early == Some(plan.lock) || early.is_some() && mutant!(KeepEarlyLock) {
            // It was validated when it was taken.
            continue;
        }
        let words = behind_lock(&tx.state.sets.items[index]);
        make_room(tx, round, (2, 3 * WORD_BYTES + words.len())).await?;
        let State { sets, repairs, .. } = &mut *tx.state;
        let item = &mut sets.items[index];
        let object = repairs.object(index);
        // A lock that was taken early gets the word that names the log. A repairer that knows the
        // former word takes it for a lock without a log.
        let swap = plan.lock.taken_from(early.map_or(object.free, RepairableLock::word));
        item.lock = Lock::Maybe;
        tx.locking = true;
        if !std::mem::replace(&mut locks, true) {
            tx.lane.probe(probes::LOCKS);
        }
        let swap = round.compare_swap(item.address, swap.from.to_bits(), swap.to.to_bits());
        let read = round.read(item.address.plus(words.start as u64), words.len());
        repairs.looks.push(Look::Lock { item: index, swap, read });
    }
    // Behind the lock of its chain, an inserted key stays absent.
    for index in 0..tx.state.sets.items.len() {
        if tx.state.sets.items[index].change == Change::Insert && !mutant!(AbsentWithoutValidation) {
            look_for(tx, round, index).await?;
        }
    }
    Ok(())
}

/// Decides the transaction, by the next verbs of a round: it has committed if this returns `Ok`.
pub(super) async fn decide<'s>(tx: &mut Tx<'s>, plan: Plan, mut round: Round<'s>) -> Result<(), Stop> {
    debug_assert!(tx.state.sets.write_set_is_locked(), "rtx 1: a transaction decides under all its locks");
    let swap = match plan.log {
        Some(node) => {
            let (word_at, _) = log_of(tx, node);
            round.compare_swap(word_at, attempts::word(Stage::Begun, tx.id), attempts::word(Stage::Decided, tx.id))
        }
        None => {
            let Some(swap) = tx.state.repairs.swaps.first().copied() else { return Err(Abort::Changed.into()) };
            let at = tx.state.sets.items.iter().find(|item| item.is_written()).map(|item| item.address);
            let Some(at) = at else { return Err(Abort::Changed.into()) };
            let install = round.compare_swap(at.plus(swap.word * WORD_BYTES as u64), swap.old, swap.new);
            round.compare_swap(at, plan.lock.word().to_bits(), plan.lock.freed().to_bits());
            install
        }
    };
    free_unwritten(tx, &mut round);
    let posted = tx.lane.execute(round);
    if !posted.was_sent() {
        return posted.await.map(|_| ()).map_err(Stop::from);
    }
    tx.state.repairs.deciding = Some((plan, swap));
    tx.logging = Some(posted);
    let Some(posted) = &mut tx.logging else { return Err(Abort::Changed.into()) };
    let answer = posted.await;
    tx.logging = None;
    tx.state.repairs.deciding = None;
    let is_decided = match &answer {
        Ok(done) => done.swapped(swap),
        Err(error) => {
            tracing::warn!(id = %tx.id, %error, "the answer to a commit was lost: the outcome is unknown");
            tx.state.repairs.outcomes.left(tx.id);
            forget(tx);
            return Err(Stop::Unknown(tx.id));
        }
    };
    drop(answer);
    if plan.log.is_none() {
        // The round has also freed the lock, if this attempt still had it.
        tx.state.sets.items.iter_mut().for_each(|item| item.lock = Lock::No);
        tx.locking = false;
    }
    if is_decided || mutant!(InstallUntested) && plan.log.is_none() { Ok(()) } else { Err(Abort::Changed.into()) }
}

/// Frees the locks that execution has taken of records which the transaction does not change. They
/// were validated, like all that is only read.
fn free_unwritten<'s>(tx: &mut Tx<'s>, round: &mut Round<'s>) {
    let Some(early) = early_lock(tx.id) else { return };
    let State { sets, repairs, .. } = &mut *tx.state;
    let is_due = |item: &Item| item.lock == Lock::Held && !item.is_written() && !item.structural;
    for (index, item) in sets.items.iter_mut().enumerate().filter(|(_, item)| is_due(item)) {
        debug_assert!(repairs.object(index).is_locked_early, "rtx: only written records are locked by the commit");
        if !round.has_room(1, 2 * WORD_BYTES) {
            tx.lane.post(std::mem::replace(round, tx.lane.round()));
        }
        item.lock = Lock::No;
        round.compare_swap(item.address, early.word().to_bits(), early.freed().to_bits());
    }
}

/// Leaves to others what has become of the attempt, because its answer was not heard.
fn forget(tx: &mut Tx<'_>) {
    let State { sets, repairs, .. } = &mut *tx.state;
    if let Some(node) = repairs.log_at.take() {
        repairs.note_log_word(node, None);
    }
    repairs.lose_taken();
    sets.items.iter_mut().for_each(|item| item.lock = Lock::No);
    tx.locking = false;
}

/// Drops the transaction while the answer to its decision is awaited. What follows the decision is
/// left to the background. If the attempt turns out to be aborted, others free its locks when they
/// meet them, and this lane ends its log before it begins the next one.
pub(super) fn leave<'s>(tx: &mut Tx<'s>, log: Execute<'s>) {
    let Some((plan, decided)) = tx.state.repairs.deciding.take() else {
        drop(log);
        return forget(tx);
    };
    let State { sets, repairs, .. } = &mut *tx.state;
    let displaced: Vec<_> = (0..sets.items.len()).filter_map(|index| displaced(sets, repairs, index)).collect();
    let (mut rounds, last) = swap_rounds(tx, plan);
    rounds.push(last);
    let repairs = &tx.state.repairs;
    repairs.outcomes.left(tx.id);
    let grown = repairs.grown.iter().map(|grown| (grown.site, grown.place)).collect();
    let taken = repairs.taken.clone();
    let ended = plan.log.map(|node| (node, attempts::word(Stage::Done, tx.id)));
    let (id, outcomes, heard) = (tx.id, repairs.outcomes.clone(), repairs.heard.clone());
    let is_decided = Rc::new(Cell::new(false));
    let is_decided_later = is_decided.clone();
    let mut later = rounds.iter_mut();
    if let Some(first) = later.next() {
        first.fill_later(move |answers, filling| {
            let has_committed = answers.swapped(decided) == Some(true);
            outcomes.ended(id, has_committed);
            is_decided.set(has_committed);
            let (blocks, grown) = if has_committed { (displaced, Vec::new()) } else { (taken, grown) };
            heard.borrow_mut().push(Heard { blocks, grown, log: ended.filter(|_| has_committed) });
            if !has_committed {
                filling.clear();
            }
        });
    }
    for round in later {
        let is_decided = is_decided_later.clone();
        round.fill_later(move |_, filling| {
            if !is_decided.get() {
                filling.clear();
            }
        });
    }
    log.then_post_all(rounds);
    forget(tx);
}

/// Returns the place that the commit displaces at an item, if it displaces one.
fn displaced(sets: &Sets, repairs: &mut Repairs, index: usize) -> Option<(Site, Place)> {
    let item = &sets.items[index];
    let is_one = item.is_written() && !item.structural;
    let place = is_one.then(|| repairs.object(index).place()).filter(|place| place.block().is_some())?;
    Some((Site::of(sets.table(item.table), item.location.pointer), place))
}

/// Swaps what the transaction has decided, frees its locks and ends its log, in the background.
pub(super) fn finish(tx: &mut Tx<'_>, plan: Plan) {
    for index in 0..tx.state.sets.items.len() {
        let State { sets, repairs, .. } = &mut *tx.state;
        if let Some((site, place)) = displaced(sets, repairs, index) {
            repairs.displaced(site, place);
        }
    }
    tx.state.repairs.keep_taken();
    tx.state.repairs.outcomes.ended(tx.id, true);
    let sets = &tx.state.sets;
    for item in sets.items.iter().filter(|item| item.change == Change::Delete) {
        sets.table(item.table).forget(item.home, item.hash, item.location);
    }
    if let Some(node) = plan.log {
        let (full, last) = swap_rounds(tx, plan);
        tx.lane.post_all(full.into_iter().chain([last]));
        tx.state.repairs.log_at = None;
        tx.state.repairs.note_log_word(node, Some(attempts::word(Stage::Done, tx.id)));
    }
    tx.state.sets.items.iter_mut().for_each(|item| item.lock = Lock::No);
    tx.locking = false;
}

/// Returns the rounds that follow the decision, to be posted one after the other: full ones, of
/// which there is almost never one, and the last one. Without a log nothing is left to do, and the
/// round only looks.
fn swap_rounds<'s>(tx: &mut Tx<'s>, plan: Plan) -> (Vec<Round<'s>>, Round<'s>) {
    let lane = tx.lane;
    let log_at = plan.log.map(|node| log_of(tx, node).0);
    let State { sets, repairs, .. } = &mut *tx.state;
    let (mut full, mut round) = (Vec::new(), lane.round());
    let Some(log_at) = log_at else {
        if let Some(item) = sets.items.iter().find(|item| item.is_written()) {
            let _look = round.read(item.address, WORD_BYTES);
        }
        return (full, round);
    };
    let mut add = |at: Address, old: u64, new: u64, is_behind_all: bool| {
        if !round.has_room(2, 3 * WORD_BYTES) {
            full.push(std::mem::replace(&mut round, lane.round()));
        } else if is_behind_all && plan.is_spread {
            round.after_completion();
        }
        round.compare_swap(at, old, new);
    };
    let unlock = |add: &mut dyn FnMut(Address, u64, u64, bool)| {
        let (held, freed) = (plan.lock.word().to_bits(), plan.lock.freed().to_bits());
        let locked = sets.items.iter().enumerate().filter(|(index, item)| {
            item.is_written() && !repairs.objects.get(*index).is_some_and(|object| object.is_private)
        });
        for (number, (_, item)) in locked.enumerate() {
            add(item.address, held, freed, number == 0);
        }
    };
    let (decided, ended) = (attempts::word(Stage::Decided, tx.id), attempts::word(Stage::Done, tx.id));
    if mutant!(UnlockBeforeInstall) {
        unlock(&mut add);
    }
    if mutant!(EndBeforeUnlock) {
        add(log_at, decided, ended, true);
    }
    for swap in &repairs.swaps {
        if let Some(address) = address_of(sets, swap.lock) {
            add(address.plus(swap.word * WORD_BYTES as u64), swap.old, swap.new, false);
        }
    }
    if !mutant!(UnlockBeforeInstall) {
        unlock(&mut add);
    }
    if !mutant!(EndBeforeUnlock) {
        add(log_at, decided, ended, true);
    }
    (full, round)
}

/// Sends the rounds that undo what an attempt has begun: it frees the locks that it may have, and
/// ends its log.
pub(super) fn release_rounds<'s>(tx: &mut Tx<'s>, mut send: impl FnMut(Round<'s>)) {
    let State { sets, repairs, rings, .. } = &mut *tx.state;
    repairs.give_back_taken();
    let log_at = repairs.log_at.take();
    if !std::mem::take(&mut tx.locking) {
        return;
    }
    let mut round = tx.lane.round();
    let lane = tx.lane;
    let ended = Some(attempts::word(Stage::Undone, tx.id)).filter(|_| !repairs.is_log_in_doubt);
    let log = log_at.map(|node| {
        repairs.note_log_word(node, ended);
        rings[usize::from(node.0)].attempt_log_at().0
    });
    let stage = |stage| attempts::word(stage, tx.id);
    if let Some(at) = log {
        round.compare_swap(at, stage(Stage::Begun), stage(Stage::Aborted));
    }
    let mut nodes = log_at.map_or(0u64, |node| 1 << node.0);
    let is_locked = |item: &Item| item.lock != Lock::No;
    let early = early_lock(tx.id);
    let held = repairs.held.or(early);
    let mut is_whole = true;
    for (index, item) in sets.items.iter_mut().enumerate().filter(|(_, item)| is_locked(item)) {
        let object = repairs.objects.get(index).copied().unwrap_or_default();
        let is_early = object.is_locked_early || object.asks.is_some();
        let is_sure = std::mem::replace(&mut item.lock, Lock::No) == Lock::Held;
        // While the word of an early lock is being changed, the lock may have either word.
        let may_be_late = |held: &RepairableLock| !is_early || !is_sure && Some(*held) != early;
        let words = [early.filter(|_| is_early), held.filter(may_be_late)];
        for word in words.into_iter().flatten().filter(|_| !object.is_private) {
            nodes |= 1 << item.address.node.0;
            if !round.has_room(3, 9 * WORD_BYTES) {
                is_whole = false;
                send(std::mem::replace(&mut round, lane.round()));
            }
            round.compare_swap(item.address, word.word().to_bits(), word.freed().to_bits());
        }
    }
    match (log, log_at) {
        (Some(at), _) if is_whole => {
            if nodes.count_ones() > 1 {
                // The log must not end before the last lock is free.
                round.after_completion();
            }
            round.compare_swap(at, stage(Stage::Aborted), stage(Stage::Undone));
        }
        // Nothing orders the rounds. So the lane ends the log before it begins the next one.
        (Some(_), Some(node)) => repairs.note_log_word(node, None),
        _ => {}
    }
    if !round.is_empty() {
        send(round);
    }
    lane.probe(probes::RELEASED);
}
