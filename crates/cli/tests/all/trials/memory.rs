//! Memory that the system promises but does not have: containers, several nodes of one host, full
//! file systems.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::support::{Ended, Process, remora, scratch, words};

const MIB: u64 = 1 << 20;

/// A control group with a memory limit, which is removed after the test.
struct Group(PathBuf);

impl Group {
    /// Makes the group. Returns `None`, and prints a message, if the test may not make one.
    fn new(name: &str, limit: u64) -> Option<Group> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, own)| own);
        let name = format!("remora-{name}-{}", std::process::id());
        let places = [
            (Path::new("/sys/fs/cgroup/memory").join(own.trim_start_matches('/')), "memory.limit_in_bytes"),
            (PathBuf::from("/sys/fs/cgroup"), "memory.max"),
        ];
        for (place, file) in places {
            let group = Group(place.join(&name));
            let made = fs::create_dir(&group.0).and_then(|()| fs::metadata(group.0.join(file)));
            if made.and_then(|_| fs::write(group.0.join(file), limit.to_string())).is_ok() {
                return Some(group);
            }
        }
        eprintln!("skipped: no control group can be made here");
        None
    }

    /// Returns lines of a shell that enter the group.
    fn entered(&self) -> String {
        format!("echo $$ > '{}/cgroup.procs'", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may not have left the group yet.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A folder with a file system in memory, which is removed after the test.
struct Mounted(PathBuf);

impl Mounted {
    /// Mounts the file system. Returns `None`, and prints a message, if the test may not mount one.
    fn new(name: &str, size: &str) -> Option<Mounted> {
        let folder = scratch(&format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "remora"]).arg(&folder).output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Mounted(folder));
        }
        eprintln!("skipped: no file system can be mounted here");
        None
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
        let _ = fs::remove_dir(&self.0);
    }
}

/// Asserts that a process was not killed, and says how much memory there is.
#[track_caller]
fn assert_refused(ended: &Ended, said: &[&str]) {
    assert_eq!(ended.code, Some(2), "{} {}", ended.output, ended.errors);
    assert!(ended.output.is_empty(), "{}", ended.output);
    assert!(said.iter().all(|said| ended.errors.contains(said)), "{}", ended.errors);
}

/// Waits until a memory node is ready. Fails with how the process has ended instead.
#[track_caller]
fn ready(mut node: Process) -> Result<Process, Ended> {
    for _ in 0..3_000 {
        if node.output().ends_with('\n') {
            return Ok(node);
        }
        if node.has_ended() {
            return Err(node.wait());
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("a memory node neither is ready nor ends");
}

/// A memory node that was started after some lines of a shell.
fn memnode(shell: &str, name: &str, options: &str) -> Result<Process, Ended> {
    ready(Process::start_after(shell, name, &words(&format!("memnode {options}"))))
}

#[test]
fn a_container_gives_what_it_has_and_gives_it_once() {
    let Some(group) = Group::new("container", 200 * MIB) else { return };
    let node = |name, size: &str| memnode(&group.entered(), name, &format!("--listen 127.0.0.1:0 --size {size}"));
    let group = group.0.display().to_string();
    let too_much = node("container-1", "1GiB").map(drop).expect_err("ready with more than there is");
    assert_refused(
        &too_much,
        &["--size 1073741824: ", "1024 MiB are too much: the control group", &group, " MiB left"],
    );
    let first = node("container-2", "100MiB").expect("there is so much");
    let second = node("container-3", "100MiB").map(drop).expect_err("ready with what another has");
    assert_refused(&second, &["--size 104857600: ", "the control group"]);

    // The node has all the memory that it has promised.
    let address = first.output();
    let address = address.split("listening on ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let line = format!("bench smallbank --connect {address} --replicas 1 --accounts 250000 --threads 1 --seconds 0.2");
    let filled = remora("container-4", &words(&line));
    assert_eq!(filled.code, Some(0), "{}", filled.errors);
    let status = remora("container-5", &["status", "--connect", address]);
    assert_eq!(status.code, Some(0), "{}", status.output);
}

/// Nodes of one process are checked, too.
#[test]
fn a_containers_limit_holds_for_embedded_nodes() {
    let Some(group) = Group::new("embedded", 200 * MIB) else { return };
    let line = words("bench smallbank --accounts 2000000 --threads 1 --seconds 0.1");
    let ended = Process::start_after(&group.entered(), "embedded", &line).wait();
    assert_refused(&ended, &["3 memory nodes need ", "the control group"]);
}

#[test]
fn limits_of_the_process_are_seen() {
    // Kilobytes of address space: enough for the memory, and not for what else there is.
    let node = |shell: &str, name, options: &str| memnode(shell, name, options).map(drop).expect_err("ready");
    let ended = node("ulimit -v 300000", "limits-1", "--listen 127.0.0.1:0 --size 250MiB");
    assert_refused(&ended, &["--size 262144000: ", "ulimit -v leaves"]);
    let ended = node("ulimit -d 200000", "limits-2", "--listen 127.0.0.1:0 --size 1GiB");
    assert_refused(&ended, &["--size 1073741824: ", "ulimit -d leaves"]);
    // A file that grows beyond this limit ends the process by a signal.
    let path = scratch("limits-file");
    let _ = fs::remove_file(&path);
    let ended = node("ulimit -f 100000", "limits-3", &format!("--shm {} --size 64MiB", path.display()));
    assert_refused(&ended, &["--size 67108864: ", "it takes 198 MiB", "ulimit -f allows 97 MiB"]);
    assert!(!path.exists(), "it leaves a file");
}

#[test]
fn a_full_file_system_kills_no_process() {
    let Some(mounted) = Mounted::new("full", "300m") else { return };
    let (first, second) = (mounted.path("a"), mounted.path("b"));
    let _node = memnode("", "full-1", &format!("--shm {first} --size 60MiB")).expect("there is room");
    let ended = memnode("", "full-2", &format!("--shm {second} --size 60MiB")).map(drop).expect_err("ready");
    let said = [
        "--size 62914560: ",
        "it takes 194 MiB, of which 134 MiB are for its clients' channels",
        " MiB are free where",
    ];
    assert_refused(&ended, &said);
    assert!(!Path::new(&second).exists(), "it leaves a file");
    // Another program takes the rest.
    let rest = Command::new("dd").args(["if=/dev/zero", "bs=1M", &format!("of={}", mounted.path("rest"))]).output();
    assert!(!rest.unwrap().status.success(), "the file system is not full");
    let line =
        format!("bench smallbank --connect shm:{first} --replicas 1 --accounts 150000 --threads 2 --seconds 0.2");
    let filled = remora("full-3", &words(&line));
    assert_eq!(filled.code, Some(0), "{}", filled.errors);
    let _ = fs::remove_file(mounted.path("a.configuration"));
}
