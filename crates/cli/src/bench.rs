//! A benchmark of transactions: its settled options, its memory nodes, and the option that is to
//! blame when something fails. Each workload has its own file for its options and the tables that
//! it loads.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use remora::connect::Nodes;
use remora::floors::fabric::{FabricError, Headroom};
use remora::floors::node::MemoryError;
use remora::{Cluster, Error, OpenError};
use remora_fabric::sim::Sim;
use remora_workload::RunError;
use remora_workload::guestbook::{GuestBook, GuestError};

use crate::history::HistoryTo;
use crate::options::RunArgs;
use crate::output::ReportTo;
use crate::{Failure, value};

/// A benchmark whose size is known. From here on, all its options are settled.
#[derive(Debug)]
pub(crate) struct Bench {
    /// All options of the run, with their settled values.
    pub(crate) run: RunArgs,
    node_bytes: u64,
    /// The option that has said how large memory nodes are.
    sized_by: String,
    /// The addresses of the memory nodes, in the order of their numbers, once they are connected.
    pub(crate) nodes: Option<Nodes>,
    pub(crate) history: Option<Arc<HistoryTo>>,
    pub(crate) report_to: ReportTo,
}

/// A workload whose tables are loaded.
#[derive(Debug)]
pub(crate) struct Opened<W> {
    pub(crate) cluster: Cluster,
    pub(crate) workload: W,
    /// The list of clients, if there can be other clients.
    pub(crate) guests: Option<GuestBook>,
    /// The flag that the first signal sets, and that ends the run.
    pub(crate) stop: Arc<AtomicBool>,
    /// The simulator, if the cluster is a simulated one.
    pub(crate) sim: Option<Sim>,
    /// How long loading took.
    pub(crate) loaded_in: Duration,
}

impl<W> Opened<W> {
    pub(crate) fn map(self, change: impl FnOnce(W) -> W) -> Opened<W> {
        Opened { workload: change(self.workload), ..self }
    }
}

impl Bench {
    /// Makes a benchmark with memory nodes of `needed` bytes, unless `--node-size` says otherwise.
    /// `because_of` names the option of the workload that needs this size.
    pub(crate) fn sized(mut run: RunArgs, needed: u64, because_of: String) -> Bench {
        let sized_by = run.node_size.map_or(because_of, |bytes| format!("--node-size {bytes}"));
        let node_bytes = run.node_size.unwrap_or(needed);
        run.node_size = if run.connect.is_some() { None } else { Some(node_bytes) };
        Bench { run, node_bytes, sized_by, nodes: None, history: None, report_to: ReportTo::People }
    }

    /// Returns the bytes of each memory node of this process. Fails if there is no memory for all
    /// of them.
    pub(crate) fn node_bytes(&self) -> Result<usize, Failure> {
        let run = &self.run;
        let nodes = run.memory_nodes();
        let all = self.node_bytes.saturating_mul(nodes.into());
        let left = Headroom::now();
        if all > left.bytes {
            let all = value::show_bytes(all);
            return Err(Failure::new(&self.sized_by, format!("{nodes} memory nodes need {all} together, and {left}")));
        }
        Ok(usize::try_from(self.node_bytes).unwrap_or(usize::MAX))
    }

    /// Makes a cluster whose memory nodes are in this process.
    pub(crate) fn embedded(&self) -> Result<Cluster, Failure> {
        let run = &self.run;
        let options = Cluster::embedded()
            .nodes(run.memory_nodes())
            .replicas(run.replicas())
            .node_bytes(self.node_bytes()?)
            .protocol(run.protocol())
            .spares(self.run.spares);
        let cluster = match run.rdma.open(run.is_rdma())? {
            None => options.open(),
            rdma => options.open_servers(rdma),
        };
        let cluster = run.leased(cluster.map_err(|error| self.blame(&error))?)?;
        Ok(HistoryTo::told_of_all(self.history.as_ref(), cluster))
    }

    /// Opens all files that the run will write, before anything takes time.
    pub(crate) fn open_files(&mut self) -> Result<(), Failure> {
        let run = &self.run;
        run.inputs()
            .check(&[("--report", ReportTo::file(run.report.as_deref())), ("--history", run.history.as_deref())])?;
        self.report_to = ReportTo::open(run.report.as_deref())?;
        self.history =
            run.history.as_deref().map(|path| HistoryTo::open("--history", path, run.history_durable)).transpose()?;
        Ok(())
    }

    /// Makes the failure of a benchmark whose memory cannot be laid out. It names the option to
    /// change.
    pub(crate) fn blame(&self, error: &OpenError) -> Failure {
        let option = match error.memory() {
            Some(MemoryError::OutOfMemory { .. } | MemoryError::TooSmall { .. } | MemoryError::Region(_)) => {
                &self.sized_by
            }
            Some(MemoryError::TooManyReplicas { .. } | MemoryError::OneCopy { .. }) => "--replicas",
            Some(MemoryError::Limit { what: "connected clients", .. } | MemoryError::Thread(_)) => "--threads",
            Some(MemoryError::Fabric(error)) => return self.lost(error),
            Some(MemoryError::Interrupted) => {
                return Failure(format!("{error}; nothing was measured"));
            }
            _ => return Failure(error.to_string()),
        };
        Failure::new(option, error)
    }

    pub(crate) fn failure(&self, error: RunError) -> Failure {
        match error {
            RunError::Open(error) => self.blame(&error),
            RunError::Thread(_) => Failure::new("--threads", error),
            RunError::Transaction(Error::Unavailable(error)) => self.lost(&error),
            RunError::Guests(error) => self.guest(error),
            error => Failure(error.to_string()),
        }
    }

    pub(crate) fn guest(&self, error: GuestError) -> Failure {
        match error {
            GuestError::Open(error) => self.blame(&error),
            GuestError::Transaction(Error::Unavailable(error)) => self.lost(&error),
            error => Failure(error.to_string()),
        }
    }

    /// Makes the failure of a benchmark that has lost a memory node. It names the node.
    pub(crate) fn lost(&self, error: &FabricError) -> Failure {
        let name = self.nodes.as_ref().and_then(|nodes| nodes.name(error.node));
        Failure(name.map_or_else(|| error.to_string(), |name| format!("memory node {name} {}", error.fault)))
    }
}
