//! Memberships of groups, held by the *main* process: those of adverts, and the solicited-node groups of owned IPv6
//! addresses; and what else the kernel must be told of adverts ([`KnownProtocol`]).
//!
//! The HA process reads frames, not sockets of groups, and holds no membership (closing one waits for the kernel). A
//! NIC's filter and a snooping switch deliver a group only to members, and MLD reports go out for solicited-node groups
//! too (RFC 3810 §5, §6). So the main process joins all of them on both nodes at all times, before the HA process
//! starts: a node that becomes Active is asked for its addresses from the first moment on.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;

use nix::net::if_::if_nametoindex;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockFilter, Socket, Type};

use crate::announce::OwnedAddress;
use crate::config::{Config, Transport};
use crate::error::Error;
use crate::wire::Address as _;
use crate::wire::frame::PROTOCOL_VRRP;
use crate::wire::ndp::solicited_node;

/// Most groups of one socket: memberships count against its option memory (`net.core.optmem_max`, 20 KiB on older
/// kernels); where that is smaller still, another socket is opened sooner.
const PER_SOCKET: usize = 256;

/// Classic BPF: take so many bytes of the packet.
const RETURN: u16 = 0x06;

/// The groups a node with these settings and owned addresses is to be a member of on `leg` (as [`OwnedAddress::leg`]).
pub fn groups(config: &Config, owned: &[OwnedAddress], leg: u8) -> BTreeSet<IpAddr> {
    let multicast = config.transport == Transport::Multicast && leg == 0;
    let owned = owned.iter().filter(|owned| owned.leg == leg);
    let ipv4 = config.ipv4.as_ref().filter(|_| multicast);
    let ipv6 = config.ipv6.as_ref().filter(|_| multicast);
    let solicited = owned.filter_map(|owned| match owned.address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(solicited_node(address).into()),
    });
    let adverts = ipv4.map(|_| Ipv4Addr::GROUP.into());
    let adverts = adverts.into_iter().chain(ipv6.map(|_| Ipv6Addr::GROUP.into()));
    adverts.chain(solicited).collect()
}

/// Sockets that make the kernel know the protocol of adverts while the HA process reads frames beside it: without one it
/// answers every unicast advert with an ICMP error to the peer. They take nothing.
#[derive(Debug)]
pub struct KnownProtocol {
    _sockets: Vec<Socket>,
}

impl KnownProtocol {
    /// For the families of `config`, if its adverts are unicast; a group is never answered.
    ///
    /// # Errors
    /// [`Error::System`], without `CAP_NET_RAW`.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let unicast = config.transport == Transport::Unicast;
        let ipv4 = config.ipv4.as_ref().filter(|_| unicast).map(|_| Domain::IPV4);
        let ipv6 = config.ipv6.as_ref().filter(|_| unicast).map(|_| Domain::IPV6);
        let open = |domain| {
            let protocol = Protocol::from(i32::from(PROTOCOL_VRRP));
            let socket = Socket::new(domain, Type::RAW.cloexec(), Some(protocol))?;
            socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)])?;
            Ok(socket)
        };
        let sockets: std::io::Result<_> = ipv4.into_iter().chain(ipv6).map(open).collect();
        let call = "open socket of the adverts' protocol";
        let sockets = sockets.map_err(|source| Error::System { call, source })?;
        Ok(Self { _sockets: sockets })
    }
}

/// Memberships on one leg; they end when dropped.
#[derive(Debug)]
pub struct Memberships {
    ifname: String,
    index: Option<NonZeroU32>,
    members: Vec<Member>,
}

/// One socket and the groups it has joined, all of one family.
#[derive(Debug)]
struct Member {
    socket: Socket,
    ipv4: bool,
    groups: BTreeSet<IpAddr>,
}

impl Memberships {
    /// None yet, to be on `ifname`.
    pub fn new(ifname: &str) -> Self {
        Self {
            ifname: ifname.to_owned(),
            index: None,
            members: Vec::new(),
        }
    }

    /// Name of the leg's interface.
    pub fn ifname(&self) -> &str {
        &self.ifname
    }

    /// Joins every group of `wanted` that is not joined yet and leaves all others; all are joined anew if the interface
    /// of that name is another one by now (deleted and made anew). Cheap if nothing changed; to be called on link events.
    ///
    /// # Errors
    /// [`Error::OpenLeg`] while there is no such interface, or the first group that could not be joined; all others are.
    pub fn hold(&mut self, wanted: &BTreeSet<IpAddr>) -> Result<(), Error> {
        let failed = |source| Error::OpenLeg {
            ifname: self.ifname.clone(),
            source,
        };
        let index = if_nametoindex(self.ifname.as_str()).map_err(|errno| failed(errno.into()))?;
        let index = NonZeroU32::new(index);
        if self.index != index {
            // What the old interface's sockets held went with it.
            self.members.clear();
            self.index = index;
        }
        let Some(index) = index else { return Ok(()) };
        for member in &mut self.members {
            member.keep(index, wanted);
        }
        self.members.retain(|member| !member.groups.is_empty());
        let joined: BTreeSet<_> = self.members.iter().flat_map(|m| &m.groups).copied().collect();
        let mut result = Ok(());
        for group in wanted.difference(&joined) {
            result = result.and(join(&mut self.members, index, *group));
        }
        result.map_err(failed)
    }

    /// Number of groups joined.
    pub fn len(&self) -> usize {
        self.members.iter().map(|member| member.groups.len()).sum()
    }

    /// Whether no group is joined.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

/// Joins with the last socket of the family, or with a new one where it has no room.
fn join(members: &mut Vec<Member>, index: NonZeroU32, group: IpAddr) -> std::io::Result<()> {
    let with_room = |member: &&mut Member| member.ipv4 == group.is_ipv4() && member.groups.len() < PER_SOCKET;
    if let Some(member) = members.iter_mut().rev().find(with_room)
        && member.join(index, group).is_ok()
    {
        return Ok(());
    }
    let mut member = Member::new(group.is_ipv4())?;
    member.join(index, group)?;
    members.push(member);
    Ok(())
}

impl Member {
    fn new(ipv4: bool) -> std::io::Result<Self> {
        let domain = if ipv4 { Domain::IPV4 } else { Domain::IPV6 };
        Ok(Self {
            socket: Socket::new(domain, Type::DGRAM.cloexec(), None)?,
            ipv4,
            groups: BTreeSet::new(),
        })
    }

    fn join(&mut self, index: NonZeroU32, group: IpAddr) -> std::io::Result<()> {
        match group {
            IpAddr::V4(group) => self.socket.join_multicast_v4_n(&group, &on(index))?,
            IpAddr::V6(group) => self.socket.join_multicast_v6(&group, index.get())?,
        }
        self.groups.insert(group);
        Ok(())
    }

    /// Leaves what is not `wanted`.
    fn keep(&mut self, index: NonZeroU32, wanted: &BTreeSet<IpAddr>) {
        let socket = &self.socket;
        self.groups.retain(|group| {
            if wanted.contains(group) {
                return true;
            }
            // It fails only if the kernel has dropped the membership itself.
            match group {
                IpAddr::V4(group) => socket.leave_multicast_v4_n(group, &on(index)).ok(),
                IpAddr::V6(group) => socket.leave_multicast_v6(group, index.get()).ok(),
            };
            false
        });
    }
}

const fn on(index: NonZeroU32) -> InterfaceIndexOrAddress {
    InterfaceIndexOrAddress::Index(index.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Wire, tests::sample};

    #[test]
    fn a_missing_interface_is_told_and_may_come_later() {
        let error = Memberships::new("no-such-leg")
            .hold(&BTreeSet::new())
            .unwrap_err();
        assert!(matches!(error, Error::OpenLeg { .. }) && error.is_transient());
    }

    #[test]
    fn adverts_and_owned_ipv6_addresses_have_groups_and_addresses_may_share_one() {
        let owned =
            ["192.0.2.1", "2001:db8::1:5", "2001:db8::2:0:5", "2001:db8::6"].map(|address| OwnedAddress {
                address: address.parse().unwrap(),
                router: false,
                leg: 0,
            });
        let with_ipv6 = Config {
            ipv6: Some(Wire {
                address: "fe80::2".parse().unwrap(),
                peer: "fe80::3".parse().unwrap(),
                announce: Vec::new(),
            }),
            ..sample()
        };
        let texts = |config: &Config| -> Vec<_> {
            groups(config, &owned, 0)
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        let solicited = ["ff02::1:ff00:5", "ff02::1:ff00:6", "ff02::1:ff01:5"];
        assert_eq!(texts(&sample()), [&["224.0.0.18"][..], &solicited].concat());
        assert_eq!(
            texts(&with_ipv6),
            [&["224.0.0.18", "ff02::12"][..], &solicited].concat()
        );
        let unicast = Config {
            transport: Transport::Unicast,
            ..with_ipv6
        };
        assert_eq!(texts(&unicast), solicited);
    }

    #[test]
    fn another_leg_has_the_groups_of_its_own_addresses_and_no_adverts() {
        let owned =
            [("2001:db8::5", 0), ("2001:db8:1::6", 1), ("192.0.2.1", 1)].map(|(address, leg)| OwnedAddress {
                address: address.parse().unwrap(),
                router: false,
                leg,
            });
        let of = |leg| {
            groups(&sample(), &owned, leg)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(0), ["224.0.0.18", "ff02::1:ff00:5"]);
        assert_eq!(of(1), ["ff02::1:ff00:6"]);
        assert!(of(2).is_empty());
    }
}
