//! The event queue: a timing wheel, so that an event costs the same whether ten or a million are waiting.
//!
//! Time is cut into slices; the slice that is being run is sorted, those of the next two milliseconds are buckets in which
//! events lie in any order, and what is later waits in a heap. Events of one instant come in the order in which they were
//! put in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Virtual time in picoseconds: a NIC's engine is occupied for a fraction of a nanosecond more or less.
pub(crate) type Picos = u64;

/// Picoseconds of a nanosecond.
pub(crate) const NS: Picos = 1_000;

const SLICE_BITS: u32 = 16;
const SLICES: usize = 1 << 15;
const OCCUPIED_WORDS: usize = SLICES / 64;

struct Entry<E> {
    at: Picos,
    order: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Picos, u64) {
        (self.at, self.order)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Entry<E>) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Entry<E>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Entry<E>) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Events in the order of their times.
pub(crate) struct Queue<E> {
    /// Of the slice that is being run, the next one last.
    current: Vec<Entry<E>>,
    slice: u64,
    buckets: Box<[Vec<Entry<E>>]>,
    /// Which buckets have events, a bit each.
    occupied: [u64; OCCUPIED_WORDS],
    later: BinaryHeap<Reverse<Entry<E>>>,
    next_order: u64,
    len: usize,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue {
            current: Vec::new(),
            slice: 0,
            buckets: (0..SLICES).map(|_| Vec::new()).collect(),
            occupied: [0; OCCUPIED_WORDS],
            later: BinaryHeap::new(),
            next_order: 0,
            len: 0,
        }
    }

    /// Puts an event in. One of a time that is over happens at once.
    #[inline]
    pub(crate) fn push(&mut self, at: Picos, event: E) {
        let entry = Entry { at, order: self.next_order, event };
        self.next_order += 1;
        self.len += 1;
        let slice = at >> SLICE_BITS;
        if slice <= self.slice {
            let place = self.current.partition_point(|other| other.key() > entry.key());
            self.current.insert(place, entry);
        } else if slice - self.slice < SLICES as u64 {
            self.put(slice, entry);
        } else {
            self.later.push(Reverse(entry));
        }
    }

    #[inline]
    fn put(&mut self, slice: u64, entry: Entry<E>) {
        let bucket = slice as usize % SLICES;
        self.buckets[bucket].push(entry);
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
    }

    /// When the next event happens.
    pub(crate) fn next_at(&mut self) -> Option<Picos> {
        if self.current.is_empty() {
            self.advance();
        }
        self.current.last().map(|entry| entry.at)
    }

    /// The next event and its time.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Picos, E)> {
        if self.current.is_empty() {
            self.advance();
        }
        let entry = self.current.pop()?;
        self.len -= 1;
        Some((entry.at, entry.event))
    }

    /// Goes on to the next slice that has events.
    fn advance(&mut self) {
        let wheel = self.next_occupied();
        let heap = self.later.peek().map(|Reverse(entry)| entry.at >> SLICE_BITS);
        let Some(next) = wheel.into_iter().chain(heap).min() else { return };
        self.slice = next;
        let bucket = next as usize % SLICES;
        if wheel == Some(next) {
            std::mem::swap(&mut self.current, &mut self.buckets[bucket]);
            self.occupied[bucket / 64] &= !(1 << (bucket % 64));
        }
        // What was far away may be near now.
        while let Some(Reverse(entry)) = self.later.peek() {
            let slice = entry.at >> SLICE_BITS;
            if slice - next >= SLICES as u64 {
                break;
            }
            let Some(Reverse(entry)) = self.later.pop() else { break };
            if slice == next { self.current.push(entry) } else { self.put(slice, entry) }
        }
        self.current.sort_unstable_by_key(|entry| Reverse(entry.key()));
    }

    fn next_occupied(&self) -> Option<u64> {
        let first = (self.slice + 1) as usize % SLICES;
        let mut word = first / 64;
        let mut bits = self.occupied[word] & (!0 << (first % 64));
        for _ in 0..=OCCUPIED_WORDS {
            if bits != 0 {
                let bucket = word * 64 + bits.trailing_zeros() as usize;
                let ahead = (bucket + SLICES - first) % SLICES;
                return Some(self.slice + 1 + ahead as u64);
            }
            word = (word + 1) % OCCUPIED_WORDS;
            bits = self.occupied[word];
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    #[test]
    fn events_come_in_the_order_of_their_times() {
        let mut prng = Prng::new(7);
        let mut queue = Queue::new();
        let mut expected = std::collections::BTreeSet::new();
        let (mut now, mut number) = (0, 0u64);
        for _ in 0..200_000 {
            if prng.below(5) < 3 || expected.is_empty() {
                // Now, soon, in the wheel, or far beyond it.
                let reach = [1, 1 << 14, 1 << 20, 1 << 31, 1 << 40][prng.below(5) as usize];
                let at = now + prng.below(reach);
                queue.push(at, number);
                expected.insert((at, number));
                number += 1;
            } else {
                let next = expected.pop_first();
                assert_eq!(queue.next_at(), next.map(|(at, _)| at));
                assert_eq!(queue.pop(), next);
                now = next.map_or(now, |(at, _)| at);
            }
        }
        while let Some(next) = expected.pop_first() {
            assert_eq!(queue.pop(), Some(next));
        }
        assert_eq!((queue.pop(), queue.len), (None, 0));
    }
}
