//! Looks at the memory of a RACE hash table, in an instant of the simulation.
//!
//! At every instant the following holds:
//!
//! 1. A live slot of a live array names a block that has the slot and a whole key and value.
//! 2. The key belongs to this array, and may be in this slot.
//! 3. No two live slots have the same key.
//! 4. No unit belongs to two of these: an array or a pair of the tree; a block that a live or
//!    pending slot or a tombstone of a live array names; a block of the lists of returned blocks.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use remora::floors::index::race::{AT_IMAGE, CLASSES, Class, GROUP_SLOTS, Geometry, Hash, Kind, Node, NodeWord};
use remora::floors::index::race::{OBJECT_BYTES, Slot, UNIT_BYTES, WINDOW_SLOTS, decode};
use remora::floors::node::{Metadata, metadata, node};
use remora::floors::record::LockWord;
use remora_fabric::sim::Sim;
use remora_fabric::{Address, Fabric, NodeId, WORD_BYTES};

/// What a table has.
#[derive(Clone, Default, Debug)]
pub(super) struct Contents {
    /// The values of the keys.
    pub(super) values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The number of live arrays.
    pub(super) arrays: u64,
    /// The number of locks that are held.
    pub(super) locked: u64,
}

/// Reads all of a table. Returns a description of what is not as it must be.
pub(super) fn contents(sim: &Sim, table: &str) -> Result<Contents, String> {
    let region = sim.region(NodeId(0), node::REGION).ok_or("node 0 has no memory")?;
    let metadata = metadata::read_local(NodeId(0), region.words()).map_err(|error| error.to_string())?;
    let extents = extents(&metadata, table);
    let (geometry, shards) = extents.first().map(|extent| (extent.geometry, extent.shards.len())).ok_or("no table")?;
    let mut found = Contents::default();
    for shard in 0..shards {
        let mut look = Look { sim, extents: &extents, shards, shard, owners: BTreeMap::new(), found: &mut found };
        for root in 0..geometry.roots {
            let object = extents[0].shards[shard].plus(geometry.root_at(root));
            look.object(object, (geometry.roots.ilog2(), root))?;
        }
        look.lists()?;
    }
    Ok(found)
}

/// An extent of a table.
struct Extent {
    first: u64,
    geometry: Geometry,
    shards: Vec<Address>,
}

fn extents(metadata: &Metadata, table: &str) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    while let Ok((_, entry)) = metadata.table(&format!("{table}/{}", extents.len()))
        && entry.creator.is_none()
    {
        let first = extents.last().map_or(0, |last| last.first + last.geometry.units);
        let shards = metadata.shards_of(entry).filter_map(|shard| Some(shard.replicas.first()?.address(0))).collect();
        extents.push(Extent { first, geometry: Geometry::of(&entry.spec), shards });
    }
    extents
}

/// A look at a shard.
struct Look<'l> {
    sim: &'l Sim,
    extents: &'l [Extent],
    shards: usize,
    shard: usize,
    /// What each unit belongs to.
    owners: BTreeMap<u64, String>,
    found: &'l mut Contents,
}

impl Look<'_> {
    fn words(&self, at: Address, count: usize) -> Result<Vec<u64>, String> {
        let region = self.sim.region(at.node, at.region).ok_or_else(|| format!("{at:?} is no memory"))?;
        let first = at.offset as usize / WORD_BYTES;
        let words = region.words().get(first..first + count).ok_or_else(|| format!("{at:?} is outside of memory"))?;
        Ok(words.iter().map(|word| word.load(Ordering::Relaxed)).collect())
    }

    fn address(&self, unit: u32) -> Result<Address, String> {
        let has = |extent: &&Extent| (extent.first..extent.first + extent.geometry.units).contains(&unit.into());
        let extent = self.extents.iter().find(has).ok_or_else(|| format!("no extent has unit {unit}"))?;
        let within = (u64::from(unit) - extent.first) * UNIT_BYTES;
        Ok(extent.shards[self.shard].plus(extent.geometry.units_at() + within))
    }

    fn own(&mut self, unit: u32, units: u64, owner: &str) -> Result<(), String> {
        for unit in u64::from(unit)..u64::from(unit) + units {
            if let Some(other) = self.owners.insert(unit, owner.to_owned()) {
                return Err(format!("unit {unit} belongs to {other}, and to {owner}"));
            }
        }
        Ok(())
    }

    /// Looks at a node of the tree. The keys below it have hashes with these `depth` lowest bits.
    fn object(&mut self, object: Address, (depth, bits): (u32, u64)) -> Result<(), String> {
        let [lock, node] = *self.words(object, 2)? else { return Err("no object".to_owned()) };
        self.found.locked += u64::from(!LockWord::from_bits(lock).is_free());
        match NodeWord::from_bits(node).node() {
            Node::Bare => Ok(()),
            Node::Leaf(unit) => self.array(unit, (depth, bits)),
            Node::Fork(unit) => {
                self.own(unit, 1, "a pair")?;
                let pair = self.address(unit)?;
                for half in 0..2 {
                    self.object(pair.plus(half * OBJECT_BYTES), (depth + 1, bits | half << depth))?;
                }
                Ok(())
            }
        }
    }

    fn array(&mut self, unit: u32, (depth, bits): (u32, u64)) -> Result<(), String> {
        let geometry = self.extents[0].geometry;
        self.own(unit, geometry.array_units(), &format!("the array of leaf {bits:b}"))?;
        self.found.arrays += 1;
        let slots = self.words(self.address(unit)?, geometry.groups as usize * GROUP_SLOTS)?;
        for (at, word) in slots.into_iter().enumerate() {
            let slot = Slot::from_bits(word);
            let kind = slot.kind();
            if matches!(kind, Kind::Empty | Kind::Withdrawn) {
                continue;
            }
            let name = format!("slot {at} of leaf {bits:b}, {kind:?} {word:x}");
            self.own(slot.unit(), slot.class().units(), &name)?;
            if kind != Kind::Live {
                continue;
            }
            let image = slot.class().bytes() / WORD_BYTES - 1;
            let image = self.words(self.address(slot.unit())?.plus(AT_IMAGE), image)?;
            let Some((hash, content)) = decode(slot, &image) else {
                return Err(format!("the block of {name} is not whole: {word:x}, {:x?}", &image[..3]));
            };
            let windows = hash.windows(geometry.groups);
            let is_in = windows.iter().any(|window| (window.first_slot()..).take(WINDOW_SLOTS).any(|slot| slot == at));
            let is_of_leaf = hash.leaf_bits() & ((1 << depth) - 1) == bits && hash.shard(self.shards) == self.shard;
            if !is_in || !is_of_leaf || hash != Hash::of(content.key) {
                return Err(format!("the key of {name} does not belong there"));
            }
            if self.found.values.insert(content.key.to_vec(), content.value.to_vec()).is_some() {
                return Err(format!("the key of {name} has two live slots"));
            }
        }
        Ok(())
    }

    fn lists(&mut self) -> Result<(), String> {
        for class in (0..CLASSES).filter_map(Class::new) {
            let list = self.extents[0].shards[self.shard].plus(Geometry::returned_at(class));
            let mut head = self.words(list, 1)?[0];
            while head != 0 {
                let slot = Slot::from_bits(head);
                self.own(slot.unit(), class.units(), &format!("the list of class {}", class.number()))?;
                head = self.words(self.address(slot.unit())?.plus(AT_IMAGE), 1)?[0];
            }
        }
        Ok(())
    }
}
