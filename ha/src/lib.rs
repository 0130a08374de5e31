//! The HA part of onearm: VRRPv3 adverts, the election, the lease that permits the Active to act, and gratuitous ARP.
//!
//! Pure, without I/O and without a clock: [`units`], [`wire`], [`lease`], [`election`], [`announce`].

pub mod announce;
pub mod election;
pub mod lease;
pub mod units;
pub mod wire;
