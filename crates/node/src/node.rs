//! The memory of a node: its superblock, the places of its parts, and the allocation of the rest.
//!
//! ```text
//! region 0
//! +0        superblock      4 KiB
//! +4 KiB    client slots    1024 of 64 bytes
//! +68 KiB   metadata A      160 KiB     the newer valid copy counts, so that a crash in the middle
//! +228 KiB  metadata B      160 KiB     of writing one leaves the other
//! +388 KiB  space           rings and shards, allocated upwards; `metadata` tells what is free
//!
//! superblock
//! +0   magic        u64   "REMORA" and the byte order
//! +8   format       u32   version of everything in this file, `metadata`, `client` and `ring`
//! +12  reserved     u16
//! +14  numa         u8    NUMA node that the memory is bound to; 255 = not bound
//! +15  nic          u8    the NIC that serves the region's atomics
//! +16  features     u64   bits; an unknown one means: do not touch
//! +24  bytes        u64   of the region
//! +32  allocated    u64   first byte of untouched space     CASed; what is behind it is zero
//! +40  incarnation  u64   last client incarnation given     FETCH_ADDed, at the leader
//! +48  lock         u64   client that changes the catalog   CASed, at the leader; 0 = none
//! +56  changes      u64   of client slots                   FETCH_ADDed; tells appliers to look
//! +64  identity     u64   which node of which cluster, see `identity`      CASed
//! +128 clock        u64   of commits that have landed here, see `clock_at`   FETCH_ADDed, CASed
//! ```
//!
//! After the node has been formatted, no client WRITEs a word that is changed by FETCH_ADD or CAS.

use std::sync::atomic::Ordering;

use remora_fabric::{Address, Lane, NodeId, Region, RegionId, WORD_BYTES};

use crate::error::{MemoryError, OfTable};
use crate::limits::CLIENTS_MAX;

/// The version of the memory format; its history:
///
/// 1. The first.
/// 2. Nodes have an identity; index buckets have seven pairs and a link; log entries have index
///    patches.
/// 3. 1024 client slots instead of 256.
/// 4. FStore tables and undo entries.
/// 5. Undo entries lie in a window, tell how they ended, and have checksums of what is installed.
/// 6. The reserved space of FStore tables is in parts.
/// 7. Replicas may be joining.
/// 8. Rings say how far undo entries reach beyond their window.
/// 9. Tables may be unfinished, and then name the client that creates them; entries of discarded
///    tables are vacant.
/// 10. Tables may be dropped: their entries say so, and when each table was entered.
/// 11. Tables may grow: the entry of the larger one names the table from which it grows.
/// 12. Entries have the text of the table's schema. Every table may grow.
/// 13. Records may have cells, which can be read alone.
/// 14. Ordered tables may have partitions, and a call says at which root it begins.
/// 15. Client slots name an archive, and timed records the place of their former image.
/// 16. Tables of objects, and logs of attempts in the headers of rings. Shared locks have a bit
///     less for the epoch.
/// 17. Client slots name the bytes of a ring, and rings of redo entries say how far these reach.
///     Overflow buckets of FStore tables may have fewer slots than the main ones.
pub const FORMAT: u32 = 17;
/// The first word of a node's memory. A machine of the other byte order reads a different number.
pub const MAGIC: u64 = u64::from_le_bytes(*b"REMORA\x01\x02");
/// The feature bits that this program knows.
pub const FEATURES_KNOWN: u64 = 0;

/// The region in which everything of this crate lies.
pub const REGION: RegionId = RegionId(0);

const AT_FORMAT: u64 = 8;
const AT_FEATURES: u64 = 16;
const AT_BYTES: u64 = 24;
const AT_ALLOCATED: u64 = 32;
pub(crate) const AT_INCARNATION: u64 = 40;
pub(crate) const AT_LOCK: u64 = 48;
pub(crate) const AT_CHANGES: u64 = 56;
const AT_CLOCK: u64 = 128;
const SUPERBLOCK_BYTES: u64 = 4096;

pub(crate) const AT_CLIENTS: u64 = SUPERBLOCK_BYTES;
pub(crate) const CLIENT_SLOT_BYTES: u64 = 64;
pub(crate) const AT_METADATA: u64 = AT_CLIENTS + CLIENTS_MAX as u64 * CLIENT_SLOT_BYTES;
pub(crate) const METADATA_BYTES: u64 = 176 << 10;
/// The offset at which the space for allocation begins.
pub const AT_SPACE: u64 = AT_METADATA + 2 * METADATA_BYTES;

/// The bytes of the smallest region that can be formatted.
pub const BYTES_MIN: u64 = AT_SPACE + 4096;
/// Allocations begin at multiples of this number of bytes.
pub const ALIGNMENT: u64 = 4096;

/// Returns the bytes that an allocation of `bytes` bytes takes, or `u64::MAX` if that overflows.
#[must_use]
pub fn extent(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
}

/// Returns the address of a client slot.
pub(crate) fn client_slot_at(node: NodeId, slot: u64) -> Address {
    at(node, AT_CLIENTS + slot * CLIENT_SLOT_BYTES)
}

/// Returns the address of a byte of a node's region 0.
#[must_use]
pub fn at(node: NodeId, offset: u64) -> Address {
    Address { node, region: REGION, offset }
}

/// Returns the address of a node's landing clock. A commit adds 1 to it when its data has landed at
/// the node, and a reader of a snapshot raises it before it reads there (`landing.rs` of
/// `remora_txn`).
#[must_use]
pub fn clock_at(node: NodeId) -> Address {
    at(node, AT_CLOCK)
}

/// Formats an empty node. The node's own CPU does this before any client is connected.
pub fn format(region: &Region, place: Place) -> Result<(), MemoryError> {
    if region.bytes() < BYTES_MIN {
        return Err(MemoryError::TooSmall { wanted: BYTES_MIN, bytes: region.bytes() });
    }
    let store = |at: u64, value: u64| region.words()[at as usize / WORD_BYTES].store(value, Ordering::Relaxed);
    store(AT_FORMAT, u64::from(FORMAT) | place.to_bits() << 48);
    store(AT_FEATURES, FEATURES_KNOWN);
    store(AT_BYTES, region.bytes());
    store(AT_ALLOCATED, AT_SPACE);
    // The magic number comes last: memory without it is not formatted.
    region.words()[0].store(MAGIC, Ordering::Release);
    Ok(())
}

/// Formats a node anew, which erases what it has. The node's own CPU does this while no client is
/// connected.
pub fn renew(region: &Region) -> Result<(), MemoryError> {
    let words = region.words();
    let place = Place::from_bits(words[AT_FORMAT as usize / WORD_BYTES].load(Ordering::Relaxed) >> 48);
    let changes = words[AT_CHANGES as usize / WORD_BYTES].load(Ordering::Relaxed);
    // The magic number goes first, because memory without it is not formatted. A word that is zero
    // may never have been touched, and stays so.
    for word in words.iter().filter(|word| word.load(Ordering::Relaxed) != 0) {
        word.store(0, Ordering::Relaxed);
    }
    // The change of the counter tells an applier that what it has seen is gone.
    words[AT_CHANGES as usize / WORD_BYTES].store(changes + 1, Ordering::Relaxed);
    format(region, place)
}

/// The place of a region within its machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The NUMA node that the memory is bound to, if it is bound.
    pub numa: Option<u8>,
    /// The NIC that serves the region's atomics. Atomics are atomic against each other only through
    /// this NIC.
    pub nic: u8,
}

impl Place {
    const UNBOUND: u8 = u8::MAX;

    fn to_bits(self) -> u64 {
        u64::from(self.numa.unwrap_or(Place::UNBOUND)) | u64::from(self.nic) << 8
    }

    fn from_bits(bits: u64) -> Place {
        let [numa, nic, ..] = bits.to_le_bytes();
        Place { numa: (numa != Place::UNBOUND).then_some(numa), nic }
    }
}

/// The contents of a superblock that has been checked to be Remora's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The size of the node's memory in bytes.
    pub bytes: u64,
    /// The offset of the first free byte.
    pub allocated: u64,
    /// The place of the region within its machine.
    pub place: Place,
}

impl Superblock {
    /// Returns the number of bytes that have not been allocated.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.bytes.saturating_sub(self.allocated)
    }

    /// Checks the first line of a node's memory.
    pub fn parse(node: NodeId, line: &[u64; 8]) -> Result<Superblock, MemoryError> {
        if line[0] != MAGIC {
            return Err(MemoryError::Foreign(node));
        }
        let found = line[1] as u32;
        if found != FORMAT {
            return Err(MemoryError::Format { node, found, known: FORMAT });
        }
        let unknown = line[2] & !FEATURES_KNOWN;
        if unknown != 0 {
            return Err(MemoryError::Features { node, unknown });
        }
        Ok(Superblock { bytes: line[3], allocated: line[4], place: Place::from_bits(line[1] >> 48) })
    }
}

/// Reads and checks a node's superblock.
pub async fn superblock(lane: &Lane, node: NodeId) -> Result<Superblock, MemoryError> {
    let mut round = lane.round();
    let read = round.read(at(node, 0), 64);
    let done = lane.execute(round).await?;
    let line = done.words(read).try_into().map_err(|_| MemoryError::Foreign(node))?;
    Superblock::parse(node, line)
}

/// Allocates space at a node. The space is zeroed, and aligned to 4 KiB.
pub async fn allocate(lane: &Lane, node: NodeId, bytes: u64) -> Result<u64, MemoryError> {
    let Superblock { bytes: total, mut allocated, .. } = superblock(lane, node).await?;
    loop {
        let free = total.saturating_sub(allocated);
        let wanted = bytes.checked_next_multiple_of(ALIGNMENT).filter(|wanted| *wanted <= free);
        let Some(wanted) = wanted else {
            return Err(MemoryError::OutOfMemory { node, wanted: bytes, free, of: OfTable::default() });
        };
        let mut round = lane.round();
        let swap = round.compare_swap(at(node, AT_ALLOCATED), allocated, allocated + wanted);
        let done = lane.execute(round).await?;
        if done.swapped(swap) {
            return Ok(allocated);
        }
        allocated = done.previous(swap);
    }
}

/// Makes zeroed space untouched again that lies directly before the untouched space. Does nothing
/// if a client has taken space since.
pub(crate) async fn give_back(lane: &Lane, node: NodeId, start: u64, end: u64) -> Result<(), MemoryError> {
    let mut round = lane.round();
    round.compare_swap(at(node, AT_ALLOCATED), end, start);
    lane.execute(round).await?;
    Ok(())
}
