//! Walks over all rows of a table of bytes, step by step, while transactions run.

use remora_index::Table;
use remora_node::MemoryError;
use remora_record::Key;
use remora_txn::limits::LOG_PAUSE_NS;
use remora_txn::{Abort, Intent, KeyScan};

use super::schema::DIGEST_BYTES;
use super::{DIGEST, DynTable, Fetched, RecordKey};
use crate::error::{Error, OpenError};
use crate::transaction::Transaction;
use crate::worker::Session;

/// Rows that a step of a walk has read, and the cursor of the next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Walked {
    /// Keys and their values. They were there at one moment, all of them.
    pub rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the next step goes on, or 0 if the walk is over.
    pub cursor: u64,
}

/// A place in a table that may grow.
///
/// A cursor has, from its highest bits: 12 bits of the generation that entered the table, 12 bits
/// of a shard, and 40 bits of a place in the shard, plus 1. So no cursor is 0.
#[derive(Clone, Copy)]
struct Place {
    born: u64,
    shard: u16,
    at: u64,
}

/// Longest pause before a step reads records again of which one is locked, in nanoseconds.
const PAUSE_NS_MAX: u64 = 1_000_000;

const AT_BITS: u32 = 40;
const SHARD_BITS: u32 = 12;
const BORN_MASK: u64 = (1 << (64 - SHARD_BITS - AT_BITS)) - 1;

impl Place {
    fn of(cursor: u64) -> Option<Place> {
        let cursor = cursor.checked_sub(1)?;
        Some(Place {
            born: cursor >> (AT_BITS + SHARD_BITS),
            shard: (cursor >> AT_BITS & ((1 << SHARD_BITS) - 1)) as u16,
            at: cursor & ((1 << AT_BITS) - 1),
        })
    }

    fn cursor(self) -> u64 {
        ((self.born & BORN_MASK) << (AT_BITS + SHARD_BITS) | u64::from(self.shard) << AT_BITS | self.at) + 1
    }
}

impl DynTable {
    /// Reads the next rows of a walk over the whole table, while transactions run. A walk begins
    /// with cursor 0, and goes on with the cursor that the last step has returned, on any session
    /// of any process. It is over when that cursor is 0. A step reads at most `slots` places of
    /// records, of which some may be empty.
    ///
    /// A row that is there from the beginning of the walk to its end is read at least once. If the
    /// table grows meanwhile, many rows are read twice. The rows of one step are read in one
    /// transaction.
    ///
    /// Fails with [`Error::Aborted`] if a record stays locked for longer than a transaction would
    /// be tried by default. The step can be taken again.
    pub async fn walk(&self, session: &mut Session, cursor: u64, slots: usize) -> Result<Walked, Error> {
        let (keys, cursor) = self.walk_keys(session, cursor, slots).await?;
        let rows = session.transact(async |tx| self.rows_of(tx, &keys).await).await?;
        Ok(Walked { rows, cursor })
    }

    /// Returns a cursor at a place that `random` draws. A walk from there reads only what lies
    /// behind that place.
    pub fn cursor_at(&self, session: &Session, random: u64) -> Result<u64, Error> {
        let table = session.table(self.heads.handle())?;
        let Some(last) = table.and_larger().last() else { return Ok(0) };
        let shard = (random % u64::from(last.shards().max(1))) as u16;
        let places = last.objects().map_or(last.index().bytes(), |geometry| geometry.buckets.main);
        let at = ((u128::from(random) * u128::from(places)) >> 64) as u64;
        Ok(Place { born: last.born(), shard, at }.cursor())
    }

    /// Reads the keys of the next records, and returns the cursor behind them.
    async fn walk_keys(&self, session: &mut Session, cursor: u64, slots: usize) -> Result<(Vec<Key>, u64), Error> {
        let mut give_up = None;
        let mut pause = LOG_PAUSE_NS;
        loop {
            {
                let _in_use = session.begin_outside().await?;
                let table = &*session.table(self.heads.handle())?;
                let (number, mut scan) = resume(table, cursor);
                let Some(now) = table.and_larger().nth(number) else { return Ok((Vec::new(), 0)) };
                let found = scan.next(session.lane(), now, slots).await?;
                let Some(found) = found else {
                    let next = table.and_larger().nth(number + 1);
                    let cursor = next.map_or(0, |next| Place { born: next.born(), shard: 0, at: 0 }.cursor());
                    return Ok((Vec::new(), cursor));
                };
                if found.unsettled == 0 {
                    let (shard, at) = scan.place();
                    if shard >= 1 << SHARD_BITS || at >= 1 << AT_BITS {
                        let limit = MemoryError::limit("bytes of a shard that is walked", at, 1 << AT_BITS);
                        return Err(OpenError::from(limit).into());
                    }
                    return Ok((found.keys, Place { born: now.born(), shard, at }.cursor()));
                }
            }
            let now = session.lane().now();
            if now >= *give_up.get_or_insert_with(|| now.saturating_add(session.longest_patience())) {
                return Err(Abort::Torn.into());
            }
            session.lane().sleep(pause).await;
            pause = (2 * pause).min(PAUSE_NS_MAX);
        }
    }

    /// Returns the rows of records that are still there.
    async fn rows_of(&self, tx: &mut Transaction<'_, '_>, records: &[Key]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        let mut all: Vec<Fetched> = records.iter().map(|record| self.name_record(tx, record)).collect();
        self.fetch_named(tx, &mut all).await?;
        let mut rows = Vec::with_capacity(all.len());
        for named in all.iter().filter(|named| named.is_there()) {
            rows.push(self.row(tx, named)?);
        }
        Ok(rows)
    }

    fn name_record(&self, tx: &mut Transaction<'_, '_>, record: &Key) -> Fetched {
        let head = tx.name_raw(self.heads.handle(), record, Intent::Read);
        Fetched { head, ..Fetched::of(RecordKey::of_record(record)) }
    }

    /// Returns the key and the value of a record that was fetched.
    fn row(&self, tx: &Transaction<'_, '_>, named: &Fetched) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let mut content = self.content(tx, named)?.into_owned();
        let bytes = &named.record.bytes;
        if self.schema.keys().is_one() {
            return Ok((bytes.to_vec(), content));
        }
        let last = bytes[DIGEST_BYTES - 1];
        if last != DIGEST {
            let key = bytes.get(..usize::from(last)).ok_or_else(|| self.damaged("the length of a key"))?;
            return Ok((key.to_vec(), content));
        }
        let own = content.first_chunk().map_or(0, |length| usize::from(u16::from_le_bytes(*length)));
        if content.len() < 2 + own {
            return Err(self.damaged("the length of a key"));
        }
        let key = content.drain(..2 + own).skip(2).collect();
        Ok((key, content))
    }
}

/// Returns which of a table and the larger tables that it grows into a cursor is in, and a scan
/// from there. If none of them is the cursor's table, the walk begins again with the first one.
fn resume(table: &Table, cursor: u64) -> (usize, KeyScan) {
    let place = Place::of(cursor);
    let is_in = |(_, table): &(usize, &Table)| place.is_some_and(|place| table.born() & BORN_MASK == place.born);
    match (place, table.and_larger().enumerate().find(is_in)) {
        (Some(place), Some((number, _))) => (number, KeyScan::from(place.shard, place.at)),
        _ => (0, KeyScan::default()),
    }
}
