//! Everything has a limit, and all of this crate's are here.

/// Records of one transaction, read and written.
pub const SET_MAX: usize = 4096;
/// Memory nodes that one transaction's log goes to.
pub const LOG_NODES_MAX: usize = 32;
/// How often a record that is locked or torn is read again before the transaction aborts.
pub const READ_ATTEMPTS: u32 = 16;
/// Pause before a locked or torn record is read again, in nanoseconds: about as long as an install
/// takes.
pub const READ_PAUSE_NS: u64 = 400;
/// How often a scan reads a slot again that is locked or torn, [`LOG_PAUSE_NS`] apart, before it
/// gives up.
pub const SCAN_ATTEMPTS: u32 = 256;
/// How often a location is looked up anew when the record there is another key's.
pub const LOOKUP_ATTEMPTS: u32 = 8;
/// Buckets and records that are read to find one key: more than any chain has.
pub const HOPS_MAX: u32 = 4096;
/// How long a client asks how far a full log ring has been applied, before it gives the node up; in
/// nanoseconds. It does so before it takes any lock. A node that is alive applies a ring in far
/// less.
pub const LOG_PATIENCE_NS: u64 = 800_000_000;
/// Pause between two of these questions, in nanoseconds.
pub const LOG_PAUSE_NS: u64 = 50_000;
/// Longest pause between two attempts is `BACKOFF_NS << BACKOFF_DOUBLINGS`; the first is at most
/// `BACKOFF_NS`.
pub const BACKOFF_NS: u64 = 500;
/// See [`BACKOFF_NS`].
pub const BACKOFF_DOUBLINGS: u32 = 9;
/// Further doublings of the longest pause while the same holder keeps a lock, one for each
/// [`SAME_HOLDER`] attempts.
pub const HELD_DOUBLINGS: u32 = 3;
/// Attempts in a row that meet the same holder before the pause may double: that holder is not
/// about to let go.
pub const SAME_HOLDER: u32 = 16;

// A lock that is freed at last must not wait for long to be noticed: 2 ms.
const _: () = assert!(BACKOFF_NS << (BACKOFF_DOUBLINGS + HELD_DOUBLINGS) <= 2_100_000);
