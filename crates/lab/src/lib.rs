//! Experiments on simulated clusters: calibration, reproduced tables, fault campaigns and litmus
//! tests.
#![forbid(unsafe_code)]

pub mod campaign;
mod cluster;
pub mod hardware;
pub mod latches;
pub mod litmus;
pub mod reproduce;

pub use cluster::{Bench, LabError};
