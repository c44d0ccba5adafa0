//! `remora keygen`: makes the key that memory nodes and clients prove to each other.

use std::io::ErrorKind;
use std::path::PathBuf;

use clap::Args;
use remora::{KeyError, NodeKey};

use crate::{Failure, Verdict, output};

#[derive(Debug, Args)]
#[command(
    after_help = "Example: remora keygen cluster.key && remora memnode --listen 10.0.0.7:7000 --size 1GiB --key-file cluster.key

Copy the file to every machine of the cluster, by a way that nobody reads.

Exit status: 0 done, 2 the file cannot be written, or is there already."
)]
pub(crate) struct KeygenOptions {
    /// The new file; only its owner may read it.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(crate) fn keygen(options: &KeygenOptions) -> Result<Verdict, Failure> {
    let name = options.file.display().to_string();
    let key = NodeKey::generate().map_err(|error| Failure(error.to_string()))?;
    key.write_new(&options.file).map_err(|error| match error {
        KeyError::File(ErrorKind::AlreadyExists) => {
            Failure::new(&name, "is there already, and a key is never overwritten: remove it, or give another name")
        }
        error => Failure::new(&name, error),
    })?;
    output::show(&format!("{name}: a new key, for --key-file of memory nodes and clients\n"));
    Ok(Verdict::Sound)
}
