//! The entry points for fuzzers: all code that parses bytes from the other end, applied to any
//! bytes.

use std::sync::Arc;

use zerocopy::{FromBytes, IntoBytes};

use crate::address::NodeId;
use crate::ids::ClientId;
use crate::limits::{FRAME_WORDS_MAX, ROUND_WORDS_MAX};
use crate::rdma::conversation::Doors;
use crate::shm::Memory;
use crate::tcp::buffer::Outbox;
use crate::tcp::frame::{self, HEAD_WORDS};
use crate::tcp::handshake;
use crate::tcp::node::{Common, Node};

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::read_from_bytes(word).expect("eight bytes")).collect()
}

/// Feeds bytes to a server's side of a connection, which executes what can be decoded. Answers must
/// stay within the limit.
pub fn requests(bytes: &[u8]) {
    thread_local! {
        static NODE: Arc<Memory> = Arc::new(Memory::map(&[vec![4096]]).expect("a page of memory"));
    }
    let mut node = Node::new(Arc::new(Common::new(NODE.with(Arc::clone), None, 1, 1)), 0, None);
    let mut words = words_of(bytes);
    let mut rest = &mut words[..];
    let mut out = Outbox::default();
    while let Ok(Some(request)) = frame::request(rest) {
        let Some((now, later)) = rest.split_at_mut_checked(request.words) else { return };
        out.clear();
        if node.execute(ClientId(1), &request, now, &mut out).is_err() {
            return;
        }
        assert!(out.end() <= HEAD_WORDS + ROUND_WORDS_MAX && out.end() <= FRAME_WORDS_MAX);
        rest = later;
    }
}

/// Feeds bytes to a client's side of a connection. They are the answers to the verbs of a request
/// that is made from the first bytes.
pub fn responses(bytes: &[u8]) {
    let words = words_of(bytes);
    let (request, answers) = words.split_at(words.len().min(8));
    let (mut verbs, mut next) = (Vec::new(), 0);
    while next < request.len() {
        let Ok(verb) = frame::verb(request, &mut next, 0) else { break };
        if frame::answer_words(&verb) <= ROUND_WORDS_MAX {
            verbs.push(verb);
        }
    }
    let Ok(Some(response)) = frame::response(answers) else { return };
    let Some(answer) = answers.get(HEAD_WORDS..response.words) else { return };
    let _ = frame::fault(response.status, answer, NodeId(3));
    let _ = frame::take_answers(answer, verbs.iter(), &mut vec![0; ROUND_WORDS_MAX]);
}

/// Feeds bytes to a server's side of a handshake.
pub fn greeting(bytes: &[u8]) {
    if let handshake::Greeting::Hello(hello) = handshake::greeting(bytes) {
        assert!(bytes.starts_with(hello.as_bytes()));
        let _ = hello.purpose();
    }
}

/// Feeds datagrams to one end of a conversation. The last three bits of the word in front of a
/// datagram say how many words it has. No more words may be read than were carried.
pub fn datagrams(bytes: &[u8]) {
    let words = words_of(bytes);
    let mut rest = &words[..];
    let mut doors = Doors::default();
    let (place, token) = doors.open(7);
    doors.expect(place, 1);
    let (mut datagram, mut carried, mut read, mut time) = (vec![token], 0, 0, 0);
    while let Some((&first, later)) = rest.split_first() {
        let (now, later) = later.split_at(later.len().min(first as usize % 8));
        rest = later;
        datagram.truncate(1);
        datagram.extend(now);
        carried += now.len();
        time += first >> 32;
        let taken = doors.arrived(time, 1, &datagram);
        let Some(conversation) = doors.get(place) else { return };
        if taken.is_some() && conversation.next().is_some() {
            conversation.sends(time);
        }
        while conversation.again(time).is_some() {}
        read += conversation.read(&mut [0; 64]) / 8;
        assert!(read <= carried);
    }
    assert!(doors.strange() as usize <= words.len());
}
