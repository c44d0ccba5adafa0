//! The values that a batch of commands uses.

use std::cell::Cell;
use std::collections::HashMap;

use smallvec::SmallVec;

use crate::error::Error;
use crate::object::{Hash, Limits, List, Object, Set, SortedSet, Value};
use crate::tree::Notes;

/// The keys of a batch of commands, with their values as they were loaded, and as the commands have
/// left them.
#[derive(Debug, Default)]
pub struct Keyspace {
    slots: Vec<Slot>,
    /// The places of the slots, if there are many.
    places: HashMap<(u8, KeyBytes), usize>,
    /// The database of the command that runs.
    database: u8,
    /// The place of the slot that was used last. Commands mostly use one key several times, and
    /// then the next one.
    last: Cell<usize>,
    /// The places of the slots that the command that runs has changed.
    changed_now: Vec<usize>,
    /// What the trees of spread collections note.
    notes: Vec<Notes>,
}

/// A key. Most are short.
pub type KeyBytes = SmallVec<[u8; 32]>;

/// A key, and its value.
#[derive(Debug)]
pub struct Slot {
    /// The number of its database.
    pub database: u8,
    /// The key.
    pub key: KeyBytes,
    /// The value, if the key is there.
    pub object: Option<Object>,
    /// Whether a command has changed it since it was loaded.
    pub is_changed: bool,
    /// Whether the command that runs has changed it.
    is_changed_now: bool,
}

/// Fewer slots than this are searched one after the other.
const FEW: usize = 32;

impl Keyspace {
    /// Makes a keyspace that has room for some keys.
    pub fn with_capacity(keys: usize) -> Keyspace {
        Keyspace { slots: Vec::with_capacity(keys), ..Keyspace::default() }
    }

    /// Loads a key, if it is not loaded: `fetch` returns its value.
    pub fn load(&mut self, database: u8, key: &[u8], fetch: impl FnOnce(u8, &[u8]) -> Option<Object>) {
        if self.place(database, key).is_none() {
            self.push(database, key, fetch(database, key));
        }
    }

    /// Loads a key, which is not loaded yet, with its value.
    pub fn push(&mut self, database: u8, key: &[u8], object: Option<Object>) {
        debug_assert!(self.place(database, key).is_none(), "a key is loaded twice");
        let (key, place) = (KeyBytes::from_slice(key), self.slots.len());
        if let Some(object) = &object {
            self.notes.extend(object.value.trees().into_iter().map(|tree| tree.notes().clone()));
        }
        self.slots.push(Slot { database, key, object, is_changed: false, is_changed_now: false });
        if place + 1 == FEW {
            self.places =
                (0..).zip(&self.slots).map(|(place, slot)| ((slot.database, slot.key.clone()), place)).collect();
        } else if place >= FEW {
            let slot = &self.slots[place];
            self.places.insert((database, slot.key.clone()), place);
        }
    }

    /// Deletes the keys that have expired at this time, in milliseconds since 1970.
    pub fn expire(&mut self, now: u64) {
        for slot in &mut self.slots {
            if slot.object.as_ref().is_some_and(|object| object.has_expired(now)) {
                slot.object = None;
                slot.is_changed = true;
            }
        }
    }

    /// Deletes all loaded keys.
    pub fn clear(&mut self) {
        for slot in &mut self.slots {
            slot.is_changed |= slot.object.take().is_some();
        }
    }

    /// Returns all loaded keys, in the order in which they were loaded.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns whether a command has needed a part of a spread collection that was not loaded. Then
    /// no answer counts, and no change.
    pub fn is_short(&self) -> bool {
        self.notes.iter().any(|notes| !notes.is_empty())
    }

    /// Returns all loaded keys, and forgets them.
    pub fn take(&mut self) -> Vec<Slot> {
        self.notes.clear();
        self.places.clear();
        self.changed_now.clear();
        std::mem::take(&mut self.slots)
    }

    /// Says that the next command begins.
    pub(crate) fn begin(&mut self, database: u8) {
        self.database = database;
        for place in self.changed_now.drain(..) {
            self.slots[place].is_changed_now = false;
        }
    }

    /// Returns whether the command that runs has changed anything.
    pub(crate) fn has_changed_now(&self) -> bool {
        !self.changed_now.is_empty()
    }

    /// Ends a command: deletes the collections that it has emptied, and gives collections that have
    /// outgrown their encodings another one.
    pub(crate) fn settle(&mut self, limits: &Limits) {
        for place in &self.changed_now {
            let slot = &mut self.slots[*place];
            match &mut slot.object {
                Some(object) if object.value.is_empty_collection() => slot.object = None,
                Some(object) => object.settle_encoding(limits),
                None => {}
            }
        }
    }

    fn place(&self, database: u8, key: &[u8]) -> Option<usize> {
        let is_at = |place: &usize| {
            let slot = self.slots.get(*place);
            slot.is_some_and(|slot| slot.database == database && *slot.key == *key)
        };
        let last = self.last.get();
        let place = [last, last + 1].into_iter().find(is_at).or_else(|| {
            let is_few = self.slots.len() < FEW;
            if is_few {
                (0..self.slots.len()).find(is_at)
            } else {
                self.places.get(&(database, KeyBytes::from_slice(key))).copied()
            }
        })?;
        self.last.set(place);
        Some(place)
    }

    fn slot(&self, database: u8, key: &[u8]) -> &Slot {
        let place = self.place(database, key);
        &self.slots[place.expect("rule 3: a command uses only keys that its row names")]
    }

    /// Returns the slot of a key, which the command that runs changes.
    fn changed(&mut self, database: u8, key: &[u8]) -> &mut Slot {
        let place = self.place(database, key).expect("rule 3: a command uses only keys that its row names");
        let slot = &mut self.slots[place];
        slot.is_changed = true;
        if !std::mem::replace(&mut slot.is_changed_now, true) {
            self.changed_now.push(place);
        }
        slot
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&Object> {
        self.get_in(self.database, key)
    }

    /// Returns the value of a key of another database.
    pub fn get_in(&self, database: u8, key: &[u8]) -> Option<&Object> {
        self.slot(database, key).object.as_ref()
    }

    /// Returns the value of a key, in order to change it: it counts as changed from now on.
    pub fn change(&mut self, key: &[u8]) -> Option<&mut Object> {
        self.changed(self.database, key).object.as_mut()
    }

    /// Sets the value of a key. Returns its former value.
    pub fn put(&mut self, key: &[u8], object: Object) -> Option<Object> {
        self.put_in(self.database, key, object)
    }

    /// Sets the value of a key of another database. Returns its former value.
    pub fn put_in(&mut self, database: u8, key: &[u8], object: Object) -> Option<Object> {
        self.changed(database, key).object.replace(object)
    }

    /// Sets the value of a key, without an expiry. An empty collection deletes the key.
    pub fn store(&mut self, key: &[u8], value: Value) {
        if value.is_empty_collection() {
            self.remove(key);
        } else {
            self.put(key, Object::new(value));
        }
    }

    /// Deletes a key. Returns its value. An absent key is not changed.
    pub fn remove(&mut self, key: &[u8]) -> Option<Object> {
        self.get(key)?;
        self.changed(self.database, key).object.take()
    }
}

/// Declares what finds values of one type, and what changes them.
macro_rules! typed {
    ($get:ident, $change:ident, $Type:ident, $Variant:ident, $what:literal) => {
        #[doc = concat!("Returns the ", $what, " of a key, if the key is there. Fails if it is of another type.")]
        pub fn $get(&self, key: &[u8]) -> Result<Option<&$Type>, Error> {
            match self.get(key).map(|object| &object.value) {
                None => Ok(None),
                Some(Value::$Variant(value)) => Ok(Some(value)),
                Some(_) => Err(Error::WRONG_TYPE),
            }
        }

        #[doc = concat!("Returns the ", $what, " of a key in order to change it. An absent key gets an empty one. ")]
        #[doc = "It counts as changed from now on. Fails if it is of another type."]
        pub fn $change(&mut self, key: &[u8]) -> Result<&mut $Type, Error> {
            self.$get(key)?;
            let slot = self.changed(self.database, key);
            let object = slot.object.get_or_insert_with(|| Object::new(Value::$Variant($Type::default())));
            match &mut object.value {
                Value::$Variant(value) => Ok(value),
                _ => Err(Error::WRONG_TYPE),
            }
        }
    };
}

impl Keyspace {
    typed!(string, change_string, Bytes, String, "string");
    typed!(hash, change_hash, Hash, Hash, "hash");
    typed!(list, change_list, List, List, "list");
    typed!(set, change_set, Set, Set, "set");
    typed!(sorted_set, change_sorted_set, SortedSet, SortedSet, "sorted set");
}

/// A string.
type Bytes = Vec<u8>;
