//! The `remora` command.
//!
//! The exit status is:
//!
//! - 0: done;
//! - 1: an invariant does not hold, or a history is not strictly serializable;
//! - the status of the program that `remora up --exec` has run;
//! - 2: bad input, memory nodes or files that cannot be used, or a result that cannot be written;
//! - 141: standard output is a pipe that no process reads.
//!
//! The command reports what is wrong in one line on standard error.
#![forbid(unsafe_code)]

mod add;
mod bench;
mod check;
mod child;
mod connected;
mod controller;
mod drain;
mod drill;
mod etcd;
mod gateway;
mod history;
mod hot;
mod keygen;
mod meet;
mod memnode;
mod micro;
mod options;
mod rdma;
mod reclaim;
mod run;
mod signals;
mod simulated;
mod smallbank;
mod status;
mod tatp;
mod tpcc;
mod tpce;
mod up;
mod ycsb;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use remora_command::{Failure, Verdict, output, value};
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
    /// Starts a cluster on this machine, and serves it to clients of Redis.
    Up(up::UpOptions),
    /// Serves Redis' protocol on a running cluster, until it is stopped.
    Gateway(gateway::GatewayOptions),
    /// Serves memory to clients over TCP, or to processes of this host, until it is stopped; or
    /// formats memory that needs no server.
    Memnode(memnode::MemnodeOptions),
    /// Frees what clients of passive memory have left that are gone.
    Reclaim(reclaim::ReclaimOptions),
    /// Looks after memory nodes until it is stopped: when one dies, the cluster goes on without it.
    Controller(controller::ControllerOptions),
    /// Adds a memory node to a running cluster, and moves its share of the shards there.
    Add(add::AddOptions),
    /// Moves the shards of a memory node to other nodes, so that it can be stopped.
    Drain(drain::DrainOptions),
    /// Kills clients or memory nodes of a small cluster of processes, and checks that nothing was
    /// lost.
    Drill(drill::DrillOptions),
    /// Makes or changes the key that memory nodes and clients prove to each other.
    Keygen(keygen::KeygenOptions),
    /// Shows what memory nodes hold, and whether they answer.
    Status(status::StatusOptions),
    /// Checks recorded histories, together, for strict serializability.
    Check(check::CheckOptions),
    /// Moved to `remora-lab`.
    #[command(hide = true, disable_help_flag = true)]
    Sim {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _rest: Vec<OsString>,
    },
}

#[derive(Debug, Subcommand)]
enum Workload {
    /// Six short banking transactions on two tables, most of them on a few hot accounts.
    Smallbank(smallbank::SmallBankOptions),
    /// Seven short transactions on the subscribers of a telephone network: most only read, some
    /// insert and delete.
    Tatp(tatp::TatpOptions),
    /// TPC-C: orders, payments and deliveries of a wholesale supplier, five transactions on twelve
    /// tables.
    Tpcc(tpcc::TpccOptions),
    /// TPC-C's new orders alone, each with lines that another warehouse supplies.
    TpccNo(tpcc::TpccOptions),
    /// A part of TPC-E: customers ask what their accounts hold and are worth, while prices change
    /// and shares are traded.
    Tpce(tpce::TpceOptions),
    /// YCSB: reads, updates, inserts and read-modify-writes of single records, most of them of a
    /// few hot ones.
    Ycsb(ycsb::YcsbOptions),
    /// Bare rounds of one-sided verbs, compared with the same work without rounds.
    Micro(micro::MicroOptions),
}

fn main() -> ExitCode {
    child::end_with_the_parent();
    let cli: Cli = match remora_command::begin("remora") {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    // A failing benchmark reports one line. A server has no other output than its log, so it logs
    // more.
    let serves =
        matches!(cli.command, Command::Memnode(_) | Command::Controller(_) | Command::Gateway(_) | Command::Up(_));
    remora_command::log(if serves { LevelFilter::WARN } else { LevelFilter::ERROR });
    let result = match cli.command {
        Command::Bench { workload: Workload::Smallbank(options) } => smallbank::smallbank(&options),
        Command::Bench { workload: Workload::Tatp(options) } => tatp::tatp(&options),
        Command::Bench { workload: Workload::Tpcc(options) } => tpcc::tpcc(&options),
        Command::Bench { workload: Workload::TpccNo(options) } => tpcc::tpcc_no(&options),
        Command::Bench { workload: Workload::Tpce(options) } => tpce::tpce(&options),
        Command::Bench { workload: Workload::Ycsb(options) } => ycsb::ycsb(&options),
        Command::Bench { workload: Workload::Micro(options) } => micro::micro(&options),
        Command::Up(options) => up::up(&options),
        Command::Gateway(options) => gateway::gateway(&options),
        Command::Memnode(options) => memnode::memnode(&options),
        Command::Reclaim(options) => reclaim::reclaim(&options),
        Command::Controller(options) => controller::controller(&options),
        Command::Add(options) => add::add(&options),
        Command::Drain(options) => drain::drain(&options),
        Command::Drill(options) => drill::drill(&options),
        Command::Keygen(options) => keygen::keygen(&options),
        Command::Status(options) => status::status(&options),
        Command::Check(options) => check::check(&options),
        Command::Sim { .. } => Err(Failure::new(
            "remora sim",
            "is a program of its own: remora-lab campaign, litmus, replay, hardware or reproduce \
             (cargo run --release -p remora-lab --)",
        )),
    };
    remora_command::conclude(result)
}
