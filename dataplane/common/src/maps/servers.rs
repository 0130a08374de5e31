//! Servers and where they answer from.

use super::{Addr, Port};

/// Value of map `SERVERS` (array of [`SERVER_INDEXES`](super::SERVER_INDEXES)). Indexes are stable: never reused while a flow may refer to one.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// Address.
    pub addr: Addr,
    /// Port; 0 = the port the client called.
    pub port: Port,
    /// Id of the connected prefix the server is in (map `CONNECTED`); 0 = none, it is behind a router.
    pub net: u16,
    /// Index into `NEXT_HOPS`.
    pub next_hop: u32,
    /// [`server`].
    pub flags: u32,
    /// Explicit padding, zero.
    pub _pad: u32,
}

/// Bits of [`Server::flags`].
pub mod server {
    /// The index is in use.
    pub const USED: u32 = 1;
    /// Healthy and wanted: new flows may choose it (the tables say so too; this bit is for status and replies).
    pub const UP: u32 = 2;
    /// It went down while others are up: its TCP flows are reset, its UDP flows go elsewhere.
    pub const RESETS: u32 = 4;
    /// It is configured no more: its UDP flows go elsewhere, its TCP flows stay.
    pub const MOVES: u32 = 8;
    /// The weight, in the upper half.
    pub const WEIGHT_SHIFT: u32 = 16;
}

/// Key of map `SERVER_ENDPOINTS` (hash): where a `dnat` server answers from; a packet from there without a flow is dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndpointKey {
    /// Server address.
    pub addr: Addr,
    /// Server port.
    pub port: Port,
    /// IP protocol.
    pub proto: u8,
    /// Table slot.
    pub slot: u8,
}
