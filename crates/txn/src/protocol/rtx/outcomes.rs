//! The outcomes of a client's last attempts under `rtx`, as far as the client knows them. A log
//! says them only until the next attempt begins, and an attempt that swaps one word has no log.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use remora_node::Registration;
use remora_record::TransactionId;

use crate::attempts::ring_of;
use crate::limits::UNSURE_MAX;
use crate::recovery::Verdict;

/// The outcomes of the last attempts of a client. Its sessions share them, because a member of a
/// batch may have to ask for the outcome of the attempt that leads it.
#[derive(Clone, Debug, Default)]
pub struct Outcomes(Rc<RefCell<Vec<OfLane>>>);

/// The outcomes of the last attempts of a lane.
#[derive(Debug, Default)]
struct OfLane {
    /// The last attempts that have committed, and whose programs were told so.
    committed: VecDeque<TransactionId>,
    /// The last attempts that were dropped while they were decided, or whose answers were lost, and
    /// their outcomes. A session remembers as many attempts of which its program knows no outcome.
    /// So what it remembers, and is not here, was never sent to be decided.
    left: VecDeque<(TransactionId, Verdict)>,
}

impl Outcomes {
    /// Makes the outcomes of a client, which has no attempts yet.
    #[must_use]
    pub fn new(client: &Registration) -> Outcomes {
        Outcomes(Rc::new(RefCell::new((0..client.lanes()).map(|_| OfLane::default()).collect())))
    }

    fn with<T>(&self, id: TransactionId, run: impl FnOnce(&mut OfLane) -> T) -> Option<T> {
        let mut lanes = self.0.borrow_mut();
        let lane = ring_of(id.sequence(), lanes.len());
        lanes.get_mut(lane).map(run)
    }

    /// Notes that an attempt was sent to be decided, and that its session does not await the answer
    /// any more.
    pub(super) fn left(&self, id: TransactionId) {
        let _noted = self.with(id, |lane| push(&mut lane.left, (id, Verdict::Undecided)));
    }

    /// Notes whether an attempt has committed.
    pub(super) fn ended(&self, id: TransactionId, has_committed: bool) {
        let _noted = self.with(id, |lane| match lane.left.iter_mut().find(|(one, _)| *one == id) {
            Some((_, verdict)) => *verdict = if has_committed { Verdict::Committed } else { Verdict::Aborted },
            None if has_committed => push(&mut lane.committed, id),
            None => {}
        });
    }

    /// Returns what is known of an attempt of the client: `Undecided` if its answer was not heard,
    /// and `None` if it was never sent to be decided, or too long ago.
    pub(super) fn of(&self, id: TransactionId) -> Option<Verdict> {
        self.with(id, |lane| {
            let left = lane.left.iter().find(|(one, _)| *one == id).map(|(_, verdict)| *verdict);
            left.or_else(|| lane.committed.contains(&id).then_some(Verdict::Committed))
        })
        .flatten()
    }
}

/// Adds an item to a list, which keeps the last ones.
fn push<T>(items: &mut VecDeque<T>, item: T) {
    if items.len() == UNSURE_MAX {
        items.pop_front();
    }
    items.push_back(item);
}
