//! Clusters of memory nodes that are served to others: founded once, found again, in whatever order they are named.

mod support;

use std::path::PathBuf;

use remora::{
    Cluster, ConnectError, ConnectOptions, Found, MemoryNode, NodeKey, Nodes, Protocol, ServerOptions, Table,
    TableOptions,
};

use support::Words;

const BYTES: u64 = 8 << 20;

fn listen() -> MemoryNode {
    MemoryNode::listen("127.0.0.1:0", BYTES, ServerOptions::default()).unwrap()
}

fn address(node: &MemoryNode) -> String {
    node.address().unwrap().to_string()
}

fn connect(addresses: &[String]) -> Result<Cluster, ConnectError> {
    Cluster::connect(&Nodes::Tcp(addresses.to_vec()), &ConnectOptions::default())
}

/// Adds 1 to every row; the rows' sum after it.
fn add_to_all(cluster: &Cluster) -> u64 {
    let rows: Table<u64, Words<1>> = cluster.open_table("rows").unwrap();
    let mut worker = cluster.worker(Default::default()).unwrap();
    let sum = worker.block_on(async |session| {
        let add = session.transact(async |tx| {
            let slots: Vec<_> = (0..20).map(|key| tx.want(&rows, key)).collect();
            tx.fetch().await?;
            slots.into_iter().try_fold(0, |sum, slot| {
                let row = tx.get_mut(slot)?;
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
    // A founder that died half-way: one node knows, the other is told by the next client. But not once there are tables.
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
    let options = ServerOptions { keys: Some(right.into()), ..ServerOptions::default() };
    let node = MemoryNode::listen("127.0.0.1:0", BYTES, options).unwrap();
    let nodes = Nodes::Tcp(vec![address(&node)]);
    let connect = |key: Option<NodeKey>| {
        Cluster::connect(&nodes, &ConnectOptions { keys: key.map(NodeKey::into), ..ConnectOptions::default() })
    };
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
    let options = ConnectOptions { replicas: Some(2), protocol: Protocol::DrtmH, ..ConnectOptions::default() };
    let mut sum = 0;
    for start in 0..3 {
        let served: Vec<_> =
            paths.iter().map(|path| MemoryNode::map(path, (start == 0).then_some(BYTES)).unwrap()).collect();
        let expected = if start == 0 { Found::New } else { Found::Stopped };
        assert!(served.iter().all(|node| node.found() == expected));
        let again = MemoryNode::map(&paths[0], None).unwrap_err().to_string();
        assert!(again.contains("serve") && again.contains(&std::process::id().to_string()), "{again}");
        let cluster = Cluster::connect(&nodes, &options).unwrap();
        if start == 0 {
            support::table(&cluster, "rows", TableOptions::for_rows(20), Words([0]));
        }
        sum += 20;
        assert_eq!(add_to_all(&cluster), sum);
    }
    let gone = Cluster::connect(&nodes, &options).unwrap_err().to_string();
    assert!(gone.contains(&paths[0].display().to_string()), "{gone}");
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
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
