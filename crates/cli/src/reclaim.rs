//! `remora reclaim`: frees what clients of passive memory have left that are gone.

use std::path::PathBuf;

use clap::Args;
use remora::node::{self, Reclaimed};

use crate::{Failure, Verdict, output};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  remora reclaim /mnt/pmem/p0                      # what is left there, and by whom
  remora reclaim --gone /mnt/pmem/p0 /mnt/pmem/p1  # after the host was down

Passive memory (memnode --passive) admits clients that can see and end one another: of one user, in one container of one running
host. The connections of others keep them out. Nothing in the memory shows that those are gone, so you have to say it.

With --gone you say that no process of another host, of this host before its last start, of another container or user uses the
memory any more. If one still does, it can destroy what others write. Transactions of clients that are gone are recovered by the
next clients.

Exit status: 0 nothing keeps clients of this host out; 1 processes of elsewhere do; 2 a file is no passive memory.")]
pub(crate) struct ReclaimOptions {
    /// The files of passive memory.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// All processes that used the memory from elsewhere are gone: free their connections, too.
    #[arg(long)]
    gone: bool,
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
    Ok(verdict)
}
