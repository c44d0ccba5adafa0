//! The names of the places in protocols that a simulation is told of
//! ([`Lane::probe`](crate::Lane::probe)). Faults happen at these places. A campaign that has never
//! reached a place has proved nothing about it.

/// A phase of a transaction, whose work a simulation charges to the client's CPU
/// ([`Lane::work`](crate::Lane::work)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The records are found and read.
    Execution,
    /// The locks are taken, and the reads are validated.
    Validation,
    /// The write set is logged.
    Logging,
    /// The write set is installed, and its locks are freed.
    Commit,
}

/// The transaction is about to ask for its first lock. It may hold locks from now on.
pub const LOCKS: &str = "locks";
/// The transaction's locks are held, and its read set is validated.
pub const VALIDATED: &str = "validated";
/// The transaction's log is at all replicas that need it: the transaction has committed.
pub const LOGGED: &str = "logged";
/// The transaction's write set, and the release of its locks behind it, have been posted.
pub const INSTALLED: &str = "installed";
/// The transaction aborts, and has posted the release of its locks.
pub const RELEASED: &str = "released";
/// The client waits for room in a log ring.
pub const RING_FULL: &str = "ring-full";
/// The client is about to repair what a dead client has left. The dead client's access has been
/// revoked.
pub const REPAIRS: &str = "repairs";
/// A joining replica is about to get the data that was written before it joined.
pub const COPIES: &str = "copies";
