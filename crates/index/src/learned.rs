//! The learned cache (XStore: Wei thesis, chapter 3): where the leaves of an ordered table are, in
//! eight bytes for each.
//!
//! ```text
//! cuts   sorted keys; a line says about where a key is among them            (top model)
//! part   of the keys from one cut to the next: a line                        (sub-model)
//!        and an entry for each leaf (translation table):
//!            known 1 | separator 23 | id of the leaf 40
//! ```
//!
//! A line is fitted by least squares and comes with bounds: how far behind, and how far ahead, of
//! what it says the truth is. A lookup searches the cuts within the bounds of the top line, then
//! the separators within the bounds of the part's.
//!
//! It is a hint, as everything is that finds leaves: a leaf proves itself by its fences
//! ([`btree`](crate::btree)). So entries need no incarnation, as published ones do, and the bits
//! are a *separator* instead, the low fence as a number of the part: a lookup names one leaf, where
//! published ones read all that are within the bounds (2.26 on average).
//!
//! # Numbers
//!
//! A key's number in a part is made of the first eight bytes in which the part's fences differ, so
//! that keys of several fields are spread by what is different in them, and not by the width of the
//! fields. The cut's is subtracted as an integer, and as many low bits are dropped as leave 23,
//! which `f32` holds exactly: 100,000,000 and 100,000,001 are different numbers.
//!
//! # Invariants
//!
//! 1. **Bounds hold for every key**, whether it was ever there or not, because they are of both
//!    ends of each leaf, between its fences, and lines ascend. (Published ones are of the keys that
//!    were there when it was trained; they lose keys that are inserted after others were deleted.)
//!    They are computed by what lookups compute, with the line's rounded parameters.
//! 2. **Separators ascend**, and are so far apart that few keys can be taken for their neighbours.
//!    Where they are not, the part is divided, and cuts are whole keys: data that no line fits
//!    costs more parts. A part has so few entries that a bound always fits its byte: nothing is
//!    saturated.
//! 3. A part has an entry at its cut; a leaf that lies on both sides of a cut has entries in both
//!    parts.
//!
//! # Learning
//!
//! A client that sees a leaf that is not as remembered has its fences, which is all that there is
//! to learn. The entry is set, and the part is fitted again, from the separators that it has. That
//! takes a microsecond and no READ. Nothing else has to be trained on a memory node or fetched from
//! it. A part that has become large is divided (model expansion).

use std::ops::Range;

#[cfg(test)]
mod tests;

/// Ids of leaves are less.
pub const ID_END: u64 = 1 << 40;
/// Leaves of a part when a table is learnt as a whole: it has room for as many more.
const LEAVES: usize = 128;
/// Leaves of a part.
const LEAVES_MAX: usize = 2 * LEAVES;
// A line says places of the list only, so that no bound of a part is saturated.
const _: () = assert!(LEAVES_MAX - 1 <= u8::MAX as usize);
/// Bits of a number: `f32` has all integers of this many bits.
const NUMBER_BITS: u32 = 23;
const NUMBER_MAX: u32 = (1 << NUMBER_BITS) - 1;
const _: () = assert!(NUMBER_BITS < f32::MANTISSA_DIGITS && NUMBER_BITS + 40 + 1 == u64::BITS);
/// Least distance between separators that are not exact. At most one in `APART` of a leaf's keys is
/// taken for its neighbour's.
const APART: u32 = 16;
/// Cuts that are added, at least, before the top line is fitted again.
const ADDED_MIN: usize = 64;

/// What is remembered of a leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    fn new(separator: u32, id: Option<u64>) -> Entry {
        let known = id.filter(|id| *id < ID_END).map_or(0, |id| 1 << 63 | id);
        Entry(known | u64::from(separator) << 40)
    }

    #[inline]
    fn separator(self) -> u32 {
        (self.0 >> 40) as u32 & NUMBER_MAX
    }

    /// `None`: nothing is known of the keys from here to the next entry.
    #[inline]
    fn id(self) -> Option<u64> {
        (self.0 >> 63 == 1).then_some(self.0 & (ID_END - 1))
    }
}

/// How keys become numbers.
#[derive(Clone, Copy)]
struct Scale {
    /// Bytes that all have in common.
    prefix: u8,
    /// Bits that are dropped.
    shift: u8,
    /// The bytes behind the prefix that differ, if there are others among them: those are left out,
    /// as the high bytes of small fields are. 0: the eight bytes there.
    differ: u16,
}

/// The eight bytes of a key from one on, as a number.
#[inline]
fn window(key: &[u8], from: usize) -> u64 {
    let rest = &key[from..];
    match rest.first_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => rest.iter().rev().fold(0, |number, byte| number >> 8 | u64::from(*byte) << 56),
    }
}

impl Scale {
    /// For keys in order; whether each of them has a number of its own.
    fn of<'k>(mut keys: impl DoubleEndedIterator<Item = &'k [u8]> + Clone) -> (Scale, bool) {
        let all = keys.clone();
        let first = keys.next().unwrap_or_default();
        let last = keys.next_back().unwrap_or(first);
        let prefix = first.iter().zip(last).take_while(|(one, other)| one == other).count();
        let (mut differ, mut behind) = (0_u16, false);
        for key in all {
            for (at, _) in (prefix..).zip(&key[prefix..]).zip(&first[prefix..]).filter(|((_, one), other)| one != other)
            {
                let at = at.0 - prefix;
                behind |= at >= u16::BITS as usize;
                differ |= 1_u16.checked_shl(at as u32).unwrap_or(0);
            }
        }
        let bytes = u16::BITS - differ.leading_zeros();
        let is_one_run = differ.count_ones() == bytes;
        while differ.count_ones() > size_of::<u64>() as u32 {
            behind = true;
            differ &= !(1 << (u16::BITS - 1 - differ.leading_zeros()));
        }
        let prefix = if is_one_run { prefix.min(first.len().saturating_sub(size_of::<u64>())) } else { prefix };
        let scale = Scale { prefix: prefix as u8, shift: 0, differ: if is_one_run { 0 } else { differ } };
        let span = scale.value(first, last) - scale.value(first, first);
        let shift = (u64::BITS - span.leading_zeros()).saturating_sub(NUMBER_BITS);
        (Scale { shift: shift as u8, ..scale }, shift == 0 && !behind)
    }

    /// What differs in a key from others. Does not descend where keys ascend; `base` is one of
    /// them.
    #[inline]
    fn value(self, base: &[u8], key: &[u8]) -> u64 {
        let prefix = usize::from(self.prefix);
        if key[..prefix] != base[..prefix] {
            return if key < base { 0 } else { u64::MAX };
        }
        if self.differ == 0 { window(key, prefix) } else { self.gather(&base[prefix..], &key[prefix..]) }
    }

    fn gather(self, base: &[u8], key: &[u8]) -> u64 {
        let (mut value, mut rest) = (0, self.differ);
        for (byte, of_base) in key.iter().zip(base) {
            if rest & 1 == 1 {
                value = value << 8 | u64::from(*byte);
            } else if byte != of_base {
                // It is behind all that begin so, or before them.
                let bits = 8 * rest.count_ones();
                let all = |value: u64| value.checked_shl(bits).unwrap_or(0);
                return if byte < of_base { all(value) } else { all(value) | !all(u64::MAX) };
            }
            rest >>= 1;
            if rest == 0 {
                break;
            }
        }
        value
    }

    /// The number of a key, where that of `base` is 0. Does not descend where keys ascend.
    #[inline]
    fn number(self, base: &[u8], key: &[u8]) -> u32 {
        let beyond = self.value(base, key).saturating_sub(self.value(base, base)) >> self.shift;
        beyond.min(NUMBER_MAX.into()) as u32
    }

    /// Appends the least key of a number.
    fn least(self, base: &[u8], number: u32, keys: &mut Vec<u8>) {
        let (start, prefix) = (keys.len(), usize::from(self.prefix));
        keys.extend_from_slice(base);
        if number == 0 {
            return;
        }
        let value = self.value(base, base).saturating_add(u64::from(number) << self.shift);
        let key = &mut keys[start + prefix..];
        if self.differ == 0 {
            key.fill(0);
            let bytes = key.len().min(size_of::<u64>());
            key[..bytes].copy_from_slice(&value.to_be_bytes()[..bytes]);
            return;
        }
        key[u16::BITS as usize - self.differ.leading_zeros() as usize..].fill(0);
        let mut bytes = value.to_be_bytes().into_iter().skip(size_of::<u64>() - self.differ.count_ones() as usize);
        for (_, byte) in
            key.iter_mut().enumerate().filter(|(at, _)| self.differ.checked_shr(*at as u32).unwrap_or(0) & 1 == 1)
        {
            *byte = bytes.next().unwrap_or(0);
        }
    }
}

/// About where a number is in a sorted list. It does not descend.
#[derive(Clone, Copy, Default)]
struct Line {
    slope: f32,
    start: f32,
}

impl Line {
    /// By least squares.
    fn fit(points: impl Iterator<Item = (u32, usize)> + Clone) -> Line {
        let sums = points
            .clone()
            .fold((0.0, 0.0, 0.0), |(count, xs, ys), (x, y)| (count + 1.0, xs + f64::from(x), ys + y as f64));
        let (count, xs, ys) = sums;
        let (x_mean, y_mean) = (xs / count, ys / count);
        let (products, squares) = points.fold((0.0, 0.0), |(products, squares), (x, y)| {
            let from_mean = f64::from(x) - x_mean;
            (products + from_mean * (y as f64 - y_mean), squares + from_mean * from_mean)
        });
        let slope = if squares > 0.0 { (products / squares).max(0.0) } else { 0.0 };
        // Half a place more, because places are rounded down.
        Line { slope: slope as f32, start: (y_mean - slope * x_mean + 0.5) as f32 }
    }

    /// A place in a list that ends with `last`.
    #[inline]
    fn place(self, number: u32, last: usize) -> usize {
        // Ascends: rounding does, and so do conversions, which saturate.
        ((self.slope * number as f32 + self.start) as usize).min(last)
    }

    /// How far at most the truth is behind what it says, and how far ahead. Points are numbers and
    /// their true places.
    fn bounds(self, points: impl Iterator<Item = (u32, usize)>, last: usize) -> (usize, usize) {
        points.fold((0, 0), |(behind, ahead), (number, place)| {
            let said = self.place(number, last);
            (behind.max(said.saturating_sub(place)), ahead.max(place.saturating_sub(said)))
        })
    }

    /// Where to search.
    #[inline]
    fn range(self, number: u32, (behind, ahead): (usize, usize), last: usize) -> Range<usize> {
        let said = self.place(number, last);
        said.saturating_sub(behind)..(said + ahead).min(last) + 1
    }
}

/// The last element of a range of which something holds that holds of the first ones; the first, if
/// it holds of none.
#[inline]
fn last_of(range: Range<usize>, holds: impl Fn(usize) -> bool) -> usize {
    let (mut from, mut to) = (range.start, range.end);
    while to - from > 1 {
        let middle = from.midpoint(to);
        if holds(middle) { from = middle } else { to = middle }
    }
    from
}

/// Low fences, one behind the other, and ids.
#[derive(Default)]
struct Leaves {
    lows: Vec<u8>,
    ids: Vec<Option<u64>>,
}

impl Leaves {
    fn low(&self, at: usize) -> &[u8] {
        let bytes = self.lows.len() / self.ids.len();
        &self.lows[at * bytes..][..bytes]
    }

    fn lows(&self) -> impl DoubleEndedIterator<Item = &[u8]> + Clone {
        (0..self.ids.len()).map(|at| self.low(at))
    }

    fn push(&mut self, low: &[u8], id: Option<u64>) {
        self.lows.extend_from_slice(low);
        self.ids.push(id);
    }

    /// Appends a leaf of a part, from its separator.
    fn keep(&mut self, part: &Part, cut: &[u8], separator: u32, id: Option<u64>) {
        part.scale.least(cut, separator, &mut self.lows);
        self.ids.push(id);
    }

    fn split_off(&mut self, at: usize) -> Leaves {
        let bytes = self.lows.len() / self.ids.len();
        Leaves { lows: self.lows.split_off(at * bytes), ids: self.ids.split_off(at) }
    }
}

/// A model of the keys from one cut to the next.
struct Part {
    /// Ascending; the first one's separator is 0.
    entries: Box<[Entry]>,
    line: Line,
    scale: Scale,
    behind: u8,
    ahead: u8,
}

impl Part {
    /// Fits a part to leaves, the first of which begins at the cut. `None` if they must be divided.
    fn fit(leaves: &Leaves) -> Option<Part> {
        let (last, base) = (leaves.ids.len() - 1, leaves.low(0));
        if last >= LEAVES_MAX {
            return None;
        }
        let (scale, is_exact) = Scale::of(leaves.lows());
        let separator = |at| scale.number(base, leaves.low(at));
        let apart = if is_exact { 1 } else { APART };
        if !(0..last).all(|at| separator(at + 1) >= separator(at) + apart) {
            return None;
        }
        let entries: Box<[Entry]> = (0..=last).map(|at| Entry::new(separator(at), leaves.ids[at])).collect();
        let firsts = entries.iter().enumerate().map(|(at, entry)| (entry.separator(), at));
        let line = Line::fit(firsts.clone());
        let ends = entries[1..].iter().map(|next| next.separator() - 1).chain([NUMBER_MAX]).zip(0..);
        let (behind, ahead) = line.bounds(firsts.chain(ends), last);
        Some(Part { entries, line, scale, behind: behind as u8, ahead: ahead as u8 })
    }

    /// Fits parts to leaves, and divides the leaves as far as necessary.
    fn fit_all(mut leaves: Leaves, parts: &mut Vec<(Vec<u8>, Part)>) {
        if let Some(part) = Part::fit(&leaves) {
            return parts.push((leaves.low(0).to_vec(), part));
        }
        let count = leaves.ids.len();
        let at = if count > LEAVES_MAX {
            count / 2
        } else {
            // Where they are furthest from each other: there the common prefix is shortest.
            let (scale, _) = Scale::of(leaves.lows());
            let value = |at| scale.value(leaves.low(0), leaves.low(at));
            let gap = |at: &usize| value(*at) - value(at - 1);
            (1..count).max_by_key(gap).unwrap_or(1)
        };
        let behind = leaves.split_off(at);
        Part::fit_all(leaves, parts);
        Part::fit_all(behind, parts);
    }

    /// The place of a key's entry.
    #[inline]
    fn place(&self, cut: &[u8], key: &[u8]) -> usize {
        let number = self.scale.number(cut, key);
        let bounds = (self.behind.into(), self.ahead.into());
        let range = self.line.range(number, bounds, self.entries.len() - 1);
        last_of(range, |at| self.entries[at].separator() <= number)
    }
}

/// How large a cache is, and how good.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Size {
    /// Sub-models.
    pub parts: usize,
    /// Entries of leaves.
    pub entries: usize,
    /// Bytes of all models: what stays if the entries are elsewhere.
    pub model_bytes: usize,
    /// Bytes of all of it.
    pub bytes: usize,
    /// Entries that a lookup searches, on average.
    pub searched: f64,
}

/// See the [module](self).
pub struct Learned {
    key_bytes: usize,
    /// One behind the other; the first is the least key.
    cuts: Vec<u8>,
    /// Of each cut.
    parts: Vec<Part>,
    top: Line,
    scale: Scale,
    bounds: (usize, usize),
    /// Cuts since the top line was fitted.
    added: usize,
}

impl std::fmt::Debug for Learned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Learned").field("size", &self.size()).finish_non_exhaustive()
    }
}

impl Learned {
    /// A learned cache of a table whose keys have `key_bytes` bytes, and whose leaves are not
    /// known.
    #[must_use]
    pub fn new(key_bytes: usize) -> Learned {
        Learned::of_leaves(key_bytes, std::iter::empty::<([u8; 0], u64)>())
    }

    /// A learned cache of leaves in order, each its low fence and its id; together they have all
    /// keys.
    #[must_use]
    pub fn of_leaves<K: AsRef<[u8]>>(key_bytes: usize, leaves: impl IntoIterator<Item = (K, u64)>) -> Learned {
        let mut all = Vec::new();
        let mut few = Leaves::default();
        for (low, id) in leaves {
            if few.ids.len() == LEAVES {
                Part::fit_all(std::mem::take(&mut few), &mut all);
            }
            few.push(low.as_ref(), Some(id));
        }
        if few.ids.is_empty() && all.is_empty() {
            few.push(&vec![0; key_bytes], None);
        }
        if !few.ids.is_empty() {
            Part::fit_all(few, &mut all);
        }
        let cuts = all.iter().flat_map(|(cut, _)| cut.iter().copied()).collect();
        let parts = all.into_iter().map(|(_, part)| part).collect();
        let (top, scale) = (Line::default(), Scale { prefix: 0, shift: 0, differ: 0 });
        let mut learned = Learned { key_bytes, cuts, parts, top, scale, bounds: (0, 0), added: 0 };
        learned.fit_top();
        learned
    }

    /// The leaf of a key, as far as it knows.
    #[inline]
    #[must_use]
    pub fn find(&self, key: &[u8]) -> Option<u64> {
        let part = self.part(key);
        self.parts[part].entries[self.parts[part].place(self.cut(part), key)].id()
    }

    /// The leaf of a key and the leaves to its right, as far as they are known, up to the leaf of
    /// another key; at most `max`.
    #[must_use]
    pub fn chain(&self, from: &[u8], to: &[u8], max: usize) -> Vec<u64> {
        let mut chain = Vec::with_capacity(max.min(64));
        let first = self.part(from);
        let mut at = self.parts[first].place(self.cut(first), from);
        for (index, part) in self.parts.iter().enumerate().skip(first) {
            if index > first && self.cut(index) > to {
                break;
            }
            let end = part.scale.number(self.cut(index), to);
            for entry in part.entries[at..].iter().take_while(|entry| entry.separator() <= end) {
                let Some(id) = entry.id() else { return chain };
                if chain.last() == Some(&id) {
                    continue; // on both sides of the cut
                }
                if chain.len() == max {
                    return chain;
                }
                chain.push(id);
            }
            at = 0;
        }
        chain
    }

    /// Notes where a leaf is, by its fences: what was remembered of its keys is forgotten.
    pub fn learn(&mut self, low: &[u8], high: Option<&[u8]>, id: u64) {
        let first = self.part(low);
        let end = high.map_or(self.parts.len(), |high| self.part(high));
        if end > first {
            self.drop_parts(first + 1..end);
            let behind = first + 1;
            if behind < self.parts.len() && high.is_none_or(|high| self.cut(behind) < high) {
                self.learn_in(behind, low, high, id);
            }
        }
        self.learn_in(first, low, high, id);
        if self.added > ADDED_MIN.max(self.parts.len() / ADDED_MIN) {
            self.fit_top();
        }
    }

    /// Notes where a leaf is, among the keys of one part.
    fn learn_in(&mut self, index: usize, low: &[u8], high: Option<&[u8]>, id: u64) {
        let cut = self.cut(index);
        let part = &self.parts[index];
        let low = low.max(cut);
        let number = |key| part.scale.number(cut, key);
        let behind = (index + 1 < self.parts.len()).then(|| self.cut(index + 1));
        // Where it ends within the part.
        let end = high.filter(|high| behind.is_none_or(|behind| *high < behind));
        let (low_number, end_number) = (number(low), end.map(number));
        let entry = Entry::new(low_number, Some(id));
        let at = part.place(cut, low);
        let is_last = |next: Option<&Entry>| match (next, end_number) {
            (None, _) => true,
            (Some(next), Some(end)) => next.separator() >= end,
            (Some(_), None) => false,
        };
        let is_known_behind = end.is_none_or(|end| part.entries[part.place(cut, end)].id().is_some());
        let is_there = at > 0 || low == cut;
        if is_there && part.entries[at] == entry && is_last(part.entries.get(at + 1)) && is_known_behind {
            return;
        }
        let mut leaves = Leaves::default();
        let is_left = |at: usize, entry: &Entry| entry.separator() < low_number || at == 0 && low > cut;
        let is_right =
            |entry: &Entry| end_number.is_some_and(|end| entry.separator() >= end && entry.separator() > low_number);
        for (at, entry) in part.entries.iter().enumerate().take_while(|(at, entry)| is_left(*at, entry)) {
            if entry.id() != Some(id) {
                leaves.keep(part, cut, entry.separator(), entry.id());
            } else if at == 0 {
                // What it was taken for is on the other side of the cut.
                leaves.push(cut, index.checked_sub(1).and_then(|before| self.parts[before].entries.last()?.id()));
            }
        }
        leaves.push(low, Some(id));
        let mut right = part.entries.iter().filter(|entry| is_right(entry)).peekable();
        if let Some(end) = end
            && right.peek().is_none_or(|next| Some(next.separator()) != end_number)
            && part.entries[part.place(cut, end)].id().is_none()
        {
            leaves.push(end, None);
        }
        right.for_each(|entry| leaves.keep(part, cut, entry.separator(), entry.id()));
        self.replace(index, leaves);
    }

    /// The leaf of a key is not there: what it had, the one to its left is taken for.
    pub fn forget(&mut self, key: &[u8], id: u64) {
        let index = self.part(key);
        let (cut, part) = (self.cut(index), &self.parts[index]);
        let gone = part.place(cut, key);
        if part.entries[gone].id() != Some(id) {
            return;
        }
        let mut leaves = Leaves::default();
        for (at, entry) in part.entries.iter().enumerate().filter(|(at, _)| *at != gone || gone == 0) {
            leaves.keep(part, cut, entry.separator(), entry.id().filter(|_| at != gone));
        }
        self.replace(index, leaves);
    }

    /// Fits a part again, of other leaves.
    fn replace(&mut self, index: usize, leaves: Leaves) {
        let mut parts = Vec::with_capacity(1);
        Part::fit_all(leaves, &mut parts);
        let added = parts.len() - 1;
        let cuts: Vec<u8> = parts[1..].iter().flat_map(|(cut, _)| cut.iter().copied()).collect();
        let at = (index + 1) * self.key_bytes;
        self.cuts.splice(at..at, cuts);
        self.parts.splice(index..=index, parts.into_iter().map(|(_, part)| part));
        // Places behind the part grow by `added`, and so does the last place.
        self.bounds = (self.bounds.0 + added, self.bounds.1 + added);
        self.added += added;
    }

    /// Parts whose keys the one before them gets.
    fn drop_parts(&mut self, parts: Range<usize>) {
        let gone = parts.len();
        self.cuts.drain(parts.start * self.key_bytes..parts.end * self.key_bytes);
        self.parts.drain(parts);
        self.bounds.0 += gone;
        self.added += gone;
    }

    /// How large it is.
    #[must_use]
    pub fn size(&self) -> Size {
        let entries = self.parts.iter().map(|part| part.entries.len()).sum();
        let searched = |part: &Part| {
            part.entries.len() * (1 + usize::from(part.behind) + usize::from(part.ahead)).min(part.entries.len())
        };
        let searched: usize = self.parts.iter().map(searched).sum();
        let model_bytes = size_of::<Learned>() + self.cuts.len() + self.parts.len() * size_of::<Part>();
        let bytes = model_bytes + entries * size_of::<Entry>();
        Size { parts: self.parts.len(), entries, model_bytes, bytes, searched: searched as f64 / entries as f64 }
    }

    fn fit_top(&mut self) {
        let last = self.parts.len() - 1;
        (self.scale, _) = Scale::of((0..=last).map(|part| self.cut(part)));
        let number = |at| self.scale.number(self.cut(0), self.cut(at));
        let firsts = (0..=last).map(|at| (number(at), at));
        let line = Line::fit(firsts.clone());
        // The number of a part's last key may be that of the next cut.
        let ends = (1..=last).map(number).chain([NUMBER_MAX]).zip(0..);
        let bounds = line.bounds(firsts.chain(ends), last);
        (self.top, self.bounds, self.added) = (line, bounds, 0);
    }

    #[inline]
    fn cut(&self, part: usize) -> &[u8] {
        &self.cuts[part * self.key_bytes..][..self.key_bytes]
    }

    /// The part of a key.
    #[inline]
    fn part(&self, key: &[u8]) -> usize {
        let number = self.scale.number(self.cut(0), key);
        last_of(self.top.range(number, self.bounds, self.parts.len() - 1), |part| self.cut(part) <= key)
    }
}
