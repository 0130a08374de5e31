//! The leg as the kernel has it: interface by name, carrier, own addresses, Ethernet address.
//!
//! The carrier is looked at in every turn ([`Carrier`]). Everything else is read again when netlink says that something
//! changed on this interface, and every ten seconds in case netlink lost a word. Netlink wakes nobody: it is looked at
//! once a turn.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use super::carrier::Carrier;
use crate::election::LegFault;
use crate::error::Error;
use crate::sys;
use crate::units::MonoTime;
use crate::wire::Mac;

/// `RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;
/// `IFA_F_TENTATIVE | IFA_F_DADFAILED`: not proved unique on the link, or proved not to be.
const NOT_YET_OWN: u8 = 0x40 | 0x08;
/// Bytes of a netlink header; the interface index stands four bytes behind it, in links and addresses alike.
const NETLINK_HEADER: usize = 16;
/// Everything is read again after this long. Nanoseconds.
const REREAD_NANOS: u64 = 10_000_000_000;
/// Least time between two readings while the leg is at fault or changing. Nanoseconds.
const REREAD_GAP_NANOS: u64 = 20_000_000;
/// Netlink messages looked at in one turn; more means: read again in any case.
const MOST_MESSAGES: usize = 64;

/// A usable leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LegView {
    /// Index of the interface that has the name now.
    pub(crate) ifindex: u32,
}

/// Watches one interface.
#[derive(Debug)]
pub(super) struct Leg {
    name: String,
    addresses: Vec<IpAddr>,
    netlink: OwnedFd,
    /// For ioctls.
    any: OwnedFd,
    carrier: Carrier,
    view: Result<LegView, LegFault>,
    read_at: Option<MonoTime>,
    doubtful: bool,
}

impl Leg {
    /// `addresses` are the own ones, all of which it must have to be usable.
    pub(super) fn new(name: &str, addresses: Vec<IpAddr>) -> Result<Self, Error> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let netlink = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            flags,
            SockProtocol::NetlinkRoute,
        )
        .map_err(Error::system("open netlink socket"))?;
        bind(netlink.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))
            .map_err(Error::system("join netlink groups"))?;
        let any = socket(AddressFamily::Inet, SockType::Datagram, flags, None)
            .map_err(Error::system("open socket for interface requests"))?;
        Ok(Self {
            name: name.to_owned(),
            addresses,
            netlink,
            any,
            carrier: Carrier::default(),
            view: Err(LegFault::Unknown),
            read_at: None,
            doubtful: true,
        })
    }

    /// The leg at `now`. A change of the index is a change of the view.
    pub(super) fn look(&mut self, now: MonoTime) -> Result<LegView, LegFault> {
        self.listen();
        let since = self.read_at.map_or(u64::MAX, |at| now.since(at));
        let broken = self.view.is_err();
        if since >= REREAD_NANOS || ((self.doubtful || broken) && since >= REREAD_GAP_NANOS) {
            self.doubtful = false;
            self.read_at = Some(now);
            self.view = read(&self.name, &self.addresses);
            self.carrier = Carrier::default();
        }
        // Carrier and the name itself, without waiting for netlink.
        match (self.view, self.carrier.look(self.any.as_fd(), &self.name)) {
            (Ok(view), Ok(true)) => Ok(view),
            (Ok(_), Ok(false)) => Err(LegFault::NoCarrier),
            (Ok(_), Err(_)) => {
                self.doubtful = true;
                Err(LegFault::Missing)
            }
            (Err(fault), _) => Err(fault),
        }
    }

    /// Something went wrong with the interface: read it again.
    pub(super) fn doubt(&mut self) {
        self.doubtful = true;
    }

    /// The Ethernet address at this very moment (B15).
    pub(super) fn mac(&self) -> io::Result<Mac> {
        sys::mac(self.any.as_fd(), &self.name)
    }

    /// Whether netlink told of this interface, or of any while there is none of that name.
    fn listen(&mut self) {
        let mut buffer = [0; 8192];
        for _ in 0..MOST_MESSAGES {
            match recv(self.netlink.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) => {
                    let known = self.view.ok().map(|view| view.ifindex);
                    self.doubtful |= known.is_none_or(|index| mentions(&buffer[..length], index));
                }
                Err(Errno::EAGAIN) => return,
                // Events were lost, or anything else: look for ourselves.
                Err(_) => {
                    self.doubtful = true;
                    return;
                }
            }
        }
        self.doubtful = true;
    }
}

/// Whether a netlink datagram has a message about interface `index`.
fn mentions(mut datagram: &[u8], index: u32) -> bool {
    while let Some(length) = word(datagram, 0).and_then(|length| usize::try_from(length).ok()) {
        if length < NETLINK_HEADER {
            return true;
        }
        if word(datagram, NETLINK_HEADER + 4) == Some(index) {
            return true;
        }
        let Some(rest) = datagram.get(length.next_multiple_of(4)..) else {
            return false;
        };
        datagram = rest;
    }
    false
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at + 4)
        .and_then(|four| four.try_into().ok())
        .map(u32::from_ne_bytes)
}

/// Reads interface and addresses by name.
fn read(name: &str, addresses: &[IpAddr]) -> Result<LegView, LegFault> {
    let mut found = Err(LegFault::Missing);
    let mut seen = Vec::new();
    for entry in getifaddrs().map_err(|_| LegFault::NotUsable)? {
        // An address with a label is listed under it: eth0:1.
        if entry.interface_name.split(':').next() != Some(name) {
            continue;
        }
        let Some(of) = entry.address else { continue };
        if let Some(link) = of.as_link_addr() {
            found = if entry.flags.contains(InterfaceFlags::IFF_UP) {
                u32::try_from(link.ifindex())
                    .map(|ifindex| LegView { ifindex })
                    .map_err(|_| LegFault::NotUsable)
            } else {
                Err(LegFault::Down)
            };
        } else if let Some(of) = of.as_sockaddr_in() {
            seen.push(IpAddr::V4(of.ip()));
        }
    }
    if addresses.iter().any(IpAddr::is_ipv6) {
        // Unlike getifaddrs this tells which addresses the kernel has found unique.
        let text = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
        seen.extend(proved(&text, name).map(IpAddr::V6));
    }
    match found {
        Ok(_) if !addresses.iter().all(|address| seen.contains(address)) => Err(LegFault::NoAddress),
        other => other,
    }
}

/// IPv6 addresses of interface `name` whose duplicate address detection has ended well, from the text of
/// `/proc/net/if_inet6`: address, index, prefix length, scope, flags and name, numbers in hexadecimal.
fn proved(text: &str, name: &str) -> impl Iterator<Item = Ipv6Addr> {
    text.lines().filter_map(move |line| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [address, _, _, _, flags, of] = fields[..] else {
            return None;
        };
        let flags = u8::from_str_radix(flags, 16).ok()?;
        let address = u128::from_str_radix(address, 16).ok()?;
        (of == name && flags & NOT_YET_OWN == 0).then(|| Ipv6Addr::from(address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(index: u32, extra: usize) -> Vec<u8> {
        let length = u32::try_from(NETLINK_HEADER + 8 + extra).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.resize(NETLINK_HEADER + 4, 0);
        bytes.extend_from_slice(&index.to_ne_bytes());
        bytes.resize((NETLINK_HEADER + 8 + extra).next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn only_messages_about_the_leg_raise_doubt() {
        let datagram = [message(3, 5), message(7, 0)].concat();
        assert!(mentions(&datagram, 3) && mentions(&datagram, 7));
        assert!(!mentions(&datagram, 5));
        assert!(!mentions(&[], 5));
    }

    #[test]
    fn a_spoiled_message_raises_doubt() {
        assert!(mentions(&[0; 32], 5));
    }

    #[test]
    fn the_loopback_has_its_address_and_no_other() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let strange = IpAddr::from([192, 0, 2, 1]);
        assert!(read("lo", &[here]).is_ok());
        assert_eq!(read("lo", &[strange]), Err(LegFault::NoAddress));
        assert_eq!(read("lo", &[here, strange]), Err(LegFault::NoAddress));
        assert_eq!(read("no-such-leg", &[here]), Err(LegFault::Missing));
    }

    #[test]
    fn an_ipv6_address_counts_once_it_is_proved_unique() {
        let text = "fe800000000000000000000000000002 04 40 20 80     eth0\n\
                    fe800000000000000000000000000003 04 40 20 c0     eth0\n\
                    fe800000000000000000000000000004 04 40 20 88     eth0\n\
                    fe800000000000000000000000000005 05 40 20 80     eth1\n\
                    20010db8000000000000000000000006 04 40 00 00     eth0\nspoiled\n";
        let seen: Vec<_> = proved(text, "eth0").map(|address| address.to_string()).collect();
        assert_eq!(seen, ["fe80::2", "2001:db8::6"]);
    }
}
