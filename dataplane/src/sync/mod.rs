//! Flow sync: what the owner of a flow tells its peer, so that connections outlive the node that made them.
//!
//! ```text
//! ring, sweep ─ Tell ─► Sync (teller) ─ bodies ─► the pair's stream ─► Sync (applier) ─► Table
//!                          ▲ Table                                        │
//!                          └── acknowledgements with the total of all words there
//! ```

mod applier;
mod audit;
mod content;
mod counters;
pub(crate) mod directory;
mod lag;
mod looks;
mod outbox;
mod record;
mod ring;
mod session;
mod shadow;
mod table;
mod teller;
mod verdict;
mod wire;

pub use counters::Counters;
pub(crate) use directory::Directory;
pub use lag::Lag;
pub use record::{Coarse, Identity, Place, Record, Tell};
pub(crate) use ring::TellMaps;
pub use ring::TellRing;
pub use session::{Position, Settings, Sync};
pub use table::{Put, Refused, Table};
pub use verdict::{Because, Verdict};
pub use wire::Malformed;

#[cfg(test)]
mod plain;
#[cfg(test)]
pub(crate) mod simulation;
