//! Vector timestamps: how commits are named, and which commits a snapshot has. Preset `vts` uses
//! them (`protocol/dst/vector.rs`).
//!
//! Each client is a slot of the vector, and counts its commits: 1, 2, 3 ... So a commit has a name,
//! which is one word, and which records have as the time of their newest version:
//!
//! ```text
//! | client : 24 | count : 40 |   (bit 63 .. bit 0)        0 = loaded, and not by a commit
//! ```
//!
//! Names of different clients have no order. A snapshot's vector has the last commit of each client
//! that is in the snapshot:
//!
//! ```text
//! number, former, names ...      names: one a client, by client
//! ```
//!
//! - *former*: all commits of clients up to this one are in the snapshot, if the client is not
//!   among the names. Those clients are of former epochs.
//! - *number*: the oracle numbers its vectors. A vector has everything that one with a smaller
//!   number has.

/// Bits of a name that count the commits of its client.
const COUNT_BITS: u32 = 40;

/// The name of a commit that no vector has. It stands for commits that are not known any more.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// Words of a vector before the names.
pub(crate) const VECTOR_HEAD: usize = 2;

/// Returns the name of a commit.
pub(crate) fn name(client: u32, count: u64) -> u64 {
    u64::from(client) << COUNT_BITS | count
}

/// Returns the client of a commit.
pub(crate) fn client_of(name: u64) -> u32 {
    (name >> COUNT_BITS) as u32
}

/// Returns the number of a commit among those of its client.
pub(crate) const fn count_of(name: u64) -> u64 {
    name & ((1 << COUNT_BITS) - 1)
}

/// A set of commits, which has with each commit all former ones of the same client. So it has one
/// name for each client, and is in the order of clients.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Commits(Vec<u64>);

impl Commits {
    /// Adds a commit. What was loaded is no commit.
    pub(crate) fn add(&mut self, name: u64) {
        if name == 0 {
            return;
        }
        match self.0.binary_search_by_key(&client_of(name), |one| client_of(*one)) {
            Ok(at) => self.0[at] = self.0[at].max(name),
            Err(at) => self.0.insert(at, name),
        }
    }

    /// Removes the commits that this is true for.
    pub(crate) fn remove_if(&mut self, is_removed: impl Fn(u64) -> bool) {
        self.0.retain(|name| !is_removed(*name));
    }

    /// Removes all commits.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the names, one for each client.
    pub(crate) fn names(&self) -> &[u64] {
        &self.0
    }
}

/// The vector of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vector<'v> {
    pub(crate) number: u64,
    former: u64,
    names: &'v [u64],
}

impl<'v> Vector<'v> {
    /// Takes a vector from the words that a request or a reply has.
    pub(crate) fn from_words(words: &'v [u64]) -> Option<Vector<'v>> {
        let (&[number, former], names) = words.split_first_chunk()?;
        Some(Vector { number, former, names })
    }

    /// Returns the words of the vector.
    pub(crate) fn to_words(self) -> Vec<u64> {
        [&[self.number, self.former][..], self.names].concat()
    }

    /// Whether a commit is in the snapshot.
    pub(crate) fn has(&self, name: u64) -> bool {
        if name == UNKNOWN {
            return false;
        }
        match self.names.binary_search_by_key(&client_of(name), |one| client_of(*one)) {
            Ok(at) => name <= self.names[at],
            Err(_) => u64::from(client_of(name)) <= self.former,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_last_commit_of_each_client() {
        let mut commits = Commits::default();
        [name(7, 2), 0, name(3, 9), name(7, 5), name(7, 4)].into_iter().for_each(|name| commits.add(name));
        assert_eq!(commits.names(), [name(3, 9), name(7, 5)]);
        commits.remove_if(|name| client_of(name) == 3);
        assert_eq!(commits.names(), [name(7, 5)]);
    }

    #[test]
    fn a_vector_has_what_is_named_and_what_is_former() {
        let words = [1, 4, name(6, 3), name(9, 0)];
        let vector = Vector::from_words(&words).expect("a vector");
        let all = [0, name(2, 100), name(6, 3), name(6, 4), name(7, 1), name(9, 1), UNKNOWN];
        assert_eq!(all.map(|name| vector.has(name)), [true, true, true, false, false, false, false]);
        assert!(Vector::from_words(&words[..1]).is_none());
    }

    #[test]
    fn names_have_their_parts() {
        let one = name(0xff_ffff, (1 << COUNT_BITS) - 2);
        assert_eq!((client_of(one), count_of(one)), (0xff_ffff, (1 << COUNT_BITS) - 2));
        assert!(one < UNKNOWN);
    }
}
