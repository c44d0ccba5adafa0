//! Unusual but legitimate uses of the library, one file for each kind. Each test has failed once.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod at_rest;
mod creation;
mod dense;
mod drop;
mod dropped;
mod given_back;
mod held;
mod hot;
mod ids;
mod messages;
mod owners;
mod patience;
mod rename;
mod small;
mod together;
