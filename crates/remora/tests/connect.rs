//! Clusters of memory nodes that other processes could use: clients found them once, and find them
//! again, in whatever order they name the nodes.

mod support;
#[path = "../../membership/tests/etcd_support/wire.rs"]
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use remora::admin::{Freed, NodeId, Standing};
use remora::connect::{ConnectError, ConnectOptions, NodeKey, NodeKeys, Nodes, Place};
use remora::floors::fabric::shm::file::PassiveFile;
use remora::floors::fabric::tcp::{Names, Tcp, TcpOptions};
use remora::floors::fabric::{ClientId, Lane, NodeSet, block_on};
use remora::floors::membership::Membership;
use remora::floors::node::identity;
use remora::floors::record::Swap;
use remora::node::{MemoryNode, PassiveMemory, PriorMemory, ServerOptions};
use remora::protocol::Protocol;
use remora::{Cluster, OpenErrorKind, OrderedOptions, Table, TableOptions, TransactionId};

use support::{Words, cut_off};
use wire::Wire;

const BYTES: u64 = 8 << 20;

fn listen() -> MemoryNode {
    MemoryNode::listen("127.0.0.1:0", BYTES, ServerOptions::default()).unwrap()
}

fn address(node: &MemoryNode) -> String {
    node.address().unwrap().to_string()
}

fn connect(addresses: &[String]) -> Result<Cluster, ConnectError> {
    Cluster::connect(Nodes::Tcp(addresses.to_vec())).open()
}

/// A test's own folder, with the configurations of clusters.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("remora-connect-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn options(&self, configuration: &str) -> ConnectOptions {
        let configuration = Some(Place::File(self.0.join(configuration)));
        ConnectOptions::default().configuration(configuration).patience(Duration::from_millis(300))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn look<T>(cluster: &Cluster, what: impl Fn(&Membership) -> T) -> T {
    cluster.configuration().unwrap().change(|membership| what(membership)).unwrap()
}

/// Does something while a controller looks after the memory nodes.
fn controlled(nodes: &Nodes, options: &ConnectOptions, what: impl FnOnce()) {
    struct Over<'o>(&'o AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    let cluster = options.clone().controls(true).nodes(nodes).open().unwrap();
    let cluster = cluster.with_lease(Some(Duration::from_millis(500)));
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let over = &over;
        scope.spawn(move || {
            let mut controller = cluster.controller().unwrap();
            tell.send(()).unwrap();
            controller.run(|| over.load(Ordering::Relaxed));
        });
        let _over = Over(over);
        told.recv().unwrap();
        what();
    });
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        // There is no notification to wait for.
        thread::sleep(Duration::from_millis(10));
    }
}

/// Adds 1 to every row. Returns the sum of the rows after that.
fn add_to_all(cluster: &Cluster) -> u64 {
    let rows: Table<u64, Words<1>> = cluster.open_table("rows").unwrap();
    let mut worker = cluster.worker(Default::default()).unwrap();
    let sum = worker.block_on(async |session| {
        let add = session.transact(async |tx| {
            let slots: Vec<_> = (0..20).map(|key| tx.want(&rows, key)).collect();
            tx.fetch().await?;
            slots.into_iter().try_fold(0, |sum, slot| {
                let row = slot.get_mut(tx)?;
                row.0[0] += 1;
                Ok(sum + row.0[0])
            })
        });
        add.await.unwrap()
    });
    assert!(worker.drain().unwrap());
    let found = cluster.inspect(&rows, |_| ()).unwrap();
    assert_eq!((found.records, found.locked, found.differing_lines), (20, 0, 0));
    sum
}

#[test]
fn nodes_may_be_named_in_any_order() {
    let nodes = [listen(), listen(), listen()];
    let [a, b, c] = nodes.each_ref().map(address);
    let first = connect(&[a.clone(), b.clone(), c.clone()]).unwrap();
    support::table(&first, "rows", TableOptions::for_rows(20), Words([0]));
    assert_eq!(add_to_all(&first), 20);
    let mut sum = 20;
    for names in [[&c, &a, &b], [&b, &a, &c], [&a, &b, &c]] {
        let cluster = connect(&names.map(Clone::clone)).unwrap();
        assert_eq!(cluster.nodes(), Some(Nodes::Tcp(vec![a.clone(), b.clone(), c.clone()])), "in the founder's order");
        sum += 20;
        assert_eq!(add_to_all(&cluster), sum);
    }
}

#[test]
fn exactly_the_nodes_of_one_cluster_must_be_named() {
    let nodes = [listen(), listen(), listen(), listen()];
    let [a, b, c, d] = nodes.each_ref().map(address);
    let refused = |names: &[&String], word: &str| {
        let error = connect(&names.iter().map(|name| (*name).clone()).collect::<Vec<_>>()).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    let first = connect(&[a.clone(), b.clone()]).unwrap();
    refused(&[&a], "founded with 2");
    refused(&[&a, &b, &c], "founded with 2");
    refused(&[&a, &a], "another cluster, or was named twice");
    connect(&[c.clone(), d.clone()]).unwrap();
    refused(&[&a, &c], "another cluster");
    // A client that founds the cluster dies half-way. One node knows of the cluster, and the next
    // client tells the other node. This is refused once there are tables.
    support::table(&first, "rows", TableOptions::for_rows(20), Words([0]));
    let [_, old_b, ..] = nodes;
    drop(old_b);
    let anew = MemoryNode::listen(&b, BYTES, ServerOptions::default()).unwrap();
    refused(&[&a, &b], "started anew");
    drop(anew);
    refused(&[&a, &b], &b);
}

#[test]
fn a_node_asks_for_its_key() {
    let (right, wrong) = (NodeKey::generate().unwrap(), NodeKey::generate().unwrap());
    let options = ServerOptions::default().keys(NodeKeys::from(right));
    let node = MemoryNode::listen("127.0.0.1:0", BYTES, options).unwrap();
    let nodes = Nodes::Tcp(vec![address(&node)]);
    let connect = |key: Option<NodeKey>| Cluster::connect(&nodes).keys(key.map(NodeKey::into)).open();
    assert!(connect(Some(right)).is_ok());
    for (key, word) in [(None, "--key-file"), (Some(wrong), "another key")] {
        let error = connect(key).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains(&address(&node)), "{error}");
    }
    let open = MemoryNode::listen("0.0.0.0:0", BYTES, ServerOptions::default()).unwrap_err().to_string();
    assert!(open.contains("--insecure"), "{open}");
}

#[test]
fn files_keep_what_they_hold() {
    let folder = std::env::temp_dir();
    let paths: Vec<PathBuf> =
        (0..2).map(|n| folder.join(format!("remora-connect-{}-{n}", std::process::id()))).collect();
    let nodes = Nodes::Shm(paths.clone());
    let options = ConnectOptions::default().replicas(2).protocol(Protocol::DRTM_H);
    let mut sum = 0;
    for start in 0..3 {
        let served: Vec<_> =
            paths.iter().map(|path| MemoryNode::map(path, (start == 0).then_some(BYTES)).unwrap()).collect();
        let expected = if start == 0 { PriorMemory::New } else { PriorMemory::Stopped };
        assert!(served.iter().all(|node| node.found() == expected));
        let again = MemoryNode::map(&paths[0], None).unwrap_err().to_string();
        assert!(again.contains("serve") && again.contains(&std::process::id().to_string()), "{again}");
        let cluster = options.clone().nodes(&nodes).open().unwrap();
        if start == 0 {
            support::table(&cluster, "rows", TableOptions::for_rows(20), Words([0]));
        }
        sum += 20;
        assert_eq!(add_to_all(&cluster), sum);
    }
    let gone = options.clone().nodes(&nodes).open().unwrap_err().to_string();
    assert!(gone.contains(&paths[0].display().to_string()), "{gone}");
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
}

/// No process serves the memory, so clients make, grow and drop the tables by themselves.
#[test]
fn tables_of_passive_memory_are_made_grown_and_dropped() {
    let folder = Folder::new("passive");
    let paths = [0, 1].map(|number: u8| folder.0.join(number.to_string()));
    // A process that was killed while it formatted the second file has not published it.
    drop(PassiveFile::open(&paths[1], Some(BYTES)).unwrap());
    let unfinished =
        folder.options("cluster").nodes(Nodes::Shm(vec![paths[1].clone()])).open().unwrap_err().to_string();
    assert!(unfinished.contains("run remora memnode --passive on it again"), "{unfinished}");
    for path in &paths {
        let made = PassiveMemory::format(path, Some(BYTES)).unwrap();
        assert_eq!((made.is_new, made.bytes), (true, BYTES));
    }
    let found = PassiveMemory::format(&paths[0], None).unwrap();
    assert_eq!((found.is_new, found.bytes), (false, BYTES));
    let options = folder.options("cluster").nodes(Nodes::Shm(paths.to_vec())).replicas(2);
    let refused = options.clone().protocol(Protocol::DRTM_R).open().unwrap_err();
    assert!(matches!(&refused, ConnectError::Open(why) if why.kind() == OpenErrorKind::Unsupported), "{refused}");

    let [one, other] = [(); 2].map(|()| options.open().unwrap());
    assert!(!one.capabilities().node_cpu);
    let rows = support::table(&one, "rows", TableOptions::for_rows(20), Words([0]));
    assert_eq!(add_to_all(&other), 20);
    // Rows are inserted until the table has grown by itself several times.
    let mut worker = one.worker(Default::default()).unwrap();
    worker.run(async |coroutine, session| {
        for key in (20..1_000).skip(coroutine).step_by(8) {
            session.transact(async |tx| rows.insert(tx, key, Words([0])).await).await.unwrap();
        }
    });
    let found = one.inspect(&rows, |_| ()).unwrap();
    assert_eq!((found.records, found.locked, found.differing_lines), (1_000, 0, 0));
    let tree = one.create_ordered::<u64, u64>("tree", OrderedOptions::for_rows(500)).unwrap();
    let sum = worker.block_on(async |session| {
        for key in 0..300 {
            session.transact(async |tx| tree.insert(tx, key, key).await).await.unwrap();
        }
        session
            .transact(async |tx| Ok(tree.scan(tx, .., 1_000).await?.iter().map(|(_, value)| value).sum::<u64>()))
            .await
    });
    assert_eq!(sum.unwrap(), 300 * 299 / 2);
    drop(worker);
    let freed = other.drop_table("rows").unwrap();
    assert_eq!(freed, Freed::Now);
    let dropped = one.open_table::<u64, Words<1>>("rows").unwrap_err();
    assert_eq!(dropped.kind(), OpenErrorKind::Dropped);
    support::table(&one, "rows", TableOptions::for_rows(20), Words([0]));
    assert_eq!(add_to_all(&other), 20);
}

/// The content of the lost node is stale, and the node does not know it.
#[test]
fn a_node_that_was_lost_and_lives_is_not_used_without_a_configuration() {
    let nodes = [listen(), listen(), listen()];
    let [a, b, c] = nodes.each_ref().map(address);
    let wire = Wire::to(c.clone());
    let all = Nodes::Tcp(vec![a.clone(), b.clone(), wire.address()]);
    let folder = Folder::new("behind");
    let options = folder.options("configuration");
    let cluster = options.clone().nodes(&all).open().unwrap();
    support::table(&cluster, "rows", TableOptions::for_rows(20), Words([0]));
    assert_eq!(add_to_all(&connect(&[a.clone(), b.clone(), c.clone()]).unwrap()), 20, "nothing is lost yet");
    controlled(&all, &options, || {
        wire.cut();
        wait_until("the node is lost", || look(&cluster, |all| all.lost().has(NodeId(2))));
        wait_until("the next epoch has begun", || look(&cluster, |all| !all.is_changing()));
        assert_eq!(add_to_all(&cluster), 40);
    });
    // This must hold for each of the nodes whose catalog may be read.
    for names in [[&c, &a, &b], [&a, &b, &c]] {
        let refused = connect(&names.map(Clone::clone)).unwrap_err();
        let error = refused.to_string();
        assert!(matches!(refused, ConnectError::Behind { name } if name == c), "{error}");
        assert!(error.contains("--configuration"), "{error}");
    }
    wire.mend();
    assert_eq!(add_to_all(&options.clone().nodes(&all).open().unwrap()), 60);
}

/// A node is lost, and there is none that could take its place. Tables that want a copy at each
/// node grow and are created nevertheless, and get the missing copies when the node comes back.
#[test]
fn tables_grow_and_are_created_while_a_node_is_lost() {
    const ROWS: u64 = 1_500;
    let nodes = [listen(), listen(), listen()];
    let names = nodes.each_ref().map(address);
    let (all, folder) = (Nodes::Tcp(names.to_vec()), Folder::new("grows"));
    let options = folder.options("configuration");
    let cluster = options.clone().nodes(&all).replicas(3).open().unwrap();
    let rows = support::table(&cluster, "rows", TableOptions::for_rows(20), Words([0]));
    let copies = || {
        cluster.in_one_epoch(|| cluster.refresh()).unwrap();
        let catalog = cluster.catalog();
        let there = catalog.tables.iter().filter(|table| table.is_there());
        let of_table = |table| catalog.shards_of(table).map(|shard| shard.copies().count()).collect::<Vec<_>>();
        there.flat_map(of_table).collect::<Vec<_>>()
    };
    controlled(&all, &options, || {
        // It leads, and new tables would begin there.
        let [first, ..] = nodes;
        drop(first);
        wait_until("the node is lost", || look(&cluster, |all| all.lost().has(NodeId(0)) && !all.is_changing()));
        let mut worker = cluster.worker(Default::default()).unwrap();
        worker.run(async |coroutine, session| {
            for key in (20..ROWS).skip(coroutine).step_by(8) {
                session.transact(async |tx| rows.insert(tx, key, Words([0])).await).await.unwrap();
            }
        });
        let later = support::table(&cluster, "later", TableOptions::for_rows(20), Words([0]));
        cluster.grow_table("later", 200).unwrap();
        cluster.rename_table("later", "renamed").unwrap();
        let grown = |name| cluster.catalog().table(name).unwrap().1.growths;
        assert!((grown("rows"), grown("renamed")) >= (2, 1));
        assert!(copies().iter().all(|copies| *copies == 2), "{:?}", copies());
        let _back = MemoryNode::listen(&names[0], BYTES, ServerOptions::default()).unwrap();
        wait_until("all copies are there", || copies().iter().all(|copies| *copies == 3));
        wait_until("nothing is to be done", || look(&cluster, |all| !all.is_changing()));
        for (table, count) in [(&rows, ROWS), (&later, 20)] {
            let found = cluster.in_one_epoch(|| cluster.inspect(table, |_| ())).unwrap();
            assert_eq!((found.records, found.locked, found.torn, found.differing_lines), (count, 0, 0, 0));
        }
        worker.block_on(async |session| {
            for key in (0..ROWS).step_by(7) {
                let found = session.transact(async |tx| rows.get(tx, key).await).await.unwrap();
                assert_eq!(found, Some(Words([0])), "{key}");
            }
        });
    });
}

/// A client that has connected by the configuration alone does not use the former address of a node
/// that has left.
#[test]
fn a_node_that_was_added_and_has_left_may_be_used_elsewhere() {
    let nodes = [listen(), listen(), listen(), listen()];
    let [a, b, c, d] = nodes.each_ref().map(address);
    let founders = Nodes::Tcp(vec![a, b, c]);
    let folder = Folder::new("left");
    let options = folder.options("configuration");
    let cluster = options.clone().nodes(&founders).open().unwrap();
    support::table(&cluster, "rows", TableOptions::for_rows(20), Words([0]));
    let local = d.replace("127.0.0.1", "localhost");
    let added = cluster.add_node(&d).unwrap();
    assert_eq!(added, NodeId(3));
    let twice = cluster.add_node(&local).unwrap_err().to_string();
    assert!(twice.contains(&d) && twice.contains("another name"), "{twice}");
    // Adds the node again, as a client would whose names do not show that it is the same node.
    let configuration = cluster.configuration().unwrap();
    assert_eq!(configuration.change(|all| all.add(3, &local)).unwrap(), Some(NodeId(4)));
    controlled(&founders, &options, || {
        wait_until("it is taken in", || look(&cluster, |all| !all.lost().has(added) && !all.is_changing()));
        assert_eq!(add_to_all(&options.clone().nodes(&founders).open().unwrap()), 20, "once, by the name that counts");
        configuration.change(|all| all.drain(NodeSet::default().with(added))).unwrap();
        wait_until("it has left", || look(&cluster, |all| all.lost().has(added) && !all.is_changing()));
    });
    let [.., fourth] = nodes;
    drop(fourth);
    let anew = MemoryNode::listen(&d, BYTES, ServerOptions::default()).unwrap();
    connect(std::slice::from_ref(&d)).unwrap();
    assert_eq!(add_to_all(&options.clone().nodes(&founders).open().unwrap()), 40);
    drop(anew);
    let options_of_others = ServerOptions::default().keys(NodeKeys::from(NodeKey::generate().unwrap()));
    let _others = MemoryNode::listen(&d, BYTES, options_of_others).unwrap();
    assert_eq!(add_to_all(&options.clone().nodes(&founders).open().unwrap()), 60);
}

/// Makes a controller end the first epoch of a cluster.
fn begin_second_epoch(cluster: &Cluster, nodes: &Nodes, options: &ConnectOptions) {
    controlled(nodes, options, || {
        let begins = cluster.configuration().unwrap().change(|all| {
            let leader = all.clients().map(|(client, _)| client).find(|client| all.leads(*client));
            all.rearrange(leader.unwrap())
        });
        begins.unwrap().unwrap();
        wait_until("the next epoch", || look(cluster, |all| all.epoch()) == 2);
    });
}

/// A client names a configuration that does not exist, by mistake, while another client is at work.
fn a_mistyped_configuration_is_refused(all: &Nodes, folder: &Folder) {
    let (right, typo) = (folder.options("right"), folder.options("typo"));
    let first = right.clone().nodes(all).open().unwrap();
    begin_second_epoch(&first, all, &right);
    let rows: Table<u64, Words<1>> = support::table(&first, "rows", TableOptions::for_rows(20), Words([0]));
    let mut worker = first.worker(Default::default()).unwrap();
    let client = worker.incarnations().next().unwrap();
    let mut goes_on = |wanted| {
        let add = worker.block_on(async |session| {
            let add = session.transact(async |tx| {
                let mut row = rows.get_mut(tx, 7).await?;
                row.0[0] += 1;
                Ok(row.0[0])
            });
            add.await.unwrap()
        });
        assert_eq!(add, wanted);
        assert_eq!(look(&first, |all| all.standing(client)), Some(Standing::Alive));
    };
    goes_on(1);
    let refused = typo.clone().nodes(all).open().unwrap_err();
    let text = refused.to_string();
    let ConnectError::OtherConfiguration { configuration, clients } = refused else { panic!("{text}") };
    assert!(configuration.ends_with("/typo") && clients == [client], "{text}");
    assert!(text.contains(&configuration) && text.contains(&client.to_string()), "{text}");
    goes_on(2);
    let interrupt = Some(Arc::new(AtomicBool::new(true)));
    let interrupted = typo.clone().interrupt(interrupt).nodes(all).open().unwrap_err();
    assert!(
        matches!(&interrupted, ConnectError::Open(why) if why.kind() == OpenErrorKind::Interrupted),
        "{interrupted}"
    );
    goes_on(3);
    // The configuration is lost, and its clients have ended.
    drop((worker, rows, first));
    let cluster = typo.clone().nodes(all).open().unwrap();
    assert_eq!((look(&cluster, |all| all.epoch()), add_to_all(&cluster)), (2, 23));
}

#[test]
fn a_mistyped_configuration_of_nodes_over_tcp_is_refused() {
    let nodes = [listen(), listen(), listen()];
    let all = Nodes::Tcp(nodes.iter().map(address).collect());
    a_mistyped_configuration_is_refused(&all, &Folder::new("mistyped-tcp"));
}

#[test]
fn a_mistyped_configuration_of_nodes_in_files_is_refused() {
    let folder = Folder::new("mistyped-shm");
    let paths: Vec<PathBuf> = (0..2).map(|node| folder.0.join(format!("node-{node}"))).collect();
    let _served: Vec<_> = paths.iter().map(|path| MemoryNode::map(path, Some(BYTES)).unwrap()).collect();
    a_mistyped_configuration_is_refused(&Nodes::Shm(paths), &folder);
}

/// A client dies while it founds a cluster. The next client finishes that, and names the nodes in
/// another order.
#[test]
fn a_cluster_that_is_founded_half_way_is_founded_by_the_next_client() {
    let (mut halves, mut polls) = (0, 0);
    loop {
        let nodes = [listen(), listen(), listen()];
        let [a, b, c] = nodes.each_ref().map(address);
        let tcp = Tcp::new(vec![c.clone(), a.clone(), b.clone()], TcpOptions::default());
        let dies = block_on(&tcp, ClientId(0), async |lane: &Lane| cut_off(identity::found(lane, 3), polls).await);
        let is_done = dies.unwrap().map(Result::unwrap).is_some();
        let known = block_on(&tcp, ClientId(0), async |lane: &Lane| identity::of_each(lane, NodeSet::first(3)).await);
        let given = known.unwrap().into_iter().filter(|(_, identity)| matches!(identity, Ok(Some(_)))).count();
        halves += u32::from((1..3).contains(&given));
        let first = connect(&[a.clone(), b.clone(), c.clone()]).unwrap_or_else(|error| panic!("{polls}: {error}"));
        support::table(&first, "rows", TableOptions::for_rows(20), Words([0]));
        let later = connect(&[b.clone(), c.clone(), a.clone()]).unwrap();
        assert_eq!((first.id(), first.nodes()), (later.id(), later.nodes()), "{polls}");
        assert_eq!(add_to_all(&later), 20);
        if is_done {
            break;
        }
        polls += 1 + polls / 2;
    }
    // The number of polls of a round depends on the machine.
    eprintln!("{halves} clients have died with a part of the nodes founded");
}

/// A memory node dies, and a controller is known that does not declare it lost.
#[test]
fn a_program_can_interrupt_a_client_that_waits_for_the_next_epoch() {
    let nodes = [listen(), listen(), listen()];
    let all = Nodes::Tcp(nodes.iter().map(address).collect());
    let folder = Folder::new("waits");
    let options = folder.options("configuration");
    let first = options.clone().nodes(&all).open().unwrap();
    first.configuration().unwrap().change(|all| all.join_controller(Ok(9_999), u64::MAX / 4, None)).unwrap();
    let [_alive, _alive_too, dies] = nodes;
    drop(dies);
    let interrupt = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let waits = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(300));
            interrupt.store(true, Ordering::Relaxed);
        });
        options.clone().interrupt(interrupt.clone()).nodes(&all).open()
    });
    let error = waits.unwrap_err();
    assert!(matches!(&error, ConnectError::Open(why) if why.kind() == OpenErrorKind::Interrupted), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(300), "it has waited for the controller");
    assert!(began.elapsed() < Duration::from_secs(8), "it was interrupted late");
}

/// The name server falls silent, and then a memory node dies.
#[test]
fn an_epoch_begins_while_the_name_server_is_silent() {
    let nodes = [listen(), listen(), listen()];
    let names = ["one.test:1", "two.test:1", "three.test:1"].map(str::to_owned);
    let known = names.iter().cloned().zip(nodes.iter().map(|node| node.address().unwrap()));
    let known: BTreeMap<String, SocketAddr> = known.collect();
    let is_silent = Arc::new(AtomicBool::new(false));
    let silent = is_silent.clone();
    let resolve = move |name: &str| {
        while silent.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        known.get(name).map(|address| vec![*address]).ok_or_else(|| io::Error::other("no such name"))
    };
    let all = Nodes::Tcp(names.to_vec());
    let folder = Folder::new("silent");
    let options = folder.options("configuration").names(Names::asking(resolve));
    let cluster = options.clone().nodes(&all).open().unwrap();
    support::table(&cluster, "rows", TableOptions::for_rows(20), Words([0]));
    controlled(&all, &options, || {
        assert_eq!(add_to_all(&cluster), 20);
        is_silent.store(true, Ordering::Relaxed);
        // A lookup of a name stays valid for a second.
        thread::sleep(Duration::from_millis(1_100));
        let [_alive, _alive_too, dies] = nodes;
        let began = Instant::now();
        drop(dies);
        wait_until("the node is lost", || look(&cluster, |all| all.lost().has(NodeId(2))));
        wait_until("the next epoch has begun", || look(&cluster, |all| !all.is_changing()));
        assert_eq!(add_to_all(&cluster), 40);
        assert_eq!(add_to_all(&options.clone().nodes(&all).open().unwrap()), 60, "and a client comes");
        // A lookup is given six seconds if nothing is known of the name.
        assert!(began.elapsed() < Duration::from_secs(6), "something waits for names: {:?}", began.elapsed());
        is_silent.store(false, Ordering::Relaxed);
    });
}

/// A client dies, and then the configuration that knew it is lost. A client with a new
/// configuration frees what the dead client had locked.
#[test]
fn clients_that_a_new_configuration_does_not_know_are_recovered() {
    let nodes = [listen(), listen(), listen()];
    let all = Nodes::Tcp(nodes.iter().map(address).collect());
    let folder = Folder::new("unknown");
    let first = folder.options("lost").nodes(&all).open().unwrap();
    begin_second_epoch(&first, &all, &folder.options("lost"));
    let rows: Table<u64, Words<1>> = support::table(&first, "rows", TableOptions::for_rows(20), Words([0]));
    let mut worker = first.worker(Default::default()).unwrap();
    worker.block_on(async |session| session.transact(async |tx| rows.get(tx, 7).await).await.unwrap());
    let client = worker.incarnations().next().unwrap();
    let pointer = support::pointer_of(&rows, 7);
    let record = rows.untyped().replicas(pointer)[0].address(pointer.offset());
    let locked = block_on(first.fabric(), ClientId(client), async |lane| {
        let mut round = lane.round();
        let Swap { from, to } = Swap::lock(TransactionId::new(client, 1).unwrap().lock());
        let lock = round.compare_swap(record, from.to_bits(), to.to_bits());
        lane.execute(round).await.unwrap().swapped(lock)
    });
    assert!(locked.unwrap());
    worker.abandon();

    let cluster = folder.options("new").nodes(&all).open().unwrap();
    assert_eq!(add_to_all(&cluster), 20);
    let mut lives = cluster.worker(Default::default()).unwrap();
    lives.block_on(async |session| {
        let began = Instant::now();
        while look(&cluster, |all| all.standing(client)) != Some(Standing::Forgotten) {
            assert!(began.elapsed() < Duration::from_secs(30), "something is left of it");
            session.lane().sleep(10_000_000).await;
        }
    });
    // A client of one configuration takes no client for dead that uses another one.
    let client = lives.incarnations().next().unwrap();
    let another = folder.options("new").nodes(&all).open().unwrap();
    assert_eq!(look(&another, |all| all.standing(client)), Some(Standing::Alive));
}

#[test]
fn lists_of_nodes() {
    let list = |text: &str| text.parse::<Nodes>();
    assert_eq!(list("a:1,b:2").unwrap(), Nodes::Tcp(vec!["a:1".into(), "b:2".into()]));
    assert_eq!(list("[::1]:7000").unwrap().to_string(), "[::1]:7000");
    assert_eq!(list("shm:/x,shm:/y").unwrap(), list("shm:/x,/y").unwrap());
    assert_eq!(list("shm:/x,/y").unwrap().to_string(), "shm:/x,/y");
    for wrong in ["", "a", "a:", ":1", "a:1,", "a:99999", "shm:", "shm:/x,", "a:1,shm:/x"] {
        assert!(list(wrong).is_err(), "{wrong:?}");
    }
    assert!(list(&vec!["a:1"; 65].join(",")).is_err());
}
