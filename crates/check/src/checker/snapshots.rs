//! The weaker level of snapshots: what is asked of transactions that read one, and of no other.
//!
//! Snapshots and all other transactions together are serializable. A snapshot also has everything
//! that had ended before it started, of the keys that it reads. But real time does not order it
//! with writers of other keys. So histories with snapshots are judged three times:
//!
//! 1. without the snapshots: strictly;
//! 2. with them: by what was read and written alone, without real time;
//! 3. each read of a snapshot: no later write of the key had ended before the snapshot started.
//!
//! A history may say of a snapshot that it is `serializable`, and no more. Then it is not judged
//! the third time.

use super::graph::{Edge, EdgeKind, Graph, Timing};
use super::search::{self, Knot};
use super::versions::{Chains, Evidence, VersionRead};
use super::{end_of, start_of};
use crate::history::{History, ReadState};

/// Returns whether a transaction read a snapshot.
fn is_snapshot(history: &History, node: u32) -> bool {
    history.transactions.get(node as usize).is_some_and(|row| row.snapshot)
}

/// Returns whether a history has snapshots.
pub(super) fn has_snapshots(history: &History) -> bool {
    history.transactions.iter().any(|row| row.snapshot)
}

/// Returns the knots of a history that has snapshots, and the number of further ones.
pub(super) fn knots(history: &History, timings: Vec<Timing>, edges: Vec<Edge>) -> (Vec<Knot>, usize) {
    let is_strict = |node: u32| !is_snapshot(history, node);
    let strict: Vec<Edge> = edges.iter().copied().filter(|edge| is_strict(edge.from) && is_strict(edge.to)).collect();
    let without: Vec<Timing> = timings
        .iter()
        .enumerate()
        .map(|(node, timing)| if is_strict(node as u32) { *timing } else { Timing::NEVER })
        .collect();
    let (mut found, mut omitted) = search::knots(&Graph::build(without, strict));
    let (all, more) = search::knots(&Graph::build(vec![Timing::NEVER; timings.len()], edges));
    // The others have been found above.
    found.extend(all.into_iter().filter(|knot| knot.cycle.iter().any(|edge| !is_strict(edge.from))));
    omitted += more;
    (found, omitted)
}

/// Returns the reads of snapshots that are too old: each as a cycle of the snapshot and of a writer
/// that had overwritten what the snapshot read before it started.
pub(super) fn stale_reads(
    history: &History,
    evidence: &Evidence,
    chains: &Chains,
    includes: impl Fn(u32) -> bool,
) -> Vec<Knot> {
    // For each version, the writer of a later version of the key that ended first.
    let mut first_behind = vec![None; chains.entries.len()];
    for key in 0..history.key_count() as u32 {
        let mut first: Option<(u64, u32)> = None;
        for number in chains.range(key).rev() {
            first_behind[number] = first;
            let entry = chains.entries[number];
            let end = (end_of(history, entry.writer), entry.writer);
            if !entry.maybe && first.is_none_or(|first| end < first) {
                first = Some(end);
            }
        }
    }
    let mut stale = Vec::new();
    for (node, row) in history.transactions.iter().enumerate() {
        let node = node as u32;
        if !row.snapshot || row.stale || !includes(node) {
            continue;
        }
        let scanned = row.scans.of(&history.scans).iter().flat_map(|scan| scan.entries.of(&history.scan_entries));
        for read in row.reads.of(&history.reads).iter().chain(scanned) {
            if read.state == ReadState::AbsentUnknown {
                continue;
            }
            let range = chains.range(read.key);
            let behind = match chains.find(read.key, evidence.resolve(read.key, read.version)) {
                VersionRead::Entry(number) => first_behind[number],
                // What the loader left is before the key's first version.
                VersionRead::BeforeAll => range.clone().next().and_then(|first| {
                    let entry = chains.entries[first];
                    let own = (!entry.maybe).then(|| (end_of(history, entry.writer), entry.writer));
                    own.into_iter().chain(first_behind[first]).min()
                }),
                VersionRead::Missing => None,
            };
            let Some((_, writer)) = behind.filter(|(end, _)| *end < start_of(history, node)) else { continue };
            let cycle = vec![Edge::new(node, writer, EdgeKind::ReadWrite, read.key), Edge::real_time(writer, node)];
            stale.push(Knot { cycle, size: 2 });
        }
    }
    stale
}
