//! The client's change from a TCP connection to a queue pair.

use std::io::{self, ErrorKind};
use std::time::Duration;

use crate::address::NodeId;
use crate::error::{Fault, Refusal};
use crate::limits::HANDSHAKE_NS;
use crate::rdma::{Domain, VerbsError};
use crate::tcp::exchange::exchange;
use crate::tcp::frame::{self, Kind};
use crate::tcp::stream::Stream;

/// Converts an error of this end into the fault of its connection.
pub(crate) fn refused(error: &VerbsError) -> Fault {
    tracing::warn!(%error, "no RDMA");
    Fault::Refused(Refusal::Rdma(error.cause().unwrap_or(ErrorKind::NotFound.into())))
}

/// Asks the server at the other end of this blocking connection for a queue pair, and connects to
/// it.
pub(crate) fn dial(mut stream: Stream, domain: &mut Domain) -> Result<Stream, Fault> {
    let mut queue = domain.queue().map_err(|error| refused(&error))?;
    let patience = Duration::from_nanos(HANDSHAKE_NS);
    let lost = |error: io::Error| Fault::Refused(error.into());
    let (status, words) = exchange(&mut stream, patience, Kind::Queue, &queue.introduction()).map_err(lost)?;
    if status != frame::DONE {
        let fault = frame::fault(status, &words, NodeId(0));
        return Err(fault.unwrap_or(Fault::Refused(Refusal::Foreign)));
    }
    queue.connect(&words).map_err(|error| refused(&error))?;
    stream.set_queue(queue, false);
    Ok(stream)
}
