//! `remora up`: the cluster in one process and the cluster of processes, as clients of Redis see
//! them, also while processes are killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Process, new_file, remora, scratch, words};
use rustix::process::{Pid, Signal, kill_process};

/// A client of Redis' protocol.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn connect(port: u16) -> std::io::Result<Client> {
        let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Sends a command. Returns the first line of its answer, or the whole of a string. Fails if
    /// the connection ends before.
    fn ask(&mut self, command: &str) -> std::io::Result<String> {
        let words = words(command);
        let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        self.stream.get_mut().write_all(format!("*{}\r\n{bulks}", words.len()).as_bytes())?;
        let line = self.line()?;
        if line.starts_with('$') && line != "$-1" { self.line() } else { Ok(line) }
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Returns a client of a gateway that is up.
#[track_caller]
fn client(port: u16) -> Client {
    Client::connect(port).expect("the gateway listens")
}

#[track_caller]
fn assert_answers(port: u16, cases: &[(&str, &str)]) {
    let mut client = client(port);
    for (command, answer) in cases {
        assert_eq!(client.ask(command).expect("an answer"), *answer, "{command}");
    }
}

/// A new folder for the temporary files of a test.
fn new_folder(name: &str) -> PathBuf {
    let folder = scratch(name);
    let _ = fs::remove_dir_all(&folder); // most often there is none
    fs::create_dir(&folder).expect("a place for the test's files");
    folder
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).expect("it is there").count()
}

/// Returns the numbers behind a word in the line that begins with another one.
fn numbers(text: &str, line: &str, word: &str) -> Vec<u32> {
    let line = text.lines().find(|one| one.starts_with(line)).unwrap_or_default();
    let words = words(line);
    words.windows(2).filter(|pair| pair[0] == word).map(|pair| pair[1].parse().expect("a number")).collect()
}

#[test]
fn a_command_runs_against_the_cluster_and_gives_the_exit_status() {
    let over = new_file("up-exec-over");
    // A signal that ends the command before it should gives another exit status.
    let script = format!("echo $REMORA_PORT; while [ ! -e {} ]; do sleep 0.02; done; exit 7", over.display());
    let mut up = Process::start("up-exec", &["up", "--size", "64MiB", "--listen", "127.0.0.1:0", "--exec", &script]);
    up.wait_until("the command runs", |process| process.output().ends_with('\n'));
    let port = up.output().trim().parse().expect("nothing else is on standard output");
    assert_answers(port, &[("PING", "+PONG"), ("SET greeting hello", "+OK"), ("GET greeting", "hello")]);
    fs::write(&over, "").unwrap();
    let ended = up.wait();
    assert_eq!((ended.code, &*ended.errors), (Some(7), ""), "{ended:?}");
}

#[test]
fn what_is_recorded_is_judged() {
    let (over, record) = (new_file("up-record-over"), new_file("up-record"));
    let script = format!("echo $REMORA_PORT; while [ ! -e {} ]; do sleep 0.02; done", over.display());
    let options = ["up", "--size", "64MiB", "--listen", "127.0.0.1:0", "--record", record.to_str().unwrap()];
    let mut up = Process::start("up-record", &[&options[..], &["--exec", &script]].concat());
    up.wait_until("the command runs", |process| process.output().ends_with('\n'));
    let port = up.output().trim().parse().expect("nothing else is on standard output");
    let long = "x".repeat(600);
    assert_answers(
        port,
        &[
            ("INCR n", ":1"),
            ("APPEND n 2", ":2"),
            ("RPUSH list a b", ":2"),
            ("LPOP list", "a"),
            (&format!("HSET {long} field value"), ":1"),
            (&format!("HGET {long} field"), "value"),
            ("SET large x", "+OK"),
            ("SETRANGE large 20000 y", ":20001"),
            ("SETRANGE large 20001 z", ":20002"),
            ("DEL large", ":1"),
            ("SET n 1 PX 1", "+OK"),
        ],
    );
    thread::sleep(Duration::from_millis(3));
    assert_answers(port, &[("GET n", "$-1")]);
    fs::write(&over, "").unwrap();
    let ended = up.wait();
    assert_eq!((ended.code, &*ended.errors), (Some(0), ""), "{ended:?}");
    let checked = remora("up-record-check", &["check", record.to_str().unwrap()]);
    let judged = "commands: 12 calls, 12 replayed, 0 on values from before the recording";
    assert!(checked.code == Some(0) && checked.output.contains(judged), "{checked:?}");
    // The gateway answers 7 where the commands say 1.
    let wrong = fs::read_to_string(&record).unwrap().replace("\"reply\":\"3a310d0a\"", "\"reply\":\"3a370d0a\"");
    fs::write(&record, wrong).unwrap();
    let checked = remora("up-record-wrong", &["check", record.to_str().unwrap()]);
    assert!(checked.code == Some(1) && checked.output.contains("must answer :1"), "{checked:?}");
}

#[test]
fn a_signal_ends_the_command_that_runs_with_all_that_it_has_started() {
    let file = new_file("up-signal-pid");
    // The shell waits for a process of its own, which it would leave behind.
    let script = format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait; exit 3", file.display());
    let mut up = Process::start("up-signal", &["up", "--size", "64MiB", "--listen", "127.0.0.1:0", "--exec", &script]);
    up.wait_until("the command runs", |_| file.exists());
    let sleeps = fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    up.signal(Signal::TERM);
    let ended = up.wait();
    assert_eq!(ended.code, Some(128 + 15), "{ended:?}");
    assert_gone(&[sleeps]);
}

#[test]
fn the_next_free_port_is_taken_and_said() {
    // If this fails, another process has the port.
    let taken = TcpListener::bind("127.0.0.1:6379");
    let mut up = Process::start("up-next", &words("up --size 64MiB"));
    up.wait_until("it is ready", |process| process.output().lines().count() == 4);
    let said = up.output();
    let first = said.lines().next().unwrap();
    let (address, rest) = first.strip_prefix("remora up: ").and_then(|rest| rest.split_once(' ')).expect(first);
    assert_eq!(rest, "(6379 is taken), 1 memory node in this process, 1 copy of each key");
    let port = address.parse::<SocketAddr>().unwrap().port();
    assert!(port > 6379 && said.contains(&format!("redis-cli -p {port} set")), "{said}");
    assert_answers(port, &[("PING", "+PONG")]);
    up.signal(Signal::INT);
    let ended = up.wait();
    assert_eq!((ended.code, &*ended.errors), (Some(0), ""), "{ended:?}");
    drop(taken);
}

#[test]
fn options_that_cannot_be_served_are_refused_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("--listen {}", taken.local_addr().unwrap());
    for (options, name) in [
        ("--nodes 3 --copies 4", "--copies 4"),
        ("--processes --nodes 2 --copies 3", "--copies 3"),
        (&*listen, &*listen),
        (&format!("--processes {listen}"), &listen),
        ("--size 4KiB", "--size 4.0 KiB"),
        ("--processes --size 4KiB --listen 127.0.0.1:0", "--size 4096"),
        ("--client-memory 1KiB --size 64MiB --listen 127.0.0.1:0", "--client-memory"),
    ] {
        let refused = remora("up-refused", &words(&format!("up {options}")));
        assert_eq!((refused.code, &*refused.output), (Some(2), ""), "{options}: {refused:?}");
        let complaint = refused.errors;
        assert!(complaint.starts_with("error: ") && complaint.contains(name), "{options}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{options}: {complaint}");
    }
    for options in ["--nodes 0", "--size none", "--listen 6379"] {
        let refused = remora("up-refused", &words(&format!("up {options}")));
        assert_eq!((refused.code, &*refused.output), (Some(2), ""), "{options}: {refused:?}");
    }
}

/// A cluster of processes, with its temporary files in a folder of its own.
struct Cluster {
    up: Process,
    ports: Vec<u16>,
}

/// The parts of a cluster, as the first lines name them.
const PARTS: [&str; 3] = ["memory nodes", "controllers", "gateways"];

impl Cluster {
    #[track_caller]
    fn start(name: &str, temporary: &Path, options: &str) -> Cluster {
        let shell = format!("export TMPDIR={}", temporary.display());
        let size = if options.contains("--size") { "" } else { "--size 128MiB" };
        let line = format!("up --processes {size} --listen 127.0.0.1:0 {options}");
        let mut up = Process::start_after(&shell, name, &words(&line));
        up.wait_until("it is ready", |process| process.output().contains("stop: Ctrl-C\n"));
        let ports = numbers(&up.output(), PARTS[2], "port");
        Cluster { up, ports: ports.into_iter().map(|port| port as u16).collect() }
    }

    /// Returns the processes of a part, as they were at first.
    fn pids(&self, part: &str) -> Vec<u32> {
        numbers(&self.up.output(), part, "pid")
    }

    fn all_pids(&self) -> Vec<u32> {
        PARTS.into_iter().flat_map(|part| self.pids(part)).collect()
    }

    /// Returns the lines about processes that have died or are back.
    fn said(&self) -> Vec<String> {
        self.up.output().lines().filter(|line| line.contains("(pid ")).map(str::to_owned).collect()
    }

    /// Returns how often all copies were there again.
    fn copied(&self) -> usize {
        self.up.output().matches(" of each key again after ").count()
    }
}

fn is_there(pid: u32) -> bool {
    // A process that has ended, and for which its parent has not waited, is no process any more.
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[track_caller]
fn assert_gone(pids: &[u32]) {
    let began = Instant::now();
    while pids.iter().any(|pid| is_there(*pid)) {
        assert!(began.elapsed() < PATIENCE, "{pids:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).expect("a process"), Signal::KILL).expect("it runs");
}

/// What a client has written, and what it knows of it.
#[derive(Default)]
struct Written {
    /// Increments that were acknowledged.
    counted: i64,
    /// Increments that may have been applied: the connection ended before the answer, or the answer
    /// says so.
    unknown: i64,
    /// The keys that were acknowledged.
    keys: BTreeMap<String, String>,
    /// Answers that were errors.
    errors: Vec<String>,
    longest: Duration,
}

impl Written {
    /// Counts and writes keys by one gateway, and reads them by another one, until the condition
    /// holds. Connects again when a connection ends.
    #[track_caller]
    fn write_until(&mut self, ports: &[u16], mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        let mut clients: Vec<Option<Client>> = ports.iter().map(|_| None).collect();
        while !holds() {
            assert!(began.elapsed() < PATIENCE, "the condition never holds");
            let mut ask = |gateway: usize, command: &str| {
                let asked = Instant::now();
                if clients[gateway].is_none() {
                    clients[gateway] = Client::connect(ports[gateway]).ok();
                }
                let Some(client) = &mut clients[gateway] else {
                    thread::sleep(Duration::from_millis(5));
                    return None;
                };
                let answer = client.ask(command);
                self.longest = self.longest.max(asked.elapsed());
                if answer.is_err() {
                    clients[gateway] = None;
                }
                Some(answer.ok())
            };
            let mut known = None;
            match ask(0, "INCR counter") {
                None => {}
                Some(None) => self.unknown += 1,
                Some(Some(answer)) => match answer.strip_prefix(':').map(str::parse::<i64>) {
                    Some(Ok(count)) => {
                        self.counted += 1;
                        let most = self.counted + self.unknown;
                        let noted = (self.counted, self.unknown, &self.errors);
                        assert!((self.counted..=most).contains(&count), "{count}: {noted:?}");
                        known = Some(count);
                    }
                    _ if answer.starts_with("-UNKNOWN ") => self.unknown += 1,
                    _ => self.errors.push(answer),
                },
            }
            // The other gateway has nothing that is older.
            if let (Some(count), Some(Some(read))) = (known, ask(1, "GET counter")) {
                match read.parse::<i64>() {
                    Ok(read) => assert_eq!(read, count, "acknowledged before"),
                    Err(_) => self.errors.push(read),
                }
            }
            let (key, value) = (format!("key:{}", self.keys.len() % 500), began.elapsed().as_nanos().to_string());
            match ask(0, &format!("SET {key} {value}")) {
                Some(Some(answer)) if answer == "+OK" => _ = self.keys.insert(key, value),
                Some(Some(answer)) => self.errors.push(answer),
                // The key may have either value.
                Some(None) => _ = self.keys.remove(&key),
                None => {}
            }
        }
    }
}

#[test]
fn processes_that_are_killed_are_started_again_and_nothing_acknowledged_is_lost() {
    let temporary = new_folder("up-kill");
    let mut cluster = Cluster::start("up-kill", &temporary, "");
    let (mut all, ports) = (cluster.all_pids(), cluster.ports.clone());
    assert_eq!((all.len(), ports.len(), entries(&temporary)), (7, 2, 1), "{}", cluster.up.output());
    let mut written = Written::default();
    let mut rounds = 0;
    written.write_until(&ports, || {
        rounds += 1;
        rounds > 100
    });
    for part in ["memory nodes", "gateways", "controllers"] {
        let pid = cluster.pids(part)[0];
        let (told, errors) = (cluster.said().len(), written.errors.len());
        kill(pid);
        written.write_until(&ports, || cluster.said().len() == told + 2);
        let said = &cluster.said()[told..];
        let name = format!("{} 0 (pid ", part.trim_end_matches('s'));
        assert!(said[0].contains(&format!("{name}{pid}) has died: signal: 9")), "{said:?}");
        assert!(said[1].contains(&name) && said[1].contains(" is back after "), "{said:?}");
        all.push(numbers(&said[1].replace(['(', ')'], " "), "", "pid")[0]);
        if part != "gateways" {
            assert_eq!(written.errors[errors..], [""; 0], "clients see a pause only");
        }
    }
    assert!(written.counted > 200 && written.unknown <= 2, "{} {}", written.counted, written.unknown);
    let mut reader = client(ports[1]);
    let count: i64 = reader.ask("GET counter").unwrap().parse().unwrap();
    assert!((written.counted..=written.counted + written.unknown).contains(&count), "{count}");
    for (key, value) in &written.keys {
        assert_eq!(reader.ask(&format!("GET {key}")).unwrap(), *value, "{key}");
    }
    println!("longest pause {:?}, {} errors: {:?}", written.longest, written.errors.len(), written.errors.first());
    cluster.up.signal(Signal::INT);
    let ended = cluster.up.wait();
    assert_eq!((ended.code, &*ended.errors), (Some(0), ""), "{ended:?}");
    assert_gone(&all);
    assert_eq!(entries(&temporary), 0);
}

/// What a client has done that sends every transaction again until it has its answer.
#[derive(Debug, Default)]
struct Done {
    /// Transactions, each of which was acknowledged.
    transactions: usize,
    /// Connections that have ended before the answer.
    lost: usize,
    /// Answers that said that nothing is known, or that the client may try again, and the last one.
    errors: usize,
    error: String,
    longest: Duration,
}

/// Transactions whose numbers are in one list.
const PAGE: usize = 50;

impl Done {
    /// Runs transactions, each under a token of its own, until it is to stop. Each counts on, and
    /// notes its number in a list. So its answer says whether it and all before were applied once.
    fn run(number: usize, ports: &[u16], count: &AtomicUsize, stop: &AtomicBool) -> Done {
        let (mut done, mut client, mut gateway) = (Done::default(), None, number % ports.len());
        while !stop.load(Ordering::Relaxed) {
            let (next, began) = (done.transactions + 1, Instant::now());
            let (page, place) = (done.transactions / PAGE, done.transactions % PAGE + 1);
            let lines = format!(
                "REMORA.ONCE {number}-{next}\r\nMULTI\r\nINCR counter:{number}\r\nRPUSH log:{number}:{page} {next}\r\n\
                 EXEC\r\n"
            );
            loop {
                assert!(began.elapsed() < PATIENCE, "client {number}, transaction {next}: no answer, {done:?}");
                if client.is_none() {
                    client = Client::connect(ports[gateway]).ok();
                }
                match client.as_mut().map(|client| Done::transact(client, &lines)) {
                    Some(Ok(answer)) if answer.starts_with('-') => {
                        // With two of three nodes, there is no room for three copies of more.
                        let is_passing =
                            ["-TRYAGAIN ", "-UNKNOWN ", "-OOM "].iter().any(|text| answer.starts_with(text));
                        assert!(is_passing, "client {number}, transaction {next}: {answer}");
                        thread::sleep(Duration::from_millis(20));
                        (done.errors, done.error) = (done.errors + 1, answer);
                    }
                    Some(Ok(answer)) => {
                        assert_eq!(answer, format!("*2 :{next} :{place}"), "client {number}, transaction {next}");
                        break;
                    }
                    Some(Err(_)) => {
                        done.lost += 1;
                        (client, gateway) = (None, (gateway + 1) % ports.len());
                    }
                    None => {
                        gateway = (gateway + 1) % ports.len();
                        thread::sleep(Duration::from_millis(5));
                    }
                }
            }
            done.transactions = next;
            count.store(next, Ordering::Relaxed);
            done.longest = done.longest.max(began.elapsed());
            // Tokens stay for an hour, and there is room for some 100,000.
            thread::sleep(Duration::from_millis(5));
        }
        done
    }

    /// Sends a transaction. Returns the answer of `EXEC`.
    fn transact(client: &mut Client, lines: &str) -> std::io::Result<String> {
        client.stream.get_mut().write_all(lines.as_bytes())?;
        for expected in ["+OK", "+OK", "+QUEUED", "+QUEUED"] {
            assert_eq!(client.line()?, expected);
        }
        let answer = client.line()?;
        if answer.starts_with('-') { Ok(answer) } else { Ok([answer, client.line()?, client.line()?].join(" ")) }
    }

    /// Reads what the transactions have left.
    fn check(&self, number: usize, port: u16) {
        let mut client = client(port);
        let counter = client.ask(&format!("GET counter:{number}")).unwrap();
        assert_eq!(counter, self.transactions.to_string());
        for page in 0..self.transactions.div_ceil(PAGE) {
            let length = client.ask(&format!("LRANGE log:{number}:{page} 0 -1")).unwrap();
            let length: usize = length.strip_prefix('*').and_then(|length| length.parse().ok()).expect("a list");
            let mut lines = || [client.line().unwrap(), client.line().unwrap()].into_iter().next_back().unwrap();
            let log: Vec<String> = (0..length).map(|_| lines()).collect();
            let wanted = (page * PAGE + 1..=self.transactions).take(PAGE).map(|number| number.to_string());
            assert_eq!(log, wanted.collect::<Vec<_>>(), "client {number}, page {page}");
        }
    }
}

/// Gateways and memory nodes are killed while clients run transactions. REMORA_KILLS says how
/// often; the long checks kill more.
#[test]
fn transactions_that_are_sent_again_after_a_kill_are_applied_once() {
    const CLIENTS: usize = 4;
    let kills: usize = std::env::var("REMORA_KILLS").map_or(1, |kills| kills.parse().expect("a number"));
    let temporary = new_folder("up-once");
    let mut cluster = Cluster::start("up-once", &temporary, "--threads 1 --size 512MiB");
    let (ports, stop) = (cluster.ports.clone(), AtomicBool::new(false));
    let counts: [AtomicUsize; CLIENTS] = Default::default();
    let mut pids: BTreeMap<String, u32> = BTreeMap::new();
    for part in ["memory nodes", "gateways"] {
        let name = part.trim_end_matches('s');
        pids.extend(cluster.pids(part).into_iter().enumerate().map(|(place, pid)| (format!("{name} {place}"), pid)));
    }
    let done = thread::scope(|scope| {
        let (ports, stop, counts) = (&ports, &stop, &counts);
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || Done::run(number, ports, &counts[number], stop))).collect();
        for kill_number in 0..kills {
            let (node, gateway) = (format!("memory node {}", kill_number % 3), format!("gateway {}", kill_number % 2));
            // A gateway, a gateway and a memory node at once, a memory node.
            let names = match kill_number % 3 {
                0 => vec![gateway],
                1 => vec![gateway, node.clone()],
                _ => vec![node.clone()],
            };
            thread::sleep(Duration::from_millis(100 + 37 * (kill_number as u64 % 5)));
            let (told, whole) = (cluster.said().len(), cluster.copied());
            names.iter().for_each(|name| kill(pids[name]));
            let (began, before) = (Instant::now(), counts.each_ref().map(|count| count.load(Ordering::Relaxed)));
            // A node that dies before another one is replaced may take the last copy with it.
            let needs_copies = names.contains(&node) && kill_number + 1 < kills;
            let is_back = |line: &String| line.contains("gateway") && line.contains(" is back after ");
            let gateways = names.len() - usize::from(names.contains(&node));
            while cluster.said()[told..].iter().filter(|line| is_back(line)).count() < gateways
                || needs_copies && cluster.copied() == whole
                || counts.iter().zip(before).any(|(count, before)| count.load(Ordering::Relaxed) < before + 20)
            {
                let has_failed = clients.iter().any(|client| client.is_finished());
                if has_failed || began.elapsed() > 2 * PATIENCE {
                    stop.store(true, Ordering::Relaxed);
                    panic!("kill {kill_number} of {names:?}: {:?}", cluster.said());
                }
                thread::sleep(Duration::from_millis(5));
            }
            for line in &cluster.said()[told..] {
                let back = line.split_once(": ").and_then(|(_, line)| line.split_once(" (pid "));
                if let Some((name, rest)) = back.filter(|(_, rest)| rest.contains(" is back after ")) {
                    pids.insert(name.to_owned(), rest.split(')').next().unwrap().parse().expect("a pid"));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    for (number, done) in done.iter().enumerate() {
        println!("client {number}: {done:?}");
        done.check(number, ports[number % 2]);
        assert!(done.transactions >= 20, "{done:?}");
    }
    assert!(done.iter().any(|done| done.lost > 0), "a gateway was killed");
    cluster.up.signal(Signal::INT);
    let ended = cluster.up.wait();
    assert_eq!((ended.code, &*ended.errors), (Some(0), ""), "{ended:?}");
}

#[test]
fn a_command_that_is_killed_leaves_no_process_and_the_next_removes_its_folder() {
    let temporary = new_folder("up-killed");
    let mut cluster = Cluster::start("up-killed", &temporary, "--nodes 1");
    let all = cluster.all_pids();
    cluster.up.kill();
    assert_gone(&all);
    assert_eq!((all.len(), entries(&temporary)), (5, 1));
    let shell = format!("export TMPDIR={}", temporary.display());
    let line = words("up --processes --nodes 1 --size 128MiB --listen 127.0.0.1:0 --exec");
    let ended =
        Process::start_after(&shell, "up-next-killed", &[&line[..], &["echo $REMORA_PORT; exit 3"]].concat()).wait();
    assert_eq!((ended.code, &*ended.errors, entries(&temporary)), (Some(3), "", 0), "{ended:?}");
    assert!(ended.output.trim().parse::<u16>().is_ok(), "{ended:?}");
}

#[test]
fn a_cluster_whose_memory_nodes_are_all_dead_ends_and_says_so() {
    let temporary = new_folder("up-lost");
    let mut cluster = Cluster::start("up-lost", &temporary, "--nodes 1");
    let all = cluster.all_pids();
    kill(all[0]);
    let ended = cluster.up.wait();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.errors.contains("memory nodes: all have died at once"), "{ended:?}");
    assert_gone(&all);
    assert_eq!(entries(&temporary), 0);
}
