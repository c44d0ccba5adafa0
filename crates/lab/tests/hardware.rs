//! Tests of the calibration. Virtual time is exact. So if a row changes, the model or a profile has
//! changed.
//!
//! The required rows guard against mistakes: a model that was fit to a figure must stay near it.
//! They are no evidence for the model. The tests at the end hold each profile to what the comments
//! on its lines say about where its numbers come from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use remora_fabric::sim::Profile;
use remora_lab::hardware::numbers::{Counts, Kind, Number, numbers};
use remora_lab::hardware::{ERROR_MAX, Evidence, Predictions, Row, calibrate};
use remora_lab::reproduce::FITTED;

/// The rows of each profile that comes with the simulator.
static ROWS: LazyLock<BTreeMap<&str, Vec<Row>>> = LazyLock::new(|| {
    let of = |name: &&'static str| (*name, calibrate(&Profile::named(name).expect("shipped"), 1).expect("plain verbs"));
    Profile::NAMES.iter().map(of).collect()
});

fn rows(profile: &str) -> &'static [Row] {
    &ROWS[profile]
}

fn numbers_of(profile: &str) -> Vec<Number> {
    numbers(Profile::text(profile).expect("it comes with the simulator"))
}

/// Checks that a profile's required rows are these, and that none has moved away from its published
/// value.
fn reproduces(profile: &str, required: &[(&str, f64)]) {
    let rows = rows(profile);
    for row in rows {
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

/// Each number of a shipped profile says what it is and where it comes from. A fit names rows that
/// exist and have a published value, or figures of reproductions that count for nothing.
#[test]
fn every_number_has_a_kind_and_a_source() {
    for profile in Profile::NAMES {
        for number in numbers_of(profile) {
            let Number { key, kind, source, .. } = &number;
            assert!(kind.is_some(), "{profile}: {key}: no kind and source: {source:?}");
            assert!(source.len() > 6, "{profile}: {key}: no source: {source:?}");
            for (of, name) in number.rows(profile).filter(|(_, name)| !is_fitted(name)) {
                let row = rows(of).iter().find(|row| row.name == name);
                assert!(row.is_some_and(|row| row.published.is_some()), "{profile}: {key}: no row {name:?} of {of}");
            }
        }
    }
}

/// The comments are read for all numbers that a profile has.
#[test]
fn no_number_is_overlooked() {
    for name in Profile::NAMES {
        let profile = Profile::named(name).expect("it comes with the simulator");
        let keys = |text: &str| numbers(text).into_iter().map(|number| number.key).collect::<BTreeSet<_>>();
        let written = profile.to_toml(|_| "assumed: nothing".to_owned());
        assert_eq!(keys(Profile::text(name).expect("shipped")), keys(&written), "{name}");
        let Counts { published, derived, fit, assumed, unmarked } = Counts::of(&numbers(&written));
        assert_eq!([published, derived, fit, unmarked], [0; 4], "{name}");
        assert!(assumed > 45, "{name}: {assumed}");
    }
}

/// A row is a fit if and only if a number of its profile names it.
#[test]
fn fits_and_predictions_are_told_apart() {
    let all: Vec<Row> = ROWS.values().flatten().cloned().collect();
    for row in &all {
        assert_eq!(row.published.is_some(), row.evidence.is_some(), "{row:?}");
        let named =
            numbers_of(&row.profile).iter().any(|n| n.rows(&row.profile).any(|r| r == (&row.profile, &row.name)));
        assert_eq!(row.evidence == Some(Evidence::Fit), named, "{row:?}");
    }
    let evidence = |profile, name: &str| rows(profile).iter().find(|row| row.name == name).expect(name).evidence;
    assert_eq!(evidence("connectx4", "WRITE of 64 B, a machine"), Some(Evidence::Fit));
    assert_eq!(evidence("connectx4", "XStore's lookups at one server of 2 NICs"), Some(Evidence::Prediction));
    assert_eq!(evidence("connectx3", "CAS"), Some(Evidence::Prediction));
    let predictions = Predictions::of(&all);
    assert!(predictions.rows >= 15, "{predictions:?}");
    let mut found: Vec<(&str, &str)> = all
        .iter()
        .filter(|row| row.evidence == Some(Evidence::Prediction))
        .map(|row| (&*row.profile, &*row.name))
        .collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), predictions.rows, "a row is counted twice");
}

/// The reproductions, each as its name and its source text.
const REPRODUCTIONS: [(&str, &str); 8] = [
    ("drtm-h", include_str!("../src/reproduce/drtm_h.rs")),
    ("drtm-kv", include_str!("../src/reproduce/kv.rs")),
    (
        "ford",
        concat!(
            include_str!("../src/reproduce/ford.rs"),
            include_str!("../src/reproduce/ford/cluster.rs"),
            include_str!("../src/reproduce/ford/micro.rs")
        ),
    ),
    ("latches", include_str!("../src/reproduce/latches.rs")),
    ("multi-object", include_str!("../src/reproduce/multi_object.rs")),
    ("rtx", concat!(include_str!("../src/reproduce/rtx.rs"), include_str!("../src/reproduce/rtx/kill.rs"))),
    ("trees", include_str!("../src/reproduce/trees.rs")),
    ("xstore", include_str!("../src/reproduce/xstore.rs")),
];

/// Returns the sections and figures that a comment or a row cites: the text, and the number of the
/// section, or the word "figure" and its number.
fn sections(cited: &str) -> BTreeSet<(&'static str, String)> {
    let mut found = BTreeSet::new();
    for text in ["Wei thesis", "Ziegler thesis", "DrTM TOCS 2017", "FORD TOS 2023", "FORD", "rTX"] {
        for (at, _) in cited.match_indices(text) {
            let mut rest = &cited[at + text.len()..];
            let mut is_figure = false;
            loop {
                rest = rest.trim_start_matches([' ', ',']);
                for word in ["sections", "section", "chapters", "chapter", "figures", "figure"] {
                    if let Some(number) = rest.strip_prefix(word) {
                        (rest, is_figure) = (number, word.starts_with("figure"));
                    }
                }
                rest = rest.trim_start();
                let is_number = |c: char| c.is_ascii_digit() || c == '.' || is_figure && c == '-';
                let end = rest.find(|c| !is_number(c)).unwrap_or(rest.len());
                let section = rest[..end].trim_end_matches('.');
                if section.is_empty() {
                    break;
                }
                let place = if is_figure { format!("figure {section}") } else { section.to_owned() };
                found.insert((text.split(" TOS").next().expect("a first part"), place));
                rest = &rest[end..];
                match rest.strip_prefix(" and ").or_else(|| rest.strip_prefix(" to ")) {
                    Some(next) => rest = next,
                    None => break,
                }
            }
        }
    }
    found
}

/// Returns the sources of all rows of a reproduction that have a published value: what its source
/// text passes to `published`, in quotes or by a name.
fn published_sources(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, call) in source.match_indices(".published(") {
        let arguments = &source[at + call.len()..];
        let (mut depth, mut quoted, mut comma, mut end) = (0, false, 0, 0);
        for (index, byte) in arguments.bytes().enumerate() {
            match byte {
                b'"' => quoted = !quoted,
                _ if quoted => {}
                b'(' | b'[' => depth += 1,
                b')' if depth == 0 => {
                    end = index;
                    break;
                }
                b')' | b']' => depth -= 1,
                b',' if depth == 0 && !arguments[index + 1..].trim_start().starts_with(')') => comma = index + 1,
                _ => {}
            }
        }
        let last = arguments[comma..end].trim().trim_end_matches(',');
        let literal = last.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let named = || {
            let bound = [format!("let {last} = \""), format!("const {last}: &str = \"")];
            let (start, binding) = bound
                .iter()
                .filter_map(|binding| {
                    Some((source[..at].rfind(&**binding).or_else(|| source.find(&**binding))?, binding))
                })
                .max()?;
            source[start + binding.len()..].split('"').next()
        };
        found.push(literal.or_else(named).unwrap_or_else(|| panic!("no source of .published(.., {last})")));
    }
    found
}

/// Returns the numbers of a profile that were computed from a figure of a reproduction on that
/// profile, or from a section from which such a reproduction takes a published value.
fn circular(profile: &str, numbers: &[Number]) -> Vec<String> {
    let mut found = Vec::new();
    // A machine's description says how many threads an experiment had. It is not computed.
    for number in numbers.iter().filter(|number| !number.key.starts_with("machine.")) {
        for (reproduction, source) in
            REPRODUCTIONS.iter().filter(|(_, source)| source.contains(&format!("\"{profile}\"")))
        {
            let printed = number.fit_to.iter().find(|row| source.contains(&format!("\"{row}\"")));
            found.extend(printed.map(|row| format!("{}: fit to the row {row:?} of {reproduction}", number.key)));
            for (text, section) in published_sources(source).into_iter().flat_map(sections) {
                let within = |cited: &(&str, String)| {
                    cited.0 == text && (cited.1 == section || cited.1.starts_with(&format!("{section}.")))
                };
                if sections(&number.source).iter().any(within) {
                    found.push(format!("{}: from section {section} of {text}, as rows of {reproduction}", number.key));
                }
            }
        }
        if number.kind == Some(Kind::Fit)
            && number.fit_to.iter().any(|row| row.starts_with("reproduce ") && !is_fitted(row))
        {
            found.push(format!("{}: fit to a reproduced figure: {:?}", number.key, number.fit_to));
        }
    }
    found
}

/// No reproduced row depends on a number that was fit to it.
#[test]
fn no_profile_is_fit_to_what_a_reproduction_prints() {
    for profile in Profile::NAMES {
        let found = circular(profile, &numbers_of(profile));
        assert!(found.is_empty(), "{profile}: {found:#?}");
    }
    for (reproduction, source) in REPRODUCTIONS {
        assert!(published_sources(source).len() >= 4, "{reproduction}: rows have published values");
        assert!(Profile::NAMES.iter().any(|name| source.contains(&format!("\"{name}\""))), "{reproduction}: a profile");
        for source in published_sources(source) {
            assert!(!sections(source).is_empty(), "{reproduction}: no section: {source}");
        }
    }
}

/// Returns whether a fit names a figure of a reproduction that counts for nothing.
fn is_fitted(row: &str) -> bool {
    FITTED.iter().any(|(reproduction, name)| row == format!("reproduce {reproduction}: {name}"))
}

/// Figure 2-5, of requests of several objects, is in a section from which the profile has numbers.
/// So its rows name the figure alone. These are the numbers: of CASes, and of many connections.
#[test]
fn no_number_is_from_the_figure_of_several_objects() {
    let profile = numbers_of("connectx4");
    let of_section = |number: &&Number| sections(&number.source).contains(&("Wei thesis", "2.2.4".to_owned()));
    let keys = profile.iter().filter(of_section).map(|number| &*number.key);
    let keys: Vec<&str> = keys.filter(|key| !key.starts_with("machine.")).collect();
    assert_eq!(keys, ["nic.atomic_ns", "nic.cached_connections", "nic.miss_ns"]);
    let number = numbers("[nic]\nread_ns = 1.0 # derived: Wei thesis, figure 2-5, 8.43 M/s");
    assert!(!circular("connectx4", &number).is_empty());
}

/// The comment that the profile of ConnectX-4 once had is refused, in each form.
#[test]
fn a_profile_that_is_fit_to_a_reproduction_is_refused() {
    for comment in [
        "derived: Wei thesis 3.7.2, 82 M GETs/s of two READs at a server of 2 NICs: 2000/164",
        "assumed: as Wei thesis, section 3.7.2 has it",
        "published: Wei thesis 2.1 and 3.7",
        "fit \"reproduce xstore: C uniform, learned\": 2000/164",
        "fit \"memory: learned cache\": 2000/164",
        "fit \"A\": Wei thesis, section 4.3.1",
    ] {
        let number = numbers(&format!("[nic]\nread_ns = 12.2 # {comment}"));
        assert!(!circular("connectx4", &number).is_empty(), "{comment}");
        assert!(number[0].kind.is_some(), "{comment}");
    }
    let number = numbers("[nic]\nread_ns = 12.2 # derived: Wei thesis 3.7.2, 82 M GETs/s");
    assert!(circular("efa", &number).is_empty(), "no reproduction runs on efa");
    let number = numbers("[nic]\nread_ns = 12.2 # derived: Wei thesis 2.2.5, and 3.7 ns more");
    assert!(circular("connectx4", &number).is_empty(), "bare verbs");
}
