//! Decides whether the history of a key is linearizable: whether one order of its operations
//! explains all answers, and no operation comes before another one that had ended when it began.
//!
//! The operations are those of a map. Every value must be written once, and be below [`UNSEEN`].

use std::collections::HashSet;

/// The number of states after which the search is given up.
const STATES_MAX: usize = 300_000;

/// What stands for every value that no get has returned. All these values are alike.
const UNSEEN: u64 = u64::MAX;

/// An operation on a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyVerb {
    /// Reads the value.
    Get,
    /// Adds the key with this value, if it is absent.
    Insert(u64),
    /// Replaces the value by this one, if the key is there.
    Update(u64),
    /// Adds the key with this value, or replaces its value.
    Upsert(u64),
    /// Removes the key.
    Delete,
}

/// An operation on a key, and its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyEvent {
    /// The operation.
    pub verb: KeyVerb,
    /// Whether the key was there. `None` if no answer was heard: the operation takes effect at any
    /// time after it has begun, or never.
    pub was_there: Option<bool>,
    /// The value that a get has returned.
    pub value: u64,
    /// The time at which the operation began.
    pub began: u64,
    /// The time at which its answer was heard.
    pub ended: u64,
}

impl KeyEvent {
    /// Returns the value of the key after the operation. `None` if the operation cannot have had
    /// its answer at this value.
    fn after(&self, value: Option<u64>) -> Option<Option<u64>> {
        let is_possible = match (self.verb, self.was_there) {
            (_, None) => true,
            (KeyVerb::Get, Some(was_there)) => value == was_there.then_some(self.value),
            (_, Some(was_there)) => was_there == value.is_some(),
        };
        is_possible.then_some(match self.verb {
            KeyVerb::Get => value,
            KeyVerb::Insert(new) => value.or(Some(new)),
            KeyVerb::Update(new) => value.and(Some(new)),
            KeyVerb::Upsert(new) => Some(new),
            KeyVerb::Delete => None,
        })
    }
}

/// A part of an order: how many events of each row have come, which open events have come, and the
/// value of the key.
type State = (Vec<u32>, Vec<u64>, Option<u64>);

/// Whether the history of a key, which is absent at first, is linearizable. `None` if there are too
/// many orders to tell.
#[must_use]
pub fn is_linearizable(events: &[KeyEvent]) -> Option<bool> {
    let (rows, open) = rows(events);
    let mut seen: HashSet<State> = HashSet::new();
    let mut states: Vec<State> = vec![(vec![0; rows.len()], vec![0; open.len().div_ceil(64)], None)];
    while let Some(state) = states.pop() {
        if seen.len() > STATES_MAX {
            return None;
        }
        let (done, come, value) = &state;
        let next =
            || rows.iter().zip(done).enumerate().filter_map(|(row, (all, at))| Some((row, all.get(*at as usize)?)));
        let Some(first_end) = next().map(|(_, event)| event.ended).min() else { return Some(true) };
        let possible = || next().filter(|(_, event)| event.began < first_end);
        let and = |row: usize, value| {
            let mut done = done.clone();
            done[row] += 1;
            (done, come.clone(), value)
        };
        // What changes nothing may come at once: it is in no other event's way.
        let idle = possible().find(|(_, event)| event.after(*value) == Some(*value));
        let mut more = Vec::new();
        if let Some((row, _)) = idle {
            more.push(and(row, *value));
        } else {
            let mut alike = Vec::new();
            for (number, event) in open.iter().enumerate().filter(|(_, event)| event.began < first_end) {
                let (word, bit) = (number / 64, 1 << (number % 64));
                // Of events that are alike and have all begun, the first one comes first.
                if come[word] & bit != 0 || alike.contains(&event.verb) {
                    continue;
                }
                alike.push(event.verb);
                if let Some(after) = event.after(*value).filter(|after| after != value) {
                    let mut come = come.clone();
                    come[word] |= bit;
                    more.push((done.clone(), come, after));
                }
            }
            more.extend(possible().filter_map(|(row, event)| Some(and(row, event.after(*value)?))));
        }
        states.extend(more.into_iter().filter(|state| !seen.contains(state)));
        seen.insert(state);
    }
    Some(false)
}

/// Returns the events that were answered, in rows of events that follow each other, and the events
/// that may have changed something without an answer.
fn rows(events: &[KeyEvent]) -> (Vec<Vec<KeyEvent>>, Vec<KeyEvent>) {
    let returned = |event: &&KeyEvent| event.verb == KeyVerb::Get && event.was_there == Some(true);
    let seen: HashSet<u64> = events.iter().filter(returned).map(|event| event.value).collect();
    let name = |value: u64| if seen.contains(&value) { value } else { UNSEEN };
    let named = events.iter().map(|event| {
        let verb = match event.verb {
            KeyVerb::Insert(value) => KeyVerb::Insert(name(value)),
            KeyVerb::Update(value) => KeyVerb::Update(name(value)),
            KeyVerb::Upsert(value) => KeyVerb::Upsert(name(value)),
            verb => verb,
        };
        KeyEvent { verb, ..*event }
    });
    let (mut answered, mut open): (Vec<KeyEvent>, Vec<KeyEvent>) = named.partition(|event| event.was_there.is_some());
    open.retain(|event| event.verb != KeyVerb::Get);
    open.sort_by_key(|event| event.began);
    answered.sort_by_key(|event| (event.began, event.ended));
    let mut rows: Vec<Vec<KeyEvent>> = Vec::new();
    for mut event in answered {
        // Every operation takes some time, whatever the clock says.
        event.ended = event.ended.max(event.began + 1);
        let follows = |row: &&mut Vec<KeyEvent>| row.last().is_some_and(|last| last.ended <= event.began);
        match rows.iter_mut().find(follows) {
            Some(row) => row.push(event),
            None => rows.push(vec![event]),
        }
    }
    (rows, open)
}

#[cfg(test)]
mod tests {
    use super::{KeyEvent, KeyVerb, is_linearizable};

    fn event(verb: KeyVerb, was_there: impl Into<Option<bool>>, value: u64, (began, ended): (u64, u64)) -> KeyEvent {
        KeyEvent { verb, was_there: was_there.into(), value, began, ended }
    }

    #[test]
    fn orders_explain_answers_or_do_not() {
        use KeyVerb::{Delete, Get, Insert, Update, Upsert};
        let inserted = event(Insert(1), false, 0, (0, 10));
        let is = |more: &[KeyEvent]| is_linearizable(&[&[inserted], more].concat());
        assert_eq!(is_linearizable(&[]), Some(true));
        assert_eq!(is(&[event(Get, true, 1, (10, 20))]), Some(true));
        assert_eq!(is(&[event(Get, false, 0, (10, 20))]), Some(false), "the insert had ended");
        assert_eq!(is(&[event(Get, false, 0, (9, 20))]), Some(true), "the insert had not ended");
        assert_eq!(is(&[event(Insert(2), false, 0, (10, 20))]), Some(false), "both have inserted");
        // One get sees the old value after another one has seen the new one.
        let (new, old) = (event(Get, true, 2, (20, 30)), event(Get, true, 1, (30, 40)));
        assert_eq!(is(&[event(Update(2), true, 0, (10, 50)), old, new]), Some(false));
        assert_eq!(is(&[event(Update(2), true, 0, (10, 50)), new, event(Get, true, 1, (29, 40))]), Some(true));
        // What was not answered takes effect late, or never, but once.
        let open = event(Upsert(2), None, 0, (10, 11));
        assert_eq!(is(&[open, old, event(Get, true, 2, (40, 50))]), Some(true));
        assert_eq!(is(&[open, old]), Some(true));
        assert_eq!(is(&[open, new, old]), Some(false));
        assert_eq!(is(&[event(Delete, None, 0, (10, 11)), event(Insert(3), false, 0, (20, 30))]), Some(true));
        // Any number of them may come in any order, and is soon decided.
        let mut many: Vec<KeyEvent> = (0..60).map(|at| event(Update(100 + at), None, 0, (10, 11))).collect();
        many.extend((0..60).map(|_| event(Delete, None, 0, (10, 11))));
        many.extend((0..6).map(|at| event(Insert(200 + at), false, 0, (20 + at, 60 + at))));
        assert_eq!(is(&many), Some(true));
        many.push(event(Get, true, 99, (200, 210)));
        assert_eq!(is(&many), Some(false));
        assert_eq!(is(&[event(Delete, None, 0, (25, 26)), event(Insert(3), false, 0, (10, 20))]), Some(false));
    }
}
