//! The commands of Redis as functions of the values of the keys that they name. They do no I/O and
//! know no clock: who calls them fetches the values, runs the commands, and stores what has
//! changed.
//!
//! | module | what |
//! | --- | --- |
//! | [`table`] | all commands, by name |
//! | [`command`] | what is known of a command: arity, flags, keys, and what runs it |
//! | [`commands`] | what runs commands: one module a group |
//! | [`call`] | a call of a command: its arguments, its keys, its reply |
//! | [`keyspace`] | the values that a batch of commands uses |
//! | [`object`] | values, with their types, expiries and encodings |
//! | [`collections`] | hashes, sets, lists and sorted sets, whole or in parts |
//! | [`tree`] | the pages of a collection of which only parts are loaded |
//! | `spread` | from collections that are whole to the others, and back |
//! | `listpack` | the encoding of small collections in Redis |
//! | [`packed`] | values to bytes, and back |
//! | [`error`](mod@error) | the errors, in Redis' words |
//!
//! # Rules
//!
//! 1. **A command that fails has changed nothing.** It looks at its arguments and at the types of
//!    its keys before its first change.
//! 2. **A command notes an object as changed only if it changes it** ([`Keyspace::change`]). What
//!    is not changed is not written, and `WATCH` does not notice it.
//! 3. **A command reads and changes only keys that its row in the table names.** Who calls it has
//!    fetched no others.
//! 4. **No object is empty.** [`run`] deletes a collection that a command has emptied.
//! 5. **A key that has expired is absent.** [`Keyspace::expire`] deletes it.
//! 6. **An answer counts only if everything that the command needed was loaded**
//!    ([`Keyspace::is_short`]). Otherwise, who calls it loads what is wanted, and runs it again on
//!    values that no command has changed.
//!
//! ```
//! use remora_redis::{Context, Keyspace, find, run};
//! use remora_resp::Version;
//!
//! let (mut keys, mut context, mut out) = (Keyspace::default(), Context::default(), Vec::new());
//! for arguments in [&[b"INCRBY" as &[u8], b"hits", b"41"][..], &[b"INCR", b"hits"]] {
//!     let command = find(arguments).unwrap();
//!     for (database, key) in command.keys_of(arguments, 0) {
//!         keys.load(database, key, |_, _| None);
//!     }
//!     run(command, arguments, &mut keys, &mut context, Version::Resp2, &mut out);
//! }
//! assert_eq!(out, b":41\r\n:42\r\n");
//! ```
#![forbid(unsafe_code)]

pub mod call;
pub mod collections;
pub mod command;
pub mod commands;
pub mod error;
pub mod footprint;
pub mod keyspace;
mod listpack;
pub mod object;
pub mod packed;
mod spread;
pub mod table;
pub mod tree;

pub use call::{Call, Context};
pub use command::{Command, Keys, Run, run};
pub use error::Error;
pub use keyspace::Keyspace;
pub use object::{Encoding, Hash, Limits, List, Object, Set, SortedSet, Value};
pub use table::find;
