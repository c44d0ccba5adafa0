//! What passes through a simulation, noted for traces.

use super::Sim;
use crate::address::{Address, NodeId};
use crate::ids::{Nanos, Ticket};
use crate::round::buffer::{RoundBuffer, Verb};

/// A round that was posted while the simulation was recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// When it was posted.
    pub posted: Nanos,
    /// When the last answer was at the client, if that was recorded.
    pub completed: Option<Nanos>,
    /// Whether it was posted to be awaited by no coroutine.
    pub background: bool,
    /// The verbs in the order added. Behind a call is the first word of its request.
    pub verbs: Vec<(Verb, Option<u64>)>,
    connection: usize,
    ticket: Ticket,
}

/// A CAS that has changed a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swapped {
    /// The address of the word.
    pub at: Address,
    /// When the word changed, in nanoseconds.
    pub when: Nanos,
    /// The new word.
    pub new: u64,
}

/// What was recorded of a simulation: see [`Sim::record`].
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The rounds, in the order in which they were posted.
    pub rounds: Vec<Recorded>,
    /// When a service of a memory node's CPU found work.
    pub served: Vec<(NodeId, Nanos)>,
    /// The CASes that have changed words, in the order of their effects.
    pub swapped: Vec<Swapped>,
}

impl Recording {
    pub(super) fn post(&mut self, connection: usize, posted: Nanos, buffer: &mut RoundBuffer) {
        let (background, ticket) = (buffer.background, buffer.ticket());
        let (verbs, words) = buffer.parts();
        let request = |verb: &Verb| match verb {
            Verb::Call { head, head_words: 1.., .. } => Some(words[*head as usize]),
            _ => None,
        };
        let verbs = verbs.iter().map(|verb| (*verb, request(verb))).collect();
        self.rounds.push(Recorded { posted, completed: None, background, verbs, connection, ticket });
    }

    /// Notes a verb that has had its effect, if it is a CAS that has changed its word. `words` are
    /// the round's, with the answer.
    pub(super) fn swap(&mut self, verb: &Verb, words: &[u64], when: Nanos) {
        if let Verb::CompareSwap { at, expected, new, into } = *verb
            && words[into as usize] == expected
        {
            self.swapped.push(Swapped { at, when, new });
        }
    }

    pub(super) fn complete(&mut self, connection: usize, ticket: Ticket, now: Nanos) {
        let round = self.rounds.iter_mut().rev().find(|round| (round.connection, round.ticket) == (connection, ticket));
        if let Some(round) = round {
            round.completed = Some(now);
        }
    }
}

impl Sim {
    /// Begins to record what passes through the simulation while it is not instant.
    pub fn record(&self) {
        self.world().recording = Some(Recording::default());
    }

    /// Ends the recording, and returns it.
    #[must_use]
    pub fn recorded(&self) -> Recording {
        self.world().recording.take().unwrap_or_default()
    }
}
