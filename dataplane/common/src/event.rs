//! Records of the ring buffer `EVENTS`.

use crate::maps::{Addr, Mac};

/// One record, 48 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// [`kind`].
    pub kind: u32,
    /// Leg id it was seen on, or should be resolved on.
    pub leg: u32,
    /// Address it is about, or none.
    pub addr: Addr,
    /// Depends on the kind.
    pub detail: u32,
    /// MAC it is about; zero = none.
    pub mac: Mac,
    /// Explicit padding, zero.
    pub _pad: [u8; 6],
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
}

/// Values of [`Event::kind`]. Each kind is emitted at most once a second for one `addr` and `detail` (by hash).
pub mod kind {
    /// A packet was dropped because on-link `addr` on `leg` is not resolved. `detail` 0.
    pub const NEIGHBOUR_WANTED: u32 = 1;
    /// A packet was dropped because entry `detail` of `NEXT_HOPS` is not valid. `addr` = the address it was for.
    pub const NEXT_HOP_WANTED: u32 = 2;
    /// `mac` sent an ARP packet with the owned `addr` as sender. `detail` 0.
    pub const ADDRESS_CONFLICT: u32 = 3;
    /// New flows are refused: no free entry. `detail` = stats index of the service.
    pub const TABLE_FULL: u32 = 4;
    /// New flows are refused: half-open budget. `detail` = stats index of the service.
    pub const HALF_OPEN_FULL: u32 = 5;
    /// New flows are refused: no free source port. `detail` = stats index of the service, `addr` = server.
    pub const NO_PORT: u32 = 6;
    /// New flows are refused: no live server. `detail` = stats index of the service, `addr` = VIP.
    pub const NO_SERVER: u32 = 7;
    /// Half-open flows give way to new ones: their budget is used up. `detail` = stats index of the service.
    pub const HALF_OPEN_EVICTED: u32 = 8;
    /// New flows are refused: `max_connections` or `max_new_per_second`. `detail` = stats index, `addr` = VIP.
    pub const LIMIT_REACHED: u32 = 9;
    /// A packet that the interface of `leg` put together cannot go on as it is. `detail` 0, no `addr`.
    pub const SUPER_PACKET: u32 = 10;
    /// A packet was dropped because the driver of `leg` split its headers. `detail` 0, no `addr`.
    pub const HEADERS_IN_PIECES: u32 = 11;
}

/// Entries of map `EVENT_PACE` (array of `u64`, time of the last record by hash).
pub const PACE_SLOTS: u32 = 4_096;
/// Shortest time between two records of one slot, ns.
pub const PACE_NS: u64 = 1_000_000_000;
