//! The numbers of tables and keys. A history names few keys again and again. So everything that the
//! checker does for each key indexes a vector, and hashes no bytes.
//!
//! Key bytes lie in one arena. The hash table holds only a hash and an id in each slot, so growing
//! it moves nothing else.

/// The mark of a free slot of the hash table. No key has this id.
const FREE: u32 = u32::MAX;

/// The number of ids. An id must leave room for the kind of an edge beside it in 32 bits.
pub(crate) const KEYS_MAX: usize = 1 << 28;

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    key: u32,
}

/// The ids of all tables and keys of a history.
#[derive(Debug, Default)]
pub(crate) struct KeyInterner {
    tables: Vec<String>,
    bytes: Vec<u8>,
    /// For each key: where its bytes end, and its table. Its bytes begin where the bytes of the
    /// previous key end.
    ends: Vec<usize>,
    table_of: Vec<u32>,
    slots: Vec<Entry>,
    /// The table that was named last. Histories name few tables, and mostly the last one again.
    last_table: u32,
}

impl KeyInterner {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn table(&self, table: u32) -> &str {
        &self.tables[table as usize]
    }

    pub(crate) fn table_count(&self) -> usize {
        self.tables.len()
    }

    pub(crate) fn table_of(&self, key: u32) -> u32 {
        self.table_of[key as usize]
    }

    pub(crate) fn bytes(&self, key: u32) -> &[u8] {
        let key = key as usize;
        let first = if key == 0 { 0 } else { self.ends[key - 1] };
        &self.bytes[first..self.ends[key]]
    }

    pub(crate) fn get(&self, key: u32) -> (&str, &[u8]) {
        (self.table(self.table_of(key)), self.bytes(key))
    }

    pub(crate) fn intern_table(&mut self, name: &str) -> u32 {
        if self.tables.get(self.last_table as usize).is_some_and(|table| table == name) {
            return self.last_table;
        }
        let known = self.tables.iter().position(|table| table == name);
        let position = known.unwrap_or_else(|| {
            self.tables.push(name.to_owned());
            self.tables.len() - 1
        });
        self.last_table = position as u32;
        self.last_table
    }

    /// Returns the id of a key. `None` if the history has more keys than there are ids.
    pub(crate) fn intern(&mut self, table: u32, bytes: &[u8]) -> Option<u32> {
        if (self.len() + 1) * 2 > self.slots.len() {
            self.grow();
        }
        let hash = hash(table, bytes);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.key == FREE {
                break;
            }
            if slot.hash == hash && self.table_of(slot.key) == table && self.bytes(slot.key) == bytes {
                return Some(slot.key);
            }
            at = (at + 1) & mask;
        }
        if self.len() >= KEYS_MAX {
            return None;
        }
        let key = self.len() as u32;
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.table_of.push(table);
        self.slots[at] = Entry { hash, key };
        Some(key)
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(64);
        let mask = size - 1;
        let mut slots = vec![Entry { hash: 0, key: FREE }; size];
        for slot in self.slots.iter().filter(|slot| slot.key != FREE) {
            let mut at = slot.hash as usize & mask;
            while slots[at].key != FREE {
                at = (at + 1) & mask;
            }
            slots[at] = *slot;
        }
        self.slots = slots;
    }
}

/// Hashes eight bytes at a time, by multiplication and folding. Keys are short, and no attacker
/// chooses them.
fn hash(table: u32, bytes: &[u8]) -> u32 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |state: u64, word: u64| {
        let product = u128::from(state ^ word) * u128::from(MULTIPLIER);
        (product as u64) ^ ((product >> 64) as u64)
    };
    let mut state = fold(u64::from(table) ^ MULTIPLIER, bytes.len() as u64);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = fold(state.rotate_left(29), u64::from_le_bytes(*word));
    }
    let mut tail = [0; 8];
    tail[..rest.len()].copy_from_slice(rest);
    state = fold(state.rotate_left(29), u64::from_le_bytes(tail));
    (state ^ (state >> 32)) as u32
}
