//! The gate of a shared-memory endpoint: where it passes to execute a round, and where it is
//! stopped from doing so.
//!
//! One thread enters and leaves; any thread may refuse it nodes. A refusing thread marks first, and
//! then looks whether the endpoint is inside. The entering thread says so first, and then looks at
//! the marks. All four are sequentially consistent, so at least one sees the other. So either the
//! refusing thread waits for a round that may have missed the mark, or no round has missed it.
//!
//! The atomics come through a trait so that `tests/loom.rs`, which includes this file, can check
//! just that.

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

/// See the [module](self).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Gate<W> {
    /// Odd while the endpoint executes a round.
    inside: W,
    /// Nodes whose verbs are refused, a bit each.
    refused: W,
    /// Not 0 if they are refused because the client was revoked; set before `refused` is.
    revoked: W,
}

/// Why a gate refuses a verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The node is down.
    Down,
    /// The client has lost its access.
    Revoked,
}

impl<W: GateWord> Gate<W> {
    /// The endpoint begins a round; `entry` is odd, and larger by 2 each time.
    #[inline]
    pub(crate) fn enter(&self, entry: u64) {
        // A swap, not a store: a store could become visible after the look at `refused`.
        self.inside.swap(entry);
    }

    /// The round that began with `entry` has ended.
    #[inline]
    pub(crate) fn leave(&self, entry: u64) {
        self.inside.store(entry + 1);
    }

    /// The nodes whose verbs are refused. A round asks once, inside: a refusing thread waits for
    /// the whole round.
    #[inline]
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load()
    }

    /// Why the nodes are refused.
    #[cold]
    pub(crate) fn why(&self) -> Refusal {
        if self.revoked.load() == 0 { Refusal::Down } else { Refusal::Revoked }
    }

    /// Refuses the nodes of these bits from now on, and pauses until a round that may not have seen
    /// it has ended.
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

/// Waits while the word is odd and the same: until what began before the caller's mark, which it
/// may not have seen, has ended. Gives up when `pause` says that the other side is gone.
pub(crate) fn wait_outside<W: GateWord>(inside: &W, mut pause: impl FnMut() -> bool) {
    let seen = inside.load();
    while seen % 2 == 1 && inside.load() == seen && pause() {}
}
