//! Slotted nodes beside a map, what fits them, and bytes that are none.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Image, LEVELS_MAX};
use super::*;

fn shape() -> Shape {
    Shape::up_to(SLOTTED_KEY_BYTES_MAX, 8).unwrap()
}

fn view(shape: Shape, image: &Image) -> Node<&[u8]> {
    Node::new(shape, &image[..]).unwrap()
}

fn change(shape: Shape, image: &mut Image) -> Node<&mut [u8]> {
    Node::new(shape, &mut image[..]).unwrap()
}

#[test]
fn nodes_have_the_room_that_is_said() {
    assert_eq!(shape().bytes_of(0), 42 * LINE - OF_RECORD);
    assert_eq!(shape().bytes_of(0), 2656);
    assert_eq!(Shape::up_to(100, 8).unwrap().bytes_of(0), NODE_BYTES);
    assert_eq!(Shape::up_to(512, SLOTTED_VALUE_BYTES_MAX).unwrap().bytes_of(0), 3040);
    assert_eq!(Shape::up_to(513, 8), None);
    assert_eq!(Shape::up_to(0, 8), None);
    assert_eq!(Shape::up_to(8, SLOTTED_VALUE_BYTES_MAX + 1), None);
    let (leaves, inner) = shape().nodes_for(10_000);
    assert!(leaves >= 10_000 && inner < leaves / 4, "{leaves} leaves, {inner} inner nodes");
}

/// Keys of 20 bytes that differ from their first byte on, and such that begin alike.
#[test]
fn short_keys_do_not_pay_for_long_ones() {
    let filled = |begin: &[u8]| {
        let mut image = Image::new();
        let mut node = Node::create(shape(), &mut image, 0, &[]);
        for number in 0_u64.. {
            let key = [begin, &number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()[..8]].concat();
            let key = [&key[..], &[b'.'; 20][..20_usize.saturating_sub(key.len())]].concat();
            if !node.has_room(&key) {
                return node.count();
            }
            let at = node.find(&key).unwrap_err();
            node.insert(at, &key, &number.to_le_bytes());
        }
        0
    };
    assert_eq!(filled(&[]), 82);
    assert_eq!(filled(&[b'k'; 12]), 130);
    assert_eq!(filled(&[b'k'; 504]), 106);
}

#[test]
fn equal_contents_have_equal_bytes() {
    let mut images = [Image::new(), Image::new()];
    for (turn, image) in images.iter_mut().enumerate() {
        let mut node = Node::create(shape(), image, 0, b"a");
        let keys: [&[u8]; 4] = [b"abc", b"abd", b"b", b"bb"];
        for at in 0..4 {
            let key = keys[if turn == 0 { at } else { 3 - at }];
            node.insert(node.find(key).unwrap_err(), key, &[1; 8]);
        }
        node.end(Some(b"c"), 7);
        node.remove(2);
    }
    assert_eq!(images[0], images[1]);
    let golden = [
        &[0, 0, 3, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, b'c', 3, 0, b'a', b'b', b'c'],
        &[1; 8][..],
        &[3, 0, b'a', b'b', b'd', 1, 1, 1, 1, 1, 1, 1, 1, 2, 0, b'b', b'b', 1],
    ];
    assert_eq!(images[0][..golden.concat().len()], golden.concat());
    assert_eq!(images[0][2650..], [53, 0, 40, 0, 27, 0]);
}

/// A key of one of a few kinds: short ones, long ones that differ early or late, and their
/// beginnings.
fn key(kind: u8, number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    match kind % 6 {
        0 => vec![low % 16],
        1 => [vec![low % 4; 500], vec![high % 8; 11], vec![low]].concat(),
        2 => vec![low; 1 + usize::from(number) % 512],
        3 => [vec![b'k'; 511], vec![low]].concat(),
        4 => [vec![b'k'; usize::from(number) % 511], vec![high, low][..1].to_vec()].concat(),
        _ => [vec![high, low], vec![0; usize::from(number) % 511]].concat(),
    }
}

/// A tree of two levels: a list of leaves, and inner nodes above them that are split as they are.
struct Level {
    shape: Shape,
    level: u16,
    nodes: Vec<Image>,
}

impl Level {
    fn new(shape: Shape, level: u16) -> Level {
        let mut image = Image::new();
        let mut node = Node::create(shape, &mut image, level, &[]);
        if level > 0 {
            node.insert_child(&[], 1);
        }
        Level { shape, level, nodes: vec![image] }
    }

    fn index_of(&self, key: &[u8]) -> usize {
        self.nodes.binary_search_by(|image| view(self.shape, image).side_of(key).reverse()).unwrap()
    }

    /// Inserts a key; the fence, if a node was split for it.
    fn insert(&mut self, key: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
        let mut index = self.index_of(key);
        let mut fence = None;
        let mut node = change(self.shape, &mut self.nodes[index]);
        if node.find(key).is_err() && !node.has_room(key) {
            let split = node.split_point(key).unwrap();
            let right = node.split(&split, 7);
            let goes_right = view(self.shape, &right).contains(key);
            self.nodes.insert(index + 1, right);
            index += usize::from(goes_right);
            fence = Some(split.fence);
        }
        let mut node = change(self.shape, &mut self.nodes[index]);
        match node.find(key) {
            Ok(at) => node.into_value(at).copy_from_slice(payload),
            Err(at) => node.insert(at, key, payload),
        }
        fence
    }

    fn remove(&mut self, key: &[u8]) {
        let index = self.index_of(key);
        let mut node = change(self.shape, &mut self.nodes[index]);
        if let Ok(at) = node.find(key) {
            node.remove(at);
        }
        let is_empty = node.count() == 0;
        if is_empty && index > 0 {
            let gone = self.nodes[index].clone();
            let gone = view(self.shape, &gone);
            let mut left = change(self.shape, &mut self.nodes[index - 1]);
            if left.can_absorb(left.count(), &gone, 0) {
                left.absorb(&gone, 0);
                self.nodes.remove(index);
            }
        }
    }

    fn check(&self) {
        let nodes: Vec<_> = self.nodes.iter().map(|image| view(self.shape, image)).collect();
        for (node, next) in nodes.iter().zip(nodes.iter().skip(1)) {
            assert_eq!((node.high(), node.next()), (Some(next.low()), 7));
        }
        assert!(nodes.last().unwrap().high().is_none());
        for node in &nodes {
            assert_eq!((node.check(), node.level()), (Ok(()), self.level));
            assert_eq!(node.image(), {
                let mut again = node.image();
                Content::of(node).write(&mut again);
                again
            });
        }
    }
}

proptest! {
    /// A row of leaves beside a map, and a row of inner nodes above them: what is full is split,
    /// what is empty is absorbed. Every split leaves room.
    #[test]
    fn nodes_are_a_map(
        changes in prop::collection::vec((any::<u8>(), any::<u16>(), 0u8..4), 0..500),
        kinds in 1u8..7, value_bytes in prop::sample::select(vec![0, 8, 100, SLOTTED_VALUE_BYTES_MAX]),
        key_bytes in prop::sample::select(vec![512_usize, 512, 190, 60]),
    ) {
        let shape = Shape::up_to(key_bytes, value_bytes).unwrap();
        let (mut leaves, mut inner) = (Level::new(shape, 0), Level::new(shape, 1));
        let mut model = BTreeMap::new();
        for (turn, (kind, number, change)) in changes.into_iter().enumerate() {
            let key = key(kind % kinds, number).into_iter().take(key_bytes).collect::<Vec<_>>();
            if change == 0 {
                leaves.remove(&key);
                model.remove(&key);
                continue;
            }
            let value = vec![turn as u8; value_bytes];
            if let Some(fence) = leaves.insert(&key, &value) {
                inner.insert(&fence, &7_u64.to_le_bytes());
            }
            model.insert(key, value);
        }
        let entries = |image: &Image| {
            let node = view(shape, image);
            (0..node.count()).map(|at| (node.key(at).into_owned(), node.value(at).to_vec())).collect::<Vec<_>>()
        };
        prop_assert_eq!(leaves.nodes.iter().flat_map(entries).collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
        leaves.check();
        inner.check();
    }

    /// Whatever a memory node says, nothing panics.
    #[test]
    fn any_bytes_are_a_node_or_refused(
        changes in prop::collection::vec((0usize..2656, any::<u8>()), 0..6),
        keys in prop::collection::vec((any::<u8>(), any::<u16>()), 1..20), level in 0u16..2,
        key in prop::collection::vec(any::<u8>(), 1..600),
        noise in prop::option::of(prop::collection::vec(any::<u8>(), 2656)),
    ) {
        let mut level = Level::new(shape(), level);
        for (kind, number) in keys {
            level.insert(&self::key(kind, number), &[1; 8]);
        }
        let mut bytes = noise.unwrap_or_else(|| level.nodes.swap_remove(0));
        for (at, byte) in changes {
            bytes[if at % 2 == 0 { at % 60 } else { at }] = byte;
        }
        let Ok(node) = Node::new(shape(), &bytes[..]) else { return Ok(()) };
        prop_assert!(node.level() <= LEVELS_MAX);
        let _ = (node.side_of(&key), node.find(&key), node.has_room(&key), node.split_point(&key), node.can_absorb(1, &node, 0));
        for at in 0..node.count() {
            let _ = (node.key(at), node.value(at));
        }
        if node.level() > 0 {
            let _ = node.child(node.child_of(&key));
        }
        if node.check().is_ok() {
            let mut image = node.image();
            let mut node = Node::new(shape(), &mut image[..]).unwrap();
            if let Ok(split) = node.split_point(&key) {
                let right = node.split(&split, 1);
                prop_assert_eq!(view(shape(), &right).check(), Ok(()));
            }
            prop_assert_eq!(node.check(), Ok(()));
            if node.count() > 1 {
                node.remove(node.count() - 1);
            }
        }
    }
}

#[test]
fn what_makes_no_sense_is_told() {
    let mut image = Image::new();
    let mut node = Node::create(shape(), &mut image, 0, b"j");
    for key in [b"kab", b"kac", b"kbd"] {
        node.insert(node.count(), key, &[0; 8]);
    }
    node.end(Some(b"l"), 1);
    assert_eq!(node.check(), Ok(()));
    let broken = |change: &dyn Fn(&mut Image)| {
        let mut broken = image.clone();
        change(&mut broken);
        Node::new(shape(), &broken[..]).and_then(|node| node.check()).unwrap_err()
    };
    let lengths = Damaged("the lengths in it");
    assert_eq!(broken(&|image| image[0] = 200), Damaged("its level"));
    assert_eq!(broken(&|image| image[2] = 4), lengths);
    assert_eq!(broken(&|image| image[LOW + 1] = 3), lengths);
    assert_eq!(broken(&|image| image[SHARED] = 9), lengths);
    assert_eq!(broken(&|image| image[2655] = 1), lengths);
    assert_eq!(broken(&|image| image[HEADER] = b'm'), Damaged("its fences"));
    assert_eq!(broken(&|image| image[HEADER + 1] = b'k'), Damaged("a key outside of its fences"));
    assert_eq!(broken(&|image| image[HEADER + 5] = b'z'), Damaged("the order of its keys"));
    assert_eq!(Node::new(shape(), &image[1..]).unwrap_err(), Damaged("its length"));
}
