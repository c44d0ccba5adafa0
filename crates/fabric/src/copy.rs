//! The copy loops of READ and WRITE over shared memory, used by every backend whose memory a CPU
//! copies.
//!
//! They keep rule 2 of the contract: words are atomic, a WRITE becomes visible in ascending order
//! of words, and a line of a record is read whole or seen as changed. The last is not free: a CPU
//! copies eight words one after the other, so a READ looks at a line's first two words before and
//! after the rest, and starts the line again if they changed. Before the rest it loads word 1 first
//! and word 0 second; the argument needs that order.
//!
//! # Why a second look suffices
//!
//! A record's writer holds the record's lock (word 0 of its first line). It CASes the lock, then
//! stores the first line from its version on (words 1, 2, ... ascending), then each further line,
//! whose word 0 is that line's version (ascending again), and CASes the lock free last. Every store
//! is Release and every load Acquire, so a reader that has seen a store sees everything its writer
//! did before, in particular the store of the version ahead of it.
//!
//! *First line.* The head is (lock, version). Let the reader load version v, then lock l, then the
//! rest, then see v and l again. No word of the rest is newer than v: its writer stored another
//! version ahead of it (versions never repeat), and the second look would have seen that one or a
//! later one. Nor is a word older than v, if l is free: v's writer took the lock before it stored
//! v, so l, loaded after v, shows that writer's lock or what came later, and "free" means that it
//! had unlocked, after all its words. So a line that shows a free lock is whole, and a torn one
//! shows a lock.
//!
//! Loading the lock first would not do: free, then the writer locks and stores v, then v, then a
//! torn rest, then the writer unlocks, and the second look shows (free, v) again.
//!
//! *Further lines*, read after the first one, ascending; the head's word 0 is the line's version,
//! its word 1 is data. Suppose the first line was read as (free, v) and whole. A word of a later
//! line can only be newer than v's state if its writer came after that look, and it stored a
//! different line version ahead of the word: the second look at this line's head sees it (or the
//! first one does already, if the word was word 1), and either the line is read again or the line
//! version read differs from v, which the record's check refuses. It cannot be older: v's writer
//! had finished all its lines before it freed the lock that the reader saw free.
//!
//! (NICs READ lines in any order, and a CPU's stores between any two: for them that CPU marks a
//! line before it changes it, and gives it its version last, `RecordShape::install` in
//! `remora_record`. Here that makes no difference: the mark is a version ahead of the words that
//! differs from v.)
//!
//! A READ that covers part of a line looks at that line's head all the same, outside of what it
//! returns. `tests/loom.rs` checks both cases exhaustively for one writer and one reader, with the
//! line cut to four words.
//!
//! *Writers without the lock.* Only the CPU of a primary's node writes a record whose lock it does
//! not hold: one that is no key's record, to prepare it for an insert, or to take that back
//! (`remora_index::host`). No mixture of such states says that its key is present.
//!
//! The loop ends: it repeats only when a store to this line has happened meanwhile, so some writer
//! makes progress.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::address::LINE_WORDS;

/// A word of shared memory. Implemented by the standard atomic, and by a model checker's in the
/// tests.
pub trait Word {
    /// Loads with Acquire.
    fn load(&self) -> u64;
    /// Stores with Release.
    fn store(&self, value: u64);
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::Acquire)
    }

    #[inline(always)]
    fn store(&self, value: u64) {
        AtomicU64::store(self, value, Ordering::Release);
    }
}

/// Reads `into.len()` words from word `start` of a region. The caller has checked the bounds.
#[inline]
pub fn read(region: &[AtomicU64], start: usize, into: &mut [u64]) {
    read_lines::<_, LINE_WORDS>(region, start, into);
}

/// Writes words from word `start` of a region on, ascending. The caller has checked the bounds.
#[inline]
pub fn write<W: Word>(region: &[W], start: usize, from: &[u64]) {
    let Some(pause) = PAUSE.with_borrow(Clone::clone) else { return write_at_once(region, start, from) };
    for at in 0..from.len() {
        if at > 0 {
            pause();
        }
        write_at_once(region, start + at, &from[at..=at]);
    }
}

/// Writes words like [`write()`], without pauses between them.
#[inline]
pub(crate) fn write_at_once<W: Word>(region: &[W], start: usize, from: &[u64]) {
    for (word, value) in region[start..start + from.len()].iter().zip(from) {
        word.store(*value);
    }
}

/// What a thread does between two words that it writes.
type Pause = Rc<dyn Fn()>;

thread_local! {
    static PAUSE: RefCell<Option<Pause>> = const { RefCell::new(None) };
}

/// Runs `body`, whose [`write`]s stand still between words and do `pause`: a simulator plays a CPU
/// that others overtake.
pub(crate) fn with_pauses<T>(pause: Pause, body: impl FnOnce() -> T) -> T {
    /// Also after a panic.
    struct Without;
    impl Drop for Without {
        fn drop(&mut self) {
            PAUSE.set(None);
        }
    }
    PAUSE.set(Some(pause));
    let _without = Without;
    body()
}

/// [`read`] for lines of any length, so that a model checker can take short ones.
#[inline]
pub fn read_lines<W: Word, const LINE: usize>(region: &[W], start: usize, into: &mut [u64]) {
    let mut at = start;
    let mut rest = into;
    while !rest.is_empty() {
        let line_start = at - at % LINE;
        let count = (line_start + LINE - at).min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        let line = &region[line_start..line_start + LINE];
        // The common case has a compile-time count of words.
        match (<&[W; LINE]>::try_from(line), <&mut [u64; LINE]>::try_from(&mut *now)) {
            (Ok(line), Ok(whole)) => read_whole_line(line, whole),
            _ => read_part_of_line(line, at - line_start, now),
        }
        at += count;
        rest = later;
    }
}

#[inline(always)]
fn read_whole_line<W: Word, const LINE: usize>(line: &[W; LINE], into: &mut [u64; LINE]) {
    loop {
        into[1] = line[1].load(); // before word 0: see above
        into[0] = line[0].load();
        for word in 2..LINE {
            into[word] = line[word].load();
        }
        if line[0].load() == into[0] && line[1].load() == into[1] {
            return;
        }
        std::hint::spin_loop();
    }
}

#[inline]
fn read_part_of_line<W: Word>(line: &[W], first: usize, into: &mut [u64]) {
    loop {
        let version = line[1].load(); // before word 0: see above
        let head = (line[0].load(), version);
        for (slot, word) in into.iter_mut().zip(&line[first..]) {
            *slot = word.load();
        }
        if (line[0].load(), line[1].load()) == head {
            return;
        }
        std::hint::spin_loop();
    }
}
