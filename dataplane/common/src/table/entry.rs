//! A shared entry, read and written by whole fields.

#![expect(unsafe_code, reason = "shared memory")]

use crate::{
    flow::{FlowEntry4, FlowKey4, State, flags, state},
    maps::{Addr4, Port},
};
use core::ptr::{addr_of_mut, read_volatile, write_volatile};

/// An entry of a live bucket (see [`super::FlowMemory`]). Others may change it at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry(pub(super) *mut FlowEntry4);

macro_rules! fields {
    ($($field:ident / $set:ident: $t:ty,)+) => {
        $(
            #[doc = concat!("Loads [`FlowEntry4::", stringify!($field), "`].")]
            #[inline(always)]
            pub fn $field(self) -> $t {
                // SAFETY: the bucket is live, the field aligned, any bit pattern valid.
                unsafe { read_volatile(addr_of_mut!((*self.0).$field)) }
            }

            #[doc = concat!("Stores [`FlowEntry4::", stringify!($field), "`].")]
            #[inline(always)]
            pub fn $set(self, value: $t) {
                // SAFETY: as above.
                unsafe { write_volatile(addr_of_mut!((*self.0).$field), value) }
            }
        )+

        /// Stores every field but `incarnation` and `partner`.
        #[inline(always)]
        pub(super) fn fill(self, from: &FlowEntry4) {
            $(self.$set(from.$field);)+
        }
    };
}

impl Entry {
    fields! {
        saddr / set_saddr: Addr4,
        daddr / set_daddr: Addr4,
        sport / set_sport: Port,
        dport / set_dport: Port,
        proto / set_proto: u8,
        flags / set_flags: u8,
        own / set_own: u8,
        other / set_other: u8,
        new_saddr / set_new_saddr: Addr4,
        new_daddr / set_new_daddr: Addr4,
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

    /// Loads [`FlowEntry4::partner`].
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

    /// Loads [`FlowEntry4::incarnation`]; 0 = free or pending.
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

    /// A copy; consistent only if `incarnation` was the same before and after.
    #[inline(always)]
    pub(super) fn copy(self) -> FlowEntry4 {
        // SAFETY: the bucket is live, the entry aligned, any bit pattern valid.
        unsafe { read_volatile(self.0) }
    }

    /// The key.
    #[inline(always)]
    pub fn key(self) -> FlowKey4 {
        FlowKey4::new(
            self.proto(),
            self.saddr(),
            self.sport(),
            self.daddr(),
            self.dport(),
        )
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
