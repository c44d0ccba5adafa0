use proptest::prelude::*;

use super::*;
use crate::tcp::fuzzing;

const BUFFER: u32 = 64;

fn address() -> impl Strategy<Value = Address> {
    (any::<u16>(), any::<u64>()).prop_map(|(region, offset)| Address {
        node: NodeId(0),
        region: RegionId(region),
        offset: offset & !7,
    })
}

/// Generates verbs on a buffer of `BUFFER` words.
fn any_verb() -> impl Strategy<Value = Verb> {
    let piece = || (0..BUFFER).prop_flat_map(|from| (Just(from), 0..BUFFER - from));
    prop_oneof![
        (address(), 0..BUFFER).prop_map(|(at, words)| Verb::Read { at, words, into: 0 }),
        (address(), piece()).prop_map(|(at, (from, words))| Verb::Write { at, words, from }),
        (address(), any::<u64>(), any::<u64>()).prop_map(|(at, expected, new)| Verb::CompareSwap {
            at,
            expected,
            new,
            into: 0
        }),
        (address(), any::<u64>()).prop_map(|(at, delta)| Verb::FetchAdd { at, delta, into: 0 }),
        (piece(), piece(), 0..BUFFER).prop_map(|((head, head_words), (body, body_words), capacity)| Verb::Call {
            node: NodeId(0),
            head,
            head_words,
            body,
            body_words,
            into: 0,
            capacity
        }),
        Just(Verb::Flush { node: NodeId(0) }),
    ]
}

fn any_fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        address().prop_map(Fault::NoSuchRegion),
        (address(), any::<u64>()).prop_map(|(at, bytes)| Fault::OutOfBounds { at, bytes }),
        Just(Fault::NoHandler),
        (any::<u32>(), any::<u32>()).prop_map(|(words, capacity)| Fault::ReplyTooLong { words, capacity }),
        Just(Fault::Revoked),
        any::<i32>().prop_map(|number| Fault::Refused(Refusal::Rdma(SystemError::Number(number)))),
    ]
}

/// Generates words that look like frames more often than random words would.
fn framelike() -> impl Strategy<Value = Vec<u64>> {
    let word = prop_oneof![
        any::<u64>(),
        0..64u64,
        (1..4u64, 0..40u64).prop_map(|(kind, words)| kind << 32 | words),
        (0..8u64, 0..4u64, 0..9u64).prop_map(|(verb, region, words)| words << 32 | region << 8 | verb),
    ];
    proptest::collection::vec(word, 0..64)
}

proptest! {
    #[test]
    fn a_request_arrives_as_it_was_sent(verbs in proptest::collection::vec(any_verb(), 0..20), lazy: bool, ticket: u64) {
        let words: Vec<u64> = (0..u64::from(BUFFER)).map(|index| index << 40 | 7).collect();
        let mut out = Outbox::default();
        let at = begin_request(&mut out, Kind::Round, lazy, ticket);
        for verb in &verbs {
            let before = out.end();
            put_verb(&mut out, verb, &words);
            prop_assert_eq!(out.end() - before, verb_words(verb));
        }
        end(&mut out, at);
        let frame = out.words_mut().to_vec();
        let head = request(&frame).unwrap().unwrap();
        prop_assert_eq!(head, Request { words: frame.len(), kind: Kind::Round, lazy, ticket });

        let mut again = Outbox::default();
        let at = begin_request(&mut again, Kind::Round, lazy, ticket);
        let mut next = HEAD_WORDS;
        for sent in &verbs {
            let found = verb(&frame, &mut next, 0).unwrap();
            prop_assert_eq!(answer_words(&found), answer_words(sent));
            put_verb(&mut again, &found, &frame);
        }
        prop_assert_eq!(next, frame.len());
        end(&mut again, at);
        prop_assert_eq!(again.words_mut(), &frame[..]);
        // Wherever a frame is cut off, the missing part is noticed.
        for length in 2..frame.len() {
            let mut next = HEAD_WORDS;
            while next < length {
                match verb(&frame[..length], &mut next, 0) {
                    Ok(_) => {}
                    Err(malformed) => { prop_assert_eq!(malformed, Malformed::Truncated); break }
                }
            }
        }
    }

    #[test]
    fn a_fault_arrives_as_the_clients_own(fault in any_fault(), node: u16, ticket: u64) {
        let node = NodeId(node);
        let mut out = Outbox::default();
        put_fault(&mut out, fault, ticket);
        let frame = out.words_mut().to_vec();
        let head = response(&frame).unwrap().unwrap();
        prop_assert_eq!((head.words, head.ticket), (frame.len(), ticket));
        prop_assert_ne!(head.status, DONE);
        let expected = match fault {
            Fault::NoSuchRegion(at) => Fault::NoSuchRegion(Address { node, ..at }),
            Fault::OutOfBounds { at, bytes } => Fault::OutOfBounds { at: Address { node, ..at }, bytes },
            other => other,
        };
        prop_assert_eq!(super::fault(head.status, &frame[HEAD_WORDS..], node), Ok(expected));
        prop_assert!(super::fault(head.status, &[0; 4], node).is_err());
    }

    #[test]
    fn no_words_make_it_panic(words in framelike()) {
        let bytes = zerocopy::IntoBytes::as_bytes(&words[..]);
        fuzzing::requests(bytes);
        fuzzing::responses(bytes);
        fuzzing::greeting(bytes);
        fuzzing::datagrams(bytes);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>) {
        fuzzing::requests(&bytes);
        fuzzing::responses(&bytes);
        fuzzing::greeting(&bytes);
        fuzzing::datagrams(&bytes);
    }
}

/// `.ci/long` continues from these bytes, which reach every branch that earlier runs have found.
#[test]
fn no_bytes_of_the_fuzzers_corpora_make_it_panic() {
    let corpora = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let give_all = |name: &str, target: fn(&[u8])| {
        let files = std::fs::read_dir(corpora.join(name)).unwrap();
        let tried = files.map(|file| target(&std::fs::read(file.unwrap().path()).unwrap())).count();
        assert!(tried >= 3, "{tried} files of {name}");
    };
    give_all("requests", fuzzing::requests);
    give_all("responses", fuzzing::responses);
    give_all("greeting", fuzzing::greeting);
    give_all("datagrams", fuzzing::datagrams);
}

#[test]
fn a_frame_of_an_absurd_length_is_refused_before_it_is_there() {
    for words in [0, 1, FRAME_WORDS_MAX as u64 + 1, u64::from(u32::MAX)] {
        assert_eq!(request(&[1 << 32 | words, 0]), Err(Malformed::Length(words as u32)));
        assert_eq!(response(&[words, 0]), Err(Malformed::Length(words as u32)));
    }
    assert_eq!(request(&[1 << 32 | FRAME_WORDS_MAX as u64]), Ok(None));
    assert!(request(&[1 << 32 | FRAME_WORDS_MAX as u64, 0]).is_ok());
    assert_eq!(request(&[9 << 32 | 2, 0]), Err(Malformed::Kind(9)));
    assert_eq!(request(&[1 << 50 | 1 << 32 | 2, 0]), Err(Malformed::Kind(1 << 18 | 1)));
}

/// Pins version 1, word for word. A change of these words needs a new version.
#[test]
fn golden_words() {
    let at = Address { node: NodeId(0), region: RegionId(3), offset: 64 };
    let mut out = Outbox::default();
    let start = begin_request(&mut out, Kind::Round, true, 77);
    let words = [5, 6, 7, 8];
    for verb in [
        Verb::Read { at, words: 2, into: 0 },
        Verb::Write { at, words: 2, from: 1 },
        Verb::CompareSwap { at, expected: 9, new: 10, into: 0 },
        Verb::FetchAdd { at, delta: 11, into: 0 },
        Verb::Flush { node: NodeId(0) },
        Verb::Call { node: NodeId(0), head: 0, head_words: 1, body: 2, body_words: 2, into: 0, capacity: 12 },
    ] {
        put_verb(&mut out, &verb, &words);
    }
    end(&mut out, start);
    let expected: [u64; 21] = [
        0x0101_0000_0015,
        77,
        0x2_0000_0301,
        64,
        0x2_0000_0302,
        64,
        6,
        7,
        0x1_0000_0303,
        64,
        9,
        10,
        0x1_0000_0304,
        64,
        11,
        0x6,
        0x3_0000_0005,
        12,
        5,
        7,
        8,
    ];
    assert_eq!(out.words_mut(), expected);
}
