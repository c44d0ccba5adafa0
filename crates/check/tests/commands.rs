//! The commands of gateways are judged: each rule accepts what is right, and finds what is wrong.

use remora_check::{CommandReport, HistoryReader, ReadOptions, Report, check, check_commands};

/// The record of the key `k` of database 0, and the key, in hexadecimal.
const RECORD: &str = "006b0000000000000000000000000002";
const KEY: &str = "6b";

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a step: a command and its arguments.
fn command(text: &str) -> String {
    let args: Vec<String> = text.split(' ').map(|word| format!("\"{}\"", hex(word))).collect();
    format!("[\"keys\",0,2,[{}]]", args.join(","))
}

fn stamp(stamp: Option<u64>) -> String {
    stamp.map_or("null".to_owned(), |stamp| stamp.to_string())
}

/// Returns the line of an attempt, whose transaction has read `k` at this version.
fn attempt(id: u64, call: u64, steps: &str, read: Option<u64>, write: Option<&str>, reply: &str) -> String {
    let write = write.map_or(String::new(), |kind| format!("[0,\"{KEY}\",\"{kind}\"]"));
    format!(
        "{{\"redis\":\"attempt\",\"id\":{id},\"call\":{call},\"table\":\"t\",\"now\":1000,\"random\":1,\
         \"steps\":[{steps}],\"reads\":[[0,\"{KEY}\",{}]],\"writes\":[{write}],\"reply\":\"{}\"}}\n",
        stamp(read),
        hex(reply)
    )
}

fn done(call: u64, end_ns: u64, reply: &str) -> String {
    format!(
        "{{\"redis\":\"answer\",\"call\":{call},\"end_ns\":{end_ns},\"outcome\":\"done\",\"reply\":\"{}\"}}\n",
        hex(reply)
    )
}

fn answered(call: u64, outcome: &str) -> String {
    format!("{{\"redis\":\"answer\",\"call\":{call},\"end_ns\":99,\"outcome\":\"{outcome}\"}}\n")
}

/// Returns the line of a transaction. `read` is a version, and `write` a version and a kind.
fn transaction(id: u64, times: (u64, Option<u64>), read: Option<u64>, write: Option<(u64, &str)>) -> String {
    let end =
        times.1.map_or("\"status\":\"unknown\"".to_owned(), |end| format!("\"end_ns\":{end},\"status\":\"committed\""));
    let read =
        read.map_or(format!("[\"t\",\"{RECORD}\",null,\"absent\"]"), |read| format!("[\"t\",\"{RECORD}\",{read}]"));
    let write = write.map_or(String::new(), |(version, kind)| format!("[\"t\",\"{RECORD}\",{version},\"{kind}\"]"));
    format!("{{\"id\":{id},\"worker\":1,\"start_ns\":{},{end},\"reads\":[{read}],\"writes\":[{write}]}}\n", times.0)
}

fn judge(lines: &[String]) -> (Report, CommandReport) {
    let mut reader = HistoryReader::new(ReadOptions::default());
    reader.read("test", lines.concat().as_bytes()).unwrap();
    let read = reader.finish();
    (check(&read.history), check_commands(&read.history, &read.commands))
}

#[track_caller]
fn assert_found(lines: &[String], what: &str) {
    let (_, report) = judge(lines);
    assert!(report.violations.iter().any(|found| found.contains(what)), "{report}");
}

/// `SET k 5` as transaction 1.
fn set() -> Vec<String> {
    vec![
        attempt(1, 1, &command("SET k 5"), None, Some("set"), "+OK\r\n"),
        transaction(1, (10, Some(20)), None, Some((2, "insert"))),
        done(1, 21, "+OK\r\n"),
    ]
}

fn with(lines: &[String]) -> Vec<String> {
    [&set()[..], lines].concat()
}

#[test]
fn what_is_right_is_accepted() {
    let watching = |seen| format!("[\"exec\",2,[[0,\"{KEY}\",{}]],[{}]]", stamp(seen), command("GET k"));
    let lines = with(&[
        attempt(2, 2, &command("INCR k"), Some(1), Some("set"), ":6\r\n"),
        transaction(2, (30, Some(40)), Some(2), Some((4, "update"))),
        done(2, 41, ":6\r\n"),
        attempt(3, 3, &watching(Some(2)), Some(2), None, "*1\r\n$1\r\n6\r\n"),
        transaction(3, (50, Some(60)), Some(4), None),
        done(3, 61, "*1\r\n$1\r\n6\r\n"),
        attempt(4, 4, &watching(Some(1)), Some(2), None, "*-1\r\n"),
        transaction(4, (70, Some(80)), Some(4), None),
        done(4, 81, "*-1\r\n"),
    ]);
    let (history, commands) = judge(&lines);
    assert!(history.is_clean(), "{history}");
    assert!(commands.is_clean(), "{commands}");
    assert_eq!((commands.calls, commands.replayed, commands.not_judged), (4, 4, 0));
}

#[test]
fn rule_1_what_was_answered_has_happened_once() {
    let twice = [
        attempt(2, 2, &command("INCR k"), Some(1), Some("set"), ":6\r\n"),
        transaction(2, (30, Some(40)), Some(2), Some((4, "update"))),
        attempt(3, 2, &command("INCR k"), Some(2), Some("set"), ":7\r\n"),
        transaction(3, (41, Some(50)), Some(4), Some((6, "update"))),
        done(2, 51, ":7\r\n"),
    ];
    assert_found(&with(&twice), "was applied more than once");
    let [first, .., last] = &twice;
    assert_found(
        &with(&[
            first.clone(),
            transaction(2, (30, Some(40)), Some(2), None).replace("committed", "aborted"),
            last.clone(),
        ]),
        "was not applied",
    );
    let [first, second, ..] = &twice;
    assert_found(&with(&[first.clone(), second.clone(), answered(2, "failed")]), "answered as failed, and was applied");
    let (_, unknown) = judge(&with(&[first.clone(), second.clone(), answered(2, "unknown")]));
    assert!(unknown.is_clean(), "{unknown}");
}

#[test]
fn rule_2_the_answer_is_that_of_what_has_committed() {
    let lines = [
        attempt(2, 2, &command("GET k"), Some(1), None, "$1\r\n5\r\n"),
        transaction(2, (30, Some(40)), Some(2), None),
        done(2, 41, "$-1\r\n"),
    ];
    assert_found(&with(&lines), "was answered $-1");
}

#[test]
fn rule_3_what_a_command_saw_is_what_its_transaction_has_read() {
    let get = attempt(2, 2, &command("GET k"), Some(1), None, "$1\r\n5\r\n");
    let absent = transaction(2, (30, Some(40)), None, None);
    assert_found(&with(&[get.clone(), absent]), "has read an absent key");
    let wrote = transaction(2, (30, Some(40)), Some(2), Some((4, "update")));
    assert_found(&with(&[get, wrote]), "has not written the keys that its commands have changed");
}

#[test]
fn rule_4_the_replies_are_right() {
    let incr = attempt(2, 2, &command("INCR k"), Some(1), Some("set"), ":7\r\n");
    let wrote = transaction(2, (30, Some(40)), Some(2), Some((4, "update")));
    assert_found(&with(&[incr, wrote.clone()]), "must answer :6");
    let exec = format!("[\"exec\",2,[[0,\"{KEY}\",null]],[{}]]", command("GET k"));
    let exec = attempt(2, 2, &exec, Some(1), None, "*1\r\n$1\r\n5\r\n");
    assert_found(&with(&[exec, transaction(2, (30, Some(40)), Some(2), None)]), "must answer *-1");
    let own = format!("{},[\"exec\",2,[[0,\"{KEY}\",1]],[]]", command("SET k 5"));
    let own = attempt(2, 2, &own, Some(1), Some("set"), "+OK\r\n*0\r\n");
    assert_found(&with(&[own, wrote]), "must answer +OK\\r\\n*-1");
    // The key expires at 500, and the time is 1000.
    let lines = [
        attempt(1, 1, &command("SET k 5 PXAT 1500"), None, Some("set"), "+OK\r\n"),
        transaction(1, (10, Some(20)), None, Some((2, "insert"))),
        attempt(2, 2, &command("GET k"), Some(1), None, "$-1\r\n").replace("1000", "2000"),
        transaction(2, (30, Some(40)), Some(2), None),
    ];
    assert_found(&lines, "must write");
}

#[test]
fn rule_5_what_was_answered_has_committed_by_then() {
    // Its client was not told that transaction 1 has committed, but the gateway has found it out.
    let mut lines = set();
    lines[1] = transaction(1, (10, None), None, Some((2, "insert")));
    let read = attempt(2, 2, &command("GET k"), None, None, "$-1\r\n");
    lines.extend([read, transaction(2, (30, Some(40)), None, None), done(2, 41, "$-1\r\n")]);
    let (history, _) = judge(&lines);
    assert!(!history.is_clean(), "{history}");
    lines.remove(2);
    let (history, _) = judge(&lines);
    assert!(history.is_clean(), "without an answer it may never have committed: {history}");
}

#[test]
fn keys_from_before_the_recording_are_not_judged() {
    let (_, report) = judge(&[
        attempt(2, 2, &command("GET k"), Some(77), None, "$1\r\n5\r\n"),
        transaction(2, (30, Some(40)), Some(2), None),
        done(2, 41, "$1\r\n5\r\n"),
    ]);
    assert!(report.is_clean(), "{report}");
    assert_eq!((report.replayed, report.not_judged), (0, 1));
}

#[test]
fn a_line_that_is_wrong_is_named() {
    for (line, what) in [
        ("{\"redis\":\"attempt\"}", "the field \"id\" is missing"),
        ("{\"redis\":\"answer\",\"call\":1,\"end_ns\":2}", "the field \"outcome\" is missing"),
        ("{\"redis\":\"other\"}", "column 10: expected \"attempt\" or \"answer\""),
        ("{\"redis\":\"answer\",\"reply\":\"0\"}", "pairs of hexadecimal digits"),
    ] {
        let mut reader = HistoryReader::new(ReadOptions::default());
        let error = reader.read("test", format!("{line}\n").as_bytes()).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}
