//! From a connection to a queue pair: the client's side.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use crate::address::NodeId;
use crate::error::{Fault, Refusal};
use crate::limits::HANDSHAKE_NS;
use crate::tcp::buffer::Outbox;
use crate::tcp::frame::{self, Kind};
use crate::tcp::stream::{Stream, Timed};
use crate::verbs::{Domain, VerbsError};

/// What went wrong at this end.
pub(crate) fn refused(error: &VerbsError) -> Fault {
    tracing::warn!(%error, "no RDMA");
    let cause = match error {
        VerbsError::Memory { cause, .. } | VerbsError::System { cause, .. } => *cause,
        _ => ErrorKind::NotFound,
    };
    Fault::Refused(Refusal::Rdma(cause))
}

/// Has the server that this blocking connection is to make a queue pair, and connects to it.
pub(crate) fn dial(mut stream: Stream, domain: &Domain) -> Result<Stream, Fault> {
    let mut queue = domain.queue().map_err(|error| refused(&error))?;
    let lost = |error: io::Error| Fault::Refused(Refusal::Unreachable(error.kind()));
    let (status, words) = exchange(&mut stream, &queue.introduction()).map_err(lost)?;
    if status != frame::DONE {
        let fault = frame::fault(status, &words, NodeId(0));
        return Err(fault.unwrap_or(Fault::Refused(Refusal::Foreign)));
    }
    queue.connect(&words).map_err(|error| refused(&error))?;
    stream.set_queue(queue, false);
    Ok(stream)
}

fn exchange(stream: &mut Stream, introduction: &[u64]) -> io::Result<(u8, Vec<u64>)> {
    let mut socket = Timed { stream, deadline: Instant::now() + Duration::from_nanos(HANDSHAKE_NS) };
    let mut request = Outbox::default();
    let at = frame::begin_request(&mut request, Kind::Queue, false, 0);
    request.extend(introduction);
    frame::end(&mut request, at);
    socket.write_all(request.unsent())?;
    let mut head = [0u64; frame::HEAD_WORDS];
    socket.read_exact(head.as_mut_bytes())?;
    let Ok(Some(response)) = frame::response(&head) else { return Err(ErrorKind::InvalidData.into()) };
    let mut words = vec![0; response.words - frame::HEAD_WORDS];
    socket.read_exact(words.as_mut_bytes())?;
    Ok((response.status, words))
}
