//! What rounds cost, in exact counts: of a lane or a transaction, and of a round being built.

use crate::limits::{ROUND_BYTES_MAX, ROUND_VERBS_MAX};

/// What a lane or a transaction has cost: exact counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Round trips that were awaited: those on the critical path.
    pub round_trips: u64,
    /// READ verbs, background rounds included; so for the rest.
    pub reads: u64,
    /// WRITE verbs.
    pub writes: u64,
    /// CAS and FETCH_ADD verbs.
    pub atomics: u64,
    /// Flushes.
    pub flushes: u64,
    /// Calls served by a memory node's CPU.
    pub rpcs: u64,
    /// Payload bytes to memory nodes.
    pub bytes_out: u64,
    /// Payload bytes from memory nodes.
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

    /// What has been spent since `earlier`, a former value of the same counters.
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

/// What a round costs, counted while it is built: two words, because a field for each count,
/// written one by one and added up in pairs, costs more in store forwarding than everything else
/// about a small round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    /// Verbs by kind, 12 bits each.
    verbs: u64,
    /// Bytes out in the upper half, in in the lower.
    bytes: u64,
    /// [`Verb::AfterCompletion`](crate::Verb::AfterCompletion): further round trips.
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

    /// Adds it to a cost; `awaited` says whether its round trips are on the critical path.
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

// A round that is refused because it is full counts the verbs that did not fit, but is never added
// to anything.
const _: () = assert!(ROUND_VERBS_MAX < 1 << Tally::BITS);
const _: () = assert!((ROUND_VERBS_MAX as u64 * ROUND_BYTES_MAX as u64) < 1 << 32);
