//! The copy loops of READ and WRITE over shared memory. Every backend whose memory a CPU copies
//! uses them.
//!
//! The loops keep rule 2 of the contract. Words are atomic. A WRITE becomes visible in ascending
//! order of words. A line of a record is read whole or seen as changed.
//!
//! A CPU copies the eight words of a line one after the other, so the last promise needs work. A
//! READ looks at a line's first two words before the rest and again after it. If they have changed,
//! it starts the line again. Before the rest, it loads word 1 first and word 0 second. The argument
//! below needs that order.
//!
//! # Why a second look suffices
//!
//! The writer of a record holds the record's lock, which is word 0 of the record's first line. The
//! writer goes in this order:
//!
//! 1. It takes the lock by CAS.
//! 2. It stores the first line from the version on: words 1, 2, ... ascending.
//! 3. It stores each further line, in ascending order. Word 0 of such a line is the line's version.
//! 4. It frees the lock by CAS.
//!
//! Every store is Release and every load Acquire. So a reader that has seen a store sees everything
//! that its writer did before, in particular the store of the version ahead of it.
//!
//! *First line.* The two words at its front, the *head*, are (lock, version). The reader loads
//! version v, then lock l, then the rest. Then it looks at the head again, and sees v and l.
//!
//! - No word of the rest is newer than v. The writer of a newer word stored another version ahead
//!   of that word. Versions never repeat, so the second look would have seen that version or a
//!   later one.
//! - If l is free, no word of the rest is older than v. The writer of v took the lock before it
//!   stored v, and the reader loaded l after v. So l is that writer's lock or a later state of the
//!   word. "Free" then means that the writer had unlocked, which it does after all its words.
//!
//! So a line that shows a free lock is whole, and a torn line shows a lock.
//!
//! The reader must not load the lock first. Otherwise this could happen:
//!
//! 1. The reader loads the lock, which is free.
//! 2. A writer takes the lock and stores v.
//! 3. The reader loads v, and then a torn rest.
//! 4. The writer unlocks.
//! 5. The reader's second look shows (free, v) again.
//!
//! *Further lines* are read after the first line, in ascending order. Word 0 of their head is the
//! line's version, and word 1 is data. Suppose the first line was read as (free, v) and whole.
//!
//! - A word of a later line can be newer than v's state only if its writer came after the look at
//!   the first line. That writer stored a different line version ahead of the word. The second look
//!   at this line's head sees that version. If the word was word 1, the first look sees it already.
//!   Then either the reader starts the line again, or the line version that it read differs from v.
//!   The record's check refuses a line version that differs from v.
//! - No word of a later line can be older than v's state. The writer of v had finished all its
//!   lines before it freed the lock, and the reader saw the lock free.
//!
//! NICs READ lines in any order, and READ a line between any two stores of a CPU. For their sake, a
//! CPU that installs a record marks each further line before it changes the line, and gives the
//! line its version last (`RecordShape::install` in `remora_record`). The argument above still
//! holds: the mark is a version ahead of the words that differs from v.
//!
//! A READ that covers a part of a line also looks at that line's head, outside of what it returns.
//! `tests/loom.rs` checks both cases exhaustively for one writer and one reader, with lines of four
//! words.
//!
//! *Writers without the lock.* Only the CPU of a primary's node writes a record whose lock it does
//! not hold. It does so to a record that belongs to no key, to prepare it for an insert or to undo
//! that (`remora_index::host`). No mixture of such states says that its key is present.
//!
//! The loop ends. It repeats only if a store to the line has happened meanwhile, so some writer has
//! made progress.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::address::LINE_WORDS;

/// A word of shared memory. The standard atomic implements it, and in the tests an atomic of a
/// model checker.
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

/// Writes the words of `from` to a region, beginning at word `start`, in ascending order. The
/// caller has checked the bounds.
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

/// Writes words as [`write()`] does, without pauses between them.
#[inline]
pub(crate) fn write_at_once<W: Word>(region: &[W], start: usize, from: &[u64]) {
    for (word, value) in region[start..start + from.len()].iter().zip(from) {
        word.store(*value);
    }
}

/// The action of a thread between two words that it writes.
type Pause = Rc<dyn Fn()>;

thread_local! {
    static PAUSE: RefCell<Option<Pause>> = const { RefCell::new(None) };
}

/// Runs `body` with a pause between any two words of its [`write`]s. So a simulator plays a CPU
/// that other CPUs overtake.
pub(crate) fn with_pauses<T>(pause: Pause, body: impl FnOnce() -> T) -> T {
    /// Removes the pause, also after a panic.
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

/// Reads as [`read`] does, for lines of any length, so that a model checker can use short ones.
#[inline]
pub fn read_lines<W: Word, const LINE: usize>(region: &[W], start: usize, into: &mut [u64]) {
    let mut at = start;
    let mut rest = into;
    while !rest.is_empty() {
        let line_start = at - at % LINE;
        let count = (line_start + LINE - at).min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        let line = &region[line_start..line_start + LINE];
        // In the common case the count of words is known at compile time.
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
