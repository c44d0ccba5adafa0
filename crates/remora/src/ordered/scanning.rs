//! Ranges of a tree.

use std::ops::Bound;

use remora_index::btree::NODE_BYTES;
use remora_txn::Intent;

use super::keys::{TreeKey, ends, neighbour};
use super::tree::{NodeView, Tree};
use crate::error::Error;
use crate::transaction::Transaction;

/// Leaves of 992 bytes that a scan asks for at a time: as many as one round has room for, under
/// every protocol.
const AHEAD_MAX: usize = 60;
/// Leaves that a scan asks for at a time, however small they are.
const AHEAD_LEAVES_MAX: usize = 120;

/// Which end of a range a scan begins at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Ascending,
    Descending,
}

/// What a scan has found: entries of leaves.
struct Found<R, M> {
    limit: usize,
    rows: Vec<R>,
    /// If values are out of line: keys instead of rows.
    keys: Vec<TreeKey>,
    make: M,
}

impl<R, M: Fn(&[u8], &[u8]) -> Result<R, Error>> Found<R, M> {
    /// How many more there may be.
    fn left(&self) -> usize {
        self.limit - self.rows.len().max(self.keys.len())
    }

    /// Takes entries of a leaf, as long as their keys are of the range, and there are not enough.
    fn take(
        &mut self,
        tree: &Tree,
        leaf: &NodeView<'_>,
        entries: impl Iterator<Item = usize>,
        is_of_range: impl Fn(&[u8]) -> bool,
    ) -> Result<(), Error> {
        for at in entries {
            let key = leaf.key(at);
            if self.left() == 0 || !is_of_range(&key) {
                break;
            }
            match tree.values {
                None => self.rows.push((self.make)(&key, leaf.value(at))?),
                Some(_) => self.keys.push(TreeKey::of(&key)),
            }
        }
        Ok(())
    }
}

impl Tree {
    /// What `make` makes of keys of a range and of their values, in order: at most `limit`.
    pub(super) async fn scan<R>(
        &self,
        tx: &mut Transaction<'_, '_>,
        range: (Bound<TreeKey>, Bound<TreeKey>),
        (order, limit): (Order, usize),
        make: impl Fn(&[u8], &[u8]) -> Result<R, Error>,
    ) -> Result<Vec<R>, Error> {
        let mut found = Found { limit, rows: Vec::new(), keys: Vec::new(), make };
        let Some((from, to)) = ends(range, &self.shape) else { return Ok(found.rows) };
        match order {
            Order::Ascending => self.ascend(tx, (from.clone(), to.clone()), &mut found).await?,
            Order::Descending => self.descend_keys(tx, (from.clone(), to.clone()), &mut found).await?,
        }
        let Some(values) = &self.values else { return Ok(found.rows) };
        let fetched = values.fetch_all(tx, found.keys.iter().map(TreeKey::bytes)).await?;
        for (key, value) in found.keys.iter().zip(&fetched) {
            found.rows.push((found.make)(key.bytes(), &values.value(tx, key.bytes(), value)?)?);
        }
        if self.shape.is_slotted() {
            return Ok(found.rows); // records are not in the order of their keys
        }
        // The last key that has been looked for.
        let end = if found.rows.len() == limit { found.keys.last().cloned() } else { None };
        let (first, last) = match order {
            Order::Ascending => (from, end.unwrap_or(to)),
            Order::Descending => (end.unwrap_or(from), to),
        };
        if limit > 0 {
            tx.note_scan(values.heads().handle(), first.bytes(), last.bytes())?;
        }
        Ok(found.rows)
    }

    async fn ascend<R>(
        &self,
        tx: &mut Transaction<'_, '_>,
        (mut from, to): (TreeKey, TreeKey),
        found: &mut Found<R, impl Fn(&[u8], &[u8]) -> Result<R, Error>>,
    ) -> Result<(), Error> {
        let own = self.directory.of_an_operation();
        let directory = own.as_ref().unwrap_or(&self.directory);
        let (mut ahead, ahead_max) = (0, (AHEAD_MAX * NODE_BYTES / self.shape.bytes_of(0)).min(AHEAD_LEAVES_MAX));
        while found.left() > 0 {
            if ahead == 0 {
                // Not more than it probably needs: others' changes of leaves that are not needed
                // would be conflicts.
                let leaves = directory.leaves_of(found.left()).min(ahead_max);
                let known = directory.chain(from.bytes(), to.bytes(), leaves);
                for id in &known {
                    self.name_node(tx, &self.leaves, *id, Intent::Read);
                }
                tx.fetch().await?;
                ahead = known.len();
            }
            ahead = ahead.saturating_sub(1);
            let leaf = self.leaf(tx, directory, from.bytes(), Intent::Read).await?;
            let leaf = self.seen(tx, leaf)?;
            directory.seen(leaf.count());
            let start = leaf.find(from.bytes()).unwrap_or_else(|at| at);
            found.take(self, &leaf, start..leaf.count(), |key| key <= to.bytes())?;
            match leaf.high().map(|high| TreeKey::of(&high)) {
                Some(high) if from < high && high <= to => from = high,
                _ => break,
            }
        }
        Ok(())
    }

    async fn descend_keys<R>(
        &self,
        tx: &mut Transaction<'_, '_>,
        (from, mut to): (TreeKey, TreeKey),
        found: &mut Found<R, impl Fn(&[u8], &[u8]) -> Result<R, Error>>,
    ) -> Result<(), Error> {
        let own = self.directory.of_an_operation();
        let directory = own.as_ref().unwrap_or(&self.directory);
        while found.left() > 0 {
            let leaf = self.leaf(tx, directory, to.bytes(), Intent::Read).await?;
            let leaf = self.seen(tx, leaf)?;
            let behind = leaf.find(to.bytes()).map_or_else(|at| at, |at| at + 1);
            found.take(self, &leaf, (0..behind).rev(), |key| key >= from.bytes())?;
            match neighbour(&leaf.low(), true, &self.shape) {
                Some(before) if from <= before && before < to => to = before,
                _ => break,
            }
        }
        Ok(())
    }
}
