//! The places in protocols that a simulation is told of ([`Lane::probe`](crate::Lane::probe)):
//! faults happen there, and a campaign that has never reached one has proved nothing about it.

/// The first lock of a transaction is about to be asked for: it may hold locks from now on.
pub const LOCKS: &str = "locks";
/// The transaction's locks are held, and its read set is validated.
pub const VALIDATED: &str = "validated";
/// The transaction's log is everywhere: it has committed.
pub const LOGGED: &str = "logged";
/// The transaction's write set, and the release of its locks behind it, have been posted.
pub const INSTALLED: &str = "installed";
/// The transaction aborts, and the release of its locks has been posted.
pub const RELEASED: &str = "released";
/// The client waits for room in a log ring.
pub const RING_FULL: &str = "ring-full";
/// What a dead client has left is about to be repaired: its access has been revoked.
pub const REPAIRS: &str = "repairs";
/// A joining replica is about to get what was there before it.
pub const COPIES: &str = "copies";
