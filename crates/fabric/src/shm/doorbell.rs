//! A doorbell: one side of a mailbox parks, and the other side wakes it only if it has parked.
//!
//! 1. The side that waits says that it parks, and then looks once more for work.
//! 2. The side that brings work stores the work, and then looks whether the other side has parked.
//! 3. Each side has a fence between its two steps, so at least one sees the other. Either the
//!    waiting side finds the work, or the other side rings the bell.
//! 4. A ring between the look and the sleep is not lost either. The waiting side sleeps only while
//!    the count of rings is what it was before the look.
//!
//! The words come through a trait, so that `tests/loom.rs`, which includes this file, can check
//! this argument.

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

/// The two words of a doorbell; see the [module](self). The side that waits owns `parked`. The side
/// that brings work counts `rings`.
#[derive(Debug)]
pub(crate) struct Doorbell<'a, W> {
    pub(crate) rings: &'a W,
    pub(crate) parked: &'a W,
}

impl<W: BellWord> Doorbell<'_, W> {
    /// Wakes the other side if it is parked. Call it after storing what that side waits for.
    #[inline]
    pub(crate) fn ring(&self, wake: impl FnOnce(&W)) {
        W::fence();
        if self.parked.load() != 0 {
            self.rings.increment();
            wake(self.rings);
        }
    }

    /// Says that this side is about to park. After it, look for work once more. If there is none,
    /// sleep while `rings` has the returned value. In any case call [`Doorbell::unpark`] then.
    pub(crate) fn park(&self) -> u64 {
        let seen = self.rings.load();
        self.parked.store(1);
        W::fence();
        seen
    }

    /// Says that this side is awake.
    pub(crate) fn unpark(&self) {
        self.parked.store(0);
    }
}
