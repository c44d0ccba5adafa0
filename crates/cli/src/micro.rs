//! `remora bench micro`: its options, and its report.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::ops::{ControlFlow, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use remora::connect::Device;
use remora_command::inputs::Inputs;
use remora_fabric::Fabric;
use remora_fabric::sim::{Profile, Sim, SimOptions};
use remora_workload::Machine;
use remora_workload::micro::fit::{Check, Fit, fit};
use remora_workload::micro::latches::{self, LatchFigures, LatchOptions, LatchReport, Operation, Scheme, Standing};
use remora_workload::micro::torn::{self, TornReads, TornReport};
use remora_workload::micro::verbs::LIST;
use remora_workload::micro::{self, Backend, Kind, MicroError, MicroReport, Unfit, VerbsReport};
use serde::Serialize;

use crate::output::{self, OutputFile, ReportTo};
use crate::rdma::RdmaArgs;
use crate::signals::stop_on_signals;
use crate::{Failure, Verdict, value};

#[derive(Clone, Debug, Args, Serialize)]
#[command(allow_negative_numbers = true)] // so that the error names the option
#[command(after_help = "Examples:
  remora bench micro
  remora bench micro --kind read --size 256 --batch 4 --report -
  remora bench micro --fabric verbs --device rxe0 --rates
  remora bench micro --fabric verbs --write-profile mine.toml
  remora bench smallbank --fabric sim --profile mine.toml
  remora bench micro --fabric verbs --torn
  remora bench micro --fabric tcp --latches --clients 4

Exit status: 0 done; 1 --torn has found an access that the fabric promises not to have, or a correct scheme of --latches has
read a torn value or lost an update; 2 bad input.")]
pub(crate) struct MicroOptions {
    /// Backend: shm, everything in this process; tcp, the same over TCP; verbs, through an RDMA
    /// device; sim, simulated, with --torn.
    #[arg(long, value_name = "NAME", default_value = "shm", value_parser = ["shm", "tcp", "verbs", "sim"])]
    #[serde(skip)]
    fabric: String,
    #[command(flatten)]
    #[serde(flatten)]
    rdma: RdmaArgs,
    /// Kind of round: read, write, cas or cas-read; may be repeated [default: all].
    #[arg(long = "kind", value_name = "KIND", value_parser = kind)]
    kinds: Vec<Kind>,
    /// Bytes of a record.
    #[arg(long, value_name = "SIZE", default_value = "64", value_parser = value::bytes)]
    size: u64,
    /// Accesses of a round.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Measure each verb's latency and rates too, as perftest does.
    #[arg(long)]
    rates: bool,
    /// Write a profile with which the simulator behaves as measured; implies --rates.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "value::serialize_path")]
    write_profile: Option<PathBuf>,
    /// Profile that gives the values that were not measured [default: by the fabric, connectx5 for
    /// verbs].
    #[arg(long, value_name = "NAME|FILE", requires = "write_profile")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "value::serialize_path")]
    base_profile: Option<OsString>,
    /// Look for torn reads and lost WRITEs instead of measuring: whether a line is read whole, and
    /// whether a WRITE is atomic against a CAS.
    #[arg(long, conflicts_with_all = ["kinds", "rates", "write_profile"])]
    torn: bool,
    /// Measure latches, and reads without latches, by several clients: on items of their own, and
    /// on one item.
    #[arg(long, conflicts_with_all = ["kinds", "batch", "rates", "write_profile", "torn"])]
    latches: bool,
    /// Clients of --latches, each on a thread [default: 2].
    #[arg(long, value_name = "N", requires = "latches", value_parser = clap::value_parser!(u64).range(CLIENTS))]
    clients: Option<u64>,
    /// Scheme of --latches; may be repeated [default: all that are not known to be wrong].
    #[arg(long = "scheme", value_name = "NAME", requires = "latches", value_parser = scheme)]
    #[serde(skip)]
    schemes: Vec<Scheme>,
    /// Hardware to simulate, with --fabric sim [default: connectx4].
    #[arg(long, value_name = "NAME|FILE", requires = "torn")]
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "value::serialize_path")]
    profile: Option<OsString>,
    /// Seconds to measure; the rates take as long again [default: 3, or 0.02 of virtual time].
    #[arg(long, value_name = "S", value_parser = value::seconds)]
    seconds: Option<f64>,
    /// Seed of the addresses.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the report as JSON; - for standard output.
    #[arg(long, value_name = "FILE|-")]
    #[serde(serialize_with = "value::serialize_path")]
    report: Option<PathBuf>,
}

fn kind(text: &str) -> Result<Kind, String> {
    Kind::named(text).ok_or_else(|| format!("no such kind; there are {}", Kind::ALL.map(Kind::name).join(", ")))
}

/// The numbers of clients that `--latches` takes.
const CLIENTS: RangeInclusive<u64> = latches::CLIENTS_MIN as u64..=latches::CLIENTS_MAX as u64;

fn scheme(text: &str) -> Result<Scheme, String> {
    let names = || Scheme::ALL.map(|(name, _)| name).join(", ");
    Scheme::named(text).ok_or_else(|| format!("no such scheme; there are {}", names()))
}

pub(crate) fn micro(options: &MicroOptions) -> Result<Verdict, Failure> {
    if options.torn {
        return torn(options);
    }
    if options.fabric == "sim" {
        return Err(Failure::new(
            "--fabric sim",
            "bench micro measures real fabrics: add --torn, or take another bench; remora-lab reproduce latches simulates \
             --latches",
        ));
    }
    if options.latches {
        return latches(options);
    }
    let stop = stop_on_signals()?;
    let mut options = options.clone();
    if options.kinds.is_empty() {
        options.kinds = Kind::ALL.into();
    }
    options.rates |= options.write_profile.is_some();
    let config = serde_json::to_value(&options).map_err(|error| Failure::new("the report", error))?;
    let to_measure = micro::MicroOptions {
        kinds: options.kinds.clone(),
        size: usize::try_from(options.size).unwrap_or(usize::MAX),
        batch: usize::try_from(options.batch).unwrap_or(usize::MAX),
        time: Duration::from_secs_f64(options.seconds.unwrap_or(SECONDS)),
        rates: options.rates,
        seed: options.seed,
    };
    to_measure.check().map_err(|unfit| refuse(&options, &unfit.into()))?;
    let inputs = Inputs::default().with_profile("--base-profile", options.base_profile.as_deref());
    let report = ReportTo::file(options.report.as_deref());
    inputs.check(&[("--write-profile", options.write_profile.as_deref()), ("--report", report)])?;
    let to_fit = options.write_profile.as_deref().map(|path| ToFit::open(path, &options)).transpose()?;
    let report_to = ReportTo::open(options.report.as_deref())?;
    let device = options.rdma.open(options.fabric == "verbs")?;
    let inline_bytes = match (&device, &to_fit) {
        (Some(device), Some(_)) => Some(device.inline_bytes().map_err(|error| Failure::new("--fabric verbs", error))?),
        _ => None,
    };
    let backend = backend(&options.fabric, device);
    let parts = if options.rates { 2 } else { 1 };
    let bar = ProgressBar::new(parts * to_measure.time.as_millis() as u64);
    let report = micro::run(&to_measure, backend, config, |elapsed| {
        bar.set_position(elapsed.as_millis() as u64);
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    let report = report.map_err(|error| refuse(&options, &error))?;
    let fitted = match (&to_fit, &report.verbs) {
        // A profile from a part of the measurement would not show that it is one.
        (Some(_), _) if stop.load(Ordering::Relaxed) => {
            Some(Err(Failure::new("--write-profile", "interrupted: no profile was written")))
        }
        (Some(to_fit), Some(verbs)) => Some(to_fit.fit(&report, verbs, inline_bytes, options.seed)),
        _ => None,
    };
    // The measurement is shown even if the profile cannot be written.
    let (profile, fitted) = match fitted.transpose() {
        Ok(fitted) => (fitted.map(|one| ProfileReport { name: one.profile.name, checks: one.checks }), Ok(())),
        Err(failure) => (None, Err(failure)),
    };
    let report = WithProfile { report, profile };
    let written = report_to.write(&report, || table(&report));
    output::all([written, fitted]).map(|()| Verdict::Sound)
}

/// Returns the real backend of this name. `device` is there if that is an RDMA device.
fn backend(fabric: &str, device: Option<Device>) -> Backend {
    match device {
        Some(device) => Backend::Verbs(device),
        None if fabric == "tcp" => Backend::Tcp,
        None => Backend::Shm,
    }
}

/// How long to measure by default, in seconds.
const SECONDS: f64 = 3.0;
/// How long to probe a simulated cluster by default, in seconds of its virtual time.
const VIRTUAL_SECONDS: f64 = 0.02;

/// What the probe has found, and what the fabric promises.
#[derive(Serialize)]
struct Probed {
    workload: &'static str,
    fabric: String,
    seconds: f64,
    #[serde(flatten)]
    found: TornReport,
    promises_whole_lines: bool,
    promises_atomic_writes: bool,
    machine: Machine,
}

/// Looks for accesses that are not atomic.
fn torn(options: &MicroOptions) -> Result<Verdict, Failure> {
    let is_simulated = options.fabric == "sim";
    if let (Some(_), false) = (&options.profile, is_simulated) {
        return Err(Failure::new("--profile", "is hardware to simulate: add --fabric sim"));
    }
    let report_to = ReportTo::open(options.report.as_deref())?;
    let device = options.rdma.open(options.fabric == "verbs")?;
    let seconds = options.seconds.unwrap_or(if is_simulated { VIRTUAL_SECONDS } else { SECONDS });
    let time = Duration::from_secs_f64(seconds);
    let refuse = |error: MicroError| Failure::new(format!("--fabric {}", options.fabric), error);
    let bytes = [vec![torn::BYTES]];
    let (found, capabilities) = if is_simulated {
        let profile = remora_command::profile(options.profile.as_deref().unwrap_or(OsStr::new("connectx4")))?;
        let sim = Sim::new(&bytes, &SimOptions::new(profile, options.seed));
        let sim = sim.map_err(|error| Failure::new("--fabric sim", error))?;
        (torn::probe_simulated(&sim, time).map_err(refuse)?, sim.capabilities())
    } else {
        let fabric = backend(&options.fabric, device).fabric(&bytes).map_err(refuse)?;
        (torn::probe(&*fabric, time).map_err(refuse)?, fabric.capabilities())
    };
    let probed = Probed {
        workload: "torn",
        fabric: options.fabric.clone(),
        seconds,
        found,
        promises_whole_lines: capabilities.atomic_line,
        promises_atomic_writes: capabilities.atomic_writes,
        machine: Machine::this(None),
    };
    report_to.write(&probed, || show_probed(&probed))?;
    let is_broken = probed.promises_whole_lines && found.lines.torn_unnoticed > 0
        || probed.promises_atomic_writes && found.writes_lost > 0;
    Ok(if is_broken { Verdict::Unsound } else { Verdict::Sound })
}

fn show_probed(probed: &Probed) -> String {
    let Probed { fabric, seconds, found, promises_whole_lines, promises_atomic_writes, .. } = probed;
    let mut text = format!("accesses that are not atomic, over {fabric}: three clients, {seconds} s\n\n");
    let _ = writeln!(text, "{:<18}{:>14}{:>18}{:>18}", "record", "reads", "torn, locked", "torn, unnoticed");
    for (name, reads) in [("of one line", found.lines), ("of four lines", found.long_records)] {
        let TornReads { reads, torn_and_locked, torn_unnoticed } = reads;
        let _ = writeln!(text, "{name:<18}{reads:>14}{torn_and_locked:>18}{torn_unnoticed:>18}");
    }
    let _ = writeln!(text, "\n{} WRITEs of a word met a CAS, and {} were lost", found.writes, found.writes_lost);
    let assume = if fabric == "sim" { "--assume" } else { "--rdma-assume" };
    let mut say = |what: &str, option: &str, is_promised: bool, (tried, found): (u64, u64)| {
        let promised = if is_promised { "promised" } else { "not promised" };
        let verdict = match (is_promised, tried, found) {
            (_, 0, _) => "and not tried".to_owned(),
            (true, _, 0) => "and not contradicted".to_owned(),
            (true, ..) => "and WRONG".to_owned(),
            (false, _, 0) => {
                format!("and not contradicted, which proves nothing; {assume} {option} takes it for granted")
            }
            (false, ..) => "and not so".to_owned(),
        };
        let _ = writeln!(text, "{what:<18}{promised}, {verdict}");
    };
    let TornReads { reads, torn_unnoticed, .. } = found.lines;
    say("whole lines", "whole-lines", *promises_whole_lines, (reads, torn_unnoticed));
    say("atomic WRITEs", "atomic-writes", *promises_atomic_writes, (found.writes, found.writes_lost));
    text
}

/// What `--latches` has measured.
#[derive(Serialize)]
struct Latched {
    workload: &'static str,
    fabric: String,
    seconds: f64,
    promises_whole_lines: bool,
    #[serde(flatten)]
    report: LatchReport,
    machine: Machine,
}

/// Measures latches, and reads without latches.
fn latches(options: &MicroOptions) -> Result<Verdict, Failure> {
    let seconds = options.seconds.unwrap_or(SECONDS);
    let to_measure = LatchOptions {
        schemes: options.schemes.clone(),
        size: usize::try_from(options.size).unwrap_or(usize::MAX),
        clients: options.clients.map_or(latches::CLIENTS_MIN, |clients| clients as usize),
        time: Duration::from_secs_f64(seconds),
    };
    let bytes = to_measure.memory_bytes().map_err(|unfit| Failure::new(format!("--size {}", options.size), unfit))?;
    let report_to = ReportTo::open(options.report.as_deref())?;
    let device = options.rdma.open(options.fabric == "verbs")?;
    let refuse = |error: MicroError| Failure::new(format!("--fabric {}", options.fabric), error);
    let fabric = backend(&options.fabric, device).fabric(&[vec![bytes]]).map_err(refuse)?;
    let report = latches::measure(&*fabric, &to_measure).map_err(refuse)?;
    let is_broken = report.is_broken();
    let latched = Latched {
        workload: "latches",
        fabric: options.fabric.clone(),
        seconds,
        promises_whole_lines: fabric.capabilities().atomic_line,
        report,
        machine: Machine::this(None),
    };
    report_to.write(&latched, || show_latched(&latched))?;
    Ok(if is_broken { Verdict::Unsound } else { Verdict::Sound })
}

fn show_latched(latched: &Latched) -> String {
    let Latched { fabric, seconds, report: LatchReport { size, clients, rows }, .. } = latched;
    let mut text =
        format!("latches, and reads without them, over {fabric}: {clients} clients, {size} B, {seconds} s\n");
    text.push_str(
        "own: each client has an item of its own; one: all have one, which one client updates under reads\n\n",
    );
    let number =
        |number: Option<f64>, unit: f64| number.map_or("-".to_owned(), |number| format!("{:.2}", number / unit));
    let [own, one] = ["own: us", "one: us"];
    let _ = writeln!(text, "{:<8}{:<22}{own:>10}{:>8}{one:>12}{:>8}{:>9}", "", "scheme", "trips", "trips", "wrong");
    for row in rows {
        let columns = |LatchFigures { mean_ns, round_trips, .. }| (number(mean_ns, 1e3), number(round_trips, 1.0));
        let ((own, own_trips), (one, one_trips)) = (columns(row.own), columns(row.one));
        let operation = match row.operation {
            Operation::Update => "update",
            Operation::Read => "read",
        };
        let wrong = row.own.wrong + row.one.wrong;
        let standing = match row.standing {
            Standing::Correct if wrong > 0 => "  <- must be 0",
            Standing::Correct => "",
            Standing::Assuming => "  assumes more than the fabric promises",
            Standing::Wrong => "  WRONG scheme",
        };
        let scheme = row.scheme;
        let _ = writeln!(
            text,
            "{operation:<8}{scheme:<22}{own:>10}{own_trips:>8}{one:>12}{one_trips:>8}{wrong:>9}{standing}"
        );
    }
    text.push_str("\ntrips: round trips awaited for each operation; wrong: updates lost, or reads torn\n");
    text
}

/// A profile that is to be written.
struct ToFit {
    file: OutputFile,
    name: String,
    base: Profile,
}

impl ToFit {
    fn open(path: &Path, options: &MicroOptions) -> Result<ToFit, Failure> {
        let option = format!("--write-profile {}", path.display());
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if Profile::NAMES.contains(&name.as_str()) {
            return Err(Failure::new(option, format!("{name} is a profile that comes with remora: give another name")));
        }
        let nearest = match options.fabric.as_str() {
            "tcp" => "ethernet10g",
            "verbs" => "connectx5",
            _ => "cxl",
        };
        let base = options.base_profile.as_deref().unwrap_or(OsStr::new(nearest));
        let base = remora_command::profile_of("--base-profile", base)?;
        Ok(ToFit { file: OutputFile::open("--write-profile", path)?, name, base })
    }

    /// Fits the profile to what was measured, and writes it.
    fn fit(
        &self,
        report: &MicroReport,
        verbs: &VerbsReport,
        inline_bytes: Option<u32>,
        seed: u64,
    ) -> Result<Fit, Failure> {
        let failed = |error| Failure::new("--write-profile", error);
        let mut fitted = fit(&self.base, &self.name, &verbs.verbs, inline_bytes, seed).map_err(failed)?;
        let (fabric, machine) = (report.fabric, &report.machine);
        fitted.profile.about =
            format!("Measured over {fabric} from one process to itself: {}, {} cores", machine.cpu, machine.cores);
        let heading = format!(
            "Written by remora bench micro --fabric {fabric} --write-profile: {}, {} cores, from one process to itself.\n\
             docs/profiles.md says how the numbers are used, and what such a measurement does not tell.",
            machine.cpu, machine.cores
        );
        let text = fitted.to_toml(&heading);
        self.file.fill(&text)?;
        Ok(fitted)
    }
}

/// The report, and the profile that was made of it.
#[derive(Serialize)]
struct WithProfile {
    #[serde(flatten)]
    report: MicroReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<ProfileReport>,
}

/// A profile that was written.
#[derive(Serialize)]
struct ProfileReport {
    name: String,
    checks: Vec<Check>,
}

fn refuse(options: &MicroOptions, error: &MicroError) -> Failure {
    match error {
        MicroError::Unfit(Unfit::Size) => Failure::new(format!("--size {}", options.size), error),
        MicroError::Unfit(Unfit::Round { .. }) => {
            Failure::new(format!("--size {} --batch {}", options.size, options.batch), error)
        }
        _ => Failure(error.to_string()),
    }
}

fn table(WithProfile { report, profile }: &WithProfile) -> String {
    let mut text = String::new();
    let _ = write_table(&mut text, report);
    if let Some(verbs) = &report.verbs {
        let _ = write_verbs(&mut text, verbs);
    }
    if let Some(profile) = profile {
        let _ = write_profile(&mut text, profile);
    }
    text
}

fn write_verbs(text: &mut String, report: &VerbsReport) -> std::fmt::Result {
    let VerbsReport { singles_under_way, lists_under_way, verbs } = report;
    writeln!(text, "\nverbs of one worker: one at a time; one to a round, {singles_under_way} under way;")?;
    writeln!(text, "{LIST} to a round, {lists_under_way} under way\n")?;
    let heads = ["p50 us", "p99 us", "1: M/s", "GB/s"];
    let list = format!("{LIST}: M/s");
    writeln!(text, "{:<18}{:>10}{:>10}{:>10}{list:>10}{:>10}", "verb", heads[0], heads[1], heads[2], heads[3])?;
    for one in verbs {
        writeln!(
            text,
            "{:<18}{:>10.2}{:>10.2}{:>10.3}{:>10.3}{:>10.3}",
            one.kind.to_string(),
            one.p50_ns / 1e3,
            one.p99_ns / 1e3,
            one.single_m_s,
            one.list_m_s,
            one.gb_s
        )?;
    }
    Ok(())
}

fn write_profile(text: &mut String, ProfileReport { name, checks }: &ProfileReport) -> std::fmt::Result {
    writeln!(text, "\nprofile {name}: what it gives, simulated, beside what was measured\n")?;
    writeln!(text, "{:<34}{:>5}{:>11}{:>11}{:>9}", "", "unit", "measured", "profile", "error")?;
    for check in checks {
        let Check { name, unit, measured, simulated, error } = check;
        let mark = if check.is_off() { "  <- not reached" } else { "" };
        writeln!(text, "{name:<34}{unit:>5}{measured:>11}{simulated:>11}{:>+7.1} %{mark}", 100.0 * error)?;
    }
    Ok(())
}

fn write_table(text: &mut String, report: &MicroReport) -> std::fmt::Result {
    let machine = &report.machine;
    let missing = value::show_bytes(report.missing_bytes);
    writeln!(text, "rounds of one coroutine over {}: medians of {} blocks", report.fabric, report.repetitions)?;
    writeln!(text, "{}, {} cores, {}; missing: of {missing}\n", machine.cpu, machine.cores, machine.pages)?;
    writeln!(
        text,
        "{:<10}{:<9}{:>6}{:>7}{:>12}{:>9}{:>9}{:>11}{:>10}  plain work",
        "round", "memory", "bytes", "batch", "ns a round", "p10", "p90", "plain ns", "over ns"
    )?;
    for one in &report.rounds {
        writeln!(
            text,
            "{:<10}{:<9}{:>6}{:>7}{:>12.1}{:>9.1}{:>9.1}{:>11.1}{:>10.1}  {}",
            one.kind.name(),
            one.memory.to_string(),
            one.size,
            one.batch,
            one.round_ns,
            one.round_p10_ns,
            one.round_p90_ns,
            one.plain_ns,
            one.over_ns,
            one.plain
        )?;
    }
    Ok(())
}
