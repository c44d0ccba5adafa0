//! What a run ran on: figures mean nothing without it.

use std::fs;

use remora::node::Pages;
use serde::Serialize;

/// The machine of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Machine {
    /// The processor's name, as it says itself.
    pub cpu: String,
    /// Hardware threads that this process may use.
    pub cores: usize,
    /// Which pages back the memory nodes.
    pub pages: String,
}

impl Machine {
    /// This machine, with memory nodes backed by these pages.
    #[must_use]
    pub fn this(pages: Option<Pages>) -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pages = pages.map_or_else(|| "unknown".to_owned(), |pages| pages.to_string());
        Machine { cpu: cpu(), cores, pages }
    }
}

fn cpu() -> String {
    field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Most memory that this process has had so far.
pub(crate) fn peak_bytes() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM")
}

/// Bytes of what a file counts in kilobytes.
fn kilobytes(path: &str, name: &str) -> Option<u64> {
    field(path, name)?.strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The value of the first line `name : value` of a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let values = text.lines().filter_map(|line| line.split_once(':'));
    values.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}
