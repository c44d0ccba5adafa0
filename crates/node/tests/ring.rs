//! Tests of redo rings over several laps: the reader returns what was written, once and in order,
//! however far it lags.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use remora_fabric::shm::Shm;
use remora_fabric::{ClientId, Fabric, Lane, NodeId, Prng, Region, block_on};
use remora_node::MemoryError;
use remora_node::limits::{FRAME_BYTES_MAX, RING_BYTES, RING_BYTES_MAX};
use remora_node::node::REGION;
use remora_node::ring::{
    FRAME_OVERHEAD_WORDS, HEADER_BYTES, OWNER_SHIFT, RingCopy, RingReader, RingSpan, RingWriter, UNDO_STRIDE,
    UNDO_WINDOW, extent_bytes, seal, seal_undo, write_front,
};

const NODE: NodeId = NodeId(0);
/// The offset of the ring. It is not 0, so that a wrong base shows.
const BASE: u64 = 4096;
const FRAME_WORDS_MAX: usize = FRAME_BYTES_MAX / 8;

fn memory() -> (Shm, Arc<Region>) {
    memory_of(RingSpan::from(BASE))
}

fn memory_of(span: RingSpan) -> (Shm, Arc<Region>) {
    let shm = Shm::new(&[vec![(BASE + extent_bytes(span.bytes)).next_multiple_of(4096) as usize]]).unwrap();
    let region = shm.region(NODE, REGION).unwrap();
    (shm, region)
}

fn id(owner: u32, sequence: u64) -> u64 {
    u64::from(owner) << OWNER_SHIFT | sequence
}

/// Makes a frame whose entry tells its id and place.
fn frame(id: u64, words: usize) -> Vec<u64> {
    let mut frame: Vec<u64> = (0..words as u64).map(|word| id.wrapping_mul(31).wrapping_add(word)).collect();
    seal(&mut frame, id);
    frame
}

async fn append(lane: &Lane, ring: &mut RingWriter, frame: &[u64]) -> bool {
    let Some(room) = ring.reserve(frame.len()) else { return false };
    let sent = write_front(lane, frame, ring.reserved_at(&room)).await.unwrap();
    let mut round = lane.round();
    let staged = round.stage_words(frame.len() - sent);
    round.staged_mut(staged).copy_from_slice(&frame[sent..]);
    ring.append_from(&mut round, staged, sent, room, frame[0]);
    lane.execute(round).await.unwrap();
    true
}

#[test]
fn laps_with_a_reader_that_lags() {
    for seed in 0..40 {
        let span = RingSpan { base: BASE, bytes: RING_BYTES << (seed / 20 * (seed % 5)) };
        let (shm, region) = memory_of(span);
        block_on(&shm, ClientId(1), async |lane: &Lane| {
            let mut random = Prng::new(seed);
            // Some runs have small frames only, and some fill half the ring with one frame.
            let largest = [16, 200, span.frame_bytes_max() as u64 / 8][seed as usize % 3];
            let mut writer = RingWriter::new(NODE, span);
            let mut reader = RingReader::resume(region.words(), span, 7).unwrap();
            let (mut written, mut read, mut bytes, mut scratch) = (Vec::new(), 0, 0, Vec::new());
            let mut turns = 0;
            while bytes < 12 * span.bytes.min(4 * RING_BYTES) {
                turns += 1;
                assert!(turns < 1_000_000, "seed {seed}: the reader does not follow");
                if random.below(3) > 0 {
                    // In large rings, most frames are small.
                    let is_small = span.bytes > RING_BYTES && random.below(4) > 0;
                    let largest = if is_small { 200 } else { largest };
                    let words = FRAME_OVERHEAD_WORDS + random.below(largest - 2) as usize;
                    let frame = frame(id(7, written.len() as u64 + 1), words);
                    if append(lane, &mut writer, &frame).await {
                        bytes += (words * 8) as u64;
                        written.push(frame);
                        continue;
                    }
                    writer.settle();
                    let room = writer.reserve(words);
                    assert!(room.is_some() || !writer.drained(), "an empty ring has room for any frame");
                }
                for _ in 0..random.below(1 + written.len() as u64 / 4) {
                    let Some((id, entry)) = reader.next(region.words(), &mut scratch) else { break };
                    let frame: &Vec<u64> = &written[read];
                    assert_eq!((id, entry), (frame[0], &frame[2..frame.len() - 1]), "seed {seed}");
                    read += 1;
                }
                reader.publish(region.words());
                if random.below(4) == 0 {
                    // The node's process ends, and another one reads on.
                    reader = RingReader::resume(region.words(), span, 7).unwrap();
                    // What a recoverer reads reaches as far as the client has written.
                    let copy = RingCopy::read(lane, NODE, span, 7).await.unwrap();
                    assert_eq!(copy.last(), written.last().map_or(0, |frame| frame[0]), "seed {seed}");
                    let mut known = Vec::new();
                    copy.entries(|id, _| known.push(id));
                    let from = copy.whole_from();
                    let is_known = |frame: &&Vec<u64>| known.contains(&frame[0]);
                    assert!(
                        written.iter().filter(|frame| frame[0] >= from).all(|frame| is_known(&frame)),
                        "seed {seed}"
                    );
                }
                let mut round = lane.round();
                let applied = round.read(writer.applied_at(), 8);
                let done = lane.execute(round).await.unwrap();
                writer.learn(done.words(applied)[0]);
            }
            while reader.next(region.words(), &mut scratch).is_some() {
                read += 1;
            }
            assert_eq!(read, written.len(), "seed {seed}");
            reader.publish(region.words());
            writer.learn(region.words()[BASE as usize / 8].load(Ordering::Acquire));
            assert!(writer.drained());
        })
        .unwrap();
    }
}

/// As long as frames are small and the node keeps up, a large ring takes no more memory than one of
/// the usual size. A recoverer then reads no more of it.
#[test]
fn small_frames_keep_to_the_window_of_a_large_ring() {
    let span = RingSpan { base: BASE, bytes: RING_BYTES_MAX };
    let (shm, region) = memory_of(span);
    block_on(&shm, ClientId(1), async |lane: &Lane| {
        let mut writer = RingWriter::new(NODE, span);
        let mut reader = RingReader::resume(region.words(), span, 7).unwrap();
        let mut scratch = Vec::new();
        let header = |word: usize| region.words()[BASE as usize / 8 + word].load(Ordering::Acquire);
        let behind = || {
            let window = (BASE + HEADER_BYTES + RING_BYTES) as usize / 8;
            region.words()[window..].iter().filter(|word| word.load(Ordering::Acquire) != 0).count()
        };
        let mut sequence = 0;
        let mut append_one = async |writer: &mut RingWriter, words: usize| {
            sequence += 1;
            assert!(append(lane, writer, &frame(id(7, sequence), words)).await);
            assert_eq!(reader.next(region.words(), &mut scratch).map(|(id, _)| id), Some(id(7, sequence)));
            reader.publish(region.words());
            // A client asks only now and then.
            if writer.half_full() {
                writer.learn(header(0));
            }
            writer.settle();
        };
        for turn in 0..3_000 {
            append_one(&mut writer, 20 + turn % 80).await;
        }
        // A skip right behind the window tells so.
        let skip = FRAME_OVERHEAD_WORDS;
        assert!(behind() <= skip && header(2) <= RING_BYTES + 8 * skip as u64, "the window is enough for small frames");
        assert_eq!(behind() > 0, header(2) > 0);
        let words = span.frame_bytes_max() / 8;
        append_one(&mut writer, words).await;
        assert!(behind() > skip && header(2) > RING_BYTES + 8 * skip as u64);
        let reach = header(2);
        for turn in 0..3_000 {
            append_one(&mut writer, 20 + turn % 80).await;
        }
        assert!(header(2) - reach <= 8 * skip as u64, "small frames are back in the window, behind a skip");
        let copy = RingCopy::read(lane, NODE, span, 7).await.unwrap();
        assert_eq!(copy.last(), id(7, 6_001));
        let mut found = Vec::new();
        copy.entries(|id, _| found.push(id));
        assert!(copy.whole_from() > id(7, 5_500), "the window has the last entries");
        assert!((copy.whole_from()..=id(7, 6_001)).all(|id| found.contains(&id)), "{found:?}");
    })
    .unwrap();
}

/// A frame that was never sent has told no node how far it reaches.
#[test]
fn how_far_frames_reach_is_told_again_if_room_was_given_back() {
    let span = RingSpan { base: BASE, bytes: RING_BYTES_MAX };
    let mut writer = RingWriter::new(NODE, span);
    let words = span.frame_bytes_max() / 8;
    for _ in 0..2 {
        let room = writer.reserve(words).unwrap();
        let reach = writer.take(room, id(7, 1)).reach;
        assert_eq!(reach, Some((writer.reach_at(), RING_BYTES_MAX / 2)));
        writer.give_back(room);
    }
    // The second frame goes to the start again, and its skip lies behind the first one.
    for reaches in [true, true, false] {
        let room = writer.reserve(words).unwrap();
        assert_eq!(writer.take(room, id(7, 1)).reach.is_some(), reaches);
        writer.settle();
        writer.learn(writer.written());
    }
}

/// Where a ring cannot have such a size, nothing is read.
#[test]
fn rings_of_impossible_sizes_are_refused() {
    let (shm, region) = memory();
    for bytes in [0, 1, RING_BYTES / 2, RING_BYTES + 8, 2 * RING_BYTES_MAX, 1 << 63, u64::MAX] {
        let span = RingSpan { base: BASE, bytes };
        assert!(RingReader::resume(region.words(), span, 1).is_none(), "{bytes}");
        let read = async |lane: &Lane| RingCopy::read(lane, NODE, span, 1).await.map(|copy| copy.last());
        let read = block_on(&shm, ClientId(1), read).unwrap();
        assert_eq!(read, Err(MemoryError::Damaged(NODE)), "{bytes}");
    }
    let span = RingSpan { base: u64::MAX - 7, bytes: RING_BYTES };
    assert!(RingReader::resume(region.words(), span, 1).is_none());
}

#[test]
fn room_is_given_again_when_applied_and_settled() {
    let (shm, region) = memory();
    block_on(&shm, ClientId(1), async |lane: &Lane| {
        let mut writer = RingWriter::new(NODE, BASE);
        let words = FRAME_WORDS_MAX - 8;
        let mut sequence = 0;
        let mut fill = async |writer: &mut RingWriter| {
            let mut count = 0;
            while append(lane, writer, &frame(id(7, sequence + 1), words)).await {
                (sequence, count) = (sequence + 1, count + 1);
            }
            count
        };
        assert_eq!(fill(&mut writer).await, 2, "two of the largest frames fit");
        assert!(writer.half_full());
        let apply_all = || {
            let (mut reader, mut scratch) = (RingReader::resume(region.words(), BASE, 7).unwrap(), Vec::new());
            while reader.next(region.words(), &mut scratch).is_some() {}
            reader.publish(region.words());
            region.words()[BASE as usize / 8].load(Ordering::Acquire)
        };
        writer.learn(apply_all());
        assert_eq!(fill(&mut writer).await, 0, "applied, but not installed at the primaries");
        writer.settle();
        assert_eq!(fill(&mut writer).await, 2, "the rest of the lap is skipped");
        writer.settle();
        assert_eq!(fill(&mut writer).await, 0, "installed, but not applied");
        let applied = apply_all();
        writer.learn(applied + RING_BYTES);
        assert_eq!(fill(&mut writer).await, 0, "a node that claims more than was written is not believed");
        writer.learn(applied);
        assert!(fill(&mut writer).await > 0);
    })
    .unwrap();
}

proptest! {
    /// A frame that has not arrived whole is not returned, whatever an earlier lap or owner has
    /// left behind it.
    #[test]
    fn a_frame_is_returned_whole_or_not(
        words in FRAME_OVERHEAD_WORDS..60, old in FRAME_OVERHEAD_WORDS..60, old_owner in 6u32..8, flip in any::<(usize, u32)>(),
    ) {
        let (_shm, region) = memory();
        let data = &region.words()[((BASE + HEADER_BYTES) / 8) as usize..];
        let store = |at: usize, words: &[u64]| {
            words.iter().zip(&data[at..]).for_each(|(value, word)| word.store(*value, Ordering::Release));
        };
        let mut at = 0;
        while at < 200 {
            let frame = frame(id(old_owner, at as u64), old);
            store(at, &frame);
            at += old;
        }
        // Frames of this owner up to 300 have been applied.
        region.words()[BASE as usize / 8 + 1].store(id(7, 300), Ordering::Release);
        let reader = RingReader::resume(region.words(), BASE, 7).unwrap();
        let new = frame(id(7, 301), words);
        let mut scratch = Vec::new();
        for arrived in 0..words {
            store(0, &new[..arrived]);
            let returned = reader.clone().next(region.words(), &mut scratch).is_some();
            prop_assert!(!returned, "{} of {} words", arrived, words);
        }
        store(0, &new);
        let whole = reader.clone().next(region.words(), &mut scratch).map(|(id, entry)| (id, entry.to_vec()));
        prop_assert_eq!(whole, Some((new[0], new[2..words - 1].to_vec())));
        // With a flipped bit it is not a frame; or, if the bit is an unused one of the kind, it is
        // a frame of another kind.
        data[flip.0 % words].fetch_xor(1 << (flip.1 % 64), Ordering::AcqRel);
        prop_assert!(reader.clone().next(region.words(), &mut scratch).is_none());
    }

    #[test]
    fn arbitrary_words_never_panic(
        words in proptest::collection::vec(any::<u64>(), 1..100), head in (0u64..4, 0u64..70), position in prop_oneof![Just(0), any::<u64>()],
        small in any::<bool>(),
    ) {
        let (_shm, region) = memory();
        let ring = &region.words()[BASE as usize / 8..];
        ring[0].store(position, Ordering::Release);
        // The words begin like a frame of the owner.
        let begin = [id(7, 1), head.0 | head.1 << 32];
        let words = begin.into_iter().chain(words.iter().map(|word| if small { word % 64 } else { *word }));
        for (word, value) in ring[HEADER_BYTES as usize / 8..].iter().zip(words) {
            word.store(value, Ordering::Release);
        }
        if let Some(mut reader) = RingReader::resume(region.words(), BASE, 7) {
            let mut scratch = Vec::new();
            while reader.next(region.words(), &mut scratch).is_some() {}
            reader.scan(region.words(), |_, _| ());
        }
    }
}

#[test]
fn another_owner_starts_anew() {
    let (shm, region) = memory();
    block_on(&shm, ClientId(1), async |lane: &Lane| {
        let mut scratch = Vec::new();
        for owner in 1..20 {
            // The header is zeroed, and the data are not.
            region.words()[BASE as usize / 8].store(0, Ordering::Release);
            region.words()[BASE as usize / 8 + 1].store(0, Ordering::Release);
            let mut writer = RingWriter::new(NODE, BASE);
            let mut reader = RingReader::resume(region.words(), BASE, owner).unwrap();
            assert!(reader.next(region.words(), &mut scratch).is_none(), "nothing is left of owner {}", owner - 1);
            let mut count = 0;
            while append(lane, &mut writer, &frame(id(owner, count + 1), 40 + owner as usize)).await {
                count += 1;
                assert_eq!(reader.next(region.words(), &mut scratch).map(|(id, _)| id), Some(id(owner, count)));
                assert!(reader.next(region.words(), &mut scratch).is_none());
            }
            assert!(count > 100);
            let mut found = Vec::new();
            reader.scan(region.words(), |id, _| found.push(id));
            assert_eq!(found, (1..=count).map(|sequence| id(owner, sequence)).collect::<Vec<_>>());
        }
    })
    .unwrap();
    assert!(RingReader::resume(region.words(), BASE + 4, 1).is_none());
    assert!(RingReader::resume(region.words(), region.bytes(), 1).is_none());
}

/// A node has the undo entries of only those transactions in which it took part. Entries behind a
/// gap are found as well.
#[test]
fn undo_entries_beyond_their_window_are_found() {
    const OWNER: u32 = 7;
    let (shm, _region) = memory();
    block_on(&shm, ClientId(1), async |lane: &Lane| {
        let writer = RingWriter::new(NODE, BASE);
        let places = [0, UNDO_WINDOW, UNDO_WINDOW + 9 * UNDO_STRIDE, RING_BYTES - UNDO_STRIDE];
        for (sequence, place) in places.into_iter().enumerate() {
            let mut entry = frame(id(OWNER, sequence as u64), 8);
            let own = entry[0];
            seal_undo(&mut entry, own);
            let mut round = lane.round();
            if place >= UNDO_WINDOW {
                round.write_words(writer.reach_at(), &[place + UNDO_STRIDE]);
            }
            round.write_words(writer.undo_at(place), &entry);
            lane.execute(round).await.unwrap();
            let mut copy = RingCopy::read(lane, NODE, BASE, OWNER).await.unwrap();
            let found: Vec<u64> = copy.undo_entries(lane).await.unwrap().iter().map(|entry| entry.place).collect();
            assert_eq!(found, places[..=sequence]);
        }
    })
    .unwrap();
}

/// A client dies between a skip and the entry behind it. The node has nothing to apply there, so
/// the ring counts as applied. A recoverer that finds the entry elsewhere writes it on.
#[test]
fn a_skip_without_an_entry_leaves_nothing_to_apply() {
    const OWNER: u32 = 7;
    const WORDS: usize = FRAME_WORDS_MAX - 8;
    let (shm, region) = memory();
    block_on(&shm, ClientId(1), async |lane: &Lane| {
        let (mut writer, mut scratch) = (RingWriter::new(NODE, BASE), Vec::new());
        let mut applier = RingReader::resume(region.words(), BASE, OWNER).unwrap();
        // An applier publishes only when it has applied an entry.
        let mut apply = || {
            let applied = applier.next(region.words(), &mut scratch).map(|(id, _)| id);
            applied.inspect(|_| applier.publish(region.words()))
        };
        let is_applied = async || RingCopy::is_applied(lane, NODE, BASE, OWNER).await.unwrap();
        for sequence in [1, 2] {
            assert!(append(lane, &mut writer, &frame(id(OWNER, sequence), WORDS)).await);
            assert!(!is_applied().await);
            assert_eq!(apply(), Some(id(OWNER, sequence)));
            assert!(is_applied().await);
        }
        writer.settle();
        writer.learn(region.words()[BASE as usize / 8].load(Ordering::Acquire));
        let room = writer.reserve(WORDS).expect("everything is applied and installed");
        let (from, skip) = writer.take(room, id(OWNER, 3)).skip.expect("a third frame does not fit into the lap");
        let mut round = lane.round();
        round.write_words(from, &skip);
        lane.execute(round).await.unwrap();
        assert_eq!(apply(), None);
        assert!(is_applied().await, "nothing has arrived behind the skip");

        let mut copy = RingCopy::read(lane, NODE, BASE, OWNER).await.unwrap();
        assert_eq!(copy.last(), id(OWNER, 2));
        copy.append(lane, id(OWNER, 3), &[3; WORDS - FRAME_OVERHEAD_WORDS]).await.unwrap();
        assert!(!is_applied().await);
        assert_eq!(apply(), Some(id(OWNER, 3)));
        assert!(is_applied().await);
        let mut restarted = RingReader::resume(region.words(), BASE, OWNER).unwrap();
        assert!(restarted.next(region.words(), &mut Vec::new()).is_none());
    })
    .unwrap();
}

/// A frame ends at the very end of the window, or just before. So the skip behind it lies beyond
/// the window, and a recoverer reads it all the same.
#[test]
fn a_skip_behind_the_window_is_read() {
    for short in 0..5 {
        let span = RingSpan { base: BASE, bytes: RING_BYTES_MAX };
        let (shm, region) = memory_of(span);
        block_on(&shm, ClientId(1), async |lane: &Lane| {
            let mut writer = RingWriter::new(NODE, span);
            let words = FRAME_WORDS_MAX;
            assert!(append(lane, &mut writer, &frame(id(7, 1), words)).await);
            assert!(append(lane, &mut writer, &frame(id(7, 2), words - short)).await);
            let (mut reader, mut scratch) = (RingReader::resume(region.words(), span, 7).unwrap(), Vec::new());
            while reader.next(region.words(), &mut scratch).is_some() {}
            reader.publish(region.words());
            writer.learn(region.words()[BASE as usize / 8].load(Ordering::Acquire));
            writer.settle();
            assert!(append(lane, &mut writer, &frame(id(7, 3), 8)).await);
            let copy = RingCopy::read(lane, NODE, span, 7).await.unwrap();
            assert_eq!(copy.last(), id(7, 3), "{short} words short of the window's end");
            assert!(!RingCopy::is_applied(lane, NODE, span, 7).await.unwrap());
        })
        .unwrap();
    }
}
