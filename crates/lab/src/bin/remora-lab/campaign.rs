//! The commands `remora-lab campaign` and `remora-lab replay`: fault campaigns, and single runs of
//! one.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use remora_lab::campaign::{self, Case, FAULTS, Load, PutBack, Summary, faults_of};
use serde_json::json;

use remora_command::output::{self, OutputFile, ReportTo};
use remora_command::{Failure, Verdict};

use crate::protocol::ProtocolArg;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  remora-lab campaign --seeds 0..100
  remora-lab campaign --seeds 0..1000 --workload registers --protocol fasst --faults pause,delay,lose,duplicate
  remora-lab campaign --mutants --protocol drtm-r --seeds 0..1000

Exit status: 0 clean; 1 a history or an invariant is wrong, or something that was to be tested never happened; 2 bad input.")]
pub(crate) struct CampaignOptions {
    /// Seeds to run, without the last one.
    #[arg(long, value_name = "A..B", default_value = "0..100", value_parser = seeds)]
    seeds: (u64, u64),
    #[command(flatten)]
    case: CaseArgs,
    /// Put published errors back, one at a time, and show which ones the campaign finds, with any
    /// workload. With the workload race, put those of RACE hash tables back, and with the workload
    /// redis, those of gateways.
    #[arg(long)]
    mutants: bool,
    /// Threads, each with a run of its own [default: all cores].
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
    /// Write the summary as JSON; - for standard output.
    #[arg(long, value_name = "FILE|-")]
    report: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Example: remora-lab replay --seed 17 --workload registers --protocol drtm-r --faults crash,delay

Exit status: 0 nothing is wrong, 1 something is, 2 bad input."
)]
pub(crate) struct ReplayOptions {
    /// The seed to run.
    #[arg(long, value_name = "S")]
    seed: u64,
    #[command(flatten)]
    case: CaseArgs,
    /// Write the history, as JSON lines for `remora check --crashed`.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// The options of a run, except its seed.
#[derive(Clone, Debug, Args)]
struct CaseArgs {
    /// The workload: smallbank, tatp, tpcc, tpce, ycsb, registers, which mixes reads, writes,
    /// inserts and deletes of few records, ranges, which does so in ordered tables and scans them,
    /// race, which does so in a RACE hash table, under the protocol rtx, or redis, in which Redis'
    /// clients use gateways.
    #[arg(long, value_name = "NAME", default_value = "registers", value_parser = load)]
    workload: Load,
    #[command(flatten)]
    protocol: ProtocolArg,
    /// The faults: crash, pause, delay, partition, isolate, stall, clock-step, lose, duplicate,
    /// fail, drain, cancel, grow; or all that the protocol can have, or none. A campaign draws some
    /// of them for each seed, a replay has all of them.
    #[arg(long, value_name = "LIST", default_value = "all", value_parser = faults)]
    faults: Faults,
    /// Clients, each on a machine of its own.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=31))]
    clients: u64,
    /// Coroutines of each client.
    #[arg(long, value_name = "C", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=32))]
    coroutines: u64,
    /// Keys, which all clients share.
    #[arg(long, value_name = "K", default_value_t = 50, value_parser = clap::value_parser!(u64).range(4..=10_000))]
    keys: u64,
    /// Transactions that must have committed in each run.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    transactions: u64,
}

/// Faults by name, or `None` for all that the protocol can have.
#[derive(Clone, Debug)]
struct Faults(Option<Vec<String>>);

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let parse = |text: &str| text.trim().parse::<u64>().ok();
    let range = text.split_once("..").and_then(|(from, to)| Some((parse(from)?, parse(to)?)));
    range.filter(|(from, to)| from < to).ok_or_else(|| "a range of seeds is wanted, such as 0..100".to_owned())
}

fn load(text: &str) -> Result<Load, String> {
    let known = || Load::ALL.map(Load::name).join(", ");
    Load::ALL.into_iter().find(|load| load.name() == text).ok_or_else(|| format!("there are {}", known()))
}

fn faults(text: &str) -> Result<Faults, String> {
    let names: Vec<String> = match text {
        "all" => return Ok(Faults(None)),
        "none" => Vec::new(),
        list => list.split(',').map(|name| name.trim().to_owned()).collect(),
    };
    match names.iter().find(|name| !FAULTS.contains(&name.as_str())) {
        Some(name) if name == "restart" => Err("memory nodes that come back are part of the fault fail".to_owned()),
        Some(name) => Err(format!("there is no fault {name}; there are {}", FAULTS.join(", "))),
        None => Ok(Faults(Some(names))),
    }
}

impl CaseArgs {
    fn case(&self, seed: u64) -> Result<Case, Failure> {
        let protocol = self.protocol.get();
        if !protocol.is_serializable() {
            return Err(Failure::new(self.protocol.option(), "runs no transactions: nothing to check"));
        }
        let case = Case {
            seed,
            load: self.workload,
            protocol,
            faults: self.faults.0.clone().unwrap_or_else(|| faults_of(self.workload, protocol)),
            clients: self.clients as usize,
            coroutines: self.coroutines as usize,
            keys: self.keys,
            transactions: self.transactions,
        };
        let option = if case.load.runs_under(protocol) { "--faults".to_owned() } else { self.protocol.option() };
        case.impossible().map_or(Ok(case), |why| Err(Failure::new(option, why)))
    }
}

pub(crate) fn campaign(options: &CampaignOptions) -> Result<Verdict, Failure> {
    let report_to = ReportTo::open(options.report.as_deref())?;
    let case = options.case.case(options.seeds.0)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.map_or(cores, |threads| threads as usize);
    let seeds = options.seeds.0..options.seeds.1;
    // An error in the protocol may show as a panic. It is reported with its run, so the default
    // hook is silenced.
    std::panic::set_hook(Box::new(|_| {}));
    if options.mutants && case.load == Load::Redis {
        return mutants(&remora_gateway::mutant::Mutant::ALL, &case, seeds, threads, &report_to);
    }
    if options.mutants {
        return mutants(&campaign::mutants_of(&case), &case, seeds, threads, &report_to);
    }
    let began = Instant::now();
    let bar = ProgressBar::new(seeds.end - seeds.start);
    let summary = campaign::campaign(&case, seeds, threads, &|| bar.inc(1));
    bar.finish_and_clear();
    let json = json!({
        "runs": summary.runs,
        "committed": summary.total.committed,
        "joined": summary.total.joined,
        "unknown": summary.total.unknown,
        "recovered_clients": summary.total.recovered,
        "alive_and_taken_for_dead": summary.total.fenced,
        "resolved": summary.total.resolved,
        "grown": summary.total.grown,
        "aborted": summary.total.aborted,
        "faults": summary.total.faults.iter().map(|(kind, (all, holding))| {
            (*kind, json!({"injected": all, "while_holding": holding}))
        }).collect::<std::collections::BTreeMap<_, _>>(),
        "probes": summary.total.probes,
        "virtual_seconds": summary.total.virtual_ns as f64 / 1e9,
        "seconds": began.elapsed().as_secs_f64(),
        "violations": summary.violating,
        "replay": summary.violations.iter().map(|one| json!({
            "what": one.what, "command": one.case.command(), "shrunk": one.shrunk.command(),
        })).collect::<Vec<_>>(),
        "untested": summary.untested,
    });
    let written = report_to.write(&json, || people(&case, &summary, began.elapsed().as_secs_f64()));
    if summary.is_clean() { Verdict::Sound } else { Verdict::Unsound }.told(written)
}

fn people(case: &Case, summary: &Summary, seconds: f64) -> String {
    let total = &summary.total;
    let list = |counts: &std::collections::BTreeMap<&'static str, u64>| {
        counts.iter().map(|(name, count)| format!("{name} {}", output::grouped(*count))).collect::<Vec<_>>().join(", ")
    };
    let faults: Vec<String> = total
        .faults
        .iter()
        .map(|(kind, (all, holding))| format!("{kind} {all} ({holding} between a first lock and its release)"))
        .collect();
    let mut text = format!(
        "{} by {}: {} clients x {} coroutines on {} keys\n\n",
        case.load.name(),
        case.protocol.name(),
        case.clients,
        case.coroutines,
        case.keys
    );
    text += &format!(
        "runs           {} in {seconds:.1} s ({:.2} s of virtual time)\n",
        summary.runs,
        total.virtual_ns as f64 / 1e9
    );
    text += &format!(
        "transactions   {} committed, {} of them by the commit of another, {} unknown\n",
        output::grouped(total.committed),
        output::grouped(total.joined),
        total.unknown
    );
    text += &format!(
        "recovered      {} clients, {} of them alive and taken for dead; the outcome of {} transactions was found out\n",
        total.recovered, total.fenced, total.resolved
    );
    if total.grown > 0 {
        text += &format!("grown          {} times\n", total.grown);
    }
    text += &format!("aborted        {}\n", list(&total.aborted));
    text += &format!("faults         {}\n", if faults.is_empty() { "none".to_owned() } else { faults.join(", ") });
    text += &format!("probes         {}\n", list(&total.probes));
    text += &format!("violations     {}\n", summary.violating);
    for one in &summary.violations {
        let what = one.what.lines().next().unwrap_or_default();
        text += &format!(
            "\n✗ seed {}: {what}\n  {}\n  smaller: {}\n",
            one.case.seed,
            one.case.command(),
            one.shrunk.command()
        );
    }
    for what in &summary.untested {
        text += &format!("✗ not tested: {what}\n");
    }
    if summary.is_clean() {
        text += "\n✓ every history is strictly serializable, every invariant holds, and everybody committed again\n";
    }
    text
}

/// Prints which published errors the campaign finds.
fn mutants<M: PutBack>(
    mutants: &[M],
    case: &Case,
    seeds: std::ops::Range<u64>,
    threads: usize,
    report_to: &ReportTo,
) -> Result<Verdict, Failure> {
    let bar = ProgressBar::new(mutants.len() as u64);
    let caught = campaign::mutation_score(mutants, case, seeds, threads, &|_, _| bar.inc(1));
    bar.finish_and_clear();
    let found = caught.iter().filter(|one| one.seed.is_some()).count();
    let json = json!({
        "score": found as f64 / caught.len().max(1) as f64,
        "mutants": caught.iter().map(|one| json!({
            "mutant": format!("{:?}", one.mutant),
            "caught": one.seed.is_some(),
            "workload": one.seed.map(|(load, _)| load.name()),
            "seed": one.seed.map(|(_, seed)| seed),
            "runs": one.runs,
            "what": one.what,
        })).collect::<Vec<_>>(),
    });
    let written = report_to.write(&json, || {
        let mut text = String::new();
        for one in &caught {
            let what = one.what.lines().next().unwrap_or_default();
            text += &match one.seed {
                Some((load, seed)) => {
                    format!(
                        "✓ {:<28} {:>5} runs, {} seed {seed}: {what}\n",
                        format!("{:?}", one.mutant),
                        one.runs,
                        load.name()
                    )
                }
                None => format!("✗ {:<28} {:>5} runs, not found\n", format!("{:?}", one.mutant), one.runs),
            };
        }
        text + &format!("\nmutation score {found} of {}\n", caught.len())
    });
    if found * 10 >= caught.len() * 9 { Verdict::Sound } else { Verdict::Unsound }.told(written)
}

pub(crate) fn replay(options: &ReplayOptions) -> Result<Verdict, Failure> {
    let case = options.case.case(options.seed)?;
    let history_to = options.history.as_deref().map(|path| OutputFile::open("--history", path)).transpose()?;
    let (ran, history) = campaign::run_recorded(&case);
    let recorded = history_to.map_or(Ok(()), |output| output.fill(&history));
    let (verdict, said) = match ran {
        Ok(ran) => {
            let faults: Vec<String> = ran.faults.iter().map(|(kind, (all, _))| format!("{kind} {all}")).collect();
            let said = format!(
                "nothing is wrong: {} committed in {:.1} ms of virtual time, faults: {}, history {:016x}\n",
                ran.committed,
                ran.virtual_ns as f64 / 1e6,
                faults.join(", "),
                ran.digest
            );
            (Verdict::Sound, said)
        }
        Err(what) => (Verdict::Unsound, format!("{what}\n")),
    };
    verdict.told(output::all([output::show(&said), recorded]))
}
