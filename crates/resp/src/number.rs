//! Numbers as Redis reads and prints them.
//!
//! | number | read by | printed by |
//! | --- | --- | --- |
//! | integers | [`parse_integer`]: only the form that printing gives | [`Integer`] |
//! | scores | [`parse_double`]: as C's `strtod`, without blanks around | [`Double`] |
//! | what `INCRBYFLOAT` adds | [`LongDouble::parse`] | [`LongDouble::write`] |

mod long_double;
mod text;

use std::fmt::Write;

pub use long_double::{LONG_DOUBLE_BYTES_MAX, LongDouble};

use text::{Format, Text};

/// Reads an integer in canonical form: no plus sign, blanks, leading zeros, or `-0`.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = text.strip_prefix(b"-").map_or((false, text), |digits| (true, digits));
    match digits {
        [b'0'] => return (!is_negative).then_some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    // 19 digits fit into 64 bits without a sign.
    let mut value: u64 = 0;
    for digit in digits {
        value = value * 10 + u64::from(digit.checked_sub(b'0').filter(|digit| *digit <= 9)?);
    }
    if is_negative { 0i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}

/// Reads a score, as `strtod` reads a double: decimal or hexadecimal, or an infinity. Returns
/// `None` for NaN, for blanks, and for what overflows or vanishes. Negative zero becomes zero.
pub fn parse_double(text: &[u8]) -> Option<f64> {
    let (is_negative, number) = text::scan(text)?;
    let magnitude = match number {
        Text::Infinity => f64::INFINITY,
        Text::Hex { .. } => {
            let (significand, exponent) = number.hex()?;
            let (significand, exponent) = text::round(significand, exponent, Format::DOUBLE)?;
            double(significand, exponent)
        }
        Text::Decimal { .. } => {
            let unsigned = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
            let value: f64 = str::from_utf8(unsigned).ok()?.parse().ok()?;
            if value.is_infinite() || (value == 0.0 && !number.is_zero()) {
                return None;
            }
            value
        }
    };
    // The sum is zero without a sign where the magnitude is zero.
    Some(if is_negative { 0.0 - magnitude } else { magnitude })
}

/// Builds a double from a significand that was rounded to 53 bits.
fn double(significand: u64, exponent: i32) -> f64 {
    const HIDDEN: u64 = 1 << 52;
    if significand < HIDDEN {
        assert_eq!(exponent, Format::DOUBLE.exponent_min, "only the least exponent has short significands");
        return f64::from_bits(significand);
    }
    let biased = (exponent - Format::DOUBLE.exponent_min + 1) as u64;
    f64::from_bits(biased << 52 | (significand - HIDDEN))
}

/// An integer as text.
#[derive(Clone, Copy, Debug)]
pub struct Integer {
    bytes: [u8; 20],
    start: usize,
}

impl Integer {
    /// Returns the text of an integer.
    pub fn new(value: i64) -> Self {
        let mut text = Integer { bytes: [0; 20], start: 20 };
        let mut rest = value.unsigned_abs();
        loop {
            text.push((rest % 10) as u8 + b'0');
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            text.push(b'-');
        }
        text
    }

    fn push(&mut self, byte: u8) {
        self.start -= 1;
        self.bytes[self.start] = byte;
    }
}

impl AsRef<[u8]> for Integer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// Doubles from here on are printed with an exponent.
const EXPONENT_FROM: f64 = 1e17;

/// A double as text: the shortest digits that read back as the same double.
///
/// 1. Whole numbers below 1e17 print as integers. Greater ones print with an exponent: `1e+17`.
/// 2. A fraction prints with an exponent if its last digit lies at the seventh decimal or behind,
///    and it is less than 0.001, or at least 10,000.
/// 3. Infinities are `inf` and `-inf`. Negative zero is `0`.
#[derive(Clone, Copy, Debug)]
pub struct Double {
    bytes: [u8; Double::BYTES_MAX],
    length: usize,
}

impl Double {
    /// The longest text has a sign, 17 digits, a point, and an exponent such as `e-308`.
    const BYTES_MAX: usize = 24;

    /// Returns the text of a double.
    pub fn new(value: f64) -> Self {
        let mut text = Double { bytes: [0; Double::BYTES_MAX], length: 0 };
        if value.is_nan() {
            text.extend(b"nan");
        } else if value.is_infinite() {
            text.extend(if value < 0.0 { b"-inf" } else { b"inf" });
        } else if value.abs() < EXPONENT_FROM && value == value.trunc() {
            text.extend(Integer::new(value as i64).as_ref());
        } else {
            text.shortest(value);
        }
        text
    }

    /// Prints a double that is neither zero nor a whole number below 1e17.
    fn shortest(&mut self, value: f64) {
        let mut scientific = Double { bytes: [0; Double::BYTES_MAX], length: 0 };
        write!(scientific, "{:e}", value.abs()).expect("17 digits and an exponent have room");
        let (significand, exponent) = scientific.as_str().split_once('e').expect("the form has an exponent");
        let exponent: i32 = exponent.parse().expect("an exponent is an integer");
        let mut digits = Double { bytes: [0; Double::BYTES_MAX], length: 0 };
        significand.split('.').for_each(|part| digits.extend(part.as_bytes()));
        let digits = digits.as_ref();
        // The exponent of the last digit: it is negative for a fraction.
        let last = exponent - (digits.len() as i32 - 1);
        if value < 0.0 {
            self.extend(b"-");
        }
        if last < 0 && (last > -7 || exponent.abs() < 4) {
            if exponent < 0 {
                self.extend(b"0.");
                (exponent..-1).for_each(|_| self.extend(b"0"));
                self.extend(digits);
            } else {
                let (whole, fraction) = digits.split_at(exponent as usize + 1);
                self.extend(whole);
                self.extend(b".");
                self.extend(fraction);
            }
        } else {
            self.extend(&digits[..1]);
            if digits.len() > 1 {
                self.extend(b".");
                self.extend(&digits[1..]);
            }
            self.extend(if exponent < 0 { b"e-" } else { b"e+" });
            self.extend(Integer::new(exponent.abs().into()).as_ref());
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.bytes[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn as_str(&self) -> &str {
        str::from_utf8(self.as_ref()).expect("the text of a double is ASCII")
    }
}

impl Write for Double {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.length + text.len() > Double::BYTES_MAX {
            return Err(std::fmt::Error);
        }
        self.extend(text.as_bytes());
        Ok(())
    }
}

impl AsRef<[u8]> for Double {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
