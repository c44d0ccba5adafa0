//! The rows of the tables, and their keys. Rows of hash tables repeat their keys.
//!
//! Money is in cents. Times are nanoseconds of the clock of the client that writes them. Columns
//! that no transaction here uses are one field, `details`, which has about their length.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The largest number of accounts of a customer.
pub const ACCOUNTS_MAX: u8 = 10;
/// The largest number of securities that an account trades.
pub const SECURITIES_MAX: usize = 18;

/// The key of a holding summary: account, security.
pub type HoldingKey = (u32, u32);
/// The key of a trade: account, the trade's number within the account, counted from 1.
pub type TradeKey = (u32, u32);
/// The key of an entry of a trade's history: account, number of the trade, state.
pub type HistoryKey = (u32, u32, u8);

/// The state of a trade that has been submitted.
pub const SUBMITTED: u8 = 1;
/// The state of a trade that has been completed.
pub const COMPLETED: u8 = 2;
/// The states that a trade has had, each of which is an entry of its history.
pub const STATES: [u8; 2] = [SUBMITTED, COMPLETED];

/// Returns the id of a customer's account. `number` is below [`ACCOUNTS_MAX`].
#[must_use]
pub fn account_id(c_id: u32, number: u8) -> u32 {
    c_id * u32::from(ACCOUNTS_MAX) + u32::from(number)
}

/// Returns the customer of an account.
#[must_use]
pub fn customer_of(ca_id: u32) -> u32 {
    ca_id / u32::from(ACCOUNTS_MAX)
}

/// A customer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Customer {
    /// The customer's id, counted from 1.
    pub c_id: u32,
    /// The tier: 1, 2 or 3.
    pub tier: u8,
    /// The number of accounts.
    pub accounts: u8,
    /// Names, addresses, telephone numbers and the like.
    pub details: [u8; 242],
}

/// An account of a customer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Account {
    /// The cash balance. It may be negative.
    pub balance: i64,
    /// The sum of the quantities of all holdings. TPC-E does not have this column: it shows whether
    /// a reader has seen the account and its holdings in one state.
    pub shares: i64,
    /// The account's id: see [`account_id`].
    pub ca_id: u32,
    /// The number of trades. TPC-E numbers the trades of all accounts together.
    pub trades: u32,
    /// The name, the broker and the like.
    pub details: [u8; 56],
}

/// The latest trade of a security.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct LastTrade {
    /// The time of the trade.
    pub date: u64,
    /// The price of a share.
    pub price: i64,
    /// The first price of the day.
    pub open_price: i64,
    /// The number of shares that were traded today.
    pub volume: u64,
    /// The security, counted from 1. It stands for TPC-E's symbol of up to 15 letters.
    pub symbol: u32,
    /// The number of changes of this row, which TPC-E does not have.
    pub changes: u32,
}

/// What an account has of a security.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Holding {
    /// The number of shares, negative if more were sold than bought. There is no row for 0.
    pub quantity: i64,
}

/// A trade that has been completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct Trade {
    /// The time of the trade.
    pub date: u64,
    /// What was added to the account's balance: negative, if shares were bought.
    pub settlement: i64,
    /// The price of a share.
    pub price: i64,
    /// The security.
    pub symbol: u32,
    /// The number of shares that were bought, negative if they were sold.
    pub quantity: i32,
}

/// An entry of a trade's history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[repr(C)]
pub struct HistoryEntry {
    /// The time since which the trade has had the state.
    pub date: u64,
}

crate::rows::sizes! {
    Customer, 248;
    Account, 80;
    LastTrade, 40;
    Holding, 8;
    Trade, 32;
    HistoryEntry, 8;
}
