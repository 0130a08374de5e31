use std::net::IpAddr;

use ipnet::IpNet;

use super::{Protocol, ServerId};

/// Why tables cannot be built. Nothing has been changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TablesError {
    /// Datagrams scheduled one by one, where flows are needed.
    #[error(
        "service {service:?}: only datagrams to servers that answer clients themselves can be scheduled one by one, and no limits count them"
    )]
    PerPacket {
        /// Service.
        service: String,
    },
    /// More of something than the maps hold.
    #[error("{count} {what}: at most {max}")]
    TooMany {
        /// What.
        what: &'static str,
        /// How many.
        count: usize,
        /// Most allowed.
        max: usize,
    },
    /// Two services of one name.
    #[error("service {name} appears twice")]
    DuplicateService {
        /// The name.
        name: String,
    },
    /// A server appears twice in a service.
    #[error("service {service}: server {}:{} appears twice", server.addr, server.port)]
    DuplicateServer {
        /// Service.
        service: String,
        /// Server.
        server: ServerId,
    },
    /// An address appears twice.
    #[error("{what} {addr} appears twice")]
    DuplicateAddress {
        /// Owned address or SNAT range.
        what: &'static str,
        /// The address.
        addr: IpAddr,
    },
    /// A prefix appears twice in one list.
    #[error("{list} {prefix} appears twice")]
    DuplicatePrefix {
        /// Which list.
        list: &'static str,
        /// The prefix.
        prefix: IpNet,
    },
    /// No port, port 0, or a range that ends before it starts.
    #[error("service {service}: {first}-{last} is no range of ports")]
    BadPorts {
        /// Service.
        service: String,
        /// First port.
        first: u16,
        /// Last port.
        last: u16,
    },
    /// Two services want the same port, or one wants it twice.
    #[error("services {one} and {other} both want {vip} {protocol:?} port {port}")]
    PortTaken {
        /// One service.
        one: String,
        /// The other; may be the same.
        other: String,
        /// Their VIP.
        vip: IpAddr,
        /// Their protocol.
        protocol: Protocol,
        /// First common port.
        port: u16,
    },
    /// A VIP, gateway or SNAT source is not among the owned addresses.
    #[error("{addr} ({what}) is not an owned address")]
    NotOwned {
        /// What it is used for.
        what: &'static str,
        /// The address.
        addr: IpAddr,
    },
    /// A server or SNAT source is of another family than the service's VIP.
    #[error("service {service}: {what} {addr} and the VIP {vip} are not of one family")]
    MixedFamilies {
        /// Service.
        service: String,
        /// Its VIP.
        vip: IpAddr,
        /// Server or SNAT source.
        what: &'static str,
        /// Its address.
        addr: IpAddr,
    },
    /// A gateway address is of another family than the network it serves.
    #[error("gateway {gateway} is not of the family of {network}")]
    GatewayFamily {
        /// The network.
        network: IpNet,
        /// The gateway address.
        gateway: IpAddr,
    },
    /// A source port range is empty or starts at 0.
    #[error("{addr}: {first}-{last} is no range of source ports")]
    BadSourcePorts {
        /// Source address.
        addr: IpAddr,
        /// First port.
        first: u16,
        /// Last port.
        last: u16,
    },
    /// A port that clients call is among the source ports of the same address.
    #[error("service {service}: {addr} port {port} is a source port as well")]
    SourceIsServicePort {
        /// Service.
        service: String,
        /// Its VIP.
        addr: IpAddr,
        /// First such port.
        port: u16,
    },
    /// A server that gets packets as clients sent them listens on another port.
    #[error("service {service}: server {}:{} would need another port, but answers clients itself", server.addr, server.port)]
    DirectPort {
        /// Service.
        service: String,
        /// Server.
        server: ServerId,
    },
    /// Servers that hold the VIP themselves would get packets from it.
    #[error(
        "service {service}: {addr} is the VIP its servers hold, and cannot be the source of translated packets as well"
    )]
    DirectSource {
        /// Service.
        service: String,
        /// The address.
        addr: IpAddr,
    },
    /// GUE port 0, or outer sources of the other family or with more than 32 bits that vary.
    #[error("service {service}: tunnel port or sources out of range")]
    BadTunnel {
        /// Service.
        service: String,
    },
    /// The idle time-out or the persistence is zero or longer than the flow clock runs.
    #[error("service {service}: time-out or persistence out of range")]
    BadTimeout {
        /// Service.
        service: String,
    },
    /// The scheduler tables do not fit.
    #[error("no room for the scheduler table of service {service} ({entries} entries)")]
    NoScheduleSpace {
        /// Service.
        service: String,
        /// Entries wanted.
        entries: usize,
    },
    /// Every index is in use by a configured one or by flows of a removed one.
    #[error("no free {what} index: {retired} wait for the flows of removed ones to end")]
    NoIndex {
        /// `service`, `server` or `next hop`.
        what: &'static str,
        /// Retired indexes.
        retired: usize,
    },
    /// A change names a service or server that is not configured.
    #[error("no server {}:{} in service {service}", server.addr, server.port)]
    UnknownServer {
        /// Service.
        service: String,
        /// Server.
        server: ServerId,
    },
}
