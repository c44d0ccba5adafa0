//! `LCS`: the longest common subsequence of two strings.
//!
//! The table of the textbook has a row for each byte of the first string, and a cell for each byte
//! of the second one: how long the longest common subsequence of both beginnings is. From one cell
//! to the next in a row, this length grows by 0 or by 1, so a row is kept as bits. A bit is *clear*
//! where the length grows. 64 cells of a row are computed by one addition
//! (H. Hyyrö, 2004).

use crate::call::{Call, integer};
use crate::error::Error;

/// The greatest number of cells. A cell takes a bit of memory, and a row whole bytes.
const CELLS_MAX: usize = 64 << 20;

/// What `LCS` answers.
#[derive(Clone, Copy, Default)]
struct Options {
    is_length: bool,
    has_matches: bool,
    /// Shorter matches are not answered.
    length_min: i64,
    has_match_lengths: bool,
}

pub(super) fn lcs(call: &mut Call<'_>) -> Result<(), Error> {
    let string = |key| match call.keys.string(key) {
        Ok(string) => Ok(string.map_or(&[][..], Vec::as_slice)),
        Err(_) => Err(Error::new("ERR The specified keys must contain string values")),
    };
    let (a, b) = (string(call.args[1])?, string(call.args[2])?);
    let options = Options::parse(&call.args[3..])?;
    let cells = (a.len() + 1).saturating_mul(b.len() + 1);
    if cells > CELLS_MAX {
        return Err(Error::of(format!("ERR LCS of {cells} cells (limit {CELLS_MAX})")));
    }
    if options.is_length {
        let last = rows(a, b, |_| {});
        call.reply.integer(length(&last, b) as i64);
        return Ok(());
    }
    let row_bytes = b.len().div_ceil(8);
    let mut table = Vec::with_capacity(a.len() * row_bytes + size_of::<u64>());
    let last = rows(a, b, |row| {
        let end = table.len() + row_bytes;
        row.iter().for_each(|cells| table.extend_from_slice(&cells.to_le_bytes()));
        table.truncate(end);
    });
    let matches = matches(a, b, &table);
    if !options.has_matches {
        let parts: Vec<_> = matches.iter().rev().map(|part| &a[part.a..part.a + part.length]).collect();
        call.reply.bulk(parts.concat());
        return Ok(());
    }
    call.reply.map(2);
    call.reply.bulk("matches");
    let answered: Vec<_> = matches.iter().filter(|part| part.length as i64 >= options.length_min).collect();
    call.reply.array(answered.len());
    for part in answered {
        call.reply.array(2 + usize::from(options.has_match_lengths));
        for start in [part.a, part.b] {
            call.reply.array(2);
            call.reply.integer(start as i64);
            call.reply.integer((start + part.length - 1) as i64);
        }
        if options.has_match_lengths {
            call.reply.integer(part.length as i64);
        }
    }
    call.reply.bulk("len");
    call.reply.integer(length(&last, b) as i64);
    Ok(())
}

impl Options {
    fn parse(words: &[&[u8]]) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            if is("IDX") {
                options.has_matches = true;
            } else if is("LEN") {
                options.is_length = true;
            } else if is("WITHMATCHLEN") {
                options.has_match_lengths = true;
            } else if is("MINMATCHLEN") {
                options.length_min = integer(words.next().ok_or(Error::SYNTAX)?)?;
            } else {
                return Err(Error::SYNTAX);
            }
        }
        if options.has_matches && options.is_length {
            return Err(Error::new("ERR If you want both the length and indexes, please just use IDX."));
        }
        Ok(options)
    }
}

/// Computes the rows of the table. Gives each to `keep`, and returns the last one.
fn rows(a: &[u8], b: &[u8], mut keep: impl FnMut(&[u64])) -> Vec<u64> {
    let mut row = vec![u64::MAX; b.len().div_ceil(64)];
    // Where each byte of the first string is in the second one.
    let mut places = [const { None }; 256];
    for byte in a {
        let places = places[usize::from(*byte)].get_or_insert_with(|| places_of(*byte, b));
        let mut carry = false;
        for (cells, places) in row.iter_mut().zip(places) {
            let equal = *cells & *places;
            let (sum, first) = cells.overflowing_add(equal);
            let (sum, second) = sum.overflowing_add(carry.into());
            carry = first || second;
            *cells = sum | (*cells & !*places);
        }
        keep(&row);
    }
    row
}

/// Returns a bit for each byte of a string: whether it is this byte.
fn places_of(byte: u8, string: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, other| word << 1 | u64::from(*other == byte));
    string.chunks(64).map(word).collect()
}

/// Returns the length of the longest common subsequence. Bits behind the last cell stay set.
fn length(last: &[u64], b: &[u8]) -> usize {
    let clear = last.iter().map(|cells| cells.count_zeros() as usize).sum();
    debug_assert!(clear <= b.len(), "only cells are clear");
    clear
}

/// A part of both strings that is equal.
#[derive(Clone, Copy)]
struct Match {
    /// The place in the first string.
    a: usize,
    /// The place in the second string.
    b: usize,
    length: usize,
}

/// Returns the parts of the longest common subsequence, the last one first. Where there are several
/// subsequences, it is the one that Redis finds.
fn matches(a: &[u8], b: &[u8], table: &[u8]) -> Vec<Match> {
    let row_bytes = b.len().div_ceil(8);
    let mut matches: Vec<Match> = Vec::new();
    let (mut i, mut j) = (a.len(), b.len());
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            match matches.last_mut().filter(|last| (last.a, last.b) == (i, j)) {
                Some(last) => (last.a, last.b, last.length) = (i - 1, j - 1, last.length + 1),
                None => matches.push(Match { a: i - 1, b: j - 1, length: 1 }),
            }
            (i, j) = (i - 1, j - 1);
        } else if table[(i - 1) * row_bytes + (j - 1) / 8] >> ((j - 1) % 8) & 1 == 0 {
            // The length grows here without the byte of the first string: it grows above, too.
            i -= 1;
        } else {
            j -= 1;
        }
    }
    matches
}
