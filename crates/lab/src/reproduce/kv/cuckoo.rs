//! The hash table of Pilaf, as DrTM's text has rewritten it for its comparison (TOCS 2017, section
//! 6.4): Cuckoo hashing by three functions, and one slot to a bucket.
//!
//! ```text
//! region
//! +0    slots, 32 bytes each
//! then  pairs
//!
//! slot
//! +0    key u64
//! +8    pair u64: the offset of the key's pair, or 0 if the slot is empty
//! +16   checksum u64 of the pair
//! +24   checksum u64 of the three words before
//!
//! pair
//! +0    key u64
//! +8    value, in whole words
//! ```
//!
//! A lookup READs the slots that the functions give, one after the other, until one has the key. So
//! a key that lies where the third function says costs three READs. The pair is a further READ.
//!
//! The table is read-only here. A 64-bit hash of the words stands for Pilaf's CRC of 64 bits.

use remora_fabric::{FabricError, Lane, splitmix};
use remora_workload::Prng;

use super::{Pairs, at, read, within};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 32;
/// Words of a slot.
const SLOT_WORDS: usize = SLOT_BYTES / 8;
/// The number of hash functions.
pub const FUNCTIONS: u64 = 3;
/// The number of keys that an insert moves at most before the table counts as full.
const MOVES_MAX: u32 = 10_000;

/// A table, as its bytes lie in the memory node's region.
#[derive(Clone, Debug)]
pub struct Cuckoo {
    slots: u64,
    pair_words: usize,
    words: Vec<u64>,
}

impl Cuckoo {
    /// Builds a table of `slots` slots that has these pairs. Returns `None` if a key finds no slot.
    ///
    /// A key goes to the first of its slots that is empty. If none is, it takes one of them by
    /// chance, and the key that was there moves on in this way.
    #[must_use]
    pub fn build(pairs: &Pairs, slots: u64, seed: u64) -> Option<Cuckoo> {
        if slots < pairs.count {
            return None;
        }
        let mut random = Prng::new(seed);
        let mut filled: Vec<Option<u64>> = vec![None; slots as usize];
        for pair in 0..pairs.count {
            let mut homeless = pair;
            let mut moves = 0;
            loop {
                let mut places = places(pairs.key(homeless), slots);
                if let Some(empty) = places.clone().find(|place| filled[*place as usize].is_none()) {
                    filled[empty as usize] = Some(homeless);
                    break;
                }
                if moves == MOVES_MAX {
                    return None;
                }
                moves += 1;
                let taken = places.nth(random.below(FUNCTIONS) as usize)?;
                homeless = filled[taken as usize].replace(homeless)?;
            }
        }
        let first = slots as usize * SLOT_WORDS;
        let pair_words = 1 + pairs.value_words();
        let mut words = vec![0; first + pairs.count as usize * pair_words];
        for (slot, pair) in filled.iter().enumerate().filter_map(|(slot, pair)| Some((slot, (*pair)?))) {
            let begin = first + pair as usize * pair_words;
            let key = pairs.key(pair);
            words[begin] = key;
            pairs.write_value(key, &mut words[begin + 1..begin + pair_words]);
            let named = [key, begin as u64 * 8, checksum(&words[begin..begin + pair_words])];
            words[slot * SLOT_WORDS..][..3].copy_from_slice(&named);
            words[slot * SLOT_WORDS + 3] = checksum(&named);
        }
        Some(Cuckoo { slots, pair_words, words })
    }

    /// Returns the words of the region.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Looks a key up, and returns the first word of its value. Returns `None` if the table does
    /// not have the key. Fails if the memory node cannot be reached.
    pub async fn get(&self, lane: &Lane, key: u64) -> Result<Option<u64>, FabricError> {
        for place in places(key, self.slots) {
            let slot = read(lane, at(place * SLOT_BYTES as u64), SLOT_BYTES).await?;
            let [found, pair, sum_of_pair, sum] = slot[..] else { continue };
            if found != key || pair == 0 || sum != checksum(&[found, pair, sum_of_pair]) {
                continue;
            }
            let pair = read(lane, at(pair), 8 * self.pair_words).await?;
            let is_whole = checksum(&pair) == sum_of_pair && pair[0] == key;
            return Ok(is_whole.then(|| pair[1]));
        }
        Ok(None)
    }
}

/// Returns the slots in which a key may lie, in the order in which they are READ.
fn places(key: u64, slots: u64) -> impl Iterator<Item = u64> + Clone {
    (0..FUNCTIONS).map(move |function| within(splitmix(key ^ splitmix(function)), slots))
}

fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64, |sum, word| splitmix(sum ^ word))
}
