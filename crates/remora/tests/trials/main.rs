//! What hostile but fair programs do with the library, one file a kind of use: each test failed
//! once.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod at_rest;
mod creation;
mod drop;
mod dropped;
mod held;
mod ids;
mod messages;
mod owners;
mod patience;
mod rename;
mod small;
