//! The shared locks of one client: which lock words name it, and how many of its transactions rely
//! on each.
//!
//! A lock word names clients, not transactions ([`SharedLock`]). So the transactions of one client
//! share its bit: the first one that wants a record sets it, by a CAS; the last one takes it out.
//! The sessions of a client run on one thread and one endpoint, whose atomics at a node take effect
//! in the order in which they are posted. That order is what makes the counts here right:
//!
//! 1. **Only this client changes its bit**, as long as it lives. So a word that was seen with the
//!    bit has it until a transaction of this client takes it out.
//! 2. **The bit is taken out by FETCH_ADD**, which needs no answer and cannot fail, and only if it
//!    is known to be set. A CAS behind it frees the word if no other client holds it.
//! 3. **A transaction that relies on a bit which another one has set reads the word.** It holds the
//!    lock only if that word has the bit.
//! 4. **A CAS whose answer is lost leaves an orphan**: a bit that may be set without a transaction
//!    that relies on it. The client reads the word, and takes the bit out if it is there
//!    ([`settle`]). A word stops being an orphan once a verb that was posted after that CAS shows
//!    that the bit is gone. A READ or CAS that was posted before it proves nothing.
//!
//! The code asserts rule 2. Rules 1, 3 and 4 depend on the order in which verbs take effect: the
//! tests below and the litmus tests of `no-wait-2pl` check them.
//!
//! [`settle`]: SharedLocks::settle

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::rc::Rc;

use remora_fabric::{Address, FabricError, Lane, Round, WORD_BYTES};
use remora_node::Registration;
use remora_record::{LockWord, SharedLock, Swap};

use crate::error::Limit;
use crate::swap::swap_lock;

/// Number of lock words that a client can share at a time before its list of them grows.
const WORDS: usize = 1024;
/// Number of orphaned words that a client can have at a time before its list of them grows.
const ORPHANS: usize = 64;

/// The shared locks of one client incarnation, for all of its sessions.
#[derive(Clone, Debug)]
pub struct SharedLocks(Rc<RefCell<Registry>>);

#[derive(Debug)]
struct Registry {
    /// The client's slot at the memory nodes.
    slot: u64,
    epoch: u64,
    // The hasher has fixed keys, because the simulator must do the same again from the same seed.
    words: HashMap<Address, Word, BuildHasherDefault<DefaultHasher>>,
    /// Lock words that may have the client's bit although no transaction relies on it.
    orphans: Vec<Orphan>,
    /// How often a word became an orphan, or became one again.
    doubts: u64,
}

/// A lock word that may have the client's bit although no transaction relies on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Orphan {
    at: Address,
    /// A number that is different each time the word becomes an orphan.
    doubt: u64,
}

/// A lock word that transactions of this client rely on, or have asked for.
#[derive(Debug)]
struct Word {
    transactions: u32,
    /// Whether one of these transactions has found the bit set, and none has taken it out.
    is_set: bool,
    /// The word as it was last seen or set.
    last: LockWord,
}

/// What a transaction must do next to have a shared lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Nothing: the transaction has the lock.
    Held,
    /// Send this CAS, which sets the bit.
    Swap(Swap),
    /// Abort, because another transaction has the record exclusively. The transaction that has
    /// asked does not rely on the lock any more.
    Conflict,
}

impl SharedLocks {
    /// Makes the list of the shared locks of a client that has just registered. The list is empty.
    #[must_use]
    pub fn new(client: &Registration, epoch: u64) -> SharedLocks {
        SharedLocks::of_slot(client.slot(), epoch)
    }

    fn of_slot(slot: u64, epoch: u64) -> SharedLocks {
        let (words, orphans) = (HashMap::default(), Vec::new());
        SharedLocks(Rc::new(RefCell::new(Registry { slot, epoch, words, orphans, doubts: 0 })))
    }

    /// Notes that a transaction asks for a shared lock for the first time. Returns the CAS that
    /// sets the bit. Returns `None` if another transaction of this client has set the bit, or is
    /// about to: then the caller has to read the word.
    pub(crate) fn join(&self, at: Address) -> Result<Option<Swap>, Limit> {
        let mut registry = self.0.borrow_mut();
        let bit = registry.bit()?;
        if registry.words.capacity() == 0 {
            // A client that takes shared locks allocates once, and nothing from then on.
            registry.words.reserve(WORDS);
            registry.orphans.reserve(ORPHANS);
        }
        let to = SharedLock::of_epoch(registry.epoch).with(bit);
        let word = registry.words.entry(at).or_insert(Word { transactions: 0, is_set: false, last: to });
        word.transactions += 1;
        Ok((word.transactions == 1).then_some(Swap::lock(to)))
    }

    /// Takes the word that a transaction has found when it asked for a lock. Returns what the
    /// transaction must do next.
    pub(crate) fn found(&self, at: Address, found: LockWord) -> Result<Next, Limit> {
        if found.is_exclusive() {
            let mut registry = self.0.borrow_mut();
            let is_set = registry.words.get(&at).is_some_and(|word| word.is_set);
            // Another transaction of this client may have set the bit since, and ended, and so left
            // the bit to this one.
            if registry.leave(at) && is_set {
                registry.doubt(at);
            }
            return Ok(Next::Conflict);
        }
        let to = {
            let registry = self.0.borrow();
            let shared = found.shared().filter(|shared| !shared.is_void(registry.epoch));
            shared.unwrap_or(SharedLock::of_epoch(registry.epoch)).with(registry.bit()?)
        };
        if found == to {
            self.set(at, to);
            return Ok(Next::Held);
        }
        Ok(Next::Swap(Swap { from: found, to }))
    }

    /// Notes that a word on which a transaction relies has the bit, and what the word is.
    pub(crate) fn set(&self, at: Address, to: LockWord) {
        let mut registry = self.0.borrow_mut();
        if let Some(word) = registry.words.get_mut(&at) {
            (word.is_set, word.last) = (true, to);
        }
    }

    /// Returns the CAS that makes the shared lock of a transaction its exclusive one. Returns
    /// `None` if another transaction has the lock, too.
    pub(crate) fn upgrade(&self, at: Address, me: LockWord) -> Option<Swap> {
        let registry = self.0.borrow();
        let word = registry.words.get(&at)?;
        let is_alone = registry.is_alone(word.last) && word.transactions == 1;
        (is_alone || mutant!(WriteOverShared)).then_some(Swap { from: word.last, to: me })
    }

    /// Returns the CAS that takes a record exclusively, from the lock word that was found. Returns
    /// `None` if a transaction has the lock.
    pub(crate) fn take(&self, at: Address, found: LockWord, me: LockWord) -> Option<Swap> {
        let registry = self.0.borrow();
        let is_vacant = found.shared().is_some_and(|shared| shared.is_vacant(registry.epoch));
        if found.is_free() || is_vacant || mutant!(WriteOverShared) && !found.is_exclusive() {
            return Some(Swap { from: found, to: me });
        }
        // The verb that takes the bit out may be under way. It takes effect before the next CAS.
        let is_left = registry.is_alone(found) && !registry.words.contains_key(&at) && !registry.is_orphan(at);
        is_left.then_some(Swap::lock(me))
    }

    /// Returns a word that a transaction relies on, as it was last seen.
    pub(crate) fn word(&self, at: Address) -> LockWord {
        self.0.borrow().words.get(&at).map_or(LockWord::FREE, |word| word.last)
    }

    /// Notes that a transaction has made its shared lock exclusive. The word does not have the bit
    /// any more. Transactions of this client that have asked for the lock since will find that.
    pub(crate) fn upgraded(&self, at: Address) {
        let mut registry = self.0.borrow_mut();
        debug_assert!(
            registry.words.get(&at).is_some_and(|word| registry.is_alone(word.last)) || mutant!(WriteOverShared),
            "no_wait 2: an exclusive lock is taken from a shared one that this transaction alone holds"
        );
        if let Some(word) = registry.words.get_mut(&at) {
            word.is_set = false;
        }
        registry.leave(at);
        registry.settled(at);
    }

    /// Notes that a transaction does not rely on its lock any more. If it was the last one, adds to
    /// the round the verbs that take the bit out.
    pub(crate) fn leave(&self, at: Address, round: &mut Round<'_>) {
        let mut registry = self.0.borrow_mut();
        debug_assert!(
            registry.words.get(&at).is_some_and(|word| word.is_set) || mutant!(WriteOverShared),
            "shared 2: the bit is taken out only if it is known to be set"
        );
        if registry.leave(at)
            && let Ok(bit) = registry.bit()
        {
            leave_in(round, at, bit, registry.epoch);
            registry.settled(at);
        }
    }

    /// Notes that a transaction does not rely any more on a lock that it has asked for. `in_doubt`
    /// says whether it has sent a CAS of the word and not heard the answer.
    pub(crate) fn give_up(&self, at: Address, in_doubt: bool) {
        let is_last = self.0.borrow_mut().leave(at);
        if in_doubt || is_last {
            self.doubt(at);
        }
    }

    /// Notes that the answer to a CAS is lost which may have set the bit.
    pub(crate) fn doubt(&self, at: Address) {
        self.0.borrow_mut().doubt(at);
    }

    /// Returns whether there is an orphan that can be settled now.
    #[inline]
    pub(crate) fn has_orphans(&self) -> bool {
        let registry = self.0.borrow();
        !registry.orphans.is_empty() && registry.next_orphan().is_some()
    }

    /// Takes this client's bit out of every word that may have it although no transaction relies on
    /// it. Words that transactions rely on, or have asked for, are left to a later call. Returns
    /// the error of the fabric if a word could not be read.
    pub async fn settle(&self, lane: &Lane) -> Result<(), FabricError> {
        loop {
            let next = self.0.borrow().next_orphan();
            let Some(orphan) = next else { return Ok(()) };
            let mut round = lane.round();
            let read = round.read(orphan.at, WORD_BYTES);
            let done = lane.execute(round).await?;
            let found = LockWord::from_bits(done.words(read)[0]);
            drop(done);
            let mut registry = self.0.borrow_mut();
            if registry.look_settles(orphan, found)
                && let Ok(bit) = registry.bit()
            {
                let mut round = lane.round();
                leave_in(&mut round, orphan.at, bit, registry.epoch);
                lane.post(round);
            }
        }
    }
}

/// Adds to a round the two verbs that take the bits of clients out of a lock word and free the word
/// if no bit is left. The word must have these bits.
pub(crate) fn leave_in(round: &mut Round<'_>, at: Address, bits: u64, epoch: u64) {
    round.fetch_add(at, bits.wrapping_neg());
    swap_lock(round, at, Swap::unlock(SharedLock::of_epoch(epoch).with(0)));
}

impl Registry {
    fn bit(&self) -> Result<u64, Limit> {
        SharedLock::bit(self.slot).ok_or(Limit::SharedLocks { slot: self.slot })
    }

    /// Returns an orphan that no transaction relies on.
    fn next_orphan(&self) -> Option<Orphan> {
        self.orphans.iter().copied().find(|orphan| !self.words.contains_key(&orphan.at))
    }

    fn is_orphan(&self, at: Address) -> bool {
        self.orphans.iter().any(|orphan| orphan.at == at)
    }

    fn doubt(&mut self, at: Address) {
        self.orphans.retain(|orphan| orphan.at != at);
        self.doubts += 1;
        self.orphans.push(Orphan { at, doubt: self.doubts });
    }

    /// Takes the word that a READ of an orphan has found. The word is settled, unless other
    /// transactions of this client have asked for the lock meanwhile. Returns whether the bit is to
    /// be taken out.
    fn look_settles(&mut self, orphan: Orphan, found: LockWord) -> bool {
        // If the word became an orphan again, the cause is a CAS that was posted after the READ.
        if self.words.contains_key(&orphan.at) || !self.orphans.contains(&orphan) {
            return false;
        }
        self.settled(orphan.at);
        self.has_bit(found)
    }

    /// Notes that a word is no orphan any more: a verb that takes the bit out, or a READ of the
    /// word, has followed the CAS that may have set the bit.
    fn settled(&mut self, at: Address) {
        self.orphans.retain(|orphan| orphan.at != at);
    }

    /// Notes that one transaction less relies on a lock. Returns whether it was the last one.
    fn leave(&mut self, at: Address) -> bool {
        let Some(word) = self.words.get_mut(&at) else { return false };
        word.transactions -= 1;
        let is_last = word.transactions == 0;
        if is_last {
            self.words.remove(&at);
        }
        is_last
    }

    /// Returns whether a word is a shared lock of this epoch that names this client.
    fn has_bit(&self, word: LockWord) -> bool {
        let shared = word.shared().filter(|shared| !shared.is_void(self.epoch));
        shared.is_some_and(|shared| self.bit().is_ok_and(|bit| shared.holders() & bit != 0))
    }

    /// Returns whether a word is a shared lock of this epoch that names only this client.
    fn is_alone(&self, word: LockWord) -> bool {
        self.has_bit(word) && self.bit().is_ok_and(|bit| word.shared().is_some_and(|all| all.holders() == bit))
    }
}

#[cfg(test)]
mod tests {
    use remora_fabric::{NodeId, RegionId};

    use super::*;

    const AT: Address = Address { node: NodeId(0), region: RegionId(0), offset: 64 };

    fn shared(epoch: u64, holders: u64) -> LockWord {
        SharedLock::of_epoch(epoch).with(holders)
    }

    fn swap(from: LockWord, to: LockWord) -> Next {
        Next::Swap(Swap { from, to })
    }

    fn leave(locks: &SharedLocks) -> bool {
        locks.0.borrow_mut().leave(AT)
    }

    #[test]
    fn the_first_transaction_sets_the_bit_and_the_last_one_takes_it_out() {
        let locks = SharedLocks::of_slot(3, 1);
        assert_eq!(locks.join(AT), Ok(Some(Swap::lock(shared(1, 8)))));
        locks.set(AT, shared(1, 8));
        assert_eq!(locks.join(AT), Ok(None));
        assert_eq!(locks.found(AT, shared(1, 8)), Ok(Next::Held));
        assert!(!leave(&locks));
        assert!(leave(&locks));
        // The FETCH_ADD takes effect before the CAS of this transaction, which may find the word
        // free.
        assert_eq!(locks.join(AT), Ok(Some(Swap::lock(shared(1, 8)))));
    }

    #[test]
    fn other_clients_come_and_go_between_a_look_and_a_cas() {
        let locks = SharedLocks::of_slot(0, 1);
        let _first = locks.join(AT);
        assert_eq!(locks.found(AT, shared(1, 2)), Ok(swap(shared(1, 2), shared(1, 3))));
        // The other client has taken its bit out, and has not freed the word yet.
        assert_eq!(locks.found(AT, shared(1, 0)), Ok(swap(shared(1, 0), shared(1, 1))));
        assert_eq!(locks.found(AT, shared(1, 5)), Ok(Next::Held));
    }

    #[test]
    fn an_orphan_waits_until_no_transaction_relies_on_the_bit() {
        let locks = SharedLocks::of_slot(0, 1);
        let _first = locks.join(AT);
        locks.give_up(AT, true);
        assert!(locks.has_orphans());
        assert_eq!(locks.take(AT, shared(1, 1), LockWord::from_bits(7)), None);
        let _second = locks.join(AT);
        assert!(!locks.has_orphans());
        // The second CAS may have taken effect before the first one. So it proves nothing that it
        // has found no bit.
        assert_eq!(locks.found(AT, LockWord::from_bits(7)), Ok(Next::Conflict));
        assert!(locks.has_orphans());
    }

    #[test]
    fn a_look_that_was_ahead_of_the_last_cas_settles_nothing() {
        let locks = SharedLocks::of_slot(0, 1);
        let _first = locks.join(AT);
        locks.give_up(AT, true);
        let looked_at = locks.0.borrow().next_orphan().unwrap();
        // The READ is under way when another transaction posts a CAS, whose answer is lost too.
        let _second = locks.join(AT);
        locks.give_up(AT, true);
        let mut registry = locks.0.borrow_mut();
        assert!(!registry.look_settles(looked_at, LockWord::FREE));
        let again = registry.next_orphan().unwrap();
        assert!(registry.look_settles(again, shared(1, 1)), "the bit is taken out");
        assert_eq!(registry.next_orphan(), None);
    }

    #[test]
    fn an_answer_that_comes_late_does_not_forget_the_bit() {
        let (locks, other) = (SharedLocks::of_slot(0, 1), LockWord::from_bits(77));
        let _first = locks.join(AT);
        assert_eq!(locks.join(AT), Ok(None));
        // The second transaction has found the word free, has set the bit, and leaves it to the
        // first one.
        locks.set(AT, shared(1, 1));
        assert!(!leave(&locks));
        // The CAS of the first transaction took effect before all this.
        assert_eq!(locks.found(AT, other), Ok(Next::Conflict));
        assert!(locks.has_orphans());
    }

    #[test]
    fn an_upgrade_counts_those_that_have_joined_meanwhile() {
        let (locks, me) = (SharedLocks::of_slot(0, 1), LockWord::from_bits(77));
        let _first = locks.join(AT);
        locks.set(AT, shared(1, 1));
        assert!(locks.upgrade(AT, me).is_some());
        assert_eq!(locks.join(AT), Ok(None));
        locks.upgraded(AT);
        assert_eq!(locks.join(AT), Ok(None));
        assert_eq!(locks.found(AT, me), Ok(Next::Conflict));
        assert!(leave(&locks), "the third one relies on the bit still");
    }

    #[test]
    fn a_lock_is_upgraded_only_by_its_one_holder() {
        let (locks, me) = (SharedLocks::of_slot(0, 1), LockWord::from_bits(77));
        let _first = locks.join(AT);
        locks.set(AT, shared(1, 3));
        assert_eq!(locks.upgrade(AT, me), None);
        locks.set(AT, shared(1, 1));
        assert_eq!(locks.upgrade(AT, me), Some(Swap { from: shared(1, 1), to: me }));
        let _second = locks.join(AT);
        assert_eq!(locks.upgrade(AT, me), None);
        assert_eq!(locks.take(AT, shared(1, 1), me), None);
    }

    #[test]
    fn a_shared_lock_of_an_earlier_epoch_is_void() {
        let (locks, me) = (SharedLocks::of_slot(0, 2), LockWord::from_bits(77));
        let _first = locks.join(AT);
        assert_eq!(locks.found(AT, shared(1, 6)), Ok(swap(shared(1, 6), shared(2, 1))));
        assert_eq!(locks.take(AT, shared(1, 6), me), Some(Swap { from: shared(1, 6), to: me }));
        assert_eq!(locks.take(AT, shared(2, 6), me), None);
        assert_eq!(locks.found(AT, me), Ok(Next::Conflict));
        assert_eq!(locks.upgrade(AT, me), None);
    }

    #[test]
    fn a_client_that_words_have_no_bit_for_is_refused() {
        assert_eq!(SharedLocks::of_slot(50, 1).join(AT), Err(Limit::SharedLocks { slot: 50 }));
    }
}
