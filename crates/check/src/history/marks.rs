//! The first and the last line of a recorded history, which say whether it is whole.
//!
//! ```text
//! {"history":"begun"}      or "durable", if it was recorded so
//! ... the lines of transactions and rollbacks
//! {"history":"ended"}
//! ```
//!
//! Such a history cannot lose its lines in silence:
//!
//! - A file without any line was emptied, or its client ended before it began.
//! - A history without an end is of a client that was killed, or that runs still.
//! - The first line of a history that could not be written on, as on a full disk, is changed to
//!   `"cut"`. Versions would be missing in it, and a check would accuse the innocent.
//!
//! A history without marks is read as well: older programs wrote none.

use super::error::LineError;

/// What a mark says.
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

    /// The line, with its newline. Both first lines of a history can take each other's place: they
    /// have the same length.
    pub(crate) fn line(self) -> String {
        const WIDTH: usize = "durable".len();
        let word = self.word();
        format!("{{\"history\":\"{word}\"{:1$}}}\n", "", WIDTH - word.len())
    }
}
