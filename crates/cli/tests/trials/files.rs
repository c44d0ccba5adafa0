//! Results and histories: where they go, and what happens when they cannot.
