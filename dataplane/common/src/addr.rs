//! Addresses of both families.
//!
//! The flow tables and the way of an established flow know exactly one family: [`Addr4`] or [`Addr`]. Everything else
//! (maps, phases, what is handed from phase to phase) uses [`Addr`] for both.

use crate::{maps::Port, wire};

/// IPv4 address as it stands in the packet (network byte order).
pub type Addr4 = u32;

/// IPv6 address as it stands in the packet, or an IPv4 address mapped into one (`::ffff:a.b.c.d`, RFC 4291 §2.5.5.2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Addr(pub [u32; 4]);

/// Third word of a mapped IPv4 address.
const MAPPED: u32 = 0xffff_u32.to_be();

impl Addr {
    /// `::`, which also stands for "none".
    pub const NONE: Self = Self([0; 4]);

    /// An IPv4 address.
    #[inline(always)]
    pub const fn v4(addr: Addr4) -> Self {
        Self([0, 0, MAPPED, addr])
    }

    /// An address from its bytes.
    #[inline(always)]
    pub const fn from_bytes(b: [u8; 16]) -> Self {
        Self([
            u32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
            u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
            u32::from_ne_bytes([b[8], b[9], b[10], b[11]]),
            u32::from_ne_bytes([b[12], b[13], b[14], b[15]]),
        ])
    }

    /// Its bytes in order.
    #[inline(always)]
    pub const fn bytes(self) -> [u8; 16] {
        let [a, b, c, d] = self.0;
        let (a, b, c, d) = (a.to_ne_bytes(), b.to_ne_bytes(), c.to_ne_bytes(), d.to_ne_bytes());
        [
            a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3],
        ]
    }

    /// True for an IPv4 address.
    #[inline(always)]
    pub const fn is_v4(self) -> bool {
        self.0[0] == 0 && self.0[1] == 0 && self.0[2] == MAPPED
    }

    /// The IPv4 address in it; meaningless for others.
    #[inline(always)]
    pub const fn as_v4(self) -> Addr4 {
        self.0[3]
    }

    /// `::`.
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0[0] | self.0[1] | self.0[2] | self.0[3] == 0
    }

    /// Source or destination addresses no packet of a connection can have. IPv4: this network, loopback, group, reserved,
    /// broadcast. IPv6: unspecified, loopback, IPv4-mapped and -compatible (RFC 4291 §2.5.5), group.
    #[inline(always)]
    pub const fn is_special(self) -> bool {
        let [a, b, c, d] = self.0;
        if self.is_v4() {
            return wire::is_special(d);
        }
        a.to_ne_bytes()[0] == 0xff || (a == 0 && b == 0 && (c == 0 || c == MAPPED))
    }

    /// Link-local unicast, `fe80::/10`: never forwarded (RFC 4291 §2.5.6).
    #[inline(always)]
    pub const fn is_link_local(self) -> bool {
        let b = self.0[0].to_ne_bytes();
        b[0] == 0xfe && b[1] & 0xc0 == 0x80
    }

    /// The network whose hosts share a meter: /24 or /64.
    #[inline(always)]
    pub const fn network(self) -> u64 {
        if self.is_v4() {
            return (self.0[3] & u32::from_ne_bytes([255, 255, 255, 0])) as u64;
        }
        self.0[0] as u64 | (self.0[1] as u64) << 32
    }

    /// Sum of its 16-bit halves, for checksums.
    #[inline(always)]
    pub const fn halves(self) -> u32 {
        use crate::checksum::halves;
        if self.is_v4() {
            return halves(self.0[3]);
        }
        halves(self.0[0]) + halves(self.0[1]) + halves(self.0[2]) + halves(self.0[3])
    }
}

/// An address of one family, as flow tables hold it.
pub trait Address: Copy + Eq + Default + core::fmt::Debug + core::hash::Hash + 'static {
    /// IPv6.
    const V6: bool;
    /// What a flow entry leaves unused at its end.
    type Rest: Copy + Eq + Default + core::fmt::Debug;
    /// The address in its general form.
    fn wide(self) -> Addr;
    /// The address from its general form; of the other family: meaningless.
    fn narrow(addr: Addr) -> Self;
    /// 0 if the two are the same.
    fn difference(one: Self, other: Self) -> u64;
    /// Hash of addresses, ports and protocol.
    fn flow_hash(key: [u64; 2], saddr: Self, daddr: Self, sport: Port, dport: Port, proto: u8) -> u64;
}

impl Address for Addr4 {
    const V6: bool = false;
    type Rest = [u8; 0];

    #[inline(always)]
    fn wide(self) -> Addr {
        Addr::v4(self)
    }

    #[inline(always)]
    fn narrow(addr: Addr) -> Self {
        addr.as_v4()
    }

    #[inline(always)]
    fn difference(one: Self, other: Self) -> u64 {
        u64::from(one ^ other)
    }

    #[inline(always)]
    fn flow_hash(key: [u64; 2], saddr: Self, daddr: Self, sport: Port, dport: Port, proto: u8) -> u64 {
        crate::hash::sip13(
            key,
            u64::from(saddr) | u64::from(daddr) << 32,
            crate::hash::ports(sport, dport, proto),
        )
    }
}

impl Address for Addr {
    const V6: bool = true;
    type Rest = [u8; 16];

    #[inline(always)]
    fn wide(self) -> Addr {
        self
    }

    #[inline(always)]
    fn narrow(addr: Addr) -> Self {
        addr
    }

    #[inline(always)]
    fn difference(one: Self, other: Self) -> u64 {
        let (a, b) = (one.0, other.0);
        u64::from((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]))
    }

    #[inline(always)]
    fn flow_hash(key: [u64; 2], saddr: Self, daddr: Self, sport: Port, dport: Port, proto: u8) -> u64 {
        crate::hash::sip13_wide(key, saddr, daddr, crate::hash::ports(sport, dport, proto))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::net::Ipv6Addr;

    fn addr(text: &str) -> Addr {
        Addr::from_bytes(text.parse::<Ipv6Addr>().unwrap().octets())
    }

    #[test]
    fn an_ipv4_address_is_the_mapped_ipv6_address() {
        let four = u32::from_ne_bytes([192, 168, 100, 1]);
        assert_eq!(Addr::v4(four), addr("::ffff:192.168.100.1"));
        assert!(Addr::v4(four).is_v4() && Addr::v4(four).as_v4() == four);
        assert_eq!(Addr::from_bytes(Addr::v4(four).bytes()), Addr::v4(four));
        assert_eq!(Addr4::narrow(four.wide()), four);
    }

    #[test]
    fn addresses_no_connection_can_have_are_special() {
        for text in [
            "::",
            "::1",
            "::1.2.3.4",
            "ff02::1",
            "ff0e::5",
            "::ffff:127.0.0.1",
            "::ffff:224.0.0.1",
            "::ffff:0.0.0.0",
        ] {
            assert!(addr(text).is_special(), "{text}");
        }
        for text in [
            "2001:db8::1",
            "fe80::1",
            "fd00::1",
            "::ffff:192.168.1.1",
            "64:ff9b::1.2.3.4",
        ] {
            assert!(!addr(text).is_special(), "{text}");
        }
        assert!(
            addr("fe80::1").is_link_local()
                && addr("febf::1").is_link_local()
                && !addr("fec0::1").is_link_local()
        );
    }
}
