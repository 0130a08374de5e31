//! What is written of one generation: entries of maps and elements of arrays.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use onearm_dataplane_common::maps::{
    self, Addr, EndpointKey, Owned, OwnedKey, ScopedPrefix, Service, ServiceKey, SnatPool, SnatRange, Tunnel,
};

use super::address::{bits, wide};
use super::check::{self, Result};
use super::compile::{Registry, ServiceState};
use super::ports::blocks;
use super::{Hairpin, LimitsSpec, Mode, OwnedKinds, Protocol, Scheduler, Tables, TablesError, TunnelSpec};
use crate::sched_space::Region;

/// An entry of a map whose keys name the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Owned(OwnedKey, Owned),
    SnatRange(OwnedKey, SnatRange),
    /// Prefix length, key, service index.
    Port(u32, ServiceKey, u32),
    /// Prefix length, key, id of the prefix.
    Connected(u32, ScopedPrefix, u32),
    /// Prefix length, key, gateway address.
    ServerNetwork(u32, ScopedPrefix, Addr),
    /// Prefix length, key.
    Direct(u32, ScopedPrefix),
    /// Prefix length, key.
    Hairpin(u32, ScopedPrefix),
    /// Prefix length, key, [`maps::service::ALLOW`] or `DENY`.
    Client(u32, ScopedPrefix, u32),
    /// Prefix length, key, mode.
    ModeRule(u32, ScopedPrefix, u32),
    Endpoint(EndpointKey),
}

/// What is written for one generation before it is switched to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    /// Keyed entries; removed one by one when the slot is swept.
    pub(crate) entries: Vec<Entry>,
    /// (service index, value) of array `SERVICE`, without slot.
    pub(crate) services: Vec<(u32, Service)>,
    /// (service index, value) of array `LIMITS`, without slot.
    pub(crate) limits: Vec<(u32, maps::Limits)>,
    /// (service index, value) of array `TUNNELS`, without slot.
    pub(crate) tunnels: Vec<(u32, Tunnel)>,
    /// Array `SNAT_POOLS` from its start, without slot.
    pub(crate) pools: Vec<SnatPool>,
    /// Scheduler tables that are not in the map yet.
    pub(crate) schedules: Vec<(Region, Vec<u16>)>,
}

fn kinds(kinds: OwnedKinds) -> u8 {
    let bit = |set, bit| if set { bit } else { 0 };
    bit(kinds.service, maps::owned::SERVICE)
        | bit(kinds.gateway, maps::owned::GATEWAY)
        | bit(kinds.snat, maps::owned::SNAT)
        | bit(kinds.orphan, maps::owned::ORPHAN)
}

fn group(group: onearm_types::GroupId) -> u8 {
    u8::try_from(group.index()).unwrap_or_default()
}

fn scoped(scope: u32, prefix: IpNet) -> (u32, ScopedPrefix) {
    let (bits, addr) = bits(prefix);
    let key = ScopedPrefix {
        scope: scope.to_be_bytes(),
        addr: addr.bytes(),
    };
    (32 + bits, key)
}

pub(super) fn prefixes(registry: &Registry, tables: &Tables, slot: u8, image: &mut Image) {
    let scope = u32::from(slot);
    let owned_key = |addr| OwnedKey {
        addr: wide(addr),
        slot: scope,
    };
    for owned in &tables.owned {
        let value = Owned {
            kinds: kinds(owned.kinds),
            leg: owned.leg,
            group: group(owned.group),
            _pad: 0,
        };
        image.entries.push(Entry::Owned(owned_key(owned.addr), value));
    }
    for range in &tables.snat_ranges {
        let value = SnatRange {
            first: range.first,
            last: range.last,
        };
        image.entries.push(Entry::SnatRange(owned_key(range.addr), value));
    }
    for (prefix, id) in &registry.connected {
        let (bits, key) = scoped(scope, *prefix);
        image.entries.push(Entry::Connected(bits, key, u32::from(*id)));
        // A prefix of 31 bits has two hosts (RFC 3021); IPv6 has no broadcast.
        let IpNet::V4(prefix) = prefix else { continue };
        let no_hosts = [prefix.network(), prefix.broadcast()];
        for addr in no_hosts.into_iter().filter(|_| prefix.prefix_len() <= 30) {
            let (bits, key) = scoped(scope, IpNet::from(IpAddr::V4(addr)));
            image.entries.push(Entry::Connected(bits, key, maps::NOT_A_HOST));
        }
    }
    for network in &tables.server_networks {
        let (bits, key) = scoped(scope, network.network);
        image
            .entries
            .push(Entry::ServerNetwork(bits, key, wide(network.gateway)));
    }
    for prefix in &tables.direct {
        let (bits, key) = scoped(scope, *prefix);
        image.entries.push(Entry::Direct(bits, key));
    }
}

const fn mode(mode: Mode) -> u8 {
    match mode {
        Mode::BothNat => maps::mode::BOTH_NAT,
        Mode::Dnat => maps::mode::DNAT,
        Mode::Dsr => maps::mode::DSR,
        Mode::L3Dsr => maps::mode::L3_DSR,
    }
}

fn tunnel(spec: TunnelSpec) -> Tunnel {
    let free_bits = |prefix: IpNet| u32::from(prefix.max_prefix_len() - prefix.prefix_len());
    Tunnel {
        source: spec.sources.map_or(Addr::NONE, |prefix| wide(prefix.network())),
        spread: spec.sources.map_or(0, |prefix| {
            let mask = 1_u64.checked_shl(free_bits(prefix)).unwrap_or(0).wrapping_sub(1);
            u32::try_from(mask).unwrap_or(u32::MAX).to_be()
        }),
        port: spec.gue_port.unwrap_or(0).to_be(),
        _pad: 0,
    }
}

pub(super) fn entries_of(state: &ServiceState, slot: u8, image: &mut Image) {
    let spec = &state.spec;
    for range in &spec.ports {
        for block in blocks(range) {
            let key = ServiceKey {
                slot,
                proto: spec.protocol.number(),
                addr: wide(spec.vip).bytes(),
                port: block.first.to_be_bytes(),
            };
            image
                .entries
                .push(Entry::Port(144 + block.bits, key, state.index));
        }
    }
    if let Hairpin::Listed(listed) = &spec.hairpin {
        for prefix in listed {
            let (bits, key) = scoped(u32::from(slot) << 24 | state.index, *prefix);
            image.entries.push(Entry::Hairpin(bits, key));
        }
    }
    for (prefix, of_clients) in &spec.mode_for {
        let (bits, key) = scoped(u32::from(slot) << 24 | state.index, *prefix);
        image
            .entries
            .push(Entry::ModeRule(bits, key, u32::from(mode(*of_clients))));
    }
    image.tunnels.push((state.index, tunnel(spec.tunnel)));
    // Counts are checked: at most 8,192 pools, 4,096 services.
    let narrow = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let snat_base = narrow(image.pools.len());
    image.pools.extend(spec.snat.iter().map(|p| SnatPool {
        addr: wide(p.addr),
        first: p.first,
        last: p.last,
    }));
    let value = Service {
        table: state.table.table(),
        mode: mode(spec.mode)
            | if spec.mode_for.is_empty() {
                0
            } else {
                maps::mode::RULES
            },
        scheduler: match spec.scheduler {
            Scheduler::Maglev => maps::scheduler::MAGLEV,
            Scheduler::Wrr => maps::scheduler::WRR,
            Scheduler::Wlc => maps::scheduler::WLC,
            Scheduler::SourceHash => maps::scheduler::SOURCE_HASH,
        },
        hairpin: match spec.hairpin {
            Hairpin::Off => maps::hairpin::OFF,
            Hairpin::Auto => maps::hairpin::AUTO,
            Hairpin::Listed(_) => maps::hairpin::LISTED,
        },
        group: group(spec.group),
        snat_base,
        snat_len: narrow(spec.snat.len()),
        idle_ticks: check::ticks(spec.idle_timeout).unwrap_or(1),
        stats: state.index,
        options: options(&spec.limits)
            | if spec.per_packet {
                maps::service::PER_PACKET
            } else {
                0
            },
        mss: spec.mss_clamp.unwrap_or(0),
        _pad: 0,
    };
    image.services.push((state.index, value));
    image.limits.push((state.index, spec.limits.value()));
    for (prefixes, rule) in [
        (&spec.limits.allow, maps::service::ALLOW),
        (&spec.limits.deny, maps::service::DENY),
    ] {
        for prefix in prefixes {
            let (bits, key) = scoped(u32::from(slot) << 24 | state.index, *prefix);
            image.entries.push(Entry::Client(bits, key, rule));
        }
    }
}

fn options(limits: &LimitsSpec) -> u32 {
    let bit = |set, bit| if set { bit } else { 0 };
    bit(limits.value() != maps::Limits::default(), maps::service::LIMITED)
        | bit(
            !limits.allow.is_empty() || !limits.deny.is_empty(),
            maps::service::CLIENTS,
        )
        | bit(!limits.allow.is_empty(), maps::service::ALLOWED_ONLY)
}

/// Where the servers of `dnat` services answer from.
pub(super) fn endpoints(tables: &Tables, slot: u8, most: u32, image: &mut Image) -> Result<()> {
    let max = (most / maps::SLOTS) as usize;
    let mut found: BTreeSet<(IpAddr, u16, Protocol)> = BTreeSet::new();
    for service in tables
        .services
        .iter()
        .filter(|s| s.modes().any(|mode| mode == Mode::Dnat))
    {
        for server in &service.servers {
            if server.id.port == 0 {
                let ports = service.ports.iter().cloned().flatten();
                found.extend(ports.map(|port| (server.id.addr, port, service.protocol)));
            } else {
                found.insert((server.id.addr, server.id.port, service.protocol));
            }
            if found.len() > max {
                return Err(TablesError::TooMany {
                    what: "ports of dnat servers",
                    count: found.len(),
                    max,
                });
            }
        }
    }
    image
        .entries
        .extend(found.into_iter().map(|(addr, port, protocol)| {
            Entry::Endpoint(EndpointKey {
                addr: wide(addr),
                port: port.to_be(),
                proto: protocol.number(),
                slot,
            })
        }));
    Ok(())
}
