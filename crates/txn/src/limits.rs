//! The limits of this crate: how many records, nodes, attempts and nanoseconds a transaction may
//! take.

use remora_node::limits::FRAME_BYTES_MAX;

/// Largest number of records that one transaction reads and writes.
pub const SET_MAX: usize = 4096;
/// Largest number of memory nodes that the log of one transaction goes to.
pub const LOG_NODES_MAX: usize = 32;
/// How often a transaction reads a record that is locked or torn before it aborts.
pub const READ_ATTEMPTS: u32 = 16;
/// Pause before a transaction reads a locked or torn record again, in nanoseconds. It is about as
/// long as an install takes.
pub const READ_PAUSE_NS: u64 = 400;
/// How often a snapshot reads a record that is being installed before it aborts. Between the reads
/// it pauses, at first for [`READ_PAUSE_NS`], and each time for twice as long.
pub const SNAPSHOT_READS: u32 = 16;
/// How often a scan reads a slot that is locked or torn before it gives up. Between the attempts it
/// pauses for [`LOG_PAUSE_NS`].
pub const SCAN_ATTEMPTS: u32 = 256;
/// How often a transaction looks up a key's location again, when the record at the location is
/// another key's, before it aborts.
pub const LOOKUP_ATTEMPTS: u32 = 8;
/// Largest number of buckets and records that a transaction reads to find one key. It is more than
/// any chain has.
pub const HOPS_MAX: u32 = 4096;
/// How long a client asks a memory node how far it has applied a full log ring, in nanoseconds.
/// After that, the client takes the node for unreachable. The client asks before it takes any lock.
/// A node that is alive applies a ring in far less time.
pub const LOG_PATIENCE_NS: u64 = 800_000_000;
/// Pause between two questions of how far a memory node has applied a log ring, in nanoseconds.
pub const LOG_PAUSE_NS: u64 = 50_000;
/// Unit of the pauses between two attempts of a transaction, in nanoseconds. After attempt n the
/// session pauses for a random time below `BACKOFF_NS << n`. From attempt [`BACKOFF_DOUBLINGS`] on,
/// this bound grows no further.
pub const BACKOFF_NS: u64 = 500;
/// How often the bound of the pause between two attempts doubles, beginning with [`BACKOFF_NS`].
pub const BACKOFF_DOUBLINGS: u32 = 9;
/// How often the bound of the pause between two attempts doubles beyond [`BACKOFF_DOUBLINGS`] while
/// the same holder keeps a lock: once for each [`SAME_HOLDER`] attempts.
pub const HELD_DOUBLINGS: u32 = 3;
/// Number of attempts in a row that meet the same holder of a lock before the pause doubles
/// further. Such a holder is not about to release the lock.
pub const SAME_HOLDER: u32 = 16;

/// Attempts after which a transaction pauses for a random time although it has not met a lock of
/// another client.
pub const LONELY_ATTEMPTS: u32 = 16;

// A transaction must notice soon that a lock has been freed: after about 2 ms at most.
const _: () = assert!(BACKOFF_NS << (BACKOFF_DOUBLINGS + HELD_DOUBLINGS) <= 2_100_000);
/// Largest number of transactions of one client that change a hot record one right behind the
/// other. Then the client pauses, so that others have a chance.
pub const STREAK_MAX: u32 = 16;
/// Number of other coroutines of a client whose transactions commit together with one at a hot
/// record.
pub const MEMBERS_MAX: usize = 63;
/// Largest number of transactions that a session remembers as unsure. It forgets the oldest ones.
pub const UNSURE_MAX: usize = 64;
/// Largest number of records that a transaction names if it is to commit together with others.
pub const MEMBER_RECORDS_MAX: usize = 16;
/// Number of words of a log entry that transactions take together that commit as one, if members
/// bring records along. So the leader's entry stays below the largest one.
pub const LOG_WORDS_SHARED: usize = FRAME_BYTES_MAX / 8 / 2;
/// Largest length of a streak that a client assumes before it has had one, in nanoseconds.
pub const FIRST_STREAK_NS: u64 = 100_000;
/// Number of streaks after which a client listens for others that want the record, if it has met
/// none. It listens more often at first.
pub const LISTEN_STREAKS: u32 = 16;
/// Largest bound of the pause before an attempt at a hot record, in nanoseconds.
pub const TURN_PAUSE_NS_MAX: u64 = 16_000_000;
/// Least time after which the first coroutine in line for a hot record goes on although the turn of
/// another one has not ended, in nanoseconds.
pub const TURN_LAPSE_NS: u64 = 2_000_000;
/// Number of average turns after which the first coroutine in line goes on.
pub const TURN_LAPSES: u64 = 8;
