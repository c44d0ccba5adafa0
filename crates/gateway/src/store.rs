//! How keys and their values lie in tables.
//!
//! ```text
//! table NAME         | database : 4 bits, is digest : 1 | key, or digest of the key : 32 |  ->
//!                    | stamp : 8 | form : 1 | length : 2 | key |   the last two with a digest
//!                    | form 0: packed value; form 1: the head of one that is large;
//!                      form 2: the head and the roots of a spread collection |
//! table NAME/large   the first 16 bytes of the digest of the name    ->   packed value
//! ```
//!
//! A collection whose packed value would be long is spread: its elements lie in pages of their own
//! ([`spread`](crate::spread)). It stays so until its key is deleted or gets another value. A
//! string that is long is large, and so is a collection with an element that is too long for a
//! page.
//!
//! Table NAME/once has the tokens of `REMORA.ONCE`.
//!
//! A key of up to 511 bytes is in the name of its record. A longer one is in its value, and its
//! SHA-256 is in the name.
//!
//! # Rules
//!
//! 1. **The stamp is the id of the transaction that has written the record.** No two transactions
//!    have the same id. So a key has been written if and only if its stamp has changed, and `WATCH`
//!    compares stamps.
//! 2. **A large value is there if and only if its record says so.** One transaction changes both.
//! 3. **A large value is uploaded before the transaction that links it**, and is discarded if that
//!    transaction does not commit. What a transaction unlinks is discarded after its commit.

use remora::{
    Abort, Cluster, DynOptions, DynSchema, DynSlot, DynTable, Error, Intent, Large, LargeOptions, Lengths, Limit,
    OpenError, Session,
};
use remora::{Stored, Transaction};
use remora_redis::keyspace::Slot;
use remora_redis::tree::{Change, Home, PART_BYTES, Wanted as Missed};
use remora_redis::{Keyspace, Object, footprint, packed};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::damaged::damaged;
use crate::once::Tokens;
use crate::options::StoreOptions;
use crate::spread::{Fetched, Pages, changes_of, records_of, written_max};

/// Bytes of the longest key.
pub(crate) const KEY_BYTES_MAX: usize = 15_000;
/// Bytes of the longest key that is in the name of its record.
const NAME_BYTES_MAX: usize = 511;
/// Bytes of the longest record of a key. A longer value is large.
const ROW_BYTES_MAX: usize = 16 << 10;
/// Bytes of a record before the packed value, but for the key.
const ROW_HEAD_BYTES: usize = 8 + 1 + 2;
/// Bytes of a key's record for which the tables have room at first, beyond what is in its head.
const VALUE_BYTES: u64 = 16;
/// The number of places of tombstones that a step of a collection reads.
const COLLECTED: usize = 128;
/// The number of keys that one transaction deletes when all are deleted.
const DELETED: usize = 16;
const _: () = assert!(KEY_BYTES_MAX + ROW_HEAD_BYTES < ROW_BYTES_MAX);
/// Bytes of the longest packed value that is not large.
const INLINE_BYTES_MAX: usize = 8 << 10;
const _: () = assert!(INLINE_BYTES_MAX == footprint::INLINE_ROOM);

/// The tables that have the keys of a gateway and their values.
#[derive(Clone, Debug)]
pub struct Store {
    rows: DynTable,
    large: Large<[u8; 16]>,
    pub(crate) pages: Pages,
    pub(crate) tokens: Tokens,
    spread_bytes: usize,
}

/// A key of a database.
pub(crate) type Name<'a> = (u8, &'a [u8]);

/// A key that a transaction wants, and what for.
pub(crate) type Wanted<'a> = (Name<'a>, Intent);

/// The record of a key, as a transaction has found it.
pub(crate) struct Row {
    record: RecordName,
    slot: DynSlot,
    /// The id of the transaction that has written it, if the key is there.
    stamp: Option<u64>,
    form: Form,
    /// The spread collection of the key, as no command has changed it, with the pages that are
    /// loaded.
    spread: Option<Object>,
    /// When the key expires, in milliseconds since 1970.
    expiry: Option<u64>,
}

impl Row {
    /// Returns the stamp of the record, or `None` if there is no record.
    pub(crate) fn stamp(&self) -> Option<u64> {
        self.stamp
    }

    /// Returns the stamp of the key, or `None` if it is absent or has expired.
    pub(crate) fn stamp_at(&self, now: u64) -> Option<u64> {
        self.stamp.filter(|_| self.expiry.is_none_or(|expiry| expiry > now))
    }
}

/// The keys of a transaction, with what it has fetched of them.
pub(crate) struct Loaded {
    rows: Vec<Row>,
    pages: Fetched,
}

impl Loaded {
    /// Returns the records of the keys, in the order of their names.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Notes that all pages of spread collections are wanted.
    pub(crate) fn want_all(&self) {
        for object in self.rows.iter().filter_map(|row| row.spread.as_ref()) {
            object.value.trees().iter().for_each(|tree| tree.want_all());
        }
    }
}

/// How a value lies in the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Form {
    Packed = 0,
    Large = 1,
    Spread = 2,
}

/// A key that a walk has found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) database: u8,
    pub(crate) key: Vec<u8>,
    /// What `TYPE` answers.
    pub(crate) kind: &'static str,
    /// When the key expires, in milliseconds since 1970.
    pub(crate) expiry: Option<u64>,
}

/// What a transaction needs that others must do before it, and what they have done.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    uploads: Vec<Upload>,
    /// Values that the last attempt wanted to be uploaded.
    wanted: Vec<(Vec<u8>, Form)>,
    /// What the last attempt has unlinked.
    unlinked: Vec<Place>,
    /// Pages that the last attempt wanted to be read.
    missed: Vec<(Ahead, Vec<Vec<Missed>>)>,
    /// Spread collections with pages that were read.
    ahead: Vec<Ahead>,
    /// The time of the transaction, in milliseconds since 1970.
    now: u64,
}

/// A spread collection with pages that were read for a transaction, as long as its key has this
/// stamp.
#[derive(Debug)]
struct Ahead {
    record: RecordName,
    stamp: u64,
    object: Object,
}

/// A value that is stored, and that no key had when it was.
#[derive(Debug)]
struct Upload {
    /// The value, packed.
    packed: Vec<u8>,
    place: Place,
    /// The collection, if it is spread.
    object: Option<Object>,
    is_linked: bool,
}

/// Where a value is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Large(Stored),
    Pages(Home),
}

/// What is written for a key.
enum Written {
    Deleted,
    Packed,
    /// A value that was uploaded, with its place among the uploads.
    Uploaded(usize),
    /// A collection that was spread just now.
    Spread(Object, Vec<Vec<Change>>),
    /// Pages of a spread collection.
    Changed(Home, Vec<Vec<Change>>),
}

impl Store {
    /// Opens the tables of this name, or creates them if there are none.
    pub fn open_or_create(cluster: &Cluster, name: &str, options: StoreOptions) -> Result<Store, OpenError> {
        let schema =
            DynSchema::new("keys of a gateway", Lengths::UpTo(NAME_BYTES_MAX + 1), Lengths::UpTo(ROW_BYTES_MAX));
        let mut rows = DynOptions::for_rows(options.keys).bytes(options.keys.saturating_mul(VALUE_BYTES)).dense(true);
        let mut large = LargeOptions::for_values(64, 1 << 20);
        if let Some(copies) = options.copies {
            (rows, large) = (rows.replicas(copies), large.replicas(copies));
        }
        Ok(Store {
            rows: cluster.open_or_create_dyn_table(name, &schema, rows)?,
            large: cluster.open_or_create_large(&format!("{name}/large"), large)?,
            pages: Pages::open_or_create(cluster, name, &options)?,
            tokens: Tokens::open_or_create(cluster, &format!("{name}/once"), &options)?,
            spread_bytes: options.spread_bytes,
        })
    }

    /// Returns the name of the table that has the keys.
    pub(crate) fn name(&self) -> &str {
        self.rows.name()
    }

    /// Returns the limit above which packed collections are spread.
    pub(crate) fn spread_bytes(&self) -> usize {
        self.spread_bytes
    }

    /// Reads keys and their values into an empty keyspace, in the order of the names, of which no
    /// two are the same. Of spread collections it reads only the roots.
    pub(crate) async fn load(
        &self,
        tx: &mut Transaction<'_, '_>,
        wanted: &[Wanted<'_>],
        keys: &mut Keyspace,
        uploads: &Uploads,
    ) -> Result<Loaded, Error> {
        let records: Vec<RecordName> = wanted.iter().map(|(name, _)| record_of(*name)).collect();
        let intents = wanted.iter().map(|(_, intent)| *intent);
        let slots = self.rows.fetch_for(tx, records.iter().map(SmallVec::as_slice).zip(intents)).await?;
        let rows = records.into_iter().zip(slots).map(|(record, slot)| Row {
            record,
            slot,
            stamp: None,
            form: Form::Packed,
            spread: None,
            expiry: None,
        });
        let mut loaded = Loaded { rows: rows.collect(), pages: Fetched::default() };
        self.fill(tx, wanted, &mut loaded, keys, uploads).await?;
        Ok(loaded)
    }

    /// Puts keys that were fetched into an empty keyspace.
    async fn fill(
        &self,
        tx: &mut Transaction<'_, '_>,
        wanted: &[Wanted<'_>],
        loaded: &mut Loaded,
        keys: &mut Keyspace,
        uploads: &Uploads,
    ) -> Result<(), Error> {
        for ((name, _), row) in wanted.iter().zip(&mut loaded.rows) {
            if let Some(object) = &row.spread {
                keys.push(name.0, name.1, Some(object.clone()));
                continue;
            }
            let mut object = None;
            if let Some(bytes) = self.rows.value_of(tx, &row.record, &row.slot)? {
                let parts = Parts::of(&row.record, &bytes).ok_or(damaged("a record is too short"))?;
                if parts.key.is_some_and(|key| key != name.1) {
                    return Err(damaged("a key whose digest is that of another"));
                }
                (row.stamp, row.form) = (Some(parts.stamp), parts.form);
                object = match parts.form {
                    Form::Packed => Some(unpack(parts.packed)?),
                    Form::Large => None,
                    Form::Spread => {
                        let ahead = uploads.ahead.iter().find(|ahead| ahead.is_of(&row.record, parts.stamp));
                        let object = match ahead {
                            Some(ahead) => ahead.object.clone(),
                            None => packed::unpack_roots(parts.packed, self.pages.page_bytes()).map_err(Error::user)?,
                        };
                        row.spread = Some(object.clone());
                        Some(object)
                    }
                };
            }
            if row.form == Form::Large {
                let bytes = self.large.get(tx, digest_of(*name)).await?;
                object = Some(unpack(&bytes.ok_or(damaged("a large value is absent"))?)?);
            }
            row.expiry = object.as_ref().and_then(|object| object.expiry);
            keys.push(name.0, name.1, object);
        }
        Ok(())
    }

    /// Loads the pages that commands have missed ([`Keyspace::is_short`]), and puts all keys into
    /// an empty keyspace again. Returns false if other transactions must read the pages first
    /// ([`Store::upload`]).
    pub(crate) async fn supply(
        &self,
        tx: &mut Transaction<'_, '_>,
        wanted: &[Wanted<'_>],
        loaded: &mut Loaded,
        keys: &mut Keyspace,
        uploads: &mut Uploads,
    ) -> Result<bool, Error> {
        *keys = Keyspace::with_capacity(wanted.len());
        uploads.begin();
        for ((_, intent), row) in wanted.iter().zip(&mut loaded.rows) {
            let (Some(object), Some(stamp)) = (&mut row.spread, row.stamp) else { continue };
            if let Some(missed) = self.pages.load(tx, object, *intent, &mut loaded.pages).await? {
                let ahead = Ahead { record: row.record.clone(), stamp, object: object.clone() };
                uploads.missed.push((ahead, missed));
            }
        }
        if !uploads.missed.is_empty() {
            return Ok(false);
        }
        self.fill(tx, wanted, loaded, keys, uploads).await?;
        Ok(true)
    }

    /// Deletes the pages of all collections that no key has, and of all that are being built. These
    /// are built again. Returns the number of pages and tombstones that there are then.
    pub async fn collect(&self, session: &mut Session) -> Result<u64, Error> {
        let mut cursor = 0;
        loop {
            cursor = self.pages.sweep(session, cursor, COLLECTED, u64::MAX).await?;
            if cursor == 0 {
                return self.pages.count(session).await;
            }
        }
    }

    /// Reads the next keys of a walk over all keys of all databases, and returns the cursor of the
    /// next step ([`DynTable::walk`]).
    pub(crate) async fn walk(
        &self,
        session: &mut Session,
        cursor: u64,
        slots: usize,
    ) -> Result<(Vec<Found>, u64), Error> {
        let walked = self.rows.walk(session, cursor, slots).await?;
        let found = walked.rows.iter().map(|(record, row)| Found::of(record, row)).collect::<Result<_, _>>()?;
        Ok((found, walked.cursor))
    }

    /// Returns a cursor at a place that `random` draws.
    pub(crate) fn cursor_at(&self, session: &Session, random: u64) -> Result<u64, Error> {
        self.rows.cursor_at(session, random)
    }

    /// Deletes keys, a few in each transaction: all of them, or only keys that have expired at a
    /// time.
    pub(crate) async fn delete(
        &self,
        session: &mut Session,
        names: &[Name<'_>],
        expired_at: Option<u64>,
    ) -> Result<(), Error> {
        for names in names.chunks(DELETED) {
            let wanted: Vec<Wanted<'_>> = names.iter().map(|name| (*name, Intent::Delete)).collect();
            let mut uploads = Uploads::default();
            let deleted = session
                .transact(async |tx| {
                    let mut keys = Keyspace::default();
                    let loaded = self.load(tx, &wanted, &mut keys, &uploads).await?;
                    match expired_at {
                        Some(now) => keys.expire(now),
                        None => keys.clear(),
                    }
                    self.save(tx, &keys, loaded, &mut uploads, false).await
                })
                .await;
            self.finish(session, &mut uploads, deleted.is_ok()).await;
            deleted?;
        }
        Ok(())
    }

    /// Writes the keys that have changed. If something is to be uploaded or read first, writes
    /// nothing and returns false. If too many pages change for one transaction, their collections
    /// are written anew, or it fails if fewer commands may be tried: if the commands are `several`.
    pub(crate) async fn save(
        &self,
        tx: &mut Transaction<'_, '_>,
        keys: &Keyspace,
        loaded: Loaded,
        uploads: &mut Uploads,
        several: bool,
    ) -> Result<bool, Error> {
        uploads.begin();
        let Loaded { rows, mut pages } = loaded;
        let changed = || keys.slots().iter().zip(&rows).filter(|(slot, _)| slot.is_changed);
        // What all of the keys write in pages must fit a log entry together.
        let mut room = written_max(tx.log_entry_max());
        let mut writes = Vec::new();
        for (slot, _) in changed() {
            writes.extend(self.plan(slot, &mut room, uploads, several)?);
        }
        // A collection that is needed whole is read like one of which a command needs all.
        for (slot, row) in changed() {
            let Some(object) =
                slot.object.as_ref().filter(|object| object.value.trees().iter().any(|tree| !tree.notes().is_empty()))
            else {
                continue;
            };
            let missed = object.value.trees().iter().map(|tree| tree.take_wanted()).collect();
            let home = object.value.trees().first().and_then(|tree| tree.home);
            // It may have been renamed since it was loaded.
            let of = |row: &&Row| row.spread.as_ref().is_some_and(|object| home_of(object) == home);
            let row = if of(&row) { row } else { rows.iter().find(of).ok_or(damaged("a home of no key"))? };
            if let (Some(stamp), Some(object)) = (row.stamp, &row.spread) {
                uploads.missed.push((Ahead { record: row.record.clone(), stamp, object: object.clone() }, missed));
            }
        }
        if !uploads.wanted.is_empty() || !uploads.missed.is_empty() {
            return Ok(false);
        }
        for place in uploads.linked_homes() {
            if !self.pages.link(tx, place).await? {
                // It took so long that it was given up. It is built again.
                uploads.forget(place);
                return Ok(false);
            }
        }
        // The homes that keys go on to name.
        let homes: Vec<Home> = writes
            .iter()
            .filter_map(|written| if let Written::Changed(home, _) = written { Some(*home) } else { None })
            .collect();
        let stamp = tx.stamp();
        let mut bytes = Vec::new();
        let slots = keys.slots().iter().enumerate().zip(rows).filter(|((_, slot), _)| slot.is_changed);
        for (((number, slot), row), written) in slots.zip(writes) {
            let name: Name<'_> = (slot.database, &slot.key);
            // The home that the key had, unless a key has it now.
            if let Some(home) =
                row.spread.as_ref().and_then(home_of).filter(|home| !homes.contains(home) && !mutant!(NoTombstone))
            {
                let before = self.rows.value_of(tx, &row.record, &row.slot)?.ok_or(Error::from(Abort::Changed))?;
                let roots = Parts::of(&row.record, &before).ok_or(damaged("a record is too short"))?.packed.to_vec();
                self.pages.unlink(tx, home, &roots).await?;
                uploads.unlinked.push(Place::Pages(home));
            }
            bytes.clear();
            let mut linked = None;
            match (&slot.object, written) {
                (None, _) | (_, Written::Deleted) => {}
                (Some(object), Written::Packed) => {
                    begin_row(name, stamp, Form::Packed, &mut bytes);
                    packed::pack(object, &mut bytes);
                }
                (Some(_), Written::Uploaded(place)) => match &uploads.uploads[place] {
                    Upload { place: Place::Pages(home), object: Some(object), .. } => {
                        begin_row(name, stamp, Form::Spread, &mut bytes);
                        packed::pack_roots(object, *home, &mut bytes);
                    }
                    Upload { packed, place, .. } => {
                        let head = packed::head(packed).map_err(Error::user)?;
                        begin_row(name, stamp, Form::Large, &mut bytes);
                        bytes.extend_from_slice(&packed[..head.bytes]);
                        linked = if let Place::Large(stored) = place { Some(*stored) } else { None };
                    }
                },
                (Some(_), Written::Spread(object, changes)) => {
                    let home = Home { id: stamp, index: number as u16 };
                    self.pages.write(tx, home, &changes, &mut pages).await?;
                    begin_row(name, stamp, Form::Spread, &mut bytes);
                    packed::pack_roots(&object, home, &mut bytes);
                }
                (Some(object), Written::Changed(home, changes)) => {
                    self.pages.write(tx, home, &changes, &mut pages).await?;
                    begin_row(name, stamp, Form::Spread, &mut bytes);
                    packed::pack_roots(object, home, &mut bytes);
                }
            }
            match &slot.object {
                Some(_) => self.rows.put_at(tx, &row.record, row.slot, &bytes).await?,
                None if row.stamp.is_some() => _ = self.rows.remove(tx, &row.record).await?,
                None => {}
            }
            let unlinked = match linked {
                Some(stored) => self.large.put(tx, digest_of(name), &stored).await?,
                None if row.form == Form::Large => self.large.remove(tx, digest_of(name)).await?,
                None => None,
            };
            uploads.unlinked.extend(unlinked.map(Place::Large));
        }
        Ok(true)
    }

    /// Decides how a key that has changed is written. Notes what must be uploaded before, and which
    /// pages must be loaded. `room` is the number of records of pages that the transaction can
    /// still write.
    fn plan(
        &self,
        slot: &Slot,
        room: &mut usize,
        uploads: &mut Uploads,
        several: bool,
    ) -> Result<Option<Written>, Error> {
        let Some(object) = &slot.object else { return Ok(Some(Written::Deleted)) };
        let Some(home) = home_of(object) else {
            let is_long = packed::length(object) > self.spread_bytes;
            return Ok(self.plan_packed(object, (&slot.key, is_long), room, uploads));
        };
        let changes = changes_of(object);
        let count = records_of(&changes);
        let has_outgrown = object.value.has_outgrown();
        if count <= *room && !has_outgrown {
            *room -= count;
            return Ok(Some(Written::Changed(home, changes)));
        }
        if several {
            return Err(Limit::LogEntry { bytes: count * PART_BYTES, max: *room * PART_BYTES }.into());
        }
        // All of it is written anew.
        let trees = object.value.trees();
        if !trees.iter().all(|tree| tree.is_whole()) {
            trees.iter().for_each(|tree| tree.want_all());
            return Ok(None);
        }
        Ok(self.plan_packed(&object.copy(), (&slot.key, true), room, uploads))
    }

    /// Decides how a key with a packed value is written. The value is spread if it `is_long` and
    /// can be.
    fn plan_packed(
        &self,
        object: &Object,
        (key, is_long): (&[u8], bool),
        room: &mut usize,
        uploads: &mut Uploads,
    ) -> Option<Written> {
        let length = packed::length(object);
        if is_long && object.value.can_be_spread() {
            let mut packed = Vec::new();
            if length <= *room * PART_BYTES {
                let mut object = object.clone();
                object.value.spread(self.pages.page_bytes());
                let changes = changes_of(&object);
                if records_of(&changes) <= *room {
                    *room -= records_of(&changes);
                    return Some(Written::Spread(object, changes));
                }
            }
            packed::pack(object, &mut packed);
            return uploads.find(packed, Form::Spread).map(Written::Uploaded);
        }
        if length > inline_max(key) {
            let mut packed = Vec::new();
            packed::pack(object, &mut packed);
            return uploads.find(packed, Form::Large).map(Written::Uploaded);
        }
        Some(Written::Packed)
    }

    /// Uploads the values that an attempt wanted, and reads the pages that it has missed. Discards
    /// the uploads that it did not want.
    pub(crate) async fn upload(&self, session: &mut Session, uploads: &mut Uploads) -> Result<(), Error> {
        for (mut ahead, missed) in std::mem::take(&mut uploads.missed) {
            if self.pages.load_ahead(session, &mut ahead.object, &missed).await? {
                uploads.ahead.retain(|other| other.record != ahead.record);
                uploads.ahead.push(ahead);
            }
        }
        if uploads.wanted.is_empty() {
            return Ok(());
        }
        let (kept, unused) = std::mem::take(&mut uploads.uploads).into_iter().partition(|upload| upload.is_linked);
        uploads.uploads = kept;
        self.discard(session, unused.into_iter().map(|upload: Upload| upload.place)).await;
        for (packed, form) in std::mem::take(&mut uploads.wanted) {
            let (place, object) = if form == Form::Spread {
                let mut object = unpack(&packed)?;
                object.value.spread(self.pages.page_bytes());
                (Place::Pages(self.pages.build(session, &object, uploads.now).await?), Some(object))
            } else {
                (Place::Large(self.large.upload(session, &packed).await?), None)
            };
            uploads.uploads.push(Upload { packed, place, object, is_linked: false });
        }
        Ok(())
    }

    /// Ends a transaction: discards the values that it has unlinked, if it has `committed`, and the
    /// values that it has not linked.
    pub(crate) async fn finish(&self, session: &mut Session, uploads: &mut Uploads, committed: bool) {
        let unlinked = std::mem::take(&mut uploads.unlinked);
        let unused = std::mem::take(&mut uploads.uploads).into_iter();
        let unused = unused.filter(|upload| !(upload.is_linked && committed)).map(|upload| upload.place);
        self.discard(session, unlinked.into_iter().filter(|_| committed).chain(unused)).await;
    }

    /// Deletes values that no key has. What fails here is collected later.
    async fn discard(&self, session: &mut Session, values: impl Iterator<Item = Place>) {
        for place in values.collect::<Vec<_>>() {
            let discarded = match place {
                Place::Large(stored) => self.large.discard(session, &stored).await,
                Place::Pages(home) => self.pages.give_up(session, home).await,
            };
            if let Err(error) = discarded {
                tracing::warn!(%error, "a large value that no key has is not discarded yet");
            }
        }
    }
}

/// Returns where the pages of a spread collection are stored.
fn home_of(object: &Object) -> Option<Home> {
    object.value.trees().first()?.home
}

impl Ahead {
    fn is_of(&self, record: &RecordName, stamp: u64) -> bool {
        self.record == *record && self.stamp == stamp
    }
}

impl Uploads {
    /// Makes the uploads of a transaction at this time, in milliseconds since 1970.
    pub(crate) fn at(now: u64) -> Uploads {
        Uploads { now, ..Uploads::default() }
    }

    /// Begins an attempt, which links and unlinks nothing yet.
    pub(crate) fn begin(&mut self) {
        self.wanted.clear();
        self.unlinked.clear();
        self.missed.clear();
        self.uploads.iter_mut().for_each(|upload| upload.is_linked = false);
    }

    /// Returns the place of the upload of this value, which no other key of this attempt has. If
    /// there is none, notes that it is wanted.
    fn find(&mut self, packed: Vec<u8>, form: Form) -> Option<usize> {
        let is_form = |place: Place| matches!(place, Place::Pages(_)) == (form == Form::Spread);
        let is_free = |upload: &Upload| !upload.is_linked && is_form(upload.place) && upload.packed == packed;
        let free = self.uploads.iter().position(is_free);
        match free {
            Some(place) => self.uploads[place].is_linked = true,
            None => self.wanted.push((packed, form)),
        }
        free
    }

    /// Returns the homes that this attempt links.
    fn linked_homes(&self) -> Vec<Home> {
        let linked = self.uploads.iter().filter(|upload| upload.is_linked);
        linked.filter_map(|upload| if let Place::Pages(home) = upload.place { Some(home) } else { None }).collect()
    }

    /// Forgets a home that was given up.
    fn forget(&mut self, home: Home) {
        self.uploads.retain(|upload| upload.place != Place::Pages(home));
    }
}

/// The name of a record. Most are short.
type RecordName = SmallVec<[u8; 32]>;

/// Returns the name of a key's record.
fn record_of((database, key): Name<'_>) -> RecordName {
    let (is_digest, digest);
    let name = if key.len() <= NAME_BYTES_MAX {
        is_digest = 0;
        key
    } else {
        (is_digest, digest) = (1, Sha256::digest(key));
        &digest[..]
    };
    let mut record = RecordName::with_capacity(1 + name.len());
    record.push(database << 1 | is_digest);
    record.extend_from_slice(name);
    record
}

/// Returns the name of a key's large value.
fn digest_of((database, key): Name<'_>) -> [u8; 16] {
    let digest = Sha256::new().chain_update([database]).chain_update(key).finalize();
    *digest.first_chunk().expect("a digest has 32 bytes")
}

/// Returns the bytes of the longest packed value of this key that is not large.
fn inline_max(key: &[u8]) -> usize {
    let in_row = if key.len() > NAME_BYTES_MAX { key.len() } else { 0 };
    INLINE_BYTES_MAX.min(ROW_BYTES_MAX - ROW_HEAD_BYTES - in_row)
}

/// Begins the value of a key's record: appends what is in front of the packed value, or of its
/// head.
fn begin_row(name: Name<'_>, stamp: u64, form: Form, row: &mut Vec<u8>) {
    row.extend(stamp.to_le_bytes());
    row.push(form as u8);
    if name.1.len() > NAME_BYTES_MAX {
        row.extend((name.1.len() as u16).to_le_bytes());
        row.extend_from_slice(name.1);
    }
}

/// The value of a key's record, taken apart.
struct Parts<'r> {
    stamp: u64,
    form: Form,
    /// The key, if the record's name has its digest.
    key: Option<&'r [u8]>,
    /// The packed value, or what stands for it.
    packed: &'r [u8],
}

impl<'r> Parts<'r> {
    fn of(record: &[u8], row: &'r [u8]) -> Option<Parts<'r>> {
        let (stamp, rest) = row.split_first_chunk()?;
        let (form, mut packed) = rest.split_first()?;
        let form = *[Form::Packed, Form::Large, Form::Spread].get(usize::from(*form))?;
        let mut key = None;
        if record.first()? & 1 == 1 {
            let (length, rest) = packed.split_first_chunk()?;
            let (own, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
            (key, packed) = (Some(own), rest);
        }
        Some(Parts { stamp: u64::from_le_bytes(*stamp), form, key, packed })
    }
}

impl Found {
    fn of(record: &[u8], row: &[u8]) -> Result<Found, Error> {
        let parts = Parts::of(record, row).ok_or(damaged("a record is too short"))?;
        let head = packed::head(parts.packed).map_err(Error::user)?;
        let key = parts.key.unwrap_or(&record[1..]).to_vec();
        Ok(Found { database: record[0] >> 1, key, kind: head.kind, expiry: head.expiry })
    }
}

fn unpack(bytes: &[u8]) -> Result<Object, Error> {
    packed::unpack(bytes).map_err(Error::user)
}
