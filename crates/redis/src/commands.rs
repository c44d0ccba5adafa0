//! What runs commands, one module a group. Each has its rows of the table.

pub mod hashes;
pub mod keys;
pub mod lists;
pub mod random;
pub mod scan;
pub mod sets;
pub mod sorted_sets;
pub mod strings;
