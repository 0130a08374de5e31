//! Flow sync: what the owner of a flow tells its peer, so that connections outlive the node that made them.

mod record;

pub use record::{Coarse, Identity, Place, Record, Tell};
