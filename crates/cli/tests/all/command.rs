//! The `remora` command as its users see it: its exit status, one line for an error, and JSON for
//! scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use remora::protocol::Protocol;
use serde_json::Value;

fn remora(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_remora")).args(arguments).output().expect("the command has been built")
}

/// Words of a command line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the command writes UTF-8")
}

/// The command line of a run that is over at once.
const SMALL: &str = "bench smallbank --threads 2 --coroutines 4 --accounts 1000 --transactions 3000";

/// Returns a path for a test's file.
fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[track_caller]
fn assert_refused(arguments: &[&str], names: &str) {
    let output = remora(arguments);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
    assert!(complaint.starts_with("error: ") && complaint.contains(names), "{arguments:?}: {complaint}");
    assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
}

#[test]
fn a_run_reports_as_json() {
    for protocol in ["drtm-r", "unsynchronized"] {
        let line = format!("{SMALL} --seed 5 --protocol {protocol} --report -");
        let output = remora(&words(&line));
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(output.stderr.is_empty(), "no progress bar where there is no terminal");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["workload"], "smallbank");
        assert_eq!(report["protocol"], protocol);
        assert_eq!(report["fabric"], "shm");
        for (option, value) in [("memory_nodes", 3), ("replicas", 3), ("threads", 2), ("coroutines", 4), ("seed", 5)] {
            assert_eq!(report["config"][option], value, "{option}");
        }
        for option in ["accounts", "hot_fraction", "hot_probability", "transactions", "node_size"] {
            assert!(report["config"][option].is_number(), "{option}");
        }
        for number in ["seconds", "max_gap_ms", "throughput_tps", "abort_rate", "per_cpu_second_tps"] {
            assert!(report[number].is_f64(), "{number}");
        }
        let committed = report["committed"].as_u64().unwrap();
        assert_eq!(committed + report["aborted"]["user"].as_u64().unwrap(), 3_000);
        for cause in ["lock_conflict", "validation"] {
            assert!(report["aborted"][cause].is_u64(), "{cause}");
        }
        let latency_keys = ["mean", "p50", "p90", "p99", "p999", "max"];
        for key in latency_keys {
            assert!(report["latency_us"][key].as_f64().unwrap() > 0.0, "{key}");
        }
        for phase in ["execute", "validate", "log", "commit"] {
            assert!(latency_keys.iter().all(|key| report["phases_us"][phase][key].is_f64()), "{phase}");
        }
        for key in ["round_trips", "reads", "writes", "atomics", "flushes", "rpcs", "bytes_out", "bytes_in"] {
            assert!(report["per_transaction"][key].is_f64(), "{key}");
        }
        let types = report["by_type"].as_object().unwrap();
        assert_eq!(
            types.keys().collect::<Vec<_>>(),
            ["amalgamate", "balance", "deposit_checking", "send_payment", "transact_savings", "write_check"]
        );
        assert_eq!(types.values().map(|one| one["committed"].as_u64().unwrap()).sum::<u64>(), committed);
        for one in types.values() {
            assert!(
                one["aborted"].is_u64()
                    && one["user"].is_u64()
                    && one["round_trips"].is_f64()
                    && one["latency_us"]["p99"].is_f64()
            );
        }
        let invariants = report["invariants"].as_array().unwrap();
        assert_eq!(invariants.len(), 4);
        for invariant in invariants {
            let expected = if protocol == "drtm-r" { Value::Bool(true) } else { Value::Null };
            assert_eq!(invariant["holds"], expected, "{invariant}");
            assert!(invariant["name"].is_string() && !invariant["detail"].as_str().unwrap().is_empty());
        }
        assert!(report["cpu_seconds"]["workers"].as_f64().unwrap() > 0.0);
        assert!(report["cpu_seconds"]["appliers"].is_f64());
        assert!(report["machine"]["cores"].is_u64() && report["machine"]["pages"].is_string());
    }
}

#[test]
fn tatp_reports_for_every_protocol() {
    for protocol in Protocol::ALL.map(Protocol::name) {
        let line = "bench tatp --threads 2 --coroutines 4 --subscribers 500 --transactions 3000 --report -";
        let output = remora(&[&words(line)[..], &["--protocol", protocol]].concat());
        assert_eq!(output.status.code(), Some(0), "{protocol}: {}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["workload"], &report["protocol"]), (&Value::from("tatp"), &Value::from(protocol)));
        assert_eq!(report["config"]["subscribers"], 500);
        let types = report["by_type"].as_object().unwrap();
        assert_eq!(types.len(), 7);
        let sum = |key: &str| types.values().map(|one| one[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!(sum("user"), report["aborted"]["user"].as_u64().unwrap(), "given up, by type");
        assert_eq!(sum("committed") + sum("user"), 3_000);
        assert!(types["get_access_data"]["user"].as_u64().unwrap() > 0, "not everybody has every access information");
        assert_eq!(types["update_location"]["user"], 0, "everybody has a number");
        let promises = !["rc", "unsynchronized"].contains(&protocol);
        let expected = if promises { Value::Bool(true) } else { Value::Null };
        let invariants = report["invariants"].as_array().unwrap();
        assert_eq!(invariants.len(), 6);
        assert!(invariants.iter().all(|one| one["holds"] == expected), "{protocol}: {invariants:?}");
    }
}

// Most of the time goes into loading warehouses.
#[test]
fn tpcc_reports() {
    tpcc_reports_for("tpcc", "drtm-r", 1);
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn tpcc_reports_for_protocols_of_every_kind() {
    tpcc_reports_for("tpcc", "drtm-r", 2);
    tpcc_reports_for("tpcc-no", "fasst", 1);
    tpcc_reports_for("tpcc", "unsynchronized", 1);
}

fn tpcc_reports_for(workload: &str, protocol: &str, warehouses: u16) {
    let line = format!(
        "bench {workload} --warehouses {warehouses} --threads 2 --coroutines 4 --replicas 2 --transactions 2000 --report -"
    );
    let output = remora(&[&words(&line)[..], &["--protocol", protocol]].concat());
    assert_eq!(output.status.code(), Some(0), "{protocol}: {}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["workload"], &report["protocol"]), (&Value::from(workload), &Value::from(protocol)));
    assert_eq!(report["config"]["warehouses"], warehouses);
    assert!(report["config"]["orders"].as_u64().unwrap() > 900);
    assert_eq!(report["table_full"], false);
    let types = report["by_type"].as_object().unwrap();
    assert_eq!(types.len(), if workload == "tpcc" { 5 } else { 1 });
    let sum = |key: &str| types.values().map(|one| one[key].as_u64().unwrap()).sum::<u64>();
    // A Delivery is a transaction for each of ten districts.
    let deliveries = types.get("delivery").map_or(0, |one| one["committed"].as_u64().unwrap());
    let asked_for = sum("committed") + sum("user") - deliveries / 10 * 9;
    assert_eq!(asked_for, 2_000, "{protocol}: {types:?}");
    let only_orders = types["new_order"]["user"] == report["aborted"]["user"];
    assert!(only_orders || protocol == "unsynchronized", "items that nobody has");
    assert!(types["new_order"]["throughput_tps"].as_f64().unwrap() > 0.0);
    let expected = if protocol == "unsynchronized" { Value::Null } else { Value::Bool(true) };
    let invariants = report["invariants"].as_array().unwrap();
    assert_eq!(invariants.len(), 17);
    assert!(invariants.iter().all(|one| one["holds"] == expected), "{protocol}: {invariants:?}");
}

#[test]
fn tpce_reports_for_protocols_of_every_kind() {
    let is_chosen = |protocol: &Protocol| !protocol.is_serializable() || Protocol::DISTINCT.contains(protocol);
    for protocol in Protocol::ALL.into_iter().filter(is_chosen) {
        let snapshots = if protocol.has_snapshots() { "--snapshots" } else { "" };
        let expected = if protocol.is_serializable() { Value::Bool(true) } else { Value::Null };
        let protocol = protocol.name();
        let line = "bench tpce --threads 2 --coroutines 4 --customers 50 --transactions 3000 --report -";
        let output = remora(&[&words(line)[..], &["--protocol", protocol], &words(snapshots)].concat());
        assert_eq!(output.status.code(), Some(0), "{protocol}: {}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["workload"], &report["protocol"]), (&Value::from("tpce"), &Value::from(protocol)));
        let config = &report["config"];
        assert_eq!((&config["customers"], &config["securities"]), (&Value::from(50), &Value::from(34)));
        assert!(config["trades"].as_u64().unwrap() >= 600);
        assert_eq!(
            (&report["table_full"], &config["snapshots"]),
            (&Value::from(false), &(!snapshots.is_empty()).into())
        );
        let types = report["by_type"].as_object().unwrap();
        assert_eq!(types.keys().collect::<Vec<_>>(), ["customer_position", "market_feed", "trade"]);
        let sum = |key: &str| types.values().map(|one| one[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!(sum("committed") + sum("user"), 3_000, "{protocol}");
        let invariants = report["invariants"].as_array().unwrap();
        assert_eq!(invariants.len(), 10);
        assert!(invariants.iter().all(|one| one["holds"] == expected), "{protocol}: {invariants:?}");
    }
}

#[test]
fn a_recorded_run_of_tpce_is_found_serializable() {
    let history = scratch("tpce.jsonl");
    let history = history.to_str().unwrap();
    let line = "bench tpce --threads 2 --yield-after-rounds --customers 3 --securities 30 --transactions 5000";
    let output = remora(&[&words(line)[..], &["--history", history]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in ["customer_position", "market_feed", "✓ a balance is its trades'", "✓ readers have seen one state"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }
    let output = remora(&["check", history]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn ycsb_reports_for_every_mix_and_protocol() {
    for (mix, protocol) in ["a", "b", "c", "d", "e", "f"].into_iter().cycle().zip(Protocol::ALL.map(Protocol::name)) {
        let line =
            "bench ycsb --threads 2 --records 500 --value-size 128 --operations 2 --transactions 2000 --report -";
        let (order, asked) = match mix {
            "e" => (Some("hashed"), ""),
            "f" => (Some("ordered"), "--insert-order ordered"),
            _ => (None, ""),
        };
        let output = remora(&[&words(line)[..], &["--mix", mix, "--protocol", protocol], &words(asked)].concat());
        assert_eq!(output.status.code(), Some(0), "{mix}, {protocol}: {}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["workload"], &report["protocol"]), (&Value::from("ycsb"), &Value::from(protocol)));
        let config = &report["config"];
        assert_eq!((&config["ycsb_workload"], &config["records"]), (&Value::from(mix), &Value::from(500)));
        assert_eq!((&config["theta"], &config["operations"]), (&Value::from(0.99), &Value::from(2)));
        assert_eq!(config["table"], if order.is_some() { "ordered" } else { "hash" });
        assert_eq!(config["insert_order"].as_str(), order);
        assert_eq!(config["distribution"], if mix == "d" { "latest" } else { "zipf" });
        assert_eq!(
            config["inserts"].as_u64().unwrap() > 100,
            ["d", "e"].contains(&mix),
            "room for a run's inserts: {config}"
        );
        assert_eq!(report["table_full"], false);
        let types = report["by_type"].as_object().unwrap();
        let sum = |key: &str| types.values().map(|one| one[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!(sum("committed") + sum("user"), 2_000);
        let promises = !["rc", "unsynchronized"].contains(&protocol);
        let expected = if promises { Value::Bool(true) } else { Value::Null };
        let invariants = report["invariants"].as_array().unwrap();
        assert_eq!(invariants.len(), 7);
        assert!(invariants.iter().all(|one| one["holds"] == expected), "{mix}, {protocol}: {invariants:?}");
    }
}

/// The scans beside the transactions are in a part of the report of their own.
#[test]
fn analytic_scans_are_reported_apart() {
    let line = "bench ycsb --analytic --threads 1 --coroutines 4 --records 2000 --rate 400 --report -";
    for (protocol, fabric, options, scanner) in [
        ("remora", "shm", "--seconds 0.8", "turns"),
        ("drtm-r", "shm", "--transactions 300 --keys-first 32", "always"),
        ("remora", "shm", "--transactions 300 --scanner never", "never"),
        ("unsynchronized", "shm", "--seconds 0.4 --scanner always", "always"),
        ("remora", "sim", "--measure-ms 4 --read-share 0.99 --distribution uniform", "turns"),
    ] {
        let line = if fabric == "sim" { line.replace(" --rate 400", " --fabric sim") } else { line.to_owned() };
        let output = remora(&[&words(&line)[..], &["--protocol", protocol], &words(options)].concat());
        assert_eq!(output.status.code(), Some(0), "{options}: {}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["workload"], &report["fabric"]), (&"ycsb-analytic".into(), &fabric.into()));
        let config = &report["config"];
        assert_eq!((&config["scanner"], &config["records"]), (&scanner.into(), &2_000.into()), "{config}");
        assert_eq!(report["by_type"].as_object().unwrap().keys().collect::<Vec<_>>(), ["read", "transfer"]);
        let expected = if protocol == "unsynchronized" { Value::Null } else { Value::Bool(true) };
        let invariants = report["invariants"].as_array().unwrap();
        assert_eq!(invariants.len(), 7);
        assert!(invariants.iter().all(|one| one["holds"] == expected), "{options}: {invariants:?}");
        let scans = &report["scans"];
        assert_eq!(scans.is_null(), scanner == "never");
        if scans.is_null() {
            continue;
        }
        assert!(scans["completed"].as_u64().unwrap() > 0, "{options}: {scans}");
        assert_eq!((&scans["rows"], &scans["furthest"]), (&2_000.into(), &1.0.into()), "{options}: {scans}");
        assert!(scans["rows_per_second"].as_f64().unwrap() > 0.0 && scans["attempts"].is_u64(), "{scans}");
        assert!(protocol == "unsynchronized" || scans["consistent"] == true, "{options}: {scans}");
        assert_eq!(scans["tps_without"].is_f64(), scanner == "turns", "{options}: {scans}");
        assert!(scans["tps_with"].is_f64());
    }
    // People get lines of their own.
    let line = "bench ycsb --analytic --protocol remora --threads 1 --records 1000 --rate 100 --seconds 0.4";
    let output = remora(&words(line));
    let table = text(&output.stdout);
    for part in ["scans ", "of 1,000 rows", "attempts", "beside scans", "without them", "✓ every scan has seen one"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn a_recorded_run_of_ycsb_is_found_serializable() {
    let history = scratch("ycsb.jsonl");
    let history = history.to_str().unwrap();
    let line = "bench ycsb --ycsb-workload d --read-share 0.5 --distribution uniform --operations 3 --records 20 --threads 2 \
                --value-size 32 --yield-after-rounds --transactions 5000";
    let output = remora(&[&words(line)[..], &["--history", history]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in ["mixed", "read_modify_write", "✓ changes add up", "✓ inserted records add up"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let output = remora(&["check", history]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn a_recorded_run_of_tpcc_is_found_serializable_and_one_without_room_ends() {
    let history = scratch("tpcc.jsonl");
    let history = history.to_str().unwrap();
    let line = "bench tpcc --threads 2 --warehouses 1 --replicas 2 --yield-after-rounds --orders 300 --seconds 60";
    let output = remora(&[&words(line)[..], &["--history", history]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in ["ended early", "stock_level", "per second", "✓ 1: a warehouse's ytd", "✓ access paths lead"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let output = remora(&["check", history]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn a_recorded_run_with_inserts_and_deletes_is_found_serializable() {
    let history = scratch("tatp.jsonl");
    let history = history.to_str().unwrap();
    let line = "bench tatp --threads 2 --yield-after-rounds --subscribers 3 --transactions 20000";
    let output = remora(&[&words(line)[..], &["--history", history]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for part in ["insert_call_forwarding", "by user", "✓ call forwarding adds up", "✓ every call forwarding has its"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }
    let lines = fs::read_to_string(history).unwrap();
    assert!(["\"insert\"", "\"delete\"", "\"absent\""].iter().all(|kind| lines.contains(kind)));
    let output = remora(&["check", history]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

#[test]
fn a_run_without_a_report_shows_a_table() {
    let output = remora(&words(SMALL));
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for part in ["throughput", "write_check", "phase log", "✓ money is conserved", "✓ no lock is held", "CPU"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn a_recorded_run_is_found_serializable() {
    let history = scratch("recorded.jsonl");
    let report = scratch("recorded.json");
    let (history, report) = (history.to_str().unwrap(), report.to_str().unwrap());
    // Few accounts, so that transactions meet, and an older and longer file in the way.
    fs::write(history, "x\n".repeat(1_000_000)).unwrap();
    let line = "bench smallbank --threads 2 --yield-after-rounds --accounts 20 --transactions 20000";
    let output = remora(&[&words(line)[..], &["--history", history, "--report", report]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!output.stdout.is_empty(), "the table is shown when the report goes to a file");
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let lines = fs::read_to_string(history).unwrap();
    let committed = lines.lines().filter(|line| line.contains("\"committed\"")).count() as u64;
    assert_eq!(report["committed"], committed);
    let aborted: u64 = report["aborted"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(
        lines.lines().count() as u64,
        2 + committed + aborted,
        "every attempt is a line, and two say that it is whole"
    );
    assert!(lines.lines().filter(|line| line.contains("\"aborted\"")).all(|line| line.contains("\"writes\":[]")));

    let output = remora(&["check", history]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert!(text(&output.stdout).starts_with("strictly serializable"));

    // A write too many: one transaction's line twice, under another id.
    let twice = lines.lines().find(|line| line.contains("\"committed\"") && line.contains("\"update\"")).unwrap();
    let id = twice.split(',').next().unwrap();
    fs::write(history, format!("{lines}{}\n", twice.replace(id, "{\"id\":1"))).unwrap();
    let output = remora(&["check", history]);
    assert_eq!(output.status.code(), Some(1));
    let found = text(&output.stdout);
    assert!(found.contains("NOT strictly serializable") && found.contains("lost update"), "{found}");
}

#[test]
fn bad_options_are_refused_by_name() {
    let small = "bench smallbank --accounts 100 --transactions 10";
    for (options, names) in [
        ("--threads 0", "--threads"),
        ("--threads 1025", "--threads"),
        ("--coroutines 0", "--coroutines"),
        ("--coroutines 64", "--coroutines"),
        ("--memory-nodes 0", "--memory-nodes"),
        ("--replicas 0", "--replicas"),
        ("--replicas 4", "--replicas"),
        ("--replicas 3 --memory-nodes 2", "--memory-nodes"),
        ("--protocol quantum", "--protocol"),
        ("--fabric tcp", "--fabric"),
        ("--fabric shm --device rxe0", "--device"),
        ("--fabric sim", "--measure-ms"),
        ("--profile connectx4", "--profile"),
        ("--fabric carrier-pigeon", "--fabric"),
        ("--node-size 64KiB", "--node-size"),
        ("--node-size 1MiB", "--node-size"),
        ("--node-size lots", "--node-size"),
        ("--node-size 900TiB", "--node-size"),
        ("--seconds 3", "--seconds"),
        ("--hot-fraction 1.5", "--hot-fraction"),
        ("--hot-probability -1", "--hot-probability"),
        ("--frobnicate", "--frobnicate"),
    ] {
        assert_refused(&words(&format!("{small} {options}")), names);
    }
    for (line, names) in [
        ("bench smallbank --seconds 0", "--seconds"),
        ("bench smallbank --fabric sim --profile connectx9", "--profile connectx9"),
        ("bench smallbank --fabric sim --memory optain", "--memory optain"),
        ("bench smallbank --fabric sim --deployment symmetric --compute-nodes 2", "--compute-nodes"),
        ("bench smallbank --transactions 0", "--transactions"),
        ("bench smallbank --accounts 1", "--accounts"),
        ("bench smallbank --accounts 100000000000", "--accounts"),
        ("bench smallbank --accounts 18446744073709551615", "--accounts"),
        ("bench tatp --subscribers 0", "--subscribers"),
        ("bench tatp --subscribers 4294967295", "--subscribers"),
        ("bench tatp --subscribers 4294967296", "--subscribers"),
        ("bench tatp --subscribers 100 --node-size 1MiB", "--node-size"),
        ("bench tatp --accounts 100", "--accounts"),
        ("bench tpcc --warehouses 0", "--warehouses"),
        ("bench tpcc --warehouses 65536", "--warehouses"),
        ("bench tpcc --warehouses 60000 --transactions 1", "--warehouses 60000"),
        ("bench tpcc --warehouses 1 --orders 0", "--orders"),
        ("bench tpcc --warehouses 1 --orders 100000000000", "--orders 100000000000"),
        ("bench tpcc --warehouses 1 --transactions 10 --node-size 64MiB", "--node-size"),
        ("bench tpcc --districts 3", "--districts"),
        ("bench tpcc --only newest_order", "--only"),
        ("bench tpcc-no --warehouses 2 --only payment", "--only payment"),
        ("bench tpce --customers 0", "--customers"),
        ("bench tpce --customers 400000000", "--customers 400000000"),
        ("bench tpce --customers 5 --securities 0", "--securities"),
        ("bench tpce --customers 5 --trades 200000000000", "--trades 200000000000"),
        ("bench tpce --customers 50 --transactions 10 --node-size 1MiB", "--node-size"),
        ("bench tpce --only trade_order", "customer_position, market_feed, trade"),
        ("bench ycsb --mix e --table hash", "scans"),
        ("bench ycsb --mix a --table hash --design coarse", "--design"),
        ("bench ycsb --mix a --table hash --insert-order ordered", "--insert-order ordered"),
        ("bench ycsb --mix g", "a, b, c, d, e, f"),
        ("bench ycsb --mix c --read-share 0.5", "--read-share"),
        ("bench ycsb --analytic --mix b", "--ycsb-workload"),
        ("bench ycsb --analytic --value-size 32", "--value-size"),
        ("bench ycsb --analytic --records 1", "--records 1"),
        ("bench ycsb --analytic --distribution latest", "--distribution latest"),
        ("bench ycsb --analytic --transactions 10 --scanner turns", "--scanner turns"),
        ("bench ycsb --analytic --scanner sometimes", "--scanner"),
        ("bench ycsb --scanner never", "--analytic"),
        ("bench ycsb --theta 1", "--theta"),
        ("bench ycsb --distribution uniform --theta 0.5", "--theta"),
        ("bench ycsb --value-size 64", "32, 128 and 1000"),
        ("bench ycsb --operations 17", "--operations"),
        ("bench ycsb --records 3 --operations 4 --transactions 1", "--operations 4"),
        ("bench ycsb --records 0", "--records"),
        ("bench ycsb --records 200000000000", "--records 200000000000"),
        ("bench ycsb --records 100 --mix d --inserts 100000000000", "--inserts 100000000000"),
        ("bench pinball", "pinball"),
        ("bench micro --size 12", "--size"),
        ("bench micro --size 1MiB", "--size"),
        ("bench micro --batch 0", "--batch"),
        ("bench micro --batch 200", "--batch"),
        ("bench micro --kind sing", "--kind"),
        ("bench micro --fabric sim", "--fabric"),
        ("bench micro --fabric tcp --device rxe0", "--device"),
        ("bench micro --write-profile /nonexistent/mine.toml", "--write-profile /nonexistent/mine.toml"),
        ("bench micro --write-profile connectx5.toml", "--write-profile connectx5.toml"),
        ("bench micro --write-profile mine.toml --base-profile connectx9", "--base-profile connectx9"),
        ("bench micro --base-profile connectx4", "--write-profile"),
        ("bench micro --latches --fabric sim", "remora-lab reproduce latches"),
        ("bench micro --latches --torn", "--torn"),
        ("bench micro --latches --batch 4", "--batch"),
        ("bench micro --latches --clients 1", "--clients"),
        ("bench micro --latches --size 12", "--size"),
        ("bench micro --latches --size 64KiB", "--size"),
        ("bench micro --latches --scheme spin", "asynchronous-unlatch"),
        ("bench micro --clients 4", "--latches"),
        ("fly", "fly"),
        ("check", "HISTORY"),
    ] {
        assert_refused(&words(line), names);
    }
}

#[test]
fn a_run_that_cannot_begin_leaves_files_alone() {
    let kept = scratch("kept.jsonl");
    fs::write(&kept, "precious").unwrap();
    let kept = kept.to_str().unwrap();
    let small = words("bench smallbank --accounts 100 --transactions 10");
    assert_refused(&[&small[..], &["--history", kept, "--node-size", "1MiB"]].concat(), "--node-size");
    assert_refused(&[&small[..], &["--report", kept, "--replicas", "5"]].concat(), "--replicas");
    assert_refused(&[&small[..], &["--report", kept, "--history", "/nonexistent/h"]].concat(), "--history");
    assert_refused(&[&small[..], &["--history", kept, "--report", "/nonexistent/r"]].concat(), "--report");
    assert_eq!(fs::read_to_string(kept).unwrap(), "precious");
}

#[test]
fn histories_that_cannot_be_read_are_refused_by_line() {
    let good = "{\"id\": 1, \"worker\": 0, \"start_ns\": 1, \"end_ns\": 2, \"status\": \"committed\", \
                \"reads\": [[\"t\", \"01\", 2]], \"writes\": [[\"t\", \"01\", 4, \"update\"]]}\n";
    let stale = good.replace("\"id\": 1", "\"id\": 2").replace("\"start_ns\": 1", "\"start_ns\": 10");
    let stale = stale.replace("\"end_ns\": 2", "\"end_ns\": 20").replace("[[\"t\", \"01\", 4, \"update\"]]", "[]");
    let write = |name: &str, text: &str| {
        let path = scratch(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good_file = write("good.jsonl", good);
    let check = |file: &str| remora(&["check", file]).status.code();
    assert_eq!(check(&good_file), Some(0));
    assert_eq!(check(&write("stale.jsonl", &format!("{good}{stale}"))), Some(1));
    // Two files are checked together.
    let other = write("other.jsonl", &stale);
    assert_eq!(remora(&["check", &good_file, &other]).status.code(), Some(1));

    let truncated = write("truncated.jsonl", &format!("{good}{}", &stale[..40]));
    assert_refused(&["check", &truncated], "truncated.jsonl:2: the line is truncated");
    let crashed = remora(&["check", "--crashed", &truncated]);
    assert_eq!(crashed.status.code(), Some(0));
    assert!(text(&crashed.stderr).contains("truncated.jsonl"), "what was left out is said");
    let not_json = write("not.jsonl", &format!("{good}{good}hello\n").replacen("\"id\": 1", "\"id\": 9", 1));
    assert_refused(&["check", &not_json], "not.jsonl:3: ");
    assert_refused(&["check", "/nonexistent/history.jsonl"], "/nonexistent/history.jsonl");
    assert_refused(&["check", env!("CARGO_TARGET_TMPDIR")], "cannot read");
}

#[test]
fn bare_rounds_are_measured() {
    let output = remora(&words("bench micro --kind read --kind cas-read --seconds 0.05 --report -"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["workload"], "micro");
    let rounds = report["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 4);
    for round in rounds {
        assert!(round["round_ns"].as_f64().unwrap() > 0.0 && round["plain_ns"].as_f64().unwrap() > 0.0, "{round}");
        assert_eq!((&round["size"], &round["batch"]), (&Value::from(64), &Value::from(1)));
    }
    let table = text(&remora(&words("bench micro --seconds 0.05 --size 8 --batch 4")).stdout);
    assert!(table.contains("cas-read") && table.contains("missing"), "{table}");
}

/// Each optimization of a latch saves a round trip, exactly, where no client contends.
#[test]
fn latches_are_measured_on_real_fabrics() {
    for fabric in ["shm", "tcp"] {
        let output = remora(&words(&format!("bench micro --latches --fabric {fabric} --seconds 0.3 --report -")));
        assert_eq!(output.status.code(), Some(0), "{fabric}: {}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["workload"], &report["fabric"]), (&Value::from("latches"), &Value::from(fabric)));
        let rows = report["rows"].as_array().unwrap();
        let trips = |row: &Value| {
            assert_ne!(row["standing"], "wrong");
            assert_eq!((&row["own"]["wrong"], &row["one"]["wrong"]), (&Value::from(0), &Value::from(0)), "{row}");
            let trips = row["own"]["round_trips"].as_f64().unwrap();
            (row["operation"].as_str().unwrap().to_owned(), row["scheme"].as_str().unwrap().to_owned(), trips)
        };
        let expected = [
            ("update", "basic", 4.0),
            ("read", "basic", 3.0),
            ("update", "speculative-read", 3.0),
            ("read", "speculative-read", 2.0),
            ("update", "write-combining", 2.0),
            ("update", "asynchronous-unlatch", 1.0),
            ("read", "asynchronous-unlatch", 1.0),
            ("update", "write-unlatch", 1.0),
            ("read", "versioning", 3.0),
            ("read", "checksum", 2.0),
            ("read", "line-versions", 2.0),
        ];
        let expected = expected.map(|(operation, scheme, trips)| (operation.to_owned(), scheme.to_owned(), trips));
        assert_eq!(rows.iter().map(trips).collect::<Vec<_>>(), expected, "{fabric}");
    }
    let output = remora(&words("bench micro --latches --seconds 0.05 --scheme two-reads --scheme basic"));
    assert_eq!(output.status.code(), Some(0), "a scheme that is known to be wrong breaks no promise");
    let table = text(&output.stdout);
    assert!(table.contains("two-reads") && table.contains("WRONG scheme"), "{table}");
    assert!(!table.contains("checksum"), "{table}");
}

/// The profile of what was measured can be simulated, and has the same names.
#[test]
fn a_profile_of_what_was_measured_is_written_and_simulated() {
    for (fabric, base) in [("shm", "cxl"), ("tcp", "ethernet10g")] {
        let profile = scratch(&format!("micro-{fabric}.toml"));
        let profile = profile.to_str().unwrap();
        fs::write(profile, "x\n".repeat(100_000)).unwrap();
        let line = format!("bench micro --fabric {fabric} --seconds 0.2 --report - --write-profile");
        let output = remora(&[&words(&line)[..], &[profile]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["fabric"], fabric);
        let verbs = report["verbs"]["verbs"].as_array().unwrap();
        let names: Vec<_> =
            verbs.iter().map(|one| (one["verb"].as_str().unwrap(), one["bytes"].as_u64().unwrap())).collect();
        let sizes = [8, 64, 1024, 4096];
        let expected = sizes.map(|bytes| ("read", bytes)).into_iter().chain(sizes.map(|bytes| ("write", bytes)));
        let expected: Vec<_> = expected.chain([("cas", 8), ("fetch-add", 8), ("call", 0)]).collect();
        assert_eq!(names, expected);
        for one in verbs {
            for figure in ["p50_ns", "p99_ns", "single_m_s", "list_m_s"] {
                assert!(one[figure].as_f64().unwrap() > 0.0, "{figure}: {one}");
            }
        }
        let checks = report["profile"]["checks"].as_array().unwrap();
        assert_eq!(checks.len(), 3 * verbs.len());
        assert!(checks.iter().all(|check| check["simulated"].as_f64().unwrap() > 0.0), "{checks:?}");

        let written = fs::read_to_string(profile).unwrap();
        assert!(written.contains(&format!("name = \"micro-{fabric}\"\n")), "{written}");
        assert!(written.contains(&format!("# as {base}, not measured")) && written.contains("measured, "), "{written}");
        let line = "bench smallbank --fabric sim --memory-nodes 2 --replicas 2 --threads 1 --coroutines 2 --accounts 100 \
                    --measure-ms 5 --report - --profile";
        let output = remora(&[&words(line)[..], &[profile]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["config"]["profile"], profile);
        assert!(report["committed"].as_u64().unwrap() > 0, "{report}");
    }
}

#[test]
fn a_table_of_rates_names_every_verb() {
    let output = remora(&words("bench micro --kind read --seconds 0.02 --rates"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for row in ["READ of 8 B", "WRITE of 4096 B", "CAS", "FETCH_ADD", "call", "16: M/s", "GB/s"] {
        assert!(table.contains(row), "{row}: {table}");
    }
    assert!(!table.contains("profile"), "{table}");
}

#[test]
fn every_command_has_help_with_an_example() {
    let benches =
        ["bench", "bench smallbank", "bench tatp", "bench tpcc", "bench tpcc-no", "bench ycsb", "bench micro"];
    for command in ["", "memnode", "keygen", "status", "check", "drill"].iter().chain(&benches) {
        let output = remora(&[&words(command)[..], &["--help"]].concat());
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(text(&output.stdout).contains("Example"), "{command}");
    }
    let version = remora(&["--version"]);
    assert_eq!(text(&version.stdout), format!("remora {}\n", env!("CARGO_PKG_VERSION")));
}

/// A program that reads only the first line must not make the command panic.
#[test]
fn a_closed_pipe_is_no_error() {
    let command = format!(
        "{} check --help | true; {} {SMALL} | true",
        env!("CARGO_BIN_EXE_remora"),
        env!("CARGO_BIN_EXE_remora")
    );
    let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn a_simulated_cluster_reports_in_virtual_time_the_same_each_time() {
    let line = "bench smallbank --fabric sim --memory-nodes 3 --compute-nodes 2 --threads 2 --accounts 1000 \
                --measure-ms 0.5 --report -";
    let run = || -> Value { serde_json::from_slice(&remora(&words(line)).stdout).unwrap() };
    let (one, two) = (run(), run());
    assert_eq!(one["fabric"], "sim");
    assert_eq!(one["config"]["profile"], "connectx4");
    assert_eq!(one["seconds"], 0.0005);
    assert!(one["committed"].as_u64().unwrap() > 100);
    assert!(one["simulated"]["events"].as_u64().unwrap() > 10_000);
    for field in ["committed", "aborted", "latency_us", "per_transaction", "by_type", "invariants"] {
        assert_eq!(one[field], two[field], "{field}");
    }
    assert!(one["invariants"].as_array().unwrap().iter().all(|invariant| invariant["holds"] == true));
}

#[test]
fn a_command_that_has_moved_says_where() {
    assert_refused(&words("sim campaign --seeds 0..9"), "remora-lab campaign");
}
