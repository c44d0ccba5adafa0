//! The times of `dst`: transactions derive them from the records, and from the clock of the
//! client's machine.
//!
//! A time is 48 bits of the clock, in microseconds, and 16 bits of a counter. The clock makes times
//! fresh: a snapshot has what committed longer ago than two clocks differ. No order depends on it.

use super::time::known;
use crate::error::Stop;
use crate::tx::Tx;

/// Bits of a time below the clock's.
const COUNTER_BITS: u32 = 16;

/// Returns the time of the snapshot that a transaction is about to read.
pub(super) async fn snapshot_time(tx: &mut Tx<'_>) -> Result<u64, Stop> {
    now(tx).await
}

/// Returns the time of a commit: above `bound`, and above the client's time.
pub(super) async fn commit_time(tx: &mut Tx<'_>, bound: u64) -> Result<u64, Stop> {
    Ok(now(tx).await?.max(bound) + 1)
}

/// Returns the client's time, not below its clock.
async fn now(tx: &mut Tx<'_>) -> Result<u64, Stop> {
    known(tx).await?;
    let micros = tx.lane.now() / 1_000;
    tx.state.time.raise(micros << COUNTER_BITS);
    Ok(tx.state.time.get())
}
