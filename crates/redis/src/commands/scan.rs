//! What `HSCAN`, `SSCAN` and `ZSCAN` have in common.
//!
//! They answer a packed collection at once, with cursor 0. That is what Redis does for small
//! collections, whatever the cursor and the count. A spread collection is answered in the order of
//! its trees, about `COUNT` elements a call.

use remora_resp::{ReplyWriter, glob};

use crate::call::integer;
use crate::error::Error;

/// What a scan is asked for behind its cursor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options<'a> {
    /// Which elements are answered, if not all.
    pub pattern: Option<&'a [u8]>,
    /// About how many elements are wanted.
    pub count: i64,
}

impl<'a> Options<'a> {
    /// Reads `[MATCH pattern] [COUNT count]`. An option may be given again: the last one counts.
    pub fn parse(args: &[&'a [u8]]) -> Result<Options<'a>, Error> {
        let mut options = Options { pattern: None, count: 10 };
        for option in args.chunks(2) {
            let [name, value] = option else { return Err(Error::SYNTAX) };
            if name.eq_ignore_ascii_case(b"match") {
                options.pattern = Some(value);
            } else if name.eq_ignore_ascii_case(b"count") {
                options.count = integer(value)?;
                if options.count < 1 {
                    return Err(Error::SYNTAX);
                }
            } else {
                return Err(Error::SYNTAX);
            }
        }
        Ok(options)
    }

    /// Returns how many elements of a spread collection a call looks at.
    pub fn places(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    /// Returns whether an element of this name is answered.
    pub fn takes(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }
}

/// Reads a cursor as C's `strtoul` does, without blanks before it. It ends before the first byte
/// that is zero.
pub fn cursor(argument: &[u8]) -> Result<u64, Error> {
    let text = argument.split(|byte| *byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Ok(0);
    }
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(Error::INVALID_CURSOR);
    }
    let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
    let number = number.ok_or(Error::INVALID_CURSOR)?;
    Ok(if is_negative { number.wrapping_neg() } else { number })
}

/// Writes what comes before the elements of an answer of a scan: the next cursor, which is 0 if it
/// was the last answer, and the header of an array of `count` replies.
pub fn begin(reply: &mut ReplyWriter<'_>, next: Option<u64>, count: usize) {
    reply.array(2);
    reply.bulk(next.unwrap_or(0).to_string());
    reply.array(count);
}
