//! Tests of calls through the mailboxes of shared memory that the contract's rows leave open or
//! cannot reach.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use remora_fabric::shm::Shm;
use remora_fabric::{
    Address, ClientId, Fabric, FabricError, Fault, Handler, Host, Lane, NodeId, RegionId, Worker, block_on,
};

fn word(node: u16, index: usize) -> Address {
    Address { node: NodeId(node), region: RegionId(0), offset: 8 * index as u64 }
}

fn fabric(nodes: usize) -> Shm {
    Shm::new(&vec![vec![4096]; nodes]).expect("a test's memory")
}

/// A handler that is made from a closure.
struct With<F>(F);

impl<F: Fn(ClientId, &[u64], &mut Vec<u64>) + Send + Sync> Handler for With<F> {
    fn call(&self, from: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        (self.0)(from, request, reply);
    }
}

fn echo(fabric: &Shm, node: u16) {
    fabric.answer(NodeId(node), Box::new(With(|_, request: &[u64], reply: &mut Vec<u64>| reply.extend(request))));
}

fn error(node: u16, fault: Fault) -> FabricError {
    FabricError { node: NodeId(node), fault }
}

/// There are more calls than any ring holds, of all sizes. Calls that find no room wait, and keep
/// their order.
#[test]
fn calls_that_find_no_room_wait_their_turn() {
    let fabric = fabric(1);
    let next = Arc::new(AtomicU64::new(0));
    let served = next.clone();
    let handler = move |_, request: &[u64], reply: &mut Vec<u64>| {
        assert_eq!(request[0], served.fetch_add(1, Ordering::Relaxed));
        reply.extend(request);
    };
    fabric.answer(NodeId(0), Box::new(With(handler)));
    block_on(&fabric, ClientId(1), async |lane| {
        let mut number = 0;
        for _ in 0..20 {
            let mut posted = Vec::new();
            for _ in 0..40 {
                let mut round = lane.round();
                let request: Vec<u64> = (number..number + number * 97 % 4000 + 1).collect();
                let call = round.call(NodeId(0), &request, None, request.len());
                posted.push((request, call, lane.execute(round)));
                number += 1;
            }
            // The last call is awaited first. It still completes last.
            while let Some((request, call, execute)) = posted.pop() {
                assert_eq!(execute.await.expect("a healthy node").reply(call), request);
            }
        }
    })
    .expect("a connection");
}

/// A verb behind a fence sees the call's effect, and so do the rounds that are posted later. A
/// failure ends them.
#[test]
fn a_fence_waits_for_replies_and_later_rounds_wait_behind_it() {
    let fabric = fabric(2);
    let region = fabric.region(NodeId(0), RegionId(0)).expect("its memory");
    let handler = move |_, request: &[u64], _: &mut Vec<u64>| {
        thread::sleep(Duration::from_micros(300));
        region.words()[0].store(request[0], Ordering::Release);
    };
    fabric.answer(NodeId(0), Box::new(With(handler)));
    block_on(&fabric, ClientId(1), async |lane| {
        for turn in 1..200 {
            let mut round = lane.round();
            let early = round.read(word(0, 0), 8);
            round.call(NodeId(0), &[turn], None, 0);
            round.after_completion();
            let late = round.read(word(0, 0), 8);
            round.write_words(word(1, 1), &[turn]);
            let fenced = lane.execute(round);
            // Rule 1 orders this READ behind that WRITE.
            let mut round = lane.round();
            let behind = round.read(word(1, 1), 8);
            let second = lane.execute(round);
            let done = second.await.expect("healthy nodes");
            assert_eq!(done.words(behind), [turn]);
            let done = fenced.await.expect("healthy nodes");
            assert_eq!((done.words(early), done.words(late)), (&[turn - 1][..], &[turn][..]));
        }
        let mut round = lane.round();
        round.call(NodeId(0), &[7], None, 0);
        round.after_completion();
        round.call(NodeId(1), &[7], None, 0);
        round.after_completion();
        round.write_words(word(1, 1), &[9999]);
        let posted = lane.execute(round);
        let mut round = lane.round();
        let behind = round.read(word(1, 1), 8);
        let second = lane.execute(round);
        assert_eq!(posted.await.err(), Some(error(1, Fault::NoHandler)));
        assert_eq!(second.await.expect("healthy nodes").words(behind), [199]);
    })
    .expect("a connection");
}

/// After `revoke`, no call of the client is served, whether it was in its mailbox or still waiting.
/// `revoke` waits for a call that is being served.
#[test]
fn a_revoked_clients_calls_are_not_served() {
    for turn in 0..20 {
        let fabric = fabric(1);
        let (serving, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (inside, count) = (serving.clone(), served.clone());
        let handler = move |from: ClientId, _: &[u64], _: &mut Vec<u64>| {
            inside.store(from == ClientId(1), Ordering::SeqCst);
            thread::sleep(Duration::from_micros(500));
            count.fetch_add(u64::from(from == ClientId(1)), Ordering::SeqCst);
            inside.store(false, Ordering::SeqCst);
        };
        fabric.answer(NodeId(0), Box::new(With(handler)));
        let posted = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                block_on(&fabric, ClientId(1), async |lane| {
                    let mut calls = Vec::new();
                    for _ in 0..30 {
                        let mut round = lane.round();
                        round.call(NodeId(0), &[0; 1000], None, 0);
                        calls.push(lane.execute(round));
                    }
                    posted.wait();
                    let last = calls.pop().expect("the last").await;
                    assert_eq!(last.err(), Some(error(0, Fault::Revoked)));
                })
                .expect("a connection");
            });
            posted.wait();
            thread::sleep(Duration::from_micros(100 * turn));
            fabric.revoke(ClientId(1)).expect("the node confirms");
            assert!(!serving.load(Ordering::SeqCst), "a call is being served");
            let frozen = served.load(Ordering::SeqCst);
            thread::sleep(Duration::from_millis(3));
            assert_eq!(served.load(Ordering::SeqCst), frozen, "a call was served after the revocation");
        });
        // The client's channel is free, the server is well, and other clients are served.
        block_on(&fabric, ClientId(2), async |lane| {
            let mut round = lane.round();
            round.call(NodeId(0), &[], None, 0);
            lane.execute(round).await.expect("a healthy node");
        })
        .expect("a connection");
    }
}

/// `revoke` waits for a call that is being served, even if the client itself is closing the channel
/// already.
#[test]
fn a_revocation_waits_for_a_channel_that_its_client_closes() {
    let fabric = fabric(1);
    let (serving, release) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (inside, released) = (serving.clone(), release.clone());
    let handler = move |_, _: &[u64], _: &mut Vec<u64>| {
        inside.store(true, Ordering::SeqCst);
        while !released.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_micros(100));
        }
        inside.store(false, Ordering::SeqCst);
    };
    fabric.answer(NodeId(0), Box::new(With(handler)));
    let left = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            block_on(&fabric, ClientId(1), async |lane| {
                let mut round = lane.round();
                round.call(NodeId(0), &[], None, 0);
                drop(lane.execute(round));
                while !serving.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                left.store(true, Ordering::SeqCst);
            })
            .expect("a connection");
        });
        while !left.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        // It does not show from outside that the client has begun to close. If the client has not
        // begun after this time, the test proves less, and does not fail.
        thread::sleep(Duration::from_millis(20));
        scope.spawn(|| {
            // The call is being served while the revocation begins.
            thread::sleep(Duration::from_millis(20));
            release.store(true, Ordering::SeqCst);
        });
        fabric.revoke(ClientId(1)).expect("the node confirms");
        assert!(!serving.load(Ordering::SeqCst), "a call is being served");
    });
}

/// A node that is taken away fails the calls that wait for it, at once. The replies of other nodes
/// still come.
#[test]
fn a_node_that_is_taken_away_fails_its_calls() {
    let fabric = fabric(2);
    let slow = |_, _: &[u64], _: &mut Vec<u64>| thread::sleep(Duration::from_millis(300));
    fabric.answer(NodeId(0), Box::new(With(slow)));
    echo(&fabric, 1);
    block_on(&fabric, ClientId(1), async |lane: &Lane| {
        let mut round = lane.round();
        round.call(NodeId(0), &[], None, 0);
        round.call(NodeId(1), &[1], None, 1);
        let both = lane.execute(round);
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                fabric.fail(NodeId(0));
            });
        });
        assert_eq!(both.await.err(), Some(error(0, Fault::Unreachable)));
        assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
        for number in 0..100 {
            let mut round = lane.round();
            let call = round.call(NodeId(1), &[number], None, 1);
            assert_eq!(lane.execute(round).await.expect("a healthy node").reply(call), [number]);
        }
    })
    .expect("a connection");
}

/// A handler that panics serves no more, and the calls to it fail instead of waiting.
#[test]
fn a_handler_that_panics_serves_no_more() {
    let fabric = fabric(1);
    let handler = |_, request: &[u64], _: &mut Vec<u64>| assert_ne!(request[0], 2, "planned");
    fabric.answer(NodeId(0), Box::new(With(handler)));
    let call = |number| {
        block_on(&fabric, ClientId(1), async |lane| {
            let mut round = lane.round();
            round.call(NodeId(0), &[number], None, 0);
            lane.execute(round).await.map(drop)
        })
    };
    assert_eq!(call(1), Ok(Ok(())));
    assert_eq!(call(2), Ok(Err(error(0, Fault::NoHandler))));
    assert_eq!(call(1), Ok(Err(error(0, Fault::NoHandler))));
    echo(&fabric, 0);
    assert_eq!(call(2), Ok(Err(error(0, Fault::ReplyTooLong { words: 1, capacity: 0 }))));
}

/// Calls come now and then, so both sides park in between. No wake is lost, and the channel of a
/// dropped endpoint is used again.
#[test]
fn sides_that_park_are_woken() {
    let fabric = fabric(2);
    let slow = |_, request: &[u64], reply: &mut Vec<u64>| {
        thread::sleep(Duration::from_micros(request[0] % 3 * 40));
        reply.extend(request);
    };
    fabric.answer(NodeId(0), Box::new(With(slow)));
    fabric.answer(NodeId(1), Box::new(With(slow)));
    for life in 0..1500 {
        let worker = Worker::new();
        let endpoint = worker.connect(&fabric, ClientId(1)).expect("a connection");
        let lane = worker.lane(&endpoint, life).expect("a lane");
        worker.run([(lane.id(), async {
            for turn in 0..3 {
                let mut round = lane.round();
                let calls = [0, 1].map(|node| round.call(NodeId(node), &[life + turn], None, 1));
                let done = lane.execute(round).await.expect("healthy nodes");
                assert!(calls.iter().all(|call| done.reply(*call) == [life + turn]));
                if turn == 1 {
                    lane.sleep(life % 5 * 20_000).await;
                }
            }
            // One more round, which no coroutine awaits.
            let mut round = lane.round();
            round.call(NodeId(0), &[0], None, 1);
            lane.post(round);
        })]);
    }
}
