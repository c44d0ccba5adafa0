//! The machine that a run used. Figures mean nothing without it.

use std::fs;

use remora::node::Pages;
use serde::Serialize;

/// The machine of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Machine {
    /// The processor's name, as the processor itself gives it.
    pub cpu: String,
    /// The number of hardware threads that this process may use.
    pub cores: usize,
    /// The kind of pages that back the memory nodes.
    pub pages: String,
}

impl Machine {
    /// Describes this machine, with memory nodes that are backed by these pages.
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

/// Returns the most memory that this process has had so far, in bytes.
pub(crate) fn peak_bytes() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM")
}

/// Returns the bytes of a field that a file gives in kilobytes.
fn kilobytes(path: &str, name: &str) -> Option<u64> {
    field(path, name)?.strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the value of the first line `name : value` of a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let values = text.lines().filter_map(|line| line.split_once(':'));
    values.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}
