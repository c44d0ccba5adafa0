//! Values to bytes, and back.
//!
//! ```text
//! | type : 4 bits, encoding : 4 bits | has expiry : 1 | expiry in ms : 8, if any | content |
//!
//! string       its bytes
//! list, set    | length : 4 | bytes |   of each element
//! hash         | length : 4 | field | length : 4 | value |   of each field
//! sorted set   | score : 8 | length : 4 | member |   of each member, the lowest first
//! ```
//!
//! All numbers are little-endian. A spread collection has its elements elsewhere
//! ([`pack_roots`]). Elements are in their order, and fields and members in the order
//! in which they came. A collection has at least one element. A value has only one packed form.

use crate::collections::HASH_BYTES;
use crate::object::{Encoding, Hash, List, Object, Set, SortedSet, Value};
use crate::tree::{Home, Tree};

/// Bytes that are no packed value. The text says what is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a stored value is damaged: {0}")]
pub struct Damaged(&'static str);

/// The numbers of the types.
const STRING: u8 = 0;
const LIST: u8 = 1;
const HASH: u8 = 2;
const SET: u8 = 3;
const SORTED_SET: u8 = 4;

/// What `TYPE` answers for each number.
const TYPES: [&str; 5] = ["string", "list", "hash", "set", "zset"];

/// Appends a value to `out`.
pub fn pack(object: &Object, out: &mut Vec<u8>) {
    pack_head(object, out);
    match &object.value {
        Value::String(string) => out.extend_from_slice(string),
        Value::List(list) => list.iter().for_each(|element| put(out, element)),
        Value::Set(set) => set.iter().for_each(|member| put(out, member)),
        Value::Hash(hash) => hash.iter().for_each(|(field, value)| {
            put(out, field);
            put(out, value);
        }),
        Value::SortedSet(set) => set.iter().for_each(|(member, score)| {
            out.extend(score.to_le_bytes());
            put(out, member);
        }),
    }
}

fn pack_head(object: &Object, out: &mut Vec<u8>) {
    let number = match &object.value {
        Value::String(_) => STRING,
        Value::List(_) => LIST,
        Value::Hash(_) => HASH,
        Value::Set(_) => SET,
        Value::SortedSet(_) => SORTED_SET,
    };
    out.extend([number | (object.encoding as u8) << 4, u8::from(object.expiry.is_some())]);
    out.extend(object.expiry.map(u64::to_le_bytes).iter().flatten());
}

/// Returns the bytes that a value has when it is packed.
pub fn length(object: &Object) -> usize {
    let element = |element: &[u8]| 4 + element.len();
    // The trees of a spread collection have counted, because not all of their elements are loaded.
    let of_tree =
        |tree: &Tree, lengths: usize, others: usize| tree.bytes() + tree.len() * 4 * lengths - tree.len() * others;
    let content = match &object.value {
        Value::String(string) => string.len(),
        Value::List(List::Spread(tree)) => of_tree(tree, 1, 0),
        Value::Set(Set::Spread(tree)) => of_tree(tree, 1, HASH_BYTES),
        Value::Hash(Hash::Spread(tree)) => of_tree(tree, 2, HASH_BYTES),
        Value::SortedSet(SortedSet::Spread { by_score, .. }) => of_tree(by_score, 1, 0),
        Value::List(list) => list.iter().map(element).sum(),
        Value::Set(set) => set.iter().map(element).sum(),
        Value::Hash(hash) => hash.iter().map(|(field, value)| element(field) + element(value)).sum(),
        Value::SortedSet(set) => set.iter().map(|(member, _)| 12 + member.len()).sum(),
    };
    2 + object.expiry.map_or(0, |_| 8) + content
}

/// Appends the head of a spread collection, and the roots of its trees:
///
/// ```text
/// | head, as above | id of its home : 8 | index of its home : 2 | root | root, of a sorted set |
/// ```
pub fn pack_roots(object: &Object, home: Home, out: &mut Vec<u8>) {
    pack_head(object, out);
    out.extend(home.id.to_le_bytes());
    out.extend(home.index.to_le_bytes());
    object.value.trees().into_iter().for_each(|tree| tree.encode_root(out));
}

/// Reads the roots of a spread collection. None of its pages is loaded. Pages that change will have
/// at most `page_bytes` bytes, if they have several elements.
pub fn unpack_roots(bytes: &[u8], page_bytes: usize) -> Result<Object, Damaged> {
    let Head { expiry, encoding, bytes: head_bytes, .. } = head(bytes)?;
    let mut rest = &bytes[head_bytes..];
    let home = Home { id: u64::from_le_bytes(take(&mut rest)?), index: u16::from_le_bytes(take(&mut rest)?) };
    let mut tree = || {
        let tree = Tree::decode_root(&mut rest, home, page_bytes).ok_or(Damaged("the root of a tree"));
        tree.map(Box::new)
    };
    let value = match bytes[0] & 15 {
        LIST => Value::List(List::Spread(tree()?)),
        HASH => Value::Hash(Hash::Spread(tree()?)),
        SET => Value::Set(Set::Spread(tree()?)),
        SORTED_SET => Value::SortedSet(SortedSet::Spread { by_score: tree()?, by_member: tree()? }),
        _ => return Err(Damaged("its type cannot be spread")),
    };
    if !encoding.is_of(&value) {
        return Err(Damaged("its encoding is of another type"));
    }
    Ok(Object { value, expiry, encoding })
}

/// Appends an element with its length.
fn put(out: &mut Vec<u8>, element: &[u8]) {
    out.extend((element.len() as u32).to_le_bytes());
    out.extend_from_slice(element);
}

/// What comes before the content of a packed value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What `TYPE` answers.
    pub kind: &'static str,
    /// When the key expires, in milliseconds since 1970.
    pub expiry: Option<u64>,
    /// The encoding.
    pub encoding: Encoding,
    /// The number of bytes of the head.
    pub bytes: usize,
}

/// Reads the head of a packed value. The content may be absent.
pub fn head(bytes: &[u8]) -> Result<Head, Damaged> {
    let ([kind, has_expiry], mut rest) = bytes.split_first_chunk().ok_or(Damaged("it is too short"))?;
    let encoding = *Encoding::ALL.get(usize::from(kind >> 4)).ok_or(Damaged("its encoding is unknown"))?;
    let expiry = match has_expiry {
        0 => None,
        1 => match u64::from_le_bytes(take(&mut rest)?) {
            expiry if i64::try_from(expiry).is_ok() => Some(expiry),
            _ => return Err(Damaged("its expiry is out of range")),
        },
        _ => return Err(Damaged("its expiry is neither there nor absent")),
    };
    let name = TYPES.get(usize::from(kind & 15)).ok_or(Damaged("its type is unknown"))?;
    Ok(Head { kind: name, expiry, encoding, bytes: bytes.len() - rest.len() })
}

/// Reads a value that was packed.
pub fn unpack(bytes: &[u8]) -> Result<Object, Damaged> {
    let Head { expiry, encoding, bytes: head_bytes, .. } = head(bytes)?;
    let (kind, mut rest) = (bytes[0], &bytes[head_bytes..]);
    let value = match kind & 15 {
        STRING => Value::String(rest.to_vec()),
        LIST => {
            let mut list = List::default();
            while !rest.is_empty() {
                list.push_back(element(&mut rest)?);
            }
            Value::List(list)
        }
        SET => {
            let mut set = Set::default();
            while !rest.is_empty() {
                if !set.insert(element(&mut rest)?) {
                    return Err(Damaged("a member is there twice"));
                }
            }
            Value::Set(set)
        }
        HASH => {
            let mut hash = Hash::default();
            while !rest.is_empty() {
                if hash.insert(element(&mut rest)?, element(&mut rest)?).is_some() {
                    return Err(Damaged("a field is there twice"));
                }
            }
            Value::Hash(hash)
        }
        SORTED_SET => {
            let mut set = SortedSet::default();
            while !rest.is_empty() {
                let score = f64::from_le_bytes(take(&mut rest)?);
                let member = element(&mut rest)?;
                if score == 0.0 && score.is_sign_negative() {
                    return Err(Damaged("a score is -0"));
                }
                if !set.push(member, score) {
                    return Err(Damaged("its members are out of order"));
                }
            }
            Value::SortedSet(set)
        }
        _ => return Err(Damaged("its type is unknown")),
    };
    if value.is_empty_collection() {
        return Err(Damaged("it is an empty collection"));
    }
    if !encoding.is_of(&value) {
        return Err(Damaged("its encoding is of another type"));
    }
    Ok(Object { value, expiry, encoding })
}

fn element(rest: &mut &[u8]) -> Result<Vec<u8>, Damaged> {
    let length = u32::from_le_bytes(take(rest)?) as usize;
    let (element, behind) = rest.split_at_checked(length).ok_or(Damaged("an element is cut off"))?;
    *rest = behind;
    Ok(element.to_vec())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Damaged> {
    let (bytes, behind) = rest.split_first_chunk().ok_or(Damaged("it is cut off"))?;
    *rest = behind;
    Ok(*bytes)
}
