//! Futures that are dropped inside a transaction, which then goes on.
