//! One request and its response, on a blocking connection.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use crate::tcp::buffer::Outbox;
use crate::tcp::frame::{self, Kind};
use crate::tcp::stream::{Stream, Timed};

/// Sends one request on a blocking connection. Returns the status and the words of its response.
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
