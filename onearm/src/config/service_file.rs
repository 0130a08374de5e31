//! One `[[service]]`.

use std::time::Duration;

use super::limits;
use super::mode_file;
use super::pair::{
    Check, Hairpin, OnServerDown, Protocol, Scheduler, ServerConfig, ServiceConfig, ServiceLimits,
    SnatSource, SyncAfter,
};
use super::port_range::PortRange;
use super::walk::{Field, Keys, Table, Walk};

/// Why a group cannot be chosen.
pub(super) const GROUP_SENTENCE: &str = "all groups of a pair are Active on the same node in this build";

pub(super) const SERVICE: Keys = Keys {
    known: &[
        "name",
        "vip",
        "leg",
        "protocol",
        "ports",
        "mode",
        "mode_for",
        "tunnel",
        "tunnel_port",
        "tunnel_sources",
        "hairpin",
        "scheduler",
        "persistence",
        "source_prefix",
        "snat",
        "snat_ports",
        "idle_timeout",
        "mss_clamp",
        "udp",
        "max_connections",
        "max_new_per_second",
        "max_per_source",
        "allow",
        "deny",
        "on_server_down",
        "sync_after",
        "check",
        "server",
    ],
    later: &[
        ("group", GROUP_SENTENCE),
        ("egress", "outgoing addresses (egress) are not in this build"),
    ],
};
pub(super) const CHECK: Keys = Keys {
    known: &["type", "interval", "timeout", "rise", "fall", "port", "tunnel"],
    later: &[],
};
pub(super) const SERVER: Keys = Keys {
    known: &["name", "address", "port", "weight"],
    later: &[],
};

const DEFAULT_SNAT_PORTS: (u16, u16) = (32_768, 65_535);
const DEFAULT_TCP_IDLE: Duration = Duration::from_mins(15);
const DEFAULT_UDP_IDLE: Duration = Duration::from_mins(3);
const DEFAULT_CHECK_INTERVAL: Duration = Duration::from_secs(2);
const DEFAULT_CHECK_TIMEOUT: Duration = Duration::from_secs(1);
const DEFAULT_RISE: u32 = 2;
const DEFAULT_FALL: u32 = 3;

/// A service and the places of its servers in the file. `None` when it says too little to judge anything else by.
pub(super) fn service(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<(ServiceConfig, Vec<usize>)> {
    let table = walk.table(field, SERVICE)?;
    let name = walk.need(&table, "name", "write name = \"web\"", Walk::name);
    let vip = walk.need(&table, "vip", "write the address clients call", Walk::address);
    let leg = walk.may(&table, "leg", Walk::name);
    let protocol = walk.need(
        &table,
        "protocol",
        "write protocol = \"tcp\" or \"udp\"",
        |walk, field| walk.choice(field, &[("tcp", Protocol::Tcp), ("udp", Protocol::Udp)], &[]),
    );
    let ports = walk.need(&table, "ports", "write ports = [80] or [\"8000-8100\"]", ports);
    let mode = mode_file::mode(walk, &table);
    let mode_for = mode_file::mode_for(walk, &table);
    let tunnel = mode_file::tunnel(walk, &table);
    let hairpin = walk.or(&table, "hairpin", Hairpin::Auto, hairpin);
    let schedulers = [
        ("maglev", Scheduler::Maglev),
        ("wrr", Scheduler::Wrr),
        ("wlc", Scheduler::Wlc),
        ("source-hash", Scheduler::SourceHash),
    ];
    let scheduler = walk.or(&table, "scheduler", Scheduler::Maglev, |walk, field| {
        walk.choice(field, &schedulers, &[])
    });
    let persistence = walk.may(&table, "persistence", |walk, field| {
        walk.duration(field, limits::PERSISTENCE)
    });
    let most_bits = if vip.is_some_and(|vip| vip.is_ipv4()) {
        32
    } else {
        128
    };
    let source_prefix = walk.may(&table, "source_prefix", |walk, field| {
        u8::try_from(walk.integer(field, 1..=most_bits)?).ok()
    });
    let default_range = PortRange::new(DEFAULT_SNAT_PORTS.0, DEFAULT_SNAT_PORTS.1).expect("a range");
    let ports_of_all = walk.or(&table, "snat_ports", default_range, |walk, field| {
        let range = walk.port_range(field)?;
        both_nodes_have_a_port(walk, field, range)
    });
    let from_vip = vip.map(|address| SnatSource {
        address,
        ports: ports_of_all,
    });
    let snat: Vec<SnatSource> = walk.or(&table, "snat", from_vip.into_iter().collect(), |walk, field| {
        walk.list(field, limits::SNAT_PER_SERVICE, |walk, field| {
            snat(walk, field, ports_of_all)
        })
    });
    let default_idle = if protocol == Some(Protocol::Udp) {
        DEFAULT_UDP_IDLE
    } else {
        DEFAULT_TCP_IDLE
    };
    let idle_timeout = walk.or(&table, "idle_timeout", default_idle, |walk, field| {
        walk.duration(field, limits::IDLE_TIMEOUT)
    });
    let mss_clamp = walk.may(&table, "mss_clamp", |walk, field| {
        u16::try_from(walk.integer(field, limits::MSS_CLAMP)?).ok()
    });
    let per_packet = walk.or(&table, "udp", false, |walk, field| {
        walk.choice(field, &[("flow", false), ("packet", true)], &[])
    });
    let limits = service_limits(walk, &table);
    let downs = [("reset", OnServerDown::Reset), ("keep", OnServerDown::Keep)];
    let on_server_down = walk.or(&table, "on_server_down", OnServerDown::Reset, |walk, field| {
        walk.choice(field, &downs, &[])
    });
    let sync_after = walk.or(&table, "sync_after", SyncAfter::Time(Duration::ZERO), sync_after);
    let check = walk.may(&table, "check", check);
    let (places, servers) = servers(walk, &table);
    let service = ServiceConfig {
        name: name.unwrap_or_else(|| field.path.clone()),
        vip: vip?,
        leg,
        protocol: protocol?,
        ports: ports?,
        mode: mode?,
        mode_for,
        tunnel,
        hairpin,
        scheduler,
        persistence,
        source_prefix,
        snat,
        idle_timeout,
        mss_clamp,
        per_packet,
        limits,
        on_server_down,
        sync_after,
        check,
        servers,
    };
    Some((service, places))
}

/// A word, or how old a flow must be.
fn sync_after(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<SyncAfter> {
    let words = [
        ("established", SyncAfter::Time(Duration::ZERO)),
        ("never", SyncAfter::Never),
    ];
    let is_word = field
        .value
        .as_str()
        .is_none_or(|text| !text.starts_with(|c: char| c.is_ascii_digit()));
    if is_word {
        walk.choice(field, &words, &[])
    } else {
        walk.duration(field, limits::SYNC_AFTER).map(SyncAfter::Time)
    }
}

fn service_limits(walk: &mut Walk<'_>, table: &Table<'_>) -> ServiceLimits {
    let mut number = |key| {
        walk.may(table, key, |walk, field| {
            u32::try_from(walk.integer(field, limits::SERVICE_LIMIT)?).ok()
        })
    };
    let (max_connections, max_new_per_second, max_per_source) = (
        number("max_connections"),
        number("max_new_per_second"),
        number("max_per_source"),
    );
    let mut prefixes = |key| {
        walk.or(table, key, Vec::new(), |walk, field| {
            walk.list(field, limits::PREFIXES_PER_LIST, Walk::prefix)
        })
    };
    let (allow, deny) = (prefixes("allow"), prefixes("deny"));
    ServiceLimits {
        max_connections,
        max_new_per_second,
        max_per_source,
        allow,
        deny,
    }
}

fn ports(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<Vec<PortRange>> {
    let ports = walk.list(field, limits::PORTS_PER_SERVICE, Walk::ports)?;
    if field
        .value
        .as_array()
        .is_some_and(|list| list.iter().next().is_none())
    {
        walk.error(
            field,
            "empty-list",
            "a service needs a port",
            "write ports = [80] or [\"8000-8100\"]",
        );
    }
    Some(ports).filter(|ports| !ports.is_empty())
}

/// `"192.168.100.100"`, with all the service's SNAT ports, or `"192.168.100.100:20000-29999"`, and in brackets where the
/// address has colons: `"[2001:db8::100]:20000-29999"`.
fn snat(walk: &mut Walk<'_>, field: &Field<'_>, all: PortRange) -> Option<SnatSource> {
    let text = walk.text(field)?;
    let bracketed = text.strip_prefix('[').and_then(|text| text.split_once("]:"));
    // Two colons or more: an address alone.
    let split = bracketed.or_else(|| text.split_once(':').filter(|(_, ports)| !ports.contains(':')));
    let Some((address, ports)) = split else {
        let address = walk.address(field)?;
        return Some(SnatSource { address, ports: all });
    };
    let address = walk.address_of(field, address)?;
    let Ok(range) = ports.parse::<PortRange>() else {
        walk.error(
            field,
            "port",
            "no range of ports behind the colon",
            "write for example \"192.168.100.100:20000-29999\" or \"[2001:db8::100]:20000-29999\"",
        );
        return None;
    };
    let ports = both_nodes_have_a_port(walk, field, range)?;
    Some(SnatSource { address, ports })
}

fn both_nodes_have_a_port(walk: &mut Walk<'_>, field: &Field<'_>, range: PortRange) -> Option<PortRange> {
    if range.count() < 2 {
        walk.error(
            field,
            "range",
            "each node needs a port of its own",
            "write a range of two ports or more",
        );
        return None;
    }
    Some(range)
}

fn hairpin(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<Hairpin> {
    if field.value.is_array() {
        let prefixes = walk.list(field, limits::PREFIXES_PER_LIST, Walk::prefix)?;
        return Some(Hairpin::Listed(prefixes));
    }
    let auto = walk.choice(field, &[("auto", true), ("off", false)], &[])?;
    Some(if auto { Hairpin::Auto } else { Hairpin::Off })
}

fn check(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<Check> {
    let table = walk.table(field, CHECK)?;
    let later = [
        ("http", "HTTP checks are not in this build"),
        ("https", "HTTPS checks are not in this build"),
        ("icmp", "ICMP checks are not in this build"),
        ("udp", "UDP checks are not in this build"),
        ("grpc", "gRPC checks are not in this build"),
        ("exec", "checks by a program are not in this build"),
    ];
    walk.need(&table, "type", "write type = \"tcp\"", |walk, field| {
        walk.choice(field, &[("tcp", ())], &later)
    });
    let interval = walk.or(&table, "interval", DEFAULT_CHECK_INTERVAL, |walk, field| {
        walk.duration(field, limits::CHECK_INTERVAL)
    });
    let default_timeout = DEFAULT_CHECK_TIMEOUT.min(interval);
    let timeout = walk.or(&table, "timeout", default_timeout, |walk, field| {
        walk.duration(field, limits::CHECK_TIMEOUT)
    });
    let mut count = |key, default| {
        walk.or(&table, key, default, |walk, field| {
            u32::try_from(walk.integer(field, limits::CHECK_COUNT)?).ok()
        })
    };
    let (rise, fall) = (count("rise", DEFAULT_RISE), count("fall", DEFAULT_FALL));
    let port = walk.may(&table, "port", Walk::port);
    let tunnel = walk.or(&table, "tunnel", true, Walk::boolean);
    Some(Check {
        interval,
        timeout,
        rise,
        fall,
        port,
        tunnel,
    })
}

fn servers(walk: &mut Walk<'_>, table: &Table<'_>) -> (Vec<usize>, Vec<ServerConfig>) {
    let remedy = "write server = [{ name = \"s1\", address = \"192.168.100.10\" }]";
    let servers = walk.need(table, "server", remedy, |walk, field| {
        let servers = walk.each(field, limits::SERVERS_PER_SERVICE, server)?;
        if field
            .value
            .as_array()
            .is_some_and(|list| list.iter().next().is_none())
        {
            walk.error(field, "empty-list", "a service needs a server", remedy);
        }
        Some(servers)
    });
    servers.unwrap_or_default().into_iter().unzip()
}

fn server(walk: &mut Walk<'_>, field: &Field<'_>) -> Option<ServerConfig> {
    let table = walk.table(field, SERVER)?;
    let name = walk.need(&table, "name", "write name = \"s1\"", Walk::name);
    let address = walk.need(&table, "address", "write the server's address", Walk::address);
    let port = walk.may(&table, "port", Walk::port);
    let weight = walk.or(&table, "weight", 1, |walk, field| {
        u8::try_from(walk.integer(field, limits::WEIGHT)?).ok()
    });
    Some(ServerConfig {
        name: name.unwrap_or_else(|| field.path.clone()),
        address: address?,
        port,
        weight,
    })
}
