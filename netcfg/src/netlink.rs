//! rtnetlink and ethtool netlink: messages, and a socket that asks and waits.

pub(crate) mod address;
pub(crate) mod ethtool;
pub(crate) mod link;
pub(crate) mod neighbour;
pub(crate) mod route;
pub(crate) mod rule;
mod socket;
pub(crate) mod wire;

pub(crate) use socket::{MAX_DATAGRAM, Requests};

#[cfg(test)]
mod tests;
