//! The oracle of `gts` and of `vts`: one memory node's CPU. That of `gts` gives the times of all
//! commits of the cluster, and knows up to which time all of them are installed. This is the memory
//! node's end; the client's end is `protocol/dst/oracle.rs`. `oracle/requests.rs` has how the
//! coroutines of a client share requests, and `oracle/vector.rs` what is asked under `vts`.
//!
//! ```text
//! request, words                    reply, words       effect
//! NEXT     bound, transactions      time               times one after the other, of which this is
//!                                                      the first, above the bound and all before;
//!                                                      their commits are outstanding from now on
//! DONE     transactions                                the commits are installed, or have aborted
//! STABLE   bound                    time, client       all commits up to this time are installed;
//!                                                      the client of the first that is not, or 0
//! FORGET   client                                      a recovered client has nothing outstanding
//! ```
//!
//! A request can be several of these: a NEXT or STABLE may be followed by the words of a DONE, and
//! a STABLE by the transactions of a NEXT, whose time then comes last in the reply. The oracle
//! looks at a DONE first. The first word of a request has the number of transactions that want a
//! time.
//!
//! A client that dies leaves its commits outstanding. Recovery finishes them, and the next client
//! that asks for the stable time, and knows that the dead one is recovered, has the oracle forget
//! it.
//!
//! A request of a later epoch ends all commits of the former ones: they are decided by then.
//! What is outstanding is only in the memory of the node's process. A process that starts on a
//! memory which was part of a cluster does not know what is outstanding. So it refuses all requests
//! of clients of that epoch, and of former ones. A bound that a client of a later epoch brings is
//! at least as large as all times of former epochs (`protocol/dst/mod.rs`).

pub(crate) mod requests;
mod vector;

use std::collections::BTreeMap;

use remora_fabric::{NodeId, NodeSet};
use remora_record::TransactionId;

use vector::StableVector;

/// Returns the node that has the oracle. All clients of an epoch know the same nodes.
pub(crate) fn oracle_of(nodes: NodeSet) -> NodeId {
    nodes.iter().next_back().unwrap_or_default()
}

/// What a client asks of the oracle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Question {
    Next = 0,
    Done = 1,
    Stable = 2,
    Forget = 3,
    Join = 4,
    Install = 5,
    Vector = 6,
    Retire = 7,
}

impl Question {
    const ALL: [Question; 8] = [
        Question::Next,
        Question::Done,
        Question::Stable,
        Question::Forget,
        Question::Join,
        Question::Install,
        Question::Vector,
        Question::Retire,
    ];

    /// Returns what says in a request's first word that this is asked, and how many transactions
    /// want a time.
    pub(crate) fn with_times(self, times: usize) -> usize {
        self as usize | times << 8
    }

    /// Returns the question of a request, and how many transactions want a time.
    fn parse(word: usize) -> Option<(Question, usize)> {
        let question = Question::ALL.into_iter().find(|known| *known as usize == word & 0xff)?;
        Some((question, word >> 8))
    }
}

/// The state of the oracle.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    /// The epoch up to which another process had this memory, if there was one.
    lost_in: Option<u64>,
    /// The latest epoch of a client that has asked.
    epoch: u64,
    /// The largest time that was given, or that a client has brought.
    latest: u64,
    /// The commits that are not known to be installed, by their times.
    outstanding: BTreeMap<u64, u64>,
    vector: StableVector,
}

impl Oracle {
    pub(crate) fn new(lost_in: Option<u64>) -> Oracle {
        Oracle { lost_in, ..Oracle::default() }
    }

    /// Answers a request. Returns `None` if it makes no sense, or if the oracle must not answer it.
    pub(crate) fn answer(&mut self, question: usize, arguments: &[u64], reply: &mut Vec<u64>) -> Option<()> {
        let (question, times) = Question::parse(question)?;
        let (&epoch, arguments) = arguments.split_first()?;
        if self.lost_in.is_some_and(|lost_in| epoch <= lost_in) || epoch < self.epoch {
            return None;
        }
        if epoch > self.epoch {
            // An epoch begins when all commits of the former ones are decided, and installed.
            self.epoch = epoch;
            self.outstanding.clear();
            self.vector.end_epoch();
        }
        match (question, arguments) {
            (Question::Next | Question::Stable, [bound, transactions @ ..]) if times <= transactions.len() => {
                let (beginning, over) = transactions.split_at(times);
                self.end(over);
                self.latest = self.latest.max(*bound);
                let first = self.latest + 1;
                for transaction in beginning {
                    self.latest += 1;
                    self.outstanding.insert(self.latest, *transaction);
                }
                if question == Question::Stable {
                    reply.extend(self.stable());
                }
                reply.extend((times > 0).then_some(first));
            }
            (Question::Done, over) => self.end(over),
            (Question::Forget, &[client]) => {
                let is_of = |id: &u64| TransactionId::from_bits(*id).is_some_and(|id| u64::from(id.owner()) == client);
                self.outstanding.retain(|_, id| !is_of(id));
            }
            (Question::Join, &[client]) => {
                self.vector.join(u32::try_from(client).ok()?);
                reply.push(1);
            }
            (Question::Install, [commit, behind @ ..]) => self.vector.install(*commit, behind),
            (Question::Vector, &[missed, room]) => self.vector.reply(missed, usize::try_from(room).ok()?, reply),
            (Question::Retire, [client, heard @ ..]) => self.vector.retire(u32::try_from(*client).ok()?, heard),
            _ => return None,
        }
        Some(())
    }

    /// Notes that commits are installed, or have aborted.
    fn end(&mut self, over: &[u64]) {
        if !over.is_empty() {
            self.outstanding.retain(|_, one| !over.contains(one));
        }
    }

    /// Returns the time up to which all commits are installed, and the client of the first commit
    /// that is not.
    fn stable(&self) -> [u64; 2] {
        let first = self.outstanding.first_key_value().filter(|_| !mutant!(StableIsLatest));
        let client = first.and_then(|(_, id)| TransactionId::from_bits(*id)).map_or(0, |id| id.owner());
        [first.map_or(self.latest, |(time, _)| time - 1), client.into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(oracle: &mut Oracle, question: Question, arguments: &[u64]) -> Vec<u64> {
        ask_for_times(oracle, question, usize::from(question == Question::Next), arguments)
    }

    fn ask_for_times(oracle: &mut Oracle, question: Question, times: usize, arguments: &[u64]) -> Vec<u64> {
        let mut reply = Vec::new();
        oracle.answer(question.with_times(times), &[&[1], arguments].concat(), &mut reply);
        reply
    }

    fn id(client: u32, sequence: u64) -> u64 {
        TransactionId::new(client, sequence).expect("an id").to_bits()
    }

    #[test]
    fn stable_is_before_the_first_commit_that_is_not_installed() {
        let mut oracle = Oracle::default();
        assert_eq!(ask(&mut oracle, Question::Next, &[0, id(1, 1)]), [1]);
        assert_eq!(ask(&mut oracle, Question::Next, &[7, id(2, 1)]), [8]);
        ask(&mut oracle, Question::Done, &[id(2, 1)]);
        assert_eq!(ask(&mut oracle, Question::Stable, &[0]), [0, 1]);
        ask(&mut oracle, Question::Done, &[id(1, 1)]);
        assert_eq!(ask(&mut oracle, Question::Stable, &[0]), [8, 0]);
    }

    #[test]
    fn one_request_gets_times_one_after_the_other_and_all_are_outstanding() {
        let mut oracle = Oracle::default();
        assert_eq!(ask_for_times(&mut oracle, Question::Next, 3, &[7, id(1, 1), id(1, 2), id(1, 3)]), [8]);
        assert_eq!(ask(&mut oracle, Question::Next, &[0, id(2, 1)]), [11]);
        ask(&mut oracle, Question::Done, &[id(1, 1), id(1, 3)]);
        assert_eq!(ask(&mut oracle, Question::Stable, &[0]), [8, 1]);
        ask(&mut oracle, Question::Done, &[id(1, 2)]);
        assert_eq!(ask(&mut oracle, Question::Stable, &[0]), [10, 2]);
    }

    #[test]
    fn one_request_ends_commits_then_begins_others_then_looks() {
        let mut oracle = Oracle::default();
        assert_eq!(ask(&mut oracle, Question::Next, &[0, id(1, 1)]), [1]);
        assert_eq!(ask_for_times(&mut oracle, Question::Stable, 1, &[4, id(1, 2), id(1, 1)]), [4, 1, 5]);
        assert_eq!(ask_for_times(&mut oracle, Question::Next, 1, &[0, id(1, 3), id(1, 2)]), [6]);
        assert_eq!(ask_for_times(&mut oracle, Question::Stable, 0, &[0, id(1, 3)]), [6, 0]);
        assert_eq!(ask_for_times(&mut oracle, Question::Next, 2, &[0, id(1, 4)]), [], "a transaction is missing");
        assert_eq!(ask(&mut oracle, Question::Stable, &[0]), [6, 0]);
    }

    #[test]
    fn a_recovered_client_holds_nothing_back() {
        let mut oracle = Oracle::default();
        ask(&mut oracle, Question::Next, &[0, id(1, 1)]);
        ask(&mut oracle, Question::Next, &[0, id(2, 1)]);
        ask(&mut oracle, Question::Forget, &[1]);
        assert_eq!(ask(&mut oracle, Question::Stable, &[0]), [1, 2]);
    }

    #[test]
    fn a_process_that_is_started_anew_gives_no_times_in_the_old_epoch() {
        let mut oracle = Oracle::new(Some(1));
        assert_eq!(ask(&mut oracle, Question::Next, &[0, id(1, 1)]), []);
        let mut reply = Vec::new();
        oracle.answer(Question::Next.with_times(1), &[2, 9, id(1, 1)], &mut reply);
        assert_eq!(reply, [10]);
    }
}
