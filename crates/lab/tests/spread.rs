//! Tests of how far reads spread over the copies of a shard, in virtual time.

use std::time::Duration;

use remora::protocol::Protocol;
use remora_lab::spread::{Spread, measure};

/// Snapshots read any copy, so three copies answer nearly three times as many as one.
#[test]
fn snapshots_spread_over_copies() {
    let rate = |copies| {
        let measure_for = Duration::from_micros(500);
        let (machines, threads, writes_one_in) = (24, 8, 100);
        let spread = Spread {
            protocol: Protocol::REMORA,
            copies,
            machines,
            threads,
            writes_one_in,
            measure: measure_for,
            seed: 1,
        };
        measure(&spread).unwrap().rate
    };
    let [one, two, three] = [1, 2, 3].map(rate);
    assert!(two / one > 0.8 * 2.0 && three / one > 0.8 * 3.0, "{one} {two} {three}");
}
