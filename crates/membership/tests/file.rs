//! Runs the rules that every configuration keeps on the configuration in a file.

#[macro_use]
mod places;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use places::Place;
use remora_membership::{Configuration, LockedFile};

struct Folder(PathBuf);

impl Place for Folder {
    fn new() -> Folder {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("remora-file-{process}-{number}"));
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn open(&self) -> Arc<dyn Configuration> {
        Arc::new(LockedFile::open(self.0.join("configuration"), 7).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

conformance!(Folder);
