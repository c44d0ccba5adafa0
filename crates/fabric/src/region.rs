//! A region: mapped memory, as a slice of atomic words.
//!
//! This is the only file of the crate that maps memory. All other code reaches a region's bytes
//! through `&[AtomicU64]`, so it is safe code.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::thread::futex::{self, WaitFlags, WaitPtr, WaitvFlags};
use zerocopy::IntoBytes;

use crate::address::{LINE_BYTES, WORD_BYTES};
use crate::headroom::Headroom;
use crate::ids::Nanos;
use crate::limits::{RESERVE_BYTES, TAKE_BYTES};
use crate::prefetch::prefetch;

/// Bytes of the huge pages that mappings are rounded up to.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Words of the smallest page of any machine.
const SMALL_PAGE_WORDS: usize = 4096 / WORD_BYTES;

/// The kind of pages that back a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Reserved 2 MiB pages.
    Huge,
    /// 4 KiB pages that the kernel has been asked to merge into 2 MiB pages. It may or may not do
    /// so.
    Transparent,
    /// 4 KiB pages: the system gives no huge ones.
    Small,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pages::Huge => "2 MiB pages",
            Pages::Transparent => "4 KiB pages, transparent huge pages advised",
            Pages::Small => "4 KiB pages, no huge pages on this system",
        })
    }
}

/// A region could not be mapped, or its memory could not be taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegionError {
    /// The size is 0, or is not a multiple of a line.
    #[error("a region's size must be a positive multiple of {LINE_BYTES} bytes, not {0}")]
    Size(usize),
    /// The system refused the mapping.
    #[error("the system does not give {bytes} bytes of memory: {cause}; ask for less, or free some")]
    Refused {
        /// The number of bytes that were asked for.
        bytes: usize,
        /// The system's error.
        cause: Errno,
    },
    /// The process may not take that much memory.
    #[error("{} MiB are too much: {left}, and {} MiB of that are kept for the process itself", bytes.div_ceil(1 << 20), RESERVE_BYTES >> 20)]
    TooMuch {
        /// The number of bytes that were asked for.
        bytes: u64,
        /// The memory that the process may still take.
        left: Headroom,
    },
}

/// A region of a memory node that this process has mapped. It is 64-byte aligned, zeroed when new,
/// and unmapped when dropped.
pub struct Region {
    base: NonNull<AtomicU64>,
    words: usize,
    mapped_bytes: usize,
    pages: Pages,
    /// Whether only this process has the memory, and no file has its contents.
    is_private: bool,
}

// SAFETY: the memory of a region is only ever reached as `&[AtomicU64]`, which is Send and Sync.
// The pointer is not tied to a thread, and `Drop` has exclusive access.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes` of zeroed memory, in huge pages where the system gives them.
    pub fn anonymous(bytes: usize) -> Result<Region, RegionError> {
        // Without overcommit, HUGETLB either reserves all its pages now or fails. So it cannot
        // fault later.
        match Region::map(bytes, MapFlags::HUGETLB | MapFlags::HUGE_2MB, Pages::Huge) {
            Err(RegionError::Refused { .. }) => Region::advised(bytes),
            mapped => mapped,
        }
    }

    /// Maps `bytes` of zeroed memory, which costs memory once it is touched. Asks the system to
    /// merge its pages into huge ones. Takes none of the reserved huge pages, which are for memory
    /// nodes.
    pub fn advised(bytes: usize) -> Result<Region, RegionError> {
        let mut region = Region::map(bytes, MapFlags::empty(), Pages::Transparent).map_err(|error| match error {
            // The limits of the process explain a refusal better than the system's error does.
            RegionError::Refused { .. } => there_is(bytes as u64).err().unwrap_or(error),
            error => error,
        })?;
        // SAFETY: the range is the mapping of this region. Advice does not change its contents.
        let advised = unsafe { madvise(region.base.as_ptr().cast(), region.mapped_bytes, Advice::LinuxHugepage) };
        if advised.is_err() {
            region.pages = Pages::Small;
        }
        Ok(region)
    }

    /// Maps `bytes` of zeroed memory, up to the end of a huge page.
    fn map(bytes: usize, flags: MapFlags, pages: Pages) -> Result<Region, RegionError> {
        if bytes == 0 || !bytes.is_multiple_of(LINE_BYTES) {
            return Err(RegionError::Size(bytes));
        }
        let mapped_bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or(RegionError::Size(bytes))?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | flags);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), mapped_bytes, access, flags) }
            .map_err(|cause| RegionError::Refused { bytes, cause })?;
        let base = NonNull::new(base.cast::<AtomicU64>()).ok_or(RegionError::Size(bytes))?;
        Ok(Region { base, words: bytes / WORD_BYTES, mapped_bytes, pages, is_private: true })
    }

    /// Maps `bytes` bytes of zeroed memory. Only the 4 KiB pages that are touched cost memory.
    pub fn sparse(bytes: usize) -> Result<Region, RegionError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .map_err(|cause| RegionError::Refused { bytes, cause })?;
        let base = NonNull::new(base.cast::<AtomicU64>()).ok_or(RegionError::Size(bytes))?;
        let words = bytes / WORD_BYTES;
        Ok(Region { base, words, mapped_bytes: bytes, pages: Pages::Small, is_private: true })
    }

    /// Maps a part of a file or of a memory device. Every other process that maps the same part
    /// shares it. `huge` asks for huge pages.
    ///
    /// If another process makes the file shorter afterwards, an access beyond the new end kills
    /// this process. But the server of a region's file holds its lock, and no other process has a
    /// reason to change its length.
    pub(crate) fn of_file(file: &File, offset: u64, bytes: usize, huge: bool) -> Result<Region, RegionError> {
        if bytes == 0 || !bytes.is_multiple_of(LINE_BYTES) {
            return Err(RegionError::Size(bytes));
        }
        // The mapping may reach beyond the end of a file, where nothing is touched. A device is
        // mapped in whole huge pages.
        let mapped_bytes = bytes.checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or(RegionError::Size(bytes))?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice aliases no memory of this
        // process that the language knows of. Another process that maps the file also reaches it by
        // atomic words only.
        let base = unsafe { mmap(ptr::null_mut(), mapped_bytes, access, flags, file, offset) }
            .map_err(|cause| RegionError::Refused { bytes, cause })?;
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: the range is the mapping that was made above. Advice does not change its
        // contents.
        let advised = unsafe { madvise(base, mapped_bytes, advice) };
        let pages = if huge && advised.is_ok() { Pages::Transparent } else { Pages::Small };
        let base = NonNull::new(base.cast::<AtomicU64>()).ok_or(RegionError::Size(bytes))?;
        Ok(Region { base, words: bytes / WORD_BYTES, mapped_bytes, pages, is_private: false })
    }

    /// Takes all memory of a region from the system now, and fails if there is not enough. If it
    /// fails, drop the region to give back what was taken. It checks the limits before each piece,
    /// because other processes take memory meanwhile.
    pub fn take(&self) -> Result<(), RegionError> {
        // Reserved pages belong to this process already.
        let is_shared = self.pages != Pages::Huge;
        if is_shared {
            there_is(self.bytes())?;
        }
        for from in (0..self.mapped_bytes).step_by(TAKE_BYTES) {
            let bytes = TAKE_BYTES.min(self.mapped_bytes - from);
            if is_shared {
                there_is(bytes as u64)?;
            }
            // SAFETY: the range lies within the mapping. Populating it does not change its
            // contents.
            let taken = unsafe {
                let start = self.base.as_ptr().cast::<u8>().add(from);
                madvise(start.cast(), bytes, Advice::LinuxPopulateWrite)
            };
            match taken {
                Ok(()) => {}
                // A kernel older than 5.14 does not know the call: each page is touched.
                Err(Errno::INVAL) => {
                    let words = self.words().iter().skip(from / WORD_BYTES).take(bytes / WORD_BYTES);
                    words.step_by(SMALL_PAGE_WORDS).for_each(|word| _ = word.fetch_or(0, Ordering::Relaxed));
                }
                Err(cause) => return Err(RegionError::Refused { bytes: self.words * WORD_BYTES, cause }),
            }
        }
        Ok(())
    }

    /// Zeroes `words` words from the word `start` on, and gives their whole pages back to the
    /// system. The next access to such a page takes memory again. Threads that access these words
    /// meanwhile find each word as it was before, or zero.
    ///
    /// Returns false, and leaves the region as it is or partly zeroed, if the system does not take
    /// pages back. This is so for reserved huge pages, which might be gone when they are needed
    /// again, for files and devices, and for a range without a whole page.
    pub(crate) fn give_back(&self, start: usize, words: usize) -> bool {
        let page_words = rustix::param::page_size() / WORD_BYTES;
        let end = start.saturating_add(words).min(self.words);
        let (first, last) = (start.next_multiple_of(page_words), end / page_words * page_words);
        if first >= last || !self.is_private || self.pages == Pages::Huge {
            return false;
        }
        // SAFETY: the range is whole pages within this region's own mapping. It becomes zero, which
        // are valid words. The memory is only reached as atomic words, so this is like a store by
        // another thread.
        let given = unsafe {
            let from = self.base.as_ptr().add(first);
            madvise(from.cast(), (last - first) * WORD_BYTES, Advice::LinuxDontNeed)
        };
        if given.is_ok() {
            let edges = self.words()[start..first].iter().chain(&self.words()[last..end]);
            edges.for_each(|word| word.store(0, Ordering::Release));
        }
        given.is_ok()
    }

    /// Returns the region's words.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` is page-aligned, and the mapping spans `words` words, which the kernel has
        // zeroed. Every bit pattern is a valid AtomicU64. The mapping lives as long as `self`, and
        // there is no `&mut` to it.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// Prefetches the line of a word into the processor's cache. It reads nothing.
    #[inline(always)]
    pub(crate) fn prefetch(&self, word: usize) {
        if let Some(word) = self.words().get(word) {
            prefetch(word);
        }
    }

    /// Returns the size of the region in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.words * WORD_BYTES) as u64
    }

    /// Returns the number of bytes of the region that take memory at the moment, for tests. It
    /// looks at every page.
    #[doc(hidden)]
    pub fn resident_bytes(&self) -> io::Result<u64> {
        let page = rustix::param::page_size();
        let mut entries = vec![0u64; (self.words * WORD_BYTES).div_ceil(page)];
        let first = self.base.as_ptr() as usize / page;
        File::open("/proc/self/pagemap")?.read_exact_at(entries.as_mut_bytes(), (first * size_of::<u64>()) as u64)?;
        // The highest bit of an entry says that the page is there.
        Ok((entries.iter().filter(|entry| *entry >> 63 == 1).count() * page) as u64)
    }

    /// Returns the kind of pages that back the region.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }
}

/// Fails if this process may not take `bytes` bytes and still keep a reserve for itself.
pub(crate) fn there_is(bytes: u64) -> Result<(), RegionError> {
    let left = Headroom::now();
    if bytes.saturating_add(RESERVE_BYTES) > left.bytes { Err(RegionError::TooMuch { bytes, left }) } else { Ok(()) }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this value owns the whole mapping, and no reference to it outlives `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        if let Err(cause) = unmapped {
            tracing::error!(%cause, "munmap failed");
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("bytes", &self.bytes()).field("pages", &self.pages).finish_non_exhaustive()
    }
}

/// Returns the low half of a word, which changes first, because a futex has 32 bits. It is only
/// handed to the kernel, so the program itself accesses the word in one size.
fn futex(word: &AtomicU64) -> &AtomicU32 {
    let half = usize::from(cfg!(target_endian = "big"));
    // SAFETY: both halves lie within the word, are aligned, and live as long as it. Every bit
    // pattern is valid, and there is no `&mut`.
    unsafe { &*ptr::from_ref(word).cast::<AtomicU32>().add(half) }
}

/// Waits until a thread calls [`futex_wake`] for one of the words, and that word no longer has the
/// value that it is paired with. It waits no longer than until CLOCK_MONOTONIC shows `until`, and
/// may return early. The words may be shared with other processes.
pub(crate) fn futex_wait(words: &[(&AtomicU64, u64)], until: Option<Nanos>) {
    const WORDS_MAX: usize = 128; // FUTEX_WAITV_MAX
    debug_assert!(words.len() <= WORDS_MAX);
    let mut waits = [futex::Wait::new(); WORDS_MAX];
    for (wait, (word, seen)) in waits.iter_mut().zip(words) {
        wait.val = *seen & u64::from(u32::MAX);
        wait.uaddr = WaitPtr::new(futex(word).as_ptr().cast());
        wait.flags = WaitFlags::SIZE_U32;
    }
    let until = until.map(|until| rustix::time::Timespec {
        tv_sec: (until / 1_000_000_000) as _,
        tv_nsec: (until % 1_000_000_000) as _,
    });
    let waits = &waits[..words.len().min(WORDS_MAX)];
    match futex::waitv(waits, WaitvFlags::empty(), until.as_ref(), futex::ClockId::Monotonic) {
        Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::TIMEDOUT) => {}
        // A kernel older than 5.16, or memory without futexes: poll slowly.
        Err(_) => thread::sleep(Duration::from_millis(1)),
    }
}

/// Ends the [`futex_wait`]s on a word.
pub(crate) fn futex_wake(word: &AtomicU64) {
    // An error means that the memory has no futexes, and then no thread sleeps there.
    let _ = futex::wake(futex(word), futex::Flags::empty(), i32::MAX as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_region_is_zero_and_keeps_what_is_stored() {
        let region = Region::anonymous(4096).unwrap();
        assert_eq!(region.words().len(), 512);
        assert!(region.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        region.words()[511].store(7, Ordering::Relaxed);
        assert_eq!(region.words()[511].load(Ordering::Relaxed), 7);
        assert_eq!(region.base.as_ptr() as usize % LINE_BYTES, 0);
    }

    #[test]
    fn what_is_taken_is_there() {
        let region = Region::anonymous(32 << 20).unwrap();
        let resident = || region.resident_bytes().unwrap();
        assert!(region.pages() == Pages::Huge || resident() == 0);
        region.take().unwrap();
        assert_eq!(resident(), region.bytes());
        assert!(region.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        let too_much = there_is(1 << 60).unwrap_err();
        assert!(too_much.to_string().starts_with("1099511627776 MiB are too much: "), "{too_much}");
    }

    #[test]
    fn pages_that_are_given_back_are_zero_and_take_no_memory() {
        const WORDS: usize = (32 << 20) / WORD_BYTES;
        let region = Region::advised(WORDS * WORD_BYTES).unwrap();
        let fill = || region.words().iter().for_each(|word| word.store(7, Ordering::Relaxed));
        assert_eq!(region.resident_bytes().unwrap(), 0);
        fill();
        assert_eq!(region.resident_bytes().unwrap(), region.bytes());
        // The range begins and ends within pages.
        let (start, words) = (9, WORDS - 17);
        assert!(region.give_back(start, words));
        assert_eq!(region.resident_bytes().unwrap(), 2 * rustix::param::page_size() as u64);
        let value = |word: usize| region.words()[word].load(Ordering::Relaxed);
        assert!((0..WORDS).all(|word| value(word) == if (9..WORDS - 8).contains(&word) { 0 } else { 7 }));
        // There is no whole page, so nothing changes.
        fill();
        assert!(!region.give_back(9, rustix::param::page_size() / WORD_BYTES));
        assert!((0..WORDS).all(|word| value(word) == 7));
    }

    #[test]
    fn sizes_that_are_no_multiple_of_a_line_are_refused() {
        assert_eq!(Region::anonymous(0).err(), Some(RegionError::Size(0)));
        assert_eq!(Region::anonymous(100).err(), Some(RegionError::Size(100)));
        assert!(matches!(Region::anonymous(1 << 60).err(), Some(RegionError::TooMuch { .. })));
    }
}
