//! Former images: how a reader of a past time follows records back to their states at that time. In
//! `keep.rs` a writer keeps what it overwrites.
//!
//! ```text
//! writer   WRITE former images      to the client's archive, at the primaries of what it writes,
//!                                   ahead of its data; each new image names the place of its
//!                                   former one
//! reader   READ record              its time is above the reader's:
//!          READ former image        in the archive that the record names, at its primary;
//!                                   again, until an image is not later than the reader's time
//! ```
//!
//! # Why this is the state at that time
//!
//! Before the reader reads at a node, the node's clock has reached the reader's time (`landing.rs`,
//! invariant 1). So every commit whose time is not later has landed in the record that the reader
//! finds, or is still invisible there, and then the reader waits. The times of a record's images
//! ascend (invariant 3), and each image names the one before it. So the first image on the way back
//! that is not later is the state at the reader's time. It never changes any more.
//!
//! A key may have been deleted since, and inserted again in another slot of its chain. So if the
//! key's slot had no record of the key at that time, the reader looks at the other slots of the
//! chain as they were then.
//!
//! An image that was overwritten in its archive does not have the checksum that the record
//! names. Then the reader's time is too long ago ([`Limit::SnapshotTooOld`]).

use remora_fabric::{Address, NodeId, Round};
use remora_node::{Archive, Pointer};
use remora_record::{FetchedRecord, Former};

use super::again::look_up_again;
use super::words::{Outcome, check};
use crate::error::{Abort, Limit, Stop};
use crate::landing::Snapshot;
use crate::sets::{Fetch, Item, LocationSource, Part, Sets, shape};
use crate::tx::Tx;

/// Returns whether a transaction goes back to what a record was, because a commit with this time
/// has changed it.
///
/// A fresh snapshot goes back only in records that an earlier attempt has read, and only if its
/// time is not below anything that this attempt has found. So it misses nothing that was
/// acknowledged before it began.
pub(super) fn goes_back(
    (reads, snapshot): (Option<Snapshot>, Option<u64>),
    (seen, seen_time): (&[Pointer], u64),
    record: Pointer,
    time: u64,
) -> bool {
    let Some(snapshot) = snapshot.filter(|snapshot| time > *snapshot) else { return false };
    match reads {
        Some(Snapshot::At(_)) => !mutant!(PastTakesCurrent),
        Some(Snapshot::Fresh) => {
            let is_seen = seen.binary_search(&record).is_ok();
            is_seen && snapshot >= seen_time || mutant!(FormerOfUnseen) && !seen.is_empty()
        }
        Some(Snapshot::Strict) | None => false,
    }
}

/// Returns why a state of a record cannot be read. A fresh snapshot is taken again.
#[cold]
fn lost(tx: &mut Tx<'_>) -> Stop {
    if tx.attempt.reads_past() {
        return Limit::SnapshotTooOld.into();
    }
    tx.state.seen.clear();
    tx.state.clocks.fell_behind(tx.snapshot.unwrap_or(0) + 1, tx.trusts_known);
    Abort::Later.into()
}

/// Goes back from an image that is too late to its former one. `from` says how the record was
/// found.
pub(super) fn go_back(tx: &mut Tx<'_>, index: usize, former: Former, from: LocationSource) -> Result<Outcome, Stop> {
    tx.state.sets.items[index].former = former;
    if former == Former::EMPTY {
        return not_here(tx, index, from);
    }
    if former == Former::UNKNOWN {
        return Err(lost(tx));
    }
    tx.state.sets.items[index].fetch = Fetch::Former(from);
    Ok(Outcome::Done)
}

/// Looks on, because the slot had no record of the key at the reader's time.
fn not_here(tx: &mut Tx<'_>, index: usize, from: LocationSource) -> Result<Outcome, Stop> {
    if !tx.attempt.reads_past() {
        // It has not read the other slots of the chain before.
        return Err(lost(tx));
    }
    match from {
        LocationSource::Cached => look_up_again(tx, index),
        LocationSource::Probed(bucket, slot) => {
            let item = &mut tx.state.sets.items[index];
            item.fetch = Fetch::Probe(bucket, slot + 1);
            if mutant!(PastOwnSlot) {
                (item.fetch, item.seen) = (Fetch::Absent, true);
            }
            Ok(Outcome::Done)
        }
    }
}

/// Finds the archives of all former images that are to be read, which are not known yet.
pub(super) async fn find_archives(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let wants_one = |item: &Item| archive_of(item).is_some();
    while tx.state.sets.items[tx.state.sets.fetched..].iter().any(wants_one) {
        let mut round = tx.lane.round();
        let mut asked = Vec::new();
        for item in &tx.state.sets.items[tx.state.sets.fetched..] {
            let Some((node, slot)) = archive_of(item) else { continue };
            match tx.state.archives.of(node, slot) {
                Some(archive) if image_at(&tx.state.sets, item, archive).is_some() => {}
                Some(_) if !tx.state.archives.missed(node, slot) => return Err(lost(tx)),
                _ if asked.iter().any(|(at, _)| *at == (node, slot)) || !round.has_room(1, 64) => {}
                _ => asked.push(((node, slot), Archive::find(&mut round, node, slot))),
            }
        }
        if asked.is_empty() {
            break;
        }
        let done = tx.lane.execute(round).await?;
        for ((node, slot), read) in asked {
            tx.state.archives.note(node, slot, Archive::found(node, done.words(read)));
        }
    }
    Ok(())
}

/// Returns the node and the client slot of the archive in which an item's former image is to be
/// read, if one is.
fn archive_of(item: &Item) -> Option<(NodeId, u64)> {
    let is_wanted = matches!(item.fetch, Fetch::Former(_));
    let (slot, _) = item.former.place().filter(|_| is_wanted)?;
    Some((item.address.node, slot))
}

/// Returns the address of an item's former image in an archive, if it can be there.
fn image_at(sets: &Sets, item: &Item, archive: Option<Archive>) -> Option<Address> {
    let (_, place) = item.former.place()?;
    archive?.image_at(place, sets.shape(item).image_words())
}

/// Asks for the former image of an item's record, whose archive has been found.
pub(super) fn ask_former(tx: &mut Tx<'_>, round: &mut Round<'_>, index: usize) -> bool {
    let sets = &tx.state.sets;
    let item = &sets.items[index];
    let words = sets.shape(item).image_words();
    let archive = archive_of(item).and_then(|(node, slot)| tx.state.archives.of(node, slot)).flatten();
    let at = image_at(sets, item, archive).filter(|_| round.has_room(1, 8 * words));
    let Some(at) = at else { return false };
    tx.state.sets.items[index].read = round.read(at, 8 * words);
    tx.state.count(at.node, 8 * words);
    true
}

/// Takes a former image that has arrived.
pub(super) fn former_arrived(
    tx: &mut Tx<'_>,
    index: usize,
    image: &[u64],
    from: LocationSource,
) -> Result<Outcome, Stop> {
    let item = tx.state.sets.items[index];
    if !item.former.is(image) && !mutant!(TrustArchive) {
        return missed(tx, index);
    }
    let Some(snapshot) = tx.snapshot else { return Err(Abort::Later.into()) };
    let words: Vec<u64> = std::iter::once(0).chain(image.iter().copied()).collect();
    let Sets { tables, items, arena, .. } = &mut tx.state.sets;
    let item = &mut items[index];
    let Ok(record) = check(FetchedRecord::new(&words, shape(tables, item))) else {
        return Err(lost(tx));
    };
    if record.time() > snapshot {
        let former = record.former();
        return go_back(tx, index, former, from);
    }
    if !record.is_present() || !record.has_key(item.key_words(arena)) {
        return not_here(tx, index, from);
    }
    let before = *item;
    item.keep(arena, &record);
    (item.has, item.time) = (Part::Whole, record.time());
    tx.went_back = true;
    let item = &tx.state.sets.items[index];
    if !item.is_as(&before) {
        return Err(Abort::Changed.into());
    }
    Ok(Outcome::Done)
}

/// Has the archive found anew if it was found in an earlier fetch. If not, the image is lost.
#[cold]
fn missed(tx: &mut Tx<'_>, index: usize) -> Result<Outcome, Stop> {
    let item = &tx.state.sets.items[index];
    let may_be_elsewhere = archive_of(item).is_some_and(|(node, slot)| tx.state.archives.missed(node, slot));
    if may_be_elsewhere { Ok(Outcome::Done) } else { Err(lost(tx)) }
}
