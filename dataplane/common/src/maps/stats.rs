//! What is counted of services and servers.

use crate::counter::Counter;

/// Value of the per-CPU arrays `SERVICE_STATS` ([`MAX_SERVICES`](super::MAX_SERVICES)) and `SERVER_STATS` ([`SERVER_INDEXES`](super::SERVER_INDEXES)).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Flows made.
    pub flows: u64,
    /// Packets towards the server.
    pub packets_in: u64,
    /// Bytes of those frames, Ethernet header included, padding not.
    pub bytes_in: u64,
    /// Packets towards the client.
    pub packets_out: u64,
    /// Bytes of those frames.
    pub bytes_out: u64,
    /// New flows refused (no server, no port, table full, budget).
    pub refused: u64,
}

/// Value of the per-CPU array `SERVICE_REFUSALS` ([`MAX_SERVICES`](super::MAX_SERVICES)): new flows refused, by reason.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// The client is in no allowed prefix, or in a denied one.
    pub denied: u64,
    /// `max_connections`.
    pub connections: u64,
    /// `max_new_per_second`.
    pub rate: u64,
    /// `max_per_source`.
    pub per_source: u64,
    /// No live server.
    pub no_server: u64,
    /// No free source port.
    pub no_port: u64,
    /// Table or half-open budget full.
    pub table: u64,
    /// Anything else.
    pub other: u64,
}

impl Refusals {
    /// Counts one.
    #[inline(always)]
    pub const fn add(&mut self, reason: Counter) {
        let count = match reason {
            Counter::ClientDenied => &mut self.denied,
            Counter::MaxConnections => &mut self.connections,
            Counter::MaxNew => &mut self.rate,
            Counter::MaxPerSource => &mut self.per_source,
            Counter::NoServer => &mut self.no_server,
            Counter::NoPort => &mut self.no_port,
            Counter::TableFull | Counter::HalfOpenFull => &mut self.table,
            _ => &mut self.other,
        };
        *count = count.wrapping_add(1);
    }
}
