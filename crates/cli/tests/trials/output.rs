//! Output that cannot be written.
