//! The clocks of a gateway: how long something takes, and which time of day it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The clock by which keys expire.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The clock of the machine.
    #[default]
    System,
    /// A clock that is set by hand, in milliseconds since 1970: a simulation has no time of day.
    Set(Arc<AtomicU64>),
}

impl Clock {
    /// Returns the time, in milliseconds since 1970.
    pub fn now(&self) -> u64 {
        match self {
            Clock::System => now(),
            Clock::Set(time) => time.load(Ordering::Relaxed),
        }
    }
}

/// Returns the time by the clock that never goes back.
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// Returns the time since 1970.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time, in milliseconds since 1970.
pub(crate) fn now() -> u64 {
    since_1970().as_millis() as u64
}
