//! The error for a record that no gateway has written.

use remora::Error;

/// A record that is damaged.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a record of the gateway is damaged: {0}")]
struct Damaged(&'static str);

pub(crate) fn damaged(what: &'static str) -> Error {
    Error::user(Damaged(what))
}
