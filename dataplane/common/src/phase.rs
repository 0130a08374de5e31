//! The programs of the object and how they hand a packet on.
//!
//! The main program deals with established flows itself; everything else goes by a tail call through the program array
//! `PHASES` to a program of its own, so that each stays small enough for every verifier since 6.1.

/// Name of the program to attach (XDP).
pub const MAIN: &str = "onearm_xdp";
/// Name of the pass-through program for the far end of a veth pair (XDP).
pub const PASS: &str = "xdp_pass";
/// Name of the clsact egress classifier.
pub const EGRESS: &str = "egress_gate";

/// Index into `PHASES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// ARP.
    Arp = 0,
    /// Packet to an owned address without a flow, or transit: find out what it is.
    Miss = 1,
    /// New flow: choose server and mode.
    Schedule = 2,
    /// New flow: find a source port and insert.
    Create = 3,
    /// Answer in place: echo, refusal, time exceeded.
    Answer = 4,
    /// Transit through a gateway address.
    Transit = 5,
}

/// What the loader must put into `PHASES`: (index, name of the XDP program).
pub const PHASES: [(Phase, &str); 6] = [
    (Phase::Arp, "onearm_arp"),
    (Phase::Miss, "onearm_miss"),
    (Phase::Schedule, "onearm_schedule"),
    (Phase::Create, "onearm_create"),
    (Phase::Answer, "onearm_answer"),
    (Phase::Transit, "onearm_transit"),
];
