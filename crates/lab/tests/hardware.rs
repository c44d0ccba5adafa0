//! Tests of the calibration: the simulator reproduces what the texts have measured. Virtual time is
//! exact, so if a row changes, a change of the model or of a profile has changed it.

use remora_fabric::sim::Profile;
use remora_lab::hardware::{ERROR_MAX, Row, calibrate};

fn rows(profile: &str) -> Vec<Row> {
    let profile = Profile::named(profile).expect("it comes with the simulator");
    calibrate(&profile, 1).expect("plain verbs")
}

/// Checks that a profile's required rows are these, and that none is off.
fn reproduces(profile: &str, required: &[(&str, f64)]) {
    let rows = rows(profile);
    for row in &rows {
        assert!(!row.is_off(), "{profile}: {row:?}");
        assert!(row.simulated.is_finite() && row.simulated > 0.0, "{profile}: {row:?}");
    }
    let found: Vec<(&str, f64)> = rows
        .iter()
        .filter(|row| row.required)
        .map(|row| (row.name.as_str(), row.published.expect("a required row has a published value")))
        .collect();
    assert_eq!(found, required, "{profile}");
}

#[test]
fn connectx3() {
    reproduces("connectx3", &[("READ of 64 B at one server", 26.3)]);
}

#[test]
fn connectx4() {
    reproduces(
        "connectx4",
        &[
            ("READ of 64 B, a machine", 86.9),
            ("WRITE of 64 B, a machine", 130.0),
            ("CAS, a machine", 48.0),
            ("UD RPC, a machine", 79.0),
        ],
    );
}

#[test]
fn connectx5() {
    reproduces(
        "connectx5",
        &[
            ("CAS, own words 64 B apart", 51.2),
            ("CAS, one word", 2.32),
            ("CAS, stride 64 B", 50.0),
            ("CAS, stride 256 B", 40.0),
            ("CAS, stride 512 B", 20.0),
            ("CAS, stride 4096 B", 2.3),
            ("WRITE of 64 B, half round trip", 1.09),
            ("WRITE of 8 KiB, half round trip", 3.1),
            ("WRITE of 64 B, one thread, one connection", 7.0),
            ("WRITE of 64 B, one thread, one connection, lists of 16", 17.0),
        ],
    );
}

#[test]
fn r74v() {
    reproduces(
        "r74v",
        &[
            ("READ of 64 B, round trip", 2.0),
            ("WRITE of 64 B, round trip", 2.0),
            ("WRITE of 16 B to Optane and READ behind it, in one chain", 3.0),
            ("WRITE of 16 B to the other socket's Optane", 15.0),
            ("WRITE of 16 B to Optane", 30.0),
            ("WRITE of 16 B to Optane, padded to 64 B", 45.0),
            ("bulk WRITE to Optane, DDIO on", 42.0),
            ("bulk WRITE to Optane, DDIO off", 100.0),
        ],
    );
}

#[test]
fn messages() {
    reproduces("efa", &[("message of 64 B, half round trip", 20.5), ("messages of 64 B, one connection", 2.0)]);
    reproduces("ethernet10g", &[]);
}

/// A text states without a number that more connections than the NIC caches make it slow.
#[test]
fn connections_thrash() {
    let rows = rows("connectx5");
    let rate = |connections: &str| {
        let mut rows = rows.iter().filter(|row| row.name.contains(connections));
        rows.next().expect("a row for each").simulated
    };
    assert!(rate("256 connections") < 0.8 * rate("128 connections"));
}

/// The rows of a user's own profile are what perftest measures, without published values.
#[test]
fn of_a_profile_of_ones_own() {
    let mut mine = Profile::named("connectx5").expect("it comes with the simulator");
    mine.name = "mine".to_owned();
    let rows = calibrate(&mine, 7).expect("plain verbs");
    assert!(rows.iter().all(|row| row.published.is_none() && row.error.is_none() && !row.is_off()));
    assert_eq!(rows, calibrate(&mine, 7).expect("plain verbs"), "the same seed gives the same rows");
    let simulated = |source: &str| {
        let row = rows.iter().find(|row| row.source == source).unwrap_or_else(|| panic!("no row {source}"));
        row.simulated
    };
    // What docs/profiles.md computes from a profile by hand.
    for (source, expected) in [
        ("ib_write_lat -s 64", 1.09),
        ("ib_read_lat -s 64", 2.0),
        ("ib_write_bw -s 64 -q 1", 7.0),
        ("ib_write_bw -s 64 -q 1 -l 16", 17.0),
        ("ib_read_bw -s 64 -q 64 -l 16", 1000.0 / mine.nic.read_ns),
        ("ib_write_bw -s 64 -q 64 -l 16", 1000.0 / mine.nic.write_ns),
        ("ib_atomic_bw -A CMP_AND_SWAP -q 64", 1000.0 / mine.nic.atomic_ns),
    ] {
        let simulated = simulated(source);
        assert!((simulated / expected - 1.0).abs() < ERROR_MAX / 2.0, "{source}: {simulated} against {expected}");
    }
}

/// On shared memory behind a switch, one word that all hosts change is a line that moves between
/// them.
#[test]
fn loads_contend_for_a_line() {
    let rows = rows("cxl");
    let rate = |name: &str| rows.iter().find(|row| row.name == name).expect("a row").simulated;
    assert!(rate("CAS, one word") < rate("CAS, random words") / 5.0);
}
