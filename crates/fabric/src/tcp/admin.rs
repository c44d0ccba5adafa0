//! Questions and orders to a server, each on a connection of its own: rare, and never in the way of
//! rounds.

use crate::address::NodeId;
use crate::error::{FabricError, Fault};
use crate::ids::ClientId;
use crate::tcp::cluster::Cluster;
use crate::tcp::exchange::exchange;
use crate::tcp::frame::{self, Kind};
use crate::tcp::handshake::Purpose;

impl Cluster {
    /// Takes a client's access to a node. Returns when the node has confirmed it.
    pub(crate) fn revoke_at(&self, node: NodeId, client: ClientId) -> Result<(), FabricError> {
        self.ask(node, Kind::Revoke, &[u64::from(client.0)]).map(|[]| ())
    }

    /// How many connections of a client a node has.
    pub(crate) fn connections_at(&self, node: NodeId, client: ClientId) -> Result<u64, FabricError> {
        self.ask(node, Kind::Status, &[u64::from(client.0)]).map(|[connections]| connections)
    }

    /// Has a node give up all that it has, if the order is right. Returns when it has.
    pub(crate) fn forget_at(&self, node: NodeId, order: &[u64]) -> Result<(), FabricError> {
        self.ask(node, Kind::Forget, order).map(|[]| ())
    }

    /// Sends one request, and returns the `ANSWER` words of the answer.
    pub(crate) fn ask<const ANSWER: usize>(
        &self,
        node: NodeId,
        kind: Kind,
        contents: &[u64],
    ) -> Result<[u64; ANSWER], FabricError> {
        let error = |fault| FabricError { node, fault };
        let (mut stream, _) = self.open(node, Purpose::Administration).map_err(error)?;
        // Whatever goes wrong now, the node has not confirmed what it was asked.
        match exchange(&mut stream, self.options.patience, kind, contents) {
            Ok((frame::DONE, answer)) => answer.try_into().map_err(|_| error(Fault::Unreachable)),
            _ => Err(error(Fault::Unreachable)),
        }
    }
}
