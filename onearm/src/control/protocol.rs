use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::error::Refusal;
use super::events::EventQuery;
use super::ha::HaRequest;

/// Version of the request and answer format; a daemon refuses any other.
pub const PROTOCOL_VERSION: u32 = 1;
/// Longest request line in bytes, newline included.
pub const MAX_REQUEST: usize = 16 * 1024;
/// Longest answer line in bytes, newline included: 16,384 servers with counters take about 8 MB.
pub const MAX_ANSWER: usize = 32 * 1024 * 1024;
/// Most flows in one answer.
pub const MAX_FLOWS: u32 = 10_000;
/// Where the daemon keeps its socket.
pub const DEFAULT_RUN_DIR: &str = "/run/onearm";
/// Name of the socket in the run directory.
pub const SOCKET_NAME: &str = "control.sock";

/// One request line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// What is asked.
    #[serde(flatten)]
    pub operation: Operation,
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", content = "args", rename_all = "kebab-case")]
pub enum Operation {
    /// A [`super::Status`].
    Status,
    /// A list of [`super::ServiceStatus`].
    Services,
    /// A [`FlowList`].
    Flows(FlowQuery),
    /// An [`super::EventList`].
    Events(EventQuery),
    /// A [`ProbeResult`].
    Probe(ProbeRequest),
    /// An [`super::HaAnswer`].
    Ha(HaRequest),
}

/// One answer line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    /// [`PROTOCOL_VERSION`] of the daemon.
    pub version: u32,
    /// The answer.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Answer or refusal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The value asked for; its type follows from the operation.
    Ok(serde_json::Value),
    /// Why there is none.
    Error(Refusal),
}

/// Which flows are wanted. Fields that are `None` match all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowQuery {
    /// Client address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    /// VIP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vip: Option<IpAddr>,
    /// Server address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<IpAddr>,
    /// Most flows in the answer; 1 to [`MAX_FLOWS`].
    pub limit: u32,
}

impl FlowQuery {
    /// Whether a flow is one of those asked for.
    pub fn matches(&self, flow: &FlowEntry) -> bool {
        self.client.is_none_or(|a| a == flow.client.ip())
            && self.vip.is_none_or(|a| a == flow.vip.ip())
            && self.server.is_none_or(|a| a == flow.server.ip())
    }
}

/// Flows of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowList {
    /// At most `limit` of them, in table order.
    pub flows: Vec<FlowEntry>,
    /// How many matched in all.
    pub matched: u64,
}

/// One flow with its translation. For ICMP echo the port is the identifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEntry {
    /// `tcp`, `udp` or `icmp`.
    pub protocol: String,
    /// Who called.
    pub client: SocketAddr,
    /// What was called.
    pub vip: SocketAddr,
    /// Who answers.
    pub server: SocketAddr,
    /// `both-nat`, `dnat`, `dsr` or `l3-dsr`.
    pub mode: String,
    /// Translated as in `both-nat`, because client and server are neighbours.
    pub hairpin: bool,
    /// Source the server sees; `None` = the client's own.
    pub snat: Option<SocketAddr>,
    /// Name of the service; `None` = it is no longer configured.
    pub service: Option<String>,
    /// `half-open`, `established`, `closing`, `closed`.
    pub state: String,
    /// Time since the last packet, milliseconds.
    pub idle_ms: u64,
    /// Time until it is removed if no packet comes, milliseconds.
    pub expires_ms: u64,
}

/// A connection to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeRequest {
    /// VIP and port.
    pub target: SocketAddr,
    /// How long to wait, milliseconds; 1 to 30,000.
    pub timeout_ms: u32,
}

impl ProbeRequest {
    /// What [`Self::timeout_ms`] may be.
    pub const TIMEOUT_MS: std::ops::RangeInclusive<u32> = 1..=30_000;
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// Name of the node that was the client.
    pub client_node: String,
    /// Its address in the connection, when there was one.
    pub client: Option<SocketAddr>,
    /// VIP and port.
    pub target: SocketAddr,
    /// The connection was made.
    pub connected: bool,
    /// How long that or the failure took, microseconds.
    pub elapsed_us: u64,
    /// `connected`, `connection refused`, `no answer in 1000 ms`…
    pub detail: String,
}
