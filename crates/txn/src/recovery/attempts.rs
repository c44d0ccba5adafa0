//! The logs of attempts that a dead client has left, under protocol `rtx`. Any client could end
//! these attempts, when it meets their locks. The recoverer does it at once, because the client's
//! rings, in which the logs are, will get another owner.

use remora_fabric::Lane;
use remora_node::ring::attempt_log_at;
use remora_node::{MemoryError, Pointer, Remains};
use remora_record::TransactionId;

use super::Catalog;
use crate::attempts::settle;
use crate::error::Stop;

/// Ends all attempts whose logs a dead client has left. Returns the attempts that had not
/// ended, and whether they have committed.
pub(super) async fn end_all(
    lane: &Lane,
    catalog: &Catalog,
    remains: &Remains,
) -> Result<Vec<(TransactionId, bool)>, MemoryError> {
    let address_of = |lock: Pointer| Some(catalog.shard(lock.shard())?.at_primary(lock.offset()));
    let mut all = Vec::new();
    for (node, _, base) in remains.rings() {
        let ended = settle(lane, attempt_log_at(node, base), address_of).await;
        all.extend(ended.map_err(failure)?.1);
    }
    Ok(all)
}

fn failure(stop: Stop) -> MemoryError {
    match stop {
        Stop::Unavailable(error) => error.into(),
        stop => MemoryError::Configuration(stop.to_string()),
    }
}
