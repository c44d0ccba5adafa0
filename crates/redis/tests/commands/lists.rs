//! Commands of lists.
