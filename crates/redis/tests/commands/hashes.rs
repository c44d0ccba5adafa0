//! Commands of hashes.
