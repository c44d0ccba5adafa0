//! The rules that every configuration keeps, wherever it is: one function for each rule.
//! [`conformance!`] makes a test of each.
#![allow(dead_code, unreachable_pub, unused_macros, reason = "each test file uses what it needs of it")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use remora_membership::{Configuration, Fenced, RecoveredClients, Standing};
use remora_txn::recovery::{Departed, Verdicts};

/// The longest time that a test waits for something.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A place that keeps a configuration, which is removed with it.
pub trait Place: Sync {
    /// Makes a new place.
    fn new() -> Self;

    /// Opens the configuration again, as another process would, where there can be another process.
    fn open(&self) -> Arc<dyn Configuration>;
}

macro_rules! conformance {
    ($place:ty) => {
        conformance! { @rules $place;
            changes_of_several_openings_are_in_one_order
            what_one_has_changed_all_others_see_at_once
            the_generation_follows
            a_change_that_changes_nothing_is_none
            the_membership_survives_its_openings
            clients_of_a_process_that_has_ended_are_orphans
            clients_that_have_been_recovered_are_known
        }
    };
    (@rules $place:ty; $($rule:ident)*) => {
        $(#[test]
        fn $rule() {
            places::$rule::<$place>();
        })*
    };
}

/// Waits until a condition holds.
pub fn until(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < within, "{what}: not within {within:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Each opening joins and leaves repeatedly. A lost change would leave a client there, or a smaller
/// generation.
pub fn changes_of_several_openings_are_in_one_order<P: Place>() {
    const OPENINGS: u32 = 4;
    const TIMES: u32 = 50;
    let place = P::new();
    thread::scope(|scope| {
        for client in 1..=OPENINGS {
            let here = place.open();
            scope.spawn(move || {
                for _ in 0..TIMES {
                    here.change(|membership| membership.join(client, 1, 1, here.process())).unwrap().unwrap();
                    here.change(|membership| membership.leave(client)).unwrap().unwrap();
                }
            });
        }
    });
    let clients = place.open().look(|membership| (membership.generation(), membership.clients().count()));
    assert_eq!(clients.unwrap(), (u64::from(2 * OPENINGS * TIMES), 0));
}

pub fn what_one_has_changed_all_others_see_at_once<P: Place>() {
    let place = P::new();
    let (one, other) = (place.open(), place.open());
    for client in 1..50 {
        let (here, there) = if client % 2 == 0 { (&one, &other) } else { (&other, &one) };
        here.change(|membership| membership.join(client, 1, 1, None)).unwrap().unwrap();
        let seen = match client % 3 {
            0 => there.refresh().and_then(|()| there.look(|membership| membership.standing(client))),
            // A change that only looks counts as well.
            _ => there.change(|membership| membership.standing(client)),
        };
        assert_eq!(seen.unwrap(), Some(Standing::Alive));
    }
}

/// A configuration that is asked for orphans several times a second, as clients do, soon knows of
/// changes.
pub fn the_generation_follows<P: Place>() {
    let place = P::new();
    let (here, there) = (place.open(), place.open());
    for client in 1..10 {
        there.change(|membership| membership.join(client, 1, 1, None)).unwrap().unwrap();
        assert_eq!(there.generation(), u64::from(client), "who has made a change knows it");
        until("the generation", Duration::from_secs(1), || {
            here.orphans();
            here.generation() == there.generation()
        });
    }
}

pub fn a_change_that_changes_nothing_is_none<P: Place>() {
    let place = P::new();
    let here = place.open();
    here.change(|membership| membership.join(1, 1, 1, None)).unwrap().unwrap();
    assert_eq!(here.change(|membership| membership.renew(2)).unwrap(), Err(Fenced(2)));
    assert_eq!(here.change(|membership| membership.suspect(1, 3)).unwrap(), Err(Fenced(3)));
    let all = here.look(|membership| (membership.generation(), membership.clients().collect::<Vec<_>>()));
    assert_eq!(all.unwrap(), (1, vec![(1, Standing::Alive)]));
}

pub fn the_membership_survives_its_openings<P: Place>() {
    let place = P::new();
    place.open().change(|membership| membership.join(1, 1, 1, None)).unwrap().unwrap();
    let later = place.open();
    assert_eq!((later.look(|all| all.clients().count()).unwrap(), later.generation()), (1, 1));
}

pub fn clients_of_a_process_that_has_ended_are_orphans<P: Place>() {
    let place = P::new();
    let (here, there) = (place.open(), place.open());
    let (Some(own), Some(other)) = (here.process(), there.process()) else { return };
    for (client, at) in [(1, &here), (2, &there), (3, &there)] {
        at.change(|membership| membership.join(client, 1, 1, at.process())).unwrap().unwrap();
    }
    until("who lives", PATIENCE, || here.look(|all| all.clients().count()).unwrap() == 3);
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(30));
        assert!(here.orphans().is_empty() && !here.has_ended(own) && !here.has_ended(other));
    }
    drop(there);
    until("orphans", PATIENCE, || here.orphans() == [2, 3]);
    assert!(here.has_ended(other) && !here.has_ended(own));
    here.change(|membership| membership.suspect(2, 1)).unwrap().unwrap();
    until("those whom nobody suspects yet", PATIENCE, || here.orphans() == [3]);
    // A process that opens the configuration later knows as well.
    let later = place.open();
    until("orphans seen by who comes later", PATIENCE, || later.orphans() == [3]);
    assert!(later.has_ended(other) && !later.has_ended(own));
}

pub fn clients_that_have_been_recovered_are_known<P: Place>() {
    let place = P::new();
    let (here, there) = (place.open(), place.open());
    let recovered = RecoveredClients::new(here.clone());
    for client in [1, 2] {
        there.change(|membership| membership.join(client, 1, 1, None)).unwrap().unwrap();
    }
    there.change(|membership| membership.suspect(2, 1)).unwrap().unwrap();
    assert!(!recovered.is_recovered(2));
    there.change(|membership| membership.recovered(2, 1, Verdicts::default())).unwrap().unwrap();
    until("who was recovered", Duration::from_secs(1), || {
        here.orphans();
        recovered.is_recovered(2)
    });
    assert!(!recovered.is_recovered(1));
}
