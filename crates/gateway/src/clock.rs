//! The clocks of a gateway: how long something takes, and which time of day it is.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
