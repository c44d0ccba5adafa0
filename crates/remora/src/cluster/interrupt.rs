//! The flag that a program sets to interrupt calls that it has begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remora_node::MemoryError;

/// Returns whether the program has set the flag, if there is one.
pub(super) fn is_set(interrupt: Option<&Arc<AtomicBool>>) -> bool {
    interrupt.is_some_and(|interrupt| interrupt.load(Ordering::Relaxed))
}

/// Fails if the program has set the flag.
pub(super) fn unless_set(interrupt: Option<&Arc<AtomicBool>>) -> Result<(), MemoryError> {
    if is_set(interrupt) { Err(MemoryError::Interrupted) } else { Ok(()) }
}
