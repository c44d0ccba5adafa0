//! The hot records of a whole cluster, for `remora status`: the lists of all clients, added up.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use remora::Named;
use remora::floors::node::TableId;
use remora::floors::node::hot::{Conflicts, HotList};
use serde::Serialize;

use crate::output;

/// Number of records that are shown.
const SHOWN: usize = 10;

/// A record at which transactions got in each other's way, in the last second of every client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HotRecord {
    table: String,
    /// The key, in hex.
    key: String,
    /// The record, as errors name it.
    #[serde(skip)]
    name: String,
    /// Number of clients at which the record is hot.
    clients: usize,
    /// Attempts that aborted because the record was locked.
    locked_per_second: f64,
    /// Attempts that aborted because the record had changed since they read it.
    changed_per_second: f64,
    /// Attempts that aborted at the record for another reason.
    otherwise_per_second: f64,
    /// Attempts before which a coroutine stood in line for the record.
    stood_per_second: f64,
    /// How long such a coroutine stood in line, on average.
    stood_ms_mean: f64,
}

impl HotRecord {
    fn of(table: &str, key: &[u8]) -> HotRecord {
        HotRecord {
            table: table.to_owned(),
            key: key.iter().map(|byte| format!("{byte:02x}")).collect(),
            name: Named::new(table, key).to_string(),
            clients: 0,
            locked_per_second: 0.0,
            changed_per_second: 0.0,
            otherwise_per_second: 0.0,
            stood_per_second: 0.0,
            stood_ms_mean: 0.0,
        }
    }

    /// Adds what a client has counted in `seconds` seconds.
    fn add(&mut self, counted: &Conflicts, seconds: f64) {
        let per_second = |count: u64| count as f64 / seconds;
        let stood_ms = self.stood_ms_mean * self.stood_per_second + per_second(counted.stood_ns) / 1e6;
        self.clients += 1;
        self.locked_per_second += per_second(counted.locked);
        self.changed_per_second += per_second(counted.changed);
        self.otherwise_per_second += per_second(counted.otherwise);
        self.stood_per_second += per_second(counted.stood);
        self.stood_ms_mean = if self.stood_per_second > 0.0 { stood_ms / self.stood_per_second } else { 0.0 };
    }

    fn heat(&self) -> f64 {
        self.locked_per_second + self.changed_per_second + self.otherwise_per_second + self.stood_per_second
    }
}

/// Adds up the lists of all clients. Returns the hottest records of the cluster, the hottest first.
/// `name` returns the name of a table; tables without one are left out.
pub(crate) fn hottest<'c>(lists: &[HotList], name: impl Fn(TableId) -> Option<&'c str>) -> Vec<HotRecord> {
    let mut records = BTreeMap::new();
    for list in lists {
        let seconds = list.window_ns.max(1) as f64 / 1e9;
        for entry in &list.records {
            let Some(table) = name(entry.table) else { continue };
            let record = records.entry((table, entry.key())).or_insert_with(|| HotRecord::of(table, entry.key()));
            record.add(&entry.conflicts, seconds);
        }
    }
    let mut records: Vec<HotRecord> = records.into_values().collect();
    records.sort_by(|one, other| other.heat().total_cmp(&one.heat()));
    records.truncate(SHOWN);
    records
}

/// Writes the records as a table, for people. Writes nothing if there are none.
pub(crate) fn write(text: &mut String, records: &[HotRecord]) -> std::fmt::Result {
    if records.is_empty() {
        return Ok(());
    }
    // Another program may have made a table with any name.
    let names: Vec<_> = records.iter().map(|record| output::printable(&record.name)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0) + 2;
    write!(text, "\n{:<width$}{:>8}{:>12}{:>12}", "hot records", "clients", "locked/s", "changed/s")?;
    writeln!(text, "{:>13}{:>12}{:>10}", "otherwise/s", "in line/s", "ms each")?;
    for (record, name) in records.iter().zip(&names) {
        write!(text, "{name:<width$}{:>8}{:>12.1}", record.clients, record.locked_per_second)?;
        write!(text, "{:>12.1}{:>13.1}", record.changed_per_second, record.otherwise_per_second)?;
        writeln!(text, "{:>12.1}{:>10.3}", record.stood_per_second, record.stood_ms_mean)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use remora::floors::node::hot::HotEntry;

    use super::*;

    fn list(window_ms: u64, records: &[(u16, u64, Conflicts)]) -> HotList {
        let entry = |(table, key, conflicts): &(u16, u64, Conflicts)| {
            HotEntry::new(TableId(*table), &key.to_be_bytes(), *conflicts).unwrap()
        };
        HotList { sequence: 1, window_ns: window_ms * 1_000_000, records: records.iter().map(entry).collect() }
    }

    fn shown(lists: &[HotList]) -> Vec<HotRecord> {
        hottest(lists, |table| [Some("accounts"), None, Some("new\nline")][usize::from(table.0)])
    }

    #[test]
    fn clients_are_added_up_per_second() {
        let of = |locked, stood, stood_ms: u64| Conflicts {
            locked,
            changed: 2,
            otherwise: 1,
            stood,
            stood_ns: stood_ms * 1_000_000,
        };
        let lists = [
            list(1_000, &[(0, 7, of(100, 10, 30)), (0, 8, of(5, 0, 0)), (1, 7, of(9_000, 0, 0))]),
            list(2_000, &[(0, 8, of(4, 0, 0)), (0, 7, of(100, 60, 60))]),
            list(1_000, &[]),
        ];
        let shown = shown(&lists);
        let expected = HotRecord {
            clients: 2,
            locked_per_second: 150.0,
            changed_per_second: 3.0,
            otherwise_per_second: 1.5,
            stood_per_second: 40.0,
            // 10 stood for 3 ms each in a second, and 30 for 1 ms each.
            stood_ms_mean: 1.5,
            ..HotRecord::of("accounts", &7u64.to_be_bytes())
        };
        assert_eq!(shown[0], expected);
        let second = (shown[1].key.as_str(), shown[1].clients, shown[1].locked_per_second, shown[1].stood_ms_mean);
        assert_eq!(second, ("0000000000000008", 2, 7.0, 0.0));
        assert_eq!(shown.len(), 2, "a table that is not there is left out");
    }

    #[test]
    fn the_hottest_are_shown() {
        let of = |locked| Conflicts { locked, ..Conflicts::default() };
        let lists: Vec<_> = (0..20).map(|key| list(1_000, &[(0, key, of(100 + key))])).collect();
        let keys: Vec<String> = shown(&lists).into_iter().map(|record| record.key).collect();
        assert_eq!(keys, (10..20).rev().map(|key: u64| format!("{key:016x}")).collect::<Vec<_>>());
        // What a client claims must not make numbers that are none.
        let lists = [list(0, &[(0, 1, of(u64::MAX))]), list(0, &[(0, 1, of(u64::MAX))])];
        assert!(shown(&lists)[0].locked_per_second.is_finite());
    }

    #[test]
    fn a_record_is_a_line_and_an_object() {
        let conflicts = Conflicts { locked: 3, stood: 2, stood_ns: 5_000_000, ..Conflicts::default() };
        let shown = shown(&[list(1_000, &[(2, 9, conflicts)])]);
        let mut text = String::new();
        write(&mut text, &shown).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let words = |line: &'static str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line: Vec<_> = lines[2].split_whitespace().collect();
        let expected = r#"record 0x0000000000000009 (9) of table "new\nline" 1 3.0 0.0 0.0 2.0 2.500"#;
        assert_eq!(line, words(expected), "{text}");
        let object = serde_json::to_value(&shown).unwrap();
        let expected = serde_json::json!([{
            "table": "new\nline", "key": "0000000000000009", "clients": 1, "locked_per_second": 3.0,
            "changed_per_second": 0.0, "otherwise_per_second": 0.0, "stood_per_second": 2.0, "stood_ms_mean": 2.5,
        }]);
        assert_eq!(object, expected);
        let mut text = String::new();
        write(&mut text, &[]).unwrap();
        assert!(text.is_empty());
    }
}
