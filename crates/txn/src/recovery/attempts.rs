//! The logs of attempts that a dead client has left, under protocol `rtx`. Any client could end
//! these attempts, when it meets their locks. The recoverer does it at once, because the client's
//! rings, in which the logs are, will get another owner.

use remora_fabric::{Lane, NodeSet};
use remora_node::ring::attempt_log_at;
use remora_node::{MemoryError, Remains};
use remora_record::TransactionId;

use crate::attempts::settle;
use crate::error::Stop;

/// Ends all attempts whose logs a dead client has left. Returns the last attempt of each log, and
/// whether it has committed.
pub(super) async fn end_all(
    lane: &Lane,
    nodes: NodeSet,
    client: u32,
    remains: &Remains,
) -> Result<Vec<(TransactionId, bool)>, MemoryError> {
    let mut all = Vec::new();
    for (node, _, base) in remains.rings() {
        let (_, last) = settle(lane, nodes, attempt_log_at(node, base)).await.map_err(failure)?;
        // A log that this client has not used may have the attempt of another one.
        all.extend(last.filter(|(id, _)| id.owner() == client));
    }
    Ok(all)
}

fn failure(stop: Stop) -> MemoryError {
    match stop {
        Stop::Unavailable(error) => error.into(),
        stop => MemoryError::Configuration(stop.to_string()),
    }
}
