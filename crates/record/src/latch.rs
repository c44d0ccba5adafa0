//! The latch word: one writer or many readers, for the time of one operation.
//!
//! ```text
//! | readers : 63 | exclusive : 1 |      bit 63 .. bit 0
//! ```
//!
//! A latch names no owner. Unlike with a [lock](crate::LockWord), no client can tell which client
//! holds it, or release it for a dead one.
//!
//! 1. The writer enters by CAS(free -> exclusive), and leaves by FETCH_ADD([`LEAVE_EXCLUSIVE`]). It
//!    may not leave by CAS. A reader that comes in vain adds itself for a moment, and the CAS would
//!    fail because of that. The answer of an unlatch that is not awaited is never looked at, so the
//!    latch would be taken for ever.
//! 2. A reader enters by FETCH_ADD([`ENTER_SHARED`]). If the word that it found is exclusive, the
//!    reader is not in. It must then take itself back by FETCH_ADD([`LEAVE_SHARED`]) before it
//!    comes again; otherwise the count leaks, and no writer ever enters.
//! 3. No client WRITEs the word, since WRITE and FETCH_ADD are not atomic to each other. (A latch
//!    that clients enter by CAS alone may be left by the WRITE of the data, which then has to end
//!    with it. The word here is not such a latch.)

/// What a reader adds to enter.
pub const ENTER_SHARED: u64 = 2;
/// What a reader adds to leave, and what a reader that came in vain adds to take itself back.
pub const LEAVE_SHARED: u64 = ENTER_SHARED.wrapping_neg();
/// What the writer adds to leave.
pub const LEAVE_EXCLUSIVE: u64 = LatchWord::EXCLUSIVE.0.wrapping_neg();

/// A latch word, as an atomic found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct LatchWord(u64);

impl LatchWord {
    /// A free latch: no writer, and no reader.
    pub const FREE: LatchWord = LatchWord(0);
    /// A latch that a writer holds, with no reader that came in vain.
    pub const EXCLUSIVE: LatchWord = LatchWord(1);

    /// Unpacks a word of memory. Every word is some latch word.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> LatchWord {
        LatchWord(bits)
    }

    /// Packs the word.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Counts the readers that are in, and the readers that came in vain and have not taken
    /// themselves back.
    #[inline]
    #[must_use]
    pub fn readers(self) -> u64 {
        self.0 >> 1
    }

    /// Whether a writer is in.
    #[inline]
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        self.0 & LatchWord::EXCLUSIVE.0 != 0
    }

    /// Whether the reader whose FETCH_ADD found this word is in. If not, it must take itself back.
    #[inline]
    #[must_use]
    pub fn admits_reader(self) -> bool {
        !self.is_exclusive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Which published error is put back.
    #[derive(Clone, Copy, PartialEq)]
    enum Rule {
        Correct,
        /// The writer leaves by CAS(exclusive -> free), and does not look at the answer.
        LeaveByCas,
        /// A reader that came in vain does not take itself back.
        NotTakenBack,
    }

    /// Where a client stands between two atomics.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    enum At {
        Door,
        In,
        InVain,
        Done,
    }

    /// The next atomic of client 0, the writer, or of a reader.
    fn step(rule: Rule, word: u64, client: usize, at: At) -> (u64, At) {
        let found = LatchWord::from_bits(word);
        match (client, at) {
            (0, At::Door) if found == LatchWord::FREE => (LatchWord::EXCLUSIVE.to_bits(), At::In),
            (0, At::Door) => (word, At::Door),
            (0, _) if rule == Rule::LeaveByCas => (if found == LatchWord::EXCLUSIVE { 0 } else { word }, At::Done),
            (0, _) => (word.wrapping_add(LEAVE_EXCLUSIVE), At::Done),
            (_, At::Door) if found.admits_reader() => (word.wrapping_add(ENTER_SHARED), At::In),
            (_, At::Door) => (word.wrapping_add(ENTER_SHARED), At::InVain),
            (_, At::InVain) if rule == Rule::NotTakenBack => (word, At::Door),
            (_, At::InVain) => (word.wrapping_add(LEAVE_SHARED), At::Door),
            (_, _) => (word.wrapping_add(LEAVE_SHARED), At::Done),
        }
    }

    #[derive(Default)]
    struct Explored {
        /// The words left when all were done.
        ends: HashSet<u64>,
        /// Whether the word was ever exclusive after its writer had left.
        stuck: bool,
    }

    /// Every order of the atomics of one writer and two readers.
    fn explore(rule: Rule) -> Explored {
        let (mut all, mut seen, mut open) = (HashSet::new(), Explored::default(), vec![(0u64, [At::Door; 3])]);
        while let Some((word, clients)) = open.pop() {
            // A leaking count makes ever new states; three are enough to see it.
            if LatchWord::from_bits(word).readers() > 3 || !all.insert((word, clients)) {
                continue;
            }
            assert!(clients[0] != At::In || clients[1..].iter().all(|&at| at != At::In), "{clients:?} beside a writer");
            if clients == [At::Done; 3] {
                seen.ends.insert(word);
            }
            seen.stuck |= clients[0] == At::Done && LatchWord::from_bits(word).is_exclusive();
            for client in (0..3).filter(|&client| clients[client] != At::Done) {
                let mut next = clients;
                let (word, at) = step(rule, word, client, clients[client]);
                next[client] = at;
                open.push((word, next));
            }
        }
        seen
    }

    #[test]
    fn the_latch_is_free_after_every_order_of_one_writer_and_two_readers() {
        let seen = explore(Rule::Correct);
        assert_eq!(seen.ends, HashSet::from([0]));
        assert!(!seen.stuck);
    }

    #[test]
    fn a_reader_that_does_not_take_itself_back_leaks() {
        assert!(explore(Rule::NotTakenBack).ends.iter().any(|&word| LatchWord::from_bits(word).readers() > 0));
    }

    #[test]
    fn a_writer_that_leaves_by_cas_may_leave_it_exclusive_for_ever() {
        assert!(explore(Rule::LeaveByCas).stuck);
    }
}
