//! Draws the faults of a run, and the times at which they happen.

use remora_fabric::sim::{FaultKind, Planned, Sim};
use remora_fabric::{Nanos, probes};
use remora_workload::Prng;

use super::case::{CANCEL, Case, DRAIN, GROW, Load};
use super::nodes::{CONTROLLERS, Nodes};
use super::races::OPERATION;

/// Returns how often a fault of this name is planned in a run that has it. A run has at most one
/// crash, because too little is left after it, and one stall, because it takes too long.
fn times(name: &str, nodes: &Nodes, random: &mut Prng) -> u64 {
    match name {
        "crash" | "stall" => 1,
        "fail" => nodes.failures,
        "isolate" => nodes.isolations,
        DRAIN => nodes.drains,
        CANCEL => 4 + random.below(12),
        _ => 1 + random.below(4),
    }
}

/// Draws the time from a probe to its fault: at once, before the packets have left, or after a
/// round trip.
fn after(random: &mut Prng) -> Nanos {
    let most = [1, 300, 4_000][random.below(3) as usize];
    random.below(most)
}

/// The longest time from the beginning of an operation on a RACE hash table to its fault.
const OPERATION_TAKES: Nanos = 16_000;

/// Plans a fault of the workload `race`: at any time of an operation, or of a split.
fn plan_in_race(case: &Case, sim: &Sim, kind: FaultKind, random: &mut Prng) {
    let planned = if random.below(3) == 0 {
        Planned { probe: probes::LOCKS, nth: 1 + random.below(4), after: after(random), kind, holding: true }
    } else {
        let (nth, after) = (10 + random.below(case.transactions / 2 + 1), random.below(OPERATION_TAKES));
        Planned { probe: OPERATION, nth, after, kind, holding: false }
    };
    sim.plan(planned);
}

/// Makes a fault of this name, and draws its times.
fn fault(case: &Case, name: &str, random: &mut Prng) -> Option<FaultKind> {
    Some(match name {
        "isolate" => {
            // The time is long enough that controllers declare the node lost, and clients lose it.
            // It concerns any of the clients, or clients only.
            let all = |places: usize| 1u64.checked_shl(places as u32).map_or(u64::MAX, |end| end - 1);
            let clients = all(case.places());
            let controllers = all(case.places() + CONTROLLERS) & !clients;
            let some = clients & random.next_u64();
            let (time, of_clients) = (2_000_000 + random.below(6_000_000), random.below(4) == 0);
            FaultKind::Isolate(time, if of_clients { some } else { some | controllers })
        }
        "crash" => FaultKind::Crash,
        "pause" => FaultKind::Pause(10_000 + random.below(500_000)),
        "delay" => FaultKind::Delay(5_000 + random.below(200_000)),
        "partition" => FaultKind::Partition(10_000 + random.below(400_000)),
        "stall" => FaultKind::Stall(6_000_000 + random.below(2_000_000)),
        "clock-step" => FaultKind::ClockStep(random.below(2_000_000_000) as i64 - 1_000_000_000),
        "lose" => FaultKind::Lose,
        "fail" => FaultKind::Fail,
        "duplicate" => FaultKind::Duplicate,
        DRAIN => FaultKind::Told(DRAIN),
        CANCEL => FaultKind::Told(CANCEL),
        GROW => FaultKind::Told(GROW),
        _ => return None,
    })
}

/// Plans the faults of a run. A run with leases may lose a second client: the recoverer of the
/// first.
pub(super) fn plan(case: &Case, nodes: &Nodes, sim: &Sim, leases: bool, random: &mut Prng) -> Result<(), String> {
    for name in &case.faults {
        for _ in 0..times(name, nodes, random) {
            let probe = [probes::LOCKS, probes::VALIDATED, probes::LOGGED, probes::INSTALLED][random.below(4) as usize];
            let nth = 10 + random.below(case.transactions / 4 + 1);
            let kind = fault(case, name, random).ok_or_else(|| format!("there is no fault {name}"))?;
            if case.load == Load::Race {
                plan_in_race(case, sim, kind, random);
                continue;
            }
            sim.plan(Planned { probe, nth, after: after(random), kind, holding: true });
        }
    }
    if leases && case.has("crash") && random.below(2) == 0 {
        let (after, kind) = (random.below(40_000), FaultKind::Crash);
        let probe = if nodes.copies_again() && random.below(2) == 0 { probes::COPIES } else { probes::REPAIRS };
        sim.plan(Planned { probe, nth: 1, after, kind, holding: false });
    }
    Ok(())
}
