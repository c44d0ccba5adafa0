//! Unusual but legitimate uses of the command, one file for each kind. Each test has failed once.

mod checks;
mod creation;
mod files;
mod hot;
mod memory;
mod names;
mod output;
mod paths;
mod scanners;
mod signals;
mod status;
