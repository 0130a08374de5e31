//! What the daemon sees of the kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::name::{IfName, Mac};

/// The legs and the main table's routes as they are now. Latest wins; a reader that is late misses nothing but history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// Every listed leg, present or not.
    pub legs: BTreeMap<IfName, LegPicture>,
    /// Addresses of the node on interfaces that are no legs, loopback's own left out: the main table has no word of a
    /// host address, and a packet to one must not follow the default route.
    pub elsewhere: BTreeSet<IpAddr>,
    /// The main table for the dataplane's mirror: per destination the route of the lowest metric.
    pub routes: BTreeMap<IpNet, MirrorRoute>,
    /// Destinations left out because there are more than the mirror holds (65,536).
    pub routes_left_out: usize,
    /// How often events were lost (receive buffer full) and everything was read anew.
    pub overruns: u64,
}

/// One leg.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegPicture {
    /// The interface; none while it does not exist.
    pub link: Option<LinkPicture>,
    /// Its usable addresses with the length of their networks.
    pub addresses: BTreeSet<IpNet>,
    /// Hardware addresses to which frames may be sent, also of neighbours not confirmed lately.
    pub neighbours: BTreeMap<IpAddr, Mac>,
}

/// The interface of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkPicture {
    /// Index; another one means another device under the same name.
    pub ifindex: u32,
    /// Hardware address; none on an interface that is not Ethernet.
    pub mac: Option<Mac>,
    /// Largest packet, in bytes.
    pub mtu: u32,
    /// Switched on.
    pub up: bool,
    /// Switched on and carrier present, as told by events: up to a second late. A lease reads `ETHTOOL_GLINK`.
    pub carrier: bool,
}

impl LegPicture {
    /// Networks on the leg itself. Host addresses (/32, /128) have none.
    pub fn connected(&self) -> impl Iterator<Item = IpNet> {
        self.addresses
            .iter()
            .filter(|net| net.prefix_len() < net.max_prefix_len())
            .map(IpNet::trunc)
    }
}

/// Where the main table sends packets for a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MirrorRoute {
    /// To these next hops, sorted, equally good. Empty while none of them is alive.
    Hops(Vec<NextHop>),
    /// Nowhere: blackhole, unreachable, prohibited.
    Refused,
}

/// One way to a destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NextHop {
    /// The leg; none for an interface that is not listed: the dataplane must not send there, nor anywhere else.
    pub leg: Option<IfName>,
    /// The router; none if the destination itself is on the link.
    pub gateway: Option<IpAddr>,
    /// Largest packet by this way as the route says, in bytes; none: as the leg says.
    pub mtu: Option<u32>,
}

/// What has to be there of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The interface exists.
    Link,
    /// It exists, is switched on and has a carrier.
    Carrier,
    /// It exists and has this address.
    Address(IpAddr),
}

impl Presence {
    /// Whether the leg has it.
    pub fn holds(self, leg: &LegPicture) -> bool {
        match self {
            Self::Link => leg.link.is_some(),
            Self::Carrier => leg.link.is_some_and(|link| link.carrier),
            Self::Address(address) => {
                leg.link.is_some() && leg.addresses.iter().any(|net| net.addr() == address)
            }
        }
    }
}

/// The watching thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody watches the kernel any more")]
pub struct PictureClosed;

/// Waits until a leg has what is asked for, and returns it. At once if it has.
///
/// Cancel-safe: nothing is consumed but the mark of what was seen.
///
/// # Errors
/// [`PictureClosed`] if the watching thread has ended.
pub async fn wait_for_leg(
    picture: &mut watch::Receiver<Picture>,
    leg: &IfName,
    presence: Presence,
) -> Result<LegPicture, PictureClosed> {
    let there = |picture: &Picture| picture.legs.get(leg).is_some_and(|leg| presence.holds(leg));
    let picture = picture.wait_for(there).await.map_err(|_| PictureClosed)?;
    Ok(picture.legs.get(leg).cloned().unwrap_or_default())
}
