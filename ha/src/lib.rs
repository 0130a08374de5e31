//! The HA part of onearm: VRRPv3 adverts, the election, the lease that permits the Active to act, gratuitous ARP, and
//! the process that does all this.
//!
//! Pure, without I/O and without a clock: [`units`], [`wire`], [`lease`], [`election`], [`announce`], [`config`]. I/O:
//! [`driver`] (the HA thread), [`process`] (main process and HA process to each other), [`membership`], [`probe`].
//!
//! This crate uses `unsafe` in one private module, for the system calls of packet sockets, link state and scheduling
//! that no safe crate wraps.

pub mod announce;
pub mod auth;
pub mod config;
pub mod driver;
pub mod election;
mod error;
pub mod lease;
pub mod membership;
pub mod probe;
pub mod process;
mod sys;
pub mod units;
pub mod wire;

pub use error::Error;
