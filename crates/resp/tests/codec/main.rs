//! The rules of the codec: tables of cases, laws for all inputs, and comparisons with an
//! independent parser and with the machine's own arithmetic.

mod glob;
mod long_double;
mod number;
mod parser;
mod reply;
