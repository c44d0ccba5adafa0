//! The certificate that a gateway shows to clients.

use std::io;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use remora_fabric::tcp::tls::{ServerTls, TlsError, TlsSession};

use crate::clock;

/// How often the files are looked at, at most.
const LOOK: Duration = Duration::from_secs(1);

/// The files of a gateway's certificate, all in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, followed by the certificates that lead to one that clients trust.
    pub certificates: PathBuf,
    /// The private key of the certificate. Only its owner may read it.
    pub private_key: PathBuf,
    /// The certificates to which a client's certificate has to lead. If `None`, clients need none.
    pub clients: Option<PathBuf>,
}

/// What a gateway shows to clients that connect. Clones share it.
///
/// When a file has changed, it is read again, within a second. Connections that are open keep what
/// they were shown. Files that do not fit together, as while they are replaced, change nothing.
#[derive(Clone, Debug)]
pub struct Tls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: TlsFiles,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    tls: ServerTls,
    /// What the files looked like when they were read.
    stamp: Vec<Option<SystemTime>>,
    /// When they were looked at, in time since 1970.
    looked: Duration,
}

impl Tls {
    /// Reads the files.
    pub fn read(files: TlsFiles) -> Result<Tls, TlsError> {
        let state = State { stamp: files.stamp(), tls: files.read()?, looked: clock::since_1970() };
        Ok(Tls(Arc::new(Shared { files, state: Mutex::new(state) })))
    }

    /// Begins a session with a client.
    pub(super) fn session(&self, socket: TcpStream) -> io::Result<TlsSession> {
        let Shared { files, state } = &*self.0;
        // A thread that has panicked has left a state that is whole.
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::since_1970();
        if now.abs_diff(state.looked) >= LOOK {
            state.looked = now;
            let stamp = files.stamp();
            if stamp != state.stamp {
                state.stamp = stamp;
                match files.read().map(|tls| state.tls = tls) {
                    Ok(()) => tracing::info!("the certificate for clients was read again"),
                    Err(error) => tracing::warn!(%error, "the former certificate for clients stays"),
                }
            }
        }
        state.tls.session(socket)
    }
}

impl TlsFiles {
    fn read(&self) -> Result<ServerTls, TlsError> {
        match &self.clients {
            None => ServerTls::read(&self.certificates, &self.private_key),
            Some(clients) => ServerTls::read_for(&self.certificates, &self.private_key, clients),
        }
    }

    /// Returns when each file was changed last.
    fn stamp(&self) -> Vec<Option<SystemTime>> {
        let files = [Some(&self.certificates), Some(&self.private_key), self.clients.as_ref()].into_iter().flatten();
        files.map(|path| std::fs::metadata(path).ok()?.modified().ok()).collect()
    }
}
