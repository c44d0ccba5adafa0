//! From packed collections to spread ones, and back.

use smallvec::SmallVec;

use crate::collections::{Hash, List, Set, SortedSet, by_hash, fits, score_key};
use crate::object::{Object, Value};
use crate::packed;
use crate::tree::{Element, PART_BYTES, Tree};

impl Object {
    /// Returns a copy for another key. That of a spread collection is packed, because no two keys
    /// may have the same pages.
    #[must_use]
    pub fn copy(&self) -> Object {
        Object { value: self.value.packed(), ..*self }
    }

    /// Gives a value the form in which a store of this limit keeps it after a transaction. All
    /// pages of a spread collection must be loaded. So a replay of commands has hashes and sets in
    /// the order in which the store has them.
    pub fn settle_form(&mut self, spread_bytes: usize) {
        if self.value.trees().is_empty() {
            if packed::length(self) > spread_bytes && self.value.can_be_spread() {
                self.value.spread(PART_BYTES);
            }
        } else if self.value.has_outgrown() {
            self.value = self.value.packed();
        }
    }
}

impl Value {
    /// Returns the trees of a spread collection.
    pub fn trees(&self) -> SmallVec<[&Tree; 2]> {
        match self {
            Value::Hash(Hash::Spread(tree)) | Value::Set(Set::Spread(tree)) | Value::List(List::Spread(tree)) => {
                SmallVec::from_slice(&[&**tree])
            }
            Value::SortedSet(SortedSet::Spread { by_score, by_member }) => {
                SmallVec::from_slice(&[&**by_score, &**by_member])
            }
            _ => SmallVec::new(),
        }
    }

    /// Returns the trees of a spread collection, to load pages into them.
    pub fn trees_mut(&mut self) -> SmallVec<[&mut Tree; 2]> {
        let mut trees = SmallVec::new();
        match self {
            Value::Hash(Hash::Spread(tree)) | Value::Set(Set::Spread(tree)) | Value::List(List::Spread(tree)) => {
                trees.push(&mut **tree);
            }
            Value::SortedSet(SortedSet::Spread { by_score, by_member }) => {
                trees.extend([&mut **by_score, &mut **by_member])
            }
            _ => {}
        }
        trees
    }

    /// Returns whether a packed collection can be spread: no element is too long.
    pub fn can_be_spread(&self) -> bool {
        match self {
            Value::String(_) => false,
            Value::List(list @ List::Packed(_)) => list.iter().all(|element| fits(&[], element)),
            Value::Set(set @ Set::Packed(_)) => set.iter().all(|member| fits(member, &[])),
            Value::Hash(hash @ Hash::Packed(_)) => hash.iter().all(|(field, value)| fits(field, value)),
            Value::SortedSet(set @ SortedSet::Packed(_)) => set.iter().all(|(member, _)| fits(member, &[])),
            _ => false,
        }
    }

    /// Spreads a packed collection over pages of this length.
    pub fn spread(&mut self, page_bytes: usize) {
        match self {
            Value::Hash(Hash::Packed(hash)) => {
                let elements = by_hash(std::mem::take(hash).into_iter());
                *self = Value::Hash(Hash::Spread(Box::new(Tree::build(elements, page_bytes))));
            }
            Value::Set(Set::Packed(set)) => {
                let elements = by_hash(std::mem::take(set).into_iter().map(|member| (member, Vec::new())));
                *self = Value::Set(Set::Spread(Box::new(Tree::build(elements, page_bytes))));
            }
            Value::List(List::Packed(list)) => {
                let elements = std::mem::take(list).into_iter();
                let elements = elements.map(|value| Element { key: Vec::new(), value }).collect();
                *self = Value::List(List::Spread(Box::new(Tree::build(elements, page_bytes))));
            }
            Value::SortedSet(set @ SortedSet::Packed(_)) => {
                let by_score = set
                    .iter()
                    .map(|(member, score)| Element { key: score_key(score, member).into_vec(), value: Vec::new() });
                let by_score = Box::new(Tree::build(by_score.collect(), page_bytes));
                let by_member = set.iter().map(|(member, score)| (member.to_vec(), score.to_le_bytes().to_vec()));
                let by_member = Box::new(Tree::build(by_hash(by_member), page_bytes));
                *self = Value::SortedSet(SortedSet::Spread { by_score, by_member });
            }
            _ => {}
        }
    }

    /// Returns a spread collection packed. All of its pages must be loaded.
    #[must_use]
    pub fn packed(&self) -> Value {
        match self {
            Value::Hash(hash @ Hash::Spread(_)) => {
                Value::Hash(hash.iter().map(|(field, value)| (field.to_vec(), value.to_vec())).collect())
            }
            Value::Set(set @ Set::Spread(_)) => Value::Set(set.iter().map(<[u8]>::to_vec).collect()),
            Value::List(list @ List::Spread(_)) => Value::List(List::Packed(list.iter().map(<[u8]>::to_vec).collect())),
            Value::SortedSet(set @ SortedSet::Spread { .. }) => {
                Value::SortedSet(set.iter().map(|(member, score)| (member.to_vec(), score)).collect())
            }
            value => value.clone(),
        }
    }

    /// Returns whether a spread collection has an element that is too long for a tree, among the
    /// elements that are loaded.
    pub fn has_outgrown(&self) -> bool {
        match self {
            Value::Hash(hash @ Hash::Spread(_)) => hash.iter_loaded().any(|(field, value)| !fits(field, value)),
            Value::Set(set @ Set::Spread(_)) => set.iter_loaded().any(|member| !fits(member, &[])),
            Value::List(List::Spread(tree)) => tree.loaded().any(|element| !fits(&[], &element.value)),
            Value::SortedSet(set @ SortedSet::Spread { .. }) => set.iter_loaded().any(|member| !fits(member, &[])),
            _ => false,
        }
    }
}
