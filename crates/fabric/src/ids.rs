//! The small number types that every file of this crate uses: times, clients, coroutines, rounds.

/// A time in nanoseconds: of CLOCK_MONOTONIC, or of the virtual clock of a seeded run.
pub type Nanos = u64;

/// The number of one incarnation of a client, to which a memory node gives and revokes access. No
/// number is used again while any configuration remembers it. It has 24 bits, because lock words
/// contain it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u32);

/// The number of a coroutine of a worker, which is also the number of its ready bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LaneId(pub u8);

/// The number of a posted round that has not completed: see
/// [`RoundBuffer::ticket`](crate::RoundBuffer::ticket).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub u64);
