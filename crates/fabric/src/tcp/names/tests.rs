use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use super::*;

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Makes a resolver whose answers come through a channel, in the order of its calls. The counter
/// says how often it was called.
fn scripted() -> (Names, mpsc::Sender<io::Result<Vec<SocketAddr>>>, Arc<AtomicU32>) {
    let (answer, answers) = mpsc::channel();
    let (answers, calls) = (Mutex::new(answers), Arc::<AtomicU32>::default());
    let counted = calls.clone();
    let names = Names::asking(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        answers.lock().unwrap().recv().unwrap_or_else(|_| Err(io::Error::other("the test is over")))
    });
    (names, answer, calls)
}

/// Makes the last answer too old to count.
fn age(names: &Names, name: &str) {
    let mut known = names.shared.names();
    known.get_mut(name).expect("a name that was asked for").answered = None;
}

#[test]
fn addresses_need_no_resolver() {
    let (names, _answer, calls) = scripted();
    assert_eq!(names.find("127.0.0.1:7000"), Ok(vec![address(7000)]));
    assert_eq!(names.find("[::1]:7000"), Ok(vec!["[::1]:7000".parse().unwrap()]));
    names.prepare([&"127.0.0.1:7000".to_owned()]);
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[test]
fn a_name_that_was_reached_is_reached_while_the_resolver_is_silent_or_fails() {
    let (names, answer, calls) = scripted();
    answer.send(Ok(vec![address(1), address(2)])).unwrap();
    assert_eq!(names.find("node:7000"), Ok(vec![address(1), address(2)]));
    assert_eq!(names.find("node:7000"), Ok(vec![address(1), address(2)]), "an answer counts for a while");
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    names.met("node:7000", address(2));

    // The resolver is silent: only the first caller waits, and not for long.
    age(&names, "node:7000");
    let began = Instant::now();
    (0..100).for_each(|_| assert_eq!(names.find("node:7000"), Ok(vec![address(2)])));
    assert!(began.elapsed() < Duration::from_nanos(LOOKUP_NS) / 2, "it waits for a resolver that is stuck");

    // The lookup fails at last. A later one brings a new address.
    answer.send(Err(io::Error::other("failed to lookup address information: Try again"))).unwrap();
    let settled = |wanted: &dyn Fn(&Name) -> bool| {
        let mut known = names.shared.names();
        while !wanted(&known["node:7000"]) {
            known = names.shared.answered.wait(known).unwrap();
        }
    };
    settled(&|name| name.asked.is_none());
    assert_eq!(calls.load(Ordering::Relaxed), 2, "one lookup at a time");
    assert_eq!(names.find("node:7000"), Ok(vec![address(2)]), "a failure takes away nothing");
    answer.send(Ok(vec![address(3)])).unwrap();
    age(&names, "node:7000");
    let moved = names.find("node:7000").unwrap();
    settled(&|name| name.asked.is_none());
    assert!(moved == [address(3)] || names.find("node:7000") == Ok(vec![address(3)]), "it is where it is now");
}

#[test]
fn an_unknown_name_is_waited_for_once() {
    let (names, answer, calls) = scripted();
    names.prepare([&"silent:7000".to_owned(), &"other:7000".to_owned()]);
    // Pretend that these lookups began a while ago.
    for (_, name) in names.shared.names().iter_mut() {
        name.asked = name.asked.and_then(|asked| asked.checked_sub(Duration::from_nanos(LOOKUP_NS)));
    }
    let began = Instant::now();
    assert_eq!(names.find("silent:7000"), Err(NameError::Silent));
    assert_eq!(names.find("other:7000"), Err(NameError::Silent));
    assert!(began.elapsed() < Duration::from_nanos(LOOKUP_NS) / 2, "the deadline counts from when the lookup began");
    assert!(calls.load(Ordering::Relaxed) <= 2);
    drop(answer);
}

#[test]
fn a_failure_is_told_in_the_resolvers_words() {
    let (names, answer, _) = scripted();
    answer.send(Err(io::Error::other("failed to lookup address information: Name or service not known"))).unwrap();
    let error = names.find("nowhere:7000").unwrap_err();
    assert_eq!(error.to_string(), "Name or service not known");
    answer.send(Ok(Vec::new())).unwrap();
    assert_eq!(names.find("empty:7000").unwrap_err().to_string(), "it has no address");
}

#[test]
fn what_is_known_has_a_limit() {
    let names = Names::asking(|_| Ok(vec![address(1)]));
    (0..2 * NAMES_MAX).for_each(|number| assert_eq!(names.find(&format!("n{number}:1")), Ok(vec![address(1)])));
    assert!(names.shared.names().len() <= NAMES_MAX);
}

#[test]
fn addresses_have_a_host_and_a_port() {
    assert!(["localhost:0", "127.0.0.1:7000", "[::1]:65535"].into_iter().all(is_address));
    assert!(!["", "7000", ":7000", "localhost", "localhost:", "localhost:x", "::1:65536"].into_iter().any(is_address));
}
