//! Typed tables over plain-old-data records.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use remora_memory::Fingerprint;
use remora_memory::limits::KEY_BYTES_MAX;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A record: bytes without pointers, the same on every machine of a cluster.
pub trait Record: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + 'static {
    /// Its fields and their meaning, in words of yours. Programs whose descriptions differ cannot open the same table;
    /// change it when you change the type.
    const SCHEMA: &'static str;
}

/// A key: fixed width, encoded so that bytes compare as the keys do.
pub trait Key: 'static {
    /// Bytes of the encoding.
    const BYTES: usize;
    /// Writes the encoding to exactly [`Key::BYTES`] bytes.
    fn encode(&self, bytes: &mut [u8]);
}

macro_rules! unsigned_key {
    ($($integer:ty),*) => {$(
        impl Key for $integer {
            const BYTES: usize = size_of::<$integer>();
            #[inline]
            fn encode(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
unsigned_key!(u8, u16, u32, u64, u128);

impl<const N: usize> Key for [u8; N] {
    const BYTES: usize = N;
    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self);
    }
}

macro_rules! tuple_key {
    ($($name:ident),*) => {
        impl<$($name: Key),*> Key for ($($name,)*) {
            const BYTES: usize = 0 $(+ $name::BYTES)*;
            #[allow(non_snake_case, reason = "the type's letter names its component")]
            fn encode(&self, bytes: &mut [u8]) {
                let ($($name,)*) = self;
                let rest = bytes;
                $(
                    let (now, rest) = rest.split_at_mut($name::BYTES);
                    $name.encode(now);
                )*
                debug_assert!(rest.is_empty());
            }
        }
    };
}
tuple_key!(A, B);
tuple_key!(A, B, C);
tuple_key!(A, B, C, D);

/// An open table. Clones are cheap and share the location cache.
pub struct Table<K, V> {
    pub(crate) inner: Arc<remora_index::Table>,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Key, V: Record> Table<K, V> {
    pub(crate) const FITS: () = {
        assert!(align_of::<V>() <= 8, "records are kept at multiples of 8 bytes");
        assert!(K::BYTES <= KEY_BYTES_MAX, "a key has at most 64 bytes");
    };

    pub(crate) fn fingerprint() -> Fingerprint {
        Fingerprint::of(V::SCHEMA, K::BYTES, size_of::<V>())
    }

    pub(crate) fn new(inner: Arc<remora_index::Table>) -> Table<K, V> {
        let () = Table::<K, V>::FITS;
        Table { inner, types: PhantomData }
    }

    /// The key as records hold it.
    #[inline]
    pub(crate) fn key(key: &K) -> remora_sync::Key {
        let mut bytes = [0; KEY_BYTES_MAX];
        let bytes = &mut bytes[..K::BYTES];
        key.encode(bytes);
        remora_sync::Key::new(bytes).expect("FITS has been checked")
    }
}

impl<K, V> Table<K, V> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// The table as the floors below see it.
    #[must_use]
    pub fn untyped(&self) -> &Arc<remora_index::Table> {
        &self.inner
    }
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Table<K, V> {
        Table { inner: self.inner.clone(), types: PhantomData }
    }
}

impl<K, V> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("name", &self.name()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded<K: Key>(key: &K) -> Vec<u8> {
        let mut bytes = vec![0; K::BYTES];
        key.encode(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn encodings_compare_as_keys_do(a in any::<(u16, u64, u8)>(), b in any::<(u16, u64, u8)>()) {
            prop_assert_eq!(encoded(&a).cmp(&encoded(&b)), a.cmp(&b));
            prop_assert_eq!(encoded(&a).len(), 11);
        }
    }
}
