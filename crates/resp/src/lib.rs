//! The codec of a Redis front door: bytes in, commands out; replies in, bytes out. It does no I/O,
//! and knows no command.
//!
//! | module | what |
//! | --- | --- |
//! | [`parse`] | commands from what clients send: arrays of bulk strings, and inline commands |
//! | [`reply`] | replies to bytes, in RESP2 or RESP3 |
//! | [`number`] | integers, scores, and the long doubles of `INCRBYFLOAT` |
//! | [`glob`] | patterns |
//!
//! The types:
//!
//! 1. [`Parser`] is the state of one connection. The caller owns the buffer and may read into it in
//!    any pieces. Arguments are places in that buffer, so nothing is copied.
//! 2. [`Command`] is one command: its arguments, which live as long as the buffer.
//! 3. [`ParseError`] is what ends a connection. It writes its own reply.
//! 4. [`ReplyWriter`] appends replies to a buffer, in the form that the connection's [`Version`]
//!    has.
//!
//! ```
//! use remora_resp::{ParseError, Parser, ReplyWriter, Version};
//!
//! /// Answers what has arrived. Returns how many bytes at the end of the input must be kept.
//! fn answer(
//!     parser: &mut Parser,
//!     mut input: &mut [u8],
//!     out: &mut Vec<u8>,
//! ) -> Result<usize, ParseError> {
//!     while let Some(command) = parser.next(&mut input)? {
//!         let mut reply = ReplyWriter::new(out, Version::Resp2);
//!         match (command.name(), command.get(1)) {
//!             (b"ECHO", Some(text)) => reply.bulk(text),
//!             _ => reply.simple("PONG"),
//!         }
//!     }
//!     Ok(input.len())
//! }
//!
//! let mut parser = Parser::new();
//! let mut out = Vec::new();
//! let mut buffer = b"PING\r\n*2\r\n$4\r\nECHO\r\n$5\r\nhel".to_vec();
//! let kept = answer(&mut parser, &mut buffer, &mut out).unwrap();
//! assert_eq!((kept, &out[..]), (21, &b"+PONG\r\n"[..]));
//!
//! // The rest arrives, and then nonsense: the complete command is answered before the error.
//! buffer.drain(..buffer.len() - kept);
//! buffer.extend_from_slice(b"lo\r\n*x\r\n");
//! let error = answer(&mut parser, &mut buffer, &mut out).unwrap_err();
//! error.write_reply(&mut out);
//! assert_eq!(out, b"+PONG\r\n$5\r\nhello\r\n-ERR Protocol error: invalid multibulk length\r\n");
//! ```
#![forbid(unsafe_code)]

pub mod glob;
mod inline;
pub mod number;
pub mod parse;
pub mod reply;

pub use parse::{Command, ParseError, Parser};
pub use reply::{ReplyWriter, Version};
