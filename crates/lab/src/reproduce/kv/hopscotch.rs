//! The hash table of FaRM's key-value store, as DrTM's text has rewritten it for its comparison
//! (TOCS 2017, section 6.4): Hopscotch hashing with neighborhoods of eight slots.
//!
//! ```text
//! region
//! +0    slots: a home for each hash, and seven more, so that each neighborhood is one READ
//! then  overflow blocks, of eight slots each
//! then  pairs, if values are outside
//!
//! slot
//! +0    key u64
//! +8    | overflow : 24 | pair : 40 |      bit 63 .. bit 0
//! +16   value, in whole words, if values are inside
//!
//! pair
//! +0    version, lock and incarnation u64
//! +8    key u64
//! +16   value, in whole words
//!
//! overflow = 0, or the number of a block plus one: the block of the keys whose home this is, or
//!            in the first slot of a block, the next block
//! pair     = 0 if the slot is empty, else the offset of the pair; inside, 1
//! ```
//!
//! A lookup READs the eight slots that begin with the key's home. An insert takes the nearest empty
//! slot, and moves it towards the home by keys that may lie further from theirs. If that is not
//! possible, the key goes to an overflow block of its home, which is a further READ. If values are
//! outside, the pair is a further READ; inside, the READ of eight slots brings eight values.
//!
//! The table is read-only here. What only a writer needs is left out: FaRM's version in each line
//! of 64 bytes.

use std::collections::BTreeMap;

use remora_fabric::{FabricError, Lane, splitmix};

use super::{Pairs, at, read, within};

/// The number of slots of a neighborhood.
pub const NEIGHBORHOOD: usize = 8;
/// The distance from its home at which an insert no longer looks for an empty slot.
const DISTANCE_MAX: usize = 4096;
const PAIR_BITS: u32 = 40;
const PAIR_MASK: u64 = (1 << PAIR_BITS) - 1;

/// The place of the values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Values {
    /// In the slots (FaRM-KV/I).
    Inside,
    /// Outside of the slots (FaRM-KV/O).
    Outside,
}

/// A table, as its bytes lie in the memory node's region.
#[derive(Clone, Debug)]
pub struct Hopscotch {
    homes: u64,
    values: Values,
    value_words: usize,
    /// The number of keys in overflow blocks.
    overflown: u64,
    words: Vec<u64>,
}

impl Hopscotch {
    /// Builds a table of `homes` homes that has these pairs. Returns `None` if it has no room.
    #[must_use]
    pub fn build(pairs: &Pairs, homes: u64, values: Values) -> Option<Hopscotch> {
        if homes < pairs.count {
            return None;
        }
        let mut filled: Vec<Option<u64>> = vec![None; homes as usize + NEIGHBORHOOD - 1];
        let mut chains: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let home = |pair: u64| home(pairs.key(pair), homes);
        for pair in 0..pairs.count {
            match emptied(&mut filled, home(pair) as usize, &home) {
                Some(slot) => filled[slot] = Some(pair),
                None => chains.entry(home(pair)).or_default().push(pair),
            }
        }
        let value_words = pairs.value_words();
        let slot_words = slot_words(values, value_words);
        let blocks: usize = chains.values().map(|chain| chain.len().div_ceil(NEIGHBORHOOD)).sum();
        let overflown = chains.values().map(|chain| chain.len() as u64).sum();
        let first = (filled.len() + blocks * NEIGHBORHOOD) * slot_words;
        let pair_words = 2 + value_words;
        let words = match values {
            Values::Inside => first,
            Values::Outside => first + pairs.count as usize * pair_words,
        };
        let mut words = vec![0; words];
        let mut put = |slot: usize, pair: u64| {
            let (begin, key) = (slot * slot_words, pairs.key(pair));
            let value = match values {
                Values::Inside => {
                    words[begin + 1] |= 1;
                    begin + 2
                }
                Values::Outside => {
                    let pair_at = first + pair as usize * pair_words;
                    words[begin + 1] |= pair_at as u64 * 8;
                    words[pair_at + 1] = key;
                    pair_at + 2
                }
            };
            words[begin] = key;
            pairs.write_value(key, &mut words[value..value + value_words]);
        };
        filled
            .iter()
            .enumerate()
            .filter_map(|(slot, pair)| Some((slot, (*pair)?)))
            .for_each(|(slot, pair)| put(slot, pair));
        let mut links = Vec::with_capacity(blocks);
        for (home, chain) in &chains {
            let mut from = *home as usize;
            for block in chain.chunks(NEIGHBORHOOD) {
                let begin = filled.len() + links.len() * NEIGHBORHOOD;
                block.iter().zip(begin..).for_each(|(pair, slot)| put(slot, *pair));
                links.push(from);
                from = begin;
            }
        }
        for (from, number) in links.into_iter().zip(1_u64..) {
            words[from * slot_words + 1] |= number << PAIR_BITS;
        }
        (blocks < 1 << (u64::BITS - PAIR_BITS)).then_some(Hopscotch { homes, values, value_words, overflown, words })
    }

    /// Returns the words of the region.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the number of keys that are in overflow blocks.
    #[must_use]
    pub fn overflown(&self) -> u64 {
        self.overflown
    }

    /// Looks a key up, and returns the first word of its value. Returns `None` if the table does
    /// not have the key. Fails if the memory node cannot be reached.
    pub async fn get(&self, lane: &Lane, key: u64) -> Result<Option<u64>, FabricError> {
        let slot_words = slot_words(self.values, self.value_words);
        let mut first = home(key, self.homes);
        loop {
            let begin = at(first * slot_words as u64 * 8);
            let slots = read(lane, begin, NEIGHBORHOOD * slot_words * 8).await?;
            let found = slots.chunks(slot_words).find(|slot| slot[0] == key && slot[1] & PAIR_MASK != 0);
            if let Some(slot) = found {
                if self.values == Values::Inside {
                    return Ok(Some(slot[2]));
                }
                let pair = read(lane, at(slot[1] & PAIR_MASK), 8 * (2 + self.value_words)).await?;
                return Ok((pair[1] == key).then(|| pair[2]));
            }
            let Some(block) = (slots[1] >> PAIR_BITS).checked_sub(1) else { return Ok(None) };
            first = self.homes + (NEIGHBORHOOD as u64 - 1) + block * NEIGHBORHOOD as u64;
        }
    }
}

fn slot_words(values: Values, value_words: usize) -> usize {
    match values {
        Values::Inside => 2 + value_words,
        Values::Outside => 2,
    }
}

fn home(key: u64, homes: u64) -> u64 {
    within(splitmix(key), homes)
}

/// Empties a slot of the neighborhood that begins at `first`, and returns the slot. Returns `None`
/// if no key can move.
fn emptied(filled: &mut [Option<u64>], first: usize, home: &impl Fn(u64) -> u64) -> Option<usize> {
    let end = filled.len().min(first + DISTANCE_MAX);
    let mut empty = first + filled[first..end].iter().position(Option::is_none)?;
    while empty >= first + NEIGHBORHOOD {
        // The key that is furthest from the empty slot among the keys that may move there.
        let moves = |slot: &usize| filled[*slot].is_some_and(|pair| home(pair) as usize + NEIGHBORHOOD > empty);
        let from = (empty + 1 - NEIGHBORHOOD..empty).find(moves)?;
        filled[empty] = filled[from].take();
        empty = from;
    }
    Some(empty)
}
