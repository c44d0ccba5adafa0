//! A workload of a RACE hash table: operations on few hot keys and on many others, while subtables
//! are split all the time.
//!
//! The hot keys are neighbours, and another key is hot after some operations. So operations meet
//! splits of subtables at every depth. Some coroutines split the subtable of a hot key, whether it
//! is full or not.
//!
//! Every value is written once, and repeats a number of 8 bytes for its own length. So values are
//! of many sizes, and a torn one shows. The history of each key must be linearizable
//! ([`is_linearizable`]). An operation without an answer takes effect at any later time, or never.
//! Now and then the workload looks at the table's memory ([`Races::look`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use remora::admin::RaceInspection;
use remora::floors::node::{metadata, node};
use remora::floors::txn::inspect_race_at_once;
use remora::{Cluster, Error, Limit, OpenError, Race, RaceOptions, Session};
use remora_check::{KeyEvent, KeyVerb, is_linearizable};
use remora_fabric::sim::Sim;
use remora_fabric::{Address, Fabric as _, NodeId, WORD_BYTES};
use remora_workload::{Invariant, Prng};

use super::case::Case;

/// The values of the keys.
type Values = BTreeMap<Vec<u8>, Vec<u8>>;

/// The name of the table.
const TABLE: &str = "race";
/// The probe that an operation reaches before it begins.
pub(super) const OPERATION: &str = "operation";
/// The longest values in words: usual ones, and rare ones.
const WORDS: u64 = 9;
const LARGE_WORDS: u64 = 1_200;
/// The number of operations from one look at the table's memory to the next one.
const LOOKS: u64 = 16;

/// The table, and what was done with it.
pub(crate) struct Races {
    sim: Sim,
    /// Handles of the table. Each coroutine takes one, so that it hears of a larger table by
    /// itself.
    handles: Vec<Race>,
    taken: Cell<usize>,
    marks: bool,
    /// The number of keys.
    keys: u64,
    /// The number of keys that are hot at a time, and the number of operations after which another
    /// key is.
    hot: u64,
    moves: u64,
    /// One of this number of operations splits a subtable.
    splits: u64,
    /// One of this number of values is large. None of them is, if it is 0.
    large: u64,
    /// The number of operations that have begun. It is also the number that the next value repeats.
    begun: Cell<u64>,
    /// The operations on each key.
    events: RefCell<BTreeMap<u64, Vec<KeyEvent>>>,
    /// What was found to be wrong first.
    wrong: RefCell<Option<String>>,
}

/// What is known of the histories of keys: whether orders explain them, and one that none explains.
/// Nothing is known if some histories have too many orders to try, and orders explain all others.
fn explained<'e>(histories: impl Iterator<Item = (&'e u64, &'e Vec<KeyEvent>)>) -> (Option<bool>, String) {
    let mut all = Some(true);
    for (key, events) in histories {
        match is_linearizable(events) {
            Some(true) => {}
            Some(false) => return (Some(false), format!("key {key}: {events:?}")),
            None => all = None,
        }
    }
    (all, String::new())
}

fn key_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize % 3)
}

impl Races {
    /// Creates the table, made for one row. The seed draws the sizes, and whether blocks have
    /// marks.
    pub(crate) fn load(case: &Case, cluster: &Cluster, sim: &Sim, random: &mut Prng) -> Result<Races, OpenError> {
        let mut one_of = |choices: [u64; 4]| choices[random.below(4) as usize];
        let marks = one_of([0, 1, 1, 1]) == 1;
        let (shards, groups) = (one_of([1, 1, 1, 3]) as u16, one_of([2, 2, 3, 16]));
        let (hot, moves) = (one_of([1, 2, 3, 8]), one_of([10, 30, 60, 200]));
        let (splits, large) = (one_of([10, 20, 50, 200]), one_of([0, 0, 16, 64]));
        let options = RaceOptions::default().rows(1).shards(shards).groups(groups).marks(marks);
        cluster.create_race(TABLE, options)?;
        let coroutines = case.places() * case.coroutines + 1;
        let handles = (0..coroutines).map(|_| cluster.open_race(TABLE)).collect::<Result<_, _>>()?;
        Ok(Races {
            sim: sim.clone(),
            handles,
            taken: Cell::new(0),
            marks,
            keys: 4 * case.keys,
            hot,
            moves,
            splits,
            large,
            begun: Cell::new(0),
            events: RefCell::default(),
            wrong: RefCell::default(),
        })
    }

    /// Runs one operation.
    pub(crate) async fn transact(
        &self,
        session: &mut Session,
        random: &mut Prng,
        handle: &mut Option<usize>,
    ) -> Result<(), Error> {
        let race = &self.handles[*handle.get_or_insert_with(|| self.taken.replace(self.taken.get() + 1))];
        let number = self.begun.replace(self.begun.get() + 1);
        if number.is_multiple_of(LOOKS) {
            self.look();
        }
        let hot = (number / self.moves + random.below(self.hot)) % self.keys;
        let key = if random.below(4) > 0 { hot } else { random.below(self.keys) };
        session.lane().probe(OPERATION);
        if random.below(self.splits) == 0 {
            return match race.split(session, &key_of(hot)).await {
                // The key's leaf is as deep as it can be.
                Err(Error::Limit(reason)) if matches!(reason.cause, Limit::TableFull { .. }) => Ok(()),
                split => split.map(drop),
            };
        }
        let verb = match random.below(20) {
            0..6 => KeyVerb::Get,
            6..11 => KeyVerb::Insert(number),
            11..14 => KeyVerb::Update(number),
            14..16 => KeyVerb::Upsert(number),
            _ => KeyVerb::Delete,
        };
        let longest = if self.large > 0 && random.below(self.large) == 0 { LARGE_WORDS } else { WORDS };
        let bytes = 8 * random.below(longest) + 8 + random.below(8);
        self.operate(race, session, key, verb, bytes as usize).await
    }

    /// Runs an operation, and notes its answer. An operation that fails otherwise than unknown must
    /// not take effect.
    async fn operate(
        &self,
        race: &Race,
        session: &mut Session,
        number: u64,
        verb: KeyVerb,
        bytes: usize,
    ) -> Result<(), Error> {
        let key = key_of(number);
        let value = |number: u64| number.to_le_bytes().into_iter().cycle().take(bytes).collect::<Vec<u8>>();
        let began = session.lane().now();
        let at = {
            let mut events = self.events.borrow_mut();
            let events = events.entry(number).or_default();
            events.push(KeyEvent { verb, was_there: None, value: 0, began, ended: u64::MAX });
            events.len() - 1
        };
        let mut seen = 0;
        let was_there = match verb {
            KeyVerb::Get => race
                .get_with(session, &key, |found| seen = self.number_of(number, found))
                .await
                .map(|found| found.is_some()),
            KeyVerb::Insert(new) => race.insert(session, &key, &value(new)).await.map(|inserted| !inserted),
            KeyVerb::Update(new) => race.update(session, &key, &value(new)).await,
            KeyVerb::Upsert(new) => race.upsert(session, &key, &value(new)).await,
            KeyVerb::Delete => race.delete(session, &key).await,
        };
        let ended = session.lane().now();
        let mut events = self.events.borrow_mut();
        let event = &mut events.entry(number).or_default()[at];
        match was_there {
            Ok(was_there) => *event = KeyEvent { was_there: Some(was_there), value: seen, ended, ..*event },
            Err(Error::Unknown(_)) => {}
            // It is as if it had read the key, and was not answered.
            Err(_) => event.verb = KeyVerb::Get,
        }
        was_there.map(drop)
    }

    /// Returns the number that a value repeats.
    fn number_of(&self, key: u64, value: &[u8]) -> u64 {
        let first = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let number = first.unwrap_or(u64::MAX);
        if !value.iter().eq(number.to_le_bytes().iter().cycle().take(value.len())) {
            self.note(format!("a value of key {key} was seen torn"));
        }
        number
    }

    fn note(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }

    /// Returns what was found to be wrong first.
    pub(crate) fn wrong(&self) -> Option<String> {
        self.wrong.borrow().clone()
    }

    /// Looks at the table's memory, and notes what is wrong there. At every instant each live slot
    /// has a whole block of a key that belongs there, no key is there twice, and no unit has two
    /// owners. Returns the values of the keys, and whether a lock is held.
    pub(crate) fn look(&self) -> Option<(Values, bool)> {
        let mut values = Values::new();
        let found = self.inspect(&mut |key, value| _ = values.insert(key.to_vec(), value.to_vec()));
        let Some(found) = found else {
            self.note(format!("at {} ns, a root or a list leads out of the table", self.sim.now()));
            return None;
        };
        if (found.wrong, found.duplicates, found.units.misused) != (0, 0, 0) {
            self.note(format!("at {} ns, {found:?}", self.sim.now()));
            return None;
        }
        Some((values, found.locked > 0))
    }

    fn inspect(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Option<RaceInspection> {
        let leader = self.sim.region(NodeId(0), node::REGION)?;
        let catalog = metadata::read_local(NodeId(0), leader.words()).ok()?;
        let words = |at: Address, bytes: usize| {
            let region = self.sim.region(at.node, at.region)?;
            let first = at.offset as usize / WORD_BYTES;
            let words = region.words().get(first..first + bytes / WORD_BYTES)?;
            Some(words.iter().map(|word| word.load(Ordering::Relaxed)).collect())
        };
        inspect_race_at_once(&catalog, TABLE, &words, visit)
    }

    /// Reads every key that was used.
    pub(crate) async fn read_all(&self, session: &mut Session) -> Result<(), Error> {
        let race = self.handles.last().unwrap_or(&self.handles[0]);
        let keys: Vec<u64> = self.events.borrow().keys().copied().collect();
        for key in keys {
            self.operate(race, session, key, KeyVerb::Get, 0).await?;
        }
        Ok(())
    }

    /// Returns the number of operations without an answer.
    pub(crate) fn unanswered(&self) -> u64 {
        let events = self.events.borrow();
        events.values().flatten().filter(|event| event.was_there.is_none() && event.verb != KeyVerb::Get).count() as u64
    }

    /// Returns the history, a line for each operation.
    pub(crate) fn lines(&self) -> Vec<u8> {
        let mut lines = format!("marks: {}\n", self.marks);
        for (key, events) in &*self.events.borrow() {
            for KeyEvent { verb, was_there, value, began, ended } in events {
                let answer = match (was_there, verb) {
                    (None, _) => "no answer".to_owned(),
                    (Some(true), KeyVerb::Get) => format!("{value} until {ended}"),
                    (Some(was_there), _) => format!("{} until {ended}", if *was_there { "there" } else { "absent" }),
                };
                // Writing to a string never fails.
                let _ = writeln!(lines, "key {key} from {began}: {verb:?}: {answer}");
            }
        }
        lines.into_bytes()
    }

    /// Checks the histories of all keys, and the table's memory, when no client runs any more and
    /// every key was read.
    pub(crate) fn invariants(&self) -> Vec<Invariant> {
        let found = self.look();
        let sound = self.wrong();
        let events = self.events.borrow();
        let (holds, detail) = explained(events.iter());
        let mut last = BTreeMap::new();
        for (key, events) in &*events {
            let read = events.iter().rfind(|event| event.verb == KeyVerb::Get && event.was_there == Some(true));
            let is_last = events.last().is_some_and(|event| event.was_there == Some(true));
            last.extend(read.filter(|_| is_last).map(|read| (key_of(*key), read.value)));
        }
        let number = |value: &Vec<u8>| value.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        let (values, is_locked) = found.unwrap_or_default();
        let kept: BTreeMap<Vec<u8>, u64> = values.iter().map(|(key, value)| (key.clone(), number(value))).collect();
        let is_as_read = sound.is_some() || kept == last;
        vec![
            Invariant {
                name: "the table is sound at every instant",
                holds: Some(sound.is_none()),
                detail: sound.unwrap_or_default(),
            },
            Invariant { name: "the history of each key is linearizable", holds, detail },
            Invariant {
                name: "the table has what was read last, and no lock is held",
                holds: Some(is_as_read && !is_locked),
                detail: format!("locked: {is_locked}, {kept:?} and {last:?}"),
            },
        ]
    }
}
