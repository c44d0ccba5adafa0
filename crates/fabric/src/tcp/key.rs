//! The shared secret of a cluster: who has it may open memory, and knows the memory nodes from impostors.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const KEY_BYTES: usize = 32;
/// What a key file begins with; then 64 hexadecimal digits and the end of the line.
const FILE_TAG: &str = "remora-key-1 ";
const FILE_BYTES: usize = FILE_TAG.len() + 2 * KEY_BYTES + 1;
/// Permission bits of others than the owner.
pub(crate) const OTHERS: u32 = 0o077;

/// A key that clients and memory nodes of a cluster share.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_BYTES]);

/// A key could not be made, written or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    NoRandom,
    /// The file cannot be read or written.
    #[error("the key file: {0}")]
    File(ErrorKind),
    /// The file is no key file.
    #[error("not a key file: it must hold one line, `{FILE_TAG}` and 64 hexadecimal digits")]
    Format,
    /// Others than its owner may read the file.
    #[error("others may read the key file (mode {mode:03o}): chmod 600 it")]
    Exposed {
        /// Its permission bits.
        mode: u32,
    },
}

impl Key {
    /// A new random key.
    pub fn generate() -> Result<Key, KeyError> {
        random().map(Key)
    }

    /// Writes the key to a new file that only its owner may read. Never overwrites one.
    pub fn write_new(&self, path: &Path) -> Result<(), KeyError> {
        let mut line = String::with_capacity(FILE_BYTES);
        line.push_str(FILE_TAG);
        for byte in self.0 {
            let _ = write!(line, "{byte:02x}"); // a string takes everything
        }
        line.push('\n');
        let file = |error: std::io::Error| KeyError::File(error.kind());
        let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(file)?;
        new.write_all(line.as_bytes()).map_err(file)?;
        new.sync_all().map_err(file)
    }

    /// Reads a key file. One that others may read is refused: a key that is known to others protects nothing.
    pub fn read(path: &Path) -> Result<Key, KeyError> {
        let file = |error: std::io::Error| KeyError::File(error.kind());
        let opened = File::open(path).map_err(file)?;
        let mode = opened.metadata().map_err(file)?.mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(KeyError::Exposed { mode });
        }
        let mut bytes = Vec::with_capacity(FILE_BYTES + 1);
        opened.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(file)?;
        parse(&bytes).ok_or(KeyError::Format)
    }

    /// A keyed hash of all parts, one after the other.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length will do");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

fn parse(file: &[u8]) -> Option<Key> {
    let digits = file.strip_prefix(FILE_TAG.as_bytes())?;
    let digits = digits.strip_suffix(b"\n").unwrap_or(digits);
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    let mut key = [0; KEY_BYTES];
    if pairs.len() != KEY_BYTES {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    for (byte, [high, low]) in key.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
    }
    Some(Key(key))
}

/// Random bytes of the system.
pub(crate) fn random() -> Result<[u8; 32], KeyError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|_| KeyError::NoRandom)?;
    Ok(bytes)
}

/// A key is not for logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}
