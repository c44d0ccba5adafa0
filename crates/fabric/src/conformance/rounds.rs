//! Tests of rules 4 and 5 of the contract, and of what endpoints, lanes and workers add: buffers,
//! continuations, costs, wakes.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use super::calls::Echo;
use super::{Bed, Clients, Lane, Stage, client, peek, play, poke, run, settle, word};
use crate::address::NodeId;
use crate::error::{FabricError, Fault};
use crate::executor::Worker;
use crate::ids::ClientId;
use crate::limits::LANES_MAX;
use crate::listener::{Heard, Listener};
use crate::round::cost::Cost;
use crate::service::{Progress, Service};
use crate::transport::{Fabric, Flush};

const REGION: usize = 4096;

/// Polls a future once.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_ready())).await
}

/// Futures of rounds are dropped at every stage. What any client reads afterwards is its own
/// answer, the dropped rounds have run in their order, and nothing stays in flight.
pub fn a_dropped_round_leaves_no_trace_in_others(bed: &dyn Bed) {
    const WORDS: usize = 12;
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGION]], seed);
        let turns = bed.turns().max(30);
        let dropping = |number: usize| {
            client(async move |lane: Lane| {
                let own = word(0, 3 + 40 * number);
                for turn in 1..=turns {
                    let value = (number as u64) << 32 | turn;
                    let mut round = lane.round();
                    round.write_words(own, &[value; WORDS]);
                    let read = round.read(own, 8 * WORDS);
                    match lane.random() % 5 {
                        0 => drop(round),
                        1 => drop(lane.execute(round)),
                        2 => {
                            let mut posted = lane.execute(round);
                            poll_once(&mut posted).await;
                        }
                        3 => {
                            let posted = lane.execute(round);
                            lane.sleep(lane.random() % 500).await; // it may have completed by now
                            drop(posted);
                        }
                        _ => {
                            let done = run(&lane, round).await;
                            assert_eq!(done.words(read), [value; WORDS]);
                            continue;
                        }
                    }
                    let found = peek(&lane, own, WORDS).await;
                    assert_eq!(found, vec![found[0]; WORDS], "a round that was read after it is not whole");
                    assert!(found[0] >> 32 == number as u64 || found[0] == 0, "foreign bytes: {found:x?}");
                }
                settle(&lane).await;
                assert_eq!(lane.background(), 0);
                assert_eq!(lane.endpoint().failures(), []);
            })
        };
        play(bed, &*fabric, seed, (1..=3).map(dropping).collect());
    }
}

/// A continuation is posted only when its round has completed, even if the two go to different
/// nodes.
pub fn a_continuation_follows_its_round(bed: &dyn Bed) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGION], vec![REGION]], seed);
        let turns = bed.turns().min(1_000);
        let writing = client(async move |lane: Lane| {
            for turn in 1..=turns {
                let mut first = lane.round();
                first.write_words(word(0, 5), &[turn; 20]);
                let posted = lane.execute(first);
                if turn % 2 == 0 {
                    lane.sleep(300).await; // it may have completed by now
                }
                let mut next = lane.round();
                next.write_words(word(1, 5), &[turn]);
                let before = lane.cost();
                posted.then_post(next);
                assert_eq!(lane.cost().since(&before), Cost { writes: 1, bytes_out: 8, ..Cost::default() });
                settle(&lane).await;
                assert_eq!(peek(&lane, word(1, 5), 1).await, [turn], "the continuation was not sent");
            }
            // An empty continuation does nothing. The continuation of an empty round is posted at
            // once.
            let mut first = lane.round();
            first.write_words(word(0, 5), &[turns + 1; 20]);
            lane.execute(first).then_post(lane.round());
            let mut next = lane.round();
            next.write_words(word(1, 5), &[turns + 1]);
            settle(&lane).await;
            lane.execute(lane.round()).then_post(next);
            settle(&lane).await;
            assert_eq!(peek(&lane, word(1, 5), 1).await, [turns + 1]);
            assert_eq!(lane.endpoint().failures(), []);
        });
        let watching = client(async move |lane: Lane| {
            for _ in 0..turns {
                let after = peek(&lane, word(1, 5), 1).await[0];
                let before = peek(&lane, word(0, 24), 1).await[0];
                assert!(
                    before >= after,
                    "the continuation {after} was there before the end of round {after}: {before}"
                );
            }
        });
        play(bed, &*fabric, seed, vec![writing, watching]);
    }
}

/// A continuation can be filled in from what the round before it has brought, whichever of them is
/// posted first, and a round that is not sent is forgotten.
pub fn a_continuation_is_filled_in(bed: &dyn Bed) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGION], vec![REGION]], seed);
        let stage = Stage::new(&*fabric, 1, seed);
        stage.on(1, async |lane| {
            let mut sum = 0;
            for turn in 1..=8 {
                let mut first = lane.round();
                let found = first.fetch_add(word(0, 0), 1);
                let mut next = lane.round();
                let staged = next.stage_words(1);
                next.staged_mut(staged)[0] = 0;
                next.write_staged(word(1, 5), staged);
                let adds = next.fetch_add(word(1, 6), 0);
                next.fill_later(move |answers, next| {
                    let now = answers.added(found).map_or(0, |before| before + 1);
                    next.staged_mut(staged)[0] = now;
                    next.set_added(adds, now);
                });
                let mut unsent = lane.round();
                unsent.fill_later(|_, _| panic!("the round was not sent"));
                drop(unsent);
                if turn % 2 == 0 {
                    lane.post_all([first, next]);
                } else {
                    let posted = lane.execute(first);
                    if turn % 4 == 1 {
                        lane.sleep(400).await; // it may have completed by now
                    }
                    posted.then_post_all([next]);
                }
                settle(lane).await;
                sum += turn;
                assert_eq!(peek(lane, word(1, 5), 2).await, [turn, sum]);
            }
        });
    }
}

/// A listener hears of each of its rounds once, and whether the round has failed. The lane counts
/// what the listener posts.
pub fn a_listener_hears_of_its_round(bed: &dyn Bed) {
    /// Notes what it hears, and WRITEs the tag of each round that has not failed.
    #[derive(Default)]
    struct Follower(RefCell<Vec<(u64, bool)>>);

    impl Listener for Follower {
        fn heard(self: Rc<Self>, tag: u64, heard: &Heard<'_>) {
            self.0.borrow_mut().push((tag, heard.outcome().is_ok()));
            if heard.outcome().is_ok() {
                let mut next = heard.round(heard.lane());
                next.write_words(word(1, 5), &[tag]);
                heard.post(next);
                heard.post(heard.round(heard.lane()));
            }
        }
    }

    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGION], vec![REGION]], seed);
        let stage = Stage::new(&*fabric, 1, seed);
        let follower = Rc::new(Follower::default());
        let rounds_of = |lane: &Lane, tag: u64| {
            let write = |number| {
                let mut round = lane.round();
                round.write_words(word(0, number), &[tag; 20]);
                round
            };
            if tag.is_multiple_of(2) {
                lane.execute_for(write(0), &follower, tag);
            } else {
                lane.post_all_for([write(0), write(30)], &follower, tag);
            }
        };
        stage.on(1, async |lane| {
            for tag in 1..=6 {
                let before = lane.cost();
                rounds_of(lane, tag);
                settle(lane).await;
                assert_eq!(follower.0.take(), [(tag, true)]);
                let cost = lane.cost().since(&before);
                let (writes, round_trips) = if tag.is_multiple_of(2) { (1 + 1, 1) } else { (2 + 1, 0) };
                assert_eq!((cost.writes, cost.round_trips), (writes, round_trips));
                assert_eq!(peek(lane, word(1, 5), 1).await, [tag]);
            }
            assert_eq!(lane.endpoint().failures(), []);
        });
        fabric.fail(NodeId(0));
        stage.on(1, async |lane| {
            for tag in 7..=10 {
                rounds_of(lane, tag);
                settle(lane).await;
                assert_eq!(follower.0.take(), [(tag, false)]);
                // The listener alone hears of a round that is executed for it.
                assert_eq!(lane.endpoint().failures().is_empty(), tag.is_multiple_of(2));
                assert_eq!(peek(lane, word(1, 5), 1).await, [6]);
            }
        });
    }
}

/// A continuation of a round that failed is not sent, and the failure counts as a background
/// failure.
pub fn a_continuation_of_a_failed_round_is_not_sent(bed: &dyn Bed) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGION], vec![REGION]], seed);
        let stage = Stage::new(&*fabric, 1, seed);
        fabric.fail(NodeId(0));
        stage.on(1, async |lane| {
            let down = FabricError { node: NodeId(0), fault: Fault::Unreachable };
            for turn in 0..6 {
                let mut first = lane.round();
                match turn {
                    // This round is ill-formed, so it is refused at once.
                    5 => _ = first.read(word(0, 0).plus(4), 8),
                    _ => first.write_words(word(0, 0), &[1; 20]),
                }
                let posted = lane.execute(first);
                if turn % 2 == 1 {
                    lane.sleep(400).await; // it may have completed by now
                }
                let mut next = lane.round();
                next.write_words(word(1, 0), &[1]);
                posted.then_post(next);
                settle(lane).await;
                let failures = lane.endpoint().failures();
                assert_eq!(failures.len(), 1, "turn {turn}: {failures:?}");
                assert_eq!((failures[0].lane, failures[0].error.node), (lane.id(), NodeId(0)));
                assert!(turn == 5 || failures[0].error == down);
                assert_eq!(peek(lane, word(1, 0), 1).await, [0], "the continuation of a failed round was sent");
            }
        });
    }
}

/// Costs are counted exactly, and at the lane that caused them.
pub fn costs_are_exact(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION], vec![REGION]], 1);
    let worker = Worker::new();
    let endpoint = worker.connect(&*fabric, ClientId(1)).expect("a connection");
    let (lane, other) = (worker.lane(&endpoint, 1).expect("a lane"), worker.lane(&endpoint, 2).expect("a lane"));
    let task = async {
        let fill = |fenced: bool| {
            let mut round = lane.round();
            round.read(word(0, 0), 16);
            round.write_words(word(0, 8), &[1, 2, 3]);
            let staged = round.stage(&[5; 40]);
            round.write_staged(word(0, 16), staged);
            round.write_staged(word(1, 16), staged);
            round.flush(NodeId(1));
            if fenced {
                round.after_completion();
            }
            round.compare_swap(word(1, 0), 0, 1);
            round.fetch_add(word(1, 1), 1);
            round.read(word(1, 0), 64);
            round
        };
        let expected = Cost {
            round_trips: 1,
            reads: 2,
            writes: 3,
            atomics: 2,
            flushes: 1,
            rpcs: 0,
            bytes_out: 24 + 40 + 40 + 16 + 8,
            bytes_in: 16 + 64 + 8 + 8,
        };
        let before = Cell::new(lane.cost());
        let spent = |what: &str, expected: Cost| {
            assert_eq!(lane.cost().since(&before.replace(lane.cost())), expected, "{what}");
        };
        drop(run(&lane, fill(false)).await);
        spent("a round", expected);
        drop(run(&lane, fill(true)).await);
        spent("a fenced round", Cost { round_trips: 2, ..expected });
        drop(lane.execute(fill(false)));
        spent("a dropped future", expected);
        lane.post(fill(false));
        spent("a background round", Cost { round_trips: 0, ..expected });
        lane.post(fill(true));
        spent("a fenced background round", Cost { round_trips: 0, ..expected });
        drop(fill(true));
        spent("a round that was not sent", Cost::default());
        settle(&lane).await;
        assert!(lane.round().is_empty());
        drop(run(&lane, lane.round()).await);
        lane.post(lane.round());
        assert_eq!(lane.background(), 0, "an empty round is in flight");
        let mut staged_only = lane.round();
        staged_only.stage(&[0; 64]);
        drop(run(&lane, staged_only).await);
        spent("empty rounds", Cost::default());
        // A round that fails still counts what it has cost.
        let mut round = lane.round();
        round.read(word(0, REGION), 8);
        assert!(lane.execute(round).await.is_err());
        spent("a round that failed", Cost { round_trips: 1, reads: 1, bytes_in: 8, ..Cost::default() });
        settle(&lane).await;
    };
    worker.run([(lane.id(), task)]);
    assert_eq!(other.cost(), Cost::default(), "a lane was charged for another");
}

/// A flush is part of its round trip, and reaches as far as the backend says.
pub fn a_flush_costs_no_round_trip(bed: &dyn Bed) {
    for seed in 0..bed.runs().min(50) {
        let fabric = bed.fabric(&[vec![REGION], vec![REGION]], seed);
        let stage = Stage::new(&*fabric, 2, seed);
        stage.on(1, async |lane| {
            let before = lane.cost();
            let mut round = lane.round();
            round.write_words(word(0, 0), &[7; 30]);
            round.write_words(word(1, 0), &[7; 30]);
            round.flush(NodeId(0));
            round.flush(NodeId(1));
            run(lane, round).await;
            let cost = lane.cost().since(&before);
            assert_eq!((cost.round_trips, cost.writes, cost.flushes), (1, 2, 2));
        });
        if fabric.capabilities().flush >= Flush::Visible {
            let seen = stage.on(2, async |lane| [peek(lane, word(0, 0), 30).await, peek(lane, word(1, 0), 30).await]);
            assert_eq!(seen, [[7; 30]; 2]);
        }
        // A round with a flush alone is a round like any other, in the background too.
        stage.on(1, async |lane| {
            let mut round = lane.round();
            round.flush(NodeId(1));
            run(lane, round).await;
            let mut round = lane.round();
            round.flush(NodeId(1));
            lane.post(round);
            settle(lane).await;
        });
    }
}

/// Runs two coroutines of one worker, each with a lane.
fn two_lanes<'a, F>(fabric: &dyn Fabric, yields: bool, body: impl Fn(usize, Lane) -> F)
where
    F: Future<Output = ()> + 'a,
{
    let worker = Worker::new();
    let endpoint = worker.connect(fabric, ClientId(1)).expect("a connection");
    endpoint.yield_after_rounds(yields);
    let tasks: Vec<_> = (0..2)
        .map(|index| {
            let lane = worker.lane(&endpoint, index as u64).expect("two lanes");
            (lane.id(), body(index, lane))
        })
        .collect();
    worker.run(tasks);
}

/// The shortest sleep still lets the other coroutines run. A sleep lasts its full time, however
/// often its lane is woken.
pub fn a_sleep_is_pending_at_least_once(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION]], 1);
    let turn = Cell::new(0u64);
    let turn = &turn;
    two_lanes(&*fabric, false, |index, lane| async move {
        for step in 0..100 {
            // Both coroutines must have taken every step before either takes the step after the
            // next.
            assert!(turn.get() >= 2 * step - step.min(1), "lane {index} was not let in at step {step}");
            turn.set(turn.get() + 1);
            lane.sleep(0).await;
        }
        for length in [1, 100, 30_000, 200_000] {
            let before = lane.now();
            lane.sleep(length).await;
            assert!(lane.now() - before >= length, "a sleep of {length} ns ended early");
        }
        let mut dropped = Box::pin(lane.sleep(10));
        poll_once(&mut dropped).await;
        drop(dropped);
        // The timer of a dropped sleep still wakes the lane. No other wait may end early because of
        // it.
        let before = lane.now();
        lane.sleep(50_000).await;
        assert!(lane.now() - before >= 50_000);
    });
}

/// A round refuses the handles of another round, in every build. Otherwise a client would take a
/// word of one round for the answer to another.
pub fn handles_of_another_round_are_caught(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION]], 1);
    fabric.answer(NodeId(0), Box::new(Echo::default()));
    let stage = Stage::new(&*fabric, 1, 1);
    stage.on(1, async |lane| {
        let mut round = lane.round();
        let (read, swap) = (round.read(word(0, 0), 8), round.compare_swap(word(0, 1), 0, 1));
        let (add, staged) = (round.fetch_add(word(0, 2), 1), round.stage(&[1; 8]));
        let call = round.call(NodeId(0), &[7], None, 8);
        drop(run(lane, round).await);
        // The other round has a piece in every place that a handle of the first round names.
        let mut round = lane.round();
        round.read(word(0, 0), 256);
        let caught = |use_it: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(use_it)).is_err();
        assert!(caught(&mut || round.write_staged(word(0, 0), staged)), "a staged piece is written");
        assert!(caught(&mut || round.staged_mut(staged).fill(1)), "a staged piece is filled");
        assert!(caught(&mut || _ = round.call(NodeId(0), &[7], Some(staged), 8)), "a staged piece is sent");
        let done = run(lane, round).await;
        assert!(caught(&mut || _ = done.words(read).len()), "words of a READ");
        assert!(caught(&mut || _ = done.bytes(read).len()), "bytes of a READ");
        assert!(caught(&mut || _ = done.swapped(swap)), "whether a compare-and-swap swapped");
        assert!(caught(&mut || _ = done.previous(swap)), "what a compare-and-swap found");
        assert!(caught(&mut || _ = done.added(add)), "what a FETCH_ADD found");
        assert!(caught(&mut || _ = done.reply(call).len()), "the reply of a call");
    });
    // The handles that were caught have done no harm.
    stage.on(1, async |lane| assert_eq!(peek(lane, word(0, 0), 3).await, [0, 1, 1]));
}

/// Something that another thread signals, and that a coroutine awaits.
#[derive(Default)]
struct Signal {
    state: Mutex<(u64, Option<Waker>)>,
}

impl Signal {
    fn send(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }

    /// Waits for the `count`-th signal.
    async fn received(&self, count: u64) {
        std::future::poll_fn(|context: &mut Context<'_>| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0 >= count {
                return Poll::Ready(());
            }
            state.1 = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// A waker that another thread uses wakes the lane, whether its worker spins or is parked.
pub fn wakers_of_other_threads_wake_a_lane(bed: &dyn Bed) {
    const SIGNALS: u64 = 300;
    let fabric = bed.fabric(&[vec![REGION]], 1);
    let (ping, pong) = (Arc::new(Signal::default()), Arc::new(AtomicU64::new(0)));
    let thread = {
        let (ping, pong) = (ping.clone(), pong.clone());
        thread::spawn(move || {
            for count in 1..=SIGNALS {
                let deadline = Instant::now() + Duration::from_secs(20);
                while pong.load(Ordering::Acquire) < count {
                    assert!(Instant::now() < deadline, "the coroutine was not woken");
                    thread::yield_now();
                }
                if count % 16 == 0 {
                    thread::sleep(Duration::from_micros(300)); // long enough for the worker to park
                }
                ping.send();
            }
        })
    };
    let (finished, watching) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(None::<Waker>)));
    two_lanes(&*fabric, false, |index, lane| {
        let (ping, pong) = (ping.clone(), pong.clone());
        let (finished, watching) = (finished.clone(), watching.clone());
        async move {
            if index == 0 {
                for count in 1..=SIGNALS {
                    pong.store(count, Ordering::Release);
                    ping.received(count).await;
                    poke(&lane, word(0, 0), &[count]).await;
                }
                finished.set(true);
                if let Some(waker) = watching.take() {
                    waker.wake();
                }
                return;
            }
            for _ in 0..50 {
                lane.sleep(lane.random() % 40_000).await; // timers and wakes together
            }
            if bed.clients() == Clients::Interleaved {
                return; // its clock does not wait for other threads
            }
            // From now on this timer alone can wake the worker. It fails the test, which would hang
            // otherwise.
            let mut limit = pin!(lane.sleep(15_000_000_000));
            std::future::poll_fn(|context| {
                watching.replace(Some(context.waker().clone()));
                assert!(limit.as_mut().poll(context).is_pending(), "the lane was not woken");
                if finished.get() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// With `yield_after_rounds`, the coroutines of a worker take turns even where rounds complete at
/// once.
pub fn a_yielding_endpoint_lets_others_run(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION]], 1);
    let log = RefCell::new(Vec::new());
    let log_ref = &log;
    two_lanes(&*fabric, true, |index, lane| async move {
        for _ in 0..50 {
            peek(&lane, word(0, 0), 1).await;
            log_ref.borrow_mut().push(index);
        }
        // A round that fails lets the other coroutines run as well.
        for _ in 0..50 {
            let mut round = lane.round();
            round.read(word(0, 0).plus(1), 8);
            assert!(lane.execute(round).await.is_err());
            log_ref.borrow_mut().push(index);
        }
    });
    let log = log.into_inner();
    let switches = log.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(switches >= 50, "only {switches} switches in {} rounds", log.len());
}

/// A lane that yields lets the other coroutines run once.
pub fn a_lane_that_yields_lets_others_run(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION]], 1);
    let turn = Cell::new(0u64);
    let turn = &turn;
    two_lanes(&*fabric, false, |index, lane| async move {
        for step in 0..100 {
            assert!(turn.get() >= 2 * step - step.min(1), "lane {index} was not let in at step {step}");
            turn.set(turn.get() + 1);
            lane.yield_now().await;
        }
    });
}

/// A worker gives out as many lanes as it has ready bits, and no more. All of them run together.
pub fn a_worker_runs_as_many_lanes_as_it_has_bits(bed: &dyn Bed) {
    const ROUNDS: u64 = 10;
    for yields in [false, true] {
        let fabric = bed.fabric(&[vec![REGION]], 1);
        let worker = Worker::new();
        let endpoint = worker.connect(&*fabric, ClientId(1)).expect("a connection");
        endpoint.yield_after_rounds(yields);
        let lanes: Vec<_> = (0..).map_while(|seed| worker.lane(&endpoint, seed)).collect();
        assert_eq!(lanes.len(), LANES_MAX);
        let results = worker.run(lanes.iter().map(|lane| {
            (lane.id(), async {
                let mut background = lane.round();
                background.fetch_add(word(0, 1), 1);
                lane.post(background);
                for _ in 0..ROUNDS {
                    let mut round = lane.round();
                    round.fetch_add(word(0, 0), 1);
                    run(lane, round).await;
                    lane.sleep(lane.random() % 300).await;
                }
                settle(lane).await;
                lane.id()
            })
        }));
        assert_eq!(results, lanes.iter().map(|lane| lane.id()).collect::<Vec<_>>(), "results in the order given");
        let sums = worker.run([(lanes[5].id(), peek(&lanes[5], word(0, 0), 2))]);
        assert_eq!(sums, [[ROUNDS * LANES_MAX as u64, LANES_MAX as u64]]);
    }
}

struct Counting {
    region: Arc<crate::region::Region>,
}

impl Service for Counting {
    fn step(&mut self) -> Progress {
        let words = self.region.words();
        let wanted = words[0].load(Ordering::Acquire);
        if words[8].load(Ordering::Relaxed) == wanted {
            return Progress::Idle;
        }
        words[8].store(wanted, Ordering::Release);
        Progress::Worked
    }
}

/// A node's service sees what clients write, and the clients see its answers, until the service's
/// handle is dropped.
pub fn a_service_runs_until_its_handle_is_dropped(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION]], 1);
    let Some(region) = fabric.region(NodeId(0), crate::address::RegionId(0)) else {
        eprintln!("skipped: the node's memory is not of this process");
        return;
    };
    let handle = fabric.serve(NodeId(0), "echo", Box::new(Counting { region }));
    let stage = Stage::new(&*fabric, 1, 1);
    stage.on(1, async |lane| {
        for turn in 1..20 {
            poke(lane, word(0, 0), &[turn]).await;
            let mut waited = 0;
            while peek(lane, word(0, 8), 1).await != [turn] {
                lane.sleep(100_000).await;
                waited += 1;
                assert!(waited < 50_000, "the service does not answer");
            }
        }
    });
    drop(handle);
    stage.on(1, async |lane| {
        poke(lane, word(0, 0), &[1_000]).await;
        for _ in 0..100 {
            lane.sleep(if bed.clients() == Clients::Threads { 50_000 } else { 500 }).await;
            assert_eq!(peek(lane, word(0, 8), 1).await, [19], "the service runs on");
        }
    });
}
