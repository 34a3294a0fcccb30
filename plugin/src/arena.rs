//! The memory of a call: an arena in the program's own image, for the short life of `gybe-cni`.
//!
//! musl's allocator maps and unmaps memory page by page, which took an ADD 28 of its 100 system calls. An ADD allocates
//! some 400 times, 85 KB in all, so the arena is larger than every usual call needs. Memory is freed only if it was
//! allocated last, which growing buffers are. When the arena is full, the C library allocates, so that hostile input
//! costs no more memory than before plus the arena.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The smallest alignment in bytes, that of a `cmsghdr`: nix's `sendmsg` makes one in a buffer of bytes, which the
/// alignment of malloc(3) suits.
const MIN_ALIGN: usize = 8;

/// An allocator of `SIZE` bytes before the C library's.
#[repr(C, align(16))]
pub struct Arena<const SIZE: usize> {
    /// Not initialized, so that it takes no place in the program's file and a page of memory only once it is used.
    bytes: UnsafeCell<MaybeUninit<[u8; SIZE]>>,
    used: AtomicUsize,
}

impl<const SIZE: usize> Arena<SIZE> {
    /// An empty arena.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: UnsafeCell::new(MaybeUninit::uninit()), used: AtomicUsize::new(0) }
    }

    fn start(&self) -> *mut u8 {
        self.bytes.get().cast()
    }

    /// Returns the offset of an address; none if it is not in the arena.
    fn offset(&self, pointer: *mut u8) -> Option<usize> {
        pointer.addr().checked_sub(self.start().addr()).filter(|offset| *offset < SIZE)
    }

    /// Reserves memory, and returns its offset; none if it does not fit. Acquires what [`Self::move_end`] released:
    /// another thread may have freed this memory, and its writes come before ours.
    fn reserve(&self, layout: Layout) -> Option<usize> {
        let start = self.start().addr();
        let align = layout.align().max(MIN_ALIGN);
        let aligned = |used: usize| Some((start + used).checked_next_multiple_of(align)? - start);
        let end = |used| aligned(used)?.checked_add(layout.size()).filter(|end| *end <= SIZE);
        self.used.fetch_update(Ordering::Acquire, Ordering::Relaxed, end).ok().and_then(aligned)
    }

    /// Changes the end of the last allocation. Returns false, and changes nothing, if another one is the last.
    fn move_end(&self, from: usize, to: usize) -> bool {
        to <= SIZE && self.used.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl<const SIZE: usize> Default for Arena<SIZE> {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: threads share the bytes, but each allocation is reserved atomically, only its owner touches it, and a free
// happens before the next reservation of the same bytes.
#[expect(unsafe_code, reason = "an allocator is shared by all threads")]
unsafe impl<const SIZE: usize> Sync for Arena<SIZE> {}

// SAFETY: a reservation lies in the arena, is aligned, and overlaps no other that has not been freed: `used` only
// decreases to the start of the last one, by its owner. Other pointers come from `System` and go back to it.
#[expect(unsafe_code, reason = "the trait of allocators is unsafe")]
unsafe impl<const SIZE: usize> GlobalAlloc for Arena<SIZE> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.reserve(layout) {
            // SAFETY: the offset is in the arena.
            Some(offset) => unsafe { self.start().add(offset) },
            // SAFETY: the caller's layout.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match self.reserve(layout) {
            Some(offset) => {
                // SAFETY: the offset is in the arena, and as many bytes are reserved. They may have been used before.
                unsafe {
                    let pointer = self.start().add(offset);
                    ptr::write_bytes(pointer, 0, layout.size());
                    pointer
                }
            }
            // SAFETY: the caller's layout.
            None => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match self.offset(pointer) {
            Some(offset) => drop(self.move_end(offset + layout.size(), offset)),
            // SAFETY: a pointer outside the arena is `System`'s.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(offset) = self.offset(pointer) else {
            // SAFETY: a pointer outside the arena is `System`'s.
            return unsafe { System.realloc(pointer, layout, size) };
        };
        let grown = offset.checked_add(size).is_some_and(|end| self.move_end(offset + layout.size(), end));
        if grown || size <= layout.size() {
            return pointer;
        }
        // SAFETY: the caller's size and alignment make a valid layout, and the old bytes fit the new memory.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                ptr::copy_nonoverlapping(pointer, new, layout.size());
                self.dealloc(pointer, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(
        unsafe_code,
        clippy::undocumented_unsafe_blocks,
        reason = "an allocator's functions are unsafe; the tests pass them what they got from them"
    )]

    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn allocations_are_aligned_and_do_not_overlap() {
        let arena = Arena::<4096>::new();
        let mut end = arena.start().addr();
        for (size, align) in [(1, 1), (8, 8), (3, 1), (64, 64), (1, 256), (16, 16)] {
            let pointer = unsafe { arena.alloc(layout(size, align)) };
            assert!(pointer.addr() >= end && pointer.addr().is_multiple_of(align), "{size} {align}");
            unsafe { pointer.write_bytes(0xff, size) };
            end = pointer.addr() + size;
        }
        assert!(end <= arena.start().addr() + 4096);
    }

    #[test]
    fn the_last_allocation_grows_and_shrinks_in_place_and_is_freed() {
        let arena = Arena::<4096>::new();
        unsafe {
            let first = arena.alloc(layout(104, 1));
            let last = arena.alloc(layout(100, 1));
            last.write_bytes(7, 100);
            assert_eq!(arena.realloc(last, layout(100, 1), 3000), last);
            assert_eq!(arena.realloc(last, layout(3000, 1), 200), last);
            assert_eq!(arena.used.load(Ordering::Relaxed), 304);
            let moved = arena.realloc(first, layout(104, 1), 150);
            assert_eq!(moved.addr(), first.addr() + 304, "another one is the last");
            assert_eq!(arena.realloc(last, layout(200, 1), 100), last, "less always fits");
            arena.dealloc(last, layout(100, 1));
            assert_eq!(arena.used.load(Ordering::Relaxed), 454, "another one is the last");
            arena.dealloc(moved, layout(150, 1));
            assert_eq!(arena.used.load(Ordering::Relaxed), 304);
            assert_eq!((last.read(), last.add(99).read()), (7, 7));
        }
    }

    #[test]
    fn memory_that_was_used_before_is_zeroed_where_zeros_are_requested() {
        let arena = Arena::<64>::new();
        unsafe {
            let used = arena.alloc(layout(64, 1));
            used.write_bytes(1, 64);
            arena.dealloc(used, layout(64, 1));
            let zeroed = arena.alloc_zeroed(layout(64, 1));
            assert_eq!((zeroed, zeroed.read(), zeroed.add(63).read()), (used, 0, 0));
        }
    }

    #[test]
    fn what_does_not_fit_comes_from_the_c_library_and_returns_to_it() {
        let arena = Arena::<64>::new();
        unsafe {
            let inside = arena.alloc(layout(48, 1));
            inside.write_bytes(5, 48);
            for size in [17, 1 << 20] {
                let outside = arena.alloc(layout(size, 1));
                assert!(arena.offset(inside).is_some() && arena.offset(outside).is_none(), "{size}");
                let outside = arena.realloc(outside, layout(size, 1), size * 2);
                arena.dealloc(outside, layout(size * 2, 1));
            }
            let zeroed = arena.alloc_zeroed(layout(1 << 20, 1));
            assert_eq!(zeroed.add((1 << 20) - 1).read(), 0);
            arena.dealloc(zeroed, layout(1 << 20, 1));
            let moved = arena.realloc(inside, layout(48, 1), 100);
            assert!(arena.offset(moved).is_none());
            assert_eq!((moved.read(), moved.add(47).read()), (5, 5));
            assert_eq!(arena.used.load(Ordering::Relaxed), 0, "it was the last in the arena");
            arena.dealloc(moved, layout(100, 1));
        }
        assert_eq!(arena.reserve(layout(usize::MAX / 4, 1)), None);
    }

    #[test]
    fn threads_get_memory_of_their_own() {
        static ARENA: Arena<{ 1 << 20 }> = Arena::new();
        std::thread::scope(|scope| {
            for mark in 1..=8 {
                scope.spawn(move || {
                    let blocks: Vec<_> = (0..500)
                        .map(|_| unsafe {
                            let block = ARENA.alloc(layout(64, 8));
                            block.write_bytes(mark, 64);
                            block.addr()
                        })
                        .collect();
                    let offset = |block: usize| block - ARENA.start().addr();
                    let is_own =
                        |block: usize| unsafe { ARENA.start().add(offset(block) + 63).read() == mark };
                    assert!(blocks.into_iter().all(is_own), "{mark}");
                });
            }
        });
    }
}
