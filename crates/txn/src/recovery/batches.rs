//! Rounds that do one step of recovery for many records.

use std::collections::BTreeSet;

use remora_fabric::limits::{ROUND_BYTES_MAX, ROUND_VERBS_MAX};
use remora_fabric::{NodeId, Round};

use crate::limits::LOG_NODES_MAX;

/// The largest number of verbs of a batch. Its round also has room for a flush of each node.
pub(super) const BATCH_VERBS_MAX: usize = ROUND_VERBS_MAX - LOG_NODES_MAX;

/// The largest number of bytes of a batch. There is also room for a piece of a log entry.
const BATCH_BYTES_MAX: usize = ROUND_BYTES_MAX / 2;

/// Bytes of a round that a CAS takes, at most.
pub(super) const SWAP_BYTES: usize = 32;

/// Splits items into batches, each of which fits one round. `cost` gives the number of verbs and of
/// bytes of an item. An item that costs more than a batch may is a batch of its own.
pub(super) fn batches<T>(items: &[T], cost: impl Fn(&T) -> (usize, usize)) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let (mut verbs, mut bytes) = (0, 0);
        let fits = |item: &T| {
            let (more_verbs, more_bytes) = cost(item);
            (verbs, bytes) = (verbs + more_verbs, bytes + more_bytes);
            verbs <= BATCH_VERBS_MAX && bytes <= BATCH_BYTES_MAX
        };
        let count = rest.iter().map(fits).take_while(|fits| *fits).count().max(1);
        let (batch, after) = rest.split_at_checked(count)?;
        rest = after;
        Some(batch)
    })
}

/// Adds to a round a flush of each of these nodes.
pub(super) fn flush_all(round: &mut Round<'_>, nodes: impl Iterator<Item = NodeId>) {
    let nodes: BTreeSet<NodeId> = nodes.collect();
    nodes.into_iter().for_each(|node| round.flush(node));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_as_large_as_a_round_allows() {
        let sizes = |items: &[(usize, usize)]| batches(items, |item| *item).map(<[_]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(&[]), []);
        assert_eq!(sizes(&[(1, 8); 3]), [3]);
        assert_eq!(sizes(&[(1, 8); 2 * BATCH_VERBS_MAX + 1]), [BATCH_VERBS_MAX, BATCH_VERBS_MAX, 1]);
        assert_eq!(sizes(&[(1, BATCH_BYTES_MAX / 2); 5]), [2, 2, 1]);
        // What fits no batch goes alone, and its round says that it is full.
        assert_eq!(sizes(&[(1, 8), (1, ROUND_BYTES_MAX), (1, 8)]), [1, 1, 1]);
    }
}
