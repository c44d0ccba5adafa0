//! `remora check`: checks whether recorded histories are strictly serializable.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use clap::Args;
use remora_check::{HistoryReader, ReadOptions};

use crate::{Failure, Verdict, output};

#[derive(Debug, Args)]
#[command(after_help = "Example: remora bench smallbank --seconds 1 --history run.jsonl && remora check run.jsonl

The history of a client that was killed can be checked if it was recorded with --history-durable.

Exit status: 0 strictly serializable, 1 an anomaly was found, 2 a history cannot be read, or is not whole.")]
pub(crate) struct CheckOptions {
    /// Histories of one run, as `remora bench --history` writes them.
    #[arg(required = true, value_name = "HISTORY")]
    histories: Vec<PathBuf>,
    /// Accept histories of clients that were killed: without an end, with a truncated last line, or
    /// empty.
    #[arg(long)]
    crashed: bool,
}

pub(crate) fn check(options: &CheckOptions) -> Result<Verdict, Failure> {
    let mut reader = HistoryReader::new(ReadOptions { crashed: options.crashed });
    for path in &options.histories {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| Failure::new(format!("cannot open {name}"), error))?;
        reader.read(&name, BufReader::with_capacity(1 << 20, file)).map_err(|error| Failure(error.to_string()))?;
    }
    let loaded = reader.finish();
    for file in &loaded.truncated_files {
        output::complain(&format!("{file}: the last line is truncated, and was left out"));
    }
    for file in &loaded.empty_files {
        output::complain(&format!("{file}: is empty, and says nothing"));
    }
    if loaded.empty_files.len() == options.histories.len() {
        return Err(Failure("there is nothing to check: all histories are empty".to_owned()));
    }
    let report = remora_check::check(&loaded.history);
    let mut text = format!("{report}\n");
    let mut is_clean = report.is_clean();
    if !loaded.commands.is_empty() {
        let report = remora_check::check_commands(&loaded.history, &loaded.commands);
        text += &format!("{report}\n");
        is_clean &= report.is_clean();
    }
    let verdict = if is_clean { Verdict::Sound } else { Verdict::Unsound };
    verdict.told(output::show(&text))
}
