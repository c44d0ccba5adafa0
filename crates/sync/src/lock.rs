//! The lock word: who owns a record.
//!
//! ```text
//! | kind : 1 | owner : 24 | sequence : 39 |      bit 63 .. bit 0
//! ```
//!
//! Kind 0 is an owner: the record is locked by transaction (owner, sequence), or free if all bits
//! are 0. Kind 1 is a lease, for later protocols. The owner is a client incarnation, which is never
//! given again. So a lock word names one attempt of one transaction for ever, and CAS(me -> free)
//! can never release the lock of another transaction.
//!
//! The word is only ever CASed; the WRITE that installs a value does not cover it.

use std::fmt;

use remora_memory::limits::INCARNATIONS_MAX;
use remora_memory::ring::OWNER_SHIFT;

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

    /// Returns the transaction that holds the lock. A lease (kind 1) has no owner here.
    #[must_use]
    pub fn holder(self) -> Option<TransactionId> {
        TransactionId::new((self.0 >> OWNER_SHIFT) as u32, self.0 & TransactionId::SEQUENCE_MAX)
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
            prop_assert_eq!(id.to_bits() >> 63, 0, "kind 0: an owner, no lease");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(TransactionId::new(0, 1), None);
        assert_eq!(TransactionId::new(1 << 24, 1), None);
        assert_eq!(TransactionId::new(1, 1 << 39), None);
        assert_eq!(LockWord::FREE.holder(), None);
    }
}
