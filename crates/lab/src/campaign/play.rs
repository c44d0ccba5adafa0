//! Plays the workload of a run while its faults happen.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use remora::admin::Controller;
use remora::floors::node::Grows;
use remora::{Cluster, Error, Session, Worker};
use remora_fabric::sim::{Driven, Ended, FaultKind, Sim};
use remora_fabric::{ClientId, Nanos, probes};
use remora_workload::Prng;

use super::cancel;
use super::case::{CANCEL, Case, GROW, Load, Ran};
use super::nodes::Memory;
use super::tables::{Ledgers, Tables};

/// The time between two looks of a spare client whether it is needed.
const SPARE_LOOKS: Nanos = 20_000;
/// The virtual time within which every coroutine must commit again after the faults are over.
pub(super) const LIVENESS: Nanos = 50_000_000;
/// The virtual time after which a run is given up. Operations on one key take less.
const RUN: Nanos = 4_000_000_000;
const RUN_OF_RACE: Nanos = 100_000_000;
/// The virtual time after the last fault in which its consequences may still show. Filling a log
/// ring takes longer.
const AFTERMATH: Nanos = 1_000_000;
const STALL_AFTERMATH: Nanos = 9_000_000;

/// A client that takes part in the workload, with its worker.
pub(super) struct Client {
    pub(super) worker: Worker,
    pub(super) lives: Rc<dyn Fn() -> Vec<u32>>,
    /// Whether the client first waits until it has to take the place of a client that is gone.
    pub(super) spare: bool,
    /// Whether the client was taken for dead and has found that out.
    pub(super) fenced: Cell<bool>,
}

impl Client {
    pub(super) fn is_gone(&self, sim: &Sim) -> bool {
        self.fenced.get() || is_dead(sim, &*self.lives)
    }
}

pub(super) fn is_dead(sim: &Sim, lives: &dyn Fn() -> Vec<u32>) -> bool {
    lives().iter().any(|client| sim.is_dead(ClientId(*client)))
}

/// A guard that counts a coroutine of the workload as gone when it is dropped.
struct Leaves<'c>(&'c Cell<usize>);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// The result of playing a workload.
pub(super) struct Played {
    pub(super) ledgers: Vec<Ledgers>,
    pub(super) ended: Ended,
    /// A client and its coroutine that has not committed since the faults were over, if there is
    /// one.
    pub(super) stuck: Option<(usize, usize)>,
}

/// Makes one of the tables larger. Returns whether it is larger now. A client that fails learns why
/// with its next transaction, and another client continues what it has begun.
async fn grow(cluster: &Cluster, session: &mut Session, random: &mut Prng) -> bool {
    let catalog = cluster.catalog();
    let tables: Vec<_> =
        catalog.tables.iter().filter(|table| table.is_there() && table.spec.grows == Grows::ByItself).collect();
    let Some(table) = tables.get(random.below(tables.len().max(1) as u64) as usize) else { return false };
    let rows = table.spec.rows_that_fit() + 1 + random.below(100);
    session.grow_table(&table.spec.name, rows).await.is_ok()
}

/// Runs the workload until enough transactions have committed, the faults are over, and every
/// remaining coroutine has committed since.
pub(super) fn play(
    case: &Case,
    cluster: &Cluster,
    memory: &Memory<'_>,
    tables: &Tables,
    clients: &mut [Client],
    controllers: &mut [Controller],
    counts: &RefCell<Ran>,
) -> Result<Played, String> {
    let sim = memory.sim;
    let began = sim.now();
    let longest = if case.load == Load::Race { RUN_OF_RACE } else { RUN };
    let stuck = Cell::new(None);
    // The time at which the last fault was seen to have happened.
    let calm_from = Cell::new(None);
    let is_over = |now: Nanos| {
        memory.tend();
        // If a lost node held nothing, no copy is made, and faults at that probe never happen.
        if sim.waiting() == sim.waiting_for(probes::COPIES) && calm_from.get().is_none() {
            let stalled = case.has("stall");
            // A partitioned node may be unreachable until the partition is over.
            let over = sim.injected().iter().fold(now, |over, fault| match fault.kind {
                FaultKind::Isolate(time, _) => over.max(fault.at + time),
                _ => over,
            });
            calm_from.set(Some(over + if stalled { STALL_AFTERMATH } else { AFTERMATH }));
        }
        let calm = calm_from.get().is_some_and(|calm| now > calm || case.faults.is_empty());
        let enough = counts.borrow().committed >= case.transactions;
        (calm && enough && memory.is_whole()) || now - began > longest || tables.are_wrong()
    };
    let mut workers = Vec::new();
    let mut others = Vec::new();
    for Client { worker, lives, spare, fenced } in clients {
        workers.push(worker);
        others.push((lives.clone(), *spare, &*fenced));
    }
    let is_due = |name: &'static str, done: &Cell<usize>| {
        let told = || sim.injected().iter().filter(|fault| fault.kind == FaultKind::Told(name)).count();
        let is_due = case.has(name) && told() > done.get();
        done.set(done.get() + usize::from(is_due));
        is_due
    };
    let (cancelled, grown) = (Cell::new(0), Cell::new(0));
    let is_cancelled = || is_due(CANCEL, &cancelled);
    let is_to_grow = || is_due(GROW, &grown);
    let gone = || others.iter().filter(|(lives, _, fenced)| fenced.get() || is_dead(sim, &**lives)).count();
    let left: Vec<Cell<usize>> = workers.iter().map(|_| Cell::new(0)).collect();
    let bodies: Vec<_> = (0..workers.len())
        .map(|client| {
            let (stuck, is_over, gone, others, left) = (&stuck, &is_over, &gone, &others, &left[client]);
            let (is_cancelled, is_to_grow) = (&is_cancelled, &is_to_grow);
            let first = (client * case.coroutines) as u64;
            async move |coroutine: usize, session: &mut Session| {
                let _leaves = Leaves(left);
                let mut random = Prng::derive(case.seed, first + coroutine as u64);
                let mut ledgers = Ledgers::default();
                let (_, spare, fenced) = &others[client];
                while *spare && gone() <= client - case.clients {
                    if is_over(session.lane().now()) {
                        return Ok(ledgers);
                    }
                    session.lane().sleep(SPARE_LOOKS).await;
                }
                let mut over_from = None;
                loop {
                    let now = session.lane().now();
                    if over_from.is_none() && is_over(now) {
                        over_from = Some(now);
                    }
                    if is_to_grow() && grow(cluster, session, &mut random).await {
                        counts.borrow_mut().grown += 1;
                    }
                    let transact = tables.transact(session, &mut random, &mut ledgers);
                    let done = cancel::unless(is_cancelled, transact).await;
                    if let (Some(Ok(())), Load::Race) = (&done, case.load) {
                        counts.borrow_mut().committed += 1;
                    }
                    match done {
                        None => {}
                        Some(Ok(()) | Err(Error::User(_))) if over_from.is_some() => break,
                        Some(Ok(()) | Err(Error::User(_) | Error::Aborted(_) | Error::Unknown(_))) => {}
                        Some(Err(Error::Fenced)) => {
                            fenced.set(true);
                            break;
                        }
                        Some(Err(error)) => return Err(error),
                    }
                    if over_from.is_some_and(|from| session.lane().now() - from > LIVENESS) {
                        stuck.set(Some((client, coroutine)));
                        break;
                    }
                    session.lane().yield_now().await;
                }
                Ok(ledgers)
            }
        })
        .collect();
    let mut runs: Vec<_> = workers.into_iter().zip(&bodies).map(|(worker, body)| worker.start(body)).collect();
    let mut watching = Vec::new();
    for controller in controllers {
        let (id, others, left) = (ClientId(controller.incarnation()), &others, &left);
        // No live client takes part in the workload any more.
        let over = move || {
            let mut players = others.iter().zip(left);
            players.all(|((lives, ..), left)| left.get() == case.coroutines || is_dead(sim, &**lives))
        };
        watching.push((id, controller.start(over)));
    }
    let ended = {
        let ids = |lives: &dyn Fn() -> Vec<u32>| lives().into_iter().map(ClientId).collect();
        let driven = runs.iter_mut().zip(&others).map(|(run, (lives, ..))| Driven { clients: ids(&**lives), run });
        let mut driven: Vec<Driven<'_>> = driven.collect();
        driven.extend(watching.iter_mut().map(|(id, run)| Driven { clients: vec![*id], run }));
        sim.run(&mut driven, Some(began + longest + 10 * LIVENESS))
    };
    drop(watching);
    let results: Vec<_> = runs.into_iter().flat_map(remora_fabric::Run::finish).collect();
    let ledgers = results.into_iter().collect::<Result<Vec<_>, Error>>().map_err(|error| format!("failed: {error}"))?;
    Ok(Played { ledgers, ended, stuck: stuck.get() })
}
