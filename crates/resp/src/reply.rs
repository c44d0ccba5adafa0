//! Replies to bytes: [`ReplyWriter`].
//!
//! A caller says what a reply is; the writer chooses the form for the protocol version:
//!
//! | reply | RESP2 | RESP3 |
//! | --- | --- | --- |
//! | simple string, error, integer, bulk string, array | `+` `-` `:` `$` `*` | as RESP2 |
//! | null | `$-1` | `_` |
//! | null array | `*-1` | `_` |
//! | map of n pairs | array of 2n | `%n` |
//! | set of n | array of n | `~n` |
//! | push of n | array of n | `>n` |
//! | double, big number | bulk string | `,` `(` |
//! | boolean | `:1`, `:0` | `#t`, `#f` |
//! | verbatim text | bulk string | `=n`, with `txt:` before the text |

use crate::number;

/// A version of the protocol. `HELLO` chooses it; a connection begins with RESP2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// The protocol of all Redis versions.
    #[default]
    Resp2,
    /// The protocol with maps, sets and doubles.
    Resp3,
}

/// Writes replies at the end of a buffer. Arrays, maps, sets and pushes are headers: the caller
/// writes as many replies behind them.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    version: Version,
}

impl<'a> ReplyWriter<'a> {
    /// Returns a writer that appends to `out`.
    pub fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        ReplyWriter { out, version }
    }

    /// Writes a simple string, such as `OK`. Line ends in it become blanks.
    pub fn simple(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'+', text.as_ref());
    }

    /// Writes an error: its code and its text, such as `ERR syntax error`. Line ends in it become
    /// blanks, because errors quote what clients send.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'-', text.as_ref());
    }

    /// Writes an integer.
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// Writes a bulk string, which may hold any bytes.
    pub fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.length(b'$', bytes.len());
        self.end(bytes);
    }

    /// Writes an integer as a bulk string, as values of integers are answered.
    pub fn bulk_integer(&mut self, value: i64) {
        self.bulk(number::Integer::new(value));
    }

    /// Writes the null that stands for one value.
    pub fn null(&mut self) {
        self.out.extend_from_slice(if self.is_resp3() { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Writes the null that stands for an array.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(if self.is_resp3() { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// Writes the header of an array of `count` replies.
    pub fn array(&mut self, count: usize) {
        self.length(b'*', count);
    }

    /// Writes the header of a map of `pairs` pairs, which are a key and a value each.
    pub fn map(&mut self, pairs: usize) {
        if self.is_resp3() { self.length(b'%', pairs) } else { self.length(b'*', 2 * pairs) }
    }

    /// Writes the header of a set of `count` replies.
    pub fn set(&mut self, count: usize) {
        self.length(if self.is_resp3() { b'~' } else { b'*' }, count);
    }

    /// Writes the header of a push of `count` replies, which no command asked for.
    pub fn push(&mut self, count: usize) {
        self.length(if self.is_resp3() { b'>' } else { b'*' }, count);
    }

    /// Writes a double in the form of [`number::Double`].
    pub fn double(&mut self, value: f64) {
        let text = number::Double::new(value);
        if self.is_resp3() { self.line(b',', text.as_ref()) } else { self.bulk(text) }
    }

    /// Writes a boolean.
    pub fn boolean(&mut self, value: bool) {
        self.out.extend_from_slice(match (self.version, value) {
            (Version::Resp2, false) => b":0\r\n",
            (Version::Resp2, true) => b":1\r\n",
            (Version::Resp3, false) => b"#f\r\n",
            (Version::Resp3, true) => b"#t\r\n",
        });
    }

    /// Writes an integer of any length, which is given as decimal digits.
    pub fn big_number(&mut self, digits: impl AsRef<[u8]>) {
        if self.is_resp3() { self.line(b'(', digits.as_ref()) } else { self.bulk(digits) }
    }

    /// Writes text for people to read. `format` is `txt` or `mkd`.
    pub fn verbatim(&mut self, format: &[u8; 3], text: impl AsRef<[u8]>) {
        if !self.is_resp3() {
            return self.bulk(text);
        }
        let text = text.as_ref();
        self.length(b'=', text.len() + 4);
        self.out.extend_from_slice(format);
        self.out.push(b':');
        self.end(text);
    }

    fn is_resp3(&self) -> bool {
        self.version == Version::Resp3
    }

    /// Writes a mark, text without line ends, and the end of the line.
    fn line(&mut self, mark: u8, text: &[u8]) {
        self.out.push(mark);
        let start = self.out.len();
        self.end(text);
        let end = self.out.len() - 2;
        for byte in self.out[start..end].iter_mut().filter(|byte| matches!(byte, b'\r' | b'\n')) {
            *byte = b' ';
        }
    }

    fn length(&mut self, mark: u8, length: usize) {
        self.header(mark, i64::try_from(length).expect("a length is at most isize::MAX"));
    }

    fn header(&mut self, mark: u8, value: i64) {
        self.out.push(mark);
        self.end(number::Integer::new(value).as_ref());
    }

    fn end(&mut self, text: &[u8]) {
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}
