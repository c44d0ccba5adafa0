use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn no_slot_recurs(unit: u32, class in 0usize..16, hashes in prop::collection::vec(any::<u64>(), 1..40)) {
        let class = Class::new(class).unwrap();
        let mut seen = BTreeSet::new();
        let mut slot = Slot::unused(unit, class).next_use(Hash(hashes[0])).unwrap();
        for hash in hashes.into_iter().map(Hash) {
            let kinds = [slot.live(), slot.pending(), slot.tombstone(), slot.withdrawn()];
            let are = [Kind::Live, Kind::Pending, Kind::Tombstone, Kind::Withdrawn];
            for (one, kind) in kinds.into_iter().zip(are) {
                prop_assert_eq!((one.kind(), one.unit(), one.class()), (kind, unit, class));
                prop_assert!(one.to_bits() != 0 && seen.insert(one.to_bits()));
                prop_assert_eq!(one.is_free(), !matches!(kind, Kind::Live | Kind::Pending));
            }
            prop_assert!(slot.tombstone().marked() != slot.tombstone().to_bits());
            prop_assert!(slot.marked() != slot.to_bits());
            slot = slot.next_use(hash).unwrap();
            prop_assert!(slot.may_have(hash) && slot.pending().may_get(hash));
            prop_assert!(!slot.may_get(hash) && !slot.pending().may_have(hash) && !slot.tombstone().may_have(hash));
        }
    }

    #[test]
    fn a_word_names_each_range_of_units(start in 0u64..1 << 32, count in 1u64..1 << 32) {
        let units = start..start + count;
        let range = UnitRange::new(&units).unwrap();
        prop_assert_eq!(UnitRange::from_bits(range.to_bits()), Some(range));
        prop_assert_eq!(range.units(), units);
        prop_assert_eq!(UnitRange::new(&(start..start)), None);
        prop_assert_eq!(UnitRange::from_bits(start), None);
    }

    /// A mark is neither that of another use, nor the slot itself, whatever kinds the uses have.
    #[test]
    fn no_mark_recurs(unit: u32, hashes in prop::collection::vec(any::<u64>(), 1..40)) {
        let mut seen = BTreeSet::new();
        let mut slot = Slot::unused(unit, Class::SMALLEST).next_use(Hash(hashes[0])).unwrap();
        for (number, hash) in hashes.into_iter().enumerate() {
            let used = if number % 2 == 0 { slot } else { slot.tombstone() };
            prop_assert!(seen.insert(used.to_bits()) && seen.insert(used.marked()));
            slot = slot.next_use(Hash(hash)).unwrap();
        }
    }

    #[test]
    fn empty_slots_name_their_attempt(attempt in 0u64..1 << 59, other in 0u64..1 << 59) {
        prop_assert_eq!(Slot::empty(attempt).kind(), Kind::Empty);
        prop_assert!(Slot::empty(attempt).is_free() && Slot::empty(attempt).to_bits() != 0);
        prop_assert_eq!(Slot::empty(attempt) == Slot::empty(other), attempt == other);
    }

    #[test]
    fn windows_have_no_slot_in_common(hash: u64, groups in 2u64..=GROUPS_MAX) {
        let [one, other] = Hash(hash).windows(groups).map(|window| window.first_slot());
        prop_assert!(one.abs_diff(other) >= WINDOW_SLOTS);
        prop_assert!(one.max(other) + WINDOW_SLOTS <= groups as usize * GROUP_SLOTS);
    }

    #[test]
    fn a_window_prefers_its_main_bucket(hash: u64, start in 0usize..8) {
        for window in Hash(hash).windows(16) {
            let slots: Vec<_> = window.preferred(start).collect();
            prop_assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), WINDOW_SLOTS);
            // The overflow bucket is the second one of its group.
            let is_overflow = |slot: &usize| (window.first_slot() + slot) % GROUP_SLOTS / BUCKET_SLOTS == 1;
            prop_assert!(!slots[..8].iter().any(is_overflow) && slots[8..].iter().all(is_overflow));
        }
    }

    #[test]
    fn a_free_slot_is_found_if_there_is_one(hash: u64, full in prop::collection::vec(any::<bool>(), 32)) {
        let word = |full: &bool| if *full { Slot::unused(1, Class(0)).to_bits() } else { Slot::empty(1).to_bits() };
        let words: Vec<u64> = full.iter().map(word).collect();
        let parts = [&words[..16], &words[16..]];
        match Hash(hash).free_slot(Hash(hash).windows(4), parts) {
            Some((window, slot)) => prop_assert!(!full[window * 16 + slot]),
            None => prop_assert!(full.iter().all(|full| *full)),
        }
    }

    #[test]
    fn what_is_encoded_is_decoded(
        key in prop::collection::vec(any::<u8>(), 0..40), value in prop::collection::vec(any::<u8>(), 0..200), damage in 0usize..40,
    ) {
        let hash = Hash::of(&key);
        let class = Class::for_content(key.len(), value.len()).unwrap();
        let slot = Slot::unused(9, class).next_use(hash).unwrap();
        let mut image = Vec::new();
        encode(slot, hash, Content { key: &key, value: &value }, &mut image);
        prop_assert!(image.len() * 8 + 8 <= class.bytes());
        let used = image.len();
        image.resize(class.bytes() / 8 - 1, 0x55);
        let read = |image: &[u64], slot| {
            decode(slot, image).map(|(hash, content)| (hash, content.key.to_vec(), content.value.to_vec()))
        };
        prop_assert_eq!(read(&image, slot), Some((hash, key, value)));
        prop_assert_eq!(read(&image, slot.next_use(hash).unwrap()), None);
        image[damage % used] ^= 1 << 40;
        prop_assert_eq!(read(&image, slot), None);
    }

    /// Whatever lies in a block, nothing panics.
    #[test]
    fn any_words_are_a_block(image in prop::collection::vec(any::<u64>(), 0..40)) {
        let slot = Slot::from_bits(image.first().copied().unwrap_or_default());
        let _any = decode(slot, &image);
    }

    #[test]
    fn a_directory_finds_the_leaf_of_each_key(splits in prop::collection::vec(any::<u64>(), 0..60), roots in 0u32..4, keys in prop::collection::vec(any::<u64>(), 20)) {
        // A leaf is the bits that its keys have, and their number.
        let mut directory = Directory::new((0..1u64 << roots).map(|bits| (bits, roots)).collect());
        for bits in splits {
            let number = directory.find(bits);
            let (low, depth) = *directory.leaf(number);
            prop_assert!(directory.split(number, bits, [(low, depth + 1), (low | 1 << depth, depth + 1)]));
        }
        for bits in keys {
            let number = directory.find(bits);
            let (own, depth) = *directory.leaf(number);
            prop_assert_eq!((bits & ((1 << depth) - 1), directory.depth_of(number)), (own, depth));
        }
    }
}

#[test]
fn a_block_is_retired_when_its_uses_are_used_up() {
    let hash = Hash::of(b"key");
    let last = Slot(Slot::LIVE | Slot::USE_MAX << Slot::USE_SHIFT | 5);
    assert_eq!((last.next_use(hash), last.unit()), (None, 5));
    assert!(Slot(last.0 - (1 << Slot::USE_SHIFT)).next_use(hash).is_some());
    assert!(last.withdrawn().next_use(hash).is_none());
}

#[test]
fn nodes_are_marked_but_forks() {
    for word in [NodeWord::BARE, NodeWord::leaf(7)] {
        let marked = word.marked().unwrap();
        assert!(marked != word && marked.node() == word.node() && marked.marked().unwrap() != word);
    }
    assert_eq!(NodeWord::fork(3).marked(), None);
    assert_eq!((NodeWord::fork(3).node(), NodeWord::leaf(u32::MAX).node()), (Node::Fork(3), Node::Leaf(u32::MAX)));
    assert_eq!(NodeWord(u64::MAX).marked(), None);
}

#[test]
fn the_layout_is_as_described() {
    let geometry = Geometry { groups: 64, roots: 3, marks: true, units: 10 };
    assert_eq!((geometry.root_at(0), geometry.units_at(), geometry.bytes()), (256, 320, 320 + 640));
    assert_eq!((geometry.array_slots(), geometry.array_units(), geometry.indirect()), (1536, 192, 7));
    assert_eq!(Geometry::returned_at(Class(15)) + 8, 192);
    let slot = Slot::unused(0x1234_5678, Class(9)).next_use(Hash(0xab << 56)).unwrap();
    assert_eq!(slot.to_bits(), 3 << 62 | 0xab << 54 | 9 << 50 | 1 << 32 | 0x1234_5678);
    let cut = slot.cut_to(Class::SMALLEST);
    assert_eq!((cut.class(), cut.cut_to(Class(0)), cut.unit()), (Class(0), cut, slot.unit()));
    assert_eq!(Class::for_content(8, 64).map(Class::bytes), Some(128));
    assert_eq!(Class::for_content(8, CONTENT_BYTES_MAX - 8).map(Class::number), Some(15));
    assert_eq!(Class::for_content(8, CONTENT_BYTES_MAX), None);
    assert!(2 * GROUPS_MAX as usize * GROUP_SLOTS * 8 + 64 < remora_fabric::limits::ROUND_BYTES_MAX);
}
