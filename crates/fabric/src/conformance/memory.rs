//! Tests of rules 2 and 3 of the contract: which parts of a READ or WRITE are atomic, and what
//! atomics promise.

use super::{Bed, Clients, Lane, client, peek, play, run, word};
use crate::address::LINE_BYTES;

const WORDS: usize = 20;
const REGIONS: usize = 8192;

/// Returns a word that shows by itself which write it came from, and whether it is a mixture of
/// two.
fn stamp(client: u64, turn: u64) -> u64 {
    let half = client << 28 | (turn & 0x0fff_ffff);
    half << 32 | half
}

/// While two clients write the same words and a third client reads them, no word is ever a mixture.
pub fn words_are_atomic(bed: &dyn Bed) {
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGIONS]], seed);
        let turns = bed.turns();
        let writing = |number: u64| {
            client(async move |lane: Lane| {
                for turn in 1..=turns {
                    let mut round = lane.round();
                    round.write_words(word(0, 3), &[stamp(number, turn); WORDS]);
                    run(&lane, round).await;
                }
            })
        };
        let reading = client(async move |lane: Lane| {
            for _ in 0..turns {
                for found in peek(&lane, word(0, 3), WORDS).await {
                    let half = found & 0xffff_ffff;
                    assert!(found >> 32 == half && matches!(half >> 28, 0..=2), "a mixed word: {found:#x}");
                }
            }
        });
        play(bed, &*fabric, seed, vec![writing(1), writing(2), reading]);
    }
}

/// A client that has seen a word of a WRITE sees all words before it.
pub fn a_write_becomes_visible_in_ascending_order(bed: &dyn Bed) {
    let mut seen_halfway = 0;
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGIONS]], seed);
        let turns = bed.turns();
        let writing = client(async move |lane: Lane| {
            for turn in 1..=turns {
                let mut round = lane.round();
                round.write_words(word(0, 3), &[turn; WORDS]);
                run(&lane, round).await;
            }
            0
        });
        let reading = client(async move |lane: Lane| {
            let mut halfway = 0;
            for _ in 0..turns {
                let later = 1 + lane.random() as usize % (WORDS - 1);
                let earlier = lane.random() as usize % later;
                let mut round = lane.round();
                let late = round.read(word(0, 3 + later), 8);
                round.after_completion();
                let early = round.read(word(0, 3 + earlier), 8);
                let done = run(&lane, round).await;
                let (late, early) = (done.words(late)[0], done.words(early)[0]);
                assert!(early >= late, "word {later} shows write {late}, then word {earlier} only {early}");
                halfway += u64::from(early > late);
            }
            halfway
        });
        seen_halfway += play(bed, &*fabric, seed, vec![writing, reading]).into_iter().sum::<u64>();
    }
    assert!(!bed.reorders() || seen_halfway > 0, "no WRITE was ever seen halfway");
}

/// Returns the content of word `index` in a record of version `version`.
fn content(version: u64, index: usize) -> u64 {
    version.wrapping_mul(0x1_0001).wrapping_mul(index as u64 + 1)
}

/// Changes a record of `lines` lines under its lock, as clients must:
///
/// 1. It takes the lock by CAS, and awaits that.
/// 2. It WRITEs the record from its version on. Every further line begins with the version.
/// 3. It frees the lock by CAS, in the round of the WRITE.
async fn change_record(lane: &Lane, lines: usize, owner: u64) {
    let mut round = lane.round();
    let lock = round.compare_swap(word(0, 0), 0, owner);
    let former = round.read(word(0, 0), 16);
    let done = run(lane, round).await;
    if !done.swapped(lock) {
        return lane.sleep(0).await;
    }
    let version = done.words(former)[1] + 2;
    let image: Vec<u64> = (1..8 * lines)
        .map(|index| if index == 1 || index % 8 == 0 { version } else { content(version, index) })
        .collect();
    let mut round = lane.round();
    round.write_words(word(0, 1), &image);
    let unlock = round.compare_swap(word(0, 0), owner, 0);
    let done = run(lane, round).await;
    assert!(done.swapped(unlock), "only its owner frees a lock");
}

/// The result of reading a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Locked,
    /// A line version differs from the record's version.
    Changed,
    Whole,
}

/// Checks a record as its reader does.
fn judge(words: &[u64]) -> Shown {
    if words[0] != 0 {
        return Shown::Locked;
    }
    let version = words[1];
    if words.iter().skip(8).step_by(8).any(|line| *line != version) {
        return Shown::Changed;
    }
    for (index, found) in words.iter().enumerate().skip(2).filter(|(index, _)| index % 8 != 0) {
        assert_eq!(
            *found,
            content(version, index),
            "torn: word {index} of a record that says version {version}: {words:?}"
        );
    }
    Shown::Whole
}

/// Two clients change a record of `lines` lines. Two other clients read its first `words` words.
fn records(bed: &dyn Bed, lines: usize, words: usize) {
    let mut shown = [0u64; 3];
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGIONS]], seed);
        if !fabric.capabilities().atomic_line {
            eprintln!("skipped: this backend does not promise lines (Capabilities::atomic_line)");
            return;
        }
        fabric.lines_of_records(word(0, 0), (lines * LINE_BYTES) as u64);
        // Some errors need a writer to go from lock to unlock within one READ. That is rare where
        // steps are drawn at random.
        let turns = bed.turns() * if bed.clients() == Clients::Interleaved { 5 } else { 1 };
        let writing = |number: u64| {
            client(async move |lane: Lane| {
                for turn in 1..=turns {
                    change_record(&lane, lines, number << 39 | turn).await;
                }
                [0; 3]
            })
        };
        let reading = || {
            client(async move |lane: Lane| {
                let mut shown = [0; 3];
                for _ in 0..turns {
                    shown[judge(&peek(&lane, word(0, 0), words).await) as usize] += 1;
                }
                // Where other programs share few cores, the record may have been locked at every
                // look so far. The writers come to an end, and then it is free.
                while shown[Shown::Whole as usize] == 0 {
                    shown[judge(&peek(&lane, word(0, 0), words).await) as usize] += 1;
                }
                shown
            })
        };
        for counts in play(bed, &*fabric, seed, vec![writing(1), writing(2), reading(), reading()]) {
            shown.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
    let [locked, changed, whole] = shown;
    assert!(whole > 0, "no record was ever read whole");
    if bed.reorders() {
        assert!(
            locked > 0 && (words <= 8 || changed > 0),
            "the writers were never met: {locked} locked, {changed} changed"
        );
    }
}

/// A record of one line is read whole, or its lock shows as taken.
pub fn a_record_of_one_line_is_read_whole(bed: &dyn Bed) {
    records(bed, 1, 8);
}

/// A record of several lines, each of which begins with a line version, is read whole. Otherwise it
/// shows a taken lock or a different line version.
pub fn a_record_of_several_lines_is_read_whole(bed: &dyn Bed) {
    records(bed, 3, 24);
}

/// A READ that ends within the first line of a record is whole, or shows a taken lock.
pub fn part_of_a_line_is_read_whole(bed: &dyn Bed) {
    records(bed, 1, 7);
}

/// A READ that ends within a later line of a record is whole, or shows a taken lock or a different
/// line version.
pub fn part_of_a_later_line_is_read_whole(bed: &dyn Bed) {
    records(bed, 3, 23);
}

/// If several clients CAS a word from 0, one of them wins, and the others learn which.
pub fn one_compare_swap_wins(bed: &dyn Bed) {
    const CLIENTS: u64 = 3;
    for seed in 0..bed.runs() {
        let turns = bed.turns().min(100_000) as usize;
        let fabric = bed.fabric(&[vec![(8 * turns).next_multiple_of(LINE_BYTES)]], seed);
        let racing = |me: u64| {
            client(async move |lane: Lane| {
                let mut found = Vec::with_capacity(turns);
                for turn in 0..turns {
                    let mut round = lane.round();
                    let swap = round.compare_swap(word(0, turn), 0, me);
                    let done = run(&lane, round).await;
                    assert_eq!(done.swapped(swap), done.previous(swap) == 0);
                    found.push(done.previous(swap));
                }
                found
            })
        };
        let found = play(bed, &*fabric, seed, (1..=CLIENTS).map(racing).collect());
        for turn in 0..turns {
            let answers: Vec<u64> = found.iter().map(|found| found[turn]).collect();
            let winners: Vec<u64> = (1..=CLIENTS).filter(|me| answers[*me as usize - 1] == 0).collect();
            let [winner] = winners[..] else { panic!("{} winners of turn {turn}: {answers:?}", winners.len()) };
            assert!(answers.iter().all(|answer| [0, winner].contains(answer)), "turn {turn}: {answers:?}");
        }
    }
}

/// All FETCH_ADDs of several clients count, and no two of them find the same value.
pub fn fetch_adds_sum_up(bed: &dyn Bed) {
    const CLIENTS: u64 = 3;
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGIONS]], seed);
        let turns = bed.turns();
        let counting = || {
            client(async move |lane: Lane| {
                let mut found = Vec::new();
                for _ in 0..turns {
                    let mut round = lane.round();
                    let adds = [1, 2].map(|delta| round.fetch_add(word(0, 7), delta));
                    let done = run(&lane, round).await;
                    found.extend(adds.map(|add| done.added(add)));
                }
                found
            })
        };
        let mut found = play(bed, &*fabric, seed, (0..CLIENTS).map(|_| counting()).collect()).concat();
        found.sort_unstable();
        let sums = found.windows(2).all(|pair| matches!(pair[1] - pair[0], 1 | 2));
        assert!(sums && found[0] == 0, "two FETCH_ADDs found the same: {found:?}");
        let reading = client(async move |lane: Lane| peek(&lane, word(0, 7), 1).await);
        assert_eq!(play(bed, &*fabric, seed, vec![reading]), [[3 * CLIENTS * turns]]);
    }
}

/// A lock on one node, taken by CAS, protects what is read and written on another node.
pub fn a_lock_excludes(bed: &dyn Bed) {
    const CLIENTS: u64 = 3;
    for seed in 0..bed.runs() {
        let fabric = bed.fabric(&[vec![REGIONS], vec![REGIONS]], seed);
        let turns = bed.turns();
        let counting = |me: u64| {
            client(async move |lane: Lane| {
                let mut counted = 0;
                for _ in 0..turns {
                    let mut round = lane.round();
                    let lock = round.compare_swap(word(0, 0), 0, me);
                    if !run(&lane, round).await.swapped(lock) {
                        lane.sleep(50).await;
                        continue;
                    }
                    let value = peek(&lane, word(1, 40), 1).await[0];
                    let mut round = lane.round();
                    round.write_words(word(1, 40), &[value + 1]);
                    run(&lane, round).await;
                    let mut round = lane.round();
                    round.compare_swap(word(0, 0), me, 0);
                    lane.post(round);
                    counted += 1;
                }
                super::settle(&lane).await;
                counted
            })
        };
        let counted: u64 = play(bed, &*fabric, seed, (1..=CLIENTS).map(counting).collect()).into_iter().sum();
        let reading = client(async move |lane: Lane| peek(&lane, word(1, 40), 1).await);
        assert_eq!(play(bed, &*fabric, seed, vec![reading]), [[counted]]);
        assert!(counted > 0);
    }
}
