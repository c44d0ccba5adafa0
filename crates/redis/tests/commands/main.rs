//! Each command, as a client meets it: what is answered, and what is changed.
//!
//! A scenario is lines of `> a command` and, below each, its answer in one line ([`server::text`]).
//! `REMORA_REDIS=HOST:PORT` names a `redis-server` with which each scenario is compared, too. Its
//! keys are deleted before each. A line `>72 a command` is not compared, because Redis 7.0 answers
//! it differently.

mod differential;
mod hashes;
mod keys;
mod keyspace;
mod lists;
mod packed;
mod server;
mod sets;
mod sorted_sets;
mod spread;
mod strings;
