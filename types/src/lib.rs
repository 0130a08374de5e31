//! Newtypes that more than one crate of onearm needs.
#![no_std]
#![forbid(unsafe_code)]

mod generation;
mod group;
mod node_id;

pub use generation::Generation;
pub use group::GroupId;
pub use node_id::{NodeId, NodeIdError};
