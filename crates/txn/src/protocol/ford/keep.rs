//! A writer keeps what it overwrites in its archives, for readers of a past time (`former.rs`).

use remora_fabric::Round;
use remora_node::limits::FRAME_BYTES_MAX;
use remora_record::Former;

use crate::protocol::nodes;
use crate::sets::Sets;
use crate::tx::Tx;

/// The place in a client's archives of what a commit overwrites, and its length, in words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    place: u64,
    words: usize,
}

/// The largest number of words of former images that a commit keeps. The undo entry has to fit into
/// the same round.
const KEPT_WORDS_MAX: usize = FRAME_BYTES_MAX / 8 / 2;

/// Takes a place in the archive for what the commit overwrites, and names it in the new images.
/// Call it when all written records are locked, and before the images' checksums are taken.
pub(super) fn name_formers(tx: &mut Tx<'_>) -> Option<Kept> {
    let sets = &mut tx.state.sets;
    let words: usize = (0..sets.items.len()).filter_map(|at| kept(sets, at)).map(<[u64]>::len).sum();
    let place = if words > KEPT_WORDS_MAX { None } else { tx.state.archives.take(words) };
    let mut next = place.unwrap_or(0);
    for at in 0..sets.items.len() {
        let item = &sets.items[at];
        if !item.is_written() || !sets.shape(item).is_timed() || sets.has_moved_here(at) {
            continue;
        }
        let former = match kept(sets, at) {
            None => Former::EMPTY,
            Some(_) if place.is_none() => Former::UNKNOWN,
            Some(image) => {
                let former = Former::kept(image, tx.state.archives.slot(), next);
                next += image.len() as u64;
                former
            }
        };
        sets.set_former(at, former);
        // A row that moves to a larger table was in the smaller one before.
        if let Some(moved) = sets.moved_to(at) {
            sets.set_former(moved, former);
        }
    }
    place.filter(|_| words > 0).map(|place| Kept { place, words })
}

/// Returns the former image of an item's record, if the commit keeps one: if the record is written,
/// and its slot has ever had a record.
fn kept(sets: &Sets, at: usize) -> Option<&[u64]> {
    let item = &sets.items[at];
    let (shape, before) = (sets.shape(item), item.before(&sets.arena));
    let is_kept = item.is_written() && shape.is_timed() && shape.life_of_image(before).is_some();
    is_kept.then_some(before)
}

/// Adds the WRITE of the former images to the archives at the primaries. Readers go back nowhere
/// else: what a backup has of earlier epochs is never wanted once it is a primary, because all
/// snapshots are later then.
pub(super) fn write_formers(tx: &Tx<'_>, round: &mut Round<'_>, formers: Option<Kept>, primaries: u64) {
    let Some(Kept { place, words }) = formers else { return };
    let sets = &tx.state.sets;
    let staged = round.stage_words(words);
    let mut rest = round.staged_mut(staged);
    for image in (0..sets.items.len()).filter_map(|at| kept(sets, at)) {
        let (copy, behind) = rest.split_at_mut(image.len());
        copy.copy_from_slice(image);
        rest = behind;
    }
    for node in nodes(primaries) {
        if let Some(at) = tx.state.archives.own_at(node, place, words) {
            round.write_staged(at, staged);
        }
    }
}
