//! The longest time in which no transaction of a process ended. It shows whether the process makes
//! progress all the time.
//!
//! Every thread keeps its own longer pauses. A pause of the process is the time that the pauses of
//! all its threads have in common. So threads need not share anything while they run.

use remora::observe::Nanos;

/// The shortest pause that is kept.
const PAUSE_NS_MIN: Nanos = 1_000_000;
/// The number of pauses that a thread has room for at the beginning. A thread with more pauses has
/// lost at least as many milliseconds, so making more room costs next to nothing.
const ROOM: usize = 1024;

/// A thread's pauses, in order: from when to when it ended no transaction.
#[derive(Clone, Debug)]
pub(crate) struct Pauses {
    last: Nanos,
    kept: Vec<(Nanos, Nanos)>,
}

impl Pauses {
    pub(crate) fn new(began: Nanos) -> Pauses {
        Pauses { last: began, kept: Vec::with_capacity(ROOM) }
    }

    /// Records that a transaction has ended.
    #[inline]
    pub(crate) fn ended(&mut self, at: Nanos) {
        if at.saturating_sub(self.last) >= PAUSE_NS_MIN {
            self.kept.push((self.last, at));
        }
        self.last = self.last.max(at);
    }

    /// Returns the pauses that remain when another thread's transactions are included.
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

    /// Returns the longest pause. It is at least the shortest pause that is kept.
    pub(crate) fn longest(&self) -> Nanos {
        self.kept.iter().map(|(start, end)| end - start).max().unwrap_or(0).max(PAUSE_NS_MIN)
    }

    /// Adds the pause after a thread's last transaction.
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
        // The second thread ends one transaction in the middle of the first one's pause.
        assert_eq!(pauses(&[3, 10]).and(pauses(&[6, 9])).longest(), 3 * MS);
        // A thread that has no more to do pauses until the other has ended.
        assert_eq!(pauses(&[1, 2]).and(pauses(&[2, 20])).longest(), 18 * MS);
        assert_eq!(pauses(&[2, 20]).and(pauses(&[1, 2])).longest(), 18 * MS);
        let three = pauses(&[10, 20]).and(pauses(&[5, 15])).and(pauses(&[4, 8, 13]));
        assert_eq!(three.longest(), 5 * MS);
    }
}
