//! Property tests on random histories. Serial executions are clean, and planted anomalies are
//! found. On small histories the checker agrees with an oracle that tries every order.

mod common;

use common::{HistoryModel, Key, ScanModel, TransactionModel, aborted, committed, key, load, unknown};
use proptest::prelude::*;
use remora_check::{AnomalyClass, LineBuffer, Observed, Status, WriteKind, check};
use std::collections::{BTreeMap, HashMap};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// The number of keys that are loaded. They are the first ones, and all have the loader's version.
const LOADED_KEYS: usize = 3;
const LOADED_VERSION: u64 = 2;

#[derive(Clone, Debug)]
enum Operation {
    Read { name: usize, see_tombstone: bool },
    Write(usize),
    Delete(usize),
    Scan { from: usize, to: usize },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Commit,
    Abort,
    /// It was installed, and then undone by a rollback.
    RollBack,
    CommitUnseen,
    AbortUnseen,
    /// The outcome is unknown, and a rollback undid it.
    RollBackUnseen,
}

#[derive(Clone, Debug)]
struct Plan {
    operations: Vec<Operation>,
    fate: Fate,
    before_ns: u64,
    after_ns: u64,
}

fn plans(transactions: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<Plan>> {
    let name = || 0..NAMES.len();
    let operation = prop_oneof![
        4 => (name(), any::<bool>()).prop_map(|(name, see_tombstone)| Operation::Read { name, see_tombstone }),
        3 => name().prop_map(Operation::Write),
        1 => name().prop_map(Operation::Delete),
        1 => (name(), 0..=NAMES.len()).prop_map(|(from, to)| Operation::Scan { from, to }),
    ];
    let fate = prop_oneof![
        10 => Just(Fate::Commit),
        2 => Just(Fate::Abort),
        1 => Just(Fate::RollBack),
        1 => Just(Fate::CommitUnseen),
        1 => Just(Fate::AbortUnseen),
        1 => Just(Fate::RollBackUnseen),
    ];
    let plan = (proptest::collection::vec(operation, 1..6), fate, 0..600_u64, 0..600_u64)
        .prop_map(|(operations, fate, before_ns, after_ns)| Plan { operations, fate, before_ns, after_ns });
    proptest::collection::vec(plan, transactions)
}

/// Runs the plans one after the other on a small store. Each has an interval around its turn.
fn run(plans: &[Plan]) -> HistoryModel {
    // For each key: its version, and whether it is present.
    let mut store: [Option<(u64, bool)>; NAMES.len()] = [None; NAMES.len()];
    store[..LOADED_KEYS].fill(Some((LOADED_VERSION, true)));
    let mut model = HistoryModel::default();
    for (turn, plan) in (1_u64..).zip(plans) {
        let turn_ns = turn * 100 + 1_000;
        let (start_ns, end_ns) = (turn_ns - plan.before_ns, turn_ns + plan.after_ns);
        let mut transaction = match plan.fate {
            Fate::Commit => committed(turn, start_ns, end_ns),
            Fate::Abort | Fate::RollBack => aborted(turn, start_ns, end_ns),
            Fate::CommitUnseen | Fate::AbortUnseen | Fate::RollBackUnseen => unknown(turn, start_ns),
        };
        let mut writes: BTreeMap<usize, bool> = BTreeMap::new();
        for operation in &plan.operations {
            match operation {
                Operation::Write(name) => writes.insert(*name, true),
                Operation::Delete(name) => writes.insert(*name, false),
                Operation::Read { .. } | Operation::Scan { .. } => None,
            };
        }
        for operation in &plan.operations {
            match operation {
                Operation::Read { name, see_tombstone } => {
                    transaction = match store[*name] {
                        Some((version, true)) => transaction.read(NAMES[*name], version),
                        Some((version, false)) if *see_tombstone => transaction.tombstone(NAMES[*name], version),
                        Some((_, false)) | None => transaction.absent(NAMES[*name]),
                    };
                }
                Operation::Scan { from, to } => {
                    let found: Vec<(&str, u64)> = (*from..*to)
                        .filter(|name| !writes.contains_key(name))
                        .filter_map(|name| match store[name] {
                            Some((version, true)) => Some((NAMES[name], version)),
                            _ => None,
                        })
                        .collect();
                    transaction = transaction.scan(NAMES[*from], NAMES.get(*to).unwrap_or(&"g"), &found);
                }
                Operation::Write(_) | Operation::Delete(_) => {}
            }
        }
        for (name, is_put) in writes {
            let before = store[name];
            if before.is_none_or(|(_, present)| !present) && !is_put {
                continue;
            }
            let kind = match (before, is_put) {
                (_, false) => WriteKind::Delete,
                (Some((_, true)), true) => WriteKind::Update,
                (_, true) => WriteKind::Insert,
            };
            let restored = before.map_or(0, |(version, _)| version);
            let version = (restored & !1) + 2;
            transaction = transaction.write(NAMES[name], version, kind);
            match plan.fate {
                Fate::Commit | Fate::CommitUnseen => store[name] = Some((version, is_put)),
                Fate::RollBack | Fate::RollBackUnseen => {
                    model.rollbacks.push((key(NAMES[name]), version + 1, restored));
                    store[name] = Some((version + 1, before.is_some_and(|(_, present)| present)));
                }
                Fate::Abort | Fate::AbortUnseen => {}
            }
        }
        model.transactions.push(transaction);
    }
    model
}

fn shuffled(plans: Vec<Plan>) -> impl Strategy<Value = HistoryModel> {
    let HistoryModel { transactions, rollbacks } = run(&plans);
    Just(transactions)
        .prop_shuffle()
        .prop_map(move |transactions| HistoryModel { transactions, rollbacks: rollbacks.clone() })
}

/// Plants an anomaly between transactions on two keys of its own, `x` and `y`, at this time.
fn plant(model: &mut HistoryModel, class: AnomalyClass, at_ns: u64) {
    use AnomalyClass::*;
    let (start, end, later) = (at_ns, at_ns + 80, at_ns + 100);
    let one = || committed(1_001, start, end);
    let two = || committed(1_002, start, end);
    let planted = match class {
        LostUpdate => vec![one().read("x", 2).update("x", 6), two().read("x", 2).update("x", 4)],
        DuplicateVersion => vec![one().update("x", 4), two().update("x", 4)],
        DirtyRead => vec![aborted(1_001, start, end).update("x", 4), two().read("x", 4)],
        UnwrittenRead => vec![one().update("x", 4), two().read("x", 5)],
        LoaderVersionsDiffer => vec![one().read("x", 2), two().read("x", 3)],
        NonRepeatableRead => vec![one().update("x", 4), two().read("x", 2).read("x", 4)],
        WrongState => vec![one().delete("x", 4), two().read("x", 4)],
        ImpossibleAbsence => vec![one().insert("x", 4), committed(1_002, later, later).absent("x")],
        Phantom => vec![one().scan("x", "z", &[]).insert("x", 4), two().scan("x", "z", &[]).insert("y", 4)],
        IntermediateRead => vec![one().update("x", 4).update("x", 6), two().read("x", 4)],
        WriteCycle => vec![one().update("x", 4).update("y", 6), two().update("x", 6).update("y", 4)],
        CircularReads => vec![one().update("x", 4).read("y", 4), two().update("y", 4).read("x", 4)],
        ReadSkew => vec![one().update("x", 4).update("y", 4), two().read("x", 4).read("y", 2)],
        WriteSkew => {
            vec![one().read("x", 2).read("y", 2).update("x", 4), two().read("x", 2).read("y", 2).update("y", 4)]
        }
        LongFork => vec![
            one().update("x", 4),
            two().update("y", 4),
            committed(1_003, start, end).read("x", 4).read("y", 2),
            committed(1_004, start, end).read("x", 2).read("y", 4),
        ],
        StaleRead => vec![one().update("x", 4), committed(1_002, later, later).read("x", 2)],
        FutureRead => vec![one().read("x", 4), committed(1_002, later, later).update("x", 4)],
        WriteAgainstTime => vec![one().update("x", 6), committed(1_002, later, later).update("x", 4)],
        _ => unreachable!("{class} is not planted"),
    };
    let middle = model.transactions.len() / 2;
    model.transactions.splice(middle..middle, planted);
}

const PLANTED: [AnomalyClass; 18] = [
    AnomalyClass::LostUpdate,
    AnomalyClass::DuplicateVersion,
    AnomalyClass::DirtyRead,
    AnomalyClass::UnwrittenRead,
    AnomalyClass::LoaderVersionsDiffer,
    AnomalyClass::NonRepeatableRead,
    AnomalyClass::WrongState,
    AnomalyClass::ImpossibleAbsence,
    AnomalyClass::Phantom,
    AnomalyClass::IntermediateRead,
    AnomalyClass::WriteCycle,
    AnomalyClass::CircularReads,
    AnomalyClass::ReadSkew,
    AnomalyClass::WriteSkew,
    AnomalyClass::LongFork,
    AnomalyClass::StaleRead,
    AnomalyClass::FutureRead,
    AnomalyClass::WriteAgainstTime,
];

/// An oracle that tries every order of the transactions and every subset of the unknown ones.
struct Oracle<'m> {
    included: Vec<&'m TransactionModel>,
    aliases: &'m HashMap<(&'m Key, u64), u64>,
    /// All versions that a transaction names as its write, whatever its outcome. These are not the
    /// loader's.
    recorded: &'m [(&'m Key, u64)],
    names: &'m [&'m Key],
}

/// The state of a key in a serial execution. The version that the loader left may not be known.
type State<'m> = HashMap<&'m Key, (Option<u64>, bool)>;

impl<'m> Oracle<'m> {
    fn is_serializable(model: &HistoryModel) -> bool {
        let mut aliases = HashMap::new();
        for (key, installed, restored) in &model.rollbacks {
            aliases.insert((key, *installed), *restored);
        }
        let of_status = |status| model.transactions.iter().filter(move |transaction| transaction.status == status);
        let transactions = model.transactions.iter();
        let recorded: Vec<(&Key, u64)> = transactions
            .flat_map(|transaction| &transaction.writes)
            .filter_map(|(key, version, _)| Some((key, (*version)?)))
            .collect();
        let scans = model.transactions.iter().flat_map(|transaction| &transaction.scans);
        let scanned: Vec<Key> =
            scans.flat_map(|scan| scan.entries.iter().map(|(bytes, _)| (scan.table.clone(), bytes.clone()))).collect();
        let mut names: Vec<&Key> = model.rollbacks.iter().map(|(key, ..)| key).chain(&scanned).collect();
        for transaction in &model.transactions {
            names.extend(transaction.reads.iter().map(|(key, _)| key));
            names.extend(transaction.writes.iter().map(|(key, ..)| key));
        }
        names.sort();
        names.dedup();
        let unknown: Vec<&TransactionModel> = of_status(Status::Unknown).collect();
        (0..1_u32 << unknown.len()).any(|subset| {
            let mut included: Vec<&TransactionModel> = of_status(Status::Committed).collect();
            let chosen = unknown.iter().enumerate().filter(|(number, _)| subset & 1 << number != 0);
            included.extend(chosen.map(|(_, transaction)| *transaction));
            let oracle = Oracle { included, aliases: &aliases, recorded: &recorded, names: &names };
            let all = (1 << oracle.included.len()) - 1;
            oracle.search(all, &State::new())
        })
    }

    fn search(&self, left: u32, state: &State<'m>) -> bool {
        if left == 0 {
            return true;
        }
        let remaining = || self.included.iter().enumerate().filter(move |(number, _)| left & 1 << number != 0);
        remaining().any(|(number, next)| {
            let end_of = |other: &TransactionModel| match other.status {
                Status::Unknown => u64::MAX,
                _ => other.end_ns,
            };
            let in_time = remaining().all(|(_, other)| end_of(other) >= next.start_ns);
            in_time && self.execute(next, state).is_some_and(|state| self.search(left & !(1 << number), &state))
        })
    }

    fn execute(&self, transaction: &'m TransactionModel, state: &State<'m>) -> Option<State<'m>> {
        let mut state = state.clone();
        for (key, observed) in &transaction.reads {
            self.observe(&mut state, key, *observed)?;
        }
        for scan in &transaction.scans {
            for (bytes, version) in &scan.entries {
                let name = self.names.iter().find(|name| name.0 == scan.table && name.1 == *bytes)?;
                self.observe(&mut state, name, Observed::Present(*version))?;
            }
            for name in self.names.iter().filter(|name| {
                let in_range = name.0 == scan.table && name.1 >= scan.from && name.1 < scan.to;
                let returned = scan.entries.iter().any(|(bytes, _)| *bytes == name.1);
                in_range && !returned && !transaction.writes.iter().any(|(written, ..)| written == **name)
            }) {
                self.observe(&mut state, name, Observed::AbsentUnknown)?;
            }
        }
        let mut writes: Vec<_> = transaction.writes.iter().collect();
        writes.sort_by_key(|(_, version, _)| *version);
        for (key, version, kind) in writes {
            let version = (*version)?;
            let grows = state.get(key).is_none_or(|(before, _)| before.is_none_or(|before| before < version));
            if !grows || self.aliases.contains_key(&(key, version)) {
                return None;
            }
            state.insert(key, (Some(version), *kind != WriteKind::Delete));
        }
        Some(state)
    }

    fn observe(&self, state: &mut State<'m>, key: &'m Key, observed: Observed) -> Option<()> {
        let (version, present) = match observed {
            Observed::Present(version) => (Some(version), true),
            Observed::Absent(version) => (Some(version), false),
            Observed::AbsentUnknown => (None, false),
        };
        let version = version.map(|mut version| {
            while let Some(restored) = self.aliases.get(&(key, version)) {
                version = *restored;
            }
            version
        });
        let from_loader = |version: Option<u64>| version.is_none_or(|version| !self.recorded.contains(&(key, version)));
        match state.get(key).copied() {
            None => {
                if !from_loader(version) {
                    return None;
                }
                state.insert(key, (version, present));
            }
            Some((None, known_present)) => {
                if known_present != present || !from_loader(version) {
                    return None;
                }
                state.insert(key, (version, present));
            }
            Some((Some(known), known_present)) => {
                if known_present != present || version.is_some_and(|version| version != known) {
                    return None;
                }
            }
        }
        Some(())
    }
}

/// Generates small arbitrary histories.
fn tiny_history(with_absences: bool) -> impl Strategy<Value = HistoryModel> {
    const KEYS: usize = 2;
    const VERSION_MAX: u64 = 5;
    let observed = prop_oneof![
        8 => (1..=VERSION_MAX).prop_map(Observed::Present),
        2 => (1..=VERSION_MAX).prop_map(Observed::Absent),
        (if with_absences { 4 } else { 0 }) => Just(Observed::AbsentUnknown),
    ];
    let kind = prop_oneof![1 => Just(WriteKind::Insert), 3 => Just(WriteKind::Update), 1 => Just(WriteKind::Delete)];
    let status = prop_oneof![6 => Just(Status::Committed), 1 => Just(Status::Aborted), 2 => Just(Status::Unknown)];
    let scan = (0..KEYS, 0..=KEYS, proptest::option::of(1..=VERSION_MAX)).prop_map(|(from, to, version)| ScanModel {
        table: "t".to_owned(),
        from: NAMES[from].as_bytes().to_vec(),
        to: NAMES[to].as_bytes().to_vec(),
        entries: version
            .filter(|_| from < to)
            .map(|version| (NAMES[from].as_bytes().to_vec(), version))
            .into_iter()
            .collect(),
    });
    let transaction = (
        (0..12_u64, 0..8_u64, status),
        proptest::collection::vec((0..KEYS, observed), 0..3),
        proptest::collection::btree_map(0..KEYS, (1..=VERSION_MAX, kind), 0..=KEYS),
        proptest::collection::vec(scan, if with_absences { 0..2 } else { 0..1 }),
    )
        .prop_map(|((start_ns, length_ns, status), reads, writes, scans)| TransactionModel {
            id: 0,
            worker: 0,
            start_ns,
            end_ns: if status == Status::Unknown { 0 } else { start_ns + length_ns },
            status,
            snapshot: false,
            stale: false,
            reads: reads.into_iter().map(|(name, observed)| (key(NAMES[name]), observed)).collect(),
            writes: writes.into_iter().map(|(name, (version, kind))| (key(NAMES[name]), Some(version), kind)).collect(),
            scans,
        });
    let rollback = (0..KEYS, 2..=VERSION_MAX, 1..VERSION_MAX)
        .prop_filter("goes back", |(_, installed, restored)| installed > restored)
        .prop_map(|(name, installed, restored)| (key(NAMES[name]), installed, restored));
    (proptest::collection::vec(transaction, 1..=6), proptest::option::weighted(0.2, rollback)).prop_map(
        |(mut transactions, rollback)| {
            for (id, transaction) in (1..).zip(&mut transactions) {
                transaction.id = id;
            }
            HistoryModel { transactions, rollbacks: rollback.into_iter().collect() }
        },
    )
}

/// Generates small serial executions with one detail changed, which are closer to correct than
/// arbitrary ones.
fn bent_history(with_absences: bool) -> impl Strategy<Value = HistoryModel> {
    (plans(1..=6), 0..6_usize, 0..4_usize, -3..=3_i64, -700..=700_i64).prop_map(
        move |(plans, which, detail, step, shift)| {
            let mut model = run(&plans);
            let count = model.transactions.len();
            let transaction = &mut model.transactions[which % count];
            let step = |version: u64| version.saturating_add_signed(step);
            match detail {
                0 => {
                    if let Some((_, Observed::Present(version) | Observed::Absent(version))) =
                        transaction.reads.first_mut()
                    {
                        *version = step(*version);
                    }
                }
                1 => {
                    if let Some((_, Some(version), _)) = transaction.writes.first_mut() {
                        *version = step(*version);
                    }
                }
                2 => {
                    transaction.start_ns = transaction.start_ns.saturating_add_signed(shift);
                    transaction.end_ns = transaction.end_ns.saturating_add_signed(shift);
                }
                _ => transaction.status = Status::Committed,
            }
            if transaction.status != Status::Unknown {
                transaction.end_ns = transaction.end_ns.max(transaction.start_ns);
            }
            if !with_absences {
                for transaction in &mut model.transactions {
                    transaction.scans.clear();
                    transaction.reads.retain(|(_, observed)| *observed != Observed::AbsentUnknown);
                }
            }
            model
        },
    )
}

/// Whether an observed version may belong to several unknown transactions. In that case the checker
/// may miss an anomaly.
fn has_contested_versions(model: &HistoryModel) -> bool {
    let unknown = model.transactions.iter().filter(|transaction| transaction.status == Status::Unknown);
    let mut versions: Vec<_> =
        unknown.flat_map(|transaction| &transaction.writes).map(|(key, version, _)| (key, version)).collect();
    versions.sort();
    versions.windows(2).any(|pair| pair[0] == pair[1])
}

fn agree(model: &HistoryModel, exactly: bool) -> Result<(), TestCaseError> {
    let report = model.check();
    if Oracle::is_serializable(model) {
        prop_assert!(report.is_clean(), "accused falsely: {report}");
    } else if exactly && !has_contested_versions(model) {
        prop_assert!(!report.is_clean(), "overlooked");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn serial_executions_are_clean(model in plans(1..40).prop_flat_map(shuffled)) {
        let report = model.check();
        prop_assert!(report.is_clean(), "{report}");
    }

    #[test]
    fn planted_anomalies_are_found(
        model in plans(0..30).prop_flat_map(shuffled),
        planted in 0..PLANTED.len(),
        at_ns in 1..4_000_u64,
    ) {
        let mut model = model;
        plant(&mut model, PLANTED[planted], at_ns);
        let report = model.check();
        let found = report.anomalies.iter().any(|anomaly| anomaly.class == PLANTED[planted]);
        prop_assert!(found, "{} not found: {report}", PLANTED[planted]);
        prop_assert!(report.anomalies.iter().all(|anomaly| anomaly.transactions.iter().any(|id| *id > 1_000)), "{report}");
    }

    #[test]
    fn reading_gives_back_what_was_recorded(model in plans(0..30).prop_flat_map(shuffled)) {
        let history = load(&model.record()).expect("a recorded history can be read");
        prop_assert_eq!(HistoryModel::of(&history), model);
    }

    #[test]
    fn names_and_keys_survive(table in any::<String>(), bytes in any::<Vec<u8>>(), version in any::<u64>(), id in any::<u64>()) {
        let mut transaction = committed(id, 1, u64::MAX - 1);
        transaction.reads.push(((table.clone(), bytes.clone()), Observed::Present(version)));
        transaction.writes.push(((table, bytes), Some(version), WriteKind::Insert));
        let model = HistoryModel { transactions: vec![transaction], rollbacks: Vec::new() };
        let mut buffer = LineBuffer::new();
        model.transactions[0].record(&mut buffer);
        prop_assert!(serde_json::from_slice::<serde_json::Value>(buffer.bytes()).is_ok());
        let history = load(buffer.bytes()).expect("a recorded history can be read");
        prop_assert_eq!(HistoryModel::of(&history), model);
        let _ = check(&history);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tiny_histories_agree_with_every_order(model in tiny_history(false)) {
        agree(&model, true)?;
    }

    #[test]
    fn bent_histories_agree_with_every_order(model in bent_history(false)) {
        agree(&model, true)?;
    }

    #[test]
    fn tiny_histories_with_absences_are_never_accused_falsely(model in tiny_history(true)) {
        agree(&model, false)?;
    }

    #[test]
    fn bent_histories_with_absences_are_never_accused_falsely(model in bent_history(true)) {
        agree(&model, false)?;
    }
}
