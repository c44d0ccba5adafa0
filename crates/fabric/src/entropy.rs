//! Random bytes of the operating system, for keys, nonces and first sequence numbers, which must
//! not be guessable.

use std::io::ErrorKind;

use crate::error::SystemError;

/// Draws random bytes from the system.
pub(crate) fn random() -> Result<[u8; 32], SystemError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| in_its_words(error.raw_os_error()))?;
    Ok(bytes)
}

/// Converts the error that the system gave. Without an error number, the system has no words for
/// it.
fn in_its_words(number: Option<i32>) -> SystemError {
    number.map_or(SystemError::Kind(ErrorKind::Other), SystemError::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_random_bytes_is_told_in_the_systems_words() {
        assert_eq!(in_its_words(Some(38)).to_string(), "Function not implemented (os error 38)");
        assert_eq!(in_its_words(None).to_string(), "other error");
    }
}
