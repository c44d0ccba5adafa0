//! Ranges of an ordered table: scans, and the first or the last key of a range.

use std::ops::RangeBounds;

use remora_txn::Intent;

use super::keys::{encoded, ends, neighbour};
use super::tree::{CHANGED, NodeView, Ordered};
use crate::error::Error;
use crate::key::Key;
use crate::record::Record;
use crate::transaction::{Slot, Transaction};

/// A value that is to be replaced by another.
pub(super) fn nothing<V: Record>() -> V {
    V::decode(&vec![0; V::BYTES])
}

/// Leaves that a scan asks for at a time: as many as one round has room for, under every protocol.
const AHEAD_MAX: usize = 60;

impl<K: Key, V: Record> Ordered<K, V> {
    /// The first keys of a range and their values, in ascending order: at most `limit`. No other
    /// transaction inserts into or deletes from the part of the range that this one has seen,
    /// before this one commits. Otherwise this one aborts.
    pub async fn scan(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(K, V)>, Error> {
        let mut found = Vec::new();
        let Some((first, to)) = ends(&range) else { return Ok(found) };
        let mut from = first;
        let own = self.directory.of_an_operation();
        let directory = own.as_ref().unwrap_or(&self.directory);
        let mut ahead = 0;
        while found.len() < limit {
            if ahead == 0 {
                // Not more than it probably needs: others' changes of leaves that are not needed
                // would be conflicts.
                let leaves = directory.leaves_of(limit - found.len(), self.shape.capacity(0)).min(AHEAD_MAX);
                let known = directory.chain(&from, &to, leaves);
                for id in &known {
                    tx.want(&self.leaves, *id);
                }
                tx.fetch().await?;
                ahead = known.len();
            }
            ahead = ahead.saturating_sub(1);
            let leaf = self.leaf(tx, directory, &from, Intent::Read).await?;
            let leaf = self.seen(tx, leaf)?;
            directory.seen(leaf.count());
            let start = leaf.find(encoded(&from).bytes()).unwrap_or_else(|at| at);
            self.take(&leaf, start..leaf.count(), |key| key <= &to, limit, &mut found)?;
            match leaf.high().map(K::decode) {
                Some(high) if from < high && high <= to => from = high,
                _ => break,
            }
        }
        let last = if found.len() == limit { found.last().map(|(key, _)| *key) } else { Some(to) };
        self.bring_values(tx, &mut found, Some(first).zip(last)).await?;
        Ok(found)
    }

    /// The last keys of a range and their values, in descending order: at most `limit`. It takes a
    /// round trip for each leaf.
    pub async fn scan_back(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(K, V)>, Error> {
        let mut found = Vec::new();
        let Some((from, last)) = ends(&range) else { return Ok(found) };
        let mut to = last;
        let own = self.directory.of_an_operation();
        let directory = own.as_ref().unwrap_or(&self.directory);
        while found.len() < limit {
            let leaf = self.leaf(tx, directory, &to, Intent::Read).await?;
            let leaf = self.seen(tx, leaf)?;
            let behind = leaf.find(encoded(&to).bytes()).map_or_else(|at| at, |at| at + 1);
            self.take(&leaf, (0..behind).rev(), |key| key >= &from, limit, &mut found)?;
            match neighbour(&K::decode(leaf.low()), true) {
                Some(before) if from <= before && before < to => to = before,
                _ => break,
            }
        }
        let first = if found.len() == limit { found.last().map(|(key, _)| *key) } else { Some(from) };
        self.bring_values(tx, &mut found, first.zip(Some(last))).await?;
        Ok(found)
    }

    /// The values of what a scan has found between two keys, where they are out of line.
    async fn bring_values(
        &self,
        tx: &mut Transaction<'_, '_>,
        found: &mut [(K, V)],
        range: Option<(K, K)>,
    ) -> Result<(), Error> {
        let Some(values) = &self.values else { return Ok(()) };
        let slots: Vec<Slot<V>> = found.iter().map(|(key, _)| tx.want(values, *key)).collect();
        tx.fetch().await?;
        for ((_, value), slot) in found.iter_mut().zip(slots) {
            *value = slot.value(tx)?.ok_or(CHANGED)?;
        }
        if let Some((first, last)) = range {
            tx.note_scan(values, &first, &last)?;
        }
        Ok(())
    }

    /// Takes entries of a leaf, as long as their keys are of the range, and there are not enough.
    fn take(
        &self,
        leaf: &NodeView<'_>,
        entries: impl Iterator<Item = usize>,
        is_of_range: impl Fn(&K) -> bool,
        limit: usize,
        found: &mut Vec<(K, V)>,
    ) -> Result<(), Error> {
        for at in entries {
            let key = K::decode(leaf.key(at));
            if found.len() == limit || !is_of_range(&key) {
                break;
            }
            let value = if self.values.is_some() { nothing() } else { self.value(leaf, at)? };
            found.push((key, value));
        }
        Ok(())
    }

    /// The first key of a range.
    pub async fn first(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<K>,
    ) -> Result<Option<(K, V)>, Error> {
        Ok(self.scan(tx, range, 1).await?.pop())
    }

    /// The last key of a range.
    pub async fn last(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: impl RangeBounds<K>,
    ) -> Result<Option<(K, V)>, Error> {
        Ok(self.scan_back(tx, range, 1).await?.pop())
    }
}
