//! The copy loops of READ and WRITE over shared memory, used by every backend whose memory a CPU copies.
//!
//! They keep rule 2 of the contract: words are atomic, a WRITE becomes visible in ascending order of words, and a line
//! of a record is read whole or seen as changed. The last is not free: a CPU copies eight words one after the other, so
//! a READ looks at a line's first two words before and after the rest, and starts the line again if they changed.
//!
//! # Why a second look suffices
//!
//! A record's writer holds the record's lock (word 0 of its first line). It CASes the lock, then stores the first line
//! from its version on (words 1, 2, ... ascending), then each further line, whose word 0 is that line's version
//! (ascending again), and CASes the lock free last. Every store is Release and every load Acquire, so a reader that has
//! seen a store sees everything its writer did before, in particular the store of the version ahead of it.
//!
//! *First line.* Let the reader get the head (lock, version) = (l, v) at both looks, and suppose a word of the rest came
//! from a writer that installs v' (another version: versions never repeat). That writer stored v' before the word, so
//! the second look sees v' or something later; it saw v; so v = v' was there at the first look already, stored but with
//! the rest unfinished, or finished. If unfinished at the first look, the lock was held by that writer from before v'
//! until after the whole line; if the second look still shows l = that writer's lock, the reader is told "locked by l";
//! if the lock has been freed in between, the second look differs from the first and the line is read again. So a line
//! that shows a free lock is whole, and a torn one shows its writer's lock.
//!
//! *Further lines*, read after the first one, ascending. Suppose the first line was read as (free, v) and whole. A word
//! of a later line can only be newer than v's state if its writer came after that look at the head, and it stored a
//! different line version ahead of the word: the second look at this line's head sees it, and either the line is read
//! again or the line version read differs from v, which the record's check refuses. It cannot be older: v's writer had
//! finished all its lines before it freed the lock that the reader saw free.
//!
//! A READ that covers part of a line looks at that line's head all the same, outside of what it returns. `tests/loom.rs`
//! checks both cases exhaustively for one writer and one reader, with the line cut to four words.
//!
//! The loop ends: it repeats only when a store to this line has happened meanwhile, so some writer makes progress.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::address::LINE_WORDS;

/// A word of shared memory. Implemented by the standard atomic, and by a model checker's in the tests.
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
    for (word, value) in region[start..start + from.len()].iter().zip(from) {
        word.store(*value);
    }
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
        match <&mut [u64; LINE]>::try_from(&mut *now) {
            Ok(whole) => read_whole_line(line, whole),
            Err(_) => read_part_of_line(line, at - line_start, now),
        }
        at += count;
        rest = later;
    }
}

/// The common case, a compile-time count of words.
#[inline(always)]
fn read_whole_line<W: Word, const LINE: usize>(line: &[W], into: &mut [u64; LINE]) {
    debug_assert_eq!(line.len(), LINE);
    loop {
        for (slot, word) in into.iter_mut().zip(line) {
            *slot = word.load();
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
        let head = (line[0].load(), line[1].load());
        for (slot, word) in into.iter_mut().zip(&line[first..]) {
            *slot = word.load();
        }
        if (line[0].load(), line[1].load()) == head {
            return;
        }
        std::hint::spin_loop();
    }
}
