//! Commands of sets.

use crate::command::Command;

/// The rows of the table.
pub(crate) const COMMANDS: &[Command] = &[];
