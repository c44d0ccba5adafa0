//! Clients whose configuration is in etcd; and, in a program without it, that it says what is
//! missing.

mod support;

#[test]
#[cfg(not(feature = "etcd"))]
fn without_etcd_its_places_name_the_feature() {
    let line = "bench smallbank --connect 127.0.0.1:1 --configuration etcd://127.0.0.1:2";
    let ended = support::remora("etcd-absent", &support::words(line));
    assert_eq!((ended.code, ended.errors.lines().count()), (Some(2), 1), "{}", ended.errors);
    assert!(["--configuration", "--features etcd"].iter().all(|name| ended.errors.contains(name)), "{}", ended.errors);
}

#[cfg(feature = "etcd")]
#[path = "../../membership/tests/etcd_support/server.rs"]
mod server;

#[cfg(feature = "etcd")]
#[path = "../../membership/tests/etcd_support/issued.rs"]
mod issued;

#[cfg(feature = "etcd")]
mod present {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use serde_json::Value;

    use super::issued::{Issued, write};
    use super::server::Server;
    use super::support::{Ended, PATIENCE, Process, assert_all_have_gone_on, listen, remora, scratch, words};

    const BANK: &str = "bench smallbank --threads 1 --coroutines 4 --report -";

    fn report(ended: &Ended) -> Value {
        serde_json::from_str(&ended.output).unwrap_or_else(|_| panic!("no report: {} {}", ended.output, ended.errors))
    }

    fn is_sound(report: &Value) -> bool {
        let invariants = report["invariants"].as_array().unwrap();
        invariants.len() == 4 && invariants.iter().all(|one| one["holds"] == true)
    }

    fn length(history: &Path) -> u64 {
        fs::metadata(history).map_or(0, |file| file.len())
    }

    #[test]
    fn a_client_that_is_killed_is_recovered_by_others() {
        let (server, (_nodes, connect)) = (Server::start(), listen("etcd-kill", 3));
        let bank = format!("{BANK} --connect {connect} --configuration etcd://{}", server.address());
        let run = |who: &str, options: &str| report(&remora(who, &words(&format!("{bank} {options}"))));
        assert!(is_sound(&run("etcd-load", "--accounts 100 --transactions 100 --ledger")));
        let history = scratch("etcd-kill.jsonl");
        let _ = fs::remove_file(&history);
        let options = format!("{bank} --seconds 600 --history {}", history.display());
        let mut victim = Process::start("etcd-victim", &words(&options));
        victim.wait_until("a history", |_| length(&history) > 0);
        let beside = run("etcd-beside", "--transactions 100");
        assert!(beside["invariants"][0]["detail"].as_str().unwrap().contains("at work"), "{beside:#}");
        victim.kill();
        // etcd first has to notice that the process has ended.
        let began = Instant::now();
        loop {
            let checked = run("etcd-check", "--check");
            if is_sound(&checked) {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{checked:#}");
        }
        let status = report(&remora("etcd-status", &["status", "--connect", &connect, "--report", "-"]));
        assert!(status["nodes"].as_array().unwrap().iter().all(|node| node["clients"] == 0), "{status:#}");
    }

    /// Four memory nodes, one of them empty; four clients, two controllers. A memory node with
    /// primaries is killed, and comes back empty.
    #[test]
    fn memory_nodes_are_killed() {
        let server = Server::start();
        for protocol in ["drtm-r", "ford"] {
            let csv = scratch(&format!("etcd-drill-{protocol}.csv"));
            let drill = format!(
                "drill --kill nodes --memory-nodes 4 --spares 1 --protocol {protocol} --every 6 --seconds 6 --lease-ms 500 \
                 --accounts 200 --rate 1000 --report - --csv {} --configuration etcd://{}",
                csv.display(),
                server.address()
            );
            let ended = remora(&format!("etcd-drill-{protocol}"), &words(&drill));
            assert_eq!(ended.code, Some(0), "{} {}", ended.output, ended.errors);
            let report = report(&ended);
            assert_eq!((&report["kills"], &report["histories"]["anomalies"]), (&1.into(), &0.into()), "{report:#}");
            assert_eq!(report["copies_ms"].as_array().unwrap().len(), 1, "{report:#}");
            let timeline = fs::read_to_string(csv).unwrap();
            // The node is killed, started again, and its copies are restored.
            assert!(timeline.matches(",node-").count() == 3 && !timeline.contains(",node-3"), "not the spare");
            assert_all_have_gone_on(&timeline, 4);
        }
    }

    #[test]
    fn transactions_go_on_while_etcd_is_away() {
        let (mut server, (_nodes, connect)) = (Server::start(), listen("etcd-away", 3));
        let bank = format!("{BANK} --accounts 100 --connect {connect} --configuration etcd://{}", server.address());
        let history = scratch("etcd-away.jsonl");
        let _ = fs::remove_file(&history);
        let options = format!("{bank} --ledger --seconds 600 --history {}", history.display());
        let mut client = Process::start("etcd-away", &words(&options));
        client.wait_until("a history", |_| length(&history) > 0);
        server.signal("-STOP");
        let stopped = Instant::now();
        // Longer than the lease, and longer than a client needs to notice that etcd does not
        // answer. In long runs it is a minute.
        let away = if std::env::var_os("REMORA_LONG").is_some() { 60 } else { 5 };
        client.wait_until("a pause", |_| stopped.elapsed() > Duration::from_secs(away));
        let before = length(&history);
        client.wait_until("more history", |_| length(&history) > before + (256 << 10));
        server.signal("-CONT");
        client.wait_until("a pause", |_| stopped.elapsed() > Duration::from_secs(away + 3));
        // The new etcd does not know any more which clients are alive, and the clients tell it.
        server.kill();
        let (killed, before) = (Instant::now(), length(&history));
        client.wait_until("a pause", |_| killed.elapsed() > Duration::from_secs(1));
        server.start_again();
        client.wait_until("a pause", |_| killed.elapsed() > Duration::from_secs(9));
        assert!(length(&history) > before + (256 << 10));
        client.signal(rustix::process::Signal::INT);
        let ended = report(&client.wait());
        assert!(is_sound(&ended) && ended["fenced"] == 0, "{ended:#}");
    }

    #[test]
    fn etcd_is_reached_by_tls_and_as_a_user() {
        let (issued, (_nodes, connect)) = (Issued::new("options"), listen("etcd-tls", 3));
        let server = Server::start_with(&issued.arguments());
        let file = |name: &str| issued.file(name).display().to_string();
        let bank = format!("{BANK} --accounts 100 --connect {connect} --configuration etcd://{}", server.address());
        let by = |who: &str, options: &str| remora(who, &words(&format!("{bank} --transactions 1000 {options}")));
        let ca = format!("--etcd-ca {}", file("ca.pem"));
        let good = format!("{ca} --etcd-cert {} --etcd-key {}", file("client.pem"), file("client.key"));
        assert!(is_sound(&report(&by("etcd-tls", &format!("{good} --ledger")))));
        for (who, options) in [("etcd-plain", ""), ("etcd-nobody", &*ca)] {
            let refused = by(who, options);
            assert!(refused.code == Some(2) && refused.errors.contains(&server.address()), "{}", refused.errors);
        }
        // This etcd has no users, and says so.
        write(&issued.file("password"), "secret of many\n");
        let user = format!("{good} --etcd-user remora --etcd-password-file {}", file("password"));
        let refused = by("etcd-user", &user);
        assert!(refused.code == Some(2) && refused.errors.contains("not enabled"), "{}", refused.errors);
        assert!(!refused.errors.contains("secret"), "{}", refused.errors);
    }
}
