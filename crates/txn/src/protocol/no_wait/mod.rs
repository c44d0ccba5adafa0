//! Two-phase locking that never waits for a lock. It is the textbook baseline for the other
//! protocols.
//!
//! ```text
//!          coordinator                         primaries          all rings    round trips
//!
//! execute  CAS shared lock; READ record     -> only read                        1
//!          CAS lock; READ record            -> to write                         (the same)
//! commit   CAS lock                         -> read, then written               1, if any
//!          READ buckets                     -> of absent keys                   1, if any
//!          WRITE entry                                        -> every replica  1
//!          ---- committed: every ring has acknowledged the entry ----
//!          WRITE record; CAS unlock         -> written                          in the background
//!          FETCH_ADD; CAS: unlock shared    -> only read                        in the background
//! ```
//!
//! With locations cached and records named for what is done to them, a transaction that writes
//! takes 2 round trips, whatever it reads, and one that only reads takes 1. A record that was named
//! to be read and is then written costs one round trip more. Inserts and deletes cost a call, and
//! then the lock. A CAS of a shared lock has to name the other holders. If one of them has come or
//! gone, the client sends the CAS again, from the word that it has found.
//!
//! A transaction that meets a lock which excludes its own aborts at once, releases the locks that
//! it has, and is tried again. So no transaction ever waits for another one, and there is no
//! deadlock.
//!
//! Logs, installation, recovery and backups are those of optimistic concurrency control
//! (`protocol/redo.rs`, `recovery.rs`). Only the way in which a transaction keeps others out is
//! different.
//!
//! # Invariants
//!
//! 1. **A record is read under a lock**, which the transaction keeps until its lock point: the
//!    moment when it has all its locks and has seen that absent keys are still absent. So what it
//!    has read is current at the lock point, and transactions are serializable in the order of
//!    their lock points.
//! 2. **An exclusive lock is taken from a word that no client holds**, or from a shared one that
//!    this transaction alone holds. It is released by CAS(me -> free), and only if it may have been
//!    taken.
//! 3. **A shared lock names its holders** ([`SharedLock`](remora_record::SharedLock)), so that
//!    recovery can take out the ones that have died. `shared.rs` counts the transactions of a
//!    client that rely on its bit.
//! 4. **Locks are released after the log's answer**, and exclusive locks also after the record that
//!    they protect has been written (invariants 4 and 5 of `occ`). While the client awaits the
//!    log's answer, neither an error nor a drop releases the locks of the write set. The
//!    transaction releases all its other locks, however it ends.
//! 5. **An absent key is validated**, since there is no record to lock: its buckets are read again
//!    after all locks are held, as in `occ`. Ordered tables have no such gaps, because the leaf
//!    that would have the key is a record.
//! 6. **A slot that is prepared for an insert is taken back by the transaction that has locked
//!    it**, with a shared lock or an exclusive one, unless that transaction inserts the key. The
//!    transaction that had the slot prepared finds it locked, and cannot take it back.
//!
//! The client asserts rules 1, 2, 4 and 5 in the code that acts by them. Rules 3 and 6 are about
//! several clients: the litmus test `no-wait-orphan-lock` checks rule 3, and
//! `an_insert_given_up_anywhere_leaves_no_trace` (`crates/remora/tests/inserts.rs`) checks rule 6.

mod execute;
mod upgrade;

use remora_fabric::{Execute, probes};
use remora_node::Discipline;

use crate::error::Stop;
use crate::protocol::occ::validate_absent;
use crate::protocol::redo::{self, install_rounds, keep_read_locks, prepare_log, write_log};
use crate::protocol::spec::{Primitive, ProtocolSpec};
use crate::protocol::{Protocol, Steps};
use crate::sets::{Fetch, Item, Lock, Sets};
use crate::tx::Tx;

use execute::execute;
use upgrade::lock_written;

/// Two-phase locking that aborts where it would have to wait. It has no parameters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NoWait;

impl Protocol {
    /// Two-phase locking that aborts where it would have to wait (`no-wait-2pl`).
    pub const NO_WAIT: Protocol = Protocol::NoWait(NoWait);
}

impl Steps for NoWait {
    fn spec(self) -> ProtocolSpec {
        ProtocolSpec { locks_reads: true, ..ProtocolSpec::new("no-wait-2pl", Discipline::TWO_PHASE) }
    }

    async fn execute(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        execute(tx).await
    }

    async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        if tx.state.sets.written == 0 {
            return self.validate(tx).await;
        }
        let entry = prepare_log(tx).await?;
        lock_written(tx).await?;
        debug_assert!(
            has_all_locks(&tx.state.sets) && tx.state.sets.write_set_is_locked(),
            "no_wait 5: absent keys are validated when the transaction has all its locks"
        );
        validate_absent(tx).await?;
        tx.hear_of_growth().await?;
        tx.validated();
        tx.lane.probe(probes::VALIDATED);
        tx.committing();
        let logged = write_log(tx, entry, Primitive::OneSided, false).await;
        if logged.is_err() {
            keep_read_locks(tx);
            return logged;
        }
        tx.logged();
        let lane = tx.lane;
        install_rounds(tx, |round| lane.post(round));
        keep_read_locks(tx);
        tx.installed();
        Ok(())
    }

    async fn validate(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        debug_assert!(has_all_locks(&tx.state.sets), "no_wait 1: a lock is kept until the lock point");
        if tx.state.sets.items.len() > 1 {
            validate_absent(tx).await?;
        }
        tx.validated();
        Ok(())
    }

    fn leave<'s>(self, tx: &mut Tx<'s>, log: Execute<'s>) {
        redo::leave(tx, log);
        keep_read_locks(tx);
    }
}

/// Returns whether the transaction has a lock of every record that it has read.
fn has_all_locks(sets: &Sets) -> bool {
    let is_locked = |item: &Item| matches!(item.lock, Lock::Shared | Lock::Held);
    sets.items.iter().all(|item| matches!(item.fetch, Fetch::Absent) || is_locked(item)) || mutant!(UnlockReadsEarly)
}
