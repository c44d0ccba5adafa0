//! Connections over real sockets: order, limits, back-pressure, fairness and stop.

mod support;

use std::io::Write;
use std::net::Shutdown;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use remora::Cluster;
use remora_gateway::net::ServeOptions;

use support::{Rig, Talk, descriptors, embedded, on_files, over_tcp};

fn one_thread() -> ServeOptions {
    ServeOptions::default().threads(1)
}

fn on_every_fabric(test: impl Fn(Cluster)) {
    test(embedded());
    test(over_tcp());
    test(on_files());
}

#[test]
fn input_may_come_byte_by_byte() {
    on_every_fabric(|cluster| {
        let rig = Rig::new(&cluster, one_thread());
        let mut talk = rig.connect();
        for turn in 1..4 {
            for byte in b"*2\r\n$4\r\nECHO\r\n$12\r\nhello\r\nthere\r\nPING\r\n*2\r\n$4\r\nINCR\r\n$1\r\n7\r\n" {
                talk.send([*byte]);
            }
            talk.expect(format!("$12\r\nhello\r\nthere\r\n+PONG\r\n:{turn}\r\n"));
        }
        rig.until("no input is kept", |rig| rig.control.counts().held == 0);
    });
}

#[test]
fn a_long_pipeline_is_answered_in_order() {
    on_every_fabric(|cluster| {
        let rig = Rig::new(&cluster, one_thread());
        let mut talk = rig.connect();
        let mut reader = Talk(talk.0.try_clone().unwrap());
        const COMMANDS: usize = 20_000;
        let send = thread::spawn(move || {
            let all: String = (0..COMMANDS).map(|n| format!("ECHO {n:06}\r\nINCR 1\r\n")).collect();
            talk.send(all);
        });
        for n in 0..COMMANDS {
            reader.expect(format!("$6\r\n{n:06}\r\n:{}\r\n", n + 1));
        }
        send.join().unwrap();
    });
}

#[test]
fn many_idle_and_many_busy_connections() {
    const BUSY: usize = 500;
    let cluster = embedded();
    let rig = Rig::new(&cluster, ServeOptions::default().threads(2));
    let count = 5_000.min((descriptors(2 * 5_000 + 2 * BUSY + 500) - 500) / 2 - BUSY);
    let mut idle: Vec<Talk> = (0..count).map(|_| rig.connect()).collect();
    // Some of them have begun a command.
    idle.iter_mut().step_by(10).for_each(|talk| talk.send("*2\r\n$4\r\nECHO\r\n$3\r\na"));
    rig.until("all are open", |rig| rig.open.load(Ordering::SeqCst) == count);
    let all_are_there = Barrier::new(BUSY);
    thread::scope(|scope| {
        for client in 0..BUSY {
            let (rig, all_are_there) = (&rig, &all_are_there);
            scope.spawn(move || {
                let mut talk = rig.connect();
                all_are_there.wait();
                for n in 0..40 {
                    talk.ask(
                        format!("ECHO {client}-{n}\r\nGET 5\r\n"),
                        format!("${}\r\n{client}-{n}\r\n:0\r\n", format!("{client}-{n}").len()),
                    );
                }
            });
        }
    });
    rig.until("the busy ones are closed", |rig| rig.open.load(Ordering::SeqCst) == count);
    // A piece of a command is all that an idle connection keeps.
    assert!(rig.control.counts().held <= count.div_ceil(10) * 64, "{:?}", rig.control.counts());
    for talk in idle.iter_mut().step_by(10) {
        talk.ask("bc\r\n", "$3\r\nabc\r\n");
    }
    for talk in &mut idle {
        talk.ask("PING\r\n", "+PONG\r\n");
    }
    rig.until("no input is kept", |rig| rig.control.counts().held == 0);
    drop(idle);
    rig.until("all are closed", |rig| rig.open.load(Ordering::SeqCst) == 0 && rig.control.counts().connections == 0);
}

#[test]
fn a_client_that_does_not_read_is_not_served() {
    let cluster = embedded();
    let rig = Rig::new(&cluster, one_thread());
    let mut lazy = rig.connect();
    let mut writer = Talk(lazy.0.try_clone().unwrap());
    let command = "BIG 100000\r\n";
    const COMMANDS: usize = 2_000;
    let send = thread::spawn(move || writer.send(command.repeat(COMMANDS)));
    rig.until("it is stalled", |rig| rig.control.counts().stalled_by_output == 1);
    // Others go on, and the stalled one gets no further.
    let mut other = rig.connect();
    let before = rig.control.counts();
    for _ in 0..500 {
        other.ask("PING\r\n", "+PONG\r\n");
    }
    // What was sent is counted when it has been sent.
    rig.until("all is counted", |rig| rig.control.counts().bytes_out - before.bytes_out >= 500 * 7);
    let after = rig.control.counts();
    assert_eq!(after.bytes_out - before.bytes_out, 500 * 7);
    assert!(after.bytes_out < 16 << 20, "{after:?}");
    assert_eq!(after.stalled_by_output, 1);
    // It reads at last, and gets everything.
    let answer = format!("$100000\r\n{}\r\n", "x".repeat(100_000));
    for _ in 0..COMMANDS {
        lazy.expect(&answer);
    }
    send.join().unwrap();
    assert_eq!(rig.control.counts().stalled_by_output, 0);
    lazy.ask("PING\r\n", "+PONG\r\n");
    // One that leaves while it is stalled is forgotten.
    lazy.send(command.repeat(200));
    rig.until("it is stalled again", |rig| rig.control.counts().stalled_by_output == 1);
    drop(lazy);
    rig.until("it is closed", |rig| rig.control.counts().connections == 1);
    assert_eq!(rig.control.counts().stalled_by_output, 0);
}

#[test]
fn a_half_closed_connection_gets_its_answers() {
    on_every_fabric(|cluster| {
        let rig = Rig::new(&cluster, one_thread());
        for commands in [1, 10, 20_000] {
            let mut talk = rig.connect();
            let mut writer = Talk(talk.0.try_clone().unwrap());
            let send = thread::spawn(move || {
                writer.send("SLEEP 20\r\n");
                writer.send("PING\r\n".repeat(commands));
                writer.send("*1\r\n$4\r\nPI");
                writer.0.shutdown(Shutdown::Write).unwrap();
            });
            assert_eq!(talk.rest(), format!("+SLEPT\r\n{}", "+PONG\r\n".repeat(commands)).into_bytes());
            send.join().unwrap();
        }
        rig.until("all are closed", |rig| rig.open.load(Ordering::SeqCst) == 0 && rig.control.counts().held == 0);
    });
}

#[test]
fn a_connection_too_many_is_told_so() {
    let cluster = embedded();
    let rig = Rig::new(&cluster, ServeOptions::default().threads(2).connections_max(3));
    assert_eq!(rig.control.connections_max(), 3);
    let mut talks: Vec<Talk> = (0..3).map(|_| rig.connect()).collect();
    talks.iter_mut().for_each(|talk| talk.ask("PING\r\n", "+PONG\r\n"));
    for _ in 0..20 {
        assert_eq!(rig.connect().rest(), b"-ERR max number of clients reached\r\n");
    }
    assert_eq!(rig.control.counts().refused, 20);
    talks.iter_mut().for_each(|talk| talk.ask("PING\r\n", "+PONG\r\n"));
    talks[0].ask("QUIT\r\nPING\r\n", "+OK\r\n");
    assert_eq!(talks[0].rest(), b"");
    rig.until("there is room", |rig| rig.control.counts().connections == 2);
    rig.connect().ask("PING\r\n", "+PONG\r\n");
}

#[test]
fn a_stop_answers_what_has_been_read() {
    on_every_fabric(|cluster| {
        let mut rig = Rig::new(&cluster, ServeOptions::default().threads(2));
        let mut busy: Vec<Talk> = (0..20).map(|_| rig.connect()).collect();
        let mut idle: Vec<Talk> = (0..20).map(|_| rig.connect()).collect();
        let mut paused = rig.connect();
        busy.iter_mut().for_each(|talk| talk.send("SLEEP 300\r\nINCR 3\r\nBIG 500000\r\n"));
        idle.iter_mut().for_each(|talk| talk.ask("PING\r\n", "+PONG\r\n"));
        paused.ask("PING\r\nPAUSE 100000\r\n", "+PONG\r\n");
        rig.until("all run", |rig| rig.control.counts().lanes_busy == 20);
        rig.control.stop();
        for talk in &mut busy {
            talk.expect("+SLEPT\r\n:");
            let rest = talk.rest();
            assert!(rest.len() > 500_000 && rest.ends_with(b"xx\r\n"));
        }
        idle.iter_mut().for_each(|talk| assert_eq!(talk.rest(), b""));
        assert_eq!(paused.rest(), b"");
        assert!(rig.stop() < Duration::from_secs(10));
        assert_eq!((rig.open.load(Ordering::SeqCst), rig.control.counts().connections), (0, 0));
        assert!(std::net::TcpStream::connect(rig.address).is_err(), "the listener is closed");
        // The increments have been committed, and the workers have left.
        let mut again = Rig::new(&cluster, one_thread());
        again.connect().ask("GET 3\r\n", ":20\r\n");
        again.stop();
    });
}

#[test]
fn a_stop_does_not_wait_forever() {
    let cluster = embedded();
    let mut rig = Rig::new(&cluster, one_thread().stop_patience(Duration::from_millis(300)));
    let mut slow = rig.connect();
    slow.send("SLEEP 60000\r\n");
    let mut lazy = rig.connect();
    lazy.send("BIG 30000000\r\n");
    rig.until("both run", |rig| rig.control.counts().stalled_by_output == 1 && rig.control.counts().lanes_busy == 1);
    assert!(rig.stop() < Duration::from_secs(6));
}

#[test]
fn no_connection_starves_when_all_lanes_are_busy() {
    let cluster = embedded();
    let rig = Rig::new(&cluster, one_thread().lanes(2));
    // Four connections that always have something slow to do, and eight that ask now and then.
    let mut slow: Vec<Talk> = (0..4).map(|_| rig.connect()).collect();
    slow.iter_mut().for_each(|talk| talk.send("SLEEP 10\r\n".repeat(20)));
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..8 {
            let mut talk = rig.connect();
            scope.spawn(move || {
                for _ in 0..3 {
                    talk.ask("PING\r\n", "+PONG\r\n");
                }
            });
        }
        scope.spawn(|| rig.until("some wait", |rig| rig.control.counts().stalled_by_lanes > 0));
    });
    // A batch of 20 sleeps takes 200 ms, and at most two go before one that has come.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    slow.iter_mut().for_each(|talk| talk.expect("+SLEPT\r\n".repeat(20)));
}

#[test]
fn a_pause_keeps_no_lane_and_keeps_the_order() {
    let cluster = embedded();
    let rig = Rig::new(&cluster, one_thread().lanes(1));
    let mut paused: Vec<Talk> = (0..50).map(|_| rig.connect()).collect();
    let began = Instant::now();
    paused.iter_mut().for_each(|talk| talk.send("PING\r\nPAUSE 200\r\nPING\r\n"));
    let mut other = rig.connect();
    other.ask("PING\r\n", "+PONG\r\n");
    assert!(began.elapsed() < Duration::from_millis(200), "the only lane is free");
    for talk in &mut paused {
        talk.expect("+PONG\r\n+PAUSED\r\n+PONG\r\n");
    }
    assert!(began.elapsed() >= Duration::from_millis(200));
    // Another thread, and another connection, can end a pause.
    let [mut long, mut longer] = [rig.connect(), rig.connect()];
    let (first, second) = (long.id(), longer.id());
    long.ask("PING\r\nPAUSE 100000\r\n", "+PONG\r\n");
    longer.ask("PING\r\nPAUSE 100000\r\n", "+PONG\r\n");
    other.ask(format!("WAKE {first}\r\n"), "+OK\r\n");
    long.expect("+PAUSED\r\n");
    rig.control.wake(second + 1000);
    rig.control.wake_all();
    longer.ask("PING\r\n", "+PAUSED\r\n+PONG\r\n");
    // One that has left while it was paused is forgotten.
    long.ask("PING\r\nPAUSE 100000\r\n", "+PONG\r\n");
    rig.control.kill(first);
    assert_eq!(long.rest(), b"");
    rig.until("it is closed", |rig| rig.control.counts().connections == 52);
}

#[test]
fn a_connection_can_be_killed() {
    let cluster = embedded();
    let rig = Rig::new(&cluster, ServeOptions::default().threads(2));
    let mut talks: Vec<Talk> = (0..4).map(|_| rig.connect()).collect();
    let ids: Vec<u64> = talks.iter_mut().map(Talk::id).collect();
    assert!(ids.is_sorted_by(|one, other| one < other));
    let (victims, killers) = talks.split_at_mut(2);
    victims[1].send("SLEEP 100\r\n");
    rig.until("it sleeps", |rig| rig.control.counts().lanes_busy == 1);
    killers[0].ask(format!("KILL {}\r\nKILL {}\r\nKILL 999\r\n", ids[0], ids[1]), "+OK\r\n+OK\r\n+OK\r\n");
    assert_eq!((victims[0].rest(), victims[1].rest()), (vec![], vec![]));
    killers[1].ask("PING\r\n", "+PONG\r\n");
    rig.until("both are closed", |rig| rig.open.load(Ordering::SeqCst) == 2);
}

#[test]
fn a_panic_closes_its_connection_only() {
    let cluster = embedded();
    let rig = Rig::new(&cluster, one_thread().lanes(1));
    let mut other = rig.connect();
    for turn in 1..4 {
        let mut talk = rig.connect();
        talk.send("PING\r\nPANIC\r\n");
        assert_eq!(talk.rest(), b"");
        other.ask("INCR 1\r\n", format!(":{turn}\r\n"));
    }
    rig.until("they are closed", |rig| rig.open.load(Ordering::SeqCst) == 1);
}

#[test]
fn unfinished_input_is_bounded() {
    let cluster = embedded();
    let memory_max = 8 << 20;
    let rig = Rig::new(&cluster, ServeOptions::default().threads(2).memory_max(memory_max));
    // What is announced takes no memory.
    let mut liars: Vec<Talk> = (0..100).map(|_| rig.connect()).collect();
    liars.iter_mut().for_each(|talk| talk.send("*2\r\n$4\r\nECHO\r\n$30000000\r\n"));
    rig.until("all are read", |rig| rig.control.counts().bytes_in == 2_500);
    assert!(rig.control.counts().held < 100 * 64);
    // Each sends half a megabyte of its 30 and waits. Not all can be held.
    let piece = vec![b'x'; 512 << 10];
    for talk in &mut liars {
        talk.0.set_nonblocking(true).unwrap();
        let _ = talk.0.write(&piece);
    }
    rig.until("some are stopped", |rig| rig.control.counts().stalled_by_memory > 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        assert!(rig.control.counts().held <= memory_max, "{:?}", rig.control.counts());
    }
    // Others go on meanwhile, also with commands in pieces.
    let mut healthy = rig.connect();
    for _ in 0..100 {
        healthy.send("PING\r\nPI");
        healthy.ask("NG\r\n", "+PONG\r\n+PONG\r\n");
    }
    // All that is given up when the others have gone.
    drop(liars);
    rig.until("they are closed", |rig| rig.control.counts().connections == 1);
    let text = "y".repeat(1_500_000);
    healthy.ask(format!("*2\r\n$4\r\nECHO\r\n$1500000\r\n{text}\r\n"), format!("$1500000\r\n{text}\r\n"));
    rig.until("nothing is held", |rig| rig.control.counts().held == 0 && rig.control.counts().stalled_by_memory == 0);
    // One command alone may not exceed the limit.
    let mut greedy = rig.connect();
    let mut writer = Talk(greedy.0.try_clone().unwrap());
    let write = thread::spawn(move || {
        let _ = writer.0.write_all(b"*2\r\n$4\r\nECHO\r\n$30000000\r\n");
        let _ = writer.0.write_all(&vec![b'x'; 30_000_000]);
    });
    assert_eq!(greedy.rest(), b"");
    write.join().unwrap();
    healthy.ask("PING\r\n", "+PONG\r\n");
    rig.until("nothing is held", |rig| rig.control.counts().held == 0);
}

#[test]
fn threads_share_the_connections() {
    let cluster = embedded();
    let rig = Rig::new(&cluster, ServeOptions::default().threads(3).lanes(1));
    let mut talks: Vec<Talk> = (0..6).map(|_| rig.connect()).collect();
    talks.iter_mut().for_each(|talk| talk.ask("PING\r\n", "+PONG\r\n"));
    // Each thread has one lane, and two of the connections.
    talks.iter_mut().for_each(|talk| talk.send("SLEEP 200\r\n"));
    rig.until("three sleep", |rig| {
        let counts = rig.control.counts();
        counts.lanes_busy == 3 && counts.stalled_by_lanes == 3
    });
    talks.iter_mut().for_each(|talk| talk.expect("+SLEPT\r\n"));
}
