//! Tests of nodes that die, freeze or lie, and of clients that lie, do not listen, or lose their
//! access in the middle of a WRITE.

mod tcp_support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora_fabric::limits::{FRAME_WORDS_MAX, ROUND_BYTES_MAX, ROUND_VERBS_MAX};
use remora_fabric::tcp::{Loopback, ServerOptions, TcpOptions};
use remora_fabric::{ClientId, Fabric, FabricError, Fault, Handler, Host, Lane, NodeId, Worker, block_on};
use tcp_support::*;

fn down(node: u16) -> FabricError {
    FabricError { node: NodeId(node), fault: Fault::Unreachable }
}

/// Makes three servers, of which the middle one behaves as told.
fn between_good_ones(
    behave: impl Fn(TcpStream) + Send + Sync + 'static,
    options: TcpOptions,
) -> remora_fabric::tcp::Tcp {
    let (_, first) = serve(ServerOptions::default());
    let (_, last) = serve(ServerOptions::default());
    tcp(&[&first, &fake_server(behave), &last], options)
}

/// Checks that rounds to the lost node 1 fail, and that rounds to the other nodes work.
async fn node_1_is_lost(lane: &Lane) {
    for _ in 0..3 {
        assert_eq!(touch(lane, &[1]).await, Err(down(1)));
        assert_eq!(touch(lane, &[0, 1, 2]).await, Err(down(1)));
        touch(lane, &[0, 2]).await.expect("the others go on");
    }
}

#[test]
fn a_node_that_is_stopped_is_named() {
    let fabric = Loopback::new(&[vec![REGION], vec![REGION], vec![REGION]], TcpOptions::default()).unwrap();
    block_on(&fabric, ClientId(1), async |lane| {
        touch(lane, &[0, 1, 2]).await.expect("healthy nodes");
        fabric.stop(NodeId(1));
        let began = Instant::now();
        node_1_is_lost(lane).await;
        assert!(began.elapsed() < Duration::from_secs(1));
    })
    .unwrap();
    assert!(matches!(fabric.connect(ClientId(2)), Err(FabricError { node: NodeId(1), fault: Fault::Refused(_) })));
    // Once the node is known to be gone, clients connect to the others.
    fabric.fail(NodeId(1));
    block_on(&fabric, ClientId(2), node_1_is_lost).unwrap();
}

#[test]
fn limits_without_bounds_are_limits() {
    for patience in [Duration::MAX, Duration::from_secs(1 << 40), Duration::from_secs(100_000)] {
        let (_handle, address) = serve(ServerOptions::default().connections_max(usize::MAX));
        let fabric = tcp(&[&address], TcpOptions { patience, connect_timeout: patience, ..TcpOptions::default() });
        fabric.status(NodeId(0)).expect("an answer");
        for client in 1..20 {
            block_on(&fabric, ClientId(client), async |lane| touch(lane, &[0]).await).unwrap().expect("an answer");
        }
    }
}

/// A node that was added later cannot be reached by an older connection. Other clients may know the
/// node, and rely on it.
#[test]
fn a_node_that_came_later_cannot_be_reached() {
    let ((_, first), (_, second)) = (serve(ServerOptions::default()), serve(ServerOptions::default()));
    let fabric = tcp(&[&first], TcpOptions::default());
    block_on(&fabric, ClientId(1), async |lane| {
        let nowhere = touch(lane, &[1]).await.expect_err("there is no such node").fault;
        assert!(matches!(nowhere, Fault::NoSuchRegion(_)) && !nowhere.lost(), "{nowhere}");
        assert!(fabric.add(second));
        assert_eq!(touch(lane, &[0, 1]).await, Err(down(1)));
        assert!(matches!(touch(lane, &[2]).await, Err(FabricError { fault: Fault::NoSuchRegion(_), .. })));
    })
    .unwrap();
    block_on(&fabric, ClientId(1), async |lane| touch(lane, &[0, 1]).await.expect("who connects now reaches it"))
        .unwrap();
}

#[test]
fn who_asks_whether_a_node_answers_does_not_wait_for_it() {
    // The system accepts connections for this node, and no program ever greets.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_server, lives) = serve(ServerOptions::default());
    let fabric = tcp(&[&silent.local_addr().unwrap().to_string(), &lives], TcpOptions::default());
    let began = Instant::now();
    assert!(!fabric.answers(NodeId(1)), "nothing has been heard of it yet");
    while !fabric.answers(NodeId(1)) {
        assert!(!fabric.answers(NodeId(0)));
        // Nothing reports when an answer has been heard, so look from time to time.
        thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..1_000 {
        assert!(!fabric.answers(NodeId(0)));
    }
    assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
    // A thousand questions have led to one connection.
    silent.set_nonblocking(true).unwrap();
    let asked = silent.incoming().take_while(Result::is_ok).count();
    assert!(asked <= 1, "{asked} were asked at a time");
}

#[test]
fn a_node_that_dies_with_rounds_in_flight_is_named() {
    let dies = |mut stream: TcpStream| _ = stream.read_exact(&mut [0; 16]);
    let fabric = between_good_ones(dies, TcpOptions::default());
    let worker = Worker::new();
    let endpoint = worker.connect(&fabric, ClientId(1)).unwrap();
    let lanes: Vec<Lane> = (0..8).map(|seed| worker.lane(&endpoint, seed).unwrap()).collect();
    let began = Instant::now();
    worker.run(lanes.iter().map(|lane| {
        (lane.id(), async {
            let mut background = lane.round();
            background.fetch_add(word(1, 0), 1);
            lane.post(background);
            assert_eq!(touch(lane, &[0, 1, 2]).await, Err(down(1)));
            lane.endpoint().failures();
            node_1_is_lost(lane).await;
        })
    }));
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_node_that_freezes_is_named_within_the_patience() {
    let patience = Duration::from_millis(300);
    let fabric = between_good_ones(
        |stream| {
            // It reads everything and answers nothing, for ever.
            thread::spawn(move || drain(&stream));
        },
        TcpOptions { patience, ..TcpOptions::default() },
    );
    block_on(&fabric, ClientId(1), async |lane| {
        let began = Instant::now();
        assert_eq!(touch(lane, &[0, 1, 2]).await, Err(down(1)));
        let took = began.elapsed();
        assert!(took >= patience && took < patience + Duration::from_millis(200), "it took {took:?}");
        node_1_is_lost(lane).await;
        assert!(began.elapsed() < took + Duration::from_millis(100), "it was waited for again");
    })
    .unwrap();
}

/// Time that a worker spends elsewhere does not count as time in which a node was silent.
#[test]
fn a_busy_client_does_not_take_its_nodes_for_dead() {
    let options = TcpOptions { patience: Duration::from_millis(100), ..TcpOptions::default() };
    let fabric = Loopback::new(&[vec![REGION]], options).unwrap();
    block_on(&fabric, ClientId(1), async |lane| {
        for _ in 0..3 {
            let mut round = lane.round();
            let read = round.read(word(0, 0), 8);
            let posted = lane.execute(round);
            thread::sleep(Duration::from_millis(200)); // before it is sent
            assert_eq!(posted.await.expect("a healthy node").words(read).len(), 1);
            let mut round = lane.round();
            round.fetch_add(word(0, 0), 1);
            let posted = lane.execute(round);
            lane.sleep(1).await;
            thread::sleep(Duration::from_millis(200)); // after it was sent
            posted.await.expect("a healthy node");
        }
    })
    .unwrap();
}

#[test]
fn a_node_that_talks_garbage_is_lost() {
    let answers: [&'static [u64]; 6] = [
        &[u64::MAX, 0],
        &[2, 999],            // no such ticket
        &[3, 1, 7],           // an answer to no request
        &[2, 1],              // no answer
        &[9 << 32 | 2, 1],    // no such status
        &[1 << 32 | 3, 1, 7], // half a fault
    ];
    for answer in answers {
        let fabric = between_good_ones(
            move |mut stream| {
                let mut head = [0; 8];
                stream.read_exact(&mut head).unwrap();
                stream.write_all(&bytes(answer)).unwrap();
                thread::spawn(move || drain(&stream));
            },
            TcpOptions::default(),
        );
        block_on(&fabric, ClientId(1), async |lane| {
            let mut round = lane.round();
            let two = [round.fetch_add(word(1, 0), 1), round.fetch_add(word(1, 0), 1)];
            assert_eq!(lane.execute(round).await.map(|done| done.added(two[0])), Err(down(1)));
            node_1_is_lost(lane).await;
        })
        .unwrap();
    }
}

#[test]
fn clients_that_talk_garbage_disturb_nobody() {
    let (server, address) = serve(ServerOptions::default());
    let fabric = tcp(&[&address], TcpOptions::default());
    let (stop, turns) = (AtomicBool::new(false), 3u64);
    /// Stops the threads, also when an assertion fails, so that the test ends.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let stopping = Stop(&stop);
        let good = scope.spawn(|| {
            block_on(&fabric, ClientId(1), async |lane| {
                let mut sum = 0;
                // The loop runs at least once: on a busy machine the other threads may be done
                // before it begins.
                while sum == 0 || !stop.load(Ordering::Relaxed) {
                    assert_eq!(touch(lane, &[0]).await, Ok(vec![sum]));
                    sum += 1;
                }
                sum
            })
        });
        let round = |words: u64| 1 << 32 | words;
        let garbage: [&[u64]; 9] = [
            &[u64::MAX; 8],
            &[round(FRAME_WORDS_MAX as u64 + 1), 0],
            &[round(1), 0],
            &[round(4), 0, 1, 4],               // an unaligned READ
            &[round(4), 0, 9_000 << 32 | 1, 0], // more than a round reads
            &[round(4), 0, 9 << 32 | 2, 0],     // a WRITE that leaves its frame
            &[round(3), 0, 99],                 // no such verb
            &[round(4), 0, 5, u64::MAX],        // a CALL with room for everything
            &[3 << 32 | 2, 0],                  // a question for administration
        ];
        for _ in 0..turns {
            for words in garbage {
                let mut stream = raw_client(&address, 7);
                stream.write_all(&bytes(words)).unwrap();
                assert_eq!(drain(&stream), 0, "{words:x?} was answered");
            }
            let admin = {
                let mut hello = client_hello(0);
                hello[20] = 2;
                hello.extend([0; 32]);
                let mut stream = TcpStream::connect(&address).unwrap();
                stream.write_all(&hello).unwrap();
                stream.write_all(&bytes(&[round(4), 0, 1 << 32 | 1, 0])).unwrap();
                stream
            };
            assert!(drain(&admin) <= 160, "administration has executed a verb");
            // The client sends half a frame, and then nothing.
            let mut stream = raw_client(&address, 7);
            stream.write_all(&bytes(&[round(9), 0])).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(drain(&stream), 0);
        }
        drop(stopping);
        assert!(good.join().unwrap().unwrap() > 0);
    });
    while server.status().connections > 0 {
        thread::yield_now();
    }
    assert!(is_healthy(&fabric));
}

/// Starts one server with several threads, and no key.
fn threaded(threads: usize) -> Loopback {
    let servers = ServerOptions::default().threads(threads);
    let options = TcpOptions { patience: Duration::from_secs(30), ..TcpOptions::default() };
    Loopback::with_servers(&[vec![REGION]], &servers, options).unwrap()
}

/// Several rounds of 32 KiB are under way when the access is revoked. When the revocation is
/// confirmed, memory does not change any more, even if another thread of the node has the client's
/// connection.
#[test]
fn nothing_lands_after_a_revocation_that_met_many_writes() {
    const WORDS: usize = (32 << 10) / 8;
    const LANES: u64 = 16;
    for seed in 0..10 {
        let fabric = threaded(1 + seed as usize % 3);
        let region = fabric.region(NodeId(0), remora_fabric::RegionId(0)).unwrap();
        let snapshot = || region.words().iter().map(|word| word.load(Ordering::SeqCst)).collect::<Vec<_>>();
        thread::scope(|scope| {
            scope.spawn(|| {
                let worker = Worker::new();
                let endpoint = worker.connect(&fabric, ClientId(1)).unwrap();
                let lanes: Vec<Lane> = (0..LANES).map(|seed| worker.lane(&endpoint, seed).unwrap()).collect();
                worker.run(lanes.iter().zip(0..).map(|(lane, number)| {
                    (lane.id(), async move {
                        for turn in 1.. {
                            let mut round = lane.round();
                            round.write_words(word(0, number * WORDS as u64), &vec![turn; WORDS]);
                            if let Err(error) = lane.execute(round).await {
                                assert_eq!(error, FabricError { node: NodeId(0), fault: Fault::Revoked });
                                return;
                            }
                        }
                    })
                }));
            });
            while snapshot()[0] < 3 {
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(137 * seed));
            fabric.revoke(ClientId(1)).expect("the node confirms");
            let frozen = snapshot();
            for _ in 0..5 {
                thread::sleep(Duration::from_millis(1));
                assert!(snapshot() == frozen, "something landed after the revocation");
            }
        });
    }
}

/// A handler that says whether two calls were in it at the same time. Each waits for the other, but
/// not for longer than this.
struct Meets(Duration, AtomicU64);

impl Handler for Meets {
    fn call(&self, _: ClientId, _: &[u64], reply: &mut Vec<u64>) {
        let Meets(patience, calls) = self;
        calls.fetch_add(1, Ordering::SeqCst);
        let began = Instant::now();
        while calls.load(Ordering::SeqCst) < 2 && began.elapsed() < *patience {
            thread::yield_now();
        }
        reply.push(calls.load(Ordering::SeqCst));
    }
}

/// The clients of a node are divided among its threads, which serve them at the same time.
#[test]
fn threads_serve_different_clients_at_the_same_time() {
    for (threads, patience) in [(1, Duration::from_millis(100)), (2, Duration::from_secs(20))] {
        let fabric = threaded(threads);
        fabric.answer(NodeId(0), Box::new(Meets(patience, 0.into())));
        // Both are connected before either calls.
        let connected = Barrier::new(2);
        let met = thread::scope(|scope| {
            let call = |client| {
                let (fabric, connected) = (&fabric, &connected);
                scope.spawn(move || {
                    let call = async |lane: &Lane| {
                        connected.wait();
                        let mut round = lane.round();
                        let call = round.call(NodeId(0), &[], None, 1);
                        lane.execute(round).await.expect("a healthy node").reply(call)[0]
                    };
                    block_on(fabric, ClientId(client), call).expect("a client")
                })
            };
            let calls = [call(1), call(2)];
            calls.into_iter().map(|call| call.join().expect("a client")).min()
        });
        assert_eq!(met, Some(threads as u64));
    }
}

/// Threads of a node revoke clients of each other, and the node forgets everything, all at the same
/// time. Every order is carried out, and the node goes on.
#[test]
fn orders_that_cross_each_other_are_all_carried_out() {
    struct Forgets;
    impl Handler for Forgets {
        fn call(&self, _: ClientId, _: &[u64], _: &mut Vec<u64>) {}

        fn forget(&self, _: &[u64], cut: &mut dyn FnMut()) {
            cut();
        }
    }
    const ORDERS: u32 = 20;
    let fabric = threaded(3);
    fabric.answer(NodeId(0), Box::new(Forgets));
    thread::scope(|scope| {
        for thread in 0..6 {
            let fabric = &fabric;
            scope.spawn(move || {
                for order in 0..ORDERS {
                    let client = ClientId(1_000 + thread * ORDERS + order);
                    // Another thread may make the node forget, which ends connections.
                    let endpoint = fabric.connect(client).ok();
                    if order % 5 == 4 {
                        let _ = fabric.forget(NodeId(0), &[]);
                    }
                    while fabric.revoke(client).is_err() {}
                    drop(endpoint);
                    let touched = block_on(fabric, client, async |lane| touch(lane, &[0]).await);
                    assert!(!matches!(touched, Ok(Ok(_))), "{client:?} has no access any more");
                }
            });
        }
    });
    assert!(is_healthy(&fabric));
    assert_eq!(fabric.server(NodeId(0)).unwrap().status().revoked, u64::from(6 * ORDERS));
}

/// The answers of background rounds ride on other answers, or leave together after a while.
#[test]
fn answers_that_nobody_awaits_are_not_sent_for_their_own_sake() {
    const TURNS: u64 = 200;
    let fabric = Loopback::new(&[vec![REGION]], TcpOptions::default()).unwrap();
    let server = fabric.server(NodeId(0)).unwrap();
    block_on(&fabric, ClientId(1), async |lane| {
        touch(lane, &[0]).await.unwrap();
        let before = server.status();
        for turn in 0..TURNS {
            let mut background = lane.round();
            background.write_words(word(0, 9), &[turn]);
            lane.post(background);
            lane.sleep(0).await; // it is sent by itself
            touch(lane, &[0]).await.unwrap();
        }
        let after = server.status();
        assert!(after.frames - before.frames >= 2 * TURNS);
        let sends = after.sends - before.sends;
        assert!((TURNS..TURNS + TURNS / 4).contains(&sends), "{TURNS} answers were awaited, {sends} were sent");
        // No coroutine awaits an answer. It still comes, after a millisecond and not much later.
        let began = Instant::now();
        let mut background = lane.round();
        background.write_words(word(0, 9), &[TURNS]);
        lane.post(background);
        while lane.background() > 0 {
            lane.sleep(50_000).await;
        }
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    })
    .unwrap();
}

/// A round that writes one piece to several places of a node can be longer than a frame. It arrives
/// whole.
#[test]
fn a_round_larger_than_a_frame_arrives_whole() {
    const WORDS: usize = ROUND_BYTES_MAX / 8 - 1;
    let fabric =
        Loopback::new(&[vec![ROUND_VERBS_MAX * ROUND_BYTES_MAX], vec![REGION]], TcpOptions::default()).unwrap();
    block_on(&fabric, ClientId(1), async |lane| {
        let mut round = lane.round();
        let staged = round.stage_words(WORDS);
        round.staged_mut(staged).iter_mut().zip(1..).for_each(|(word, value)| *word = value);
        for place in 0..ROUND_VERBS_MAX as u64 - 2 {
            round.write_staged(word(0, place * 8192), staged);
        }
        round.write_staged(word(1, 0), staged);
        let last = round.read(word(0, (ROUND_VERBS_MAX as u64 - 3) * 8192 + WORDS as u64 - 1), 8);
        let done = lane.execute(round).await.expect("healthy nodes");
        assert_eq!(done.words(last), [WORDS as u64]);
    })
    .unwrap();
}

/// A posted round runs, even if its endpoint is dropped at once.
#[test]
fn a_dropped_endpoint_leaves_nothing_behind() {
    let fabric = Loopback::new(&[vec![REGION]], TcpOptions::default()).unwrap();
    for turn in 1..=20 {
        block_on(&fabric, ClientId(1), async |lane| {
            for place in 0..10 {
                let mut round = lane.round();
                round.write_words(word(0, place * 4_000), &vec![turn; 4_000]);
                lane.post(round);
            }
        })
        .unwrap();
        let region = fabric.region(NodeId(0), remora_fabric::RegionId(0)).unwrap();
        assert!(region.words()[..40_000].iter().all(|word| word.load(Ordering::SeqCst) == turn));
    }
}

/// A server without work uses no CPU, and neither does a client that waits.
#[test]
fn idling_uses_no_cpu() {
    let fabric = Loopback::new(&[vec![REGION]], TcpOptions::default()).unwrap();
    block_on(&fabric, ClientId(1), async |lane| {
        touch(lane, &[0]).await.unwrap();
        let ticks = || -> u64 {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        };
        let before = ticks();
        lane.sleep(500_000_000).await;
        assert!(ticks() - before <= 3, "{} ticks of 10 ms in half a second", ticks() - before);
    })
    .unwrap();
}

/// A service of the node runs when memory has changed, and only then. A service that panics is
/// removed, and nothing else is.
#[test]
fn services_are_woken_by_writes_and_their_time_is_counted() {
    services_are_woken(1);
    services_are_woken(2);
}

/// The last of `threads` threads serves the WRITEs. The first has the services.
fn services_are_woken(threads: usize) {
    struct Busy(std::sync::Arc<std::sync::atomic::AtomicU64>);
    impl remora_fabric::Service for Busy {
        fn step(&mut self) -> remora_fabric::Progress {
            self.0.fetch_add(1, Ordering::SeqCst);
            let began = Instant::now();
            while began.elapsed() < Duration::from_micros(200) {}
            remora_fabric::Progress::Idle
        }
    }
    struct Panics;
    impl remora_fabric::Service for Panics {
        fn step(&mut self) -> remora_fabric::Progress {
            panic!("a service that panics, as it should in this test")
        }
    }
    let (server, address) = serve(ServerOptions::default().threads(threads));
    let steps = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
    let panics = server.serve(Box::new(Panics));
    let service = server.serve(Box::new(Busy(steps.clone())));
    let fabric = tcp(&[&address], TcpOptions::default());
    let _others: Vec<_> = (1..threads).map(|_| fabric.connect(ClientId(2)).expect("room")).collect();
    thread::sleep(Duration::from_millis(400)); // its naps have ended
    let idle = steps.load(Ordering::SeqCst);
    block_on(&fabric, ClientId(1), async |lane| {
        for turn in 1..=5 {
            let mut round = lane.round();
            round.read(word(0, 0), 8);
            lane.execute(round).await.expect("a healthy node");
            lane.sleep(10_000_000).await;
            let before = steps.load(Ordering::SeqCst);
            let mut round = lane.round();
            round.write_words(word(0, 0), &[turn]);
            lane.execute(round).await.expect("a healthy node");
            lane.sleep(10_000_000).await;
            assert!(steps.load(Ordering::SeqCst) > before, "a WRITE wakes the services");
        }
    })
    .unwrap();
    thread::sleep(Duration::from_millis(400));
    let woken = steps.load(Ordering::SeqCst);
    assert!(woken - idle < 40, "{} steps for five WRITEs", woken - idle);
    assert!(service.cpu_ns() >= 100_000 * woken && server.status().service_cpu_ns >= service.cpu_ns());
    drop((service, panics));
    server.wake();
    thread::sleep(Duration::from_millis(20));
    assert_eq!(steps.load(Ordering::SeqCst), woken);
}
