//! The event queue of the simulator. It is a timing wheel, so an event costs the same whether ten
//! or a million events are waiting.
//!
//! Time is cut into slices of a few nanoseconds.
//!
//! 1. The next events, at least [`AHEAD`] of them, are sorted.
//! 2. Events of the next sixty microseconds are in buckets, one unordered list for each slice.
//! 3. Later events wait in a heap.
//!
//! Events of one instant come out in the order in which they were put in.
//!
//! The queue shows some events before they happen. So the code that runs the events can prefetch
//! into the caches what the next events need.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Virtual time in picoseconds. The occupancies of a NIC's engine differ by fractions of a
/// nanosecond.
pub(crate) type Picos = u64;

/// Picoseconds of a nanosecond.
pub(crate) const NS: Picos = 1_000;

/// The number of events that are sorted before they are due, if that many are waiting.
pub(crate) const AHEAD: usize = 4;

const SLICE_BITS: u32 = 11;
const SLICES: usize = 1 << 15;
const OCCUPIED_WORDS: usize = SLICES / 64;
/// The largest number of past events that may still stand before the sorted events.
const OVER_MAX: usize = 64;
/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry<E> {
    at: Picos,
    order: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Picos, u64) {
        (self.at, self.order)
    }

    fn slice(&self) -> u64 {
        self.at >> SLICE_BITS
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

/// A link of a bucket's list, which has an event or is free.
struct Link<E> {
    entry: Entry<E>,
    next: u32,
}

/// Events in the order of their times.
pub(crate) struct Queue<E> {
    /// All events of the slices up to `slice`, ascending. The events before `first` are over.
    front: Vec<Entry<E>>,
    first: usize,
    slice: u64,
    /// The first link of each bucket's list.
    buckets: Box<[u32]>,
    /// The buckets that have events, one bit each.
    occupied: [u64; OCCUPIED_WORDS],
    links: Vec<Link<E>>,
    /// The first free link. The links that were used last are used again first, because they are in
    /// the cache.
    free: u32,
    later: BinaryHeap<Reverse<Entry<E>>>,
    /// The number of events that are not in `front`.
    waiting: usize,
    next_order: u64,
}

impl<E: Copy> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue {
            front: Vec::new(),
            first: 0,
            slice: 0,
            buckets: vec![NONE; SLICES].into(),
            occupied: [0; OCCUPIED_WORDS],
            links: Vec::new(),
            free: NONE,
            later: BinaryHeap::new(),
            waiting: 0,
            next_order: 0,
        }
    }

    /// Puts an event in. An event whose time is over happens at once.
    #[inline]
    pub(crate) fn push(&mut self, at: Picos, event: E) {
        let entry = Entry { at, order: self.next_order, event };
        self.next_order += 1;
        let slice = entry.slice();
        if slice <= self.slice {
            return self.insert(entry);
        }
        self.waiting += 1;
        if slice - self.slice < SLICES as u64 {
            self.put(slice, entry);
        } else {
            self.later.push(Reverse(entry));
        }
    }

    /// Inserts an event among the sorted events, which are few. Its place is near their end.
    #[inline]
    fn insert(&mut self, entry: Entry<E>) {
        let sorted = &self.front[self.first..];
        match sorted.iter().rev().position(|other| other.key() < entry.key()).unwrap_or(sorted.len()) {
            0 => self.front.push(entry),
            behind => self.front.insert(self.front.len() - behind, entry),
        }
    }

    #[inline]
    fn put(&mut self, slice: u64, entry: Entry<E>) {
        let bucket = slice as usize % SLICES;
        let link = Link { entry, next: self.buckets[bucket] };
        let index = self.free;
        if let Some(free) = self.links.get_mut(index as usize) {
            self.free = free.next;
            *free = link;
            self.buckets[bucket] = index;
        } else {
            self.buckets[bucket] = self.links.len() as u32;
            self.links.push(link);
        }
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
    }

    /// Returns when the next event happens.
    #[inline]
    pub(crate) fn next_at(&mut self) -> Option<Picos> {
        if self.first == self.front.len() {
            self.advance();
        }
        self.front.get(self.first).map(|entry| entry.at)
    }

    /// Removes the next event, and returns it with its time.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Picos, E)> {
        while self.front.len() - self.first <= AHEAD && self.waiting > 0 {
            self.advance();
        }
        let entry = *self.front.get(self.first)?;
        self.first += 1;
        if self.first == OVER_MAX || self.first == self.front.len() {
            self.front.drain(..self.first);
            self.first = 0;
        }
        Some((entry.at, entry.event))
    }

    /// Returns the event that comes after `others` other events, if it is known. `others` must be
    /// less than [`AHEAD`].
    #[inline]
    pub(crate) fn ahead(&self, others: usize) -> Option<&E> {
        self.front.get(self.first + others).map(|entry| &entry.event)
    }

    /// Adds the events of the next slice that has any to the sorted events.
    fn advance(&mut self) {
        let wheel = self.next_occupied();
        let heap = self.later.peek().map(|Reverse(entry)| entry.slice());
        let Some(next) = wheel.into_iter().chain(heap).min() else { return };
        self.slice = next;
        if wheel == Some(next) {
            self.take_bucket(next as usize % SLICES);
        }
        // Events that were far away may be near now.
        while let Some(Reverse(entry)) = self.later.peek() {
            let slice = entry.slice();
            if slice - next >= SLICES as u64 {
                break;
            }
            let Some(Reverse(entry)) = self.later.pop() else { break };
            if slice == next {
                self.waiting -= 1;
                self.insert(entry);
            } else {
                self.put(slice, entry);
            }
        }
    }

    fn take_bucket(&mut self, bucket: usize) {
        self.occupied[bucket / 64] &= !(1 << (bucket % 64));
        let mut index = std::mem::replace(&mut self.buckets[bucket], NONE);
        while let Some(link) = self.links.get_mut(index as usize) {
            let entry = link.entry;
            let next = std::mem::replace(&mut link.next, self.free);
            self.free = std::mem::replace(&mut index, next);
            self.waiting -= 1;
            self.insert(entry);
        }
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
                // The times are: now, soon, within the wheel, or far beyond it.
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
        assert_eq!((queue.pop(), queue.waiting), (None, 0));
    }
}
