//! Commands of lists.

use std::ops::Range;

use crate::call::{Call, integer};
use crate::command::{Command, Keys, Run};
use crate::error::Error;
use crate::object::List;

/// The rows of the table.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "lindex",
        arity: 3,
        flags: &["readonly"],
        categories: &["read", "list", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(lindex),
    },
    Command {
        name: "linsert",
        arity: 5,
        flags: &["write", "denyoom"],
        categories: &["write", "list", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(linsert),
    },
    Command {
        name: "llen",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["read", "list", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(llen),
    },
    Command {
        name: "lmove",
        arity: 5,
        flags: &["write", "denyoom"],
        categories: &["write", "list", "slow"],
        keys: Keys::Range { first: 1, last: 2, step: 1 },
        run: Run::Keys(lmove),
    },
    Command {
        name: "lmpop",
        arity: -4,
        flags: &["write", "movablekeys"],
        categories: &["write", "list", "slow"],
        keys: Keys::Counted { count: 1, has_destination: false },
        run: Run::Keys(lmpop),
    },
    Command {
        name: "lpop",
        arity: -2,
        flags: &["write", "fast"],
        categories: &["write", "list", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(lpop),
    },
    Command {
        name: "lpos",
        arity: -3,
        flags: &["readonly"],
        categories: &["read", "list", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(lpos),
    },
    Command {
        name: "lpush",
        arity: -3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "list", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(lpush),
    },
    Command {
        name: "lpushx",
        arity: -3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "list", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(lpushx),
    },
    Command {
        name: "lrange",
        arity: 4,
        flags: &["readonly"],
        categories: &["read", "list", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(lrange),
    },
    Command {
        name: "lrem",
        arity: 4,
        flags: &["write"],
        categories: &["write", "list", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(lrem),
    },
    Command {
        name: "lset",
        arity: 4,
        flags: &["write", "denyoom"],
        categories: &["write", "list", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(lset),
    },
    Command {
        name: "ltrim",
        arity: 4,
        flags: &["write"],
        categories: &["write", "list", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(ltrim),
    },
    Command {
        name: "rpop",
        arity: -2,
        flags: &["write", "fast"],
        categories: &["write", "list", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(rpop),
    },
    Command {
        name: "rpoplpush",
        arity: 3,
        flags: &["write", "denyoom"],
        categories: &["write", "list", "slow"],
        keys: Keys::Range { first: 1, last: 2, step: 1 },
        run: Run::Keys(rpoplpush),
    },
    Command {
        name: "rpush",
        arity: -3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "list", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(rpush),
    },
    Command {
        name: "rpushx",
        arity: -3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "list", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(rpushx),
    },
];

/// An end of a list.
#[derive(Clone, Copy)]
enum End {
    Left,
    Right,
}

impl End {
    /// Reads `LEFT` or `RIGHT`.
    fn parse(argument: &[u8]) -> Result<End, Error> {
        if argument.eq_ignore_ascii_case(b"left") {
            Ok(End::Left)
        } else if argument.eq_ignore_ascii_case(b"right") {
            Ok(End::Right)
        } else {
            Err(Error::SYNTAX)
        }
    }

    fn push(self, list: &mut List, element: Vec<u8>) {
        match self {
            End::Left => list.push_front(element),
            End::Right => list.push_back(element),
        }
    }

    fn pop(self, list: &mut List) -> Option<Vec<u8>> {
        match self {
            End::Left => list.pop_front(),
            End::Right => list.pop_back(),
        }
    }
}

/// Returns the place of an index, which counts from the end if it is negative.
fn place(length: usize, index: i64) -> Option<usize> {
    let index = if index < 0 { index + length as i64 } else { index };
    usize::try_from(index).ok().filter(|place| *place < length)
}

/// Returns the places from one index to another.
fn range(length: usize, first: i64, last: i64) -> Range<usize> {
    let from_start = |index: i64| if index < 0 { index + length as i64 } else { index };
    let first = from_start(first).max(0);
    let end = from_start(last).min(length as i64 - 1) + 1;
    if first < end { first as usize..end as usize } else { 0..0 }
}

/// Returns an argument as a number of at least `least`, which is not negative.
fn count(argument: &[u8], least: i64, error: Error) -> Result<usize, Error> {
    match integer(argument) {
        Ok(number) if number >= least => Ok(number as usize),
        _ => Err(error),
    }
}

fn lpush(call: &mut Call<'_>) -> Result<(), Error> {
    push(call, End::Left)
}

fn rpush(call: &mut Call<'_>) -> Result<(), Error> {
    push(call, End::Right)
}

fn lpushx(call: &mut Call<'_>) -> Result<(), Error> {
    push_if_there(call, End::Left)
}

fn rpushx(call: &mut Call<'_>) -> Result<(), Error> {
    push_if_there(call, End::Right)
}

fn push_if_there(call: &mut Call<'_>, end: End) -> Result<(), Error> {
    if call.keys.list(call.args[1])?.is_some() {
        return push(call, end);
    }
    call.reply.integer(0);
    Ok(())
}

fn push(call: &mut Call<'_>, end: End) -> Result<(), Error> {
    let list = call.keys.change_list(call.args[1])?;
    call.args[2..].iter().for_each(|element| end.push(list, element.to_vec()));
    call.reply.integer(list.len() as i64);
    Ok(())
}

fn lpop(call: &mut Call<'_>) -> Result<(), Error> {
    pop(call, End::Left, "lpop")
}

fn rpop(call: &mut Call<'_>) -> Result<(), Error> {
    pop(call, End::Right, "rpop")
}

fn pop(call: &mut Call<'_>, end: End, command: &str) -> Result<(), Error> {
    let key = call.args[1];
    let wanted = match &call.args[2..] {
        [] => None,
        [wanted] => Some(count(wanted, 0, Error::NOT_POSITIVE)?),
        _ => return Err(Error::arity(command)),
    };
    match (call.keys.list(key)?.map(List::len), wanted) {
        (None, None) => call.reply.null(),
        (None, Some(_)) => call.reply.null_array(),
        (Some(_), None) => take(call, key, end, 1)?,
        (Some(length), Some(wanted)) => {
            call.reply.array(wanted.min(length));
            take(call, key, end, wanted.min(length))?;
        }
    }
    Ok(())
}

fn lmpop(call: &mut Call<'_>) -> Result<(), Error> {
    let keys = count(call.args[1], 1, Error::NO_KEYS)?;
    let (keys, options) = call.args[2..].split_at_checked(keys).ok_or(Error::SYNTAX)?;
    let [end, options @ ..] = options else { return Err(Error::SYNTAX) };
    let end = End::parse(end)?;
    let wanted = match options {
        [] => 1,
        [word, wanted, rest @ ..] if word.eq_ignore_ascii_case(b"count") => {
            let wanted = count(wanted, 1, Error::new("ERR count should be greater than 0"))?;
            if !rest.is_empty() {
                return Err(Error::SYNTAX);
            }
            wanted
        }
        _ => return Err(Error::SYNTAX),
    };
    for key in keys {
        if let Some(list) = call.keys.list(key)? {
            let wanted = wanted.min(list.len());
            call.reply.array(2);
            call.reply.bulk(key);
            call.reply.array(wanted);
            return take(call, key, end, wanted);
        }
    }
    call.reply.null_array();
    Ok(())
}

/// Takes `count` elements from a list, and answers them.
fn take(call: &mut Call<'_>, key: &[u8], end: End, count: usize) -> Result<(), Error> {
    if count > 0 {
        let list = call.keys.change_list(key)?;
        (0..count).map_while(|_| end.pop(list)).for_each(|element| call.reply.bulk(element));
    }
    Ok(())
}

fn rpoplpush(call: &mut Call<'_>) -> Result<(), Error> {
    move_element(call, End::Right, End::Left)
}

fn lmove(call: &mut Call<'_>) -> Result<(), Error> {
    move_element(call, End::parse(call.args[3])?, End::parse(call.args[4])?)
}

fn move_element(call: &mut Call<'_>, from: End, to: End) -> Result<(), Error> {
    let (source, destination) = (call.args[1], call.args[2]);
    if call.keys.list(source)?.is_none() {
        call.reply.null();
        return Ok(());
    }
    call.keys.list(destination)?;
    let element = from.pop(call.keys.change_list(source)?).expect("no list is empty");
    call.reply.bulk(&element);
    to.push(call.keys.change_list(destination)?, element);
    Ok(())
}

fn llen(call: &mut Call<'_>) -> Result<(), Error> {
    let length = call.keys.list(call.args[1])?.map_or(0, List::len);
    call.reply.integer(length as i64);
    Ok(())
}

fn lindex(call: &mut Call<'_>) -> Result<(), Error> {
    let element = match call.keys.list(call.args[1])? {
        Some(list) => place(list.len(), call.integer(2)?).and_then(|place| list.at(place)),
        None => None,
    };
    match element {
        Some(element) => call.reply.bulk(element),
        None => call.reply.null(),
    }
    Ok(())
}

fn lrange(call: &mut Call<'_>) -> Result<(), Error> {
    let (first, last) = (call.integer(2)?, call.integer(3)?);
    let Some(list) = call.keys.list(call.args[1])? else {
        call.reply.array(0);
        return Ok(());
    };
    let range = range(list.len(), first, last);
    call.reply.array(range.len());
    list.range(range).for_each(|element| call.reply.bulk(element));
    Ok(())
}

fn lpos(call: &mut Call<'_>) -> Result<(), Error> {
    let element = call.args[2];
    let (mut rank, mut wanted, mut compared) = (1, None, 0);
    for option in call.args[3..].chunks(2) {
        let [name, value] = option else { return Err(Error::SYNTAX) };
        if name.eq_ignore_ascii_case(b"rank") {
            rank = integer(value)?;
            if rank == i64::MIN {
                return Err(Error::NOT_NEGATABLE);
            }
            if rank == 0 {
                return Err(Error::new(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use \
                     negative to start from the end of the list",
                ));
            }
        } else if name.eq_ignore_ascii_case(b"count") {
            wanted = Some(count(value, 0, Error::new("ERR COUNT can't be negative"))?);
        } else if name.eq_ignore_ascii_case(b"maxlen") {
            compared = count(value, 0, Error::new("ERR MAXLEN can't be negative"))?;
        } else {
            return Err(Error::SYNTAX);
        }
    }
    let list = call.keys.list(call.args[1])?;
    let length = list.map_or(0, List::len);
    let all_if_0 = |count| if count == 0 { usize::MAX } else { count };
    let mut places = (0..length)
        .map(|place| if rank < 0 { length - 1 - place } else { place })
        .take(all_if_0(compared))
        .filter(|place| list.and_then(|list| list.at(*place)) == Some(element))
        .skip(rank.unsigned_abs() as usize - 1);
    match wanted {
        Some(wanted) => {
            let found: Vec<_> = places.take(all_if_0(wanted)).collect();
            call.reply.array(found.len());
            found.into_iter().for_each(|place| call.reply.integer(place as i64));
        }
        None => match places.next() {
            Some(place) => call.reply.integer(place as i64),
            None => call.reply.null(),
        },
    }
    Ok(())
}

fn lset(call: &mut Call<'_>) -> Result<(), Error> {
    let key = call.args[1];
    let length = call.keys.list(key)?.ok_or(Error::NO_SUCH_KEY)?.len();
    let place = place(length, call.integer(2)?).ok_or(Error::INDEX_OUT_OF_RANGE)?;
    call.keys.change_list(key)?.set(place, call.args[3].to_vec());
    call.ok();
    Ok(())
}

fn linsert(call: &mut Call<'_>) -> Result<(), Error> {
    let (key, pivot) = (call.args[1], call.args[3]);
    let behind = match () {
        () if call.is(2, "before") => 0,
        () if call.is(2, "after") => 1,
        () => return Err(Error::SYNTAX),
    };
    let Some(list) = call.keys.list(key)? else {
        call.reply.integer(0);
        return Ok(());
    };
    let Some(place) = list.iter().position(|element| element == pivot) else {
        call.reply.integer(-1);
        return Ok(());
    };
    let list = call.keys.change_list(key)?;
    list.insert(place + behind, call.args[4].to_vec());
    call.reply.integer(list.len() as i64);
    Ok(())
}

fn lrem(call: &mut Call<'_>) -> Result<(), Error> {
    let (key, wanted, element) = (call.args[1], call.integer(2)?, call.args[3]);
    let is_equal = |other: &[u8]| other == element;
    let equal = call.keys.list(key)?.map_or(0, |list| list.iter().filter(|other| is_equal(other)).count());
    let removed = if wanted == 0 { equal } else { equal.min(wanted.unsigned_abs() as usize) };
    if removed > 0 {
        // A negative number removes the last ones.
        let kept = if wanted < 0 { equal - removed } else { 0 };
        let mut seen = 0;
        call.keys.change_list(key)?.retain(|other| {
            seen += usize::from(is_equal(other));
            !is_equal(other) || !(kept + 1..=kept + removed).contains(&seen)
        });
    }
    call.reply.integer(removed as i64);
    Ok(())
}

fn ltrim(call: &mut Call<'_>) -> Result<(), Error> {
    let (key, first, last) = (call.args[1], call.integer(2)?, call.integer(3)?);
    if call.keys.list(key)?.is_some() {
        let list = call.keys.change_list(key)?;
        let kept = range(list.len(), first, last);
        list.keep(kept);
    }
    call.ok();
    Ok(())
}
