//! Checks the claims of `src/vcache/bounds.rs` over all interleavings, and all values that the
//! memory model lets a load return. Buckets have only one or two entries here.

/// In this test no published error is put back.
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

#[allow(dead_code, reason = "the models use what they need of it")]
#[path = "../src/vcache/bounds.rs"]
mod bounds;

use std::panic::catch_unwind;
use std::sync::Arc;

use bounds::{Bounds, Bucket, CacheWord};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

#[derive(Debug, Default)]
struct ModelWord(AtomicU64);

impl CacheWord for ModelWord {
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn replace(&self, current: u64, new: u64) -> bool {
        self.0.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::AcqRel);
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

fn buckets<const N: usize>(count: usize) -> Arc<Bounds<ModelWord, N>> {
    Arc::new(Bounds::of((0..count).map(|_| Bucket::default()).collect()))
}

/// Three records with different tags. If there are two buckets, the first two records are in
/// different ones.
const A: u64 = 64;
const B: u64 = 320;
const C: u64 = 128;

/// Runs two transactions, each of which writes what the other only reads. Returns whether in some
/// interleaving both find what they read current.
fn both_pass<const N: usize>(count: usize, order: fn(&Bounds<ModelWord, N>, u64, u64) -> bool) -> bool {
    catch_unwind(|| {
        loom::model(move || {
            let bounds = buckets(count);
            let other = bounds.clone();
            let one = thread::spawn(move || order(&other, A, B));
            let two = order(&bounds, B, A);
            assert!(!(one.join().unwrap() && two));
        });
    })
    .is_err()
}

/// Publishes the record that a transaction writes, and then looks up the one that it reads.
fn publish_then_check<const N: usize>(bounds: &Bounds<ModelWord, N>, writes: u64, reads: u64) -> bool {
    bounds.raise(writes, 4);
    ModelWord::fence();
    bounds.bound(reads) <= 2
}

#[test]
fn of_two_that_write_what_the_other_reads_one_is_stopped() {
    assert!(!both_pass::<2>(2, publish_then_check));
    // With one entry in the bucket, the two transactions drop each other's entries.
    assert!(!both_pass::<1>(1, publish_then_check));
}

#[test]
fn the_model_finds_publishing_behind_the_check() {
    let check_then_publish: fn(&Bounds<ModelWord, 2>, u64, u64) -> bool = |bounds, writes, reads| {
        let passes = bounds.bound(reads) <= 2;
        bounds.raise(writes, 4);
        ModelWord::fence();
        passes
    };
    assert!(both_pass(2, check_then_publish), "this test cannot fail");
}

#[test]
fn the_model_finds_publishing_without_a_fence() {
    let unfenced: fn(&Bounds<ModelWord, 2>, u64, u64) -> bool = |bounds, writes, reads| {
        bounds.raise(writes, 4);
        bounds.bound(reads) <= 2
    };
    assert!(both_pass(2, unfenced), "this test cannot fail");
}

/// A reader sees what was published before it looks, while others fill the bucket, and also at the
/// end.
#[test]
fn what_was_published_is_never_lost() {
    loom::model(|| {
        let bounds = buckets::<1>(1);
        bounds.raise(A, 4);
        let writers = [(B, 6), (C, 8)].map(|(record, version)| {
            let bounds = bounds.clone();
            thread::spawn(move || bounds.raise(record, version))
        });
        assert!(bounds.bound(A) >= 4);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(bounds.bound(A) >= 4 && bounds.bound(B) >= 6 && bounds.bound(C) >= 8);
    });
}

/// Two entries of one record, made side by side, hide nothing.
#[test]
fn a_record_that_is_published_twice_at_once_has_the_larger_version() {
    loom::model(|| {
        let bounds = buckets::<2>(1);
        let writers = [(A, 4), (A, 6), (B, 8)].map(|(record, version)| {
            let bounds = bounds.clone();
            move || bounds.raise(record, version)
        });
        let [one, two, three] = writers;
        let (one, two) = (thread::spawn(one), thread::spawn(two));
        three();
        one.join().unwrap();
        two.join().unwrap();
        assert!(bounds.bound(A) >= 6 && bounds.bound(B) >= 8);
    });
}
