//! Passwords: `AUTH` and `HELLO`.
//!
//! 1. The gateway keeps the SHA-256 of the password. Hashes are compared in constant time.
//! 2. A wrong password is answered after [`DELAY`]. If its address has given more than
//!    [`FAILURES_MAX`] in a minute, it is answered after [`LONG_DELAY`]. The connection waits
//!    without a lane.
//! 3. What clients send as a password is neither logged nor counted by its text.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use remora_redis::Error;
use remora_resp::{ReplyWriter, Version, number};
use sha2::{Digest, Sha256};

use super::clients::{canonical, check_name};
use super::counters::Event;
use super::{After, Local, Peer, REDIS_VERSION, Server, locked};
use crate::clock;

/// After which time a wrong password is answered.
pub(super) const DELAY: Duration = Duration::from_millis(250);
/// The time after which a wrong password is answered if its address has given many.
pub(super) const LONG_DELAY: Duration = Duration::from_secs(2);
/// The number of wrong passwords of an address in a minute that are answered soon.
const FAILURES_MAX: u32 = 10;
const MINUTE: Duration = Duration::from_secs(60);
/// The largest number of addresses whose failures are remembered.
const ADDRESSES_MAX: usize = 4096;
/// Bytes of the longest password in a file.
const PASSWORD_BYTES_MAX: u64 = 4096;

const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// Where the password is.
#[derive(Clone, Default, Debug)]
pub enum PasswordSource {
    /// There is none: every client may do everything.
    #[default]
    None,
    /// It is this.
    Text(Vec<u8>),
    /// It is the content of this file, without a line end. Only the owner may read the file.
    File(PathBuf),
}

/// Why a password cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    /// The file cannot be read.
    #[error("the password file {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others than the owner may use the file.
    #[error("the password file {} has mode {mode:04o}: make it 0600", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// The permissions of the file.
        mode: u32,
    },
    /// The password is empty.
    #[error("the password is empty")]
    Empty,
    /// The password is too long.
    #[error("the password has more than {PASSWORD_BYTES_MAX} bytes")]
    Long,
}

type Hash = [u8; 32];

fn hash(password: &[u8]) -> Hash {
    Sha256::digest(password).into()
}

/// The password, and who has given wrong ones.
#[derive(Debug)]
pub(super) struct Logins {
    source: PasswordSource,
    is_needed: AtomicBool,
    hash: Mutex<Option<Hash>>,
    failures: Mutex<HashMap<IpAddr, (Instant, u32)>>,
}

impl Logins {
    pub(super) fn new(source: PasswordSource) -> Result<Logins, PasswordError> {
        let logins =
            Logins { source, is_needed: AtomicBool::new(false), hash: Mutex::default(), failures: Mutex::default() };
        logins.reload()?;
        Ok(logins)
    }

    /// Reads the password again.
    pub(super) fn reload(&self) -> Result<(), PasswordError> {
        let password = match &self.source {
            PasswordSource::None => None,
            PasswordSource::Text(text) => Some(text.clone()),
            PasswordSource::File(path) => {
                let failed = |source| PasswordError::Read { path: path.clone(), source };
                let file = File::open(path).map_err(failed)?;
                // The permissions are those of the file that is open, whatever the path names now.
                let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
                if mode & 0o077 != 0 {
                    return Err(PasswordError::Mode { path: path.clone(), mode });
                }
                let mut text = Vec::new();
                file.take(PASSWORD_BYTES_MAX + 2).read_to_end(&mut text).map_err(failed)?;
                let end = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
                text.truncate(end);
                Some(text)
            }
        };
        match &password {
            Some(password) if password.is_empty() => return Err(PasswordError::Empty),
            Some(password) if password.len() as u64 > PASSWORD_BYTES_MAX => return Err(PasswordError::Long),
            _ => {}
        }
        *locked(&self.hash) = password.map(|password| hash(&password));
        self.is_needed.store(!matches!(self.source, PasswordSource::None), Ordering::Release);
        Ok(())
    }

    pub(super) fn is_needed(&self) -> bool {
        self.is_needed.load(Ordering::Acquire)
    }

    /// Whether a user has this password. Without a password of the gateway, any is right.
    fn accepts(&self, user: &[u8], password: &[u8]) -> bool {
        let wanted = *locked(&self.hash);
        let Some(wanted) = wanted else { return user == b"default" };
        let given = hash(password);
        let difference = wanted.iter().zip(&given).fold(0, |difference, (wanted, given)| difference | (wanted ^ given));
        std::hint::black_box(difference) == 0 && user == b"default"
    }

    /// Notes a wrong password. Returns after which time it is answered.
    fn note_failure(&self, address: IpAddr, now: Instant) -> Duration {
        let mut failures = locked(&self.failures);
        let is_old = |since: Instant| now.saturating_duration_since(since) >= MINUTE;
        if failures.len() >= ADDRESSES_MAX && !failures.contains_key(&address) {
            failures.retain(|_, (since, _)| !is_old(*since));
            if failures.len() >= ADDRESSES_MAX {
                return LONG_DELAY;
            }
        }
        let (since, count) = failures.entry(address).or_insert((now, 0));
        if is_old(*since) {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        if *count > FAILURES_MAX { LONG_DELAY } else { DELAY }
    }
}

/// Checks a user's password. Returns the delay of the answer if it is wrong.
fn check(server: &Server, peer: &mut Peer, local: &Local, user: &[u8], password: &[u8]) -> Option<After> {
    if server.logins.accepts(user, password) {
        peer.set_authenticated(true);
        return None;
    }
    local.counters.happened(Event::AuthFailure);
    Some(After::Delay(server.logins.note_failure(canonical(&peer.client.peer), clock::instant())))
}

/// Runs `AUTH`.
pub(super) fn auth(
    server: &Server,
    peer: &mut Peer,
    local: &Local,
    args: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<After, Error> {
    let (user, password) = match args {
        [_, _] if !server.needs_password() => {
            return Err(Error::new(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                 your configuration is correct?",
            ));
        }
        [_, password] => (&b"default"[..], *password),
        [_, user, password] => (*user, *password),
        _ => return Err(Error::SYNTAX),
    };
    let mut reply = ReplyWriter::new(out, peer.state.version);
    if let Some(delay) = check(server, peer, local, user, password) {
        reply.error(WRONG);
        return Ok(delay);
    }
    reply.simple("OK");
    Ok(After::Next)
}

/// Runs `HELLO`. All arguments are checked before the first of them takes effect.
pub(super) fn hello(
    server: &Server,
    peer: &mut Peer,
    local: &Local,
    args: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<After, Error> {
    let mut version = peer.state.version;
    if let Some(wanted) = args.get(1) {
        version = match number::parse_integer(wanted) {
            None => return Err(Error::new("ERR Protocol version is not an integer or out of range")),
            Some(2) => Version::Resp2,
            Some(3) => Version::Resp3,
            Some(_) => return Err(Error::new("NOPROTO unsupported protocol version")),
        };
    }
    let (mut login, mut name) = (None, None);
    let mut rest = args.get(2..).unwrap_or_default();
    while let [option, others @ ..] = rest {
        rest = match others {
            [user, password, rest @ ..] if option.eq_ignore_ascii_case(b"auth") => {
                login = Some((*user, *password));
                rest
            }
            [wanted, rest @ ..] if option.eq_ignore_ascii_case(b"setname") => {
                check_name(b"Client names", wanted)?;
                name = Some(wanted.to_vec());
                rest
            }
            _ => return Err(Error::of([b"ERR Syntax error in HELLO option '", *option, b"'"].concat())),
        };
    }
    if let Some((user, password)) = login
        && let Some(delay) = check(server, peer, local, user, password)
    {
        ReplyWriter::new(out, peer.state.version).error(WRONG);
        return Ok(delay);
    }
    if !peer.state.is_authenticated {
        return Err(no_auth("hello"));
    }
    if let Some(name) = name {
        peer.set_names(|names| names.name = name);
    }
    peer.state.version = version;
    let mut reply = ReplyWriter::new(out, version);
    reply.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(name);
        reply.bulk(value);
    }
    reply.bulk("proto");
    reply.integer(if version == Version::Resp3 { 3 } else { 2 });
    reply.bulk("id");
    reply.integer(peer.client.id as i64);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(name);
        reply.bulk(value);
    }
    reply.bulk("modules");
    reply.array(0);
    Ok(After::Next)
}

/// Returns the error of a command before the client has authenticated.
pub(crate) fn no_auth(command: &str) -> Error {
    if command == "hello" {
        return Error::new(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> \
             option can be used to authenticate the client and select the RESP protocol version at the same time",
        );
    }
    Error::new("NOAUTH Authentication required.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_wrong_passwords_of_an_address_wait_longer() {
        let logins = Logins::new(PasswordSource::Text(b"secret".to_vec())).unwrap();
        let (now, one, other) = (clock::instant(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for _ in 0..FAILURES_MAX {
            assert_eq!(logins.note_failure(one, now), DELAY);
        }
        assert_eq!(logins.note_failure(one, now), LONG_DELAY);
        assert_eq!(logins.note_failure(other, now), DELAY);
        assert_eq!(logins.note_failure(one, now + MINUTE), DELAY);
        for number in 0..ADDRESSES_MAX as u32 {
            logins.note_failure(IpAddr::from(number.to_be_bytes()), now);
        }
        assert_eq!(logins.note_failure(IpAddr::from([11, 0, 0, 1]), now), LONG_DELAY);
        assert_eq!(logins.note_failure(IpAddr::from([11, 0, 0, 1]), now + MINUTE * 2), DELAY);
    }

    #[test]
    fn only_the_default_user_has_the_password() {
        let logins = Logins::new(PasswordSource::Text(b"secret".to_vec())).unwrap();
        assert!(logins.accepts(b"default", b"secret"));
        assert!(!logins.accepts(b"default", b"secret2") && !logins.accepts(b"default", b""));
        assert!(!logins.accepts(b"other", b"secret"));
        assert!(matches!(Logins::new(PasswordSource::Text(Vec::new())), Err(PasswordError::Empty)));
    }
}
