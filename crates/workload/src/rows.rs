//! Rows of tables, said once.

/// Makes types records: each with its size, which is checked, and its schema.
macro_rules! records {
    ($($row:ty, $bytes:literal, $schema:literal;)*) => {$(
        const _: () = assert!(size_of::<$row>() == $bytes);
        impl Record for $row {
            const SCHEMA: &'static str = $schema;
        }
    )*};
}
pub(crate) use records;
