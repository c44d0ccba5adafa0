//! Small numbers that every file of this crate may name: times, clients, coroutines, rounds.

/// Nanoseconds: of CLOCK_MONOTONIC, or of the virtual clock of a seeded run.
pub type Nanos = u64;

/// One incarnation of a client: what a memory node gives access to, and takes it from. Never reused
/// while any configuration remembers it; 24 bits, since it stands in lock words.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u32);

/// A coroutine of a worker: the number of its ready bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LaneId(pub u8);

/// A posted round that has not completed: see [`RoundBuffer::ticket`](crate::RoundBuffer::ticket).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub u64);
