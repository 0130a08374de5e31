//! Addresses and prefixes of either family in the one form the maps have.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use onearm_dataplane_common::addr::Addr;

/// An address as the maps have it.
pub(crate) fn wide(addr: IpAddr) -> Addr {
    match addr {
        IpAddr::V4(addr) => Addr::from_bytes(addr.to_ipv6_mapped().octets()),
        IpAddr::V6(addr) => Addr::from_bytes(addr.octets()),
    }
}

/// An address from its form in the maps.
pub(crate) fn narrow(addr: Addr) -> IpAddr {
    Ipv6Addr::from(addr.bytes()).to_canonical()
}

/// A prefix as the tries have it: bits of the address, and its bytes.
pub(crate) fn bits(prefix: IpNet) -> (u32, Addr) {
    let of_family = match prefix {
        IpNet::V4(_) => 96,
        IpNet::V6(_) => 0,
    };
    (
        of_family + u32::from(prefix.prefix_len()),
        wide(prefix.trunc().addr()),
    )
}
