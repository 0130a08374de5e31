//! The two configuration files, `node.toml` (this node's own) and `pair.toml` (the same on both nodes).
//!
//! A file is read in one walk over a document with positions: unknown keys, wrong types and values out of range are all
//! reported at once, each with file, line, column, field, value and remedy ([`Diagnostic`]). What follows from several
//! fields or from both files together is judged by [`crate::check`]. [`load()`] does both and returns a configuration only
//! when there is no error.

mod diagnostic;
pub mod limits;
mod load;
mod mode;
mod mode_file;
mod nearest;
mod node;
mod node_file;
mod pair;
mod pair_file;
mod port_range;
mod scalar;
mod service_file;
mod source;
mod track;
mod track_file;
mod walk;

#[cfg(test)]
mod tests;

pub use diagnostic::{Diagnostic, Severity};
pub use load::{DEFAULT_NODE_FILE, DEFAULT_PAIR_FILE, Loaded, Refused, load, read, read_node, read_pair};
pub use mode::{Mode, ModeFor, Tunnel, TunnelKind};
pub use node::{Attach, Leg, NodeConfig, Peer, PeerLink, Role};
pub use node_file::parse_node;
pub use pair::{
    Auth, Check, Digest, GatewayConfig, HaConfig, Hairpin, Limits, NamedLegs, OnServerDown, PairConfig,
    Protocol, Scheduler, ServerConfig, ServiceConfig, ServiceLimits, SnatSource, SyncAfter, Transport,
};
pub use pair_file::{PairFile, parse_pair};
pub use port_range::{PortRange, PortRangeError};
pub use source::{Parsed, Position, Source};
pub use track::{Hooks, Quorum, Track, TrackScript};
