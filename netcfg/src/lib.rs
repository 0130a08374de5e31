//! Desired state of the host's kernel, and how it gets there and back.
//!
//! onearm keeps its virtual addresses in the dataplane, so little is asked of the kernel: guard rules that keep it
//! from ever forwarding an untranslated packet, a few settings of the legs, and neighbours that stay resolved. What is
//! asked is plain data ([`Desired`]); [`diff`] compares it with what is ([`State`]) and says what to do, in order.
//!
//! Everything added carries a mark ([`marks`]) and only what carries it is ever removed; everything that had a value
//! before is journalled before it is changed ([`StateDir`]) and put back by [`restore`] if it still is what onearm wrote.
//! An interface that is not listed is never touched.
//!
//! The netlink codec is our own and small on purpose: it reads the few attributes needed and skips the rest, so that a
//! newer or older kernel's messages can neither panic the daemon nor hide an interface, it knows when events were
//! lost, and one codec serves rtnetlink and ethtool.

mod apply;
mod diff;
mod error;
mod handle;
mod journal;
mod kernel;
pub mod marks;
mod name;
mod netlink;
pub mod offload;
mod query;
mod reconcile;
mod restore;
mod state;
mod sysctl;
mod watch;

pub use diff::{Change, diff};
pub use error::Error;
pub use handle::{Ended, Netcfg};
pub use journal::{Device, Entry, Lent, Place, StateDir};
pub use kernel::Kernel;
pub use name::{Family, IfName, InvalidName, LegSysctl, Mac};
pub use query::{Fault, Found};
pub use reconcile::{Event, Status};
pub use restore::{Outcome, Restored, Returned, Thing, restore};
pub use state::{Desired, Holding, Leg, LegState, Route, RouteKind, Rule, RuleAction, State};
pub use watch::{
    LegPicture, LinkPicture, MirrorRoute, NextHop, Picture, PictureClosed, Presence, wait_for_leg,
};
