//! Memory that is promised but not there: containers, several nodes of one host, full file systems.
