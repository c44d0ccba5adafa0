//! What a status shows when something is missing or strange.
