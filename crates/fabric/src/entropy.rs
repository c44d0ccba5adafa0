//! Random bytes of the system: for keys, nonces and first sequence numbers, which nobody may guess.

/// Draws random bytes from the system.
pub(crate) fn random() -> Result<[u8; 32], getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
