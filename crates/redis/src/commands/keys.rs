//! Commands of keys of any type.

use crate::call::{Call, integer};
use crate::command::{Command, DATABASES, Keys, Run};
use crate::error::Error;
use crate::object::{Encoding, Object, Value};
use crate::{footprint, packed};

/// The rows of the table.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "del",
        arity: -2,
        flags: &["write"],
        categories: &["keyspace", "write", "slow"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(del),
    },
    Command {
        name: "unlink",
        arity: -2,
        flags: &["write", "fast"],
        categories: &["keyspace", "write", "fast"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(unlink),
    },
    Command {
        name: "rename",
        arity: 3,
        flags: &["write"],
        categories: &["keyspace", "write", "slow"],
        keys: Keys::Range { first: 1, last: 2, step: 1 },
        run: Run::Keys(rename),
    },
    Command {
        name: "renamenx",
        arity: 3,
        flags: &["write", "fast"],
        categories: &["keyspace", "write", "fast"],
        keys: Keys::Range { first: 1, last: 2, step: 1 },
        run: Run::Keys(renamenx),
    },
    Command {
        name: "exists",
        arity: -2,
        flags: &["readonly", "fast"],
        categories: &["keyspace", "read", "fast"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(exists),
    },
    Command {
        name: "type",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["keyspace", "read", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(type_),
    },
    Command {
        name: "ttl",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["keyspace", "read", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(ttl),
    },
    Command {
        name: "pttl",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["keyspace", "read", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(pttl),
    },
    Command {
        name: "expire",
        arity: -3,
        flags: &["write", "fast"],
        categories: &["keyspace", "write", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(expire),
    },
    Command {
        name: "expireat",
        arity: -3,
        flags: &["write", "fast"],
        categories: &["keyspace", "write", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(expireat),
    },
    Command {
        name: "pexpire",
        arity: -3,
        flags: &["write", "fast"],
        categories: &["keyspace", "write", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(pexpire),
    },
    Command {
        name: "pexpireat",
        arity: -3,
        flags: &["write", "fast"],
        categories: &["keyspace", "write", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(pexpireat),
    },
    Command {
        name: "expiretime",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["keyspace", "read", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(expiretime),
    },
    Command {
        name: "pexpiretime",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["keyspace", "read", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(pexpiretime),
    },
    Command {
        name: "persist",
        arity: 2,
        flags: &["write", "fast"],
        categories: &["keyspace", "write", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(persist),
    },
    Command {
        name: "touch",
        arity: -2,
        flags: &["readonly", "fast"],
        categories: &["keyspace", "read", "fast"],
        keys: Keys::Range { first: 1, last: -1, step: 1 },
        run: Run::Keys(touch),
    },
    Command {
        name: "move",
        arity: 3,
        flags: &["write", "fast"],
        categories: &["keyspace", "write", "fast"],
        keys: Keys::Move,
        run: Run::Keys(move_),
    },
    Command {
        name: "copy",
        arity: -3,
        flags: &["write", "denyoom"],
        categories: &["keyspace", "write", "slow"],
        keys: Keys::Copy,
        run: Run::Keys(copy),
    },
    Command {
        name: "object|encoding",
        arity: 3,
        flags: &["readonly"],
        categories: &["keyspace", "read", "slow"],
        keys: Keys::Range { first: 2, last: 2, step: 1 },
        run: Run::Keys(object_encoding),
    },
    Command {
        name: "object|freq",
        arity: 3,
        flags: &["readonly"],
        categories: &["keyspace", "read", "slow"],
        keys: Keys::Range { first: 2, last: 2, step: 1 },
        run: Run::Keys(object_freq),
    },
    Command {
        name: "object|idletime",
        arity: 3,
        flags: &["readonly"],
        categories: &["keyspace", "read", "slow"],
        keys: Keys::Range { first: 2, last: 2, step: 1 },
        run: Run::Keys(object_idletime),
    },
    Command {
        name: "object|refcount",
        arity: 3,
        flags: &["readonly"],
        categories: &["keyspace", "read", "slow"],
        keys: Keys::Range { first: 2, last: 2, step: 1 },
        run: Run::Keys(object_refcount),
    },
    Command {
        name: "memory|usage",
        arity: -3,
        flags: &["readonly"],
        categories: &["read", "slow"],
        keys: Keys::Range { first: 2, last: 2, step: 1 },
        run: Run::Keys(memory_usage),
    },
];

fn del(call: &mut Call<'_>) -> Result<(), Error> {
    let removed = call.args[1..].iter().filter(|key| call.keys.remove(key).is_some()).count();
    call.reply.integer(removed as i64);
    Ok(())
}

fn unlink(call: &mut Call<'_>) -> Result<(), Error> {
    del(call)
}

fn exists(call: &mut Call<'_>) -> Result<(), Error> {
    let found = call.args[1..].iter().filter(|key| call.keys.get(key).is_some()).count();
    call.reply.integer(found as i64);
    Ok(())
}

fn touch(call: &mut Call<'_>) -> Result<(), Error> {
    exists(call)
}

fn type_(call: &mut Call<'_>) -> Result<(), Error> {
    call.reply.simple(call.keys.get(call.args[1]).map_or("none", |object| object.value.type_name()));
    Ok(())
}

fn rename(call: &mut Call<'_>) -> Result<(), Error> {
    let (source, target) = (call.args[1], call.args[2]);
    call.keys.get(source).ok_or(Error::NO_SUCH_KEY)?;
    if source != target
        && let Some(object) = call.keys.remove(source)
    {
        call.keys.put(target, object);
    }
    call.ok();
    Ok(())
}

fn renamenx(call: &mut Call<'_>) -> Result<(), Error> {
    let (source, target) = (call.args[1], call.args[2]);
    call.keys.get(source).ok_or(Error::NO_SUCH_KEY)?;
    let mut is_renamed = false;
    if call.keys.get(target).is_none()
        && let Some(object) = call.keys.remove(source)
    {
        call.keys.put(target, object);
        is_renamed = true;
    }
    call.reply.integer(is_renamed.into());
    Ok(())
}

const SAME_OBJECT: Error = Error::new("ERR source and destination objects are the same");

/// Returns an argument as the number of a database.
fn database(argument: &[u8]) -> Result<u8, Error> {
    let number = integer(argument)?;
    i32::try_from(number).map_err(|_| Error::new(DATABASE_RANGE))?;
    u8::try_from(number).ok().filter(|database| *database < DATABASES).ok_or(Error::NO_SUCH_DATABASE)
}

const DATABASE_RANGE: &str = "ERR value is out of range, value must between -2147483648 and 2147483647";

fn move_(call: &mut Call<'_>) -> Result<(), Error> {
    let (key, target) = (call.args[1], database(call.args[2])?);
    if target == call.context.database {
        return Err(SAME_OBJECT);
    }
    let mut is_moved = false;
    if call.keys.get_in(target, key).is_none()
        && let Some(object) = call.keys.remove(key)
    {
        call.keys.put_in(target, key, object);
        is_moved = true;
    }
    call.reply.integer(is_moved.into());
    Ok(())
}

fn copy(call: &mut Call<'_>) -> Result<(), Error> {
    let (source, target) = (call.args[1], call.args[2]);
    let (mut target_database, mut is_replaced) = (call.context.database, false);
    let mut words = call.args[3..].iter();
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"REPLACE") {
            is_replaced = true;
        } else if word.eq_ignore_ascii_case(b"DB") {
            target_database = database(words.next().ok_or(Error::SYNTAX)?)?;
        } else {
            return Err(Error::SYNTAX);
        }
    }
    if (target_database, target) == (call.context.database, source) {
        return Err(SAME_OBJECT);
    }
    let may_set = is_replaced || call.keys.get_in(target_database, target).is_none();
    let object = call.keys.get(source).filter(|_| may_set).map(Object::copy);
    call.reply.integer(object.is_some().into());
    if let Some(object) = object {
        call.keys.put_in(target_database, target, object);
    }
    Ok(())
}

fn ttl(call: &mut Call<'_>) -> Result<(), Error> {
    let now = call.context.now;
    answer_expiry(call, |expiry| seconds(expiry.saturating_sub(now)))
}

fn pttl(call: &mut Call<'_>) -> Result<(), Error> {
    let now = call.context.now;
    answer_expiry(call, |expiry| expiry.saturating_sub(now))
}

fn expiretime(call: &mut Call<'_>) -> Result<(), Error> {
    answer_expiry(call, seconds)
}

fn pexpiretime(call: &mut Call<'_>) -> Result<(), Error> {
    answer_expiry(call, |expiry| expiry)
}

/// Returns the nearest number of seconds.
fn seconds(milliseconds: u64) -> u64 {
    milliseconds / 1000 + u64::from(milliseconds % 1000 >= 500)
}

/// Answers what a key's expiry is, in the given form: -2 if the key is absent, -1 if it has none.
fn answer_expiry(call: &mut Call<'_>, form: impl Fn(u64) -> u64) -> Result<(), Error> {
    let answer = match call.keys.get(call.args[1]) {
        None => -2,
        Some(Object { expiry: None, .. }) => -1,
        Some(Object { expiry: Some(expiry), .. }) => form(*expiry) as i64,
    };
    call.reply.integer(answer);
    Ok(())
}

fn expire(call: &mut Call<'_>) -> Result<(), Error> {
    set_expiry(call, 1000, call.context.now, "expire")
}

fn pexpire(call: &mut Call<'_>) -> Result<(), Error> {
    set_expiry(call, 1, call.context.now, "pexpire")
}

fn expireat(call: &mut Call<'_>) -> Result<(), Error> {
    set_expiry(call, 1000, 0, "expireat")
}

fn pexpireat(call: &mut Call<'_>) -> Result<(), Error> {
    set_expiry(call, 1, 0, "pexpireat")
}

/// Sets the expiry of a key to a time in units of `unit` milliseconds after `start`, if the options
/// allow it. A time that has passed deletes the key.
fn set_expiry(call: &mut Call<'_>, unit: i64, start: u64, command: &str) -> Result<(), Error> {
    let key = call.args[1];
    let conditions = Conditions::parse(&call.args[3..])?;
    let time = call.integer(2)?.checked_mul(unit).and_then(|time| time.checked_add_unsigned(start));
    let time = time.ok_or_else(|| Error::expiry(command))?;
    let is_set = call.keys.get(key).is_some_and(|object| conditions.allow(object.expiry, time));
    // A negative time is before 1970.
    let expiry = u64::try_from(time).unwrap_or(0);
    if !is_set {
    } else if expiry <= call.context.now {
        call.keys.remove(key);
    } else if let Some(object) = call.keys.change(key) {
        object.expiry = Some(expiry);
    }
    call.reply.integer(is_set.into());
    Ok(())
}

/// When `EXPIRE` sets an expiry.
#[derive(Default)]
struct Conditions {
    /// Only if there is none.
    is_absent: bool,
    /// Only if there is one.
    is_present: bool,
    /// Only if the new one is later. None is the latest.
    is_later: bool,
    /// Only if the new one is earlier.
    is_earlier: bool,
}

impl Conditions {
    fn parse(words: &[&[u8]]) -> Result<Conditions, Error> {
        let mut conditions = Conditions::default();
        for word in words {
            let condition = match word.to_ascii_uppercase().as_slice() {
                b"NX" => &mut conditions.is_absent,
                b"XX" => &mut conditions.is_present,
                b"GT" => &mut conditions.is_later,
                b"LT" => &mut conditions.is_earlier,
                _ => return Err(Error::of([b"ERR Unsupported option ", *word].concat())),
            };
            *condition = true;
        }
        let Conditions { is_absent, is_present, is_later, is_earlier } = conditions;
        if is_absent && (is_present || is_later || is_earlier) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(Error::new(text));
        }
        if is_later && is_earlier {
            return Err(Error::new("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    /// Returns whether an expiry may be replaced by this time.
    fn allow(&self, expiry: Option<u64>, time: i64) -> bool {
        let is_later = expiry.is_some_and(|expiry| time > expiry as i64);
        let is_earlier = expiry.is_none_or(|expiry| time < expiry as i64);
        (!self.is_absent || expiry.is_none())
            && (!self.is_present || expiry.is_some())
            && (!self.is_later || is_later)
            && (!self.is_earlier || is_earlier)
    }
}

fn persist(call: &mut Call<'_>) -> Result<(), Error> {
    let key = call.args[1];
    let has_expiry = call.keys.get(key).is_some_and(|object| object.expiry.is_some());
    if has_expiry && let Some(object) = call.keys.change(key) {
        object.expiry = None;
    }
    call.reply.integer(has_expiry.into());
    Ok(())
}

fn object_encoding(call: &mut Call<'_>) -> Result<(), Error> {
    match call.keys.get(call.args[2]) {
        Some(object) => call.reply.bulk(object.encoding.name()),
        None => call.reply.null(),
    }
    Ok(())
}

fn object_freq(call: &mut Call<'_>) -> Result<(), Error> {
    if call.keys.get(call.args[2]).is_some() {
        return Err(Error::new(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
             switching between policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    call.reply.null();
    Ok(())
}

/// Answers 0 seconds, because reads leave no trace at the memory nodes.
fn object_idletime(call: &mut Call<'_>) -> Result<(), Error> {
    match call.keys.get(call.args[2]) {
        Some(_) => call.reply.integer(0),
        None => call.reply.null(),
    }
    Ok(())
}

/// Answers what Redis does, where small integers are shared by all keys.
fn object_refcount(call: &mut Call<'_>) -> Result<(), Error> {
    match call.keys.get(call.args[2]) {
        Some(Object { encoding: Encoding::Int, value: Value::String(digits), .. })
            if digits.len() <= 4 && digits.first() != Some(&b'-') =>
        {
            call.reply.integer(i32::MAX.into());
        }
        Some(_) => call.reply.integer(1),
        None => call.reply.null(),
    }
    Ok(())
}

/// Answers the bytes of memory that one copy of a key takes ([`footprint`]). It counts all
/// elements, so `SAMPLES` is only parsed.
fn memory_usage(call: &mut Call<'_>) -> Result<(), Error> {
    let key = call.args[2];
    let mut words = call.args[3..].iter();
    while let Some(word) = words.next() {
        let samples = words.next().filter(|_| word.eq_ignore_ascii_case(b"SAMPLES"));
        if integer(samples.ok_or(Error::SYNTAX)?)? < 0 {
            return Err(Error::SYNTAX);
        }
    }
    match call.keys.get(key) {
        Some(object) => call.reply.integer(footprint::of_key(key, packed::length(object)) as i64),
        None => call.reply.null(),
    }
    Ok(())
}
