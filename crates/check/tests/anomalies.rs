//! Tests of each anomaly by hand, beside a history that looks like it and is correct.
//!
//! The loader's version is 2 throughout. Transactions that should be concurrent run from 10 to 90.

mod common;

use common::{
    HistoryModel, aborted, committed, expect_classes, expect_clean, expect_one, history, key, past, snapshot, unknown,
};
use remora_check::AnomalyClass::*;
use remora_check::{Observed, WriteKind};

/// Two transactions install one version, as two clients do that read and write without a lock.
#[test]
fn lost_update_with_one_version() {
    let report = expect_one(
        LostUpdate,
        vec![committed(1, 10, 90).read("x", 2).update("x", 4), committed(2, 10, 90).read("x", 2).update("x", 4)],
    );
    assert_eq!(report.anomalies[0].transactions, [1, 2]);
}

#[test]
fn lost_update_with_two_versions() {
    let report = expect_one(
        LostUpdate,
        vec![committed(1, 10, 90).read("x", 2).update("x", 6), committed(2, 10, 90).read("x", 2).update("x", 4)],
    );
    let text = report.to_string();
    assert!(text.contains("1 (worker 1, from 10 to 90 ns; history.jsonl:1)"), "{text}");
    assert!(text.contains("it read t 78 at version 2, which the other replaced by version 4"), "{text}");
    assert!(text.contains("it installed version 4 of t 78, the other version 6 after it"), "{text}");
    expect_clean(vec![
        committed(1, 10, 90).read("x", 4).update("x", 6),
        committed(2, 10, 90).read("x", 2).update("x", 4),
    ]);
}

#[test]
fn lost_update_over_several_writers() {
    expect_one(
        LostUpdate,
        vec![
            committed(1, 10, 90).read("x", 2).update("x", 8),
            committed(2, 10, 90).update("x", 4),
            committed(3, 10, 90).update("x", 6),
        ],
    );
}

#[test]
fn duplicate_version() {
    expect_one(DuplicateVersion, vec![committed(1, 10, 90).update("x", 4), committed(2, 10, 90).update("x", 4)]);
    expect_clean(vec![committed(1, 10, 90).update("x", 4), committed(2, 10, 90).update("y", 4)]);
    expect_clean(vec![committed(1, 10, 90).update("x", 4), aborted(2, 10, 90).update("x", 4)]);
    expect_clean(vec![committed(1, 10, 90).update("x", 4), unknown(2, 10).update("x", 4)]);
}

#[test]
fn dirty_read() {
    let report =
        expect_one(DirtyRead, vec![aborted(1, 10, 90).read("x", 2).update("x", 4), committed(2, 10, 90).read("x", 4)]);
    assert_eq!(report.anomalies[0].transactions, [2, 1]);
    // Another transaction installed that version afterwards, so the read is of that transaction.
    expect_clean(vec![
        aborted(1, 10, 90).read("x", 2).update("x", 4),
        committed(2, 10, 90).read("x", 4),
        committed(3, 10, 90).read("x", 2).update("x", 4),
    ]);
    // Aborted transactions may have read anything.
    expect_clean(vec![aborted(1, 10, 90).update("x", 4), aborted(2, 10, 90).read("x", 4).read("x", 99)]);
}

#[test]
fn dirty_read_of_an_unversioned_write() {
    let report = expect_one(
        DirtyRead,
        vec![
            aborted(1, 10, 90).write_maybe("x", None, remora_check::WriteKind::Update),
            committed(2, 10, 90).read("x", 5),
            committed(3, 10, 90).update("x", 4),
        ],
    );
    assert_eq!(report.anomalies[0].transactions, [2, 1]);
}

#[test]
fn unwritten_read() {
    expect_one(UnwrittenRead, vec![committed(1, 10, 90).read("x", 5), committed(2, 10, 90).update("x", 4)]);
    expect_clean(vec![committed(1, 10, 90).read("x", 3), committed(2, 10, 90).update("x", 4)]);
}

#[test]
fn loader_versions_differ() {
    expect_one(LoaderVersionsDiffer, vec![committed(1, 10, 90).read("x", 2), committed(2, 10, 90).read("x", 3)]);
    expect_one(LoaderVersionsDiffer, vec![committed(1, 10, 90).read("x", 2), committed(2, 10, 90).tombstone("x", 2)]);
    expect_clean(vec![committed(1, 10, 90).read("x", 2), committed(2, 10, 90).read("x", 2)]);
}

#[test]
fn write_skew() {
    let report = expect_one(
        WriteSkew,
        vec![
            committed(1, 10, 90).read("x", 2).read("y", 2).update("x", 4),
            committed(2, 10, 90).read("x", 2).read("y", 2).update("y", 4),
        ],
    );
    assert_eq!(report.anomalies[0].transactions.len(), 2);
    expect_clean(vec![
        committed(1, 10, 90).read("x", 2).read("y", 2).update("x", 4),
        committed(2, 10, 90).read("x", 4).read("y", 2).update("y", 4),
    ]);
}

#[test]
fn stale_read_by_real_time() {
    let report = expect_one(StaleRead, vec![committed(1, 10, 20).update("x", 4), committed(2, 30, 40).read("x", 2)]);
    let text = report.to_string();
    assert!(text.contains("it ended at 20 ns, before the other started at 30 ns"), "{text}");
    // An end and a start at the same instant are concurrent.
    expect_clean(vec![committed(1, 10, 30).update("x", 4), committed(2, 30, 40).read("x", 2)]);
}

/// No two of the transactions contradict real time: it takes all three.
#[test]
fn stale_read_over_a_third() {
    expect_one(
        StaleRead,
        vec![
            committed(1, 10, 20).update("x", 4),
            committed(2, 30, 40).read("x", 2).read("y", 4),
            committed(3, 5, 50).update("y", 4),
        ],
    );
    expect_one(
        StaleRead,
        vec![
            // The third read from the second, which read from the first. The third had ended when
            // the fourth started, and the fourth did not see the first one's z.
            committed(1, 10, 60).update("x", 4).update("z", 4),
            committed(2, 10, 90).read("z", 4).update("y", 4),
            committed(3, 30, 40).read("y", 4),
            committed(4, 50, 55).read("z", 2),
        ],
    );
}

#[test]
fn future_read_and_write_against_time() {
    expect_one(FutureRead, vec![committed(1, 10, 20).read("x", 4), committed(2, 30, 40).update("x", 4)]);
    expect_clean(vec![committed(1, 10, 30).read("x", 4), committed(2, 30, 40).update("x", 4)]);
    expect_one(WriteAgainstTime, vec![committed(1, 10, 20).update("x", 6), committed(2, 30, 40).update("x", 4)]);
    expect_clean(vec![committed(1, 10, 20).update("x", 4), committed(2, 30, 40).update("x", 6)]);
}

#[test]
fn long_fork() {
    expect_one(
        LongFork,
        vec![
            committed(1, 10, 90).update("x", 4),
            committed(2, 10, 90).update("y", 4),
            committed(3, 10, 90).read("x", 4).read("y", 2),
            committed(4, 10, 90).read("x", 2).read("y", 4),
        ],
    );
    expect_clean(vec![
        committed(1, 10, 90).update("x", 4),
        committed(2, 10, 90).update("y", 4),
        committed(3, 10, 90).read("x", 4).read("y", 2),
        committed(4, 10, 90).read("x", 4).read("y", 4),
    ]);
}

#[test]
fn non_repeatable_read() {
    expect_one(
        NonRepeatableRead,
        vec![committed(1, 10, 90).update("x", 4), aborted(2, 10, 90), committed(3, 10, 90).read("x", 4).read("x", 2)],
    )
    .anomalies
    .iter()
    .for_each(|anomaly| assert_eq!(anomaly.transactions, [3]));
}

#[test]
fn read_of_the_own_version() {
    expect_one(FutureRead, vec![committed(1, 10, 90).read("x", 4).update("x", 4)]);
}

/// Reading one version twice is no anomaly. Neither are two keys, or two transactions.
#[test]
fn repeatable_reads() {
    expect_clean(vec![
        committed(1, 10, 90).update("x", 4),
        committed(2, 10, 90).read("x", 4).read("x", 4).read("y", 2),
        committed(3, 10, 90).read("x", 2),
    ]);
}

#[test]
fn read_skew() {
    expect_one(
        ReadSkew,
        vec![committed(1, 10, 90).update("x", 4).update("y", 4), committed(2, 10, 90).read("x", 4).read("y", 2)],
    );
    expect_clean(vec![
        committed(1, 10, 90).update("x", 4).update("y", 4),
        committed(2, 10, 90).read("x", 4).read("y", 4),
    ]);
}

#[test]
fn write_cycle_and_circular_reads() {
    expect_one(
        WriteCycle,
        vec![committed(1, 10, 90).update("x", 4).update("y", 6), committed(2, 10, 90).update("x", 6).update("y", 4)],
    );
    expect_one(
        CircularReads,
        vec![committed(1, 10, 90).update("x", 4).read("y", 4), committed(2, 10, 90).update("y", 4).read("x", 4)],
    );
}

#[test]
fn intermediate_read() {
    expect_one(
        IntermediateRead,
        vec![committed(1, 10, 90).update("x", 4).update("x", 6), committed(2, 10, 90).read("x", 4)],
    );
    expect_clean(vec![committed(1, 10, 90).update("x", 4).update("x", 6), committed(2, 10, 90).read("x", 6)]);
}

#[test]
fn unobserved_unknown_is_left_out() {
    // If the unknown transaction had committed, the later read of the loader's version would be
    // stale.
    let report = expect_clean(vec![unknown(1, 10).read("x", 77).update("x", 4), committed(2, 1000, 1010).read("x", 2)]);
    assert_eq!((report.counts.unknown, report.counts.unknown_observed), (1, 0));
    // A gap in the versions is no evidence either.
    expect_clean(vec![
        unknown(1, 10).update("x", 4).update("y", 4),
        committed(2, 20, 30).update("x", 6),
        committed(3, 40, 50).read("y", 2),
    ]);
}

#[test]
fn observed_unknown_counts_as_committed() {
    let report = expect_one(
        ReadSkew,
        vec![unknown(1, 10).update("x", 4).update("y", 4), committed(2, 20, 30).read("x", 4).read("y", 2)],
    );
    assert_eq!(report.counts.unknown_observed, 1);
    // An observed unknown transaction has no end. So even much later, a transaction may see the
    // state before it.
    expect_clean(vec![
        unknown(1, 10).update("x", 4),
        committed(2, 1000, 1010).read("x", 2),
        committed(3, 2000, 2010).read("x", 4),
    ]);
    // But it has a start.
    expect_one(FutureRead, vec![unknown(1, 50).update("x", 4), committed(2, 20, 30).read("x", 4)]);
}

#[test]
fn unknown_is_observed_through_another_unknown() {
    expect_one(
        StaleRead,
        vec![
            unknown(1, 10).update("x", 4).update("z", 4),
            unknown(2, 20).read("x", 4).update("y", 4),
            committed(3, 30, 40).read("y", 4),
            committed(4, 50, 60).read("z", 2),
        ],
    );
    // The second transaction is not observed, so nothing is known about the first.
    expect_clean(vec![
        unknown(1, 10).update("x", 4).update("z", 4),
        unknown(2, 20).read("x", 4).update("y", 4),
        committed(4, 50, 60).read("z", 2),
    ]);
}

#[test]
fn reads_of_an_observed_unknown_are_checked() {
    expect_one(
        DirtyRead,
        vec![
            aborted(1, 10, 90).update("x", 4),
            unknown(2, 10).read("x", 4).update("y", 4),
            committed(3, 10, 90).read("y", 4),
        ],
    );
}

#[test]
fn version_that_two_unknowns_wrote() {
    // One of the two committed, but it is open which one. The other key tells.
    let two = |other: u64| {
        vec![
            unknown(1, 10).update("x", 4).update("y", 4),
            unknown(2, 10).update("x", 4),
            committed(3, 20, 30).read("x", 4),
            committed(4, 40, 50).read("y", other),
        ]
    };
    expect_clean(two(2));
    expect_clean(two(4));
    // Both transactions were observed.
    expect_one(
        DuplicateVersion,
        vec![
            unknown(1, 10).update("x", 4).update("y", 4),
            unknown(2, 10).update("x", 4).update("z", 4),
            committed(4, 40, 50).read("y", 4).read("z", 4),
        ],
    );
    // Whichever transaction it was, its write was seen and later not seen.
    expect_one(
        StaleRead,
        vec![
            unknown(1, 10).update("x", 4),
            unknown(2, 10).update("x", 4),
            committed(3, 20, 30).read("x", 4),
            committed(4, 40, 50).read("x", 2),
        ],
    );
}

#[test]
fn wrong_state() {
    expect_one(WrongState, vec![committed(1, 10, 20).delete("x", 4), committed(2, 30, 40).read("x", 4)]);
    expect_one(WrongState, vec![committed(1, 10, 20).insert("x", 4), committed(2, 30, 40).tombstone("x", 4)]);
    expect_clean(vec![committed(1, 10, 20).delete("x", 4), committed(2, 30, 40).tombstone("x", 4)]);
}

#[test]
fn tombstone_is_a_version() {
    expect_one(
        StaleRead,
        vec![
            committed(1, 10, 20).delete("x", 4),
            committed(2, 30, 40).insert("x", 6),
            committed(3, 50, 60).tombstone("x", 4),
        ],
    );
    expect_clean(vec![
        committed(1, 10, 20).delete("x", 4),
        committed(2, 30, 50).insert("x", 6),
        committed(3, 50, 60).tombstone("x", 4),
    ]);
}

#[test]
fn absent_before_the_first_insert() {
    expect_clean(vec![committed(1, 10, 20).absent("x"), committed(2, 30, 40).insert("x", 4)]);
    expect_clean(vec![committed(1, 10, 35).absent("x"), committed(2, 30, 40).insert("x", 4)]);
    expect_one(ImpossibleAbsence, vec![committed(1, 50, 60).absent("x"), committed(2, 30, 40).insert("x", 4)]);
    // The loader's version was seen, so the key was present all the time.
    expect_one(
        ImpossibleAbsence,
        vec![committed(1, 10, 35).absent("x"), committed(2, 30, 40).update("x", 4), committed(3, 10, 35).read("x", 2)],
    );
    expect_one(ImpossibleAbsence, vec![committed(1, 10, 20).absent("x"), committed(2, 30, 40).read("x", 2)]);
}

#[test]
fn absent_between_delete_and_insert() {
    let lives = |start_ns, end_ns| {
        vec![
            committed(1, 10, 20).insert("x", 4),
            committed(2, 30, 40).delete("x", 6),
            committed(3, 50, 60).insert("x", 8),
            committed(4, 70, 80).delete("x", 10),
            committed(5, start_ns, end_ns).absent("x"),
        ]
    };
    expect_clean(lives(1, 10));
    expect_one(ImpossibleAbsence, lives(22, 28));
    expect_clean(lives(22, 30));
    expect_clean(lives(42, 48));
    expect_one(ImpossibleAbsence, lives(61, 69));
    expect_clean(lives(61, 75));
    expect_clean(lives(90, 95));
    expect_clean(lives(1, 95));
}

/// One interval is left for the absent read. It is read like a version, with edges to both sides.
#[test]
fn absent_read_orders_like_a_version() {
    // A transaction sees the deletion of x, but not y of the transaction that deleted it.
    expect_one(
        ReadSkew,
        vec![
            committed(1, 10, 20).insert("x", 4),
            committed(2, 30, 90).delete("x", 6).update("y", 4),
            committed(3, 30, 90).absent("x").read("y", 2),
        ],
    );
    // A transaction sees y of the transaction that inserted x, but not x.
    expect_one(
        ReadSkew,
        vec![committed(1, 10, 90).insert("x", 4).update("y", 4), committed(2, 10, 90).absent("x").read("y", 4)],
    );
    // Both transactions insert what they found absent, under the other one's key.
    expect_one(
        WriteSkew,
        vec![
            committed(1, 10, 90).absent("x").absent("y").insert("x", 4),
            committed(2, 10, 90).absent("x").absent("y").insert("y", 4),
        ],
    );
    // Both transactions found x absent and inserted it. The second one cannot have found it absent.
    expect_one(
        ImpossibleAbsence,
        vec![committed(1, 10, 90).absent("x").insert("x", 4), committed(2, 10, 90).absent("x").insert("x", 6)],
    );
    expect_clean(vec![
        committed(1, 10, 90).absent("x").insert("x", 4),
        committed(2, 10, 90).absent("x").insert("x", 8),
        committed(3, 10, 90).delete("x", 6),
    ]);
}

#[test]
fn absent_read_shows_an_unknown_delete() {
    // Only the unknown delete explains that x is gone. So the other write of that transaction
    // happened too.
    let shown = |other| {
        vec![
            committed(1, 10, 20).insert("x", 4),
            unknown(2, 30).delete("x", 6).update("y", 4),
            committed(3, 40, 50).absent("x"),
            committed(4, 60, 70).read("y", other),
        ]
    };
    expect_one(StaleRead, shown(2));
    let report = expect_clean(shown(4));
    assert_eq!(report.counts.unknown_observed, 1);
    // A delete that began too late explains nothing.
    expect_one(
        ImpossibleAbsence,
        vec![committed(1, 10, 20).insert("x", 4), unknown(2, 60).delete("x", 6), committed(3, 40, 50).absent("x")],
    );
    // The other delete began too late, so only this one is left.
    expect_one(
        StaleRead,
        vec![
            committed(1, 10, 20).insert("x", 4),
            unknown(2, 30).delete("x", 6).update("y", 4),
            unknown(5, 60).delete("x", 8),
            committed(3, 40, 50).absent("x"),
            committed(4, 60, 70).read("y", 2),
        ],
    );
    // There are two deletes. Either may explain the read, so neither is assumed.
    expect_clean(vec![
        committed(1, 10, 20).insert("x", 4),
        unknown(2, 30).delete("x", 6).update("y", 4),
        unknown(5, 30).delete("x", 8).update("y", 6),
        committed(3, 40, 50).absent("x"),
        committed(4, 60, 70).read("y", 2),
    ]);
}

#[test]
fn present_and_absent_in_one_transaction() {
    expect_one(NonRepeatableRead, vec![committed(1, 10, 90).read("x", 2).absent("x")]);
    expect_clean(vec![committed(1, 10, 90).delete("x", 4), committed(2, 10, 90).tombstone("x", 4).absent("x")]);
}

#[test]
fn scan_that_misses_a_key() {
    let report = expect_one(
        Phantom,
        vec![
            committed(1, 10, 20).insert("b", 4),
            committed(2, 30, 40).scan("a", "z", &[("c", 2)]),
            committed(3, 30, 40).read("c", 2),
        ],
    );
    assert_eq!(report.anomalies[0].transactions, [2, 1]);
    // The keys are not in the range, not yet there, or not there any more.
    expect_clean(vec![
        committed(1, 10, 20).insert("z", 4),
        committed(2, 30, 40).scan("a", "z", &[("c", 2)]),
        committed(3, 50, 60).insert("b", 4),
        committed(4, 30, 60).insert("d", 4),
        committed(5, 5, 8).insert("e", 4),
        committed(6, 10, 20).delete("e", 6),
    ]);
    // The key was never written, but it was seen.
    expect_one(Phantom, vec![committed(1, 10, 20).read("b", 2), committed(2, 30, 40).scan("a", "z", &[])]);
}

#[test]
fn phantoms_of_two_inserters() {
    // Each transaction scans the range, finds it empty and inserts into it.
    let report = expect_one(
        Phantom,
        vec![
            committed(1, 10, 90).scan("a", "z", &[]).insert("b", 4),
            committed(2, 10, 90).scan("a", "z", &[]).insert("c", 4),
        ],
    );
    assert_eq!(report.anomalies[0].transactions.len(), 2);
    // The second transaction saw the first one's key.
    expect_clean(vec![
        committed(1, 10, 90).scan("a", "z", &[]).insert("b", 4),
        committed(2, 10, 90).scan("a", "z", &[("b", 4)]).insert("c", 4),
    ]);
}

#[test]
fn scan_is_one_snapshot() {
    // The scan misses what was deleted meanwhile, but does not yet see what was written with the
    // deletion.
    let deleted_meanwhile = |other| {
        vec![
            committed(1, 10, 20).insert("b", 4),
            committed(2, 30, 90).delete("b", 6).update("y", 4),
            committed(3, 30, 95).scan("a", "c", &[]).read("y", other),
        ]
    };
    expect_one(Phantom, deleted_meanwhile(2));
    expect_clean(deleted_meanwhile(4));
    expect_one(
        Phantom,
        vec![committed(1, 10, 90).insert("b", 4).insert("c", 4), committed(2, 10, 90).scan("a", "z", &[("b", 4)])],
    );
    expect_one(NonRepeatableRead, vec![committed(1, 10, 90).scan("a", "z", &[("b", 2)]).scan("a", "y", &[])]);
}

/// A queue finds its head by a scan over everything that was ever deleted. To look at each of these
/// keys for each scan would be two hundred million looks.
#[test]
fn scans_over_many_deleted_keys() {
    const ENTRIES: u64 = 20_000;
    let mut transactions = Vec::new();
    for entry in 0..ENTRIES {
        let (name, turn_ns) = (format!("{entry:08}"), 1_000 + entry * 100);
        transactions.push(committed(2 * entry, turn_ns, turn_ns + 10).insert(&name, 2));
        let taken = [(name.as_str(), 2)];
        let scan = committed(2 * entry + 1, turn_ns + 5, turn_ns + 120).scan("0", &format!("{name}0"), &taken);
        transactions.push(scan.delete(&name, 4));
    }
    expect_clean(transactions.clone());
    let last_ns = 1_000 + ENTRIES * 100;
    transactions.push(committed(u64::MAX, last_ns + 1, last_ns + 2).insert("00000007", 6));
    transactions.push(committed(u64::MAX - 1, last_ns + 3, last_ns + 4).scan("0", "9", &[]));
    expect_one(Phantom, transactions);
}

/// A scan does not record the transaction's own uncommitted writes. That they are missing is no
/// absence.
#[test]
fn scan_over_own_writes() {
    expect_clean(vec![
        committed(1, 10, 20).read("b", 2).update("b", 4).scan("a", "z", &[]),
        committed(2, 30, 40).insert("c", 4).scan("a", "z", &[("b", 4)]),
    ]);
}

#[test]
fn scan_of_an_observed_unknown() {
    expect_one(
        Phantom,
        vec![
            committed(1, 10, 20).insert("b", 4),
            unknown(2, 30).scan("a", "z", &[]).update("y", 4),
            committed(3, 30, 40).read("y", 4).read("b", 4),
        ],
    );
}

#[test]
fn rollback_stands_for_what_it_restored() {
    let rolled_back = |transactions| HistoryModel { transactions, rollbacks: vec![(key("x"), 5, 2), (key("x"), 7, 5)] };
    let writer = || aborted(1, 10, 20).read("x", 2).update("x", 4);
    expect_classes(&rolled_back(vec![writer(), committed(2, 30, 40).read("x", 5)]), &[]);
    expect_classes(&rolled_back(vec![writer(), committed(2, 30, 40).read("x", 7).read("x", 2)]), &[]);
    expect_classes(
        &rolled_back(vec![
            writer(),
            committed(2, 30, 40).read("x", 5).update("x", 6),
            committed(3, 50, 60).read("x", 5),
        ]),
        &[StaleRead],
    );
    expect_classes(&rolled_back(vec![writer(), committed(2, 30, 40).read("x", 4)]), &[DirtyRead]);
    // A rollback undid a committed write.
    expect_classes(
        &rolled_back(vec![committed(1, 10, 20).read("x", 2).update("x", 4), committed(2, 30, 40).read("x", 5)]),
        &[StaleRead],
    );
    expect_classes(&rolled_back(vec![committed(1, 10, 20).read("x", 2).update("x", 5)]), &[DuplicateVersion]);
    // Without the rollback's line, no transaction wrote the version.
    expect_classes(
        &history(vec![committed(1, 10, 20).update("x", 4), committed(2, 30, 40).read("x", 5)]),
        &[UnwrittenRead],
    );
}

#[test]
fn rolled_back_unknown() {
    let model = HistoryModel {
        transactions: vec![unknown(1, 10).read("x", 2).update("x", 4), committed(2, 1000, 1010).read("x", 5)],
        rollbacks: vec![(key("x"), 5, 2)],
    };
    let report = expect_classes(&model, &[]);
    assert_eq!(report.counts.unknown_observed, 0);
}

/// Each knot of transactions is explained once. A knot that is explained without real time is not
/// explained again with it.
#[test]
fn several_knots() {
    let skew = |id: u64, x: &str, y: &str| {
        [
            committed(id, 10, 90).read(x, 2).read(y, 2).update(x, 4),
            committed(id + 1, 10, 90).read(x, 2).read(y, 2).update(y, 4),
        ]
    };
    let mut transactions = Vec::new();
    transactions.extend(skew(1, "a", "b"));
    transactions.extend(skew(3, "c", "d"));
    transactions.push(committed(5, 100, 110).update("e", 4));
    transactions.push(committed(6, 120, 130).read("e", 2));
    expect_classes(&history(transactions), &[WriteSkew, WriteSkew, StaleRead]);
}

/// A stale read over a long time ties everything that happened meanwhile into its knot. It must not
/// be hidden there.
#[test]
fn stale_read_around_a_write_skew() {
    expect_classes(
        &history(vec![
            committed(1, 1, 2).update("e", 4),
            committed(2, 10, 90).read("x", 2).read("y", 2).update("x", 4),
            committed(3, 10, 90).read("x", 2).read("y", 2).update("y", 4),
            committed(4, 120, 130).read("e", 2),
        ]),
        &[WriteSkew, StaleRead],
    );
}

#[test]
fn empty_history_is_clean() {
    let report = expect_clean(Vec::new());
    assert_eq!(report.counts.transactions, 0);
    assert!(report.to_string().starts_with("strictly serializable: 0 transactions"), "{report}");
}

/// A broken system produces millions of anomalies. All are counted, and not all are explained.
#[test]
fn many_anomalies_are_counted() {
    let mut transactions = vec![committed(0, 10, 90).update("x", 4)];
    transactions.extend((1..=500).map(|id| committed(id, 10, 90).read("x", 5)));
    let report = history(transactions).check();
    assert_eq!(report.anomalies.len() as u64 + report.anomalies_omitted, 500);
    assert_eq!(report.anomalies.len(), 100);
}

/// A history may contain any table names. Each line of an explanation must stay one line, and must
/// do nothing to a terminal.
#[test]
fn names_of_tables_break_no_line() {
    let key = ("two\nlines \u{1b}[2J".to_owned(), vec![1]);
    let [mut writer, mut reader] = [committed(1, 10, 20), committed(2, 30, 40)];
    writer.writes.push((key.clone(), Some(4), WriteKind::Update));
    reader.reads.push((key, Observed::Present(2)));
    let report = expect_one(StaleRead, vec![writer, reader]);
    let lines = &report.anomalies[0].explanation;
    assert!(lines.iter().any(|line| line.contains("two\\nlines \\u{1b}[2J")), "{report}");
    assert!(!lines.iter().any(|line| line.contains(char::is_control)), "{report}");
}

/// A snapshot may have the later one of two writers that share no key, and not the earlier one.
/// Nothing else may.
#[test]
fn snapshots_and_real_time() {
    let two = || [committed(1, 10, 20).read("x", 2).update("x", 4), committed(2, 30, 40).read("y", 2).update("y", 4)];
    let with = |reader| two().into_iter().chain([reader]).collect::<Vec<_>>();
    expect_clean(with(snapshot(3, 5, 90).read("x", 2).read("y", 4)));
    expect_one(StaleRead, with(committed(3, 5, 90).read("x", 2).read("y", 4)));
    // Writers are still in the order of real time, and what they share is.
    expect_one(
        StaleRead,
        vec![
            committed(1, 10, 20).read("x", 2).update("x", 4),
            committed(2, 30, 40).read("x", 2).update("y", 4),
            snapshot(3, 5, 90).read("y", 4),
        ],
    );
}

#[test]
fn snapshots_are_serializable() {
    let writer = || committed(1, 10, 20).read("x", 2).update("x", 4).read("y", 2).update("y", 4);
    expect_clean(vec![writer(), snapshot(2, 5, 90).read("x", 4).read("y", 4)]);
    expect_one(ReadSkew, vec![writer(), snapshot(2, 5, 90).read("x", 2).read("y", 4)]);
    let writers =
        || [committed(1, 10, 90).read("x", 2).update("x", 4), committed(2, 10, 90).read("y", 2).update("y", 4)];
    let with = |readers: [common::TransactionModel; 2]| writers().into_iter().chain(readers).collect::<Vec<_>>();
    expect_one(
        LongFork,
        with([snapshot(3, 10, 90).read("x", 2).read("y", 4), snapshot(4, 10, 90).read("x", 4).read("y", 2)]),
    );
}

#[test]
fn snapshots_are_fresh() {
    let writers = || {
        vec![
            committed(1, 10, 20).read("x", 2).update("x", 4),
            committed(2, 30, 40).read("x", 4).update("x", 6),
            committed(3, 10, 90).read("y", 2).update("y", 4),
        ]
    };
    let with = |reader| writers().into_iter().chain([reader]).collect::<Vec<_>>();
    expect_clean(with(snapshot(4, 45, 90).read("x", 6).read("y", 2)));
    expect_clean(with(snapshot(4, 35, 90).read("x", 4)));
    expect_one(StaleRead, with(snapshot(4, 45, 90).read("x", 4)));
    // The loader's version counts, and so does a later version than the next.
    expect_one(StaleRead, with(snapshot(4, 45, 90).read("x", 2)));
}

/// A read at a past time may miss what had ended. It still has each transaction as a whole, and
/// goes with all others.
#[test]
fn past_reads_are_serializable() {
    let writers = || {
        vec![
            committed(1, 10, 20).read("x", 2).update("x", 4).read("y", 2).update("y", 4),
            committed(2, 30, 40).read("x", 4).update("x", 6),
        ]
    };
    let with = |reader| writers().into_iter().chain([reader]).collect::<Vec<_>>();
    expect_clean(with(past(3, 45, 90).read("x", 2).read("y", 2)));
    expect_clean(with(past(3, 45, 90).read("x", 4).read("y", 4)));
    expect_one(ReadSkew, with(past(3, 45, 90).read("x", 2).read("y", 4)));
    expect_one(StaleRead, with(snapshot(3, 45, 90).read("x", 4)));
}

/// A read at a past time that found a key absent may have been before it was inserted.
#[test]
fn past_reads_may_be_before_an_insert() {
    let with = |reader| vec![committed(1, 10, 20).insert("x", 4), committed(2, 30, 40).delete("x", 6), reader];
    expect_clean(with(past(3, 25, 28).absent("x")));
    expect_clean(with(past(3, 45, 48).absent("x")));
    expect_one(ImpossibleAbsence, with(snapshot(3, 25, 28).absent("x")));
}
