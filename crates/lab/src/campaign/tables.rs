//! The tables of a run, for any of its workloads.

use remora::admin::Inspection;
use remora::{Cluster, Error, Session};
use remora_fabric::sim::Sim;
use remora_workload::smallbank::{Customers, SmallBank};
use remora_workload::tatp::{self, Subscribers, Tatp};
use remora_workload::tpcc::{self, Room, Scale, Tpcc};
use remora_workload::tpce::{self, Tpce};
use remora_workload::ycsb::{self, Mix, Size, Ycsb};
use remora_workload::{After, Invariant, Prng, Setting, Workload};

use super::case::{ARCHIVE, ATTEMPTS, CANCEL, Case, Load};
use super::gateways::{self, Gateways};
use super::nodes::NODES;
use super::races::Races;
use super::ranges::Ranges;
use super::recording::Recording;
use super::registers::Registers;

/// Bytes of a memory node, except for TPC-C and TPC-E.
const NODE_BYTES: usize = 12 << 20;

/// The tables of a workload.
pub(super) enum Tables {
    SmallBank(SmallBank),
    Tatp(Tatp),
    Tpcc(Box<Tpcc>),
    Tpce(Box<Tpce>),
    Ycsb(Ycsb),
    Registers(Registers),
    Ranges(Box<Ranges>),
    Race(Box<Races>),
    Redis(Box<Gateways>),
}

/// What a coroutine remembers of its transactions.
#[derive(Default)]
pub(super) struct Ledgers {
    bank: <SmallBank as Workload>::Ledger,
    tatp: <Tatp as Workload>::Ledger,
    tpcc: <Tpcc as Workload>::Ledger,
    tpce: <Tpce as Workload>::Ledger,
    ycsb: <Ycsb as Workload>::Ledger,
    /// The number of the coroutine's handle of a RACE hash table.
    race: Option<usize>,
    /// The coroutine's client of Redis.
    redis: Option<Box<gateways::Client>>,
}

impl Tables {
    pub(super) fn load(
        case: &Case,
        cluster: &Cluster,
        sim: &Sim,
        recording: &Recording,
        random: &mut Prng,
    ) -> Result<Tables, String> {
        let tables = match case.load {
            Load::SmallBank => SmallBank::load(cluster, Customers::new(case.keys.max(2), 0.1, 0.7))
                .map(|bank| Tables::SmallBank(bank.with_attempts(ATTEMPTS))),
            Load::Tatp => {
                let subscribers = Subscribers::new((case.keys / 10).max(1) as u32);
                Tatp::load(cluster, subscribers, case.seed).map(|tatp| Tables::Tatp(tatp.with_attempts(ATTEMPTS)))
            }
            Load::Tpcc => {
                let (scale, room) = supplier(case);
                Tpcc::load(cluster, scale, room, case.seed, |_| ())
                    .map(|tpcc| Tables::Tpcc(Box::new(tpcc.with_attempts(ATTEMPTS))))
            }
            Load::Tpce => {
                let (scale, room) = market(case);
                Tpce::load(cluster, scale, room, case.seed)
                    .map(|tpce| Tables::Tpce(Box::new(tpce.with_attempts(ATTEMPTS))))
            }
            Load::Ycsb => {
                let size = Size { records: case.keys, inserts: 8 * case.transactions, value_bytes: 128, ordered: None };
                let mix = Mix { operations: 2, ..Mix::named("d").ok_or("no such mix")? };
                Ycsb::load(cluster, size).map(|ycsb| Tables::Ycsb(ycsb.with_mix(mix).with_attempts(ATTEMPTS)))
            }
            Load::Registers => Registers::load(cluster, case.keys, case.has(CANCEL), random).map(Tables::Registers),
            Load::Ranges => Ranges::load(cluster, case.keys, case.has(CANCEL), random)
                .map(|ranges| Tables::Ranges(Box::new(ranges))),
            Load::Race => Races::load(case, cluster, sim, random).map(|races| Tables::Race(Box::new(races))),
            Load::Redis => Gateways::load(cluster, case.keys, recording.file.clone())
                .map(|gateways| Tables::Redis(Box::new(gateways))),
        };
        tables.map_err(|error| error.to_string())
    }

    /// Reads every record.
    pub(super) async fn read_all(&self, session: &mut Session) -> Result<(), Error> {
        match self {
            Tables::SmallBank(bank) => bank.warm(session, 0, 1).await,
            Tables::Tatp(tatp) => tatp.warm(session, 0, 1).await,
            Tables::Tpcc(tpcc) => tpcc.warm(session, 0, 1).await,
            Tables::Tpce(tpce) => tpce.warm(session, 0, 1).await,
            Tables::Ycsb(ycsb) => ycsb.warm(session, 0, 1).await,
            Tables::Registers(registers) => registers.read_all(session).await,
            Tables::Ranges(ranges) => ranges.read_all(session).await,
            Tables::Race(races) => races.read_all(session).await,
            Tables::Redis(gateways) => gateways.read_all(session).await,
        }
    }

    pub(super) async fn transact(
        &self,
        session: &mut Session,
        random: &mut Prng,
        ledgers: &mut Ledgers,
    ) -> Result<(), Error> {
        match self {
            Tables::SmallBank(bank) => bank.transact(session, random, &mut ledgers.bank).await,
            Tables::Tatp(tatp) => {
                let (kind, _) = tatp::Kind::MIX[random.below(tatp::Kind::MIX.len() as u64) as usize];
                tatp.run(session, kind, random, &mut ledgers.tatp).await
            }
            Tables::Tpcc(tpcc) => {
                let (kind, _) = tpcc::Kind::MIX[random.below(tpcc::Kind::MIX.len() as u64) as usize];
                tpcc.run(session, kind, random, &mut ledgers.tpcc).await
            }
            Tables::Tpce(tpce) => {
                let (kind, _) = tpce::Kind::MIX[random.below(tpce::Kind::MIX.len() as u64) as usize];
                tpce.run(session, kind, random, &mut ledgers.tpce).await
            }
            Tables::Ycsb(ycsb) => {
                let kinds = ycsb::Kind::OF_ONE_RECORD;
                let kind = kinds[random.below(kinds.len() as u64) as usize];
                ycsb.run(session, kind, random, &mut ledgers.ycsb).await
            }
            Tables::Registers(registers) => registers.transact(session, random).await,
            Tables::Ranges(ranges) => ranges.transact(session, random).await,
            Tables::Race(races) => races.transact(session, random, &mut ledgers.race).await,
            Tables::Redis(gateways) => gateways.transact(session, random, &mut ledgers.redis).await,
        }
    }

    /// Whether the run has shown an error, so that nothing that comes later matters.
    pub(super) fn are_wrong(&self) -> bool {
        match self {
            Tables::Race(races) => races.wrong().is_some(),
            Tables::Redis(gateways) => gateways.wrong().is_some(),
            _ => false,
        }
    }

    /// Checks the invariants when no client runs any more and all dead clients are recovered.
    pub(super) fn invariants(
        &self,
        cluster: &Cluster,
        ledgers: Vec<Ledgers>,
        settled: bool,
        unknown: u64,
    ) -> Result<Vec<Invariant>, Error> {
        match self {
            Tables::SmallBank(bank) => {
                let ledgers: Vec<_> = ledgers.into_iter().map(|ledger| ledger.bank).collect();
                bank.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
            }
            Tables::Tatp(tatp) => {
                let ledgers: Vec<_> = ledgers.into_iter().map(|ledger| ledger.tatp).collect();
                tatp.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
            }
            Tables::Tpcc(tpcc) => {
                let ledgers: Vec<_> = ledgers.into_iter().map(|ledger| ledger.tpcc).collect();
                tpcc.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
            }
            Tables::Tpce(tpce) => {
                let ledgers: Vec<_> = ledgers.into_iter().map(|ledger| ledger.tpce).collect();
                tpce.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
            }
            Tables::Ycsb(ycsb) => {
                let ledgers: Vec<_> = ledgers.into_iter().map(|ledger| ledger.ycsb).collect();
                ycsb.invariants(cluster, After { ledgers: &ledgers, settled, unknown })
            }
            Tables::Registers(registers) => Ok(vec![whole(&registers.inspect(cluster)?, settled)]),
            Tables::Ranges(ranges) => {
                let (tables, faults) = ranges.inspect(cluster)?;
                let holds = Some(faults.is_empty());
                let trees = Invariant { name: "ordered tables are trees", holds, detail: faults.join(", ") };
                Ok(vec![whole(&tables, settled), trees])
            }
            Tables::Race(races) => Ok(races.invariants()),
            Tables::Redis(gateways) => Ok(gateways.invariants()),
        }
    }
}

/// Returns the invariant that tables of every workload are whole.
fn whole(tables: &[Inspection], settled: bool) -> Invariant {
    let wrong = |table: &Inspection| table.locked + table.torn + table.differing_lines;
    let holds = Some(settled && tables.iter().map(wrong).sum::<u64>() == 0);
    Invariant { name: "replicas are identical and no lock is held", holds, detail: format!("{tables:?}") }
}

/// Returns TPC-C's size: about as many customers as there are keys, and room for more orders than a
/// run makes.
fn supplier(case: &Case) -> (Scale, Room) {
    let customers = (case.keys / 4).clamp(5, 3_000) as u16;
    (Scale::small(2, 2, customers, case.keys.max(20) as u32), Room::for_orders(8 * case.transactions))
}

/// Returns the size of TPC-E's tables: few customers, and room for more trades than a run makes.
fn market(case: &Case) -> (tpce::Scale, tpce::Room) {
    let customers = (case.keys / 10).clamp(1, 1_000) as u32;
    let scale = tpce::Scale { customers, securities: (case.keys / 2).clamp(1, 685) as u32 };
    (scale, tpce::Room { trades: 8 * case.transactions })
}

pub(super) fn node_bytes(case: &Case, replicas: u8) -> usize {
    // Where nodes fail, other nodes get their shards.
    // Tables of objects have blocks in reserve.
    let times = if case.loses_nodes() || case.protocol.discipline().is_repairable() { 2 } else { 1 };
    // Spare clients count as well, and so does the janitor.
    let (workers, coroutines) = (2 * case.clients as u64 + 1, case.coroutines as u64);
    let setting = Setting { memory_nodes: NODES, replicas, workers, coroutines, archive: Some(ARCHIVE) };
    let of_a_node = match case.load {
        Load::Tpcc => {
            let (scale, room) = supplier(case);
            Tpcc::node_bytes(&scale, room, &setting, case.protocol) as usize
        }
        Load::Tpce => {
            let (scale, room) = market(case);
            Tpce::node_bytes(&scale, room, &setting, case.protocol) as usize
        }
        // Values that are stored apart have room for many.
        Load::Redis => 4 * NODE_BYTES,
        _ => NODE_BYTES,
    };
    times * of_a_node
}
