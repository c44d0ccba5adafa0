//! What the keys and the values of a table of bytes are, and how its records are laid out for them.

use std::borrow::Cow;
use std::fmt;

use remora_index::host::LINKS_MAX;
use remora_node::MemoryError;
use remora_node::limits::{FRAME_BYTES_MAX, KEY_BYTES_MAX, SLOT_BYTES_MAX};
use remora_node::ring::FRAME_OVERHEAD_WORDS;
use remora_txn::{Limit, log};

use crate::error::{Error, Named, Reason};
use crate::key::Key;
use crate::record::Record;
use crate::table::Schema;

/// Bytes of the longest key of a table whose keys have different lengths.
pub const DYN_KEY_BYTES_MAX: usize = 512;
/// Bytes of the longest value of a table whose values have different lengths.
pub const DYN_VALUE_BYTES_MAX: usize = 16 << 10;

/// Bytes of a record's key where keys have different lengths.
pub(super) const DIGEST_BYTES: usize = 16;
/// Bytes before a head's part of the content.
pub(super) const TOTAL_BYTES: usize = 4;
/// Bytes of the content that a head has room for: with a key of 8 or 16 bytes, its slot is three
/// lines.
pub(super) const HEAD_BYTES: usize = 132;
/// Bytes of a part: with a key of 17 bytes, its slot is 16 lines.
pub(super) const PART_BYTES: usize = 976;
/// Parts of the longest content.
const PARTS_MAX: usize = (DYN_KEY_BYTES_MAX + 2 + DYN_VALUE_BYTES_MAX - HEAD_BYTES).div_ceil(PART_BYTES);

// They fit a log entry also if the index has as many links to log as there can be. FORD's entry has
// up to three structural records for each instead.
const _: () = {
    let structural = 3 * (log::RECORD_WORDS + 3);
    let patches = (1 + LINKS_MAX) * log::PATCH_WORDS;
    let index = if patches > structural { patches } else { structural };
    let head = log::RECORD_WORDS + 4 * 64 / 8 + index;
    let part = log::RECORD_WORDS + 17 * 64 / 8 + index;
    assert!(FRAME_OVERHEAD_WORDS + log::HEADER_WORDS + head + PARTS_MAX * part <= FRAME_BYTES_MAX / 8);
    assert!(PARTS_MAX < 256, "their index is a byte");
};

/// How long the keys, or the values, of a [`DynTable`](crate::DynTable) or of a
/// [`DynOrdered`](crate::DynOrdered) are, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lengths {
    /// All of them are this long.
    Exactly(usize),
    /// They have different lengths, up to this one. A [`DynTable`](crate::DynTable) stores short
    /// ones short. A [`DynOrdered`](crate::DynOrdered) does so with keys that can have more than 63
    /// bytes. Its other keys, and values that lie in leaves, take the room of the longest.
    UpTo(usize),
}

impl Lengths {
    pub(crate) fn max(self) -> usize {
        match self {
            Lengths::Exactly(bytes) | Lengths::UpTo(bytes) => bytes,
        }
    }

    /// Whether something of this many bytes has one of these lengths.
    pub(crate) fn admits(self, bytes: usize) -> bool {
        match self {
            Lengths::Exactly(expected) => bytes == expected,
            Lengths::UpTo(max) => bytes <= max,
        }
    }

    pub(crate) fn is_one(self) -> bool {
        matches!(self, Lengths::Exactly(_))
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Exactly(bytes) => write!(f, "{bytes} bytes"),
            Lengths::UpTo(bytes) => write!(f, "up to {bytes} bytes"),
        }
    }
}

/// What the keys and the values of a [`DynTable`](crate::DynTable) or of a
/// [`DynOrdered`](crate::DynOrdered) are.
///
/// Every program that opens a table says the schema that it was created with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DynSchema {
    text: String,
    keys: Lengths,
    values: Lengths,
}

impl DynSchema {
    /// Makes a schema. The text says what the bytes mean.
    ///
    /// Creating and opening a table refuse a schema beyond a limit:
    ///
    /// | | [`DynTable`](crate::DynTable) | [`DynOrdered`](crate::DynOrdered) |
    /// | --- | --- | --- |
    /// | keys of one length | 1 to 64 bytes | 1 to 64 bytes |
    /// | keys of different lengths | 1 to [`DYN_KEY_BYTES_MAX`] bytes | 1 to [`DYN_KEY_BYTES_MAX`] bytes |
    /// | values of one length | up to about 32,600 bytes | up to about 32,600 bytes |
    /// | values of different lengths | up to [`DYN_VALUE_BYTES_MAX`] bytes | up to [`DYN_VALUE_BYTES_MAX`] bytes |
    ///
    /// Keys of one length have one byte less where values can be longer than 132 bytes and have
    /// different lengths. Values of one length of a `DynOrdered` have up to [`DYN_VALUE_BYTES_MAX`]
    /// bytes where keys have different lengths and can have more than 63 bytes.
    #[must_use]
    pub fn new(text: impl Into<String>, keys: Lengths, values: Lengths) -> DynSchema {
        DynSchema { text: text.into(), keys, values }
    }

    /// Returns the schema of a typed table: a [`DynTable`](crate::DynTable) can open a
    /// [`Table`](crate::Table) of these types, a [`DynOrdered`](crate::DynOrdered) an
    /// [`Ordered`](crate::Ordered) one, and the other way round.
    #[must_use]
    pub fn of<K: Key, V: Record>() -> DynSchema {
        DynSchema::new(V::schema(), Lengths::Exactly(K::BYTES), Lengths::Exactly(V::BYTES))
    }

    /// Whether records hold values alone, as those of typed tables do.
    pub(super) fn is_plain(&self) -> bool {
        self.keys.is_one() && self.values.is_one()
    }

    /// What the bytes mean, and how long they are if that is not one length for all.
    pub(crate) fn description(&self) -> Cow<'_, str> {
        if self.is_plain() {
            return Cow::Borrowed(&self.text);
        }
        Cow::Owned(format!("{}; keys of {}, values of {}", self.text, self.keys, self.values))
    }

    pub(crate) fn keys(&self) -> Lengths {
        self.keys
    }

    pub(crate) fn values(&self) -> Lengths {
        self.values
    }

    /// Bytes of a record's key.
    fn record_key_bytes(&self) -> usize {
        match self.keys {
            Lengths::Exactly(bytes) => bytes,
            Lengths::UpTo(_) => DIGEST_BYTES,
        }
    }

    /// Bytes of the longest content.
    pub(super) fn content_max(&self) -> usize {
        let is_own = !self.keys.is_one() && self.keys.max() >= DIGEST_BYTES;
        (if is_own { 2 + self.keys.max() } else { 0 }) + self.values.max()
    }

    /// Bytes of the content that a head has room for.
    pub(super) fn head_bytes(&self) -> usize {
        self.content_max().min(HEAD_BYTES)
    }

    /// Whether there can be contents that a head has no room for.
    pub(crate) fn has_parts(&self) -> bool {
        !self.is_plain() && self.content_max() > HEAD_BYTES
    }

    pub(super) fn check(&self) -> Result<(), MemoryError> {
        let max = match self.keys {
            // A part has one byte more in its key.
            Lengths::Exactly(_) => KEY_BYTES_MAX - usize::from(self.has_parts()),
            Lengths::UpTo(_) => DYN_KEY_BYTES_MAX,
        };
        let values_max = if self.is_plain() { SLOT_BYTES_MAX } else { DYN_VALUE_BYTES_MAX };
        self.check_lengths(("bytes of a key", max), values_max)
    }

    /// Fails if keys or values have no bytes, or can have more bytes than these limits allow. (The
    /// catalog checks what follows from a record's other bytes.)
    pub(crate) fn check_lengths(
        &self,
        (key, keys_max): (&'static str, usize),
        values_max: usize,
    ) -> Result<(), MemoryError> {
        if self.keys.max() == 0 {
            return Err(MemoryError::empty("the length of keys"));
        }
        if self.values == Lengths::UpTo(0) {
            return Err(MemoryError::empty("the length of values"));
        }
        for (what, lengths, max) in [(key, self.keys, keys_max), ("bytes of a value", self.values, values_max)] {
            if lengths.max() > max {
                return Err(MemoryError::limit(what, lengths.max() as u64, max as u64));
            }
        }
        Ok(())
    }

    /// Fails if a key of a table has another length than its keys.
    pub(crate) fn check_key(&self, table: &str, key: &[u8]) -> Result<(), Error> {
        let found = key.len();
        let limit = match self.keys {
            Lengths::Exactly(expected) if found != expected => Limit::Key { found, expected },
            Lengths::UpTo(max) if found == 0 || found > max => Limit::KeyLength { found, max },
            _ => return Ok(()),
        };
        Err(Error::Limit(Reason::of(limit, Named::new(table, key))))
    }

    /// Fails if a value of a table has another length than its values.
    pub(crate) fn check_value(&self, table: &str, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let found = value.len();
        let limit = match self.values {
            Lengths::Exactly(expected) if found != expected => Limit::ValueLength { found, expected },
            Lengths::UpTo(max) if found > max => Limit::Value { found, max },
            _ => return Ok(()),
        };
        Err(Error::Limit(Reason::of(limit, Named::new(table, key))))
    }

    pub(super) fn heads(&self) -> Schema {
        let value_bytes = if self.is_plain() { self.values.max() } else { TOTAL_BYTES + self.head_bytes() };
        Schema::new(&self.description(), self.record_key_bytes(), value_bytes)
    }

    pub(super) fn parts(&self) -> Schema {
        let text = format!("{}; rest of values of {}", self.text, self.values);
        Schema::new(&text, self.record_key_bytes() + 1, PART_BYTES)
    }

    /// Parts of a table of at most `rows` contents, which have at most `bytes` bytes together.
    pub(super) fn parts_for(&self, rows: u64, bytes: Option<u64>) -> u64 {
        let longest = rows.saturating_mul((self.content_max() - HEAD_BYTES).div_ceil(PART_BYTES) as u64);
        // Only contents that are longer than a head have parts, and the last part of each is not
        // full.
        let within = |bytes: u64| {
            let with_parts = rows.min(bytes / (HEAD_BYTES as u64 + 1));
            (bytes / PART_BYTES as u64).saturating_add(with_parts).min(longest)
        };
        bytes.map_or(longest, within).max(1)
    }
}
