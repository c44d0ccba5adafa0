//! Random commands, whose answers are compared with those of a `redis-server`.

use remora_redis::find;

use super::server::{Real, Server, now, text};

/// Random numbers from a seed.
pub(crate) struct Random(u64);

impl Random {
    /// Returns a random number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(word ^ word >> 31) * bound as u128) >> 64) as usize
    }

    /// Returns one of several values.
    pub(crate) fn pick<'a, T: ?Sized>(&mut self, values: &[&'a T]) -> &'a T {
        values[self.below(values.len())]
    }
}

/// How many keys of a command are watched.
const WATCHERS: usize = 4;

/// Runs random commands here and at the server that `REMORA_REDIS` names. Compares:
///
/// 1. their answers, after `normalize`, which is given the command and the answer as text,
/// 2. which keys that were there `WATCH` sees as changed,
/// 3. the types and the encodings of the command's keys.
///
/// Both begin anew after every 500 commands, with RESP2 and RESP3 in turns.
#[track_caller]
pub(crate) fn compare(
    seed: u64,
    count: usize,
    mut generate: impl FnMut(&mut Random) -> Vec<Vec<u8>>,
    normalize: impl Fn(&[Vec<u8>], String) -> String,
) {
    let address = std::env::var("REMORA_REDIS").expect("REMORA_REDIS is where a redis-server listens");
    let (mut real, mut server, mut random) = (Real::connect(&address), Server::default(), Random(seed));
    let mut watchers: Vec<_> = (0..WATCHERS).map(|_| Real::beside(&address)).collect();
    let mut history = Vec::new();
    for place in 0..count {
        if place % 500 == 0 {
            let version: &[u8] = if place % 1000 == 0 { b"2" } else { b"3" };
            for args in [&[b"FLUSHALL" as &[u8]][..], &[b"HELLO", version], &[b"SELECT", b"0"]] {
                real.call(args);
                server.call(args);
            }
            history.clear();
        }
        let command = generate(&mut random);
        let args: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        history.push(args.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" "));
        server.context.now = now();
        let database = server.context.database;
        let keys = match find(&args) {
            Ok(found) if found.check(&args).is_ok() => found.keys_of(&args, database),
            _ => Vec::new(),
        };
        // What `Server::changed` names has no database.
        let is_watched = keys.iter().all(|(other, _)| *other == database);
        let mut watched: Vec<_> = keys.iter().take(WATCHERS).map(|(_, key)| *key).filter(|_| is_watched).collect();
        watched.retain(|key| text(&real.call(&[b"EXISTS", key])) == "1");
        for (key, watcher) in watched.iter().zip(&mut watchers) {
            watcher.call(&[b"SELECT", database.to_string().as_bytes()]);
            watcher.call(&[b"WATCH", key]);
        }
        let [ours, theirs] = [server.call(&args), real.call(&args)].map(|bytes| normalize(&command, text(&bytes)));
        let said = |history: &[String]| history[history.len().saturating_sub(12)..].join("\n");
        assert_eq!(ours, theirs, "seed {seed}, ours and redis-server's, after\n{}", said(&history));
        for (key, watcher) in watched.iter().zip(&mut watchers) {
            watcher.call(&[b"MULTI"]);
            let is_changed = text(&watcher.call(&[b"EXEC"])) == "nil-array";
            let ours = server.changed.iter().any(|other| other == key);
            assert_eq!(
                ours,
                is_changed,
                "seed {seed}, whether {} is changed, after\n{}",
                key.escape_ascii(),
                said(&history)
            );
        }
        for (_, key) in keys.into_iter().filter(|(other, _)| *other == database) {
            let mut ask = |args: &[&[u8]]| [server.call(args), real.call(args)].map(|bytes| text(&bytes));
            let types = ask(&[b"TYPE", key]);
            let encodings = ask(&[b"OBJECT", b"ENCODING", key]).map(|name| encoding(&types[0], name));
            assert_eq!(
                types[0],
                types[1],
                "seed {seed}, the type of {}, after\n{}",
                key.escape_ascii(),
                said(&history)
            );
            let [ours, theirs] = encodings;
            assert_eq!(ours, theirs, "seed {seed}, the encoding of {}, after\n{}", key.escape_ascii(), said(&history));
        }
    }
    println!("seed {seed}: {count} commands");
}

/// Returns an encoding as Redis 7.0 names it: that of a small set of any members is another one in
/// 7.2, and that of a small list, too.
fn encoding(kind: &str, name: String) -> String {
    match (kind, name.as_str()) {
        ("set", "\"listpack\"") => "\"hashtable\"".into(),
        ("list", "\"listpack\"") => "\"quicklist\"".into(),
        _ => name,
    }
}
