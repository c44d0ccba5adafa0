//! Options for the RDMA device.

use clap::{Args, ValueEnum};
use remora::connect::{Device, DeviceOptions};
use remora::floors::fabric::Assumed;
use remora::floors::fabric::rdma::Calls;
use serde::Serialize;

use crate::Failure;

/// Heading of these options in `--help`.
const HEADING: &str = "RDMA device (--fabric verbs)";

/// Options that say which RDMA device to use with `--fabric verbs`.
#[derive(Clone, Debug, Default, Args, Serialize)]
pub(crate) struct RdmaArgs {
    /// RDMA device, as rdma link names it [default: the first with an active port].
    #[arg(long, help_heading = HEADING, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// Port of the device [default: the first that is active].
    #[arg(long, help_heading = HEADING, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    device_port: Option<u8>,
    /// Index of its address in the port's table [default: RoCE version 2 for IPv4, else the first].
    #[arg(long, help_heading = HEADING, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    gid_index: Option<u8>,
    /// Transport of calls: rc, the reliable connections; ud, unreliable datagrams that are repeated
    /// until they are acknowledged. Clients choose it, and memory nodes follow [default: rc].
    #[arg(long, help_heading = HEADING, value_name = "HOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma_calls: Option<RdmaCalls>,
    /// What to take for granted of the device although its makers do not promise it: whole-lines,
    /// atomic-writes, or both, separated by commas. All clients of a table must agree.
    #[arg(long, help_heading = HEADING, value_name = "LIST", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rdma_assume: Vec<Assumption>,
}

/// Something that users take for granted of hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Assumption {
    /// A READ sees a line of a record whole.
    WholeLines,
    /// A WRITE of a word is atomic against CASes of that word.
    AtomicWrites,
}

/// Returns all that a list of assumptions says.
pub(crate) fn assumed(assumptions: &[Assumption]) -> Assumed {
    Assumed {
        whole_lines: assumptions.contains(&Assumption::WholeLines),
        atomic_writes: assumptions.contains(&Assumption::AtomicWrites),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum RdmaCalls {
    Rc,
    Ud,
}

impl RdmaArgs {
    /// Returns the arguments by which another process uses the same device.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let number = |number: Option<u8>| number.map(|number| number.to_string());
        let options = [
            ("--fabric", Some("verbs".to_owned())),
            ("--device", self.device.clone()),
            ("--device-port", number(self.device_port)),
            ("--gid-index", number(self.gid_index)),
            ("--rdma-calls", self.rdma_calls.and_then(|calls| Some(calls.to_possible_value()?.get_name().to_owned()))),
            ("--rdma-assume", self.assumptions()),
        ];
        options.into_iter().filter_map(|(option, value)| Some([option.to_owned(), value?])).flatten().collect()
    }

    fn assumptions(&self) -> Option<String> {
        let names = self.rdma_assume.iter().filter_map(|one| Some(one.to_possible_value()?.get_name().to_owned()));
        Some(names.collect::<Vec<_>>().join(",")).filter(|names| !names.is_empty())
    }

    /// Opens the device, if it is wanted. Fails if these options are given and it is not.
    pub(crate) fn open(&self, wanted: bool) -> Result<Option<Device>, Failure> {
        let given = [
            ("--device", self.device.is_some()),
            ("--device-port", self.device_port.is_some()),
            ("--gid-index", self.gid_index.is_some()),
            ("--rdma-calls", self.rdma_calls.is_some()),
            ("--rdma-assume", !self.rdma_assume.is_empty()),
        ];
        match given.into_iter().find(|(_, given)| *given && !wanted) {
            Some((option, _)) => return Err(Failure::new(option, "is of RDMA devices: add --fabric verbs")),
            None if !wanted => return Ok(None),
            None => {}
        }
        let (name, port, gid_index) = (self.device.clone(), self.device_port, self.gid_index);
        let calls = match self.rdma_calls {
            Some(RdmaCalls::Ud) => Calls::Datagrams,
            Some(RdmaCalls::Rc) => Calls::Connection,
            None => Calls::default(),
        };
        let mut options = DeviceOptions::default().name(name).calls(calls).assume(assumed(&self.rdma_assume));
        (options.port, options.gid_index) = (port, gid_index);
        Device::open(&options).map(Some).map_err(|error| Failure::new("--fabric verbs", error))
    }
}
