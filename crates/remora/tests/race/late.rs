//! A split that has lost its lock, step by step: a client takes the lock, another one takes it away
//! and splits the subtable, and the swap of a delete lands in the array that is dead by then.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use remora::floors::txn::Rtx;
use remora::floors::txn::mutant::{self, Mutant};
use remora::protocol::Protocol;
use remora::{Cluster, RaceOptions, WorkerOptions};

use crate::support::others_run;

const KEY: &[u8] = b"key";

/// Drives a future by some steps. Returns its output if it is ready by then.
async fn steps<T>(future: &mut (impl Future<Output = T> + Unpin), mut left: usize) -> Option<T> {
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        context.waker().wake_by_ref();
        Pin::new(&mut *future).poll(context).map(Some)
    })
    .await
}

/// A delete stops after some steps, and after some more. A split stops after some steps, and ends
/// when the delete has stopped for the second time.
fn play([first, second, split]: [usize; 3]) -> Result<(), String> {
    let suspicious = Protocol::Rtx(Rtx { suspicion_ns: 0, ..Rtx::USUAL });
    let cluster = Cluster::embedded().protocol(suspicious).nodes(1).node_bytes(8 << 20).open().unwrap();
    let race = cluster.create_race("table", RaceOptions::default().rows(1).shards(1).groups(2)).unwrap();
    let mut worker = cluster.worker(WorkerOptions::default().coroutines(3).yield_after_rounds(true)).unwrap();
    let stage = Cell::new(0);
    let until = async |wanted: u32| {
        while stage.get() < wanted {
            others_run().await;
        }
    };
    let next = || stage.set(stage.get() + 1);
    let told = worker.run(async |client, session| match client {
        0 => {
            assert!(race.insert(session, KEY, b"value").await.unwrap());
            next();
            until(3).await;
            let mut delete = pin!(race.delete(session, KEY));
            let mut ended = steps(&mut delete, first).await;
            next();
            until(6).await;
            if ended.is_none() {
                ended = steps(&mut delete, second).await;
            }
            next();
            until(8).await;
            let was_there = match ended {
                Some(done) => done,
                None => delete.await,
            };
            was_there.unwrap()
        }
        1 => {
            until(1).await;
            race.get(session, KEY).await.unwrap();
            next();
            until(4).await;
            let mut slow = pin!(race.split(session, KEY));
            let ended = steps(&mut slow, split).await;
            next();
            until(7).await;
            if ended.is_none() {
                slow.await.unwrap();
            }
            next();
            true
        }
        _ => {
            until(2).await;
            race.get(session, KEY).await.unwrap();
            next();
            until(5).await;
            while !race.split(session, KEY).await.unwrap() {}
            next();
            true
        }
    });
    let found = worker.block_on(async |session| race.get(session, KEY).await.unwrap());
    match (told[0], found) {
        (true, None) => Ok(()),
        told => Err(format!("{first}, {second} and {split} steps: {told:?}")),
    }
}

fn play_all() -> Result<(), String> {
    let mut all =
        (1..6).flat_map(|first| (0..5).flat_map(move |second| (1..6).map(move |split| [first, second, split])));
    all.try_for_each(play)
}

#[test]
fn a_delete_that_lands_in_a_dead_array_is_done_again() {
    play_all().unwrap();
}

#[test]
fn a_split_that_marks_without_its_lock_is_noticed() {
    mutant::set(Some(Mutant::RaceMarkUnlocked));
    let noticed = play_all();
    mutant::set(None);
    assert!(noticed.is_err());
}
