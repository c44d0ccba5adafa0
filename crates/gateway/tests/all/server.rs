//! The commands about connections and the server, on an embedded cluster and without sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use remora::{Cluster, Worker, WorkerOptions};
use remora_gateway::net::{Handler, Next, Origin};
use remora_gateway::{Connection, Front, Local, PasswordError, PasswordSource};
use remora_gateway::{Server, ServerOptions, Store, StoreOptions};

/// A gateway on a cluster in this process.
struct Gateway {
    worker: Worker,
    server: std::sync::Arc<Server>,
    local: Local,
    connections: u64,
}

impl Gateway {
    fn new(options: ServerOptions) -> Gateway {
        let cluster = Cluster::embedded().open().unwrap();
        let store = Store::open_or_create(&cluster, "redis", StoreOptions::default()).unwrap();
        let worker = cluster.worker(WorkerOptions::default()).unwrap();
        let server = Server::new(store, options).unwrap();
        let local = Local::new(&server, 1);
        Gateway { worker, server: server.into(), local, connections: 0 }
    }

    fn with_password() -> Gateway {
        let password = PasswordSource::Text(b"secret".to_vec());
        Gateway::new(ServerOptions { password, ..ServerOptions::default() })
    }

    fn connect(&mut self) -> Connection {
        self.connections += 1;
        Connection::new(self.connections, &self.server)
    }

    /// Sends lines, each of them an inline command, at once. Returns how the connection goes on,
    /// and the answers as text.
    fn send_once(&mut self, connection: &mut Connection, lines: &[&str]) -> (Next, String) {
        let mut input: Vec<u8> = lines.iter().flat_map(|line| [line.as_bytes(), b"\r\n"].concat()).collect();
        let (mut input, mut output) = (&mut input[..], Vec::new());
        let Gateway { worker, server, local, .. } = self;
        let next =
            worker.block_on(async |session| connection.serve(server, session, local, &mut input, &mut output).await);
        assert_eq!(input.len(), 0);
        (next, String::from_utf8(output).unwrap().replace("\r\n", " ").trim_end().to_owned())
    }

    fn send(&mut self, connection: &mut Connection, lines: &[&str]) -> String {
        let (next, answers) = self.send_once(connection, lines);
        assert_eq!(next, Next::More);
        answers
    }

    /// Sends one command at a time, and compares the answers.
    fn check(&mut self, connection: &mut Connection, exchanges: &[(&str, &str)]) {
        for (line, answer) in exchanges {
            assert_eq!(self.send(connection, &[line]), *answer, "{line}");
        }
    }
}

#[test]
fn hello_checks_all_arguments_before_it_does_anything() {
    let mut gateway = Gateway::new(ServerOptions::default());
    let mut one = gateway.connect();
    gateway.check(
        &mut one,
        &[
            ("HELLO abc", "-ERR Protocol version is not an integer or out of range"),
            ("HELLO 4 FOO", "-NOPROTO unsupported protocol version"),
            ("HELLO 3 FOO", "-ERR Syntax error in HELLO option 'FOO'"),
            ("HELLO 3 AUTH default", "-ERR Syntax error in HELLO option 'AUTH'"),
            ("HELLO 3 SETNAME 'a b'", "-ERR Client names cannot contain spaces, newlines or special characters."),
            ("HELLO 3 SETNAME joe FOO", "-ERR Syntax error in HELLO option 'FOO'"),
            ("CLIENT GETNAME", "$-1"),
            (
                "HELLO 3 SETNAME joe",
                "%7 $6 server $5 redis $7 version $5 7.2.4 $5 proto :3 $2 id :1 $4 mode $10 standalone $4 role $6 \
                 master $7 modules *0",
            ),
            ("CLIENT GETNAME", "$3 joe"),
            ("CLIENT TRACKINGINFO", "%3 $5 flags ~1 $3 off $8 redirect :-1 $8 prefixes *0"),
            ("RESET", "+RESET"),
            ("CLIENT GETNAME", "$-1"),
            (
                "AUTH x",
                concat!(
                    "-ERR AUTH <password> called without any password configured for the default user. ",
                    "Are you sure your configuration is correct?"
                ),
            ),
            ("AUTH default x", "+OK"),
            ("AUTH a b c", "-ERR syntax error"),
        ],
    );
}

#[test]
fn clients_have_to_authenticate() {
    let mut gateway = Gateway::with_password();
    let mut one = gateway.connect();
    let no_hello = "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH \
                    <user> <pass> option can be used to authenticate the client and select the RESP protocol version \
                    at the same time";
    gateway.check(
        &mut one,
        &[
            ("GET s", "-NOAUTH Authentication required."),
            ("PING", "-NOAUTH Authentication required."),
            ("FOO", "-ERR unknown command 'FOO', with args beginning with:"),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            ("HELLO 3", no_hello),
            ("HELLO 3 SETNAME x", no_hello),
            ("AUTH secret", "+OK"),
            ("GET s", "$-1"),
            ("RESET", "+RESET"),
            ("GET s", "-NOAUTH Authentication required."),
        ],
    );
    assert!(gateway.send(&mut one, &["HELLO 3 AUTH default secret"]).starts_with("%7 "));
    assert_eq!(gateway.send(&mut one, &["GET s"]), "_");
}

#[test]
fn a_wrong_password_is_answered_later_and_holds_no_lane() {
    let mut gateway = Gateway::with_password();
    let mut one = gateway.connect();
    for line in ["AUTH wrong", "AUTH other secret", "HELLO 3 AUTH default wrong"] {
        let begun = Instant::now();
        let (next, answers) = gateway.send_once(&mut one, &[line]);
        let Next::Pause(left) = next else { panic!("{next:?}") };
        assert_eq!(answers, "");
        assert!(left > Duration::from_millis(200) && left <= Duration::from_millis(250), "{left:?}");
        // Woken too early, the connection goes on waiting.
        assert!(matches!(gateway.send_once(&mut one, &[]).0, Next::Pause(_)));
        std::thread::sleep(left + Duration::from_millis(1));
        let answer = "-WRONGPASS invalid username-password pair or user is disabled.";
        assert_eq!(gateway.send(&mut one, &[]), answer);
        assert!(begun.elapsed() >= Duration::from_millis(250));
    }
    // What was sent behind it runs after the answer.
    let mut input = b"AUTH wrong\r\nAUTH secret\r\n".to_vec();
    let (mut input, mut output) = (&mut input[..], Vec::new());
    let Gateway { worker, server, local, .. } = &mut gateway;
    worker.block_on(async |session| {
        let next = one.serve(server, session, local, &mut input, &mut output).await;
        assert!(matches!(next, Next::Pause(_)) && output.is_empty() && input.len() == 13);
        std::thread::sleep(Duration::from_millis(251));
        assert_eq!(one.serve(server, session, local, &mut input, &mut output).await, Next::More);
    });
    assert!(output.starts_with(b"-WRONGPASS") && output.ends_with(b"+OK\r\n"));
    assert!(gateway.server.metrics().contains("remora_gateway_auth_failures_total 4\n"));
    // Neither the slow log nor the statistics have passwords.
    gateway.send(&mut one, &["CONFIG SET slowlog-log-slower-than 0", "AUTH secret", "GET x"]);
    gateway.send(&mut one, &["AUTH secret"]);
    gateway.send(&mut one, &["HELLO 2 AUTH default secret"]);
    let log = gateway.send(&mut one, &["SLOWLOG GET -1", "INFO everything"]);
    assert!(log.contains("SET") && !log.contains("secret"), "{log}");
}

#[test]
fn a_password_file_is_only_for_its_owner() {
    let folder = std::env::temp_dir().join(format!("remora-gateway-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("password");
    fs::write(&path, "first\n").unwrap();
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    let options = ServerOptions { password: PasswordSource::File(path.clone()), ..ServerOptions::default() };
    let cluster = Cluster::embedded().open().unwrap();
    let store = Store::open_or_create(&cluster, "redis", StoreOptions::default()).unwrap();
    mode(0o644);
    assert!(matches!(Server::new(store, options.clone()), Err(PasswordError::Mode { mode: 0o644, .. })));
    mode(0o600);
    let mut gateway = Gateway::new(options);
    let mut one = gateway.connect();
    assert_eq!(gateway.send(&mut one, &["AUTH first", "RESET"]), "+OK +RESET");
    fs::write(&path, "second\n").unwrap();
    gateway.server.reload_password().unwrap();
    assert!(matches!(gateway.send_once(&mut one, &["AUTH first"]).0, Next::Pause(_)));
    let mut other = gateway.connect();
    assert_eq!(gateway.send(&mut other, &["AUTH second"]), "+OK");
    // What cannot be used changes nothing.
    fs::write(&path, "\n").unwrap();
    assert!(matches!(gateway.server.reload_password(), Err(PasswordError::Empty)));
    fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(gateway.server.reload_password(), Err(PasswordError::Read { .. })));
    assert_eq!(gateway.send(&mut other, &["RESET", "AUTH second"]), "+RESET +OK");
}

#[test]
fn connections_are_refused() {
    let gateway = Gateway::new(ServerOptions::default());
    let origin = |id, peer: &str| Origin { id, peer: peer.parse().unwrap(), local: "127.0.0.1:6379".parse().unwrap() };
    let front = Front::new(gateway.server.clone(), 1);
    assert!(front.open(&origin(1, "10.0.0.1:1")).unwrap_err().starts_with(b"-DENIED "));
    assert!(front.open(&origin(2, "[::1]:1")).is_ok() && front.open(&origin(3, "[::ffff:127.0.0.1]:1")).is_ok());

    let mut gateway = Gateway::with_password();
    let front = Front::new(gateway.server.clone(), 1);
    let mut open: Vec<_> = (0..128).map(|id| front.open(&origin(id, "10.0.0.1:1")).unwrap()).collect();
    assert!(front.open(&origin(200, "10.0.0.1:1")).is_err());
    // One that has authenticated, or has gone, leaves room for another.
    assert_eq!(gateway.send(&mut open[0], &["AUTH secret"]), "+OK");
    open.push(front.open(&origin(201, "10.0.0.1:1")).unwrap());
    assert!(front.open(&origin(202, "10.0.0.1:1")).is_err());
    open.pop();
    open.push(front.open(&origin(203, "10.0.0.1:1")).unwrap());
    assert!(!front.is_overdue(&open[0], Duration::from_secs(3600)));
    assert_eq!(gateway.send(&mut open[0], &["CONFIG SET timeout 5"]), "+OK");
    assert!(front.is_overdue(&open[0], Duration::from_secs(5)));
}

#[test]
fn clients_see_and_end_each_other() {
    let mut gateway = Gateway::new(ServerOptions::default());
    let (mut one, mut other) = (gateway.connect(), gateway.connect());
    gateway.check(
        &mut other,
        &[
            ("CLIENT SETNAME joe", "+OK"),
            ("CLIENT SETINFO LIB-NAME go-redis(,go1.26.8)", "+OK"),
            ("CLIENT SETINFO lib-ver 9.1", "+OK"),
            ("CLIENT SETINFO lib-ver '9 1'", "-ERR lib-ver cannot contain spaces, newlines or special characters."),
            ("CLIENT SETINFO foo x", "-ERR Unrecognized option 'foo'"),
            ("SELECT 3", "+OK"),
            ("MULTI", "+OK"),
            ("GET x", "+QUEUED"),
        ],
    );
    let line = gateway.send(&mut one, &["CLIENT LIST ID 2"]);
    for field in ["id=2 addr=127.0.0.1:0 laddr=127.0.0.1:0 ", " name=joe age=0 idle=0 flags=x db=3 ", " multi=1 "] {
        assert!(line.contains(field), "{line}");
    }
    assert!(line.contains("cmd=get user=default redir=-1 resp=2 lib-name=go-redis(,go1.26.8) lib-ver=9.1"), "{line}");
    let mine = gateway.send(&mut one, &["CLIENT INFO"]);
    assert!(mine.contains("id=1 ") && mine.contains("cmd=client|info") && mine.contains("flags=N"), "{mine}");
    gateway.check(
        &mut one,
        &[
            ("CLIENT LIST TYPE replica", "$0"),
            ("CLIENT LIST TYPE foo", "-ERR Unknown client type 'foo'"),
            ("CLIENT LIST ID abc", "-ERR Invalid client ID"),
            ("CLIENT KILL 1.2.3.4:5", "-ERR No such client"),
            ("CLIENT KILL ID abc", "-ERR client-id should be greater than 0"),
            ("CLIENT KILL ID 2 USER joe", "-ERR No such user 'joe'"),
            ("CLIENT KILL ID 2 TYPE replica", ":0"),
            ("CLIENT KILL ID 2 ADDR 127.0.0.1:1", ":0"),
            ("CLIENT KILL ID 1", ":0"),
            ("CLIENT KILL ID 2 LADDR 127.0.0.1:0", ":1"),
            ("CLIENT KILL ID 2", ":0"),
            ("CLIENT UNBLOCK 2", ":0"),
            ("CLIENT NO-EVICT ON", "+OK"),
            ("CLIENT NO-TOUCH maybe", "-ERR syntax error"),
            ("CLIENT TRACKING ON", "-ERR unknown subcommand 'TRACKING'. Try CLIENT HELP."),
            ("CLIENT CACHING YES", "-ERR unknown subcommand 'CACHING'. Try CLIENT HELP."),
        ],
    );
    let mut input = b"PING\r\n".to_vec();
    let (mut input, mut output) = (&mut input[..], Vec::new());
    let Gateway { worker, server, local, .. } = &mut gateway;
    let next = worker.block_on(async |session| other.serve(server, session, local, &mut input, &mut output).await);
    assert_eq!((next, output.len()), (Next::Close, 0));
    drop(other);
    assert_eq!(gateway.send(&mut one, &["CLIENT LIST ID 2"]), "$0");
    // The old form ends the connection that asks, too, after the answer.
    assert_eq!(gateway.send_once(&mut one, &["CLIENT KILL 127.0.0.1:0"]), (Next::Close, "+OK".to_owned()));
}

#[test]
fn a_pause_makes_commands_wait() {
    let mut gateway = Gateway::new(ServerOptions::default());
    let (mut one, mut other) = (gateway.connect(), gateway.connect());
    assert_eq!(gateway.send(&mut one, &["CLIENT PAUSE 60000 WRITE", "GET n"]), "+OK $-1");
    let (next, answers) = gateway.send_once(&mut other, &["GET n", "INCR n"]);
    assert!(matches!(next, Next::Pause(left) if left > Duration::from_secs(59)), "{next:?}");
    assert_eq!(answers, "$-1");
    assert!(gateway.send(&mut one, &["CLIENT LIST ID 2"]).contains("flags=b "));
    assert!(matches!(gateway.send_once(&mut other, &[]).0, Next::Pause(_)));
    assert_eq!(gateway.send(&mut one, &["CLIENT UNPAUSE"]), "+OK");
    assert_eq!(gateway.send(&mut other, &[]), ":1");
    // An EXEC waits if it writes.
    assert_eq!(gateway.send(&mut other, &["MULTI", "INCR n"]), "+OK +QUEUED");
    assert_eq!(gateway.send(&mut one, &["CLIENT PAUSE 60000 WRITE"]), "+OK");
    assert!(matches!(gateway.send_once(&mut other, &["EXEC"]).0, Next::Pause(_)));
    assert_eq!(gateway.send(&mut one, &["CLIENT UNPAUSE"]), "+OK");
    assert_eq!(gateway.send(&mut other, &[]), "*1 :2");
    // A pause of all commands holds what came behind it in the same batch.
    let begun = Instant::now();
    let mut input = b"CLIENT PAUSE 100\r\nPING\r\n".to_vec();
    let (mut input, mut output) = (&mut input[..], Vec::new());
    let Gateway { worker, server, local, .. } = &mut gateway;
    worker.block_on(async |session| {
        let next = one.serve(server, session, local, &mut input, &mut output).await;
        assert!(matches!(next, Next::Pause(_)), "{next:?}");
        std::thread::sleep(Duration::from_millis(101));
        assert_eq!(one.serve(server, session, local, &mut input, &mut output).await, Next::More);
    });
    assert!(begun.elapsed() >= Duration::from_millis(100));
    assert_eq!(output, b"+OK\r\n+PONG\r\n");
}

#[test]
fn config_sets_all_parameters_or_none() {
    let mut gateway = Gateway::new(ServerOptions::default());
    let mut one = gateway.connect();
    let failed = |name, why| format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}");
    gateway.check(
        &mut one,
        &[
            ("CONFIG SET nosuch 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'"),
            ("CONFIG SET port 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'port'"),
            ("CONFIG SET maxmemory", "-ERR wrong number of arguments for 'config|set' command"),
            ("CONFIG SET maxmemory 1 timeout", "-ERR syntax error"),
            ("CONFIG SET maxmemory abc", &failed("maxmemory", "argument must be a memory value")),
            ("CONFIG SET maxmemory 1kb TIMEOUT x", &failed("TIMEOUT", "argument couldn't be parsed into an integer")),
            ("CONFIG SET timeout 1 timeout 2", &failed("timeout", "duplicate parameter")),
            ("CONFIG SET databases 3", &failed("databases", "can't set immutable config")),
            ("CONFIG SET appendonly NO", "+OK"),
            ("CONFIG GET MaxMemory maxmemory", "*2 $9 MaxMemory $1 0"),
            ("CONFIG SET maxmemory 1kb timeout 7", "+OK"),
            ("CONFIG GET maxmemory time*", "*4 $9 maxmemory $4 1024 $7 timeout $1 7"),
            ("CONFIG SET maxmemory 0 timeout 0", "+OK"),
            ("HSET h f v", ":1"),
            ("OBJECT ENCODING h", "$8 listpack"),
            ("CONFIG SET hash-max-ziplist-value 2", "+OK"),
            ("CONFIG GET hash-max-listpack-value", "*2 $23 hash-max-listpack-value $1 2"),
            ("HSET h f long", ":0"),
            ("OBJECT ENCODING h", "$9 hashtable"),
            ("CONFIG REWRITE", "-ERR The server is running without a config file"),
        ],
    );
}

#[test]
fn the_slow_log_has_commands_and_batches() {
    let mut gateway = Gateway::new(ServerOptions { redact_keys: true, ..ServerOptions::default() });
    let mut one = gateway.connect();
    gateway.check(
        &mut one,
        &[
            ("SLOWLOG GET -2", "-ERR count should be greater than or equal to -1"),
            ("SLOWLOG LEN", ":0"),
            ("CONFIG SET slowlog-log-slower-than 0", "+OK"),
            ("SLOWLOG RESET", "+OK"),
        ],
    );
    let long = format!("SET key {}", "x".repeat(130));
    gateway.send(&mut one, &[&long]);
    gateway.send(&mut one, &["GET key", "GET other", "PING"]);
    let many = format!("MGET {}", "k ".repeat(40));
    gateway.send(&mut one, &[&many]);
    gateway.send(&mut one, &["CONFIG SET slowlog-log-slower-than -1"]);
    let log = gateway.send(&mut one, &["SLOWLOG GET -1"]);
    assert!(log.starts_with("*4 *6 :4 :"), "{log}");
    assert!(log.contains("$3 SET $10 (redacted) $146 "), "{log}");
    assert!(log.contains("x... (2 more bytes)"), "{log}");
    assert!(log.contains("*3 $3 GET $10 (redacted) $34 ... (2 more commands of the batch)"), "{log}");
    assert!(log.contains("*32 $4 MGET ") && log.contains("... (10 more arguments)"), "{log}");
    assert_eq!(gateway.send(&mut one, &["CONFIG SET slowlog-max-len 1", "SLOWLOG RESET", "SLOWLOG LEN"]), "+OK +OK :0");
}

#[test]
fn a_transaction_that_fails_is_rolled_back_if_the_client_wants_it() {
    let mut gateway = Gateway::new(ServerOptions::default());
    let mut one = gateway.connect();
    let lines = ["MULTI", "INCR n", "SELECT 2", "INCR s", "EXEC"];
    assert_eq!(gateway.send(&mut one, &["SET s x", "REMORA.ROLLBACK maybe"]), "+OK -ERR syntax error");
    assert_eq!(gateway.send(&mut one, &["REMORA.ROLLBACK ON"]), "+OK");
    let text = "-EXECABORT Transaction rolled back: command 2: ERR value is not an integer or out of range";
    let queued = "+OK +QUEUED +QUEUED +QUEUED";
    let lines_that_fail = ["SET a b", "MULTI", "INCR n", "INCR s", "SELECT 2", "EXEC", "GET n", "GET a"];
    assert_eq!(gateway.send(&mut one, &lines_that_fail), format!("+OK {queued} {text} $-1 $1 b"));
    // A command about the connection that fails counts, too.
    let lines_that_fail = ["MULTI", "INCR n", "SELECT 77", "EXEC", "GET n"];
    let text = "-EXECABORT Transaction rolled back: command 2: ERR DB index is out of range";
    assert_eq!(gateway.send(&mut one, &lines_that_fail), format!("+OK +QUEUED +QUEUED {text} $-1"));
    assert_eq!(gateway.send(&mut one, &lines), format!("{queued} *3 :1 +OK :1"));
    assert_eq!(gateway.send(&mut one, &["SELECT 0", "REMORA.ROLLBACK OFF"]), "+OK +OK");
    let error = "-ERR value is not an integer or out of range";
    assert_eq!(
        gateway.send(&mut one, &["MULTI", "INCR n", "INCR s", "EXEC"]),
        format!("+OK +QUEUED +QUEUED *2 :2 {error}")
    );
    assert_eq!(gateway.send(&mut one, &["CONFIG SET remora-rollback yes"]), "+OK");
    let mut other = gateway.connect();
    let text = "-EXECABORT Transaction rolled back: command 2: ERR value is not an integer or out of range";
    assert_eq!(
        gateway.send(&mut other, &["MULTI", "INCR n", "INCR s", "EXEC", "GET n"]),
        format!("+OK +QUEUED +QUEUED {text} $1 2")
    );
}

#[test]
fn commands_are_counted() {
    let mut gateway = Gateway::new(ServerOptions::default());
    let mut one = gateway.connect();
    gateway.send(&mut one, &["SET s x", "INCR s", "GET", "FOO", "SELECT 77", "GET s", "GET s"]);
    let stats = gateway.send(&mut one, &["INFO commandstats errorstats"]);
    for (command, calls, rejected, failed) in
        [("set", 1, 0, 0), ("incr", 1, 0, 1), ("get", 2, 1, 0), ("other", 0, 1, 0), ("select", 1, 0, 1)]
    {
        let start = format!("cmdstat_{command}:calls={calls},");
        let line = stats.split(' ').find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{start}: {stats}"));
        assert!(line.ends_with(&format!(",rejected_calls={rejected},failed_calls={failed}")), "{line}");
    }
    assert!(stats.contains("errorstat_ERR:count=4"), "{stats}");
    let metrics = gateway.server.metrics();
    for line in [
        "remora_gateway_commands_total{command=\"get\"} 2",
        "remora_gateway_command_errors_total{prefix=\"ERR\"} 4",
        "remora_gateway_batches_total{kind=\"pipeline\"} 1",
        "remora_gateway_connections{state=\"authenticated\"} 1",
        "# TYPE remora_gateway_command_seconds summary",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line}\n{metrics}");
    }
    assert_eq!(gateway.send(&mut one, &["CONFIG RESETSTAT"]), "+OK");
    let stats = gateway.send(&mut one, &["INFO commandstats"]);
    assert!(!stats.contains("cmdstat_get"), "{stats}");
    // The metrics never go back.
    assert!(gateway.server.metrics().contains("remora_gateway_commands_total{command=\"get\"} 2\n"));
}

#[test]
fn info_counts_keys() {
    let mut gateway = Gateway::new(ServerOptions::default());
    let mut one = gateway.connect();
    gateway.send(&mut one, &["SET a 1", "SET b 1 EX 100", "SELECT 3", "RPUSH l 1"]);
    // On a busy machine one INFO may count only a part.
    let mut info = gateway.send(&mut one, &["INFO"]);
    for _ in 0..100 {
        if info.contains("db0:keys=2") && info.contains("db3:") {
            break;
        }
        info = gateway.send(&mut one, &["INFO"]);
    }
    for part in ["redis_version:7.2.4 ", "role:master ", "loading:0 ", "connected_clients:1 ", "maxclients:10000 "] {
        assert!(info.contains(part), "{part} {info}");
    }
    assert!(
        info.contains("db0:keys=2,expires=1,avg_ttl=9") && info.contains("db3:keys=1,expires=0,avg_ttl=0"),
        "{info}"
    );
    assert!(!info.contains("Commandstats"));
    assert_eq!(gateway.send(&mut one, &["INFO nosuch"]), "$0");
    assert!(gateway.send(&mut one, &["INFO cluster CPU"]).contains("# CPU used_cpu_sys:"));
}

#[test]
fn clients_ask_about_commands() {
    let mut gateway = Gateway::new(ServerOptions::default());
    let mut one = gateway.connect();
    gateway.check(
        &mut one,
        &[
            ("COMMAND GETKEYS PING x", "-ERR The command has no key arguments"),
            ("COMMAND GETKEYS FOO x", "-ERR Invalid command specified"),
            ("COMMAND GETKEYS GET a b", "-ERR Invalid number of arguments specified for command"),
            ("COMMAND GETKEYS LMPOP 5 a b LEFT", "-ERR Invalid arguments specified for command"),
            ("COMMAND GETKEYS LMPOP 2 a b LEFT", "*2 $1 a $1 b"),
            ("COMMAND GETKEYSANDFLAGS SET k v GET", "*1 *2 $1 k *3 +RW +access +update"),
            ("COMMAND GETKEYSANDFLAGS COPY a b", "*2 *2 $1 a *2 +RO +access *2 $1 b *2 +OW +update"),
            ("COMMAND LIST FILTERBY PATTERN client|no*", "*2 $15 client|no-evict $15 client|no-touch"),
            ("COMMAND DOCS", "-ERR unknown subcommand 'DOCS'. Try COMMAND HELP."),
            ("COMMAND INFO foo", "*1 $-1"),
            (
                "COMMAND INFO get",
                "*1 *10 $3 get :2 *2 +readonly +fast :1 :1 :1 *3 +@read +@string +@fast *0 *1 *6 $5 flags *2 +RO +access \
                 $12 begin_search *4 $4 type $5 index $4 spec *2 $5 index :1 $9 find_keys *4 $4 type $5 range $4 spec *6 \
                 $7 lastkey :0 $7 keystep :1 $5 limit :0 *0",
            ),
            ("CLUSTER SLOTS", "-ERR This instance has cluster support disabled"),
            ("READONLY", "-ERR This instance has cluster support disabled"),
            ("WAIT 0 -1", "-ERR timeout is negative"),
            ("WAIT 0 0", ":0"),
            ("ROLE", "*3 $6 master :0 *0"),
            ("CLIENT GETREDIR", ":-1"),
            ("MEMORY MALLOC-STATS", "$45 Stats not supported for the current allocator"),
            ("MEMORY MALLOC-STATS x", "-ERR wrong number of arguments for 'memory|malloc-stats' command"),
            ("LASTSAVE x", "-ERR wrong number of arguments for 'lastsave' command"),
            ("COMMAND INFO lastsave", "*1 *10 $8 lastsave :1 *3 +loading +stale +fast :0 :0 :0 *3 +@admin +@fast +@dangerous *1 $23 nondeterministic_output *0 *0"),
            ("REMORA.RESOLVE x", "-ERR invalid transaction id"),
            ("MULTI", "+OK"),
            ("REMORA.RESOLVE 549755813889", "+QUEUED"),
            ("EXEC", "*1 -ERR REMORA.RESOLVE cannot run in MULTI"),
        ],
    );
    let answer = gateway.send(&mut one, &["REMORA.RESOLVE 549755813889"]);
    assert!(["+COMMITTED", "+ABORTED", "+FORGOTTEN", "+UNDECIDED"].contains(&answer.as_str()), "{answer}");
    for help in ["CLIENT", "COMMAND", "CONFIG", "MEMORY", "OBJECT", "SLOWLOG", "LATENCY", "ACL", "MODULE", "SCRIPT"] {
        let answer = gateway.send(&mut one, &[&format!("{help} HELP")]);
        assert!(
            answer.contains(&format!("+{help} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")),
            "{answer}"
        );
        let count: usize = answer[1..answer.find(' ').unwrap()].parse().unwrap();
        assert!(count > 3 && answer.matches('+').count() >= count, "{answer}");
    }
}
