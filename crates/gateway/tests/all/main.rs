//! The gateway on embedded clusters, one file for each part of it. What needs a process or a
//! feature of its own is beside this folder.

mod concurrent;
mod monitor;
mod once;
mod server;
mod serving;
mod spread;
