//! A handler for tests, and clients.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(unreachable_pub, reason = "the module of a test program")]

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use remora::floors::fabric::shm::file::{ShmFiles as Files, ShmNode as Node};
use remora::{Cluster, Session, Table, TableOptions};
use remora_gateway::net::{self, Control, Gateway, Handler, Next, Origin, ServeOptions, UNSENT_MAX};
use remora_resp::{Parser, ReplyWriter, Version};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A handler with a few commands. Some of them are slow, or fail.
pub struct Commands {
    table: Table<u64, u64>,
    control: Control,
    open: Arc<AtomicUsize>,
    /// The numbers of the connections in the order in which they have been served.
    pub served: RefCell<Vec<u64>>,
}

pub struct Client {
    id: u64,
    parser: Parser,
    /// Whether the answer to a `PAUSE` is due.
    owes: bool,
}

impl Handler for Commands {
    type Connection = Client;

    fn open(&self, origin: &Origin) -> Result<Client, Vec<u8>> {
        self.open.fetch_add(1, Ordering::SeqCst);
        let mut parser = Parser::new();
        parser.set_authenticated(true);
        Ok(Client { id: origin.id, parser, owes: false })
    }

    async fn serve(
        &self,
        session: &mut Session,
        client: &mut Client,
        input: &mut &mut [u8],
        output: &mut Vec<u8>,
    ) -> Next {
        if std::mem::take(&mut client.owes) {
            output.extend_from_slice(b"+PAUSED\r\n");
        }
        loop {
            let command = match client.parser.next(input) {
                Ok(Some(command)) => command,
                Ok(None) => return Next::More,
                Err(error) => {
                    error.write_reply(output);
                    return Next::Close;
                }
            };
            let number =
                command.get(1).and_then(|word| std::str::from_utf8(word).ok()?.parse::<u64>().ok()).unwrap_or(0);
            let mut reply = ReplyWriter::new(output, Version::Resp2);
            match command.name() {
                b"ECHO" => reply.bulk(command.get(1).unwrap_or_default()),
                b"ID" => reply.integer(client.id as i64),
                b"SLEEP" => {
                    session.sleep(Duration::from_millis(number)).await;
                    reply.simple("SLEPT");
                }
                b"PAUSE" => {
                    client.owes = true;
                    return Next::Pause(Duration::from_millis(number));
                }
                b"BIG" => reply.bulk(vec![b'x'; number as usize]),
                b"GET" => match session.transact(async |tx| self.table.get(tx, number).await).await {
                    Ok(value) => reply.integer(value.unwrap_or(0) as i64),
                    Err(error) => reply.error(format!("ERR {error}")),
                },
                b"INCR" => {
                    let added = session.transact(async |tx| {
                        let mut value = self.table.get_mut(tx, number).await?;
                        *value += 1;
                        Ok(*value)
                    });
                    match added.await {
                        Ok(value) => reply.integer(value as i64),
                        Err(error) => reply.error(format!("ERR {error}")),
                    }
                }
                b"KILL" => {
                    self.control.kill(number);
                    reply.simple("OK");
                }
                b"WAKE" => {
                    self.control.wake(number);
                    reply.simple("OK");
                }
                b"PANIC" => panic!("as the test wants it"),
                b"QUIT" => {
                    reply.simple("OK");
                    return Next::Close;
                }
                _ => reply.simple("PONG"),
            }
            if output.len() > UNSENT_MAX {
                return Next::Again;
            }
        }
    }

    fn is_overdue(&self, client: &Client, quiet: Duration) -> bool {
        // Every client may be silent, but for the first.
        client.id == 1 && quiet > Duration::from_secs(3600)
    }

    fn close(&self, _: Client) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A gateway, and where it listens.
pub struct Rig {
    pub gateway: Option<Gateway>,
    pub control: Control,
    pub address: SocketAddr,
    /// The number of connections that the handlers know.
    pub open: Arc<AtomicUsize>,
    pub cluster: Cluster,
}

/// Raises the number of descriptors that the process may have open to this one. Returns how many it
/// may: fewer, if the system allows no more.
pub fn descriptors(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = limit.maximum.map_or(wanted as u64, |maximum| maximum.min(wanted as u64));
    if limit.current.is_some_and(|current| current < raised) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }).unwrap();
    }
    if (raised as usize) < wanted {
        eprintln!("fewer connections than meant: the process may have {raised} descriptors");
    }
    raised as usize
}

pub fn embedded() -> Cluster {
    Cluster::embedded().nodes(2).replicas(2).node_bytes(16 << 20).open().unwrap()
}

pub fn over_tcp() -> Cluster {
    Cluster::embedded().nodes(2).replicas(2).node_bytes(16 << 20).open_servers(None).unwrap()
}

/// A cluster on memory in files, as processes of their own would share it.
pub fn on_files() -> Cluster {
    static CLUSTERS: AtomicUsize = AtomicUsize::new(0);
    let name = format!("remora-gateway-{}-{}", std::process::id(), CLUSTERS.fetch_add(1, Ordering::Relaxed));
    let paths: Vec<_> = (0..2).map(|node| std::env::temp_dir().join(format!("{name}-{node}"))).collect();
    let nodes = paths.iter().map(|path| Node::open(path, Some(16 << 20)).unwrap()).collect();
    let files = Files::new(&paths, nodes).unwrap();
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    Cluster::embedded().nodes(2).replicas(2).node_bytes(16 << 20).open_on(Arc::new(files)).unwrap()
}

impl Rig {
    pub fn new(cluster: &Cluster, options: ServeOptions) -> Rig {
        let table = match cluster.open_table::<u64, u64>("numbers") {
            Ok(table) => table,
            Err(_) => {
                let table = cluster.create_table("numbers", TableOptions::for_rows(1000)).unwrap();
                cluster.load(&table, (0..1000).map(|key| (key, 0))).unwrap();
                table
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::new(AtomicUsize::new(0));
        let count = open.clone();
        let gateway = net::serve(cluster, vec![listener], options, move |_, control| Commands {
            table: table.clone(),
            control: control.clone(),
            open: count.clone(),
            served: RefCell::default(),
        })
        .unwrap();
        let control = gateway.control().clone();
        Rig { gateway: Some(gateway), control, address, open, cluster: cluster.clone() }
    }

    pub fn connect(&self) -> Talk {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        Talk(socket)
    }

    /// Stops the gateway, and returns how long that took.
    pub fn stop(&mut self) -> Duration {
        let began = Instant::now();
        self.control.stop();
        self.gateway.take().unwrap().wait();
        began.elapsed()
    }

    /// Waits until something is so.
    pub fn until(&self, what: &str, is_so: impl Fn(&Rig) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < Duration::from_secs(30), "{what}: {:?}", self.control.counts());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A client's end.
pub struct Talk(pub TcpStream);

impl Talk {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    /// Reads exactly these bytes.
    pub fn expect(&mut self, wanted: impl AsRef<[u8]>) {
        let wanted = wanted.as_ref();
        let mut got = vec![0; wanted.len()];
        let read = self.0.read_exact(&mut got);
        let show = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned();
        assert!(read.is_ok() && got == wanted, "{read:?}: got {:?}, not {:?}", show(&got), show(wanted));
    }

    pub fn ask(&mut self, bytes: impl AsRef<[u8]>, wanted: impl AsRef<[u8]>) {
        self.send(bytes);
        self.expect(wanted);
    }

    /// Returns everything up to the end of the stream.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        // A reset is an end, too.
        let _ = self.0.read_to_end(&mut all);
        all
    }

    pub fn id(&mut self) -> u64 {
        self.send("ID\r\n");
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        std::str::from_utf8(&line[1..line.len() - 2]).unwrap().parse().unwrap()
    }
}
