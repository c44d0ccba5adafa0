//! TLS between processes; and, in a program without it, that its options say what is missing.

mod support;

use support::{Ended, remora, words};
#[cfg(feature = "tls")]
use support::{Node, scratch};

#[track_caller]
fn assert_refused(ended: &Ended, names: &[&str]) {
    let complaint = &ended.errors;
    assert_eq!((ended.code, ended.output.as_str()), (Some(2), ""), "{complaint}");
    assert!(complaint.starts_with("error: ") && complaint.lines().count() == 1, "{complaint}");
    assert!(names.iter().all(|name| complaint.contains(name)), "{names:?}: {complaint}");
}

/// A certificate for this host and its key, as docs/running.md has them made. `None` where there is
/// no openssl.
#[cfg(feature = "tls")]
fn certificate(name: &str) -> Option<[String; 2]> {
    certificate_with(name, "subjectAltName=IP:127.0.0.1")
}

#[cfg(feature = "tls")]
fn certificate_with(name: &str, extension: &str) -> Option<[String; 2]> {
    let [certificate, key] =
        ["pem", "key"].map(|kind| scratch(&format!("{name}.{kind}")).to_str().expect("text").to_owned());
    let made = std::process::Command::new("openssl")
        .args(words("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -subj /CN=memory"))
        .args(["-addext", extension, "-keyout", &key, "-out", &certificate])
        .output();
    match made {
        Ok(made) => assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr)),
        Err(_) => {
            eprintln!("skipped: no openssl here");
            return None;
        }
    }
    Some([certificate, key])
}

#[test]
#[cfg(feature = "tls")]
fn clients_and_nodes_talk_tls() {
    let (Some([pem, key]), Some([other, _])) = (certificate("tls-node"), certificate("tls-other")) else { return };
    let secret = Node::listen("tls-node", &format!("--tls-cert {pem} --tls-key {key}"));
    let plain = Node::listen("tls-plain", "");
    let bank = |name: &str, node: &Node, options: &str| {
        let line = format!(
            "bench smallbank --threads 1 --replicas 1 --accounts 10 --transactions 10 --connect {}",
            node.address()
        );
        remora(name, &[&words(&line)[..], &words(options)[..]].concat())
    };
    let ran = bank("tls-bank", &secret, &format!("--tls-ca {pem}"));
    assert_eq!(ran.code, Some(0), "{}", ran.errors);
    assert_refused(&bank("tls-none", &secret, ""), &[secret.address(), "asks for TLS", "--tls-ca"]);
    assert_refused(&bank("tls-wrong", &secret, &format!("--tls-ca {other}")), &[secret.address(), "not to be trusted"]);
    assert_refused(&bank("tls-to-plain", &plain, &format!("--tls-ca {pem}")), &[plain.address(), "--tls-cert"]);
    assert_refused(
        &bank("tls-no-file", &secret, "--tls-ca /nonexistent"),
        &["--tls-ca /nonexistent", "No such file or directory"],
    );

    let status = |options: &str| {
        remora("tls-status", &[&["status", "--connect", secret.address()], &words(options)[..]].concat())
    };
    assert_eq!(status(&format!("--tls-ca {pem}")).code, Some(0));
    let refused = status("");
    assert!(refused.code == Some(1) && refused.output.contains("asks for TLS"), "{}", refused.output);

    let serve = |options: &str| {
        let line = format!("memnode --listen 127.0.0.1:0 --size 1MiB {options}");
        remora("tls-serve", &words(&line))
    };
    assert_refused(&serve(&format!("--tls-cert {pem}")), &["--tls-key"]);
    assert_refused(
        &serve(&format!("--tls-cert {other} --tls-key {key}")),
        &["--tls-cert", "not that of the certificate"],
    );
    assert_refused(&serve(&format!("--tls-cert {pem} --tls-key {pem}")), &["--tls-key", "others may read"]);
}

/// Clients of Redis, which is Redis' own where there is one that was built with TLS.
#[test]
#[cfg(feature = "tls")]
fn clients_of_redis_talk_tls() {
    let clients = certificate_with("tls-clients", "basicConstraints=critical,CA:FALSE");
    let (Some([pem, key]), Some([own, own_key])) = (certificate("tls-gateway"), clients) else { return };
    let up = |name: &str, options: &str, script: &str| {
        let line = format!("up --size 64MiB --listen 127.0.0.1:0 {options} --exec");
        remora(name, &[&words(&line)[..], &[script]].concat())
    };
    assert_refused(
        &up("tls-up-key", &format!("--tls-cert {pem} --tls-key {pem}"), "true"),
        &["--tls-key", "others may"],
    );
    let nowhere = format!("--tls-cert {pem} --tls-key {key} --tls-client-ca /nonexistent");
    assert_refused(&up("tls-up-ca", &nowhere, "true"), &["--tls-c", "No such file or directory"]);
    let has_tls = std::process::Command::new("redis-cli").arg("--help").output();
    if !has_tls.is_ok_and(|help| [help.stdout, help.stderr].concat().windows(8).any(|words| words == b"--cacert")) {
        return eprintln!("skipped: no redis-cli with TLS here");
    }
    // Each certificate is its own authority.
    let options = format!("--tls-cert {pem} --tls-key {key} --tls-client-ca {own}");
    let client = format!("redis-cli -p $REMORA_PORT --tls --cacert {pem} --cert {own} --key {own_key}");
    let ran = up("tls-up", &options, &format!("{client} set greeting hello; {client} get greeting"));
    assert_eq!((ran.code, &*ran.output), (Some(0), "OK\nhello\n"), "{}", ran.errors);
    for refused in [
        format!("redis-cli -p $REMORA_PORT --tls --cacert {pem} ping"),
        format!("redis-cli -p $REMORA_PORT --tls --cacert {own} --cert {own} --key {own_key} ping"),
        "redis-cli -p $REMORA_PORT ping".to_owned(),
    ] {
        let ran = up("tls-up-refused", &options, &refused);
        assert!(ran.code != Some(0) && !ran.output.contains("PONG"), "{refused}: {ran:?}");
    }
}

#[test]
#[cfg(not(feature = "tls"))]
fn without_tls_its_options_name_the_feature() {
    let missing = "--features tls";
    let serve = "memnode --listen 127.0.0.1:0 --size 1MiB --tls-cert node.pem --tls-key node.key";
    assert_refused(&remora("tls-absent", &words(serve)), &["--tls-cert node.pem", missing]);
    for client in ["bench smallbank", "status"] {
        let line = format!("{client} --connect 127.0.0.1:1 --tls-ca node.pem");
        assert_refused(&remora("tls-absent", &words(&line)), &["--tls-ca node.pem", missing]);
    }
}
