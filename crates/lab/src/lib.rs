//! Experiments on simulated clusters: what the simulator is for.
#![forbid(unsafe_code)]

mod cluster;
pub mod hardware;

pub use cluster::{Bench, LabError};
