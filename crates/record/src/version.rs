//! The version word of a record. It says which state the record has, and whether the record may be
//! read.
//!
//! ```text
//! | invisible : 1 | version : 63 |      bit 63 .. bit 0
//! ```
//!
//! 1. A version grows with every change of its slot and with every life of a key in the slot. It is
//!    never reset.
//! 2. Even versions are commits, odd ones rollbacks. So every state of a record has its own
//!    version. Recovery can tell from it whether the write of a log entry was installed or rolled
//!    back.
//! 3. An invisible record is being installed by a protocol that writes in place. It must not be
//!    read.

use std::fmt;

/// A version, without the invisible bit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Version(u64);

impl Version {
    /// The bit of a version word that marks the record as invisible.
    pub const INVISIBLE: u64 = 1 << 63;
    /// The version that a bulk load installs.
    pub const LOADED: Version = Version(2);

    /// Unpacks a word of memory. Returns the version, and whether the record is invisible.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u64) -> (Version, bool) {
        (Version(bits & !Version::INVISIBLE), bits & Version::INVISIBLE != 0)
    }

    /// Packs the version into the version word of a visible record.
    #[inline]
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Packs the version into the version word of a record that is being installed in place.
    #[inline]
    #[must_use]
    pub fn to_invisible_bits(self) -> u64 {
        self.0 | Version::INVISIBLE
    }

    /// Returns the version that a commit installs over this version.
    #[inline]
    #[must_use]
    pub fn committed_over(self) -> Version {
        Version((self.0 & !1) + 2)
    }

    /// Returns the version that a rollback installs over this version. It is one above the version
    /// that the commit would have installed.
    #[inline]
    #[must_use]
    pub fn rolled_back_over(self) -> Version {
        self.committed_over().rolled_back()
    }

    /// Whether a rollback has installed this version, or an insert has prepared its record with it.
    /// No commit installs such a version.
    #[inline]
    #[must_use]
    pub fn is_rolled_back(self) -> bool {
        self.0 & 1 == 1
    }

    /// Returns the version that a rollback installs if the commit with this version has to be
    /// undone. It is one above this version.
    #[inline]
    #[must_use]
    pub fn rolled_back(self) -> Version {
        Version(self.0 + 1)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn commits_are_even_rollbacks_odd_and_both_grow(bits in 0u64..1 << 62) {
            let (version, invisible) = Version::from_bits(bits);
            prop_assert!(!invisible);
            let (commit, rollback) = (version.committed_over(), version.rolled_back_over());
            prop_assert!(commit > version && rollback > commit);
            prop_assert_eq!((commit.to_bits() % 2, rollback.to_bits() % 2), (0, 1));
            prop_assert!(rollback.committed_over() > rollback);
        }
    }
}
