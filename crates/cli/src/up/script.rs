//! What `--exec` runs: a command of the shell.

use std::io::{IsTerminal, stdin};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::Failure;
use crate::gateway::LOOK;

/// A command of the shell that runs, or has ended. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Script {
    name: String,
    child: Child,
    /// Whether it has a process group of its own, which gets signals as a whole. A command that
    /// reads from the terminal has none, because it could not read then. It gets the signals of
    /// the terminal.
    is_group: bool,
}

impl Script {
    /// Runs a command, if there is one.
    pub(super) fn start(command: Option<&str>, port: u16) -> Result<Option<Script>, Failure> {
        let Some(command) = command else { return Ok(None) };
        let (name, is_group) = (format!("--exec {command}"), !stdin().is_terminal());
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", command]).env("REMORA_PORT", port.to_string());
        if is_group {
            shell.process_group(0);
        }
        let child = shell.spawn().map_err(|error| Failure::new(&name, error))?;
        Ok(Some(Script { name, child, is_group }))
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        self.child.try_wait().map_err(|error| Failure::new(&self.name, error))
    }

    /// Returns whether it has ended.
    pub(super) fn has_ended(&mut self) -> Result<bool, Failure> {
        Ok(self.ended()?.is_some())
    }

    /// Waits until it has ended, and tells it to if it runs. Returns its exit status, as the shell
    /// has it.
    pub(super) fn end(mut self) -> Result<u8, Failure> {
        /// How long it may take after it was told to end.
        const PATIENCE: Duration = Duration::from_secs(2);
        if let Some(status) = self.ended()? {
            return Ok(code(status));
        }
        self.signal(Signal::TERM);
        let told = Instant::now();
        loop {
            if let Some(status) = self.ended()? {
                return Ok(code(status));
            }
            if told.elapsed() > PATIENCE {
                self.signal(Signal::KILL);
            }
            thread::sleep(LOOK);
        }
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        // It may have ended.
        let _ = if self.is_group { kill_process_group(id, signal) } else { kill_process(id, signal) };
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if matches!(self.ended(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Returns the exit status of a command, as the shell has it.
fn code(status: ExitStatus) -> u8 {
    const SIGNALED: i32 = 128;
    let code = status.code().or(status.signal().map(|signal| SIGNALED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
