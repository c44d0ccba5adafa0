//! Ranges of places, scores and bytes: what reads, counts, stores and removes them.

use std::ops;

use remora_resp::number;

use crate::call::{Call, integer};
use crate::commands::sorted_sets::reply::{self, Form};
use crate::error::Error;
use crate::object::{SortedSet, Value};

/// What a range is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Over {
    /// The places of members.
    Places,
    /// Scores.
    Scores,
    /// The bytes of members that have the same score.
    Bytes,
}

/// A range of members.
#[derive(Clone, Copy, Debug)]
enum Range<'a> {
    /// From one place to another. Negative ones count from the end.
    Places(i64, i64),
    /// From one score to another.
    Scores(ScoreEdge, ScoreEdge),
    /// From one member to another.
    Bytes(BytesEdge<'a>, BytesEdge<'a>),
}

/// A bound of a range of scores.
#[derive(Clone, Copy, Debug)]
struct ScoreEdge {
    score: f64,
    is_excluded: bool,
}

/// A bound of a range of bytes.
#[derive(Clone, Copy, Debug)]
enum BytesEdge<'a> {
    /// Below all members.
    Lowest,
    /// At a member, which need not be there.
    At { member: &'a [u8], is_excluded: bool },
    /// Above all members.
    Highest,
}

impl ScoreEdge {
    fn parse(text: &[u8]) -> Option<ScoreEdge> {
        let (is_excluded, text) = text.strip_prefix(b"(").map_or((false, text), |text| (true, text));
        Some(ScoreEdge { score: number::parse_double(text).or_else(|| lenient(text))?, is_excluded })
    }

    /// Returns whether a range that begins here begins above this score.
    fn begins_above(self, score: f64) -> bool {
        score < self.score || self.is_excluded && score == self.score
    }

    /// Returns whether a range that ends here ends below this score.
    fn ends_below(self, score: f64) -> bool {
        score > self.score || self.is_excluded && score == self.score
    }
}

/// Reads a bound of a range of scores that is no score: blanks before it do not matter, nothing is
/// 0, and what overflows is infinite.
fn lenient(text: &[u8]) -> Option<f64> {
    if text.is_empty() {
        return Some(0.0);
    }
    let is_blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\x0b';
    let trimmed = &text[text.iter().position(|byte| !is_blank(byte))?..];
    let number = number::parse_double(trimmed);
    number.or_else(|| str::from_utf8(trimmed).ok()?.parse().ok().filter(|number: &f64| !number.is_nan()))
}

impl<'a> BytesEdge<'a> {
    fn parse(text: &'a [u8]) -> Option<BytesEdge<'a>> {
        match text {
            b"-" => Some(BytesEdge::Lowest),
            b"+" => Some(BytesEdge::Highest),
            [b'[', member @ ..] => Some(BytesEdge::At { member, is_excluded: false }),
            [b'(', member @ ..] => Some(BytesEdge::At { member, is_excluded: true }),
            _ => None,
        }
    }

    /// Returns whether a range that begins here begins above this member.
    fn begins_above(self, other: &[u8]) -> bool {
        match self {
            BytesEdge::Lowest => false,
            BytesEdge::At { member, is_excluded } => other < member || is_excluded && other == member,
            BytesEdge::Highest => true,
        }
    }

    /// Returns whether a range that ends here ends below this member.
    fn ends_below(self, other: &[u8]) -> bool {
        match self {
            BytesEdge::Lowest => true,
            BytesEdge::At { member, is_excluded } => other > member || is_excluded && other == member,
            BytesEdge::Highest => false,
        }
    }
}

impl<'a> Range<'a> {
    /// Reads the bounds of a range.
    fn parse(over: Over, min: &'a [u8], max: &'a [u8]) -> Result<Range<'a>, Error> {
        const NO_FLOAT: Error = Error::new("ERR min or max is not a float");
        const NO_BYTES: Error = Error::new("ERR min or max not valid string range item");
        Ok(match over {
            Over::Places => Range::Places(integer(min)?, integer(max)?),
            Over::Scores => {
                Range::Scores(ScoreEdge::parse(min).ok_or(NO_FLOAT)?, ScoreEdge::parse(max).ok_or(NO_FLOAT)?)
            }
            Over::Bytes => Range::Bytes(BytesEdge::parse(min).ok_or(NO_BYTES)?, BytesEdge::parse(max).ok_or(NO_BYTES)?),
        })
    }

    /// Returns the places of the members in this range. They count from the lowest member on, but
    /// if the range is one of places and `is_reverse`: then from the highest.
    fn places(self, set: &SortedSet, is_reverse: bool) -> ops::Range<usize> {
        let length = set.len();
        let (first, end) = match self {
            Range::Places(first, last) => {
                // A place from the end that lies before the beginning is not there.
                let from_end = |place: i64| if place < 0 { place + length as i64 } else { place };
                let first = usize::try_from(from_end(first)).unwrap_or(0);
                let end = usize::try_from(from_end(last).saturating_add(1)).unwrap_or(0).min(length);
                if is_reverse { (length - end, length.saturating_sub(first)) } else { (first, end) }
            }
            Range::Scores(min, max) => (
                set.count_below(|score, _| min.begins_above(score)),
                set.count_below(|score, _| !max.ends_below(score)),
            ),
            Range::Bytes(min, max) => (
                set.count_below(|_, member| min.begins_above(member)),
                set.count_below(|_, member| !max.ends_below(member)),
            ),
        };
        first.min(end)..end
    }
}

/// What a command selects of a sorted set.
#[derive(Clone, Copy, Debug)]
struct Selection<'a> {
    range: Range<'a>,
    /// The highest member comes first.
    is_reverse: bool,
    /// How many members are left out first.
    offset: i64,
    /// How many members are selected then. If it is negative, all.
    limit: i64,
    with_scores: bool,
}

impl<'a> Selection<'a> {
    /// Reads two bounds and the options behind them. `over` and `is_reverse` are options, too, if
    /// the command's name does not give them. A command that stores takes no `WITHSCORES`.
    fn parse(
        args: &[&'a [u8]],
        mut over: Option<Over>,
        mut is_reverse: Option<bool>,
        stores: bool,
    ) -> Result<Selection<'a>, Error> {
        let (mut offset, mut limit, mut with_scores) = (0, -1, false);
        let mut rest = &args[2..];
        while let [option, behind @ ..] = rest {
            rest = behind;
            match option.to_ascii_lowercase().as_slice() {
                b"withscores" if !stores => with_scores = true,
                b"limit" if behind.len() >= 2 => {
                    (offset, limit) = (integer(behind[0])?, integer(behind[1])?);
                    rest = &behind[2..];
                }
                b"rev" if is_reverse.is_none() => is_reverse = Some(true),
                b"bylex" if over.is_none() => over = Some(Over::Bytes),
                b"byscore" if over.is_none() => over = Some(Over::Scores),
                _ => return Err(Error::SYNTAX),
            }
        }
        let (over, is_reverse) = (over.unwrap_or(Over::Places), is_reverse.unwrap_or(false));
        if over == Over::Places {
            if limit != -1 {
                return Err(Error::new(
                    "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
                ));
            }
            offset = 0;
        }
        if with_scores && over == Over::Bytes {
            return Err(Error::new("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
        }
        let (min, max) = if is_reverse && over != Over::Places { (args[1], args[0]) } else { (args[0], args[1]) };
        Ok(Selection { range: Range::parse(over, min, max)?, is_reverse, offset, limit, with_scores })
    }

    /// Returns the places of the selected members, which count from the lowest member on.
    fn places(&self, set: &SortedSet) -> ops::Range<usize> {
        let places = self.range.places(set, self.is_reverse);
        let left_out = usize::try_from(self.offset).unwrap_or(usize::MAX).min(places.len());
        let rest = places.len() - left_out;
        let count = usize::try_from(self.limit).map_or(rest, |limit| limit.min(rest));
        if self.is_reverse {
            let end = places.end - left_out;
            end - count..end
        } else {
            let first = places.start + left_out;
            first..first + count
        }
    }
}

pub(super) fn zrange(call: &mut Call<'_>) -> Result<(), Error> {
    read(call, None, None)
}

pub(super) fn zrevrange(call: &mut Call<'_>) -> Result<(), Error> {
    read(call, Some(Over::Places), Some(true))
}

pub(super) fn zrangebyscore(call: &mut Call<'_>) -> Result<(), Error> {
    read(call, Some(Over::Scores), Some(false))
}

pub(super) fn zrevrangebyscore(call: &mut Call<'_>) -> Result<(), Error> {
    read(call, Some(Over::Scores), Some(true))
}

pub(super) fn zrangebylex(call: &mut Call<'_>) -> Result<(), Error> {
    read(call, Some(Over::Bytes), Some(false))
}

pub(super) fn zrevrangebylex(call: &mut Call<'_>) -> Result<(), Error> {
    read(call, Some(Over::Bytes), Some(true))
}

/// Answers the members of a range.
fn read(call: &mut Call<'_>, over: Option<Over>, is_reverse: Option<bool>) -> Result<(), Error> {
    let selection = Selection::parse(&call.args[2..], over, is_reverse, false)?;
    let Some(set) = call.keys.sorted_set(call.args[1])? else {
        call.reply.array(0);
        return Ok(());
    };
    let places = selection.places(set);
    let form = Form::of(selection.with_scores, call.version);
    if selection.is_reverse {
        reply::members(&mut call.reply, form, set.range(places).rev());
    } else {
        reply::members(&mut call.reply, form, set.range(places));
    }
    Ok(())
}

pub(super) fn zrangestore(call: &mut Call<'_>) -> Result<(), Error> {
    let selection = Selection::parse(&call.args[3..], None, None, true)?;
    let stored: SortedSet = match call.keys.sorted_set(call.args[2])? {
        Some(set) => set.range(selection.places(set)).map(|(member, score)| (member.to_vec(), score)).collect(),
        None => SortedSet::default(),
    };
    call.reply.integer(stored.len() as i64);
    call.keys.store(call.args[1], Value::SortedSet(stored));
    Ok(())
}

pub(super) fn zcount(call: &mut Call<'_>) -> Result<(), Error> {
    count(call, Over::Scores)
}

pub(super) fn zlexcount(call: &mut Call<'_>) -> Result<(), Error> {
    count(call, Over::Bytes)
}

/// Answers how many members are in a range.
fn count(call: &mut Call<'_>, over: Over) -> Result<(), Error> {
    let range = Range::parse(over, call.args[2], call.args[3])?;
    let count = call.keys.sorted_set(call.args[1])?.map_or(0, |set| range.places(set, false).len());
    call.reply.integer(count as i64);
    Ok(())
}

pub(super) fn zremrangebyrank(call: &mut Call<'_>) -> Result<(), Error> {
    remove(call, Over::Places)
}

pub(super) fn zremrangebyscore(call: &mut Call<'_>) -> Result<(), Error> {
    remove(call, Over::Scores)
}

pub(super) fn zremrangebylex(call: &mut Call<'_>) -> Result<(), Error> {
    remove(call, Over::Bytes)
}

/// Removes the members of a range, and answers their number.
fn remove(call: &mut Call<'_>, over: Over) -> Result<(), Error> {
    let key = call.args[1];
    let range = Range::parse(over, call.args[2], call.args[3])?;
    let places = call.keys.sorted_set(key)?.map_or(0..0, |set| range.places(set, false));
    call.reply.integer(places.len() as i64);
    if !places.is_empty() {
        call.keys.change_sorted_set(key)?.remove_range(places);
    }
    Ok(())
}
