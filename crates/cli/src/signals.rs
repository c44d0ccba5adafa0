//! Signals: the first one ends a command in order, the second one at once.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::Failure;

/// Returns a flag that the first signal sets, so that the command ends in order. The second signal
/// ends the command at once. A command calls this before it changes anything. A hangup, the end of
/// its terminal, is a signal like the others, unless the command was started to ignore it
/// (`nohup`).
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    const INTERRUPTED: i32 = 2;
    let stop = Arc::new(AtomicBool::new(false));
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        let second = signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, stop.clone());
        let first = second.and_then(|_| signal_hook::flag::register(signal, stop.clone()));
        first.map_err(|error| Failure::new("signals", error))?;
    }
    Ok(stop)
}

/// Returns whether this process was started to ignore a signal, as far as the system tells.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
