//! A server in this process, which keeps its values in a map, and scenarios for it.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io::{BufReader, Read, Write as _};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use remora_redis::tree::{Home, PART_BYTES};
use remora_redis::{Context, Keyspace, Object, find, packed, run};
use remora_resp::{Parser, Version};

/// What runs commands, and what they are run with.
#[derive(Default)]
pub(crate) struct Server {
    keys: HashMap<(u8, Vec<u8>), Vec<u8>>,
    /// The pages of spread collections, of each of their trees. Their keys have `None` before the
    /// bytes of the roots.
    homes: HashMap<Home, [HashMap<u64, Vec<u8>>; 2]>,
    /// Packed values of more bytes are spread, if this is not 0.
    pub(crate) spread_bytes: usize,
    last_home: u64,
    /// The number of pages that commands have loaded.
    pub(crate) loaded: usize,
    /// The number of pages that commands have written.
    pub(crate) written: usize,
    pub(crate) context: Context,
    pub(crate) version: Version,
    /// The keys that the last command has changed.
    pub(crate) changed: Vec<Vec<u8>>,
}

impl Server {
    /// Runs a command. Returns the bytes of its answer.
    pub(crate) fn call(&mut self, args: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        self.changed.clear();
        let name = args[0].to_ascii_lowercase();
        match (name.as_slice(), args.get(1)) {
            (b"flushall", _) => {
                self.keys.clear();
                return b"+OK\r\n".to_vec();
            }
            (b"select", Some(number)) => {
                self.context.database = str::from_utf8(number).unwrap().parse().unwrap();
                return b"+OK\r\n".to_vec();
            }
            (b"hello", Some(number)) => {
                self.version = if *number == b"3" { Version::Resp3 } else { Version::Resp2 };
                return b"+OK\r\n".to_vec();
            }
            _ => {}
        }
        let command = find(args).and_then(|command| command.check(args).map(|()| command));
        let command = match command {
            Ok(command) => command,
            Err(error) => return [b"-", error.text(), b"\r\n"].concat(),
        };
        let names = command.keys_of(args, self.context.database);
        let stored = |(database, key): (u8, &[u8])| {
            let bytes = self.keys.get(&(database, key.to_vec()))?;
            Some(((database, key.to_vec()), unpack(bytes)))
        };
        let mut loaded: HashMap<(u8, Vec<u8>), Object> = names.iter().copied().filter_map(stored).collect();
        let context = self.context.clone();
        let mut keyspace;
        let mut runs = 0;
        loop {
            keyspace = Keyspace::default();
            for (database, key) in &names {
                keyspace.load(*database, key, |database, key| loaded.get(&(database, key.to_vec())).cloned());
            }
            keyspace.expire(self.context.now);
            self.context = context.clone();
            out.clear();
            run(command, args, &mut keyspace, &mut self.context, self.version, &mut out);
            if !keyspace.is_short() {
                break;
            }
            runs += 1;
            assert!(runs < 50, "{} still misses something", command.name);
            loaded.values_mut().for_each(|object| self.load(object));
        }
        for slot in keyspace.take().into_iter().filter(|slot| slot.is_changed) {
            self.changed.push(slot.key.to_vec());
            let name = (slot.database, slot.key.to_vec());
            match slot.object {
                Some(object) => {
                    let bytes = self.save(object);
                    self.keys.insert(name, bytes)
                }
                None => self.keys.remove(&name),
            };
        }
        let homes = self.keys.values().filter_map(|bytes| unpack(bytes).value.trees().first()?.home);
        let homes: HashSet<Home> = homes.collect();
        self.homes.retain(|home, _| homes.contains(home));
        assert_eq!(self.homes.len(), homes.len(), "every home has pages");
        out
    }

    /// Loads what the commands wanted of a spread collection.
    fn load(&mut self, object: &mut Object) {
        for (number, tree) in object.value.trees_mut().into_iter().enumerate() {
            let wanted = tree.take_wanted();
            loop {
                let missing = tree.missing(&wanted);
                if missing.is_empty() {
                    break;
                }
                for missing in missing {
                    let bytes = &self.homes[&tree.home.unwrap()][number][&missing.page];
                    assert_eq!(bytes.len().div_ceil(PART_BYTES), usize::from(missing.parts));
                    assert!(tree.supply(missing, bytes));
                    self.loaded += 1;
                }
            }
        }
    }

    /// Stores the pages of a spread collection. Returns the bytes of the key.
    fn save(&mut self, mut object: Object) -> Vec<u8> {
        if self.spread_bytes > 0 && packed::length(&object) > self.spread_bytes && object.value.can_be_spread() {
            object.value.spread(PAGE_BYTES);
        }
        let trees = object.value.trees();
        if trees.is_empty() {
            return [&[0], &store(&object)[..]].concat();
        }
        let home = trees[0].home.unwrap_or_else(|| {
            self.last_home += 1;
            Home { id: self.last_home, index: 0 }
        });
        for (tree, pages) in trees.iter().zip(self.homes.entry(home).or_default()) {
            for change in tree.changes() {
                self.written += 1;
                let stored = pages.get(&change.page).map_or(0, |bytes| bytes.len().div_ceil(PART_BYTES));
                assert_eq!(stored, usize::from(change.stored));
                match change.bytes.is_empty() {
                    true => pages.remove(&change.page),
                    false => pages.insert(change.page, change.bytes),
                };
            }
        }
        let mut bytes = vec![1];
        packed::pack_roots(&object, home, &mut bytes);
        // Whole, it is a tree in order, and as long as is counted.
        let mut whole = unpack(&bytes);
        let (loaded, length) = (self.loaded, packed::length(&whole));
        for tree in whole.value.trees() {
            tree.elements(0..tree.len());
        }
        self.load(&mut whole);
        self.loaded = loaded;
        for tree in whole.value.trees() {
            tree.check().unwrap();
        }
        assert_eq!(length, packed::length(&Object { value: whole.value.packed(), ..whole }));
        bytes
    }

    /// Returns the value of a key of the selected database, packed.
    pub(crate) fn object(&mut self, key: &[u8]) -> Option<Object> {
        let bytes = self.keys.get(&(self.context.database, key.to_vec()))?;
        let mut object = unpack(bytes);
        let loaded = self.loaded;
        for tree in object.value.trees() {
            tree.elements(0..tree.len());
        }
        self.load(&mut object);
        self.loaded = loaded;
        Some(object.copy())
    }

    /// Sets when a key of the selected database expires.
    pub(crate) fn set_expiry(&mut self, key: &[u8], expiry: u64) {
        let mut object = self.object(key).expect("the key is there");
        object.expiry = Some(expiry);
        let bytes = self.save(object);
        self.keys.insert((self.context.database, key.to_vec()), bytes);
    }
}

/// Runs each command behind those of `before`, and compares whether it changes anything.
#[track_caller]
pub(crate) fn check_changes(before: &[&str], changing: &[&str], others: &[&str]) {
    let commands = changing.iter().map(|command| (command, true)).chain(others.iter().map(|command| (command, false)));
    for (command, changes) in commands {
        let mut server = Server::default();
        for command in before.iter().chain([command]) {
            server.call(&command.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        }
        assert_eq!(!server.changed.is_empty(), changes, "{command}: {:?}", server.changed);
    }
}

/// Returns the words of a command, as in an inline command.
pub(crate) fn words(command: &str) -> Vec<Vec<u8>> {
    let mut bytes = [command.as_bytes(), b"\r\n"].concat();
    let mut rest = &mut bytes[..];
    let mut parser = Parser::new();
    let parsed = parser.next(&mut rest).unwrap().unwrap();
    parsed.arguments().map(<[u8]>::to_vec).collect()
}

/// Runs commands, one a line. Returns the keys that the last one has changed.
pub(crate) fn changes(commands: &str) -> Vec<String> {
    let mut server = Server::default();
    server.context.now = now();
    for command in commands.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let args = words(command);
        server.call(&args.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    server.changed.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

/// Bytes of the pages of spread collections.
const PAGE_BYTES: usize = 64;

/// Reads the bytes of a key.
fn unpack(bytes: &[u8]) -> Object {
    match bytes.split_first() {
        Some((0, packed)) => packed::unpack(packed).expect("it was packed"),
        Some((_, roots)) => packed::unpack_roots(roots, PAGE_BYTES).expect("it was packed"),
        None => unreachable!("no value is empty"),
    }
}

/// Packs a value, and checks that it can be read again.
fn store(object: &Object) -> Vec<u8> {
    let mut bytes = Vec::new();
    packed::pack(object, &mut bytes);
    assert_eq!(packed::unpack(&bytes).as_ref(), Ok(object));
    bytes
}

/// Runs the commands of a scenario, and compares their answers.
#[track_caller]
pub(crate) fn check(scenario: &str) {
    let mut real = std::env::var("REMORA_REDIS").ok().map(|address| Real::connect(&address));
    let mut server = Server::default();
    server.context.now = now();
    let mut lines = scenario.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    while let Some(line) = lines.next() {
        let (is_compared, command) = match line.strip_prefix(">72 ") {
            // Redis 7.0, with which scenarios are compared, answers differently.
            Some(command) => (false, command),
            None => (true, line.strip_prefix("> ").unwrap_or_else(|| panic!("no command: {line}"))),
        };
        let mut wanted = String::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with("> ") && !line.starts_with(">72 ")) {
            wanted += if wanted.is_empty() { "" } else { " " };
            wanted += line;
        }
        let args = words(command);
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let found = text(&server.call(&args));
        assert_eq!(found, wanted, "{command}");
        if let Some(real) = &mut real
            && is_compared
        {
            let real = text(&real.call(&args));
            assert!(
                real == found || command.starts_with("HELLO"),
                "{command}: redis-server says {real}, and not {found}"
            );
        }
    }
}

/// Returns the time, in milliseconds since 1970.
pub(crate) fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A connection to a `redis-server`.
pub(crate) struct Real {
    stream: BufReader<TcpStream>,
    /// One test at a time uses the server.
    _turn: Option<MutexGuard<'static, ()>>,
}

static TURN: Mutex<()> = Mutex::new(());

impl Real {
    /// Waits for the turn of this test, connects, and deletes all keys.
    pub(crate) fn connect(address: &str) -> Real {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut real = Real { _turn: Some(turn), ..Real::beside(address) };
        real.call(&[b"FLUSHALL"]);
        real
    }

    /// Connects a test that has its turn once more.
    pub(crate) fn beside(address: &str) -> Real {
        let stream = BufReader::new(TcpStream::connect(address).expect("REMORA_REDIS is where a redis-server listens"));
        Real { stream, _turn: None }
    }

    /// Runs a command. Returns the bytes of its answer.
    pub(crate) fn call(&mut self, args: &[&[u8]]) -> Vec<u8> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for argument in args {
            request.extend(format!("${}\r\n", argument.len()).into_bytes());
            request.extend([argument, b"\r\n" as &[u8]].concat());
        }
        self.stream.get_mut().write_all(&request).unwrap();
        let mut answer = Vec::new();
        self.read(&mut answer);
        answer
    }

    fn read(&mut self, answer: &mut Vec<u8>) {
        let start = answer.len();
        while !answer[start..].ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        let line = str::from_utf8(&answer[start + 1..answer.len() - 2]).unwrap_or_default();
        let count = line.parse::<i64>().unwrap_or(0);
        match answer[start] {
            b'$' | b'=' if count >= 0 => {
                let mut bulk = vec![0; count as usize + 2];
                self.stream.read_exact(&mut bulk).unwrap();
                answer.extend(bulk);
            }
            b'*' | b'~' | b'>' => (0..count).for_each(|_| self.read(answer)),
            b'%' => (0..2 * count).for_each(|_| self.read(answer)),
            _ => {}
        }
    }
}

/// Returns an answer as text: `OK`, `-ERR ...`, `1`, `"bulk"`, `nil`, `nil-array`, `[1, 2]`,
/// `{"key": 1}`, `~["member"]`, `,1.5`, `#t`.
pub(crate) fn text(mut answer: &[u8]) -> String {
    let mut text = String::new();
    write_text(&mut answer, &mut text);
    assert!(answer.is_empty(), "more than one answer: {text}, then {}", String::from_utf8_lossy(answer));
    text
}

fn write_text(answer: &mut &[u8], text: &mut String) {
    let end = answer.windows(2).position(|two| two == b"\r\n").expect("a line ends");
    let (mark, line) = (answer[0], String::from_utf8_lossy(&answer[1..end]).into_owned());
    *answer = &answer[end + 2..];
    let count = line.parse::<i64>().unwrap_or(0);
    match mark {
        b'-' => _ = write!(text, "-{line}"),
        b'$' if count < 0 => text.push_str("nil"),
        b'*' if count < 0 => text.push_str("nil-array"),
        b'_' => text.push_str("nil"),
        b'$' | b'=' => {
            let (bulk, rest) = answer.split_at(count as usize);
            *answer = &rest[2..];
            let escaped: String =
                bulk.iter().flat_map(|byte| std::ascii::escape_default(*byte)).map(char::from).collect();
            _ = write!(text, "\"{escaped}\"");
        }
        b'*' => list(answer, text, count, ("[", "]")),
        b'~' => list(answer, text, count, ("~[", "]")),
        b'>' => list(answer, text, count, (">[", "]")),
        b'%' => {
            text.push('{');
            for pair in 0..count {
                text.push_str(if pair > 0 { ", " } else { "" });
                write_text(answer, text);
                text.push_str(": ");
                write_text(answer, text);
            }
            text.push('}');
        }
        b',' => _ = write!(text, ",{line}"),
        b'#' => _ = write!(text, "#{line}"),
        _ => text.push_str(&line),
    }
}

fn list(answer: &mut &[u8], text: &mut String, count: i64, (open, close): (&str, &str)) {
    text.push_str(open);
    for place in 0..count {
        text.push_str(if place > 0 { ", " } else { "" });
        write_text(answer, text);
    }
    text.push_str(close);
}
