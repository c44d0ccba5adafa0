//! Tables whose creation or loading fails on its way: the next attempt finds no trace of it.
