//! The gate of a shared-memory endpoint. The endpoint passes it to execute a round, and other
//! threads close it to stop the endpoint.
//!
//! One thread enters and leaves the gate. Any thread may refuse it some nodes.
//!
//! 1. The refusing thread marks the nodes, and then looks whether the endpoint is inside.
//! 2. The entering thread says that it is inside, and then looks at the marks.
//! 3. All four accesses are sequentially consistent, so at least one of the two threads sees the
//!    other.
//!
//! So either the refusing thread waits for a round that may have missed the mark, or no round has
//! missed it.
//!
//! The atomics come through a trait, so that `tests/loom.rs`, which includes this file, can check
//! this argument.

/// An atomic word of a gate.
pub(crate) trait GateWord {
    /// Loads, sequentially consistent.
    fn load(&self) -> u64;
    /// Stores with Release.
    fn store(&self, value: u64);
    /// Exchanges, sequentially consistent.
    fn swap(&self, value: u64) -> u64;
    /// Sets bits, sequentially consistent.
    fn set_bits(&self, bits: u64);
}

/// A gate between one endpoint and the nodes; see the [module](self).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Gate<W> {
    /// The entry number: odd while the endpoint executes a round.
    inside: W,
    /// Nodes whose verbs are refused, one bit each.
    refused: W,
    /// Not 0 if the nodes are refused because the client was revoked. It is set before `refused`.
    revoked: W,
}

/// The reason why a gate refuses a verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The node is down.
    Down,
    /// The client has lost its access.
    Revoked,
}

impl<W: GateWord> Gate<W> {
    /// Enters the gate for a round. `entry` is odd, and larger by 2 each time.
    #[inline]
    pub(crate) fn enter(&self, entry: u64) {
        // This must be a swap. A store could become visible after the look at `refused`.
        self.inside.swap(entry);
    }

    /// Leaves the gate after the round that began with `entry`.
    #[inline]
    pub(crate) fn leave(&self, entry: u64) {
        self.inside.store(entry + 1);
    }

    /// Returns the nodes whose verbs are refused. A round asks once, while it is inside; a refusing
    /// thread waits for the whole round.
    #[inline]
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load()
    }

    /// Returns why the nodes are refused.
    #[cold]
    pub(crate) fn why(&self) -> Refusal {
        if self.revoked.load() == 0 { Refusal::Down } else { Refusal::Revoked }
    }

    /// Refuses the nodes of these bits from now on. Then calls `pause` until a round that may not
    /// have seen the refusal has ended.
    pub(crate) fn refuse(&self, nodes: u64, why: Refusal, mut pause: impl FnMut()) {
        if why == Refusal::Revoked {
            self.revoked.set_bits(1);
        }
        self.refused.set_bits(nodes);
        wait_outside(&self.inside, || {
            pause();
            true
        });
    }
}

/// Waits while the word is odd and unchanged: until the round that began before the caller's mark,
/// and may not have seen it, has ended. Gives up when `pause` says that the other side is gone.
pub(crate) fn wait_outside<W: GateWord>(inside: &W, mut pause: impl FnMut() -> bool) {
    let seen = inside.load();
    while seen % 2 == 1 && inside.load() == seen && pause() {}
}
