//! The traits [`Record`] and [`Plain`]: values of tables, which are encoded with a fixed width.

pub use remora_derive::Record;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A value of a table. Its encoding has a fixed width and no pointers, and is the same on every
/// machine of a cluster.
///
/// Integers, floats, `bool`, arrays and tuples of records are records. For a struct of your own,
/// derive it:
///
/// ```
/// #[derive(Clone, Copy, remora::Record)]
/// struct Account {
///     balance: i64,
///     is_open: bool,
/// }
/// assert_eq!(<Account as remora::Record>::BYTES, 9);
/// assert_eq!(<Account as remora::Record>::schema(), "Account { balance: i64, is_open: bool }");
/// ```
///
/// A record that also derives zerocopy's traits is a [`Plain`] record, which transactions can read
/// and change in place.
///
/// An implementation guarantees two things. [`Record::decode`] returns a value for every string of
/// [`Record::BYTES`] bytes. For the encoding of a value, it returns that value.
pub trait Record: Copy + 'static {
    /// Number of bytes of the encoding.
    const BYTES: usize;

    /// Returns the description of the record that is kept with its table. Programs whose
    /// descriptions differ cannot open the same table.
    ///
    /// The description of a derived record lists its fields and their types, unless
    /// `#[record(schema = "...")]` gives another text. Change that text when you change the type.
    fn schema() -> String;

    /// Writes the encoding to `bytes`, which has exactly [`Record::BYTES`] bytes.
    fn encode(&self, bytes: &mut [u8]);

    /// Returns the value that these [`Record::BYTES`] bytes encode.
    fn decode(bytes: &[u8]) -> Self;

    /// Writes the encodings of an array's elements to `bytes`, one after the other.
    #[doc(hidden)]
    #[inline]
    fn encode_array(array: &[Self], bytes: &mut [u8]) {
        if Self::BYTES > 0 {
            array.iter().zip(bytes.chunks_exact_mut(Self::BYTES)).for_each(|(one, bytes)| one.encode(bytes));
        }
    }

    /// Returns the array whose elements `bytes` encodes, one after the other.
    #[doc(hidden)]
    #[inline]
    fn decode_array<const N: usize>(bytes: &[u8]) -> [Self; N] {
        std::array::from_fn(|at| Self::decode(&bytes[at * Self::BYTES..][..Self::BYTES]))
    }
}

/// A record whose encoding equals its bytes in memory. A transaction reads and changes it in place,
/// without a copy ([`Slot::get`](crate::Slot::get), [`Slot::get_mut`](crate::Slot::get_mut)).
///
/// Every record that implements zerocopy's traits is plain. [`remora::zerocopy`](zerocopy) exports
/// the traits:
///
/// ```
/// use remora::zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
///
/// #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
/// #[zerocopy(crate = "remora::zerocopy")]
/// #[repr(C)]
/// struct Account {
///     balance: i64,
/// }
/// ```
///
/// If these traits can be derived for a record with a derived [`Record`], its encoding equals its
/// memory. If you implement [`Record`] yourself, you have to make sure of that.
pub trait Plain: Record + FromBytes + IntoBytes + Immutable + KnownLayout {}

impl<V: Record + FromBytes + IntoBytes + Immutable + KnownLayout> Plain for V {}

/// Implements [`Record`] for numbers, which are encoded little-endian.
macro_rules! number_records {
    ($($number:ty)*) => {$(
        impl Record for $number {
            const BYTES: usize = size_of::<$number>();
            fn schema() -> String {
                stringify!($number).to_owned()
            }
            #[inline]
            fn encode(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn decode(bytes: &[u8]) -> $number {
                let mut array = [0; size_of::<$number>()];
                array.copy_from_slice(bytes);
                <$number>::from_le_bytes(array)
            }
        }
    )*};
}
number_records! { u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 }

impl Record for u8 {
    const BYTES: usize = 1;
    fn schema() -> String {
        "u8".to_owned()
    }
    #[inline]
    fn encode(&self, bytes: &mut [u8]) {
        bytes[0] = *self;
    }
    #[inline]
    fn decode(bytes: &[u8]) -> u8 {
        bytes[0]
    }
    #[inline]
    fn encode_array(array: &[u8], bytes: &mut [u8]) {
        bytes.copy_from_slice(array);
    }
    #[inline]
    fn decode_array<const N: usize>(bytes: &[u8]) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        array
    }
}

/// A `bool` is encoded as one byte: 0 is false, and every other byte is true.
impl Record for bool {
    const BYTES: usize = 1;
    fn schema() -> String {
        "bool".to_owned()
    }
    #[inline]
    fn encode(&self, bytes: &mut [u8]) {
        bytes[0] = u8::from(*self);
    }
    #[inline]
    fn decode(bytes: &[u8]) -> bool {
        bytes[0] != 0
    }
}

/// The value of a table that has only keys, and so is a set of keys. It has no bytes.
impl Record for () {
    const BYTES: usize = 0;
    fn schema() -> String {
        "()".to_owned()
    }
    #[inline]
    fn encode(&self, _: &mut [u8]) {}
    #[inline]
    fn decode(_: &[u8]) {}
}

impl<V: Record, const N: usize> Record for [V; N] {
    const BYTES: usize = N * V::BYTES;
    fn schema() -> String {
        format!("[{}; {N}]", V::schema())
    }
    #[inline]
    fn encode(&self, bytes: &mut [u8]) {
        V::encode_array(self, bytes);
    }
    #[inline]
    fn decode(bytes: &[u8]) -> [V; N] {
        V::decode_array(bytes)
    }
}

macro_rules! tuple_record {
    ($($name:ident),*) => {
        impl<$($name: Record),*> Record for ($($name,)*) {
            const BYTES: usize = 0 $(+ $name::BYTES)*;
            fn schema() -> String {
                format!("({})", [$($name::schema()),*].join(", "))
            }
            #[allow(non_snake_case, reason = "the type's letter names its component")]
            #[inline]
            fn encode(&self, bytes: &mut [u8]) {
                let ($($name,)*) = self;
                let rest = bytes;
                $(
                    let (now, rest) = rest.split_at_mut($name::BYTES);
                    $name.encode(now);
                )*
                debug_assert!(rest.is_empty());
            }
            #[allow(non_snake_case, reason = "the type's letter names its component")]
            #[inline]
            fn decode(bytes: &[u8]) -> ($($name,)*) {
                let rest = bytes;
                $(
                    let (now, rest) = rest.split_at($name::BYTES);
                    let $name = $name::decode(now);
                )*
                debug_assert!(rest.is_empty());
                ($($name,)*)
            }
        }
    };
}
tuple_record!(A);
tuple_record!(A, B);
tuple_record!(A, B, C);
tuple_record!(A, B, C, D);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A plain record, so that its memory can be compared with its encoding.
    #[derive(Clone, Copy, PartialEq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, crate::Record)]
    #[repr(C)]
    struct Row {
        number: i64,
        share: f32,
        name: [u8; 3],
        kind: u8,
        pairs: [[u16; 2]; 2],
    }

    #[derive(Clone, Copy, PartialEq, Debug, crate::Record)]
    struct Mixed<V> {
        is_new: bool,
        value: V,
        place: (u8, i128),
        nothing: (),
    }

    #[derive(Clone, Copy, PartialEq, Debug, crate::Record)]
    #[record(schema = "money in cents")]
    struct Money(i64);

    fn encoded<V: Record>(value: &V) -> Vec<u8> {
        let mut bytes = vec![0xaa; V::BYTES];
        value.encode(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            number in any::<i64>(), name in any::<[u8; 3]>(), pairs in any::<[[u16; 2]; 2]>(), is_new in any::<bool>(),
            bytes in any::<[u8; 28]>(),
        ) {
            let row = Row { number, share: number as f32, name, kind: name[0], pairs };
            assert_eq!(Row::decode(&encoded(&row)), row);
            assert_eq!(encoded(&row), row.as_bytes(), "a plain record's encoding is its memory");
            let mixed = Mixed { is_new, value: Money(number), place: (name[0], number.into()), nothing: () };
            assert_eq!(Mixed::decode(&encoded(&mixed)), mixed);
            // Every string of bytes that a memory node may hold is some value.
            let _ = Mixed::<u16>::decode(&bytes[..Mixed::<u16>::BYTES]);
        }
    }

    #[test]
    fn schemas_say_what_bytes_mean() {
        assert_eq!(Row::schema(), "Row { number: i64, share: f32, name: [u8; 3], kind: u8, pairs: [[u16; 2]; 2] }");
        assert_eq!(
            Mixed::<Money>::schema(),
            "Mixed { is_new: bool, value: money in cents, place: (u8, i128), nothing: () }"
        );
        assert_eq!((Row::BYTES, Mixed::<Money>::BYTES, Money::BYTES), (24, 26, 8));
    }
}
