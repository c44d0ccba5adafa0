//! Experiments on simulated clusters: what the simulator is for.
#![forbid(unsafe_code)]

pub mod campaign;
mod cluster;
pub mod hardware;
pub mod latches;
pub mod litmus;
pub mod reproduce;

pub use cluster::{Bench, LabError};
