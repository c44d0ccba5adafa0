//! `remora controller`: looks after memory nodes until it is told to stop.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;

use crate::history::HistoryTo;
use crate::meet::MeetArgs;
use crate::signals::stop_on_signals;
use crate::{Failure, Verdict, output};

#[derive(Debug, Args)]
#[command(after_help = "Example:
  remora controller --connect 10.0.0.7:7000,10.0.0.8:7000,10.0.0.9:7000 --configuration /var/lib/remora/bank

A memory node that does not answer is lost: the cluster goes on without it, in a new epoch, with the copies that the others
have, and makes new copies at nodes that have room. One that comes back with nothing is taken in again. Several controllers
may run at once; one acts, and another takes its place when it dies.

Prints one line when it is ready; SIGTERM, SIGINT and SIGHUP stop it. Exit status: 0 stopped, 2 it cannot do its work.")]
pub(crate) struct ControllerOptions {
    #[command(flatten)]
    meet: MeetArgs,
    /// Time without an answer after which a memory node counts as lost.
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    patience_ms: u64,
    /// Lease of this controller: after this time without a sign of life, another one takes its
    /// place.
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    lease_ms: u64,
    /// Copy at most MB megabytes a second when new copies are made.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    copy_mb: Option<u64>,
    /// Record the writes of dead clients that this controller puts back, as JSON lines. `remora
    /// check` needs them, together with the clients' histories.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

pub(crate) fn controller(options: &ControllerOptions) -> Result<Verdict, Failure> {
    let stop = stop_on_signals()?;
    options.meet.inputs().check(&[("--history", options.history.as_deref())])?;
    let history = options.history.as_deref().map(|path| HistoryTo::open("--history", path, true)).transpose()?;
    let cluster = options.meet.control(&stop, Duration::from_millis(options.patience_ms))?;
    if let Some(history) = &history {
        history.begin()?;
    }
    let cluster = HistoryTo::told_of_all(history.as_ref(), cluster);
    let cluster = cluster.with_lease(Some(Duration::from_millis(options.lease_ms)));
    let rate = options.copy_mb.map(|megabytes| megabytes * 1_000_000);
    let controller = cluster.controller().map_err(|error| Failure::new("--connect", error))?;
    let mut controller = controller.with_copy_rate(rate);
    output::show(&format!("remora controller ready: client {}\n", controller.incarnation()))?;
    let has_said = Cell::new(false);
    let over = || {
        if !has_said.get() && history.as_ref().is_some_and(|history| history.is_cut()) {
            output::complain("the history cannot be written any more; the memory nodes are looked after all the same");
            has_said.set(true);
        }
        stop.load(Ordering::Relaxed)
    };
    controller.run(over);
    history.map_or(Ok(()), |history| history.finish())?;
    Ok(Verdict::Sound)
}
