//! Paths are bytes.
