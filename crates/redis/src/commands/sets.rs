//! Commands of sets.

use indexmap::IndexSet;
use remora_resp::{ReplyWriter, number};

use crate::call::{Call, integer};
use crate::command::{Command, Keys, Run};
use crate::commands::{random, scan};
use crate::error::Error;
use crate::keyspace::Keyspace;
use crate::object::{Encoding, Set, Value};

/// The rows of the table.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "sadd",
        arity: -3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "set", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(sadd),
    },
    Command {
        name: "scard",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["read", "set", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(scard),
    },
    Command {
        name: "sdiff",
        arity: -2,
        flags: &["readonly"],
        categories: &["read", "set", "slow"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(sdiff),
    },
    Command {
        name: "sdiffstore",
        arity: -3,
        flags: &["write", "denyoom"],
        categories: &["write", "set", "slow"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(sdiffstore),
    },
    Command {
        name: "sinter",
        arity: -2,
        flags: &["readonly"],
        categories: &["read", "set", "slow"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(sinter),
    },
    Command {
        name: "sintercard",
        arity: -3,
        flags: &["readonly", "movablekeys"],
        categories: &["read", "set", "slow"],
        keys: Keys::Counted { count: 1, has_destination: false },
        run: Run::Keys(sintercard),
    },
    Command {
        name: "sinterstore",
        arity: -3,
        flags: &["write", "denyoom"],
        categories: &["write", "set", "slow"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(sinterstore),
    },
    Command {
        name: "sismember",
        arity: 3,
        flags: &["readonly", "fast"],
        categories: &["read", "set", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(sismember),
    },
    Command {
        name: "smembers",
        arity: 2,
        flags: &["readonly"],
        categories: &["read", "set", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(smembers),
    },
    Command {
        name: "smismember",
        arity: -3,
        flags: &["readonly", "fast"],
        categories: &["read", "set", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(smismember),
    },
    Command {
        name: "smove",
        arity: 4,
        flags: &["write", "fast"],
        categories: &["write", "set", "fast"],
        keys: Keys::Range { first: 1, last: 2, step: 1 },
        run: Run::Keys(smove),
    },
    Command {
        name: "spop",
        arity: -2,
        flags: &["write", "fast"],
        categories: &["write", "set", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(spop),
    },
    Command {
        name: "srandmember",
        arity: -2,
        flags: &["readonly"],
        categories: &["read", "set", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(srandmember),
    },
    Command {
        name: "srem",
        arity: -3,
        flags: &["write", "fast"],
        categories: &["write", "set", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(srem),
    },
    Command {
        name: "sscan",
        arity: -3,
        flags: &["readonly"],
        categories: &["read", "set", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(sscan),
    },
    Command {
        name: "sunion",
        arity: -2,
        flags: &["readonly"],
        categories: &["read", "set", "slow"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(sunion),
    },
    Command {
        name: "sunionstore",
        arity: -3,
        flags: &["write", "denyoom"],
        categories: &["write", "set", "slow"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(sunionstore),
    },
];

fn sadd(call: &mut Call<'_>) -> Result<(), Error> {
    let key = call.args[1];
    let mut added = 0;
    for member in &call.args[2..] {
        if !contains(call.keys.set(key)?, member) {
            call.keys.change_set(key)?.insert(member.to_vec());
            added += 1;
        }
    }
    call.reply.integer(added);
    Ok(())
}

fn srem(call: &mut Call<'_>) -> Result<(), Error> {
    let key = call.args[1];
    let mut removed = 0;
    for member in &call.args[2..] {
        if contains(call.keys.set(key)?, member) {
            call.keys.change_set(key)?.remove(member);
            removed += 1;
        }
    }
    call.reply.integer(removed);
    Ok(())
}

fn smove(call: &mut Call<'_>) -> Result<(), Error> {
    let (source, destination, member) = (call.args[1], call.args[2], call.args[3]);
    let is_there = match call.keys.get(source) {
        // The type of the destination does not matter.
        None => false,
        Some(_) => {
            call.keys.set(destination)?;
            contains(call.keys.set(source)?, member)
        }
    };
    if is_there && source != destination {
        call.keys.change_set(source)?.remove(member);
        if !contains(call.keys.set(destination)?, member) {
            call.keys.change_set(destination)?.insert(member.to_vec());
        }
    }
    call.reply.integer(is_there.into());
    Ok(())
}

fn scard(call: &mut Call<'_>) -> Result<(), Error> {
    let length = call.keys.set(call.args[1])?.map_or(0, Set::len);
    call.reply.integer(length as i64);
    Ok(())
}

fn sismember(call: &mut Call<'_>) -> Result<(), Error> {
    let is_there = contains(call.keys.set(call.args[1])?, call.args[2]);
    call.reply.integer(is_there.into());
    Ok(())
}

fn smismember(call: &mut Call<'_>) -> Result<(), Error> {
    let set = call.keys.set(call.args[1])?;
    call.reply.array(call.args.len() - 2);
    call.args[2..].iter().for_each(|member| call.reply.integer(contains(set, member).into()));
    Ok(())
}

fn smembers(call: &mut Call<'_>) -> Result<(), Error> {
    answer(&mut call.reply, &members(call.keys, call.args[1])?);
    Ok(())
}

fn sscan(call: &mut Call<'_>) -> Result<(), Error> {
    let cursor = scan::cursor(call.args[2])?;
    let Some(set) = call.keys.set(call.args[1])? else {
        scan::begin(&mut call.reply, None, 0);
        return Ok(());
    };
    let options = scan::Options::parse(&call.args[3..])?;
    let (mut taken, next) = match set {
        Set::Packed(_) => (members(call.keys, call.args[1])?, None),
        Set::Spread(_) => set.scan(cursor, options.places()),
    };
    taken.retain(|member| options.takes(member));
    scan::begin(&mut call.reply, next, taken.len());
    taken.iter().for_each(|member| call.reply.bulk(member));
    Ok(())
}

fn srandmember(call: &mut Call<'_>) -> Result<(), Error> {
    if call.args.len() > 3 {
        return Err(Error::SYNTAX);
    }
    let count = call.args.get(2).map(|count| random::count(count)).transpose()?;
    let Some(set) = call.keys.set(call.args[1])? else {
        match count {
            None => call.reply.null(),
            Some(_) => call.reply.array(0),
        }
        return Ok(());
    };
    let members = match set {
        Set::Packed(_) => members(call.keys, call.args[1])?,
        Set::Spread(_) => Vec::new(),
    };
    let at = |place| members.get(place).copied().or_else(|| set.at(place)).unwrap_or_default();
    match count {
        None => call.reply.bulk(at(call.context.random_below(set.len()))),
        Some(count) => {
            let drawn = random::draw(call.context, set.len(), count, |place| at(place).len())?;
            call.reply.array(drawn.len());
            drawn.into_iter().for_each(|place| call.reply.bulk(at(place)));
        }
    }
    Ok(())
}

fn spop(call: &mut Call<'_>) -> Result<(), Error> {
    let key = call.args[1];
    let count = match call.args.len() {
        2 => None,
        3 => Some(call.positive(2)?),
        _ => return Err(Error::SYNTAX),
    };
    let length = call.keys.set(key)?.map_or(0, Set::len);
    match count {
        None if length == 0 => call.reply.null(),
        None => {
            let member = call.keys.change_set(key)?.remove_at(call.context.random_below(length));
            call.reply.bulk(member);
        }
        Some(count) if count >= length => {
            smembers(call)?;
            call.keys.remove(key);
        }
        Some(count) => {
            call.reply.set(count);
            for drawn in 0..count {
                let member = call.keys.change_set(key)?.remove_at(call.context.random_below(length - drawn));
                call.reply.bulk(member);
            }
            if (length - count).saturating_mul(MOVED_SHARE) <= count {
                shrink(call.keys, key);
            }
        }
    }
    Ok(())
}

/// `SPOP` moves what remains of a set into a new one, if it is at most one of this many members
/// that it removes.
const MOVED_SHARE: usize = 5;

/// Lets a large set have the encoding of a small one, if it fits.
fn shrink(keys: &mut Keyspace, key: &[u8]) {
    if let Some(object) = keys.change(key)
        && object.encoding == Encoding::Hashtable
    {
        object.encoding = Encoding::Listpack;
    }
}

fn sinter(call: &mut Call<'_>) -> Result<(), Error> {
    answer(&mut call.reply, &intersection(call.keys, &call.args[1..])?);
    Ok(())
}

fn sinterstore(call: &mut Call<'_>) -> Result<(), Error> {
    let members = own(&intersection(call.keys, &call.args[2..])?);
    store(call, members)
}

fn sintercard(call: &mut Call<'_>) -> Result<(), Error> {
    const NEGATIVE: Error = Error::new("ERR LIMIT can't be negative");
    let number = call.integer(1).ok().filter(|number| *number > 0).ok_or(Error::NO_KEYS)?;
    let (keys, mut options) = usize::try_from(number)
        .ok()
        .and_then(|number| call.args[2..].split_at_checked(number))
        .ok_or(Error::new("ERR Number of keys can't be greater than number of args"))?;
    let mut limit = 0;
    while let [option, rest @ ..] = options {
        let ([value, rest @ ..], true) = (rest, option.eq_ignore_ascii_case(b"limit")) else {
            return Err(Error::SYNTAX);
        };
        limit = integer(value).ok().and_then(|limit| usize::try_from(limit).ok()).ok_or(NEGATIVE)?;
        options = rest;
    }
    let count = intersection(call.keys, keys)?.len();
    call.reply.integer(if limit == 0 { count } else { count.min(limit) } as i64);
    Ok(())
}

fn sunion(call: &mut Call<'_>) -> Result<(), Error> {
    answer(&mut call.reply, &union(call.keys, &call.args[1..])?);
    Ok(())
}

fn sunionstore(call: &mut Call<'_>) -> Result<(), Error> {
    let members = own(&union(call.keys, &call.args[2..])?);
    store(call, members)
}

fn sdiff(call: &mut Call<'_>) -> Result<(), Error> {
    answer(&mut call.reply, &difference(call.keys, &call.args[1..])?);
    Ok(())
}

fn sdiffstore(call: &mut Call<'_>) -> Result<(), Error> {
    let members = own(&difference(call.keys, &call.args[2..])?);
    store(call, members)
}

/// Answers members.
fn answer(reply: &mut ReplyWriter<'_>, members: &[&[u8]]) {
    reply.set(members.len());
    members.iter().for_each(|member| reply.bulk(member));
}

/// Stores members under the first key, and answers their number.
fn store(call: &mut Call<'_>, members: Set) -> Result<(), Error> {
    call.reply.integer(members.len() as i64);
    call.keys.store(call.args[1], Value::Set(members));
    Ok(())
}

/// Returns a set of these members.
fn own(members: &[&[u8]]) -> Set {
    members.iter().map(|member| member.to_vec()).collect()
}

/// Returns whether a member is in a set. An absent set has no members.
fn contains(set: Option<&Set>, member: &[u8]) -> bool {
    set.is_some_and(|set| set.contains(member))
}

/// Returns the members of a key in the order in which Redis answers them: integers ascend.
fn members<'k>(keys: &'k Keyspace, key: &[u8]) -> Result<Vec<&'k [u8]>, Error> {
    let mut members: Vec<_> = keys.set(key)?.into_iter().flat_map(Set::iter).collect();
    if keys.get(key).is_some_and(|object| object.encoding == Encoding::Intset) {
        sort(&mut members);
    }
    Ok(members)
}

/// Returns the members that are in all sets, in the order of the smallest set.
fn intersection<'k>(keys: &'k Keyspace, names: &[&[u8]]) -> Result<Vec<&'k [u8]>, Error> {
    let sets = names.iter().map(|name| keys.set(name)).collect::<Result<Vec<_>, _>>()?;
    let smallest = sets.iter().zip(names).min_by_key(|(set, _)| set.map_or(0, Set::len));
    let mut members = smallest.map_or(Ok(Vec::new()), |(_, name)| members(keys, name))?;
    members.retain(|member| sets.iter().all(|set| contains(*set, member)));
    Ok(members)
}

/// Returns the members of the first set that are in no other one.
fn difference<'k>(keys: &'k Keyspace, names: &[&[u8]]) -> Result<Vec<&'k [u8]>, Error> {
    let sets = names.iter().map(|name| keys.set(name)).collect::<Result<Vec<_>, _>>()?;
    let mut members = members(keys, names[0])?;
    members.retain(|member| !sets[1..].iter().any(|set| contains(*set, member)));
    Ok(members)
}

/// Returns the members of all sets. Integers ascend, if all sets have only integers.
fn union<'k>(keys: &'k Keyspace, names: &[&[u8]]) -> Result<Vec<&'k [u8]>, Error> {
    let sets = names.iter().map(|name| keys.set(name)).collect::<Result<Vec<_>, _>>()?;
    let members: IndexSet<&[u8]> = sets.into_iter().flatten().flat_map(Set::iter).collect();
    let mut members = Vec::from_iter(members);
    let mut found = names.iter().filter_map(|name| keys.get(name));
    if found.all(|object| object.encoding == Encoding::Intset) {
        sort(&mut members);
    }
    Ok(members)
}

/// Sorts integers.
fn sort(members: &mut [&[u8]]) {
    members.sort_by_cached_key(|member| number::parse_integer(member));
}
