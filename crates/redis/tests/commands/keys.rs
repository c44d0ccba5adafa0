//! Commands of keys of any type.
