//! The lookup of memory nodes' names: on separate threads, with a deadline, and with a memory of
//! earlier answers.
//!
//! The system's resolver blocks its caller, for many seconds if a name server is silent. The
//! threads that keep leases and lead epochs also make connections. So none of them calls the
//! resolver:
//!
//! 1. A separate thread looks a name up. There is at most one for each name, however many
//!    connections want it.
//! 2. Callers wait for its answer until a deadline, which counts from the beginning of the lookup.
//!    So a lookup that is stuck delays only its first callers.
//! 3. For a name with a known address, the deadline is [`LOOKUP_AGAIN_NS`]. After it, the known
//!    address is used. So a node that has been reached before is reached again while the name
//!    server is silent or fails.
//! 4. An answer that comes in time replaces the known address. So a node that has moved is found
//!    where it is now.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::NameError;
use crate::limits::{LOOKUP_AGAIN_NS, LOOKUP_NS, NAMES_MAX};

/// The time for which an answer counts. The threads of a client connect one after the other, and
/// need one lookup together.
const ANSWER_COUNTS: Duration = Duration::from_secs(1);

/// The number of different error texts that are kept. Further texts are not told apart. The
/// system's resolver has some twenty.
const TEXTS_MAX: usize = 64;

type Resolver = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// The known addresses of names. Clones share what they know. The default is shared by the whole
/// process.
#[derive(Clone)]
pub struct Names {
    shared: Arc<Shared>,
}

struct Shared {
    resolver: Box<Resolver>,
    names: Mutex<BTreeMap<String, Name>>,
    answered: Condvar,
}

/// What is known about a name.
#[derive(Debug, Default)]
struct Name {
    /// The time at which the present lookup began.
    asked: Option<Instant>,
    /// Whether the log has been told that the lookup is stuck.
    told: bool,
    /// The time at which the last lookup ended, and its result.
    answered: Option<(Instant, Result<(), NameError>)>,
    /// The addresses of the last good answer, or the one at which a memory node was reached since.
    known: Vec<SocketAddr>,
}

impl Name {
    /// Returns the result of the last lookup, if it still counts.
    fn outcome(&self) -> Option<Result<(), NameError>> {
        self.answered.filter(|(when, _)| when.elapsed() < ANSWER_COUNTS).map(|(_, outcome)| outcome)
    }

    /// Returns the known addresses, or this error if there are none.
    fn known_or(&self, error: NameError) -> Result<Vec<SocketAddr>, NameError> {
        if self.known.is_empty() { Err(error) } else { Ok(self.known.clone()) }
    }
}

impl Names {
    /// Makes names that are looked up by this function and not by the system. They share nothing
    /// with other `Names`.
    pub fn asking(resolver: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> Names {
        let shared = Shared { resolver: Box::new(resolver), names: Mutex::default(), answered: Condvar::new() };
        Names { shared: Arc::new(shared) }
    }

    /// Begins to look up names that will be needed soon, side by side.
    pub(crate) fn prepare<'n>(&self, names: impl IntoIterator<Item = &'n String>) {
        let mut known = self.shared.names();
        for name in names.into_iter().filter(|name| name.parse::<SocketAddr>().is_err()) {
            self.ask(&mut known, name);
        }
    }

    /// Returns the addresses of a name, `host:port`: those of an answer that comes in time, or else
    /// the known ones.
    pub(crate) fn find(&self, name: &str) -> Result<Vec<SocketAddr>, NameError> {
        if let Ok(address) = name.parse() {
            return Ok(vec![address]);
        }
        let mut names = self.shared.names();
        self.ask(&mut names, name);
        loop {
            let Some(one) = names.get_mut(name) else { return Err(NameError::Silent) };
            if let Some(outcome) = one.outcome() {
                return one.known_or(outcome.err().unwrap_or(NameError::Failed("it has no address")));
            }
            let patience = Duration::from_nanos(if one.known.is_empty() { LOOKUP_NS } else { LOOKUP_AGAIN_NS });
            let left = one.asked.map_or(Duration::ZERO, |asked| patience.saturating_sub(asked.elapsed()));
            if left.is_zero() {
                if !std::mem::replace(&mut one.told, true) {
                    tracing::warn!(name, known = ?one.known, "the resolver (DNS) does not answer");
                }
                return one.known_or(NameError::Silent);
            }
            let waited = self.shared.answered.wait_timeout(names, left);
            names = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Records that a memory node was reached at this address, by this name.
    pub(crate) fn met(&self, name: &str, address: SocketAddr) {
        if let Some(one) = self.shared.names().get_mut(name) {
            one.known = vec![address];
        }
    }

    /// Begins a lookup of a name, unless one is under way or has just ended.
    fn ask(&self, names: &mut BTreeMap<String, Name>, name: &str) {
        if names.len() >= NAMES_MAX && !names.contains_key(name) {
            names.retain(|_, one| one.asked.is_some());
        }
        let one = names.entry(name.to_owned()).or_default();
        if one.asked.is_some() || one.outcome().is_some() {
            return;
        }
        (one.asked, one.told) = (Some(Instant::now()), false);
        let (shared, asked) = (self.shared.clone(), name.to_owned());
        let look_up = move || {
            let answer = (shared.resolver)(&asked);
            shared.note(&mut shared.names(), &asked, answer);
        };
        if let Err(error) = thread::Builder::new().name("names".to_owned()).spawn(look_up) {
            self.shared.note(names, name, Err(error));
        }
    }
}

impl Shared {
    fn names(&self) -> MutexGuard<'_, BTreeMap<String, Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the end of a lookup.
    fn note(&self, names: &mut BTreeMap<String, Name>, name: &str, answer: io::Result<Vec<SocketAddr>>) {
        let one = names.entry(name.to_owned()).or_default();
        one.asked = None;
        let outcome = match answer {
            Ok(addresses) => {
                one.known = addresses;
                Ok(())
            }
            Err(error) => {
                let error = said(&error);
                tracing::warn!(name, %error, known = ?one.known, "a name does not resolve");
                Err(error)
            }
        };
        one.answered = Some((Instant::now(), outcome));
        self.answered.notify_all();
    }
}

impl Default for Names {
    /// Returns the names that the whole process shares, and that the system looks up.
    fn default() -> Names {
        static NAMES: OnceLock<Names> = OnceLock::new();
        NAMES.get_or_init(|| Names::asking(|name| name.to_socket_addrs().map(Iterator::collect))).clone()
    }
}

/// Returns the resolver's words. They are kept for good, so that errors which are copied can have
/// them.
fn said(error: &io::Error) -> NameError {
    static TEXTS: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let text = error.to_string();
    // The standard library puts its own words in front of the resolver's.
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    NameError::Failed(match texts.get(text) {
        Some(known) => known,
        None if texts.len() >= TEXTS_MAX => "the resolver failed",
        None => {
            let text: &'static str = text.to_owned().leak();
            texts.insert(text);
            text
        }
    })
}

/// Whether a text has the form `host:port`.
#[must_use]
pub fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("names", &*self.shared.names()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
