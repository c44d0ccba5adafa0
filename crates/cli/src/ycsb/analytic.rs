//! `remora bench ycsb --analytic`: scans of the whole table beside reads and transfers.

use remora_workload::Scanner;
use remora_workload::ycsb::analytic::{Analytic, AnalyticSize};
use remora_workload::ycsb::{Distribution, Mix};

use super::YcsbOptions;
use crate::bench::Bench;
use crate::connected::agrees;
use crate::{Failure, Verdict, output};

pub(super) fn analytic(options: &YcsbOptions) -> Result<Verdict, Failure> {
    let run = options.run.with_a_core_left()?;
    let (scanner, named) = match options.scanner.as_deref() {
        Some("turns") if run.transactions().is_some() => {
            let why = "a run of --transactions has no quarters: use --seconds";
            return Err(Failure::new("--scanner turns", why));
        }
        Some("never") => (Scanner::Never, "never"),
        Some("always") => (Scanner::Always, "always"),
        None if run.transactions().is_some() => (Scanner::Always, "always"),
        _ => (Scanner::Turns, "turns"),
    };
    let has_snapshots = run.protocol().has_open_snapshots();
    let default = if has_snapshots { Analytic::RECORDS } else { Analytic::RECORDS_AT_ONCE };
    let records = options.records.unwrap_or(default);
    if records < Analytic::RECORDS_MIN {
        return Err(Failure::new(format!("--records {records}"), "a transfer needs two records"));
    }
    let size = AnalyticSize { records, keys_first: options.keys_first };
    let read_share = options.read_share.unwrap_or(Analytic::READ_SHARE);
    let distribution = match options.distribution(Distribution::Zipf(Mix::THETA))? {
        Distribution::Latest(_) => {
            return Err(Failure::new("--distribution latest", "nothing is inserted: take zipf or uniform"));
        }
        distribution => distribution,
    };
    let needed = Analytic::node_bytes(size, &run.setting());
    let mut bench = Bench::sized(run, needed, format!("--records {records}"));
    let opened = bench.open(|cluster| Analytic::load(cluster, size))?;
    // The table has the size with which it was loaded.
    let found = *opened.workload.size();
    agrees("--records", options.records, found.records)?;
    agrees("--keys-first", options.keys_first, found.keys_first.unwrap_or(0))?;
    let most = Analytic::rows_max(found);
    if scanner.is_there() && !has_snapshots && found.records > most {
        output::note(&format!(
            "a scan of {} records reads more leaves than one transaction can, which is enough for about {}: it will end \
             with an error, and the report says so",
            output::grouped(found.records),
            output::grouped(most)
        ));
    }
    let opened = opened.map(|analytic| analytic.with_mix(read_share, distribution).with_scanner(scanner));
    let (distribution, theta) = match distribution {
        Distribution::Uniform => ("uniform", None),
        Distribution::Zipf(theta) | Distribution::Latest(theta) => ("zipf", Some(theta)),
    };
    let config = YcsbOptions {
        run: bench.run.clone(),
        read_share: Some(read_share),
        distribution: Some(distribution.to_owned()),
        theta,
        records: Some(found.records),
        table: Some("ordered".to_owned()),
        keys_first: found.keys_first,
        scanner: Some(named.to_owned()),
        ..options.clone()
    };
    bench.run(&opened, &config)
}
