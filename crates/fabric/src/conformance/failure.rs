//! Tests of rules 2, 6 and 7 of the contract: what is refused, what fails, and what a revocation
//! stops.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Bed, Clients, Lane, Stage, client, peek, play, poke, run, settle, word};
use crate::address::{Address, NodeId, RegionId};
use crate::error::{FabricError, Fault};
use crate::ids::ClientId;
use crate::limits::{ROUND_BYTES_MAX, ROUND_VERBS_MAX};
use crate::region::Region;
use crate::round::Round;
use crate::round::cost::Cost;
use crate::transport::Handler;

const REGION: usize = 4096;
/// A multiple of 8 that is far too large for a length.
const ABSURD: usize = !7;

/// All verbs that take an address. They act on `bytes` bytes where they take a length.
const VERBS: [fn(&mut Round<'_>, Address); 4] = [
    |round, at| _ = round.read(at, 8),
    |round, at| round.write_words(at, &[7]),
    |round, at| _ = round.compare_swap(at, 0, 7),
    |round, at| _ = round.fetch_add(at, 7),
];

/// Executes a round with one verb. The round must fail.
fn refused(stage: &Stage, add: impl FnOnce(&mut Round<'_>)) -> FabricError {
    stage.on(1, async |lane| {
        let mut round = lane.round();
        add(&mut round);
        lane.execute(round).await.expect_err("the round must be refused")
    })
}

fn healthy(stage: &Stage) {
    stage.on(1, async |lane| {
        for node in 0..2 {
            peek(lane, word(node, 0), REGION / 8).await;
        }
    });
}

/// An access that leaves its region is refused. The error has the address and the length.
pub fn an_access_out_of_bounds_is_refused(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION], vec![REGION]], 1);
    let stage = Stage::new(&*fabric, 1, 1);
    let far = |offset: u64| Address { offset, ..word(1, 0) };
    let end = REGION as u64;
    let out = |at: Address, bytes: u64| FabricError { node: NodeId(1), fault: Fault::OutOfBounds { at, bytes } };
    for offset in [end, end + 8, 1 << 40, 1 << 63, !7] {
        for add in VERBS {
            assert_eq!(refused(&stage, |round| add(round, far(offset))), out(far(offset), 8));
        }
    }
    for (offset, bytes) in [(end - 8, 16), (0, end + 8), (!7, 16), (u64::MAX - 15, 16), (8, end)] {
        assert_eq!(refused(&stage, |round| _ = round.read(far(offset), bytes as usize)), out(far(offset), bytes));
        let words = vec![7; bytes as usize / 8];
        assert_eq!(refused(&stage, |round| round.write_words(far(offset), &words)), out(far(offset), bytes));
    }
    stage.on(1, async |lane| {
        assert_eq!(peek(lane, word(1, 0), REGION / 8).await, [0; REGION / 8], "a refused access changed something");
        let mut round = lane.round();
        let last = round.read(word(1, REGION / 8 - 1), 8);
        let nothing = round.read(word(1, REGION / 8), 0);
        let done = run(lane, round).await;
        assert_eq!((done.words(last), done.words(nothing)), (&[0][..], &[][..]));
    });
    healthy(&stage);
}

/// An access to a node or region that does not exist is refused.
pub fn an_access_to_nowhere_is_refused(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION], vec![REGION]], 1);
    let stage = Stage::new(&*fabric, 1, 1);
    let nowhere = |node: u16, region: u16| Address { node: NodeId(node), region: RegionId(region), offset: 0 };
    let places = [(0, 1), (1, 7), (1, 8), (0, u16::MAX), (2, 0), (3, 1), (63, 0), (64, 0), (65, 0), (u16::MAX, 0)];
    for at in places.map(|(node, region)| nowhere(node, region)) {
        for add in VERBS {
            let expected = FabricError { node: at.node, fault: Fault::NoSuchRegion(at) };
            assert_eq!(refused(&stage, |round| add(round, at)), expected);
        }
        if at.node.0 >= 2 {
            let error = refused(&stage, |round| round.flush(at.node));
            assert!(matches!(error, FabricError { node, fault: Fault::NoSuchRegion(_) } if node == at.node));
        }
        assert!(fabric.region(at.node, at.region).is_none());
    }
    healthy(&stage);
    // To fail a node that does not exist must not panic either.
    fabric.fail(NodeId(2));
    fabric.fail(NodeId(u16::MAX));
    healthy(&stage);
    let later = Stage::new(&*fabric, 1, 1);
    healthy(&later);
}

/// Executes a round that contains an ill-formed verb. The round must fail, cost nothing, and leave
/// no trace.
fn ill_formed(stage: &Stage, expected: FabricError, add: impl Fn(&mut Round<'_>)) {
    stage.on(1, async |lane| {
        for background in [false, true] {
            let before = lane.cost();
            let mut round = lane.round();
            round.write_words(word(0, 0), &[7]);
            round.fetch_add(word(1, 0), 7);
            add(&mut round);
            // Verbs that are added after the ill-formed one do no harm.
            round.write_words(word(0, 1), &[7; 9]);
            round.read(word(1, 0), 64);
            round.compare_swap(word(0, 1), 0, 7);
            if background {
                lane.post(round);
                settle(lane).await;
                let failures = lane.endpoint().failures();
                assert_eq!(failures.iter().map(|failure| failure.error).collect::<Vec<_>>(), [expected]);
                assert_eq!(failures[0].lane, lane.id());
            } else {
                assert_eq!(lane.execute(round).await.err(), Some(expected));
            }
            assert_eq!(lane.cost().since(&before), Cost::default(), "what was not sent was counted");
            for node in 0..2 {
                assert_eq!(peek(lane, word(node, 0), 16).await, [0; 16], "part of an ill-formed round was sent");
            }
        }
    });
}

/// Addresses and lengths that are not multiples of 8 bytes are refused before anything is sent.
pub fn an_unaligned_access_is_refused_and_nothing_is_sent(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION], vec![REGION]], 1);
    let stage = Stage::new(&*fabric, 1, 1);
    let odd = |offset: u64| Address { offset, ..word(1, 0) };
    let unaligned =
        |offset: u64, bytes: u64| FabricError { node: NodeId(1), fault: Fault::Unaligned { at: odd(offset), bytes } };
    for offset in [1, 4, 12, u64::MAX] {
        for add in VERBS {
            ill_formed(&stage, unaligned(offset, 8), |round| add(round, odd(offset)));
        }
    }
    for bytes in [1, 4, 12, usize::MAX] {
        ill_formed(&stage, unaligned(8, bytes as u64), |round| _ = round.read(odd(8), bytes));
    }
    // The length of a WRITE is checked on the staged words, before they have an address.
    stage.on(1, async |lane| {
        let mut round = lane.round();
        round.write_words(word(0, 0), &[7]);
        round.write(word(1, 0), &[7; 12]);
        let error = lane.execute(round).await.expect_err("12 bytes are refused");
        assert!(matches!(error.fault, Fault::Unaligned { bytes: 12, .. }), "{error}");
        assert_eq!(peek(lane, word(0, 0), 2).await, [0; 2]);
    });
    healthy(&stage);
}

/// A round beyond the limits is refused before anything is sent. A round at the limits is not.
pub fn a_full_round_is_refused_and_nothing_is_sent(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![2 * ROUND_BYTES_MAX], vec![2 * ROUND_BYTES_MAX]], 1);
    let stage = Stage::new(&*fabric, 1, 1);
    let full = |node: u16| FabricError { node: NodeId(node), fault: Fault::RoundFull };
    ill_formed(&stage, full(1), |round| (0..ROUND_VERBS_MAX).for_each(|_| _ = round.read(word(1, 0), 8)));
    ill_formed(&stage, full(1), |round| (0..ROUND_VERBS_MAX).for_each(|_| round.flush(NodeId(1))));
    ill_formed(&stage, full(1), |round| _ = round.read(word(1, 0), ROUND_BYTES_MAX));
    ill_formed(&stage, full(1), |round| {
        round.read(word(1, 0), ABSURD);
        round.read(word(1, 0), ABSURD);
    });
    ill_formed(&stage, full(0), |round| round.write(word(1, 0), &[7; ROUND_BYTES_MAX]));
    stage.on(1, async |lane| {
        let mut round = lane.round();
        assert!(round.has_room(ROUND_VERBS_MAX, ROUND_BYTES_MAX) && round.is_empty());
        assert!(!round.has_room(ROUND_VERBS_MAX + 1, 0) && !round.has_room(0, ROUND_BYTES_MAX + 8));
        assert!(!round.has_room(usize::MAX, 0) && !round.has_room(0, usize::MAX));
        let everything = round.read(word(1, 0), ROUND_BYTES_MAX);
        assert!(round.has_room(1, 0) && !round.has_room(1, 8));
        assert_eq!(run(lane, round).await.words(everything).len(), ROUND_BYTES_MAX / 8);

        let mut round = lane.round();
        (0..ROUND_VERBS_MAX).for_each(|index| round.write_words(word(0, index), &[index as u64]));
        assert!(!round.has_room(1, 0));
        run(lane, round).await;
        let expected: Vec<u64> = (0..ROUND_VERBS_MAX as u64).collect();
        assert_eq!(peek(lane, word(0, 0), ROUND_VERBS_MAX).await, expected);
    });
}

/// A revoked client learns of it from every node, for good, and on every endpoint. Other clients
/// are not disturbed.
pub fn a_revoked_client_is_refused(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION], vec![REGION]], 1);
    if !fabric.capabilities().revoke {
        eprintln!("skipped: this backend cannot revoke (Capabilities::revoke)");
        return;
    }
    let stage = Stage::new(&*fabric, 2, 1);
    let second_endpoint = Stage::new(&*fabric, 1, 2);
    stage.on(1, async |lane| poke(lane, word(0, 0), &[1]).await);
    second_endpoint.on(1, async |lane| poke(lane, word(0, 1), &[1]).await);
    fabric.revoke(ClientId(1)).expect("every node confirms");
    fabric.revoke(ClientId(1)).expect("every node confirms");
    let later_endpoint = Stage::new(&*fabric, 1, 3);
    for stage in [&stage, &second_endpoint, &later_endpoint] {
        for node in 0..2 {
            let revoked = FabricError { node: NodeId(node), fault: Fault::Revoked };
            for add in VERBS {
                assert_eq!(refused(stage, |round| add(round, word(node, 2))), revoked);
            }
            assert_eq!(refused(stage, |round| round.flush(NodeId(node))), revoked);
            assert!(revoked.fault.lost());
        }
    }
    stage.on(2, async |lane| {
        poke(lane, word(1, 3), &[2]).await;
        assert_eq!(peek(lane, word(0, 0), 4).await, [1, 1, 0, 0]);
        assert_eq!(peek(lane, word(1, 0), 4).await, [0, 0, 0, 2]);
    });
}

/// When `revoke` has returned, the client's writes no longer change memory, even if the revocation
/// came in the middle of a long WRITE.
pub fn nothing_lands_after_a_revocation(bed: &dyn Bed) {
    if !bed.fabric(&[vec![REGION]], 0).capabilities().revoke {
        eprintln!("skipped: this backend cannot revoke (Capabilities::revoke)");
        return;
    }
    let words = match bed.clients() {
        Clients::Threads => ROUND_BYTES_MAX / 8 - 1,
        Clients::Interleaved => 200,
    };
    let mut cut = 0;
    // Threads are seldom met in the middle of a WRITE, so more runs are needed.
    let runs = if bed.clients() == Clients::Threads { bed.runs() * 10 } else { bed.runs() };
    for seed in 0..runs {
        let fabric = &*bed.fabric(&[vec![2 * ROUND_BYTES_MAX]], seed);
        let victim = client(async move |lane: Lane| {
            let began = Instant::now();
            for turn in 1.. {
                assert!(began.elapsed() < Duration::from_secs(20), "the revoked client was never refused");
                let mut round = lane.round();
                round.write_words(word(0, 0), &vec![turn; words]);
                round.fetch_add(word(0, words), 1);
                if let Err(error) = lane.execute(round).await {
                    assert_eq!(error, FabricError { node: NodeId(0), fault: Fault::Revoked });
                    break;
                }
            }
            false
        });
        let judge = client(async move |lane: Lane| {
            for _ in 0..lane.random() % 8 {
                lane.sleep(lane.random() % 20_000).await;
                peek(&lane, word(0, 0), 1).await;
            }
            fabric.revoke(ClientId(1)).expect("every node confirms");
            let frozen = peek(&lane, word(0, 0), words + 1).await;
            for _ in 0..8 {
                lane.sleep(5_000).await;
                assert!(peek(&lane, word(0, 0), words + 1).await == frozen, "something landed after the revocation");
            }
            frozen[0] != frozen[words - 1]
        });
        cut += play(bed, fabric, seed, vec![victim, judge]).into_iter().filter(|cut| *cut).count();
    }
    assert!(!bed.reorders() || cut > 0, "no WRITE was ever cut");
}

/// A round that a revocation interrupts fails. Its verbs may or may not have run.
pub fn a_round_cut_by_a_revocation_fails_and_may_have_run(bed: &dyn Bed) {
    let (mut untouched, mut partial, mut finished) = (0, 0, 0);
    for seed in 0..bed.runs() {
        let regions = [vec![REGION], vec![REGION]];
        let Some(fabric) = bed.fabric_that_revokes(&regions, seed, ClientId(1), seed % 30) else {
            eprintln!("skipped: this backend has no steps to revoke after");
            return;
        };
        let stage = Stage::new(&*fabric, 2, seed);
        let error = stage.on(1, async |lane| {
            for _ in 0..1_000 {
                let mut round = lane.round();
                round.write_words(word(0, 1), &[7; 20]);
                round.compare_swap(word(0, 30), 0, 7);
                round.write_words(word(1, 1), &[7; 20]);
                if let Err(error) = lane.execute(round).await {
                    return error;
                }
            }
            panic!("the revoked client was never refused");
        });
        assert_eq!(error.fault, Fault::Revoked);
        let look = |stage: &Stage| {
            stage.on(2, async |lane| [peek(lane, word(0, 0), 32).await, peek(lane, word(1, 0), 32).await].concat())
        };
        let frozen = look(&stage);
        stage.on(2, async |lane| {
            for _ in 0..20 {
                poke(lane, word(0, 100), &[1]).await;
            }
        });
        assert_eq!(look(&stage), frozen, "something landed after the revocation");
        match frozen.iter().filter(|word| **word == 7).count() {
            0 => untouched += 1,
            41 => finished += 1,
            _ => partial += 1,
        }
    }
    if bed.reorders() {
        assert!(
            untouched > 0 && partial > 0 && finished > 0,
            "{untouched} untouched, {partial} partial, {finished} done"
        );
    }
}

/// A round to a node that is down fails, and its error names the node. Other nodes work, also for
/// connections that are made later.
pub fn a_node_that_is_down_is_named_and_others_work(bed: &dyn Bed) {
    for seed in 0..bed.runs().min(50) {
        let fabric = bed.fabric(&[vec![REGION], vec![REGION], vec![REGION]], seed);
        let early = Stage::new(&*fabric, 1, seed);
        early.on(1, async |lane| poke(lane, word(1, 0), &[1]).await);
        fabric.fail(NodeId(1));
        let down = FabricError { node: NodeId(1), fault: Fault::Unreachable };
        assert!(down.fault.lost());
        let late = Stage::new(&*fabric, 2, seed);
        for (stage, number) in [(&early, 1), (&late, 1), (&late, 2)] {
            for add in VERBS {
                assert_eq!(refused(stage, |round| add(round, word(1, 0))), down);
            }
            assert_eq!(refused(stage, |round| round.flush(NodeId(1))), down);
            stage.on(number, async |lane| {
                // One round to all three nodes: its error names the node that is down.
                let mut round = lane.round();
                (0..3).for_each(|node| _ = round.fetch_add(word(node, 5), 1));
                assert_eq!(lane.execute(round).await.err(), Some(down));
                for node in [0, 2] {
                    poke(lane, word(node, 9), &[4]).await;
                    assert_eq!(peek(lane, word(node, 9), 1).await, [4]);
                }
            });
        }
    }
}

/// A node's handler that erases the node's memory when it is told to, if the order has the right
/// words.
struct Forgetful(Arc<Region>);

impl Forgetful {
    const RIGHT: [u64; 2] = [4, 2];
}

impl Handler for Forgetful {
    fn call(&self, _: ClientId, _: &[u64], _: &mut Vec<u64>) {}

    fn forget(&self, order: &[u64], cut: &mut dyn FnMut()) {
        if order == Forgetful::RIGHT {
            cut();
            self.0.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }
}

/// A node that erases its memory ends all connections that were made to it before, and serves the
/// clients that connect anew. Only the right order makes it do so. On a backend where every client
/// always reaches every live node ([`Capabilities::partitions`](crate::Capabilities::partitions) is
/// false), the order has no effect.
pub fn a_node_that_forgets_begins_anew(bed: &dyn Bed) {
    let fabric = bed.fabric(&[vec![REGION], vec![REGION]], 1);
    let region = fabric.region(NodeId(0), RegionId(0)).expect("a region of this process");
    fabric.answer(NodeId(0), Box::new(Forgetful(region)));
    let stage = Stage::new(&*fabric, 2, 1);
    let held = |stage: &Stage, node: u16| stage.on(1, async |lane| peek(lane, word(node, 0), 1).await[0]);
    stage.on(1, async |lane| {
        for node in 0..2 {
            poke(lane, word(node, 0), &[7]).await;
        }
    });
    for wrong in [&[][..], &[4], &[4, 2, 0]] {
        fabric.forget(NodeId(0), wrong).expect("a node that answers");
        assert_eq!(held(&stage, 0), 7);
    }
    fabric.forget(NodeId(0), &Forgetful::RIGHT).expect("a node that answers");
    if !fabric.capabilities().partitions {
        assert_eq!(held(&stage, 0), 7);
        return;
    }
    for client in 1..=2 {
        let error = stage.on(client, async |lane| {
            let mut round = lane.round();
            round.write_words(word(0, 0), &[8]);
            lane.execute(round).await.expect_err("the connection has ended")
        });
        assert!(error.node == NodeId(0) && error.fault.lost(), "{error:?}");
    }
    assert_eq!(held(&stage, 1), 7, "another node has forgotten");
    let later = Stage::new(&*fabric, 2, 2);
    assert_eq!((held(&later, 0), held(&later, 1)), (0, 7));
}

/// Verbs behind a fence do not start if a verb in front of the fence has failed, as if the first
/// part had been awaited.
pub fn nothing_behind_a_fence_runs_after_a_failure(bed: &dyn Bed) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGION], vec![REGION]], seed);
        let stage = Stage::new(&*fabric, 1, seed);
        fabric.fail(NodeId(1));
        stage.on(1, async |lane| {
            let mut round = lane.round();
            round.write_words(word(0, 0), &[1; 20]);
            round.write_words(word(1, 0), &[1; 20]);
            round.after_completion();
            round.write_words(word(0, 40), &[1; 20]);
            let error = lane.execute(round).await.expect_err("node 1 is down");
            assert_eq!(error, FabricError { node: NodeId(1), fault: Fault::Unreachable });
            assert_eq!(peek(lane, word(0, 40), 20).await, [0; 20], "the fence let something pass");
        });
    }
}

/// A background round that fails makes the next round to that node fail, once, and is listed.
pub fn a_background_failure_is_reported(bed: &dyn Bed) {
    for seed in 0..bed.runs().min(50) {
        let fabric = bed.fabric(&[vec![REGION], vec![REGION], vec![REGION]], seed);
        let stage = Stage::new(&*fabric, 1, seed);
        stage.on(1, async |lane| {
            let bad = Address { offset: 1 << 30, ..word(1, 0) };
            let expected = FabricError { node: NodeId(1), fault: Fault::OutOfBounds { at: bad, bytes: 8 } };
            let post_bad = async || {
                let mut round = lane.round();
                round.write_words(bad, &[7]);
                lane.post(round);
                settle(lane).await;
            };
            let write = |node| {
                let mut round = lane.round();
                round.write_words(word(node, 0), &[7]);
                lane.execute(round)
            };
            post_bad().await;
            write(0).await.expect("another node's failure is not this round's");
            assert_eq!(write(1).await.err(), Some(expected), "the next round to the node tells of it");
            write(1).await.expect("it is told once");
            let failures = lane.endpoint().failures();
            assert_eq!((failures.len(), failures[0].lane, failures[0].error), (1, lane.id(), expected));
            assert_eq!(lane.endpoint().failures(), [], "a list that was taken starts anew");

            post_bad().await;
            post_bad().await;
            assert_eq!(lane.endpoint().failures().len(), 2);
            write(1).await.expect("whoever took the list has been told");

            // A round that reports an earlier failure is not sent.
            post_bad().await;
            let mut round = lane.round();
            round.write_words(word(2, 0), &[9]);
            round.write_words(word(1, 1), &[9]);
            assert_eq!(lane.execute(round).await.err(), Some(expected));
            assert_eq!(peek(lane, word(2, 0), 1).await, [0]);
            assert_eq!(peek(lane, word(1, 1), 1).await, [0]);
        });
    }
}
