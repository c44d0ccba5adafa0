//! Names that do not resolve, or not in time, and errors in the words of the system.
