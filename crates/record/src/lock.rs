//! The lock word of a record. It names the transaction, or the clients, that hold the record's
//! lock.
//!
//! ```text
//! | 0 : 1 | owner : 24 | sequence : 39 |                           exclusive, or free if
//!                                                                  all bits are 0
//! | 2 : 2 | epoch : 12 | holders : 50 |                            shared
//! | 3 : 2 | locked : 1 | log : 2 | owner : 24 | sequence : 35 |    repairable; bit 63 .. bit 0
//! ```
//!
//! An exclusive lock names the transaction that holds it, as (owner, sequence). The owner is a
//! client incarnation, and no incarnation is given twice. So the word names one attempt of one
//! transaction for ever. CAS(me -> free) can never release the lock of another transaction.
//!
//! A shared lock names the clients that hold it: bit n is the client in slot n of the memory nodes.
//! A new epoch ends every client, so no client holds a shared lock of an earlier epoch. Such a lock
//! is *void*. Recovery takes the bit of a dead client out of every word before another client is
//! given the dead client's slot.
//!
//! A repairable lock names one attempt of a transaction, as an exclusive one does. It also says
//! where the attempt's log is, so that any client can finish or undo the attempt. To free it clears
//! one bit, and the name stays. So a free word is the version of what it protects: it never recurs.
//!
//! Only CAS changes the word, and the FETCH_ADD that takes a client out of a shared lock. The WRITE
//! that installs a value does not cover the word.
//!
//! # What other code asks of a lock word
//!
//! No code outside this module knows which bits mean what, or that a free word is 0. So the rules
//! of a discipline with another kind of word all belong here. Other code asks:
//!
//! - about a word that it has read: [`LockWord::is_free`], [`LockWord::is_held_by`],
//!   [`LockWord::holder`], [`LockWord::is_exclusive`] and [`LockWord::shared`];
//! - for the CAS of a word: [`Swap::lock`] and [`Swap::unlock`];
//! - for a WRITE over a word: [`LockWord::freed`].
//!
//! The word of a slot that was never locked is all zeros. So all zeros has to mean free in every
//! kind of word, and [`Swap::lock`] expects that word. In the first two kinds above it is the only
//! free word. The CAS of a repairable lock expects the free word that was found before
//! ([`RepairableLock::taken_from`]).

use std::cell::Cell;
use std::fmt;

use remora_node::limits::INCARNATIONS_MAX;
use remora_node::ring::OWNER_SHIFT;

/// The id of one attempt of a transaction, as (owner, sequence). It is unique over all processes
/// and threads of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct TransactionId(u64);

impl TransactionId {
    /// The last sequence number of an incarnation. A worker that runs ten million transactions per
    /// second reaches it after fifteen hours, or half of that where ids are given in pairs. The
    /// worker then connects as a new incarnation.
    pub const SEQUENCE_MAX: u64 = (1 << OWNER_SHIFT) - 1;

    /// Packs an id. Returns `None` if the owner is 0 or has more than 24 bits, or if the sequence
    /// has more than 39 bits.
    #[inline]
    #[must_use]
    pub fn new(owner: u32, sequence: u64) -> Option<TransactionId> {
        let fits = owner != 0 && u64::from(owner) <= INCARNATIONS_MAX && sequence <= TransactionId::SEQUENCE_MAX;
        fits.then_some(TransactionId(u64::from(owner) << OWNER_SHIFT | sequence))
    }

    /// Unpacks an id. Returns `None` if no transaction can have this id.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<TransactionId> {
        TransactionId::new((bits >> OWNER_SHIFT) as u32, bits & TransactionId::SEQUENCE_MAX)
    }

    /// Packs the id into the 64 bits that lock words, logs and histories hold.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the owner: the client incarnation that runs the transaction.
    #[inline]
    #[must_use]
    pub fn owner(self) -> u32 {
        (self.0 >> OWNER_SHIFT) as u32
    }

    /// Returns the sequence: the number of the transaction within its client incarnation.
    #[inline]
    #[must_use]
    pub fn sequence(self) -> u64 {
        self.0 & TransactionId::SEQUENCE_MAX
    }

    /// Returns the next even id of a client, and counts on. `None` if no id is left.
    #[must_use]
    pub fn even(owner: u32, next: &Cell<u64>) -> Option<TransactionId> {
        let sequence = next.get().next_multiple_of(2);
        next.set(sequence + 1);
        TransactionId::new(owner, sequence)
    }

    /// Returns the id with which this attempt goes on if the time of its commit is fixed early, in
    /// tables whose commits have times (`remora_txn`'s `landing.rs`). There, ids are given in
    /// pairs, the even one first. So a lock word tells readers of which kind its holder is.
    #[inline]
    #[must_use]
    pub fn fixing_time_early(self) -> TransactionId {
        TransactionId(self.0 | 1)
    }

    /// Whether the time of this attempt's commit is fixed early, in tables whose commits have
    /// times.
    #[inline]
    #[must_use]
    pub fn fixes_time_early(self) -> bool {
        self.0 & 1 == 1
    }

    /// Returns the lock word of a record that this transaction has locked exclusively.
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

/// The lock word of a record, as a client read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct LockWord(u64);

impl LockWord {
    /// The lock word of a record that no transaction has locked.
    pub const FREE: LockWord = LockWord(0);

    /// Unpacks a word of memory. Every 64-bit value is some lock word.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> LockWord {
        LockWord(bits)
    }

    /// Packs the lock word into the 64 bits that lie in memory.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Whether the lock word is free: neither a transaction nor a client holds the lock.
    #[inline]
    #[must_use]
    pub fn is_free(self) -> bool {
        self == LockWord::FREE || self.0 >> RepairableLock::LOCKED_BIT == RepairableLock::KIND << 1
    }

    /// Whether this transaction holds the lock exclusively.
    #[inline]
    #[must_use]
    pub fn is_held_by(self, id: TransactionId) -> bool {
        self == id.lock()
    }

    /// Returns the transaction that holds the lock exclusively, or `None` if there is none.
    #[must_use]
    pub fn holder(self) -> Option<TransactionId> {
        match self.repairable() {
            Some(lock) => lock.holder(),
            None => TransactionId::from_bits(self.0),
        }
    }

    /// Returns the word that the holder of this lock writes in its place to free it.
    #[inline]
    #[must_use]
    pub fn freed(self) -> LockWord {
        self.repairable().map_or(LockWord::FREE, RepairableLock::freed)
    }

    /// Whether a transaction holds the lock exclusively, and so may be changing the record.
    #[inline]
    #[must_use]
    pub fn is_exclusive(self) -> bool {
        !self.is_free() && self.0 >> KIND_SHIFT != SharedLock::KIND >> KIND_SHIFT
    }

    /// Returns the lock as a shared lock. `None` if it is of another kind.
    #[inline]
    #[must_use]
    pub fn shared(self) -> Option<SharedLock> {
        (self.0 >> KIND_SHIFT == SharedLock::KIND >> KIND_SHIFT).then_some(SharedLock(self.0))
    }

    /// Returns the lock as a repairable lock, whose bit says whether it is held. `None` if it is of
    /// another kind, or was never taken.
    #[inline]
    #[must_use]
    pub fn repairable(self) -> Option<RepairableLock> {
        (self.0 >> KIND_SHIFT == RepairableLock::KIND).then_some(RepairableLock(self.0))
    }
}

/// The number of bits behind the kind of a word that is not exclusive.
const KIND_SHIFT: u32 = 62;

/// Where the log of the attempt lies that has a repairable lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogPlace {
    /// There is none: the attempt changes only the object that the lock protects.
    Nowhere,
    /// At the memory node that has the lock.
    Here,
    /// At the leader, which is the live node with the lowest number.
    Leader,
}

/// A lock word in its repairable kind (protocol `rtx`): held by one attempt of a transaction, or
/// free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RepairableLock(u64);

impl RepairableLock {
    /// The last sequence number that such a word has room for. A worker that makes a million
    /// attempts per second reaches it after nine hours. The worker then connects as a new
    /// incarnation.
    pub const SEQUENCE_MAX: u64 = (1 << RepairableLock::SEQUENCE_BITS) - 1;

    const KIND: u64 = 3;
    const LOCKED_BIT: u32 = 61;
    const LOG_SHIFT: u32 = 59;
    const SEQUENCE_BITS: u32 = 35;

    /// Returns the word by which an attempt locks. `None` if the attempt's sequence number has too
    /// many bits.
    #[inline]
    #[must_use]
    pub fn held_by(id: TransactionId, log: LogPlace) -> Option<RepairableLock> {
        let log = match log {
            LogPlace::Nowhere => 0,
            LogPlace::Here => 1,
            LogPlace::Leader => 2,
        };
        let name = u64::from(id.owner()) << RepairableLock::SEQUENCE_BITS | id.sequence();
        let kind = RepairableLock::KIND << KIND_SHIFT | 1 << RepairableLock::LOCKED_BIT;
        let word = kind | log << RepairableLock::LOG_SHIFT | name;
        (id.sequence() <= RepairableLock::SEQUENCE_MAX).then_some(RepairableLock(word))
    }

    /// Returns the word as it lies in memory.
    #[inline]
    #[must_use]
    pub fn word(self) -> LockWord {
        LockWord(self.0)
    }

    /// Returns the CAS that takes this lock, of an object whose lock word was found to be `free`.
    #[inline]
    #[must_use]
    pub fn taken_from(self, free: LockWord) -> Swap {
        Swap { from: free, to: self.word() }
    }

    /// Returns the free word that follows.
    #[inline]
    #[must_use]
    pub fn freed(self) -> LockWord {
        LockWord(self.0 & !(1 << RepairableLock::LOCKED_BIT))
    }

    /// Returns the attempt that holds the lock. `None` if the lock is free.
    #[inline]
    #[must_use]
    pub fn holder(self) -> Option<TransactionId> {
        let is_held = self.0 >> RepairableLock::LOCKED_BIT & 1 == 1;
        if is_held { self.attempt() } else { None }
    }

    /// Returns the attempt that holds the lock, or held it last. `None` if the word is damaged.
    #[must_use]
    pub fn attempt(self) -> Option<TransactionId> {
        let owner = self.0 >> RepairableLock::SEQUENCE_BITS & ((1 << 24) - 1);
        TransactionId::new(owner as u32, self.0 & RepairableLock::SEQUENCE_MAX)
    }

    /// Returns where the log of the attempt is. `None` if the word is damaged.
    #[must_use]
    pub fn log(self) -> Option<LogPlace> {
        match self.0 >> RepairableLock::LOG_SHIFT & 3 {
            0 => Some(LogPlace::Nowhere),
            1 => Some(LogPlace::Here),
            2 => Some(LogPlace::Leader),
            _ => None,
        }
    }
}

/// The two operands of a CAS of a lock word: the expected word, and the word that takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swap {
    /// The word that the CAS expects.
    pub from: LockWord,
    /// The word that the CAS puts in place of `from`.
    pub to: LockWord,
}

impl Swap {
    /// Returns the CAS that takes a free lock. It changes nothing if the lock is not free.
    #[inline]
    #[must_use]
    pub fn lock(to: LockWord) -> Swap {
        Swap { from: LockWord::FREE, to }
    }

    /// Returns the CAS that frees the lock `held`. It changes nothing if the word is another one.
    #[inline]
    #[must_use]
    pub fn unlock(held: LockWord) -> Swap {
        Swap { from: held, to: held.freed() }
    }
}

/// A lock word in its shared kind: clients hold the lock together, in one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedLock(u64);

impl SharedLock {
    /// The number of clients that one word can name: the clients in slots 0 to 49.
    pub const CLIENTS_MAX: u64 = 50;

    const KIND: u64 = 2 << KIND_SHIFT;
    const EPOCHS: u64 = 1 << 12;

    /// Returns a shared lock of this epoch that no client holds. Such a word is in memory for a
    /// moment only: between the FETCH_ADD that takes the last holder out and the CAS that frees the
    /// word.
    #[inline]
    #[must_use]
    pub fn of_epoch(epoch: u64) -> SharedLock {
        SharedLock(SharedLock::KIND | (epoch % SharedLock::EPOCHS) << SharedLock::CLIENTS_MAX)
    }

    /// Returns the bit of the client in a slot. `None` if the slot is 50 or more, for which words
    /// have no bit.
    #[must_use]
    pub fn bit(slot: u64) -> Option<u64> {
        (slot < SharedLock::CLIENTS_MAX).then(|| 1 << slot)
    }

    /// Whether the lock is of another epoch than this one. No client holds such a lock.
    #[inline]
    #[must_use]
    pub fn is_void(self, epoch: u64) -> bool {
        self.0 >> SharedLock::CLIENTS_MAX != SharedLock::of_epoch(epoch).0 >> SharedLock::CLIENTS_MAX
    }

    /// Returns the bits of the clients that hold the lock.
    #[inline]
    #[must_use]
    pub fn holders(self) -> u64 {
        self.0 & ((1 << SharedLock::CLIENTS_MAX) - 1)
    }

    /// Whether no client holds the lock: it is void, or its last holder is about to free it.
    #[inline]
    #[must_use]
    pub fn is_vacant(self, epoch: u64) -> bool {
        self.is_void(epoch) || self.holders() == 0
    }

    /// Returns the lock word that has this client's bit in addition to the present holders.
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

    proptest! {
        #[test]
        fn a_repairable_lock_names_its_attempt(owner in 1u32..1 << 24, sequence in 0u64..1 << 35, free in any::<u64>()) {
            let id = TransactionId::new(owner, sequence).unwrap();
            for log in [LogPlace::Nowhere, LogPlace::Here, LogPlace::Leader] {
                let held = RepairableLock::held_by(id, log).unwrap();
                prop_assert_eq!((held.holder(), held.log()), (Some(id), Some(log)));
                let word = held.word();
                prop_assert!(!word.is_free() && word.is_exclusive() && word.shared().is_none());
                prop_assert_eq!((word.holder(), word.repairable()), (Some(id), Some(held)));
                let freed = word.freed().repairable().unwrap();
                prop_assert!(word.freed().is_free() && !word.freed().is_exclusive() && freed.holder().is_none());
                prop_assert_eq!((freed.attempt(), freed.log()), (Some(id), Some(log)));
                prop_assert_eq!(Swap::unlock(word), Swap { from: word, to: word.freed() });
                let free = LockWord::from_bits(free);
                prop_assert_eq!(held.taken_from(free), Swap { from: free, to: word });
            }
            prop_assert!(LockWord::FREE.repairable().is_none() && id.lock().repairable().is_none());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let id = |sequence| TransactionId::new(1, sequence).unwrap();
        assert!(RepairableLock::held_by(id(RepairableLock::SEQUENCE_MAX), LogPlace::Here).is_some());
        assert_eq!(RepairableLock::held_by(id(RepairableLock::SEQUENCE_MAX + 1), LogPlace::Here), None);
        assert_eq!(SharedLock::bit(50), None);
        assert_eq!(TransactionId::new(0, 1), None);
        assert_eq!(TransactionId::new(1 << 24, 1), None);
        assert_eq!(TransactionId::new(1, 1 << 39), None);
        assert_eq!(LockWord::FREE.holder(), None);
    }
}
