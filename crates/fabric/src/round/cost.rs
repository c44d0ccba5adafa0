//! The costs of rounds, as exact counts: of a lane or a transaction, and of a round being built.

use crate::limits::{ROUND_BYTES_MAX, ROUND_VERBS_MAX};

/// The exact cost of a lane or a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Round trips that were awaited, and so are on the critical path.
    pub round_trips: u64,
    /// READ verbs, background rounds included. The counts below also include background rounds.
    pub reads: u64,
    /// WRITE verbs, background rounds included.
    pub writes: u64,
    /// CAS and FETCH_ADD verbs, background rounds included.
    pub atomics: u64,
    /// Flushes, background rounds included.
    pub flushes: u64,
    /// Calls that a memory node's CPU serves, background rounds included.
    pub rpcs: u64,
    /// Payload bytes sent to memory nodes, background rounds included.
    pub bytes_out: u64,
    /// Payload bytes received from memory nodes, background rounds included.
    pub bytes_in: u64,
}

impl Cost {
    /// Adds another cost to this one.
    #[inline]
    pub fn add(&mut self, other: &Cost) {
        self.round_trips += other.round_trips;
        self.reads += other.reads;
        self.writes += other.writes;
        self.atomics += other.atomics;
        self.flushes += other.flushes;
        self.rpcs += other.rpcs;
        self.bytes_out += other.bytes_out;
        self.bytes_in += other.bytes_in;
    }

    /// Returns what has been spent since `earlier`, a former value of the same counters.
    #[must_use]
    pub fn since(&self, earlier: &Cost) -> Cost {
        Cost {
            round_trips: self.round_trips - earlier.round_trips,
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            atomics: self.atomics - earlier.atomics,
            flushes: self.flushes - earlier.flushes,
            rpcs: self.rpcs - earlier.rpcs,
            bytes_out: self.bytes_out - earlier.bytes_out,
            bytes_in: self.bytes_in - earlier.bytes_in,
        }
    }
}

/// The cost of a round, counted while the round is built. It consists of two words. A field for
/// each count, written one by one and added up in pairs, would cost more in store forwarding than
/// everything else about a small round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    /// Verbs by kind, 12 bits for each.
    verbs: u64,
    /// Bytes out in the upper half, bytes in in the lower half.
    bytes: u64,
    /// The number of [`Verb::AfterCompletion`](crate::Verb::AfterCompletion), each a further round
    /// trip.
    pub(super) fences: u64,
}

impl Tally {
    const BITS: u32 = 12;
    pub(super) const READ: u64 = 1;
    pub(super) const WRITE: u64 = 1 << Tally::BITS;
    pub(super) const ATOMIC: u64 = 1 << (2 * Tally::BITS);
    pub(super) const FLUSH: u64 = 1 << (3 * Tally::BITS);
    pub(super) const CALL: u64 = 1 << (4 * Tally::BITS);

    #[inline(always)]
    pub(super) fn add(&mut self, verb: u64, bytes_out: usize, bytes_in: usize) {
        self.verbs = self.verbs.wrapping_add(verb);
        self.bytes = self.bytes.wrapping_add((bytes_out as u64) << 32 | bytes_in as u64);
    }

    /// Whether any of the verbs is a call.
    #[inline(always)]
    pub(super) fn has_calls(self) -> bool {
        self.verbs >> (4 * Tally::BITS) != 0
    }

    /// Adds this to a cost. `awaited` says whether the round trips are on the critical path.
    #[inline]
    pub(crate) fn add_to(self, cost: &mut Cost, awaited: bool) {
        let count = |kind: u32| self.verbs >> (kind * Tally::BITS) & ((1 << Tally::BITS) - 1);
        cost.round_trips += if awaited { 1 + self.fences } else { 0 };
        cost.reads += count(0);
        cost.writes += count(1);
        cost.atomics += count(2);
        cost.flushes += count(3);
        cost.rpcs += count(4);
        cost.bytes_out += self.bytes >> 32;
        cost.bytes_in += self.bytes & u64::from(u32::MAX);
    }
}

// A round that is refused because it is full also counts the verbs that did not fit. It is never
// added to a cost.
const _: () = assert!(ROUND_VERBS_MAX < 1 << Tally::BITS);
const _: () = assert!((ROUND_VERBS_MAX as u64 * ROUND_BYTES_MAX as u64) < 1 << 32);
