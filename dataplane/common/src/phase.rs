//! The programs of the object and how they hand a packet on.
//!
//! The main program deals with established IPv4 flows itself; everything else goes by a tail call through the program array
//! `PHASES` to a program of its own, so that each stays small enough for every verifier since 6.1.

/// Name of the program to attach (XDP).
pub const MAIN: &str = "onearm_xdp";
/// Name of the pass-through program for the far end of a veth pair (XDP).
pub const PASS: &str = "xdp_pass";
/// Name of the clsact egress classifier.
pub const EGRESS: &str = "egress_gate";

/// What a program does. All but the last exist for each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// ARP, Neighbour Discovery.
    Neighbour = 0,
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
    /// An ICMP error: translate what it quotes.
    IcmpError = 13,
    /// A fragment: remember what it is part of, or follow the first one.
    Fragment = 14,
    /// An IPv6 frame: what the main program is for IPv4.
    Receive6 = 10,
    /// Walk the extension headers; in IPv4, the options.
    Extensions = 11,
    /// Look the flow up behind extension headers or options.
    Lookup = 12,
    /// New flow of a server that answers its client itself: insert and send.
    Direct = 15,
    /// SYN or SYN-ACK of a service that limits segments.
    Mss = 16,
    /// Forward by a flow of a server that answers its client itself.
    DirectForward = 17,
}

/// Phases of one family in `PHASES`.
pub const FAMILY_PHASES: u32 = 32;

impl Phase {
    /// Index into `PHASES`.
    #[inline(always)]
    pub const fn index(self, v6: bool) -> u32 {
        self as u32 + if v6 { FAMILY_PHASES } else { 0 }
    }
}

/// What the loader must put into `PHASES`: (index, name of the XDP program).
pub const PHASES: [(u32, &str); 35] = [
    (Phase::Neighbour.index(false), "onearm_arp"),
    (Phase::Miss.index(false), "onearm_miss"),
    (Phase::Schedule.index(false), "onearm_schedule"),
    (Phase::Evict.index(false), "onearm_evict"),
    (Phase::Create.index(false), "onearm_create"),
    (Phase::Forward.index(false), "onearm_forward"),
    (Phase::Answer.index(false), "onearm_answer"),
    (Phase::Transit.index(false), "onearm_transit"),
    (Phase::Relay.index(false), "onearm_relay"),
    (Phase::Search.index(false), "onearm_search"),
    (Phase::Extensions.index(false), "onearm_options"),
    (Phase::Lookup.index(false), "onearm_lookup"),
    (Phase::IcmpError.index(false), "onearm_icmp"),
    (Phase::Fragment.index(false), "onearm_fragment"),
    (Phase::Receive6.index(false), "onearm_receive6"),
    (Phase::Direct.index(false), "onearm_direct"),
    (Phase::Mss.index(false), "onearm_mss"),
    (Phase::DirectForward.index(false), "onearm_direct_forward"),
    (Phase::Neighbour.index(true), "onearm_nd"),
    (Phase::Miss.index(true), "onearm_miss6"),
    (Phase::Schedule.index(true), "onearm_schedule6"),
    (Phase::Evict.index(true), "onearm_evict6"),
    (Phase::Create.index(true), "onearm_create6"),
    (Phase::Forward.index(true), "onearm_forward6"),
    (Phase::Answer.index(true), "onearm_answer6"),
    (Phase::Transit.index(true), "onearm_transit6"),
    (Phase::Relay.index(true), "onearm_relay6"),
    (Phase::Search.index(true), "onearm_search6"),
    (Phase::Extensions.index(true), "onearm_extensions6"),
    (Phase::Lookup.index(true), "onearm_lookup6"),
    (Phase::IcmpError.index(true), "onearm_icmp6"),
    (Phase::Fragment.index(true), "onearm_fragment6"),
    (Phase::Direct.index(true), "onearm_direct6"),
    (Phase::Mss.index(true), "onearm_mss6"),
    (Phase::DirectForward.index(true), "onearm_direct_forward6"),
];
