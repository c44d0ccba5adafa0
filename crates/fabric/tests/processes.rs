//! Tests of shared memory across real processes. This test runs itself as servers and clients, and
//! stops and kills them.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use remora_fabric::shm::file::{OpenError, PassiveFile, PriorMemory, ShmFiles, ShmNode};
use remora_fabric::{
    Address, ClientId, Fabric, FabricError, Fault, Handler, Lane, NodeId, Refusal, Region, RegionId, block_on,
};
use rustix::process::{Pid, Signal, kill_process};

const REGION: usize = 1 << 20;
const WORDS: usize = 8000;

fn word(index: usize) -> Address {
    Address { node: NodeId(0), region: RegionId(0), offset: 8 * index as u64 }
}

/// A file of a test, which is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        Scratch(std::env::temp_dir().join(format!("remora-processes-{}-{number}", std::process::id())))
    }

    /// Makes passive memory.
    fn lay_out(&self) -> PassiveFile {
        let file = PassiveFile::open(&self.0, Some(REGION as u64)).expect("a test's file");
        file.publish();
        file
    }

    fn serve(&self) -> ShmNode {
        ShmNode::open(&self.0, Some(REGION as u64)).expect("a test's file")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Another process of this test. It is killed when its handle is dropped.
struct Child {
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Child {
    fn start(role: &str, path: &Path) -> Child {
        let mut process = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env("REMORA_ROLE", role)
            .env("REMORA_PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (input, output) = (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
        Child { process, input, output: BufReader::new(output) }
    }

    /// Returns the next line that the process prints.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("a pipe") > 0, "the process has ended");
            if let Some((_, said)) = line.split_once('@') {
                return said.trim().to_owned();
            }
        }
    }

    fn stop(mut self) -> String {
        writeln!(self.input, "stop").expect("a pipe");
        self.hear()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("a signal");
    }

    /// Pauses the process. Returns when it does not run any more.
    fn pause(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.process.id());
        while !std::fs::read_to_string(&stat).expect("it lives").contains(") T ") {
            thread::yield_now();
        }
    }

    /// Returns the CPU time that the process has used, in clock ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("it lives");
        let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn say(what: impl std::fmt::Display) {
    println!("@{what}");
}

/// A handler that adds one to each word. It never answers a request of `[0]`.
struct Adder;

impl Handler for Adder {
    fn call(&self, _: ClientId, request: &[u64], reply: &mut Vec<u64>) {
        if request == [0] {
            thread::sleep(Duration::from_secs(3600));
        }
        reply.extend(request.iter().map(|word| word + 1));
    }
}

/// Runs the part of the other processes.
#[test]
#[ignore = "the other processes of these tests"]
fn child() {
    let Ok(role) = std::env::var("REMORA_ROLE") else { return };
    let path = PathBuf::from(std::env::var_os("REMORA_PATH").expect("a path"));
    match &*role {
        "server" => match ShmNode::open(&path, Some(REGION as u64)) {
            Err(error) => say(error),
            Ok(node) => {
                node.answer(Box::new(Adder));
                say(format_args!("{:?}", node.found()));
                let _ = std::io::stdin().read_line(&mut String::new());
                drop(node);
                say("stopped");
            }
        },
        "writer" => client(&path, async |lane| {
            // The process ends by itself if the test that would end it has been killed.
            let began = Instant::now();
            for turn in (1..).take_while(|_| began.elapsed() < Duration::from_secs(60)) {
                let mut round = lane.round();
                round.write_words(word(0), &vec![turn; WORDS]);
                lane.execute(round).await.expect("a healthy node");
            }
        }),
        "adder" => client(&path, async |lane| {
            let began = Instant::now();
            for _ in (1..).take_while(|_| began.elapsed() < Duration::from_secs(60)) {
                let mut round = lane.round();
                round.fetch_add(word(0), 1);
                lane.execute(round).await.expect("memory that no process serves");
            }
        }),
        "crowd" => {
            let fabric = ShmFiles::new(&[&path], Vec::new()).expect("the file");
            let crowd: Vec<_> = (0..).map_while(|client| fabric.connect(ClientId(client)).ok()).collect();
            say(crowd.len());
            let _ = std::io::stdin().read_line(&mut String::new());
        }
        _ => client(&path, async |_| {
            let _ = std::io::stdin().read_line(&mut String::new());
        }),
    }
}

fn client(path: &Path, body: impl AsyncFnOnce(&Lane)) {
    let fabric = ShmFiles::new(&[path], Vec::new()).expect("the server's file");
    let done = block_on(&fabric, ClientId(9), async |lane| {
        say("connected");
        body(lane).await;
    });
    say(format_args!("{done:?}"));
}

/// Returns the words that the writer writes.
fn snapshot(region: &Region) -> Vec<u64> {
    region.words()[..WORDS].iter().map(|word| word.load(Ordering::Acquire)).collect()
}

/// Pauses the writer in the middle of a WRITE.
fn pause_inside(writer: &Child, region: &Region) {
    for _ in 0..10_000 {
        writer.pause();
        let words = snapshot(region);
        if words[0] != words[WORDS - 1] {
            return;
        }
        writer.signal(Signal::CONT);
        thread::sleep(Duration::from_micros(200));
    }
    panic!("the writer was never met inside a WRITE");
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(5), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

/// Revokes the paused writer. It must be gone, and nothing may land.
fn revoke_paused(fabric: &ShmFiles, mut writer: Child, region: &Region) {
    fabric.revoke(ClientId(9)).expect("every node confirms");
    let frozen = snapshot(region);
    assert_eq!(writer.process.wait().expect("it has ended").signal(), Some(9));
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(2));
        assert!(snapshot(region) == frozen, "something landed after the revocation");
    }
    let refused = block_on(fabric, ClientId(9), async |lane| {
        let mut round = lane.round();
        round.read(word(0), 8);
        lane.execute(round).await.err()
    });
    assert_eq!(refused, Ok(Some(FabricError { node: NodeId(0), fault: Fault::Revoked })));
}

#[test]
fn a_client_paused_inside_a_write_is_revoked() {
    let file = Scratch::new();
    let node = file.serve();
    let region = node.region().clone();
    let fabric = ShmFiles::new(&[&file.0], vec![node]).expect("the node's file");
    let mut writer = Child::start("writer", &file.0);
    assert_eq!(writer.hear(), "connected");
    pause_inside(&writer, &region);
    revoke_paused(&fabric, writer, &region);
    assert_eq!(fabric.hosted(NodeId(0)).expect("our node").endpoints(), 0);
}

/// A restarted server can still revoke a client that was connected to the server before.
#[test]
fn a_client_of_an_earlier_server_is_revoked() {
    let file = Scratch::new();
    let node = file.serve();
    let region = node.region().clone();
    let mut writer = Child::start("writer", &file.0);
    assert_eq!(writer.hear(), "connected");
    pause_inside(&writer, &region);
    drop(node);
    let node = file.serve();
    assert_eq!((node.found(), node.endpoints()), (PriorMemory::Stopped, 1));
    let fabric = ShmFiles::new(&[&file.0], vec![node]).expect("the node's file");
    revoke_paused(&fabric, writer, &region);
    assert_eq!(fabric.hosted(NodeId(0)).expect("our node").endpoints(), 0);
}

#[test]
fn a_killed_client_frees_its_channel() {
    let file = Scratch::new();
    let node = file.serve();
    let mut clients: Vec<Child> = (0..3).map(|_| Child::start("idler", &file.0)).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.hear(), "connected"));
    assert_eq!(node.endpoints(), 3);
    clients[1].signal(Signal::KILL);
    let took = eventually("a killed client keeps its channel", || node.endpoints() == 2);
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(clients.pop().expect("the third").stop(), "Ok(())");
    eventually("a client that has gone keeps its channel", || node.endpoints() == 1);
}

#[test]
fn a_killed_server_is_noticed_and_a_restart_says_so() {
    let file = Scratch::new();
    let mut server = Child::start("server", &file.0);
    assert_eq!(server.hear(), "New");
    let fabric = ShmFiles::new(&[&file.0], Vec::new()).expect("the server's file");
    let gone = FabricError { node: NodeId(0), fault: Fault::Unreachable };
    // One client waits for a call that is never answered, and one uses one-sided verbs.
    for calls in [true, false] {
        block_on(&fabric, ClientId(1), async |lane| {
            let mut round = lane.round();
            let call = round.call(NodeId(0), &[41, 1], None, 2);
            round.write_words(word(3), &[7]);
            let done = lane.execute(round).await.expect("a healthy node");
            assert_eq!(done.reply(call), [42, 2]);
            drop(done);
            let pending = calls.then(|| {
                let mut round = lane.round();
                round.call(NodeId(0), &[0], None, 2);
                lane.execute(round)
            });
            thread::sleep(Duration::from_millis(20));
            server.signal(Signal::KILL);
            let began = Instant::now();
            match pending {
                Some(pending) => assert_eq!(pending.await.err(), Some(gone)),
                None => loop {
                    let mut round = lane.round();
                    round.read(word(3), 8);
                    match lane.execute(round).await {
                        Ok(done) => drop(done),
                        Err(error) => break assert_eq!(error, gone),
                    }
                    assert!(began.elapsed() < Duration::from_secs(1), "the server's death was not noticed");
                },
            }
            assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
            println!("a server's death is noticed after {:?}, calls {calls}", began.elapsed());
        })
        .expect("a connection");
        server.process.wait().expect("it has ended");
        let refused = block_on(&fabric, ClientId(1), async |_| ());
        let unreachable = Fault::Refused(Refusal::Unreachable(std::io::ErrorKind::ConnectionRefused.into()));
        assert_eq!(refused, Err(FabricError { node: NodeId(0), fault: unreachable }));
        server = Child::start("server", &file.0);
        assert_eq!(server.hear(), "Killed");
    }
    block_on(&fabric, ClientId(2), async |lane| {
        let mut round = lane.round();
        let kept = round.read(word(3), 8);
        let done = lane.execute(round).await.expect("the restarted node");
        assert_eq!(done.words(kept), [7]);
        drop(done);
        // A clean stop is noticed, too.
        let mut second = Child::start("server", &file.0);
        let refused = second.hear();
        assert!(refused.contains(&format!("another process ({}) serves it", server.process.id())), "{refused}");
        assert_eq!(server.stop(), "stopped");
        let began = Instant::now();
        loop {
            let mut round = lane.round();
            round.read(word(3), 8);
            if let Err(error) = lane.execute(round).await {
                break assert_eq!(error, gone);
            }
            assert!(began.elapsed() < Duration::from_secs(1), "the server's stop was not noticed");
        }
    })
    .expect("a connection");
    assert_eq!(file.serve().found(), PriorMemory::Stopped);
}

#[test]
fn clients_of_passive_memory_go_on_when_others_are_killed() {
    let file = Scratch::new();
    let region = file.lay_out().region().clone();
    let sum = || region.words()[0].load(Ordering::Acquire);
    let mut adders: Vec<Child> = (0..2).map(|_| Child::start("adder", &file.0)).collect();
    adders.iter_mut().for_each(|adder| assert_eq!(adder.hear(), "connected"));
    eventually("nobody adds", || sum() > 0);
    let mut killed = adders.pop().expect("the second");
    killed.signal(Signal::KILL);
    killed.process.wait().expect("it has ended");
    let before = sum();
    eventually("the other one has stopped", || sum() > before + 1000);
    // One process takes all channels that are left, and is killed. They are free again.
    let mut crowd = Child::start("crowd", &file.0);
    let taken: usize = crowd.hear().parse().expect("a number");
    assert_eq!(taken, 511, "the channel of the killed adder is free, that of the other one is not");
    let fabric = ShmFiles::new(&[&file.0], Vec::new()).expect("the file");
    let full = FabricError { node: NodeId(0), fault: Fault::Refused(Refusal::Full) };
    assert_eq!(fabric.connect(ClientId(1)).err(), Some(full));
    crowd.signal(Signal::KILL);
    crowd.process.wait().expect("it has ended");
    assert!(fabric.connect(ClientId(1)).is_ok());
    assert!(adders[0].process.try_wait().expect("a child").is_none(), "the adder is not of the dead");
}

#[test]
fn a_client_of_passive_memory_paused_inside_a_write_is_revoked() {
    let file = Scratch::new();
    let region = file.lay_out().region().clone();
    let fabric = ShmFiles::new(&[&file.0], Vec::new()).expect("the file");
    let mut writer = Child::start("writer", &file.0);
    assert_eq!(writer.hear(), "connected");
    assert_eq!(fabric.is_connected(ClientId(9)), Some(true));
    pause_inside(&writer, &region);
    revoke_paused(&fabric, writer, &region);
    assert_eq!(fabric.is_connected(ClientId(9)), None);
}

#[test]
fn passive_memory_and_a_server_exclude_each_other() {
    let [passive, served, other] = [(); 3].map(|()| Scratch::new());
    let lay_out = |file: &Scratch, bytes| PassiveFile::open(&file.0, bytes);
    let header_and_length = |file: &Scratch| {
        let mut header = [0; 64];
        let mut file = std::fs::File::open(&file.0).expect("the file");
        file.read_exact(&mut header).expect("the file");
        (header, file.metadata().expect("the file").len())
    };
    let unchanged = |file: &Scratch, what: &dyn Fn() -> Option<OpenError>| {
        let before = header_and_length(file);
        let error = what().expect("it is refused");
        assert_eq!(header_and_length(file), before, "{error}");
        error
    };
    let region = passive.lay_out().region().clone();
    region.words()[0].store(7, Ordering::Release);
    assert_eq!(std::fs::metadata(&passive.0).expect("the file").len(), (4 << 20) + REGION as u64);
    let again = lay_out(&passive, None).expect("it is one already");
    assert!(again.is_published() && again.region().words()[0].load(Ordering::Acquire) == 7);
    drop(again);
    let node = served.serve();
    let refused = unchanged(&served, &|| lay_out(&served, None).err());
    let own = std::process::id().into();
    assert!(matches!(refused, OpenError::Served { pid, .. } if pid == own), "{refused}");
    // Files of both kinds are no cluster.
    for paths in [[&passive.0, &served.0], [&served.0, &passive.0]] {
        let mixed = ShmFiles::new(&paths, Vec::new());
        assert!(matches!(mixed, Err(OpenError::Mixed { .. })), "{mixed:?}");
    }
    drop(node);
    let refused = unchanged(&served, &|| lay_out(&served, None).err());
    assert!(matches!(refused, OpenError::NeedsServer { .. }), "{refused}");
    let refused = unchanged(&passive, &|| ShmNode::open(&passive.0, None).err());
    assert!(matches!(refused, OpenError::Passive { .. }), "{refused}");
    let refused = unchanged(&passive, &|| lay_out(&passive, Some(4096)).err());
    assert!(matches!(refused, OpenError::Size { found: 0x10_0000, expected: 4096, .. }), "{refused}");
    // A file may begin with zeros, and be another program's.
    let mut content = vec![0; 5 << 20];
    for at in [0, 32 << 10] {
        content[at] = b'x';
        std::fs::write(&other.0, &content).expect("the file");
        content[at] = 0;
        let refused = unchanged(&other, &|| lay_out(&other, Some(4096)).err());
        assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
    }
    // A process that was killed while it took the file's space has left zeros.
    std::fs::write(&other.0, &content).expect("the file");
    assert!(lay_out(&other, Some(REGION as u64)).is_ok_and(|file| !file.is_published()));
}

#[test]
fn what_is_not_ours_is_refused_untouched() {
    let file = Scratch::new();
    let open = |bytes| ShmNode::open(&file.0, bytes).map(|node| node.found());
    let unchanged = |what: &str| {
        let before = std::fs::read(&file.0).expect("the file")[..8192].to_vec();
        let length = std::fs::metadata(&file.0).expect("the file").len();
        let error = open(Some(REGION as u64)).expect_err(what);
        assert!(ShmFiles::new(&[&file.0], Vec::new()).is_err(), "{what}");
        assert_eq!(std::fs::read(&file.0).expect("the file")[..8192], before, "{what}");
        assert_eq!(std::fs::metadata(&file.0).expect("the file").len(), length, "{what}");
        error
    };
    let patch = |at: u64, word: u64| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&file.0).expect("the file");
        file.write_all_at(&word.to_le_bytes(), at).expect("the file");
    };
    assert!(matches!(open(None), Err(OpenError::Io { .. })));
    std::fs::write(&file.0, vec![b'x'; 10_000]).expect("the file");
    assert!(matches!(unchanged("some text"), OpenError::Foreign { .. }));
    std::fs::remove_file(&file.0).expect("the file");
    assert_eq!(open(Some(REGION as u64)).expect("a new file"), PriorMemory::New);
    assert_eq!(open(Some(REGION as u64)).expect("our file"), PriorMemory::Stopped);
    assert_eq!(open(None).expect("our file"), PriorMemory::Stopped);
    assert!(matches!(open(Some(4096)), Err(OpenError::Size { found: 0x10_0000, expected: 4096, .. })));
    patch(8, 2);
    assert!(matches!(unchanged("a newer format"), OpenError::Version { found: 2, known: 1, .. }));
    patch(8, 1);
    patch(16, 1 << 40);
    assert!(matches!(unchanged("an unknown feature"), OpenError::Features { .. }));
    patch(16, 0);
    let file = std::fs::OpenOptions::new().write(true).open(&file.0).expect("the file");
    let length = file.metadata().expect("the file").len();
    for other in [length - 4096, length + 4096] {
        file.set_len(other).expect("the file");
        assert!(matches!(unchanged("another length"), OpenError::Size { .. }));
    }
    file.set_len(length).expect("the file");
    patch(0, 0x1234);
    assert!(matches!(unchanged("another magic"), OpenError::Foreign { .. }));
}

/// An idle node and an idle client sleep. The limit is loose, because the machine may be busy.
#[test]
fn idle_processes_sleep() {
    let file = Scratch::new();
    let mut server = Child::start("server", &file.0);
    assert_eq!(server.hear(), "New");
    let mut client = Child::start("idler", &file.0);
    assert_eq!(client.hear(), "connected");
    let before = [server.ticks(), client.ticks()];
    thread::sleep(Duration::from_secs(1));
    let used = [server.ticks() - before[0], client.ticks() - before[1]];
    println!("CPU time of an idle server and an idle client in a second, in ticks of 10 ms: {used:?}");
    assert!(used.iter().all(|ticks| *ticks < 5), "{used:?} of 100 ticks");
}
