//! Tests of the copy loops against plain slices, without concurrency: which words go where.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use remora_fabric::copy;

proptest! {
    #[test]
    fn read_and_write_move_exactly_their_words(start in 0usize..64, words in 0usize..64) {
        let words = words.min(64 - start);
        let region: Vec<AtomicU64> = (0..64).map(AtomicU64::new).collect();
        let mut into = vec![u64::MAX; words];
        copy::read(&region, start, &mut into);
        let expected: Vec<u64> = (start as u64..(start + words) as u64).collect();
        prop_assert_eq!(&into, &expected);

        let fresh: Vec<u64> = (0..words as u64).map(|index| 1_000 + index).collect();
        copy::write(&region, start, &fresh);
        for (index, word) in region.iter().enumerate() {
            let expected = match index.checked_sub(start) {
                Some(at) if at < words => fresh[at],
                _ => index as u64,
            };
            prop_assert_eq!(word.load(Ordering::Relaxed), expected);
        }
    }
}
