//! Tests of rule 8 of the contract: calls that a memory node's CPU serves.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Bed, Stage, client, peek, play, run, settle, word};
use crate::address::NodeId;
use crate::error::{FabricError, Fault};
use crate::ids::{ClientId, Nanos};
use crate::lane::Lane;
use crate::transport::Handler;

const REGION: usize = 4096;
/// Simulated time for which [`Echo`] works on a request that begins with 0, in nanoseconds.
const LONG_NS: Nanos = 500;

/// A handler that answers with the caller, the number of calls so far, and the request. It answers
/// `[u64::MAX, n]` with n words.
#[derive(Default)]
pub(super) struct Echo {
    served: AtomicU64,
}

impl Handler for Echo {
    fn call(&self, from: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        let served = 1 + self.served.fetch_add(1, Ordering::Relaxed);
        if let [u64::MAX, words] = request {
            reply.resize(*words as usize, 0);
            return;
        }
        reply.extend([u64::from(from.0), served]);
        reply.extend_from_slice(request);
    }

    /// A request that begins with 0 takes longer than what comes behind it.
    fn work(&self, request: &[u64]) -> Nanos {
        if request.first() == Some(&0) { LONG_NS } else { 0 }
    }
}

/// A call is answered once, by the node that it was made to, with the words that were sent. Head
/// and body are one request.
pub fn a_call_is_answered_once(bed: &dyn Bed) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGION], vec![REGION]], seed);
        for node in 0..2 {
            fabric.answer(NodeId(node), Box::new(Echo { served: (100 * u64::from(node)).into() }));
        }
        let stage = Stage::new(&*fabric, 2, seed);
        for turn in 0..bed.turns().min(20) {
            stage.on(2, async |lane| {
                let mut round = lane.round();
                let body = round.stage(&[7; 16]);
                let first = round.call(NodeId(0), &[turn, 5], Some(body), 8);
                let second = round.call(NodeId(1), &[turn], None, 3);
                let beside = round.read(word(1, 3), 8);
                let done = run(lane, round).await;
                let sevens = u64::from_le_bytes([7; 8]);
                assert_eq!(done.reply(first), [2, turn + 1, turn, 5, sevens, sevens]);
                assert_eq!(done.reply(second), [2, 101 + turn, turn]);
                assert_eq!(done.words(beside), [0]);
            });
        }
    }
}

/// A node serves the calls of one endpoint in the order posted, whether they are awaited or not,
/// and whichever lane makes them.
pub fn calls_are_served_in_order(bed: &dyn Bed) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGION]], seed);
        fabric.answer(NodeId(0), Box::new(Echo::default()));
        let stage = Stage::new(&*fabric, 1, seed);
        stage.on(1, async |lane| {
            let mut served = 0;
            for turn in 0..bed.turns().min(30) {
                for _ in 0..turn % 4 {
                    let mut round = lane.round();
                    round.call(NodeId(0), &[turn; 3], None, 8);
                    lane.post(round);
                    served += 1;
                }
                let mut round = lane.round();
                let calls: Vec<_> = (0..3).map(|number| round.call(NodeId(0), &[number], None, 4)).collect();
                let done = run(lane, round).await;
                for (number, call) in (0..).zip(calls) {
                    served += 1;
                    assert_eq!(done.reply(call), [1, served, number]);
                }
            }
            settle(lane).await;
        });
    }
}

/// Clients that call at the same time are told apart, and each call is served alone.
pub fn calls_of_several_clients_are_served(bed: &dyn Bed) {
    const CLIENTS: u64 = 3;
    for seed in 0..bed.runs().min(20) {
        let fabric = bed.fabric(&[vec![REGION]], seed);
        fabric.answer(NodeId(0), Box::new(Echo::default()));
        let turns = bed.turns();
        let bodies = (1..=CLIENTS).map(|number| {
            client(async move |lane: Lane| {
                let mut last = 0;
                for turn in 0..turns {
                    let mut round = lane.round();
                    let call = round.call(NodeId(0), &[turn, number], None, 4);
                    let done = run(&lane, round).await;
                    let reply = done.reply(call);
                    assert_eq!((reply[0], &reply[2..]), (number, &[turn, number][..]));
                    assert!(reply[1] > last, "a later call was served earlier");
                    last = reply[1];
                }
                last
            })
        });
        let last = play(bed, &*fabric, seed, bodies.collect());
        assert_eq!(last.into_iter().max(), Some(CLIENTS * turns), "as many calls were served as were made");
    }
}

/// A node that finds nothing to do may sleep. A call wakes it, whether the call comes while the
/// node falls asleep or later. The answer wakes the client likewise.
pub fn a_call_wakes_a_node_that_has_gone_to_sleep(bed: &dyn Bed) {
    const CALLS: u64 = 1000;
    const LONGEST_NS: u64 = 400_000;
    const A_WAKEUP_WAS_LOST_NS: u64 = 10_000_000_000;
    let fabric = bed.fabric(&[vec![REGION]], 1);
    fabric.answer(NodeId(0), Box::new(Echo::default()));
    let stage = Stage::new(&*fabric, 1, 1);
    stage.on(1, async |lane| {
        for turn in 0..CALLS {
            lane.sleep(lane.random() % LONGEST_NS).await;
            let mut round = lane.round();
            let call = round.call(NodeId(0), &[turn], None, 3);
            let posted = lane.now();
            assert_eq!(run(lane, round).await.reply(call), [1, turn + 1, turn]);
            // An end that was not woken looks only when its patience ends.
            assert!(lane.now() - posted < A_WAKEUP_WAS_LOST_NS, "call {turn} was seen late");
        }
    });
}

/// A call fails the round if the node serves no calls, or if the answer is longer than the room for
/// it. The error names the node. The next round works.
pub fn a_call_that_cannot_be_answered_fails(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION], vec![REGION]], 1);
    fabric.answer(NodeId(0), Box::new(Echo::default()));
    let stage = Stage::new(&*fabric, 1, 1);
    stage.on(1, async |lane| {
        let attempt = async |node: u16, request: &[u64], capacity| {
            let mut round = lane.round();
            let call = round.call(NodeId(node), request, None, capacity);
            lane.execute(round).await.map(|done| done.reply(call).len())
        };
        let error = |node, fault| Err(FabricError { node: NodeId(node), fault });
        assert_eq!(attempt(1, &[1], 4).await, error(1, Fault::NoHandler));
        assert_eq!(attempt(0, &[u64::MAX, 9], 8).await, error(0, Fault::ReplyTooLong { words: 9, capacity: 8 }));
        assert_eq!(attempt(0, &[u64::MAX, 8], 8).await, Ok(8));
        assert_eq!(attempt(0, &[u64::MAX, 0], 0).await, Ok(0));
        assert_eq!(attempt(0, &[], 2).await, Ok(2));
        assert!(matches!(
            attempt(2, &[1], 4).await,
            Err(FabricError { node: NodeId(2), fault: Fault::NoSuchRegion(_) })
        ));
        assert_eq!(peek(lane, word(1, 0), 1).await, [0]);
    });
}

/// A call of the largest size arrives whole, and so does its reply.
pub fn a_large_call_arrives_whole(bed: &dyn Bed) {
    const WORDS: usize = 3500;
    let fabric = bed.fabric(&[vec![REGION]], 1);
    fabric.answer(NodeId(0), Box::new(Echo::default()));
    let stage = Stage::new(&*fabric, 1, 1);
    stage.on(1, async |lane| {
        for turn in 0..40 {
            let request: Vec<u64> = (turn..turn + WORDS as u64).collect();
            let mut round = lane.round();
            let call = round.call(NodeId(0), &request, None, WORDS + 2);
            let done = run(lane, round).await;
            assert_eq!(&done.reply(call)[2..], request);
        }
    });
}
