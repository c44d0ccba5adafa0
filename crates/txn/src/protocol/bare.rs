//! No protocol: what a workload's reads and writes cost as bare rounds.
//!
//! One round brings the records, unchecked; one writes the changed ones to all their replicas. Neither atomic nor
//! isolated: concurrent runs lose updates. It is here to be measured against.

use remora_sync::IMAGE_AT;

use crate::error::Stop;
use crate::tx::Tx;

pub(super) async fn commit(tx: &mut Tx<'_>) -> Result<(), Stop> {
    if tx.state.sets.written == 0 {
        return Ok(());
    }
    tx.state.sets.encode_images();
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let sets = &tx.state.sets;
        let mut round = tx.lane.round();
        for item in &sets.items[next..] {
            if item.written {
                let image = sets.image(item);
                let replicas = sets.table(item.table).replicas(item.location.pointer);
                if !round.has_room(replicas.len(), size_of_val(image)) {
                    break;
                }
                let staged = round.stage_words(image.len());
                round.staged_mut(staged).copy_from_slice(image);
                for replica in replicas {
                    round.write_staged(replica.address(item.location.pointer.offset() + IMAGE_AT), staged);
                }
            }
            next += 1;
        }
        tx.lane.execute(round).await?;
    }
    Ok(())
}
