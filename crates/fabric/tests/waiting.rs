//! Tests of waiting in one place: no wake is missed, whatever it is that comes. Each test runs
//! until a missed wake would have shown, as a wait that takes seconds.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use remora_fabric::poller::{Bell, Interest, Poller};
use remora_fabric::shm::Shm;
use remora_fabric::tcp::{Loopback, TcpOptions};
use remora_fabric::waiting::{WORKER, now};
use remora_fabric::{Address, ClientId, Fabric, Handler, Host, Lane, NodeId, RegionId, Run, Turn, Turned, Worker};

/// A wait of this length has missed its wake.
const MISSED: Duration = Duration::from_secs(5);

fn word(node: u16, index: usize) -> Address {
    Address { node: NodeId(node), region: RegionId(0), offset: 8 * index as u64 }
}

/// The place where a thread waits.
struct Place {
    poller: Poller,
    bell: Arc<Bell>,
}

impl Place {
    fn new() -> Place {
        let bell = Arc::new(Bell::new().unwrap());
        Place { poller: Poller::new(&bell).unwrap(), bell }
    }

    /// Waits as a thread does that has nothing to do.
    fn wait<T>(&mut self, run: &Run<'_, T>) {
        let began = Instant::now();
        run.wait_in(&mut self.poller, &self.bell, Some(now() + 2 * MISSED.as_nanos() as u64));
        assert!(began.elapsed() < MISSED, "a wake was missed");
    }

    /// Runs coroutines to their end.
    fn drive<T>(&mut self, mut run: Run<'_, T>) {
        run.ring(&self.bell);
        loop {
            match run.turn() {
                Turned::Finished => return,
                Turned::Ready => {}
                Turned::Waiting(_) => self.wait(&run),
            }
        }
    }
}

/// A worker with lanes.
fn worker(fabric: &dyn Fabric, lanes: usize) -> (Worker, Vec<Lane>) {
    let worker = Worker::new();
    let endpoint = worker.connect(fabric, ClientId(1)).unwrap();
    let lanes = (0..lanes).map(|seed| worker.lane(&endpoint, seed as u64).unwrap()).collect();
    (worker, lanes)
}

fn shm() -> Shm {
    Shm::new(&[vec![4096], vec![4096]]).unwrap()
}

fn loopback() -> Loopback {
    Loopback::new(&[vec![4096], vec![4096]], TcpOptions::default()).unwrap()
}

/// A count that another thread raises, and a coroutine waits for.
#[derive(Default)]
struct Signal {
    count: AtomicU64,
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    fn raise(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }

    async fn reaches(&self, count: u64) {
        poll_fn(|context| {
            *self.waker.lock().unwrap() = Some(context.waker().clone());
            if self.count.load(Ordering::SeqCst) >= count { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Spins for a time that differs from turn to turn.
fn spin(turn: u64) {
    for _ in 0..turn.wrapping_mul(0x9e37_79b9) % 3000 {
        std::hint::spin_loop();
    }
}

/// Another thread and a coroutine wake each other, on each fabric.
#[test]
fn a_wake_of_another_thread_ends_a_wait() {
    let (shm, loopback) = (shm(), loopback());
    let fabrics: [&dyn Fabric; 2] = [&shm, &loopback];
    for fabric in fabrics {
        const TURNS: u64 = 20_000;
        let (there, back) = (&Signal::default(), &AtomicU64::new(0));
        let (worker, lanes) = worker(fabric, 1);
        thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..TURNS {
                    spin(turn);
                    there.raise();
                    while back.load(Ordering::SeqCst) <= turn {
                        thread::yield_now();
                    }
                }
            });
            let body = async {
                for turn in 1..=TURNS {
                    there.reaches(turn).await;
                    back.fetch_add(1, Ordering::SeqCst);
                }
            };
            Place::new().drive(worker.start([(lanes[0].id(), body)]));
        });
    }
}

/// Answers come over TCP while the worker's thread waits, and while it is busy. Then the stand-in
/// takes some of them.
#[test]
fn an_answer_over_tcp_ends_a_wait() {
    let fabric = loopback();
    let (worker, lanes) = worker(&fabric, 3);
    let body = async |lane: &Lane| {
        for turn in 0..2_000u64 {
            // A round that no coroutine awaits is what the stand-in looks after.
            let mut background = lane.round();
            background.write(word((turn % 2) as u16, usize::from(lane.id().0)), &turn.to_le_bytes());
            lane.post(background);
            let mut round = lane.round();
            let read = round.read(word((turn % 2) as u16, usize::from(lane.id().0)), 8);
            let done = lane.execute(round);
            if turn.is_multiple_of(16) {
                lane.sleep(0).await;
                thread::sleep(Duration::from_micros(300));
            }
            assert_eq!(done.await.unwrap().words(read), [turn]);
        }
    };
    let started = worker.start(lanes.iter().map(|lane| (lane.id(), body(lane))));
    Place::new().drive(started);
}

/// A handler that is slow now and then.
struct Slow;

impl Handler for Slow {
    fn call(&self, _: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        if request[0].is_multiple_of(100) {
            thread::sleep(Duration::from_millis(3));
        }
        reply.extend(request);
    }
}

/// Replies to calls lie in memory, which no poller watches.
#[test]
fn a_reply_on_shared_memory_ends_a_wait() {
    let fabric = shm();
    fabric.answer(NodeId(0), Box::new(Slow));
    let (worker, lanes) = worker(&fabric, 2);
    let body = async |lane: &Lane| {
        for turn in 0..500u64 {
            let mut round = lane.round();
            let call = round.call(NodeId(0), &[turn], None, 1);
            assert_eq!(lane.execute(round).await.unwrap().reply(call), [turn]);
        }
    };
    Place::new().drive(worker.start(lanes.iter().map(|lane| (lane.id(), body(lane)))));
}

#[test]
fn a_timer_ends_a_wait_in_time() {
    let (shm, loopback) = (shm(), loopback());
    let fabrics: [&dyn Fabric; 2] = [&shm, &loopback];
    for fabric in fabrics {
        let (worker, lanes) = worker(fabric, 1);
        let lane = &lanes[0];
        let body = async {
            for time in [0, 1_000, 15_000, 100_000, 3_000_000, 30_000_000] {
                let began = lane.now();
                lane.sleep(time).await;
                let slept = lane.now() - began;
                assert!((time..time + 1_000_000_000).contains(&slept), "{slept} for {time}");
            }
        };
        Place::new().drive(worker.start([(lane.id(), body)]));
    }
}

/// A socket of the thread's own is shown beside the answers, and the end of a wait by one of them
/// loses nothing of the other.
#[test]
fn a_socket_ends_a_wait() {
    let fabric = loopback();
    let (worker, lanes) = worker(&fabric, 1);
    let lane = &lanes[0];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut ours = listener.accept().unwrap().0;
    const TURNS: u64 = 3_000;
    let mut place = Place::new();
    place.poller.add(&ours, 7, Interest::IN | Interest::ET).unwrap();
    let other = thread::spawn(move || {
        for turn in 0..TURNS {
            theirs.write_all(&[turn as u8]).unwrap();
            let mut back = [0];
            theirs.read_exact(&mut back).unwrap();
            assert_eq!(back[0], turn as u8);
            spin(turn);
        }
    });
    let body = async {
        loop {
            let mut round = lane.round();
            round.read(word(1, 0), 8);
            lane.execute(round).await.unwrap();
            lane.sleep(50_000).await;
        }
    };
    let mut run = worker.start([(lane.id(), body)]);
    run.ring(&place.bell);
    let mut echoed = 0;
    while echoed < TURNS {
        if run.turn() == Turned::Ready {
            run.wait_in(&mut place.poller, &place.bell, Some(0));
        } else {
            place.wait(&run);
        }
        for (token, _) in (0..).map_while(|number| place.poller.event(number)) {
            assert!(token == 7 || token >= WORKER);
            if token == 7 {
                let mut byte = [0];
                ours.read_exact(&mut byte).unwrap();
                ours.write_all(&byte).unwrap();
                echoed += 1;
            }
        }
    }
    drop(run);
    other.join().unwrap();
}

/// A node dies while the worker waits for it, and another client's node is taken away.
#[test]
fn the_end_of_a_node_ends_a_wait() {
    for by_the_fabric in [false, true] {
        let fabric = Arc::new(loopback());
        let (worker, lanes) = worker(&*fabric, 1);
        let lane = &lanes[0];
        fabric.answer(NodeId(1), Box::new(Hangs));
        let killer = fabric.clone();
        let kill = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            if by_the_fabric { killer.tcp().fail(NodeId(1)) } else { killer.stop(NodeId(1)) }
        });
        let body = async {
            let mut round = lane.round();
            round.call(NodeId(1), &[1], None, 1);
            // A server that is stopped first ends the call that it serves.
            assert!(lane.execute(round).await.is_err() || !by_the_fabric);
        };
        Place::new().drive(worker.start([(lane.id(), body)]));
        kill.join().unwrap();
    }
}

/// A handler that answers late.
struct Hangs;

impl Handler for Hangs {
    fn call(&self, _: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        thread::sleep(Duration::from_millis(700));
        reply.extend(request);
    }
}

/// An endpoint that is made while the thread already waits in the poller is watched, too.
#[test]
fn a_later_endpoint_ends_a_wait() {
    let fabric = loopback();
    let (worker, lanes) = worker(&fabric, 1);
    let (lane, connecting, fabric) = (&lanes[0], worker.clone(), &fabric);
    let body = async {
        for client in 2..6 {
            let endpoint = connecting.connect(fabric, ClientId(client)).unwrap();
            let lane = lane.on(&endpoint);
            for _ in 0..100 {
                let mut round = lane.round();
                round.read(word(0, 0), 8);
                lane.execute(round).await.unwrap();
            }
        }
    };
    Place::new().drive(worker.start([(lane.id(), body)]));
}
