//! Not a protocol but a bound: it shows what a workload's reads and writes cost as bare rounds.
//!
//! One round brings the records, unchecked. One round writes the changed records to all their
//! replicas. Runs are neither atomic nor isolated, so concurrent runs lose updates. The protocols
//! are measured against it.

use remora_fabric::Execute;
use remora_node::Discipline;
use zerocopy::IntoBytes;

use crate::error::Stop;
use crate::log::PATCH_WORDS;
use crate::protocol::spec::ProtocolSpec;
use crate::protocol::{Protocol, Steps, occ};
use crate::tx::Tx;

/// The workload's reads and writes as bare rounds, without locks, validation or logs. These are
/// **no transactions**.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unsynchronized;

impl Protocol {
    /// The workload's reads and writes as bare rounds: **no transactions**.
    pub const UNSYNCHRONIZED: Protocol = Protocol::Unsynchronized(Unsynchronized);
}

impl Steps for Unsynchronized {
    fn spec(self) -> ProtocolSpec {
        let spec = ProtocolSpec::new("unsynchronized", Discipline::OCC_ONE_SIDED);
        ProtocolSpec { is_serializable: false, reads_unchecked: true, ..spec }
    }

    async fn execute(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        occ::execute(tx).await
    }

    async fn commit(self, tx: &mut Tx<'_>) -> Result<(), Stop> {
        if tx.state.sets.written == 0 { Ok(()) } else { write(tx).await }
    }

    async fn validate(self, _: &mut Tx<'_>) -> Result<(), Stop> {
        Ok(())
    }

    fn leave<'s>(self, _: &mut Tx<'s>, _: Execute<'s>) {
        unreachable!("it has no log")
    }
}

/// Writes the changed records to all their replicas.
async fn write(tx: &mut Tx<'_>) -> Result<(), Stop> {
    tx.state.sets.encode_images();
    tx.committing();
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let sets = &tx.state.sets;
        let mut round = tx.lane.round();
        for item in &sets.items[next..] {
            if item.is_written() {
                let (image, patches) = (sets.image(item), sets.patches(item));
                let table = sets.table(item.table);
                let replicas = table.replicas(item.location.pointer);
                let image_at = item.location.pointer.offset() + sets.shape(item).image_at();
                let verbs = (1 + patches.len() / PATCH_WORDS) * replicas.len();
                if !round.has_room(verbs, size_of_val(image) + size_of_val(patches)) {
                    break;
                }
                let staged = round.stage(image.as_bytes());
                let patches: Vec<_> = patches
                    .chunks_exact(PATCH_WORDS)
                    .map(|patch| (patch[0], round.stage(patch[1..].as_bytes()), round.stage(patch[1..2].as_bytes())))
                    .collect();
                for replica in replicas {
                    round.write_staged(replica.address(image_at), staged);
                    for &(at, pair, link) in &patches {
                        // The pair of a key has two words, and a link has one.
                        let staged = if item.is_place(at) { pair } else { link };
                        round.write_staged(replica.address(at), staged);
                    }
                }
            }
            next += 1;
        }
        tx.lane.execute(round).await?;
    }
    Ok(())
}
