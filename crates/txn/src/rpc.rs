//! The calls of transactions: what clients ask of a memory node's CPU, and how that CPU answers.
//! This file has the codes of the calls, and the handler at the memory node.
//!
//! ```text
//! request, words               reply, words                   effect
//! READ     shard, key          0, or: 1, place, entry,        where a key is, and its record
//!                              record
//! FIND     shard, key          1 if the index has the key,
//!                              else 0
//! LOCK     pointer, me         lock word before, version      CAS(0 -> me)
//!                              after; if records have times:
//!                              what the holder has to know
//! READERS  pointer             all readers, of which a        (vector timestamps)
//!                              LOCK has said the number
//! VALIDATE pointer             lock word, version
//! RELEASE  pointer, me,                                       notes that the record was read at
//!          time if reads are locked                           that time; CAS(me -> 0)
//! LOG      offset, words                                      to a redo ring, at an offset of
//!                                                             region 0
//! COMMIT   pointer, me,                                       installs and unlocks;
//!          patches (3 each),                                  frees a deleted slot
//!          image
//! PREPARE  shard, key          0, or: 1 | 2, place, entry,    a slot for a key to be inserted:
//!                              version, links (2 each),       1 = the index had it already,
//!                              record if 1                    2 = newly linked
//! UNDO     pointer, me,                                       takes a PREPARE back
//!          time if reads are locked
//! FREE     pointer, version                                   the slot of a committed delete
//! DESCEND  see `descent.rs`                                   the leaf of a key of an
//!                                                             ordered table
//! TAKE, UNTAKE, EDIT, INSTALL  see `edit.rs`                  a change of an entry of a leaf
//! CONSULT  epoch, pairs        a bit for each pair:           publishes the first pairs
//!          (2 each) of         whether no client has
//!          record, version     published more
//! CLAIM    time; records: room a record: 1, newest time,     notes that the keys were read
//!          of the answer,      entry, record at that time;    at that time
//!          shard, key          or: 2, lock, entry; or: 3,
//!                              later time; or: 4
//! STAMP    pointer, version,   lock word, version, 0 or a     notes that this version was
//!          time                time that is too large         read at that time
//! STAMP_ABSENT  shard, time,   1 if the index has the key,    notes that the key was absent
//!          key                 else 0; as of STAMP            at that time
//! LOCK_KEY shard, me, key      1 if me has the lock, else     CAS(0 -> me), if the key is
//!                              0; ts; then as of READ or      present, or a slot is prepared
//!                              of PREPARE                     for it
//! FREE_KEY shard, me, key                                     takes a LOCK_KEY back
//! HEAR     time                                               the node has heard of that time
//! ORACLE   see `oracle.rs`                                    the times of all commits
//! HEARD    room                number, and if there is room   (vector timestamps)
//!                              all commits that the node has
//!                              heard of
//! ```
//!
//! For tables whose deleted records this CPU unlinks ([`Discipline::unlinks_by_cpu`]), FREE unlinks
//! the record before it frees the slot. The replies 0 to READ and to FIND, and 2 to PREPARE, have
//! one word more at their end: a time from which on the key has been absent.
//!
//! CLAIM, STAMP and STAMP_ABSENT are for tables whose records have times
//! ([`Discipline::is_stamped`]). For such tables LOCK also replies the time above which the
//! holder's has to be, READ of an absent key also replies from when on the key is absent, and
//! COMMIT keeps the version that it replaces. `stamps.rs` says what the CPU remembers of times.
//!
//! LOCK_KEY, FREE_KEY and HEAR, and the times of RELEASE and UNDO, are for tables whose
//! transactions lock what they only read ([`Discipline::stamps_at_release`]). There, a RELEASE
//! without a time frees a lock of a dead client. The transaction that had the lock may have
//! committed at any time of which the node has heard.
//!
//! The first word of a request is its code. Its upper half is the number of patches, of links, of
//! pairs to be published, or of records to be claimed. `place` is the offset of the key's pair in
//! the index. The reply to a request that makes no sense is empty. The client takes an empty reply
//! for "not there".
//!
//! A CLAIM is about all records that a snapshot reads at the node, as far as the request has room.
//! The first word about a record has its shard, the words of its key, and the words of room that
//! the reply has for its answer. Each answer is filled up with zeros to its room, so the client
//! knows where each one begins.
//!
//! LOCK, RELEASE and COMMIT change lock words by the CPU. They are for tables whose discipline
//! gives lock words to the CPU ([`Discipline::OCC_CALLS`]); the handler refuses them for other
//! tables. On such a table UNDO takes the lock, if the lock is free, and frees it again. No other
//! call writes a lock word. COMMIT and UNDO do nothing unless the caller has the lock, so a late
//! call does no harm.

mod timed;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use remora_fabric::{ClientId, Handler, Nanos, Region, WORD_BYTES, copy};
use remora_index::{Host, HostShard, Prepared, Presence, apply_patch};
use remora_node::limits::KEY_BYTES_MAX;
use remora_node::{Discipline, GivenUp, Pointer, ShardId, identity, metadata, node};
use remora_record::{FetchedRecord, Key, LockWord, RecordShape, Swap, Version};
use zerocopy::IntoBytes;

use crate::descent::{Descent, Wanted, node_key};
use crate::edit::{self, Copied, EditOutcome, LogEdit, Take};
use crate::limits::READ_ATTEMPTS;
use crate::log::{PATCH_WORDS, patch};
use crate::oracle::Oracle;
use crate::stamps::{ShardLife, Stamps};
use crate::vcache::{HostedCache, VersionCache};

/// The code of a call: what the client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Code {
    Read = 1,
    Find = 2,
    Lock = 3,
    Validate = 4,
    Release = 5,
    Log = 6,
    Commit = 7,
    Prepare = 8,
    Undo = 9,
    Free = 10,
    Descend = 11,
    Consult = 12,
    Take = 13,
    Untake = 14,
    Edit = 15,
    Install = 16,
    Claim = 17,
    Stamp = 18,
    StampAbsent = 19,
    Oracle = 20,
    Readers = 21,
    Heard = 22,
    LockKey = 23,
    FreeKey = 24,
    Hear = 25,
}

impl Code {
    const ALL: [Code; 25] = [
        Code::Read,
        Code::Find,
        Code::Lock,
        Code::Validate,
        Code::Release,
        Code::Log,
        Code::Commit,
        Code::Prepare,
        Code::Undo,
        Code::Free,
        Code::Descend,
        Code::Consult,
        Code::Take,
        Code::Untake,
        Code::Edit,
        Code::Install,
        Code::Claim,
        Code::Stamp,
        Code::StampAbsent,
        Code::Oracle,
        Code::Readers,
        Code::Heard,
        Code::LockKey,
        Code::FreeKey,
        Code::Hear,
    ];

    /// Returns the first word of a request: this code, and `count` in the upper half.
    pub(crate) fn word(self, count: usize) -> u64 {
        self as u64 | (count as u64) << 32
    }

    fn parse(word: u64) -> Option<(Code, usize)> {
        let code = Code::ALL.into_iter().find(|code| *code as u32 == word as u32)?;
        Some((code, (word >> 32) as usize))
    }
}

/// Returns the name of what a request asks for, for traces. `word` is the first word of the
/// request. Returns `None` if the word has no known code.
#[must_use]
pub fn request_name(word: u64) -> Option<&'static str> {
    const NAMES: [&str; Code::ALL.len()] = [
        "read",
        "find",
        "lock",
        "validate",
        "release",
        "log",
        "commit",
        "prepare",
        "undo",
        "free",
        "descend",
        "consult",
        "take",
        "untake",
        "edit",
        "install",
        "claim",
        "stamp",
        "stamp absent",
        "oracle",
        "readers",
        "heard",
        "lock key",
        "free key",
        "hear",
    ];
    let (code, _) = Code::parse(word)?;
    NAMES.get(code as usize - 1).copied()
}

/// Largest number of words of a request about a key: code, shard, key.
pub(crate) const KEY_REQUEST_WORDS_MAX: usize = 2 + KEY_BYTES_MAX / WORD_BYTES;
/// Largest number of words of a request about a key at a time.
pub(crate) const TIMED_REQUEST_WORDS_MAX: usize = KEY_REQUEST_WORDS_MAX + 1;
pub(crate) use timed::{
    ABSENT, BUSY, CLAIMS, FOUND, HAS_VECTOR, LATER, LOCK_REPLY_WORDS, LOCKED_KEY_WORDS, READERS_TOLD, WAITS,
    claim_word, push_claimed,
};

/// Links that a reply to PREPARE has room for.
pub(crate) use remora_index::host::LINKS_MAX;
/// Words of a reply to READ before the record.
pub(crate) const READ_REPLY_WORDS: usize = 3;
/// Words of a reply to PREPARE before the links.
pub(crate) const PREPARE_REPLY_WORDS: usize = 4;
/// First word of a reply to PREPARE which says that the index had the key already.
pub(crate) const LINKED: u64 = 1;
/// First word of a reply to PREPARE which says that the key was newly linked.
pub(crate) const NEW: u64 = 2;
/// Set in the upper half of the first word of a LOCK_KEY: the key is to be inserted.
pub(crate) const PREPARES: usize = 1;
/// Set in the first word of a reply to PREPARE if the shard has little room left.
pub(crate) const CROWDED: u64 = 1 << 16;

/// Makes a request about a key at a time. Returns its words, and how many of them are used.
pub(crate) fn timed_key_request(
    code: Code,
    shard: ShardId,
    time: u64,
    key: &[u64],
) -> ([u64; TIMED_REQUEST_WORDS_MAX], usize) {
    let mut words = [0; TIMED_REQUEST_WORDS_MAX];
    words[..3].copy_from_slice(&[code.word(0), shard.0.into(), time]);
    let end = 3 + key.len().min(KEY_REQUEST_WORDS_MAX - 2);
    words[3..end].copy_from_slice(&key[..end - 3]);
    (words, end)
}

/// Makes a request about a key. Returns its words, and how many of them are used.
pub(crate) fn key_request(code: Code, shard: ShardId, key: &[u64]) -> ([u64; KEY_REQUEST_WORDS_MAX], usize) {
    let mut words = [0; KEY_REQUEST_WORDS_MAX];
    words[0] = code.word(0);
    words[1] = shard.0.into();
    let end = 2 + key.len().min(KEY_REQUEST_WORDS_MAX - 2);
    words[2..end].copy_from_slice(&key[..end - 2]);
    (words, end)
}

/// Serves the calls of transactions at a memory node, on the node's CPU. The head of `rpc.rs` lists
/// the calls and their answers. Calls about different shards run at the same time, if the node has
/// several threads. Calls about one shard run one after the other, but for calls that go down an
/// ordered table.
#[derive(Debug)]
pub struct RpcHandler {
    region: Arc<Region>,
    known: RwLock<Known>,
    vcache: Mutex<HostedCache>,
    oracle: Mutex<Oracle>,
    /// What threads use to go down ordered tables, while none of them does.
    idle: Mutex<Vec<Descent>>,
    /// Levels that the last DESCEND has read.
    levels: AtomicU64,
}

/// Number of locks among which the shards of a node are divided.
const STRIPES: usize = 16;

/// What a node's CPU knows beside the node's memory.
#[derive(Debug, Default)]
struct Known {
    /// The shards whose primary this node is, with the discipline of their table and the bytes of a
    /// key.
    shards: HashMap<ShardId, (HostShard, Discipline, u16)>,
    /// The node's replica of each shard that it has one of.
    copies: HashMap<ShardId, Copied>,
    /// Generation of the catalog that `shards` was made from, and its epoch.
    generation: u64,
    epoch: Option<u64>,
    /// What the node had heard of times when this process, or the epoch, began (`stamps.rs`).
    floor: u64,
    /// The epoch up to which another process had this memory, if there was one.
    lost_in: Option<u64>,
    /// A thread that serves a call about a shard holds the lock at the shard's number modulo
    /// [`STRIPES`].
    stripes: [Mutex<Stripe>; STRIPES],
}

/// What calls about some of the shards share.
#[derive(Debug, Default)]
struct Stripe {
    host: Host,
    stamps: HashMap<ShardId, Stamps>,
}

impl RpcHandler {
    /// Makes the handler of a node's memory.
    #[must_use]
    pub fn new(region: Arc<Region>) -> RpcHandler {
        let vcache = Mutex::new(cache_of(&region));
        let oracle = Mutex::new(Oracle::new(epoch_before(&region)));
        let known = RwLock::new(Known::begin(epoch_before(&region)));
        let idle = Mutex::default();
        RpcHandler { region, known, vcache, oracle, idle, levels: AtomicU64::new(0) }
    }

    /// Gives the handler the cluster's version cache, for tests. The cache must have everything
    /// that any transaction under way has published. Without this call, the handler makes a cache
    /// when a client first asks for it and no such transaction can be under way. No commit may be
    /// outstanding at the node's oracle.
    #[must_use]
    pub fn with_version_cache(self, vcache: VersionCache) -> RpcHandler {
        let oracle = Mutex::new(Oracle::new(None));
        let known = RwLock::new(Known::begin(None));
        RpcHandler { vcache: Mutex::new(HostedCache::new(None, Some(vcache))), oracle, known, ..self }
    }

    /// Returns what this CPU knows, by the catalog as it is now. Returns `None` if the catalog
    /// cannot be read.
    fn known(&self) -> Option<RwLockReadGuard<'_, Known>> {
        let words = self.region.words();
        let known = self.known.read().ok()?;
        if known.generation == metadata::generation_local(words) {
            return Some(known);
        }
        drop(known);
        self.known.write().ok()?.learn(words)?;
        self.known.read().ok()
    }

    fn serve(&self, request: &[u64], reply: &mut Vec<u64>) -> Option<()> {
        let (code, count) = Code::parse(*request.first()?)?;
        let arguments = &request[1..];
        match code {
            Code::Log => self.log(arguments),
            Code::Hear => self.hear(arguments),
            Code::Consult => self.vcache.lock().ok()?.consult(count, arguments, reply),
            Code::Oracle => self.oracle.lock().ok()?.answer(count, arguments, reply),
            Code::Claim => self.claim(count, arguments, reply),
            Code::StampAbsent => {
                let (&[shard, time], key) = arguments.split_first_chunk()?;
                let known = self.known()?;
                let mut asked = known.shard(self.region.words(), ShardId(u16::try_from(shard).ok()?))?;
                asked.stamp_absent(time, key, reply)
            }
            Code::Descend => self.descend(count, arguments, reply),
            Code::Take => self.take(&Take::parse(count, arguments)?, reply),
            Code::Untake => self.untake(&Take::parse(count, arguments)?),
            Code::Edit => self.edit(&LogEdit::parse(count, arguments)?, reply),
            Code::Install => self.install(arguments),
            Code::LockKey | Code::FreeKey => {
                let (&[shard, me], key) = arguments.split_first_chunk()?;
                let known = self.known()?;
                let mut asked = known.shard(self.region.words(), ShardId(u16::try_from(shard).ok()?))?;
                if code == Code::LockKey { asked.lock_key(count, me, key, reply) } else { asked.free_key(me, key) }
            }
            Code::Read | Code::Find | Code::Prepare => {
                let (&shard, key) = arguments.split_first()?;
                let known = self.known()?;
                let mut asked = known.shard(self.region.words(), ShardId(u16::try_from(shard).ok()?))?;
                asked.about_key(code, key, reply)
            }
            Code::Heard => self.heard(arguments, reply),
            Code::Lock
            | Code::Readers
            | Code::Validate
            | Code::Release
            | Code::Commit
            | Code::Undo
            | Code::Free
            | Code::Stamp => {
                let (&pointer, arguments) = arguments.split_first()?;
                let pointer = Pointer::from_bits(pointer);
                let known = self.known()?;
                let mut asked = known.shard(self.region.words(), pointer.shard())?;
                asked.about_record(code, count, pointer, arguments, reply)
            }
        }
    }

    fn log(&self, arguments: &[u64]) -> Option<()> {
        let (offset, frame) = arguments.split_first()?;
        let words = self.region.words();
        let start = usize::try_from(*offset).ok().filter(|offset| offset.is_multiple_of(WORD_BYTES))? / WORD_BYTES;
        let end = start.checked_add(frame.len())?;
        // Rings lie in the space that is allocated. No client may write to the words before that
        // space by a call.
        if end > words.len() || *offset < node::AT_SPACE {
            return None;
        }
        copy::write(words, start, frame);
        Some(())
    }

    fn descend(&self, count: usize, arguments: &[u64], reply: &mut Vec<u64>) -> Option<()> {
        let wanted = Wanted::parse(count, arguments)?;
        let (known, words) = (self.known()?, self.region.words());
        // It changes nothing, and takes whole records only. So threads go down one tree at the same
        // time, as clients that READ it do.
        let id = self.go_down(|descent| {
            let id = descent.leaf(words, known.read_only(wanted.inner)?, &wanted, reply)?;
            if let Some(leaves) = wanted.leaves.filter(|_| wanted.answer) {
                descent.answer(words, known.read_only(leaves)?, (&wanted, id), reply)?;
            }
            Some(id)
        })?;
        match wanted.leaves.filter(|_| !wanted.answer) {
            Some(leaves) => known.shard(words, leaves)?.about_key(Code::Read, &[id.to_be()], reply),
            None => Some(()),
        }
    }
}

impl RpcHandler {
    /// Goes down an ordered table, by buffers that this thread has alone meanwhile.
    fn go_down(&self, down: impl FnOnce(&mut Descent) -> Option<u64>) -> Option<u64> {
        let mut descent = self.idle.lock().ok()?.pop().unwrap_or_default();
        let id = down(&mut descent);
        self.levels.store(descent.levels, Ordering::Relaxed);
        self.idle.lock().ok()?.push(descent);
        id
    }

    /// Calls `act` with the leaf of a key, locked for this call: with its shard, the index of its
    /// first word, its id and its entry in the index. The leaf is the one that the client
    /// remembers, and if that is another key's, the one that this CPU finds. `act` says whether it
    /// is the key's.
    fn at_leaf(&self, take: &Take<'_>, act: &mut dyn FnMut(&mut Asked<'_>, usize, u64, u64) -> bool) -> Option<()> {
        let (known, words) = (self.known()?, self.region.words());
        let mut attempt = |id: u64| {
            let asked = &mut known.shard(words, take.leaves)?;
            let Presence::Linked { entry, location, .. } = asked.shard.find(words, &node_key(id)?) else {
                return Some(false);
            };
            let at = asked.shard.slot_word(location.pointer.offset())?;
            Some(act(asked, at, id, entry))
        };
        if let Some(id) = take.leaf
            && attempt(id)?
        {
            return Some(());
        }
        let wanted = Wanted::of_leaf(take.start?, take.edit.shape, take.edit.key);
        let mut found = Vec::new();
        let id = self.go_down(|descent| descent.leaf(words, known.read_only(wanted.inner)?, &wanted, &mut found))?;
        attempt(id)?;
        Some(())
    }

    fn take(&self, take: &Take<'_>, reply: &mut Vec<u64>) -> Option<()> {
        self.levels.store(0, Ordering::Relaxed);
        let mut record = Vec::new();
        let (start, mut is_refused) = (reply.len(), false);
        self.at_leaf(take, &mut |asked, at, id, entry| {
            reply.truncate(start);
            let Some([lock, version_word]) = asked.cpu_lock(at) else {
                is_refused = true;
                return true;
            };
            let mut answer = |outcome: EditOutcome, lock: LockWord, version: Version| {
                reply.extend([id, outcome as u64, entry, lock.to_bits(), version.to_bits()]);
            };
            for _ in 0..READ_ATTEMPTS {
                record.resize(asked.shard.shape.record_bytes() / WORD_BYTES, 0);
                copy::read(asked.words, at, &mut record);
                let Ok(found) = FetchedRecord::new(&record, &asked.shard.shape).check() else { continue };
                let mut leaf = Vec::new();
                found.copy_value(&mut leaf);
                let mut value = Vec::new();
                let outcome = match found.is_present() {
                    true => take.look(&leaf, &mut value),
                    false => EditOutcome::Another,
                };
                let is_it = outcome != EditOutcome::Another;
                if is_it && !found.lock().is_free() {
                    answer(EditOutcome::Busy, found.lock(), found.version());
                    return true;
                }
                if outcome.is_taken() {
                    let previous = swap(lock, Swap::lock(LockWord::from_bits(take.me)));
                    if !previous.is_free() {
                        answer(EditOutcome::Busy, previous, found.version());
                        return true;
                    }
                    if version_word.load(Ordering::Acquire) != found.version().to_bits() {
                        swap(lock, Swap::unlock(LockWord::from_bits(take.me)));
                        continue;
                    }
                }
                answer(outcome, LockWord::FREE, found.version());
                reply.extend_from_slice(&value);
                return is_it;
            }
            answer(EditOutcome::Busy, LockWord::FREE, Version::default());
            true
        })?;
        (!is_refused).then_some(())
    }

    fn untake(&self, take: &Take<'_>) -> Option<()> {
        self.at_leaf(take, &mut |asked, at, _, _| {
            let is_mine = asked.cpu_lock(at).is_some_and(|[lock, _]| lock.load(Ordering::Acquire) == take.me);
            if is_mine {
                asked.unlock(at, take.me);
            }
            is_mine
        })
    }

    fn edit(&self, edit: &LogEdit<'_>, reply: &mut Vec<u64>) -> Option<()> {
        let words = self.region.words();
        let copy = *self.known()?.copies.get(&edit.pointer.shard())?;
        let frame = edit.frame(words, &copy)?;
        self.log(&[&[edit.offset], &frame[..]].concat())?;
        reply.push(1);
        Some(())
    }

    fn install(&self, arguments: &[u64]) -> Option<()> {
        let &[offset, pointer, me] = arguments else { return None };
        let (pointer, words) = (Pointer::from_bits(pointer), self.region.words());
        let image = edit::logged_image(words, offset, pointer)?;
        let known = self.known()?;
        let mut asked = known.shard(words, pointer.shard())?;
        let at = asked.shard.slot_word(pointer.offset())?;
        asked.commit(at, pointer, 0, me, &image)
    }
}

/// Returns the version cache of a node that begins to serve, which may be lost.
fn cache_of(region: &Region) -> HostedCache {
    HostedCache::new(epoch_before(region), None)
}

/// Returns the epoch up to which another process may have had a node's memory, and has taken along
/// what was only known to its CPU. Returns `None` if the memory is new.
fn epoch_before(region: &Region) -> Option<u64> {
    let words = region.words();
    identity::local(words).map(|own| metadata::read_local(own.number, words).map_or(u64::MAX, |all| all.epoch))
}

impl Known {
    /// Begins to serve a memory that another process may have had, up to an epoch.
    fn begin(lost_in: Option<u64>) -> Known {
        Known { lost_in, ..Known::default() }
    }

    /// Whether this process began within the epoch. So it does not know what clients of the epoch
    /// have told a former process.
    fn began_late(&self) -> bool {
        self.epoch.is_some_and(|epoch| self.lost_in.is_some_and(|lost_in| epoch <= lost_in))
    }

    /// Reads the catalog. Returns `None` if it cannot be read.
    fn learn(&mut self, words: &[AtomicU64]) -> Option<()> {
        // A replica that was the primary may be a backup now.
        let node = identity::local(words)?.number;
        let metadata = metadata::read_local(node, words).ok()?;
        // This generation is older than the one that the node announces if the newer catalog is not
        // whole yet.
        self.generation = metadata.generation;
        if self.epoch != Some(metadata.epoch) {
            (self.epoch, self.floor) = (Some(metadata.epoch), timed::clock(words).load(Ordering::Acquire));
        }
        let shards = (0..).map(ShardId).zip(&metadata.shards).filter_map(|(id, placement)| {
            let spec = &metadata.tables.get(usize::from(placement.table.0))?.spec;
            let shard = HostShard::of(&metadata, id, node, words)?;
            Some((id, (shard, spec.discipline, spec.layout.key_bytes)))
        });
        self.shards = shards.collect();
        let copies = (0..).map(ShardId).zip(&metadata.shards).filter_map(|(id, placement)| {
            let replica = placement.replicas.iter().find(|replica| replica.node == node)?;
            let spec = &metadata.tables.get(usize::from(placement.table.0))?.spec;
            let shape = RecordShape::of(&spec.layout);
            Some((id, Copied { base: replica.base, bytes: placement.bytes, shape }))
        });
        self.copies = copies.collect();
        Some(())
    }

    /// Returns a shard for a call that changes nothing of it, and that may run while other calls
    /// about the shard run.
    fn read_only(&self, id: ShardId) -> Option<&HostShard> {
        self.shards.get(&id).map(|(shard, ..)| shard)
    }

    /// Returns a shard for a call about it. Other calls about the shard wait until the value is
    /// dropped.
    fn shard<'k>(&'k self, words: &'k [AtomicU64], id: ShardId) -> Option<Asked<'k>> {
        let &(shard, discipline, key_bytes) = self.shards.get(&id)?;
        let stripe = self.stripes[usize::from(id.0) % STRIPES].lock().ok()?;
        let life = ShardLife {
            born: shard.born,
            epoch: self.epoch?,
            floor: self.floor,
            is_vector: discipline.has_vectors(),
            began_late: self.began_late(),
        };
        Some(Asked { words, shard, life, discipline, key_bytes, stripe })
    }
}

/// A shard that a call is about.
struct Asked<'k> {
    words: &'k [AtomicU64],
    shard: HostShard,
    life: ShardLife,
    discipline: Discipline,
    key_bytes: u16,
    stripe: MutexGuard<'k, Stripe>,
}

impl Asked<'_> {
    fn about_key(&mut self, code: Code, key: &[u64], reply: &mut Vec<u64>) -> Option<()> {
        let key = Key::new(key.as_bytes().get(..self.key_bytes.into())?)?;
        match code {
            Code::Prepare => match self.stripe.host.prepare(self.words, &self.shard, &key).ok()? {
                Prepared::Linked { bucket_slot, entry, location, links } => {
                    reply.extend([LINKED | (links.len() as u64) << 32, bucket_slot, entry, 0]);
                    links.iter().for_each(|(at, word)| reply.extend([*at, *word]));
                    self.push_record(location.pointer, reply)?;
                }
                Prepared::New { bucket_slot, entry, location, version, links, is_crowded, .. } => {
                    let status = if is_crowded { NEW | CROWDED } else { NEW };
                    reply.extend([status | (links.len() as u64) << 32, bucket_slot, entry, version.to_bits()]);
                    links.iter().for_each(|(at, word)| reply.extend([*at, *word]));
                    if self.discipline.is_stamped() {
                        self.stamps().prepared(location.pointer.offset(), key.hash().word);
                    }
                    reply.extend(self.gone());
                }
            },
            _ => match self.shard.find(self.words, &key) {
                Presence::Absent if code == Code::Read && self.discipline.is_stamped() => {
                    let gone = self.stamps().gone(key.hash().word);
                    reply.extend([0, gone]);
                }
                Presence::Absent => {
                    reply.push(0);
                    reply.extend(self.gone());
                }
                Presence::Linked { bucket_slot, entry, location } => {
                    reply.push(1);
                    if code == Code::Read {
                        reply.extend([bucket_slot, entry]);
                        self.push_record(location.pointer, reply)?;
                    }
                }
            },
        }
        Some(())
    }

    fn about_record(
        &mut self,
        code: Code,
        count: usize,
        pointer: Pointer,
        arguments: &[u64],
        reply: &mut Vec<u64>,
    ) -> Option<()> {
        let at = self.shard.slot_word(pointer.offset())?;
        match (code, arguments) {
            (Code::Lock, &[me]) => {
                let [lock, version] = self.cpu_lock(at)?;
                let previous = swap(lock, Swap::lock(LockWord::from_bits(me)));
                reply.extend([previous.to_bits(), version.load(Ordering::Acquire)]);
                if self.discipline.is_stamped() {
                    self.locked(pointer.offset(), self.time_of(at), previous.is_free(), reply);
                }
            }
            (Code::Readers, &[]) => reply.extend(self.stamps().readers(pointer.offset())),
            (Code::Stamp, &[version, time]) => self.stamp(at, pointer, version, time, reply)?,
            (Code::Validate, &[]) => self.push_words(at, self.shard.shape.validated_bytes(), reply),
            (Code::Release, &[me]) => self.release(at, pointer, me, None)?,
            (Code::Release, &[me, time]) => self.release(at, pointer, me, Some(time))?,
            (Code::Commit, [me, rest @ ..]) => self.commit(at, pointer, count, *me, rest)?,
            (Code::Undo, &[me]) => self.undo(at, pointer, me)?,
            (Code::Undo, &[me, time]) => {
                self.stamp_locked(at, pointer, me, time);
                self.undo(at, pointer, me)?;
            }
            (Code::Free, &[version]) => self.free(pointer, version),
            _ => return None,
        }
        Some(())
    }

    /// Returns the lock and the version of a record whose lock this CPU may change.
    fn cpu_lock(&self, at: usize) -> Option<[&AtomicU64; 2]> {
        if !self.discipline.locks_by_cpu() && !mutant!(CpuLocksForNics) {
            tracing::error!(discipline = %self.discipline, "a client asks this CPU to change a lock that is not its own");
            return None;
        }
        let version = at + self.shard.shape.image_at() as usize / WORD_BYTES;
        Some([self.words.get(at)?, self.words.get(version)?])
    }

    fn unlock(&self, at: usize, me: u64) -> Option<()> {
        let [lock, _] = self.cpu_lock(at)?;
        // A client that finds the lock free also sees what the holder wrote before.
        swap(lock, Swap::unlock(LockWord::from_bits(me)));
        Some(())
    }

    fn push_record(&self, pointer: Pointer, reply: &mut Vec<u64>) -> Option<()> {
        let at = self.shard.slot_word(pointer.offset())?;
        self.push_words(at, self.shard.shape.record_bytes(), reply);
        Some(())
    }

    /// Appends the first `bytes` bytes of a slot to a reply.
    fn push_words(&self, at: usize, bytes: usize, reply: &mut Vec<u64>) {
        let start = reply.len();
        reply.resize(start + bytes / WORD_BYTES, 0);
        copy::read(self.words, at, &mut reply[start..]);
    }

    fn commit(&mut self, at: usize, pointer: Pointer, patches: usize, me: u64, rest: &[u64]) -> Option<()> {
        let (patches, image) = rest.split_at_checked(patches.checked_mul(PATCH_WORDS)?)?;
        let [lock, _] = self.cpu_lock(at)?;
        if lock.load(Ordering::SeqCst) != me || image.len() != self.shard.shape.image_words() {
            return None;
        }
        self.keep_older(at, pointer.offset(), image);
        let entry = self.linking_entry(patches);
        self.shard.shape.install(&self.words[at..], image);
        for patch in patches.chunks_exact(PATCH_WORDS).filter_map(patch) {
            apply_patch(self.words, self.shard.base, &self.shard.geometry, &patch);
        }
        self.unlock(at, me)?;
        if !patches.is_empty() {
            self.note_unlinked(at, pointer.offset(), entry);
            // This frees the slot of a deleted record, and does nothing for an inserted record.
            self.free(pointer, image.first().copied().unwrap_or(0));
        }
        Some(())
    }

    /// Returns a time from which on each key has been absent that the index does not have, if this
    /// CPU unlinks what is deleted.
    fn gone(&self) -> Option<u64> {
        self.shard.unlinks.then(|| self.shard.gone(self.words))
    }

    fn free(&mut self, pointer: Pointer, version: u64) {
        self.stripe.host.free(self.words, &self.shard, pointer.offset(), Version::from_bits(version).0);
    }

    fn undo(&mut self, at: usize, pointer: Pointer, me: u64) -> Option<()> {
        let holder = LockWord::from_bits(me);
        if self.discipline.locks_by_cpu() {
            swap(&self.words[at], Swap::lock(holder));
        }
        self.note_unlinked(at, pointer.offset(), None);
        self.stripe.host.undo(self.words, &self.shard, pointer.offset(), holder);
        if self.discipline.locks_by_cpu() { self.unlock(at, me) } else { Some(()) }
    }
}

/// Compares and swaps a lock word by this CPU, and returns the word that the lock had before.
fn swap(lock: &AtomicU64, Swap { from, to }: Swap) -> LockWord {
    let found = lock.compare_exchange(from.to_bits(), to.to_bits(), Ordering::SeqCst, Ordering::SeqCst);
    LockWord::from_bits(found.unwrap_or_else(|other| other))
}

impl Handler for RpcHandler {
    fn call(&self, from: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        if self.serve(request, reply).is_none() {
            tracing::debug!(client = from.0, code = ?request.first(), "a call was refused");
            reply.clear();
        }
    }

    fn forget(&self, order: &[u64], cut: &mut dyn FnMut()) {
        let Some(given_up) = GivenUp::from_words(order).filter(|given_up| given_up.is_of(self.region.words())) else {
            return tracing::debug!(?order, "an order to give up this memory is out of date");
        };
        tracing::warn!(
            epoch = given_up.since,
            "the cluster has gone on without this memory node: it begins with nothing"
        );
        cut();
        if let Err(error) = node::renew(&self.region) {
            tracing::error!(%error, "this memory node is of no use any more");
        }
        self.restart();
    }

    fn restart(&self) {
        let known = Known::begin(epoch_before(&self.region));
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        self.known.clear_poison();
        *self.vcache.lock().unwrap_or_else(PoisonError::into_inner) = cache_of(&self.region);
        self.vcache.clear_poison();
        *self.oracle.lock().unwrap_or_else(PoisonError::into_inner) = Oracle::new(epoch_before(&self.region));
        self.oracle.clear_poison();
    }

    /// Wei thesis, table 4-2, SmallBank: cycles of the execution, validation, logging and commit
    /// handlers, at 2.2 GHz. The base cost of logging is without the cost of its words, which is
    /// taken from the difference to TPC-C's.
    fn work(&self, request: &[u64]) -> Nanos {
        match request.first().and_then(|word| Code::parse(*word)) {
            Some((Code::Read | Code::Find | Code::Prepare | Code::StampAbsent, _)) => 308,
            Some((Code::LockKey | Code::FreeKey, _)) => 308 + 84,
            Some((Code::Claim, count)) => 308 * timed::claimed(count) as u64,
            // Each pair costs a line of the CPU's cache, as a lock does.
            Some((Code::Lock | Code::Readers | Code::Validate | Code::Stamp | Code::Oracle | Code::Heard, _)) => 84,
            Some((Code::Hear, _)) => 40,
            Some((Code::Consult, _)) => 84 * (request.len() as u64 / 2),
            Some((Code::Log, _)) => 43,
            // The leaf is found by its id, as a record is by its key, or as in DESCEND.
            Some((Code::Take | Code::Untake, _)) => 308 + 70 * self.levels.load(Ordering::Relaxed),
            // The leaf's lines are read, and written to the ring.
            Some((Code::Edit, _)) => 43 + 84,
            // Each node costs three lines of memory that are in no cache, at 43 million lines
            // a second (thesis, section 3.2).
            Some((Code::Descend, _)) => 308 + 70 * self.levels.load(Ordering::Relaxed),
            Some((Code::Commit | Code::Install | Code::Release | Code::Undo | Code::Free, _)) => 40,
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use remora_fabric::NodeId;
    use remora_fabric::shm::Memory;

    use super::*;

    #[test]
    fn a_process_that_is_started_anew_does_not_know_what_was_published() {
        let memory = Memory::map(&[vec![node::BYTES_MIN as usize]]).expect("memory");
        let handler = RpcHandler::new(memory.region(NodeId(0), node::REGION).expect("a region").clone());
        let consult = |handler: &RpcHandler, publishes: usize, version: u64| {
            let mut reply = Vec::new();
            handler.call(ClientId(1), &[Code::Consult.word(publishes), 1, 64, version], &mut reply);
            reply
        };
        consult(&handler, 1, 4);
        assert_eq!(consult(&handler, 0, 2), [0]);
        handler.restart();
        assert_eq!(consult(&handler, 0, 2), [1]);
    }
}
