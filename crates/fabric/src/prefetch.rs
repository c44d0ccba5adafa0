//! Prefetching: asks the processor for memory before it is needed.

use crate::address::LINE_BYTES;

/// Prefetches the line in which a value begins. It reads nothing.
#[inline(always)]
pub(crate) fn prefetch<T>(what: &T) {
    prefetch_lines(what, 1);
}

/// Prefetches the first lines of a value, or all its lines if it has fewer. It reads nothing.
#[inline(always)]
pub fn prefetch_lines<T: ?Sized>(what: &T, lines: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..size_of_val(what).div_ceil(LINE_BYTES).min(lines) {
        // SAFETY: the address is within the value. A prefetch neither faults nor accesses memory as
        // the language sees it.
        unsafe {
            let at = std::ptr::from_ref(what).cast::<i8>().add(line * LINE_BYTES);
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (what, lines);
}
