//! Turns at hot records: the coroutines of one client go one after another where they met a lock.
//!
//! Protocols here do not wait for a lock. They abort, pause, and try again. Where many transactions
//! want one record, most attempts fail, and each failure takes the holder's time. So coroutines of
//! one client, which need no network to know of each other, take turns:
//!
//! ```text
//! attempt 1    meets a held lock of R, and aborts                 as ever
//!              stands in line for R                               nothing is sent meanwhile
//! attempt 2    begins when its turn has come, after a pause       against other clients
//!              takes others in the line along, if it can         see `combine.rs`
//! ```
//!
//! A record has a line only while it is hot: from the first transaction that aborts there until
//! some time after the last coroutine has stood in it. As long as there is a line, transactions
//! that name the record for a change stand in it before they send anything. A transaction that has
//! read the record first, and then wants to change it, makes way to the one whose turn it is: it
//! aborts before it commits, and stands in line. Otherwise it would always win, because it has read
//! the record later than one that waited for its turn, and the others would wait for ever.
//!
//! # Invariants
//!
//! 1. **A turn is a hint.** It permits a try, and the lock word alone gives the record. A coroutine
//!    may lose its turn or go without one, which costs time and nothing else. So recovery and
//!    validation know nothing of turns.
//! 2. **Who stands in line holds no lock**, so that waits for turns and waits for locks make no
//!    circle.
//! 3. **A coroutine takes turns in the order of records' names.** If it needs an earlier one, it
//!    first gives the later ones back. So waits for turns make no circle among themselves.
//! 4. **A turn lapses.** If it takes far longer than usual, the first in line goes on without it: a
//!    closure may wait for another transaction that stands in the line behind it.
//!
//! # Streaks and pauses
//!
//! Other clients cannot be asked. A client that has found the record free lets its own line go
//! first: a *streak* of commits, one right behind the other, of which there is a largest number.
//! Then it pauses, as those do that find the record locked: for a random time below a
//! bound. So all clients look for the record at the same rate, whether they have just had it or
//! not. (A pause that begins anew with each transaction favours the last winner, as Ethernet's
//! did.)
//!
//! The bound is a streak's time for each other client that was found to hold the lock lately. That
//! number is the same for all clients, once each has met the others. How often a client itself has
//! found the lock free is not the same: a client that always does would stop to pause, and one that
//! never does would wait ever longer. A client that meets no other one listens now and then, for an
//! eighth of a streak's time: otherwise it would never let another one in.

use std::array;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::combine::SharedBatch;
use crate::limits::{
    FIRST_STREAK_NS, LISTEN_STREAKS, MEMBER_RECORDS_MAX, MEMBERS_MAX, READ_PAUSE_NS, STREAK_MAX, TURN_LAPSE_NS,
    TURN_LAPSES, TURN_PAUSE_NS_MAX,
};
use crate::words::Name;
use remora_fabric::limits::LANES_MAX;
use remora_fabric::{Lane, LaneId, Nanos, Ticket};

/// The lines of one client, for all of its sessions.
#[derive(Clone, Debug)]
pub struct Turns(Rc<Lines>);

impl Default for Turns {
    /// Returns room for some lines, so that in steady state nothing is allocated.
    fn default() -> Turns {
        let lines = (0..LINES).map(|_| Line::new()).collect();
        Turns(Rc::new(Lines {
            count: Cell::new(0),
            lines: RefCell::new(OpenLines { lines, open: 0, places: array::from_fn(|_| Place::new()) }),
            batches: RefCell::new((0..BATCHES).map(|_| SharedBatch::new()).collect()),
        }))
    }
}

/// Number of lines that can be open at a time before their list grows.
const LINES: usize = 32;
/// Number of batches that can be used at a time before there are more.
const BATCHES: usize = 4;
/// Number of coroutines and clients for which a line has room before it grows.
const PLACES: usize = 16;

#[derive(Debug)]
struct Lines {
    /// The number of open lines, which is 0 mostly.
    count: Cell<usize>,
    lines: RefCell<OpenLines>,
    /// Batches that are used again.
    batches: RefCell<Vec<SharedBatch>>,
}

/// What the lines know of a lane.
#[derive(Debug)]
struct Place {
    /// The last alarm of the lane.
    alarm: Nanos,
    /// The records that its transaction wants, while it stands in a line. Empty if it does not
    /// commit together with others.
    wants: Vec<Name>,
    /// Whether its transaction can bring records along that a batch does not have.
    brings: bool,
    /// The records at which its transaction has had its turn.
    had: Vec<Name>,
    /// The batch that it may join.
    called_to: Option<SharedBatch>,
}

impl Place {
    fn new() -> Place {
        let names = || Vec::with_capacity(MEMBER_RECORDS_MAX);
        Place { alarm: 0, wants: names(), brings: false, had: names(), called_to: None }
    }
}

/// The open lines, and behind them lines that were closed, whose memory is used again.
#[derive(Debug)]
struct OpenLines {
    lines: Vec<Line>,
    open: usize,
    places: [Place; LANES_MAX],
}

impl OpenLines {
    fn open(&mut self) -> &mut [Line] {
        &mut self.lines[..self.open]
    }

    fn find(&mut self, name: Name) -> Option<&mut Line> {
        self.open().iter_mut().find(|line| line.name == name)
    }

    /// The line of a record, which is opened if there is none.
    fn of(&mut self, name: Name) -> &mut Line {
        let known = self.open().iter().position(|line| line.name == name);
        let at = known.unwrap_or_else(|| {
            if self.open == self.lines.len() {
                self.lines.push(Line::new());
            }
            let (open, closed) = self.lines.split_at_mut(self.open);
            closed[0].reopen(name);
            // What is hot may have moved: from a leaf that was split, for example.
            let of_table = open.iter().filter(|line| line.name.0 == name.0);
            if let Some(known) = of_table.max_by_key(|line| line.used) {
                closed[0].expect_as(known);
            }
            self.open += 1;
            self.open - 1
        });
        &mut self.lines[at]
    }

    fn close_idle(&mut self, now: Nanos) {
        let mut at = 0;
        while at < self.open {
            if self.lines[at].is_idle(now) {
                self.open -= 1;
                self.lines.swap(at, self.open);
            } else {
                at += 1;
            }
        }
    }
}

#[derive(Debug, Default)]
struct Line {
    name: Name,
    /// The lane whose turn it is, and since when its attempt lasts.
    turn: Option<(LaneId, Nanos)>,
    waiting: VecDeque<(LaneId, Option<Waker>)>,
    /// The round that frees the last turn's locks, if it waits for another round.
    unlock: Option<Ticket>,
    /// The other clients that were found to hold the lock, and when.
    others: Vec<(u32, Nanos)>,
    /// How many streaks in a row have met no other client.
    quiet: u32,
    /// What `quiet` was when the client last listened.
    listened: u32,
    /// How many transactions have committed in this streak.
    streak: u32,
    /// How long the attempts of a streak take together: a running average.
    streak_takes: Nanos,
    /// How long they take at another record of the table. It counts for pauses, as long as nothing
    /// is known of this record.
    expected: Nanos,
    /// How long an attempt takes that commits: a running average.
    takes: Nanos,
    /// When the line was last used.
    used: Nanos,
}

impl Line {
    fn new() -> Line {
        let (waiting, others) = (VecDeque::with_capacity(PLACES), Vec::with_capacity(PLACES));
        Line { waiting, others, ..Line::default() }
    }

    /// Begins anew, for another record, in the same memory.
    fn reopen(&mut self, name: Name) {
        let (mut waiting, mut others) = (std::mem::take(&mut self.waiting), std::mem::take(&mut self.others));
        waiting.clear();
        others.clear();
        *self = Line { name, waiting, others, ..Line::default() };
    }

    /// Expects the same clients here as at another record of the table, and as long streaks, until
    /// it is known better.
    fn expect_as(&mut self, other: &Line) {
        self.others.extend_from_slice(&other.others);
        (self.takes, self.expected) = (other.takes, other.streak());
    }

    fn is_turn_of(&self, lane: LaneId) -> bool {
        self.turn.is_some_and(|(holder, _)| holder == lane)
    }

    /// Gives the turn to the first in line.
    fn pass(&mut self, now: Nanos) {
        self.turn = self.waiting.pop_front().map(|(lane, waker)| {
            waker.into_iter().for_each(Waker::wake);
            (lane, now)
        });
        self.wake_first();
    }

    /// Lets the first in line set its alarm.
    fn wake_first(&mut self) {
        if let Some((_, waker)) = self.waiting.front_mut() {
            waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// How long the first in line waits for a turn that does not end.
    fn lapse(&self) -> Nanos {
        (TURN_LAPSES * self.takes).clamp(TURN_LAPSE_NS, 64 * TURN_LAPSE_NS) + 2 * self.pause()
    }

    /// How long a streak takes.
    fn streak(&self) -> Nanos {
        if self.streak_takes > 0 { self.streak_takes } else { self.expected }
    }

    /// The bound of the pause before a streak.
    fn pause(&self) -> Nanos {
        (self.others.len() as u64 * self.streak()).min(TURN_PAUSE_NS_MAX)
    }

    /// Returns the time for which a client that has met no other one listens before its next
    /// streak, and notes that it does. It listens once behind a streak: an attempt that fails at a
    /// lock of its own client begins a streak anew, and must not make it listen again.
    fn listen(&mut self) -> Nanos {
        let has_listened = std::mem::replace(&mut self.listened, self.quiet) == self.quiet;
        let is_time = self.quiet.is_power_of_two() || self.quiet.is_multiple_of(LISTEN_STREAKS);
        if self.quiet > 0 && !has_listened && is_time { self.streak_takes / 8 } else { 0 }
    }

    /// How long others are remembered.
    fn memory(&self) -> Nanos {
        (64 * self.streak_takes).max(TURN_LAPSE_NS)
    }

    /// Returns whether nobody needs the line any more. It stays for a while without anybody in it,
    /// because coroutines whose transactions have committed together come back together.
    fn is_idle(&self, now: Nanos) -> bool {
        let stays = if self.others.is_empty() { 2 * self.streak_takes.max(self.takes) } else { self.memory() };
        self.turn.is_none() && self.waiting.is_empty() && now.saturating_sub(self.used) >= stays
    }

    /// Notes that an attempt which has taken this long has committed.
    fn committed(&mut self, took: Nanos, now: Nanos) {
        self.used = now;
        self.takes = average(self.takes, took);
        self.streak += 1;
        if self.streak >= STREAK_MAX && !mutant!(EndlessStreaks) {
            self.end_streak(now);
        }
    }

    fn end_streak(&mut self, now: Nanos) {
        self.streak_takes = average(self.streak_takes, u64::from(self.streak) * self.takes);
        self.streak = 0;
        self.quiet = self.quiet.saturating_add(1);
        let forgets = now.saturating_sub(self.memory());
        self.others.retain(|(_, met)| *met >= forgets);
    }

    /// Notes that one comes to the empty line. If the last turn ended long ago, another client may
    /// have come in between, so that the streak has ended.
    fn resume(&mut self, now: Nanos) {
        if self.streak > 0 && now.saturating_sub(self.used) > self.takes {
            self.end_streak(now);
        }
    }
}

/// A running average. It follows shorter times faster than longer ones, and no time counts for more
/// than four times the average: an attempt may have waited for a client that has died.
fn average(before: Nanos, now: Nanos) -> Nanos {
    match before {
        0 => now,
        before if now < before => before - (before - now) / 2,
        before => before + (now.min(4 * before) - before) / 8,
    }
}

impl Turns {
    /// Returns whether any record has a line. Without one, nothing here costs anything.
    #[inline]
    pub(crate) fn are_taken(&self) -> bool {
        self.0.count.get() > 0
    }

    fn with<R>(&self, act: impl FnOnce(&mut OpenLines) -> R) -> R {
        let mut lines = self.0.lines.borrow_mut();
        let result = act(&mut lines);
        self.0.count.set(lines.open);
        result
    }

    /// Notes that an attempt has failed at a record, which has a line from now on. `other` is the
    /// client that was found to hold its lock, if it is another one.
    #[cold]
    pub(crate) fn failed(&self, lane: &Lane, name: Name, other: Option<u32>) {
        let now = lane.now();
        self.with(|lines| {
            lines.close_idle(now);
            let line = lines.of(name);
            line.used = now;
            // If it was not its turn, it has met a transaction of its own client, mostly.
            if let Some((_, since)) = line.turn.filter(|(holder, _)| *holder == lane.id()) {
                if line.streak_takes == 0 {
                    line.streak_takes = (now - since).min(FIRST_STREAK_NS);
                }
                line.streak = 0;
            }
            if let Some(other) = other {
                line.others.retain(|(known, _)| *known != other);
                line.others.push((other, now));
                line.quiet = 0;
            }
        });
    }

    /// Gives the lane's turns back. If its transaction has committed, `unlock` is the round that
    /// frees the locks, if that waits for another round.
    #[cold]
    pub(crate) fn give_back(&self, lane: &Lane, committed: Option<Option<Ticket>>) {
        let now = lane.now();
        self.with(|lines| {
            lines.places[usize::from(lane.id().0)].had.clear();
            for line in lines.open() {
                let Some((_, since)) = line.turn.filter(|(holder, _)| *holder == lane.id()) else { continue };
                if let Some(unlock) = committed {
                    line.unlock = unlock;
                    line.committed(now - since, now);
                }
                line.pass(now);
            }
            lines.close_idle(now);
        });
    }

    /// Takes the turns at those of these records that have lines, beside the turns that the lane
    /// has. Waits until this time at most. The list is empty afterwards. `wants` are all the
    /// records that the transaction wants, if it may commit together with others, and is empty
    /// otherwise. If the transaction `brings` records along, a batch need not have all of them.
    pub(crate) async fn take(
        &self,
        lane: &Lane,
        names: &mut Vec<Name>,
        (wants, brings): (&[Name], bool),
        until: Nanos,
    ) -> Stood {
        let me = lane.id();
        self.with(|lines| {
            names.retain(|name| lines.find(*name).is_some());
            let new = names.iter().filter(|name| lines.find(**name).is_some_and(|line| !line.is_turn_of(me)));
            let Some(first) = new.min().copied() else { return names.clear() };
            // Turns behind the first new one are taken again, in order: invariant 3.
            let now = lane.now();
            for line in lines.open().iter_mut().filter(|line| line.name >= first && line.is_turn_of(me)) {
                names.push(line.name);
                line.pass(now);
            }
            names.sort_unstable();
            names.dedup();
            names.reverse();
        });
        let stood = if names.is_empty() { Stood::Not } else { Stood::HasTurns };
        if !names.is_empty() {
            self.with(|lines| {
                let place = &mut lines.places[usize::from(me.0)];
                place.wants.clear();
                place.wants.extend_from_slice(wants);
                place.brings = brings;
            });
        }
        while let Some(name) = names.pop() {
            let ended = self.stand_in_line(lane, name, until).await;
            if !matches!(ended, Stood::HasTurns) {
                names.clear();
                return ended;
            }
        }
        stood
    }

    /// Makes the lane's coroutine look again at this time, or before.
    pub(crate) fn look_again(&self, lane: &Lane, at: Nanos, context: &mut Context<'_>) {
        let now = lane.now();
        let is_set = self.with(|lines| {
            // An alarm cannot be taken back. So one that comes early enough does for another.
            let alarm = &mut lines.places[usize::from(lane.id().0)].alarm;
            let is_set = *alarm > now && *alarm <= at;
            if !is_set {
                *alarm = at;
            }
            is_set
        });
        if !is_set {
            let _ = pin!(lane.sleep(at.saturating_sub(now))).poll(context);
        }
    }

    /// Returns the first of these records at which the lane would have to stand in line.
    pub(crate) fn first_line(&self, lane: &Lane, names: &[Name]) -> Option<Name> {
        let me = lane.id();
        let is_taken = |lines: &mut OpenLines, name| lines.find(name).is_some_and(|line| !line.is_turn_of(me));
        self.with(|lines| names.iter().copied().find(|name| is_taken(lines, *name)))
    }

    /// Returns whether another lane has its turn at a record, and this one has not had it. (If a
    /// turn lapses, two may go on.)
    pub(crate) fn is_turn_of_another(&self, lane: &Lane, name: Name) -> bool {
        self.with(|lines| {
            let had = lines.places[usize::from(lane.id().0)].had.contains(&name);
            !had && lines.find(name).is_some_and(|line| line.turn.is_some() && !line.is_turn_of(lane.id()))
        })
    }

    /// Returns whether anybody stands behind this lane where it has its turn.
    pub(crate) fn is_followed(&self, lane: &Lane) -> bool {
        let me = lane.id();
        self.with(|lines| lines.open().iter().any(|line| line.is_turn_of(me) && !line.waiting.is_empty()))
    }

    /// Returns how long an attempt takes that commits, at the records where the lane has its turn.
    pub(crate) fn attempt_takes(&self, lane: &Lane) -> Nanos {
        let me = lane.id();
        let takes =
            |lines: &mut OpenLines| lines.open().iter().filter(|line| line.is_turn_of(me)).map(|line| line.takes).max();
        self.with(takes).unwrap_or(0).clamp(FIRST_STREAK_NS, TURN_LAPSE_NS)
    }

    /// Leaves this time out of what the lane's attempt takes. Otherwise a wait whose bound follows
    /// from that would make itself longer.
    pub(crate) fn leave_out(&self, lane: &Lane, time: Nanos) {
        self.with(|lines| {
            for (holder, since) in lines.open().iter_mut().filter_map(|line| line.turn.as_mut()) {
                if *holder == lane.id() {
                    *since += time;
                }
            }
        });
    }

    /// Returns a batch that is not used.
    pub(crate) fn batch(&self) -> SharedBatch {
        let mut batches = self.0.batches.borrow_mut();
        if let Some(free) = batches.iter().find(|batch| !batch.is_used()) {
            return free.clone();
        }
        batches.push(SharedBatch::new());
        batches[batches.len() - 1].clone()
    }

    /// Calls the lanes that stand in line behind this one, and want only records of the batch or
    /// bring the others along. Returns whether it has called any.
    pub(crate) fn call(&self, lane: &Lane, batch: &SharedBatch) -> bool {
        let me = lane.id();
        let mut left = MEMBERS_MAX;
        self.with(|lines| {
            let OpenLines { lines, open, places } = lines;
            let has_room = batch.with(|batch| batch.room > 0);
            for line in lines[..*open].iter_mut().filter(|line| line.is_turn_of(me)) {
                let name = line.name;
                line.waiting.retain_mut(|(lane, waker)| {
                    let place = &mut places[usize::from(lane.0)];
                    let has = |want: &Name| batch.with(|batch| batch.shares(*want));
                    let can = if has_room && place.brings { has(&name) } else { place.wants.iter().all(has) };
                    if left == 0 || place.wants.is_empty() || !can {
                        return true;
                    }
                    left -= 1;
                    place.called_to = Some(batch.clone());
                    waker.take().into_iter().for_each(Waker::wake);
                    false
                });
                line.wake_first();
            }
        });
        left < MEMBERS_MAX
    }

    /// Pauses before an attempt in the lane's turns: for a random time below `bound`, or for as
    /// long as the lines say, if that is longer. It ends at this time at the latest. A transaction
    /// pauses before it has any lock.
    pub(crate) async fn pause(&self, lane: &Lane, bound: Nanos, until: Nanos) {
        let me = lane.id();
        let (of_lines, listens) = self.with(|lines| {
            let new = lines.open().iter_mut().filter(|line| line.is_turn_of(me) && line.streak == 0);
            new.map(|line| (line.pause(), line.listen())).max().unwrap_or((0, 0))
        });
        let time = match bound.max(of_lines) {
            0 => listens,
            bound => lane.random() % bound,
        };
        if time > 0 {
            lane.sleep(time.min(until.saturating_sub(lane.now()))).await;
        }
        let now = lane.now();
        self.with(|lines| {
            let mine = lines.open().iter_mut().filter(|line| line.is_turn_of(me));
            mine.for_each(|line| line.turn = Some((me, now)));
        });
    }

    /// Stands in line until it is the lane's turn, until another lane calls it to its batch, or
    /// until this time.
    async fn stand_in_line(&self, lane: &Lane, name: Name, until: Nanos) -> Stood {
        let me = lane.id();
        let mut standing = Standing { turns: self, lane, name, is_over: false };
        let has_turn = self.with(|lines| {
            let (line, now) = (lines.of(name), lane.now());
            if line.turn.is_none() && line.waiting.is_empty() {
                line.resume(now);
                (line.turn, line.used) = (Some((me, now)), now);
                return true;
            }
            line.used = now;
            line.waiting.push_back((me, None));
            false
        });
        if !has_turn {
            // When the first in line goes on in any case.
            let mut due = None;
            let ended = poll_fn(|context| {
                let now = lane.now();
                let step = self.with(|lines| {
                    let place = &mut lines.places[usize::from(me.0)];
                    if let Some(batch) = place.called_to.take() {
                        return Step::Called(batch);
                    }
                    let line = lines.of(name);
                    let Some(place) = line.waiting.iter().position(|(waiting, _)| *waiting == me) else {
                        return Step::HasTurn;
                    };
                    if until <= now {
                        return Step::Late;
                    }
                    line.waiting[place].1 = Some(context.waker().clone());
                    let mut alarm = until;
                    if place == 0 {
                        let due =
                            *due.get_or_insert(if mutant!(TurnsNeverLapse) { Nanos::MAX } else { now + line.lapse() });
                        if due <= now {
                            line.pass(now);
                            return Step::HasTurn;
                        }
                        alarm = alarm.min(due);
                    }
                    Step::WaitsUntil(alarm)
                });
                match step {
                    Step::HasTurn => return Poll::Ready(Stood::HasTurns),
                    Step::Called(batch) => return Poll::Ready(Stood::Called(batch)),
                    Step::Late => return Poll::Ready(Stood::Late(name)),
                    Step::WaitsUntil(Nanos::MAX) => {}
                    Step::WaitsUntil(alarm) => self.look_again(lane, alarm, context),
                }
                Poll::Pending
            })
            .await;
            match ended {
                Stood::Late(_) => return ended,
                Stood::Called(_) => {
                    standing.is_over = true;
                    return ended;
                }
                Stood::Not | Stood::HasTurns => {}
            }
        }
        standing.is_over = true;
        drop(standing);
        // Behind the unlock of the last turn, on the same endpoint, the lock is free.
        let unlock = self.with(|lines| {
            let had = &mut lines.places[usize::from(me.0)].had;
            if !had.contains(&name) {
                had.push(name);
            }
            lines.find(name).and_then(|line| line.unlock.take())
        });
        if let Some(unlock) = unlock {
            while lane.is_held_back(unlock) {
                lane.sleep(READ_PAUSE_NS).await;
            }
        }
        Stood::HasTurns
    }
}

/// How standing in line has ended.
#[derive(Debug)]
pub(crate) enum Stood {
    /// The records have no lines.
    Not,
    /// The lane has its turns.
    HasTurns,
    /// The lane may join this batch, and has left the line.
    Called(SharedBatch),
    /// The time is over, at the line of this record.
    Late(Name),
}

/// What one that stands in line finds when it looks.
enum Step {
    HasTurn,
    Called(SharedBatch),
    Late,
    /// It waits, and looks again at this time at the latest.
    WaitsUntil(Nanos),
}

/// A coroutine that stands in line. If its future is dropped, it leaves.
struct Standing<'t> {
    turns: &'t Turns,
    lane: &'t Lane,
    name: Name,
    /// Whether its turn has come, or it has been called to a batch.
    is_over: bool,
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (me, now) = (self.lane.id(), self.lane.now());
        self.turns.with(|lines| {
            lines.places[usize::from(me.0)].called_to = None;
            let Some(line) = lines.find(self.name) else { return };
            line.waiting.retain(|(waiting, _)| *waiting != me);
            if line.is_turn_of(me) {
                line.pass(now);
            } else {
                line.wake_first();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use remora_fabric::seeded::Seeded;
    use remora_fabric::{ClientId, Worker};

    use super::*;

    const R: Name = Name(1, 7);
    const S: Name = Name(1, 9);

    /// Runs coroutines on lanes of one worker, whose clock is virtual. Returns what they return.
    fn run<T>(lanes: usize, body: impl AsyncFn(usize, &Lane, &Turns) -> T) -> (Vec<T>, Turns) {
        let fabric = Seeded::new(&[vec![4096]], 1).expect("a test's memory");
        let worker = Worker::new();
        let endpoint = worker.connect(&fabric, ClientId(1)).expect("a client");
        let lanes: Vec<_> = (0..lanes).map(|number| worker.lane(&endpoint, number as u64).expect("a lane")).collect();
        let turns = Turns::default();
        let (body, of_turns) = (&body, &turns);
        let tasks = lanes.iter().enumerate().map(|(number, lane)| (lane.id(), body(number, lane, of_turns)));
        let done = worker.run(tasks.collect::<Vec<_>>());
        (done, turns)
    }

    #[test]
    fn turns_come_in_the_order_of_arrival() {
        let order = RefCell::new(Vec::new());
        let (_, turns) = run(5, async |number, lane, turns| {
            for _ in 0..number {
                lane.yield_now().await;
            }
            turns.failed(lane, R, None);
            turns.take(lane, &mut vec![R], (&[], false), Nanos::MAX).await;
            order.borrow_mut().push(number);
            for _ in 0..10 {
                lane.yield_now().await;
            }
            assert_eq!(order.borrow().last(), Some(&number), "nobody else had a turn meanwhile");
            turns.give_back(lane, Some(None));
        });
        assert_eq!(order.into_inner(), [0, 1, 2, 3, 4]);
        assert!(turns.are_taken(), "the line stays for a while, for those that come back");
    }

    /// Otherwise each of two that go on would make way to the other one for ever.
    #[test]
    fn one_whose_turn_has_lapsed_makes_no_way() {
        run(3, async |number, lane, turns| {
            if number == 0 {
                turns.failed(lane, R, None);
            }
            turns.take(lane, &mut vec![R], (&[], false), Nanos::MAX).await;
            // The turns before the last one lapse meanwhile.
            lane.sleep((number as u64 + 1) * 64 * TURN_LAPSE_NS).await;
            assert!(!turns.is_turn_of_another(lane, R), "{number} has had its turn");
            assert!(!turns.is_turn_of_another(lane, S), "there is no line");
            turns.give_back(lane, Some(None));
        });
        run(2, async |number, lane, turns| {
            if number == 0 {
                turns.failed(lane, R, None);
                turns.take(lane, &mut vec![R], (&[], false), Nanos::MAX).await;
                lane.sleep(1_000).await;
            } else {
                lane.yield_now().await;
                assert!(turns.is_turn_of_another(lane, R));
            }
        });
    }

    #[test]
    fn a_line_is_gone_when_nobody_comes_back() {
        run(1, async |_, lane, turns| {
            for name in [R, S] {
                turns.failed(lane, name, None);
                turns.take(lane, &mut vec![name], (&[], false), Nanos::MAX).await;
                lane.sleep(1_000).await;
                turns.give_back(lane, Some(None));
                lane.sleep(10_000).await;
            }
            turns.give_back(lane, None);
            assert!(!turns.are_taken());
        });
    }

    #[test]
    fn records_without_a_line_cost_nothing() {
        let (_, turns) = run(1, async |_, lane, turns| {
            turns.take(lane, &mut vec![R, S], (&[], false), Nanos::MAX).await;
            assert!(!turns.are_taken());
            turns.failed(lane, S, None);
            turns.take(lane, &mut vec![R, S], (&[], false), Nanos::MAX).await;
            assert!(turns.with(|lines| lines.find(R).is_none() && lines.find(S).is_some()));
            turns.give_back(lane, None);
        });
        assert!(!turns.are_taken());
    }

    /// Two coroutines that want two records, and meet them in another order, have both.
    #[test]
    fn turns_of_several_records_make_no_circle() {
        let (took, _) = run(2, async |number, lane, turns| {
            let began = lane.now();
            for _ in 0..50 {
                for name in if number == 0 { [R, S] } else { [S, R] } {
                    turns.failed(lane, name, None);
                    turns.take(lane, &mut vec![name], (&[], false), Nanos::MAX).await;
                    lane.yield_now().await;
                }
                turns.give_back(lane, Some(None));
            }
            lane.now() - began
        });
        assert!(took.iter().all(|took| *took < 50 * TURN_LAPSE_NS), "no turn had to lapse: {took:?}");
    }

    #[test]
    fn a_turn_that_is_not_given_back_lapses() {
        let has_begun = Cell::new(false);
        run(3, async |number, lane, turns| {
            if number == 0 {
                turns.failed(lane, R, None);
                turns.take(lane, &mut vec![R], (&[], false), Nanos::MAX).await;
                has_begun.set(true);
                return; // a transaction of a program that has dropped its future
            }
            while !has_begun.get() {
                lane.yield_now().await;
            }
            turns.take(lane, &mut vec![R], (&[], false), Nanos::MAX).await;
            turns.give_back(lane, Some(None));
        });
    }

    /// A future that is dropped in line leaves no gap.
    #[test]
    fn one_that_leaves_the_line_is_passed_over() {
        let (_, turns) = run(3, async |number, lane, turns| {
            turns.failed(lane, R, None);
            if number == 1 {
                let mut names = vec![R];
                let mut standing = pin!(turns.take(lane, &mut names, (&[], false), Nanos::MAX));
                poll_fn(|context| {
                    assert!(standing.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                return;
            }
            let began = lane.now();
            turns.take(lane, &mut vec![R], (&[], false), Nanos::MAX).await;
            assert!(lane.now() - began < TURN_LAPSE_NS, "no turn had to lapse");
            for _ in 0..5 {
                lane.yield_now().await;
            }
            turns.give_back(lane, Some(None));
        });
        turns.with(|lines| assert!(lines.open().iter().all(|line| line.turn.is_none() && line.waiting.is_empty())));
    }

    /// A client that has met others pauses before each streak, also if it was the last winner; one
    /// that has met none listens now and then.
    #[test]
    fn streaks_end_and_others_are_let_in() {
        run(1, async |_, lane, turns| {
            let pause = || turns.with(|lines| lines.find(R).map_or((0, 0), |line| (line.streak, line.pause())));
            for other in [5, 6, 5] {
                turns.failed(lane, R, None);
                turns.take(lane, &mut vec![R], (&[], false), Nanos::MAX).await;
                lane.sleep(10_000).await;
                turns.failed(lane, R, Some(other));
            }
            let (streak, bound) = pause();
            assert!(streak == 0 && bound > 0, "two others were met: {bound}");
            assert_eq!(turns.with(|lines| lines.of(R).others.len()), 2);
            // Without a second coroutine in line, a streak is one transaction.
            turns.take(lane, &mut vec![R], (&[], false), Nanos::MAX).await;
            turns.give_back(lane, Some(None));
            assert!(pause().1 > 0, "the winner pauses as well");
            turns.with(|lines| lines.of(R).others.clear());
            let listened: Vec<bool> = (0..20)
                .map(|quiet| {
                    turns.with(|lines| {
                        let line = lines.of(R);
                        line.quiet = quiet;
                        line.listen() > 0
                    })
                })
                .collect();
            let expected: Vec<bool> = (0..20).map(|quiet| [1, 2, 4, 8, 16].contains(&quiet)).collect();
            assert_eq!(listened, expected);
        });
    }

    #[test]
    fn a_client_that_meets_itself_listens_once() {
        run(1, async |_, lane, turns| {
            turns.failed(lane, R, None);
            turns.take(lane, &mut vec![R], (&[], false), Nanos::MAX).await;
            turns.with(|lines| (lines.of(R).quiet, lines.of(R).streak_takes) = (1, 80_000));
            let mut paused = Vec::new();
            for _ in 0..3 {
                turns.failed(lane, R, None);
                let began = lane.now();
                turns.pause(lane, 0, Nanos::MAX).await;
                paused.push(lane.now() - began >= 10_000);
            }
            assert_eq!(paused, [true, false, false], "it listens once behind a streak");
        });
    }
}
