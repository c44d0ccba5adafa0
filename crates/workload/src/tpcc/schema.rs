//! The schema of TPC-C: the tables with their rows and keys, how they are created, loaded and
//! opened, and how much memory they take.

use std::fmt;

use remora::{Cluster, OpenError, Ordered, OrderedOptions, Table, TableOptions};

use crate::sizing::TableSize;
use crate::tpcc::population::Population;
use crate::tpcc::{Room, Scale};

pub use crate::tpcc::rows::*;

/// The leading bytes of the keys of ordered tables, which name the warehouse and the district of a
/// row.
const DISTRICT_BYTES: usize = 3;

/// Declares the tables in one place: their names and rows, which parts of the population are loaded
/// into them, and how much memory they take.
macro_rules! tables {
    (
        hash { $($hash:ident: $hash_key:ty => $hash_row:ty, $hash_parts:ident of $hash_rows:ident, $hash_doc:literal;)* }
        ordered { $($name:ident: $key:ty => $row:ty, $rows:ident, $doc:literal;)* }
    ) => {
        /// The tables of TPC-C.
        #[derive(Clone)]
        pub struct Tables {
            $(#[doc = $hash_doc] pub $hash: Table<$hash_key, $hash_row>,)*
            $(#[doc = $doc] pub $name: Ordered<$key, $row>,)*
        }

        /// The numbers of rows that the tables are created for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) struct Capacity {
            $(pub(super) $hash: u64,)*
            $(pub(super) $name: u64,)*
        }

        impl Tables {
            /// Creates and loads the tables. `loaded` is called from time to time with the number
            /// of rows loaded since its last call.
            pub(super) fn load(
                cluster: &Cluster,
                capacity: &Capacity,
                of: &Population,
                loaded: &mut impl FnMut(u64),
            ) -> Result<Tables, OpenError> {
                $(
                    let $hash = cluster.create_table(stringify!($hash), TableOptions::for_rows(capacity.$hash).grows(false))?;
                    cluster.load_parts(&$hash, of.$hash_parts(), |part| of.$hash_rows(part), &mut *loaded)?;
                )*
                $(
                    let rows = (0..of.districts()).flat_map(|part| {
                        let rows = of.$rows(part);
                        loaded(rows.len() as u64);
                        rows
                    });
                    let options = OrderedOptions::for_rows(capacity.$name).grows(false);
                    let options = options.apart(DISTRICT_BYTES);
                    let $name = cluster.load_ordered(stringify!($name), options, rows)?;
                )*
                Ok(Tables { $($hash,)* $($name,)* })
            }

            /// Opens the tables.
            pub fn open(cluster: &Cluster) -> Result<Tables, OpenError> {
                Ok(Tables {
                    $($hash: cluster.open_table(stringify!($hash))?,)*
                    $($name: cluster.open_ordered(stringify!($name))?,)*
                })
            }
        }

        impl Capacity {
            pub(super) fn tables(&self) -> Vec<TableSize> {
                let mut tables = vec![$(TableSize::of::<$hash_key, $hash_row>(self.$hash),)*];
                $(tables.extend(TableSize::of_ordered::<$key, $row>(OrderedOptions::for_rows(self.$name)));)*
                tables
            }
        }
    };
}
tables! {
    hash {
        stock: StockKey => Stock, stock_parts of stocks, "What warehouses have of items.";
        customer: CustomerKey => Customer, districts of customers, "Customers.";
        item: u32 => Item, item_parts of items, "Items.";
        history: u64 => History, districts of history, "Payments.";
        district: DistrictKey => District, districts of district, "Districts.";
        warehouse: u16 => Warehouse, warehouses of warehouse, "Warehouses.";
        takings: DistrictKey => Takings, warehouses of takings, "What was paid, if totals are split.";
    }
    ordered {
        order_line: OrderLineKey => OrderLine, order_lines, "Lines of orders.";
        order: OrderKey => Order, orders, "Orders.";
        by_customer: ByCustomerKey => (), by_customer, "Index: orders by who ordered.";
        new_order: OrderKey => (), new_orders, "Orders that have not been delivered.";
        by_name: ByNameKey => (), by_name, "Index: customers by name.";
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables").finish_non_exhaustive()
    }
}

impl Capacity {
    /// Returns the rows for what is loaded and for what is added.
    pub(super) fn of(scale: &Scale, room: Room) -> Capacity {
        /// Rows for transactions in flight.
        const IN_FLIGHT: u64 = 256;
        /// Rows for the leaf that each district begins: half of the rows of the largest leaf.
        const BEGUN: u64 = 70;
        let Scale { warehouses, items, .. } = *scale;
        let (warehouses, districts) = (u64::from(warehouses), u64::from(scale.districts()));
        let customers = districts * u64::from(scale.customers);
        let begun = districts * BEGUN;
        let orders = customers + room.orders + IN_FLIGHT;
        Capacity {
            stock: warehouses * u64::from(items),
            customer: customers,
            item: items.into(),
            history: customers + room.payments + IN_FLIGHT,
            district: districts,
            warehouse: warehouses,
            takings: warehouses + districts,
            // An order has ten lines on average, 5 to 15. This adds six standard deviations.
            order_line: 10 * orders + 20 * orders.isqrt() + 15 * IN_FLIGHT + begun,
            order: orders + begun,
            by_customer: orders + begun,
            new_order: districts * u64::from(scale.undelivered) + room.orders + IN_FLIGHT + begun,
            by_name: customers + begun,
        }
    }
}
