//! A frame in memory.

use onearm_dataplane_common::packet::{MAX_OFFSET, Packet};
use std::cell::UnsafeCell;

/// A frame in a buffer with room on both sides.
pub struct Buffer {
    bytes: UnsafeCell<Vec<u8>>,
    start: usize,
    end: usize,
    pub note: u32,
    /// Where the first piece of its memory ends.
    pub piece: usize,
}

/// Bytes before a frame, and behind it.
pub const ROOM: usize = 256;

impl Buffer {
    pub fn new(frame: &[u8]) -> Self {
        let mut bytes = vec![0x5a; ROOM];
        bytes.extend_from_slice(frame);
        bytes.resize(2 * ROOM + frame.len(), 0x5a);
        Self {
            bytes: UnsafeCell::new(bytes),
            start: ROOM,
            end: ROOM + frame.len(),
            note: 0,
            piece: usize::MAX,
        }
    }

    pub fn into_frame(self) -> Vec<u8> {
        self.bytes.into_inner()[self.start..self.end].to_vec()
    }
}

// SAFETY: the vector is never resized after construction; bounds are checked against the frame.
unsafe impl Packet for Buffer {
    fn note(&self) -> u32 {
        self.note
    }
    fn len(&self) -> usize {
        self.end - self.start
    }
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        assert!(offset <= MAX_OFFSET, "offset {offset}");
        // SAFETY: one thread, no other reference to the vector alive.
        (self.start + offset + len <= self.end.min(self.piece))
            .then(|| unsafe { (*self.bytes.get()).as_mut_ptr().add(self.start + offset) })
    }
    fn move_start(&mut self, by: isize) -> bool {
        let start = self.start.cast_signed() - by;
        if start < 0 || start > self.end.cast_signed() {
            return false;
        }
        self.start = start.cast_unsigned();
        true
    }
    fn set_len(&mut self, len: usize) -> bool {
        if self.start + len > self.bytes.get_mut().len() {
            return false;
        }
        self.end = self.start + len;
        true
    }
}
