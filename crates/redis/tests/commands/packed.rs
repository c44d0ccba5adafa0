//! Values as bytes, and back.

use proptest::collection::{hash_map, hash_set, vec};
use proptest::prelude::*;
use remora_redis::packed::{length, pack, unpack};
use remora_redis::{Encoding, Object, SortedSet, Value};

fn packed(object: &Object) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack(object, &mut bytes);
    bytes
}

/// Fails if bytes stand for a value that is packed to other bytes.
fn check(bytes: &[u8]) {
    if let Ok(object) = unpack(bytes) {
        assert_eq!(packed(&object), bytes, "{object:?}");
    }
}

#[test]
fn bytes_are_as_documented() {
    let element = |text: &str| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let string = Object { expiry: Some(0x0102), ..Object::string("12") };
    assert_eq!(packed(&string), b"\x00\x01\x02\x01\0\0\0\0\0\x0012");
    assert_eq!(packed(&Object::string("ab")), b"\x10\x00ab");
    assert_eq!(packed(&Object::string("")), b"\x10\x00");
    let list = Object::new(Value::List([b"a".to_vec(), b"".to_vec()].into()));
    assert_eq!(packed(&list), [b"\x31\x00", &*element("a"), &element("")].concat());
    let hash = Object::new(Value::Hash([(b"f".to_vec(), b"v".to_vec())].into()));
    assert_eq!(packed(&hash), [b"\x32\x00", &*element("f"), &element("v")].concat());
    let set = Object::new(Value::Set([b"2".to_vec(), b"1".to_vec()].into()));
    assert_eq!(packed(&set), [b"\x43\x00", &*element("2"), &element("1")].concat());
    let mut members = SortedSet::default();
    members.insert(b"m", 1.5);
    members.insert(b"l", -1.0);
    let sorted_set = Object::new(Value::SortedSet(members));
    let scores = [(-1.0f64).to_le_bytes(), 1.5f64.to_le_bytes()];
    assert_eq!(packed(&sorted_set), [b"\x34\x00", &scores[0][..], &element("l"), &scores[1], &element("m")].concat());
}

#[test]
fn damage_is_found() {
    let wrong = |bytes: &[u8], text: &str| {
        let error = unpack(bytes).expect_err(text);
        assert_eq!(error.to_string(), format!("a stored value is damaged: {text}"));
    };
    wrong(b"", "it is too short");
    wrong(b"\x10", "it is too short");
    wrong(b"\x80\x00", "its encoding is unknown");
    wrong(b"\x10\x02", "its expiry is neither there nor absent");
    wrong(b"\x10\x01\0\0\0\0\0\0\0", "it is cut off");
    wrong(b"\x10\x01\0\0\0\0\0\0\0\x80", "its expiry is out of range");
    wrong(b"\x15\x00", "its type is unknown");
    wrong(b"\x30\x00", "its encoding is of another type");
    wrong(b"\x43\x00", "it is an empty collection");
    wrong(b"\x31\x00\x01\0\0", "it is cut off");
    wrong(b"\x31\x00\x02\0\0\0a", "an element is cut off");
    wrong(b"\x31\x00\xff\xff\xff\xffa", "an element is cut off");
    wrong(b"\x32\x00\x01\0\0\0f", "it is cut off");
    wrong(b"\x32\x00\x01\0\0\0f\0\0\0\0\x01\0\0\0f\0\0\0\0", "a field is there twice");
    wrong(b"\x43\x00\x01\0\0\x001\x01\0\0\x001", "a member is there twice");
    wrong(b"\x34\x00\0\0\0\0\0\0\0\x80\x01\0\0\0m", "a score is -0");
    wrong(b"\x34\x00\0\0\0\0\0\0\xf8\x7f\x01\0\0\0m", "its members are out of order");
    let zero = [&[0; 8][..], b"\x01\0\0\0m"].concat();
    wrong(&[b"\x34\x00", &*zero, &zero].concat(), "its members are out of order");
}

/// Returns short strings, some of them numbers.
fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..8), vec(any::<u8>(), 40..80), any::<i64>().prop_map(|n| n.to_string().into_bytes())]
}

fn value() -> impl Strategy<Value = Value> {
    let score = prop_oneof![
        any::<f64>().prop_filter("a score is a number", |score| !score.is_nan()),
        (-3..3).prop_map(f64::from)
    ];
    prop_oneof![
        text().prop_map(Value::String),
        vec(text(), 1..100).prop_map(|list| Value::List(list.into())),
        hash_map(text(), text(), 1..100).prop_map(|hash| Value::Hash(hash.into_iter().collect())),
        hash_set(text(), 1..100).prop_map(|set| Value::Set(set.into_iter().collect())),
        hash_map(text(), score, 1..100).prop_map(|members| {
            let mut set = SortedSet::default();
            members.iter().for_each(|(member, score)| _ = set.insert(member, *score));
            Value::SortedSet(set)
        }),
    ]
}

fn object() -> impl Strategy<Value = Object> {
    (value(), proptest::option::of(0..=i64::MAX as u64), 0..Encoding::ALL.len()).prop_map(|(value, expiry, place)| {
        // The next encoding of the type.
        let mut encodings = Encoding::ALL.into_iter().cycle().skip(place);
        let encoding = encodings.find(|encoding| encoding.is_of(&value)).expect("each type has encodings");
        Object { value, expiry, encoding }
    })
}

proptest! {
    #[test]
    fn values_come_back(object in object()) {
        let bytes = packed(&object);
        prop_assert_eq!(length(&object), bytes.len());
        prop_assert_eq!(unpack(&bytes), Ok(object));
    }

    #[test]
    fn any_bytes_are_one_value_or_none(bytes in vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    #[test]
    fn damaged_values_are_one_value_or_none(
        object in object(),
        cut in any::<prop::sample::Index>(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = packed(&object);
        bytes.truncate(cut.index(bytes.len() + 1));
        check(&bytes);
        let mut bytes = packed(&object);
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        check(&bytes);
    }
}
