//! Moves bytes of any length between a client and a memory node, in several rounds.

use remora_fabric::{Address, Lane};

use crate::error::MemoryError;

/// The bytes that one round of the loops below moves. It is well under a round's limit.
const CHUNK_BYTES: usize = 32 << 10;

/// Reads bytes of any length, in several rounds.
pub async fn read_bytes(lane: &Lane, at: Address, length: usize) -> Result<Vec<u8>, MemoryError> {
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let chunk = CHUNK_BYTES.min(length - bytes.len());
        let mut round = lane.round();
        let read = round.read(at.plus(bytes.len() as u64), chunk);
        bytes.extend_from_slice(lane.execute(round).await?.bytes(read));
    }
    Ok(bytes)
}

/// Writes bytes of any length to `at`, in ascending order.
pub async fn write_bytes(lane: &Lane, at: Address, bytes: &[u8]) -> Result<(), MemoryError> {
    for (index, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
        let mut round = lane.round();
        round.write(at.plus((index * CHUNK_BYTES) as u64), chunk);
        lane.execute(round).await?;
    }
    Ok(())
}

/// The largest number of bytes that a memory node gives back to its system at once. A revocation of
/// this client waits for that long.
const GIVEN_BYTES: u64 = 16 << 20;

/// Zeroes bytes of any length, which nothing uses. Where the memory node can, it gives their memory
/// back to the system, and takes it again when something is written there.
pub async fn zero(lane: &Lane, at: Address, bytes: u64) -> Result<(), MemoryError> {
    static ZEROS: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];
    let mut done = give_back(lane, at, bytes)?;
    while done < bytes {
        let chunk = (bytes - done).min(CHUNK_BYTES as u64);
        let mut round = lane.round();
        round.write(at.plus(done), &ZEROS[..chunk as usize]);
        lane.execute(round).await?;
        done += chunk;
    }
    Ok(())
}

/// Gives the memory of bytes that nothing uses back to the system of their memory node, if the node
/// can do that. Returns the number of bytes from the first one on that are zero now. The others are
/// as before, or zero.
pub(crate) fn give_back(lane: &Lane, at: Address, bytes: u64) -> Result<u64, MemoryError> {
    let mut done = 0;
    while done < bytes {
        // Each piece but the last one ends with a whole page, of whatever size.
        let end = (at.offset + done + GIVEN_BYTES) / GIVEN_BYTES * GIVEN_BYTES;
        let piece = (bytes - done).min(end - at.offset - done);
        if !lane.give_back(at.plus(done), piece)? {
            break;
        }
        done += piece;
    }
    Ok(done)
}
