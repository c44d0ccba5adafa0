//! Tests of rule 1 of the contract: which verbs of an endpoint to a node are ordered, and which are
//! not.
//!
//! Each pair of verbs acts on a piece of memory that is `base` everywhere at first. The first verb
//! turns `base` into `base + 1`, the second turns `base + 1` into `base + 2`. So the values that
//! they find and leave tell in which order they took effect. WRITEs and READs cover a piece that
//! begins and ends in the middle of a line. Atomics act on its last word, which a WRITE writes
//! last.

use super::{Bed, Clients, Lane, Stage, client, peek, play, poke, run, word};
use crate::executor::Worker;
use crate::ids::ClientId;
use crate::round::{AddHandle, Completed, ReadHandle, Round, SwapHandle};

const START: usize = 5;
const WORDS: usize = 20;
const LAST: usize = START + WORDS - 1;
const REGIONS: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    Write,
    CompareSwap,
    FetchAdd,
}

/// The handle of a verb in its round, from which the test learns what the verb found.
#[derive(Clone, Copy)]
enum Handle {
    Nothing,
    Words(ReadHandle),
    Swap(SwapHandle),
    Add(AddHandle),
}

impl Kind {
    /// Adds the verb that turns `from` into `from + 1`. A READ changes nothing.
    fn add(self, round: &mut Round<'_>, from: u64) -> Handle {
        match self {
            Kind::Read => Handle::Words(round.read(word(0, START), 8 * WORDS)),
            Kind::Write => {
                round.write_words(word(0, START), &[from + 1; WORDS]);
                Handle::Nothing
            }
            Kind::CompareSwap => Handle::Swap(round.compare_swap(word(0, LAST), from, from + 1)),
            Kind::FetchAdd => Handle::Add(round.fetch_add(word(0, LAST), 1)),
        }
    }
}

impl Handle {
    /// Returns the last word of the piece at the time of the verb. `None` for a WRITE.
    fn last(self, done: &Completed<'_>) -> Option<u64> {
        match self {
            Handle::Nothing => None,
            Handle::Words(handle) => done.words(handle).last().copied(),
            Handle::Swap(handle) => Some(done.previous(handle)),
            Handle::Add(handle) => Some(done.added(handle)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Form {
    OneRound,
    Awaited,
    Background,
    BothBackground,
}

/// The second verb takes effect after the first, whether they are in one round or in two.
fn ordered(bed: &dyn Bed, first: Kind, second: Kind) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGIONS]], seed);
        let turns = bed.turns().min(2_000);
        let body = client(async move |lane: Lane| {
            for turn in 0..turns {
                for form in [Form::OneRound, Form::Awaited, Form::Background, Form::BothBackground] {
                    let base = 10 * turn;
                    poke(&lane, word(0, START), &[base; WORDS]).await;
                    in_order(&lane, first, second, form, base).await;
                }
            }
        });
        play(bed, &*fabric, seed, vec![body]);
    }
}

async fn in_order(lane: &Lane, first: Kind, second: Kind, form: Form, base: u64) {
    let mut round = lane.round();
    first.add(&mut round, base);
    match form {
        Form::OneRound => {}
        Form::Awaited => {
            run(lane, round).await;
            round = lane.round();
        }
        Form::Background | Form::BothBackground => {
            lane.post(round);
            round = lane.round();
        }
    }
    let found = second.add(&mut round, base + 1);
    if let Form::BothBackground = form {
        lane.post(round);
    } else {
        let done = run(lane, round).await;
        if let Some(last) = found.last(&done) {
            assert_eq!(last, base + 1, "{second:?} came before {first:?}, {form:?}");
        }
        if let (Kind::Write, Handle::Words(handle)) = (first, found) {
            assert_eq!(done.words(handle), [base + 1; WORDS], "READ came before the end of WRITE, {form:?}");
        }
    }
    // Atomics and WRITEs precede a READ, in whatever form they were sent.
    let left = peek(lane, word(0, START), WORDS).await;
    let expected = if second == Kind::Read { base + 1 } else { base + 2 };
    assert_eq!(left[WORDS - 1], expected, "what {first:?} and {second:?} left, {form:?}");
    if second == Kind::Write {
        assert_eq!(left, [expected; WORDS], "a WRITE was overtaken by {first:?}, {form:?}");
    }
}

/// A WRITE precedes a later READ.
pub fn write_precedes_read(bed: &dyn Bed) {
    ordered(bed, Kind::Write, Kind::Read);
}

/// A WRITE precedes a later WRITE.
pub fn write_precedes_write(bed: &dyn Bed) {
    ordered(bed, Kind::Write, Kind::Write);
}

/// A WRITE precedes a later CAS.
pub fn write_precedes_compare_swap(bed: &dyn Bed) {
    ordered(bed, Kind::Write, Kind::CompareSwap);
}

/// A WRITE precedes a later FETCH_ADD.
pub fn write_precedes_fetch_add(bed: &dyn Bed) {
    ordered(bed, Kind::Write, Kind::FetchAdd);
}

/// A CAS precedes a later READ.
pub fn compare_swap_precedes_read(bed: &dyn Bed) {
    ordered(bed, Kind::CompareSwap, Kind::Read);
}

/// A FETCH_ADD precedes a later READ.
pub fn fetch_add_precedes_read(bed: &dyn Bed) {
    ordered(bed, Kind::FetchAdd, Kind::Read);
}

/// A CAS precedes a later CAS.
pub fn compare_swap_precedes_compare_swap(bed: &dyn Bed) {
    ordered(bed, Kind::CompareSwap, Kind::CompareSwap);
}

/// A CAS precedes a later FETCH_ADD.
pub fn compare_swap_precedes_fetch_add(bed: &dyn Bed) {
    ordered(bed, Kind::CompareSwap, Kind::FetchAdd);
}

/// A FETCH_ADD precedes a later CAS.
pub fn fetch_add_precedes_compare_swap(bed: &dyn Bed) {
    ordered(bed, Kind::FetchAdd, Kind::CompareSwap);
}

/// A FETCH_ADD precedes a later FETCH_ADD.
pub fn fetch_add_precedes_fetch_add(bed: &dyn Bed) {
    ordered(bed, Kind::FetchAdd, Kind::FetchAdd);
}

/// Rounds that are not awaited are ordered like all others. A lock that was released in the
/// background can be taken at once, and what was written under it is visible.
pub fn a_background_release_precedes_the_next_lock(bed: &dyn Bed) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGIONS]], seed);
        let turns = bed.turns();
        let body = client(async move |lane: Lane| {
            for turn in 1..=turns {
                let mut round = lane.round();
                let lock = round.compare_swap(word(0, 0), 0, turn);
                let former = round.read(word(0, START), 8 * WORDS);
                let done = run(&lane, round).await;
                assert!(done.swapped(lock), "the release of turn {} came after the lock of turn {turn}", turn - 1);
                assert_eq!(done.words(former), [turn - 1; WORDS]);
                let mut round = lane.round();
                round.write_words(word(0, START), &[turn; WORDS]);
                round.compare_swap(word(0, 0), turn, 0);
                lane.post(round);
            }
        });
        play(bed, &*fabric, seed, vec![body]);
    }
}

/// The order holds for the whole endpoint, across its lanes.
pub fn lanes_of_one_endpoint_are_ordered(bed: &dyn Bed) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGIONS]], seed);
        let worker = Worker::new();
        let endpoint = worker.connect(&*fabric, ClientId(1)).expect("a connection");
        let lanes = [0, 1].map(|index| worker.lane(&endpoint, seed + index).expect("two lanes"));
        for turn in 1..=bed.turns().min(200) {
            let mut round = lanes[0].round();
            round.write_words(word(0, START), &[turn; WORDS]);
            lanes[0].post(round);
            let read = worker.run([(lanes[1].id(), peek(&lanes[1], word(0, START), WORDS))]);
            assert_eq!(read, [[turn; WORDS]]);
        }
    }
}

/// Takes one turn of a pair that is not ordered. Returns true if the verbs changed places.
async fn changed_places(lane: &Lane, first: Kind, second: Kind, fenced: bool, base: u64) -> bool {
    poke(lane, word(0, START), &[base; WORDS]).await;
    let before = lane.cost();
    let mut round = lane.round();
    let found = first.add(&mut round, base);
    if fenced {
        round.after_completion();
    }
    second.add(&mut round, if first == Kind::Read { base } else { base + 1 });
    let done = run(lane, round).await;
    assert_eq!(lane.cost().since(&before).round_trips, 1 + u64::from(fenced));
    let last = found.last(&done).expect("the first verb of an unordered pair is no WRITE");
    let changed = last != base;
    assert!(!(changed && fenced), "{second:?} passed {first:?} and the fence");
    let left = peek(lane, word(0, START), WORDS).await;
    let expected = match (first, second, changed) {
        (Kind::Read, _, _) | (Kind::CompareSwap, Kind::Write, true) => base + if first == Kind::Read { 1 } else { 2 },
        (Kind::FetchAdd, Kind::Write, true) => base + 3,
        _ => base + 2,
    };
    assert_eq!(left[WORDS - 1], expected, "what {first:?} and {second:?} left");
    changed
}

/// Two verbs may change places unless a fence stands between them.
fn unordered(bed: &dyn Bed, first: Kind, second: Kind) {
    let (mut changed, mut kept) = (0, 0);
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGIONS]], seed);
        let turns = bed.turns().min(500);
        let body = client(async move |lane: Lane| {
            let mut changed = 0;
            for turn in 0..turns {
                changed += u64::from(changed_places(&lane, first, second, false, 20 * turn).await);
                changed_places(&lane, first, second, true, 20 * turn + 10).await;
            }
            changed
        });
        let times: u64 = play(bed, &*fabric, seed, vec![body]).into_iter().sum();
        changed += times;
        kept += turns - times;
    }
    if bed.reorders() {
        assert!(changed > 0 && kept > 0, "{first:?} then {second:?}: {changed} times changed, {kept} times kept");
    }
}

/// A READ and a later WRITE may change places, unless a fence stands between them.
pub fn read_and_write_are_unordered_and_a_fence_orders_them(bed: &dyn Bed) {
    unordered(bed, Kind::Read, Kind::Write);
}

/// A READ and a later CAS may change places, unless a fence stands between them.
pub fn read_and_compare_swap_are_unordered_and_a_fence_orders_them(bed: &dyn Bed) {
    unordered(bed, Kind::Read, Kind::CompareSwap);
}

/// A READ and a later FETCH_ADD may change places, unless a fence stands between them.
pub fn read_and_fetch_add_are_unordered_and_a_fence_orders_them(bed: &dyn Bed) {
    unordered(bed, Kind::Read, Kind::FetchAdd);
}

/// A CAS and a later WRITE may change places, unless a fence stands between them.
pub fn compare_swap_and_write_are_unordered_and_a_fence_orders_them(bed: &dyn Bed) {
    unordered(bed, Kind::CompareSwap, Kind::Write);
}

/// A FETCH_ADD and a later WRITE may change places, unless a fence stands between them.
pub fn fetch_add_and_write_are_unordered_and_a_fence_orders_them(bed: &dyn Bed) {
    unordered(bed, Kind::FetchAdd, Kind::Write);
}

/// Two READs of one word may change places, unless a fence stands between them. Another client
/// counts the word up meanwhile.
pub fn reads_are_unordered_and_a_fence_orders_them(bed: &dyn Bed) {
    let (mut backward, mut forward) = (0, 0);
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGIONS]], seed);
        let turns = bed.turns();
        let counting = client(async move |lane: Lane| {
            for _ in 0..turns {
                let mut round = lane.round();
                round.fetch_add(word(0, 9), 1);
                run(&lane, round).await;
            }
            (0, 0)
        });
        let reading = client(async move |lane: Lane| {
            let (mut backward, mut forward) = (0, 0);
            for turn in 0..turns {
                let fenced = turn % 2 == 1;
                let mut round = lane.round();
                let first = round.read(word(0, 9), 8);
                if fenced {
                    round.after_completion();
                }
                let second = round.read(word(0, 9), 8);
                let done = run(&lane, round).await;
                let (first, second) = (done.words(first)[0], done.words(second)[0]);
                assert!(!(fenced && first > second), "a READ passed another and the fence");
                backward += u64::from(first > second);
                forward += u64::from(!fenced && first < second);
            }
            (backward, forward)
        });
        for (back, forth) in play(bed, &*fabric, seed, vec![counting, reading]) {
            backward += back;
            forward += forth;
        }
    }
    if bed.reorders() {
        assert!(backward > 0 && forward > 0, "{backward} times changed, {forward} times kept");
    }
}

/// WRITEs to different nodes may change places, as another client sees them, unless a fence stands
/// between them.
pub fn nodes_are_unordered_and_a_fence_orders_them(bed: &dyn Bed) {
    for fenced in [false, true] {
        let (mut second_first, mut first_first) = (0, 0);
        for seed in 0..bed.runs() {
            let fabric = bed.fabric(&[vec![REGIONS], vec![REGIONS]], seed);
            let turns = bed.turns();
            let writing = client(async move |lane: Lane| {
                for turn in 1..=turns {
                    let mut round = lane.round();
                    round.write_words(word(0, 0), &[turn]);
                    if fenced {
                        round.after_completion();
                    }
                    round.write_words(word(1, 0), &[turn]);
                    run(&lane, round).await;
                }
                (0, 0)
            });
            let watching = client(async move |lane: Lane| {
                let (mut second_first, mut first_first) = (0, 0);
                for turn in 0..turns {
                    // If the word that is read first is the older one, it was also written later.
                    let order = if turn % 2 == 0 { [1, 0] } else { [0, 1] };
                    let early = peek(&lane, word(order[0], 0), 1).await[0];
                    let late = peek(&lane, word(order[1], 0), 1).await[0];
                    let ahead = early > late;
                    assert!(!(fenced && ahead && order[0] == 1), "a WRITE passed another and the fence");
                    if ahead {
                        *(if order[0] == 1 { &mut second_first } else { &mut first_first }) += 1;
                    }
                }
                (second_first, first_first)
            });
            for (second, first) in play(bed, &*fabric, seed, vec![writing, watching]) {
                second_first += second;
                first_first += first;
            }
        }
        if bed.reorders() {
            assert!(first_first > 0, "the first node's WRITE was never seen first");
            assert!(fenced || second_first > 0, "the second node's WRITE was never seen first");
        }
    }
}

/// The way in which a client stores before it loads.
#[derive(Clone, Copy)]
enum Store {
    WriteThenRead,
    WriteAwaited,
    FetchAddThenRead,
}

/// Repeats Dekker's test: each of two clients stores its own word and then loads the other client's
/// word. If a client loads a value from before a store of the other client, then the load that
/// follows that store must see the first client's store.
fn store_then_load(bed: &dyn Bed, store: Store) {
    let nodes = if let Store::WriteAwaited = store { [0, 1] } else { [0, 0] };
    // Threads that happen to run one after the other prove nothing. So they try again until they
    // have met often enough.
    let (mut met, enough) = (0, if bed.clients() == Clients::Threads { 100_000 } else { 0 });
    for seed in 0..bed.runs() + 20 {
        if seed >= bed.runs() && met >= enough {
            break;
        }
        let fabric = bed.fabric(&[vec![REGIONS], vec![REGIONS]], seed);
        let turns = bed.turns();
        let player = |mine: usize| {
            client(async move |lane: Lane| {
                let (own, other) = (word(nodes[mine], 16 * mine), word(nodes[1 - mine], 16 * (1 - mine)));
                let mut seen = vec![0];
                for turn in 1..=turns {
                    let mut round = lane.round();
                    match store {
                        Store::WriteThenRead => round.write_words(own, &[turn]),
                        Store::WriteAwaited => {
                            round.write_words(own, &[turn]);
                            run(&lane, round).await;
                            round = lane.round();
                        }
                        Store::FetchAddThenRead => {
                            round.fetch_add(own, 1);
                        }
                    }
                    let loaded = round.read(other, 8);
                    seen.push(run(&lane, round).await.words(loaded)[0]);
                }
                seen
            })
        };
        let seen = play(bed, &*fabric, seed, vec![player(0), player(1)]);
        for (own, other) in [(&seen[0], &seen[1]), (&seen[1], &seen[0])] {
            met += own.windows(2).filter(|pair| pair[0] != pair[1]).count();
            for (turn, loaded) in own.iter().enumerate() {
                if let Some(answer) = other.get(*loaded as usize + 1) {
                    assert!(
                        *answer >= turn as u64,
                        "neither turn {turn} nor turn {} saw the other's store",
                        loaded + 1
                    );
                }
            }
        }
    }
}

/// In one round, a client WRITEs its own word and then READs the other client's word.
pub fn stores_precede_loads_in_one_round(bed: &dyn Bed) {
    store_then_load(bed, Store::WriteThenRead);
}

/// A client WRITEs its own word and awaits that. Then it READs the other client's word on another
/// node.
pub fn stores_precede_loads_of_the_next_round(bed: &dyn Bed) {
    store_then_load(bed, Store::WriteAwaited);
}

/// In one round, a client FETCH_ADDs its own word and then READs the other client's word.
pub fn atomics_precede_loads_in_one_round(bed: &dyn Bed) {
    store_then_load(bed, Store::FetchAddThenRead);
}

/// Verbs behind a fence precede verbs that are posted later. A WRITE of a background round precedes
/// the READ and the CAS of later rounds, although the WRITE waits for an answer first.
pub fn what_is_fenced_precedes_later_rounds(bed: &dyn Bed) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![4096], vec![4096]], seed);
        let stage = Stage::new(&*fabric, 1, seed);
        stage.on(1, async |lane| {
            for turn in 1..bed.turns().min(30) {
                let mut round = lane.round();
                round.read(word(turn as u16 % 2, 5), 8);
                round.after_completion();
                round.write_words(word(0, 1), &[turn]);
                round.after_completion();
                round.compare_swap(word(0, 2), turn - 1, turn);
                lane.post(round);
                let mut round = lane.round();
                let written = round.read(word(0, 1), 8);
                let swapped = round.compare_swap(word(0, 2), turn, turn);
                let done = run(lane, round).await;
                assert_eq!(done.words(written), [turn], "seed {seed}");
                assert!(done.swapped(swapped), "seed {seed}");
            }
        });
    }
}
