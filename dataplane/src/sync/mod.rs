//! Flow sync: what the owner of a flow tells its peer, so that connections outlive the node that made them.

mod record;
mod ring;
mod table;

pub use record::{Coarse, Identity, Place, Record, Tell};
pub(crate) use ring::TellMaps;
pub use ring::TellRing;
pub use table::{Put, Refused, Table};
