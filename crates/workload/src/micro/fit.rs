//! The fit: makes a simulator's profile of a device from the results of `remora bench micro` on
//! that device.
//!
//! The simulator runs the same measurement with a profile that has a parameter for each measured
//! value. The error of a simulated value corrects its parameter, and this is repeated. Each
//! correction is exact if the corrections before it are right, so a few turns suffice. Parameters
//! that the verbs of one worker do not determine are taken from a base profile.
//!
//! A rate says what one worker reached on one connection, whatever the limit was. So the NIC's
//! occupancies that are fitted to rates are upper bounds: with more workers the device may do
//! better than the profile.

use std::collections::BTreeMap;

use super::MicroError;
use super::verbs::{self, LIST, Stand, VerbFigures, VerbKind, four_digits};
use remora_fabric::sim::{Path, Profile, Sim, SimError, SimOptions};
use serde::Serialize;

/// The largest accepted error of a fitted profile: a tenth of the measured value.
pub const ERROR_MAX: f64 = 0.10;

/// The reason why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// A measurement that the fit needs is missing.
    #[error("{0} has not been measured")]
    Missing(VerbKind),
    /// The cluster cannot be simulated.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// The simulated measurement failed.
    #[error(transparent)]
    Micro(#[from] MicroError),
}

/// A measured value beside the value that the fitted profile gives.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Check {
    /// The name of the value.
    pub name: String,
    /// The unit of both values.
    pub unit: &'static str,
    /// The value on the device.
    pub measured: f64,
    /// The value in the simulator.
    pub simulated: f64,
    /// The difference of the simulated value from the measured one, as a share of the measured one.
    pub error: f64,
}

impl Check {
    fn new(name: String, unit: &'static str, measured: f64, simulated: f64) -> Check {
        let error = if measured > 0.0 { (simulated - measured) / measured } else { f64::INFINITY };
        Check { name, unit, measured: four_digits(measured), simulated: four_digits(simulated), error }
    }

    /// Whether the error is larger than [`ERROR_MAX`].
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.error.abs() > ERROR_MAX
    }
}

/// A fitted profile.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The profile.
    pub profile: Profile,
    /// Where each fitted number comes from, by its key. All other numbers are those of the base.
    pub sources: BTreeMap<&'static str, String>,
    /// All measured values, each beside the value that the profile gives.
    pub checks: Vec<Check>,
    base: String,
}

impl Fit {
    /// Returns the profile as the text of a file, below a heading of several lines.
    #[must_use]
    pub fn to_toml(&self, heading: &str) -> String {
        let mut text: String = heading.lines().map(|line| format!("# {line}\n")).collect();
        text += "#\n# Measured, and what this profile gives:\n";
        for check in &self.checks {
            let Check { name, unit, measured, simulated, error } = check;
            let mark = if check.is_off() { ", not reached" } else { "" };
            text += &format!("# {name}: {measured} {unit}, {simulated} {unit} ({:+.1} %{mark})\n", 100.0 * error);
        }
        text.push('\n');
        let source = |key: &str| self.sources.get(key).cloned();
        text += &self.profile.to_toml(|key| source(key).unwrap_or_else(|| format!("as {}, not measured", self.base)));
        text
    }
}

/// The number of corrections. It is far more than needed, if the values are those of one kind of
/// hardware.
const TURNS: usize = 16;
/// The time after which simulated workers have begun.
const BEGUN_NS: u64 = 2_000;
/// A verb that is slower than the fastest one by this factor is limited by something else than the
/// client's CPU.
const SLOWER: f64 = 1.05;
/// A time that stands for none.
const NOTHING_NS: f64 = 1e-3;
/// The longest time of a profile, in nanoseconds.
const TIME_MAX_NS: f64 = 1e10;
/// The highest bandwidth of a profile. No memory is faster.
const BANDWIDTH_MAX_GB_S: f64 = 1e3;

/// Fits a profile of this name to the measured figures. `inline_bytes` is given if the device tells
/// it. Parts of `base` that the figures do not determine stay as they are.
///
/// # Errors
///
/// [`FitError::Missing`] unless all verbs were measured. The other errors mean that the simulation
/// could not be run.
pub fn fit(
    base: &Profile,
    name: &str,
    figures: &[VerbFigures],
    inline_bytes: Option<u32>,
    seed: u64,
) -> Result<Fit, FitError> {
    let mut fitting = Fitting::new(base, name, figures, seed)?;
    fitting.begin(inline_bytes);
    for turn in 0..TURNS {
        fitting.turn(turn >= TURNS / 2)?;
    }
    fitting.round();
    let checks = fitting.checks(figures)?;
    let Fitting { profile, sources, .. } = fitting;
    Ok(Fit { profile, sources, checks, base: base.name.clone() })
}

const READ: VerbKind = VerbKind::read(64);
const WRITE: VerbKind = VerbKind::write(64);
const LONG_READ: VerbKind = VerbKind::read(4096);
const LONG_WRITE: VerbKind = VerbKind::write(4096);
const CAS: VerbKind = VerbKind::CAS;
const CALL: VerbKind = VerbKind::CALL;

/// A number of a profile, as a function that returns a reference to it.
type Field = fn(&mut Profile) -> &mut f64;

/// The parameters for the time that the memory node's NIC takes for each verb.
const ENGINE: [(&str, Field, VerbKind); 3] = [
    ("nic.read_ns", |profile| &mut profile.nic.read_ns, READ),
    ("nic.write_ns", |profile| &mut profile.nic.write_ns, WRITE),
    ("nic.atomic_ns", |profile| &mut profile.nic.atomic_ns, CAS),
];

/// The times of a verb in nanoseconds, measured or simulated.
#[derive(Clone, Copy, Debug)]
struct Times {
    latency: f64,
    /// The time for each verb, alone in its round.
    single: f64,
    /// The time for each verb of a [`LIST`].
    list: f64,
}

impl Times {
    fn of(figures: &VerbFigures) -> Times {
        let each = |m_s: f64| if m_s > 0.0 { 1e3 / m_s } else { TIME_MAX_NS };
        Times { latency: figures.p50_ns, single: each(figures.single_m_s), list: each(figures.list_m_s) }
    }

    /// Returns what the simulated times lack.
    fn less(self, simulated: Times) -> Times {
        Times {
            latency: self.latency - simulated.latency,
            single: self.single - simulated.single,
            list: self.list - simulated.list,
        }
    }
}

struct Fitting {
    profile: Profile,
    sources: BTreeMap<&'static str, String>,
    read: Times,
    write: Times,
    cas: Times,
    long_read: Times,
    long_write: Times,
    call: Times,
    /// The verb that is limited by the client's CPU, if any verb is.
    fastest: VerbKind,
    /// The bandwidth that long verbs have had, which the link has at least.
    link_least_gb_s: f64,
    seed: u64,
}

impl Fitting {
    fn new(base: &Profile, name: &str, figures: &[VerbFigures], seed: u64) -> Result<Fitting, FitError> {
        let times = |kind: VerbKind| {
            let found = figures.iter().find(|figures| figures.kind == kind);
            found.map(Times::of).ok_or(FitError::Missing(kind))
        };
        let (read, write, cas) = (times(READ)?, times(WRITE)?, times(CAS)?);
        let fastest = match base.path {
            // A core waits for what it loads. Its WRITEs cost nothing but themselves.
            Path::Loads => WRITE,
            _ if write.list <= read.list.min(cas.list) => WRITE,
            _ if read.list <= cas.list => READ,
            _ => CAS,
        };
        Ok(Fitting {
            profile: Profile { name: name.to_owned(), ..base.clone() },
            sources: BTreeMap::new(),
            read,
            write,
            cas,
            long_read: times(LONG_READ)?,
            long_write: times(LONG_WRITE)?,
            call: times(CALL)?,
            fastest,
            link_least_gb_s: 0.0,
            seed,
        })
    }

    fn measured(&self, kind: VerbKind) -> Times {
        match kind {
            READ => self.read,
            WRITE => self.write,
            CAS => self.cas,
            LONG_READ => self.long_read,
            LONG_WRITE => self.long_write,
            _ => self.call,
        }
    }

    /// Sets what follows without a simulation: which values must be larger than others, and which
    /// cannot be as large as in the base.
    fn begin(&mut self, inline_bytes: Option<u32>) {
        if let Some(bytes) = inline_bytes {
            self.profile.nic.inline_bytes = bytes;
            self.say(
                "nic.inline_bytes",
                "measured by remora bench micro: what a queue pair of the device takes".into(),
            );
        }
        let fast = self.measured(self.fastest);
        let (path, call) = (self.profile.path, self.call);
        let rate = format!("{} {:.4} M/s", self.fastest, 1e3 / fast.list);
        let (verb, message) = (fast.list, fast.single / 2.0);
        let engine = if path == Path::Messages { message } else { verb };
        self.at_most("nic.request_ns", |p| &mut p.nic.request_ns, engine, &rate);
        self.at_most("nic.connection_ns", |p| &mut p.nic.connection_ns, engine, &rate);
        self.at_most("cpu.poll_ns", |p| &mut p.cpu.poll_ns, fast.single / 4.0, &rate);
        self.at_most("cpu.switch_ns", |p| &mut p.cpu.switch_ns, fast.single / 4.0, &rate);
        let calls = format!("calls {:.4} M/s", 1e3 / call.list);
        self.at_most("calls.poll_ns", |p| &mut p.calls.poll_ns, call.list / 4.0, &calls);
        self.at_most("calls.message_ns", |p| &mut p.calls.message_ns, call.list / 4.0, &calls);
        match path {
            Path::Messages => self.at_most("calls.serve_ns", |p| &mut p.calls.serve_ns, message, &rate),
            Path::Loads => {
                self.at_most("calls.serve_ns", |p| &mut p.calls.serve_ns, call.list / 2.0, &calls);
                self.at_most("nic.dma_write_ns", |p| &mut p.nic.dma_write_ns, verb / 8.0, &rate);
            }
            Path::Nic => {
                for (key, of, kind) in ENGINE {
                    let list = self.measured(kind).list;
                    self.at_most(key, of, list, &format!("{kind} {:.4} M/s", 1e3 / list));
                }
            }
        }
        self.link();
    }

    /// Corrects the time of the memory node's NIC for a verb, if that is the verb's limit. It is
    /// not if the limit is the client's CPU, or that atomics of a connection follow each other.
    fn engine(&mut self, key: &'static str, of: Field, kind: VerbKind, simulated: Times) {
        let list = self.measured(kind).list;
        if self.is_held_back(kind) && list > SLOWER * simulated.list {
            *of(&mut self.profile) = list;
            let rate = format!("{kind} {:.4} M/s", 1e3 / list);
            let source =
                format!("derived: 1000 / rate, remora bench micro measured {rate} by one worker; the NIC may do more");
            self.say(key, source);
        }
    }

    /// Sets the link's bandwidth, if long verbs show it.
    fn link(&mut self) {
        let reads = self.long_read.list < self.long_write.list;
        let (long, short, kind) =
            if reads { (self.long_read, self.read, LONG_READ) } else { (self.long_write, self.write, LONG_WRITE) };
        let nic = &self.profile.nic;
        let packets = kind.bytes.div_ceil(nic.packet_bytes.max(1) as usize);
        let gb_s = (kind.bytes + packets * nic.header_bytes as usize) as f64 / long.list;
        self.link_least_gb_s = gb_s;
        let nic = &mut self.profile.nic;
        let limits = self.profile.path == Path::Nic && long.list > 1.1 * short.list;
        if limits || gb_s > nic.link_gb_s {
            nic.link_gb_s = gb_s;
            let what = if limits { "" } else { "; at least, as others are the limit" };
            let rate = 1e3 / long.list;
            let source = format!("derived: remora bench micro measured {kind} {rate:.4} M/s, with headers{what}");
            self.say("nic.link_gb_s", source);
        }
    }

    fn at_most(&mut self, key: &'static str, of: Field, most: f64, rate: &str) {
        let value = of(&mut self.profile);
        if *value > most {
            *value = most;
            self.say(
                key,
                format!("derived: assumed to be as long as it can be, as remora bench micro measured {rate}"),
            );
        }
    }

    fn say(&mut self, key: &'static str, source: String) {
        self.sources.insert(key, source);
    }

    /// Simulates the measurement and corrects the profile. It corrects the NICs' engines only when
    /// the rest is `near`.
    fn turn(&mut self, near: bool) -> Result<(), FitError> {
        let model = Model::of(&self.profile, self.seed);
        let missing = |kind: VerbKind, measured: Times| Ok::<_, FitError>(measured.less(model.times(kind, measured)?));
        if near && self.profile.path == Path::Nic {
            for (key, of, kind) in ENGINE {
                self.engine(key, of, kind, model.times(kind, self.measured(kind))?);
            }
        }
        let call = missing(CALL, self.call)?;
        let (read, write) = (missing(READ, self.read)?, missing(WRITE, self.write)?);
        let (long_read, long_write) = (missing(LONG_READ, self.long_read)?, missing(LONG_WRITE, self.long_write)?);
        let cas = missing(CAS, self.cas)?;
        let path = self.profile.path;
        match (path, self.fastest) {
            (Path::Messages, _) => self.cpu(mean([read, write, cas]), "READ, WRITE and CAS of 64 B"),
            (_, READ) => self.cpu(read, "READ of 64 B"),
            (_, CAS) => self.cpu(cas, "CAS"),
            _ => self.cpu(write, "WRITE of 64 B"),
        }
        self.calls(call);
        match path {
            Path::Nic => self.way(write.latency, "WRITE"),
            Path::Messages => self.way(mean([read, write, cas]).latency, "READ, WRITE and CAS"),
            // The core waits for all of it. The core's own time is what does not belong to memory.
            Path::Loads => {}
        }
        match path {
            Path::Nic => self.dma_read(read.latency, write.latency),
            // A CAS takes what a READ takes, so the mean of the two is used.
            Path::Loads => self.dma_read((read.latency + cas.latency) / 2.0, write.latency),
            Path::Messages => {}
        }
        let nic = &mut self.profile.nic;
        if path == Path::Nic && (64..4096).contains(&nic.inline_bytes) {
            let by = long_write.latency - write.latency;
            self.add("nic.fetch_ns", |p| &mut p.nic.fetch_ns, by, "latency of WRITE, 4096 B beside 64 B");
        }
        self.bytes(long_read.latency - read.latency, long_write.latency - write.latency);
        Ok(())
    }

    fn cpu(&mut self, missing: Times, verbs: &str) {
        let (doorbell, post) = split(missing);
        let what = format!("rates of {verbs}, one and {LIST} to a round");
        self.add("cpu.doorbell_ns", |p| &mut p.cpu.doorbell_ns, doorbell, &what);
        self.add("cpu.post_ns", |p| &mut p.cpu.post_ns, post, &what);
    }

    fn calls(&mut self, missing: Times) {
        let (first, each) = split(missing);
        let what = format!("rates of calls, one and {LIST} to a round");
        self.add("calls.post_ns", |p| &mut p.calls.post_ns, first + each, &what);
        self.add("calls.next_ns", |p| &mut p.calls.next_ns, each, &what);
        // Where one core waits for each call, it does not matter which part takes the time.
        if self.profile.path == Path::Nic {
            let most = self.call.list;
            self.add("calls.serve_ns", |p| &mut p.calls.serve_ns, missing.latency, "latency of a call");
            // One thread serves a connection. It can take no longer than the time from one call to
            // the next.
            let serve = &mut self.profile.calls.serve_ns;
            *serve = serve.min(most);
        }
    }

    /// Corrects the parts that are on the way of every verb. They share the difference as in the
    /// base.
    fn way(&mut self, missing: f64, verb: &str) {
        let writes = self.profile.path == Path::Nic && !self.swaps_tell();
        let nic = &mut self.profile.nic;
        let there = nic.send_ns + nic.wire_ns + nic.receive_ns + if writes { nic.dma_write_ns } else { 0.0 };
        let whole = there + nic.wire_ns + nic.completion_ns;
        // A value is never corrected to 0, because it could not grow again.
        let factor = if whole > 0.0 { (1.0 + missing / whole).max(0.1) } else { 1.0 };
        let mut parts: Vec<(&'static str, &mut f64)> = vec![
            ("nic.send_ns", &mut nic.send_ns),
            ("nic.wire_ns", &mut nic.wire_ns),
            ("nic.receive_ns", &mut nic.receive_ns),
            ("nic.completion_ns", &mut nic.completion_ns),
        ];
        if writes {
            parts.push(("nic.dma_write_ns", &mut nic.dma_write_ns));
        }
        let source = format!(
            "derived: by simulation from what remora bench micro measured, latency of {verb}; divided as in the base"
        );
        for (key, value) in parts {
            *value = (*value * factor).min(TIME_MAX_NS);
            self.sources.insert(key, source.clone());
        }
    }

    /// Whether the rate of CASes tells how long a READ of memory takes. That is the time between
    /// two atomics of one connection. It does if the times of READ and WRITE allow it.
    fn swaps_tell(&self) -> bool {
        let path = self.profile.path;
        let engine = |kind| if path == Path::Nic && self.is_held_back(kind) { self.measured(kind).list } else { 0.0 };
        let longer = self.read.latency - engine(READ) - (self.write.latency - engine(WRITE));
        let writing = self.apart() - longer;
        let tell = path == Path::Loads || path == Path::Nic && self.is_held_back(CAS);
        tell && (0.0..self.write.latency / 2.0).contains(&writing)
    }

    /// Whether the limit of a verb is something else than the client's CPU.
    fn is_held_back(&self, kind: VerbKind) -> bool {
        self.measured(kind).list > SLOWER * self.measured(self.fastest).list
    }

    /// Returns the time between two CASes of a connection.
    fn apart(&self) -> f64 {
        // For a list that a core waits for, this is the time that each verb but the first adds.
        let each = |times: Times| (times.list * LIST as f64 - times.single) / (LIST - 1) as f64;
        if self.profile.path == Path::Loads { each(self.cas) - each(self.write) } else { self.cas.list }
    }

    /// Corrects the additional time of a READ, beyond what is on the way of every verb.
    fn dma_read(&mut self, missing: f64, of_write: f64) {
        if !self.swaps_tell() {
            return self.add("nic.dma_read_ns", |p| &mut p.nic.dma_read_ns, missing, "latency of READ");
        }
        let by = self.apart() - self.profile.nic.dma_read_ns;
        self.add("nic.dma_read_ns", |p| &mut p.nic.dma_read_ns, by, "rate of CAS");
        // The rest of the difference between READ and WRITE means that writing memory takes longer
        // or shorter.
        let by = by - (missing - of_write);
        self.add("nic.dma_write_ns", |p| &mut p.nic.dma_write_ns, by, "latencies of READ and WRITE, rate of CAS");
    }

    /// Corrects the additional time of long verbs, compared with short ones.
    fn bytes(&mut self, read: f64, write: f64) {
        let longer = (LONG_READ.bytes - READ.bytes) as f64;
        let more = |gb_s: f64, missing: f64| 1.0 / (1.0 / gb_s + missing / longer).max(1.0 / BANDWIDTH_MAX_GB_S);
        let nic = &mut self.profile.nic;
        let what = match self.profile.path {
            // The payload of a READ passes PCIe at both ends.
            Path::Nic => {
                nic.pcie_gb_s = more(nic.pcie_gb_s, read / 2.0);
                "latencies of READ, 64 and 4096 B"
            }
            Path::Loads => {
                nic.pcie_gb_s = more(nic.pcie_gb_s, read);
                "latencies of READ, 64 and 4096 B"
            }
            // The payload of a READ passes PCIe at one end, and the payload of a WRITE at both
            // ends.
            Path::Messages => {
                nic.pcie_gb_s = more(nic.pcie_gb_s, write - read);
                let link = more(nic.link_gb_s, 2.0 * read - write);
                nic.link_gb_s = link.max(self.link_least_gb_s);
                "latencies of READ and WRITE, 64 and 4096 B"
            }
        };
        let source = format!("derived: by simulation from what remora bench micro measured, {what}");
        if self.profile.path == Path::Messages {
            self.say("nic.link_gb_s", source.clone());
        }
        self.say("nic.pcie_gb_s", source);
    }

    fn add(&mut self, key: &'static str, of: Field, by: f64, what: &str) {
        let value = of(&mut self.profile);
        *value = (*value + by).clamp(0.0, TIME_MAX_NS);
        self.say(key, format!("derived: by simulation from what remora bench micro measured, {what}"));
    }

    /// Rounds all fitted numbers to as many digits as are meaningful.
    fn round(&mut self) {
        let Profile { nic, cpu, calls, .. } = &mut self.profile;
        let mut fitted = vec![&mut nic.link_gb_s, &mut nic.pcie_gb_s, &mut nic.wire_ns, &mut nic.send_ns];
        fitted.extend([&mut nic.fetch_ns, &mut nic.receive_ns, &mut nic.dma_read_ns, &mut nic.dma_write_ns]);
        fitted.extend([&mut nic.completion_ns, &mut nic.request_ns, &mut nic.connection_ns]);
        fitted.extend([&mut nic.read_ns, &mut nic.write_ns, &mut nic.atomic_ns]);
        fitted.extend([&mut cpu.doorbell_ns, &mut cpu.post_ns, &mut cpu.poll_ns, &mut cpu.switch_ns]);
        fitted.extend([&mut calls.post_ns, &mut calls.next_ns, &mut calls.poll_ns]);
        fitted.extend([&mut calls.serve_ns, &mut calls.message_ns]);
        fitted.into_iter().for_each(|value| *value = four_digits(*value));
        let way = [&mut nic.send_ns, &mut nic.wire_ns, &mut nic.receive_ns, &mut nic.completion_ns];
        way.into_iter().filter(|time| **time < NOTHING_NS).for_each(|time| *time = 0.0);
    }

    fn checks(&self, figures: &[VerbFigures]) -> Result<Vec<Check>, FitError> {
        let model = Model::of(&self.profile, self.seed);
        let mut checks = Vec::with_capacity(3 * figures.len());
        for figures in figures {
            let (kind, measured) = (figures.kind, Times::of(figures));
            let simulated = model.times(kind, measured)?;
            let check = |name: String, unit, measured, simulated| Check::new(name, unit, measured, simulated);
            checks.push(check(format!("{kind}"), "us", measured.latency / 1e3, simulated.latency / 1e3));
            let rates =
                [("one to a round", measured.single, simulated.single), ("lists", measured.list, simulated.list)];
            for (how, measured, simulated) in rates {
                checks.push(check(format!("{kind}, {how}"), "M/s", 1e3 / measured, 1e3 / simulated));
            }
        }
        Ok(checks)
    }
}

fn mean(times: [Times; 3]) -> Times {
    let mean = |of: fn(&Times) -> f64| times.iter().map(of).sum::<f64>() / times.len() as f64;
    Times { latency: mean(|times| times.latency), single: mean(|times| times.single), list: mean(|times| times.list) }
}

/// Splits a CPU's cost into the cost of a round and the cost of each verb, from the cost of one
/// verb alone and in a list.
fn split(times: Times) -> (f64, f64) {
    let round = (times.single - times.list) * LIST as f64 / (LIST - 1) as f64;
    (round, times.list - round / LIST as f64)
}

/// The measurement on a simulated cluster of one client and one memory node.
struct Model {
    options: SimOptions,
}

impl Model {
    fn of(profile: &Profile, seed: u64) -> Model {
        // Freedoms of the contract that the hardware does not use would only be noise.
        Model { options: SimOptions { hostile: false, ..SimOptions::new(profile.clone(), seed) } }
    }

    /// Returns the times of a verb, on a cluster where nothing else has happened. The simulation
    /// lasts a multiple of the `measured` times.
    fn times(&self, kind: VerbKind, measured: Times) -> Result<Times, FitError> {
        let SimOptions { profile, seed, .. } = &self.options;
        let sim = Sim::new(&verbs::regions(), &self.options)?;
        let stand = Stand::simulated(&sim, profile.path == Path::Loads, *seed)?;
        let ns = |ns: f64| ns as u64 + BEGUN_NS;
        let latency = stand.latency(kind, ns(4.0 * measured.latency), ns(20.0 * measured.latency))?;
        let each = |list: usize, each: f64| {
            let round = ns(each * stand.under_way(list) as f64 + measured.latency);
            Ok::<_, FitError>(1e9 / stand.rate(kind, list, 2 * round, 10 * round)?)
        };
        let (single, list) = (each(1, measured.single)?, each(LIST, measured.list)?);
        Ok(Times { latency: latency.value_at_quantile(0.5) as f64, single, list })
    }
}
