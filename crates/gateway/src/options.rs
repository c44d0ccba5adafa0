//! The options of a store: the first sizes of its tables, and the form of large collections.

use remora_redis::tree::{PART_BYTES, SPREAD_BYTES};

/// How large the tables of a store are at first.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Number of keys that there is room for at first.
    pub keys: u64,
    /// Number of pages of spread collections, and of tombstones, that there is room for at first.
    pub pages: u64,
    /// Number of tokens of `REMORA.ONCE` that there is room for at first.
    pub tokens: u64,
    /// Number of copies of each record. If `None`, the cluster's default.
    pub copies: Option<u8>,
    /// Packed collections of more bytes are spread over pages. All gateways of a store must have
    /// the same number.
    pub spread_bytes: usize,
    /// Pages of several elements have at most this many bytes.
    pub page_bytes: usize,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            keys: 16 << 10,
            pages: 256,
            tokens: 8 << 10,
            copies: None,
            spread_bytes: SPREAD_BYTES,
            page_bytes: PART_BYTES,
        }
    }
}
