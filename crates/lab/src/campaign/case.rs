//! A run of a campaign: everything that it depends on, and its result.

use std::collections::BTreeMap;

use remora::protocol::Protocol;
use remora_fabric::Nanos;
use remora_workload::Prng;

/// A workload of a campaign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// SmallBank on few accounts.
    SmallBank,
    /// TATP on few subscribers, with all kinds of transactions equally frequent.
    Tatp,
    /// TPC-C on two small warehouses, with all kinds of transactions equally frequent.
    Tpcc,
    /// A part of TPC-E on few customers, with all kinds of transactions equally frequent.
    Tpce,
    /// YCSB, with two operations in a transaction, and all kinds of operations equally frequent.
    Ycsb,
    /// Reads, writes, inserts and deletes of few records, of one line and of several.
    Registers,
    /// Keys of ordered tables that come and go, and ranges of these keys.
    Ranges,
    /// Commands of Redis' clients, which gateways run.
    Redis,
    /// Operations on keys of a RACE hash table. They are no transactions, and need the protocol
    /// `rtx`.
    Race,
}

impl Load {
    /// All workloads.
    pub const ALL: [Load; 9] = [
        Load::SmallBank,
        Load::Tatp,
        Load::Tpcc,
        Load::Ycsb,
        Load::Registers,
        Load::Ranges,
        Load::Tpce,
        Load::Race,
        Load::Redis,
    ];

    /// Whether the workload can run under a protocol.
    #[must_use]
    pub fn runs_under(self, protocol: Protocol) -> bool {
        self != Load::Race || matches!(protocol, Protocol::Rtx(_))
    }

    /// Returns the name of the workload on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Load::SmallBank => "smallbank",
            Load::Tatp => "tatp",
            Load::Tpcc => "tpcc",
            Load::Tpce => "tpce",
            Load::Ycsb => "ycsb",
            Load::Registers => "registers",
            Load::Ranges => "ranges",
            Load::Race => "race",
            Load::Redis => "redis",
        }
    }
}

/// Faults that a campaign can have, by name.
pub const FAULTS: [&str; 13] = [
    "crash",
    "pause",
    "delay",
    "partition",
    "isolate",
    "stall",
    "clock-step",
    "lose",
    "duplicate",
    "fail",
    DRAIN,
    CANCEL,
    GROW,
];

/// Faults by which memory nodes leave, or are lost, rightly or wrongly.
const LOSING: [&str; 3] = ["fail", "isolate", DRAIN];

/// The faults that the workload `race` can have. Its operations write no logs, make no calls, and
/// look at no clocks. Its table grows by itself.
const RACE_FAULTS: [&str; 5] = ["crash", "pause", "delay", "partition", CANCEL];

/// Returns all faults that a campaign of a workload and a protocol can have. Of records that have
/// one copy, no node may leave.
#[must_use]
pub fn faults_of(load: Load, protocol: Protocol) -> Vec<String> {
    let keeps_all = protocol.discipline().copies_max() == 1;
    let all = FAULTS.into_iter().filter(|fault| !(keeps_all && LOSING.contains(fault)));
    all.filter(|fault| load != Load::Race || RACE_FAULTS.contains(fault)).map(str::to_owned).collect()
}

/// The fault in which an operator drains a node. It is not a fault of the simulation.
pub(super) const DRAIN: &str = "drain";

/// The fault in which a program drops a future. It is not a fault of the simulation.
pub(super) const CANCEL: &str = "cancel";

/// The fault in which a client makes a table larger. It is not a fault of the simulation.
pub(super) const GROW: &str = "grow";

/// How often a transaction is tried. A client that meets a lock of a dead client soon goes
/// elsewhere.
pub(super) const ATTEMPTS: u32 = 8;

/// The bytes of a worker's archive. The memory nodes are small.
pub(super) const ARCHIVE: u64 = 32 << 10;

/// One run of a campaign, with everything that it depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The seed of all random choices.
    pub seed: u64,
    /// The workload.
    pub load: Load,
    /// The protocol of the transactions.
    pub protocol: Protocol,
    /// The names of the faults. Each of them happens at least once in this run.
    pub faults: Vec<String>,
    /// The number of clients, each on a machine of its own. With local validation they nevertheless
    /// stand for threads of one process.
    pub clients: usize,
    /// The number of coroutines of each client.
    pub coroutines: usize,
    /// The number of keys, which all clients share.
    pub keys: u64,
    /// The number of transactions that must have committed.
    pub transactions: u64,
}

impl Case {
    /// Returns the smallest case that is useful in a campaign.
    #[must_use]
    pub fn new(seed: u64, load: Load, protocol: Protocol, faults: &[String]) -> Case {
        let faults = faults.to_vec();
        Case { seed, load, protocol, faults, clients: 4, coroutines: 4, keys: 50, transactions: 1_000 }
    }

    /// Returns why the case cannot be run, if it cannot.
    #[must_use]
    pub fn impossible(&self) -> Option<String> {
        let (protocol, one_copy) = (self.protocol.name(), self.protocol.discipline().copies_max() == 1);
        if !self.load.runs_under(self.protocol) {
            return Some(format!("RACE hash tables need the protocol rtx, not {protocol}"));
        }
        if one_copy && self.loses_nodes() {
            return Some(format!("{protocol} keeps one copy of each record, which fail, isolate and drain would lose"));
        }
        let unfit = self.faults.iter().find(|fault| self.load == Load::Race && !RACE_FAULTS.contains(&fault.as_str()));
        unfit.map(|fault| format!("the workload race cannot have the fault {fault}, only {}", RACE_FAULTS.join(", ")))
    }

    /// Returns this case for another seed. The seed draws each fault of the case with probability
    /// one half. If that leaves none, the run has all of them.
    #[must_use]
    pub fn of(&self, seed: u64) -> Case {
        let mut random = Prng::derive(seed, 0x5a32);
        let chosen: Vec<String> = self.faults.iter().filter(|_| random.below(2) == 0).cloned().collect();
        let faults = if chosen.is_empty() { self.faults.clone() } else { chosen };
        Case { seed, faults, ..self.clone() }
    }

    pub(super) fn has(&self, fault: &str) -> bool {
        self.faults.iter().any(|name| name == fault)
    }

    /// Whether memory nodes leave, or are lost, rightly or wrongly.
    pub(super) fn loses_nodes(&self) -> bool {
        LOSING.iter().any(|fault| self.has(fault))
    }

    /// Returns the number of places of clients and of their spares. Controllers have the next
    /// places.
    pub(super) fn places(&self) -> usize {
        2 * self.clients
    }

    /// Returns the command that runs the case again.
    #[must_use]
    pub fn command(&self) -> String {
        let mut command = format!(
            "remora-lab replay --seed {} --workload {} --protocol {}",
            self.seed,
            self.load.name(),
            self.protocol.name()
        );
        let faults = if self.faults.is_empty() { "none".to_owned() } else { self.faults.join(",") };
        command += &format!(" --faults {faults}");
        let Case { clients, coroutines, keys, transactions, .. } = self;
        command + &format!(" --clients {clients} --coroutines {coroutines} --keys {keys} --transactions {transactions}")
    }
}

/// The result of a run.
#[derive(Clone, Default, Debug)]
pub struct Ran {
    /// Attempts that committed.
    pub committed: u64,
    /// Committed attempts that were decided by the commit of another one.
    pub joined: u64,
    /// Attempts whose client was not told how they ended.
    pub unknown: u64,
    /// Attempts of unknown outcome whose outcome was found out at the end.
    pub resolved: u64,
    /// Clients that were gone, dead or taken for dead, and were recovered.
    pub recovered: u64,
    /// Clients that were taken for dead and were not dead.
    pub fenced: u64,
    /// Attempts that aborted, by cause.
    pub aborted: BTreeMap<&'static str, u64>,
    /// How often a table became larger.
    pub grown: u64,
    /// Faults by kind: how many happened, and how many of these met a transaction that held locks.
    pub faults: BTreeMap<&'static str, (u64, u64)>,
    /// How often each probe was reached.
    pub probes: BTreeMap<&'static str, u64>,
    /// The virtual time of the run, in nanoseconds.
    pub virtual_ns: Nanos,
    /// The number of events of the simulation.
    pub events: u64,
    /// A digest of the history. A case always has the same digest.
    pub digest: u64,
}

impl Ran {
    pub(super) fn add(&mut self, other: &Ran) {
        self.committed += other.committed;
        self.joined += other.joined;
        self.unknown += other.unknown;
        self.resolved += other.resolved;
        self.recovered += other.recovered;
        self.fenced += other.fenced;
        self.grown += other.grown;
        other.aborted.iter().for_each(|(cause, count)| *self.aborted.entry(cause).or_default() += count);
        for (kind, (all, holding)) in &other.faults {
            let sum = self.faults.entry(kind).or_default();
            *sum = (sum.0 + all, sum.1 + holding);
        }
        other.probes.iter().for_each(|(probe, count)| *self.probes.entry(probe).or_default() += count);
        self.virtual_ns += other.virtual_ns;
        self.events += other.events;
    }

    pub(super) fn attempts(&self) -> u64 {
        self.committed + self.unknown + self.aborted.values().sum::<u64>()
    }
}

/// A run that shows an error.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The case as it was found.
    pub case: Case,
    /// A description of the error.
    pub what: String,
    /// The smallest run that was found to show an error, too.
    pub shrunk: Case,
}
