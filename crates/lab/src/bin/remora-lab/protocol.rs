//! The option of the experiments that run transactions by one protocol.

use clap::Args;
use remora::protocol::Protocol;

use remora_command::value;

#[derive(Clone, Debug, Args)]
pub(crate) struct ProtocolArg {
    #[arg(
        long,
        value_name = "NAME",
        default_value = Protocol::default().name(),
        value_parser = value::protocol,
        help = value::protocol_help()
    )]
    protocol: String,
}

impl ProtocolArg {
    /// Returns the protocol that was named.
    pub(crate) fn get(&self) -> Protocol {
        Protocol::named(&self.protocol).unwrap_or_default()
    }

    /// Returns the option as errors name it.
    pub(crate) fn option(&self) -> String {
        format!("--protocol {}", self.protocol)
    }
}
