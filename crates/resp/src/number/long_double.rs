//! Numbers with a significand of 64 bits, which is what C's `long double` is on x86. Redis computes
//! `INCRBYFLOAT` and `HINCRBYFLOAT` with them, so their results show in what clients read.
//!
//! All is integer arithmetic: a number is `significand * 2^exponent`, rounded to the nearest
//! number, and ties to even.

use super::text::{self, Format, Text};

/// The greatest length of a number's text, in bytes.
pub const LONG_DOUBLE_BYTES_MAX: usize = 5 * 1024 - 1;

/// A number of the x87's 80-bit format, perhaps infinite.
///
/// ```
/// use remora_resp::number::LongDouble;
///
/// let value = LongDouble::parse(b"0.1").unwrap();
/// let increment = LongDouble::parse(b"0.2").unwrap();
/// let mut text = Vec::new();
/// value.add(increment).unwrap().write(&mut text);
/// assert_eq!(text, b"0.3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongDouble {
    is_negative: bool,
    /// `None` for infinity.
    magnitude: Option<Magnitude>,
}

/// A finite magnitude, as [`text::round`] returns it: the highest bit of the significand is set,
/// unless the exponent is the least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Magnitude {
    significand: u64,
    exponent: i32,
}

/// 10^17: numbers are printed with at most 17 decimals.
const DECIMALS: u128 = 10u128.pow(17);
const _: () = assert!(DECIMALS < 1 << 57, "a significand times this must fit into 128 bits");

impl LongDouble {
    /// Reads a number as `strtold` does: decimal or hexadecimal, or an infinity. Returns `None` for
    /// NaN, for blanks, for what overflows or vanishes, and for text of more than
    /// [`LONG_DOUBLE_BYTES_MAX`] bytes.
    pub fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() > LONG_DOUBLE_BYTES_MAX {
            return None;
        }
        let (is_negative, number) = text::scan(text)?;
        let (significand, exponent) = match number {
            Text::Infinity => return Some(LongDouble { is_negative, magnitude: None }),
            Text::Hex { .. } => number.hex()?,
            Text::Decimal { whole, fraction, exponent } => decimal(whole, fraction, exponent)?,
        };
        let (significand, exponent) = text::round(significand, exponent, Format::EXTENDED)?;
        Some(LongDouble { is_negative, magnitude: Some(Magnitude { significand, exponent }) })
    }

    /// Returns whether the number is not an infinity.
    pub fn is_finite(self) -> bool {
        self.magnitude.is_some()
    }

    /// Adds two numbers. Returns `None` if the sum is infinite or NaN.
    #[expect(clippy::should_implement_trait, reason = "`+` always returns a number")]
    pub fn add(self, other: LongDouble) -> Option<LongDouble> {
        let (mut high, mut low) = ((self.is_negative, self.magnitude?), (other.is_negative, other.magnitude?));
        if low.1.exponent > high.1.exponent {
            (high, low) = (low, high);
        }
        // The higher significand moves up as far as there is room. If the lower one loses bits, its
        // last bit stands for them. The sum has more than 120 bits then, and is rounded to 64, so
        // that this bit only decides ties.
        let apart = (high.1.exponent - low.1.exponent) as u32;
        let up = apart.min(62);
        let down = (apart - up).min(64);
        let exponent = i64::from(high.1.exponent) - i64::from(up);
        let upper = i128::from(high.1.significand) << up;
        let (significand, lost) =
            (u128::from(low.1.significand) >> down, u128::from(low.1.significand) & ((1 << down) - 1));
        let lower = (significand | u128::from(lost != 0)) as i128;
        let sum = if high.0 { -upper } else { upper } + if low.0 { -lower } else { lower };
        let (significand, exponent) = text::round(sum.unsigned_abs(), exponent, Format::EXTENDED)?;
        Some(LongDouble { is_negative: sum < 0, magnitude: Some(Magnitude { significand, exponent }) })
    }

    /// Appends the number with at most 17 decimals, without zeros at their end, and without an
    /// exponent. A number that rounds to zero has no sign.
    pub fn write(self, out: &mut Vec<u8>) {
        let (whole, decimals) = match self.magnitude {
            None => (b"inf".to_vec(), 0),
            Some(Magnitude { significand, exponent }) if exponent >= 0 => {
                let mut whole = Natural::from(u128::from(significand));
                whole.shift_up(exponent as usize);
                (whole.into_decimal(), 0)
            }
            Some(Magnitude { significand, exponent }) => {
                let scaled = shift_down(u128::from(significand) * DECIMALS, exponent.unsigned_abs());
                ((scaled / DECIMALS).to_string().into_bytes(), scaled % DECIMALS)
            }
        };
        if self.is_negative && (whole != b"0" || decimals != 0) {
            out.push(b'-');
        }
        out.extend_from_slice(&whole);
        if decimals != 0 {
            out.extend_from_slice(format!(".{decimals:017}").trim_end_matches('0').as_bytes());
        }
    }
}

/// Divides by `2^bits`, and rounds to the nearest number, and ties to even.
fn shift_down(value: u128, bits: u32) -> u128 {
    let whole = value.checked_shr(bits).unwrap_or(0);
    // A value of at most 121 bits is less than a half where all bits go.
    let Some(half) = 1u128.checked_shl(bits - 1) else { return 0 };
    let rest = value & (half | (half - 1));
    whole + u128::from(rest > half || (rest == half && whole & 1 == 1))
}

/// Converts a decimal number to a significand of over 64 bits and its power of two. The last bit of
/// the significand is set if what is cut off is not zero. Returns `None` if the number is beyond
/// what can be told from infinity or zero.
fn decimal(whole: &[u8], fraction: &[u8], exponent: i64) -> Option<(u128, i64)> {
    let digits: Vec<u8> = whole.iter().chain(fraction).copied().skip_while(|digit| *digit == b'0').collect();
    let kept = digits.len() - digits.iter().rev().take_while(|digit| **digit == b'0').count();
    if kept == 0 {
        return Some((0, 0));
    }
    let exponent = exponent - fraction.len() as i64 + (digits.len() - kept) as i64;
    // The number is less than 10^magnitude, and at least a tenth of that.
    let magnitude = exponent + kept as i64;
    if !(-4960..=4940).contains(&magnitude) {
        return None;
    }
    let mut number = Natural::default();
    // A word holds 19 digits.
    for digits in digits[..kept].chunks(19) {
        let value = digits.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'));
        number.multiply_add(10u64.pow(digits.len() as u32), value);
    }
    if exponent >= 0 {
        number.multiply_power_of_five(exponent as usize);
        let (significand, dropped) = number.top();
        return Some((significand, exponent + dropped as i64));
    }
    // Without its powers of two, 10^-exponent is a power of five. The quotient gets 67 or 68 bits.
    let mut divisor = Natural::from(1);
    divisor.multiply_power_of_five(exponent.unsigned_abs() as usize);
    let up = divisor.bits() as i64 - number.bits() as i64 + 67;
    if up >= 0 {
        number.shift_up(up as usize)
    } else {
        divisor.shift_up(up.unsigned_abs() as usize)
    }
    divisor.shift_up(68);
    let mut quotient: u128 = 0;
    for _ in 0..=68 {
        quotient = quotient << 1 | u128::from(number.subtract_if_less(&divisor));
        divisor.halve();
    }
    let rest = u128::from(number.bits() != 0);
    Some((quotient | rest, exponent - up))
}

/// A natural number of any size: words, the lowest first, and the highest not zero.
#[derive(Clone, Debug, Default)]
struct Natural(Vec<u64>);

impl From<u128> for Natural {
    fn from(value: u128) -> Self {
        let mut number = Natural(vec![value as u64, (value >> 64) as u64]);
        number.trim();
        number
    }
}

impl Natural {
    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn bits(&self) -> usize {
        self.0.last().map_or(0, |high| 64 * self.0.len() - high.leading_zeros() as usize)
    }

    fn multiply_add(&mut self, factor: u64, summand: u64) {
        let mut carry = summand;
        for word in &mut self.0 {
            let product = u128::from(*word) * u128::from(factor) + u128::from(carry);
            (*word, carry) = (product as u64, (product >> 64) as u64);
        }
        if carry != 0 {
            self.0.push(carry);
        }
    }

    fn multiply_power_of_five(&mut self, power: usize) {
        // 5^27 is the greatest power that fits into a word.
        (0..power / 27).for_each(|_| self.multiply_add(5u64.pow(27), 0));
        self.multiply_add(5u64.pow((power % 27) as u32), 0);
    }

    fn shift_up(&mut self, bits: usize) {
        self.multiply_add(1 << (bits % 64), 0);
        self.0.splice(0..0, std::iter::repeat_n(0, bits / 64));
        self.trim();
    }

    fn halve(&mut self) {
        let mut carry = 0;
        for word in self.0.iter_mut().rev() {
            (*word, carry) = (*word >> 1 | carry << 63, *word & 1);
        }
        self.trim();
    }

    /// Subtracts `other` if it is not greater than this number. Returns whether it did.
    fn subtract_if_less(&mut self, other: &Natural) -> bool {
        let order = self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()));
        if order.is_lt() {
            return false;
        }
        let mut borrow = false;
        for (index, word) in self.0.iter_mut().enumerate() {
            let (less, first) = word.overflowing_sub(other.0.get(index).copied().unwrap_or(0));
            let (less, second) = less.overflowing_sub(borrow.into());
            (*word, borrow) = (less, first || second);
        }
        assert!(!borrow, "the difference is not negative");
        self.trim();
        true
    }

    /// Returns the highest 128 bits, and how many bits lie below them. The last bit is set if one
    /// of these is.
    fn top(&self) -> (u128, usize) {
        let dropped = self.bits().saturating_sub(128);
        let word = |index: usize| u128::from(self.0.get(index).copied().unwrap_or(0));
        let (at, bits) = (dropped / 64, dropped % 64);
        let low = word(at) | word(at + 1) << 64;
        let top = if bits == 0 { low } else { low >> bits | word(at + 2) << (128 - bits) };
        let is_lost = self.0[..at].iter().any(|word| *word != 0) || word(at) & ((1 << bits) - 1) != 0;
        (top | u128::from(is_lost), dropped)
    }

    fn into_decimal(mut self) -> Vec<u8> {
        const CHUNK: u128 = 10u128.pow(19);
        let mut chunks = Vec::new();
        while !self.0.is_empty() {
            let mut rest = 0;
            for word in self.0.iter_mut().rev() {
                let value = rest << 64 | u128::from(*word);
                (*word, rest) = ((value / CHUNK) as u64, value % CHUNK);
            }
            self.trim();
            chunks.push(rest);
        }
        let mut text = chunks.pop().unwrap_or(0).to_string();
        for chunk in chunks.iter().rev() {
            text.push_str(&format!("{chunk:019}"));
        }
        text.into_bytes()
    }
}
