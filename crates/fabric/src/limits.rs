//! Everything has a limit, and all of this crate's are here. Exceeding one is an error that names
//! it, never a panic.

use crate::address::WORD_BYTES;

/// Verbs of one round. More make a second round, visibly in the round count.
pub const ROUND_VERBS_MAX: usize = 128;

/// Bytes of one round: what it writes and what it reads together.
pub const ROUND_BYTES_MAX: usize = 64 << 10;

/// Words of one round: what it writes and what it reads together.
pub const ROUND_WORDS_MAX: usize = ROUND_BYTES_MAX / WORD_BYTES;

/// Coroutines of one worker: its ready bits are one word.
pub const LANES_MAX: usize = 64;

/// Bits of a client's number: it stands in lock words, which have room for no more.
pub const CLIENT_BITS: u32 = 24;

/// Memory nodes of a cluster.
pub const NODES_MAX: usize = 64;

/// Regions of one memory node: one per NUMA node and NIC, and few machines have more than eight.
pub const REGIONS_PER_NODE_MAX: usize = 8;

/// Polls of its endpoints before an idle worker parks.
pub const IDLE_SPINS: u32 = 64;

/// How long a worker with several endpoints, as tests have it, waits in one of them.
pub const IDLE_SLICE_NS: u64 = 50_000;

/// A timer that is due within this time is spun for: parking costs more than it saves, and wakes
/// late.
pub const SPIN_NS: u64 = 20_000;

/// Words of one frame of the `tcp` backend, requests and responses alike: what a round carries, and
/// the words around it. A round that writes one staged piece to many places of a node takes
/// several.
pub const FRAME_WORDS_MAX: usize = ROUND_WORDS_MAX + 4 * ROUND_VERBS_MAX + 2;

/// Bytes that a thread reads from a connection at once.
pub const RECEIVE_BYTES: usize = 128 << 10;

// Or a frame might never come to be whole.
const _: () = assert!(RECEIVE_BYTES >= FRAME_WORDS_MAX * WORD_BYTES);

/// Bytes that wait to be sent to one client. A server does not read from a client that does not
/// fetch its answers.
pub const UNSENT_BYTES_MAX: usize = 1 << 20;

/// Bytes of posted rounds that a client holds back to send them together.
pub const BATCH_BYTES: usize = 64 << 10;

/// Bytes of answers that nobody waits for, before they are sent all the same.
pub const LAZY_BYTES: usize = 16 << 10;

/// Time after which answers that nobody waits for are sent all the same.
pub const LAZY_NS: u64 = 1_000_000;

/// Connections that a server takes, unless told otherwise. Those of administration come on top.
pub const CONNECTIONS_MAX: usize = 1024;

/// Connections beyond, so that a server which is full can still be asked, and told to revoke.
pub const SPARE_CONNECTIONS: usize = 16;

/// Time for a handshake, and for a connection's last words.
pub const HANDSHAKE_NS: u64 = 2_000_000_000;

/// Time for a name to be looked up that has no known address. The usual resolver asks its second
/// server after five seconds.
pub const LOOKUP_NS: u64 = 6_000_000_000;

/// Time for a name to be looked up that has a known address. After it the known address is used.
pub const LOOKUP_AGAIN_NS: u64 = 20_000_000;

/// Names that a process remembers addresses of.
pub const NAMES_MAX: usize = 1024;

/// Time between two lines of the log about connections that a server turned away.
pub const TURNED_AWAY_NS: u64 = 1_000_000_000;

/// Time without an answer after which a node is down.
pub const PATIENCE_NS: u64 = 900_000_000;

/// The longest patience of a client with a memory node: the system keeps a connection alive for no
/// longer pauses than some hours.
pub const PATIENCE_MAX_NS: u64 = 86_400_000_000_000;

/// Endpoints that one shared-memory node serves at a time: each has a channel there.
pub const CHANNELS_MAX: usize = 512;

/// Bytes that a process keeps for itself when it takes memory to serve: for buffers, stacks and
/// tables.
pub const RESERVE_BYTES: u64 = 32 << 20;

/// Bytes of the pieces in which memory is taken. Before each piece the process looks whether there
/// is enough left.
pub const TAKE_BYTES: usize = 64 << 20;

/// Embedded memory nodes of at most this many bytes together are made without a look at what the
/// process may take.
pub const EMBEDDED_UNCHECKED_BYTES: u64 = 256 << 20;
