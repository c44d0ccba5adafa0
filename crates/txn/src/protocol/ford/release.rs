//! The release of FORD: the client makes the replicas visible, frees the log entries, and then
//! frees the locks.

use std::cell::OnceCell;
use std::rc::Rc;

use remora_fabric::{AddHandle, Execute, NodeId, Round, Staged};
use remora_node::node::clock_at;
use remora_node::ring::{self};
use remora_record::{RecordShape, Swap, Version};

use super::Ford;
use super::commit::undo_at;
use crate::landing::{CommitTime, Draw, Drawn, LAG_MAX};
use crate::protocol::{Acknowledged, nodes};
use crate::sets::Lock;
use crate::state::Needed;
use crate::swap::swap_lock;
use crate::tx::Tx;

/// Makes the write set of a committed transaction visible, then frees its log entries, and then its
/// locks.
pub(super) async fn release(tx: &mut Tx<'_>, ford: Ford) {
    let lane = tx.lane;
    let release = Release::of(tx, ford, CommitTime::Known(tx.time));
    // If a release has many rounds, the round that frees the entry may come after the next commit.
    let needed = if release.full.is_empty() { Needed::No } else { Needed::Meanwhile };
    tx.state.undo_written(tx.undo_words, needed);
    let locks = tx.state.sets.items.iter().filter(|item| item.lock == Lock::Held).map(|item| item.address);
    tx.state.released.begin(lane, tx.id.lock(), locks);
    if mutant!(UnlockFirst) {
        return release.rounds().for_each(|round| lane.post(round));
    }
    if ford.background_release || ford.timed {
        let unlock = lane.post_all(release.rounds());
        return tx.state.released.by(unlock);
    }
    let mut waiting = Acknowledged::of(tx);
    let mut rounds = Awaited { under_way: None, rest: release.rounds() };
    #[expect(clippy::while_let_on_iterator, reason = "the guard needs what is left of them")]
    while let Some(round) = rounds.rest.next() {
        let outcome = rounds.under_way.insert(lane.execute(round)).await.map(drop);
        rounds.under_way = None;
        if let Err(error) = outcome {
            tracing::warn!(id = %waiting.tx().id, %error, "a release was not acknowledged");
            waiting.tx().state.doubt();
            break;
        }
    }
    waiting.done();
}

/// Rounds that are awaited one after the other. If the future is dropped meanwhile, the other
/// rounds follow in the background.
struct Awaited<'s, I: Iterator<Item = Round<'s>>> {
    under_way: Option<Execute<'s>>,
    rest: I,
}

impl<'s, I: Iterator<Item = Round<'s>>> Drop for Awaited<'s, I> {
    fn drop(&mut self) {
        if let Some(under_way) = self.under_way.take() {
            under_way.then_post_all(&mut self.rest);
        }
    }
}

/// The rounds of a release, each to be sent when the one before has been acknowledged (invariant
/// 5).
///
/// The unlocks are a round of their own rather than the end of a fenced one: a fence holds up what
/// the endpoint's other lanes post behind it, for a round trip.
pub(super) struct Release<'s> {
    /// Full rounds before `shown`, for verbs that had no room in it. There is almost never one.
    full: Vec<Round<'s>>,
    /// The round that makes the versions visible, and at its end frees the undo entry.
    shown: Round<'s>,
    /// Full rounds before `unlocks`, for unlocks that had no room in it.
    full_unlocks: Vec<Round<'s>>,
    unlocks: Round<'s>,
}

/// What a round of a release lacks until the time of the commit is known.
#[derive(Default)]
struct Unsettled {
    /// Images, and where the words that settle them are staged.
    images: Vec<(Staged, RecordShape, Vec<u64>)>,
    /// FETCH_ADDs that raise the clocks of these nodes.
    raises: Vec<(AddHandle, NodeId)>,
}

impl Unsettled {
    /// Has the round filled in when the time is known, if it lacks anything.
    fn fill(&mut self, round: &mut Round<'_>, time: &CommitTime) {
        let Unsettled { images, raises } = std::mem::take(self);
        let CommitTime::Drawn(drawn) = time else { return };
        let drawn = drawn.clone();
        round.fill_later(move |answers, round| {
            let (time, draws) = drawn.time(answers);
            for (staged, shape, mut image) in images {
                shape.settle(&mut image, *time);
                let [(_, words), _] = shape.settled(&image);
                round.staged_mut(staged).copy_from_slice(words);
            }
            for (raise, node) in raises {
                let draw = draws.iter().find(|draw| draw.node == node);
                round.set_added(raise, draw.map_or(0, |draw| draw.lacks(*time)));
            }
        });
    }
}

/// Raises the clocks of the nodes that guard what the commit has only read, if the program does not
/// await that. Only here a FETCH_ADD does it, which may overshoot.
fn raise(draws: &[Draw], round: &mut Round<'_>, time: &CommitTime, unsettled: &mut Unsettled) {
    for draw in draws.iter().filter(|draw| draw.guards) {
        match time {
            CommitTime::Known(time) if draw.lacks(*time) == 0 => {}
            CommitTime::Known(time) => _ = round.fetch_add(clock_at(draw.node), draw.lacks(*time)),
            CommitTime::Drawn(_) => unsettled.raises.push((round.fetch_add(clock_at(draw.node), 0), draw.node)),
        }
    }
}

impl<'s> Release<'s> {
    pub(super) fn rounds(self) -> impl Iterator<Item = Round<'s>> {
        self.full.into_iter().chain([self.shown]).chain(self.full_unlocks).chain([self.unlocks])
    }

    /// Makes the release of a commit whose answers the program does not await any more. It follows
    /// the commit's last round in the background. Only then the commit's time is known.
    pub(super) fn left(tx: &mut Tx<'s>, ford: Ford) -> Release<'s> {
        if !ford.timed || tx.time > 0 {
            return Release::of(tx, ford, CommitTime::Known(tx.time));
        }
        let (draws, bound) = (tx.state.clocks.draws.clone(), tx.state.sets.time_bound());
        let drawn = Drawn { draws, bound, known: OnceCell::new() };
        Release::of(tx, ford, CommitTime::Drawn(Rc::new(drawn)))
    }

    fn of(tx: &mut Tx<'s>, ford: Ford, time: CommitTime) -> Release<'s> {
        debug_assert!(
            !tx.locking && tx.logging.is_none() && (tx.unsent.is_empty() || mutant!(CommitBeforeLog)),
            "ford 4: every replica has acknowledged its chain before the client shows any"
        );
        debug_assert!(
            tx.state.sets.write_set_is_locked(),
            "ford 1: the writer has its locks until every replica is visible"
        );
        let (lane, me) = (tx.lane, tx.id.lock());
        let Ford { corrections, lean, .. } = ford;
        let (mut full, mut shown) = (Vec::new(), lane.round());
        if let CommitTime::Known(time) = time {
            tx.state.sets.settle(time);
        }
        let mut unsettled = Unsettled::default();
        let sets = &tx.state.sets;
        let free_entries = |round: &mut Round<'_>, at: u64| {
            let free = round.stage_words(1);
            round.staged_mut(free)[0] = ring::freed(tx.id.to_bits());
            nodes(at).for_each(|node| round.write_staged(undo_at(tx, node), free));
        };
        if mutant!(FreeBeforeVisible) {
            let written = sets.items.iter().filter(|item| item.is_written());
            let replicas = written.flat_map(|item| sets.table(item.table).replicas(item.location.pointer));
            free_entries(&mut shown, replicas.fold(0, |at, replica| at | 1 << replica.node.0));
        }
        let mut participants = 0u64;
        for item in sets.items.iter().filter(|item| item.is_written()) {
            let table = sets.table(item.table);
            sets.note_place(item);
            let replicas = table.replicas(item.location.pointer);
            if !shown.has_room(2 * replicas.len() + 1, 32 + 16 * replicas.len()) {
                unsettled.fill(&mut shown, &time);
                full.push(std::mem::replace(&mut shown, lane.round()));
            }
            let version = item.installs().to_bits();
            let shape = sets.shape(item);
            if shape.is_timed() && !tx.is_early {
                let [(at, words), _] = shape.settled(sets.image(item));
                let staged = shown.stage_words(words.len());
                shown.staged_mut(staged).copy_from_slice(words);
                let offset = item.location.pointer.offset() + at;
                replicas.iter().for_each(|replica| shown.write_staged(replica.address(offset), staged));
                if let CommitTime::Drawn(_) = time {
                    unsettled.images.push((staged, *shape, sets.image(item).to_vec()));
                }
            }
            let (word, at) = if corrections { (version, shape.image_at()) } else { (me.freed().to_bits(), 0) };
            let staged = shown.stage_words(1);
            shown.staged_mut(staged)[0] = word;
            for (number, replica) in replicas.iter().enumerate() {
                participants |= 1 << replica.node.0;
                let at = replica.address(item.location.pointer.offset() + at);
                if lean && number > 0 && !mutant!(ShowByWrite) {
                    shown.compare_swap(at, version | Version::INVISIBLE, version);
                } else {
                    shown.write_staged(at, staged);
                }
            }
        }
        if lean {
            return Release::lean(tx, full, shown);
        }
        // The clocks have reached the time before the entry is freed (`landing.rs`, 4 and 7).
        let draws = &tx.state.clocks.draws;
        if let (CommitTime::Known(time), true) = (&time, ford.timed && !tx.is_early) {
            for draw in draws.iter().filter(|draw| !draw.guards && draw.lacks(*time) > LAG_MAX) {
                if shown.has_room(1, 16) {
                    let _ = shown.compare_swap(clock_at(draw.node), draw.value(), *time);
                }
            }
        }
        let is_behind = |draw: &Draw| draw.guards && time.get().is_none_or(|time| draw.lacks(time) > 0);
        let behind = if ford.timed { draws.iter().filter(|draw| is_behind(draw)).count() } else { 0 };
        let raises = behind > 0 && !mutant!(GuardUnraised);
        if raises {
            if !shown.has_room(behind, 16 * behind) {
                unsettled.fill(&mut shown, &time);
                full.push(std::mem::replace(&mut shown, lane.round()));
            }
            raise(draws, &mut shown, &time, &mut unsettled);
        }
        unsettled.fill(&mut shown, &time);
        if raises || !shown.has_room(participants.count_ones() as usize, 8) {
            full.push(std::mem::replace(&mut shown, lane.round()));
        }
        if !mutant!(KeepEntries) {
            free_entries(&mut shown, participants);
        }
        let (mut full_unlocks, mut unlocks) = (Vec::new(), lane.round());
        for item in sets.items.iter().filter(|item| item.lock == Lock::Held && (corrections || !item.is_written())) {
            let places = sets.lock_addresses(item, tx.locks_backups()).count();
            if !unlocks.has_room(places, 16 * places) {
                full_unlocks.push(std::mem::replace(&mut unlocks, lane.round()));
            }
            for at in sets.lock_addresses(item, tx.locks_backups()) {
                swap_lock(&mut unlocks, at, Swap::unlock(me));
            }
        }
        Release { full, shown, full_unlocks, unlocks }
    }

    /// Makes the lean release: the round that makes the replicas visible also frees the locks. At
    /// each primary the unlock comes after the record has become visible.
    fn lean(tx: &Tx<'s>, mut full: Vec<Round<'s>>, mut shown: Round<'s>) -> Release<'s> {
        for item in tx.state.sets.items.iter().filter(|item| item.lock == Lock::Held) {
            if !shown.has_room(1, 16) {
                full.push(std::mem::replace(&mut shown, tx.lane.round()));
            }
            swap_lock(&mut shown, item.address, Swap::unlock(tx.id.lock()));
        }
        Release { full, shown, full_unlocks: Vec::new(), unlocks: tx.lane.round() }
    }
}
