//! What the configuration and the kernel's state ask of each crate: pure functions, one file a crate.

mod direct;
mod election;
mod health;
mod kernel;
mod mirror;
mod places;
mod tables;

pub(crate) use direct::off_link;
pub(crate) use election::{election_leg, ha_config, stream_ends};
pub(crate) use health::turned;
pub(crate) use kernel::{LegUse, desired};
pub(crate) use mirror::{
    addresses, connected, held_by_the_kernel, is_link_local, leg_id, leg_macs, leg_picture, legs,
    neighbour_mac, next_hops,
};
pub(crate) use places::{leg_of, owned};
pub(crate) use tables::{server_id, tables};
