//! The protocol suite: what every protocol that promises transactions must do, on shared memory and
//! under the seeded scheduler. [`suite`] has a test of each protocol in the list of protocols;
//! [`round_trips`] and [`exact_cost`] state the numbers of each.

mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use remora::floors::fabric::{ClientId, Fault, NodeId, WORD_BYTES};
use remora::floors::record::{LockWord, SharedLock, Version};
use remora::floors::txn::{Dst, FirstRead, Ford, Locks, Misuse, Primitive, Primitives, Stop, TransactOptions};
use remora::observe::{Cost, Observer, Outcome, TransactionEvent};
use remora::protocol::{Protocol, ReadScheme, Rtx, Validation};
use remora::{
    Abort, Cluster, Error, Intent, Key, Limit, Reason, Session, TableOptions, TransactionId, TransactionOptions,
    WorkerOptions,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use support::rig::{self, Rig};
use support::{
    NODES, Words, add, at_one_node, crash, cut_off, embedded, is_logged, is_long, look, on_every_fabric, options,
    others_run, participants, quiet, read, replicas_of, rest, seeded, seeds, shard_of, table, turns, worker,
};

/// No passive ACK, and flushed logs.
const DRTM_H_ONE_SIDED: Protocol = Protocol::Occ(Primitives::DRTM_H_ONE_SIDED);
/// No passive ACK, flushed logs, and locks and validation apart.
const FARM_ONE_SIDED: Protocol = Protocol::Occ(Primitives::FARM_ONE_SIDED);
/// Locks that the CPU takes and WRITEs free.
const UNLOCKED_BY_WRITES: Protocol =
    Protocol::Occ(Primitives { locks: Locks::Cpu { install: Primitive::OneSided }, ..Primitives::FARM });

/// FORD without what can be turned off and does not change which records are cached, or which
/// rounds there are.
const FORD_WITHOUT: Protocol = Protocol::Ford(Ford {
    hitchhike: false,
    background_release: false,
    backup_reads: false,
    selective_flush: false,
    ..Ford::WHOLE
});

/// Whether what has committed is still found in logs.
fn keeps_logs(protocol: Protocol) -> bool {
    !matches!(protocol, Protocol::Ford(_) | Protocol::RTX)
}

/// Declares these tests for each protocol that promises transactions, and for some more members of
/// their families.
macro_rules! suite {
    (@ $protocol:expr, { $($test:ident),* $(,)? }) => { $(#[test] fn $test() { super::$test($protocol); })* };
    (@long $protocol:expr, { $($test:ident),* $(,)? }) => { $(
        #[test]
        #[ignore = "long: a part of .ci/long"]
        fn $test() { super::$test($protocol); }
    )* };
    // Protocols that share most of their code with another one.
    (@of DRTM_H $tests:tt) => { suite!(@long remora::protocol::Protocol::DRTM_H, $tests); };
    (@of DST_2PL $tests:tt) => { suite!(@long remora::protocol::Protocol::DST_2PL, $tests); };
    (@of FARM $tests:tt) => { suite!(@long remora::protocol::Protocol::FARM, $tests); };
    (@of FORD_GLOBAL $tests:tt) => { suite!(@long remora::protocol::Protocol::FORD_GLOBAL, $tests); };
    (@of FORD_LEAN $tests:tt) => { suite!(@long remora::protocol::Protocol::FORD_LEAN, $tests); };
    (@of FORD_LOCAL $tests:tt) => { suite!(@long remora::protocol::Protocol::FORD_LOCAL, $tests); };
    (@of GTS $tests:tt) => { suite!(@long remora::protocol::Protocol::GTS, $tests); };
    (@of VTS $tests:tt) => { suite!(@long remora::protocol::Protocol::VTS, $tests); };
    (@of $PROTOCOL:ident $tests:tt) => { suite!(@ remora::protocol::Protocol::$PROTOCOL, $tests); };
    ([$($PROTOCOL:ident)*] $tests:tt) => { $(
        #[allow(non_snake_case, reason = "a constant's name")]
        mod $PROTOCOL { suite!(@of $PROTOCOL $tests); }
    )* };
    ($($name:ident = $protocol:expr),* => $tests:tt) => {
        remora::floors::txn::each_protocol!(suite $tests);
        $(mod $name { suite!(@ $protocol, $tests); })*
    };
}

suite! {
    drtm_h_one_sided = super::DRTM_H_ONE_SIDED,
    farm_one_sided = super::FARM_ONE_SIDED,
    unlocked_by_writes = super::UNLOCKED_BY_WRITES,
    ford_without = super::FORD_WITHOUT
    => {
        round_trips_are_exact,
        cost_of_a_transfer_is_exact,
        cold_lookups_cost_one_round_more,
        own_writes_are_read,
        transactions_by_hand,
        absent_keys,
        user_errors_are_believed_only_after_validation,
        deadlines,
        attempts_end_with_the_holder_named,
        limits_are_errors,
        keys_and_values_of_odd_sizes,
        records_of_threads_are_never_torn,
        money_is_conserved_between_threads,
        a_panic_leaves_no_lock,
        who_rests_has_nothing_on_its_way,
        a_transaction_dropped_anywhere_leaves_no_trace_or_is_finished,
        a_node_that_fails_is_named,
        a_node_that_fails_at_any_step,
        an_entry_in_doubt_is_kept,
        a_client_that_is_revoked_at_any_step,
        rings_are_reused_lap_after_lap,
    }
}

#[test]
fn the_suite_has_every_protocol_that_promises_transactions() {
    macro_rules! constants {
        ([$($PROTOCOL:ident)*]) => { vec![$(Protocol::$PROTOCOL),*] };
    }
    let promising = Protocol::ALL.into_iter().filter(|protocol| protocol.is_serializable());
    assert_eq!(promising.collect::<Vec<_>>(), remora::floors::txn::each_protocol!(constants));
}

/// The tests that `most_protocols!` and the suite leave to `.ci/long` are those of the protocols
/// that share most of their code with another one.
#[test]
fn the_gate_has_the_most_different_protocols() {
    macro_rules! named {
        ([$($PROTOCOL:ident)*]) => { [$((stringify!($PROTOCOL), Protocol::$PROTOCOL)),*] };
    }
    let (macros, suite) = (include_str!("support/mod.rs"), include_str!("protocol.rs"));
    for (name, protocol) in remora::floors::txn::each_protocol!(named) {
        let is_left = macros.contains(&format!("test_of_most!(@long {name} $test)"));
        assert_eq!(is_left, !Protocol::DISTINCT.contains(&protocol), "{name}");
        assert_eq!(suite.contains(&format!("(@of {name} ")), is_left, "{name}, in the suite");
    }
}

// --- Costs.

/// Round trips of a transaction whose locations are cached, and whose keys are all named before the
/// first fetch.
struct RoundTrips {
    /// More if no location is cached.
    cold: u64,
    read_one: u64,
    read_several: u64,
    write_what_it_reads: u64,
    /// If what it writes is at several nodes.
    write_at_several: u64,
    write_and_read_another: u64,
}

fn round_trips(protocol: Protocol) -> RoundTrips {
    if protocol == Protocol::RTX {
        // A bucket shows the object as well as the object itself does. But only a lone record whose
        // location is cached is locked in execution.
        return RoundTrips {
            cold: 1,
            read_one: 2,
            read_several: 2,
            write_what_it_reads: 3,
            write_at_several: 5,
            write_and_read_another: 5,
        };
    }
    if protocol == Protocol::UNSYNCHRONIZED {
        return RoundTrips {
            cold: 1,
            read_one: 1,
            read_several: 1,
            write_what_it_reads: 2,
            write_at_several: 2,
            write_and_read_another: 2,
        };
    }
    if let Protocol::Ford(ford) = protocol {
        let hitchhike = u64::from(!ford.hitchhike);
        // A bucket brings its records; the lock of one has to be taken by another round.
        let cold = u64::from(ford.hitchhike);
        let further = u64::from(!ford.background_release) * 2;
        // A call to the cluster's cache replaces the validation, and is also needed to publish when
        // nothing else has to be validated.
        let told = u64::from(ford.validation == Validation::Global);
        return RoundTrips {
            cold,
            read_one: 1,
            read_several: 2 - u64::from(ford.validation == Validation::Local),
            write_what_it_reads: 2 + hitchhike + further + told,
            write_at_several: 2 + hitchhike + further + told,
            // What is only read is locked in the same round as what is written, and not validated.
            write_and_read_another: 3 + hitchhike + further
                - u64::from(ford.validation == Validation::Local || ford.timed),
        };
    }
    if protocol.spec().locks_reads {
        // A call finds the record without a cached location.
        let cold = u64::from(protocol != Protocol::DST_2PL);
        return RoundTrips {
            cold,
            read_one: 1,
            read_several: 1,
            write_what_it_reads: 2,
            write_at_several: 2,
            write_and_read_another: 2,
        };
    }
    if let Protocol::Dst(dst) = protocol {
        // What is only read is validated, unless it is not ordered.
        let validated = u64::from(dst != Dst::Unordered);
        let oracle = u64::from(dst == Dst::Oracle);
        return RoundTrips {
            cold: 0,
            read_one: 1,
            read_several: 1 + validated,
            write_what_it_reads: 3 + oracle,
            write_at_several: 3 + oracle,
            write_and_read_another: 3 + oracle + validated,
        };
    }
    let Protocol::Occ(Primitives { execute, passive, merged, .. }) = protocol else {
        unreachable!("{protocol} has its own round trips")
    };
    // The index bucket is read every time, or only if there is no location.
    let bucket = u64::from(execute == FirstRead::OneSided { cached: false });
    let cold = u64::from(execute == FirstRead::OneSided { cached: true });
    let (acknowledged, validated) = (u64::from(!passive), u64::from(!merged));
    RoundTrips {
        cold,
        read_one: 1 + bucket,
        read_several: 2 + bucket,
        write_what_it_reads: 3 + bucket + acknowledged + validated,
        write_at_several: 3 + bucket + acknowledged + validated,
        write_and_read_another: 4 + bucket + acknowledged,
    }
}

/// What a transfer between two records of 8 bytes at two nodes costs, keys of 8 bytes, three nodes.
/// On a fabric whose rounds take effect `in_order`, one clock counts for all nodes.
fn exact_cost(protocol: Protocol, replicas: u8, in_order: bool) -> Cost {
    const LOCK: u64 = 8;
    const RECORD: u64 = 40; // lock, version, meta, key, value
    const IMAGE: u64 = RECORD - LOCK;
    const VALIDATED: u64 = 16; // lock, version
    const SWAP: u64 = 16; // out; 8 in
    const BUCKET: u64 = 128;
    const CALL: u64 = 24; // code, and two words that say what about
    const LOCKED: u64 = 16; // lock word before, version
    const CALLED: u64 = 16; // what there is room for in the answer about pairs
    const NONE: Cost =
        Cost { round_trips: 0, reads: 0, writes: 0, atomics: 0, flushes: 0, rpcs: 0, bytes_out: 0, bytes_in: 0 };
    let round_trips = round_trips(protocol).write_at_several;
    if protocol == Protocol::RTX {
        const OBJECT: u64 = 16; // lock, place
        const BLOCK: u64 = RECORD + 8; // and the word that repeats the place
        // A count, and two words with what they were and what they will be.
        let entries = 8 + 2 * 3 * 8;
        // The log is begun, decided and ended; locks are taken, places swapped, locks freed.
        let swaps = 3 + 3 * 2;
        return Cost {
            round_trips,
            reads: 2 + 2 * 2 + 2,
            writes: 2 + 1,
            atomics: swaps,
            bytes_out: 2 * (BLOCK - LOCK) + entries + swaps * SWAP,
            bytes_in: 2 * OBJECT + 2 * (BLOCK + OBJECT) + 2 * 8 + swaps * 8,
            ..NONE
        };
    }
    if protocol == Protocol::UNSYNCHRONIZED {
        let writes = 2 * u64::from(replicas);
        return Cost { round_trips, reads: 2, writes, bytes_out: writes * IMAGE, bytes_in: 2 * RECORD, ..NONE };
    }
    // Frame: id, kind, checksum. Entry: epoch, participants, count; pointer, old or new version,
    // length of each record.
    let entry = (3 + 3 + 2 * 3) * 8 + 2 * IMAGE;
    // Primaries at nodes 0 and 1; with three copies their backups are at all nodes.
    let logs = if replicas == 1 { 2 } else { 3 };
    if let Protocol::Ford(ford) = protocol {
        let copies = 2 * u64::from(replicas);
        let again = if ford.hitchhike { 0 } else { 2 };
        let backups = if replicas == 1 { 0 } else { 3 };
        // Who shows what: WRITEs, which free the logs too; or atomics at the backups.
        let (shown, shown_by_swap) = if ford.lean { (2, copies - 2) } else { (copies + logs, 0) };
        // The words of the time, and of the place of the former image; and the smallest time, in
        // the entry.
        let (words, time) = if ford.timed { (16, 8) } else { (0, 0) };
        let (record, image, entry) = (RECORD + words, IMAGE + words, entry + time + 2 * words);
        // Meta and time are written before the version, unless the time is early. Each node's clock
        // gets a draw, or the one that counts for all. Each primary's archive gets the former
        // images.
        let (settled, draws, kept) = match (ford.timed, in_order) {
            (false, _) => (0, 0, 0),
            (true, true) => (0, 1, 2),
            (true, false) => (copies, logs, 2),
        };
        let swaps = 2 + 2 + shown_by_swap;
        // One call with the epoch and two pairs of record and version; back come bits.
        let calls = u64::from(ford.validation == Validation::Global);
        return Cost {
            round_trips,
            reads: 2 + again,
            writes: logs + kept + copies + settled + shown,
            atomics: swaps + draws,
            flushes: if ford.selective_flush { backups } else { copies },
            rpcs: calls,
            bytes_out: logs * entry
                + kept * 2 * image
                + copies * image
                + settled * 16
                + shown * 8
                + swaps * SWAP
                + draws * 8
                + calls * (16 + 2 * 16),
            bytes_in: 2 * record + again * record + (swaps + draws) * 8 + calls * CALLED,
        };
    }
    if protocol == Protocol::DST_2PL {
        const WORDS: u64 = 16; // the time, and a word that this protocol does not use
        // Two calls that lock and read, by code, shard, lock word and key; whether the lock is
        // taken, and ts, come with the record. Then log entries and two commits.
        return Cost {
            round_trips,
            rpcs: 2 + logs + 2,
            bytes_out: 2 * (CALL + 8) + logs * (16 + entry + 2 * WORDS) + 2 * (CALL + IMAGE + WORDS),
            bytes_in: 2 * (16 + 24 + RECORD + WORDS),
            ..NONE
        };
    }
    if protocol.spec().locks_reads {
        // Two locks, two entries to the rings, two records, two locks again.
        return Cost {
            round_trips,
            reads: 2,
            writes: logs + 2,
            atomics: 2 + 2,
            bytes_out: 2 * SWAP + logs * entry + 2 * (IMAGE + SWAP),
            bytes_in: 2 * (8 + RECORD) + 2 * 8,
            ..NONE
        };
    }
    if let Protocol::Dst(dst) = protocol {
        const TIME: u64 = 8;
        const WORDS: u64 = 16; // the time, and a word that these protocols do not use
        // Executions, locks, commits; with each lock comes the record's ts. The oracle is asked for
        // a time, by code, epoch, bound and id, and is told of the end, by code, epoch and id. Or
        // there is room for four readers with each lock, and the oracle is only told.
        let (oracle, vector) = (u64::from(dst == Dst::Oracle), u64::from(dst == Dst::Vector));
        return Cost {
            round_trips,
            rpcs: 2 + 2 + logs + 2 + 2 * oracle + vector,
            bytes_out: 2 * CALL
                + 2 * CALL
                + logs * (16 + entry + 2 * WORDS)
                + 2 * (CALL + IMAGE + WORDS)
                + oracle * (32 + 24)
                + vector * 24,
            bytes_in: 2 * (24 + RECORD + WORDS) + 2 * (LOCKED + TIME) + oracle * 8 + vector * 2 * 4 * 8,
            ..NONE
        };
    }
    let Protocol::Occ(Primitives { execute, locks, log, flush, .. }) = protocol else {
        unreachable!("{protocol} has its own cost")
    };
    // The words of the time, and of the place of the former image, which this family does not use.
    let words = if matches!(locks, Locks::NicTimed { .. }) { 16 } else { 0 };
    let (record, image, entry) = (RECORD + words, IMAGE + words, entry + 2 * words);
    let execute = match execute {
        FirstRead::OneSided { cached: false } => Cost { reads: 2 + 2, bytes_in: 2 * (BUCKET + record), ..NONE },
        FirstRead::OneSided { cached: true } | FirstRead::Hybrid => Cost { reads: 2, bytes_in: 2 * record, ..NONE },
        FirstRead::Call => Cost { rpcs: 2, bytes_out: 2 * CALL, bytes_in: 2 * (24 + record), ..NONE },
    };
    let lock = match locks {
        Locks::Nic => Cost { reads: 2, atomics: 2, bytes_out: 2 * SWAP, bytes_in: 2 * (8 + VALIDATED), ..NONE },
        Locks::NicTimed { .. } => {
            // A draw from the clock of each node, or from the one that counts for all.
            let draws = if in_order { 1 } else { 2 };
            Cost {
                reads: 2,
                atomics: 2 + draws,
                bytes_out: 2 * SWAP + 8 * draws,
                bytes_in: 2 * (8 + VALIDATED) + 8 * draws,
                ..NONE
            }
        }
        Locks::Cpu { .. } => Cost { rpcs: 2, bytes_out: 2 * CALL, bytes_in: 2 * LOCKED, ..NONE },
    };
    let log = match log {
        Primitive::OneSided => Cost { writes: logs, flushes: u64::from(flush) * logs, bytes_out: logs * entry, ..NONE },
        Primitive::Call => Cost { rpcs: logs, bytes_out: logs * (16 + entry), ..NONE },
    };
    let install = match locks {
        Locks::Nic | Locks::NicTimed { .. } => {
            Cost { writes: 2, atomics: 2, bytes_out: 2 * (image + SWAP), bytes_in: 2 * 8, ..NONE }
        }
        Locks::Cpu { install: Primitive::OneSided } => Cost { writes: 2 + 2, bytes_out: 2 * (image + LOCK), ..NONE },
        Locks::Cpu { install: Primitive::Call } => Cost { rpcs: 2, bytes_out: 2 * (CALL + image), ..NONE },
    };
    let mut all = Cost { round_trips, ..NONE };
    [execute, lock, log, install].iter().for_each(|phase| all.add(phase));
    all
}

/// The events of each attempt, as an observer saw them.
#[derive(Clone, Default)]
struct Observed(Rc<RefCell<Vec<(TransactionId, Outcome, Cost)>>>);

impl Observer for Observed {
    fn transaction(&mut self, event: &TransactionEvent<'_>) {
        self.0.borrow_mut().push((event.id, event.outcome, event.cost));
    }
}

impl Observed {
    fn by(session: &mut Session) -> Observed {
        let seen = Observed::default();
        session.observe(Some(Box::new(seen.clone())));
        seen
    }

    /// The cost of the only attempt since the last call.
    fn cost(&self) -> Cost {
        match self.0.take()[..] {
            [(_, Outcome::Committed | Outcome::UserAbort, cost)] => cost,
            ref others => panic!("one attempt that commits was expected: {others:?}"),
        }
    }
}

fn round_trips_are_exact(protocol: Protocol) {
    assert_round_trips(protocol);
}

#[test]
fn round_trips_without_a_protocol() {
    assert_round_trips(Protocol::UNSYNCHRONIZED);
}

fn assert_round_trips(protocol: Protocol) {
    let expected = round_trips(protocol);
    for cluster in [1, 3].into_iter().flat_map(|replicas| on_every_fabric(protocol, replicas)) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(8), Words([1]));
        worker(&cluster, 1, 1).block_on(async |session| {
            session.transact(async |tx| read(tx, &rows, 0..8).await).await.unwrap();
            // Under `rtx`, a session's first write at a shard also takes blocks there.
            session.transact(async |tx| add(tx, &rows, 0..8, 8).await).await.unwrap();
            rest(session).await;
            let seen = Observed::by(session);
            for _ in 0..3 {
                session.transact(async |tx| read(tx, &rows, 0..1).await).await.unwrap();
                assert_eq!(seen.cost().round_trips, expected.read_one);
                session.transact(async |tx| read(tx, &rows, 0..4).await).await.unwrap();
                assert_eq!(seen.cost().round_trips, expected.read_several);
                session.transact(async |tx| add(tx, &rows, 0..1, 1).await).await.unwrap();
                rest(session).await;
                assert_eq!(seen.cost().round_trips, expected.write_what_it_reads);
                session.transact(async |tx| add(tx, &rows, 0..4, 4).await).await.unwrap();
                rest(session).await;
                assert_eq!(seen.cost().round_trips, expected.write_at_several);
                session.transact(async |tx| add(tx, &rows, 0..4, 1).await).await.unwrap();
                rest(session).await;
                // One more raises the clock of a node that is behind, where a record was only read.
                let raises = protocol.discipline().is_timed();
                let most = expected.write_and_read_another + u64::from(raises);
                assert!((expected.write_and_read_another..=most).contains(&seen.cost().round_trips));
                // Giving up is validated like a read, unless all is locked, and no clock is behind.
                let gave_up = session.transact(async |tx| {
                    add(tx, &rows, 0..4, 2).await?;
                    Err::<(), _>(rows.missing(0))
                });
                assert!(matches!(gave_up.await, Err(Error::NotFound(_))));
                let least = if raises { 1 } else { expected.read_several };
                assert!((least..=expected.read_several).contains(&seen.cost().round_trips));
            }
        });
    }
}

fn cost_of_a_transfer_is_exact(protocol: Protocol) {
    assert_cost_of_a_transfer(protocol);
}

#[test]
fn cost_of_a_transfer_without_a_protocol() {
    assert_cost_of_a_transfer(Protocol::UNSYNCHRONIZED);
}

fn assert_cost_of_a_transfer(protocol: Protocol) {
    for replicas in [1, 3] {
        for cluster in on_every_fabric(protocol, replicas) {
            let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([100]));
            let of_shard = |shard| (0..64).find(|key| shard_of(&rows, *key) == shard).unwrap();
            let (from, to) = (of_shard(0), of_shard(1));
            worker(&cluster, 1, 1).block_on(async |session| {
                session.transact(async |tx| read(tx, &rows, 0..64).await).await.unwrap();
                // Under `rtx`, a session's first write at a shard also takes blocks there.
                session.transact(async |tx| transfer(tx, &rows, from, to).await).await.unwrap();
                rest(session).await;
                let seen = Observed::by(session);
                for _ in 0..3 {
                    session.transact(async |tx| transfer(tx, &rows, from, to).await).await.unwrap();
                    rest(session).await;
                    let in_order = cluster.capabilities().in_order;
                    assert_eq!(seen.cost(), exact_cost(protocol, replicas, in_order));
                }
            });
        }
    }
}

async fn transfer(
    tx: &mut remora::Transaction<'_, '_>,
    rows: &remora::Table<u64, Words<1>>,
    from: u64,
    to: u64,
) -> Result<(), Error> {
    let [from, to] = [from, to].map(|key| tx.want_for(rows, key, Intent::Update));
    tx.fetch().await?;
    from.get_mut(tx)?.0[0] -= 1;
    to.get_mut(tx)?.0[0] += 1;
    Ok(())
}

/// What transactions of two-phase locking cost beyond a transfer, which shares no lock: records of
/// 8 bytes at two nodes, keys of 8 bytes, three nodes.
/// A client dies at every step of a transaction that writes one record, or two. The next client
/// that meets its lock repairs it within few round trips. One of them finds out where the dead
/// client's logs are.
#[test]
fn costs_of_repairs_are_bounded() {
    let suspicious = Protocol::Rtx(Rtx { suspicion_ns: 0, ..Rtx::USUAL });
    for (written, most) in [(1, 3), (2, 1 + 4)] {
        let mut all = BTreeSet::new();
        for step in 0..60 {
            let (cluster, fabric) = options(Protocol::RTX, 1).open_seeded(step).unwrap();
            let rows = table(&cluster, "rows", at_one_node(8), Words([1]));
            let mut survivor = worker(&cluster.with_protocol(suspicious), 1, step);
            let mut victim = worker(&cluster, 1, step);
            let dead = victim.incarnations().next().unwrap();
            let (seen, usual) = survivor.block_on(async |session| {
                let seen = Observed::by(session);
                for _ in 0..2 {
                    seen.0.take();
                    session.transact(async |tx| add(tx, &rows, 0..1, 1).await).await.unwrap();
                    rest(session).await;
                }
                let usual = seen.cost().round_trips;
                (seen, usual)
            });
            fabric.revoke_after(ClientId(dead), step);
            victim.block_on(async |session| {
                let _died = session.transact(async |tx| add(tx, &rows, 0..written, written as usize).await).await;
            });
            victim.abandon();
            survivor.block_on(async |session| {
                session.transact(async |tx| add(tx, &rows, 0..1, 1).await).await.unwrap();
            });
            // An attempt that meets a lock looks at it again for a while. The next attempt repairs
            // it.
            let attempts = seen.0.take();
            let (.., outcome, cost) = *attempts.last().unwrap();
            let more = cost.round_trips - usual;
            assert!(outcome == Outcome::Committed && more <= most, "{written} records, step {step}: {attempts:?}");
            all.insert(more);
        }
        assert!(all.contains(&most), "{written} records: {all:?}");
    }
}

#[test]
fn costs_of_shared_locks_are_exact() {
    const LOCKED: u64 = 16; // a CAS, out; 8 in
    const LEFT: u64 = 8 + 16; // the FETCH_ADD that takes a bit out, and the CAS that frees the word; 2 * 8 in
    const RECORD: u64 = 40; // lock, version, meta, key, value
    const IMAGE: u64 = RECORD - 8;
    const ENTRY: u64 = (3 + 3 + 3) * 8 + IMAGE; // frame, entry and one record: see `exact_cost`
    for replicas in [1, 3] {
        let logs = u64::from(replicas);
        let only_read = Cost {
            round_trips: 1,
            reads: 1,
            writes: 0,
            atomics: 1 + 2,
            flushes: 0,
            rpcs: 0,
            bytes_out: LOCKED + LEFT,
            bytes_in: 8 + RECORD + 2 * 8,
        };
        // The log is written once more than there are backups, and the record at its primary.
        let read_and_write = Cost {
            round_trips: 2,
            reads: 2,
            writes: logs + 1,
            atomics: 2 + 1 + 2,
            bytes_out: 2 * LOCKED + logs * ENTRY + IMAGE + 16 + LEFT,
            bytes_in: 2 * (8 + RECORD) + 8 + 2 * 8,
            ..only_read
        };
        // A CAS from the shared lock to the exclusive one, and one that frees that.
        let upgraded = Cost {
            round_trips: 3,
            reads: 1,
            writes: logs + 1,
            atomics: 1 + 1 + 1,
            bytes_out: 2 * LOCKED + logs * ENTRY + IMAGE + 16,
            bytes_in: 8 + RECORD + 8 + 8,
            ..only_read
        };
        for cluster in on_every_fabric(Protocol::NO_WAIT, replicas) {
            let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([100]));
            let of_shard = |shard| (0..64).find(|key| shard_of(&rows, *key) == shard).unwrap();
            let (one, other) = (of_shard(0), of_shard(1));
            worker(&cluster, 1, 1).block_on(async |session| {
                session.transact(async |tx| read(tx, &rows, 0..64).await).await.unwrap();
                rest(session).await;
                let seen = Observed::by(session);
                for _ in 0..3 {
                    session.transact(async |tx| read(tx, &rows, one..one + 1).await).await.unwrap();
                    rest(session).await;
                    assert_eq!(seen.cost(), only_read);
                    let both = session.transact(async |tx| {
                        let slots = (tx.want_for(&rows, one, Intent::Read), tx.want_for(&rows, other, Intent::Update));
                        tx.fetch().await?;
                        let seen = slots.0.require(tx)?.0[0];
                        slots.1.get_mut(tx)?.0[0] += seen;
                        Ok(())
                    });
                    both.await.unwrap();
                    rest(session).await;
                    assert_eq!(seen.cost(), read_and_write);
                    let same = session.transact(async |tx| {
                        let slot = tx.want_for(&rows, one, Intent::Read);
                        tx.fetch().await?;
                        slot.get_mut(tx)?.0[0] += 1;
                        Ok(())
                    });
                    same.await.unwrap();
                    rest(session).await;
                    assert_eq!(seen.cost(), upgraded);
                }
            });
        }
    }
}

/// Two clients read a record, and one of them writes another record. The lock words at the
/// primaries say so until each transaction ends; those at the backups are free all the time.
#[test]
fn lock_words_name_their_holders_until_the_transaction_ends() {
    for cluster in on_every_fabric(Protocol::NO_WAIT, 3) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
        let word = |key| {
            let mut words = replicas_of(cluster.fabric(), &rows, key).into_iter().map(|(_, words)| words[0]);
            let primary = LockWord::from_bits(words.next().unwrap());
            assert!(words.all(|backup| LockWord::from_bits(backup).is_free()), "locks are at primaries only");
            primary
        };
        let holders = |key| word(key).shared().map(|lock| lock.holders().count_ones());
        let step = Cell::new(0);
        let until = async |wanted| {
            while step.get() < wanted {
                others_run().await;
            }
        };
        let mut worker = worker(&cluster, 2, 1);
        worker.run(async |client, session| {
            let mut begun = session.begin().unwrap();
            if client == 1 {
                until(1).await;
                rows.get(&mut begun.transaction(), 0).await.unwrap();
                assert_eq!(holders(0), Some(2), "both clients");
                step.set(2);
                until(3).await;
                begun.commit().await.unwrap();
                rest(session).await;
                step.set(4);
                return;
            }
            let id = begun.transaction().id();
            rows.get(&mut begun.transaction(), 0).await.unwrap();
            rows.get(&mut begun.transaction(), 0).await.unwrap();
            assert_eq!(holders(0), Some(1), "this client");
            rows.get_mut(&mut begun.transaction(), 1).await.unwrap().0[0] += 1;
            assert!(word(1).is_held_by(id) && word(1).shared().is_none(), "{:?}", word(1));
            step.set(1);
            until(2).await;
            assert_eq!(holders(0), Some(2), "nothing is released before the end");
            step.set(3);
            until(4).await;
            assert_eq!(holders(0), Some(1), "the other client has left");
            assert!(word(1).is_held_by(id));
            begun.commit().await.unwrap();
            rest(session).await;
            assert!(word(0).is_free() && word(1).is_free(), "{:?} {:?}", word(0), word(1));
        });
        assert!(worker.drain().unwrap());
    }
}

fn cold_lookups_cost_one_round_more(protocol: Protocol) {
    let expected = round_trips(protocol);
    for cluster in on_every_fabric(protocol, 1) {
        // Seven rows fit one bucket: nothing is chained.
        let rows = table(&cluster, "rows", at_one_node(7), Words([1]));
        worker(&cluster, 1, 1).block_on(async |session| {
            let seen = Observed::by(session);
            session.transact(async |tx| add(tx, &rows, 0..4, 4).await).await.unwrap();
            rest(session).await;
            assert_eq!(seen.cost().round_trips, expected.write_what_it_reads + expected.cold);
            // They share a bucket, which is cached now: a key never named before is found in it.
            session.transact(async |tx| read(tx, &rows, 6..7).await).await.unwrap();
            assert_eq!(seen.cost().round_trips, expected.read_one);
        });
    }
}

// --- What a closure sees.

fn own_writes_are_read(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 3) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([1]));
        let mut worker = worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            let write = session.transact(async |tx| {
                let slot = tx.want(&rows, 1);
                let again = tx.want(&rows, 1);
                tx.fetch().await?;
                slot.get_mut(tx)?.0[0] = 5;
                assert_eq!(again.require(tx)?.0[0], 5, "a key named twice is one record");
                rows.update(tx, 1, Words([6])).await?;
                assert_eq!(rows.get(tx, 1).await?, Some(Words([6])));
                again.get_mut(tx)?.0[0] += 1;
                Ok(slot.require(tx)?.0[0])
            });
            assert_eq!(write.await.unwrap(), 7);
            let read = session.transact(async |tx| rows.get(tx, 1).await);
            assert_eq!(read.await.unwrap(), Some(Words([7])));
        });
        assert!(worker.drain().unwrap());
        let (rows, found) = look(&cluster, &rows);
        assert_eq!(rows.iter().map(|row| row.0[0]).sum::<u64>(), 3 + 7);
        assert_eq!((found.locked, found.differing_lines), (0, 0));
    }
}

/// Transactions that are begun and ended by hand, with another transaction in between.
fn transactions_by_hand(protocol: Protocol) {
    let locks_reads = protocol.spec().locks_reads;
    for cluster in on_every_fabric(protocol, 3) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
        let mut worker = worker(&cluster, 2, 1);
        let step = Cell::new(0);
        let until = async |wanted| {
            while step.get() < wanted {
                others_run().await;
            }
        };
        worker.run(async |client, session| {
            if client == 1 {
                until(1).await;
                let options = TransactionOptions::default().attempts(1);
                let other = session.transact_with(options, async |tx| add(tx, &rows, 0..1, 1).await).await;
                assert_eq!(other.is_err(), locks_reads, "{other:?}");
                step.set(2);
                return;
            }
            let seen = Observed::by(session);
            let mut late = session.begin().unwrap();
            // Named to be read first: a protocol that locks early has not locked it.
            rows.get(&mut late.transaction(), 0).await.unwrap();
            rows.get_mut(&mut late.transaction(), 0).await.unwrap().0[0] += 1;
            let read = rows.get(&mut late.transaction(), 0).await.unwrap();
            assert_eq!(read, Some(Words([1])), "its own writes, also through another handle");
            step.set(1);
            until(2).await;
            let late = late.commit().await;
            assert!(locks_reads || matches!(late, Err(Error::Aborted(_))), "it would lose the other's update");
            assert!(!locks_reads || late.is_ok(), "the other was kept out");
            let mut given_up = session.begin().unwrap();
            rows.update(&mut given_up.transaction(), 1, Words([9])).await.unwrap();
            given_up.abort().await;
            let mut dropped = session.begin().unwrap();
            rows.update(&mut dropped.transaction(), 2, Words([9])).await.unwrap();
            drop(dropped);
            let mut last = session.begin().unwrap();
            rows.get_mut(&mut last.transaction(), 3).await.unwrap().0[0] += 1;
            last.commit().await.unwrap();
            let told: Vec<Outcome> = seen.0.take().into_iter().map(|(_, outcome, _)| outcome).collect();
            let dropped = Outcome::Aborted(Abort::Dropped);
            let lost = matches!(told[0], Outcome::Aborted(Abort::Changed | Abort::Locked(_)));
            assert!(if locks_reads { told[0] == Outcome::Committed } else { lost }, "{told:?}");
            assert_eq!(told[1..], [dropped, dropped, Outcome::Committed]);
        });
        let sums = worker.block_on(async |session| {
            session.transact(async |tx| Ok((read(tx, &rows, 0..1).await?, read(tx, &rows, 0..4).await?))).await
        });
        assert_eq!(sums.unwrap(), (1, 2));
        assert!(worker.drain().unwrap());
        let (_, found) = look(&cluster, &rows);
        assert_eq!((found.locked, found.differing_lines), (0, 0));
    }
}

fn absent_keys(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 1) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([1]));
        worker(&cluster, 1, 1).block_on(async |session| {
            let find = session.transact(async |tx| {
                let both = (tx.want(&rows, 0), tx.want(&rows, 1_000));
                tx.fetch().await?;
                assert!(matches!(both.1.require(tx), Err(Error::NotFound(_))));
                assert!(matches!(both.1.get_mut(tx), Err(Error::NotFound(_))));
                assert_eq!(rows.get(tx, 1_001).await?, None);
                Ok((both.0.get(tx)?.copied(), both.1.get(tx)?.copied()))
            });
            assert_eq!(find.await.unwrap(), (Some(Words([1])), None));
            let seen = Observed::by(session);
            let write = session.transact(async |tx| {
                rows.update(tx, 0, Words([2])).await?;
                rows.update(tx, 1_000, Words([2])).await
            });
            assert!(matches!(write.await, Err(Error::NotFound(_))));
            assert_eq!(seen.0.take()[0].1, Outcome::UserAbort, "giving up is a decision, and was validated");
            let read = session.transact(async |tx| rows.get(tx, 0).await);
            assert_eq!(read.await.unwrap(), Some(Words([1])), "who gives up writes nothing");
        });
    }
}

/// Two records are always equal. A closure that sees them differ has seen a state that will not
/// commit. It gives up, and must run again, because its error is not validated.
fn user_errors_are_believed_only_after_validation(protocol: Protocol) {
    #[derive(Debug, PartialEq, thiserror::Error)]
    #[error("they differ: {0} and {1}")]
    struct Differ(u64, u64);

    let seen_to_differ = Cell::new(0);
    for seed in seeds(0..20) {
        let (cluster, _) = seeded(protocol, 1, seed);
        let rows = table(&cluster, "rows", TableOptions::for_rows(2), Words([0]));
        worker(&cluster, 3, seed).run(async |client, session| {
            for _ in 0..6 {
                let run = session.transact(async |tx| {
                    if client == 0 {
                        return add(tx, &rows, 0..2, 2).await;
                    }
                    let one = rows.get(tx, 0).await?.unwrap().0[0];
                    others_run().await;
                    let two = rows.get(tx, 1).await?.unwrap().0[0];
                    if one != two {
                        seen_to_differ.set(seen_to_differ.get() + 1);
                        return Err(Error::user(Differ(one, two)));
                    }
                    Ok(())
                });
                match run.await {
                    Ok(()) | Err(Error::Aborted(_)) => {}
                    Err(error) => panic!("seed {seed}: {error} (replay with REMORA_SEED={seed})"),
                }
            }
        });
    }
    let locks_reads = protocol.spec().locks_reads;
    assert_eq!(seen_to_differ.get() > 0, !locks_reads, "no closure has seen them differ: this proves nothing");
    // An error that is true comes out, with its type.
    let (cluster, _) = seeded(protocol, 1, 1);
    let error = worker(&cluster, 1, 1)
        .block_on(async |session| session.transact(async |_| Err::<(), _>(Error::user(Differ(1, 2)))).await)
        .unwrap_err();
    assert_eq!(error.downcast_user(), Some(&Differ(1, 2)));
    assert_eq!(error.to_string(), "they differ: 1 and 2");
}

// --- Giving up.

/// Puts a lock on a record that no client will release. It is a lock of transaction 12345.6, which
/// does not exist.
fn lock_for_ever(cluster: &Cluster, rows: &remora::Table<u64, Words<1>>, key: u64) -> TransactionId {
    let holder = TransactionId::new(12_345, 6).unwrap();
    let mut worker = worker(cluster, 1, 1);
    worker.block_on(async |session| session.transact(async |tx| read(tx, rows, key..key + 1).await).await).unwrap();
    let location = {
        let (table, hash) = (rows.untyped(), rig::key(key).hash());
        table.primary(table.cached(table.home(hash), hash).unwrap().pointer)
    };
    let region = cluster.fabric().region(location.node, location.region).unwrap();
    let word = &region.words()[location.offset as usize / WORD_BYTES];
    word.store(holder.lock().to_bits(), std::sync::atomic::Ordering::SeqCst);
    holder
}

fn deadlines(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 1) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
        lock_for_ever(&cluster, &rows, 0);
        let mut worker = worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            let within = |time| TransactionOptions::default().deadline(time).attempts(u32::MAX);
            let runs = Cell::new(0);
            let blocked = session.transact_with(within(Duration::from_millis(300)), async |tx| {
                runs.set(runs.get() + 1);
                add(tx, &rows, 0..1, 1).await
            });
            assert!(matches!(blocked.await, Err(Error::Limit(Reason { cause: Limit::Deadline, .. }))));
            assert!(runs.get() > 1, "it tries again until then");
            let too_late = session.transact_with(within(Duration::ZERO), async |_| -> Result<(), Error> {
                panic!("nothing is begun after the deadline")
            });
            assert!(matches!(too_late.await, Err(Error::Limit(Reason { cause: Limit::Deadline, .. }))));
            // A transaction that ends after the deadline does not commit.
            let slow = session.transact_with(within(Duration::from_micros(50)), async |tx| {
                add(tx, &rows, 1..2, 1).await?;
                while runs.get() > 0 {
                    thread::sleep(Duration::from_micros(300)); // shared memory has the system's clock ...
                    for _ in 0..10_000 {
                        others_run().await; // ... and a seeded run its own
                    }
                    runs.set(0);
                }
                Ok(())
            });
            assert!(matches!(slow.await, Err(Error::Limit(Reason { cause: Limit::Deadline, .. }))));
            assert_eq!(session.transact(async |tx| read(tx, &rows, 1..2).await).await.unwrap(), 0);
            let patient = within(Duration::from_secs(60));
            session.transact_with(patient, async |tx| add(tx, &rows, 1..2, 1).await).await.unwrap();
        });
    }
}

fn attempts_end_with_the_holder_named(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 3) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
        let holder = lock_for_ever(&cluster, &rows, 2);
        worker(&cluster, 1, 1).block_on(async |session| {
            let seen = Observed::by(session);
            let options = TransactionOptions::default().attempts(3);
            let runs = Cell::new(0);
            let blocked = session.transact_with(options, async |tx| {
                runs.set(runs.get() + 1);
                add(tx, &rows, 0..4, 4).await
            });
            let error = blocked.await.unwrap_err();
            let Error::Aborted(Reason { cause: Abort::Locked(lock), .. }) = error else { panic!("{error}") };
            assert_eq!(lock.holder(), Some(holder));
            assert!(error.to_string().contains("12345.6"), "{error}");
            assert_eq!((runs.get(), seen.0.take().len()), (3, 3));
            // The other records are not locked, because the transaction has left no trace.
            let rest = session.transact(async |tx| {
                add(tx, &rows, 0..2, 2).await?;
                add(tx, &rows, 3..4, 1).await
            });
            rest.await.unwrap();
        });
    }
}

fn limits_are_errors(protocol: Protocol) {
    use remora::floors::txn::limits::{LOG_NODES_MAX, SET_MAX};
    for cluster in on_every_fabric(protocol, 1) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(16), Words([0]));
        let large = table(&cluster, "large", TableOptions::for_rows(2), Words::<2040>::all(0));
        let mut worker = worker(&cluster, 1, 1);
        worker.block_on(async |session| {
            let many = session.transact(async |tx| {
                for key in 0..=SET_MAX as u64 {
                    let _ = tx.want(&rows, key);
                }
                tx.fetch().await
            });
            assert!(matches!(many.await, Err(Error::Limit(Reason { cause: Limit::Set, .. }))));
            let long = session.transact(async |tx| {
                large.update(tx, 0, Words::all(1)).await?;
                large.update(tx, 1, Words::all(1)).await?;
                rows.update(tx, 0, Words([0])).await
            });
            let long = long.await;
            let is_refused = matches!(long, Err(Error::Limit(Reason { cause: Limit::LogEntry { .. }, .. })));
            // The log of `rtx` has no values.
            assert_eq!(is_refused, protocol != Protocol::RTX, "two of 16 KB do not fit 32 KB");
            for key in 0..2 {
                session.transact(async |tx| large.update(tx, key, Words::all(2)).await).await.unwrap();
            }
            // As many records as a set holds, and more than one round holds.
            let all = session.transact(async |tx| {
                let slots: Vec<_> = (0..SET_MAX as u64).map(|key| tx.want(&rows, key)).collect();
                tx.fetch().await?;
                slots[..16].iter().try_for_each(|slot| slot.get_mut(tx).map(|row| row.0[0] += 1))
            });
            all.await.unwrap();
        });
        quiet(&mut worker);
        let (rows, found) = look(&cluster, &rows);
        assert!(rows.iter().all(|row| row.0[0] == 1));
        assert_eq!(found.locked, 0);
    }
    // More nodes than a transaction may log to.
    let nodes = LOG_NODES_MAX as u16 + 1;
    let options = Cluster::embedded().nodes(nodes).replicas(1).node_bytes(1 << 20).protocol(protocol);
    let (cluster, _) = options.open_seeded(1).unwrap();
    let rows = table(&cluster, "rows", TableOptions::for_rows(400), Words([0]));
    worker(&cluster, 1, 1).block_on(async |session| {
        let wide = session.transact(async |tx| add(tx, &rows, 0..400, 400).await);
        let wide = wide.await;
        let is_refused = matches!(wide, Err(Error::Limit(Reason { cause: Limit::LogNodes { .. }, .. })));
        // An attempt of `rtx` has one log.
        assert!(if protocol == Protocol::RTX { wide.is_ok() } else { is_refused }, "{wide:?}");
        session.transact(async |tx| add(tx, &rows, 0..8, 8).await).await.unwrap();
    });
    // The untyped interface takes keys and values of any size, and refuses the wrong ones.
    let rig = Rig::for_protocol(remora::floors::fabric::shm::Shm::new(&[vec![4 << 20]]).unwrap(), protocol);
    let table = rig.table("rows", ReadScheme::Checksum, 1, 20, &[vec![1; 20]]);
    let worker = remora::floors::fabric::Worker::new();
    let mut sessions = rig.sessions(&worker, protocol, 1);
    rig::run(&worker, &mut sessions, async |_, session| {
        let write = session.transact(TransactOptions::default(), async |tx| {
            tx.register(&table);
            let short = remora::floors::record::Key::new(&[1; 5]).unwrap();
            let refused = tx.want(table.id(), &short).unwrap_err();
            assert_eq!(refused, Stop::Limit(Limit::Key { found: 5, expected: 8 }));
            let slot = tx.want(table.id(), &rig::key(0))?;
            let absent = tx.want(table.id(), &rig::key(1))?;
            assert_eq!(tx.write(slot, &[0; 4]), Err(Stop::Misuse(Misuse::NotFetched)));
            tx.fetch().await?;
            assert_eq!(tx.write(absent, &[0; 4]), Err(Stop::Absent));
            assert_eq!(tx.write(slot, &[0; 21]), Err(Stop::Limit(Limit::Value { found: 21, max: 20 })));
            // Shorter, empty, and longer again: no byte of an older value shows.
            for length in [3, 0, 13, 20, 1, 7] {
                tx.write(slot, &vec![length as u8; length])?;
                assert_eq!(tx.value(slot), Ok(Some(&vec![length as u8; length][..])));
            }
            Ok(Ok::<_, ()>(()))
        });
        write.await.unwrap().unwrap();
        let read = session.transact(TransactOptions::default(), async |tx| {
            let slot = tx.want(table.id(), &rig::key(0))?;
            tx.fetch().await?;
            assert_eq!(tx.value(slot), Ok(Some(&[7; 7][..])));
            Ok(Ok::<_, ()>(()))
        });
        read.await.unwrap().unwrap();
    });
}

// --- Shapes of records.

#[derive(Clone, Copy, PartialEq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, remora::Record)]
#[record(schema = "bytes")]
#[repr(transparent)]
struct Bytes<const N: usize>([u8; N]);

fn keys_and_values_of_odd_sizes(protocol: Protocol) {
    let cluster = embedded(protocol, 3);
    with_sizes::<_, 1>(&cluster, |number| number as u8);
    with_sizes::<_, 8>(&cluster, |number| number as u16);
    with_sizes::<_, 31>(&cluster, |number| number as u32 * 1_000_000);
    with_sizes::<_, 33>(&cluster, |number| number);
    with_sizes::<_, 24>(&cluster, |number| u128::from(number) << 60);
    with_sizes::<_, 40>(&cluster, |number| [number as u8; 5]);
    with_sizes::<_, 41>(&cluster, |number| [number as u8; 33]);
    with_sizes::<_, 199>(&cluster, |number| [number as u8; 64]);
    with_sizes::<_, 7>(&cluster, |number| (number as u16, number << 40, number as u8));
    with_sizes::<_, 41>(&seeded(protocol, 3, 3).0, |number| [number as u8; 33]);
}

fn with_sizes<K: Key, const N: usize>(cluster: &Cluster, key: fn(u64) -> K) {
    const ROWS: u64 = 20;
    // A time and the place of the former image take 16 bytes of the line.
    let room = if cluster.protocol().has_snapshots() { 24 } else { 40 };
    let schemes = [None, Some(ReadScheme::SingleLine), Some(ReadScheme::Checksum), Some(ReadScheme::LineVersions)];
    for read_scheme in schemes.into_iter().filter(|scheme| has(cluster, *scheme)) {
        let name = &format!("{} {N} {read_scheme:?}", K::BYTES);
        let options = TableOptions::for_rows(ROWS).read_scheme(read_scheme);
        let created = cluster.create_table::<K, Bytes<N>>(name, options);
        if read_scheme == Some(ReadScheme::SingleLine) && K::BYTES.next_multiple_of(8) + N.next_multiple_of(8) > room {
            assert!(created.is_err(), "a line has room for {room} bytes");
            continue;
        }
        let rows = created.unwrap();
        cluster.load(&rows, (0..ROWS).map(|number| (key(number), Bytes([number as u8; N])))).unwrap();
        let mut worker = worker(cluster, 1, 1);
        worker.block_on(async |session| {
            for change in [0, 100] {
                let run = session.transact(async |tx| {
                    let slots: Vec<_> = (0..ROWS).map(|number| tx.want(&rows, key(number))).collect();
                    tx.fetch().await?;
                    for (number, slot) in slots.into_iter().enumerate() {
                        let expected = number as u8 + if change == 0 || number % 2 == 1 { 0 } else { 100 };
                        assert_eq!(slot.require(tx)?, &Bytes([expected; N]), "{name}");
                        if change == 0 && number % 2 == 0 {
                            *slot.get_mut(tx)? = Bytes([expected + 100; N]);
                        }
                    }
                    Ok(())
                });
                run.await.unwrap();
            }
        });
        assert!(worker.drain().unwrap());
        let (_, found) = look(cluster, &rows);
        assert_eq!((found.records, found.locked, found.torn, found.differing_lines), (ROWS, 0, 0, 0), "{name}");
    }
}

// --- Several threads, on shared memory. (The seeded scheduler does the same in `litmus`.)

fn threads<T: Send>(cluster: &Cluster, body: impl Fn(u64, &mut remora::Worker) -> T + Sync) -> Vec<T> {
    const THREADS: u64 = 3;
    let options = |seed| WorkerOptions::default().coroutines(4).clients(2).seed(seed).yield_after_rounds(true);
    thread::scope(|scope| {
        let body = &body;
        let run = |seed| scope.spawn(move || body(seed, &mut cluster.worker(options(seed)).unwrap()));
        let running: Vec<_> = (0..THREADS).map(run).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn records_of_threads_are_never_torn(protocol: Protocol) {
    let cluster = embedded(protocol, 2);
    if protocol.has_snapshots() {
        never_torn::<2>(&cluster, ReadScheme::SingleLine);
    } else {
        never_torn::<4>(&cluster, ReadScheme::SingleLine);
    }
    never_torn::<25>(&cluster, ReadScheme::Checksum);
    never_torn::<25>(&cluster, ReadScheme::LineVersions);
    never_torn::<300>(&cluster, ReadScheme::LineVersions);
}

/// Whether a cluster can have such tables.
fn has(cluster: &Cluster, scheme: Option<ReadScheme>) -> bool {
    let has_others = cluster.capabilities().atomic_line && cluster.protocol() != Protocol::RTX;
    has_others || matches!(scheme, None | Some(ReadScheme::Checksum))
}

fn never_torn<const N: usize>(cluster: &Cluster, scheme: ReadScheme) {
    if !has(cluster, Some(scheme)) {
        return;
    }
    let options = TableOptions::for_rows(3).read_scheme(scheme);
    let rows = table(cluster, &format!("{scheme:?} {N}"), options, Words::<N>::all(0));
    // With these two, each turn asks a memory node's CPU, which has no core of its own here.
    let asks = [Protocol::GTS, Protocol::FORD_GLOBAL].contains(&cluster.protocol());
    let many = if is_long() { 1_500 } else { 250 / if asks { 3 } else { 1 } };
    threads(cluster, |thread, worker| {
        worker.run(async |coroutine, session| {
            for turn in 0..turns(many) {
                let key = session.lane().random() % 3;
                let run = session.transact(async |tx| {
                    let row = rows.get(tx, key).await?.unwrap();
                    assert!(row.is_whole(), "{scheme:?}: {row:?}");
                    if coroutine % 2 == 0 {
                        rows.update(tx, key, Words::all(thread << 32 | turn)).await?;
                    }
                    Ok(())
                });
                assert!(matches!(run.await, Ok(()) | Err(Error::Aborted(_))));
            }
        });
    });
    let (_, found) = look(cluster, &rows);
    assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0), "{scheme:?}");
}

fn money_is_conserved_between_threads(protocol: Protocol) {
    const ACCOUNTS: u64 = 12;
    let cluster = embedded(protocol, 3);
    let accounts = table(&cluster, "accounts", TableOptions::for_rows(ACCOUNTS), Words([1_000]));
    let committed = threads(&cluster, |_, worker| {
        let counts = worker.run(async |_, session| {
            let mut count = 0;
            for turn in 0..turns(300) {
                let random = session.lane().random();
                let (from, to) = (random % ACCOUNTS, (random >> 8) % ACCOUNTS);
                if turn % 8 == 0 {
                    let sum = session.transact(async |tx| read(tx, &accounts, 0..ACCOUNTS).await);
                    match sum.await {
                        Ok(sum) => assert_eq!(sum, 1_000 * ACCOUNTS),
                        Err(error) => assert!(matches!(error, Error::Aborted(_)), "{error}"),
                    }
                } else if from != to {
                    let done = session.transact(async |tx| transfer(tx, &accounts, from, to).await).await;
                    assert!(matches!(done, Ok(()) | Err(Error::Aborted(_))));
                    count += u64::from(done.is_ok());
                }
            }
            count
        });
        counts.into_iter().sum::<u64>()
    });
    assert!(committed.iter().all(|count| *count > turns(500)), "{committed:?}");
    let (rows, found) = look(&cluster, &accounts);
    assert_eq!(rows.iter().map(|row| row.0[0]).sum::<u64>(), 1_000 * ACCOUNTS);
    assert_eq!((found.records, found.locked, found.torn, found.differing_lines), (ACCOUNTS, 0, 0, 0));
}

// --- Ends that nobody planned.

/// An unlock that waits for another round before it is sent must not wait for the next transaction.
fn who_rests_has_nothing_on_its_way(protocol: Protocol) {
    for seed in seeds(0..10) {
        let (cluster, _fabric) = options(protocol, 3).open_seeded(seed).unwrap();
        let rows = table(&cluster, "rows", TableOptions::for_rows(2), Words::<1>::all(1));
        let mut worker = worker(&cluster, 1, seed);
        worker.block_on(async |session| {
            session.transact(async |tx| rows.update(tx, 1, Words::all(2)).await).await.unwrap();
        });
        assert_eq!(worker.sessions()[0].lane().background(), 0);
        assert_eq!(look(&cluster, &rows).1.locked, 0);
    }
}

fn a_panic_leaves_no_lock(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 3) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(4), Words([0]));
        let mut worker = worker(&cluster, 3, 1);
        for _ in 0..3 {
            let run = catch_unwind(AssertUnwindSafe(|| {
                worker.run(async |client, session| {
                    for _ in 0..5 {
                        let run = session.transact(async |tx| {
                            add(tx, &rows, 0..4, 4).await?;
                            others_run().await;
                            assert!(client != 1, "as planned");
                            Ok(())
                        });
                        assert!(matches!(run.await, Ok(()) | Err(Error::Aborted(_))));
                    }
                });
            }));
            assert!(run.is_err());
            quiet(&mut worker);
            let (values, found) = look(&cluster, &rows);
            assert_eq!(found.locked, 0);
            assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
        }
        // Usable again.
        let sum = worker.block_on(async |session| session.transact(async |tx| read(tx, &rows, 0..4).await).await);
        assert_eq!(sum.unwrap() % 4, 0);
        assert!(worker.drain().unwrap());
        assert_eq!(look(&cluster, &rows).1.differing_lines, 0);
    }
}

fn a_transaction_dropped_anywhere_leaves_no_trace_or_is_finished(protocol: Protocol) {
    const ACCOUNTS: u64 = 6;
    const LAPS: u64 = 10;
    // Where the commit is awaited, some are dropped that have committed.
    let passive = match protocol {
        Protocol::Ford(ford) => ford.background_release,
        Protocol::Occ(primitives) => primitives.passive,
        _ => true,
    };
    let (mut finished_late, mut in_doubt, seeds) = (0, 0, seeds(0..10));
    for seed in seeds.clone() {
        let (cluster, fabric) = seeded(protocol, 3, seed);
        let accounts = table(&cluster, "accounts", TableOptions::for_rows(ACCOUNTS), Words([1_000]));
        // Alone the steps between two polls are fewest.
        let mut worker = worker(&cluster, if seed % 2 == 0 { 1 } else { 3 }, seed);
        // Client 0 is dropped after 0, 1, 2 ... polls, until it is not dropped any more; the others
        // go on meanwhile.
        let (over, cut) = (Cell::new(false), Cell::new(0));
        let told = Observed::by(&mut worker.sessions()[0]);
        worker.run(async |client, session| {
            let (mut polls, mut laps) = (0, 0);
            while !over.get() {
                let random = session.lane().random();
                let (from, to) = (random % ACCOUNTS, (random + 1 + (random >> 32) % (ACCOUNTS - 1)) % ACCOUNTS);
                let options = TransactionOptions::default().attempts(200);
                let run = session.transact_with(options, async |tx| transfer(tx, &accounts, from, to).await);
                let run = cut_off(run, if client == 0 { polls } else { usize::MAX }).await;
                assert!(matches!(run, None | Some(Ok(()))), "seed {seed}: {run:?}");
                if client == 0 {
                    cut.set(cut.get() + u64::from(run.is_none()));
                    (polls, laps) = if run.is_none() { (polls + 1, laps) } else { (0, laps + 1) };
                    over.set(laps == LAPS);
                    assert!(polls < 3_000, "seed {seed}: a lock is left that nobody releases");
                }
            }
        });
        assert!(worker.drain().unwrap());
        // Every attempt is told, once, and truly: no ring has been wrapped, so what was logged is
        // still there.
        let logged = |id| (0..NODES).any(|node| is_logged(&fabric, NodeId(node), id));
        let told = told.0.take();
        for (id, outcome, _) in &told {
            match outcome {
                Outcome::Committed | Outcome::Unknown => {
                    assert!(!keeps_logs(protocol) || logged(*id), "seed {seed}: {id} {outcome:?}")
                }
                _ => assert!(!logged(*id), "seed {seed}: {id} {outcome:?}"),
            }
        }
        let of = |wanted| told.iter().filter(|(_, outcome, _)| *outcome == wanted).count();
        assert!(of(Outcome::Aborted(Abort::Dropped)) > 0, "seed {seed}");
        in_doubt += of(Outcome::Unknown);
        let finished = of(Outcome::Committed) as u64;
        assert!(if passive { finished == LAPS } else { finished >= LAPS }, "{finished}");
        finished_late += finished - LAPS;
        assert!(cut.get() > LAPS * 5, "the drops must reach every await, not only {}", cut.get());
        assert!(worker.drain().unwrap());
        fabric.settle_services();
        let (rows, found) = look(&cluster, &accounts);
        assert_eq!(rows.iter().map(|row| row.0[0]).sum::<u64>(), 1_000 * ACCOUNTS, "seed {seed}");
        assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0), "seed {seed}");
    }
    assert!(passive || finished_late > 0 || seeds.clone().count() == 1);
    assert!(in_doubt > 0 || seeds.count() == 1, "some are dropped when their log is on its way");
}

/// The keys whose primary is at a node.
fn keys_of(rows: &remora::Table<u64, Words<1>>, count: u64, node: u16) -> Vec<u64> {
    (0..count).filter(|key| rows.untyped().shard_replicas(shard_of(rows, *key))[0].node.0 == node).collect()
}

fn a_node_that_fails_is_named(protocol: Protocol) {
    for cluster in on_every_fabric(protocol, 1) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words([0]));
        let [zero, one] = [0, 1].map(|node| keys_of(&rows, 64, node));
        let mut workers = worker(&cluster, 2, 1);
        workers.block_on(async |session| session.transact(async |tx| read(tx, &rows, 0..64).await).await).unwrap();
        cluster.fabric().fail(NodeId(1));
        workers.run(async |_, session| {
            for turn in 0..4 {
                let lost = session.transact(async |tx| add(tx, &rows, one[turn]..one[turn] + 1, 1).await);
                match lost.await {
                    Err(Error::Unavailable(error)) => {
                        assert_eq!((error.node, error.fault), (NodeId(1), Fault::Unreachable));
                        assert!(Error::Unavailable(error).to_string().contains("node 1"));
                    }
                    other => panic!("{other:?}"),
                }
                // Half of it lives elsewhere: all or nothing.
                let half = session.transact(async |tx| transfer(tx, &rows, zero[turn], one[turn]).await);
                assert!(matches!(half.await, Err(Error::Unavailable(error)) if error.node == NodeId(1)));
                // Transactions that do not need the node go on.
                let key = zero[turn + 4];
                let others = session.transact(async |tx| add(tx, &rows, key..key + 1, 1).await);
                assert!(matches!(others.await, Ok(()) | Err(Error::Aborted(_))));
            }
        });
        let read = workers.block_on(async |session| {
            let keys = zero.iter().copied();
            let mut sum = 0;
            for key in keys {
                sum += session.transact(async |tx| read(tx, &rows, key..key + 1).await).await?;
            }
            Ok::<_, Error>(sum)
        });
        assert_eq!(read.unwrap(), 2 * 4, "what was with the lost node is not written, and not locked");
    }
}

/// A node fails after every step of a transaction that needs it. The client gets an answer, and the
/// answer is true.
fn a_node_that_fails_at_any_step(protocol: Protocol) {
    let (mut committed, mut unavailable, mut unknown) = (0, 0, 0);
    for polls in 0..140 {
        let (cluster, fabric) = seeded(protocol, 3, polls);
        let rows = table(&cluster, "rows", TableOptions::for_rows(16), Words([0]));
        let mut workers = worker(&cluster, 1, polls);
        let result = workers.block_on(async |session| {
            let write = session.transact(async |tx| {
                add(tx, &rows, 0..4, 4).await?;
                Ok(tx.id())
            });
            let mut write = std::pin::pin!(write);
            if let Some(done) = cut_off(write.as_mut(), polls as usize).await {
                return done;
            }
            cluster.fabric().fail(NodeId((polls % 3) as u16));
            write.await
        });
        match result {
            Ok(id) => {
                committed += 1;
                // Known to the other participants at least.
                let alive = (0..NODES).map(NodeId).filter(|node| u64::from(node.0) != polls % 3);
                if keeps_logs(protocol) {
                    assert!(alive.into_iter().any(|node| is_logged(&fabric, node, id)));
                } else if protocol != Protocol::RTX {
                    let replicas = (0..4).flat_map(|key| replicas_of(&fabric, &rows, key));
                    let mut survivors = replicas.filter(|(node, _)| u64::from(node.0) != polls % 3);
                    assert!(survivors.all(|(_, words)| Version::from_bits(words[1]).0.to_bits() == 4));
                }
            }
            Err(Error::Unavailable(error)) => {
                unavailable += 1;
                assert_eq!((u64::from(error.node.0), error.fault), (polls % 3, Fault::Unreachable));
            }
            Err(Error::Unknown(id)) => {
                unknown += 1;
                // Some backup may apply the entry. No other transaction may come in between, so the
                // locks stay.
                quiet(&mut workers);
                for key in 0..4 {
                    let (node, words) = replicas_of(&fabric, &rows, key).remove(0);
                    let holder = LockWord::from_bits(words[0]).holder();
                    assert!(u64::from(node.0) == polls % 3 || holder == Some(id));
                }
            }
            Err(error) => panic!("{error}"),
        }
        crash(workers, &fabric);
    }
    assert!(committed > 0 && unavailable > 0 && unknown > 0, "{committed} {unavailable} {unknown}");
}

/// The answer to a log is lost. The client goes on with records of other nodes, but the entry stays
/// in its ring, because recovery will need it. When the ring has no room left beside the entry, the
/// client's transactions fail, and it has to connect again.
fn an_entry_in_doubt_is_kept(protocol: Protocol) {
    if protocol == Protocol::RTX {
        return; // its logs lie in no ring
    }
    let mut in_doubt = 0;
    for polls in 0..140 {
        let (cluster, fabric) = seeded(protocol, 1, polls);
        let rows = table(&cluster, "rows", TableOptions::for_rows(64), Words::<64>::all(0));
        let of_shard = |shard| (0..64).filter(|key| shard_of(&rows, *key) == shard).collect::<Vec<_>>();
        let (at_first, at_second) = (of_shard(0), of_shard(1));
        let mut workers = worker(&cluster, 1, polls);
        let add = async |tx: &mut remora::Transaction<'_, '_>, keys: &[u64]| {
            let slots: Vec<_> = keys.iter().map(|key| tx.want(&rows, *key)).collect();
            tx.fetch().await?;
            slots.into_iter().try_for_each(|slot| slot.get_mut(tx).map(|row| row.0[0] += 1))
        };
        let id = workers.block_on(async |session| {
            let write = session.transact(async |tx| add(tx, &[at_first[0], at_second[0]]).await);
            let mut write = std::pin::pin!(write);
            if cut_off(write.as_mut(), polls as usize).await.is_some() {
                return None;
            }
            cluster.fabric().fail(NodeId(1));
            match write.await {
                Err(Error::Unknown(id)) => Some(id),
                _ => None,
            }
        });
        let Some(id) = id.filter(|id| is_logged(&fabric, NodeId(0), *id)) else {
            crash(workers, &fabric);
            continue;
        };
        in_doubt += 1;
        let ended = workers.block_on(async |session| {
            for turn in 1..1_000 {
                let keys = [at_first[1 + turn % 5]];
                if let Err(error) = session.transact(async |tx| add(tx, &keys).await).await {
                    return Some(error);
                }
            }
            None
        });
        // One undo entry takes the place of the other behind it, but redo entries queue.
        let full = matches!(ended, Some(Error::Limit(Reason { cause: Limit::LogInDoubt, .. })));
        assert!(if keeps_logs(protocol) { full } else { ended.is_none() }, "{ended:?}");
        assert!(is_logged(&fabric, NodeId(0), id), "the entry in doubt was overwritten");
        crash(workers, &fabric);
        if in_doubt == 2 {
            return;
        }
    }
    panic!("no step leaves a transaction in doubt whose entry is at the other node: {in_doubt}");
}

/// A client loses its access after every step of a transaction. If the transaction is reported as
/// committed, all backups will have it. If it is reported as not committed, none will. A lost
/// answer says neither.
fn a_client_that_is_revoked_at_any_step(protocol: Protocol) {
    const ROWS: u64 = 420;
    for seed in seeds(0..if is_long() { 2 } else { 1 }) {
        let options = options(protocol, 3).node_bytes(16 << 20);
        let (cluster, fabric) = options.open_seeded(seed).unwrap();
        let rows = table(&cluster, "rows", TableOptions::for_rows(ROWS), Words([0]));
        let of = &rows;
        let of_shard = |shard| (0..ROWS).filter(move |key| shard_of(of, *key) == shard);
        let (mut committed, mut unavailable, mut unknown) = (0, 0, 0);
        // No slot is given back here, and shared locks name the clients of few slots.
        let steps = if protocol.spec().locks_reads { SharedLock::CLIENTS_MAX as usize - 1 } else { usize::MAX };
        for (step, (one, two)) in of_shard(0).zip(of_shard(1)).enumerate().take(steps) {
            // So that it can be looked at from outside.
            let mut reader = worker(&cluster, 1, 1);
            reader.block_on(async |session| {
                let find = session.transact(async |tx| Ok((rows.get(tx, one).await?, rows.get(tx, two).await?)));
                find.await.unwrap();
            });
            assert!(reader.drain().unwrap());
            drop(reader);
            let mut worker = worker(&cluster, 1, seed + step as u64);
            let client = worker.incarnations().next().unwrap();
            fabric.revoke_after(ClientId(client), step as u64);
            let last = Cell::new(None);
            let result = worker.block_on(async |session| {
                let write = session.transact(async |tx| {
                    last.set(Some(tx.id()));
                    transfer_like(tx, &rows, one, two).await
                });
                write.await
            });
            crash(worker, &fabric);
            fabric.settle_services();
            let id = last.get().unwrap();
            let nodes: Vec<_> = [one, two].into_iter().flat_map(|key| participants(&rows, key)).collect();
            let logged = nodes.iter().filter(|node| is_logged(&fabric, **node, id)).count();
            let applied = [one, two].into_iter().flat_map(|key| replicas_of(&fabric, &rows, key).split_off(1));
            let applied = applied.filter(|(_, words)| Version::from_bits(words[1]).0.to_bits() == 4).count();
            let expected = if keeps_logs(protocol) { nodes.len() } else { logged };
            if protocol == Protocol::RTX {
                // Others finish or undo what the client has left.
                let mut reader = self::worker(&cluster, 1, 1);
                let both = reader.block_on(async |session| {
                    let read = session.transact(async |tx| Ok([rows.get(tx, one).await?, rows.get(tx, two).await?]));
                    read.await.unwrap().map(|row| row.unwrap().0[0])
                });
                match result {
                    Ok(()) => (committed, _) = (committed + 1, assert_eq!(both, [1, 1], "seed {seed}, step {step}")),
                    Err(Error::Fenced) => {
                        (unavailable, _) = (unavailable + 1, assert_eq!(both, [0, 0], "seed {seed}, step {step}"));
                    }
                    Err(Error::Unknown(_)) => {
                        (unknown, _) = (unknown + 1, assert_eq!(both[0], both[1], "seed {seed}, step {step}"));
                    }
                    Err(error) => panic!("{error}"),
                }
                continue;
            }
            match result {
                Ok(()) => {
                    committed += 1;
                    assert_eq!((logged, applied), (expected, 4), "seed {seed}, step {step}: committed");
                }
                Err(Error::Fenced) => {
                    unavailable += 1;
                    assert_eq!((logged, applied), (0, 0), "seed {seed}, step {step}: not committed");
                }
                Err(Error::Unknown(unsure)) => {
                    unknown += 1;
                    assert_eq!(unsure, id);
                }
                Err(error) => panic!("{error}"),
            }
        }
        // Under `rtx` one verb decides, which has come or has not.
        let some_unknown = unknown > 0 || protocol == Protocol::RTX;
        assert!(committed > 0 && unavailable > 0 && some_unknown, "{committed} {unavailable} {unknown}");
    }
}

async fn transfer_like(
    tx: &mut remora::Transaction<'_, '_>,
    rows: &remora::Table<u64, Words<1>>,
    one: u64,
    two: u64,
) -> Result<(), Error> {
    let both = [tx.want(rows, one), tx.want(rows, two)];
    tx.fetch().await?;
    both.into_iter().try_for_each(|slot| slot.get_mut(tx).map(|row| row.0[0] += 1))
}

/// Large entries fill a ring in a few transactions; it is reused while the appliers follow.
fn rings_are_reused_lap_after_lap(protocol: Protocol) {
    for (cluster, turns) in on_every_fabric(protocol, 3).into_iter().zip([400, 40, 100, 100]) {
        let rows = table(&cluster, "rows", TableOptions::for_rows(8), Words::<700>::all(0));
        let mut worker = worker(&cluster, 2, 1);
        worker.run(async |client, session| {
            for turn in 0..turns {
                let key = session.lane().random() % 8;
                let value = Words::all(client as u64 * 1000 + turn);
                let write = session.transact(async |tx| rows.update(tx, key, value).await);
                assert!(matches!(write.await, Ok(()) | Err(Error::Aborted(_))));
            }
        });
        assert!(worker.drain().unwrap());
        let (_, found) = look(&cluster, &rows);
        assert_eq!((found.locked, found.torn, found.differing_lines), (0, 0, 0));
    }
}
