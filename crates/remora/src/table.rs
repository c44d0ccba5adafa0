//! Typed tables over plain-old-data records.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_node::Fingerprint;
use remora_node::limits::KEY_BYTES_MAX;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Error, Named};

/// A record: bytes without pointers, the same on every machine of a cluster.
pub trait Record: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + 'static {
    /// The record's fields and their meaning, in words of yours. Programs whose descriptions differ
    /// cannot open the same table. Change the description when you change the type.
    const SCHEMA: &'static str;
}

/// The value of a set of keys: an [`Ordered`](crate::Ordered) table of nothing but its keys.
impl Record for () {
    const SCHEMA: &'static str = "nothing";
}

/// A key: fixed width, encoded so that bytes compare as the keys do.
pub trait Key: 'static {
    /// Bytes of the encoding.
    const BYTES: usize;
    /// Writes the encoding to exactly [`Key::BYTES`] bytes.
    fn encode(&self, bytes: &mut [u8]);
}

/// A key of an [`Ordered`](crate::Ordered) table, whose order is that of its encodings. Every byte
/// string of that length is the encoding of one key.
pub trait OrderedKey: Key + Ord + Copy + Send + Sync {
    /// The key that has been encoded as these [`Key::BYTES`] bytes.
    fn decode(bytes: &[u8]) -> Self;
}

/// `flip` is the sign bit, so that negative numbers come first.
macro_rules! integer_keys {
    ($($integer:ty, $flip:expr;)*) => {$(
        impl Key for $integer {
            const BYTES: usize = size_of::<$integer>();
            #[inline]
            fn encode(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&(self ^ $flip).to_be_bytes());
            }
        }
        impl OrderedKey for $integer {
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
}

impl<const N: usize> OrderedKey for [u8; N] {
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
        impl<$($name: OrderedKey),*> OrderedKey for ($($name,)*) {
            #[allow(non_snake_case, reason = "the type's letter names its component")]
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
tuple_key!(A, B);
tuple_key!(A, B, C);
tuple_key!(A, B, C, D);

/// The schema of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schema {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
}

impl Schema {
    /// The schema of this description, with the sizes of these types.
    pub(crate) fn of<K: Key, V>(schema: &str) -> Schema {
        let (key_bytes, value_bytes) = (K::BYTES, size_of::<V>());
        Schema { fingerprint: Fingerprint::of(schema, key_bytes, value_bytes), key_bytes, value_bytes }
    }
}

/// Tells the clusters apart that a process knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClusterNumber(u64);

impl ClusterNumber {
    /// A cluster whose memory nodes are in this process: no other handle finds it, and its memory
    /// need not be asked.
    pub(crate) fn embedded() -> ClusterNumber {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        ClusterNumber(1 << 63 | NUMBERS.fetch_add(1, Ordering::Relaxed))
    }

    /// A cluster whose memory nodes were founded with this id.
    pub(crate) fn founded(cluster: u64) -> ClusterNumber {
        ClusterNumber(cluster)
    }
}

/// A handle of a table, without its types.
#[derive(Clone, Copy)]
pub(crate) struct Handle<'t> {
    pub(crate) inner: &'t Arc<remora_index::Table>,
    /// The cluster that it is of.
    pub(crate) cluster: ClusterNumber,
}

/// An open table. Clones are cheap and share the location cache.
///
/// It can be used with the cluster that has opened it, with its clones, and with every other
/// [`Cluster`](crate::Cluster) of the same memory nodes; any other refuses it, and so do sessions
/// of a protocol that cannot run on it ([`Error::Misuse`](crate::Error::Misuse)).
pub struct Table<K, V> {
    pub(crate) inner: Arc<remora_index::Table>,
    /// The cluster that it is of.
    pub(crate) cluster: ClusterNumber,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Key, V: Record> Table<K, V> {
    pub(crate) const FITS: () = {
        assert!(align_of::<V>() <= 8, "records are kept at multiples of 8 bytes");
        assert!(K::BYTES <= KEY_BYTES_MAX, "a key has at most 64 bytes");
    };

    pub(crate) fn schema() -> Schema {
        Schema::of::<K, V>(V::SCHEMA)
    }

    pub(crate) fn new(inner: Arc<remora_index::Table>, cluster: ClusterNumber) -> Table<K, V> {
        let () = Table::<K, V>::FITS;
        Table { inner, cluster, types: PhantomData }
    }

    /// The key as records hold it.
    #[inline]
    pub(crate) fn key(key: &K) -> remora_record::Key {
        let mut bytes = [0; KEY_BYTES_MAX];
        let bytes = &mut bytes[..K::BYTES];
        key.encode(bytes);
        remora_record::Key::new(bytes).expect("FITS has been checked")
    }

    /// The error of a transaction that needs a record of this table which is not there.
    #[must_use]
    pub fn missing(&self, key: &K) -> Error {
        Error::NotFound(Named::new(self.name(), Self::key(key).bytes()))
    }
}

impl<K, V> Table<K, V> {
    pub(crate) fn handle(&self) -> Handle<'_> {
        Handle { inner: &self.inner, cluster: self.cluster }
    }

    /// The table's name.
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
        Table { inner: self.inner.clone(), cluster: self.cluster, types: PhantomData }
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

    fn is_kept_in_order<K: OrderedKey + std::fmt::Debug>(a: K, b: K) {
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
        }
    }
}
