//! Commands of strings.

mod lcs;

use remora_resp::number::{self, LongDouble};

use crate::call::{Call, check_reply, integer};
use crate::command::{Command, Keys, Run};
use crate::error::Error;
use crate::object::{Encoding, Object, Value};
use lcs::lcs;

/// The rows of the table.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "append",
        arity: 3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(append),
    },
    Command {
        name: "decr",
        arity: 2,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(decr),
    },
    Command {
        name: "decrby",
        arity: 3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(decrby),
    },
    Command {
        name: "get",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["read", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(get),
    },
    Command {
        name: "getdel",
        arity: 2,
        flags: &["write", "fast"],
        categories: &["write", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(getdel),
    },
    Command {
        name: "getex",
        arity: -2,
        flags: &["write", "fast"],
        categories: &["write", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(getex),
    },
    Command {
        name: "getrange",
        arity: 4,
        flags: &["readonly"],
        categories: &["read", "string", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(getrange),
    },
    Command {
        name: "getset",
        arity: 3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(getset),
    },
    Command {
        name: "incr",
        arity: 2,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(incr),
    },
    Command {
        name: "incrby",
        arity: 3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(incrby),
    },
    Command {
        name: "incrbyfloat",
        arity: 3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(incrbyfloat),
    },
    Command {
        name: "lcs",
        arity: -3,
        flags: &["readonly"],
        categories: &["read", "string", "slow"],
        keys: Keys::Range { first: 1, last: 2, step: 1 },
        run: Run::Keys(lcs),
    },
    Command {
        name: "mget",
        arity: -2,
        flags: &["readonly", "fast"],
        categories: &["read", "string", "fast"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(mget),
    },
    Command {
        name: "mset",
        arity: -3,
        flags: &["write", "denyoom"],
        categories: &["write", "string", "slow"],
        keys: Keys::Range { first: 1, last: -1, step: 2 },
        run: Run::Keys(mset),
    },
    Command {
        name: "msetnx",
        arity: -3,
        flags: &["write", "denyoom"],
        categories: &["write", "string", "slow"],
        keys: Keys::Range { first: 1, last: -1, step: 2 },
        run: Run::Keys(msetnx),
    },
    Command {
        name: "psetex",
        arity: 4,
        flags: &["write", "denyoom"],
        categories: &["write", "string", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(psetex),
    },
    Command {
        name: "set",
        arity: -3,
        flags: &["write", "denyoom"],
        categories: &["write", "string", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(set),
    },
    Command {
        name: "setex",
        arity: 4,
        flags: &["write", "denyoom"],
        categories: &["write", "string", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(setex),
    },
    Command {
        name: "setnx",
        arity: 3,
        flags: &["write", "denyoom", "fast"],
        categories: &["write", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(setnx),
    },
    Command {
        name: "setrange",
        arity: 4,
        flags: &["write", "denyoom"],
        categories: &["write", "string", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(setrange),
    },
    Command {
        name: "strlen",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["read", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(strlen),
    },
    Command {
        name: "substr",
        arity: 4,
        flags: &["readonly"],
        categories: &["read", "string", "slow"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(substr),
    },
];

/// Bytes of the longest string that `APPEND` and `SETRANGE` make: what one argument may have, too.
pub const STRING_BYTES_MAX: usize = 30_000_000;

fn get(call: &mut Call<'_>) -> Result<(), Error> {
    match call.keys.string(call.args[1])? {
        Some(string) => call.reply.bulk(string),
        None => call.reply.null(),
    }
    Ok(())
}

fn strlen(call: &mut Call<'_>) -> Result<(), Error> {
    let length = call.keys.string(call.args[1])?.map_or(0, Vec::len);
    call.reply.integer(length as i64);
    Ok(())
}

fn getdel(call: &mut Call<'_>) -> Result<(), Error> {
    get(call)?;
    call.keys.remove(call.args[1]);
    Ok(())
}

fn mget(call: &mut Call<'_>) -> Result<(), Error> {
    let keys = &call.args[1..];
    // A value of another type counts as none.
    let string = |key: &[u8]| call.keys.string(key).ok().flatten();
    check_reply(keys.iter().filter_map(|key| string(key)).map(Vec::len).sum())?;
    call.reply.array(keys.len());
    for key in keys {
        match string(key) {
            Some(string) => call.reply.bulk(string),
            None => call.reply.null(),
        }
    }
    Ok(())
}

fn getrange(call: &mut Call<'_>) -> Result<(), Error> {
    let (start, end) = (call.integer(2)?, call.integer(3)?);
    let string = call.keys.string(call.args[1])?.map_or(&[][..], Vec::as_slice);
    call.reply.bulk(range(string, start, end));
    Ok(())
}

fn substr(call: &mut Call<'_>) -> Result<(), Error> {
    getrange(call)
}

/// Returns the bytes from `start` to `end`, both included. Negative places count from the end, and
/// places before the first byte count as its place.
fn range(string: &[u8], start: i64, end: i64) -> &[u8] {
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let length = string.len() as i64;
    let place = |place: i64| if place < 0 { (length + place).max(0) } else { place };
    let (start, end) = (place(start), place(end).min(length - 1));
    if start <= end { &string[start as usize..=end as usize] } else { &[] }
}

/// The options of `SET` and `GETEX`.
#[derive(Default)]
struct Options<'a> {
    condition: Option<Condition>,
    /// Whether `SET` answers the old value.
    answers_old: bool,
    /// What becomes of the expiry, with the time if there is one.
    lifetime: Option<(Lifetime, &'a [u8])>,
}

/// Which keys `SET` sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// Only absent keys.
    Absent,
    /// Only keys that are there.
    Present,
}

/// What becomes of the expiry of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    /// It stays.
    Keep,
    /// It is removed.
    Persist,
    /// The key expires after seconds.
    Seconds,
    /// The key expires after milliseconds.
    Milliseconds,
    /// The key expires at a time in seconds since 1970.
    AtSecond,
    /// The key expires at a time in milliseconds since 1970.
    AtMillisecond,
}

impl<'a> Options<'a> {
    /// Reads the options of `SET`, or of `GETEX`. An option may be repeated.
    fn parse(words: &[&'a [u8]], is_set: bool) -> Result<Options<'a>, Error> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
            if is_set && is("NX") && options.condition != Some(Condition::Present) {
                options.condition = Some(Condition::Absent);
                continue;
            } else if is_set && is("XX") && options.condition != Some(Condition::Absent) {
                options.condition = Some(Condition::Present);
                continue;
            } else if is_set && is("GET") {
                options.answers_old = true;
                continue;
            }
            let lifetimes = [
                ("KEEPTTL", Lifetime::Keep, is_set),
                ("PERSIST", Lifetime::Persist, !is_set),
                ("EX", Lifetime::Seconds, true),
                ("PX", Lifetime::Milliseconds, true),
                ("EXAT", Lifetime::AtSecond, true),
                ("PXAT", Lifetime::AtMillisecond, true),
            ];
            let found = lifetimes.into_iter().find(|(name, _, is_allowed)| *is_allowed && is(name));
            let (_, lifetime, _) = found.ok_or(Error::SYNTAX)?;
            if options.lifetime.is_some_and(|(other, _)| other != lifetime) {
                return Err(Error::SYNTAX);
            }
            let time = match lifetime {
                Lifetime::Keep | Lifetime::Persist => &[][..],
                _ => words.next().ok_or(Error::SYNTAX)?,
            };
            options.lifetime = Some((lifetime, time));
        }
        Ok(options)
    }

    /// Returns when the key expires, if the options give a time. `command` is named by errors.
    fn expiry(&self, now: u64, command: &str) -> Result<Option<u64>, Error> {
        let Some((lifetime, time)) = self.lifetime else { return Ok(None) };
        let (unit, start) = match lifetime {
            Lifetime::Keep | Lifetime::Persist => return Ok(None),
            Lifetime::Seconds => (1000, now),
            Lifetime::Milliseconds => (1, now),
            Lifetime::AtSecond => (1000, 0),
            Lifetime::AtMillisecond => (1, 0),
        };
        let time = integer(time)?;
        let expiry = time.checked_mul(unit).and_then(|time| time.checked_add_unsigned(start));
        // The time itself must be positive, even if it is relative.
        expiry.filter(|_| time > 0).map(|expiry| Some(expiry as u64)).ok_or_else(|| Error::expiry(command))
    }
}

fn set(call: &mut Call<'_>) -> Result<(), Error> {
    let options = Options::parse(&call.args[3..], true)?;
    let mut object = Object::string(call.args[2]);
    object.expiry = options.expiry(call.context.now, "set")?;
    let before = call.keys.get(call.args[1]);
    if let (Some((Lifetime::Keep, _)), Some(before)) = (options.lifetime, before) {
        object.expiry = before.expiry;
    }
    let is_refused = match options.condition {
        None => false,
        Some(Condition::Absent) => before.is_some(),
        Some(Condition::Present) => before.is_none(),
    };
    if options.answers_old {
        get(call)?;
    } else if is_refused {
        call.reply.null();
    } else {
        call.ok();
    }
    if !is_refused {
        put(call, object);
    }
    Ok(())
}

/// Sets the value of the key. If the value has expired already, the key is deleted.
fn put(call: &mut Call<'_>, object: Object) {
    if object.has_expired(call.context.now) {
        call.keys.remove(call.args[1]);
    } else {
        call.keys.put(call.args[1], object);
    }
}

fn setex(call: &mut Call<'_>) -> Result<(), Error> {
    set_with_lifetime(call, Lifetime::Seconds, "setex")
}

fn psetex(call: &mut Call<'_>) -> Result<(), Error> {
    set_with_lifetime(call, Lifetime::Milliseconds, "psetex")
}

fn set_with_lifetime(call: &mut Call<'_>, lifetime: Lifetime, command: &str) -> Result<(), Error> {
    let options = Options { lifetime: Some((lifetime, call.args[2])), ..Options::default() };
    let mut object = Object::string(call.args[3]);
    object.expiry = options.expiry(call.context.now, command)?;
    put(call, object);
    call.ok();
    Ok(())
}

fn setnx(call: &mut Call<'_>) -> Result<(), Error> {
    let is_absent = call.keys.get(call.args[1]).is_none();
    if is_absent {
        call.keys.put(call.args[1], Object::string(call.args[2]));
    }
    call.reply.integer(is_absent.into());
    Ok(())
}

fn getset(call: &mut Call<'_>) -> Result<(), Error> {
    get(call)?;
    call.keys.put(call.args[1], Object::string(call.args[2]));
    Ok(())
}

fn getex(call: &mut Call<'_>) -> Result<(), Error> {
    let options = Options::parse(&call.args[2..], false)?;
    let key = call.args[1];
    get(call)?;
    let Some(object) = call.keys.get(key) else { return Ok(()) };
    // What is absent has answered before the time is looked at.
    let expiry = options.expiry(call.context.now, "getex")?;
    let is_removed = matches!(options.lifetime, Some((Lifetime::Persist, _))) && object.expiry.is_some();
    if expiry.is_some_and(|expiry| expiry <= call.context.now) {
        call.keys.remove(key);
    } else if (expiry.is_some() || is_removed)
        && let Some(object) = call.keys.change(key)
    {
        object.expiry = expiry;
    }
    Ok(())
}

/// Returns the keys and values of `MSET` or `MSETNX`.
fn pairs<'c>(call: &Call<'c>, command: &str) -> Result<&'c [[&'c [u8]; 2]], Error> {
    match call.args[1..].as_chunks() {
        (pairs, []) => Ok(pairs),
        _ => Err(Error::arity(command)),
    }
}

fn mset(call: &mut Call<'_>) -> Result<(), Error> {
    for [key, value] in pairs(call, "mset")? {
        call.keys.put(key, Object::string(*value));
    }
    call.ok();
    Ok(())
}

fn msetnx(call: &mut Call<'_>) -> Result<(), Error> {
    let pairs = pairs(call, "msetnx")?;
    let are_absent = pairs.iter().all(|[key, _]| call.keys.get(key).is_none());
    if are_absent {
        for [key, value] in pairs {
            call.keys.put(key, Object::string(*value));
        }
    }
    call.reply.integer(are_absent.into());
    Ok(())
}

fn append(call: &mut Call<'_>) -> Result<(), Error> {
    let (key, suffix) = (call.args[1], call.args[2]);
    let Some(string) = call.keys.string(key)? else {
        call.keys.put(key, Object::string(suffix));
        call.reply.integer(suffix.len() as i64);
        return Ok(());
    };
    check_length(string.len() + suffix.len())?;
    let string = change_raw(call)?;
    string.extend_from_slice(suffix);
    let length = string.len();
    call.reply.integer(length as i64);
    Ok(())
}

fn setrange(call: &mut Call<'_>) -> Result<(), Error> {
    let start = usize::try_from(call.integer(2)?).map_err(|_| Error::new("ERR offset is out of range"))?;
    let part = call.args[3];
    let mut length = call.keys.string(call.args[1])?.map_or(0, Vec::len);
    if !part.is_empty() {
        let end = start.saturating_add(part.len());
        check_length(end)?;
        let string = change_raw(call)?;
        string.resize(end.max(length), 0);
        string[start..end].copy_from_slice(part);
        length = string.len();
    }
    call.reply.integer(length as i64);
    Ok(())
}

/// Fails if no string may be as long.
fn check_length(length: usize) -> Result<(), Error> {
    if length > STRING_BYTES_MAX { Err(Error::STRING_TOO_LONG) } else { Ok(()) }
}

/// Returns the key's string, in order to change it in place. It has the encoding `raw` from now on.
fn change_raw<'a>(call: &'a mut Call<'_>) -> Result<&'a mut Vec<u8>, Error> {
    let key = call.args[1];
    call.keys.change_string(key)?;
    match call.keys.change(key) {
        Some(Object { value: Value::String(string), encoding, .. }) => {
            *encoding = Encoding::Raw;
            Ok(string)
        }
        _ => Err(Error::WRONG_TYPE),
    }
}

fn incr(call: &mut Call<'_>) -> Result<(), Error> {
    add(call, 1)
}

fn decr(call: &mut Call<'_>) -> Result<(), Error> {
    add(call, -1)
}

fn incrby(call: &mut Call<'_>) -> Result<(), Error> {
    add(call, call.integer(2)?)
}

fn decrby(call: &mut Call<'_>) -> Result<(), Error> {
    let amount = call.integer(2)?.checked_neg();
    add(call, amount.ok_or(Error::new("ERR decrement would overflow"))?)
}

/// Adds to the integer that the key's string is. An absent key counts as 0.
fn add(call: &mut Call<'_>, amount: i64) -> Result<(), Error> {
    let before = call.keys.string(call.args[1])?.map_or(Ok(0), |string| integer(string))?;
    let after = before.checked_add(amount).ok_or(Error::OVERFLOW)?;
    replace(call, number::Integer::new(after).as_ref().to_vec(), Encoding::Int);
    call.reply.integer(after);
    Ok(())
}

fn incrbyfloat(call: &mut Call<'_>) -> Result<(), Error> {
    let parse = |text: &[u8]| LongDouble::parse(text).ok_or(Error::NOT_FLOAT);
    let before = call.keys.string(call.args[1])?.map_or(parse(b"0"), |string| parse(string))?;
    let after = before.add(parse(call.args[2])?);
    let after = after.ok_or(Error::new("ERR increment would produce NaN or Infinity"))?;
    let mut text = Vec::new();
    after.write(&mut text);
    call.reply.bulk(&text);
    let encoding = Encoding::of_text(&text);
    replace(call, text, encoding);
    Ok(())
}

/// Sets the value of the key's string. The key keeps its expiry.
fn replace(call: &mut Call<'_>, string: Vec<u8>, encoding: Encoding) {
    let expiry = call.keys.get(call.args[1]).and_then(|object| object.expiry);
    call.keys.put(call.args[1], Object { value: string.into(), expiry, encoding });
}
