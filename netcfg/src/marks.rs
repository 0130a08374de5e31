//! The numbers by which onearm knows its own. Nothing that does not carry them is ever removed.
//!
//! A rule is ours if its protocol is [`PROTOCOL`] *and* its priority is one of ours; a route if its protocol *and* its
//! table are; a neighbour if its protocol is. They are written into the journal once, so that a later version with
//! other numbers still finds what an earlier one left.

/// Protocol of our rules, routes and neighbours (`/etc/iproute2/rt_protos`): not assigned to any known daemon.
pub const PROTOCOL: u8 = 111;

/// Table with one `blackhole` per owned address, consulted for packets that arrive on a leg.
pub const TABLE_OWNED: u32 = 7111;

/// Table with one `unreachable` per owned address, consulted for the node's own new connections while it is Active.
pub const TABLE_REFUSED: u32 = 7112;

/// Priority of `iif LEG lookup TABLE_OWNED`.
pub const PRIORITY_OWNED: u32 = 1111;

/// Priority of `from NETWORK iif LEG blackhole`.
pub const PRIORITY_SOURCES: u32 = 1112;

/// Priority of `from 0.0.0.0/32 iif lo lookup TABLE_REFUSED`.
pub const PRIORITY_REFUSED: u32 = 1113;

/// All tables of ours.
pub const TABLES: [u32; 2] = [TABLE_OWNED, TABLE_REFUSED];

/// All rule priorities of ours. Behind the local table (0; 100 where another product moved it) and before `main`.
pub const PRIORITIES: [u32; 3] = [PRIORITY_OWNED, PRIORITY_SOURCES, PRIORITY_REFUSED];
