//! How long locks are held, and what is sent for those who wait for them.
