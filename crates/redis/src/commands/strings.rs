//! Commands of strings.

use remora_resp::number;

use crate::call::{Call, integer};
use crate::command::{Command, Keys, Run};
use crate::error::Error;
use crate::object::{Encoding, Object};

/// The rows of the table.
pub(crate) const COMMANDS: &[Command] = &[
    Command {
        name: "get",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["read", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(get),
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
        name: "strlen",
        arity: 2,
        flags: &["readonly", "fast"],
        categories: &["read", "string", "fast"],
        keys: Keys::Range { first: 1, last: 1, step: 1 },
        run: Run::Keys(strlen),
    },
];

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

fn incr(call: &mut Call<'_>) -> Result<(), Error> {
    add(call, 1)
}

fn incrby(call: &mut Call<'_>) -> Result<(), Error> {
    add(call, call.integer(2)?)
}

/// Adds to the integer that the key's string is. An absent key counts as 0.
fn add(call: &mut Call<'_>, amount: i64) -> Result<(), Error> {
    let key = call.args[1];
    let before = call.keys.string(key)?.map_or(Ok(0), |string| integer(string))?;
    let after = before.checked_add(amount).ok_or(Error::OVERFLOW)?;
    let text = number::Integer::new(after);
    match call.keys.change(key) {
        Some(object) => (object.value, object.encoding) = (text.as_ref().to_vec().into(), Encoding::Int),
        None => _ = call.keys.put(key, Object::string(text.as_ref())),
    }
    call.reply.integer(after);
    Ok(())
}
