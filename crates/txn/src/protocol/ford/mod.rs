//! FORD: one-sided transactions that update every replica in place (Zhang et al., TOS 2023, section 4), corrected.
//!
//! ```text
//!            coordinator              primaries            all replicas of the write set, one chain a node
//!
//! execute    CAS lock; READ record -> of records to write                                      1 round trip
//!            READ record           -> of records only read, at the primary or a backup          (the same)
//! validate   READ lock, version    -> of records only read                                      1, if there are any
//! commit                                                   WRITE undo entry;
//!                                                          WRITE record, marked invisible;
//!                                                          flush (backups)                   -> 1
//!            ---- committed: every replica has acknowledged its chain ----
//! release                                                  WRITE version, visible;
//!                                                          WRITE undo entry free             -> in the background,
//!                                     CAS unlock                                             -> and only then this
//! ```
//!
//! With locations cached and records named for what is done to them ([`Intent::Update`]): 2 round trips for a transaction
//! that writes what it reads, 3 if it also only reads records, 1 for one that reads one record, 2 for one that reads
//! several. A record whose location is unknown costs the READ of its bucket before; one that was named to be read and is
//! then written is locked by a round of its own. No CPU of a memory node takes part in anything.
//!
//! # Where this is not the text's protocol
//!
//! - The text puts the invisible bit into the lock word and sets it by a CAS before the data. Here it is in the version
//!   word and **rides in the WRITE of the data**: mark and data land together, a commit needs no atomics, nothing depends on
//!   a NIC's order of WRITE after CAS, and the lock word is only ever CASed.
//! - The undo entry goes out **in the commit's own chain**, before the data on each connection, and not in a round during
//!   execution. So two round trips are two also for short logic, and an abort has no log to neutralise.
//! - Validation looks **at the primary, and at the lock** as well as the version.
//! - Replicas are made visible, and logs freed, **and acknowledged, before any lock is freed**.
//! - A rollback, which only recovery does, installs a new odd version, and never the old one again.
//!
//! # The lean release
//!
//! ```text
//! release                             WRITE version, visible;
//!                                     CAS unlock                 primaries
//!                                     CAS version, to visible    backups                        -> in the background
//! ```
//!
//! One round instead of two ([`Ford::lean`]). A release that is overtaken by the next writer of the record must not show
//! what that one has half written: it is a CAS from this transaction's version, which the next writer's WRITE has replaced.
//! So WRITE and CAS of the version word must be atomic to each other. Undo entries are not freed: recovery tells by the
//! versions that a transaction has ended, and shows replicas by CAS as well.
//!
//! # Hand-over
//!
//! The unlocks of a release wait for the answer to its first round, and the lane's next transaction may want the same record
//! at once. It **takes the lock over**, by CAS(former -> me) in place of CAS(free -> me), which saves it a round trip and an
//! attempt. What it reads comes behind the former's WRITE of the version, on the same connection. But the former's release
//! may still be on its way to other replicas, so until it is acknowledged the heir neither writes anything nor frees the
//! lock: its commit waits, and its own release is posted behind the former's unlocks (invariant 5 holds for both). If the
//! former's release fails, so does the heir, and the lock stays for recovery, as the former's would. In a crash the heir's
//! lock is one that no log names; the former's transaction is complete on every replica, and is rolled forward.
//!
//! # Localized validation
//!
//! Where all who write a table publish in one version cache ([`Ford::validation`]), what was only read is looked up there
//! instead: one round trip less if it is in this process (preset `ford-local`), and a shorter one if it is near
//! (`ford-global`). [`vcache`](crate::vcache) has the argument. Between the last lock and that look a transaction publishes
//! what it is about to write. What the cache does not vouch for is validated at the primary as above.
//!
//! # Invariants
//!
//! 1. **A written record is locked by its writer**, at its primary, from before it was last read until every replica is
//!    visible again. Locks are taken by CAS(free -> me), or by CAS(former -> me) from the lane's last transaction, which has
//!    committed; and released by CAS(me -> free), only if they may have been taken.
//! 2. **Validation after the last lock, before the commit round, at the primary, and it fails on the lock of another**, also
//!    in a transaction that only reads. Else, of one that writes: write skew. Of one that only reads: the holder of the lock
//!    may have validated what it only read, before that was overwritten by a transaction which has been answered since; so
//!    it comes before that one, and who began after the answer must not come before it (litmus `ford-read-behind-lock`; the
//!    text validates versions only, and the model that this protocol was first checked with had no such three).
//!    Locally: **published before that**, and it fails if another has published.
//! 3. **Undo entry before data, on every node**, on one connection; the entry is the whole write set. From the moment that
//!    the commit round is posted this client never undoes; only recovery may.
//! 4. **Acknowledged means complete on every replica.** So no read of any replica that began later sees an older version.
//! 5. **Visible before log free** on each node, **all of that before unlock**. (Lean: a replica is made visible from this
//!    transaction's version only.)
//! 6. **A record is read only while visible and whole**; a lock alone does not make it unreadable. It needs no validation
//!    only if it is the transaction's only one, was read at the primary, and was not locked there (as in 2). Backups have
//!    no locks: whatever is read there is validated.

use std::sync::Arc;

use remora_fabric::{Address, Completed, Execute, NodeId, Round, WORD_BYTES, probes};
use remora_index::fstore::BUCKET_HEADER_BYTES;
use remora_index::{BucketRef, Location, Table};
use remora_memory::limits::FRAME_BYTES_MAX;
use remora_memory::ring::{self, FRAME_OVERHEAD_WORDS, RingWriter, UNDO_WINDOW};
use remora_memory::{Pointer, Replica, TableId};
use remora_sync::{
    FetchedRecord, IMAGE_AT, INCARNATION_MASK, Life, LockWord, RecordHeader, StableRecord, Unstable, VALIDATED_BYTES,
    Version,
};

use crate::error::{Abort, Limit, Stop};
use crate::limits::{HOPS_MAX, LOG_NODES_MAX, LOG_PAUSE_NS, LOOKUP_ATTEMPTS};
use crate::log::{self, UndoKind, UndoRecord};
use crate::protocol::{Acknowledged, Check, Protocol, nodes};
use crate::rpc::Code;
use crate::session::Needed;
use crate::sets::{Change, Fetch, Found, Intent, Item, Lock, Sets, registered, shape};
use crate::tx::{Tx, Waiting};
use crate::vcache;

/// How what is only read is validated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Validation {
    /// By a look at its primary.
    Remote,
    /// By the version cache of this process, which all who write the table share.
    Local,
    /// By the version cache of the cluster, which the CPU of a node has, and answers calls for.
    Global,
}

/// What FORD does. All but the lean release and localized validation is on by default; an ablation turns one off.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ford {
    /// Locks are taken by the round that reads the record. Without: by a round of their own before the commit.
    pub hitchhike: bool,
    /// Locations are cached.
    pub address_cache: bool,
    /// Undo entry, backups and primaries in one round. Without: in three, one after the other.
    pub coalesce: bool,
    /// Nobody waits for the release.
    pub background_release: bool,
    /// What is only read may be read from a backup. Without: from primaries.
    pub backup_reads: bool,
    /// One flush for each backup, behind its last WRITE. Without: one behind every WRITE, at every replica.
    pub selective_flush: bool,
    /// One round in the background instead of two, and nobody frees undo entries. For fabrics on
    /// which WRITE and CAS of one word are atomic to each other.
    pub lean: bool,
    /// How what is only read is validated.
    pub validation: Validation,
    /// The commit and release of this page. Without: **no transactions**, but the verbs of the text's, for measurements of
    /// what its corrections cost. An atomic before the data on every replica makes it invisible, and one WRITE on each
    /// makes it visible and unlocks it, with no barrier.
    pub corrections: bool,
}

impl Ford {
    /// All of it.
    pub const WHOLE: Ford = Ford {
        hitchhike: true,
        address_cache: true,
        coalesce: true,
        background_release: true,
        backup_reads: true,
        selective_flush: true,
        lean: false,
        validation: Validation::Remote,
        corrections: true,
    };
    /// The mechanisms that can be turned off, by name.
    pub const MECHANISMS: [&'static str; 7] = [
        "hitchhike",
        "address-cache",
        "coalesce",
        "background-release",
        "backup-reads",
        "selective-flush",
        "corrections",
    ];

    /// Turns a mechanism off; false if there is none of that name.
    #[must_use]
    pub fn disable(&mut self, mechanism: &str) -> bool {
        let known = Ford::MECHANISMS.iter().position(|name| *name == mechanism);
        let Some(index) = known else { return false };
        *match index {
            0 => &mut self.hitchhike,
            1 => &mut self.address_cache,
            2 => &mut self.coalesce,
            3 => &mut self.background_release,
            4 => &mut self.backup_reads,
            5 => &mut self.selective_flush,
            _ => &mut self.corrections,
        } = false;
        true
    }
}

// ---- execute --------------------------------------------------------------------------------------------------------

/// What a record's words turned out to be.
enum Seen {
    /// Its step is done.
    Done,
    /// Not to be used now.
    Unstable(Abort),
}

/// Brings every record that was named and is not here yet, and locks those that were named to be written.
pub(crate) async fn execute(tx: &mut Tx<'_>, ford: Ford) -> Result<(), Stop> {
    if tx.unheard {
        Box::pin(tx.forget_unheard()).await?;
    }
    let mut waiting = Waiting::default();
    while tx.state.sets.fetched < tx.state.sets.items.len() {
        grow(tx)?;
        let mut round = tx.lane.round();
        ask(tx, &mut round, ford);
        tx.unheard = true;
        let done = tx.lane.execute(round).await?;
        tx.unheard = false;
        let asked = tx.state.sets.items.len();
        if locked(tx, &done)? == Locks::Again {
            continue;
        }
        let mut unstable = None;
        for index in tx.state.sets.fetched..asked {
            if !std::mem::take(&mut tx.state.sets.items[index].asked) {
                continue;
            }
            let words = done.words(tx.state.sets.items[index].read);
            let seen = match tx.state.sets.items[index].fetch {
                Fetch::Probe(bucket, _) => bucket_arrived(tx, index, bucket, words)?,
                _ => record_arrived(tx, index, words)?,
            };
            if let Seen::Unstable(why) = seen {
                tx.state.sets.note(index, why.into());
                unstable = Some(why);
            }
        }
        drop(done);
        tx.skip_what_is_here();
        tx.wait(unstable, &mut waiting).await?;
    }
    Ok(())
}

/// Adds the next step of every item to the round: as much as fits.
fn ask(tx: &mut Tx<'_>, round: &mut Round<'_>, ford: Ford) {
    let mut index = tx.state.sets.fetched;
    // Structural records are added behind as they are needed.
    while index < tx.state.sets.items.len() {
        let item = tx.state.sets.items[index];
        let asked = match item.fetch {
            Fetch::Probe(bucket, _) => ask_bucket(tx, round, index, bucket, ford),
            Fetch::Record(_) | Fetch::Place(_) => ask_record(tx, round, index, ford),
            Fetch::Here | Fetch::Absent | Fetch::Ask | Fetch::Grow(_) => false,
        };
        tx.state.sets.items[index].asked = asked;
        index += 1;
    }
}

/// A bucket of a key's chain. Whoever is to insert first locks the chain, by the lock of its main bucket.
fn ask_bucket(tx: &mut Tx<'_>, round: &mut Round<'_>, index: usize, bucket: BucketRef, ford: Ford) -> bool {
    let item = tx.state.sets.items[index];
    let table = registered(&tx.state.sets.tables, item.table);
    let (bytes, at) = (table.bucket_bytes(), table.bucket_address(bucket));
    if !round.has_room(2, bytes + 4 * 8) {
        return false;
    }
    let inserts = item.intent == Intent::Insert;
    if inserts && bucket == item.home && !mutant!(InsertBesideLocked) {
        let offset = table.fstore().map_or(0, |fstore| fstore.buckets.at(bucket.bucket));
        let known = tx.state.sets.items.len();
        let header = tx.state.sets.structural(item.table, bucket.shard, offset);
        if header == known {
            // Only its lock is needed, until the chain has to grow.
            tx.state.sets.items[header].fetch = Fetch::Here;
        }
        lock(tx, round, header);
    }
    let sets = &tx.state.sets;
    let replicas = sets.table(item.table).shard_replicas(bucket.shard);
    let at_primary = inserts || !ford.backup_reads || sets.items.len() == 1;
    let replica = if at_primary { 0 } else { lightest(&tx.state.load, replicas) };
    let from = Address { node: replicas[replica].node, region: replicas[replica].region, ..at };
    let from = Address { offset: from.offset - replicas[0].base + replicas[replica].base, ..from };
    tx.state.sets.items[index].read = round.read(from, bytes);
    tx.state.sets.items[index].at_primary = replica == 0;
    tx.state.count(from.node, bytes);
    true
}

/// A record whose location is known; with its lock, if it is to be written.
fn ask_record(tx: &mut Tx<'_>, round: &mut Round<'_>, index: usize, ford: Ford) -> bool {
    let sets = &tx.state.sets;
    let item = sets.items[index];
    let bytes = sets.shape(&item).record_bytes();
    if !round.has_room(2, bytes + 4 * 8) {
        return false;
    }
    let vacant = matches!(item.fetch, Fetch::Place(_));
    let writes = vacant || item.structural || ford.hitchhike && matches!(item.intent, Intent::Update | Intent::Delete);
    let mut from = item.address;
    if writes {
        lock(tx, round, index);
    } else if ford.backup_reads && sets.items.len() > 1 {
        // Alone it would have to be validated there, and need not be here.
        let replicas = sets.table(item.table).replicas(item.location.pointer);
        from = replicas[lightest(&tx.state.load, replicas)].address(item.location.pointer.offset());
    }
    // Behind the CAS, which is an ordered pair: what it brings is the record under the lock.
    tx.state.sets.items[index].read = round.read(from, bytes);
    tx.state.sets.items[index].at_primary = from == item.address;
    tx.state.count(from.node, bytes);
    true
}

/// Adds the CAS that locks an item's record, unless it is locked already.
fn lock(tx: &mut Tx<'_>, round: &mut Round<'_>, index: usize) {
    let me = tx.id.lock().to_bits();
    let item = &mut tx.state.sets.items[index];
    if item.lock == Lock::No {
        item.lock = Lock::Maybe;
        let released = &tx.state.released;
        let inherits = released.holds_back(tx.lane, item.address);
        tx.heir |= inherits;
        let holder = if inherits { released.holder } else { LockWord::FREE };
        item.swap = round.compare_swap(item.address, holder.to_bits(), me);
        tx.state.count(tx.state.sets.items[index].address.node, 16);
        if !std::mem::replace(&mut tx.locking, true) {
            tx.lane.probe(probes::LOCKS);
        }
    }
}

/// The replica that this client has sent least to. Which that is follows the load, because what it sends is counted.
fn lightest(load: &[u64], replicas: &[Replica]) -> usize {
    let of = |replica: &Replica| load.get(usize::from(replica.node.0)).copied().unwrap_or(0);
    let copies = (0..replicas.len()).filter(|replica| !replicas[*replica].joining);
    copies.min_by_key(|replica| of(&replicas[*replica])).unwrap_or(0)
}

/// What became of the locks that a round has asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Locks {
    Held,
    /// One was to be taken over from the lane's last transaction, and had been freed: everything is asked again.
    Again,
}

/// Sees which of the locks asked for have been taken. One is another's: the transaction aborts, and releases its own.
fn locked(tx: &mut Tx<'_>, done: &Completed<'_>) -> Result<Locks, Stop> {
    let me = tx.id.lock();
    let (mut conflict, mut again) = (None, false);
    for (index, item) in tx.state.sets.items.iter_mut().enumerate().filter(|(_, item)| item.lock == Lock::Maybe) {
        let previous = LockWord::from_bits(done.previous(item.swap));
        // A stale location can lead two items to one slot, which is one's own then, under the name of the other.
        item.lock = if done.swapped(item.swap) { Lock::Held } else { Lock::No };
        if item.lock == Lock::No && previous.is_free() {
            again = true;
        } else if item.lock == Lock::No && previous != me {
            conflict = Some((index, previous));
        }
    }
    let Some((index, holder)) = conflict else { return Ok(if again { Locks::Again } else { Locks::Held }) };
    tx.met(index, holder);
    Err(Abort::Locked(holder).into())
}

fn unstable(why: Unstable) -> Seen {
    Seen::Unstable(match why {
        Unstable::Locked(lock) | Unstable::Invisible(lock) => Abort::Locked(lock),
        Unstable::Torn => Abort::Torn,
    })
}

/// A record has arrived: keeps it, if it is whole, visible, and its key's.
fn record_arrived(tx: &mut Tx<'_>, index: usize, words: &[u64]) -> Result<Seen, Stop> {
    let released = tx.state.released.holder;
    let Sets { tables, items, arena, .. } = &mut tx.state.sets;
    let item = &mut items[index];
    let record = match check(FetchedRecord::new(words, shape(tables, item))) {
        Ok(record) => record,
        Err(why) => return Ok(unstable(why)),
    };
    if let Fetch::Place(_) = item.fetch {
        let chain = chain_of(tables, arena, item).flat_map(|link| link.slots.iter().step_by(chain::SLOT_WORDS));
        // Above every version of the chain: the key's former life ended with one of them (`fstore`, rule 3).
        let floor = chain.map(|word| Version::from_bits(*word).0).fold(record.version(), Version::max);
        item.keep_before(arena, &record);
        return slot_arrived(item, floor, record.life());
    }
    let its_own = item.structural
        || record.is_present()
            && record.has_key(item.key_words(arena))
            && record.incarnation() == item.location.incarnation;
    if !its_own {
        return look_up_again(tx, index);
    }
    if item.fetched_before() == Some(false) && !item.structural {
        return Err(Abort::Changed.into());
    }
    item.keep(arena, &record);
    item.current = item.at_primary && is_nobodys(record.lock(), released);
    if item.lock == Lock::Held || mutant!(LogWithoutLocks) {
        item.keep_before(arena, &record);
    }
    Ok(Seen::Done)
}

/// Whether a lock says nothing of what its record holds: it is free, or held by the lane's last transaction, which has
/// committed, and whose data is on every replica. No other transaction can have locked the record since.
#[inline]
fn is_nobodys(lock: LockWord, released: LockWord) -> bool {
    lock.is_free() || lock == released
}

#[inline]
fn check(fetched: FetchedRecord<'_>) -> Result<StableRecord<'_>, Unstable> {
    if mutant!(AcceptTorn) { fetched.unchecked().ok_or(Unstable::Torn) } else { fetched.check_in_place() }
}

/// The record at the location that the cache gave is another's, or gone: looks into the index. A lock that was taken for
/// nothing goes back at once.
#[cold]
fn look_up_again(tx: &mut Tx<'_>, index: usize) -> Result<Seen, Stop> {
    let item = tx.state.sets.items[index];
    if item.lock == Lock::Held {
        let mut round = tx.lane.round();
        round.compare_swap(item.address, tx.id.lock().to_bits(), LockWord::FREE.to_bits());
        tx.post_release(round);
    }
    tx.state.sets.table(item.table).forget(item.home, item.hash, item.location);
    let item = &mut tx.state.sets.items[index];
    item.lock = Lock::No;
    item.location = Location::default();
    item.fetch = Fetch::Probe(item.home, 0);
    item.chain = 0;
    item.lookups += 1;
    if item.lookups > LOOKUP_ATTEMPTS { Err(Abort::Changed.into()) } else { Ok(Seen::Done) }
}

// ---- the chain of a key ---------------------------------------------------------------------------------------------

/// A bucket of a chain that was read, in the arena: place of the one before + 1, shard, bucket, version word of its
/// header; then version word of each slot, and whether it is vacant.
mod chain {
    pub(super) const HEAD_WORDS: usize = 4;
    pub(super) const SLOT_WORDS: usize = 2;
}

/// A bucket of the chain of a key, as it was read.
struct ChainLink<'a> {
    bucket: BucketRef,
    /// Version word of its header.
    header: u64,
    slots: &'a [u64],
}

/// The chain that was read for an item, last bucket first.
fn chain_of<'a>(tables: &[Option<Arc<Table>>], arena: &'a [u64], item: &Item) -> impl Iterator<Item = ChainLink<'a>> {
    let slots = registered(tables, item.table).fstore().map_or(0, |fstore| fstore.slots) as usize;
    let mut at = item.chain as usize;
    std::iter::from_fn(move || {
        let head = &arena[at.checked_sub(1)?..];
        at = head[0] as usize;
        let bucket = BucketRef { shard: head[1] as u16, bucket: head[2] };
        Some(ChainLink { bucket, header: head[3], slots: &head[chain::HEAD_WORDS..][..slots * chain::SLOT_WORDS] })
    })
}

/// A bucket has arrived: the key's record is in it, or further on, or nowhere.
fn bucket_arrived(tx: &mut Tx<'_>, index: usize, bucket: BucketRef, words: &[u64]) -> Result<Seen, Stop> {
    let sets = &tx.state.sets;
    let item = &sets.items[index];
    let table = sets.table(item.table);
    let Some(fstore) = table.fstore() else { return Err(Abort::Changed.into()) };
    let next = match fstore.next(words, table.structural()) {
        Ok(next) => next,
        Err(why) => return Ok(unstable(why)),
    };
    if item.intent == Intent::Insert && bucket == item.home {
        return chain_locked(tx, index, bucket, words);
    }
    search_bucket(tx, index, bucket, words, next)
}

/// The main bucket of a chain has arrived with its lock: its header is kept as well, because an insert changes its version.
fn chain_locked(tx: &mut Tx<'_>, index: usize, bucket: BucketRef, words: &[u64]) -> Result<Seen, Stop> {
    let sets = &mut tx.state.sets;
    let item = sets.items[index];
    let Some(fstore) = sets.table(item.table).fstore().copied() else { return Err(Abort::Changed.into()) };
    let next = fstore.next(words, sets.table(item.table).structural()).unwrap_or(0);
    let header = Pointer::new(sets.table(item.table).shard_id(bucket.shard), fstore.buckets.at(bucket.bucket));
    let header = sets.items.iter().position(|other| other.structural && other.location.pointer == header);
    let Some(header) = header else { return search_bucket(tx, index, bucket, words, next) };
    let Sets { tables, items, arena, .. } = sets;
    let structural = registered(tables, item.table).structural();
    let Some(words_of_header) = words.get(..structural.record_bytes() / 8) else { return Err(Abort::Changed.into()) };
    let record = match check(FetchedRecord::new(words_of_header, structural)) {
        Ok(record) => record,
        Err(why) => return Ok(unstable(why)),
    };
    let header = &mut items[header];
    if header.before(arena).is_empty() {
        header.keep(arena, &record);
        header.keep_before(arena, &record);
    }
    search_bucket(tx, index, bucket, words, next)
}

fn search_bucket(tx: &mut Tx<'_>, index: usize, bucket: BucketRef, words: &[u64], next: u64) -> Result<Seen, Stop> {
    let released = tx.state.released.holder;
    let Sets { tables, items, arena, .. } = &mut tx.state.sets;
    let item = &mut items[index];
    let table = registered(tables, item.table);
    let Some(fstore) = table.fstore() else { return Err(Abort::Changed.into()) };
    let entry = arena.len();
    arena.extend([u64::from(item.chain), bucket.shard.into(), bucket.bucket, words[1]]);
    let mut unreadable = None;
    let mut found = None;
    for (slot, fetched) in fstore.slots(words, table.shape()).enumerate() {
        let record = match check(fetched) {
            Ok(record) => record,
            Err(why) => {
                // It may be the key's own.
                unreadable = Some(why);
                continue;
            }
        };
        if record.is_present() && record.has_key(item.key_words(arena)) {
            found = Some((slot as u64, record));
            break;
        }
        arena.extend([record.version().to_bits(), u64::from(!record.is_present() && record.lock().is_free())]);
    }
    match (found, unreadable) {
        (Some((slot, record)), _) => {
            arena.truncate(entry);
            let offset = fstore.slot_at(bucket.bucket, slot);
            let pointer = Pointer::new(table.shard_id(bucket.shard), offset);
            item.location = Location { pointer, incarnation: record.incarnation() };
            item.address = table.primary(pointer);
            if item.fetched_before() == Some(false) {
                return Err(Abort::Changed.into());
            }
            let ford = tx.state.protocol.ford();
            if ford.address_cache {
                table.learn(item.home, item.hash, item.location);
            }
            if ford.hitchhike && matches!(item.intent, Intent::Update | Intent::Delete) {
                // The CAS could not name it: the record is read once more, under its lock.
                item.fetch = Fetch::Record(Found::Probed(bucket, slot as usize));
            } else {
                item.keep(arena, &record);
                item.current = item.at_primary && is_nobodys(record.lock(), released);
            }
            return Ok(Seen::Done);
        }
        (None, Some(why)) => {
            arena.truncate(entry);
            return Ok(unstable(why));
        }
        (None, None) => {}
    }
    item.chain = entry as u32 + 1;
    item.hops += 1;
    if item.hops > HOPS_MAX {
        return Err(Abort::Changed.into());
    }
    if let Some(next) = table.linked(bucket, next) {
        item.fetch = Fetch::Probe(next, 0);
    } else if item.intent == Intent::Insert {
        choose_slot(tx, index, bucket);
    } else if item.fetched_before() == Some(true) {
        return Err(Abort::Changed.into());
    } else {
        item.fetch = Fetch::Absent;
        item.seen = true;
    }
    Ok(Seen::Done)
}

/// Under the lock of its chain the key is nowhere: it will be in the first vacant slot, or the chain has to grow.
fn choose_slot(tx: &mut Tx<'_>, index: usize, last: BucketRef) {
    let sets = &tx.state.sets;
    let item = sets.items[index];
    let table = sets.table(item.table);
    let Some(fstore) = table.fstore() else { return };
    let shard = table.shard_id(last.shard);
    let taken =
        |pointer: Pointer| sets.items.iter().any(|other| !other.structural && other.location.pointer == pointer);
    let mut vacant = None;
    for link in chain_of(&sets.tables, &sets.arena, &item) {
        for (slot, words) in link.slots.chunks_exact(chain::SLOT_WORDS).enumerate() {
            let pointer = Pointer::new(shard, fstore.slot_at(link.bucket.bucket, slot as u64));
            if words[1] == 1 && !taken(pointer) {
                // Overwritten by those of buckets further ahead.
                vacant = Some(pointer);
                break;
            }
        }
    }
    let header_of = |bucket: BucketRef| Pointer::new(shard, fstore.buckets.at(bucket.bucket));
    let mut last = last;
    // Buckets that this transaction has added to the chain for other keys: it can fill them.
    while vacant.is_none()
        && let Some(header) =
            sets.items.iter().find(|item| item.location.pointer == header_of(last) && item.is_written())
        && let Some(bucket) = fstore.buckets.number(sets.structural_value(header))
    {
        let slots = (0..fstore.slots).map(|slot| Pointer::new(shard, fstore.slot_at(bucket, slot)));
        vacant = slots.into_iter().find(|pointer| !taken(*pointer));
        last = BucketRef { bucket, ..last };
    }
    let last_header = header_of(last);
    match vacant {
        Some(pointer) => place(sets.table(item.table).primary(pointer), pointer, &mut tx.state.sets.items[index]),
        None => {
            let part = fstore.parts_of(item.home.bucket).next().map_or(0, |part| part.at());
            for offset in [part, last_header.offset()] {
                read_structural(&mut tx.state.sets, item.table, last.shard, offset);
            }
            tx.state.sets.items[index].fetch = Fetch::Grow(last);
        }
    }
}

fn place(address: Address, pointer: Pointer, item: &mut Item) {
    item.fetch = Fetch::Place(Intent::Insert);
    item.location = Location { pointer, incarnation: 0 };
    item.address = address;
}

/// Has a structural record locked and read, unless it has been: its item, and whether it has been read.
fn read_structural(sets: &mut Sets, table: TableId, shard: u16, offset: u64) -> (usize, bool) {
    let record = sets.structural(table, shard, offset);
    let is_read = !sets.items[record].before(&sets.arena).is_empty();
    if !is_read {
        sets.items[record].fetch = Fetch::Record(Found::Cached);
        sets.fetched = sets.fetched.min(record);
    }
    (record, is_read)
}

/// Grows the chains whose last header, and the record of a part of the reserved space, have been locked and read: the new
/// bucket is linked by this transaction's commit, like any change of a record.
fn grow(tx: &mut Tx<'_>) -> Result<(), Stop> {
    for index in tx.state.sets.fetched..tx.state.sets.items.len() {
        let item = tx.state.sets.items[index];
        let Fetch::Grow(last) = item.fetch else { continue };
        let sets = &mut tx.state.sets;
        let Some(fstore) = sets.table(item.table).fstore().copied() else { continue };
        let (header, is_read) = read_structural(sets, item.table, last.shard, fstore.buckets.at(last.bucket));
        if !is_read {
            continue;
        }
        if sets.items[header].is_written() {
            // Grown meanwhile, for another key of this transaction.
            choose_slot(tx, index, last);
            continue;
        }
        let mut parts = fstore.parts_of(item.home.bucket);
        let taken = loop {
            let Some(part) = parts.next() else {
                sets.note(index, Limit::TableFull.into());
                return Err(Limit::TableFull.into());
            };
            let (record, is_read) = read_structural(sets, item.table, last.shard, part.at());
            if !is_read {
                break None;
            }
            let used = sets.structural_value(&sets.items[record]);
            if let Some(bucket) = part.bucket(used) {
                sets.set_structural(record, used + 1);
                break Some(bucket);
            }
        };
        let Some(new) = taken else { continue };
        sets.set_structural(header, fstore.buckets.at(new));
        let pointer = Pointer::new(sets.table(item.table).shard_id(last.shard), fstore.slot_at(new, 0));
        place(sets.table(item.table).primary(pointer), pointer, &mut sets.items[index]);
    }
    Ok(())
}

/// The vacant slot for a key to be inserted has arrived, locked.
fn slot_arrived(item: &mut Item, floor: Version, life: Option<Life>) -> Result<Seen, Stop> {
    let incarnation = match life {
        None => 1,
        // Never used, but for an insert that recovery has undone.
        Some(Life::Deleted { incarnation } | Life::Prepared { incarnation }) => incarnation.wrapping_add(1),
        Some(Life::Present { .. }) => return Err(Abort::Changed.into()),
    };
    item.location.incarnation = incarnation & INCARNATION_MASK;
    item.version = floor;
    item.fetch = Fetch::Here;
    item.seen = true;
    Ok(Seen::Done)
}

// ---- validate -------------------------------------------------------------------------------------------------------

/// A transaction that writes nothing. Of one record it may be known already that it was current when it was read; several
/// must be looked at again together.
pub(super) async fn validate_read_only(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let accept_locked = mutant!(ValidateReadOnlyVersionOnly);
    let current = |item: &Item| matches!(item.fetch, Fetch::Here) && (item.current || accept_locked);
    let one = matches!(tx.state.sets.items.as_slice(), [item] if current(item) || item.lock == Lock::Held);
    if !one && !mutant!(ReadOnlyWithoutValidation) {
        consult(tx, false, true).await?;
        validate(tx, false).await?;
        tx.mark(|phases, now| phases.validated = now);
    }
    Ok(())
}

/// Says in the version cache what this transaction is about to install, and *then* has it vouch for what was only read.
async fn consult(tx: &mut Tx<'_>, publish: bool, look: bool) -> Result<(), Stop> {
    match tx.state.protocol.validation() {
        Validation::Remote => Ok(()),
        Validation::Local => {
            let Some(vcache) = &tx.state.vcache else { return Err(Limit::NoVersionCache.into()) };
            if publish {
                vcache.publish(published(&tx.state.sets));
            }
            for index in 0..if look { tx.state.sets.items.len() } else { 0 } {
                let vouched = {
                    let mut seen = seen(&tx.state.sets, &tx.state.sets.items[index]).peekable();
                    seen.peek().is_some() && seen.all(|(at, version)| vcache.is_current(at, version))
                };
                tx.state.sets.items[index].vouched = vouched;
            }
            Ok(())
        }
        Validation::Global => consult_host(tx, publish, look).await,
    }
}

/// The same of the cluster's cache, by calls: almost always one.
async fn consult_host(tx: &mut Tx<'_>, publish: bool, look: bool) -> Result<(), Stop> {
    let host = tx.state.cache_host();
    let mut pairs = std::mem::take(&mut tx.state.asked);
    pairs.clear();
    let sets = &tx.state.sets;
    let published = published(sets).filter(|_| publish).map(|pair| (None, pair));
    let items = sets.items.iter().enumerate().filter(|_| look);
    let seen = items.flat_map(|(index, item)| seen(sets, item).map(move |pair| (Some(index), pair)));
    pairs.extend(published.chain(seen));
    for item in pairs.iter().filter_map(|(item, _)| *item) {
        tx.state.sets.items[item].vouched = true;
    }
    for pairs in pairs.chunks(vcache::PAIRS_MAX) {
        let publishes = pairs.iter().filter(|(item, _)| item.is_none()).count();
        let mut round = tx.lane.round();
        let staged = round.stage_words(2 * pairs.len());
        for (words, (_, (record, version))) in round.staged_mut(staged).chunks_exact_mut(2).zip(pairs) {
            words.copy_from_slice(&[record.to_bits(), version.to_bits()]);
        }
        let head = [Code::Consult.word(publishes), tx.state.epoch];
        let call = round.call(host, &head, Some(staged), vcache::PAIRS_MAX / 64);
        let done = tx.lane.execute(round).await?;
        let current = done.reply(call);
        if current.len() < pairs.len().div_ceil(64) {
            return Err(Limit::NoVersionCache.into());
        }
        for (number, (item, _)) in pairs.iter().enumerate() {
            let Some(item) = item else { continue };
            tx.state.sets.items[*item].vouched &= current[number / 64] >> (number % 64) & 1 == 1;
        }
    }
    tx.state.asked = pairs;
    Ok(())
}

/// The versions that this transaction is about to install.
fn published(sets: &Sets) -> impl Iterator<Item = (Pointer, Version)> {
    let written = sets.items.iter().filter(|item| item.is_written() && has_cache(sets, item));
    written.map(|item| (item.location.pointer, item.version.committed_over()))
}

/// Whether what is published of a record's table is in the version cache.
fn has_cache(sets: &Sets, item: &Item) -> bool {
    sets.table(item.table).entry().spec.discipline.has_version_cache()
}

/// The versions by which the version cache can tell whether what was only read is still so, or whether a key is still
/// absent; none if it cannot.
fn seen<'s>(sets: &'s Sets, item: &'s Item) -> impl Iterator<Item = (Pointer, Version)> + 's {
    let table = sets.table(item.table);
    let is_asked = item.lock != Lock::Held && !item.structural && has_cache(sets, item);
    let is_absent = matches!(item.fetch, Fetch::Absent);
    let record = (is_asked && !is_absent).then_some((item.location.pointer, item.version));
    // An insert of the key publishes the slot that it fills; if that is in a bucket behind these, then the last header too.
    let fstore = table.fstore().filter(|_| is_asked && is_absent);
    let chain = fstore.into_iter().flat_map(move |fstore| {
        chain_of(&sets.tables, &sets.arena, item).flat_map(move |link| {
            let BucketRef { shard, bucket } = link.bucket;
            let slots = link.slots.iter().step_by(chain::SLOT_WORDS).zip(0..);
            let slots = slots.map(move |(word, slot)| (fstore.slot_at(bucket, slot), *word));
            let words = std::iter::once((fstore.buckets.at(bucket), link.header)).chain(slots);
            words.map(move |(at, word)| (Pointer::new(table.shard_id(shard), at), Version::from_bits(word).0))
        })
    });
    record.into_iter().chain(chain)
}

/// Looks again, at the primaries, at what was read and is not locked (invariant 2); but for what the version cache vouches
/// for.
async fn validate(tx: &mut Tx<'_>, writes: bool) -> Result<(), Stop> {
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let mut round = tx.lane.round();
        let state = &mut *tx.state;
        state.checks.clear();
        while let Some(item) = state.sets.items.get(next) {
            let fits = match item.fetch {
                _ if item.lock == Lock::Held || item.structural => true,
                _ if item.vouched => true,
                _ if has_cache(&state.sets, item) && mutant!(RefuseOtherVersions) => return Err(Abort::Changed.into()),
                Fetch::Absent => look_for(&state.sets, next, &mut round, &mut state.checks),
                _ if !round.has_room(1, VALIDATED_BYTES) => false,
                _ => {
                    let mut at = item.address;
                    if writes && mutant!(ValidateAtBackup) {
                        let replicas = state.sets.table(item.table).replicas(item.location.pointer);
                        at = replicas[replicas.len() - 1].address(item.location.pointer.offset());
                    }
                    state.checks.push(Check::Read { item: next, read: round.read(at, VALIDATED_BYTES) });
                    true
                }
            };
            if !fits {
                break;
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        for check in &tx.state.checks {
            let passed = passes(&tx.state.sets, &done, *check, writes, [tx.id.lock(), tx.state.released.holder]);
            if let (Err(stop), Check::Read { item, .. } | Check::Bucket { item, .. }) = (passed, *check) {
                tx.state.sets.note(item, stop);
            }
            passed?;
        }
    }
    Ok(())
}

/// Adds the buckets of an absent key's chain. A chain that no round has room for is read as far as it fits, and refused.
fn look_for(sets: &Sets, item: usize, round: &mut Round<'_>, checks: &mut Vec<Check>) -> bool {
    if mutant!(AbsentWithoutValidation) {
        return true;
    }
    let one = &sets.items[item];
    let table = sets.table(one.table);
    let (bytes, links) = (table.bucket_bytes(), chain_of(&sets.tables, &sets.arena, one).count());
    if !round.has_room(links, links * bytes) && !round.is_empty() {
        return false;
    }
    let mut chain = one.chain as usize;
    for link in chain_of(&sets.tables, &sets.arena, one) {
        checks.push(Check::Bucket {
            item,
            chain: chain - 1,
            read: round.read(table.bucket_address(link.bucket), bytes),
        });
        chain = sets.arena[chain - 1] as usize;
    }
    true
}

/// Whether what was looked at again is still what was read, and nobody else has it locked.
fn passes(
    sets: &Sets,
    done: &Completed<'_>,
    check: Check,
    writes: bool,
    [me, released]: [LockWord; 2],
) -> Result<(), Stop> {
    let (item, words, same) = match check {
        Check::Read { item, read } => {
            let (item, words) = (&sets.items[item], done.words(read));
            (item, words, words.get(1) == Some(&item.version.to_bits()))
        }
        Check::Bucket { item, chain, read } => {
            let (item, words) = (&sets.items[item], done.words(read));
            (item, words, bucket_is_same(sets.table(item.table), &sets.arena[chain..], words))
        }
        Check::Call { .. } | Check::Find { .. } => return Err(Abort::Changed.into()), // never asked for here
    };
    debug_assert!(!item.structural);
    let lock = RecordHeader::parse(words).map_or(LockWord::FREE, |header| header.lock);
    let anothers = !is_nobodys(lock, released) && lock != me;
    let ignored = if writes { mutant!(ValidateVersionOnly) } else { mutant!(ValidateReadOnlyVersionOnly) };
    if anothers && !ignored {
        return Err(Abort::Locked(lock).into());
    }
    if same { Ok(()) } else { Err(Abort::Changed.into()) }
}

/// Whether no version of a bucket has changed since it was put into the arena.
fn bucket_is_same(table: &Table, before: &[u64], now: &[u64]) -> bool {
    let Some(fstore) = table.fstore() else { return false };
    let slots = before[chain::HEAD_WORDS..].chunks_exact(chain::SLOT_WORDS);
    let version = |slot: usize| now.get(BUCKET_HEADER_BYTES / 8 + slot * fstore.slot_bytes as usize / 8 + 1);
    now.get(1) == Some(&before[3])
        && slots.take(fstore.slots as usize).enumerate().all(|(slot, words)| version(slot) == Some(&words[0]))
}

// ---- commit ---------------------------------------------------------------------------------------------------------

pub(super) async fn commit(tx: &mut Tx<'_>, ford: Ford) -> Result<(), Stop> {
    if tx.state.sets.written == 0 {
        return validate_read_only(tx).await;
    }
    if !mutant!(InsertLeavesHeader) {
        touch_chains(tx);
    }
    let entry = prepare_entry(tx)?;
    let released = &tx.state.released;
    let inherits = |item: &Item| item.is_written() && released.holds_back(tx.lane, item.address);
    tx.heir |= tx.state.sets.items.iter().any(inherits);
    if !mutant!(HeirWritesEarly) {
        tx.inherit().await?;
    }
    while !tx.state.has_room_for_undo(tx.lane, entry.words) {
        if tx.lane.background() == 0 {
            return Err(Limit::LogInDoubt.into());
        }
        tx.lane.sleep(LOG_PAUSE_NS).await;
    }
    if mutant!(LogWithoutLocks) {
        let mut round = tx.lane.round();
        write_entry(tx, &mut round, &entry);
        tx.lane.execute(round).await?;
    }
    if mutant!(ValidateWithLocks) {
        validate(tx, true).await?;
        lock_rest(tx).await?;
    } else {
        lock_rest(tx).await?;
        let publish = !mutant!(PublishBehindValidation) && !mutant!(PublishBehindCommit);
        consult(tx, publish, true).await?;
        if !mutant!(ValidateAfterCommit) {
            validate(tx, true).await?;
        }
    }
    if mutant!(PublishBehindValidation) {
        consult(tx, true, false).await?;
    }
    tx.mark(|phases, now| phases.validated = now);
    tx.lane.probe(probes::VALIDATED);
    tx.committing();
    write_replicas(tx, &entry, ford).await?;
    if mutant!(ValidateAfterCommit) {
        validate(tx, true).await?;
    }
    if mutant!(PublishBehindCommit) {
        consult(tx, true, false).await?;
    }
    tx.mark(|phases, now| phases.logged = now);
    tx.lane.probe(probes::LOGGED);
    release(tx, ford).await;
    tx.lane.probe(probes::INSTALLED);
    Ok(())
}

/// An insert changes the version of its chain's first header: who has found the key absent sees that also when its READ of
/// the header comes after this transaction's unlock, and those of the slots before its commit.
fn touch_chains(tx: &mut Tx<'_>) {
    for index in 0..tx.state.sets.items.len() {
        let sets = &mut tx.state.sets;
        let item = sets.items[index];
        let Some(fstore) = sets.table(item.table).fstore().filter(|_| item.change == Change::Insert) else { continue };
        let header =
            Pointer::new(sets.table(item.table).shard_id(item.home.shard), fstore.buckets.at(item.home.bucket));
        let header = sets.items.iter().position(|other| other.structural && other.location.pointer == header);
        if let Some(header) = header.filter(|header| !sets.items[*header].is_written()) {
            let next = sets.structural_value(&sets.items[header]);
            sets.set_structural(header, next);
        }
    }
}

/// The undo entry of a transaction: which nodes get it, and how long it is.
struct UndoEntry {
    participants: u64,
    backups: u64,
    words: usize,
}

fn prepare_entry(tx: &mut Tx<'_>) -> Result<UndoEntry, Stop> {
    let sets = &mut tx.state.sets;
    sets.encode_images();
    let (mut participants, mut backups) = (0u64, 0u64);
    for item in sets.items.iter().filter(|item| item.is_written()) {
        for (number, replica) in sets.table(item.table).replicas(item.location.pointer).iter().enumerate() {
            participants |= 1 << replica.node.0;
            backups |= u64::from(number > 0) << replica.node.0;
        }
    }
    if participants.count_ones() as usize > LOG_NODES_MAX {
        return Err(Limit::LogNodes { nodes: participants.count_ones() }.into());
    }
    let words = entry_words(sets, is_logged);
    if words > FRAME_BYTES_MAX / 8 {
        return Err(Limit::LogEntry { bytes: words * WORD_BYTES }.into());
    }
    tx.undo_words = words;
    Ok(UndoEntry { participants, backups, words })
}

/// Whether a record is in the undo entry: if it is written.
fn is_logged(item: &Item) -> bool {
    item.is_written() && !(mutant!(InsertsNotLogged) && item.change == Change::Insert)
}

/// Words of the frame of an undo entry of some records.
fn entry_words(sets: &Sets, logged: impl Fn(&Item) -> bool) -> usize {
    let logged = sets.items.iter().filter(|item| logged(item));
    let records: usize = logged.map(|item| log::RECORD_WORDS + sets.shape(item).image_words()).sum();
    FRAME_OVERHEAD_WORDS + log::HEADER_WORDS + records
}

/// Locks what is written and was only named to be read, and sees in the same round trip whether it is still what was read.
async fn lock_rest(tx: &mut Tx<'_>) -> Result<(), Stop> {
    let mut next = 0;
    while next < tx.state.sets.items.len() {
        let (first, mut round) = (next, tx.lane.round());
        while next < tx.state.sets.items.len() {
            let item = tx.state.sets.items[next];
            if item.is_written() && item.lock == Lock::No {
                let bytes = tx.state.sets.shape(&item).record_bytes();
                if !round.has_room(2, bytes + 4 * 8) {
                    break;
                }
                lock(tx, &mut round, next);
                tx.state.sets.items[next].read = round.read(item.address, bytes);
                tx.state.sets.items[next].asked = true;
            }
            next += 1;
        }
        let done = tx.lane.execute(round).await?;
        if locked(tx, &done)? == Locks::Again {
            return Err(Abort::Changed.into()); // nothing is taken over here
        }
        let Sets { tables, items, arena, .. } = &mut tx.state.sets;
        for item in &mut items[first..next] {
            if !std::mem::take(&mut item.asked) {
                continue;
            }
            let record = check(FetchedRecord::new(done.words(item.read), shape(tables, item)));
            let unchanged =
                |record: &StableRecord<'_>| record.version() == item.version || mutant!(LockWithoutValidation);
            let Some(record) = record.ok().filter(unchanged) else { return Err(Abort::Changed.into()) };
            item.keep_before(arena, &record);
        }
    }
    Ok(())
}

/// The ring of this lane at a node.
fn ring_of<'t>(tx: &'t Tx<'_>, node: NodeId) -> &'t RingWriter {
    &tx.state.rings[usize::from(node.0)]
}

/// Where the undo entry of this lane lies there.
fn undo_at(tx: &Tx<'_>, node: NodeId) -> Address {
    ring_of(tx, node).undo_at(tx.state.undo.at)
}

/// Installs the write set on every replica, invisible, each node's undo entry before it (invariants 3 and 4).
async fn write_replicas(tx: &mut Tx<'_>, entry: &UndoEntry, ford: Ford) -> Result<(), Stop> {
    debug_assert!(tx.unsent.is_empty());
    let first = commit_rounds(tx, entry, ford);
    if mutant!(CommitBeforeLog) {
        tx.locking = false;
        tx.lane.post(first);
        return Ok(());
    }
    let posted = tx.lane.execute(first);
    if !posted.was_sent() {
        // Nothing of it will ever be anywhere: it has aborted, and its locks are released.
        tx.unsent.clear();
        return posted.await.map(|_| ()).map_err(Stop::from);
    }
    // From here on only recovery may undo it: neither an error nor a drop releases its locks.
    tx.locking = false;
    tx.logging = Some(posted);
    while let Some(posted) = &mut tx.logging {
        let outcome = posted.await.map(|_| ());
        tx.logging = None;
        if let Err(error) = outcome {
            tracing::warn!(id = %tx.id, %error, "the answer to a commit was lost: the outcome is unknown");
            tx.unsent.clear();
            tx.state.doubt();
            tx.state.undo_written(entry.words, Needed::Ever);
            return Err(Stop::Unknown(tx.id));
        }
        if !tx.unsent.is_empty() {
            let next = tx.unsent.remove(0);
            tx.logging = Some(tx.lane.execute(next));
        }
    }
    Ok(())
}

/// The rounds of the commit: the first one, and, where they do not fit one round, the others in [`Tx::unsent`], to be sent
/// one after the other.
fn commit_rounds<'s>(tx: &mut Tx<'s>, entry: &UndoEntry, ford: Ford) -> Round<'s> {
    let lane = tx.lane;
    let mut round = lane.round();
    let sets = &tx.state.sets;
    let written = || sets.items.iter().filter(|item| item.is_written());

    if !mutant!(DataBeforeLog) {
        write_entry(tx, &mut round, entry);
    }
    let mut rounds: Vec<Round<'s>> = Vec::new();
    // Which replicas, by their number, are written together: all, or backups before primaries.
    let kinds: &[fn(usize) -> bool] =
        if ford.coalesce { &[|_| true] } else { &[|number| number > 0, |number| number == 0] };
    for kind in kinds {
        if !ford.coalesce {
            rounds.push(std::mem::replace(&mut round, lane.round()));
        }
        for item in written() {
            let image = sets.image(item);
            let replicas = sets.table(item.table).replicas(item.location.pointer);
            let verbs = 3 * replicas.len() + entry.backups.count_ones() as usize;
            if !round.has_room(verbs, size_of_val(image)) {
                flush_backups(&mut round, entry, ford);
                rounds.push(std::mem::replace(&mut round, lane.round()));
            }
            let from = if mutant!(WriteCoversLock) { 0 } else { IMAGE_AT };
            let lock = (IMAGE_AT - from) as usize / 8;
            let staged = round.stage_words(lock + image.len());
            let (before, copy) = round.staged_mut(staged).split_at_mut(lock);
            before.fill(tx.id.lock().to_bits());
            copy.copy_from_slice(image);
            if let Some(version) = copy.first_mut().filter(|_| ford.corrections && !mutant!(VisibleAtOnce)) {
                *version |= Version::INVISIBLE;
            }
            for (number, replica) in replicas.iter().enumerate().filter(|(number, _)| kind(*number)) {
                if !ford.corrections {
                    let lock = if number == 0 { tx.id.lock() } else { LockWord::FREE }.to_bits();
                    round.compare_swap(replica.address(item.location.pointer.offset()), lock, lock);
                }
                round.write_staged(replica.address(item.location.pointer.offset() + from), staged);
                if !ford.selective_flush {
                    round.flush(replica.node);
                }
            }
        }
        if kind(1) {
            flush_backups(&mut round, entry, ford);
        }
    }
    if mutant!(DataBeforeLog) {
        write_entry(tx, &mut round, entry);
    }
    if rounds.is_empty() {
        return round;
    }
    rounds.push(round);
    let first = rounds.remove(0);
    tx.unsent = rounds;
    first
}

/// Adds the WRITE of the undo entry to every participant.
fn write_entry(tx: &Tx<'_>, round: &mut Round<'_>, entry: &UndoEntry) {
    let sets = &tx.state.sets;
    if mutant!(LogOwnRecords) {
        for node in nodes(entry.participants) {
            let is_there = |item: &Item| {
                sets.table(item.table).replicas(item.location.pointer).iter().any(|replica| replica.node == node)
            };
            let logged = |item: &Item| is_logged(item) && is_there(item);
            let own = UndoEntry { words: entry_words(sets, logged), ..*entry };
            write_entry_of(tx, round, &own, 1 << node.0, logged);
        }
        return;
    }
    let to = if mutant!(LogAtPrimary) {
        sets.items.iter().find(|item| item.is_written()).map_or(0, |item| 1 << item.address.node.0)
    } else {
        entry.participants
    };
    write_entry_of(tx, round, entry, to, is_logged);
}

/// Adds the WRITE of an undo entry of some records to these nodes.
fn write_entry_of(tx: &Tx<'_>, round: &mut Round<'_>, entry: &UndoEntry, to: u64, logged: impl Fn(&Item) -> bool) {
    let sets = &tx.state.sets;
    let words = entry.words;
    let records = sets.items.iter().filter(|item| logged(item)).map(|item| UndoRecord {
        pointer: item.location.pointer,
        version: item.version.committed_over().to_bits(),
        checksum: log::image_checksum(sets.image(item)),
        before: item.before(&sets.arena),
    });
    let staged = round.stage_words(words);
    let frame = round.staged_mut(staged);
    let kind = UndoKind { lap: tx.state.undo.lap, lean: tx.state.protocol.needs_atomic_writes() };
    log::encode_undo(&mut frame[2..words - 1], [tx.state.epoch, entry.participants], kind, records);
    ring::seal_undo(frame, tx.id.to_bits());
    let reach = tx.state.undo.reach_with(words);
    if reach > UNDO_WINDOW {
        let word = round.stage_words(1);
        round.staged_mut(word)[0] = reach;
        nodes(to).for_each(|node| round.write_staged(ring_of(tx, node).reach_at(), word));
    }
    for node in nodes(to) {
        round.write_staged(undo_at(tx, node), staged);
    }
}

/// One flush behind the last WRITE to each backup. A primary's memory is rebuilt from a backup if it fails.
fn flush_backups(round: &mut Round<'_>, entry: &UndoEntry, ford: Ford) {
    if ford.selective_flush {
        nodes(entry.backups).for_each(|node| round.flush(node));
    }
}

// ---- release --------------------------------------------------------------------------------------------------------

/// Makes the write set visible and frees its logs, and then its locks: the transaction has committed.
async fn release(tx: &mut Tx<'_>, ford: Ford) {
    let lane = tx.lane;
    let release = Release::of(tx);
    // Of a release of many rounds, the one that frees the entry may come behind the next commit.
    let needed = if release.full.is_empty() { Needed::No } else { Needed::Meanwhile };
    tx.state.undo_written(tx.undo_words, needed);
    let locks = tx.state.sets.items.iter().filter(|item| item.lock == Lock::Held).map(|item| item.address);
    tx.state.released.begin(lane, tx.id.lock(), locks);
    if mutant!(UnlockFirst) {
        return release.rounds().for_each(|round| lane.post(round));
    }
    if ford.background_release {
        let unlock = lane.post_all(release.rounds());
        return tx.state.released.by(unlock);
    }
    let mut waiting = Acknowledged::of(tx);
    let mut rounds = Awaited { under_way: None, rest: release.rounds() };
    #[expect(clippy::while_let_on_iterator, reason = "the guard needs what is left of them")]
    while let Some(round) = rounds.rest.next() {
        let outcome = rounds.under_way.insert(lane.execute(round)).await.map(drop);
        rounds.under_way = None;
        if let Err(error) = outcome {
            tracing::warn!(id = %waiting.tx().id, %error, "a release was not acknowledged");
            waiting.tx().state.doubt();
            break;
        }
    }
    waiting.done();
}

/// Rounds that are awaited one after the other. If it is dropped meanwhile, the others follow in the background.
struct Awaited<'s, I: Iterator<Item = Round<'s>>> {
    under_way: Option<Execute<'s>>,
    rest: I,
}

impl<'s, I: Iterator<Item = Round<'s>>> Drop for Awaited<'s, I> {
    fn drop(&mut self) {
        if let Some(under_way) = self.under_way.take() {
            under_way.then_post_all(&mut self.rest);
        }
    }
}

/// The rounds of a release, each to be sent when the one before has been acknowledged (invariant 5).
///
/// The unlocks are a round of their own rather than the end of a fenced one: a fence holds up what the endpoint's other
/// lanes post behind it, for a round trip.
pub(crate) struct Release<'s> {
    /// What did not fit the next one: almost never any.
    full: Vec<Round<'s>>,
    /// Versions, visible, and at the end the undo entry, free.
    shown: Round<'s>,
    /// What did not fit the last one.
    full_unlocks: Vec<Round<'s>>,
    unlocks: Round<'s>,
}

impl<'s> Release<'s> {
    pub(crate) fn rounds(self) -> impl Iterator<Item = Round<'s>> {
        self.full.into_iter().chain([self.shown]).chain(self.full_unlocks).chain([self.unlocks])
    }

    pub(crate) fn of(tx: &mut Tx<'s>) -> Release<'s> {
        let (lane, me) = (tx.lane, tx.id.lock().to_bits());
        let Protocol::Ford(Ford { corrections, lean, .. }) = tx.state.protocol else { unreachable!("FORD's release") };
        let (mut full, mut shown) = (Vec::new(), lane.round());
        let sets = &tx.state.sets;
        let free_entries = |round: &mut Round<'_>, at: u64| {
            let free = round.stage_words(1);
            round.staged_mut(free)[0] = ring::freed(tx.id.to_bits());
            nodes(at).for_each(|node| round.write_staged(undo_at(tx, node), free));
        };
        if mutant!(FreeBeforeVisible) {
            let written = sets.items.iter().filter(|item| item.is_written());
            let replicas = written.flat_map(|item| sets.table(item.table).replicas(item.location.pointer));
            free_entries(&mut shown, replicas.fold(0, |at, replica| at | 1 << replica.node.0));
        }
        let mut participants = 0u64;
        for item in sets.items.iter().filter(|item| item.is_written()) {
            let table = sets.table(item.table);
            match item.change {
                Change::Insert => table.learn(item.home, item.hash, item.location),
                Change::Delete => table.forget(item.home, item.hash, item.location),
                Change::No | Change::Update => {}
            }
            let replicas = table.replicas(item.location.pointer);
            if !shown.has_room(replicas.len() + 1, 8 + 16 * replicas.len()) {
                full.push(std::mem::replace(&mut shown, lane.round()));
            }
            let version = item.version.committed_over().to_bits();
            let (word, at) = if corrections { (version, IMAGE_AT) } else { (LockWord::FREE.to_bits(), 0) };
            let staged = shown.stage_words(1);
            shown.staged_mut(staged)[0] = word;
            for (number, replica) in replicas.iter().enumerate() {
                participants |= 1 << replica.node.0;
                let at = replica.address(item.location.pointer.offset() + at);
                if lean && number > 0 && !mutant!(ShowByWrite) {
                    shown.compare_swap(at, version | Version::INVISIBLE, version);
                } else {
                    shown.write_staged(at, staged);
                }
            }
        }
        if lean {
            return Release::lean(tx, full, shown);
        }
        if !shown.has_room(participants.count_ones() as usize, 8) {
            full.push(std::mem::replace(&mut shown, lane.round()));
        }
        if !mutant!(KeepEntries) {
            free_entries(&mut shown, participants);
        }
        let (mut full_unlocks, mut unlocks) = (Vec::new(), lane.round());
        for item in sets.items.iter().filter(|item| item.lock == Lock::Held && (corrections || !item.is_written())) {
            if !unlocks.has_room(1, 16) {
                full_unlocks.push(std::mem::replace(&mut unlocks, lane.round()));
            }
            unlocks.compare_swap(item.address, me, LockWord::FREE.to_bits());
        }
        Release { full, shown, full_unlocks, unlocks }
    }

    /// Unlocks in the round that makes the replicas visible: at each primary behind it.
    fn lean(tx: &Tx<'s>, mut full: Vec<Round<'s>>, mut shown: Round<'s>) -> Release<'s> {
        for item in tx.state.sets.items.iter().filter(|item| item.lock == Lock::Held) {
            if !shown.has_room(1, 16) {
                full.push(std::mem::replace(&mut shown, tx.lane.round()));
            }
            shown.compare_swap(item.address, tx.id.lock().to_bits(), LockWord::FREE.to_bits());
        }
        Release { full, shown, full_unlocks: Vec::new(), unlocks: tx.lane.round() }
    }
}
