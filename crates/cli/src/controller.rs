//! `remora controller`: looks after memory nodes until it is told to stop.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use clap::Args;
use remora::{Cluster, ConnectError, ConnectOptions, Nodes, Place};

use crate::connected::stop_on_signals;
use crate::etcd::EtcdArgs;
use crate::memnode::{read_client_tls, read_key};
use crate::{Failure, Verdict, output};

#[derive(Debug, Args)]
#[command(after_help = "Example:
  remora controller --connect 10.0.0.7:7000,10.0.0.8:7000,10.0.0.9:7000 --configuration /var/lib/remora/bank

A memory node that does not answer is lost: the cluster goes on without it, in a new epoch, with the copies that the others
have. Several controllers may run at once; one acts, and another takes its place when it dies.

Prints one line when it is ready; SIGTERM and SIGINT stop it. Exit status: 0 stopped, 2 it cannot do its work.")]
pub(crate) struct ControllerOptions {
    /// The memory nodes: host:port of each.
    #[arg(long, value_name = "ADDR,...", required = true)]
    connect: Nodes,
    /// What the clients name with the same option. Beside the first file of memory nodes if they are files.
    #[arg(long, value_name = "FILE|etcd://...")]
    configuration: Option<Place>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// The key that the memory nodes ask for.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Talk TLS to them, and trust these certificates: PEM, of an authority or their own.
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// A memory node that leaves a question unanswered for so long is lost.
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    patience_ms: u64,
    /// So long may this controller give no sign of life until another one takes its place.
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    lease_ms: u64,
}

pub(crate) fn controller(options: &ControllerOptions) -> Result<Verdict, Failure> {
    if options.configuration.is_none() && matches!(options.connect, Nodes::Tcp(_)) {
        return Err(Failure::new("--configuration", "is needed: a controller and its clients meet there"));
    }
    let stop = stop_on_signals()?;
    let connect = ConnectOptions {
        key: options.key_file.as_deref().map(read_key).transpose()?,
        tls: options.tls_ca.as_deref().map(read_client_tls).transpose()?,
        configuration: options.etcd.complete(options.configuration.clone())?,
        patience: Some(Duration::from_millis(options.patience_ms)),
        ..ConnectOptions::default()
    };
    let cluster = Cluster::connect(&options.connect, &connect).map_err(|error| match error {
        ConnectError::Configuration(error) => Failure::new("--configuration", error),
        error => Failure::new("--connect", error),
    })?;
    let cluster = cluster.with_lease(Some(Duration::from_millis(options.lease_ms)));
    let mut controller = cluster.controller().map_err(|error| Failure::new("--connect", error))?;
    output::show(&format!("remora controller ready: client {}\n", controller.incarnation()));
    let over = || stop.load(Ordering::Relaxed);
    controller.run(over);
    // One that was taken for dead, because it was kept from running, takes its place again.
    while controller.is_fenced() && !over() {
        match cluster.controller() {
            Ok(another) => {
                output::complain(&format!("taken for dead: begins anew as client {}", another.incarnation()));
                controller = another;
                controller.run(over);
            }
            Err(error) => {
                output::complain(&format!("taken for dead, and cannot begin anew yet: {error}"));
                thread::sleep(Duration::from_millis(options.lease_ms));
            }
        }
    }
    Ok(Verdict::Sound)
}
