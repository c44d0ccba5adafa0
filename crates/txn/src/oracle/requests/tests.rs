//! Tests of requests that coroutines share. One coroutine polls what several lanes ask, so each
//! test says when each of them asks. The node's CPU is an oracle that notes what it is asked.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use remora_fabric::seeded::Seeded;
use remora_fabric::{Address, ClientId, Cost, Fabric, Handler, Host, RegionId, Worker};

use super::super::Oracle;
use super::*;

/// The epoch of the client.
const EPOCH: u64 = 3;
const AT: OraclePlace = OraclePlace { host: NodeId(0), epoch: EPOCH };

/// What the oracle was asked: the question, its arguments behind the epoch, and how many of them
/// want a time.
type Asked = (Question, usize, Vec<u64>);

#[derive(Clone, Default)]
struct Noted {
    oracle: Arc<Mutex<Oracle>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    refuses: Arc<AtomicBool>,
}

impl Handler for Noted {
    fn call(&self, _: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        let word = (request[0] >> 32) as usize;
        let (question, times) = Question::parse(word).unwrap();
        assert_eq!(request[1], EPOCH);
        self.asked.lock().unwrap().push((question, times, request[2..].to_vec()));
        if !self.refuses.load(Ordering::Relaxed) {
            self.oracle.lock().unwrap().answer(word, &request[1..], reply);
        }
    }
}

impl Noted {
    /// Returns what was asked since the last look.
    fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    /// Returns the time up to which the oracle knows that all commits are installed.
    fn stable(&self) -> u64 {
        self.oracle.lock().unwrap().stable()[0]
    }
}

/// Plays a test in several seeded orders. The body gets the fabric, what the oracle notes, and five
/// lanes of a client.
fn play(body: impl AsyncFn(&Seeded, &Noted, &OracleRequests, &[Lane])) {
    for seed in 0..20 {
        let (fabric, noted) = (Seeded::new(&[vec![4096], vec![4096]], seed).unwrap(), Noted::default());
        fabric.answer(NodeId(0), Box::new(noted.clone()));
        let worker = Worker::new();
        let endpoint = worker.connect(&fabric, ClientId(1)).unwrap();
        let lanes: Vec<Lane> = (0..5).map(|lane| worker.lane(&endpoint, lane).unwrap()).collect();
        worker.run([(lanes[0].id(), body(&fabric, &noted, &OracleRequests::default(), &lanes))]);
    }
}

fn id(number: u64) -> TransactionId {
    TransactionId::new(1, number).unwrap()
}

fn bits(numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    numbers.into_iter().map(|number| id(number).to_bits()).collect()
}

/// Polls a future once, which must not be ready.
async fn begin<F: Future>(mut future: Pin<&mut F>) {
    let is_pending = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await;
    assert!(is_pending, "the answer is not there yet");
}

/// Waits until no round is under way.
async fn rest(lanes: &[Lane]) {
    while lanes.iter().any(|lane| lane.background() > 0) {
        lanes[0].sleep(100).await;
    }
}

#[test]
fn one_coroutine_sends_what_it_sent_without_batches() {
    play(async |_, noted, requests, lanes| {
        let given = requests.ask(&lanes[0], AT, Wish::Time(id(1)), 7).await.unwrap();
        assert_eq!((given.time, noted.take()), (8, vec![(Question::Next, 1, [vec![7], bits([1])].concat())]));
        assert!(!requests.will_tell(id(1).to_bits()) && !requests.is_asked_for_times());
        let given = requests.ask(&lanes[0], AT, Wish::Stable, 0).await.unwrap();
        assert_eq!(given, Given { time: 7, client: 1 });
        assert_eq!(noted.take(), [(Question::Stable, 0, vec![0])]);
        let cost = Cost { round_trips: 2, rpcs: 2, bytes_out: 32 + 24, bytes_in: 8 + 16, ..Cost::default() };
        assert_eq!(lanes[0].cost(), cost);
    });
}

#[test]
fn coroutines_that_ask_together_share_a_request() {
    play(async |_, noted, requests, lanes| {
        let ask = |number: usize, bound| requests.ask(&lanes[number], AT, Wish::Time(id(number as u64)), bound);
        let mut asks: Vec<_> = (1..5).map(|number| Box::pin(ask(number, 10 * number as u64))).collect();
        for one in &mut asks {
            begin(one.as_mut()).await;
        }
        assert!(requests.is_asked_for_times());
        let mut times = Vec::new();
        for one in asks {
            times.push(one.await.unwrap().time);
        }
        // The bound is the largest one.
        assert_eq!(times, [11, 41, 42, 43]);
        let first = (Question::Next, 1, [vec![10], bits([1])].concat());
        assert_eq!(noted.take(), [first, (Question::Next, 3, [vec![40], bits([2, 3, 4])].concat())]);
        let mut cost = Cost::default();
        lanes.iter().for_each(|lane| cost.add(&lane.cost()));
        assert_eq!((cost.rpcs, cost.round_trips, cost.bytes_out), (2, 2, 32 + 48));
        assert_eq!(noted.stable(), 10);
    });
}

/// A coroutine that asks while an answer is on its way does not take that answer: the oracle may
/// have given it before it heard of a commit that had ended when the coroutine began.
#[test]
fn an_answer_is_only_for_those_that_had_asked_before() {
    let on_their_way = Cell::new(0);
    play(async |_, noted, requests, lanes| {
        let mut early = pin!(requests.ask(&lanes[1], AT, Wish::Stable, 5));
        begin(early.as_mut()).await;
        while noted.asked.lock().unwrap().is_empty() {
            lanes[0].yield_now().await;
        }
        let is_on_its_way = requests.0.0.borrow().under_way.is_some();
        on_their_way.set(on_their_way.get() + u32::from(is_on_its_way));
        // Another client commits, and tells these coroutines.
        let tell = |question, arguments: [u64; 2]| {
            let request = [&[EPOCH], &arguments[..]].concat();
            noted.oracle.lock().unwrap().answer(question, &request, &mut Vec::new());
        };
        tell(Question::Next.with_times(1), [8, id(77).to_bits()]);
        tell(Question::Done as usize, [id(77).to_bits(); 2]);
        let mut late = [2, 3].map(|lane: usize| Box::pin(requests.ask(&lanes[lane], AT, Wish::Stable, 0)));
        for one in &mut late {
            begin(one.as_mut()).await;
        }
        assert_eq!(early.await.unwrap().time, 5);
        for one in late {
            assert_eq!(one.await.unwrap().time, 9);
        }
        assert_eq!(noted.take().len(), if is_on_its_way { 2 } else { 3 });
    });
    assert!(on_their_way.get() > 0);
}

#[test]
fn one_request_is_for_times_and_for_snapshots_and_says_what_is_over() {
    play(async |_, noted, requests, lanes| {
        let first = requests.ask(&lanes[1], AT, Wish::Time(id(1)), 0).await.unwrap();
        let mut under_way = pin!(requests.ask(&lanes[2], AT, Wish::Time(id(2)), 0));
        begin(under_way.as_mut()).await;
        assert!(requests.will_tell(id(1).to_bits()));
        let mut third = pin!(requests.ask(&lanes[3], AT, Wish::Time(id(3)), 0));
        let mut snapshots = [1, 4].map(|lane: usize| Box::pin(requests.ask(&lanes[lane], AT, Wish::Stable, 20)));
        begin(third.as_mut()).await;
        for one in &mut snapshots {
            begin(one.as_mut()).await;
        }
        assert_eq!((first.time, under_way.await.unwrap().time, third.await.unwrap().time), (1, 2, 21));
        let [one, other] = snapshots;
        // Commit 2 is outstanding. One reader is told whose it is.
        assert_eq!(
            (one.await.unwrap(), other.await.unwrap()),
            (Given { time: 1, client: 1 }, Given { time: 1, client: 0 })
        );
        noted.take().drain(2..).for_each(|asked| {
            assert_eq!(asked, (Question::Stable, 1, [vec![20], bits([3, 1])].concat()));
        });
    });
}

#[test]
fn what_is_over_is_told_when_the_answer_comes_if_nobody_asks() {
    play(async |_, noted, requests, lanes| {
        let ask = |number: u64| requests.ask(&lanes[number as usize], AT, Wish::Time(id(number)), 0);
        ask(1).await.unwrap();
        ask(2).await.unwrap();
        let mut third = pin!(ask(3));
        begin(third.as_mut()).await;
        // One attempt has aborted, and another one's installation is acknowledged sooner or later.
        assert!(requests.will_tell(id(1).to_bits()));
        let at = Address { node: NodeId(1), region: RegionId(0), offset: 64 };
        let installs = [1, 2].map(|value| {
            let mut round = lanes[2].round();
            round.write_words(at, &[value]);
            round
        });
        requests.install(&lanes[2], installs, id(2).to_bits());
        assert_eq!(third.await.unwrap().time, 3);
        rest(lanes).await;
        let asked = noted.take().split_off(3);
        assert!(asked.len() <= 2 && asked.iter().all(|one| one.0 == Question::Done), "{asked:?}");
        let over: Vec<u64> = asked.into_iter().flat_map(|one| one.2).collect();
        assert_eq!((over, noted.stable()), (bits([1, 2]), 2));
        let mut cost = Cost::default();
        lanes.iter().for_each(|lane| cost.add(&lane.cost()));
        assert!(cost.rpcs == 4 || cost.rpcs == 5, "what listeners post is counted: {cost:?}");
    });
}

/// The coroutine that has sent a request is dropped, and others wait. They get their times, and its
/// commit is over only when the oracle has heard of it.
#[test]
fn a_coroutine_that_is_dropped_holds_nobody_up() {
    play(async |_, noted, requests, lanes| {
        let ask = |number: u64| requests.ask(&lanes[number as usize], AT, Wish::Time(id(number)), 0);
        let (mut second, mut third) = (pin!(ask(2)), Box::pin(ask(3)));
        {
            let mut first = pin!(ask(1));
            begin(first.as_mut()).await;
            begin(second.as_mut()).await;
            begin(third.as_mut()).await;
        }
        assert!(requests.will_tell(id(1).to_bits()), "DONE must not come before NEXT");
        // No request had the third one yet.
        drop(third);
        assert_eq!(second.await.unwrap().time, 2);
        rest(lanes).await;
        let first = (Question::Next, 1, [vec![0], bits([1])].concat());
        assert_eq!(noted.take(), [first, (Question::Next, 1, [vec![0], bits([2, 1])].concat())]);
        assert_eq!(noted.stable(), 1);
    });
}

/// All coroutines are dropped, sooner or later. What is over is told all the same.
#[test]
fn if_all_are_dropped_nothing_stays_outstanding() {
    play(async |_, noted, requests, lanes| {
        let ask = |number: u64| requests.ask(&lanes[number as usize], AT, Wish::Time(id(number)), 0);
        for turns in 0..8 {
            let (mut first, mut second) = (Box::pin(ask(1)), Box::pin(ask(2)));
            begin(first.as_mut()).await;
            begin(second.as_mut()).await;
            drop(first);
            assert!(requests.will_tell(id(1).to_bits()));
            for _ in 0..turns {
                lanes[0].yield_now().await;
            }
            drop(second);
            let is_told = requests.will_tell(id(2).to_bits());
            rest(lanes).await;
            let mut oracle = noted.oracle.lock().unwrap();
            if !is_told {
                oracle.end(&bits([2]));
            }
            assert_eq!(oracle.stable(), [oracle.latest, 0], "{turns} turns");
            assert!(requests.0.0.borrow().asking.is_empty());
        }
    });
}

#[test]
fn a_refusal_and_a_failure_are_for_all_that_have_asked() {
    play(async |fabric, noted, requests, lanes| {
        let ask = |number: u64| requests.ask(&lanes[number as usize], AT, Wish::Time(id(number)), 0);
        let both = async || {
            let (mut first, mut second) = (pin!(ask(1)), pin!(ask(2)));
            begin(first.as_mut()).await;
            begin(second.as_mut()).await;
            [first.await, second.await].map(Result::unwrap_err)
        };
        noted.refuses.store(true, Ordering::Relaxed);
        assert_eq!(both().await, [Stop::from(Abort::Later); 2]);
        fabric.fail(NodeId(0));
        assert!(both().await.iter().all(|stop| matches!(stop, Stop::Unavailable(error) if error.node == NodeId(0))));
    });
}
