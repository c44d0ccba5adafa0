//! Asking the processor for memory before it is needed.

use crate::address::LINE_BYTES;

/// Asks for the line in which a value begins. Reads nothing.
#[inline(always)]
pub(crate) fn prefetch<T>(what: &T) {
    prefetch_lines(what, 1);
}

/// Asks for the first lines of a value, or for all that it has. Reads nothing.
#[inline(always)]
pub(crate) fn prefetch_lines<T: ?Sized>(what: &T, lines: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..size_of_val(what).div_ceil(LINE_BYTES).min(lines) {
        // SAFETY: the address is within the value (and a prefetch neither faults nor accesses
        // memory as the language sees it).
        unsafe {
            let at = std::ptr::from_ref(what).cast::<i8>().add(line * LINE_BYTES);
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (what, lines);
}
