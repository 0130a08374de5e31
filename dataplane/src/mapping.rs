//! A BPF array in this process's memory: words read and written without a system call.
#![expect(
    unsafe_code,
    reason = "the mapping is shared with the programs in the kernel; only atomics touch it"
)]

use std::io;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// The memory of an array map with flag `BPF_F_MMAPABLE`. Unmapped on drop; the map itself lives on.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is shared with the kernel anyway and reached through atomics alone; the address stays valid until
// drop, which needs ownership.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of the map (rounded up to a page by the kernel).
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let size = NonZeroUsize::new(len).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new shared mapping at an address the kernel chooses; nothing of ours is replaced.
        let base = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, fd, 0) }?;
        Ok(Self {
            base: base.cast(),
            len,
        })
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The 8-byte word at byte `offset`.
    ///
    /// # Panics
    /// If the word is not aligned or not inside the mapping.
    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset < self.len && self.len - offset >= 8,
            "word outside mapping"
        );
        // SAFETY: inside the mapping and aligned (both checked; the base is page-aligned), valid for `&self`, and every
        // bit pattern is a valid `AtomicU64`. The kernel's programs write it with whole-word accesses only.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The 4-byte word at byte `offset`.
    ///
    /// # Panics
    /// If the word is not aligned or not inside the mapping.
    pub(crate) fn u32(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset < self.len && self.len - offset >= 4,
            "word outside mapping"
        );
        // SAFETY: as for `u64`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Address of byte `offset`, for code of `onearm-dataplane-common` that runs on raw buckets.
    ///
    /// # Panics
    /// If `len` bytes from there are not inside the mapping.
    pub(crate) fn slice_ptr(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.len && self.len - offset >= len,
            "range outside mapping"
        );
        // SAFETY: the result stays inside the mapping (checked above).
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped, and no reference into it outlives `self`.
        if let Err(error) = unsafe { munmap(self.base.cast(), self.len) } {
            tracing::debug!(%error, "unmapping a table failed");
        }
    }
}

/// A mapped array of `T`, whose size is a multiple of 8 bytes, seen as 8-byte words.
#[derive(Debug)]
pub(crate) struct Words<T> {
    mapping: Mapping,
    value: PhantomData<fn() -> T>,
}

impl<T: aya::Pod> Words<T> {
    const WORDS: usize = {
        assert!(size_of::<T>().is_multiple_of(8), "values are whole words");
        size_of::<T>() / 8
    };

    /// Maps an array of `len` values.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: u32) -> io::Result<Self> {
        let mapping = Mapping::new(fd, len as usize * size_of::<T>())?;
        Ok(Self {
            mapping,
            value: PhantomData,
        })
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.mapping.len() / (Self::WORDS * 8)
    }

    fn word(&self, index: u32, word: usize) -> &AtomicU64 {
        assert!(word < Self::WORDS, "word outside value");
        self.mapping.u64((index as usize * Self::WORDS + word) * 8)
    }

    /// Reads one word.
    ///
    /// # Panics
    /// If `index` or `word` is out of range.
    pub(crate) fn load(&self, index: u32, word: usize) -> u64 {
        self.word(index, word).load(Ordering::Acquire)
    }

    /// Writes one word; a program sees the old or the new one.
    ///
    /// # Panics
    /// If `index` or `word` is out of range.
    pub(crate) fn store(&self, index: u32, word: usize, value: u64) {
        self.word(index, word).store(value, Ordering::Release);
    }

    /// Adds to one word, wrapping, in one atomic step.
    ///
    /// # Panics
    /// If `index` or `word` is out of range.
    pub(crate) fn add(&self, index: u32, word: usize, n: u64) {
        self.word(index, word).fetch_add(n, Ordering::SeqCst);
    }

    /// Writes a value word by word, the first word last: a reader that tests something in word 0 sees the rest.
    pub(crate) fn write(&self, index: u32, value: &T) {
        for word in (0..Self::WORDS).rev() {
            self.store(index, word, word_of(value, word));
        }
    }
}

/// Word number `word` of a value, as it lies in memory.
///
/// # Panics
/// If the value has no such word.
pub(crate) fn word_of<T: aya::Pod>(value: &T, word: usize) -> u64 {
    assert!((word + 1) * 8 <= size_of::<T>(), "word outside value");
    // SAFETY: the 8 bytes are inside the value (checked), and `Pod` types have no padding that could be uninitialised.
    unsafe {
        std::ptr::from_ref(value)
            .cast::<u8>()
            .add(word * 8)
            .cast::<u64>()
            .read_unaligned()
    }
}
