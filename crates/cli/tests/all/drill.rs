//! Litmus test L15, "crash tests must kill processes, not threads": the published artifacts stop a
//! thread and call that a crash. Then its sockets stay open, its destructors run, and what it
//! shares with living threads is still served. Here every client is a process and dies by `kill
//! -9`, at any instruction. What it has posted may take effect, and it does not leave in order.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::{Ended, PATIENCE, Process, assert_all_have_gone_on, listen, remora, scratch, words};
use rustix::process::Signal;
use serde_json::Value;

#[track_caller]
fn json(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{} {}", ended.output, ended.errors);
    serde_json::from_str(&ended.output).expect("a report")
}

#[track_caller]
fn assert_sound(report: &Value, invariants: usize) {
    let all = report["invariants"].as_array().expect("invariants");
    assert_eq!(all.len(), invariants);
    assert!(all.iter().all(|one| one["holds"] == true), "{all:#?}");
}

fn drill(name: &str, options: &str) -> Value {
    drill_at(4_000, name, options)
}

/// Runs a drill with few customers, so that the survivors meet locks of dead clients.
fn drill_at(rate: u64, name: &str, options: &str) -> Value {
    let report = json(&remora(name, &words(&format!("drill --accounts 200 --rate {rate} --report - {options}"))));
    // Where clients have memory in hand, the drill reclaims it, and looks for what is lost.
    let reclaims = options.contains("--protocol rtx");
    assert_sound(&report, if reclaims { 8 } else { 7 });
    assert_eq!(report["histories"]["anomalies"], 0);
    assert!(report["committed"].as_u64().unwrap() > 0);
    report
}

fn two_are_killed(fabric: &str, protocol: &str) {
    two_are_killed_with(fabric, protocol, "");
}

fn two_are_killed_with(fabric: &str, protocol: &str, more: &str) {
    let name = format!("drill-{fabric}-{protocol}");
    let [csv, svg] = ["csv", "svg"].map(|kind| scratch(&format!("{name}.{kind}")));
    let options = format!(
        "--fabric {fabric} --protocol {protocol} {more} --every 1.5 --seconds 3 --csv {} --svg {}",
        csv.display(),
        svg.display()
    );
    let report = drill(&name, &options);
    assert_eq!(
        (&report["kills"], &report["fabric"], &report["protocol"]),
        (&2.into(), &fabric.into(), &protocol.into())
    );
    let clients = report["clients"].as_u64().unwrap();
    assert_eq!(clients, 6 + report["ended_by_others"].as_u64().unwrap());

    let text = fs::read_to_string(csv).unwrap();
    let mut rows = text.lines();
    assert_eq!(rows.next(), Some("bin_ms,client,committed,killed"));
    let (mut committed, mut killed) = (0, Vec::new());
    for row in rows {
        let row: Vec<u64> = row.split(',').map(|number| number.parse().unwrap()).collect();
        assert!(row[0].is_multiple_of(20) && row[1] < clients);
        committed += row[2];
        if row[3] == 1 {
            killed.push(row[1]);
        }
    }
    assert_eq!(Some(committed), report["committed"].as_u64());
    assert!(killed.len() == 2 && killed[0] != killed[1], "{killed:?}");
    assert!(fs::read_to_string(svg).unwrap().contains("a client is killed"));
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn two_are_killed_tcp_drtm_r() {
    two_are_killed("tcp", "drtm-r");
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn two_are_killed_tcp_ford() {
    two_are_killed("tcp", "ford");
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn two_are_killed_shm_drtm_r() {
    two_are_killed("shm", "drtm-r");
}

#[test]
fn two_are_killed_shm_ford() {
    two_are_killed("shm", "ford");
}

/// No process serves the memory. The survivors recover the dead by themselves.
#[test]
fn two_are_killed_passive_ford() {
    two_are_killed("passive", "ford");
}

/// Survivors finish or undo what the dead have left, whenever they meet it. No CPU of a memory node
/// takes part.
#[test]
fn two_are_killed_passive_rtx() {
    two_are_killed("passive", "rtx");
}

/// Clients read snapshots, half of them of a past time, while others die.
#[test]
fn two_are_killed_tcp_remora() {
    two_are_killed_with("tcp", "remora", "--snapshots");
}

/// Two memory nodes are killed, the first of which has primaries. Each comes back empty, and gets
/// copies.
fn nodes_are_killed(protocol: &str) {
    nodes_are_killed_with(protocol, "");
}

fn nodes_are_killed_with(protocol: &str, more: &str) {
    let name = format!("drill-nodes-{protocol}");
    let csv = scratch(&format!("{name}.csv"));
    let options = format!(
        "--protocol {protocol} {more} --kill nodes --memory-nodes 4 --spares 1 --every 5 --seconds 10 --lease-ms 500 --csv {}",
        csv.display()
    );
    // The rate is one that a busy machine can do, so transactions that are missing are missing
    // because of the kill.
    let report = drill_at(1_000, &name, &options);
    assert_eq!((&report["kills"], &report["clients"]), (&2.into(), &4.into()), "{report:#}");
    // After each kill all copies were there again, and after the last one all clients have gone on.
    assert_eq!(report["copies_ms"].as_array().unwrap().len(), 2, "{report:#}");
    let text = fs::read_to_string(csv).unwrap();
    let rows = |what: &str| text.lines().filter(|row| row.contains(",node-") && row.ends_with(what)).count();
    assert_eq!([rows(",0,1"), rows("-restarted,0,0"), rows("-copied,0,0")], [2, 2, 2]);
    assert_all_have_gone_on(&text, 4);
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn nodes_are_killed_drtm_r() {
    nodes_are_killed("drtm-r");
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn nodes_are_killed_ford() {
    nodes_are_killed("ford");
}

/// A snapshot that was opened before a node was lost is over, and another one is opened.
#[test]
#[ignore = "long: a part of .ci/long"]
fn nodes_are_killed_remora() {
    nodes_are_killed_with("remora", "--snapshots");
}

/// Many clients die while they connect, or while they recover another one, and none of their slots
/// is lost.
#[test]
#[ignore = "long: a part of .ci/long"]
fn thirty_are_killed_within_seconds() {
    let report = drill("drill-thirty", "--every 0.2 --seconds 6 --seed 3");
    assert_eq!(report["kills"], 30);
}

/// A client that stands still between two kills is taken for dead. Over TCP it goes on as a new
/// client, and on shared memory its process is ended. Neither does any harm.
#[test]
fn clients_that_stand_still_are_taken_for_dead() {
    for (fabric, taken) in [("tcp", "fenced"), ("shm", "ended_by_others")] {
        let options = format!("--fabric {fabric} --every 1.6 --seconds 3.2 --stall --lease-ms 200");
        let report = drill(&format!("drill-stall-{fabric}"), &options);
        assert!(report["kills"] == 2 && report["stalls"].as_u64().unwrap() >= 2);
        assert!(report[taken].as_u64().unwrap() > 0, "{report:#}");
    }
}

/// A drill that is killed leaves no process behind.
#[test]
fn a_drill_that_is_killed_takes_its_processes_with_it() {
    let mut drill = Process::start("drill-killed", &words("drill --seconds 60 --rate 1000"));
    let folder = std::env::temp_dir().join(format!("remora-drill-{}", drill.id()));
    let history = folder.join("client-3.jsonl");
    drill.wait_until("at work", |_| fs::metadata(&history).is_ok_and(|file| file.len() > 0));
    drill.kill();
    // Each process holds a lock while it is alive, and gives it up when it ends.
    let began = Instant::now();
    let signs = || {
        let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        files.filter(|file| file.display().to_string().contains("configuration.process-"))
    };
    assert!(signs().count() >= 4);
    while !signs().all(|sign| fs::File::open(sign).unwrap().try_lock().is_ok()) {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn drills_that_make_no_sense_are_refused() {
    for (options, names) in [
        ("--clients 1", &["--clients"][..]),
        ("--replicas 4", &["--replicas 4", "--memory-nodes is 3"]),
        ("--fabric sim", &["--fabric", "tcp, verbs, shm or passive"]),
        ("--protocol unsynchronized", &["--protocol unsynchronized"]),
        ("--protocol ford --ford-without corrections", &["--ford-without corrections"]),
        ("--csv /nonexistent/drill.csv", &["--csv /nonexistent/drill.csv"]),
        ("--every 0", &["--every"]),
        ("--protocol ford --snapshots", &["--snapshots", "remora"]),
        ("--protocol rtx --replicas 2", &["--replicas 2", "rtx", "one copy"]),
        ("--protocol rtx --kill nodes", &["--kill nodes", "rtx", "one copy"]),
    ] {
        let ended = remora("drill-refused", &words(&format!("drill {options}")));
        assert_eq!(ended.code, Some(2), "{options}: {}", ended.errors);
        assert!(
            ended.errors.lines().count() == 1 && names.iter().all(|name| ended.errors.contains(name)),
            "{}",
            ended.errors
        );
    }
}

const BANK: &str = "bench smallbank --threads 1 --coroutines 4 --report -";

/// Only a ledger has the last payment of a killed client. Everything else is known once the client
/// is recovered.
#[test]
fn money_is_known_after_a_kill_where_there_is_a_ledger() {
    for ledger in [true, false] {
        let name = format!("ledger-{ledger}");
        let (_nodes, connect) = listen(&name, 3);
        let (file, history) = (scratch(&format!("{name}.configuration")), scratch(&format!("{name}.jsonl")));
        for file in [&file, &history] {
            let _ = fs::remove_file(file);
        }
        let file = file.display().to_string();
        let bank = |options: &str| {
            let options = format!("{BANK} --connect {connect} --configuration {file} {options}");
            options.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let run = |who: &str, options: &str| {
            let options = bank(options);
            json(&remora(&format!("{name}-{who}"), &options.iter().map(String::as_str).collect::<Vec<_>>()))
        };
        let option = if ledger { "--ledger" } else { "" };
        let loaded = run("load", &format!("--accounts 100 --transactions 100 {option}"));
        assert_sound(&loaded, 4);
        let options = bank(&format!("--seconds 600 --history {}", history.display()));
        let mut victim =
            Process::start(&format!("{name}-victim"), &options.iter().map(String::as_str).collect::<Vec<_>>());
        victim.wait_until("a history", |_| fs::metadata(&history).is_ok_and(|file| file.len() > 0));
        // This client has no option for the ledger: the client that loaded the tables has decided.
        let beside = run("beside", "--transactions 100");
        assert_eq!(beside["config"]["ledger"], ledger);
        assert!(beside["invariants"][0]["detail"].as_str().unwrap().contains("at work"), "{beside:#}");
        victim.kill();
        // This client finds the dead client by itself, and recovers it, because there is no other
        // client.
        let checked = run("check", "--check");
        if ledger {
            assert_sound(&checked, 4);
        } else {
            let money = &checked["invariants"][0];
            assert!(money["holds"].is_null() && money["detail"].as_str().unwrap().contains("--ledger"), "{money}");
            assert!(
                checked["invariants"].as_array().unwrap()[1..].iter().all(|one| one["holds"] == true),
                "{checked:#}"
            );
        }
        let status = json(&remora(&format!("{name}-status"), &["status", "--connect", &connect, "--report", "-"]));
        assert!(status["nodes"].as_array().unwrap().iter().all(|node| node["clients"] == 0), "{status:#}");
    }
}

/// A client that stands still for longer than its lease is taken for dead, and learns this when it
/// goes on. It connects again as a new client, and nothing of the old one does any harm.
#[test]
fn a_client_that_was_taken_for_dead_goes_on_as_a_new_one() {
    let (_nodes, connect) = listen("fenced", 3);
    let file = scratch("fenced.configuration");
    let _ = fs::remove_file(&file);
    let histories = ["fenced-slow.jsonl", "fenced-other.jsonl"].map(scratch);
    histories.iter().for_each(|path| drop(fs::remove_file(path)));
    let bank = |options: &str| {
        let common =
            format!("{BANK} --lease-ms 300 --rate 2000 --connect {connect} --configuration {}", file.display());
        format!("{common} {options}").split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let start =
        |name: &str, options: &str| Process::start(name, &bank(options).iter().map(String::as_str).collect::<Vec<_>>());
    let loaded = start("fenced-load", "--accounts 50 --ledger --transactions 10").wait();
    assert_sound(&json(&loaded), 4);
    let clients = histories.each_ref().map(|history| {
        let name = history.file_stem().unwrap().to_str().unwrap();
        let mut client = start(name, &format!("--seconds 600 --history-durable --history {}", history.display()));
        client.wait_until("a history", |_| fs::metadata(history).is_ok_and(|file| file.len() > 0));
        client
    });
    let [mut slow, mut other] = clients;
    slow.signal(Signal::STOP);
    let (began, mut stopped) = (Instant::now(), Instant::now());
    let configuration = || fs::read_to_string(&file).unwrap();
    while !configuration().contains("Forgotten") {
        assert!(began.elapsed() < PATIENCE, "{}", configuration());
        std::thread::sleep(Duration::from_millis(20));
        if stopped.elapsed() > Duration::from_secs(3) {
            // The client was stopped while it had the configuration's lock, so no other client can
            // change anything. Stop it at another time.
            slow.signal(Signal::CONT);
            std::thread::sleep(Duration::from_millis(20));
            slow.signal(Signal::STOP);
            stopped = Instant::now();
        }
    }
    let length = || fs::metadata(&histories[0]).unwrap().len();
    slow.signal(Signal::CONT);
    let before = length();
    slow.wait_until("more history", |_| length() > before + (64 << 10));
    slow.signal(Signal::INT);
    let slow = json(&slow.wait());
    assert!(slow["fenced"].as_u64().unwrap() > 0, "{slow:#}");
    other.signal(Signal::INT);
    let other = json(&other.wait());
    assert_sound(&other, 4);
    let names = histories.each_ref().map(|path| path.to_str().unwrap());
    let checked = remora("fenced-check", &["check", names[0], names[1]]);
    assert_eq!(checked.code, Some(0), "{} {}", checked.output, checked.errors);
}
