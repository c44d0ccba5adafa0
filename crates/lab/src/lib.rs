//! Experiments on simulated clusters: what the simulator is for.
#![forbid(unsafe_code)]

mod cluster;

pub use cluster::{Bench, LabError};
