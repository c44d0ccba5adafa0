//! What traces say, and that the book quotes them as they are.

use std::fs;
use std::path::Path;

use remora::protocol::Protocol;

use super::diagram::COLUMNS;
use super::{Does, Trace, trace};

/// The chapter that follows one transaction.
const CHAPTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/03-life-of-a-transaction.md");

fn traced(protocol: Protocol, does: Does) -> Trace {
    trace(protocol, does).unwrap_or_else(|error| panic!("{} under {protocol}: {error}", does.name()))
}

#[test]
fn round_trips_of_a_transfer_are_as_the_protocols_say() {
    let rounds = |protocol| traced(protocol, Does::Transfer).rounds();
    // Read; lock and validate; log. Then install and unlock.
    assert_eq!(rounds(Protocol::DRTM_H), (3, 1));
    assert_eq!(rounds(Protocol::DRTM_R), (3, 1));
    // Lock and read; log and install. Then show; then unlock.
    assert_eq!(rounds(Protocol::FORD), (2, 2));
}

#[test]
fn every_protocol_is_traced_and_every_trace_is_the_same_twice() {
    for protocol in Protocol::ALL {
        for does in Does::ALL.into_iter().filter(|_| protocol.is_serializable()) {
            let one = traced(protocol, does);
            assert_eq!(one.rounds().0, one.cost.round_trips, "{} under {protocol}", does.name());
            let text = one.to_string();
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
            assert_eq!(text, traced(protocol, does).to_string());
        }
    }
}

/// With `UPDATE=1` in the environment, the chapter is rewritten.
#[test]
fn the_book_quotes_what_the_command_prints() {
    let before = fs::read_to_string(Path::new(CHAPTER)).expect("a chapter");
    let mut page = before.clone();
    for protocol in [Protocol::DRTM_H, Protocol::FORD] {
        let text = traced(protocol, Does::Transfer).to_string();
        let fence = format!("```text\n{}\n", text.lines().next().unwrap_or_default());
        let from = page.find(&fence).unwrap_or_else(|| panic!("the chapter has no diagram of {protocol}")) + 8;
        let end = from + page[from..].find("```").expect("a fence that ends");
        page.replace_range(from..end, &text);
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(CHAPTER, &page).expect("a chapter that can be written");
    } else {
        assert_eq!(before, page, "run this test with UPDATE=1");
    }
}
