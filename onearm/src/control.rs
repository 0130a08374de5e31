//! The control API: one JSON object a line over a Unix socket, request and answer, versioned.
//!
//! ```text
//! → {"version":1,"op":"flows","args":{"limit":100}}
//! ← {"version":1,"ok":{…}}              or   {"version":1,"error":{"kind":"refused","message":"…"}}
//! ```
//!
//! The types are the contract between `onearmd` and every client. The server runs on tokio, holds a bounded number of
//! bounded connections, and asks a [`ControlBackend`]; the client is blocking and needs no runtime.

mod client;
mod error;
mod events;
mod ha;
mod protocol;
mod server;
mod services;
mod status;

#[cfg(test)]
pub(crate) mod tests;

pub use client::ControlClient;
pub use error::{ClientError, Refusal, RefusalKind};
pub use events::{Event, EventList, EventLog, EventQuery, NewEvent, Severity, Timeline};
pub use ha::{HaAnswer, HaRequest};
pub use protocol::{
    DEFAULT_RUN_DIR, FlowEntry, FlowList, FlowQuery, MAX_ANSWER, MAX_FLOWS, MAX_REQUEST, Operation, Outcome,
    PROTOCOL_VERSION, ProbeRequest, ProbeResult, Request, Response, SOCKET_NAME,
};
pub use server::{ControlBackend, ControlServer, MAX_CONNECTIONS};
pub use services::{ClientsMode, LastCheck, Refusals, ServerHealth, ServerStatus, ServiceStatus, Traffic};
pub use status::{
    AuthenticationStatus, ConfigStatus, DataplaneStatus, HaStatus, KeyStatus, LeaseStatus, LegStatus,
    NodeState, NodeStatus, OrphanStatus, OwnedStatus, PeerStatus, Status, StreamState, StreamStatus,
    SyncStatus, SyncVerdict, TrackedKind, TrackedState, TrackedStatus, UsageStatus, WithheldStatus,
};
