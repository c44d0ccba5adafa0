//! The litmus programs of hot records: coroutines of one client stand in line, and commit together.
//!
//! Client 0 has several coroutines. Before a program begins, they have met at a record, so that it
//! has a line. The last coroutine takes the first turn, and *leads*. The others stand in line
//! behind it, until it calls them to its batch as its *members*.
//!
//! Every transaction adds an amount of its own to each of its records, as in the programs of
//! recovery, and the same judge looks at the end. It compares the records with what each coroutine
//! was told, and with what observers have heard.

use std::cell::Cell;

use remora::floors::fabric::seeded::explore::Exploration;
use remora::floors::node::ReadScheme::SingleLine;
use remora::floors::record::Version;
use remora::protocol::Protocol;

use super::recovery::{Writes, add, judge, writes};
use super::stage::{
    Actor, Answer, Broken, Explored, Row, Said, Scene, Stage, Told, amount, check, get, put, want, want_to_change,
};

type Outcome = Exploration<Broken>;

/// How long transactions are tried, in nanoseconds. It is longer than all waits for a turn or for a
/// leader together.
const PATIENCE: u64 = 1_000_000_000_000;

/// What the coroutines behind the leader do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Followers {
    /// They add their amounts.
    Add,
    /// They let others run this often between a read and a write.
    Yield(usize),
    /// They ask for their ids. So they join no batch, and each waits for a turn of its own.
    GoAlone,
}

/// A program in which the coroutines of client 0 add to the same records.
struct Program<'p> {
    rows: &'p [Row],
    coroutines: usize,
    followers: Followers,
    /// The number of records that the leader changes. It only reads the ones behind them.
    leader_changes: usize,
    /// The number of records that the leader names. Its members bring the ones behind them along.
    leader_names: usize,
    /// Whether the leader's closure waits until a coroutine behind it has ended.
    leader_waits: bool,
    /// Whether a coroutine behind the leader has ended.
    has_ended: Cell<bool>,
}

impl<'p> Program<'p> {
    fn new(coroutines: usize, rows: &'p [Row]) -> Program<'p> {
        let followers = Followers::Add;
        let [leader_changes, leader_names] = [rows.len(); 2];
        let has_ended = Cell::new(false);
        Program { rows, coroutines, followers, leader_changes, leader_names, leader_waits: false, has_ended }
    }

    /// The coroutine that leads. It has the last lane, so that its members run before it closes the
    /// batch.
    fn leader(&self) -> usize {
        self.coroutines - 1
    }

    /// Returns how many of the records a coroutine changes, from the first one on.
    fn changes(&self, coroutine: usize) -> usize {
        if coroutine == self.leader() { self.leader_changes } else { self.rows.len() }
    }

    /// Lists the transactions of client 0.
    fn writes(&self) -> Vec<Writes<'p>> {
        let rows = self.rows;
        (0..self.coroutines).map(|nth| Writes { nth, ..writes(0, &rows[..self.changes(nth)]) }).collect()
    }

    /// Has the coroutines meet at the first record, which they write as it is. Other clients look
    /// up where the records are.
    async fn meet(&self, client: usize, actor: &mut Actor) {
        self.has_ended.set(false);
        if client == 0 {
            let row = self.rows[0];
            let met = actor.together(PATIENCE, async |tx| {
                let slot = want_to_change(tx, row)?;
                tx.fetch().await?;
                // The line learns how long a turn takes.
                tx.lane().sleep(1_000).await;
                let value = get(tx, slot)?;
                put(tx, row, slot, value)
            });
            assert_eq!(met.await, Answer::Committed);
        }
        actor.look_up(self.rows).await;
    }

    /// Adds the coroutine's amount to each record that it changes.
    async fn add(&self, actor: &mut Actor) -> Said {
        let (leads, changes) = (actor.coroutine == self.leader(), self.changes(actor.coroutine));
        let amount = amount(0, actor.coroutine);
        if !leads {
            actor.session.lane().yield_now().await;
        }
        let added = actor.together(PATIENCE, async |tx| {
            if !leads && self.followers == Followers::GoAlone {
                let _ = tx.id();
            }
            let mut slots = Vec::new();
            let names = if leads { self.leader_names } else { self.rows.len() };
            for (number, row) in self.rows.iter().enumerate().take(names) {
                slots.push(if number < changes { want_to_change(tx, *row)? } else { want(tx, *row)? });
            }
            tx.fetch().await?;
            let values = slots.iter().map(|slot| get(tx, *slot)).collect::<Result<Vec<_>, _>>()?;
            match self.followers {
                Followers::Yield(times) if !leads => {
                    for _ in 0..times {
                        tx.lane().yield_now().await;
                    }
                }
                _ => {}
            }
            while leads && self.leader_waits && !self.has_ended.get() {
                tx.lane().sleep(PATIENCE / 10).await;
            }
            let mut all = self.rows.iter().zip(slots).zip(values).take(changes);
            all.try_for_each(|((row, slot), value)| put(tx, *row, slot, value + amount))
        });
        added.await;
        self.has_ended.set(self.has_ended.get() || !leads);
        None
    }

    /// Checks that every coroutine was told that it has committed.
    fn has_committed(&self, scene: &Scene<'_>) -> Result<(), Broken> {
        let committed = |told: &&Told| told.client == 0 && told.answer == Answer::Committed;
        // Observers have heard of each, and each has returned.
        let count = scene.told.iter().filter(committed).count();
        check(count == 2 * self.coroutines, || format!("not all have committed: {:?}", scene.told))
    }

    /// Checks that each change of each record is a version of its own. No other client has met at
    /// the first record.
    fn has_versions(&self, scene: &Scene<'_>) -> Result<(), Broken> {
        for (number, row) in self.rows.iter().enumerate() {
            // An amount is a bit.
            let added: u32 = scene.look(&[*row]).0.iter().map(|value| value.count_ones()).sum();
            let met = if number == 0 { self.coroutines } else { 0 };
            let newest = (0..met + added as usize).fold(Version::LOADED, |version, _| version.committed_over());
            let (version, _) = scene.replica(0, *row);
            check(version == newest.to_bits(), || format!("version {version} is there, not {newest:?}"))?;
        }
        Ok(())
    }

    /// Explores the program beside another client, which adds to one of the records.
    fn beside_another(&self, stage: &Stage, at: usize, runs_max: u64) -> Outcome {
        let others = &self.rows[at..=at];
        stage.explore(
            &Explored { runs_max, ..Explored::default() },
            async |client, actor| self.meet(client, actor).await,
            async |client, actor| if client == 0 { self.add(actor).await } else { add(actor, others).await },
            |scene| {
                let mut all = self.writes();
                all.push(writes(1, others));
                judge(scene, self.rows, &all)?;
                self.has_committed(scene)?;
                self.has_versions(scene)
            },
        )
    }

    /// Explores the program while its client is taken for dead at any time. Client 1 recovers it.
    fn taken_for_dead(&self, stage: &Stage, runs_max: u64) -> Outcome {
        stage.explore(
            &Explored { runs_max, suspicions: vec![(0, 1)], ..Explored::default() },
            async |client, actor| self.meet(client, actor).await,
            async |_, actor| self.add(actor).await,
            |scene| judge(scene, self.rows, &self.writes()),
        )
    }
}

/// Three coroutines, of which two follow, and another client.
fn followed(protocol: Protocol, followers: Followers, runs_max: u64) -> Outcome {
    const COROUTINES: usize = 3;
    let mut stage = Stage::with_coroutines(COROUTINES, 1, &[protocol; 2]);
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    Program { followers, ..Program::new(COROUTINES, &rows) }.beside_another(&stage, 0, runs_max)
}

/// Members add, and join. If the other client has changed the record, the leader aborts, and all
/// run again.
pub(super) fn members(protocol: Protocol, runs_max: u64) -> Outcome {
    followed(protocol, Followers::Add, runs_max)
}

/// All members read before any of them joins.
pub(super) fn stale_members(protocol: Protocol, runs_max: u64) -> Outcome {
    followed(protocol, Followers::Yield(1), runs_max)
}

/// Members come when the leader has closed the batch.
pub(super) fn late_members(protocol: Protocol, runs_max: u64) -> Outcome {
    followed(protocol, Followers::Yield(4), runs_max)
}

/// The leader changes one record and reads another. Its members want to change both.
pub(super) fn members_of_a_reader(protocol: Protocol, runs_max: u64) -> Outcome {
    const COROUTINES: usize = 3;
    let mut stage = Stage::with_coroutines(COROUTINES, 1, &[protocol; 2]);
    let records = stage.table(SingleLine, 1, &[0, 0]);
    let rows = [records(0), records(1)];
    Program { leader_changes: 1, ..Program::new(COROUTINES, &rows) }.beside_another(&stage, 0, runs_max)
}

/// The leader changes one record. Its member changes that one and another one, which the other
/// client changes, too.
pub(super) fn members_that_bring(protocol: Protocol, runs_max: u64) -> Outcome {
    const COROUTINES: usize = 2;
    let mut stage = Stage::with_coroutines(COROUTINES, 1, &[protocol; 2]);
    let records = stage.table(SingleLine, 1, &[0, 0]);
    let rows = [records(0), records(1)];
    let program = Program { leader_changes: 1, leader_names: 1, ..Program::new(COROUTINES, &rows) };
    program.beside_another(&stage, 1, runs_max)
}

/// The client of such a leader and its member is taken for dead at any time, and another one
/// recovers it.
pub(super) fn members_that_bring_recovered(protocol: Protocol, runs_max: u64) -> Outcome {
    const COROUTINES: usize = 2;
    let mut stage = Stage::with_coroutines(COROUTINES, 2, &[protocol; 2]).tight();
    let records = stage.table(SingleLine, 1, &[0, 0]);
    let rows = [records(0), records(1)];
    let program = Program { leader_changes: 1, leader_names: 1, ..Program::new(COROUTINES, &rows) };
    program.taken_for_dead(&stage, runs_max)
}

/// The closure that has the turn waits until another coroutine has ended, which stands in line
/// behind it.
pub(super) fn turn_that_stays(protocol: Protocol, runs_max: u64) -> Outcome {
    const COROUTINES: usize = 2;
    let mut stage = Stage::with_coroutines(COROUTINES, 1, &[protocol; 2]);
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    Program { leader_waits: true, ..Program::new(COROUTINES, &rows) }.beside_another(&stage, 0, runs_max)
}

/// The future of one of two coroutines is dropped at any time: of the leader, or of its member.
fn dropped(protocol: Protocol, coroutine: usize, runs_max: u64) -> Outcome {
    const COROUTINES: usize = 2;
    let mut stage = Stage::with_coroutines(COROUTINES, 2, &[protocol]);
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    let program = Program::new(COROUTINES, &rows);
    stage.explore(
        &Explored { runs_max, cancel: Some((0, coroutine)), ..Explored::default() },
        async |client, actor| program.meet(client, actor).await,
        async |_, actor| program.add(actor).await,
        |scene| judge(scene, &rows, &program.writes()),
    )
}

pub(super) fn dropped_leader(protocol: Protocol, runs_max: u64) -> Outcome {
    dropped(protocol, 1, runs_max)
}

pub(super) fn dropped_member(protocol: Protocol, runs_max: u64) -> Outcome {
    dropped(protocol, 0, runs_max)
}

/// Client 0 is taken for dead at any time, and client 1 recovers it.
fn recovered(protocol: Protocol, nodes: u16, coroutines: usize, followers: Followers, runs_max: u64) -> Outcome {
    let mut stage = Stage::with_coroutines(coroutines, nodes, &[protocol; 2]).tight();
    let rows = [stage.table(SingleLine, 1, &[0])(0)];
    Program { followers, ..Program::new(coroutines, &rows) }.taken_for_dead(&stage, runs_max)
}

/// What recovery decides about the leader holds for its members.
pub(super) fn members_recovered(protocol: Protocol, runs_max: u64) -> Outcome {
    recovered(protocol, 2, 3, Followers::Add, runs_max)
}

/// A coroutine of the client that is taken for dead waits in line for a turn of its own.
pub(super) fn zombie_in_line(protocol: Protocol, runs_max: u64) -> Outcome {
    recovered(protocol, 1, 2, Followers::GoAlone, runs_max)
}
