//! What hostile but fair users do with the command, one file a kind of use: each test failed once.

#[path = "../support/mod.rs"]
mod support;

mod checks;
mod creation;
mod files;
mod memory;
mod names;
mod output;
mod paths;
mod scanners;
mod signals;
mod status;
