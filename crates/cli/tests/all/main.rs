//! What the command does, with its processes. One program has all of these tests, because many of
//! them wait for leases and processes, and others can run meanwhile.

#[path = "../support/mod.rs"]
mod support;

mod command;
mod drill;
mod fail_over;
mod processes;
mod trials;
mod up;
