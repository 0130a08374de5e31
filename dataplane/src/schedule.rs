//! Scheduler tables: which server the entry drawn for a new flow names.
//!
//! Pure functions of the configuration, the health and the pair's key, so that both nodes build the same table from the
//! same set. An entry is the server's position in its service, 0 to 255.

pub mod maglev;
pub mod wrr;

use std::net::IpAddr;

/// Most servers of one table.
pub const MAX_SERVERS: usize = 256;

/// A server as the schedulers see it. Its position in the slice given is what the entries name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Identity: address.
    pub addr: IpAddr,
    /// Identity: port; 0 = the port the client called.
    pub port: u16,
    /// Share of new flows relative to the others; 0 = none (drained).
    pub weight: u16,
    /// Healthy.
    pub up: bool,
}

impl Candidate {
    /// Takes new flows.
    fn is_live(&self) -> bool {
        self.up && self.weight > 0
    }
}

/// Positions as entries are bytes.
///
/// # Panics
/// If there are more than [`MAX_SERVERS`]; the tables are checked before anything is scheduled.
fn entry(position: usize) -> u8 {
    u8::try_from(position).expect("a service has at most 256 servers")
}

#[cfg(test)]
mod tests;
