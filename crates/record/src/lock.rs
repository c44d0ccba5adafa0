//! The lock word: who owns a record.
//!
//! ```text
//! | 0 : 1 | owner : 24 | sequence : 39 |      exclusive, or free if all bits are 0
//! | 1 : 1 | epoch : 13 | holders  : 50 |      shared; bit 63 .. bit 0
//! ```
//!
//! An exclusive lock names the transaction (owner, sequence) that holds it. The owner is a client
//! incarnation, never given again, so the word names one attempt of one transaction for ever, and
//! CAS(me -> free) can never release the lock of another transaction.
//!
//! A shared lock names the clients that hold it: bit n is the client in slot n of the memory nodes.
//! An epoch ends every client, so a shared lock of an earlier epoch is void: nobody holds it.
//! Recovery takes the bit of a dead client out of every word before another client is given its
//! slot.
//!
//! The word is changed by CAS alone, and by the FETCH_ADD that takes a client out of a shared lock.
//! The WRITE that installs a value does not cover it.
//!
//! # What other code asks
//!
//! No code outside this module knows which bits mean what, or that a free word is 0. Of a word that
//! was read, it asks [`LockWord::is_free`], [`LockWord::is_held_by`], [`LockWord::holder`],
//! [`LockWord::is_exclusive`] and [`LockWord::shared`]. For the CAS of a word, it asks
//! [`Swap::lock`] and [`Swap::unlock`]. For a WRITE, it asks [`LockWord::freed`]. So a discipline
//! with words of another kind has its rules here.
//!
//! A slot that was never locked has a word of all zeros. So that word has to be free in every kind,
//! and it is what [`Swap::lock`] expects. In both kinds here it is the only free word. Where a free
//! word still tells who held it last, the CAS has to expect the word that was found before.

use std::fmt;

use remora_node::limits::INCARNATIONS_MAX;
use remora_node::ring::OWNER_SHIFT;

/// The id of one attempt of a transaction: (owner, sequence), unique over all processes and threads
/// of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct TransactionId(u64);

impl TransactionId {
    /// The last sequence number of an incarnation. At ten million transactions per second it is
    /// reached after fifteen hours. The worker then connects as a new incarnation.
    pub const SEQUENCE_MAX: u64 = (1 << OWNER_SHIFT) - 1;

    /// Packs an id. `None` if the owner is 0 or has more than 24 bits, or the sequence more
    /// than 39.
    #[inline]
    #[must_use]
    pub fn new(owner: u32, sequence: u64) -> Option<TransactionId> {
        let fits = owner != 0 && u64::from(owner) <= INCARNATIONS_MAX && sequence <= TransactionId::SEQUENCE_MAX;
        fits.then_some(TransactionId(u64::from(owner) << OWNER_SHIFT | sequence))
    }

    /// Unpacks an id. `None` if no transaction has it.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<TransactionId> {
        TransactionId::new((bits >> OWNER_SHIFT) as u32, bits & TransactionId::SEQUENCE_MAX)
    }

    /// Packs the id, as lock words, logs and histories have it.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the client incarnation.
    #[inline]
    #[must_use]
    pub fn owner(self) -> u32 {
        (self.0 >> OWNER_SHIFT) as u32
    }

    /// Returns the number within the incarnation.
    #[inline]
    #[must_use]
    pub fn sequence(self) -> u64 {
        self.0 & TransactionId::SEQUENCE_MAX
    }

    /// Returns the lock word of a record that this transaction has locked.
    #[inline]
    #[must_use]
    pub fn lock(self) -> LockWord {
        LockWord(self.0)
    }
}

impl fmt::Display for TransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.owner(), self.sequence())
    }
}

/// A record's lock word, as it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct LockWord(u64);

impl LockWord {
    /// The word of a record that no transaction has locked.
    pub const FREE: LockWord = LockWord(0);

    /// Unpacks a word of memory. Every word is some lock word.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> LockWord {
        LockWord(bits)
    }

    /// Packs the word.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Whether no transaction holds the lock.
    #[inline]
    #[must_use]
    pub fn is_free(self) -> bool {
        self == LockWord::FREE
    }

    /// Whether this transaction holds the lock exclusively.
    #[inline]
    #[must_use]
    pub fn is_held_by(self, id: TransactionId) -> bool {
        self == id.lock()
    }

    /// Returns the transaction that holds the lock exclusively.
    #[must_use]
    pub fn holder(self) -> Option<TransactionId> {
        TransactionId::from_bits(self.0)
    }

    /// Returns the word that the holder of this lock puts in its place to free it.
    #[inline]
    #[must_use]
    pub fn freed(self) -> LockWord {
        LockWord::FREE
    }

    /// Whether a transaction holds it exclusively, and may be changing the record.
    #[inline]
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        !self.is_free() && self.0 & SharedLock::KIND == 0
    }

    /// Returns the shared lock that it is, if it is one.
    #[inline]
    #[must_use]
    pub fn shared(self) -> Option<SharedLock> {
        (self.0 & SharedLock::KIND != 0).then_some(SharedLock(self.0))
    }
}

/// A CAS of a lock word: the word that it expects, and the word that it puts in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swap {
    /// The word that is expected.
    pub from: LockWord,
    /// The word that takes its place.
    pub to: LockWord,
}

impl Swap {
    /// Returns the CAS that takes a lock. It leaves the lock alone if that is not free.
    #[inline]
    #[must_use]
    pub fn lock(to: LockWord) -> Swap {
        Swap { from: LockWord::FREE, to }
    }

    /// Returns the CAS that frees a lock. It leaves the lock alone if that is not `held`.
    #[inline]
    #[must_use]
    pub fn unlock(held: LockWord) -> Swap {
        Swap { from: held, to: held.freed() }
    }
}

/// A lock word that clients share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedLock(u64);

impl SharedLock {
    /// Clients that one word can name: those in slots 0 to 49.
    pub const CLIENTS_MAX: u64 = 50;

    const KIND: u64 = 1 << 63;
    const EPOCHS: u64 = 1 << 13;

    /// Returns the lock of an epoch that no client holds. It is in memory only between the
    /// FETCH_ADD that takes the last holder out and the CAS that frees the word, which follows it
    /// at once.
    #[inline]
    #[must_use]
    pub fn of_epoch(epoch: u64) -> SharedLock {
        SharedLock(SharedLock::KIND | (epoch % SharedLock::EPOCHS) << SharedLock::CLIENTS_MAX)
    }

    /// The bit of the client in a slot. `None` if words have no bit for it.
    #[must_use]
    pub fn bit(slot: u64) -> Option<u64> {
        (slot < SharedLock::CLIENTS_MAX).then(|| 1 << slot)
    }

    /// Whether it is of another epoch: then nobody holds it.
    #[inline]
    #[must_use]
    pub fn is_void(self, epoch: u64) -> bool {
        self.0 >> SharedLock::CLIENTS_MAX != SharedLock::of_epoch(epoch).0 >> SharedLock::CLIENTS_MAX
    }

    /// The bits of the clients that hold it.
    #[inline]
    #[must_use]
    pub fn holders(self) -> u64 {
        self.0 & ((1 << SharedLock::CLIENTS_MAX) - 1)
    }

    /// Whether no client holds it: it is void, or its last holder is about to free it.
    #[inline]
    #[must_use]
    pub fn is_vacant(self, epoch: u64) -> bool {
        self.is_void(epoch) || self.holders() == 0
    }

    /// Returns the word with a client among its holders.
    #[inline]
    #[must_use]
    pub fn with(self, bit: u64) -> LockWord {
        LockWord(self.0 | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packing_and_unpacking_agree(owner in 1u32..1 << 24, sequence in 0u64..1 << 39) {
            let id = TransactionId::new(owner, sequence).unwrap();
            prop_assert_eq!((id.owner(), id.sequence()), (owner, sequence));
            prop_assert!(!id.lock().is_free());
            prop_assert_eq!(LockWord::from_bits(id.lock().to_bits()).holder(), Some(id));
            prop_assert_eq!(TransactionId::from_bits(id.to_bits()), Some(id));
            prop_assert!(id.lock().is_held_by(id) && !LockWord::FREE.is_held_by(id));
            let (lock, unlock) = (Swap::lock(id.lock()), Swap::unlock(id.lock()));
            prop_assert!(lock.from.is_free() && lock.to == id.lock());
            prop_assert!(unlock.from == id.lock() && unlock.to.is_free());
            prop_assert_eq!(id.to_bits() >> 63, 0, "kind 0: an owner, no lease");
        }
    }

    proptest! {
        #[test]
        fn a_shared_lock_names_its_epoch_and_its_clients(epoch in 0u64..1 << 20, one in 0u64..50, two in 0u64..50) {
            let [one, two] = [one, two].map(|slot| SharedLock::bit(slot).unwrap());
            let first = SharedLock::of_epoch(epoch).with(one);
            let both = first.shared().unwrap().with(two);
            let shared = both.shared().unwrap();
            prop_assert_eq!(shared.holders(), one | two);
            prop_assert!(!shared.is_void(epoch) && shared.is_void(epoch + 1));
            prop_assert!(!both.is_exclusive() && !both.is_free() && both.holder().is_none());
            prop_assert!(!shared.is_vacant(epoch) && shared.is_vacant(epoch + 1));
            prop_assert!(SharedLock::of_epoch(epoch).is_vacant(epoch));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(SharedLock::bit(50), None);
        assert_eq!(TransactionId::new(0, 1), None);
        assert_eq!(TransactionId::new(1 << 24, 1), None);
        assert_eq!(TransactionId::new(1, 1 << 39), None);
        assert_eq!(LockWord::FREE.holder(), None);
    }
}
