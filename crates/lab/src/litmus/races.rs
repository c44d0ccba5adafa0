//! The litmus programs of RACE hash tables: operations on a key while its subtable is split, by a
//! client that is alive, slow or dead.
//!
//! The last client of each program does nothing while the orders are explored. At the end it looks
//! at the table, as any client would: it repairs the locks that it meets.

use remora::floors::fabric::seeded::explore::Exploration;
use remora::floors::index::race::{Hash, WINDOW_SLOTS};
use remora::floors::txn::{Put, Rtx, Stop};
use remora::protocol::Protocol;

use super::stage::{Actor, Broken, Explored, RACE_GROUPS, RaceName, Said, Scene, Stage, check};

type Outcome = Exploration<Broken>;

/// The protocol of clients that suspect whatever they meet.
const SUSPICIOUS: Protocol = Protocol::Rtx(Rtx { suspicion_ns: 0, ..Rtx::USUAL });

const KEY: &[u8] = b"key";

fn within(runs_max: u64) -> Explored {
    Explored { runs_max, ..Explored::default() }
}

/// Returns a key that takes the slot which [`KEY`] would take, if it comes first.
fn key_in_the_way() -> Vec<u8> {
    let place = |key: &[u8]| {
        let hash = Hash::of(key);
        let windows = hash.windows(RACE_GROUPS);
        let (window, slot) = hash.free_slot(windows, [&[0; WINDOW_SLOTS]; 2])?;
        Some(windows[window].first_slot() + slot)
    };
    let keys = (0u64..).map(|number| number.to_le_bytes().to_vec());
    keys.into_iter().find(|key| place(key) == place(KEY)).expect("there are few slots")
}

/// Changes the key's value. Returns the number 1 if the key was there, 0 if not, and nothing if the
/// outcome is unknown.
async fn put(actor: &mut Actor, table: &RaceName, value: u8, how: Put) -> Said {
    let race = actor.race(table);
    said(actor.session.race_put(&race, KEY, &[value], how).await)
}

async fn delete(actor: &mut Actor, table: &RaceName) -> Said {
    let race = actor.race(table);
    said(actor.session.race_delete(&race, KEY).await)
}

/// Deletes the key that is in the way.
async fn clear_the_way(actor: &mut Actor, table: &RaceName) -> Said {
    let race = actor.race(table);
    said(actor.session.race_delete(&race, &key_in_the_way()).await)
}

async fn split(actor: &mut Actor, table: &RaceName) -> Said {
    let race = actor.race(table);
    said(actor.session.race_split(&race, KEY).await)
}

/// Returns the key's value, and 0 if it is absent.
async fn get(actor: &mut Actor, table: &RaceName) -> Option<u64> {
    let race = actor.race(table);
    let mut found = 0;
    let mut visit = |value: &[u8]| found = value.first().copied().unwrap_or_default().into();
    let got = actor.session.race_get(&race, KEY, &mut visit).await;
    said(got).map(|_| found)
}

fn said(result: Result<bool, Stop>) -> Said {
    match result {
        Ok(was_there) => Some(vec![was_there.into()]),
        Err(Stop::Abort(_) | Stop::Unknown(_)) => None,
        Err(stop) => panic!("a litmus program meets contention only, not: {stop}"),
    }
}

/// Fills the table: with another key, and with this value of the key if it is not 0.
async fn fill(actor: &mut Actor, table: &RaceName, value: u8) {
    let race = actor.race(table);
    said(actor.session.race_put(&race, &key_in_the_way(), &[9], Put::Insert).await);
    if value != 0 {
        put(actor, table, value, Put::Insert).await;
    }
}

/// Looks at the key's value when all is over, as the last client.
fn look(scene: &Scene<'_>, table: &RaceName) -> Option<u64> {
    scene.run_as_last(async |actor| get(actor, table).await)
}

fn judge_update(scene: &Scene<'_>, table: &RaceName) -> Result<(), Broken> {
    let value = look(scene, table);
    let is_right = match &scene.said[0] {
        Some(_) => value == Some(2),
        None => matches!(value, Some(1 | 2)),
    };
    check(is_right, || format!("client 0 was told {:?}, and the value is {value:?}", scene.said[0]))
}

/// Explores what two clients do, on a table that both have used. At first the key has this value,
/// if it is not 0.
fn both_know(
    (by, marks, value): (Protocol, bool, u8),
    explored: &Explored,
    first: impl AsyncFn(&mut Actor, &RaceName) -> Said,
    second: impl AsyncFn(&mut Actor, &RaceName) -> Said,
    judge: impl Fn(&Scene<'_>, &RaceName) -> Result<(), Broken>,
) -> Outcome {
    let mut stage = Stage::new(1, &[by, Protocol::RTX, SUSPICIOUS]);
    let table = stage.race(marks);
    stage.explore(
        explored,
        async |client, actor| match client {
            0 => fill(actor, &table, value).await,
            1 => _ = get(actor, &table).await,
            _ => {}
        },
        async |client, actor| match client {
            0 => first(actor, &table).await,
            1 => second(actor, &table).await,
            _ => None,
        },
        |scene| judge(scene, &table),
    )
}

async fn update_key(actor: &mut Actor, table: &RaceName) -> Said {
    put(actor, table, 2, Put::Update).await
}

/// Explores an update beside a split, which the first client suspects, or does not.
fn update_beside_split(by: Protocol, marks: bool, runs_max: u64) -> Outcome {
    both_know((by, marks, 1), &within(runs_max), update_key, split, judge_update)
}

/// Explores an update beside a split.
pub(super) fn update(_: Protocol, runs_max: u64) -> Outcome {
    update_beside_split(Protocol::RTX, true, runs_max)
}

/// Explores an update beside a split, in a table without marks.
pub(super) fn update_without_marks(_: Protocol, runs_max: u64) -> Outcome {
    update_beside_split(Protocol::RTX, false, runs_max)
}

/// Explores an update beside a split, which the first client suspects and undoes.
pub(super) fn suspicious_update(_: Protocol, runs_max: u64) -> Outcome {
    update_beside_split(SUSPICIOUS, true, runs_max)
}

/// Explores an update by a client that has not used the table before, beside a split.
pub(super) fn first_update(_: Protocol, runs_max: u64) -> Outcome {
    let mut stage = Stage::new(1, &[Protocol::RTX, Protocol::RTX, SUSPICIOUS]);
    let table = stage.race(true);
    stage.explore(
        &within(runs_max),
        async |client, actor| {
            if client == 1 {
                fill(actor, &table, 1).await;
            }
        },
        async |client, actor| match client {
            0 => update_key(actor, &table).await,
            1 => split(actor, &table).await,
            _ => None,
        },
        |scene| judge_update(scene, &table),
    )
}

/// Explores an update beside a client that splits the subtable, and then replaces what the update
/// has installed, if it finds that.
fn replaced(marks: bool, runs_max: u64) -> Outcome {
    both_know(
        (Protocol::RTX, marks, 1),
        &within(runs_max),
        update_key,
        async |actor, table| {
            split(actor, table).await;
            if get(actor, table).await != Some(2) {
                return None;
            }
            put(actor, table, 3, Put::Update).await
        },
        |scene, table| {
            let value = look(scene, table);
            let is_replaced = scene.said[1].is_some();
            check(!is_replaced || value == Some(3), || format!("2 was replaced by 3, and the value is {value:?}"))
        },
    )
}

/// Explores an update that another client replaces when a split has copied it.
pub(super) fn replaced_update(_: Protocol, runs_max: u64) -> Outcome {
    replaced(true, runs_max)
}

/// Explores an update that another client replaces when a split has copied it, in a table without
/// marks.
pub(super) fn replaced_update_without_marks(_: Protocol, runs_max: u64) -> Outcome {
    replaced(false, runs_max)
}

/// Explores a reader that reads beside a split, and once more when an update of the new half was
/// reported.
pub(super) fn read_what_was_reported(_: Protocol, runs_max: u64) -> Outcome {
    both_know(
        (Protocol::RTX, true, 1),
        &within(runs_max),
        async |actor, table| {
            split(actor, table).await;
            let said = update_key(actor, table).await;
            actor.report();
            said
        },
        async |actor, table| {
            get(actor, table).await;
            actor.reported(1).await;
            get(actor, table).await.map(|value| vec![value])
        },
        |scene, _| {
            let is_right = scene.said[0].is_none() || scene.said[1].as_deref().is_none_or(|seen| seen == [2]);
            check(is_right, || format!("{:?} was read after the report", scene.said[1]))
        },
    )
}

/// Checks that the table has the key at most once: after one delete, it is absent.
fn judge_once(scene: &Scene<'_>, table: &RaceName, is_there: Option<bool>) -> Result<(), Broken> {
    let (first, second) = scene.run_as_last(async |actor| (delete(actor, table).await, get(actor, table).await));
    check(second == Some(0), || format!("after a delete, which returned {first:?}, the value is {second:?}"))?;
    let expected = is_there.map(|is_there| vec![u64::from(is_there)]);
    check(expected.is_none() || first == expected, || format!("a delete returned {first:?}, not {expected:?}"))
}

/// Explores two inserts of one key, which choose different slots: one of the clients has deleted
/// the key that was in the way before.
pub(super) fn two_inserts(_: Protocol, runs_max: u64) -> Outcome {
    both_know(
        (Protocol::RTX, true, 0),
        &within(runs_max),
        async |actor, table| put(actor, table, 1, Put::Insert).await,
        async |actor, table| {
            clear_the_way(actor, table).await?;
            put(actor, table, 2, Put::Insert).await
        },
        |scene, table| {
            let inserted = scene.said.iter().filter(|said| said.as_deref() == Some(&[0])).count();
            let gave_up = scene.said[..2].iter().filter(|said| said.is_none()).count();
            check(inserted <= 1 && inserted + gave_up > 0, || format!("the clients were told {:?}", scene.said))?;
            judge_once(scene, table, (gave_up == 0).then_some(true))
        },
    )
}

/// Explores the death, at any time, of a client that splits the subtable. Another client updates a
/// key there, and must not be kept from that.
pub(super) fn dead_splitter(_: Protocol, runs_max: u64) -> Outcome {
    let explored = Explored { crash: Some(1), ..within(runs_max) };
    both_know((SUSPICIOUS, true, 1), &explored, update_key, split, |scene, table| {
        check(scene.said[0].is_some(), || "a client was kept from its key".into())?;
        judge_update(scene, table)
    })
}
