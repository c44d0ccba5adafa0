//! Commands from bytes: [`Parser`].
//!
//! A command is an array of bulk strings (`*2`, `$3`, `GET`, `$1`, `k`, each with its line end) or
//! an inline command, which is a line of words. The parser keeps these rules:
//!
//! 1. Bytes may arrive in any pieces. The commands and the error do not depend on the pieces.
//! 2. No byte is searched for a line end twice, and the bytes of a bulk string are never searched.
//! 3. Nothing is allocated for a length or a count that a client announces. Only the list of places
//!    grows, with each argument that has arrived.
//! 4. Commands that were complete before an error are given out before the error.
//! 5. After an error the parser gives out nothing but that error.

use std::ops::{Index, Range};

use crate::{inline, number};

/// The greatest number of arguments of a command, its name included.
pub const ARGUMENTS_MAX: usize = 1_048_576;

/// The greatest length of an argument, in bytes.
pub const BULK_BYTES_MAX: usize = 30_000_000;

/// The greatest length of an inline command, and of the line that announces a count or a length, in
/// bytes and without its end.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The greatest number of arguments of a command before authentication. `AUTH` and `HELLO` need
/// fewer.
pub const UNAUTHENTICATED_ARGUMENTS_MAX: usize = 10;

/// The greatest length of an argument before authentication, in bytes.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16_384;

const _: () = assert!(UNAUTHENTICATED_ARGUMENTS_MAX < ARGUMENTS_MAX && UNAUTHENTICATED_BULK_BYTES_MAX < BULK_BYTES_MAX);

/// Why a connection must be closed. The text of an error is what Redis answers behind
/// `ERR Protocol error: `.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The number of arguments is no integer, or too large.
    #[error("invalid multibulk length")]
    InvalidCount,
    /// The length of an argument is no integer, negative, or too large.
    #[error("invalid bulk length")]
    InvalidLength,
    /// Something else than an argument begins with this byte.
    #[error("expected '$', got '{}'", char::from(*.0))]
    NoBulk(u8),
    /// A quote of an inline command does not close, or is not followed by a blank.
    #[error("unbalanced quotes in request")]
    UnbalancedQuotes,
    /// An inline command is too long.
    #[error("too big inline request")]
    LongInline,
    /// The line that announces the number of arguments is too long.
    #[error("too big mbulk count string")]
    LongCount,
    /// The line that announces the length of an argument is too long.
    #[error("too big bulk count string")]
    LongLength,
    /// A command before authentication has too many arguments.
    #[error("unauthenticated multibulk length")]
    UnauthenticatedCount,
    /// An argument before authentication is too long.
    #[error("unauthenticated bulk length")]
    UnauthenticatedLength,
    /// The client speaks HTTP. A web page may have made a browser send this, so the client gets no
    /// answer.
    #[error("HTTP request")]
    Http,
}

impl ParseError {
    /// Appends the error reply to `out`. Appends nothing for HTTP, whose connection closes
    /// silently.
    pub fn write_reply(self, out: &mut Vec<u8>) {
        let text = match self {
            ParseError::Http => return,
            // The text holds the byte itself. A line end would end the reply, so it becomes a
            // blank.
            ParseError::NoBulk(byte) => {
                let byte = if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
                [b"-ERR Protocol error: expected '$', got '", &[byte][..], b"'\r\n"].concat()
            }
            other => format!("-ERR Protocol error: {other}\r\n").into_bytes(),
        };
        out.extend_from_slice(&text);
    }
}

/// One command: its arguments, of which the first is its name.
#[derive(Debug)]
pub struct Command<'p, 'b> {
    bytes: &'b [u8],
    arguments: &'p [Range<usize>],
}

impl<'b> Command<'_, 'b> {
    /// Returns the number of arguments, which is at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a command is never empty")]
    pub fn len(&self) -> usize {
        self.arguments.len()
    }

    /// Returns the name of the command, as the client wrote it.
    pub fn name(&self) -> &'b [u8] {
        &self.bytes[self.arguments[0].clone()]
    }

    /// Returns an argument, or `None` if there are not as many. The name is argument 0.
    pub fn get(&self, index: usize) -> Option<&'b [u8]> {
        self.arguments.get(index).map(|place| &self.bytes[place.clone()])
    }

    /// Iterates over the arguments, the name first.
    pub fn arguments(&self) -> impl ExactSizeIterator<Item = &'b [u8]> + DoubleEndedIterator + Clone {
        let bytes = self.bytes;
        self.arguments.iter().map(move |place| &bytes[place.clone()])
    }
}

impl Index<usize> for Command<'_, '_> {
    type Output = [u8];

    fn index(&self, index: usize) -> &[u8] {
        &self.bytes[self.arguments[index].clone()]
    }
}

/// What the parser reads next.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// The first byte of a command.
    Command,
    /// The end of an inline command.
    Line,
    /// The line `*n`.
    Count,
    /// The line `$n`.
    Length,
    /// An argument of that many bytes, and the two bytes behind it.
    Bulk(usize),
}

/// The parser of one connection. It holds no bytes: the caller owns the buffer.
///
/// Places are counted from the first byte of the command that is being read. That byte is the first
/// of the input of every call.
#[derive(Debug)]
pub struct Parser {
    expected: Expected,
    /// Where the line or the bulk string begins that is expected.
    at: usize,
    /// A line that begins at `at` does not end before this place.
    searched: usize,
    /// How many arguments of the command have not arrived.
    missing: usize,
    /// Where the arguments lie that have arrived.
    arguments: Vec<Range<usize>>,
    is_authenticated: bool,
    failed: Option<ParseError>,
}

impl Default for Parser {
    fn default() -> Self {
        Parser::new()
    }
}

impl Parser {
    /// Returns the parser of a new connection, with the limits before authentication.
    pub fn new() -> Self {
        Parser {
            expected: Expected::Command,
            at: 0,
            searched: 0,
            missing: 0,
            arguments: Vec::new(),
            is_authenticated: false,
            failed: None,
        }
    }

    /// Sets whether the client has authenticated. The limits hold for what is read from now on: a
    /// caller runs `AUTH` and `HELLO` before it asks for the next command.
    pub fn set_authenticated(&mut self, is_authenticated: bool) {
        self.is_authenticated = is_authenticated;
    }

    /// Takes the next complete command from the front of `input`, or returns `None` if there is
    /// none yet. `input` keeps the bytes that are not taken. The next call must get these bytes
    /// again, followed by more.
    ///
    /// Quoted words of inline commands are unquoted within `input`.
    pub fn next<'b>(&mut self, input: &mut &'b mut [u8]) -> Result<Option<Command<'_, 'b>>, ParseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let found = self.read(input).and_then(|bytes| match bytes {
            Some(bytes) if is_http(&bytes[self.arguments[0].clone()]) => Err(ParseError::Http),
            other => Ok(other),
        });
        match found {
            Ok(Some(bytes)) => Ok(Some(Command { bytes, arguments: &self.arguments })),
            Ok(None) => Ok(None),
            Err(error) => {
                self.failed = Some(error);
                Err(error)
            }
        }
    }

    /// Returns the least length of input with which the next call can find a command. A caller may
    /// leave bytes in the kernel until then. It must not allocate that much, because the client has
    /// only announced it.
    pub fn needed_bytes(&self) -> usize {
        match self.expected {
            Expected::Command | Expected::Line => self.searched + 1,
            Expected::Count | Expected::Length => self.searched + 2,
            Expected::Bulk(length) => self.at + length + 2,
        }
    }

    /// Returns the bytes of memory that the parser has allocated: the list of places.
    pub fn allocated_bytes(&self) -> usize {
        self.arguments.capacity() * size_of::<Range<usize>>()
    }

    /// Frees memory that the command under way does not need. A caller does this when a connection
    /// rests.
    pub fn shrink(&mut self) {
        if matches!(self.expected, Expected::Command) {
            self.arguments.clear();
        }
        self.arguments.shrink_to_fit();
    }

    /// Reads up to the end of a command. Returns the command's bytes, whose arguments lie at the
    /// places in `self.arguments`.
    fn read<'b>(&mut self, input: &mut &'b mut [u8]) -> Result<Option<&'b [u8]>, ParseError> {
        assert!(input.len() >= self.at.max(self.searched), "bytes that were not taken are missing from the input");
        loop {
            match self.expected {
                Expected::Command => {
                    let Some(&first) = input.first() else { return Ok(None) };
                    self.arguments.clear();
                    self.expected = if first == b'*' { Expected::Count } else { Expected::Line };
                }
                Expected::Line => {
                    let Some(end) = self.line_end(input, b'\n', ParseError::LongInline)? else { return Ok(None) };
                    let line = self.take(input, end + 1);
                    let words = line[..end].strip_suffix(b"\r").map_or(end, <[u8]>::len);
                    inline::split(&mut line[..words], &mut self.arguments)
                        .map_err(|inline::Unbalanced| ParseError::UnbalancedQuotes)?;
                    if !self.arguments.is_empty() {
                        return Ok(Some(line));
                    }
                }
                Expected::Count => {
                    let Some(end) = self.header_end(input, ParseError::LongCount)? else { return Ok(None) };
                    let count = number::parse_integer(&input[1..end]).ok_or(ParseError::InvalidCount)?;
                    // A negative count is an empty command, too.
                    let count = usize::try_from(count.max(0)).map_err(|_| ParseError::InvalidCount)?;
                    if count > ARGUMENTS_MAX {
                        return Err(ParseError::InvalidCount);
                    } else if count > UNAUTHENTICATED_ARGUMENTS_MAX && !self.is_authenticated {
                        return Err(ParseError::UnauthenticatedCount);
                    } else if count == 0 {
                        self.take(input, end + 2);
                    } else {
                        self.missing = count;
                        self.expect(Expected::Length, end + 2);
                    }
                }
                Expected::Length => {
                    let Some(end) = self.header_end(input, ParseError::LongLength)? else { return Ok(None) };
                    if input[self.at] != b'$' {
                        return Err(ParseError::NoBulk(input[self.at]));
                    }
                    let length = number::parse_integer(&input[self.at + 1..end]).ok_or(ParseError::InvalidLength)?;
                    let length = usize::try_from(length).map_err(|_| ParseError::InvalidLength)?;
                    if length > BULK_BYTES_MAX {
                        return Err(ParseError::InvalidLength);
                    } else if length > UNAUTHENTICATED_BULK_BYTES_MAX && !self.is_authenticated {
                        return Err(ParseError::UnauthenticatedLength);
                    }
                    self.expect(Expected::Bulk(length), end + 2);
                }
                Expected::Bulk(length) => {
                    let end = self.at + length;
                    if input.len() < end + 2 {
                        return Ok(None);
                    }
                    self.arguments.push(self.at..end);
                    self.missing -= 1;
                    if self.missing == 0 {
                        return Ok(Some(self.take(input, end + 2)));
                    }
                    self.expect(Expected::Length, end + 2);
                }
            }
        }
    }

    fn expect(&mut self, expected: Expected, at: usize) {
        (self.expected, self.at, self.searched) = (expected, at, at);
    }

    /// Takes bytes from the front of the input, and expects a command behind them.
    fn take<'b>(&mut self, input: &mut &'b mut [u8], length: usize) -> &'b mut [u8] {
        self.expect(Expected::Command, 0);
        let (taken, rest) = std::mem::take(input).split_at_mut(length);
        *input = rest;
        taken
    }

    /// Finds the end of the line that begins at `self.at`. A line that is longer than its limit is
    /// an error, whether its end has arrived or not.
    fn line_end(&mut self, input: &[u8], mark: u8, too_long: ParseError) -> Result<Option<usize>, ParseError> {
        let limit = input.len().min(self.at + LINE_BYTES_MAX + 1);
        let end = input[self.searched..limit].iter().position(|byte| *byte == mark);
        match end {
            Some(end) => Ok(Some(self.searched + end)),
            None if limit - self.at > LINE_BYTES_MAX => Err(too_long),
            None => {
                self.searched = limit;
                Ok(None)
            }
        }
    }

    /// Finds the end of a line `*n` or `$n`, once the byte behind the carriage return has arrived,
    /// too. That byte may be any.
    fn header_end(&mut self, input: &[u8], too_long: ParseError) -> Result<Option<usize>, ParseError> {
        let Some(end) = self.line_end(input, b'\r', too_long)? else { return Ok(None) };
        self.searched = end;
        Ok((input.len() >= end + 2).then_some(end))
    }
}

/// Returns whether the first word of a command is one of HTTP.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:")
}
