//! How the elements of large collections lie in records of their own.
//!
//! ```text
//! table NAME/pages        | id : 8 | index : 2 | tree : 1 | part : 1 | page : 8 |  ->  bytes : 976
//! table NAME/tombstones   | id : 8 | index : 2 |  ->
//! | 0 or 2 | since : 8 | parts : 1 | pages : 8 |  being built, or given up;
//!                                                                      pages of each tree
//!                         | 1 | head and roots |   dead
//! ```
//!
//! The first two numbers are a *home* ([`Home`]): the id of a transaction, and a number among what
//! it has spread. A key's record names the home of its pages, with the roots of the trees that they
//! form ([`remora_redis::tree`]). Numbers of names are big-endian, and others little-endian.
//!
//! # Rules
//!
//! 1. **A home is named by at most one key**, and never named again after that.
//! 2. **Every transaction that writes a page of a home writes the record of its key.** So a
//!    transaction that has read that record and validates it has read pages of one state, also
//!    where other transactions have fetched them for it. `WATCH`, expiry and conflicts need nothing
//!    else.
//! 3. **While a home has pages, a key names it, or it has a tombstone.** One transaction changes
//!    both: what makes a key name a home removes its tombstone, and what makes it name none adds
//!    one.
//! 4. **Pages are deleted only while their home has a tombstone that no transaction can
//!    remove:** one that is dead or given up. The tombstone goes last. So any gateway that finds a
//!    tombstone can finish what another one has begun that has died.
//! 5. **Every transaction that builds or links a home reads its tombstone**, and does nothing if
//!    the home was given up. So a tombstone may be given up at any time, and is after
//!    [`BUILT_WITHIN_MS`], because its builder has probably died.

use std::collections::HashMap;

use remora::{
    Abort, Cluster, DynOptions, DynSchema, DynSlot, DynTable, Error, Intent, Lengths, OpenError, Session, Transaction,
};
use remora_redis::tree::{Change, Home, Missing, PART_BYTES, Tree, Wanted};
use remora_redis::{Object, packed};

use crate::damaged::damaged;
use crate::options::StoreOptions;

/// Bytes of the name of a page's record.
const PAGE_NAME_BYTES: usize = 20;
/// Bytes of the name of a tombstone.
const TOMBSTONE_NAME_BYTES: usize = 10;
/// Bytes of the longest tombstone: two roots of at least two children with long keys.
const TOMBSTONE_BYTES_MAX: usize = 4 << 10;
/// After this time a collection that is being built counts as given up.
pub(crate) const BUILT_WITHIN_MS: u64 = 60_000;
/// A transaction writes one record of a page for this many bytes of the longest log entry. The
/// record takes about 1,050 of them. The rest is for the records of its keys.
const LOGGED_BYTES: usize = 1600;
/// The number of records of pages that one transaction writes at most, whatever its log may hold.
const WRITTEN_MAX: usize = 300;
/// The number of pages that a transaction reads itself. More are read by others before it.
const READ_MAX: usize = 512;
/// The number of pages that one of these others reads.
const READ_AHEAD: usize = 128;
/// The bytes of tombstones for which there is room at first, beyond what is in their heads.
const TOMBSTONES_BYTES: u64 = 1 << 16;

const BUILDING: u8 = 0;
const DEAD: u8 = 1;
const GIVEN_UP: u8 = 2;

/// The name of a page's record.
type PageName = [u8; PAGE_NAME_BYTES];

/// The records of pages that a transaction has fetched.
#[derive(Default)]
pub(crate) struct Fetched(HashMap<PageName, DynSlot>);

/// The tables of pages and of tombstones.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pages: DynTable,
    tombstones: DynTable,
    /// Pages of several elements have at most this many bytes.
    page_bytes: usize,
}

impl Pages {
    /// Opens the tables of a store, or creates them if there are none.
    pub(crate) fn open_or_create(cluster: &Cluster, name: &str, options: &StoreOptions) -> Result<Pages, OpenError> {
        let pages =
            DynSchema::new("pages of a gateway", Lengths::Exactly(PAGE_NAME_BYTES), Lengths::Exactly(PART_BYTES));
        let tombstones = DynSchema::new(
            "tombstones of a gateway",
            Lengths::Exactly(TOMBSTONE_NAME_BYTES),
            Lengths::UpTo(TOMBSTONE_BYTES_MAX),
        );
        let StoreOptions { copies, page_bytes, .. } = *options;
        let (mut of_pages, mut of_tombstones) =
            (DynOptions::for_rows(options.pages), DynOptions::for_rows(options.pages).bytes(TOMBSTONES_BYTES));
        if let Some(copies) = copies {
            (of_pages, of_tombstones) = (of_pages.replicas(copies), of_tombstones.replicas(copies));
        }
        Ok(Pages {
            pages: cluster.open_or_create_dyn_table(&format!("{name}/pages"), &pages, of_pages)?,
            tombstones: cluster.open_or_create_dyn_table(&format!("{name}/tombstones"), &tombstones, of_tombstones)?,
            page_bytes,
        })
    }

    /// Returns the bytes of a page.
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Loads what commands have wanted of a spread collection into a copy that no command has
    /// changed. Returns false, and what was wanted, if that is more than this transaction reads
    /// itself.
    pub(crate) async fn load(
        &self,
        tx: &mut Transaction<'_, '_>,
        object: &mut Object,
        intent: Intent,
        fetched: &mut Fetched,
    ) -> Result<Option<Vec<Vec<Wanted>>>, Error> {
        let mut trees = object.value.trees_mut();
        let wanted: Vec<Vec<Wanted>> = trees.iter().map(|tree| tree.take_wanted()).collect();
        let intent = if intent == Intent::Read { Intent::Read } else { Intent::Update };
        loop {
            let missing = missing_of(&trees, &wanted);
            if missing.is_empty() {
                return Ok(None);
            }
            if fetched.0.len() + missing.len() > READ_MAX {
                return Ok(Some(wanted));
            }
            let names = names_of(&trees, &missing)?;
            let slots = self.pages.fetch_for(tx, names.iter().map(|name| (&name[..], intent))).await?;
            let mut parts = names.into_iter().zip(slots);
            let mut bytes = Vec::new();
            for (number, missing) in missing {
                bytes.clear();
                for (name, slot) in parts.by_ref().take(missing.parts.into()) {
                    // A page that is gone is of a collection that has changed since.
                    let part = self.pages.value_of(tx, &name, &slot)?.ok_or(Error::from(Abort::Changed))?;
                    bytes.extend_from_slice(&part);
                    fetched.0.insert(name, slot);
                }
                if !trees[number].supply(missing, &bytes) {
                    return Err(Abort::Changed.into());
                }
            }
        }
    }

    /// Loads what commands have wanted, by transactions of its own. Returns false if the collection
    /// has changed meanwhile.
    pub(crate) async fn load_ahead(
        &self,
        session: &mut Session,
        object: &mut Object,
        wanted: &[Vec<Wanted>],
    ) -> Result<bool, Error> {
        let mut trees = object.value.trees_mut();
        loop {
            let all = missing_of(&trees, wanted);
            if all.is_empty() {
                return Ok(true);
            }
            for missing in all.chunks(READ_AHEAD) {
                let names = names_of(&trees, missing)?;
                let values = session.transact(async |tx| self.pages.get_many(tx, &names).await).await?;
                let mut values = values.into_iter();
                for (number, missing) in missing {
                    let parts: Option<Vec<Vec<u8>>> = values.by_ref().take(missing.parts.into()).collect();
                    if !parts.is_some_and(|parts| trees[*number].supply(*missing, &parts.concat())) {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Writes changes of the pages of a home.
    pub(crate) async fn write(
        &self,
        tx: &mut Transaction<'_, '_>,
        home: Home,
        changes: &[Vec<Change>],
        fetched: &mut Fetched,
    ) -> Result<(), Error> {
        // Each record that changes, with what it will hold. Nothing, if it is deleted.
        let mut records: Vec<(PageName, Option<&[u8]>)> = Vec::new();
        for (number, changes) in (0..).zip(changes) {
            for Change { page, stored, bytes } in changes {
                let mut parts = bytes.chunks(PART_BYTES);
                for part in 0..(*stored).max(parts_of(bytes)) {
                    records.push((page_name(home, number, *page, part), parts.next()));
                }
            }
        }
        let unknown: Vec<PageName> =
            records.iter().map(|(name, _)| *name).filter(|name| !fetched.0.contains_key(name)).collect();
        let intents = unknown.iter().map(|name| (&name[..], Intent::Insert));
        let slots = self.pages.fetch_for(tx, intents).await?;
        fetched.0.extend(unknown.iter().copied().zip(slots));
        for (name, bytes) in records {
            match (bytes, fetched.0.remove(&name)) {
                (Some(bytes), Some(slot)) => {
                    let mut padded = [0; PART_BYTES];
                    padded[..bytes.len()].copy_from_slice(bytes);
                    self.pages.put_at(tx, &name, slot, &padded).await?;
                }
                _ => _ = self.pages.remove(tx, &name).await?,
            }
        }
        Ok(())
    }

    /// Stores a collection that has just been spread, so that a transaction can make a key name its
    /// home. Returns the home.
    pub(crate) async fn build(&self, session: &mut Session, object: &Object, now: u64) -> Result<Home, Error> {
        let changes = changes_of(object);
        let mut tombstone = vec![BUILDING];
        tombstone.extend(now.to_le_bytes());
        tombstone.push(changes.iter().flatten().map(|change| parts_of(&change.bytes)).max().unwrap_or(1));
        for changes in &changes {
            let pages = changes.iter().map(|change| change.page + 1).max().unwrap_or(0);
            tombstone.extend(pages.to_le_bytes());
        }
        let home = session
            .transact(async |tx| {
                let home = Home { id: tx.id().to_bits(), index: 0 };
                self.tombstones.insert(tx, &tombstone_name(home), &tombstone).await?;
                Ok(home)
            })
            .await;
        let home = home.map_err(dropped)?;
        let written_max = written_max(session.log_entry_max());
        for (number, changes) in changes.iter().enumerate() {
            let mut rest = &changes[..];
            while !rest.is_empty() {
                let (mut count, mut parts) = (0, 0);
                while count < rest.len()
                    && (count == 0 || parts + usize::from(parts_of(&rest[count].bytes)) <= written_max)
                {
                    parts += usize::from(parts_of(&rest[count].bytes));
                    count += 1;
                }
                let (written, behind) = rest.split_at(count);
                rest = behind;
                let mut changes = vec![Vec::new(); number];
                changes.push(written.to_vec());
                let is_built = session.transact(async |tx| {
                    let is_building = self.is_building(tx, home).await?;
                    if is_building {
                        self.write(tx, home, &changes, &mut Fetched::default()).await?;
                    }
                    Ok(is_building)
                });
                if !is_built.await.map_err(dropped)? {
                    return Err(Abort::Dropped.into());
                }
            }
        }
        Ok(home)
    }

    /// Removes the tombstone of a home that was built, because a key names the home now. Returns
    /// false if it was given up.
    pub(crate) async fn link(&self, tx: &mut Transaction<'_, '_>, home: Home) -> Result<bool, Error> {
        let is_building = self.is_building(tx, home).await?;
        if is_building {
            self.tombstones.remove(tx, &tombstone_name(home)).await?;
        }
        Ok(is_building)
    }

    async fn is_building(&self, tx: &mut Transaction<'_, '_>, home: Home) -> Result<bool, Error> {
        let tombstone = self.tombstones.get(tx, &tombstone_name(home)).await?;
        Ok(tombstone.is_some_and(|tombstone| tombstone.first() == Some(&BUILDING)))
    }

    /// Adds a tombstone for a home that no key names any more. `roots` are the head and the roots
    /// of the collection, as they are stored.
    pub(crate) async fn unlink(&self, tx: &mut Transaction<'_, '_>, home: Home, roots: &[u8]) -> Result<(), Error> {
        self.tombstones.put(tx, &tombstone_name(home), &[&[DEAD], roots].concat()).await?;
        Ok(())
    }

    /// Gives up what was built and not linked, and deletes it. What fails is collected later.
    pub(crate) async fn give_up(&self, session: &mut Session, home: Home) -> Result<(), Error> {
        let name = tombstone_name(home);
        let given_up = session.transact(async |tx| {
            let Some(mut tombstone) = self.tombstones.get(tx, &name).await? else { return Ok(()) };
            if tombstone[0] == BUILDING {
                tombstone[0] = GIVEN_UP;
                self.tombstones.put(tx, &name, &tombstone).await?;
            }
            Ok(())
        });
        given_up.await?;
        self.collect(session, home).await
    }

    /// Deletes the pages of a home that has a tombstone which is dead or given up, and then the
    /// tombstone.
    pub(crate) async fn collect(&self, session: &mut Session, home: Home) -> Result<(), Error> {
        let name = tombstone_name(home);
        let tombstone = session.transact(async |tx| self.tombstones.get(tx, &name).await).await?;
        match tombstone.as_deref() {
            Some([DEAD, roots @ ..]) => {
                let object = packed::unpack_roots(roots, self.page_bytes).map_err(Error::user)?;
                for (number, tree) in (0..).zip(object.value.trees()) {
                    self.delete_under(session, (home, number), tree).await?;
                }
            }
            Some([GIVEN_UP, rest @ ..]) => {
                let Some((parts, pages)) = rest.get(8..).and_then(<[u8]>::split_first) else {
                    return Err(damaged("a tombstone is too short"));
                };
                for (number, pages) in (0..).zip(pages.as_chunks().0) {
                    let all: Vec<Missing> =
                        (0..u64::from_le_bytes(*pages)).map(|page| Missing { page, parts: *parts, count: 0 }).collect();
                    self.delete(session, (home, number), &all).await?;
                }
            }
            _ => return Ok(()),
        }
        session.transact(async |tx| self.tombstones.remove(tx, &name).await.map(drop)).await
    }

    /// Deletes the pages of a tree, those of the lowest level first.
    async fn delete_under(&self, session: &mut Session, of: (Home, u8), tree: &Tree) -> Result<(), Error> {
        let (top, height) = tree.top();
        // The pages of each level whose parents are known, from the root on.
        let mut levels = vec![top];
        for _ in 1..height {
            let mut below = Vec::new();
            for pages in levels.last().map_or(&[][..], Vec::as_slice).chunks(READ_AHEAD) {
                let names = pages.iter().flat_map(|page| part_names(of, *page)).collect::<Vec<_>>();
                let values = session.transact(async |tx| self.pages.get_many(tx, &names).await).await?;
                let mut values = values.into_iter();
                for page in pages {
                    let parts: Option<Vec<Vec<u8>>> = values.by_ref().take(page.parts.into()).collect();
                    // Who has deleted it has deleted what was under it before.
                    let Some(parts) = parts else { continue };
                    below.extend(Tree::under(&parts.concat()).ok_or(damaged("a page of a tree"))?);
                }
            }
            levels.push(below);
        }
        while let Some(level) = levels.pop() {
            self.delete(session, of, &level).await?;
        }
        Ok(())
    }

    async fn delete(&self, session: &mut Session, of: (Home, u8), pages: &[Missing]) -> Result<(), Error> {
        let names: Vec<PageName> = pages.iter().flat_map(|page| part_names(of, *page)).collect();
        for names in names.chunks(written_max(session.log_entry_max())) {
            let deleted = session.transact(async |tx| {
                let intents = names.iter().map(|name| (&name[..], Intent::Delete));
                let slots = self.pages.fetch_for(tx, intents).await?;
                for (name, slot) in names.iter().zip(slots) {
                    if self.pages.value_of(tx, name, &slot)?.is_some() {
                        self.pages.remove(tx, name).await?;
                    }
                }
                Ok(())
            });
            deleted.await?;
        }
        Ok(())
    }

    /// Collects what the next tombstones of a walk over all tombstones stand for. Returns the
    /// cursor of the next step.
    pub(crate) async fn sweep(&self, session: &mut Session, cursor: u64, slots: usize, now: u64) -> Result<u64, Error> {
        let walked = self.tombstones.walk(session, cursor, slots).await?;
        for (name, tombstone) in &walked.rows {
            let (Some((id, index)), Some((kind, rest))) = (name.split_first_chunk(), tombstone.split_first()) else {
                return Err(damaged("a tombstone is too short"));
            };
            let Some(index) = index.first_chunk() else { return Err(damaged("a tombstone is too short")) };
            let home = Home { id: u64::from_be_bytes(*id), index: u16::from_be_bytes(*index) };
            let since = rest.first_chunk().map_or(0, |since| u64::from_le_bytes(*since));
            match *kind {
                BUILDING if since.saturating_add(BUILT_WITHIN_MS) > now => {}
                BUILDING => self.give_up(session, home).await?,
                _ => self.collect(session, home).await?,
            }
        }
        Ok(walked.cursor)
    }
}

impl Pages {
    /// Returns the number of records of pages and of tombstones.
    pub(crate) async fn count(&self, session: &mut Session) -> Result<u64, Error> {
        let mut count = 0;
        for table in [&self.pages, &self.tombstones] {
            let mut cursor = 0;
            loop {
                let walked = table.walk(session, cursor, READ_AHEAD).await?;
                count += walked.rows.len() as u64;
                cursor = walked.cursor;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(count)
    }
}

/// Returns the error of a step of building. Nothing that is visible has happened if its outcome is
/// unknown, and the caller must not ask for it.
fn dropped(error: Error) -> Error {
    match error {
        Error::Unknown(_) => Abort::Dropped.into(),
        error => error,
    }
}

/// Returns the changes of the trees of a spread collection.
pub(crate) fn changes_of(object: &Object) -> Vec<Vec<Change>> {
    object.value.trees().iter().map(|tree| tree.changes()).collect()
}

/// Returns the number of records that changes write or delete.
pub(crate) fn records_of(changes: &[Vec<Change>]) -> usize {
    changes.iter().flatten().map(|change| usize::from(change.stored.max(parts_of(&change.bytes)))).sum()
}

/// Returns the number of records of pages that a transaction can write or delete whose log entry
/// has at most this many bytes.
pub(crate) fn written_max(log_entry_max: usize) -> usize {
    (log_entry_max / LOGGED_BYTES).clamp(1, WRITTEN_MAX)
}

fn parts_of(bytes: &[u8]) -> u8 {
    u8::try_from(bytes.len().div_ceil(PART_BYTES)).unwrap_or(u8::MAX)
}

/// Returns the pages that are missing for what is wanted, with the numbers of their trees.
fn missing_of(trees: &[&mut Tree], wanted: &[Vec<Wanted>]) -> Vec<(usize, Missing)> {
    let of_tree = |(number, (tree, wanted)): (usize, (&&mut Tree, &Vec<Wanted>))| {
        tree.missing(wanted).into_iter().map(move |missing| (number, missing)).collect::<Vec<_>>()
    };
    trees.iter().zip(wanted).enumerate().flat_map(of_tree).collect()
}

/// Returns the names of the records of pages.
fn names_of(trees: &[&mut Tree], missing: &[(usize, Missing)]) -> Result<Vec<PageName>, Error> {
    let mut names = Vec::with_capacity(missing.len());
    for (number, missing) in missing {
        let home = trees[*number].home.ok_or(damaged("pages without a home"))?;
        names.extend(part_names((home, *number as u8), *missing));
    }
    Ok(names)
}

fn part_names((home, tree): (Home, u8), page: Missing) -> impl Iterator<Item = PageName> {
    (0..page.parts).map(move |part| page_name(home, tree, page.page, part))
}

fn page_name(home: Home, tree: u8, page: u64, part: u8) -> PageName {
    let mut name = [0; PAGE_NAME_BYTES];
    name[..8].copy_from_slice(&home.id.to_be_bytes());
    name[8..10].copy_from_slice(&home.index.to_be_bytes());
    (name[10], name[11]) = (tree, part);
    name[12..].copy_from_slice(&page.to_be_bytes());
    name
}

fn tombstone_name(home: Home) -> [u8; TOMBSTONE_NAME_BYTES] {
    let mut name = [0; TOMBSTONE_NAME_BYTES];
    name[..8].copy_from_slice(&home.id.to_be_bytes());
    name[8..].copy_from_slice(&home.index.to_be_bytes());
    name
}
