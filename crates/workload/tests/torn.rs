//! The probe for accesses that are not atomic finds them where the hardware tears, and only there.

use std::time::Duration;

use remora_fabric::Assumed;
use remora_fabric::sim::{Profile, Sim, SimOptions};
use remora_workload::micro::Backend;
use remora_workload::micro::torn::{BYTES, TornReport, probe, probe_simulated};

fn simulated(profile: &str, assume: Assumed) -> TornReport {
    let profile = Profile::named(profile).expect("a shipped profile");
    let options = SimOptions { assume, ..SimOptions::new(profile, 1) };
    let sim = Sim::new(&[vec![BYTES]], &options).expect("memory");
    probe_simulated(&sim, Duration::from_millis(10)).expect("healthy nodes")
}

#[test]
fn lines_are_torn_where_cards_promise_nothing() {
    let found = simulated("connectx4", Assumed::default());
    assert!(found.lines.torn_unnoticed > 10, "{found:?}");
    assert!(found.long_records.torn_unnoticed > 10, "{found:?}");
    assert!(found.writes > 100, "{found:?}");
    assert_eq!(simulated("connectx4", Assumed::default()), found, "the seed decides everything");
}

#[test]
fn lines_are_whole_where_that_is_promised_or_assumed() {
    for (profile, assume) in [("connectx4", Assumed::AS_THE_TEXTS), ("cxl", Assumed::default())] {
        let found = simulated(profile, assume);
        assert!(found.lines.reads > 1_000 && found.writes > 100, "{profile}: {found:?}");
        assert_eq!((found.lines.torn_unnoticed, found.writes_lost), (0, 0), "{profile}: {found:?}");
        // The promise is about lines.
        assert!(found.long_records.torn_unnoticed > 10, "{profile}: {found:?}");
    }
}

#[test]
fn real_fabrics_keep_what_they_promise() {
    for backend in [Backend::Shm, Backend::Tcp] {
        let name = backend.name();
        let fabric = backend.fabric(&[vec![BYTES]]).expect("memory");
        // On a busy machine, the writer may not run within the first 300 ms.
        let has_run = (0..20).any(|_| {
            let found = probe(&*fabric, Duration::from_millis(300)).expect("healthy nodes");
            assert_eq!((found.lines.torn_unnoticed, found.writes_lost), (0, 0), "{name}: {found:?}");
            found.lines.reads > 0 && found.writes > 0
        });
        assert!(has_run, "{name}: nothing was read, or nothing was written");
    }
}
