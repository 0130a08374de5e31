use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use onearm_dataplane::Refusals;

/// One service of `onearm services`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// `service.name`.
    pub name: String,
    /// `service.vip`.
    pub vip: IpAddr,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Ports and ranges as in the file: `80`, `8000-8100`.
    pub ports: Vec<String>,
    /// `both-nat`, `dnat`, `dsr` or `l3-dsr`.
    pub mode: String,
    /// Clients with another mode.
    #[serde(default)]
    pub mode_for: Vec<ClientsMode>,
    /// `maglev`, `wrr`, `wlc` or `source-hash`.
    pub scheduler: String,
    /// Counters of the whole service since the daemon started.
    pub traffic: Traffic,
    /// Its flows now, closing ones not counted.
    pub open: u64,
    /// `service.max_connections`; `None` = no limit.
    #[serde(default)]
    pub max_connections: Option<u32>,
    /// New flows refused since the daemon started, by reason.
    pub refusals: Refusals,
    /// Its servers in the order of the file.
    pub servers: Vec<ServerStatus>,
}

/// Clients that have a mode of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientsMode {
    /// Prefixes as in the file.
    pub clients: Vec<String>,
    /// As [`ServiceStatus::mode`].
    pub mode: String,
}

/// One server of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// `server.name`.
    pub name: String,
    /// `server.address`.
    pub address: IpAddr,
    /// `server.port`; `None` = the port the client called.
    pub port: Option<u16>,
    /// Configured weight, 0–255. Health never changes it.
    pub weight: u8,
    /// Weight new flows are balanced with: 0 while the server is down, else the configured one.
    pub effective_weight: u8,
    /// What the checks say.
    pub health: ServerHealth,
    /// The last check that ended; `None` = none yet, or the service has no check.
    pub last_check: Option<LastCheck>,
    /// Counters since the server appeared in the configuration.
    pub traffic: Traffic,
}

/// Health of a server as shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerHealth {
    /// In rotation.
    Up,
    /// Out of rotation.
    Down,
    /// The first check has not ended yet: out of rotation.
    Pending,
    /// The service has no check: in rotation.
    Unchecked,
    /// Results stopped coming: the last known state still applies, but nobody confirms it.
    Stale,
}

impl ServerHealth {
    /// The word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Pending => "pending",
            Self::Unchecked => "unchecked",
            Self::Stale => "stale",
        }
    }
}

/// The last result of a server's check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCheck {
    /// Its age in milliseconds.
    pub age_ms: u64,
    /// It succeeded.
    pub passed: bool,
    /// How long it took, or why it failed: `connected in 0.4 ms`, `connection refused`.
    pub detail: String,
    /// Results of the same kind in a row, this one included.
    pub in_a_row: u32,
}

/// Counters of a service or server. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Flows made.
    pub flows: u64,
    /// Packets towards the server.
    pub packets_in: u64,
    /// Bytes of those frames.
    pub bytes_in: u64,
    /// Packets towards the client.
    pub packets_out: u64,
    /// Bytes of those frames.
    pub bytes_out: u64,
    /// New flows refused: no server, no port, table full.
    pub refused: u64,
}
