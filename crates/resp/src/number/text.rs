//! The forms of numbers that C's `strtod` and `strtold` read, and rounding to a binary format.

/// What a number's text stands for, without its sign.
#[derive(Clone, Copy, Debug)]
pub(super) enum Text<'a> {
    /// `inf` or `infinity`.
    Infinity,
    /// Decimal digits before and behind the point, and a power of ten.
    Decimal { whole: &'a [u8], fraction: &'a [u8], exponent: i64 },
    /// Hexadecimal digits before and behind the point, and a power of two.
    Hex { whole: &'a [u8], fraction: &'a [u8], exponent: i64 },
}

/// Greater exponents count as this one. No text is long enough to make up for it.
const EXPONENT_MAX: i64 = 1 << 60;

/// Reads the sign and the form of a number. Returns `None` for all that is no number from the first
/// byte to the last, and for NaN.
pub(super) fn scan(text: &[u8]) -> Option<(bool, Text<'_>)> {
    let (is_negative, body) = match text {
        [b'-', body @ ..] => (true, body),
        [b'+', body @ ..] => (false, body),
        body => (false, body),
    };
    if body.eq_ignore_ascii_case(b"inf") || body.eq_ignore_ascii_case(b"infinity") {
        return Some((is_negative, Text::Infinity));
    }
    let number = match body {
        [b'0', b'x' | b'X', digits @ ..] => {
            let (whole, fraction, exponent) = parts(digits, u8::is_ascii_hexdigit, b'p')?;
            Text::Hex { whole, fraction, exponent }
        }
        digits => {
            let (whole, fraction, exponent) = parts(digits, u8::is_ascii_digit, b'e')?;
            Text::Decimal { whole, fraction, exponent }
        }
    };
    Some((is_negative, number))
}

/// Cuts a number into the digits before and behind the point, and the exponent behind `mark`.
fn parts(text: &[u8], is_digit: fn(&u8) -> bool, mark: u8) -> Option<(&[u8], &[u8], i64)> {
    let digits = |text: &[u8]| text.iter().take_while(|byte| is_digit(byte)).count();
    let (whole, rest) = text.split_at(digits(text));
    let (fraction, rest) = match rest {
        [b'.', rest @ ..] => rest.split_at(digits(rest)),
        rest => (&[][..], rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let exponent = match rest {
        [] => 0,
        [first, digits @ ..] if first.to_ascii_lowercase() == mark => exponent(digits)?,
        _ => return None,
    };
    Some((whole, fraction, exponent))
}

fn exponent(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |value: i64, digit: &u8| value.saturating_mul(10).saturating_add((digit - b'0').into());
    Some(sign * digits.iter().fold(0, add).min(EXPONENT_MAX))
}

impl Text<'_> {
    /// Returns whether all digits are zeros.
    pub(super) fn is_zero(&self) -> bool {
        match self {
            Text::Infinity => false,
            Text::Decimal { whole, fraction, .. } | Text::Hex { whole, fraction, .. } => {
                whole.iter().chain(*fraction).all(|digit| *digit == b'0')
            }
        }
    }

    /// Returns a hexadecimal number as a significand and its power of two. The significand's last
    /// bit is set if the digits behind it are not all zero.
    pub(super) fn hex(&self) -> Option<(u128, i64)> {
        let Text::Hex { whole, fraction, mut exponent } = *self else { return None };
        let mut significand: u128 = 0;
        for (index, digit) in whole.iter().chain(fraction).enumerate() {
            let digit = u128::from(char::from(*digit).to_digit(16)?);
            let has_room = significand >> 120 == 0;
            if has_room {
                significand = significand << 4 | digit;
            } else {
                significand |= u128::from(digit != 0);
            }
            // A digit without room moves the digits before it up by 4 bits. A digit behind the
            // point moves all digits down by 4 bits.
            exponent += 4 * (i64::from(!has_room) - i64::from(index >= whole.len()));
        }
        Some((significand, exponent))
    }
}

/// A binary format of floating-point numbers, as the exponents of a significand's lowest bit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    /// The bits of a significand.
    pub(super) bits: u32,
    /// The least exponent.
    pub(super) exponent_min: i32,
    /// The greatest exponent of a significand that has all its bits.
    pub(super) exponent_max: i32,
}

impl Format {
    /// C's `double`.
    pub(super) const DOUBLE: Format = Format { bits: 53, exponent_min: -1074, exponent_max: 971 };
    /// C's `long double` on x86.
    pub(super) const EXTENDED: Format = Format { bits: 64, exponent_min: -16_445, exponent_max: 16_320 };
}

/// Rounds `significand * 2^exponent` to the nearest number of a format, and ties to even. Returns
/// `None` if the result overflows, or vanishes though the significand is not zero.
///
/// The last bit of the significand may stand for all bits behind it, if the significand has at
/// least two bits more than the format.
pub(super) fn round(significand: u128, exponent: i64, format: Format) -> Option<(u64, i32)> {
    if significand == 0 {
        return Some((0, format.exponent_min));
    }
    let length = 128 - significand.leading_zeros();
    let drop = (i64::from(length) - i64::from(format.bits)).max(i64::from(format.exponent_min) - exponent).max(0);
    let (mut kept, mut exponent) = (significand, exponent + drop);
    if drop > 0 {
        // Nothing is left, and not even a half, if all bits go and one more.
        let drop = u32::try_from(drop).ok().filter(|drop| *drop <= length)?;
        let half = 1 << (drop - 1);
        let (whole, rest) = (significand.checked_shr(drop).unwrap_or(0), significand & (half | (half - 1)));
        kept = whole + u128::from(rest > half || (rest == half && whole & 1 == 1));
    }
    if kept >> format.bits != 0 {
        (kept, exponent) = (kept >> 1, exponent + 1);
    }
    let top = exponent + i64::from(128 - kept.leading_zeros());
    if kept == 0 || top > i64::from(format.exponent_max) + i64::from(format.bits) {
        return None;
    }
    let kept = u64::try_from(kept).expect("a significand has at most 64 bits");
    // A value below the greatest may come with a greater exponent and fewer bits.
    let up = i64::from(kept.leading_zeros() - (64 - format.bits)).min(exponent - i64::from(format.exponent_min));
    Some((kept << up, i32::try_from(exponent - up).expect("an exponent within the format")))
}
