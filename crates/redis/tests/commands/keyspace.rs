//! The values that a batch of commands uses, and their encodings.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use remora_redis::{Context, Encoding, Keyspace, Limits, List, Object, SortedSet, Value, find, run};
use remora_resp::Version;

/// Runs a command one second after 1970. Returns its answer.
fn call(keys: &mut Keyspace, args: &[&[u8]]) -> String {
    let (mut context, mut out) = (Context { now: 1000, ..Context::default() }, Vec::new());
    run(find(args).unwrap(), args, keys, &mut context, Version::Resp2, &mut out);
    out.escape_ascii().to_string()
}

/// Returns the keys that count as changed.
fn changed(keys: &Keyspace) -> Vec<&[u8]> {
    keys.slots().iter().filter(|slot| slot.is_changed).map(|slot| slot.key.as_slice()).collect()
}

#[test]
fn a_key_is_fetched_once() {
    let mut keys = Keyspace::default();
    keys.load(0, b"k", |database, key| {
        assert_eq!((database, key), (0, &b"k"[..]));
        Some(Object::string("v"))
    });
    keys.load(0, b"k", |_, _| panic!("it is loaded"));
    keys.load(1, b"k", |_, _| None);
    assert_eq!(keys.get(b"k"), Some(&Object::string("v")));
    assert_eq!(keys.get_in(1, b"k"), None);
    assert_eq!(keys.slots().len(), 2);
    assert_eq!(keys.take().len(), 2);
    keys.load(0, b"k", |_, _| None);
    assert_eq!(keys.get(b"k"), None, "taken keys are forgotten");
}

#[test]
fn expired_keys_are_deleted() {
    let mut keys = Keyspace::default();
    for (key, expiry) in [(b"a", Some(10)), (b"b", Some(11)), (b"c", None)] {
        keys.load(0, key, |_, _| Some(Object { expiry, ..Object::string("v") }));
    }
    keys.expire(10);
    assert_eq!((keys.get(b"a").is_some(), keys.get(b"b").is_some(), keys.get(b"c").is_some()), (false, true, true));
    assert_eq!(changed(&keys), [b"a"]);
}

#[test]
fn a_time_that_has_passed_deletes_at_once() {
    for command in [
        &[b"EXPIRE" as &[u8], b"k", b"0"][..],
        &[b"PEXPIREAT", b"k", b"1000"],
        &[b"GETEX", b"k", b"PXAT", b"1000"],
        &[b"SET", b"k", b"v", b"EXAT", b"1"],
    ] {
        let mut keys = Keyspace::default();
        keys.load(0, b"k", |_, _| Some(Object::string("v")));
        call(&mut keys, command);
        assert_eq!(call(&mut keys, &[b"EXISTS", b"k"]), r":0\r\n", "{}", command[0].escape_ascii());
        assert_eq!(changed(&keys), [b"k"]);
    }
}

#[test]
fn reads_and_failures_change_nothing() {
    let mut keys = Keyspace::default();
    for (key, value) in [("s", Some("x")), ("n", Some("1")), ("none", None)] {
        keys.load(0, key.as_bytes(), |_, _| value.map(Object::string));
    }
    assert_eq!(call(&mut keys, &[b"GET", b"s"]), r"$1\r\nx\r\n");
    assert_eq!(call(&mut keys, &[b"INCR", b"s"]), r"-ERR value is not an integer or out of range\r\n");
    assert_eq!(call(&mut keys, &[b"DEL", b"none"]), r":0\r\n");
    assert_eq!(keys.remove(b"none"), None);
    assert!(changed(&keys).is_empty());
    assert_eq!(call(&mut keys, &[b"INCR", b"n"]), r":2\r\n");
    assert_eq!(call(&mut keys, &[b"INCR", b"s"]), r"-ERR value is not an integer or out of range\r\n");
    assert_eq!(changed(&keys), [b"n"], "what an earlier command has changed stays noted");
    assert_eq!(call(&mut keys, &[b"SET", b"none", b"1"]), r"+OK\r\n");
    assert_eq!(call(&mut keys, &[b"DEL", b"none"]), r":1\r\n");
    assert_eq!(changed(&keys), [&b"n"[..], b"none"]);
}

#[test]
fn types_are_checked() {
    let mut keys = Keyspace::default();
    keys.load(0, b"s", |_, _| Some(Object::string("x")));
    keys.load(0, b"none", |_, _| None);
    assert_eq!(keys.string(b"s"), Ok(Some(&b"x".to_vec())));
    let error = keys.list(b"s").unwrap_err();
    assert_eq!(error.to_string(), "WRONGTYPE Operation against a key holding the wrong kind of value");
    assert!(keys.hash(b"s").is_err() && keys.set(b"s").is_err() && keys.sorted_set(b"s").is_err());
    assert!(keys.change_list(b"s").is_err());
    assert!(changed(&keys).is_empty(), "what fails changes nothing");
    assert_eq!(keys.list(b"none"), Ok(None));
    assert_eq!(keys.change_list(b"none").map(|list| list.len()), Ok(0));
    assert_eq!(changed(&keys), [b"none"]);
}

#[test]
#[should_panic(expected = "rule 3")]
fn keys_that_are_not_loaded_are_not_used() {
    Keyspace::default().get(b"k");
}

proptest! {
    /// Many keys are found through a map, and a few are searched. Both find the same keys.
    #[test]
    fn keys_are_a_map(steps in vec((0..2u8, 0..12u8, 0..4u8), 0..60)) {
        let mut keys = Keyspace::default();
        let mut model = HashMap::new();
        for (step, (database, key, action)) in steps.into_iter().enumerate() {
            let key = [key];
            keys.load(database, &key, |_, _| Some(Object::string("stored")));
            let former = model.entry((database, key)).or_insert(Some(Object::string("stored")));
            prop_assert_eq!(keys.get_in(database, &key), former.as_ref());
            let object = Object::string(step.to_string());
            match action {
                0 => prop_assert_eq!(keys.put_in(database, &key, object.clone()), former.replace(object)),
                1 if database == 0 => prop_assert_eq!(keys.remove(&key), former.take()),
                2 if database == 0 => {
                    if let (Some(ours), Some(wanted)) = (keys.change(&key), former) {
                        (ours.expiry, wanted.expiry) = (Some(9), Some(9));
                    }
                }
                _ => {}
            }
        }
        prop_assert_eq!(keys.slots().len(), model.len());
        for slot in keys.take() {
            let key = (slot.database, [slot.key[0]]);
            prop_assert!(slot.is_changed || slot.object == Some(Object::string("stored")));
            prop_assert_eq!(Some(slot.object), model.remove(&key));
        }
    }
}

#[test]
fn strings_have_encodings() {
    for (string, encoding) in [
        ("", Encoding::Embstr),
        ("0", Encoding::Int),
        ("-1", Encoding::Int),
        ("9223372036854775807", Encoding::Int),
        ("9223372036854775808", Encoding::Embstr),
        ("01", Encoding::Embstr),
        ("1.5", Encoding::Embstr),
        (&"x".repeat(44), Encoding::Embstr),
        (&"x".repeat(45), Encoding::Raw),
    ] {
        assert_eq!(Object::string(string).encoding, encoding, "{string:?}");
    }
    let mut string = Object { encoding: Encoding::Raw, ..Object::string("1") };
    string.settle_encoding(&Limits::default());
    assert_eq!(string.encoding, Encoding::Raw, "only commands of strings change it");
}

/// Returns the encoding that a value has in the end, and which its part has, too, once it has been
/// larger.
fn settled(value: Value, part: Value) -> Encoding {
    let limits = Limits::default();
    let mut object = Object::new(value);
    object.settle_encoding(&limits);
    let encoding = object.encoding;
    object.value = part;
    object.settle_encoding(&limits);
    assert_eq!(object.encoding, encoding, "it never goes back");
    encoding
}

#[test]
fn collections_have_encodings() {
    let texts = |count: usize, bytes: usize| (0..count).map(move |number| format!("{number:0bytes$}").into_bytes());
    let hash = |count, field, value| Value::Hash(texts(count, field).zip(texts(count, value)).collect());
    assert_eq!(settled(hash(512, 64, 64), hash(1, 1, 1)), Encoding::Listpack);
    assert_eq!(settled(hash(513, 1, 1), hash(1, 1, 1)), Encoding::Hashtable);
    assert_eq!(settled(hash(1, 65, 1), hash(1, 1, 1)), Encoding::Hashtable);
    assert_eq!(settled(hash(1, 1, 65), hash(1, 1, 1)), Encoding::Hashtable);
    let integers = |count| Value::Set(texts(count, 1).collect());
    let set = |count, bytes| Value::Set(texts(count, bytes).collect());
    assert_eq!(settled(integers(512), integers(1)), Encoding::Intset);
    assert_eq!(settled(integers(513), integers(1)), Encoding::Hashtable);
    assert_eq!(settled(set(128, 64), integers(1)), Encoding::Listpack);
    assert_eq!(settled(set(129, 64), integers(1)), Encoding::Hashtable);
    assert_eq!(settled(set(1, 65), integers(1)), Encoding::Hashtable);
    let sorted_set = |count, bytes| {
        let mut members = SortedSet::default();
        texts(count, bytes).for_each(|member| _ = members.insert(&member, 1.0));
        Value::SortedSet(members)
    };
    assert_eq!(settled(sorted_set(128, 64), sorted_set(1, 1)), Encoding::Listpack);
    assert_eq!(settled(sorted_set(129, 64), sorted_set(1, 1)), Encoding::Skiplist);
    assert_eq!(settled(sorted_set(1, 65), sorted_set(1, 1)), Encoding::Skiplist);
}

#[test]
fn limits_may_be_changed() {
    let settled = |limits: Limits, value: Value| {
        let mut object = Object::new(value);
        object.settle_encoding(&limits);
        object.encoding
    };
    let list = |count: usize| Value::List(List::from(vec![b"x".to_vec(); count]));
    let limits = Limits { list_size: 3, ..Limits::default() };
    assert_eq!(settled(limits, list(3)), Encoding::Listpack);
    assert_eq!(settled(limits, list(4)), Encoding::Quicklist);
    let set = || Value::Set([b"1".to_vec(), b"2".to_vec()].into());
    assert_eq!(settled(Limits { intset_entries: 1, ..Limits::default() }, set()), Encoding::Listpack);
    let limits = Limits { intset_entries: 1, set_entries: 1, ..Limits::default() };
    assert_eq!(settled(limits, set()), Encoding::Hashtable);
}
