//! The CAS of a lock word, as a verb of a round.

use remora_fabric::{Address, Round, SwapHandle};
use remora_record::Swap;

/// Adds to a round the CAS that changes a lock word.
#[inline]
pub(crate) fn swap_lock(round: &mut Round<'_>, at: Address, swap: Swap) -> SwapHandle {
    round.compare_swap(at, swap.from.to_bits(), swap.to.to_bits())
}
