//! The handshake of a connection: before any verb, both ends say who they are, and prove it if
//! there is a key.
//!
//! ```text
//! client                                                              server
//!   ClientHello   magic, version, features, client, purpose, nonce  ->
//!                 <-  magic, version, features, regions, nonce   ServerHello
//!                 <-  HMAC-SHA256(key, "server" | both hellos)         Proof
//!   Proof         HMAC-SHA256(key, "client" | both hellos)          ->
//!                 <-  welcome, or why not                            Verdict
//! ```
//!
//! 1. Each proof covers both nonces, so it cannot be replayed. It names its role, so it cannot be
//!    reflected.
//! 2. The hello says whether an end has a key, and the proofs cover that as well. An end with a key
//!    refuses an end without one.
//! 3. Without keys the proofs are zeros, and no end checks them.
//!
//! An end may have two keys while the cluster changes its key. The server proves its first key. The
//! client accepts any of its own keys, and answers with the one that fits. The server then asks for
//! that key and no other. So neither end has to say which key it means. Each end looks up its keys
//! once for a handshake, and they do not change during it.
//!
//! The first sixteen bytes of both hellos are the same in all versions, so ends of different
//! versions can report the difference.
//!
//! After the handshake, plain TCP is neither encrypted nor signed. The key keeps out strangers and
//! mistakes, but not an attacker who can read or forge the packets of an open connection. TLS keeps
//! out such an attacker; the whole handshake is then inside of it. If one end speaks plain TCP and
//! the other TLS, the answer is a prefix that says so.
//!
//! ```text
//! Prefix       | magic : 8 bytes | version : u32 | features : u32 |
//! ClientHello  | Prefix | client : u32 | flags : u32 | nonce : 32 bytes |               56 bytes
//! ServerHello  | Prefix | flags : u32 | regions : u32 | bytes of each of 8 : u64
//!              | nonce : 32 bytes |                                                    120 bytes
//! Proof        | 32 bytes |
//! Verdict      | code : u64 |
//! ```

use std::io::{self, Read, Write};
use std::time::Instant;

use hmac::Mac;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::entropy::random;
use crate::error::{Fault, Refusal};
use crate::ids::ClientId;
use crate::limits::REGIONS_PER_NODE_MAX;
use crate::tcp::key::{Key, Keys, Pair};
use crate::tcp::stream::{Stream, Timed};
use crate::tcp::tls::{self, MAGIC, TlsReason};

/// Version of the frames and of this handshake. History: 1 is the first.
pub(crate) const VERSION: u32 = 1;

/// Extensions that this program knows. The two ends use the extensions that both know. There are
/// none yet.
const FEATURES: u32 = 0;

/// The feature bit by which a server answers in plain TCP that it speaks TLS only.
const TLS_ONLY: u32 = 1 << 31;

/// The first byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 22;

/// The flag of an end that has a key.
const HAS_KEY: u32 = 1;
/// The flag of a connection for questions and orders to the server, and not for verbs.
const ADMINISTRATION: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Prefix {
    magic: [u8; 8],
    version: U32,
    features: U32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ClientHello {
    prefix: Prefix,
    client: U32,
    flags: U32,
    nonce: [u8; 32],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ServerHello {
    prefix: Prefix,
    flags: U32,
    regions: U32,
    region_bytes: [U64; REGIONS_PER_NODE_MAX],
    nonce: [u8; 32],
}

/// The bytes by which an end proves that it has the key.
pub(crate) type Proof = [u8; 32];

const PREFIX: Prefix = Prefix { magic: MAGIC, version: U32::new(VERSION), features: U32::new(FEATURES) };
pub(crate) const PREFIX_BYTES: usize = size_of::<Prefix>();
pub(crate) const CLIENT_HELLO_BYTES: usize = size_of::<ClientHello>();
pub(crate) const SERVER_HELLO_BYTES: usize = size_of::<ServerHello>();
pub(crate) const PROOF_BYTES: usize = size_of::<Proof>();
// The server receives whole words.
const _: () = assert!(PREFIX_BYTES == 16 && CLIENT_HELLO_BYTES == 56 && SERVER_HELLO_BYTES == 120);

/// The answer of a server to a client's proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Welcome = 1,
    WrongKey = 2,
    Revoked = 3,
    Full = 4,
}

impl Verdict {
    pub(crate) fn from_word(word: u64) -> Option<Verdict> {
        [Verdict::Welcome, Verdict::WrongKey, Verdict::Revoked, Verdict::Full]
            .into_iter()
            .find(|one| *one as u64 == word)
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A client executes verbs.
    Verbs(ClientId),
    /// The connection is for questions and orders to the server.
    Administration,
}

/// The server's judgement of what it has received of a client's hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Greeting {
    /// More bytes must come.
    Incomplete,
    /// The bytes are not of this protocol.
    Foreign,
    /// The bytes are of another version, or of TLS that this end does not speak. The client gets
    /// this end's prefix and nothing more.
    OtherVersion,
    /// The hello is whole.
    Hello(ClientHello),
}

/// Parses the first bytes of a client.
pub(crate) fn greeting(bytes: &[u8]) -> Greeting {
    // An error is reported as soon as it is seen, because a stranger may never send a whole hello.
    if bytes.first() == Some(&TLS_HANDSHAKE) {
        return Greeting::OtherVersion;
    }
    let seen = bytes.len().min(MAGIC.len());
    if bytes[..seen] != MAGIC[..seen] {
        return Greeting::Foreign;
    }
    let Ok((prefix, _)) = Prefix::read_from_prefix(bytes) else { return Greeting::Incomplete };
    if prefix.version != VERSION {
        return Greeting::OtherVersion;
    }
    match ClientHello::read_from_prefix(bytes) {
        Ok((hello, _)) => Greeting::Hello(hello),
        Err(_) => Greeting::Incomplete,
    }
}

impl ClientHello {
    pub(crate) fn new(purpose: Purpose, has_key: bool, nonce: [u8; 32]) -> ClientHello {
        let (client, administration) = match purpose {
            Purpose::Verbs(client) => (client.0, 0),
            Purpose::Administration => (0, ADMINISTRATION),
        };
        let flags = administration | if has_key { HAS_KEY } else { 0 };
        ClientHello { prefix: PREFIX, client: client.into(), flags: flags.into(), nonce }
    }

    pub(crate) fn purpose(&self) -> Purpose {
        match self.flags.get() & ADMINISTRATION {
            0 => Purpose::Verbs(ClientId(self.client.get())),
            _ => Purpose::Administration,
        }
    }
}

impl ServerHello {
    pub(crate) fn new(regions: &[u64], has_key: bool, nonce: [u8; 32]) -> ServerHello {
        let mut region_bytes = [U64::ZERO; REGIONS_PER_NODE_MAX];
        region_bytes.iter_mut().zip(regions).for_each(|(slot, bytes)| slot.set(*bytes));
        ServerHello {
            prefix: PREFIX,
            flags: U32::new(if has_key { HAS_KEY } else { 0 }),
            regions: U32::new(regions.len() as u32),
            region_bytes,
            nonce,
        }
    }

    /// Returns the sizes of the node's regions, in bytes.
    pub(crate) fn region_bytes(&self) -> impl Iterator<Item = u64> + '_ {
        self.region_bytes.iter().take(self.regions.get() as usize).map(|bytes| bytes.get())
    }
}

/// Returns all that a server sends in answer to a hello that it refuses.
pub(crate) fn prefix_bytes(tls_only: bool) -> [u8; PREFIX_BYTES] {
    let features = U32::new(if tls_only { FEATURES | TLS_ONLY } else { FEATURES });
    zerocopy::transmute!(Prefix { features, ..PREFIX })
}

fn mac(key: &Key, role: &[u8], client: &ClientHello, server: &ServerHello) -> hmac::Hmac<sha2::Sha256> {
    key.mac(&[b"remora tcp ", role, b"\0", client.as_bytes(), server.as_bytes()])
}

/// Computes the server's proof. It is zeros without a key.
pub(crate) fn server_proof(key: Option<Key>, client: &ClientHello, server: &ServerHello) -> Proof {
    key.map_or([0; 32], |key| mac(&key, b"server", client, server).finalize().into_bytes().into())
}

/// Computes the client's proof. It is zeros without a key.
pub(crate) fn client_proof(key: Option<Key>, client: &ClientHello, server: &ServerHello) -> Proof {
    key.map_or([0; 32], |key| mac(&key, b"client", client, server).finalize().into_bytes().into())
}

/// Whether a client's proof is right. It compares in constant time.
pub(crate) fn check_client(key: Option<Key>, client: &ClientHello, server: &ServerHello, proof: &[u8]) -> bool {
    match key {
        Some(key) => mac(&key, b"client", client, server).verify_slice(proof).is_ok(),
        None => client.flags.get() & HAS_KEY == 0,
    }
}

/// Returns the key that the server has proved, if there are keys. It compares in constant time.
fn check_server(
    keys: Option<Pair>,
    client: &ClientHello,
    server: &ServerHello,
    proof: &Proof,
) -> Result<Option<Key>, Refusal> {
    match (keys, server.flags.get() & HAS_KEY != 0) {
        (None, false) => Ok(None),
        (None, true) => Err(Refusal::KeyNeeded),
        (Some(_), false) => Err(Refusal::NoKey),
        (Some(keys), true) => {
            let fits = |key: &Key| mac(key, b"server", client, server).verify_slice(proof).is_ok();
            keys.find(fits).map(Some).ok_or(Refusal::WrongKey)
        }
    }
}

/// Does the client's side of a handshake, on a new blocking stream. Returns the server's hello when
/// the client is welcome. It ends at the deadline, however slowly the other end speaks.
pub(crate) fn greet(
    stream: &mut Stream,
    keys: Option<&Keys>,
    purpose: Purpose,
    deadline: Instant,
) -> Result<ServerHello, Fault> {
    let is_tls = stream.is_tls();
    let mut socket = Timed { stream, deadline };
    socket.secure().map_err(lost)?;
    let nonce = random().map_err(|error| Fault::Refused(Refusal::Local(error)))?;
    let keys = keys.map(Keys::now);
    let ours = ClientHello::new(purpose, keys.is_some(), nonce);
    socket.write_all(ours.as_bytes()).map_err(lost)?;

    let mut bytes = [0; SERVER_HELLO_BYTES];
    let (prefix, rest) = bytes.split_at_mut(PREFIX_BYTES);
    socket.read_exact(prefix).map_err(lost)?;
    let theirs = Prefix::read_from_bytes(prefix).expect("a prefix has the length of a prefix");
    if theirs.magic != MAGIC {
        return Err(Fault::Refused(Refusal::Foreign));
    }
    if !is_tls && theirs.features.get() & TLS_ONLY != 0 {
        return Err(Fault::Refused(Refusal::Tls(TlsReason::Needed)));
    }
    if theirs.version != VERSION {
        return Err(Fault::Refused(Refusal::Version { found: theirs.version.get(), known: VERSION }));
    }
    socket.read_exact(rest).map_err(lost)?;
    let theirs = ServerHello::read_from_bytes(&bytes).expect("a hello has the length of a hello");
    let mut proof = [0; PROOF_BYTES];
    socket.read_exact(&mut proof).map_err(lost)?;
    let key = check_server(keys, &ours, &theirs, &proof).map_err(Fault::Refused)?;

    socket.write_all(&client_proof(key, &ours, &theirs)).map_err(lost)?;
    let mut verdict = [0; 8];
    socket.read_exact(&mut verdict).map_err(lost)?;
    match Verdict::from_word(u64::from_le_bytes(verdict)) {
        Some(Verdict::Welcome) => Ok(theirs),
        Some(Verdict::WrongKey) => Err(Fault::Refused(Refusal::WrongKey)),
        Some(Verdict::Revoked) => Err(Fault::Revoked),
        Some(Verdict::Full) => Err(Fault::Refused(Refusal::Full)),
        None => Err(Fault::Refused(Refusal::Foreign)),
    }
}

/// Converts the error of a connection that ended before the server had said everything.
fn lost(error: io::Error) -> Fault {
    Fault::Refused(match tls::reason(&error) {
        Some(reason) => {
            tracing::warn!(%error, "no TLS with a memory node");
            Refusal::Tls(reason)
        }
        None => error.into(),
    })
}

#[cfg(test)]
mod tests;
