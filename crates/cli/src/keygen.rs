//! `remora keygen`: makes the key that memory nodes and clients prove to each other, and changes
//! the key of a cluster in steps.

use std::io::ErrorKind;
use std::path::PathBuf;

use clap::Args;
use remora::connect::{KeyError, KeyStep, NodeKey, NodeKeys};

use crate::{Failure, Verdict, output};

#[derive(Debug, Args)]
#[command(
    after_help = "Example: remora keygen cluster.key && remora memnode --listen 10.0.0.7:7000 --size 1GiB --key-file cluster.key

Copy the file to every machine of the cluster, by a way that nobody reads.

To change the key while everything runs: --add, --swap and --drop, one after the other, on one machine. After each, copy
the file to every machine before you go on. Memory nodes and clients read it again when they make a connection.

Exit status: 0 done, 2 the file cannot be read or written, is there already, or has not the keys for that step."
)]
pub(crate) struct KeygenOptions {
    /// The new file, which only its owner may read. With a step: the existing file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    step: Step,
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Step {
    /// Step 1 of a change: add a new key, as the second.
    #[arg(long)]
    add: bool,
    /// Step 2: the second key becomes the first.
    #[arg(long)]
    swap: bool,
    /// Step 3: only the first key stays.
    #[arg(long)]
    drop: bool,
}

pub(crate) fn keygen(options: &KeygenOptions) -> Result<Verdict, Failure> {
    let name = options.file.display().to_string();
    let name = output::printable(&name);
    let step = match options.step {
        Step { add: true, .. } => KeyStep::Add,
        Step { swap: true, .. } => KeyStep::Swap,
        Step { drop: true, .. } => KeyStep::Drop,
        Step { add: false, swap: false, drop: false } => return make(options, &name),
    };
    NodeKeys::step(&options.file, step).map_err(|error| match error {
        KeyError::File(error) if error.kind() == ErrorKind::AlreadyExists => {
            Failure::new(format!("{name}.new"), "is of another keygen: wait for it, or remove it if none runs")
        }
        error => Failure::new(&name, error),
    })?;
    let (now, next) = match step {
        KeyStep::Add => ("a new key is the second", ", then go on with --swap"),
        KeyStep::Swap => ("the second key is now the first", ", then go on with --drop"),
        KeyStep::Drop => ("only the first key is left", "; connections that are open stay open"),
    };
    output::show(&format!("{name}: {now}; copy it to every machine{next}\n"))?;
    Ok(Verdict::Sound)
}

fn make(options: &KeygenOptions, name: &str) -> Result<Verdict, Failure> {
    let key = NodeKey::generate().map_err(|error| Failure(error.to_string()))?;
    key.write_new(&options.file).map_err(|error| match error {
        KeyError::File(error) if error.kind() == ErrorKind::AlreadyExists => {
            Failure::new(name, "is there already, and a key is never overwritten: remove it, or give another name")
        }
        error => Failure::new(name, error),
    })?;
    output::show(&format!("{name}: a new key, for --key-file of memory nodes and clients\n"))?;
    Ok(Verdict::Sound)
}
