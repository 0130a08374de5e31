#![expect(clippy::used_underscore_binding, reason = "explicit padding is measured too")]
use super::*;
use crate::{
    bench::Bench,
    event::Event,
    flow::{Bucket4, Bucket6, FlowEntry4, FlowEntry6, FlowKey, FlowKey4},
    refusal::Meter,
};
use core::mem::{align_of, offset_of, size_of};

/// Size, alignment, and the sum of the field sizes: equal to the size when no padding is hidden.
macro_rules! layout {
    ($t:ty, $size:literal, $align:literal, [$($field:ident: $offset:literal),+ $(,)?]) => {{
        assert_eq!(size_of::<$t>(), $size, stringify!($t));
        assert_eq!(align_of::<$t>(), $align, stringify!($t));
        let value = <$t>::default();
        let mut sum = 0;
        $(
            assert_eq!(offset_of!($t, $field), $offset, concat!(stringify!($t), "::", stringify!($field)));
            sum += size_of_val(&value.$field);
        )+
        assert_eq!(sum, $size, "hidden padding in {}", stringify!($t));
    }};
}

#[test]
fn map_types_have_the_layout_both_sides_rely_on() {
    layout!(Node, 80, 8, [flow_hash_key: 0, pair_hash_key: 16, flow_buckets: 32, flow6_buckets: 36,
        half_open_budget: 40, relay_to_peer: 44, half_open_ticks: 48, closing_ticks: 52, dsr_ways: 56, client_bucket_mask: 60,
        incarnation_base: 64, snat_shift: 72]);
    layout!(crate::decap::Settings, 4, 2, [gue_port: 0, listed_only: 2]);
    layout!(LegKey, 8, 4, [ifindex: 0, vlan: 4, _pad: 6]);
    layout!(Leg, 64, 4, [mac: 0, id: 6, group: 7, addr: 8, addr6: 24, link_local: 40, peer_mac: 56, mtu: 62]);
    layout!(LegSlot, 128, 64, [leg: 0, key: 64, _pad: 72]);
    layout!(OwnedKey, 20, 4, [addr: 0, slot: 16]);
    layout!(Owned, 4, 1, [kinds: 0, leg: 1, group: 2, _pad: 3]);
    layout!(ServiceKey, 20, 1, [slot: 0, proto: 1, addr: 2, port: 18]);
    layout!(Limits, 24, 8, [max_connections: 0, max_per_source: 4, new_cost_ns: 8, new_burst_ns: 16]);
    layout!(Refusals, 64, 8, [denied: 0, connections: 8, rate: 16, per_source: 24, no_server: 32, no_port: 40, table: 48, other: 56]);
    layout!(Service, 32, 8, [table: 0, mode: 8, scheduler: 9, hairpin: 10, group: 11, snat_base: 12, snat_len: 14,
        idle_ticks: 16, stats: 20, options: 24, mss: 28, _pad: 30]);
    layout!(Tunnel, 24, 4, [source: 0, spread: 16, port: 20, _pad: 22]);
    layout!(Server, 32, 8, [addr: 0, port: 16, net: 18, next_hop: 20, flags: 24, _pad: 28]);
    layout!(ScopedPrefix, 20, 1, [scope: 0, addr: 4]);
    layout!(EndpointKey, 20, 4, [addr: 0, port: 16, proto: 18, slot: 19]);
    layout!(NextHop, 16, 8, [mac: 0, vlan: 6, ifindex: 8, leg: 12, valid: 13, mtu: 14]);
    layout!(NeighbourKey, 20, 4, [addr: 0, leg: 16]);
    layout!(Route, 24, 4, [gateway: 0, leg: 16, mtu: 20]);
    layout!(LastHop, 16, 8, [mac: 0, vlan: 6, ifindex: 8, leg: 12, mtu: 14]);
    layout!(FragmentKey, 40, 4, [saddr: 0, daddr: 16, id: 32, proto: 36]);
    layout!(Remembered, 24, 8, [time: 0, id: 8, sport: 12, dport: 14, proto: 16, _pad: 20]);
    layout!(SnatPool, 20, 4, [addr: 0, first: 16, last: 18]);
    layout!(SnatRange, 4, 2, [first: 0, last: 2]);
    layout!(Stats, 48, 8, [flows: 0, packets_in: 8, bytes_in: 16, packets_out: 24, bytes_out: 32, refused: 40]);
    layout!(Bench, 152, 8, [template: 0, flows: 64, sequential: 72, next: 80, base: 88, len: 92,
        vary_destination: 96, ip_sum: 100, tcp_sum: 104, datagrams: 108,
        blind: 112, blind_sum: 116, count: 120, pace: 128, due: 136, ports: 144]);
    layout!(crate::persistence::Bucket, 128, 64, [clients: 0, values: 64]);
    layout!(Meter, 8, 8, [empty_at: 0]);
    layout!(Event, 48, 8, [kind: 0, leg: 4, addr: 8, detail: 24, mac: 28, _pad: 34, time: 40]);
}

#[test]
fn a_flow_entry_is_one_cache_line_and_a_bucket_seventeen() {
    layout!(FlowKey4, 16, 4, [saddr: 0, daddr: 4, sport: 8, dport: 10, proto: 12, _pad: 13]);
    layout!(FlowEntry4, 64, 64, [saddr: 0, daddr: 4, sport: 8, dport: 10, proto: 12, flags: 13, own: 14, other: 15,
        new_saddr: 16, new_daddr: 20, new_sport: 24, new_dport: 26, hop: 28, partner: 32, last_seen: 36,
        idle_ticks: 40, expected_ack: 44, server: 48, stats: 50, packets: 52, incarnation: 56, _rest: 64]);
    layout!(Bucket4, 1088, 64, [tags: 0, lock: 32, overflow: 40, _pad: 48, entries: 64]);
}

#[test]
fn an_ipv6_flow_entry_is_two_cache_lines() {
    layout!(FlowKey, 40, 4, [saddr: 0, daddr: 16, sport: 32, dport: 34, proto: 36, _pad: 37]);
    layout!(FlowEntry6, 128, 64, [saddr: 0, daddr: 16, sport: 32, dport: 34, proto: 36, flags: 37, own: 38, other: 39,
        new_saddr: 40, new_daddr: 56, new_sport: 72, new_dport: 74, hop: 76, partner: 80, last_seen: 84,
        idle_ticks: 88, expected_ack: 92, server: 96, stats: 98, packets: 100, incarnation: 104, _rest: 112]);
    layout!(Bucket6, 2112, 64, [tags: 0, lock: 32, overflow: 40, _pad: 48, entries: 64]);
}
