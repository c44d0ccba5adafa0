//! A part of a round, as backends over a network send it.

use crate::ids::Nanos;

/// What of a round is in one frame or list: its verbs for this node from `first` to `end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Place of the round.
    pub(crate) slot: u32,
    pub(crate) first: u8,
    pub(crate) end: u8,
    pub(crate) ticket: u64,
    /// When it was sent.
    pub(crate) since: Nanos,
}
