//! Commands of sets.
