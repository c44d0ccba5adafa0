//! The code that the commands of this project share: failures and verdicts as exit statuses,
//! output, values of options, and plots.
//!
//! The exit statuses are:
//!
//! - 0: the command is done;
//! - 1: an invariant does not hold, or a history is not strictly serializable;
//! - 2: bad input, nothing to work with, or a result that cannot be written;
//! - 141: standard output is a pipe whose reader has gone.
//!
//! Every error is one line on standard error.
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

/// The reason why a command has no result: one line, which names the option or the file and says
/// what to do.
#[derive(Clone, Debug)]
pub struct Failure(pub String);

impl Failure {
    /// Makes a failure of what it is about, and why it failed.
    pub fn new(what: impl std::fmt::Display, why: impl std::fmt::Display) -> Failure {
        Failure(format!("{what}: {why}"))
    }

    /// Makes the failure for a reader of standard output that has gone. It is not reported as an
    /// error.
    #[must_use]
    pub fn unheard() -> Failure {
        Failure(String::new())
    }

    pub(crate) fn is_unheard(&self) -> bool {
        self.0.is_empty()
    }

    /// Prints the failure on standard error.
    pub fn complain(&self) {
        if !self.is_unheard() {
            output::complain(&one_line(&self.0));
        }
    }

    /// Prints the failure, and returns the exit status of the command.
    #[must_use]
    pub fn end(&self) -> ExitCode {
        self.complain();
        ExitCode::from(if self.is_unheard() { UNHEARD } else { BAD_INPUT })
    }
}

/// The verdict of a command on what it checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Everything holds.
    Sound,
    /// An invariant does not hold, or a history has an anomaly.
    Unsound,
    /// A program that the command has run has ended with this status.
    Ended(u8),
}

const BAD_INPUT: u8 = 2;
/// The exit status if the reader of standard output has closed its pipe: that of a program that
/// SIGPIPE ends.
const UNHEARD: u8 = 128 + 13;

/// Begins a program, and reads its command line. From here on, a panic is reported as a bug, and a
/// file that grows too large is an error and not a signal. Fails with the exit status for a command
/// line that cannot be used, or that only asks for help.
pub fn begin<C: Parser>(program: &'static str) -> Result<C, ExitCode> {
    std::panic::set_hook(Box::new(move |panic| {
        output::complain(&format!("this is a bug in {program}: {}", one_line(&panic.to_string())));
    }));
    outlive_file_size_limits().map_err(|failure| failure.end())?;
    C::try_parse().map_err(|error| refuse(&error))
}

/// Makes the library log as much as `REMORA_LOG` says. Without it, the library logs up to the level
/// `usual`, and its waits at least as warnings.
pub fn log(usual: LevelFilter) {
    match wanted_log() {
        Some(wanted) => output::log(wanted, wanted),
        None => output::log(usual, usual.max(LevelFilter::WARN)),
    }
}

/// Returns the exit status of a command.
#[must_use]
pub fn conclude(result: Result<Verdict, Failure>) -> ExitCode {
    match result {
        Ok(Verdict::Sound) => ExitCode::SUCCESS,
        Ok(Verdict::Unsound) => ExitCode::FAILURE,
        Ok(Verdict::Ended(status)) => ExitCode::from(status),
        Err(failure) => failure.end(),
    }
}

/// Returns a profile by its name, or reads it from a file.
pub fn profile(name: &OsStr) -> Result<Profile, Failure> {
    profile_of("--profile", name)
}

/// Returns the profile that an option names.
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

/// Returns the level of logging that `REMORA_LOG` asks for, if it is set.
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

/// Makes writes beyond the limit of a file's size fail, as on a full disk, and not end the process.
fn outlive_file_size_limits() -> Result<(), Failure> {
    let unused = Arc::new(AtomicBool::new(false));
    let handled = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, unused);
    handled.map(drop).map_err(|error| Failure::new("signals", error))
}

/// Reports a command line that cannot be used, in one line. Help and version come here as well, and
/// are printed.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let printed = error.print();
        // The help for a command line that says too little goes to standard error.
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
