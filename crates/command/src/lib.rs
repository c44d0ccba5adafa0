//! What the commands of this project share: failures and verdicts as exit statuses, output, values
//! of options, plots.
//!
//! Exit status: 0 done; 1 an invariant does not hold, or a history is not strictly serializable; 2
//! bad input, nothing to work with, or a result that cannot be written; 141 standard output is a
//! pipe that nobody reads. Whatever is wrong is said in one line on standard error.
#![forbid(unsafe_code)]

pub mod inputs;
pub mod output;
pub mod plot;
pub mod value;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use remora_fabric::sim::Profile;
use tracing_subscriber::filter::LevelFilter;

/// Why there is nothing to show: one line, that names the option or the file and says what to do.
#[derive(Clone, Debug)]
pub struct Failure(pub String);

impl Failure {
    /// What it is about, and what is wrong with it.
    pub fn new(what: impl std::fmt::Display, why: impl std::fmt::Display) -> Failure {
        Failure(format!("{what}: {why}"))
    }

    /// The reader of standard output has gone, which is nothing to complain about.
    #[must_use]
    pub fn unheard() -> Failure {
        Failure(String::new())
    }

    pub(crate) fn is_unheard(&self) -> bool {
        self.0.is_empty()
    }

    /// Says it.
    pub fn complain(&self) {
        if !self.is_unheard() {
            output::complain(&one_line(&self.0));
        }
    }

    /// Says it, as the last thing that the command says.
    #[must_use]
    pub fn end(&self) -> ExitCode {
        self.complain();
        ExitCode::from(if self.is_unheard() { UNHEARD } else { BAD_INPUT })
    }
}

/// What a command found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Everything is as it should be.
    Sound,
    /// An invariant does not hold, or a history has an anomaly.
    Unsound,
}

const BAD_INPUT: u8 = 2;
/// The reader of standard output has closed its pipe: the status of a program that SIGPIPE ends.
const UNHEARD: u8 = 128 + 13;

/// Begins a program, and reads its command line. From here on a panic is told as the bug that it
/// is, and a file that grows too large is an error and no signal. Fails with the exit status of a
/// command line that cannot be used, or that only asks for help.
pub fn begin<C: Parser>(program: &'static str) -> Result<C, ExitCode> {
    std::panic::set_hook(Box::new(move |panic| {
        output::complain(&format!("this is a bug in {program}: {}", one_line(&panic.to_string())));
    }));
    outlive_file_size_limits().map_err(|failure| failure.end())?;
    C::try_parse().map_err(|error| refuse(&error))
}

/// Lets the library log as much as `REMORA_LOG` says. If it says nothing, this much, and what the
/// library waits for.
pub fn log(usual: LevelFilter) {
    match wanted_log() {
        Some(wanted) => output::log(wanted, wanted),
        None => output::log(usual, usual.max(LevelFilter::WARN)),
    }
}

/// The exit status of a command.
#[must_use]
pub fn conclude(result: Result<Verdict, Failure>) -> ExitCode {
    match result {
        Ok(Verdict::Sound) => ExitCode::SUCCESS,
        Ok(Verdict::Unsound) => ExitCode::FAILURE,
        Err(failure) => failure.end(),
    }
}

/// A profile by its name, or from a file.
pub fn profile(name: &OsStr) -> Result<Profile, Failure> {
    profile_of("--profile", name)
}

/// The profile that an option names.
pub fn profile_of(option: &str, name: &OsStr) -> Result<Profile, Failure> {
    let option = || format!("{option} {}", name.display());
    match name.to_str().and_then(Profile::named) {
        Some(profile) => Ok(profile),
        None if Path::new(name).exists() => {
            Profile::read(Path::new(name)).map_err(|error| Failure::new(option(), error))
        }
        None => {
            let why = format!("neither a file nor one of {}", Profile::NAMES.join(", "));
            Err(Failure::new(option(), why))
        }
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

/// Has writes beyond the limit of a file's size fail, as on a full disk, instead of ending the
/// process.
fn outlive_file_size_limits() -> Result<(), Failure> {
    let unused = Arc::new(AtomicBool::new(false));
    let handled = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, unused);
    handled.map(drop).map_err(|error| Failure::new("signals", error))
}

/// A command line that cannot be used, in one line; or help and version, which are asked for in the
/// same way.
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

pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
