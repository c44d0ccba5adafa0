//! The longest time in which none of a process' transactions ended: whether it makes progress all
//! the time.
//!
//! Every thread keeps its own longer pauses, and what all of them have in common is the process'
//! pause: so threads need share nothing while they run.

use remora::observe::Nanos;

/// Shorter pauses are not kept.
const PAUSE_NS_MIN: Nanos = 1_000_000;
/// Pauses that there is room for from the beginning. A thread with more pauses has lost as many
/// milliseconds, so that making room costs nothing.
const ROOM: usize = 1024;

/// A thread's pauses: from when to when it ended no transaction, in order.
#[derive(Clone, Debug)]
pub(crate) struct Pauses {
    last: Nanos,
    kept: Vec<(Nanos, Nanos)>,
}

impl Pauses {
    pub(crate) fn new(began: Nanos) -> Pauses {
        Pauses { last: began, kept: Vec::with_capacity(ROOM) }
    }

    /// A transaction has ended.
    #[inline]
    pub(crate) fn ended(&mut self, at: Nanos) {
        if at.saturating_sub(self.last) >= PAUSE_NS_MIN {
            self.kept.push((self.last, at));
        }
        self.last = self.last.max(at);
    }

    /// What remains when another thread's transactions are looked at too.
    pub(crate) fn and(self, other: Pauses) -> Pauses {
        let last = self.last.max(other.last);
        let mut kept = Vec::new();
        let (ours, theirs) = (self.until_the_end(), other.until_the_end());
        let (mut ours, mut theirs) = (ours.into_iter().peekable(), theirs.into_iter().peekable());
        while let (Some(&(our_start, our_end)), Some(&(their_start, their_end))) = (ours.peek(), theirs.peek()) {
            let (start, end) = (our_start.max(their_start), our_end.min(their_end).min(last));
            if end.saturating_sub(start) >= PAUSE_NS_MIN {
                kept.push((start, end));
            }
            let _ = if our_end < their_end { ours.next() } else { theirs.next() };
        }
        Pauses { last, kept }
    }

    /// The longest one; at least the shortest that is told from none.
    pub(crate) fn longest(&self) -> Nanos {
        self.kept.iter().map(|(start, end)| end - start).max().unwrap_or(0).max(PAUSE_NS_MIN)
    }

    /// After its last transaction a thread ends none.
    fn until_the_end(mut self) -> Vec<(Nanos, Nanos)> {
        self.kept.push((self.last, Nanos::MAX));
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    fn pauses(ends_ms: &[Nanos]) -> Pauses {
        let mut pauses = Pauses::new(0);
        ends_ms.iter().for_each(|at| pauses.ended(at * MS));
        pauses
    }

    #[test]
    fn a_process_pauses_while_all_of_its_threads_do() {
        assert_eq!(pauses(&[3, 10, 11]).longest(), 7 * MS);
        assert_eq!(pauses(&[]).longest(), MS);
        // The second thread ends one in the middle of the first one's pause.
        assert_eq!(pauses(&[3, 10]).and(pauses(&[6, 9])).longest(), 3 * MS);
        // One that has no more to do pauses until the other has ended.
        assert_eq!(pauses(&[1, 2]).and(pauses(&[2, 20])).longest(), 18 * MS);
        assert_eq!(pauses(&[2, 20]).and(pauses(&[1, 2])).longest(), 18 * MS);
        let three = pauses(&[10, 20]).and(pauses(&[5, 15])).and(pauses(&[4, 8, 13]));
        assert_eq!(three.longest(), 5 * MS);
    }
}
