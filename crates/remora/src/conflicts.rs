//! The conflicts of a client, and its list of hot records, which `remora status` adds up over all
//! clients.
//!
//! The sessions of a client count the attempts that others have hindered. While records of the
//! client are hot, one coroutine writes a list of them into the leader's memory, once a second.
//! That coroutine runs beside the transactions, on the lane of the client's keeper, so no
//! transaction waits for it. A client without hot records writes nothing, and sets no timer.
//!
//! ```text
//! first conflict            a second later                      again a second later
//! |------- window --------->| list of the hottest records       |
//!                           |-------------- window ------------>| the next list; an empty one
//!                                                               | if no record is hot any more
//! ```
//!
//! The lists of a client that rests, or has stopped, stay as they are until its slot is freed. A
//! reader notices that by their sequence number (`remora_node::hot`).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use remora_fabric::Nanos;
use remora_node::TableId;
use remora_node::hot::{HOT_WINDOW_NS, HotEntry, HotList};
use remora_node::limits::HOT_RECORDS_MAX;
use remora_record::Key;
use remora_txn::{ConflictCounter, TransactionEvent};

use crate::hot::Tally;

/// Number of conflicts in a window from which on a record is hot. A transaction that aborts once
/// and then stands in line makes two.
const HOT: u64 = 4;

/// The conflicts of a client in the present window.
pub(crate) struct ClientConflicts {
    tally: RefCell<Tally<Option<(TableId, Key)>>>,
    /// When the window has begun. `None` if there is neither a conflict nor a list to erase.
    began: Cell<Option<Nanos>>,
    /// Whether the client's last list has records.
    is_listed: Cell<bool>,
    /// The list, whose memory is used again.
    list: RefCell<HotList>,
    /// Wakes the coroutine that writes the lists.
    waiting: Cell<Option<Waker>>,
}

impl ClientConflicts {
    pub(crate) fn new() -> ClientConflicts {
        let records = Vec::with_capacity(HOT_RECORDS_MAX);
        ClientConflicts {
            tally: RefCell::new(Tally::with_room()),
            began: Cell::default(),
            is_listed: Cell::default(),
            list: RefCell::new(HotList { records, ..HotList::default() }),
            waiting: Cell::default(),
        }
    }

    /// Waits until a window has begun, and returns the time when it ends.
    pub(crate) async fn window_end(&self) -> Nanos {
        poll_fn(|context| match self.began.get() {
            Some(began) => Poll::Ready(began.saturating_add(HOT_WINDOW_NS)),
            None => {
                self.waiting.set(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }

    /// Ends the window. If records are hot, or the last list is to be erased, gives the client's
    /// next list to `write`, and returns what that returns.
    pub(crate) fn end_window<T>(&self, now: Nanos, write: impl FnOnce(&HotList) -> T) -> Option<T> {
        let began = self.began.take()?;
        let (mut tally, mut list) = (self.tally.borrow_mut(), self.list.borrow_mut());
        tally.sort();
        let hot = tally.all().iter().take_while(|(_, conflicts)| conflicts.count() >= HOT);
        list.records.clear();
        list.records.extend(hot.take(HOT_RECORDS_MAX).filter_map(|(name, conflicts)| {
            let (table, key) = (*name)?;
            HotEntry::new(table, key.bytes(), *conflicts)
        }));
        tally.clear();
        (list.sequence, list.window_ns) = (list.sequence + 1, now.saturating_sub(began));
        let is_listed = !list.records.is_empty();
        // The list is renewed or erased at the end of the window that begins now.
        self.began.set(is_listed.then_some(now));
        (self.is_listed.replace(is_listed) || is_listed).then(|| write(&list))
    }
}

impl ConflictCounter for ClientConflicts {
    fn hindered(&self, event: &TransactionEvent<'_>) {
        let mut tally = self.tally.borrow_mut();
        tally.note(event, |tally, (table, key)| {
            let name = Some((table.id(), key));
            tally.of(|one| *one == name, |one| *one = name)
        });
        if self.began.get().is_none() && !tally.is_empty() {
            self.began.set(Some(event.ended));
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl fmt::Debug for ClientConflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConflicts").field("began", &self.began).finish_non_exhaustive()
    }
}
