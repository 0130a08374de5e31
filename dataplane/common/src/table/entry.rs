//! A shared entry, read and written by whole fields.

#![expect(unsafe_code, reason = "shared memory")]

use crate::{
    addr::{Addr, Address},
    flow::{FlowEntry, FlowKey, State, flags, state},
    maps::Port,
};
use core::mem::size_of;
use core::ptr::{addr_of_mut, read_volatile, write_volatile};

/// An entry of a live bucket (see [`super::FlowMemory`]). Others may change it at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<A: Address>(pub(super) *mut FlowEntry<A>);

macro_rules! fields {
    ($($field:ident / $set:ident: $t:ty,)+) => {
        $(
            #[doc = concat!("Loads [`FlowEntry::", stringify!($field), "`].")]
            #[inline(always)]
            pub fn $field(self) -> $t {
                // SAFETY: the bucket is live, the field aligned, any bit pattern valid.
                unsafe { read_volatile(addr_of_mut!((*self.0).$field)) }
            }

            #[doc = concat!("Stores [`FlowEntry::", stringify!($field), "`].")]
            #[inline(always)]
            pub fn $set(self, value: $t) {
                // SAFETY: as above.
                unsafe { write_volatile(addr_of_mut!((*self.0).$field), value) }
            }
        )+

        /// Stores every field but `incarnation`, `partner` and the addresses.
        #[inline(always)]
        fn fill_numbers(self, from: &FlowEntry) {
            $(self.$set(from.$field);)+
        }
    };
}

macro_rules! addresses {
    ($($field:ident / $set:ident,)+) => {
        $(
            #[doc = concat!("Loads [`FlowEntry::", stringify!($field), "`].")]
            #[inline(always)]
            pub fn $field(self) -> A {
                // SAFETY: as in `fields`.
                unsafe { read_volatile(addr_of_mut!((*self.0).$field)) }
            }

            #[inline(always)]
            fn $set(self, value: Addr) {
                // SAFETY: as in `fields`.
                unsafe { write_volatile(addr_of_mut!((*self.0).$field), A::narrow(value)) }
            }
        )+

        #[inline(always)]
        fn fill_addresses(self, from: &FlowEntry) {
            $(self.$set(from.$field);)+
        }
    };
}

impl<A: Address> Entry<A> {
    fields! {
        sport / set_sport: Port,
        dport / set_dport: Port,
        proto / set_proto: u8,
        flags / set_flags: u8,
        own / set_own: u8,
        other / set_other: u8,
        new_sport / set_new_sport: Port,
        new_dport / set_new_dport: Port,
        hop / set_hop: u32,
        last_seen / set_last_seen: u32,
        idle_ticks / set_idle_ticks: u32,
        expected_ack / set_expected_ack: u32,
        server / set_server: u16,
        stats / set_stats: u16,
        packets / set_packets: u32,
    }

    addresses! {
        saddr / set_saddr,
        daddr / set_daddr,
        new_saddr / set_new_saddr,
        new_daddr / set_new_daddr,
    }

    /// Stores every field but `incarnation` and `partner`.
    #[inline(always)]
    pub(super) fn fill(self, from: &FlowEntry) {
        self.fill_addresses(from);
        self.fill_numbers(from);
    }

    /// Loads [`FlowEntry::partner`].
    #[inline(always)]
    pub fn partner(self) -> u32 {
        // SAFETY: as in `fields`.
        unsafe { read_volatile(addr_of_mut!((*self.0).partner)) }
    }

    #[inline(always)]
    pub(super) fn set_partner(self, at: u32) {
        // SAFETY: as in `fields`.
        unsafe { write_volatile(addr_of_mut!((*self.0).partner), at) }
    }

    /// Loads [`FlowEntry::incarnation`]; 0 = free or pending.
    #[inline(always)]
    pub fn incarnation(self) -> u64 {
        // SAFETY: as in `fields`.
        unsafe { read_volatile(addr_of_mut!((*self.0).incarnation)) }
    }

    #[inline(always)]
    pub(super) fn publish(self, incarnation: u64) {
        // SAFETY: as in `fields`.
        unsafe { write_volatile(addr_of_mut!((*self.0).incarnation), incarnation) }
    }

    /// The word to unpublish by compare-exchange.
    #[inline(always)]
    pub(super) fn incarnation_word(self) -> *mut u64 {
        // SAFETY: in bounds of the live entry.
        unsafe { addr_of_mut!((*self.0).incarnation) }
    }

    /// Loads a word of the entry as it lies in memory.
    #[inline(always)]
    pub fn word(self, n: usize) -> u64 {
        let words = size_of::<FlowEntry<A>>() / 8;
        // SAFETY: the bucket is live, the entry aligned and whole words, any bit pattern valid; in bounds.
        unsafe { read_volatile(self.0.cast::<u64>().add(n % words)) }
    }

    /// A copy; consistent only if `incarnation` was the same before and after.
    #[inline(always)]
    pub(super) fn copy(self) -> FlowEntry<A> {
        // SAFETY: the bucket is live, the entry aligned, any bit pattern valid.
        unsafe { read_volatile(self.0) }
    }

    /// The key.
    #[inline(always)]
    pub fn key(self) -> FlowKey<A> {
        FlowKey::new(
            self.proto(),
            self.saddr(),
            self.sport(),
            self.daddr(),
            self.dport(),
        )
    }

    /// 0 if it has this key.
    #[inline(always)]
    pub(super) fn difference(self, key: &FlowKey<A>) -> u64 {
        A::difference(self.saddr(), key.saddr)
            | A::difference(self.daddr(), key.daddr)
            | u64::from(self.sport() ^ key.sport)
            | u64::from(self.dport() ^ key.dport)
            | u64::from(self.proto() ^ key.proto)
    }

    /// True in the entry of packets from the server.
    #[inline(always)]
    pub fn is_reply(self) -> bool {
        self.flags() & flags::REPLY != 0
    }

    /// Coarse state of the flow.
    #[inline(always)]
    pub fn state(self) -> State {
        let (own, other) = (self.own(), self.other());
        if self.is_reply() {
            state(self.proto(), other, own)
        } else {
            state(self.proto(), own, other)
        }
    }
}
