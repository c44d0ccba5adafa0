//! What is known of a command: its arity, its flags, its keys, and what runs it.

use remora_resp::{ReplyWriter, Version};
use smallvec::SmallVec;

use crate::call::{Call, Context, integer};
use crate::error::Error;
use crate::keyspace::Keyspace;

/// A command, or a subcommand.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The name in small letters. A subcommand is named `command|subcommand`.
    pub name: &'static str,
    /// The number of arguments, with the command's name. If it is negative, there may be more.
    pub arity: i64,
    /// What `COMMAND INFO` answers as flags.
    pub flags: &'static [&'static str],
    /// The categories of access control.
    pub categories: &'static [&'static str],
    /// Which arguments are keys.
    pub keys: Keys,
    /// What runs the command.
    pub run: Run,
}

/// What runs a command.
#[derive(Clone, Copy, Debug)]
pub enum Run {
    /// A function of the values of its keys.
    Keys(fn(&mut Call<'_>) -> Result<(), Error>),
    /// The gateway, because the command is about the connection, the server, or all keys.
    Elsewhere,
}

/// Which arguments of a command are keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keys {
    /// None.
    None,
    /// Every `step`th argument from `first` to `last`. If `last` is negative, it counts from the
    /// end: -1 is the last argument.
    Range {
        /// The first key.
        first: usize,
        /// The last key.
        last: isize,
        /// The distance of two keys.
        step: usize,
    },
    /// Argument `count` says how many keys follow it.
    Counted {
        /// The argument with the number of keys.
        count: usize,
        /// Whether argument 1 is a key, too.
        has_destination: bool,
    },
    /// The first two arguments. The second one may be in another database: `COPY`.
    Copy,
    /// The first argument, in two databases: `MOVE`.
    Move,
}

/// The number of databases.
pub const DATABASES: u8 = 16;

/// A list that is mostly short.
pub type Few<T> = SmallVec<[T; 2]>;

/// A key, and the number of its database.
pub type Named<'a> = (u8, &'a [u8]);

impl Command {
    /// Fails if a call has too few or too many arguments.
    pub fn check(&self, args: &[&[u8]]) -> Result<(), Error> {
        let count = args.len() as i64;
        let is_right = if self.arity < 0 { count >= -self.arity } else { count == self.arity };
        if is_right { Ok(()) } else { Err(Error::arity(self.name)) }
    }

    /// Returns whether the command has this flag.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// Returns the keys of a call, with their databases, of which `database` is the selected one.
    /// What is no number counts as 0, because the command itself will say so.
    pub fn keys_of<'a>(&self, args: &[&'a [u8]], database: u8) -> Few<Named<'a>> {
        let places = self.places(args);
        let mut keys: Few<_> = places.into_iter().map(|place| (database, args[place])).collect();
        let other = |text: &[u8]| integer(text).ok().and_then(|number| u8::try_from(number).ok());
        match self.keys {
            Keys::Move => keys.extend(other(args[2]).map(|other| (other, args[1]))),
            Keys::Copy => {
                let words = args.iter().enumerate().skip(3).filter(|(_, word)| word.eq_ignore_ascii_case(b"db"));
                let named = words.filter_map(|(place, _)| args.get(place + 1)).filter_map(|text| other(text));
                keys.extend(named.map(|other| (other, args[2])));
            }
            _ => {}
        }
        keys
    }

    /// Returns the places of the arguments of a call that are keys.
    pub fn places(&self, args: &[&[u8]]) -> Few<usize> {
        match self.keys {
            Keys::None => Few::new(),
            Keys::Range { first, last, step } => {
                let last = if last < 0 { args.len().saturating_add_signed(last) } else { last.unsigned_abs() };
                (first..=last.min(args.len() - 1)).step_by(step).collect()
            }
            Keys::Counted { count, has_destination } => {
                let number = args.get(count).and_then(|text| integer(text).ok()).unwrap_or(0);
                let number = usize::try_from(number).unwrap_or(0);
                let keys = (count + 1..args.len()).take(number);
                has_destination.then_some(1).into_iter().chain(keys).collect()
            }
            Keys::Copy => Few::from_slice(&[1, 2]),
            Keys::Move => Few::from_slice(&[1]),
        }
    }
}

/// Runs a command whose number of arguments is right ([`Command::check`]) and whose keys are
/// loaded. Writes one reply. Returns whether the command has succeeded. Commands that need more
/// than keys ([`Run::Elsewhere`]) are not for this function.
pub fn run(
    command: &Command,
    args: &[&[u8]],
    keys: &mut Keyspace,
    context: &mut Context,
    version: Version,
    out: &mut Vec<u8>,
) -> bool {
    let Run::Keys(run) = command.run else { unreachable!("{} needs more than keys", command.name) };
    keys.begin(context.database);
    let start = out.len();
    let mut call = Call { args, keys, context, reply: ReplyWriter::new(out, version), version };
    let result = run(&mut call);
    keys.settle(&context.limits);
    if let Err(error) = &result {
        debug_assert!(
            keys.is_short() || !keys.has_changed_now(),
            "rule 1: {} has failed, and changed something",
            command.name
        );
        out.truncate(start);
        ReplyWriter::new(out, version).error(error.text());
    }
    result.is_ok()
}
