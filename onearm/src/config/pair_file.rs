use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use onearm_ha::config::Rollout;

use super::diagnostic::Diagnostic;
use super::limits;
use super::pair::{Auth, GatewayConfig, HaConfig, Limits, PairConfig, ServiceConfig, Transport};
use super::service_file;
use super::source::{Parsed, Source};
use super::track_file;
use super::walk::{Field, Keys, Table, Walk, walk};

pub(super) const ROOT: Keys = Keys {
    known: &["format", "ha", "limits", "gateway", "service"],
    later: &[("egress", "outgoing addresses (egress) are not in this build")],
};
pub(super) const HA: Keys = Keys {
    known: &[
        "vrid",
        "advert_interval",
        "auth",
        "rollout",
        "datagram_port",
        "stream_port",
        "transport",
        "preempt",
        "announce",
        "announce_rate",
        "announce_refresh",
        "witness",
        "track",
        "hooks",
        "script_user",
    ],
    later: &[("virtual_mac", "a virtual MAC is not in this build")],
};
pub(super) const LIMITS: Keys = Keys {
    known: &[
        "max_flows",
        "max_flows6",
        "half_open",
        "dsr_flows",
        "persistent_clients",
    ],
    later: &[],
};
pub(super) const GATEWAY: Keys = Keys {
    known: &["address", "network", "leg", "transit", "direct"],
    later: &[("group", service_file::GROUP_SENTENCE)],
};

const DEFAULT_ADVERT_INTERVAL: Duration = Duration::from_millis(100);
const DEFAULT_DATAGRAM_PORT: u16 = 8_471;
const DEFAULT_STREAM_PORT: u16 = 8_470;
const DEFAULT_ANNOUNCE_RATE: u32 = 200;
const DEFAULT_ANNOUNCE_REFRESH: Duration = Duration::from_mins(1);
const DEFAULT_LIMITS: Limits = Limits {
    max_flows: 1_000_000,
    max_flows6: 1_000_000,
    half_open: 65_536,
    dsr_flows: 0,
    persistent_clients: 65_536,
};
/// Where servers answer clients themselves, there is room for one affinity beside so many flows.
const FLOWS_PER_AFFINITY: u32 = 4;

/// A `pair.toml` that has been read.
#[derive(Clone, Debug)]
pub struct PairFile {
    /// What it says, and what is wrong with it.
    pub parsed: Parsed<PairConfig>,
    gateways: Vec<usize>,
    services: Vec<(usize, Vec<usize>)>,
}

impl PairFile {
    pub(super) fn unread(error: Diagnostic) -> Self {
        Self {
            parsed: Parsed::unread(draft(), error),
            gateways: Vec::new(),
            services: Vec::new(),
        }
    }

    /// Field path of `config.gateways[gateway]`.
    pub fn gateway_path(&self, gateway: usize) -> String {
        format!("gateway[{}]", self.gateways[gateway])
    }

    /// Field path of `config.services[service]`.
    pub fn service_path(&self, service: usize) -> String {
        format!("service[{}]", self.services[service].0)
    }

    /// Field path of `config.services[service].servers[server]`.
    pub fn server_path(&self, service: usize, server: usize) -> String {
        let (service, servers) = &self.services[service];
        format!("service[{service}].server[{}]", servers[server])
    }
}

/// Reads a `pair.toml`.
pub fn parse_pair(source: Source) -> PairFile {
    let mut gateways = Vec::new();
    let mut services = Vec::new();
    let parsed = walk(
        source,
        |walk, table| {
            let Some(table) = table else { return draft() };
            let (config, gateway_places, service_places) = read(walk, table);
            gateways = gateway_places;
            services = service_places;
            config
        },
        ROOT,
    );
    PairFile {
        parsed,
        gateways,
        services,
    }
}

fn draft() -> PairConfig {
    PairConfig {
        ha: draft_ha(),
        limits: DEFAULT_LIMITS,
        gateways: Vec::new(),
        services: Vec::new(),
    }
}

fn draft_ha() -> HaConfig {
    HaConfig {
        vrid: 1,
        advert_interval: DEFAULT_ADVERT_INTERVAL,
        auth: Auth::Hmac,
        rollout: Rollout::Enforce,
        datagram_port: DEFAULT_DATAGRAM_PORT,
        stream_port: DEFAULT_STREAM_PORT,
        transport: Transport::Multicast,
        preempt: false,
        announce: Vec::new(),
        announce_rate: DEFAULT_ANNOUNCE_RATE,
        announce_refresh: Some(DEFAULT_ANNOUNCE_REFRESH),
        witness: None,
        track: track_file::draft_track(),
        hooks: track_file::draft_hooks(),
        script_user: track_file::DEFAULT_SCRIPT_USER.to_owned(),
    }
}

type Places = (PairConfig, Vec<usize>, Vec<(usize, Vec<usize>)>);

fn read(walk: &mut Walk<'_>, table: &Table<'_>) -> Places {
    walk.need(table, "format", "write format = 1", |walk, field| {
        walk.integer(field, 1..=1)
    });
    let ha = walk.need(table, "ha", "write ha = { vrid = 51 }", ha);
    let (limits, says_flows6, dsr_flows) =
        walk.or(table, "limits", (DEFAULT_LIMITS, false, None), table_sizes);
    let gateways = walk.may(table, "gateway", |walk, field| {
        walk.each(field, limits::GATEWAYS, gateway)
    });
    let services = walk.may(table, "service", |walk, field| {
        walk.each(field, limits::SERVICES, service_file::service)
    });
    let (gateway_places, gateways): (Vec<_>, Vec<_>) = gateways.unwrap_or_default().into_iter().unzip();
    let mut service_places = Vec::new();
    let mut service_configs = Vec::new();
    for (place, (service, servers)) in services.unwrap_or_default() {
        service_places.push((place, servers));
        service_configs.push(service);
    }
    let mut ha = ha.unwrap_or_else(draft_ha);
    if ha.announce.is_empty() {
        let vips = service_configs.iter().map(|service| service.vip);
        let mut owned = vips.chain(
            gateways
                .iter()
                .map(|gateway: &GatewayConfig| gateway.address.addr()),
        );
        ha.announce.extend(owned.next());
    }
    let mut config = PairConfig {
        ha,
        limits,
        gateways,
        services: service_configs,
    };
    let has_v4 = config.owned_addresses().iter().any(IpAddr::is_ipv4);
    if !says_flows6 && has_v4 {
        let least = u32::try_from(*limits::MAX_FLOWS.start()).unwrap_or_default();
        config.limits.max_flows6 = (config.limits.max_flows / 2).max(least);
    }
    let is_direct = config.services.iter().any(ServiceConfig::is_direct);
    let (four, six) = config.flow_room();
    let affinities = if is_direct {
        four.max(six) / FLOWS_PER_AFFINITY
    } else {
        0
    };
    config.limits.dsr_flows = dsr_flows.unwrap_or(affinities);
    (config, gateway_places, service_places)
}

fn ha(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<HaConfig> {
    let table = walk.table(field, HA)?;
    let draft = draft_ha();
    let vrid = walk.need(
        &table,
        "vrid",
        "write vrid = 1 to 255, used by nobody else on the segment",
        |walk, field| u8::try_from(walk.integer(field, limits::VRID)?).ok(),
    );
    let advert_interval = walk.or(
        &table,
        "advert_interval",
        DEFAULT_ADVERT_INTERVAL,
        advert_interval,
    );
    let auth = walk.or(&table, "auth", draft.auth, |walk, field| {
        walk.choice(field, &[("hmac", Auth::Hmac), ("none", Auth::None)], &[])
    });
    let rollout = walk.or(&table, "rollout", draft.rollout, |walk, field| {
        rollout(walk, field, auth)
    });
    let datagram_port = walk.or(&table, "datagram_port", draft.datagram_port, port);
    let stream_port = walk.or(&table, "stream_port", draft.stream_port, port);
    let transport = walk.or(&table, "transport", draft.transport, |walk, field| {
        let choices = [
            ("multicast", Transport::Multicast),
            ("unicast", Transport::Unicast),
        ];
        walk.choice(field, &choices, &[])
    });
    let preempt = walk.or(&table, "preempt", false, Walk::boolean);
    let announce: Vec<IpAddr> = walk.or(&table, "announce", Vec::new(), |walk, field| {
        walk.list(field, limits::ANNOUNCE, Walk::address_on_link)
    });
    let announce_rate = walk.or(&table, "announce_rate", DEFAULT_ANNOUNCE_RATE, |walk, field| {
        u32::try_from(walk.integer(field, limits::ANNOUNCE_RATE)?).ok()
    });
    let announce_refresh = walk.or(
        &table,
        "announce_refresh",
        draft.announce_refresh,
        |walk, field| {
            if field.value.as_str() == Some("off") {
                return Some(None);
            }
            walk.duration(field, limits::ANNOUNCE_REFRESH).map(Some)
        },
    );
    let witness = walk.may(&table, "witness", Walk::address_on_link);
    let track = walk.or(&table, "track", draft.track, track_file::track);
    let hooks = walk.or(&table, "hooks", draft.hooks, track_file::hooks);
    let script_user = walk.or(&table, "script_user", draft.script_user, Walk::name);
    Some(HaConfig {
        vrid: vrid.unwrap_or(draft.vrid),
        advert_interval,
        auth,
        rollout,
        datagram_port,
        stream_port,
        transport,
        preempt,
        announce,
        announce_rate,
        announce_refresh,
        witness,
        track,
        hooks,
        script_user,
    })
}

fn port(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<u16> {
    u16::try_from(walk.integer(field, limits::PORT)?).ok()
}

fn rollout(walk: &mut Walk<'_>, field: &Field<'_>, auth: Auth) -> Option<Rollout> {
    let words = [
        ("accept", Rollout::Accept),
        ("prefer", Rollout::Prefer),
        ("enforce", Rollout::Enforce),
    ];
    let rollout = walk.choice(field, &words, &[])?;
    if auth == Auth::None {
        let message = "has no effect: nothing is authenticated";
        walk.error(
            field,
            "no-effect",
            message,
            "remove the key, or write auth = \"hmac\"",
        );
        return None;
    }
    Some(rollout)
}

fn advert_interval(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<Duration> {
    let interval = walk.duration(field, limits::ADVERT_INTERVAL)?;
    if interval.as_nanos() % 10_000_000 != 0 {
        walk.error(
            field,
            "range",
            "the wire carries whole hundredths of a second",
            "write a multiple of \"10ms\"",
        );
        return None;
    }
    Some(interval)
}

/// Sizes, whether the file says that of IPv6 flows, and that of the affinities if it does.
fn table_sizes(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<(Limits, bool, Option<u32>)> {
    let table = walk.table(field, LIMITS)?;
    let max_flows = walk.or(&table, "max_flows", DEFAULT_LIMITS.max_flows, |walk, field| {
        u32::try_from(walk.integer(field, limits::MAX_FLOWS)?).ok()
    });
    let says_flows6 = walk.may(&table, "max_flows6", |walk, field| {
        u32::try_from(walk.integer(field, limits::MAX_FLOWS)?).ok()
    });
    let max_flows6 = says_flows6.unwrap_or(max_flows);
    let half_open = walk.or(
        &table,
        "half_open",
        DEFAULT_LIMITS.half_open.min(max_flows.max(max_flows6)),
        |walk, field| u32::try_from(walk.integer(field, limits::HALF_OPEN)?).ok(),
    );
    let dsr_flows = walk.may(&table, "dsr_flows", |walk, field| {
        u32::try_from(walk.integer(field, limits::DSR_FLOWS)?).ok()
    });
    let persistent_clients = walk.or(
        &table,
        "persistent_clients",
        DEFAULT_LIMITS.persistent_clients,
        |walk, field| u32::try_from(walk.integer(field, limits::PERSISTENT_CLIENTS)?).ok(),
    );
    let limits = Limits {
        max_flows,
        max_flows6,
        half_open,
        persistent_clients,
        ..DEFAULT_LIMITS
    };
    Some((limits, says_flows6.is_some(), dsr_flows))
}

fn gateway(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<GatewayConfig> {
    let table = walk.table(field, GATEWAY)?;
    let remedy = "write address = \"192.168.100.1/24\": the servers' default route and their network";
    let address = walk.need(&table, "address", remedy, Walk::interface_address);
    let network = gateway_network(walk, &table, address);
    let leg = walk.need(
        &table,
        "leg",
        "write the name of a [[leg]] of node.toml",
        Walk::name,
    );
    let transit = walk.or(&table, "transit", true, Walk::boolean);
    let direct = walk.or(&table, "direct", Vec::new(), |walk, field| {
        walk.list(field, limits::PREFIXES_PER_LIST, Walk::prefix)
    });
    Some(GatewayConfig {
        address: address?,
        network: network?,
        leg: leg?,
        transit,
        direct,
    })
}

/// The servers' network. A link-local address does not tell it.
fn gateway_network(walk: &mut Walk<'_>, table: &Table<'_>, address: Option<IpNet>) -> Option<IpNet> {
    const REMEDY: &str = "write network = \"2001:db8:100::/64\": the network of the servers";
    let Some(address) = address else {
        walk.may(table, "network", Walk::prefix);
        return None;
    };
    if matches!(address, IpNet::V6(address) if address.addr().is_unicast_link_local()) {
        return walk.need(table, "network", REMEDY, |walk, field| {
            let network = walk.prefix(field)?;
            if network.addr().is_ipv4() {
                walk.error(
                    field,
                    "family",
                    "of another family than the gateway address",
                    REMEDY,
                );
                return None;
            }
            Some(network)
        });
    }
    walk.may(table, "network", |walk, field| {
        let message = "has no effect: the gateway address has its network";
        walk.error(field, "no-effect", message, "remove the key");
        Some(())
    });
    Some(address.trunc())
}
