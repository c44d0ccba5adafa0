//! A doorbell: how one side of a mailbox parks, and how the other wakes it only if it does.
//!
//! The side that waits says that it parks and then looks once more for work; the side that brings
//! work stores it and then looks whether the other is parked. With a fence between the two steps on
//! both sides, at least one sees the other: either the work is found, or the bell is rung. A ring
//! between the look and the sleep is not lost either, because the sleep is on the count of rings as
//! it was before the look.
//!
//! The words come through a trait so that `tests/loom.rs`, which includes this file, can check just
//! that.

/// A word of a doorbell.
pub(crate) trait BellWord {
    /// Loads with Acquire.
    fn load(&self) -> u64;
    /// Stores with Release.
    fn store(&self, value: u64);
    /// Adds 1, sequentially consistent.
    fn increment(&self);
    /// A sequentially consistent fence.
    fn fence();
}

/// See the [module](self). Who waits owns `parked`; who brings work counts `rings`.
#[derive(Debug)]
pub(crate) struct Doorbell<'a, W> {
    pub(crate) rings: &'a W,
    pub(crate) parked: &'a W,
}

impl<W: BellWord> Doorbell<'_, W> {
    /// What the other side waits for has been stored: wakes it if it is parked.
    #[inline]
    pub(crate) fn ring(&self, wake: impl FnOnce(&W)) {
        W::fence();
        if self.parked.load() != 0 {
            self.rings.increment();
            wake(self.rings);
        }
    }

    /// Says that this side is about to park. Look for work after it; if there is none, sleep while
    /// `rings` is what is returned; in any case [`Doorbell::unpark`].
    pub(crate) fn park(&self) -> u64 {
        let seen = self.rings.load();
        self.parked.store(1);
        W::fence();
        seen
    }

    /// This side is awake.
    pub(crate) fn unpark(&self) {
        self.parked.store(0);
    }
}
