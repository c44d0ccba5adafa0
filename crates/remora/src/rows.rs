//! Operations on several keys, of one table or of many, in one round trip.

use remora_txn::Intent;

use crate::dynamic::DynTable;
use crate::error::Error;
use crate::key::Key;
use crate::ordered::{DynOrdered, Ordered};
use crate::record::Record;
use crate::table::Table;
use crate::transaction::{Transaction, ValueMut};

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// A key together with its table: `(&accounts, 7)`, or `(&profiles, b"anna")` for a table of bytes.
pub trait Row: Sealed {
    /// The type of the table's values.
    type Value;

    /// Names the key for the next round trip.
    #[doc(hidden)]
    fn name(&self, tx: &mut Transaction<'_, '_>, intent: Intent) -> Result<(), Error>;

    /// Names the records of the key's value that the first round trip has not brought. Returns
    /// whether there are any.
    #[doc(hidden)]
    fn name_rest(&self, _tx: &mut Transaction<'_, '_>) -> Result<bool, Error> {
        Ok(false)
    }

    /// Returns the key's value.
    #[doc(hidden)]
    fn get(&self, tx: &mut Transaction<'_, '_>) -> impl Future<Output = Result<Option<Self::Value>, Error>>;
}

/// Several [`Row`]s: an array, or a tuple of up to six, whose tables may differ.
pub trait Rows: Sealed {
    /// The values of the rows, each `None` if its key is absent.
    type Values;

    /// Names the keys for the next round trip.
    #[doc(hidden)]
    fn name(&self, tx: &mut Transaction<'_, '_>, intent: Intent) -> Result<(), Error>;

    /// Names the records of the values that the first round trip has not brought. Returns whether
    /// there are any.
    #[doc(hidden)]
    fn name_rest(&self, tx: &mut Transaction<'_, '_>) -> Result<bool, Error>;

    /// Returns the keys' values.
    #[doc(hidden)]
    fn get(&self, tx: &mut Transaction<'_, '_>) -> impl Future<Output = Result<Self::Values, Error>>;
}

/// Several [`Row`]s of hash tables ([`Table`]): an array, or a tuple of up to six.
pub trait RowsMut: Sealed {
    /// The values of the rows, to be changed in place.
    type ValuesMut<'t>;

    /// Fetches the keys, and returns their values.
    #[doc(hidden)]
    fn get_mut<'t>(&self, tx: &'t mut Transaction<'_, '_>) -> impl Future<Output = Result<Self::ValuesMut<'t>, Error>>;
}

impl Transaction<'_, '_> {
    /// Brings the records of several keys in one round trip. `intent` says what the transaction is
    /// about to do with them. The operations on these keys then take no round trip.
    ///
    /// ```
    /// # use remora::{Cluster, Intent, TableOptions};
    /// # let cluster = Cluster::embedded().open()?;
    /// # let prices = cluster.create_table::<u64, u32>("prices", TableOptions::for_rows(10))?;
    /// # let stock = cluster.create_table::<u64, u32>("stock", TableOptions::for_rows(10))?;
    /// # cluster.load(&prices, [(7, 25)])?;
    /// # cluster.load(&stock, [(7, 3)])?;
    /// # let mut worker = cluster.worker(Default::default())?;
    /// # worker.block_on(async |session| session.transact(async |tx| {
    /// tx.prefetch(Intent::Update, ((&prices, 7), (&stock, 7))).await?;
    /// if prices.require(tx, 7).await? < 30 {
    ///     *stock.get_mut(tx, 7).await? -= 1;
    /// }
    /// # Ok(())
    /// # }).await)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn prefetch(&mut self, intent: Intent, rows: impl Rows) -> Result<(), Error> {
        rows.name(self, intent)?;
        self.fetch().await
    }

    /// Returns the values of several keys, which may be of different tables, in one round trip.
    /// Each value is `None` if its key is absent. If some values of a table of bytes are longer
    /// than 132 bytes, this takes a second round trip for all of these together.
    ///
    /// ```
    /// # use remora::{Cluster, TableOptions};
    /// # let cluster = Cluster::embedded().open()?;
    /// # let prices = cluster.create_table::<u64, u32>("prices", TableOptions::for_rows(10))?;
    /// # let names = cluster.create_table::<u64, [u8; 8]>("names", TableOptions::for_rows(10))?;
    /// # cluster.load(&prices, [(7, 25)])?;
    /// # let mut worker = cluster.worker(Default::default())?;
    /// # worker.block_on(async |session| session.transact(async |tx| {
    /// let (price, name) = tx.get_many(((&prices, 7), (&names, 7))).await?;
    /// assert_eq!((price, name), (Some(25), None));
    /// # Ok(())
    /// # }).await)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn get_many<R: Rows>(&mut self, rows: R) -> Result<R::Values, Error> {
        rows.name(self, Intent::Read)?;
        self.fetch().await?;
        if rows.name_rest(self)? {
            self.fetch().await?;
        }
        rows.get(self).await
    }

    /// Returns the values of several keys of hash tables, in one round trip, to be changed in
    /// place. Fails with [`Error::NotFound`] if one of the keys is absent, and with
    /// [`Misuse::Twice`](crate::Misuse::Twice) if two of them are the same key of the same table.
    ///
    /// ```
    /// # use remora::{Cluster, TableOptions};
    /// # let cluster = Cluster::embedded().open()?;
    /// # let options = TableOptions::for_rows(10);
    /// # let savings = cluster.create_table::<u64, i64>("savings", options)?;
    /// # let checking = cluster.create_table::<u64, i64>("checking", options)?;
    /// # cluster.load(&savings, [(7, 100)])?;
    /// # cluster.load(&checking, [(7, 0)])?;
    /// # let mut worker = cluster.worker(Default::default())?;
    /// # worker.block_on(async |session| session.transact(async |tx| {
    /// let (mut from, mut to) = tx.get_many_mut(((&savings, 7), (&checking, 7))).await?;
    /// *from -= 10;
    /// *to += 10;
    /// # Ok(())
    /// # }).await)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn get_many_mut<R: RowsMut>(&mut self, rows: R) -> Result<R::ValuesMut<'_>, Error> {
        rows.get_mut(self).await
    }
}

impl<K: Key, V: Record> Table<K, V> {
    /// Returns the values of several keys of this table in one round trip, each `None` if its key
    /// is absent. [`Transaction::get_many`] also takes keys of different tables.
    pub async fn get_many<const N: usize>(
        &self,
        tx: &mut Transaction<'_, '_>,
        keys: [K; N],
    ) -> Result<[Option<V>; N], Error> {
        tx.get_many(keys.map(|key| (self, key))).await
    }

    /// Returns the values of several keys of this table in one round trip, to be changed in place.
    /// Fails with [`Error::NotFound`] if one of the keys is absent, and with
    /// [`Misuse::Twice`](crate::Misuse::Twice) if a key occurs twice. [`Transaction::get_many_mut`]
    /// also takes keys of different tables.
    pub async fn get_many_mut<'t, const N: usize>(
        &self,
        tx: &'t mut Transaction<'_, '_>,
        keys: [K; N],
    ) -> Result<[ValueMut<'t, V>; N], Error> {
        tx.get_many_mut(keys.map(|key| (self, key))).await
    }
}

impl<K, V> Sealed for (&Table<K, V>, K) {}

impl<K: Key, V: Record> Row for (&Table<K, V>, K) {
    type Value = V;

    fn name(&self, tx: &mut Transaction<'_, '_>, intent: Intent) -> Result<(), Error> {
        self.0.prefetch(tx, self.1, intent);
        Ok(())
    }

    fn get(&self, tx: &mut Transaction<'_, '_>) -> impl Future<Output = Result<Option<V>, Error>> {
        self.0.get(tx, self.1)
    }
}

impl<K, V> Sealed for (&Ordered<K, V>, K) {}

impl<K: Key, V: Record> Row for (&Ordered<K, V>, K) {
    type Value = V;

    fn name(&self, tx: &mut Transaction<'_, '_>, intent: Intent) -> Result<(), Error> {
        self.0.prefetch(tx, self.1, intent);
        Ok(())
    }

    fn get(&self, tx: &mut Transaction<'_, '_>) -> impl Future<Output = Result<Option<V>, Error>> {
        self.0.get(tx, self.1)
    }
}

/// Implements [`Row`] for tables of bytes, whose keys are slices, arrays or vectors of bytes.
macro_rules! row_of_bytes {
    ($table:ident) => {
        impl<K: AsRef<[u8]>> Sealed for (&$table, K) {}

        impl<K: AsRef<[u8]>> Row for (&$table, K) {
            type Value = Vec<u8>;

            fn name(&self, tx: &mut Transaction<'_, '_>, intent: Intent) -> Result<(), Error> {
                self.0.prefetch(tx, self.1.as_ref(), intent)
            }

            fn name_rest(&self, tx: &mut Transaction<'_, '_>) -> Result<bool, Error> {
                self.0.name_rest_of(tx, self.1.as_ref())
            }

            fn get(&self, tx: &mut Transaction<'_, '_>) -> impl Future<Output = Result<Option<Vec<u8>>, Error>> {
                self.0.get(tx, self.1.as_ref())
            }
        }
    };
}
row_of_bytes!(DynTable);
row_of_bytes!(DynOrdered);

impl<R: Row, const N: usize> Sealed for [R; N] {}

impl<R: Row, const N: usize> Rows for [R; N] {
    type Values = [Option<R::Value>; N];

    fn name(&self, tx: &mut Transaction<'_, '_>, intent: Intent) -> Result<(), Error> {
        self.iter().try_for_each(|row| row.name(tx, intent))
    }

    fn name_rest(&self, tx: &mut Transaction<'_, '_>) -> Result<bool, Error> {
        self.iter().try_fold(false, |has_rest, row| Ok(row.name_rest(tx)? | has_rest))
    }

    async fn get(&self, tx: &mut Transaction<'_, '_>) -> Result<Self::Values, Error> {
        let mut values = [const { None }; N];
        for (row, value) in self.iter().zip(&mut values) {
            *value = row.get(tx).await?;
        }
        Ok(values)
    }
}

impl<K: Key, V: Record, const N: usize> RowsMut for [(&Table<K, V>, K); N] {
    type ValuesMut<'t> = [ValueMut<'t, V>; N];

    async fn get_mut<'t>(&self, tx: &'t mut Transaction<'_, '_>) -> Result<Self::ValuesMut<'t>, Error> {
        let slots = self.each_ref().map(|(table, key)| tx.want_for(table, *key, Intent::Update).untyped());
        tx.fetch().await?;
        Ok(tx.all_bytes_mut(slots)?.map(ValueMut::new))
    }
}

macro_rules! tuple_of_rows {
    ($($row:ident $key:ident $value:ident $bytes:ident),*) => {
        impl<$($row: Row),*> Sealed for ($($row,)*) {}

        impl<$($row: Row),*> Rows for ($($row,)*) {
            type Values = ($(Option<$row::Value>,)*);

            #[allow(non_snake_case, reason = "the type's letter names its component")]
            fn name(&self, tx: &mut Transaction<'_, '_>, intent: Intent) -> Result<(), Error> {
                let ($($row,)*) = self;
                $($row.name(tx, intent)?;)*
                Ok(())
            }

            #[allow(non_snake_case, reason = "the type's letter names its component")]
            fn name_rest(&self, tx: &mut Transaction<'_, '_>) -> Result<bool, Error> {
                let ($($row,)*) = self;
                let rests = [$($row.name_rest(tx)?),*];
                Ok(rests.contains(&true))
            }

            #[allow(non_snake_case, reason = "the type's letter names its component")]
            async fn get(&self, tx: &mut Transaction<'_, '_>) -> Result<Self::Values, Error> {
                let ($($row,)*) = self;
                Ok(($($row.get(tx).await?,)*))
            }
        }

        impl<$($key: Key, $value: Record),*> RowsMut for ($((&Table<$key, $value>, $key),)*) {
            type ValuesMut<'t> = ($(ValueMut<'t, $value>,)*);

            #[allow(non_snake_case, reason = "the type's letter names its component")]
            async fn get_mut<'t>(&self, tx: &'t mut Transaction<'_, '_>) -> Result<Self::ValuesMut<'t>, Error> {
                let ($($row,)*) = self;
                let slots = [$(tx.want_for($row.0, $row.1, Intent::Update).untyped()),*];
                tx.fetch().await?;
                let [$($bytes),*] = tx.all_bytes_mut(slots)?;
                Ok(($(ValueMut::new($bytes),)*))
            }
        }
    };
}
tuple_of_rows!(A KA VA a, B KB VB b);
tuple_of_rows!(A KA VA a, B KB VB b, C KC VC c);
tuple_of_rows!(A KA VA a, B KB VB b, C KC VC c, D KD VD d);
tuple_of_rows!(A KA VA a, B KB VB b, C KC VC c, D KD VD d, E KE VE e);
tuple_of_rows!(A KA VA a, B KB VB b, C KC VC c, D KD VD d, E KE VE e, F KF VF f);
