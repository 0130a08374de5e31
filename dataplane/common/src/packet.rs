//! A frame and bounded windows into it.

#![expect(
    unsafe_code,
    reason = "packet memory; each window is checked once, each access at compile time"
)]

use crate::{addr::Addr, counter::Counter};
use core::{cell::Cell, marker::PhantomData};

/// Longest distance from the start of the frame to a header that is looked at.
pub const MAX_OFFSET: usize = 255;

/// A frame. Implemented over `xdp_md` in the kernel and over a buffer in tests.
///
/// # Safety
/// `at` returns a pointer to `len` bytes that stay valid and in place until the next call of a `&mut self` method.
pub unsafe trait Packet {
    /// Length of the frame in bytes.
    fn len(&self) -> usize;

    /// True for a frame of no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the frame has at least `len` bytes. Cheaper than [`Packet::len`] where a frame may lie in pieces.
    fn holds(&self, len: usize) -> bool {
        len <= self.len()
    }

    /// `len` bytes from `offset` (at most [`MAX_OFFSET`]), or `None` if the frame, or the first piece of its memory, ends before.
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8>;

    /// Makes room for `by` bytes in front of the frame (negative: removes them). Their content is undefined.
    fn move_start(&mut self, by: isize) -> bool;

    /// Cuts the frame to `len` bytes or grows it with undefined bytes.
    fn set_len(&mut self, len: usize) -> bool;

    /// What user space has put before the frame that it runs the program on ([`crate::help::note`]); 0 = it comes from
    /// an interface.
    fn note(&self) -> u32 {
        0
    }

    /// A window of `N` bytes.
    #[inline(always)]
    fn window<const N: usize>(&self, offset: usize) -> Option<Window<'_, N>> {
        self.at(offset, N).map(|start| Window {
            start,
            frame: PhantomData,
        })
    }
}

/// `N` bytes of a frame. Values are as they stand in the packet (network byte order).
#[derive(Clone, Copy, Debug)]
pub struct Window<'p, const N: usize> {
    start: *mut u8,
    frame: PhantomData<&'p Cell<u8>>,
}

// Packets start at any address. The kernel's x86-64 does unaligned accesses in hardware, but the BPF back end would take
// them apart into bytes if it were told.
#[cfg(target_arch = "bpf")]
macro_rules! load {
    ($from:expr, $t:ty) => {
        *$from.cast::<$t>()
    };
}
#[cfg(target_arch = "bpf")]
macro_rules! store {
    ($to:expr, $t:ty, $value:expr) => {
        *$to.cast::<$t>() = $value
    };
}
#[cfg(not(target_arch = "bpf"))]
macro_rules! load {
    ($from:expr, $t:ty) => {
        $from.cast::<$t>().read_unaligned()
    };
}
#[cfg(not(target_arch = "bpf"))]
macro_rules! store {
    ($to:expr, $t:ty, $value:expr) => {
        $to.cast::<$t>().write_unaligned($value)
    };
}

macro_rules! access {
    ($get:ident, $set:ident, $t:ty) => {
        /// Loads the value at offset `O` of the window.
        #[inline(always)]
        pub fn $get<const O: usize>(self) -> $t {
            const { assert!(O + size_of::<$t>() <= N) };
            // SAFETY: inside the window, which `Packet::at` has checked.
            unsafe { load!(self.start.add(O), $t) }
        }

        /// Stores a value at offset `O` of the window.
        #[inline(always)]
        pub fn $set<const O: usize>(self, value: $t) {
            const { assert!(O + size_of::<$t>() <= N) };
            // SAFETY: inside the window, which `Packet::at` has checked.
            unsafe { store!(self.start.add(O), $t, value) };
        }
    };
}

impl<const N: usize> Window<'_, N> {
    access!(u8, set_u8, u8);
    access!(u16, set_u16, u16);
    access!(u32, set_u32, u32);
    access!(u64, set_u64, u64);

    /// Loads an IPv6 address at offset `O`.
    #[inline(always)]
    pub fn addr<const O: usize>(self) -> Addr {
        const { assert!(O + 16 <= N) };
        // SAFETY: inside the window, which `Packet::at` has checked.
        unsafe {
            let start = self.start.add(O);
            Addr([
                load!(start, u32),
                load!(start.add(4), u32),
                load!(start.add(8), u32),
                load!(start.add(12), u32),
            ])
        }
    }

    /// Stores an IPv6 address at offset `O`.
    #[inline(always)]
    pub fn set_addr<const O: usize>(self, addr: Addr) {
        const { assert!(O + 16 <= N) };
        // SAFETY: inside the window, which `Packet::at` has checked.
        unsafe {
            let start = self.start.add(O);
            store!(start, u32, addr.0[0]);
            store!(start.add(4), u32, addr.0[1]);
            store!(start.add(8), u32, addr.0[2]);
            store!(start.add(12), u32, addr.0[3]);
        }
    }

    /// Loads an Ethernet address at offset `O`.
    #[inline(always)]
    pub fn mac<const O: usize>(self) -> [u8; 6] {
        const { assert!(O + 6 <= N) };
        // SAFETY: inside the window, which `Packet::at` has checked.
        let (head, tail) = unsafe { (load!(self.start.add(O), u32), load!(self.start.add(O + 4), u16)) };
        mac_from(head, tail)
    }

    /// Stores an Ethernet address at offset `O`.
    #[inline(always)]
    pub fn set_mac<const O: usize>(self, mac: [u8; 6]) {
        const { assert!(O + 6 <= N) };
        let (head, tail) = mac_words(mac);
        // SAFETY: inside the window, which `Packet::at` has checked.
        unsafe {
            store!(self.start.add(O), u32, head);
            store!(self.start.add(O + 4), u16, tail);
        }
    }
}

#[inline(always)]
const fn mac_from(head: u32, tail: u16) -> [u8; 6] {
    let (h, t) = (head.to_ne_bytes(), tail.to_ne_bytes());
    [h[0], h[1], h[2], h[3], t[0], t[1]]
}

#[inline(always)]
const fn mac_words(mac: [u8; 6]) -> (u32, u16) {
    (
        u32::from_ne_bytes([mac[0], mac[1], mac[2], mac[3]]),
        u16::from_ne_bytes([mac[4], mac[5]]),
    )
}

/// Why `len` bytes of headers at `offset` cannot be read, if they cannot.
#[inline(always)]
pub fn unreadable<P: Packet>(packet: &P, offset: usize, len: usize) -> Counter {
    if packet.at(offset, len).is_none() && packet.holds(offset + len) {
        Counter::HeadersInPieces
    } else {
        Counter::Malformed
    }
}

/// An Ethernet address as one number, for comparisons.
#[inline(always)]
pub const fn mac_number(mac: [u8; 6]) -> u64 {
    let (head, tail) = mac_words(mac);
    head as u64 | (tail as u64) << 32
}

/// Group (multicast or broadcast) address.
#[inline(always)]
pub const fn is_group(mac: [u8; 6]) -> bool {
    mac[0] & 1 != 0
}
