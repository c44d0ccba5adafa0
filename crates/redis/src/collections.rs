//! Hashes, sets, lists and sorted sets: packed, which means whole and in memory, or spread over the
//! pages of a tree, of which some are in memory ([`tree`](crate::tree)).
//!
//! Commands use both forms by the same methods. A spread hash or set has its elements in the order
//! of a hash of their names, and a packed one in the order in which they came.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use indexmap::{IndexMap, IndexSet};
use smallvec::SmallVec;

use crate::listpack::element_bytes;
use crate::tree::{Element, KEY_BYTES_MAX, Tree, VALUE_BYTES_MAX};

/// The fields of a hash, with their values.
#[derive(Clone, PartialEq, Debug)]
pub enum Hash {
    /// In the order in which they came.
    Packed(IndexMap<Vec<u8>, Vec<u8>>),
    /// In a tree.
    Spread(Box<Tree>),
}

/// The members of a set.
#[derive(Clone, PartialEq, Debug)]
pub enum Set {
    /// In the order in which they came.
    Packed(IndexSet<Vec<u8>>),
    /// In a tree.
    Spread(Box<Tree>),
}

/// The elements of a list.
#[derive(Clone, PartialEq, Debug)]
pub enum List {
    /// All of them.
    Packed(VecDeque<Vec<u8>>),
    /// In a tree.
    Spread(Box<Tree>),
}

/// Members with scores, ordered by score, and by their bytes where scores are equal. No score is
/// NaN or -0.
#[derive(Clone, PartialEq, Debug)]
pub enum SortedSet {
    /// All of them.
    Packed(PackedSortedSet),
    /// In two trees.
    Spread {
        /// The members, with their scores before them. The values are empty.
        by_score: Box<Tree>,
        /// The members in the order of a hash. The values are the scores.
        by_member: Box<Tree>,
    },
}

/// An iterator over a collection of one form or the other.
#[derive(Clone, Debug)]
pub enum Either<P, S> {
    /// An iterator over a packed one.
    Packed(P),
    /// An iterator over a spread one.
    Spread(S),
}

impl<P: Iterator, S: Iterator<Item = P::Item>> Iterator for Either<P, S> {
    type Item = P::Item;

    fn next(&mut self) -> Option<P::Item> {
        match self {
            Either::Packed(iter) => iter.next(),
            Either::Spread(iter) => iter.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Either::Packed(iter) => iter.size_hint(),
            Either::Spread(iter) => iter.size_hint(),
        }
    }
}

impl<P: DoubleEndedIterator, S: DoubleEndedIterator<Item = P::Item>> DoubleEndedIterator for Either<P, S> {
    fn next_back(&mut self) -> Option<P::Item> {
        match self {
            Either::Packed(iter) => iter.next_back(),
            Either::Spread(iter) => iter.next_back(),
        }
    }
}

impl<P: ExactSizeIterator, S: ExactSizeIterator<Item = P::Item>> ExactSizeIterator for Either<P, S> {}

/// Bytes of the hash before a name.
pub(crate) const HASH_BYTES: usize = 4;

/// Returns the hash of a name, which decides its place in a tree.
pub fn hash_of(name: &[u8]) -> u32 {
    // FNV-1a, mixed. Names with equal hashes stand next to each other, so they do no harm.
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    ((hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

/// Returns the key of a name in a tree.
fn key_of(name: &[u8]) -> SmallVec<[u8; 64]> {
    let mut key = SmallVec::from_slice(&hash_of(name).to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// Returns the name of a key in a tree. An element that is not loaded has an empty key.
fn name_of(element: &Element) -> &[u8] {
    element.key.get(HASH_BYTES..).unwrap_or_default()
}

/// Returns the elements of these names and values in the order of a tree.
pub(crate) fn by_hash(elements: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Vec<Element> {
    let mut elements: Vec<Element> =
        elements.map(|(name, value)| Element { key: key_of(&name).into_vec(), value }).collect();
    elements.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    elements
}

/// Returns whether a name or an element fits a tree.
pub(crate) fn fits(name: &[u8], value: &[u8]) -> bool {
    name.len() <= KEY_BYTES_MAX - SCORE_BYTES && value.len() <= VALUE_BYTES_MAX
}

/// Elements that a call of a scan answers, and the cursor of the next call. It is `None` if there
/// is none.
type Scanned<T> = (Vec<T>, Option<u64>);

/// Returns the elements of a scan of a tree in the order of hashes: those from a hash on, about
/// `count`, and the hash from which the next call goes on. It is `None` behind the last element.
fn scan(tree: &Tree, cursor: u64, count: usize) -> Scanned<&Element> {
    let Ok(from) = u32::try_from(cursor) else { return (Vec::new(), None) };
    let hash = |element: &Element| element.key.first_chunk().map_or(0, |hash| u32::from_be_bytes(*hash));
    let first = tree.count_below(|key| key < &from.to_be_bytes()[..]);
    let end = first.saturating_add(count).min(tree.len());
    let Some(last) = end.checked_sub(1).filter(|last| *last >= first).and_then(|last| tree.at(last)) else {
        return (Vec::new(), None);
    };
    // All elements of one hash are answered together.
    let next = hash(last).checked_add(1);
    let end = next.map_or(tree.len(), |next| tree.count_below(|key| key < &next.to_be_bytes()[..]));
    let next = next.filter(|_| end < tree.len()).map(u64::from);
    (tree.elements(first..end.max(first)), next)
}

impl Default for Hash {
    fn default() -> Hash {
        Hash::Packed(IndexMap::new())
    }
}

impl Default for Set {
    fn default() -> Set {
        Set::Packed(IndexSet::new())
    }
}

impl Default for List {
    fn default() -> List {
        List::Packed(VecDeque::new())
    }
}

impl Default for SortedSet {
    fn default() -> SortedSet {
        SortedSet::Packed(PackedSortedSet::default())
    }
}

impl Hash {
    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        match self {
            Hash::Packed(hash) => hash.len(),
            Hash::Spread(tree) => tree.len(),
        }
    }

    /// Returns whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value of a field.
    pub fn get(&self, field: &[u8]) -> Option<&[u8]> {
        match self {
            Hash::Packed(hash) => hash.get(field).map(Vec::as_slice),
            Hash::Spread(tree) => tree.get(&key_of(field)),
        }
    }

    /// Returns whether a field is there.
    pub fn contains_key(&self, field: &[u8]) -> bool {
        self.get(field).is_some()
    }

    /// Returns the field at a place, and its value.
    pub fn at(&self, place: usize) -> Option<(&[u8], &[u8])> {
        match self {
            Hash::Packed(hash) => hash.get_index(place).map(|(field, value)| (field.as_slice(), value.as_slice())),
            Hash::Spread(tree) => tree.at(place).map(|element| (name_of(element), element.value.as_slice())),
        }
    }

    /// Iterates over the fields and their values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        match self {
            Hash::Packed(hash) => {
                Either::Packed(hash.iter().map(|(field, value)| (field.as_slice(), value.as_slice())))
            }
            Hash::Spread(tree) => {
                let elements = tree.elements(0..tree.len()).into_iter();
                Either::Spread(elements.map(|element| (name_of(element), element.value.as_slice())))
            }
        }
    }

    /// Iterates over the fields that are in memory, in any order. They include all that a command
    /// has changed.
    pub(crate) fn iter_loaded(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        match self {
            Hash::Packed(_) => Either::Packed(self.iter()),
            Hash::Spread(tree) => {
                Either::Spread(tree.loaded().map(|element| (name_of(element), element.value.as_slice())))
            }
        }
    }

    /// Sets a field to a value. Returns its former value.
    pub fn insert(&mut self, field: Vec<u8>, value: Vec<u8>) -> Option<Vec<u8>> {
        match self {
            Hash::Packed(hash) => hash.insert(field, value),
            Hash::Spread(tree) => tree.insert(&key_of(&field), &value),
        }
    }

    /// Removes fields.
    pub fn remove_all(&mut self, fields: &[&[u8]]) {
        match self {
            Hash::Packed(hash) if fields.len() == 1 => _ = hash.shift_remove(fields[0]),
            Hash::Packed(hash) => hash.retain(|field, _| !fields.contains(&field.as_slice())),
            Hash::Spread(tree) => fields.iter().for_each(|field| _ = tree.remove(&key_of(field))),
        }
    }

    /// Returns about `count` fields from a cursor on, and the next cursor: see [`scan`].
    pub(crate) fn scan(&self, cursor: u64, count: usize) -> Scanned<(&[u8], &[u8])> {
        match self {
            Hash::Packed(_) => (self.iter().collect(), None),
            Hash::Spread(tree) => {
                let (elements, next) = scan(tree, cursor, count);
                (elements.into_iter().map(|element| (name_of(element), element.value.as_slice())).collect(), next)
            }
        }
    }
}

impl FromIterator<(Vec<u8>, Vec<u8>)> for Hash {
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, Vec<u8>)>>(fields: I) -> Hash {
        Hash::Packed(fields.into_iter().collect())
    }
}

impl Set {
    /// Returns the number of members.
    pub fn len(&self) -> usize {
        match self {
            Set::Packed(set) => set.len(),
            Set::Spread(tree) => tree.len(),
        }
    }

    /// Returns whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether a member is there.
    pub fn contains(&self, member: &[u8]) -> bool {
        match self {
            Set::Packed(set) => set.contains(member),
            Set::Spread(tree) => tree.get(&key_of(member)).is_some(),
        }
    }

    /// Iterates over the members.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        match self {
            Set::Packed(set) => Either::Packed(set.iter().map(Vec::as_slice)),
            Set::Spread(tree) => Either::Spread(tree.elements(0..tree.len()).into_iter().map(name_of)),
        }
    }

    /// Iterates over the members that are in memory, in any order. They include all that a command
    /// has changed.
    pub(crate) fn iter_loaded(&self) -> impl Iterator<Item = &[u8]> {
        match self {
            Set::Packed(_) => Either::Packed(self.iter()),
            Set::Spread(tree) => Either::Spread(tree.loaded().map(name_of)),
        }
    }

    /// Adds a member. Returns whether it is new.
    pub fn insert(&mut self, member: Vec<u8>) -> bool {
        match self {
            Set::Packed(set) => set.insert(member),
            Set::Spread(tree) => tree.insert(&key_of(&member), &[]).is_none(),
        }
    }

    /// Removes a member.
    pub fn remove(&mut self, member: &[u8]) {
        match self {
            Set::Packed(set) => {
                if let Some(place) = set.get_index_of(member) {
                    self.remove_at(place);
                }
            }
            Set::Spread(tree) => _ = tree.remove(&key_of(member)),
        }
    }

    /// Returns the member at a place.
    pub fn at(&self, place: usize) -> Option<&[u8]> {
        match self {
            Set::Packed(set) => set.get_index(place).map(Vec::as_slice),
            Set::Spread(tree) => tree.at(place).map(name_of),
        }
    }

    /// Removes the member at a place that is there.
    pub fn remove_at(&mut self, place: usize) -> Vec<u8> {
        match self {
            Set::Packed(set) => {
                let is_ordered = set.len() <= ORDERED_MAX;
                let member = if is_ordered { set.shift_remove_index(place) } else { set.swap_remove_index(place) };
                member.expect("the place is below the length")
            }
            Set::Spread(tree) => name_of(&tree.remove_at(place)).to_vec(),
        }
    }

    /// Returns about `count` members from a cursor on, and the next cursor: see [`scan`].
    pub(crate) fn scan(&self, cursor: u64, count: usize) -> Scanned<&[u8]> {
        match self {
            Set::Packed(_) => (self.iter().collect(), None),
            Set::Spread(tree) => {
                let (elements, next) = scan(tree, cursor, count);
                (elements.into_iter().map(name_of).collect(), next)
            }
        }
    }
}

/// Packed sets of more members than this do not keep their order when members are removed.
const ORDERED_MAX: usize = 128;

impl FromIterator<Vec<u8>> for Set {
    fn from_iter<I: IntoIterator<Item = Vec<u8>>>(members: I) -> Set {
        Set::Packed(members.into_iter().collect())
    }
}

impl List {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            List::Packed(list) => list.len(),
            List::Spread(tree) => tree.len(),
        }
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element at a place.
    pub fn at(&self, place: usize) -> Option<&[u8]> {
        match self {
            List::Packed(list) => list.get(place).map(Vec::as_slice),
            List::Spread(tree) => tree.at(place).map(|element| element.value.as_slice()),
        }
    }

    /// Iterates over the elements.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        self.range(0..self.len())
    }

    /// Iterates over the elements at these places.
    pub fn range(&self, places: Range<usize>) -> impl DoubleEndedIterator<Item = &[u8]> + ExactSizeIterator {
        match self {
            List::Packed(list) => Either::Packed(list.range(places).map(Vec::as_slice)),
            List::Spread(tree) => {
                Either::Spread(tree.elements(places).into_iter().map(|element| element.value.as_slice()))
            }
        }
    }

    /// Returns the bytes that all elements take in the small encoding of Redis.
    pub(crate) fn listpack_bytes(&self) -> usize {
        match self {
            List::Packed(list) => list.iter().map(|element| element_bytes(element)).sum(),
            List::Spread(tree) => tree.listpack_bytes(),
        }
    }

    /// Adds an element before the first one.
    pub fn push_front(&mut self, element: Vec<u8>) {
        match self {
            List::Packed(list) => list.push_front(element),
            List::Spread(tree) => tree.insert_at(0, element),
        }
    }

    /// Adds an element behind the last one.
    pub fn push_back(&mut self, element: Vec<u8>) {
        match self {
            List::Packed(list) => list.push_back(element),
            List::Spread(tree) => tree.insert_at(tree.len(), element),
        }
    }

    /// Removes the first element.
    pub fn pop_front(&mut self) -> Option<Vec<u8>> {
        (!self.is_empty()).then(|| self.remove_at(0))
    }

    /// Removes the last element.
    pub fn pop_back(&mut self) -> Option<Vec<u8>> {
        self.len().checked_sub(1).map(|last| self.remove_at(last))
    }

    fn remove_at(&mut self, place: usize) -> Vec<u8> {
        match self {
            List::Packed(list) => list.remove(place).expect("the place is below the length"),
            List::Spread(tree) => tree.remove_at(place).value,
        }
    }

    /// Replaces the element at a place that is there.
    pub fn set(&mut self, place: usize, element: Vec<u8>) {
        match self {
            List::Packed(list) => list[place] = element,
            List::Spread(tree) => tree.replace_at(place, element),
        }
    }

    /// Inserts an element at a place.
    pub fn insert(&mut self, place: usize, element: Vec<u8>) {
        match self {
            List::Packed(list) => list.insert(place, element),
            List::Spread(tree) => tree.insert_at(place, element),
        }
    }

    /// Removes the elements for which `keeps` does not hold.
    pub fn retain(&mut self, mut keeps: impl FnMut(&[u8]) -> bool) {
        match self {
            List::Packed(list) => list.retain(|element| keeps(element)),
            List::Spread(tree) => {
                let elements = tree.elements(0..tree.len());
                let removed: Vec<usize> =
                    (0..).zip(elements).filter(|(_, element)| !keeps(&element.value)).map(|(place, _)| place).collect();
                removed.into_iter().rev().for_each(|place| _ = tree.remove_at(place));
            }
        }
    }

    /// Removes all elements but those at these places.
    pub fn keep(&mut self, places: Range<usize>) {
        match self {
            List::Packed(list) => {
                list.truncate(places.end);
                list.drain(..places.start);
            }
            List::Spread(tree) => {
                let length = tree.len();
                // What is removed is loaded by one note.
                for removed in [places.end..length, 0..places.start] {
                    if !removed.is_empty() {
                        tree.elements(removed.clone());
                        removed.rev().for_each(|place| _ = tree.remove_at(place));
                    }
                }
            }
        }
    }
}

impl From<Vec<Vec<u8>>> for List {
    fn from(elements: Vec<Vec<u8>>) -> List {
        List::Packed(elements.into())
    }
}

macro_rules! from_array {
    ($($Type:ident of $Element:ty),*) => {$(
        impl<const N: usize> From<[$Element; N]> for $Type {
            fn from(elements: [$Element; N]) -> $Type {
                $Type::Packed(elements.into())
            }
        }
    )*};
}

from_array!(Hash of (Vec<u8>, Vec<u8>), Set of Vec<u8>, List of Vec<u8>);

/// Bytes of a score.
const SCORE_BYTES: usize = 8;

/// Returns the key of a member in the tree of scores. Keys are ordered as scores are.
pub(crate) fn score_key(score: f64, member: &[u8]) -> SmallVec<[u8; 64]> {
    let bits = score.to_bits();
    let bits = if score.is_sign_negative() { !bits } else { bits | 1 << 63 };
    let mut key = SmallVec::from_slice(&bits.to_be_bytes());
    key.extend_from_slice(member);
    key
}

/// Returns the score and the member of a key in the tree of scores, which may be cut off.
fn of_score_key(key: &[u8]) -> (f64, &[u8]) {
    let mut bits = [0; SCORE_BYTES];
    let (score, member) = key.split_at(key.len().min(SCORE_BYTES));
    bits[..score.len()].copy_from_slice(score);
    let bits = u64::from_be_bytes(bits);
    let bits = if bits >> 63 == 1 { bits ^ 1 << 63 } else { !bits };
    (f64::from_bits(bits), member)
}

fn scored(element: &Element) -> (&[u8], f64) {
    if element.key.is_empty() {
        return (&[], 0.0); // it is not loaded
    }
    let (score, member) = of_score_key(&element.key);
    (member, score)
}

impl SortedSet {
    /// Returns the number of members.
    #[expect(clippy::len_without_is_empty, reason = "no sorted set is empty")]
    pub fn len(&self) -> usize {
        match self {
            SortedSet::Packed(set) => set.by_score.len(),
            SortedSet::Spread { by_score, .. } => by_score.len(),
        }
    }

    /// Iterates over the members and their scores, the lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], f64)> + ExactSizeIterator {
        self.range(0..self.len())
    }

    /// Iterates over the members at these places and their scores, the lowest first.
    pub fn range(&self, places: Range<usize>) -> impl DoubleEndedIterator<Item = (&[u8], f64)> + ExactSizeIterator {
        match self {
            SortedSet::Packed(set) => {
                Either::Packed(set.by_score[places].iter().map(|(score, member)| (member.as_slice(), *score)))
            }
            SortedSet::Spread { by_score, .. } => Either::Spread(by_score.elements(places).into_iter().map(scored)),
        }
    }

    /// Returns the member at this place, and its score. The lowest is at place 0.
    pub fn at(&self, place: usize) -> Option<(&[u8], f64)> {
        match self {
            SortedSet::Packed(set) => set.by_score.get(place).map(|(score, member)| (member.as_slice(), *score)),
            SortedSet::Spread { by_score, .. } => by_score.at(place).map(scored),
        }
    }

    /// Returns the score of a member.
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            SortedSet::Packed(set) => set.score(member),
            SortedSet::Spread { by_member, .. } => by_member.get(&key_of(member)).map(score_of),
        }
    }

    /// Returns the place of a member: how many members are lower.
    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        self.score(member).map(|score| self.count_below(|other_score, other| (other_score, other) < (score, member)))
    }

    /// Returns how many members come first for which `is_below` holds. It holds for all members
    /// before any for which it does.
    pub fn count_below(&self, is_below: impl Fn(f64, &[u8]) -> bool) -> usize {
        match self {
            SortedSet::Packed(set) => set.count_below(is_below),
            SortedSet::Spread { by_score, .. } => by_score.count_below(|key| {
                let (score, member) = of_score_key(key);
                is_below(score, member)
            }),
        }
    }

    /// Sets the score of a member. Returns its former score. A score of -0 becomes 0.
    pub fn insert(&mut self, member: &[u8], score: f64) -> Option<f64> {
        debug_assert!(!score.is_nan(), "no score is NaN");
        let score = score + 0.0;
        match self {
            SortedSet::Packed(set) => set.insert(member, score),
            SortedSet::Spread { by_score, by_member } => {
                let former = by_member.insert(&key_of(member), &score.to_le_bytes());
                let former = former.map(|former| score_of(&former));
                if let Some(former) = former {
                    by_score.remove(&score_key(former, member));
                }
                by_score.insert(&score_key(score, member), &[]);
                former
            }
        }
    }

    /// Iterates over the members that are in memory, in any order. They include all that a command
    /// has changed.
    pub(crate) fn iter_loaded(&self) -> impl Iterator<Item = &[u8]> {
        match self {
            SortedSet::Packed(_) => Either::Packed(self.iter().map(|(member, _)| member)),
            SortedSet::Spread { by_member, .. } => Either::Spread(by_member.loaded().map(name_of)),
        }
    }

    /// Adds a member behind all others of a packed set. Returns false, and adds nothing, if it does
    /// not belong there, or if its score is NaN.
    pub(crate) fn push(&mut self, member: Vec<u8>, score: f64) -> bool {
        match self {
            SortedSet::Packed(set) => set.push(member, score),
            SortedSet::Spread { .. } => false,
        }
    }

    /// Removes a member. Returns its score.
    pub fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let score = self.score(member)?;
        match self {
            SortedSet::Packed(set) => {
                let place = set.count_below(|other_score, other| (other_score, other) < (score, member));
                set.remove_range(place..place + 1);
            }
            SortedSet::Spread { by_score, by_member } => {
                by_score.remove(&score_key(score, member));
                by_member.remove(&key_of(member));
            }
        }
        Some(score)
    }

    /// Removes the members at these places. Returns them with their scores, the lowest first.
    pub fn remove_range(&mut self, places: Range<usize>) -> Vec<(Vec<u8>, f64)> {
        match self {
            SortedSet::Packed(set) => set.remove_range(places),
            SortedSet::Spread { by_score, by_member } => {
                let removed: Vec<(Vec<u8>, f64)> = by_score
                    .elements(places.clone())
                    .into_iter()
                    .map(scored)
                    .map(|(member, score)| (member.to_vec(), score))
                    .collect();
                for (member, _) in &removed {
                    by_score.remove_at(places.start);
                    by_member.remove(&key_of(member));
                }
                removed
            }
        }
    }

    /// Returns about `count` members from a cursor on, and the next cursor: see [`scan`].
    pub(crate) fn scan(&self, cursor: u64, count: usize) -> Scanned<(&[u8], f64)> {
        match self {
            SortedSet::Packed(_) => (self.iter().collect(), None),
            SortedSet::Spread { by_member, .. } => {
                let (elements, next) = scan(by_member, cursor, count);
                (elements.into_iter().map(|element| (name_of(element), score_of(&element.value))).collect(), next)
            }
        }
    }
}

/// Reads a score that a tree has as a value. That of an element that is not loaded is 0.
fn score_of(value: &[u8]) -> f64 {
    value.first_chunk().map_or(0.0, |bytes| f64::from_le_bytes(*bytes))
}

impl FromIterator<(Vec<u8>, f64)> for SortedSet {
    /// Builds a sorted set of members in any order. Each occurs once.
    fn from_iter<I: IntoIterator<Item = (Vec<u8>, f64)>>(members: I) -> SortedSet {
        let mut by_score: Vec<_> = members.into_iter().map(|(member, score)| (score + 0.0, member)).collect();
        by_score.sort_unstable_by(|a, b| a.partial_cmp(b).expect("no score is NaN"));
        let mut set = PackedSortedSet { by_score, scores: HashMap::new() };
        if set.by_score.len() >= MANY {
            set.note_all();
        }
        SortedSet::Packed(set)
    }
}

/// A sorted set in memory.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PackedSortedSet {
    by_score: Vec<(f64, Vec<u8>)>,
    /// The scores, if there are many members.
    scores: HashMap<Vec<u8>, f64>,
}

/// From this number of members on, a sorted set also finds them by name.
const MANY: usize = 64;

impl PackedSortedSet {
    fn score(&self, member: &[u8]) -> Option<f64> {
        if self.by_score.len() < MANY {
            return self.by_score.iter().find(|(_, other)| other == member).map(|(score, _)| *score);
        }
        self.scores.get(member).copied()
    }

    fn count_below(&self, is_below: impl Fn(f64, &[u8]) -> bool) -> usize {
        self.by_score.partition_point(|(score, member)| is_below(*score, member))
    }

    fn insert(&mut self, member: &[u8], score: f64) -> Option<f64> {
        let former = self.score(member);
        if let Some(former) = former {
            let place = self.count_below(|other_score, other| (other_score, other) < (former, member));
            self.remove_range(place..place + 1);
        }
        let place = self.count_below(|other_score, other| (other_score, other) < (score, member));
        self.by_score.insert(place, (score, member.to_vec()));
        self.note(member, score);
        former
    }

    fn push(&mut self, member: Vec<u8>, score: f64) -> bool {
        let last = self.by_score.last().map(|(score, member)| (*score, member.as_slice()));
        if score.is_nan() || last.is_some_and(|last| last >= (score, member.as_slice())) {
            return false;
        }
        self.by_score.push((score, member.clone()));
        self.note(&member, score);
        true
    }

    /// Notes the score of a member that was added.
    fn note(&mut self, member: &[u8], score: f64) {
        if self.by_score.len() == MANY {
            self.note_all();
        } else if self.by_score.len() > MANY {
            self.scores.insert(member.to_vec(), score);
        }
    }

    /// Notes the scores of all members.
    fn note_all(&mut self) {
        self.scores = self.by_score.iter().map(|(score, member)| (member.clone(), *score)).collect();
    }

    fn remove_range(&mut self, places: Range<usize>) -> Vec<(Vec<u8>, f64)> {
        let removed: Vec<_> = self.by_score.drain(places).map(|(score, member)| (member, score)).collect();
        if self.by_score.len() < MANY {
            self.scores = HashMap::new();
        } else {
            removed.iter().for_each(|(member, _)| _ = self.scores.remove(member));
        }
        removed
    }
}
