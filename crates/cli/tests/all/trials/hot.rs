//! What `status` says of hot records, while several client processes update one record.

use std::time::Instant;

use serde_json::Value;

use crate::support::{PATIENCE, Process, listen, new_file, remora, words};

/// Asks for the status until the hot records are as expected. Returns the hot records.
#[track_caller]
fn hot_records(connect: &str, what: &str, are_expected: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let shown = remora("hot-status", &words(&format!("status --connect {connect} --report -")));
        assert_eq!(shown.code, Some(0), "{}", shown.errors);
        let status: Value = serde_json::from_str(&shown.output).unwrap();
        let hot = status["hot_records"].as_array().expect("a list that is always there");
        if are_expected(hot) {
            return hot.clone();
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {hot:#?}");
    }
}

fn number(record: &Value, name: &str) -> f64 {
    record[name].as_f64().unwrap_or_else(|| panic!("no number {name} in {record:#}"))
}

#[test]
fn the_hottest_record_of_all_clients_is_named_first() {
    let (_nodes, connect) = listen("hot", 2);
    let place = new_file("hot-configuration");
    let line = format!(
        "bench ycsb --ycsb-workload a --records 2000 --theta 0.99 --operations 1 --threads 1 --seconds 600 --protocol drtm-r \
         --connect {connect} --configuration {}",
        place.display()
    );
    let start = |name: &str| Process::start(name, &words(&line));
    assert!(hot_records(&connect, "nobody is connected", |_| true).is_empty());
    let mut one = start("hot-one");
    let seen = hot_records(&connect, "one client", |hot| hot.first().is_some_and(|one| one["clients"] == 1));
    let _other = start("hot-other");
    let both = hot_records(&connect, "two clients", |hot| hot.first().is_some_and(|one| one["clients"] == 2));
    assert_eq!((&both[0]["table"], &both[0]["key"]), (&seen[0]["table"], &seen[0]["key"]));
    let heat = |record: &Value| {
        let counts = ["locked_per_second", "changed_per_second", "otherwise_per_second", "stood_per_second"];
        counts.iter().map(|name| number(record, name)).sum::<f64>()
    };
    assert!(heat(&both[0]) > 4.0, "{both:#?}");
    assert!(both.is_sorted_by(|one, other| heat(one) >= heat(other)), "{both:#?}");
    let shown = remora("hot-text", &words(&format!("status --connect {connect}")));
    let line = shown.output.lines().skip_while(|line| !line.starts_with("hot records")).nth(1).unwrap_or_default();
    assert!(line.starts_with(&format!("record 0x{}", both[0]["key"].as_str().unwrap())), "{}", shown.output);
    // A client that is killed is in the list no more.
    one.kill();
    hot_records(&connect, "one is dead", |hot| hot.first().is_some_and(|one| one["clients"] == 1));
}
