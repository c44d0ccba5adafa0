//! A connection as its server sees it, from the first byte of the handshake to the last message.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::BorrowedFd;

use zerocopy::IntoBytes;

use crate::ids::ClientId;
use crate::limits::{LAZY_BYTES, UNSENT_BYTES_MAX};
use crate::poller::Interest;
use crate::rdma::Queue;
use crate::tcp::buffer::{Outbox, Received, Receiver, Rest};
use crate::tcp::frame::{self, Kind, Malformed, Request};
use crate::tcp::handshake::{self, ClientHello, Greeting, Purpose, ServerHello, Verdict};
use crate::tcp::key::Key;
use crate::tcp::node::Node;
use crate::tcp::stream::Stream;
use crate::tcp::tls::{self, TlsReason};

/// The phase of a connection.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each connection, and those are boxed")]
enum Phase {
    /// The server waits for the client's hello.
    Hello,
    /// The server waits for the client's proof. It must be of the key that the server has proved,
    /// even if the server's keys have changed since.
    Proof { client: ClientHello, server: ServerHello, key: Option<Key> },
    /// The server serves frames.
    Open(Purpose),
    /// The last message is being sent. Whatever still arrives is not read any more.
    Closing,
}

/// What the server does with a connection after its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Keep,
    Close,
}

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Stream,
    /// The queue pair that the connection changes to when everything said so far has been sent.
    upgrade: Option<Queue>,
    phase: Phase,
    rest: Rest,
    out: Outbox,
    /// Whether too many answers are unsent, so that the server reads nothing until the client
    /// fetches them.
    stalled: bool,
    /// Whether the other end has sent its last byte.
    ended: bool,
    /// What the poller waits for on this connection.
    pub(crate) interest: Interest,
    /// Whether answers that no coroutine waits for are held back.
    pub(crate) deferred: bool,
    /// Whether the server has this connection in its list of deferred answers.
    pub(crate) listed: bool,
    /// A number that tells apart connections which have the same place, one after the other.
    pub(crate) serial: u64,
}

impl Connection {
    pub(crate) fn new(stream: Stream, serial: u64) -> Connection {
        Connection {
            stream,
            upgrade: None,
            phase: Phase::Hello,
            rest: Rest::default(),
            out: Outbox::default(),
            stalled: false,
            ended: false,
            interest: Interest::IN,
            deferred: false,
            listed: false,
            serial,
        }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.stream.socket()
    }

    /// Returns the client whose verbs the connection serves.
    pub(crate) fn client(&self) -> Option<ClientId> {
        match self.phase {
            Phase::Open(Purpose::Verbs(client)) => Some(client),
            _ => None,
        }
    }

    /// Whether the connection has a time limit: for the handshake, or for taking the last message.
    pub(crate) fn is_timed(&self) -> bool {
        !matches!(self.phase, Phase::Open(_))
    }

    /// Whether the connection has a queue pair, or will have one.
    pub(crate) fn has_queue(&self) -> bool {
        self.stream.channel().is_some() || self.upgrade.is_some()
    }

    /// Returns the channel that becomes readable beside the socket.
    pub(crate) fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.stream.channel()
    }

    /// Tells the stream the connection's place at the server, for [`Node::ready`].
    pub(crate) fn own(&mut self, place: usize) {
        self.stream.own(place);
    }

    /// Returns what the poller should wait for.
    pub(crate) fn wanted(&self) -> Interest {
        let mut wanted = Interest::empty();
        wanted.set(Interest::IN, !self.stalled && !self.ended);
        // The channel of a queue pair tells when there is room.
        let unsent = !self.out.is_empty() && !self.deferred && self.stream.channel().is_none();
        wanted.set(Interest::OUT, unsent || self.stream.is_blocked());
        wanted
    }

    /// Gives the connection its turn, because something can be read or written.
    pub(crate) fn turn(&mut self, node: &mut Node, receiver: &mut Receiver, spare: &mut Outbox) -> Turn {
        // Most connections have nothing unsent between their turns, and keep no memory for it then.
        if self.out.is_empty() {
            std::mem::swap(&mut self.out, spare);
        }
        let turn = loop {
            let turn = self.receive(node, receiver);
            // Orders that came in this turn are carried out first, so that they are done when they
            // are answered.
            if turn == Turn::Close || node.has_orders() {
                break turn;
            }
            let turn = self.send(node, false);
            if turn == Turn::Close || self.stalled || !self.stream.has_more() {
                break turn;
            }
        };
        if self.out.is_empty() {
            *spare = std::mem::take(&mut self.out);
        }
        turn
    }

    fn receive(&mut self, node: &mut Node, receiver: &mut Receiver) -> Turn {
        while self.stalled {
            if self.send(node, true) == Turn::Close {
                return Turn::Close;
            }
            if self.out.bytes() <= UNSENT_BYTES_MAX {
                break;
            }
            if !self.stream.has_room_since() {
                return Turn::Keep;
            }
        }
        receiver.resume(&mut self.rest);
        // Words that were left when the connection stalled come first. There may be no room for
        // more yet.
        let resumed = std::mem::take(&mut self.stalled);
        if !resumed && !self.ended {
            match receiver.read(&mut self.stream) {
                Ok(Received::End) => self.ended = true,
                Ok(_) => {}
                Err(error) => return self.unreadable(node, &error),
            }
        }
        match self.consume(node, receiver.words()) {
            Ok(used) => {
                receiver.leave(used, &mut self.rest);
                Turn::Keep
            }
            Err(malformed) => {
                let peer = self.socket().peer_addr().ok();
                match self.client() {
                    Some(ClientId(client)) => {
                        let why = format_args!("it breaks the protocol, as client {client}: {malformed}");
                        node.turned_away.note(peer, &why);
                    }
                    None => node.turned_away.note(peer, &format_args!("it breaks the protocol: {malformed}")),
                }
                Turn::Close
            }
        }
    }

    /// Ends the turn of a connection from which nothing can be read any more.
    fn unreadable(&self, node: &mut Node, error: &io::Error) -> Turn {
        if let Some(reason) = tls::reason(error) {
            node.turned_away.note(self.socket().peer_addr().ok(), &format_args!("no TLS: {error}"));
            if reason == TlsReason::Needed {
                // The client speaks plain TCP, and is answered in plain TCP. It has sent all that
                // it sends by itself, so closing does not lose this answer. A socket that nothing
                // was written to accepts it.
                let _ = self.socket().write_all(&handshake::prefix_bytes(true));
            }
        }
        Turn::Close
    }

    /// Processes the words that have arrived. Returns the number of words used.
    fn consume(&mut self, node: &mut Node, words: &mut [u64]) -> Result<usize, Malformed> {
        let mut used = 0;
        loop {
            let rest = &mut words[used..];
            used += match self.phase {
                Phase::Hello => match self.hello(node, rest.as_bytes())? {
                    0 => return Ok(used),
                    words => words,
                },
                Phase::Proof { client, server, key } => {
                    let Some((proof, _)) = rest.as_bytes().split_at_checked(handshake::PROOF_BYTES) else {
                        return Ok(used);
                    };
                    self.proof(node, &client, &server, key, proof);
                    handshake::PROOF_BYTES / 8
                }
                Phase::Open(purpose) => {
                    let Some(request) = frame::request(rest)? else { return Ok(used) };
                    let Some(frame) = rest.get_mut(..request.words) else { return Ok(used) };
                    self.serve(node, purpose, &request, frame)?;
                    if self.out.bytes() > UNSENT_BYTES_MAX {
                        self.stalled = self.send(node, true) == Turn::Close || self.out.bytes() > UNSENT_BYTES_MAX;
                        if self.stalled {
                            return Ok(used + request.words);
                        }
                    }
                    request.words
                }
                Phase::Closing => return Ok(words.len()),
            };
        }
    }

    fn hello(&mut self, node: &mut Node, bytes: &[u8]) -> Result<usize, Malformed> {
        match handshake::greeting(bytes) {
            Greeting::Incomplete => Ok(0),
            Greeting::Foreign => Err(Malformed::Hello),
            Greeting::OtherVersion => {
                self.out.extend_bytes(&handshake::prefix_bytes(false));
                self.phase = Phase::Closing;
                Ok(0)
            }
            Greeting::Hello(client) => {
                let (server, key) = (node.hello().ok_or(Malformed::Hello)?, node.key());
                self.out.extend_bytes(server.as_bytes());
                self.out.extend_bytes(&handshake::server_proof(key, &client, &server));
                self.phase = Phase::Proof { client, server, key };
                Ok(handshake::CLIENT_HELLO_BYTES / 8)
            }
        }
    }

    fn proof(&mut self, node: &mut Node, client: &ClientHello, server: &ServerHello, key: Option<Key>, proof: &[u8]) {
        let purpose = client.purpose();
        let verdict =
            if handshake::check_client(key, client, server, proof) { node.admit(purpose) } else { Verdict::WrongKey };
        let why = match verdict {
            Verdict::Welcome => None,
            Verdict::WrongKey => Some("it has not proved the key"),
            Verdict::Revoked => Some("the client's access has been revoked"),
            Verdict::Full => Some("there are as many connections as may be"),
        };
        if let Some(why) = why {
            let peer = self.socket().peer_addr().ok();
            match purpose {
                Purpose::Verbs(ClientId(client)) => {
                    node.turned_away.note(peer, &format_args!("client {client}: {why}"));
                }
                Purpose::Administration => node.turned_away.note(peer, &why),
            }
        }
        self.out.push(verdict as u64);
        self.phase = if verdict == Verdict::Welcome { Phase::Open(purpose) } else { Phase::Closing };
    }

    fn serve(
        &mut self,
        node: &mut Node,
        purpose: Purpose,
        request: &Request,
        frame: &mut [u64],
    ) -> Result<(), Malformed> {
        match (request.kind, purpose) {
            (Kind::Round, Purpose::Verbs(client)) => {
                let held_back = self.deferred || self.out.is_empty();
                node.execute(client, request, frame, &mut self.out)?;
                self.deferred = request.lazy && held_back && self.out.bytes() < LAZY_BYTES;
                Ok(())
            }
            (Kind::Queue, Purpose::Verbs(_)) if self.stream.channel().is_none() && self.upgrade.is_none() => {
                self.upgrade = node.accept(request, frame, &mut self.out);
                Ok(())
            }
            (Kind::Revoke | Kind::Status | Kind::Forget, Purpose::Administration) => {
                node.administrate(request, frame, &mut self.out)
            }
            _ => Err(Malformed::Forbidden),
        }
    }

    /// Sends what there is to send. It sends answers that no coroutine waits for only if `all`.
    pub(crate) fn send(&mut self, node: &mut Node, all: bool) -> Turn {
        if !self.out.is_empty() && (all || !self.deferred) {
            self.deferred = false;
            node.before_send();
            let sent = self.out.send(&mut self.stream);
            let left = self.stream.flush();
            if sent.is_err() || left.is_err() {
                return Turn::Close;
            }
        }
        if self.out.is_empty()
            && let Some(queue) = self.upgrade.take()
        {
            self.stream.set_queue(queue, true);
        }
        match (self.out.is_empty() || self.deferred, self.ended, self.phase) {
            // Data that still comes in would be answered by a reset, which could cost the client
            // the last message.
            (true, false, Phase::Closing) => {
                let _ = self.socket().shutdown(Shutdown::Write);
                Turn::Keep
            }
            (true, true, _) if !self.stalled => {
                if self.deferred {
                    return self.send(node, true);
                }
                Turn::Close
            }
            _ => Turn::Keep,
        }
    }

    /// Tells the client, as the last message, that its access has been revoked.
    pub(crate) fn revoke(&mut self, node: &mut Node) -> Turn {
        if let Some(client) = self.client() {
            node.leave(client);
        }
        if self.has_queue() {
            node.queues -= 1;
            self.upgrade = None;
            self.stream.end_queue();
            self.out.clear();
        }
        self.phase = Phase::Closing;
        self.stalled = false;
        self.rest = Rest::default();
        frame::put_fault(&mut self.out, crate::Fault::Revoked, 0);
        self.send(node, true)
    }
}
