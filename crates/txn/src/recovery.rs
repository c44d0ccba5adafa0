//! Recovery: finishes the transactions of a client that died, or that was taken for dead.
//!
//! ```text
//! suspect     the configuration makes one client its recoverer               (`remora_membership`)
//! revoke      the dead client, and every earlier recoverer of it,            [`repair`]
//!             at every memory node
//! read        its redo rings at all nodes; the union of whole entries, by transaction
//! decide      any whole entry anywhere: forward
//!             no whole entry: it was never reported, and nothing of it is installed
//! complete    entries go where they were going: to every participant's ring
//! install     at the primaries, under the dead client's own locks;
//!             each lock is freed behind its record
//! recovered   the configuration says that the client's locks                 (`remora_membership`)
//!             mean nothing any more
//! sweep       locks without a log, inserts that were prepared                [`sweep`]
//! give back   its slot and its rings, once they have been applied            [`give_back`]
//! ```
//!
//! # Why this never contradicts an answer
//!
//! 1. *Revoke before anything is read, at every node.* Otherwise the recoverer would miss an entry
//!    that is in flight while it reads the rings, and the entry would land after its locks had been
//!    freed. A revocation returns when no verb of the client can take effect any more. From then on
//!    the client's rings stand still.
//! 2. *Forward, if there is any entry.* A transaction is reported as committed only when every
//!    participant has acknowledged its entry. So every participant that is alive has the entry. A
//!    client sends an entry only under all locks of a write set that it has validated, and never
//!    withdraws it. So rolling the transaction forward is always right, even if it was not
//!    reported.
//! 3. *Log before data.* If only some participants have an entry, the recoverer puts it into the
//!    rings of the others before it installs anything of it. The dead client had reserved the room
//!    for it there, and would have written it at the same place. The recoverer leaves backups to
//!    their appliers, which are their only writers. So a repair never meets an older entry of
//!    another client that is half applied. And what the recoverer installs at a primary can be
//!    found at another node as well.
//! 4. *A lock says that its transaction is not installed.* The lock of a logged transaction is
//!    freed only after its record has been written, and ids are never reused. So if a record's lock
//!    is free, or another transaction's, the record has been installed. That may be long ago, and
//!    the record may have changed since. So the recoverer leaves the record alone. This also makes
//!    recovery idempotent. If a recoverer dies half-way, its successor finds the same rings, and
//!    the records that are still locked.
//! 5. *Decide before freeing.* A lock of the dead client that no log names looks like a logged one.
//!    Until all transactions of the dead client are decided, other clients wait for its locks, but
//!    only on the locked records. From then on any client that meets one of these locks frees it
//!    ([`Departed`]).
//! 6. *The rings stay until everything is done*, because a successor recovers from them.
//!
//! The recoverer asserts rules 2 to 4. The membership asserts a part of rule 1: recoverers are
//! alive, so a successor finds all that have died. The rest is about several machines. The litmus
//! tests `redo-zombie` and `redo-late-recoverer` check rule 1, `ford-foreign-unlock` checks rule 5,
//! and `crates/remora/tests/recovery.rs` checks rule 6: recoverers die at every step.

mod attempts;
mod batches;
mod copy;
mod fail_over;
mod in_place;

use std::collections::{BTreeMap, VecDeque};

use remora_fabric::limits::ROUND_VERBS_MAX;
use remora_fabric::{Address, ClientId, Fabric, LINE_BYTES, Lane, NodeId, NodeSet, WORD_BYTES, probes};
use remora_index::cluster_hash::{self, Geometry, HEADER_SLOTS_WORD, is_empty};
use remora_index::{Patch, fstore};
use remora_node::ring::{RingCopy, RingSpan};
use remora_node::{
    Discipline, IndexKind, MemoryError, Metadata, Pointer, ReadScheme, Remains, Replica, ShardId, ShardPlacement,
    metadata,
};
use remora_record::{
    FetchedRecord, Life, LockWord, RecordHeader, RecordShape, SharedLock, Swap, TransactionId, structural,
};

pub use copy::{Copier, copy};
pub use fail_over::{Decided, Loss, Tell, fail_over};

pub use crate::event::Rollback;
use crate::log::{self, LoggedRecord, PATCH_WORDS};
use crate::protocol::spec::Primitive;
use crate::rpc::Code;
use crate::shared::leave_in;
use crate::swap::swap_lock;
use crate::time::times_heard;

/// Tells which clients are recovered, so that their locks mean nothing any more.
pub trait Departed {
    /// Returns whether everything that this client had logged has been decided and repaired. Then
    /// any client that meets one of its locks may free the lock. It is false for a client that is
    /// only suspected.
    fn is_recovered(&self, client: u32) -> bool;
}

/// The outcome of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The transaction has committed.
    Committed,
    /// The transaction has not committed, and never will.
    Aborted,
    /// The transaction is under way, or its client is dead and not recovered yet.
    Undecided,
    /// The outcome is not known any more. The transaction is too old: its log entry, if it had one,
    /// has been overwritten.
    Forgotten,
}

/// The outcomes of the last transactions of a dead client. They are kept so that programs can ask
/// for them after the client's rings are gone.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Verdicts {
    /// Ids of transactions that have committed, in ascending order.
    committed: Vec<u64>,
    /// Ids of transactions that were rolled back, in ascending order.
    rolled_back: Vec<u64>,
    /// Every transaction from this id on that is not listed as committed has aborted.
    from: u64,
}

/// Number of committed transactions of each lane that verdicts name at least: the lane's newest
/// ones. [`NEWEST`] is the number of the newest ones of all lanes together.
const NEWEST_OF_LANE: usize = 4;
const NEWEST: usize = 64;

impl Verdicts {
    /// Returns the verdicts of a client that had left, and so had no rings any more.
    fn none() -> Verdicts {
        Verdicts { committed: Vec::new(), rolled_back: Vec::new(), from: u64::MAX }
    }

    fn of_rings(rings: &[Ring], logged: &BTreeMap<u64, Logged>) -> Verdicts {
        let from = rings.iter().map(|ring| ring.copy.whole_from()).max().unwrap_or(0);
        let cut = logged.keys().rev().nth(NEWEST).map_or(0, |oldest| oldest + 1);
        let mut of_lane = BTreeMap::<usize, usize>::new();
        let newest = logged.iter().rev().enumerate().filter(|(place, (_, entry))| {
            let count = of_lane.entry(entry.lane).or_default();
            *count += 1;
            *place < NEWEST || *count <= NEWEST_OF_LANE
        });
        let mut committed: Vec<u64> = newest.map(|(_, (id, _))| *id).collect();
        committed.reverse();
        Verdicts { committed, rolled_back: Vec::new(), from: from.max(cut) }
    }

    fn add_in_place(&mut self, entries: in_place::Entries) {
        self.committed.extend(entries.committed);
        self.committed.sort_unstable();
        self.rolled_back = entries.undone;
        self.rolled_back.sort_unstable();
        self.from = self.from.max(entries.from);
    }

    /// Adds attempts of protocol `rtx`, and whether they have committed. Not all attempts have a
    /// log. So what became of the others is forgotten.
    fn add_attempts(&mut self, attempts: &[(TransactionId, bool)]) {
        for (id, has_committed) in attempts {
            let ids = if *has_committed { &mut self.committed } else { &mut self.rolled_back };
            ids.push(id.to_bits());
        }
        self.committed.sort_unstable();
        self.rolled_back.sort_unstable();
        self.from = u64::MAX;
    }

    /// Returns the outcome of a transaction.
    #[must_use]
    pub fn of(&self, id: TransactionId) -> Verdict {
        if self.committed.binary_search(&id.to_bits()).is_ok() {
            Verdict::Committed
        } else if id.to_bits() >= self.from || self.rolled_back.binary_search(&id.to_bits()).is_ok() {
            Verdict::Aborted
        } else {
            Verdict::Forgotten
        }
    }
}

/// Decides and repairs every transaction that the dead clients had logged. The dead clients are one
/// client, and those of its recoverers which have died since. The call is idempotent: a successor
/// may run it again. Returns the verdicts of each client. Calls `told` for each record that is put
/// back, before the record is written.
pub async fn repair(
    fabric: &dyn Fabric,
    lane: &Lane,
    nodes: NodeSet,
    dead: &[u32],
    told: &dyn Fn(&Rollback<'_>),
) -> Result<Vec<(u32, Verdicts)>, MemoryError> {
    revoke(fabric, dead)?;
    lane.probe(probes::REPAIRS);
    let catalog = metadata::read(lane, nodes.leader()).await?;
    decide(lane, nodes, catalog, dead, told).await
}

/// Takes all access from dead clients.
fn revoke(fabric: &dyn Fabric, dead: &[u32]) -> Result<(), MemoryError> {
    for client in dead {
        // The mutant `SpareRecoverers` relies on the order of `dead`: a recoverer is named before
        // the clients that it was to recover.
        let spared = mutant!(RevokeNobody) || mutant!(SpareRecoverers) && dead.last() != Some(client);
        if !spared {
            fabric.revoke(ClientId(*client))?;
        }
    }
    Ok(())
}

/// Decides and repairs every transaction that clients without access had logged, with the tables
/// and shards of a catalog.
async fn decide(
    lane: &Lane,
    nodes: NodeSet,
    metadata: Metadata,
    dead: &[u32],
    told: &dyn Fn(&Rollback<'_>),
) -> Result<Vec<(u32, Verdicts)>, MemoryError> {
    let catalog = Catalog { metadata };
    let mut verdicts = Vec::with_capacity(dead.len());
    for client in dead {
        let Some(remains) = Remains::find(lane, nodes, *client).await? else {
            verdicts.push((*client, Verdicts::none()));
            continue;
        };
        let mut rings = Ring::read_all(lane, &remains, *client).await?;
        let logged = Logged::union(&rings);
        for (id, entry) in &logged {
            match entry.rule(&catalog) {
                Some(Rule::Redo) if mutant!(UndoLogged) => {}
                Some(Rule::Redo) if mutant!(InstallIncomplete) => {}
                Some(Rule::Redo) => entry.complete(lane, *id, &mut rings).await?,
                None => tracing::debug!(id, "a log entry is only about tables that were dropped: it is over"),
            }
        }
        let is_complete =
            |(id, entry): (&u64, &Logged)| entry.rule(&catalog).is_none() || entry.is_complete(*id, &rings);
        debug_assert!(
            logged.iter().all(is_complete) || mutant!(UndoLogged) || mutant!(InstallIncomplete),
            "recovery 3: every participant has the entry before the recoverer installs anything of it"
        );
        if !mutant!(UndoLogged) {
            catalog.install(lane, &logged).await?;
        }
        let mut of_client = Verdicts::of_rings(&rings, &logged);
        let is_aborted = |id| TransactionId::from_bits(id).is_some_and(|id| of_client.of(id) == Verdict::Aborted);
        debug_assert!(
            !logged.keys().copied().any(is_aborted),
            "recovery 2: a transaction with an entry anywhere is rolled forward"
        );
        if catalog.has_tables_in_place() {
            of_client.add_in_place(in_place::repair(lane, &catalog.metadata, &mut rings, told).await?);
        }
        if catalog.has_repairable_tables() {
            of_client.add_attempts(&attempts::end_all(lane, nodes, *client, &remains).await?);
        }
        tracing::info!(client, transactions = logged.len(), "a dead client's transactions are decided");
        verdicts.push((*client, of_client));
    }
    if catalog.metadata.tables.iter().any(|table| table.spec.discipline.stamps_at_release()) {
        spread_times(lane, nodes).await?;
    }
    Ok(verdicts)
}

/// Tells all memory nodes of the largest time of which one of them has heard. From then on, a node
/// that frees a lock of a recovered client knows a bound of the times at which that client's
/// transactions have read. So this comes after all of them are installed, and before the client
/// counts as recovered.
async fn spread_times(lane: &Lane, nodes: NodeSet) -> Result<(), MemoryError> {
    let heard = times_heard(lane, nodes).await?;
    let largest = heard.iter().map(|(_, time)| *time).max().unwrap_or(0);
    let mut round = lane.round();
    for (node, _) in heard.iter().filter(|(_, time)| *time < largest) {
        round.call(*node, &[Code::Hear.word(0), largest], None, 0);
    }
    if !round.is_empty() {
        lane.execute(round).await?;
    }
    Ok(())
}

/// The rule that decides the outcome of a logged transaction. The format of the transaction's log
/// says which rule it is, and the discipline of its tables names the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// Roll forward. New values were logged everywhere, or were on their way there, before anything
    /// was installed.
    Redo,
}

/// A transaction that a dead client had logged.
struct Logged {
    lane: usize,
    entry: Vec<u64>,
    /// Nodes that have the entry, one bit for each.
    at: u64,
}

impl Logged {
    /// Collects every transaction that has a whole entry at some node. All copies of an entry are
    /// equal.
    fn union(rings: &[Ring]) -> BTreeMap<u64, Logged> {
        let mut all = BTreeMap::<u64, Logged>::new();
        for ring in rings {
            ring.copy.entries(|id, entry| {
                let logged = all.entry(id);
                let logged = logged.or_insert_with(|| Logged { lane: ring.lane, entry: entry.to_vec(), at: 0 });
                debug_assert!(logged.entry == entry || mutant!(), "recovery 2: any one copy of an entry is enough");
                logged.at |= 1 << ring.node.0;
            });
        }
        all
    }

    fn participants(&self) -> u64 {
        self.entry.get(1).copied().unwrap_or(0)
    }

    fn rule(&self, catalog: &Catalog) -> Option<Rule> {
        // Tables may have been dropped since. Then the client had ended the transaction before.
        let mut shards = log::records(&self.entry).filter_map(|record| catalog.shard(record.pointer.shard()));
        let Discipline { replication, .. } = shards.next()?.discipline;
        (replication == Discipline::OCC_ONE_SIDED.replication).then_some(Rule::Redo)
    }

    /// Returns whether every participant whose ring is there has the entry, or has had it.
    fn is_complete(&self, id: u64, rings: &[Ring]) -> bool {
        let missing = self.participants() & !self.at;
        let lacks = |ring: &Ring| ring.lane == self.lane && missing >> ring.node.0 & 1 == 1 && ring.copy.last() < id;
        !rings.iter().any(lacks)
    }

    /// Puts the entry into the participants' rings that lack it. A ring whose last id is larger has
    /// had the entry, and later entries have overwritten it.
    async fn complete(&self, lane: &Lane, id: u64, rings: &mut [Ring]) -> Result<(), MemoryError> {
        let missing = self.participants() & !self.at;
        for ring in rings.iter_mut().filter(|ring| ring.lane == self.lane && missing >> ring.node.0 & 1 == 1) {
            if ring.copy.last() < id {
                ring.copy.append(lane, id, &self.entry).await?;
            }
        }
        Ok(())
    }
}

/// One ring of a dead client.
struct Ring {
    node: NodeId,
    lane: usize,
    /// Where the ring lies at the node.
    place: RingSpan,
    copy: RingCopy,
}

impl Ring {
    async fn read_all(lane: &Lane, remains: &Remains, client: u32) -> Result<Vec<Ring>, MemoryError> {
        let mut rings = Vec::new();
        for (node, number, place) in remains.rings() {
            rings.push(Ring { node, lane: number, place, copy: RingCopy::read(lane, node, place, client).await? });
        }
        Ok(rings)
    }
}

/// The catalog, for the shards that recovery asks about.
struct Catalog {
    metadata: Metadata,
}

/// One shard as recovery needs it.
struct Shard<'c> {
    placement: &'c ShardPlacement,
    discipline: Discipline,
    geometry: Geometry,
    /// The geometry to use instead, if the shard's index is FStore.
    fstore: Option<fstore::Geometry>,
    scheme: ReadScheme,
    shape: RecordShape,
}

impl Shard<'_> {
    fn of(metadata: &Metadata, id: ShardId) -> Option<Shard<'_>> {
        let placement = metadata.shards.get(usize::from(id.0)).filter(|shard| !shard.replicas.is_empty())?;
        let spec = &metadata.tables.get(usize::from(placement.table.0))?.spec;
        let (geometry, shape) = (Geometry::of(spec), RecordShape::of(&spec.layout));
        let fstore = (spec.index == IndexKind::FStore).then(|| fstore::Geometry::of(spec));
        Some(Shard { placement, discipline: spec.discipline, geometry, fstore, scheme: spec.layout.scheme, shape })
    }

    fn at_primary(&self, offset: u64) -> Address {
        self.placement.replicas[0].address(offset)
    }

    fn locks(&self) -> Primitive {
        self.discipline.into()
    }

    /// Returns the replicas at which transactions take locks: the primary, and if commits have
    /// times, the others, too (`landing.rs`, invariant 9).
    fn locked(&self) -> &[Replica] {
        let replicas = &self.placement.replicas;
        if self.discipline.is_timed() && !mutant!(SweepPrimaries) { replicas } else { &replicas[..1] }
    }

    /// Returns the offsets of all places that have, or had, a record with a lock. This includes the
    /// structural records of an index.
    async fn lockable(&self, lane: &Lane) -> Result<Vec<u64>, MemoryError> {
        let Some(fstore) = &self.fstore else {
            let mut round = lane.round();
            let header = round.read(self.at_primary(0), LINE_BYTES);
            let used = lane.execute(round).await?.words(header)[HEADER_SLOTS_WORD].min(self.geometry.slots);
            return Ok((0..used).map(|number| self.geometry.slot_at(number)).collect());
        };
        let shape = structural(self.scheme);
        let of_bucket = |bucket| places_of(fstore, bucket);
        let mut places: Vec<u64> = (0..fstore.buckets.main).flat_map(of_bucket).collect();
        let headers = metadata::read_bytes(lane, self.at_primary(0), fstore.buckets.first as usize).await?;
        for part in fstore.parts_of(0) {
            let words: Vec<u64> = headers[part.at() as usize..][..shape.record_bytes()]
                .chunks_exact(WORD_BYTES)
                .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
                .collect();
            // If the record is just being changed, all buckets of the part count as used.
            let used = fstore::structural_value(FetchedRecord::new(&words, &shape)).map_or(u64::MAX, |(_, used)| used);
            places.push(part.at());
            // The next bucket counts, too: a client may have died when it was about to take the
            // bucket, and may have locked a slot there.
            let next = usize::try_from(used).unwrap_or(usize::MAX).saturating_add(1);
            places.extend(part.buckets().take(next).flat_map(of_bucket));
        }
        Ok(places)
    }

    /// Returns the lockable places of the bucket that is taken after a slot's bucket. A client may
    /// have been about to take both.
    fn lockable_behind(&self, slot: u64) -> Vec<u64> {
        let next = self.fstore.as_ref().and_then(|fstore| Some((fstore, fstore.taken_after(slot)?)));
        next.map_or_else(Vec::new, |(fstore, bucket)| places_of(fstore, bucket).collect())
    }
}

/// Returns the offsets of the records of a bucket: its header and its slots.
fn places_of(fstore: &fstore::Geometry, bucket: u64) -> impl Iterator<Item = u64> + use<> {
    let fstore = *fstore;
    let slots = (0..fstore.slots_of(bucket)).map(move |slot| fstore.slot_at(bucket, slot));
    std::iter::once(fstore.buckets.at(bucket)).chain(slots)
}

impl Catalog {
    async fn read(lane: &Lane, nodes: NodeSet) -> Result<Catalog, MemoryError> {
        Ok(Catalog { metadata: metadata::read(lane, nodes.leader()).await? })
    }

    fn has_tables_in_place(&self) -> bool {
        self.metadata.tables.iter().any(|table| table.spec.discipline.is_in_place())
    }

    fn has_repairable_tables(&self) -> bool {
        self.metadata.tables.iter().any(|table| table.spec.discipline.is_repairable())
    }

    fn shard(&self, id: ShardId) -> Option<Shard<'_>> {
        Shard::of(&self.metadata, id)
    }

    /// Returns the shard of a record of a log entry, if the record can be one of that shard.
    fn shard_of(&self, record: &LoggedRecord<'_>) -> Option<Shard<'_>> {
        let shard = self.shard(record.pointer.shard())?;
        let fits = shard.fstore.is_none()
            && shard.geometry.is_slot(record.pointer.offset())
            && record.image.len() == shard.shape.image_words();
        fits.then_some(shard)
    }

    /// Installs, at the primaries, the records that are still locked by the transaction which
    /// logged them. Every other record has been installed.
    async fn install(&self, lane: &Lane, logged: &BTreeMap<u64, Logged>) -> Result<(), MemoryError> {
        let records = logged.iter().flat_map(|(id, entry)| log::records(&entry.entry).map(move |record| (*id, record)));
        let mut records = records.filter_map(|(id, record)| Some((id, record, self.shard_of(&record)?))).peekable();
        while records.peek().is_some() {
            let batch: Vec<_> = records.by_ref().take(ROUND_VERBS_MAX / 2).collect();
            let mut round = lane.round();
            let reads: Vec<_> = batch
                .iter()
                .map(|(_, record, shard)| round.read(shard.at_primary(record.pointer.offset()), WORD_BYTES))
                .collect();
            let done = lane.execute(round).await?;
            let is_locked = |((id, ..), read): (&(u64, LoggedRecord<'_>, Shard<'_>), _)| {
                let holder = LockWord::from_bits(done.words(read)[0]).holder();
                holder.is_some_and(|holder| holder.to_bits() == *id) || mutant!(InstallUnlocked)
            };
            let locked: Vec<bool> = batch.iter().zip(reads).map(is_locked).collect();
            drop(done);
            for ((id, record, shard), is_locked) in batch.iter().zip(locked) {
                if is_locked {
                    install(lane, *id, record, shard).await?;
                } else if shard.discipline.unlinks_by_cpu() && is_delete(record, shard) {
                    // The client may have died before it asked for that.
                    free_slot(lane, record, shard).await?;
                }
            }
        }
        Ok(())
    }
}

/// Installs a record of a committed transaction and frees its lock, as the transaction's client
/// would have.
async fn install(lane: &Lane, id: u64, record: &LoggedRecord<'_>, shard: &Shard<'_>) -> Result<(), MemoryError> {
    let at = shard.at_primary(record.pointer.offset());
    let unlock = Swap::unlock(LockWord::from_bits(id));
    let mut round = lane.round();
    if shard.locks() == Primitive::Call {
        let staged = round.stage_words(record.patches.len() + record.image.len());
        let (patches, image) = round.staged_mut(staged).split_at_mut(record.patches.len());
        patches.copy_from_slice(record.patches);
        image.copy_from_slice(record.image);
        let commit = [Code::Commit.word(record.patches.len() / PATCH_WORDS), record.pointer.to_bits(), id];
        round.call(at.node, &commit, Some(staged), 0);
        lane.execute(round).await?;
        return Ok(());
    }
    if mutant!(UnlockBeforeRepair) {
        swap_lock(&mut round, at, unlock);
    }
    round.write_words(at.plus(shard.shape.image_at()), record.image);
    let mut deleted = false;
    for patch in record.patches.chunks_exact(PATCH_WORDS).filter_map(log::patch) {
        // The pair and the links of an insert are in the index, because the primary's CPU has made
        // them. A delete is different: its client may have unlinked the record before it died, and
        // another insert may have taken the pair since. The delete's lock does not cover the pair
        // then.
        if let Patch::Entry { at, entry, .. } = patch
            && is_empty(entry)
            && shard.geometry.is_pair(at)
        {
            let unlinks_by_cpu = shard.discipline.unlinks_by_cpu();
            if !unlinks_by_cpu && (links_still(lane, shard.at_primary(at), entry).await? || mutant!(UnlinkTwice)) {
                round.write_words(shard.at_primary(at), &[entry]);
            }
            deleted = true;
        }
    }
    let freed = swap_lock(&mut round, at, unlock);
    let done = lane.execute(round).await?;
    debug_assert!(
        done.swapped(freed) || mutant!(),
        "recovery 4: the lock of a logged transaction is freed only behind its record"
    );
    drop(done);
    if deleted {
        free_slot(lane, record, shard).await?;
    }
    Ok(())
}

/// Returns whether a logged record is that of a delete.
fn is_delete(record: &LoggedRecord<'_>, shard: &Shard<'_>) -> bool {
    matches!(shard.shape.life_of_image(record.image), Some(Life::Deleted { .. }))
}

/// Asks the CPU of a record's primary to free the slot of a delete, whose record is unlocked.
async fn free_slot(lane: &Lane, record: &LoggedRecord<'_>, shard: &Shard<'_>) -> Result<(), MemoryError> {
    let mut round = lane.round();
    let free = [Code::Free.word(0), record.pointer.to_bits(), record.image[0]];
    round.call(shard.at_primary(record.pointer.offset()).node, &free, None, 0);
    lane.execute(round).await?;
    Ok(())
}

/// Returns whether a pair of the index still links the record of a delete. The delete replaces the
/// pair's first word by `unlinked`.
async fn links_still(lane: &Lane, pair: Address, unlinked: u64) -> Result<bool, MemoryError> {
    let mut round = lane.round();
    let read = round.read(pair, WORD_BYTES);
    let found = lane.execute(round).await?.words(read)[0];
    Ok(!is_empty(found) && cluster_hash::unlinked(found) == unlinked)
}

/// Number of records whose headers the sweep reads in one round.
const SWEEP_BATCH: usize = 64;
/// Shortest time for which a slot stays prepared before the sweep takes it back, in nanoseconds.
/// Nearly every client that is alive has locked its slot by then. A client that has not done so
/// tries again.
const PREPARED_NS: u64 = 2_000_000;

/// Frees the locks of dead clients that no other client has met yet, and takes back the inserts
/// that they had prepared.
///
/// The dead clients must be recovered. The sweep sleeps for `pause` after every few records. During
/// each step that must not be given up half-way, it holds the guard that `fragile` returns. `me`
/// gives transaction ids of the caller, for locks that the sweep takes.
pub async fn sweep<G>(
    lane: &Lane,
    nodes: NodeSet,
    dead: &[u32],
    pause: u64,
    mut me: impl FnMut() -> Option<TransactionId>,
    fragile: impl Fn() -> G,
) -> Result<(), MemoryError> {
    let catalog = Catalog::read(lane, nodes).await?;
    let epoch = catalog.metadata.epoch;
    let mut bits = 0;
    for client in dead {
        let remains = Remains::find(lane, nodes, *client).await?;
        bits |= remains.and_then(|remains| SharedLock::bit(remains.slot())).unwrap_or(0);
    }
    let mut prepared = Vec::new();
    for shard_id in (0..catalog.metadata.shards.len() as u16).map(ShardId) {
        let Some(shard) = catalog.shard(shard_id) else { continue };
        if shard.discipline.is_repairable() {
            // A client that meets a lock there repairs it.
            continue;
        }
        let lockable = shard.lockable(lane).await?;
        for replica in shard.locked() {
            let mut places: VecDeque<u64> = lockable.iter().copied().collect();
            while !places.is_empty() {
                let slots: Vec<u64> = places.drain(..SWEEP_BATCH.min(places.len())).collect();
                let mut found = Vec::new();
                {
                    let mut round = lane.round();
                    let bytes = shard.shape.life_bytes();
                    let reads: Vec<_> = slots.iter().map(|slot| round.read(replica.address(*slot), bytes)).collect();
                    let done = lane.execute(round).await?;
                    for (slot, read) in slots.iter().zip(reads) {
                        let words = done.words(read);
                        let Some(RecordHeader { lock, version, .. }) = shard.shape.validated(words) else { continue };
                        let theirs = lock.holder().is_some_and(|holder| dead.contains(&holder.owner()));
                        let life = shard.shape.life(words);
                        let is_prepared = shard.fstore.is_none() && matches!(life, Some(Life::Prepared { .. }));
                        // A client can die after it has taken the last bit out of the word, and
                        // before it has freed the word.
                        let is_left_by_them =
                            lock.shared().is_some_and(|shared| shared.is_vacant(epoch) || shared.holders() & bits != 0);
                        if (theirs || is_left_by_them) && !mutant!(NoSweep) {
                            found.push((*slot, lock));
                        }
                        if is_prepared && (theirs || is_left_by_them || lock.is_free()) {
                            prepared.push((shard_id, *slot, version));
                        }
                    }
                }
                for (slot, lock) in found {
                    places.extend(shard.lockable_behind(slot));
                    if let Some(shared) = lock.shared() {
                        leave_for(lane, replica.address(slot), shared, bits, epoch).await?;
                        continue;
                    }
                    free(lane, replica.address(slot), Pointer::new(shard_id, slot), shard.locks(), lock).await?;
                }
                lane.sleep(pause).await;
            }
        }
    }
    if !prepared.is_empty() {
        lane.sleep(PREPARED_NS).await;
    }
    for (shard_id, slot, version) in prepared {
        let (Some(shard), Some(me)) = (catalog.shard(shard_id), me()) else { continue };
        let mut round = lane.round();
        let read = round.read(shard.at_primary(slot), shard.shape.life_bytes());
        let now = shard.shape.validated(lane.execute(round).await?.words(read));
        if !now.is_some_and(|now| now.lock.is_free() && now.still_shows(version)) {
            continue;
        }
        {
            let _step = fragile();
            take_back(lane, &shard, Pointer::new(shard_id, slot), me).await?;
        }
        lane.sleep(pause).await;
    }
    Ok(())
}

/// Takes dead clients out of the shared lock `found`, and frees the lock if no client holds it.
/// Their bits are still in the lock, because a dead client changes nothing any more.
async fn leave_for(lane: &Lane, at: Address, found: SharedLock, bits: u64, epoch: u64) -> Result<(), MemoryError> {
    let mut round = lane.round();
    if found.is_vacant(epoch) {
        swap_lock(&mut round, at, Swap::unlock(found.with(0)));
    } else {
        leave_in(&mut round, at, found.holders() & bits, epoch);
    }
    lane.execute(round).await?;
    Ok(())
}

/// Frees a lock of a recovered client. The lock may have been freed meanwhile, and taken by another
/// transaction: then it stays as it is.
async fn free(lane: &Lane, at: Address, record: Pointer, by: Primitive, lock: LockWord) -> Result<(), MemoryError> {
    let mut round = lane.round();
    free_in(&mut round, at, record, by, lock);
    lane.execute(round).await?;
    Ok(())
}

/// Adds to a round the verb that frees a lock of a recovered client.
pub(crate) fn free_in(
    round: &mut remora_fabric::Round<'_>,
    at: Address,
    record: Pointer,
    by: Primitive,
    lock: LockWord,
) {
    if mutant!(ReleaseAll) {
        round.write_words(at, &[lock.freed().to_bits()]);
    } else if by == Primitive::Call {
        round.call(at.node, &[Code::Release.word(0), record.to_bits(), lock.to_bits()], None, 0);
    } else {
        swap_lock(round, at, Swap::unlock(lock));
    }
}

/// Takes a prepared insert back, under a lock of the caller. A client that gives up an insert does
/// the same (`Tx::undo_rounds`).
async fn take_back(lane: &Lane, shard: &Shard<'_>, record: Pointer, me: TransactionId) -> Result<(), MemoryError> {
    let mut round = lane.round();
    undo_in(&mut round, shard.at_primary(record.offset()), record, shard.locks(), (me.lock(), None));
    lane.execute(round).await?;
    Ok(())
}

/// Adds to a round the verbs that take back an insert which was prepared in a slot, under the lock
/// of `me`. If `me` has read under that lock that the key is absent, it has done so at `time`.
pub(crate) fn undo_in(
    round: &mut remora_fabric::Round<'_>,
    at: Address,
    record: Pointer,
    by: Primitive,
    (me, time): (LockWord, Option<u64>),
) {
    let undo = [Code::Undo.word(0), record.to_bits(), me.to_bits(), time.unwrap_or(0)];
    let undo = &undo[..3 + usize::from(time.is_some())];
    if by == Primitive::Call {
        round.call(at.node, undo, None, 0);
    } else {
        swap_lock(round, at, Swap::lock(me));
        round.after_completion();
        round.call(at.node, undo, None, 0);
        round.after_completion();
        swap_lock(round, at, Swap::unlock(me));
    }
}

/// Gives the slot and the rings of a dead client back, for the next client that registers. Returns
/// false, and gives nothing back, if a node has not applied the client's rings yet. The caller must
/// have repaired and swept everything of the client before.
pub async fn give_back(lane: &Lane, nodes: NodeSet, client: u32) -> Result<bool, MemoryError> {
    let Some(remains) = Remains::find(lane, nodes, client).await? else { return Ok(true) };
    for (node, _, base) in remains.rings() {
        if !RingCopy::is_applied(lane, node, base, client).await? {
            return Ok(false);
        }
    }
    remains.give_back(lane).await?;
    Ok(true)
}

/// Returns what the rings say of a transaction whose client is alive, or has left.
///
/// The verdict is [`Verdict::Committed`] if every participant has the transaction's entry. With
/// undo entries (`in_place`), which a client frees when a transaction has committed, it is so if
/// the entry is free. Without an entry the verdict is [`Verdict::Aborted`] only if the caller knows
/// that the transaction has `ended`.
pub async fn look_up(
    lane: &Lane,
    nodes: NodeSet,
    id: TransactionId,
    in_place: bool,
    ended: bool,
) -> Result<Verdict, MemoryError> {
    let Some(remains) = Remains::find(lane, nodes, id.owner()).await? else { return Ok(Verdict::Forgotten) };
    if in_place {
        let mut rings = Ring::read_all(lane, &remains, id.owner()).await?;
        let (entries, id) = (in_place::read(lane, &mut rings).await?, id.to_bits());
        let verdict = entries.verdict(id, ended);
        if verdict != Verdict::Undecided {
            return Ok(verdict);
        }
        let catalog = Catalog::read(lane, nodes).await?;
        let committed = in_place::has_committed(lane, &catalog.metadata, &entries, id).await?;
        return Ok(if committed { Verdict::Committed } else { verdict });
    }
    let rings = Ring::read_all(lane, &remains, id.owner()).await?;
    if let Some(logged) = Logged::union(&rings).get(&id.to_bits()) {
        let missing = logged.participants() & !logged.at;
        // If a ring lacks the entry and has later ones, it has overwritten the entry.
        let on_its_way = rings
            .iter()
            .any(|ring| ring.lane == logged.lane && missing >> ring.node.0 & 1 == 1 && ring.copy.last() < id.to_bits());
        return Ok(if on_its_way { Verdict::Undecided } else { Verdict::Committed });
    }
    let overwritten = rings.iter().map(|ring| ring.copy.whole_from()).max().unwrap_or(0) > id.to_bits();
    Ok(match (overwritten, ended) {
        (true, _) => Verdict::Forgotten,
        (false, true) => Verdict::Aborted,
        (false, false) => Verdict::Undecided,
    })
}
