//! A macro for the rows of tables.

/// Checks the size of the type of each row.
macro_rules! sizes {
    ($($row:ty, $bytes:literal;)*) => {$(
        const _: () = assert!(size_of::<$row>() == $bytes);
    )*};
}
pub(crate) use sizes;
