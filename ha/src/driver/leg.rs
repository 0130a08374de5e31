//! The leg as the kernel has it: interface by name, carrier, own address, Ethernet address.
//!
//! The carrier is looked at in every turn ([`Carrier`]). Everything else is read again when netlink says that something
//! changed on this interface, and every ten seconds in case netlink lost a word. Netlink wakes nobody: it is looked at
//! once a turn.

use std::io;
use std::net::Ipv4Addr;
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

/// `RTMGRP_LINK | RTMGRP_IPV4_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10;
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
    address: Ipv4Addr,
    netlink: OwnedFd,
    /// For ioctls.
    any: OwnedFd,
    carrier: Carrier,
    view: Result<LegView, LegFault>,
    read_at: Option<MonoTime>,
    doubtful: bool,
}

impl Leg {
    pub(super) fn new(name: &str, address: Ipv4Addr) -> Result<Self, Error> {
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
            address,
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
            self.view = read(&self.name, self.address);
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

/// Reads interface and address by name.
fn read(name: &str, address: Ipv4Addr) -> Result<LegView, LegFault> {
    let mut found = Err(LegFault::Missing);
    let mut has_address = false;
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
        } else if of.as_sockaddr_in().is_some_and(|of| of.ip() == address) {
            has_address = true;
        }
    }
    match found {
        Ok(_) if !has_address => Err(LegFault::NoAddress),
        other => other,
    }
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
        let here = Ipv4Addr::LOCALHOST;
        assert!(read("lo", here).is_ok());
        assert_eq!(read("lo", Ipv4Addr::new(192, 0, 2, 1)), Err(LegFault::NoAddress));
        assert_eq!(read("no-such-leg", here), Err(LegFault::Missing));
    }
}
