//! Experiments on simulated clusters: calibration, reproduced tables, fault campaigns, litmus
//! tests, and traces of one transaction.
#![forbid(unsafe_code)]

pub mod campaign;
mod cluster;
pub mod hardware;
pub mod litmus;
pub mod reproduce;
pub mod trace;

pub use cluster::{Bench, LabError};
