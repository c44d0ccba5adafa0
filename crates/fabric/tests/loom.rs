//! Checks the arguments of `src/copy.rs`, `src/gate.rs` and `src/shm/doorbell.rs` over all
//! interleavings, and over all values that the memory model lets a load return. Lines are cut to
//! four words.

#[allow(dead_code, reason = "the models use what they need of it")]
#[path = "../src/shm/doorbell.rs"]
mod doorbell;
#[allow(dead_code, reason = "the models use what they need of it")]
#[path = "../src/gate.rs"]
mod gate;

use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as StdOrdering};

use doorbell::{BellWord, Doorbell};
use gate::{Gate, GateWord, Refusal};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use remora_fabric::copy::{self, Word};

const LINE: usize = 4;

#[derive(Debug, Default)]
struct ModelWord(AtomicU64);

impl Word for ModelWord {
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

/// The model checker treats sequentially consistent accesses as acquire and release only, so this
/// uses its fences.
impl GateWord for ModelWord {
    fn load(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    fn swap(&self, value: u64) -> u64 {
        let former = self.0.swap(value, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        former
    }

    fn set_bits(&self, bits: u64) {
        self.0.fetch_or(bits, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

impl BellWord for ModelWord {
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    fn increment(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

const FREE: u64 = 0;

/// Returns the content of word `index` in version `version` of a record.
fn content(version: u64, index: usize) -> u64 {
    100 * version + index as u64
}

/// Makes a record of `lines` lines in version 2, with its lock free.
fn record(lines: usize) -> Arc<Vec<ModelWord>> {
    Arc::new((0..lines * LINE).map(|index| ModelWord(AtomicU64::new(image(2, index)))).collect())
}

fn image(version: u64, index: usize) -> u64 {
    match index {
        0 => FREE,
        1 => version,
        _ if index.is_multiple_of(LINE) => version,
        _ => content(version, index),
    }
}

/// Changes a record as a writer must.
fn change(record: &[ModelWord], owner: u64, version: u64) {
    let lock = &record[0].0;
    lock.compare_exchange(FREE, owner, Ordering::SeqCst, Ordering::SeqCst).expect("the only writer");
    let words: Vec<u64> = (1..record.len()).map(|index| image(version, index)).collect();
    copy::write(record, 1, &words);
    lock.compare_exchange(owner, FREE, Ordering::SeqCst, Ordering::SeqCst).expect("only its owner frees a lock");
}

/// Checks a record as its reader does: if it shows a free lock and the same version in every line,
/// it must be whole.
fn judge(words: &[u64]) {
    let version = words[1];
    let lines = words.iter().enumerate().skip(LINE).step_by(LINE);
    if words[0] != FREE || lines.clone().any(|(_, line)| *line != version) {
        return;
    }
    for (index, word) in words.iter().enumerate().skip(2).filter(|(index, _)| index % LINE != 0) {
        assert_eq!(*word, content(version, index), "torn: {words:?}");
    }
}

type Read = fn(&[ModelWord], usize, &mut [u64]);

/// Whether a reader can see a torn record, while one writer changes it `changes` times. The reader
/// reads `words` words from the first on.
fn torn(lines: usize, words: usize, changes: u64, read: Read) -> bool {
    let seen_new = Arc::new(AtomicBool::new(false));
    let seen = seen_new.clone();
    let mut model = loom::model::Builder::new();
    // A torn line takes one preemption of each thread. The mutants below show that two are enough
    // to find every error.
    model.preemption_bound = Some(2);
    let result = catch_unwind(move || {
        model.check(move || {
            let record = record(lines);
            let shared = record.clone();
            let writer = thread::spawn(move || (1..=changes).for_each(|turn| change(&shared, turn, 2 + 2 * turn)));
            let mut found = vec![0; words];
            read(&record, 0, &mut found);
            judge(&found);
            if found[0] == FREE && found[1] == 4 {
                seen.store(true, StdOrdering::Relaxed);
            }
            writer.join().unwrap();
        });
    });
    assert!(result.is_err() || seen_new.load(StdOrdering::Relaxed), "the reader never met the new version");
    result.is_err()
}

/// Reads with `copy::read_lines` as it is.
fn as_it_is(record: &[ModelWord], start: usize, into: &mut [u64]) {
    copy::read_lines::<_, LINE>(record, start, into);
}

/// Reads as a mutant does that looks once and trusts it.
fn without_second_look(record: &[ModelWord], start: usize, into: &mut [u64]) {
    for line in (0..into.len()).step_by(LINE) {
        into[line + 1] = Word::load(&record[start + line + 1]);
        into[line] = Word::load(&record[start + line]);
        for index in line + 2..(line + LINE).min(into.len()) {
            into[index] = Word::load(&record[start + index]);
        }
    }
}

/// Reads as a mutant does that looks at the lock before the version. Both looks may show a free
/// lock and the new version.
fn lock_before_version(record: &[ModelWord], start: usize, into: &mut [u64]) {
    let line = &record[start..start + LINE];
    loop {
        for (slot, word) in into.iter_mut().zip(line) {
            *slot = Word::load(word);
        }
        if Word::load(&line[0]) == into[0] && Word::load(&line[1]) == into[1] {
            return;
        }
        thread::yield_now();
    }
}

#[test]
fn a_first_line_that_shows_a_free_lock_is_whole() {
    assert!(!torn(1, LINE, 1, as_it_is));
}

#[test]
fn a_first_line_is_whole_through_two_changes() {
    assert!(!torn(1, LINE, 2, as_it_is));
}

#[test]
fn part_of_a_first_line_is_whole() {
    assert!(!torn(1, LINE - 1, 1, as_it_is));
}

#[test]
fn further_lines_that_show_the_same_version_are_whole() {
    assert!(!torn(2, 2 * LINE, 1, as_it_is));
}

#[test]
fn part_of_a_further_line_is_whole() {
    assert!(!torn(2, 2 * LINE - 1, 1, as_it_is));
}

#[test]
fn the_model_finds_a_missing_second_look() {
    assert!(torn(1, LINE, 1, without_second_look), "this test cannot fail");
    assert!(torn(2, 2 * LINE, 1, without_second_look), "this test cannot fail");
}

#[test]
fn the_model_finds_a_lock_read_before_its_version() {
    assert!(torn(1, LINE, 1, lock_before_version), "this test cannot fail");
}

/// The way in which an endpoint begins a round. It returns the nodes that are refused.
type Enter = fn(&Gate<ModelWord>, u64) -> u64;

/// Whether a verb can take effect after the refusal. One endpoint executes rounds of two verbs, and
/// one thread refuses it.
fn lands_late(enter: Enter) -> bool {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    catch_unwind(move || {
        model.check(move || {
            let gate = Arc::new(Gate::<ModelWord>::default());
            let memory = Arc::new(ModelWord::default());
            let (their_gate, their_memory) = (gate.clone(), memory.clone());
            let endpoint = thread::spawn(move || {
                for entry in [1, 3] {
                    if enter(&their_gate, entry) & 1 == 0 {
                        for verb in 0..2 {
                            Word::store(&*their_memory, entry + verb);
                        }
                    } else {
                        assert_eq!(their_gate.why(), Refusal::Revoked);
                    }
                    their_gate.leave(entry);
                }
            });
            gate.refuse(1, Refusal::Revoked, thread::yield_now);
            let frozen = Word::load(&*memory);
            endpoint.join().unwrap();
            assert_eq!(Word::load(&*memory), frozen, "a verb took effect after the refusal");
        });
    })
    .is_err()
}

#[test]
fn nothing_passes_a_gate_that_has_refused() {
    assert!(!lands_late(|gate, entry| {
        gate.enter(entry);
        gate.refused()
    }));
}

#[test]
fn the_model_finds_a_gate_that_is_not_entered() {
    assert!(lands_late(|gate, _| gate.refused()), "this test cannot fail");
}

#[test]
fn the_model_finds_a_gate_that_is_entered_by_a_store() {
    let store: Enter = |gate, entry| {
        gate.leave(entry - 1); // stores `entry`
        gate.refused()
    };
    assert!(lands_late(store), "this test cannot fail");
}

#[test]
fn the_model_finds_a_gate_that_is_asked_before_it_is_entered() {
    let early: Enter = |gate, entry| {
        let refused = gate.refused();
        gate.enter(entry);
        refused
    };
    assert!(lands_late(early), "this test cannot fail");
}

/// A futex on a word, as the system has it: a thread that sleeps has compared the word under the
/// lock that wakes need.
#[derive(Default)]
struct Futex {
    lock: loom::sync::Mutex<()>,
    sleeping: loom::sync::Condvar,
}

impl Futex {
    fn wait(&self, word: &ModelWord, seen: u64) {
        let held = self.lock.lock().unwrap();
        // Its lock orders the system's look at the word after every wake that has come already.
        if word.0.load(Ordering::SeqCst) == seen {
            drop(self.sleeping.wait(held).unwrap());
        }
    }

    fn wake(&self) {
        drop(self.lock.lock().unwrap());
        self.sleeping.notify_all();
    }
}

#[derive(Default)]
struct Mailbox {
    work: ModelWord,
    rings: ModelWord,
    parked: ModelWord,
    futex: Futex,
}

impl Mailbox {
    fn bell(&self) -> Doorbell<'_, ModelWord> {
        Doorbell { rings: &self.rings, parked: &self.parked }
    }
}

/// Whether a side can sleep for ever. One side brings work twice, and the other parks until it has
/// seen both.
fn sleeps_for_ever(ring: fn(&Mailbox), park: fn(&Mailbox) -> u64, work: u64) -> bool {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    catch_unwind(move || {
        model.check(move || {
            let mailbox = Arc::new(Mailbox::default());
            let theirs = mailbox.clone();
            let client = thread::spawn(move || {
                for request in 1..=work {
                    Word::store(&theirs.work, request);
                    ring(&theirs);
                }
            });
            while Word::load(&mailbox.work) != work {
                let seen = park(&mailbox);
                if Word::load(&mailbox.work) != work {
                    mailbox.futex.wait(&mailbox.rings, seen);
                }
                mailbox.bell().unpark();
            }
            client.join().unwrap();
        });
    })
    .is_err()
}

fn ring(mailbox: &Mailbox) {
    mailbox.bell().ring(|_| mailbox.futex.wake());
}

fn park(mailbox: &Mailbox) -> u64 {
    mailbox.bell().park()
}

#[test]
fn a_doorbell_loses_no_ring() {
    assert!(!sleeps_for_ever(ring, park, 1));
    assert!(!sleeps_for_ever(ring, park, 2));
}

#[test]
fn the_model_finds_a_ring_without_a_fence() {
    let unfenced: fn(&Mailbox) = |mailbox| {
        if BellWord::load(&mailbox.parked) != 0 {
            mailbox.rings.increment();
            mailbox.futex.wake();
        }
    };
    assert!(sleeps_for_ever(unfenced, park, 1), "this test cannot fail");
}

#[test]
fn the_model_finds_a_wake_that_is_not_counted() {
    let uncounted: fn(&Mailbox) = |mailbox| {
        <ModelWord as BellWord>::fence();
        if BellWord::load(&mailbox.parked) != 0 {
            mailbox.futex.wake();
        }
    };
    assert!(sleeps_for_ever(uncounted, park, 1), "this test cannot fail");
}

#[test]
fn the_model_finds_parking_without_a_fence() {
    let unfenced: fn(&Mailbox) -> u64 = |mailbox| {
        let seen = BellWord::load(&mailbox.rings);
        BellWord::store(&mailbox.parked, 1);
        seen
    };
    assert!(sleeps_for_ever(ring, unfenced, 1), "this test cannot fail");
}
