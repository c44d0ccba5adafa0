//! Commands of hashes.

use remora_resp::Version;
use remora_resp::number::LongDouble;

use super::{random, scan};
use crate::call::{Call, check_reply, integer};
use crate::command::{Command, Keys, Run};
use crate::error::Error;
use crate::object::Hash;

/// The rows of the table.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "hdel",
        arity: -3,
        flags: &["write", "fast"],
        categories: &["write", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hdel),
    },
    Command {
        name: "hexists",
        arity: 3,
        flags: &["readonly", "fast"],
        categories: &["read", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hexists),
    },
    Command {
        name: "hget",
        arity: 3,
        flags: &["readonly", "fast"],
        categories: &["read", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hget),
    },
    Command {
        name: "hgetall",
        arity: 2,
        flags: &["readonly"],
        categories: &["read", "hash", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hgetall),
    },
    Command {
        name: "hincrby",
        arity: 4,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hincrby),
    },
    Command {
        name: "hincrbyfloat",
        arity: 4,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hincrbyfloat),
    },
    Command {
        name: "hkeys",
        arity: 2,
        flags: &["readonly"],
        categories: &["read", "hash", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hkeys),
    },
    Command {
        name: "hlen",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["read", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hlen),
    },
    Command {
        name: "hmget",
        arity: -3,
        flags: &["readonly", "fast"],
        categories: &["read", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hmget),
    },
    Command {
        name: "hmset",
        arity: -4,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hmset),
    },
    Command {
        name: "hrandfield",
        arity: -2,
        flags: &["readonly"],
        categories: &["read", "hash", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hrandfield),
    },
    Command {
        name: "hscan",
        arity: -3,
        flags: &["readonly"],
        categories: &["read", "hash", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hscan),
    },
    Command {
        name: "hset",
        arity: -4,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hset),
    },
    Command {
        name: "hsetnx",
        arity: 4,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hsetnx),
    },
    Command {
        name: "hstrlen",
        arity: 3,
        flags: &["readonly", "fast"],
        categories: &["read", "hash", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hstrlen),
    },
    Command {
        name: "hvals",
        arity: 2,
        flags: &["readonly"],
        categories: &["read", "hash", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(hvals),
    },
];

fn hget(call: &mut Call<'_>) -> Result<(), Error> {
    match call.keys.hash(call.args[1])?.and_then(|hash| hash.get(call.args[2])) {
        Some(value) => call.reply.bulk(value),
        None => call.reply.null(),
    }
    Ok(())
}

fn hmget(call: &mut Call<'_>) -> Result<(), Error> {
    let (hash, fields) = (call.keys.hash(call.args[1])?, &call.args[2..]);
    let values: Vec<_> = fields.iter().map(|field| hash.and_then(|hash| hash.get(field))).collect();
    // A field that is named often is answered as often.
    check_reply(values.iter().flatten().map(|value| value.len()).sum())?;
    call.reply.array(values.len());
    for value in values {
        match value {
            Some(value) => call.reply.bulk(value),
            None => call.reply.null(),
        }
    }
    Ok(())
}

fn hexists(call: &mut Call<'_>) -> Result<(), Error> {
    let is_there = call.keys.hash(call.args[1])?.is_some_and(|hash| hash.contains_key(call.args[2]));
    call.reply.integer(is_there.into());
    Ok(())
}

fn hlen(call: &mut Call<'_>) -> Result<(), Error> {
    let count = call.keys.hash(call.args[1])?.map_or(0, Hash::len);
    call.reply.integer(count as i64);
    Ok(())
}

fn hstrlen(call: &mut Call<'_>) -> Result<(), Error> {
    let value = call.keys.hash(call.args[1])?.and_then(|hash| hash.get(call.args[2]));
    call.reply.integer(value.map_or(0, <[u8]>::len) as i64);
    Ok(())
}

fn hgetall(call: &mut Call<'_>) -> Result<(), Error> {
    let hash = call.keys.hash(call.args[1])?;
    call.reply.map(hash.map_or(0, Hash::len));
    for (field, value) in hash.into_iter().flat_map(Hash::iter) {
        call.reply.bulk(field);
        call.reply.bulk(value);
    }
    Ok(())
}

fn hkeys(call: &mut Call<'_>) -> Result<(), Error> {
    let hash = call.keys.hash(call.args[1])?;
    call.reply.array(hash.map_or(0, Hash::len));
    hash.into_iter().flat_map(Hash::iter).for_each(|(field, _)| call.reply.bulk(field));
    Ok(())
}

fn hvals(call: &mut Call<'_>) -> Result<(), Error> {
    let hash = call.keys.hash(call.args[1])?;
    call.reply.array(hash.map_or(0, Hash::len));
    hash.into_iter().flat_map(Hash::iter).for_each(|(_, value)| call.reply.bulk(value));
    Ok(())
}

fn hscan(call: &mut Call<'_>) -> Result<(), Error> {
    let cursor = scan::cursor(call.args[2])?;
    let Some(hash) = call.keys.hash(call.args[1])? else {
        scan::begin(&mut call.reply, None, 0);
        return Ok(());
    };
    let options = scan::Options::parse(&call.args[3..])?;
    let (mut taken, next) = hash.scan(cursor, options.places());
    taken.retain(|(field, _)| options.takes(field));
    scan::begin(&mut call.reply, next, 2 * taken.len());
    for (field, value) in taken {
        call.reply.bulk(field);
        call.reply.bulk(value);
    }
    Ok(())
}

fn hset(call: &mut Call<'_>) -> Result<(), Error> {
    let added = set_fields(call, "hset")?;
    call.reply.integer(added as i64);
    Ok(())
}

fn hmset(call: &mut Call<'_>) -> Result<(), Error> {
    set_fields(call, "hmset")?;
    call.ok();
    Ok(())
}

/// Sets fields to values. Returns how many fields were added.
fn set_fields(call: &mut Call<'_>, command: &str) -> Result<usize, Error> {
    let (pairs, rest) = call.args[2..].as_chunks();
    if !rest.is_empty() {
        return Err(Error::arity(command));
    }
    let hash = call.keys.change_hash(call.args[1])?;
    let before = hash.len();
    for [field, value] in pairs {
        hash.insert(field.to_vec(), value.to_vec());
    }
    Ok(hash.len() - before)
}

fn hsetnx(call: &mut Call<'_>) -> Result<(), Error> {
    let (key, field) = (call.args[1], call.args[2]);
    let is_there = call.keys.hash(key)?.is_some_and(|hash| hash.contains_key(field));
    if !is_there {
        call.keys.change_hash(key)?.insert(field.to_vec(), call.args[3].to_vec());
    }
    call.reply.integer((!is_there).into());
    Ok(())
}

fn hdel(call: &mut Call<'_>) -> Result<(), Error> {
    let (key, fields) = (call.args[1], &call.args[2..]);
    let hash = call.keys.hash(key)?;
    let mut found: Vec<&[u8]> =
        fields.iter().copied().filter(|field| hash.is_some_and(|hash| hash.contains_key(field))).collect();
    found.sort_unstable();
    found.dedup();
    if !found.is_empty() {
        call.keys.change_hash(key)?.remove_all(&found);
    }
    call.reply.integer(found.len() as i64);
    Ok(())
}

fn hincrby(call: &mut Call<'_>) -> Result<(), Error> {
    let (key, field, increment) = (call.args[1], call.args[2], call.integer(3)?);
    let before = match call.keys.hash(key)?.and_then(|hash| hash.get(field)) {
        Some(value) => integer(value).map_err(|_| Error::new("ERR hash value is not an integer"))?,
        None => 0,
    };
    let after = before.checked_add(increment).ok_or(Error::OVERFLOW)?;
    call.keys.change_hash(key)?.insert(field.to_vec(), after.to_string().into());
    call.reply.integer(after);
    Ok(())
}

fn hincrbyfloat(call: &mut Call<'_>) -> Result<(), Error> {
    let (key, field) = (call.args[1], call.args[2]);
    let increment = LongDouble::parse(call.args[3]).ok_or(Error::NOT_FLOAT)?;
    if !increment.is_finite() {
        return Err(Error::new("ERR value is NaN or Infinity"));
    }
    let value = call.keys.hash(key)?.and_then(|hash| hash.get(field));
    let before = LongDouble::parse(value.unwrap_or(b"0"));
    let before = before.ok_or(Error::new("ERR hash value is not a float"))?;
    let after = before.add(increment).ok_or(Error::new("ERR increment would produce NaN or Infinity"))?;
    let mut text = Vec::new();
    after.write(&mut text);
    call.reply.bulk(&text);
    call.keys.change_hash(key)?.insert(field.to_vec(), text);
    Ok(())
}

fn hrandfield(call: &mut Call<'_>) -> Result<(), Error> {
    let key = call.args[1];
    let Some(count) = call.args.get(2) else {
        let hash = call.keys.hash(key)?;
        match hash.and_then(|hash| hash.at(call.context.random_below(hash.len()))) {
            Some((field, _)) => call.reply.bulk(field),
            None => call.reply.null(),
        }
        return Ok(());
    };
    let count = random::count(count)?;
    let has_values = match &call.args[3..] {
        [] => false,
        [word] if word.eq_ignore_ascii_case(b"withvalues") => true,
        _ => return Err(Error::SYNTAX),
    };
    if has_values && count.abs() > i64::MAX / 2 {
        return Err(Error::OUT_OF_RANGE);
    }
    let Some(hash) = call.keys.hash(key)? else {
        call.reply.array(0);
        return Ok(());
    };
    let drawn = random::draw(call.context, hash.len(), count, |place| {
        hash.at(place).map_or(0, |(field, value)| field.len() + if has_values { value.len() } else { 0 })
    })?;
    // Pairs are arrays of two in RESP3.
    let nests = has_values && call.version == Version::Resp3;
    call.reply.array(if has_values && !nests { 2 * drawn.len() } else { drawn.len() });
    for (field, value) in drawn.into_iter().filter_map(|place| hash.at(place)) {
        if nests {
            call.reply.array(2);
        }
        call.reply.bulk(field);
        if has_values {
            call.reply.bulk(value);
        }
    }
    Ok(())
}
