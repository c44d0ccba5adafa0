//! All limits of this crate. Exceeding one is an error that names the limit, never a panic.

use crate::address::WORD_BYTES;

/// Verbs of one round, at most. More verbs need a second round, which shows in the round count.
pub const ROUND_VERBS_MAX: usize = 128;

/// Bytes of one round, at most: what it writes and what it reads together.
pub const ROUND_BYTES_MAX: usize = 64 << 10;

/// Words of one round, at most: what it writes and what it reads together.
pub const ROUND_WORDS_MAX: usize = ROUND_BYTES_MAX / WORD_BYTES;

/// Coroutines of one worker, at most: its ready bits are one word.
pub const LANES_MAX: usize = 64;

/// Bits of a client's number. Lock words contain that number and have room for no more.
pub const CLIENT_BITS: u32 = 24;

/// Memory nodes of a cluster, at most.
pub const NODES_MAX: usize = 64;

/// Regions of one memory node, at most. There is one for each NUMA node and NIC, and few machines
/// have more than eight.
pub const REGIONS_PER_NODE_MAX: usize = 8;

/// How often an idle worker polls its endpoints before it parks.
pub const IDLE_SPINS: u32 = 64;

/// How long a worker that has several endpoints waits in one of them. Only tests have several.
pub const IDLE_SLICE_NS: u64 = 50_000;

/// The longest wait of a thread in a poller while calls on shared memory are under way, whose
/// replies no poller sees.
pub const WAIT_SLICE_NS_MAX: u64 = 1_000_000;

/// A worker spins for a timer that is due within this time. Parking would cost more than it saves,
/// and would wake late.
pub const SPIN_NS: u64 = 20_000;

/// Words of one frame of the `tcp` backend, at most, for requests and responses alike: what a round
/// carries, and the words around it. A round that writes one staged piece to many places of a node
/// needs several frames.
pub const FRAME_WORDS_MAX: usize = ROUND_WORDS_MAX + 4 * ROUND_VERBS_MAX + 2;

/// Bytes that a thread reads from a connection at once.
pub const RECEIVE_BYTES: usize = 128 << 10;

// Otherwise a frame might never become whole.
const _: () = assert!(RECEIVE_BYTES >= FRAME_WORDS_MAX * WORD_BYTES);

/// Bytes that may wait to be sent to one client. A server does not read from a client that does not
/// fetch its answers.
pub const UNSENT_BYTES_MAX: usize = 1 << 20;

/// Bytes of posted rounds that a client holds back to send them together.
pub const BATCH_BYTES: usize = 64 << 10;

/// Bytes of answers that no coroutine waits for. When there are more, they are sent.
pub const LAZY_BYTES: usize = 16 << 10;

/// The longest time that answers which no coroutine waits for are held back.
pub const LAZY_NS: u64 = 1_000_000;

/// Connections that a server accepts, unless configured otherwise. Connections for administration
/// are not counted.
pub const CONNECTIONS_MAX: usize = 1024;

/// Largest number of threads of a memory node's server.
pub const SERVER_THREADS_MAX: usize = 64;

/// Connections beyond the maximum, so that a full server can still be asked, and told to revoke.
pub const SPARE_CONNECTIONS: usize = 16;

/// The longest time for a handshake, and for the last messages of a connection.
pub const HANDSHAKE_NS: u64 = 2_000_000_000;

/// The longest time for the lookup of a name without a known address. The usual resolver asks its
/// second server after five seconds.
pub const LOOKUP_NS: u64 = 6_000_000_000;

/// The longest time for the lookup of a name with a known address. After that time the known
/// address is used.
pub const LOOKUP_AGAIN_NS: u64 = 20_000_000;

/// Names whose addresses a process remembers, at most.
pub const NAMES_MAX: usize = 1024;

/// Time between two log lines about connections that a server turned away.
pub const TURNED_AWAY_NS: u64 = 1_000_000_000;

/// Time without an answer after which a client takes a node for down.
pub const PATIENCE_NS: u64 = 900_000_000;

/// The longest patience that a client may have with a memory node. The system does not keep a
/// connection alive over pauses of more than some hours.
pub const PATIENCE_MAX_NS: u64 = 86_400_000_000_000;

/// Endpoints that one shared-memory node serves at a time, at most. Each has a channel there.
pub const CHANNELS_MAX: usize = 512;

/// Bytes that a process leaves free when it takes memory to serve: for its own buffers, stacks and
/// tables.
pub const RESERVE_BYTES: u64 = 32 << 20;

/// Bytes of the pieces in which memory is taken. Before each piece, the process checks that enough
/// memory is left.
pub const TAKE_BYTES: usize = 64 << 20;

/// Embedded memory nodes of at most this many bytes together are made without checking how much
/// memory the process may take.
pub const EMBEDDED_UNCHECKED_BYTES: u64 = 256 << 20;
