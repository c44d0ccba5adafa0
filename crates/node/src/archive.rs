//! Archives: the memory in which clients keep the former images of records that they overwrite.
//!
//! A client of a cluster with landing clocks has one archive at every memory node. It writes the
//! archive by one-sided WRITEs, round and round, at the same places everywhere. A record names the
//! place of its former image (`remora_record::Former`). So a reader of an older state follows these
//! words, from image to image, to the one that it needs.
//!
//! ```text
//! archive     whole words, one image after the other, each as it lay in its slot from the
//!             record's version on; no image lies across the end
//! ```
//!
//! Nothing frees an image. It is there until the client has written once around its archive. So the
//! archive's length decides how long a former image can be read. The next client with the same slot
//! may have another archive. A reader finds the archive by the slot, and recognizes the image by
//! its checksum.

use remora_fabric::{Address, NodeId, ReadHandle, Round, WORD_BYTES};

use crate::node;

/// The place of the words that describe an archive, in the slot of its client, in words.
const AT_WORD: usize = 2;
/// The words that are read of a slot: the rings' offset and extent, and then the archive's offset
/// and length, all in bytes.
const WORDS: usize = 4;

/// An archive at a memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Archive {
    node: NodeId,
    at: u64,
    bytes: u64,
}

impl Archive {
    pub(crate) fn new(node: NodeId, at: u64, bytes: u64) -> Archive {
        Archive { node, at, bytes }
    }

    /// Adds to a round the READ of what says where the archive of a client slot lies.
    #[must_use]
    pub fn find(round: &mut Round<'_>, node: NodeId, slot: u64) -> ReadHandle {
        round.read(node::client_slot_at(node, slot).plus((AT_WORD * WORD_BYTES) as u64), WORDS * WORD_BYTES)
    }

    /// Returns the archive at a node, from what the READ of [`Archive::find`] has brought. Returns
    /// `None` if the slot has no archive.
    #[must_use]
    pub fn found(node: NodeId, words: &[u64]) -> Option<Archive> {
        let &[rings, extent, at, bytes] = words else { return None };
        // A client that is connecting may just be changing these words.
        let is_within = at >= rings && at.checked_add(bytes)? <= rings.checked_add(extent)?;
        (bytes > 0 && is_within && at.is_multiple_of(WORD_BYTES as u64)).then_some(Archive { node, at, bytes })
    }

    /// Returns the number of words of the archive.
    #[must_use]
    pub fn words(&self) -> u64 {
        self.bytes / WORD_BYTES as u64
    }

    /// Returns the address of an image of `words` words at a place, which is in words, too. Returns
    /// `None` if the archive has no such place.
    #[must_use]
    pub fn image_at(&self, place: u64, words: usize) -> Option<Address> {
        let is_there = place.checked_add(words as u64)? <= self.words();
        is_there.then(|| node::at(self.node, self.at + place * WORD_BYTES as u64))
    }
}
