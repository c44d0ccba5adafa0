//! Limits are checked before anything is computed from them, and errors say which table, key, limit and number.
