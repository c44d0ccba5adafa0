//! Commands of sorted sets.
