//! The writer of history lines, for workers that record while their time is measured.
//!
//! Lines are formatted by hand into a buffer that is used again, so recording allocates nothing in
//! steady state. The buffer has only whole lines: a [`Line`] removes what it wrote unless it is
//! ended.

use super::WriteKind;

/// The outcome of a transaction, and when its client knew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The transaction committed.
    Committed {
        /// When the client knew the outcome, in nanoseconds.
        end_ns: u64,
    },
    /// The transaction aborted, and left no trace.
    Aborted {
        /// When the client knew the outcome, in nanoseconds.
        end_ns: u64,
    },
    /// The transaction may have committed or not, or may yet commit. So it has no end.
    Unknown,
}

/// The first part of a transaction's line, before its reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineHeader {
    /// The transaction's id, unique over all files that are checked together.
    pub id: u64,
    /// The worker that ran the transaction.
    pub worker: u64,
    /// When the transaction's first attempt began, in nanoseconds.
    pub start_ns: u64,
    /// The outcome of the transaction.
    pub outcome: Outcome,
    /// Whether the transaction read a snapshot, for which less than strict serializability is
    /// asked.
    pub snapshot: bool,
    /// Whether that snapshot need not have what had ended before it started.
    pub stale: bool,
}

/// A buffer of whole lines of a history, which the caller writes to a file from time to time.
#[derive(Debug, Default)]
pub struct LineBuffer {
    lines: Text,
    /// The writes and scans of the line that is being recorded. Its reads go to `lines`, so all
    /// three may be recorded in any order.
    writes: Text,
    scans: Text,
}

impl LineBuffer {
    /// Makes an empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a transaction's line.
    pub fn begin(&mut self, header: LineHeader) -> Line<'_> {
        let line_start = self.lines.used;
        self.writes.used = 0;
        self.scans.used = 0;
        let mut room = self.lines.room(4 * DIGITS_MAX + 128);
        room.put(b"{\"id\":");
        room.put_integer(header.id);
        room.put(b",\"worker\":");
        room.put_integer(header.worker);
        if header.snapshot {
            room.put(if header.stale { b",\"level\":\"serializable\"" } else { b",\"level\":\"snapshot\"" });
        }
        room.put(b",\"start_ns\":");
        room.put_integer(header.start_ns);
        match header.outcome {
            Outcome::Committed { end_ns } => {
                room.put(b",\"end_ns\":");
                room.put_integer(end_ns);
                room.put(b",\"status\":\"committed\",\"reads\":[");
            }
            Outcome::Aborted { end_ns } => {
                room.put(b",\"end_ns\":");
                room.put_integer(end_ns);
                room.put(b",\"status\":\"aborted\",\"reads\":[");
            }
            Outcome::Unknown => room.put(b",\"status\":\"unknown\",\"reads\":["),
        }
        room.close();
        let reads_start = self.lines.used;
        Line { buffer: self, line_start, reads_start, ended: false }
    }

    /// Appends a rollback's line. An entry is (table, key, installed version, restored version).
    pub fn rollback<'a>(&mut self, entries: impl IntoIterator<Item = (&'a str, &'a [u8], u64, u64)>) {
        self.lines.put(b"{\"rollback\":[");
        let start = self.lines.used;
        for (table, key, installed, restored) in entries {
            let mut room = self.lines.room_for_item(start, table, key);
            room.put_integer(installed);
            room.put(b",");
            room.put_integer(restored);
            room.put(b"]");
            room.close();
        }
        self.lines.put(b"]}\n");
    }

    /// Returns the whole lines recorded so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.lines.bytes[..self.lines.used]
    }

    /// Removes the lines, usually after they were written to a file, and keeps the memory.
    pub fn clear(&mut self) {
        self.lines.used = 0;
    }
}

/// A transaction's line that is being recorded. Dropping it without [`end`](Self::end) removes it.
#[must_use = "a line that is not ended is taken back"]
#[derive(Debug)]
pub struct Line<'b> {
    buffer: &'b mut LineBuffer,
    line_start: usize,
    reads_start: usize,
    ended: bool,
}

impl Line<'_> {
    /// Records that the transaction read the key at this version.
    pub fn read(&mut self, table: &str, key: &[u8], version: u64) {
        let mut room = self.buffer.lines.room_for_item(self.reads_start, table, key);
        room.put_integer(version);
        room.put(b"]");
        room.close();
    }

    /// Records that the transaction found the key absent. `tombstone` is the version of its
    /// tombstone, if there was one.
    pub fn read_absent(&mut self, table: &str, key: &[u8], tombstone: Option<u64>) {
        let mut room = self.buffer.lines.room_for_item(self.reads_start, table, key);
        room.put_version(tombstone);
        room.put(b",\"absent\"]");
        room.close();
    }

    /// Records that the transaction wrote the key. `version` may be `None` only for an aborted
    /// transaction, which may have ended before it knew one.
    pub fn write(&mut self, table: &str, key: &[u8], version: impl Into<Option<u64>>, kind: WriteKind) {
        let mut room = self.buffer.writes.room_for_item(0, table, key);
        room.put_version(version.into());
        match kind {
            WriteKind::Insert => room.put(b",\"insert\"]"),
            WriteKind::Update => room.put(b",\"update\"]"),
            WriteKind::Delete => room.put(b",\"delete\"]"),
        }
        room.close();
    }

    /// Records that the transaction scanned from `from` (inclusive) to `to` (exclusive) and got
    /// these keys and versions.
    pub fn scan<'a>(
        &mut self,
        table: &str,
        from: &[u8],
        to: &[u8],
        entries: impl IntoIterator<Item = (&'a [u8], u64)>,
    ) {
        let scans = &mut self.buffer.scans;
        scans.room_for_item(0, table, from).close();
        let mut room = scans.room(2 * to.len() + 16);
        room.put_hex(to);
        room.put(b",[");
        room.close();
        let start = scans.used;
        for (key, version) in entries {
            let separate = scans.used > start;
            let mut room = scans.room(2 * key.len() + DIGITS_MAX + 16);
            if separate {
                room.put(b",");
            }
            room.put(b"[");
            room.put_hex(key);
            room.put(b",");
            room.put_integer(version);
            room.put(b"]");
            room.close();
        }
        scans.put(b"]]");
    }

    /// Completes the line.
    pub fn end(mut self) {
        self.ended = true;
        let LineBuffer { lines, writes, scans } = &mut *self.buffer;
        lines.put(b"],\"writes\":[");
        lines.put(&writes.bytes[..writes.used]);
        if scans.used > 0 {
            lines.put(b"],\"scans\":[");
            lines.put(&scans.bytes[..scans.used]);
        }
        lines.put(b"]}\n");
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.buffer.lines.used = self.line_start;
        }
    }
}

const DIGITS_MAX: usize = 20;

/// A text buffer: the first `used` bytes are text. The other bytes exist already, so a piece of
/// text needs one check for room, and not one for each comma.
#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    used: usize,
}

impl Text {
    fn put(&mut self, text: &[u8]) {
        let mut room = self.room(text.len());
        room.put(text);
        room.close();
    }

    /// Makes room for at least this many bytes.
    fn room(&mut self, needed: usize) -> Room<'_> {
        if self.bytes.len() - self.used < needed {
            self.grow(needed);
        }
        let at = self.used;
        Room { bytes: &mut self.bytes, at, used: &mut self.used }
    }

    #[cold]
    fn grow(&mut self, needed: usize) {
        self.bytes.resize((self.used + needed).next_power_of_two().max(1 << 10), 0);
    }

    /// Writes `["table", "hex", `, with a comma before it unless it is the list's first item.
    /// Returns room for what may follow.
    fn room_for_item(&mut self, list_start: usize, table: &str, key: &[u8]) -> Room<'_> {
        const ESCAPE_BYTES_MAX: usize = 6;
        let separate = self.used > list_start;
        let mut room = self.room(ESCAPE_BYTES_MAX * table.len() + 2 * key.len() + 2 * DIGITS_MAX + 48);
        room.put(if separate { b",[\"" } else { b"[\"" });
        room.put_escaped(table);
        room.put(b"\",");
        room.put_hex(key);
        room.put(b",");
        room
    }
}

/// Room that was made in a [`Text`], with what was put into it.
struct Room<'t> {
    bytes: &'t mut [u8],
    at: usize,
    used: &'t mut usize,
}

impl Room<'_> {
    /// Makes what was put into the room a part of the text.
    fn close(self) {
        *self.used = self.at;
    }

    #[inline(always)]
    fn put(&mut self, text: &[u8]) {
        let end = self.at + text.len();
        self.bytes[self.at..end].copy_from_slice(text);
        self.at = end;
    }

    #[inline]
    fn put_escaped(&mut self, text: &str) {
        let needs_escape = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
        // The loop has no early end, so there is nothing to mispredict. Table names are short, and
        // hardly ever need an escape.
        if !text.bytes().fold(false, |found, byte| found | needs_escape(byte)) {
            self.put(text.as_bytes());
            return;
        }
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' => self.put(&[b'\\', byte]),
                0..=0x1f => {
                    self.put(b"\\u00");
                    self.put(&HEX_PAIRS[usize::from(byte)]);
                }
                _ => self.put(&[byte]),
            }
        }
    }

    /// Puts the bytes in hexadecimal, in quotes.
    fn put_hex(&mut self, key: &[u8]) {
        self.put(b"\"");
        let (words, rest) = key.as_chunks::<8>();
        for word in words {
            let mut text = [[0; 2]; 8];
            for (pair, byte) in text.iter_mut().zip(word) {
                *pair = HEX_PAIRS[usize::from(*byte)];
            }
            self.put(text.as_flattened());
        }
        for byte in rest {
            self.put(&HEX_PAIRS[usize::from(*byte)]);
        }
        self.put(b"\"");
    }

    fn put_version(&mut self, version: Option<u64>) {
        match version {
            Some(version) => self.put_integer(version),
            None => self.put(b"null"),
        }
    }

    #[inline]
    fn put_integer(&mut self, value: u64) {
        if value < 10 {
            self.put(&[b'0' + value as u8]);
        } else if value < 100 {
            self.put(&DECIMAL_PAIRS[value as usize]);
        } else if value < EIGHT_DIGITS {
            self.put_short_integer(value as u32);
        } else if value < EIGHT_DIGITS * EIGHT_DIGITS {
            self.put_short_integer((value / EIGHT_DIGITS) as u32);
            self.put(&eight_digits((value % EIGHT_DIGITS) as u32));
        } else {
            let low = value % (EIGHT_DIGITS * EIGHT_DIGITS);
            self.put_short_integer((value / (EIGHT_DIGITS * EIGHT_DIGITS)) as u32);
            self.put(&eight_digits((low / EIGHT_DIGITS) as u32));
            self.put(&eight_digits((low % EIGHT_DIGITS) as u32));
        }
    }

    /// Puts an integer of at most eight digits. All eight are computed, and the leading zeros are
    /// shifted out.
    fn put_short_integer(&mut self, value: u32) {
        let digits = value.checked_ilog10().map_or(1, |power| power + 1);
        let text = u64::from_be_bytes(eight_digits(value)) << (8 * (8 - digits));
        let at = self.at;
        self.put(&text.to_be_bytes());
        self.at = at + digits as usize;
    }
}

const EIGHT_DIGITS: u64 = 100_000_000;

fn eight_digits(value: u32) -> [u8; 8] {
    let (high, low) = (value / 10_000, value % 10_000);
    let pair = |value: u32| DECIMAL_PAIRS[(value % 100) as usize];
    let mut text = [[0; 2]; 4];
    for (place, value) in text.iter_mut().zip([high / 100, high, low / 100, low]) {
        *place = pair(value);
    }
    let [[a, b], [c, d], [e, f], [g, h]] = text;
    [a, b, c, d, e, f, g, h]
}

const HEX_PAIRS: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

const DECIMAL_PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut value = 0;
    while value < 100 {
        pairs[value] = [b'0' + (value / 10) as u8, b'0' + (value % 10) as u8];
        value += 1;
    }
    pairs
};
