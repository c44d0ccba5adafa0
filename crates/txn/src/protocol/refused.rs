//! What memory nodes have answered to a transaction's requests for the locks of its write set.

use remora_record::LockWord;

use crate::error::{Abort, Stop};
use crate::sets::{Item, Lock};
use crate::tx::Tx;

/// Why the transaction cannot go on, as far as the answers of a round have told.
#[derive(Default)]
pub(super) struct Refused {
    conflict: Option<Abort>,
    /// The record whose lock another transaction has, and that lock.
    met: Option<(usize, LockWord)>,
    /// A record that a member of the batch has brought along, and that has changed.
    brought: Option<usize>,
    /// Whether a slot may be prepared for another transaction's insert.
    prepares: bool,
}

impl Refused {
    /// Notes that there is no such record, and that no lock was taken.
    pub(super) fn is_gone(&mut self) {
        self.conflict = self.conflict.or(Some(Abort::Changed));
    }

    /// Notes that another transaction has the lock of a record.
    pub(super) fn is_locked(&mut self, index: usize, item: &mut Item, holder: LockWord) {
        item.lock = Lock::No;
        self.conflict = Some(Abort::Locked(holder));
        self.met = Some((index, holder));
    }

    /// Notes that a record, which is locked now, has changed since it was read.
    pub(super) fn has_changed(&mut self, index: usize, item: &mut Item, is_rolled_back: bool) {
        self.conflict = self.conflict.or(Some(Abort::Changed));
        self.brought = self.brought.or(item.brought.then_some(index));
        // The slot may be prepared for another transaction's insert, which may be given up while
        // this transaction has the slot locked.
        item.prepared |= is_rolled_back && !mutant!(LeavePrepared);
        self.prepares |= item.prepared;
    }

    /// Returns the abort, if there is one, once all answers of the round have been looked at.
    pub(super) fn outcome(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        tx.preparing |= self.prepares;
        if let Some((index, holder)) = self.met {
            tx.met(index, holder);
        }
        let Some(abort) = self.conflict else { return Ok(()) };
        if let (Abort::Changed, Some(brought)) = (abort, self.brought) {
            tx.state.sets.note(brought, abort.into());
        }
        Err(abort.into())
    }
}
