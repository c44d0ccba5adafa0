//! Rows of tables, said once.

/// Checks the size of each row's type.
macro_rules! sizes {
    ($($row:ty, $bytes:literal;)*) => {$(
        const _: () = assert!(size_of::<$row>() == $bytes);
    )*};
}
pub(crate) use sizes;
