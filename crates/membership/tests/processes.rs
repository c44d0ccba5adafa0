//! Tests of a configuration in a file that real processes share. One of them is killed with `kill
//! -9`, because a thread that ends releases nothing that a process does.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use remora_membership::{Configuration, LockedFile, Standing};

const CLUSTER: u64 = 7;
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder for a test's files, which is removed with it.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Place {
        let place = std::env::temp_dir().join(format!("remora-cluster-{}-{test}", std::process::id()));
        fs::create_dir(&place).unwrap();
        Place(place)
    }

    fn open(&self) -> LockedFile {
        LockedFile::open(self.0.join("configuration"), CLUSTER).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// This program again, as a process that does one of the things below.
struct Process(Child);

impl Process {
    fn start(place: &Place, what: &str, client: u32) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "what_another_process_does", "--ignored", "--nocapture"])
            .env("REMORA_PLACE", &place.0)
            .env("REMORA_WHAT", what)
            .env("REMORA_CLIENT", client.to_string())
            .stdout(Stdio::piped())
            .spawn();
        Process(child.unwrap())
    }

    /// Waits until the process has printed this word.
    fn wait_for(&mut self, word: &str) {
        let output = self.0.stdout.take().unwrap();
        assert!(BufReader::new(output).lines().any(|line| line.unwrap().contains(word)), "it says {word}");
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "is run as a process by the others"]
fn what_another_process_does() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("REMORA_PLACE").is_empty() {
        return;
    }
    let file = LockedFile::open(Path::new(&variable("REMORA_PLACE")).join("configuration"), CLUSTER).unwrap();
    let file: &dyn Configuration = &file;
    let client: u32 = variable("REMORA_CLIENT").parse().unwrap();
    file.change(|membership| membership.join(client, 1, 1, file.process())).unwrap().unwrap();
    match variable("REMORA_WHAT").as_str() {
        "renews" => {
            for _ in 0..200 {
                file.change(|membership| membership.renew(client)).unwrap().unwrap();
            }
            file.change(|membership| membership.leave(client)).unwrap().unwrap();
        }
        "holds the lock" => {
            let change = file.change(|membership| {
                membership.join(99, 1, 1, None).unwrap();
                println!("holding");
                thread::sleep(PATIENCE);
            });
            change.unwrap();
        }
        "rests" => {
            println!("resting");
            thread::sleep(PATIENCE);
        }
        what => panic!("what is {what:?}?"),
    }
}

#[test]
fn processes_put_their_changes_into_one_order() {
    let place = Place::new("order");
    let mut processes: Vec<Process> = (1..5).map(|client| Process::start(&place, "renews", client)).collect();
    for process in &mut processes {
        assert!(process.0.wait().unwrap().success());
    }
    let file = place.open();
    let (generation, clients) =
        (&file as &dyn Configuration).change(|all| (all.generation(), all.clients().count())).unwrap();
    // Each process has joined and left. A lost change would have left one of them there.
    assert_eq!((generation, clients), (8, 0));
}

#[test]
fn a_process_that_is_killed_while_it_holds_the_lock_gives_it_up() {
    let place = Place::new("lock");
    let mut holder = Process::start(&place, "holds the lock", 1);
    holder.wait_for("holding");
    holder.kill();
    let file = place.open();
    let clients: Vec<_> = (&file as &dyn Configuration).change(|all| all.clients().collect()).unwrap();
    assert_eq!(clients, [(1, Standing::Alive)], "its change never was");
}

/// A client at rest has no lease that runs. Its process shows that it has ended.
#[test]
fn a_client_at_rest_is_found_when_its_process_is_killed() {
    let place = Place::new("rest");
    let file = place.open();
    let mut resting = Process::start(&place, "rests", 1);
    resting.wait_for("resting");
    let wait = || {
        thread::sleep(Duration::from_millis(50));
        file.orphans()
    };
    assert!((0..4).all(|_| wait().is_empty()), "it lives");
    resting.kill();
    let began = Instant::now();
    while wait() != [1] {
        assert!(began.elapsed() < PATIENCE);
    }
}
