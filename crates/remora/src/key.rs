//! The trait [`Key`]: keys of tables, which are encoded with a fixed width, so that their bytes
//! compare as the keys do.

pub use remora_derive::Key;

/// A key of a table, with an encoding of a fixed width.
///
/// Integers, byte arrays, and tuples of keys are keys. For a struct of your own, derive it:
///
/// ```
/// /// A customer of a shop: ordered by shop, then by number.
/// #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, remora::Key)]
/// struct CustomerKey {
///     shop: u32,
///     number: u64,
/// }
/// assert_eq!(<CustomerKey as remora::Key>::BYTES, 12);
/// ```
///
/// An implementation guarantees two things. Encodings compare byte by byte as the keys do. Every
/// string of [`Key::BYTES`] bytes is the encoding of exactly one key. Ranges of an
/// [`Ordered`](crate::Ordered) table rely on both.
pub trait Key: Ord + Copy + Send + Sync + 'static {
    /// Number of bytes of the encoding, at most 64.
    const BYTES: usize;

    /// Writes the encoding to `bytes`, which has exactly [`Key::BYTES`] bytes.
    fn encode(&self, bytes: &mut [u8]);

    /// Returns the key that these [`Key::BYTES`] bytes encode.
    fn decode(bytes: &[u8]) -> Self;
}

/// Implements [`Key`] for integers, which are encoded big-endian. `flip` is the sign bit, so that
/// negative numbers come first.
macro_rules! integer_keys {
    ($($integer:ty, $flip:expr;)*) => {$(
        impl Key for $integer {
            const BYTES: usize = size_of::<$integer>();
            #[inline]
            fn encode(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&(self ^ $flip).to_be_bytes());
            }
            #[inline]
            fn decode(bytes: &[u8]) -> $integer {
                let mut array = [0; size_of::<$integer>()];
                array.copy_from_slice(bytes);
                <$integer>::from_be_bytes(array) ^ $flip
            }
        }
    )*};
}
integer_keys! {
    u8, 0; u16, 0; u32, 0; u64, 0; u128, 0;
    i8, i8::MIN; i16, i16::MIN; i32, i32::MIN; i64, i64::MIN; i128, i128::MIN;
}

impl<const N: usize> Key for [u8; N] {
    const BYTES: usize = N;
    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self);
    }
    fn decode(bytes: &[u8]) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        array
    }
}

macro_rules! tuple_key {
    ($($name:ident),*) => {
        impl<$($name: Key),*> Key for ($($name,)*) {
            const BYTES: usize = 0 $(+ $name::BYTES)*;
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
tuple_key!(A);
tuple_key!(A, B);
tuple_key!(A, B, C);
tuple_key!(A, B, C, D);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, crate::Key)]
    struct Derived {
        first: i16,
        then: (u8, [u8; 3]),
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, crate::Key)]
    struct Generic<K>(u8, K);

    fn encoded<K: Key>(key: &K) -> Vec<u8> {
        let mut bytes = vec![0; K::BYTES];
        key.encode(&mut bytes);
        bytes
    }

    fn is_kept_in_order<K: Key + std::fmt::Debug>(a: K, b: K) {
        assert_eq!(encoded(&a).cmp(&encoded(&b)), a.cmp(&b), "{a:?} {b:?}");
        assert_eq!((K::decode(&encoded(&a)), encoded(&a).len()), (a, K::BYTES));
    }

    proptest! {
        #[test]
        fn encodings_compare_as_keys_do(
            a in any::<(u16, u64, u8, i64)>(), b in any::<(u16, u64, u8, i64)>(), bytes in any::<[[u8; 5]; 2]>(),
        ) {
            is_kept_in_order(a, b);
            is_kept_in_order((a.0, a.2, a.3), (a.0, b.2, b.3));
            is_kept_in_order((a.3 as i32, a.1 as u128), (a.3 as i32, b.1 as u128));
            is_kept_in_order(a.3, b.3);
            is_kept_in_order(a.3 as i8, b.3 as i8);
            is_kept_in_order(a.3 as i16, b.3 as i16);
            is_kept_in_order(a.1 as u32, b.1 as u32);
            is_kept_in_order(i128::from(a.3) << 40, i128::from(b.3) << 40);
            is_kept_in_order(bytes[0], bytes[1]);
            let derived = |of: (u16, u64, u8, i64)| Derived { first: of.3 as i16 % 2, then: (of.2 % 2, [of.2, 0, 1]) };
            is_kept_in_order(derived(a), derived(b));
            is_kept_in_order(Generic(a.2 % 2, a.3), Generic(b.2 % 2, b.3));
        }
    }

    #[test]
    fn a_derived_key_is_the_sequence_of_its_fields() {
        let key = Derived { first: -1, then: (2, [3, 4, 5]) };
        assert_eq!(encoded(&key), [0x7f, 0xff, 2, 3, 4, 5]);
        assert_eq!((Derived::BYTES, Generic::<u64>::BYTES), (6, 9));
    }
}
