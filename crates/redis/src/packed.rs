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
//! All numbers are little-endian. Elements are in their order, and fields and members in the order
//! in which they came. A collection has at least one element. A value has only one packed form.

use crate::object::{Encoding, Hash, List, Object, Set, SortedSet, Value};

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
    let number = match &object.value {
        Value::String(_) => STRING,
        Value::List(_) => LIST,
        Value::Hash(_) => HASH,
        Value::Set(_) => SET,
        Value::SortedSet(_) => SORTED_SET,
    };
    out.extend([number | (object.encoding as u8) << 4, u8::from(object.expiry.is_some())]);
    out.extend(object.expiry.map(u64::to_le_bytes).iter().flatten());
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

/// Returns the bytes that a value has when it is packed.
pub fn length(object: &Object) -> usize {
    let element = |element: &Vec<u8>| 4 + element.len();
    let content = match &object.value {
        Value::String(string) => string.len(),
        Value::List(list) => list.iter().map(element).sum(),
        Value::Set(set) => set.iter().map(element).sum(),
        Value::Hash(hash) => hash.iter().map(|(field, value)| element(field) + element(value)).sum(),
        Value::SortedSet(set) => set.iter().map(|(member, _)| 12 + member.len()).sum(),
    };
    2 + object.expiry.map_or(0, |_| 8) + content
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
