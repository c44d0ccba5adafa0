//! Signals, from the first moment on.
