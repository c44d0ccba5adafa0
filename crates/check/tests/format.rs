//! Tests of the history format: what is accepted, and what is said about a file that is wrong.

mod common;

use common::{HistoryModel, TransactionModel, aborted, committed, key, load, unknown};
use proptest::prelude::*;
use remora_check::{
    HistoryReader, LineBuffer, LineError, LineHeader, Observed, Outcome, ReadOptions, Status, WriteKind,
};

const GOOD: &str = r#"{"id": 17, "worker": 3, "start_ns": 1000, "end_ns": 9000, "status": "committed",
 "reads": [["accounts", "00000000000004d2", 7]],
 "writes": [["accounts", "00000000000004d2", 8, "update"]]}"#;

/// Returns the example of the format's description, on one line.
fn good_line() -> String {
    GOOD.replace('\n', "")
}

/// Returns what the reader says about a file, or an empty text if it is fine.
fn complaint(text: &str) -> String {
    load(text.as_bytes()).err().map_or_else(String::new, |error| error.to_string())
}

/// Returns what the reader says about the good line with one part replaced.
fn complaint_about(part: &str, replacement: &str) -> String {
    let line = good_line();
    assert!(line.contains(part), "{part} is not in the line");
    complaint(&line.replace(part, replacement))
}

fn read_all(files: &[(&str, &str)], crashed: bool) -> Result<(HistoryModel, Vec<String>), String> {
    let mut reader = HistoryReader::new(ReadOptions { crashed });
    for (name, text) in files {
        reader.read(name, text.as_bytes()).map_err(|error| error.to_string())?;
    }
    let loaded = reader.finish();
    Ok((HistoryModel::of(&loaded.history), loaded.truncated_files))
}

#[test]
fn reads_the_example() {
    let history = load(good_line().as_bytes()).expect("the example is good");
    let expected = TransactionModel {
        worker: 3,
        snapshot: false,
        stale: false,
        reads: vec![(("accounts".to_owned(), vec![0, 0, 0, 0, 0, 0, 4, 0xd2]), Observed::Present(7))],
        writes: vec![(("accounts".to_owned(), vec![0, 0, 0, 0, 0, 0, 4, 0xd2]), Some(8), WriteKind::Update)],
        ..committed(17, 1000, 9000)
    };
    assert_eq!(HistoryModel::of(&history).transactions, [expected]);
}

#[test]
fn reads_everything_there_is() {
    let text = r#"{"status":"unknown","writes":[["t","78",9,"delete"],["t","79",10,"insert"]],"reads":[["t","78",null,"absent"],["t","79",4,"absent"]],"start_ns":5,"worker":1,"id":2,"scans":[["t","","7A",[["78",6],["79",8]]],["t","61","61",[]]],"later":{"x":[1,-2.5e+3,true,false,null,"\u00e9\ud83d\ude00"]}}
{"rollback": [["t", "78", 5, 2], ["t\u002f", "", 7, 0]]}
"#;
    let history = load(text.as_bytes()).expect("all of this is in the format");
    let expected = HistoryModel {
        transactions: vec![unknown(2, 5).absent("x").tombstone("y", 4).delete("x", 9).insert("y", 10)],
        rollbacks: vec![(key("x"), 5, 2), (("t/".to_owned(), Vec::new()), 7, 0)],
    };
    let mut model = HistoryModel::of(&history);
    let scans = std::mem::take(&mut model.transactions[0].scans);
    model.transactions[0].worker = expected.transactions[0].worker;
    assert_eq!(model, expected);
    assert_eq!(scans.len(), 2);
    assert_eq!((scans[0].from.as_slice(), scans[0].to.as_slice()), (&b""[..], &b"z"[..]));
    assert_eq!(scans[0].entries, [(b"x".to_vec(), 6), (b"y".to_vec(), 8)]);
}

#[test]
fn writes_what_the_description_shows() {
    let mut buffer = LineBuffer::new();
    let outcome = Outcome::Committed { end_ns: 9000 };
    let mut line =
        buffer.begin(LineHeader { id: 17, worker: 3, start_ns: 1000, outcome, snapshot: false, stale: false });
    line.write("accounts", &1234_u64.to_be_bytes(), 8, WriteKind::Update);
    line.read("accounts", &1234_u64.to_be_bytes(), 7);
    line.end();
    let value = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).expect("it is JSON");
    assert_eq!(value(buffer.bytes()), value(good_line().as_bytes()));
    assert!(buffer.bytes().ends_with(b"}\n"));
}

#[test]
fn a_line_that_is_not_ended_is_taken_back() {
    let mut buffer = LineBuffer::new();
    committed(1, 10, 20).read("x", 2).record(&mut buffer);
    let before = buffer.bytes().to_vec();
    let mut line = buffer.begin(LineHeader {
        id: 2,
        worker: 0,
        start_ns: 1,
        outcome: Outcome::Unknown,
        snapshot: false,
        stale: false,
    });
    line.read("t", b"x", 2);
    line.write("t", b"x", 2, WriteKind::Delete);
    drop(line);
    assert_eq!(buffer.bytes(), before);
    aborted(3, 10, 20).record(&mut buffer);
    assert_eq!(load(buffer.bytes()).expect("two whole lines").len(), 2);
    buffer.clear();
    assert!(buffer.bytes().is_empty());
}

/// Integers of every length are written right, in particular around the lengths at which the
/// formatting changes.
#[test]
fn integers_of_every_length() {
    let mut numbers = vec![0, u64::MAX];
    numbers.extend((0..20).flat_map(|power| {
        let unit = 10_u64.pow(power);
        [unit - 1, unit, unit + 1, unit.saturating_mul(9), unit.saturating_mul(3)]
    }));
    for number in numbers {
        let mut transaction = committed(number, 1, 2);
        transaction.worker = number;
        let transaction = transaction.read("x", number);
        let model = HistoryModel { transactions: vec![transaction], rollbacks: Vec::new() };
        let history = load(&model.record()).expect("a recorded history can be read");
        assert_eq!(HistoryModel::of(&history), model);
        assert_eq!(serde_json::to_string(&number).ok(), Some(number.to_string()));
    }
}

#[test]
fn names_file_line_and_column() {
    let text = format!("{}\n{}", good_line(), good_line().replace("17", "18").replace("4d2", "4x2"));
    assert_eq!(complaint(&text), "history.jsonl:2: column 105: bad hex in a key: \"00000000000004x2\"");
}

#[test]
fn says_what_is_wrong() {
    let at = "history.jsonl:1: ";
    let cases = [
        ("\n".to_owned(), "the line is empty"),
        (" \n".to_owned(), "the line is empty"),
        ("hello\n".to_owned(), "not a JSON object"),
        ("[1]\n".to_owned(), "not a JSON object"),
        ("{}\n".to_owned(), "the field \"id\" is missing"),
        (format!("{} x", good_line()), "column 189: expected the end of the line"),
        (good_line().replace("committed", "comitted"), "unknown status \"comitted\": expected"),
        (good_line().replace("\"update\"", "\"upsert\""), "column 177: unknown kind of write \"upsert\": expected"),
        (good_line().replace("04d2\", 7", "04d\", 7"), "column 105: bad hex in a key: \"00000000000004d\""),
        (good_line().replace("\"end_ns\": 9000, ", ""), "the field \"end_ns\" is missing"),
        (good_line().replace("\"worker\": 3, ", ""), "the field \"worker\" is missing"),
        (good_line().replace("\"worker\": 3", "\"id\": 3"), "the field \"id\" occurs twice"),
        (good_line().replace("1000", "-1"), "column 37: expected a time (unsigned integer)"),
        (good_line().replace("1000", "1e3"), "column 37: expected a time (unsigned integer)"),
        (good_line().replace("1000", "9001"), "end_ns 9000 is before start_ns 9001"),
        (good_line().replace("1000", "18446744073709551616"), "column 37: expected an integer of at most 64 bits"),
        (good_line().replace("committed", "unknown"), "an unknown transaction has no end_ns"),
        (good_line().replace(", 7]", ", null]"), "column 125: expected a version: only an absent read has none"),
        (good_line().replace(", 7]", ", 7, \"gone\"]"), "column 128: expected \"absent\""),
        (good_line().replace(", 8,", ", null,"), "a write without a version in a transaction that is not aborted"),
        (
            good_line().replace("]]}", "]], \"scans\": [[\"t\", \"61\", \"62\", [[\"62\", 2]]]]}"),
            "column 219: a scan returned",
        ),
        (good_line().replace("]]}", "],]}"), "column 187: expected an element after ','"),
        (
            "{\"rollback\": [[\"t\", \"78\", 5, 5]]}".to_owned(),
            "column 15: a rollback installs version 5, which is not",
        ),
        ("{\"rollback\": [], \"status\": \"aborted\"}".to_owned(), "a rollback line has no field \"status\""),
        (good_line().replace("]]}", "]}"), "column 186: expected ',' or ']'"),
        (good_line().replace("]]}", "]]"), "the line is truncated"),
        (good_line().replace("accounts", "acc\u{1}"), "column 97: expected no control character in a string"),
        (good_line().replace("accounts", "\\ud800"), "column 100: expected the second of a pair of surrogates"),
    ];
    let mut wrong = Vec::new();
    for (text, expected) in cases {
        let complaint = complaint(&text);
        if !complaint.starts_with(&format!("{at}{expected}")) {
            wrong.push(format!("said    {complaint}\ninstead {at}{expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_aborted_write_may_be_without_a_version() {
    let history = load(good_line().replace(", 8,", ", null,").replace("committed", "aborted").as_bytes());
    let writes: Vec<_> = history.iter().flat_map(|history| history.transactions()).flat_map(|t| t.writes()).collect();
    assert_eq!(writes.first().map(|write| write.version), Some(None), "{history:?}");
    assert_eq!(complaint_about("\"worker\": 3", "\"worker\": 3, \"shard\": {\"a\": [\"b\"]}"), "");
}

#[test]
fn invalid_utf8_is_not_read() {
    let mut bytes = good_line().into_bytes();
    bytes[85] = 0xff;
    let error = load(&bytes).expect_err("not UTF-8");
    assert_eq!(error.to_string(), "history.jsonl:1: column 83: expected a string in UTF-8");
}

#[test]
fn only_one_newline_may_end_a_file() {
    assert_eq!(complaint(&good_line()), "");
    assert_eq!(complaint(&format!("{}\n", good_line())), "");
    assert_eq!(complaint(&format!("{}\n\n", good_line())), "history.jsonl:2: the line is empty");
}

#[test]
fn a_final_line_replaces_the_unknown_one() {
    let mut buffer = LineBuffer::new();
    unknown(1, 10).read("x", 2).update("x", 4).record(&mut buffer);
    unknown(2, 10).record(&mut buffer);
    unknown(1, 10).read("x", 4).update("x", 6).record(&mut buffer);
    aborted(1, 10, 20).read("y", 2).update("y", 4).record(&mut buffer);
    let history = load(buffer.bytes()).expect("each id has one final line");
    let expected = [aborted(1, 10, 20).read("y", 2).update("y", 4), unknown(2, 10)];
    let counts = remora_check::check(&history).counts;
    assert_eq!((counts.transactions, counts.unknown, counts.reads, counts.writes), (2, 1, 1, 1));
    assert_eq!(HistoryModel::of(&history).transactions, expected);
}

#[test]
fn ids_are_unique() {
    let record = |transactions: &[TransactionModel]| {
        let mut buffer = LineBuffer::new();
        transactions.iter().for_each(|transaction| transaction.record(&mut buffer));
        String::from_utf8(buffer.bytes().to_vec()).expect("histories are UTF-8")
    };
    let twice = record(&[committed(1, 10, 20), aborted(2, 10, 20), aborted(1, 10, 20)]);
    let said = "one:3: transaction 1 has a final line already, at one:1";
    assert_eq!(read_all(&[("one", &twice)], false), Err(said.to_owned()));
    let late = record(&[committed(1, 10, 20), unknown(1, 10)]);
    let said = "one:2: transaction 1 has a final line already, at one:1";
    assert_eq!(read_all(&[("one", &late)], false), Err(said.to_owned()));
    let (unknown, last) = (record(&[unknown(1, 10)]), record(&[committed(1, 10, 20)]));
    let said = "two:1: transaction 1 has an unknown line already, at one:1";
    assert_eq!(read_all(&[("one", &unknown), ("two", &last)], false), Err(said.to_owned()));
}

#[test]
fn several_files_are_one_history() {
    let mut buffer = LineBuffer::new();
    committed(1, 10, 20).update("x", 4).record(&mut buffer);
    let one = String::from_utf8(buffer.bytes().to_vec()).expect("histories are UTF-8");
    buffer.clear();
    committed(2, 30, 40).read("x", 4).record(&mut buffer);
    let two = String::from_utf8(buffer.bytes().to_vec()).expect("histories are UTF-8");
    let (model, truncated) = read_all(&[("one", &one), ("two", &two)], false).expect("both are good");
    assert_eq!(model.transactions, [committed(1, 10, 20).update("x", 4), committed(2, 30, 40).read("x", 4)]);
    assert!(truncated.is_empty());
}

#[test]
fn a_crash_may_truncate_the_last_line_of_each_file() {
    let good = good_line();
    let half = good.replace("17", "18");
    let half = &half[..150];
    let one = format!("{good}\n{half}");
    assert_eq!(read_all(&[("one", &one)], false), Err("one:2: the line is truncated".to_owned()));
    let (model, truncated) = read_all(&[("one", &one), ("two", half)], true).expect("as a crash leaves it");
    assert_eq!(model.transactions.len(), 1);
    assert_eq!(truncated, ["one", "two"]);
    // Half of a rollback is dropped.
    let (model, _) = read_all(&[("one", r#"{"rollback": [["t", "78", 5, 2], ["t", "7"#)], true).expect("truncated");
    assert_eq!(model, HistoryModel::default());
    // The line is not the last one, or it has its newline: no crash leaves that.
    let middle = format!("{half}\n{good}\n");
    assert_eq!(read_all(&[("one", &middle)], true), Err("one:1: the line is truncated".to_owned()));
    assert_eq!(read_all(&[("one", &format!("{half}\n"))], true), Err("one:1: the line is truncated".to_owned()));
    // Damage is not truncation.
    let damaged = format!("{good}\n{}", good.replace("17", "18").replace("committed", "c"));
    assert!(read_all(&[("one", &damaged)], true).is_err());
}

/// The first and the last line say whether a history is whole. A history without them is accepted
/// as it is.
#[test]
fn a_history_says_whether_it_is_whole() {
    const BEGUN: &str = "{\"history\":\"begun\"  }\n";
    const DURABLE: &str = "{\"history\":\"durable\"}\n";
    const CUT: &str = "{\"history\":\"cut\"    }\n";
    const ENDED: &str = "{\"history\":\"ended\"  }\n";
    let one = good_line() + "\n";
    let other = one.replace("17", "18");
    let said = |text: &str, crashed| read_all(&[("h", text)], crashed).map(|(model, _)| model.transactions.len());
    for (text, otherwise, crashed) in [
        (one.clone(), Ok(1), Ok(1)),
        (format!("{BEGUN}{one}{ENDED}"), Ok(1), Ok(1)),
        (format!("{BEGUN}{ENDED}"), Ok(0), Ok(0)),
        // Recovery may go on for a moment after a run has ended.
        (format!("{BEGUN}{one}{ENDED}{other}"), Ok(2), Ok(2)),
        (format!("{BEGUN}{one}{ENDED}{DURABLE}{other}{ENDED}"), Ok(2), Ok(2)),
        (format!("{DURABLE}{one}"), Err("h: the history has no end: its client was killed, or runs still"), Ok(1)),
        (DURABLE.to_owned(), Err("h: the history has no end: its client was killed, or runs still"), Ok(0)),
        (
            format!("{BEGUN}{one}"),
            Err("h: the history has no end: its client was killed, or runs still"),
            Err("h: the history has no end: its client was killed, and what it did last is not in it"),
        ),
        (
            format!("{BEGUN}{one}{DURABLE}{other}{ENDED}"),
            Err("h:3: another history begins here, and the one before it has no end: its client was killed, or runs"),
            Err("h:3: another history begins here, and the one before it has no end: its client was killed, and"),
        ),
        (format!("{CUT}{one}"), Err("h:1: the history is cut"), Err("h:1: the history is cut")),
        (format!("{one}{ENDED}"), Err("h:2: the history ends here, and does not"), Err("h:2: the history ends here")),
        (String::new(), Err("h: is empty: it was emptied, or its client ended before it began"), Ok(0)),
        ("{\"history\":\"x\"}".to_owned(), Err("h:1: unknown mark \"x\""), Err("h:1: unknown mark \"x\"")),
        (
            "{\"history\":\"ended\",\"reads\":[]}".to_owned(),
            Err("h:1: a line that begins or ends a history has no field \"reads\""),
            Err("h:1: a line that begins or ends a history has no field \"reads\""),
        ),
    ] {
        for (crashed, expected) in [(false, otherwise), (true, crashed)] {
            match (said(&text, crashed), expected) {
                (Ok(count), Ok(expected)) if count == expected => {}
                (Err(why), Err(expected)) if why.starts_with(expected) => {}
                (said, expected) => panic!("{text}, crashed {crashed}: {said:?} instead of {expected:?}"),
            }
        }
    }
    let mut reader = HistoryReader::new(ReadOptions { crashed: true });
    reader.read("nothing", &b""[..]).expect("a client may end before it begins");
    assert_eq!(reader.finish().empty_files, ["nothing"]);
}

/// Reading fails in the middle of a file.
#[test]
fn io_errors_name_the_file() {
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is on fire"))
        }
    }
    let mut reader = HistoryReader::new(ReadOptions::default());
    let error = reader.read("one", std::io::BufReader::new(Broken)).expect_err("it cannot be read");
    assert_eq!(error.to_string(), "one:1: cannot read: the disk is on fire");
}

#[test]
fn nesting_is_limited() {
    let deep = format!("{{\"x\": {}", "[".repeat(100_000));
    assert!(complaint(&deep).contains("expected values nested less deeply"), "{}", complaint(&deep));
}

/// Returns a line that has every feature.
fn rich_line() -> Vec<u8> {
    let mut buffer = LineBuffer::new();
    let mut transaction = committed(u64::MAX, 1000, 9000)
        .read("x", 7)
        .tombstone("y", 8)
        .absent("z")
        .insert("a", 1)
        .update("b", 22)
        .delete("c", 333)
        .scan("a", "z", &[("b", 1), ("c", 22_222_222_222)])
        .scan("p", "q", &[]);
    transaction.reads.push((("naïve \"table\"\\\n".to_owned(), Vec::new()), Observed::Present(0)));
    transaction.record(&mut buffer);
    buffer.bytes().to_vec()
}

#[test]
fn every_prefix_of_a_line_is_truncated() {
    let line = rich_line();
    let whole = line.len() - 1;
    for end in 1..whole {
        let error = load(&line[..end]).expect_err("a part of a line");
        match error {
            remora_check::HistoryError::Line { line: 1, problem: LineError::Truncated, .. } => {}
            other => panic!("the first {end} bytes: {other}"),
        }
    }
    assert!(load(&line[..whole]).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
        prop_assert!(load(&bytes).is_err());
    }

    /// Damaged lines never cause a panic, and a line that is accepted is JSON for other parsers
    /// too.
    #[test]
    fn damaged_lines_are_refused_or_json(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..4),
        from in "[\\[\\]{},:\"0-9a-z\\\\ ]",
    ) {
        let mut line = rich_line();
        line.pop();
        for (place, byte, way) in damage {
            let at = place.index(line.len());
            match way {
                0 => line[at] = byte,
                1 => line[at] = from.as_bytes()[0],
                _ => {
                    line.remove(at);
                }
            }
        }
        if let Ok(history) = load(&line) {
            let _ = remora_check::check(&history);
            for text in line.split(|byte| *byte == b'\n') {
                // A number in a field that is skipped may be larger than any number that is read.
                let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(text);
                prop_assert!(parsed.is_ok(), "{:?}: {parsed:?}", String::from_utf8_lossy(text));
            }
        }
    }
}

#[test]
fn statuses_survive() {
    let model =
        HistoryModel { transactions: vec![committed(1, 1, 1), aborted(2, 1, 1), unknown(3, 1)], rollbacks: Vec::new() };
    let read = HistoryModel::of(&load(&model.record()).expect("a recorded history can be read"));
    let statuses: Vec<Status> = read.transactions.iter().map(|transaction| transaction.status).collect();
    assert_eq!(statuses, [Status::Committed, Status::Aborted, Status::Unknown]);
}
