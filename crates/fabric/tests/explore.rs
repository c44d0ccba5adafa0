//! Tests of the explorer on programs whose numbers of interleavings are known, and against itself
//! without its reductions.

use std::collections::BTreeSet;
use std::rc::Rc;

use remora_fabric::seeded::Seeded;
use remora_fabric::seeded::explore::{Counts, ExploreOptions, Play, Player, Private, Reduction, Suspicion, explore};
use remora_fabric::{Address, ClientId, Fabric, Handler, Host, Lane, NodeId, Prng, RegionId, Worker};

const NODE: NodeId = NodeId(0);

fn word(index: u64) -> Address {
    Address { node: NODE, region: RegionId(0), offset: 8 * index }
}

/// Returns the address of the first word of a line.
fn line(index: u64) -> Address {
    word(8 * index)
}

fn look(fabric: &Seeded, index: usize) -> u64 {
    fabric.region(NODE, RegionId(0)).unwrap().words()[index].load(std::sync::atomic::Ordering::Relaxed)
}

/// What the clients have seen, and what is in the first three lines at the end, over all runs.
type Outcomes = BTreeSet<(Vec<Option<Vec<u64>>>, Vec<u64>)>;

/// Explores a program whose clients each do `body(number, lane)`.
fn outcomes(
    clients: u32,
    fabric: &Seeded,
    options: &ExploreOptions,
    prepare: impl Fn(&Seeded),
    body: impl AsyncFn(u32, &Lane) -> Vec<u64>,
) -> (Counts, Outcomes) {
    outcomes_of(clients, fabric, options, |_| prepare(fabric), body)
}

fn outcomes_of(
    clients: u32,
    fabric: &Seeded,
    options: &ExploreOptions,
    prepare: impl Fn(&mut Play<'_>),
    body: impl AsyncFn(u32, &Lane) -> Vec<u64>,
) -> (Counts, Outcomes) {
    let mut all = Outcomes::new();
    let found = explore(fabric, options, |play: &mut Play<'_>| {
        prepare(play);
        let worker = Worker::new();
        let lanes: Vec<Lane> = (1..=clients)
            .map(|client| worker.lane(&worker.connect(fabric, ClientId(client)).unwrap(), 1).unwrap())
            .collect();
        let players = Vec::from_iter(
            lanes
                .iter()
                .zip(1..)
                .map(|(lane, number)| Player::new(ClientId(number), lane.endpoint(), body(number, lane))),
        );
        if let Some(mut seen) = play.run(players) {
            // What a recoverer has done shows in memory only.
            let recoverers = options.suspicions.iter().map(|suspicion| suspicion.by.0 as usize - 1);
            recoverers.for_each(|recoverer| seen[recoverer] = None);
            all.insert((seen, (0..24).map(|index| look(fabric, index)).collect()));
        }
        Ok::<(), ()>(())
    });
    assert!(!found.bounded && found.violation.is_none());
    (found.counts, all)
}

/// Returns the interleavings and outcomes with each reduction. All must find the same outcomes.
fn reduced(
    clients: u32,
    options: &ExploreOptions,
    make: impl Fn() -> Seeded,
    prepare: impl Fn(&Seeded),
    body: impl AsyncFn(u32, &Lane) -> Vec<u64>,
) -> [u64; 3] {
    let with = |reduction| {
        let options = ExploreOptions { reduction, ..options.clone() };
        outcomes(clients, &make(), &options, &prepare, &body)
    };
    let (nothing, all) = with(Reduction::Nothing);
    let (commuting, up_to_commuting) = with(Reduction::Commuting);
    let (states, up_to_states) = with(Reduction::States);
    assert_eq!(all, up_to_commuting, "what commutes has lost an outcome");
    assert_eq!(all, up_to_states, "what states are the same has lost an outcome");
    assert_eq!(commuting.complete, commuting.interleavings);
    [nothing, commuting, states].map(|counts| counts.interleavings)
}

fn memory() -> Seeded {
    Seeded::new(&[vec![4096]], 1).unwrap()
}

fn simple(clients: u32, body: impl AsyncFn(u32, &Lane) -> Vec<u64>) -> [u64; 3] {
    reduced(clients, &ExploreOptions::default(), memory, |_| (), body)
}

#[test]
fn writes_of_different_lines_commute() {
    let found = simple(3, async |client, lane| {
        let mut round = lane.round();
        round.write_words(line(client.into()), &[7]);
        lane.execute(round).await.unwrap();
        Vec::new()
    });
    assert_eq!(found, [6, 1, 1]);
}

#[test]
fn writes_of_one_word_do_not() {
    let found = simple(3, async |client, lane| {
        let mut round = lane.round();
        round.write_words(word(0), &[client.into()]);
        lane.execute(round).await.unwrap();
        Vec::new()
    });
    assert_eq!(found[..2], [6, 6]);
}

#[test]
fn swaps_of_one_word_have_two_orders() {
    let found = simple(2, async |client, lane| {
        let mut round = lane.round();
        let swap = round.compare_swap(word(0), 0, client.into());
        let done = lane.execute(round).await.unwrap();
        vec![done.previous(swap)]
    });
    assert_eq!(found, [2, 2, 2]);
}

#[test]
fn a_read_of_two_lines_against_a_write_of_them() {
    // Lines of the READ come in any order, and lines of the WRITE ascending. Four steps with one
    // constraint have 12 orders. Each line is read before or after it is written.
    let found = simple(2, async |client, lane| {
        let mut round = lane.round();
        if client == 1 {
            round.write_words(line(0), &[1; 16]);
            lane.execute(round).await.unwrap();
            return Vec::new();
        }
        let read = round.read(line(0), 128);
        let done = lane.execute(round).await.unwrap();
        vec![done.words(read)[0], done.words(read)[8]]
    });
    assert_eq!(found[..2], [12, 4]);
}

#[test]
fn readers_of_one_line_commute() {
    let found = simple(3, async |_, lane| {
        let mut round = lane.round();
        let read = round.read(line(0), 64);
        lane.execute(round).await.unwrap().words(read).to_vec()
    });
    assert_eq!(found, [6, 1, 1]);
}

/// Rounds that follow each other, ordered and unordered verbs, and dependences over two lines lose
/// no outcome.
#[test]
fn reductions_lose_no_outcome() {
    let found = simple(2, async |client, lane| {
        let (mine, other) = (u64::from(client), 3 - u64::from(client));
        let mut round = lane.round();
        let swap = round.compare_swap(line(0), 0, mine);
        let read = round.read(line(other), 8);
        let done = lane.execute(round).await.unwrap();
        let mut seen = vec![done.previous(swap), done.words(read)[0]];
        drop(done);
        let mut round = lane.round();
        round.write_words(line(mine), &[seen[0] + 10 * mine]);
        round.compare_swap(line(0), mine, 0);
        let read = round.read(line(other), 8);
        seen.push(lane.execute(round).await.unwrap().words(read)[0]);
        seen
    });
    assert!(found[0] > 10 * found[1] && found[1] >= found[2], "{found:?}");
}

#[test]
fn background_rounds_and_their_completions_are_explored() {
    let body = async |client: u32, lane: &Lane| {
        let mut round = lane.round();
        round.write_words(line(0), &[client.into()]);
        lane.post(round);
        let mut round = lane.round();
        let read = round.read(line(2), 8);
        let seen = lane.execute(round).await.unwrap().words(read)[0];
        let background = lane.background().into();
        let mut round = lane.round();
        round.write_words(line(2), &[client.into()]);
        lane.execute(round).await.unwrap();
        vec![seen, background]
    };
    let found = simple(2, body);
    assert!(found[0] > found[1], "{found:?}");
    // The READ is ordered behind the WRITE, but the WRITE may complete later.
    let (_, all) = outcomes(1, &memory(), &ExploreOptions::default(), |_| (), body);
    let background: BTreeSet<_> = all.into_iter().filter_map(|(seen, _)| Some(seen[0].as_ref()?[1])).collect();
    assert_eq!(background, [0, 1].into());
}

/// Whether there is time for everything, as in `.ci/long`.
fn is_long() -> bool {
    std::env::var_os("REMORA_LONG").is_some()
}

/// Random programs of a few verbs on two lines have the same outcomes with and without reductions.
#[test]
fn random_programs_lose_no_outcome() {
    let seeds = if is_long() { 300 } else { 30 };
    for seed in 0..seeds {
        let (clients, rounds, verbs) = [(2, 2, 2), (3, 2, 1), (3, 1, 2)][seed as usize % 3];
        let crash = (seed % 5 == 0).then_some(ClientId(1));
        let options = ExploreOptions { crash, ..ExploreOptions::default() };
        let body = async |client: u32, lane: &Lane| {
            let mut prng = Prng::derive(seed, client.into());
            let mut seen = Vec::new();
            for number in 0..rounds {
                let mut round = lane.round();
                let (mut reads, mut swaps) = (Vec::new(), Vec::new());
                for _ in 0..verbs {
                    let at = line(prng.below(2));
                    match prng.below(4) {
                        0 => reads.push(round.read(at, 8)),
                        1 => round.write_words(at, &[u64::from(client) + seen.iter().sum::<u64>()]),
                        2 => swaps.push(round.compare_swap(at, 0, client.into())),
                        _ => swaps.push(round.compare_swap(at, client.into(), 7)),
                    }
                }
                if number == 0 && prng.below(4) == 0 {
                    lane.post(round);
                    continue;
                }
                let done = lane.execute(round).await.unwrap();
                seen.extend(reads.iter().map(|read| done.words(*read)[0]));
                seen.extend(swaps.iter().map(|swap| done.previous(*swap)));
            }
            seen
        };
        reduced(clients, &options, memory, |_| (), body);
    }
}

/// In random recoveries, client 2 takes client 1 for dead, and client 3 may take client 2 for dead.
/// Only these clients access one of the lines, one after the other.
#[test]
fn random_recoveries_lose_no_outcome() {
    for seed in 0..if is_long() { 60 } else { 20 } {
        let suspicion = |of, by| Suspicion { of: ClientId(of), by: ClientId(by) };
        let twice = seed % 2 == 0;
        let own = (1..=3).map(ClientId).take(if twice { 3 } else { 2 });
        let options = ExploreOptions {
            suspicions: [suspicion(1, 2), suspicion(2, 3)][..if twice { 2 } else { 1 }].to_vec(),
            private: vec![Private { clients: own.collect(), at: line(2), bytes: 64 }],
            ..ExploreOptions::default()
        };
        let fabric = std::cell::RefCell::new(None);
        let body = async |client: u32, lane: &Lane| {
            let mut prng = Prng::derive(seed, client.into());
            let recovers = client == 2 || client == 3 && twice;
            for dead in 1..if recovers { client } else { 1 } {
                Seeded::revoke(fabric.borrow().as_ref().unwrap(), ClientId(dead)).unwrap();
            }
            let mut seen = Vec::new();
            for number in 0..if client == 3 && !twice { 1 } else { 2 } {
                let mut round = lane.round();
                let (mut reads, mut swaps) = (Vec::new(), Vec::new());
                for _ in 0..if recovers || twice { 1 } else { 2 } {
                    let at = line(prng.below(if client == 1 || recovers { 3 } else { 2 }));
                    let changes = if recovers { seen.iter().sum() } else { 0 };
                    match prng.below(4) {
                        0 => reads.push(round.read(at, 8)),
                        1 => round.write_words(at, &[u64::from(client) + changes]),
                        2 => round.write_words(line(0).plus(56), &[u64::from(client) + changes; 2]),
                        _ => swaps.push(round.compare_swap(at, changes, client.into())),
                    }
                }
                if number == 0 && !recovers && prng.below(4) == 0 {
                    lane.post(round);
                    continue;
                }
                let Ok(done) = lane.execute(round).await else { return vec![99] };
                seen.extend(reads.iter().map(|read| done.words(*read)[0]));
                seen.extend(swaps.iter().map(|swap| done.previous(*swap)));
            }
            seen
        };
        reduced(3, &options, memory, |of| drop(fabric.replace(Some(of.clone()))), body);
    }
}

/// A client that is revoked in the middle of a WRITE has written a part of it, and gets an error. A
/// recoverer that has not begun does nothing.
#[test]
fn a_suspicion_is_explored_before_and_after_every_step() {
    let suspicion = Suspicion { of: ClientId(1), by: ClientId(2) };
    let options = ExploreOptions { suspicions: vec![suspicion], ..ExploreOptions::default() };
    let fabric = memory();
    let body = async |client, lane: &Lane| {
        let mut round = lane.round();
        if client == 2 {
            Seeded::revoke(&fabric, ClientId(1)).unwrap();
            round.write_words(line(2), &[5]);
        } else {
            round.write_words(line(0), &[1; 16]);
        }
        vec![lane.execute(round).await.is_ok().into()]
    };
    let (counts, all) = outcomes(2, &fabric, &options, |_| (), body);
    assert_eq!(counts.crashes, 3);
    let landed: BTreeSet<_> =
        all.iter().map(|(seen, words)| (seen[0].clone().unwrap()[0], words[0], words[8], words[16])).collect();
    assert_eq!(landed, [(0, 0, 0, 5), (0, 1, 0, 5), (1, 1, 1, 5)].into());
}

#[test]
fn a_crash_is_explored_before_and_after_every_step() {
    let options = ExploreOptions { crash: Some(ClientId(1)), ..ExploreOptions::default() };
    let (_, all) = outcomes(
        1,
        &memory(),
        &options,
        |_| (),
        async |_, lane| {
            let mut round = lane.round();
            round.write_words(line(0), &[1; 16]);
            lane.execute(round).await.unwrap();
            let mut round = lane.round();
            round.write_words(line(2), &[1]);
            lane.execute(round).await.unwrap();
            vec![1]
        },
    );
    let landed: BTreeSet<_> =
        all.iter().map(|(seen, words)| (seen[0].is_some(), words[0], words[8], words[16])).collect();
    let expected = [(false, 0, 0, 0), (false, 1, 0, 0), (false, 1, 1, 0), (false, 1, 1, 1), (true, 1, 1, 1)];
    assert_eq!(landed, expected.into());
    let body = async |client: u32, lane: &Lane| {
        let mut round = lane.round();
        let swap = round.compare_swap(word(0), 0, client.into());
        round.write_words(line(u64::from(client)), &[5]);
        let seen = lane.execute(round).await.unwrap().previous(swap);
        let mut round = lane.round();
        round.compare_swap(word(0), client.into(), 0);
        lane.post(round);
        vec![seen]
    };
    reduced(2, &options, memory, |_| (), body);
    let options = ExploreOptions { crash: None, cancel: Some(ClientId(1)), ..options };
    reduced(2, &options, memory, |_| (), body);
}

/// A service that adds to a word of its node by a load and a store, as if no other code changed the
/// word.
struct Adder(Seeded);

impl Handler for Adder {
    fn call(&self, _: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        let region = self.0.region(NODE, RegionId(0)).unwrap();
        reply.push(region.words()[0].fetch_add(request[0], std::sync::atomic::Ordering::SeqCst));
    }
}

#[test]
fn a_call_comes_in_between_a_split_atomic_and_another_atomic_does_not() {
    let add = async |client: u32, lane: &Lane| {
        let mut round = lane.round();
        if client == 3 {
            let call = round.call(NODE, &[100], None, 1);
            return lane.execute(round).await.unwrap().reply(call).to_vec();
        }
        let add = round.fetch_add(word(0), client.into());
        vec![lane.execute(round).await.unwrap().added(add)]
    };
    let answer = |fabric: &Seeded| fabric.answer(NODE, Box::new(Adder(fabric.clone())));
    let sums = |make: &dyn Fn() -> Seeded, clients| {
        let (_, all) = outcomes(clients, &make(), &ExploreOptions::default(), answer, add);
        all.into_iter().map(|(_, words)| words[0]).collect::<BTreeSet<_>>()
    };
    let split = || memory().with_split_atomics();
    assert!(!split().capabilities().coherent_atomics && memory().capabilities().coherent_atomics);
    assert_eq!(sums(&split, 2), [3].into(), "atomics of NICs exclude each other");
    assert_eq!(sums(&memory, 3), [103].into());
    assert_eq!(sums(&split, 3), [1 + 2, 2 + 1, 103].into(), "what the CPU has added is lost");
    reduced(3, &ExploreOptions::default(), split, answer, add);
}

/// Two clients each take two numbers, in the order in which their rounds complete, and act on them.
#[test]
fn what_coroutines_share_is_explored_where_they_say_so() {
    let taken = |shared, reduction, together: bool| {
        let numbers = Rc::new(std::cell::Cell::new(0));
        let options = ExploreOptions { shared, reduction, ..ExploreOptions::default() };
        let body = async |client: u32, lane: &Lane| {
            let at = if together { line(0) } else { line(client.into()) };
            let mut own = Vec::new();
            for _ in 0..2 {
                let mut round = lane.round();
                let seen = round.read(at, 8);
                if own.last().is_none_or(|last| last % 2 == 0) {
                    round.write_words(at, &[numbers.get() + 10 * u64::from(client)]);
                }
                own.push(lane.execute(round).await.unwrap().words(seen)[0]);
                own.push(numbers.replace(numbers.get() + 1));
            }
            own
        };
        let prepare = |play: &mut Play<'_>| {
            numbers.set(0);
            let numbers = numbers.clone();
            play.share(move || numbers.get());
        };
        let (counts, all) = outcomes_of(2, &memory(), &options, prepare, body);
        (counts.interleavings, all)
    };
    for together in [false, true] {
        let (every, all) = taken(true, Reduction::Nothing, together);
        let (commuting, up_to_commuting) = taken(true, Reduction::Commuting, together);
        let (_, up_to_states) = taken(true, Reduction::States, together);
        assert!(all == up_to_commuting && all == up_to_states && every > commuting, "{together}");
        assert!(taken(false, Reduction::Commuting, together).1.len() < all.len(), "nobody has said so");
    }
}

#[test]
fn private_memory_is_no_choice_and_is_checked() {
    let own = |client: u32| Private { clients: vec![ClientId(client)], at: line(client.into()), bytes: 64 };
    let options = ExploreOptions { private: vec![own(1), own(2)], ..ExploreOptions::default() };
    let body = async |client: u32, lane: &Lane| {
        for place in [line(client.into()), line(0), line(client.into())] {
            let mut round = lane.round();
            round.write_words(place, &[client.into()]);
            lane.execute(round).await.unwrap();
        }
        Vec::new()
    };
    assert_eq!(reduced(2, &options, memory, |_| (), body)[1..], [2, 2]);
    let stray = std::panic::catch_unwind(|| {
        outcomes(
            1,
            &memory(),
            &options,
            |_| (),
            async |_, lane| {
                let mut round = lane.round();
                let read = round.read(line(2), 8);
                lane.execute(round).await.unwrap().words(read).to_vec()
            },
        )
    });
    assert!(stray.is_err());
}

/// A client that waits for a word by repeated looks sees it change. Looks that find no change are
/// not explored.
#[test]
fn sleepers_wake_when_what_they_saw_changes() {
    let found = simple(2, async |client, lane| {
        if client == 1 {
            for value in 1..=2 {
                let mut round = lane.round();
                round.write_words(word(0), &[value]);
                lane.execute(round).await.unwrap();
            }
            return Vec::new();
        }
        let mut looks = 0;
        loop {
            let mut round = lane.round();
            let read = round.read(word(0), 8);
            let seen = lane.execute(round).await.unwrap().words(read)[0];
            looks += 1;
            if seen == 2 || looks == 10 {
                return vec![looks, seen];
            }
            lane.sleep(100).await;
        }
    });
    assert!(found[1] < 10, "{found:?}");
}

#[test]
fn a_violation_names_the_steps_that_lead_to_it_and_a_bound_is_said() {
    let fabric = memory();
    let program = |play: &mut Play<'_>, allowed: u64| {
        let worker = Worker::new();
        let lanes = [1, 2].map(|client| worker.lane(&worker.connect(&fabric, ClientId(client)).unwrap(), 1).unwrap());
        let write = async |lane: &Lane, value| {
            let mut round = lane.round();
            round.write_words(word(0), &[value]);
            lane.execute(round).await.unwrap();
        };
        let players = Vec::from_iter(
            lanes
                .iter()
                .zip(1..)
                .map(|(lane, number)| Player::new(ClientId(number), lane.endpoint(), write(lane, number.into()))),
        );
        let ended = play.run(players).is_some();
        if ended && look(&fabric, 0) != allowed { Err(look(&fabric, 0)) } else { Ok(()) }
    };
    let found = explore(&fabric, &ExploreOptions::default(), |play| program(play, 2));
    let (value, steps) = found.violation.unwrap();
    assert_eq!((value, found.counts.interleavings), (1, 2));
    let steps: Vec<String> = steps.iter().map(ToString::to_string).collect();
    assert_eq!(steps, ["client 2: WRITE node 0 +0x0, 1 words, line 0", "client 1: WRITE node 0 +0x0, 1 words, line 0"]);
    assert_eq!(look(&fabric, 0), 0, "memory is put back");
    let options = ExploreOptions { runs_max: 1, ..ExploreOptions::default() };
    assert!(explore(&fabric, &options, |play| program(play, 2)).bounded);
}

#[test]
#[should_panic(expected = "waits for nothing")]
fn a_client_that_waits_for_nothing_is_no_end() {
    simple(1, async |_, _| std::future::pending().await);
}
