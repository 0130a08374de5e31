//! Routes: ours in our tables, everybody's in the main one.

use std::net::IpAddr;

use ipnet::IpNet;

use super::wire::{
    Frame, Message, address_of, attributes, family_of, network_of, number_of, u8_of, u16_of, u32_of,
};
use crate::{
    marks,
    name::Family,
    state::{Route, RouteKind},
};

const FIXED: usize = 12;
const HOP_FIXED: usize = 8;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const RTNH_F_DEAD: u32 = 1;
const RTNH_F_LINKDOWN: u32 = 16;
/// Table number in the fixed header when the attribute tells it.
const TABLE_COMPAT: u8 = 252;

/// A route as the kernel tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteMessage {
    pub(crate) table: u32,
    pub(crate) protocol: u8,
    pub(crate) to: IpNet,
    /// `RTN_*`.
    pub(crate) kind: u8,
    pub(crate) metric: u32,
    /// Limited to packets of a type of service or a source: not for everybody.
    pub(crate) selective: bool,
    /// Ways out that are alive.
    pub(crate) hops: Vec<Hop>,
}

/// One way out of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hop {
    pub(crate) ifindex: u32,
    /// None: the destination itself is on the link.
    pub(crate) gateway: Option<IpAddr>,
    /// Largest packet by this way as the route says, in bytes; none: as the interface says.
    pub(crate) mtu: Option<u32>,
}

impl RouteMessage {
    /// The route as one of ours.
    pub(crate) fn ours(&self) -> Route {
        let kind = match self.kind {
            libc::RTN_BLACKHOLE => RouteKind::Blackhole,
            libc::RTN_UNREACHABLE => RouteKind::Unreachable,
            other => RouteKind::Other(other),
        };
        Route {
            table: self.table,
            to: self.to,
            kind,
        }
    }
}

/// Request for the routes of one table and family.
pub(crate) fn list(family: Family, table: u32) -> Message {
    let mut fixed = [0; FIXED];
    fixed[0] = number_of(family);
    Message::new(libc::RTM_GETROUTE, 0, &fixed).number(libc::RTA_TABLE, table)
}

/// Adds a route under our mark; `EEXIST` if the destination is taken.
pub(crate) fn add(route: &Route) -> Message {
    message(
        libc::RTM_NEWROUTE,
        libc::NLM_F_CREATE | libc::NLM_F_EXCL,
        route,
        marks::PROTOCOL,
    )
}

/// Removes a route that carries a mark.
pub(crate) fn remove(route: &Route, protocol: u8) -> Message {
    message(libc::RTM_DELROUTE, 0, route, protocol)
}

fn message(kind: u16, flags: i32, route: &Route, protocol: u8) -> Message {
    let mut fixed = [0; FIXED];
    fixed[0] = number_of(Family::of(route.to.addr()));
    fixed[1] = route.to.prefix_len();
    fixed[4] = u8::try_from(route.table).unwrap_or(TABLE_COMPAT);
    fixed[5] = protocol;
    fixed[7] = match route.kind {
        RouteKind::Blackhole => libc::RTN_BLACKHOLE,
        RouteKind::Unreachable => libc::RTN_UNREACHABLE,
        RouteKind::Other(number) => number,
    };
    if kind == libc::RTM_DELROUTE {
        fixed[6] = libc::RT_SCOPE_NOWHERE;
    }
    Message::new(kind, flags, &fixed)
        .address(libc::RTA_DST, route.to.network())
        .number(libc::RTA_TABLE, route.table)
}

/// Reads a route of IP; none for another message or a cached copy.
pub(crate) fn read(frame: Frame<'_>) -> Option<RouteMessage> {
    if !matches!(frame.kind, libc::RTM_NEWROUTE | libc::RTM_DELROUTE) {
        return None;
    }
    let family = family_of(u8_of(frame.payload)?)?;
    let fixed = frame.payload.first_chunk::<FIXED>()?;
    let [_, to_length, from_length, tos, table, protocol, _, kind, ..] = *fixed;
    let flags = u32_of(&fixed[8..])?;
    if flags & libc::RTM_F_CLONED != 0 {
        return None;
    }
    let (mut table, mut to, mut metric) = (u32::from(table), None, 0);
    let (mut ifindex, mut gateway, mut mtu, mut hops) = (None, None, None, Vec::new());
    for (attribute, value) in attributes(&frame.payload[FIXED..]) {
        match attribute {
            libc::RTA_TABLE => table = u32_of(value).unwrap_or(table),
            libc::RTA_DST => to = address_of(value),
            libc::RTA_PRIORITY => metric = u32_of(value).unwrap_or(0),
            libc::RTA_OIF => ifindex = u32_of(value),
            libc::RTA_GATEWAY => gateway = address_of(value),
            RTA_VIA => gateway = via_of(value),
            libc::RTA_MULTIPATH => hops.extend(multipath(value)),
            libc::RTA_METRICS => mtu = mtu_of(value),
            _ => {}
        }
    }
    if let Some(ifindex) = ifindex.filter(|_| hops.is_empty() && is_alive(flags)) {
        hops.push(Hop {
            ifindex,
            gateway,
            mtu: None,
        });
    }
    // Metrics are the route's, whichever hop a packet takes.
    for hop in &mut hops {
        hop.mtu = mtu;
    }
    let to = network_of(family, to, to_length)?;
    Some(RouteMessage {
        table,
        protocol,
        to,
        kind,
        metric,
        selective: tos != 0 || from_length != 0,
        hops,
    })
}

fn is_alive(flags: u32) -> bool {
    flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN) == 0
}

/// Family and address of a gateway of the other family.
fn via_of(value: &[u8]) -> Option<IpAddr> {
    u16_of(value)?;
    address_of(&value[2..])
}

/// ```text
///  0       2       3       4               8
/// +-------+-------+-------+---------------+------------
/// |length | flags | hops  |    ifindex    | attributes
/// +-------+-------+-------+---------------+------------
/// ```
fn multipath(mut bytes: &[u8]) -> impl Iterator<Item = Hop> {
    std::iter::from_fn(move || {
        loop {
            let length = usize::from(u16_of(bytes)?);
            let hop = bytes.get(..length).filter(|hop| hop.len() >= HOP_FIXED)?;
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
            if !is_alive(u32::from(hop[2])) {
                continue;
            }
            let gateway = attributes(&hop[HOP_FIXED..]).find_map(|(attribute, value)| match attribute {
                libc::RTA_GATEWAY => address_of(value),
                RTA_VIA => via_of(value),
                _ => None,
            });
            return Some(Hop {
                ifindex: u32_of(&hop[4..])?,
                gateway,
                mtu: None,
            });
        }
    })
}

/// The MTU among a route's metrics; the kernel tells 0 where there is none.
fn mtu_of(metrics: &[u8]) -> Option<u32> {
    let (_, mtu) = attributes(metrics).find(|(metric, _)| *metric == RTAX_MTU)?;
    u32_of(mtu).filter(|mtu| *mtu != 0)
}
