//! Experiments on simulated clusters: calibration, reproduced tables, fault campaigns, litmus
//! tests, clients that all change one record or read one shard, and traces of one transaction.
#![forbid(unsafe_code)]

pub mod campaign;
mod cluster;
pub mod hardware;
pub mod hot;
pub mod litmus;
pub mod reproduce;
pub mod spread;
pub mod trace;

pub use cluster::{Bench, LabError};
