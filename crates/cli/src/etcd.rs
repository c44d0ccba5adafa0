//! Options for a configuration in etcd: TLS and the user.

use std::path::{Path, PathBuf};

use clap::Args;
use remora::connect::{EtcdTls, EtcdUser, Nodes, Place};
use remora_command::inputs::Inputs;
use serde::Serialize;

use crate::{Failure, value};

/// Heading of these options in `--help`.
const HEADING: &str = "Configuration in etcd";

/// Options that `--configuration etcd://...` cannot have in its address.
#[derive(Clone, Debug, Args, Serialize)]
pub(crate) struct EtcdArgs {
    /// Talk TLS to etcd, and trust these certificates: PEM, of an authority or its servers' own.
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "configuration")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "value::serialize_path")]
    etcd_ca: Option<PathBuf>,
    /// Show etcd this certificate: PEM.
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires_all = ["etcd_ca", "etcd_key"])]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "value::serialize_path")]
    etcd_cert: Option<PathBuf>,
    /// The private key to that certificate: PEM. Refused if other users may read it.
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "etcd_cert")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "value::serialize_path")]
    etcd_key: Option<PathBuf>,
    /// User name in etcd.
    #[arg(long, help_heading = HEADING, value_name = "NAME", requires_all = ["configuration", "etcd_password_file"])]
    #[serde(skip_serializing_if = "Option::is_none")]
    etcd_user: Option<String>,
    /// File with that user's password. Refused if other users may read it.
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "etcd_user")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "value::serialize_path")]
    etcd_password_file: Option<PathBuf>,
}

impl EtcdArgs {
    /// Returns the files that a client of a cluster reads: the files of these options, and the
    /// given ones.
    pub(crate) fn inputs_with(
        &self,
        connect: Option<&Nodes>,
        configuration: Option<&Place>,
        key_file: Option<&Path>,
        tls_ca: Option<&Path>,
    ) -> Inputs {
        Inputs::default()
            .with("--key-file", key_file)
            .with("--tls-ca", tls_ca)
            .with_configuration(configuration)
            .with_nodes(connect)
            .with("--etcd-ca", self.etcd_ca.as_deref())
            .with("--etcd-cert", self.etcd_cert.as_deref())
            .with("--etcd-key", self.etcd_key.as_deref())
            .with("--etcd-password-file", self.etcd_password_file.as_deref())
    }

    /// Completes the place of a configuration with these options.
    pub(crate) fn complete(&self, mut place: Option<Place>) -> Result<Option<Place>, Failure> {
        let Some(Place::Etcd(options)) = &mut place else {
            let given = [("--etcd-ca", self.etcd_ca.is_some()), ("--etcd-user", self.etcd_user.is_some())];
            let why = "is for a configuration in etcd: --configuration etcd://host:port";
            return given
                .iter()
                .find(|(_, given)| *given)
                .map_or(Ok(place), |(option, _)| Err(Failure::new(option, why)));
        };
        options.tls =
            self.etcd_ca.clone().map(|ca| EtcdTls { ca, identity: self.etcd_cert.clone().zip(self.etcd_key.clone()) });
        if let Some((name, password)) = self.etcd_user.as_ref().zip(self.etcd_password_file.as_ref()) {
            let user = EtcdUser::read(name, password);
            options.user = Some(user.map_err(|error| Failure::new("--etcd-password-file", error))?);
        }
        Ok(place)
    }
}
