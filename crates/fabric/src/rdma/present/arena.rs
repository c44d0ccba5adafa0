//! Blocks of registered memory, which lists of verbs read into and write from.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::device::Domain;
use super::queue::{Access, QueuePair, Registered};
use crate::limits::{ROUND_VERBS_MAX, ROUND_WORDS_MAX};
use crate::region::{HUGE_PAGE_BYTES, Region};

/// Words of the smallest block.
const BLOCK_WORDS_MIN: usize = 16;
/// The number of block sizes. Each size is twice the one before.
const SIZES: usize = 11;

const _: () = assert!(BLOCK_WORDS_MIN << (SIZES - 1) >= ROUND_WORDS_MAX + ROUND_VERBS_MAX);

/// A block: some words of one of the queue pair's memories.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) memory: u32,
    pub(super) at: usize,
    size: u8,
}

impl Block {
    /// The block that stands for none, of a queue pair that is broken.
    pub(super) const NONE: Block = Block { memory: u32::MAX, at: 0, size: 0 };
}

/// The blocks that are free, and the memory that has not been cut into blocks. More memory is
/// registered when it is needed, a huge page at a time.
pub(super) struct Arena {
    domain: Arc<Domain>,
    free: [Vec<Block>; SIZES],
    uncut: Option<(u32, std::ops::Range<usize>)>,
}

impl Arena {
    pub(super) fn new(domain: Arc<Domain>) -> Arena {
        Arena { domain, free: Default::default(), uncut: None }
    }

    /// Takes a block of at least `words` words.
    pub(super) fn take(&mut self, pair: &mut QueuePair, words: usize) -> io::Result<Block> {
        let size = words.div_ceil(BLOCK_WORDS_MIN).next_power_of_two().trailing_zeros() as u8;
        let free = self.free.get_mut(usize::from(size)).ok_or(io::ErrorKind::InvalidInput)?;
        if let Some(block) = free.pop() {
            return Ok(block);
        }
        let words = BLOCK_WORDS_MIN << size;
        if self.uncut.as_ref().is_none_or(|(_, rest)| rest.len() < words) {
            let region = Region::anonymous(HUGE_PAGE_BYTES).map_err(io::Error::other)?;
            let registered =
                Registered::new(&self.domain, Arc::new(region), Access::Local).map_err(io::Error::other)?;
            let rest = 0..registered.region().words().len();
            self.uncut = Some((pair.add_memory(registered), rest));
        }
        let (memory, rest) = self.uncut.as_mut().ok_or(io::ErrorKind::OutOfMemory)?;
        let at = rest.start;
        rest.start += words;
        Ok(Block { memory: *memory, at, size })
    }

    /// Gives back a block whose list has completed: the NIC does not touch it any more.
    pub(super) fn give_back(&mut self, block: Block) {
        self.free[usize::from(block.size)].push(block);
    }

    pub(super) fn fill(&self, pair: &QueuePair, memory: u32, at: usize, from: &[u64]) {
        let Some(memory) = pair.memory(memory) else { return };
        for (word, value) in memory.region().words()[at..].iter().zip(from) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self, pair: &QueuePair, memory: u32, at: usize, into: &mut [u64]) {
        let Some(memory) = pair.memory(memory) else { return };
        for (word, value) in memory.region().words()[at..].iter().zip(into) {
            *value = word.load(Ordering::Relaxed);
        }
    }
}
