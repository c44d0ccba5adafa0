//! A Redis front door for a cluster: a stateless process in which any number of clients'
//! connections run transactions.
//!
//! | module | what |
//! | --- | --- |
//! | [`net`] | threads, sockets, back-pressure and limits; it knows no command |
#![forbid(unsafe_code)]

pub mod net;
