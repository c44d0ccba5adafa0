//! The `remora` command.
//!
//! Exit status: 0 done; 1 an invariant does not hold, or a history is not strictly serializable; 2 bad input, nothing to
//! work with, or a result that cannot be written; 141 standard output is a pipe that nobody reads. Whatever is wrong is said
//! in one line on standard error.
#![forbid(unsafe_code)]

mod add;
mod bench;
mod campaign;
mod check;
mod connected;
mod controller;
mod drain;
mod drill;
mod etcd;
mod hardware;
mod keygen;
mod litmus;
mod meet;
mod memnode;
mod micro;
mod output;
mod rdma;
mod reproduce;
mod signals;
mod simulated;
mod smallbank;
mod status;
mod tatp;
mod tpcc;
mod value;
mod ycsb;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

/// Strictly serializable, replicated transactions over remote memory.
#[derive(Debug, Parser)]
#[command(name = "remora", version, after_help = "Example: remora bench smallbank --seconds 5 --report -")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, for the time of the command")]
enum Command {
    /// Runs a workload and reports what it measured.
    #[command(after_help = "Example: remora bench smallbank --threads 2 --replicas 3")]
    Bench {
        #[command(subcommand)]
        workload: Workload,
    },
    /// Serves memory to clients, over TCP or to processes of this host, until it is stopped.
    Memnode(memnode::MemnodeOptions),
    /// Looks after memory nodes, until it is stopped: when one dies, the cluster goes on without it.
    Controller(controller::ControllerOptions),
    /// Adds a memory node to a cluster that runs, and has its share of the others' shards move there.
    Add(add::AddOptions),
    /// Has what a memory node holds go elsewhere, so that it can be stopped.
    Drain(drain::DrainOptions),
    /// Kills clients of a small cluster of processes, and checks that nothing is lost and nothing left.
    Drill(drill::DrillOptions),
    /// Makes the key that memory nodes and clients prove to each other.
    Keygen(keygen::KeygenOptions),
    /// Shows what memory nodes hold, and whether they answer.
    Status(status::StatusOptions),
    /// Checks recorded histories, together, for strict serializability.
    Check(check::CheckOptions),
    /// Simulated clusters: calibration, published tables, faults from a seed, every order of small programs.
    Sim {
        #[command(subcommand)]
        experiment: Experiment,
    },
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// Measures a profile's hardware in the simulator, next to what was published of it.
    Hardware(hardware::HardwareOptions),
    /// Runs a text's experiments, and prints its results next to ours.
    Reproduce(reproduce::ReproduceOptions),
    /// Explores every order of small programs, with and without a published mistake.
    Litmus(litmus::LitmusOptions),
    /// Runs a workload under faults, from many seeds, and checks every history.
    Campaign(campaign::CampaignOptions),
    /// Runs one seed of a campaign again.
    Replay(campaign::ReplayOptions),
}

#[derive(Debug, Subcommand)]
enum Workload {
    /// Six short banking transactions on two tables, most of them on a few hot accounts.
    Smallbank(smallbank::SmallBankOptions),
    /// Seven short transactions on a telephone network's subscribers: most only read, some insert and delete.
    Tatp(tatp::TatpOptions),
    /// TPC-C: orders, payments and deliveries of a wholesale supplier, five transactions on twelve tables.
    Tpcc(tpcc::TpccOptions),
    /// TPC-C's new orders alone, each with lines that another warehouse supplies.
    TpccNo(tpcc::TpccOptions),
    /// YCSB: reads, updates, inserts and read-modify-writes of single records, most of them of a few hot ones.
    Ycsb(ycsb::YcsbOptions),
    /// Bare rounds of one-sided verbs, next to the same work without rounds.
    Micro(micro::MicroOptions),
}

/// Why there is nothing to show: one line, that names the option or the file and says what to do.
#[derive(Debug)]
struct Failure(String);

impl Failure {
    fn new(what: impl std::fmt::Display, why: impl std::fmt::Display) -> Failure {
        Failure(format!("{what}: {why}"))
    }

    /// The reader of standard output has gone, which is nothing to complain about.
    fn unheard() -> Failure {
        Failure(String::new())
    }

    fn is_unheard(&self) -> bool {
        self.0.is_empty()
    }

    /// Says it.
    fn complain(&self) {
        if !self.is_unheard() {
            output::complain(&one_line(&self.0));
        }
    }

    /// Says it, as the last thing that the command says.
    fn end(&self) -> ExitCode {
        self.complain();
        ExitCode::from(if self.is_unheard() { UNHEARD } else { BAD_INPUT })
    }
}

/// What a command found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Sound,
    /// An invariant does not hold, or a history has an anomaly.
    Unsound,
}

const BAD_INPUT: u8 = 2;
/// The reader of standard output has closed its pipe: the status of a program that SIGPIPE ends.
const UNHEARD: u8 = 128 + 13;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        output::complain(&format!("this is a bug in remora: {}", one_line(&panic.to_string())));
    }));
    drill::end_with_the_parent();
    if let Err(failure) = outlive_file_size_limits() {
        return failure.end();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    // What a failing benchmark has to say is its one line; a server has nobody else to tell.
    let serves = matches!(cli.command, Command::Memnode(_) | Command::Controller(_));
    output::log(wanted_log().unwrap_or(if serves { LevelFilter::WARN } else { LevelFilter::ERROR }));
    let result = match cli.command {
        Command::Bench { workload: Workload::Smallbank(options) } => smallbank::smallbank(&options),
        Command::Bench { workload: Workload::Tatp(options) } => tatp::tatp(&options),
        Command::Bench { workload: Workload::Tpcc(options) } => tpcc::tpcc(&options),
        Command::Bench { workload: Workload::TpccNo(options) } => tpcc::tpcc_no(&options),
        Command::Bench { workload: Workload::Ycsb(options) } => ycsb::ycsb(&options),
        Command::Bench { workload: Workload::Micro(options) } => micro::micro(&options),
        Command::Memnode(options) => memnode::memnode(&options),
        Command::Controller(options) => controller::controller(&options),
        Command::Add(options) => add::add(&options),
        Command::Drain(options) => drain::drain(&options),
        Command::Drill(options) => drill::drill(&options),
        Command::Keygen(options) => keygen::keygen(&options),
        Command::Status(options) => status::status(&options),
        Command::Check(options) => check::check(&options),
        Command::Sim { experiment } => match experiment {
            Experiment::Hardware(options) => hardware::hardware(&options),
            Experiment::Reproduce(options) => reproduce::reproduce(&options),
            Experiment::Litmus(options) => litmus::litmus(&options),
            Experiment::Campaign(options) => campaign::campaign(&options),
            Experiment::Replay(options) => campaign::replay(&options),
        },
    };
    match result {
        Ok(Verdict::Sound) => ExitCode::SUCCESS,
        Ok(Verdict::Unsound) => ExitCode::FAILURE,
        Err(failure) => failure.end(),
    }
}

/// How much the library is to log, if `REMORA_LOG` says so.
fn wanted_log() -> Option<LevelFilter> {
    let given = std::env::var_os("REMORA_LOG")?;
    let level = given.to_str().and_then(|level| level.parse().ok());
    if level.is_none() && !given.is_empty() {
        let given = given.to_string_lossy();
        output::note(&format!(
            "REMORA_LOG is {given:?}, and has no effect: there are off, error, warn, info, debug, trace"
        ));
    }
    level
}

/// Has writes beyond the limit of a file's size fail, as on a full disk, instead of ending the process.
fn outlive_file_size_limits() -> Result<(), Failure> {
    let unused = Arc::new(AtomicBool::new(false));
    let handled = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, unused);
    handled.map(drop).map_err(|error| Failure::new("signals", error))
}

/// A command line that cannot be used, in one line; or help and version, which are asked for in the same way.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let printed = error.print();
        // Help for a command line that says too little goes to standard error.
        let shown = if error.use_stderr() { Ok(()) } else { output::shown(printed) };
        return shown.map_or_else(|failure| failure.end(), |()| ExitCode::from(error.exit_code() as u8));
    }
    let text = error.render().to_string();
    let lines = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let text = one_line(&lines.collect::<Vec<_>>().join(" "));
    output::complain(text.strip_prefix("error: ").unwrap_or(&text));
    ExitCode::from(BAD_INPUT)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
