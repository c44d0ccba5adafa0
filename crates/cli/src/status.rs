//! `remora status`: shows what memory nodes hold, and what the cluster is doing. It asks each node
//! by itself, so a node that is down does not hide the others.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use clap::Args;
use remora::admin::NodeId;
use remora::connect::{Nodes, Place};
use remora::floors::fabric::shm::file::ShmFiles;
use remora::floors::fabric::tcp::{Tcp, TcpOptions};
use remora::floors::fabric::{ClientId, Fabric, FabricError, Lane, NodeSet, block_on};
use remora::floors::node::hot::{HotList, fresh_hot_lists};
use remora::floors::node::{Identity, MemoryError, Metadata, TableId, connected, identity, metadata, node};
use remora::observe::NodeStatus;
use serde::Serialize;

use crate::drain::failure;
use crate::hot::{self, HotRecord};
use crate::meet::MeetArgs;
use crate::memnode::{read_client_tls, read_keys};
use crate::output::{self, ReportTo};
use crate::{Failure, Verdict, value};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  remora status --connect 127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002
  remora status --connect shm:/dev/shm/n0,/dev/shm/n1 --report -
  remora status --connect 10.0.0.7:7000,10.0.0.8:7000,10.0.0.9:7000 --configuration /var/lib/remora/bank

Asks only the nodes that --connect names. With --configuration it says also which nodes are lost, leave or are being filled,
and whether there is a controller. If transactions of any client get in each other's way, it lists the hottest records. That takes
a second or two.

Exit status: 0 all nodes answer, 1 one does not, 2 bad input.")]
pub(crate) struct StatusOptions {
    #[command(flatten)]
    meet: MeetArgs,
    /// Count the rows of each table. This reads all tables once, which takes time.
    #[arg(long)]
    rows: bool,
    /// Write the report as JSON; - for standard output.
    #[arg(long, value_name = "FILE|-")]
    report: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Status {
    nodes: Vec<Node>,
    tables: Vec<TableRow>,
    /// The records at which transactions of all clients get in each other's way now, the hottest
    /// first.
    hot_records: Vec<HotRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration: Option<Known>,
    /// Why the configuration is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration_error: Option<String>,
}

/// The content of the configuration.
#[derive(Debug, Serialize)]
struct Known {
    epoch: u64,
    /// Whether the next epoch is about to begin.
    changing: bool,
    /// Whether the cluster has a controller.
    controllers: bool,
    /// Memory nodes that the cluster goes on without.
    lost: Vec<String>,
    /// Memory nodes whose shards move to other nodes.
    leaving: Vec<String>,
    /// Memory nodes that are to get their share of the shards.
    filling: Vec<String>,
    /// Number of replicas that join.
    joining: usize,
    /// Number of joining replicas that are complete, and count from the next epoch on.
    copied: usize,
}

#[derive(Debug, Serialize)]
struct Node {
    address: String,
    /// Why nothing else is known of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    state: Option<State>,
}

#[derive(Debug, Serialize)]
struct State {
    /// The node's number in its cluster.
    number: Option<u16>,
    bytes: u64,
    allocated: u64,
    /// Number of shards of which the node has a replica, or is being given one.
    shards: usize,
    /// Number of client slots in use: of workers, and of clients that only change the catalog.
    /// Killed clients count, too.
    clients: usize,
    #[serde(flatten)]
    server: Option<Server>,
}

#[derive(Debug, Serialize)]
struct Server {
    up_seconds: f64,
    connections: u64,
    revoked: u64,
    frames: u64,
    sends: u64,
    cpu_seconds: f64,
}

#[derive(Debug, Serialize)]
struct TableRow {
    name: String,
    /// Number of rows for which the table has room.
    rows: u64,
    /// Number of rows, if they were counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    counted: Option<u64>,
    /// Whether another table of this name grows into this one.
    growing: bool,
    shards: u16,
    replicas: u8,
    /// Smallest number of copies that a shard has. It is less than it should be after memory nodes
    /// were lost.
    copies: usize,
    /// Number of replicas that are being copied now.
    joining: usize,
    discipline: String,
    /// The schema's text, which says what keys and values mean.
    schema: String,
    /// Bytes of all copies together.
    bytes: u64,
}

pub(crate) fn status(options: &StatusOptions) -> Result<Verdict, Failure> {
    options.meet.inputs().check(&[("--report", ReportTo::file(options.report.as_deref()))])?;
    let keys = options.meet.key_file.as_deref().map(read_keys).transpose()?;
    let tls = options.meet.tls_ca.as_deref().map(read_client_tls).transpose()?;
    let tcp = TcpOptions { keys, tls, ..TcpOptions::default() };
    let report_to = ReportTo::open(options.report.as_deref())?;
    let place = options.meet.etcd.complete(options.meet.configuration.clone())?;
    let mut catalog: Option<Metadata> = None;
    let mut cluster = None;
    let mut lists = Vec::new();
    let nodes = (0..).zip(ask_all(&options.meet.connect, &tcp)).map(|(at, answer)| {
        let address = options.meet.connect.name(NodeId(at)).unwrap_or_default();
        match answer {
            Ok(Answer { state, identity, metadata, lists: theirs }) => {
                lists.extend(theirs);
                cluster = cluster.or(identity.map(|identity| identity.cluster));
                // The catalog that counts is the newest one that a node knows.
                if catalog.as_ref().is_none_or(|known| known.generation < metadata.generation) {
                    catalog = Some(metadata);
                }
                Node { address, error: None, state: Some(state) }
            }
            Err(error) => Node { address, error: Some(error), state: None },
        }
    });
    let mut nodes: Vec<Node> = nodes.collect();
    let catalog = catalog.unwrap_or_default();
    for state in nodes.iter_mut().filter_map(|node| node.state.as_mut()) {
        let replicas = catalog.shards.iter().flat_map(|shard| &shard.replicas);
        state.shards = replicas.filter(|replica| Some(replica.node.0) == state.number).count();
    }
    let counted = if options.rows { count_rows(&options.meet.connect, &tcp, &nodes, &catalog) } else { Ok(Vec::new()) };
    let tables = (0..).map(TableId).zip(&catalog.tables).filter(|(_, table)| table.is_there()).map(|(id, table)| {
        let spec = table.spec.clone();
        TableRow {
            rows: spec.rows_that_fit(),
            counted: counted
                .as_ref()
                .ok()
                .and_then(|all| all.iter().find(|(counted, _)| *counted == id))
                .map(|one| one.1),
            growing: table.growth.is_some(),
            bytes: spec.bytes_in_all(),
            shards: spec.shards,
            replicas: spec.replicas,
            copies: catalog.copies_of(table),
            joining: catalog
                .shards_of(table)
                .flat_map(|shard| &shard.replicas)
                .filter(|replica| replica.joining)
                .count(),
            discipline: spec.discipline.to_string(),
            schema: spec.schema,
            name: spec.name,
        }
    });
    let tables = tables.collect();
    let counted = counted.map(drop);
    let configuration = match place.zip(cluster) {
        Some((place, cluster)) => known(&place, cluster, &nodes, &catalog).map(Some),
        None => Ok(None),
    };
    // Nodes are shown even if something is wrong with the configuration.
    let (configuration, unknown) = configuration.map_or_else(|why| (None, Err(why)), |known| (known, Ok(())));
    let configuration_error = unknown.as_ref().err().map(|Failure(why)| why.clone());
    let hot_records = hot::hottest(&lists, |id| {
        let table = catalog.tables.get(usize::from(id.0)).filter(|table| table.is_there());
        table.map(|table| table.spec.name.as_str())
    });
    let status = Status { nodes, tables, hot_records, configuration, configuration_error };
    let written = output::all([unknown, counted, report_to.write(&status, || table(&status))]);
    let down = status.nodes.iter().filter(|node| node.error.is_some());
    let down: Vec<_> = down.map(|node| output::printable(&node.address)).collect();
    if !down.is_empty() {
        output::complain(&format!("cannot be had: {}", down.join(", ")));
    }
    written.map(|()| if down.is_empty() { Verdict::Sound } else { Verdict::Unsound })
}

/// Counts the rows of all tables. This needs all nodes of the tables.
fn count_rows(
    connect: &Nodes,
    tcp: &TcpOptions,
    nodes: &[Node],
    catalog: &Metadata,
) -> Result<Vec<(TableId, u64)>, Failure> {
    let unknown = |why: String| Failure::new("--rows", why);
    // The nodes are sorted by their numbers in the cluster, by which the catalog names them.
    let number = |node: &Node| node.state.as_ref().and_then(|state| state.number);
    let mut places: Vec<(u16, usize)> =
        nodes.iter().map(number).zip(0..).filter_map(|(at, place)| Some((at?, place))).collect();
    places.sort_unstable();
    let wanted = catalog.shards.iter().flat_map(|shard| shard.replicas.first()).map(|primary| primary.node.0);
    if let Some(node) = { wanted }.find(|node| places.get(usize::from(*node)).is_none_or(|(number, _)| number != node))
    {
        return Err(unknown(format!(
            "memory node {node} does not answer or is not named, so its rows cannot be counted"
        )));
    }
    let fabric: Arc<dyn Fabric> = match connect {
        Nodes::Tcp(addresses) => {
            let addresses = places.iter().map(|(_, place)| addresses[*place].clone()).collect();
            Arc::new(Tcp::new(addresses, tcp.clone()))
        }
        Nodes::Shm(paths) => {
            let paths: Vec<_> = places.iter().map(|(_, place)| paths[*place].clone()).collect();
            Arc::new(ShmFiles::new(&paths, Vec::new()).map_err(|error| unknown(error.to_string()))?)
        }
    };
    let counted = block_on(&*fabric, ClientId(0), async |lane: &Lane| {
        let mut counted = Vec::new();
        for (id, _) in (0..).map(TableId).zip(&catalog.tables).filter(|(_, table)| table.is_there()) {
            if let Some(table) = remora::floors::index::Table::open_by_id(catalog, id) {
                counted.push((
                    id,
                    remora::floors::txn::count_rows(lane, &table).await.map_err(|error| unknown(error.to_string()))?,
                ));
            }
        }
        Ok(counted)
    });
    counted.map_err(|error| unknown(error.to_string()))?
}

/// Returns what a configuration says of nodes that have been asked.
fn known(place: &Place, cluster: u64, nodes: &[Node], catalog: &Metadata) -> Result<Known, Failure> {
    // To open a file makes it, so only an existing file is opened.
    if let Place::File(path) = place
        && !path.exists()
    {
        return Err(Failure::new("--configuration", format!("there is no {}", path.display())));
    }
    let configuration = place.open(cluster).map_err(failure)?;
    let known = configuration.look(|now| {
        let name = |node: NodeId| {
            let address = |one: &&Node| one.state.as_ref().is_some_and(|state| state.number == Some(node.0));
            let asked = nodes.iter().find(address).map(|one| one.address.clone());
            asked.or_else(|| now.added().get(&node.0).cloned()).unwrap_or_else(|| node.to_string())
        };
        let names = |nodes: NodeSet| nodes.iter().map(name).collect();
        let copied = now.copied();
        Known {
            epoch: now.epoch(),
            changing: now.is_changing(),
            controllers: now.has_controller(),
            lost: names(now.lost()),
            leaving: names(now.leaving()),
            filling: names(now.filling()),
            joining: catalog.joining().count(),
            copied: catalog.joining().filter(|one| copied.contains(one)).count(),
        }
    });
    known.map_err(failure)
}

/// The answer of a node.
struct Answer {
    state: State,
    identity: Option<Identity>,
    metadata: Metadata,
    /// The lists of hot records that clients are writing there.
    lists: Vec<HotList>,
}

/// Asks all nodes at once, so that silent nodes take no longer than the slowest one of them.
fn ask_all(nodes: &Nodes, tcp: &TcpOptions) -> Vec<Result<Answer, String>> {
    thread::scope(|scope| {
        let ask = |at| thread::Builder::new().spawn_scoped(scope, move || ask(nodes, at, tcp));
        let asked: Vec<_> = (0..nodes.count() as u16).map(ask).collect();
        let answered = asked.into_iter().map(|asked| match asked.map(ScopedJoinHandle::join) {
            Ok(Ok(answer)) => answer,
            Ok(Err(panic)) => resume_unwind(panic),
            Err(error) => Err(format!("cannot be asked: {error}")),
        });
        answered.collect()
    })
}

/// Asks one node, as if there were no others. Fails with the reason why the node gives no answer.
fn ask(nodes: &Nodes, at: u16, tcp: &TcpOptions) -> Result<Answer, String> {
    const HERE: NodeId = NodeId(0);
    let (fabric, server): (Arc<dyn Fabric>, Option<NodeStatus>) = match nodes {
        Nodes::Tcp(addresses) => {
            let address = addresses[usize::from(at)].clone();
            let tcp = Tcp::new(vec![address], tcp.clone());
            let server = tcp.status(HERE).map_err(|error| error.fault.to_string())?;
            (Arc::new(tcp), Some(server))
        }
        Nodes::Shm(paths) => {
            let files = ShmFiles::new(&paths[usize::from(at)..=usize::from(at)], Vec::new());
            (Arc::new(files.map_err(|error| error.to_string())?), None)
        }
    };
    let held = block_on(&*fabric, ClientId(0), async |lane: &Lane| {
        let superblock = node::superblock(lane, HERE).await?;
        let identity = identity::of(lane, HERE).await?;
        let number = identity.map(|identity| identity.number.0);
        let clients = connected(lane, HERE).await?.len();
        let metadata = metadata::read(lane, HERE).await?;
        let (bytes, allocated) = (superblock.bytes, superblock.allocated);
        let (shards, server) = (0, server.map(Server::from));
        let lists = fresh_hot_lists(lane, HERE).await?;
        let state = State { number, bytes, allocated, shards, clients, server };
        Ok::<_, MemoryError>(Answer { state, identity, metadata, lists })
    });
    let fault = |error: FabricError| error.fault.to_string();
    held.map_err(fault)?.map_err(|error| match error {
        MemoryError::Fabric(error) => fault(error),
        error => error.to_string(),
    })
}

impl From<NodeStatus> for Server {
    fn from(status: NodeStatus) -> Server {
        Server {
            up_seconds: status.uptime_ns as f64 / 1e9,
            connections: status.connections,
            revoked: status.revoked,
            frames: status.frames,
            sends: status.sends,
            cpu_seconds: status.cpu_ns as f64 / 1e9,
        }
    }
}

fn table(status: &Status) -> String {
    output::text(|text| write_table(text, status))
}

fn write_table(text: &mut String, status: &Status) -> std::fmt::Result {
    // The path of a memory node may have any characters.
    let names: Vec<_> = status.nodes.iter().map(|node| output::printable(&node.address)).collect();
    let width = width_of(&names);
    write!(text, "{:<width$}{:>6}{:>12}{:>12}", "memory node", "number", "size", "allocated")?;
    write!(text, "{:>8}{:>9}", "shards", "clients")?;
    writeln!(text, "{:>12}{:>13}{:>13}{:>16}", "up", "connections", "frames", "CPU s")?;
    for (node, name) in status.nodes.iter().zip(&names) {
        write!(text, "{name:<width$}")?;
        let Some(state) = &node.state else {
            writeln!(text, "{}", output::printable(node.error.as_deref().unwrap_or_default()))?;
            continue;
        };
        let number = state.number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let (size, allocated) = (value::show_bytes(state.bytes), value::show_bytes(state.allocated));
        write!(text, "{number:>6}{size:>12}{allocated:>12}{:>8}{:>9}", state.shards, state.clients)?;
        if let Some(server) = &state.server {
            let up = show_time(Duration::from_secs_f64(server.up_seconds));
            let (connections, frames) = (server.connections, output::grouped(server.frames));
            write!(text, "{up:>12}{connections:>13}{frames:>13}{:>16.2}", server.cpu_seconds)?;
        }
        text.push('\n');
    }
    if let Some(known) = &status.configuration {
        write_known(text, known)?;
    }
    if status.tables.is_empty() {
        return writeln!(text, "\nno tables");
    }
    // Another program may have made a table with any name.
    let names: Vec<_> = status.tables.iter().map(|table| output::printable(&table.name)).collect();
    let width = width_of(&names);
    write!(text, "\n{:<width$}", "table")?;
    if status.tables.iter().any(|table| table.counted.is_some()) {
        write!(text, "{:>14}", "rows")?;
    }
    write!(text, "{:>14}{:>8}{:>10}{:>12}  ", "rows that fit", "shards", "replicas", "bytes")?;
    let discipline_width = status.tables.iter().map(|table| table.discipline.len()).max().unwrap_or(0).max(10);
    writeln!(text, "{:<discipline_width$}  schema", "discipline")?;
    for (table, name) in status.tables.iter().zip(&names) {
        let (rows, bytes) = (output::grouped(table.rows), value::show_bytes(table.bytes));
        let TableRow { shards, replicas, copies, joining, discipline, .. } = table;
        let copies =
            if copies == &usize::from(*replicas) { copies.to_string() } else { format!("{copies} of {replicas}") };
        write!(text, "{name:<width$}")?;
        if let Some(counted) = table.counted {
            write!(text, "{:>14}", output::grouped(counted))?;
        }
        write!(text, "{rows:>14}{shards:>8}{copies:>10}{bytes:>12}  {discipline:<discipline_width$}  ")?;
        text.push_str(&output::printable(&table.schema));
        if table.growing {
            text.push_str("; the table of this name grows into it");
        }
        writeln!(
            text,
            "{}",
            if *joining > 0 { format!("; {joining} copies of shards are being made") } else { String::new() }
        )?;
    }
    hot::write(text, &status.hot_records)
}

/// Returns the width of a column of names.
fn width_of(names: &[Cow<'_, str>]) -> usize {
    names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(16) + 2
}

fn write_known(text: &mut String, known: &Known) -> std::fmt::Result {
    let Known { epoch, joining, copied, .. } = known;
    let next = if known.changing { ", and the next one is about to begin" } else { "" };
    let looks = if known.controllers { "there is a controller" } else { "nobody looks after the memory nodes" };
    writeln!(text, "\nepoch {epoch}{next}; {looks}")?;
    for (what, nodes) in [("lost", &known.lost), ("leaving", &known.leaving), ("filling", &known.filling)] {
        if !nodes.is_empty() {
            let names: Vec<_> = nodes.iter().map(|name| output::printable(name)).collect();
            writeln!(text, "{what}: {}", names.join(", "))?;
        }
    }
    if *joining > 0 {
        writeln!(text, "{copied} of {joining} copies of shards have been made")?;
    }
    Ok(())
}

/// Writes a time as hours, minutes and seconds.
fn show_time(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tables_break_no_line() {
        let table_named = |name: &str| TableRow {
            name: name.to_owned(),
            rows: 1,
            counted: None,
            growing: false,
            shards: 1,
            replicas: 1,
            copies: 1,
            joining: 0,
            discipline: "locks".to_owned(),
            schema: "things\u{1b}[2J".to_owned(),
            bytes: 64,
        };
        let tables = vec![table_named("good"), table_named("bad\n\u{1b}[2Jname")];
        let status = Status {
            nodes: Vec::new(),
            tables,
            hot_records: Vec::new(),
            configuration: None,
            configuration_error: None,
        };
        let shown = table(&status);
        assert!(shown.lines().any(|line| line.starts_with("bad\\n\\u{1b}[2Jname  ")), "{shown}");
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn paths_of_memory_nodes_break_no_row() {
        let path = "/shm/one\n\u{1b}[2Jtwo";
        let node = |address: &str, error: Option<String>, state| Node { address: address.to_owned(), error, state };
        let state = State { number: Some(7), bytes: 1 << 20, allocated: 1024, shards: 0, clients: 0, server: None };
        let gone = Some(format!("{path}: No such file or directory"));
        let nodes = vec![node("/shm/good", gone.clone(), None), node(path, gone, None), node(path, None, Some(state))];
        let status = Status {
            nodes,
            tables: Vec::new(),
            hot_records: Vec::new(),
            configuration: None,
            configuration_error: None,
        };
        let shown = table(&status);
        let rows: Vec<&str> = shown.lines().skip(1).take(3).collect();
        let name = "/shm/one\\n\\u{1b}[2Jtwo";
        assert!(rows[0].starts_with("/shm/good  ") && rows[0].ends_with(": No such file or directory"), "{shown}");
        assert!(rows[1].starts_with(name) && rows[1].contains(&format!("  {name}: No such")), "{shown}");
        assert!(rows[2].starts_with(name) && rows[2].contains("     7     1.0 MiB"), "{shown}");
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn times_are_shown_in_hours() {
        assert_eq!(
            [0, 59, 3_600, 360_061].map(|s| show_time(Duration::from_secs(s))),
            ["0:00:00", "0:00:59", "1:00:00", "100:01:01"]
        );
    }
}
