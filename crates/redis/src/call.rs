//! A call of a command: its arguments, its keys, its reply.

use remora_resp::{ReplyWriter, Version, number};

use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::object::Limits;

/// What a call knows beside its arguments and its keys.
#[derive(Clone, Debug)]
pub struct Context {
    /// The time, in milliseconds since 1970. All commands of a transaction have the same.
    pub now: u64,
    /// The database that the connection has selected.
    pub database: u8,
    /// From which size on collections have another encoding.
    pub limits: Limits,
    /// The state of the random numbers, which is not 0.
    pub random: u64,
}

impl Default for Context {
    fn default() -> Context {
        Context { now: 0, database: 0, limits: Limits::default(), random: 0x9e37_79b9_7f4a_7c15 }
    }
}

impl Context {
    /// Returns a random number.
    pub fn random(&mut self) -> u64 {
        // xorshift64*: it is for members that clients draw, and not for secrets.
        let mut state = self.random;
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random = state;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a random number below `bound`, which is not 0.
    pub fn random_below(&mut self, bound: usize) -> usize {
        ((u128::from(self.random()) * bound as u128) >> 64) as usize
    }
}

/// A call of a command.
#[derive(Debug)]
pub struct Call<'c> {
    /// The arguments. The first one is the command's name, as the client wrote it.
    pub args: &'c [&'c [u8]],
    /// The keys that the command may use.
    pub keys: &'c mut Keyspace,
    /// What the call knows beside.
    pub context: &'c mut Context,
    /// Takes the reply.
    pub reply: ReplyWriter<'c>,
    /// The version in which the reply is written, for commands whose reply has another shape in
    /// each.
    pub version: Version,
}

impl<'c> Call<'c> {
    /// Returns an argument as an integer.
    pub fn integer(&self, index: usize) -> Result<i64, Error> {
        integer(self.args[index])
    }

    /// Returns an argument as a count, which is not negative.
    pub fn positive(&self, index: usize) -> Result<usize, Error> {
        let count = self.integer(index).ok().and_then(|count| usize::try_from(count).ok());
        count.ok_or(Error::NOT_POSITIVE)
    }

    /// Returns whether an argument is this word, in capitals or not.
    pub fn is(&self, index: usize, word: &str) -> bool {
        self.args[index].eq_ignore_ascii_case(word.as_bytes())
    }

    /// Writes the answer `OK`.
    pub fn ok(&mut self) {
        self.reply.simple("OK");
    }
}

/// Returns an argument as an integer.
pub fn integer(argument: &[u8]) -> Result<i64, Error> {
    number::parse_integer(argument).ok_or(Error::NOT_INTEGER)
}

/// Bytes of the longest reply.
pub const REPLY_BYTES_MAX: usize = 64 << 20;

/// Fails if a reply would have too many bytes.
pub fn check_reply(bytes: usize) -> Result<(), Error> {
    if bytes <= REPLY_BYTES_MAX {
        return Ok(());
    }
    Err(Error::of(format!("ERR reply of {bytes} bytes (limit {REPLY_BYTES_MAX}): use a SCAN command")))
}

/// Returns an argument as a number. It is not NaN.
pub fn double(argument: &[u8]) -> Result<f64, Error> {
    number::parse_double(argument).ok_or(Error::NOT_FLOAT)
}
