//! The addresses of the pair where the nodes' files differ: what this node answers for beside its own file's, and of what that says
//! it keeps away. Pure.
//!
//! ```text
//!            the last owner told it   this node's file has it
//! shared              yes                     yes              owned as ever
//! orphan              yes                     no               answered for, while flows use it
//! withheld            no                      yes              not before a probe found nobody there
//! ```
//!
//! What the last owner told is *kept*, also over a restart. Orphans and withheld addresses follow from it and the file alone, so
//! that they are in the maps, or are not, long before the lease is: a take-over does nothing for them. While this node owns, what is
//! kept changes with what the pair owns: an address taken after its probe goes in, an orphan whose end has come goes out. Once it is
//! what the file says nothing is kept any more.

mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use onearm_dataplane as dataplane;
use onearm_ha::announce;
use onearm_netcfg::Picture;
use onearm_types::GroupId;

use super::plan;
use crate::config::{NodeConfig, PairConfig};
use crate::stream::owned::{MOST, OwnedSet, Place};

pub(crate) use store::Store;

/// An address that only the former owner's file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    /// The address.
    pub(crate) address: IpAddr,
    /// Index of its leg in `node.toml`.
    pub(crate) leg: usize,
    /// Hosts route through it.
    pub(crate) router: bool,
}

/// Why an address of the peer's is not answered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refused {
    /// This node has no leg of that name that carries traffic.
    UnknownLeg,
    /// The leg has another VLAN here.
    OtherVlan,
    /// Groups are not told apart here.
    OtherGroup,
    /// No host can have it.
    NotAHost,
    /// It is this node's, or the peer's own.
    NodeAddress,
    /// A server or the witness has it.
    Host,
    /// There are too many.
    NoRoom,
}

impl Refused {
    /// As the status names it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::UnknownLeg => "unknown_leg",
            Self::OtherVlan => "other_vlan",
            Self::OtherGroup => "other_group",
            Self::NotAHost => "not_a_host",
            Self::NodeAddress => "node_address",
            Self::Host => "host",
            Self::NoRoom => "no_room",
        }
    }
}

/// What follows from what is kept and the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Split {
    /// In the order of their addresses.
    pub(crate) orphans: Vec<Orphan>,
    /// Of the file, but not to be owned yet.
    pub(crate) withheld: BTreeSet<IpAddr>,
    /// Addresses that only the peer's file has and this node refuses, by reason.
    pub(crate) refused: BTreeMap<Refused, u64>,
}

/// Splits. Without anything kept the file alone counts.
pub(crate) fn split(
    kept: Option<&OwnedSet>,
    node: &NodeConfig,
    pair: &PairConfig,
    picture: &Picture,
) -> Split {
    let Some(kept) = kept else {
        return Split::default();
    };
    let own = pair.owned_addresses();
    let foreign = kept
        .addresses
        .iter()
        .filter(|(address, _)| !own.contains(*address));
    let known = Known::of(node, pair, picture);
    let mut split = Split::default();
    for (address, place) in foreign {
        match known.leg_of(*address, place) {
            Ok(_) if own.len() + split.orphans.len() >= MOST => split.count(Refused::NoRoom),
            Ok(leg) => split.orphans.push(Orphan {
                address: *address,
                leg,
                router: place.router,
            }),
            Err(refused) => split.count(refused),
        }
    }
    let is_kept = |address: &IpAddr| kept.addresses.contains_key(address);
    split.withheld = own.into_iter().filter(|address| !is_kept(address)).collect();
    split
}

impl Split {
    fn count(&mut self, refused: Refused) {
        *self.refused.entry(refused).or_default() += 1;
    }

    /// Whether the file alone says what is owned.
    pub(crate) fn is_even(&self) -> bool {
        self.orphans.is_empty() && self.withheld.is_empty()
    }

    /// With nothing withheld: what this node may come to own.
    pub(crate) fn at_most(&self) -> Self {
        Self {
            orphans: self.orphans.clone(),
            ..Self::default()
        }
    }

    /// Takes services and sources of withheld addresses out of the tables, and puts orphans in.
    pub(crate) fn apply(&self, tables: &mut dataplane::Tables) {
        let is_owned = |address: &IpAddr| !self.withheld.contains(address);
        if !self.withheld.is_empty() {
            tables.owned.retain(|owned| is_owned(&owned.addr));
            tables.services.retain(|service| is_owned(&service.vip));
            for service in &mut tables.services {
                service.snat.retain(|pool| is_owned(&pool.addr));
            }
            tables.server_networks.retain(|net| is_owned(&net.gateway));
            tables.snat_ranges.retain(|range| is_owned(&range.addr));
        }
        tables
            .owned
            .extend(self.orphans.iter().map(|orphan| dataplane::OwnedAddress {
                addr: orphan.address,
                kinds: dataplane::OwnedKinds {
                    gateway: orphan.router,
                    orphan: true,
                    ..dataplane::OwnedKinds::default()
                },
                leg: plan::leg_id(orphan.leg),
                group: GroupId::FIRST,
            }));
    }

    /// The same for what the kernel is to keep its hands off.
    pub(crate) fn guard(&self, owned: &mut BTreeSet<IpAddr>) {
        owned.retain(|address| !self.withheld.contains(address));
        let orphans = self.orphans.iter().map(|orphan| orphan.address);
        owned.extend(orphans.filter(|address| !plan::is_link_local(*address)));
    }

    /// The same for what is announced; `number_of` gives a leg's number there.
    pub(crate) fn announce(&self, owned: &mut Vec<announce::OwnedAddress>, number_of: impl Fn(usize) -> u8) {
        owned.retain(|owned| !self.withheld.contains(&owned.address));
        owned.extend(self.orphans.iter().map(|orphan| announce::OwnedAddress {
            address: orphan.address,
            router: orphan.router,
            leg: number_of(orphan.leg),
        }));
    }
}

/// The set this node owns as long as it has the lease, in names for the peer.
pub(crate) fn own_set(node: &NodeConfig, pair: &PairConfig, picture: &Picture, split: &Split) -> OwnedSet {
    let named = pair.named_legs();
    let of_leg = |index: usize, router| {
        let leg = node.legs.get(index)?;
        Some(Place {
            leg: leg.name.clone(),
            vlan: leg.vlan,
            group: 0,
            router,
        })
    };
    let is_gateway = |address: IpAddr| pair.gateways.iter().any(|g| g.address.addr() == address);
    let own = pair
        .owned_addresses()
        .into_iter()
        .filter(|address| !split.withheld.contains(address))
        .filter_map(|address| {
            let leg = plan::leg_of(node, &named, picture, address);
            Some((address, of_leg(leg, is_gateway(address))?))
        });
    let orphans = split
        .orphans
        .iter()
        .filter_map(|orphan| Some((orphan.address, of_leg(orphan.leg, orphan.router)?)));
    OwnedSet {
        digest: pair.digest().to_string(),
        addresses: own.chain(orphans).collect(),
    }
}

/// Where an address of the peer's would live here, and what it must not be.
struct Known<'a> {
    node: &'a NodeConfig,
    nodes: BTreeSet<IpAddr>,
    hosts: BTreeSet<IpAddr>,
    broadcasts: BTreeSet<IpAddr>,
}

impl<'a> Known<'a> {
    fn of(node: &'a NodeConfig, pair: &PairConfig, picture: &Picture) -> Self {
        let on_legs = picture.legs.values().flat_map(|leg| &leg.addresses);
        let link = node.peer.link.iter().flat_map(|link| [link.own, link.peer]);
        let peers = node.peer.addresses().map(|(_, address)| address);
        let servers = pair.services.iter().flat_map(|service| &service.servers);
        let connected = picture
            .legs
            .values()
            .flat_map(onearm_netcfg::LegPicture::connected);
        let no_hosts = connected.filter_map(|net| match net {
            ipnet::IpNet::V4(net) if net.prefix_len() <= 30 => Some([net.network(), net.broadcast()]),
            ipnet::IpNet::V4(_) | ipnet::IpNet::V6(_) => None,
        });
        Self {
            node,
            nodes: on_legs
                .map(ipnet::IpNet::addr)
                .chain(picture.elsewhere.iter().copied())
                .chain(link)
                .chain(peers)
                .collect(),
            hosts: servers
                .map(|server| server.address)
                .chain(pair.ha.witness)
                .collect(),
            broadcasts: no_hosts.flatten().map(IpAddr::V4).collect(),
        }
    }

    fn leg_of(&self, address: IpAddr, place: &Place) -> Result<usize, Refused> {
        if place.group != 0 {
            return Err(Refused::OtherGroup);
        }
        let mut legs = self.node.legs.iter();
        let leg = legs
            .position(|leg| leg.name == place.leg && leg.role.carries_traffic())
            .ok_or(Refused::UnknownLeg)?;
        // One node may have the VLAN's frames with their tags, the other without.
        let vlans = place.vlan.zip(self.node.legs[leg].vlan);
        if vlans.is_some_and(|(there, here)| there != here) {
            return Err(Refused::OtherVlan);
        }
        if is_special(address) || self.broadcasts.contains(&address) {
            return Err(Refused::NotAHost);
        }
        if self.nodes.contains(&address) {
            return Err(Refused::NodeAddress);
        }
        if self.hosts.contains(&address) {
            return Err(Refused::Host);
        }
        Ok(leg)
    }
}

fn is_special(address: IpAddr) -> bool {
    let of_either = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    of_either
        || match address {
            IpAddr::V4(address) => address.octets()[0] == 0 || address.octets()[0] >= 240,
            IpAddr::V6(address) => address.to_ipv4_mapped().is_some(),
        }
}

#[cfg(test)]
mod tests;
