//! TATP, the Telecom Application Transaction Processing benchmark: seven short transactions over
//! the subscribers of a telephone network. 80 % of the transactions only read (Neuvonen et al.,
//! TATP benchmark description 1.0, IBM 2009).
//!
//! | transaction            | share | reads and writes                              | round trips (`drtm-r`) | succeeds |
//! | ---------------------- | ----: | --------------------------------------------- | ---------------------: | -------: |
//! | get_subscriber_data    |  35 % | 1 R                                           | 1                      | 100 %    |
//! | get_new_destination    |  10 % | special_facility R, call_forwarding 1 to 3 R  | 2                      | 16 %     |
//! | get_access_data        |  35 % | 1 R                                           | 1                      | 62.5 %   |
//! | update_subscriber_data |   2 % | subscriber U, special_facility U              | 3                      | 62.5 %   |
//! | update_location        |  14 % | sub_nbr R; subscriber U                       | 5                      | 100 %    |
//! | insert_call_forwarding |   2 % | sub_nbr R; special_facility 4 R, 1 I          | 5                      | 31.25 %  |
//! | delete_call_forwarding |   2 % | sub_nbr R; 1 D                                | 5                      | 31.25 %  |
//!
//! R only reads, U updates, I inserts, D deletes. What is behind a semicolon needs the result of
//! what is before it. Everything else of a transaction is fetched in one round. A transaction does
//! not succeed if it finds no row, or finds a row where it wants to insert. It then gives up, which
//! is an outcome like any other and counts as the workload's own abort. The shares of success
//! follow from the population. get_new_destination reaches 20 % in the long run, because inserted
//! forwarding ends later than loaded forwarding.
//!
//! Where TATP selects a range (all special facilities of a subscriber, or all call forwarding that
//! has begun), there are so few keys that each is read by name. Absent keys are validated like the
//! others.

mod audit;
pub mod population;

use std::error::Error as StdError;
use std::fmt;
use std::pin::pin;

use remora::{
    Cluster, Error, Intent, OpenError, Record, Session, Table, TableOptions, Transaction, TransactionOptions,
};
use remora_fabric::{Outlined, outline};

use crate::guestbook::{self, LEDGER_WORDS, Ledger, PARAMETERS};
use crate::report::Invariant;
use crate::sizing::{self, Setting};
use crate::{After, Prng, Workload, draw_from, glance};
use population::{
    AccessInfo, CallForwarding, Capacity, Digits, ForwardingKey, Household, Number, START_TIMES, SpecialFacility,
    Subscriber, TYPES, any_digits, digits, location,
};

/// The workload's own abort: a row is absent, or is present already. It has no size, so giving up
/// allocates nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSuccess;

impl fmt::Display for NoSuccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row is not there, or is there already, as TATP expects of a share of its transactions")
    }
}

impl StdError for NoSuccess {}

/// Converts an error for a row whose absence or presence TATP expects now and then into the
/// workload's own abort. For all other rows, the error ends the run.
fn expected(error: Error) -> Error {
    match error {
        Error::NotFound(_) | Error::Exists(_) => Error::user(NoSuccess),
        error => error,
    }
}

/// The seven transactions of TATP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads all of a subscriber's row.
    GetSubscriberData,
    /// Reads the number to which a call is forwarded now.
    GetNewDestination,
    /// Reads the access information of a subscriber.
    GetAccessData,
    /// Changes a bit of the subscriber and a byte of one of its special facilities.
    UpdateSubscriberData,
    /// Changes the location of a subscriber who has moved.
    UpdateLocation,
    /// Inserts a call forwarding.
    InsertCallForwarding,
    /// Deletes a call forwarding.
    DeleteCallForwarding,
}

impl Kind {
    /// All kinds, with their share of the mix in percent.
    pub const MIX: [(Kind, u64); 7] = [
        (Kind::GetSubscriberData, 35),
        (Kind::GetNewDestination, 10),
        (Kind::GetAccessData, 35),
        (Kind::UpdateSubscriberData, 2),
        (Kind::UpdateLocation, 14),
        (Kind::InsertCallForwarding, 2),
        (Kind::DeleteCallForwarding, 2),
    ];

    /// Draws the next kind of the mix.
    #[must_use]
    pub fn draw(random: &mut Prng) -> Kind {
        draw_from(&Kind::MIX, random)
    }
}

/// The subscribers, numbered from 1. Some are drawn more often than others, as the specification
/// says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscribers {
    count: u32,
    /// The specification's A, which says how uneven the distribution is.
    spread: u64,
}

impl Subscribers {
    /// Default number of subscribers.
    pub const STANDARD: u32 = 100_000;

    /// Makes `count` subscribers, at least one.
    #[must_use]
    pub fn new(count: u32) -> Subscribers {
        assert!(count > 0, "transactions need a subscriber");
        let spread = match count {
            0..=1_000_000 => 65_535,
            1_000_001..=10_000_000 => 1_048_575,
            _ => 2_097_151,
        };
        Subscribers { count, spread }
    }

    /// Returns the number of subscribers.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Draws the subscriber of a transaction, by TATP's non-uniform distribution. The OR of two
    /// numbers sets more bits than either has.
    #[must_use]
    pub fn draw(&self, random: &mut Prng) -> u32 {
        let (count, uneven) = (u64::from(self.count), random.below(self.spread + 1));
        ((uneven | (1 + random.below(count))) % count) as u32 + 1
    }
}

/// The parameters of a transaction, of which each kind uses its part. They are drawn before the
/// first attempt, and all further attempts keep them.
#[derive(Clone, Copy, Debug)]
struct Parameters {
    s_id: u32,
    /// The `ai_type` or `sf_type`.
    kind: u8,
    start_time: u8,
    end_time: u8,
    /// Bit 8 is the new `bit_1`, and the rest is `data_a`.
    data: u16,
    location: u32,
    numberx: Digits,
}

impl Parameters {
    fn draw(kind: Kind, subscribers: &Subscribers, random: &mut Prng) -> Parameters {
        Parameters {
            s_id: subscribers.draw(random),
            kind: 1 + random.below(TYPES.into()) as u8,
            start_time: START_TIMES[random.below(START_TIMES.len() as u64) as usize],
            end_time: 1 + random.below(24) as u8,
            data: random.below(1 << 9) as u16,
            location: location(random),
            numberx: if kind == Kind::InsertCallForwarding { any_digits(random) } else { [b'0'; _] },
        }
    }
}

/// The rows of call forwarding that committed transactions have inserted and deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// The number of rows inserted.
    pub inserted: u64,
    /// The number of rows deleted.
    pub deleted: u64,
}

impl Ledger for Changes {
    fn to_words(&self) -> [i64; LEDGER_WORDS] {
        [self.inserted as i64, self.deleted as i64, 0, 0]
    }

    fn from_words([inserted, deleted, ..]: [i64; LEDGER_WORDS]) -> Changes {
        Changes { inserted: inserted as u64, deleted: deleted as u64 }
    }
}

/// The numbers of rows that were loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rows {
    /// The rows of subscriber, number, access_info and special_facility, which are tables without
    /// inserts and deletes.
    unchanging: [u64; 4],
    forwarding: u64,
}

const SUBSCRIBER: &str = "subscriber";
const NUMBER: &str = "sub_nbr";
const ACCESS_INFO: &str = "access_info";
const SPECIAL_FACILITY: &str = "special_facility";
const CALL_FORWARDING: &str = "call_forwarding";

/// The telephone network: see the [module](self).
#[derive(Clone, Debug)]
pub struct Tatp {
    subscriber: Table<u32, Subscriber>,
    number: Table<Digits, Number>,
    access_info: Table<(u32, u8), AccessInfo>,
    special_facility: Table<(u32, u8), SpecialFacility>,
    call_forwarding: Table<ForwardingKey, CallForwarding>,
    subscribers: Subscribers,
    at_first: Rows,
    attempts: u32,
}

impl Tatp {
    /// Creates the tables and loads the population of a seed.
    pub fn load(cluster: &Cluster, subscribers: Subscribers, seed: u64) -> Result<Tatp, OpenError> {
        let capacity = Capacity::of(subscribers.count);
        let households = || (1..=subscribers.count).map(|s_id| Household::of(seed, s_id));
        let subscriber = cluster.create_table(SUBSCRIBER, fixed(capacity.subscribers))?;
        let number = cluster.create_table(NUMBER, fixed(capacity.subscribers))?;
        let access_info = cluster.create_table(ACCESS_INFO, fixed(capacity.facilities))?;
        let special_facility = cluster.create_table(SPECIAL_FACILITY, fixed(capacity.facilities))?;
        let call_forwarding = cluster.create_table(CALL_FORWARDING, fixed(capacity.forwarding))?;
        let unchanging = [
            cluster.load(&subscriber, households().map(|one| (one.subscriber.s_id, one.subscriber)))?,
            cluster.load(&number, (1..=subscribers.count).map(|s_id| number_of(s_id, digits(s_id.into()))))?,
            load(cluster, &access_info, households().flat_map(|one| one.access), |row| (row.s_id, row.ai_type))?,
            load(cluster, &special_facility, households().flat_map(|one| one.facilities), |row| {
                (row.s_id, row.sf_type)
            })?,
        ];
        let forwarding = load(cluster, &call_forwarding, households().flat_map(|one| one.forwarding), |row| {
            (row.s_id, row.sf_type, row.start_time)
        })?;
        let at_first = Rows { unchanging, forwarding };
        Ok(Tatp {
            subscriber,
            number,
            access_info,
            special_facility,
            call_forwarding,
            subscribers,
            at_first,
            attempts: TransactionOptions::default().attempts,
        })
    }

    /// Returns the subscribers.
    #[must_use]
    pub fn subscribers(&self) -> &Subscribers {
        &self.subscribers
    }

    /// Returns this workload with transactions that are given up after `attempts` attempts.
    #[must_use]
    pub fn with_attempts(self, attempts: u32) -> Tatp {
        Tatp { attempts, ..self }
    }

    /// Returns the bytes that each memory node needs for `subscribers` subscribers.
    #[must_use]
    pub fn node_bytes(subscribers: u32, setting: &Setting) -> u64 {
        sizing::node_bytes(&Capacity::of(subscribers).tables(), setting)
    }

    /// Reads all of a subscriber's row.
    async fn get_subscriber_data(&self, tx: &mut Transaction<'_, '_>, about: &Parameters) -> Result<(), Error> {
        let subscriber = tx.want(&self.subscriber, about.s_id);
        tx.fetch().await?;
        std::hint::black_box(subscriber.require(tx)?);
        Ok(())
    }

    /// Reads the number to which an active special facility forwards calls at a time. If there are
    /// several, it takes the latest.
    async fn get_new_destination(&self, tx: &mut Transaction<'_, '_>, about: &Parameters) -> Result<(), Error> {
        let facility = tx.want(&self.special_facility, (about.s_id, about.kind));
        let begun = START_TIMES.map(|time| {
            let has_begun = time <= about.start_time;
            has_begun.then(|| tx.want(&self.call_forwarding, (about.s_id, about.kind, time)))
        });
        tx.fetch().await?;
        let active = facility.get(tx)?.is_some_and(|facility| facility.is_active == 1);
        let now = |row: &&CallForwarding| about.end_time < row.end_time;
        let mut destination = None;
        for slot in begun.into_iter().flatten() {
            destination = slot.get(tx)?.filter(now).map(|row| row.numberx).or(destination);
        }
        let destination = destination.filter(|_| active);
        std::hint::black_box(destination).map(|_| ()).ok_or_else(|| Error::user(NoSuccess))
    }

    /// Reads the access information of a subscriber.
    async fn get_access_data(&self, tx: &mut Transaction<'_, '_>, about: &Parameters) -> Result<(), Error> {
        let access = tx.want(&self.access_info, (about.s_id, about.kind));
        tx.fetch().await?;
        std::hint::black_box(access.require(tx).map_err(expected)?);
        Ok(())
    }

    /// Changes a bit of the subscriber and a byte of one of its special facilities.
    async fn update_subscriber_data(&self, tx: &mut Transaction<'_, '_>, about: &Parameters) -> Result<(), Error> {
        let subscriber = tx.want_for(&self.subscriber, about.s_id, Intent::Update);
        let facility = tx.want_for(&self.special_facility, (about.s_id, about.kind), Intent::Update);
        tx.fetch().await?;
        facility.get_mut(tx).map_err(expected)?.data_a = about.data as u8;
        let subscriber = subscriber.get_mut(tx)?;
        subscriber.bits = subscriber.bits & !1 | about.data >> 8;
        Ok(())
    }

    /// Reads the subscriber of a number. Each of TATP's numbers has a subscriber.
    async fn subscriber_of(&self, tx: &mut Transaction<'_, '_>, s_id: u32) -> Result<u32, Error> {
        let number = digits(s_id.into());
        Ok(self.number.get(tx, number).await?.ok_or_else(|| self.number.missing(number))?.s_id)
    }

    /// Changes the location of a subscriber who has moved.
    async fn update_location(&self, tx: &mut Transaction<'_, '_>, about: &Parameters) -> Result<(), Error> {
        let s_id = self.subscriber_of(tx, about.s_id).await?;
        self.subscriber.get_mut(tx, s_id).await?.vlr_location = about.location;
        Ok(())
    }

    /// Inserts a call forwarding of one of the subscriber's special facilities, all of which it
    /// selects.
    async fn insert_call_forwarding(&self, tx: &mut Transaction<'_, '_>, about: &Parameters) -> Result<(), Error> {
        let s_id = self.subscriber_of(tx, about.s_id).await?;
        let facilities: [_; TYPES as usize] =
            std::array::from_fn(|index| tx.want(&self.special_facility, (s_id, index as u8 + 1)));
        let forwarding = tx.want_for(&self.call_forwarding, (s_id, about.kind, about.start_time), Intent::Insert);
        tx.fetch().await?;
        facilities[usize::from(about.kind) - 1].require(tx).map_err(expected)?;
        let &Parameters { kind: sf_type, start_time, end_time, numberx, .. } = about;
        let row = CallForwarding { s_id, sf_type, start_time, end_time, numberx, spare: [0; 2] };
        forwarding.insert(tx, row).map_err(expected)
    }

    /// Deletes a call forwarding.
    async fn delete_call_forwarding(&self, tx: &mut Transaction<'_, '_>, about: &Parameters) -> Result<(), Error> {
        let s_id = self.subscriber_of(tx, about.s_id).await?;
        let forwarding = tx.want_for(&self.call_forwarding, (s_id, about.kind, about.start_time), Intent::Delete);
        tx.fetch().await?;
        forwarding.remove(tx)?.map(|_| ()).ok_or_else(|| Error::user(NoSuccess))
    }

    /// Runs one transaction of a kind, and updates the ledger.
    #[inline(never)]
    pub fn run(
        &self,
        session: &mut Session,
        kind: Kind,
        random: &mut Prng,
        ledger: &mut Changes,
    ) -> Outlined<impl Future<Output = Result<(), Error>>> {
        outline(async move {
            let about = &Parameters::draw(kind, &self.subscribers, random);
            let options = TransactionOptions::default().label(kind as u16).attempts(self.attempts);
            let transaction = session.transact_with(options, async |tx| match kind {
                Kind::GetSubscriberData => self.get_subscriber_data(tx, about).await,
                Kind::GetNewDestination => self.get_new_destination(tx, about).await,
                Kind::GetAccessData => self.get_access_data(tx, about).await,
                Kind::UpdateSubscriberData => self.update_subscriber_data(tx, about).await,
                Kind::UpdateLocation => self.update_location(tx, about).await,
                Kind::InsertCallForwarding => self.insert_call_forwarding(tx, about).await,
                Kind::DeleteCallForwarding => self.delete_call_forwarding(tx, about).await,
            });
            transaction.await?;
            ledger.inserted += u64::from(kind == Kind::InsertCallForwarding);
            ledger.deleted += u64::from(kind == Kind::DeleteCallForwarding);
            Ok(())
        })
    }
}

/// Returns options of a table that does not grow, because a benchmark measures transactions.
fn fixed(rows: u64) -> TableOptions {
    TableOptions::for_rows(rows).grows(false)
}

fn number_of(s_id: u32, sub_nbr: Digits) -> (Digits, Number) {
    (sub_nbr, Number { s_id, sub_nbr, spare: 0 })
}

fn load<K: remora::Key, V: Record>(
    cluster: &Cluster,
    table: &Table<K, V>,
    rows: impl Iterator<Item = V>,
    key: impl Fn(&V) -> K,
) -> Result<u64, OpenError> {
    cluster.load(table, rows.map(|row| (key(&row), row)))
}

impl Workload for Tatp {
    type Ledger = Changes;

    const NAME: &'static str = "tatp";

    const TYPES: &'static [&'static str] = &[
        "get_subscriber_data",
        "get_new_destination",
        "get_access_data",
        "update_subscriber_data",
        "update_location",
        "insert_call_forwarding",
        "delete_call_forwarding",
    ];

    const INVARIANTS: &'static [&'static str] = audit::NAMES;

    fn open(cluster: &Cluster, parameters: &guestbook::Parameters) -> Result<Tatp, OpenError> {
        let [count, forwarding, subscribers, numbers, access, facilities, ..] = *parameters;
        Ok(Tatp {
            subscriber: cluster.open_table(SUBSCRIBER)?,
            number: cluster.open_table(NUMBER)?,
            access_info: cluster.open_table(ACCESS_INFO)?,
            special_facility: cluster.open_table(SPECIAL_FACILITY)?,
            call_forwarding: cluster.open_table(CALL_FORWARDING)?,
            subscribers: Subscribers::new(count as u32),
            at_first: Rows { unchanging: [subscribers, numbers, access, facilities], forwarding },
            attempts: TransactionOptions::default().attempts,
        })
    }

    fn parameters(&self) -> guestbook::Parameters {
        let [subscribers, numbers, access, facilities] = self.at_first.unchanging;
        let known = [self.subscribers.count.into(), self.at_first.forwarding, subscribers, numbers, access, facilities];
        let mut parameters = [0; PARAMETERS];
        parameters[..known.len()].copy_from_slice(&known);
        parameters
    }

    async fn warm(&self, session: &mut Session, part: u64, parts: u64) -> Result<(), Error> {
        /// The number of subscribers of one transaction. Each has at most 22 keys.
        const BATCH: u64 = 8;
        let count = u128::from(self.subscribers.count);
        let bound = |part: u64| (count * u128::from(part) / u128::from(parts)) as u64 + 1;
        let (first, end) = (bound(part), bound(part + 1));
        for start in (first..end).step_by(BATCH as usize) {
            let read = glance(session, async |tx| {
                for s_id in (start..end.min(start + BATCH)).map(|s_id| s_id as u32) {
                    tx.want(&self.subscriber, s_id);
                    tx.want(&self.number, digits(s_id.into()));
                    for kind in 1..=TYPES {
                        tx.want(&self.access_info, (s_id, kind));
                        tx.want(&self.special_facility, (s_id, kind));
                        for time in START_TIMES {
                            tx.want(&self.call_forwarding, (s_id, kind, time));
                        }
                    }
                }
                tx.fetch().await
            });
            read.await?;
        }
        Ok(())
    }

    async fn transact(&self, session: &mut Session, random: &mut Prng, ledger: &mut Changes) -> Result<(), Error> {
        pin!(self.run(session, Kind::draw(random), random, ledger)).await
    }

    fn invariants(&self, cluster: &Cluster, after: After<'_, Changes>) -> Result<Vec<Invariant>, Error> {
        audit::audit(self, cluster, &after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 200_000;

    #[test]
    fn the_mix_has_its_shares() {
        let mut random = Prng::new(1);
        let mut counts = [0_u64; Kind::MIX.len()];
        for _ in 0..DRAWS {
            counts[Kind::draw(&mut random) as usize] += 1;
        }
        for (kind, percent) in Kind::MIX {
            let share = counts[kind as usize] as f64 / DRAWS as f64;
            assert!((share - percent as f64 / 100.0).abs() < 0.005, "{kind:?}: {counts:?}");
        }
        assert_eq!(Kind::MIX.iter().map(|(_, percent)| percent).sum::<u64>(), 100);
    }

    #[test]
    fn labels_are_the_places_of_names() {
        let places = Kind::MIX.iter().enumerate().all(|(place, (kind, _))| *kind as usize == place);
        assert!(places && Tatp::TYPES.len() == Kind::MIX.len());
    }

    #[test]
    fn subscribers_are_drawn_unevenly_and_all_of_them() {
        let mut random = Prng::new(2);
        for (count, spread) in [(1, 65_535), (1_000_000, 65_535), (1_000_001, 1_048_575), (10_000_001, 2_097_151)] {
            let subscribers = Subscribers::new(count);
            assert_eq!(subscribers.spread, spread);
            assert!((0..1_000).all(|_| (1..=count).contains(&subscribers.draw(&mut random))));
        }
        let subscribers = Subscribers::new(100_000);
        let mut drawn = vec![0_u32; 100_001];
        (0..10 * DRAWS).for_each(|_| drawn[subscribers.draw(&mut random) as usize] += 1);
        // If draws were even, a twentieth of the subscribers would have a twentieth of the draws.
        drawn.sort_unstable_by(|a, b| b.cmp(a));
        let most: u32 = drawn[..5_000].iter().sum();
        assert!(f64::from(most) > 0.2 * (10 * DRAWS) as f64, "the most popular twentieth has {most}");

        let few = Subscribers::new(10);
        let mut drawn = [0_u32; 11];
        (0..DRAWS).for_each(|_| drawn[few.draw(&mut random) as usize] += 1);
        assert!(drawn[1..].iter().all(|count| *count > 0), "{drawn:?}");
    }
}
