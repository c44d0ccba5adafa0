//! Questions and orders to a server, each on a connection of its own: rare, and never in the way of
//! rounds.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use crate::address::NodeId;
use crate::error::{FabricError, Fault};
use crate::ids::ClientId;
use crate::tcp::buffer::Outbox;
use crate::tcp::frame::{self, Kind};
use crate::tcp::handshake::Purpose;
use crate::tcp::node::NodeStatus;
use crate::tcp::stream::{Stream, Timed};
use crate::tcp::{Cluster, Tcp};

impl Tcp {
    /// How a node's server is.
    pub fn status(&self, node: NodeId) -> Result<NodeStatus, FabricError> {
        let words = self.cluster.ask(node, Kind::Status, &[])?;
        Ok(NodeStatus::from_words(words))
    }

    /// Sizes of a node's regions, in bytes.
    pub fn region_bytes(&self, node: NodeId) -> Result<Vec<u64>, FabricError> {
        match self.cluster.open(node, Purpose::Administration) {
            Ok((_, hello)) => Ok(hello.region_bytes().collect()),
            Err(fault) => Err(FabricError { node, fault }),
        }
    }
}

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
    fn ask<const ANSWER: usize>(
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

/// Sends one request on a blocking connection; the status and the words of its response.
pub(crate) fn exchange(
    stream: &mut Stream,
    patience: Duration,
    kind: Kind,
    contents: &[u64],
) -> io::Result<(u8, Vec<u64>)> {
    let mut socket = Timed { stream, deadline: Instant::now() + patience };
    let mut request = Outbox::default();
    let at = frame::begin_request(&mut request, kind, false, 0);
    request.extend(contents);
    frame::end(&mut request, at);
    socket.write_all(request.unsent())?;
    let mut head = [0u64; frame::HEAD_WORDS];
    socket.read_exact(head.as_mut_bytes())?;
    let Ok(Some(frame::Response { words, status, ticket: 0 })) = frame::response(&head) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let mut answer = vec![0; words - frame::HEAD_WORDS];
    socket.read_exact(answer.as_mut_bytes())?;
    Ok((status, answer))
}
