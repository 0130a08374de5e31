use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::tunnel::TunnelTarget;
use crate::config::{Mode, PairConfig, ServerConfig, ServiceConfig, TunnelKind};

/// Which server of which service: the identity its health goes with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServerKey {
    /// `service.name`.
    pub service: String,
    /// `server.name`.
    pub server: String,
}

impl ServerKey {
    /// Identity of a configured server.
    pub fn of(service: &ServiceConfig, server: &ServerConfig) -> Self {
        Self {
            service: service.name.clone(),
            server: server.name.clone(),
        }
    }
}

/// What is tried: every way there is, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    /// A connection to an address.
    pub address: Option<SocketAddr>,
    /// A connection to the VIP by the server's tunnel.
    pub tunnel: Option<TunnelTarget>,
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self {
            address: Some(address),
            tunnel: None,
        }
    }
}

impl Target {
    /// The machine that is asked.
    pub(super) fn host(&self) -> Option<IpAddr> {
        let tunnel = self.tunnel.map(|tunnel| tunnel.server);
        tunnel.or_else(|| self.address.map(|address| address.ip()))
    }

    /// The ways by which clients of the service come to the server.
    pub(crate) fn of(service: &ServiceConfig, server: &ServerConfig) -> Self {
        let port = service.check_port(server);
        let by_tunnel = service.has_mode(Mode::L3Dsr) && service.check.is_some_and(|check| check.tunnel);
        let tunnel = by_tunnel.then(|| TunnelTarget {
            server: server.address,
            vip: SocketAddr::new(service.vip, service.called_port()),
            gue: (service.tunnel.kind == TunnelKind::Gue).then_some(service.tunnel.port),
            source: service.tunnel.sources.map(|sources| sources.addr()),
        });
        let others = service.modes().any(|mode| mode != Mode::L3Dsr);
        Self {
            address: (others || !by_tunnel).then(|| SocketAddr::new(server.address, port)),
            tunnel,
        }
    }
}

/// One server to check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckSpec {
    /// Which.
    pub key: ServerKey,
    /// Where a connection is tried.
    pub target: Target,
    /// From the start of a check to the start of the next, ± 10 %.
    pub interval: Duration,
    /// A connection not made after so long has failed.
    pub timeout: Duration,
    /// Successes in a row that bring it up.
    pub rise: u32,
    /// Failures in a row that take it down.
    pub fall: u32,
}

/// Every server of services with a check.
pub fn specs(pair: &PairConfig) -> Vec<CheckSpec> {
    let checked = pair
        .services
        .iter()
        .filter_map(|service| service.check.map(|check| (service, check)));
    let servers = checked
        .flat_map(|(service, check)| service.servers.iter().map(move |server| (service, check, server)));
    servers
        .map(|(service, check, server)| CheckSpec {
            key: ServerKey::of(service, server),
            target: Target::of(service, server),
            interval: check.interval,
            timeout: check.timeout,
            rise: check.rise,
            fall: check.fall,
        })
        .collect()
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckResult {
    /// The connection was made after so long.
    Connected(Duration),
    /// No answer for so long.
    TimedOut(Duration),
    /// The server or a router said no: an error number of the system.
    Failed(i32),
    /// This machine could not even try (no descriptors, ports or memory): says nothing about the server.
    NotTried(i32),
}

impl CheckResult {
    /// What an error of `connect` says.
    pub fn of_error(error: &io::Error) -> Self {
        let number = error.raw_os_error().unwrap_or(libc::EIO);
        match number {
            libc::EMFILE
            | libc::ENFILE
            | libc::ENOBUFS
            | libc::ENOMEM
            | libc::EADDRNOTAVAIL
            | libc::EACCES
            | libc::EPERM => Self::NotTried(number),
            _ => Self::Failed(number),
        }
    }
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected(after) => write!(
                f,
                "connected in {}.{} ms",
                after.as_millis(),
                after.as_micros() / 100 % 10
            ),
            Self::TimedOut(after) => write!(f, "no answer in {} ms", after.as_millis()),
            Self::Failed(libc::ECONNREFUSED) => f.write_str("connection refused"),
            Self::Failed(number) => f.write_str(nix::errno::Errno::from_raw(*number).desc()),
            Self::NotTried(number) => write!(f, "not tried: {}", nix::errno::Errno::from_raw(*number).desc()),
        }
    }
}
