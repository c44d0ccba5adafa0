//! Signals: the first one ends a command in order, the second one at once, and a hangup does not
//! take the memory with it.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Node, Process, listen, new_file, remora, words};

/// Returns whether a command that is started here gets hangups. It does not if these tests were
/// started by `nohup`.
fn hangups_arrive() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("it says what is ignored");
    u64::from_str_radix(mask.trim(), 16).expect("a mask in hexadecimal") & 1 == 0
}

#[test]
fn a_hangup_ends_a_client_in_order() {
    if !hangups_arrive() {
        return;
    }
    let (_nodes, connect) = listen("signals-client", 1);
    let history = new_file("signals-client.jsonl");
    let run = format!("bench smallbank --connect {connect} --accounts 100 --seconds 60 --threads 1 --history");
    let mut client = Process::start("signals-client", &[&words(&run)[..], &[history.to_str().unwrap()]].concat());
    client.wait_until("it runs", |_| std::fs::metadata(&history).is_ok_and(|file| file.len() > 0));
    client.signal(Signal::HUP);
    let ended = client.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.output.contains("✓ money is conserved"), "it has left, and so it can be checked: {ended:?}");
}

#[test]
fn an_interrupted_simulation_reports_what_it_has_measured() {
    let (history, report) = (new_file("signals-simulation.jsonl"), new_file("signals-simulation.json"));
    let run = "bench smallbank --fabric sim --threads 1 --coroutines 2 --accounts 100 --measure-ms 3600000";
    let files = ["--history", history.to_str().unwrap(), "--report", report.to_str().unwrap()];
    let mut simulation = Process::start("signals-simulation", &[&words(run)[..], &files].concat());
    simulation.wait_until("it runs", |_| fs::metadata(&history).is_ok_and(|file| file.len() > 1 << 16));
    simulation.signal(Signal::INT);
    let ended = simulation.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let (committed, seconds) = (report["committed"].as_f64().unwrap(), report["seconds"].as_f64().unwrap());
    assert!(committed > 0.0 && seconds > 0.0 && seconds < 3_600.0, "{report}");
    let checked = remora("signals-check", &["check", history.to_str().unwrap()]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
fn a_hangup_stops_a_memory_node_only_if_that_is_asked_for() {
    let mut node = Node::listen("signals-node", "");
    node.process.signal(Signal::HUP);
    let status = remora("signals-status", &["status", "--connect", node.address()]);
    assert_eq!(status.code, Some(0), "{status:?}");
    node.process.signal(Signal::TERM);
    assert_eq!(node.process.wait().code, Some(0));
    if !hangups_arrive() {
        return;
    }
    let mut asked = Node::listen("signals-asked", "--stop-on-hangup");
    asked.process.signal(Signal::HUP);
    assert_eq!(asked.process.wait().code, Some(0));
}

/// A benchmark in its own process, which loads its tables.
fn loading(test: &str) -> Process {
    let report = new_file(&format!("{test}.json"));
    let line = format!("bench tpcc --warehouses 8 --threads 1 --transactions 10 --report {}", report.display());
    let mut bench = Process::start(test, &words(&line));
    // It opens its report just before it loads.
    bench.wait_until("it begins", |_| report.exists());
    bench
}

#[test]
fn a_signal_ends_a_benchmark_that_loads_its_own_memory_in_order() {
    let hangup = hangups_arrive().then_some(Signal::HUP);
    for signal in [Signal::INT, Signal::TERM].into_iter().chain(hangup) {
        let mut bench = loading("signals-loading");
        bench.signal(signal);
        let ended = bench.wait();
        assert_eq!(ended.code, Some(2), "{signal:?}: {ended:?}");
        assert!(ended.errors.contains("interrupted") && ended.errors.contains("nothing was measured"), "{ended:?}");
    }
}

#[test]
fn a_second_signal_ends_a_benchmark_at_once() {
    let mut bench = loading("signals-second");
    // Both signals arrive together, so the process has no time to end in order.
    bench.signal(Signal::STOP);
    bench.signal(Signal::INT);
    bench.signal(Signal::TERM);
    bench.signal(Signal::CONT);
    let ended = bench.wait();
    assert_eq!((ended.code, &*ended.errors), (Some(2), ""), "{ended:?}");
}

#[test]
fn a_signal_ends_a_benchmark_of_its_own_memory_with_its_report() {
    let history = new_file("signals-embedded.jsonl");
    let name = history.to_str().unwrap();
    let line = format!("bench smallbank --accounts 100 --seconds 600 --threads 1 --history {name}");
    let mut bench = Process::start("signals-embedded", &words(&line));
    bench.wait_until("it runs", |_| fs::metadata(&history).is_ok_and(|file| file.len() > 1 << 10));
    bench.signal(Signal::INT);
    let ended = bench.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.output.contains("throughput") && ended.output.contains("✓ money is conserved"), "{ended:?}");
    assert_eq!(remora("signals-check", &["check", name]).code, Some(0), "the history is whole");
}

#[test]
fn a_signal_ends_bare_rounds_with_what_has_been_measured() {
    let report = new_file("signals-micro.json");
    let profile = new_file("signals-micro.toml");
    let line = format!("bench micro --kind read --seconds 600 --report {}", report.display());
    for (more, code) in [(String::new(), 0), (format!(" --write-profile {}", profile.display()), 2)] {
        let _ = fs::remove_file(&report);
        let mut bench = Process::start("signals-micro", &words(&format!("{line}{more}")));
        bench.wait_until("it begins", |_| report.exists());
        bench.signal(Signal::INT);
        let ended = bench.wait();
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.output.contains("rounds of one coroutine over shm"), "{ended:?}");
        assert_eq!(ended.errors.contains("no profile was written"), code == 2, "{ended:?}");
        assert!(fs::read_to_string(&report).unwrap().contains("\"round_ns\""), "{ended:?}");
    }
}
