//! The installation of optimistic concurrency control: the client writes the write set to the
//! primaries, and frees the locks there.

use remora_fabric::Round;

use super::{Locks, Primitives};
use crate::protocol::Acknowledged;
use crate::protocol::redo::{install_rounds, is_logged};
use crate::protocol::spec::Primitive;
use crate::sets::Change;
use crate::tx::Tx;

/// Installs the write set of a committed transaction at the primaries and frees their locks. The
/// client awaits nothing between the log's answer and posting the installation (invariants 4 and
/// 5). With passive ACK, it awaits nothing afterwards either.
pub(super) async fn install(tx: &mut Tx<'_>, primitives: Primitives) {
    let lane = tx.lane;
    let by_writes = primitives.locks == Locks::Cpu { install: Primitive::OneSided }
        && tx.state.sets.edits.is_empty()
        && tx.state.sets.items.iter().all(|item| matches!(item.change, Change::No | Change::Update));
    if primitives.passive && !by_writes {
        return install_rounds(tx, |round| lane.post(round));
    }
    let mut under_way = Vec::new();
    let send = |round| if primitives.passive { lane.post(round) } else { under_way.push(lane.execute(round)) };
    if by_writes {
        install_by_writes(tx, send)
    } else {
        install_rounds(tx, send)
    }
    let mut waiting = Acknowledged::of(tx);
    for round in under_way {
        if let Err(error) = round.await {
            tracing::warn!(id = %waiting.tx().id, %error, "a commit was not acknowledged: it is in the log");
            waiting.tx().state.doubt();
        }
    }
    waiting.done();
}

/// Sends the rounds that install, by WRITEs, updates of records whose locks the primary's CPU has
/// taken ([`Locks::Cpu`]).
fn install_by_writes<'s>(tx: &mut Tx<'s>, mut send: impl FnMut(Round<'s>)) {
    debug_assert!(is_logged(tx), "occ 4: every ring has acknowledged the log before anything is installed");
    let free = tx.id.lock().freed().to_bits();
    let mut round = tx.lane.round();
    let sets = &tx.state.sets;
    for item in sets.items.iter().filter(|item| item.is_written()) {
        let image = sets.image(item);
        if !round.has_room(2, size_of_val(image) + 8) {
            send(std::mem::replace(&mut round, tx.lane.round()));
        }
        round.write_words(item.address.plus(sets.shape(item).image_at()), image);
        round.write_words(item.address, &[free]);
    }
    tx.locking = false;
    send(round);
}
