//! The latch word. It admits one writer or many readers to what it guards, for the time of one
//! operation.
//!
//! ```text
//! | readers : 63 | exclusive : 1 |      bit 63 .. bit 0
//! ```
//!
//! A latch names no owner. In this it differs from a [lock](crate::LockWord): no client can tell
//! which client holds a latch, or release it for a dead client.
//!
//! 1. The writer enters by CAS(free -> exclusive), and leaves by FETCH_ADD([`LEAVE_EXCLUSIVE`]).
//!    The writer may not leave by CAS. A reader that finds the latch taken still adds itself for a
//!    moment, and during that moment the CAS would fail. The writer does not look at the answer
//!    when it does not await its unlatch. So the latch would stay taken for ever.
//! 2. A reader enters by FETCH_ADD([`ENTER_SHARED`]). If the word that it found is exclusive, the
//!    reader is not in. The reader must then subtract itself again by FETCH_ADD([`LEAVE_SHARED`])
//!    before its next attempt. Otherwise the count leaks, and no writer ever enters.
//! 3. No client WRITEs the word, since WRITE and FETCH_ADD are not atomic to each other. Other
//!    latches, which clients enter by CAS alone, may be left by the WRITE of the data. That WRITE
//!    then has to end with the latch word. The latch here is not of that kind.

/// The number that a reader adds to the latch word to enter.
pub const ENTER_SHARED: u64 = 2;
/// The number that a reader adds to the latch word to leave. A reader that was not admitted adds it
/// too, to subtract itself again.
pub const LEAVE_SHARED: u64 = ENTER_SHARED.wrapping_neg();
/// The number that the writer adds to the latch word to leave.
pub const LEAVE_EXCLUSIVE: u64 = LatchWord::EXCLUSIVE.0.wrapping_neg();

/// A latch word, as an atomic verb found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct LatchWord(u64);

impl LatchWord {
    /// A free latch: no writer, and no reader.
    pub const FREE: LatchWord = LatchWord(0);
    /// A latch that a writer holds. No reader has added itself since.
    pub const EXCLUSIVE: LatchWord = LatchWord(1);

    /// Unpacks a word of memory. Every 64-bit value is a valid latch word.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> LatchWord {
        LatchWord(bits)
    }

    /// Packs the latch word into the 64 bits that lie in memory.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the count of readers in the word: readers that are in, and readers that were not
    /// admitted and have not yet subtracted themselves.
    #[inline]
    #[must_use]
    pub fn readers(self) -> u64 {
        self.0 >> 1
    }

    /// Whether a writer holds the latch.
    #[inline]
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        self.0 & LatchWord::EXCLUSIVE.0 != 0
    }

    /// Whether the reader whose FETCH_ADD found this word is in. If not, the reader must add
    /// [`LEAVE_SHARED`] before it tries again.
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

    /// The published error that a test puts back.
    #[derive(Clone, Copy, PartialEq)]
    enum Rule {
        Correct,
        /// The writer leaves by CAS(exclusive -> free), and does not look at the answer.
        LeaveByCas,
        /// A reader that was not admitted does not subtract itself.
        NotTakenBack,
    }

    /// The state of a client between two atomics.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    enum At {
        Door,
        In,
        InVain,
        Done,
    }

    /// Returns the word and the client's state after the next atomic of a client. Client 0 is the
    /// writer; the others are readers.
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
        /// The words that were left when all clients were done.
        ends: HashSet<u64>,
        /// Whether the word was ever exclusive after its writer had left.
        stuck: bool,
    }

    /// Explores every order of the atomics of one writer and two readers.
    fn explore(rule: Rule) -> Explored {
        let (mut all, mut seen, mut open) = (HashSet::new(), Explored::default(), vec![(0u64, [At::Door; 3])]);
        while let Some((word, clients)) = open.pop() {
            // A count that leaks makes new states without end. Three readers too many are enough to
            // see it.
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
