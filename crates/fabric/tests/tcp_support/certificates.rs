//! Certificates for tests, in files of their own.
#![allow(dead_code, unreachable_pub, reason = "each test file uses what it needs of it")]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use remora_fabric::tcp::tls::{ClientTls, ServerTls};

/// A certificate, its key, and the certificates to trust for it. The files are removed with it.
pub struct Issued {
    directory: PathBuf,
}

impl Drop for Issued {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Issued {
    /// Makes a self-signed certificate that does not say what it may be used for.
    pub fn self_signed(host: &str) -> Issued {
        Issued::by_itself(CertificateParams::new([host.to_owned()]).unwrap())
    }

    /// Makes a self-signed certificate as `openssl req -x509` does: it says that it belongs to an
    /// authority.
    pub fn self_signed_authority(host: &str) -> Issued {
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Issued::by_itself(params)
    }

    pub fn expired(host: &str) -> Issued {
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_after = date_time_ymd(2001, 1, 1);
        params.not_before = date_time_ymd(2000, 1, 1);
        Issued::by_itself(params)
    }

    fn by_itself(params: CertificateParams) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Issued::write(&certificate, &certificate, &key.serialize_pem())
    }

    /// Makes a certificate that is signed by an authority of its own.
    pub fn signed(host: &str) -> Issued {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        Issued::write(&authority.pem(), &certificate.pem(), &key.serialize_pem())
    }

    fn write(trusted: &str, certificate: &str, key: &str) -> Issued {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("remora-tls-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let issued = Issued { directory };
        for (path, pem) in [(issued.trusted(), trusted), (issued.certificate(), certificate), (issued.key(), key)] {
            write_private(&path, pem);
        }
        issued
    }

    pub fn trusted(&self) -> PathBuf {
        self.directory.join("trusted.pem")
    }

    pub fn certificate(&self) -> PathBuf {
        self.directory.join("certificate.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.directory.join("key.pem")
    }

    pub fn server(&self) -> ServerTls {
        ServerTls::read(&self.certificate(), &self.key()).expect("good files")
    }

    pub fn client(&self) -> ClientTls {
        ClientTls::read(&self.trusted()).expect("a good file")
    }
}

pub fn write_private(path: &Path, text: &str) {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}
