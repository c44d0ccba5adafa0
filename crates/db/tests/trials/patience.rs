//! How long a transaction is tried, and what a deadline bounds.
