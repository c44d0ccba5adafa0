//! Histories as plain values, for tests, and their way through the recording and the reading side.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use remora_check::{
    AnomalyClass, History, HistoryError, HistoryReader, Level, LineBuffer, LineHeader, Observed, Outcome, ReadOptions,
    Report, Status, WriteKind, check,
};

pub type Key = (String, Vec<u8>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanModel {
    pub table: String,
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub entries: Vec<(Vec<u8>, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionModel {
    pub id: u64,
    pub worker: u64,
    pub start_ns: u64,
    /// The end. It has no meaning for unknown transactions.
    pub end_ns: u64,
    pub status: Status,
    pub level: Level,
    pub reads: Vec<(Key, Observed)>,
    pub writes: Vec<(Key, Option<u64>, WriteKind)>,
    pub scans: Vec<ScanModel>,
}

/// Returns a key of the table that most tests use. Such keys are named by one letter.
pub fn key(name: &str) -> Key {
    ("t".to_owned(), name.as_bytes().to_vec())
}

/// Makes a committed transaction, to which the builder methods below add.
pub fn committed(id: u64, start_ns: u64, end_ns: u64) -> TransactionModel {
    TransactionModel {
        id,
        worker: id % 4,
        start_ns,
        end_ns,
        status: Status::Committed,
        level: Level::Strict,
        reads: Vec::new(),
        writes: Vec::new(),
        scans: Vec::new(),
    }
}

/// Makes a committed transaction that read at a past time.
pub fn past(id: u64, start_ns: u64, end_ns: u64) -> TransactionModel {
    TransactionModel { level: Level::Serializable, ..committed(id, start_ns, end_ns) }
}

/// Makes a committed transaction that read a snapshot.
pub fn snapshot(id: u64, start_ns: u64, end_ns: u64) -> TransactionModel {
    TransactionModel { level: Level::Snapshot, ..committed(id, start_ns, end_ns) }
}

pub fn aborted(id: u64, start_ns: u64, end_ns: u64) -> TransactionModel {
    TransactionModel { status: Status::Aborted, ..committed(id, start_ns, end_ns) }
}

pub fn unknown(id: u64, start_ns: u64) -> TransactionModel {
    TransactionModel { status: Status::Unknown, ..committed(id, start_ns, 0) }
}

impl TransactionModel {
    pub fn read(mut self, name: &str, version: u64) -> Self {
        self.reads.push((key(name), Observed::Present(version)));
        self
    }

    pub fn tombstone(mut self, name: &str, version: u64) -> Self {
        self.reads.push((key(name), Observed::Absent(version)));
        self
    }

    pub fn absent(mut self, name: &str) -> Self {
        self.reads.push((key(name), Observed::AbsentUnknown));
        self
    }

    pub fn write(self, name: &str, version: u64, kind: WriteKind) -> Self {
        self.write_maybe(name, Some(version), kind)
    }

    pub fn write_maybe(mut self, name: &str, version: Option<u64>, kind: WriteKind) -> Self {
        self.writes.push((key(name), version, kind));
        self
    }

    pub fn insert(self, name: &str, version: u64) -> Self {
        self.write(name, version, WriteKind::Insert)
    }

    pub fn update(self, name: &str, version: u64) -> Self {
        self.write(name, version, WriteKind::Update)
    }

    pub fn delete(self, name: &str, version: u64) -> Self {
        self.write(name, version, WriteKind::Delete)
    }

    pub fn scan(mut self, from: &str, to: &str, entries: &[(&str, u64)]) -> Self {
        self.scans.push(ScanModel {
            table: "t".to_owned(),
            from: from.as_bytes().to_vec(),
            to: to.as_bytes().to_vec(),
            entries: entries.iter().map(|(name, version)| (name.as_bytes().to_vec(), *version)).collect(),
        });
        self
    }

    pub fn record(&self, buffer: &mut LineBuffer) {
        let outcome = match self.status {
            Status::Committed => Outcome::Committed { end_ns: self.end_ns },
            Status::Aborted => Outcome::Aborted { end_ns: self.end_ns },
            Status::Unknown => Outcome::Unknown,
        };
        let TransactionModel { id, worker, start_ns, level, .. } = *self;
        let mut line = buffer.begin(LineHeader { id, worker, start_ns, outcome, level });
        for ((table, key), observed) in &self.reads {
            match observed {
                Observed::Present(version) => line.read(table, key, *version),
                Observed::Absent(version) => line.read_absent(table, key, Some(*version)),
                Observed::AbsentUnknown => line.read_absent(table, key, None),
            }
        }
        for ((table, key), version, kind) in &self.writes {
            line.write(table, key, *version, *kind);
        }
        for scan in &self.scans {
            let entries = scan.entries.iter().map(|(key, version)| (key.as_slice(), *version));
            line.scan(&scan.table, &scan.from, &scan.to, entries);
        }
        line.end();
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryModel {
    pub transactions: Vec<TransactionModel>,
    /// The rollbacks: key, installed version, restored version.
    pub rollbacks: Vec<(Key, u64, u64)>,
}

impl HistoryModel {
    pub fn record(&self) -> Vec<u8> {
        let mut buffer = LineBuffer::new();
        for (key, installed, restored) in &self.rollbacks {
            buffer.rollback([(key.0.as_str(), key.1.as_slice(), *installed, *restored)]);
        }
        for transaction in &self.transactions {
            transaction.record(&mut buffer);
        }
        if buffer.bytes().is_empty() {
            // A file without any line is not a history.
            buffer.rollback([]);
        }
        buffer.bytes().to_vec()
    }

    pub fn check(&self) -> Report {
        check(&load(&self.record()).expect("a recorded history can be read"))
    }

    /// Returns the plain values of a history that was read.
    pub fn of(history: &History) -> Self {
        let name = |table: &str, key: &[u8]| (table.to_owned(), key.to_vec());
        let transactions = history.transactions().map(|transaction| TransactionModel {
            id: transaction.id(),
            worker: transaction.worker(),
            start_ns: transaction.start_ns(),
            end_ns: transaction.end_ns().unwrap_or(0),
            status: transaction.status(),
            level: transaction.level(),
            reads: transaction.reads().map(|read| (name(read.table, read.key), read.observed)).collect(),
            writes: transaction
                .writes()
                .map(|write| (name(write.table, write.key), write.version, write.kind))
                .collect(),
            scans: transaction
                .scans()
                .map(|scan| ScanModel {
                    table: scan.table().to_owned(),
                    from: scan.from().to_vec(),
                    to: scan.to().to_vec(),
                    entries: scan
                        .entries()
                        .map(|read| match read.observed {
                            Observed::Present(version) => (read.key.to_vec(), version),
                            other => panic!("a scan returned {other:?}"),
                        })
                        .collect(),
                })
                .collect(),
        });
        let rollbacks = history
            .rollbacks()
            .map(|rollback| (name(rollback.table, rollback.key), rollback.installed, rollback.restored));
        Self { transactions: transactions.collect(), rollbacks: rollbacks.collect() }
    }
}

pub fn load(bytes: &[u8]) -> Result<History, HistoryError> {
    let mut reader = HistoryReader::new(ReadOptions::default());
    reader.read("history.jsonl", bytes)?;
    Ok(reader.finish().history)
}

pub fn history(transactions: Vec<TransactionModel>) -> HistoryModel {
    HistoryModel { transactions, rollbacks: Vec::new() }
}

/// Checks a history and expects exactly these classes, in any order.
pub fn expect_classes(model: &HistoryModel, expected: &[AnomalyClass]) -> Report {
    let report = model.check();
    let mut found: Vec<AnomalyClass> = report.anomalies.iter().map(|anomaly| anomaly.class).collect();
    let mut expected = expected.to_vec();
    found.sort_by_key(|class| class.name());
    expected.sort_by_key(|class| class.name());
    assert_eq!(found, expected, "{report}\nof {model:#?}");
    report
}

pub fn expect_clean(transactions: Vec<TransactionModel>) -> Report {
    expect_classes(&history(transactions), &[])
}

pub fn expect_one(class: AnomalyClass, transactions: Vec<TransactionModel>) -> Report {
    expect_classes(&history(transactions), &[class])
}
