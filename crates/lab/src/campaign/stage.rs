//! The stage of a run: a simulated cluster with its tables, clients and controllers, and the
//! planned faults.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use remora::admin::Controller;
use remora::protocol::{Ford, Protocol, Rtx, Validation};
use remora::{Cluster, WorkerOptions};
use remora_fabric::Nanos;
use remora_fabric::sim::{Deployment, Profile, Sim, SimOptions};
use remora_workload::Prng;

use crate::cluster::as_the_texts;

use super::case::{ARCHIVE, Case, GROW, Load};
use super::faults::plan;
use super::nodes::{CONTROLLERS, NODES, Nodes};
use super::play::Client;
use super::recording::Recording;
use super::tables::{Tables, node_bytes};

/// How long a client may be silent until others take it for dead. `None` means for ever.
const LEASES: [Option<Nanos>; 4] = [None, Some(150_000), Some(400_000), Some(3_000_000)];
/// How long clients meet a lock before they repair it, in nanoseconds, if their protocol repairs
/// locks.
const SUSPICIONS: [Nanos; 3] = [20_000, 200_000, 8_000_000];
/// Of fewer keys, every coroutine may need one that is locked.
const FEW_KEYS: u64 = 16;
/// Bytes of a version cache: one bucket, which drops nearly everything; some buckets; or more than
/// a run ever fills.
const VCACHES: [usize; 3] = [64, 512, 1 << 20];

/// Everything that a run needs before its workload begins. It takes no virtual time until then.
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    pub(super) sim: Sim,
    pub(super) nodes: Nodes,
    pub(super) tables: Tables,
    pub(super) recording: Recording,
    pub(super) clients: Vec<Client>,
    pub(super) controllers: Vec<Controller>,
}

impl Stage {
    /// Sets the stage of a case. Its seed makes every choice.
    pub(super) fn set(case: &Case) -> Result<Stage, String> {
        let mut random = Prng::derive(case.seed, 0xca5e);
        let random = &mut random;
        let (sim_options, fails) = (simulation(case, random)?, case.loses_nodes());
        let replicas = [3, 2, 1][random.below(if fails { 2 } else { 3 }) as usize];
        let replicas = replicas.min(case.protocol.discipline().copies_max() as u8);
        let nodes = Nodes::of(case, replicas);
        let options = Cluster::embedded()
            .nodes(nodes.count)
            .spares(nodes.count - NODES)
            .replicas(replicas)
            .node_bytes(node_bytes(case, replicas))
            .protocol(case.protocol);
        let simulated = options.open_simulated(&sim_options);
        let (cluster, sim) = simulated.map_err(|error| error.to_string())?;
        let lease = lease(case, random);
        let cluster = cluster.with_lease(lease);
        if case.protocol.validation() == Validation::Local {
            cluster.version_cache(VCACHES[random.below(VCACHES.len() as u64) as usize]);
        }
        let recording = Recording::new();
        let tables = Tables::load(case, &cluster, &sim, &recording, random)?;
        let file = recording.file.clone();
        let cluster = cluster.with_rollbacks_told(Arc::new(move |rollback| file.rollback(rollback)));
        let clients = clients(case, &cluster, &sim, &recording, lease.is_some(), random)?;
        let mut controllers = Vec::new();
        for number in 0..if fails { CONTROLLERS } else { 0 } {
            sim.place(case.places() + number);
            controllers.push(cluster.controller().map_err(|error| error.to_string())?);
        }
        plan(case, &nodes, &sim, lease.is_some(), random)?;
        Ok(Stage { cluster, sim, nodes, tables, recording, clients, controllers })
    }
}

/// Draws the options of the simulation.
fn simulation(case: &Case, random: &mut Prng) -> Result<SimOptions, String> {
    let profile = Profile::named("connectx4").ok_or("no profile")?;
    Ok(SimOptions {
        stretch: [0.0, 0.02, 0.1, 0.3][random.below(4) as usize],
        deployment: if random.below(2) == 0 { Deployment::Disaggregated } else { Deployment::Symmetric },
        // Tables are drawn that rely on whole lines.
        ..as_the_texts(profile, case.seed)
    })
}

/// Draws the lease of the clients. `None` if they have none.
fn lease(case: &Case, random: &mut Prng) -> Option<Duration> {
    let lease = LEASES[random.below(LEASES.len() as u64) as usize];
    // All clients need the upper nodes of a tree. If a dead client has locked one, and no client
    // recovers it, all of them stop. A table grows only when every client knows of the growth, or
    // is dead, and tables of gateways grow by themselves. Of few keys, a dead client can have
    // locked one that all others want.
    let all_stop = matches!(case.load, Load::Ranges | Load::Redis) || case.keys < FEW_KEYS;
    let needed = all_stop && case.has("crash") || case.loses_nodes() || case.has(GROW) || case.load == Load::Redis;
    let longest = LEASES.into_iter().flatten().max().filter(|_| needed);
    lease.or(longest).map(Duration::from_nanos)
}

/// Connects the clients of a run. With leases, also connects their spares: one for each client that
/// is taken for dead.
fn clients(
    case: &Case,
    cluster: &Cluster,
    sim: &Sim,
    recording: &Recording,
    leases: bool,
    random: &mut Prng,
) -> Result<Vec<Client>, String> {
    // Presets that agree on what changes lock words run together.
    let presets = Protocol::ALL.into_iter().filter(|one| one.is_serializable());
    let presets: Vec<_> = presets.filter(|one| one.accepts(case.protocol.discipline())).collect();
    let mixed = random.below(4) == 0;
    let spares = if leases { case.clients } else { 0 };
    let mut clients = Vec::new();
    for number in 0..case.clients + spares {
        sim.place(number);
        let protocol = if mixed { presets[random.below(presets.len() as u64) as usize] } else { case.protocol };
        // With every other seed, a transaction fixes its time early as soon as it only reads a
        // record, and with every fourth one, snapshots always ask for clocks.
        let protocol = match protocol {
            Protocol::Ford(ford) if ford.timed && case.seed % 2 == 1 => {
                Protocol::Ford(Ford { guards_max: 0, known_clocks: case.seed % 4 == 1, ..ford })
            }
            // The sooner clients suspect others, the more often they are wrong.
            Protocol::Rtx(rtx) => {
                Protocol::Rtx(Rtx { suspicion_ns: SUSPICIONS[case.seed as usize % SUSPICIONS.len()], ..rtx })
            }
            other => other,
        };
        let options = WorkerOptions::default().coroutines(case.coroutines).archive(ARCHIVE).seed(random.next_u64());
        let cluster = cluster.with_protocol(protocol);
        // Commands of Redis' clients are answered with an error when a table is full.
        let cluster = if case.load == Load::Redis { cluster.with_growth_in_turn() } else { cluster };
        let worker = cluster.worker(options);
        let mut worker = worker.map_err(|error| error.to_string())?;
        worker.sessions().iter_mut().enumerate().for_each(|(lane, session)| recording.watch(lane, session));
        let lives = Rc::new(worker.lives());
        clients.push(Client { worker, lives, spare: number >= case.clients, fenced: Cell::new(false) });
    }
    Ok(clients)
}
