//! Collections that are spread over pages: trees beside what they stand for, and commands that load
//! and write a few pages.

use proptest::collection::vec;
use proptest::prelude::*;
use remora_redis::tree::{Element, Home, Missing, PART_BYTES, Tree};

use super::server::Server;

/// Returns a tree from the bytes of its root and of its pages.
fn reload(tree: &Tree, page_bytes: usize) -> Tree {
    let mut root = Vec::new();
    tree.encode_root(&mut root);
    let mut reloaded = Tree::decode_root(&mut &root[..], Home { id: 1, index: 0 }, page_bytes).unwrap();
    let changes = tree.changes();
    reloaded.elements(0..reloaded.len());
    let wanted = reloaded.take_wanted();
    loop {
        let missing = reloaded.missing(&wanted);
        if missing.is_empty() {
            return reloaded;
        }
        for missing in missing {
            let bytes = changes.iter().find(|change| change.page == missing.page).unwrap();
            assert!(reloaded.supply(missing, &bytes.bytes));
        }
    }
}

proptest! {
    #[test]
    fn a_tree_is_a_list(
        begin in vec(0..40_usize, 0..60),
        page_bytes in 16..120_usize,
        steps in vec((0..4_u8, any::<usize>(), 0..60_usize), 0..150),
    ) {
        let text = |length: usize| vec![b'a' + (length % 26) as u8; length];
        let mut model: Vec<Vec<u8>> = begin.into_iter().map(text).collect();
        let element = |value: &Vec<u8>| Element { key: Vec::new(), value: value.clone() };
        let mut tree = Tree::build(model.iter().map(element).collect(), page_bytes);
        for (kind, place, length) in steps {
            match kind {
                0 if !model.is_empty() => {
                    let place = place % model.len();
                    prop_assert_eq!(tree.remove_at(place).value, model.remove(place));
                }
                1 if !model.is_empty() => {
                    let place = place % model.len();
                    model[place] = text(length);
                    tree.replace_at(place, text(length));
                }
                2 => {
                    // At an end.
                    let place = if place % 2 == 0 { 0 } else { model.len() };
                    model.insert(place, text(length));
                    tree.insert_at(place, text(length));
                }
                _ => {
                    let place = place % (model.len() + 1);
                    model.insert(place, text(length));
                    tree.insert_at(place, text(length));
                }
            }
            prop_assert_eq!(tree.check(), Ok(()));
        }
        let found: Vec<&Vec<u8>> = tree.elements(0..tree.len()).into_iter().map(|element| &element.value).collect();
        prop_assert_eq!(found, model.iter().collect::<Vec<_>>());
        prop_assert_eq!(tree.bytes(), model.iter().map(Vec::len).sum::<usize>());
        if !model.is_empty() {
            prop_assert_eq!(&reload(&tree, page_bytes), &tree);
        }
    }

    #[test]
    fn a_tree_is_a_map(
        page_bytes in 16..120_usize,
        steps in vec((0..3_u8, vec(0..4_u8, 0..9), 0..30_usize), 0..300),
    ) {
        let mut model = std::collections::BTreeMap::new();
        let mut tree = Tree::build(Vec::new(), page_bytes);
        for (kind, key, length) in steps {
            // No key of a map is empty.
            let key = [&[7], &key[..]].concat();
            match kind {
                0 => prop_assert_eq!(tree.remove(&key), model.remove(&key)),
                _ => {
                    prop_assert_eq!(tree.insert(&key, &vec![1; length]), model.insert(key.clone(), vec![1; length]));
                }
            }
            prop_assert_eq!(tree.check(), Ok(()));
            prop_assert_eq!(tree.get(&key), model.get(&key).map(Vec::as_slice));
            let below = model.keys().filter(|other| **other < key).count();
            prop_assert_eq!(tree.count_below(|other| other < &key[..]), below);
        }
        let found: Vec<_> = tree.elements(0..tree.len()).into_iter().map(|element| &element.key).collect();
        prop_assert_eq!(found, model.keys().collect::<Vec<_>>());
    }

    #[test]
    fn bytes_that_are_no_tree_do_no_harm(root in vec(any::<u8>(), 0..60), page in vec(any::<u8>(), 0..60)) {
        if let Some(mut tree) = Tree::decode_root(&mut &root[..], Home { id: 1, index: 0 }, PART_BYTES) {
            let missing = Missing { page: 0, parts: 1, count: 1 };
            let _ = tree.supply(missing, &page);
        }
        let _ = Tree::under(&page);
    }
}

/// A server with a collection of 4,000 elements under each of the names `h`, `s`, `l`, `z`.
fn large() -> Server {
    let mut server = Server::default();
    server.spread_bytes = 8 << 10;
    for first in (0..4_000).step_by(2000) {
        let numbers: Vec<String> = (first..first + 2000).map(|number| number.to_string()).collect();
        let with = |name: &str, key: &str, each: &dyn Fn(&String) -> Vec<String>| {
            let head = [name.to_owned(), key.to_owned()].into_iter();
            head.chain(numbers.iter().flat_map(each)).map(String::into_bytes).collect::<Vec<_>>()
        };
        for command in [
            with("HSET", "h", &|number| vec![number.clone(), format!("value-{number}")]),
            with("SADD", "s", &|number| vec![format!("m{number}")]),
            with("RPUSH", "l", &|number| vec![number.clone()]),
            with("ZADD", "z", &|number| vec![number.clone(), format!("m{number}")]),
        ] {
            server.call(&command.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
    server
}

#[test]
fn a_command_of_a_few_elements_uses_a_few_pages() {
    let mut server = large();
    // Pages have 64 bytes here, so paths are long: about 3 children a node.
    for (command, answer, loaded, written) in [
        ("HGET h 777", "$9\r\nvalue-777\r\n", 16, 0),
        ("HSET h 777 x", ":0\r\n", 16, 1),
        ("HDEL h 777", ":1\r\n", 16, 16),
        ("HEXISTS h 777", ":0\r\n", 16, 0),
        ("HLEN h", ":3999\r\n", 0, 0),
        ("SISMEMBER s m5", ":1\r\n", 16, 0),
        ("SADD s new", ":1\r\n", 16, 18),
        ("SREM s new", ":1\r\n", 16, 16),
        ("LPUSH l x", ":4001\r\n", 16, 18),
        ("LPOP l", "$1\r\nx\r\n", 16, 18),
        ("RPOP l", "$4\r\n3999\r\n", 16, 18),
        ("LINDEX l 700", "$3\r\n700\r\n", 16, 0),
        ("LLEN l", ":3999\r\n", 0, 0),
        ("LRANGE l 10 12", "*3\r\n$2\r\n10\r\n$2\r\n11\r\n$2\r\n12\r\n", 18, 0),
        ("ZSCORE z m100", "$3\r\n100\r\n", 16, 0),
        ("ZADD z 3.5 new", ":1\r\n", 32, 36),
        ("ZRANK z m100", ":101\r\n", 32, 0),
        ("ZPOPMIN z", "*2\r\n$2\r\nm0\r\n$1\r\n0\r\n", 32, 36),
        ("ZCOUNT z 1000 2000", ":1001\r\n", 32, 0),
        ("ZRANGEBYSCORE z 5 5", "*1\r\n$2\r\nm5\r\n", 32, 0),
        ("EXPIRE l 100", ":1\r\n", 0, 0),
        ("RENAME l k", "+OK\r\n", 0, 0),
        ("DEL k", ":1\r\n", 0, 0),
    ] {
        (server.loaded, server.written) = (0, 0);
        let args: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        assert_eq!(String::from_utf8(server.call(&args)).unwrap(), answer, "{command}");
        let found = (server.loaded, server.written);
        assert!(found.0 <= loaded && found.1 <= written, "{command}: {found:?} pages loaded and written");
        assert!(loaded == 0 || found.0 > 0, "{command}");
    }
}

#[test]
fn a_scan_finds_all_that_stays() {
    let mut server = large();
    for (command, key, width) in [("HSCAN", "h", 2), ("SSCAN", "s", 1), ("ZSCAN", "z", 2)] {
        let (mut cursor, mut found, mut calls) = ("0".to_owned(), std::collections::BTreeSet::new(), 0);
        loop {
            let answer = server.call(&[command, key, &cursor, "COUNT", "100"].map(str::as_bytes));
            let answer = String::from_utf8(answer).unwrap();
            let words: Vec<&str> = answer.split("\r\n").filter(|word| !word.starts_with(['$', '*'])).collect();
            cursor = words[0].to_owned();
            found.extend(words[1..].chunks(width).map(|element| element[0].to_owned()).filter(|name| !name.is_empty()));
            calls += 1;
            if cursor == "0" {
                break;
            }
        }
        assert_eq!((found.len(), calls), (4_000, 40), "{command}");
    }
}
