//! The gate on the way out of the kernel (clsact egress): nothing with an owned sender leaves without a valid lease, judged
//! at transmission. Adverts are exempt. It does not see what the XDP programs send; they check the lease themselves.

use crate::{
    counter::Counter,
    maps::{Addr, proto},
    packet::Packet,
    tables::Tables,
    wire::{arp, eth, icmp, ip, ip6, nd},
};

/// True if the frame may leave.
#[inline(always)]
pub fn may_leave<P: Packet, T: Tables>(packet: &P, tables: &T) -> bool {
    let Some(header) = packet.window::<{ eth::LEN }>(0) else {
        return true;
    };
    let mut ethertype = header.u16::<{ eth::TYPE }>();
    let mut l3 = eth::LEN;
    if ethertype == eth::VLAN {
        let Some(header) = packet.window::<{ eth::LEN + eth::TAG_LEN }>(0) else {
            return true;
        };
        ethertype = header.u16::<{ eth::TAGGED_TYPE }>();
        l3 += eth::TAG_LEN;
    }
    if ethertype == eth::ARP {
        let Some(message) = packet.window::<{ arp::LEN }>(l3) else {
            return true;
        };
        return is_leased(
            tables,
            Addr::v4(message.u32::<{ arp::SPA }>()),
            Counter::EgressArpBlocked,
        );
    }
    if ethertype == eth::IPV6 {
        return may_leave6(packet, l3, tables);
    }
    if ethertype != eth::IPV4 {
        return true;
    }
    let Some(header) = packet.window::<{ ip::LEN }>(l3) else {
        return true;
    };
    header.u8::<{ ip::PROTO }>() == proto::VRRP
        || is_leased(
            tables,
            Addr::v4(header.u32::<{ ip::SADDR }>()),
            Counter::EgressIpBlocked,
        )
}

/// An IPv6 packet: its source, and the target of an advertisement, must not be owned without a lease.
#[inline(always)]
fn may_leave6<P: Packet, T: Tables>(packet: &P, l3: usize, tables: &T) -> bool {
    let Some(header) = packet.window::<{ ip6::LEN }>(l3) else {
        return true;
    };
    let next = header.u8::<{ ip6::NEXT }>();
    if next == proto::VRRP {
        return true;
    }
    if next == proto::ICMPV6
        && let Some(message) = packet.window::<{ nd::LEN }>(l3 + ip6::LEN)
        && message.u8::<{ icmp::TYPE }>() == nd::ADVERTISEMENT
        && !is_leased(
            tables,
            message.addr::<{ nd::TARGET }>(),
            Counter::EgressArpBlocked,
        )
    {
        return false;
    }
    is_leased(tables, header.addr::<{ ip6::SADDR }>(), Counter::EgressIpBlocked)
}

/// Not owned, or owned under a valid lease.
#[inline(always)]
fn is_leased<T: Tables>(tables: &T, addr: Addr, otherwise: Counter) -> bool {
    let Some(owned) = tables.owned(tables.slot(), addr) else {
        return true;
    };
    let leased = tables.now() < tables.lease(owned.group);
    if !leased {
        tables.count(otherwise);
    }
    leased
}
