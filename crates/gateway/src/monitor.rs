//! Answers those who watch a gateway, over HTTP: `/metrics` in Prometheus' text format, and
//! `/readyz`, which fails once the gateway stops.
//!
//! One thread answers one request a connection, and one connection after the other.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::net::Control;
use crate::server::Server;

/// How long a client may take to send its request, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of the longest request.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// A thread that answers until this is dropped.
#[derive(Debug)]
pub struct Monitor {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts to answer at a listener. Fails if the system gives no thread.
    pub fn start(listener: TcpListener, server: Arc<Server>, control: Control) -> io::Result<Monitor> {
        let own = listener.try_clone()?;
        let run = move || {
            for stream in own.incoming() {
                match stream {
                    Ok(stream) => {
                        // Who has sent no request, or has gone, needs no answer.
                        let _ = answer(stream, &server, &control);
                    }
                    // The listener was shut down.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                    Err(error) => {
                        tracing::warn!(%error, "the monitor cannot accept a connection");
                        thread::sleep(PATIENCE);
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("monitor".to_owned()).spawn(run)?;
        Ok(Monitor { listener, thread: Some(thread) })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_err() {
            return; // the thread ends with the process
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream, server: &Server, control: &Control) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut bytes = [0; 1024];
        let read = stream.read(&mut bytes)?;
        request.extend_from_slice(&bytes[..read]);
        if read == 0 || request.len() > REQUEST_BYTES_MAX {
            return Ok(());
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let (status, body) = match line.split(|byte| *byte == b' ').nth(1) {
        _ if !line.starts_with(b"GET ") => ("405 Method Not Allowed", "only GET\n".to_owned()),
        Some(b"/metrics") => ("200 OK", server.metrics()),
        Some(b"/readyz") if control.is_stopping() => ("503 Service Unavailable", "stopping\n".to_owned()),
        Some(b"/readyz") => ("200 OK", "ready\n".to_owned()),
        _ => ("404 Not Found", "there are /metrics and /readyz\n".to_owned()),
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(body.as_bytes())?;
    stream.shutdown(Shutdown::Write)
}
