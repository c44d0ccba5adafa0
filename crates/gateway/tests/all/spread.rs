//! Collections that are spread over pages: the answers beside those of packed ones, what a command
//! costs, and what stays when collections are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{iter, thread};

use remora::observe::{Observer, Outcome, TransactionEvent};
use remora::{Cluster, Worker, WorkerOptions};
use remora_gateway::net::Next;
use remora_gateway::{Connection, Local, Server, ServerOptions, Store, StoreOptions, Sweeper};

/// A gateway on a cluster in this process.
struct Gateway {
    store: Store,
    worker: Worker,
    server: Server,
    local: Local,
    connection: Connection,
}

impl Gateway {
    fn new(cluster: &Cluster, name: &str, options: StoreOptions) -> Gateway {
        Gateway::with(cluster, name, options, WorkerOptions::default())
    }

    fn with(cluster: &Cluster, name: &str, options: StoreOptions, of_worker: WorkerOptions) -> Gateway {
        let store = Store::open_or_create(cluster, name, options).unwrap();
        let worker = cluster.worker(of_worker).unwrap();
        let server = Server::new(store.clone(), ServerOptions::default()).unwrap();
        let local = Local::new(&server, 1);
        let connection = Connection::new(1, &server);
        Gateway { store, worker, server, local, connection }
    }

    /// Sends commands at once, each with its arguments. Returns the answers as text.
    fn send(&mut self, commands: &[Vec<String>]) -> String {
        let mut input = Vec::new();
        for command in commands {
            input.extend(format!("*{}\r\n", command.len()).into_bytes());
            command.iter().for_each(|word| input.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes()));
        }
        let mut input = &mut input[..];
        let (mut output, Gateway { worker, server, local, connection, .. }) = (Vec::new(), self);
        let next =
            worker.block_on(async |session| connection.serve(server, session, local, &mut input, &mut output).await);
        assert_eq!((next, input.len()), (Next::More, 0));
        String::from_utf8(output).unwrap().replace("\r\n", " ").trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(&[words(line)])
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Options by which collections are spread early, over small pages.
fn early() -> StoreOptions {
    StoreOptions { spread_bytes: 60, page_bytes: 72, ..StoreOptions::default() }
}

/// Random numbers, which a seed repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }

    /// Returns a command, whose words in capitals are drawn.
    fn command(&mut self) -> Vec<String> {
        const FORMS: &str = "HSET h FIELD WORD FIELD WORD FIELD WORD|HSET h FIELD WORD|HDEL h FIELD FIELD|HGET h FIELD|\
            HMGET h FIELD FIELD|HLEN h|HGETALL h|HINCRBY h n 3|HSETNX h FIELD WORD|HSTRLEN h FIELD|HEXISTS h FIELD|\
            SADD s FIELD FIELD FIELD|SADD t FIELD|SREM s FIELD|SISMEMBER s FIELD|SCARD s|SMEMBERS s|SINTER s t|\
            SUNIONSTORE t s t|SMOVE s t FIELD|SDIFF s t|\
            RPUSH l WORD WORD WORD WORD|LPUSH l WORD|RPUSH m WORD|LPOP l|RPOP l|LPOP l 3|LINDEX l PLACE|\
            LSET l PLACE WORD|LRANGE l PLACE PLACE|LMOVE l m LEFT RIGHT|RPOPLPUSH m l|LLEN l|LINSERT l BEFORE FIELD WORD|\
            LREM l 1 FIELD|LTRIM l 0 20|LPOS l FIELD|\
            ZADD z NUMBER FIELD NUMBER FIELD NUMBER FIELD|ZADD z NUMBER FIELD|ZREM z FIELD|ZSCORE z FIELD|\
            ZINCRBY z 2 FIELD|ZRANGE z PLACE PLACE WITHSCORES|ZRANGEBYSCORE z NUMBER NUMBER|ZCOUNT z NUMBER NUMBER|\
            ZRANK z FIELD|ZPOPMIN z|ZPOPMAX z 2|ZREMRANGEBYSCORE z NUMBER NUMBER|ZCARD z|ZREVRANGE z 0 3|\
            ZUNIONSTORE y 2 z s|DEL NAME|RENAME NAME NAME|COPY NAME NAME REPLACE|EXPIRE NAME 100|PERSIST NAME|\
            TYPE NAME|GET NAME|SET m WORD|GETDEL m|MEMORY USAGE NAME|OBJECT ENCODING NAME|HSET h FIELD LONG|HDEL h n";
        let forms: Vec<&str> = FORMS.split('|').collect();
        let form = forms[self.below(forms.len() as u64) as usize];
        form.split(' ')
            .map(|word| match word {
                "FIELD" => format!("f{}", self.below(40)),
                "WORD" => {
                    iter::repeat_n("f", self.below(12) as usize + 1).collect::<String>() + &self.below(40).to_string()
                }
                "LONG" if self.below(8) == 0 => "x".repeat(8_200 + self.below(2) as usize),
                "LONG" => "x".repeat(self.below(2_500) as usize),
                "PLACE" => (self.below(60) as i64 - 30).to_string(),
                "NUMBER" => (self.below(50)).to_string(),
                "NAME" => ["h", "s", "t", "l", "m", "z", "y"][self.below(7) as usize].to_owned(),
                word => word.to_owned(),
            })
            .collect()
    }
}

/// Returns an answer without what differs if hashes and sets have another order.
fn without_order(answer: &str) -> Vec<&str> {
    let mut words: Vec<&str> = answer.split(' ').collect();
    words.sort_unstable();
    words
}

#[test]
fn spread_collections_are_answered_as_packed_ones() {
    let cluster = Cluster::embedded().node_bytes(64 << 20).open().unwrap();
    let mut packed =
        Gateway::new(&cluster, "packed", StoreOptions { spread_bytes: usize::MAX, ..StoreOptions::default() });
    let mut spread = Gateway::new(&cluster, "spread", early());
    let (mut random, mut most) = (Random(7), 0);
    for place in 0..1500 {
        let batch: Vec<Vec<String>> = (0..random.below(4) + 1).map(|_| random.command()).collect();
        let [found, wanted] = [spread.send(&batch), packed.send(&batch)];
        assert_eq!(without_order(&found), without_order(&wanted), "{place}: {batch:?}");
        if place % 50 == 0 {
            most = cluster.count_rows("spread/pages").unwrap().max(most);
        }
    }
    assert!(most > 20, "{most} pages");
    assert_eq!(cluster.count_rows("packed/pages").unwrap(), 0);
    assert_eq!(spread.ask("FLUSHALL"), "+OK");
    for table in ["spread", "spread/pages", "spread/tombstones", "spread/large/chunks"] {
        assert_eq!(cluster.count_rows(table).unwrap(), 0, "{table}");
    }
}

/// Counts the round trips of transactions that have committed.
#[derive(Clone, Default)]
struct Costs(Arc<AtomicU64>);

impl Observer for Costs {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        if matches!(event.outcome, Outcome::Committed) {
            self.0.fetch_add(event.cost.round_trips, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_few_elements_of_a_large_collection_take_a_few_round_trips() {
    let cluster = Cluster::embedded().node_bytes(128 << 20).open().unwrap();
    let mut gateway = Gateway::new(&cluster, "redis", StoreOptions::default());
    const ELEMENTS: usize = 100_000;
    let numbers: Vec<String> = (0..ELEMENTS).map(|number| format!("element-{number}")).collect();
    let command = |head: &str, all: &mut dyn Iterator<Item = String>| -> Vec<String> {
        head.split(' ').map(str::to_owned).chain(all).collect()
    };
    let pairs = numbers.iter().flat_map(|number| [number.clone(), "value".to_owned()]);
    gateway.send(&[command("HSET h", &mut pairs.clone())]);
    gateway.send(&[command("RPUSH l", &mut numbers.iter().cloned())]);
    let costs = Costs::default();
    gateway.worker.sessions().iter_mut().for_each(|session| {
        session.observe(Some(Box::new(costs.clone())));
    });
    let mut trips = |line: &str, answer: &str| {
        costs.0.store(0, Ordering::Relaxed);
        assert_eq!(gateway.ask(line), answer);
        costs.0.load(Ordering::Relaxed)
    };
    // One for the key's record, one for each of three levels of pages, and one that validates. The
    // default protocol commits what it has validated without another. The locations of most records
    // are known after the first time. An element that needs a new page, or a location that is not
    // known, costs up to four more.
    let lines = [
        ("HGET h element-77", "$5 value", 5),
        ("HSET h element-78 other", ":0", 5),
        ("HLEN h", ":100000", 1),
        ("HSET h element-new other", ":1", 5),
        ("HDEL h element-new", ":1", 5),
        ("LPUSH l first", ":100001", 5),
        ("LPOP l", "$5 first", 5),
        ("RPUSH l last", ":100001", 5),
        ("RPOP l", "$4 last", 5),
        ("LINDEX l 50000", "$13 element-50000", 5),
    ];
    lines.iter().for_each(|(line, answer, _)| _ = trips(line, answer));
    for (line, answer, expected) in lines {
        let found = trips(line, answer);
        assert!((expected..=expected + 4).contains(&found), "{line}: {found} round trips");
    }
    assert_eq!(gateway.ask("RPOP l"), "$13 element-99999");
    // More pages than one transaction reads, or writes.
    let all = gateway.ask("LRANGE l 0 -1");
    assert!(all.starts_with("*99999 $9 element-0 $9 element-1 ") && all.ends_with(" $13 element-99998"));
    assert_eq!(gateway.ask("LREM l 0 element-70000"), ":1");
    assert_eq!(gateway.ask("LINDEX l 70000"), "$13 element-70001");
    assert_eq!(gateway.ask("LTRIM l 50000 -2"), "+OK");
    assert_eq!(gateway.ask("LRANGE l 0 0"), "*1 $13 element-50000");
    let fields = |word: &str| (0..200).map(|field| format!(" element-{field}{word}")).collect::<String>();
    assert_eq!(gateway.ask(&format!("HSET h{}", fields(" again"))), ":0");
    assert_eq!(gateway.ask("HGET h element-199"), "$5 again");
    assert_eq!(gateway.ask(&format!("HDEL h{}", fields(""))), ":200");
    let sent: Vec<Vec<String>> = (0..64).map(|number| words(&format!("HSET h new-{number} 1"))).collect();
    assert_eq!(gateway.send(&sent), vec![":1"; 64].join(" "));
    assert_eq!(gateway.ask("HLEN h"), ":99864");
    // With a long log, as gateways have, a command changes hundreds of pages where they are.
    let mut long =
        Gateway::with(&cluster, "redis", StoreOptions::default(), WorkerOptions::default().log_bytes(1 << 20));
    long.worker.sessions().iter_mut().for_each(|session| _ = session.observe(Some(Box::new(costs.clone()))));
    costs.0.store(0, Ordering::Relaxed);
    let fields = |of: std::ops::Range<u64>| of.map(|field| format!(" field-{field} value")).collect::<String>();
    assert_eq!(long.ask(&format!("HSET h{}", fields(0..80))), ":80");
    let found = costs.0.load(Ordering::Relaxed);
    assert!(found < 50, "{found} round trips");
    assert_eq!(long.ask(&format!("HSET h{}", fields(40..840))), ":760");
    assert_eq!(long.ask("HLEN h"), ":100704");
    assert_eq!(gateway.ask("DEL h l"), ":2");
    assert_eq!(cluster.count_rows("redis/pages").unwrap() + cluster.count_rows("redis/tombstones").unwrap(), 0);
}

#[test]
fn what_no_key_has_is_swept() {
    let cluster = Cluster::embedded().node_bytes(64 << 20).open().unwrap();
    let mut gateway = Gateway::new(&cluster, "redis", early());
    let members: Vec<String> = (0..2_000).map(|number| format!("m{number}")).collect();
    let add: Vec<String> = words("SADD s").into_iter().chain(members).collect();
    assert_eq!(gateway.send(&[add]), ":2000");
    assert!(cluster.count_rows("redis/pages").unwrap() > 300);
    assert_eq!(gateway.ask("PEXPIRE s 1"), ":1");
    thread::sleep(Duration::from_millis(2));
    let _sweeper = Sweeper::start(&cluster, &gateway.store, None).unwrap();
    let began = Instant::now();
    while cluster.count_rows("redis/pages").unwrap() + cluster.count_rows("redis/tombstones").unwrap() > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "pages of a key that has expired are still there");
        thread::sleep(Duration::from_millis(10));
    }
}
