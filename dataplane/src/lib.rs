//! The user-space half of onearm's dataplane: loads and attaches the programs, fills their maps, and watches over the
//! flow table. It knows nothing of configuration files, ownership or the kernel's routing; it is told.
//!
//! ```text
//! Dataplane::load ─► attach / add_egress_gate      legs            (plain blocking calls, one owner)
//!                 ─► set_legs, set_next_hops       the node        mirrored, fewest writes
//!                 ─► apply(&Tables)                a generation    two slots, one switch
//!                 ─► change_servers                health, weight  one store a service
//! LeaseCell, FlowTable (Arc), Expiry, EventStream, Helper  each for a thread or task of its own
//!
//! Decapsulator::attach                             on a server
//! ```

mod apply;
mod attach;
mod counters;
mod dataplane;
mod decap;
pub mod egress_gate;
mod error;
mod events;
mod flows;
mod helper;
mod identity;
mod kernel;
mod kernel_maps;
mod lease;
mod legs;
mod loader;
mod mapping;
mod next_hops;
mod persistence;
mod sched_space;
pub mod schedule;
mod state;
pub mod sync;
mod sys;
mod tables;
mod usage;

pub use apply::Applied;
pub use attach::{AttachMode, Attached, AttachedMode, FallbackReason, LegAttach};
pub use onearm_dataplane_common::counter::ABOUT as COUNTERS_ABOUT;

pub use counters::{Counters, Refusals, ServerTraffic, ServiceTraffic, Traffic};
pub use dataplane::Dataplane;
pub use decap::{DecapSpec, Decapsulator};
pub use error::{Error, Result};
pub use events::{Event, EventStream, Events, Timed};
pub use flows::{Expiry, FlowCounts, FlowFilter, FlowInfo, FlowListing, FlowState, FlowTable, Progress};
pub use helper::Helper;
pub use kernel::{Feature, KernelRelease};
pub use lease::LeaseCell;
pub use loader::{Limits, Options};
pub use next_hops::{LegSpec, Mac, Neighbour, NextHops, NextHopsReport, RouteSpec, Via};
pub use persistence::Persistent;
pub use state::Reclaimed;
pub use tables::{
    Hairpin, LimitsSpec, Mode, OnServerDown, OwnedAddress, OwnedKinds, Persistence, Protocol, Scheduler,
    ServerChange, ServerId, ServerNetwork, ServerSpec, ServiceSpec, SnatPoolSpec, SnatRangeSpec, Tables,
    TablesError, TunnelSpec,
};
pub use usage::{MOST_FRAGMENTS, MOST_LAST_HOPS, MOST_NEXT_HOPS, ServiceUsage, SnatUsage, Usage};
