//! `COMMAND`: what clients ask about commands.

use std::collections::HashMap;
use std::sync::LazyLock;

use remora_redis::call::integer;
use remora_redis::{Command, Error, Keys, find, table};
use remora_resp::{ReplyWriter, glob};

/// A command as `COMMAND` describes it.
#[derive(Clone, Copy)]
struct Described {
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    categories: &'static [&'static str],
    keys: Keys,
    has_subcommands: bool,
}

impl Described {
    fn of(command: &Command) -> Described {
        let Command { name, arity, flags, categories, keys, .. } = *command;
        Described { name, arity, flags, categories, keys, has_subcommands: false }
    }

    /// Returns all commands that are not subcommands.
    fn all() -> impl Iterator<Item = Described> {
        let containers = table::CONTAINERS.iter().map(|container| Described {
            name: container.name,
            arity: container.arity,
            flags: container.flags,
            categories: container.categories,
            keys: Keys::None,
            has_subcommands: true,
        });
        let is_container = |name| table::CONTAINERS.iter().any(|container| container.name == name);
        let simple = table::all().filter(move |command| !command.name.contains('|') && !is_container(command.name));
        containers.chain(simple.map(Described::of))
    }

    /// Returns all commands, each with its subcommands behind it.
    fn all_with_subcommands() -> impl Iterator<Item = Described> {
        Described::all().flat_map(|command| [command].into_iter().chain(command.subcommands()))
    }

    fn subcommands(self) -> impl Iterator<Item = Described> {
        let is_mine = move |command: &&Command| {
            self.has_subcommands && command.name.strip_prefix(self.name).is_some_and(|rest| rest.starts_with('|'))
        };
        table::all().filter(is_mine).map(Described::of)
    }

    fn find(name: &[u8]) -> Option<Described> {
        let name = name.to_ascii_lowercase();
        Described::all_with_subcommands().find(|command| command.name.as_bytes() == name)
    }

    /// Returns the places of the first and the last key, and their distance.
    fn range(&self) -> [i64; 3] {
        match self.keys {
            Keys::Range { first, last, step } => [first as i64, last as i64, step as i64],
            Keys::Counted { has_destination: true, .. } | Keys::Move => [1, 1, 1],
            Keys::Copy => [1, 2, 1],
            Keys::None | Keys::Counted { .. } => [0, 0, 0],
        }
    }

    fn write(&self, reply: &mut ReplyWriter<'_>) {
        reply.array(10);
        reply.bulk(self.name);
        reply.integer(self.arity);
        let has_movable = matches!(self.keys, Keys::Counted { .. }) && !self.flags.contains(&"movablekeys");
        reply.set(self.flags.len() + usize::from(has_movable));
        self.flags.iter().for_each(|flag| reply.simple(flag));
        if has_movable {
            reply.simple("movablekeys");
        }
        self.range().into_iter().for_each(|number| reply.integer(number));
        reply.set(self.categories.len());
        self.categories.iter().for_each(|category| reply.simple(format!("@{category}")));
        let facts = FACTS.get(self.name);
        let tips = facts.map_or(&[][..], |facts| &facts.tips);
        reply.set(tips.len());
        tips.iter().for_each(|tip| reply.bulk(tip));
        self.write_keys(facts, reply);
        let subcommands: Vec<_> = self.subcommands().collect();
        if self.has_subcommands {
            reply.array(subcommands.len());
        } else {
            reply.set(0);
        }
        subcommands.iter().for_each(|subcommand| subcommand.write(reply));
    }

    /// Writes where keys are, one map for each group of keys.
    fn write_keys(&self, facts: Option<&Facts>, reply: &mut ReplyWriter<'_>) {
        let groups = facts.map_or(&[][..], |facts| &facts.keys);
        reply.set(groups.len());
        let [first, last, step] = self.range();
        for (group, flags) in groups.iter().enumerate() {
            reply.map(3);
            reply.bulk("flags");
            reply.set(flags.len());
            flags.iter().for_each(|flag| reply.simple(flag));
            reply.bulk("begin_search");
            let is_counted = group + 1 == groups.len() && matches!(self.keys, Keys::Counted { .. });
            let begin = match self.keys {
                Keys::Counted { count, .. } if is_counted => count as i64,
                _ => first + group as i64,
            };
            kind_and_spec(reply, "index", &[("index", begin)]);
            reply.bulk("find_keys");
            if is_counted {
                kind_and_spec(reply, "keynum", &[("keynumidx", 0), ("firstkey", 1), ("keystep", 1)]);
                continue;
            }
            let is_last = group + 1 == groups.len();
            let end = if !is_last {
                0
            } else if last < 0 {
                last
            } else {
                last - begin
            };
            kind_and_spec(reply, "range", &[("lastkey", end), ("keystep", step), ("limit", 0)]);
        }
    }
}

fn kind_and_spec(reply: &mut ReplyWriter<'_>, kind: &str, numbers: &[(&str, i64)]) {
    reply.map(2);
    reply.bulk("type");
    reply.bulk(kind);
    reply.bulk("spec");
    reply.map(numbers.len());
    for (name, number) in numbers {
        reply.bulk(name);
        reply.integer(*number);
    }
}

/// What is in `command.txt` about a command.
#[derive(Debug, Default)]
struct Facts {
    /// The flags of each group of keys.
    keys: Vec<Vec<&'static str>>,
    tips: Vec<&'static str>,
}

static FACTS: LazyLock<HashMap<&'static str, Facts>> = LazyLock::new(|| {
    let mut all: HashMap<&'static str, Facts> = HashMap::new();
    for line in include_str!("command.txt").lines().filter(|line| !line.starts_with('#')) {
        let Some((head, names)) = line.rsplit_once(": ") else { continue };
        for name in names.split(' ') {
            let facts = all.entry(name).or_default();
            if let Some(groups) = head.strip_prefix("keys ") {
                facts.keys = groups.split(", ").map(|flags| flags.split(' ').collect()).collect();
            } else if let Some(tips) = head.strip_prefix("tips ") {
                facts.tips = tips.split(' ').collect();
            }
        }
    }
    all
});

/// Answers `COMMAND`, and `COMMAND INFO`.
pub(super) fn info(names: &[&[u8]], reply: &mut ReplyWriter<'_>) {
    if names.is_empty() {
        let all: Vec<_> = Described::all().collect();
        reply.array(all.len());
        all.iter().for_each(|command| command.write(reply));
        return;
    }
    reply.array(names.len());
    for name in names {
        match Described::find(name) {
            Some(command) => command.write(reply),
            None => reply.null(),
        }
    }
}

/// Returns the number of commands.
pub(super) fn count() -> i64 {
    Described::all().count() as i64
}

/// Answers `COMMAND LIST`.
pub(super) fn list(options: &[&[u8]], reply: &mut ReplyWriter<'_>) -> Result<(), Error> {
    let names: Vec<&str> = match options {
        [] => Described::all().map(|command| command.name).collect(),
        [filter, kind, value] if filter.eq_ignore_ascii_case(b"filterby") => {
            match kind.to_ascii_lowercase().as_slice() {
                b"module" => Vec::new(),
                b"aclcat" => in_category(value),
                b"pattern" => {
                    let value = value.to_ascii_lowercase();
                    let all = Described::all_with_subcommands();
                    all.map(|command| command.name).filter(|name| glob::matches(&value, name.as_bytes())).collect()
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        _ => return Err(Error::SYNTAX),
    };
    reply.array(names.len());
    names.iter().for_each(|name| reply.bulk(name));
    Ok(())
}

/// Returns the names of the commands and subcommands of a category.
pub(super) fn in_category(category: &[u8]) -> Vec<&'static str> {
    let category = category.to_ascii_lowercase();
    let all = Described::all_with_subcommands();
    let is_in = |command: &Described| command.categories.iter().any(|one| one.as_bytes() == category);
    all.filter(is_in).map(|command| command.name).collect()
}

/// Answers `COMMAND GETKEYS` and `COMMAND GETKEYSANDFLAGS`.
pub(super) fn get_keys(args: &[&[u8]], has_flags: bool, reply: &mut ReplyWriter<'_>) -> Result<(), Error> {
    let command = find(args).map_err(|_| Error::new("ERR Invalid command specified"))?;
    if command.keys == Keys::None {
        return Err(Error::new("ERR The command has no key arguments"));
    }
    if command.check(args).is_err() {
        return Err(Error::new("ERR Invalid number of arguments specified for command"));
    }
    if let Keys::Counted { count, .. } = command.keys {
        let number = integer(args[count]).ok().and_then(|number| usize::try_from(number).ok());
        if number.is_none_or(|number| number == 0 || number >= args.len() - count) {
            return Err(Error::new("ERR Invalid arguments specified for command"));
        }
    }
    let places = command.places(args);
    reply.array(places.len());
    for (order, place) in places.into_iter().enumerate() {
        if has_flags {
            reply.array(2);
        }
        reply.bulk(args[place]);
        if has_flags {
            let flags = flags_of(command, args, order);
            reply.set(flags.len());
            flags.iter().for_each(|flag| reply.simple(flag));
        }
    }
    Ok(())
}

/// Returns the flags of a key. `order` is its place among the keys of the call.
fn flags_of(command: &Command, args: &[&[u8]], order: usize) -> &'static [&'static str] {
    if command.name == "set" {
        let gets = args[3..].iter().any(|word| word.eq_ignore_ascii_case(b"get"));
        return if gets { &["RW", "access", "update"] } else { &["OW", "update"] };
    }
    let Some(groups) = FACTS.get(command.name).map(|facts| &facts.keys) else { return &[] };
    groups.get(order).or(groups.last()).map_or(&[], |flags| flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_tell_of_the_keys_of_all_commands_that_have_some() {
        for command in Described::all_with_subcommands() {
            let has_keys = command.keys != Keys::None;
            let groups = FACTS.get(command.name).map_or(0, |facts| facts.keys.len());
            assert_eq!(has_keys, groups > 0, "{}", command.name);
        }
    }
}
