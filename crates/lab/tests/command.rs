//! Tests of the `remora-lab` command as its users see it: the exit status, one line for each error,
//! and results that are not lost.

use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};

use remora::protocol::Protocol;

fn lab(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remora-lab"));
    command.args(line.split_whitespace());
    command
}

fn run(line: &str) -> Output {
    lab(line).output().expect("the command has been built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the command writes UTF-8")
}

#[track_caller]
fn assert_refused(line: &str, names: &str) {
    let output = run(line);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{line}: {complaint}");
    assert!(complaint.starts_with("error: ") && complaint.contains(names), "{line}: {complaint}");
    assert_eq!(complaint.lines().count(), 1, "{line}: {complaint}");
    assert!(output.stdout.is_empty(), "{line}");
}

#[test]
fn experiments_have_exit_statuses() {
    for line in [
        "litmus --only write-skew --report -",
        "hardware --profile connectx3 --report -",
        "hardware --profile efa --numbers",
        "campaign --seeds 0..1 --faults pause --transactions 1000 --report -",
        "replay --seed 1 --faults none --transactions 100",
        "trace --protocol ford --workload insert",
        "hot --protocols ford,fasst --clients 1,2 --ms 1 --report -",
    ] {
        let output = run(line);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    }
    assert_refused("campaign --faults flood", "there is no fault flood");
    assert_refused("campaign --faults restart", "part of the fault fail");
    assert_refused("campaign --seeds 9", "--seeds");
    assert_refused("campaign --workload race --protocol drtm-r", "RACE hash tables need the protocol rtx");
    assert_refused("campaign --workload race --protocol rtx --faults grow", "cannot have the fault grow");
    assert_refused("campaign --protocol unsynchronized", "--protocol");
    assert_refused("trace --workload smallbank", "--workload");
    assert_refused("replay --seed 1 --history /nonexistent/h", "--history /nonexistent/h");
}

/// `.ci/long` takes its list of protocols from this command.
#[test]
fn protocols_are_listed_one_name_a_line() {
    let output = run("protocols");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let promising = Protocol::ALL.into_iter().filter(|protocol| protocol.is_serializable());
    assert_eq!(text(&output.stdout).lines().collect::<Vec<_>>(), promising.map(Protocol::name).collect::<Vec<_>>());
    // The help of each command that takes a protocol lists all of them.
    let help = text(&run("campaign --help").stdout);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let names: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    assert!(help.contains(&names.join(", ")), "{help}");
}

#[test]
fn what_cannot_be_shown_is_an_error() {
    for line in [
        "protocols",
        "trace",
        "litmus --only lost-update --report -",
        "replay --seed 1 --transactions 5 --faults none",
        "campaign --seeds 0..1 --transactions 5 --faults none",
        "--help",
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
        let output = lab(line).stdout(Stdio::from(full)).output().expect("the command has been built");
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {errors}");
        assert!(errors.contains("error: standard output: No space left on device"), "{line}: {errors}");
    }
}

#[test]
fn a_history_that_cannot_be_written_does_not_take_the_result_with_it() {
    let output = run("replay --seed 1 --transactions 5 --faults none --history /dev/full");
    let (shown, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(shown.contains("nothing is wrong"), "{shown}");
    assert!(errors.contains("/dev/full: No space left on device"), "{errors}");
}
