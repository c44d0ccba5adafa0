//! Random commands, of which each is run here and by a `redis-server`.

use remora_redis::{Context, Object, Value, find};

use super::server::{Real, Server, now, text};

/// Random choices, which a seed repeats.
pub(crate) struct Random(Context);

impl Random {
    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.random_below(bound)
    }

    /// Returns one of these.
    pub(crate) fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
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

/// Runs `count` random commands, and compares their answers, and the types and the encodings of
/// their keys. `normalize` makes answers equal that may differ. Odd seeds speak RESP3.
pub(crate) fn compare(
    seed: u64,
    count: usize,
    mut generate: impl FnMut(&mut Random) -> Vec<Vec<u8>>,
    normalize: impl Fn(&[Vec<u8>], String) -> String,
) {
    let address = std::env::var("REMORA_REDIS").expect("REMORA_REDIS is where a redis-server listens");
    let (mut real, mut server) = (Real::connect(&address), Server::default());
    server.context.now = now();
    if seed % 2 == 1 {
        real.call(&[b"HELLO", b"3"]);
        server.call(&[b"HELLO", b"3"]);
    }
    let mut random = Random(Context { random: seed.wrapping_mul(2) + 1, ..Context::default() });
    for place in 0..count {
        let command = generate(&mut random);
        let args: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let shown = || format!("seed {seed}, command {place}: {}", args.join(&b' ').escape_ascii());
        let [found, wanted] = [server.call(&args), real.call(&args)].map(|answer| normalize(&command, text(&answer)));
        assert_eq!(found, wanted, "{}", shown());
        for (_, key) in find(&args).map_or(Vec::new(), |found| found.keys_of(&args, 0)) {
            let object = server.object(key);
            let kind = object.as_ref().map_or("none", |object| object.value.type_name());
            assert_eq!(text(&real.call(&[b"TYPE", key])), kind, "{}", shown());
            if let Some(encoding) = object.as_ref().and_then(encoding) {
                let wanted = text(&real.call(&[b"OBJECT", b"ENCODING", key]));
                assert_eq!(wanted, format!("\"{encoding}\""), "{}", shown());
            }
        }
    }
}

/// Returns the encoding of an object, unless Redis 7.0 has another one than 7.2.
fn encoding(object: &Object) -> Option<&'static str> {
    let is_compared = match &object.value {
        Value::String(_) | Value::Hash(_) | Value::SortedSet(_) => true,
        Value::List(_) | Value::Set(_) => false,
    };
    is_compared.then(|| object.encoding.name())
}
