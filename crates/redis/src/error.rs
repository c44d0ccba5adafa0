//! The errors of commands, in Redis' words: they are answered as they stand, behind a `-`.

use std::borrow::Cow;
use std::fmt;

/// Why a command has failed: the text of the answer, such as `ERR syntax error`. It may quote what
/// the client has sent, which may be any bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Cow<'static, [u8]>);

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        impl Error {
            $($(#[$doc])* pub const $name: Error = Error(Cow::Borrowed($text.as_bytes()));)*
        }
    };
}

errors! {
    /// An argument, or a string, is no integer of 64 bits.
    NOT_INTEGER = "ERR value is not an integer or out of range";
    /// An argument is no number.
    NOT_FLOAT = "ERR value is not a valid float";
    /// The arguments are not what the command takes.
    SYNTAX = "ERR syntax error";
    /// The key has a value of another type.
    WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value";
    /// A count is negative.
    NOT_POSITIVE = "ERR value is out of range, must be positive";
    /// A count cannot be represented.
    OUT_OF_RANGE = "ERR value is out of range";
    /// A number has no negative.
    NOT_NEGATABLE = "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
    /// A key that must be there is absent.
    NO_SUCH_KEY = "ERR no such key";
    /// An index is outside of a list.
    INDEX_OUT_OF_RANGE = "ERR index out of range";
    /// A string would be too long.
    STRING_TOO_LONG = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
    /// A cursor is no number.
    INVALID_CURSOR = "ERR invalid cursor";
    /// A database does not exist.
    NO_SUCH_DATABASE = "ERR DB index is out of range";
    /// A number of keys is not positive.
    NO_KEYS = "ERR numkeys should be greater than 0";
    /// An integer would overflow.
    OVERFLOW = "ERR increment or decrement would overflow";
}

impl Error {
    /// Returns an error with this text.
    pub const fn new(text: &'static str) -> Error {
        Error(Cow::Borrowed(text.as_bytes()))
    }

    /// Returns an error with a text that was put together.
    pub fn of(text: impl Into<Vec<u8>>) -> Error {
        Error(Cow::Owned(text.into()))
    }

    /// Returns the error of a call with a wrong number of arguments. Subcommands are named
    /// `command|subcommand`.
    pub fn arity(command: &str) -> Error {
        Error::of(format!("ERR wrong number of arguments for '{command}' command"))
    }

    /// Returns the error of an expiry that is out of range.
    pub fn expiry(command: &str) -> Error {
        Error::of(format!("ERR invalid expire time in '{command}' command"))
    }

    /// Returns the text of the answer.
    pub fn text(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}
