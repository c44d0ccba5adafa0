//! What a key takes of the memory of memory nodes, in one copy.
//!
//! A record lies in a slot, whatever its own length is. A table has more slots than records,
//! because a key hashes to a bucket. So a record's *share* is the bytes of a table that is as full
//! as its size says, divided by its records. A table that has just grown is about half as full, and
//! a record's share is then about twice as large.
//!
//! ```text
//! record       room    slot   share    table
//! head          132     192     248    of keys; dense
//! part          976   1,024   1,388    of the rest of longer records; dense
//! chunk       7,704   7,744  14,641    of large values
//! ```

/// Bytes of a record that lie in its head.
const HEAD_ROOM: usize = 132;
/// The share of a head.
pub const HEAD_BYTES: usize = 248;
/// Bytes of a record that lie in a part.
const PART_ROOM: usize = 976;
/// The share of a part.
pub const PART_BYTES: usize = 1388;
/// Bytes of the longest packed value that lies in its key's record.
pub const INLINE_ROOM: usize = 8 << 10;
/// Bytes of a large value that lie in a chunk.
const CHUNK_ROOM: usize = 7704;
/// The share of a chunk.
pub const CHUNK_BYTES: usize = 14_641;

/// Bytes of a record that are neither key nor value: its stamp, and whether its value is large.
const STAMP_BYTES: usize = 9;
/// Bytes of the longest name of a record, a byte for the database among them, that needs no room in
/// the record.
const NAME_BYTES_MAX: usize = 15;

/// Returns the bytes of memory that a key takes whose packed value has `value` bytes.
#[must_use]
pub fn of_key(key: &[u8], value: usize) -> usize {
    let name = 1 + key.len();
    let own = if name > NAME_BYTES_MAX { 2 + name } else { 0 };
    let (in_record, chunks) = if value > INLINE_ROOM { (0, value.div_ceil(CHUNK_ROOM)) } else { (value, 0) };
    let parts = (own + STAMP_BYTES + in_record).saturating_sub(HEAD_ROOM).div_ceil(PART_ROOM);
    HEAD_BYTES + parts * PART_BYTES + chunks * CHUNK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_takes_whole_slots() {
        for (key, value, bytes) in [
            (1, 66, HEAD_BYTES),
            (16, 66, HEAD_BYTES),
            (16, 104, HEAD_BYTES),
            (16, 105, HEAD_BYTES + PART_BYTES),
            (14, 123, HEAD_BYTES),
            (14, 124, HEAD_BYTES + PART_BYTES),
            (1, 3000, HEAD_BYTES + 3 * PART_BYTES),
            (1, 20_000, HEAD_BYTES + 3 * CHUNK_BYTES),
        ] {
            assert_eq!(of_key(&vec![b'k'; key], value), bytes, "a key of {key} bytes, a value of {value}");
        }
    }
}
