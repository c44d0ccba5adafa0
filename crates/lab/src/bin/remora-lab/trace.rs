//! `remora-lab trace`: the rounds of one transaction, as a sequence diagram.

use clap::Args;
use remora_lab::trace::{self, Does};

use remora_command::{Failure, Verdict, output};

use crate::protocol::ProtocolArg;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: remora-lab trace --protocol ford

The client knows where all records are. Times are the simulator's, for the profile connectx4.
Numbers behind verbs are bytes. header: the lock word and the version of a record.

Exit status: 0 done, 2 bad input.")]
pub(crate) struct TraceOptions {
    #[command(flatten)]
    protocol: ProtocolArg,
    /// What the transaction does: transfer, read, or insert.
    #[arg(long, value_name = "NAME", default_value = Does::default().name(), value_parser = does)]
    workload: Does,
}

fn does(text: &str) -> Result<Does, String> {
    let known = || Does::ALL.map(Does::name).join(", ");
    Does::ALL.into_iter().find(|does| does.name() == text).ok_or_else(|| format!("there are {}", known()))
}

pub(crate) fn trace(options: &TraceOptions) -> Result<Verdict, Failure> {
    let traced = trace::trace(options.protocol.get(), options.workload)
        .map_err(|error| Failure::new(options.protocol.option(), error))?;
    Verdict::Sound.told(output::show(&traced.to_string()))
}
