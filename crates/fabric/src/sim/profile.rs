//! Profiles: descriptions of hardware as numbers, which say what a simulated cluster's machines,
//! NICs and memory cost.
//!
//! A profile is data. The profiles that come with the simulator are `profiles/*.toml`, where every
//! number has its source. `world.rs` is the model that uses them. Times are in nanoseconds,
//! bandwidths in gigabytes (10^9 bytes) per second. Each direction of a link has the full
//! bandwidth.

use std::collections::BTreeMap;

/// A kind of cluster.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Profile {
    /// Name of the profile.
    pub name: String,
    /// The machines that the profile describes.
    pub about: String,
    /// What executes a verb at the memory node.
    pub path: Path,
    /// Whether the machines' CPUs may change words that verbs CAS.
    pub coherent_atomics: bool,
    /// Whether a line of a record is read whole or seen as changed: see
    /// [`Capabilities::atomic_line`](crate::Capabilities::atomic_line).
    pub whole_lines: bool,
    /// Whether a WRITE of a word is atomic against CASes of that word.
    pub atomic_writes: bool,
    /// The machines.
    pub machine: Machine,
    /// The network interfaces.
    pub nic: Nic,
    /// The costs of a client's CPU.
    pub cpu: Cpu,
    /// The costs of calls.
    pub calls: Calls,
    /// A programmable switch that answers calls, if there is one.
    #[cfg_attr(feature = "profiles", serde(default, skip_serializing_if = "Option::is_none"))]
    pub switch: Option<Switch>,
    /// The clocks of the machines, compared with each other.
    pub clock: Clock,
    /// The kinds of memory, by name. `dram` must be among them.
    pub media: BTreeMap<String, Medium>,
}

/// What executes a verb at the memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Path {
    /// The NIC of the memory node.
    Nic,
    /// The CPU of the memory node. A round is one message to each node, and software executes its
    /// verbs. It emulates what protocols take for atomics of a NIC.
    Messages,
    /// The client's own CPU, by loads, stores and atomic instructions that reach the memory (CXL).
    Loads,
}

/// A machine.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Machine {
    /// The number of NICs. The machine's memory is spread over them in pieces of 4 KiB, each of
    /// which one NIC serves.
    pub nics: u32,
    /// The number of worker threads of a client machine, unless a run sets another number.
    pub threads: u32,
    /// The number of threads of a memory node's own CPU that serve calls and messages, where the
    /// node has no workers.
    pub server_threads: u32,
}

/// The costs of one NIC. A *latency* delays a verb. An *occupancy* is a time in which the NIC's
/// engine can take no other verb.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Nic {
    /// Usable bandwidth of the link.
    pub link_gb_s: f64,
    /// Usable bandwidth between NIC and memory.
    pub pcie_gb_s: f64,
    /// Latency from one NIC to another: cables and switch.
    pub wire_ns: f64,
    /// Latency from a doorbell to the first bit on the wire.
    pub send_ns: f64,
    /// Further latency of a WRITE or call whose payload must be fetched because it is not inline.
    pub fetch_ns: f64,
    /// Longest payload that travels with the doorbell.
    pub inline_bytes: u32,
    /// Latency from the wire to the start of the memory access.
    pub receive_ns: f64,
    /// Latency of reading host memory.
    pub dma_read_ns: f64,
    /// Latency of writing host memory.
    pub dma_write_ns: f64,
    /// Latency from the response's arrival until the client's CPU can see the completion.
    pub completion_ns: f64,
    /// Further latency of a flush: a READ must push earlier WRITEs out of NIC and PCIe.
    pub flush_ns: f64,
    /// Occupancy of the sending NIC for each verb or message.
    pub request_ns: f64,
    /// Occupancy of one connection for each verb or message: what one processing unit of the NIC
    /// can do.
    pub connection_ns: f64,
    /// Occupancy of the memory node's NIC for a READ.
    pub read_ns: f64,
    /// Occupancy of the memory node's NIC for a WRITE.
    pub write_ns: f64,
    /// Occupancy of the memory node's NIC for a CAS or FETCH_ADD.
    pub atomic_ns: f64,
    /// Bytes of headers with each message and each packet.
    pub header_bytes: u32,
    /// Largest payload of a packet.
    pub packet_bytes: u32,
    /// Slots of the table in which the NIC locks the words of atomics: a power of two. Each slot
    /// admits one atomic at a time.
    pub atomic_slots: u32,
    /// The lowest address bit that selects the slot.
    pub atomic_slot_shift: u32,
    /// Time that an atomic holds its slot.
    pub atomic_slot_ns: f64,
    /// Connections whose state the NIC caches. 0 means any number.
    pub cached_connections: u32,
    /// Further occupancy of a verb whose connection is not cached.
    pub miss_ns: f64,
}

/// The costs of a client's CPU.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Cpu {
    /// Ringing a doorbell. It is paid once for each destination of a round.
    pub doorbell_ns: f64,
    /// Posting a verb, and its share of polling.
    pub post_ns: f64,
    /// Taking a completion. It is paid once for each destination of a round.
    pub poll_ns: f64,
    /// Switching to a coroutine.
    pub switch_ns: f64,
    /// The work of the software for a transaction attempt, beside its verbs.
    pub transaction_ns: f64,
    /// The work of the software for each record in the execution of a transaction, beside its
    /// verbs.
    pub execution_ns: f64,
    /// The work for each record in the validation, which includes taking locks.
    pub validation_ns: f64,
    /// The work for each record written, in logging.
    pub logging_ns: f64,
    /// The work for each record written, in the commit phase, which installs it and frees its lock.
    pub commit_ns: f64,
}

/// The costs of calls, which are messages to a CPU and back.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Calls {
    /// Occupancy of a NIC, at either end, for each message.
    pub message_ns: f64,
    /// CPU time of the client for posting the first call of a round.
    pub post_ns: f64,
    /// CPU time of the client for posting each further call of a round. Calls share the doorbell,
    /// because one queue pair reaches all nodes.
    pub next_ns: f64,
    /// CPU time of the client for taking an answer.
    pub poll_ns: f64,
    /// CPU time of the server for receiving, dispatching and answering a call.
    pub serve_ns: f64,
    /// CPU time of the server for each word of request and answer.
    pub word_ns: f64,
    /// Time after which a client that has no answer sends the call again.
    pub resend_ns: f64,
}

/// A programmable switch in the network. It takes the place of the last memory node where calls are
/// concerned. Access to its memory costs nothing more.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Switch {
    /// Latency from a NIC to the switch, which is a part of the wire.
    pub wire_ns: f64,
    /// Time from a call's arrival until its answer leaves.
    pub serve_ns: f64,
}

/// How far the clocks of machines may differ.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Clock {
    /// Greatest offset from true time.
    pub offset_ns: f64,
    /// Greatest drift, in millionths.
    pub drift_ppm: f64,
}

/// The costs of a kind of memory, beside those of the NIC's path to it.
#[derive(Clone, PartialEq, Debug)]
#[cfg_attr(feature = "profiles", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct Medium {
    /// Whether the memory keeps what has reached it when power is lost.
    pub persistent: bool,
    /// Whether the processor's caches also keep their content when power is lost (eADR).
    pub caches_persistent: bool,
    /// Further latency of a read.
    pub read_ns: f64,
    /// Bytes of a line of the medium, which is written as a whole.
    pub line_bytes: u32,
    /// Bytes of a unit of its controller. To write a part of a unit, the controller reads the unit
    /// first.
    pub unit_bytes: u32,
    /// Occupancy for each line written.
    pub line_write_ns: f64,
    /// Occupancy for each line read.
    pub line_read_ns: f64,
    /// Occupancy for each write, whatever its length.
    pub write_ns: f64,
    /// Occupancy for each unit that is written in part.
    pub partial_ns: f64,
    /// Lines written for each line of a long WRITE, where the NIC writes to the processor's cache
    /// (DDIO). The cache evicts its lines in no order.
    pub ddio_amplification: f64,
    /// Factor on all occupancies where NIC and memory belong to different sockets.
    pub cross_socket: f64,
}

impl Medium {
    /// Makes plain memory, which costs nothing beyond the path to it.
    #[must_use]
    pub fn plain() -> Medium {
        Medium {
            persistent: false,
            caches_persistent: false,
            read_ns: 0.0,
            line_bytes: 64,
            unit_bytes: 64,
            line_write_ns: 0.0,
            line_read_ns: 0.0,
            write_ns: 0.0,
            partial_ns: 0.0,
            ddio_amplification: 1.0,
            cross_socket: 1.0,
        }
    }
}
