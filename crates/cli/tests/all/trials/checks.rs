//! Checks of invariants while there are other clients that this one does not know.

use crate::support::{Process, listen, new_file, remora, words};

/// A place for a configuration.
fn place(name: &str) -> String {
    new_file(name).to_str().expect("a path of text").to_owned()
}

#[test]
fn a_check_does_not_believe_a_configuration_that_does_not_know_all_clients() {
    let (_nodes, connect) = listen("checks-other", 1);
    let (right, typo) = (place("checks-other-right"), place("checks-other-typo"));
    let bench = |configuration: &str, more: &str| {
        format!("bench smallbank --connect {connect} --configuration {configuration} --threads 1 {more}")
    };
    let history = new_file("checks-other.jsonl");
    let run = bench(&right, &format!("--accounts 10 --seconds 60 --history {}", history.display()));
    let mut running = Process::start("checks-other-running", &words(&run));
    running.wait_until("it runs", |_| std::fs::metadata(&history).is_ok_and(|file| file.len() > 0));
    // It looks while the first one runs, some times.
    for attempt in 0..3 {
        let other = remora("checks-other-typo", &words(&bench(&typo, "--transactions 200")));
        assert_eq!(other.code, Some(0), "{attempt}: {other:?}");
        assert!(other.errors.contains("another configuration"), "{other:?}");
        assert!(other.output.contains("? money is conserved"), "{other:?}");
        assert!(other.output.contains("name theirs"), "{other:?}");
        let checked = remora("checks-other-check", &words(&bench(&typo, "--check")));
        assert_eq!(checked.code, Some(0), "{attempt}: {checked:?}");
    }
    // A client with the right configuration reports no such thing.
    let known = remora("checks-other-right", &words(&bench(&right, "--transactions 200")));
    assert_eq!((known.code, known.errors.contains("another configuration")), (Some(0), false), "{known:?}");
    running.signal(rustix::process::Signal::INT);
    let last = running.wait();
    assert_eq!(last.code, Some(0), "{last:?}");
    assert!(last.output.contains("✓ money is conserved"), "the last one to leave checks: {last:?}");
}

/// Two processes that validate by version caches of their own would each miss what the other one
/// writes.
#[test]
fn two_configurations_do_not_let_one_table_have_two_version_caches() {
    let (_nodes, connect) = listen("checks-caches", 1);
    let bench = |name: &str, more: &str| {
        let configuration = place(&format!("checks-caches-{name}"));
        format!(
            "bench smallbank --connect {connect} --protocol ford-local --threads 1 {more} --configuration {configuration}"
        )
    };
    let history = new_file("checks-caches.jsonl");
    let run = bench("right", &format!("--accounts 10 --seconds 60 --history {}", history.display()));
    let mut running = Process::start("checks-caches-running", &words(&run));
    running.wait_until("it runs", |_| std::fs::metadata(&history).is_ok_and(|file| file.len() > 0));
    let other = remora("checks-caches-typo", &words(&bench("typo", "--transactions 10")));
    assert_eq!(other.code, Some(2), "{other:?}");
    assert!(other.errors.contains("another configuration"), "{other:?}");
    running.signal(rustix::process::Signal::INT);
    assert_eq!(running.wait().code, Some(0));
}
