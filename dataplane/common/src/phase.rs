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
    /// No flow, or a SYN that may replace one: find out what the packet is.
    Miss = 1,
    /// New flow: choose server and mode.
    Schedule = 2,
    /// New flow: make room by removing a half-open one.
    Evict = 3,
    /// New flow: find a source port and insert.
    Create = 4,
    /// Forward by a flow that is known to exist, with route look-up.
    Forward = 5,
    /// Answer in place: echo, refusal, time exceeded.
    Answer = 6,
    /// Transit through a gateway address.
    Transit = 7,
    /// Without a lease: on to the Active, or nowhere.
    Relay = 8,
    /// New flow: look at every source port.
    Search = 9,
}

/// What the loader must put into `PHASES`: (index, name of the XDP program).
pub const PHASES: [(Phase, &str); 10] = [
    (Phase::Arp, "onearm_arp"),
    (Phase::Miss, "onearm_miss"),
    (Phase::Schedule, "onearm_schedule"),
    (Phase::Evict, "onearm_evict"),
    (Phase::Create, "onearm_create"),
    (Phase::Forward, "onearm_forward"),
    (Phase::Answer, "onearm_answer"),
    (Phase::Transit, "onearm_transit"),
    (Phase::Relay, "onearm_relay"),
    (Phase::Search, "onearm_search"),
];
