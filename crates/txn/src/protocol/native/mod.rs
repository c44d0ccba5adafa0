//! The *Optimal* of the paper rTX: what its indexes cost with locks, and with nothing that helps if
//! a client dies.
//!
//! ```text
//! execute    CAS lock; READ of records to write                   -> primaries   1 round trip
//!            READ of records only read                               (in the same one)
//! validate   READ lock, version of records only read              -> primaries   1, if any
//! write      WRITE record; CAS unlock                              -> primaries   1
//! ```
//!
//! A single record is read in one round trip, whether it is locked or not, and changed in two. The
//! steps before the writes are those of [`ford`], on tables of the same discipline. There is no
//! log. So transactions are serializable while all clients live. If a client dies while it writes,
//! some of its records are changed, and some are locked for ever. Measurements use it as a bound,
//! with one copy of each record.
//!
//! RACE hash tables have a native form under this protocol, too (`race/native.rs`).

use remora_fabric::{Execute, probes};
use remora_node::{Discipline, IndexKind};
use remora_record::Swap;
use zerocopy::IntoBytes;

use crate::error::Stop;
use crate::protocol::ford::{self, Ford};
use crate::protocol::spec::ProtocolSpec;
use crate::protocol::{Protocol, Steps};
use crate::sets::{Fetch, Item, Lock};
use crate::swap::swap_lock;
use crate::tx::Tx;

/// Locks without logs. These transactions are **not atomic** if a client dies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Native;

impl Native {
    /// The steps that are FORD's.
    const FORD: Ford = Ford { backup_reads: false, ..Ford::WHOLE };
}

impl Protocol {
    /// Locks without logs (`native`), the bound that `rtx` is measured against: **not atomic** if a
    /// client dies.
    pub const NATIVE: Protocol = Protocol::Native(Native);
}

impl Steps for Native {
    const STUDIES: &'static [Native] = &[Native];

    fn spec(self) -> ProtocolSpec {
        let spec = ProtocolSpec::new("native", Discipline::IN_PLACE);
        const RACE: &[Discipline] = &[Discipline::COPY_UNLOGGED];
        ProtocolSpec { index: IndexKind::FStore, is_serializable: false, accepts: RACE, ..spec }
    }

    async fn execute(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        tx.skip_what_is_here();
        ford::execute(tx, Native::FORD).await
    }

    async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        if tx.state.sets.written == 0 {
            return self.validate(tx).await;
        }
        ford::touch_chains(tx);
        ford::lock_rest(tx, false).await?;
        ford::validate(tx, true).await?;
        tx.hear_of_growth().await?;
        tx.validated();
        tx.lane.probe(probes::VALIDATED);
        tx.committing();
        write(tx).await?;
        tx.installed();
        Ok(())
    }

    async fn validate(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        // A record is written at once, so that one that is locked is as the last commit left it.
        if let [Item { fetch: Fetch::Here, at_primary: true, .. }] = tx.state.sets.items.as_slice() {
            return Ok(());
        }
        ford::validate_read_only(tx, Native::FORD).await
    }

    fn leave<'s>(self, _: &mut Tx<'s>, _: Execute<'s>) {
        unreachable!("it has no log")
    }
}

/// Writes the changed records, and frees all locks. Each record is written before it is unlocked.
async fn write(tx: &mut Tx<'_>) -> Result<(), Stop> {
    debug_assert!(tx.state.sets.write_set_is_locked(), "a written record is locked by its writer");
    tx.state.sets.encode_images();
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let (sets, me) = (&tx.state.sets, tx.id.lock());
        let mut round = tx.lane.round();
        for item in &sets.items[next..] {
            let image = if item.is_written() { sets.image(item) } else { &[] };
            if !round.has_room(2, size_of_val(image) + 16) {
                break;
            }
            if item.is_written() {
                sets.note_place(item);
                round.write(item.address.plus(sets.shape(item).image_at()), image.as_bytes());
            }
            if item.lock == Lock::Held {
                swap_lock(&mut round, item.address, Swap::unlock(me));
            }
            next += 1;
        }
        tx.lane.execute(round).await?;
    }
    tx.locking = false;
    Ok(())
}
