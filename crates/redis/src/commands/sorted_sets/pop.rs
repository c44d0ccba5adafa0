//! What removes the lowest or the highest members.

use crate::call::{Call, integer};
use crate::commands::sorted_sets::reply::{self, Form};
use crate::error::Error;
use crate::object::SortedSet;

/// An end of a sorted set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Lowest,
    Highest,
}

pub(super) fn zpopmin(call: &mut Call<'_>) -> Result<(), Error> {
    zpop(call, End::Lowest)
}

pub(super) fn zpopmax(call: &mut Call<'_>) -> Result<(), Error> {
    zpop(call, End::Highest)
}

fn zpop(call: &mut Call<'_>, end: End) -> Result<(), Error> {
    let (count, form) = match call.args.len() {
        2 => (1, Form::Flat),
        3 => (call.positive(2)?, Form::of(true, call.version)),
        _ => return Err(Error::SYNTAX),
    };
    pop(call, call.args[1], end, count, form)
}

pub(super) fn zmpop(call: &mut Call<'_>) -> Result<(), Error> {
    let number = call.integer(1).ok().filter(|number| *number > 0).ok_or(Error::NO_KEYS)?;
    let split = usize::try_from(number).ok().and_then(|number| call.args[2..].split_at_checked(number));
    let Some((keys, [end, options @ ..])) = split else { return Err(Error::SYNTAX) };
    let end = match end.to_ascii_lowercase().as_slice() {
        b"min" => End::Lowest,
        b"max" => End::Highest,
        _ => return Err(Error::SYNTAX),
    };
    let mut count = 1;
    if let [option, rest @ ..] = options {
        let ([value, rest @ ..], true) = (rest, option.eq_ignore_ascii_case(b"count")) else {
            return Err(Error::SYNTAX);
        };
        let wanted = integer(value).ok().filter(|count| *count > 0).and_then(|count| usize::try_from(count).ok());
        count = wanted.ok_or(Error::new("ERR count should be greater than 0"))?;
        if !rest.is_empty() {
            return Err(Error::SYNTAX);
        }
    }
    for key in keys {
        if call.keys.sorted_set(key)?.is_some() {
            call.reply.array(2);
            call.reply.bulk(key);
            return pop(call, key, end, count, Form::Nested);
        }
    }
    call.reply.null_array();
    Ok(())
}

/// Removes up to `count` members at an end, and answers them.
fn pop(call: &mut Call<'_>, key: &[u8], end: End, count: usize, form: Form) -> Result<(), Error> {
    let length = call.keys.sorted_set(key)?.map_or(0, SortedSet::len);
    let count = count.min(length);
    let places = match end {
        End::Lowest => 0..count,
        End::Highest => length - count..length,
    };
    let mut removed = Vec::new();
    if count > 0 {
        removed = call.keys.change_sorted_set(key)?.remove_range(places);
    }
    if end == End::Highest {
        removed.reverse();
    }
    reply::members(&mut call.reply, form, removed.iter().map(|(member, score)| (member.as_slice(), *score)));
    Ok(())
}
