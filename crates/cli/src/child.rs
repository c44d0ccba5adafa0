//! Processes of this program that a command starts and looks after. They end with the command.
//!
//! 1. A process ends when its [`Process`] is dropped.
//! 2. A process is killed when the thread that has started it ends, even by SIGKILL. So only the
//!    main thread starts processes.
//! 3. Signals of the terminal do not reach it: the command ends its processes in order.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

use crate::Failure;

/// How long a step of a process may take, even on a busy machine. A process that takes longer
/// hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

/// Environment variable with the parent's id, of a process that is to end with its parent.
const ENDS_WITH_ITS_PARENT: &str = "REMORA_ENDS_WITH_ITS_PARENT";

/// Makes this process end with its parent, if it is a [`Process`]. Every process of the command
/// calls this.
pub(crate) fn end_with_the_parent() {
    const ORPHANED: i32 = 2;
    let Ok(parent) = std::env::var(ENDS_WITH_ITS_PARENT) else { return };
    // If the system cannot do this, processes are left behind if the parent is killed.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if Pid::as_raw(getppid()).to_string() != parent {
        // The parent has ended before the line above.
        std::process::exit(ORPHANED);
    }
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    output: PathBuf,
    errors: PathBuf,
}

impl Process {
    /// Starts this program with other arguments. `name` is for people, and for the files in
    /// `folder` that get what the process writes.
    pub(crate) fn start(folder: &Path, name: &str, arguments: &[OsString]) -> Result<Process, Failure> {
        let failed = |error| Failure::new(format!("starting {name}"), error);
        let file = |kind: &str| folder.join(format!("{}.{kind}", name.replace(' ', "-")));
        let (output, errors) = (file("out"), file("err"));
        let program = std::env::current_exe().map_err(failed)?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(File::create(&output).map_err(failed)?)
            .stderr(File::create(&errors).map_err(failed)?)
            .process_group(0)
            .env(ENDS_WITH_ITS_PARENT, std::process::id().to_string())
            .spawn();
        Ok(Process { name: name.to_owned(), child: child.map_err(failed)?, output, errors })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the process has written to standard output so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Returns whether the process has written its line: it is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.said().ends_with('\n')
    }

    /// Returns how the process has ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        self.child.try_wait().map_err(|error| Failure::new(&self.name, error))
    }

    /// Makes the failure of a process that has ended, with the last line of its standard error.
    pub(crate) fn failure(&self, status: ExitStatus) -> Failure {
        let last = self.last_error();
        Failure::new(format!("{} ended with {status}", self.name), last.as_deref().unwrap_or("it said nothing"))
    }

    /// Returns the last line of the process's standard error.
    pub(crate) fn last_error(&self) -> Option<String> {
        fs::read_to_string(&self.errors).ok()?.lines().last().map(str::to_owned)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Failure> {
        kill_process(Pid::from_child(&self.child), signal).map_err(|error| Failure::new(&self.name, error))
    }

    /// Kills the process, and waits until it has ended.
    pub(crate) fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill().map_err(|error| Failure::new(&self.name, error))?;
        self.wait().map(drop)
    }

    /// Waits until the process has ended.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus, Failure> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if began.elapsed() > PATIENCE {
                return Err(Failure::new(&self.name, format!("has not ended within {} s", PATIENCE.as_secs())));
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits until a condition holds. `what` says in error messages what the process has to do.
    /// Fails if the process ends before.
    pub(crate) fn wait_for(&mut self, what: &str, holds: impl Fn(&Process) -> bool) -> Result<(), Failure> {
        let began = Instant::now();
        while !holds(self) {
            if let Some(status) = self.ended()? {
                return Err(self.failure(status));
            }
            if began.elapsed() > PATIENCE {
                return Err(Failure::new(&self.name, format!("did not {what} within {} s", PATIENCE.as_secs())));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Waits until the process is ready.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), Failure> {
        self.wait_for("be ready", Process::is_ready)
    }

    /// Makes the process end in good order.
    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        self.signal(Signal::TERM)?;
        let status = self.wait()?;
        if status.success() { Ok(()) } else { Err(self.failure(status)) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // the process may have ended
        let _ = self.child.wait();
    }
}
