//! `remora bench ycsb`: its options, and the table that it loads.

use clap::Args;
use remora::Design;
use remora::floors::fabric::Headroom;
use remora_workload::ycsb::{
    Distribution, InsertOrder, Kind, Mix, OPERATIONS_MAX, OrderedSize, Size, VALUE_BYTES, Ycsb,
};
use serde::Serialize;

mod analytic;

use crate::bench::Bench;
use crate::connected::agrees;
use crate::options::RunArgs;
use crate::{Failure, Verdict, value};

#[derive(Clone, Debug, Args, Serialize)]
#[command(allow_negative_numbers = true)] // so that the error names the option
#[command(after_help = "Examples:
  remora bench ycsb
  remora bench ycsb --mix b --read-share 0.9 --theta 0.8 --value-size 128 --protocol ford
  remora bench ycsb --mix f --operations 4 --threads 2 --report -
  remora bench ycsb --mix e --value-size 128
  remora bench ycsb --analytic --protocol remora
  remora bench ycsb --mix d --records 1000 --transactions 100000 --history run.jsonl && remora check run.jsonl

Records that are inserted stay, so the table has room for those that a run of its length inserts; one that inserts more ends
early, and says so.

Exit status: 0 done, 1 an invariant does not hold, 2 bad input.")]
pub(crate) struct YcsbOptions {
    #[command(flatten)]
    #[serde(flatten)]
    run: RunArgs,
    /// YCSB's core workload: a (half updates), b (5 % updates), c (reads only), d (5 % inserts,
    /// latest records), e (scans, 5 % inserts), f (half read-modify-writes).
    #[arg(long, visible_alias = "mix", value_name = "NAME", default_value = "a", value_parser = mix)]
    ycsb_workload: String,
    /// Share of the operations that are reads, instead of the workload's own.
    #[arg(long, value_name = "SHARE", value_parser = value::share)]
    read_share: Option<f64>,
    /// How records are chosen: zipf, uniform or latest [default: the workload's own].
    #[arg(long, value_name = "NAME", value_parser = ["zipf", "uniform", "latest"])]
    distribution: Option<String>,
    /// Skew of zipf and latest, from 0 (all records alike) to below 1 [default: 0.99].
    #[arg(long, value_name = "THETA", value_parser = theta)]
    theta: Option<f64>,
    /// Operations of a transaction, each on another record.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=OPERATIONS_MAX as u64))]
    operations: u64,
    /// Records that are loaded [default: 100,000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 38))]
    records: Option<u64>,
    /// Bytes of a value: 32, 128 or 1000 [default: 1000, which is YCSB's].
    #[arg(long, value_name = "BYTES", value_parser = value_size)]
    value_size: Option<u64>,
    /// Kind of table: hash or ordered [default: hash; for workload e, which scans, ordered].
    #[arg(long, value_name = "KIND", value_parser = ["hash", "ordered"])]
    table: Option<String>,
    /// Placement of an ordered table's tree nodes: fine (spread over the memory nodes), hybrid
    /// (leaves spread, inner nodes at one memory node, whose CPU looks for leaves) or coarse (all
    /// at one).
    #[arg(long, value_name = "DESIGN", value_parser = ["fine", "hybrid", "coarse"], default_value = "fine")]
    design: String,
    /// Order of records in an ordered table: hashed (inserts are all over the table) or ordered
    /// (inserts are at its end) [default: hashed].
    #[arg(long, value_name = "ORDER", value_parser = ["hashed", "ordered"])]
    insert_order: Option<String>,
    /// Entries of an ordered table's leaf, whose keys then come first: a lookup reads the keys, and
    /// then one value, instead of a whole leaf of 1 KiB.
    #[arg(long, value_name = "ENTRIES", value_parser = clap::value_parser!(u16).range(4..=256))]
    keys_first: Option<u16>,
    /// Number of records for which there is room beside the loaded ones [default: what a run of
    /// this length inserts].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1 << 38))]
    inserts: Option<u64>,
    /// Draw what a transaction does once, and not for each of its operations.
    #[arg(long)]
    one_kind: bool,
    /// Read snapshots in transactions that only read. The protocol must have them, as remora has.
    #[arg(long)]
    snapshots: bool,
    /// Beside reads and transfers between records of an ordered table, sum up all its records in
    /// one transaction, again and again, on a worker of its own. The sum never changes, which every
    /// scan checks. A scan is a snapshot, if the protocol has snapshots.
    #[arg(long, conflicts_with_all = ["ycsb_workload", "operations", "value_size", "table", "design", "insert_order",
                                      "inserts", "one_kind", "snapshots"])]
    analytic: bool,
    /// When the scans run: always; never, for the same transactions without them; or turns, which
    /// are the second and the last quarter of the time [default: turns; always with
    /// --transactions].
    #[arg(long, value_name = "WHEN", value_parser = ["always", "never", "turns"], requires = "analytic")]
    #[serde(skip_serializing_if = "Option::is_none")]
    scanner: Option<String>,
}

fn mix(text: &str) -> Result<String, String> {
    match Mix::named(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err("there are a, b, c, d, e, f".to_owned()),
    }
}

fn theta(text: &str) -> Result<f64, String> {
    value::share(text)
        .ok()
        .filter(|theta| *theta < 1.0)
        .ok_or_else(|| "a number from 0 to below 1 is wanted".to_owned())
}

fn value_size(text: &str) -> Result<u64, String> {
    let fits = |bytes: &u64| usize::try_from(*bytes).is_ok_and(|bytes| VALUE_BYTES.contains(&bytes));
    Some(value::bytes(text)?).filter(fits).ok_or_else(|| "there are 32, 128 and 1000".to_owned())
}

pub(crate) fn ycsb(options: &YcsbOptions) -> Result<Verdict, Failure> {
    if options.analytic {
        return analytic::analytic(options);
    }
    let run = options.run.settled()?;
    run.has_snapshots(options.snapshots)?;
    let mix = options.mix()?;
    let records = options.records.unwrap_or(Ycsb::RECORDS);
    let value_bytes = options.value_size.map_or(VALUE_BYTES[2], |bytes| bytes as usize);
    let ordered = options.ordered(&mix)?;
    let size = |inserts| Size { records, inserts, value_bytes, ordered };
    let needed = |inserts| Ycsb::node_bytes(&size(inserts), &run.setting());
    let inserts = options.inserts.unwrap_or_else(|| default_inserts(&run, &mix, needed));
    let (needed, because_of) = (needed(inserts), format!("--records {records} --inserts {inserts}"));
    let mut bench = Bench::sized(run, needed, because_of);
    let opened = bench.open(|cluster| Ycsb::load(cluster, size(inserts)))?;
    // The table has the size with which it was loaded. Each client chooses its operations by
    // itself.
    let found = *opened.workload.size();
    agrees("--records", options.records, found.records)?;
    agrees("--value-size", options.value_size, found.value_bytes as u64)?;
    agrees("--inserts", options.inserts, found.inserts)?;
    let table = if found.ordered.is_some() { "ordered" } else { "hash" };
    agrees("--table", options.table.as_deref(), table)?;
    let insert_order = found.ordered.map(|ordered| ordered.order.name());
    let keys_first = found.ordered.and_then(|ordered| ordered.keys_first);
    agrees("--keys-first", options.keys_first, keys_first.unwrap_or(0))?;
    agrees("--insert-order", options.insert_order.as_deref(), insert_order.unwrap_or("a hash table"))?;
    if mix.read == Kind::Scan && found.ordered.is_none() {
        return Err(Failure::new(
            "--ycsb-workload e".to_owned(),
            "it scans, and the table that was loaded is a hash table",
        ));
    }
    if options.operations > found.records {
        let why = format!("a transaction's records are different ones, and there are {}", found.records);
        return Err(Failure::new(format!("--operations {}", options.operations), why));
    }
    let opened =
        opened.map(|ycsb| ycsb.with_mix(mix).with_snapshots(options.snapshots).with_one_kind(options.one_kind));
    let (distribution, theta) = match mix.distribution {
        Distribution::Uniform => ("uniform", None),
        Distribution::Zipf(theta) => ("zipf", Some(theta)),
        Distribution::Latest(theta) => ("latest", Some(theta)),
    };
    let config = YcsbOptions {
        run: bench.run.clone(),
        read_share: Some(mix.read_share),
        distribution: Some(distribution.to_owned()),
        theta,
        records: Some(found.records),
        value_size: Some(found.value_bytes as u64),
        inserts: Some(found.inserts),
        table: Some(table.to_owned()),
        insert_order: insert_order.map(str::to_owned),
        keys_first,
        ..options.clone()
    };
    bench.run(&opened, &config)
}

impl YcsbOptions {
    /// Returns the placement of the tree nodes, and the order of records, if the table is an
    /// ordered one.
    fn ordered(&self, mix: &Mix) -> Result<Option<OrderedSize>, Failure> {
        let design = match self.design.as_str() {
            "hybrid" => Design::Hybrid(0),
            "coarse" => Design::Coarse(0),
            _ => Design::Fine,
        };
        let order = match self.insert_order.as_deref() {
            Some("ordered") => InsertOrder::Ordered,
            _ => InsertOrder::Hashed,
        };
        match self.table.as_deref() {
            Some("hash") if mix.read == Kind::Scan => {
                Err(Failure::new("--table hash".to_owned(), "workload e scans: it needs an ordered table"))
            }
            Some("hash") if design != Design::Fine => {
                Err(Failure::new(format!("--design {}", self.design), "a hash table has no inner nodes"))
            }
            Some("hash") if self.insert_order.is_some() => {
                Err(Failure::new(format!("--insert-order {}", order.name()), "a hash table has no order"))
            }
            Some("hash") if self.keys_first.is_some() => {
                Err(Failure::new("--keys-first".to_owned(), "a hash table has no leaves"))
            }
            None if design == Design::Fine
                && self.insert_order.is_none()
                && self.keys_first.is_none()
                && mix.read != Kind::Scan =>
            {
                Ok(None)
            }
            Some("hash") => Ok(None),
            _ => Ok(Some(OrderedSize { design, order, keys_first: self.keys_first })),
        }
    }

    fn mix(&self) -> Result<Mix, Failure> {
        // The parser has refused all other names.
        let Some(standard) = Mix::named(&self.ycsb_workload) else {
            return Err(Failure::new(format!("--ycsb-workload {}", self.ycsb_workload), "there is none"));
        };
        if let Some(share) = self.read_share.filter(|share| standard.read_share == 1.0 && *share < 1.0) {
            let why = "workload c only reads: take a or b for updates";
            return Err(Failure::new(format!("--read-share {share}"), why));
        }
        let distribution = self.distribution(standard.distribution)?;
        let read_share = self.read_share.unwrap_or(standard.read_share);
        Ok(Mix { read_share, distribution, operations: self.operations as usize, ..standard })
    }

    /// Returns how records are chosen, if `usual` is what the workload does by itself.
    fn distribution(&self, usual: Distribution) -> Result<Distribution, Failure> {
        let theta = self.theta.unwrap_or(Mix::THETA);
        let distribution = match (self.distribution.as_deref(), usual) {
            (Some("uniform"), _) => Distribution::Uniform,
            (Some("latest"), _) | (None, Distribution::Latest(_)) => Distribution::Latest(theta),
            _ => Distribution::Zipf(theta),
        };
        if let (Distribution::Uniform, Some(theta)) = (distribution, self.theta) {
            return Err(Failure::new(format!("--theta {theta}"), "all records are alike with --distribution uniform"));
        }
        Ok(distribution)
    }
}

/// More operations a second than a thread does on memory nodes of its own process.
const OPERATIONS_PER_SECOND: f64 = 2_000_000.0;
/// More operations a second than a thread does on memory nodes of other processes.
const OPERATIONS_PER_SECOND_CONNECTED: f64 = 1_000_000.0;
/// More operations a virtual second than a thread does in a simulation.
const OPERATIONS_PER_VIRTUAL_SECOND: f64 = 5_000_000.0;

/// Returns room for the records that a run inserts. Memory nodes of this process take at most half
/// of the machine's memory, unless the smallest room needs more.
fn default_inserts(run: &RunArgs, mix: &Mix, needed: impl Fn(u64) -> u64) -> u64 {
    const INSERTS_MIN: u64 = 100_000;
    if mix.other != Kind::Insert {
        return 0;
    }
    if let Some(transactions) = run.transactions() {
        let operations = transactions.saturating_mul(mix.operations as u64);
        let expected = operations as f64 * (1.0 - mix.read_share);
        return ((expected + 6.0 * expected.sqrt()) as u64 + 64).min(operations).min(1 << 38);
    }
    let rate = match (&run.connect, run.is_simulated()) {
        (Some(_), _) => OPERATIONS_PER_SECOND_CONNECTED,
        (None, true) => OPERATIONS_PER_VIRTUAL_SECOND,
        (None, false) => OPERATIONS_PER_SECOND,
    };
    let mut inserts = (run.seconds_at_most() * rate * (1.0 - mix.read_share) * run.threads() as f64) as u64;
    inserts = inserts.clamp(INSERTS_MIN, 1 << 38);
    if run.connect.is_none() {
        let available = Headroom::now().bytes;
        let takes_too_much = |inserts| needed(inserts).saturating_mul(run.memory_nodes().into()) > available / 2;
        while inserts > INSERTS_MIN && takes_too_much(inserts) {
            inserts = (inserts / 4 * 3).max(INSERTS_MIN);
        }
    }
    inserts
}
