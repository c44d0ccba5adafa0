//! Frames of log entries that do not fit one round.
//!
//! A client sends such a frame in pieces, in ascending order, and awaits each round. The last piece
//! goes with the round that decides the commit, as a frame of one piece does. A frame is whole only
//! with its last piece, because its checksum covers all of it. So:
//!
//! 1. Before the last piece is sent, no node takes the frame for an entry. If the client dies,
//!    fails or gives up, the transaction has aborted.
//! 2. When the last piece is sent, every node has acknowledged the pieces before it.

use remora_fabric::{Address, Lane, WORD_BYTES};
use remora_node::ring::{PIECE_BYTES_MAX, front_words};

use super::spec::Primitive;
use crate::error::Stop;
use crate::rpc::Code;

/// A frame of several pieces, of which all have been sent but the last one. The default value
/// stands for a frame of one piece, of which nothing has been sent.
#[derive(Default)]
pub(super) struct LongFrame {
    words: Vec<u64>,
    /// The number of words that have been sent.
    pub(super) sent: usize,
}

impl LongFrame {
    /// Returns whether a frame of this many words has several pieces.
    #[inline]
    pub(super) fn is_long(words: usize) -> bool {
        words * WORD_BYTES > PIECE_BYTES_MAX
    }

    /// Sends all pieces of a frame but the last one to all places, one round for each piece.
    #[cold]
    pub(super) async fn write_front(
        lane: &Lane,
        words: Vec<u64>,
        places: &[Address],
        by: Primitive,
        flush: bool,
    ) -> Result<LongFrame, Stop> {
        let sent = front_words(words.len());
        for (number, piece) in words[..sent].chunks(PIECE_BYTES_MAX / WORD_BYTES).enumerate() {
            let mut round = lane.round();
            let staged = round.stage_words(piece.len());
            round.staged_mut(staged).copy_from_slice(piece);
            for place in places {
                let at = place.plus((number * PIECE_BYTES_MAX) as u64);
                if by == Primitive::Call {
                    round.call(at.node, &[Code::Log.word(0), at.offset], Some(staged), 0);
                    continue;
                }
                round.write_staged(at, staged);
                if flush {
                    round.flush(at.node);
                }
            }
            lane.execute(round).await?;
        }
        Ok(LongFrame { words, sent })
    }

    /// Returns the last piece.
    pub(super) fn rest(&self) -> &[u64] {
        &self.words[self.sent..]
    }

    /// Returns how many bytes come before the last piece.
    pub(super) fn sent_bytes(&self) -> u64 {
        (self.sent * WORD_BYTES) as u64
    }
}
