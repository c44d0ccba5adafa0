//! The rows of TPC-C's tables, and the keys of the secondary indexes. Rows of hash tables repeat
//! their keys, as in the specification.
//!
//! Money is in cents, and rates are in hundredths of a percent. Times are nanoseconds of the clock
//! of the client that writes them. 0 is the specification's null of a carrier and of a time of
//! delivery. Text is padded with zeros.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The key of a district: warehouse, district.
pub type DistrictKey = (u16, u8);
/// The key of a customer: warehouse, district, customer.
pub type CustomerKey = (u16, u8, u16);
/// The key of an order, and of a new order: warehouse, district, order.
pub type OrderKey = (u16, u8, u32);
/// The key of an order line: the order's key, and the line's number, counted from 1.
pub type OrderLineKey = (u16, u8, u32, u8);
/// The key of a stock: warehouse, item.
pub type StockKey = (u16, u32);
/// The key of an order by customer: warehouse, district, customer, order.
pub type ByCustomerKey = (u16, u8, u16, u32);
/// The key of a customer by name: district, the last name's number, first name, customer.
pub type ByNameKey = (DistrictKey, u16, [u8; 16], u16);

/// The largest number of lines of an order.
pub const LINES_MAX: usize = 15;
/// The smallest number of lines of an order.
pub const LINES_MIN: usize = 5;

/// A postal address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Address {
    /// The street, in two lines.
    pub street: [[u8; 20]; 2],
    /// The city.
    pub city: [u8; 20],
    /// The state, two letters.
    pub state: [u8; 2],
    /// The postal code, nine digits.
    pub zip: [u8; 9],
}

/// A warehouse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Warehouse {
    /// The sum of all payments ever made here, in cents.
    pub ytd: i64,
    /// The warehouse's number, counted from 1.
    pub w_id: u16,
    /// The tax rate, at most 20 %.
    pub tax: u16,
    /// The warehouse's name.
    pub name: [u8; 10],
    /// The warehouse's address.
    pub address: Address,
    /// Padding to whole words.
    pub spare: [u8; 3],
}

/// A district of a warehouse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct District {
    /// The sum of all payments ever made here, in cents.
    pub ytd: i64,
    /// The number of the next order.
    pub next_o_id: u32,
    /// The district's warehouse.
    pub w_id: u16,
    /// The tax rate, at most 20 %.
    pub tax: u16,
    /// The district's number, counted from 1.
    pub d_id: u8,
    /// The district's name.
    pub name: [u8; 10],
    /// The district's address.
    pub address: Address,
    /// Padding to whole words.
    pub spare: [u8; 6],
}

/// What was paid at a warehouse or district, if that is kept beside its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Takings {
    /// The sum of the payments that its row does not count, in cents.
    pub ytd: i64,
    /// The warehouse's number.
    pub w_id: u16,
    /// The district's number; 0 for the warehouse as a whole.
    pub d_id: u8,
    /// Padding to whole words.
    pub spare: [u8; 5],
}

/// A customer of a district.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Customer {
    /// What the customer owes, in cents.
    pub balance: i64,
    /// The sum of all payments of the customer, in cents.
    pub ytd_payment: i64,
    /// The largest sum that the customer may owe, in cents.
    pub credit_lim: i64,
    /// The time since which the customer is one.
    pub since: u64,
    /// The number of payments.
    pub payment_cnt: u32,
    /// The number of delivered orders.
    pub delivery_cnt: u32,
    /// The customer's warehouse.
    pub w_id: u16,
    /// The customer's number within the district, counted from 1.
    pub c_id: u16,
    /// The discount, at most 50 %.
    pub discount: u16,
    /// The customer's district.
    pub d_id: u8,
    /// The first name.
    pub first: [u8; 16],
    /// The middle name, always `OE`.
    pub middle: [u8; 2],
    /// The last name: see [`last_name`].
    pub last: [u8; 16],
    /// The customer's address.
    pub address: Address,
    /// The telephone number, 16 digits.
    pub phone: [u8; 16],
    /// `GC` for good credit or `BC` for bad credit. Payments of the latter are noted in `data`.
    pub credit: [u8; 2],
    /// Any text.
    pub data: [u8; 500],
    /// Padding to whole words.
    pub spare: [u8; 2],
}

/// A payment. The key is the id of the first attempt of its transaction, or the number of a row
/// that was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct History {
    /// The time of the payment.
    pub date: u64,
    /// The amount in cents.
    pub amount: i64,
    /// The customer's warehouse.
    pub c_w_id: u16,
    /// The customer's number.
    pub c_id: u16,
    /// The warehouse where it was paid.
    pub w_id: u16,
    /// The customer's district.
    pub c_d_id: u8,
    /// The district where it was paid.
    pub d_id: u8,
    /// The names of the warehouse and the district.
    pub data: [u8; 24],
}

/// An order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Order {
    /// The time at which the order was made.
    pub entry_d: u64,
    /// The customer who ordered.
    pub c_id: u16,
    /// The carrier, 1 to 10, when the order has been delivered; until then 0.
    pub carrier_id: u8,
    /// The number of lines of the order.
    pub ol_cnt: u8,
    /// 1 if the order's warehouse supplies all lines.
    pub all_local: u8,
    /// Padding to whole words.
    pub spare: [u8; 3],
}

/// A line of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct OrderLine {
    /// The time of the delivery; 0 until then.
    pub delivery_d: u64,
    /// The item.
    pub i_id: u32,
    /// The price of the line, in cents.
    pub amount: u32,
    /// The warehouse that supplies it.
    pub supply_w_id: u16,
    /// The number of pieces.
    pub quantity: u8,
    /// The text of the stock for the district.
    pub dist_info: [u8; 24],
    /// Padding to whole words.
    pub spare: [u8; 5],
}

/// An item that can be ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Item {
    /// The item's number, counted from 1.
    pub i_id: u32,
    /// The item's image.
    pub im_id: u32,
    /// The price, 1.00 to 100.00, in cents.
    pub price: u32,
    /// The item's name.
    pub name: [u8; 24],
    /// Any text. A tenth of the items have `ORIGINAL` somewhere in it.
    pub data: [u8; 50],
    /// Padding to whole words.
    pub spare: [u8; 2],
}

/// The stock that a warehouse has of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Stock {
    /// The item's number.
    pub i_id: u32,
    /// The number of pieces ever ordered.
    pub ytd: u32,
    /// The number of orders of the item.
    pub order_cnt: u32,
    /// The number of these orders that came from other warehouses.
    pub remote_cnt: u32,
    /// The warehouse's number.
    pub w_id: u16,
    /// The number of pieces in stock.
    pub quantity: i16,
    /// A text for each district.
    pub dist: [[u8; 24]; 10],
    /// Any text. A tenth of the stocks have `ORIGINAL` somewhere in it.
    pub data: [u8; 50],
    /// Padding to whole words.
    pub spare: [u8; 2],
}

crate::rows::sizes! {
    Warehouse, 96;
    District, 104;
    Takings, 16;
    Customer, 672;
    History, 48;
    Order, 16;
    OrderLine, 48;
    Item, 88;
    Stock, 312;
}

/// Returns the last name of a number below 1000, padded with zeros (clause 4.3.2.3).
#[must_use]
pub fn last_name(number: u16) -> [u8; 16] {
    const SYLLABLES: [&[u8]; 10] =
        [b"BAR", b"OUGHT", b"ABLE", b"PRI", b"PRES", b"ESE", b"ANTI", b"CALLY", b"ATION", b"EING"];
    let mut name = [0; 16];
    let mut at = 0;
    for digit in [number / 100 % 10, number / 10 % 10, number % 10] {
        let syllable = SYLLABLES[usize::from(digit)];
        name[at..at + syllable.len()].copy_from_slice(syllable);
        at += syllable.len();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names_are_made_of_syllables() {
        let name = |number| String::from_utf8_lossy(&last_name(number)).trim_end_matches('\0').to_owned();
        assert_eq!([0, 371, 999].map(name), ["BARBARBAR", "PRICALLYOUGHT", "EINGEINGEING"]);
    }
}
