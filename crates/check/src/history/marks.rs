//! The marks of a recorded history: its first and its last line, which say whether it is whole.
//!
//! ```text
//! {"history":"begun"}      or "durable", if it was recorded so
//! ... the lines of transactions and rollbacks
//! {"history":"ended"}
//! ```
//!
//! With these marks, a history cannot lose lines without notice:
//!
//! - An empty file was emptied, or its client ended before it began the history.
//! - A history without an end comes from a client that was killed, or that is still running.
//! - If a history could not be written on (on a full disk, for example), its first line is changed
//!   to `"cut"`. Versions are missing in it, so a check would accuse correct transactions.
//!
//! A history without marks is accepted as well, because older programs wrote none.

use super::error::LineError;

/// What a mark says about its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A history begins: durable, or not.
    Begun { durable: bool },
    /// A history begins, and lacks its end.
    Cut,
    /// A history ends, and is whole.
    Ended,
}

impl Mark {
    const ALL: [Mark; 4] = [Mark::Begun { durable: false }, Mark::Begun { durable: true }, Mark::Cut, Mark::Ended];

    fn word(self) -> &'static str {
        match self {
            Mark::Begun { durable: false } => "begun",
            Mark::Begun { durable: true } => "durable",
            Mark::Cut => "cut",
            Mark::Ended => "ended",
        }
    }

    pub(crate) fn of(word: &str) -> Result<Mark, LineError> {
        let found = Mark::ALL.into_iter().find(|mark| mark.word() == word);
        found.ok_or_else(|| LineError::UnknownMark(word.to_owned()))
    }

    /// Returns the line of the mark, with its newline. The two first lines of a history have the
    /// same length, so one can replace the other in the file.
    pub(crate) fn line(self) -> String {
        const WIDTH: usize = "durable".len();
        let word = self.word();
        format!("{{\"history\":\"{word}\"{:1$}}}\n", "", WIDTH - word.len())
    }
}
