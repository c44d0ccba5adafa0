//! Memory nodes and clients in processes of their own: they work together, and go on when one of
//! them is killed.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Ended, Node, Process, listen, new_file, remora, scratch, words};
use remora::connect::Nodes;
use remora::floors::node::node::{FORMAT, MAGIC};
use remora::protocol::Protocol;
use remora::{Cluster, RaceOptions, WorkerOptions};
use rustix::process::Signal;
use serde_json::Value;

/// Returns a client's report.
#[track_caller]
fn report(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    serde_json::from_str(&ended.output).expect("a report")
}

/// Returns whether each invariant holds.
fn holds(report: &Value) -> Vec<Option<bool>> {
    report["invariants"].as_array().expect("invariants").iter().map(|one| one["holds"].as_bool()).collect()
}

#[track_caller]
fn assert_refused(ended: &Ended, names: &[&str]) {
    let complaint = &ended.errors;
    assert_eq!(ended.code, Some(2), "{complaint}");
    assert!(complaint.starts_with("error: ") && complaint.lines().count() == 1, "{complaint}");
    assert!(names.iter().all(|name| complaint.contains(name)), "{names:?}: {complaint}");
    assert_eq!(ended.output, "");
}

const BANK: &str = "bench smallbank --threads 1 --coroutines 4 --report -";

fn bank<'a>(connect: &'a str, options: &'a str) -> Vec<&'a str> {
    [&words(BANK)[..], &["--connect", connect], &words(options)[..]].concat()
}

#[test]
fn two_clients_at_once_are_serializable_together() {
    let (nodes, connect) = listen("two", 3);
    let histories = ["two-a.jsonl", "two-b.jsonl"].map(scratch);
    let mut clients: Vec<Process> = Vec::new();
    for (index, history) in histories.iter().enumerate() {
        let history = history.to_str().unwrap();
        // The client that comes later takes the sizes of the first one. Both use a few accounts, so
        // their transactions meet.
        let options =
            format!("--accounts 40 --hot-fraction 0.1 --transactions 2000 --seed {index} --history {history}");
        clients.push(Process::start(&format!("two-client{index}"), &bank(&connect, &options)));
    }
    let reports: Vec<Value> = clients.iter_mut().map(|client| report(&client.wait())).collect();
    for report in &reports {
        assert_eq!((&report["fabric"], &report["config"]["connect"]), (&"tcp".into(), &connect.as_str().into()));
        assert_eq!((&report["config"]["memory_nodes"], &report["config"]["replicas"]), (&3.into(), &3.into()));
        assert!(report["max_gap_ms"].as_f64().unwrap() >= 1.0);
        let ended = report["committed"].as_u64().unwrap() + report["aborted"]["user"].as_u64().unwrap();
        assert_eq!(ended + report["given_up"].as_u64().unwrap(), 2_000);
    }
    // The last one to leave checks; if both leave at once, both do.
    let held: Vec<_> = reports.iter().map(holds).collect();
    assert!(held.contains(&vec![Some(true); 4]), "{reports:#?}");
    assert!(held.iter().flatten().all(|holds| *holds != Some(false)), "{reports:#?}");
    let checked = remora("two-check", &["check", histories[0].to_str().unwrap(), histories[1].to_str().unwrap()]);
    assert_eq!(checked.code, Some(0), "{} {}", checked.output, checked.errors);

    let checked = report(&remora("two-invariants", &bank(&connect, "--check")));
    assert_eq!(holds(&checked), [Some(true); 4], "{checked:#}");
    assert_eq!(checked["committed"], 0);
    // The nodes can be named in any order.
    let reversed = connect.split(',').rev().collect::<Vec<_>>().join(",");
    let counted = remora("two-rows", &["status", "--connect", &reversed, "--rows", "--report", "-"]);
    let counted: Value = serde_json::from_str(&counted.output).unwrap();
    let counted: Vec<_> = counted["tables"].as_array().unwrap().iter().map(|table| table["counted"].as_u64()).collect();
    assert_eq!(counted[1..], [Some(40); 2]);
    let fewer = reversed.split_once(',').unwrap().1;
    let refused = remora("two-fewer", &["status", "--connect", fewer, "--rows"]);
    assert!(refused.errors.contains("--rows: memory node 2 does not answer or is not named"), "{}", refused.errors);
    assert!(refused.code == Some(2) && refused.output.contains("savings"), "the rest is shown: {}", refused.output);
    let status = remora("two-status", &["status", "--connect", &connect, "--report", "-"]);
    let status: Value = serde_json::from_str(&status.output).unwrap();
    for (number, node) in status["nodes"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&node["number"], &node["bytes"], &node["clients"]),
            (&number.into(), &(64 << 20).into(), &0.into())
        );
    }
    let tables: Vec<_> = status["tables"].as_array().unwrap().iter().map(|table| table["name"].clone()).collect();
    assert_eq!(tables, ["remora.workload", "savings", "checking"]);
    for node in nodes {
        assert!(node.ready.ends_with(", 64.0 MiB, new\n"), "{}", node.ready);
        let mut process = node.process;
        process.signal(Signal::TERM);
        let ended = process.wait();
        assert_eq!((ended.code, ended.output, ended.errors), (Some(0), node.ready, String::new()));
    }
}

#[test]
fn options_that_contradict_what_is_there_are_refused() {
    let (_nodes, connect) = listen("contradict", 2);
    assert_refused(&remora("contradict-check", &bank(&connect, "--check")), &["--check", "no workload"]);
    let options = "--fabric tcp --accounts 100 --transactions 10"; // what --connect says, too
    let loaded = report(&remora("contradict-load", &bank(&connect, options)));
    assert_eq!(holds(&loaded), [Some(true); 4]);
    for (options, names) in [
        ("--accounts 200", &["--accounts 200", "100"][..]),
        ("--replicas 1", &["--replicas 1"]),
        ("--replicas 3", &["--replicas 3", "--connect"]),
        ("--memory-nodes 2", &["--memory-nodes", "--connect"]),
        ("--node-size 1GiB", &["--node-size", "--connect"]),
        ("--fabric shm", &["--fabric", "--connect"]),
        ("--check --seconds 1", &["--check", "--seconds"]),
        ("--protocol farm", &["farm", "discipline"]),
        ("--key-file /nonexistent", &["--key-file /nonexistent"]),
        ("--ledger", &["--ledger", "loaded without one"]),
        ("--lease-ms 500", &["--lease-ms", "--configuration"]),
        ("--history-durable", &["--history"]),
    ] {
        assert_refused(&remora("contradict-options", &bank(&connect, options)), names);
    }
    let tatp = remora("contradict-tatp", &["bench", "tatp", "--connect", &connect]);
    assert_refused(&tatp, &["smallbank", "tatp"]);
    // Only one node of two is named, or one node twice.
    let (first, second) = connect.split_once(',').unwrap();
    assert_refused(&remora("contradict-one", &bank(first, "")), &["name all"]);
    assert_refused(&remora("contradict-twice", &bank(&format!("{first},{first}"), "")), &["named twice"]);
    // Named in another order they are the same cluster. A client that was refused does not count as
    // one that was there.
    let again = remora("contradict-order", &bank(&format!("{second},{first}"), "--accounts 100 --transactions 10"));
    assert_eq!(holds(&report(&again)), [Some(true); 4]);
    assert_refused(&remora("contradict-nobody", &bank("127.0.0.1:1", "")), &["127.0.0.1:1"]);
    assert_refused(&remora("contradict-list", &bank("nonsense", "")), &["--connect", "nonsense"]);
    assert_refused(&remora("contradict-alone", &words("bench smallbank --check")), &["--connect"]);
    assert_refused(&remora("contradict-tcp", &words("bench smallbank --fabric tcp")), &["--fabric", "remora memnode"]);
}

#[test]
fn tatp_and_the_bound_without_transactions_are_shared_too() {
    let (_nodes, connect) = listen("tatp", 2);
    let tatp = words("bench tatp --threads 1 --transactions 500 --report - --protocol");
    for name in ["tatp-first", "tatp-second"] {
        let ran =
            report(&remora(name, &[&tatp[..], &["drtm-r", "--connect", &connect, "--subscribers", "50"]].concat()));
        assert_eq!(holds(&ran), [Some(true); 6], "{ran:#}");
    }
    let bare = ["unsynchronized", "--connect", &connect];
    let ran = report(&remora("tatp-bare", &[&tatp[..], &bare].concat()));
    assert_eq!(holds(&ran), [None; 6], "{ran:#}");
    // The bound without transactions has left differences, and no client is blamed for them.
    let ran = report(&remora("tatp-third", &[&tatp[..], &["drtm-r", "--connect", &connect]].concat()));
    assert_eq!(holds(&ran), [None; 6], "{ran:#}");
    assert!(ran["invariants"][0]["detail"].as_str().unwrap().contains("without transactions"));
}

#[test]
fn tpce_is_shared_too() {
    let (_nodes, connect) = listen("tpce", 2);
    let tpce = words("bench tpce --threads 1 --coroutines 4 --protocol remora --transactions 500 --report - --connect");
    // The first client loads the tables, with room for the second one, too.
    for (name, options) in [("tpce-first", "--customers 40 --trades 1000"), ("tpce-second", "--snapshots")] {
        let ran = report(&remora(name, &[&tpce[..], &[&connect], &words(options)[..]].concat()));
        assert_eq!(holds(&ran), [Some(true); 10], "{ran:#}");
        assert_eq!((&ran["config"]["customers"], &ran["config"]["trades"]), (&40.into(), &1_000.into()));
        assert_eq!(ran["config"]["securities"], 27);
    }
    for (option, names) in [("--customers 41", "40"), ("--securities 9", "27"), ("--trades 9", "1000")] {
        let refused = remora("tpce-other", &[&tpce[..], &[&connect], &words(option)[..]].concat());
        assert_refused(&refused, &[option, names]);
    }
}

/// Each process has a scanner of its own, and the sums of all of them are checked.
#[test]
fn analytic_scans_are_shared_too() {
    let (_nodes, connect) = listen("analytic", 2);
    let analytic =
        words("bench ycsb --analytic --threads 1 --protocol remora --transactions 300 --rate 300 --report -");
    let run = |name, options: &str| {
        report(&remora(name, &[&analytic[..], &["--connect", &connect], &words(options)[..]].concat()))
    };
    let loaded = run("analytic-first", "--records 500 --scanner never");
    assert_eq!((holds(&loaded), loaded["scans"].is_null()), (vec![Some(true); 7], true), "{loaded:#}");
    let both = std::thread::scope(|scope| {
        let others = scope.spawn(|| run("analytic-second", ""));
        let ours = run("analytic-third", "");
        [ours, others.join().expect("it has a report")]
    });
    for ran in &both {
        assert!(ran["scans"]["attempts"].as_u64().is_some_and(|attempts| attempts > 0), "{ran:#}");
        assert_eq!((&ran["config"]["records"], &ran["config"]["scanner"]), (&500.into(), &"always".into()));
    }
    let checked = run("analytic-fourth", "");
    assert_eq!(holds(&checked), vec![Some(true); 7], "{checked:#}");
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn tpcc_is_shared_too() {
    let nodes = ["tpcc-a", "tpcc-b"].map(|name| Node::start(name, "--listen 127.0.0.1:0 --size 192MiB"));
    let connect = nodes.each_ref().map(Node::address).join(",");
    let tpcc = words("bench tpcc --threads 1 --coroutines 4 --replicas 1 --transactions 300 --report - --connect");
    // The first client loads the tables, with room for the second one, too.
    for (name, options) in [("tpcc-first", "--warehouses 1 --orders 2000"), ("tpcc-second", "")] {
        let ran = report(&remora(name, &[&tpcc[..], &[&connect], &words(options)[..]].concat()));
        assert_eq!(holds(&ran), [Some(true); 17], "{ran:#}");
        assert_eq!((&ran["config"]["warehouses"], &ran["config"]["orders"]), (&1.into(), &2_000.into()));
    }
    assert_refused(&remora("tpcc-more", &[&tpcc[..], &[&connect, "--orders", "9"]].concat()), &["--orders 9", "2000"]);
    let only_orders = ["bench", "tpcc-no", "--connect", &connect, "--replicas", "1"];
    assert_refused(&remora("tpcc-no", &only_orders), &["tpcc, not tpcc-no"]);
}

/// Each client inserts records of its own, whose sums are checked together.
#[test]
fn ycsb_is_shared_too() {
    let nodes = ["ycsb-a", "ycsb-b"].map(|name| Node::start(name, "--listen 127.0.0.1:0 --size 64MiB"));
    let connect = nodes.each_ref().map(Node::address).join(",");
    let ycsb = words("bench ycsb --threads 1 --coroutines 4 --replicas 1 --transactions 1000 --report - --connect");
    for (name, options) in [
        ("ycsb-first", "--mix d --records 1000 --inserts 2000 --value-size 128"),
        ("ycsb-second", "--mix d --read-share 0.5"),
        ("ycsb-third", "--mix f"),
    ] {
        let ran = report(&remora(name, &[&ycsb[..], &[&connect], &words(options)[..]].concat()));
        assert_eq!(holds(&ran), [Some(true); 7], "{ran:#}");
        let config = &ran["config"];
        let found = ["records", "inserts", "value_size"].map(|option| config[option].as_u64().unwrap());
        assert_eq!(found, [1_000, 2_000, 128]);
    }
    for (other, found) in
        [("--value-size 32", "128"), ("--table ordered", "hash"), ("--insert-order hashed", "a hash table")]
    {
        let refused = remora("ycsb-other", &[&ycsb[..], &[&connect], &words(other)].concat());
        assert_refused(&refused, &[other, found]);
    }
}

#[test]
fn a_key_is_asked_for() {
    let key = |name: &str| {
        let path = scratch(name);
        let _ = fs::remove_file(&path);
        let made = remora("key-gen", &["keygen", path.to_str().unwrap()]);
        assert_eq!((made.code, made.errors.as_str()), (Some(0), ""));
        path
    };
    let (right, wrong) = (key("right.key"), key("wrong.key"));
    assert_eq!(fs::metadata(&right).unwrap().permissions().mode() & 0o777, 0o600);
    let again = remora("key-again", &["keygen", right.to_str().unwrap()]);
    assert_refused(&again, &["right.key", "never overwritten"]);

    let node = Node::listen("key-node", &format!("--key-file {}", right.display()));
    let client = |name: &str, key: Option<&PathBuf>| {
        let options = key.map(|key| format!("--key-file {}", key.display())).unwrap_or_default();
        remora(name, &bank(node.address(), &format!("--replicas 1 --accounts 10 --transactions 10 {options}")))
    };
    assert_eq!(holds(&report(&client("key-right", Some(&right)))), [Some(true); 4]);
    assert_refused(&client("key-none", None), &[node.address(), "asks for a key", "--key-file"]);
    assert_refused(&client("key-wrong", Some(&wrong)), &[node.address(), "key"]);
    fs::set_permissions(&wrong, fs::Permissions::from_mode(0o644)).unwrap();
    assert_refused(&client("key-exposed", Some(&wrong)), &["--key-file", "wrong.key", "chmod 600"]);
    let status = remora("key-status", &["status", "--connect", node.address()]);
    assert_eq!(status.code, Some(1), "{}", status.errors);
    assert!(status.output.contains("asks for a key") && status.errors.contains(node.address()), "{}", status.output);
    let status = remora("key-status", &["status", "--connect", node.address(), "--key-file", right.to_str().unwrap()]);
    assert_eq!(status.code, Some(0), "{}", status.errors);
}

/// The key is changed on one machine after the other, in steps, while everything runs.
#[test]
fn a_key_is_changed_while_clients_come_and_go() {
    let [made, nodes_have, clients_have, old] =
        ["made", "nodes", "clients", "old"].map(|name| scratch(&format!("change-{name}.key")));
    let _ = fs::remove_file(&made);
    let keygen = |step: &str| {
        let ended = remora("change-keygen", &[&["keygen", made.to_str().unwrap()], &words(step)[..]].concat());
        assert_eq!((ended.code, ended.errors.as_str()), (Some(0), ""), "{step}");
        ended.output
    };
    let hand_out = |to: &PathBuf| {
        let beside = to.with_extension("beside");
        fs::copy(&made, &beside).unwrap();
        fs::rename(beside, to).unwrap();
    };
    keygen("");
    [&nodes_have, &clients_have, &old].into_iter().for_each(&hand_out);
    let serve = |name| Node::listen(name, &format!("--key-file {}", nodes_have.display()));
    let nodes = ["change-node0", "change-node1"].map(serve);
    let connect = nodes.each_ref().map(Node::address).join(",");
    let client = |name: &str, key: &PathBuf| {
        remora(name, &bank(&connect, &format!("--transactions 20 --key-file {}", key.display())))
    };

    let history = scratch("change.jsonl");
    let _ = fs::remove_file(&history);
    let (key, history) = (clients_have.display(), history.display());
    let options = format!("--accounts 1000 --seconds 600 --rate 500 --key-file {key} --history {history}");
    let mut stays = Process::start("change-stays", &bank(&connect, &options));
    wait_for_history(&mut stays, &scratch("change.jsonl"));
    for (step, says, order) in [
        ("--add", "--swap", [&nodes_have, &clients_have]),
        ("--swap", "--drop", [&clients_have, &nodes_have]),
        ("--drop", "open stay open", [&nodes_have, &clients_have]),
    ] {
        let said = keygen(step);
        assert!(said.contains("copy it to every machine") && said.contains(says), "{said}");
        for to in order {
            hand_out(to);
            let ran = report(&client("change-comes", &clients_have));
            assert!(ran["committed"].as_u64().unwrap() > 0, "{step}, {}: {ran:#}", to.display());
        }
    }
    assert_refused(&client("change-old", &old), &["another key"]);
    let recorded = || fs::metadata(scratch("change.jsonl")).unwrap().len();
    let before = recorded();
    stays.wait_until("transactions behind the change", |_| recorded() > before);

    // Memory nodes report once that a key file cannot be used, and go on without it.
    fs::write(&nodes_have, "rubbish").unwrap();
    for _ in 0..2 {
        assert_eq!(client("change-broken", &clients_have).code, Some(0));
    }
    stays.signal(Signal::INT);
    // The client connects again for that, with the new key, because it has read the file again.
    let stayed = report(&stays.wait());
    assert_eq!(holds(&stayed), [Some(true); 4], "{stayed:#}");
    for mut node in nodes {
        node.process.signal(Signal::TERM);
        let ended = node.process.wait();
        assert_eq!(
            (ended.code, ended.errors.matches("key file cannot be used").count()),
            (Some(0), 1),
            "{}",
            ended.errors
        );
    }
}

#[test]
fn steps_to_another_key_that_do_not_fit_are_refused() {
    let path = scratch("steps.key");
    let _ = fs::remove_file(&path);
    let name = path.to_str().unwrap();
    let keygen = |options: &str| remora("steps", &[&["keygen", name], &words(options)[..]].concat());
    assert_refused(&keygen("--add"), &[name, "No such file or directory"]);
    assert_eq!(keygen("").code, Some(0));
    assert_refused(&keygen("--swap"), &[name, "one key only", "--add"]);
    assert_refused(&keygen("--drop"), &[name, "one key only"]);
    assert_refused(&keygen("--add --swap"), &["--add", "--swap"]);
    assert_eq!(keygen("--add").code, Some(0));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let two = fs::read_to_string(&path).unwrap();
    assert_refused(&keygen("--add"), &[name, "two keys already"]);
    let beside = fs::File::create(format!("{name}.new")).unwrap();
    beside.lock().unwrap();
    assert_refused(&keygen("--swap"), &[name, "another process changes the key file"]);
    drop(beside);
    fs::remove_file(format!("{name}.new")).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), two, "what is refused changes nothing");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_refused(&keygen("--swap"), &[name, "chmod 600"]);
    fs::write(&path, two.repeat(2)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let serves = remora("steps-node", &["memnode", "--listen", "127.0.0.1:0", "--size", "1MiB", "--key-file", name]);
    assert_refused(&serves, &["--key-file", "one line or two"]);
}

#[test]
fn a_memory_node_that_cannot_serve_says_why() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let text = scratch("foreign");
    fs::write(&text, "x".repeat(1 << 20)).unwrap();
    let new = scratch("serve-new");
    let _ = fs::remove_file(&new);
    let (text, new) = (text.to_str().unwrap(), new.to_str().unwrap());
    for (line, names) in [
        (format!("--listen {taken} --size 1MiB"), &["--listen", taken.as_str(), "Address already in use"][..]),
        ("--listen 0.0.0.0:0 --size 1MiB".to_owned(), &["--listen", "--key-file", "--insecure"]),
        ("--listen 127.0.0.1:0 --size 1MiB --key-file /nonexistent".to_owned(), &["--key-file /nonexistent"]),
        ("--listen 127.0.0.1:0 --size 64KiB".to_owned(), &["--size"]),
        ("--listen 127.0.0.1:0 --size 0".to_owned(), &["--size"]),
        ("--listen 127.0.0.1:0 --size 900TiB".to_owned(), &["--size 989560464998400", "this machine has"]),
        ("--listen 127.0.0.1:0".to_owned(), &["--size"]),
        ("--listen nowhere --size 1MiB".to_owned(), &["--listen nowhere"]),
        ("--size 1MiB".to_owned(), &["--listen"]),
        (format!("--listen 127.0.0.1:0 --shm {new} --size 1MiB"), &["--listen", "--shm"]),
        (format!("--shm {new}"), &["--size", "is new"]),
        (format!("--shm {new} --size 64KiB"), &["--size"]),
        (format!("--shm {new} --size 900TiB"), &["--size", "free"]),
        (format!("--shm {text}"), &["--shm", text]),
        ("--shm /nonexistent/node --size 1MiB".to_owned(), &["--shm", "/nonexistent/node"]),
    ] {
        let ended = remora("serve", &[&["memnode"], &words(&line)[..]].concat());
        assert_refused(&ended, names);
    }
    assert_eq!(fs::read_to_string(text).unwrap().len(), 1 << 20, "what is another's is left alone");
}

/// Waits until a client has recorded transactions.
#[track_caller]
fn wait_for_history(client: &mut Process, history: &PathBuf) {
    client.wait_until("a history", |_| fs::metadata(history).is_ok_and(|file| file.len() > 0));
}

#[test]
fn a_client_that_is_killed_leaves_the_others_in_doubt_but_at_work() {
    let (_nodes, connect) = listen("killed", 3);
    // The tables are loaded first, so that both clients find them.
    let loaded = report(&remora("killed-load", &bank(&connect, "--accounts 40 --hot-fraction 0.1 --transactions 10")));
    assert_eq!(holds(&loaded), [Some(true); 4]);
    let history = scratch("killed.jsonl");
    let _ = fs::remove_file(&history);
    let options = format!("--seconds 600 --history {}", history.display());
    let mut killed = Process::start("killed-victim", &bank(&connect, &options));
    wait_for_history(&mut killed, &history);
    let mut other = Process::start("killed-other", &bank(&connect, "--seconds 2"));
    killed.kill();
    let other = report(&other.wait());
    assert!(other["committed"].as_u64().unwrap() + other["given_up"].as_u64().unwrap() > 0);
    for invariant in other["invariants"].as_array().unwrap() {
        assert!(invariant["holds"].is_null(), "{invariant}");
        assert!(invariant["detail"].as_str().unwrap().contains("not left"), "{invariant}");
    }
    let checked = report(&remora("killed-check", &bank(&connect, "--check")));
    assert_eq!(holds(&checked), [None; 4], "{checked:#}");
}

/// The history of a killed client has what it did. So what other clients have seen of it can be
/// checked.
#[test]
fn histories_beside_a_killed_client_can_be_checked() {
    let (_nodes, connect) = listen("durable", 3);
    let loaded =
        report(&remora("durable-load", &bank(&connect, "--accounts 200 --hot-fraction 0.5 --transactions 10")));
    assert_eq!(holds(&loaded), [Some(true); 4]);
    let histories = ["durable-killed.jsonl", "durable-other.jsonl"].map(scratch);
    let [killed_history, other_history] = histories.each_ref().map(|path| path.to_str().unwrap());
    histories.iter().for_each(|path| drop(fs::remove_file(path)));
    let durable = format!("--seconds 600 --history-durable --history {killed_history}");
    let mut killed = Process::start("durable-victim", &bank(&connect, &durable));
    let plain = format!("--seconds 3 --history {other_history}");
    let mut other = Process::start("durable-other", &bank(&connect, &plain));
    wait_for_history(&mut killed, &histories[0]);
    wait_for_history(&mut other, &histories[1]);
    killed.kill();
    assert!(report(&other.wait())["committed"].as_u64().unwrap() > 0);

    // Every transaction that has committed was announced before.
    let mut announced = HashSet::new();
    for line in fs::read_to_string(killed_history).unwrap().lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
        if line["history"] == "durable" {
            continue;
        }
        let writes = line["writes"].as_array().unwrap().len();
        match line["status"].as_str().unwrap() {
            "unknown" => assert!(announced.insert(line["id"].clone()) && writes > 0),
            "committed" => assert_eq!(announced.remove(&line["id"]), writes > 0),
            _ => _ = announced.remove(&line["id"]),
        }
    }
    assert!(announced.len() <= 4, "one for each coroutine: {announced:?}");

    // The history looks as if the client had been killed in the middle of a line.
    let mut file = fs::OpenOptions::new().append(true).open(&histories[0]).unwrap();
    file.write_all(b"{\"id\":1,\"worker\":1,\"sta").unwrap();
    assert_refused(&remora("durable-whole", &["check", killed_history, other_history]), &[killed_history, "truncated"]);
    let checked = remora("durable-check", &["check", "--crashed", killed_history, other_history]);
    assert_eq!(checked.code, Some(0), "{} {}", checked.output, checked.errors);
    assert_eq!(checked.errors, format!("error: {killed_history}: the last line is truncated, and was left out\n"));
}

#[test]
fn a_client_that_is_interrupted_leaves_as_it_should() {
    let (_nodes, connect) = listen("interrupted", 1);
    let history = scratch("interrupted.jsonl");
    let _ = fs::remove_file(&history);
    let options = format!("--accounts 100 --seconds 600 --history {}", history.display());
    let mut client = Process::start("interrupted-client", &bank(&connect, &options));
    wait_for_history(&mut client, &history);
    client.signal(Signal::INT);
    let ran = report(&client.wait());
    assert_eq!(holds(&ran), [Some(true); 4], "{ran:#}");
    assert!(ran["seconds"].as_f64().unwrap() < 300.0);
}

#[test]
fn a_memory_node_that_is_killed_is_named() {
    for signal in [Signal::KILL, Signal::TERM] {
        let (mut nodes, connect) = listen("node-killed", 3);
        let history = scratch("node-killed.jsonl");
        let _ = fs::remove_file(&history);
        let options = format!("--threads 2 --accounts 1000 --seconds 600 --history {}", history.display());
        let options = words(&options);
        let bank = words("bench smallbank --coroutines 4 --report -");
        let mut client =
            Process::start("node-killed-client", &[&bank[..], &["--connect", &connect], &options].concat());
        wait_for_history(&mut client, &history);
        nodes[1].process.signal(signal);
        let killed = Instant::now();
        let ended = client.wait();
        assert_refused(&ended, &[nodes[1].address(), "is down or cannot be reached"]);
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
        if signal == Signal::TERM {
            assert_eq!(nodes[1].process.wait().code, Some(0), "also with clients connected");
        }
        // The status of the remaining nodes can still be shown.
        let status = remora("node-killed-status", &["status", "--connect", &connect]);
        assert_eq!(status.code, Some(1));
        assert!(status.errors.contains(nodes[1].address()) && !status.errors.contains(nodes[0].address()));
        assert!(status.output.contains("does not answer") && status.output.contains("savings"), "{}", status.output);
    }
}

#[test]
fn memory_in_files_outlives_its_server() {
    let paths = [0, 1, 2].map(|index| scratch(&format!("file-node{index}")));
    for path in &paths {
        let _ = fs::remove_file(path);
        let _ = fs::remove_file(path.with_extension("configuration"));
    }
    let start = |index: usize, options: &str| {
        Node::start(&format!("file-node{index}"), &format!("--shm {} {options}", paths[index].display()))
    };
    let mut nodes: Vec<Node> = (0..3).map(|index| start(index, "--size 16MiB")).collect();
    for (node, path) in nodes.iter().zip(&paths) {
        assert_eq!(node.ready, format!("remora memory node ready: serving {}, 16.0 MiB, new\n", path.display()));
    }
    let second = remora("file-second", &["memnode", "--shm", paths[0].to_str().unwrap()]);
    assert_refused(&second, &["--shm", "another process", "serves it"]);
    let connect = format!("shm:{}", paths.each_ref().map(|path| path.display().to_string()).join(","));
    let run = |name: &str| {
        let ran = report(&remora(name, &bank(&connect, "--accounts 100 --transactions 1000")));
        assert_eq!(holds(&ran), [Some(true); 4], "{ran:#}");
        assert_eq!(ran["fabric"], "shm");
    };
    run("file-first");
    // One is killed, one is stopped, one goes on.
    nodes[0].process.kill();
    nodes[1].process.signal(Signal::TERM);
    assert_eq!(nodes[1].process.wait().code, Some(0));
    let down = remora("file-down", &bank(&connect, ""));
    assert_refused(&down, &["file-node"]);
    for (index, found) in [(0, "killed"), (1, "stopped cleanly")] {
        nodes[index] = start(index, "");
        let ready = &nodes[index].ready;
        assert!(ready.ends_with(&format!(", 16.0 MiB, reopened: the last server was {found}\n")), "{ready}");
    }
    run("file-again");
    let status = remora("file-status", &["status", "--connect", &connect]);
    assert_eq!(status.code, Some(0), "{}", status.errors);
    assert!(status.output.contains("savings"), "{}", status.output);
    for path in &paths {
        fs::remove_file(path).unwrap();
    }
}

/// Makes passive memory. Returns its path.
fn passive(name: &str) -> PathBuf {
    let path = new_file(name);
    let _ = fs::remove_file(path.with_extension("configuration"));
    let made = remora(name, &["memnode", "--passive", path.to_str().unwrap(), "--size", "16MiB"]);
    let ready = format!("remora passive memory ready: {}, 16.0 MiB, new\n", path.display());
    assert_eq!((made.code, made.output, made.errors), (Some(0), ready, String::new()));
    path
}

/// No process serves passive memory, so what needs one is refused by name.
#[test]
fn every_protocol_runs_on_passive_memory_or_says_why_not() {
    for protocol in Protocol::ALL {
        let name = protocol.name();
        let path = passive(&format!("passive-{name}"));
        let connect = format!("shm:{}", path.display());
        let options = format!("--accounts 40 --transactions 200 --protocol {name}");
        let ran = remora(&format!("passive-{name}"), &bank(&connect, &options));
        if protocol.needs_node_cpu() {
            assert_refused(&ran, &[&format!("protocol {name} needs"), "passive memory", "ford, ", "memnode --shm"]);
        } else {
            assert_eq!(holds(&report(&ran)), [Some(true); 4], "{name}");
        }
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn passive_memory_is_shared_without_a_memory_node() {
    let paths = ["passive-first", "passive-second"].map(passive);
    let [first, second] = paths.each_ref().map(|path| path.to_str().unwrap());
    let connect = format!("shm:{first},{second}");
    let run = |name: &str, options: &str| {
        let ran = report(&remora(name, &bank(&connect, options)));
        assert_eq!((holds(&ran), &ran["fabric"]), (vec![Some(true); 4], &"shm".into()), "{ran:#}");
    };
    run("passive-load", "--accounts 100 --transactions 500");
    // The memory stays when all clients have left, and is found whole.
    let again = remora("passive-again", &["memnode", "--passive", first]);
    let found = format!("remora passive memory ready: {first}, 16.0 MiB, formatted already\n");
    assert_eq!((again.code, again.output.as_str()), (Some(0), found.as_str()), "{}", again.errors);
    run("passive-later", "--transactions 500");
    let status = remora("passive-status", &["status", "--connect", &connect]);
    assert_eq!(status.code, Some(0), "{}", status.errors);
    assert!(status.output.contains("savings"), "{}", status.output);

    let read = || fs::read(first).unwrap();
    let before = read();
    for (line, names) in [
        (format!("--shm {first}"), &["--shm", first, "passive memory"][..]),
        (format!("--passive {first} --size 8MiB"), &["--size 8388608", "16777216"]),
        (format!("--passive {first} --size 64KiB"), &["--size 65536", "too few"]),
        (format!("--passive {first} --shm {first}"), &["--passive", "--shm"]),
        (format!("--passive {first} --listen 127.0.0.1:0"), &["--passive", "--listen"]),
        ("--passive /nonexistent/node --size 16MiB".to_owned(), &["--passive", "/nonexistent/node"]),
        ("--passive /tmp/a,b --size 16MiB".to_owned(), &["--passive", "commas"]),
        (format!("--passive {first}-new"), &["--size", "is new"]),
    ] {
        assert_refused(&remora("passive-refused", &[&["memnode"], &words(&line)[..]].concat()), names);
    }
    assert!(read() == before, "what is refused changes nothing");
    // The superblock is of another version.
    let file = OpenOptions::new().write(true).open(first).unwrap();
    let version_at = before.len() as u64 - (16 << 20) + 8;
    file.write_all_at(&(FORMAT + 1).to_le_bytes(), version_at).unwrap();
    let found = format!("memory format {};", FORMAT + 1);
    let other_version = read();
    assert_refused(&remora("passive-version", &["memnode", "--passive", first]), &["--passive", first, &found]);
    assert!(read() == other_version, "what is refused changes nothing");
    assert_refused(&remora("passive-version", &bank(&connect, "")), &[&found]);
    file.write_all_at(&FORMAT.to_le_bytes(), version_at).unwrap();
    run("passive-last", "--transactions 10");

    // A file that a memory node serves, or has served, is no passive memory.
    let served = new_file("passive-served");
    let path = served.to_str().unwrap();
    let mut node = Node::start("passive-served", &format!("--shm {path} --size 8MiB"));
    assert_refused(&remora("passive-busy", &["memnode", "--passive", path]), &["--passive", path, "serves it"]);
    let mixed = format!("shm:{first},{path}");
    assert_refused(&remora("passive-mixed", &bank(&mixed, "")), &[path, "files of one kind"]);
    node.process.signal(Signal::TERM);
    assert_eq!(node.process.wait().code, Some(0));
    assert_refused(&remora("passive-stopped", &["memnode", "--passive", path]), &["--passive", path, "memnode --shm"]);
    [first, second, path].into_iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// A client that is killed leaves its connections. Where no process can see that it is gone, an
/// operator has to say so.
#[test]
fn what_gone_clients_of_passive_memory_have_left_is_reclaimed() {
    // The states of channels, and the channels: see `shm/control.rs` of the fabric.
    const CHANNELS: u64 = 512;
    const STATES_AT: u64 = 4096;
    const CHANNELS_AT: u64 = 8192 + (2 << 20);
    const CHANNEL_BYTES: u64 = 256;
    const REALM: u64 = 16;
    const OPEN: u8 = 3;
    let path = passive("reclaimed");
    let name = path.to_str().unwrap();
    let connect = format!("shm:{name}");
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let word = |at: u64| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).unwrap();
        word
    };
    let open = || (0..CHANNELS).filter(|channel| word(STATES_AT + 8 * channel)[0] == OPEN).collect::<Vec<_>>();
    let run = |which: &str, options: &str| {
        let ran = report(&remora(which, &bank(&connect, options)));
        // Nobody knows what a killed client has paid in.
        let [money, others @ ..] = &holds(&ran)[..] else { panic!("{ran:#}") };
        assert!(*money != Some(false) && others == [Some(true); 3], "{ran:#}");
    };
    let reclaim = |gone: &[&str], code: i32, counts: &str| {
        let reclaimed = remora("reclaim", &[&["reclaim"], gone, &[name]].concat());
        let found = (reclaimed.code, reclaimed.output.as_str());
        assert_eq!(found, (Some(code), format!("{name}: {counts}\n").as_str()), "{}", reclaimed.errors);
    };
    run("reclaim-load", "--accounts 100 --transactions 500");
    reclaim(&[], 0, "0 connections freed, 0 of live clients, 0 of processes elsewhere");
    for is_elsewhere in [false, true] {
        let mut killed = Process::start("reclaim-killed", &bank(&connect, "--seconds 60"));
        killed.wait_until("connected", |_| !open().is_empty());
        thread::sleep(Duration::from_millis(300)); // so that it is likely to die inside of transactions
        let left = open();
        reclaim(&[], 0, &format!("0 connections freed, {} of live clients, 0 of processes elsewhere", left.len()));
        killed.kill();
        if is_elsewhere {
            for realm in left.iter().map(|channel| CHANNELS_AT + CHANNEL_BYTES * channel + REALM) {
                file.write_all_at(&(!u64::from_le_bytes(word(realm))).to_le_bytes(), realm).unwrap();
            }
            assert_refused(&remora("reclaim-refused", &bank(&connect, "")), &["remora reclaim"]);
            reclaim(&[], 1, &format!("0 connections freed, 0 of live clients, {} of processes elsewhere", left.len()));
            assert_eq!(open(), left, "without --gone they stay");
        }
        let gone: &[&str] = if is_elsewhere { &["--gone"] } else { &[] };
        reclaim(gone, 0, &format!("{} connections freed, 0 of live clients, 0 of processes elsewhere", left.len()));
        // What the client had under way is recovered.
        run("reclaim-again", "--transactions 500");
    }
    fs::write(path.with_extension("other"), [7; 9000]).unwrap();
    for (other, names) in [
        ("/nonexistent/node", &["/nonexistent/node"][..]),
        (&format!("{}", path.with_extension("other").display()), &["other"]),
    ] {
        assert_refused(&remora("reclaim-bad", &["reclaim", other]), names);
    }
    assert_refused(&remora("reclaim-nothing", &["reclaim"]), &["PATH"]);
    fs::remove_file(path.with_extension("other")).unwrap();
    fs::remove_file(&path).unwrap();
}

/// A client of protocol `rtx` that is killed has room for its next values in hand, which no other
/// client knows of.
#[test]
fn blocks_that_killed_clients_had_in_hand_are_reclaimed() {
    let paths = ["blocks-first", "blocks-second"].map(passive);
    let [first, second] = paths.each_ref().map(|path| path.to_str().unwrap());
    let connect = format!("shm:{first},{second}");
    let options = "--accounts 100 --protocol rtx";
    let reclaim = |which: &str| remora(which, &["reclaim", "--blocks", first, second]);
    let last_line = |which: &str| {
        let done = reclaim(which);
        assert_eq!(done.code, Some(0), "{}", done.errors);
        done.output.lines().last().unwrap().to_owned()
    };
    let nothing = "0 blocks (0 B) and 0 buckets can be used again; locks freed: 0";
    assert_eq!(last_line("blocks-new"), nothing, "there are no tables yet");
    report(&remora("blocks-load", &bank(&connect, &format!("{options} --transactions 500"))));
    assert_eq!(last_line("blocks-none"), nothing, "who leaves in good order returns what it has");
    for death in 0..3 {
        let mut killed = Process::start("blocks-killed", &bank(&connect, &format!("{options} --seconds 60")));
        let is_alone = || remora("blocks-look", &["reclaim", first]).output.contains(" 0 of live clients");
        killed.wait_until("connected", |_| !is_alone());
        thread::sleep(Duration::from_millis(300)); // so that it is likely to have written much
        let refused = reclaim("blocks-refused");
        assert_eq!(refused.code, Some(2), "{}", refused.output);
        assert!(refused.errors.contains("--blocks") && refused.errors.contains("are connected"), "{}", refused.errors);
        killed.kill();
        let found = last_line("blocks-found");
        assert!(!found.starts_with("0 blocks"), "death {death}: {found}");
        assert_eq!(last_line("blocks-again"), nothing, "death {death}");
        // Nobody knows what a killed client has paid in.
        let ran = report(&remora("blocks-later", &bank(&connect, &format!("{options} --transactions 500"))));
        let [money, others @ ..] = &holds(&ran)[..] else { panic!("{ran:#}") };
        assert!(*money != Some(false) && others == [Some(true); 3], "{ran:#}");
    }
    paths.iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// In a RACE hash table, the arrays that were split are reclaimed, too, and what clients have
/// deleted.
#[test]
fn room_of_race_hash_tables_is_reclaimed() {
    let path = passive("race");
    let name = path.to_str().unwrap();
    let open = || Cluster::connect(Nodes::Shm(vec![path.clone()])).protocol(Protocol::RTX).open().unwrap();
    let cluster = open();
    let race = cluster.create_race("table", RaceOptions::default().rows(1)).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default()).unwrap();
    worker.block_on(async |session| {
        for key in 0..5_000u64 {
            assert!(race.insert(session, &key.to_le_bytes(), b"a value").await.unwrap());
        }
    });
    let refused = remora("race-refused", &["reclaim", "--blocks", name]);
    assert_eq!(refused.code, Some(2), "{}", refused.output);
    drop((worker, race, cluster));
    let lines = |which: &str| {
        let done = remora(which, &["reclaim", "--blocks", name]);
        assert_eq!(done.code, Some(0), "{}", done.errors);
        done.output.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let nothing = "0 blocks (0 B) and 0 buckets can be used again; locks freed: 0";
    let found = lines("race-found");
    assert!(found.len() == 2 && found[0] == nothing, "{found:?}");
    assert!(found[1].ends_with(" KiB of RACE hash tables can be used again"), "{found:?}");
    assert_eq!(lines("race-again"), [nothing]);
    let cluster = open();
    let found = cluster.inspect_race(&cluster.open_race("table").unwrap(), |_, value| assert_eq!(value, b"a value"));
    let found = found.unwrap();
    assert_eq!((found.keys, found.wrong, found.units.lost, found.units.misused), (5_000, 0, 0, 0), "{found:?}");
    drop(cluster);
    fs::remove_file(path).unwrap();
}

/// A file of the format version before this one, as its superblock says.
#[test]
fn a_memory_node_of_another_format_is_refused_untouched() {
    let path = new_file("format-node");
    let mut node = Node::start("format-node", &format!("--shm {} --size 8MiB", path.display()));
    node.process.signal(Signal::TERM);
    assert_eq!(node.process.wait().code, Some(0));
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let region_at = file.metadata().unwrap().len() - (8 << 20);
    let region = || {
        let mut bytes = vec![0; 8 << 20];
        file.read_exact_at(&mut bytes, region_at).unwrap();
        bytes
    };
    let line = region();
    assert_eq!(line[..8], MAGIC.to_le_bytes(), "the superblock");
    assert_eq!(line[8..12], FORMAT.to_le_bytes(), "its format");
    for version in [FORMAT - 1, FORMAT + 1] {
        file.write_all_at(&version.to_le_bytes(), region_at + 8).unwrap();
        let before = region();
        let refused = remora("format-refused", &["memnode", "--shm", path.to_str().unwrap()]);
        let both = [format!("memory format {version};"), format!("knows format {FORMAT}:")];
        assert_refused(&refused, &["--shm", path.to_str().unwrap(), &both[0], &both[1]]);
        assert!(region() == before, "a node that is refused is as it was");
    }
    file.write_all_at(&FORMAT.to_le_bytes(), region_at + 8).unwrap();
    let node = Node::start("format-again", &format!("--shm {}", path.display()));
    assert!(node.ready.contains("reopened"), "{}", node.ready);
    drop(node);
    fs::remove_file(&path).unwrap();
}
