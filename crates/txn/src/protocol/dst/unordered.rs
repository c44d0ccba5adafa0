//! The times of `rc`: commits have times, as in `dst`, and no read heeds them.

use crate::error::Stop;

/// Returns the time of the newest version of every record.
pub(super) fn snapshot_time() -> Result<u64, Stop> {
    Ok(u64::MAX)
}
