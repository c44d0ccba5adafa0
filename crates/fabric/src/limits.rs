//! Everything has a limit, and all of this crate's are here. Exceeding one is an error that names it, never a panic.

use crate::address::WORD_BYTES;

/// Verbs of one round. More make a second round, visibly in the round count.
pub const ROUND_VERBS_MAX: usize = 128;

/// Bytes of one round: what it writes and what it reads together.
pub const ROUND_BYTES_MAX: usize = 64 << 10;

/// The same in words.
pub const ROUND_WORDS_MAX: usize = ROUND_BYTES_MAX / WORD_BYTES;

/// Coroutines of one worker: its ready bits are one word.
pub const LANES_MAX: usize = 64;

/// Memory nodes of a cluster.
pub const NODES_MAX: usize = 64;

/// Regions of one memory node: one per NUMA node and NIC, and few machines have more than eight.
pub const REGIONS_PER_NODE_MAX: usize = 8;

/// Polls of its endpoints before an idle worker parks.
pub const IDLE_SPINS: u32 = 64;

/// A timer that is due within this time is spun for: parking costs more than it saves, and wakes late.
pub const SPIN_NS: u64 = 20_000;
