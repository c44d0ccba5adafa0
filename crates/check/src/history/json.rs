//! A pull scanner over the bytes of one JSON line.
//!
//! This is a scanner of our own and not a general parser, for two reasons. It parses lines straight
//! into arenas, without a tree or an allocation for each line. And it tells a line that ends too
//! early from one that is wrong, because a crashed client may leave the former. Every error is
//! either [`LineError::Truncated`] or names a column.

use super::error::LineError;

/// The deepest nesting that is accepted in values that are skipped. Values of a history are nested
/// at most four deep.
const DEPTH_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    /// A buffer for a string whose escapes had to be decoded.
    scratch: &'a mut Vec<u8>,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(bytes: &'a [u8], scratch: &'a mut Vec<u8>) -> Self {
        Self { bytes, at: 0, scratch }
    }

    fn column(&self) -> usize {
        self.at + 1
    }

    /// Returns the column, counted from 1, of the next byte that is not white space.
    pub(crate) fn next_column(&mut self) -> usize {
        self.peek();
        self.column()
    }

    /// Returns the error for an unexpected byte. If the line ends here, the error is that the line
    /// is truncated.
    pub(crate) fn unexpected(&self, expected: &'static str) -> LineError {
        if self.at >= self.bytes.len() {
            LineError::Truncated
        } else {
            LineError::Unexpected { column: self.column(), expected }
        }
    }

    /// Returns the next byte that is not white space, without consuming it.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    pub(crate) fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), LineError> {
        if self.peek() == Some(byte) {
            self.at += 1;
            Ok(())
        } else {
            Err(self.unexpected(expected))
        }
    }

    pub(crate) fn comma(&mut self) -> Result<(), LineError> {
        self.expect(b',', "','")
    }

    pub(crate) fn open_array(&mut self) -> Result<(), LineError> {
        self.expect(b'[', "an array")
    }

    pub(crate) fn close_array(&mut self) -> Result<(), LineError> {
        self.expect(b']', "']'")
    }

    /// Steps to the next element of an array, or over its end. `first` must be true at first.
    pub(crate) fn next_element(&mut self, first: &mut bool) -> Result<bool, LineError> {
        self.next_item(first, b']', "',' or ']'")
    }

    fn next_item(&mut self, first: &mut bool, close: u8, expected: &'static str) -> Result<bool, LineError> {
        match self.peek() {
            Some(byte) if byte == close => {
                self.at += 1;
                return Ok(false);
            }
            Some(b',') if !*first => {
                self.at += 1;
                // A comma promises an element. Without this check, `[1,]` would pass.
                if self.peek() == Some(close) {
                    return Err(self.unexpected("an element after ','"));
                }
            }
            Some(_) if *first => {}
            _ => return Err(self.unexpected(expected)),
        }
        *first = false;
        Ok(true)
    }

    /// Returns the name of the next member of an object, and consumes it with its colon. At the end
    /// of the object, consumes that and returns `None`.
    pub(crate) fn next_member(&mut self, first: &mut bool) -> Result<Option<&str>, LineError> {
        if !self.next_item(first, b'}', "',' or '}'")? {
            return Ok(None);
        }
        let text = self.string_range("a field's name")?;
        self.expect(b':', "':'")?;
        Ok(Some(self.text(text)))
    }

    /// Checks that only white space follows.
    pub(crate) fn finish(&mut self) -> Result<(), LineError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.unexpected("the end of the line")),
        }
    }

    pub(crate) fn unsigned(&mut self, expected: &'static str) -> Result<u64, LineError> {
        let Some(b'0'..=b'9') = self.peek() else { return Err(self.unexpected(expected)) };
        let first = self.at;
        let mut value = 0_u64;
        while let Some(digit @ b'0'..=b'9') = self.bytes.get(self.at) {
            value = value
                .checked_mul(10)
                .and_then(|value| value.checked_add(u64::from(digit - b'0')))
                .ok_or(LineError::Unexpected { column: first + 1, expected: "an integer of at most 64 bits" })?;
            self.at += 1;
        }
        let leading_zero = self.bytes[first] == b'0' && self.at - first > 1;
        if leading_zero || matches!(self.bytes.get(self.at), Some(b'.' | b'e' | b'E')) {
            return Err(LineError::Unexpected { column: first + 1, expected });
        }
        Ok(value)
    }

    /// Reads an unsigned integer or `null`.
    pub(crate) fn unsigned_or_null(&mut self, expected: &'static str) -> Result<Option<u64>, LineError> {
        if self.peek() == Some(b'n') {
            self.word(b"null", expected)?;
            return Ok(None);
        }
        self.unsigned(expected).map(Some)
    }

    fn word(&mut self, word: &[u8], expected: &'static str) -> Result<(), LineError> {
        for byte in word {
            if self.bytes.get(self.at) != Some(byte) {
                return Err(self.unexpected(expected));
            }
            self.at += 1;
        }
        Ok(())
    }

    pub(crate) fn string(&mut self, expected: &'static str) -> Result<&str, LineError> {
        let text = self.string_range(expected)?;
        Ok(self.text(text))
    }

    fn text(&self, text: Text) -> &str {
        let bytes = match text {
            Text::Plain { first, end } => &self.bytes[first..end],
            Text::Unescaped => self.scratch,
        };
        // The bytes were checked when they were scanned, so this cannot fail. An empty name would
        // be noticed anyway.
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    fn string_range(&mut self, expected: &'static str) -> Result<Text, LineError> {
        self.expect(b'"', expected)?;
        let first = self.at;
        let mut ascii = true;
        loop {
            match self.bytes.get(self.at) {
                None => return Err(LineError::Truncated),
                Some(b'"') => break,
                Some(b'\\') => return self.escaped_string(first),
                Some(0..=0x1f) => return Err(self.unexpected("no control character in a string")),
                Some(byte) => {
                    ascii &= byte.is_ascii();
                    self.at += 1;
                }
            }
        }
        let end = self.at;
        self.at += 1;
        if !ascii {
            check_utf8(&self.bytes[first..end], first)?;
        }
        Ok(Text::Plain { first, end })
    }

    fn escaped_string(&mut self, first: usize) -> Result<Text, LineError> {
        self.scratch.clear();
        self.scratch.extend_from_slice(&self.bytes[first..self.at]);
        loop {
            let byte = *self.bytes.get(self.at).ok_or(LineError::Truncated)?;
            match byte {
                b'"' => break,
                b'\\' => {
                    self.at += 1;
                    self.escape()?;
                }
                0..=0x1f => return Err(self.unexpected("no control character in a string")),
                _ => {
                    self.scratch.push(byte);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        check_utf8(self.scratch, first)?;
        Ok(Text::Unescaped)
    }

    /// Decodes what follows a backslash.
    fn escape(&mut self) -> Result<(), LineError> {
        let byte = *self.bytes.get(self.at).ok_or(LineError::Truncated)?;
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return Err(self.unexpected("an escape that JSON knows")),
        };
        self.at += 1;
        self.scratch.push(plain);
        Ok(())
    }

    fn unicode_escape(&mut self) -> Result<(), LineError> {
        let column = self.column();
        let lone = LineError::Unexpected { column, expected: "a pair of surrogates" };
        let mut code = self.four_digits()?;
        if (0xd800..0xdc00).contains(&code) {
            self.word(b"\\u", "the second of a pair of surrogates")?;
            let low = self.four_digits()?;
            if !(0xdc00..0xe000).contains(&low) {
                return Err(lone);
            }
            code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        let Some(character) = char::from_u32(code) else { return Err(lone) };
        self.scratch.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    fn four_digits(&mut self) -> Result<u32, LineError> {
        let mut code = 0;
        for _ in 0..4 {
            let byte = *self.bytes.get(self.at).ok_or(LineError::Truncated)?;
            let Some(digit) = char::from(byte).to_digit(16) else {
                return Err(self.unexpected("four hexadecimal digits"));
            };
            code = code * 16 + digit;
            self.at += 1;
        }
        Ok(code)
    }

    /// Steps over any value. This skips fields that a later format adds.
    pub(crate) fn skip_value(&mut self) -> Result<(), LineError> {
        self.skip_nested(0)
    }

    fn skip_nested(&mut self, depth: usize) -> Result<(), LineError> {
        if depth > DEPTH_MAX {
            return Err(self.unexpected("values nested less deeply"));
        }
        let mut first = true;
        match self.peek() {
            Some(b'{') => {
                self.at += 1;
                while self.next_member(&mut first)?.is_some() {
                    self.skip_nested(depth + 1)?;
                }
                Ok(())
            }
            Some(b'[') => {
                self.at += 1;
                while self.next_element(&mut first)? {
                    self.skip_nested(depth + 1)?;
                }
                Ok(())
            }
            Some(b'"') => self.string_range("a string").map(|_| ()),
            Some(b't') => self.word(b"true", "true"),
            Some(b'f') => self.word(b"false", "false"),
            Some(b'n') => self.word(b"null", "null"),
            Some(b'-' | b'0'..=b'9') => self.skip_number(),
            _ => Err(self.unexpected("a value")),
        }
    }

    fn skip_number(&mut self) -> Result<(), LineError> {
        if self.bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        let first = self.at;
        self.skip_digits()?;
        if self.bytes[first] == b'0' && self.at - first > 1 {
            return Err(LineError::Unexpected { column: first + 1, expected: "a number without leading zeros" });
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.skip_digits()?;
        }
        if let Some(b'e' | b'E') = self.bytes.get(self.at) {
            self.at += 1;
            if let Some(b'+' | b'-') = self.bytes.get(self.at) {
                self.at += 1;
            }
            self.skip_digits()?;
        }
        Ok(())
    }

    fn skip_digits(&mut self) -> Result<(), LineError> {
        let first = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == first { Err(self.unexpected("a digit")) } else { Ok(()) }
    }
}

/// The place of the text of a scanned string.
#[derive(Clone, Copy, Debug)]
enum Text {
    Plain { first: usize, end: usize },
    Unescaped,
}

fn check_utf8(bytes: &[u8], first: usize) -> Result<(), LineError> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(LineError::Unexpected { column: first + 1, expected: "a string in UTF-8" }),
    }
}
