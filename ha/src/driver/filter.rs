//! Classic BPF programs of the two packet sockets.
//!
//! Adverts of the peer have a socket of their own, so that a flood of ARP or of strangers' adverts cannot push them out
//! of its buffer.

use std::net::Ipv4Addr;

use socket2::SockFilter;

use crate::wire::frame::{ETHERTYPE_ARP, ETHERTYPE_IPV4, PROTOCOL_VRRP};

const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_WORD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Ancillary data: added to −0x1000.
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
const VLAN_TAG_PRESENT: u32 = 0xffff_f000 + 48;
/// Packet types of if_packet.h.
const OTHER_HOST: u32 = 3;
const OUTGOING: u32 = 4;
/// Offsets in an untagged frame.
const ETHERTYPE_AT: u32 = 12;
const PROTOCOL_AT: u32 = 23;
const SOURCE_AT: u32 = 26;
/// More than any frame we read.
const WHOLE: u32 = 0xffff;

const fn load(code: u16, at: u32) -> SockFilter {
    SockFilter::new(code, 0, 0, at)
}

const fn equal(value: u32, then: u8, otherwise: u8) -> SockFilter {
    SockFilter::new(JUMP_EQUAL, then, otherwise, value)
}

const fn verdict(bytes: u32) -> SockFilter {
    SockFilter::new(RETURN, 0, 0, bytes)
}

/// Untagged adverts from `peer`, addressed to us or to a group.
pub(super) fn peer_adverts(peer: Ipv4Addr) -> [SockFilter; 13] {
    [
        load(LOAD_WORD, PACKET_TYPE),
        equal(OTHER_HOST, 9, 0),
        equal(OUTGOING, 8, 0),
        load(LOAD_WORD, VLAN_TAG_PRESENT),
        equal(0, 0, 6),
        load(LOAD_HALF, ETHERTYPE_AT),
        equal(u32::from(ETHERTYPE_IPV4), 0, 4),
        load(LOAD_BYTE, PROTOCOL_AT),
        equal(u32::from(PROTOCOL_VRRP), 0, 2),
        load(LOAD_WORD, SOURCE_AT),
        equal(u32::from(peer), 1, 0),
        verdict(0),
        verdict(WHOLE),
    ]
}

/// Untagged ARP, and adverts of anybody but `peer`.
pub(super) fn everything_else(peer: Ipv4Addr) -> [SockFilter; 14] {
    [
        load(LOAD_WORD, PACKET_TYPE),
        equal(OTHER_HOST, 10, 0),
        equal(OUTGOING, 9, 0),
        load(LOAD_WORD, VLAN_TAG_PRESENT),
        equal(0, 0, 7),
        load(LOAD_HALF, ETHERTYPE_AT),
        equal(u32::from(ETHERTYPE_ARP), 6, 0),
        equal(u32::from(ETHERTYPE_IPV4), 0, 4),
        load(LOAD_BYTE, PROTOCOL_AT),
        equal(u32::from(PROTOCOL_VRRP), 0, 2),
        load(LOAD_WORD, SOURCE_AT),
        equal(u32::from(peer), 0, 1),
        verdict(0),
        verdict(WHOLE),
    ]
}

/// Nothing at all: until a socket is bound and filtered it must not collect frames of other interfaces.
pub(super) fn nothing() -> [SockFilter; 1] {
    [verdict(0)]
}
