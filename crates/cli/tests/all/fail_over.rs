//! Memory nodes are killed while clients and controllers run, each in its own process.

#[path = "../../../membership/tests/etcd_support/wire.rs"]
mod wire;

use std::cell::Cell;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use crate::support::{Node, Process, listen, remora, scratch, words};
use rustix::process::Signal;
use serde_json::Value;
use wire::Wire;

/// Returns the path of a test's file, which does not exist yet.
fn fresh(name: &str) -> PathBuf {
    let path = scratch(name);
    let _ = fs::remove_file(&path);
    path
}

/// Checks these histories together. Controllers have written some of them: a controller writes one
/// only if it has put writes of a client back, and may have been killed.
fn check(name: &str, histories: &[PathBuf]) {
    let there = histories.iter().filter(|history| history.exists()).filter_map(|history| history.to_str());
    let checked = remora(name, &["check", "--crashed"].into_iter().chain(there).collect::<Vec<_>>());
    assert_eq!(checked.code, Some(0), "{} {}", checked.output, checked.errors);
}

/// A history that is being written. It is read on from where it was read before.
struct History {
    path: PathBuf,
    /// The bytes of whole lines that were read, and the committed transactions among them.
    read: Cell<(u64, usize)>,
}

impl History {
    fn fresh(name: &str) -> History {
        History { path: fresh(name), read: Cell::default() }
    }

    fn show(&self) -> impl Display {
        self.path.display()
    }

    /// Returns the number of transactions that have committed so far.
    fn committed(&self) -> usize {
        let (mut bytes, mut committed) = self.read.get();
        let mut text = String::new();
        // The file is not there before the first transaction.
        if let Ok(mut file) = File::open(&self.path) {
            file.seek(SeekFrom::Start(bytes)).expect("a place in a file");
            file.read_to_string(&mut text).expect("a history is text");
        }
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            bytes += line.len() as u64;
            committed += usize::from(line.contains("\"committed\""));
        }
        self.read.set((bytes, committed));
        committed
    }
}

/// Two clients, two controllers, three memory nodes. The leader is killed, then the controller that
/// conducted, then another memory node; the first one comes back empty, and a client connects that
/// has seen none of this.
fn goes_on(protocol: &str) {
    let name = |what: &str| format!("lost-{protocol}-{what}");
    let (mut nodes, connect) = listen(&name("node"), 3);
    let configuration = fresh(&name("configuration"));
    let meet = format!("--connect {connect} --configuration {}", configuration.display());
    let mut put_back = Vec::new();
    let mut controllers = ["first", "second"].map(|which| {
        let history = fresh(&name(&format!("{which}.jsonl")));
        let controller = format!("controller {meet} --lease-ms 500 --patience-ms 500 --history {}", history.display());
        let mut controller = Process::start(&name(which), &words(&controller));
        controller.wait_until("ready", |process| process.output().ends_with('\n'));
        put_back.push(history);
        controller
    });
    let bank = format!(
        "bench smallbank {meet} --protocol {protocol} --threads 1 --coroutines 4 --rate 1000 --lease-ms 500 --ledger \
         --report - --history-durable"
    );
    let client = |which: &str| {
        let history = History::fresh(&name(&format!("{which}.jsonl")));
        let options = format!("{bank} --accounts 200 --seconds 600 --history {}", history.show());
        (Process::start(&name(which), &words(&options)), history)
    };
    let mut clients = vec![client("one")];
    let (first, history) = &mut clients[0];
    first.wait_until("commits", |_| history.committed() > 100);
    clients.push(client("other"));

    let goes_on = |clients: &mut [(Process, History)]| {
        for (client, history) in clients {
            let before = history.committed();
            client.wait_until("commits again", |_| history.committed() > before + 250);
        }
    };
    goes_on(&mut clients);
    let leader = nodes[0].address().to_owned();
    nodes[0].process.kill();
    goes_on(&mut clients);
    controllers[0].kill();
    // The node has lost its memory, and gets copies from the other nodes.
    nodes[0] = Node::start(&name("back"), &format!("--listen {leader} --size 64MiB"));
    clients.push(client("late"));
    goes_on(&mut clients);
    nodes[1].process.kill();
    goes_on(&mut clients);
    // Who copies a record holds its lock meanwhile.
    let restored = || copies(&name("status"), &connect).is_some_and(|all| all.iter().all(|copies| *copies == 2));
    controllers[1].wait_until("two copies again", |_| restored());

    for (client, history) in &mut clients {
        client.signal(Signal::TERM);
        let ended = client.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.errors);
        put_back.push(history.path.clone());
    }
    check(&name("check"), &put_back);
    let left = format!("bench smallbank {meet} --protocol {protocol} --check --report -");
    let left = remora(&name("left"), &words(&left));
    assert_eq!(left.code, Some(0), "{}", left.errors);
    let left: Value = serde_json::from_str(&left.output).expect("a report");
    for invariant in left["invariants"].as_array().expect("invariants") {
        assert_eq!(invariant["holds"], true, "{invariant}");
    }
    controllers[1].signal(Signal::TERM);
    assert_eq!(controllers[1].wait().code, Some(0), "a controller that is told to stop");
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn drtm_r_goes_on_without_memory_nodes() {
    goes_on("drtm-r");
}

#[test]
fn ford_goes_on_without_memory_nodes() {
    goes_on("ford");
}

/// Returns the smallest number of copies of each table, as `remora status` shows it. Returns `None`
/// while copies are being made, or if the command fails.
fn copies(name: &str, connect: &str) -> Option<Vec<u64>> {
    let status = remora(name, &["status", "--connect", connect, "--report", "-"]);
    let status: Value = serde_json::from_str(&status.output).ok()?;
    let tables = status["tables"].as_array()?;
    let settled = tables.iter().all(|table| table["joining"] == 0);
    settled.then(|| tables.iter().filter_map(|table| table["copies"].as_u64()).collect())
}

/// Four memory nodes, one of them empty. The leader is killed, comes back empty, and another node
/// is drained.
fn copies_are_restored(protocol: &str) {
    let name = |what: &str| format!("copied-{protocol}-{what}");
    let (mut nodes, connect) = listen(&name("node"), 4);
    let meet = format!("--connect {connect} --configuration {}", fresh(&name("configuration")).display());
    let put_back = fresh(&name("controller.jsonl"));
    let controller = format!("controller {meet} --lease-ms 500 --patience-ms 500 --history {}", put_back.display());
    let mut controller = Process::start(&name("controller"), &words(&controller));
    controller.wait_until("ready", |process| process.output().ends_with('\n'));
    let history = History::fresh(&name("client.jsonl"));
    let bank = format!(
        "bench smallbank {meet} --protocol {protocol} --threads 1 --coroutines 4 --rate 1000 --lease-ms 500 --ledger \
         --spares 1 --replicas 3 --report - --history-durable --accounts 200 --seconds 600 --history {}",
        history.show()
    );
    let mut client = Process::start(&name("client"), &words(&bank));
    client.wait_until("commits", |_| history.committed() > 250);
    assert!(copies(&name("status"), &connect).is_some_and(|all| all.iter().all(|copies| *copies == 3)));
    let leader = nodes[0].address().to_owned();
    nodes[0].process.kill();
    let wait = |client: &mut Process, what: &str, holds: &dyn Fn() -> bool| {
        let before = history.committed();
        client.wait_until(what, |_| holds() && history.committed() > before + 100);
    };
    let restored =
        || copies(&name("status"), &connect).is_some_and(|all| all.len() > 1 && all.iter().all(|copies| *copies == 3));
    let holds = |at: usize| {
        let status = remora(&name("status"), &["status", "--connect", &connect, "--report", "-"]);
        let status: Value = serde_json::from_str(&status.output).unwrap_or_default();
        status["nodes"][at]["number"].as_u64().is_some()
    };
    // The lost node's copies are still counted until the epoch has changed.
    wait(&mut client, "another epoch", &|| !holds(0));
    wait(&mut client, "three copies again, one of them at the spare node", &restored);
    nodes[0] = Node::start(&name("back"), &format!("--listen {leader} --size 64MiB"));
    wait(&mut client, "taken in again", &|| holds(0));
    let drained = remora(&name("drain"), &words(&format!("drain {meet} {}", nodes[1].address())));
    assert_eq!(drained.code, Some(0), "{}", drained.errors);
    wait(&mut client, "three copies, one of them at the node that has come back", &restored);
    nodes[1].process.signal(Signal::TERM);
    wait(&mut client, "nobody misses it", &|| true);
    client.signal(Signal::TERM);
    let ended = client.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    let report: Value = serde_json::from_str(&ended.output).expect("a report");
    for invariant in report["invariants"].as_array().expect("invariants") {
        assert_eq!(invariant["holds"], true, "{invariant}");
    }
    check(&name("check"), &[history.path, put_back]);
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn drtm_r_gets_its_copies_back() {
    copies_are_restored("drtm-r");
}

#[test]
fn ford_gets_its_copies_back() {
    copies_are_restored("ford");
}

/// A fourth memory node is added to three while a client runs, which goes on. Then one of the three
/// dies, another is drained, and clients come that name only the founding nodes.
#[test]
fn a_memory_node_is_added() {
    let (mut nodes, connect) = listen("added-node", 3);
    let configuration = fresh("added-configuration");
    let meet = format!("--connect {connect} --configuration {}", configuration.display());
    let put_back = ["first", "second"].map(|which| fresh(&format!("added-{which}.jsonl")));
    let mut controllers = put_back.each_ref().map(|history| {
        let controller = format!("controller {meet} --lease-ms 500 --patience-ms 500 --history {}", history.display());
        let name = history.file_stem().unwrap_or_default().to_string_lossy();
        let mut controller = Process::start(&name, &words(&controller));
        controller.wait_until("ready", |process| process.output().ends_with('\n'));
        controller
    });
    let history = History::fresh("added.jsonl");
    let bank = format!("bench smallbank {meet} --threads 1 --coroutines 4 --lease-ms 500 --ledger --report -");
    let runs =
        format!("{bank} --rate 1000 --history-durable --accounts 200 --seconds 600 --history {}", history.show());
    let mut client = Process::start("added-client", &words(&runs));
    client.wait_until("commits", |_| history.committed() > 250);
    let goes_on = |client: &mut Process, what: &str| {
        let before = history.committed();
        client.wait_until(what, |_| history.committed() > before + 150);
    };
    let add = |address: &str| remora("added-add", &words(&format!("add {meet} {address}")));
    let shards = |connect: &str| -> Vec<u64> {
        let status = remora("added-status", &["status", "--connect", connect, "--report", "-"]);
        let status: Value = serde_json::from_str(&status.output).unwrap_or_default();
        status["nodes"].as_array().unwrap().iter().map(|node| node["shards"].as_u64().unwrap_or(0)).collect()
    };

    let nobody = add("127.0.0.1:1");
    assert!(nobody.code == Some(2) && nobody.errors.contains("127.0.0.1:1"), "{}", nobody.errors);
    let fourth = Node::listen("added-fourth", "");
    let all = format!("{connect},{}", fourth.address());
    let early = remora("added-early", &words(&format!("{bank} --transactions 10").replace(&connect, &all)));
    assert!(early.code == Some(2) && early.errors.contains("founded with 3"), "{}", early.errors);
    let added = add(fourth.address());
    assert_eq!(added.code, Some(0), "{}", added.errors);
    let before = shards(&all);
    // The shards have different sizes, and their bytes are spread evenly.
    assert!(before.iter().min().unwrap() * 2 > *before.iter().max().unwrap(), "{before:?}");
    assert_eq!(before.iter().sum::<u64>() % 3, 0, "three copies: {before:?}");
    goes_on(&mut client, "with four nodes");
    let again = add(fourth.address());
    assert_eq!(again.code, Some(0), "it is there already: {}", again.errors);
    let other = Node::listen("added-other", "");
    let of_others =
        remora("added-others", &words(&format!("bench smallbank --connect {} --transactions 10", other.address())));
    assert_eq!(of_others.code, Some(0), "{}", of_others.errors);
    let refused = add(other.address());
    assert!(refused.code == Some(2) && refused.errors.contains("has something"), "{}", refused.errors);

    // A client that names only the founders knows of the new node by the configuration alone.
    let founder = nodes[0].address().to_owned();
    nodes[0].process.kill();
    controllers[0].kill();
    goes_on(&mut client, "without a founder");
    let mut checking = vec![history.path.clone()];
    let naming = |who: &str| bank.replace(&format!("--connect {connect}"), &format!("--connect {who}"));
    for (name, who) in [("founders", &connect), ("all", &all)] {
        checking.push(fresh(&format!("added-{name}.jsonl")));
        let runs = format!("{} --transactions 300 --history {}", naming(who), checking.last().unwrap().display());
        let works = remora(&format!("added-{name}"), &words(&runs));
        assert_eq!(works.code, Some(0), "{}", works.errors);
    }
    goes_on(&mut client, "beside others");
    let restored = || copies("added-status", &all).is_some_and(|all| all.iter().all(|copies| *copies == 3));
    client.wait_until("three copies again", |_| restored());
    let drained = remora("added-drain", &words(&format!("drain --fewer-copies {meet} {}", nodes[1].address())));
    assert_eq!(drained.code, Some(0), "{}", drained.errors);
    nodes[1].process.kill();
    goes_on(&mut client, "with one founder and the one that was added");
    client.signal(Signal::TERM);
    let ended = client.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    let report: Value = serde_json::from_str(&ended.output).expect("a report");
    for invariant in report["invariants"].as_array().expect("invariants") {
        assert_eq!(invariant["holds"], true, "{invariant}");
    }
    checking.extend(put_back);
    check("added-check", &checking);

    // The configuration that had the new node's address is lost, together with every process that
    // knew the address.
    controllers[1].kill();
    fs::remove_file(&configuration).expect("a file");
    let drained = nodes[1].address().to_owned();
    for (node, address) in nodes.iter_mut().zip([founder, drained]) {
        *node = Node::start("added-back", &format!("--listen {address} --size 64MiB"));
    }
    let left = |who: &str| remora("added-left", &words(&format!("{} --check", naming(who))));
    let refused = left(&connect);
    assert!(refused.code == Some(2) && refused.errors.contains("node 3 was added"), "{}", refused.errors);
    let controller = format!("controller {meet} --lease-ms 500").replace(&connect, &all);
    let mut third = Process::start("added-third", &words(&controller));
    third.wait_until("ready", |process| process.output().ends_with('\n'));
    third.wait_until("three copies once more", |_| restored());
    let left = left(&connect);
    assert_eq!(left.code, Some(0), "{}", left.errors);
}

/// The only node that could take the shards of a drained one has no room for them. The next node
/// that is added has room, and dies before it has all shards. The commands report all of this.
#[test]
#[ignore = "long: a part of .ci/long"]
fn what_does_not_move_says_why() {
    let (nodes, connect) = listen("still-node", 2);
    let meet = format!("--connect {connect} --configuration {}", fresh("still-configuration").display());
    let controller = format!("controller {meet} --lease-ms 500 --patience-ms 500 --copy-mb 1");
    let mut controller = Process::start("still-controller", &words(&controller));
    controller.wait_until("ready", |process| process.output().ends_with('\n'));
    let bank = format!("bench smallbank {meet} --threads 1 --coroutines 2 --replicas 2 --accounts 20000");
    let loads = remora("still-load", &words(&format!("{bank} --transactions 100")));
    assert_eq!(loads.code, Some(0), "{}", loads.errors);
    let errors = |name: &str| fs::read_to_string(scratch(&format!("{name}.err"))).unwrap();
    let known = || -> Value {
        let status = remora("still-status", &words(&format!("status {meet} --report -")));
        assert_eq!(status.code, Some(0), "{}", status.errors);
        serde_json::from_str::<Value>(&status.output).unwrap()["configuration"].take()
    };

    let small = Node::start("still-small", "--listen 127.0.0.1:0 --size 1MiB");
    let added = remora("still-small-add", &words(&format!("add {meet} {}", small.address())));
    assert_eq!(added.code, Some(0), "{}", added.errors);
    let leaver = nodes[0].address();
    let drains = format!("drain {meet} {leaver}");
    let mut drain = Process::start("still-drain", &words(&drains));
    drain.wait_until("why nothing moves", |_| errors("still-drain").contains("has room for"));
    let said = errors("still-drain");
    assert!(said.lines().count() == 1 && [leaver, small.address()].iter().all(|name| said.contains(name)), "{said}");
    let now = known();
    assert_eq!((&now["leaving"], &now["controllers"]), (&serde_json::json!([leaver]), &true.into()), "{now:#}");
    let cancels = |name: &str| remora(name, &words(&format!("{drains} --cancel")));
    assert_eq!(cancels("still-cancel").code, Some(0));
    let drained = drain.wait();
    assert!(drained.code == Some(2) && drained.errors.contains("stays"), "{}", drained.errors);
    let refused = cancels("still-cancel-again");
    assert!(refused.code == Some(2) && refused.errors.contains("not being drained"), "{}", refused.errors);
    assert_eq!(known()["leaving"], serde_json::json!([]));

    controller.signal(Signal::STOP);
    let mut large = Node::listen("still-large", "");
    let mut add = Process::start("still-add", &words(&format!("add {meet} {}", large.address())));
    add.wait_until("that nobody comes", |_| errors("still-add").contains("no controller has reached"));
    let now = known();
    assert!(now["lost"] == serde_json::json!([large.address()]) && now["epoch"].as_u64() > Some(1), "{now:#}");
    controller.signal(Signal::CONT);
    let counts = |process: &Process| -> Vec<u64> {
        let output = process.output();
        let lines = output.lines().filter(|line| line.contains("are being copied"));
        lines.map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect()
    };
    add.wait_until("one shard after the other", |process| counts(process).len() > 1);
    let left = counts(&add);
    assert!(left.windows(2).all(|two| two[0] > two[1]), "{left:?}");
    let now = known();
    assert!(now["copied"].as_u64() > Some(0) && now["copied"].as_u64() < now["joining"].as_u64(), "{now:#}");
    large.process.kill();
    let lost = add.wait();
    assert!(lost.code == Some(2) && lost.errors.contains("lost again"), "{}", lost.errors);
}

/// An operator starts everything at once after a power failure. A memory node is gone, or empty,
/// and no process has seen it die.
#[test]
#[ignore = "long: a part of .ci/long"]
fn a_controller_may_come_after_a_node_has_died() {
    let (mut nodes, connect) = listen("unseen-node", 3);
    let configuration = fresh("unseen-configuration");
    let meet = format!("--connect {connect} --configuration {}", configuration.display());
    let bank = format!("bench smallbank {meet} --threads 1 --accounts 200 --lease-ms 500");
    let client = |name: &str, what: &str| remora(&format!("unseen-{name}"), &words(&format!("{bank} {what}")));
    let control = |name: &str| {
        let controller = format!("controller {meet} --lease-ms 500 --patience-ms 500");
        let mut controller = Process::start(&format!("unseen-{name}"), &words(&controller));
        controller.wait_until("ready", |process| process.output().ends_with('\n'));
        controller
    };
    let works = |name: &str, what: &str| {
        let client = client(name, what);
        assert_eq!(client.code, Some(0), "{}", client.errors);
    };
    works("loads", "--transactions 1000");

    let leader = nodes[0].address().to_owned();
    nodes[0].process.kill();
    let refused = client("refused", "--transactions 1000");
    assert!(refused.errors.contains(&leader), "nobody sees to it: {}", refused.errors);
    let mut first = control("first");
    works("goes-on", "--transactions 1000");

    // The controller dies, the node comes back, and another node loses its memory before any
    // process looks.
    first.kill();
    nodes[0] = Node::start("unseen-back", &format!("--listen {leader} --size 64MiB"));
    let third = nodes[2].address().to_owned();
    nodes[2].process.kill();
    nodes[2] = Node::start("unseen-empty", &format!("--listen {third} --size 64MiB"));
    let refused = client("refused-again", "--transactions 1000");
    assert!(refused.errors.contains("node 2 is empty"), "{}", refused.errors);
    let mut second = control("second");
    let has_three =
        || copies("unseen-status", &connect).is_some_and(|all| all.len() > 1 && all.iter().all(|copies| *copies == 3));
    second.wait_until("three copies again", |_| has_three());
    works("again", "--transactions 1000");
    works("left", "--check");

    // A client that connects while a node dies waits until the cluster goes on without the node.
    nodes[1].process.kill();
    works("at-once", "--transactions 1000");
    works("left-at-last", "--check");

    // No node answers for longer than the patience of any process. The cluster gives no node up for
    // that.
    nodes[1] = Node::start("unseen-third", &format!("--listen {} --size 64MiB", nodes[1].address()));
    second.wait_until("three copies again", |_| has_three());
    for signal in [Signal::STOP, Signal::CONT] {
        nodes.iter().for_each(|node| node.process.signal(signal));
        std::thread::sleep(Duration::from_millis(1_500));
    }
    works("all-back", "--transactions 1000");

    let refused = remora("unseen-drain", &words(&format!("drain {meet} {leader}")));
    assert!(refused.code == Some(2) && refused.errors.contains("--fewer-copies"), "{}", refused.errors);

    // A node is lost that is alive, and then the configuration that said so is lost, too. No client
    // uses the node's content.
    nodes[2].process.signal(Signal::STOP);
    works("without-third", "--transactions 1000");
    second.kill();
    nodes[2].process.signal(Signal::CONT);
    fs::remove_file(&configuration).expect("a file");
    works("forgotten", "--transactions 1000");
    works("left-at-last-but-one", "--check");
    let mut third = control("third");
    third.wait_until("three copies again, of a node that gave up what it had", |_| has_three());
    works("all-in-all", "--check");

    // A node is lost again, and this time a controller has seen it.
    nodes[0].process.signal(Signal::STOP);
    works("without-first", "--transactions 1000");
    nodes[0].process.signal(Signal::CONT);
    third.wait_until("three copies again, of a node that was taken for dead", |_| has_three());
    works("with-first", "--transactions 1000");
    works("after-all", "--check");
    third.signal(Signal::TERM);
    assert_eq!(third.wait().code, Some(0), "a controller that is told to stop");
}

/// The network between a client and a memory node is cut, and mended; a controller reaches the node
/// all the time.
#[test]
fn a_client_that_alone_has_lost_a_node_goes_on() {
    let (nodes, connect) = listen("alone-node", 3);
    let configuration = fresh("alone-configuration");
    let meet = |connect: &str| format!("--connect {connect} --configuration {}", configuration.display());
    let put_back = fresh("alone-controller.jsonl");
    let controller = format!("controller {} --lease-ms 500 --history {}", meet(&connect), put_back.display());
    let mut controller = Process::start("alone-controller", &words(&controller));
    controller.wait_until("ready", |process| process.output().ends_with('\n'));
    let wire = Wire::to(nodes[1].address().to_owned());
    let history = History::fresh("alone.jsonl");
    let bank = format!(
        "bench smallbank {} --threads 1 --coroutines 4 --rate 1000 --lease-ms 500 --ledger --report - --history-durable \
         --accounts 200 --seconds 600 --history {}",
        meet(&connect.replace(nodes[1].address(), &wire.address())),
        history.show()
    );
    let mut client = Process::start("alone-client", &words(&bank));
    client.wait_until("commits", |_| history.committed() > 250);
    wire.cut();
    // The test can only wait for time to pass: the client notices the loss within a second, and
    // gives up its incarnation after four leases.
    std::thread::sleep(Duration::from_secs(4));
    wire.mend();
    let before = history.committed();
    client.wait_until("commits again", |_| history.committed() > before + 250);
    client.signal(Signal::TERM);
    let ended = client.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.errors);
    let report: Value = serde_json::from_str(&ended.output).expect("a report");
    assert_eq!(report["fenced"], 0, "{report:#}");
    for invariant in report["invariants"].as_array().expect("invariants") {
        assert_eq!(invariant["holds"], true, "{invariant}");
    }
    check("alone-check", &[history.path, put_back]);
    let holds_three = copies("alone-status", &connect).is_some_and(|all| all.iter().all(|copies| *copies == 3));
    assert!(holds_three, "nobody has lost the node");
    controller.signal(Signal::TERM);
    assert_eq!(controller.wait().code, Some(0), "a controller that is told to stop");
}
