//! Benchmarks on memory nodes that are running: the client connects, loads or finds the tables,
//! registers with the other clients, and leaves.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use remora::connect::{ConnectError, Nodes};
use remora::floors::node::{MemoryError, Metadata, TableEntry};
use remora::protocol::Protocol;
use remora::{Cluster, OpenError};
use remora_workload::driver::{self, Measured, Observers, Progress, RunOptions};
use remora_workload::guestbook::{Farewell, GuestBook};
use remora_workload::{RunError, Workload};

use crate::bench::{Bench, Opened};
use crate::history::HistoryTo;
use crate::memnode::{read_client_tls, read_keys};
use crate::signals::stop_on_signals;
use crate::{Failure, meet, output};

/// Refuses an option that contradicts the tables at the memory nodes.
pub(crate) fn agrees<T: PartialEq + Display>(option: &str, given: Option<T>, found: T) -> Result<(), Failure> {
    match given.filter(|given| *given != found) {
        Some(given) => {
            let why = format!("these memory nodes were loaded with {found}: leave the option out, or use other nodes");
            Err(Failure::new(format!("{option} {given}"), why))
        }
        None => Ok(()),
    }
}

/// Number of attempts to load or find the tables. Clients that connect to new memory nodes at the
/// same time get in each other's way for a moment.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

impl Bench {
    /// Opens the workload. Loads its tables into a cluster of this process, or into running memory
    /// nodes. If another client has loaded them there, opens that client's tables.
    pub(crate) fn open<W: Workload>(
        &mut self,
        load: impl FnOnce(&Cluster) -> Result<W, OpenError>,
    ) -> Result<Opened<W>, Failure> {
        // This comes before anything is changed. From here on, no signal may leave anything
        // half-done.
        let stop = stop_on_signals()?;
        self.open_files()?;
        let Some(nodes) = self.run.connect.clone() else {
            let began = Instant::now();
            let (cluster, sim) = if self.run.is_simulated() {
                let (cluster, sim) = self.simulated()?;
                (cluster, Some(sim))
            } else {
                (self.embedded()?, None)
            };
            let cluster = cluster.with_interrupt(stop.clone());
            let workload = load(&cluster).map_err(|error| self.blame(&error))?;
            return Ok(Opened { cluster, workload, guests: None, stop, sim, loaded_in: began.elapsed() });
        };
        self.nodes = Some(nodes.clone());
        let mut cluster = self.connect(&nodes, self.run.protocol(), &stop)?;
        self.nodes = cluster.nodes();
        let catalog = cluster.catalog();
        let discipline = first_table(&catalog).map(|table| table.spec.discipline);
        if let Some(discipline) = discipline.filter(|found| self.run.check && !self.run.protocol().accepts(*found)) {
            // The command runs no transactions, so any protocol will do that the tables accept.
            let fitting = Protocol::ALL.into_iter().find(|protocol| protocol.accepts(discipline));
            cluster = self.connect(&nodes, fitting.unwrap_or_default(), &stop)?;
        }
        let protocol = cluster.protocol();
        let books = if protocol.is_serializable() {
            cluster.clone()
        } else {
            let of_same_tables = |other: &Protocol| other.is_serializable() && other.accepts(protocol.discipline());
            let serializable = Protocol::ALL.into_iter().find(of_same_tables);
            self.connect(&nodes, serializable.unwrap_or_default(), &stop)?
        };
        let mut waiting = Waiting::new(&stop);
        let opened = if self.run.check {
            let guests = GuestBook::find(books, |loader| waiting.look(loader)).map_err(|error| self.guest(error))?;
            let nothing = || Failure::new("--check", "these memory nodes hold no workload");
            let guests = guests.ok_or_else(nothing)?;
            guests.workload(&cluster).map(|workload| (guests, workload))
        } else {
            GuestBook::open(books, &cluster, load, |loader| waiting.look(loader))
        };
        waiting.end();
        let (guests, workload) = opened.map_err(|error| self.guest(error))?;
        cluster.refresh().map_err(|error| self.blame(&error))?;
        let catalog = cluster.catalog();
        // The clients' own table comes first, and has as many copies as the others.
        if let Some(table) = first_table(&catalog) {
            agrees("--replicas", self.run.replicas, table.spec.replicas)?;
            self.run.replicas = Some(table.spec.replicas);
        }
        Ok(Opened { cluster, workload, guests: Some(guests), stop, sim: None, loaded_in: Duration::ZERO })
    }

    fn connect(&self, nodes: &Nodes, protocol: Protocol, stop: &Arc<AtomicBool>) -> Result<Cluster, Failure> {
        let keys = match (&self.run.key_file, nodes) {
            (Some(_), Nodes::Shm(_)) => {
                return Err(Failure::new("--key-file", "memory nodes in files (--connect shm:...) have no key"));
            }
            (path, _) => path.as_deref().map(read_keys).transpose()?,
        };
        let tls = match (&self.run.tls_ca, nodes) {
            (Some(_), Nodes::Shm(_)) => {
                return Err(Failure::new("--tls-ca", "memory nodes in files (--connect shm:...) need no TLS"));
            }
            (path, _) => path.as_deref().map(read_client_tls).transpose()?,
        };
        let (replicas, configuration) = (self.run.replicas, self.run.etcd.complete(self.run.configuration.clone())?);
        let rdma = self.run.rdma.open(self.run.is_rdma())?;
        let mut options = Cluster::connect(nodes)
            .protocol(protocol)
            .spares(self.run.spares)
            .keys(keys)
            .tls(tls)
            .rdma(rdma)
            .configuration(configuration)
            .interrupt(stop.clone());
        options.replicas = replicas;
        let mut attempts = 0;
        loop {
            attempts += 1;
            match options.open() {
                Err(ConnectError::Open(error))
                    if error.memory() == Some(&MemoryError::Founding)
                        && attempts < ATTEMPTS
                        && !stop.load(Ordering::Relaxed) =>
                {
                    thread::sleep(PAUSE);
                }
                Err(ConnectError::Open(error)) => return Err(self.blame(&error)),
                Err(error) => return Err(meet::blame(&error)),
                Ok(cluster) => {
                    return self.run.leased(HistoryTo::told_of_all(self.history.as_ref(), cluster));
                }
            }
        }
    }

    /// Returns the name of the backend, for reports.
    pub(crate) fn fabric(&self) -> &str {
        let named = self.run.fabric.as_deref().unwrap_or("shm");
        self.nodes.as_ref().filter(|_| !self.run.is_rdma()).map_or(named, |nodes| nodes.fabric())
    }

    /// Registers with the other clients, runs the workload, and leaves. With `--check`, only checks
    /// the invariants.
    pub(crate) fn measure<W: Workload>(
        &self,
        opened: &Opened<W>,
        options: &RunOptions,
        observers: Observers<'_>,
        mut look: impl FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Measured, Failure> {
        let Opened { cluster, workload, guests, stop, .. } = opened;
        let look = |progress| {
            let looked = look(progress);
            if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { looked }
        };
        let Some(guests) = guests else {
            let measured = driver::run_then(cluster, workload, options, observers, look, |after| {
                Ok(workload.invariants(cluster, after)?)
            });
            return measured.map_err(|error| self.failure(error));
        };
        if self.run.check {
            let invariants = guests.check(cluster, workload).map_err(|error| self.guest(error))?;
            return Ok(Measured::nothing::<W>(invariants));
        }
        if !guests.arrive(cluster).map_err(|error| self.guest(error))? {
            output::note(
                "other clients have come and not left that go by another configuration (--configuration), or by none: no \
                 client recovers another one that dies",
            );
        }
        let measured = driver::run_then(cluster, workload, options, observers, look, |after| {
            guests.leave(&Farewell::of(&after))?;
            Ok(guests.check(cluster, workload)?)
        });
        if let Err(RunError::Open(_) | RunError::Thread(_)) = measured {
            // No transaction has run, so this client leaves nothing unknown. If it cannot tell the
            // other clients, they have to assume otherwise.
            let _ = guests.leave(&Farewell { settled: true, ..Farewell::default() });
        }
        measured.map_err(|error| self.failure(error))
    }
}

/// Returns the first table of a catalog.
fn first_table(catalog: &Metadata) -> Option<&TableEntry> {
    catalog.tables.iter().find(|table| table.is_there())
}

/// Reports at once that this client waits for another one, whether or not there is a terminal.
struct Waiting<'s> {
    stop: &'s AtomicBool,
    told: Option<u32>,
    spinner: ProgressBar,
}

impl Waiting<'_> {
    fn new(stop: &AtomicBool) -> Waiting<'_> {
        Waiting { stop, told: None, spinner: ProgressBar::new_spinner() }
    }

    fn look(&mut self, loader: u32) -> ControlFlow<()> {
        if self.told.replace(loader) != Some(loader) {
            let what = format!("client {loader} loads the tables: waiting for it");
            if io::stderr().is_terminal() {
                self.spinner.set_message(what);
            } else {
                output::note(&what);
            }
        }
        self.spinner.tick();
        if self.stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end(self) {
        self.spinner.finish_and_clear();
    }
}
