//! Calibration: values that the texts have measured on real hardware, beside the values that the
//! simulator gives.
//!
//! Every row is an experiment. Clients run verbs through the model as the text's clients did, and
//! their count is the row's value. No value is copied from the profile. So a row is off if a number
//! of the profile is wrong, if two numbers do not fit together, or if the model lacks something.
//!
//! A row is a *fit* if a number of its profile was computed from the row's published value. Such a
//! row shows that the parts add up, and is no evidence for the model. All other rows with a
//! published value are *predictions*.
//!
//! A user's own profile has no published values. Its rows are what perftest measures, so that the
//! user can compare them by hand.

pub mod numbers;
pub(crate) mod rig;

use remora_fabric::FabricError;
use remora_fabric::sim::{Ended, Profile, SimError, SimOptions};
use serde::Serialize;

use numbers::Number;
use rig::{Client, Rig};

/// The largest accepted error of a required row: a tenth of the published value. It guards against
/// changes by mistake. Most required rows are fits, so it proves nothing about the model.
pub const ERROR_MAX: f64 = 0.10;

/// The reason why an experiment has no result.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The cluster could not be simulated.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// A round has failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The simulation ended, and nothing was counted within the measured time.
    #[error("an experiment came to nothing: it ended as {0:?}")]
    Unfinished(Ended),
}

/// One experiment of the calibration table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The name of the profile.
    pub profile: String,
    /// The name of the measured value.
    pub name: String,
    /// The unit of both values.
    pub unit: &'static str,
    /// The value on the hardware.
    pub published: Option<f64>,
    /// The value in the simulator.
    pub simulated: f64,
    /// The difference of the simulated value from the published one, as a share of the published
    /// one.
    pub error: Option<f64>,
    /// The place of publication. For a row without a published value: what to compare with, such as
    /// a plot, or the command of perftest that measures the same value.
    pub source: String,
    /// A description of the experiment.
    pub how: &'static str,
    /// Whether the simulated value must stay near the published one, as a guard against mistakes.
    pub required: bool,
    /// What the row says about the model. `None` if it has no published value.
    pub evidence: Option<Evidence>,
}

/// What a row says about the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// Nothing: a number of the profile was computed from the published value.
    Fit,
    /// The error of the model: no number of the profile was computed from the published value.
    Prediction,
}

impl Row {
    fn new(name: impl Into<String>, unit: &'static str, how: &'static str, simulated: f64) -> Row {
        Row {
            profile: String::new(),
            name: name.into(),
            unit,
            published: None,
            simulated,
            error: None,
            source: String::new(),
            how,
            required: false,
            evidence: None,
        }
    }

    /// Adds the published value, and where it was published.
    fn published(self, published: f64, source: &str) -> Row {
        let error = (self.simulated - published) / published;
        Row { published: Some(published), error: Some(error), source: source.to_owned(), ..self }
    }

    /// Adds the published value, as [`published`](Row::published) does. The simulated value must
    /// stay near it.
    fn required(self, published: f64, source: &str) -> Row {
        Row { required: true, ..self.published(published, source) }
    }

    /// Adds what the value can be compared with.
    fn by(self, source: impl Into<String>) -> Row {
        Row { source: source.into(), ..self }
    }

    /// Whether the row is required and off by more than [`ERROR_MAX`].
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.required && self.error.is_none_or(|error| error.abs() > ERROR_MAX)
    }
}

/// Measures what the texts have measured on a profile's hardware. If no text did, measures what
/// perftest would measure.
///
/// # Errors
///
/// [`CalibrationError::Sim`] if there is not enough memory for the simulated memory. The other
/// errors mean that the profile, or the simulator, cannot run plain verbs.
pub fn calibrate(profile: &Profile, seed: u64) -> Result<Vec<Row>, CalibrationError> {
    let sim = SimOptions::new(profile.clone(), seed);
    let mut rows = match profile.name.as_str() {
        "connectx3" => connectx3(&sim),
        "connectx4" => connectx4(&sim),
        "connectx5" => connectx5(&sim),
        "r74v" => r74v(&sim),
        "efa" => efa(&sim),
        "ethernet10g" => ethernet10g(&sim),
        _ => perftest(&sim),
    }?;
    let numbers = Profile::text(&profile.name).map(numbers::numbers).unwrap_or_default();
    for row in &mut rows {
        row.profile.clone_from(&profile.name);
        let names = |number: &Number| number.rows(&profile.name).any(|named| named == (&profile.name, &row.name));
        let is_fit = numbers.iter().any(names);
        row.evidence = row.published.map(|_| if is_fit { Evidence::Fit } else { Evidence::Prediction });
    }
    Ok(rows)
}

/// How far the predictions are from the published values.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Predictions {
    /// The number of predictions.
    pub rows: usize,
    /// The number of predictions that are off by at most 10 %.
    pub within_10_percent: usize,
    /// The number of predictions that are off by at most 25 %.
    pub within_25_percent: usize,
    /// The number of rows that are fits.
    pub fits: usize,
}

impl Predictions {
    /// Counts the predictions among these rows.
    #[must_use]
    pub fn of(rows: &[Row]) -> Predictions {
        let errors = rows.iter().filter(|row| row.evidence == Some(Evidence::Prediction)).filter_map(|row| row.error);
        let within = |limit: f64| errors.clone().filter(|error| error.abs() <= limit).count();
        Predictions {
            rows: errors.clone().count(),
            within_10_percent: within(0.10),
            within_25_percent: within(0.25),
            fits: rows.iter().filter(|row| row.evidence == Some(Evidence::Fit)).count(),
        }
    }
}

const MILLIONS: &str = "M/s";
const MICROSECONDS: &str = "us";
const GIGABITS: &str = "Gb/s";
const GIGABYTES: &str = "GB/s";

/// The bytes of a bulk WRITE.
const BULK: usize = 32 << 10;

fn connectx3(sim: &SimOptions) -> Result<Vec<Row>, CalibrationError> {
    let server = Rig::server(sim, 5, 8, 8);
    let how = "one server; 5 machines of 8 threads with 8 coroutines, each a READ at a time, random addresses";
    let reads = server.rate(async |client| client.read(64).await)?;
    let bulk = server.rate(async |client| client.read(2048).await)?;
    // A hash table without a cache: a bucket of 8 slots of 16 B, then the record.
    let lookup = async |client: &Client<'_>| {
        client.read(128).await?;
        client.read(80).await
    };
    let lookups = server.rate(lookup)?;
    let swap = Rig::pair(sim).time(async |client| client.swap(client.anywhere(8)).await)?;
    Ok(vec![
        Row::new("READ of 64 B at one server", MILLIONS, how, reads)
            .required(26.3, "DrTM TOCS 2017, section 2, figure 3"),
        Row::new("READ of 2 KiB at one server", GIGABITS, how, bulk * 2048.0 * 8.0 / 1e3)
            .published(34.0, "DrTM TOCS 2017, section 2"),
        Row::new(
            "lookups of two READs at one server",
            MILLIONS,
            "one server; 5 machines of 8 threads with 8 coroutines, each a READ of 128 B, then one of 80 B",
            lookups,
        )
        .published(11.6, "DrTM TOCS 2017, section 6.4: DrTM-KV without a cache"),
        Row::new("CAS", MICROSECONDS, "one client, one at a time", swap).published(14.5, "DrTM TOCS 2017, section 7.3"),
    ])
}

fn connectx4(sim: &SimOptions) -> Result<Vec<Row>, CalibrationError> {
    let all = Rig::all_to_all(sim, 16, 24, 16);
    let machines = f64::from(all.nodes);
    let how =
        "16 machines of 2 NICs and 24 threads with 16 coroutines, all to all, random addresses; a machine's share";
    let reads = all.rate(async |client| client.read(64).await)? / machines;
    let writes = all.rate(async |client| client.write(64).await)? / machines;
    let swaps = all.rate(async |client| client.swap(client.anywhere(8)).await)? / machines;
    let calls = all.rate(async |client| client.call().await)? / machines;
    let one = Rig { coroutines: 1, ..all.clone() };
    let alone = one.rate(async |client| client.read(64).await)? / machines;
    let calls_alone = one.rate(async |client| client.call().await)? / machines;
    let brief = all.clone().for_us(20, 20);
    let over_calls = |bytes: usize, writes: bool| {
        let verbs = brief.rate(async move |client: &Client<'_>| match writes {
            true => client.write(bytes).await,
            false => client.read(bytes).await,
        })?;
        let calls = brief.rate(async move |client: &Client<'_>| match writes {
            true => client.call_with(bytes).await,
            false => client.call_for(bytes).await,
        })?;
        Ok::<_, CalibrationError>(verbs / calls)
    };
    let ratios = |sizes: &[usize], writes| -> Result<Vec<f64>, CalibrationError> {
        sizes.iter().map(|bytes| over_calls(*bytes, writes)).collect()
    };
    let greatest = |ratios: &[f64]| ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = |ratios: &[f64]| ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let (small, large) = ([8, 32], [64, 128, 256, 512, 2048]);
    let (small_reads, large_reads) = (ratios(&small, false)?, ratios(&large, false)?);
    let large_writes = ratios(&large[1..], true)?;
    let thrashing = Rig { endpoints: 5, coroutines: 15, ..all.clone() };
    let thrashing = thrashing.rate(async |client| client.read(64).await)? / machines;
    // The lookup of a learned index: a leaf's keys, then the value.
    let lookup = async |client: &Client<'_>| {
        client.read(136).await?;
        client.read(8).await
    };
    let lookups = Rig::server(sim, 15, 24, 4).for_us(100, 100).rate(lookup)?;
    let read = Rig::pair(sim).time(async |client| client.read(64).await)?;
    let by_size = "Wei thesis, section 2.2.4, figure 2-4a";
    Ok(vec![
        Row::new("READ of 64 B, a machine", MILLIONS, how, reads).required(86.9, "Wei thesis, section 2.2.5"),
        Row::new("WRITE of 64 B, a machine", MILLIONS, how, writes).required(130.0, "Wei thesis, section 2.2.2"),
        Row::new("CAS, a machine", MILLIONS, how, swaps).required(48.0, "Wei thesis, section 2.2.4"),
        Row::new("UD RPC, a machine", MILLIONS, how, calls).required(79.0, "Wei thesis, section 2.2.2"),
        Row::new("READ of 64 B, round trip", MICROSECONDS, "one client, one at a time", read)
            .published(2.0, "Wei thesis, section 2.2.1"),
        Row::new("coroutines: READs with 16 over READs with 1", "x", how, reads / alone)
            .published(7.0, "Wei thesis, section 2.2.4"),
        Row::new("coroutines: UD RPCs with 16 over UD RPCs with 1", "x", how, calls / calls_alone)
            .published(6.46, "Wei thesis, section 2.2.4"),
        Row::new("READ over UD RPC, at most, 8 to 32 B", "x", how, greatest(&small_reads)).published(1.6, by_size),
        Row::new("READ over UD RPC, at most, 64 B to 2 KiB", "x", how, greatest(&large_reads)).published(1.37, by_size),
        Row::new("WRITE over UD RPC, at most, 128 B to 2 KiB", "x", how, greatest(&large_writes))
            .published(1.35, by_size),
        Row::new("WRITE over UD RPC, at least, 128 B to 2 KiB", "x", how, least(&large_writes))
            .published(1.03, by_size),
        Row::new("READ of 64 B with 960 connections a NIC, a machine", MILLIONS, how, thrashing)
            .published(79.0, "Wei thesis, section 2.2.4: no better than UD RPC"),
        Row::new(
            "XStore's lookups at one server of 2 NICs",
            MILLIONS,
            "one server; 15 machines of 24 threads with 4 coroutines, each a READ of 136 B, then one of 8 B",
            lookups,
        )
        .published(82.0, "Wei thesis, section 3.7.2"),
    ])
}

fn connectx5(sim: &SimOptions) -> Result<Vec<Row>, CalibrationError> {
    let workers = |workers: usize| Rig::server(sim, 4, workers / 4, 1).for_us(200, 400);
    let swaps = |rig: Rig, stride: u64| {
        rig.rate(async move |client: &Client<'_>| client.swap(client.at(client.number as u64 * stride)).await)
    };
    let pair = Rig::pair(sim);
    let one_way = |bytes: usize| pair.mean(async move |client: &Client<'_>| client.one_way(bytes).await);
    let stream =
        |bytes: usize, list: usize| pair.rate(async move |client: &Client<'_>| client.stream(bytes, list, 64).await);
    let waited = pair.time(async |client| client.write(8192).await)?;
    let latched = workers(8).rate(async |client| client.read_latched(16 << 10).await)?;
    let connected = |endpoints: usize| {
        let rig = Rig { nodes: 4, endpoints, ..Rig::server(sim, 1, 32, 8) };
        rig.rate(async |client: &Client<'_>| client.read(64).await)
    };
    let own = "one server; 128 workers on 4 machines, each a CAS at a time on its own word";
    let own_64 = "one server; 64 workers on 4 machines, each a CAS at a time on its own word";
    let one = "one server; 128 workers on 4 machines, each a CAS at a time, all on one word";
    let few = "one server; 8 workers on 4 machines, each a CAS at a time, all on one word";
    let latches =
        "one server; 8 workers on 4 machines, each a FETCH_ADD and a READ in one round, then a FETCH_ADD unwaited";
    let sizes =
        "Ziegler thesis, section 9.3.1, figure 9.2: 64 B, 512 B and 4 kB are named there, values by their order";
    let one_thread = "one thread, one connection, at most 64 in flight, nobody waits for any";
    let strides = "Ziegler thesis, section 11.3.2";
    let connections = "4 servers; one machine of 32 threads with 8 coroutines, one or two connections to each server";
    let thrashing = "Ziegler thesis, section 11.3.2: falls from about 128 connections of a NIC, in a plot";
    Ok(vec![
        Row::new("CAS, own words 64 B apart", MILLIONS, own, swaps(workers(128), 64)?).required(51.2, strides),
        Row::new("CAS, one word", MILLIONS, one, swaps(workers(128), 0)?).required(2.32, strides),
        Row::new("CAS, one word, 8 workers", MILLIONS, few, swaps(workers(8), 0)?)
            .published(2.32, "Ziegler thesis, section 11.3.2: the peak, atomics on one word scale until 8 workers"),
        Row::new("CAS, stride 64 B", MILLIONS, own, swaps(workers(128), 64)?).required(50.0, strides),
        Row::new("CAS, stride 256 B", MILLIONS, own, swaps(workers(128), 256)?).required(40.0, strides),
        Row::new("CAS, stride 512 B", MILLIONS, own_64, swaps(workers(64), 512)?).required(20.0, strides),
        Row::new("CAS, stride 4096 B", MILLIONS, own, swaps(workers(128), 4096)?).required(2.3, strides),
        Row::new("CAS, stride 4104 B", MILLIONS, own, swaps(workers(128), 4104)?).published(50.0, strides),
        Row::new("WRITE of 64 B, half round trip", MICROSECONDS, ONE_WAY, one_way(64)?)
            .required(1.09, "Ziegler thesis, section 9.3.1"),
        Row::new("WRITE of 512 B, half round trip", MICROSECONDS, ONE_WAY, one_way(512)?).published(1.2, sizes),
        Row::new("WRITE of 4 KiB, half round trip", MICROSECONDS, ONE_WAY, one_way(4096)?).published(1.9, sizes),
        Row::new("WRITE of 8 KiB, half round trip", MICROSECONDS, ONE_WAY, one_way(8192)?)
            .required(3.1, "Ziegler thesis, section 9.3.1"),
        Row::new("WRITE of 8 KiB, one at a time", GIGABYTES, "one client, one at a time", 8.192 / waited)
            .published(2.5, "Ziegler thesis, section 9.3.2"),
        Row::new("WRITE of 64 B, one thread, one connection", MILLIONS, one_thread, stream(64, 1)?)
            .required(7.0, "Ziegler thesis, section 9.3"),
        Row::new("WRITE of 64 B, one thread, one connection, lists of 16", MILLIONS, one_thread, stream(64, 16)?)
            .required(17.0, "Ziegler thesis, section 9.3"),
        Row::new("WRITE of 512 B, one thread, one connection", MILLIONS, one_thread, stream(512, 1)?)
            .published(7.0, "Ziegler thesis, section 9.3.3: whatever the size, 16 or 512 B"),
        Row::new("WRITE of 4 KiB, one thread, one connection", GIGABYTES, one_thread, stream(4096, 1)? * 4.096)
            .published(12.0, "Ziegler thesis, section 9.3"),
        Row::new("READ of 16 KiB under a shared latch, 8 workers", GIGABYTES, latches, latched * 16.384)
            .published(12.0, "Ziegler thesis, section 11.4.5: 8 workers reach the full bandwidth"),
        Row::new("READ of 64 B, one machine with 128 connections", MILLIONS, connections, connected(1)?).by(thrashing),
        Row::new("READ of 64 B, one machine with 256 connections", MILLIONS, connections, connected(2)?).by(thrashing),
    ])
}

fn r74v(sim: &SimOptions) -> Result<Vec<Row>, CalibrationError> {
    // With DDIO nothing that a NIC has written is persistent.
    let optane = SimOptions { medium: "optane".to_owned(), ddio: false, ..sim.clone() };
    let cross = SimOptions { cross_socket: true, ..optane.clone() };
    let cached = SimOptions { ddio: true, ..optane.clone() };
    let writes = |sim: &SimOptions, bytes: usize| {
        let rig = Rig::server(sim, 8, 12, 4).for_us(100, 200);
        rig.rate(async move |client: &Client<'_>| client.write(bytes).await)
    };
    let bulk = |sim: &SimOptions| {
        let rig = Rig::server(sim, 4, 2, 1).for_us(1_000, 4_000);
        let written = rig.rate(async |client: &Client<'_>| client.write(BULK).await)?;
        Ok::<_, CalibrationError>(written * BULK as f64 * 8.0 / 1e3)
    };
    let untuned = SimOptions { ddio: true, ..cross.clone() };
    let without = SimOptions { ddio: false, ..sim.clone() };
    let called = |sim: &SimOptions| Rig::server(sim, 8, 12, 4).rate(async |client| client.call().await);
    let reads = |sim: &SimOptions| Rig::server(sim, 8, 12, 4).rate(async |client| client.read(2048).await);
    let padded = writes(sim, 64)? / writes(sim, 16)?;
    let alone = "one client, one at a time, random addresses";
    let many = "one memory node; 8 machines of 12 threads with 4 coroutines, each a WRITE at a time, random addresses";
    let optane_many =
        "one memory node of Optane without DDIO; 8 machines of 12 threads with 4 coroutines, each a WRITE at a time";
    let many_reads =
        "one memory node; 8 machines of 12 threads with 4 coroutines, each a READ at a time, random addresses";
    let served = "one memory node of 10 threads; 8 machines of 12 threads with 4 coroutines";
    let few = "one memory node of Optane; 4 machines of 2 threads, each a WRITE of 32 KiB at a time";
    let (persistent, hints) = ("Wei thesis, section 2.3.4.3", "Wei thesis, section 2.3.4, table 2-4");
    let pair = Rig::pair(sim);
    let chain = Rig::pair(&optane).time(async |client| client.write_flushed(16).await)?;
    Ok(vec![
        Row::new("READ of 64 B, round trip", MICROSECONDS, alone, pair.time(async |client| client.read(64).await)?)
            .required(2.0, persistent),
        Row::new("WRITE of 64 B, round trip", MICROSECONDS, alone, pair.time(async |client| client.write(64).await)?)
            .required(2.0, persistent),
        Row::new("WRITE of 16 B to Optane and READ behind it, in one chain", MICROSECONDS, alone, chain)
            .required(3.0, persistent),
        Row::new("WRITE of 16 B to the other socket's Optane", MILLIONS, optane_many, writes(&cross, 16)?)
            .required(15.0, hints),
        Row::new("WRITE of 16 B to Optane", MILLIONS, optane_many, writes(&optane, 16)?).required(30.0, hints),
        Row::new("WRITE of 16 B to Optane, padded to 64 B", MILLIONS, optane_many, writes(&optane, 64)?)
            .required(45.0, hints),
        Row::new("bulk WRITE to Optane, DDIO on", GIGABITS, few, bulk(&cached)?).required(42.0, hints),
        Row::new("bulk WRITE to Optane, DDIO off", GIGABITS, few, bulk(&optane)?).required(100.0, hints),
        Row::new("WRITE of 256 B to DRAM", MILLIONS, many, writes(sim, 256)?)
            .published(37.0, "Wei thesis, section 2.3.4"),
        Row::new("UD RPC at one socket", MILLIONS, served, called(sim)?).published(54.0, "Wei thesis, section 2.3.4.1"),
        Row::new("UD RPC at one socket, DDIO off", MILLIONS, served, called(&without)?)
            .published(23.0, "Wei thesis, section 2.3.4.1"),
        Row::new("WRITE of 16 B to Optane, padded to 256 B", MILLIONS, optane_many, writes(&optane, 256)?)
            .published(34.0, "Wei thesis, section 2.3.4.2"),
        Row::new("WRITE of 16 B to DRAM: padded to 64 B over not", "x", many, padded)
            .published(0.75, "Wei thesis, section 2.3.4.2"),
        Row::new(
            "WRITE of 2 KiB to the other socket's Optane, DDIO on",
            GIGABITS,
            "one memory node of Optane; 8 machines of 12 threads with 4 coroutines, each a WRITE at a time",
            writes(&untuned, 2048)? * 2048.0 * 8.0 / 1e3,
        )
        .published(38.0, "Wei thesis, section 2.3.3: before all hints, 38 % of 100 Gb/s"),
        Row::new("READ of 2 KiB: Optane over DRAM", "x", many_reads, reads(&optane)? / reads(sim)?)
            .published(0.99, "Wei thesis, section 2.3.3"),
    ])
}

fn efa(sim: &SimOptions) -> Result<Vec<Row>, CalibrationError> {
    let pair = Rig::pair(sim).for_us(200, 10_000);
    let half = |bytes: usize| {
        Ok::<_, CalibrationError>(pair.time(async move |client: &Client<'_>| client.ping(bytes).await)? / 2.0)
    };
    let stream = async |client: &Client<'_>| client.stream(64, 1, 256).await;
    let threads = Rig { threads: 8, ..pair.clone() };
    let connections = Rig { endpoints: 4, coroutines: 4, ..pair.clone() };
    let waited = pair.time(async |client| client.write(8192).await)?;
    let source = "Ziegler thesis, section 9.3.1";
    let sizes =
        "Ziegler thesis, section 9.3.1, figure 9.2: 64 B, 512 B and 4 kB are named there, values by their order";
    Ok(vec![
        Row::new("message of 64 B, half round trip", MICROSECONDS, HALF, half(64)?).required(20.5, source),
        Row::new("message of 512 B, half round trip", MICROSECONDS, HALF, half(512)?).published(20.75, sizes),
        Row::new("message of 4 KiB, half round trip", MICROSECONDS, HALF, half(4096)?).published(22.55, sizes),
        Row::new("message of 8 KiB, half round trip", MICROSECONDS, HALF, half(8192)?).published(30.0, source),
        Row::new("message of 8 KiB, one at a time", GIGABYTES, "one client, one at a time", 8.192 / waited)
            .published(0.25, "Ziegler thesis, section 9.3.2: a tenth of RDMA's 2.5"),
        Row::new(
            "messages of 64 B, one connection",
            MILLIONS,
            "one thread, one connection, at most 256 in flight, nobody waits for any",
            pair.rate(stream)?,
        )
        .required(2.0, "Ziegler thesis, section 9.3"),
        Row::new(
            "messages of 64 B, one thread, 4 connections",
            MILLIONS,
            "one thread, 4 connections, at most 256 in flight on each, nobody waits for any",
            connections.rate(stream)?,
        )
        .published(4.0, "Ziegler thesis, section 9.3.4"),
        Row::new(
            "messages of 64 B, 8 threads",
            MILLIONS,
            "8 threads with a connection each, at most 256 in flight, nobody waits for any",
            threads.rate(stream)?,
        )
        .published(8.0, "Ziegler thesis, section 9.3"),
    ])
}

fn ethernet10g(sim: &SimOptions) -> Result<Vec<Row>, CalibrationError> {
    let pair = Rig::pair(sim).for_us(1_000, 20_000);
    let oracle = Rig::server(sim, 15, 24, 4).for_us(1_000, 2_000);
    Ok(vec![
        Row::new(
            "round trip with 64 B each way",
            MICROSECONDS,
            "one client; rounds of a WRITE and a READ of 64 B, one at a time",
            pair.time(async |client| client.ping(64).await)?,
        )
        .published(90.0, "Wei thesis, section 5.5"),
        Row::new(
            "requests that one oracle answers",
            MILLIONS,
            "one server; 15 machines of 24 threads with 4 coroutines, each a FETCH_ADD at a time",
            oracle.rate(async |client| client.add(client.at(0)).await)?,
        )
        .published(2.39, "Wei thesis, section 5.1.3"),
    ])
}

const ONE_WAY: &str =
    "one client, one at a time: from posting until a CPU that polls the last word sees it; nobody answers";
const HALF: &str =
    "one client; rounds of a WRITE and a READ of as many bytes, one at a time: half of the time they take";

/// Measures what perftest measures between two machines, and also what perftest does not: calls and
/// persistent writes.
fn perftest(sim: &SimOptions) -> Result<Vec<Row>, CalibrationError> {
    let threads = (sim.profile.machine.threads as usize).min(8);
    // Rounds of some profiles take a hundred times as long as those of others.
    let ping = Rig::pair(sim).for_us(1_000, 10_000).time(async |client| client.ping(64).await)?.ceil() as u64;
    let pair = Rig::pair(sim).for_us(10 * ping, 200 * ping);
    let server = Rig { endpoints: 16, ..Rig::server(sim, 4, threads, 16).for_us(20 * ping, 50 * ping) };
    let alone = "one client, one at a time";
    let many = "one memory node; 4 machines of up to 8 threads with 16 connections, on each a verb at a time";
    let one_thread = "one thread, one connection, at most 64 in flight, nobody waits for any";
    let mut rows = Vec::new();
    for bytes in [8, 64, 512, 4096, 8192] {
        let measured = pair.time(async |client| client.read(bytes).await)?;
        let row = Row::new(format!("READ of {bytes} B"), MICROSECONDS, alone, measured);
        rows.push(row.by(format!("ib_read_lat -s {bytes}")));
        let measured = pair.time(async |client| client.write(bytes).await)?;
        rows.push(Row::new(format!("WRITE of {bytes} B"), MICROSECONDS, alone, measured));
        let measured = pair.mean(async |client| client.one_way(bytes).await)?;
        let row = Row::new(format!("WRITE of {bytes} B, half round trip"), MICROSECONDS, ONE_WAY, measured);
        rows.push(row.by(format!("ib_write_lat -s {bytes}")));
    }
    let measured = pair.time(async |client| client.swap(client.anywhere(8)).await)?;
    rows.push(Row::new("CAS", MICROSECONDS, alone, measured).by("ib_atomic_lat -A CMP_AND_SWAP"));
    let measured = pair.time(async |client| client.add(client.anywhere(8)).await)?;
    rows.push(Row::new("FETCH_ADD", MICROSECONDS, alone, measured).by("ib_atomic_lat -A FETCH_AND_ADD"));
    let measured = pair.time(async |client| client.write_flushed(64).await)?;
    rows.push(Row::new("WRITE of 64 B and flush, in one chain", MICROSECONDS, alone, measured));
    rows.push(Row::new("call", MICROSECONDS, alone, pair.time(async |client| client.call().await)?));
    let measured = server.rate(async |client| client.read(64).await)?;
    rows.push(Row::new("READ of 64 B", MILLIONS, many, measured).by("ib_read_bw -s 64 -q 64 -l 16"));
    let measured = server.rate(async |client| client.write(64).await)?;
    rows.push(Row::new("WRITE of 64 B", MILLIONS, many, measured).by("ib_write_bw -s 64 -q 64 -l 16"));
    let measured = server.rate(async |client| client.swap(client.anywhere(8)).await)?;
    rows.push(Row::new("CAS, random words", MILLIONS, many, measured).by("ib_atomic_bw -A CMP_AND_SWAP -q 64"));
    let measured = server.rate(async |client| client.swap(client.at(0)).await)?;
    rows.push(
        Row::new("CAS, one word", MILLIONS, many, measured).by("ib_atomic_bw -A CMP_AND_SWAP -q 1, several processes"),
    );
    rows.push(Row::new("calls", MILLIONS, many, server.rate(async |client| client.call().await)?));
    let measured = pair.rate(async |client| client.stream(64, 1, 64).await)?;
    rows.push(Row::new("WRITE of 64 B, one connection", MILLIONS, one_thread, measured).by("ib_write_bw -s 64 -q 1"));
    let measured = pair.rate(async |client| client.stream(64, 16, 64).await)?;
    rows.push(
        Row::new("WRITE of 64 B, one thread, one connection, lists of 16", MILLIONS, one_thread, measured)
            .by("ib_write_bw -s 64 -q 1 -l 16"),
    );
    let measured = server.rate(async |client| client.write(BULK).await)? * BULK as f64 / 1e3;
    rows.push(Row::new("WRITE of 32 KiB", GIGABYTES, many, measured).by("ib_write_bw -s 32768"));
    Ok(rows)
}
