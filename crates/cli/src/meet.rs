//! Options of commands that show or change a running cluster: its memory nodes, its configuration
//! and its key.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use remora::Cluster;
use remora::connect::{ConnectError, ConnectOptions, Nodes, Place};
use remora_command::inputs::Inputs;

use crate::etcd::EtcdArgs;
use crate::memnode::{read_client_tls, read_keys};
use crate::{Failure, value};

#[derive(Debug, Args)]
pub(crate) struct MeetArgs {
    /// The memory nodes: host:port of each, or shm: and the path of each.
    #[arg(long, value_name = "ADDR,...", required = true, value_parser = value::nodes())]
    pub(crate) connect: Nodes,
    /// The configuration, as the clients name it [default: beside the first file, if memory nodes
    /// are files].
    #[arg(long, value_name = "FILE|etcd://...", value_parser = value::place())]
    pub(crate) configuration: Option<Place>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    /// The key that the memory nodes ask for.
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Use TLS, and trust these certificates: PEM, of an authority or of the memory nodes.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
}

impl MeetArgs {
    /// Returns the files that these options name, which the command reads.
    pub(crate) fn inputs(&self) -> Inputs {
        let (key_file, tls_ca) = (self.key_file.as_deref(), self.tls_ca.as_deref());
        self.etcd.inputs_with(Some(&self.connect), self.configuration.as_ref(), key_file, tls_ca)
    }

    /// Connects as a client, unless a signal has set `stop` before it is connected.
    pub(crate) fn connect(&self, stop: &Arc<AtomicBool>) -> Result<Cluster, Failure> {
        self.connect_as(stop, ConnectOptions::default())
    }

    /// Connects as a controller. A memory node that does not answer for `patience` counts as dead.
    pub(crate) fn control(&self, stop: &Arc<AtomicBool>, patience: Duration) -> Result<Cluster, Failure> {
        self.connect_as(stop, ConnectOptions::default().patience(patience).controls(true))
    }

    fn connect_as(&self, stop: &Arc<AtomicBool>, options: ConnectOptions) -> Result<Cluster, Failure> {
        if self.configuration.is_none() && matches!(self.connect, Nodes::Tcp(_)) {
            return Err(Failure::new("--configuration", "is needed: controllers and clients meet there"));
        }
        let connect = options
            .nodes(&self.connect)
            .keys(self.key_file.as_deref().map(read_keys).transpose()?)
            .tls(self.tls_ca.as_deref().map(read_client_tls).transpose()?)
            .configuration(self.etcd.complete(self.configuration.clone())?)
            .interrupt(stop.clone());
        connect.open().map_err(|error| blame(&error))
    }
}

/// Makes the failure of a connection to memory nodes. It names the option to change.
pub(crate) fn blame(error: &ConnectError) -> Failure {
    let option = match error {
        ConnectError::Configuration(_) | ConnectError::OtherConfiguration { .. } => "--configuration",
        _ => "--connect",
    };
    Failure::new(option, error)
}
