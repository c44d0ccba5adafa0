//! Values, with their types, expiries and encodings.

use remora_resp::number;

pub use crate::collections::{Hash, List, Set, SortedSet};

/// The value of a key.
#[derive(Clone, PartialEq, Debug)]
pub struct Object {
    /// The value.
    pub value: Value,
    /// When the key expires, in milliseconds since 1970. It is at most `i64::MAX`.
    pub expiry: Option<u64>,
    /// What `OBJECT ENCODING` answers.
    pub encoding: Encoding,
}

/// A value. A collection is never empty, but while a command runs.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Any bytes.
    String(Vec<u8>),
    /// Elements in an order that clients choose.
    List(List),
    /// Fields with values.
    Hash(Hash),
    /// Members.
    Set(Set),
    /// Members with scores.
    SortedSet(SortedSet),
}

/// How Redis would keep a value in memory. It has nothing to do with how Remora does, and is kept
/// so that `OBJECT ENCODING` answers what clients expect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Encoding {
    /// A string that is a canonical integer of 64 bits.
    Int = 0,
    /// A string of up to 44 bytes.
    Embstr = 1,
    /// Any other string.
    Raw = 2,
    /// A small collection.
    Listpack = 3,
    /// A set of integers.
    Intset = 4,
    /// A large list.
    Quicklist = 5,
    /// A large hash or set.
    Hashtable = 6,
    /// A large sorted set.
    Skiplist = 7,
}

impl Encoding {
    /// All encodings, each at the place of its number.
    pub const ALL: [Encoding; 8] = [
        Encoding::Int,
        Encoding::Embstr,
        Encoding::Raw,
        Encoding::Listpack,
        Encoding::Intset,
        Encoding::Quicklist,
        Encoding::Hashtable,
        Encoding::Skiplist,
    ];

    /// Returns what `OBJECT ENCODING` answers.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Int => "int",
            Encoding::Embstr => "embstr",
            Encoding::Raw => "raw",
            Encoding::Listpack => "listpack",
            Encoding::Intset => "intset",
            Encoding::Quicklist => "quicklist",
            Encoding::Hashtable => "hashtable",
            Encoding::Skiplist => "skiplist",
        }
    }

    /// Returns whether values of this type may have the encoding.
    pub fn is_of(self, value: &Value) -> bool {
        use Encoding::*;
        match value {
            Value::String(_) => matches!(self, Int | Embstr | Raw),
            Value::List(_) => matches!(self, Listpack | Quicklist),
            Value::Hash(_) => matches!(self, Listpack | Hashtable),
            Value::Set(_) => matches!(self, Intset | Listpack | Hashtable),
            Value::SortedSet(_) => matches!(self, Listpack | Skiplist),
        }
    }

    /// Returns the encoding of a string that was just set.
    pub fn of_string(string: &[u8]) -> Encoding {
        if number::parse_integer(string).is_some() { Encoding::Int } else { Encoding::of_text(string) }
    }

    /// Returns the encoding of a string that was just set, and does not count as an integer.
    pub fn of_text(string: &[u8]) -> Encoding {
        if string.len() <= EMBEDDED_BYTES_MAX { Encoding::Embstr } else { Encoding::Raw }
    }
}

/// The largest sizes with which collections are encoded compactly, as `CONFIG` names them. They
/// decide what `OBJECT ENCODING` answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// `hash-max-listpack-entries`.
    pub hash_entries: usize,
    /// `hash-max-listpack-value`, in bytes.
    pub hash_value: usize,
    /// `list-max-listpack-size`: a number of elements, or -1 to -5 for 4 to 64 KiB.
    pub list_size: i64,
    /// `set-max-intset-entries`.
    pub intset_entries: usize,
    /// `set-max-listpack-entries`.
    pub set_entries: usize,
    /// `set-max-listpack-value`, in bytes.
    pub set_value: usize,
    /// `zset-max-listpack-entries`.
    pub sorted_set_entries: usize,
    /// `zset-max-listpack-value`, in bytes.
    pub sorted_set_value: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            hash_entries: 512,
            hash_value: 64,
            list_size: -2,
            intset_entries: 512,
            set_entries: 128,
            set_value: 64,
            sorted_set_entries: 128,
            sorted_set_value: 64,
        }
    }
}

/// Bytes of the longest string with encoding `embstr`.
const EMBEDDED_BYTES_MAX: usize = 44;

impl Object {
    /// Returns an object without an expiry. A collection has the encoding of a small one.
    pub fn new(value: Value) -> Object {
        let encoding = match &value {
            Value::String(string) => Encoding::of_string(string),
            Value::Set(_) => Encoding::Intset,
            Value::List(_) | Value::Hash(_) | Value::SortedSet(_) => Encoding::Listpack,
        };
        Object { value, expiry: None, encoding }
    }

    /// Returns an object of a string without an expiry.
    pub fn string(string: impl Into<Vec<u8>>) -> Object {
        Object::new(Value::String(string.into()))
    }

    /// Returns whether the key has expired at this time, in milliseconds since 1970.
    pub fn has_expired(&self, now: u64) -> bool {
        self.expiry.is_some_and(|expiry| expiry <= now)
    }

    /// Gives a collection that has outgrown its encoding another one. Only a list goes back, when
    /// it has shrunk to half of what is small.
    pub fn settle_encoding(&mut self, limits: &Limits) {
        let of = |is_small: bool, large| if is_small { Encoding::Listpack } else { large };
        let wanted = match (&self.value, self.encoding) {
            (Value::List(list), Encoding::Listpack) => of(is_small_list(list, limits, 1), Encoding::Quicklist),
            (Value::List(list), Encoding::Quicklist) => of(is_small_list(list, limits, 2), Encoding::Quicklist),
            (Value::Hash(hash), Encoding::Listpack) => {
                let fits = |text: &[u8]| text.len() <= limits.hash_value;
                let is_small = hash.len() <= limits.hash_entries
                    && hash.iter_loaded().all(|(field, value)| fits(field) && fits(value));
                of(is_small, Encoding::Hashtable)
            }
            (Value::Set(set), Encoding::Intset | Encoding::Listpack) => {
                let is_intset = self.encoding == Encoding::Intset
                    && set.len() <= limits.intset_entries
                    && set.iter_loaded().all(|member| number::parse_integer(member).is_some());
                let is_small =
                    set.len() <= limits.set_entries && set.iter_loaded().all(|member| member.len() <= limits.set_value);
                if is_intset { Encoding::Intset } else { of(is_small, Encoding::Hashtable) }
            }
            (Value::SortedSet(set), Encoding::Listpack) => {
                let is_small = set.len() <= limits.sorted_set_entries
                    && set.iter_loaded().all(|member| member.len() <= limits.sorted_set_value);
                of(is_small, Encoding::Skiplist)
            }
            (_, encoding) => encoding,
        };
        self.encoding = wanted;
    }
}

/// Returns whether a list of `number` times the size is small.
fn is_small_list(list: &List, limits: &Limits, number: usize) -> bool {
    let (elements, bytes) = match limits.list_size {
        size @ 0.. => (size.max(1) as usize, 8192),
        size => (usize::MAX, 2048 << size.saturating_neg().min(5)),
    };
    list.len() <= elements / number && LIST_BYTES + list.listpack_bytes() <= bytes / number
}

/// Bytes that Redis needs for a small list without elements.
const LIST_BYTES: usize = 7;

impl From<Vec<u8>> for Value {
    fn from(string: Vec<u8>) -> Value {
        Value::String(string)
    }
}

impl Value {
    /// Returns what `TYPE` answers.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::String(_) => "string",
            Value::List(_) => "list",
            Value::Hash(_) => "hash",
            Value::Set(_) => "set",
            Value::SortedSet(_) => "zset",
        }
    }

    /// Returns whether this is a collection without elements.
    pub fn is_empty_collection(&self) -> bool {
        match self {
            Value::String(_) => false,
            Value::List(list) => list.is_empty(),
            Value::Hash(hash) => hash.is_empty(),
            Value::Set(set) => set.is_empty(),
            Value::SortedSet(set) => set.len() == 0,
        }
    }
}
