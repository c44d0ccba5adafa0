//! The oracle of `vts`, which knows the vector of the newest snapshot: the *stable* vector. It has
//! a queue for each client, of commits that are installed and not stable yet. The client's end is
//! `protocol/dst/vector.rs`.
//!
//! ```text
//! request, words                     reply, words        effect
//! JOIN     client                    1                   the client may commit from now on
//! INSTALL  name, names of commits    -                   the commit is installed, or has aborted
//!          before it
//! VECTOR   name or 0, room           words, client,      the stable vector, if it fits into the
//!                                    vector              room; why it has not more
//! RETIRE   client, names of all      -                   a recovered client has nothing to wait
//!          that nodes have heard of                      for
//! ```
//!
//! A commit becomes stable when all commits of its client with smaller numbers are stable, and all
//! commits that it names. It names the commits whose versions it has read or overwritten, and the
//! commits that have read what it has overwritten. All of these were numbered before it. So there
//! is no circle of commits that wait for each other.
//!
//! # Clients that die
//!
//! The oracle does not hear of the last commits of a client that dies, nor of what they come
//! behind. So the client is *retired* when it is recovered. All its commits become stable at once,
//! when every commit of another client is stable of which any memory node has heard by then. Some
//! of these may wait for the dead client's own commits. So the oracle tries what would be stable if
//! the dead client's commits were.
//!
//! # Clients of former epochs
//!
//! All their commits are decided and installed. The oracle takes a client for one of a former epoch
//! if a record has a commit of it, and it has not joined. It must have been connected before any
//! client of this epoch, because an incarnation is never given again. So all clients up to it are
//! of former epochs.

use std::collections::{BTreeMap, BTreeSet};

use crate::vector::{Commits, UNKNOWN, client_of, count_of, name};

/// The number of commits that a client has at most. A client that is retired has all of them.
const COUNT_MAX: u64 = count_of(u64::MAX);

/// What is known of all commits of an epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct StableVector {
    /// All commits of clients up to this one are stable, if the client has not joined.
    former: u32,
    /// How often the vector has changed.
    number: u64,
    clients: BTreeMap<u32, Queue>,
    /// The clients whose first commit in the queue waits for one of this client.
    waiting: BTreeMap<u32, BTreeSet<u32>>,
    /// Retired clients whose commits are not stable yet, and the commits that come before.
    retired: BTreeSet<u32>,
    heard: Commits,
    /// The number of questions for the vector.
    asked: usize,
}

/// The commits of a client.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// The number of the last one that is stable.
    stable: u64,
    /// The installed commits that are not stable, by number, with the names of what they come
    /// behind.
    installed: BTreeMap<u64, Box<[u64]>>,
}

impl StableVector {
    /// Ends the epoch: all clients are former ones.
    pub(super) fn end_epoch(&mut self) {
        let last = self.clients.last_key_value().map_or(0, |(client, _)| *client);
        *self = StableVector { former: self.former.max(last), ..StableVector::default() };
    }

    pub(super) fn join(&mut self, client: u32) {
        self.clients.entry(client).or_default();
    }

    /// Notes that a commit is installed, behind others. Or that it has aborted, but may be named by
    /// others.
    pub(super) fn install(&mut self, commit: u64, behind: &[u64]) {
        let Some(queue) = self.clients.get_mut(&client_of(commit)) else { return };
        if count_of(commit) > queue.stable {
            queue.installed.insert(count_of(commit), behind.into());
            self.stabilize(client_of(commit));
            self.retire_all();
        }
    }

    /// Replies the stable vector, and a client for whose commits it waits, or 0. `missed` is a
    /// commit that a reader has met and that its vector had not, or 0.
    pub(super) fn reply(&mut self, missed: u64, room: usize, reply: &mut Vec<u64>) {
        let client = client_of(missed);
        let is_joined = self.clients.contains_key(&client);
        if !is_joined && missed != UNKNOWN && client > self.former {
            (self.former, self.number) = (client, self.number + 1);
        }
        let waits_for = if self.is_stable(missed) { self.waits_for() } else { client };
        let words = crate::vector::VECTOR_HEAD + self.clients.len();
        reply.extend([words as u64, waits_for.into()]);
        if words <= room {
            reply.extend([self.number, self.former.into()]);
            reply.extend(self.clients.iter().map(|(client, queue)| name(*client, queue.stable)));
        }
    }

    /// Notes that a client is recovered, and which commits the memory nodes have heard of since.
    pub(super) fn retire(&mut self, client: u32, heard: &[u64]) {
        if self.clients.get(&client).is_some_and(|queue| queue.stable < COUNT_MAX) {
            self.retired.insert(client);
            heard.iter().for_each(|name| self.heard.add(*name));
            self.retire_all();
        }
    }

    /// Whether a commit is stable.
    fn is_stable(&self, name: u64) -> bool {
        let queue = self.clients.get(&client_of(name));
        name != UNKNOWN && queue.is_none_or(|queue| count_of(name) <= queue.stable)
    }

    /// Returns the client for which the first commit of a queue waits, if there is such a commit.
    fn first_waits_for(&self, client: u32) -> Option<u32> {
        let queue = self.clients.get(&client)?;
        let (count, behind) = queue.installed.first_key_value()?;
        let missing = behind.iter().find(|name| !self.is_stable(**name));
        if *count > queue.stable + 1 { Some(client) } else { missing.map(|name| client_of(*name)) }
    }

    /// Returns one of the clients for which others wait, another one each time.
    fn waits_for(&mut self) -> u32 {
        self.asked += 1;
        let behind: Vec<u32> = self.clients.keys().filter_map(|client| self.first_waits_for(*client)).collect();
        behind.get(self.asked % behind.len().max(1)).copied().unwrap_or(0)
    }

    /// Makes stable what can be, at the head of a client's queue and of the queues that have waited
    /// for it.
    fn stabilize(&mut self, client: u32) {
        let mut due = BTreeSet::from([client]);
        while let Some(client) = due.pop_first() {
            let mut moved = false;
            while let Some(first) = self.clients.get(&client).and_then(|queue| queue.installed.keys().next().copied()) {
                if let Some(other) = self.first_waits_for(client) {
                    self.waiting.entry(other).or_default().insert(client);
                    break;
                }
                if let Some(queue) = self.clients.get_mut(&client) {
                    queue.installed.remove(&first);
                    queue.stable = first;
                }
                moved = true;
            }
            if moved {
                self.number += 1;
                due.extend(self.waiting.remove(&client).unwrap_or_default());
            }
        }
    }

    /// Makes all commits of retired clients stable, if all that comes before them would be.
    fn retire_all(&mut self) {
        if self.retired.is_empty() {
            return;
        }
        let mut then = self.clone();
        for client in &self.retired {
            then.clients.insert(*client, Queue { stable: COUNT_MAX, ..Queue::default() });
        }
        for client in &self.retired {
            then.waiting.remove(client).into_iter().flatten().for_each(|other| then.stabilize(other));
        }
        if self.heard.names().iter().all(|name| then.is_stable(*name)) {
            (then.retired, then.heard, then.number) = (BTreeSet::new(), Commits::default(), then.number + 1);
            *self = then;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::Vector;

    /// Asks for the vector, and returns it with the client that it waits for.
    fn ask(oracle: &mut StableVector, missed: u64) -> (Vec<u64>, u64) {
        let mut reply = Vec::new();
        oracle.reply(missed, 100, &mut reply);
        assert_eq!(reply.len() as u64, 2 + reply[0]);
        (reply.split_off(2), reply[1])
    }

    fn has(oracle: &mut StableVector, name: u64) -> bool {
        Vector::from_words(&ask(oracle, 0).0).expect("a vector").has(name)
    }

    fn of_clients(clients: impl IntoIterator<Item = u32>) -> StableVector {
        let mut oracle = StableVector::default();
        clients.into_iter().for_each(|client| oracle.join(client));
        oracle
    }

    #[test]
    fn a_commit_is_stable_behind_those_that_it_names() {
        let mut oracle = of_clients([1, 2]);
        oracle.install(name(2, 1), &[name(1, 1)]);
        assert!(!has(&mut oracle, name(2, 1)));
        assert_eq!(ask(&mut oracle, 0).1, 1);
        oracle.install(name(1, 1), &[]);
        assert!(has(&mut oracle, name(2, 1)));
    }

    #[test]
    fn a_commit_is_stable_behind_those_of_its_client() {
        let mut oracle = of_clients([1]);
        oracle.install(name(1, 2), &[]);
        assert!(!has(&mut oracle, name(1, 2)));
        oracle.install(name(1, 1), &[]);
        assert!(has(&mut oracle, name(1, 2)));
    }

    #[test]
    fn a_vector_has_all_that_one_with_a_smaller_number_has() {
        let mut oracle = of_clients([5]);
        let before = ask(&mut oracle, 0).0[0];
        oracle.install(name(5, 1), &[]);
        let after = ask(&mut oracle, 0).0[0];
        assert!(after > before);
        assert_eq!(ask(&mut oracle, 0).0[0], after);
    }

    #[test]
    fn a_client_that_has_not_joined_is_of_a_former_epoch() {
        let mut oracle = of_clients([5]);
        assert!(!has(&mut oracle, name(3, 8)));
        ask(&mut oracle, name(3, 8));
        assert!(has(&mut oracle, name(3, 8)) && has(&mut oracle, name(2, 1)) && !has(&mut oracle, name(5, 1)));
        oracle.install(name(5, 1), &[]);
        oracle.end_epoch();
        oracle.join(9);
        assert!(has(&mut oracle, name(5, 1)) && !has(&mut oracle, name(9, 1)));
    }

    #[test]
    fn a_dead_client_holds_nothing_back() {
        let mut oracle = of_clients([1, 2, 3]);
        // Client 2 has died without telling of its first commit. Client 3 comes behind it, and has
        // been heard of before client 2 was recovered.
        oracle.install(name(3, 1), &[name(2, 1)]);
        assert_eq!(ask(&mut oracle, 0).1, 2);
        oracle.retire(2, &[name(1, 1), name(2, 1), name(3, 1)]);
        assert!(!has(&mut oracle, name(2, 1)), "client 2 may come behind client 1");
        oracle.install(name(1, 1), &[]);
        assert!(has(&mut oracle, name(2, 1)) && has(&mut oracle, name(3, 1)));
    }

    #[test]
    fn a_reader_learns_of_a_dead_client_by_what_it_has_missed() {
        let mut oracle = of_clients([1, 2]);
        assert_eq!(ask(&mut oracle, 0).1, 0);
        assert_eq!(ask(&mut oracle, name(2, 1)).1, 2);
        oracle.retire(2, &[name(2, 1)]);
        assert!(has(&mut oracle, name(2, 1)));
        // What is not known any more is never stable.
        oracle.install(name(1, 1), &[UNKNOWN]);
        assert!(!has(&mut oracle, name(1, 1)));
    }

    #[test]
    fn a_vector_that_does_not_fit_is_asked_for_again() {
        let mut oracle = of_clients([1, 2, 3]);
        let mut reply = Vec::new();
        oracle.reply(0, 4, &mut reply);
        assert_eq!(reply, [5, 0]);
    }
}
