//! Tests of the reproduced experiments, on a small cluster. Transactions are correct whichever
//! primitives their phases use. A system that is much better in the text is better on the small
//! cluster, too.

use std::cell::Cell;
use std::time::Duration;

use remora::protocol::Protocol;
use remora::{Cluster, Session, TableOptions, WorkerOptions};
use remora_fabric::sim::{Cpu, Driven, Ended, Profile, SimOptions};
use remora_fabric::{Assumed, ClientId};
use remora_lab::reproduce::drtm_h::{Scale, reproduce};
use remora_lab::reproduce::{Reproduction, Row, dst, ford, kv, latches, multi_object, rtx, trees, xstore};

fn row<'a>(done: &'a Reproduction, name: &str) -> &'a Row {
    done.rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name:?}"))
}

fn assert_as_said(done: &Reproduction, names: &[&str]) {
    for name in names {
        assert_eq!(row(done, name).direction_holds, Some(true), "{:?}", row(done, name));
    }
}

/// Returns the virtual time of a transaction that changes two records, in nanoseconds. `work` is
/// what the software does for a record, in nanoseconds, by phase.
fn time_of_an_update(protocol: Protocol, work: [f64; 4]) -> u64 {
    let mut profile = Profile::named("connectx4").expect("a profile");
    let [execution_ns, validation_ns, logging_ns, commit_ns] = work;
    profile.cpu = Cpu { execution_ns, validation_ns, logging_ns, commit_ns, ..profile.cpu };
    let hardware = SimOptions { assume: Assumed::AS_THE_TEXTS, ..SimOptions::new(profile, 1) };
    let options = Cluster::embedded().node_bytes(16 << 20).protocol(protocol);
    let (cluster, sim) = options.open_simulated(&hardware).expect("a cluster");
    let rows = cluster.create_table("rows", TableOptions::for_rows(8)).expect("a table");
    cluster.load(&rows, (0..2).map(|key: u64| (key, 0u64))).expect("rows");
    let took = Cell::new(0);
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(1)).expect("a worker");
    let clients = worker.incarnations().map(ClientId).collect();
    let body = async |_: usize, session: &mut Session| {
        // The first transaction learns where the records are.
        for _ in 0..2 {
            let began = session.lane().now();
            let add = session.transact(async |tx| {
                let (one, other) = (tx.want(&rows, 0), tx.want(&rows, 1));
                tx.fetch().await?;
                *one.get_mut(tx)? += 1;
                *other.get_mut(tx)? += 1;
                Ok::<_, remora::Error>(())
            });
            add.await.expect("no other client");
            session.lane().sleep(1).await;
            took.set(session.lane().now() - began);
        }
    };
    let mut run = worker.start(&body);
    sim.instant(false);
    assert_eq!(sim.run(&mut [Driven { clients, run: &mut run }], None), Ended::Finished);
    took.get()
}

#[test]
fn the_software_of_a_phase_works_for_each_record() {
    for protocol in Protocol::ALL.into_iter().filter(|one| one.is_serializable()) {
        let idle = time_of_an_update(protocol, [0.0; 4]);
        for (phase, work) in [(0, 1_000.0), (1, 2_000.0), (2, 4_000.0), (3, 8_000.0)] {
            let mut all = [0.0; 4];
            all[phase] = work;
            let more = time_of_an_update(protocol, all) - idle;
            let two_records = 2 * work as u64;
            // A part of the commit's work overlaps with what the client awaits behind the commit.
            // FORD also has rounds under way, which it awaits later, while it executes.
            let overlaps = phase == 3 || matches!(protocol, Protocol::Ford(_));
            let least = if overlaps { work as u64 + 1 } else { two_records };
            assert!((least..=two_records).contains(&more), "{}, phase {phase}: {more}", protocol.name());
        }
    }
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn directions_hold_on_a_small_cluster() {
    let done = reproduce(&Scale::quick(1), &|_, _| ()).expect("a simulation");
    assert_eq!(done.violated, Vec::<String>::new());
    let robust = [
        "E: cached READ over RPC, at most",
        "E: RPC over uncached READ, at most",
        "L: WRITE over RPC, at most",
        "C without passive ACK: WRITE over RPC, at most",
        "passive ACK of WRITEs: gain, at most",
        "passive ACK of RPCs: gain, at most",
        "scaling from 2 to 4 machines, over linear",
        "coroutines: peak over one",
        "DrTM+H over FaSST, peaks",
    ];
    assert_as_said(&done, &robust);
    // Every figure that is off has an explanation.
    let unexplained: Vec<&Row> = done.rows.iter().filter(|row| row.is_off() && row.note.is_none()).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
    let svg = done.plot().expect("an SVG");
    assert!(["drtm-h", "drtm-r", "farm", "fasst"].iter().all(|preset| svg.contains(preset)));
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn ford_has_its_round_trips_and_fewer_than_its_baselines() {
    let done = ford::reproduce(&ford::Scale::quick(1), &|_, _| ()).expect("a simulation");
    assert_eq!(done.violated, Vec::<String>::new());
    let robust = [
        "SmallBank: FORD over farm-one-sided, throughput, 2 x 2",
        "SmallBank: FORD over farm-one-sided, median latency, 2 x 2",
        "SmallBank: FORD over drtm-h-one-sided, throughput, 2 x 2",
        "SmallBank: FORD over drtm-h-one-sided, median latency, 2 x 2",
        "ford, round trips of an update",
        "drtm-h-one-sided, round trips of an update",
        "farm-one-sided, round trips of an update",
        "ford, round trips of an update that also only reads",
        "ford-local, round trips of an update that also only reads",
        "ford-local, round trips of two reads",
        "TATP: FORD-LV over ford, throughput, 2 x 2",
        "SmallBank: FORD-LV over ford, throughput, 2 x 2",
        "SmallBank, one thread: best over one transaction in flight",
        "WRITEs lost to 10 READs beside 10 WRITEs",
        "key-value, alone: lock held, farm-one-sided over drtm-h-one-sided",
    ];
    assert_as_said(&done, &robust);
    let ours = |name: &str| row(&done, name).ours;
    // 20,000 draws of 10,240 keys. Each first draw of a key misses, and no other draw does.
    let draws = ford::Scale::quick(1).micro.transactions as f64;
    let missed = ours("address cache, uniform, 10k keys: misses") / 100.0 * draws;
    assert_eq!((ours("address cache, uniform, 10k keys: addresses in it") * 1e6 / 16.0).round(), missed.round());
    let expected = 10_240.0 * (1.0 - (1.0 - 1.0 / 10_240.0_f64).powf(draws));
    assert!((missed / expected - 1.0).abs() < 0.01, "{missed} misses, {expected} expected");
    // FARM validates between lock and log. FORD holds locks from its first round on.
    let held = |protocol: &str| ours(&format!("key-value, alone, 100 % updates: lock held, {protocol}"));
    let least = held("drtm-h-one-sided");
    assert!(least > 4.0 && held("farm-one-sided") > 1.1 * least && held("ford") > 1.1 * held("farm-one-sided"));
    let unexplained: Vec<&Row> = done.rows.iter().filter(|row| row.is_off() && row.note.is_none()).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
    assert!(done.plot().expect("an SVG").contains("drtm-h-one-sided"));
}

/// Simulations of TPC-C and TPC-E that are too short for figures: all systems run, and each figure
/// that is not as published has its reason.
#[test]
fn all_times_of_commits_are_compared() {
    let measure = Duration::from_micros(300);
    let scale = dst::Scale { nodes: 3, threads: 1, coroutines: vec![2], measure, ..dst::Scale::quick(1) };
    let done = dst::reproduce(&scale, &|_, _| ()).expect("a simulation");
    assert_eq!(done.violated, Vec::<String>::new());
    assert_eq!(done.runs.len(), 10);
    assert!(done.runs.iter().all(|run| run.throughput > 0.0), "{:?}", done.runs);
    let unexplained: Vec<&Row> = done.rows.iter().filter(|row| row.is_off() && row.note.is_none()).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn designs_of_trees_cost_their_round_trips() {
    let done = trees::reproduce(&trees::Scale::quick(1), &|_, _| ()).expect("a simulation");
    assert_eq!(done.violated, Vec::<String>::new());
    let round_trips = |design: &str| row(&done, &format!("{design}, round trips of a lookup")).ours;
    let designs = ["coarse, two-sided", "hybrid", "fine, one-sided", "fine, remembered"];
    assert_eq!(designs.map(round_trips), [1.0, 2.0, 5.0, 1.0]);
    let robust = [
        "coarse, two-sided over fine, one-sided, lookups, 128 clients",
        "hybrid over fine, one-sided, lookups, 128 clients",
        "coarse, two-sided over hybrid, lookups, 4 clients",
        "coarse, two-sided, lookups, 128 clients: skewed over even",
        "fine, one-sided, ranges of 200, 128 clients: skewed over even",
        "hybrid, ranges of 20000, 16 clients: skewed over even",
        "fine, one-sided over hybrid, ranges of 20000, 16 clients",
        "hybrid over fine, one-sided, 5 % inserts, 16 clients",
        "median latency of coarse over fine, lookups, 4 clients",
    ];
    assert_as_said(&done, &robust);
    let unexplained: Vec<&Row> = done.rows.iter().filter(|row| row.is_off() && row.note.is_none()).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
    assert!(done.plot().expect("an SVG").contains("hybrid"));
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn repairs_cost_what_the_text_says_and_survivors_go_on() {
    let done = rtx::reproduce(&rtx::Scale::quick(1), &|_, _| ()).expect("a simulation");
    assert_eq!(done.violated, Vec::<String>::new());
    let count = |system: &str, what: &str| row(&done, &format!("an insert by {system}: {what}")).ours.round();
    let counts = ["Optimal", "DTX", "rTX"].map(|system| (count(system, "round trips"), count(system, "atomics")));
    assert_eq!(counts, [(2.0, 2.0), (4.0, 2.0), (3.0, 3.0)]);
    let robust = [
        "YCSB A: rTX over Optimal",
        "YCSB A, skewed: rTX over Optimal",
        "YCSB A, skewed: rTX over DTX",
        "YCSB A, one client: latency of rTX over Optimal",
        "inserts: DTX over Optimal",
        "inserts: rTX over rTX without early locks",
        "kill under Optimal: survivors' last millisecond over their usual one",
        "kill under rTX: survivors' last millisecond over their usual one",
        "a RACE table grows: the longest insert of a survivor after the kill",
    ];
    assert_as_said(&done, &robust);
    let unexplained: Vec<&Row> = done.rows.iter().filter(|row| row.is_off() && row.note.is_none()).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
    assert!(done.plot().expect("an SVG").contains("Optimal"));
}

/// Under the protocol without logs, no change of two records is lost or half done as long as all
/// clients live.
#[test]
fn locks_without_logs_are_serializable_while_all_clients_live() {
    const ROWS: u64 = 8;
    const CHANGES: u64 = 50;
    let profile = Profile::named("connectx4").expect("a profile");
    let hardware = SimOptions { assume: Assumed::AS_THE_TEXTS, ..SimOptions::new(profile, 1) };
    let options = Cluster::embedded().replicas(1).node_bytes(16 << 20).protocol(Protocol::NATIVE);
    let (cluster, sim) = options.open_simulated(&hardware).expect("a cluster");
    let rows = cluster.create_table("rows", TableOptions::for_rows(ROWS)).expect("a table");
    cluster.load(&rows, (0..ROWS).map(|key| (key, 0u64))).expect("rows");
    let attempts = Cell::new(0);
    let body = async |coroutine: usize, session: &mut Session| {
        for number in 0..CHANGES {
            let one = (number * 3 + coroutine as u64) % ROWS;
            let other = (one + 1 + number % (ROWS - 1)) % ROWS;
            let add = session.transact(async |tx| {
                attempts.set(attempts.get() + 1);
                let [mut one, mut other] = rows.get_many_mut(tx, [one, other]).await?;
                *one += 1;
                *other += 1;
                Ok::<_, remora::Error>(())
            });
            add.await.expect("no client dies");
        }
    };
    let options = WorkerOptions::default().coroutines(4);
    let mut workers: Vec<_> = (0..3).map(|_| cluster.worker(options).expect("a worker")).collect();
    let clients: Vec<Vec<ClientId>> =
        workers.iter().map(|worker| worker.incarnations().map(ClientId).collect()).collect();
    let mut runs: Vec<_> = workers.iter_mut().map(|worker| worker.start(&body)).collect();
    let mut driven: Vec<Driven<'_>> =
        runs.iter_mut().zip(clients).map(|(run, clients)| Driven { clients, run }).collect();
    sim.instant(false);
    assert_eq!(sim.run(&mut driven, None), Ended::Finished);
    drop(driven);
    drop(runs);
    sim.instant(true);
    let sum = workers[0].block_on(async |session| {
        let all = session.transact(async |tx| {
            let mut sum = 0;
            for key in 0..ROWS {
                sum += rows.get(tx, key).await?.expect("a row");
            }
            Ok::<_, remora::Error>(sum)
        });
        all.await.expect("no client dies")
    });
    assert_eq!(sum, 3 * 4 * CHANGES * 2);
    assert!(attempts.get() > 3 * 4 * CHANGES, "no transaction was in another one's way");
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn a_learned_cache_is_as_good_as_a_whole_index_and_small() {
    let done = xstore::reproduce(&xstore::Scale::quick(1), &|_, _| ()).expect("a simulation");
    assert_eq!(done.violated, Vec::<String>::new());
    let robust = [
        "memory: learned cache over inner nodes, at most a fifth",
        "leaves READ by a lookup",
        "C uniform: learned over two-sided",
        "C uniform: learned over whole index",
        "C Zipfian: learned over two-sided",
        "one client: learned over two-sided, latency",
        "one client: learned over whole index, latency",
        "ordered table, YCSB C: learned over all leaves remembered",
        "ordered table, YCSB D: learned over all leaves remembered",
        "ordered table, YCSB E: learned over all leaves remembered",
        "ordered table, YCSB C: round trips of a read, learned",
        "ordered table, YCSB A: round trips of an update by call",
    ];
    assert_as_said(&done, &robust);
    assert_eq!(row(&done, "ordered table, YCSB C: round trips of a read, learned").ours, 2.0);
    assert!(done.plot().expect("an SVG").contains("learned, models only"));
}

#[test]
fn cluster_hashing_takes_one_read_and_a_cache_saves_most_of_them() {
    let scale = kv::Scale::quick(1);
    let done = kv::reproduce(&scale, &|_, _| ()).expect("a simulation");
    assert_eq!(done.violated, Vec::<String>::new());
    // All choices follow from the seed, so the numbers of READs are exact.
    let reads = |what: &str| (row(&done, &format!("READs, {what}")).ours * scale.counted as f64).round() as u64;
    let full = |what: &str| [50, 75, 90].map(|percent| reads(&format!("uniform, {percent} % full: {what}")));
    assert_eq!(full("Cuckoo"), [5346, 6642, 7801]);
    assert_eq!(full("Hopscotch"), [4000, 4011, 4078]);
    assert_eq!(full("cluster"), [4053, 4244, 4469]);
    assert_eq!(full("cluster, cache"), [1061, 901, 877]);
    assert_eq!(reads("uniform, warm cache: quarter"), 3040);
    let robust = [
        "READs, Zipf 0.99, 75 % full: cluster",
        "64 B, uniform: FaRM-KV/O over DrTM-KV",
        "DrTM-KV/$ over FaRM-KV/O, at most",
        "DrTM-KV/$ over Pilaf, at most",
        "16 B: DrTM-KV/$ over FaRM-KV/I",
        "2048 B: FaRM-KV/I over FaRM-KV/O",
        "2048 B: DrTM-KV over Pilaf",
    ];
    assert_as_said(&done, &robust);
    let unexplained: Vec<&Row> =
        done.rows.iter().filter(|row| row.direction_holds == Some(false) && row.note.is_none()).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
    assert!(done.plot().expect("an SVG").contains("FaRM-KV/I"));
}

#[test]
fn latches_come_to_what_their_optimizations_save() {
    let done = latches::reproduce(&latches::Scale::quick(1), &|_, _| ()).expect("a simulation");
    assert_eq!(done.violated, Vec::<String>::new());
    let robust = done
        .rows
        .iter()
        .filter(|row| ["one worker", "blocks", "records"].iter().any(|kind| row.name.starts_with(kind)));
    let off: Vec<&Row> = robust.filter(|row| row.direction_holds == Some(false)).collect();
    assert!(off.is_empty(), "{off:?}");
    // The cluster is not the text's, so only directions can be off.
    let unexplained: Vec<&Row> =
        done.rows.iter().filter(|row| row.direction_holds == Some(false) && row.note.is_none()).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
    assert!(row(&done, "latches 4104 B apart over 4096 B").ours > 2.0);
}

#[test]
fn a_request_of_several_objects_awaits_ever_fewer_rounds() {
    let done = multi_object::reproduce(&multi_object::Scale::quick(1), &|_, _| ()).expect("a simulation");
    let objects = multi_object::OBJECTS as f64;
    // Rounds awaited, and doorbells of calls. Verbs share a doorbell by node, and there are four.
    let steps = [
        ("each awaited", objects, objects),
        ("+ outstanding requests", objects, objects),
        ("+ doorbell batching", 1.0, 1.0),
        ("+ passive acknowledgement", 0.0, 1.0),
    ];
    for (access, kind, steps) in [
        ("READs", "verbs", &steps[..3]),
        ("calls that read", "calls", &steps[..3]),
        ("WRITEs", "verbs", &steps[..]),
        ("calls that write", "calls", &steps[..]),
    ] {
        for (step, awaited, doorbells) in steps {
            let count = |what: &str| row(&done, &format!("{access}, {step}: {what}")).ours;
            assert_eq!((count(kind), count("rounds awaited")), (objects, *awaited), "{access}, {step}");
            match (kind, *doorbells == objects) {
                ("verbs", false) => assert!((1.0..4.0).contains(&count("doorbells")), "{access}, {step}"),
                _ => assert_eq!(count("doorbells"), *doorbells, "{access}, {step}"),
            }
        }
    }
    let unexplained: Vec<&Row> =
        done.rows.iter().filter(|row| row.direction_holds == Some(false) && row.note.is_none()).collect();
    assert!(unexplained.is_empty(), "{unexplained:?}");
    assert!(done.plot().expect("an SVG").contains("WRITEs, + passive acknowledgement"));
}

#[test]
#[ignore = "long: a part of .ci/long"]
fn the_same_seed_gives_the_same_figures() {
    let scale = Scale { nodes: 3, threads: 1, accounts: 500, coroutines: vec![2], ..Scale::quick(7) };
    let [one, other] = [1, 2].map(|parallel| {
        let done = reproduce(&Scale { parallel, ..scale.clone() }, &|_, _| ()).expect("a simulation");
        (done.rows, done.runs)
    });
    assert_eq!(one, other, "whatever order the simulations ran in");
}
