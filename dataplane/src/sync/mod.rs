//! Flow sync: what the owner of a flow tells its peer, so that connections outlive the node that made them.

mod record;
mod table;

pub use record::{Coarse, Identity, Place, Record, Tell};
pub use table::{Put, Refused, Table};
