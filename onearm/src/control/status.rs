use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use onearm_types::NodeId;

/// The whole of `onearm status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Which node answered.
    pub node: NodeStatus,
    /// Where it stands in the election.
    pub state: NodeState,
    /// How long it has been in that state, in milliseconds.
    pub since_ms: u64,
    /// What brought it there, one short sentence.
    pub reason: String,
    /// Its permission to act.
    pub lease: LeaseStatus,
    /// What is known of the other node.
    pub peer: PeerStatus,
    /// The connection to the other node's daemon.
    #[serde(default)]
    pub stream: StreamStatus,
    /// How far the other node has this node's flows.
    #[serde(default)]
    pub sync: SyncStatus,
    /// Where the nodes' files differ in what they own.
    #[serde(default)]
    pub owned: OwnedStatus,
    /// The interfaces onearm works on, in the order of `node.toml`.
    pub legs: Vec<LegStatus>,
    /// Which configuration runs here and there.
    pub config: ConfigStatus,
    /// The election's settings and counters.
    pub ha: HaStatus,
    /// Tables and counters of the programs.
    pub dataplane: DataplaneStatus,
    /// What an operator should know or do, one sentence each; empty when all is well.
    pub warnings: Vec<String>,
}

/// The answering node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// `name` of `node.toml`.
    pub name: String,
    /// `id` of `node.toml`.
    pub id: NodeId,
    /// Version of the daemon.
    pub version: String,
    /// How long the daemon has been running, in milliseconds.
    pub uptime_ms: u64,
}

/// Role in the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Not able to take part: a leg is missing, down or without address.
    Initialize,
    /// Waiting.
    Standby,
    /// Owns the addresses.
    Active,
}

impl NodeState {
    /// The word for people and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Standby => "standby",
            Self::Active => "active",
        }
    }
}

impl std::fmt::Display for NodeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// The lease as read from its cell at the time of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// The deadline lies in the future: this node answers, announces and translates.
    pub valid: bool,
    /// Deadline, nanoseconds of CLOCK_MONOTONIC; 0 = none was ever held or it was given up.
    pub deadline_ns: u64,
    /// Deadline minus now in microseconds; negative = ended that long ago. Meaningless while `deadline_ns` is 0.
    pub remaining_us: i64,
    /// Term of ownership; 0 = none yet.
    pub epoch: u64,
}

/// The other node as seen from here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// `peer.address` of `node.toml`.
    pub address: Option<IpAddr>,
    /// Age of its last advert in milliseconds; `None` = never heard since start.
    pub last_seen_ms: Option<u64>,
    /// The state its adverts imply.
    pub state: Option<NodeState>,
    /// Priority in its last advert, 0–255.
    pub priority: Option<u8>,
    /// Interval in its last advert, milliseconds.
    pub advert_interval_ms: Option<u64>,
    /// Its MAC on the leg, `aa:bb:cc:dd:ee:ff`.
    pub mac: Option<String>,
}

/// How far both nodes have the same flows, as the Active tells and the Standby hears.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// What can be said of it.
    pub verdict: SyncVerdict,
    /// Why flows are not in sync; empty while they are, or are but for what is under way.
    pub because: String,
    /// Flows and changes of them that are under way.
    pub records_behind: u64,
    /// Age of the oldest of them, milliseconds.
    pub oldest_behind_ms: u64,
    /// Half of what this node told lately was acknowledged within this, microseconds from the packet that brought it about; 0 = nothing was.
    pub lag_p50_us: u64,
    /// 99 of 100 were within this.
    pub lag_p99_us: u64,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
}

/// Addresses that only one of the nodes' files has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedStatus {
    /// Addresses of the last owner, as far as this node knows and they may differ from its own file's; `None` = it goes by its file.
    pub known: Option<u64>,
    /// Whether the peer's release tells what it owns; `None` without a stream.
    pub peer_tells: Option<bool>,
    /// Addresses of the last owner's file alone: connections that are there go on, none begins.
    pub orphans: Vec<OrphanStatus>,
    /// They end within this, milliseconds, whoever uses them; `None` while this node does not own them.
    pub orphans_left_ms: Option<u64>,
    /// Addresses of this node's file alone: not owned before nobody is found to have them.
    pub withheld: Vec<WithheldStatus>,
    /// Addresses of the last owner's file alone that this node cannot answer for, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// An address of the last owner's file alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanStatus {
    /// The address.
    pub address: IpAddr,
    /// Name of its leg.
    pub leg: String,
    /// Flows that use it, as counted every 5 s; `None` while this node does not own it.
    pub flows: Option<u64>,
}

/// An address of this node's file alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithheldStatus {
    /// The address.
    pub address: IpAddr,
    /// MAC of the host that has it; `None` = it was not asked for yet, or nobody has answered so far.
    pub used_by: Option<String>,
}

/// Whether both nodes have the same flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncVerdict {
    /// Nothing is under way, and digests over all flows agree.
    Equal,
    /// But for what is under way.
    Behind,
    /// The other node may lack flows.
    #[default]
    NotSyncing,
}

/// The stream: the authenticated connection to the other node's daemon. Nothing in the election depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamStatus {
    /// Whether it is open.
    pub state: StreamState,
    /// Why it is not open, and what to do; empty while it is.
    pub reason: String,
    /// How long the session has been open, in milliseconds.
    pub since_ms: Option<u64>,
    /// The other node's name, by its own word under the pair's key; `None`, as all that follows, while it is not open.
    pub peer_name: Option<String>,
    /// Its id.
    pub peer_id: Option<NodeId>,
    /// Version of its daemon.
    pub peer_version: Option<String>,
    /// Version of the protocol the nodes agreed on.
    pub protocol: Option<u16>,
    /// What both can do beyond it, by name.
    pub capabilities: Vec<String>,
    /// Number of the key the session was made with.
    pub key: Option<u16>,
    /// Sessions since the daemon's start.
    pub sessions: u64,
    /// Frames received, over all sessions.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Records received of a kind this release does not know.
    pub unknown_records: u64,
    /// Messages that were lost because the session had just ended, or the peer reads too slowly.
    pub unsaid: u64,
    /// Messages of the peer that were lost because this node does not take them.
    pub untaken: u64,
    /// Connections that came to no session, by cause; `stranger`: not from the peer's address, `flood`: too many in a second.
    pub failed: BTreeMap<String, u64>,
    /// Sessions that ended, by cause.
    pub ended: BTreeMap<String, u64>,
    /// Why the last session ended or the last attempt failed.
    pub last_error: Option<String>,
}

/// Whether there is a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamState {
    /// None is made: there is no key (`auth = "none"`).
    #[default]
    Off,
    /// Not now.
    Waiting,
    /// Both nodes hear each other.
    Open,
}

/// One leg.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegStatus {
    /// `leg.name`.
    pub name: String,
    /// `leg.interface`.
    pub interface: String,
    /// VLAN id 1–4094; `None` = untagged.
    pub vlan: Option<u16>,
    /// `leg.role`.
    pub role: String,
    /// `leg.attach` as configured.
    pub attach: String,
    /// How the program is attached now: `native`, `generic`, `none`.
    pub mode: String,
    /// Why it is not `native`, or why the leg cannot be used; empty when there is nothing to say.
    pub reason: String,
    /// MAC, `aa:bb:cc:dd:ee:ff`; `None` = the interface is missing.
    pub mac: Option<String>,
    /// The node's own first address on it of IPv4, of IPv6, and of its link alone.
    pub addresses: Vec<IpAddr>,
    /// Link present.
    pub carrier: bool,
}

/// Which `pair.toml` runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// Digest of the pair's configuration here: hexadecimal, the same for files that mean the same.
    pub digest: String,
    /// The peer's digest; `None` = not known.
    pub peer_digest: Option<String>,
    /// Both are known and differ.
    pub differs: bool,
}

/// The election.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaStatus {
    /// `ha.vrid`.
    pub vrid: u8,
    /// `priority` of `node.toml`.
    pub priority: u8,
    /// Priority now in use, lowered by faults.
    pub effective_priority: u8,
    /// `ha.advert_interval` in milliseconds.
    pub advert_interval_ms: u64,
    /// `ha.auth`.
    pub auth: String,
    /// Keys and the peer's speech where `auth` is `hmac`.
    #[serde(default)]
    pub authentication: Option<AuthenticationStatus>,
    /// `ha.preempt`.
    pub preempt: bool,
    /// What the operator wants of this node: `normal`, `hold` or `maintenance`.
    #[serde(default = "normal")]
    pub stance: String,
    /// The same of the peer; `None` = not known.
    #[serde(default)]
    pub peer_stance: Option<String>,
    /// Real-time priority was granted to the HA process.
    pub realtime: bool,
    /// What this node has of [`Self::FITNESS`]. Of two nodes the one that has the first of them that the other lacks owns the addresses.
    #[serde(default)]
    pub has: Vec<String>,
    /// What the peer has; `None` = it was not heard to say so.
    #[serde(default)]
    pub peer_has: Option<Vec<String>>,
    /// Scripts and quorums of `ha.track`, in the order of the file.
    #[serde(default)]
    pub tracked: Vec<TrackedStatus>,
    /// Counters of protocol and announcements by name.
    pub counters: BTreeMap<String, u64>,
}

impl HaStatus {
    /// All that makes a node fit, what matters most first.
    pub const FITNESS: [&str; 6] = ["dataplane", "receives", "legs", "witness", "servers", "scripts"];
}

/// Something that is tracked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackedStatus {
    /// What it is.
    pub kind: TrackedKind,
    /// Name of the script, or of the service whose servers they are.
    pub name: String,
    /// How it is.
    pub state: TrackedState,
    /// The election goes by that already: an owner gives way, and another node comes back, only after some time.
    pub counts: bool,
    /// Since when, in milliseconds.
    pub since_ms: u64,
    /// Why, one short sentence.
    pub detail: String,
}

/// What can be tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrackedKind {
    /// A program of the operator's.
    Script,
    /// The quorum of a service's servers.
    Servers,
}

impl TrackedKind {
    /// The word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Script => "script",
            Self::Servers => "servers",
        }
    }
}

/// How something tracked is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrackedState {
    /// No result yet.
    Pending,
    /// As it should be.
    Good,
    /// Not as it should be.
    Failed,
}

impl TrackedState {
    /// The word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Good => "good",
            Self::Failed => "FAILED",
        }
    }
}

fn normal() -> String {
    "normal".to_owned()
}

/// How the election is authenticated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthenticationStatus {
    /// `ha.rollout`: `accept`, `prefer`, `enforce`.
    pub rollout: String,
    /// The keys this node believes, by number; never a secret.
    pub keys: Vec<KeyStatus>,
    /// Number of the key it signs with: the highest that both nodes hold. `None` = it has said nothing yet.
    pub signing_key: Option<u16>,
    /// Highest number the peer holds; `None` = it was not heard with authentication yet.
    pub peer_key: Option<u16>,
    /// For how long the peer has spoken with authentication, without a pause of five seconds, in milliseconds.
    pub peer_since_ms: Option<u64>,
    /// Age of its last authenticated message in milliseconds.
    pub peer_heard_ms: Option<u64>,
}

/// A key as it may be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyStatus {
    /// Its number.
    pub id: u16,
    /// The same on both nodes for the same key, `3f2a-91bc-7e10-55d2`.
    pub fingerprint: String,
}

/// The programs and their tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataplaneStatus {
    /// Flows in the table, half-open ones included.
    pub flows: u64,
    /// Half-open flows.
    pub half_open: u64,
    /// `limits.max_flows`.
    pub max_flows: u64,
    /// `limits.half_open`.
    pub max_half_open: u64,
    /// Memory of all maps in bytes.
    pub map_bytes: u64,
    /// How full everything is that can run out: the tables, connections of services with `max_connections`, and SNAT ports
    /// towards servers that have taken half of theirs or more. Looked at every five seconds, flows and ports every ten.
    #[serde(default)]
    pub usage: Vec<UsageStatus>,
    /// Packet counters and drop reasons by name.
    pub counters: BTreeMap<String, u64>,
}

/// How full something is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageStatus {
    /// What, in words: `IPv4 flows`, `SNAT ports of 192.168.100.100 to 192.168.100.10:80`.
    pub name: String,
    /// How much is in use.
    pub used: u64,
    /// How much there may be.
    pub limit: u64,
    /// The share, rounded down; above 100 where a limit is no hard one.
    pub percent: u64,
}
