//! rTX ("Repairable transactions for indexes on disaggregated memory"), corrected: any client
//! finishes or undoes the transaction of another one, on the spot. No lease, no recoverer and no
//! server takes part.
//!
//! ```text
//! execution  1  READ lock and place of each object
//!            2  READ the block that each place names; READ lock and place again
//!
//! commit     A  WRITE values to own blocks; WRITE the log's entries; CAS(log, (un)done -> begun);
//!               CAS(lock, free word seen -> me); READ the words behind the locks;
//!               READ lock and place of what was only read
//!            B  CAS(log, begun -> decided)                        -> committed
//!            C  CAS places, old -> new; CAS unlock;
//!               CAS(log, decided -> done)                         -> in the background
//!
//! one object A  WRITE the value; CAS lock; READ the place; READ what was only read
//!            B  CAS place, old -> new; CAS unlock   -> committed, if the place was old
//!
//! one object 2  CAS lock; READ the block; READ lock and place again
//! and its    B  WRITE the value; CAS place, old -> new; CAS unlock
//! lock early                                        -> committed, if the place was old
//! ```
//!
//! A transaction takes two round trips to read, and two more to commit. If the first record that it
//! names is to be changed, execution locks it early, and if it changes no other one, the commit
//! takes one round trip. If it does, A exchanges the word of the early lock, which names no log,
//! for one that names the log. A transaction that only reads needs no commit, if all its records
//! came in the same rounds ([`validate`]). If it writes at several memory nodes, A is two rounds,
//! because nothing orders the log at one node before the locks at another; and what it only read is
//! looked at in one more.
//!
//! # Why no word recurs
//!
//! The client that has a lock may be dead, or only slow: no other client can tell. So others must
//! be able to end its attempt, and what it still has on its way must do no harm. Everything that
//! changes an object is a CAS, and each expects a word that never recurs: a lock word names an
//! attempt (`lock` of `remora_record`), a place names a use of a block (`object` there), the word
//! of a log names an attempt and its stage (`attempts.rs`), and the floor of a bucket only rises.
//! Values are written to blocks that only the writer knows.
//!
//! # Invariants
//!
//! 1. **A transaction decides under all its locks**, and after everything that it has only read was
//!    looked at behind the last of them.
//! 2. **The log is begun before any lock that names it is taken, and ends after the last of them is
//!    free.** So a client that meets such a lock can read the log. A log is begun anew only after
//!    every verb of the last attempt has completed.
//! 3. **Places are swapped before locks are freed.** A free lock says that its object is as the
//!    last holder left it.
//! 4. **Only the owner ends a log**, or a recoverer, once the owner's access is revoked. Others may
//!    abort what is begun, and nothing else.
//! 5. **A lock without a log is taken, then its place is marked, and then it is freed**, by the
//!    client that repairs it ([`repair`]). So an early lock gets another word before its holder
//!    decides by a log.
//! 6. **Only the owner of an attempt owns the blocks that it displaces**, and uses them again when
//!    its swaps have completed. A repairer that has copied a value owns the block that it has
//!    copied from.
//! 7. **A transaction without a log has committed if and only if its swap of the place succeeded.**
//!    With a log, it has committed if and only if the log is decided, whichever client swaps the
//!    places.
//!
//! The client asserts 1 and 2 where it acts. Litmus tests check 1, 2, 3, 5 and 7, and campaigns
//! check all of them.
//!
//! # What is not as in the paper
//!
//! The paper's locks have leases, and a lock whose lease is over may be repaired. Here a client
//! suspects a lock that it has met for long, and repair is safe even if the suspicion is wrong. The
//! paper repairs a lock without a log by copying the value and swapping the place; that loses
//! commits which were reported, so here the repairer takes the lock first. The paper needs four to
//! seven round trips to the answer.

mod commit;
mod execute;
mod outcomes;
mod pool;
mod reclaim;
mod repair;
mod state;
mod validate;

use remora_fabric::{Execute, Round, probes};
use remora_node::{Discipline, IndexKind};

pub use outcomes::Outcomes;
pub use reclaim::{Reclaimed, reclaim};
pub(crate) use repair::{look_up, rest, take_mark_free};
pub(crate) use state::Repairs;

use crate::error::Stop;
use crate::protocol::spec::{FirstRead, ProtocolSpec};
use crate::protocol::{Protocol, Steps};
use crate::tx::Tx;

/// Repairable transactions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rtx {
    /// How long a client meets the same lock before it repairs it, in nanoseconds. It should be far
    /// longer than a transaction takes, because a repair aborts a holder that was only slow.
    pub suspicion_ns: u64,
    /// Whether execution locks a record that was named to be changed, if the transaction has named
    /// no other one so far, and the client knows where it is. Then no other transaction changes the
    /// record before the commit, which takes one round trip instead of two if the transaction
    /// writes only this record.
    pub locks_early: bool,
    /// Whether a transaction has a log, too, if it changes one record only. That is the text's
    /// protocol without its first optimization.
    pub logs_always: bool,
}

impl Rtx {
    /// The parameters of [`Protocol::RTX`]: the 8 milliseconds of the text.
    pub const USUAL: Rtx = Rtx { suspicion_ns: 8_000_000, locks_early: true, logs_always: false };
}

impl Protocol {
    /// Repairable transactions (`rtx`): any client finishes or undoes those of a dead one. One
    /// copy.
    pub const RTX: Protocol = Protocol::Rtx(Rtx::USUAL);
}

impl Steps for Rtx {
    fn spec(self) -> ProtocolSpec {
        ProtocolSpec {
            index: IndexKind::Objects,
            execute: FirstRead::OneSided { cached: true },
            ..ProtocolSpec::new("rtx", Discipline::COPY_ON_WRITE)
        }
    }

    async fn execute(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        repair::help(tx, self.suspicion_ns).await?;
        execute::execute(tx, self.locks_early).await
    }

    async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        if tx.state.sets.written == 0 {
            return validate::validate_read_only(tx).await;
        }
        let plan = commit::prepare(tx, self.logs_always).await?;
        let last = commit::lock_and_validate(tx, plan).await?;
        tx.hear_of_growth().await?;
        tx.validated();
        tx.lane.probe(probes::VALIDATED);
        tx.committing();
        commit::decide(tx, plan, last).await?;
        tx.logged();
        commit::finish(tx, plan);
        tx.installed();
        Ok(())
    }

    async fn validate(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        validate::validate_read_only(tx).await
    }

    fn leave<'s>(self, tx: &mut Tx<'s>, log: Execute<'s>) {
        commit::leave(tx, log);
    }
}

/// Sends the rounds that undo what an attempt has begun.
pub(crate) fn release_rounds<'s>(tx: &mut Tx<'s>, send: impl FnMut(Round<'s>)) {
    commit::release_rounds(tx, send);
}
