//! Counters of the programs: map `COUNTERS`, a per-CPU array of `u64` indexed by [`Counter`].

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// What happened to a packet. The numbers are an index, not an interface; the names are.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Counter {
            $($(#[doc = $doc])+ $variant,)+
        }

        /// Every counter with its stable name, in index order.
        pub const COUNTERS: &[(Counter, &str)] = &[$((Counter::$variant, $name),)+];

        /// What each counter counts, by name.
        pub const ABOUT: &[(&str, &str)] = &[$(($name, concat!($($doc,)+)),)+];
    };
}

counters! {
    /// Left to the kernel untouched.
    Passed = "passed",
    /// Left to the kernel (also in `passed`): frame with a provider's VLAN tag, or with more than one tag. A leg of such a VLAN is
    /// the kernel's device for it.
    StackedTags = "stacked_tags",
    /// Sent back through the interface it came by.
    Transmitted = "transmitted",
    /// Sent through another interface.
    Redirected = "redirected",
    /// Sent on to the Active because this node has no lease.
    Relayed = "relayed",
    /// Routed for a server through the gateway address (also in `transmitted` or `redirected`).
    Transit = "transit",
    /// ARP request or neighbour solicitation for an owned address answered.
    ArpAnswered = "arp_answered",
    /// ARP request for an owned address seen without a lease: neither answered nor dropped.
    ArpNotOwner = "arp_not_owner",
    /// ARP packet of somebody else with an owned sender address.
    ArpConflict = "arp_conflict",
    /// ICMP echo to an owned address answered.
    EchoAnswered = "echo_answered",
    /// RST sent to a SYN for a port that is no service.
    RefusedTcp = "refused_tcp",
    /// Port unreachable sent to a datagram for a port that is no service.
    RefusedUdp = "refused_udp",
    /// Time exceeded sent.
    TimeExceededSent = "time_exceeded_sent",
    /// Told that a packet is too big for its way: ICMP fragmentation needed, ICMPv6 packet too big.
    TooBigSent = "too_big_sent",
    /// RST sent to the client of a server that went down, in answer to its segment.
    ServerDownReset = "server_down_reset",
    /// Datagram whose flow moved because its server went down.
    ServerDownMoved = "server_down_moved",
    /// ICMP error about a packet of a flow sent to the flow's sender, translated as the flow is.
    IcmpErrorTranslated = "icmp_error_translated",
    /// First fragment of a datagram, by which the later ones are known (also in the verdict's counter).
    FragmentRemembered = "fragment_remembered",
    /// Fragment before its first one, kept by user space until that comes.
    FragmentKept = "fragment_kept",
    /// IPv4 packet too big for its way, fragmented by user space.
    Divided = "divided",
    /// Put together by its leg's interface (LRO, GRO) and too long for its way, or meant for a tunnel (also in `too_big_sent`,
    /// `too_big`, `refusal_limited`, `divided` or `help_limited`).
    SuperPacket = "super_packet",
    /// Later fragment of a flow's datagram sent after its first one (also in `transmitted` or `redirected`).
    FragmentFollowed = "fragment_followed",
    /// SYN or SYN-ACK that asked for larger segments than the service's `mss_clamp`.
    MssLowered = "mss_lowered",
    /// New flow made.
    FlowCreated = "flow_created",
    /// SYN that replaced a closing, half-open or expired flow.
    FlowReopened = "flow_reopened",
    /// First datagram that lost the race for its flow and used the winner's.
    FlowRaceLost = "flow_race_lost",
    /// Closed flow removed because its source port was needed.
    PortReused = "port_reused",
    /// Half-open flow removed to make room for another.
    HalfOpenEvicted = "half_open_evicted",
    /// Flow of datagrams without an answer removed to make room.
    UnansweredEvicted = "unanswered_evicted",
    /// Closed flow whose time was over removed to make room before the sweep came by.
    ClosedEvicted = "closed_evicted",
    /// RST on an established connection far from what was acknowledged last: forwarded, not believed.
    RstDoubted = "rst_doubted",
    /// New flow of a client by another neighbour than the resolved next hop towards it: replies go by that one.
    LastHopDoubted = "last_hop_doubted",
    /// No index left for a new last hop; the route is used instead.
    LastHopsFull = "last_hops_full",
    /// New flow of a server that answers its client itself: it took the place of an older one in the affinity cache.
    AffinityEvicted = "affinity_evicted",
    /// Packet to such a server sent by the client's hash alone: its affinity could not be kept.
    AffinityMissed = "affinity_missed",
    /// New flow of a client that stays with its server: it went there, whatever its hash says.
    ClientStayed = "client_stayed",
    /// Event lost because the ring was full.
    EventLost = "event_lost",
    /// The peer was not told of something that happened to a flow at once, because the ring was full.
    TellsLost = "tells_lost",
    /// Dropped: headers do not fit the frame or contradict each other.
    Malformed = "malformed",
    /// Dropped: its headers do not lie in the first piece of the frame's memory (header split of the driver).
    HeadersInPieces = "headers_in_pieces",
    /// Dropped: a source route in the IP header (RFC 7126 §4.3, RFC 5095).
    SourceRouted = "source_routed",
    /// Dropped: UDP over IPv6 without a checksum (RFC 8200 §8.1).
    UdpChecksumMissing = "udp_checksum_missing",
    /// Dropped: neighbour solicitation for an owned address that is not valid (RFC 4861 §7.1.1).
    NdInvalid = "nd_invalid",
    /// Dropped: group, loopback, broadcast or own source address.
    BadSource = "bad_source",
    /// Dropped: belongs to the pair, this node has no lease, and the Active is not known.
    NoLease = "no_lease",
    /// Dropped: stray frame that the peer itself had sent here.
    RelayLoop = "relay_loop",
    /// Dropped: fragment to an owned address of a packet that is neither TCP nor UDP, or whose flow is gone.
    Fragment = "fragment",
    /// Dropped: fragment whose first one did not come in time, or had come more than 5 s before.
    FragmentEarly = "fragment_early",
    /// Dropped: first fragment without the whole transport header, fragment that overlaps one, ends beyond 65,535 bytes or
    /// inside a unit of eight bytes.
    FragmentRefused = "fragment_refused",
    /// Dropped: IP protocol to an owned address that is not handled.
    UnsupportedProtocol = "unsupported_protocol",
    /// Dropped: TCP segment in the middle of a connection without a flow.
    TcpWithoutFlow = "tcp_without_flow",
    /// Dropped: SYN-ACK without a flow.
    SynAckWithoutFlow = "syn_ack_without_flow",
    /// Dropped: packet to a port used for source translation, without a flow.
    SnatRangeWithoutFlow = "snat_range_without_flow",
    /// Dropped: packet without a flow to an address that only the former owner's configuration has.
    OrphanWithoutFlow = "orphan_without_flow",
    /// Dropped: ICMP to an owned address, neither an echo request nor an error.
    IcmpUnhandled = "icmp_unhandled",
    /// Dropped: new flow of a client that the service does not allow, or denies.
    ClientDenied = "client_denied",
    /// Dropped: new flow to a service that has `max_connections`.
    MaxConnections = "max_connections",
    /// Dropped: new flow above the service's `max_new_per_second`.
    MaxNew = "max_new_per_second",
    /// Dropped: new flow of a client that has `max_per_source`.
    MaxPerSource = "max_per_source",
    /// Dropped: ICMP error about a packet that belongs to no flow.
    IcmpErrorWithoutFlow = "icmp_error_without_flow",
    /// Dropped: the service has no live server.
    NoServer = "no_server",
    /// Dropped: no free source port found.
    NoPort = "no_port",
    /// Dropped: `dsr` server behind a router; it would send the packet back.
    DsrOffLink = "dsr_off_link",
    /// Dropped: the leg has no address of the family for the outer packet of a tunnel.
    TunnelWithoutSource = "tunnel_without_source",
    /// Dropped: the service has no source address to translate to.
    NoSnatSource = "no_snat_source",
    /// Dropped: no free entry in either candidate bucket.
    TableFull = "table_full",
    /// Dropped: half-open budget used up and nothing to evict.
    HalfOpenFull = "half_open_full",
    /// Dropped: new flow while its bucket stayed locked, or packet of a flow that was removed at the same moment.
    LockContended = "lock_contended",
    /// Dropped: next hop not resolved.
    NoNeighbour = "no_neighbour",
    /// Dropped: no route.
    NoRoute = "no_route",
    /// Dropped: TTL used up.
    TtlExpired = "ttl_expired",
    /// Dropped: too big for its way, and its sender may not be told.
    TooBig = "too_big",
    /// Dropped: untranslated answer of a `dnat` server whose flow is missing.
    DnatReplyWithoutFlow = "dnat_reply_without_flow",
    /// Dropped: user space was asked about too many packets, of this sender or in all.
    HelpLimited = "help_limited",
    /// Dropped: refusal, time exceeded or too big not sent because of its rate limit.
    RefusalLimited = "refusal_limited",
    /// Dropped on the way out of the kernel: ARP with an owned sender while the lease is not valid.
    EgressArpBlocked = "egress_arp_blocked",
    /// Dropped on the way out of the kernel: IP packet with an owned source while the lease is not valid.
    EgressIpBlocked = "egress_ip_blocked",
    /// Dropped: a map or a frame operation the program relies on failed.
    Internal = "internal",
}

impl Counter {
    /// Index into `COUNTERS`.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Stable name, snake case.
    pub const fn name(self) -> &'static str {
        COUNTERS[self as usize].1
    }

    /// True for counters of packets that were thrown away.
    pub const fn is_drop(self) -> bool {
        self as u32 >= Self::Malformed as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_table_is_in_index_order_with_unique_snake_case_names() {
        let mut names = HashSet::new();
        for (i, (counter, name)) in COUNTERS.iter().enumerate() {
            assert_eq!(counter.index() as usize, i);
            assert_eq!(counter.name(), *name);
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{name}"
            );
            assert!(names.insert(name), "{name} twice");
        }
        assert!(Counter::Internal.is_drop() && !Counter::EventLost.is_drop());
    }
}
