//! A part of a round, as backends over a network send it to one node.

use crate::ids::Nanos;

/// The part of a round that is in one frame or list: its verbs for this node from `first` to `end`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The place of the round in the transport.
    pub(crate) slot: u32,
    pub(crate) first: u8,
    pub(crate) end: u8,
    pub(crate) ticket: u64,
    /// The time at which the part was sent.
    pub(crate) since: Nanos,
}
