//! Tests of what reports, and of what a report tells.

use proptest::prelude::*;

use super::*;

/// Room of a client's queue pair.
const ROOM: usize = 1024;

/// Posts a list that nobody awaits, as a queue does. Returns whether it reports.
fn background(sends: &mut Sends<u64>, list: u64, requests: usize, now: Nanos) -> bool {
    let quiet = sends.may_be_quiet(requests);
    sends.post(requests);
    if quiet {
        sends.end_quietly(list, now);
    } else {
        sends.report(Some(list), now);
    }
    !quiet
}

fn reported(sends: &mut Sends<u64>) -> Option<Vec<u64>> {
    sends.reported().map(Iterator::collect)
}

/// Of lists that nobody awaits, one in sixteen reports.
#[test]
fn one_list_in_sixteen_reports() {
    for (lists, reports) in [(1, 0), (15, 0), (16, 1), (31, 1), (32, 2), (100, 6)] {
        let mut sends = Sends::new(ROOM);
        let reporting = (0..lists).filter(|list| background(&mut sends, *list, 2, 0)).count();
        assert_eq!((reporting, sends.reports()), (reports, reports), "{lists} lists");
    }
}

/// A list reports if the quiet ones would take more than a quarter of the room. A list that is
/// longer than that always reports.
#[test]
fn quiet_lists_take_a_quarter_of_the_room() {
    let mut sends = Sends::new(ROOM);
    let reporting = (0..8).map(|list| background(&mut sends, list, 100, 0));
    assert_eq!(reporting.collect::<Vec<_>>(), [false, false, true, false, false, true, false, false]);
    let mut narrow = Sends::new(8);
    assert!(!background(&mut narrow, 0, 2, 0));
    assert!(background(&mut narrow, 1, 3, 0));
}

/// The report of an awaited list tells of the quiet ones before it, and not of those behind it.
#[test]
fn a_report_tells_of_everything_before_it() {
    let mut sends = Sends::new(ROOM);
    for list in 0..3 {
        background(&mut sends, list, 4, 100 + list);
    }
    assert_eq!((sends.is_quiet(), sends.oldest(), sends.reports()), (true, None, 0));
    assert_eq!(sends.ask_at(), Some(100 + QUIET_NS));
    sends.post(5);
    sends.report(Some(3), 200);
    assert_eq!((sends.ask_at(), sends.oldest()), (None, Some(200)));
    background(&mut sends, 4, 1, 300);
    assert_eq!((sends.room(), sends.ask_at()), (ROOM - 18, Some(300 + QUIET_NS)));
    assert_eq!(reported(&mut sends), Some(vec![0, 1, 2, 3]));
    assert_eq!((sends.room(), sends.lists().count(), sends.oldest()), (ROOM - 1, 1, None));
    assert_eq!(reported(&mut sends), None);
    assert!(!sends.is_empty());
}

/// A request that only asks tells of the quiet lists. The other end's time begins with it.
#[test]
fn asking_tells_of_quiet_lists() {
    let mut sends = Sends::new(ROOM);
    background(&mut sends, 7, 1, 100);
    sends.post(1);
    sends.report(None, 5_000);
    assert_eq!((sends.ask_at(), sends.oldest()), (None, Some(5_000)));
    assert_eq!(reported(&mut sends), Some(vec![7]));
    assert!(sends.is_empty());
    // A message reports, too, and nobody waits for that.
    sends.post(1);
    sends.report(None, 6_000);
    assert_eq!(sends.oldest(), None);
    assert_eq!((reported(&mut sends), sends.room()), (Some(Vec::new()), ROOM));
}

/// If quiet lists have taken the last of the room, nothing can ask for them before something has
/// reported.
#[test]
fn a_full_queue_asks_when_something_has_reported() {
    let mut sends = Sends::new(8);
    sends.post(6);
    sends.report(Some(0), 100);
    assert!(!background(&mut sends, 1, 2, 200));
    assert_eq!((sends.room(), sends.is_quiet(), sends.ask_at()), (0, true, None));
    assert_eq!(reported(&mut sends), Some(vec![0]));
    assert_eq!((sends.room(), sends.ask_at()), (6, Some(200 + QUIET_NS)));
}

proptest! {
    /// Whatever is posted, lists complete once and in order, room comes back, and quiet lists
    /// leave most of it.
    #[test]
    fn lists_complete_in_order(steps in prop::collection::vec((0..4u8, 1..129usize), 1..400), room in 300..2000usize) {
        let mut sends = Sends::new(room);
        let (mut next, mut done, mut now) = (0, 0, 0);
        for (step, requests) in steps {
            now += 1;
            match step {
                0 | 1 if requests <= sends.room() => {
                    if step == 0 {
                        background(&mut sends, next, requests, now);
                    } else {
                        sends.post(requests);
                        sends.report(Some(next), now);
                    }
                    next += 1;
                }
                2 if sends.ask_at().is_some() => {
                    sends.post(1);
                    sends.report(None, now);
                }
                _ => {
                    for list in reported(&mut sends).unwrap_or_default() {
                        prop_assert_eq!(list, done);
                        done += 1;
                    }
                }
            }
            prop_assert!(!sends.is_quiet() || sends.ask_at().is_some() || sends.reports() > 0);
            prop_assert_eq!(sends.lists().count() as u64, next - done);
        }
        // Quiet lists behind a full queue can be asked for as soon as something has reported.
        loop {
            if let Some(lists) = reported(&mut sends) {
                done += lists.len() as u64;
            } else if sends.ask_at().is_some() {
                sends.post(1);
                sends.report(None, now);
            } else {
                break;
            }
        }
        prop_assert_eq!((done, sends.room(), sends.is_empty()), (next, room, true));
    }
}
