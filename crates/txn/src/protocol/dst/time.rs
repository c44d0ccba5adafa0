//! What a transaction asks for the client's time.

use crate::error::Stop;
use crate::tx::Tx;

/// Returns the client's time, not below what any memory node has heard of before the client began
/// (invariant 6), or before a table was gone whose rows have moved. If the client has not asked the
/// nodes since, this takes a round trip.
pub(super) async fn known(tx: &mut Tx<'_>) -> Result<u64, Stop> {
    if tx.state.time.is_unknown() {
        tx.state.time.learn(tx.lane, tx.state.nodes).await?;
        tx.state.time.raise(tx.state.sets.items.iter().map(|item| item.time).max().unwrap_or(0));
    }
    Ok(tx.state.time.get())
}
