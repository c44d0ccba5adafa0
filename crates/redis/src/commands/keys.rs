//! Commands of keys of any type.

use crate::command::Command;

/// The rows of the table.
pub(crate) const COMMANDS: &[Command] = &[];
