//! The memory node's side of the log: the applier copies what clients have written to redo rings to
//! the backups that the node has.
//!
//! The applier runs on the node's own CPU. It never touches a primary: the clients that hold a
//! primary's locks install there. Only newer versions are applied, so it does not matter in which
//! order the rings of different clients are read. An equal version is applied again, because an
//! applier that was killed in the middle of a record has left the version ahead of the value.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use remora_fabric::{Progress, Region, Service, WORD_BYTES, copy};
use remora_index::cluster_hash::Geometry;
use remora_index::{apply_deletion, apply_patch};
use remora_node::ring::RingReader;
use remora_node::{ShardPlacement, changes, clients, identity, metadata};
use remora_record::{Life, RecordShape, Version};

use crate::log::{LoggedRecord, PATCH_WORDS, patch, records};

/// Largest number of entries of one ring that one step applies, so that no ring has to wait for
/// another.
const BATCH: usize = 64;

/// Applies the redo rings of all clients to the backups of one memory node. It is a [`Service`],
/// which the node's own CPU runs. It may apply entries of different rings in any order, because it
/// applies a record only if the entry has a newer version, or the same one.
pub struct Applier {
    region: Arc<Region>,
    rings: Vec<RingReader>,
    changes_seen: u64,
    /// The node's backup of each shard, by the shard's number; `None` if the node has no backup of
    /// it.
    backups: Vec<Option<Backup>>,
    /// Generation of the catalog that `backups` was made from.
    generation: u64,
    scratch: Vec<u64>,
}

impl Applier {
    /// Makes the applier of a node's memory.
    #[must_use]
    pub fn new(region: Arc<Region>) -> Applier {
        let (rings, backups, scratch) = Default::default();
        Applier { region, rings, changes_seen: u64::MAX, backups, generation: 0, scratch }
    }

    fn look_for_clients(&mut self) {
        let words = self.region.words();
        let changes = changes(words);
        if changes == self.changes_seen {
            return;
        }
        self.changes_seen = changes;
        self.rings.clear();
        for client in clients(words) {
            let rings =
                (0..client.lanes).filter_map(|lane| RingReader::resume(words, client.ring(lane), client.incarnation));
            self.rings.extend(rings);
        }
    }
}

/// A shard's backup.
#[derive(Clone, Copy)]
struct Backup {
    base: u64,
    bytes: u64,
    geometry: Geometry,
    shape: RecordShape,
}

/// Returns the backups that a node has, by shard, and the generation of the catalog that names
/// them. The generation is older than the one that the node announces if the newer catalog is not
/// whole yet. Returns `None` if the catalog cannot be read.
fn backups(region: &Region) -> Option<(u64, Vec<Option<Backup>>)> {
    let node = identity::local(region.words())?.number;
    let metadata = metadata::read_local(node, region.words()).ok()?;
    let backup = |shard: &ShardPlacement| {
        let replica = shard.replicas.iter().skip(1).find(|replica| replica.node == node)?;
        let spec = &metadata.tables.get(usize::from(shard.table.0))?.spec;
        let (geometry, shape) = (Geometry::of(spec), RecordShape::of(&spec.layout));
        Some(Backup { base: replica.base, bytes: shard.bytes, geometry, shape })
    };
    Some((metadata.generation, metadata.shards.iter().map(backup).collect()))
}

fn apply(region: &Region, backups: &[Option<Backup>], record: &LoggedRecord<'_>) {
    let shard = record.pointer.shard();
    let Some(Some(backup)) = backups.get(usize::from(shard.0)) else { return };
    if !record.image.is_empty() {
        apply_image(region, backup, record);
    }
    // Patches are ordered by their own incarnations, not by the record's version: a pair of the
    // index may have passed to another record since.
    for patch in record.patches.chunks_exact(PATCH_WORDS).filter_map(patch) {
        if !apply_patch(region.words(), backup.base, &backup.geometry, &patch) {
            tracing::error!(?shard, ?patch, "a log entry changes an index where it has nothing");
        }
    }
}

fn apply_image(region: &Region, backup: &Backup, record: &LoggedRecord<'_>) {
    let Backup { base, bytes, shape, .. } = *backup;
    let shard = record.pointer.shard();
    let offset = record.pointer.offset();
    let end = offset + shape.image_at() + size_of_val(record.image) as u64;
    let version_at = (base + offset + shape.image_at()) as usize / WORD_BYTES;
    let words = region.words();
    let inside =
        offset.is_multiple_of(WORD_BYTES as u64) && end <= bytes && version_at + record.image.len() <= words.len();
    let (true, Some(version)) = (inside, record.image.first()) else {
        tracing::error!(?shard, offset, "a log entry names memory outside of its shard");
        return;
    };
    if let Some(Life::Deleted { .. }) = shape.life_of_image(record.image) {
        apply_deletion(words, base, Version::from_bits(*version).0);
    }
    if *version >= words[version_at].load(Ordering::Acquire) || mutant!(ApplyOlderVersions) {
        copy::write(words, version_at, record.image);
    }
}

impl Service for Applier {
    fn step(&mut self) -> Progress {
        self.look_for_clients();
        let mut progress = Progress::Idle;
        let Applier { region, rings, backups: known, generation, scratch, .. } = self;
        let words = region.words();
        // If a backup has become a primary, only clients install there. The catalog says so before
        // those clients register. So the catalog is read after the list of clients.
        let now = metadata::generation_local(words);
        if *generation != now {
            (*generation, *known) = backups(region).unwrap_or_default();
        }
        for ring in rings.iter_mut() {
            let mut count = 0;
            while count < BATCH {
                let Some((_, entry)) = ring.next(words, scratch) else { break };
                // The generation is read after the entry. The catalog of every table that the entry
                // names was published at this node before the entry was written. To look for
                // unknown shard ids is not enough, because an id may have passed to another table
                // since the catalog was read.
                if *generation != metadata::generation_local(words) {
                    (*generation, *known) = backups(region).unwrap_or_default();
                }
                records(entry).for_each(|record| apply(region, known, &record));
                count += 1;
            }
            if count > 0 {
                ring.publish(words);
                if count == BATCH {
                    progress = Progress::Behind;
                } else if progress == Progress::Idle {
                    progress = Progress::Worked;
                }
            }
        }
        progress
    }

    fn restart(&mut self) {
        *self = Applier::new(self.region.clone());
    }
}

impl fmt::Debug for Applier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applier").field("rings", &self.rings.len()).finish_non_exhaustive()
    }
}
