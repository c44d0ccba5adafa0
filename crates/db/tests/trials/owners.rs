//! Handles that are used with a cluster, a protocol or a transaction that they do not belong to.
