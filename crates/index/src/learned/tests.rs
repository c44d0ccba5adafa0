//! The learned cache beside a map of fences, and the published ways to lose keys.

use std::collections::BTreeMap;

use proptest::prelude::*;
use remora_fabric::Prng;

use super::*;

/// Leaves by their low fences.
type Fences = BTreeMap<Vec<u8>, u64>;

fn high_of<'f>(fences: &'f Fences, low: &[u8]) -> Option<&'f [u8]> {
    fences
        .range::<[u8], _>((std::ops::Bound::Excluded(low), std::ops::Bound::Unbounded))
        .next()
        .map(|(key, _)| &key[..])
}

fn leaf_of<'f>(fences: &'f Fences, key: &[u8]) -> (&'f [u8], u64) {
    let (low, id) =
        fences.range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Included(key))).next_back().unwrap();
    (low, *id)
}

fn trained(fences: &Fences) -> Learned {
    let key_bytes = fences.keys().next().unwrap().len();
    Learned::of_leaves(key_bytes, fences.iter().map(|(low, id)| (low, *id)))
}

/// Bounds hold, and there is no entry that is not searched.
fn check(learned: &Learned) {
    assert_eq!(learned.cuts.len(), learned.parts.len() * learned.key_bytes);
    for (at, part) in learned.parts.iter().enumerate() {
        let cut = learned.cut(at);
        assert!(at == 0 || learned.cut(at - 1) < cut);
        assert_eq!(learned.part(cut), at);
        assert!(part.entries.len() <= LEAVES_MAX && part.entries[0].separator() == 0);
        let mut least = Vec::new();
        for (place, entry) in part.entries.iter().enumerate() {
            least.clear();
            part.scale.least(cut, entry.separator(), &mut least);
            assert_eq!((part.place(cut, &least), learned.part(&least)), (place, at));
        }
    }
}

/// `count` keys of one of several kinds, in order.
fn keys(kind: usize, count: u64, random: &mut Prng) -> Vec<Vec<u8>> {
    let key = |number: u64| -> Vec<u8> {
        match kind {
            0 => (number * 1000).to_be_bytes().to_vec(),
            1 => random.next_u64().to_be_bytes().to_vec(),
            // From a few to all bits.
            2 => (random.next_u64() >> random.below(40)).to_be_bytes().to_vec(),
            // Warehouse, district, order, line.
            3 => [number / 3000, number / 300 % 10, number / 10 % 30, number % 10]
                .iter()
                .flat_map(|field| (*field as u32).to_be_bytes())
                .collect(),
            // What differs most is behind the eighth byte that does.
            _ => [vec![7; 20], vec![(number % 3) as u8; 9], number.to_be_bytes().to_vec()].concat(),
        }
    };
    let mut keys: Vec<Vec<u8>> = (0..count).map(key).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// Leaves with eight keys.
fn fences_of(keys: &[Vec<u8>]) -> Fences {
    let mut fences: Fences = keys.iter().step_by(8).cloned().zip(2..).collect();
    fences.pop_first();
    fences.insert(vec![0; keys[0].len()], 1);
    fences
}

#[test]
fn every_fence_finds_its_leaf_and_every_key_its_own_or_the_next() {
    for kind in 0..5 {
        let mut random = Prng::new(kind as u64);
        let keys = keys(kind, 200_000, &mut random);
        let fences = fences_of(&keys);
        let learned = trained(&fences);
        check(&learned);
        for (low, id) in &fences {
            assert_eq!(learned.find(low), Some(*id), "kind {kind}, {low:?}");
        }
        let lows: Vec<&Vec<u8>> = fences.keys().collect();
        let mut others = 0;
        for key in &keys {
            let (low, id) = leaf_of(&fences, key);
            if learned.find(key) != Some(id) {
                others += 1;
                assert_eq!(learned.find(key), high_of(&fences, low).map(|next| fences[next]), "kind {kind}, {key:?}");
            }
        }
        assert!(others < keys.len() / 1000, "kind {kind}: {others}");
        let chain = learned.chain(lows[100], lows[1000], 5000);
        assert_eq!(chain, fences.values().copied().skip(100).take(901).collect::<Vec<_>>());
        assert_eq!(learned.chain(lows[100], lows[1000], 50).len(), 50);
        let size = learned.size();
        assert_eq!((size.entries, size.bytes), (lows.len(), size.model_bytes + 8 * lows.len()));
    }
}

#[test]
fn lines_are_close() {
    let fences = fences_of(&keys(1, 800_000, &mut Prng::new(1)));
    let size = trained(&fences).size();
    assert!(size.searched < 24.0, "{size:?}");
    assert!(size.parts < 1000, "{size:?}");
    let fences = fences_of(&keys(3, 800_000, &mut Prng::new(1)));
    let size = trained(&fences).size();
    assert!(size.searched < 48.0 && size.parts < 1500, "{size:?}");
}

proptest! {
    /// Leaves are split, merged and seen as a client sees them: keys of two bytes are told apart
    /// whatever happens.
    #[test]
    fn what_has_been_seen_is_found(
        first in prop::collection::btree_set(any::<u16>(), 0..700),
        steps in prop::collection::vec((any::<u16>(), 0u8..4), 0..300),
        is_trained in any::<bool>(),
    ) {
        let key = |number: u16| number.to_be_bytes();
        let mut fences: Fences = first.iter().map(|low| (key(*low).to_vec(), u64::from(*low) + 1)).collect();
        fences.insert(vec![0; 2], 1);
        let mut learned = if is_trained { trained(&fences) } else { Learned::new(2) };
        let mut next_id = 1 << 20;
        for (number, kind) in steps {
            let key = key(number);
            let (low, _) = leaf_of(&fences, &key);
            let low = low.to_vec();
            match kind {
                0 => { // A split.
                    next_id += 1;
                    fences.entry(key.to_vec()).or_insert(next_id);
                }
                1 if low != [0, 0] => { // The leaf goes, and the one before it gets its keys.
                    fences.remove(&low);
                }
                _ => { // A client sees it.
                    let id = fences[&low];
                    learned.learn(&low, high_of(&fences, &low), id);
                    prop_assert_eq!(learned.find(&key), Some(id));
                    prop_assert_eq!(learned.find(&low), Some(id));
                    if let Some(high) = high_of(&fences, &low) {
                        let last = (u16::from_be_bytes([high[0], high[1]]) - 1).to_be_bytes();
                        prop_assert_eq!(learned.find(&last), Some(id));
                    }
                }
            }
            check(&learned);
        }
        for (low, id) in &fences {
            learned.learn(low, high_of(&fences, low), *id);
        }
        check(&learned);
        for number in 0..=u16::MAX {
            prop_assert_eq!(learned.find(&key(number)), Some(leaf_of(&fences, &key(number)).1));
        }
        prop_assert_eq!(learned.chain(&[0; 2], &[255; 2], usize::MAX), fences.into_values().collect::<Vec<_>>());
    }
}

#[test]
fn it_grows_from_nothing() {
    let fences = fences_of(&keys(1, 160_000, &mut Prng::new(3)));
    for backwards in [false, true] {
        let mut learned = Learned::new(8);
        assert_eq!(learned.find(&[9; 8]), None);
        let mut order: Vec<_> = fences.iter().collect();
        if backwards {
            order.reverse();
        }
        for (low, id) in &order {
            learned.learn(low, high_of(&fences, low), **id);
        }
        check(&learned);
        assert!(order.iter().all(|(low, id)| learned.find(low) == Some(**id)));
        // Lines are fitted again, those of parts and the one above them.
        let size = learned.size();
        assert!(size.parts < 250 && size.searched < 32.0, "{size:?}");
        assert!(learned.bounds.0 + learned.bounds.1 < 3 * ADDED_MIN, "{:?}", learned.bounds);
    }
}

#[test]
fn ranges_that_are_not_used_any_more_leave_nothing() {
    let fences = fences_of(&keys(0, 160_000, &mut Prng::new(1)));
    let mut learned = trained(&fences);
    let (low, id) = leaf_of(&fences, &500_u64.to_be_bytes());
    learned.learn(low, None, id);
    check(&learned);
    assert_eq!((learned.size().entries, learned.find(&[255; 8])), (1, Some(id)));
}

#[test]
fn an_id_that_does_not_fit_is_not_known() {
    let mut learned = Learned::new(8);
    learned.learn(&[0; 8], None, ID_END - 1);
    assert_eq!(learned.find(&[1; 8]), Some(ID_END - 1));
    learned.learn(&[0; 8], None, ID_END);
    assert_eq!(learned.find(&[1; 8]), None);
}

/// `f32` cannot tell 100,000,000 from 100,000,001.
#[test]
fn neighbours_among_large_keys_are_told_apart() {
    assert_eq!(1e8_f32, 1e8_f32 + 1.0);
    for base in [100_000_000_u64, 1 << 60] {
        let lows = || (0..100).map(|number| if number == 0 { 0 } else { base + number });
        let learned =
            Learned::of_leaves(8, lows().map(|low| (low.to_be_bytes(), low - lows().nth(1).unwrap_or(0).min(low))));
        for low in lows().skip(1) {
            assert_eq!(learned.find(&low.to_be_bytes()), Some(low - base - 1));
        }
    }
}

/// As far from a line as can be: some of the published error bounds would not fit their eight bits.
#[test]
fn nothing_is_saturated() {
    let lows = || (0..20_000_u64).map(|number| if number < 19_000 { number } else { (number - 18_999) << 40 });
    let learned = Learned::of_leaves(8, lows().map(|low| (low.to_be_bytes(), low >> 20 ^ low)));
    check(&learned);
    assert!(
        lows().all(|low| learned.find(&low.to_be_bytes()) == Some((low >> 20 ^ low) & (ID_END - 1))
            || low >> 20 ^ low >= ID_END)
    );
    // One line for all of them.
    let points = lows().map(|low| (low.min(NUMBER_MAX.into()) as u32, low as usize)).take(19_500);
    let (behind, ahead) = Line::fit(points.clone()).bounds(points, 19_499);
    assert!(behind.max(ahead) > 255);
}

// ---- lost keys ----------------------------------------------------------------------------

/// Whose places bounds are computed from.
#[derive(Clone, Copy, PartialEq)]
enum Bounds {
    /// Keys that are there (published, without augmentation).
    Keys,
    /// And one between any two sub-models (published).
    Boundaries,
    /// Both ends of each leaf.
    Fences,
}

/// Random keys whose leaf is not within what a lookup would read, and the number of keys tried.
/// There are 320 keys in 40 leaves that are half full. A share of the keys is deleted before lines
/// are fitted. The top model is a line over the keys that are left.
fn lost(bounds: Bounds, lognormal: bool, parts: usize, deleted: f64, seeds: Range<u64>) -> (u64, u64) {
    const KEYS: usize = 320;
    const SPACE: u32 = 1 << 22;
    let least = |is: &dyn Fn(u32) -> bool| {
        let (mut from, mut to) = (0, SPACE);
        while from < to {
            let middle = from.midpoint(to);
            if is(middle) { to = middle } else { from = middle + 1 }
        }
        from
    };
    let (mut missed, mut probed) = (0, 0);
    for seed in seeds {
        let mut random = Prng::new(seed);
        let mut unit = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let mut keys = std::collections::BTreeSet::new();
        while keys.len() < KEYS {
            let normal: f64 = (0..12).map(|_| unit()).sum::<f64>() - 6.0;
            let key = if lognormal { (2.0 * normal).exp() * 3000.0 } else { unit() * f64::from(SPACE) };
            keys.insert((key as u32).min(SPACE - 1));
        }
        let keys: Vec<u32> = keys.into_iter().collect();
        let lows: Vec<u32> =
            keys.iter().step_by(8).enumerate().map(|(at, key)| if at == 0 { 0 } else { *key }).collect();
        let leaf = |key: u32| lows.partition_point(|low| *low <= key) - 1;
        let left: Vec<u32> = keys.into_iter().filter(|_| unit() >= deleted).collect();
        if left.is_empty() {
            continue;
        }
        let top = Line::fit(left.iter().copied().enumerate().map(|(rank, key)| (key, rank * parts / left.len())));
        let part = |key| top.place(key, parts - 1);
        let lines: Vec<_> = (0..parts)
            .map(|number| {
                let mut points: Vec<(u32, usize)> =
                    left.iter().filter(|key| part(**key) == number).map(|key| (*key, leaf(*key))).collect();
                let edge = |number: usize| least(&|key| part(key) >= number);
                let (first, end_of_part) = (edge(number), edge(number + 1));
                if first == end_of_part {
                    return (Line::default(), (0, 0));
                }
                if bounds == Bounds::Boundaries {
                    // A key of the gap on each side, at the place of the key before it.
                    let before =
                        |key: u32| left.iter().rev().find(|other| **other <= key).map(|other| (key, leaf(*other)));
                    points.extend([first, end_of_part - 1].into_iter().filter_map(before));
                }
                let line = Line::fit(points.iter().copied());
                if bounds == Bounds::Fences {
                    // Clipped to the keys of the part.
                    let end = |at: usize| lows.get(at + 1).map_or(SPACE - 1, |next| next - 1);
                    let last = end_of_part - 1;
                    points = (leaf(first)..=leaf(last))
                        .flat_map(|at| [(lows[at].max(first), at), (end(at).min(last), at)])
                        .collect();
                }
                let found = line.bounds(points.into_iter(), lows.len() - 1);
                (line, found)
            })
            .collect();
        for _ in 0..500 {
            let key = (unit() * f64::from(SPACE)) as u32;
            let (line, bounds) = lines[part(key)];
            probed += 1;
            missed += u64::from(!line.range(key, bounds, lows.len() - 1).contains(&leaf(key)));
        }
    }
    (missed, probed)
}

/// The published bounds lose keys that are inserted after others were deleted, and ours do not.
#[test]
fn bounds_of_keys_lose_keys_and_bounds_of_fences_do_not() {
    let of = |bounds, lognormal, deleted| lost(bounds, lognormal, 4, deleted, 0..100).0;
    let keys = of(Bounds::Keys, false, 0.0);
    assert!(keys > 0, "{keys}");
    for (lognormal, deleted) in [(false, 0.3), (false, 0.9), (true, 0.3)] {
        let [keys, boundaries] = [Bounds::Keys, Bounds::Boundaries].map(|bounds| of(bounds, lognormal, deleted));
        assert!(keys > 0 && boundaries > 0, "{lognormal} {deleted}: {keys} {boundaries}");
    }
    for (lognormal, deleted) in [(false, 0.0), (false, 0.3), (false, 0.9), (true, 0.3)] {
        assert_eq!(of(Bounds::Fences, lognormal, deleted), 0, "{lognormal} {deleted}");
    }
}
