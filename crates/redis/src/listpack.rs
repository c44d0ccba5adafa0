//! The encoding that Redis has for small collections, as far as its length decides what
//! `OBJECT ENCODING` answers.

use remora_resp::number;

/// Returns how many bytes Redis needs for an element of a small list.
pub(crate) fn element_bytes(element: &[u8]) -> usize {
    let bytes = match (number::parse_integer(element), element.len()) {
        (Some(0..=127), _) => 1,
        (Some(-0x1000..=0xfff), _) => 2,
        (Some(-0x8000..=0x7fff), _) => 3,
        (Some(-0x80_0000..=0x7f_ffff), _) => 4,
        (Some(-0x8000_0000..=0x7fff_ffff), _) => 5,
        (Some(_), _) => 9,
        (None, length @ 0..=63) => 1 + length,
        (None, length @ 64..=4095) => 2 + length,
        (None, length) => 5 + length,
    };
    // Behind it is its length, of which a byte holds 7 bits.
    bytes + bytes.ilog2() as usize / 7 + 1
}
