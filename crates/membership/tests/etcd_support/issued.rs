//! Certificates for one test.
#![allow(dead_code, unreachable_pub, reason = "each test file uses what it needs of it")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// Writes a file that only its owner may read.
pub fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Certificates from an authority of their own: `ca.pem`, `server.pem`, `server.key`, `client.pem`,
/// `client.key`.
pub struct Issued(PathBuf);

impl Issued {
    pub fn new(name: &str) -> Issued {
        let folder = std::env::temp_dir().join(format!("remora-etcd-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        write(&folder.join("ca.pem"), &authority.pem());
        for (name, host) in [("server", "127.0.0.1"), ("client", "client")] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new([host.to_owned()]).unwrap();
            write(&folder.join(format!("{name}.pem")), &params.signed_by(&key, &authority).unwrap().pem());
            write(&folder.join(format!("{name}.key")), &key.serialize_pem());
        }
        Issued(folder)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the arguments of an etcd server that uses TLS and demands a client's certificate.
    pub fn arguments(&self) -> Vec<String> {
        let files = [("cert-file", "server.pem"), ("key-file", "server.key"), ("trusted-ca-file", "ca.pem")];
        let files = files.map(|(option, file)| format!("--{option}={}", self.file(file).display()));
        files.into_iter().chain(["--client-cert-auth".to_owned()]).collect()
    }
}

impl Drop for Issued {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
