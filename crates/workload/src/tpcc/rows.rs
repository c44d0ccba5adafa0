//! The rows of TPC-C's tables, and the keys of the secondary indexes beside them. Rows of hash
//! tables repeat their keys, as the specification's do.
//!
//! Money is in cents, rates are in hundredths of a percent, times are nanoseconds of the clock of
//! the client that writes them; 0 is the specification's null, of a carrier and of a time of
//! delivery. Text is padded with zeros.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Key of a district: warehouse, district.
pub type DistrictKey = (u16, u8);
/// Key of a customer: warehouse, district, customer.
pub type CustomerKey = (u16, u8, u16);
/// Key of an order, also of a new one: warehouse, district, order.
pub type OrderKey = (u16, u8, u32);
/// Key of an order line: the order's, and the line's number from 1 on.
pub type OrderLineKey = (u16, u8, u32, u8);
/// Key of a stock: warehouse, item.
pub type StockKey = (u16, u32);
/// Key of an order by who ordered: warehouse, district, customer, order.
pub type ByCustomerKey = (u16, u8, u16, u32);
/// Key of a customer by name: district, the last name's number, first name, customer.
pub type ByNameKey = (DistrictKey, u16, [u8; 16], u16);

/// Most lines of an order.
pub const LINES_MAX: usize = 15;
/// Fewest lines of an order.
pub const LINES_MIN: usize = 5;

/// A postal address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Address {
    /// Two lines.
    pub street: [[u8; 20]; 2],
    /// A city.
    pub city: [u8; 20],
    /// Two letters.
    pub state: [u8; 2],
    /// Nine digits.
    pub zip: [u8; 9],
}

/// A warehouse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Warehouse {
    /// What was paid, ever.
    pub ytd: i64,
    /// From 1 on.
    pub w_id: u16,
    /// At most 20 %.
    pub tax: u16,
    /// A name.
    pub name: [u8; 10],
    /// Where it is.
    pub address: Address,
    /// To whole words.
    pub spare: [u8; 3],
}

/// A district of a warehouse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct District {
    /// What was paid, ever.
    pub ytd: i64,
    /// The next order's number.
    pub next_o_id: u32,
    /// The district's warehouse.
    pub w_id: u16,
    /// At most 20 %.
    pub tax: u16,
    /// From 1 on.
    pub d_id: u8,
    /// A name.
    pub name: [u8; 10],
    /// Where it is.
    pub address: Address,
    /// To whole words.
    pub spare: [u8; 6],
}

/// A customer of a district.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Customer {
    /// What the customer owes.
    pub balance: i64,
    /// What was paid, ever.
    pub ytd_payment: i64,
    /// How much may be owed.
    pub credit_lim: i64,
    /// Since when.
    pub since: u64,
    /// Payments.
    pub payment_cnt: u32,
    /// Orders delivered.
    pub delivery_cnt: u32,
    /// The customer's warehouse.
    pub w_id: u16,
    /// From 1 on, within the district.
    pub c_id: u16,
    /// At most 50 %.
    pub discount: u16,
    /// The customer's district.
    pub d_id: u8,
    /// First name.
    pub first: [u8; 16],
    /// `OE`.
    pub middle: [u8; 2],
    /// Last name: see [`last_name`].
    pub last: [u8; 16],
    /// Where the customer lives.
    pub address: Address,
    /// 16 digits.
    pub phone: [u8; 16],
    /// `GC`, or `BC`, whose payments are noted in the data.
    pub credit: [u8; 2],
    /// Anything.
    pub data: [u8; 500],
    /// To whole words.
    pub spare: [u8; 2],
}

/// A payment; the key is the id of the first attempt of its transaction, or the number of a row
/// that was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct History {
    /// When.
    pub date: u64,
    /// How much.
    pub amount: i64,
    /// The customer's warehouse.
    pub c_w_id: u16,
    /// The customer.
    pub c_id: u16,
    /// Where it was paid.
    pub w_id: u16,
    /// The customer's district.
    pub c_d_id: u8,
    /// Where it was paid.
    pub d_id: u8,
    /// The names of warehouse and district.
    pub data: [u8; 24],
}

/// An order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Order {
    /// When it came.
    pub entry_d: u64,
    /// Who ordered.
    pub c_id: u16,
    /// 1 to 10 once it has been delivered; until then 0.
    pub carrier_id: u8,
    /// How many lines it has.
    pub ol_cnt: u8,
    /// 1 if its warehouse supplies all of them.
    pub all_local: u8,
    /// To whole words.
    pub spare: [u8; 3],
}

/// A line of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct OrderLine {
    /// When it was delivered; 0 until then.
    pub delivery_d: u64,
    /// What.
    pub i_id: u32,
    /// For how much.
    pub amount: u32,
    /// The warehouse that supplies it.
    pub supply_w_id: u16,
    /// How many.
    pub quantity: u8,
    /// The stock's, for the district.
    pub dist_info: [u8; 24],
    /// To whole words.
    pub spare: [u8; 5],
}

/// Something that can be ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Item {
    /// From 1 on.
    pub i_id: u32,
    /// The item's image.
    pub im_id: u32,
    /// 1.00 to 100.00.
    pub price: u32,
    /// A name.
    pub name: [u8; 24],
    /// `ORIGINAL` is somewhere in a tenth of them.
    pub data: [u8; 50],
    /// To whole words.
    pub spare: [u8; 2],
}

/// What a warehouse has of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Stock {
    /// The item.
    pub i_id: u32,
    /// How many were ordered, ever.
    pub ytd: u32,
    /// How often it was ordered.
    pub order_cnt: u32,
    /// By how many orders of other warehouses.
    pub remote_cnt: u32,
    /// The warehouse.
    pub w_id: u16,
    /// How many there are.
    pub quantity: i16,
    /// Something for each district.
    pub dist: [[u8; 24]; 10],
    /// `ORIGINAL` is somewhere in a tenth of them.
    pub data: [u8; 50],
    /// To whole words.
    pub spare: [u8; 2],
}

crate::rows::sizes! {
    Warehouse, 96;
    District, 104;
    Customer, 672;
    History, 48;
    Order, 16;
    OrderLine, 48;
    Item, 88;
    Stock, 312;
}

/// Last name of a number below 1000, padded with zeros (clause 4.3.2.3).
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
