//! `remora reclaim`: frees what clients of passive memory that are gone have left.

use std::path::PathBuf;

use clap::Args;
use remora::connect::{Nodes, Place};
use remora::node::{self, Reclaimed};
use remora::protocol::Protocol;
use remora::{Cluster, admin};

use crate::{Failure, Verdict, output, value};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  remora reclaim /mnt/pmem/p0                      # what is left there, and by whom
  remora reclaim --gone /mnt/pmem/p0 /mnt/pmem/p1  # after the host was down
  remora reclaim --blocks /mnt/pmem/p0             # the only node of a cluster: and what its killed clients had allocated
  remora reclaim --arrays /mnt/pmem/p0             # beside clients: parts of RACE hash tables that were split

Passive memory (memnode --passive) admits clients that can see and end one another: of one user, in one container of one running
host. The connections of others keep them out. Nothing in the memory shows that those are gone, so you have to say it.

With --gone you say that no process of another host, of this host before its last start, of another container or user uses the
memory any more. If one still does, it can destroy what others write. Transactions of clients that are gone are recovered by the
next clients.

Under protocol rtx, clients have room for the next values in hand. What a killed client had is lost until --blocks finds it: while
no client is connected, it reads all tables once. In RACE hash tables it also finds the parts that were split.
--arrays finds these alone, also while clients are connected, if all of them have leases.

Exit status: 0 nothing keeps clients of this host out; 1 processes of elsewhere do; 2 a file is no passive memory, or --blocks
cannot be done.")]
pub(crate) struct ReclaimOptions {
    /// The files of passive memory.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// All processes that used the memory from elsewhere are gone: free their connections, too.
    #[arg(long)]
    gone: bool,
    /// The files are all memory nodes of a cluster: find also the room for records that killed
    /// clients had in hand.
    #[arg(long, group = "cluster")]
    blocks: bool,
    /// The files are all memory nodes of a cluster: make parts of RACE hash tables usable again
    /// that were split, while clients go on.
    #[arg(long, group = "cluster")]
    arrays: bool,
    /// The configuration, as the clients name it [default: beside the first file].
    #[arg(long, value_name = "FILE|etcd://...", value_parser = value::place(), requires = "cluster")]
    configuration: Option<Place>,
}

pub(crate) fn reclaim(options: &ReclaimOptions) -> Result<Verdict, Failure> {
    let mut verdict = Verdict::Sound;
    for path in &options.paths {
        let name = path.display().to_string();
        let Reclaimed { freed, alive, elsewhere, .. } =
            node::reclaim(path, options.gone).map_err(|error| Failure::new(&name, error))?;
        // The line must be one line, whatever characters the path has.
        let name = output::printable(&name);
        let line =
            format!("{name}: {freed} connections freed, {alive} of live clients, {elsewhere} of processes elsewhere\n");
        output::show(&line)?;
        if elsewhere > 0 {
            verdict = Verdict::Unsound;
        }
    }
    if options.blocks {
        output::show(&blocks(options)?)?;
    }
    if options.arrays {
        output::show(&arrays(options)?)?;
    }
    Ok(verdict)
}

/// Opens the cluster whose memory nodes are the files.
fn open(options: &ReclaimOptions, what: &str) -> Result<Cluster, Failure> {
    let connect = Cluster::connect(Nodes::Shm(options.paths.clone()));
    connect
        .configuration(options.configuration.clone())
        .protocol(Protocol::RTX)
        .open()
        .map_err(|error| Failure::new(what, error))
}

/// Reclaims parts of RACE hash tables that were split. Returns a line that says how much it was.
fn arrays(options: &ReclaimOptions) -> Result<String, Failure> {
    let cluster = open(options, "--arrays")?;
    let reclaimed = cluster.reclaim_arrays().map_err(|error| Failure::new("--arrays", error))?;
    Ok(format!("{} of split parts of RACE hash tables can be used again\n", value::show_bytes(reclaimed.race_bytes)))
}

/// Finds what killed clients of the cluster had in hand. Returns lines that say it.
fn blocks(options: &ReclaimOptions) -> Result<String, Failure> {
    let cluster = open(options, "--blocks")?;
    let admin::Reclaimed { locks, blocks, bytes, buckets, race_bytes, .. } =
        cluster.reclaim().map_err(|error| Failure::new("--blocks", error))?;
    let bytes = value::show_bytes(bytes);
    let line = format!("{blocks} blocks ({bytes}) and {buckets} buckets can be used again; locks freed: {locks}\n");
    let of_races = value::show_bytes(race_bytes);
    Ok(if race_bytes == 0 { line } else { format!("{line}{of_races} of RACE hash tables can be used again\n") })
}
