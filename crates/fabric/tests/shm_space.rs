//! Tests of the space of memory nodes in files: it is taken before they are served.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use remora_fabric::shm::file::{OpenError, PriorMemory, ShmNode};

/// Bytes of the mailboxes.
const CONTROL: u64 = 134 << 20;
const REGION: u64 = 16 << 20;

/// A folder that is removed after the test. It has a file system of its own if it was made with
/// one.
struct Folder {
    path: PathBuf,
    mounted: bool,
}

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("remora-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder { path, mounted: false }
    }

    /// Makes a folder with a file system in memory. Returns `None`, with a message, where the test
    /// may not mount one.
    fn tmpfs(test: &str, size: &str) -> Option<Folder> {
        let mut folder = Folder::new(test);
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "remora"]).arg(&folder.path);
        let mounted = mount.output();
        folder.mounted = mounted.is_ok_and(|mounted| mounted.status.success());
        if !folder.mounted {
            eprintln!("skipped: no file system can be mounted here");
        }
        folder.mounted.then_some(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg(&self.path).status();
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn taken(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_file_has_all_of_its_space_before_it_is_served() {
    let folder = Folder::new("space");
    let path = folder.path.join("node");
    let node = ShmNode::open(&path, Some(REGION)).unwrap();
    assert!(taken(&path) >= CONTROL + REGION, "{} bytes", taken(&path));
    node.region().words()[0].store(7, Ordering::Relaxed);
    drop(node);

    // A copy of the file without its zeros.
    let copy = folder.path.join("copy");
    let copied = Command::new("cp").args(["--sparse=always"]).arg(&path).arg(&copy).status();
    assert!(copied.unwrap().success());
    assert!(taken(&copy) < CONTROL);
    let node = ShmNode::open(&copy, None).unwrap();
    assert_eq!(node.found(), PriorMemory::Stopped);
    assert!(taken(&copy) >= CONTROL + REGION, "{} bytes", taken(&copy));
    assert_eq!(node.region().words()[0].load(Ordering::Relaxed), 7);
}

#[test]
fn what_has_no_room_is_refused_and_leaves_nothing() {
    let Some(folder) = Folder::tmpfs("no-room", "160m") else { return };
    let (path, other) = (folder.path.join("node"), folder.path.join("other"));
    let node = ShmNode::open(&path, Some(REGION)).unwrap();
    node.region().words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
    let error = ShmNode::open(&other, Some(REGION)).unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, OpenError::NoRoom { .. }), "{said}");
    assert!(
        said.contains("it takes 150 MiB, of which 134 MiB are for its clients' channels")
            && said.contains(" MiB are free"),
        "{said}"
    );
    assert!(!other.exists());

    // A file that existed before does not change either.
    File::create(&other).unwrap();
    assert!(ShmNode::open(&other, Some(REGION)).is_err());
    assert_eq!((fs::metadata(&other).unwrap().len(), taken(&other)), (0, 0));

    // The space that is left cannot be taken from the node.
    let mut filler = File::create(folder.path.join("filler")).unwrap();
    while filler.write_all(&[1; 1 << 20]).is_ok() {}
    node.region().words().iter().for_each(|word| assert_eq!(word.swap(8, Ordering::Relaxed), 7));
    drop(node);
    let node = ShmNode::open(&path, Some(REGION)).expect("it has its space");
    assert_eq!(node.region().words()[1].load(Ordering::Relaxed), 8);
}

/// A file with holes is refused when there is no space for them.
#[test]
fn a_sparse_file_on_a_full_file_system_is_refused() {
    let Some(folder) = Folder::tmpfs("sparse", "160m") else { return };
    let (path, copy) = (folder.path.join("node"), folder.path.join("copy"));
    drop(ShmNode::open(&path, Some(REGION)).unwrap());
    let copied = Command::new("cp").args(["--sparse=always"]).arg(&path).arg(&copy).status();
    assert!(copied.unwrap().success());
    let error = ShmNode::open(&copy, None).unwrap_err();
    assert!(matches!(error, OpenError::NoRoom { .. }), "{error}");
    fs::remove_file(&path).unwrap();
    let mut file = File::options().append(true).open(&copy).unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), CONTROL + REGION, "it is as long as it was");
    drop(ShmNode::open(&copy, None).expect("there is space now"));
}
