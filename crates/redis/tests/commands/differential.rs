//! Random commands, of which each is run here and by a `redis-server`.

use remora_redis::{Context, Limits, Object, Value, find};

use super::server::{Real, Server, now, text};

/// Random choices, which a seed repeats.
pub(crate) struct Random(Context);

impl Random {
    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.random_below(bound)
    }

    /// Returns one of these.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Returns one of these words.
    pub(crate) fn one_of(&mut self, words: &str) -> Vec<u8> {
        let words: Vec<_> = words.split_ascii_whitespace().collect();
        words[self.below(words.len())].as_bytes().to_vec()
    }
}

/// Returns a command of one of these forms. A word of a form stands for itself, or for one of its
/// choices. Every tenth command is damaged.
pub(crate) fn fill(random: &mut Random, forms: &[&str], choices: &[(&str, &[&str])]) -> Vec<Vec<u8>> {
    let words = random.pick(forms).split(' ');
    let mut args: Vec<&str> = words
        .map(|word| match choices.iter().find(|(name, _)| *name == word) {
            Some((_, choices)) => random.pick(choices),
            None => word,
        })
        .collect();
    let (place, other) = (1 + random.below(args.len()), 1 + random.below(args.len()));
    if place < args.len() && other < args.len() {
        match random.below(30) {
            0 => _ = args.remove(place),
            1 => args.insert(place, args[other]),
            2 => args[place] = args[other],
            _ => {}
        }
    }
    args.into_iter().map(|arg| arg.as_bytes().to_vec()).collect()
}

/// How many keys of a command are watched.
const WATCHERS: usize = 4;

/// Runs `count` random commands here and by the `redis-server` that `REMORA_REDIS` names. Compares:
///
/// 1. their answers, after `normalize` has made equal what may differ,
/// 2. the types and the encodings of their keys,
/// 3. which keys `WATCH` sees as changed.
///
/// With even seeds few elements give collections another encoding. Of each four seeds, two speak
/// RESP3. Of each eight, four spread collections of a few elements over pages.
pub(crate) fn compare(
    seed: u64,
    count: usize,
    mut generate: impl FnMut(&mut Random) -> Vec<Vec<u8>>,
    normalize: impl Fn(&[Vec<u8>], String) -> String,
) {
    let address = std::env::var("REMORA_REDIS").expect("REMORA_REDIS names a redis-server");
    let (mut real, mut server) = (Real::connect(&address), Server::default());
    let mut watchers: Vec<_> = (0..WATCHERS).map(|_| Real::beside(&address)).collect();
    if seed % 4 >= 2 {
        real.call(&[b"HELLO", b"3"]);
        server.call(&[b"HELLO", b"3"]);
    }
    let _restored = Restored(Real::beside(&address));
    server.spread_bytes = if seed % 8 >= 4 { 40 } else { 0 };
    let limits = if seed.is_multiple_of(2) { small_limits() } else { Limits::default() };
    set_limits(&mut real, &limits);
    (server.context.now, server.context.limits) = (now(), limits);
    let mut random = Random(Context { random: seed.wrapping_mul(2) + 1, ..Context::default() });
    for place in 0..count {
        let command = generate(&mut random);
        let args: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let shown = format!("seed {seed}, command {place}: {}", args.join(&b' ').escape_ascii());
        server.context.now = now();
        let database = server.context.database;
        let mut keys = match find(&args) {
            Ok(found) if found.check(&args).is_ok() => found.keys_of(&args, database),
            _ => Default::default(),
        };
        // Which key of two databases has changed is not told, and neither is a key that was absent
        // and is absent again.
        let is_watched = keys.iter().all(|(other, _)| *other == database);
        keys.retain(|(other, _)| *other == database);
        keys.sort_unstable();
        keys.dedup();
        let number = database.to_string();
        let was_there: Vec<bool> = keys.iter().map(|(_, key)| server.object(key).is_some()).collect();
        for ((_, key), watcher) in keys.iter().zip(&mut watchers) {
            watcher.call(&[b"SELECT", number.as_bytes()]);
            watcher.call(&[b"WATCH", key]);
        }
        let is_spread = server.spread_bytes > 0;
        let [found, wanted] = [server.call(&args), real.call(&args)].map(|answer| {
            let answer = normalize(&command, text(&answer));
            if is_spread { without_order(&args, answer) } else { answer }
        });
        assert_eq!(found, wanted, "{shown}");
        for (((_, key), was_there), watcher) in keys.iter().zip(was_there).zip(&mut watchers) {
            watcher.call(&[b"MULTI"]);
            let is_changed = text(&watcher.call(&[b"EXEC"])) == "nil-array";
            if !is_watched || !was_there && server.object(key).is_none() {
                continue;
            }
            assert_eq!(server.changed.iter().any(|other| other == key), is_changed, "{shown}: what is changed");
        }
        for (_, key) in keys {
            let object = server.object(key);
            let kind = object.as_ref().map_or("none", |object| object.value.type_name());
            assert_eq!(kind, text(&real.call(&[b"TYPE", key])), "{shown}");
            if let Some(encoding) = object.as_ref().and_then(encoding) {
                let wanted = text(&real.call(&[b"OBJECT", b"ENCODING", key]));
                assert_eq!(format!("\"{encoding}\""), wanted, "{shown}");
            }
        }
    }
}

/// Restores the limits of the server in the end, even if the test fails.
struct Restored(Real);

impl Drop for Restored {
    fn drop(&mut self) {
        set_limits(&mut self.0, &Limits::default());
    }
}

/// Returns limits that few elements reach.
fn small_limits() -> Limits {
    Limits {
        hash_entries: 5,
        hash_value: 20,
        intset_entries: 4,
        sorted_set_entries: 5,
        sorted_set_value: 20,
        ..Limits::default()
    }
}

fn set_limits(real: &mut Real, limits: &Limits) {
    for (name, value) in [
        ("hash-max-listpack-entries", limits.hash_entries),
        ("hash-max-listpack-value", limits.hash_value),
        ("set-max-intset-entries", limits.intset_entries),
        ("zset-max-listpack-entries", limits.sorted_set_entries),
        ("zset-max-listpack-value", limits.sorted_set_value),
    ] {
        assert_eq!(real.call(&[b"CONFIG", b"SET", name.as_bytes(), value.to_string().as_bytes()]), b"+OK\r\n");
    }
}

/// Returns the encoding that Redis 7.0 has for an object, unless it has other rules than 7.2.
fn encoding(object: &Object) -> Option<&'static str> {
    match (&object.value, object.encoding.name()) {
        (Value::List(_), _) => None,
        (Value::Set(_), "listpack") => Some("hashtable"),
        (_, name) => Some(name),
    }
}

/// Makes answers equal whose order, or whose number of elements, is another one if a hash or a set
/// is spread.
fn without_order(args: &[&[u8]], answer: String) -> String {
    match args[0].to_ascii_uppercase().as_slice() {
        b"HGETALL" | b"HKEYS" | b"HVALS" | b"SMEMBERS" | b"SINTER" | b"SUNION" | b"SDIFF" => sorted(&answer),
        b"HSCAN" | b"SSCAN" | b"ZSCAN" if !answer.starts_with('-') => String::new(),
        _ => answer,
    }
}

/// Sorts the elements of an answer.
pub(crate) fn sorted(answer: &str) -> String {
    let mut elements: Vec<_> =
        answer.split(", ").map(|element| element.trim_matches(['~', '[', ']', '{', '}'])).collect();
    elements.sort_unstable();
    elements.join(" ")
}
