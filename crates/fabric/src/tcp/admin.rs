//! Questions and orders to a server, each on a connection of its own. They are rare, and never
//! delay rounds.

use std::panic::resume_unwind;
use std::thread;

use crate::address::NodeId;
use crate::error::{FabricError, Fault};
use crate::ids::ClientId;
use crate::tcp::cluster::Cluster;
use crate::tcp::exchange::exchange;
use crate::tcp::frame::{self, Kind};
use crate::tcp::handshake::Purpose;

impl Cluster {
    /// Revokes a client's access to a node. Returns when the node has confirmed it.
    pub(crate) fn revoke_at(&self, node: NodeId, client: ClientId) -> Result<(), FabricError> {
        self.ask(node, Kind::Revoke, &[u64::from(client.0)]).map(|[]| ())
    }

    /// Asks a node how many connections a client has to it.
    pub(crate) fn connections_at(&self, node: NodeId, client: ClientId) -> Result<u64, FabricError> {
        self.ask(node, Kind::Status, &[u64::from(client.0)]).map(|[connections]| connections)
    }

    /// Orders a node to erase all that it has, which it does if the order is right. Returns when it
    /// has answered.
    pub(crate) fn forget_at(&self, node: NodeId, order: &[u64]) -> Result<(), FabricError> {
        self.ask(node, Kind::Forget, order).map(|[]| ())
    }

    /// Asks every node that is not down, all at the same time. So a node that does not answer does
    /// not delay the others. Returns the answers in the order of the nodes.
    pub(crate) fn ask_all<T: Send>(&self, ask: impl Fn(NodeId) -> T + Sync) -> Vec<T> {
        let nodes: Vec<NodeId> = self.all().filter(|node| !self.is_down(*node)).collect();
        let ask = &ask;
        thread::scope(|scope| {
            // The calling thread asks the last node.
            let begin = |node| {
                let thread = thread::Builder::new().name("inquiry".to_owned());
                thread.spawn_scoped(scope, move || ask(node)).map_err(|_| node)
            };
            let (last, others) = nodes.split_last().map_or((None, &[][..]), |(last, others)| (Some(*last), others));
            let begun: Vec<_> = others.iter().map(|node| begin(*node)).collect();
            let of_last = last.map(ask);
            let answer = |begun: Result<thread::ScopedJoinHandle<'_, T>, NodeId>| match begun {
                Ok(asked) => asked.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // The system has no thread to spare.
                Err(node) => ask(node),
            };
            begun.into_iter().map(answer).chain(of_last).collect()
        })
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
        // Whatever goes wrong from here on, the node has not confirmed what it was asked.
        match exchange(&mut stream, self.options.patience, kind, contents) {
            Ok((frame::DONE, answer)) => answer.try_into().map_err(|_| error(Fault::Unreachable)),
            Ok(_) => Err(error(Fault::Unreachable)),
            Err(why) => {
                tracing::warn!(%node, error = %why, "a memory node does not answer what it was asked");
                Err(error(Fault::Unreachable))
            }
        }
    }
}
